//! Connections to mail servers, sockets and couriers: name lookup, TCP, proxy and TLS, each under a
//! deadline.
//!
//! IMAP and SMTP use the same connector. A connection is encrypted from the start
//! ([`TlsMode::Implicit`]), or after the protocol has agreed on it ([`TlsMode::StartTls`], then
//! the protocol calls [`MailStream::start_tls`]). [`TlsMode::Plain`] is for servers on this
//! machine only: the address is checked after the name lookup.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoco_core::retry::Failure;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::egress::EgressTarget;

mod proxy;
mod stream;
mod tls;

#[cfg(test)]
mod tests;

pub use proxy::{InvalidProxyUrl, ProxyUrl};
pub use stream::MailStream;
pub use tls::TlsProblem;

/// The value of `error_code` of a failure that is about the certificate of the server.
pub const CERTIFICATE_ERROR: &str = "certificate";

/// How many addresses of one name are tried.
const MAX_ADDRESSES: usize = 8;

/// The shortest time that the connection to one of several addresses gets.
const MIN_ATTEMPT: Duration = Duration::from_secs(2);

/// When the connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// From the first byte: ports 993 and 465.
    Implicit,
    /// After the command STARTTLS, which the server must offer: ports 143, 25 and 587.
    StartTls,
    /// Never. Only servers on this machine are allowed.
    Plain,
}

/// A mail server and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailServer {
    /// A name or an IP address. The certificate must be issued for it.
    pub host: String,
    pub port: u16,
    pub tls: TlsMode,
    /// A PEM file with certificates that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
    pub proxy: Option<ProxyUrl>,
}

/// Time limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectLimits {
    /// Time for the name lookup, TCP and the proxy.
    pub connect: Duration,
    /// Time for the TLS handshake.
    pub tls: Duration,
}

impl Default for ConnectLimits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(20), tls: Duration::from_secs(20) }
    }
}

impl MailServer {
    /// Returns `host:port` for errors.
    pub fn shown(&self) -> String {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        format!("{open}{}{close}:{}", self.host.escape_debug(), self.port)
    }

    /// Tells whether the host can only be this machine: `localhost` or a loopback address.
    pub fn is_loopback_name(&self) -> bool {
        let is_name = self.host.eq_ignore_ascii_case("localhost");
        is_name || self.host.parse::<IpAddr>().is_ok_and(|address| is_loopback(&address))
    }

    fn temporary(&self, why: impl std::fmt::Display) -> Failure {
        temporary(format!("cannot connect to {}: {why}", self.shown()))
    }
}

/// Connects to `server`. With [`TlsMode::Implicit`] the stream is encrypted.
///
/// Every failure is temporary, except a server that `tls: none` does not allow. A failure with
/// the code [`CERTIFICATE_ERROR`] lasts until the certificate or `ca_file` is changed.
pub async fn connect(server: &MailServer, limits: ConnectLimits) -> Result<MailStream, Failure> {
    let deadline = Instant::now() + limits.connect;
    let stream = match &server.proxy {
        None => dial_server(server, deadline).await?,
        Some(_) if server.tls == TlsMode::Plain => {
            let why = "`tls: none` cannot be used through a proxy";
            return Err(permanent(format!("cannot connect to {}: {why}", server.shown())));
        }
        Some(proxy) => dial_through(proxy, server, deadline).await?,
    };
    let stream = MailStream::plain(stream);
    match server.tls {
        TlsMode::Implicit => stream.start_tls(server, limits.tls).await,
        TlsMode::StartTls | TlsMode::Plain => Ok(stream),
    }
}

/// Connects to the host of a checked URL, encrypted if its scheme is `https`. Without a proxy
/// every looked-up address is checked by the rules of the URL; a proxy looks up the name itself.
/// Connections without encryption stay in the own network, so they use no proxy.
///
/// Failures are temporary, except an address that is not allowed.
pub(crate) async fn connect_target(
    target: &EgressTarget,
    proxy: Option<&ProxyUrl>,
    ca_file: Option<&Path>,
    limits: ConnectLimits,
) -> Result<MailStream, Failure> {
    let deadline = Instant::now() + limits.connect;
    let (host, port, is_encrypted) = target.address();
    let proxy = proxy.filter(|_| is_encrypted);
    let server = MailServer {
        host,
        port,
        tls: if is_encrypted { TlsMode::Implicit } else { TlsMode::Plain },
        ca_file: ca_file.map(Path::to_owned),
        proxy: proxy.cloned(),
    };
    if proxy.is_some() {
        return connect(&server, limits).await;
    }
    let found = lookup(&server.host, port, deadline).await.map_err(|why| server.temporary(why))?;
    let allowed = target.allowed_addresses(found).map_err(|error| permanent(error.to_string()))?;
    let stream = dial(&allowed, deadline).await.map_err(|why| server.temporary(why))?;
    let stream = MailStream::plain(stream);
    if is_encrypted { stream.start_tls(&server, limits.tls).await } else { Ok(stream) }
}

/// Why there is no connection to a courier on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CourierConnectError {
    /// The name is unknown, or no address answers.
    Unreachable(String),
    /// Without TLS, and not on this machine.
    NotThisMachine(IpAddr),
    /// The proxy cannot be reached, or does not connect to the courier.
    Proxy(String),
    Tls(TlsProblem),
}

/// Where a courier on another machine is, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CourierAddress {
    /// A name or an IP address, without brackets. The certificate must be issued for it.
    pub host: String,
    pub port: u16,
    pub is_encrypted: bool,
    /// A PEM file with certificates that are trusted beside those of the system.
    pub ca_file: Option<PathBuf>,
    /// Used only with encryption.
    pub proxy: Option<ProxyUrl>,
}

/// Connects to the API of a courier, encrypted unless the courier is on this machine. A proxy looks
/// up the name of the courier itself.
///
/// # Errors
///
/// [`CourierConnectError`], for which the caller knows the setting to change.
pub async fn connect_courier(
    courier: &CourierAddress,
    limits: ConnectLimits,
) -> Result<MailStream, CourierConnectError> {
    let CourierAddress { host, port, is_encrypted, ca_file, proxy } = courier;
    let deadline = Instant::now() + limits.connect;
    let stream = match proxy.as_ref().filter(|_| *is_encrypted) {
        Some(proxy) => {
            let opened = open_through(proxy, host, *port, deadline).await;
            opened.map_err(CourierConnectError::Proxy)?
        }
        None => {
            let found = lookup(host, *port, deadline).await;
            let found = found.map_err(CourierConnectError::Unreachable)?;
            let away = found.iter().find(|address| !is_loopback(&address.ip()));
            if let Some(away) = away.filter(|_| !is_encrypted) {
                return Err(CourierConnectError::NotThisMachine(away.ip()));
            }
            dial(&found, deadline).await.map_err(CourierConnectError::Unreachable)?
        }
    };
    if !is_encrypted {
        return Ok(MailStream::plain(stream));
    }
    let encrypted = tls::encrypt(stream, host, ca_file.clone(), limits.tls).await;
    Ok(MailStream::encrypted(encrypted.map_err(CourierConnectError::Tls)?))
}

async fn dial_server(server: &MailServer, deadline: Instant) -> Result<TcpStream, Failure> {
    let addresses =
        lookup(&server.host, server.port, deadline).await.map_err(|why| server.temporary(why))?;
    if server.tls == TlsMode::Plain
        && let Some(other) = addresses.iter().find(|address| !is_loopback(&address.ip()))
    {
        return Err(permanent(format!(
            "{} is {}, not this machine; `tls: none` is for this machine only: use `implicit` or \
             `starttls`",
            server.shown(),
            other.ip()
        )));
    }
    dial(&addresses, deadline).await.map_err(|why| server.temporary(why))
}

async fn dial_through(
    proxy: &ProxyUrl,
    server: &MailServer,
    deadline: Instant,
) -> Result<TcpStream, Failure> {
    let opened = open_through(proxy, &server.host, server.port, deadline).await;
    opened.map_err(|why| server.temporary(why))
}

/// Opens a connection to a host through a proxy. The error names the proxy.
async fn open_through(
    proxy: &ProxyUrl,
    host: &str,
    port: u16,
    deadline: Instant,
) -> Result<TcpStream, String> {
    let failed = |why: String| format!("proxy {}: {why}", proxy.shown());
    let addresses = lookup(proxy.host(), proxy.port(), deadline).await.map_err(failed)?;
    let stream = dial(&addresses, deadline).await.map_err(failed)?;
    timeout_at(deadline, proxy.open(stream, host, port))
        .await
        .unwrap_or_else(|_| Err("no answer in time".to_owned()))
        .map_err(failed)
}

/// Looks up the addresses of a name. IP addresses need no lookup.
async fn lookup(host: &str, port: u16, deadline: Instant) -> Result<Vec<SocketAddr>, String> {
    let found = timeout_at(deadline, tokio::net::lookup_host((host, port)))
        .await
        .map_err(|_| "the name lookup takes too long".to_owned())?
        .map_err(|error| format!("cannot look up the name: {error}"))?;
    let addresses: Vec<_> = found.take(MAX_ADDRESSES).collect();
    if addresses.is_empty() { Err("the name has no address".to_owned()) } else { Ok(addresses) }
}

/// Connects to the first address that answers. Each address gets an equal share of the time
/// that is left.
async fn dial(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, String> {
    let mut problems = Vec::new();
    for (n, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let untried = u32::try_from(addresses.len() - n).unwrap_or(1);
        let share = (left / untried).max(MIN_ATTEMPT).min(left);
        let problem = match timeout_at(Instant::now() + share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => match tune(&stream) {
                Ok(()) => return Ok(stream),
                Err(error) => error.to_string(),
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        problems.push(format!("{}: {problem}", address.ip()));
    }
    Err(problems.join("; "))
}

/// Sets keepalive, so that a dead peer is detected after about 2 minutes of silence, and sends
/// commands at once.
fn tune(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(15))
        .with_retries(4);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)?;
    stream.set_nodelay(true)
}

/// Tells whether an address is of this machine, also one of IPv4 written as IPv6.
fn is_loopback(address: &IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

fn temporary(detail: String) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}

fn permanent(detail: String) -> Failure {
    Failure::Permanent { detail, error_code: None }
}
