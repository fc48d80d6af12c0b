//! Dispatch received messages, send messages, store and get objects.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use monoco_core::did::TunnelId;
use monoco_core::inbound::StoredBytes;
use monoco_core::inbound::check_external_id;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_store::{DispatchOutcome, DispatchRequest, SendRequest, SendResult, TargetResult};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::io::ReaderStream;
#[cfg(test)]
use utoipa::ToSchema;

use super::body_reader::RequestBodyReader;
use super::caller::Caller;
use super::error::ApiError;
use super::input::{self, API_BODIES, API_UPLOADS, JsonBody, PathParams};
use super::views::messages::{BlobView, DispatchResponse, SendResponse};
#[cfg(test)]
use super::views::schemas::{BytesSchema, MsgObjectSchema};
use super::{Api, ApiMetrics, SharedApi, batch, halts, ids, visibility};
use crate::center;

/// Longest idempotency key, in bytes.
const MAX_KEY_BYTES: usize = 256;

/// Larger attachments are sent in parts, smaller ones verified before the response starts.
const MAX_WHOLE_OBJECT: u64 = 1 << 20;

/// Size of the parts, in bytes.
const OBJECT_PART: usize = 64 << 10;

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DispatchBody {
    #[cfg_attr(test, schema(value_type = MsgObjectSchema))]
    msg: Value,
    /// Expected id; a message with another id is rejected
    msg_id: Option<String>,
    ingress: Option<Ingress>,
}

/// How the message was received.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Ingress {
    /// The tunnel that the message was received through
    tunnel: Option<String>,
    /// The provider's stable id of the message, which identifies duplicates
    external_id: Option<String>,
}

/// Dispatch a received message to the boxes of its recipients
///
/// A repeated message is reported as a duplicate and changes nothing. With `Content-Type:
/// application/x-ndjson` the body is a batch with one such object per line. The response has
/// one line for each, in order. All are stored in one commit; a rejected line does not affect
/// the others.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/dispatch", operation_id = "dispatch",
    tag = "center",
    request_body(content(
        (DispatchBody = "application/json"),
        (String = "application/x-ndjson"),
    )),
    responses((status = 200, description = "The result of dispatching one message", content(
        (DispatchResponse = "application/json"),
        (String = "application/x-ndjson"),
    )))
))]
pub async fn dispatch(
    State(api): State<SharedApi>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    match input::content_type(request.headers()) {
        Some("application/json") => {
            let bytes = input::body(request.into_body(), input::MAX_JSON, &API_BODIES).await?;
            let batch = vec![parse_dispatch(&caller, &bytes)?];
            let mut results =
                center::dispatch(&api.store, &api.entry, batch, api.clock.now()).await;
            let result = results.pop().ok_or_else(batch::no_result)??;
            api.metrics.record_dispatch(&result.outcome);
            Ok(axum::Json(DispatchResponse::new(result, None)).into_response())
        }
        Some("application/x-ndjson") => {
            let bytes = input::body(request.into_body(), input::MAX_BATCH, &API_BODIES).await?;
            dispatch_batch(&api, &caller, &bytes).await
        }
        _ => Err(ApiError::wrong_type("application/json` or `application/x-ndjson")),
    }
}

async fn dispatch_batch(api: &Api, caller: &Caller, bytes: &[u8]) -> Result<Response, ApiError> {
    let (mut requests, mut lines) = (Vec::new(), Vec::new());
    for (number, line) in batch::lines(bytes)? {
        lines.push((number, parse_dispatch(caller, line).map(|request| requests.push(request))));
    }
    let results = center::dispatch(&api.store, &api.entry, requests, api.clock.now()).await;
    batch::respond(lines, results, |number, result| {
        api.metrics.record_dispatch(&result.outcome);
        Ok(DispatchResponse::new(result, Some(number)))
    })
}

fn parse_dispatch(caller: &Caller, bytes: &[u8]) -> Result<DispatchRequest, ApiError> {
    let body: DispatchBody = input::from_value(monoco_core::json::parse(bytes)?)?;
    let msg = parse_message(caller, body.msg, body.msg_id.as_deref())?;
    let Some(Ingress { tunnel, external_id }) = body.ingress else {
        return Ok(DispatchRequest { msg, tunnel: None, external_id: None });
    };
    let parse = |name: String| name.parse::<TunnelId>();
    let tunnel = tunnel.map(parse).transpose();
    let tunnel = tunnel.map_err(|error| ApiError::bad_field("ingress.tunnel", error))?;
    if let (Some(token), Some(tunnel)) = (caller.agent(), &tunnel) {
        token.check_sender(&tunnel.did())?;
    }
    if let Some(id) = &external_id {
        check_external_id(id).map_err(|e| ApiError::bad_field("ingress.external_id", e))?;
        if tunnel.is_none() {
            let why = "missing; an external_id needs the tunnel that it belongs to";
            return Err(ApiError::bad_field("ingress.tunnel", why));
        }
    }
    Ok(DispatchRequest { msg, tunnel, external_id })
}

/// Parses a message. Its author must be the agent, when the caller is one.
fn parse_message(
    caller: &Caller,
    mut msg: Value,
    expected: Option<&str>,
) -> Result<MsgObject, ApiError> {
    caller.fill_sender(&mut msg);
    let msg = MsgObject::from_json(msg)?;
    caller.check_sender(&msg)?;
    if let Some(expected) = expected {
        let found = msg.id().to_string();
        if expected != found {
            return Err(ApiError::id_mismatch(expected, &found));
        }
    }
    Ok(msg)
}

#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SendBody {
    #[cfg_attr(test, schema(value_type = MsgObjectSchema))]
    msg: Value,
    /// Expected id; a message with another id is rejected
    msg_id: Option<String>,
    /// Idempotency key, 1 to 256 bytes; the same as the header `Idempotency-Key`
    idempotency_key: Option<String>,
    /// Earliest time to send: RFC 3339, or milliseconds since 1970
    #[cfg_attr(test, schema(value_type = Option<String>))]
    schedule_at: Option<Value>,
    /// Only resolve the targets and store nothing; default false. The deliveries in the
    /// response have no `record_id`. A tunnel that cannot send is an error
    #[serde(default)]
    dry_run: bool,
}

/// Send a message to all its targets
///
/// All targets are resolved before anything is written. If one cannot be resolved, the whole
/// send is rejected and the error names it. A repeated message is reported as a duplicate and
/// changes nothing.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/post_send", operation_id = "send",
    tag = "center",
    params(("Idempotency-Key" = Option<String>, Header, description = "Idempotency key of this send, 1 to 256 bytes")),
    request_body = SendBody,
    responses((status = 200, body = SendResponse))
))]
pub async fn post_send(
    State(api): State<SharedApi>,
    caller: Caller,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SendBody>,
) -> Result<axum::Json<SendResponse>, ApiError> {
    let key = parse_key(&caller, &headers, body.idempotency_key)?;
    let not_before = body.schedule_at.as_ref().map(parse_schedule).transpose()?;
    let msg = parse_message(&caller, body.msg, body.msg_id.as_deref())?;
    if body.dry_run {
        let msg_id = msg.id();
        let ways = api.store.plan_send(msg).await?;
        for TargetResult { target, plan, .. } in &ways {
            let tunnel = plan.as_ref().and_then(|plan| api.tunnels.find(&plan.tunnel_did));
            if let Some(why) = tunnel.and_then(|tunnel| tunnel.adapter.cannot_send()) {
                return Err(ApiError::bad_field("msg.to", format!("{target}: {why}")));
            }
        }
        let planned = SendResult::Queued { msg_id, duplicate: false, ways };
        return Ok(axum::Json(SendResponse::from(planned)));
    }
    let request = SendRequest { msg, key, not_before, origin: caller.origin() };
    let result = center::post_send(&api.store, &api.entry, request, api.clock.now()).await?;
    respond(&api, result).await.map(axum::Json)
}

/// The response to a send, with the halts that apply now.
pub async fn respond(api: &Api, result: SendResult) -> Result<SendResponse, ApiError> {
    let mut response = SendResponse::from(result);
    response.halted = halts::halts(api).await?.into_iter().map(|halt| halt.scope).collect();
    let is_held = response.approval.is_some();
    api.metrics.record_send(response.ok, response.duplicate, is_held);
    Ok(response)
}

pub fn parse_key(
    caller: &Caller,
    headers: &HeaderMap,
    field: Option<String>,
) -> Result<Option<String>, ApiError> {
    let header = input::idempotency_key(headers)
        .map_err(|why| ApiError::bad_parameter("Idempotency-Key", why))?;
    if let (Some(header), Some(field)) = (&header, &field)
        && header != field
    {
        let why = "differs from the header Idempotency-Key; send only one of them";
        return Err(ApiError::bad_field("idempotency_key", why));
    }
    let key = header.or(field);
    if key.as_ref().is_some_and(|key| key.is_empty() || key.len() > MAX_KEY_BYTES) {
        return Err(ApiError::bad_field("idempotency_key", "expected 1 to 256 bytes"));
    }
    Ok(key.map(|key| caller.own_key(key)))
}

fn parse_schedule(value: &Value) -> Result<Timestamp, ApiError> {
    let ms = match value {
        Value::String(text) => text.parse::<jiff::Timestamp>().ok().map(|at| at.as_millisecond()),
        Value::Number(number) => number.as_i64(),
        _ => None,
    };
    // The upper limit is the end of the year 9999.
    match ms {
        Some(ms @ 0..=253_402_300_799_999) => Ok(Timestamp::from_ms(ms)),
        _ => Err(ApiError::bad_field(
            "schedule_at",
            "expected RFC 3339, such as 2026-02-06T20:45:00Z, or milliseconds since 1970",
        )),
    }
}

/// Store bytes, such as an attachment
///
/// Refer to them in `content.refs` of a message by the returned id. At most 32 MiB. Unfinished
/// uploads share 128 MiB; one that finds no space is answered with 503 and `Retry-After`.
#[cfg_attr(test, utoipa::path(
    post, path = "/api/v1/objects", operation_id = "put_object",
    tag = "center",
    request_body(content = BytesSchema, content_type = "application/octet-stream"),
    responses((status = 201, body = BlobView))
))]
pub async fn put_blob(
    State(api): State<SharedApi>,
    request: Request,
) -> Result<(StatusCode, axum::Json<BlobView>), ApiError> {
    if input::content_type(request.headers()) != Some("application/octet-stream") {
        return Err(ApiError::wrong_type("application/octet-stream"));
    }
    let mut body = RequestBodyReader::new(request.into_body(), input::MAX_BLOB, &API_UPLOADS)?;
    let stored = api.store.put_blob_from(&mut body, input::MAX_BLOB as u64).await;
    if let Some(failure) = body.take_failure() {
        return Err(failure);
    }
    let StoredBytes { hash, size } = stored?;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    Ok((StatusCode::CREATED, axum::Json(BlobView { id: hash.to_string(), size })))
}

/// Get an object
///
/// A message or a receipt as canonical JSON; bytes unchanged.
#[cfg_attr(test, utoipa::path(
    get, path = "/api/v1/objects/{id}", operation_id = "get_object",
    tag = "center",
    params(("id" = String, Path, description = "`cymsg:…`, `cymsgr:…` or `sha256:…`; can be shortened")),
    responses((status = 200, description = "The object", content(
        (MsgObjectSchema = "application/json"),
        (BytesSchema = "application/octet-stream"),
    )))
))]
pub async fn object(
    State(api): State<SharedApi>,
    caller: Caller,
    path: PathParams,
) -> Result<Response, ApiError> {
    let invalid = |error| ApiError::bad_parameter("id", error);
    let id: ObjId = ids::resolve(&api, path.text("id"), invalid).await?;
    visibility::read_object(&api, &caller, id, path.text("id")).await?;
    let (kind, disposition) = match id.kind() {
        ObjKind::Msg | ObjKind::Receipt => ("application/json", "inline"),
        // A browser must never render bytes from outside.
        ObjKind::Bytes => ("application/octet-stream", "attachment"),
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::CONTENT_DISPOSITION, disposition)];
    if id.kind() == ObjKind::Bytes {
        let bytes = api.store.open_blob(id).await?;
        if bytes.size() > MAX_WHOLE_OBJECT {
            let size = [(header::CONTENT_LENGTH, bytes.size())];
            // The reader fails before the last part of damaged bytes, which ends the connection.
            let body = Body::from_stream(ReaderStream::with_capacity(bytes, OBJECT_PART));
            return Ok((size, headers, body).into_response());
        }
    }
    Ok((headers, api.store.object(id).await?).into_response())
}

impl ApiMetrics {
    fn record_dispatch(&self, outcome: &DispatchOutcome) {
        self.count_dispatch(match outcome {
            DispatchOutcome::Delivered { duplicate: false, .. } => "delivered",
            DispatchOutcome::Delivered { duplicate: true, .. } => "duplicate",
            DispatchOutcome::Blocked => "blocked",
            DispatchOutcome::Dropped => "dropped",
            DispatchOutcome::Chained { duplicate: false, .. } => "letter",
            DispatchOutcome::Chained { duplicate: true, .. } => "duplicate",
        });
    }

    fn record_send(&self, ok: bool, duplicate: bool, is_held: bool) {
        self.count_send(match (ok, duplicate) {
            (true, false) if is_held => "held",
            (true, false) => "posted",
            (true, true) => "duplicate",
            (false, _) => "blocked_author",
        });
    }
}
