//! An IMAP server that the tests play: a small correct one, with hooks for everything that real
//! servers do wrong.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

/// What the server does with a command.
pub enum ServerReaction {
    /// What a correct server does.
    Correct,
    /// Sends these bytes; `TAG` becomes the tag of the command.
    Send(String),
    /// Sends these bytes and closes the connection.
    Close(String),
    /// Sends nothing and stays open.
    Silent,
}

/// Decides about each command, which it gets without its tag.
type Hook = Box<dyn FnMut(&str, &mut FakeAccount) -> ServerReaction + Send>;

pub struct FakeAccount {
    pub greeting: String,
    pub capabilities: String,
    pub folders: BTreeMap<String, FakeFolder>,
    /// Whether UIDNEXT is announced.
    pub has_uid_next: bool,
    /// All commands of all connections, without tags.
    pub commands: Vec<String>,
    pub connections: usize,
    pub open_connections: usize,
    hook: Option<Hook>,
}

pub struct FakeFolder {
    pub uid_validity: u32,
    pub uid_next: u32,
    pub mails: BTreeMap<u32, FakeMail>,
    pub seen: Vec<u32>,
}

#[derive(Clone, Default)]
pub struct FakeMail {
    pub bytes: Vec<u8>,
    /// What the server says about its size, when that is wrong.
    pub claimed_size: Option<u64>,
    /// INTERNALDATE; a fixed day when it is empty.
    pub date: String,
    /// Sent instead of the answer when the mail is fetched.
    pub answer: Option<String>,
}

impl FakeFolder {
    pub fn add(&mut self, mail: FakeMail) -> u32 {
        let uid = self.uid_next;
        self.mails.insert(uid, mail);
        self.uid_next = uid.saturating_add(1);
        uid
    }
}

impl Default for FakeFolder {
    fn default() -> Self {
        Self { uid_validity: 7, uid_next: 1, mails: BTreeMap::new(), seen: Vec::new() }
    }
}

impl FakeAccount {
    pub fn inbox(&mut self) -> &mut FakeFolder {
        self.folders.entry("INBOX".to_owned()).or_default()
    }
}

/// A mail with this subject.
pub fn mail(subject: &str) -> FakeMail {
    let text = format!(
        "From: ann@example.com\r\nSubject: {subject}\r\nDate: Fri, 6 Feb 2026 20:45:00 +0000\r\n\
         \r\nHello.\r\n"
    );
    FakeMail { bytes: text.into_bytes(), ..FakeMail::default() }
}

pub struct FakeServer {
    pub port: u16,
    account: Arc<Mutex<FakeAccount>>,
    changed: watch::Sender<()>,
}

impl FakeServer {
    pub async fn start() -> Self {
        let account = FakeAccount {
            greeting: "* OK ready".to_owned(),
            capabilities: "IMAP4rev1 IDLE AUTH=PLAIN SASL-IR".to_owned(),
            folders: BTreeMap::new(),
            has_uid_next: true,
            commands: Vec::new(),
            connections: 0,
            open_connections: 0,
            hook: None,
        };
        let account = Arc::new(Mutex::new(account));
        account.lock().unwrap().inbox();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let changed = watch::Sender::new(());
        let (shared, receiver) = (account.clone(), changed.subscribe());
        TaskTracker::new().spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let connection = FakeConnection::new(stream, shared.clone(), receiver.clone());
                TaskTracker::new().spawn(connection.run());
            }
        });
        Self { port, account, changed }
    }

    /// The state of the server, to look at it.
    pub fn account(&self) -> MutexGuard<'_, FakeAccount> {
        self.account.lock().unwrap()
    }

    /// Changes the state of the server and announces it to idling clients.
    pub fn change(&self, change: impl FnOnce(&mut FakeAccount)) {
        change(&mut self.account());
        self.changed.send_replace(());
    }

    /// Adds a mail to the INBOX and returns its UID.
    pub fn add(&self, mail: FakeMail) -> u32 {
        let mut uid = 0;
        self.change(|account| uid = account.inbox().add(mail));
        uid
    }

    /// Sets what happens to each command.
    pub fn hook(
        &self,
        hook: impl FnMut(&str, &mut FakeAccount) -> ServerReaction + Send + 'static,
    ) {
        self.account().hook = Some(Box::new(hook));
    }

    /// How often a command that starts like this was received.
    pub fn count(&self, start: &str) -> usize {
        let account = self.account();
        account.commands.iter().filter(|command| command.starts_with(start)).count()
    }
}

struct FakeConnection {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    account: Arc<Mutex<FakeAccount>>,
    changed: watch::Receiver<()>,
    folder: Option<String>,
    /// How many mails the client knows of.
    announced: usize,
    idle_tag: String,
}

impl FakeConnection {
    fn new(
        stream: TcpStream,
        account: Arc<Mutex<FakeAccount>>,
        changed: watch::Receiver<()>,
    ) -> Self {
        let (reader, writer) = stream.into_split();
        let (folder, announced, idle_tag) = (None, 0, String::new());
        let reader = BufReader::new(reader);
        Self { reader, writer, account, changed, folder, announced, idle_tag }
    }

    async fn run(mut self) {
        let greeting = {
            let mut account = self.account.lock().unwrap();
            account.connections += 1;
            account.open_connections += 1;
            format!("{}\r\n", account.greeting)
        };
        if self.writer.write_all(greeting.as_bytes()).await.is_ok() {
            self.serve().await;
        }
        self.account.lock().unwrap().open_connections -= 1;
    }

    async fn serve(&mut self) {
        while let Some(line) = self.line().await {
            let (tag, command) = match line.as_str() {
                "DONE" => (self.idle_tag.clone(), "DONE"),
                _ => line.split_once(' ').map_or((line.clone(), ""), |(t, c)| (t.to_owned(), c)),
            };
            let tag = tag.as_str();
            if command == "IDLE" {
                self.idle_tag = tag.to_owned();
            }
            let (answer, closes, idles) = self.answer(tag, command);
            if self.writer.write_all(&answer).await.is_err() || closes {
                return;
            }
            if idles && !self.idle(tag).await {
                return;
            }
        }
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let count = self.reader.read_line(&mut line).await.ok()?;
        (count > 0).then(|| line.trim_end().to_owned())
    }

    /// Returns the answer, whether the connection ends, and whether the client idles.
    fn answer(&mut self, tag: &str, command: &str) -> (Vec<u8>, bool, bool) {
        let mut account = self.account.lock().unwrap();
        account.commands.push(command.to_owned());
        let mut hook = account.hook.take();
        let reaction = match &mut hook {
            Some(hook) => hook(command, &mut account),
            None => ServerReaction::Correct,
        };
        account.hook = hook;
        let with_tag = |text: String| text.replace("TAG", tag).into_bytes();
        match reaction {
            ServerReaction::Send(text) => (with_tag(text), false, false),
            ServerReaction::Close(text) => (with_tag(text), true, false),
            ServerReaction::Silent => (Vec::new(), false, false),
            ServerReaction::Correct if command == "IDLE" => (b"+ idling\r\n".to_vec(), false, true),
            ServerReaction::Correct => {
                let mut out = Vec::new();
                let folder = &mut self.folder;
                let status = correct_answer(&mut account, folder, command, &mut out);
                if command == "NOOP" {
                    let open = folder.as_ref().and_then(|name| account.folders.get(name));
                    let now = open.map_or(0, |folder| folder.mails.len());
                    if now != self.announced {
                        self.announced = now;
                        out.extend(format!("* {now} EXISTS\r\n").bytes());
                    }
                }
                if command.starts_with("EXAMINE") || command.starts_with("SELECT") {
                    let open = folder.as_ref().and_then(|name| account.folders.get(name));
                    self.announced = open.map_or(0, |folder| folder.mails.len());
                }
                out.extend(format!("{tag} {status}\r\n").bytes());
                (out, command == "LOGOUT", false)
            }
        }
    }

    /// Announces mails until the client sends DONE. Returns `false` when it is gone.
    async fn idle(&mut self, tag: &str) -> bool {
        let count = |this: &Self| {
            let account = this.account.lock().unwrap();
            let name = this.folder.clone().unwrap_or_default();
            account.folders.get(&name).map_or(0, |folder| folder.mails.len())
        };
        loop {
            self.changed.mark_unchanged();
            let now = count(self);
            if now != self.announced {
                self.announced = now;
                let news = format!("* {now} EXISTS\r\n");
                if self.writer.write_all(news.as_bytes()).await.is_err() {
                    return false;
                }
            }
            let mut changed = self.changed.clone();
            tokio::select! {
                line = self.line() => {
                    let Some(line) = line else { return false };
                    assert_eq!(line, "DONE");
                    self.account.lock().unwrap().commands.push(line);
                    let done = format!("{tag} OK done\r\n");
                    return self.writer.write_all(done.as_bytes()).await.is_ok();
                }
                _ = changed.changed() => {}
            }
        }
    }
}

/// Appends the untagged responses to `out` and returns the tagged one.
fn correct_answer(
    account: &mut FakeAccount,
    open: &mut Option<String>,
    command: &str,
    out: &mut Vec<u8>,
) -> String {
    let (word, rest) = command.split_once(' ').unwrap_or((command, ""));
    match word {
        "CAPABILITY" => out.extend(format!("* CAPABILITY {}\r\n", account.capabilities).bytes()),
        "LOGIN" | "AUTHENTICATE" | "ID" | "DONE" | "NOOP" => {}
        "LOGOUT" => out.extend(b"* BYE bye\r\n"),
        "LIST" => {
            for name in account.folders.keys() {
                out.extend(format!("* LIST () \"/\" \"{name}\"\r\n").bytes());
            }
        }
        "EXAMINE" | "SELECT" => {
            let name = rest.trim_matches('"');
            let Some(folder) = account.folders.get(name) else {
                *open = None;
                return "NO [NONEXISTENT] no such folder".to_owned();
            };
            *open = Some(name.to_owned());
            let mut text = format!(
                "* FLAGS (\\Seen)\r\n* {} EXISTS\r\n* OK [UIDVALIDITY {}] ok\r\n",
                folder.mails.len(),
                folder.uid_validity
            );
            if account.has_uid_next {
                let _ = write!(text, "* OK [UIDNEXT {}] ok\r\n", folder.uid_next);
            }
            out.extend(text.bytes());
        }
        "FETCH" | "UID" => {
            let Some(folder) = open.as_ref().and_then(|name| account.folders.get_mut(name)) else {
                return "BAD no folder".to_owned();
            };
            return folder_command(folder, command, out);
        }
        _ => return "BAD unknown command".to_owned(),
    }
    "OK done".to_owned()
}

fn folder_command(folder: &mut FakeFolder, command: &str, out: &mut Vec<u8>) -> String {
    let words: Vec<_> = command.splitn(4, ' ').collect();
    match words[..] {
        ["UID", "FETCH", set, items] => {
            let Some(set) = read_set(set) else { return "BAD UID parameters!".to_owned() };
            for (place, (uid, mail)) in (1..).zip(&folder.mails) {
                if set.iter().any(|(from, to)| (from..=to).contains(&uid)) {
                    fetch(place, *uid, mail, items, out);
                }
            }
        }
        ["FETCH", place, ..] => {
            let place: usize = place.parse().unwrap();
            if let Some((uid, mail)) = folder.mails.iter().nth(place - 1) {
                fetch(place, *uid, mail, "(UID INTERNALDATE)", out);
            }
        }
        ["UID", "STORE", set, _] => {
            for (from, to) in read_set(set).unwrap() {
                let uids = folder.mails.keys().filter(|uid| (from..=to).contains(*uid));
                folder.seen.extend(uids);
            }
        }
        _ => return "BAD unknown command".to_owned(),
    }
    "OK done".to_owned()
}

/// Reads a set of UIDs; `None` when it is not in ascending order or has no end.
fn read_set(set: &str) -> Option<Vec<(u32, u32)>> {
    let mut ranges = Vec::new();
    let mut last = 0;
    for range in set.split(',') {
        let (from, to) = range.split_once(':').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        if from <= last || to < from {
            return None;
        }
        last = to;
        ranges.push((from, to));
    }
    Some(ranges)
}

fn fetch(place: usize, uid: u32, mail: &FakeMail, items: &str, out: &mut Vec<u8>) {
    let wants_body = items.contains("BODY");
    if let (true, Some(answer)) = (wants_body, &mail.answer) {
        out.extend(answer.bytes());
        return;
    }
    out.extend(format!("* {place} FETCH (UID {uid}").bytes());
    if items.contains("RFC822.SIZE") {
        let size = mail.claimed_size.unwrap_or(mail.bytes.len() as u64);
        out.extend(format!(" RFC822.SIZE {size}").bytes());
    }
    if items.contains("INTERNALDATE") {
        let date = if mail.date.is_empty() { "06-Feb-2026 20:45:00 +0000" } else { &mail.date };
        out.extend(format!(" INTERNALDATE \"{date}\"").bytes());
    }
    if items.contains("BODY.PEEK[HEADER]") {
        let end = mail.bytes.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        push_literal("BODY[HEADER]", &mail.bytes[..end.unwrap() + 4], out);
    } else if wants_body {
        assert!(items.contains("BODY.PEEK[]"), "{items} marks the mail as seen");
        push_literal("BODY[]", &mail.bytes, out);
    }
    out.extend(b")\r\n");
}

fn push_literal(item: &str, bytes: &[u8], out: &mut Vec<u8>) {
    out.extend(format!(" {item} {{{}}}\r\n", bytes.len()).bytes());
    out.extend(bytes);
}
