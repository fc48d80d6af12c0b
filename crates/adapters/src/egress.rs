//! The one HTTP client for outgoing requests: timeouts, limits, and how a missing response
//! is classified.
//!
//! `egress/guard.rs` decides which addresses may be connected to.
//!
//! The client follows no redirects, uses no proxy, decompresses nothing and never retries.
//! Each request has its own connection: a peer may close a reused connection while the
//! client writes, and then it is unknown whether the request arrived.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{HeaderMap, StatusCode};
use monoco_core::retry::Failure;
use reqwest::Client;
use reqwest::redirect::Policy;

mod guard;

use guard::AddressScope;
pub use guard::{EgressTarget, InvalidTarget, is_public};

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
    inside: Client,
    public: Arc<OnceLock<Client>>,
    anywhere: Arc<OnceLock<Client>>,
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
        // Used for http:// only, so it needs no CA certificates.
        let no_roots = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let inside = builder(AddressScope::Inside, limits)
            .tls_backend_preconfigured(no_roots)
            .build()
            .map_err(|error| EgressUnavailable(detail(&error)))?;
        Ok(Self { limits, inside, public: Arc::default(), anywhere: Arc::default() })
    }

    /// Makes one POST request and returns the response. A failure is temporary when nothing
    /// was sent, permanent when the address is not allowed, and unknown when the request was
    /// sent and no response arrived.
    pub async fn post(
        &self,
        target: &EgressTarget,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<EgressResponse, Failure> {
        let client = self.client(target.reach)?;
        let request = client.post(target.url.clone()).headers(headers).body(body);
        let mut response =
            request.send().await.map_err(|error| failure(&error, &target.shown()))?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        // The status decides. A body that breaks off after it is still a response.
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = self.limits.reply - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == self.limits.reply {
                break;
            }
        }
        Ok(EgressResponse { status, headers, body })
    }

    /// Returns the client for a scope. Clients with TLS are built when they are first needed.
    /// A failure is not remembered: CA certificates may be installed later.
    fn client(&self, reach: AddressScope) -> Result<Client, Failure> {
        let cached = match reach {
            AddressScope::Inside => return Ok(self.inside.clone()),
            AddressScope::Public => &self.public,
            AddressScope::Anywhere => &self.anywhere,
        };
        if let Some(client) = cached.get() {
            return Ok(client.clone());
        }
        let client = builder(reach, self.limits).build().map_err(|error| {
            let detail = format!(
                "cannot use https: {}; install the CA certificates, \
                 or name their file in SSL_CERT_FILE",
                detail(&error)
            );
            Failure::Temporary { detail, retry_after_ms: None, error_code: None }
        })?;
        Ok(cached.get_or_init(|| client).clone())
    }
}

fn builder(reach: AddressScope, limits: EgressLimits) -> reqwest::ClientBuilder {
    Client::builder()
        .user_agent(concat!("monoco/", env!("CARGO_PKG_VERSION")))
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .pool_max_idle_per_host(0)
        .connect_timeout(limits.connect)
        .timeout(limits.total)
        .dns_resolver(reach)
}

/// Classifies an error without a response.
fn failure(error: &reqwest::Error, peer: &str) -> Failure {
    if let Some(refused) = find::<InvalidTarget>(error) {
        return Failure::Permanent { detail: refused.to_string(), error_code: None };
    }
    let words = detail(error);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::{ScriptedAct, ScriptedServer};

    async fn post(
        url: &str,
        allow_private: bool,
        limits: EgressLimits,
    ) -> Result<EgressResponse, Failure> {
        let target = EgressTarget::parse(url, allow_private).unwrap();
        let egress = Egress::with_limits(limits).unwrap();
        egress.post(&target, HeaderMap::new(), b"{}".to_vec()).await
    }

    #[tokio::test]
    async fn address_is_checked_when_connecting() {
        let server = ScriptedServer::answering("200 OK", "", "");
        let url = format!("https://localhost:{}/", server.port());
        let refused = post(&url, false, EgressLimits::default()).await.unwrap_err();
        assert!(matches!(refused, Failure::Permanent { .. }), "{refused:?}");
        assert!(refused.detail().contains("allow_private: true"), "{refused:?}");
        assert!(!server.received_more());

        let url = format!("http://localhost:{}/", server.port());
        assert_eq!(post(&url, true, EgressLimits::default()).await.unwrap().status, StatusCode::OK);
    }

    #[tokio::test]
    async fn failure_to_connect_is_temporary() {
        let short = EgressLimits { connect: Duration::from_millis(300), ..EgressLimits::default() };
        // Accepts the connection and never answers the TLS handshake.
        let deaf = ScriptedServer::new([ScriptedAct::Deaf]);
        // Answers a TLS handshake with HTTP.
        let plain = ScriptedServer::answering("400 Bad Request", "", "");
        for url in [
            deaf.url("https"),
            plain.url("https"),
            // No process listens on this port.
            "http://127.0.0.1:1/".to_owned(),
            "https://nowhere.invalid/".to_owned(),
        ] {
            let failure = post(&url, true, short).await.unwrap_err();
            assert!(matches!(failure, Failure::Temporary { .. }), "{url}: {failure:?}");
            assert!(failure.detail().contains("cannot connect to"), "{url}: {failure:?}");
            assert!(!failure.detail().contains("canary"), "{url}: {failure:?}");
        }
    }

    #[tokio::test]
    async fn response_is_read_up_to_the_limit() {
        let server = ScriptedServer::answering("200 OK", "", &"x".repeat(100_000));
        let limits = EgressLimits { reply: 1000, ..EgressLimits::default() };
        let reply = post(&server.url("http"), true, limits).await.unwrap();
        assert_eq!(reply.body, "x".repeat(1000).as_bytes());
    }

    #[test]
    fn client_can_be_built_twice() {
        assert!(Egress::new().is_ok());
        assert!(Egress::new().is_ok());
    }

    /// The environment names the certificates, so the test runs itself in a child process
    /// with another environment.
    #[tokio::test]
    async fn without_ca_certificates_only_https_fails() {
        const NAME: &str = "egress::tests::without_ca_certificates_only_https_fails";
        if std::env::var_os("MONOCO_TEST_CHILD").is_none() {
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", NAME])
                .env("MONOCO_TEST_CHILD", "1")
                .env("SSL_CERT_FILE", "/nonexistent/ca.crt")
                .env("SSL_CERT_DIR", "/nonexistent")
                .output()
                .unwrap();
            let output = String::from_utf8_lossy(&child.stdout);
            assert!(output.contains("1 passed"), "{output}");
            return;
        }
        let failure = post("https://192.0.2.1/", true, EgressLimits::default()).await.unwrap_err();
        assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
        assert!(failure.detail().contains("install the CA certificates"), "{failure:?}");
        let server = ScriptedServer::answering("200 OK", "", "");
        let reply = post(&server.url("http"), true, EgressLimits::default()).await;
        assert_eq!(reply.unwrap().status, StatusCode::OK);
    }
}
