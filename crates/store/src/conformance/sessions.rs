//! Conformance tests of conversations and read receipts.

use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::receipt::ReceiptStatus;
use monoco_core::retry::Failure;

use super::*;
use crate::SessionEntry;

/// Describes an entry: `< hello UNREAD -` inbound, `> answer SENT FAILED` outbound.
fn describe_entry(owner: &str, line: &SessionEntry) -> String {
    let arrow = if line.record.box_kind == BoxKind::Outbox { '>' } else { '<' };
    let delivery = line.delivery.map_or("-", SendState::as_str);
    assert_eq!(line.record.owner, did(owner));
    let state = line.record.reading.state.name().as_str();
    format!("{arrow} {} {state} {delivery}", body_text(line.body.as_ref().unwrap().as_bytes()))
}

async fn list_session(
    store: &dyn Store,
    owner: &str,
    peer: &str,
    request: PageRequest,
) -> Vec<String> {
    let page = store.session(&did(owner), &did(peer), request).await.unwrap();
    page.entries.iter().map(|entry| describe_entry(owner, entry)).collect()
}

pub(crate) async fn receipt_is_stored_as_an_object(store: &dyn Store) {
    add_group(store, "team", &["ann", "bob"]).await;
    let msg = group_chat("team", "ann", "standup");
    dispatch(store, without_tunnel(msg.clone())).await;
    let msg = msg.id();
    let set = async |reader: &str, status, secs| {
        store.set_receipt(&did("team"), msg, &did(reader), status, None, at(secs)).await
    };
    let read = set("bob", ReceiptStatus::Readed, 1).await.unwrap();
    let body = store.object(read.id()).await.unwrap();
    assert_eq!(body, read.canonical().as_bytes());
    assert_eq!(
        set("bob", ReceiptStatus::Readed, 2).await.unwrap(),
        read,
        "a repeated receipt returns the first"
    );
    let accepted = set("bob", ReceiptStatus::Accepted, 3).await.unwrap();
    let waiting = set("cat", ReceiptStatus::Unread, 4).await.unwrap();

    let list =
        async |reader: Option<&Did>| store.receipts(&did("team"), msg, reader).await.unwrap();
    assert_eq!(list(None).await, [accepted.clone(), waiting]);
    assert_eq!(list(Some(&did("bob"))).await, [accepted]);
    assert_eq!(list(Some(&did("dan"))).await, []);
    assert!(event_kinds(store).await.ends_with("dispatched receipt receipt receipt"));
    assert_eq!(
        inbox_contents(store, "bob").await,
        "standup UNREAD",
        "a receipt does not change the record"
    );
}

pub(crate) async fn receipt_requires_a_message_of_the_group(store: &dyn Store) {
    add_group(store, "team", &["bob"]).await;
    let direct = chat("ann", &["bob"], "not in the group");
    dispatch(store, without_tunnel(direct.clone())).await;
    let before = event_kinds(store).await;
    for msg in [direct.id(), chat("ann", &["bob"], "never dispatched").id()] {
        let status = ReceiptStatus::Readed;
        assert_matches!(
            store.set_receipt(&did("team"), msg, &did("new"), status, None, at(1)).await,
            Err(StoreError::Missing { .. })
        );
    }
    assert_eq!(event_kinds(store).await, before);
    assert!(!store.owner_exists(&did("new")).await.unwrap());
}

pub(crate) async fn session_lists_both_directions(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let ann = endpoint("ann", "lark");
    dispatch(store, via_tunnel("lark", "1", chat(&ann, &["me"], "hello"))).await;
    send_message(store, chat("me", &[&ann, "did:msgtunnel:bob.user.lark"], "hi both")).await;
    dispatch(store, via_tunnel("lark", "2", chat(&ann, &["me"], "how are you"))).await;
    assert_eq!(
        list_session(store, "me", &ann, FULL_PAGE).await,
        ["< hello UNREAD -", "> hi both SENT WAIT", "< how are you UNREAD -"]
    );
    assert_eq!(
        list_session(store, "me", &endpoint("bob", "lark"), FULL_PAGE).await,
        ["> hi both SENT WAIT"]
    );

    // The entry of a peer shows the delivery to that peer.
    let leased = lease_next_delivery(store, "lark", 1).await.unwrap().entry;
    assert_eq!(leased.plan.target_did, did(&ann));
    let no =
        DeliveryOutcome::Failed(Failure::Permanent { detail: "gone".into(), error_code: None });
    store.report_delivery(leased.id, no, by_epoch(1), RETRY, at(2)).await.unwrap();
    let newest = PageRequest { beyond: None, limit: 2, newest_first: true };
    assert_eq!(
        list_session(store, "me", &ann, newest).await,
        ["< how are you UNREAD -", "> hi both SENT DEAD"]
    );
    assert_eq!(
        list_session(store, "me", &endpoint("bob", "lark"), FULL_PAGE).await,
        ["> hi both SENT WAIT"]
    );
}

pub(crate) async fn sessions_are_listed_most_recent_first(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, "ann", ContactLevel::Friend).await;
    add_group(store, "team", &["me"]).await;
    for (from, text) in [("ann", "1"), ("ann", "2"), ("bob", "3"), ("cat", "4")] {
        dispatch(store, without_tunnel(chat(from, &["me"], text))).await;
    }
    dispatch(store, without_tunnel(group_chat("team", "bob", "5"))).await;
    lease_next_record(store, "me", 0).await.unwrap();
    add_contact(store, "bob", ContactLevel::Friend).await;
    store.bind(&did("bob"), binding("lark", "ou_bob", 0), at(0)).await.unwrap();
    send_message(store, chat("me", &["bob"], "6")).await;

    let list = async |beyond, limit| {
        let request = PageRequest { beyond, limit, newest_first: true };
        let page = store.sessions(&did("me"), request).await.unwrap();
        let lines: Vec<_> = page
            .entries
            .iter()
            .map(|s| {
                let name = s.name.as_deref().unwrap_or("?");
                format!(
                    "{} ({name}), {} unread: {}",
                    short_name(&s.peer),
                    s.unread,
                    describe_entry("me", &s.last)
                )
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
        "the other record of ann is leased"
    );
    assert_eq!(next, None);
    assert_eq!(store.sessions(&did("unknown"), FULL_PAGE).await.unwrap().entries, []);
}
