//! Test fixture: a mailbox directory as the courier writes it, and a workspace.

#![expect(clippy::unwrap_used, reason = "a fixture that cannot be set up fails its test")]

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use monoco_core::erasure::tombstone_entry;
use monoco_core::inbound::{ChatSession, ChatSessionKind, InboundMessage, Participant};
use monoco_core::mail::{Mail, MailHeader, MailId, MailIndexEntry, Participants, Trust};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::paths::MailboxPaths;
use super::workspace::WorkspaceDir;

/// Time of the first Mail.
pub const START: i64 = 1_770_410_700_000;

/// A courier's mailbox and a workspace named `alpha`.
pub struct CourierFixture {
    dir: tempfile::TempDir,
    seq: i64,
    generation: i64,
    era: i64,
    entries: Vec<MailIndexEntry>,
}

impl Default for CourierFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl CourierFixture {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut post = Self { dir, seq: 0, generation: 0, era: 0, entries: Vec::new() };
        fs::create_dir_all(post.root().join(".state")).unwrap();
        post.rebuild();
        post
    }

    /// Home directory of the courier.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Mailbox directory of the courier.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("home/mailbox")
    }

    pub fn tree(&self) -> MailboxPaths {
        MailboxPaths::new(self.root())
    }

    /// Creates the workspace with these filters.
    pub fn workspace(&self, filters: &str) -> WorkspaceDir {
        let root = self.dir.path().join("alpha");
        WorkspaceDir::create(&root, &self.root()).unwrap();
        let config = format!("mailbox: {{filters: {filters}}}");
        fs::write(root.join(".monoco/mailbox/config.yaml"), config).unwrap();
        WorkspaceDir::open(&root, &self.root()).unwrap()
    }

    /// Adds a Mail from `from`.
    pub fn deliver(&mut self, from: &str, text: &str) -> MailIndexEntry {
        self.deliver_as(self.era * 10_000 + self.seq + 1, from, text)
    }

    /// Adds the `n`th Mail.
    pub fn deliver_as(&mut self, n: i64, from: &str, text: &str) -> MailIndexEntry {
        self.deliver_mail(&mail(n, from, text))
    }

    pub fn deliver_mail(&mut self, mail: &Mail) -> MailIndexEntry {
        self.seq += 1;
        let file = mail.render();
        let entry = mail.entry(self.seq, &file);
        let dir = self.root().join("inbound/webhook");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(&entry.file), file).unwrap();
        self.append(&format!("{}\n", json!(entry)));
        self.entries.push(entry.clone());
        entry
    }

    pub fn rebuild(&mut self) {
        self.generation += 1;
        let head = json!({"monoco_index": 1, "generation": self.generation});
        let lines: String =
            self.entries.iter().map(|entry| format!("{}\n", json!(entry))).collect();
        fs::write(self.tree().index(), format!("{head}\n{lines}")).unwrap();
    }

    /// Erases the text of a Mail: all of it, or with `rest` what is not in it. The next rebuild
    /// of the index shows it.
    pub fn erase(&mut self, entry: &MailIndexEntry, rest: Option<&str>) {
        let at = Timestamp::from_ms(START);
        let path = self.inbound(entry);
        fs::remove_file(&path).unwrap();
        let new = match rest {
            Some(rest) => {
                let n = (entry.received_at.ms() - START) / 1_000;
                let mail = mail(n, &entry.participants.from[0].id, rest);
                let file = mail.render();
                fs::write(&path, &file).unwrap();
                MailIndexEntry { erased_at: Some(at), ..mail.entry(entry.seq, &file) }
            }
            None => tombstone_entry(entry, at),
        };
        let old = self.entries.iter_mut().find(|old| old.seq == entry.seq).unwrap();
        *old = new;
    }

    /// Simulates the loss of the store: numbers start again.
    pub fn start_over(&mut self) {
        self.seq = 0;
        self.era += 1;
        self.generation = 0;
        self.entries.clear();
        fs::remove_dir_all(self.root().join("inbound")).unwrap();
        self.rebuild();
    }

    /// Appends text to the index.
    pub fn append(&self, text: &str) {
        let mut file = OpenOptions::new().append(true).open(self.tree().index()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// Path of a Mail file in `inbound/`.
    pub fn inbound(&self, entry: &MailIndexEntry) -> PathBuf {
        self.root().join("inbound/webhook").join(&entry.file)
    }

    /// Moves the file of a Mail to another directory.
    pub fn shelve(&self, entry: &MailIndexEntry, place: &str) {
        let dir = self.root().join(place).join("webhook");
        fs::create_dir_all(&dir).unwrap();
        fs::rename(self.inbound(entry), dir.join(&entry.file)).unwrap();
    }
}

/// The names in a directory, sorted, without hidden ones.
pub fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort();
    names
}

/// Builds the `n`th Mail.
pub fn mail(n: i64, from: &str, text: &str) -> Mail {
    let at = Timestamp::from_ms(START + n * 1_000);
    let tunnel = "ci".parse().unwrap();
    let id = MailId::of("webhook", &tunnel, &n.to_string());
    let from = Participant::user(from, None);
    let mut message = InboundMessage::new(n.to_string(), ChatSession::default(), from.clone(), "");
    message.received_at = at;
    Mail {
        header: MailHeader {
            id,
            tunnel,
            session: ChatSession {
                id: "room-7".to_owned(),
                kind: ChatSessionKind::Group,
                name: Some("Ops".to_owned()),
                thread_key: None,
            },
            participants: Participants { from: vec![from], ..Participants::default() },
            timestamp: at,
            received_at: at,
            title: None,
            artifacts: Vec::new(),
            correlation_id: None,
            reply_to: None,
            binding: None,
            trust: Trust::Untrusted,
            answer_to: "did:msgtunnel:room-7.group.ci".parse().unwrap(),
        },
        msg_id: ObjId::of(ObjKind::Msg, n.to_string().as_bytes()),
        messages: vec![message],
        text: text.to_owned(),
    }
}
