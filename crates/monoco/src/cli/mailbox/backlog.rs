//! Selects the oldest Mail of a workspace that can be claimed.

use std::collections::BTreeSet;
use std::time::Duration;

use monoco_core::filter::{Filter, FilterInput};
use monoco_core::mail::{Mail, MailId};
use monoco_core::time::Timestamp;

use super::MailboxContext;
use super::claim_lookup::{ClaimLookup, MAX_MAILS_PER_REQUEST};
use crate::cli::failure::CliError;
use crate::cli::output::{escape_line, note};
use monoco_mailbox::inbox::{self, MailFileName};
use monoco_mailbox::workspace::WorkspaceDir;

/// Shortest and longest time after which claims are read again without a hint.
const MIN_CLAIM_AGE: Duration = Duration::from_secs(1);
const MAX_CLAIM_AGE: Duration = Duration::from_secs(60);

/// File names of Mails that may still become claimable. A Mail that is completed or dead is
/// removed when its claim is read, so that the courier is not asked about it again.
pub struct Backlog<'a> {
    mailbox: &'a MailboxContext<'a>,
    workspace: &'a WorkspaceDir,
    filter: Option<Filter>,
    claims: ClaimLookup<'a>,
    names: BTreeSet<MailFileName>,
    /// All names that were ever added.
    seen: BTreeSet<MailFileName>,
    /// When the first of the Mails that cannot be claimed now can be, if nothing else happens.
    due: Option<Timestamp>,
}

/// A Mail that can be claimed now.
pub struct Claimable {
    pub name: MailFileName,
    pub id: MailId,
    pub mail: Mail,
}

impl<'a> Backlog<'a> {
    /// Creates the backlog from all Mails of the inbox. `filter` filters them when they are read.
    pub fn new(
        mailbox: &'a MailboxContext<'a>,
        workspace: &'a WorkspaceDir,
        filter: Option<&str>,
    ) -> Result<Self, CliError> {
        let filter = filter.map(|text| {
            Filter::parse(text).map_err(|error| CliError::usage(format!("--filter: {error}")))
        });
        let claims = ClaimLookup::new(mailbox, &workspace.name);
        let (names, seen) = (BTreeSet::new(), BTreeSet::new());
        let filter = filter.transpose()?;
        let mut backlog = Self { mailbox, workspace, filter, claims, names, seen, due: None };
        backlog.add_new()?;
        Ok(backlog)
    }

    /// Adds the Mails that came into the inbox since the last call, also those that another
    /// process has pulled.
    pub fn add_new(&mut self) -> Result<(), CliError> {
        for name in inbox::oldest_first(self.workspace, self.mailbox.now())? {
            if !self.seen.contains(&name) {
                self.seen.insert(name.clone());
                self.names.insert(name);
            }
        }
        Ok(())
    }

    /// In what time the claims must be read again; `None` when no Mail is left that can become
    /// claimable.
    pub fn ask_in(&self, now: Timestamp) -> Option<Duration> {
        if self.names.is_empty() {
            return None;
        }
        let due = self.due.map_or(MAX_CLAIM_AGE, |due| due.since(now));
        Some(due.clamp(MIN_CLAIM_AGE, MAX_CLAIM_AGE))
    }

    /// Returns the oldest Mail that can be claimed now and is not in `tried`.
    pub async fn next(&mut self, tried: &BTreeSet<MailId>) -> Result<Option<Claimable>, CliError> {
        let mut last: Option<MailFileName> = None;
        self.due = None;
        loop {
            let rest: Vec<_> = match &last {
                Some(last) => {
                    let after = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
                    self.names.range(after).take(MAX_MAILS_PER_REQUEST).cloned().collect()
                }
                None => self.names.iter().take(MAX_MAILS_PER_REQUEST).cloned().collect(),
            };
            let Some(end) = rest.last().cloned() else { return Ok(None) };
            last = Some(end);
            let page: Vec<_> =
                rest.into_iter().filter_map(|name| name.id().map(|id| (name, id))).collect();
            let asked = self.claims.of(&page).await?;
            for ((name, id), claim) in page.into_iter().zip(asked) {
                if !claim.open() {
                    self.names.remove(&name);
                    continue;
                }
                if !claim.claimable(self.mailbox.now()) || tried.contains(&id) {
                    let due = claim.expires_at.or(claim.next_retry_at);
                    self.due = self.due.into_iter().chain(due).min();
                    continue;
                }
                match self.open(&name) {
                    Some(mail) => return Ok(Some(Claimable { name, id, mail })),
                    None => drop(self.names.remove(&name)),
                }
            }
        }
    }

    /// Reads a Mail; `None` if it is unreadable or the filter does not match.
    fn open(&self, name: &MailFileName) -> Option<Mail> {
        let inbox = self.workspace.open_inbox().ok()??;
        match inbox::open(&inbox, name) {
            Ok((mail, file)) => {
                let Some(filter) = &self.filter else { return Some(mail) };
                let entry = mail.entry(0, &file);
                let mut fetch = || Some(mail.text.clone());
                let wanted = filter.matches(&mut FilterInput::new(&entry, &mut fetch));
                wanted.then_some(mail)
            }
            Err(words) => {
                // A file that the user has deleted meanwhile is not reported.
                if inbox.dir().kind(name.file()).is_some() {
                    note(&format!("skipped {}", escape_line(&words)));
                }
                None
            }
        }
    }
}
