//! Monoco over HTTP: the built courier.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::{RunningCourier, between, unexpected_response};
use crate::common::drive::median;
use crate::common::http::Conn;
use crate::common::resources::{self, IdleCost};
use crate::contender::{Call, Peer};
use crate::payload::Payload;

pub const NAME: &str = "monoco, HTTP";
pub const BATCHES: &str = "monoco, HTTP ×100";

/// Messages per request while the store is filled.
const FILL_BATCH: u64 = 1_000;

pub struct Courier {
    pub below: PathBuf,
    /// Messages that one request dispatches.
    pub batch: usize,
}

impl Peer for Courier {
    type Queue = RunningCourier;

    fn version(&self) -> String {
        format!("its courier, {} per request", self.batch)
    }

    fn start(&self) -> Result<RunningCourier> {
        RunningCourier::start(TempDir::new_in(&self.below)?)
    }

    fn fill(&self, courier: RunningCourier, messages: u64) -> Result<RunningCourier> {
        fill(&courier, messages)?;
        Ok(courier)
    }

    fn producer<'q>(&'q self, courier: &'q RunningCourier, number: usize) -> Result<Call<'q>> {
        let (mut payload, mut body, batch) = (Payload::new(), Vec::new(), self.batch);
        let kind = if batch == 1 { "application/json" } else { "application/x-ndjson" };
        let mut conn = Conn::open(courier.addr, &courier.token, kind)?;
        Ok(Box::new(move || {
            write_batch(&mut body, &mut payload, number, batch as u64);
            let (status, answer) = conn.post("/api/v1/dispatch", &body)?;
            let accepted = count(answer, br#""duplicate":false"#);
            if status != 200 || accepted != batch {
                return Err(unexpected_response(status, answer));
            }
            Ok(batch as u64)
        }))
    }

    fn taker<'q>(&'q self, courier: &'q RunningCourier, _: usize) -> Result<Call<'q>> {
        let mut conn = Conn::open(courier.addr, &courier.token, "application/json")?;
        Ok(Box::new(move || {
            let (status, answer) = conn.post("/api/v1/boxes/did:monoco:me/INBOX/next", b"{}")?;
            if status != 200 {
                return Err(unexpected_response(status, answer));
            }
            let record = between(answer, r#""record_id":""#, "\"").ok_or("no record")?;
            let epoch = between(answer, r#""epoch":"#, ",").ok_or("no epoch")?;
            let path = format!("/api/v1/records/{record}/state");
            let body = format!(r#"{{"state":"READED","epoch":{epoch}}}"#);
            let (status, answer) = conn.post(&path, body.as_bytes())?;
            if status == 200 { Ok(1) } else { Err(unexpected_response(status, answer)) }
        }))
    }

    fn has_takers(&self) -> bool {
        self.batch == 1
    }

    fn idle_cost(&self, watch: Duration) -> Result<Option<IdleCost>> {
        if self.batch > 1 {
            return Ok(None);
        }
        let courier = self.start()?;
        IdleCost::watch(courier.pid(), watch, &mut courier.command(&["center", "list"])).map(Some)
    }
}

/// Measures the start of the courier with an empty store and with `records` records. Returns
/// a sentence for the report.
pub fn starts(below: &Path, records: u64, repeats: usize) -> Result<String> {
    let mut times = Vec::new();
    for _ in 0..repeats {
        let started = Instant::now();
        let courier = RunningCourier::start(TempDir::new_in(below)?)?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        drop(courier);
    }
    let empty = median(times).unwrap_or_default();

    eprintln!("filling a store with {records} records");
    let courier = RunningCourier::start(TempDir::new_in(below)?)?;
    fill(&courier, records)?;
    let mut data = courier.stop()?;
    let mut times = Vec::new();
    let mut resident = 0;
    for _ in 0..repeats {
        let started = Instant::now();
        let courier = RunningCourier::start(data)?;
        times.push(started.elapsed().as_secs_f64() * 1000.0);
        resident = resources::resident_bytes(courier.pid())?;
        data = courier.stop()?;
    }
    let full = median(times).unwrap_or_default();
    Ok(format!(
        "From the start of the process to its first answer: {empty:.0} ms on an empty store, \
         {full:.0} ms on one with {records} records ({} MiB resident).\n",
        resident / (1024 * 1024)
    ))
}

fn fill(courier: &RunningCourier, messages: u64) -> Result<()> {
    let (mut payload, mut body) = (Payload::new(), Vec::new());
    let mut conn = Conn::open(courier.addr, &courier.token, "application/x-ndjson")?;
    let mut left = messages;
    while left > 0 {
        let count = left.min(FILL_BATCH);
        write_batch(&mut body, &mut payload, 0, count);
        let (status, answer) = conn.post("/api/v1/dispatch", &body)?;
        if status != 200 {
            return Err(unexpected_response(status, answer));
        }
        left -= count;
    }
    Ok(())
}

fn write_batch(body: &mut Vec<u8>, payload: &mut Payload, producer: usize, count: u64) {
    body.clear();
    for _ in 0..count {
        body.extend_from_slice(br#"{"msg":{"from":"did:web:producer-"#);
        body.extend_from_slice(producer.to_string().as_bytes());
        body.extend_from_slice(br#"","to":["did:monoco:me"],"kind":"chat","content":{"content":""#);
        body.extend_from_slice(payload.next());
        body.extend_from_slice(b"\"}}}\n");
    }
}

fn count(text: &[u8], part: &[u8]) -> usize {
    text.windows(part.len()).filter(|window| *window == part).count()
}
