//! The one HTTP client: how long it may take, and what it means when there is no answer.
//!
//! Where it may go is the guard's business, see `egress/guard.rs`.
//!
//! Redirects are not followed, no proxy is asked, nothing is decompressed and
//! nothing is tried twice. Each request has a connection of its own: on one that was
//! kept, the peer may hang up just as we write, and then nobody knows whether it heard.

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

/// Most characters of an error that a failure repeats.
const MAX_DETAIL: usize = 300;

/// How long a request may take, and how much of the answer is read.
#[derive(Clone, Copy, Debug)]
pub struct EgressLimits {
    /// Until there is a connection: name, TCP and TLS. It should end before `total`,
    /// since after a `total` nobody knows whether the request went out.
    pub connect: Duration,
    /// Until the answer was read. A peer that drips does not prolong it.
    pub total: Duration,
    /// Bytes of the answer that are read.
    pub reply: usize,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), total: Duration::from_secs(30), reply: 64 << 10 }
    }
}

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be built: {0}")]
pub struct EgressUnavailable(String);

/// What a peer answered.
#[derive(Clone, Debug)]
pub struct EgressResponse {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// What it said, or the beginning of it.
    pub body: Vec<u8>,
}

/// The one HTTP client. Clones share what is costly.
#[derive(Clone, Debug)]
pub struct Egress {
    limits: EgressLimits,
    inside: Client,
    public: Arc<OnceLock<Client>>,
    anywhere: Arc<OnceLock<Client>>,
}

impl Egress {
    /// The client, with the usual limits.
    ///
    /// It is there on machines without CA certificates too; only https fails then.
    ///
    /// # Errors
    ///
    /// [`EgressUnavailable`] when it cannot be built.
    pub fn new() -> Result<Self, EgressUnavailable> {
        Self::with_limits(EgressLimits::default())
    }

    /// The client, with other limits.
    ///
    /// # Errors
    ///
    /// [`EgressUnavailable`] when it cannot be built.
    pub fn with_limits(limits: EgressLimits) -> Result<Self, EgressUnavailable> {
        // An error says that somebody has chosen a provider before, and it is kept.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        // Nobody it talks to has a certificate, so it does not look for those of CAs.
        let no_roots = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let inside = builder(AddressScope::Inside, limits)
            .tls_backend_preconfigured(no_roots)
            .build()
            .map_err(|error| EgressUnavailable(detail(&error)))?;
        Ok(Self { limits, inside, public: Arc::default(), anywhere: Arc::default() })
    }

    /// Posts `body`, once, and says what the peer answered.
    ///
    /// # Errors
    ///
    /// A [`CliError`]: temporary when nothing was sent, permanent when nothing may
    /// be sent there, unknown when it was sent and no answer came.
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
        // The status is the answer. One that breaks off after it is an answer too.
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = self.limits.reply - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == self.limits.reply {
                break;
            }
        }
        Ok(EgressResponse { status, headers, body })
    }

    /// Those that speak TLS are built when they are first needed, and again as long
    /// as that fails: somebody may install certificates meanwhile.
    fn client(&self, reach: AddressScope) -> Result<Client, Failure> {
        let shelf = match reach {
            AddressScope::Inside => return Ok(self.inside.clone()),
            AddressScope::Public => &self.public,
            AddressScope::Anywhere => &self.anywhere,
        };
        if let Some(client) = shelf.get() {
            return Ok(client.clone());
        }
        let client = builder(reach, self.limits).build().map_err(|error| {
            let detail = format!(
                "https is not possible here: {}; install the CA certificates, \
                 or name them in SSL_CERT_FILE",
                detail(&error)
            );
            Failure::Temporary { detail, retry_after_ms: None }
        })?;
        Ok(shelf.get_or_init(|| client).clone())
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

/// What it means that there was no answer.
fn failure(error: &reqwest::Error, peer: &str) -> Failure {
    if let Some(refused) = find::<InvalidTarget>(error) {
        return Failure::Permanent { detail: refused.to_string() };
    }
    let words = detail(error);
    if error.is_builder() {
        return Failure::Permanent { detail: format!("{peer}: {words}") };
    }
    if error.is_connect() {
        let detail = format!("cannot connect to {peer}: {words}");
        return Failure::Temporary { detail, retry_after_ms: None };
    }
    let seen = if error.is_timeout() { "no answer in time" } else { "the connection was lost" };
    Failure::Unknown { detail: format!("{peer}: {seen} after the message went out: {words}") }
}

/// The first cause of `error` that is a `T`.
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

/// The causes of `error` in one line. The outermost is left out: it only says that
/// a request failed, and of which URL.
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
    words.chars().take(MAX_DETAIL).collect()
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
    async fn the_guard_stands_where_the_connection_is_made() {
        let server = ScriptedServer::answering("200 OK", "", "");
        let url = format!("https://localhost:{}/", server.port());
        let refused = post(&url, false, EgressLimits::default()).await.unwrap_err();
        assert!(matches!(refused, Failure::Permanent { .. }), "{refused:?}");
        assert!(refused.detail().contains("allow_private: true"), "{refused:?}");
        assert!(!server.heard_more());

        let url = format!("http://localhost:{}/", server.port());
        assert_eq!(post(&url, true, EgressLimits::default()).await.unwrap().status, StatusCode::OK);
    }

    #[tokio::test]
    async fn what_was_never_sent_may_be_tried_again() {
        let soon = EgressLimits { connect: Duration::from_millis(300), ..EgressLimits::default() };
        // Accepts, and never says hello in TLS.
        let deaf = ScriptedServer::new([ScriptedAct::Deaf]);
        // Answers a TLS hello with HTTP.
        let plain = ScriptedServer::answering("400 Bad Request", "", "");
        for url in [
            deaf.url("https"),
            plain.url("https"),
            // Nobody listens there.
            "http://127.0.0.1:1/".to_owned(),
            "https://nowhere.invalid/".to_owned(),
        ] {
            let failure = post(&url, true, soon).await.unwrap_err();
            assert!(matches!(failure, Failure::Temporary { .. }), "{url}: {failure:?}");
            assert!(failure.detail().contains("cannot connect to"), "{url}: {failure:?}");
            assert!(!failure.detail().contains("canary"), "{url}: {failure:?}");
        }
    }

    #[tokio::test]
    async fn no_more_of_an_answer_is_read_than_is_of_use() {
        let server = ScriptedServer::answering("200 OK", "", &"x".repeat(100_000));
        let limits = EgressLimits { reply: 1000, ..EgressLimits::default() };
        let reply = post(&server.url("http"), true, limits).await.unwrap();
        assert_eq!(reply.body, "x".repeat(1000).as_bytes());
    }

    #[test]
    fn it_can_be_built_twice() {
        assert!(Egress::new().is_ok());
        assert!(Egress::new().is_ok());
    }

    /// The certificates are looked for where the environment says, so it runs itself
    /// in another one.
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
