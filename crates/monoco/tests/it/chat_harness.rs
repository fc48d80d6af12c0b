//! An emulated chat network beside a courier: says something in a chat, looks at what was kept and
//! at what the bot sent. Faults that all networks have are at the end.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Courier, Ran, binary, cli, raw, wait_for};
use crate::webhook_peer::configure;

/// An emulator in a process of its own.
pub struct ChatSim {
    process: Child,
    address: SocketAddr,
    /// What it printed when it started: its URLs and credentials.
    pub info: Value,
}

impl ChatSim {
    /// Starts the emulator of a network on a free port.
    pub fn start(network: &str) -> Self {
        Self::start_with(network, &[])
    }

    pub fn start_with(network: &str, args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.args(["sim", network, "--port", "0", "--json"]).args(args).env_clear();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let info: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        let control = info["control_url"].as_str().unwrap();
        let address = control.split('/').nth(2).unwrap().parse().unwrap();
        Self { process, address, info }
    }

    /// A value of what the emulator printed, such as `base_url`.
    pub fn text(&self, key: &str) -> &str {
        self.info[key].as_str().unwrap_or_else(|| panic!("{key}: {:#}", self.info))
    }

    pub fn credential(&self, key: &str) -> &str {
        let value = &self.info["credentials"][key];
        value.as_str().unwrap_or_else(|| panic!("{key}: {:#}", self.info))
    }

    /// Makes a request of the control API that must succeed.
    #[track_caller]
    pub fn control(&self, name: &str, body: &Value) -> Value {
        let body = body.to_string();
        self.request("POST", name, body.as_bytes())
    }

    #[track_caller]
    pub fn get(&self, name: &str) -> Value {
        self.request("GET", name, b"")
    }

    #[track_caller]
    fn request(&self, method: &str, name: &str, body: &[u8]) -> Value {
        let headers = [("Host", self.address.to_string())];
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        raw(self.address, method, &format!("/control/{name}"), &headers, body).unwrap().ok()
    }

    /// Says something in a chat and returns the answer, which has the id of the message.
    #[track_caller]
    pub fn say(&self, chat: &str, text: &str) -> Value {
        self.control("say", &json!({"chat": chat, "text": text}))
    }

    #[track_caller]
    pub fn chaos(&self, body: Value) {
        self.control("chaos", &body);
    }

    /// Everything that the bot sent, oldest first.
    #[track_caller]
    pub fn sent(&self) -> Vec<Value> {
        self.get("sent")["sent"].as_array().unwrap().clone()
    }

    /// Waits until the bot has sent so many messages, and returns them.
    #[track_caller]
    pub fn wait_for_sent(&self, count: usize) -> Vec<Value> {
        wait_for(|| {
            let sent = self.sent();
            if sent.len() >= count { Ok(sent) } else { Err(format!("{count} sent: {sent:#?}")) }
        })
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        let state = self.get("state");
        state["connections"].as_array().map_or(0, Vec::len)
    }

    /// Waits until exactly so many connections are open.
    #[track_caller]
    pub fn wait_for_connections(&self, count: usize) {
        wait_for(|| match self.connections() {
            found if found == count => Ok(()),
            found => Err(format!("{count} connections, found {found}: {:#}", self.get("state"))),
        });
    }
}

impl Drop for ChatSim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A config with one chat tunnel. `keys` are the lines of its section.
pub fn chat_config(tunnel: &str, window_ms: u64, keys: &[String]) -> String {
    let section = tunnel_section(tunnel, keys);
    let debounce = format!("{{ window_ms: {window_ms}, max_wait_ms: 120000 }}");
    format!("courier:\n  debounce: {debounce}\n  adapters:\n{section}")
}

/// The section of one tunnel, which can follow [`chat_config`].
pub fn tunnel_section(tunnel: &str, keys: &[String]) -> String {
    let lines: String = keys.iter().map(|key| format!("      {key}\n")).collect();
    format!("    {tunnel}:\n{lines}")
}

/// All messages that are kept: the texts of all Mails, by the id of the Mail.
pub fn kept_mails(courier: &Courier) -> BTreeMap<String, Value> {
    let mut mails = BTreeMap::new();
    let mut path = "/api/v1/messages?order=oldest&limit=1000".to_owned();
    loop {
        let answer = courier.get(&path).ok();
        for mail in answer["messages"].as_array().unwrap() {
            mails.insert(mail["id"].as_str().unwrap().to_owned(), mail.clone());
        }
        let Some(next) = answer["next_cursor"].as_str() else { return mails };
        path = format!("/api/v1/messages?order=oldest&limit=1000&cursor={next}");
    }
}

/// The number of messages in all Mails.
pub fn kept_messages(courier: &Courier) -> u64 {
    kept_mails(courier).values().map(|mail| mail["messages"].as_u64().unwrap()).sum()
}

/// Waits until exactly so many messages are kept in Mails.
#[track_caller]
pub fn wait_for_kept(courier: &Courier, count: u64) {
    wait_for(|| match kept_messages(courier) {
        found if found == count => Ok(()),
        found => Err(format!("{count} messages, found {found}: {:#}", courier.get("/health").ok())),
    });
}

/// The text of a Mail.
pub fn mail_text(courier: &Courier, id: &str) -> String {
    let mail = courier.get(&format!("/api/v1/messages/{id}")).ok();
    mail["msg"]["content"]["content"].as_str().unwrap().to_owned()
}

/// Waits for the only Mail and returns its id.
#[track_caller]
pub fn only_mail(courier: &Courier) -> String {
    let mails = wait_for(|| match kept_mails(courier) {
        mails if mails.is_empty() => Err("no Mail".to_owned()),
        mails => Ok(mails),
    });
    assert_eq!(mails.len(), 1, "{mails:#?}");
    mails.into_keys().next().unwrap()
}

/// Waits for the file of a Mail and returns its content.
#[track_caller]
pub fn mail_file(courier: &Courier, provider: &str, id: &str) -> String {
    let dir = courier.home().join("mailbox/inbound").join(provider);
    let path: PathBuf = wait_for(|| {
        let entries = std::fs::read_dir(&dir).map_err(|error| format!("{dir:?}: {error}"))?;
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let is_file = |path: &PathBuf| path.to_string_lossy().contains(id);
        paths.find(is_file).ok_or_else(|| format!("no file of {id}"))
    });
    std::fs::read_to_string(path).unwrap()
}

/// Answers a Mail over the API.
#[track_caller]
pub fn reply(courier: &Courier, mail: &str, text: &str) -> Value {
    let body = json!({"text": text});
    courier.post(&format!("/api/v1/messages/{mail}/reply"), &body).ok()
}

/// Sends a text to an account or a chat behind a tunnel and returns the answer.
#[track_caller]
pub fn send_to(courier: &Courier, did: &str, text: &str) -> Value {
    let msg = json!({"from": crate::common::ME, "to": [did], "kind": "chat",
                     "content": {"format": "text/markdown", "content": text}});
    courier.post("/api/v1/post_send", &json!({"msg": msg})).ok()
}

/// Runs a command of the home of a courier.
pub fn run(courier: &Courier, args: &[&str]) -> Ran {
    cli(courier.home(), args, "")
}

/// A number of an environment variable, for longer runs.
pub fn knob(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How often each of the texts `tok-N.` is in the given texts.
pub fn count_tokens(texts: impl IntoIterator<Item = String>) -> BTreeMap<u64, usize> {
    let mut found = BTreeMap::new();
    for text in texts {
        for piece in text.split("tok-").skip(1) {
            let digits: String = piece.chars().take_while(char::is_ascii_digit).collect();
            if piece[digits.len()..].starts_with('.') {
                *found.entry(digits.parse().unwrap()).or_default() += 1;
            }
        }
    }
    found
}

/// Checks that each of the numbered texts is in exactly one Mail, once.
#[track_caller]
pub fn assert_each_once(courier: &Courier, names: &[&str], count: u64) {
    let mails = kept_mails(courier);
    let texts: Vec<_> = mails.keys().map(|mail| mail_text(courier, mail)).collect();
    let all = texts.join("\n");
    for name in names {
        for number in 1..=count {
            let text = format!("{name} {number}.");
            assert_eq!(all.matches(&text).count(), 1, "{text}");
        }
    }
}

/// Says many messages while sockets are dropped and events are repeated, and checks that each is kept
/// once. `MONOCO_CHAT_MESSAGES` sets the number of messages.
#[track_caller]
pub fn keep_messages_over_dropped_sockets(sim: &ChatSim, courier: &Courier) {
    let count = knob("MONOCO_CHAT_MESSAGES", 2000);
    // The network must not give an event up: a drop hits all frames that are in flight.
    sim.control("settings", &json!({"max_attempts": 10_000, "max_in_flight": 100}));
    sim.chaos(json!({"drop_socket": {"every": 200}, "duplicate": count}));
    sim.control("say", &json!({"chat": "general", "text": "soak {n}.", "count": count}));
    let deadline = Instant::now() + Duration::from_secs(60 + count / 20);
    while kept_messages(courier) < count {
        assert!(Instant::now() < deadline, "{}: {:#}", kept_messages(courier), sim.get("state"));
        std::thread::sleep(Duration::from_millis(100));
    }
    // What is left is known already.
    sim.chaos(json!({"drop_socket": false}));
    wait_for(|| match sim.get("state")["events_waiting"].as_u64() {
        Some(0) => Ok(()),
        other => Err(format!("{other:?} events are not acknowledged")),
    });
    assert_eq!(kept_messages(courier), count);
    assert_each_once(courier, &["soak"], count);
}

/// Kills couriers with this config while messages arrive, and checks that each is kept once.
/// `MONOCO_ROUNDS` sets the number of couriers.
#[track_caller]
pub fn keep_messages_over_killed_couriers(sim: &ChatSim, home: &Path, config: &str) {
    let rounds = knob("MONOCO_ROUNDS", 4);
    configure(home, config);
    let per_round = 100;
    for round in 0..rounds {
        let mut courier = Courier::start_in(home);
        sim.wait_for_connections(1);
        let text = format!("round {round} number {{n}}.");
        sim.control("say", &json!({"chat": "general", "text": text, "count": per_round}));
        // Each round is killed at another point: before, between and after keep and answer.
        let wanted = round * per_round + per_round * (round % 4) / 4;
        wait_for(|| match kept_messages(&courier) {
            found if found >= wanted => Ok(()),
            found => Err(format!("{wanted}, found {found}")),
        });
        courier.kill();
    }
    let courier = Courier::start_in(home);
    wait_for_kept(&courier, rounds * per_round);
    for round in 0..rounds {
        assert_each_once(&courier, &[&format!("round {round} number")], per_round);
    }
}

/// Reloads a courier ten times, with a config that differs each time, and checks that one connection
/// is left, which receives.
#[track_caller]
pub fn reload_ten_times(sim: &ChatSim, courier: &Courier, tunnel: &str, keys: &[String]) {
    for round in 1..=10 {
        let mut keys = keys.to_vec();
        keys.push(format!("catch_up: {round}h"));
        configure(courier.home(), &chat_config(tunnel, 50, &keys));
        run(courier, &["courier", "reload"]).ok();
        sim.wait_for_connections(1);
    }
    sim.say("general", "still here");
    wait_for_kept(courier, 1);
    sim.wait_for_connections(1);
}

/// A text that needs several messages.
pub fn long_text(paragraphs: usize) -> String {
    let paragraph = |number| format!("Paragraph {number} of a text that needs several parts.\n\n");
    (1..=paragraphs).map(paragraph).collect()
}

/// Checks that each paragraph of [`long_text`] was sent once.
#[track_caller]
pub fn assert_all_paragraphs_once(sent: &[Value], paragraphs: usize) {
    let texts = sent.iter().map(|sent| sent["text"].as_str().unwrap());
    let all = texts.collect::<Vec<_>>().join("\n");
    for number in 1..=paragraphs {
        assert_eq!(all.matches(&format!("Paragraph {number} of")).count(), 1, "{number}");
    }
}
