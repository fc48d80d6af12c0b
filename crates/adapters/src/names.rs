//! Names of accounts and chats, for providers whose events have ids only: a bounded cache, filled
//! by lookups, and the events that wait for names.
//!
//! A message is never held back for a name. What is not known is looked up for at most 1.5 s
//! before the message is stored; a lookup that fails leaves the id, and is not repeated for a
//! while.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use monoco_core::inbound::InboundEvent;
use tokio::time::{Instant, timeout_at};

/// How long a name is used before it is looked up again.
const NAME_TIME: Duration = Duration::from_secs(3600);

/// How long an id without a name is not looked up again.
const NO_NAME_TIME: Duration = Duration::from_secs(600);

/// How long lookups stop after a failure of the provider.
const FAILURE_TIME: Duration = Duration::from_secs(30);

/// Most names that are kept, about 1 MiB.
const MAX_NAMES: usize = 10_000;

/// How long the lookups for one batch of events may take. Slack and Lark wait 3 s for an
/// acknowledgement.
const LOOKUP_TIME: Duration = Duration::from_millis(1500);

/// Most lookups for one batch of events.
const MAX_LOOKUPS: usize = 40;

/// How many lookups run at the same time.
const PARALLEL_LOOKUPS: usize = 8;

/// Most events that wait for names. Further ones keep the ids.
const MAX_UNNAMED: usize = 10_000;

/// Asks a provider for names.
#[async_trait]
pub(crate) trait NameSource: Sync {
    /// Looks up one id once. When the provider answers with several names, those of other ids can
    /// be put into `cache`.
    async fn look_up(&self, cache: &NameCache, id: &str) -> NameAnswer;
}

/// The answer to one lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameAnswer {
    /// The name; `None` when the id has none, or the account is not visible.
    Known(Option<String>),
    /// The provider cannot answer now. Holds how long it asks to wait.
    Later(Option<Duration>),
}

/// The names that are known.
#[derive(Debug, Default)]
pub(crate) struct NameCache {
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
    pub async fn look_up(&self, source: &dyn NameSource, ids: BTreeSet<String>) {
        let deadline = Instant::now() + LOOKUP_TIME;
        let wanted = ids.into_iter().filter(|id| self.needs_lookup(id)).take(MAX_LOOKUPS);
        let wanted: Vec<_> = wanted.collect();
        for ids in wanted.chunks(PARALLEL_LOOKUPS) {
            if self.is_paused() {
                return;
            }
            let lookups = join_all(ids.iter().map(|id| self.look_up_one(source, id)));
            if timeout_at(deadline, lookups).await.is_err() {
                self.pause(FAILURE_TIME);
                return;
            }
        }
    }

    async fn look_up_one(&self, source: &dyn NameSource, id: &str) {
        match source.look_up(self, id).await {
            NameAnswer::Known(name) => self.insert(id, name),
            NameAnswer::Later(after) => self.pause(after.unwrap_or(FAILURE_TIME).min(NO_NAME_TIME)),
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

/// Gives names to ids while a text is converted.
pub(crate) struct TextContext<'a> {
    find: &'a dyn Fn(&str) -> Option<String>,
    missing: RefCell<BTreeSet<String>>,
    mentions: RefCell<Vec<String>>,
}

impl<'a> TextContext<'a> {
    /// `find` returns the name of an account, a chat or a group of accounts.
    pub fn new(find: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self { find, missing: RefCell::default(), mentions: RefCell::default() }
    }

    /// Returns the name of `id`, or `None` and remembers that it is missing.
    pub fn name(&self, id: &str) -> Option<String> {
        let name = (self.find)(id);
        if name.is_none() {
            self.missing.borrow_mut().insert(id.to_owned());
        }
        name
    }

    /// Returns the text for a mentioned account. `label` is the name that the payload has.
    pub fn mention(&self, id: &str, label: Option<&str>) -> String {
        let label = label.map(|label| label.trim_start_matches('@').to_owned());
        let name = label.filter(|label| !label.is_empty()).or_else(|| self.name(id));
        let name = name.unwrap_or_else(|| id.to_owned());
        self.add_mention(&name);
        format!("@{name}")
    }

    /// Returns the text for a mentioned chat.
    pub fn chat(&self, id: &str, label: Option<&str>) -> String {
        let label = label.map(str::to_owned).filter(|label| !label.is_empty());
        format!("#{}", label.or_else(|| self.name(id)).unwrap_or_else(|| id.to_owned()))
    }

    /// Returns the text for a mention of many accounts, such as `@here`.
    pub fn broadcast(&self, range: &str) -> String {
        self.add_mention(range);
        format!("@{range}")
    }

    fn add_mention(&self, name: &str) {
        let mut mentions = self.mentions.borrow_mut();
        if !mentions.iter().any(|known| known == name) {
            mentions.push(name.to_owned());
        }
    }

    pub fn take_mentions(&self) -> Vec<String> {
        self.mentions.take()
    }

    /// Returns the ids without a name.
    pub fn take_missing(&self) -> BTreeSet<String> {
        self.missing.take()
    }
}

/// Events without all their names, with what is needed to convert them again.
#[derive(Debug)]
pub(crate) struct UnnamedEvents<P>(Mutex<HashMap<String, UnnamedEvent<P>>>);

#[derive(Debug)]
struct UnnamedEvent<P> {
    payload: P,
    missing: BTreeSet<String>,
}

/// Events whose missing names are looked up now.
#[derive(Debug)]
pub(crate) struct WaitingEvents<P> {
    /// The ids without names.
    pub missing: BTreeSet<String>,
    /// The payloads, by the id of the event.
    pub payloads: HashMap<String, P>,
}

impl<P> Default for UnnamedEvents<P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P> UnnamedEvents<P> {
    /// Remembers the payload of an event until [`Self::take`].
    pub fn insert(&self, event: &InboundEvent, payload: P, missing: BTreeSet<String>) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < MAX_UNNAMED {
            events.insert(event_id(event), UnnamedEvent { payload, missing });
        }
    }

    /// Removes those of `events` that wait for names; `None` when there are none.
    pub fn take(&self, events: &[InboundEvent]) -> Option<WaitingEvents<P>> {
        let mut unnamed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if unnamed.is_empty() {
            return None;
        }
        let mut waiting = WaitingEvents { missing: BTreeSet::new(), payloads: HashMap::new() };
        for id in events.iter().map(event_id) {
            if let Some(mut event) = unnamed.remove(&id) {
                waiting.missing.append(&mut event.missing);
                waiting.payloads.insert(id, event.payload);
            }
        }
        (!waiting.payloads.is_empty()).then_some(waiting)
    }
}

/// Returns the id by which an event is recognised.
pub(crate) fn event_id(event: &InboundEvent) -> String {
    match event {
        InboundEvent::Message { message, .. } => message.id.clone(),
        InboundEvent::Edit(edit) => edit.edit_id.clone(),
        InboundEvent::Recall(recall) => recall.recall_id.clone(),
        InboundEvent::Notice(notice) => notice.id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers nothing, or that there is no answer now.
    struct SlowSource(Option<NameAnswer>);

    #[async_trait]
    impl NameSource for SlowSource {
        async fn look_up(&self, _cache: &NameCache, _id: &str) -> NameAnswer {
            match &self.0 {
                Some(answer) => answer.clone(),
                None => std::future::pending().await,
            }
        }
    }

    #[tokio::test]
    async fn lookup_without_an_answer_pauses_lookups() {
        for answer in [None, Some(NameAnswer::Later(None))] {
            let cache = NameCache::default();
            assert!(!cache.is_paused());
            cache.look_up(&SlowSource(answer), BTreeSet::from(["U1".to_owned()])).await;
            assert!(cache.is_paused());
            assert!(cache.needs_lookup("U1"), "it may have a name");
        }
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
