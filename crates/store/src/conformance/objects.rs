//! Conformance tests of message objects, blobs and lookups by external id.

use monoco_core::delivery::DeliveryOutcome;
use monoco_core::object::ObjKind;

use super::*;

pub(crate) async fn unknown_ids_are_reported_missing(store: &dyn Store) {
    dispatch_text(store, "hello").await;
    let missing = |result: Result<(), StoreError>| {
        assert!(matches!(result, Err(StoreError::Missing { .. })), "{result:?}");
    };
    let id = chat("ann", &["bob"], "never dispatched").id();
    let known = chat("ann", &["bob"], "hello").id();
    for msg in [id, known] {
        let record = RecordId::record(&did("cat"), BoxKind::Inbox, &msg);
        let delivery = RecordId::delivery(&tunnel_id("lark").did(), &did("cat"), &msg);
        missing(store.record(record).await.map(drop));
        missing(store.delivery(delivery).await.map(drop));
        missing(store.object_of_record(record).await.map(drop));
        missing(store.object_of_record(delivery).await.map(drop));
        let mark = ReadState::Readed;
        missing(
            store
                .mark_record(record, mark, by_holder("x"), None, lease_for(1), at(0))
                .await
                .map(drop),
        );
    }
    missing(store.object(id).await.map(drop));
    missing(store.object(ObjId::of(ObjKind::Bytes, b"never stored")).await.map(drop));
    missing(store.trace(id).await.map(drop));
    missing(store.find_by_external_id("never received").await.map(drop));
    missing(store.contact(&did("ann")).await.map(drop));
    missing(store.group(&did("ann")).await.map(drop));
    missing(store.session(&did("bob"), &did("cat"), FULL_PAGE).await.map(drop));
    missing(store.remove_contact(&did("ann"), at(0)).await.map(drop));
    assert_eq!(inbox_contents(store, "unknown").await, "");
}

pub(crate) async fn large_message_body_survives_reopening(home: &dyn TestHome) {
    let store = home.open().await;
    let text = "long ".repeat(60_000);
    let msg = chat("ann", &["bob"], &text);
    dispatch(&*store, without_tunnel(msg.clone())).await;
    put_lark_tunnel(&*store).await;
    let out = chat("ann", &[&endpoint("oc_1", "lark")], &text);
    send_message(&*store, out.clone()).await;
    assert_eq!(dispatch(&*store, without_tunnel(msg.clone())).await, "again: bob/INBOX");
    drop(store);

    let store = &*home.open().await;
    assert_eq!(store.object(msg.id()).await.unwrap(), msg.canonical().as_bytes());
    assert_eq!(
        lease_next_record(store, "bob", 0).await.unwrap().message.canonical(),
        msg.canonical()
    );
    assert_eq!(
        lease_next_delivery(store, "lark", 0).await.unwrap().message.canonical(),
        out.canonical()
    );
    assert_eq!(store.trace(msg.id()).await.unwrap().body.as_deref(), Some(msg.canonical()));
}

pub(crate) async fn blobs_are_stored_under_their_hash(home: &dyn TestHome) {
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

pub(crate) async fn external_ids_of_received_and_sent_messages_are_found(store: &dyn Store) {
    let came = chat("ann", &["me"], "in");
    dispatch(store, via_tunnel("lark", "om_in", came.clone())).await;
    let went = chat("me", &[&endpoint("oc_1", "lark")], "out");
    send_message(store, went.clone()).await;
    let leased = lease_next_delivery(store, "lark", 1).await.unwrap().entry;
    let ok = DeliveryOutcome::Accepted { external_msg_id: Some("om_out".into()) };
    store.report_delivery(leased.id, ok, by_epoch(1), RETRY, at(2)).await.unwrap();
    assert_eq!(store.find_by_external_id("om_in").await.unwrap(), came.id());
    assert_eq!(store.find_by_external_id("om_out").await.unwrap(), went.id());
}
