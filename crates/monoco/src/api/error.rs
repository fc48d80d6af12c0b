//! The one file that says no.
//!
//! `code` is for programs and never changes; `message` is for people and may.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use monoco_core::json::InvalidJson;
use monoco_core::lease::{Lease, LeaseLost};
use monoco_core::letter::InvalidLetter;
use monoco_core::object::InvalidObject;
use monoco_core::record::InvalidTransition;
use monoco_store::StoreError;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::center::CenterError;
use crate::pipeline::pipeline::SubmitError;

/// A refusal.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// What a program may want to know beyond the code.
    more: Map<String, Value>,
}

/// A refusal as it is sent.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub struct ApiErrorView {
    /// For programs; never changes.
    pub code: &'static str,
    /// For people: what is wrong and what to do about it.
    pub message: String,
    /// Facts that go with the code, such as `from` and `to` of a refused step.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub more: Map<String, Value>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), more: Map::new() }
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    pub fn foreign_host() -> Self {
        let message = "this Host is not ours; ask for localhost or 127.0.0.1 with the port";
        Self::new(StatusCode::FORBIDDEN, "foreign_host", message)
    }

    pub fn foreign_origin() -> Self {
        let message = "web pages of other origins may not come in";
        Self::new(StatusCode::FORBIDDEN, "foreign_origin", message)
    }

    pub fn no_token() -> Self {
        let message = "send `Authorization: Bearer TOKEN`; `monoco courier token` prints it";
        Self::new(StatusCode::UNAUTHORIZED, "no_token", message)
    }

    pub fn wrong_token() -> Self {
        let message = "this is not the token of this courier; `monoco courier token` prints it";
        Self::new(StatusCode::UNAUTHORIZED, "wrong_token", message)
    }

    pub fn no_route() -> Self {
        let message = "there is no such route; /api/openapi.json lists them all";
        Self::new(StatusCode::NOT_FOUND, "no_route", message)
    }

    pub fn no_webhook() -> Self {
        let message = "there is no such webhook here";
        Self::new(StatusCode::NOT_FOUND, "no_webhook", message)
    }

    pub fn unverified(why: String) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unverified", why)
    }

    pub fn unreadable(why: String) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable", why)
    }

    pub fn busy() -> Self {
        let message = "too much comes in at the same time; send it again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message)
    }

    /// Somebody else of the workspace has the Mail.
    pub fn claimed(lease: &Lease) -> Self {
        let (holder, until) = (lease.holder.as_str(), lease.until.rfc3339());
        let message = format!("claimed by {holder} until {until}");
        Self::new(StatusCode::CONFLICT, "claimed", message)
            .with("claimed_by", holder)
            .with("expires_at", until)
    }

    /// The workspace is done with the Mail.
    pub fn ended(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }

    pub fn method_not_allowed() -> Self {
        let message = "the route does not take this method; /api/openapi.json says which";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub fn too_slow() -> Self {
        let message = "the answer took too long; what was asked may still be done";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_slow", message)
    }

    pub fn body_too_slow() -> Self {
        let message = "the body did not arrive in time";
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message)
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("the body is over {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).with("limit", limit)
    }

    pub fn body_broke_off() -> Self {
        Self::new(StatusCode::BAD_REQUEST, "body_broke_off", "the body broke off")
    }

    pub fn wrong_type(wanted: &str) -> Self {
        let message = format!("send `Content-Type: {wanted}`");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_type", message)
    }

    /// A parameter of the path or the query is wrong.
    pub fn bad_parameter(name: &str, why: impl std::fmt::Display) -> Self {
        let message = format!("{name}: {why}");
        Self::new(StatusCode::BAD_REQUEST, "bad_parameter", message).with("parameter", name)
    }

    /// A field of the body is wrong.
    pub fn bad_field(field: &str, why: impl std::fmt::Display) -> Self {
        let message = format!("{field}: {why}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_field", message).with("field", field)
    }

    /// The body is JSON of another shape.
    pub fn wrong_shape(error: &serde_json::Error) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_shape", error.to_string())
    }

    /// A letter can't be moved so.
    pub fn wrong_state(wrong: &InvalidTransition, why: &str) -> Self {
        let message = format!("{wrong}: {why}");
        Self::new(StatusCode::CONFLICT, "wrong_state", message)
            .with("from", wrong.from)
            .with("to", wrong.to)
    }

    pub fn id_mismatch(shown: &str, real: &str) -> Self {
        let message = format!("the object's id is {real}, not {shown}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "id_mismatch", message).with("msg_id", real)
    }

    /// The refusal as one line of a batch's answer.
    pub fn line(&self, number: usize) -> Value {
        let mut line = json!({
            "line": number,
            "ok": false,
            "code": self.code,
            "message": self.message,
            "status": self.status.as_u16(),
        });
        if let Some(line) = line.as_object_mut() {
            line.extend(self.more.clone());
        }
        line
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Bad(bad) => bad.into(),
            SubmitError::Store(error) => error.into(),
        }
    }
}

impl From<InvalidLetter> for ApiError {
    fn from(error: InvalidLetter) -> Self {
        let message = error.to_string();
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_letter", message)
            .with("field", error.field)
    }
}

impl From<InvalidJson> for ApiError {
    fn from(error: InvalidJson) -> Self {
        let code = match error {
            InvalidJson::Truncated(_) => "truncated_json",
            InvalidJson::Invalid(_) => "bad_json",
        };
        Self::new(StatusCode::BAD_REQUEST, code, error.to_string())
    }
}

impl From<InvalidObject> for ApiError {
    fn from(error: InvalidObject) -> Self {
        match &error {
            InvalidObject::Field { field, .. } => {
                let field = format!("msg.{field}");
                let message = format!("msg.{error}");
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_object", message)
                    .with("field", field)
            }
            InvalidObject::TooLarge { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", error.to_string())
            }
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        let message = error.to_string();
        let say = |status, code| Self::new(status, code, message.clone());
        match error {
            StoreError::Missing { what, .. } => {
                say(StatusCode::NOT_FOUND, "not_found").with("what", what)
            }
            StoreError::Conflict { revision, .. } => {
                say(StatusCode::CONFLICT, "conflict").with("revision", revision)
            }
            StoreError::InvalidTransition(wrong) => say(StatusCode::CONFLICT, "wrong_state")
                .with("from", wrong.from)
                .with("to", wrong.to),
            StoreError::LeaseLost(lost) => {
                let problem = say(StatusCode::CONFLICT, "lease_lost");
                match lost {
                    LeaseLost::Stale { current, .. } => problem.with("epoch", current),
                    LeaseLost::Held(lease) => problem
                        .with("held_by", lease.holder.as_str())
                        .with("until_ms", lease.until.ms()),
                }
            }
            StoreError::NotDue(at) => {
                say(StatusCode::CONFLICT, "not_due").with("next_retry_at", at.rfc3339())
            }
            StoreError::UnresolvableTargets(targets) => {
                say(StatusCode::UNPROCESSABLE_ENTITY, "unresolvable")
                    .with("targets", json!(targets.0))
            }
            StoreError::NoLocalRecipient(nobody) => {
                say(StatusCode::UNPROCESSABLE_ENTITY, "nobody_here").with("to", json!(nobody.0))
            }
            StoreError::Expired(at) => {
                say(StatusCode::UNPROCESSABLE_ENTITY, "expired").with("expires_at_ms", at.ms())
            }
            StoreError::KeyReused(id) => {
                let what = if id.starts_with("ltr_") { "letter" } else { "msg_id" };
                say(StatusCode::CONFLICT, "key_reused").with(what, id)
            }
            StoreError::DiskFull => say(StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
            StoreError::Damaged { .. } => {
                tracing::error!(%error, "damaged");
                say(StatusCode::INTERNAL_SERVER_ERROR, "damaged")
            }
            StoreError::Broken(_) => say(StatusCode::SERVICE_UNAVAILABLE, "storage_broken"),
            StoreError::Unavailable(_) => {
                tracing::error!(%error, "store failed");
                say(StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
        }
    }
}

impl From<CenterError> for ApiError {
    fn from(error: CenterError) -> Self {
        let message = error.to_string();
        match error {
            CenterError::Store(error) => error.into(),
            CenterError::UnknownState(unknown) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_state", message)
                    .with("known", json!(unknown.known))
            }
            CenterError::NotLeasable(..) | CenterError::OutboxNotLeasable => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "not_takeable", message)
            }
            CenterError::UnknownOwner(owner) => {
                Self::new(StatusCode::NOT_FOUND, "unknown_owner", message)
                    .with("owner", owner.as_str())
            }
            CenterError::UnknownId(_) => Self::new(StatusCode::NOT_FOUND, "not_found", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, message, more } = self;
        let mut response = (status, Json(ApiErrorView { code, message, more })).into_response();
        if code == "no_token" || code == "wrong_token" {
            let bearer = axum::http::HeaderValue::from_static("Bearer");
            response.headers_mut().insert(axum::http::header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

impl From<ApiError> for Response {
    fn from(problem: ApiError) -> Self {
        problem.into_response()
    }
}
