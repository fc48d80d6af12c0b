//! Conformance tests of contacts, groups, blocks and tunnels.

use std::collections::BTreeSet;

use monoco_core::inbound::{ChatSession, InboundMessage, Participant};
use monoco_core::merge::Debounce;

use super::*;
use crate::{StoreInboundRequest, StoreInboundResult};

fn dids_by_page<'a>(pages: impl Iterator<Item = Vec<&'a Did>>) -> String {
    let words = pages.map(|page| page.into_iter().map(short_name).collect::<String>());
    words.collect::<Vec<_>>().join(" ")
}

pub(crate) async fn replaced_contact_keeps_its_bindings(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, "ann", ContactLevel::Stranger).await;
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
    assert_eq!(event_kinds(store).await, "changed ".repeat(7).trim_end());
}

/// The address of a mailbox is one account, however its domain and its kind are written.
pub(crate) async fn binding_to_a_mailbox_recognises_its_mails(store: &dyn Store) {
    let (id, provider) = (tunnel_id("mail"), "email".to_owned());
    let strangers = StrangerPolicy::Drop;
    let tunnel = TunnelInfo::new(id, provider, strangers);
    store.put_tunnel(tunnel, at(0)).await.unwrap();
    add_contact(store, "joe", ContactLevel::Friend).await;
    let bound = store.bind(&did("joe"), binding("mail", "Joe@Example.COM", 1), at(0)).await;
    let [bound] = &bound.unwrap().bindings[..] else { panic!() };
    assert_eq!((bound.kind, bound.address.as_str()), (EndpointKind::Addr, "Joe@example.com"));

    let session = ChatSession { id: "team@example.com".to_owned(), ..ChatSession::default() };
    let from = Participant::mailbox("Joe@EXAMPLE.com", None);
    let message = InboundMessage::new("<1@x>#0", session, from, "hello").validate().unwrap();
    let request = StoreInboundRequest {
        tunnel: tunnel_id("mail"),
        provider: "email".to_owned(),
        message,
        attachments: Vec::new(),
        debounce: Debounce::DEFAULT,
        mail: None,
    };
    let stored = store.store_inbound(vec![request], at(0)).await.remove(0).unwrap();
    assert_eq!(stored, StoreInboundResult::Stored, "a stranger would be dropped");
    let left = store.unbind(&did("joe"), &tunnel_id("mail"), "Joe@EXAMPLE.com", at(2)).await;
    assert_eq!(left.unwrap().bindings, []);
}

pub(crate) async fn removed_contact_keeps_its_boxes(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "ann").await;
    store.bind(&did("ann"), binding("lark", "ou_1", 1), at(0)).await.unwrap();
    dispatch(store, without_tunnel(chat("bob", &["ann"], "hello"))).await;
    store.remove_contact(&did("ann"), at(1)).await.unwrap();
    assert!(matches!(store.contact(&did("ann")).await, Err(StoreError::Missing { .. })));
    assert!(store.contacts(FULL_PAGE).await.unwrap().entries.is_empty());
    assert_eq!(inbox_contents(store, "ann").await, "hello UNREAD");

    add_contact(store, "ann", ContactLevel::Friend).await;
    assert_eq!(store.contact(&did("ann")).await.unwrap().bindings, []);
}

pub(crate) async fn binding_requires_contact_and_tunnel(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, "ann", ContactLevel::Friend).await;
    let before = event_kinds(store).await;
    let missing = |result: Result<Contact, StoreError>, thing: &str| {
        assert!(matches!(result, Err(StoreError::Missing { what, .. }) if what == thing));
    };
    let to_lark = || binding("lark", "ou_1", 1);
    missing(store.bind(&did("bob"), to_lark(), at(0)).await, "contact");
    missing(store.bind(&did("ann"), binding("gone", "ou_1", 1), at(0)).await, "tunnel");
    missing(store.unbind(&did("ann"), &tunnel_id("lark"), "ou_1", at(0)).await, "binding");
    missing(store.unbind(&did("bob"), &tunnel_id("lark"), "ou_1", at(0)).await, "contact");
    assert_eq!(event_kinds(store).await, before);
    let subscribed = store.set_subscriber(&did("team"), &did("ann"), true, at(0)).await;
    assert!(matches!(subscribed, Err(StoreError::Missing { what: "group", .. })));
}

pub(crate) async fn contacts_and_groups_are_paged(store: &dyn Store) {
    for who in ["a", "b", "c", "d", "e"] {
        // Dispatching a message creates a row for its author, but no contact.
        dispatch(store, without_tunnel(chat(who, &["me"], "hi"))).await;
        add_contact(store, who, ContactLevel::Friend).await;
        add_group(store, &format!("team-{who}"), &[who]).await;
    }
    let contacts = async |newest_first| {
        let pages = all_pages(2, newest_first, async |w| store.contacts(w).await.unwrap()).await;
        dids_by_page(pages.iter().map(|page| page.iter().map(|contact| &contact.did).collect()))
    };
    let groups = async |newest_first| {
        let pages = all_pages(2, newest_first, async |w| store.groups(w).await.unwrap()).await;
        dids_by_page(
            pages.iter().map(|page| page.iter().map(|group| &group.subscribers[0]).collect()),
        )
    };
    assert_eq!(contacts(false).await, "ab cd e");
    assert_eq!(contacts(true).await, "ed cb a");
    assert_eq!(groups(false).await, "ab cd e");
    assert_eq!(groups(true).await, "ed cb a");
}

pub(crate) async fn group_keeps_its_name_and_subscribers(store: &dyn Store) {
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

pub(crate) async fn putting_an_unchanged_tunnel_writes_no_event(store: &dyn Store) {
    put_tunnel(store, "slack", StrangerPolicy::Accept, true).await;
    put_tunnel(store, "lark", StrangerPolicy::Hold, false).await;
    put_tunnel(store, "lark", StrangerPolicy::Hold, false).await;
    assert_eq!(event_kinds(store).await, "changed changed", "an unchanged tunnel writes no event");
    put_tunnel(store, "lark", StrangerPolicy::Drop, true).await;
    let tunnels = store.tunnels().await.unwrap();
    let rules: Vec<_> =
        tunnels.iter().map(|t| (t.id.as_str(), t.strangers, t.idempotent)).collect();
    assert_eq!(
        rules,
        [("lark", StrangerPolicy::Drop, true), ("slack", StrangerPolicy::Accept, true)]
    );
}

pub(crate) async fn paused_tunnel_stays_paused_until_it_is_resumed_or_removed(home: &dyn TestHome) {
    let store = home.open().await;
    let (slack, lark) = (tunnel_id("slack"), tunnel_id("lark"));
    let missing = store.set_tunnel_active(&slack, false, at(0)).await;
    assert_matches!(missing, Err(StoreError::Missing { .. }));
    for id in ["slack", "lark"] {
        put_tunnel(&*store, id, StrangerPolicy::Accept, false).await;
    }
    assert_eq!(store.paused_tunnels().await.unwrap(), BTreeSet::new(), "a new tunnel is active");
    store.set_tunnel_active(&slack, false, at(1)).await.unwrap();
    store.set_tunnel_active(&slack, false, at(2)).await.unwrap();
    put_tunnel(&*store, "slack", StrangerPolicy::Hold, false).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(store.paused_tunnels().await.unwrap(), BTreeSet::from([slack.clone()]));
    assert_eq!(event_kinds(&*store).await, "changed changed changed changed", "no second pause");
    store.set_tunnel_active(&lark, false, at(3)).await.unwrap();
    store.set_tunnel_active(&slack, true, at(4)).await.unwrap();
    assert_eq!(store.paused_tunnels().await.unwrap(), BTreeSet::from([lark.clone()]));
    store.remove_tunnel(&lark, at(5)).await.unwrap();
    put_tunnel(&*store, "lark", StrangerPolicy::Accept, false).await;
    assert_eq!(store.paused_tunnels().await.unwrap(), BTreeSet::new());
}

pub(crate) async fn owner_exists_for_contacts_groups_tunnels_and_box_owners(store: &dyn Store) {
    let known = async |who: &str| store.owner_exists(&did(who)).await.unwrap();
    put_lark_tunnel(store).await;
    add_contact(store, "contact", ContactLevel::Block).await;
    add_group(store, "team", &["reader"]).await;
    dispatch(store, without_tunnel(chat("author", &["owner"], "hello"))).await;
    for who in ["contact", "team", "owner", "did:msgtunnel:lark"] {
        assert!(known(who).await, "{who}");
    }
    for who in ["author", "reader", "unknown", "did:msgtunnel:slack"] {
        assert!(!known(who).await, "{who}");
    }
}

pub(crate) async fn find_block_reports_blocked_author_and_blocking_target(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, "eve", ContactLevel::Block).await;
    store.bind(&did("eve"), binding("lark", "evil", 1), at(0)).await.unwrap();
    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    let lark = tunnel_id("lark");
    for (author, to, why) in [
        ("ann", vec!["cat"], None),
        ("ann", vec!["cat", "bob"], Some("did:web:bob has blocked its author")),
        ("eve", vec!["cat"], Some("its author is blocked")),
        (&endpoint("evil", "lark"), vec!["cat"], Some("its author is blocked")),
        (&endpoint("good", "lark"), vec!["cat"], None),
        ("stranger", vec![], None),
    ] {
        let found = store.find_block(&did(author), &dids(&to), Some(&lark)).await.unwrap();
        assert_eq!(found.as_deref(), why, "{author} to {to:?}");
    }
}
