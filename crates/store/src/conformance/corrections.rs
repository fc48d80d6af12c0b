//! Conformance tests of edits, recalls, notices and chat positions.

use std::sync::Arc;

use monoco_core::event::{Event, EventKind};
use monoco_core::inbound::{
    ChatSession, ChatSessionKind, MessageRecall, Participant, RECALLED_BY_AUTHOR, TunnelNotice,
};
use monoco_core::letter::LetterState;
use monoco_core::mail::Mail;
use monoco_core::merge::Debounce;

use super::inbound::{in_room, inbound_message, merge_due, via, with_message};
use super::letters::step_letter;
use super::mails::{list_mails, read_mail};
use super::*;
use crate::StoreInboundResult::{Blocked, Dropped, Duplicate, Stored};
use crate::{
    LetterSource, NextAction, PipelineRouting, StoreInboundEvent, StoreInboundRequest,
    StoreInboundResult,
};

fn message(id: &str, text: &str) -> StoreInboundEvent {
    StoreInboundEvent::Message(Box::new(inbound_message(id, "ann", text)))
}

fn edit(edit_id: &str, id: &str, text: &str) -> StoreInboundEvent {
    let request = Box::new(inbound_message(id, "ann", text));
    StoreInboundEvent::Edit { edit_id: edit_id.to_owned(), request }
}

fn recall(recall_id: &str, id: &str) -> StoreInboundEvent {
    let session = inbound_message(id, "ann", "").message.session.clone();
    let recall = MessageRecall {
        recall_id: recall_id.to_owned(),
        message_id: id.to_owned(),
        session,
        by: Some(Participant::user("ann", None)),
        at: None,
    };
    let (tunnel, provider) = (tunnel_id("lark"), "lark".to_owned());
    StoreInboundEvent::Recall { recall, tunnel, provider, debounce: Debounce::DEFAULT }
}

async fn store_all(
    store: &dyn Store,
    batch: Vec<StoreInboundEvent>,
    chain: bool,
    now: i64,
) -> Vec<StoreInboundResult> {
    let routing = Arc::new(PipelineRouting { all: chain, ..PipelineRouting::default() });
    let results = store.store_events(batch, routing, at(now)).await;
    results.into_iter().map(|result| result.unwrap().result).collect()
}

async fn store_one(store: &dyn Store, event: StoreInboundEvent, now: i64) -> StoreInboundResult {
    store_all(store, vec![event], false, now).await.remove(0)
}

/// All Mails, oldest first.
async fn mails(store: &dyn Store) -> Vec<Mail> {
    let mut mails = Vec::new();
    for row in list_mails(store).await {
        mails.push(read_mail(store, &row).await);
    }
    mails
}

async fn events_of(store: &dyn Store, kind: EventKind) -> Vec<Event> {
    let events = store.events(0, 1_000).await.unwrap();
    events.into_iter().filter(|event| event.kind == kind).collect()
}

pub(crate) async fn edit_in_the_window_changes_the_stored_message(store: &dyn Store) {
    store_one(store, message("1", "helo"), 0).await;
    store_one(store, message("2", "bye"), 1).await;
    assert_eq!(store_one(store, edit("e-1", "1", "hello"), 2).await, Stored);
    assert_eq!(store_one(store, edit("e-1", "1", "hello"), 2).await, Duplicate);
    assert_eq!(store_one(store, edit("e-2", "1", "hello"), 2).await, Duplicate, "a preview");
    assert_eq!(store_one(store, message("1", "helo"), 2).await, Duplicate);
    assert_eq!(merge_due(store, 6).await, 1, "an edit does not keep the window open");
    let mails = mails(store).await;
    assert_eq!(mails.len(), 1);
    let texts: Vec<_> = mails[0].messages.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["hello", "bye"]);
    assert_eq!(events_of(store, EventKind::Edited).await.len(), 1);
}

pub(crate) async fn edit_of_the_same_batch_finds_its_message(store: &dyn Store) {
    let batch = vec![
        message("1", "a"),
        edit("e-1", "1", "b"),
        message("1", "a"),
        edit("e-2", "1", "c"),
        recall("r-2", "2"),
        message("2", "recalled before it arrives"),
        message("3", "next"),
    ];
    let results = store_all(store, batch, false, 0).await;
    assert_eq!(results, [Stored, Stored, Duplicate, Stored, Dropped, Duplicate, Stored]);
    assert_eq!(merge_due(store, 5).await, 1);
    let mail = mails(store).await.remove(0);
    let texts: Vec<_> = mail.messages.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["c", "next"]);
}

pub(crate) async fn edit_after_the_merge_is_an_event_and_a_message(store: &dyn Store) {
    store_one(store, message("1", "a"), 0).await;
    assert_eq!(merge_due(store, 5).await, 1);
    let first = list_mails(store).await[0].entry.msg_id;
    assert_eq!(store_one(store, edit("e-0", "1", "a"), 6).await, Duplicate, "a preview");
    assert_eq!(store_one(store, edit("e-1", "1", "b"), 10).await, Stored);
    let edited = events_of(store, EventKind::Edited).await;
    assert_eq!((edited.len(), edited[0].msg_id), (1, Some(first)));
    assert_eq!(edited[0].detail["external_id"], "1");
    assert_eq!(store_one(store, edit("e-2", "1", "c"), 11).await, Stored, "in the window");
    assert_eq!(merge_due(store, 30).await, 1);
    assert_eq!(store_one(store, edit("e-1", "1", "b"), 40).await, Duplicate);
    assert_eq!(store_one(store, edit("e-3", "1", "c"), 40).await, Duplicate, "the newest text");
    assert_eq!(store_one(store, edit("e-4", "1", "a"), 40).await, Stored, "back to the first");
    assert_eq!(merge_due(store, 60).await, 1);
    let mails = mails(store).await;
    assert_eq!(mails.len(), 3);
    let next = &mails[1].messages[0];
    assert_eq!((next.id.as_str(), next.corrects.as_deref()), ("e-1", Some("1")));
    assert_eq!(next.text, "c");
    assert_eq!(mails[1].header.session, mails[0].header.session);
    assert_eq!(mails[2].messages[0].corrects.as_deref(), Some("1"));
}

pub(crate) async fn recall_in_the_window_leaves_a_mark(store: &dyn Store) {
    let mentioning = with_message(inbound_message("1", "ann", "secret"), |message| {
        message.mentions = vec!["bot".to_owned()];
    });
    store_one(store, StoreInboundEvent::Message(Box::new(mentioning)), 0).await;
    assert_eq!(store_one(store, recall("r-1", "1"), 1).await, Stored);
    assert_eq!(store_one(store, recall("r-1", "1"), 1).await, Duplicate);
    assert_eq!(store_one(store, recall("r-2", "1"), 1).await, Duplicate);
    assert_eq!(merge_due(store, 5).await, 1);
    let mail = mails(store).await.remove(0);
    assert_eq!(mail.messages[0].text, RECALLED_BY_AUTHOR);
    assert!(mail.header.participants.mentions.is_empty());
    assert_eq!(events_of(store, EventKind::Recalled).await.len(), 1);
}

pub(crate) async fn recall_after_the_merge_is_an_event_and_a_message(store: &dyn Store) {
    store_one(store, message("1", "secret"), 0).await;
    merge_due(store, 5).await;
    let first = list_mails(store).await[0].entry.msg_id;
    assert_eq!(store_one(store, recall("r-1", "1"), 10).await, Stored);
    let recalled = events_of(store, EventKind::Recalled).await;
    assert_eq!((recalled.len(), recalled[0].msg_id), (1, Some(first)));
    merge_due(store, 20).await;
    let mails = mails(store).await;
    assert_eq!(mails.len(), 2);
    let next = &mails[1].messages[0];
    assert_eq!((next.text.as_str(), next.corrects.as_deref()), (RECALLED_BY_AUTHOR, Some("1")));
    assert_eq!(store_one(store, recall("r-2", "1"), 30).await, Duplicate);
}

pub(crate) async fn corrections_of_unknown_and_unwanted_messages(store: &dyn Store) {
    assert_eq!(store_one(store, edit("e-1", "1", "b"), 0).await, Stored, "before its message");
    assert_eq!(store_one(store, message("1", "a"), 0).await, Duplicate);
    merge_due(store, 5).await;
    assert_eq!(mails(store).await[0].messages[0].text, "b");
    add_contact(store, &endpoint("ann", "lark"), ContactLevel::Block).await;
    assert_eq!(store_one(store, message("2", "spam"), 7).await, Blocked);
    assert_eq!(store_one(store, edit("e-2", "2", "more spam"), 7).await, Duplicate);
    assert_eq!(store_one(store, edit("e-3", "1", "spam"), 7).await, Blocked);
    assert_eq!(merge_due(store, 60).await, 0);
}

pub(crate) async fn edit_of_a_letter_goes_through_the_chain(store: &dyn Store) {
    let results = store_all(store, vec![message("1", "a")], true, 0).await;
    assert_eq!(results, [Stored]);
    let same = store_all(store, vec![edit("e-0", "1", "a")], true, 1).await;
    assert_eq!(same, [Duplicate]);
    assert_eq!(store_all(store, vec![edit("e-1", "1", "b")], true, 1).await, [Stored]);
    let letters = store.due_letters(None, 10, at(1)).await.unwrap();
    assert_eq!(letters.len(), 2);
    let LetterSource::Inbound(next) = &letters[1].source else { panic!("inbound") };
    assert_eq!(next.message.corrects.as_deref(), Some("1"));
    for letter in &letters {
        let LetterSource::Inbound(request) = letter.source.clone() else { panic!("inbound") };
        let deliver = NextAction::Deliver(Box::new(request));
        step_letter(store, letter.id, deliver, 2).await.unwrap();
    }
    let both = store_all(store, vec![message("2", "x"), edit("e-2", "2", "y")], true, 3).await;
    assert_eq!(both, [Stored, Stored], "of the same batch");
    assert_eq!(merge_due(store, 10).await, 1);
    let mail = mails(store).await.remove(0);
    let texts: Vec<_> = mail.messages.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["a", "b"]);
}

pub(crate) async fn recalled_letter_is_trashed(store: &dyn Store) {
    store_all(store, vec![message("1", "secret")], true, 0).await;
    let letter = store.due_letters(None, 10, at(0)).await.unwrap().remove(0);
    assert_eq!(store_all(store, vec![recall("r-1", "1")], true, 1).await, [Stored]);
    let trashed = store.letter(letter.id).await.unwrap();
    assert_eq!(trashed.status.standing.name(), LetterState::Trashed);
    assert_eq!(merge_due(store, 60).await, 0);
}

/// Ends the chain of a letter, so that its message is in a merge window.
async fn deliver_letter(store: &dyn Store, number: usize, now: i64) {
    let letter = store.due_letters(None, 10, at(now)).await.unwrap().remove(number);
    let LetterSource::Inbound(request) = letter.source.clone() else { panic!("inbound") };
    let deliver = NextAction::Deliver(Box::new(request));
    step_letter(store, letter.id, deliver, now).await.unwrap();
}

pub(crate) async fn recall_trashes_every_version_in_the_chain(store: &dyn Store) {
    let edits = vec![message("1", "a"), edit("e-1", "1", "b"), edit("e-2", "1", "c")];
    assert_eq!(store_all(store, edits, true, 0).await, [Stored, Stored, Stored]);
    let letters = store.due_letters(None, 10, at(0)).await.unwrap();
    assert_eq!(letters.len(), 3);
    assert_eq!(store_all(store, vec![recall("r-1", "1")], true, 1).await, [Stored]);
    for letter in letters {
        let trashed = store.letter(letter.id).await.unwrap();
        assert_eq!(trashed.status.standing.name(), LetterState::Trashed, "{}", letter.id);
    }
    assert!(store.due_letters(None, 10, at(60)).await.unwrap().is_empty());
    assert_eq!(store_all(store, vec![recall("r-1", "1")], true, 2).await, [Duplicate]);
    assert_eq!(store_all(store, vec![recall("r-2", "1")], true, 2).await, [Duplicate]);
    assert_eq!(events_of(store, EventKind::Recalled).await.len(), 3, "one for each letter");
    assert_eq!(merge_due(store, 60).await, 0);
}

pub(crate) async fn recall_removes_versions_in_the_window_and_in_the_chain(store: &dyn Store) {
    store_all(store, vec![message("1", "a"), edit("e-1", "1", "b")], true, 0).await;
    deliver_letter(store, 0, 0).await;
    assert_eq!(store_all(store, vec![recall("r-1", "1")], true, 1).await, [Stored]);
    assert!(store.due_letters(None, 10, at(60)).await.unwrap().is_empty());
    assert_eq!(merge_due(store, 10).await, 1);
    let mail = mails(store).await.remove(0);
    let texts: Vec<_> = mail.messages.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, [RECALLED_BY_AUTHOR]);
}

pub(crate) async fn readers_learn_of_a_recall_while_an_edit_is_in_the_chain(store: &dyn Store) {
    store_all(store, vec![message("1", "a")], true, 0).await;
    deliver_letter(store, 0, 0).await;
    assert_eq!(merge_due(store, 5).await, 1);
    store_all(store, vec![edit("e-1", "1", "b")], true, 6).await;
    assert_eq!(store_all(store, vec![recall("r-1", "1")], true, 7).await, [Stored]);
    assert_eq!(store_all(store, vec![recall("r-2", "1")], true, 7).await, [Duplicate]);
    deliver_letter(store, 0, 8).await;
    assert_eq!(merge_due(store, 20).await, 1);
    let next = mails(store).await.remove(1).messages.remove(0);
    assert_eq!((next.text.as_str(), next.corrects.as_deref()), (RECALLED_BY_AUTHOR, Some("1")));
    assert!(store.due_letters(None, 10, at(60)).await.unwrap().is_empty());
}

/// A worker has trashed the edit, but readers have the original.
pub(crate) async fn readers_learn_of_a_recall_after_the_edit_was_trashed(store: &dyn Store) {
    store_all(store, vec![message("1", "a")], true, 0).await;
    deliver_letter(store, 0, 0).await;
    assert_eq!(merge_due(store, 5).await, 1);
    store_all(store, vec![edit("e-1", "1", "b")], true, 6).await;
    let letter = store.due_letters(None, 10, at(6)).await.unwrap().remove(0);
    let trash = NextAction::Trash { why: "spam".to_owned() };
    step_letter(store, letter.id, trash, 6).await.unwrap();
    assert_eq!(store_all(store, vec![recall("r-1", "1")], true, 7).await, [Stored]);
    deliver_letter(store, 0, 8).await;
    assert_eq!(merge_due(store, 20).await, 1);
    let next = mails(store).await.remove(1).messages.remove(0);
    assert_eq!((next.text.as_str(), next.corrects.as_deref()), (RECALLED_BY_AUTHOR, Some("1")));
}

/// Providers can send an edit and the recall in any order.
pub(crate) async fn edit_after_the_recall_changes_nothing(store: &dyn Store) {
    for (chain, id) in [(false, "1"), (true, "2")] {
        let (edit_id, recall_id) = (format!("e-{id}"), format!("r-{id}"));
        let events = vec![message(id, "a"), recall(&recall_id, id)];
        assert_eq!(store_all(store, events, chain, 0).await, [Stored, Stored]);
        let late = store_all(store, vec![edit(&edit_id, id, "b")], chain, 1).await;
        assert_eq!(late, [Duplicate], "chain: {chain}");
    }
    assert!(store.due_letters(None, 10, at(60)).await.unwrap().is_empty());
    assert_eq!(merge_due(store, 5).await, 1);
    assert_eq!(mails(store).await.remove(0).messages[0].text, RECALLED_BY_AUTHOR);
}

pub(crate) async fn notice_is_stored_once(store: &dyn Store) {
    let notice = TunnelNotice {
        id: "1".to_owned(),
        kind: "member_joined".to_owned(),
        session: Some(ChatSession { id: "room".to_owned(), ..ChatSession::default() }),
        by: Some(Participant::user("ann", None)),
        detail: "ann joined".to_owned(),
        at: Some(at(0)),
    };
    let tunnel = tunnel_id("lark");
    let event = StoreInboundEvent::Notice { tunnel, notice };
    assert_eq!(store_one(store, event.clone(), 0).await, Stored);
    assert_eq!(store_one(store, event, 0).await, Duplicate);
    assert_eq!(store_one(store, message("1", "the same id"), 0).await, Stored);
    let notices = events_of(store, EventKind::Notice).await;
    assert_eq!(notices.len(), 1);
    assert_eq!(notices[0].detail["kind"], "member_joined");
    assert_eq!(notices[0].owner.as_ref().unwrap().to_string(), "did:msgtunnel:ann.user.lark");
}

fn in_history(id: &str, room: &str, secs: i64) -> StoreInboundRequest {
    let request = in_room(room, via("history", inbound_message(id, "ann", id)));
    with_message(request, |message| {
        message.at = Some(at(secs));
        message.session.kind = ChatSessionKind::Group;
    })
}

pub(crate) async fn newest_message_of_each_chat_is_listed(store: &dyn Store) {
    let tunnel = tunnel_id("history");
    let info = TunnelInfo::new(tunnel.clone(), "stub".to_owned(), StrangerPolicy::Accept);
    store.put_tunnel(TunnelInfo { reads_history: true, ..info }, at(0)).await.unwrap();
    let listed = async || {
        let positions = store.chat_positions(&tunnel).await.unwrap();
        let entry = |it: monoco_core::inbound::ChatPosition| (it.session.id, it.message_id);
        positions.into_iter().map(entry).collect::<Vec<_>>()
    };
    let own = |entries: &[(&str, &str)]| {
        let own = |(room, id): &(&str, &str)| ((*room).to_owned(), (*id).to_owned());
        entries.iter().map(own).collect::<Vec<_>>()
    };
    assert!(listed().await.is_empty());
    for (id, room, secs) in [("1", "a", 10), ("2", "a", 12), ("3", "b", 11)] {
        let request = Box::new(in_history(id, room, secs));
        store_one(store, StoreInboundEvent::Message(request), 0).await;
    }
    assert_eq!(listed().await, own(&[("a", "2"), ("b", "3")]), "before the merge");
    assert_eq!(merge_due(store, 5).await, 2);
    assert_eq!(listed().await, own(&[("a", "2"), ("b", "3")]));
    for (id, room, secs) in [("4", "a", 5), ("5", "b", 20)] {
        let request = Box::new(in_history(id, room, secs));
        store_one(store, StoreInboundEvent::Message(request), 10).await;
        merge_due(store, 15).await;
    }
    assert_eq!(listed().await, own(&[("a", "2"), ("b", "5")]), "an old message changes nothing");
    assert!(store.chat_positions(&tunnel_id("lark")).await.unwrap().is_empty());
}

pub(crate) async fn edit_of_a_large_mail_is_compared(home: &dyn TestHome) {
    let long = "long ".repeat(30_000);
    let store = home.open().await;
    store_one(&*store, message("1", &long), 0).await;
    merge_due(&*store, 5).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(store_one(&*store, edit("e-1", "1", &long), 10).await, Duplicate);
    assert_eq!(store_one(&*store, edit("e-2", "1", "short"), 10).await, Stored);
}
