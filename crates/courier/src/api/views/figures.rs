//! Counters of events.

use std::borrow::Cow;

use monoco_core::figures::{Figure, time_of};
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
}

impl From<Figure> for FigureView {
    fn from(Figure { key, count }: Figure) -> Self {
        let named = |text: String| (!text.is_empty()).then_some(text);
        Self {
            at: time_of(key.minute).rfc3339(),
            kind: key.kind.as_str().into(),
            tunnel: named(key.tunnel),
            worker: named(key.worker),
            count,
        }
    }
}
