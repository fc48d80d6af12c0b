//! Claims as the courier shows them in its API and in `.state/locks.json`.
//!
//! The courier writes [`ClaimInfo`] values to the file; a workspace reads them when it
//! cannot ask the courier. Claims that are not open are derived from the directory of the
//! Mail's file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use monoco_core::claim::{Claim, ClaimState, ClaimStateData, MailLocation, Workspace};
use monoco_core::mail::MailId;
use monoco_core::time::{Timestamp, rfc3339_maybe};
use monoco_fs::{Dir, found};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::inbox::MailFileName;
use super::paths::MailboxPaths;
use super::{MailboxError, at};

/// Version of the format of `locks.json`.
pub const LOCKS_VERSION: u32 = 1;

/// The claim of one workspace on one Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimInfo {
    pub id: MailId,
    pub workspace: String,
    #[serde(serialize_with = "write_state", deserialize_with = "read_state")]
    pub status: ClaimState,
    /// The agent that has leased the Mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Number of the current lease.
    #[serde(default)]
    pub epoch: u64,
    /// How often the Mail was claimed.
    #[serde(default)]
    pub attempts: u32,
    /// How often the Mail was claimed after the first time.
    #[serde(default)]
    pub retry_count: u32,
    /// When the lease expires.
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When the Mail may be claimed again.
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Timestamp>,
    /// Reason of the last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Timestamp>,
}

#[derive(Deserialize)]
struct LocksFileContent {
    version: u32,
    #[serde(default)]
    locks: Vec<ClaimInfo>,
}

/// Claims of one workspace as the courier's files show them.
#[derive(Debug)]
pub struct LocksFile<'a> {
    tree: &'a MailboxPaths,
    workspace: &'a Workspace,
    open: BTreeMap<MailId, ClaimInfo>,
    now: Timestamp,
    /// Why open claims are missing: the file exists and cannot be parsed.
    pub unreadable: Option<String>,
}

impl From<&Claim> for ClaimInfo {
    fn from(claim: &Claim) -> Self {
        let (agent_id, expires_at, next_retry_at) = match &claim.claiming.state {
            ClaimStateData::Claimed(lease) => {
                (Some(lease.holder.as_str().to_owned()), Some(lease.until), None)
            }
            ClaimStateData::New { due } => (None, None, Some(*due)),
            ClaimStateData::Completed | ClaimStateData::Deadletter { .. } => (None, None, None),
        };
        Self {
            id: claim.mail.clone(),
            workspace: claim.workspace.as_str().to_owned(),
            status: claim.claiming.state.name(),
            agent_id,
            epoch: claim.claiming.epoch,
            attempts: claim.claiming.attempts,
            retry_count: claim.claiming.attempts.saturating_sub(1),
            expires_at,
            next_retry_at,
            reason: claim.reason.clone(),
            updated_at: Some(claim.updated_at),
        }
    }
}

impl ClaimInfo {
    /// The claim on a Mail that was never claimed.
    pub fn untouched(id: MailId, workspace: &Workspace) -> Self {
        Self {
            id,
            workspace: workspace.as_str().to_owned(),
            status: ClaimState::New,
            agent_id: None,
            epoch: 0,
            attempts: 0,
            retry_count: 0,
            expires_at: None,
            next_retry_at: None,
            reason: None,
            updated_at: None,
        }
    }

    /// Whether the Mail can be claimed at `now`.
    pub fn claimable(&self, now: Timestamp) -> bool {
        match self.status {
            ClaimState::New => self.next_retry_at.is_none_or(|due| due <= now),
            ClaimState::Claimed => self.expires_at.is_some_and(|until| until <= now),
            ClaimState::Completed | ClaimState::Deadletter => false,
        }
    }

    /// Whether the Mail can be claimed now or later without an operator.
    pub const fn open(&self) -> bool {
        matches!(self.status, ClaimState::New | ClaimState::Claimed)
    }

    /// Whether the Mail was never claimed.
    pub fn unread(&self) -> bool {
        self.status == ClaimState::New && self.attempts == 0
    }
}

impl<'a> LocksFile<'a> {
    /// Reads `locks.json` for the claims of `workspace`.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or has a newer version.
    pub fn read(
        tree: &'a MailboxPaths,
        workspace: &'a Workspace,
        now: Timestamp,
    ) -> Result<Self, MailboxError> {
        let (locks, unreadable) = read_locks(tree)?;
        let of_workspace = locks.into_iter().filter(|lock| lock.workspace == workspace.as_str());
        let open = of_workspace.map(|lock| (lock.id.clone(), lock)).collect();
        Ok(Self { tree, workspace, open, now, unreadable })
    }

    /// The claim on a Mail as far as files show it: an open claim from the file, or a
    /// status derived from the directory of the Mail's file.
    pub fn of(&self, name: &MailFileName, id: &MailId) -> ClaimInfo {
        if let Some(lock) = self.open.get(id) {
            let mut lock = lock.clone();
            if lock.status == ClaimState::Claimed && lock.claimable(self.now) {
                // The courier is not running, so nothing has expired the lease.
                lock.status = ClaimState::New;
                lock.agent_id = None;
            }
            return lock;
        }
        let mut claim = ClaimInfo::untouched(id.clone(), self.workspace);
        claim.status = match self.tree.location(id.provider(), name.file()) {
            Some(MailLocation::Archive) => ClaimState::Completed,
            Some(MailLocation::Deadletter) => ClaimState::Deadletter,
            _ => ClaimState::New,
        };
        claim
    }
}

/// Mails that no workspace has claimed or pulled, as far as files show it: the file is in
/// `inbound/`, no workspace has a hard link to it, and there is no open claim on it. Returns
/// their file names.
///
/// # Errors
///
/// When a directory or `locks.json` cannot be read.
pub fn unrouted(tree: &MailboxPaths) -> Result<BTreeSet<String>, MailboxError> {
    let claimed: BTreeSet<_> = read_locks(tree)?.0.into_iter().map(|lock| lock.id).collect();
    let mut names = BTreeSet::new();
    let inbound = tree.root().join("inbound");
    let Some(dir) = found(Dir::open_root(&inbound)).map_err(at(&inbound))? else {
        return Ok(names);
    };
    let providers = dir.names().map_err(at(&inbound))?;
    for provider in providers.into_iter().filter_map(|entry| entry.name) {
        // A file in place of a directory is not the courier's.
        let Ok(dir) = dir.sub(&provider) else { continue };
        let files = dir.names().map_err(at(&inbound.join(&provider)))?;
        for name in files.into_iter().filter_map(|entry| MailFileName::new(entry.name?)) {
            let stat = dir.stat(name.file()).map_err(at(&inbound.join(&provider)))?;
            let alone = stat.is_some_and(|stat| stat.is_file && stat.links == 1);
            if alone && name.id().is_some_and(|id| !claimed.contains(&id)) {
                names.insert(name.file().to_owned());
            }
        }
    }
    Ok(names)
}

/// Reads all open claims, and why they are missing when the file cannot be parsed.
fn read_locks(tree: &MailboxPaths) -> Result<(Vec<ClaimInfo>, Option<String>), MailboxError> {
    let path = tree.locks();
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((Vec::new(), None)),
        Err(error) => return Err(at(&path)(error)),
    };
    // The courier rewrites the file when it starts. Until then, the directories of the Mail
    // files still show completed claims.
    match serde_json::from_slice::<LocksFileContent>(&text) {
        Ok(locks) if locks.version != LOCKS_VERSION => Err(MailboxError::Newer(path)),
        Ok(locks) => Ok((locks.locks, None)),
        Err(error) => Ok((Vec::new(), Some(format!("{}: {error}", path.display())))),
    }
}

fn write_state<S: Serializer>(state: &ClaimState, writer: S) -> Result<S::Ok, S::Error> {
    writer.serialize_str(state.as_str())
}

fn read_state<'de, D: Deserializer<'de>>(reader: D) -> Result<ClaimState, D::Error> {
    let word = String::deserialize(reader)?;
    ClaimState::parse(&word)
        .ok_or_else(|| de::Error::custom(format!("unknown claim status {word:?}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{CourierFixture, START};
    use crate::sync::{SyncOptions, sync};

    #[test]
    fn unrouted_mails_are_neither_pulled_nor_claimed() {
        let mut post = CourierFixture::new();
        let here = post.workspace("[{type: from, value: ann}]");
        assert!(unrouted(&post.tree()).unwrap().is_empty());
        let [pulled, claimed, alone, done] =
            ["ann", "bob", "bob", "bob"].map(|from| post.deliver(from, "hi"));
        fs::write(post.inbound(&alone).with_file_name("notes.md"), "foreign").unwrap();
        post.shelve(&done, "archive");
        let locks = json!({"version": LOCKS_VERSION, "locks": [
            ClaimInfo { attempts: 1, ..ClaimInfo::untouched(claimed.id, &here.name) }
        ]});
        fs::write(post.tree().locks(), locks.to_string()).unwrap();
        let both = BTreeSet::from([pulled.file, alone.file.clone()]);
        assert_eq!(unrouted(&post.tree()).unwrap(), both);
        sync(&here, &post.tree(), &SyncOptions::default(), &mut |_| true).unwrap();
        assert_eq!(unrouted(&post.tree()).unwrap(), BTreeSet::from([alone.file]));
    }

    #[test]
    fn claim_status_is_read_from_files_when_courier_is_down() {
        let mut post = CourierFixture::new();
        let here = post.workspace("[]");
        let at = |secs: i64| Timestamp::from_ms(START + secs * 1_000).rfc3339();
        let mails: Vec<_> = (0..7).map(|n| post.deliver("ann", &n.to_string())).collect();
        post.shelve(&mails[5], "archive");
        post.shelve(&mails[6], ".deadletter");
        let lock = |n: usize, workspace: &str, more: serde_json::Value| {
            let mut lock =
                json!({"id": mails[n].id, "workspace": workspace, "epoch": 1, "attempts": 1});
            for (key, value) in more.as_object().unwrap() {
                lock[key] = value.clone();
            }
            lock
        };
        let locks = json!({"version": 1, "written_at": at(0), "locks": [
            lock(1, "alpha", json!({"status": "CLAIMED", "agent_id": "a", "expires_at": at(60)})),
            lock(2, "alpha", json!({"status": "CLAIMED", "agent_id": "a", "expires_at": at(9)})),
            lock(3, "alpha", json!({"status": "NEW", "next_retry_at": at(60), "reason": "no"})),
            lock(4, "beta", json!({"status": "CLAIMED", "agent_id": "b", "expires_at": at(60)})),
        ]});
        fs::write(post.tree().locks(), locks.to_string()).unwrap();
        let (tree, now) = (post.tree(), Timestamp::from_ms(START + 10_000));
        let locks = LocksFile::read(&tree, &here.name, now).unwrap();
        for (n, (status, claimable, unread)) in [
            ("NEW", true, true),
            ("CLAIMED", false, false),
            ("NEW", true, false),
            ("NEW", false, false),
            ("NEW", true, true),
            ("COMPLETED", false, false),
            ("DEADLETTER", false, false),
        ]
        .into_iter()
        .enumerate()
        {
            let name = MailFileName::new(mails[n].file.clone()).unwrap();
            let claim = locks.of(&name, &mails[n].id);
            assert_eq!(claim.status.as_str(), status, "{n}");
            assert_eq!(claim.claimable(now), claimable, "{n}");
            assert_eq!(claim.unread(), unread, "{n}");
        }
        fs::remove_file(tree.locks()).unwrap();
        assert!(LocksFile::read(&tree, &here.name, now).is_ok(), "a missing file is no error");
        for garbled in ["", "{", "[]", r#"{"version":1,"locks":[{"id":"x"}]}"#] {
            fs::write(tree.locks(), garbled).unwrap();
            let locks = LocksFile::read(&tree, &here.name, now).unwrap();
            assert!(locks.unreadable.is_some(), "{garbled}: reported");
            let name = MailFileName::new(mails[5].file.clone()).unwrap();
            let claim = locks.of(&name, &mails[5].id);
            assert_eq!(claim.status.as_str(), "COMPLETED", "{garbled}: status from the directory");
        }
        fs::write(tree.locks(), r#"{"version":2,"locks":[]}"#).unwrap();
        assert!(matches!(LocksFile::read(&tree, &here.name, now), Err(MailboxError::Newer(_))));
    }
}
