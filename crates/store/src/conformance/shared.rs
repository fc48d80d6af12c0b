//! Conformance tests of a store that several couriers use at the same time.
//!
//! A backend for several couriers implements [`SharedHome`] and gets one test for each by
//! [`shared_tests`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{join, join_all};
use monoco_core::approval::SendOrigin;
use monoco_core::object::ObjKind;
use tokio::time::timeout;

use super::erasure::{of, with_files};
use super::inbound::{inbound_message, merge_due, store_inbound};
use super::mails::mail_texts;
use super::status::recount;
use super::*;
use crate::sql::erasure::DeletionPause;
use crate::{StoreInboundRequest, StoreInboundResult};

/// How long a test waits for what another courier publishes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often a follower reads when nothing is announced.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// When the connection of a courier is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutPoint {
    /// Before the batch waits for its turn.
    BeforeOrder,
    /// All commands have run.
    BeforeCommit,
    /// The database has committed, and its answer is lost.
    AfterCommit,
}

impl CutPoint {
    pub(crate) const ALL: [Self; 3] = [Self::BeforeOrder, Self::BeforeCommit, Self::AfterCommit];
}

/// A database that several couriers use.
#[async_trait]
pub(crate) trait SharedHome: TestHome {
    /// Opens the store as another courier.
    async fn open_as(&self, courier: &str) -> SharedStore;

    /// Cuts the connection of a courier during its next commit.
    fn cut(&self, courier: &str, point: CutPoint);

    /// Where an erasure of a courier can be stopped.
    fn deletion_pause(&self, courier: &str) -> Arc<DeletionPause>;
}

/// Defines a `#[tokio::test]` for each test of a shared store. `$home` is a function that returns
/// a new [`SharedHome`].
macro_rules! shared_tests {
    ($home:path) => {
        crate::conformance::tests_of! { $home, shared:
            ;
            two_starts_migrate_once,
            message_through_both_couriers_is_stored_once,
            key_is_used_for_one_of_two_messages,
            opposite_orders_do_not_deadlock,
            entry_is_leased_once_by_either_courier,
            late_report_through_the_other_courier_is_rejected,
            burst_received_by_both_couriers_is_one_mail,
            message_that_arrives_during_a_merge_is_in_one_mail,
            follower_of_events_misses_and_repeats_nothing,
            block_binds_the_other_courier_at_once,
            counts_of_both_couriers_equal_a_recount,
            hints_reach_the_other_courier,
            cut_commit_is_done_once_and_answered,
            burst_of_couriers_that_take_turns_keeps_numbers_dense,
            cut_commit_of_couriers_that_take_turns_is_done_once,
            dispatches_of_couriers_that_take_turns_are_done_once,
            file_that_another_courier_refers_to_during_an_erasure_stays,
            file_that_another_courier_has_erased_must_be_stored_again,
            erasure_of_both_couriers_leaves_no_file,
        }
    };
}
pub(crate) use shared_tests;

async fn both(home: &dyn SharedHome) -> (SharedStore, SharedStore) {
    (home.open_as("a").await, home.open_as("b").await)
}

async fn inbox_size(store: &dyn Store, owner: &str) -> usize {
    let filter = RecordFilter::default();
    store.records(&did(owner), BoxKind::Inbox, &filter, FULL_PAGE).await.unwrap().entries.len()
}

pub(crate) async fn two_starts_migrate_once(home: &dyn SharedHome) {
    let stores = join_all(["a", "b", "c", "d"].map(|courier| home.open_as(courier))).await;
    for (n, store) in stores.iter().enumerate() {
        add_local_contact(&**store, &format!("bob{n}")).await;
    }
    assert_eq!(stores[0].contacts(FULL_PAGE).await.unwrap().entries.len(), 4);
}

pub(crate) async fn message_through_both_couriers_is_stored_once(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    put_lark_tunnel(&*a).await;
    add_local_contact(&*a, "bob").await;
    for n in 0..10 {
        let id = format!("om_{n}");
        let request = || via_tunnel("lark", &id, chat("ann", &["bob"], &n.to_string()));
        let (left, right) = join(dispatch(&*a, request()), dispatch(&*b, request())).await;
        let mut results = [left.as_str(), right.as_str()];
        results.sort_unstable();
        assert_eq!(results, ["again: bob/INBOX", "bob/INBOX"]);

        let inbound = || inbound_message(&format!("in_{n}"), "ann", "a");
        let (left, right) =
            join(store_inbound(&*a, inbound(), n), store_inbound(&*b, inbound(), n)).await;
        let stored = [left, right].iter().filter(|it| **it == StoreInboundResult::Stored).count();
        assert_eq!(stored, 1);

        let letter = || SendRequest {
            msg: chat("ann", &["bob"], &format!("sent {n}")),
            key: Some(format!("key {n}")),
            not_before: None,
            origin: SendOrigin::Owner,
        };
        let (left, right) = join(a.send(letter(), at(0)), b.send(letter(), at(0))).await;
        let new = [left, right].into_iter().filter(|result| {
            matches!(result.as_ref().unwrap(), SendResult::Queued { duplicate: false, .. })
        });
        assert_eq!(new.count(), 1);
    }
    assert_eq!(inbox_size(&*b, "bob").await, 20);
}

pub(crate) async fn key_is_used_for_one_of_two_messages(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    for n in 0..10 {
        let request = |text: &str| SendRequest {
            msg: chat("ann", &["bob"], &format!("{text} {n}")),
            key: Some(format!("key {n}")),
            not_before: None,
            origin: SendOrigin::Owner,
        };
        let sent = join(a.send(request("a"), at(0)), b.send(request("b"), at(0))).await;
        let rejected = [sent.0, sent.1].into_iter().filter_map(Result::err);
        let rejected: Vec<_> = rejected.collect();
        assert_matches!(&rejected[..], [StoreError::KeyReused(_)]);
    }
}

pub(crate) async fn opposite_orders_do_not_deadlock(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    for name in ["bob", "cat"] {
        add_local_contact(&*a, name).await;
    }
    for round in 0..20 {
        let mut there: Vec<_> = (0..10)
            .map(|n| {
                let to = if n % 2 == 0 { ["bob", "cat"] } else { ["cat", "bob"] };
                without_tunnel(chat("ann", &to, &format!("{round} {n}")))
            })
            .collect();
        let here = there.clone();
        there.reverse();
        let done = join(a.dispatch(here, at(0)), b.dispatch(there, at(0))).await;
        assert!(done.0.iter().chain(&done.1).all(Result::is_ok));
    }
    assert_eq!(inbox_size(&*a, "bob").await, 200);
}

pub(crate) async fn entry_is_leased_once_by_either_courier(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    for n in 0..40 {
        dispatch_text(&*a, &n.to_string()).await;
    }
    let take_all = async |store: &dyn Store| {
        let mut taken = Vec::new();
        while let Some(leased) = lease_next_record(store, "bob", 0).await {
            taken.push(leased_text(&leased));
        }
        taken
    };
    let takers = [&*a, &*b, &*a, &*b].map(take_all);
    let taken: Vec<String> = join_all(takers).await.concat();
    assert_eq!(taken.len(), 40);
    assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), 40);
}

pub(crate) async fn late_report_through_the_other_courier_is_rejected(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    dispatch_text(&*a, "hello").await;
    let first = lease_next_record(&*a, "bob", 0).await.unwrap();
    assert_eq!(b.expire_leases(RETRY, 10, at(100)).await.unwrap().records, 1);
    let second = lease_next_record(&*b, "bob", 100).await.unwrap();
    let late = |store: SharedStore| async move {
        let (id, proof) = (first.entry.id, by_epoch(first.entry.reading.epoch));
        store.mark_record(id, ReadState::Readed, proof, None, lease_for(60), at(101)).await
    };
    assert_matches!(late(b).await, Err(StoreError::LeaseLost(_)));
    let proof = by_epoch(second.entry.reading.epoch);
    let (id, term) = (second.entry.id, lease_for(60));
    a.mark_record(id, ReadState::Readed, proof, None, term, at(101)).await.unwrap();
}

pub(crate) async fn burst_received_by_both_couriers_is_one_mail(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    put_lark_tunnel(&*a).await;
    let store = |n: usize| {
        let store = if n.is_multiple_of(2) { &a } else { &b };
        store_inbound(&**store, inbound_message(&n.to_string(), "ann", &n.to_string()), 0)
    };
    let stored = join_all((0..10).map(store)).await;
    assert!(stored.iter().all(|result| *result == StoreInboundResult::Stored));
    let merged = join(merge_due(&*a, 60), merge_due(&*b, 60)).await;
    assert_eq!(merged.0 + merged.1, 1);
    let texts = mail_texts(&*b).await;
    assert_eq!((texts.matches('|').count(), texts.matches('+').count()), (0, 9), "{texts}");
}

pub(crate) async fn message_that_arrives_during_a_merge_is_in_one_mail(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    put_lark_tunnel(&*a).await;
    for n in 0..10 {
        let (first, second) = (format!("{n} first"), format!("{n} second"));
        store_inbound(&*a, inbound_message(&first, "ann", &first), n * 100).await;
        let late = inbound_message(&second, "ann", &second);
        join(merge_due(&*b, n * 100 + 60), store_inbound(&*a, late, n * 100 + 1)).await;
    }
    join(merge_due(&*a, 9_999), merge_due(&*b, 9_999)).await;
    let texts = mail_texts(&*a).await;
    for n in 0..10 {
        for text in [format!("{n} first"), format!("{n} second")] {
            assert_eq!(texts.matches(&text).count(), 1, "{text} in {texts}");
        }
    }
}

pub(crate) async fn follower_of_events_misses_and_repeats_nothing(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    let done = AtomicBool::new(false);
    let write = async {
        let write = async |store: &dyn Store, name: &str| {
            for n in 0..50 {
                dispatch_text(store, &format!("{name} {n}")).await;
            }
        };
        join(write(&*a, "a"), write(&*b, "b")).await;
        done.store(true, Ordering::SeqCst);
    };
    let follow = async {
        let (mut seen, mut newest) = (Vec::<i64>::new(), b.newest_event());
        loop {
            let is_last = done.load(Ordering::SeqCst);
            let events = b.events(seen.last().copied().unwrap_or(0), 7).await.unwrap();
            seen.extend(events.iter().map(|event| event.seq));
            match (events.is_empty(), is_last) {
                (true, true) => return seen,
                (true, false) => drop(timeout(POLL_INTERVAL, newest.changed()).await),
                (false, _) => {}
            }
        }
    };
    let ((), seen) = join(write, follow).await;
    let all: Vec<i64> = a.events(0, 10_000).await.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(seen, all);
    let last = i64::try_from(all.len()).unwrap();
    assert_eq!(all, (1..=last).collect::<Vec<_>>(), "numbers have no gaps");
}

pub(crate) async fn block_binds_the_other_courier_at_once(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    assert_eq!(dispatch_text(&*b, "before").await, "bob/INBOX");
    for n in 0..10 {
        a.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
        assert_eq!(dispatch_text(&*b, &format!("blocked {n}")).await, "blocked");
        a.set_block(&did("ann"), &did("bob"), false, at(0)).await.unwrap();
        assert_eq!(dispatch_text(&*b, &format!("allowed {n}")).await, "bob/INBOX");
    }
}

pub(crate) async fn counts_of_both_couriers_equal_a_recount(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    let write = async |store: &dyn Store, name: &str| {
        for n in 0..30 {
            dispatch_text(store, &format!("{name} {n}")).await;
            if let Some(leased) = lease_next_record(store, "bob", 0).await {
                mark(store, leased.entry.id, ReadState::Readed, 0).await.unwrap();
            }
        }
    };
    tokio::join!(write(&*a, "a"), write(&*b, "b"));
    let counted = recount(&*b, &["ann", "bob"], &[]).await;
    assert_eq!(a.counts().await.unwrap(), counted);
    assert_eq!(b.counts().await.unwrap(), counted);
}

pub(crate) async fn hints_reach_the_other_courier(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    let (mut hints, mut newest) = (b.hints(), b.newest_event());
    // The first hints can be sent before the other courier listens.
    for n in 0.. {
        dispatch_text(&*a, &n.to_string()).await;
        if let Ok(hint) = timeout(Duration::from_secs(1), hints.recv()).await {
            assert_eq!(hint.unwrap().owner, did("bob"));
            break;
        }
        assert!(n < 60, "no hint arrived");
    }
    let last = a.events(0, 10_000).await.unwrap().last().unwrap().seq;
    timeout(PATIENCE, newest.wait_for(|newest| *newest >= last)).await.unwrap().unwrap();
}

pub(crate) async fn cut_commit_is_done_once_and_answered(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    put_lark_tunnel(&*a).await;
    add_local_contact(&*a, "bob").await;
    add_local_contact(&*a, "cat").await;
    for (n, point) in (0..).zip(CutPoint::ALL) {
        home.cut("a", point);
        assert_eq!(dispatch_text(&*a, &format!("{point:?}")).await, "bob/INBOX", "{point:?}");
        let text = format!("{point:?} again");
        home.cut("a", point);
        let again = dispatch_text(&*a, &format!("{point:?}")).await;
        assert_eq!(again, "again: bob/INBOX", "{point:?}");

        home.cut("a", point);
        let leased = lease_next_record(&*a, "bob", 0).await.unwrap();
        assert_eq!(leased_text(&leased), format!("{point:?}"));
        assert_eq!(leased.entry.reading.attempts, 1, "{point:?}");
        home.cut("a", point);
        let marked = mark(&*a, leased.entry.id, ReadState::Readed, 0).await.unwrap();
        assert_eq!(marked.revision, 2, "{point:?}");

        home.cut("a", point);
        let inbound = inbound_message(&text, "ann", &text);
        assert_eq!(store_inbound(&*a, inbound, n * 100).await, StoreInboundResult::Stored);
        home.cut("a", point);
        assert_eq!(merge_due(&*a, n * 100 + 60).await, 1, "{point:?}");

        home.cut("a", point);
        let key = Some(format!("{point:?}"));
        let request = SendRequest { key, ..send_request(chat("ann", &["cat"], &text)) };
        let sent = a.send(request, at(0)).await.unwrap();
        assert_matches!(sent, SendResult::Queued { duplicate: false, .. });
    }
    assert_eq!(mail_texts(&*b).await.matches('|').count(), 2);
    let all: Vec<i64> = b.events(0, 1_000).await.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(all, (1..=i64::try_from(all.len()).unwrap()).collect::<Vec<_>>());
    let counted = recount(&*b, &["ann", "bob", "cat"], &["lark"]).await;
    let mut counts = b.counts().await.unwrap().records;
    // The Mails are in the box of the chat, one for each cut.
    let mails = counts.remove(&(BoxKind::GroupInbox, ReadState::Unread));
    assert_eq!((counts, mails), (counted.records, Some(3)));
}

/// Numbers of events have no gaps.
async fn assert_dense(store: &dyn Store) {
    let all: Vec<i64> =
        store.events(0, 10_000).await.unwrap().iter().map(|event| event.seq).collect();
    assert_eq!(all, (1..=i64::try_from(all.len()).unwrap()).collect::<Vec<_>>());
}

pub(crate) async fn burst_of_couriers_that_take_turns_keeps_numbers_dense(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    // The authors and their conversations are new in the first round, and known in the others.
    // Records are leased beside them.
    for round in 0..4 {
        let write = async |n: usize| {
            let store = if n.is_multiple_of(2) { &*a } else { &*b };
            if n.is_multiple_of(5) {
                let leased = lease_next_record(store, "bob", 0).await;
                return usize::from(leased.is_some());
            }
            let author = format!("author-{n}");
            for text in ["first", "second"] {
                let text = format!("{text} of {author} in round {round}");
                let msg = chat(&author, &["bob"], &text);
                assert_eq!(dispatch(store, without_tunnel(msg)).await, "bob/INBOX");
            }
            0
        };
        join_all((0..40).map(write)).await;
    }
    assert_eq!(inbox_size(&*b, "bob").await, 4 * 32 * 2);
    assert_dense(&*a).await;
    let sessions = b.sessions(&did("bob"), FULL_PAGE).await.unwrap().entries;
    assert_eq!(sessions.len(), 32);
    for session in sessions {
        let last = body_text(session.last.body.unwrap().as_bytes());
        assert_eq!(last, format!("second of {} in round 3", short_name(&session.peer)));
        let entries = a.session(&did("bob"), &session.peer, FULL_PAGE).await.unwrap().entries;
        assert_eq!(entries.len(), 4 * 2, "{}", session.peer);
    }
    let mut names: Vec<String> = (0..40).map(|n| format!("author-{n}")).collect();
    names.push("bob".to_owned());
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(a.counts().await.unwrap(), recount(&*b, &names, &[]).await);
}

pub(crate) async fn cut_commit_of_couriers_that_take_turns_is_done_once(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    for point in CutPoint::ALL {
        // After the commit of the other courier this one waits for its turn.
        for store in [&*b, &*a, &*b] {
            let text = format!("{point:?} {}", inbox_size(store, "bob").await);
            assert_eq!(dispatch_text(store, &text).await, "bob/INBOX");
        }
        home.cut("a", point);
        assert_eq!(dispatch_text(&*a, &format!("{point:?}")).await, "bob/INBOX", "{point:?}");
        let again = dispatch_text(&*b, &format!("{point:?}")).await;
        assert_eq!(again, "again: bob/INBOX", "{point:?}");
    }
    assert_eq!(inbox_size(&*b, "bob").await, 3 * 4);
    assert_dense(&*b).await;
    assert_eq!(a.counts().await.unwrap(), recount(&*b, &["ann", "bob"], &[]).await);
}

/// Both couriers add to one conversation, for long enough that they have found out that they take
/// turns. Now and then one loses its connection.
pub(crate) async fn dispatches_of_couriers_that_take_turns_are_done_once(home: &dyn SharedHome) {
    const ROUNDS: usize = 120;
    let (a, b) = both(home).await;
    add_local_contact(&*a, "bob").await;
    let mut newest = a.newest_event();
    for round in 0..ROUNDS {
        // In the last rounds the couriers assume again what they do without a lost connection.
        if (60..90).contains(&round) && round.is_multiple_of(10) {
            home.cut("a", CutPoint::ALL[round / 10 % CutPoint::ALL.len()]);
        }
        let dispatch = async |n: usize| {
            let (store, courier) = if n.is_multiple_of(2) { (&*a, "a") } else { (&*b, "b") };
            dispatch_text(store, &format!("{round} {courier} {n}")).await
        };
        assert_eq!(join_all((0..6).map(dispatch)).await, ["bob/INBOX"; 6], "{round}");
    }
    // The number of an event is known with the answer, without a hint.
    assert_eq!(dispatch_text(&*a, "the last one").await, "bob/INBOX");
    let known = *newest.borrow();
    assert_eq!(a.events(0, 10_000).await.unwrap().last().unwrap().seq, known);
    let sent = ROUNDS * 6 + 1;
    // Before the repeated messages, after which the next batches assume nothing.
    b.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    assert_eq!(dispatch_text(&*a, "after the block").await, "blocked");
    for store in [&*a, &*b] {
        assert_eq!(dispatch_text(store, "5 a 0").await, "again: bob/INBOX");
    }

    assert_eq!(inbox_size(&*b, "bob").await, sent);
    assert_dense(&*b).await;
    let last = b.events(0, 10_000).await.unwrap().last().unwrap().seq;
    timeout(PATIENCE, newest.wait_for(|newest| *newest >= last)).await.unwrap().unwrap();
    assert_eq!(*newest.borrow(), last);
    let sessions = a.sessions(&did("bob"), FULL_PAGE).await.unwrap().entries;
    assert_eq!(sessions.iter().map(|session| session.unread).collect::<Vec<_>>(), [sent]);
    let entries = a.session(&did("bob"), &did("ann"), FULL_PAGE).await.unwrap().entries;
    let seqs: Vec<i64> = entries.iter().map(|entry| entry.record.seq).collect();
    assert_eq!(seqs, (1..=i64::try_from(sent).unwrap()).collect::<Vec<_>>());
    assert_eq!(sessions[0].last.record.seq, seqs[seqs.len() - 1]);
    assert_eq!(a.counts().await.unwrap(), recount(&*b, &["ann", "bob"], &[]).await);
}

const FILE: &[u8] = b"bytes that two people send";

/// A message with [`FILE`], whose bytes are not stored with it.
fn with_stored_file(id: &str, from: &str) -> StoreInboundRequest {
    let request = with_files(inbound_message(id, from, "see the file"), &[FILE]);
    StoreInboundRequest { attachments: Vec::new(), ..request }
}

/// Reads [`FILE`] through both couriers.
async fn assert_file(stores: [&dyn Store; 2]) {
    for store in stores {
        let id = ObjId::of(ObjKind::Bytes, FILE);
        assert_eq!(store.object(id).await.unwrap(), FILE);
        assert_eq!(store.missing_blobs(10).await.unwrap(), (0, Vec::new()));
    }
}

async fn erase_ann(store: &dyn Store) {
    store.erase(&of(&["ann", &endpoint("ann", "lark")]), at(500)).await.unwrap();
    store.finish_erasure().await.unwrap();
}

pub(crate) async fn file_that_another_courier_refers_to_during_an_erasure_stays(
    home: &dyn SharedHome,
) {
    let (a, b) = both(home).await;
    put_lark_tunnel(&*a).await;
    store_inbound(&*b, with_files(inbound_message("om_1", "ann", "mine"), &[FILE]), 1).await;
    // The other courier has received the bytes, and not stored the message yet.
    a.put_blob(FILE.to_vec()).await.unwrap();
    let pause = home.deletion_pause("b");
    pause.set();
    let refer = async {
        pause.wait().await;
        assert_eq!(
            store_inbound(&*a, with_stored_file("om_2", "bob"), 2).await,
            StoreInboundResult::Stored
        );
        pause.resume();
    };
    timeout(PATIENCE, join(erase_ann(&*b), refer)).await.unwrap();
    assert_file([&*a, &*b]).await;
}

pub(crate) async fn file_that_another_courier_has_erased_must_be_stored_again(
    home: &dyn SharedHome,
) {
    let (a, b) = both(home).await;
    put_lark_tunnel(&*a).await;
    store_inbound(&*b, with_files(inbound_message("om_1", "ann", "mine"), &[FILE]), 1).await;
    a.put_blob(FILE.to_vec()).await.unwrap();
    erase_ann(&*b).await;
    assert_matches!(
        a.object(ObjId::of(ObjKind::Bytes, FILE)).await,
        Err(StoreError::Missing { .. })
    );
    // Not acknowledged, so the provider sends it again, with its bytes.
    let rejected = a.store_inbound(vec![with_stored_file("om_2", "bob")], at(2)).await.remove(0);
    assert_matches!(rejected, Err(StoreError::Unavailable(why)) if why.contains("erasure"));
    let again = with_files(inbound_message("om_2", "bob", "see the file"), &[FILE]);
    assert_eq!(store_inbound(&*a, again, 3).await, StoreInboundResult::Stored);
    assert_file([&*a, &*b]).await;
    // A large message is rejected in the same way by the commit of its row, not later by a reader.
    let large = chat("cat", &["bob"], &"long ".repeat(60_000));
    dispatch(&*a, without_tunnel(large.clone())).await;
    assert_eq!(b.object(large.id()).await.unwrap(), large.canonical().as_bytes());
}

pub(crate) async fn erasure_of_both_couriers_leaves_no_file(home: &dyn SharedHome) {
    let (a, b) = both(home).await;
    put_lark_tunnel(&*a).await;
    for (store, id) in [(&a, "om_1"), (&b, "om_2")] {
        store_inbound(&**store, with_files(inbound_message(id, "ann", "mine"), &[FILE]), 1).await;
    }
    timeout(PATIENCE, join(erase_ann(&*a), erase_ann(&*b))).await.unwrap();
    for store in [&a, &b] {
        let found = store.object(ObjId::of(ObjKind::Bytes, FILE)).await;
        assert_matches!(found, Err(StoreError::Missing { .. }));
        assert_eq!(store.missing_blobs(10).await.unwrap(), (0, Vec::new()));
    }
}
