//! Maps errors to HTTP error responses. All API errors are built here.
//!
//! `code` is stable, for programs. `message` is for people and may change.

use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use monoco_adapters::{InboundError, WebhookError};
use monoco_core::approval::ApprovalId;
use monoco_core::filter::nearest;
use monoco_core::halt::Halt;
use monoco_core::json::InvalidJson;
use monoco_core::lease::{Lease, LeaseLost};
use monoco_core::letter::InvalidLetter;
use monoco_core::object::InvalidObject;
use monoco_core::record::InvalidTransition;
use monoco_core::time::Timestamp;
use monoco_core::token::{AgentName, Scope, TokenViolation};
use monoco_store::StoreError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::input::BODY_TIMEOUT;
use crate::center::CenterError;
use crate::center::reply::ReplyError;
use crate::center::search::SearchError;
use crate::config::ConfigError;
use crate::courier::file_projector::ProjectorError;
use crate::courier::forget::ForgetError;
use crate::home::HomeError;
use crate::pipeline::SubmitError;

/// An HTTP error with status, code and message.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    /// Facts about the error, as further keys of the response.
    facts: Map<String, Value>,
}

/// The body of an error response.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema), schema(as = Error))]
pub struct ApiErrorView {
    /// Stable name of the error, for programs
    pub code: Cow<'static, str>,
    /// What failed, what was expected, and what to do next
    pub message: String,
    /// Facts about the error, such as `from` and `to` of an invalid transition
    #[serde(flatten)]
    #[cfg_attr(test, schema(value_type = Object))]
    pub facts: Map<String, Value>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), facts: Map::new() }
    }

    fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(key.to_owned(), value.into());
        self
    }

    pub fn foreign_host() -> Self {
        let message =
            "wrong Host header; use localhost, 127.0.0.1 or [::1] with the port of the courier";
        Self::new(StatusCode::FORBIDDEN, "foreign_host", message)
    }

    pub fn foreign_remote_host() -> Self {
        let message =
            "wrong Host header; use a name that the courier has in `courier.remote.names`";
        Self::new(StatusCode::FORBIDDEN, "foreign_host", message)
    }

    /// A client on another machine sent no token.
    pub fn no_client_token() -> Self {
        let message = "missing token; send `Authorization: Bearer TOKEN` with a token that `monoco \
                       token add` has printed on the machine of the courier";
        Self::new(StatusCode::UNAUTHORIZED, "no_token", message)
    }

    /// The token of a client on another machine is unknown.
    pub fn wrong_client_token() -> Self {
        let message = "wrong token; expected one that `monoco token add` has printed on the machine of \
                       the courier. The owner's token is not accepted from other machines";
        Self::new(StatusCode::UNAUTHORIZED, "wrong_token", message)
    }

    pub fn foreign_origin() -> Self {
        let message = "requests of web pages from other origins are rejected";
        Self::new(StatusCode::FORBIDDEN, "foreign_origin", message)
    }

    pub fn no_token() -> Self {
        let message = "missing token; send `Authorization: Bearer TOKEN` with the token that `monoco token \
                       show` prints";
        Self::new(StatusCode::UNAUTHORIZED, "no_token", message)
    }

    pub fn wrong_token() -> Self {
        let message = "wrong token; `monoco token add` creates one for an agent, `monoco token show` \
                       prints that of the owner";
        Self::new(StatusCode::UNAUTHORIZED, "wrong_token", message)
    }

    /// The token of an agent was revoked.
    pub fn revoked_token(name: &AgentName, at: Timestamp) -> Self {
        let message = format!(
            "the token {name} was revoked at {}; the owner can create another one with `monoco \
             token add`",
            at.rfc3339()
        );
        Self::new(StatusCode::UNAUTHORIZED, "revoked_token", message)
    }

    /// Only the owner may use the route.
    pub fn owner_only() -> Self {
        let message = "tokens of agents cannot use this route; only the owner's token can";
        Self::new(StatusCode::FORBIDDEN, "missing_scope", message).with("scope", "owner")
    }

    /// The new token cannot be written; the previous one is still valid.
    pub fn token_not_written(error: &HomeError) -> Self {
        let message = format!("token not rotated: {error}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "token_not_written", message)
    }

    /// The code of a login is unknown, was used, or has expired.
    pub fn invalid_login_code() -> Self {
        let message =
            "the code of this link was used or has expired; `monoco open` makes a new link";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_login_code", message)
    }

    /// A login of the web page could not be stored.
    pub fn login_not_stored(error: &HomeError) -> Self {
        let message = format!("login of the web page not stored: {error}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "login_not_stored", message)
    }

    pub fn no_route() -> Self {
        let message = "no such route; /api/openapi.json lists all routes";
        Self::new(StatusCode::NOT_FOUND, "no_route", message)
    }

    pub fn no_webhook() -> Self {
        let message = "no such webhook; check the tunnel id in the path";
        Self::new(StatusCode::NOT_FOUND, "no_webhook", message)
    }

    /// The bodies of other requests occupy the space that all bodies share.
    pub fn no_body_space(space: usize) -> Self {
        let secs = BODY_TIMEOUT.as_secs();
        let message = format!(
            "no space for the request body: unfinished requests occupy all {space} bytes that they \
             share; send the request again after {secs} s, when they have ended"
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).with("retry_after_s", secs)
    }

    /// An operator has paused the tunnel.
    pub fn tunnel_paused() -> Self {
        let message = "the tunnel is paused; send the request again after it was resumed";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "tunnel_paused", message)
    }

    /// The tunnel has received too much today.
    pub fn over_quota(retry_after: Duration) -> Self {
        let secs = retry_after.as_secs().saturating_add(1);
        let message = format!(
            "the daily quota of this tunnel is used; send the request again after {secs} s, or \
             raise max_mb_per_day of the tunnel"
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "over_quota", message).with("retry_after_s", secs)
    }

    /// The errors of claims have codes of their own.
    pub fn of_claim(error: StoreError) -> Self {
        match &error {
            StoreError::LeaseLost(LeaseLost::Held(lease)) => Self::claimed(lease),
            StoreError::InvalidTransition(wrong) => match wrong.from {
                "COMPLETED" => Self::completed(),
                "DEADLETTER" => Self::dead(),
                "NEW" => Self::not_claimed(),
                _ => error.into(),
            },
            _ => error.into(),
        }
    }

    /// Another agent of the workspace holds the Mail.
    pub fn claimed(lease: &Lease) -> Self {
        let (holder, until) = (lease.holder.as_str(), lease.until.rfc3339());
        let message = format!("claimed by {holder} until {until}; wait for the claim to end");
        Self::new(StatusCode::CONFLICT, "claimed", message)
            .with("claimed_by", holder)
            .with("expires_at", until)
    }

    /// The workspace has already completed the Mail.
    pub fn completed() -> Self {
        let message = "this workspace has already completed the Mail";
        Self::new(StatusCode::CONFLICT, "completed", message)
    }

    /// The Mail is a dead letter of the workspace.
    pub fn dead() -> Self {
        let message = "the Mail is a dead letter of this workspace; retry it first";
        Self::new(StatusCode::CONFLICT, "dead", message)
    }

    /// No agent of the workspace holds the Mail.
    pub fn not_claimed() -> Self {
        let message = "no agent of this workspace holds the Mail; claim it first";
        Self::new(StatusCode::CONFLICT, "not_claimed", message)
    }

    /// An agent asks for the approval of a message of another sender.
    pub fn not_own_approval(agent: &AgentName, id: ApprovalId) -> Self {
        let message =
            format!("{id} is not the approval of a message of {agent}; use one of its own");
        Self::new(StatusCode::FORBIDDEN, "not_own_approval", message)
    }

    /// Writes of the agent are rejected until the halt ends.
    pub fn locked(halt: &Halt) -> Self {
        let message = format!(
            "{} is halted and locked by {} since {}; nothing was done. Wait until the owner resumes",
            halt.scope,
            halt.by,
            halt.at.rfc3339()
        );
        Self::new(StatusCode::LOCKED, "locked", message).with("scope", halt.scope.to_string())
    }

    /// The config file was changed and is not valid.
    pub fn invalid_config(error: &ConfigError) -> Self {
        let message = format!("{error}; nothing was changed");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_config", message)
    }

    pub fn method_not_allowed() -> Self {
        let message = "method not allowed for this route; /api/openapi.json lists the methods";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    pub fn too_slow() -> Self {
        let message = "no result within the time limit; the operation may still complete";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_slow", message)
    }

    pub fn body_too_slow() -> Self {
        let message = "the request body arrived too slowly; send it within 30 s, with 32 KiB per second or more";
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message)
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).with("limit", limit)
    }

    pub fn body_broke_off() -> Self {
        let message = "the connection ended before the request body was complete; send it again";
        Self::new(StatusCode::BAD_REQUEST, "body_broke_off", message)
    }

    pub fn wrong_type(expected: &str) -> Self {
        let message = format!("unsupported content type; send `Content-Type: {expected}`");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_type", message)
    }

    /// A parameter of the path or the query is invalid.
    pub fn bad_parameter(name: &str, why: impl std::fmt::Display) -> Self {
        let message = format!("{name}: {why}");
        Self::new(StatusCode::BAD_REQUEST, "bad_parameter", message).with("parameter", name)
    }

    /// A field of the body is invalid.
    pub fn bad_field(field: &str, why: impl std::fmt::Display) -> Self {
        let message = format!("{field}: {why}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "bad_field", message).with("field", field)
    }

    /// The body is JSON with missing, unknown or mistyped keys.
    pub fn wrong_shape(error: &serde_json::Error) -> Self {
        let message = error.to_string();
        let message = match meant_key(&message) {
            Some(key) => format!("{message}; did you mean `{key}`?"),
            None => message,
        };
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "wrong_shape", message)
    }

    /// A letter cannot make this transition.
    pub fn wrong_state(wrong: &InvalidTransition, why: &str) -> Self {
        let message = format!("{wrong}: {why}");
        Self::new(StatusCode::CONFLICT, "wrong_state", message)
            .with("from", wrong.from)
            .with("to", wrong.to)
    }

    /// A shortened id can mean several ids.
    pub fn ambiguous_id(text: &str, candidates: &[String]) -> Self {
        let message = format!("{text} is ambiguous; use a longer id: {}", candidates.join(", "));
        Self::new(StatusCode::CONFLICT, "ambiguous_id", message)
            .with("candidates", json!(candidates))
    }

    pub fn id_mismatch(expected: &str, found: &str) -> Self {
        let message = format!("msg_id: expected {expected}, but the message has the id {found}");
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "id_mismatch", message).with("msg_id", found)
    }

    /// The error as one line of the response to a batch.
    pub fn line(&self, number: usize) -> Value {
        let mut line = json!({
            "line": number,
            "ok": false,
            "code": self.code,
            "message": self.message,
            "status": self.status.as_u16(),
        });
        if let Some(line) = line.as_object_mut() {
            line.extend(self.facts.clone());
        }
        line
    }
}

impl From<TokenViolation> for ApiError {
    fn from(violation: TokenViolation) -> Self {
        let message = violation.to_string();
        let new = |code| Self::new(StatusCode::FORBIDDEN, code, message);
        match violation {
            TokenViolation::MissingScope { needed, .. } => {
                let needed: Vec<_> = needed.into_iter().map(Scope::as_str).collect();
                new("missing_scope").with("scope", needed.join(" or "))
            }
            TokenViolation::ForgedSender { own, .. } => {
                new("forged_sender").with("expected", own.as_str())
            }
            TokenViolation::WholeMail { .. } => new("forged_sender"),
            TokenViolation::ForeignWorkspace { own, .. } => {
                new("foreign_workspace").with("expected", own.as_str())
            }
            TokenViolation::ForeignAgent { agent, .. } => {
                new("foreign_agent").with("expected", agent.as_str())
            }
            TokenViolation::ForeignBox { own, .. } => {
                new("foreign_box").with("expected", own.as_str())
            }
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::InvalidLetter(invalid) => invalid.into(),
            SubmitError::Store(error) => error.into(),
        }
    }
}

impl From<ProjectorError> for ApiError {
    fn from(error: ProjectorError) -> Self {
        match error {
            ProjectorError::Store(error) => error.into(),
            other => StoreError::Unavailable(other.to_string()).into(),
        }
    }
}

impl From<ForgetError> for ApiError {
    fn from(error: ForgetError) -> Self {
        let message = error.to_string();
        match error {
            ForgetError::LostMails(mails) => {
                Self::new(StatusCode::CONFLICT, "lost_mails", message).with("mails", mails)
            }
            ForgetError::Projector(error) => error.into(),
        }
    }
}

impl From<SearchError> for ApiError {
    fn from(error: SearchError) -> Self {
        match error {
            SearchError::Off => Self::new(StatusCode::CONFLICT, "search_off", error.to_string()),
            SearchError::Query(invalid) => Self::bad_parameter("q", invalid),
            SearchError::Cursor(_) => Self::bad_parameter("cursor", error),
            SearchError::Store(error) => error.into(),
        }
    }
}

impl From<WebhookError> for ApiError {
    fn from(error: WebhookError) -> Self {
        let message = error.to_string();
        match error {
            WebhookError::NotSupported => Self::no_webhook(),
            WebhookError::Unverified(_) | WebhookError::Stale(_) => {
                Self::new(StatusCode::UNAUTHORIZED, "unverified", message)
            }
            WebhookError::Unreadable(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable", message)
            }
        }
    }
}

impl From<InboundError> for ApiError {
    fn from(error: InboundError) -> Self {
        match error {
            InboundError::Full => StoreError::DiskFull.into(),
            InboundError::Unavailable(detail) => StoreError::Unavailable(detail).into(),
            InboundError::Unusable(_) => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unreadable", error.to_string())
            }
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
        let new = |status, code| Self::new(status, code, message.clone());
        match error {
            StoreError::Missing { what, .. } => {
                new(StatusCode::NOT_FOUND, "not_found").with("what", what)
            }
            StoreError::Exists { what, .. } => {
                new(StatusCode::CONFLICT, "exists").with("what", what)
            }
            StoreError::Erased { at, by, .. } => {
                let error = new(StatusCode::GONE, "erased").with("erased_at", at.rfc3339());
                match by {
                    Some(by) => error.with("superseded_by", by.to_string()),
                    None => error,
                }
            }
            StoreError::Conflict { revision, .. } => {
                new(StatusCode::CONFLICT, "conflict").with("revision", revision)
            }
            StoreError::InvalidTransition(wrong) => new(StatusCode::CONFLICT, "wrong_state")
                .with("from", wrong.from)
                .with("to", wrong.to),
            StoreError::LeaseLost(lost) => {
                let error = new(StatusCode::CONFLICT, "lease_lost");
                match lost {
                    LeaseLost::Stale { current, .. } => error.with("epoch", current),
                    LeaseLost::Held(lease) => error
                        .with("held_by", lease.holder.as_str())
                        .with("until", lease.until.rfc3339()),
                }
            }
            StoreError::NotDue(at) => {
                new(StatusCode::CONFLICT, "not_due").with("next_retry_at", at.rfc3339())
            }
            StoreError::UnresolvableTargets(targets) => {
                new(StatusCode::UNPROCESSABLE_ENTITY, "unresolvable")
                    .with("targets", json!(targets.0))
            }
            StoreError::NoLocalRecipient(none) => {
                new(StatusCode::UNPROCESSABLE_ENTITY, "no_local_recipient")
                    .with("to", json!(none.0))
            }
            StoreError::Expired(at) => {
                new(StatusCode::UNPROCESSABLE_ENTITY, "expired").with("expires_at", at.rfc3339())
            }
            StoreError::KeyReused(id) => {
                let what = if id.starts_with("ltr_") { "letter" } else { "msg_id" };
                new(StatusCode::CONFLICT, "key_reused").with(what, id)
            }
            StoreError::Refused { rule, .. } => {
                new(StatusCode::FORBIDDEN, "refused_by_rule").with("rule", rule)
            }
            StoreError::AlreadyAnswered(first) => new(StatusCode::CONFLICT, "already_answered")
                .with("state", first.state)
                .with("answered_by", first.by)
                .with("answered_at", first.at.rfc3339()),
            StoreError::WaitsForApproval(id) => {
                new(StatusCode::CONFLICT, "waits_for_approval").with("approval", id.to_string())
            }
            StoreError::AlreadySent(id) => {
                new(StatusCode::CONFLICT, "already_sent").with("msg_id", id.to_string())
            }
            StoreError::InvalidTag(_) => new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_tags"),
            StoreError::UnexpectedPart { .. } => new(StatusCode::CONFLICT, "unexpected_part"),
            StoreError::DutyLost { .. } => new(StatusCode::CONFLICT, "duty_lost"),
            StoreError::CourierReplaced(_) => {
                new(StatusCode::SERVICE_UNAVAILABLE, "courier_replaced")
            }
            StoreError::TooLarge(limit) => {
                new(StatusCode::PAYLOAD_TOO_LARGE, "too_large").with("limit", limit)
            }
            StoreError::SourceFailed(_) => Self::body_broke_off(),
            StoreError::DiskFull => new(StatusCode::INSUFFICIENT_STORAGE, "storage_full"),
            StoreError::Damaged { .. } => {
                tracing::error!(%error, "stored data is damaged");
                new(StatusCode::INTERNAL_SERVER_ERROR, "damaged")
            }
            StoreError::Broken(_) => new(StatusCode::SERVICE_UNAVAILABLE, "storage_broken"),
            StoreError::Unavailable(_) => {
                tracing::error!(%error, "store is unavailable");
                new(StatusCode::SERVICE_UNAVAILABLE, "unavailable")
            }
        }
    }
}

impl From<ReplyError> for ApiError {
    fn from(error: ReplyError) -> Self {
        match error {
            ReplyError::Store(error) => error.into(),
            ReplyError::Invalid(error) => Self::bad_field("text", error),
            ReplyError::Unreadable(id, why) => {
                StoreError::Damaged { what: "Mail", detail: format!("{id}: {why}") }.into()
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
            CenterError::DeliveriesHaveNoTags => {
                Self::new(StatusCode::UNPROCESSABLE_ENTITY, "no_tags", message)
            }
            CenterError::UnknownId(_) => Self::new(StatusCode::NOT_FOUND, "not_found", message),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Self { status, code, message, facts } = self;
        let retry_after = facts.get("retry_after_s").and_then(Value::as_u64);
        let view = ApiErrorView { code: code.into(), message, facts };
        let mut response = (status, Json(view)).into_response();
        if let Some(secs) = retry_after {
            response.headers_mut().insert(axum::http::header::RETRY_AFTER, secs.into());
        }
        if status == StatusCode::UNAUTHORIZED && code.ends_with("_token") {
            let bearer = axum::http::HeaderValue::from_static("Bearer realm=\"monoco\"");
            response.headers_mut().insert(axum::http::header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

impl From<ApiError> for Response {
    fn from(error: ApiError) -> Self {
        error.into_response()
    }
}

/// The known key that an unknown one probably means, from the text of serde's error:
/// "unknown field `a`, expected `b`" or "…, expected one of `b`, `c`".
fn meant_key(message: &str) -> Option<&str> {
    let (unknown, known) = message.strip_prefix("unknown field `")?.split_once("`, expected ")?;
    let known: Vec<_> = known.split('`').skip(1).step_by(2).collect();
    nearest(unknown, &known)
}
