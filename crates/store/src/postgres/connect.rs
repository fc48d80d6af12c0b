//! Connections to PostgreSQL: TLS, settings of the session, and errors.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls_platform_verifier::ConfigVerifierExt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::{AsyncMessage, Client, Config, Socket};
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

use super::diagnosis;
use crate::{StoreError, StoreResult};

/// How long a connection may take to open.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a host may take until its session can be used. A server that is stopped accepts
/// connections, and never answers.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the server may leave data unacknowledged before the connection counts as lost. It is
/// shorter than the lease of a duty.
const TCP_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a connection is idle before it is probed, and between two probes. Without probes, a
/// courier that waits for an answer would not notice that the network swallows all packets.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// The default of the client, which no operator sets.
const DEFAULT_IDLE: Duration = Duration::from_secs(2 * 60 * 60);

/// Settings of every session. A server can have other defaults: the store relies on these.
const SETTINGS: &str = "
    SET client_encoding = 'UTF8';
    SET standard_conforming_strings = on;
    SET synchronous_commit = on;
    SET synchronize_seqscans = off;
    SET idle_in_transaction_session_timeout = '10s';
    SET lock_timeout = 0;
    SET statement_timeout = 0;
    SET default_transaction_read_only = off;
    SET default_transaction_isolation = 'read committed';
    SET jit = off;
    SET tcp_keepalives_idle = 10;
    SET tcp_keepalives_interval = 5;
    SET tcp_user_timeout = '20s';
";

/// How the sessions of one store are opened.
#[derive(Debug)]
pub(crate) struct Connector {
    /// One per host of the URL, in their order.
    hosts: Vec<Config>,
    /// The host of the last session, which is tried first: each attempt at a lost one takes time.
    last_host: AtomicUsize,
    tls: Tls,
    /// The schema with the tables of the store.
    schema: String,
    /// Where a test cuts the connection of the writer.
    #[cfg(test)]
    pub(super) failpoint: std::sync::Mutex<Option<super::failpoints::Failpoint>>,
}

/// An open session with the server.
pub(super) struct PgSession {
    pub(super) client: Client,
    /// Set by a warning of the server, such as that a commit did not wait for the standby.
    pub(super) warned: Arc<AtomicBool>,
}

impl Connector {
    /// Reads a connection URL. `sslrootcert` names a file with the certificates that sign the
    /// server's certificate; otherwise those of the system count. `sslmode` can be `verify-ca` or
    /// `verify-full` as well, which mean `require`: certificates are always verified. `options` and
    /// the rest are read as by other clients of PostgreSQL.
    pub(super) fn new(url: &str, schema: &str) -> StoreResult<Self> {
        let (url, root) = take_parameter(url, "sslrootcert");
        let (plain, mode) = take_parameter(&url, "sslmode");
        let url = match mode.as_deref() {
            Some("verify-ca" | "verify-full") => with_parameter(&plain, "sslmode=require"),
            _ => url,
        };
        let hosts = host_urls(&url).into_iter().map(|url| read_config(&url));
        Ok(Self {
            hosts: hosts.collect::<StoreResult<_>>()?,
            last_host: AtomicUsize::new(0),
            tls: Tls::new(root.map(PathBuf::from))?,
            schema: schema.to_owned(),
            #[cfg(test)]
            failpoint: std::sync::Mutex::default(),
        })
    }

    /// Opens a session. Its task runs on the current runtime.
    pub(super) async fn connect(&self) -> StoreResult<PgSession> {
        self.open(None).await
    }

    /// Like [`Self::connect`]. Sends the text of each notification to `heard`.
    pub(super) async fn connect_listening(
        &self,
        heard: mpsc::Sender<String>,
    ) -> StoreResult<PgSession> {
        self.open(Some(heard)).await
    }

    /// The name under which couriers notify each other.
    pub(super) fn channel(&self) -> String {
        format!("monoco_{}", self.schema)
    }

    /// Opens a session at the first host that has one, from the host of the last session on. A host
    /// that does not answer does not keep the courier from the others. The error is that of the last
    /// one that was tried.
    async fn open(&self, heard: Option<mpsc::Sender<String>>) -> StoreResult<PgSession> {
        let mut last = StoreError::Unavailable("the PostgreSQL URL has no host".to_owned());
        let (count, first) = (self.hosts.len(), self.last_host.load(Ordering::Relaxed));
        for at in (0..count).map(|offset| (first + offset) % count) {
            let opened = self.open_at(&self.hosts[at], heard.clone());
            last = match tokio::time::timeout(SESSION_TIMEOUT, opened).await {
                Ok(Ok(session)) => {
                    self.last_host.store(at, Ordering::Relaxed);
                    return Ok(session);
                }
                Ok(Err(error)) => store_error(&error),
                Err(_) => StoreError::Unavailable(format!(
                    "PostgreSQL: no answer in {} s; check that the server is not stopped",
                    SESSION_TIMEOUT.as_secs()
                )),
            };
        }
        Err(last)
    }

    async fn open_at(
        &self,
        config: &Config,
        heard: Option<mpsc::Sender<String>>,
    ) -> Result<PgSession, tokio_postgres::Error> {
        let (client, mut connection) = config.connect(self.tls.clone()).await?;
        let warned = Arc::new(AtomicBool::new(false));
        let on_warning = Arc::clone(&warned);
        #[expect(
            clippy::disallowed_methods,
            reason = "the task ends with its session, on the runtime of the driver"
        )]
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
                match message {
                    Ok(AsyncMessage::Notice(notice)) => note(&notice, &on_warning),
                    Ok(AsyncMessage::Notification(notification)) => {
                        if let Some(heard) = &heard {
                            // The receiver is gone when the store is closed.
                            let _ = heard.send(notification.payload().to_owned()).await;
                        }
                    }
                    Ok(_) => {}
                    // The statement that waits for an answer fails.
                    Err(_) => break,
                }
            }
        });
        client.batch_execute(SETTINGS).await?;
        let path = format!("SET search_path = {}", quoted_name(&self.schema));
        client.batch_execute(&path).await?;
        Ok(PgSession { client, warned })
    }
}

/// Reads the URL of one host, and sets what it leaves open.
fn read_config(url: &str) -> StoreResult<Config> {
    let mut config: Config = url.parse().map_err(|error| {
        // The error of the parser can repeat the password.
        let detail = diagnosis::invalid_parameter(&error);
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        StoreError::Unavailable(format!(
            "the PostgreSQL URL is invalid{detail}; expected \
             postgres://user:password@host:port/database?target_session_attrs=read-write"
        ))
    })?;
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_TIMEOUT);
    }
    if config.get_keepalives_idle() == DEFAULT_IDLE {
        config.keepalives_idle(PROBE_INTERVAL);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(PROBE_INTERVAL);
    }
    if config.get_application_name().is_none() {
        config.application_name("monoco");
    }
    Ok(config)
}

/// The URLs of the hosts in a URL, in their order. Hosts of which one is chosen at random, and
/// those that a parameter names, stay together.
fn host_urls(url: &str) -> Vec<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return vec![url.to_owned()] };
    let (user, rest) = match rest.split_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), rest),
    };
    let (hosts, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if rest.contains("load_balance_hosts=") {
        return vec![url.to_owned()];
    }
    hosts.split(',').map(|host| format!("{scheme}://{user}{host}{rest}")).collect()
}

fn note(notice: &DbError, warned: &AtomicBool) {
    if notice.severity() == "WARNING" {
        tracing::warn!(code = notice.code().code(), message = notice.message(), "database warning");
        warned.store(true, Ordering::SeqCst);
    }
}

/// A name in an SQL text.
pub(super) fn quoted_name(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text literal in an SQL text.
pub(super) fn quoted_text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Removes a parameter from the query of a URL and returns its value.
fn take_parameter(url: &str, name: &str) -> (String, Option<String>) {
    let Some((base, query)) = url.split_once('?') else { return (url.to_owned(), None) };
    let (mut rest, mut value) = (Vec::new(), None);
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some((key, found)) if key == name => value = Some(found.to_owned()),
            _ => rest.push(pair),
        }
    }
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    (format!("{base}{query}"), value)
}

/// Adds a parameter to a URL.
fn with_parameter(url: &str, parameter: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{parameter}")
}

/// What a failed statement means for the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PgFailure {
    /// The statement is wrong, or its values are. The transaction is aborted.
    Statement,
    /// Running the transaction again can succeed: the connection was lost, the server stops, or
    /// two transactions blocked each other.
    Transient,
}

/// Classifies an error of the client.
pub(super) fn failure(error: &tokio_postgres::Error) -> PgFailure {
    let Some(code) = error.code() else { return PgFailure::Transient };
    let transient = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
    ];
    let class = code.code().get(..2).unwrap_or_default();
    let stopping = code.code().starts_with("57P0");
    if transient.contains(code) || class == "08" || stopping {
        PgFailure::Transient
    } else {
        PgFailure::Statement
    }
}

/// Maps an error to an error of the store.
pub(super) fn store_error(error: &tokio_postgres::Error) -> StoreError {
    match error.as_db_error() {
        Some(db) if *db.code() == SqlState::DISK_FULL => StoreError::DiskFull,
        _ => StoreError::Unavailable(diagnosis::describe(error)),
    }
}

/// Verifies certificates and encrypts.
#[derive(Clone)]
struct Tls(Arc<ClientConfig>);

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    fn new(root: Option<PathBuf>) -> StoreResult<Self> {
        let failed = |why: String| StoreError::Unavailable(why);
        let Some(path) = root else {
            let config = ClientConfig::with_platform_verifier();
            return Ok(Self(Arc::new(config.map_err(|error| failed(error.to_string()))?)));
        };
        let invalid = |why: String| failed(format!("sslrootcert {}: {why}", path.display()));
        let mut roots = rustls::RootCertStore::empty();
        for certificate in
            CertificateDer::pem_file_iter(&path).map_err(|error| invalid(error.to_string()))?
        {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        if roots.is_empty() {
            return Err(invalid("the file has no certificate; expected PEM".to_owned()));
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }
}

/// Encrypts one connection with TLS.
struct ServerTls {
    config: Arc<ClientConfig>,
    /// `None` for a Unix socket, which is never encrypted.
    server: Option<ServerName<'static>>,
}

/// A connection encrypted with TLS.
struct EncryptedStream(client::TlsStream<Socket>);

impl MakeTlsConnect<Socket> for Tls {
    type Stream = EncryptedStream;
    type TlsConnect = ServerTls;
    type Error = std::convert::Infallible;

    fn make_tls_connect(&mut self, domain: &str) -> Result<ServerTls, Self::Error> {
        let server = ServerName::try_from(domain.to_owned()).ok();
        Ok(ServerTls { config: Arc::clone(&self.0), server })
    }
}

impl TlsConnect<Socket> for ServerTls {
    type Stream = EncryptedStream;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<EncryptedStream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let no_name = || std::io::Error::other("TLS needs the name of the server");
            let server = self.server.ok_or_else(no_name)?;
            TlsConnector::from(self.config).connect(server, stream).await.map(EncryptedStream)
        })
    }
}

impl TlsStream for EncryptedStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for EncryptedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for EncryptedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_certificate_is_taken_out_of_the_url() {
        let url = "postgres://a@b/c?sslmode=require&sslrootcert=/etc/ca.pem";
        let expected = "postgres://a@b/c?sslmode=require".to_owned();
        assert_eq!(take_parameter(url, "sslrootcert"), (expected, Some("/etc/ca.pem".to_owned())));
        let plain = "postgres://a@b/c".to_owned();
        assert_eq!(take_parameter(&plain, "sslrootcert"), (plain, None));
    }

    #[test]
    fn error_of_an_invalid_url_does_not_repeat_the_password() {
        for (url, named) in [
            ("postgres://ann:secret@host:port/db", "port"),
            ("postgres://ann:secret@host/db?sslmode=maybe", "sslmode"),
            ("postgres://ann:secret@host/db?sslcert=me.pem", "sslcert"),
            ("postgres://ann:secret@host/db?sslmod=secret", "did you mean sslmode?"),
            ("postgres://ann:pass@secret?secret=1@host/db", "URL"),
        ] {
            let error = Connector::new(url, "public").unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn each_host_has_its_own_timeout_and_probes() {
        let url = "postgres://ann:pa%2Fss@a:1,b:2,%2Frun%2Fpg/db?sslmode=verify-full";
        let hosts = Connector::new(url, "public").unwrap().hosts;
        assert_eq!(hosts.len(), 3);
        for host in &hosts {
            assert_eq!((host.get_hosts().len(), host.get_user()), (1, Some("ann")));
            assert_eq!(host.get_ssl_mode(), tokio_postgres::config::SslMode::Require);
            assert_eq!(host.get_keepalives_idle(), PROBE_INTERVAL);
            assert_eq!(host.get_tcp_user_timeout(), Some(&TCP_TIMEOUT));
        }
        assert_eq!(hosts[1].get_ports(), [2]);
        let url = "postgres://ann@a,b/db?keepalives_idle=60&load_balance_hosts=random";
        let hosts = Connector::new(url, "public").unwrap().hosts;
        assert_eq!((hosts.len(), hosts[0].get_hosts().len()), (1, 2));
        assert_eq!(hosts[0].get_keepalives_idle(), Duration::from_secs(60));
    }
}
