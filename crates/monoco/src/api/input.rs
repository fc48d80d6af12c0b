//! What comes in, read strictly: bodies with a limit and a deadline, JSON without
//! leniency, parameters that are all known.

use std::str::FromStr;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use monoco_core::cursor;
use monoco_core::did::Did;
use monoco_core::json;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::record::BoxKind;
use monoco_store::PageRequest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ApiError;
use super::server;
use crate::courier::HOLDER;

/// Largest JSON body. An object has half of it, and escapes take room.
pub const MAX_JSON: usize = 2 << 20;

/// Largest batch.
pub const MAX_BATCH: usize = 16 << 20;

/// Largest attachment.
pub const MAX_BYTES: usize = 32 << 20;

/// Most entries of a page.
pub const MAX_PAGE: usize = 1_000;

/// A JSON body.
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        if content_type(request.headers()) != Some("application/json") {
            return Err(ApiError::wrong_type("application/json"));
        }
        let bytes = body(request, MAX_JSON).await?;
        shape(json::parse(&bytes)?).map(Self)
    }
}

/// Reads a value into a shape, with every key known.
pub fn shape<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    T::deserialize(value).map_err(|error| ApiError::wrong_shape(&error))
}

/// The media type of a request, without its parameters.
pub fn content_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(str::trim)
}

/// What the header `Idempotency-Key` says, where there is one; or what is wrong with it.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let key = headers.get("idempotency-key").map(|value| value.to_str().map(str::to_owned));
    key.transpose().map_err(|_| "want plain ASCII")
}

/// The whole body, within a limit and a deadline.
pub async fn body(request: Request<Body>, limit: usize) -> Result<Bytes, ApiError> {
    let limited = Limited::new(request.into_body(), limit);
    let collected = tokio::time::timeout(server::BODY, limited.collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        Ok(Err(_)) => Err(ApiError::body_broke_off()),
        Err(_) => Err(ApiError::body_too_slow()),
    }
}

/// The query, with every parameter known.
pub struct QueryParams<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(error) => Err(ApiError::bad_parameter("query", error.body_text())),
        }
    }
}

/// The parts of the path that vary, as text.
pub struct PathParams(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for PathParams {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(segments)) => Ok(Self(segments)),
            Err(error) => Err(ApiError::bad_parameter("path", error.body_text())),
        }
    }
}

impl PathParams {
    /// One part as it is.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// One part, checked.
    pub fn parse<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, ApiError> {
        self.text(name).parse().map_err(|error| ApiError::bad_parameter(name, error))
    }

    /// The box.
    pub fn box_kind(&self) -> Result<BoxKind, ApiError> {
        BoxKind::parse(self.text("box")).ok_or_else(|| {
            let known: Vec<_> = BoxKind::ALL.iter().map(|kind| kind.as_str()).collect();
            let why = format!("no such box; there are {}", known.join(", "));
            ApiError::bad_parameter("box", why)
        })
    }
}

/// Where a page starts and how long it is.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct PagingQuery {
    /// Where the last page ended: its `next_cursor`
    pub cursor: Option<String>,
    /// Most entries to return, 1 to 1000
    pub limit: Option<i64>,
    /// `newest` first (the default) or `oldest` first
    pub order: Option<String>,
}

impl PagingQuery {
    /// The window of the list `scope` that this asks for.
    pub fn window(&self, scope: &str) -> Result<PageRequest, ApiError> {
        let newest_first = match self.order.as_deref() {
            None | Some("newest") => true,
            Some("oldest") => false,
            Some(_) => return Err(ApiError::bad_parameter("order", "want newest or oldest")),
        };
        let scope = scope_of(scope, newest_first);
        let beyond = self.cursor.as_deref().map(|cursor| cursor::read(&scope, cursor)).transpose();
        Ok(PageRequest {
            beyond: beyond.map_err(|error| ApiError::bad_parameter("cursor", error))?,
            limit: count("limit", self.limit, 50, MAX_PAGE)?,
            newest_first,
        })
    }
}

/// The cursor that follows a page of the list `scope`.
pub fn next_cursor(scope: &str, window: &PageRequest, next: Option<i64>) -> Option<String> {
    next.map(|seq| cursor::write(&scope_of(scope, window.newest_first), seq))
}

fn scope_of(scope: &str, newest_first: bool) -> String {
    format!("{scope} {newest_first}")
}

/// A number of entries that a caller asked for.
pub fn count(
    name: &str,
    asked: Option<i64>,
    default: usize,
    most: usize,
) -> Result<usize, ApiError> {
    let Some(asked) = asked else { return Ok(default) };
    match usize::try_from(asked) {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(ApiError::bad_parameter(name, format_args!("want 1 to {most}, not {asked}"))),
    }
}

/// A field that holds a DID.
pub fn did(field: &str, text: &str) -> Result<Did, ApiError> {
    text.parse().map_err(|error| ApiError::bad_field(field, error))
}

/// A lease as long as the caller asked for.
pub fn term(field: &str, secs: Option<i64>) -> Result<LeaseDuration, ApiError> {
    let term = secs.map_or(Ok(LeaseDuration::DEFAULT), LeaseDuration::from_secs);
    term.map_err(|error| ApiError::bad_field(field, error))
}

/// Who the caller is.
pub fn holder(name: Option<String>) -> Result<Holder, ApiError> {
    let holder = name.map_or_else(|| Ok(Holder::anonymous()), Holder::new);
    let holder = holder.map_err(|error| ApiError::bad_field("holder", error))?;
    if holder.as_str().starts_with(HOLDER) {
        return Err(ApiError::bad_field("holder", "that is what the courier calls itself"));
    }
    Ok(holder)
}

/// What the caller shows to prove that he holds something.
pub fn guard(epoch: Option<i64>, name: Option<String>) -> Result<LeaseProof, ApiError> {
    let epoch = epoch.map(u64::try_from).transpose();
    let epoch = epoch.map_err(|_| ApiError::bad_field("epoch", "want a number from 0"))?;
    Ok(LeaseProof { epoch, holder: holder(name)? })
}
