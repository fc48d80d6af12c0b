//! Conformance tests of the event log and the trace of one message.

use monoco_core::delivery::DeliveryOutcome;
use monoco_core::event::EventKind;

use super::*;

async fn post_again(store: &dyn Store, msg: &MsgObject) {
    assert_matches!(
        store.send(send_request(msg.clone()), at(3)).await.unwrap(),
        SendResult::Queued { duplicate: true, .. }
    );
}

pub(crate) async fn events_are_listed_in_order_after_any_number(store: &dyn Store) {
    for n in 0..5 {
        dispatch_text(store, &n.to_string()).await;
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

pub(crate) async fn each_reader_of_events_has_a_cursor(store: &dyn Store) {
    assert_eq!(store.event_cursor("receipts:a").await.unwrap(), None);
    for seq in [7, 9, 9] {
        store.set_event_cursor("receipts:a", seq).await.unwrap();
        assert_eq!(store.event_cursor("receipts:a").await.unwrap(), Some(seq));
    }
    assert_eq!(store.event_cursor("receipts:b").await.unwrap(), None);
    assert!(store.events(0, 10).await.unwrap().is_empty(), "a cursor is no event");
}

pub(crate) async fn newest_event_is_published_after_commit(store: &dyn Store) {
    let mut newest = store.newest_event();
    assert_eq!(*newest.borrow_and_update(), 0);
    for n in 0..200 {
        dispatch_text(store, &n.to_string()).await;
        assert!(newest.has_changed().unwrap(), "published before the call returns");
        let published = *newest.borrow_and_update();
        assert_eq!(store.events(published - 1, 10).await.unwrap().len(), 1);
    }
    // A call that changes nothing writes no event.
    lease_next_record(store, "unknown", 0).await;
    store.expire_leases(RETRY, 10, at(0)).await.unwrap();
    assert!(!newest.has_changed().unwrap());
}

pub(crate) async fn trace_lists_records_deliveries_and_events(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "here").await;
    let msg = chat("me", &[&endpoint("oc_1", "lark"), "here"], "hello");
    dispatch(store, without_tunnel(chat("x", &["here"], "something else"))).await;
    send_message(store, msg.clone()).await;
    let leased = lease_next_delivery(store, "lark", 1).await.unwrap().entry;
    let ok = DeliveryOutcome::Accepted { external_msg_id: Some("om_1".into()) };
    store.report_delivery(leased.id, ok, by_epoch(1), RETRY, at(2)).await.unwrap();
    post_again(store, &msg).await;

    let trace = store.trace(msg.id()).await.unwrap();
    assert_eq!((trace.msg_id, trace.body.as_deref()), (msg.id(), Some(msg.canonical())));
    let boxes: Vec<_> = trace.records.iter().map(|record| record.box_kind).collect();
    assert_eq!(boxes, [BoxKind::Outbox, BoxKind::Inbox]);
    assert_eq!(trace.deliveries, [store.delivery(leased.id).await.unwrap()]);
    let kinds: Vec<_> = trace.events.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["posted", "sending", "sent", "duplicate"]);
    assert!(trace.events.iter().all(|event| event.msg_id == Some(msg.id())));
    assert_eq!(trace.events[1].record_id, Some(leased.id));
    assert!(!trace.truncated);
    assert_eq!(store.object_of_record(leased.id).await.unwrap(), msg.id());
    assert_eq!(store.object_of_record(trace.records[1].id).await.unwrap(), msg.id());
}
