//! Any history of calls, on the store and on a model of it that fits on a page.
//!
//! The model keeps plain lists and asks [`monoco_core`] for every step of a
//! machine. What is compared after each call is the answer and everything in the
//! boxes; now and then, and always at the end, the store is closed and opened
//! again before it is looked at.

use std::collections::{BTreeMap, BTreeSet};

use monoco_core::delivery::{
    DeliveryOutcome, SendState, SendStateData, SendStatus, TunnelCapabilities,
};
use monoco_core::lease::Lease;
use monoco_core::record::{ReadState, ReadStateData, ReadStatus, RecordId};
use monoco_core::retry::Failure;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::{StoreCounts, SweepCounts};

/// How many calls the longest history has.
const CALLS: usize = 60;

const OWNERS: [&str; 6] = ["bob", "cat", "nobody", "me", "ann", "pest"];
const TUNNELS: [(&str, bool); 2] = [("lark", false), ("keyed", true)];

/// Authors and targets of everything that can be said, twice over with different
/// words.
const LETTERS: [(&str, &[&str]); 9] = [
    ("ann", &["bob"]),
    ("ann", &["bob", "cat"]),
    ("pest", &["cat"]),
    ("pest", &["did:msgtunnel:x.user.lark", "bob"]),
    ("me", &["did:msgtunnel:x.user.lark"]),
    ("me", &["did:msgtunnel:x.user.keyed", "bob"]),
    ("me", &["did:msgtunnel:x.user.lark", "did:msgtunnel:y.user.keyed"]),
    ("me", &["cat", "bob"]),
    ("me", &["nobody", "did:msgtunnel:x.user.lark"]),
];
const WORDS: usize = 2;

#[derive(Clone, Debug)]
enum Call {
    Dispatch { letter: usize, external_id: Option<u8> },
    Post { letter: usize, wait: i64 },
    Read { owner: usize, secs: i64 },
    Mark { record: usize, to: ReadState, show: Show },
    Send { tunnel: usize, secs: i64 },
    Settle { delivery: usize, outcome: DeliveryOutcome, show: Show },
    Move { delivery: usize, to: SendState },
    Sweep { limit: usize },
    Release,
    Welcome { pest: bool },
    Block { ann: bool },
    Tick { secs: i64 },
    Reopen,
}

/// What a caller shows: the current epoch, an old one, or his name.
#[derive(Clone, Copy, Debug)]
enum Show {
    Epoch,
    OldEpoch,
    Name,
    OtherName,
}

fn call() -> impl Strategy<Value = Call> {
    let letter = 0..LETTERS.len() * WORDS;
    let show = || {
        prop_oneof![
            4 => Just(Show::Epoch),
            1 => Just(Show::OldEpoch),
            2 => Just(Show::Name),
            1 => Just(Show::OtherName),
        ]
    };
    let outcome = prop_oneof![
        2 => Just(DeliveryOutcome::Accepted { external_msg_id: None }),
        1 => Just(DeliveryOutcome::Failed(Failure::Permanent { detail: "no".into() })),
        1 => Just(DeliveryOutcome::Failed(Failure::Unknown { detail: "?".into() })),
        2 => (0..5_000_u64).prop_map(|ms| DeliveryOutcome::Failed(Failure::Temporary {
            detail: "busy".into(),
            retry_after_ms: Some(ms),
        })),
    ];
    let reading = prop::sample::select(ReadState::ALL.to_vec());
    let sending = prop::sample::select(SendState::ALL.to_vec());
    prop_oneof![
        8 => (letter.clone(), prop::option::of(0..4_u8))
            .prop_map(|(letter, external_id)| Call::Dispatch { letter, external_id }),
        8 => (letter, 0..3_i64).prop_map(|(letter, wait)| Call::Post { letter, wait }),
        6 => (0..OWNERS.len(), 1..5_i64).prop_map(|(owner, secs)| Call::Read { owner, secs }),
        6 => (0..99_usize, reading, show())
            .prop_map(|(record, to, show)| Call::Mark { record, to, show }),
        6 => (0..TUNNELS.len(), 1..5_i64).prop_map(|(tunnel, secs)| Call::Send { tunnel, secs }),
        6 => (0..99_usize, outcome, show())
            .prop_map(|(delivery, outcome, show)| Call::Settle { delivery, outcome, show }),
        4 => (0..99_usize, sending).prop_map(|(delivery, to)| Call::Move { delivery, to }),
        3 => (1..4_usize).prop_map(|limit| Call::Sweep { limit }),
        1 => Just(Call::Release),
        1 => any::<bool>().prop_map(|pest| Call::Welcome { pest }),
        1 => any::<bool>().prop_map(|ann| Call::Block { ann }),
        4 => (0..6_i64).prop_map(|secs| Call::Tick { secs }),
        1 => Just(Call::Reopen),
    ]
}

pub(crate) fn any_history_is_the_models_history<H: Home>(home: impl Fn() -> H) {
    any_history(&home, call(), CALLS, replay);
    mail_model::any_history_is_the_models_history(home);
}

async fn replay(home: &dyn Home, history: &[Call]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut store = home.open().await;
    for (id, idempotent) in TUNNELS {
        tunnel(&*store, id, StrangerPolicy::Accept, idempotent).await;
    }
    lives_here(&*store, "bob").await;
    lives_here(&*store, "cat").await;
    for (number, call) in history.iter().enumerate() {
        if matches!(call, Call::Reopen) || number == history.len() / 2 {
            drop(store);
            store = home.open().await;
        }
        let answer = ask(&*store, &model, call).await;
        prop_assert_eq!(answer, model.answer(call), "call {}: {:?}", number, call);
        prop_assert_eq!(contents(&*store).await, model.contents(), "call {}: {:?}", number, call);
        let figures = store.counts().await.unwrap();
        prop_assert_eq!(figures, model.figures(), "call {}: {:?}", number, call);
        prop_assert_eq!(talks(&*store).await, model.talks(), "call {}: {:?}", number, call);
    }
    drop(store);
    let store = home.open().await;
    prop_assert_eq!(contents(&*store).await, model.contents(), "after closing");
    prop_assert_eq!(talks(&*store).await, model.talks(), "after closing");
    Ok(())
}

fn letter(number: usize) -> MsgObject {
    let (from, to) = LETTERS[number % LETTERS.len()];
    chat(from, to, &number.to_string())
}

/// Makes the call on the store and says what it answered.
async fn ask(store: &dyn Store, model: &Model, call: &Call) -> String {
    let now = at(model.now);
    match call {
        Call::Dispatch { letter: number, external_id } => {
            let one = DispatchRequest {
                msg: letter(*number),
                tunnel: external_id.map(|_| tunnel_id("lark")),
                external_id: external_id.map(|id| id.to_string()),
            };
            match store.dispatch(vec![one], now).await.remove(0) {
                Ok(answer) => format!("{} {}", answer.msg_id, say(&answer)),
                Err(error) => word(&error),
            }
        }
        Call::Post { letter: number, wait } => {
            let not_before = Some(at(model.now + wait));
            let post = SendRequest { msg: letter(*number), key: None, not_before };
            match store.send(post, now).await {
                Ok(SendResult::Queued { duplicate, ways, .. }) => {
                    let ways = ways.iter().map(|way| (way.target.clone(), way.record_id.is_some()));
                    format!("{duplicate} {:?}", ways.collect::<BTreeMap<_, _>>())
                }
                Ok(SendResult::BlockedAuthor { .. }) => "blocked author".to_owned(),
                Ok(chained @ SendResult::Chained { .. }) => panic!("{chained:?}"),
                Err(error) => word(&error),
            }
        }
        Call::Read { owner, secs } => {
            let owner = did(OWNERS[*owner]);
            let taken =
                store.lease_record(&owner, BoxKind::Inbox, name("r"), term(*secs), now).await;
            format!("{:?}", taken.unwrap().map(|taken| (taken.entry.id, taken.entry.reading)))
        }
        Call::Mark { record, to, show } => {
            let Some(at) = model.record(*record) else { return String::new() };
            let (record, guard) = (&model.records[at], model.show_reader(at, *show));
            let marked = store.mark_record(record.id, *to, guard, None, term(3), now).await;
            marked.map_or_else(|error| word(&error), |record| format!("{:?}", record.reading))
        }
        Call::Send { tunnel, secs } => {
            let tunnel = tunnel_id(TUNNELS[*tunnel].0).did();
            let taken = store.lease_delivery(&tunnel, name("r"), term(*secs), now).await;
            format!("{:?}", taken.unwrap().map(|taken| (taken.entry.id, taken.entry.sending)))
        }
        Call::Settle { delivery, outcome, show } => {
            let Some(at) = model.delivery(*delivery) else { return String::new() };
            let (delivery, guard) = (&model.deliveries[at], model.show_sender(at, *show));
            let settled =
                store.report_delivery(delivery.id, outcome.clone(), guard, AGAIN, now).await;
            settled.map_or_else(|error| word(&error), |delivery| format!("{:?}", delivery.sending))
        }
        Call::Move { delivery, to } => {
            let Some(at) = model.delivery(*delivery) else { return String::new() };
            let id = model.deliveries[at].id;
            let moved = store.mark_delivery(id, *to, by("r"), None, now).await;
            moved.map_or_else(|error| word(&error), |delivery| format!("{:?}", delivery.sending))
        }
        Call::Sweep { limit } => {
            format!("{:?}", store.expire_leases(AGAIN, *limit, now).await.unwrap())
        }
        Call::Release => format!("{:?}", store.release_leases("r", AGAIN, now).await.unwrap()),
        Call::Welcome { pest } => {
            let level = if *pest { ContactLevel::Friend } else { ContactLevel::Block };
            contact(store, "pest", level).await;
            String::new()
        }
        Call::Block { ann } => {
            store.set_block(&did("ann"), &did("bob"), *ann, now).await.unwrap();
            String::new()
        }
        Call::Tick { .. } | Call::Reopen => String::new(),
    }
}

/// Which error, without its details.
fn word(error: &StoreError) -> String {
    match error {
        StoreError::NoLocalRecipient(_) => "nobody here",
        StoreError::UnresolvableTargets(_) => "unresolvable",
        StoreError::InvalidTransition(_) => "wrong state",
        StoreError::LeaseLost(_) => "lease lost",
        other => panic!("{other:?}"),
    }
    .to_owned()
}

/// Everything in the boxes, in order.
async fn contents(store: &dyn Store) -> (Vec<String>, Vec<String>) {
    let (mut records, mut deliveries) = (Vec::new(), Vec::new());
    for owner in OWNERS {
        for box_kind in [BoxKind::Inbox, BoxKind::Outbox] {
            let page = store.records(&did(owner), box_kind, &[], ALL).await.unwrap();
            let line = |r: MsgRecord| (r.seq, format!("{} {:?} {}", r.id, r.reading, r.revision));
            records.extend(page.entries.into_iter().map(line));
        }
    }
    for (tunnel, _) in TUNNELS {
        let page = store.deliveries(&tunnel_id(tunnel).did(), &[], ALL).await.unwrap();
        let line = |d: Delivery| (d.seq, format!("{} {:?} {}", d.id, d.sending, d.revision));
        deliveries.extend(page.entries.into_iter().map(line));
    }
    records.sort();
    deliveries.sort();
    (
        records.into_iter().map(|(_, line)| line).collect(),
        deliveries.into_iter().map(|(_, line)| line).collect(),
    )
}

/// Every conversation with its unread messages, and the lines of it.
async fn talks(store: &dyn Store) -> BTreeMap<String, Vec<RecordId>> {
    let mut talks = BTreeMap::new();
    for owner in OWNERS {
        let sessions = store.sessions(&did(owner), ALL).await.unwrap();
        for session in sessions.entries {
            let lines = pages(3, false, async |window| {
                store.session(&did(owner), &session.peer, window).await.unwrap()
            });
            let lines: Vec<_> = lines.await.concat().iter().map(|line| line.record.id).collect();
            assert_eq!(lines.last(), Some(&session.last.record.id));
            talks.insert(format!("{owner} {} {}", session.peer, session.unread), lines);
        }
    }
    talks
}

/// The whole store, as far as the calls above can see it.
#[derive(Default)]
struct Model {
    now: i64,
    records: Vec<Record>,
    deliveries: Vec<Way>,
    heard: BTreeMap<u8, usize>,
    pest_blocked: bool,
    bob_blocks_ann: bool,
}

struct Record {
    letter: usize,
    id: RecordId,
    owner: String,
    box_kind: BoxKind,
    reading: ReadStatus,
    revision: i64,
}

struct Way {
    id: RecordId,
    tunnel: usize,
    sending: SendStatus,
    revision: i64,
    created: i64,
}

impl Model {
    fn answer(&mut self, call: &Call) -> String {
        let now = at(self.now);
        match call {
            Call::Dispatch { letter, external_id } => self.dispatch(*letter, *external_id),
            Call::Post { letter, wait } => self.post(*letter, *wait),
            Call::Read { owner, secs } => {
                let owner = OWNERS[*owner];
                let next = self.records.iter_mut().find(|record| {
                    record.owner == owner
                        && record.box_kind == BoxKind::Inbox
                        && record.reading.state == ReadStateData::Unread
                });
                let Some(record) = next else { return "None".to_owned() };
                let taken = record.reading.clone().lease(name("r"), now, term(*secs)).unwrap();
                record.become_(taken);
                format!("{:?}", Some((record.id, &record.reading)))
            }
            Call::Mark { record, to, show } => {
                let Some(at) = self.record(*record) else { return String::new() };
                let guard = self.show_reader(at, *show);
                let record = &mut self.records[at];
                match record.reading.clone().mark(*to, &guard, now, term(3)) {
                    Ok(next) => {
                        record.become_(next);
                        format!("{:?}", record.reading)
                    }
                    Err(refused) => word(&refused.into()),
                }
            }
            Call::Send { tunnel, secs } => {
                let due = |way: &Way| match way.sending.state {
                    SendStateData::Wait { due } | SendStateData::Failed { due, .. } => Some(due),
                    _ => None,
                };
                let next = self
                    .deliveries
                    .iter_mut()
                    .filter(|way| way.tunnel == *tunnel && due(way).is_some_and(|due| due <= now))
                    .min_by_key(|way| due(way));
                let Some(way) = next else { return "None".to_owned() };
                let taken = way.sending.clone().lease(name("r"), now, term(*secs)).unwrap();
                way.become_(taken);
                format!("{:?}", Some((way.id, &way.sending)))
            }
            Call::Settle { delivery, outcome, show } => {
                let Some(at) = self.delivery(*delivery) else { return String::new() };
                let guard = self.show_sender(at, *show);
                let way = &mut self.deliveries[at];
                let JitteredRetry { retry, jitter } = AGAIN;
                let sending = way.sending.clone();
                match sending.report(outcome.clone(), &guard, now, &retry, way.manner(), jitter) {
                    Ok(next) => {
                        way.become_(next);
                        format!("{:?}", way.sending)
                    }
                    Err(refused) => word(&refused.into()),
                }
            }
            Call::Move { delivery, to } => {
                let Some(at) = self.delivery(*delivery) else { return String::new() };
                let way = &mut self.deliveries[at];
                match way.sending.clone().mark(*to, &by("r"), now) {
                    Ok(next) => {
                        way.become_(next);
                        format!("{:?}", way.sending)
                    }
                    Err(refused) => word(&refused.into()),
                }
            }
            Call::Sweep { limit } => {
                format!("{:?}", self.sweep(*limit, |lease| lease.has_expired(now)))
            }
            Call::Release => {
                let ours = |lease: &Lease| lease.holder.as_str().starts_with('r');
                format!("{:?}", self.sweep(usize::MAX, ours))
            }
            Call::Welcome { pest } => {
                self.pest_blocked = !pest;
                String::new()
            }
            Call::Block { ann } => {
                self.bob_blocks_ann = *ann;
                String::new()
            }
            Call::Tick { secs } => {
                self.now += secs;
                String::new()
            }
            Call::Reopen => String::new(),
        }
    }

    fn dispatch(&mut self, number: usize, external_id: Option<u8>) -> String {
        let again = |model: &Self, number| {
            format!("{} again: {}", letter(number).id(), model.placed(number).join(" "))
        };
        if let Some(first) = external_id.and_then(|id| self.heard.get(&id).copied()) {
            return again(self, first);
        }
        if !self.placed(number).is_empty() {
            self.heard.extend(external_id.map(|id| (id, number)));
            return again(self, number);
        }
        let (author, to) = LETTERS[number % LETTERS.len()];
        let here: Vec<_> = to.iter().filter(|target| !target.starts_with("did:")).collect();
        let blocked = || format!("{} blocked", letter(number).id());
        if self.blocked(author) {
            return blocked();
        }
        if here.is_empty() {
            return "nobody here".to_owned();
        }
        for target in here {
            if !self.refuses(target, author) {
                self.place(number, target, BoxKind::Inbox);
            }
        }
        if self.placed(number).is_empty() {
            return blocked();
        }
        self.heard.extend(external_id.map(|id| (id, number)));
        format!("{} {}", letter(number).id(), self.placed(number).join(" "))
    }

    fn post(&mut self, number: usize, wait: i64) -> String {
        let (author, to) = LETTERS[number % LETTERS.len()];
        let posted =
            self.records.iter().any(|r| r.letter == number && r.box_kind == BoxKind::Outbox);
        let has_box = |who: &str| self.records.iter().any(|record| record.owner == who);
        let ways = |model: &Self| {
            let gets = |target: &str| {
                target.starts_with("did:")
                    || model.placed(number).contains(&format!("{target}/INBOX"))
            };
            to.iter().map(|target| (did(target), gets(target))).collect::<BTreeMap<_, _>>()
        };
        if posted {
            return format!("true {:?}", ways(self));
        }
        if self.blocked(author) {
            return "blocked author".to_owned();
        }
        if to.contains(&"nobody") && !has_box("nobody") {
            return "unresolvable".to_owned();
        }
        self.place(number, author, BoxKind::Outbox);
        for target in to {
            let Some(endpoint) = did(target).endpoint() else { continue };
            let tunnel = endpoint.tunnel.did();
            self.deliveries.push(Way {
                id: RecordId::delivery(&tunnel, &did(target), &letter(number).id()),
                tunnel: TUNNELS.iter().position(|(id, _)| *id == endpoint.tunnel.as_str()).unwrap(),
                sending: SendStatus::start(at(self.now + wait)),
                revision: 0,
                created: self.now,
            });
        }
        for target in to.iter().filter(|target| !target.starts_with("did:")) {
            if !self.refuses(target, author) {
                self.place(number, target, BoxKind::Inbox);
            }
        }
        format!("false {:?}", ways(self))
    }

    /// Ends the leases that are over, the one that has been so the longest first.
    fn sweep(&mut self, limit: usize, over: impl Fn(&Lease) -> bool) -> SweepCounts {
        let now = at(self.now);
        let mut readers: Vec<_> = self
            .records
            .iter_mut()
            .filter_map(|record| match &record.reading.state {
                ReadStateData::Reading(lease) if over(lease) => Some((lease.until, record)),
                _ => None,
            })
            .collect();
        readers.sort_by_key(|(until, _)| *until);
        let mut swept = SweepCounts::default();
        for (_, record) in readers.into_iter().take(limit) {
            let mut reading = record.reading.clone();
            if let ReadStateData::Reading(lease) = &mut reading.state {
                lease.until = lease.until.min(now);
            }
            record.become_(reading.expire(now).unwrap());
            swept.records += 1;
        }
        let mut senders: Vec<_> = self
            .deliveries
            .iter_mut()
            .filter_map(|way| match &way.sending.state {
                SendStateData::Sending(lease) if over(lease) => Some((lease.until, way)),
                _ => None,
            })
            .collect();
        senders.sort_by_key(|(until, _)| *until);
        let JitteredRetry { retry, jitter } = AGAIN;
        for (_, way) in senders.into_iter().take(limit) {
            let mut sending = way.sending.clone();
            if let SendStateData::Sending(lease) = &mut sending.state {
                lease.until = lease.until.min(now);
            }
            way.become_(sending.expire(now, &retry, way.manner(), jitter).unwrap());
            swept.deliveries += 1;
        }
        swept
    }

    fn place(&mut self, letter_number: usize, owner: &str, box_kind: BoxKind) {
        let id = RecordId::record(&did(owner), box_kind, &letter(letter_number).id());
        if self.records.iter().all(|record| record.id != id) {
            self.records.push(Record {
                letter: letter_number,
                id,
                owner: owner.to_owned(),
                box_kind,
                reading: ReadStatus::start(box_kind),
                revision: 0,
            });
        }
    }

    fn placed(&self, letter: usize) -> Vec<String> {
        let here = |r: &&Record| r.letter == letter && r.box_kind != BoxKind::Outbox;
        self.records.iter().filter(here).map(|r| format!("{}/INBOX", r.owner)).collect()
    }

    fn blocked(&self, author: &str) -> bool {
        author == "pest" && self.pest_blocked
    }

    fn refuses(&self, target: &str, author: &str) -> bool {
        self.bob_blocks_ann && (target, author) == ("bob", "ann")
    }

    fn record(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.records.len())
    }

    fn delivery(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.deliveries.len())
    }

    fn show_reader(&self, at: usize, show: Show) -> LeaseProof {
        guard(self.records[at].reading.epoch, show)
    }

    fn show_sender(&self, at: usize, show: Show) -> LeaseProof {
        guard(self.deliveries[at].sending.epoch, show)
    }

    fn contents(&self) -> (Vec<String>, Vec<String>) {
        let record = |r: &Record| format!("{} {:?} {}", r.id, r.reading, r.revision);
        let way = |w: &Way| format!("{} {:?} {}", w.id, w.sending, w.revision);
        (self.records.iter().map(record).collect(), self.deliveries.iter().map(way).collect())
    }

    fn talks(&self) -> BTreeMap<String, Vec<RecordId>> {
        let mut talks = BTreeMap::<_, (usize, Vec<_>)>::new();
        for record in &self.records {
            let (author, to) = LETTERS[record.letter % LETTERS.len()];
            let peers = if record.box_kind == BoxKind::Outbox { to } else { &[author] };
            for peer in peers {
                let (unread, lines) = talks.entry((&record.owner, did(peer))).or_default();
                *unread += usize::from(record.reading.state == ReadStateData::Unread);
                lines.push(record.id);
            }
        }
        let named = |((owner, peer), (unread, lines))| (format!("{owner} {peer} {unread}"), lines);
        talks.into_iter().map(named).collect()
    }

    fn figures(&self) -> StoreCounts {
        let mut figures = StoreCounts::default();
        for record in &self.records {
            let key = (record.box_kind, record.reading.state.name());
            *figures.records.entry(key).or_default() += 1;
        }
        let mut waiting = BTreeSet::new();
        for way in &self.deliveries {
            let state = way.sending.state.name();
            *figures.deliveries.entry(state).or_default() += 1;
            use SendState::{Failed, Held, Sending, Wait};
            if [Wait, Failed, Sending, Held].contains(&state) {
                waiting.insert(at(way.created));
            }
        }
        figures.oldest_waiting = waiting.first().copied();
        figures
    }
}

impl Record {
    /// Every change counts, and what is no change does not.
    fn become_(&mut self, next: ReadStatus) {
        self.revision += i64::from(next != self.reading);
        self.reading = next;
    }
}

impl Way {
    fn become_(&mut self, next: SendStatus) {
        self.revision += i64::from(next != self.sending);
        self.sending = next;
    }

    fn manner(&self) -> TunnelCapabilities {
        TunnelCapabilities { idempotent: TUNNELS[self.tunnel].1 }
    }
}

fn guard(epoch: u64, show: Show) -> LeaseProof {
    match show {
        Show::Epoch => in_epoch(epoch),
        Show::OldEpoch => in_epoch(epoch.wrapping_sub(1)),
        Show::Name => by("r"),
        Show::OtherName => by("somebody else"),
    }
}
