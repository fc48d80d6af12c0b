//! A courier with a chain: submits letters over HTTP and polls until they are done.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::{RunningCourier, unexpected_response};
use crate::common::drive::{Bounds, drive};
use crate::common::http::Conn;
use crate::letters::{SIZE, write_letter};

/// Default tunnel of the letters. It has no sender, so letters stay in its outbox.
pub const TUNNEL: &str = "post";

pub const SUBMIT_PATH: &str = "/api/v1/letters";

/// Maximum time until the last letter is done.
const TIMEOUT: Duration = Duration::from_secs(120);

const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Rates that no producer reaches. The limit never holds a letter, but still has to store a
/// reservation for each.
const HIGH_RATE_PER_RECIPIENT: &str = "10000/h";
pub const HIGH_RATE: &str = "10000000/h";

/// A running courier with a pipeline.
pub struct PipelineCourier {
    pub courier: RunningCourier,
    conn: Conn,
    /// Number of submitted letters.
    pub submitted: u64,
}

/// The built-in workers, with the same settings in every measurement.
pub fn workers() -> Value {
    json!({
        "spam": {"rules": [
            {"name": "casino", "subject": "(?i)casino", "score": 5},
            {"name": "lottery", "text": "(?i)you have won", "score": 5},
            {"name": "bulk", "header": "Precedence: bulk", "score": 1},
        ]},
        "subject": {"template": "[Team] {subject}"},
        "footer": {"text": "Sent by Monoco"},
        "limit": {
            "per_recipient": HIGH_RATE_PER_RECIPIENT, "per_domain": HIGH_RATE, "per_tunnel": HIGH_RATE,
        },
        "send": {"tunnel": TUNNEL},
    })
}

impl PipelineCourier {
    /// Starts a courier with this pipeline and these tunnels.
    pub fn open(below: &Path, pipeline: &Value, tunnels: &[&str]) -> Result<Self> {
        let home = TempDir::new_in(below)?;
        std::fs::create_dir_all(home.path().join("courier"))?;
        let config = json!({"courier": {"pipeline": pipeline}});
        std::fs::write(home.path().join("courier/config.yaml"), config.to_string())?;
        let courier = RunningCourier::start(home)?;
        let mut conn = connect(&courier)?;
        for tunnel in tunnels {
            let (status, answer) =
                conn.request("PUT", &format!("/api/v1/tunnels/{tunnel}"), "", b"{}")?;
            if status != 200 {
                return Err(unexpected_response(status, answer));
            }
        }
        Ok(Self { courier, conn, submitted: 0 })
    }

    /// Opens a new polling connection: the courier closes idle ones.
    pub fn connect_again(&mut self) -> Result<()> {
        self.conn = connect(&self.courier)?;
        Ok(())
    }

    /// Letters per second, from the first request until the last letter is done.
    pub fn rate(mut self, producers: usize, [warming, counting]: [Bounds; 2]) -> Result<f64> {
        sync_disks();
        self.submit_and_wait(producers, warming)?;
        let before = self.submitted;
        let took = self.submit_and_wait(producers, counting)?;
        self.check_outbox()?;
        Ok((self.submitted - before) as f64 / took.as_secs_f64())
    }

    /// Submits letters one by one and waits until they are done. Returns the elapsed time.
    fn submit_and_wait(&mut self, producers: usize, bounds: Bounds) -> Result<Duration> {
        let (courier, first) = (&self.courier, &OnceLock::new());
        let measured = drive(producers, bounds, |_| {
            let (mut conn, mut body) = (connect(courier)?, Vec::new());
            Ok(move || {
                body.clear();
                write_letter(&mut body, SIZE, None);
                first.get_or_init(Instant::now);
                let (status, answer) = conn.post(SUBMIT_PATH, &body)?;
                if status == 202 { Ok(1) } else { Err(unexpected_response(status, answer)) }
            })
        })?;
        self.submitted += measured.messages;
        self.until("letters are done", |state| state.count("DONE") == Some(state.submitted))?;
        Ok(first.get().ok_or("no letter was submitted")?.elapsed())
    }

    /// Checks that all done letters are in the outbox, which counts up to 1,000.
    fn check_outbox(&mut self) -> Result<()> {
        let boxes = self.get("/api/v1/boxes?limit=10")?;
        let owner = format!("did:msgtunnel:{TUNNEL}");
        let mut all = boxes["boxes"].as_array().into_iter().flatten();
        let outbox = all.find(|one| one["owner"] == *owner && one["box"] == "TUNNEL_OUTBOX");
        let waiting = outbox.and_then(|one| one["waiting"].as_u64());
        if waiting == Some(self.submitted.min(1_000)) {
            return Ok(());
        }
        Err(format!("{} letters are done, but {waiting:?} are in the outbox", self.submitted)
            .into())
    }

    /// Polls until `so` is true. Fails when a letter is trashed, dead or merged.
    pub fn until(&mut self, what: &str, so: impl Fn(&State) -> bool) -> Result<()> {
        let started = Instant::now();
        loop {
            let state = State { all: self.get("/api/v1/pipeline")?, submitted: self.submitted };
            if so(&state) {
                return Ok(());
            }
            if ["TRASHED", "DEAD", "MERGED"].iter().any(|ended| state.count(ended) != Some(0)) {
                return Err(
                    format!("letters did not pass the chain: {}", state.all["states"]).into()
                );
            }
            if started.elapsed() > TIMEOUT {
                let states = &state.all["states"];
                return Err(format!("{what}: not after {TIMEOUT:?}: {states}").into());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    pub fn get(&mut self, path: &str) -> Result<Value> {
        let (status, answer) = self.conn.request("GET", path, "", b"")?;
        if status == 200 {
            Ok(serde_json::from_slice(answer)?)
        } else {
            Err(unexpected_response(status, answer))
        }
    }

    /// Submits one letter through `tunnel`. Returns the time until it is done.
    pub fn one_letter(&mut self, tunnel: &str) -> Result<Duration> {
        let mut body = Vec::new();
        write_letter(&mut body, SIZE, Some(tunnel));
        let started = Instant::now();
        let (status, answer) = self.conn.post(SUBMIT_PATH, &body)?;
        if status != 202 {
            return Err(unexpected_response(status, answer));
        }
        let answer: Value = serde_json::from_slice(answer)?;
        let path =
            format!("{SUBMIT_PATH}/{}", answer["id"].as_str().ok_or("no id in the response")?);
        while self.get(&path)?["state"] != "DONE" {
            if started.elapsed() > TIMEOUT {
                return Err(format!("a letter is not done after {TIMEOUT:?}").into());
            }
        }
        Ok(started.elapsed())
    }
}

/// Syncs all disks, so that writes of the previous measurement do not slow down the next
/// one.
pub fn sync_disks() {
    rustix::fs::sync();
}

fn connect(courier: &RunningCourier) -> Result<Conn> {
    Conn::open(courier.addr, &courier.token, "application/json")
}

/// Response of `GET /api/v1/pipeline`.
pub struct State {
    pub all: Value,
    pub submitted: u64,
}

impl State {
    pub fn count(&self, state: &str) -> Option<u64> {
        self.all["states"][state].as_u64()
    }
}
