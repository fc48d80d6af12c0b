//! The one HTTP client for outgoing requests: timeouts, limits, and how a missing response
//! is classified.
//!
//! `egress/guard.rs` decides which addresses may be connected to, and `egress/host_rule.rs` which
//! hosts the URLs of a provider may name.
//!
//! The client uses no proxy and decompresses nothing. Only downloads follow redirects. Each
//! request has its own connection: a peer may close a reused connection while the client writes,
//! and then it is unknown whether the request arrived. Requests that can be repeated without harm
//! use kept connections, and are repeated once when such a connection was closed.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use monoco_core::retry::Failure;
use reqwest::Client;
use reqwest::redirect::Policy;
use serde::de::DeserializeOwned;

mod download;
mod guard;
mod host_rule;
mod request;

#[cfg(test)]
mod tests;

pub use download::EgressDownload;
use guard::AddressScope;
pub use guard::{EgressTarget, InvalidTarget, is_public};
pub use host_rule::HostRule;
use request::UnreadableContent;
pub use request::{ByteReader, EgressBody, EgressRequest, MultipartField};

/// How many idle connections to one host are kept, for requests that may be repeated.
const KEPT_CONNECTIONS: usize = 2;

/// How long an idle connection is kept.
const KEEP_TIME: Duration = Duration::from_secs(20);

/// Longest part of an error that a failure repeats, in characters.
const MAX_DETAIL_CHARS: usize = 300;

/// Limits of one request.
#[derive(Clone, Copy, Debug)]
pub struct EgressLimits {
    /// Time for the name lookup, TCP and TLS. Must be shorter than `total`: when `total` has
    /// passed, it is unknown whether the request was sent.
    pub connect: Duration,
    /// Time until the response has been read, however slowly it arrives.
    pub total: Duration,
    /// How many bytes of the response are read.
    pub reply: usize,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), total: Duration::from_secs(30), reply: 64 << 10 }
    }
}

impl EgressResponse {
    /// Parses the body as JSON.
    ///
    /// # Errors
    ///
    /// What is wrong with the body, without its content.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, String> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let (kind, at) = (error.classify(), error.column());
            format!("the response with status {} is no valid JSON ({kind:?} at {at})", self.status)
        })
    }

    /// Returns the delay that the peer asks for.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(&self.headers)
    }
}

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("cannot build the HTTP client: {0}")]
pub struct EgressUnavailable(String);

/// The response of a peer.
#[derive(Clone, Debug)]
pub struct EgressResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The body, cut at [`EgressLimits::reply`] bytes.
    pub body: Vec<u8>,
}

/// The HTTP client. Clones share its connections and certificates.
#[derive(Clone, Debug)]
pub struct Egress {
    limits: EgressLimits,
    clients: Arc<[OnceLock<Client>; 6]>,
}

impl Egress {
    /// Builds a client with the default limits. On a machine without CA certificates it can
    /// be built as well; only https requests fail.
    pub fn new() -> Result<Self, EgressUnavailable> {
        Self::with_limits(EgressLimits::default())
    }

    /// Builds a client with other limits.
    pub fn with_limits(limits: EgressLimits) -> Result<Self, EgressUnavailable> {
        // Fails when the process has a TLS provider already; that one is used then.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let egress = Self { limits, clients: Arc::default() };
        let inside = egress.build(AddressScope::Inside, false);
        let inside = inside.map_err(|error| EgressUnavailable(detail(&error)))?;
        egress.slot(AddressScope::Inside, false).get_or_init(|| inside);
        Ok(egress)
    }

    /// Makes one POST request and returns the response. Fails as [`Egress::send`].
    pub async fn post(
        &self,
        target: &EgressTarget,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<EgressResponse, Failure> {
        let request = EgressRequest::post(target).headers(headers).body(EgressBody::Bytes(body));
        self.send(request).await
    }

    /// Makes one request and returns the response, whatever its status. Follows no redirect.
    ///
    /// # Errors
    ///
    /// Temporary when nothing was sent, permanent when the address is not allowed, and unknown
    /// when the request was sent and no response arrived. If the request is
    /// [`repeatable`](EgressRequest::repeatable), a missing response is temporary.
    pub async fn send(&self, request: EgressRequest<'_>) -> Result<EgressResponse, Failure> {
        let max_reply = request.max_reply.unwrap_or(self.limits.reply);
        let mut response = self.respond(request).await?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        // The status decides. A body that breaks off after it is still a response.
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = max_reply - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == max_reply {
                break;
            }
        }
        Ok(EgressResponse { status, headers, body })
    }

    /// Sends a request and waits for the head of the response.
    async fn respond(&self, request: EgressRequest<'_>) -> Result<reqwest::Response, Failure> {
        let EgressRequest { method, target, mut headers, body, timeout, repeatable, .. } = request;
        if let Some(problem) = request.problem {
            return Err(problem);
        }
        let timeout = timeout.unwrap_or_else(|| self.limits.total + body.upload_time());
        let again = if repeatable { body.copy() } else { None };
        let body = body.into_body(&mut headers);
        let make = |client: Client, headers: HeaderMap, body: Option<reqwest::Body>| {
            let request = client.request(method.clone(), target.url.clone()).headers(headers);
            let request = request.timeout(timeout);
            body.into_iter().fold(request, reqwest::RequestBuilder::body).send()
        };
        let client = self.client(target.reach, repeatable)?;
        let mut result = make(client, headers.clone(), body).await;
        // The peer may have closed a kept connection. Only a new one can tell.
        if let (Err(error), Some(body)) = (&result, again)
            && !error.is_connect()
            && !error.is_timeout()
        {
            let client = self.client(target.reach, false)?;
            let body = body.into_body(&mut headers);
            result = make(client, headers, body).await;
        }
        result.map_err(|error| match failure(&error, &target.shown()) {
            Failure::Unknown { detail, error_code } if repeatable => {
                Failure::Temporary { detail, retry_after_ms: None, error_code }
            }
            failure => failure,
        })
    }

    /// Returns the client for a scope. Clients with TLS are built when they are first needed.
    /// A failure is not remembered: CA certificates may be installed later.
    fn client(&self, reach: AddressScope, keeps_connections: bool) -> Result<Client, Failure> {
        let slot = self.slot(reach, keeps_connections);
        if let Some(client) = slot.get() {
            return Ok(client.clone());
        }
        let client = self.build(reach, keeps_connections).map_err(|error| {
            let detail = format!(
                "cannot use https: {}; install the CA certificates, \
                 or name their file in SSL_CERT_FILE",
                detail(&error)
            );
            Failure::Temporary { detail, retry_after_ms: None, error_code: None }
        })?;
        Ok(slot.get_or_init(|| client).clone())
    }

    fn slot(&self, reach: AddressScope, keeps_connections: bool) -> &OnceLock<Client> {
        let scope = match reach {
            AddressScope::Inside => 0,
            AddressScope::Public => 1,
            AddressScope::Anywhere => 2,
        };
        &self.clients[2 * scope + usize::from(keeps_connections)]
    }

    fn build(&self, reach: AddressScope, keeps_connections: bool) -> reqwest::Result<Client> {
        let builder = Client::builder()
            .user_agent(concat!("monoco/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .no_proxy()
            .pool_max_idle_per_host(if keeps_connections { KEPT_CONNECTIONS } else { 0 })
            .pool_idle_timeout(KEEP_TIME)
            .connect_timeout(self.limits.connect)
            .dns_resolver(reach);
        if reach != AddressScope::Inside {
            return builder.build();
        }
        // Used for http:// only, so it needs no CA certificates.
        let no_roots = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        builder.tls_backend_preconfigured(no_roots).build()
    }
}

/// Classifies a response that is not 2xx, when the provider says nothing more about it.
pub fn status_failure(status: StatusCode, headers: &HeaderMap, what: &str) -> Failure {
    let detail = format!("{what}: the provider answers {status}");
    let is_busy = matches!(status.as_u16(), 408 | 425 | 429);
    if is_busy || status.is_server_error() {
        let retry_after_ms = retry_after(headers).map(millis);
        return Failure::Temporary { detail, retry_after_ms, error_code: None };
    }
    Failure::Permanent { detail, error_code: None }
}

/// Returns the delay that `Retry-After` asks for in seconds. Dates are ignored: chat providers
/// send none.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    // The queue limits absurd delays.
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| Duration::from_secs(text.parse().unwrap_or(u64::from(u32::MAX))))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Classifies an error without a response.
fn failure(error: &reqwest::Error, peer: &str) -> Failure {
    if let Some(refused) = find::<InvalidTarget>(error) {
        return Failure::Permanent { detail: refused.to_string(), error_code: None };
    }
    let words = detail(error);
    if let Some(unreadable) = find::<UnreadableContent>(error) {
        let detail = format!("{peer}: {unreadable}");
        return Failure::Temporary { detail, retry_after_ms: None, error_code: None };
    }
    if error.is_builder() {
        return Failure::Permanent { detail: format!("{peer}: {words}"), error_code: None };
    }
    if error.is_connect() {
        let detail = format!("cannot connect to {peer}: {words}");
        return Failure::Temporary { detail, retry_after_ms: None, error_code: None };
    }
    let event = if error.is_timeout() { "no response in time" } else { "connection lost" };
    Failure::Unknown {
        detail: format!("{peer}: {event} after the message was sent: {words}"),
        error_code: None,
    }
}

/// Returns the first cause of `error` that is a `T`.
fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

/// Returns the causes of `error` in one line. The outermost is left out: it holds the URL,
/// which may be secret.
fn detail(error: &reqwest::Error) -> String {
    let mut words = String::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.ends_with(&text) {
            let colon = if words.is_empty() { "" } else { ": " };
            let _ = write!(words, "{colon}{text}");
        }
        cause = error.source();
    }
    if words.is_empty() {
        words.push_str("the request cannot be made");
    }
    words.chars().take(MAX_DETAIL_CHARS).collect()
}
