//! The HTTP server of an emulator. It listens on loopback only.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::chaos::CallOutcome;
use crate::clock::now_us;
use crate::control;
use crate::counters::SimCounters;
use crate::dingtalk::DingTalkSim;
use crate::http::{SimRequest, SimResponse};
use crate::lark::LarkSim;
use crate::provider::{PollStep, PollTicket, SimProvider};
use crate::push;
use crate::slack::SlackSim;
use crate::socket;
use crate::store::{FileContent, MAX_FILE_BYTES};
use crate::telegram::TelegramSim;
use crate::world::{SimHub, World};
use crate::{SimNetwork, SimOptions};

/// Largest request body: a file with the fields around it.
const MAX_BODY_BYTES: usize = MAX_FILE_BYTES + (1 << 20);

/// Pause after a failed accept, for instance because all file descriptors are in use.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shortest wait of a call that waits for events.
const MIN_POLL_WAIT: Duration = Duration::from_millis(1);

/// Why an emulator cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error(
        "cannot listen on {0}: an emulator must not be reachable from other machines; use 127.0.0.1 or ::1"
    )]
    NotLoopback(SocketAddr),
    #[error(
        "cannot listen on {address}: {error}; select another port with --port, 0 selects a free one"
    )]
    Listen { address: SocketAddr, error: io::Error },
    #[error("found {0} apps, expected 1 to 1000")]
    AppCount(usize),
}

/// An emulator that listens and has not been started.
pub struct Simulator {
    hub: Arc<SimHub>,
    listener: TcpListener,
    options: SimOptions,
}

impl Simulator {
    /// Opens the listener. The address must be a loopback address.
    pub async fn bind(options: SimOptions) -> Result<Self, SimError> {
        if !options.address.ip().is_loopback() {
            return Err(SimError::NotLoopback(options.address));
        }
        if !(1..=1000).contains(&options.apps) {
            return Err(SimError::AppCount(options.apps));
        }
        let failed = |error| SimError::Listen { address: options.address, error };
        let listener = TcpListener::bind(options.address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let provider: Box<dyn SimProvider> = match options.network {
            SimNetwork::Slack => Box::new(SlackSim::new(options.apps)),
            SimNetwork::DingTalk => Box::new(DingTalkSim::new(options.apps)),
            SimNetwork::Lark => Box::new(LarkSim::new(options.apps)),
            SimNetwork::Telegram => Box::new(TelegramSim::new(options.apps)),
        };
        let mut world = World::new(format!("http://{address}"), provider.settings(), options.apps);
        provider.populate(&mut world);
        Ok(Self { hub: Arc::new(SimHub::new(world, provider)), listener, options })
    }

    /// URLs and credentials for the tunnel, and the URL of the control API.
    pub fn info(&self) -> Value {
        let base = self.hub.lock().base_url.clone();
        let apps: Vec<_> =
            (0..self.options.apps).map(|app| self.hub.provider.credentials(app)).collect();
        let mut info = json!({
            "provider": match self.options.network {
                SimNetwork::Slack => "slack",
                SimNetwork::DingTalk => "dingtalk",
                SimNetwork::Lark => "lark",
                SimNetwork::Telegram => "telegram",
            },
            "control_url": format!("{base}/control"),
            "credentials": apps[0],
            "apps": apps,
        });
        if let (Some(info), Value::Object(urls)) =
            (info.as_object_mut(), self.hub.provider.urls(&base))
        {
            info.extend(urls);
        }
        info
    }

    /// Serves until `stop` resolves; then ends all connections.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let hub = self.hub;
        let timer = Arc::clone(&hub);
        hub.tasks.spawn(async move { timer.run_timer().await });
        let pushes = Arc::clone(&hub);
        hub.tasks.spawn(async move { push::run(&pushes).await });
        tokio::pin!(stop);
        loop {
            let accepted = tokio::select! {
                () = &mut stop => break,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let token = self.options.control_token.clone();
                    let shared = Arc::clone(&hub);
                    hub.tasks.spawn(async move { serve(shared, stream, token).await });
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
        hub.stop.cancel();
        hub.tasks.close();
        hub.tasks.wait().await;
    }
}

/// Serves one TCP connection.
async fn serve(hub: Arc<SimHub>, stream: TcpStream, token: Option<String>) {
    // Frames are small; waiting for more would delay each by 40 ms.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| {
        let (hub, token) = (Arc::clone(&hub), token.clone());
        async move { respond(&hub, request, token.as_deref()).await }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new());
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    tokio::select! {
        () = hub.stop.cancelled() => {}
        _ = connection => {}
    }
}

/// Answers one request. An error ends the connection without an answer.
async fn respond(
    hub: &Arc<SimHub>,
    mut request: Request<Incoming>,
    token: Option<&str>,
) -> io::Result<Response<BoxBody<Bytes, Infallible>>> {
    let mut head = SimRequest {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        headers: request.headers().clone(),
        body: Bytes::new(),
    };
    if let Some(rejected) = reject_foreign(&head, token) {
        return Ok(into_http(rejected));
    }
    if socket::is_handshake(&request) {
        return Ok(into_http(socket::accept(hub, request, &head)));
    }
    match Limited::new(request.body_mut(), MAX_BODY_BYTES).collect().await {
        Ok(body) => head.body = body.to_bytes(),
        Err(_) => {
            let text =
                format!("cannot read the body, or it has more than {MAX_BODY_BYTES} bytes\n");
            let rejected = SimResponse::text(StatusCode::PAYLOAD_TOO_LARGE, "text/plain", &text);
            return Ok(into_http(rejected));
        }
    }
    let response = match head.path.strip_prefix("/control/") {
        Some(name) => control::handle(hub, name, &head).await,
        None => match call_api(hub, &head) {
            ApiAnswer::Now(response) => response,
            ApiAnswer::Poll(ticket) => answer_poll(hub, ticket).await,
        },
    };
    if let Some(hang) = response.hang {
        tokio::select! {
            () = tokio::time::sleep(hang) => {}
            () = hub.stop.cancelled() => {}
        }
        return Err(io::ErrorKind::ConnectionAborted.into());
    }
    Ok(into_http(response))
}

/// Rejects requests that a web page could send, and control requests without the token.
fn reject_foreign(request: &SimRequest, token: Option<&str>) -> Option<SimResponse> {
    let host = request.header("host").unwrap_or_default();
    let is_local = is_loopback_host(host);
    let is_control = request.path.starts_with("/control/");
    let reason = if !is_local {
        "the Host header must be a loopback name"
    } else if is_control && request.headers.contains_key("origin") {
        "the control API takes no requests of web pages"
    } else if is_control && token.is_some() && request.bearer() != token {
        "the control API needs `Authorization: Bearer` with the value of --control-token"
    } else {
        return None;
    };
    Some(SimResponse::json(StatusCode::FORBIDDEN, &json!({"error": reason})))
}

/// Tells whether a `Host` header names this machine. Other names that begin like a loopback
/// address do not.
fn is_loopback_host(host: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The answer to a call of the emulated API, at once or when there are events.
enum ApiAnswer {
    Now(SimResponse),
    Poll(PollTicket),
}

/// Waits until a call that waits for events is answered, or the emulator stops.
async fn answer_poll(hub: &SimHub, ticket: PollTicket) -> SimResponse {
    let mut is_new = true;
    loop {
        // Created before the state is looked at, so that no wake-up is missed.
        let woken = hub.polls.notified();
        let until_us = {
            let mut world = hub.lock();
            match hub.provider.resume_poll(&mut world, ticket) {
                PollStep::Answer(response) => return response,
                PollStep::Wait(until_us) => until_us,
            }
        };
        if std::mem::take(&mut is_new) {
            // A new call may end an older one. It wakes itself too, once.
            hub.polls.notify_waiters();
        }
        let wait = Duration::from_micros(until_us.saturating_sub(now_us())).max(MIN_POLL_WAIT);
        tokio::select! {
            () = woken => {}
            () = tokio::time::sleep(wait) => {}
            () = hub.stop.cancelled() => {
                let ended = SimResponse::not_found("poll");
                return SimResponse { hang: Some(Duration::ZERO), ..ended };
            }
        }
    }
}

/// Executes a call of the emulated API, or the fault that is switched on for it.
fn call_api(hub: &SimHub, request: &SimRequest) -> ApiAnswer {
    let mut world = hub.lock();
    let provider = &hub.provider;
    let call = provider.call(&world, request);
    SimCounters::count(&mut world.counters.requests, &call.method);
    match world.chaos.outcome(&call) {
        CallOutcome::Throttled(fault) => {
            SimCounters::count(&mut world.counters.errors, "throttled_by_chaos");
            ApiAnswer::Now(provider.throttled(&call, &fault))
        }
        CallOutcome::ServerError(fault) => {
            SimCounters::count(&mut world.counters.errors, "server_error_by_chaos");
            ApiAnswer::Now(provider.server_error(&call, &fault))
        }
        outcome => {
            let ticket = provider.start_poll(&mut world, &call, request);
            let mut response = match ticket {
                None => provider.api(&mut world, &call, request),
                Some(ticket) => match (provider.resume_poll(&mut world, ticket), &outcome) {
                    (PollStep::Wait(_), CallOutcome::Normal) => return ApiAnswer::Poll(ticket),
                    (PollStep::Wait(_), _) => SimResponse::not_found("poll"),
                    (PollStep::Answer(response), _) => response,
                },
            };
            if let CallOutcome::Unanswered(hang) = outcome {
                response.hang = Some(hang);
            }
            hub.pump(&mut world);
            ApiAnswer::Now(response)
        }
    }
}

fn into_http(response: SimResponse) -> Response<BoxBody<Bytes, Infallible>> {
    let mut builder = Response::builder().status(response.status);
    for (name, value) in response.headers {
        builder = builder.header(name, value);
    }
    let body = match response.body {
        FileContent::Bytes(bytes) => Full::new(bytes).boxed(),
        content @ FileContent::Pattern(_) => {
            builder = builder.header("content-length", content.size());
            let frames = content.chunks().map(|chunk| Ok(Frame::data(chunk)));
            StreamBody::new(stream::iter(frames)).boxed()
        }
    };
    builder.body(body).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::is_loopback_host;

    #[test]
    fn only_loopback_names_and_addresses_are_local() {
        for host in ["localhost", "localhost:80", "127.0.0.1:80", "127.9.9.9", "[::1]", "[::1]:80"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["", "127.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "[::2]:80"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
