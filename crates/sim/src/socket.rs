//! The WebSocket server: handshake, frames in both directions, pings.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::chaos::ChaosSwitches;
use crate::clock::now_ms;
use crate::connections::{SimConnection, SocketCommand};
use crate::http::{SimRequest, SimResponse};
use crate::pong_filter::PongFilter;
use crate::world::SimHub;

/// Largest frame that a bot may send, in bytes.
const MAX_FRAME_BYTES: usize = 4 << 20;

/// How long the bot has to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type ServerSocket = WebSocketStream<PongFilter<TokioIo<Upgraded>>>;

pub fn is_handshake(request: &Request<Incoming>) -> bool {
    let upgrade = request.headers().get("upgrade").and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

/// Checks a handshake and starts the task of the new socket.
pub fn accept(hub: &Arc<SimHub>, request: Request<Incoming>, head: &SimRequest) -> SimResponse {
    let opened = {
        let mut world = hub.lock();
        let fault = world.chaos.reject_handshake;
        let opened = if ChaosSwitches::take(&mut world.chaos.reject_handshake.count) {
            Err(hub.provider.rejected_handshake(&fault))
        } else {
            hub.provider.open_socket(&mut world, head)
        };
        if opened.is_err() {
            world.counters.sockets_rejected += 1;
        }
        opened
    };
    let (Ok(app), Some(key)) = (&opened, head.header("sec-websocket-key")) else {
        let missing = SimResponse::text(StatusCode::BAD_REQUEST, "text/plain", "no key\n");
        return opened.err().unwrap_or(missing);
    };
    let (app, accept_key) = (*app, derive_accept_key(key.as_bytes()));
    let shared = Arc::clone(hub);
    hub.tasks.spawn(async move {
        if let Ok(upgraded) = hyper::upgrade::on(request).await {
            serve(&shared, upgraded, app).await;
        }
    });
    SimResponse::text(StatusCode::SWITCHING_PROTOCOLS, "text/plain", "")
        .with_header("connection", "Upgrade")
        .with_header("upgrade", "websocket")
        .with_header("sec-websocket-accept", accept_key)
}

/// Serves one connection until either side ends it.
async fn serve(hub: &SimHub, upgraded: Upgraded, app: usize) {
    let drops_pongs = Arc::new(AtomicBool::new(false));
    let stream = PongFilter::new(TokioIo::new(upgraded), Arc::clone(&drops_pongs));
    let config = WebSocketConfig::default()
        .max_message_size(Some(MAX_FRAME_BYTES))
        .max_frame_size(Some(MAX_FRAME_BYTES));
    let socket: ServerSocket =
        WebSocketStream::from_raw_socket(stream, Role::Server, Some(config)).await;
    let (commands, queue) = unbounded_channel();
    let id = {
        let mut world = hub.lock();
        let connection = SimConnection {
            app,
            opened_ms: now_ms(),
            commands,
            is_silent: false,
            is_draining: false,
            drops_pongs,
            frames_sent: 0,
            acks: 0,
        };
        let id = world.connections.insert(connection);
        let open = world.connections.count(app);
        world.counters.sockets_opened += 1;
        world.counters.max_open_sockets = world.counters.max_open_sockets.max(open);
        let first = hub.provider.first_frame(&world, app);
        if let (Some(frame), Some(connection)) = (first, world.connections.get_mut(id)) {
            connection.send(frame);
        }
        hub.pump(&mut world);
        id
    };
    let (mut sink, mut stream) = socket.split();
    tokio::select! {
        () = hub.stop.cancelled() => {}
        () = write_frames(hub, id, &mut sink, queue) => {}
        () = read_frames(hub, id, &mut stream) => {}
    }
    let mut world = hub.lock();
    world.close_connection(id, SocketCommand::Abort);
    hub.pump(&mut world);
}

/// Reads frames until the bot closes the connection.
async fn read_frames(hub: &SimHub, id: u64, stream: &mut SplitStream<ServerSocket>) {
    while let Some(Ok(message)) = stream.next().await {
        match message {
            frame @ (Message::Text(_) | Message::Binary(_)) => hub.frame_received(id, &frame),
            Message::Ping(_) => hub.lock().counters.pings_received += 1,
            Message::Pong(_) => hub.lock().counters.pongs_received += 1,
            // After a close frame the stream sends its answer and ends.
            Message::Close(_) | Message::Frame(_) => {}
        }
    }
}

/// Writes frames and pings until the connection is to end.
async fn write_frames(
    hub: &SimHub,
    id: u64,
    sink: &mut SplitSink<ServerSocket, Message>,
    mut queue: UnboundedReceiver<SocketCommand>,
) {
    loop {
        let interval = hub.lock().settings.ping_interval_ms;
        // Without pings the setting is looked at again every second.
        let wait = Duration::from_millis(if interval == 0 { 1000 } else { interval });
        let sent = match tokio::time::timeout(wait, queue.recv()).await {
            Err(_) => match ping(hub, id).filter(|_| interval > 0) {
                Some(ping) => sink.send(ping).await,
                None => Ok(()),
            },
            Ok(Some(SocketCommand::Frame(frame))) => sink.feed(frame).await,
            Ok(Some(SocketCommand::Close)) => {
                let _ = sink.close().await;
                // The reader ends when the answer arrives.
                tokio::time::sleep(CLOSE_TIMEOUT).await;
                return;
            }
            Ok(Some(SocketCommand::Abort) | None) => {
                let _ = sink.flush().await;
                return;
            }
        };
        if sent.is_err() || (queue.is_empty() && sink.flush().await.is_err()) {
            return;
        }
    }
}

/// The ping to send now; `None` for a connection that is silent or draining.
fn ping(hub: &SimHub, id: u64) -> Option<Message> {
    let mut world = hub.lock();
    let connection = world.connections.get_mut(id)?;
    if connection.is_silent || connection.is_draining {
        return None;
    }
    Some(hub.provider.ping_frame())
}
