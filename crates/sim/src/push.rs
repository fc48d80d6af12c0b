//! HTTP callbacks: sends events to the URL of a bot, and retries them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::chaos::{ChaosSwitches, ForgeryKind, PushSigner};
use crate::clock::now_us;
use crate::counters::SimCounters;
use crate::event_queue::SimEvent;
use crate::provider::PushRequest;
use crate::world::{SimHub, World};

/// Bytes of an answer that are read.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Events of an app that are looked at for one whose lane is free.
const MAX_LOOKAHEAD: usize = 80;

/// A callback URL on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushUrl {
    address: SocketAddr,
    path: String,
}

impl PushUrl {
    /// Parses `http://HOST:PORT/PATH` with a loopback host.
    pub fn parse(url: &str) -> Result<Self, String> {
        let expected = "expected http://127.0.0.1:PORT/PATH";
        let rest = url.strip_prefix("http://").ok_or(format!("found {url:?}, {expected}"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let host = host.replace("localhost", "127.0.0.1");
        let host = if host.contains(':') && !host.ends_with(']') { host } else { host + ":80" };
        let address: SocketAddr = host.parse().map_err(|_| format!("found {url:?}, {expected}"))?;
        match address.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => {}
            IpAddr::V6(ip) if ip.is_loopback() => {}
            other => return Err(format!("{other} is not a loopback address, {expected}")),
        }
        Ok(Self { address, path: format!("/{path}") })
    }
}

/// Answer to a callback.
#[derive(Debug)]
pub struct PushAnswer {
    pub status: u16,
    pub body: String,
    pub content_type: String,
    /// Seconds that the receiver asks the sender to wait.
    pub retry_after: Option<u64>,
    /// The receiver asks for no further attempts.
    is_final: bool,
}

/// Answer to a callback, or why there is none.
pub type PushResult = Result<PushAnswer, &'static str>;

/// Sends one callback. The error is the reason that the retry carries.
pub async fn send(url: &PushUrl, request: PushRequest, timeout: Duration) -> PushResult {
    let answer = tokio::time::timeout(timeout, exchange(url, request));
    answer.await.unwrap_or(Err("http_timeout"))
}

async fn exchange(url: &PushUrl, push: PushRequest) -> PushResult {
    let failed = "connection_failed";
    let stream = TcpStream::connect(url.address).await.map_err(|_| failed)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|_| failed)?;
    let mut request = Request::post(&url.path)
        .header("host", url.address.to_string())
        .header("connection", "close");
    for (name, value) in push.headers {
        request = request.header(name, value);
    }
    let request = request.body(Full::new(Bytes::from(push.body))).map_err(|_| failed)?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|_| failed)?;
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name)?.to_str().ok();
        let is_final = header("x-slack-no-retry") == Some("1");
        let content_type = header("content-type").unwrap_or_default().to_owned();
        let retry_after = header("retry-after").and_then(|value| value.parse().ok());
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|_| "http_error")?.to_bytes();
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(PushAnswer { status, body, content_type, retry_after, is_final })
    };
    tokio::pin!(answer);
    tokio::select! {
        answer = &mut answer => answer,
        // The answer may be complete although the connection has ended.
        _ = connection => answer.await,
    }
}

/// Sends events to the URLs of the bots until the emulator stops; those of one lane one after the
/// other.
pub async fn run(hub: &Arc<SimHub>) {
    while !hub.stop.is_cancelled() {
        let Some((event, url, requests, timeout)) = next_push(hub) else {
            tokio::select! {
                () = hub.stop.cancelled() => return,
                () = hub.pushes.notified() => continue,
            }
        };
        let shared = Arc::clone(hub);
        hub.tasks.spawn(async move {
            let mut result = Err("connection_failed");
            for request in requests {
                result = tokio::select! {
                    () = shared.stop.cancelled() => return,
                    result = send(&url, request, timeout) => result,
                };
            }
            record(&shared, &event, &result);
            shared.pushes.notify_one();
        });
    }
}

type NextPush = (SimEvent, PushUrl, Vec<PushRequest>, Duration);

/// Takes the next event of an app that has a URL, in a lane that is free.
fn next_push(hub: &SimHub) -> Option<NextPush> {
    let mut world = hub.lock();
    for app in world.queue.ready_apps() {
        let Some(url) = world.push_urls.get(&app).and_then(|url| PushUrl::parse(url).ok()) else {
            continue;
        };
        let is_free = |event: &&SimEvent| match world.busy_lanes.get(&lane_key(hub, event)) {
            Some(holder) => *holder == event.number || !world.queue.contains(*holder),
            None => true,
        };
        let free = world.queue.ready_of(app).take(MAX_LOOKAHEAD).find(is_free);
        let Some(order) = free.map(|event| event.order) else { continue };
        if let Some(event) = world.queue.take_at(app, order) {
            world.busy_lanes.insert(lane_key(hub, &event), event.number);
            let fault = world.chaos.wrong_signature;
            let is_forged = ChaosSwitches::take(&mut world.chaos.wrong_signature.count);
            let forgery = is_forged.then_some(fault.kind);
            let requests =
                (0..event.copies).map(|_| signed(hub, &mut world, &event, forgery)).collect();
            let timeout = Duration::from_millis(world.settings.push_timeout_ms);
            return Some((event, url, requests, timeout));
        }
    }
    None
}

/// The callback of an event, signed properly or with a fault.
fn signed(
    hub: &SimHub,
    world: &mut World,
    event: &SimEvent,
    forgery: Option<ForgeryKind>,
) -> PushRequest {
    let Some(kind) = forgery else {
        let request = hub.provider.push(event, &PushSigner::honest(event.app));
        world.push_headers.insert(event.app, request.headers.clone());
        return request;
    };
    let mut request = hub.provider.push(event, &PushSigner::forged(event.app, kind));
    if kind == ForgeryKind::Replayed {
        request.headers = world.push_headers.get(&event.app).cloned().unwrap_or_default();
    }
    request
}

fn lane_key(hub: &SimHub, event: &SimEvent) -> (usize, String) {
    (event.app, hub.provider.lane(event).unwrap_or_default().to_owned())
}

/// Finishes an event, or lets it wait for its next attempt.
fn record(hub: &SimHub, event: &SimEvent, result: &PushResult) {
    let mut world = hub.lock();
    let (name, is_final) = match result {
        Ok(answer) if (200..300).contains(&answer.status) => ("ok", true),
        Ok(answer) => ("http_error", answer.is_final),
        Err(reason) => (*reason, false),
    };
    SimCounters::count(&mut world.counters.pushes, name);
    let pause = hub.provider.push_pause(&world, event, result).filter(|_| !is_final);
    if pause.is_none() || hub.provider.lane(event).is_none() {
        world.busy_lanes.remove(&lane_key(hub, event));
    }
    match pause {
        // Without its URL the event waits for the bot to fetch it.
        Some(_) if !world.push_urls.contains_key(&event.app) => {
            world.queue.make_ready(event.number);
        }
        Some(pause) => world.queue.retry_at(event.number, name, now_us() + pause * 1000),
        None => {
            match name {
                "ok" => {
                    world.counters.acks += 1;
                    world.counters.record_latency(now_us().saturating_sub(event.created_us));
                }
                _ => world.counters.given_up += 1,
            }
            world.queue.finish(event.number);
        }
    }
    hub.provider.push_ended(&mut world, event, result);
    hub.pump(&mut world);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_url_must_be_http_on_loopback() {
        let url = PushUrl::parse("http://localhost:8645/webhooks/slack?x=1").unwrap();
        assert_eq!(url.address, "127.0.0.1:8645".parse().unwrap());
        assert_eq!(url.path, "/webhooks/slack?x=1");
        assert_eq!(PushUrl::parse("http://[::1]:1").unwrap().path, "/");
        for bad in ["https://127.0.0.1:1/", "http://10.0.0.1:80/", "http://example.com/", "x"] {
            assert!(PushUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
