//! Connections to PostgreSQL: TLS, settings of the session, and errors.

use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// How long the server may leave data unacknowledged before the connection counts as lost.
const TCP_TIMEOUT: Duration = Duration::from_secs(20);

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
    SET jit = off;
";

/// How the sessions of one store are opened.
#[derive(Debug)]
pub(crate) struct Connector {
    config: Config,
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
    /// server's certificate; otherwise those of the system count. `options` and the rest are
    /// read as by other clients of PostgreSQL.
    pub(super) fn new(url: &str, schema: &str) -> StoreResult<Self> {
        let (url, root) = take_parameter(url, "sslrootcert");
        // The error of the parser can repeat the password.
        let invalid = |_| {
            let why = "the PostgreSQL URL is invalid; expected \
                       postgres://user:password@host:port/database?target_session_attrs=read-write";
            StoreError::Unavailable(why.to_owned())
        };
        let mut config: Config = url.parse().map_err(invalid)?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(TCP_TIMEOUT);
        }
        if config.get_application_name().is_none() {
            config.application_name("monoco");
        }
        Ok(Self {
            config,
            tls: Tls::new(root.map(PathBuf::from))?,
            schema: schema.to_owned(),
            #[cfg(test)]
            failpoint: std::sync::Mutex::default(),
        })
    }

    /// Opens a session. Its task runs on the current runtime.
    pub(super) async fn connect(&self) -> Result<PgSession, tokio_postgres::Error> {
        self.open(None).await
    }

    /// Like [`Self::connect`]. Sends the text of each notification to `heard`.
    pub(super) async fn connect_listening(
        &self,
        heard: mpsc::Sender<String>,
    ) -> Result<PgSession, tokio_postgres::Error> {
        self.open(Some(heard)).await
    }

    /// The name under which couriers notify each other.
    pub(super) fn channel(&self) -> String {
        format!("monoco_{}", self.schema)
    }

    async fn open(
        &self,
        heard: Option<mpsc::Sender<String>>,
    ) -> Result<PgSession, tokio_postgres::Error> {
        let (client, mut connection) = self.config.connect(self.tls.clone()).await?;
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
        let error = Connector::new("postgres://ann:secret@host:port/db", "public").unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}
