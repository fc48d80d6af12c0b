//! Harness of the letters' fault tests: submits letters, receives what is sent, and compares
//! both with the store.
//!
//! The tests of `letter_kill_points.rs` have one form: each request is noted in [`Letters`]
//! with its answer; then the fault; then [`LetterChecker::check`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ack_checker::pages;
use crate::common::{Answer, Courier, PATIENCE};
use crate::mail_checker::{MailChecker, settle};
use crate::pipeline_harness::mail_through;
use crate::webhook_peer::{Receiver, SECRET, configure};

/// The tunnels, and the workers of what goes out through each.
const CHAINS: [(&str, &[&str]); 8] = [
    ("plain", &["subject", "footer", "send"]),
    ("spammy", &["spam", "send"]),
    ("merging", &["merge", "send"]),
    ("limited", &["limit", "send"]),
    ("shut", &["daily", "send"]),
    ("asking", &["command", "subject", "send"]),
    ("failing", &["missing", "send"]),
    ("ci", &["send"]),
];

/// Says `pass` to the letter on its stdin.
pub const PASSES: &str = r#"exec sed 's/^{/{"result":"pass",/'"#;

/// All letters that were handed in and what their senders were told.
#[derive(Default)]
pub struct Letters(Mutex<BTreeMap<String, Line>>);

/// One letter. Its key is a word that no other one has in its text.
#[derive(Clone)]
struct Line {
    letter: Value,
    /// Its id, once the submission was acknowledged.
    id: Option<String>,
    /// How it may end.
    ends: &'static [&'static str],
    /// What was asked of it by hand, and whether that was told to be done.
    asked: Option<(&'static str, bool)>,
}

impl Line {
    /// What is wrong with it as it is stored, when it came out of its tunnel so often.
    fn complain(&self, word: &str, found: &Value, came: usize, wrong: &mut Vec<String>) {
        let state = found["state"].as_str().unwrap_or_default();
        if !self.ends.contains(&state) {
            wrong.push(format!("{word} is {state} and not {:?}: {found}", self.ends));
        }
        let said = found["verdicts"].as_array().into_iter().flatten();
        let said: Vec<_> = said.map(|said| said["worker"].to_string()).collect();
        if said.iter().collect::<BTreeSet<_>>().len() != said.len() {
            wrong.push(format!("{word} had a worker twice: {said:?}"));
        }
        if came != usize::from(!self.ends.contains(&"TRASHED")) {
            wrong.push(format!("{word} is {state} and came {came} times"));
        }
    }
}

impl Letters {
    /// Hands a letter in for the first time.
    pub fn hand_in(
        &self,
        courier: &Courier,
        word: &str,
        letter: Value,
        ends: &'static [&'static str],
    ) -> io::Result<Answer> {
        self.lines().insert(word.to_owned(), Line { letter, id: None, ends, asked: None });
        self.again(courier, word)
    }

    /// Hands a letter in under its key, whether or not it was before.
    pub fn again(&self, courier: &Courier, word: &str) -> io::Result<Answer> {
        let Line { letter, id: known, .. } = self.line(word);
        let headers = [("Content-Type", "application/json"), ("Idempotency-Key", word)];
        let body = letter.to_string();
        let answer = courier.send("POST", "/api/v1/letters", &headers, body.as_bytes())?;
        if answer.status == 202 {
            let id = answer.json()["id"].as_str().unwrap().to_owned();
            assert!(known.is_none_or(|known| known == id), "{word} is two letters");
            self.lines().get_mut(word).unwrap().id = Some(id);
        } else {
            assert_eq!(answer.refused(507), "storage_full");
        }
        Ok(answer)
    }

    /// Asks something of a letter by hand.
    pub fn ask(&self, courier: &Courier, word: &str, verb: &'static str) -> io::Result<()> {
        self.lines().get_mut(word).unwrap().asked = Some((verb, false));
        let path = format!("/api/v1/letters/{}/{verb}", self.line(word).id.unwrap());
        courier.try_request("POST", &path, Some(&json!({})))?.ok();
        self.lines().get_mut(word).unwrap().asked = Some((verb, true));
        Ok(())
    }

    /// Repeats the requests that got no answer.
    pub fn insist(&self, courier: &Courier) {
        let words: Vec<_> = self.lines().keys().cloned().collect();
        for word in words {
            if self.line(&word).id.is_none() {
                assert_eq!(self.again(courier, &word).unwrap().status, 202, "{word}");
            }
            let line = self.line(&word);
            let Some((verb, told)) = line.asked else { continue };
            let path = format!("/api/v1/letters/{}", line.id.unwrap());
            let state = courier.get(&path).ok()["state"].as_str().unwrap().to_owned();
            let undone = match verb {
                "restore" => state == "TRASHED",
                "retry" => state == "DEAD",
                _ => state != "TRASHED",
            };
            assert!(!(told && undone), "{word}: {verb} was told to be done, and it is {state}");
            if undone {
                self.ask(courier, &word, verb).unwrap();
            }
        }
    }

    fn line(&self, word: &str) -> Line {
        self.lines()[word].clone()
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Line>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn told(&self) -> usize {
        self.lines().values().filter(|line| line.id.is_some()).count()
    }
}

/// A courier with all of these chains, the submitters of letters, and the receiver of what
/// the courier sends.
pub struct LetterChecker {
    pub courier: Courier,
    pub letters: Letters,
    /// What came in by webhooks.
    pub book: MailChecker,
    receiver: Receiver,
    /// The keys that each word came under.
    came: BTreeMap<String, BTreeSet<String>>,
    pub home: PathBuf,
    /// Removed when the test ends.
    _dir: Option<TempDir>,
}

impl LetterChecker {
    /// One in a home of its own.
    pub fn open() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut clerk = Self::open_in(&dir.path().join("home"));
        clerk._dir = Some(dir);
        clerk
    }

    /// One in a home that was not used before, with its commands beside it.
    pub fn open_in(home: &Path) -> Self {
        let (receiver, place) = (Receiver::start(), home.parent().unwrap());
        let script = format!(
            "cd {}\necho run >>runs\nwhile [ -e hold ]; do sleep 0.01; done\nsleep 0.1\n{PASSES}\n",
            place.display()
        );
        std::fs::write(place.join("command"), script).unwrap();
        configure(home, &config(place, &receiver));
        let (letters, book) = (Letters::default(), MailChecker::default());
        let (courier, home) = (Courier::start_in(home), home.to_owned());
        Self { courier, letters, book, receiver, came: BTreeMap::new(), home, _dir: None }
    }

    /// A file beside the home.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.home.parent().unwrap().join(name)
    }

    /// Submits a letter for a tunnel to a recipient of its own, and checks that it is stored.
    pub fn hand_in(
        &self,
        word: &str,
        to: &str,
        subject: &str,
        ends: &'static [&'static str],
    ) -> io::Result<()> {
        let (tunnel, name) = to.split_once('/').unwrap();
        let mut letter = mail_through(tunnel, &format!("{word} says hello"));
        let data = letter["data"].as_str().unwrap().replace("Subject: Hello", subject);
        letter["to"] = json!([format!("{name}@example.org")]);
        letter["data"] = json!(data);
        let answer = self.letters.hand_in(&self.courier, word, letter, ends)?;
        assert_eq!(answer.status, 202, "{}", answer.text());
        Ok(())
    }

    /// Submits a letter that no worker has a reason to stop.
    pub fn sends(&self, word: &str, to: &str) -> io::Result<()> {
        self.hand_in(word, to, "Subject: Hello", &["DONE"])
    }

    /// A letter as it is shown.
    fn shown(&self, word: &str) -> io::Result<Value> {
        let path = format!("/api/v1/letters/{}", self.letters.line(word).id.unwrap());
        Ok(self.courier.try_request("GET", &path, None)?.ok())
    }

    /// Waits until a worker keeps a letter.
    pub fn is_kept(&mut self, word: &str) {
        self.until(|clerk| Ok(clerk.shown(word)?["worker"].is_string())).unwrap();
    }

    /// Waits until something is so; fails when the courier is gone before.
    pub fn until(&mut self, mut so: impl FnMut(&mut Self) -> io::Result<bool>) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !so(self)? {
            if !self.courier.is_alive() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            assert!(Instant::now() < deadline, "it never became so");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until a letter stands so.
    pub fn stands(&mut self, word: &str, state: &str) -> io::Result<()> {
        self.until(|clerk| Ok(clerk.shown(word)?["state"] == state))
    }

    /// Waits until a word has come out of a tunnel.
    pub fn arrives(&mut self, word: &str) -> io::Result<()> {
        self.until(|clerk| {
            clerk.receive();
            Ok(clerk.came.contains_key(word))
        })
    }

    /// Writes down what came out of the tunnels.
    fn receive(&mut self) {
        for got in self.receiver.all() {
            let body: Value = serde_json::from_str(&got.body).unwrap();
            let key = got.headers["idempotency-key"].as_str().unwrap().to_owned();
            // Of a large mail the text is an attachment.
            let (title, text) = (body["title"].as_str(), body["text"].as_str());
            for word in words(title.unwrap_or_default()).chain(words(text.unwrap())) {
                self.came.entry(word.to_owned()).or_default().insert(key.clone());
            }
        }
    }

    /// What a killed courier leaves is taken up by the next one.
    pub fn recover(&mut self) {
        self.courier.kill();
        self.courier = Courier::start_in(&self.home);
        self.letters.insist(&self.courier);
        self.book.insist(&self.courier);
        self.check();
    }

    /// Waits until every letter has come to its end, and every word out of its tunnel.
    #[track_caller]
    pub fn check(&mut self) {
        self.book.check(&self.courier);
        settle(|| {
            self.receive();
            self.complaints()
        });
    }

    /// What is not as it was told, or not yet.
    fn complaints(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let lines = self.letters.lines().clone();
        let mut stored = self.stored("outbound");
        let mut merged = BTreeMap::<String, BTreeSet<&String>>::new();
        for (word, line) in &lines {
            let Some(found) = line.id.as_ref().and_then(|id| stored.remove(id)) else {
                wrong.push(format!("{word} is lost"));
                continue;
            };
            let keys = self.came.get(word);
            line.complain(word, &found, keys.map_or(0, BTreeSet::len), &mut wrong);
            if line.ends.contains(&"MERGED") {
                merged
                    .entry(line.letter["to"].to_string())
                    .or_default()
                    .extend(keys.into_iter().flatten());
            }
        }
        wrong.extend(stored.keys().map(|id| format!("{id} is stored, and was not submitted")));
        wrong.extend(self.came.keys().filter(|word| !lines.contains_key(*word)).cloned());
        let pieces = merged.iter().filter(|(_, keys)| keys.len() != 1);
        wrong.extend(pieces.map(|(to, keys)| format!("those to {to} came as {keys:?}")));
        let heard = self.stored("inbound");
        let open = heard.values().filter(|letter| letter["state"] != "DONE");
        wrong.extend(open.map(|letter| format!("it was heard and not delivered: {letter}")));
        if heard.len() != self.book.told() {
            wrong.push(format!("{} letters of {} heard", heard.len(), self.book.told()));
        }
        wrong
    }

    /// All stored letters of a direction, by their ids.
    pub fn stored(&self, direction: &str) -> BTreeMap<String, Value> {
        let path = format!("/api/v1/letters?direction={direction}");
        let letters = pages(&self.courier, &path, "letters").into_iter();
        letters.map(|one| (one["id"].as_str().unwrap().to_owned(), one)).collect()
    }
}

fn config(place: &Path, receiver: &Receiver) -> String {
    let adapter = json!({
        "provider": "webhook", "verify": "standard", "secret": SECRET,
        "send_to": receiver.url("/hook"), "allow_private": true,
    });
    let command = json!(["sh", place.join("command")]);
    let adapters: Value =
        CHAINS.iter().map(|(name, _)| ((*name).to_owned(), adapter.clone())).collect();
    let chains: Value = CHAINS
        .iter()
        .map(|(name, chain)| ((*name).to_owned(), json!({"outbound": chain})))
        .collect();
    json!({"courier": {
        "debounce": {"window_ms": 20},
        "adapters": adapters,
        "pipeline": {
            "inbound": ["spam", "deliver"],
            "tunnels": chains,
            "workers": {
                "spam": {"rules": [{"name": "casino", "subject": "casino", "score": 5}]},
                "subject": {"template": "[Team] {subject}"},
                "footer": {"text": "Sent by Monoco"},
                "merge": {"window_s": 1},
                "limit": {"per_recipient": "1/s"},
                "daily": {"kind": "limit", "per_tunnel": "1/day"},
                "command": {"kind": "exec", "command": command, "timeout_s": 2},
                "missing": {
                    "kind": "exec", "command": [place.join("missing")], "timeout_s": 2,
                    "when_down": "dead",
                },
            },
        },
    }})
    .to_string()
}

/// The words of a text that tell letters apart.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let inner = |c: char| !c.is_ascii_alphanumeric() && c != '-';
    text.split(inner).filter(|word| word.starts_with("word-"))
}
