//! Laws of what goes out, and of records waiting in boxes.

use futures_util::future::join_all;
use monoco_core::contact::ContactLevel;
use monoco_core::lease::LeaseLost;
use monoco_core::object::ObjKind;
use monoco_core::record::{ReadState, ReadStatus, RecordId};

use super::*;
use crate::BoxHint;

pub(crate) async fn each_target_has_its_own_way(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    lives_here(store, "here").await;
    contact(store, "bound", ContactLevel::Friend).await;
    store.bind(&did("bound"), binding("lark", "ou_7", 3), at(0)).await.unwrap();
    let shadow = endpoint("oc_1", "lark");
    let ways = post(store, chat("me", &[&shadow, "here", "bound"], "hello")).await;

    let plan = |target: &str| {
        let way = ways.iter().find(|way| way.target == did(target)).unwrap();
        way.plan.as_ref().map(|plan| (plan.address.as_str(), plan.priority))
    };
    assert_eq!(ways.len(), 3);
    assert_eq!(plan(&shadow), Some(("oc_1", 0)));
    assert_eq!(plan("bound"), Some(("ou_7", 3)));
    assert_eq!(plan("here"), None);
    assert_eq!(look(store, "me", BoxKind::Outbox).await, "hello SENT");
    assert_eq!(inbox(store, "here").await, "hello UNREAD");
    assert_eq!(outgoing(store, "lark").await, "hello WAIT, hello WAIT");
    for way in ways.iter().filter(|way| way.plan.is_some()) {
        let delivery = store.delivery(way.record_id.unwrap()).await.unwrap();
        assert_eq!((Some(&delivery.plan), delivery.author), (way.plan.as_ref(), did("me")));
    }
}

pub(crate) async fn one_bad_target_leaves_nothing_behind(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    lives_here(store, "here").await;
    let (events_before, figures) = (events(store).await, store.counts().await.unwrap());
    let good = endpoint("oc_1", "lark");
    let gone = endpoint("oc_1", "gone");
    let msg = chat("me", &[&good, "nobody", "here", &gone], "hello");
    let post = SendRequest { msg: msg.clone(), key: Some("k".into()), not_before: None };
    let refused = store.send(post, at(0)).await;

    let Err(StoreError::UnresolvableTargets(why)) = refused else { panic!("{refused:?}") };
    let targets: Vec<_> = why.0.iter().map(|unresolved| unresolved.target.clone()).collect();
    assert_eq!(targets, [did("nobody"), did(&gone)]);
    assert_eq!(events(store).await, events_before);
    assert_eq!(store.counts().await.unwrap(), figures);
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert_eq!(look(store, "me", BoxKind::Outbox).await, "");
    assert_eq!(inbox(store, "here").await, "");
    assert_eq!(outgoing(store, "lark").await, "");
    // Not even the key: it is free for a message that can be sent.
    let other =
        SendRequest { msg: chat("me", &[&good], "x"), key: Some("k".into()), not_before: None };
    assert!(store.send(other, at(0)).await.is_ok());
}

pub(crate) async fn posting_twice_is_posting_once(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    lives_here(store, "here").await;
    lives_here(store, "deaf").await;
    group(store, "team", &["ann"]).await;
    store.set_block(&did("me"), &did("deaf"), true, at(0)).await.unwrap();
    let (a, b) = (endpoint("oc_1", "lark"), endpoint("oc_2", "lark"));
    let msg = chat("me", &["here", &a, "deaf", "team", &b, &a], "hello");
    let first = post(store, msg.clone()).await;

    let again = store.send(post_of(msg.clone()), at(9)).await.unwrap();
    assert_eq!(
        again,
        SendResult::Queued { msg_id: msg.id(), duplicate: true, ways: first },
        "the second caller gets the first one's answer"
    );
    assert_eq!(outgoing(store, "lark").await, "hello WAIT, hello WAIT");
    assert_eq!(inbox(store, "here").await, "hello UNREAD");
    assert_eq!(look(store, "me", BoxKind::Outbox).await, "hello SENT");
    assert!(events(store).await.ends_with("posted duplicate"));
}

pub(crate) async fn an_idempotency_key_stands_for_one_message(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let to = endpoint("oc_1", "lark");
    let with_key = |text: &str| SendRequest {
        msg: chat("me", &[&to], text),
        key: Some("key-1".to_owned()),
        not_before: None,
    };
    store.send(with_key("hello"), at(0)).await.unwrap();
    let again = store.send(with_key("hello"), at(0)).await.unwrap();
    assert!(matches!(again, SendResult::Queued { duplicate: true, .. }), "{again:?}");

    let other = store.send(with_key("other"), at(0)).await;
    let first = chat("me", &[&to], "hello").id();
    assert!(
        matches!(&other, Err(StoreError::KeyReused(id)) if *id == first.to_string()),
        "{other:?}"
    );
    assert_eq!(outgoing(store, "lark").await, "hello WAIT");
}

pub(crate) async fn a_blocked_author_sends_nothing(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    contact(store, "pest", ContactLevel::Block).await;
    let msg = chat("pest", &[&endpoint("oc_1", "lark")], "buy this");
    let refused = store.send(post_of(msg.clone()), at(0)).await.unwrap();
    assert_eq!(refused, SendResult::BlockedAuthor { msg_id: msg.id() });
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert_eq!(look(store, "pest", BoxKind::Outbox).await, "");
    assert!(events(store).await.ends_with("blocked"));

    contact(store, "pest", ContactLevel::Friend).await;
    assert_eq!(post(store, msg).await.len(), 1);
}

pub(crate) async fn a_target_that_lives_here_gets_it_straight(home: &dyn Home) {
    let store = &*home.open().await;
    lives_here(store, "bob").await;
    lives_here(store, "deaf").await;
    group(store, "team", &["bob", "cat", "me"]).await;
    store.set_block(&did("me"), &did("deaf"), true, at(0)).await.unwrap();
    put_in(store, plain(chat("x", &["met-before"], "earlier"))).await;
    let msg = chat("me", &["bob", "deaf", "team", "met-before"], "hello");
    let ways = post(store, msg.clone()).await;

    let record = |who: &str| ways.iter().find(|way| way.target == did(who)).unwrap().record_id;
    assert_eq!(record("bob"), Some(RecordId::record(&did("bob"), BoxKind::Inbox, &msg.id())));
    assert_eq!(record("deaf"), None, "the target has blocked the author");
    assert_eq!(
        record("team"),
        Some(RecordId::record(&did("team"), BoxKind::GroupInbox, &msg.id()))
    );
    assert_eq!(inbox(store, "bob").await, "hello UNREAD", "once, though named twice");
    assert_eq!(inbox(store, "cat").await, "hello UNREAD");
    assert_eq!(inbox(store, "deaf").await, "");
    assert_eq!(inbox(store, "me").await, "");
    assert_eq!(inbox(store, "met-before").await, "earlier UNREAD, hello UNREAD");
}

pub(crate) async fn an_expired_message_is_not_sent(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let to = endpoint("oc_1", "lark");
    let until = |secs, text| object(json!({"expires_at_ms": at(secs).ms()}), "me", &[&to], text);
    let refused = store.send(post_of(until(5, "late")), at(5)).await;
    assert!(matches!(refused, Err(StoreError::Expired(when)) if when == at(5)), "{refused:?}");
    assert_eq!(events(store).await, "changed");

    store.send(post_of(until(5, "in time")), at(4)).await.unwrap();
    let again = store.send(post_of(until(5, "in time")), at(9)).await.unwrap();
    assert!(matches!(again, SendResult::Queued { duplicate: true, .. }), "{again:?}");
}

pub(crate) async fn eight_takers_get_each_record_once(home: &dyn Home) {
    let store = &*home.open().await;
    let batch = (0..100).map(|n| plain(chat("ann", &["bob"], &n.to_string()))).collect();
    store.dispatch(batch, at(0)).await;
    let taker = async |_| {
        let mut taken = Vec::new();
        while let Some(next) = read_next(store, "bob", 1).await {
            taken.push(said(next.message.canonical().as_bytes()).parse::<usize>().unwrap());
        }
        taken
    };
    let mut taken: Vec<_> = join_all((0..8).map(taker)).await.into_iter().flatten().collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..100).collect::<Vec<_>>());
}

pub(crate) async fn the_oldest_record_is_taken_first(home: &dyn Home) {
    let store = &*home.open().await;
    for text in ["a", "b", "c"] {
        put_in(store, plain(chat("ann", &["bob"], text))).await;
    }
    let first = read_next(store, "bob", 0).await.unwrap();
    assert_eq!(said(first.message.canonical().as_bytes()), "a");
    let id = first.entry.id;
    store.mark_record(id, ReadState::Unread, by("reader"), None, term(60), at(1)).await.unwrap();
    for text in ["a", "b", "c"] {
        assert_eq!(
            said(read_next(store, "bob", 2).await.unwrap().message.canonical().as_bytes()),
            text
        );
    }
    assert_eq!(read_next(store, "bob", 2).await, None);
    assert_eq!(read_next(store, "nobody", 2).await, None);
}

pub(crate) async fn taking_follows_the_reading_machine(home: &dyn Home) {
    let store = &*home.open().await;
    let msg = chat("ann", &["bob"], "hello");
    put_in(store, plain(msg.clone())).await;
    let taken = read_next(store, "bob", 7).await.unwrap();
    let by_core = ReadStatus::start(BoxKind::Inbox).lease(name("reader"), at(7), term(60)).unwrap();
    assert_eq!(taken.entry.reading, by_core);
    assert_eq!((taken.entry.revision, taken.entry.updated_at), (1, at(7)));
    assert_eq!(taken.message.canonical(), msg.canonical());
    assert_eq!(store.record(taken.entry.id).await.unwrap(), taken.entry);

    // By name instead of by turn, it is the same step.
    put_in(store, plain(chat("ann", &["bob"], "second"))).await;
    let page = store.records(&did("bob"), BoxKind::Inbox, &[ReadState::Unread], ALL).await.unwrap();
    let id = page.entries[0].id;
    let marked =
        store.mark_record(id, ReadState::Reading, by("reader"), None, term(60), at(7)).await;
    assert_eq!(marked.unwrap().reading, by_core);
}

pub(crate) async fn an_ended_lease_makes_it_unread_again(home: &dyn Home) {
    let store = &*home.open().await;
    put_in(store, plain(chat("ann", &["bob"], "hello"))).await;
    read_next(store, "bob", 0).await.unwrap();
    assert_eq!(
        store.expire_leases(AGAIN, 10, at(59)).await.unwrap(),
        crate::SweepCounts::default()
    );
    assert_eq!(read_next(store, "bob", 59).await, None);

    let swept = store.expire_leases(AGAIN, 10, at(60)).await.unwrap();
    assert_eq!((swept.records, swept.deliveries), (1, 0));
    let second = read_next(store, "bob", 60).await.unwrap().entry.reading;
    assert_eq!((second.attempts, second.epoch), (2, 2));
    assert_eq!(events(store).await, "dispatched taken lease_ended taken");
}

/// The reader stalls, its lease runs out, another one reads. When the first one
/// wakes up, the record is READING again, so a guard on the state alone would let
/// it finish what the second one has. The epoch does not.
pub(crate) async fn a_late_reader_is_refused(home: &dyn Home) {
    let store = &*home.open().await;
    put_in(store, plain(chat("ann", &["bob"], "hello"))).await;
    let slow = read_next(store, "bob", 0).await.unwrap().entry;
    store.expire_leases(AGAIN, 10, at(60)).await.unwrap();
    let fast = read_next(store, "bob", 61).await.unwrap().entry;

    let finish =
        |guard| store.mark_record(slow.id, ReadState::Readed, guard, None, term(60), at(62));
    let late = finish(in_epoch(slow.reading.epoch)).await;
    assert!(
        matches!(late, Err(StoreError::LeaseLost(LeaseLost::Stale { shown: 1, current: 2 }))),
        "{late:?}"
    );
    let other = finish(by("somebody else")).await;
    assert!(matches!(other, Err(StoreError::LeaseLost(LeaseLost::Held(_)))), "{other:?}");
    assert_eq!(store.record(slow.id).await.unwrap(), fast);
    finish(in_epoch(fast.reading.epoch)).await.unwrap();
    assert_eq!(inbox(store, "bob").await, "hello READED");
}

pub(crate) async fn a_mark_at_another_revision_is_a_conflict(home: &dyn Home) {
    let store = &*home.open().await;
    put_in(store, plain(chat("ann", &["bob"], "hello"))).await;
    let taken = read_next(store, "bob", 0).await.unwrap().entry;
    let mark = |revision| {
        store.mark_record(
            taken.id,
            ReadState::Readed,
            by("reader"),
            Some(revision),
            term(60),
            at(1),
        )
    };
    let stale = mark(0).await;
    assert!(matches!(stale, Err(StoreError::Conflict { revision: 1, .. })), "{stale:?}");
    let done = mark(1).await.unwrap();
    assert_eq!((done.revision, done.updated_at), (2, at(1)));
}

pub(crate) async fn a_mark_to_where_it_stands_changes_nothing(home: &dyn Home) {
    let store = &*home.open().await;
    put_in(store, plain(chat("ann", &["bob"], "hello"))).await;
    let taken = read_next(store, "bob", 0).await.unwrap().entry;
    let finish = |secs| {
        store.mark_record(taken.id, ReadState::Readed, by("reader"), None, term(60), at(secs))
    };
    let first = finish(1).await.unwrap();
    assert_eq!(finish(2).await.unwrap(), first, "so that a lost answer can be asked for again");
    assert_eq!(events(store).await, "dispatched taken marked");
}

pub(crate) async fn a_wrong_step_changes_nothing(home: &dyn Home) {
    let store = &*home.open().await;
    put_in(store, plain(chat("ann", &["bob"], "hello"))).await;
    let page = store.records(&did("bob"), BoxKind::Inbox, &[], ALL).await.unwrap();
    let before = page.entries[0].clone();
    let mark = |to| store.mark_record(before.id, to, by("bob"), None, term(60), at(1));
    let wrong = mark(ReadState::Sent).await;
    assert!(matches!(wrong, Err(StoreError::InvalidTransition(_))), "{wrong:?}");
    assert_eq!(store.record(before.id).await.unwrap(), before);
    assert_eq!(events(store).await, "dispatched");

    mark(ReadState::Deleted).await.unwrap();
    let wrong = mark(ReadState::Unread).await;
    assert!(matches!(wrong, Err(StoreError::InvalidTransition(_))), "{wrong:?}");
}

pub(crate) async fn what_is_not_there_is_missing(home: &dyn Home) {
    let store = &*home.open().await;
    put_in(store, plain(chat("ann", &["bob"], "hello"))).await;
    let missing = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::Missing { .. })), "{result:?}");
    };
    let id = chat("ann", &["bob"], "never said").id();
    let known = chat("ann", &["bob"], "hello").id();
    for msg in [id, known] {
        let record = RecordId::record(&did("cat"), BoxKind::Inbox, &msg);
        let delivery = RecordId::delivery(&tunnel_id("lark").did(), &did("cat"), &msg);
        missing(store.record(record).await.map(drop));
        missing(store.delivery(delivery).await.map(drop));
        missing(store.object_of_record(record).await.map(drop));
        missing(store.object_of_record(delivery).await.map(drop));
        let mark = ReadState::Readed;
        missing(store.mark_record(record, mark, by("x"), None, term(1), at(0)).await.map(drop));
    }
    missing(store.object(id).await.map(drop));
    missing(store.object(ObjId::of(ObjKind::Bytes, b"never kept")).await.map(drop));
    missing(store.trace(id).await.map(drop));
    missing(store.find_by_external_id("never heard").await.map(drop));
    missing(store.contact(&did("ann")).await.map(drop));
    missing(store.group(&did("ann")).await.map(drop));
    missing(store.session(&did("bob"), &did("cat"), ALL).await.map(drop));
    missing(store.remove_contact(&did("ann"), at(0)).await.map(drop));
    assert_eq!(inbox(store, "nobody").await, "");
}

pub(crate) async fn pages_walk_both_ways(home: &dyn Home) {
    let store = &*home.open().await;
    for n in 0..7 {
        put_in(store, plain(chat("ann", &["bob"], &n.to_string()))).await;
    }
    let walk = async |newest_first, limit| {
        let page = async |window| {
            let page = store.records(&did("bob"), BoxKind::Inbox, &[], window).await.unwrap();
            Page { entries: page.entries.iter().map(|r| r.msg_id).collect(), next: page.next }
        };
        spell(store, pages(limit, newest_first, page).await).await
    };
    assert_eq!(walk(false, 3).await, "012 345 6");
    assert_eq!(walk(true, 3).await, "654 321 0");
    assert_eq!(walk(false, 7).await, "0123456", "a full page at the end has none after it");
    assert_eq!(walk(true, 1000).await, "6543210");

    // Whatever a cursor says, it is only a place to start.
    let (bob, ann) = (did("bob"), did("ann"));
    for (beyond, newest_first, count) in
        [(i64::MIN, false, 7), (i64::MIN, true, 0), (i64::MAX, false, 0), (i64::MAX, true, 7)]
    {
        let window = PageRequest { beyond: Some(beyond), limit: 9, newest_first };
        let records = store.records(&bob, BoxKind::Inbox, &[], window.clone()).await.unwrap();
        let lines = store.session(&bob, &ann, window).await.unwrap();
        assert_eq!((records.entries.len(), lines.entries.len()), (count, count));
    }

    // What arrives while somebody pages comes at the end and moves nothing.
    let window = PageRequest { beyond: None, limit: 3, newest_first: false };
    let first = store.records(&did("bob"), BoxKind::Inbox, &[], window).await.unwrap();
    put_in(store, plain(chat("ann", &["bob"], "7"))).await;
    read_next(store, "bob", 0).await.unwrap();
    let rest = PageRequest { beyond: first.next, limit: 9, newest_first: false };
    let rest = store.records(&did("bob"), BoxKind::Inbox, &[], rest).await.unwrap();
    assert_eq!(rest.entries.len(), 5);
    assert_eq!(rest.next, None);
}

pub(crate) async fn a_list_shows_the_states_it_is_asked_for(home: &dyn Home) {
    use ReadState::{Archived, Readed, Reading, Unread};
    let store = &*home.open().await;
    for n in 0..6 {
        put_in(store, plain(chat("ann", &["bob"], &n.to_string()))).await;
    }
    for to in [Readed, Unread, Archived, Readed] {
        let taken = read_next(store, "bob", 0).await.unwrap().entry;
        store.mark_record(taken.id, to, by("reader"), None, term(60), at(1)).await.unwrap();
    }
    read_next(store, "bob", 2).await.unwrap();
    let all = "0 READED, 1 ARCHIVED, 2 READED, 3 READING, 4 UNREAD, 5 UNREAD";
    assert_eq!(inbox(store, "bob").await, all);

    let list = async |states: &[ReadState], newest_first| {
        let page = async |window| {
            let page = store.records(&did("bob"), BoxKind::Inbox, states, window).await.unwrap();
            Page { entries: page.entries.iter().map(|r| r.msg_id).collect(), next: page.next }
        };
        spell(store, pages(3, newest_first, page).await).await
    };
    assert_eq!(list(&[Readed], false).await, "02");
    assert_eq!(list(&[Unread, Reading], true).await, "543");
    assert_eq!(list(&[Unread, Readed, Archived], false).await, "012 45");
    assert_eq!(list(&[Unread, Readed, Archived], true).await, "542 10");
    assert_eq!(list(&[ReadState::Deleted], true).await, "");
    assert_eq!(inbox(store, "bob").await, all, "looking changes nothing");
}

pub(crate) async fn a_large_body_is_kept_whole(home: &dyn Home) {
    let store = home.open().await;
    let text = "long ".repeat(60_000);
    let msg = chat("ann", &["bob"], &text);
    put_in(&*store, plain(msg.clone())).await;
    lark(&*store).await;
    let out = chat("ann", &[&endpoint("oc_1", "lark")], &text);
    post(&*store, out.clone()).await;
    assert_eq!(put_in(&*store, plain(msg.clone())).await, "again: bob/INBOX");
    drop(store);

    let store = &*home.open().await;
    assert_eq!(store.object(msg.id()).await.unwrap(), msg.canonical().as_bytes());
    assert_eq!(read_next(store, "bob", 0).await.unwrap().message.canonical(), msg.canonical());
    assert_eq!(send_next(store, "lark", 0).await.unwrap().message.canonical(), out.canonical());
    assert_eq!(store.trace(msg.id()).await.unwrap().body.as_deref(), Some(msg.canonical()));
}

pub(crate) async fn plain_bytes_are_kept_under_their_hash(home: &dyn Home) {
    let store = home.open().await;
    for bytes in [vec![], vec![0, 159, 146, 150], vec![7; 300_000]] {
        let id = store.put_blob(bytes.clone()).await.unwrap();
        assert_eq!(id, ObjId::of(ObjKind::Bytes, &bytes));
        assert_eq!(store.put_blob(bytes.clone()).await.unwrap(), id);
        assert_eq!(store.object(id).await.unwrap(), bytes);
    }
    drop(store);
    let id = ObjId::of(ObjKind::Bytes, &[7; 300_000]);
    assert_eq!(home.open().await.object(id).await.unwrap().len(), 300_000);
}

/// What a hint speaks of is there when the hint arrives.
pub(crate) async fn a_hint_says_where_to_look(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let mut hints = store.hints();
    let hint = |owner: Did, box_kind| BoxHint { owner, box_kind };

    put_in(store, plain(chat("ann", &["bob"], "in"))).await;
    assert_eq!(hints.recv().await.unwrap(), hint(did("bob"), BoxKind::Inbox));
    let taken = read_next(store, "bob", 0).await.unwrap().entry;

    post(store, chat("me", &[&endpoint("oc_1", "lark")], "out")).await;
    let mut two = [hints.recv().await.unwrap(), hints.recv().await.unwrap()];
    two.sort();
    let lark = tunnel_id("lark").did();
    assert_eq!(two, [hint(lark, BoxKind::TunnelOutbox), hint(did("me"), BoxKind::Outbox)]);
    assert!(send_next(store, "lark", 0).await.is_some());

    store
        .mark_record(taken.id, ReadState::Unread, by("reader"), None, term(1), at(1))
        .await
        .unwrap();
    assert_eq!(hints.recv().await.unwrap(), hint(did("bob"), BoxKind::Inbox));
    read_next(store, "bob", 2).await.unwrap();
    store.expire_leases(AGAIN, 10, at(62)).await.unwrap();
    assert_eq!(hints.recv().await.unwrap(), hint(did("bob"), BoxKind::Inbox));
}

pub(crate) async fn every_box_is_shown_with_what_waits_in_it(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    group(store, "team", &["bob"]).await;
    for text in ["1", "2"] {
        put_in(store, plain(said_in("team", "ann", text))).await;
        post(store, chat("bob", &[&endpoint("oc_1", "lark")], text)).await;
    }
    read_next(store, "bob", 0).await.unwrap();
    send_next(store, "lark", 0).await.unwrap();

    let page = async |window| store.boxes(window).await.unwrap();
    let shown: Vec<_> = pages(1, false, page)
        .await
        .concat()
        .iter()
        .map(|b| format!("{}/{} {}", short(&b.owner), b.box_kind.as_str(), b.waiting))
        .collect();
    assert_eq!(
        shown,
        ["did:msgtunnel:lark/TUNNEL_OUTBOX 1", "team/GROUP_INBOX 2", "bob/INBOX 1", "bob/OUTBOX 0"]
    );
}
