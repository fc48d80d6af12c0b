//! A courier with a chain, letters handed in over HTTP, and how one sees that they are done.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::Result;
use crate::common::drive::{Bounds, drive};
use crate::common::http::Conn;
use crate::common::running::{Running, refused};
use crate::letters::{SIZE, write_letter};

/// Where letters go that name no tunnel. Nobody sends from it.
pub const TUNNEL: &str = "post";

/// Where letters are handed in.
pub const DOOR: &str = "/api/v1/letters";

/// How long the last letter may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often one looks whether it is done.
const GLANCE: Duration = Duration::from_millis(2);

/// Rates that no producer reaches, for one recipient and for all. The limit never holds a
/// letter, and yet has to remember each: what is booked is not over at once.
const PER_RECIPIENT: &str = "10000/h";
pub const FOR_ALL: &str = "10000000/h";

/// A running courier with a chain.
pub struct Office {
    /// The courier.
    pub courier: Running,
    /// A connection to look with.
    conn: Conn,
    /// Letters that were handed in so far.
    pub posted: u64,
}

/// The workers of our own, as every measurement sets them up.
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
            "per_recipient": PER_RECIPIENT, "per_domain": FOR_ALL, "per_tunnel": FOR_ALL,
        },
        "send": {"tunnel": TUNNEL},
    })
}

impl Office {
    /// Opens one with these chains and workers, and with these tunnels.
    pub fn open(below: &Path, pipeline: &Value, tunnels: &[&str]) -> Result<Self> {
        let home = TempDir::new_in(below)?;
        std::fs::create_dir_all(home.path().join("courier"))?;
        let config = json!({"courier": {"pipeline": pipeline}});
        std::fs::write(home.path().join("courier/config.yaml"), config.to_string())?;
        let courier = Running::start(home)?;
        let mut conn = connect(&courier)?;
        for tunnel in tunnels {
            let (status, answer) =
                conn.ask("PUT", &format!("/api/v1/tunnels/{tunnel}"), "", b"{}")?;
            if status != 200 {
                return Err(refused(status, answer));
            }
        }
        Ok(Self { courier, conn, posted: 0 })
    }

    /// Looks over another connection from now on: one that idled too long was closed.
    pub fn connect_again(&mut self) -> Result<()> {
        self.conn = connect(&self.courier)?;
        Ok(())
    }

    /// Letters per second, from the first request until the last letter is done.
    pub fn rate(mut self, producers: usize, [warming, counting]: [Bounds; 2]) -> Result<f64> {
        calm();
        self.hand_in(producers, warming)?;
        let before = self.posted;
        let took = self.hand_in(producers, counting)?;
        self.check_outbox()?;
        Ok((self.posted - before) as f64 / took.as_secs_f64())
    }

    /// Has letters handed in one by one, and waits until they are done. Says how long
    /// that took.
    fn hand_in(&mut self, producers: usize, bounds: Bounds) -> Result<Duration> {
        let (courier, first) = (&self.courier, &OnceLock::new());
        let seen = drive(producers, bounds, |_| {
            let (mut conn, mut body) = (connect(courier)?, Vec::new());
            Ok(move || {
                body.clear();
                write_letter(&mut body, SIZE, None);
                first.get_or_init(Instant::now);
                let (status, answer) = conn.post(DOOR, &body)?;
                if status == 202 { Ok(1) } else { Err(refused(status, answer)) }
            })
        })?;
        self.posted += seen.messages;
        self.until("letters are done", |state| state.count("DONE") == Some(state.posted))?;
        Ok(first.get().ok_or("nothing was handed in")?.elapsed())
    }

    /// Everything that is done waits to be sent: the outbox counts up to a thousand.
    fn check_outbox(&mut self) -> Result<()> {
        let boxes = self.get("/api/v1/boxes?limit=10")?;
        let owner = format!("did:msgtunnel:{TUNNEL}");
        let mut all = boxes["boxes"].as_array().into_iter().flatten();
        let outbox = all.find(|one| one["owner"] == *owner && one["box"] == "TUNNEL_OUTBOX");
        let waiting = outbox.and_then(|one| one["waiting"].as_u64());
        if waiting == Some(self.posted.min(1_000)) {
            return Ok(());
        }
        Err(format!("{} letters are done, and in the outbox wait {waiting:?}", self.posted).into())
    }

    /// Looks until it is so. A letter that ended otherwise ends the measurement.
    pub fn until(&mut self, what: &str, so: impl Fn(&State) -> bool) -> Result<()> {
        let started = Instant::now();
        loop {
            let state = State { all: self.get("/api/v1/pipeline")?, posted: self.posted };
            if so(&state) {
                return Ok(());
            }
            if ["TRASHED", "DEAD", "MERGED"].iter().any(|ended| state.count(ended) != Some(0)) {
                return Err(format!("letters went astray: {}", state.all["states"]).into());
            }
            if started.elapsed() > PATIENCE {
                let states = &state.all["states"];
                return Err(format!("{what}: not after {PATIENCE:?}: {states}").into());
            }
            std::thread::sleep(GLANCE);
        }
    }

    /// Reads something.
    pub fn get(&mut self, path: &str) -> Result<Value> {
        let (status, answer) = self.conn.ask("GET", path, "", b"")?;
        if status == 200 {
            Ok(serde_json::from_slice(answer)?)
        } else {
            Err(refused(status, answer))
        }
    }

    /// How long one letter takes that goes through `tunnel`, from the request until it is
    /// done.
    pub fn one_letter(&mut self, tunnel: &str) -> Result<Duration> {
        let mut body = Vec::new();
        write_letter(&mut body, SIZE, Some(tunnel));
        let started = Instant::now();
        let (status, answer) = self.conn.post(DOOR, &body)?;
        if status != 202 {
            return Err(refused(status, answer));
        }
        let answer: Value = serde_json::from_slice(answer)?;
        let path = format!("{DOOR}/{}", answer["id"].as_str().ok_or("a letter without an id")?);
        while self.get(&path)?["state"] != "DONE" {
            if started.elapsed() > PATIENCE {
                return Err(format!("a letter is not done after {PATIENCE:?}").into());
            }
        }
        Ok(started.elapsed())
    }
}

/// Brings to the disk what the one measured before has left, so that the next one's syncs
/// do not wait for it.
pub fn calm() {
    rustix::fs::sync();
}

fn connect(courier: &Running) -> Result<Conn> {
    Conn::open(courier.addr, &courier.token, "application/json")
}

/// What the post office says of itself.
pub struct State {
    /// All of it.
    pub all: Value,
    /// Letters that were handed in.
    pub posted: u64,
}

impl State {
    /// How many letters stand so.
    pub fn count(&self, state: &str) -> Option<u64> {
        self.all["states"][state].as_u64()
    }
}
