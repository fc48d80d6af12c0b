//! Conformance tests of message objects, blobs and lookups by external id.

use monoco_core::delivery::DeliveryOutcome;
use monoco_core::object::ObjKind;
use monoco_core::short_id::ShortId;

use tokio::io::{AsyncRead, AsyncReadExt};

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

pub(crate) async fn ids_are_found_by_their_beginning_and_end(home: &dyn TestHome) {
    let store = home.open().await;
    // More messages than a bulk index of the tests holds in memory.
    let texts: Vec<String> = (0..200).map(|n| format!("message {n}")).collect();
    for text in &texts {
        dispatch(&*store, without_tunnel(chat("ann", &["bob", "cat"], text))).await;
    }
    check_short_ids(&*store, &texts).await;
    drop(store);
    check_short_ids(&*home.open().await, &texts).await;
}

async fn check_short_ids(store: &dyn Store, texts: &[String]) {
    let find = async |text: &str| store.find_ids(&ShortId::parse(text).unwrap(), 10).await.unwrap();
    for text in texts {
        let msg_id = chat("ann", &["bob", "cat"], text).id();
        let mut records = ["bob", "cat"]
            .map(|owner| RecordId::record(&did(owner), BoxKind::Inbox, &msg_id).to_string());
        records.sort();
        let id = msg_id.to_string();
        for length in [10, 16, 22, 40, id.len()] {
            assert!(find(&id[..length]).await.contains(&id), "{}", &id[..length]);
        }
        assert_eq!(find(&id[..18]).await, [id.as_str()]);
        assert_eq!(find(&format!("{}..{}", &id[..14], &id[66..])).await, [id.as_str()]);
        // The records of one message start alike and end differently.
        assert_eq!(find(&records[0][..20]).await, records);
        for record in &records {
            let short = format!("{}..{}", &record[..12], &record[48..]);
            assert_eq!(find(&short).await, [record.as_str()]);
        }
    }
    for unknown in ["rec_0000000000000000", "dlv_0000", "ltr_1", "lark_0000"] {
        assert_eq!(find(unknown).await, [""; 0]);
    }
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

pub(crate) async fn small_objects_are_read_together(store: &dyn Store) {
    let messages: Vec<_> = (0..5).map(|n| chat("ann", &["bob"], &format!("text {n}"))).collect();
    let large = chat("ann", &["bob"], &"x".repeat(200_000));
    for message in messages.iter().chain([&large]) {
        dispatch(store, without_tunnel(message.clone())).await;
    }
    let missing = chat("ann", &["bob"], "never stored").id();
    let ids = messages.iter().chain([&large]).map(MsgObject::id).chain([missing]).collect();
    let found = store.small_objects(ids).await.unwrap();
    assert_eq!(found.len(), messages.len());
    for message in &messages {
        assert_eq!(found[&message.id()], message.canonical().as_bytes());
    }
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

pub(crate) async fn many_blobs_are_stored_together(home: &dyn TestHome) {
    let store = home.open().await;
    let blobs = |count: u8| (0..count).map(|n| vec![n; 10]).collect::<Vec<_>>();
    for count in [0, 1, 3, 40, 40] {
        store.put_blobs(blobs(count)).await.unwrap();
    }
    drop(store);
    let store = home.open().await;
    for bytes in blobs(40) {
        let id = ObjId::of(ObjKind::Bytes, &bytes);
        assert_eq!(store.object(id).await.unwrap(), bytes);
    }
    assert_eq!(store.missing_blobs(10).await.unwrap(), (0, Vec::new()));
}

/// Fails after its first bytes, as a lost connection does.
struct BrokenSource(&'static [u8]);

impl AsyncRead for BrokenSource {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        let part = std::mem::take(&mut self.0);
        if part.is_empty() {
            return std::task::Poll::Ready(Err(std::io::ErrorKind::ConnectionReset.into()));
        }
        buf.put_slice(part);
        std::task::Poll::Ready(Ok(()))
    }
}

pub(crate) async fn blobs_are_written_and_read_in_parts(home: &dyn TestHome) {
    let store = home.open().await;
    let contents = |size: usize| (0..=250_u8).cycle().take(size).collect::<Vec<u8>>();
    let sizes = [0, 1, 256 * 1024, 256 * 1024 + 1, 3_000_000];
    for size in sizes {
        let bytes = contents(size);
        let limit = size as u64;
        for _ in 0..2 {
            let stored = store.put_blob_from(&mut &bytes[..], limit).await.unwrap();
            assert_eq!((stored.hash, stored.size), (ObjId::of(ObjKind::Bytes, &bytes), limit));
        }
    }
    let too_large = store.put_blob_from(&mut &contents(300_000)[..], 299_999).await;
    assert_matches!(too_large, Err(StoreError::TooLarge(299_999)));
    let broken = store.put_blob_from(&mut BrokenSource(b"half of it"), 100).await;
    assert_matches!(broken, Err(StoreError::SourceFailed(_)));
    assert_eq!(store.health(), crate::StoreHealth::Ok, "the source failed, not the disk");
    let half = ObjId::of(ObjKind::Bytes, b"half of it");
    assert_matches!(store.open_blob(half).await, Err(StoreError::Missing { .. }));
    drop(store);

    let store = home.open().await;
    for size in sizes {
        let bytes = contents(size);
        let id = ObjId::of(ObjKind::Bytes, &bytes);
        let mut reader = store.open_blob(id).await.unwrap();
        assert_eq!(reader.size(), size as u64);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).await.unwrap();
        assert!(read == bytes, "{size} bytes");
        assert_eq!(store.object(id).await.unwrap().len(), size);
    }
    let message = chat("ann", &["bob"], "a message is not a blob").id();
    assert_matches!(store.open_blob(message).await, Err(StoreError::Missing { .. }));
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
