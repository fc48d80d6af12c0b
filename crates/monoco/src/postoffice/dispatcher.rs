//! Hands each letter to the next worker that has not had it.
//!
//! Our own workers are called one after the other in memory, between two commits: one
//! took the letter in, the next says what all of them said and how it goes on. Only a
//! worker outside, or one that keeps the letter for a while, ends the walk in between.
//!
//! One batch is walked at a time. What a walk reads to decide (who is booked until
//! when, who waits to be merged) is changed by nobody but another walk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::did::{Did, Endpoint, EndpointKind, TunnelId};
use monoco_core::letter::{
    INLINE_MAIL, Letter, LetterId, Passed, Sealing, TooLate, Verdict, WorkerName, posted, resaid,
    resealed,
};
use monoco_core::limit::Booked;
use monoco_core::time::Timestamp;
use monoco_store::{Advance, Advanced, Dispatch, LetterRow, Post, Source, StoreError, Then};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use keepers::kept_until;

use super::figures::Figures;
use super::queue::Queue;
use super::settings::{Settings, Worker};
use super::workers::{Opinion, merge, opinion};
use crate::center::Center;

/// Most letters that are walked in one go.
const BATCH: usize = 512;

/// Most letters of one commit. While it is under way, the next ones are walked.
const COMMIT: usize = 64;

/// Largest text that is kept as a part of its message alone.
const SMALL: usize = 8 << 10;

/// How long letters gather between two walks when they come one after the other. A commit
/// costs about the same for one as for ten, and whoever hands in waits behind it.
const GATHER: Duration = Duration::from_millis(10);

/// How long the dispatcher rests after the store refused it.
const REST: Duration = Duration::from_secs(1);

/// Walks letters through their chains.
pub struct Dispatcher {
    center: Center,
    settings: watch::Receiver<Arc<Settings>>,
    figures: Arc<Figures>,
    /// One walk at a time.
    alone: Mutex<()>,
}

/// A letter that is to go on, with what the worker said that just had it.
pub struct Arrival {
    /// The letter, as it was looked at.
    pub row: LetterRow,
    /// What was said; `None`: it comes from nobody.
    pub said: Option<Said>,
}

/// What a worker outside said.
pub struct Said {
    /// Who.
    pub worker: WorkerName,
    /// What.
    pub opinion: Opinion,
}

/// A letter, and how its step went.
type Went = (LetterId, Result<Advanced, StoreError>);

/// What one walk knows beyond the letters themselves.
struct Walk<'a> {
    settings: &'a Settings,
    now: Timestamp,
    /// Up to when keys are booked, those included that this walk has booked.
    booked: BTreeMap<String, Option<Booked>>,
    /// When the groups that letters of this walk wait in are due, and how many there are.
    groups: HashMap<(WorkerName, String), (Timestamp, usize)>,
    /// Letters whose merging is decided in this walk, and not yet in the store.
    merged: HashSet<LetterId>,
    /// Whether anybody is unwelcome, by letters' senders and recipients.
    unwelcome: HashMap<(String, Vec<String>), Option<String>>,
}

/// One letter on its way.
struct Going {
    /// As it was looked at, but for the letter and who had it.
    row: LetterRow,
    letter: Letter,
    changed: bool,
    had: Vec<Passed>,
    new: usize,
    booked: Vec<(String, Booked)>,
    joins: Vec<(LetterId, i64)>,
}

impl Dispatcher {
    /// A dispatcher that goes by these settings, as they are at the time.
    pub fn new(
        center: Center,
        settings: watch::Receiver<Arc<Settings>>,
        figures: Arc<Figures>,
    ) -> Self {
        Self { center, settings, figures, alone: Mutex::new(()) }
    }

    /// The hub.
    pub fn center(&self) -> &Center {
        &self.center
    }

    /// The settings as they are now.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.borrow())
    }

    /// What is counted.
    pub fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    /// Walks whatever is due, until `stop`.
    pub async fn run(self: Arc<Self>, mut queue: Queue, stop: CancellationToken) {
        let mut next = Instant::now();
        while !stop.is_cancelled() {
            match self.clear(&mut next, &stop).await {
                Ok(()) => queue.cleared().await,
                Err(error) => {
                    tracing::warn!(%error, "letters wait; the store refuses");
                    if stop.run_until_cancelled(tokio::time::sleep(REST)).await.is_none() {
                        return;
                    }
                    continue;
                }
            }
            if stop.run_until_cancelled(queue.woken(&self.center)).await.is_none() {
                return;
            }
        }
    }

    /// Walks letters until none is due; the first not before `next`, which then says when to
    /// look again.
    async fn clear(&self, next: &mut Instant, stop: &CancellationToken) -> Result<(), StoreError> {
        let store = self.center.store();
        while !stop.is_cancelled() {
            tokio::time::sleep_until(*next).await;
            let due = store.due_letters(None, BATCH, self.center.now()).await?;
            if due.is_empty() {
                return Ok(());
            }
            // One alone is followed by nobody, and many fill a commit as they are.
            if (2..COMMIT).contains(&due.len()) {
                *next = Instant::now() + GATHER;
            }
            let arrivals = due.into_iter().map(|row| Arrival { row, said: None }).collect();
            for (id, went) in self.go_on(arrivals).await? {
                match went {
                    Ok(_) => {}
                    // Somebody else moved it meanwhile. Should it be due all the same, it is
                    // not asked for again at once.
                    Err(StoreError::Conflict { .. } | StoreError::WrongState(_)) => {
                        *next = Instant::now() + GATHER;
                    }
                    Err(error) if refuses(&error) => return Err(error),
                    Err(error) => self.give_up(id, &error).await?,
                }
            }
        }
        Ok(())
    }

    /// A letter whose step can't be taken must not hold up those behind it.
    async fn give_up(&self, id: LetterId, error: &StoreError) -> Result<(), StoreError> {
        tracing::error!(letter = %id, %error, "a letter is given up");
        let row = self.center.store().letter(id).await?;
        let then = Then::GiveUp { why: error.to_string() };
        let advance = Advance::only(&row, then);
        let mut given_up = self.center.store().advance(vec![advance], self.center.now()).await;
        given_up.pop().unwrap_or_else(|| Err(error.clone())).map(|_| ())
    }

    /// Walks these letters as far as they get, some in each commit.
    ///
    /// # Errors
    ///
    /// When what the walk has to know can't be read. Some may have gone on by then.
    pub async fn go_on(&self, arrivals: Vec<Arrival>) -> Result<Vec<Went>, StoreError> {
        let _alone = self.alone.lock().await;
        let settings = self.settings();
        let mut walk = Walk {
            settings: &settings,
            now: self.center.now(),
            booked: BTreeMap::new(),
            groups: HashMap::new(),
            merged: HashSet::new(),
            unwelcome: HashMap::new(),
        };
        self.read_ahead(&mut walk, &arrivals).await?;
        let (now, mut arrivals) = (walk.now, arrivals.into_iter());
        let (mut walked, mut answers) = (Vec::new(), Vec::with_capacity(arrivals.len()));
        while arrivals.len() > 0 {
            let some = arrivals.by_ref().take(COMMIT);
            // The store's writer has the last ones while this one walks the next.
            let (filed, next) =
                tokio::join!(self.file(walked, now), self.walk_some(&mut walk, some));
            let mut errors = filed.iter().filter_map(|(_, went)| went.as_ref().err());
            let refused = errors.find(|error| refuses(error)).cloned();
            answers.extend(filed);
            walked = next?;
            // Those behind letters that can't be filed must not overtake them.
            if let Some(error) = refused {
                answers.extend(walked.into_iter().map(|advance| (advance.id, Err(error.clone()))));
                return Ok(answers);
            }
        }
        answers.extend(self.file(walked, now).await);
        Ok(answers)
    }

    /// Walks some letters as far as they get.
    async fn walk_some(
        &self,
        walk: &mut Walk<'_>,
        arrivals: impl Iterator<Item = Arrival>,
    ) -> Result<Vec<Advance>, StoreError> {
        let mut advances = Vec::with_capacity(COMMIT);
        for arrival in arrivals {
            if !walk.merged.contains(&arrival.row.id) {
                advances.push(self.walk(walk, arrival).await?);
            }
        }
        Ok(advances)
    }

    /// Puts on record how far some letters got, in one commit.
    async fn file(&self, advances: Vec<Advance>, now: Timestamp) -> Vec<Went> {
        if advances.is_empty() {
            return Vec::new();
        }
        let ids: Vec<_> = advances.iter().map(|advance| advance.id).collect();
        let kept: Vec<_> = advances.iter().filter_map(kept_until).collect();
        let answers = self.center.store().advance(advances, now).await;
        for (id, due) in kept {
            self.center.carry(id, due);
        }
        ids.into_iter().zip(answers).collect()
    }

    /// Walks one letter as far as it gets.
    async fn walk(&self, walk: &mut Walk<'_>, arrival: Arrival) -> Result<Advance, StoreError> {
        let Arrival { row, said } = arrival;
        let (kept_by, key) = (row.kept_by.clone(), row.key.clone());
        let mut going = Going::new(row);
        if let Some(Said { worker, opinion }) = said
            && let Some(then) = going.said(&worker, opinion, walk.now)
        {
            return Ok(going.then(then));
        }
        if let Some(keeper) = kept_by {
            self.returned(walk, &mut going, keeper, key).await?;
        }
        loop {
            let chain = walk.settings.chain(going.row.direction, going.row.tunnel.as_ref());
            let Some(name) = chain.next(&going.had).cloned() else {
                let why = "its chain has no end: no worker is left that sends or delivers it";
                return Ok(going.then(Then::GiveUp { why: why.to_owned() }));
            };
            let Some(worker) = walk.settings.workers.get(&name) else {
                let why = format!("there is no worker {name}");
                return Ok(going.then(Then::GiveUp { why }));
            };
            let started = Instant::now();
            let opinion = match worker {
                Worker::Block(block) => match block.work(&going.letter) {
                    Opinion::PASS => self.blocked(walk, &going).await?,
                    listed => listed,
                },
                Worker::Spam(_) | Worker::Subject(_) | Worker::Footer(_) | Worker::Trash => {
                    opinion(worker, &going.letter, walk.now).unwrap_or(Opinion::PASS)
                }
                Worker::Limit(limit) => match self.limit(walk, &mut going, &name, limit).await? {
                    due if due <= walk.now => Opinion::PASS,
                    due => return Ok(going.then(Then::Keep { by: name, key: None, due })),
                },
                Worker::Merge(rule) => {
                    let key = merge::key(&going.letter);
                    let due = self.group(walk, &name, &key, rule).await?;
                    return Ok(going.then(Then::Keep { by: name, key: Some(key), due }));
                }
                Worker::Outside(_) => {
                    let then = Then::Wait { desk: Some(name), due: walk.now };
                    return Ok(going.then(then));
                }
                Worker::Send { .. } | Worker::Deliver => {
                    let then = self.end(walk.settings, worker, &going).await?;
                    going.passed(&name, Verdict::Pass, None, walk.now);
                    self.figures.said(&name, Verdict::Pass, started.elapsed());
                    return Ok(going.then(then));
                }
            };
            self.figures.said(&name, opinion.verdict, started.elapsed());
            if let Some(then) = going.said(&name, opinion, walk.now) {
                return Ok(going.then(then));
            }
        }
    }

    /// Whether somebody is blocked, by the contacts.
    async fn blocked(&self, walk: &mut Walk<'_>, going: &Going) -> Result<Opinion, StoreError> {
        let Letter { from, to, .. } = &going.letter;
        let place = (from.clone(), to.clone());
        let why = match walk.unwelcome.get(&place) {
            Some(known) => known.clone(),
            None => {
                let why = self.unwelcome(walk.settings, &going.row, &going.letter).await?;
                walk.unwelcome.insert(place, why.clone());
                why
            }
        };
        Ok(why.map_or(Opinion::PASS, Opinion::trash))
    }

    /// Why somebody keeps a letter from going on, by the contacts.
    ///
    /// # Errors
    ///
    /// When they can't be read.
    pub async fn unwelcome(
        &self,
        settings: &Settings,
        row: &LetterRow,
        letter: &Letter,
    ) -> Result<Option<String>, StoreError> {
        let tunnel = tunnel_of(row, settings);
        let did = |address: &String| as_did(address, tunnel);
        let Some(author) = did(&letter.from) else { return Ok(None) };
        let to: Vec<Did> = letter.to.iter().filter_map(did).collect();
        self.center.store().unwelcome(&author, &to, row.tunnel.as_ref()).await
    }

    /// What a letter becomes that is through.
    async fn end(
        &self,
        settings: &Settings,
        worker: &Worker,
        going: &Going,
    ) -> Result<Then, StoreError> {
        let (row, letter) = (&going.row, &going.letter);
        let too_late = |error: TooLate| Then::GiveUp { why: error.to_string() };
        Ok(match (worker, &row.source) {
            (Worker::Send { .. }, Source::Door(_)) => {
                let subject = match letter.is_mail() && letter.extra("subject").is_none() {
                    true => monoco_mime::subject(&letter.bytes()),
                    false => None,
                };
                let mut sealing = Sealing {
                    id: row.id,
                    at: row.created_at,
                    tunnel: tunnel_of(row, settings),
                    bytes: None,
                    mail_subject: subject.as_deref(),
                };
                // Its bytes are no more than its text, so a small one is not asked for them.
                if letter.is_mail() && letter.data.len() > INLINE_MAIL {
                    let bytes = letter.bytes();
                    let size = bytes.len() as u64;
                    if bytes.len() > INLINE_MAIL {
                        sealing.bytes =
                            Some((self.center.store().keep_bytes(bytes.into_owned()).await?, size));
                    }
                }
                match posted(letter, sealing) {
                    Ok(msg) => Then::Post(Box::new(Post { msg, key: None, not_before: None })),
                    Err(error) => too_late(error),
                }
            }
            (Worker::Send { .. }, Source::Post(post)) => {
                match resealed(&post.msg, letter, row.id) {
                    Ok(msg) => {
                        let not_before = post.not_before;
                        Then::Post(Box::new(Post { msg, key: None, not_before }))
                    }
                    Err(error) => too_late(error),
                }
            }
            (Worker::Deliver, Source::Heard(keep)) => match resaid(&keep.said, letter) {
                Ok(said) => {
                    let mut keep = keep.clone();
                    keep.said = said;
                    Then::Deliver(Box::new(keep))
                }
                Err(error) => too_late(error),
            },
            (Worker::Deliver, Source::Dispatch(dispatch)) => {
                match resealed(&dispatch.msg, letter, row.id) {
                    Ok(msg) => Then::Dispatch(Box::new(Dispatch { msg, ..dispatch.clone() })),
                    Err(error) => too_late(error),
                }
            }
            _ => {
                let why = "its chain ends with a worker of the other direction";
                Then::GiveUp { why: why.to_owned() }
            }
        })
    }
}

impl Going {
    fn new(mut row: LetterRow) -> Self {
        let (letter, had) = (mem::take(&mut row.letter), mem::take(&mut row.had));
        let new = had.len();
        Self { row, letter, changed: false, had, new, booked: Vec::new(), joins: Vec::new() }
    }

    fn change(&mut self, letter: Letter) {
        self.changed |= letter != self.letter;
        self.letter = letter;
    }

    fn passed(&mut self, by: &WorkerName, result: Verdict, note: Option<String>, at: Timestamp) {
        self.had.push(Passed { worker: by.clone(), result, at, note });
    }

    /// Takes an opinion over. Returns how the letter goes on when that ends the walk.
    fn said(&mut self, by: &WorkerName, opinion: Opinion, at: Timestamp) -> Option<Then> {
        let Opinion { verdict, note, letter } = opinion;
        if let Some(letter) = letter {
            self.change(letter);
        }
        self.passed(by, verdict, note.clone(), at);
        (verdict == Verdict::Trash).then(|| {
            let note = note.map(|note| format!(": {note}")).unwrap_or_default();
            Then::Trash { why: format!("{by}{note}") }
        })
    }

    fn then(mut self, then: Then) -> Advance {
        Advance {
            id: self.row.id,
            revision: self.row.revision,
            // A small text is part of the message as it is; see `posted` and `resealed`.
            in_object: matches!(then, Then::Post(_)) && self.letter.data.len() <= SMALL,
            letter: self.changed.then_some(self.letter),
            had: self.had.split_off(self.new),
            booked: self.booked,
            joins: self.joins,
            then,
        }
    }
}

/// Whether this is the store's trouble, and no letter's.
fn refuses(error: &StoreError) -> bool {
    matches!(error, StoreError::Full | StoreError::Broken(_) | StoreError::Unavailable(_))
}

/// The tunnel for addresses that do not name one.
fn tunnel_of<'s>(row: &'s LetterRow, settings: &'s Settings) -> Option<&'s TunnelId> {
    let by_settings = || {
        settings.workers.values().find_map(|worker| match worker {
            Worker::Send { tunnel } => tunnel.as_ref(),
            _ => None,
        })
    };
    row.tunnel.as_ref().or_else(by_settings)
}

fn as_did(address: &str, tunnel: Option<&TunnelId>) -> Option<Did> {
    if address.starts_with("did:") {
        return address.parse().ok();
    }
    let (account, kind) = (address.to_owned(), EndpointKind::Addr);
    Endpoint { account, kind, tunnel: tunnel?.clone() }.did().ok()
}

mod keepers;
#[cfg(test)]
mod tests;
