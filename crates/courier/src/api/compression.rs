//! Compresses JSON responses for browsers, which ask for it. The command line does not.

use std::io::Write;

use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use monoco_store::StoreError;

use super::error::ApiError;

/// Smallest response that is compressed: a smaller one fits into one packet.
const MIN_BYTES: u64 = 1_000;

/// Largest response that is compressed: a larger one would keep its thread busy.
const MAX_BYTES: u64 = 1 << 20;

/// Whether the client accepts gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    accepted.is_some_and(|value| value.contains("gzip"))
}

/// Returns the bytes compressed by gzip.
pub fn gzip(bytes: &[u8], level: Compression) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), level);
    // Writing to memory cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Compresses a JSON response of moderate size.
pub async fn compress(request: Request, next: Next) -> Response {
    let is_accepted = accepts_gzip(request.headers());
    let response = next.run(request).await;
    let size = response.body().size_hint().exact().unwrap_or(0);
    if !is_accepted || !is_json(&response) || !(MIN_BYTES..=MAX_BYTES).contains(&size) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let limit = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    let bytes = match to_bytes(body, limit).await {
        Ok(bytes) => bytes,
        Err(error) => {
            let error = StoreError::Unavailable(format!("cannot read the response: {error}"));
            return ApiError::from(error).into_response();
        }
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    Response::from_parts(parts, Body::from(gzip(&bytes, Compression::fast())))
}

fn is_json(response: &Response) -> bool {
    let headers = response.headers();
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
        && !headers.contains_key(header::CONTENT_ENCODING)
}
