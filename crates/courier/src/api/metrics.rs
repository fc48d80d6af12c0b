//! `/metrics`: counters and gauges in the formats of Prometheus and OpenMetrics.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use monoco_core::did::TunnelId;
use monoco_core::letter::LetterState;
use monoco_core::time::Timestamp;
use monoco_core::tunnel_health::TunnelStatus;
use monoco_store::{LetterCounts, StoreCounts, StoreHealth};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::SharedApi;
use super::email_metrics::EmailMetrics;
use super::error::ApiError;
use super::health::dead_forwards;
use super::views::health::DeadCounts;
use crate::courier::tunnels::TunnelRegistry;
use crate::pipeline::dispatcher::LetterDispatcher;

/// The counters and gauges of the courier.
#[derive(Debug)]
pub struct ApiMetrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    dispatches: Family<OutcomeLabels, Counter>,
    posts: Family<OutcomeLabels, Counter>,
    records: Family<RecordLabels, Gauge<i64, AtomicI64>>,
    deliveries: Family<LetterLabels, Gauge<i64, AtomicI64>>,
    writable: Gauge<i64, AtomicI64>,
    waiting_mails: Gauge<i64, AtomicI64>,
    unmerged_messages: Gauge<i64, AtomicI64>,
    dead_letters: Family<DeadLetterLabels, Gauge<i64, AtomicI64>>,
    worker_letters: Family<VerdictLabels, Counter>,
    worker_seconds: Family<WorkerLabels, Counter<f64, AtomicU64>>,
    worker_up: Family<WorkerLabels, Gauge<i64, AtomicI64>>,
    letters: Family<LetterLabels, Gauge<i64, AtomicI64>>,
    waiting: Family<WorkerLabels, Gauge<i64, AtomicI64>>,
    webhooks_rejected: Family<RejectionLabels, Counter>,
    tunnel_up: Family<TunnelMetricLabels, Gauge<i64, AtomicI64>>,
    connections_lost: Family<TunnelMetricLabels, Counter>,
    receipts: Family<ReceiptLabels, Counter>,
    email: EmailMetrics,
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
struct DeadLetterLabels {
    kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    worker: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkerLabels {
    worker: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TunnelMetricLabels {
    tunnel: String,
    mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    tunnel: String,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReceiptLabels {
    tunnel: String,
    result: &'static str,
}

impl Default for ApiMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("monoco");
        let requests = Family::default();
        let dispatches = Family::default();
        let posts = Family::default();
        let records = Family::default();
        let deliveries = Family::default();
        let writable = Gauge::default();
        registry.register("http_requests", "Requests by route and status", requests.clone());
        registry.register("dispatches", "Dispatched messages by outcome", dispatches.clone());
        registry.register("posts", "Sent messages by outcome", posts.clone());
        registry.register("records", "Records by box and state", records.clone());
        registry.register("deliveries", "Deliveries by state", deliveries.clone());
        registry.register("store_writable", "1 when the store accepts writes", writable.clone());
        let waiting_mails = Gauge::default();
        let unmerged_messages = Gauge::default();
        registry.register("waiting_mails", "Mails that are not done", waiting_mails.clone());
        registry.register(
            "unmerged_messages",
            "Received messages that are not yet merged into a Mail",
            unmerged_messages.clone(),
        );
        let dead_letters = Family::default();
        registry.register("dead_letters", "Dead letters by kind", dead_letters.clone());
        let worker_letters = Family::default();
        let worker_seconds = Family::default();
        let worker_up = Family::default();
        let letters = Family::default();
        let waiting = Family::default();
        registry.register("worker_letters", "Letters by worker and result", worker_letters.clone());
        registry.register("worker_seconds", "Processing time of workers", worker_seconds.clone());
        registry.register(
            "worker_up",
            "1 while an external worker is reachable",
            worker_up.clone(),
        );
        registry.register("letters", "Letters by state", letters.clone());
        registry.register(
            "worker_waiting_letters",
            "Letters that wait for a worker or are being processed by it",
            waiting.clone(),
        );
        let webhooks_rejected = Family::default();
        registry.register(
            "webhooks_rejected",
            "Rejected webhook requests by tunnel and reason",
            webhooks_rejected.clone(),
        );
        let tunnel_up = Family::default();
        registry.register(
            "tunnel_up",
            "1 while a tunnel can receive messages, by tunnel and mode",
            tunnel_up.clone(),
        );
        let connections_lost = Family::default();
        registry.register(
            "tunnel_connections_lost",
            "Lost connections by tunnel and mode",
            connections_lost.clone(),
        );
        let receipts = Family::default();
        registry.register(
            "tunnel_receipts",
            "Reactions to messages by tunnel and result",
            receipts.clone(),
        );
        let email = EmailMetrics::new(&mut registry);
        Self {
            registry,
            requests,
            dispatches,
            posts,
            records,
            deliveries,
            writable,
            waiting_mails,
            unmerged_messages,
            dead_letters,
            worker_letters,
            worker_seconds,
            worker_up,
            letters,
            waiting,
            webhooks_rejected,
            tunnel_up,
            connections_lost,
            receipts,
            email,
        }
    }
}

impl ApiMetrics {
    pub fn count_request(&self, route: &str, status: StatusCode) {
        let request = RequestLabels { route: route.to_owned(), status: status.as_u16() };
        self.requests.get_or_create(&request).inc();
    }

    pub fn count_dispatch(&self, outcome: &'static str) {
        self.dispatches.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    pub fn count_send(&self, outcome: &'static str) {
        self.posts.get_or_create(&OutcomeLabels { outcome }).inc();
    }

    fn set_store(&self, counts: &StoreCounts, health: &StoreHealth) {
        for ((kind, state), count) in &counts.records {
            let labels = RecordLabels { r#box: kind.as_str(), state: state.as_str() };
            self.records.get_or_create(&labels).set(*count);
        }
        for (state, count) in &counts.deliveries {
            self.deliveries.get_or_create(&LetterLabels { state: state.as_str() }).set(*count);
        }
        self.writable.set(i64::from(*health == StoreHealth::Ok));
        self.waiting_mails.set(counts.waiting_mails);
        self.unmerged_messages.set(counts.unmerged);
    }

    fn set_tunnels(&self, tunnels: &TunnelRegistry, now: Timestamp) {
        // Tunnels that do not run any more are not shown.
        self.webhooks_rejected.clear();
        self.tunnel_up.clear();
        self.connections_lost.clear();
        self.receipts.clear();
        let labels = |id: &TunnelId, mode| TunnelMetricLabels { tunnel: id.to_string(), mode };
        for tunnel in tunnels.inactive().iter() {
            self.tunnel_up.get_or_create(&labels(&tunnel.id, tunnel.mode)).set(0);
        }
        for tunnel in tunnels.running().iter() {
            let health = tunnel.health();
            let labels = labels(tunnel.adapter.id(), tunnel.adapter.mode());
            let up = !matches!(health.status(now), TunnelStatus::Down | TunnelStatus::Paused);
            self.tunnel_up.get_or_create(&labels).set(i64::from(up));
            if health.connection.is_some() {
                let counter = self.connections_lost.get_or_create(&labels);
                counter.inner().store(health.connections_lost, Ordering::Relaxed);
            }
            for (result, count) in tunnel.receipts.by_result() {
                if count > 0 {
                    let tunnel = tunnel.adapter.id().to_string();
                    let counter = self.receipts.get_or_create(&ReceiptLabels { tunnel, result });
                    counter.inner().store(count, Ordering::Relaxed);
                }
            }
            for (reason, count) in health.rejected {
                let labels = RejectionLabels { tunnel: tunnel.adapter.id().to_string(), reason };
                let counter = self.webhooks_rejected.get_or_create(&labels);
                counter.inner().store(count, Ordering::Relaxed);
            }
        }
    }

    fn set_dead_letters(&self, dead: DeadCounts) {
        for (kind, count) in [
            ("claim", dead.claims),
            ("delivery", dead.deliveries),
            ("letter", dead.letters),
            ("draft", dead.drafts),
            ("task", dead.tasks),
        ] {
            self.dead_letters.get_or_create(&DeadLetterLabels { kind }).set(count);
        }
    }

    fn set_pipeline(&self, letters: &LetterCounts, dispatcher: &LetterDispatcher) {
        let all = dispatcher.metrics().all();
        for (name, counts) in &all {
            let worker = || name.to_string();
            for (result, count) in [
                ("in", counts.taken),
                ("pass", counts.pass),
                ("skip", counts.skip),
                ("trash", counts.trash),
                ("error", counts.errors),
                ("rejected", counts.rejected),
            ] {
                let labels = VerdictLabels { worker: worker(), result };
                let counter = self.worker_letters.get_or_create(&labels);
                counter.inner().store(count, Ordering::Relaxed);
            }
            let seconds = self.worker_seconds.get_or_create(&WorkerLabels { worker: worker() });
            seconds.inner().store(counts.seconds.to_bits(), Ordering::Relaxed);
        }
        // Workers that are no longer in the config are not shown.
        self.worker_up.clear();
        for (name, _) in dispatcher.config().external_workers() {
            let up = all.get(name).is_none_or(|counts| counts.down.is_none());
            let worker = name.to_string();
            self.worker_up.get_or_create(&WorkerLabels { worker }).set(i64::from(up));
        }
        for state in LetterState::ALL {
            let count = letters.states.get(&state).copied().unwrap_or(0);
            self.letters.get_or_create(&LetterLabels { state: state.as_str() }).set(count);
        }
        self.waiting.clear();
        let settings = dispatcher.config();
        let empty =
            settings.external_workers().map(|(name, _)| (name.as_str(), 0)).chain([("", 0)]);
        let waiting = letters.waiting.iter().map(|(worker, count)| (worker.as_str(), *count));
        for (worker, count) in empty.chain(waiting) {
            let worker = if worker.is_empty() { "dispatcher" } else { worker }.to_owned();
            self.waiting.get_or_create(&WorkerLabels { worker }).inc_by(count);
        }
    }
}

/// Get metrics in the text format of Prometheus
///
/// In the OpenMetrics format when the header `Accept` names `application/openmetrics-text`.
#[cfg_attr(test, utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics",
    tag = "health",
    responses((status = 200, description = "Metrics in the text format of Prometheus",
        body = String, content_type = "text/plain"))
))]
pub async fn metrics(
    State(api): State<SharedApi>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let store = &api.store;
    let counts = store.counts().await?;
    api.metrics.set_store(&counts, &store.health());
    let now = api.clock.now();
    let letters = store.letter_counts(now).await?;
    let tasks = store.task_counts().await?;
    api.metrics.set_tunnels(&api.tunnels, now);
    api.metrics.email.set(&store.accounts().await?, &tasks, &api.tunnels);
    let forwards = dead_forwards(store, &tasks).await?;
    let dead = DeadCounts::new(&counts, &letters, &tasks, &forwards, api.dead_drafts.count());
    api.metrics.set_dead_letters(dead);
    api.metrics.set_pipeline(&letters, api.pipeline.dispatcher());
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &api.metrics.registry);
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        return Ok(([(header::CONTENT_TYPE, kind)], text).into_response());
    }
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], prometheus_text(&text)).into_response())
}

/// Converts OpenMetrics to the text format of Prometheus, in which the descriptions of a counter
/// have the name of its samples, which ends with `_total`, and which has no end mark.
fn prometheus_text(text: &str) -> String {
    let counters: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut converted = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                converted.extend(["# ", kind, " ", name, "_total ", rest]);
            }
            _ => converted.push_str(line),
        }
        converted.push('\n');
    }
    converted
}
