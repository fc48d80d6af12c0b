//! Harness of the Mails' fault tests: notes what providers, agents and receivers were told of
//! Mails and drafts, and compares it with the courier and its files.
//!
//! The tests of `kill_points.rs` have one form: each request is noted in the [`MailChecker`]
//! with its answer; then the fault; then [`MailChecker::check`] compares the notes with the
//! store, the files and the index.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use monoco_core::mail::{Mail, MailId, MailIndexEntry, digest};
use serde_json::{Value, json};

use crate::ack_checker::try_events;
use crate::common::{Answer, Courier, PATIENCE, Ran, cli, wait_for};
use crate::webhook_peer::{Receiver, SECRET, body, configure};

/// The workspace that all claims are for.
pub const WORKSPACE: &str = "alpha";

/// How long claims are held: longer than any test lasts.
const LONG: u32 = 3_600;

/// The places that have files: as the API calls them, and their directories.
const PLACES: [(&str, &str); 3] =
    [("inbound", "inbound"), ("archive", "archive"), ("deadletter", ".deadletter")];

/// All that was asked and told, since the home was made.
#[derive(Default)]
pub struct MailChecker(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    /// Messages by the provider's ids, and whether it was told that they are kept.
    heard: BTreeMap<String, bool>,
    /// Claims by their Mails.
    claims: BTreeMap<String, Claimed>,
    /// Drafts by a word that only they have, and the place where each is to end.
    drafts: BTreeMap<String, &'static str>,
    /// What the receiver got: the keys it came under, by that word.
    sent: BTreeMap<String, Vec<String>>,
    /// Answers that are neither an ack nor an honest refusal.
    odd: Vec<String>,
}

/// What the agent of a claim knows.
#[derive(Default)]
struct Claimed {
    /// The epoch, once it was told to have it.
    epoch: Option<u64>,
    /// How it wanted it to end, and whether it was told that it has.
    end: Option<(&'static str, bool)>,
}

impl MailChecker {
    /// Pushes a message in a session of its own, and writes down what comes of it.
    pub fn push(&self, courier: &Courier, id: &str) -> io::Result<Answer> {
        self.lines().heard.entry(id.to_owned()).or_default();
        let answer = courier.try_push(&body(id, id, "ann", &format!("about {id}")))?;
        if answer.status == 200 {
            self.lines().heard.insert(id.to_owned(), true);
        }
        self.note("push", &answer);
        Ok(answer)
    }

    /// Claims a Mail for good.
    pub fn claim(&self, courier: &Courier, mail: &str) -> io::Result<Answer> {
        self.lines().claims.entry(mail.to_owned()).or_default();
        let asked = json!({"agent_id": "ann", "workspace": WORKSPACE, "timeout": LONG});
        let answer = self.ask(courier, mail, "claim", &asked)?;
        if answer.status == 200 {
            let epoch = answer.json()["epoch"].as_u64();
            self.lines().claims.entry(mail.to_owned()).or_default().epoch = epoch;
        }
        Ok(answer)
    }

    /// Says that a claimed Mail is done.
    pub fn complete(&self, courier: &Courier, mail: &str) -> io::Result<Answer> {
        self.end(courier, mail, "COMPLETED")
    }

    /// Says that a claimed Mail can never be done.
    pub fn give_up(&self, courier: &Courier, mail: &str) -> io::Result<Answer> {
        self.end(courier, mail, "DEADLETTER")
    }

    fn end(&self, courier: &Courier, mail: &str, end: &'static str) -> io::Result<Answer> {
        let mut asked = json!({"agent_id": "ann", "workspace": WORKSPACE});
        let mut lines = self.lines();
        let line = lines.claims.entry(mail.to_owned()).or_default();
        asked["epoch"] = json!(line.epoch);
        line.end = Some((end, false));
        drop(lines);
        let verb = if end == "COMPLETED" { "complete" } else { "fail" };
        if verb == "fail" {
            asked["retryable"] = json!(false);
            asked["reason"] = json!("no way");
        }
        let answer = self.ask(courier, mail, verb, &asked)?;
        if answer.status == 200 {
            self.lines().claims.entry(mail.to_owned()).or_default().end = Some((end, true));
        }
        Ok(answer)
    }

    fn ask(&self, courier: &Courier, mail: &str, verb: &str, body: &Value) -> io::Result<Answer> {
        let path = format!("/api/v1/messages/{mail}/{verb}");
        let answer = courier.try_request("POST", &path, Some(body))?;
        self.note(verb, &answer);
        Ok(answer)
    }

    /// Puts a draft into `outbound/`, whole, with a word that no other one has. It is to
    /// end in the archive, or in `.deadletter`.
    pub fn draft(&self, home: &Path, word: &str, file: &str, end: &'static str) {
        self.lines().drafts.insert(word.to_owned(), end);
        let dir = home.join("mailbox/outbound/webhook");
        std::fs::create_dir_all(&dir).unwrap();
        let hidden = dir.join(format!(".{word}.tmp"));
        std::fs::write(&hidden, file).unwrap();
        std::fs::rename(hidden, dir.join(format!("{word}.md"))).unwrap();
    }

    /// Has the command line write a draft, and writes down that it was told to be there.
    pub fn send(&self, home: &Path, word: &str) -> Ran {
        let text = format!("{word} says hello");
        let send = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--text", &text];
        let ran = cli(home, &send, "");
        if ran.code == 0 {
            self.lines().drafts.insert(word.to_owned(), "archive");
        }
        ran
    }

    /// Writes down what the receiver got.
    pub fn receive(&self, receiver: &Receiver) {
        for got in receiver.all() {
            let body: Value = serde_json::from_str(&got.body).unwrap();
            let word = body["text"].as_str().unwrap().split(' ').next().unwrap().to_owned();
            let key = got.headers["idempotency-key"].as_str().unwrap().to_owned();
            self.lines().sent.entry(word).or_default().push(key);
        }
    }

    /// Repeats the requests that got no answer, as providers and agents do.
    pub fn insist(&self, courier: &Courier) {
        let lines = self.lines();
        let unheard: Vec<_> =
            lines.heard.iter().filter(|(_, told)| !**told).map(|(id, _)| id.clone()).collect();
        drop(lines);
        for id in unheard {
            self.push(courier, &id).unwrap().ok();
        }
    }

    /// Refusals are honest when they say that the store can't, or that it was done.
    fn note(&self, what: &str, answer: &Answer) {
        if !matches!(answer.status, 200 | 409 | 503 | 507) {
            self.lines().odd.push(format!("{what}: {} {}", answer.status, answer.text()));
        }
    }

    /// How many messages a provider was told of.
    pub fn told(&self) -> usize {
        self.lines().heard.values().filter(|told| **told).count()
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits until everything is as it was told, once and whole. Fails when it does not
    /// become so.
    #[track_caller]
    pub fn check(&self, courier: &Courier) {
        settle(|| self.complaints(courier));
    }

    /// Waits until every draft has come to rest where it is to end, and was received under
    /// one key or not at all.
    #[track_caller]
    pub fn check_drafts(&self, home: &Path, receiver: &Receiver) {
        settle(|| {
            self.receive(receiver);
            self.draft_complaints(home)
        });
    }

    /// What is wrong with what is stored and filed.
    fn complaints(&self, courier: &Courier) -> Vec<String> {
        self.try_complaints(courier).unwrap()
    }

    /// Fails when the courier is gone before it has answered.
    pub fn try_complaints(&self, courier: &Courier) -> io::Result<Vec<String>> {
        let mut wrong = self.lines().odd.clone();
        let health = courier.try_request("GET", "/health", None)?.ok();
        if health["mailbox"]["waiting_messages"] != 0 || !health["mailbox"]["error"].is_null() {
            wrong.push(format!("not everything is merged and filed: {}", health["mailbox"]));
        }
        let mails = mails(courier)?;
        let home = courier.home();
        let files = check_files(home, &mails, &mut wrong);
        self.check_messages(&files, &mut wrong);
        check_index(home, &mails, &mut wrong);
        self.check_claims(&mails, &mut wrong);
        check_events(courier, &mails, &mut wrong)?;
        wrong.extend(at_rest(home));
        let tmp = ["mailbox/.state/tmp", "dropzone/.tmp", "store/blobs/tmp"];
        for path in tmp.iter().flat_map(|dir| list(&home.join(dir))) {
            wrong.push(format!("{} was left behind", path.display()));
        }
        Ok(wrong)
    }

    /// Every message that a provider was told of is in exactly one Mail.
    fn check_messages(&self, files: &BTreeMap<String, Mail>, wrong: &mut Vec<String>) {
        let mut found = BTreeMap::<&str, &str>::new();
        for (id, mail) in files {
            for message in &mail.messages {
                if let Some(other) = found.insert(&message.id, id) {
                    wrong.push(format!("{} is in {id} and in {other}", message.id));
                }
            }
        }
        let lines = self.lines();
        for (id, told) in &lines.heard {
            if *told && !found.contains_key(id.as_str()) {
                wrong.push(format!("{id} was acknowledged and is in no Mail"));
            }
        }
        for id in found.keys().filter(|id| !lines.heard.contains_key(**id)) {
            wrong.push(format!("{id} is in a Mail and was not pushed"));
        }
    }

    /// Claims are as their agents were told.
    fn check_claims(&self, mails: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
        let lines = self.lines();
        for (id, line) in &lines.claims {
            let Some(mail) = mails.get(id) else {
                wrong.push(format!("{id} was claimed and is lost"));
                continue;
            };
            let status = mail["status"].as_str().unwrap_or_default();
            let fits = match (line.epoch, line.end) {
                (_, Some((end, true))) => status == end,
                (Some(_), Some((end, false))) => status == "CLAIMED" || status == end,
                (Some(epoch), None) => {
                    status == "CLAIMED"
                        && mail["claim"]["epoch"] == epoch
                        && mail["claim"]["agent_id"] == "ann"
                }
                (None, _) => matches!(status, "NEW" | "CLAIMED"),
            };
            if !fits {
                wrong.push(format!("{id} is {status}, which is not what its agent was told"));
            }
            let place = match status {
                "COMPLETED" => "archive",
                "DEADLETTER" => "deadletter",
                _ => "inbound",
            };
            if mail["location"] != place {
                wrong.push(format!("{id} is {status} and in {}", mail["location"]));
            }
        }
    }

    fn draft_complaints(&self, home: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut places = BTreeMap::<String, Vec<&str>>::new();
        let outbound = ["outbound/webhook", "outbound/webhook/.sending"];
        for dir in outbound.into_iter().chain(["archive/webhook", ".deadletter/webhook"]) {
            for path in list(&home.join("mailbox").join(dir)) {
                let file = std::fs::read_to_string(&path).unwrap_or_default();
                if let Some((_, text)) = file.split_once("\n---\n") {
                    let word = text.split_whitespace().next().unwrap_or_default();
                    places.entry(word.to_owned()).or_default().push(dir);
                    let reason = path.with_extension("reason.json");
                    if dir.starts_with('.') && mail_of(&name(&path)).is_none() && !reason.exists() {
                        wrong.push(format!("{word} was given up and nothing says why"));
                    }
                }
            }
        }
        let lines = self.lines();
        for (word, end) in &lines.drafts {
            let found = places.get(word).map(|dirs| dirs.join(", ")).unwrap_or_default();
            if found != format!("{end}/webhook") {
                wrong.push(format!("{word} is in [{found}] and not in {end}"));
            }
            let keys: BTreeSet<_> = lines.sent.get(word).into_iter().flatten().collect();
            if keys.len() != usize::from(*end == "archive") {
                wrong.push(format!("{word} was received under the keys {keys:?}"));
            }
        }
        wrong.extend(at_rest(home));
        wrong
    }
}

/// Waits until nothing is wrong any more.
#[track_caller]
pub fn settle(mut complaints: impl FnMut() -> Vec<String>) {
    wait_for(|| match complaints() {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(format!("{} complaints: {:#?}", wrong.len(), &wrong[..wrong.len().min(40)])),
    });
}

/// All Mails that the courier knows of, as the workspace sees them.
pub fn mails(courier: &Courier) -> io::Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let path = format!("/api/v1/messages?workspace={WORKSPACE}&limit=1000{cursor}");
        let page = courier.try_request("GET", &path, None)?.ok();
        for mail in page["messages"].as_array().unwrap() {
            let id = mail["id"].as_str().unwrap().to_owned();
            assert!(all.insert(id, mail.clone()).is_none(), "listed twice: {mail}");
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(all),
        }
    }
}

/// What is in a directory; nothing, when there is none.
pub fn list(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

/// The name of a file.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// The Mail that a name may be the file of.
pub fn mail_of(file: &str) -> Option<MailId> {
    file.strip_suffix(".md")?.split_once('_')?.1.parse().ok()
}

/// Every Mail has one file, in one place, with the bytes that were written. Returns
/// what they say.
fn check_files(
    home: &Path,
    mails: &BTreeMap<String, Value>,
    wrong: &mut Vec<String>,
) -> BTreeMap<String, Mail> {
    let mut places = BTreeMap::<String, Vec<&str>>::new();
    let mut files = BTreeMap::new();
    for (place, dir) in PLACES {
        for path in list(&home.join("mailbox").join(dir).join("webhook")) {
            let Some(id) = mail_of(&name(&path)) else { continue };
            let Some(mail) = mails.get(&id.to_string()) else {
                wrong.push(format!("{} is the file of no Mail", path.display()));
                continue;
            };
            places.entry(id.to_string()).or_default().push(place);
            // It may move while we look.
            let Ok(bytes) = std::fs::read(&path) else { continue };
            if mail["file"] != name(&path) || mail["sha256"] != digest(&bytes) {
                wrong.push(format!("{} is not what was written", path.display()));
            }
            match Mail::parse(&String::from_utf8_lossy(&bytes)) {
                Ok(read) if read.header.id == id => drop(files.insert(id.to_string(), read)),
                other => wrong.push(format!("{}: {:?}", path.display(), other.err())),
            }
        }
    }
    for (id, mail) in mails {
        let found = places.get(id).map(Vec::as_slice).unwrap_or_default();
        if found != [mail["location"].as_str().unwrap_or_default()] {
            wrong.push(format!("{id} is to be in {}, and is in {found:?}", mail["location"]));
        }
    }
    files
}

/// The index has every Mail once, in the order of their numbers.
fn check_index(home: &Path, mails: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    let text = std::fs::read_to_string(home.join("mailbox/.state/mails.jsonl")).unwrap_or_default();
    let lines = text.lines().skip(1).map(serde_json::from_str::<MailIndexEntry>);
    let lines: Vec<_> = lines.collect::<Result<_, _>>().unwrap_or_default();
    if !lines.windows(2).all(|pair| pair[0].seq < pair[1].seq) {
        wrong.push("the index is out of order".to_owned());
    }
    let mut seen = BTreeSet::new();
    for entry in &lines {
        let id = entry.id.to_string();
        if !seen.insert(id.clone()) {
            wrong.push(format!("{id} is in the index twice"));
        }
        if mails.get(&id).is_none_or(|mail| mail["sha256"] != entry.sha256) {
            wrong.push(format!("{id} in the index is not the one in the store"));
        }
    }
    for id in mails.keys().filter(|id| !seen.contains(*id)) {
        wrong.push(format!("{id} is not in the index"));
    }
}

/// Nothing became a Mail twice or was done twice.
fn check_events(
    courier: &Courier,
    mails: &BTreeMap<String, Value>,
    wrong: &mut Vec<String>,
) -> io::Result<()> {
    let mut times = BTreeMap::<(String, String), usize>::new();
    for event in try_events(courier)? {
        let kind = event["kind"].as_str().unwrap_or_default();
        if matches!(kind, "merged" | "completed" | "dead")
            && let Some(mail) = event["detail"]["mail"].as_str()
        {
            *times.entry((mail.to_owned(), kind.to_owned())).or_default() += 1;
        }
    }
    for ((mail, kind), times) in times.iter().filter(|(_, times)| **times != 1) {
        wrong.push(format!("{mail} was {kind} {times} times"));
    }
    for id in mails.keys().filter(|id| !times.contains_key(&((*id).clone(), "merged".into()))) {
        wrong.push(format!("{id} is a Mail, and nothing in the log says how it became one"));
    }
    Ok(())
}

/// What a reader sees who looks while no courier runs: whatever is there is whole.
pub fn at_rest(home: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    let mailbox = home.join("mailbox");
    for (_, dir) in PLACES {
        for path in list(&mailbox.join(dir).join("webhook")) {
            // It may move while we look.
            let Ok(bytes) = std::fs::read(&path) else { continue };
            let text = String::from_utf8_lossy(&bytes);
            let whole = match mail_of(&name(&path)) {
                Some(id) => Mail::parse(&text).is_ok_and(|mail| mail.header.id == id),
                None if name(&path).ends_with(".json") => {
                    serde_json::from_str::<Value>(&text).is_ok()
                }
                None => !text.is_empty(),
            };
            if !whole {
                wrong.push(format!("{} is torn: {} bytes", path.display(), bytes.len()));
            }
        }
    }
    for path in list(&home.join("dropzone")) {
        let hash = name(&path);
        let bytes = std::fs::read(&path).unwrap_or_default();
        if !hash.starts_with('.') && digest(&bytes) != hash {
            wrong.push(format!("{} is torn: {} bytes", path.display(), bytes.len()));
        }
    }
    if let Ok(locks) = std::fs::read_to_string(mailbox.join(".state/locks.json"))
        && serde_json::from_str::<Value>(&locks).is_err()
    {
        wrong.push(format!("locks.json is torn: {locks:?}"));
    }
    wrong
}

/// How many bytes of the index are surely on disk, as the courier has noted it.
pub fn noted(home: &Path) -> u64 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let db = rusqlite::Connection::open_with_flags(home.join("store/monoco.db"), flags).unwrap();
    let sql = "SELECT index_bytes FROM file_progress";
    let noted: i64 = db.query_row(sql, [], |row| row.get(0)).unwrap_or_default();
    noted.unsigned_abs()
}

/// A courier, and the provider, agents and receiver around it.
pub struct MailboxCourier {
    pub courier: Courier,
    pub book: MailChecker,
    pub receiver: Receiver,
    pub home: PathBuf,
    /// Removed when the test ends.
    _dir: Option<tempfile::TempDir>,
}

impl MailboxCourier {
    /// One in a home of its own.
    pub fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut hub = Self::open_in(&dir.path().join("home"));
        hub._dir = Some(dir);
        hub
    }

    /// One in a home that was not used before.
    pub fn open_in(home: &Path) -> Self {
        let receiver = Receiver::start();
        configure(home, &answering(&receiver, 20));
        let courier = Courier::start_in(home);
        let book = MailChecker::default();
        Self { courier, book, receiver, home: home.to_owned(), _dir: None }
    }

    /// A courier in a given home directory, which is removed when the test ends.
    pub fn resume(home: PathBuf, receiver: Receiver, dir: tempfile::TempDir) -> Self {
        let courier = Courier::start_in(&home);
        Self { courier, book: MailChecker::default(), receiver, home, _dir: Some(dir) }
    }

    /// Ends the courier the hard way, and starts another.
    pub fn restart(&mut self) {
        self.courier.kill();
        self.courier = Courier::start_in(&self.home);
    }

    /// Waits until something is so; fails when the courier is gone before.
    pub fn until(&mut self, mut so: impl FnMut(&Self) -> bool) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !so(self) {
            if !self.courier.is_alive() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            assert!(Instant::now() < deadline, "it never became so");
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Whether a directory of the mailbox has a file whose name or text has this word.
    pub fn has(&self, dir: &str, word: &str) -> bool {
        list(&self.home.join("mailbox").join(dir)).iter().any(|path| {
            name(path).contains(word)
                || std::fs::read_to_string(path).is_ok_and(|text| text.contains(word))
        })
    }

    /// Claims a Mail and completes it.
    #[track_caller]
    pub fn finish(&self, mail: &str) {
        self.book.claim(&self.courier, mail).unwrap().ok();
        self.book.complete(&self.courier, mail).unwrap().ok();
    }

    /// One message that became one Mail with a file; the Mail's id.
    #[track_caller]
    pub fn mail(&mut self, id: &str) -> String {
        self.book.push(&self.courier, id).unwrap().ok();
        let mail = mail_id(id);
        self.until(|hub| hub.has("inbound/webhook", &mail)).unwrap();
        mail
    }
}

/// The id of the Mail whose first message has this external id.
pub fn mail_id(external_id: &str) -> String {
    MailId::of("webhook", &"ci".parse().unwrap(), external_id).to_string()
}

/// A config with one webhook tunnel, `ci`, that answers to `receiver`.
pub fn answering(receiver: &Receiver, window_ms: u64) -> String {
    format!(
        "courier:\n  debounce: {{ window_ms: {window_ms} }}\n  adapters:\n    \
         ci: {{ provider: webhook, verify: standard, secret: '{SECRET}', send_to: '{}', \
         allow_private: true }}\n",
        receiver.url("/hook")
    )
}

/// A workspace that pulls every Mail, and a reader of its files.
pub struct Puller(PathBuf);

impl Puller {
    /// A new one in a directory.
    pub fn new(dir: PathBuf) -> Self {
        std::fs::create_dir_all(dir.join(".monoco/mailbox")).unwrap();
        let rules = format!(
            "mailbox:\n  name: {WORKSPACE}\n  filters:\n    - {{ type: provider, value: webhook }}\n"
        );
        std::fs::write(dir.join(".monoco/mailbox/config.yaml"), rules).unwrap();
        Self(dir)
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }

    pub fn sync(&self, home: &Path) -> Ran {
        cli(home, &["mailbox", "sync", "--workspace", self.0.to_str().unwrap()], "")
    }

    /// What is wrong with its files: each Mail is to be there once, and whole.
    pub fn complaints(&self) -> Vec<String> {
        let mailbox = self.0.join(".monoco/mailbox");
        let mut wrong = Vec::new();
        let mut seen = BTreeSet::new();
        for path in list(&mailbox.join("inbox")) {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let id = mail_of(&name(&path));
            match Mail::parse(&text) {
                Ok(mail) if id.as_ref() == Some(&mail.header.id) => {
                    if !seen.insert(mail.header.id.to_string()) {
                        wrong.push(format!("{} is there twice", mail.header.id));
                    }
                }
                _ => wrong.push(format!("{} is torn: {} bytes", path.display(), text.len())),
            }
        }
        if let Ok(cursor) = std::fs::read_to_string(mailbox.join("cursor.json"))
            && serde_json::from_str::<Value>(&cursor).is_err()
        {
            wrong.push(format!("cursor.json is torn: {cursor:?}"));
        }
        wrong
    }

    /// Whether what it shows without a courier can be read, and its cursor, too.
    #[track_caller]
    pub fn lists_only_what_is_whole(&self, home: &Path) {
        let here = ["--workspace", self.0.to_str().unwrap()];
        let list = [&["mailbox", "list", "--all", "--format", "id"][..], &here].concat();
        let ids = cli(home, &list, "").ok();
        let read = [&["mailbox", "read", "-", "--content"][..], &here].concat();
        if !ids.is_empty() {
            assert!(cli(home, &read, &ids).ok().contains("about"));
        }
        let wrong = self.complaints();
        assert!(!wrong.iter().any(|it| it.contains("cursor")), "{wrong:#?}");
    }

    /// Waits until it has every Mail that there is, once and whole.
    #[track_caller]
    pub fn check(&self, courier: &Courier) {
        settle(|| {
            let said = self.sync(courier.home()).ok();
            let mut wrong = self.complaints();
            let there = list(&self.0.join(".monoco/mailbox/inbox"));
            let there: BTreeSet<_> =
                there.iter().filter_map(|path| Some(mail_of(&name(path))?.to_string())).collect();
            for id in mails(courier).unwrap().keys().filter(|id| !there.contains(*id)) {
                wrong.push(format!("{id} was not pulled: {said}"));
            }
            for path in list(&self.0.join(".monoco/mailbox")) {
                if name(&path).ends_with(".tmp") {
                    wrong.push(format!("{} was left behind", path.display()));
                }
            }
            wrong
        });
    }
}
