//! HTTP client for the API of the courier: one request per connection to its socket.
//!
//! The socket is in the home directory, which only the user can enter, and the kernel names
//! the user of the courier. So the client sends no token, and a process of another user that
//! has taken the port of the courier receives nothing.
//!
//! A courier on another machine is asked over TLS, with a token: see `remote.rs`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::net::UnixStream;

use super::failure::{CliError, CliExit};
use super::remote::RemoteCourier;
use monoco_courier::api::error::ApiErrorView;
use monoco_courier::api::server;
use monoco_courier::api::views::health::HealthView;
use monoco_courier::home::{CourierInfo, CourierState, Home};

/// How long a command waits for the response beyond the limit of the courier, which answers or
/// fails before.
const RESPONSE_MARGIN: Duration = Duration::from_secs(10);

/// Largest response that is read as bytes: a file of a Mail or an attachment of up to 64 MiB,
/// with the escapes of JSON.
const MAX_RESPONSE_BYTES: usize = 128 << 20;

/// How long a command waits for the health of the courier.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects to the running courier of one home directory, or to one on another machine.
#[derive(Debug)]
pub enum Client {
    Local(Box<LocalCourier>),
    Remote(Arc<RemoteCourier>),
}

/// The running courier of one home directory.
#[derive(Debug)]
pub struct LocalCourier {
    home: Home,
    pub running: CourierInfo,
}

impl Client {
    /// Finds the running courier of this machine.
    pub fn find(home: &Home) -> Result<Self, CliError> {
        LocalCourier::find(home).map(|found| Self::Local(Box::new(found)))
    }

    /// What to do when the courier does not answer.
    const fn look_at_log(&self) -> &'static str {
        match self {
            Self::Local(_) => "`monoco courier logs` shows what the courier is doing",
            Self::Remote(_) => "`monoco courier logs` on its machine shows what it is doing",
        }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.call(Method::GET, path, None).await
    }

    /// Gets the bytes of a response, or posts `body` for them. The time limit applies to each
    /// part of the response, so that a large one can come over a slow connection.
    pub async fn get_bytes(&self, path: &str, body: Option<&Value>) -> Result<Bytes, CliError> {
        let route = path.split('?').next().unwrap_or(path);
        let limit = server::handler_timeout(route).saturating_add(RESPONSE_MARGIN);
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let body = body.map(|body| Body::new(body, None)).transpose()?;
        let sent = self.send(method, path, body, "application/octet-stream, application/json");
        let mut response = self.within(limit, sent).await?;
        if !response.status().is_success() {
            return self.within(limit, successful(response)).await;
        }
        let mut bytes = Vec::new();
        while let Some(frame) = self.within(limit, async { Ok(response.frame().await) }).await? {
            let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
            if bytes.len() + data.len() > MAX_RESPONSE_BYTES {
                let message = format!(
                    "the response of the courier is larger than {MAX_RESPONSE_BYTES} bytes"
                );
                return Err(CliError::new(CliExit::Courier, message));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.into())
    }

    /// Posts bytes, such as an attachment.
    pub async fn post_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        bytes: Vec<u8>,
    ) -> Result<T, CliError> {
        let body = Body { bytes: bytes.into(), media_type: "application/octet-stream", key: None };
        self.call(Method::POST, path, Some(body)).await
    }

    /// Gets the health of the courier. A degraded courier answers 503 with the same body.
    pub async fn health(&self) -> Result<HealthView, CliError> {
        let (status, bytes) = self
            .within(HEALTH_TIMEOUT, async {
                let response = self.send(Method::GET, "/health", None, "application/json").await?;
                let status = response.status();
                Ok((status, response.into_body().collect().await.map_err(broken)?.to_bytes()))
            })
            .await?;
        serde_json::from_slice(&bytes).map_err(|_| {
            CliError::new(
                CliExit::Courier,
                format!("unexpected response of the courier: HTTP {status}"),
            )
        })
    }

    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CliError> {
        let body = Body::new(body, None)?;
        self.call(Method::PUT, path, Some(body)).await
    }

    /// Puts a text of the given media type.
    pub async fn put_text<T: DeserializeOwned>(
        &self,
        path: &str,
        media_type: &'static str,
        text: String,
    ) -> Result<T, CliError> {
        let body = Body { bytes: text.into(), media_type, key: None };
        self.call(Method::PUT, path, Some(body)).await
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, CliError> {
        self.post_with_key(path, body, None).await
    }

    /// Posts with an idempotency key: a repeated request returns the first result.
    pub async fn post_with_key<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        key: Option<&str>,
    ) -> Result<T, CliError> {
        let body = Body::new(body, key)?;
        self.call(Method::POST, path, Some(body)).await
    }

    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.call(Method::DELETE, path, None).await
    }

    /// Opens the stream of events after the sequence number `after`.
    pub async fn follow(&self, after: Option<i64>) -> Result<Incoming, CliError> {
        let path = match after {
            Some(after) => format!("/api/v1/events?after={after}"),
            None => "/api/v1/events".to_owned(),
        };
        let response = self.send(Method::GET, &path, None, "text/event-stream");
        let limit = server::HANDLER_TIMEOUT.saturating_add(RESPONSE_MARGIN);
        let response = self.within(limit, response).await?;
        if !response.status().is_success() {
            return Err(successful(response)
                .await
                .err()
                .unwrap_or_else(|| CliError::new(CliExit::Courier, "cannot follow events")));
        }
        Ok(response.into_body())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<T, CliError> {
        let bytes = self.exchange(method, path, body).await?;
        // An empty body is read as `null`.
        let json = if bytes.is_empty() { b"null" } else { &bytes[..] };
        serde_json::from_slice(json).map_err(|error| CliError::invalid_response(&error))
    }

    /// Sends a request, and reads the body of the successful response. Does not depend on the type that
    /// the body has, so that it is compiled once.
    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<Bytes, CliError> {
        let route = path.split('?').next().unwrap_or(path);
        let limit = server::handler_timeout(route).saturating_add(RESPONSE_MARGIN);
        self.within(limit, async {
            successful(self.send(method, path, body, "application/json").await?).await
        })
        .await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
        accept: &'static str,
    ) -> Result<Response<Incoming>, CliError> {
        let mut request =
            Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        request = match self {
            Self::Local(_) => request.header(header::HOST, "localhost"),
            Self::Remote(remote) => request
                .header(header::HOST, remote.authority())
                .header(header::AUTHORIZATION, remote.authorization()),
        };
        let mut content = Bytes::new();
        if let Some(Body { bytes, media_type, key }) = body {
            request = request.header(header::CONTENT_TYPE, media_type);
            if let Some(key) = key {
                request = request.header("Idempotency-Key", key);
            }
            content = bytes;
        }
        let request = request
            .body(Full::new(content))
            .map_err(|error| CliError::usage(format!("invalid request: {error}")))?;
        match self {
            Self::Local(local) => local.send(request).await,
            Self::Remote(remote) => remote.send(request).await,
        }
    }

    /// Fails when `response` takes longer than `limit`.
    async fn within<T>(
        &self,
        limit: Duration,
        response: impl Future<Output = Result<T, CliError>>,
    ) -> Result<T, CliError> {
        tokio::time::timeout(limit, response).await.unwrap_or_else(|_| {
            let message = format!("the courier did not answer within {} s", limit.as_secs());
            Err(CliError::new(CliExit::Courier, message).hint(self.look_at_log()))
        })
    }
}

impl LocalCourier {
    /// Finds the running courier.
    pub fn find(home: &Home) -> Result<Self, CliError> {
        let courier = home.courier().ok_or_else(CliError::no_courier)?;
        match courier.state {
            CourierState::Running => Ok(Self { home: home.clone(), running: courier }),
            state => Err(CliError::not_ready(courier.pid, state.as_str())),
        }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, CliError> {
        let stream = self.connect().await.map_err(|error| {
            CliError::new(CliExit::NoCourier, format!("cannot connect to the courier: {error}"))
        })?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a command has no task group; the task ends with the connection"
        )]
        let _connection = tokio::spawn(connection);
        sender.send_request(request).await.map_err(broken)
    }

    /// Connects to the socket, and checks that the courier belongs to the owner of the home
    /// directory.
    async fn connect(&self) -> std::io::Result<UnixStream> {
        let path = self.home.socket()?;
        let stream = UnixStream::connect(&path).await?;
        let (found, expected) = (stream.peer_cred()?.uid(), self.home.owner()?);
        if found != expected {
            let why = format!("it runs as user {found}, expected user {expected}");
            return Err(std::io::Error::other(why));
        }
        Ok(stream)
    }
}

/// Body of a request.
struct Body<'a> {
    bytes: Bytes,
    media_type: &'static str,
    /// Value of the Idempotency-Key header.
    key: Option<&'a str>,
}

impl<'a> Body<'a> {
    fn new(body: &impl Serialize, key: Option<&'a str>) -> Result<Self, CliError> {
        let text = serde_json::to_string(body);
        let text = text.map_err(|error| CliError::usage(format!("invalid request: {error}")))?;
        Ok(Self { bytes: text.into(), media_type: "application/json", key })
    }
}

/// Reads the body of a successful response.
async fn successful(response: Response<Incoming>) -> Result<Bytes, CliError> {
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
    if status.is_success() {
        return Ok(bytes);
    }
    let answer: ApiErrorView = serde_json::from_slice(&bytes).map_err(|_| {
        CliError::new(
            CliExit::Courier,
            format!("unexpected response of the courier: HTTP {status}"),
        )
    })?;
    Err(rejection(status.as_u16(), answer))
}

fn broken(error: hyper::Error) -> CliError {
    CliError::new(CliExit::Courier, format!("connection to the courier failed: {error}"))
}

/// Converts an error response into an error with exit code and hint.
fn rejection(status: u16, answer: ApiErrorView) -> CliError {
    let exit = match (status, answer.code.as_ref()) {
        (409, "lease_lost" | "conflict" | "claimed" | "not_due") => CliExit::Held,
        (500.., _) | (401 | 403, _) | (_, "needs_tls") => CliExit::Courier,
        _ => CliExit::NotPossible,
    };
    let failure = CliError::new(exit, answer.message).code(answer.code.clone());
    match answer.code.as_ref() {
        "unknown_owner" => failure.hint("`monoco center boxes` lists all boxes"),
        "lease_lost" => failure.hint(
            "another agent may hold it now: claim it again with `monoco mailbox claim`, or lease it \
             again with `monoco center next`",
        ),
        "claimed" => failure.hint(
            "wait until the claim expires, or ask its holder to release it with \
             `monoco mailbox fail`",
        ),
        "not_due" => failure.hint("the last attempt failed; try again after the time of the next retry"),
        "completed" => failure.hint("this workspace has completed the Mail; no further step is possible"),
        "dead" => {
            failure.hint("`monoco dead list` shows the reason, `monoco dead retry` retries it")
        }
        "not_claimed" => failure.hint("claim it first with `monoco mailbox claim`"),
        "unresolvable" => failure.hint(
            "add and bind the target with `monoco contact add` and `monoco contact bind`, \
             or name an endpoint: did:msgtunnel:ACCOUNT.user.TUNNEL",
        ),
        "wrong_token" | "revoked_token" | "no_token" => failure.hint(
            "on the machine of the courier, `monoco token list` shows the tokens and `monoco token \
             add` creates one; set MONOCO_TOKEN to what it prints",
        ),
        "needs_tls" => failure.hint("set MONOCO_URL to an https:// URL"),
        "foreign_host" => failure.hint("set MONOCO_URL to a name in `courier.remote.names`"),
        "storage_broken" => {
            failure.hint("check the disk, then run `monoco courier restart`")
        }
        _ => failure,
    }
}

/// Characters that [`segment`] encodes: all but letters, digits and `-_.:`.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':');

/// Percent-encodes one segment of a path.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// Builds a query string from the parameters that have a value.
pub fn query(parameters: &[(&str, Option<String>)]) -> String {
    let mut out = String::new();
    for (name, value) in parameters {
        if let Some(value) = value {
            out.push(if out.is_empty() { '?' } else { '&' });
            out.push_str(&format!("{name}={}", segment(value)));
        }
    }
    out
}
