//! SOCKS5 (RFC 1928, RFC 1929) and HTTP CONNECT (RFC 9110) proxies.
//!
//! The proxy looks up the name of the mail server, so that no lookup leaves this machine.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monoco_core::config::Secret;
use percent_encoding::percent_decode_str;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest answer of an HTTP proxy, in bytes.
const MAX_HTTP_ANSWER: usize = 16 << 10;

/// The address of a proxy: `socks5://user:password@host:port` or `http://host:port`.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    protocol: ProxyProtocol,
    host: String,
    port: u16,
    login: Option<(String, Secret)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyProtocol {
    Socks5,
    Http,
}

/// The text is not the URL of a proxy. Holds no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}; expected socks5://[user:password@]host:port or http://[user:password@]host:port")]
pub struct InvalidProxyUrl(String);

impl FromStr for ProxyUrl {
    type Err = InvalidProxyUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let invalid = |why: &str| InvalidProxyUrl(why.to_owned());
        let url = Url::parse(text).map_err(|error| invalid(&error.to_string()))?;
        let (protocol, default_port) = match url.scheme() {
            // Both names mean that the proxy looks up names.
            "socks5" | "socks5h" => (ProxyProtocol::Socks5, 1080),
            "http" => (ProxyProtocol::Http, 80),
            other => return Err(InvalidProxyUrl(format!("unknown kind of proxy {other:?}"))),
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| invalid("no host"))?;
        if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("a proxy has no path"));
        }
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = url.port().unwrap_or(default_port);
        let decode = |part: &str| {
            let decoded = percent_decode_str(part).decode_utf8();
            decoded
                .map(Cow::into_owned)
                .map_err(|_| invalid("the user or password is not valid UTF-8"))
        };
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => {
                let (user, password) = (decode(user)?, decode(password.unwrap_or_default())?);
                if user.len() > 255 || password.len() > 255 {
                    return Err(invalid("the user or password is longer than 255 bytes"));
                }
                Some((user, Secret::new(password)))
            }
        };
        Ok(Self { protocol, host, port, login })
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl ProxyUrl {
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL without user and password.
    pub fn shown(&self) -> String {
        let scheme = match self.protocol {
            ProxyProtocol::Socks5 => "socks5",
            ProxyProtocol::Http => "http",
        };
        format!("{scheme}://{}", authority(&self.host, self.port))
    }

    /// Asks the proxy, which `stream` is connected to, for a connection to `host`.
    pub(super) async fn open<S>(&self, stream: S, host: &str, port: u16) -> Result<S, String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut stream = stream;
        match self.protocol {
            ProxyProtocol::Socks5 => self.open_socks5(&mut stream, host, port).await?,
            ProxyProtocol::Http => self.open_http(&mut stream, host, port).await?,
        }
        Ok(stream)
    }

    async fn open_socks5<S>(&self, stream: &mut S, host: &str, port: u16) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        const NO_LOGIN: u8 = 0;
        const PASSWORD: u8 = 2;
        let methods: &[u8] =
            if self.login.is_some() { &[5, 2, NO_LOGIN, PASSWORD] } else { &[5, 1, NO_LOGIN] };
        write(stream, methods).await?;
        let [version, method] = read(stream).await?;
        if version != 5 {
            return Err("it does not speak SOCKS5".to_owned());
        }
        match (method, &self.login) {
            (NO_LOGIN, _) => {}
            (PASSWORD, Some((user, password))) => {
                let mut login = vec![1];
                for part in [user.as_str(), password.expose()] {
                    login.push(u8::try_from(part.len()).unwrap_or(u8::MAX));
                    login.extend_from_slice(part.as_bytes());
                }
                write(stream, &login).await?;
                let [_, status] = read(stream).await?;
                if status != 0 {
                    return Err("it rejects the user and password".to_owned());
                }
            }
            (_, None) => return Err("it requires a user and a password".to_owned()),
            (_, Some(_)) => return Err("it accepts no user and password".to_owned()),
        }
        let mut request = vec![5, 1, 0];
        match host.parse() {
            Ok(IpAddr::V4(address)) => {
                request.push(1);
                request.extend(address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                request.push(4);
                request.extend(address.octets());
            }
            Err(_) => {
                let length = u8::try_from(host.len()).map_err(|_| "the host name is too long")?;
                request.extend([3, length]);
                request.extend(host.as_bytes());
            }
        }
        request.extend(port.to_be_bytes());
        write(stream, &request).await?;
        let [_, status, _, kind] = read(stream).await?;
        if status != 0 {
            return Err(socks5_problem(status));
        }
        // The address that the proxy uses, which does not matter.
        let length = match kind {
            1 => 4,
            4 => 16,
            3 => usize::from(read::<1, _>(stream).await?[0]),
            _ => return Err("it does not speak SOCKS5".to_owned()),
        };
        let mut address = vec![0; length + 2];
        stream.read_exact(&mut address).await.map_err(lost)?;
        Ok(())
    }

    async fn open_http<S>(&self, stream: &mut S, host: &str, port: u16) -> Result<(), String>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let target = authority(host, port);
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some((user, password)) = &self.login {
            let login = STANDARD.encode(format!("{user}:{}", password.expose()));
            request += &format!("Proxy-Authorization: Basic {login}\r\n");
        }
        request += "\r\n";
        write(stream, request.as_bytes()).await?;
        // Byte by byte: what follows the empty line belongs to the mail server.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() == MAX_HTTP_ANSWER {
                return Err("its answer is too long".to_owned());
            }
            answer.push(stream.read_u8().await.map_err(lost)?);
        }
        let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next()) {
            (Some(version), Some(status)) if version.starts_with("HTTP/1.") => {
                if status.len() == 3 && status.starts_with('2') {
                    return Ok(());
                }
                let shown: String = line.chars().take(100).collect();
                Err(format!("it answers {shown:?}"))
            }
            _ => Err("it does not speak HTTP".to_owned()),
        }
    }
}

/// Returns the meaning of an answer of a SOCKS5 proxy (RFC 1928, section 6).
fn socks5_problem(status: u8) -> String {
    let why = match status {
        1 => "general failure",
        2 => "not allowed by its rules",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "time to live expired",
        7 => "it does not support connections",
        8 => "it does not support this kind of address",
        _ => return format!("unknown answer {status}"),
    };
    why.to_owned()
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

async fn write<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), String> {
    stream.write_all(bytes).await.map_err(lost)?;
    stream.flush().await.map_err(lost)
}

async fn read<const N: usize, S: AsyncRead + Unpin>(stream: &mut S) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await.map_err(lost)?;
    Ok(bytes)
}

fn lost(error: std::io::Error) -> String {
    format!("connection lost: {error}")
}
