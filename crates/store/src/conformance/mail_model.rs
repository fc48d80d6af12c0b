//! Any history of hearing, merging and claiming, on the store and on a model of it.
//!
//! Like [`super::model`], for Mails: the model keeps plain lists and asks
//! [`monoco_core`] for every step. What is compared after each call is the answer, every
//! Mail with its place and its claims, the order of the files, and what waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use monoco_core::claim::{
    Claim, ClaimStateData, ClaimStatus, MailLocation, Workspace, location_after_claims,
};
use monoco_core::mail::MailId;
use monoco_core::merge::{Debounce, MergeWindow as Burst};
use monoco_core::record::{InvalidTransition, TransitionError};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::mails::{mails, says, with_message};
use super::*;
use crate::{ClaimUpdate, MergeContext, StoreInboundRequest, StoreInboundResult};

/// How many calls the longest history has.
const CALLS: usize = 80;

const TUNNELS: [(&str, StrangerPolicy); 2] =
    [("lark", StrangerPolicy::Accept), ("wary", StrangerPolicy::Hold)];
const ROOMS: [&str; 2] = ["room", "hall"];
const AUTHORS: [&str; 3] = ["ann", "bob", "eve"];
const SPACES: [&str; 2] = ["alpha", "beta"];

#[derive(Clone, Debug)]
enum Call {
    Keep { tunnel: usize, id: u8, room: usize, author: usize },
    Merge { all: bool, limit: usize },
    Welcome { author: usize },
    Claim { mail: usize, space: usize, secs: i64 },
    Settle { mail: usize, space: usize, step: ClaimUpdate, epoch: Option<bool> },
    Revive { mail: usize, space: usize },
    Rest { mail: usize, space: usize },
    Sweep { limit: usize },
    Tick { secs: i64 },
    Reopen,
}

fn call() -> impl Strategy<Value = Call> {
    let fail =
        |retryable| ClaimUpdate::Fail { reason: "no".into(), retryable, retry: RetryPolicy::CLAIM };
    let step = prop_oneof![
        4 => Just(ClaimUpdate::Complete),
        1 => (1..5_i64).prop_map(|secs| ClaimUpdate::Renew(term(secs))),
        4 => Just(fail(true)),
        1 => Just(fail(false)),
    ];
    // The current epoch, the one before it, or none but the name.
    let epoch = prop_oneof![3 => Just(Some(true)), 1 => Just(Some(false)), 2 => Just(None)];
    let mail = || 0..99_usize;
    let space = || 0..SPACES.len();
    prop_oneof![
        10 => (0..TUNNELS.len(), 0..12_u8, 0..ROOMS.len(), 0..AUTHORS.len())
            .prop_map(|(tunnel, id, room, author)| Call::Keep { tunnel, id, room, author }),
        6 => (prop::bool::weighted(0.1), 1..4_usize)
            .prop_map(|(all, limit)| Call::Merge { all, limit }),
        1 => (0..AUTHORS.len()).prop_map(|author| Call::Welcome { author }),
        12 => (mail(), space(), 1..5_i64)
            .prop_map(|(mail, space, secs)| Call::Claim { mail, space, secs }),
        10 => (mail(), space(), step, epoch)
            .prop_map(|(mail, space, step, epoch)| Call::Settle { mail, space, step, epoch }),
        3 => (mail(), space()).prop_map(|(mail, space)| Call::Revive { mail, space }),
        2 => (mail(), space()).prop_map(|(mail, space)| Call::Rest { mail, space }),
        3 => (1..4_usize).prop_map(|limit| Call::Sweep { limit }),
        8 => (0..7_i64).prop_map(|secs| Call::Tick { secs }),
        1 => Just(Call::Reopen),
    ]
}

pub(super) fn any_history_is_the_models_history<H: Home>(home: impl Fn() -> H) {
    any_history(home, call(), CALLS, replay);
}

async fn replay(home: &dyn Home, history: &[Call]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut store = home.open().await;
    for (id, strangers) in TUNNELS {
        tunnel(&*store, id, strangers, false).await;
    }
    for (number, call) in history.iter().enumerate() {
        if matches!(call, Call::Reopen) {
            drop(store);
            store = home.open().await;
        }
        let answer = ask(&*store, &model, call).await;
        prop_assert_eq!(answer, model.answer(call), "call {}: {:?}", number, call);
        prop_assert_eq!(contents(&*store).await, model.contents(), "call {}: {:?}", number, call);
    }
    drop(store);
    prop_assert_eq!(contents(&*home.open().await).await, model.contents(), "after closing");
    Ok(())
}

fn message(tunnel: usize, id: u8, room: usize, author: usize) -> StoreInboundRequest {
    let mut keep = says(&id.to_string(), AUTHORS[author], &id.to_string());
    keep.tunnel = tunnel_id(TUNNELS[tunnel].0);
    with_message(keep, |message| message.session.id = ROOMS[room].to_owned())
}

fn space(number: usize) -> Workspace {
    Workspace::new(SPACES[number]).unwrap()
}

/// Makes the call on the store and says what it answered.
async fn ask(store: &dyn Store, model: &Model, call: &Call) -> String {
    let now = at(model.now);
    match call {
        Call::Keep { tunnel, id, room, author } => {
            let answers =
                store.store_inbound(vec![message(*tunnel, *id, *room, *author)], now).await;
            format!("{:?}", answers[0].as_ref().unwrap())
        }
        Call::Merge { all, limit } => {
            let merging = MergeContext { owner: did("me"), labels: BTreeMap::new(), all: *all };
            format!("{}", store.merge(Arc::new(merging), *limit, now).await.unwrap())
        }
        Call::Welcome { author } => {
            for (tunnel, _) in TUNNELS {
                contact(store, &endpoint(AUTHORS[*author], tunnel), ContactLevel::Friend).await;
            }
            String::new()
        }
        Call::Claim { mail, space: number, secs } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            let (id, space) = (&model.mails[mail].id, space(*number));
            let term = term(*secs);
            word(store.claim(id, &space, name("agent"), term, RetryPolicy::CLAIM, now).await)
        }
        Call::Settle { mail, space: number, step, epoch } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            let (id, guard) = (&model.mails[mail].id, model.guard(mail, *number, *epoch));
            word(store.update_claim(id, &space(*number), guard, step.clone(), now).await)
        }
        Call::Revive { mail, space: number } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            word(store.retry_claim(&model.mails[mail].id, &space(*number), now).await)
        }
        Call::Rest { mail, space: number } => {
            let Some(mail) = model.mail(*mail) else { return String::new() };
            word(store.drop_claim(&model.mails[mail].id, &space(*number), now).await)
        }
        Call::Sweep { limit } => {
            format!("{}", store.expire_claims(RetryPolicy::CLAIM, *limit, now).await.unwrap())
        }
        Call::Tick { .. } | Call::Reopen => String::new(),
    }
}

/// How a claim stands, or which error it was, without its details.
fn word(answer: Result<Claim, StoreError>) -> String {
    match answer {
        Ok(claim) => standing(&claim.claiming, claim.revision),
        Err(StoreError::InvalidTransition(_)) => "wrong state".to_owned(),
        Err(StoreError::LeaseLost(_)) => "lease lost".to_owned(),
        Err(StoreError::NotDue(at)) => format!("not before {}", at.ms()),
        Err(StoreError::Missing { .. }) => "missing".to_owned(),
        Err(other) => panic!("{other:?}"),
    }
}

fn standing(claiming: &ClaimStatus, revision: i64) -> String {
    format!("{claiming:?} {revision}")
}

/// Every Mail with its claims, the order of the files, and what waits.
async fn contents(store: &dyn Store) -> (Vec<String>, Vec<String>, String) {
    let mut shown = Vec::new();
    for row in mails(store).await {
        let claims = store.claims(&row.entry.id).await.unwrap();
        let claims: Vec<_> = claims
            .iter()
            .map(|c| format!("{} {}", c.workspace.as_str(), standing(&c.claiming, c.revision)))
            .collect();
        shown.push(format!("{} {:?} {:?}", row.entry.id, row.place, claims));
    }
    let visible = store.list_index_entries(0, 1_000).await.unwrap();
    assert_eq!(visible.len(), shown.len());
    assert!(visible.iter().zip(&shown).all(|(v, s)| s.starts_with(&v.entry.id.to_string())));
    let filings = store.list_file_changes(0, 1_000).await.unwrap();
    let filings = filings.iter().map(|f| format!("{} {:?}", f.entry.id, f.place)).collect();
    let (kept, next) = (store.counts().await.unwrap().kept, store.next_merge().await.unwrap());
    let open: BTreeSet<_> = store.open_claims(1_000).await.unwrap().into_iter().map(key).collect();
    let dead: BTreeSet<_> = store.dead_claims(1_000).await.unwrap().into_iter().map(key).collect();
    (shown, filings, format!("{kept} {:?} {open:?} {dead:?}", next.map(Timestamp::ms)))
}

fn key(claim: Claim) -> String {
    format!("{} {}", claim.mail, claim.workspace.as_str())
}

/// The whole store, as far as the calls above can see it.
#[derive(Default)]
struct Model {
    now: i64,
    heard: BTreeSet<(usize, u8)>,
    friends: BTreeSet<usize>,
    talks: Vec<Talk>,
    /// In the order of their numbers.
    mails: Vec<Mail>,
    changes: i64,
    claims: usize,
}

/// A window with its messages.
struct Talk {
    tunnel: usize,
    room: usize,
    /// Of whom alone, when it is held on his account.
    held: Option<usize>,
    window: Burst,
    messages: Vec<u8>,
}

struct Mail {
    id: MailId,
    author: Option<usize>,
    place: MailLocation,
    change: i64,
    claims: BTreeMap<usize, Taken>,
}

/// A claim that was made.
struct Taken {
    claiming: ClaimStatus,
    revision: i64,
    /// Which one, of all.
    number: usize,
}

impl Model {
    fn answer(&mut self, call: &Call) -> String {
        let now = at(self.now);
        match call {
            Call::Keep { tunnel, id, room, author } => self.keep(*tunnel, *id, *room, *author),
            Call::Merge { all, limit } => format!("{}", self.merge(*all, *limit)),
            Call::Welcome { author } => {
                self.welcome(*author);
                String::new()
            }
            Call::Claim { mail, space, secs } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                if self.mails[mail].place == MailLocation::Held {
                    return "wrong state".to_owned();
                }
                let (claiming, _) = self.claim(mail, *space);
                let next = claiming.claim(name("agent"), now, term(*secs), &RetryPolicy::CLAIM);
                self.put(mail, *space, next, false)
            }
            Call::Settle { mail, space, step, epoch } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                let guard = self.guard(mail, *space, *epoch);
                let (claiming, revision) = self.claim(mail, *space);
                let again = claiming.state == ClaimStateData::Completed
                    && *step == ClaimUpdate::Complete
                    && guard.epoch == Some(claiming.epoch);
                if again {
                    return standing(&claiming, revision);
                }
                if revision == 0 {
                    return "wrong state".to_owned();
                }
                let next = match step {
                    ClaimUpdate::Renew(term) => claiming.renew(&guard, now, *term),
                    ClaimUpdate::Complete => claiming.complete(&guard),
                    ClaimUpdate::Fail { reason, retryable, retry } => {
                        claiming.fail(&guard, reason.clone(), *retryable, now, retry)
                    }
                };
                self.put(mail, *space, next, true)
            }
            Call::Revive { mail, space } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                let (claiming, revision) = self.claim(mail, *space);
                if revision == 0 {
                    return "missing".to_owned();
                }
                let next = claiming.retry(now);
                if next.is_ok() {
                    self.move_to(mail, MailLocation::Inbound);
                }
                self.put(mail, *space, next.map_err(InvalidTransition::into), false)
            }
            Call::Rest { mail, space } => {
                let Some(mail) = self.mail(*mail) else { return String::new() };
                let (claiming, revision) = self.claim(mail, *space);
                if revision == 0 {
                    return "missing".to_owned();
                }
                self.put(mail, *space, claiming.drop_claim().map_err(InvalidTransition::into), true)
            }
            Call::Sweep { limit } => format!("{}", self.sweep(*limit)),
            Call::Tick { secs } => {
                self.now += secs;
                String::new()
            }
            Call::Reopen => String::new(),
        }
    }

    fn keep(&mut self, tunnel: usize, id: u8, room: usize, author: usize) -> String {
        if !self.heard.insert((tunnel, id)) {
            return format!("{:?}", StoreInboundResult::Duplicate);
        }
        let stranger = TUNNELS[tunnel].1 == StrangerPolicy::Hold && !self.friends.contains(&author);
        let held = stranger.then_some(author);
        let now = at(self.now);
        let bytes = message(tunnel, id, room, author).message.json().len();
        let bytes = u32::try_from(bytes).unwrap();
        let open = self
            .talks
            .iter_mut()
            .rev()
            .find(|talk| (talk.tunnel, talk.room, talk.held) == (tunnel, room, held));
        match open.map(|talk| (talk.window.join(&Debounce::DEFAULT, now, bytes), talk)) {
            Some((Some(joined), talk)) => {
                talk.window = joined;
                talk.messages.push(id);
            }
            _ => {
                let window = Burst::open(now, bytes);
                self.talks.push(Talk { tunnel, room, held, window, messages: vec![id] });
            }
        }
        format!("{:?}", StoreInboundResult::Stored)
    }

    fn merge(&mut self, all: bool, limit: usize) -> usize {
        let now = at(self.now);
        let closes = |talk: &Talk| talk.window.closes_at(&Debounce::DEFAULT);
        let mut due: Vec<_> =
            (0..self.talks.len()).filter(|n| all || closes(&self.talks[*n]) <= now).collect();
        due.sort_by_key(|n| closes(&self.talks[*n]));
        due.truncate(limit);
        for n in &due {
            let talk = &self.talks[*n];
            let held = talk.held.filter(|author| !self.friends.contains(author));
            let tunnel = tunnel_id(TUNNELS[talk.tunnel].0);
            self.changes += 1;
            self.mails.push(Mail {
                id: MailId::of("lark", &tunnel, &talk.messages[0].to_string()),
                author: held,
                place: if held.is_some() { MailLocation::Held } else { MailLocation::Inbound },
                change: self.changes,
                claims: BTreeMap::new(),
            });
        }
        let mut number = 0;
        self.talks.retain(|_| {
            number += 1;
            !due.contains(&(number - 1))
        });
        due.len()
    }

    /// Lets an author in. His Mails become visible now, after all that are.
    fn welcome(&mut self, author: usize) {
        self.friends.insert(author);
        let is_his = |mail: &Mail| mail.place == MailLocation::Held && mail.author == Some(author);
        let (his, others): (Vec<_>, Vec<_>) = self.mails.drain(..).partition(is_his);
        self.mails = others;
        for mail in his {
            self.mails.push(mail);
            self.move_to(self.mails.len() - 1, MailLocation::Inbound);
        }
    }

    /// Takes back what was let go, the one that ended first before the others.
    fn sweep(&mut self, limit: usize) -> usize {
        let now = at(self.now);
        let mut ended = Vec::new();
        for (mail, Mail { claims, .. }) in self.mails.iter().enumerate() {
            for (space, claim) in claims {
                if let ClaimStateData::Claimed(lease) = &claim.claiming.state
                    && lease.has_expired(now)
                {
                    ended.push((lease.until, claim.number, mail, *space));
                }
            }
        }
        ended.sort();
        ended.truncate(limit);
        for (_, _, mail, space) in &ended {
            let (claiming, _) = self.claim(*mail, *space);
            let next = claiming.expire(now, &RetryPolicy::CLAIM).map_err(InvalidTransition::into);
            self.put(*mail, *space, next, true);
        }
        ended.len()
    }

    fn put(
        &mut self,
        mail: usize,
        space: usize,
        next: Result<ClaimStatus, TransitionError>,
        rests: bool,
    ) -> String {
        let (_, revision) = self.claim(mail, space);
        let next = match next {
            Ok(next) => next,
            Err(refused) => return word(Err(refused.into())),
        };
        let said = standing(&next, revision + 1);
        if revision == 0 {
            self.claims += 1;
        }
        let number = self.mails[mail].claims.get(&space).map_or(self.claims, |claim| claim.number);
        let claim = Taken { claiming: next, revision: revision + 1, number };
        self.mails[mail].claims.insert(space, claim);
        let claims = self.mails[mail].claims.values().map(|claim| &claim.claiming);
        let ended = |claiming: &ClaimStatus| {
            matches!(claiming.state, ClaimStateData::Completed | ClaimStateData::Deadletter { .. })
        };
        if rests
            && claims.clone().any(ended)
            && let Some(place) = location_after_claims(claims)
        {
            self.move_to(mail, place);
        }
        said
    }

    fn move_to(&mut self, mail: usize, place: MailLocation) {
        if self.mails[mail].place != place {
            self.changes += 1;
            self.mails[mail].place = place;
            self.mails[mail].change = self.changes;
        }
    }

    /// The claim of a workspace, and its revision; 0 when it never had one.
    fn claim(&self, mail: usize, space: usize) -> (ClaimStatus, i64) {
        match self.mails[mail].claims.get(&space) {
            Some(claim) => (claim.claiming.clone(), claim.revision),
            None => (ClaimStatus::start(at(self.now)), 0),
        }
    }

    fn mail(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.mails.len())
    }

    fn guard(&self, mail: usize, space: usize, epoch: Option<bool>) -> LeaseProof {
        let current = self.claim(mail, space).0.epoch;
        match epoch {
            Some(true) => in_epoch(current),
            Some(false) => in_epoch(current.wrapping_sub(1)),
            None => by("agent"),
        }
    }

    fn contents(&self) -> (Vec<String>, Vec<String>, String) {
        let visible = self.mails.iter().filter(|mail| mail.place != MailLocation::Held);
        let shown = visible.map(|mail| {
            let claims: Vec<_> = mail
                .claims
                .iter()
                .map(|(n, c)| format!("{} {}", SPACES[*n], standing(&c.claiming, c.revision)))
                .collect();
            format!("{} {:?} {:?}", mail.id, mail.place, claims)
        });
        let mut changed: Vec<_> = self.mails.iter().collect();
        changed.sort_by_key(|mail| mail.change);
        let filings = changed.iter().map(|mail| format!("{} {:?}", mail.id, mail.place)).collect();
        let kept: usize = self.talks.iter().map(|talk| talk.messages.len()).sum();
        let closes = self.talks.iter().map(|talk| talk.window.closes_at(&Debounce::DEFAULT).ms());
        let next = closes.min();
        let claims = |wanted: fn(&ClaimStateData) -> bool| -> BTreeSet<String> {
            let of_mail = |mail: &Mail| {
                let found = mail.claims.iter().filter(|(_, c)| wanted(&c.claiming.state));
                found.map(|(n, _)| format!("{} {}", mail.id, SPACES[*n])).collect::<Vec<_>>()
            };
            self.mails.iter().flat_map(of_mail).collect()
        };
        let open = claims(|state| {
            matches!(state, ClaimStateData::New { .. } | ClaimStateData::Claimed(_))
        });
        let dead = claims(|state| matches!(state, ClaimStateData::Deadletter { .. }));
        (shown.collect(), filings, format!("{kept} {next:?} {open:?} {dead:?}"))
    }
}
