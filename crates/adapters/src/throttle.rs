//! Decides what a rate limit applies to when the provider does not say so.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use monoco_core::delivery::ThrottleScope;
use tokio::time::Instant;

/// How long a rate limit without a delay is taken to last.
const DEFAULT_PAUSE: Duration = Duration::from_secs(30);

/// The last rate limit of a chat. A rate limit concerns the chat; while its pause lasts, one of
/// another chat concerns the whole tunnel.
#[derive(Debug, Default)]
pub(crate) struct ChatThrottle(Mutex<Option<(String, Instant)>>);

impl ChatThrottle {
    /// Records a rate limit of a chat and returns what it applies to.
    pub fn scope(&self, chat: &str, retry_after: Option<Duration>) -> ThrottleScope {
        let now = Instant::now();
        let until = now + retry_after.unwrap_or(DEFAULT_PAUSE);
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = match &*last {
            Some((other, until)) if other != chat && now < *until => ThrottleScope::Tunnel,
            _ => ThrottleScope::Target,
        };
        *last = Some((chat.to_owned(), until));
        scope
    }
}
