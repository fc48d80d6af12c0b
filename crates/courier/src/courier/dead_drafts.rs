//! Dead drafts: counts and lists them, puts them back into `outbound/`, archives them.
//!
//! A draft that could not be sent exists only as a file in `.deadletter/{provider}/`, with its
//! reason beside it. A draft that was sent and failed is listed as its dead deliveries or its
//! dead letter, and not a second time here.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use monoco_core::draft::{MAX_DRAFT, with_outcome};
use monoco_core::letter::LetterState;
use monoco_fs::{Dir, FileOptions};
use monoco_mailbox::paths::OUTBOUND_DIR;
use serde_json::{Value, json};

use super::drafts::is_uid;
use super::mailbox_dir::{MailboxDir, OpenDirs};

/// Directory of dead letters in the mailbox.
pub(super) const DEADLETTER_DIR: &str = ".deadletter";

/// Largest reason file that is read, in bytes.
const MAX_REASON_BYTES: u64 = 1 << 20;

/// Dead drafts by uid. The list in memory has the drafts of the last scan and those that became dead
/// since.
#[derive(Debug)]
pub struct DeadDrafts {
    tree: Arc<MailboxDir>,
    listed: Mutex<BTreeMap<String, DeadDraft>>,
}

/// A draft that could not be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadDraft {
    pub uid: String,
    /// Name of the provider directory.
    pub provider: String,
    pub reason: String,
    pub file: PathBuf,
}

impl DeadDrafts {
    pub fn new(tree: Arc<MailboxDir>) -> Self {
        Self { tree, listed: Mutex::default() }
    }

    /// Returns the number of dead drafts without reading the directories.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Adds a draft that has been moved to the dead letters.
    pub(super) fn add(&self, provider: &str, uid: &str, about: &Value) {
        if is_listed(about) {
            self.lock().insert(uid.to_owned(), self.dead_draft(provider, uid, about));
        }
    }

    /// Reads the directories and returns all dead drafts, oldest first.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn scan(&self) -> io::Result<Vec<DeadDraft>> {
        let before = self.lock().clone();
        let dirs = self.tree.open_dirs()?;
        let mut listed = BTreeMap::new();
        let deadletter = dirs.root().make(DEADLETTER_DIR)?;
        for provider in deadletter.names()?.into_iter().filter_map(|entry| entry.name) {
            let Ok(dir) = deadletter.sub(&provider) else { continue };
            for name in dir.names()?.into_iter().filter_map(|entry| entry.name) {
                let Some(uid) = name.strip_suffix(".md").filter(|uid| is_uid(uid)) else {
                    continue;
                };
                let about = read_reason(&dir, uid)?;
                if is_listed(&about) {
                    listed.insert(uid.to_owned(), self.dead_draft(&provider, uid, &about));
                }
            }
        }
        let mut current = self.lock();
        replace_listed(&mut current, &before, listed);
        Ok(current.values().cloned().collect())
    }

    /// Moves a draft back into `outbound/`, where it is picked up again. Returns `None` when it
    /// is not a dead draft.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn retry(&self, uid: &str) -> io::Result<Option<DeadDraft>> {
        let Some(draft) = self.find(uid)? else { return Ok(None) };
        let mut dirs = self.tree.open_dirs()?;
        let Some(dead) = dirs.provider_dir(DEADLETTER_DIR, &draft.provider, false)? else {
            return Ok(None);
        };
        let outbound = provider_dir(&mut dirs, OUTBOUND_DIR, &draft.provider)?;
        // The uid is unique, so that no other draft is replaced.
        let name = format!("{uid}.md");
        dead.rename(&name, &outbound, &name)?;
        outbound.sync()?;
        self.forget(&dead, uid)?;
        Ok(Some(draft))
    }

    /// Moves a draft to the archive, from which it is removed after `archive_days` beginning
    /// with `day`. Returns `None` when it is not a dead draft.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn archive(&self, uid: &str, day: i64) -> io::Result<Option<DeadDraft>> {
        let Some(draft) = self.find(uid)? else { return Ok(None) };
        let mut dirs = self.tree.open_dirs()?;
        let Some(dead) = dirs.provider_dir(DEADLETTER_DIR, &draft.provider, false)? else {
            return Ok(None);
        };
        let name = format!("{uid}.md");
        let archive = provider_dir(&mut dirs, "archive", &draft.provider)?;
        match dead.read(&name, MAX_DRAFT as u64) {
            Ok(bytes) => {
                let outcome = json!({"dropped": true, "reason": draft.reason, "day": day});
                let text = String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned();
                let options = FileOptions { synced: true, ..FileOptions::READ_ONLY };
                dirs.put(&archive, &name, with_outcome(&text, &outcome).as_bytes(), options)?;
            }
            // A file that is too large to be a draft is kept as it is.
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                dead.rename(&name, &archive, &name)?;
            }
            Err(error) => return Err(error),
        }
        archive.sync()?;
        dead.remove(&name)?;
        self.forget(&dead, uid)?;
        Ok(Some(draft))
    }

    /// Finds a draft whose file still exists.
    fn find(&self, uid: &str) -> io::Result<Option<DeadDraft>> {
        Ok(self.scan()?.into_iter().find(|draft| draft.uid == uid))
    }

    /// Removes the reason of a draft that is no longer dead.
    fn forget(&self, dead: &Dir, uid: &str) -> io::Result<()> {
        dead.remove(&format!("{uid}.reason.json"))?;
        dead.sync()?;
        self.lock().remove(uid);
        Ok(())
    }

    fn dead_draft(&self, provider: &str, uid: &str, about: &Value) -> DeadDraft {
        let reason = about["reason"].as_str().unwrap_or("no reason given").to_owned();
        let dir = self.tree.mailbox().join(DEADLETTER_DIR).join(provider);
        let (provider, file) = (provider.to_owned(), dir.join(format!("{uid}.md")));
        DeadDraft { uid: uid.to_owned(), provider, reason, file }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, DeadDraft>> {
        // No code panics while it holds the lock.
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces the list by the drafts that a scan found. Drafts that were added or removed since
/// `before`, the list at the start of the scan, stay added or removed.
fn replace_listed(
    current: &mut BTreeMap<String, DeadDraft>,
    before: &BTreeMap<String, DeadDraft>,
    mut found: BTreeMap<String, DeadDraft>,
) {
    found.retain(|uid, _| current.contains_key(uid) || !before.contains_key(uid));
    let current_drafts = std::mem::take(current).into_iter();
    found.extend(current_drafts.filter(|(uid, _)| !before.contains_key(uid)));
    *current = found;
}

/// Whether the draft of this reason is listed: its message was never created, or the pipeline
/// trashed its letter.
fn is_listed(about: &Value) -> bool {
    let no_delivery = about["deliveries"].as_array().is_none_or(Vec::is_empty);
    no_delivery && about["letter_state"] != LetterState::Dead.as_str()
}

/// Reads the reason of a draft; null when it is missing or damaged.
fn read_reason(dir: &Dir, uid: &str) -> io::Result<Value> {
    let bytes = dir.read(&format!("{uid}.reason.json"), MAX_REASON_BYTES)?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
}

fn provider_dir(
    dirs: &mut OpenDirs<'_>,
    part: &'static str,
    provider: &str,
) -> io::Result<Arc<Dir>> {
    dirs.provider_dir(part, provider, true)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_that_change_during_a_scan_are_neither_lost_nor_listed_again() {
        let drafts = |uids: &str| -> BTreeMap<_, _> {
            let draft = |uid: char| DeadDraft {
                uid: uid.to_string(),
                provider: "webhook".to_owned(),
                reason: "unknown key".to_owned(),
                file: PathBuf::from(format!("{uid}.md")),
            };
            uids.chars().map(|uid| (uid.to_string(), draft(uid))).collect()
        };
        // During the scan, `b` was retried and `d` died. The file of `c` was deleted before.
        let mut current = drafts("acd");
        replace_listed(&mut current, &drafts("abc"), drafts("abe"));
        assert_eq!(current, drafts("ade"));
    }
}
