//! Erases what one person wrote: in the store, in Mail files and the index, in drafts and in the
//! dropzone.
//!
//! ```text
//!   store ─▶ Mail files ─▶ index ─▶ drafts ─▶ dropzone ─▶ disk synced ─▶ search index ─▶ database
//!                                                                                      compacted
//! ```
//!
//! Every step can be repeated. The store has the DIDs of the person until the last one, so that
//! the next start of the courier continues after a crash.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use monoco_core::did::Did;
use monoco_core::draft::MAX_DRAFT;
use monoco_core::erasure::{ErasedAuthors, attachments};
use monoco_core::object::ObjId;
use monoco_fs::Dir;
use monoco_mailbox::paths::OUTBOUND_DIR;
use monoco_store::{ErasureCounts, ErasureRequest};
use tokio::runtime::Handle;

use super::dead_drafts::DEADLETTER_DIR;
use super::draft_watcher;
use super::drafts::{SENDING_DIR, is_uid};
use super::file_projector::{FileProjector, ProjectorError};
use super::mailbox_check::MailboxScan;
use super::mailbox_dir::OpenDirs;
use super::place_file::VerifyLevel;
use super::search_indexer::SearchIndexer;
use crate::clock::Clock;

/// Erases text through the file projector, whose files change with the store.
#[derive(Clone)]
pub struct TextEraser {
    pub projector: Arc<FileProjector>,
    pub search: Arc<SearchIndexer>,
    pub clock: Clock,
    /// The author of all drafts.
    pub owner: Did,
}

/// What was erased, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForgetCounts {
    pub stored: ErasureCounts,
    pub drafts: usize,
}

/// Why nothing was erased.
#[derive(Debug, thiserror::Error)]
pub enum ForgetError {
    #[error(
        "the mailbox has {0} Mails that the store does not know, which can have text of the \
         person; run `monoco courier rebuild --from-files`, and remove the files that it cannot \
         restore"
    )]
    LostMails(usize),
    #[error(transparent)]
    Projector(#[from] ProjectorError),
}

/// A draft in the mailbox directory.
struct DraftFile {
    dir: Arc<Dir>,
    name: String,
    /// Whether it can still be sent.
    is_open: bool,
}

impl TextEraser {
    /// Counts what [`Self::erase`] would erase. Changes nothing.
    ///
    /// # Errors
    ///
    /// When the store has not seen the person, or the disk or the store fails.
    pub async fn count(&self, authors: ErasedAuthors) -> Result<ForgetCounts, ForgetError> {
        let eraser = self.clone();
        let count = self.projector.blocking(move |projector, handle| {
            let dirs = projector.tree().open_dirs()?;
            let (drafts, request) = eraser.request(&dirs, authors)?;
            let stored = handle.block_on(projector.store().count_erasure(&request))?;
            Ok(ForgetCounts { stored, drafts: drafts.len() })
        });
        Ok(count.await?)
    }

    /// Erases the text of a person. Continues in the background when the caller is gone.
    ///
    /// # Errors
    ///
    /// When the mailbox has Mails that the store has lost, or the disk or the store fails. Can be
    /// repeated, and is continued at the next start.
    pub async fn erase(&self, authors: ErasedAuthors) -> Result<ForgetCounts, ForgetError> {
        let eraser = self.clone();
        let erase = self.projector.blocking(move |projector, handle| {
            let lost = projector.count_lost_mails(handle)?;
            if lost > 0 {
                return Ok(Err(ForgetError::LostMails(lost)));
            }
            eraser.erase_all(projector, authors, handle).map(Ok)
        });
        erase.await?
    }

    /// Continues an erasure that an earlier run of the courier did not complete.
    pub async fn resume(self) {
        let open = match self.projector.store().open_erasure().await {
            Ok(open) if open.0.is_empty() => return,
            Ok(open) => open,
            Err(error) => return tracing::error!(%error, "cannot read open erasures"),
        };
        match self.erase(open).await {
            Ok(_) => tracing::info!("completed an erasure that was interrupted"),
            Err(error) => tracing::error!(%error, "cannot complete an interrupted erasure"),
        }
    }

    fn erase_all(
        &self,
        projector: &FileProjector,
        authors: ErasedAuthors,
        handle: &Handle,
    ) -> Result<ForgetCounts, ProjectorError> {
        // No file is written from here on, so that none appears with erased text.
        let state = &mut *projector.lock_state();
        projector.start(state, handle)?;
        let mut dirs = projector.tree().open_dirs()?;
        let (drafts, request) = self.request(&dirs, authors)?;
        let store = projector.store();
        let stored = handle.block_on(store.erase(&request, self.clock.now()))?;
        while projector.follow(state, &mut dirs, handle)? {}
        if handle.block_on(store.file_progress(projector.courier()))?.index_bytes == 0 {
            projector.build(state, &mut dirs, handle)?;
        }
        for DraftFile { dir, name, .. } in &drafts {
            dir.remove(name)?;
            let uid = name.strip_suffix(".md").unwrap_or(name);
            dir.remove(&format!("{uid}.reason.json"))?;
        }
        for id in handle.block_on(store.erased_attachments())? {
            dirs.remove_attachment(&id)?;
        }
        state.touch();
        projector.sync(state, handle)?;
        handle.block_on(self.search.erase())?;
        handle.block_on(store.finish_erasure())?;
        let (objects, mails) = (stored.objects, stored.mails);
        tracing::info!(objects, mails, "erased the text of a person");
        Ok(ForgetCounts { stored, drafts: drafts.len() })
    }

    /// Returns the drafts to remove, and the request to the store.
    fn request(
        &self,
        dirs: &OpenDirs<'_>,
        authors: ErasedAuthors,
    ) -> io::Result<(Vec<DraftFile>, ErasureRequest)> {
        let drafts = list_drafts(dirs)?;
        let owner = Some(self.owner.clone());
        if authors.0.contains(&self.owner) {
            return Ok((drafts, ErasureRequest { authors, owner, ..ErasureRequest::default() }));
        }
        let attachments_in_use = attachments_of(&drafts)?;
        Ok((Vec::new(), ErasureRequest { authors, attachments_in_use, owner }))
    }
}

impl FileProjector {
    /// Counts Mails of files and indexes that the store does not know. Indexes that were set
    /// aside are removed when there are none.
    fn count_lost_mails(&self, handle: &Handle) -> Result<usize, ProjectorError> {
        let state = &mut *self.lock_state();
        self.start(state, handle)?;
        let dirs = self.tree().open_dirs()?;
        let mut scan = MailboxScan::start(&dirs, VerifyLevel::Usual)?;
        let (lost, _) = self.lost_mails(&mut scan, &dirs, handle)?;
        if lost == 0 {
            super::lost_mails::remove_lost_indexes(&dirs.state()?)?;
        }
        Ok(lost)
    }
}

/// Lists the drafts: those to send, in progress, sent, and dead.
fn list_drafts(dirs: &OpenDirs<'_>) -> io::Result<Vec<DraftFile>> {
    let mut drafts = Vec::new();
    for (part, is_open) in [(OUTBOUND_DIR, true), (DEADLETTER_DIR, true), ("archive", false)] {
        let part_dir = dirs.root().make(part)?;
        for provider in part_dir.names()?.into_iter().filter_map(|entry| entry.name) {
            let Ok(dir) = part_dir.sub(&provider).map(Arc::new) else { continue };
            let sending = match part {
                OUTBOUND_DIR => monoco_fs::found(dir.sub(SENDING_DIR))?.map(Arc::new),
                _ => None,
            };
            for dir in [Some(dir), sending].into_iter().flatten() {
                for name in dir.names()?.into_iter().filter_map(|entry| entry.name) {
                    let is_draft = match part {
                        OUTBOUND_DIR => draft_watcher::is_draft(&name),
                        // Mails have files in the other directories too.
                        _ => name.strip_suffix(".md").is_some_and(is_uid),
                    };
                    if is_draft {
                        drafts.push(DraftFile { dir: Arc::clone(&dir), name, is_open });
                    }
                }
            }
        }
    }
    Ok(drafts)
}

/// The attachments of drafts that can still be sent.
fn attachments_of(drafts: &[DraftFile]) -> io::Result<BTreeSet<ObjId>> {
    let mut found = BTreeSet::new();
    for DraftFile { dir, name, .. } in drafts.iter().filter(|draft| draft.is_open) {
        match dir.read(name, MAX_DRAFT as u64) {
            Ok(Some(bytes)) => found.extend(attachments(&String::from_utf8_lossy(&bytes))),
            Ok(None) => {}
            // A file that is too large is not a draft.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
