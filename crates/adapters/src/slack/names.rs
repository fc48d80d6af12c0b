//! Names of accounts, chats and groups of accounts: a bounded cache, filled by lookups.
//!
//! A message is never held back for a name. What is not known is looked up for at most 1.5 s
//! before the message is stored; a lookup that fails leaves the id, and is not repeated for a
//! while.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::client::{ApiErrorKind, SlackApiError, SlackClient};
use super::wire::{ApiReply, list, text};

/// How long a name is used before it is looked up again.
const NAME_TIME: Duration = Duration::from_secs(3600);

/// How long an id without a name is not looked up again.
const NO_NAME_TIME: Duration = Duration::from_secs(600);

/// How long lookups stop after a failure of Slack.
const FAILURE_TIME: Duration = Duration::from_secs(30);

/// Most names that are kept, about 1 MiB.
const MAX_NAMES: usize = 10_000;

/// How long the lookups for one batch of events may take. Slack waits 3 s for an
/// acknowledgement.
pub(super) const LOOKUP_TIME: Duration = Duration::from_millis(1500);

/// Most lookups for one batch of events.
const MAX_LOOKUPS: usize = 40;

/// How many lookups run at the same time.
const PARALLEL_LOOKUPS: usize = 8;

/// The names that are known.
#[derive(Debug, Default)]
pub(super) struct NameCache {
    entries: Mutex<HashMap<String, NameEntry>>,
    /// Until when nothing is looked up, after a failure.
    paused_until: Mutex<Option<Instant>>,
}

#[derive(Clone, Debug)]
struct NameEntry {
    name: Option<String>,
    expires: Instant,
}

impl NameCache {
    /// Returns a name, also one that has expired: an old name is better than an id.
    pub fn find(&self, id: &str) -> Option<String> {
        self.entries().get(id)?.name.clone()
    }

    /// Tells whether a lookup of `id` may give a name.
    pub fn needs_lookup(&self, id: &str) -> bool {
        self.is_unknown_at(id, Instant::now())
    }

    fn is_unknown_at(&self, id: &str, now: Instant) -> bool {
        self.entries().get(id).is_none_or(|entry| entry.expires <= now)
    }

    pub fn insert(&self, id: &str, name: Option<String>) {
        self.insert_at(id, name, Instant::now());
    }

    fn insert_at(&self, id: &str, name: Option<String>, now: Instant) {
        let life = if name.is_some() { NAME_TIME } else { NO_NAME_TIME };
        let mut entries = self.entries();
        if entries.len() >= MAX_NAMES && !entries.contains_key(id) {
            entries.retain(|_, entry| entry.expires > now);
            if entries.len() >= MAX_NAMES {
                entries.clear();
            }
        }
        entries.insert(id.to_owned(), NameEntry { name, expires: now + life });
    }

    /// Looks up the names of `ids`, as far as time allows.
    pub async fn look_up(&self, client: &SlackClient, ids: BTreeSet<String>) {
        let deadline = Instant::now() + LOOKUP_TIME;
        let wanted = ids.into_iter().filter(|id| self.needs_lookup(id)).take(MAX_LOOKUPS);
        let wanted: Vec<_> = wanted.collect();
        for ids in wanted.chunks(PARALLEL_LOOKUPS) {
            if self.is_paused() {
                return;
            }
            let lookups = join_all(ids.iter().map(|id| self.look_up_one(client, id)));
            if timeout_at(deadline, lookups).await.is_err() {
                self.pause(FAILURE_TIME);
                return;
            }
        }
    }

    async fn look_up_one(&self, client: &SlackClient, id: &str) {
        let found = match id.as_bytes().first() {
            Some(b'U' | b'W') => client.read("users.info", &[("user", id)]).await.map(user_name),
            Some(b'C' | b'G' | b'D') => {
                client.read("conversations.info", &[("channel", id)]).await.map(chat_name)
            }
            Some(b'S') => self.look_up_groups(client, id).await,
            _ => Ok(None),
        };
        match found {
            Ok(name) => self.insert(id, name),
            Err(error) => self.failed(id, &error),
        }
    }

    /// Reads all groups at once, because Slack has no method for one.
    async fn look_up_groups(
        &self,
        client: &SlackClient,
        id: &str,
    ) -> Result<Option<String>, SlackApiError> {
        let reply = client.read("usergroups.list", &[]).await?;
        for group in list(reply.value(), "usergroups") {
            if let Some(id) = text(group, "id") {
                self.insert(id, text(group, "handle").map(str::to_owned));
            }
        }
        Ok(self.find(id))
    }

    fn failed(&self, id: &str, error: &SlackApiError) {
        match error.kind {
            // Without the scope, or for an account that is not visible, there is no name.
            ApiErrorKind::Rejected | ApiErrorKind::Format => self.insert(id, None),
            ApiErrorKind::Throttled { retry_after } => {
                self.pause(retry_after.unwrap_or(FAILURE_TIME).min(NO_NAME_TIME));
            }
            ApiErrorKind::Transport | ApiErrorKind::Ambiguous | ApiErrorKind::NoVerdict => {
                self.pause(FAILURE_TIME);
            }
        }
    }

    fn pause(&self, time: Duration) {
        let mut paused = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        *paused = Some(Instant::now() + time);
    }

    fn is_paused(&self) -> bool {
        let paused = self.paused_until.lock().unwrap_or_else(PoisonError::into_inner);
        paused.is_some_and(|until| Instant::now() < until)
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<String, NameEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the name that Slack shows for an account.
fn user_name(reply: ApiReply) -> Option<String> {
    let user = &reply.value()["user"];
    let profile = &user["profile"];
    let names = [
        text(profile, "display_name"),
        text(profile, "real_name"),
        text(user, "real_name"),
        text(user, "name"),
    ];
    names.into_iter().flatten().next().map(str::to_owned)
}

fn chat_name(reply: ApiReply) -> Option<String> {
    text(&reply.value()["channel"], "name").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::{Egress, EgressTarget};
    use crate::scripted::{ScriptedAct, ScriptedServer};

    #[tokio::test]
    async fn lookup_without_an_answer_pauses_lookups() {
        let server = ScriptedServer::new([ScriptedAct::Silence]);
        let base = format!("http://127.0.0.1:{}/api/", server.port());
        let base = EgressTarget::parse(&base, true).unwrap();
        let secret = monoco_core::config::Secret::new("xoxb-canary");
        let token = Some(monoco_core::config::SecretSource::Value(secret));
        let client = SlackClient::new(Egress::new().unwrap(), base, token.clone(), token);
        let cache = NameCache::default();
        assert!(!cache.is_paused());
        cache.look_up(&client, BTreeSet::from(["U1".to_owned()])).await;
        assert!(cache.is_paused());
        assert!(cache.needs_lookup("U1"), "it may have a name");
    }

    #[test]
    fn names_expire_and_the_cache_is_bounded() {
        let cache = NameCache::default();
        let start = Instant::now();
        assert!(cache.is_unknown_at("U1", start));
        cache.insert_at("U1", Some("Ann".to_owned()), start);
        cache.insert_at("U2", None, start);
        let is_unknown = |id: &str, after| cache.is_unknown_at(id, start + after);
        let almost = NO_NAME_TIME - Duration::from_secs(1);
        assert!(!is_unknown("U1", almost) && !is_unknown("U2", almost));
        assert!(!is_unknown("U1", NO_NAME_TIME) && is_unknown("U2", NO_NAME_TIME));
        assert!(is_unknown("U1", NAME_TIME));
        assert_eq!(cache.find("U1").as_deref(), Some("Ann"), "better than an id");
        for n in 0..2 * MAX_NAMES {
            cache.insert_at(&format!("U{n}"), Some(n.to_string()), start);
        }
        assert!(cache.entries().len() <= MAX_NAMES);
    }
}
