//! Large objects in a bucket of S3, or of a server with the same protocol.
//!
//! An object is named by the SHA-256 of its bytes, which is also the signed hash of the body of its
//! upload, so that the server detects other bytes. Requests can be repeated without harm: a
//! temporary failure is retried for some seconds, and then the caller gets an error. Nothing is
//! listed: the database knows all objects.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, RANGE};
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use monoco_adapters::egress::{
    Egress, EgressBody, EgressDownload, EgressLimits, EgressRequest, EgressResponse, EgressTarget,
    HostRule, retry_after,
};
use monoco_core::hex;
use monoco_core::retry::{Backoff, Failure};
use monoco_store::{ObjectSource, RemoteObjects};
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::{self, wall_now};
use location::S3Location;
use signature::{EMPTY_BODY, S3Request};

pub mod location;
mod signature;
#[cfg(test)]
mod tests;

/// Limits of one request. An upload has more time by its size.
const LIMITS: EgressLimits = EgressLimits {
    connect: Duration::from_secs(3),
    total: Duration::from_secs(10),
    reply: 16 << 10,
};

/// How often a request is made, the first attempt included.
const MAX_ATTEMPTS: u32 = 4;

/// After this time no further attempt is started.
const MAX_RETRY_TIME: Duration = Duration::from_secs(10);

/// How long a deletion may take with all attempts: the row of the object is locked meanwhile.
const DELETE_TIMEOUT: Duration = Duration::from_secs(8);

const BACKOFF: Backoff =
    Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(2) };

/// Bytes of an object that are in memory while it is read.
const PART_BYTES: usize = 256 << 10;

const CONTENT_HASH: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const DATE: HeaderName = HeaderName::from_static("x-amz-date");

/// The objects of one bucket below one prefix.
#[derive(Debug)]
pub struct S3Objects {
    egress: Egress,
    location: S3Location,
    /// Runs requests of callers that block.
    runtime: Handle,
    /// Why the last request failed.
    failure: Mutex<Option<String>>,
}

impl S3Objects {
    /// Must be called in a runtime, which must not end before the last request.
    ///
    /// # Errors
    ///
    /// When the HTTP client cannot be built.
    pub fn new(location: S3Location) -> Result<Self, String> {
        let egress = Egress::with_limits(LIMITS).map_err(|error| error.to_string())?;
        Ok(Self { egress, location, runtime: Handle::current(), failure: Mutex::default() })
    }

    /// Writes, reads and deletes a small object.
    ///
    /// # Errors
    ///
    /// Temporary when the server cannot be reached or is busy, permanent when it rejects the keys,
    /// the bucket or a request.
    pub async fn test_access(&self) -> Result<(), Failure> {
        let random = getrandom::u64().map_err(|error| temporary(error.to_string()))?;
        let bytes: Arc<[u8]> = format!("monoco check {random:016x}").into_bytes().into();
        let name = format!("check-{random:016x}");
        let (hash, size) = (hex::encode(&Sha256::digest(&bytes)), bytes.len() as u64);
        self.put_as(&name, &hash, size, &ObjectSource::Bytes(Arc::clone(&bytes))).await?;
        let mut found = Vec::new();
        let mut take = |part: &[u8]| {
            found.extend_from_slice(part);
            Ok(true)
        };
        let is_there = self.get_as(&name, size, &mut take).await?;
        if !is_there || found[..] != bytes[..] {
            return self.record(Err(Failure::Permanent {
                detail: format!("{}: an object has other bytes than were written", self.place()),
                error_code: None,
            }));
        }
        self.delete_as(&name).await
    }

    async fn put_as(
        &self,
        name: &str,
        hash: &str,
        size: u64,
        source: &ObjectSource,
    ) -> Result<(), Failure> {
        self.retry(async || {
            let body = body(size, source).await?;
            let response = self.send(Method::PUT, name, hash, body).await?;
            match response.status.is_success() {
                true => Ok(()),
                false => Err(self.rejection("PUT", &response)),
            }
        })
        .await
    }

    /// Continues after the last byte when the connection is lost.
    async fn get_as(
        &self,
        name: &str,
        size: u64,
        take: &mut dyn FnMut(&[u8]) -> io::Result<bool>,
    ) -> Result<bool, Failure> {
        let mut done = 0;
        self.retry(async || {
            let range = (done > 0).then(|| format!("bytes={done}-"));
            let target = self.target(name);
            let request = self.signed(Method::GET, &target, name, EMPTY_BODY, range.as_deref());
            // A redirect is an error: the signature is for one host.
            let redirects = HostRule::new(&[], &target);
            let response = self.egress.download(request, u64::MAX, &redirects).await?;
            let mut skipped = match response.status {
                StatusCode::PARTIAL_CONTENT => 0,
                StatusCode::OK => done,
                _ => {
                    let EgressDownload { status, headers, bytes, .. } = response;
                    let mut body = Vec::new();
                    // The status is enough when the body cannot be read.
                    let _ = bytes.take(LIMITS.reply as u64).read_to_end(&mut body).await;
                    let response = EgressResponse { status, headers, body };
                    return self.missing("GET", &response).map(|()| false);
                }
            };
            let mut bytes = response.bytes;
            let mut part = vec![0; PART_BYTES];
            while done < size {
                let read = bytes.read(&mut part).await.map_err(|error| {
                    temporary(format!("{}: the download broke off: {error}", self.place()))
                })?;
                if read == 0 {
                    return Err(temporary(format!(
                        "{}: an object ends after {done} of {size} bytes",
                        self.place()
                    )));
                }
                let known = usize::try_from(skipped).unwrap_or(usize::MAX).min(read);
                skipped -= known as u64;
                let new = &part[known..read];
                done += new.len() as u64;
                // What the caller cannot store is no failure of the server.
                let unwritable = |error: io::Error| Failure::Permanent {
                    detail: format!("cannot store downloaded bytes: {error}"),
                    error_code: None,
                };
                if !new.is_empty() && !take(new).map_err(unwritable)? {
                    break;
                }
            }
            Ok(true)
        })
        .await
    }

    async fn size_of(&self, name: &str) -> Result<Option<u64>, Failure> {
        self.retry(async || {
            let response = self.send(Method::HEAD, name, EMPTY_BODY, EgressBody::Empty).await?;
            let size = response.headers.get(CONTENT_LENGTH);
            let size = size.and_then(|size| size.to_str().ok()?.parse().ok());
            match response.status {
                StatusCode::OK => Ok(size),
                _ => self.missing("HEAD", &response).map(|()| None),
            }
        })
        .await
    }

    async fn delete_as(&self, name: &str) -> Result<(), Failure> {
        let delete = self.retry(async || {
            let response = self.send(Method::DELETE, name, EMPTY_BODY, EgressBody::Empty).await?;
            match response.status.is_success() {
                true => Ok(()),
                false => self.missing("DELETE", &response),
            }
        });
        timeout(DELETE_TIMEOUT, delete).await.unwrap_or_else(|_| {
            let seconds = DELETE_TIMEOUT.as_secs();
            let detail = format!("{}: no answer to DELETE in {seconds} s", self.place());
            self.record(Err(temporary(detail)))
        })
    }

    /// Makes one request, and returns the response, whatever its status.
    async fn send(
        &self,
        method: Method,
        name: &str,
        body_hash: &str,
        body: EgressBody,
    ) -> Result<EgressResponse, Failure> {
        let target = self.target(name);
        let request = self.signed(method, &target, name, body_hash, None);
        self.egress.send(request.body(body)).await
    }

    fn target(&self, name: &str) -> EgressTarget {
        let S3Location { target, root, .. } = &self.location;
        target.below(format!("{root}/{name}").trim_start_matches('/'))
    }

    fn signed<'t>(
        &self,
        method: Method,
        target: &'t EgressTarget,
        name: &str,
        body_hash: &str,
        range: Option<&str>,
    ) -> EgressRequest<'t> {
        let path = format!("{}/{name}", self.location.root);
        let origin = target.shown();
        let host = origin.split_once("://").map_or(origin.as_str(), |(_, host)| host);
        let header = range.map(|range| ("range", range));
        let signed = S3Request { method: method.as_str(), host, path: &path, body_hash, header };
        let (date, authorization) = self.location.signer.sign(&signed, wall_now());
        let request = EgressRequest::new(method, target)
            .header(CONTENT_HASH, body_hash)
            .header(DATE, &date)
            .header(AUTHORIZATION, &authorization)
            .repeatable();
        match range {
            Some(range) => request.header(RANGE, range),
            None => request,
        }
    }

    /// Makes attempts until one succeeds, fails permanently, or the time is over.
    async fn retry<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        for attempts in 1.. {
            let failure = match attempt().await {
                Ok(done) => return self.record(Ok(done)),
                Err(failure) => failure,
            };
            let delay = match &failure {
                Failure::Permanent { .. } => return self.record(Err(failure)),
                Failure::Temporary { retry_after_ms, .. } => {
                    let asked = retry_after_ms.map(Duration::from_millis).unwrap_or_default();
                    BACKOFF.delay(attempts, clock::jitter()).max(asked)
                }
                Failure::Unknown { .. } => BACKOFF.delay(attempts, clock::jitter()),
            };
            if attempts == MAX_ATTEMPTS || started.elapsed() + delay > MAX_RETRY_TIME {
                return self.record(Err(failure));
            }
            sleep(delay).await;
        }
        unreachable!("the last attempt returns")
    }

    /// Remembers whether the last request succeeded.
    fn record<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        let now = result.as_ref().err().map(|failure| failure.detail().to_owned());
        match (&*failure, &now) {
            (None, Some(error)) => {
                tracing::warn!(place = self.location.place, error, "large objects are unavailable");
            }
            (Some(_), None) => {
                tracing::info!(place = self.location.place, "large objects are available again");
            }
            _ => {}
        }
        *failure = now;
        result
    }

    /// An object does not exist, unless the bucket does not, or the request was rejected.
    fn missing(&self, method: &str, response: &EgressResponse) -> Result<(), Failure> {
        let failure = self.rejection(method, response);
        let is_bucket = failure.error_code() == Some("NoSuchBucket");
        if response.status == StatusCode::NOT_FOUND && !is_bucket { Ok(()) } else { Err(failure) }
    }

    /// Classifies a response that is no success.
    fn rejection(&self, method: &str, response: &EgressResponse) -> Failure {
        let EgressResponse { status, headers, body } = response;
        classify(&self.location, method, *status, headers, error_code(body))
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> io::Result<T> {
        self.runtime.block_on(work).map_err(|failure| io::Error::other(failure.detail().to_owned()))
    }
}

impl RemoteObjects for S3Objects {
    fn place(&self) -> &str {
        &self.location.place
    }

    fn put(&self, hash: &[u8; 32], size: u64, source: &ObjectSource) -> io::Result<()> {
        let name = hex::encode(hash);
        self.wait(self.put_as(&name, &name, size, source))
    }

    fn get(
        &self,
        hash: &[u8; 32],
        size: u64,
        take: &mut dyn FnMut(&[u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.wait(self.get_as(&hex::encode(hash), size, take))
    }

    fn size(&self, hash: &[u8; 32]) -> io::Result<Option<u64>> {
        self.wait(self.size_of(&hex::encode(hash)))
    }

    fn delete(&self, hash: &[u8; 32]) -> io::Result<()> {
        self.wait(self.delete_as(&hex::encode(hash)))
    }

    fn check(&self) -> io::Result<()> {
        self.wait(self.test_access())
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn body(size: u64, source: &ObjectSource) -> Result<EgressBody, Failure> {
    if size == 0 {
        return Ok(EgressBody::Bytes(Vec::new()));
    }
    Ok(match source {
        ObjectSource::Bytes(bytes) => {
            EgressBody::Stream { size, bytes: Box::pin(io::Cursor::new(Arc::clone(bytes))) }
        }
        ObjectSource::File(path) => {
            let file = tokio::fs::File::open(path).await;
            let file =
                file.map_err(|error| temporary(format!("cannot read the object: {error}")))?;
            EgressBody::Stream { size, bytes: Box::pin(file) }
        }
    })
}

const fn temporary(detail: String) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}

/// Returns the code of an error, such as `NoSuchKey`.
fn error_code(body: &[u8]) -> Option<String> {
    let text = str::from_utf8(body).ok()?;
    let (_, rest) = text.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_code = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}

/// Decides whether a request may succeed later, and what an operator can do otherwise.
fn classify(
    location: &S3Location,
    method: &str,
    status: StatusCode,
    headers: &HeaderMap,
    code: Option<String>,
) -> Failure {
    let shown = code.as_deref().unwrap_or_default();
    let S3Location { place, bucket, .. } = location;
    let answer = format!("{place}: {method} was answered with {status} {shown}");
    let answer = answer.trim_end();
    let is_busy = matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504);
    if is_busy || matches!(shown, "SlowDown" | "RequestTimeout" | "InternalError") {
        let retry_after_ms = retry_after(headers).map(|delay| delay.as_millis());
        let retry_after_ms = retry_after_ms.map(|delay| u64::try_from(delay).unwrap_or(u64::MAX));
        return Failure::Temporary { detail: answer.to_owned(), retry_after_ms, error_code: code };
    }
    let advice = match (shown, status.as_u16()) {
        ("NoSuchBucket", _) => format!("the bucket {bucket} does not exist; create it"),
        ("SignatureDoesNotMatch", _) => "the secret of the access key is wrong".to_owned(),
        ("InvalidAccessKeyId", _) => "the access key is unknown".to_owned(),
        ("RequestTimeTooSkewed", _) => "the clock of this machine is wrong".to_owned(),
        (_, 401 | 403) => {
            format!("the access key may not {method} objects of the bucket {bucket}")
        }
        (_, 300..=399) => "the bucket has another region or endpoint".to_owned(),
        _ => "check endpoint, bucket and region of `objects`".to_owned(),
    };
    Failure::Permanent { detail: format!("{answer}: {advice}"), error_code: code }
}
