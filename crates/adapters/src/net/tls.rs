//! TLS by rustls: certificates of the system and of `ca_file`, and errors that say what to do.

use std::io;
use std::path::Path;
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

/// Encrypts a connection and verifies the certificate of the server.
pub async fn handshake(
    stream: TcpStream,
    server: &MailServer,
    limit: Duration,
) -> Result<TlsStream<TcpStream>, Failure> {
    let name = ServerName::try_from(server.host.clone())
        .map_err(|_| server.temporary(format_args!("{:?} is not a host name", server.host)))?;
    let ca_file = server.ca_file.clone();
    let config = tokio::task::spawn_blocking(move || shared_config(ca_file.as_deref()))
        .await
        .map_err(|error| server.temporary(error))?
        .map_err(|why| certificate_failure(server, why))?;
    let handshake = TlsConnector::from(config).connect(name, stream);
    match tokio::time::timeout(limit, handshake).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(handshake_failure(server, &error)),
        Err(_) => Err(server.temporary("the TLS handshake takes too long")),
    }
}

/// The config that trusts the CA certificates of the system, and when it was read.
static SYSTEM_CONFIG: Mutex<Option<(Instant, Arc<ClientConfig>)>> = Mutex::new(None);

/// Returns a config. The one without `ca_file` is shared: reading the certificates of the system
/// takes about 150 files, and every open connection holds its config.
fn shared_config(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, String> {
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

fn client_config(ca_file: Option<&Path>) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let extra = ca_file.map(read_certificates).transpose()?.unwrap_or_default();
    let verifier = Verifier::new_with_extra_roots(extra, provider.clone()).map_err(|error| {
        format!(
            "cannot use the CA certificates: {error}; install those of the system, or set `ca_file`"
        )
    })?;
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(builder
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |why: String| format!("`ca_file` {}: {why}", path.display());
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| failed(error.to_string()))?;
    if certificates.is_empty() {
        return Err(failed("no certificate found; expected PEM".to_owned()));
    }
    Ok(certificates)
}

fn handshake_failure(server: &MailServer, error: &io::Error) -> Failure {
    let cause = error.get_ref().and_then(|error| error.downcast_ref::<Error>());
    let Some(Error::InvalidCertificate(problem)) = cause else {
        let hint = match cause {
            Some(Error::InvalidMessage(_)) => {
                "; the server does not speak TLS on this port: check `port` and `tls`"
            }
            _ => "",
        };
        return server.temporary(format_args!("TLS: {error}{hint}"));
    };
    let why = match problem {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "the certificate is not valid for {:?} ({problem}); set `host` to a name in the \
                 certificate",
                server.host
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("the certificate has expired ({problem}); the server needs a new one")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!("the certificate is not valid yet ({problem}); check the clock")
        }
        CertificateError::UnknownIssuer => "the certificate is issued by an unknown CA; if the \
             server is yours, set `ca_file` to the PEM file of its CA"
            .to_owned(),
        other => format!("the certificate is not valid: {other}"),
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
