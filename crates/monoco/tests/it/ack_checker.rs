//! What callers were told, and whether the courier still stands by it.
//!
//! Every test that kills, cuts or fills something does it the same way: the callers
//! write down what they ask and what they are told, in a [`AckChecker`]; then the fault;
//! then [`AckChecker::check`] compares the notes with what is stored.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use monoco_core::object::{MsgObject, ObjId, ObjKind};
use serde_json::{Value, json};

use crate::common::{Answer, Courier, ME, PATIENCE, chat};

/// A body of this size is a file of its own and not a row.
pub const LARGE: usize = 100_000;

/// All that callers asked for and were told, since the home was made.
#[derive(Default)]
pub struct AckChecker(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    dispatches: BTreeMap<String, Dispatched>,
    posts: BTreeMap<String, Posted>,
    /// Answers that are neither an ack nor an honest refusal.
    odd: Vec<String>,
}

struct Dispatched {
    msg: Value,
    /// The record, once a caller was told of it.
    record: Option<String>,
    taken: bool,
    finish: Finish,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Finish {
    No,
    /// A caller asked to finish it and got no answer.
    Asked,
    Told,
}

struct Posted {
    msg: Value,
    /// The delivery, once a caller was told of it.
    delivery: Option<String>,
}

impl AckChecker {
    /// Dispatches a message with this text, and writes down what comes of it.
    pub fn dispatch(&self, courier: &Courier, text: &str) -> io::Result<Answer> {
        let msg = chat("did:web:ann", ME, text);
        let body = json!({"msg": msg});
        let id = id_of(&msg);
        let line = Dispatched { msg, record: None, taken: false, finish: Finish::No };
        self.lines().dispatches.entry(id.clone()).or_insert(line);
        let answer = courier.try_request("POST", "/api/v1/dispatch", Some(&body))?;
        if answer.status == 200 {
            self.told_dispatched(&id, &answer.json());
        } else {
            self.note("dispatch", &answer);
        }
        Ok(answer)
    }

    fn told_dispatched(&self, id: &str, answer: &Value) {
        let mut lines = self.lines();
        let record = answer["delivered"][0]["record_id"].as_str();
        match (record, lines.dispatches.get_mut(id)) {
            (Some(record), Some(line)) if answer["msg_id"] == id => {
                line.record = Some(record.to_owned());
            }
            _ => lines.odd.push(format!("dispatch of {id}: {answer}")),
        }
    }

    /// Takes what waits, and returns the record and its epoch.
    pub fn take(&self, courier: &Courier, lease_s: u32) -> io::Result<Option<(String, u64)>> {
        let path = format!("/api/v1/boxes/{ME}/INBOX/next");
        let body = json!({"lease_s": lease_s});
        let answer = courier.try_request("POST", &path, Some(&body))?;
        if answer.status != 200 {
            self.note("next", &answer);
            return Ok(None);
        }
        let record = &answer.json()["record"];
        let (id, epoch) = (text(record, "record_id"), record["epoch"].as_u64().unwrap());
        let mut lines = self.lines();
        match lines.dispatches.get_mut(&text(record, "msg_id")) {
            Some(line) if line.finish == Finish::Told => {
                lines.odd.push(format!("{id} was finished and could be taken again"));
            }
            Some(line) => line.taken = true,
            None => lines.odd.push(format!("{id} was taken and no caller has sent it")),
        }
        Ok(Some((id, epoch)))
    }

    /// Finishes a record that was taken.
    pub fn finish(&self, courier: &Courier, record: &str, epoch: u64) -> io::Result<Answer> {
        let msg_id = self.lines().message_of(record);
        self.raise(msg_id.as_deref(), Finish::Asked);
        let path = format!("/api/v1/records/{record}/state");
        let body = json!({"state": "READED", "epoch": epoch});
        let answer = courier.try_request("POST", &path, Some(&body))?;
        if answer.status == 200 {
            self.raise(msg_id.as_deref(), Finish::Told);
        } else {
            self.note("finish", &answer);
        }
        Ok(answer)
    }

    fn raise(&self, msg_id: Option<&str>, finish: Finish) {
        let mut lines = self.lines();
        if let Some(line) = msg_id.and_then(|id| lines.dispatches.get_mut(id)) {
            line.finish = line.finish.max(finish);
        }
    }

    /// Posts a message to an address behind the stub.
    pub fn post(&self, courier: &Courier, text: &str) -> io::Result<Answer> {
        let msg = chat(ME, "did:msgtunnel:ann.user.stub", text);
        let body = json!({"msg": msg});
        let id = id_of(&msg);
        self.lines().posts.entry(id.clone()).or_insert(Posted { msg, delivery: None });
        let answer = courier.try_request("POST", "/api/v1/post_send", Some(&body))?;
        if answer.status == 200 {
            let delivery = answer.json()["deliveries"][0]["record_id"].as_str().map(str::to_owned);
            if let Some(line) = self.lines().posts.get_mut(&id) {
                line.delivery = delivery;
            }
        } else {
            self.note("post_send", &answer);
        }
        Ok(answer)
    }

    /// An error is expected when it says that the store cannot write, or that another caller
    /// else was faster.
    fn note(&self, what: &str, answer: &Answer) {
        if !matches!(answer.status, 204 | 409 | 503 | 507) {
            self.lines().odd.push(format!("{what}: {} {}", answer.status, answer.text()));
        }
    }

    /// How many messages were acknowledged.
    pub fn told(&self) -> usize {
        let lines = self.lines();
        let dispatches = lines.dispatches.values().filter(|line| line.record.is_some()).count();
        dispatches + lines.posts.values().filter(|line| line.delivery.is_some()).count()
    }

    /// How many records were acknowledged as finished.
    pub fn finished(&self) -> usize {
        self.lines().dispatches.values().filter(|line| line.finish == Finish::Told).count()
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Fails unless everything that was acknowledged is there exactly once, and
    /// the store has nothing that no caller asked for.
    #[track_caller]
    pub fn check(&self, courier: &Courier) {
        let complaints = self.complaints(courier);
        let shown: Vec<_> = complaints.iter().take(40).collect();
        assert!(complaints.is_empty(), "{} complaints: {shown:#?}", complaints.len());
    }

    /// What is wrong with what is stored.
    pub fn complaints(&self, courier: &Courier) -> Vec<String> {
        let mut wrong = self.lines().odd.clone();
        let records = self.check_records(courier, &mut wrong);
        check_one_state_each(courier, &mut wrong);
        self.check_events(courier, &records, &mut wrong);
        self.check_objects(courier, &mut wrong);
        self.check_deliveries(courier, &mut wrong);
        check_files(courier.home(), &mut wrong);
        wrong
    }

    /// Returns the state of each record.
    fn check_records(&self, courier: &Courier, wrong: &mut Vec<String>) -> Records {
        let mut states = Records::new();
        let mut found = BTreeMap::new();
        for record in pages(courier, &format!("/api/v1/boxes/{ME}/INBOX?order=oldest"), "records") {
            let (id, msg_id) = (text(&record, "record_id"), text(&record, "msg_id"));
            if states.insert(id.clone(), text(&record, "state")).is_some() {
                wrong.push(format!("{id} is in the box twice"));
            }
            if found.insert(msg_id.clone(), id).is_some() {
                wrong.push(format!("{msg_id} is in the box twice"));
            }
        }
        let lines = self.lines();
        for (msg_id, id) in &found {
            let state = states.get(id).map(String::as_str).unwrap_or_default();
            let Some(line) = lines.dispatches.get(msg_id) else {
                wrong.push(format!("{msg_id} is in the box and no caller has sent it"));
                continue;
            };
            let fits = match line.finish {
                Finish::No => matches!(state, "UNREAD" | "READING"),
                Finish::Asked => matches!(state, "UNREAD" | "READING" | "READED"),
                Finish::Told => state == "READED",
            };
            if !fits {
                wrong.push(format!("{id} is {state}, which is not what its reader was told"));
            }
            if line.record.as_ref().is_some_and(|told| told != id) {
                wrong.push(format!("{msg_id} has the record {id}, and its sender knows another"));
            }
        }
        for (msg_id, line) in &lines.dispatches {
            let known = line.record.is_some() || line.taken;
            if known && !found.contains_key(msg_id) {
                wrong.push(format!("{msg_id} was acknowledged and is lost"));
            }
        }
        states
    }

    fn check_events(&self, courier: &Courier, records: &Records, wrong: &mut Vec<String>) {
        let mut dispatched = BTreeMap::<String, usize>::new();
        let mut finished = BTreeMap::<String, usize>::new();
        let mut sent = BTreeMap::<String, usize>::new();
        for event in events(courier) {
            match event["kind"].as_str() {
                Some("dispatched") => *dispatched.entry(text(&event, "msg_id")).or_default() += 1,
                Some("marked") if event["detail"]["to"] == "READED" => {
                    *finished.entry(text(&event, "record_id")).or_default() += 1;
                }
                Some("sent") => *sent.entry(text(&event, "record_id")).or_default() += 1,
                _ => {}
            }
        }
        let twice = |log: &BTreeMap<String, usize>, what: &str, wrong: &mut Vec<String>| {
            for (id, times) in log.iter().filter(|(_, times)| **times != 1) {
                wrong.push(format!("{id} was {what} {times} times"));
            }
        };
        twice(&dispatched, "dispatched", wrong);
        twice(&finished, "finished", wrong);
        twice(&sent, "sent", wrong);
        for (id, state) in records {
            if (state == "READED") != finished.contains_key(id) {
                wrong.push(format!("{id} is {state}, and the log of events does not agree"));
            }
        }
        if dispatched.len() != records.len() {
            let (logged, kept) = (dispatched.len(), records.len());
            wrong.push(format!("{logged} dispatches in the log, {kept} records in the box"));
        }
    }

    fn check_objects(&self, courier: &Courier, wrong: &mut Vec<String>) {
        let lines = self.lines();
        let dispatches = lines.dispatches.iter().filter(|(_, line)| line.record.is_some());
        let posts = lines.posts.iter().filter(|(_, line)| line.delivery.is_some());
        let told = dispatches.map(|(id, line)| (id, &line.msg));
        for (id, msg) in told.chain(posts.map(|(id, line)| (id, &line.msg))) {
            let answer = courier.get(&format!("/api/v1/objects/{id}"));
            if answer.status != 200 {
                wrong.push(format!("{id} can't be read: {}", answer.text()));
            } else if ObjId::of(ObjKind::Msg, &answer.bytes).to_string() != *id
                || answer.json() != *msg
            {
                wrong.push(format!("{id} is not what was sent"));
            }
        }
    }

    fn check_deliveries(&self, courier: &Courier, wrong: &mut Vec<String>) {
        let mut outbox = BTreeSet::new();
        for record in pages(courier, &format!("/api/v1/boxes/{ME}/OUTBOX?order=oldest"), "records")
        {
            if !outbox.insert(text(&record, "msg_id")) {
                wrong.push(format!("{} is in the OUTBOX twice", record["msg_id"]));
            }
        }
        let lines = self.lines();
        for (msg_id, line) in &lines.posts {
            let Some(delivery) = &line.delivery else { continue };
            if !outbox.contains(msg_id) {
                wrong.push(format!("{msg_id} was posted and is not in the OUTBOX"));
            }
            if courier.get(&format!("/api/v1/records/{delivery}")).status != 200 {
                wrong.push(format!("{delivery} was acknowledged and is lost"));
            }
        }
    }

    /// Says everything again, as callers do who were told nothing. What was
    /// acknowledged is recognised.
    pub fn resend(&self, courier: &Courier) {
        let lines = self.lines();
        let all: Vec<_> = lines
            .dispatches
            .iter()
            .map(|(id, line)| (id.clone(), json!({"msg": line.msg}), line.record.is_some()))
            .collect();
        let posts: Vec<_> = lines
            .posts
            .values()
            .map(|line| (text_of(&line.msg), line.delivery.is_some()))
            .collect();
        drop(lines);
        // A batch has at most a thousand lines and 16 MiB.
        for batch in all.chunks(100) {
            let body: String = batch.iter().map(|(_, body, _)| format!("{body}\n")).collect();
            let answer = batch_dispatch(courier, &body);
            let answers: Vec<Value> =
                answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert_eq!(answers.len(), batch.len(), "{}", answer.text());
            for ((id, _, told), answer) in batch.iter().zip(answers) {
                assert!(!told || answer["duplicate"] == true, "{id} was not recognised: {answer}");
                self.told_dispatched(id, &answer);
            }
        }
        for (text, told) in posts {
            let answer = self.post(courier, &text).unwrap().ok();
            assert!(!told || answer["duplicate"] == true, "{text} was not recognised: {answer}");
        }
    }

    /// Repeats everything, finishes it, and checks it.
    #[track_caller]
    pub fn settle(&self, courier: &Courier) {
        self.resend(courier);
        self.drain(courier);
        self.wait_until_sent(courier);
        self.check(courier);
    }

    /// Waits until everything that was posted is delivered.
    pub fn wait_until_sent(&self, courier: &Courier) {
        let deliveries: Vec<_> =
            self.lines().posts.values().filter_map(|line| line.delivery.clone()).collect();
        for delivery in deliveries {
            courier.until(&format!("/api/v1/records/{delivery}"), |it| it["state"] == "SENT");
        }
    }

    /// Takes and finishes until nothing is left, also what others hold and will lose.
    fn drain(&self, courier: &Courier) {
        let mut deadline = Instant::now() + PATIENCE;
        loop {
            while let Some((record, epoch)) = self.take(courier, 60).unwrap() {
                self.finish(courier, &record, epoch).unwrap().ok();
                deadline = Instant::now() + PATIENCE;
            }
            let open = format!("/api/v1/boxes/{ME}/INBOX?state=UNREAD,READING&limit=1");
            let open = courier.get(&open).ok();
            if open["records"].as_array().unwrap().is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "never free: {open:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Lines {
    fn message_of(&self, record: &str) -> Option<String> {
        let hash = record.strip_prefix("rec_")?.get(..32)?;
        let from = format!("cymsg:{hash}");
        let (id, _) = self.dispatches.range(from.clone()..).next()?;
        id.starts_with(&from).then(|| id.clone())
    }
}

/// Records and their states.
type Records = BTreeMap<String, String>;

/// A record whose lease ends while we look may be seen in both lists or in none, so
/// this looks again before it complains.
fn check_one_state_each(courier: &Courier, wrong: &mut Vec<String>) {
    let mut last = String::new();
    for _ in 0..5 {
        let list = |states: &str| -> Vec<String> {
            let path = format!("/api/v1/boxes/{ME}/INBOX?order=oldest{states}");
            let records = pages(courier, &path, "records");
            records.iter().map(|record| text(record, "record_id")).collect()
        };
        let mut apart = Vec::new();
        for state in ["UNREAD", "READING", "READED", "SENT", "ARCHIVED", "DELETED"] {
            apart.extend(list(&format!("&state={state}")));
        }
        let mut all = list("");
        apart.sort();
        all.sort();
        if apart == all {
            return;
        }
        last = format!("{} records, {} when listed by state", all.len(), apart.len());
        std::thread::sleep(Duration::from_millis(50));
    }
    wrong.push(last);
}

fn check_files(home: &Path, wrong: &mut Vec<String>) {
    let list = |path: &Path| -> Vec<_> {
        let entries = std::fs::read_dir(path).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    for shelf in list(&home.join("store/blobs")) {
        for file in list(&shelf) {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            let bytes = std::fs::read(&file).unwrap();
            if shelf.ends_with("tmp") {
                wrong.push(format!("{} was left behind", file.display()));
            } else if !ObjId::of(ObjKind::Msg, &bytes).to_string().ends_with(&name) {
                wrong.push(format!("{} is torn: {} bytes", file.display(), bytes.len()));
            }
        }
    }
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let checked: Result<String, _> =
        rusqlite::Connection::open_with_flags(home.join("store/monoco.db"), flags)
            .and_then(|db| db.query_row("PRAGMA integrity_check", [], |row| row.get(0)));
    if checked.as_deref() != Ok("ok") {
        wrong.push(format!("the database is damaged: {checked:?}"));
    }
}

pub fn events(courier: &Courier) -> Vec<Value> {
    try_events(courier).unwrap()
}

/// Fails when the courier is gone before it has answered.
pub fn try_events(courier: &Courier) -> io::Result<Vec<Value>> {
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let path = format!("/api/v1/events?after={after}&limit=1000");
        let page = courier.try_request("GET", &path, None)?.ok();
        let events = page["events"].as_array().unwrap();
        if events.is_empty() {
            return Ok(all);
        }
        all.extend(events.iter().cloned());
        after = page["last"].as_i64().unwrap();
    }
}

/// Reads all pages of a list. `path` has a query already.
pub fn pages(courier: &Courier, path: &str, key: &str) -> Vec<Value> {
    let mut all = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = courier.get(&format!("{path}&limit=1000{cursor}")).ok();
        all.extend(page[key].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return all,
        }
    }
}

/// Dispatches many messages in one commit.
pub fn batch_dispatch(courier: &Courier, lines: &str) -> Answer {
    let lines_of_json = [("Content-Type", "application/x-ndjson")];
    courier.send("POST", "/api/v1/dispatch", &lines_of_json, lines.as_bytes()).unwrap()
}

fn id_of(msg: &Value) -> String {
    MsgObject::from_json(msg.clone()).unwrap().id().to_string()
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_else(|| panic!("no {key}: {value}")).to_owned()
}

fn text_of(msg: &Value) -> String {
    text(&msg["content"], "content")
}

/// A text of `size` bytes that no other message has.
pub fn long(name: &str, size: usize) -> String {
    format!("{name} {}", "x".repeat(size))
}

/// Numbers that look random, and are the same again for the same seed. The seed is
/// told when a test fails.
pub struct TestRng(u64);

impl TestRng {
    /// From `MONOCO_SEED`, or new ones.
    pub fn new() -> Self {
        let seed = std::env::var("MONOCO_SEED").ok().map(|seed| seed.parse().unwrap());
        let seed = seed.unwrap_or_else(|| {
            let mut bytes = [0; 4];
            getrandom::fill(&mut bytes).unwrap();
            u64::from(u32::from_le_bytes(bytes))
        });
        say(&format!("MONOCO_SEED={seed}"));
        Self(seed)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Shown when the test fails, or with `--nocapture`.
#[expect(clippy::print_stderr, reason = "the test runner shows it with a failed test")]
pub fn say(words: &str) {
    eprintln!("{words}");
}

/// How often to do something: as the variable says, or so often by default.
pub fn times(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

/// `strace`, attached to a courier that already runs. Its counters start at zero now,
/// one per thread.
pub struct Tracer {
    process: Child,
    courier: u32,
}

impl Tracer {
    /// Kills the courier at the `n`-th such call.
    pub fn killing(courier: &Courier, call: (&str, Option<&str>), n: u32) -> Self {
        let args = crate::crash::killing(courier.home(), call, n);
        Self::attach(courier, &args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    pub fn attach(courier: &Courier, args: &[&str]) -> Self {
        use std::io::BufRead as _;

        let courier = courier.pid();
        let mut command = Command::new("strace");
        command.args(["-f", "-o", "/dev/null"]).args(args).args(["-p", &courier.to_string()]);
        command.stderr(Stdio::piped()).stdin(Stdio::null());
        let mut process = command.spawn().unwrap_or_else(|error| {
            panic!("these tests need strace: apt-get install strace ({error})")
        });
        let mut said = io::BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert!(line.contains("attached"), "strace could not attach: {line}");
        std::thread::spawn(move || io::copy(&mut said, &mut io::sink()));
        Self { process, courier }
    }

    fn is_courier_gone(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.courier));
        stat.map_or(true, |stat| stat.contains(") Z "))
    }

    fn ends_within(&mut self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if self.process.try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}

impl Drop for Tracer {
    /// Lets the courier go on by itself.
    fn drop(&mut self) {
        use rustix::process::{Pid, Signal, kill_process};

        let second = Duration::from_secs(1);
        if self.is_courier_gone() && self.ends_within(second) {
            return;
        }
        // Asked to, it lets go in good order, or waits for ever for a thread that has
        // died meanwhile.
        let _ = kill_process(Pid::from_child(&self.process), Signal::TERM);
        if !self.ends_within(second) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
