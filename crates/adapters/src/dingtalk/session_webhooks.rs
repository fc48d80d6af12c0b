//! Session webhooks: URLs by which a chat can be answered without a token, for about 90 minutes.
//!
//! A program that knows the URL can write into the chat, so it is kept in memory only.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use monoco_core::config::Secret;
use monoco_core::did::EndpointKind;
use monoco_core::time::Timestamp;

/// How many chats have a session webhook at the same time.
const MAX_CHATS: usize = 10_000;

/// A session webhook is not used in its last seconds, so that it is valid when it arrives.
const MARGIN_MS: i64 = 10_000;

/// A URL that is valid until a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionWebhook {
    url: Secret,
    expires: Timestamp,
}

impl SessionWebhook {
    pub(super) fn new(url: String, expires: Timestamp) -> Self {
        Self { url: Secret::new(url), expires }
    }

    pub(super) fn url(&self) -> &Secret {
        &self.url
    }
}

/// The newest session webhook of each chat.
#[derive(Debug, Default)]
pub(super) struct SessionWebhooks(Mutex<WebhookTable>);

/// An account that answers are sent to.
type ReplyAccount = (EndpointKind, String);

#[derive(Debug, Default)]
struct WebhookTable {
    by_account: HashMap<ReplyAccount, (SessionWebhook, u64)>,
    /// The accounts by the time their webhook expires.
    by_expiry: BTreeMap<(Timestamp, u64), ReplyAccount>,
    added: u64,
}

impl SessionWebhooks {
    /// Keeps the webhook of a chat, unless the chat has one that is valid for longer.
    pub(super) fn insert(&self, kind: EndpointKind, account: String, webhook: SessionWebhook) {
        self.table().insert((kind, account), webhook);
    }

    /// Returns the webhook of a chat while it is valid.
    pub(super) fn get(
        &self,
        kind: EndpointKind,
        account: &str,
        now: Timestamp,
    ) -> Option<SessionWebhook> {
        let mut table = self.table();
        table.expire(now);
        let found = table.by_account.get(&(kind, account.to_owned()));
        found.map(|(webhook, _)| webhook.clone())
    }

    /// Forgets a webhook that DingTalk has rejected.
    pub(super) fn remove(&self, kind: EndpointKind, account: &str) {
        self.table().remove(&(kind, account.to_owned()));
    }

    fn table(&self) -> std::sync::MutexGuard<'_, WebhookTable> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WebhookTable {
    fn insert(&mut self, account: ReplyAccount, webhook: SessionWebhook) {
        let known = self.by_account.get(&account);
        if known.is_some_and(|(known, _)| known.expires > webhook.expires) {
            return;
        }
        self.remove(&account);
        if self.by_account.len() >= MAX_CHATS
            && let Some((_, first)) = self.by_expiry.pop_first()
        {
            self.by_account.remove(&first);
        }
        self.added += 1;
        self.by_expiry.insert((webhook.expires, self.added), account.clone());
        self.by_account.insert(account, (webhook, self.added));
    }

    fn remove(&mut self, account: &ReplyAccount) {
        if let Some((webhook, added)) = self.by_account.remove(account) {
            self.by_expiry.remove(&(webhook.expires, added));
        }
    }

    fn expire(&mut self, now: Timestamp) {
        let limit = Timestamp::from_ms(now.ms().saturating_add(MARGIN_MS));
        while let Some(first) = self.by_expiry.first_entry() {
            if first.key().0 > limit {
                return;
            }
            let account = first.remove();
            self.by_account.remove(&account);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(url: &str, expires: i64) -> SessionWebhook {
        SessionWebhook::new(url.to_owned(), Timestamp::from_ms(expires))
    }

    fn found(webhooks: &SessionWebhooks, account: &str, now: i64) -> Option<String> {
        let found = webhooks.get(EndpointKind::User, account, Timestamp::from_ms(now));
        found.map(|webhook| webhook.url().expose().to_owned())
    }

    #[test]
    fn a_webhook_is_used_until_shortly_before_it_expires() {
        let webhooks = SessionWebhooks::default();
        webhooks.insert(EndpointKind::User, "u1".to_owned(), webhook("a", 100_000));
        assert_eq!(found(&webhooks, "u1", 89_999).as_deref(), Some("a"));
        assert_eq!(found(&webhooks, "u2", 0), None);
        assert_eq!(webhooks.get(EndpointKind::Group, "u1", Timestamp::from_ms(0)), None);
        assert_eq!(found(&webhooks, "u1", 90_000), None);
        assert!(webhooks.table().by_expiry.is_empty());
    }

    #[test]
    fn a_chat_keeps_the_webhook_that_is_valid_for_longest() {
        let webhooks = SessionWebhooks::default();
        for (url, expires) in [("a", 50_000), ("b", 90_000), ("c", 60_000)] {
            webhooks.insert(EndpointKind::User, "u1".to_owned(), webhook(url, expires));
        }
        assert_eq!(found(&webhooks, "u1", 0).as_deref(), Some("b"));
        assert_eq!(webhooks.table().by_expiry.len(), 1);
        webhooks.remove(EndpointKind::User, "u1");
        assert_eq!(found(&webhooks, "u1", 0), None);
        assert!(webhooks.table().by_expiry.is_empty());
    }

    #[test]
    fn the_number_of_webhooks_is_bounded() {
        let webhooks = SessionWebhooks::default();
        let chats = i64::try_from(MAX_CHATS).unwrap();
        for chat in 0..chats + 5 {
            let expires = 1_000_000 + chat;
            webhooks.insert(EndpointKind::User, chat.to_string(), webhook("x", expires));
        }
        assert_eq!(webhooks.table().by_account.len(), MAX_CHATS);
        assert_eq!(webhooks.table().by_expiry.len(), MAX_CHATS);
        assert_eq!(found(&webhooks, "4", 0), None);
        assert!(found(&webhooks, "5", 0).is_some());
    }

    #[test]
    fn debug_output_hides_the_url() {
        assert!(!format!("{:?}", webhook("canary", 1)).contains("canary"));
    }
}
