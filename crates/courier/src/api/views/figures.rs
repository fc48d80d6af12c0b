//! Counters of events.

use std::borrow::Cow;

use monoco_core::figures::{Figure, WaitingAge, time_of};
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

/// How many events happened in one interval.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Figure))]
pub struct FigureView {
    /// Start of the interval
    pub at: String,
    /// Kind of the events
    pub kind: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// The worker that returned the verdicts
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    pub count: i64,
}

/// How long the oldest delivery of a tunnel, or the oldest letter of an external worker, had been
/// waiting.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = WaitingAge))]
pub struct WaitingAgeView {
    /// Start of the interval
    pub at: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// The longest time in the interval
    pub oldest_ms: i64,
}

/// Counters of a period, oldest first. Intervals without events are left out.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct FigureList {
    /// Start of the first interval
    pub since: String,
    /// Time of the response
    pub until: String,
    /// Length of an interval
    pub step_minutes: i64,
    pub figures: Vec<FigureView>,
    /// Waiting times, sampled once a minute while something waits
    #[serde(default)]
    pub waiting: Vec<WaitingAgeView>,
}

/// `None` for an empty name.
fn named(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl From<WaitingAge> for WaitingAgeView {
    fn from(WaitingAge { minute, tunnel, worker, oldest_ms }: WaitingAge) -> Self {
        let at = time_of(minute).rfc3339();
        Self { at, tunnel: named(tunnel), worker: named(worker), oldest_ms }
    }
}

impl From<Figure> for FigureView {
    fn from(Figure { key, count }: Figure) -> Self {
        Self {
            at: time_of(key.minute).rfc3339(),
            kind: key.kind.as_str().into(),
            tunnel: named(key.tunnel),
            worker: named(key.worker),
            count,
        }
    }
}
