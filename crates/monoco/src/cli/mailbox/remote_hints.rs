//! Hints of a courier on another machine that there may be a Mail to claim.
//!
//! A task follows the event stream of the courier on a connection of its own, and opens it again
//! after an outage. Hints may be lost, so the caller also polls: rarely while the stream is open.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use monoco_core::event::EventKind;
use monoco_core::retry::Backoff;
use monoco_courier::clock;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::wait::is_outage;
use crate::cli::client::Client;

/// A stream without a byte for this long is lost: the courier sends a comment every 15 s.
const MAX_SILENCE: Duration = Duration::from_secs(45);

/// Delays before the stream is opened again.
const RECONNECT_BACKOFF: Backoff =
    Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(30) };

/// Events after which there can be a new Mail, or one that can be claimed again.
const KINDS: [EventKind; 6] = [
    EventKind::Merged,
    EventKind::Restored,
    EventKind::Moved,
    EventKind::Failed,
    EventKind::LeaseEnded,
    EventKind::Marked,
];

/// Longest line of which the kind of an event is read, in bytes.
const MAX_LINE: usize = 256;

/// What the stream has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StreamState {
    is_open: bool,
    /// Events, and how often the stream was opened: meanwhile events may have been missed.
    hints: u64,
}

/// Follows the events of a courier until it is dropped.
#[derive(Debug)]
pub struct RemoteHints {
    state: watch::Receiver<StreamState>,
    seen: u64,
    _task: JoinSet<()>,
}

impl RemoteHints {
    pub fn start(client: Client) -> Self {
        let (sender, state) = watch::channel(StreamState::default());
        let mut task = JoinSet::new();
        task.spawn(follow(client, sender));
        Self { state, seen: 0, _task: task }
    }

    /// Whether the stream is open, so that it is enough to poll rarely.
    pub fn is_open(&self) -> bool {
        self.state.borrow().is_open
    }

    /// Whether there was a hint since the last call.
    pub fn take(&mut self) -> bool {
        let hints = self.state.borrow_and_update().hints;
        std::mem::replace(&mut self.seen, hints) != hints
    }

    /// Waits until the stream is opened, lost, or has an event.
    pub async fn changed(&mut self) {
        if self.state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Opens the stream again and again. Ends when the token may not read events.
async fn follow(client: Client, state: watch::Sender<StreamState>) {
    let mut failures = 0;
    while !state.is_closed() {
        match client.follow(None).await {
            Ok(stream) => {
                state.send_modify(|state| {
                    state.is_open = true;
                    state.hints += 1;
                });
                if read(stream, &state).await {
                    failures = 0;
                }
                state.send_modify(|state| state.is_open = false);
            }
            Err(failure) if is_outage(&failure) => {}
            Err(_) => return,
        }
        failures += 1;
        tokio::time::sleep(RECONNECT_BACKOFF.delay(failures, clock::jitter())).await;
    }
}

/// Reads a stream until it ends or is silent. Returns whether anything was received.
async fn read(mut stream: Incoming, state: &watch::Sender<StreamState>) -> bool {
    let mut lines = KindReader::default();
    let mut is_alive = false;
    while let Ok(Some(Ok(frame))) = timeout(MAX_SILENCE, stream.frame()).await {
        is_alive = true;
        let Some(data) = frame.data_ref() else { continue };
        let hints = lines.count_hints(data);
        if hints > 0 {
            state.send_modify(|state| state.hints += hints);
        }
    }
    is_alive
}

/// Reads the kinds of events from a stream that is cut anywhere. The data of an event can be
/// long and is skipped.
#[derive(Debug, Default)]
struct KindReader {
    line: Vec<u8>,
}

impl KindReader {
    /// Counts the events of [`KINDS`] that end in `data`.
    fn count_hints(&mut self, data: &[u8]) -> u64 {
        let mut hints = 0;
        for byte in data {
            match byte {
                b'\n' => {
                    let kind = self.line.strip_prefix(b"event:").map(<[u8]>::trim_ascii);
                    let is_hint =
                        |kind: &[u8]| KINDS.iter().any(|it| it.as_str().as_bytes() == kind);
                    hints += u64::from(kind.is_some_and(is_hint));
                    self.line.clear();
                }
                _ if self.line.len() < MAX_LINE => self.line.push(*byte),
                _ => {}
            }
        }
        hints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_from_a_stream_that_is_cut_anywhere() {
        let long = "x".repeat(3 * MAX_LINE);
        let text = format!(
            "id: 7\nevent: merged\ndata: {{\"kind\":\"read\",\"text\":\"{long}\"}}\n\n: keep-alive\n\n\
             id: 8\nevent: read\ndata: event: merged\n\nevent:lease_ended\r\ndata: {{}}\n\n"
        );
        for size in [1, 2, 7, 1_000_000] {
            let mut reader = KindReader::default();
            let hints: u64 =
                text.as_bytes().chunks(size).map(|part| reader.count_hints(part)).sum();
            assert_eq!(hints, 2, "{size}");
        }
        assert_eq!(KindReader::default().count_hints(b"event: merged"), 0, "not complete");
    }
}
