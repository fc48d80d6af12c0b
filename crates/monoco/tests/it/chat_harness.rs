//! An emulated chat network beside a courier: says something in a chat, looks at what was kept and
//! at what the bot sent.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Courier, Ran, binary, cli, raw, wait_for};

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
