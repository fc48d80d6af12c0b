//! Conformance tests of files that are fetched after their message.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::erasure::ErasedAuthors;
use monoco_core::inbound::{Artifact, MessageRecall, NOT_FETCHED_YET};
use monoco_core::letter::LetterState;
use monoco_core::mail::Mail;
use monoco_core::merge::Debounce;
use monoco_core::object::ObjKind;
use monoco_core::retry::Failure;

use super::inbound::{inbound_message, merge_context, merge_due, unmerged_count};
use super::letters::step_letter;
use super::mails::{list_mails, read_mail};
use super::*;
use crate::{
    ErasureRequest, FileLabels, InboundFile, NextAction, PipelineRouting, StoreInboundEvent,
    StoreInboundRequest, StoreInboundResult,
};

/// A message of `ann` that announces a file for each handle.
fn announcing(id: &str, handles: &[&str]) -> StoreInboundRequest {
    let request = inbound_message(id, "ann", "see attachment");
    let mut message = request.message.into_message();
    message.artifacts = handles
        .iter()
        .map(|handle| Artifact {
            name: format!("{handle}.txt"),
            mime_type: "text/plain".to_owned(),
            fetch: Some((*handle).to_owned()),
            ..Artifact::default()
        })
        .collect();
    StoreInboundRequest { message: message.validate().unwrap(), ..request }
}

async fn store_event(
    store: &dyn Store,
    event: StoreInboundEvent,
    chain: bool,
    now: i64,
) -> StoreInboundResult {
    let routing = Arc::new(PipelineRouting { all: chain, ..PipelineRouting::default() });
    let mut results = store.store_events(vec![event], routing, at(now)).await;
    results.remove(0).unwrap().result
}

async fn announce(store: &dyn Store, request: StoreInboundRequest, now: i64) {
    let event = StoreInboundEvent::Message(Box::new(request));
    assert_eq!(store_event(store, event, false, now).await, StoreInboundResult::Stored);
}

async fn due(store: &dyn Store, now: i64) -> Vec<InboundFile> {
    store.due_files(&tunnel_id("lark"), 10, at(now)).await.unwrap()
}

async fn fetch(store: &dyn Store, file: &InboundFile, bytes: &[u8]) -> bool {
    let mut rest = bytes;
    store.store_file(file.id, FileLabels::default(), &mut rest, 1_000).await.unwrap()
}

fn busy() -> Failure {
    Failure::Temporary { detail: "busy".to_owned(), retry_after_ms: None, error_code: None }
}

fn gone() -> Failure {
    Failure::Permanent { detail: "file was deleted".to_owned(), error_code: None }
}

/// The only Mail of the store.
async fn only_mail(store: &dyn Store) -> Mail {
    let mails = list_mails(store).await;
    assert_eq!(mails.len(), 1, "{mails:?}");
    read_mail(store, &mails[0]).await
}

pub(crate) async fn window_waits_until_its_files_are_fetched(home: &dyn TestHome) {
    let store = home.open().await;
    announce(&*store, announcing("1", &["a", "b"]), 0).await;
    assert_eq!(store.next_merge().await.unwrap(), Some(at(60)));
    assert_eq!(merge_due(&*store, 50).await, 0);
    assert_eq!(store.merge(merge_context(true), 10, at(50)).await.unwrap(), 0, "not at a stop");
    let files = due(&*store, 0).await;
    assert_eq!(files.iter().map(|it| it.handle.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(fetch(&*store, &files[0], b"first").await);
    assert_eq!(merge_due(&*store, 50).await, 0, "the other file is pending");
    drop(store);
    let store = home.open().await;
    let left = due(&*store, 50).await;
    assert_eq!(left, files[1..], "a fetched file is not fetched again");
    assert!(fetch(&*store, &left[0], b"second").await);
    assert_eq!(store.next_merge().await.unwrap(), Some(at(5)));
    assert_eq!(merge_due(&*store, 50).await, 1);
    let mail = only_mail(&*store).await;
    let hashes: Vec<_> = mail.messages[0].artifacts.iter().map(|it| it.hash.unwrap()).collect();
    let want = [&b"first"[..], b"second"].map(|bytes| ObjId::of(ObjKind::Bytes, bytes));
    assert_eq!(hashes, want);
    for hash in hashes {
        store.object(hash).await.unwrap();
    }
    assert!(due(&*store, 1_000).await.is_empty());
    assert_eq!(store.next_file(&tunnel_id("lark")).await.unwrap(), None);
    assert!(!fetch(&*store, &left[0], b"late").await, "the Mail has been written");
    let late = ObjId::of(ObjKind::Bytes, b"late");
    assert_matches!(store.object(late).await, Err(StoreError::Missing { .. }));
}

pub(crate) async fn mail_names_missing_files_and_reasons(store: &dyn Store) {
    announce(store, announcing("1", &["a", "b", "c"]), 0).await;
    let files = due(store, 0).await;
    assert!(store.fail_file(files[0].id, gone(), Jitter::NONE, at(1)).await.unwrap());
    assert!(!store.fail_file(files[0].id, gone(), Jitter::NONE, at(1)).await.unwrap());
    assert!(store.fail_file(files[1].id, busy(), Jitter::NONE, at(1)).await.unwrap());
    assert_eq!(due(store, 1).await, files[2..], "the others wait or have ended");
    assert_eq!(due(store, 2).await.len(), 2);
    assert_eq!(store.next_file(&tunnel_id("lark")).await.unwrap(), Some(at(0)));
    assert_eq!(merge_due(store, 59).await, 0);
    assert_eq!(merge_due(store, 60).await, 1);
    let mail = only_mail(store).await;
    let missing: Vec<_> =
        mail.messages[0].artifacts.iter().map(|it| it.missing.as_deref().unwrap()).collect();
    assert_eq!(missing, ["file was deleted", "busy", NOT_FETCHED_YET]);
    assert!(mail.text.contains("* a.txt (text/plain) not fetched: file was deleted"));
    let whole = store.object(mail.msg_id).await.unwrap();
    assert!(!String::from_utf8(whole).unwrap().contains("fetch\""), "a handle can be a secret");
    assert!(due(store, 1_000).await.is_empty(), "nothing is left");
}

pub(crate) async fn too_large_file_is_not_stored(store: &dyn Store) {
    announce(store, announcing("1", &["a"]), 0).await;
    let file = due(store, 0).await.remove(0);
    let bytes = vec![b'x'; 1_001];
    let mut rest = &bytes[..];
    let stored = store.store_file(file.id, FileLabels::default(), &mut rest, 1_000).await;
    assert_matches!(stored, Err(StoreError::TooLarge(1_000)));
    assert_eq!(due(store, 0).await, [file]);
    let hash = ObjId::of(ObjKind::Bytes, &bytes);
    assert_matches!(store.object(hash).await, Err(StoreError::Missing { .. }));
}

pub(crate) async fn files_get_another_chance_after_a_start(store: &dyn Store) {
    announce(store, announcing("1", &["a"]), 0).await;
    announce(store, inbound_message("2", "ann", "without files"), 0).await;
    assert_eq!(store.resume_files(Some(&tunnel_id("other")), at(600)).await.unwrap(), 0);
    assert_eq!(store.resume_files(None, at(600)).await.unwrap(), 1);
    assert_eq!(merge_due(store, 659).await, 0);
    let file = due(store, 659).await.remove(0);
    assert!(fetch(store, &file, b"x").await);
    assert_eq!(merge_due(store, 659).await, 1);
    assert_eq!(only_mail(store).await.messages.len(), 2);
}

pub(crate) async fn files_of_an_erased_author_are_deleted(store: &dyn Store) {
    announce(store, announcing("1", &["a", "b"]), 0).await;
    let mut other = announcing("2", &["c"]);
    let mut message = other.message.into_message();
    message.from.id = "bob".to_owned();
    message.artifacts[0].fetch = Some("c".to_owned());
    other.message = message.validate().unwrap();
    announce(store, other, 0).await;
    let files = due(store, 0).await;
    assert!(fetch(store, &files[0], b"of ann").await);
    assert!(fetch(store, &files[2], b"of bob").await);
    let ann = "did:msgtunnel:ann.user.lark".parse().unwrap();
    let request = ErasureRequest { authors: ErasedAuthors([ann].into()), ..Default::default() };
    let counted = store.count_erasure(&request).await.unwrap();
    let erased = store.erase(&request, at(1)).await.unwrap();
    assert_eq!((erased.inbound_messages, erased.attachments), (1, 1));
    assert_eq!(counted.attachments, 1);
    store.finish_erasure().await.unwrap();
    assert!(due(store, 1_000).await.is_empty(), "nothing is fetched for the person");
    assert!(!fetch(store, &files[1], b"late").await, "a download that was under way");
    let [of_ann, of_bob] = [&b"of ann"[..], b"of bob"].map(|it| ObjId::of(ObjKind::Bytes, it));
    assert_matches!(store.object(of_ann).await, Err(StoreError::Missing { .. }));
    store.object(of_bob).await.unwrap();
    assert_eq!(merge_due(store, 5).await, 1);
    assert_eq!(only_mail(store).await.messages[0].artifacts[0].hash, Some(of_bob));
}

/// The number of a deleted file is not used again, so that a download that ends late does not
/// become the attachment of another message.
pub(crate) async fn late_download_does_not_end_another_file(store: &dyn Store) {
    announce(store, announcing("1", &["a"]), 0).await;
    let late = due(store, 0).await.remove(0);
    assert_eq!(merge_due(store, 1_000).await, 1);
    announce(store, announcing("2", &["b"]), 1_001).await;
    assert!(!fetch(store, &late, b"of the first message").await);
    let busy = Failure::Permanent { detail: "file was deleted".to_owned(), error_code: None };
    assert!(!store.fail_file(late.id, busy, Jitter::NONE, at(1_002)).await.unwrap());
    let other = due(store, 1_002).await.remove(0);
    assert_eq!(other.handle, "b", "it is still to be fetched");
}

pub(crate) async fn letter_is_delivered_with_its_files(store: &dyn Store) {
    let event = StoreInboundEvent::Message(Box::new(announcing("1", &["a", "b"])));
    assert_eq!(store_event(store, event, true, 0).await, StoreInboundResult::Stored);
    let files = due(store, 0).await;
    assert!(fetch(store, &files[0], b"in the chain").await);
    let letter = store.due_letters(None, 10, at(0)).await.unwrap().remove(0);
    let crate::LetterSource::Inbound(request) = letter.source.clone() else { panic!("inbound") };
    let deliver = NextAction::Deliver(Box::new(request));
    let done = step_letter(store, letter.id, deliver, 100).await.unwrap();
    assert_eq!(done.state, LetterState::Done);
    assert_eq!(merge_due(store, 110).await, 0, "it waits for the second file");
    assert!(fetch(store, &files[1], b"in the window").await);
    assert_eq!(merge_due(store, 110).await, 1);
    let mail = only_mail(store).await;
    assert!(mail.messages[0].artifacts.iter().all(|it| it.hash.is_some()));
    assert_eq!(unmerged_count(store).await, 0);
}

pub(crate) async fn purged_letter_leaves_no_files(store: &dyn Store) {
    let event = StoreInboundEvent::Message(Box::new(announcing("1", &["a"])));
    store_event(store, event, true, 0).await;
    let letter = store.due_letters(None, 10, at(0)).await.unwrap().remove(0);
    let trash = NextAction::Trash { why: "spam".to_owned() };
    step_letter(store, letter.id, trash, 0).await.unwrap();
    assert_eq!(due(store, 0).await.len(), 1, "it can be restored");
    // The newest letter stays, so that no number is used twice.
    let newer = StoreInboundEvent::Message(Box::new(inbound_message("2", "ann", "newer")));
    store_event(store, newer, true, 0).await;
    assert_eq!(store.purge_letters(1_000, 1_000, 10).await.unwrap(), 1);
    assert!(due(store, 1_000).await.is_empty());
}

/// The bytes of a file are not kept when its message is recalled before it is merged.
pub(crate) async fn recalled_message_leaves_no_files(store: &dyn Store) {
    announce(store, announcing("1", &["a", "b"]), 0).await;
    announce(store, announcing("2", &["c"]), 0).await;
    let files = due(store, 0).await;
    assert!(fetch(store, &files[0], b"secret").await);
    assert!(fetch(store, &files[2], b"wanted").await);
    let recall = MessageRecall {
        recall_id: "r".to_owned(),
        message_id: "1".to_owned(),
        session: inbound_message("1", "ann", "").message.session.clone(),
        by: None,
        at: None,
    };
    let (tunnel, provider) = (tunnel_id("lark"), "lark".to_owned());
    let event = StoreInboundEvent::Recall { recall, tunnel, provider, debounce: Debounce::DEFAULT };
    assert_eq!(store_event(store, event, false, 1).await, StoreInboundResult::Stored);
    assert!(!fetch(store, &files[1], b"a download that was under way").await);
    assert_eq!(store.delete_purged_files(Duration::ZERO).await.unwrap(), 1);
    let [secret, wanted] = [&b"secret"[..], b"wanted"].map(|it| ObjId::of(ObjKind::Bytes, it));
    assert_matches!(store.object(secret).await, Err(StoreError::Missing { .. }));
    store.object(wanted).await.unwrap();
}

pub(crate) async fn new_file_is_published_after_commit(store: &dyn Store) {
    let mut hint = store.newest_file();
    announce(store, inbound_message("1", "ann", "without"), 0).await;
    assert!(!hint.has_changed().unwrap());
    announce(store, announcing("2", &["a"]), 0).await;
    tokio::time::timeout(Duration::from_secs(10), hint.changed()).await.unwrap().unwrap();
}
