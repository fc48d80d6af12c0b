//! The stream: what each frame of the WebSocket means, and the notice about a gap.
//!
//! A message is acknowledged after it is stored. An event that is not stored is answered with
//! `LATER`, so that DingTalk sends it again. DingTalk has no history: what it sends while no
//! stream is connected is lost, so each gap becomes a notice. The time up to which the stream has
//! worked is stored every minute, so that a gap between two runs of the courier is known too.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::inbound::{InboundEvent, TunnelNotice};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;

use super::DingTalkAdapter;
use super::inbound::{gap_notice, read_event, read_message};
use super::wire::{self, ROBOT_TOPIC, StreamFrame};
use crate::socket::{
    ConnectError, ConnectionGap, FrameAction, SocketEndpoint, SocketFrame, SocketMessage,
    SocketProtocol, SocketTiming,
};
use crate::{InboundError, InboundPage, InboundSink};

/// The name under which the time of the last frame is stored.
const CURSOR: &str = "stream";

/// How often the time of the last frame is stored.
const CURSOR_INTERVAL: Duration = Duration::from_secs(60);

/// The stream of one tunnel.
pub(super) struct DingTalkStream<'a> {
    adapter: &'a DingTalkAdapter,
    /// When the last frame arrived, in milliseconds since 1970; 0: there was none.
    last_frame: AtomicI64,
}

impl<'a> DingTalkStream<'a> {
    pub(super) fn new(adapter: &'a DingTalkAdapter) -> Self {
        Self { adapter, last_frame: AtomicI64::new(0) }
    }

    /// Stores the time of the last frame every minute, until it is cancelled.
    pub(super) async fn store_progress(&self, sink: &dyn InboundSink) {
        let mut stored = 0;
        loop {
            tokio::time::sleep(CURSOR_INTERVAL).await;
            stored = self.store_last_frame(sink, stored).await;
        }
    }

    /// Stores the time of the last frame, unless it is `stored`. Returns what is stored.
    pub(super) async fn store_last_frame(&self, sink: &dyn InboundSink, stored: i64) -> i64 {
        let last = self.last_frame.load(Ordering::Relaxed);
        if last == stored {
            return stored;
        }
        let cursor = Some(last.to_string());
        let page = InboundPage { stream: CURSOR.to_owned(), cursor, ..InboundPage::default() };
        match sink.receive_page(page).await {
            Ok(_) => last,
            Err(error) => {
                tracing::warn!(%error, "cannot store the time of the last frame");
                stored
            }
        }
    }

    /// Returns the time of the last frame of an earlier run.
    async fn stored_last_frame(
        &self,
        sink: &dyn InboundSink,
    ) -> Result<Option<Timestamp>, InboundError> {
        let cursor = sink.cursor(CURSOR).await?;
        let ms = cursor.and_then(|text| text.parse().ok()).filter(|ms| *ms > 0);
        Ok(ms.map(Timestamp::from_ms))
    }

    fn system(frame: &StreamFrame) -> Vec<FrameAction> {
        match frame.headers.topic.as_str() {
            "ping" => {
                let answer = wire::ping_ack(&frame.headers.message_id, &frame.data_text());
                vec![FrameAction::Reply(SocketMessage::Text(answer))]
            }
            "disconnect" => {
                let data = frame.data_json().unwrap_or_default();
                let reason = data["reason"].as_str().unwrap_or("no reason given").to_owned();
                vec![FrameAction::Reconnect { reason, keep_old: true }]
            }
            _ => Vec::new(),
        }
    }

    fn callback(&self, frame: &StreamFrame, now: Timestamp) -> Vec<FrameAction> {
        let message_id = &frame.headers.message_id;
        if frame.headers.topic != ROBOT_TOPIC {
            let answer = wire::unknown_topic_ack(message_id);
            return vec![FrameAction::Reply(SocketMessage::Text(answer))];
        }
        let ack = SocketMessage::Text(wire::callback_ack(message_id));
        let Some(payload) = frame.data_json() else {
            let event = unreadable_notice(message_id, now);
            return vec![FrameAction::Receive { events: vec![event], ack }];
        };
        let message = read_message(&payload, self.adapter.robot_code());
        if let Some((kind, account, webhook)) = message.webhook {
            self.adapter.webhooks.insert(kind, account, webhook);
        }
        match message.event {
            Some(event) => vec![FrameAction::Receive { events: vec![event], ack }],
            None => vec![FrameAction::Reply(ack)],
        }
    }

    fn event(frame: &StreamFrame) -> Vec<FrameAction> {
        let id = &frame.headers.message_id;
        let ack = SocketMessage::Text(wire::event_ack(id, true));
        let later = SocketMessage::Text(wire::event_ack(id, false));
        let events = vec![read_event(frame)];
        vec![FrameAction::Receive { events, ack }, FrameAction::WhenUnstored(later)]
    }
}

#[async_trait]
impl SocketProtocol for DingTalkStream<'_> {
    async fn endpoint(&self) -> Result<SocketEndpoint, ConnectError> {
        self.adapter.api.open_stream().await
    }

    fn read_frame(&self, frame: SocketFrame<'_>, now: Timestamp) -> Vec<FrameAction> {
        self.last_frame.store(now.ms(), Ordering::Relaxed);
        let SocketFrame::Text(text) = frame else { return Vec::new() };
        let Ok(frame) = serde_json::from_str::<StreamFrame>(text) else {
            tracing::warn!(bytes = text.len(), "cannot parse a frame of the stream");
            return Vec::new();
        };
        match frame.kind.as_str() {
            "SYSTEM" => Self::system(&frame),
            "CALLBACK" => self.callback(&frame, now),
            "EVENT" => Self::event(&frame),
            _ => Vec::new(),
        }
    }

    /// The server pings by frames of its own, so a connection without any is replaced, also when
    /// it still answers our pings.
    fn timing(&self) -> SocketTiming {
        let silence = Duration::from_secs(self.adapter.config.max_silence_s);
        let timing = SocketTiming { traffic_deadline: Some(silence), ..SocketTiming::default() };
        timing.within(silence)
    }

    async fn catch_up(&self, sink: &dyn InboundSink, gap: ConnectionGap) -> Result<(), Failure> {
        let unavailable = |error: InboundError| Failure::Temporary {
            detail: error.to_string(),
            retry_after_ms: None,
            error_code: None,
        };
        let since = match gap.since {
            Some(since) => Some(since),
            None => self.stored_last_frame(sink).await.map_err(unavailable)?,
        };
        self.last_frame.fetch_max(gap.until.ms(), Ordering::Relaxed);
        let Some(since) = since.filter(|since| *since < gap.until) else { return Ok(()) };
        let results = sink.receive_events(vec![gap_notice(since, gap.until)]).await;
        for result in results {
            result.map_err(unavailable)?;
        }
        self.store_last_frame(sink, 0).await;
        Ok(())
    }
}

/// Reports a callback without a readable message.
fn unreadable_notice(message_id: &str, now: Timestamp) -> InboundEvent {
    InboundEvent::Notice(TunnelNotice {
        id: format!("unreadable:{}", message_id.chars().take(200).collect::<String>()),
        kind: "unreadable_message".to_owned(),
        session: None,
        by: None,
        detail: "DingTalk sent a message whose data is not JSON; it cannot be shown".to_owned(),
        at: Some(now),
    })
}
