//! Dead letters of all kinds: list them, and retry or drop all that a filter selects.

use std::collections::BTreeMap;

use axum::extract::State;
use futures_util::stream::{self, StreamExt};
use monoco_core::claim::Workspace;
use monoco_core::dead_letter::{DeadLetterAction, DeadLetterFilter, DeadLetterKind};
use monoco_core::delivery::SendState;
use monoco_core::email::task::EmailTaskId;
use monoco_core::letter::{LetterId, LetterState};
use monoco_core::mail::MailId;
use monoco_core::record::RecordId;
use monoco_mailbox::claim_info::ClaimInfo;
use monoco_store::{DeadForward, LetterQuery, OperatorAction, PageRequest, StoreError};
use serde::Deserialize;
#[cfg(test)]
use utoipa::ToSchema;

use super::caller::Caller;
use super::drafts;
use super::error::ApiError;
use super::input::{self, JsonBody};
use super::views::boxes::RecordView;
use super::views::dead::{DeadBatchResult, DeadDraftView, DeadLetterRow, DeadView};
use super::views::email::EmailTaskView;
use super::views::letters::LetterView;
use super::{Api, SharedApi};
use crate::courier::dead_drafts::DeadDrafts;
use crate::pipeline::letter_pages::LetterPages;

/// Dead letters of each kind, and of each tunnel, that a filter is compared with.
const MAX_EXAMINED: usize = 10_000;

/// Most dead letters that one request changes.
const MAX_CHANGED: usize = 500;

/// Changes in progress at the same time: they share commits.
const CONCURRENT_CHANGES: usize = 16;

/// Most errors in one response.
const MAX_ERRORS: usize = 10;

/// Which dead letters to change. At least one condition is needed.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeadFilterBody {
    /// `claim`, `delivery`, `letter`, `draft` or `task`. Without it, parts of a dead e-mail task
    /// are left out, because they change with the task
    kind: Option<String>,
    /// Such as DEAD. UNCERTAIN deliveries are retried only when it is UNCERTAIN
    state: Option<String>,
    /// Id of the tunnel, or of the e-mail account
    tunnel: Option<String>,
    /// Workspace whose claims to change
    workspace: Option<String>,
    /// The cause; causes that differ only in numbers and ids are equal
    cause: Option<String>,
    /// Only count them; default false
    dry_run: Option<bool>,
    /// Maximum number to change, 1 to 500; default 500
    limit: Option<i64>,
}

/// List dead letters
///
/// Claims, letters, drafts, e-mail tasks, and deliveries that are DEAD or UNCERTAIN: the oldest
/// 1000 claims, letters, drafts and tasks, and the oldest 1000 deliveries of each tunnel.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/dead", operation_id = "list_dead",
    tag = "mails",
    responses((status = 200, body = DeadView))
))]
pub async fn list(State(api): State<SharedApi>) -> Result<axum::Json<DeadView>, ApiError> {
    Ok(axum::Json(read(&api, input::MAX_PAGE).await?))
}

/// Retry all dead letters that a filter selects
///
/// Fix the cause first. `dry_run` only counts them. One request examines the oldest 10,000 of each
/// kind and tunnel, and changes at most 500; `more` says whether to repeat it. An error of one
/// dead letter does not end the request.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/dead/retry", operation_id = "retry_dead",
    tag = "mails", request_body = DeadFilterBody,
    responses((status = 200, body = DeadBatchResult))
))]
pub async fn retry(
    State(api): State<SharedApi>,
    caller: Caller,
    JsonBody(body): JsonBody<DeadFilterBody>,
) -> Result<axum::Json<DeadBatchResult>, ApiError> {
    change_all(&api, &caller, body, DeadLetterAction::Retry).await.map(axum::Json)
}

/// Drop all dead letters that a filter selects
///
/// As with `/api/v1/dead/retry`. Dropped letters are trashed and can be restored; other dead
/// letters cannot.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/dead/drop", operation_id = "drop_dead",
    tag = "mails", request_body = DeadFilterBody,
    responses((status = 200, body = DeadBatchResult))
))]
pub async fn drop_all(
    State(api): State<SharedApi>,
    caller: Caller,
    JsonBody(body): JsonBody<DeadFilterBody>,
) -> Result<axum::Json<DeadBatchResult>, ApiError> {
    change_all(&api, &caller, body, DeadLetterAction::Drop).await.map(axum::Json)
}

/// Reads the oldest dead letters, up to `limit` of each kind and tunnel.
async fn read(api: &Api, limit: usize) -> Result<DeadView, ApiError> {
    let store = &api.store;
    let claims = store.dead_claims(limit).await?;
    let mut deliveries = Vec::new();
    for tunnel in store.tunnels().await? {
        let states = [SendState::Dead, SendState::Uncertain];
        let request = PageRequest { beyond: None, limit, newest_first: false };
        let page = store.deliveries(&tunnel.id.did(), &states, request).await?;
        deliveries.extend(page.entries.into_iter().map(RecordView::from));
    }
    let claims = claims.iter().map(ClaimInfo::from).collect();
    let query = LetterQuery { states: vec![LetterState::Dead], ..LetterQuery::default() };
    let request = PageRequest { beyond: None, limit, newest_first: false };
    let mut pages = LetterPages::new(query, request);
    let mut letters = Vec::new();
    while let Some(page) = pages.next_page(store).await? {
        letters.extend(page.iter().map(LetterView::from));
    }
    let drafts = drafts::read(&api.dead_drafts, DeadDrafts::scan).await?;
    let drafts = drafts.into_iter().take(limit).map(DeadDraftView::from).collect();
    let tasks = store.dead_tasks(limit).await?;
    let tasks = tasks.into_iter().map(EmailTaskView::from).collect();
    let mut of_tasks = BTreeMap::new();
    for DeadForward { task, deliveries, letter } in store.dead_forwards(limit).await? {
        let deliveries = deliveries.iter().map(ToString::to_string);
        let ids = deliveries.chain(letter.iter().map(ToString::to_string));
        of_tasks.extend(ids.map(|id| (id, task.to_string())));
    }
    Ok(DeadView { claims, deliveries, letters, drafts, tasks, of_tasks })
}

/// Retries or drops what the filter selects.
async fn change_all(
    api: &Api,
    caller: &Caller,
    body: DeadFilterBody,
    action: DeadLetterAction,
) -> Result<DeadBatchResult, ApiError> {
    let dry_run = body.dry_run.unwrap_or(false);
    let limit = input::count("limit", body.limit, MAX_CHANGED, MAX_CHANGED)?;
    let filter = parse_filter(body)?;
    let mut rows = read(api, MAX_EXAMINED).await?.rows();
    rows.retain(|row| filter.selects(action, &row.facts()));
    let matched = rows.len();
    let mut result = DeadBatchResult {
        dry_run,
        matched,
        changed: 0,
        failed: 0,
        errors: BTreeMap::new(),
        more: matched > limit,
    };
    if dry_run {
        return Ok(result);
    }
    let change = async |row: DeadLetterRow| {
        let changed = change_one(api, caller, &row, action).await;
        (row.id, changed)
    };
    let mut changes =
        stream::iter(rows.into_iter().take(limit)).map(change).buffer_unordered(CONCURRENT_CHANGES);
    while let Some((id, changed)) = changes.next().await {
        match changed {
            Ok(()) => result.changed += 1,
            Err(error) => {
                result.failed += 1;
                if result.errors.len() < MAX_ERRORS {
                    result.errors.insert(id, error.message);
                }
            }
        }
    }
    Ok(result)
}

fn parse_filter(body: DeadFilterBody) -> Result<DeadLetterFilter, ApiError> {
    let DeadFilterBody { kind, state, tunnel, workspace, cause, .. } = body;
    let kind = kind.map(|word| {
        DeadLetterKind::parse(&word).ok_or_else(|| {
            let known = DeadLetterKind::ALL.map(DeadLetterKind::as_str).join(", ");
            ApiError::bad_field("kind", format!("expected one of {known}"))
        })
    });
    let state = state.map(|state| state.to_uppercase());
    let filter = DeadLetterFilter { kind: kind.transpose()?, state, tunnel, workspace, cause };
    if filter.is_empty() {
        let why = "no condition; give kind, state, tunnel, workspace or cause";
        return Err(ApiError::bad_field("kind", why));
    }
    Ok(filter)
}

/// Retries or drops one dead letter.
async fn change_one(
    api: &Api,
    caller: &Caller,
    row: &DeadLetterRow,
    action: DeadLetterAction,
) -> Result<(), ApiError> {
    let (store, now) = (&api.store, api.clock.now());
    let is_retry = action == DeadLetterAction::Retry;
    match row.kind {
        DeadLetterKind::Claim => {
            let workspace = row.of.clone().map(Workspace::new).transpose();
            let workspace = workspace.map_err(|error| ApiError::bad_field("workspace", error))?;
            let (id, workspace) = (id::<MailId>(row)?, caller.shown_workspace(workspace)?);
            let changed = match action {
                DeadLetterAction::Retry => store.retry_claim(&id, &workspace, now).await,
                DeadLetterAction::Drop => store.drop_claim(&id, &workspace, now).await,
            };
            changed.map_err(ApiError::of_claim)?;
        }
        DeadLetterKind::Delivery => {
            let to = if is_retry { SendState::Wait } else { SendState::Archived };
            let proof = input::lease_proof(None, caller.holder(None)?)?;
            store.mark_delivery(id::<RecordId>(row)?, to, proof, None, now).await?;
        }
        DeadLetterKind::Letter => {
            let trash = OperatorAction::Trash { why: "by hand".to_owned() };
            let step = if is_retry { OperatorAction::Retry } else { trash };
            api.pipeline.move_letter(id::<LetterId>(row)?, step).await?;
        }
        DeadLetterKind::Draft => {
            let (uid, day) = (row.id.clone(), store.advance_retention_clock(now).await?.0.day());
            let changed = drafts::read(&api.dead_drafts, move |drafts| match action {
                DeadLetterAction::Retry => drafts.retry(&uid),
                DeadLetterAction::Drop => drafts.archive(&uid, day),
            });
            changed.await?.ok_or_else(|| missing(row))?;
        }
        DeadLetterKind::Task => {
            let id = id::<EmailTaskId>(row)?;
            match action {
                DeadLetterAction::Retry => store.retry_task(id, now).await?,
                DeadLetterAction::Drop => store.drop_task(id, now).await?,
            };
        }
    }
    Ok(())
}

/// The typed id of a row that the store has listed.
fn id<T: std::str::FromStr>(row: &DeadLetterRow) -> Result<T, ApiError> {
    row.id.parse().map_err(|_| missing(row).into())
}

fn missing(row: &DeadLetterRow) -> StoreError {
    StoreError::Missing { what: "dead letter", key: row.id.clone() }
}
