//! Laws of contacts, groups and tunnels.

use super::*;

pub(crate) async fn a_contact_is_replaced_and_keeps_its_bindings(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    contact(store, "ann", ContactLevel::Stranger).await;
    store.bind(&did("ann"), binding("lark", "ou_1", 1), at(0)).await.unwrap();
    store.bind(&did("ann"), binding("lark", "ou_2", 5), at(0)).await.unwrap();
    let bound = store.bind(&did("ann"), binding("lark", "ou_1", 9), at(0)).await.unwrap();
    assert_eq!(bound.bindings, [binding("lark", "ou_1", 9), binding("lark", "ou_2", 5)]);

    let names = vec!["Ann".to_owned(), "安".to_owned()];
    let next = Contact {
        did: did("ann"),
        names,
        level: ContactLevel::Friend,
        here: true,
        bindings: vec![],
    };
    let put = store.put_contact(next.clone(), at(1)).await.unwrap();
    assert_eq!(put, Contact { bindings: bound.bindings, ..next });
    assert_eq!(store.contact(&did("ann")).await.unwrap(), put);

    let left = store.unbind(&did("ann"), &tunnel_id("lark"), "ou_1", at(2)).await.unwrap();
    assert_eq!(left.bindings, [binding("lark", "ou_2", 5)]);
    assert_eq!(events(store).await, "changed ".repeat(7).trim_end());
}

pub(crate) async fn a_forgotten_contact_leaves_its_boxes(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    lives_here(store, "ann").await;
    store.bind(&did("ann"), binding("lark", "ou_1", 1), at(0)).await.unwrap();
    put_in(store, plain(chat("bob", &["ann"], "hello"))).await;
    store.remove_contact(&did("ann"), at(1)).await.unwrap();
    assert!(matches!(store.contact(&did("ann")).await, Err(StoreError::Missing { .. })));
    assert!(store.contacts(ALL).await.unwrap().entries.is_empty());
    assert_eq!(inbox(store, "ann").await, "hello UNREAD");

    contact(store, "ann", ContactLevel::Friend).await;
    assert_eq!(store.contact(&did("ann")).await.unwrap().bindings, []);
}

pub(crate) async fn only_known_things_are_bound(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    contact(store, "ann", ContactLevel::Friend).await;
    let before = events(store).await;
    let missing = |result: Result<Contact, StoreError>, thing: &str| {
        assert!(matches!(result, Err(StoreError::Missing { what, .. }) if what == thing));
    };
    let to_lark = || binding("lark", "ou_1", 1);
    missing(store.bind(&did("bob"), to_lark(), at(0)).await, "contact");
    missing(store.bind(&did("ann"), binding("gone", "ou_1", 1), at(0)).await, "tunnel");
    missing(store.unbind(&did("ann"), &tunnel_id("lark"), "ou_1", at(0)).await, "binding");
    missing(store.unbind(&did("bob"), &tunnel_id("lark"), "ou_1", at(0)).await, "contact");
    assert_eq!(events(store).await, before);
    let subscribed = store.set_subscriber(&did("team"), &did("ann"), true, at(0)).await;
    assert!(matches!(subscribed, Err(StoreError::Missing { what: "group", .. })));
}

pub(crate) async fn contacts_and_groups_come_in_pages(home: &dyn Home) {
    let store = &*home.open().await;
    for who in ["a", "b", "c", "d", "e"] {
        // A message makes a party of him, but no contact yet.
        put_in(store, plain(chat(who, &["me"], "hi"))).await;
        contact(store, who, ContactLevel::Friend).await;
        group(store, &format!("team-{who}"), &[who]).await;
    }
    let contacts = async |newest_first| {
        let pages = pages(2, newest_first, async |w| store.contacts(w).await.unwrap()).await;
        spelled(pages.iter().map(|page| page.iter().map(|contact| &contact.did).collect()))
    };
    let groups = async |newest_first| {
        let pages = pages(2, newest_first, async |w| store.groups(w).await.unwrap()).await;
        spelled(pages.iter().map(|page| page.iter().map(|group| &group.subscribers[0]).collect()))
    };
    assert_eq!(contacts(false).await, "ab cd e");
    assert_eq!(contacts(true).await, "ed cb a");
    assert_eq!(groups(false).await, "ab cd e");
    assert_eq!(groups(true).await, "ed cb a");
}

fn spelled<'a>(pages: impl Iterator<Item = Vec<&'a Did>>) -> String {
    let words = pages.map(|page| page.into_iter().map(short).collect::<String>());
    words.collect::<Vec<_>>().join(" ")
}

pub(crate) async fn a_group_keeps_its_name_and_its_readers(home: &dyn Home) {
    let store = &*home.open().await;
    let team = did("team");
    assert_eq!(store.put_group(&team, None, at(0)).await.unwrap().name, None);
    for reader in ["ann", "bob", "ann"] {
        store.set_subscriber(&team, &did(reader), true, at(0)).await.unwrap();
    }
    let named = store.put_group(&team, Some("The team".to_owned()), at(1)).await.unwrap();
    assert_eq!(named.subscribers, dids(&["ann", "bob"]));
    let same = store.put_group(&team, None, at(2)).await.unwrap();
    assert_eq!(same.name.as_deref(), Some("The team"));
    let left = store.set_subscriber(&team, &did("ann"), false, at(3)).await.unwrap();
    assert_eq!(left.subscribers, dids(&["bob"]));
    assert_eq!(store.group(&team).await.unwrap(), left);
}

pub(crate) async fn a_tunnel_is_put_once_and_changed_after(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "slack", StrangerPolicy::Accept, true).await;
    tunnel(store, "lark", StrangerPolicy::Hold, false).await;
    tunnel(store, "lark", StrangerPolicy::Hold, false).await;
    assert_eq!(events(store).await, "changed changed", "the same again is no change");
    tunnel(store, "lark", StrangerPolicy::Drop, true).await;
    let tunnels = store.tunnels().await.unwrap();
    let rules: Vec<_> =
        tunnels.iter().map(|t| (t.id.as_str(), t.strangers, t.idempotent)).collect();
    assert_eq!(
        rules,
        [("lark", StrangerPolicy::Drop, true), ("slack", StrangerPolicy::Accept, true)]
    );
}

pub(crate) async fn whoever_has_anything_here_is_known(home: &dyn Home) {
    let store = &*home.open().await;
    let known = async |who: &str| store.owner_exists(&did(who)).await.unwrap();
    lark(store).await;
    contact(store, "contact", ContactLevel::Block).await;
    group(store, "team", &["reader"]).await;
    put_in(store, plain(chat("author", &["owner"], "hello"))).await;
    for who in ["contact", "team", "owner", "did:msgtunnel:lark"] {
        assert!(known(who).await, "{who}");
    }
    for who in ["author", "reader", "nobody", "did:msgtunnel:slack"] {
        assert!(!known(who).await, "{who}");
    }
}
