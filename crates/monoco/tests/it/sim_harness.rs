//! An emulated network of our own, and bots made of the vendors' SDKs that use it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::common::{Answer, PATIENCE, binary, raw, wait_for, wait_within};
use crate::reference_sdks::python_command;
use crate::tidy::root;

/// A running `monoco sim`. Stopped when it is dropped.
pub struct Sim {
    process: Child,
    /// The line that it prints on start.
    pub info: Value,
    pub address: SocketAddr,
}

impl Sim {
    pub fn start(network: &str) -> Self {
        Self::start_with(network, &[])
    }

    /// One with further options.
    pub fn start_with(network: &str, args: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.args(["sim", network, "--port", "0", "--json"]).args(args).env_clear();
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let info: Value = serde_json::from_str(&line).unwrap();
        let url = info["control_url"].as_str().unwrap();
        let address = url.trim_start_matches("http://").trim_end_matches("/control");
        Self { process, address: address.parse().unwrap(), info }
    }

    pub fn request(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let headers = [
            ("Host".to_owned(), self.address.to_string()),
            ("Content-Type".to_owned(), "application/json".to_owned()),
        ];
        raw(self.address, method, path, &headers, body).unwrap()
    }

    /// Asks for a WebSocket; returns the status of the answer.
    pub fn handshake(&self, path: &str) -> u16 {
        self.socket(path).0
    }

    /// Asks for a WebSocket; returns the status of the answer and the connection.
    pub fn socket(&self, path: &str) -> (u16, TcpStream) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (line.split(' ').nth(1).unwrap().parse().unwrap(), stream)
    }

    /// A request to the control API that must go well.
    #[track_caller]
    pub fn control(&self, name: &str, body: &Value) -> Value {
        self.request("POST", &format!("/control/{name}"), body.to_string().as_bytes()).ok()
    }

    /// Says something in `ops`; returns the id of the message.
    #[track_caller]
    pub fn say(&self, text: &str) -> String {
        let said = self.control("say", &json!({"chat": "ops", "user": "ann", "text": text}));
        said["id"].as_str().unwrap().to_owned()
    }

    pub fn chaos(&self, switches: &Value) {
        self.control("chaos", switches);
    }

    pub fn settings(&self, changes: &Value) {
        self.control("settings", changes);
    }

    pub fn state(&self) -> Value {
        self.request("GET", "/control/state", b"").ok()
    }

    /// Waits until the state is as wanted.
    #[track_caller]
    pub fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(|| {
            let state = self.state();
            if wanted(&state) { Ok(state) } else { Err(format!("{state:#}")) }
        })
    }

    pub fn sent(&self) -> Vec<Value> {
        let answer = self.request("GET", "/control/sent", b"").ok();
        answer["sent"].as_array().unwrap().clone()
    }

    /// Waits until the bot has sent something that is as wanted.
    #[track_caller]
    pub fn until_sent(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(|| {
            let sent = self.sent();
            sent.iter().find(|record| wanted(record)).cloned().ok_or(format!("{sent:#?}"))
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the end of the process; returns its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        wait_for(|| match self.process.try_wait().unwrap() {
            Some(status) => Ok(status.code()),
            None => Err("the emulator runs".to_owned()),
        })
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A bot that runs as a process of its own and prints what it sees as JSON lines.
pub struct SdkBot {
    process: Child,
    lines: Arc<Mutex<Vec<Value>>>,
    errors: Arc<Mutex<String>>,
}

fn script(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sdk_bots").join(name)
}

/// Node.js, with the packages at hand.
pub fn node_command() -> Command {
    let packages = root().join("target/reference-npm");
    let missing = "the reference npm packages are missing; run ./test once";
    assert!(packages.join("node_modules/dingtalk-stream").exists(), "{missing}: {packages:?}");
    let mut command = Command::new("node");
    command.env("REFERENCE_NPM", packages);
    command
}

impl SdkBot {
    /// Starts a script with an SDK and waits until it is connected.
    #[track_caller]
    pub fn start(name: &str, sim: &Sim, args: &[&str]) -> Self {
        let mut command = if name.ends_with(".py") { python_command() } else { node_command() };
        command.arg(script(name)).arg(sim.info.to_string()).args(args);
        command.env("NO_PROXY", "127.0.0.1").env("PYTHONUNBUFFERED", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let lines: Arc<Mutex<Vec<Value>>> = Arc::default();
        let errors: Arc<Mutex<String>> = Arc::default();
        let (seen, stdout) = (Arc::clone(&lines), process.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Ok(value) = serde_json::from_str::<Value>(&line)
                    && value.is_object()
                {
                    seen.lock().unwrap().push(value);
                }
            }
        });
        let (said, stderr) = (Arc::clone(&errors), process.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut said = said.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        let bot = Self { process, lines, errors };
        // Loading aiogram takes 4 s of a processor, and tests share the processors.
        wait_within(4 * PATIENCE, || bot.find(|line| line["saw"] == "ready"));
        bot
    }

    pub fn seen(&self) -> Vec<Value> {
        self.lines.lock().unwrap().clone()
    }

    /// Lines with these values of `saw` and `text`.
    pub fn count(&self, saw: &str, text: &str) -> usize {
        let seen = self.seen();
        seen.iter().filter(|line| line["saw"] == saw && line["text"] == text).count()
    }

    /// Waits for a line that is as wanted.
    #[track_caller]
    pub fn until(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_for(|| self.find(&wanted))
    }

    /// A line that is as wanted, or all that the bot has printed.
    fn find(&self, wanted: impl Fn(&Value) -> bool) -> Result<Value, String> {
        let seen = self.seen();
        let found = seen.iter().find(|line| wanted(line)).cloned();
        found.ok_or_else(|| format!("{seen:#?}\n{}", self.errors.lock().unwrap()))
    }
}

impl Drop for SdkBot {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
