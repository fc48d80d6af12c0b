//! A courier on another machine: `MONOCO_URL`, the token, and connections to it.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `MONOCO_URL` | address of the courier, such as `https://hub.example.com:8646` |
//! | `MONOCO_TOKEN`, `MONOCO_TOKEN_FILE` | the token, or a file that has it |
//! | `MONOCO_CA` | PEM file with CA certificates that are trusted beside those of the system |
//! | `HTTPS_PROXY`, `NO_PROXY` | a proxy for `https://`, and hosts that are reached without it |
//!
//! The certificate of the courier is always verified. Without encryption only a courier on this
//! machine is used. Requests reuse one connection.

use std::ffi::OsString;
use std::io::Read;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use monoco_adapters::net::{
    ConnectLimits, CourierAddress, CourierConnectError, MailStream, ProxyUrl, TlsProblem,
    connect_courier,
};

use super::failure::{CliError, CliExit};

pub const URL_VARIABLE: &str = "MONOCO_URL";
pub const TOKEN_VARIABLE: &str = "MONOCO_TOKEN";
const TOKEN_FILE_VARIABLE: &str = "MONOCO_TOKEN_FILE";
const CA_VARIABLE: &str = "MONOCO_CA";

/// Time to reach the courier, and again for the handshake.
const LIMITS: ConnectLimits =
    ConnectLimits { connect: Duration::from_secs(10), tls: Duration::from_secs(10) };

/// The proxy for `https://`, as other programs read it: the first of these that is set.
const PROXY_VARIABLES: [&str; 4] = ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];

/// Hosts that are reached without the proxy: the first of these that is set.
const NO_PROXY_VARIABLES: [&str; 2] = ["no_proxy", "NO_PROXY"];

/// Largest file with a token, in bytes.
const MAX_TOKEN_FILE_BYTES: u64 = 4096;

/// A connection that can take another request.
type IdleConnection = SendRequest<Full<Bytes>>;

/// Where a courier on another machine is, and the token of this client.
pub struct RemoteCourier {
    target: RemoteTarget,
    token: String,
    address: CourierAddress,
    /// The connection of the last request.
    idle: Mutex<Option<IdleConnection>>,
}

/// What a URL names.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RemoteTarget {
    /// An IPv6 address has no brackets.
    host: String,
    port: u16,
    /// Whether the URL names the port.
    has_port: bool,
    is_encrypted: bool,
    /// Value of the Host header.
    authority: String,
}

impl std::fmt::Debug for RemoteCourier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteCourier({})", self.url())
    }
}

impl RemoteCourier {
    /// Reads the variables; `None` when `MONOCO_URL` is not set.
    pub fn from_environment(
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Option<Self>, CliError> {
        let read = |name: &str| match variable(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value
                .into_string()
                .map(Some)
                .map_err(|_| CliError::usage(format!("{name} is not UTF-8"))),
        };
        let Some(url) = read(URL_VARIABLE)? else { return Ok(None) };
        let target = RemoteTarget::parse(&url)?;
        let token = match (read(TOKEN_VARIABLE)?, read(TOKEN_FILE_VARIABLE)?) {
            (Some(token), None) => token,
            (None, Some(path)) => read_token(&path)?,
            (Some(_), Some(_)) => {
                let message = format!("{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set");
                return Err(CliError::usage(message).hint("set only one of them"));
            }
            (None, None) => {
                let message = format!(
                    "{URL_VARIABLE} is set, but no token: {TOKEN_VARIABLE} and \
                     {TOKEN_FILE_VARIABLE} are not set"
                );
                return Err(CliError::usage(message).hint(
                    "create a token on the machine of the courier with `monoco token add NAME \
                     --scope read,claim,reply --workspace WORKSPACE`",
                ));
            }
        };
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let message = "the token has characters that no token has";
            return Err(CliError::usage(message).hint("expected monoco_ and 64 hex digits"));
        }
        let first = |names: &[&str]| -> Result<Option<(String, String)>, CliError> {
            for name in names {
                if let Some(value) = read(name)? {
                    return Ok(Some(((*name).to_owned(), value)));
                }
            }
            Ok(None)
        };
        let without = first(&NO_PROXY_VARIABLES)?.map(|(_, list)| list).unwrap_or_default();
        let proxy = match first(&PROXY_VARIABLES)? {
            Some((name, url)) if target.uses_proxy(&without) => {
                let url = if url.contains("://") { url } else { format!("http://{url}") };
                let hint = "set it to a proxy, or name the host of MONOCO_URL in NO_PROXY";
                let invalid = |error| CliError::usage(format!("{name}: {error}")).hint(hint);
                Some(url.parse::<ProxyUrl>().map_err(invalid)?)
            }
            _ => None,
        };
        let ca_file = read(CA_VARIABLE)?.map(PathBuf::from);
        let RemoteTarget { host, port, is_encrypted, .. } = target.clone();
        let address = CourierAddress { host, port, is_encrypted, ca_file, proxy };
        Ok(Some(Self { target, token, address, idle: Mutex::default() }))
    }

    /// The same courier, with a connection of its own.
    pub fn fork(&self) -> Self {
        Self {
            target: self.target.clone(),
            token: self.token.clone(),
            address: self.address.clone(),
            idle: Mutex::default(),
        }
    }

    /// The URL of the courier, without a path.
    pub fn url(&self) -> String {
        let scheme = if self.target.is_encrypted { "https" } else { "http" };
        format!("{scheme}://{}", self.target.authority)
    }

    /// Value of the Host header.
    pub fn authority(&self) -> &str {
        &self.target.authority
    }

    /// Value of the Authorization header.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// Opens a connection, and verifies the certificate.
    pub async fn connect(&self) -> Result<MailStream, CliError> {
        let connected = connect_courier(&self.address, LIMITS).await;
        connected.map_err(|error| self.connect_failure(error))
    }

    /// Sends a request on the connection of the last one, or on a new one.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, CliError> {
        let mut request = request;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut connection) = idle
            && connection.ready().await.is_ok()
        {
            match connection.try_send_request(request).await {
                Ok(response) => return Ok(self.reuse(connection, response)),
                // The courier has closed the connection before it took the request.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(&error.into_error())),
                },
            }
        }
        let stream = self.connect().await?;
        let (mut connection, driver) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a command has no task group; the task ends with the connection"
        )]
        let _driver = tokio::spawn(driver);
        let sent = connection.send_request(request).await;
        let response = sent.map_err(|error| self.broken(&error))?;
        Ok(self.reuse(connection, response))
    }

    fn reuse(
        &self,
        connection: IdleConnection,
        response: Response<Incoming>,
    ) -> Response<Incoming> {
        // A connection whose response is not read yet becomes ready when it is.
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        response
    }

    /// Error of a connection that ended during a request.
    pub fn broken(&self, error: &hyper::Error) -> CliError {
        let hint = if self.target.is_encrypted {
            "try again; a request may have been executed"
        } else {
            "check that the port is that of the API, and not one with TLS (https://)"
        };
        let message = format!("connection to {} failed: {error}", self.url());
        CliError::new(CliExit::Courier, message).hint(hint)
    }

    fn connect_failure(&self, error: CourierConnectError) -> CliError {
        let url = self.url();
        let host = &self.target.host;
        let failed = |exit: CliExit, why: String, hint: String| {
            CliError::new(exit, format!("cannot connect to {url}: {why}")).hint(hint)
        };
        let problem = match error {
            CourierConnectError::Unreachable(why) => {
                let hint = "check the URL, the network, and that the courier serves \
                            `courier.remote` (`monoco courier status` on its machine)";
                let hint = match self.target.has_port {
                    true => hint.to_owned(),
                    false => format!(
                        "{URL_VARIABLE} has no port, so {} was used; name that of \
                         `courier.remote`, such as 8646. Otherwise {hint}",
                        self.target.port
                    ),
                };
                return failed(CliExit::NoCourier, why, hint);
            }
            CourierConnectError::Proxy(why) => {
                let hint = format!(
                    "check HTTPS_PROXY, or name {host} in NO_PROXY to connect without the proxy"
                );
                return failed(CliExit::NoCourier, why, hint);
            }
            CourierConnectError::NotThisMachine(address) => {
                let why = format!("{address} is not this machine, and http:// is not encrypted");
                return failed(CliExit::Usage, why, format!("use https://{}", self.authority()));
            }
            CourierConnectError::Tls(problem) => problem,
        };
        let certificate = |why: String, hint: String| {
            failed(CliExit::Courier, why, hint).code("invalid_certificate")
        };
        match problem {
            TlsProblem::TooSlow => {
                let why = "the TLS handshake takes too long".to_owned();
                failed(CliExit::NoCourier, why, "try again".to_owned())
            }
            TlsProblem::NotTls(_) => {
                let why = "the port does not speak TLS".to_owned();
                let hint = "use the port of `courier.remote`; the API on this machine is \
                            http://127.0.0.1:8644";
                failed(CliExit::Courier, why, hint.to_owned())
            }
            TlsProblem::Other(why) => {
                failed(CliExit::Courier, format!("TLS: {why}"), "try again".to_owned())
            }
            TlsProblem::CaFile(why) => {
                let hint = format!("set {CA_VARIABLE} to a PEM file with CA certificates");
                failed(CliExit::LocalFile, format!("{CA_VARIABLE} {why}"), hint)
            }
            TlsProblem::NoCaCertificates(why) => certificate(
                format!("cannot use the CA certificates: {why}"),
                format!("install those of the system (ca-certificates), or set {CA_VARIABLE}"),
            ),
            TlsProblem::WrongName(why) => certificate(
                format!("the certificate is not valid for {host:?} ({why})"),
                format!("set {URL_VARIABLE} to a name that is in the certificate"),
            ),
            TlsProblem::Expired(why) => certificate(
                format!("the certificate has expired ({why})"),
                "renew it on the machine of the courier, then run `monoco courier reload` there"
                    .to_owned(),
            ),
            TlsProblem::NotYetValid(why) => certificate(
                format!("the certificate is not valid yet ({why})"),
                "check the clocks of both machines".to_owned(),
            ),
            TlsProblem::UnknownIssuer => certificate(
                "the certificate is issued by an unknown CA".to_owned(),
                format!("if the courier is yours, set {CA_VARIABLE} to the PEM file of its CA"),
            ),
            TlsProblem::InvalidCertificate(why) => certificate(
                format!("the certificate is not valid: {why}"),
                "replace it on the machine of the courier".to_owned(),
            ),
        }
    }
}

impl RemoteTarget {
    /// Parses a URL with scheme, host and port only.
    fn parse(url: &str) -> Result<Self, CliError> {
        let invalid = |why: &str| {
            // The URL may have a password, so it is not repeated.
            CliError::usage(format!("{URL_VARIABLE}: {why}"))
                .hint("expected a URL such as https://hub.example.com:8646")
        };
        let uri: Uri = url.trim().parse().map_err(|_| invalid("not a URL"))?;
        let is_encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) => return Err(invalid("expected the scheme https")),
            None => return Err(invalid("the scheme is missing")),
        };
        let authority = uri.authority().ok_or_else(|| invalid("the host is missing"))?;
        if authority.as_str().contains('@') {
            let why = format!("has a user name or password; the token belongs in {TOKEN_VARIABLE}");
            return Err(invalid(&why));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() || url.contains('#') {
            return Err(invalid("has a path, query or fragment; only host and port are used"));
        }
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(host);
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let has_port = authority.as_str().len() > authority.host().len();
        if host.is_empty() || (has_port && authority.port_u16().is_none()) {
            return Err(invalid("the host is missing, or the port is not a number up to 65535"));
        }
        if !is_encrypted && !is_loopback {
            let why =
                "http:// is not encrypted and only for a courier on this machine; use https://";
            return Err(invalid(why));
        }
        let port = authority.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        let authority = authority.as_str().to_owned();
        Ok(Self { host: host.to_owned(), port, has_port, is_encrypted, authority })
    }
}

impl RemoteTarget {
    /// Whether a proxy is used, with the value of `NO_PROXY`: a list of host names, which include
    /// their subdomains, and IP addresses; `*` is every host. The port of an entry is ignored.
    fn uses_proxy(&self, no_proxy: &str) -> bool {
        let address = self.host.parse::<IpAddr>();
        let is_loopback = self.host.eq_ignore_ascii_case("localhost")
            || address.as_ref().is_ok_and(|address| address.to_canonical().is_loopback());
        let is_named = |entry: &str| {
            let name = match (entry.strip_prefix('['), entry.rsplit_once(':')) {
                (Some(rest), _) => rest.split(']').next().unwrap_or_default(),
                (None, Some((name, _))) if !name.contains(':') => name,
                _ => entry,
            };
            if let Ok(address) = &address {
                return name == "*" || name.parse() == Ok(*address);
            }
            let (host, name) = (self.host.to_ascii_lowercase(), name.to_ascii_lowercase());
            let name = name.trim_start_matches("*.").trim_start_matches('.');
            let rest = host.strip_suffix(name).filter(|_| !name.is_empty());
            name == "*" || rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        let mut entries = no_proxy.split([',', ' ']).map(str::trim).filter(|it| !it.is_empty());
        self.is_encrypted && !is_loopback && !entries.any(is_named)
    }
}

fn read_token(path: &str) -> Result<String, CliError> {
    let failed = |why: String| {
        CliError::new(CliExit::LocalFile, format!("{TOKEN_FILE_VARIABLE} {path}: {why}"))
            .hint("expected a file with the text that `monoco token add` has printed")
    };
    let mut text = String::new();
    let opened = std::fs::File::open(path);
    let read = opened.and_then(|file| file.take(MAX_TOKEN_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|error| failed(error.to_string()))?;
    match text.trim() {
        "" => Err(failed("the file is empty".to_owned())),
        token => Ok(token.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<RemoteCourier>, CliError> {
        let variables: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
        RemoteCourier::from_environment(move |name| {
            let found = variables.iter().find(|(found, _)| found == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn url_has_host_and_port_and_is_encrypted_unless_it_is_this_machine() {
        for (url, host, port, is_encrypted) in [
            ("https://hub.example.com:8646", "hub.example.com", 8646, true),
            ("https://hub.example.com/", "hub.example.com", 443, true),
            ("https://[fd00::7]:8646", "fd00::7", 8646, true),
            ("http://127.0.0.1:8644", "127.0.0.1", 8644, false),
            ("http://localhost:8644", "localhost", 8644, false),
            ("http://[::1]:8644", "::1", 8644, false),
        ] {
            let target = RemoteTarget::parse(url).unwrap();
            let found = (target.host.as_str(), target.port, target.is_encrypted);
            assert_eq!(found, (host, port, is_encrypted), "{url}");
        }
        for (url, words) in [
            ("hub.example.com", "scheme"),
            ("hub.example.com:8646", "scheme"),
            ("ftp://hub.example.com", "expected the scheme https"),
            ("http://hub.example.com:8646", "only for a courier on this machine"),
            ("http://10.0.0.7:8646", "only for a courier on this machine"),
            ("https://ann:pw@hub.example.com", "user name or password"),
            ("https://hub.example.com/api/v1", "has a path"),
            ("https://hub.example.com/?x=1", "has a path, query"),
            ("https://hub.example.com/#x", "fragment"),
            ("https://hub.example.com:99999", "MONOCO_URL"),
            ("https://", "MONOCO_URL"),
            ("not a url", "MONOCO_URL"),
        ] {
            let error = RemoteTarget::parse(url).unwrap_err();
            assert!(error.message.contains(words), "{url}: {}", error.message);
            assert!(!error.message.contains("pw@"), "{}", error.message);
            assert_eq!(error.exit, CliExit::Usage, "{url}");
        }
    }

    #[test]
    fn proxy_is_used_unless_the_host_is_this_machine_or_named() {
        for (host, no_proxy, expected) in [
            ("hub.example.com", "", true),
            ("hub.example.com", "example.com", false),
            ("hub.example.com", ".EXAMPLE.com:8646", false),
            ("hub.example.com", "*.example.com", false),
            ("hub.example.com", "localhost, hub.example.com", false),
            ("hub.example.com", "*", false),
            ("hub.example.com", "ample.com,other.com", true),
            ("hub.example.com", ",", true),
            ("10.0.0.7", "10.0.0.7", false),
            ("10.0.0.7", "10.0.0.70,0.7", true),
            ("10.0.0.7", "*", false),
            ("[fd00::7]", "[fd00::7]:8646", false),
            ("[fd00::7]", "fd00:0::7", false),
            ("127.0.0.2", "", false),
            ("localhost", "", false),
        ] {
            let target = RemoteTarget::parse(&format!("https://{host}:8646")).unwrap();
            assert_eq!(target.uses_proxy(no_proxy), expected, "{host} {no_proxy}");
        }
        let (url, token) = ((URL_VARIABLE, "https://hub"), (TOKEN_VARIABLE, "monoco_5ec7"));
        let proxy = |variables: &[(&str, &str)]| {
            let courier = read(&[&[url, token], variables].concat());
            courier.map(|it| it.unwrap().address.proxy.map(|proxy| proxy.shown()))
        };
        let found = proxy(&[("HTTPS_PROXY", "http://ann:pw@squid:3128"), ("HTTP_PROXY", "x")]);
        assert_eq!(found.unwrap().as_deref(), Some("http://squid:3128"));
        assert_eq!(
            proxy(&[("https_proxy", "squid:3128")]).unwrap().as_deref(),
            Some("http://squid:3128")
        );
        assert_eq!(proxy(&[("HTTPS_PROXY", "squid:1"), ("no_proxy", "hub")]).unwrap(), None);
        assert_eq!(proxy(&[("HTTPS_PROXY", ""), ("HTTP_PROXY", "squid")]).unwrap(), None);
        let error = proxy(&[("HTTPS_PROXY", "ftp://ann:pw@squid")]).unwrap_err();
        assert!(
            error.message.starts_with("HTTPS_PROXY: unknown kind of proxy"),
            "{}",
            error.message
        );
        assert!(!error.message.contains("pw"), "{}", error.message);
    }

    #[test]
    fn token_comes_from_one_variable() {
        let (url, token) = ((URL_VARIABLE, "https://hub"), (TOKEN_VARIABLE, "monoco_5ec7"));
        assert!(read(&[token]).unwrap().is_none(), "without a URL the socket is used");
        assert!(read(&[(URL_VARIABLE, ""), token]).unwrap().is_none());
        let courier = read(&[url, token]).unwrap().unwrap();
        assert_eq!(courier.authorization(), "Bearer monoco_5ec7");
        assert!(!format!("{courier:?}").contains("5ec7"));
        for (variables, words) in [
            (&[url][..], "no token"),
            (&[url, token, (TOKEN_FILE_VARIABLE, "/x")], "both set"),
            (&[url, (TOKEN_FILE_VARIABLE, "/no/such/file")], "/no/such/file"),
            (&[url, (TOKEN_VARIABLE, "a b")], "characters that no token has"),
        ] {
            let error = read(variables).unwrap_err();
            assert!(error.message.contains(words), "{}", error.message);
            assert!(error.hint.is_some());
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "monoco_77\n").unwrap();
        let path = file.path().to_str().unwrap();
        let courier = read(&[url, (TOKEN_FILE_VARIABLE, path)]).unwrap().unwrap();
        assert_eq!(courier.authorization(), "Bearer monoco_77");
    }
}
