//! `kill -9` at every step of the way of a chat message with a file, and of a message that is sent in
//! parts: between storing, acknowledging and fetching, and around each part.

use std::collections::BTreeMap;
use std::io;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::chat_harness::{ChatSim, chat_config};
use crate::common::{Courier, ME, PATIENCE, wait_for};
use crate::kill_points::{Call, CheckedCourier, points, sweep};
use crate::webhook_peer::configure;

/// How many points of each call are swept, unless `MONOCO_POINTS` asks for more.
const POINTS_PER_CALL: usize = 8;

/// Paragraphs of a message that is sent in parts, and their size: three parts of Slack.
const PARAGRAPHS: usize = 12;
const PARAGRAPH_CHARS: usize = 700;

/// A chat network with an emulator.
trait ChatNetwork {
    const NAME: &'static str;
    fn keys(sim: &ChatSim) -> Vec<String>;
}

struct Slack;
struct DingTalk;

impl ChatNetwork for Slack {
    const NAME: &'static str = "slack";

    fn keys(sim: &ChatSim) -> Vec<String> {
        vec![
            "provider: slack".to_owned(),
            format!("base_url: {}", sim.text("base_url")),
            format!("app_token: {}", sim.credential("app_token")),
            format!("bot_token: {}", sim.credential("bot_token")),
            "send_rate: 100/s".to_owned(),
            // Every message must come through the socket.
            "catch_up: off".to_owned(),
        ]
    }
}

impl ChatNetwork for DingTalk {
    const NAME: &'static str = "dingtalk";

    fn keys(sim: &ChatSim) -> Vec<String> {
        let mut keys = vec!["provider: dingtalk".to_owned()];
        for key in ["app_key", "app_secret"] {
            keys.push(format!("{key}: {}", sim.credential(key)));
        }
        for key in ["base_url", "oapi_url"] {
            keys.push(format!("{key}: '{}'", sim.text(key)));
        }
        keys
    }
}

/// A courier with a tunnel to an emulator, what was said there, and what was sent.
struct ChatCourier<N> {
    courier: Courier,
    sim: ChatSim,
    home: PathBuf,
    /// The texts of messages with a file.
    said: Vec<String>,
    /// The names of sent messages.
    sent: Vec<String>,
    _dir: TempDir,
    network: PhantomData<N>,
}

impl<N: ChatNetwork> ChatCourier<N> {
    /// Waits until something is so; fails when the courier is gone before.
    fn until(&mut self, mut so: impl FnMut(&Self) -> bool) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !so(self) {
            if !self.courier.is_alive() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            assert!(Instant::now() < deadline, "it never became so: {:#}", self.sim.get("state"));
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The texts of all Mail files.
    fn mail_files(&self) -> Vec<String> {
        let dir = self.home.join("mailbox/inbound").join(N::NAME);
        let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let files = paths.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
        files.filter_map(|path| std::fs::read_to_string(path).ok()).collect()
    }

    /// Says something with a file. The message is acknowledged before the file is fetched.
    fn say(&mut self, name: &str) {
        let file = json!({"name": format!("{name}.txt"), "mime_type": "text/plain",
                          "text": file_text(name)});
        self.said.push(name.to_owned());
        let text = format!("{name}, see the file");
        self.sim.control("say", &json!({"chat": "ops", "text": text, "files": [file]}));
    }

    /// Checks that each message is in one Mail, once, with its file.
    fn check_said(&self) {
        for name in &self.said {
            let hash = file_hash(name);
            let files = wait_for(|| {
                let files = self.mail_files();
                let with_file = files.iter().filter(|text| text.contains(&hash)).count();
                if with_file > 0 {
                    Ok(files)
                } else {
                    Err(format!("no Mail with the file of {name}"))
                }
            });
            let with_file = files.iter().filter(|text| text.contains(&hash)).count();
            assert_eq!(with_file, 1, "{name}: {files:#?}");
            let object = self.courier.get(&format!("/api/v1/objects/{hash}"));
            assert_eq!((object.status, object.text()), (200, file_text(name)));
        }
        let files = self.mail_files();
        let missing: Vec<_> = files.iter().filter(|text| text.contains("not fetched")).collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }

    /// Sends a message in several parts, and returns the answer. A repetition sends nothing more.
    fn send(&self, name: &str) -> io::Result<Value> {
        let paragraph = |n: usize| format!("{name}/p{n}. {}\n\n", "x".repeat(PARAGRAPH_CHARS - 20));
        let text: String = (0..PARAGRAPHS).map(paragraph).collect();
        let msg = json!({"from": ME, "to": ["did:msgtunnel:C0OPS.group.chat"], "kind": "chat",
                         "content": {"format": "text/markdown", "content": text}});
        let body = json!({"msg": msg, "idempotency_key": name});
        let answer = self.courier.try_request("POST", "/api/v1/post_send", Some(&body))?;
        let answer: Value = serde_json::from_slice(&answer.bytes)
            .map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        Ok(answer)
    }

    /// The state of a message that was sent; `None` when the courier is gone.
    fn state_of(&self, name: &str) -> Option<(String, String)> {
        let answer = self.send(name).ok()?;
        let id = answer["deliveries"][0]["record_id"].as_str()?.to_owned();
        let path = format!("/api/v1/records/{id}");
        let record = self.courier.try_request("GET", &path, None).ok()?;
        let record: Value = serde_json::from_slice(&record.bytes).ok()?;
        Some((path, record["state"].as_str()?.to_owned()))
    }

    /// Checks that each paragraph of each message was sent once, in order. A part whose outcome is
    /// unknown and that Slack does not show is sent when an operator says so.
    fn check_sent(&self) {
        for name in &self.sent {
            wait_for(|| match self.state_of(name) {
                Some((_, state)) if state == "SENT" => Ok(()),
                Some((path, state)) if state == "UNCERTAIN" => {
                    self.courier.post(&format!("{path}/state"), &json!({"state": "WAIT"})).ok();
                    Err(state)
                }
                other => Err(format!("{name}: {other:?}")),
            });
        }
        let mut found: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for sent in self.sim.sent() {
            for piece in sent["text"].as_str().unwrap().split("\n\n") {
                let Some((name, rest)) = piece.split_once("/p") else { continue };
                let number = rest.split_once('.').unwrap().0.parse().unwrap();
                found.entry(name.to_owned()).or_default().push(number);
            }
        }
        let all: Vec<_> = (0..PARAGRAPHS).collect();
        for name in &self.sent {
            assert_eq!(found.get(name), Some(&all), "{name}");
        }
    }
}

fn file_text(name: &str) -> String {
    format!("the content of {name}\n").repeat(500)
}

fn file_hash(name: &str) -> String {
    let hash = Sha256::digest(file_text(name).as_bytes());
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

impl<N: ChatNetwork> CheckedCourier for ChatCourier<N> {
    fn open() -> Self {
        let sim = ChatSim::start(N::NAME);
        // What is not acknowledged comes again soon, however often.
        let settings = json!({"ack_timeout_ms": 1000, "max_attempts": 10_000,
                              "resend_on_close": true, "backlog": true});
        sim.control("settings", &settings);
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        configure(&home, &chat_config("chat", 50, &N::keys(&sim)));
        let courier = Courier::start_in(&home);
        sim.wait_for_connections(1);
        let (said, sent, network) = (Vec::new(), Vec::new(), PhantomData);
        Self { courier, sim, home, said, sent, _dir: dir, network }
    }

    fn courier(&self) -> &Courier {
        &self.courier
    }

    fn recover(&mut self) {
        self.courier.kill();
        self.courier = Courier::start_in(&self.home);
        self.sim.wait_for_connections(1);
        self.check();
    }

    fn check(&mut self) {
        self.check_said();
        self.check_sent();
    }

    fn points(_: Call) -> Vec<u32> {
        let all = points();
        let most =
            if std::env::var_os("MONOCO_POINTS").is_some() { all.len() } else { POINTS_PER_CALL };
        all.into_iter().take(most).collect()
    }
}

/// The calls from a frame to the file of its Mail: the store's log, the acknowledgement and the
/// request for the file, its bytes, and its place.
const RECEIVING: [Call; 5] = [
    ("pwrite64", None),
    ("fsync", None),
    ("write", None),
    ("writev,sendto", None),
    ("rename,renameat,renameat2,link,linkat", None),
];

fn receive<N: ChatNetwork>(chat: &mut ChatCourier<N>, name: &str, (): ()) -> io::Result<()> {
    chat.say(name);
    let hash = file_hash(name);
    chat.until(|chat| chat.mail_files().iter().any(|text| text.contains(&hash)))
}

#[test]
fn killed_at_every_step_from_a_slack_message_to_its_file() {
    sweep("slack-file", 15, &RECEIVING, |_: &mut ChatCourier<Slack>, _| (), receive);
}

#[test]
fn killed_at_every_step_from_a_dingtalk_message_to_its_file() {
    sweep("dingtalk-file", 15, &RECEIVING, |_: &mut ChatCourier<DingTalk>, _| (), receive);
}

#[test]
fn killed_at_every_step_of_a_message_in_parts() {
    let calls = [("pwrite64", None), ("fsync", None), ("writev,sendto", None)];
    let send = |chat: &mut ChatCourier<Slack>, name: &str, ()| {
        chat.sent.push(name.to_owned());
        chat.send(name)?;
        let name = name.to_owned();
        chat.until(|chat| chat.state_of(&name).is_some_and(|(_, state)| state == "SENT"))
    };
    sweep("parts", 10, &calls, |_, _| (), send);
}
