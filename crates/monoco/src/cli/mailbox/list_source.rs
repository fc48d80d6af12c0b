//! Mails to list, newest first: from the inbox of a workspace or from the courier's index.

use std::collections::{BTreeSet, BinaryHeap};
use std::path::PathBuf;

use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_core::time::Timestamp;

use super::list::MailSearch;
use crate::cli::failure::CliError;
use monoco_mailbox::CheckedDir;
use monoco_mailbox::claim_info::unrouted;
use monoco_mailbox::inbox::{self, MailFileName};
use monoco_mailbox::index::{IndexReader, NewestFirst};
use monoco_mailbox::paths::{MailFile, MailboxPaths};
use monoco_mailbox::sync::body;
use monoco_mailbox::workspace::WorkspaceDir;

/// Source of the Mails to list.
pub enum MailSource<'a> {
    /// Files in the inbox of a workspace; nothing when there is no inbox yet.
    Inbox { inbox: Option<CheckedDir>, names: BinaryHeap<MailFileName> },
    /// Lines of the courier's index; `lines` is `None` when there is no index or at its end.
    Index { paths: &'a MailboxPaths, lines: Option<NewestFirst>, only: Option<BTreeSet<String>> },
}

/// A Mail that may match.
pub struct MailCandidate {
    pub name: MailFileName,
    pub id: MailId,
    /// The line of the index, if it has been read.
    entry: Option<MailIndexEntry>,
}

impl<'a> MailSource<'a> {
    /// The Mails in the inbox of a workspace.
    pub fn workspace(workspace: &WorkspaceDir, now: Timestamp) -> Result<Self, CliError> {
        let inbox = workspace.open_inbox()?;
        Ok(Self::Inbox { inbox, names: inbox::newest_first(workspace, now)? })
    }

    /// All Mails of the courier, or only those that no workspace has claimed or pulled.
    pub fn courier(paths: &'a MailboxPaths, is_unrouted: bool) -> Result<Self, CliError> {
        let only = if is_unrouted { Some(unrouted(paths)?) } else { None };
        let index = IndexReader::open(&paths.index())?;
        let lines = index.map(IndexReader::newest_first).transpose()?;
        Ok(Self::Index { paths, lines, only })
    }

    /// The next Mails that match the provider and the time, at most `want`.
    pub fn next_page(
        &mut self,
        query: &MailSearch,
        want: usize,
    ) -> Result<Vec<MailCandidate>, CliError> {
        let mut page = Vec::new();
        while page.len() < want
            && let Some(candidate) = self.next(query)?
        {
            page.push(candidate);
        }
        Ok(page)
    }

    fn next(&mut self, query: &MailSearch) -> Result<Option<MailCandidate>, CliError> {
        let wanted = |provider: &str| query.provider.as_deref().is_none_or(|it| it == provider);
        match self {
            Self::Inbox { names, .. } => {
                let stamp = query.since.map(Timestamp::compact);
                while let Some(name) = names.pop() {
                    if stamp.as_deref().is_some_and(|stamp| name.stamp() < stamp) {
                        return Ok(None);
                    }
                    if wanted(name.provider())
                        && let Some(id) = name.id()
                    {
                        return Ok(Some(MailCandidate { name, id, entry: None }));
                    }
                }
                Ok(None)
            }
            Self::Index { lines, only, .. } => {
                while let Some(reader) = lines {
                    let Some(entry) = reader.next_entry()? else { break };
                    let is_last = only.as_ref().is_some_and(BTreeSet::is_empty);
                    if is_last || query.since.is_some_and(|since| entry.received_at < since) {
                        *lines = None;
                        break;
                    }
                    let is_listed = only.as_mut().is_none_or(|only| only.remove(&entry.file));
                    if is_listed
                        && wanted(entry.id.provider())
                        && let Some(name) = MailFileName::new(entry.file.clone())
                    {
                        let id = entry.id.clone();
                        return Ok(Some(MailCandidate { name, id, entry: Some(entry) }));
                    }
                }
                Ok(None)
            }
        }
    }

    /// The number of all Mails that match the provider and the time, where that needs no
    /// parsing; `seen` of them were returned by [`Self::next_page`].
    pub fn count_all(&mut self, query: &MailSearch, seen: usize) -> Result<Option<u64>, CliError> {
        match self {
            Self::Index { paths, only: None, .. }
                if query.provider.is_none() && query.since.is_none() =>
            {
                let index = IndexReader::open(&paths.index())?;
                Ok(index.map(|mut index| index.count()).transpose()?)
            }
            Self::Index { .. } => Ok(None),
            Self::Inbox { names, .. } => {
                let stamp = query.since.map(Timestamp::compact);
                let matches = |name: &&MailFileName| {
                    query.provider.as_deref().is_none_or(|it| it == name.provider())
                        && stamp.as_deref().is_none_or(|stamp| stamp <= name.stamp())
                        && name.has_id()
                };
                Ok(Some((seen + names.iter().filter(matches).count()) as u64))
            }
        }
    }

    /// The index line of a Mail, and its text if the file had to be read.
    pub fn entry(
        &self,
        candidate: MailCandidate,
    ) -> Result<(MailIndexEntry, Option<String>), String> {
        match (self, candidate.entry) {
            (_, Some(entry)) => Ok((entry, None)),
            (Self::Inbox { inbox: Some(inbox), .. }, None) => {
                let (mail, file) = inbox::open(inbox, &candidate.name)?;
                Ok((mail.entry(0, &file), Some(mail.text)))
            }
            (_, None) => Err(format!("{}: the file was removed", candidate.name.file())),
        }
    }

    /// The text of a Mail from its file; `None` when it cannot be read.
    pub fn text(&self, entry: &MailIndexEntry) -> Option<String> {
        match self {
            Self::Index { paths, .. } => match paths.find(entry) {
                Ok(MailFile::Here { bytes, .. }) => body(&bytes),
                _ => None,
            },
            Self::Inbox { .. } => None,
        }
    }

    /// The path of the file of a Mail; `None` when it was purged.
    pub fn path(&self, entry: &MailIndexEntry) -> Option<PathBuf> {
        match self {
            Self::Index { paths, .. } => paths.file_path(entry.id.provider(), &entry.file),
            Self::Inbox { inbox, .. } => Some(inbox.as_ref()?.path().join(&entry.file)),
        }
    }
}
