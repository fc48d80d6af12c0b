//! An emulated network: `monoco sim` as a process, and requests to its control API.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::Result;
use crate::common::courier::{program, unexpected_response};
use crate::common::http::Conn;

/// Maximum time of one measurement.
pub const MEASURE_TIMEOUT: Duration = Duration::from_secs(600);

/// How often the state of the emulator is read.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A chat network of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    Slack,
    DingTalk,
    Lark,
    Telegram,
}

impl Network {
    pub const ALL: [Self; 4] = [Self::DingTalk, Self::Slack, Self::Lark, Self::Telegram];

    /// Keys of a tunnel: the address, and credentials.
    pub const fn tunnel_keys(self) -> &'static [&'static str] {
        match self {
            Self::Slack => &["base_url", "app_token", "bot_token"],
            Self::DingTalk => &["base_url", "oapi_url", "app_key", "app_secret"],
            Self::Lark => &["base_url", "app_id", "app_secret"],
            Self::Telegram => &["base_url", "token"],
        }
    }

    /// The name of the provider and of the emulator.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slack => "slack",
            Self::DingTalk => "dingtalk",
            Self::Lark => "lark",
            Self::Telegram => "telegram",
        }
    }
}

/// A running emulator. It is stopped on drop.
pub struct Emulator {
    child: Child,
    pub network: Network,
    /// Address, and credentials by app.
    pub info: Value,
    addr: SocketAddr,
}

impl Emulator {
    /// Starts an emulator with `apps` apps on a free port.
    pub fn start(network: Network, apps: usize) -> Result<Self> {
        let mut child = Command::new(program())
            .args(["sim", network.name(), "--json", "--port", "0", "--apps", &apps.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut emulator = Self { child, network, info: Value::Null, addr: nowhere };
        emulator.info =
            serde_json::from_str(&line).map_err(|_| format!("no emulator: {line:?}"))?;
        let control = emulator.info["control_url"].as_str().unwrap_or_default();
        let host = control.trim_start_matches("http://").split('/').next().unwrap_or_default();
        emulator.addr = host.parse()?;
        // lark-oapi answers a burst of 1,000 frames after more than the 3 s of Lark, and would get
        // the same frames again without end. The time is the same for courier and SDK.
        emulator.post("settings", &json!({"max_events": 1_000_000, "ack_timeout_ms": 60_000}))?;
        Ok(emulator)
    }

    /// The credentials of one app, and the addresses of the network.
    pub fn credential(&self, app: usize, key: &str) -> &str {
        let value = &self.info["apps"][app][key];
        value.as_str().or_else(|| self.info[key].as_str()).unwrap_or_default()
    }

    /// Sends a request to the control API.
    pub fn post(&self, name: &str, body: &Value) -> Result<Value> {
        let mut conn = Conn::plain(self.addr, "application/json")?;
        let body = body.to_string();
        let (status, answer) = conn.post(&format!("/control/{name}"), body.as_bytes())?;
        match status {
            200 => Ok(serde_json::from_slice(answer)?),
            _ => Err(unexpected_response(status, answer)),
        }
    }

    pub fn state(&self) -> Result<Value> {
        let mut conn = Conn::plain(self.addr, "application/json")?;
        let (status, answer) = conn.request("GET", "/control/state", "", b"")?;
        match status {
            200 => Ok(serde_json::from_slice(answer)?),
            _ => Err(unexpected_response(status, answer)),
        }
    }

    /// Waits until the state fits, and returns it.
    pub fn wait_for(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
        let started = Instant::now();
        loop {
            let state = self.state()?;
            if fits(&state) {
                return Ok(state);
            }
            if started.elapsed() > MEASURE_TIMEOUT {
                return Err(format!("{what}: not within {MEASURE_TIMEOUT:?}: {state}").into());
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Waits until this number of connections is open, or of calls that wait for updates.
    pub fn wait_for_connections(&self, count: usize) -> Result<()> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let is_polling = |bot: &&Value| bot["polls"].as_u64().unwrap_or(0) > 0;
        let open = |state: &Value| {
            let polling = list(&state["network"]["bots"]).iter().filter(is_polling).count();
            list(&state["connections"]).len() + polling >= count
        };
        self.wait_for("connections", open).map(drop)
    }

    /// Waits until this number of frames is acknowledged.
    pub fn wait_for_acks(&self, count: u64) -> Result<Value> {
        let acks = |state: &Value| state["counters"]["acks"].as_u64().unwrap_or(0);
        self.wait_for("acknowledgements", |state| acks(state) >= count)
    }

    /// Makes people say `count` messages; all at once, or at a rate.
    pub fn say(&self, count: u64, rate: Option<u64>) -> Result<()> {
        let mut request = json!({
            "chat": "ops", "user": "ann", "text": "message {n} of the benchmark",
            "mention": true, "count": count,
        });
        if let Some(rate) = rate {
            request["rate"] = json!(rate);
        }
        self.post("say", &request).map(drop)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
