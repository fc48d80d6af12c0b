//! Random sequences of calls on records and deliveries, compared with a model in memory.
//!
//! The model keeps lists and calls the state machines of [`monoco_core`]. After each call
//! the test compares the result, all records and deliveries, the counts and the sessions.
//! The store is closed and opened again in the middle, at the end, and at random.

use std::collections::{BTreeMap, BTreeSet};

use monoco_core::delivery::{
    DeliveryOutcome, SendState, SendStateData, SendStatus, TunnelCapabilities,
};
use monoco_core::lease::Lease;
use monoco_core::record::{ReadStateData, ReadStatus};
use monoco_core::retry::Failure;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;
use crate::{StoreCounts, SweepCounts};

const MAX_CALLS: usize = 60;

const OWNERS: [&str; 6] = ["bob", "cat", "unknown", "me", "ann", "pest"];
const TUNNELS: [(&str, bool); 2] = [("lark", false), ("keyed", true)];

/// Author and targets of the sample messages. Each exists in `VARIANTS` texts.
const MESSAGES: [(&str, &[&str]); 9] = [
    ("ann", &["bob"]),
    ("ann", &["bob", "cat"]),
    ("pest", &["cat"]),
    ("pest", &["did:msgtunnel:x.user.lark", "bob"]),
    ("me", &["did:msgtunnel:x.user.lark"]),
    ("me", &["did:msgtunnel:x.user.keyed", "bob"]),
    ("me", &["did:msgtunnel:x.user.lark", "did:msgtunnel:y.user.keyed"]),
    ("me", &["cat", "bob"]),
    ("me", &["unknown", "did:msgtunnel:x.user.lark"]),
];
const VARIANTS: usize = 2;

#[derive(Clone, Debug)]
enum StoreCall {
    Dispatch { message: usize, external_id: Option<u8> },
    Send { message: usize, wait: i64 },
    LeaseRecord { owner: usize, secs: i64 },
    MarkRecord { record: usize, to: ReadState, proof: Proof },
    LeaseDelivery { tunnel: usize, secs: i64 },
    Postpone { delivery: usize, wait: i64, proof: Proof },
    Report { delivery: usize, outcome: DeliveryOutcome, proof: Proof },
    MarkDelivery { delivery: usize, to: SendState },
    BounceDelivery { delivery: usize },
    ExpireLeases { limit: usize },
    ReleaseLeases,
    Unblock { pest: bool },
    Block { ann: bool },
    AdvanceClock { secs: i64 },
    Reopen,
}

/// The [`LeaseProof`] of a call.
#[derive(Clone, Copy, Debug)]
enum Proof {
    Epoch,
    StaleEpoch,
    Holder,
    OtherHolder,
}

fn any_call() -> impl Strategy<Value = StoreCall> {
    let message = 0..MESSAGES.len() * VARIANTS;
    let proof = || {
        prop_oneof![
            4 => Just(Proof::Epoch),
            1 => Just(Proof::StaleEpoch),
            2 => Just(Proof::Holder),
            1 => Just(Proof::OtherHolder),
        ]
    };
    let outcome = prop_oneof![
        2 => Just(DeliveryOutcome::Accepted { external_msg_id: None }),
        1 => Just(DeliveryOutcome::Failed(Failure::Permanent { detail: "no".into(), error_code: None })),
        1 => Just(DeliveryOutcome::Failed(Failure::Unknown { detail: "?".into(), error_code: None })),
        2 => (0..5_000_u64).prop_map(|ms| DeliveryOutcome::Failed(Failure::Temporary {
            detail: "busy".into(),
            retry_after_ms: Some(ms), error_code: None
        })),
    ];
    let reading = prop::sample::select(ReadState::ALL.to_vec());
    let sending = prop::sample::select(SendState::ALL.to_vec());
    prop_oneof![
        8 => (message.clone(), prop::option::of(0..4_u8))
            .prop_map(|(message, external_id)| StoreCall::Dispatch { message, external_id }),
        8 => (message, 0..3_i64).prop_map(|(message, wait)| StoreCall::Send { message, wait }),
        6 => (0..OWNERS.len(), 1..5_i64).prop_map(|(owner, secs)| StoreCall::LeaseRecord { owner, secs }),
        6 => (0..99_usize, reading, proof())
            .prop_map(|(record, to, proof)| StoreCall::MarkRecord { record, to, proof }),
        6 => (0..TUNNELS.len(), 1..5_i64).prop_map(|(tunnel, secs)| StoreCall::LeaseDelivery { tunnel, secs }),
        6 => (0..99_usize, outcome, proof())
            .prop_map(|(delivery, outcome, proof)| StoreCall::Report { delivery, outcome, proof }),
        2 => (0..99_usize, 0..4_i64, proof())
            .prop_map(|(delivery, wait, proof)| StoreCall::Postpone { delivery, wait, proof }),
        4 => (0..99_usize, sending).prop_map(|(delivery, to)| StoreCall::MarkDelivery { delivery, to }),
        2 => (0..99_usize).prop_map(|delivery| StoreCall::BounceDelivery { delivery }),
        3 => (1..4_usize).prop_map(|limit| StoreCall::ExpireLeases { limit }),
        1 => Just(StoreCall::ReleaseLeases),
        1 => any::<bool>().prop_map(|pest| StoreCall::Unblock { pest }),
        1 => any::<bool>().prop_map(|ann| StoreCall::Block { ann }),
        4 => (0..6_i64).prop_map(|secs| StoreCall::AdvanceClock { secs }),
        1 => Just(StoreCall::Reopen),
    ]
}

fn bounce_reason() -> Failure {
    Failure::Permanent { detail: "no mailbox".into(), error_code: Some("5.1.1".into()) }
}

pub(crate) fn histories_match_the_model<H: TestHome>(home: impl Fn() -> H) {
    check_histories(home, any_call(), MAX_CALLS, replay);
}

async fn replay(home: &dyn TestHome, history: &[StoreCall]) -> Result<(), TestCaseError> {
    let mut model = StoreModel::default();
    let mut store = home.open().await;
    for (id, idempotent) in TUNNELS {
        put_tunnel(&*store, id, StrangerPolicy::Accept, idempotent).await;
    }
    add_local_contact(&*store, "bob").await;
    add_local_contact(&*store, "cat").await;
    for (number, call) in history.iter().enumerate() {
        if matches!(call, StoreCall::Reopen) || number == history.len() / 2 {
            drop(store);
            store = home.open().await;
        }
        let answer = call_store(&*store, &model, call).await;
        prop_assert_eq!(answer, model.answer(call), "call {}: {:?}", number, call);
        prop_assert_eq!(contents(&*store).await, model.contents(), "call {}: {:?}", number, call);
        let counts = store.counts().await.unwrap();
        prop_assert_eq!(counts, model.counts(), "call {}: {:?}", number, call);
        prop_assert_eq!(
            session_entries(&*store).await,
            model.session_entries(),
            "call {}: {:?}",
            number,
            call
        );
    }
    drop(store);
    let store = home.open().await;
    prop_assert_eq!(contents(&*store).await, model.contents(), "after closing");
    prop_assert_eq!(session_entries(&*store).await, model.session_entries(), "after closing");
    Ok(())
}

fn sample_message(number: usize) -> MsgObject {
    let (from, to) = MESSAGES[number % MESSAGES.len()];
    chat(from, to, &number.to_string())
}

/// Makes the call on the store and describes the result.
async fn call_store(store: &dyn Store, model: &StoreModel, call: &StoreCall) -> String {
    let now = at(model.now);
    match call {
        StoreCall::Dispatch { message: number, external_id } => {
            let one = DispatchRequest {
                msg: sample_message(*number),
                tunnel: external_id.map(|_| tunnel_id("lark")),
                external_id: external_id.map(|id| id.to_string()),
            };
            match store.dispatch(vec![one], now).await.remove(0) {
                Ok(answer) => format!("{} {}", answer.msg_id, describe(&answer)),
                Err(error) => describe_error(&error),
            }
        }
        StoreCall::Send { message: number, wait } => {
            let not_before = Some(at(model.now + wait));
            let post = SendRequest {
                msg: sample_message(*number),
                key: None,
                not_before,
                origin: SendOrigin::Owner,
            };
            match store.send(post, now).await {
                Ok(SendResult::Queued { duplicate, ways, .. }) => {
                    let ways = ways
                        .iter()
                        .map(|delivery| (delivery.target.clone(), delivery.record_id.is_some()));
                    format!("{duplicate} {:?}", ways.collect::<BTreeMap<_, _>>())
                }
                Ok(SendResult::BlockedAuthor { .. }) => "blocked author".to_owned(),
                Ok(other @ (SendResult::Chained { .. } | SendResult::Held { .. })) => {
                    panic!("{other:?}")
                }
                Err(error) => describe_error(&error),
            }
        }
        StoreCall::LeaseRecord { owner, secs } => {
            let owner = did(OWNERS[*owner]);
            let leased = store
                .lease_record(&owner, BoxKind::Inbox, holder("r"), lease_for(*secs), now)
                .await;
            format!("{:?}", leased.unwrap().map(|leased| (leased.entry.id, leased.entry.reading)))
        }
        StoreCall::MarkRecord { record, to, proof } => {
            let Some(at) = model.record(*record) else { return String::new() };
            let (record, proof) = (&model.records[at], model.record_proof(at, *proof));
            let marked = store.mark_record(record.id, *to, proof, None, lease_for(3), now).await;
            marked.map_or_else(
                |error| describe_error(&error),
                |record| format!("{:?}", record.reading),
            )
        }
        StoreCall::LeaseDelivery { tunnel, secs } => {
            let tunnel = tunnel_id(TUNNELS[*tunnel].0).did();
            let leased = store.lease_delivery(&tunnel, holder("r"), lease_for(*secs), now).await;
            format!("{:?}", leased.unwrap().map(|leased| (leased.entry.id, leased.entry.sending)))
        }
        StoreCall::Report { delivery, outcome, proof } => {
            let Some(at) = model.delivery(*delivery) else { return String::new() };
            let (delivery, proof) = (&model.deliveries[at], model.delivery_proof(at, *proof));
            let reported =
                store.report_delivery(delivery.id, outcome.clone(), proof, RETRY, now).await;
            reported.map_or_else(
                |error| describe_error(&error),
                |delivery| format!("{:?}", delivery.sending),
            )
        }
        StoreCall::Postpone { delivery, wait, proof } => {
            let Some(found) = model.delivery(*delivery) else { return String::new() };
            let proof = model.delivery_proof(found, *proof);
            let (id, until) = (model.deliveries[found].id, at(model.now + wait));
            let postponed = store.postpone_delivery(id, until, proof, now).await;
            postponed.map_or_else(
                |error| describe_error(&error),
                |delivery| format!("{:?}", delivery.sending),
            )
        }
        StoreCall::MarkDelivery { delivery, to } => {
            let Some(at) = model.delivery(*delivery) else { return String::new() };
            let id = model.deliveries[at].id;
            let moved = store.mark_delivery(id, *to, by_holder("r"), None, now).await;
            moved.map_or_else(
                |error| describe_error(&error),
                |delivery| format!("{:?}", delivery.sending),
            )
        }
        StoreCall::BounceDelivery { delivery } => {
            let Some(at) = model.delivery(*delivery) else { return String::new() };
            let bounced = store.bounce_delivery(model.deliveries[at].id, bounce_reason(), now);
            format!("{:?}", bounced.await.unwrap().sending)
        }
        StoreCall::ExpireLeases { limit } => {
            format!("{:?}", store.expire_leases(RETRY, *limit, now).await.unwrap())
        }
        StoreCall::ReleaseLeases => {
            format!("{:?}", store.release_leases("r", RETRY, now).await.unwrap())
        }
        StoreCall::Unblock { pest } => {
            let level = if *pest { ContactLevel::Friend } else { ContactLevel::Block };
            add_contact(store, "pest", level).await;
            String::new()
        }
        StoreCall::Block { ann } => {
            store.set_block(&did("ann"), &did("bob"), *ann, now).await.unwrap();
            String::new()
        }
        StoreCall::AdvanceClock { .. } | StoreCall::Reopen => String::new(),
    }
}

/// The kind of an error, without details.
fn describe_error(error: &StoreError) -> String {
    match error {
        StoreError::NoLocalRecipient(_) => "no local recipient",
        StoreError::UnresolvableTargets(_) => "unresolvable",
        StoreError::InvalidTransition(_) => "wrong state",
        StoreError::LeaseLost(_) => "lease lost",
        other => panic!("{other:?}"),
    }
    .to_owned()
}

/// All records and all deliveries, in order.
async fn contents(store: &dyn Store) -> (Vec<String>, Vec<String>) {
    let (mut records, mut deliveries) = (Vec::new(), Vec::new());
    for owner in OWNERS {
        for box_kind in [BoxKind::Inbox, BoxKind::Outbox] {
            let page = store
                .records(&did(owner), box_kind, &RecordFilter::default(), FULL_PAGE)
                .await
                .unwrap();
            let line = |r: MsgRecord| (r.seq, format!("{} {:?} {}", r.id, r.reading, r.revision));
            records.extend(page.entries.into_iter().map(line));
        }
    }
    for (tunnel, _) in TUNNELS {
        let page = store.deliveries(&tunnel_id(tunnel).did(), &[], FULL_PAGE).await.unwrap();
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

/// The entries of each session, by owner, peer and number of unread messages.
async fn session_entries(store: &dyn Store) -> BTreeMap<String, Vec<RecordId>> {
    let mut session_entries = BTreeMap::new();
    for owner in OWNERS {
        let sessions = store.sessions(&did(owner), FULL_PAGE).await.unwrap();
        for session in sessions.entries {
            let lines = all_pages(3, false, async |request| {
                store.session(&did(owner), &session.peer, request).await.unwrap()
            });
            let lines: Vec<_> = lines.await.concat().iter().map(|line| line.record.id).collect();
            assert_eq!(lines.last(), Some(&session.last.record.id));
            session_entries.insert(format!("{owner} {} {}", session.peer, session.unread), lines);
        }
    }
    session_entries
}

/// The state of a store, as far as [`StoreCall`] can change it.
#[derive(Default)]
struct StoreModel {
    now: i64,
    records: Vec<RecordState>,
    deliveries: Vec<DeliveryState>,
    external_ids: BTreeMap<u8, usize>,
    pest_blocked: bool,
    bob_blocks_ann: bool,
}

struct RecordState {
    message: usize,
    id: RecordId,
    owner: String,
    box_kind: BoxKind,
    reading: ReadStatus,
    revision: i64,
}

struct DeliveryState {
    id: RecordId,
    tunnel: usize,
    target: Did,
    sending: SendStatus,
    revision: i64,
    created: i64,
}

impl StoreModel {
    fn answer(&mut self, call: &StoreCall) -> String {
        let now = at(self.now);
        match call {
            StoreCall::Dispatch { message, external_id } => self.dispatch(*message, *external_id),
            StoreCall::Send { message, wait } => self.send(*message, *wait),
            StoreCall::LeaseRecord { owner, secs } => {
                let owner = OWNERS[*owner];
                let next = self.records.iter_mut().find(|record| {
                    record.owner == owner
                        && record.box_kind == BoxKind::Inbox
                        && record.reading.state == ReadStateData::Unread
                });
                let Some(record) = next else { return "None".to_owned() };
                let leased =
                    record.reading.clone().lease(holder("r"), now, lease_for(*secs)).unwrap();
                record.set_status(leased);
                format!("{:?}", Some((record.id, &record.reading)))
            }
            StoreCall::MarkRecord { record, to, proof } => {
                let Some(at) = self.record(*record) else { return String::new() };
                let proof = self.record_proof(at, *proof);
                let record = &mut self.records[at];
                match record.reading.clone().mark(*to, &proof, now, lease_for(3)) {
                    Ok(next) => {
                        record.set_status(next);
                        format!("{:?}", record.reading)
                    }
                    Err(rejected) => describe_error(&rejected.into()),
                }
            }
            StoreCall::LeaseDelivery { tunnel, secs } => {
                let Some(next) = self.next_delivery(*tunnel) else { return "None".to_owned() };
                let delivery = &mut self.deliveries[next];
                let leased =
                    delivery.sending.clone().lease(holder("r"), now, lease_for(*secs)).unwrap();
                delivery.set_status(leased);
                format!("{:?}", Some((delivery.id, &delivery.sending)))
            }
            StoreCall::Report { delivery, outcome, proof } => {
                let Some(at) = self.delivery(*delivery) else { return String::new() };
                let proof = self.delivery_proof(at, *proof);
                let delivery = &mut self.deliveries[at];
                let JitteredRetry { retry, jitter } = RETRY;
                let sending = delivery.sending.clone();
                match sending.report(
                    outcome.clone(),
                    &proof,
                    now,
                    &retry,
                    delivery.capabilities(),
                    jitter,
                ) {
                    Ok(next) => {
                        delivery.set_status(next);
                        format!("{:?}", delivery.sending)
                    }
                    Err(rejected) => describe_error(&rejected.into()),
                }
            }
            StoreCall::Postpone { delivery, wait, proof } => {
                let Some(found) = self.delivery(*delivery) else { return String::new() };
                let (proof, until) = (self.delivery_proof(found, *proof), at(self.now + wait));
                let delivery = &mut self.deliveries[found];
                match delivery.sending.clone().postpone(until, &proof) {
                    Ok(next) => {
                        delivery.set_status(next);
                        format!("{:?}", delivery.sending)
                    }
                    Err(rejected) => describe_error(&rejected.into()),
                }
            }
            StoreCall::MarkDelivery { delivery, to } => {
                let Some(at) = self.delivery(*delivery) else { return String::new() };
                let delivery = &mut self.deliveries[at];
                match delivery.sending.clone().mark(*to, &by_holder("r"), now) {
                    Ok(next) => {
                        delivery.set_status(next);
                        format!("{:?}", delivery.sending)
                    }
                    Err(rejected) => describe_error(&rejected.into()),
                }
            }
            StoreCall::BounceDelivery { delivery } => {
                let Some(at) = self.delivery(*delivery) else { return String::new() };
                let delivery = &mut self.deliveries[at];
                delivery.set_status(delivery.sending.clone().bounce(bounce_reason()));
                format!("{:?}", delivery.sending)
            }
            StoreCall::ExpireLeases { limit } => {
                format!("{:?}", self.sweep(*limit, |lease| lease.has_expired(now)))
            }
            StoreCall::ReleaseLeases => {
                let ours = |lease: &Lease| lease.holder.as_str().starts_with('r');
                format!("{:?}", self.sweep(usize::MAX, ours))
            }
            StoreCall::Unblock { pest } => {
                self.pest_blocked = !pest;
                String::new()
            }
            StoreCall::Block { ann } => {
                self.bob_blocks_ann = *ann;
                String::new()
            }
            StoreCall::AdvanceClock { secs } => {
                self.now += secs;
                String::new()
            }
            StoreCall::Reopen => String::new(),
        }
    }

    fn dispatch(&mut self, number: usize, external_id: Option<u8>) -> String {
        let again = |model: &Self, number| {
            format!("{} again: {}", sample_message(number).id(), model.boxes_of(number).join(" "))
        };
        if let Some(first) = external_id.and_then(|id| self.external_ids.get(&id).copied()) {
            return again(self, first);
        }
        if !self.boxes_of(number).is_empty() {
            self.external_ids.extend(external_id.map(|id| (id, number)));
            return again(self, number);
        }
        let (author, to) = MESSAGES[number % MESSAGES.len()];
        let here: Vec<_> = to.iter().filter(|target| !target.starts_with("did:")).collect();
        let blocked = || format!("{} blocked", sample_message(number).id());
        if self.blocked(author) {
            return blocked();
        }
        if here.is_empty() {
            return "no local recipient".to_owned();
        }
        for target in here {
            if !self.blocks(target, author) {
                self.add_record(number, target, BoxKind::Inbox);
            }
        }
        if self.boxes_of(number).is_empty() {
            return blocked();
        }
        self.external_ids.extend(external_id.map(|id| (id, number)));
        format!("{} {}", sample_message(number).id(), self.boxes_of(number).join(" "))
    }

    fn send(&mut self, number: usize, wait: i64) -> String {
        let (author, to) = MESSAGES[number % MESSAGES.len()];
        let posted =
            self.records.iter().any(|r| r.message == number && r.box_kind == BoxKind::Outbox);
        let has_box = |who: &str| self.records.iter().any(|record| record.owner == who);
        let ways = |model: &Self| {
            let gets = |target: &str| {
                target.starts_with("did:")
                    || model.boxes_of(number).contains(&format!("{target}/INBOX"))
            };
            to.iter().map(|target| (did(target), gets(target))).collect::<BTreeMap<_, _>>()
        };
        if posted {
            return format!("true {:?}", ways(self));
        }
        if self.blocked(author) {
            return "blocked author".to_owned();
        }
        if to.contains(&"unknown") && !has_box("unknown") {
            return "unresolvable".to_owned();
        }
        self.add_record(number, author, BoxKind::Outbox);
        for target in to {
            let Some(endpoint) = did(target).endpoint() else { continue };
            let tunnel = endpoint.tunnel.did();
            self.deliveries.push(DeliveryState {
                id: RecordId::delivery(&tunnel, &did(target), &sample_message(number).id()),
                tunnel: TUNNELS.iter().position(|(id, _)| *id == endpoint.tunnel.as_str()).unwrap(),
                target: did(target),
                sending: SendStatus::start(at(self.now + wait)),
                revision: 0,
                created: self.now,
            });
        }
        for target in to.iter().filter(|target| !target.starts_with("did:")) {
            if !self.blocks(target, author) {
                self.add_record(number, target, BoxKind::Inbox);
            }
        }
        format!("false {:?}", ways(self))
    }

    /// Ends the leases for which `ends` is true, the oldest first.
    fn sweep(&mut self, limit: usize, ends: impl Fn(&Lease) -> bool) -> SweepCounts {
        let now = at(self.now);
        let mut readers: Vec<_> = self
            .records
            .iter_mut()
            .filter_map(|record| match &record.reading.state {
                ReadStateData::Reading(lease) if ends(lease) => Some((lease.until, record)),
                _ => None,
            })
            .collect();
        readers.sort_by_key(|(until, _)| *until);
        let mut expired = SweepCounts::default();
        for (_, record) in readers.into_iter().take(limit) {
            let mut reading = record.reading.clone();
            if let ReadStateData::Reading(lease) = &mut reading.state {
                lease.until = lease.until.min(now);
            }
            record.set_status(reading.expire(now).unwrap());
            expired.records += 1;
        }
        let mut senders: Vec<_> = self
            .deliveries
            .iter_mut()
            .filter_map(|delivery| match &delivery.sending.state {
                SendStateData::Sending(lease) if ends(lease) => Some((lease.until, delivery)),
                _ => None,
            })
            .collect();
        senders.sort_by_key(|(until, _)| *until);
        let JitteredRetry { retry, jitter } = RETRY;
        for (_, delivery) in senders.into_iter().take(limit) {
            let mut sending = delivery.sending.clone();
            if let SendStateData::Sending(lease) = &mut sending.state {
                lease.until = lease.until.min(now);
            }
            delivery
                .set_status(sending.expire(now, &retry, delivery.capabilities(), jitter).unwrap());
            expired.deliveries += 1;
        }
        expired
    }

    /// The delivery that is leased next. Of each target only the first one can be leased: the
    /// one that has been attempted, or else the one that has been due the longest. One that is
    /// scheduled for later is not among them.
    fn next_delivery(&self, tunnel: usize) -> Option<usize> {
        let now = at(self.now);
        let mut first = BTreeMap::new();
        for (number, delivery) in self.deliveries.iter().enumerate() {
            let due = match delivery.sending.state {
                SendStateData::Wait { due } | SendStateData::Failed { due, .. } => Some(due),
                SendStateData::Sending(_) => None,
                _ => continue,
            };
            let is_attempted = delivery.sending.first_try.is_some();
            if delivery.tunnel != tunnel || !is_attempted && due.is_some_and(|due| due > now) {
                continue;
            }
            let place = (!is_attempted, due, number);
            let entry = first.entry(&delivery.target).or_insert(place);
            *entry = place.min(*entry);
        }
        let leasable = first.into_values().filter_map(|(_, due, number)| Some((due?, number)));
        leasable.filter(|(due, _)| *due <= now).min().map(|(_, number)| number)
    }

    fn add_record(&mut self, number: usize, owner: &str, box_kind: BoxKind) {
        let id = RecordId::record(&did(owner), box_kind, &sample_message(number).id());
        if self.records.iter().all(|record| record.id != id) {
            self.records.push(RecordState {
                message: number,
                id,
                owner: owner.to_owned(),
                box_kind,
                reading: ReadStatus::start(box_kind),
                revision: 0,
            });
        }
    }

    fn boxes_of(&self, message: usize) -> Vec<String> {
        let here = |r: &&RecordState| r.message == message && r.box_kind != BoxKind::Outbox;
        self.records.iter().filter(here).map(|r| format!("{}/INBOX", r.owner)).collect()
    }

    fn blocked(&self, author: &str) -> bool {
        author == "pest" && self.pest_blocked
    }

    fn blocks(&self, target: &str, author: &str) -> bool {
        self.bob_blocks_ann && (target, author) == ("bob", "ann")
    }

    fn record(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.records.len())
    }

    fn delivery(&self, number: usize) -> Option<usize> {
        number.checked_rem(self.deliveries.len())
    }

    fn record_proof(&self, at: usize, proof: Proof) -> LeaseProof {
        lease_proof(self.records[at].reading.epoch, proof)
    }

    fn delivery_proof(&self, at: usize, proof: Proof) -> LeaseProof {
        lease_proof(self.deliveries[at].sending.epoch, proof)
    }

    fn contents(&self) -> (Vec<String>, Vec<String>) {
        let record = |r: &RecordState| format!("{} {:?} {}", r.id, r.reading, r.revision);
        let delivery = |w: &DeliveryState| format!("{} {:?} {}", w.id, w.sending, w.revision);
        (self.records.iter().map(record).collect(), self.deliveries.iter().map(delivery).collect())
    }

    fn session_entries(&self) -> BTreeMap<String, Vec<RecordId>> {
        let mut session_entries = BTreeMap::<_, (usize, Vec<_>)>::new();
        for record in &self.records {
            let (author, to) = MESSAGES[record.message % MESSAGES.len()];
            let peers = if record.box_kind == BoxKind::Outbox { to } else { &[author] };
            for peer in peers {
                let (unread, lines) =
                    session_entries.entry((&record.owner, did(peer))).or_default();
                *unread += usize::from(record.reading.state == ReadStateData::Unread);
                lines.push(record.id);
            }
        }
        let named = |((owner, peer), (unread, lines))| (format!("{owner} {peer} {unread}"), lines);
        session_entries.into_iter().map(named).collect()
    }

    fn counts(&self) -> StoreCounts {
        let mut counts = StoreCounts::default();
        for record in &self.records {
            let key = (record.box_kind, record.reading.state.name());
            *counts.records.entry(key).or_default() += 1;
        }
        let mut waiting = BTreeSet::new();
        for delivery in &self.deliveries {
            let state = delivery.sending.state.name();
            *counts.deliveries.entry(state).or_default() += 1;
            use SendState::{Failed, Held, Sending, Wait};
            if [Wait, Failed, Sending, Held].contains(&state) {
                waiting.insert(at(delivery.created));
            }
        }
        counts.oldest_waiting = waiting.first().copied();
        counts
    }
}

impl RecordState {
    /// Sets the status. The revision grows only when the status changes.
    fn set_status(&mut self, next: ReadStatus) {
        self.revision += i64::from(next != self.reading);
        self.reading = next;
    }
}

impl DeliveryState {
    fn set_status(&mut self, next: SendStatus) {
        self.revision += i64::from(next != self.sending);
        self.sending = next;
    }

    fn capabilities(&self) -> TunnelCapabilities {
        TunnelCapabilities { idempotent: TUNNELS[self.tunnel].1, finds_sent: false }
    }
}

fn lease_proof(epoch: u64, proof: Proof) -> LeaseProof {
    match proof {
        Proof::Epoch => by_epoch(epoch),
        Proof::StaleEpoch => by_epoch(epoch.wrapping_sub(1)),
        Proof::Holder => by_holder("r"),
        Proof::OtherHolder => by_holder("other"),
    }
}
