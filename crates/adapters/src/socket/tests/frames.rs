//! Storing and acknowledging frames.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::SinkExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio_tungstenite::tungstenite::Message;

use super::support::{IdSink, RunningLoop, SocketServer, WordProtocol, until};
use crate::socket::{MAX_FRAME_BYTES, SocketConnector};

#[tokio::test]
async fn frames_that_have_arrived_are_stored_as_one_batch() {
    const FRAMES: usize = 10_000;
    let acks = Arc::new(Mutex::new(Vec::new()));
    let server = SocketServer::start({
        let acks = acks.clone();
        move |mut socket| {
            let acks = acks.clone();
            async move {
                for n in 0..FRAMES {
                    socket.stream.feed(Message::text(format!("m:{n}"))).await.unwrap();
                }
                socket.stream.flush().await.unwrap();
                while let Some(ack) = socket.text().await {
                    acks.lock().unwrap().push(ack);
                }
            }
        }
    })
    .await;
    let begin = Instant::now();
    let running = RunningLoop::simple(&server);
    until("all frames acknowledged", || acks.lock().unwrap().len() == FRAMES).await;
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let batches = running.sink.batches.load(Ordering::SeqCst);
    assert!(batches < FRAMES / 10, "{batches} batches for {FRAMES} frames");
    let want: Vec<_> = (0..FRAMES).map(|n| n.to_string()).collect();
    assert_eq!(*running.sink.ids.lock().unwrap(), want, "stored in the order of arrival");
    assert_eq!(acks.lock().unwrap()[FRAMES - 1], format!("a:{}", FRAMES - 1));
    running.stop().await;
}

#[tokio::test]
async fn frame_is_stored_before_it_is_acknowledged() {
    let acks = Arc::new(Mutex::new(Vec::new()));
    let server = SocketServer::start({
        let acks = acks.clone();
        move |mut socket| {
            let acks = acks.clone();
            async move {
                socket.send("m:1").await;
                let ack = socket.text().await;
                acks.lock().unwrap().push(ack);
                socket.drain().await;
            }
        }
    })
    .await;
    let sink = IdSink { delay: Duration::from_millis(200), ..IdSink::default() };
    let protocol = WordProtocol::new(&server.url);
    let running = RunningLoop::start(protocol, sink, SocketConnector::default());
    let is_early = || !acks.lock().unwrap().is_empty() && running.sink.count() == 0;
    until("the batch stored", || {
        assert!(!is_early(), "acknowledged before it was stored");
        running.sink.count() == 1
    })
    .await;
    until("the frame acknowledged", || !acks.lock().unwrap().is_empty()).await;
    assert_eq!(*acks.lock().unwrap(), [Some("a:1".to_owned())]);
    running.stop().await;
}

#[tokio::test]
async fn unstored_frame_is_not_acknowledged_and_the_connection_goes_on() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let server = SocketServer::start({
        let heard = heard.clone();
        move |mut socket| {
            let heard = heard.clone();
            async move {
                socket.send("m:1").await;
                // The answer shows that the frame before it was processed.
                socket.send("ask:still-there").await;
                while let Some(text) = socket.text().await {
                    heard.lock().unwrap().push(text.clone());
                    if text == "again" {
                        socket.send("m:1").await;
                    }
                }
            }
        }
    })
    .await;
    let sink = IdSink::default();
    sink.is_down.store(true, Ordering::SeqCst);
    let protocol = WordProtocol { own_ping: true, ..WordProtocol::new(&server.url) };
    let running = RunningLoop::start(protocol, sink, SocketConnector::default());
    until("the answer", || !heard.lock().unwrap().is_empty()).await;
    until("the batch tried", || running.sink.batches.load(Ordering::SeqCst) > 0).await;
    assert_eq!(*heard.lock().unwrap(), ["still-there"], "no acknowledgement");
    assert_eq!((running.sink.count(), server.accepted()), (0, 1));
    running.stop().await;
}

#[tokio::test]
async fn provider_repeats_what_was_not_stored_and_nothing_is_lost() {
    let acks = Arc::new(Mutex::new(Vec::new()));
    let server = SocketServer::start({
        let acks = acks.clone();
        move |mut socket| {
            let acks = acks.clone();
            async move {
                // Repeats all unacknowledged frames on every connection, then drops it.
                let open: Vec<_> = (0..20).map(|n| format!("a:{n}")).collect();
                let open = open.into_iter().filter(|ack| !acks.lock().unwrap().contains(ack));
                let open: Vec<_> = open.collect();
                for ack in open.iter().rev() {
                    socket.send(&ack.replacen('a', "m", 1)).await;
                }
                if open.is_empty() {
                    socket.drain().await;
                    return;
                }
                socket.send("ask:end").await;
                while let Some(text) = socket.text().await {
                    if text == "end" {
                        break;
                    }
                    acks.lock().unwrap().push(text);
                }
                // Half of the acknowledgements are read late, or get lost with the connection.
                for _ in 0..10 {
                    if let Ok(Some(text)) =
                        tokio::time::timeout(Duration::from_millis(50), socket.text()).await
                    {
                        acks.lock().unwrap().push(text);
                    }
                }
            }
        }
    })
    .await;
    let sink = IdSink::default();
    sink.is_down.store(true, Ordering::SeqCst);
    let protocol = WordProtocol::new(&server.url);
    let running = RunningLoop::start(protocol, sink, SocketConnector::default());
    until("two connections without a store", || server.accepted() >= 2).await;
    assert_eq!(running.sink.count(), 0);
    running.sink.is_down.store(false, Ordering::SeqCst);
    until("all acknowledged", || acks.lock().unwrap().len() >= 20).await;
    assert_eq!(running.sink.count(), 20, "each is stored once");
    running.stop().await;
}

#[tokio::test]
async fn event_over_a_limit_is_acknowledged_because_a_repetition_would_not_help() {
    let acks = Arc::new(Mutex::new(Vec::new()));
    let server = SocketServer::start({
        let acks = acks.clone();
        move |mut socket| {
            let acks = acks.clone();
            async move {
                socket.send("m:huge").await;
                socket.send("m:1").await;
                while let Some(text) = socket.text().await {
                    acks.lock().unwrap().push(text);
                }
            }
        }
    })
    .await;
    let running = RunningLoop::simple(&server);
    until("both acknowledged", || *acks.lock().unwrap() == ["a:huge", "a:1"]).await;
    assert_eq!(*running.sink.ids.lock().unwrap(), ["1"]);
    running.stop().await;
}

#[tokio::test]
async fn connection_dropped_inside_a_frame_is_replaced() {
    let server = SocketServer::start(|mut socket| async move {
        socket.send(&format!("m:{}", socket.n)).await;
        if socket.n == 0 {
            // The head of a text frame of 100 bytes, and 5 of them.
            let raw = socket.stream.get_mut();
            raw.write_all(&[0x81, 100, b'm', b':', b'x', b'x', b'x']).await.unwrap();
            raw.shutdown().await.unwrap();
            return;
        }
        socket.drain().await;
    })
    .await;
    let running = RunningLoop::simple(&server);
    until("the second message", || running.sink.count() == 2).await;
    assert_eq!(*running.sink.ids.lock().unwrap(), ["0", "1"]);
    assert_eq!(running.sink.losses().len(), 1);
    running.stop().await;
}

#[tokio::test]
async fn frame_over_the_limit_ends_the_connection() {
    let server = SocketServer::start(|mut socket| async move {
        if socket.n == 0 {
            let huge = "x".repeat(MAX_FRAME_BYTES + 1);
            let _ = socket.stream.send(Message::text(huge)).await;
        } else {
            let largest = format!("m:{}", "y".repeat(MAX_FRAME_BYTES - 2));
            socket.send(&largest).await;
        }
        socket.drain().await;
    })
    .await;
    let running = RunningLoop::simple(&server);
    until("the frame of the largest size", || running.sink.count() == 1).await;
    let losses = running.sink.losses();
    assert!(losses.len() == 1 && losses[0].contains("at most 4194304 bytes"), "{losses:?}");
    running.stop().await;
}

#[tokio::test]
async fn stop_frame_stores_what_came_before_and_ends_the_loop() {
    let server = SocketServer::start(|mut socket| async move {
        socket.send("m:1").await;
        socket.send("stop").await;
        socket.drain().await;
    })
    .await;
    let running = RunningLoop::simple(&server);
    let sink = running.sink.clone();
    assert_eq!(running.result().await.unwrap_err().detail(), "link disabled");
    assert_eq!(*sink.ids.lock().unwrap(), ["1"]);
    until("the connection closed", || server.open.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn messages_survive_drops_and_duplicates_and_are_stored_once() {
    const MESSAGES: usize = 10_000;
    const PER_CONNECTION: usize = 200;
    let acked = Arc::new(Mutex::new(HashSet::new()));
    let server = SocketServer::start({
        let acked = acked.clone();
        move |mut socket| {
            let acked = acked.clone();
            async move {
                let open: Vec<_> = {
                    let acked = acked.lock().unwrap();
                    let open = (0..MESSAGES).map(|n| format!("a:{n}"));
                    open.filter(|ack| !acked.contains(ack)).take(PER_CONNECTION).collect()
                };
                if open.is_empty() {
                    socket.drain().await;
                    return;
                }
                for ack in open.iter().chain(open.iter().step_by(3)) {
                    let message = Message::text(ack.replacen('a', "m", 1));
                    socket.stream.feed(message).await.unwrap();
                }
                socket.stream.flush().await.unwrap();
                // Drops the connection without a close frame, with acknowledgements unread.
                for _ in 0..PER_CONNECTION - 10 {
                    let Some(ack) = socket.text().await else { return };
                    acked.lock().unwrap().insert(ack);
                }
            }
        }
    })
    .await;
    let running = RunningLoop::simple(&server);
    until("all acknowledged", || acked.lock().unwrap().len() == MESSAGES).await;
    assert_eq!(running.sink.count(), MESSAGES, "nothing lost and nothing doubled");
    assert!(server.accepted() > MESSAGES / PER_CONNECTION);
    assert!(server.most_open.load(Ordering::SeqCst) <= 2);
    running.stop().await;
}
