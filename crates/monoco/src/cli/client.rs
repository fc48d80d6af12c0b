//! HTTP client for the API of the courier: one request per connection to loopback.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::failure::{CliError, CliExit};
use crate::home::{CourierInfo, Home};

/// Address and token of the courier of one home directory.
#[derive(Debug)]
pub struct Client {
    running: CourierInfo,
    token: String,
}

impl Client {
    /// Reads the address and token of the running courier.
    pub fn find(home: &Home) -> Result<Self, CliError> {
        let running = home.running().ok_or_else(CliError::no_courier)?;
        Ok(Self { running, token: home.token()? })
    }

    pub fn running(&self) -> &CourierInfo {
        &self.running
    }

    pub async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.request(Method::GET, path, None).await
    }

    /// Gets the health of the courier. A degraded courier answers 503 with the same body.
    pub async fn health(&self) -> Result<Value, CliError> {
        let response = self.send(Method::GET, "/health", None, "application/json").await?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
        serde_json::from_slice(&bytes).map_err(|_| {
            CliError::new(
                CliExit::Courier,
                format!("unexpected response of the courier: HTTP {status}"),
            )
        })
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.request(Method::PUT, path, Some(body)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.request(Method::POST, path, Some(body)).await
    }

    /// Posts with an idempotency key: a repeated request returns the first result.
    pub async fn post_once(
        &self,
        path: &str,
        body: &Value,
        key: Option<&str>,
    ) -> Result<Value, CliError> {
        let body = Body { text: body.to_string(), key };
        answer(self.send(Method::POST, path, Some(body), "application/json").await?).await
    }

    pub async fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.request(Method::DELETE, path, None).await
    }

    /// Sends a request and returns the JSON of a successful response; `null` without a body.
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let body = body.map(|body| Body { text: body.to_string(), key: None });
        answer(self.send(method, path, body, "application/json").await?).await
    }

    /// Opens the stream of events after the sequence number `after`.
    pub async fn follow(&self, after: Option<i64>) -> Result<Incoming, CliError> {
        let path = match after {
            Some(after) => format!("/api/v1/events?after={after}"),
            None => "/api/v1/events".to_owned(),
        };
        let response = self.send(Method::GET, &path, None, "text/event-stream").await?;
        if !response.status().is_success() {
            let message = format!("cannot follow events: HTTP {}", response.status());
            return Err(CliError::new(CliExit::Courier, message));
        }
        Ok(response.into_body())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Body<'_>>,
        accept: &'static str,
    ) -> Result<Response<Incoming>, CliError> {
        let stream = TcpStream::connect(self.running.address).await.map_err(|error| {
            CliError::new(CliExit::NoCourier, format!("cannot connect to the courier: {error}"))
        })?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, format!("localhost:{}", self.running.address.port()))
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token))
            .header(header::ACCEPT, accept);
        let mut bytes = Bytes::new();
        if let Some(Body { text, key }) = body {
            request = request.header(header::CONTENT_TYPE, "application/json");
            if let Some(key) = key {
                request = request.header("Idempotency-Key", key);
            }
            bytes = text.into();
        }
        let request = request
            .body(Full::new(bytes))
            .map_err(|error| CliError::usage(format!("invalid request: {error}")))?;
        #[expect(
            clippy::disallowed_methods,
            reason = "a command has no task group; the task ends with the connection"
        )]
        let _connection = tokio::spawn(connection);
        sender.send_request(request).await.map_err(broken)
    }
}

/// JSON body of a request.
struct Body<'a> {
    text: String,
    /// Value of the Idempotency-Key header.
    key: Option<&'a str>,
}

/// Returns the JSON of a successful response; `null` without a body.
async fn answer(response: Response<Incoming>) -> Result<Value, CliError> {
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
    if bytes.is_empty() && status.is_success() {
        return Ok(Value::Null);
    }
    let answer: Value = serde_json::from_slice(&bytes).map_err(|_| {
        CliError::new(
            CliExit::Courier,
            format!("unexpected response of the courier: HTTP {status}"),
        )
    })?;
    if status.is_success() { Ok(answer) } else { Err(rejection(status.as_u16(), &answer)) }
}

fn broken(error: hyper::Error) -> CliError {
    CliError::new(CliExit::Courier, format!("connection to the courier failed: {error}"))
}

/// Converts an error response into an error with exit code and hint.
fn rejection(status: u16, answer: &Value) -> CliError {
    let text = |key: &str| answer.get(key).and_then(Value::as_str);
    let message = text("message").unwrap_or("the courier rejected the request").to_owned();
    let exit = match (status, text("code")) {
        (409, Some("lease_lost" | "conflict" | "claimed" | "not_due")) => CliExit::Held,
        (500.., _) | (401 | 403, _) => CliExit::Courier,
        _ => CliExit::NotPossible,
    };
    let failure = CliError::new(exit, message);
    match text("code") {
        Some("unknown_owner") => failure.hint("`monoco center boxes` lists all boxes"),
        Some("lease_lost") => failure.hint(
            "another agent may hold it now: claim it again with `monoco mailbox claim`, or lease it \
             again with `monoco center next`",
        ),
        Some("claimed") => failure.hint(
            "wait until the claim expires, or ask its holder to release it with \
             `monoco mailbox fail`",
        ),
        Some("not_due") => failure.hint("the last attempt failed; try again after the time of the next retry"),
        Some("completed") => failure.hint("this workspace has completed the Mail; no further step is possible"),
        Some("dead") => {
            failure.hint("`monoco dead list` shows the reason, `monoco dead retry` retries it")
        }
        Some("not_claimed") => failure.hint("claim it first with `monoco mailbox claim`"),
        Some("unresolvable") => failure.hint(
            "add and bind the target with `monoco contact add` and `monoco contact bind`, \
             or name an endpoint: did:msgtunnel:ACCOUNT.user.TUNNEL",
        ),
        Some("storage_broken") => {
            failure.hint("check the disk, then run `monoco courier restart`")
        }
        _ => failure,
    }
}

/// Percent-encodes one segment of a path.
pub fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
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
