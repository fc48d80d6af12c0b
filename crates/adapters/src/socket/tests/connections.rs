//! Opening, watching, replacing and closing connections.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use monoco_core::retry::Failure;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::support::{
    IdSink, RunningLoop, SocketServer, WordProtocol, quick_timing, refusal, until,
};
use crate::socket::clock::SocketClock;
use crate::socket::{ConnectRetry, SocketConnector, SocketTiming};

const SHORT: Duration = Duration::from_millis(60);

fn start(server: &SocketServer, timing: SocketTiming) -> RunningLoop {
    let protocol = WordProtocol { timing, ..WordProtocol::new(&server.url) };
    RunningLoop::start(protocol, IdSink::default(), SocketConnector::default())
}

/// Waits until the server has answered so many more pings.
async fn until_answered(running: &RunningLoop, pings: usize) {
    let frames = || running.sink.reported(|event| *event == crate::ConnectionEvent::Frame);
    let before = frames();
    until("answers to pings", || frames() >= before + pings).await;
}

#[tokio::test]
async fn half_dead_connection_is_replaced_when_a_ping_is_not_answered() {
    // The first connection stays open, and reads and sends nothing.
    let server = SocketServer::start(|socket| async move {
        if socket.n == 0 {
            std::future::pending::<()>().await;
        }
        socket.drain().await;
    })
    .await;
    let timing = SocketTiming { ping_interval: SHORT, pong_deadline: SHORT, ..quick_timing() };
    let running = start(&server, timing);
    until("a second connection", || running.sink.connected() == 2).await;
    assert_eq!(running.sink.losses(), ["the server did not answer a ping"]);
    // A server that answers pings keeps its connection.
    until_answered(&running, 8).await;
    assert_eq!(server.accepted(), 2);
    running.stop().await;
}

#[tokio::test]
async fn ping_of_the_provider_is_used_when_it_has_one() {
    let pings = Arc::new(Mutex::new(0));
    let server = SocketServer::start({
        let pings = pings.clone();
        move |mut socket| {
            let pings = pings.clone();
            async move {
                while let Some(text) = socket.text().await {
                    assert_eq!(text, "ping");
                    *pings.lock().unwrap() += 1;
                    socket.send("pong").await;
                }
            }
        }
    })
    .await;
    let timing = SocketTiming { ping_interval: SHORT, ..quick_timing() };
    let protocol = WordProtocol { timing, own_ping: true, ..WordProtocol::new(&server.url) };
    let running = RunningLoop::start(protocol, IdSink::default(), SocketConnector::default());
    until("three pings", || *pings.lock().unwrap() >= 3).await;
    assert_eq!(server.accepted(), 1);
    running.stop().await;
}

#[tokio::test]
async fn connection_without_traffic_is_replaced_although_pings_are_answered() {
    let server = SocketServer::start(|mut socket| async move {
        if socket.n == 0 {
            socket.drain().await;
            return;
        }
        // Sends something of its own until the client closes the connection.
        while socket.stream.send("traffic".into()).await.is_ok() {
            if let Ok(None | Some(Err(_))) = timeout(SHORT, socket.stream.next()).await {
                return;
            }
        }
    })
    .await;
    let timing = SocketTiming {
        ping_interval: SHORT,
        traffic_deadline: Some(SHORT * 10),
        drain: SHORT,
        ..quick_timing()
    };
    let running = start(&server, timing);
    until("a second connection", || server.accepted() == 2).await;
    until("the gap", || running.protocol.gaps.lock().unwrap().len() == 2).await;
    let gap = running.protocol.gaps.lock().unwrap()[1];
    assert!(gap.until.since(gap.since.unwrap()) >= SHORT * 10, "{gap:?}");
    assert_eq!(running.sink.losses(), [""; 0], "the old connection was open all the time");
    until("the old one closed", || server.open.load(Ordering::SeqCst) == 1).await;
    assert_eq!(server.most_open.load(Ordering::SeqCst), 2);
    running.stop().await;
}

#[tokio::test]
async fn connection_whose_server_stops_to_ping_is_replaced_although_it_answers() {
    // The first connection pings once, the second one never.
    let server = SocketServer::start(|mut socket| async move {
        if socket.n == 0 {
            socket.stream.send(Message::Ping("x".into())).await.unwrap();
        }
        socket.drain().await;
    })
    .await;
    let timing = SocketTiming {
        ping_interval: SHORT,
        deadline_after_ping: Some(SHORT * 5),
        drain: SHORT,
        ..quick_timing()
    };
    let running = start(&server, timing);
    until("a second connection", || server.accepted() == 2).await;
    until("the gap", || running.protocol.gaps.lock().unwrap().len() == 2).await;
    until("the old one closed", || server.open.load(Ordering::SeqCst) == 1).await;
    until_answered(&running, 8).await;
    assert_eq!(server.accepted(), 2, "a server that never pings keeps its connection");
    running.stop().await;
}

#[tokio::test]
async fn disconnect_frame_opens_the_new_connection_before_the_old_one_is_closed() {
    let server = SocketServer::start(|mut socket| async move {
        socket.send("hello").await;
        if socket.n < 5 {
            // Twice, as Slack does: a warning, and the request itself.
            socket.send("bye").await;
            socket.send("bye").await;
        }
        socket.send(&format!("m:{}", socket.n)).await;
        socket.drain().await;
    })
    .await;
    let timing =
        SocketTiming { ready: Some(Duration::from_secs(20)), drain: SHORT, ..quick_timing() };
    let running = start(&server, timing);
    until("all messages", || running.sink.count() == 6).await;
    until("one connection", || server.open.load(Ordering::SeqCst) == 1).await;
    assert_eq!(server.accepted(), 6);
    assert_eq!(server.most_open.load(Ordering::SeqCst), 2, "never more than two");
    assert_eq!(running.sink.losses(), [""; 0]);
    assert_eq!(running.sink.connected(), 1, "always connected");
    assert_eq!(running.protocol.gaps.lock().unwrap().len(), 1, "no gap after the start");
    running.stop().await;
}

#[tokio::test]
async fn old_connection_receives_until_the_new_one_is_ready() {
    let acks = Arc::new(Mutex::new(Vec::new()));
    let server = SocketServer::start({
        let acks = acks.clone();
        move |mut socket| {
            let acks = acks.clone();
            async move {
                if socket.n == 0 {
                    socket.send("hello").await;
                    socket.send("bye").await;
                    for n in 0..3 {
                        socket.send(&format!("m:{n}")).await;
                        let ack = socket.text().await;
                        acks.lock().unwrap().extend(ack);
                    }
                }
                // The second connection is never accepted with `hello`.
                socket.drain().await;
            }
        }
    })
    .await;
    let timing = SocketTiming { ready: Some(Duration::from_millis(300)), ..quick_timing() };
    let running = start(&server, timing);
    until("a third connection", || server.accepted() >= 3).await;
    assert_eq!(*acks.lock().unwrap(), ["a:0", "a:1", "a:2"]);
    assert_eq!(running.sink.losses(), [""; 0], "the old connection still works");
    assert_eq!(server.most_open.load(Ordering::SeqCst), 2);
    running.stop().await;
}

#[tokio::test]
async fn lost_connection_leaves_a_gap_that_is_filled() {
    let server = SocketServer::start(|mut socket| async move {
        socket.send(&format!("m:{}", socket.n)).await;
        if socket.n > 0 {
            socket.drain().await;
        }
    })
    .await;
    let protocol = WordProtocol::new(&server.url);
    protocol.failing_catch_ups.store(2, Ordering::SeqCst);
    let running = RunningLoop::start(protocol, IdSink::default(), SocketConnector::default());
    until("both messages", || running.sink.count() == 2).await;
    until("gaps filled", || running.protocol.gaps.lock().unwrap().len() >= 3).await;
    let gaps = running.protocol.gaps.lock().unwrap().clone();
    assert_eq!(gaps[0].since, None, "the first call is for the start");
    assert!(gaps.iter().all(|gap| gap.since.is_none_or(|since| since <= gap.until)), "{gaps:?}");
    running.stop().await;
}

#[tokio::test]
async fn refused_handshake_is_retried_slowly_and_never_shows_the_url() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/link?ticket=canary", listener.local_addr().unwrap());
    let protocol = WordProtocol::new(&url);
    let running = RunningLoop::start(protocol, IdSink::default(), SocketConnector::default());
    for status in ["403 Forbidden", "503 Service Unavailable", "302 Found"] {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        let read = stream.read(&mut request).await.unwrap();
        assert!(request[..read].starts_with(b"GET /link?ticket=canary HTTP/1.1"));
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
    until("three reports", || running.sink.losses().len() == 3).await;
    assert_eq!(*running.protocol.rejected_with.lock().unwrap(), [403, 503, 302]);
    for loss in running.sink.losses() {
        assert!(loss.contains("WebSocket handshake") && !loss.contains("canary"), "{loss}");
    }
    assert!(running.protocol.endpoints.load(Ordering::SeqCst) >= 3, "a fresh endpoint each time");
    running.stop().await;
}

#[tokio::test]
async fn endpoint_that_is_refused_for_good_ends_the_loop() {
    let protocol = WordProtocol::new("ws://127.0.0.1:1/");
    *protocol.refusal.lock().unwrap() = Some(refusal(ConnectRetry::Slow));
    let running = RunningLoop::start(protocol, IdSink::default(), SocketConnector::default());
    until("three attempts", || running.sink.losses().len() == 3).await;
    *running.protocol.refusal.lock().unwrap() = Some(refusal(ConnectRetry::Never));
    let failure = running.result().await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
}

#[tokio::test]
async fn jump_of_the_clock_checks_the_connection_at_once() {
    for is_dead in [false, true] {
        let server = SocketServer::start(move |socket| async move {
            if is_dead && socket.n == 0 {
                std::future::pending::<()>().await;
            }
            socket.drain().await;
        })
        .await;
        let quick = quick_timing();
        let ping_interval = if is_dead { quick.ping_interval } else { SHORT };
        let pong_deadline = Duration::from_millis(200);
        let timing = SocketTiming { ping_interval, pong_deadline, ..quick };
        let clock =
            SocketClock { check_interval: Duration::from_millis(100), ..SocketClock::default() };
        let connector = SocketConnector { clock, ..SocketConnector::default() };
        let protocol = WordProtocol { timing, ..WordProtocol::new(&server.url) };
        let running = RunningLoop::start(protocol, IdSink::default(), connector);
        until("a connection", || running.sink.connected() == 1).await;
        // The machine was suspended for an hour.
        running.connector.clock.ahead_ms.fetch_add(3_600_000, Ordering::SeqCst);
        if is_dead {
            until("a new connection", || running.sink.connected() == 2).await;
        } else {
            until_answered(&running, 8).await;
            assert_eq!(running.sink.losses(), [""; 0]);
            assert_eq!(server.accepted(), 1);
        }
        running.stop().await;
    }
}

#[tokio::test]
async fn stop_closes_the_connections_before_the_loop_returns() {
    // One connection drains and ignores the close frame, the other one answers.
    let server = SocketServer::start(|mut socket| async move {
        if socket.n == 0 {
            socket.send("bye").await;
            // Reads raw bytes until the end, and answers nothing.
            let mut bytes = [0; 1024];
            while socket.stream.get_mut().read(&mut bytes).await.is_ok_and(|read| read > 0) {}
            return;
        }
        socket.drain().await;
    })
    .await;
    let running = RunningLoop::simple(&server);
    until("two connections", || server.open.load(Ordering::SeqCst) == 2).await;
    running.stop().await;
    until("no connection", || server.open.load(Ordering::SeqCst) == 0).await;
    assert_eq!(server.accepted(), 2);
}
