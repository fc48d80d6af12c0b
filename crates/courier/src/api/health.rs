//! `/health`: the status of the courier and its parts.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use monoco_core::delivery::SendState;
use monoco_core::did::TunnelId;
use monoco_core::halt::HaltSet;
use monoco_core::letter::LetterState;
use monoco_core::record::BoxKind;
use monoco_core::time::Timestamp;
use monoco_core::token::Scope;
use monoco_core::tunnel_health::{TunnelConnection, TunnelStatus};
use monoco_store::{
    DeadForward, EmailTaskCounts, LetterCounts, SharedStore, StoreCounts, StoreError, StoreHealth,
    StoreResult,
};
use serde_json::json;

use super::SharedApi;
use super::caller::Caller;
use super::input::MAX_PAGE;
use super::views::cluster::{ClusterHealth, CourierView, DatabaseHealth, DutyView};
use super::views::health::{
    AdapterHealth, DeadCounts, HealthCounts, HealthView, MailboxHealth, ObjectsHealth,
    PipelineHealth, RemoteHealth, StorageHealth,
};
use crate::clock::wall_now;
use crate::courier::file_projector::ProjectorReport;
use crate::courier::tunnels::TunnelRegistry;
use crate::pipeline::dispatcher::LetterDispatcher;
use crate::remote_listener::RemoteListenerStatus;

/// How long a letter may be due before the pipeline counts as degraded.
const MAX_LETTER_DELAY_MS: i64 = 60_000;

/// How long the database server of a shared store may take to answer.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Get the health of the courier
///
/// Without a token, or with one of an agent that may not read, the response has only `status`. 503 when the courier accepts nothing until
/// it is restarted.
#[cfg_attr(test, utoipa::path(
    get, path = "/health", operation_id = "get_health",
    tag = "health", security(),
    responses((status = 200, body = HealthView), (status = 503, description = "The courier must be restarted", body = HealthView))
))]
pub async fn health(State(api): State<SharedApi>, caller: Option<Extension<Caller>>) -> Response {
    let (storage, detail) = match api.store.health() {
        StoreHealth::Ok => ("ok", None),
        StoreHealth::Full => ("full", None),
        StoreHealth::Failing(error) => ("failing", Some(error)),
        StoreHealth::Broken(error) => ("broken", Some(error)),
    };
    let now = api.clock.now();
    let cluster = cluster(&api, now).await;
    let problems = match &cluster {
        Ok(Some(cluster)) => cluster.database.problems.len(),
        _ => 0,
    };
    let (counts, letters, tasks, forwards) = match &cluster {
        Ok(_) => {
            let tasks = api.store.task_counts().await.unwrap_or_default();
            let forwards = dead_forwards(&api.store, &tasks).await.unwrap_or_default();
            let letters = api.store.letter_counts(now).await.ok();
            (api.store.counts().await, letters, tasks, forwards)
        }
        // Each question would wait for the server again.
        Err(error) => (Err(error.clone()), None, BTreeMap::new(), Vec::new()),
    };
    let (storage, detail) = match (&cluster, storage) {
        (Err(error), "ok") => ("failing", Some(error.to_string())),
        _ => (storage, detail),
    };
    let pipeline = pipeline(api.pipeline.dispatcher(), letters.as_ref(), now);
    let report = api.projector.report();
    let damaged_rows = api.store.damaged_rows();
    let clock_problem = api.clock.problem();
    let objects = api.store.remote_objects();
    let objects = objects.map(|it| ObjectsHealth { place: it.place, error: it.failure });
    let remote = api.remote.as_ref().map(|remote| remote.status());
    let intact = damaged_rows.is_empty()
        && remote.as_ref().is_none_or(|remote| remote.is_usable(wall_now()))
        && !report.has_damage()
        && objects.as_ref().is_none_or(|objects| objects.error.is_none())
        && clock_problem.is_none();
    let (status, code) = match (storage, &counts, pipeline.status.as_ref()) {
        ("broken", ..) => ("failed", StatusCode::SERVICE_UNAVAILABLE),
        ("ok", Ok(_), "ok") if intact && problems == 0 => ("ok", StatusCode::OK),
        _ => ("degraded", StatusCode::OK),
    };
    let shows_all = |caller: &Caller| [Scope::Read, Scope::Operate].map(|it| caller.has_scope(it));
    if !caller.is_some_and(|Extension(caller)| shows_all(&caller).contains(&true)) {
        return (code, axum::Json(json!({ "status": status }))).into_response();
    }
    let halts = match &cluster {
        Ok(_) => api.store.halts().await.unwrap_or_default(),
        Err(_) => HaltSet::default(),
    };
    let counts = counts.unwrap_or_default();
    let age = |at: Timestamp| now.ms().saturating_sub(at.ms()).max(0);
    let health = HealthView {
        status: status.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        adapters: adapters(&api.tunnels, now),
        metrics: HealthCounts::from(&counts),
        storage: StorageHealth {
            status: storage.into(),
            detail,
            damaged_rows,
            missing_files: report.missing_blobs,
            missing: report.missing.clone(),
            objects,
        },
        mailbox: mailbox(report, &counts),
        pipeline,
        dead: DeadCounts::new(
            &counts,
            &letters.unwrap_or_default(),
            &tasks,
            &forwards,
            api.dead_drafts.count(),
        ),
        halts: halts.0.iter().map(Into::into).collect(),
        pending_approvals: counts.pending_approvals,
        cluster: cluster.unwrap_or_default(),
        remote: remote.map(Into::into),
        oldest_waiting_delivery_ms: counts.oldest_waiting.map(age),
        oldest_unclaimed_mail_ms: counts.oldest_unclaimed.map(age),
        clock_drift_ms: api.clock.drift(),
        clock_problem,
    };
    (code, axum::Json(health)).into_response()
}

/// The couriers, duties and database server of a shared store; `None` when it has only this
/// courier.
///
/// # Errors
///
/// When the server does not answer.
async fn cluster(api: &SharedApi, now: Timestamp) -> StoreResult<Option<ClusterHealth>> {
    let asked = tokio::time::timeout(DATABASE_TIMEOUT, api.store.server_facts()).await;
    let no_answer = |_| {
        let why = format!("the database server did not answer in {} s", DATABASE_TIMEOUT.as_secs());
        Err(StoreError::Unavailable(why))
    };
    let Some(facts) = asked.unwrap_or_else(no_answer)? else { return Ok(None) };
    let (couriers, duties) = (api.store.couriers().await?, api.store.duties().await?);
    let durability = api.config.borrow().store.durability();
    Ok(Some(ClusterHealth {
        courier: api.duties.run().id.to_string(),
        durability: durability.as_str().into(),
        database: DatabaseHealth::new(facts, durability),
        couriers: couriers.iter().map(|courier| CourierView::new(courier, now)).collect(),
        duties: duties.iter().map(|duty| DutyView::new(duty, now)).collect(),
    }))
}

/// The health of the tunnels of the config, by id.
pub(super) fn adapters(
    tunnels: &TunnelRegistry,
    now: Timestamp,
) -> BTreeMap<String, AdapterHealth> {
    let all = tunnels.running();
    let running = all.iter().map(|tunnel| {
        let state = tunnel.health();
        let at = |time: Option<Timestamp>| time.map(Timestamp::rfc3339);
        let (last_error_at, last_error) = state.last_error.clone().unzip();
        let last_scan_at = state.last_scan.map(|(at, _)| at);
        let connection_since = match state.connection {
            Some(TunnelConnection::Open(at) | TunnelConnection::Lost(at)) => Some(at),
            Some(TunnelConnection::Opening) | None => None,
        };
        let health = AdapterHealth {
            status: state.status(now).as_str().into(),
            mode: tunnel.adapter.mode().into(),
            provider: tunnel.adapter.provider().to_owned(),
            connected: state.connection.map(|it| matches!(it, TunnelConnection::Open(_))),
            connection_since: at(connection_since),
            connections_lost: state.connections_lost,
            last_scan_at: at(last_scan_at),
            backlog: state.backlog,
            last_frame_at: at(state.last_frame),
            last_message_at: at(state.last_message),
            last_sent_at: at(state.last_sent),
            last_error_at: at(last_error_at),
            last_error,
            received: state.received,
            sent: state.sent,
        };
        (tunnel.adapter.id().to_string(), health)
    });
    let idle = tunnels.inactive();
    let down = idle.iter().map(|tunnel| {
        let health = AdapterHealth {
            status: TunnelStatus::Down.as_str().into(),
            mode: tunnel.mode.into(),
            provider: tunnel.provider.to_owned(),
            connected: None,
            connection_since: None,
            connections_lost: 0,
            last_scan_at: None,
            backlog: None,
            last_frame_at: None,
            last_message_at: None,
            last_sent_at: None,
            last_error_at: None,
            last_error: Some(tunnel.why.clone()),
            received: 0,
            sent: 0,
        };
        (tunnel.id.to_string(), health)
    });
    running.chain(down).collect()
}

/// Health of the pipeline. `letters` is `None` when the letters cannot be counted.
fn pipeline(
    dispatcher: &LetterDispatcher,
    letters: Option<&LetterCounts>,
    now: Timestamp,
) -> PipelineHealth {
    let settings = dispatcher.config();
    let counts = dispatcher.metrics().all();
    let down = settings.external_workers().filter_map(|(name, _)| {
        let why = counts.get(name)?.down.as_ref()?;
        Some(format!("worker {name} is down: {why}"))
    });
    let mut problems: Vec<_> = down.collect();
    let Some(letters) = letters else {
        problems.push("cannot count letters".to_owned());
        return PipelineHealth { status: "degraded".into(), problems, ..PipelineHealth::default() };
    };
    let delay_ms = letters.oldest_due.map_or(0, |due| now.ms().saturating_sub(due.ms()));
    if delay_ms > MAX_LETTER_DELAY_MS {
        problems.push(format!("a letter has been due for {} s", delay_ms / 1_000));
    }
    let count = |state: LetterState| letters.states.get(&state).copied().unwrap_or(0);
    PipelineHealth {
        status: if problems.is_empty() { "ok" } else { "degraded" }.into(),
        problems,
        under_way: count(LetterState::Waiting) + count(LetterState::Away),
    }
}

fn mailbox(report: ProjectorReport, counts: &StoreCounts) -> MailboxHealth {
    MailboxHealth {
        waiting_messages: counts.unmerged,
        foreign_files: report.foreign_files,
        foreign: report.foreign,
        repaired: report.repaired,
        unwritten: report.bad.iter().map(|(id, why)| format!("{id}: {why}")).collect(),
        lost_mails: report.lost_mails,
        lost: report.lost,
        error: report.trouble,
    }
}

/// What else is dead of the forwards of dead tasks, as `GET /api/v1/dead` lists them.
pub(super) async fn dead_forwards(
    store: &SharedStore,
    tasks: &BTreeMap<TunnelId, EmailTaskCounts>,
) -> StoreResult<Vec<DeadForward>> {
    if tasks.values().all(|counts| counts.dead == 0) {
        return Ok(Vec::new());
    }
    store.dead_forwards(MAX_PAGE).await
}

impl DeadCounts {
    /// Counts each dead letter once: `forwards` belong to dead tasks.
    pub fn new(
        counts: &StoreCounts,
        letters: &LetterCounts,
        tasks: &BTreeMap<TunnelId, EmailTaskCounts>,
        forwards: &[DeadForward],
        drafts: usize,
    ) -> Self {
        let states = [SendState::Dead, SendState::Uncertain];
        let deliveries: i64 = states.iter().filter_map(|state| counts.deliveries.get(state)).sum();
        let letters = letters.states.get(&LetterState::Dead).copied().unwrap_or(0);
        // Never below zero: the counts are read one after the other.
        let without = |all: i64, part: usize| (all - i64::try_from(part).unwrap_or(0)).max(0);
        let deliveries = without(deliveries, forwards.iter().map(|it| it.deliveries.len()).sum());
        let letters = without(letters, forwards.iter().filter(|it| it.letter.is_some()).count());
        let (claims, drafts) = (counts.dead_claims, i64::try_from(drafts).unwrap_or(i64::MAX));
        let tasks = tasks.values().map(|counts| counts.dead).sum();
        let total = claims + deliveries + letters + drafts + tasks;
        Self { claims, deliveries, letters, drafts, tasks, total }
    }
}

impl From<RemoteListenerStatus> for RemoteHealth {
    fn from(status: RemoteListenerStatus) -> Self {
        Self {
            address: status.address.to_string(),
            served: status.is_served,
            certificate_expires_at: status.expires_at.map(Timestamp::rfc3339),
            problem: status.problem,
        }
    }
}

impl From<&StoreCounts> for HealthCounts {
    fn from(counts: &StoreCounts) -> Self {
        let inbound = counts.records.iter().filter(|((kind, _), _)| *kind != BoxKind::Outbox);
        let deliveries = |states: &[SendState]| {
            states.iter().filter_map(|state| counts.deliveries.get(state)).sum::<i64>()
        };
        let waiting = [SendState::Wait, SendState::Failed, SendState::Sending, SendState::Held];
        Self {
            messages_received: inbound.map(|(_, count)| count).sum::<i64>() + counts.unmerged,
            messages_sent: deliveries(&[SendState::Sent]),
            messages_pending: counts.unmerged + counts.waiting_mails + deliveries(&waiting),
        }
    }
}
