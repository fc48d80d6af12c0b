//! Who is at a Mail: as the courier says, or as its files show when it is not there.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use monoco_core::claim::{ClaimState, MailLocation, Workspace};
use monoco_core::mail::MailId;
use monoco_core::time::{Timestamp, rfc3339_maybe};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::inbox::MailFileName;
use super::paths::MailboxPaths;
use super::{MailboxError, at};

/// One workspace's claim on one Mail, as the courier shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimInfo {
    /// The Mail.
    pub id: MailId,
    /// Whose claim.
    pub workspace: String,
    /// Where it stands.
    #[serde(serialize_with = "write_state", deserialize_with = "read_state")]
    pub status: ClaimState,
    /// Who holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Which claim is the current one.
    #[serde(default)]
    pub epoch: u64,
    /// How often it was claimed.
    #[serde(default)]
    pub attempts: u32,
    /// When the hold ends.
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Timestamp>,
    /// When it may be claimed again.
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Timestamp>,
    /// Why it last failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The open claims, as the courier writes them for whoever wants to know.
#[derive(Deserialize)]
struct Locks {
    version: u32,
    #[serde(default)]
    locks: Vec<ClaimInfo>,
}

/// What the courier's files show.
#[derive(Debug)]
pub struct LocksFile<'a> {
    tree: &'a MailboxPaths,
    workspace: &'a Workspace,
    open: BTreeMap<MailId, ClaimInfo>,
    now: Timestamp,
    /// Why open claims are not shown, when somebody has garbled their file.
    pub unreadable: Option<String>,
}

impl ClaimInfo {
    /// A Mail that nobody has touched.
    pub fn untouched(id: MailId, workspace: &Workspace) -> Self {
        Self {
            id,
            workspace: workspace.as_str().to_owned(),
            status: ClaimState::New,
            agent_id: None,
            epoch: 0,
            attempts: 0,
            expires_at: None,
            next_retry_at: None,
            reason: None,
        }
    }

    /// Whether it may be claimed now.
    pub fn claimable(&self, now: Timestamp) -> bool {
        match self.status {
            ClaimState::New => self.next_retry_at.is_none_or(|due| due <= now),
            ClaimState::Claimed => self.expires_at.is_some_and(|until| until <= now),
            ClaimState::Completed | ClaimState::Deadletter => false,
        }
    }

    /// Whether it can still be claimed some day without a person's help.
    pub const fn open(&self) -> bool {
        matches!(self.status, ClaimState::New | ClaimState::Claimed)
    }

    /// Whether nobody has ever looked at it.
    pub fn unread(&self) -> bool {
        self.status == ClaimState::New && self.attempts == 0
    }
}

impl<'a> LocksFile<'a> {
    /// Reads what the files show of `workspace` by `now`.
    ///
    /// # Errors
    ///
    /// When they can't be read.
    pub fn read(
        tree: &'a MailboxPaths,
        workspace: &'a Workspace,
        now: Timestamp,
    ) -> Result<Self, MailboxError> {
        let path = tree.locks();
        let none = Locks { version: 1, locks: Vec::new() };
        let mut unreadable = None;
        let locks = match fs::read(&path) {
            // The courier writes it anew when it starts; the places of the files are
            // still there to be seen.
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                unreadable = Some(format!("{}: {error}", path.display()));
                none
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => none,
            Err(error) => return Err(at(&path)(error)),
        };
        if locks.version != 1 {
            return Err(MailboxError::Newer(path));
        }
        let ours = locks.locks.into_iter().filter(|lock| lock.workspace == workspace.as_str());
        let open = ours.map(|lock| (lock.id.clone(), lock)).collect();
        Ok(Self { tree, workspace, open, now, unreadable })
    }

    /// Where the claim on a Mail stands, as far as files can show it: an open claim, or
    /// what the place of its file says.
    pub fn of(&self, name: &MailFileName, id: &MailId) -> ClaimInfo {
        if let Some(lock) = self.open.get(id) {
            let mut lock = lock.clone();
            if lock.status == ClaimState::Claimed && lock.claimable(self.now) {
                // Nobody is there to take it back, but the hold has ended.
                lock.status = ClaimState::New;
                lock.agent_id = None;
            }
            return lock;
        }
        let mut standing = ClaimInfo::untouched(id.clone(), self.workspace);
        standing.status = match self.tree.place(id.provider(), name.file()) {
            Some(MailLocation::Archive) => ClaimState::Completed,
            Some(MailLocation::Deadletter) => ClaimState::Deadletter,
            _ => ClaimState::New,
        };
        standing
    }
}

fn write_state<S: Serializer>(state: &ClaimState, writer: S) -> Result<S::Ok, S::Error> {
    writer.serialize_str(state.as_str())
}

fn read_state<'de, D: Deserializer<'de>>(reader: D) -> Result<ClaimState, D::Error> {
    let word = String::deserialize(reader)?;
    ClaimState::parse(&word).ok_or_else(|| de::Error::custom(format!("no such status: {word}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::{CourierFixture, START};

    #[test]
    fn without_the_courier_its_files_show_who_is_at_what() {
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
        let shown = LocksFile::read(&tree, &here.name, now).unwrap();
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
            let standing = shown.of(&name, &mails[n].id);
            assert_eq!(standing.status.as_str(), status, "{n}");
            assert_eq!(standing.claimable(now), claimable, "{n}");
            assert_eq!(standing.unread(), unread, "{n}");
        }
        fs::remove_file(tree.locks()).unwrap();
        assert!(LocksFile::read(&tree, &here.name, now).is_ok(), "there may be none");
        for garbled in ["", "{", "[]", r#"{"version":1,"locks":[{"id":"x"}]}"#] {
            fs::write(tree.locks(), garbled).unwrap();
            let shown = LocksFile::read(&tree, &here.name, now).unwrap();
            assert!(shown.unreadable.is_some(), "{garbled}: it is said");
            let name = MailFileName::new(mails[5].file.clone()).unwrap();
            let standing = shown.of(&name, &mails[5].id);
            assert_eq!(standing.status.as_str(), "COMPLETED", "{garbled}: the rest is shown");
        }
        fs::write(tree.locks(), r#"{"version":2,"locks":[]}"#).unwrap();
        assert!(matches!(LocksFile::read(&tree, &here.name, now), Err(MailboxError::Newer(_))));
    }
}
