//! Frames that are stored together, and which of them may be acknowledged.

use std::ops::Range;

use monoco_core::inbound::InboundEvent;

use super::SocketMessage;
use crate::InboundError;

/// The id of a connection in the loop.
pub(super) type SocketId = u64;

/// Events of several frames, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct FrameBatch {
    events: Vec<InboundEvent>,
    acks: Vec<PendingAck>,
}

#[derive(Debug)]
struct PendingAck {
    socket: SocketId,
    events: Range<usize>,
    ack: SocketMessage,
    /// Sent instead when the events cannot be stored.
    nack: Option<SocketMessage>,
}

/// What the results of a batch mean for its connections.
#[derive(Debug, Default, PartialEq)]
pub(super) struct BatchOutcome {
    /// The acknowledgements, and the messages about frames that are not stored.
    pub acks: Vec<(SocketId, SocketMessage)>,
    /// Connections that delivered an event that is new.
    pub progress: Vec<SocketId>,
    /// The number of frames that are not acknowledged, and the error of the first one.
    pub unstored: usize,
    pub error: Option<InboundError>,
    /// The number of events that exceed a limit and are dropped.
    pub unusable: usize,
}

impl FrameBatch {
    pub fn push(&mut self, socket: SocketId, events: Vec<InboundEvent>, ack: SocketMessage) {
        let begin = self.events.len();
        self.events.extend(events);
        self.acks.push(PendingAck { socket, events: begin..self.events.len(), ack, nack: None });
    }

    /// Sets what is sent when the events of the last frame cannot be stored.
    pub fn set_nack(&mut self, nack: SocketMessage) {
        if let Some(last) = self.acks.last_mut() {
            last.nack = Some(nack);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.acks.is_empty()
    }

    pub fn take_events(&mut self) -> Vec<InboundEvent> {
        std::mem::take(&mut self.events)
    }

    /// Decides which frames are acknowledged: those whose events are all stored, or can never be
    /// stored. A missing result counts as not stored.
    pub fn finish(self, results: &[Result<bool, InboundError>]) -> BatchOutcome {
        let mut outcome = BatchOutcome::default();
        for PendingAck { socket, events, ack, nack } in self.acks {
            let count = events.len();
            let results = results.get(events).unwrap_or_default();
            let is_unusable =
                |result: &&Result<_, _>| matches!(result, Err(InboundError::Unusable(_)));
            outcome.unusable += results.iter().filter(is_unusable).count();
            let problem = results.iter().find_map(|result| match result {
                Err(error @ (InboundError::Full | InboundError::Unavailable(_))) => Some(error),
                Err(InboundError::Unusable(_)) | Ok(_) => None,
            });
            if results.contains(&Ok(true)) && !outcome.progress.contains(&socket) {
                outcome.progress.push(socket);
            }
            if problem.is_some() || results.len() < count {
                outcome.unstored += 1;
                outcome.error = outcome.error.or_else(|| problem.cloned());
                outcome.acks.extend(nack.map(|nack| (socket, nack)));
            } else {
                outcome.acks.push((socket, ack));
            }
        }
        outcome
    }
}
