//! Messages in and out, and the objects themselves.

use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use monoco_core::did::TunnelId;
use monoco_core::inbound::check_external_id;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_store::{DispatchOutcome, DispatchRequest, DispatchResult, SendRequest, SendResult};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::{ApiError, ApiErrorView};
use super::input::{self, JsonBody, PathParams};
use super::views::PlanView;
use super::{Api, SharedApi, batch, health};
use crate::center;

/// Longest idempotency key, in bytes.
const MAX_KEY: usize = 256;

/// A message that came in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DispatchBody {
    /// The message: `from`, `to`, `kind`, `content`, …
    #[schema(value_type = Object)]
    msg: Value,
    /// The id you think it has; refused when it has another
    msg_id: Option<String>,
    ingress: Option<Ingress>,
}

/// How it came in.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Ingress {
    /// The tunnel it came through
    tunnel: Option<String>,
    /// The provider's stable id of it, by which a repetition is recognised
    external_id: Option<String>,
}

/// What became of a message that came in.
#[derive(Debug, Serialize, ToSchema)]
pub struct DispatchResponse {
    /// The line of a batch, from 1
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    /// Whether it is in the boxes of whom it is for
    ok: bool,
    /// Why not: `blocked` or `stranger`
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    msg_id: String,
    /// Whether it had come before; then nothing was done
    duplicate: bool,
    delivered: Vec<CreatedRecordView>,
    /// The letter it goes through its chain as; it is in nobody's box before that
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<String>,
}

/// A record that was made.
#[derive(Debug, Serialize, ToSchema)]
pub struct CreatedRecordView {
    owner: String,
    r#box: &'static str,
    record_id: String,
}

/// Put a message that came in into its boxes
///
/// Repeating it does nothing and says so. With `Content-Type: application/x-ndjson`
/// the body is a batch, one such object per line, and so is the answer: one line for
/// each, in order, all in one commit. A line that is refused does not harm the others.
#[utoipa::path(
    post, path = "/api/v1/dispatch", tag = "center",
    request_body(content(
        (DispatchBody = "application/json"),
        (String = "application/x-ndjson"),
    )),
    responses(
        (status = 200, body = DispatchResponse),
        (status = "4XX", body = ApiErrorView),
        (status = "5XX", body = ApiErrorView),
    )
)]
pub async fn dispatch(
    State(api): State<SharedApi>,
    request: Request,
) -> Result<Response, ApiError> {
    match input::content_type(request.headers()) {
        Some("application/json") => {
            let bytes = input::body(request, input::MAX_JSON).await?;
            let batch = vec![read_dispatch(&bytes)?];
            let mut answers =
                center::dispatch(&api.store, &api.entry, batch, api.clock.now()).await;
            let answer = answers.pop().ok_or_else(batch::no_answer)??;
            api.metrics.dispatched(&answer.outcome);
            Ok(axum::Json(DispatchResponse::new(answer, None)).into_response())
        }
        Some("application/x-ndjson") => {
            let bytes = input::body(request, input::MAX_BATCH).await?;
            dispatch_batch(&api, &bytes).await
        }
        _ => Err(ApiError::wrong_type("application/json` or `application/x-ndjson")),
    }
}

async fn dispatch_batch(api: &Api, bytes: &[u8]) -> Result<Response, ApiError> {
    let (mut good, mut lines) = (Vec::new(), Vec::new());
    for (number, line) in batch::lines(bytes)? {
        lines.push((number, read_dispatch(line).map(|dispatch| good.push(dispatch))));
    }
    let answers = center::dispatch(&api.store, &api.entry, good, api.clock.now()).await;
    batch::answer(lines, answers, |number, answer| {
        api.metrics.dispatched(&answer.outcome);
        Ok(DispatchResponse::new(answer, Some(number)))
    })
}

fn read_dispatch(bytes: &[u8]) -> Result<DispatchRequest, ApiError> {
    let body: DispatchBody = input::shape(monoco_core::json::parse(bytes)?)?;
    let msg = seal(body.msg, body.msg_id.as_deref())?;
    let Some(Ingress { tunnel, external_id }) = body.ingress else {
        return Ok(DispatchRequest { msg, tunnel: None, external_id: None });
    };
    let parse = |name: String| name.parse::<TunnelId>();
    let tunnel = tunnel.map(parse).transpose();
    let tunnel = tunnel.map_err(|error| ApiError::bad_field("ingress.tunnel", error))?;
    if let Some(id) = &external_id {
        check_external_id(id).map_err(|e| ApiError::bad_field("ingress.external_id", e))?;
        if tunnel.is_none() {
            let why = "an external id needs the tunnel whose it is";
            return Err(ApiError::bad_field("ingress.tunnel", why));
        }
    }
    Ok(DispatchRequest { msg, tunnel, external_id })
}

fn seal(msg: Value, shown: Option<&str>) -> Result<MsgObject, ApiError> {
    let msg = MsgObject::from_json(msg)?;
    let real = msg.id().to_string();
    match shown {
        Some(shown) if shown != real => Err(ApiError::id_mismatch(shown, &real)),
        _ => Ok(msg),
    }
}

impl DispatchResponse {
    fn new(answer: DispatchResult, line: Option<usize>) -> Self {
        let msg_id = answer.msg_id.to_string();
        let refused = |reason| Self {
            line,
            ok: false,
            reason: Some(reason),
            msg_id: msg_id.clone(),
            duplicate: false,
            delivered: Vec::new(),
            letter: None,
        };
        match answer.outcome {
            DispatchOutcome::Blocked => refused("blocked"),
            DispatchOutcome::Dropped => refused("stranger"),
            DispatchOutcome::Delivered { duplicate, records } => {
                let delivered = records.into_iter().map(|placed| CreatedRecordView {
                    owner: placed.owner.into(),
                    r#box: placed.box_kind.as_str(),
                    record_id: placed.record_id.to_string(),
                });
                let delivered = delivered.collect();
                Self { line, ok: true, reason: None, msg_id, duplicate, delivered, letter: None }
            }
            DispatchOutcome::Chained { letter, duplicate } => Self {
                line,
                ok: true,
                reason: None,
                msg_id,
                duplicate,
                delivered: Vec::new(),
                letter: Some(letter.to_string()),
            },
        }
    }
}

/// A message that leaves its author's hands.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendBody {
    /// The message: `from`, `to`, `kind`, `content`, …
    #[schema(value_type = Object)]
    msg: Value,
    /// The id you think it has; refused when it has another
    msg_id: Option<String>,
    /// Your own name for this send; the header `Idempotency-Key` says the same
    idempotency_key: Option<String>,
    /// Not to be sent before this: RFC 3339, or milliseconds since 1970
    #[schema(value_type = Option<String>)]
    schedule_at: Option<Value>,
}

/// What became of a message that left its author's hands.
#[derive(Debug, Serialize, ToSchema)]
pub struct SendResponse {
    /// Whether it is on its way to every target
    ok: bool,
    /// Why not: `blocked_author`
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    msg_id: String,
    /// Whether it was posted before; then nothing was done
    duplicate: bool,
    deliveries: Vec<TargetResultView>,
    /// The letter it goes through its chain as; there are no deliveries before that
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<String>,
}

/// How one target gets it.
#[derive(Debug, Serialize, ToSchema)]
pub struct TargetResultView {
    target: String,
    /// The tunnel; none for a target that lives here
    tunnel: Option<String>,
    /// The delivery, or the record in the target's box here; none when the target
    /// has blocked the author
    record_id: Option<String>,
    plan: Option<PlanView>,
}

/// Put a message on its way to every target
///
/// All targets are resolved before anything is written; one that can't be reached
/// fails the whole send, and is named. Repeating it does nothing and says so.
#[utoipa::path(
    post, path = "/api/v1/post_send", tag = "center",
    params(("Idempotency-Key" = Option<String>, Header, description = "Your own name for this send")),
    request_body = SendBody,
    responses(
        (status = 200, body = SendResponse),
        (status = "4XX", body = ApiErrorView),
        (status = "5XX", body = ApiErrorView),
    )
)]
pub async fn post_send(
    State(api): State<SharedApi>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SendBody>,
) -> Result<axum::Json<SendResponse>, ApiError> {
    let key = key(&headers, body.idempotency_key)?;
    let not_before = body.schedule_at.as_ref().map(when).transpose()?;
    let msg = seal(body.msg, body.msg_id.as_deref())?;
    let request = SendRequest { msg, key, not_before };
    let sent = center::post_send(&api.store, &api.entry, request, api.clock.now()).await?;
    let answer = match sent {
        SendResult::BlockedAuthor { msg_id } => SendResponse {
            ok: false,
            reason: Some("blocked_author"),
            msg_id: msg_id.to_string(),
            duplicate: false,
            deliveries: Vec::new(),
            letter: None,
        },
        SendResult::Chained { msg_id, letter, duplicate } => SendResponse {
            ok: true,
            reason: None,
            msg_id: msg_id.to_string(),
            duplicate,
            deliveries: Vec::new(),
            letter: Some(letter.to_string()),
        },
        SendResult::Queued { msg_id, duplicate, ways } => SendResponse {
            ok: true,
            reason: None,
            msg_id: msg_id.to_string(),
            duplicate,
            deliveries: ways
                .into_iter()
                .map(|way| TargetResultView {
                    target: way.target.into(),
                    tunnel: way.plan.as_ref().map(|plan| plan.tunnel_did.to_string()),
                    record_id: way.record_id.map(|id| id.to_string()),
                    plan: way.plan.map(Into::into),
                })
                .collect(),
            letter: None,
        },
    };
    api.metrics.posted(answer.ok, answer.duplicate);
    Ok(axum::Json(answer))
}

fn key(headers: &HeaderMap, field: Option<String>) -> Result<Option<String>, ApiError> {
    let header = input::idempotency_key(headers)
        .map_err(|why| ApiError::bad_parameter("Idempotency-Key", why))?;
    if let (Some(header), Some(field)) = (&header, &field)
        && header != field
    {
        let why = "the header and the field say different things";
        return Err(ApiError::bad_field("idempotency_key", why));
    }
    let key = header.or(field);
    if key.as_ref().is_some_and(|key| key.is_empty() || key.len() > MAX_KEY) {
        return Err(ApiError::bad_field("idempotency_key", "want 1 to 256 bytes"));
    }
    Ok(key)
}

fn when(value: &Value) -> Result<Timestamp, ApiError> {
    let ms = match value {
        Value::String(text) => text.parse::<jiff::Timestamp>().ok().map(|at| at.as_millisecond()),
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    // The year 9999 ends there; later is a slip of the pen.
    match ms {
        Some(ms @ 0..=253_402_300_799_999) => Ok(Timestamp::from_ms(ms)),
        _ => Err(ApiError::bad_field(
            "schedule_at",
            "want RFC 3339, such as 2026-02-06T20:45:00Z, or milliseconds since 1970",
        )),
    }
}

/// What plain bytes are called.
#[derive(Debug, Serialize, ToSchema)]
pub struct BlobView {
    /// `sha256:` and the hash
    id: String,
    size: usize,
}

/// Keep plain bytes, such as an attachment
///
/// Name them in `content.refs` of a message by the id that comes back.
#[utoipa::path(
    post, path = "/api/v1/objects", tag = "center",
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 201, body = BlobView), (status = "4XX", body = ApiErrorView))
)]
pub async fn keep_bytes(
    State(api): State<SharedApi>,
    request: Request,
) -> Result<(StatusCode, axum::Json<BlobView>), ApiError> {
    if input::content_type(request.headers()) != Some("application/octet-stream") {
        return Err(ApiError::wrong_type("application/octet-stream"));
    }
    let bytes: Bytes = input::body(request, input::MAX_BYTES).await?;
    let size = bytes.len();
    let id = api.store.put_blob(bytes.into()).await?.to_string();
    Ok((StatusCode::CREATED, axum::Json(BlobView { id, size })))
}

/// The object with this id
///
/// A message or a receipt as its canonical JSON; bytes as they are.
#[utoipa::path(
    get, path = "/api/v1/objects/{id}", tag = "center",
    params(("id" = String, Path, description = "`cymsg:…`, `cymsgr:…` or `sha256:…`")),
    responses((status = 200, body = Object), (status = "4XX", body = ApiErrorView))
)]
pub async fn object(State(api): State<SharedApi>, path: PathParams) -> Result<Response, ApiError> {
    let id: ObjId = path.parse("id")?;
    let bytes = api.store.object(id).await?;
    let (kind, disposition) = match id.kind() {
        ObjKind::Msg | ObjKind::Receipt => ("application/json", "inline"),
        // Bytes of a stranger are never shown by a browser.
        ObjKind::Bytes => ("application/octet-stream", "attachment"),
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_DISPOSITION, disposition)];
    Ok((headers, bytes).into_response())
}

impl health::ApiMetrics {
    fn dispatched(&self, outcome: &DispatchOutcome) {
        self.dispatch(match outcome {
            DispatchOutcome::Delivered { duplicate: false, .. } => "delivered",
            DispatchOutcome::Delivered { duplicate: true, .. } => "duplicate",
            DispatchOutcome::Blocked => "blocked",
            DispatchOutcome::Dropped => "dropped",
            DispatchOutcome::Chained { duplicate: false, .. } => "letter",
            DispatchOutcome::Chained { duplicate: true, .. } => "duplicate",
        });
    }

    fn posted(&self, ok: bool, duplicate: bool) {
        self.post(match (ok, duplicate) {
            (true, false) => "posted",
            (true, true) => "duplicate",
            (false, _) => "blocked_author",
        });
    }
}
