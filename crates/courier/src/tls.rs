//! The certificate of the listener for other machines: loads and checks it.
//!
//! A certificate is used only when clients can accept it: it belongs to the key, is valid now, and
//! has all configured names.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use monoco_core::time::Timestamp;
use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::ParsedCertificate;
use rustls::{Error, ServerConfig};

use crate::config::{RemoteConfig, RemoteName};

/// Largest PEM file that is read, in bytes.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// A certificate that expires within this time is reported. One that is valid for less than three
/// times as long is reported in the last third of its time.
const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 86_400);

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateFileError {
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: io::Error },
    #[error("other users can read the key {path} (mode {mode:o}); run `chmod 600 {path}`")]
    OpenKey { path: PathBuf, mode: u32 },
    #[error("{path}: {why}")]
    Invalid { path: PathBuf, why: String },
    #[error(
        "the certificate {path} has expired at {}; renew it, and the courier uses it by itself", .at.rfc3339()
    )]
    Expired { path: PathBuf, at: Timestamp },
    #[error(
        "the certificate {path} is not valid before {}; check the clock of this machine", .at.rfc3339()
    )]
    NotYetValid { path: PathBuf, at: Timestamp },
    #[error(
        "the certificate {path} is not valid for the name {name} of `courier.remote.names`; get a \
         certificate with this name, or remove the name"
    )]
    WrongName { path: PathBuf, name: RemoteName },
    #[error(
        "the key {key} does not belong to the certificate {path}; expected the files of one order"
    )]
    KeyMismatch { path: PathBuf, key: PathBuf },
}

/// A certificate with its key, checked.
#[derive(Clone, Debug)]
pub struct ServerCertificate {
    config: Arc<ServerConfig>,
    /// The certificate of the server itself.
    own: CertificateDer<'static>,
    pub validity: Validity,
}

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
}

impl Validity {
    /// Whether the certificate should have been renewed by now.
    pub fn is_ending(&self, now: Timestamp) -> bool {
        let third = self.not_after.since(self.not_before) / 3;
        self.not_after.since(now) < EXPIRY_WARNING.min(third)
    }
}

impl ServerCertificate {
    /// The settings of a handshake.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    pub fn is_same(&self, other: &Self) -> bool {
        self.own == other.own
    }

    /// Reads and checks the files.
    ///
    /// # Errors
    ///
    /// [`CertificateFileError`], which names the file and the next step.
    pub fn load(remote: &RemoteConfig, now: Timestamp) -> Result<Self, CertificateFileError> {
        let path = &remote.certificate;
        let invalid = |why: String| CertificateFileError::Invalid { path: path.clone(), why };
        let chain: Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(&read(path, false)?).collect();
        let chain = chain.map_err(|error| invalid(format!("not a PEM certificate: {error}")))?;
        let Some(own) = chain.first() else {
            let why = "no certificate found; expected PEM with the certificate of the server first";
            return Err(invalid(why.to_owned()));
        };
        let validity = validity(own)
            .ok_or_else(|| invalid("cannot read when the certificate is valid".to_owned()))?;
        if now > validity.not_after {
            return Err(CertificateFileError::Expired {
                path: path.clone(),
                at: validity.not_after,
            });
        }
        if now < validity.not_before {
            let at = validity.not_before;
            return Err(CertificateFileError::NotYetValid { path: path.clone(), at });
        }
        let parsed =
            ParsedCertificate::try_from(own).map_err(|error| invalid(error.to_string()))?;
        for name in &remote.names {
            let server = ServerName::try_from(name.to_string())
                .map_err(|error| invalid(format!("{name}: {error}")))?;
            if verify_server_name(&parsed, &server).is_err() {
                let (path, name) = (path.clone(), name.clone());
                return Err(CertificateFileError::WrongName { path, name });
            }
        }
        let own = own.clone();
        let config = server_config(chain, read_key(&remote.key)?).map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                CertificateFileError::KeyMismatch { path: path.clone(), key: remote.key.clone() }
            }
            other => invalid(other.to_string()),
        })?;
        Ok(Self { config: Arc::new(config), own, validity })
    }
}

fn server_config(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CertificateFileError> {
    let text = read(path, true)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let why = format!("not a private key without password, in PEM: {error}");
        CertificateFileError::Invalid { path: path.to_owned(), why }
    })
}

/// Reads a PEM file; a secret one must be closed to other users.
fn read(path: &Path, is_secret: bool) -> Result<Vec<u8>, CertificateFileError> {
    let failed = |error| CertificateFileError::Read { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if is_secret && mode & 0o077 != 0 {
        return Err(CertificateFileError::OpenKey { path: path.to_owned(), mode });
    }
    let mut bytes = Vec::new();
    file.take(MAX_PEM_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_PEM_BYTES {
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB")));
    }
    Ok(bytes)
}

/// Reads when a certificate is valid, from its DER (RFC 5280, 4.1).
fn validity(certificate: &[u8]) -> Option<Validity> {
    const SEQUENCE: u8 = 0x30;
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut fields, _) = element(certificate, SEQUENCE)?;
    // The version is optional.
    if let Some((_, rest)) = element(fields, 0xa0) {
        fields = rest;
    }
    let (_, fields) = element(fields, 0x02)?;
    let (_, fields) = element(fields, SEQUENCE)?;
    let (_, fields) = element(fields, SEQUENCE)?;
    let (times, _) = element(fields, SEQUENCE)?;
    let (not_before, times) = time(times)?;
    let (not_after, _) = time(times)?;
    Some(Validity { not_before, not_after })
}

/// Reads one element of this type: its content, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, length, rest @ ..] = bytes else { return None };
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        // The number of bytes that the length has: at most 3, for 16 MiB.
        0x81..=0x83 => {
            let (length, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    if *found == tag { rest.split_at_checked(length) } else { None }
}

/// Reads a UTCTime or a GeneralizedTime, both in UTC and with seconds.
fn time(bytes: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (text, rest, digits) = match element(bytes, 0x17) {
        Some((text, rest)) => (text, rest, 2),
        None => element(bytes, 0x18).map(|(text, rest)| (text, rest, 4))?,
    };
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, others) = text.split_at_checked(digits)?;
    let year = match (digits, year.parse::<u32>().ok()?) {
        (2, year @ 50..) => 1900 + year,
        (2, year) => 2000 + year,
        (_, year) => year,
    };
    let part = |at: usize| others.get(at..at + 2);
    let (month, day, hour, minute, second) = (part(0)?, part(2)?, part(4)?, part(6)?, part(8)?);
    let text = format!("{year:04}-{month}-{day}T{hour}:{minute}:{second}Z");
    Some((Timestamp::from_rfc3339(&text).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_2050_are_read() {
        let utc = [&[0x17, 13][..], b"491231235959Z", b"rest"].concat();
        let (at, rest) = time(&utc).unwrap();
        assert_eq!((at.rfc3339().as_str(), rest), ("2049-12-31T23:59:59.000Z", &b"rest"[..]));
        let old = [&[0x17, 13][..], b"500101000000Z"].concat();
        assert!(time(&old).unwrap().0.rfc3339().starts_with("1950-"));
        let general = [&[0x18, 15][..], b"20500101000000Z"].concat();
        assert_eq!(time(&general).unwrap().0.rfc3339(), "2050-01-01T00:00:00.000Z");
        for wrong in [&b""[..], b"\x17\x0d491231", b"\x17\x02Zx", b"\x18\x80", b"\x17\x01Z"] {
            assert!(time(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn certificate_is_ending_two_weeks_or_a_third_of_its_time_before_its_end() {
        let day = |n: i64| Timestamp::from_ms(n * 86_400_000);
        let ends = |days: i64, now: i64| {
            Validity { not_before: day(0), not_after: day(days) }.is_ending(day(now))
        };
        assert_eq!([ends(90, 75), ends(90, 77)], [false, true]);
        assert_eq!([ends(6, 3), ends(6, 5)], [false, true]);
        assert!(ends(90, 91));
    }

    #[test]
    fn truncated_certificates_are_not_read() {
        for length in 0..40 {
            let mut bytes = vec![0x30, 0x82, 0x01, 0x00, 0x30, 0x81, 0xf0, 0xa0, 0x03, 2, 1, 2];
            bytes.truncate(length);
            assert_eq!(validity(&bytes), None);
        }
    }
}
