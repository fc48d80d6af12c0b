//! `monoco mcp`: forwards the messages of an MCP client on stdin to the courier.
//!
//! Each line is one JSON-RPC message. A request becomes one POST to `/mcp` of the running courier,
//! with the token of the agent; the response is one line on stdout. The command keeps no state, so
//! the courier can be restarted at any time: requests wait a few seconds for it.
//!
//! The token is sent only while a courier of this home directory holds its lock and has announced
//! the port. So another process that has taken the port does not get it. With `MONOCO_URL` it is sent
//! to that courier, whose certificate is verified.

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use monoco_adapters::net::MailStream;
use monoco_courier::api::error::ApiErrorView;
use monoco_courier::api::{MCP_PATH, server};
use monoco_courier::home::Home;
use monoco_courier::mcp::protocol;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::either::Either;

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output;
use super::remote::{RemoteCourier, TOKEN_VARIABLE};

/// Longest message, in bytes. The courier accepts no longer ones.
const MAX_LINE: u64 = 2 << 20;

/// Most requests that wait for the courier at once. Further lines are not read before.
const MAX_REQUESTS: usize = 32;

/// How long a request waits for a courier that is not running, for instance during a restart.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Pause between two attempts to connect.
const CONNECT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// How long requests may still take after stdin was closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

const PARSE_ERROR: i64 = -32_700;
const INTERNAL_ERROR: i64 = -32_603;

/// A connection to the courier of this machine, or of another one.
type CourierStream = Either<TcpStream, MailStream>;

/// Where requests go, and the token of the agent.
struct Forwarder {
    target: ForwardTarget,
    /// Value of the Authorization header.
    authorization: String,
}

/// The courier that requests go to.
enum ForwardTarget {
    /// The one of this home directory.
    Local(Home),
    Remote(Arc<RemoteCourier>),
}

/// Forwards messages until stdin is closed.
pub async fn run(context: &CliContext) -> Result<(), CliError> {
    let forwarder = match &context.remote {
        Some(remote) => Forwarder {
            authorization: remote.authorization(),
            target: ForwardTarget::Remote(Arc::clone(remote)),
        },
        None => {
            let token = std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty());
            let token = token.ok_or_else(|| {
                CliError::usage("no token: the environment variable MONOCO_TOKEN is not set")
                    .hint("create one with `monoco token add NAME --scope read,claim,reply`")
            })?;
            Forwarder {
                authorization: format!("Bearer {token}"),
                target: ForwardTarget::Local(context.home.clone()),
            }
        }
    };
    let forwarder = Arc::new(forwarder);
    let mut lines = read_lines();
    let mut requests: JoinSet<()> = JoinSet::new();
    let mut running: HashMap<String, AbortHandle> = HashMap::new();
    while let Some(line) = lines.recv().await {
        running.retain(|_, request| !request.is_finished());
        while requests.try_join_next().is_some() {}
        let message: Value = match line.and_then(|line| Ok(serde_json::from_str(&line)?)) {
            Ok(message) => message,
            Err(error) => {
                respond(&error_message(None, PARSE_ERROR, &error.to_string()));
                continue;
            }
        };
        let Some(id) = message.get("id").filter(|_| message.get("method").is_some()).cloned()
        else {
            // The courier has no sessions, so only a cancellation concerns it.
            if let Some(id) = cancelled(&message)
                && let Some(request) = running.remove(&id.to_string())
            {
                request.abort();
            }
            continue;
        };
        if requests.len() >= MAX_REQUESTS {
            requests.join_next().await;
        }
        let (forwarder, key) = (Arc::clone(&forwarder), id.to_string());
        let request = requests.spawn(async move {
            let response = forwarder.forward(&message).await;
            let failed = |why: CliError| error_message(Some(&id), INTERNAL_ERROR, &why.message);
            respond(&response.unwrap_or_else(failed));
        });
        running.insert(key, request);
    }
    let drained = async { while requests.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    Ok(())
}

/// The id of the request that a notification cancels.
fn cancelled(message: &Value) -> Option<&Value> {
    if message.get("method")? != "notifications/cancelled" {
        return None;
    }
    message.get("params")?.get("requestId")
}

/// Reads lines in a thread of its own: reading stdin blocks.
fn read_lines() -> mpsc::Receiver<std::io::Result<String>> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        loop {
            let mut line = String::new();
            let read = stdin.by_ref().take(MAX_LINE).read_line(&mut line);
            let is_cut = line.len() as u64 == MAX_LINE && !line.ends_with('\n');
            let line = match read {
                Ok(0) => return,
                Ok(_) if line.trim().is_empty() => continue,
                Ok(_) if is_cut => {
                    let why = format!("a message has more than {MAX_LINE} bytes");
                    let _ = sender.blocking_send(Err(std::io::Error::other(why)));
                    return;
                }
                Ok(_) => Ok(line),
                Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(error),
                Err(_) => return,
            };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Writes one message. A client that has closed stdout closes stdin too, which ends the command.
fn respond(message: &str) {
    let _ = output::print(message);
}

fn error_message(id: Option<&Value>, code: i64, why: &str) -> String {
    let mut message = json!({"jsonrpc": "2.0", "error": {"code": code, "message": why}});
    if let Some(id) = id {
        message["id"] = id.clone();
    }
    message.to_string()
}

impl Forwarder {
    /// Posts one request and returns the response as one line.
    async fn forward(&self, message: &Value) -> Result<String, CliError> {
        let (stream, host) = self.connect().await?;
        let exchange = self.exchange(stream, host, message);
        let limit = server::HANDLER_TIMEOUT + CONNECT_TIMEOUT;
        tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| {
            Err(CliError::new(CliExit::Courier, "the courier did not answer in time"))
        })
    }

    /// Connects to the courier, and waits a few seconds for one that is not running.
    async fn connect(&self) -> Result<(CourierStream, String), CliError> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            let failure = match &self.target {
                ForwardTarget::Remote(remote) => match remote.connect().await {
                    Ok(stream) => {
                        return Ok((Either::Right(stream), remote.authority().to_owned()));
                    }
                    // A certificate does not become valid by waiting.
                    Err(failure) if failure.exit != CliExit::NoCourier => return Err(failure),
                    Err(failure) => failure,
                },
                ForwardTarget::Local(home) => {
                    if let Some(address) = home.running().map(|courier| courier.address())
                        && let Ok(stream) = TcpStream::connect(address).await
                    {
                        return Ok((Either::Left(stream), address.to_string()));
                    }
                    let message = "the courier is not running; start it with `monoco courier \
                                   start`, then call again";
                    CliError::new(CliExit::NoCourier, message)
                }
            };
            if Instant::now() >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(CONNECT_RETRY_DELAY).await;
        }
    }

    async fn exchange(
        &self,
        stream: CourierStream,
        host: String,
        message: &Value,
    ) -> Result<String, CliError> {
        let broken = |error: hyper::Error| {
            let message = format!(
                "the connection to the courier ended ({error}); the request may have been \
                 executed: call again with the same idempotency_key"
            );
            CliError::new(CliExit::Courier, message)
        };
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(MCP_PATH)
            .header(header::HOST, host)
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream");
        for (name, value) in protocol::headers_of(message) {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Bytes::from(message.to_string())))
            .map_err(|error| CliError::usage(format!("invalid request: {error}")))?;
        let response = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        // The connection is driven here, so that a cancelled request closes it.
        let mut connection = std::pin::pin!(connection);
        let mut response = std::pin::pin!(response);
        let (status, body) = tokio::select! {
            response = &mut response => response.map_err(broken)?,
            _ = &mut connection => response.await.map_err(broken)?,
        };
        as_line(status, &body)
    }
}

/// The JSON-RPC message of a response, or why there is none.
fn as_line(status: StatusCode, body: &[u8]) -> Result<String, CliError> {
    let message: Value = serde_json::from_slice(body).unwrap_or_default();
    if message.get("jsonrpc").is_some() {
        return Ok(message.to_string());
    }
    let why = match serde_json::from_value::<ApiErrorView>(message) {
        Ok(error) => format!("{} ({})", error.message, error.code),
        Err(_) => format!("HTTP {status}"),
    };
    Err(CliError::new(CliExit::Courier, format!("the courier rejected the request: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cancellations_name_a_request() {
        let cancel = json!({"method": "notifications/cancelled", "params": {"requestId": 7}});
        assert_eq!(cancelled(&cancel), Some(&json!(7)));
        let other = json!({"method": "notifications/initialized", "params": {"requestId": 7}});
        assert_eq!(cancelled(&other), None);
        assert_eq!(cancelled(&json!({"result": {}})), None);
    }

    #[test]
    fn errors_of_the_api_are_reported_with_their_message() {
        let answer = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        assert!(as_line(StatusCode::OK, answer).is_ok_and(|line| !line.contains('\n')));
        let rejected = br#"{"code":"wrong_token","message":"wrong token"}"#;
        let error = as_line(StatusCode::UNAUTHORIZED, rejected).unwrap_err();
        assert!(error.message.contains("wrong token (wrong_token)"), "{error:?}");
        assert!(as_line(StatusCode::OK, b"").is_err());
    }
}
