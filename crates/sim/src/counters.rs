//! Counts and latencies that the control API shows.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};

/// Newest acknowledgement times kept for the percentiles.
const MAX_LATENCIES: usize = 100_000;

/// Names of methods and errors counted separately; further names are counted as `other`.
const MAX_NAMES: usize = 200;

/// Counts since the start of the emulator or the last reset.
#[derive(Debug, Default, Serialize)]
pub struct SimCounters {
    /// Calls by method, including rejected ones.
    pub requests: BTreeMap<String, u64>,
    /// Rejected calls by error code.
    pub errors: BTreeMap<String, u64>,
    pub sockets_opened: u64,
    pub sockets_rejected: u64,
    /// Most sockets that were open at one time, per app.
    pub max_open_sockets: usize,
    /// Events that people caused.
    pub events: u64,
    /// Event frames sent, including repeated ones.
    pub frames_sent: u64,
    pub acks: u64,
    /// Acknowledgements of unknown or expired frames.
    pub unknown_acks: u64,
    /// Events sent again because they were not acknowledged.
    pub redelivered: u64,
    /// Events lost because no connection was open.
    pub lost: u64,
    /// Events given up after the last attempt.
    pub given_up: u64,
    pub pings_received: u64,
    pub pongs_received: u64,
    pub tickets_issued: u64,
    pub tokens_issued: u64,
    /// HTTP callbacks by their result: `ok`, or the reason of the retry.
    pub pushes: BTreeMap<String, u64>,
    #[serde(skip)]
    latencies_us: VecDeque<u64>,
}

impl SimCounters {
    pub fn count(names: &mut BTreeMap<String, u64>, name: &str) {
        let is_known = names.contains_key(name) || names.len() < MAX_NAMES;
        *names.entry(if is_known { name } else { "other" }.to_owned()).or_default() += 1;
    }

    pub fn record_latency(&mut self, us: u64) {
        self.latencies_us.push_back(us);
        if self.latencies_us.len() > MAX_LATENCIES {
            self.latencies_us.pop_front();
        }
    }

    /// Percentiles of the time from frame to acknowledgement, in milliseconds.
    pub fn latency(&self) -> Value {
        let mut sorted: Vec<_> = self.latencies_us.iter().copied().collect();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let index = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
            sorted.get(index).map(|us| *us as f64 / 1000.0)
        };
        json!({"count": sorted.len(), "p50": at(50), "p90": at(90), "p99": at(99), "max": at(100)})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_shows_percentiles_in_milliseconds() {
        let mut counters = SimCounters::default();
        assert_eq!(counters.latency()["p99"], Value::Null);
        for us in (1..=100).rev() {
            counters.record_latency(us * 1000);
        }
        let latency = counters.latency();
        assert_eq!((&latency["p50"], &latency["max"]), (&json!(51.0), &json!(100.0)));
    }

    #[test]
    fn number_of_counted_names_is_limited() {
        let mut names = BTreeMap::new();
        for number in 0..1000 {
            SimCounters::count(&mut names, &number.to_string());
        }
        assert_eq!(names.len(), MAX_NAMES + 1);
        assert_eq!(names["other"], 1000 - MAX_NAMES as u64);
    }
}
