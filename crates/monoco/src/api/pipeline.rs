//! The post office as a whole: its chains, its workers, and what a changed chain would
//! make of letters.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use monoco_core::letter::{Chain, LetterState, WorkerName};
use monoco_core::time::Timestamp;
use monoco_store::{LetterQuery, LetterRow, OperatorAction, PageRequest, StoreError};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use utoipa::ToSchema;

use super::error::{ApiError, ApiErrorView};
use super::input::{self, JsonBody};
use super::letters::{VerdictView, direction, when};
use super::{Api, SharedApi};
use crate::pipeline::beanstalkd::BeanstalkdAddress;
use crate::pipeline::config::{QueueKind, WorkerConfig, WorkerTransport};
use crate::pipeline::letter_pages::LetterPages;
use crate::pipeline::metrics::WorkerCounts;
use crate::pipeline::replay::ReplayOutcome;

/// Most letters that one replay looks at.
const MAX_REPLAY: usize = 500;

/// How long a beanstalkd may take to let us in, when somebody asks how it is.
const CONNECT: Duration = Duration::from_secs(1);

/// The post office.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Pipeline)]
pub struct PipelineView {
    queue: QueueView,
    chains: ChainsView,
    /// Every worker, by name
    workers: BTreeMap<String, WorkerView>,
    /// How many letters there are of each state
    states: BTreeMap<&'static str, i64>,
    /// Letters that wait for the dispatcher, kept ones apart
    waiting: i64,
    /// Since when the oldest letter that is due waits for the dispatcher
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_due_at: Option<String>,
}

/// What carries letters to the dispatcher.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Queue)]
pub struct QueueView {
    /// `store` or `beanstalkd`
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    /// Whether it lets us in
    #[serde(skip_serializing_if = "Option::is_none")]
    connected: Option<bool>,
    /// Why it does not; letters go on without it meanwhile
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Which workers letters meet, in order.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Chains)]
pub struct ChainsView {
    inbound: Vec<String>,
    outbound: Vec<String>,
    /// Of tunnels that have chains of their own
    tunnels: BTreeMap<String, TunnelChainsView>,
}

/// The chains of one tunnel; where it has none, that of everybody counts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OwnChains)]
pub struct TunnelChainsView {
    #[serde(skip_serializing_if = "Option::is_none")]
    inbound: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outbound: Option<Vec<String>>,
}

/// One worker, and what is counted of it since the courier started.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Worker)]
pub struct WorkerView {
    /// `block`, `spam`, `rspamd`, `subject`, `footer`, `merge`, `limit`, `trash`, `send`,
    /// `deliver`, `exec`, `http` or `beanstalkd`
    kind: &'static str,
    #[serde(flatten)]
    counted: WorkerCounts,
    /// Letters at its desk: they wait for it, or it has them
    waiting: i64,
    /// Those of them that it has
    away: i64,
    /// Letters that it keeps for a while
    kept: i64,
}

/// Which letters to walk through the chains as they are now.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayBody {
    /// Only those that came then or later, RFC 3339
    since: Option<String>,
    /// Only those that came before this, RFC 3339; without it, now
    until: Option<String>,
    /// `inbound` or `outbound`
    direction: Option<String>,
    /// Only those of this tunnel
    tunnel: Option<String>,
    /// Where the last answer ended: its `next_cursor`
    cursor: Option<String>,
    /// Most letters to look at, 1 to 500
    limit: Option<i64>,
    /// Only say what would differ
    dry_run: bool,
}

/// What the chains as they are now would make of letters.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Replay)]
pub struct ReplayView {
    /// How many letters were looked at, the oldest first
    looked: usize,
    /// Those that would fare otherwise
    differ: Vec<ReplayDifferenceView>,
    /// Send it back with the cursor, so that the end does not run away
    until: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A letter that would fare otherwise.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Differs)]
pub struct ReplayDifferenceView {
    id: String,
    direction: &'static str,
    was: ReplayOutcomeView,
    would: ReplayOutcomeView,
    /// Whether it goes through its chain again now, as it came
    moved: bool,
}

/// How a letter fares.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Fate)]
pub struct ReplayOutcomeView {
    /// WAITING, AWAY, DONE, MERGED, TRASHED or DEAD. AWAY: a worker outside would be asked
    state: &'static str,
    verdicts: Vec<VerdictView>,
    /// The worker that has it, or would be asked
    #[serde(skip_serializing_if = "Option::is_none")]
    at_worker: Option<String>,
}

/// How the post office is
#[utoipa::path(
    get, path = "/api/v1/pipeline", tag = "letters",
    responses((status = 200, body = PipelineView), (status = "4XX", body = ApiErrorView))
)]
pub async fn status(State(api): State<SharedApi>) -> Result<axum::Json<PipelineView>, ApiError> {
    let (settings, now) = (api.pipeline.dispatcher().settings(), api.clock.now());
    let figures = api.store.letter_counts(now).await?;
    let mut counted = api.pipeline.dispatcher().figures().all();
    let count = |of: &BTreeMap<String, i64>, name: &str| of.get(name).copied().unwrap_or(0);
    let workers = settings.workers.iter().map(|(name, worker)| {
        let view = WorkerView {
            kind: kind(worker),
            counted: counted.remove(name).unwrap_or_default(),
            waiting: count(&figures.waiting, name.as_str()),
            away: count(&figures.away, name.as_str()),
            kept: count(&figures.held, name.as_str()),
        };
        (name.to_string(), view)
    });
    let tunnels = settings.tunnels.iter().map(|(id, own)| {
        let (inbound, outbound) =
            (own.inbound.as_ref().map(names), own.outbound.as_ref().map(names));
        (id.to_string(), TunnelChainsView { inbound, outbound })
    });
    let states = LetterState::ALL
        .map(|state| (state.as_str(), figures.states.get(&state).copied().unwrap_or(0)));
    Ok(axum::Json(PipelineView {
        workers: workers.collect(),
        chains: ChainsView {
            inbound: names(&settings.inbound),
            outbound: names(&settings.outbound),
            tunnels: tunnels.collect(),
        },
        states: states.into_iter().collect(),
        waiting: count(&figures.waiting, ""),
        oldest_due_at: figures.oldest_due.map(Timestamp::rfc3339),
        queue: queue(&settings.queue).await,
    }))
}

fn names(chain: &Chain) -> Vec<String> {
    chain.0.iter().map(WorkerName::to_string).collect()
}

/// What a worker is called that has no name of its own.
const fn kind(worker: &WorkerConfig) -> &'static str {
    match worker {
        WorkerConfig::Block(_) => "block",
        WorkerConfig::Spam(_) => "spam",
        WorkerConfig::Subject(_) => "subject",
        WorkerConfig::Footer(_) => "footer",
        WorkerConfig::Merge(_) => "merge",
        WorkerConfig::Limit(_) => "limit",
        WorkerConfig::Trash => "trash",
        WorkerConfig::Send { .. } => "send",
        WorkerConfig::Deliver => "deliver",
        WorkerConfig::Outside(outside) => match outside.how {
            WorkerTransport::Exec { .. } => "exec",
            WorkerTransport::Http { .. } => "http",
            WorkerTransport::Beanstalkd { .. } => "beanstalkd",
            WorkerTransport::Rspamd { .. } => "rspamd",
        },
    }
}

async fn queue(kind: &QueueKind) -> QueueView {
    let QueueKind::Beanstalkd(address) = kind else {
        return QueueView { kind: "store", address: None, connected: None, error: None };
    };
    let error = knock(address).await.err();
    QueueView {
        kind: "beanstalkd",
        address: Some(address.to_string()),
        connected: Some(error.is_none()),
        error,
    }
}

/// Whether somebody is there.
async fn knock(address: &BeanstalkdAddress) -> Result<(), String> {
    let connect = TcpStream::connect((address.host.as_str(), address.port));
    match tokio::time::timeout(CONNECT, connect).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", CONNECT.as_secs())),
    }
}

/// Walk letters through the chains as they are now
///
/// Says which would fare otherwise. Without `dry_run`, those that were thrown away or
/// given up and would get through now go through their chain again. What was sent or
/// delivered is not sent again, and what a person threw away stays away. Workers outside
/// are not asked: what they said before counts.
#[utoipa::path(
    post, path = "/api/v1/pipeline/replay", tag = "letters", request_body = ReplayBody,
    responses((status = 200, body = ReplayView), (status = "4XX", body = ApiErrorView))
)]
pub async fn replay(
    State(api): State<SharedApi>,
    JsonBody(body): JsonBody<ReplayBody>,
) -> Result<axum::Json<ReplayView>, ApiError> {
    let time = |field: &str, text: Option<String>| {
        let time = text.map(|text| when(&text)).transpose();
        time.map_err(|why| ApiError::bad_field(field, why))
    };
    let (since, until) = (time("since", body.since)?, time("until", body.until)?);
    let until = until.unwrap_or_else(|| api.clock.now());
    let way = body.direction.map(|text| direction(&text)).transpose();
    let tunnel = body.tunnel.map(|text| text.parse()).transpose();
    let query = LetterQuery {
        direction: way.map_err(|why| ApiError::bad_field("direction", why))?,
        tunnel: tunnel.map_err(|error| ApiError::bad_field("tunnel", error))?,
        since,
        ..LetterQuery::default()
    };
    let order = Some("oldest".to_owned());
    let paging = input::PagingQuery { cursor: body.cursor, limit: None, order };
    let limit = input::count("limit", body.limit, MAX_REPLAY, MAX_REPLAY)?;
    let window = PageRequest { limit, ..paging.window("replay")? };
    let mut leafing = LetterPages::new(query, window.clone());
    let (mut looked, mut differ, mut over) = (0, Vec::new(), false);
    while let Some(few) = leafing.next_page(&api.store).await? {
        for row in few {
            over |= row.created_at >= until;
            if over {
                break;
            }
            looked += 1;
            differ.extend(judge(&api, &row, body.dry_run).await?);
        }
        if over {
            break;
        }
    }
    let next = leafing.next().filter(|_| !over);
    let next_cursor = input::next_cursor("replay", &window, next);
    Ok(axum::Json(ReplayView { looked, differ, until: until.rfc3339(), next_cursor }))
}

/// What would be otherwise with a letter, if anything would.
async fn judge(
    api: &Api,
    row: &LetterRow,
    dry_run: bool,
) -> Result<Option<ReplayDifferenceView>, ApiError> {
    let dispatcher = api.pipeline.dispatcher();
    let would = ReplayOutcome::would(dispatcher, &dispatcher.settings(), row).await?;
    let Some(would) = would.filter(|would| would.differs(row)) else { return Ok(None) };
    let moved = match !dry_run && would.frees(row) {
        true => match api.pipeline.move_letter(row.id, OperatorAction::Replay).await {
            Ok(_) => true,
            // Somebody else moved it meanwhile.
            Err(StoreError::InvalidTransition(_) | StoreError::Conflict { .. }) => false,
            Err(error) => return Err(error.into()),
        },
        false => false,
    };
    Ok(Some(ReplayDifferenceView {
        id: row.id.to_string(),
        direction: row.direction.as_str(),
        was: ReplayOutcome::was(row).into(),
        would: would.into(),
        moved,
    }))
}

impl From<ReplayOutcome> for ReplayOutcomeView {
    fn from(fate: ReplayOutcome) -> Self {
        Self {
            state: fate.state.as_str(),
            verdicts: fate.verdicts.iter().map(VerdictView::whole).collect(),
            at_worker: fate.at_worker.map(|worker| worker.to_string()),
        }
    }
}
