//! Laws of the log, receipts, conversations and figures.

use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::event::EventKind;
use monoco_core::receipt::ReceiptStatus;
use monoco_core::record::ReadState;
use monoco_core::retry::Failure;

use super::*;
use crate::{SessionEntry, StoreCounts};

pub(crate) async fn events_are_read_in_order_from_any_point(home: &dyn Home) {
    let store = &*home.open().await;
    for n in 0..5 {
        put_in(store, plain(chat("ann", &["bob"], &n.to_string()))).await;
    }
    let all = store.events(0, 100).await.unwrap();
    assert_eq!(all.len(), 5);
    assert!(all.is_sorted_by(|a, b| a.seq < b.seq));
    assert_eq!(store.events(all[1].seq, 2).await.unwrap(), all[2..4]);
    assert!(store.events(all[4].seq, 100).await.unwrap().is_empty());

    let first = &all[0];
    assert_eq!((first.kind, first.at), (EventKind::Dispatched, at(0)));
    assert_eq!(first.msg_id, Some(chat("ann", &["bob"], "0").id()));
    assert_eq!(first.owner, Some(did("ann")));
    assert_eq!(first.detail["to"], json!(["did:web:bob"]));
}

pub(crate) async fn the_newest_event_is_told_after_its_commit(home: &dyn Home) {
    let store = &*home.open().await;
    let mut newest = store.newest_event();
    assert_eq!(*newest.borrow_and_update(), 0);
    for n in 0..200 {
        put_in(store, plain(chat("ann", &["bob"], &n.to_string()))).await;
        assert!(newest.has_changed().unwrap(), "and before anybody is answered");
        let told = *newest.borrow_and_update();
        assert_eq!(store.events(told - 1, 10).await.unwrap().len(), 1);
    }
    // What changes nothing has no event.
    read_next(store, "nobody", 0).await;
    store.expire_leases(AGAIN, 10, at(0)).await.unwrap();
    assert!(!newest.has_changed().unwrap());
}

pub(crate) async fn a_receipt_is_an_object_of_its_reader(home: &dyn Home) {
    let store = &*home.open().await;
    group(store, "team", &["ann", "bob"]).await;
    let msg = said_in("team", "ann", "standup");
    put_in(store, plain(msg.clone())).await;
    let msg = msg.id();
    let set = async |reader: &str, status, secs| {
        store.set_receipt(&did("team"), msg, &did(reader), status, at(secs)).await
    };
    let read = set("bob", ReceiptStatus::Readed, 1).await.unwrap();
    let body = store.object(read.id()).await.unwrap();
    assert_eq!(body, read.canonical().as_bytes());
    assert_eq!(set("bob", ReceiptStatus::Readed, 2).await.unwrap(), read, "said once is said");
    let accepted = set("bob", ReceiptStatus::Accepted, 3).await.unwrap();
    let waiting = set("cat", ReceiptStatus::Unread, 4).await.unwrap();

    let list =
        async |reader: Option<&Did>| store.receipts(&did("team"), msg, reader).await.unwrap();
    assert_eq!(list(None).await, [accepted.clone(), waiting]);
    assert_eq!(list(Some(&did("bob"))).await, [accepted]);
    assert_eq!(list(Some(&did("dan"))).await, []);
    assert!(events(store).await.ends_with("dispatched receipt receipt receipt"));
    assert_eq!(inbox(store, "bob").await, "standup UNREAD", "the reader's box is another matter");
}

pub(crate) async fn a_receipt_is_for_what_was_said_in_the_group(home: &dyn Home) {
    let store = &*home.open().await;
    group(store, "team", &["bob"]).await;
    let direct = chat("ann", &["bob"], "not in the group");
    put_in(store, plain(direct.clone())).await;
    let before = events(store).await;
    for msg in [direct.id(), chat("ann", &["bob"], "never said").id()] {
        let status = ReceiptStatus::Readed;
        let refused = store.set_receipt(&did("team"), msg, &did("new"), status, at(1)).await;
        assert!(matches!(refused, Err(StoreError::Missing { .. })), "{refused:?}");
    }
    assert_eq!(events(store).await, before);
    assert!(!store.owner_exists(&did("new")).await.unwrap());
}

/// `< hello UNREAD`, `> answer SENT FAILED`.
fn line(owner: &str, line: &SessionEntry) -> String {
    let arrow = if line.record.box_kind == BoxKind::Outbox { '>' } else { '<' };
    let delivery = line.delivery.map_or("-", SendState::as_str);
    assert_eq!(line.record.owner, did(owner));
    let state = line.record.reading.state.name().as_str();
    format!("{arrow} {} {state} {delivery}", said(line.body.as_ref().unwrap().as_bytes()))
}

async fn talk(store: &dyn Store, owner: &str, peer: &str, window: PageRequest) -> Vec<String> {
    let page = store.session(&did(owner), &did(peer), window).await.unwrap();
    page.entries.iter().map(|entry| line(owner, entry)).collect()
}

pub(crate) async fn a_conversation_shows_both_directions(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let ann = endpoint("ann", "lark");
    put_in(store, heard("lark", "1", chat(&ann, &["me"], "hello"))).await;
    post(store, chat("me", &[&ann, "did:msgtunnel:bob.user.lark"], "hi both")).await;
    put_in(store, heard("lark", "2", chat(&ann, &["me"], "how are you"))).await;
    assert_eq!(
        talk(store, "me", &ann, ALL).await,
        ["< hello UNREAD -", "> hi both SENT WAIT", "< how are you UNREAD -"]
    );
    assert_eq!(talk(store, "me", &endpoint("bob", "lark"), ALL).await, ["> hi both SENT WAIT"]);

    // Each peer's line shows the delivery to that peer.
    let taken = send_next(store, "lark", 1).await.unwrap().entry;
    assert_eq!(taken.plan.target_did, did(&ann));
    let no = DeliveryOutcome::Failed(Failure::Permanent { detail: "gone".into() });
    store.report_delivery(taken.id, no, in_epoch(1), AGAIN, at(2)).await.unwrap();
    let newest = PageRequest { beyond: None, limit: 2, newest_first: true };
    assert_eq!(
        talk(store, "me", &ann, newest).await,
        ["< how are you UNREAD -", "> hi both SENT DEAD"]
    );
    assert_eq!(talk(store, "me", &endpoint("bob", "lark"), ALL).await, ["> hi both SENT WAIT"]);
}

pub(crate) async fn the_liveliest_conversation_comes_first(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    contact(store, "ann", ContactLevel::Friend).await;
    group(store, "team", &["me"]).await;
    for (from, text) in [("ann", "1"), ("ann", "2"), ("bob", "3"), ("cat", "4")] {
        put_in(store, plain(chat(from, &["me"], text))).await;
    }
    put_in(store, plain(said_in("team", "bob", "5"))).await;
    read_next(store, "me", 0).await.unwrap();
    contact(store, "bob", ContactLevel::Friend).await;
    store.bind(&did("bob"), binding("lark", "ou_bob", 0), at(0)).await.unwrap();
    post(store, chat("me", &["bob"], "6")).await;

    let list = async |beyond, limit| {
        let window = PageRequest { beyond, limit, newest_first: true };
        let page = store.sessions(&did("me"), window).await.unwrap();
        let lines: Vec<_> = page
            .entries
            .iter()
            .map(|s| {
                let name = s.name.as_deref().unwrap_or("?");
                format!("{} ({name}), {} unread: {}", short(&s.peer), s.unread, line("me", &s.last))
            })
            .collect();
        (lines, page.next)
    };
    let (first, next) = list(None, 2).await;
    assert_eq!(
        first,
        ["bob (bob), 1 unread: > 6 SENT WAIT", "team (team), 1 unread: < 5 UNREAD -"]
    );
    let (rest, next) = list(next, 5).await;
    assert_eq!(
        rest,
        ["cat (?), 1 unread: < 4 UNREAD -", "ann (ann), 1 unread: < 2 UNREAD -"],
        "one of ann's two is being read"
    );
    assert_eq!(next, None);
    assert_eq!(store.sessions(&did("nobody"), ALL).await.unwrap().entries, []);
}

pub(crate) async fn a_trace_tells_the_whole_story(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    lives_here(store, "here").await;
    let msg = chat("me", &[&endpoint("oc_1", "lark"), "here"], "hello");
    put_in(store, plain(chat("x", &["here"], "something else"))).await;
    post(store, msg.clone()).await;
    let taken = send_next(store, "lark", 1).await.unwrap().entry;
    let ok = DeliveryOutcome::Accepted { external_msg_id: Some("om_1".into()) };
    store.report_delivery(taken.id, ok, in_epoch(1), AGAIN, at(2)).await.unwrap();
    post_again(store, &msg).await;

    let trace = store.trace(msg.id()).await.unwrap();
    assert_eq!((trace.msg_id, trace.body.as_deref()), (msg.id(), Some(msg.canonical())));
    let boxes: Vec<_> = trace.records.iter().map(|record| record.box_kind).collect();
    assert_eq!(boxes, [BoxKind::Outbox, BoxKind::Inbox]);
    assert_eq!(trace.deliveries, [store.delivery(taken.id).await.unwrap()]);
    let told: Vec<_> = trace.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(told, ["posted", "sending", "sent", "duplicate"]);
    assert!(trace.events.iter().all(|event| event.msg_id == Some(msg.id())));
    assert_eq!(trace.events[1].record_id, Some(taken.id));
    assert!(!trace.truncated);
    assert_eq!(store.object_of_record(taken.id).await.unwrap(), msg.id());
    assert_eq!(store.object_of_record(trace.records[1].id).await.unwrap(), msg.id());
}

async fn post_again(store: &dyn Store, msg: &MsgObject) {
    let again = store.send(post_of(msg.clone()), at(3)).await.unwrap();
    assert!(matches!(again, SendResult::Queued { duplicate: true, .. }), "{again:?}");
}

pub(crate) async fn external_ids_lead_to_their_message(home: &dyn Home) {
    let store = &*home.open().await;
    let came = chat("ann", &["me"], "in");
    put_in(store, heard("lark", "om_in", came.clone())).await;
    let went = chat("me", &[&endpoint("oc_1", "lark")], "out");
    post(store, went.clone()).await;
    let taken = send_next(store, "lark", 1).await.unwrap().entry;
    let ok = DeliveryOutcome::Accepted { external_msg_id: Some("om_out".into()) };
    store.report_delivery(taken.id, ok, in_epoch(1), AGAIN, at(2)).await.unwrap();
    assert_eq!(store.find_by_external_id("om_in").await.unwrap(), came.id());
    assert_eq!(store.find_by_external_id("om_out").await.unwrap(), went.id());
}

/// Counts everything there is by listing it.
async fn recount(store: &dyn Store, owners: &[&str], tunnels: &[&str]) -> StoreCounts {
    let mut figures = StoreCounts::default();
    for owner in owners {
        for box_kind in BoxKind::ALL {
            let page = store.records(&did(owner), box_kind, &[], ALL).await.unwrap();
            for record in page.entries {
                *figures.records.entry((box_kind, record.reading.state.name())).or_default() += 1;
            }
        }
    }
    use SendState::{Failed, Held, Sending, Wait};
    for tunnel in tunnels {
        let page = store.deliveries(&tunnel_id(tunnel).did(), &[], ALL).await.unwrap();
        for delivery in page.entries {
            let state = delivery.sending.state.name();
            *figures.deliveries.entry(state).or_default() += 1;
            if [Wait, Failed, Sending, Held].contains(&state) {
                let oldest = figures.oldest_waiting.unwrap_or(delivery.created_at);
                figures.oldest_waiting = Some(oldest.min(delivery.created_at));
            }
        }
    }
    figures
}

/// A little of everything.
async fn live(store: &dyn Store) {
    lark(store).await;
    lives_here(store, "bob").await;
    group(store, "team", &["ann", "bob"]).await;
    for n in 0..6 {
        let msg = chat("ann", &["bob", "cat"], &n.to_string());
        put_in(store, heard("lark", &format!("om_{n}"), msg)).await;
        let out = chat("bob", &[&endpoint("oc_1", "lark"), "cat", "team"], &n.to_string());
        store.send(post_of(out), at(n)).await.unwrap();
    }
    for to in [ReadState::Readed, ReadState::Archived, ReadState::Deleted] {
        let taken = read_next(store, "bob", 10).await.unwrap().entry;
        store.mark_record(taken.id, to, by("reader"), None, term(60), at(11)).await.unwrap();
    }
    read_next(store, "cat", 10).await.unwrap();
    let outcomes = [
        DeliveryOutcome::Accepted { external_msg_id: None },
        DeliveryOutcome::Failed(Failure::Unknown { detail: "?".into() }),
        DeliveryOutcome::Failed(Failure::Permanent { detail: "no".into() }),
        DeliveryOutcome::Failed(Failure::Temporary { detail: "busy".into(), retry_after_ms: None }),
    ];
    for outcome in outcomes {
        let taken = send_next(store, "lark", 10).await.unwrap().entry;
        store.report_delivery(taken.id, outcome, in_epoch(1), AGAIN, at(11)).await.unwrap();
    }
    send_next(store, "lark", 10).await.unwrap();
    store.expire_leases(AGAIN, 1, at(1000)).await.unwrap();
}

pub(crate) async fn figures_equal_a_recount(home: &dyn Home) {
    let store = home.open().await;
    assert_eq!(store.counts().await.unwrap(), StoreCounts::default());
    live(&*store).await;
    let counted = recount(&*store, &["ann", "bob", "cat", "team"], &["lark"]).await;
    assert_eq!(store.counts().await.unwrap(), counted);
    assert!(counted.oldest_waiting.is_some());
    drop(store);
    assert_eq!(home.open().await.counts().await.unwrap(), counted);
}

pub(crate) async fn reopening_keeps_everything(home: &dyn Home) {
    async fn everything(store: &dyn Store) -> String {
        let mut out = format!("{:#?}", store.events(0, 10_000).await.unwrap());
        for owner in ["ann", "bob", "cat", "team"] {
            for box_kind in BoxKind::ALL {
                let page = store.records(&did(owner), box_kind, &[], ALL).await.unwrap();
                out += &format!("{page:#?}");
            }
            out += &format!("{:#?}", store.sessions(&did(owner), ALL).await.unwrap());
        }
        let lark = tunnel_id("lark").did();
        out += &format!("{:#?}", store.deliveries(&lark, &[], ALL).await.unwrap());
        out += &format!("{:#?}", store.contacts(ALL).await.unwrap());
        out += &format!("{:#?}", store.groups(ALL).await.unwrap());
        out += &format!("{:#?}", store.tunnels().await.unwrap());
        out + &format!("{:#?}", store.counts().await.unwrap())
    }
    let store = home.open().await;
    live(&*store).await;
    let before = everything(&*store).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(everything(&*store).await, before);
    assert_eq!(store.health(), crate::StoreHealth::Ok);
    let last = store.events(0, 10_000).await.unwrap().last().map(|event| event.seq);
    assert_eq!(Some(*store.newest_event().borrow()), last);
    let again = heard("lark", "om_3", chat("ann", &["bob"], "edited"));
    assert_eq!(put_in(&*store, again).await, "again: bob/INBOX cat/INBOX");
}
