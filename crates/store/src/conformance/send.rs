//! Conformance tests of sending messages: deliveries, local records and idempotency keys.

use monoco_core::record::RecordId;

use super::*;

pub(crate) async fn send_creates_a_delivery_or_record_per_target(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "here").await;
    add_contact(store, "bound", ContactLevel::Friend).await;
    store.bind(&did("bound"), binding("lark", "ou_7", 3), at(0)).await.unwrap();
    let shadow = endpoint("oc_1", "lark");
    let ways = send_message(store, chat("me", &[&shadow, "here", "bound"], "hello")).await;

    let plan = |target: &str| {
        let way = ways.iter().find(|way| way.target == did(target)).unwrap();
        way.plan.as_ref().map(|plan| (plan.address.as_str(), plan.priority))
    };
    assert_eq!(ways.len(), 3);
    assert_eq!(plan(&shadow), Some(("oc_1", 0)));
    assert_eq!(plan("bound"), Some(("ou_7", 3)));
    assert_eq!(plan("here"), None);
    assert_eq!(box_contents(store, "me", BoxKind::Outbox).await, "hello SENT");
    assert_eq!(inbox_contents(store, "here").await, "hello UNREAD");
    assert_eq!(tunnel_contents(store, "lark").await, "hello WAIT, hello WAIT");
    for way in ways.iter().filter(|way| way.plan.is_some()) {
        let delivery = store.delivery(way.record_id.unwrap()).await.unwrap();
        assert_eq!((Some(&delivery.plan), delivery.author), (way.plan.as_ref(), did("me")));
    }
}

pub(crate) async fn send_with_an_unresolvable_target_writes_nothing(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "here").await;
    let (events_before, counts) = (event_kinds(store).await, store.counts().await.unwrap());
    let good = endpoint("oc_1", "lark");
    let gone = endpoint("oc_1", "gone");
    let msg = chat("me", &[&good, "unknown", "here", &gone], "hello");
    let request = SendRequest {
        msg: msg.clone(),
        key: Some("k".into()),
        not_before: None,
        origin: SendOrigin::Owner,
    };
    let rejected = store.send(request, at(0)).await;

    let Err(StoreError::UnresolvableTargets(why)) = rejected else { panic!("{rejected:?}") };
    let targets: Vec<_> = why.0.iter().map(|unresolved| unresolved.target.clone()).collect();
    assert_eq!(targets, [did("unknown"), did(&gone)]);
    assert_eq!(event_kinds(store).await, events_before);
    assert_eq!(store.counts().await.unwrap(), counts);
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert_eq!(box_contents(store, "me", BoxKind::Outbox).await, "");
    assert_eq!(inbox_contents(store, "here").await, "");
    assert_eq!(tunnel_contents(store, "lark").await, "");
    // The idempotency key was not stored either: another message can use it.
    let other = SendRequest {
        msg: chat("me", &[&good], "x"),
        key: Some("k".into()),
        not_before: None,
        origin: SendOrigin::Owner,
    };
    assert!(store.send(other, at(0)).await.is_ok());
}

pub(crate) async fn plan_names_the_tunnel_of_each_target_and_writes_nothing(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "here").await;
    let counts = store.counts().await.unwrap();
    let shadow = endpoint("oc_1", "lark");
    let planned = store.plan_send(chat("me", &["here", &shadow], "hello")).await.unwrap();
    let tunnels: Vec<_> =
        planned.iter().map(|way| way.plan.as_ref().map(|plan| plan.tunnel_did.clone())).collect();
    assert_eq!(tunnels, [Some(tunnel_id("lark").did()), None]);
    let rejected = store.plan_send(chat("me", &[&shadow, "unknown"], "hello")).await;
    assert!(matches!(rejected, Err(StoreError::UnresolvableTargets(_))), "{rejected:?}");
    assert_eq!(store.counts().await.unwrap(), counts);
}

pub(crate) async fn nothing_is_sent_through_a_removed_tunnel(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let target = endpoint("oc_1", "lark");
    send_message(store, chat("me", &[&target], "before")).await;
    for _ in 0..2 {
        store.remove_tunnel(&tunnel_id("lark"), at(1)).await.unwrap();
        let msg = chat("me", &[&target], "after");
        let rejected = store.send(send_request(msg), at(1)).await;
        assert!(matches!(rejected, Err(StoreError::UnresolvableTargets(_))), "{rejected:?}");
    }
    assert!(store.tunnels().await.unwrap().is_empty());
    assert_eq!(tunnel_contents(store, "lark").await, "before WAIT");
    put_lark_tunnel(store).await;
    send_message(store, chat("me", &[&target], "again")).await;
}

pub(crate) async fn repeated_send_returns_the_first_result(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "here").await;
    add_local_contact(store, "deaf").await;
    add_group(store, "team", &["ann"]).await;
    store.set_block(&did("me"), &did("deaf"), true, at(0)).await.unwrap();
    let (a, b) = (endpoint("oc_1", "lark"), endpoint("oc_2", "lark"));
    let msg = chat("me", &["here", &a, "deaf", "team", &b, &a], "hello");
    let first = send_message(store, msg.clone()).await;

    let again = store.send(send_request(msg.clone()), at(9)).await.unwrap();
    assert_eq!(
        again,
        SendResult::Queued { msg_id: msg.id(), duplicate: true, ways: first },
        "the repeated call returns the first result"
    );
    assert_eq!(tunnel_contents(store, "lark").await, "hello WAIT, hello WAIT");
    assert_eq!(inbox_contents(store, "here").await, "hello UNREAD");
    assert_eq!(box_contents(store, "me", BoxKind::Outbox).await, "hello SENT");
    assert!(event_kinds(store).await.ends_with("posted duplicate"));
}

pub(crate) async fn idempotency_key_cannot_be_reused_for_another_message(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let to = endpoint("oc_1", "lark");
    let with_key = |text: &str| SendRequest {
        msg: chat("me", &[&to], text),
        key: Some("key-1".to_owned()),
        not_before: None,
        origin: SendOrigin::Owner,
    };
    store.send(with_key("hello"), at(0)).await.unwrap();
    assert_matches!(
        store.send(with_key("hello"), at(0)).await.unwrap(),
        SendResult::Queued { duplicate: true, .. }
    );

    let other = store.send(with_key("other"), at(0)).await;
    let first = chat("me", &[&to], "hello").id();
    assert!(
        matches!(&other, Err(StoreError::KeyReused(id)) if *id == first.to_string()),
        "{other:?}"
    );
    assert_eq!(tunnel_contents(store, "lark").await, "hello WAIT");
}

pub(crate) async fn send_of_blocked_author_is_rejected(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, "pest", ContactLevel::Block).await;
    let msg = chat("pest", &[&endpoint("oc_1", "lark")], "buy this");
    let rejected = store.send(send_request(msg.clone()), at(0)).await.unwrap();
    assert_eq!(rejected, SendResult::BlockedAuthor { msg_id: msg.id() });
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert_eq!(box_contents(store, "pest", BoxKind::Outbox).await, "");
    assert!(event_kinds(store).await.ends_with("blocked"));

    add_contact(store, "pest", ContactLevel::Friend).await;
    assert_eq!(send_message(store, msg).await.len(), 1);
}

pub(crate) async fn local_targets_get_records_instead_of_deliveries(store: &dyn Store) {
    add_local_contact(store, "bob").await;
    add_local_contact(store, "deaf").await;
    add_group(store, "team", &["bob", "cat", "me"]).await;
    store.set_block(&did("me"), &did("deaf"), true, at(0)).await.unwrap();
    dispatch(store, without_tunnel(chat("x", &["met-before"], "earlier"))).await;
    let msg = chat("me", &["bob", "deaf", "team", "met-before"], "hello");
    let ways = send_message(store, msg.clone()).await;

    let record = |who: &str| ways.iter().find(|way| way.target == did(who)).unwrap().record_id;
    assert_eq!(record("bob"), Some(RecordId::record(&did("bob"), BoxKind::Inbox, &msg.id())));
    assert_eq!(record("deaf"), None, "the target has blocked the author");
    assert_eq!(
        record("team"),
        Some(RecordId::record(&did("team"), BoxKind::GroupInbox, &msg.id()))
    );
    assert_eq!(
        inbox_contents(store, "bob").await,
        "hello UNREAD",
        "one record, as target and as subscriber"
    );
    assert_eq!(inbox_contents(store, "cat").await, "hello UNREAD");
    assert_eq!(inbox_contents(store, "deaf").await, "");
    assert_eq!(inbox_contents(store, "me").await, "");
    assert_eq!(inbox_contents(store, "met-before").await, "earlier UNREAD, hello UNREAD");
}

pub(crate) async fn expired_message_is_not_sent(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let to = endpoint("oc_1", "lark");
    let until =
        |secs, text| msg_object(json!({"expires_at_ms": at(secs).ms()}), "me", &[&to], text);
    assert_matches!(store.send(send_request(until(5, "late")), at(5)).await, Err(StoreError::Expired(when)) if when == at(5));
    assert_eq!(event_kinds(store).await, "changed");

    store.send(send_request(until(5, "in time")), at(4)).await.unwrap();
    assert_matches!(
        store.send(send_request(until(5, "in time")), at(9)).await.unwrap(),
        SendResult::Queued { duplicate: true, .. }
    );
}
