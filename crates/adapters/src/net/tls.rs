//! TLS by rustls: certificates of the system and of a file, and errors that say what to do.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use monoco_core::retry::Failure;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, Error};
use rustls_platform_verifier::Verifier;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{CERTIFICATE_ERROR, MailServer};

/// After this time the CA certificates of the system are read again.
const CONFIG_LIFETIME: Duration = Duration::from_secs(600);

/// Why a connection is not encrypted. The callers have different settings, so each writes its own
/// next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsProblem {
    /// The file with further CA certificates cannot be used.
    CaFile(String),
    /// The CA certificates of the system cannot be used.
    NoCaCertificates(String),
    /// The certificate is for other names.
    WrongName(String),
    Expired(String),
    NotYetValid(String),
    UnknownIssuer,
    InvalidCertificate(String),
    /// The server answers, but not with TLS.
    NotTls(String),
    TooSlow,
    Other(String),
}

/// Encrypts a connection to a mail server and verifies its certificate.
pub async fn handshake(
    stream: TcpStream,
    server: &MailServer,
    limit: Duration,
) -> Result<TlsStream<TcpStream>, Failure> {
    let encrypted = encrypt(stream, &server.host, server.ca_file.clone(), limit).await;
    encrypted.map_err(|problem| handshake_failure(server, problem))
}

/// Encrypts a connection and verifies that the certificate is valid for `host`.
pub async fn encrypt(
    stream: TcpStream,
    host: &str,
    ca_file: Option<PathBuf>,
    limit: Duration,
) -> Result<TlsStream<TcpStream>, TlsProblem> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| TlsProblem::Other(format!("{host:?} is not a host name")))?;
    let config = tokio::task::spawn_blocking(move || shared_config(ca_file.as_deref()))
        .await
        .map_err(|error| TlsProblem::Other(error.to_string()))??;
    let handshake = TlsConnector::from(config).connect(name, stream);
    match tokio::time::timeout(limit, handshake).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(problem_of(&error)),
        Err(_) => Err(TlsProblem::TooSlow),
    }
}

/// The config that trusts the CA certificates of the system, and when it was read.
static SYSTEM_CONFIG: Mutex<Option<(Instant, Arc<ClientConfig>)>> = Mutex::new(None);

/// Returns a config. The one without `ca_file` is shared: reading the certificates of the system
/// takes about 150 files, and every open connection holds its config.
fn shared_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, TlsProblem> {
    if ca_file.is_some() {
        return client_config(ca_file).map(Arc::new);
    }
    let mut shared = SYSTEM_CONFIG.lock().unwrap_or_else(PoisonError::into_inner);
    match &*shared {
        Some((at, config)) if at.elapsed() < CONFIG_LIFETIME => Ok(Arc::clone(config)),
        _ => {
            let config = Arc::new(client_config(None)?);
            *shared = Some((Instant::now(), Arc::clone(&config)));
            Ok(config)
        }
    }
}

fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, TlsProblem> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let extra = ca_file.map(read_certificates).transpose()?.unwrap_or_default();
    let verifier = Verifier::new_with_extra_roots(extra, provider.clone())
        .map_err(|error| TlsProblem::NoCaCertificates(error.to_string()))?;
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder
        .map_err(|error| TlsProblem::Other(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let failed = |why: String| TlsProblem::CaFile(format!("{}: {why}", path.display()));
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| failed(error.to_string()))?;
    if certificates.is_empty() {
        return Err(failed("no certificate found; expected PEM".to_owned()));
    }
    Ok(certificates)
}

fn problem_of(error: &io::Error) -> TlsProblem {
    let cause = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    let problem = match cause {
        Some(Error::InvalidCertificate(problem)) => problem,
        Some(Error::InvalidMessage(_)) => return TlsProblem::NotTls(error.to_string()),
        _ => return TlsProblem::Other(error.to_string()),
    };
    match problem {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsProblem::WrongName(problem.to_string())
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            TlsProblem::Expired(problem.to_string())
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsProblem::NotYetValid(problem.to_string())
        }
        // A known CA of the same name can have another key, such as one that was created again.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            TlsProblem::UnknownIssuer
        }
        other => TlsProblem::InvalidCertificate(other.to_string()),
    }
}

fn handshake_failure(server: &MailServer, problem: TlsProblem) -> Failure {
    let why = match problem {
        TlsProblem::TooSlow => return server.temporary("the TLS handshake takes too long"),
        TlsProblem::Other(why) => return server.temporary(format_args!("TLS: {why}")),
        TlsProblem::NotTls(why) => {
            let hint = "the server does not speak TLS on this port: check `port` and `tls`";
            return server.temporary(format_args!("TLS: {why}; {hint}"));
        }
        TlsProblem::CaFile(why) => format!("`ca_file` {why}"),
        TlsProblem::NoCaCertificates(why) => format!(
            "cannot use the CA certificates: {why}; install those of the system, or set `ca_file`"
        ),
        TlsProblem::WrongName(why) => format!(
            "the certificate is not valid for {:?} ({why}); set `host` to a name in the \
             certificate",
            server.host
        ),
        TlsProblem::Expired(why) => {
            format!("the certificate has expired ({why}); the server needs a new one")
        }
        TlsProblem::NotYetValid(why) => {
            format!("the certificate is not valid yet ({why}); check the clock")
        }
        TlsProblem::UnknownIssuer => "the certificate is issued by an unknown CA; if the \
             server is yours, set `ca_file` to the PEM file of its CA"
            .to_owned(),
        TlsProblem::InvalidCertificate(why) => format!("the certificate is not valid: {why}"),
    };
    certificate_failure(server, why)
}

fn certificate_failure(server: &MailServer, why: String) -> Failure {
    Failure::Temporary {
        detail: format!("cannot connect to {}: {why}", server.shown()),
        retry_after_ms: None,
        error_code: Some(CERTIFICATE_ERROR.to_owned()),
    }
}
