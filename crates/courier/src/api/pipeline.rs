//! Status of the pipeline, and replay: what the current chains would do with old letters.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::State;
use monoco_core::letter::{Chain, LetterState, WorkerName};
use monoco_core::time::Timestamp;
use monoco_store::{LetterQuery, LetterRow, OperatorAction, PageRequest, StoreError};
use serde::Deserialize;
use tokio::net::TcpStream;
#[cfg(test)]
use utoipa::ToSchema;

use super::error::ApiError;
use super::input::{self, JsonBody};
use super::letters::{parse_direction, parse_time};
use super::views::pipeline::{
    ChainsView, PipelineView, QueueView, ReplayDifferenceView, ReplayView, TunnelChainsView,
    WorkerView,
};
use super::{Api, SharedApi};
use crate::pipeline::beanstalkd::BeanstalkdAddress;
use crate::pipeline::config::QueueKind;
use crate::pipeline::letter_pages::LetterPages;
use crate::pipeline::replay::ReplayOutcome;

/// Most letters that one replay evaluates.
const MAX_REPLAYED_LETTERS: usize = 500;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReplayBody {
    /// Earliest time of acceptance, RFC 3339
    since: Option<String>,
    /// End of the period of acceptance, RFC 3339; default now
    until: Option<String>,
    /// `inbound` or `outbound`; default both
    direction: Option<String>,
    /// Tunnel of the letters; default all
    tunnel: Option<String>,
    /// `next_cursor` of the previous response
    cursor: Option<String>,
    /// Maximum number of letters, 1 to 500; default 500
    limit: Option<i64>,
    /// Report differences without changing letters
    dry_run: bool,
}

/// Get pipeline status: chains, workers and queue
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/pipeline", operation_id = "get_pipeline",
    tag = "letters",
    responses((status = 200, body = PipelineView))
))]
pub async fn status(State(api): State<SharedApi>) -> Result<axum::Json<PipelineView>, ApiError> {
    let (settings, now) = (api.pipeline.dispatcher().config(), api.clock.now());
    let letters = api.store.letter_counts(now).await?;
    let mut counts = api.pipeline.dispatcher().metrics().all();
    let count = |of: &BTreeMap<String, i64>, name: &str| of.get(name).copied().unwrap_or(0);
    let workers = settings.workers.iter().map(|(name, worker)| {
        let view = WorkerView {
            waiting: count(&letters.waiting, name.as_str()),
            away: count(&letters.away, name.as_str()),
            held: count(&letters.held, name.as_str()),
            ..WorkerView::new(worker.kind(), counts.remove(name).unwrap_or_default())
        };
        (name.to_string(), view)
    });
    let tunnels = settings.tunnels.iter().map(|(id, own)| {
        let (inbound, outbound) =
            (own.inbound.as_ref().map(names), own.outbound.as_ref().map(names));
        (id.to_string(), TunnelChainsView { inbound, outbound })
    });
    let states = LetterState::ALL
        .map(|state| (state.as_str().into(), letters.states.get(&state).copied().unwrap_or(0)));
    Ok(axum::Json(PipelineView {
        workers: workers.collect(),
        chains: ChainsView {
            inbound: names(&settings.inbound),
            outbound: names(&settings.outbound),
            tunnels: tunnels.collect(),
        },
        states: states.into_iter().collect(),
        waiting: count(&letters.waiting, ""),
        oldest_due_at: letters.oldest_due.map(Timestamp::rfc3339),
        queue: queue(&settings.queue).await,
    }))
}

fn names(chain: &Chain) -> Vec<String> {
    chain.0.iter().map(WorkerName::to_string).collect()
}

async fn queue(kind: &QueueKind) -> QueueView {
    let QueueKind::Beanstalkd(address) = kind else {
        return QueueView { kind: "store".into(), address: None, connected: None, error: None };
    };
    let error = connect(address).await.err();
    QueueView {
        kind: "beanstalkd".into(),
        address: Some(address.to_string()),
        connected: Some(error.is_none()),
        error,
    }
}

/// Checks that a beanstalkd accepts connections.
async fn connect(address: &BeanstalkdAddress) -> Result<(), String> {
    let connect = TcpStream::connect((address.host.as_str(), address.port));
    match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())),
    }
}

/// Replay letters through the current chains
///
/// Lists the letters whose outcome would differ. Without `dry_run`, letters that were trashed
/// by a worker or are dead, and would now pass, are processed again. Letters that were sent or
/// delivered are not sent again, and letters that an operator trashed stay in the trash.
/// External workers are not asked; their stored verdicts apply.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/pipeline/replay", operation_id = "replay_letters",
    tag = "letters", request_body = ReplayBody,
    responses((status = 200, body = ReplayView))
))]
pub async fn replay(
    State(api): State<SharedApi>,
    JsonBody(body): JsonBody<ReplayBody>,
) -> Result<axum::Json<ReplayView>, ApiError> {
    let time = |field: &str, text: Option<String>| {
        let time = text.map(|text| parse_time(&text)).transpose();
        time.map_err(|why| ApiError::bad_field(field, why))
    };
    let (since, until) = (time("since", body.since)?, time("until", body.until)?);
    let until = until.unwrap_or_else(|| api.clock.now());
    let direction = body.direction.map(|text| parse_direction(&text)).transpose();
    let tunnel = body.tunnel.map(|text| text.parse()).transpose();
    let query = LetterQuery {
        direction: direction.map_err(|why| ApiError::bad_field("direction", why))?,
        tunnel: tunnel.map_err(|error| ApiError::bad_field("tunnel", error))?,
        since,
        ..LetterQuery::default()
    };
    let order = Some("oldest".to_owned());
    let paging = input::PagingQuery { cursor: body.cursor, limit: None, order };
    let limit = input::count("limit", body.limit, MAX_REPLAYED_LETTERS, MAX_REPLAYED_LETTERS)?;
    let request = PageRequest { limit, ..paging.page_request("replay")? };
    let mut pages = LetterPages::new(query, request.clone());
    let (mut evaluated, mut differ, mut over) = (0, Vec::new(), false);
    while let Some(page) = pages.next_page(&api.store).await? {
        for row in page {
            over |= row.created_at >= until;
            if over {
                break;
            }
            evaluated += 1;
            differ.extend(replay_letter(&api, &row, body.dry_run).await?);
        }
        if over {
            break;
        }
    }
    let next = pages.next().filter(|_| !over);
    let next_cursor = input::next_cursor("replay", &request, next);
    Ok(axum::Json(ReplayView { evaluated, differ, until: until.rfc3339(), next_cursor }))
}

/// Evaluates one letter. Returns `None` when the outcome would be the same.
async fn replay_letter(
    api: &Api,
    row: &LetterRow,
    dry_run: bool,
) -> Result<Option<ReplayDifferenceView>, ApiError> {
    let dispatcher = api.pipeline.dispatcher();
    let would = ReplayOutcome::predict(dispatcher, &dispatcher.config(), row).await?;
    let Some(would) = would.filter(|would| would.differs(row)) else { return Ok(None) };
    let moved = match !dry_run && would.frees(row) {
        true => match api.pipeline.move_letter(row.id, OperatorAction::Replay).await {
            Ok(_) => true,
            // Another request changed the letter meanwhile.
            Err(StoreError::InvalidTransition(_) | StoreError::Conflict { .. }) => false,
            Err(error) => return Err(error.into()),
        },
        false => false,
    };
    Ok(Some(ReplayDifferenceView {
        id: row.id.to_string(),
        direction: row.direction.as_str().into(),
        was: ReplayOutcome::actual(row).into(),
        would: would.into(),
        moved,
    }))
}
