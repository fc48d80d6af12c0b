//! Figures: how many events of a kind happened in a minute, by tunnel or by worker.
//!
//! They are counted from the event log, so that the path of a message is not delayed by them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::event::{Event, EventKind};
use crate::time::Timestamp;

/// How long figures are kept.
pub const FIGURES_KEPT: Duration = Duration::from_secs(8 * 24 * 3600);

/// Most points of one plot: longer periods have longer intervals.
const MAX_POINTS: u64 = 360;

const MINUTE_MS: i64 = 60_000;

/// What one counter counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FigureKey {
    /// Minutes since the start of 1970.
    pub minute: i64,
    pub kind: EventKind,
    /// Id of the tunnel; empty when the event has none.
    pub tunnel: String,
    /// Name of the worker that returned a verdict; empty for other events.
    pub worker: String,
}

/// One counter with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    pub key: FigureKey,
    pub count: i64,
}

/// How long the oldest item of a tunnel or of a worker had been waiting in a minute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingAge {
    /// Minutes since the start of 1970.
    pub minute: i64,
    /// Id of the tunnel whose deliveries wait; empty for a worker.
    pub tunnel: String,
    /// Name of the external worker that letters wait for; empty for a tunnel.
    pub worker: String,
    pub oldest_ms: i64,
}

/// The minute of a time.
pub fn minute_of(at: Timestamp) -> i64 {
    at.ms().div_euclid(MINUTE_MS)
}

/// The start of a minute.
pub fn time_of(minute: i64) -> Timestamp {
    Timestamp::from_ms(minute.saturating_mul(MINUTE_MS))
}

/// Length of the intervals of a period, in minutes.
pub fn step_minutes(period: Duration) -> i64 {
    let minutes = period.as_secs() / 60;
    i64::try_from(minutes.div_ceil(MAX_POINTS)).unwrap_or(i64::MAX).max(1)
}

/// Counts events. Only kinds that the health view shows are counted.
pub fn count_events(events: &[Event]) -> Vec<Figure> {
    let mut counts = BTreeMap::new();
    for event in events {
        let minute = minute_of(event.at);
        let key = |worker: &str| FigureKey {
            minute,
            kind: event.kind,
            tunnel: tunnel_of(event),
            worker: worker.to_owned(),
        };
        match event.kind {
            EventKind::Received
            | EventKind::Merged
            | EventKind::Claimed
            | EventKind::Completed
            | EventKind::Sent
            | EventKind::Failed
            | EventKind::Dead
            | EventKind::Uncertain => *counts.entry(key("")).or_insert(0) += 1,
            EventKind::Verdict => {
                let verdicts = event.detail["verdicts"].as_array();
                for worker in verdicts.into_iter().flatten() {
                    if let Some(worker) = worker["worker"].as_str() {
                        *counts.entry(key(worker)).or_insert(0) += 1;
                    }
                }
            }
            _ => {}
        }
    }
    counts.into_iter().map(|(key, count)| Figure { key, count }).collect()
}

/// The tunnel that the detail names, or that owns the record.
fn tunnel_of(event: &Event) -> String {
    let named = event.detail.get("tunnel").and_then(Value::as_str);
    let owner = event.owner.as_ref().and_then(|did| did.as_str().strip_prefix("did:msgtunnel:"));
    // The DID of an account behind a tunnel has dots, that of a tunnel has none.
    let owner = owner.filter(|rest| !rest.contains('.'));
    named.or(owner).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(kind: EventKind, at_ms: i64, owner: Option<&str>, detail: Value) -> Event {
        Event {
            seq: 1,
            at: Timestamp::from_ms(at_ms),
            kind,
            msg_id: None,
            record_id: None,
            owner: owner.map(|did| did.parse().unwrap()),
            detail,
        }
    }

    #[test]
    fn events_are_counted_by_minute_kind_tunnel_and_worker() {
        let ann = Some("did:msgtunnel:ann.user.ci");
        let verdicts = json!({"verdicts": [{"worker": "block"}, {"worker": "spam"}]});
        let events = [
            event(EventKind::Received, 59_999, ann, json!({"tunnel": "ci"})),
            event(EventKind::Received, 60_000, ann, json!({"tunnel": "ci"})),
            event(EventKind::Received, 60_001, ann, json!({"tunnel": "ci"})),
            event(EventKind::Sent, 60_000, Some("did:msgtunnel:news"), json!({})),
            event(EventKind::Claimed, 60_000, ann, json!({})),
            event(EventKind::Verdict, 60_000, None, verdicts),
            event(EventKind::Changed, 60_000, None, json!({"tunnel": "ci"})),
        ];
        let counted: Vec<_> = count_events(&events)
            .into_iter()
            .map(|Figure { key, count }| {
                (key.minute, key.kind.as_str(), key.tunnel, key.worker, count)
            })
            .collect();
        let row = |minute, kind, tunnel: &str, worker: &str, count| {
            (minute, kind, tunnel.to_owned(), worker.to_owned(), count)
        };
        assert_eq!(
            counted,
            [
                row(0, "received", "ci", "", 1),
                row(1, "received", "ci", "", 2),
                row(1, "claimed", "", "", 1),
                row(1, "sent", "news", "", 1),
                row(1, "verdict", "", "block", 1),
                row(1, "verdict", "", "spam", 1),
            ]
        );
    }

    #[test]
    fn long_periods_have_long_intervals() {
        for (hours, step) in [(0, 1), (1, 1), (6, 1), (24, 4), (7 * 24, 28)] {
            assert_eq!(step_minutes(Duration::from_secs(hours * 3600)), step, "{hours} h");
        }
    }
}
