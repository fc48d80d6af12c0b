//! Conformance tests of records in boxes: leases, states, pages and hints.

use futures_util::future::join_all;
use monoco_core::lease::LeaseLost;
use monoco_core::record::ReadStatus;
use monoco_core::tag::Tag;

use super::*;
use crate::BoxHint;

pub(crate) async fn concurrent_readers_lease_each_record_once(store: &dyn Store) {
    let batch = (0..100).map(|n| without_tunnel(chat("ann", &["bob"], &n.to_string()))).collect();
    store.dispatch(batch, at(0)).await;
    let reader = async |_| {
        let mut leased = Vec::new();
        while let Some(next) = lease_next_record(store, "bob", 1).await {
            leased.push(leased_text(&next).parse::<usize>().unwrap());
        }
        leased
    };
    let mut leased: Vec<_> = join_all((0..8).map(reader)).await.into_iter().flatten().collect();
    leased.sort_unstable();
    assert_eq!(leased, (0..100).collect::<Vec<_>>());
}

pub(crate) async fn oldest_unread_record_is_leased_first(store: &dyn Store) {
    for text in ["a", "b", "c"] {
        dispatch_text(store, text).await;
    }
    let first = lease_next_record(store, "bob", 0).await.unwrap();
    assert_eq!(leased_text(&first), "a");
    let id = first.entry.id;
    mark(store, id, ReadState::Unread, 1).await.unwrap();
    for text in ["a", "b", "c"] {
        assert_eq!(leased_text(&lease_next_record(store, "bob", 2).await.unwrap()), text);
    }
    assert_eq!(lease_next_record(store, "bob", 2).await, None);
    assert_eq!(lease_next_record(store, "unknown", 2).await, None);
}

/// A store can look up more records than one batch leases.
pub(crate) async fn records_that_change_between_leases_are_leased_as_they_are(store: &dyn Store) {
    let batch = (0..40).map(|n| without_tunnel(chat("ann", &["bob"], &n.to_string()))).collect();
    store.dispatch(batch, at(0)).await;
    let (bob, filter) = (did("bob"), RecordFilter::default());
    let waiting = store.records(&bob, BoxKind::Inbox, &filter, FULL_PAGE).await.unwrap();
    let ids: Vec<_> = waiting.entries.iter().map(|record| record.id).collect();
    let lease_together = async |count: usize| {
        let leased = join_all((0..count).map(|_| lease_next_record(store, "bob", 1))).await;
        let mut texts: Vec<usize> =
            leased.iter().flatten().map(|next| leased_text(next).parse().unwrap()).collect();
        texts.sort_unstable();
        texts
    };
    assert_eq!(lease_together(8).await, (0..8).collect::<Vec<_>>());
    store
        .tag_record(ids[9], vec!["later".parse::<Tag>().unwrap()], Vec::new(), at(1))
        .await
        .unwrap();
    mark(store, ids[10], ReadState::Archived, 1).await.unwrap();
    mark(store, ids[3], ReadState::Unread, 1).await.unwrap();
    dispatch_text(store, "40").await;
    let expected: Vec<_> = [3, 8, 9].into_iter().chain(11..41).collect();
    assert_eq!(lease_together(40).await, expected);
    assert_eq!(store.record(ids[9]).await.unwrap().tags, ["later"]);
}

pub(crate) async fn record_lease_matches_the_core_state_machine(store: &dyn Store) {
    let msg = chat("ann", &["bob"], "hello");
    dispatch(store, without_tunnel(msg.clone())).await;
    let leased = lease_next_record(store, "bob", 7).await.unwrap();
    let by_core =
        ReadStatus::start(BoxKind::Inbox).lease(holder("reader"), at(7), lease_for(60)).unwrap();
    assert_eq!(leased.entry.reading, by_core);
    assert_eq!((leased.entry.revision, leased.entry.updated_at), (1, at(7)));
    assert_eq!(leased.message.canonical(), msg.canonical());
    assert_eq!(store.record(leased.entry.id).await.unwrap(), leased.entry);

    // Marking a record READING by id is the same transition.
    dispatch_text(store, "second").await;
    let page = store
        .records(&did("bob"), BoxKind::Inbox, &in_states(&[ReadState::Unread]), FULL_PAGE)
        .await
        .unwrap();
    let id = page.entries[0].id;
    let marked = mark(store, id, ReadState::Reading, 7).await;
    assert_eq!(marked.unwrap().reading, by_core);
}

pub(crate) async fn expired_lease_returns_record_to_unread(store: &dyn Store) {
    dispatch_text(store, "hello").await;
    lease_next_record(store, "bob", 0).await.unwrap();
    assert_eq!(
        store.expire_leases(RETRY, 10, at(59)).await.unwrap(),
        crate::SweepCounts::default()
    );
    assert_eq!(lease_next_record(store, "bob", 59).await, None);

    let expired = store.expire_leases(RETRY, 10, at(60)).await.unwrap();
    assert_eq!((expired.records, expired.deliveries), (1, 0));
    let second = lease_next_record(store, "bob", 60).await.unwrap().entry.reading;
    assert_eq!((second.attempts, second.epoch), (2, 2));
    assert_eq!(event_kinds(store).await, "dispatched taken lease_ended taken");
}

/// The lease of a slow reader expires, and a second reader leases the record. When the
/// first reader finishes, the state is READING again, so a check of the state alone would
/// accept it. The check of the epoch rejects it.
pub(crate) async fn late_reader_is_rejected(store: &dyn Store) {
    dispatch_text(store, "hello").await;
    let slow = lease_next_record(store, "bob", 0).await.unwrap().entry;
    store.expire_leases(RETRY, 10, at(60)).await.unwrap();
    let fast = lease_next_record(store, "bob", 61).await.unwrap().entry;

    let finish =
        |proof| store.mark_record(slow.id, ReadState::Readed, proof, None, lease_for(60), at(62));
    assert_matches!(
        finish(by_epoch(slow.reading.epoch)).await,
        Err(StoreError::LeaseLost(LeaseLost::Stale { shown: 1, current: 2 }))
    );
    assert_matches!(
        finish(by_holder("other")).await,
        Err(StoreError::LeaseLost(LeaseLost::Held(_)))
    );
    assert_eq!(store.record(slow.id).await.unwrap(), fast);
    finish(by_epoch(fast.reading.epoch)).await.unwrap();
    assert_eq!(inbox_contents(store, "bob").await, "hello READED");
}

pub(crate) async fn marking_a_stale_record_revision_is_a_conflict(store: &dyn Store) {
    dispatch_text(store, "hello").await;
    let leased = lease_next_record(store, "bob", 0).await.unwrap().entry;
    let mark = |revision| {
        store.mark_record(
            leased.id,
            ReadState::Readed,
            by_holder("reader"),
            Some(revision),
            lease_for(60),
            at(1),
        )
    };
    assert_matches!(mark(0).await, Err(StoreError::Conflict { revision: 1, .. }));
    let done = mark(1).await.unwrap();
    assert_eq!((done.revision, done.updated_at), (2, at(1)));
}

pub(crate) async fn marking_the_current_state_changes_nothing(store: &dyn Store) {
    dispatch_text(store, "hello").await;
    let leased = lease_next_record(store, "bob", 0).await.unwrap().entry;
    let finish = |secs| mark(store, leased.id, ReadState::Readed, secs);
    let first = finish(1).await.unwrap();
    assert_eq!(
        finish(2).await.unwrap(),
        first,
        "a caller that lost the answer can repeat the call"
    );
    assert_eq!(event_kinds(store).await, "dispatched taken marked");
}

pub(crate) async fn invalid_transition_changes_nothing(store: &dyn Store) {
    dispatch_text(store, "hello").await;
    let page = store
        .records(&did("bob"), BoxKind::Inbox, &RecordFilter::default(), FULL_PAGE)
        .await
        .unwrap();
    let before = page.entries[0].clone();
    let mark = |to| store.mark_record(before.id, to, by_holder("bob"), None, lease_for(60), at(1));
    assert_matches!(mark(ReadState::Sent).await, Err(StoreError::InvalidTransition(_)));
    assert_eq!(store.record(before.id).await.unwrap(), before);
    assert_eq!(event_kinds(store).await, "dispatched");

    mark(ReadState::Deleted).await.unwrap();
    assert_matches!(mark(ReadState::Unread).await, Err(StoreError::InvalidTransition(_)));
}

pub(crate) async fn records_are_paged_in_both_directions(store: &dyn Store) {
    for n in 0..7 {
        dispatch_text(store, &n.to_string()).await;
    }
    let walk = async |newest_first, limit| {
        let page = async |request| {
            let page = store
                .records(&did("bob"), BoxKind::Inbox, &RecordFilter::default(), request)
                .await
                .unwrap();
            Page { entries: page.entries.iter().map(|r| r.msg_id).collect(), next: page.next }
        };
        texts_by_page(store, all_pages(limit, newest_first, page).await).await
    };
    assert_eq!(walk(false, 3).await, "012 345 6");
    assert_eq!(walk(true, 3).await, "654 321 0");
    assert_eq!(walk(false, 7).await, "0123456", "no empty page follows a full last page");
    assert_eq!(walk(true, 1000).await, "6543210");

    // Any number is a valid cursor.
    let (bob, ann) = (did("bob"), did("ann"));
    for (beyond, newest_first, count) in
        [(i64::MIN, false, 7), (i64::MIN, true, 0), (i64::MAX, false, 0), (i64::MAX, true, 7)]
    {
        let request = PageRequest { beyond: Some(beyond), limit: 9, newest_first };
        let records = store
            .records(&bob, BoxKind::Inbox, &RecordFilter::default(), request.clone())
            .await
            .unwrap();
        let lines = store.session(&bob, &ann, request).await.unwrap();
        assert_eq!((records.entries.len(), lines.entries.len()), (count, count));
    }

    // A record that arrives between two pages is listed last, and no record is skipped.
    let request = PageRequest { beyond: None, limit: 3, newest_first: false };
    let first = store
        .records(&did("bob"), BoxKind::Inbox, &RecordFilter::default(), request)
        .await
        .unwrap();
    dispatch_text(store, "7").await;
    lease_next_record(store, "bob", 0).await.unwrap();
    let rest = PageRequest { beyond: first.next, limit: 9, newest_first: false };
    let rest =
        store.records(&did("bob"), BoxKind::Inbox, &RecordFilter::default(), rest).await.unwrap();
    assert_eq!(rest.entries.len(), 5);
    assert_eq!(rest.next, None);
}

pub(crate) async fn records_are_listed_by_state(store: &dyn Store) {
    use ReadState::{Archived, Readed, Reading, Unread};
    for n in 0..6 {
        dispatch_text(store, &n.to_string()).await;
    }
    for to in [Readed, Unread, Archived, Readed] {
        let leased = lease_next_record(store, "bob", 0).await.unwrap().entry;
        mark(store, leased.id, to, 1).await.unwrap();
    }
    lease_next_record(store, "bob", 2).await.unwrap();
    let all = "0 READED, 1 ARCHIVED, 2 READED, 3 READING, 4 UNREAD, 5 UNREAD";
    assert_eq!(inbox_contents(store, "bob").await, all);

    let list = async |states: &[ReadState], newest_first| {
        let page = async |request| {
            let page = store
                .records(&did("bob"), BoxKind::Inbox, &in_states(states), request)
                .await
                .unwrap();
            Page { entries: page.entries.iter().map(|r| r.msg_id).collect(), next: page.next }
        };
        texts_by_page(store, all_pages(3, newest_first, page).await).await
    };
    assert_eq!(list(&[Readed], false).await, "02");
    assert_eq!(list(&[Unread, Reading], true).await, "543");
    assert_eq!(list(&[Unread, Readed, Archived], false).await, "012 45");
    assert_eq!(list(&[Unread, Readed, Archived], true).await, "542 10");
    assert_eq!(list(&[ReadState::Deleted], true).await, "");
    assert_eq!(inbox_contents(store, "bob").await, all, "listing changes nothing");
}

/// The record or delivery of a hint can be leased when the hint arrives.
pub(crate) async fn hint_arrives_after_the_commit_that_filled_the_box(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let mut hints = store.hints();
    let hint = |owner: Did, box_kind| BoxHint { owner, box_kind };

    dispatch_text(store, "in").await;
    assert_eq!(hints.recv().await.unwrap(), hint(did("bob"), BoxKind::Inbox));
    let leased = lease_next_record(store, "bob", 0).await.unwrap().entry;

    send_message(store, chat("me", &[&endpoint("oc_1", "lark")], "out")).await;
    let mut two = [hints.recv().await.unwrap(), hints.recv().await.unwrap()];
    two.sort();
    let lark = tunnel_id("lark").did();
    assert_eq!(two, [hint(lark, BoxKind::TunnelOutbox), hint(did("me"), BoxKind::Outbox)]);
    assert!(lease_next_delivery(store, "lark", 0).await.is_some());

    mark(store, leased.id, ReadState::Unread, 1).await.unwrap();
    assert_eq!(hints.recv().await.unwrap(), hint(did("bob"), BoxKind::Inbox));
    lease_next_record(store, "bob", 2).await.unwrap();
    store.expire_leases(RETRY, 10, at(62)).await.unwrap();
    assert_eq!(hints.recv().await.unwrap(), hint(did("bob"), BoxKind::Inbox));
}

pub(crate) async fn boxes_are_listed_with_waiting_counts(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_group(store, "team", &["bob"]).await;
    for text in ["1", "2"] {
        dispatch(store, without_tunnel(group_chat("team", "ann", text))).await;
        send_message(store, chat("bob", &[&endpoint("oc_1", "lark")], text)).await;
    }
    lease_next_record(store, "bob", 0).await.unwrap();
    lease_next_delivery(store, "lark", 0).await.unwrap();

    let page = async |request| store.boxes(request).await.unwrap();
    let shown: Vec<_> = all_pages(1, false, page)
        .await
        .concat()
        .iter()
        .map(|b| format!("{}/{} {}", short_name(&b.owner), b.box_kind.as_str(), b.waiting))
        .collect();
    assert_eq!(
        shown,
        ["did:msgtunnel:lark/TUNNEL_OUTBOX 1", "team/GROUP_INBOX 2", "bob/INBOX 1", "bob/OUTBOX 0"]
    );
}

pub(crate) async fn records_are_listed_by_tag_and_thread(store: &dyn Store) {
    for (text, topic) in [("a", None), ("b", Some("t1")), ("c", Some("t1")), ("d", Some("t2"))] {
        let mut fields = json!({});
        if let Some(topic) = topic {
            fields["thread"] = json!({"topic": topic});
        }
        dispatch(store, without_tunnel(msg_object(fields, "ann", &["bob"], text))).await;
    }
    store.put_group(&did("team"), None, super::at(0)).await.unwrap();
    store.set_subscriber(&did("team"), &did("bob"), true, super::at(0)).await.unwrap();
    dispatch(store, without_tunnel(group_chat("team", "ann", "e"))).await;
    let bob = did("bob");
    let all = store.records(&bob, BoxKind::Inbox, &RecordFilter::default(), FULL_PAGE).await;
    let ids: Vec<_> = all.unwrap().entries.iter().map(|record| record.id).collect();
    let tag = |name: &str| name.parse::<Tag>().unwrap();
    for at in [0, 2] {
        let add = vec![tag("starred"), tag("later")];
        let tagged =
            store.tag_record(ids[at], add, vec![tag("later")], super::at(1)).await.unwrap();
        assert_eq!((tagged.tags, tagged.revision), (vec!["starred".to_owned()], 1));
    }
    let list = async |states: &[ReadState], tag: Option<&str>, thread_key: Option<&str>| {
        let (tag, thread_key) = (tag.map(str::to_owned), thread_key.map(str::to_owned));
        let filter = RecordFilter { states: states.to_vec(), tag, thread_key };
        let mut found = Vec::new();
        let page = async |request| {
            store.records(&did("bob"), BoxKind::Inbox, &filter, request).await.unwrap()
        };
        for record in all_pages(1, false, page).await.concat() {
            found.push(ids.iter().position(|id| *id == record.id).unwrap());
        }
        found
    };
    assert_eq!(list(&[], Some("starred"), None).await, [0, 2]);
    assert_eq!(list(&[], Some("later"), None).await, [0_usize; 0]);
    assert_eq!(list(&[], None, Some("t1")).await, [1, 2]);
    assert_eq!(list(&[], Some("starred"), Some("t1")).await, [2]);
    assert_eq!(list(&[ReadState::Readed], Some("starred"), None).await, [0_usize; 0]);
    let same = store.tag_record(ids[0], vec![tag("starred")], vec![], super::at(2)).await.unwrap();
    assert_eq!(same.revision, 1, "setting a tag twice changes nothing");
    store.tag_record(ids[0], vec![], vec![tag("starred")], super::at(3)).await.unwrap();
    assert_eq!(list(&[ReadState::Unread], Some("starred"), None).await, [2]);
    let many = (0..40).map(|n| tag(&format!("t{n}"))).collect();
    let rejected = store.tag_record(ids[0], many, vec![], super::at(4)).await;
    assert!(matches!(rejected, Err(StoreError::InvalidTag(_))), "{rejected:?}");
    assert_eq!(list(&[], Some("group:did:web:team"), None).await, [4]);
}
