//! Conformance tests of dispatching messages into the boxes of local recipients.

use futures_util::future::join_all;

use super::*;

pub(crate) async fn dispatch_creates_a_record_for_every_local_recipient(store: &dyn Store) {
    let msg = chat("ann", &["bob", "cat", "bob"], "hello");
    let answer = try_dispatch(store, without_tunnel(msg.clone())).await.unwrap();
    assert_eq!(answer.msg_id, msg.id());
    assert_eq!(describe(&answer), "bob/INBOX cat/INBOX");
    assert_eq!(inbox_contents(store, "bob").await, "hello UNREAD");
    assert_eq!(inbox_contents(store, "cat").await, "hello UNREAD");
    assert_eq!(inbox_contents(store, "ann").await, "");
    assert_eq!(store.object(msg.id()).await.unwrap(), msg.canonical().as_bytes());

    let DispatchOutcome::Delivered { records, .. } = answer.outcome else { panic!() };
    let record = store.record(records[0].record_id).await.unwrap();
    assert_eq!((record.owner, record.box_kind), (did("bob"), BoxKind::Inbox));
    assert_eq!((record.session, record.tunnel), (did("ann"), None));
    assert_eq!((record.created_at, record.revision), (at(0), 0));
}

pub(crate) async fn repeated_dispatch_is_reported_as_duplicate(store: &dyn Store) {
    let msg = chat("ann", &["bob"], "hello");
    assert_eq!(dispatch(store, without_tunnel(msg.clone())).await, "bob/INBOX");
    assert_eq!(dispatch(store, without_tunnel(msg.clone())).await, "again: bob/INBOX");
    lease_next_record(store, "bob", 0).await.unwrap();
    assert_eq!(dispatch(store, without_tunnel(msg)).await, "again: bob/INBOX");
    assert_eq!(inbox_contents(store, "bob").await, "hello READING");
    assert_eq!(event_kinds(store).await, "dispatched duplicate taken duplicate");
}

pub(crate) async fn message_repeated_in_one_batch_is_stored_once(store: &dyn Store) {
    let msg = chat("ann", &["bob"], "hello");
    let batch = vec![without_tunnel(msg.clone()), without_tunnel(msg)];
    let answers: Vec<_> =
        store.dispatch(batch, at(0)).await.iter().map(|a| describe(a.as_ref().unwrap())).collect();
    assert_eq!(answers, ["bob/INBOX", "again: bob/INBOX"]);
    assert_eq!(inbox_contents(store, "bob").await, "hello UNREAD");
}

pub(crate) async fn concurrent_dispatches_store_each_message_once(store: &dyn Store) {
    let one = |n: usize| {
        dispatch(store, without_tunnel(chat("ann", &["bob"], &format!("hello {}", n % 16))))
    };
    let answers = join_all((0..128).map(one)).await;
    assert_eq!(answers.iter().filter(|answer| *answer == "bob/INBOX").count(), 16);
    assert_eq!(
        store
            .records(&did("bob"), BoxKind::Inbox, &RecordFilter::default(), FULL_PAGE)
            .await
            .unwrap()
            .entries
            .len(),
        16
    );
}

/// A provider may repeat an external id with an edited text, even with the text of another
/// message.
pub(crate) async fn repeated_external_id_returns_the_first_message(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let first = chat("ann", &["bob"], "first");
    let other = chat("ann", &["cat"], "other");
    assert_eq!(dispatch(store, via_tunnel("lark", "om_1", first.clone())).await, "bob/INBOX");
    assert_eq!(dispatch(store, via_tunnel("lark", "om_2", other.clone())).await, "cat/INBOX");

    for changed in [chat("ann", &["bob"], "edited"), other] {
        let answer = try_dispatch(store, via_tunnel("lark", "om_1", changed)).await.unwrap();
        assert_eq!(answer.msg_id, first.id());
        assert_eq!(describe(&answer), "again: bob/INBOX");
    }
    assert_eq!(inbox_contents(store, "bob").await, "first UNREAD");
    let edited = chat("ann", &["bob"], "edited").id();
    assert!(matches!(store.object(edited).await, Err(StoreError::Missing { .. })));
}

pub(crate) async fn external_ids_are_scoped_to_their_tunnel(store: &dyn Store) {
    assert_eq!(
        dispatch(store, via_tunnel("lark", "1", chat("ann", &["bob"], "a"))).await,
        "bob/INBOX"
    );
    assert_eq!(
        dispatch(store, via_tunnel("slack", "1", chat("ann", &["bob"], "b"))).await,
        "bob/INBOX"
    );
    assert_eq!(inbox_contents(store, "bob").await, "a UNREAD, b UNREAD");
}

/// The message was first dispatched without an external id. The external id of the
/// duplicate is stored, so a later message with that id is a duplicate too.
pub(crate) async fn external_id_of_a_duplicate_is_stored(store: &dyn Store) {
    let msg = chat("ann", &["bob"], "hello");
    dispatch(store, without_tunnel(msg.clone())).await;
    assert_eq!(dispatch(store, via_tunnel("lark", "om_1", msg.clone())).await, "again: bob/INBOX");

    let edited = via_tunnel("lark", "om_1", chat("ann", &["bob"], "edited"));
    assert_eq!(dispatch(store, edited).await, "again: bob/INBOX");
    assert_eq!(store.find_by_external_id("om_1").await.unwrap(), msg.id());
}

pub(crate) async fn message_of_blocked_author_is_delivered_after_unblocking(store: &dyn Store) {
    add_contact(store, "pest", ContactLevel::Block).await;
    let msg = chat("pest", &["bob"], "buy this");
    assert_eq!(dispatch(store, via_tunnel("lark", "1", msg.clone())).await, "blocked");
    assert_eq!(dispatch(store, via_tunnel("lark", "1", msg.clone())).await, "blocked");
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert!(event_kinds(store).await.ends_with("blocked blocked"));

    add_contact(store, "pest", ContactLevel::Friend).await;
    assert_eq!(dispatch(store, via_tunnel("lark", "1", msg)).await, "bob/INBOX");
}

pub(crate) async fn dropped_message_is_delivered_once_its_author_is_a_contact(store: &dyn Store) {
    put_tunnel(store, "shut", StrangerPolicy::Drop, false).await;
    let msg = chat("stranger", &["bob"], "hello?");
    assert_eq!(dispatch(store, via_tunnel("shut", "1", msg.clone())).await, "dropped");
    assert!(matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. })));
    assert!(event_kinds(store).await.ends_with("dropped"));

    add_contact(store, "stranger", ContactLevel::Temporary).await;
    assert_eq!(dispatch(store, via_tunnel("shut", "1", msg)).await, "bob/INBOX");
}

pub(crate) async fn message_of_stranger_goes_to_request_box(store: &dyn Store) {
    put_tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    add_contact(store, "friend", ContactLevel::Friend).await;
    let stranger = via_tunnel("wary", "1", chat("stranger", &["bob"], "hello?"));
    let friend = via_tunnel("wary", "2", chat("friend", &["bob"], "hello!"));
    assert_eq!(dispatch(store, stranger).await, "bob/REQUEST_BOX");
    assert_eq!(dispatch(store, friend).await, "bob/INBOX");
    assert_eq!(
        lease_next_record(store, "bob", 0).await.map(|t| leased_text(&t)).unwrap(),
        "hello!"
    );
    assert_eq!(
        lease_next_record(store, "bob", 0).await,
        None,
        "records of a REQUEST_BOX are not leased"
    );
    assert_eq!(box_contents(store, "bob", BoxKind::RequestBox).await, "hello? UNREAD");
}

pub(crate) async fn owner_who_blocked_the_author_gets_no_record(store: &dyn Store) {
    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    assert_eq!(
        dispatch(store, without_tunnel(chat("ann", &["bob", "cat"], "1"))).await,
        "cat/INBOX"
    );
    assert_eq!(dispatch_text(store, "2").await, "blocked");
    assert_eq!(dispatch(store, without_tunnel(chat("cat", &["bob"], "3"))).await, "bob/INBOX");

    store.set_block(&did("ann"), &did("bob"), false, at(0)).await.unwrap();
    assert_eq!(dispatch_text(store, "2").await, "bob/INBOX");
}

pub(crate) async fn endpoint_has_the_level_and_blocks_of_its_contact(store: &dyn Store) {
    put_tunnel(store, "shut", StrangerPolicy::Drop, false).await;
    add_contact(store, "ann", ContactLevel::Friend).await;
    store.bind(&did("ann"), binding("shut", "ou_1", 0), at(0)).await.unwrap();
    let from_account = |account: &str, text: &str| {
        via_tunnel("shut", text, chat(&endpoint(account, "shut"), &["bob"], text))
    };
    assert_eq!(dispatch(store, from_account("ou_1", "1")).await, "bob/INBOX");
    assert_eq!(dispatch(store, from_account("ou_2", "2")).await, "dropped");

    store.set_block(&did("ann"), &did("bob"), true, at(0)).await.unwrap();
    assert_eq!(dispatch(store, from_account("ou_1", "3")).await, "blocked");
    add_contact(store, "ann", ContactLevel::Block).await;
    assert_eq!(dispatch(store, from_account("ou_1", "4")).await, "blocked");
}

pub(crate) async fn rejected_message_does_not_affect_the_rest_of_the_batch(store: &dyn Store) {
    add_contact(store, "pest", ContactLevel::Block).await;
    let nowhere = chat("ann", &[&endpoint("x", "lark")], "no local recipient");
    let batch = vec![
        without_tunnel(chat("ann", &["bob"], "1")),
        without_tunnel(nowhere.clone()),
        without_tunnel(chat("pest", &["bob"], "2")),
        without_tunnel(chat("ann", &["bob"], "3")),
    ];
    let answers = store.dispatch(batch, at(0)).await;
    assert_eq!(describe(answers[0].as_ref().unwrap()), "bob/INBOX");
    assert!(matches!(&answers[1], Err(StoreError::NoLocalRecipient(_))), "{:?}", answers[1]);
    assert_eq!(describe(answers[2].as_ref().unwrap()), "blocked");
    assert_eq!(describe(answers[3].as_ref().unwrap()), "bob/INBOX");
    assert_eq!(inbox_contents(store, "bob").await, "1 UNREAD, 3 UNREAD");
    assert!(matches!(store.object(nowhere.id()).await, Err(StoreError::Missing { .. })));
    assert_eq!(event_kinds(store).await, "changed dispatched blocked dispatched");
    assert!(store.dispatch(Vec::new(), at(0)).await.is_empty());
}

/// One commit sends one hint per box, so a batch in one commit sends one hint for its box.
pub(crate) async fn dispatch_batch_is_one_commit(store: &dyn Store) {
    let mut hints = store.hints();
    let batch = (0..700).map(|n| without_tunnel(chat("ann", &["bob"], &n.to_string()))).collect();
    assert!(store.dispatch(batch, at(0)).await.iter().all(Result::is_ok));
    dispatch(store, without_tunnel(chat("ann", &["cat"], "next"))).await;
    assert_eq!(hints.recv().await.unwrap().owner, did("bob"));
    assert_eq!(hints.recv().await.unwrap().owner, did("cat"));
}

pub(crate) async fn group_message_goes_to_group_and_each_subscriber(store: &dyn Store) {
    add_group(store, "team", &["ann", "bob", "cat"]).await;
    store.set_block(&did("ann"), &did("cat"), true, at(0)).await.unwrap();
    let msg = group_chat("team", "ann", "standup");
    assert_eq!(dispatch(store, without_tunnel(msg.clone())).await, "team/GROUP_INBOX bob/INBOX");
    assert_eq!(dispatch(store, without_tunnel(msg)).await, "again: team/GROUP_INBOX bob/INBOX");

    let record = lease_next_record(store, "bob", 0).await.unwrap().entry;
    assert_eq!(record.tags, ["group:did:web:team"]);
    assert_eq!(record.session, did("team"));
    assert_eq!(box_contents(store, "team", BoxKind::GroupInbox).await, "standup UNREAD");
    assert_eq!(inbox_contents(store, "ann").await, "", "the author gets no copy");
    assert_eq!(inbox_contents(store, "cat").await, "");
}

pub(crate) async fn dispatch_registers_its_tunnel_for_replies(store: &dyn Store) {
    let ann = endpoint("ann", "new");
    let answer = chat("bob", &[&ann], "hello ann");
    assert!(store.send(send_request(answer.clone()), at(0)).await.is_err());

    assert_eq!(
        dispatch(store, via_tunnel("new", "1", chat(&ann, &["bob"], "hi"))).await,
        "bob/INBOX"
    );
    let tunnels = store.tunnels().await.unwrap();
    assert_eq!(tunnels.iter().map(|t| t.id.as_str()).collect::<Vec<_>>(), ["new"]);
    let record = lease_next_record(store, "bob", 0).await.unwrap().entry;
    assert_eq!(record.tunnel, Some(tunnel_id("new").did()));
    send_message(store, answer).await;
    assert_eq!(tunnel_contents(store, "new").await, "hello ann WAIT");
}

pub(crate) async fn message_can_be_both_sent_and_dispatched(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "bob").await;
    let away = endpoint("x", "lark");
    let first_out = chat("ann", &[&away, "cat"], "out, then in");
    add_contact(store, "cat", ContactLevel::Friend).await;
    store.bind(&did("cat"), binding("lark", "ou_cat", 0), at(0)).await.unwrap();
    send_message(store, first_out.clone()).await;
    assert_eq!(dispatch(store, without_tunnel(first_out)).await, "cat/INBOX");

    let first_in = chat("ann", &[&away, "bob"], "in, then out");
    assert_eq!(dispatch(store, without_tunnel(first_in.clone())).await, "bob/INBOX");
    let ways = send_message(store, first_in).await;
    assert_eq!(ways.len(), 2);
    assert_eq!(
        inbox_contents(store, "bob").await,
        "in, then out UNREAD",
        "one record for both paths"
    );
}
