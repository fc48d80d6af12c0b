//! Strict parsing of requests: bodies with a size and time limit, JSON without unknown or
//! duplicate keys, no unknown parameters.

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

/// Largest JSON body, in bytes. Twice the size of an object, because escapes take space.
pub const MAX_JSON: usize = 2 << 20;

/// Largest batch of JSON lines, in bytes.
pub const MAX_BATCH: usize = 16 << 20;

/// Largest attachment, in bytes.
pub const MAX_BLOB: usize = 32 << 20;

/// Most entries of one page.
pub const MAX_PAGE: usize = 1_000;

/// Extracts a JSON body.
pub struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        if content_type(request.headers()) != Some("application/json") {
            return Err(ApiError::wrong_type("application/json"));
        }
        let bytes = body(request, MAX_JSON).await?;
        from_value(json::parse(&bytes)?).map(Self)
    }
}

/// Converts JSON to a typed body. Unknown keys are rejected.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, ApiError> {
    T::deserialize(value).map_err(|error| ApiError::wrong_shape(&error))
}

/// The media type of a request without parameters.
pub fn content_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    value.split(';').next().map(str::trim)
}

/// The header `Idempotency-Key`, or why it is invalid.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let key = headers.get("idempotency-key").map(|value| value.to_str().map(str::to_owned));
    key.transpose().map_err(|_| "expected printable ASCII")
}

/// Reads the whole body, within `limit` bytes and [`server::BODY_TIMEOUT`].
pub async fn body(request: Request<Body>, limit: usize) -> Result<Bytes, ApiError> {
    let limited = Limited::new(request.into_body(), limit);
    let collected = tokio::time::timeout(server::BODY_TIMEOUT, limited.collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        Ok(Err(_)) => Err(ApiError::body_broke_off()),
        Err(_) => Err(ApiError::body_too_slow()),
    }
}

/// Extracts the query. Unknown parameters are rejected.
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

/// Extracts the parameters of the path, percent-decoded.
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
    /// One parameter as text.
    pub fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// Parses one parameter of the path.
    pub fn parse<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<T, ApiError> {
        self.text(name).parse().map_err(|error| ApiError::bad_parameter(name, error))
    }

    /// Parses the parameter `box`.
    pub fn box_kind(&self) -> Result<BoxKind, ApiError> {
        BoxKind::parse(self.text("box")).ok_or_else(|| {
            let known: Vec<_> = BoxKind::ALL.iter().map(|kind| kind.as_str()).collect();
            let why = format!("unknown box; expected one of {}", known.join(", "));
            ApiError::bad_parameter("box", why)
        })
    }
}

/// Parameters of a list.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
pub struct PagingQuery {
    /// `next_cursor` of the previous page
    pub cursor: Option<String>,
    /// Maximum number of entries, 1 to 1000; default 50
    pub limit: Option<i64>,
    /// `newest` (default) or `oldest` first
    pub order: Option<String>,
}

impl PagingQuery {
    /// The requested page of the list `scope`. A cursor of another list is rejected.
    pub fn page_request(&self, scope: &str) -> Result<PageRequest, ApiError> {
        let newest_first = match self.order.as_deref() {
            None | Some("newest") => true,
            Some("oldest") => false,
            Some(_) => return Err(ApiError::bad_parameter("order", "expected newest or oldest")),
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

/// The cursor of the next page of the list `scope`.
pub fn next_cursor(scope: &str, request: &PageRequest, next: Option<i64>) -> Option<String> {
    next.map(|seq| cursor::write(&scope_of(scope, request.newest_first), seq))
}

fn scope_of(scope: &str, newest_first: bool) -> String {
    format!("{scope} {newest_first}")
}

/// Parses a number of entries.
pub fn count(
    name: &str,
    value: Option<i64>,
    default: usize,
    max: usize,
) -> Result<usize, ApiError> {
    let Some(value) = value else { return Ok(default) };
    match usize::try_from(value) {
        Ok(count) if (1..=max).contains(&count) => Ok(count),
        _ => Err(ApiError::bad_parameter(name, format_args!("found {value}, expected 1 to {max}"))),
    }
}

/// Parses a field with a DID.
pub fn did(field: &str, text: &str) -> Result<Did, ApiError> {
    text.parse().map_err(|error| ApiError::bad_field(field, error))
}

/// Parses the duration of a lease. The default is 300 s.
pub fn lease_duration(field: &str, secs: Option<i64>) -> Result<LeaseDuration, ApiError> {
    let duration = secs.map_or(Ok(LeaseDuration::DEFAULT), LeaseDuration::from_secs);
    duration.map_err(|error| ApiError::bad_field(field, error))
}

/// Parses the name of the caller. The names of the courier's own senders are reserved.
pub fn holder(name: Option<String>) -> Result<Holder, ApiError> {
    let holder = name.map_or_else(|| Ok(Holder::anonymous()), Holder::new);
    let holder = holder.map_err(|error| ApiError::bad_field("holder", error))?;
    if holder.as_str().starts_with(HOLDER) {
        return Err(ApiError::bad_field(
            "holder",
            format_args!("names that start with {HOLDER:?} are reserved; choose another name"),
        ));
    }
    Ok(holder)
}

/// Parses the epoch and name by which a caller proves that it holds a lease.
pub fn lease_proof(epoch: Option<i64>, name: Option<String>) -> Result<LeaseProof, ApiError> {
    let epoch = epoch.map(u64::try_from).transpose();
    let epoch = epoch.map_err(|_| ApiError::bad_field("epoch", "expected a number from 0"))?;
    Ok(LeaseProof { epoch, holder: holder(name)? })
}
