//! Letters: looking at them, and moving them by hand.

use axum::extract::State;
use monoco_core::letter::{
    ChainDirection, LetterId, LetterState, LetterStateData, WorkerName, WorkerVerdict,
};
use monoco_core::time::Timestamp;
use monoco_store::{LetterQuery, LetterRow, OperatorAction, PageRequest, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::{ApiError, ApiErrorView};
use super::input::{self, JsonBody, PathParams, QueryParams};
use super::{Api, SharedApi};
use crate::pipeline::letter_pages::LetterPages;

/// Recipients that are shown in a list.
const SHOWN: usize = 10;

/// How much of a subject is shown in a list, in bytes.
const MAX_SUBJECT: usize = 200;

/// Longest reason, in bytes. Longer ones are cut.
const MAX_REASON: usize = 500;

/// The parameters of a query, in order; a name may be there twice.
pub type Pairs = Vec<(String, String)>;

/// A letter, without what it says.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Letter)]
pub struct LetterView {
    pub id: String,
    /// `inbound` or `outbound`
    direction: &'static str,
    /// The tunnel it comes or goes through, as far as that is known
    #[serde(skip_serializing_if = "Option::is_none")]
    tunnel: Option<String>,
    /// What it was created from: `submitted`, `inbound`, `dispatch` or `send`
    source: &'static str,
    from: String,
    /// Whom it is for, the first ten
    to: Vec<String>,
    /// How many it is for
    recipients: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    /// Bytes of `data`
    size: usize,
    /// WAITING, AWAY, DONE, MERGED, TRASHED or DEAD
    state: &'static str,
    /// Whose turn it is, who keeps it, or who failed
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<String>,
    /// When it is looked at again
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    /// Until when the worker that has it may answer
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    /// How often that worker was tried
    attempts: u32,
    /// Who had it, and what they said
    pub verdicts: Vec<VerdictView>,
    /// Why it failed, was thrown away or given up
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
    /// The message it became
    #[serde(skip_serializing_if = "Option::is_none")]
    became: Option<String>,
    /// The letter that it is part of
    #[serde(skip_serializing_if = "Option::is_none")]
    merged_into: Option<String>,
    created_at: String,
    updated_at: String,
}

/// What one worker said.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Verdict)]
pub struct VerdictView {
    worker: String,
    /// `pass`, `skip` or `trash`
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<String>,
    /// Why, in the worker's words
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// A page of letters.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Letters)]
pub struct LetterPage {
    letters: Vec<LetterView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// One letter with what it says.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = WholeLetter)]
pub struct LetterDetailView {
    #[serde(flatten)]
    view: LetterView,
    /// The letter as a worker gets it: `id`, `from`, `to`, `data`, `extra`, `processed`
    #[schema(value_type = Object)]
    letter: Value,
    /// The letter as it came, where it was asked for and workers changed it
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    original: Option<Value>,
    /// The letters that are part of this one
    #[serde(skip_serializing_if = "Vec::is_empty")]
    merged: Vec<String>,
    /// Counts every change
    revision: i64,
}

/// How much of a letter to show.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct LetterDetailQuery {
    /// Show it as it came, too
    original: Option<bool>,
}

/// Why a letter is thrown away.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TrashLetterBody {
    /// For whoever looks into the bin
    reason: Option<String>,
}

/// List letters, the newest first
///
/// Without what they say; at most ten recipients of each.
#[utoipa::path(
    get, path = "/api/v1/letters", tag = "letters",
    params(
        ("state" = Option<String>, Query, description =
            "Only those that stand so, separated by commas or repeated: WAITING, AWAY, DONE, MERGED, TRASHED, DEAD"),
        ("worker" = Option<String>, Query, description = "Only those at this worker, or kept by it"),
        ("direction" = Option<String>, Query, description = "`inbound` or `outbound`"),
        ("tunnel" = Option<String>, Query, description = "Only those of this tunnel"),
        ("since" = Option<String>, Query, description = "Only those that came then or later, RFC 3339"),
        ("cursor" = Option<String>, Query, description = "Where the last page ended: its `next_cursor`"),
        ("limit" = Option<i64>, Query, description = "Most letters to return, 1 to 1000"),
    ),
    responses((status = 200, body = LetterPage), (status = "4XX", body = ApiErrorView))
)]
pub async fn list(
    State(api): State<SharedApi>,
    QueryParams(pairs): QueryParams<Pairs>,
) -> Result<axum::Json<LetterPage>, ApiError> {
    let (query, window) = wanted(pairs)?;
    let mut leafing = LetterPages::new(query, window.clone());
    let mut letters = Vec::new();
    while let Some(few) = leafing.next_page(&api.store).await? {
        letters.extend(few.iter().map(LetterView::from));
    }
    let next_cursor = input::next_cursor("letters", &window, leafing.next());
    Ok(axum::Json(LetterPage { letters, next_cursor }))
}

fn wanted(pairs: Pairs) -> Result<(LetterQuery, PageRequest), ApiError> {
    let mut query = LetterQuery::default();
    let mut paging = input::PagingQuery { cursor: None, limit: None, order: None };
    for (name, value) in pairs {
        let bad = |why: String| ApiError::bad_parameter(&name, why);
        match name.as_str() {
            "state" => {
                for word in value.split(',') {
                    query.states.push(state(word).ok_or_else(|| {
                        let known = LetterState::ALL.map(LetterState::as_str).join(", ");
                        bad(format!("want one of {known}"))
                    })?);
                }
            }
            "worker" => query.worker = Some(read(&value).map_err(bad)?),
            "direction" => query.direction = Some(direction(&value).map_err(bad)?),
            "tunnel" => query.tunnel = Some(read(&value).map_err(bad)?),
            "since" => query.since = Some(when(&value).map_err(bad)?),
            "cursor" => paging.cursor = Some(value),
            "limit" => paging.limit = Some(read(&value).map_err(bad)?),
            _ => {
                let known = "state, worker, direction, tunnel, since, cursor or limit";
                return Err(bad(format!("want {known}")));
            }
        }
    }
    Ok((query, paging.window("letters")?))
}

fn state(word: &str) -> Option<LetterState> {
    LetterState::parse(word.trim())
}

fn read<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| error.to_string())
}

/// A direction that a caller named.
pub fn direction(text: &str) -> Result<ChainDirection, String> {
    ChainDirection::parse(text).ok_or_else(|| "want inbound or outbound".to_owned())
}

/// A time that a caller named.
pub fn when(text: &str) -> Result<Timestamp, String> {
    Timestamp::from_rfc3339(text).map_err(|error| error.to_string())
}

/// Show one letter
#[utoipa::path(
    get, path = "/api/v1/letters/{id}", tag = "letters",
    params(("id" = String, Path, description = "The letter's name: `ltr_…`"), LetterDetailQuery),
    responses((status = 200, body = LetterDetailView), (status = "4XX", body = ApiErrorView))
)]
pub async fn show(
    State(api): State<SharedApi>,
    path: PathParams,
    QueryParams(LetterDetailQuery { original }): QueryParams<LetterDetailQuery>,
) -> Result<axum::Json<LetterDetailView>, ApiError> {
    let row = api.store.letter(letter_id(&path)?).await?;
    let asked = original.unwrap_or(false);
    let original = row.source.letter().ok().filter(|letter| asked && *letter != row.letter);
    let merged = row.letter.extra.get("merged").and_then(Value::as_array);
    let merged = merged.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    Ok(axum::Json(LetterDetailView {
        view: LetterView::whole(&row),
        letter: row.letter.to_worker(row.id, &row.verdicts),
        original: original.map(|letter| letter.to_worker(row.id, &[])),
        merged: merged.collect(),
        revision: row.revision,
    }))
}

/// Give a dead letter another chance, or have one that waits looked at now
#[utoipa::path(
    post, path = "/api/v1/letters/{id}/retry", tag = "letters",
    params(("id" = String, Path, description = "The letter's name: `ltr_…`")),
    responses((status = 200, body = LetterView), (status = "4XX", body = ApiErrorView))
)]
pub async fn retry(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<LetterView>, ApiError> {
    by_hand(&api, &path, OperatorAction::Retry).await
}

/// Throw a letter away
///
/// It stays in the bin for a while, and can be restored.
#[utoipa::path(
    post, path = "/api/v1/letters/{id}/trash", tag = "letters", request_body = TrashLetterBody,
    params(("id" = String, Path, description = "The letter's name: `ltr_…`")),
    responses((status = 200, body = LetterView), (status = "4XX", body = ApiErrorView))
)]
pub async fn trash(
    State(api): State<SharedApi>,
    path: PathParams,
    JsonBody(TrashLetterBody { reason }): JsonBody<TrashLetterBody>,
) -> Result<axum::Json<LetterView>, ApiError> {
    let mut why = reason.unwrap_or_else(|| "by hand".to_owned());
    why.truncate(why.floor_char_boundary(MAX_REASON));
    by_hand(&api, &path, OperatorAction::Trash { why }).await
}

/// Take a letter out of the bin
///
/// It goes on to whoever comes after the worker that threw it away.
#[utoipa::path(
    post, path = "/api/v1/letters/{id}/restore", tag = "letters",
    params(("id" = String, Path, description = "The letter's name: `ltr_…`")),
    responses((status = 200, body = LetterView), (status = "4XX", body = ApiErrorView))
)]
pub async fn restore(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<LetterView>, ApiError> {
    by_hand(&api, &path, OperatorAction::Restore).await
}

/// Have a letter go through its chain again, as it came
///
/// Only one that is TRASHED or DEAD: what was sent or delivered is not sent again.
#[utoipa::path(
    post, path = "/api/v1/letters/{id}/replay", tag = "letters",
    params(("id" = String, Path, description = "The letter's name: `ltr_…`")),
    responses((status = 200, body = LetterView), (status = "4XX", body = ApiErrorView))
)]
pub async fn replay(
    State(api): State<SharedApi>,
    path: PathParams,
) -> Result<axum::Json<LetterView>, ApiError> {
    by_hand(&api, &path, OperatorAction::Replay).await
}

async fn by_hand(
    api: &Api,
    path: &PathParams,
    how: OperatorAction,
) -> Result<axum::Json<LetterView>, ApiError> {
    let id = letter_id(path)?;
    let row = api.pipeline.move_letter(id, how).await.map_err(refused)?;
    Ok(axum::Json(LetterView::whole(&row)))
}

/// A step that a letter can't take is refused in words of its own.
fn refused(error: StoreError) -> ApiError {
    let StoreError::InvalidTransition(wrong) = &error else { return error.into() };
    let why = match wrong.from {
        "WAITING" => "it is under way",
        "AWAY" => "a worker has it; wait until its time is over, or throw it away",
        "DONE" => "it was sent or delivered, and nothing takes that back",
        "MERGED" => "it is part of another letter",
        "TRASHED" => "it is in the bin; restore it",
        "DEAD" => "it is given up; try it again, or throw it away",
        _ => return error.into(),
    };
    ApiError::wrong_state(wrong, why)
}

/// The letter that the path names. What can't be a name is no letter either.
fn letter_id(path: &PathParams) -> Result<LetterId, ApiError> {
    path.text("id").parse().map_err(|_| {
        let key = path.text("id").chars().take(80).collect();
        StoreError::Missing { what: "letter", key }.into()
    })
}

impl LetterView {
    /// With everything that workers said.
    pub fn whole(row: &LetterRow) -> Self {
        Self { verdicts: row.verdicts.iter().map(VerdictView::whole).collect(), ..row.into() }
    }
}

impl From<&LetterRow> for LetterView {
    fn from(row: &LetterRow) -> Self {
        let (mut due_at, mut until, mut merged_into, mut why) = (None, None, None, None);
        match &row.status.standing {
            LetterStateData::Waiting { due } => due_at = Some(due.rfc3339()),
            LetterStateData::Away { until: over } => until = Some(over.rfc3339()),
            LetterStateData::Merged { into } => merged_into = Some(into.to_string()),
            LetterStateData::Trashed { why: said } | LetterStateData::Dead { why: said } => {
                why = Some(said.clone());
            }
            LetterStateData::Done => {}
        }
        let worker = row.worker.as_ref().or(row.held_by.as_ref());
        Self {
            id: row.id.to_string(),
            direction: row.direction.as_str(),
            tunnel: row.tunnel.as_ref().map(ToString::to_string),
            source: row.source.kind().as_str(),
            from: row.letter.from.clone(),
            to: row.letter.to.iter().take(SHOWN).cloned().collect(),
            recipients: row.letter.to.len(),
            subject: subject(row),
            size: row.letter.data.len(),
            state: row.status.standing.name().as_str(),
            worker: worker.map(WorkerName::to_string),
            due_at,
            until,
            attempts: row.status.attempts,
            verdicts: row.verdicts.iter().map(VerdictView::from).collect(),
            failure: why.or_else(|| row.failure.clone()),
            became: row.became.map(|msg_id| msg_id.to_string()),
            merged_into,
            created_at: row.created_at.rfc3339(),
            updated_at: row.updated_at.rfc3339(),
        }
    }
}

impl VerdictView {
    /// With time and reason.
    pub fn whole(passed: &WorkerVerdict) -> Self {
        let (at, note) = (Some(passed.at.rfc3339()), passed.note.clone());
        Self { at, note, ..passed.into() }
    }
}

impl From<&WorkerVerdict> for VerdictView {
    fn from(passed: &WorkerVerdict) -> Self {
        let worker = passed.worker.to_string();
        Self { worker, result: passed.result.as_str(), at: None, note: None }
    }
}

/// What a letter is about, cut short.
fn subject(row: &LetterRow) -> Option<String> {
    let mut subject = match row.letter.is_mail() {
        true => monoco_mime::subject(&row.letter.bytes())?,
        false => row.letter.extra("subject")?.to_owned(),
    };
    subject.truncate(subject.floor_char_boundary(MAX_SUBJECT));
    Some(subject)
}
