//! Strict parsing of requests: bodies with a size and time limit, JSON without unknown or
//! duplicate keys, no unknown parameters.

use std::pin::pin;
use std::str::FromStr;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use monoco_core::courier::HOLDER_PREFIX;
use monoco_core::cursor;
use monoco_core::did::Did;
use monoco_core::json;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::record::BoxKind;
use monoco_store::PageRequest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::error::ApiError;

/// Largest JSON body, in bytes. Twice the size of an object, because escapes take space.
pub const MAX_JSON: usize = 2 << 20;

/// Largest batch of JSON lines, in bytes.
pub const MAX_BATCH: usize = 16 << 20;

/// Largest attachment, in bytes.
pub const MAX_BLOB: usize = 32 << 20;

/// Longest time of a request body.
pub(super) const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a body may take before its rate counts.
pub(super) const BODY_GRACE: Duration = Duration::from_secs(5);

/// Lowest rate of a body, in bytes per second.
const MIN_BODY_RATE: usize = 32 << 10;

/// Bytes of each body that are not charged to a [`BodySpace`]. The number of connections
/// limits them, so that small requests are accepted also while large ones use all space.
pub(super) const UNCHARGED_BODY: usize = 64 << 10;

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
        let body = body(request.into_body(), MAX_JSON, &API_BODIES).await?;
        from_value(json::parse(&body)?).map(Self)
    }
}

/// A JSON body that can be omitted: it is then read as an empty object.
pub struct OptionalJsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        if request.body().is_end_stream() {
            return from_value(Value::Object(serde_json::Map::new())).map(Self);
        }
        JsonBody::from_request(request, state).await.map(|JsonBody(body)| Self(body))
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

/// Space that bodies share from their first byte until their request has been processed.
pub struct BodySpace {
    bytes: usize,
    free: Semaphore,
}

/// Memory for bodies of the API.
pub static API_BODIES: BodySpace = BodySpace::new(128 << 20);

/// Disk space for unfinished uploads of the API. Separate from [`API_BODIES`], so that uploads
/// do not cause other requests to be rejected.
pub static API_UPLOADS: BodySpace = BodySpace::new(128 << 20);

impl BodySpace {
    pub const fn new(bytes: usize) -> Self {
        Self { bytes, free: Semaphore::const_new(bytes) }
    }
}

/// The space that one body occupies. Dropping it releases the space.
pub(super) struct BodyCharge {
    space: &'static BodySpace,
    charged: Option<SemaphorePermit<'static>>,
}

impl BodyCharge {
    pub(super) const fn new(space: &'static BodySpace) -> Self {
        Self { space, charged: None }
    }

    /// Charges a body of which `size` bytes have arrived.
    ///
    /// # Errors
    ///
    /// 503 when other bodies occupy the space.
    pub(super) fn grow_to(&mut self, size: usize) -> Result<(), ApiError> {
        let charged = self.charged.as_ref().map_or(0, SemaphorePermit::num_permits);
        let missing = size.saturating_sub(UNCHARGED_BODY + charged);
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let more = self.space.free.try_acquire_many(missing);
        let more = more.map_err(|_| ApiError::no_body_space(self.space.bytes))?;
        match &mut self.charged {
            Some(charged) => charged.merge(more),
            None => self.charged = Some(more),
        }
        Ok(())
    }
}

/// A body that was read, and the space that it occupies until it is dropped.
pub struct RequestBody {
    bytes: Bytes,
    _charge: BodyCharge,
}

impl std::ops::Deref for RequestBody {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// Reads the whole body: at most `limit` bytes, not slower than `MIN_BODY_RATE`. Bytes are
/// charged to `space` when they have arrived, whatever length the client has announced.
///
/// # Errors
///
/// 413 when the body is too large, 408 when it is too slow, 503 when there is no space.
pub async fn body(
    mut frames: Body,
    limit: usize,
    space: &'static BodySpace,
) -> Result<RequestBody, ApiError> {
    if usize::try_from(frames.size_hint().lower()).is_ok_and(|announced| announced > limit) {
        return Err(ApiError::too_large(limit));
    }
    let started = Instant::now();
    // Not registered before it is polled: most bodies arrive with the head.
    let mut timer = pin!(tokio::time::sleep_until(started + BODY_GRACE));
    let (mut first, mut rest) = (Bytes::new(), BytesMut::new());
    let mut charge = BodyCharge::new(space);
    loop {
        let frame = tokio::select! {
            biased;
            frame = frames.frame() => frame,
            () = timer.as_mut() => {
                let deadline = started + body_timeout(first.len() + rest.len());
                if Instant::now() >= deadline {
                    return Err(ApiError::body_too_slow());
                }
                timer.as_mut().reset(deadline);
                continue;
            }
        };
        let data = match frame {
            None => break,
            Some(Err(_)) => return Err(ApiError::body_broke_off()),
            // Trailers are ignored.
            Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
        };
        let size = first.len() + rest.len() + data.len();
        if size > limit {
            return Err(ApiError::too_large(limit));
        }
        charge.grow_to(size)?;
        if first.is_empty() && rest.is_empty() {
            first = data;
        } else {
            if rest.is_empty() {
                rest.extend_from_slice(&std::mem::take(&mut first));
            }
            rest.extend_from_slice(&data);
        }
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(RequestBody { bytes, _charge: charge })
}

/// How long a body may take of which `received` bytes have arrived.
pub(super) fn body_timeout(received: usize) -> Duration {
    let secs = received / MIN_BODY_RATE;
    (BODY_GRACE + Duration::from_secs(u64::try_from(secs).unwrap_or(u64::MAX))).min(BODY_TIMEOUT)
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
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::IntoParams), into_params(parameter_in = Query))]
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
    if holder.as_str().starts_with(HOLDER_PREFIX) {
        return Err(ApiError::bad_field(
            "holder",
            format_args!(
                "names that start with {HOLDER_PREFIX:?} are reserved; choose another name"
            ),
        ));
    }
    Ok(holder)
}

/// Parses the epoch by which a caller proves that it holds a lease.
pub fn lease_proof(epoch: Option<i64>, holder: Holder) -> Result<LeaseProof, ApiError> {
    let epoch = epoch.map(u64::try_from).transpose();
    let epoch = epoch.map_err(|_| ApiError::bad_field("epoch", "expected a number from 0"))?;
    Ok(LeaseProof { epoch, holder })
}

#[cfg(test)]
mod tests {
    use super::*;

    static SPACE: BodySpace = BodySpace::new(1 << 20);

    fn chunks(sizes: &[usize]) -> Body {
        let chunks: Vec<Result<_, std::convert::Infallible>> =
            sizes.iter().map(|size| Ok(Bytes::from(vec![b'x'; *size]))).collect();
        Body::from_stream(futures_util::stream::iter(chunks))
    }

    #[tokio::test]
    async fn bytes_are_charged_when_they_arrive_and_until_the_body_is_dropped() {
        let free = || SPACE.free.available_permits();
        let small = body(chunks(&[10, 20, 30]), 100, &SPACE).await.ok().unwrap();
        assert_eq!((small.len(), free()), (60, 1 << 20));
        let large = body(chunks(&[UNCHARGED_BODY, 100, 200]), 1 << 20, &SPACE).await.ok().unwrap();
        assert_eq!((large.len(), free()), (UNCHARGED_BODY + 300, (1 << 20) - 300));
        drop(large);
        assert_eq!(free(), 1 << 20);
        let status = |result: Result<RequestBody, ApiError>| result.err().unwrap().status.as_u16();
        assert_eq!(status(body(chunks(&[60, 60]), 100, &SPACE).await), 413);
        let half = UNCHARGED_BODY + (1 << 19) + 1;
        let _first = body(chunks(&[half]), 2 << 20, &SPACE).await.ok().unwrap();
        assert_eq!(status(body(chunks(&[half]), 2 << 20, &SPACE).await), 503);
        assert!(body(chunks(&[UNCHARGED_BODY]), 2 << 20, &SPACE).await.is_ok());
    }

    #[test]
    fn body_has_a_minimum_rate_and_a_maximum_time() {
        let secs = |received| body_timeout(received).as_secs();
        assert_eq!([secs(0), secs(1 << 20), secs(32 << 20)], [5, 30, 30]);
        assert_eq!(secs(MIN_BODY_RATE * 10), 15);
    }
}
