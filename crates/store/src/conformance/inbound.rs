//! Conformance tests of inbound messages: stored once, then merged into Mails.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::claim::MailLocation;
use monoco_core::event::EventKind;
use monoco_core::inbound::{
    BodyHash, ChatSession, ChatSessionKind, InboundMessage, Participant, ValidInboundMessage,
};
use monoco_core::mail::{MailId, Trust};
use monoco_core::merge::{Debounce, MAX_BYTES, MAX_MESSAGES};

use super::mails::{list_mails, mail_texts, read_mail};
use super::*;
use crate::StoreInboundResult::{Blocked, Dropped, Duplicate, Stored};
use crate::{MergeContext, StoreInboundRequest, StoreInboundResult};

/// A message from `from` in the group chat `room` of the tunnel `lark`.
pub(super) fn inbound_message(id: &str, from: &str, text: &str) -> StoreInboundRequest {
    let kind = ChatSessionKind::Group;
    let session = ChatSession { id: "room".to_owned(), kind, ..ChatSession::default() };
    let from = Participant::user(from, None);
    let message =
        InboundMessage { received_at: at(0), ..InboundMessage::new(id, session, from, text) };
    let (tunnel, provider) = (tunnel_id("lark"), "lark".to_owned());
    let (message, attachments) = (stored(&message), Vec::new());
    let debounce = Debounce::DEFAULT;
    StoreInboundRequest { tunnel, provider, message, attachments, debounce, mail: None }
}

/// The message as it is read from the store, where limits are not checked again.
fn stored(message: &InboundMessage) -> ValidInboundMessage {
    ValidInboundMessage::from_stored_json(json!(message).to_string()).unwrap()
}

/// The request with a changed message.
pub(super) fn with_message(
    request: StoreInboundRequest,
    change: impl FnOnce(&mut InboundMessage),
) -> StoreInboundRequest {
    let mut message = request.message.into_message();
    change(&mut message);
    StoreInboundRequest { message: stored(&message), ..request }
}

pub(super) fn via(tunnel: &str, mut request: StoreInboundRequest) -> StoreInboundRequest {
    request.tunnel = tunnel_id(tunnel);
    request
}

pub(super) fn in_room(room: &str, request: StoreInboundRequest) -> StoreInboundRequest {
    with_message(request, |message| message.session.id = room.to_owned())
}

fn in_thread(thread: &str, request: StoreInboundRequest) -> StoreInboundRequest {
    with_message(request, |message| message.session.thread_key = Some(thread.to_owned()))
}

fn as_direct(request: StoreInboundRequest) -> StoreInboundRequest {
    with_message(request, |message| message.session.kind = ChatSessionKind::Direct)
}

/// Stores one inbound message at second `now`.
pub(super) async fn store_inbound(
    store: &dyn Store,
    request: StoreInboundRequest,
    now: i64,
) -> StoreInboundResult {
    let request = with_message(request, |message| message.received_at = at(now));
    let mut answers = store.store_inbound(vec![request], at(now)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0).unwrap()
}

pub(super) fn merge_context(all: bool) -> Arc<MergeContext> {
    Arc::new(MergeContext { owner: did("me"), tunnels: None, all })
}

/// Merges the windows that are closed at second `now`.
pub(super) async fn merge_due(store: &dyn Store, now: i64) -> usize {
    store.merge(merge_context(false), 1_000, at(now)).await.unwrap()
}

pub(super) async fn unmerged_count(store: &dyn Store) -> i64 {
    store.counts().await.unwrap().unmerged
}

pub(crate) async fn repeated_body_is_a_duplicate_until_its_window_ends(home: &dyn TestHome) {
    use StoreInboundResult::{Duplicate, Stored};
    let with_body = |id: &str, body: u8, window: Option<u64>| {
        let request = inbound_message(id, "ann", "a");
        let mut message = request.message.into_message();
        let window = window.map(Duration::from_secs);
        message.body_hash = Some(BodyHash { hash: [body; 32], window });
        StoreInboundRequest { message: message.validate().unwrap(), ..request }
    };
    let mut store = home.open().await;
    for (second, request, want) in [
        (0, with_body("1", 1, None), Stored),
        (0, with_body("2", 1, None), Duplicate),
        (0, with_body("3", 2, None), Stored),
        (0, via("slack", with_body("1", 1, None)), Stored),
        (0, with_body("4", 3, Some(60)), Stored),
        (59, with_body("5", 3, Some(60)), Duplicate),
        (59, with_body("6", 3, None), Duplicate),
        (60, with_body("7", 3, Some(60)), Stored),
        (119, with_body("8", 3, Some(60)), Duplicate),
        // A body that never expires does not start to expire.
        (1_000_000, with_body("9", 1, Some(60)), Duplicate),
        (1_000_000, with_body("10", 1, None), Duplicate),
    ] {
        let id = request.message.id.clone();
        let result = store.store_inbound(vec![request], at(second)).await.remove(0).unwrap();
        assert_eq!(result, want, "message {id}");
        drop(store);
        store = home.open().await;
    }
}

pub(crate) async fn repeated_inbound_message_is_stored_once(home: &dyn TestHome) {
    let store = home.open().await;
    let batch = vec![
        inbound_message("1", "ann", "a"),
        inbound_message("1", "ann", "a"),
        inbound_message("2", "ann", "b"),
    ];
    let answers: Vec<_> =
        store.store_inbound(batch, at(0)).await.into_iter().map(|answer| answer.unwrap()).collect();
    assert_eq!(answers, [Stored, Duplicate, Stored]);
    assert_eq!(store_inbound(&*store, inbound_message("1", "ann", "edited"), 1).await, Duplicate);
    assert_eq!(
        store_inbound(&*store, via("slack", inbound_message("1", "ann", "c")), 1).await,
        Stored
    );

    drop(store);
    let store = home.open().await;
    assert_eq!(store_inbound(&*store, inbound_message("1", "ann", "a"), 2).await, Duplicate);
    assert_eq!(merge_due(&*store, 60).await, 2);
    assert_eq!(store_inbound(&*store, inbound_message("1", "ann", "a"), 61).await, Duplicate);
    drop(store);
    let store = home.open().await;
    assert_eq!(store_inbound(&*store, inbound_message("1", "ann", "a"), 62).await, Duplicate);
    assert_eq!(merge_due(&*store, 3_600).await, 0);
    assert_eq!(mail_texts(&*store).await, "a+b | c");
    let duplicates = store.events(0, 100).await.unwrap();
    let duplicates: Vec<_> =
        duplicates.iter().filter(|event| event.kind == EventKind::Duplicate).collect();
    assert_eq!(duplicates.len(), 5);
    assert!(duplicates[4].msg_id.is_some(), "the event names the Mail");
}

/// A message that an adapter failed to validate is rejected alone.
pub(crate) async fn invalid_inbound_message_does_not_affect_its_batch(store: &dyn Store) {
    let mut batch = vec![
        inbound_message("1", "ann", "a"),
        inbound_message("2", "", "no author"),
        inbound_message("3", "ann", "b"),
    ];
    let answers = store.store_inbound(batch.clone(), at(0)).await;
    assert!(matches!(answers[1], Err(StoreError::Damaged { .. })), "{answers:?}");
    assert!(answers[0].is_ok() && answers[2].is_ok());
    merge_due(store, 5).await;
    assert_eq!(mail_texts(store).await, "a+b");
    let second = with_message(batch.remove(1), |message| message.from.id = "bob".to_owned());
    assert_eq!(store_inbound(store, second, 6).await, Stored, "the rejected id was not stored");
}

pub(crate) async fn blocked_and_dropped_messages_are_remembered_but_not_stored(store: &dyn Store) {
    put_tunnel(store, "shut", StrangerPolicy::Drop, false).await;
    put_tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    add_contact(store, &endpoint("pest", "lark"), ContactLevel::Block).await;
    add_contact(store, &endpoint("friend", "shut"), ContactLevel::Temporary).await;
    add_contact(store, &endpoint("name", "shut"), ContactLevel::Stranger).await;
    for (tunnel, from, result) in [
        ("lark", "pest", Blocked),
        ("lark", "stranger", Stored),
        ("shut", "stranger", Dropped),
        ("shut", "name", Dropped),
        ("shut", "friend", Stored),
        ("wary", "stranger", Stored),
    ] {
        let message = via(tunnel, inbound_message(from, from, from));
        assert_eq!(store_inbound(store, message.clone(), 0).await, result, "{from} on {tunnel}");
        assert_eq!(store_inbound(store, message, 1).await, Duplicate, "{from} on {tunnel}");
    }
    assert_eq!(unmerged_count(store).await, 3);
    assert_eq!(merge_due(store, 60).await, 3);
    assert_eq!(mail_texts(store).await, "stranger | friend");
    let events = event_kinds(store).await;
    assert!(events.contains("blocked") && events.contains("dropped"), "{events}");
}

pub(crate) async fn merge_window_closes_after_its_debounce_time(store: &dyn Store) {
    assert_eq!(store.next_merge().await.unwrap(), None);
    for (now, text) in [(0, "a"), (2, "b"), (4, "c")] {
        store_inbound(store, inbound_message(text, "ann", text), now).await;
        assert_eq!(store.next_merge().await.unwrap(), Some(at(now + 5)));
        assert_eq!(merge_due(store, now).await, 0);
    }
    assert_eq!((merge_due(store, 8).await, unmerged_count(store).await), (0, 3));
    assert_eq!((merge_due(store, 9).await, unmerged_count(store).await), (1, 0));
    assert_eq!(store.next_merge().await.unwrap(), None);
    assert_eq!(mail_texts(store).await, "a+b+c");
    let mail = read_mail(store, &list_mails(store).await[0]).await;
    assert_eq!(mail.header.received_at, at(9));
    let received: Vec<_> = mail.messages.iter().map(|message| message.received_at).collect();
    assert_eq!(received, [at(0), at(2), at(4)]);
}

pub(crate) async fn merge_window_closes_after_its_maximum_wait(store: &dyn Store) {
    for now in (0..=32).step_by(4) {
        store_inbound(store, inbound_message(&now.to_string(), "ann", &now.to_string()), now).await;
    }
    assert_eq!((merge_due(store, 29).await, merge_due(store, 30).await), (0, 1));
    assert_eq!((merge_due(store, 36).await, merge_due(store, 37).await), (0, 1));
    assert_eq!(mail_texts(store).await, "0+4+8+12+16+20+24+28 | 32");
}

pub(crate) async fn debounce_is_set_per_tunnel(store: &dyn Store) {
    let quick = Debounce { window: Duration::from_secs(1), max_wait: Duration::from_secs(2) };
    for (now, text) in [(0, "a"), (1, "b")] {
        store_inbound(store, inbound_message(text, "ann", text), now).await;
        let message = via("ci", inbound_message(text, "ann", text));
        store_inbound(store, StoreInboundRequest { debounce: quick, ..message }, now).await;
    }
    assert_eq!(store.next_merge().await.unwrap(), Some(at(1)));
    assert_eq!(merge_due(store, 2).await, 2);
    assert_eq!(mail_texts(store).await, "a | b");
    assert_eq!(merge_due(store, 6).await, 1);
    assert_eq!(mail_texts(store).await, "a | b | a+b");
}

/// A message after the end of a window opens the next window, even when the first has not
/// been merged yet.
pub(crate) async fn message_after_a_closed_window_opens_the_next(store: &dyn Store) {
    for (now, text) in [(0, "a"), (6, "b"), (7, "c"), (12, "d")] {
        store_inbound(store, inbound_message(text, "ann", text), now).await;
    }
    assert_eq!(store.next_merge().await.unwrap(), Some(at(5)));
    assert_eq!(merge_due(store, 60).await, 3);
    assert_eq!(mail_texts(store).await, "a | b+c | d");
}

pub(crate) async fn sessions_threads_and_tunnels_are_merged_separately(store: &dyn Store) {
    let places: [fn(StoreInboundRequest) -> StoreInboundRequest; 10] = [
        |k| k,
        |k| in_thread("t", k),
        |k| in_thread("u", k),
        |k| in_room("other", k),
        |k| via("slack", k),
        |k| in_thread("c", in_room("a:b", k)),
        |k| in_thread("b:c", in_room("a", k)),
        |k| in_thread("c", in_room("a%3Ab", k)),
        // Replies to a direct message go to its author, so authors are merged separately.
        |k| as_direct(in_room("bot", k)),
        |k| {
            let k = with_message(k, |message| message.from.id = "bob".to_owned());
            as_direct(in_room("bot", k))
        },
    ];
    for round in ["x", "y"] {
        for (n, place) in places.iter().enumerate() {
            store_inbound(
                store,
                place(inbound_message(&format!("{n}{round}"), "ann", &format!("{n}{round}"))),
                0,
            )
            .await;
        }
    }
    assert_eq!(merge_due(store, 5).await, places.len());
    let texts = mail_texts(store).await;
    let found: BTreeSet<_> = texts.split(" | ").collect();
    let want: Vec<_> = (0..places.len()).map(|n| format!("{n}x+{n}y")).collect();
    assert_eq!(found, want.iter().map(String::as_str).collect());
    for row in list_mails(store).await {
        let mail = read_mail(store, &row).await;
        let session = &mail.header.session;
        let answer = match session.kind {
            ChatSessionKind::Direct => mail.messages[0].from.did(&mail.header.tunnel).unwrap(),
            _ => session.answer_to(&mail.messages[0].from, &mail.header.tunnel).unwrap(),
        };
        assert_eq!(mail.header.answer_to, answer);
    }
}

pub(crate) async fn authors_of_one_room_share_a_window(store: &dyn Store) {
    store_inbound(store, inbound_message("1", "ann", "a"), 0).await;
    store_inbound(store, inbound_message("2", "bob", "b"), 1).await;
    let titled = with_message(inbound_message("3", "ann", "c"), |message| {
        message.session.kind = ChatSessionKind::Thread;
    });
    store_inbound(store, titled, 2).await;
    assert_eq!(merge_due(store, 10).await, 1);
    assert_eq!(mail_texts(store).await, "a+b+c");
    assert_eq!(list_mails(store).await[0].entry.participants.from.len(), 2);
}

/// A message is either in its window or in its Mail, at any time.
pub(crate) async fn merge_is_one_transaction(store: &dyn Store) {
    put_lark_tunnel(store).await;
    store_inbound(store, inbound_message("g1", "ann", "a"), 0).await;
    store_inbound(store, inbound_message("g2", "bob", "b"), 1).await;
    store_inbound(store, as_direct(inbound_message("d1", "ann", "psst")), 2).await;
    for id in ["g1", "d1"] {
        assert_matches!(store.find_by_external_id(id).await, Err(StoreError::Missing { .. }));
        let one = via_tunnel("lark", id, chat("ann", &["bob"], "through another interface"));
        assert_matches!(try_dispatch(store, one).await, Err(StoreError::InvalidTransition(_)));
    }
    assert_eq!(merge_due(store, 60).await, 2);
    assert_eq!(unmerged_count(store).await, 0);
    assert_eq!(
        event_kinds(store).await,
        "changed received received received dispatched merged dispatched merged"
    );

    let [group, direct] = &list_mails(store).await[..] else { panic!() };
    for (id, mail) in [("g1", group), ("g2", group), ("d1", direct)] {
        let msg_id = store.find_by_external_id(id).await.unwrap();
        assert_eq!(msg_id, mail.entry.msg_id);
        let trace = store.trace(msg_id).await.unwrap();
        assert_eq!(trace.mail.as_ref(), Some(&mail.entry));
        assert_eq!((trace.records.len(), trace.claims.len()), (1, 0));
        let kinds: Vec<_> = trace.events.iter().map(|event| event.kind.as_str()).collect();
        assert_eq!(kinds, ["dispatched", "merged"]);
    }
    let room = "did:msgtunnel:room.group.lark";
    let contents = box_contents(store, room, BoxKind::GroupInbox).await;
    assert!(
        contents.contains("**ann**")
            && contents.contains("**bob**")
            && contents.ends_with("UNREAD")
    );
    assert_eq!(inbox_contents(store, "me").await, "psst UNREAD");
    assert_eq!(read_mail(store, group).await.header.answer_to.as_str(), room);
    assert_eq!(read_mail(store, direct).await.header.answer_to.as_str(), endpoint("ann", "lark"));

    let again = via_tunnel("lark", "g2", chat("ann", &["bob"], "through another interface"));
    let answer = try_dispatch(store, again).await.unwrap();
    assert_eq!(answer.msg_id, group.entry.msg_id, "a merged message is a duplicate");
    assert_eq!(group.entry.id, MailId::of("lark", &tunnel_id("lark"), "g1"));
    assert_eq!((group.entry.messages, group.location), (2, MailLocation::Inbound));
}

pub(crate) async fn merge_windows_survive_reopening(home: &dyn TestHome) {
    let store = home.open().await;
    store_inbound(&*store, inbound_message("1", "ann", "a"), 0).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(store.next_merge().await.unwrap(), Some(at(5)));
    store_inbound(&*store, inbound_message("2", "ann", "b"), 4).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(merge_due(&*store, 9).await, 1);
    assert_eq!(mail_texts(&*store).await, "a+b");
}

pub(crate) async fn merging_all_closes_open_windows(store: &dyn Store) {
    for room in ["a", "b", "c"] {
        store_inbound(store, in_room(room, inbound_message(room, "ann", room)), 0).await;
    }
    assert_eq!(store.merge(merge_context(true), 2, at(1)).await.unwrap(), 2);
    assert_eq!(store.merge(merge_context(true), 2, at(1)).await.unwrap(), 1);
    assert_eq!(store.merge(merge_context(true), 2, at(1)).await.unwrap(), 0);
    assert_eq!((mail_texts(store).await.as_str(), unmerged_count(store).await), ("a | b | c", 0));
}

pub(crate) async fn merge_takes_the_oldest_windows_up_to_its_limit(store: &dyn Store) {
    for (now, room) in [(3, "b"), (0, "a"), (9, "d"), (6, "c")] {
        store_inbound(store, in_room(room, inbound_message(room, "ann", room)), now).await;
    }
    for (merged, so_far) in [(2, "a | b"), (2, "a | b | c | d"), (0, "a | b | c | d")] {
        assert_eq!(store.merge(merge_context(false), 2, at(60)).await.unwrap(), merged);
        assert_eq!(mail_texts(store).await, so_far);
    }
}

pub(crate) async fn full_window_is_followed_by_another(store: &dyn Store) {
    let many = MAX_MESSAGES as usize + 1;
    let batch = (0..many).map(|n| inbound_message(&n.to_string(), "ann", "x")).collect();
    assert!(store.store_inbound(batch, at(0)).await.iter().all(Result::is_ok));
    let half = "y".repeat(MAX_BYTES as usize / 2);
    for id in ["a", "b"] {
        store_inbound(store, in_room("long", inbound_message(id, "ann", &half)), 0).await;
    }
    assert_eq!(merge_due(store, 60).await, 4);
    let mut sizes: Vec<_> = list_mails(store).await.iter().map(|row| row.entry.messages).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 1, 500]);
}

pub(crate) async fn author_accepted_before_the_merge_is_not_held(store: &dyn Store) {
    put_tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    store_inbound(store, as_direct(via("wary", inbound_message("1", "eve", "hello?"))), 0).await;
    add_contact(store, &endpoint("eve", "wary"), ContactLevel::Friend).await;
    assert_eq!(merge_due(store, 60).await, 1);
    let row = list_mails(store).await.remove(0);
    assert_eq!((row.location, row.entry.trust), (MailLocation::Inbound, Trust::Known));
    assert_eq!(inbox_contents(store, "me").await, "hello? UNREAD");
    assert_eq!(box_contents(store, "me", BoxKind::RequestBox).await, "");
}

/// Anyone can write the name of a friend into a message.
pub(crate) async fn unverified_friend_is_treated_as_a_stranger(store: &dyn Store) {
    let message = |tunnel: &str, id: &str, from: &str, verified| {
        let request = as_direct(via(tunnel, inbound_message(id, from, id)));
        with_message(request, |message| message.sender_verified = Some(verified))
    };
    let tunnels = [
        ("open", StrangerPolicy::Accept, Stored),
        ("wary", StrangerPolicy::Hold, Stored),
        ("shut", StrangerPolicy::Drop, Dropped),
    ];
    for (tunnel, policy, forged) in tunnels {
        put_tunnel(store, tunnel, policy, false).await;
        add_contact(store, &endpoint("ann", tunnel), ContactLevel::Friend).await;
        add_contact(store, &endpoint("pest", tunnel), ContactLevel::Block).await;
        let id = |text: &str| format!("{tunnel} {text}");
        let mut results = Vec::new();
        for (text, from, verified) in
            [("true", "ann", true), ("forged", "ann", false), ("pest", "pest", false)]
        {
            let request = message(tunnel, &id(text), from, verified);
            results.push(store_inbound(store, request, 0).await);
        }
        assert_eq!(results, [Stored, forged, Blocked], "{tunnel}");
    }
    assert_eq!(merge_due(store, 60).await, 5);
    let mails = list_mails(store).await;
    let mut found = Vec::new();
    for row in &mails {
        let text = read_mail(store, row).await.text;
        found.push(format!("{text} {} {:?}", row.location.as_str(), row.entry.trust));
    }
    found.sort();
    // A Mail that is held is not listed.
    let expected = [
        "open forged inbound Untrusted",
        "open true inbound Known",
        "shut true inbound Known",
        "wary true inbound Known",
    ];
    assert_eq!(found, expected);
    assert_eq!(box_contents(store, "me", BoxKind::RequestBox).await, "wary forged UNREAD");
}

/// Held Mails with the address of a contact may be forged: accepting the contact proves nothing.
pub(crate) async fn accepted_contact_releases_only_verified_mails(store: &dyn Store) {
    put_tunnel(store, "wary", StrangerPolicy::Hold, false).await;
    for (id, verified) in [("true", Some(true)), ("forged", Some(false)), ("chat", None)] {
        let request = as_direct(via("wary", inbound_message(id, "eve", id)));
        let request = with_message(request, |message| message.sender_verified = verified);
        store_inbound(store, request, 0).await;
    }
    merge_due(store, 60).await;
    assert_eq!(list_mails(store).await.len(), 0, "all are held");
    add_contact(store, &endpoint("eve", "wary"), ContactLevel::Friend).await;
    assert_eq!(mail_texts(store).await, "true+chat");
}

pub(crate) async fn unverified_messages_are_not_merged_with_verified_ones(store: &dyn Store) {
    for (id, verified) in [("1", Some(true)), ("2", Some(false)), ("3", None), ("4", Some(false))] {
        let request = as_direct(inbound_message(id, "ann", id));
        let request = with_message(request, |message| message.sender_verified = verified);
        store_inbound(store, request, 0).await;
    }
    assert_eq!(merge_due(store, 60).await, 2);
    assert_eq!(mail_texts(store).await, "1+3 | 2+4");
}

/// Messages of the blocked author are dropped from the window; those of others are merged.
pub(crate) async fn blocking_an_author_before_the_merge_drops_only_that_author(store: &dyn Store) {
    put_lark_tunnel(store).await;
    for (id, from) in [("1", "pest"), ("2", "ann"), ("3", "pest"), ("4", "bob")] {
        store_inbound(store, inbound_message(id, from, id), 0).await;
    }
    store_inbound(store, as_direct(inbound_message("5", "pest", "5")), 0).await;
    add_contact(store, &endpoint("pest", "lark"), ContactLevel::Block).await;
    assert_eq!(merge_due(store, 60).await, 2);
    assert_eq!((mail_texts(store).await.as_str(), unmerged_count(store).await), ("2+4", 0));
    let mail = list_mails(store).await.remove(0).entry.msg_id;
    assert_eq!(store.find_by_external_id("4").await.unwrap(), mail);
    for gone in ["1", "3", "5"] {
        assert!(matches!(store.find_by_external_id(gone).await, Err(StoreError::Missing { .. })));
        assert_eq!(store_inbound(store, inbound_message(gone, "pest", gone), 61).await, Duplicate);
    }
    let blocked = event_kinds(store).await.matches("blocked").count();
    assert_eq!(blocked, 3);
}

pub(crate) async fn owner_gets_no_mail_from_a_blocked_sender(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let pest = did(&endpoint("pest", "lark"));
    store.set_block(&pest, &did("me"), true, at(0)).await.unwrap();
    store_inbound(store, as_direct(inbound_message("1", "pest", "psst")), 0).await;
    assert_eq!(merge_due(store, 60).await, 1);
    assert_eq!((list_mails(store).await.len(), unmerged_count(store).await), (0, 0));
    assert!(event_kinds(store).await.ends_with("blocked"));
}

/// A window that cannot be merged is retried after 60 s. New messages of its session are
/// merged meanwhile.
pub(crate) async fn unmergeable_window_does_not_block_other_windows(store: &dyn Store) {
    let mut broken = inbound_message("bad", "ann", "bad");
    // An invalid provider name, so no Mail id can be built.
    broken.provider = "No Provider".to_owned();
    store_inbound(store, broken, 0).await;
    store_inbound(store, in_room("other", inbound_message("1", "bob", "a")), 1).await;
    assert_eq!(merge_due(store, 6).await, 1);
    assert_eq!(mail_texts(store).await, "a");
    assert_eq!((unmerged_count(store).await, store.next_merge().await.unwrap()), (1, Some(at(66))));
    assert_eq!(merge_due(store, 7).await, 0);

    store_inbound(store, inbound_message("2", "ann", "b"), 10).await;
    store_inbound(store, inbound_message("3", "ann", "c"), 11).await;
    assert_eq!(merge_due(store, 20).await, 1);
    assert_eq!(mail_texts(store).await, "a | b+c");
    assert_eq!(
        store.merge(merge_context(true), 10, at(21)).await.unwrap(),
        0,
        "merging all does not retry it forever"
    );
    assert_eq!(unmerged_count(store).await, 1, "the message is kept");
    assert_eq!(
        box_contents(store, "did:msgtunnel:room.group.lark", BoxKind::GroupInbox)
            .await
            .matches("UNREAD")
            .count(),
        1
    );
}
