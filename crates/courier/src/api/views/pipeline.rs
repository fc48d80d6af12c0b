//! The pipeline: its chains, workers and queue, and the result of a replay.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use super::letters::VerdictView;
use crate::pipeline::metrics::WorkerCounts;
use crate::pipeline::replay::ReplayOutcome;

/// Chains, workers and queue of the pipeline.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Pipeline))]
pub struct PipelineView {
    pub queue: QueueView,
    pub chains: ChainsView,
    /// All workers by name
    pub workers: BTreeMap<String, WorkerView>,
    /// Number of letters in each state
    pub states: BTreeMap<Cow<'static, str>, i64>,
    /// Letters that wait for the dispatcher, without those that a worker holds
    pub waiting: i64,
    /// When the oldest letter that waits for the dispatcher became due
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_due_at: Option<String>,
}

/// The queue that wakes the dispatcher.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Queue))]
pub struct QueueView {
    /// Either `store` or `beanstalkd`
    pub kind: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether a connection can be opened
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    /// Why not; meanwhile the dispatcher polls the store
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The workers of each chain, in order.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Chains))]
pub struct ChainsView {
    pub inbound: Vec<String>,
    pub outbound: Vec<String>,
    /// Chains of single tunnels
    pub tunnels: BTreeMap<String, TunnelChainsView>,
}

/// The chains of one tunnel. Where one is missing, the general chain applies.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = TunnelChains))]
pub struct TunnelChainsView {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inbound: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outbound: Option<Vec<String>>,
}

/// One worker with its counters since the courier started.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Worker))]
pub struct WorkerView {
    /// `block`, `spam`, `rspamd`, `subject`, `footer`, `merge`, `limit`, `trash`, `send`,
    /// `deliver`, `exec`, `http` or `beanstalkd`
    pub kind: Cow<'static, str>,
    /// Letters that the worker was given, counting each attempt
    pub r#in: u64,
    pub pass: u64,
    pub skip: u64,
    pub trash: u64,
    /// Failed attempts and invalid answers
    pub errors: u64,
    /// Answers that arrived late, again, or without the nonce of the current attempt
    pub rejected: u64,
    /// Total processing time in seconds
    pub seconds: f64,
    /// Why the worker is down, while it is
    #[serde(skip_serializing_if = "Option::is_none")]
    pub down: Option<String>,
    /// Letters that wait for the worker or are being processed by it
    pub waiting: i64,
    /// Letters that an external worker is processing
    pub away: i64,
    /// Letters that the worker holds for a while
    pub held: i64,
}

/// What the current chains would do with letters.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Replay))]
pub struct ReplayView {
    /// Number of letters that were evaluated, oldest first
    pub evaluated: usize,
    /// Letters with a different outcome
    pub differ: Vec<ReplayDifferenceView>,
    /// End of the period; send it with the cursor to get the next page
    pub until: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// A letter with a different outcome.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = ReplayDifference))]
pub struct ReplayDifferenceView {
    pub id: String,
    pub direction: Cow<'static, str>,
    pub was: ReplayOutcomeView,
    pub would: ReplayOutcomeView,
    /// Whether the letter passes its chain again now, as it was accepted
    pub moved: bool,
}

/// The outcome of a letter.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = ReplayOutcome))]
pub struct ReplayOutcomeView {
    /// WAITING, AWAY, DONE, MERGED, TRASHED or DEAD. AWAY: an external worker would be asked
    pub state: Cow<'static, str>,
    pub verdicts: Vec<VerdictView>,
    /// The worker that has the letter or would be asked
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_worker: Option<String>,
}

impl WorkerView {
    /// The counters of a worker of this kind. The letters at the worker are not counted yet.
    pub fn new(kind: &'static str, counts: WorkerCounts) -> Self {
        let WorkerCounts { taken, pass, skip, trash, errors, rejected, seconds, down } = counts;
        Self {
            kind: kind.into(),
            r#in: taken,
            pass,
            skip,
            trash,
            errors,
            rejected,
            seconds,
            down,
            waiting: 0,
            away: 0,
            held: 0,
        }
    }
}

impl From<ReplayOutcome> for ReplayOutcomeView {
    fn from(outcome: ReplayOutcome) -> Self {
        Self {
            state: outcome.state.as_str().into(),
            verdicts: outcome.verdicts.iter().map(VerdictView::with_note).collect(),
            at_worker: outcome.at_worker.map(|worker| worker.to_string()),
        }
    }
}
