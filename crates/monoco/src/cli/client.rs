//! Talks to the courier: one request on one connection to loopback.

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

/// A way to the courier of one home.
#[derive(Debug)]
pub struct Client {
    running: CourierInfo,
    token: String,
}

impl Client {
    /// Finds the courier.
    pub fn find(home: &Home) -> Result<Self, CliError> {
        let running = home.running().ok_or_else(CliError::no_courier)?;
        Ok(Self { running, token: home.token()? })
    }

    /// Where it is.
    pub fn running(&self) -> &CourierInfo {
        &self.running
    }

    pub async fn get(&self, path: &str) -> Result<Value, CliError> {
        self.ask(Method::GET, path, None).await
    }

    /// How the courier is; a courier that is not well says so with a 503.
    pub async fn health(&self) -> Result<Value, CliError> {
        let response = self.send(Method::GET, "/health", None, "application/json").await?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
        serde_json::from_slice(&bytes)
            .map_err(|_| CliError::new(CliExit::Courier, format!("the courier answered {status}")))
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.ask(Method::PUT, path, Some(body)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.ask(Method::POST, path, Some(body)).await
    }

    /// Posts under the caller's own name for it, so that a second time does nothing.
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
        self.ask(Method::DELETE, path, None).await
    }

    /// Asks, and returns the JSON of a good answer; `null` when it has none.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let body = body.map(|body| Body { text: body.to_string(), key: None });
        answer(self.send(method, path, body, "application/json").await?).await
    }

    /// Follows the events after `after`, line by line as the stream has them.
    pub async fn follow(&self, after: Option<i64>) -> Result<Incoming, CliError> {
        let path = match after {
            Some(after) => format!("/api/v1/events?after={after}"),
            None => "/api/v1/events".to_owned(),
        };
        let response = self.send(Method::GET, &path, None, "text/event-stream").await?;
        if !response.status().is_success() {
            let message = format!("the courier answered {}", response.status());
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
            CliError::new(CliExit::NoCourier, format!("the courier does not answer: {error}"))
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
            .map_err(|error| CliError::usage(format!("this can't be asked for: {error}")))?;
        #[expect(clippy::disallowed_methods, reason = "a command has no courier to wait for it")]
        let _connection = tokio::spawn(connection);
        sender.send_request(request).await.map_err(broken)
    }
}

/// JSON to be sent.
struct Body<'a> {
    text: String,
    /// The caller's own name for it.
    key: Option<&'a str>,
}

/// The JSON of a good answer; `null` when it has none.
async fn answer(response: Response<Incoming>) -> Result<Value, CliError> {
    let status = response.status();
    let bytes = response.into_body().collect().await.map_err(broken)?.to_bytes();
    if bytes.is_empty() && status.is_success() {
        return Ok(Value::Null);
    }
    let answer: Value = serde_json::from_slice(&bytes)
        .map_err(|_| CliError::new(CliExit::Courier, format!("the courier answered {status}")))?;
    if status.is_success() { Ok(answer) } else { Err(refusal(status.as_u16(), &answer)) }
}

fn broken(error: hyper::Error) -> CliError {
    CliError::new(CliExit::Courier, format!("the connection to the courier broke: {error}"))
}

/// What the courier's refusal means for the exit code.
fn refusal(status: u16, answer: &Value) -> CliError {
    let text = |key: &str| answer.get(key).and_then(Value::as_str);
    let message = text("message").unwrap_or("the courier refused").to_owned();
    let exit = match (status, text("code")) {
        (409, Some("lease_lost" | "conflict" | "claimed" | "not_due")) => CliExit::Held,
        (500.., _) | (401 | 403, _) => CliExit::Courier,
        _ => CliExit::NotPossible,
    };
    let failure = CliError::new(exit, message);
    match text("code") {
        Some("unknown_owner") => failure.hint("`monoco center boxes` lists the boxes there are"),
        Some("lease_lost") => failure.hint(
            "somebody else may have it by now: take it again with `monoco mailbox claim`, or \
             from a box with `monoco center next`",
        ),
        Some("claimed") => failure.hint(
            "wait until the claim runs out, or ask its holder to give it up with \
             `monoco mailbox fail`",
        ),
        Some("not_due") => failure.hint("it failed before; try again when its time has come"),
        Some("completed") => failure.hint("there is nothing left to do for this workspace"),
        Some("dead") => {
            failure.hint("`monoco dead list` shows why, and `monoco dead retry` puts it back")
        }
        Some("not_claimed") => failure.hint("claim it first, with `monoco mailbox claim`"),
        Some("unresolvable") => failure.hint(
            "add and bind the target with `monoco contact add` and `monoco contact bind`, \
             or name an endpoint: did:msgtunnel:ACCOUNT.user.TUNNEL",
        ),
        Some("storage_broken") => {
            failure.hint("check the disk, then stop the courier and start it again")
        }
        _ => failure,
    }
}

/// One part of a path, escaped.
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

/// A query of the parameters that have a value.
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
