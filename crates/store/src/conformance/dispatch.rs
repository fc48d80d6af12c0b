//! Laws of what comes in.

use futures_util::future::join_all;
use monoco_core::contact::{ContactLevel, StrangerPolicy};
use monoco_core::record::BoxKind;

use super::*;

pub(crate) async fn a_message_waits_for_everybody_it_is_for(home: &dyn Home) {
    let store = &*home.open().await;
    let msg = chat("ann", &["bob", "cat", "bob"], "hello");
    let answer = try_dispatch(store, plain(msg.clone())).await.unwrap();
    assert_eq!(answer.msg_id, msg.id());
    assert_eq!(say(&answer), "bob/INBOX cat/INBOX");
    assert_eq!(inbox(store, "bob").await, "hello UNREAD");
    assert_eq!(inbox(store, "cat").await, "hello UNREAD");
    assert_eq!(inbox(store, "ann").await, "");
    assert_eq!(store.object(msg.id()).await.unwrap(), msg.canonical().as_bytes());

    let DispatchOutcome::Delivered { records, .. } = answer.outcome else { panic!() };
    let record = store.record(records[0].record_id).await.unwrap();
    assert_eq!((record.owner, record.box_kind), (did("bob"), BoxKind::Inbox));
    assert_eq!((record.session, record.tunnel), (did("ann"), None));
    assert_eq!((record.created_at, record.revision), (at(0), 0));
}

pub(crate) async fn dispatching_twice_is_dispatching_once(home: &dyn Home) {
    let store = &*home.open().await;
    let msg = chat("ann", &["bob"], "hello");
    assert_eq!(put_in(store, plain(msg.clone())).await, "bob/INBOX");
    assert_eq!(put_in(store, plain(msg.clone())).await, "again: bob/INBOX");
    read_next(store, "bob", 0).await.unwrap();
    assert_eq!(put_in(store, plain(msg)).await, "again: bob/INBOX");
    assert_eq!(inbox(store, "bob").await, "hello READING");
    assert_eq!(events(store).await, "dispatched duplicate taken duplicate");
}

pub(crate) async fn twice_in_one_batch_is_once(home: &dyn Home) {
    let store = &*home.open().await;
    let msg = chat("ann", &["bob"], "hello");
    let batch = vec![plain(msg.clone()), plain(msg)];
    let answers: Vec<_> =
        store.dispatch(batch, at(0)).await.iter().map(|a| say(a.as_ref().unwrap())).collect();
    assert_eq!(answers, ["bob/INBOX", "again: bob/INBOX"]);
    assert_eq!(inbox(store, "bob").await, "hello UNREAD");
}

pub(crate) async fn eight_at_once_deliver_it_once(home: &dyn Home) {
    let store = &*home.open().await;
    let one = |n: usize| put_in(store, plain(chat("ann", &["bob"], &format!("hello {}", n % 16))));
    let answers = join_all((0..128).map(one)).await;
    assert_eq!(answers.iter().filter(|answer| *answer == "bob/INBOX").count(), 16);
    assert_eq!(
        store.records(&did("bob"), BoxKind::Inbox, &[], ALL).await.unwrap().entries.len(),
        16
    );
}

/// Providers repeat themselves, and what they repeat may have been edited
/// meanwhile, even into something that somebody else said.
pub(crate) async fn a_repeated_external_id_gets_the_first_answer(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let first = chat("ann", &["bob"], "first");
    let other = chat("ann", &["cat"], "other");
    assert_eq!(put_in(store, heard("lark", "om_1", first.clone())).await, "bob/INBOX");
    assert_eq!(put_in(store, heard("lark", "om_2", other.clone())).await, "cat/INBOX");

    for changed in [chat("ann", &["bob"], "edited"), other] {
        let answer = try_dispatch(store, heard("lark", "om_1", changed)).await.unwrap();
        assert_eq!(answer.msg_id, first.id());
        assert_eq!(say(&answer), "again: bob/INBOX");
    }
    assert_eq!(inbox(store, "bob").await, "first UNREAD");
    let edited = chat("ann", &["bob"], "edited").id();
    assert!(matches!(store.object(edited).await, Err(StoreError::Missing { .. })));
}

pub(crate) async fn external_ids_of_two_tunnels_are_two(home: &dyn Home) {
    let store = &*home.open().await;
    assert_eq!(put_in(store, heard("lark", "1", chat("ann", &["bob"], "a"))).await, "bob/INBOX");
    assert_eq!(put_in(store, heard("slack", "1", chat("ann", &["bob"], "b"))).await, "bob/INBOX");
    assert_eq!(inbox(store, "bob").await, "a UNREAD, b UNREAD");
}

/// The same words came in another way first. The tunnel's name for them counts
/// from then on all the same.
pub(crate) async fn an_external_id_of_a_known_message_is_remembered(home: &dyn Home) {
    let store = &*home.open().await;
    let msg = chat("ann", &["bob"], "hello");
    put_in(store, plain(msg.clone())).await;
    assert_eq!(put_in(store, heard("lark", "om_1", msg.clone())).await, "again: bob/INBOX");

    let edited = heard("lark", "om_1", chat("ann", &["bob"], "edited"));
    assert_eq!(put_in(store, edited).await, "again: bob/INBOX");
    assert_eq!(store.find_by_external_id("om_1").await.unwrap(), msg.id());
}

pub(crate) async fn a_blocked_author_gets_through_once_welcome(home: &dyn Home) {
    let store = &*home.open().await;
    contact(store, "pest", ContactLevel::Block).await;
    let msg = chat("pest", &["bob"], "buy this");
    assert_eq!(put_in(store, heard("lark", "1", msg.clone())).await, "blocked");
    assert_eq!(put_in(store, heard("lark", "1", msg.clone())).await, "blocked");
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert!(events(store).await.ends_with("blocked blocked"));

    contact(store, "pest", ContactLevel::Friend).await;
    assert_eq!(put_in(store, heard("lark", "1", msg)).await, "bob/INBOX");
}

pub(crate) async fn a_dropped_stranger_gets_through_once_known(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "shut", StrangerPolicy::Drop, false).await;
    let msg = chat("stranger", &["bob"], "hello?");
    assert_eq!(put_in(store, heard("shut", "1", msg.clone())).await, "dropped");
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert!(events(store).await.ends_with("dropped"));

    contact(store, "stranger", ContactLevel::Temporary).await;
    assert_eq!(put_in(store, heard("shut", "1", msg)).await, "bob/INBOX");
}

pub(crate) async fn a_stranger_waits_in_the_request_box(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    contact(store, "friend", ContactLevel::Friend).await;
    let stranger = heard("wary", "1", chat("stranger", &["bob"], "hello?"));
    let friend = heard("wary", "2", chat("friend", &["bob"], "hello!"));
    assert_eq!(put_in(store, stranger).await, "bob/REQUEST_BOX");
    assert_eq!(put_in(store, friend).await, "bob/INBOX");
    assert_eq!(
        read_next(store, "bob", 0).await.map(|t| said(t.message.canonical().as_bytes())).unwrap(),
        "hello!"
    );
    assert_eq!(read_next(store, "bob", 0).await, None, "nobody is fed from a REQUEST_BOX");
    assert_eq!(look(store, "bob", BoxKind::RequestBox).await, "hello? UNREAD");
}

pub(crate) async fn whoever_blocked_the_author_gets_nothing(home: &dyn Home) {
    let store = &*home.open().await;
    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    assert_eq!(put_in(store, plain(chat("ann", &["bob", "cat"], "1"))).await, "cat/INBOX");
    assert_eq!(put_in(store, plain(chat("ann", &["bob"], "2"))).await, "blocked");
    assert_eq!(put_in(store, plain(chat("cat", &["bob"], "3"))).await, "bob/INBOX");

    store.set_block(&did("ann"), &did("bob"), false, at(0)).await.unwrap();
    assert_eq!(put_in(store, plain(chat("ann", &["bob"], "2"))).await, "bob/INBOX");
}

pub(crate) async fn an_endpoint_counts_as_its_contact(home: &dyn Home) {
    let store = &*home.open().await;
    tunnel(store, "shut", StrangerPolicy::Drop, false).await;
    contact(store, "ann", ContactLevel::Friend).await;
    store.bind(&did("ann"), binding("shut", "ou_1", 0), at(0)).await.unwrap();
    let say = |account: &str, text: &str| {
        heard("shut", text, chat(&endpoint(account, "shut"), &["bob"], text))
    };
    assert_eq!(put_in(store, say("ou_1", "1")).await, "bob/INBOX");
    assert_eq!(put_in(store, say("ou_2", "2")).await, "dropped");

    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    assert_eq!(put_in(store, say("ou_1", "3")).await, "blocked");
    contact(store, "ann", ContactLevel::Block).await;
    assert_eq!(put_in(store, say("ou_1", "4")).await, "blocked");
}

pub(crate) async fn a_refused_one_does_not_harm_its_neighbours(home: &dyn Home) {
    let store = &*home.open().await;
    contact(store, "pest", ContactLevel::Block).await;
    let nowhere = chat("ann", &[&endpoint("x", "lark")], "to nobody here");
    let batch = vec![
        plain(chat("ann", &["bob"], "1")),
        plain(nowhere.clone()),
        plain(chat("pest", &["bob"], "2")),
        plain(chat("ann", &["bob"], "3")),
    ];
    let answers = store.dispatch(batch, at(0)).await;
    assert_eq!(say(answers[0].as_ref().unwrap()), "bob/INBOX");
    assert!(matches!(&answers[1], Err(StoreError::NoLocalRecipient(_))), "{:?}", answers[1]);
    assert_eq!(say(answers[2].as_ref().unwrap()), "blocked");
    assert_eq!(say(answers[3].as_ref().unwrap()), "bob/INBOX");
    assert_eq!(inbox(store, "bob").await, "1 UNREAD, 3 UNREAD");
    assert!(matches!(store.object(nowhere.id()).await, Err(StoreError::Missing { .. })));
    assert_eq!(events(store).await, "changed dispatched blocked dispatched");
    assert!(store.dispatch(Vec::new(), at(0)).await.is_empty());
}

/// One commit has one hint for a box, however much it put there.
pub(crate) async fn a_batch_is_one_commit(home: &dyn Home) {
    let store = &*home.open().await;
    let mut hints = store.hints();
    let batch = (0..700).map(|n| plain(chat("ann", &["bob"], &n.to_string()))).collect();
    assert!(store.dispatch(batch, at(0)).await.iter().all(Result::is_ok));
    put_in(store, plain(chat("ann", &["cat"], "next"))).await;
    assert_eq!(hints.recv().await.unwrap().owner, did("bob"));
    assert_eq!(hints.recv().await.unwrap().owner, did("cat"));
}

pub(crate) async fn a_group_hears_it_once_and_each_subscriber_too(home: &dyn Home) {
    let store = &*home.open().await;
    group(store, "team", &["ann", "bob", "cat"]).await;
    store.set_block(&did("ann"), &did("cat"), true, at(0)).await.unwrap();
    let msg = said_in("team", "ann", "standup");
    assert_eq!(put_in(store, plain(msg.clone())).await, "team/GROUP_INBOX bob/INBOX");
    assert_eq!(put_in(store, plain(msg)).await, "again: team/GROUP_INBOX bob/INBOX");

    let record = read_next(store, "bob", 0).await.unwrap().entry;
    assert_eq!(record.tags, ["group:did:web:team"]);
    assert_eq!(record.session, did("team"));
    assert_eq!(look(store, "team", BoxKind::GroupInbox).await, "standup UNREAD");
    assert_eq!(inbox(store, "ann").await, "", "the author does not hear himself");
    assert_eq!(inbox(store, "cat").await, "");
}

pub(crate) async fn a_tunnel_that_was_heard_from_can_be_answered_through(home: &dyn Home) {
    let store = &*home.open().await;
    let ann = endpoint("ann", "new");
    let answer = chat("bob", &[&ann], "hello ann");
    assert!(store.send(post_of(answer.clone()), at(0)).await.is_err());

    assert_eq!(put_in(store, heard("new", "1", chat(&ann, &["bob"], "hi"))).await, "bob/INBOX");
    let tunnels = store.tunnels().await.unwrap();
    assert_eq!(tunnels.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["new"]);
    let record = read_next(store, "bob", 0).await.unwrap().entry;
    assert_eq!(record.tunnel, Some(tunnel_id("new").did()));
    post(store, answer).await;
    assert_eq!(outgoing(store, "new").await, "hello ann WAIT");
}

pub(crate) async fn one_message_can_go_out_and_come_in(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    lives_here(store, "bob").await;
    let away = endpoint("x", "lark");
    let first_out = chat("ann", &[&away, "cat"], "out, then in");
    contact(store, "cat", ContactLevel::Friend).await;
    store.bind(&did("cat"), binding("lark", "ou_cat", 0), at(0)).await.unwrap();
    post(store, first_out.clone()).await;
    assert_eq!(put_in(store, plain(first_out)).await, "cat/INBOX");

    let first_in = chat("ann", &[&away, "bob"], "in, then out");
    assert_eq!(put_in(store, plain(first_in.clone())).await, "bob/INBOX");
    let ways = post(store, first_in).await;
    assert_eq!(ways.len(), 2);
    assert_eq!(inbox(store, "bob").await, "in, then out UNREAD", "once, however it came");
}
