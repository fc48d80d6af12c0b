//! How the courier is, for people and for Prometheus.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use monoco_core::delivery::SendState;
use monoco_core::letter::LetterState;
use monoco_core::record::{BoxKind, ReadState};
use monoco_core::time::Timestamp;
use monoco_core::tunnel_health::TunnelStatus;
use monoco_store::{LetterCounts, StoreCounts, StoreHealth};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{ApiError, ApiErrorView};
use super::{Api, SharedApi};
use crate::courier::tunnels::TunnelRegistry;
use crate::pipeline::dispatcher::LetterDispatcher;

/// How long a letter may be due without anybody looking at it, in milliseconds.
const DUE: i64 = 60_000;

/// How the courier is.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthView {
    /// `ok`, `degraded` (it can't write now, or letters do not go on) or `failed` (restart it)
    status: &'static str,
    version: &'static str,
    adapters: BTreeMap<String, AdapterHealth>,
    metrics: HealthCounts,
    storage: StorageHealth,
    mailbox: MailboxHealth,
    post_office: PipelineHealth,
    /// Age of the oldest delivery that is not yet sent
    oldest_waiting_delivery_ms: Option<i64>,
    /// Age of the oldest Mail that nobody has claimed
    oldest_unclaimed_mail_ms: Option<i64>,
    /// How far the machine's clock is from the courier's, which does not jump
    clock_drift_ms: i64,
}

/// How a tunnel is.
#[derive(Debug, Serialize, ToSchema)]
pub struct AdapterHealth {
    /// `hearing`: something came lately; `quiet`: nothing did; `deaf`: what comes can't
    /// be understood or kept; `down`: it does not listen
    status: &'static str,
    /// How it hears: `push` (webhooks) or `memory`
    mode: &'static str,
    provider: String,
    /// When something authentic last came, a repetition too
    #[serde(skip_serializing_if = "Option::is_none")]
    last_frame_at: Option<String>,
    /// When a message was last kept
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message_at: Option<String>,
    /// When a message was last delivered
    #[serde(skip_serializing_if = "Option::is_none")]
    last_sent_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// Messages kept since the courier started
    heard: u64,
    /// Messages delivered since the courier started
    sent: u64,
}

/// How the files are.
#[derive(Debug, Serialize, ToSchema)]
pub struct MailboxHealth {
    /// Messages kept that wait to become part of a Mail
    waiting_messages: i64,
    /// Files in the mailbox that are not ours
    foreign_files: usize,
    /// Some of them
    foreign: Vec<String>,
    /// Files that were missing or changed, and were written again, since the start
    repaired: usize,
    /// Some Mails that can't be written, and why
    unwritten: Vec<String>,
    /// What the file system last said, while it says no
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// How letters get on.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct PipelineHealth {
    /// `ok` or `degraded`
    status: &'static str,
    /// What is wrong, in words
    #[serde(skip_serializing_if = "Vec::is_empty")]
    problems: Vec<String>,
    /// Letters that wait, or are with a worker
    under_way: i64,
    /// Letters that were given up
    dead: i64,
}

/// The plain figures.
#[derive(Debug, Serialize, ToSchema)]
pub struct HealthCounts {
    messages_received: i64,
    messages_sent: i64,
    messages_pending: i64,
}

/// Whether what comes in can be kept.
#[derive(Debug, Serialize, ToSchema)]
pub struct StorageHealth {
    /// `ok`, `full`, `failing` or `broken`
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

/// How the courier is
///
/// Needs no token. 503 when nothing is accepted until it is restarted.
#[utoipa::path(
    get, path = "/health", tag = "health", security(),
    responses((status = 200, body = HealthView), (status = 503, body = HealthView))
)]
pub async fn health(State(api): State<SharedApi>) -> Response {
    let (storage, detail) = match api.store.health() {
        StoreHealth::Ok => ("ok", None),
        StoreHealth::Full => ("full", None),
        StoreHealth::Failing(why) => ("failing", Some(why)),
        StoreHealth::Broken(why) => ("broken", Some(why)),
    };
    let figures = api.store.counts().await;
    let now = api.clock.now();
    let letters = api.store.letter_counts(now).await;
    let post_office = post_office(api.pipeline.dispatcher(), letters.ok().as_ref(), now);
    let (status, code) = match (storage, &figures, post_office.status) {
        ("broken", ..) => ("failed", StatusCode::SERVICE_UNAVAILABLE),
        ("ok", Ok(_), "ok") => ("ok", StatusCode::OK),
        _ => ("degraded", StatusCode::OK),
    };
    let figures = figures.unwrap_or_default();
    let age = |at: Timestamp| now.ms().saturating_sub(at.ms()).max(0);
    let health = HealthView {
        status,
        version: env!("CARGO_PKG_VERSION"),
        adapters: adapters(&api.tunnels, now),
        metrics: HealthCounts::from(&figures),
        storage: StorageHealth { status: storage, detail },
        mailbox: mailbox(&api, &figures),
        post_office,
        oldest_waiting_delivery_ms: figures.oldest_waiting.map(age),
        oldest_unclaimed_mail_ms: figures.oldest_unclaimed.map(age),
        clock_drift_ms: api.clock.drift(),
    };
    (code, axum::Json(health)).into_response()
}

fn adapters(tunnels: &TunnelRegistry, now: Timestamp) -> BTreeMap<String, AdapterHealth> {
    let all = tunnels.all();
    let running = all.iter().map(|tunnel| {
        let pulse = tunnel.pulse();
        let at = |time: Option<Timestamp>| time.map(Timestamp::rfc3339);
        let (last_error_at, last_error) = pulse.last_error.clone().unzip();
        let health = AdapterHealth {
            status: pulse.status(now).as_str(),
            mode: mode(tunnel.adapter.provider()),
            provider: tunnel.adapter.provider().to_owned(),
            last_frame_at: at(pulse.last_frame),
            last_message_at: at(pulse.last_message),
            last_sent_at: at(pulse.last_sent),
            last_error_at: at(last_error_at),
            last_error,
            heard: pulse.heard,
            sent: pulse.sent,
        };
        (tunnel.adapter.id().to_string(), health)
    });
    let idle = tunnels.idle();
    let down = idle.iter().map(|tunnel| {
        let health = AdapterHealth {
            status: TunnelStatus::Down.as_str(),
            mode: mode(&tunnel.provider),
            provider: tunnel.provider.clone(),
            last_frame_at: None,
            last_message_at: None,
            last_sent_at: None,
            last_error_at: None,
            last_error: Some(tunnel.why.clone()),
            heard: 0,
            sent: 0,
        };
        (tunnel.id.to_string(), health)
    });
    running.chain(down).collect()
}

/// How letters get on, by what is counted of them; `None` when that can't be read.
fn post_office(
    dispatcher: &LetterDispatcher,
    letters: Option<&LetterCounts>,
    now: Timestamp,
) -> PipelineHealth {
    let settings = dispatcher.settings();
    let counted = dispatcher.figures().all();
    let down = settings.outside().filter_map(|(name, _)| {
        let why = counted.get(name)?.down.as_ref()?;
        Some(format!("{name} is down: {why}"))
    });
    let mut problems: Vec<_> = down.collect();
    let Some(letters) = letters else {
        problems.push("letters can't be counted".to_owned());
        return PipelineHealth { status: "degraded", problems, ..PipelineHealth::default() };
    };
    let waits = letters.oldest_due.map_or(0, |due| now.ms().saturating_sub(due.ms()));
    if waits > DUE {
        problems.push(format!("a letter is due for {} s and nobody looks at it", waits / 1_000));
    }
    let count = |state: LetterState| letters.states.get(&state).copied().unwrap_or(0);
    PipelineHealth {
        status: if problems.is_empty() { "ok" } else { "degraded" },
        problems,
        under_way: count(LetterState::Waiting) + count(LetterState::Away),
        dead: count(LetterState::Dead),
    }
}

fn mode(provider: &str) -> &'static str {
    if provider == "webhook" { "push" } else { "memory" }
}

fn mailbox(api: &Api, figures: &StoreCounts) -> MailboxHealth {
    let report = api.filer.report();
    MailboxHealth {
        waiting_messages: figures.kept,
        foreign_files: report.foreign_files,
        foreign: report.foreign,
        repaired: report.repaired,
        unwritten: report.bad.iter().map(|(id, why)| format!("{id}: {why}")).collect(),
        error: report.trouble,
    }
}

impl From<&StoreCounts> for HealthCounts {
    fn from(figures: &StoreCounts) -> Self {
        let records = |keep: fn(BoxKind, ReadState) -> bool| {
            let kept = figures.records.iter().filter(|((kind, state), _)| keep(*kind, *state));
            kept.map(|(_, count)| count).sum::<i64>()
        };
        let deliveries = |states: &[SendState]| {
            states.iter().filter_map(|state| figures.deliveries.get(state)).sum::<i64>()
        };
        let waiting = [SendState::Wait, SendState::Failed, SendState::Sending, SendState::Held];
        Self {
            messages_received: records(|kind, _| kind != BoxKind::Outbox) + figures.kept,
            messages_sent: deliveries(&[SendState::Sent]),
            messages_pending: records(|kind, state| {
                kind == BoxKind::Inbox && matches!(state, ReadState::Unread | ReadState::Reading)
            }) + deliveries(&waiting),
        }
    }
}

/// What the courier counts since it started.
#[derive(Debug)]
pub struct ApiMetrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    dispatches: Family<OutcomeLabels, Counter>,
    posts: Family<OutcomeLabels, Counter>,
    records: Family<RecordLabels, Gauge<i64, AtomicI64>>,
    deliveries: Family<LetterLabels, Gauge<i64, AtomicI64>>,
    writable: Gauge<i64, AtomicI64>,
    worker_letters: Family<VerdictLabels, Counter>,
    worker_seconds: Family<WorkerVerdictLabels, Counter<f64, AtomicU64>>,
    worker_up: Family<WorkerVerdictLabels, Gauge<i64, AtomicI64>>,
    letters: Family<LetterLabels, Gauge<i64, AtomicI64>>,
    desks: Family<WorkerLabels, Gauge<i64, AtomicI64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RecordLabels {
    r#box: &'static str,
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LetterLabels {
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    worker: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerVerdictLabels {
    worker: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabels {
    desk: String,
}

impl ApiMetrics {
    /// All at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("monoco");
        let requests = Family::default();
        let dispatches = Family::default();
        let posts = Family::default();
        let records = Family::default();
        let deliveries = Family::default();
        let writable = Gauge::default();
        registry.register("http_requests", "Requests by route and status", requests.clone());
        registry.register("dispatches", "Messages that came in, by outcome", dispatches.clone());
        registry.register("posts", "Messages that were to go out, by outcome", posts.clone());
        registry.register("records", "Records by box and state", records.clone());
        registry.register("deliveries", "Deliveries by state", deliveries.clone());
        registry.register("store_writable", "1 when the store takes writes", writable.clone());
        let worker_letters = Family::default();
        let worker_seconds = Family::default();
        let worker_up = Family::default();
        let letters = Family::default();
        let desks = Family::default();
        let help = "Letters that workers had, by what came of it";
        registry.register("worker_letters", help, worker_letters.clone());
        registry.register("worker_seconds", "How long workers had letters", worker_seconds.clone());
        registry.register("worker_up", "1 while a worker outside is reached", worker_up.clone());
        registry.register("letters", "Letters by state", letters.clone());
        registry.register("desk_letters", "Letters that wait, or are away, by desk", desks.clone());
        Self {
            registry,
            requests,
            dispatches,
            posts,
            records,
            deliveries,
            writable,
            worker_letters,
            worker_seconds,
            worker_up,
            letters,
            desks,
        }
    }

    /// Counts a request.
    pub fn count(&self, route: &str, status: StatusCode) {
        let request = RequestLabels { route: route.to_owned(), status: status.as_u16() };
        self.requests.get_or_create(&request).inc();
    }

    /// Counts a message that came in.
    pub fn dispatch(&self, outcome: &'static str) {
        self.dispatches.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    /// Counts a message that was to go out.
    pub fn post(&self, outcome: &'static str) {
        self.posts.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    fn take_in(&self, figures: &StoreCounts, health: &StoreHealth) {
        for ((kind, state), count) in &figures.records {
            let held = RecordLabels { r#box: kind.as_str(), state: state.as_str() };
            self.records.get_or_create(&held).set(*count);
        }
        for (state, count) in &figures.deliveries {
            self.deliveries.get_or_create(&LetterLabels { state: state.as_str() }).set(*count);
        }
        self.writable.set(i64::from(*health == StoreHealth::Ok));
    }
}

impl ApiMetrics {
    /// Takes in what the post office counts.
    fn take_in_letters(&self, figures: &LetterCounts, dispatcher: &LetterDispatcher) {
        let all = dispatcher.figures().all();
        for (name, counted) in &all {
            let worker = || name.to_string();
            for (result, count) in [
                ("in", counted.taken),
                ("pass", counted.pass),
                ("skip", counted.skip),
                ("trash", counted.trash),
                ("error", counted.errors),
                ("late", counted.late),
            ] {
                let said = VerdictLabels { worker: worker(), result };
                let counter = self.worker_letters.get_or_create(&said);
                counter.inner().store(count, Ordering::Relaxed);
            }
            let seconds =
                self.worker_seconds.get_or_create(&WorkerVerdictLabels { worker: worker() });
            seconds.inner().store(counted.seconds.to_bits(), Ordering::Relaxed);
        }
        // Workers come and go with the config; those that are gone are not shown.
        self.worker_up.clear();
        for (name, _) in dispatcher.settings().outside() {
            let up = all.get(name).is_none_or(|counted| counted.down.is_none());
            let worker = name.to_string();
            self.worker_up.get_or_create(&WorkerVerdictLabels { worker }).set(i64::from(up));
        }
        for state in LetterState::ALL {
            let count = figures.states.get(&state).copied().unwrap_or(0);
            self.letters.get_or_create(&LetterLabels { state: state.as_str() }).set(count);
        }
        self.desks.clear();
        let settings = dispatcher.settings();
        let empty = settings.outside().map(|(name, _)| (name.as_str(), 0)).chain([("", 0)]);
        let figures = figures.waiting.iter().map(|(desk, count)| (desk.as_str(), *count));
        for (desk, count) in empty.chain(figures) {
            let desk = if desk.is_empty() { "dispatcher" } else { desk };
            self.desks.get_or_create(&WorkerLabels { desk: desk.to_owned() }).inc_by(count);
        }
    }
}

/// The figures in the format of Prometheus
#[utoipa::path(
    get, path = "/metrics", tag = "health",
    responses((status = 200, body = String), (status = "4XX", body = ApiErrorView))
)]
pub async fn metrics(State(api): State<SharedApi>) -> Result<Response, ApiError> {
    let store = &api.store;
    api.metrics.take_in(&store.counts().await?, &store.health());
    let letters = store.letter_counts(api.clock.now()).await?;
    api.metrics.take_in_letters(&letters, api.pipeline.dispatcher());
    let mut text = String::new();
    // Writing into a string can't fail.
    let _ = encode(&mut text, &api.metrics.registry);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text).into_response())
}
