//! Receipts in chats: which reaction the courier puts on a message when it was kept, when its Mail
//! was completed, and when its Mail became a dead letter.
//!
//! The event log says what happened, so a receipt has no state of its own: a reader of the log
//! that continues after a crash finds the same receipts again, and repeating a reaction changes
//! nothing at any provider.

use std::time::Duration;

use crate::config::{ConfigSection, InvalidConfig};
use crate::did::TunnelId;
use crate::event::{Event, EventKind};
use crate::mail::{Mail, MailId};
use crate::names::variant_names;
use crate::object::ObjId;
use crate::retry::{Backoff, Failure, Jitter, RetryPolicy};
use crate::time::Timestamp;

/// A receipt that is older is dropped. So a provider that is slow or down has a bounded backlog,
/// and a tunnel whose receipts are turned on again does not react to old messages.
pub const MAX_RECEIPT_AGE: Duration = Duration::from_secs(3600);

/// A reaction is attempted 5 times, after 2 s, 4 s, 8 s and 16 s.
const REACTION_RETRY: RetryPolicy = RetryPolicy {
    backoff: Backoff { first: Duration::from_secs(2), longest: Duration::from_secs(60) },
    max_attempts: Some(5),
    give_up_after: None,
};

/// A reaction by the name that the config uses. Each provider has its own emoji for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reaction {
    Eyes,
    Okay,
    Cross,
    ThumbsUp,
    ThumbsDown,
}

variant_names! { Reaction:
    Eyes = "eyes", Okay = "ok", Cross = "cross", ThumbsUp = "thumbs_up",
    ThumbsDown = "thumbs_down",
}

/// The reactions of one tunnel; `None`: no receipt of this kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChatReceipts {
    /// The message is stored.
    pub kept: Option<Reaction>,
    /// A workspace has completed the Mail with the message.
    pub done: Option<Reaction>,
    /// The Mail with the message became a dead letter of a workspace.
    pub dead: Option<Reaction>,
}

/// A receipt that an event asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueReceipt {
    pub reaction: Reaction,
    pub target: ReceiptTarget,
}

/// The messages that a receipt is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiptTarget {
    /// One message, by its external id.
    Message(String),
    /// All messages of a Mail, which [`messages_of`] lists.
    MailObject(ObjId),
}

impl ChatReceipts {
    /// Reads the section `receipt` of a tunnel.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] for an unknown key or the name of an unknown reaction.
    pub fn read(section: &ConfigSection<'_>) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&["kept", "done", "dead"])?;
        let names = Reaction::ALL.map(|reaction| (reaction.as_str(), reaction));
        Ok(Self {
            kept: section.one_of("kept", &names)?,
            done: section.one_of("done", &names)?,
            dead: section.one_of("dead", &names)?,
        })
    }

    /// Tells whether the tunnel has no receipts.
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the receipt that an event asks for; `None` when the event is about another tunnel
    /// or provider, asks for no receipt, or is too old.
    ///
    /// The Mail of [`ReceiptTarget::MailObject`] can belong to another tunnel of the provider.
    pub fn due(
        &self,
        event: &Event,
        tunnel: &TunnelId,
        provider: &str,
        now: Timestamp,
    ) -> Option<DueReceipt> {
        if is_too_old(event.at, now) {
            return None;
        }
        let reaction = match event.kind {
            EventKind::Received => self.kept?,
            EventKind::Completed => self.done?,
            EventKind::Dead => self.dead?,
            _ => return None,
        };
        let text = |key: &str| event.detail.get(key).and_then(|value| value.as_str());
        let target = if event.kind == EventKind::Received {
            let of_tunnel = text("tunnel")? == tunnel.as_str();
            ReceiptTarget::Message(text("external_id").filter(|_| of_tunnel)?.to_owned())
        } else {
            // Deliveries have dead letters as well, but their events name no Mail.
            let mail: MailId = text("mail")?.parse().ok()?;
            let of_provider = mail.provider() == provider;
            ReceiptTarget::MailObject(event.msg_id.filter(|_| of_provider)?)
        };
        Some(DueReceipt { reaction, target })
    }
}

/// Tells whether a receipt for an event at `at` is dropped.
pub fn is_too_old(at: Timestamp, now: Timestamp) -> bool {
    now.since(at) > MAX_RECEIPT_AGE
}

/// Returns the external ids of the messages of a Mail that a receipt is for; none when the Mail
/// belongs to another tunnel. A message that corrects another one has no place in the chat.
pub fn messages_of(mail: &Mail, tunnel: &TunnelId) -> Vec<String> {
    if mail.header.tunnel != *tunnel {
        return Vec::new();
    }
    let messages = mail.messages.iter().filter(|message| message.corrects.is_none());
    messages.map(|message| message.id.clone()).collect()
}

/// Returns the delay before a failed reaction is attempted again; `None` when it is given up.
/// `attempts` counts those that failed. A lost answer is no reason to give up: the reaction can be
/// repeated.
pub fn next_attempt(failure: &Failure, attempts: u32, jitter: Jitter) -> Option<Duration> {
    let retry_after = match failure {
        Failure::Permanent { .. } => return None,
        Failure::Temporary { retry_after_ms, .. } => retry_after_ms.map(Duration::from_millis),
        Failure::Unknown { .. } => None,
    };
    REACTION_RETRY.next_delay(attempts, Duration::ZERO, retry_after, jitter)
}

#[cfg(test)]
mod tests;
