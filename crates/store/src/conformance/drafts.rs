//! Laws of drafts: posted once, and told when they have ended.

use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::retry::Failure;

use super::*;
use crate::{DraftSendRequest, PipelineRouting};

fn draft(uid: &str, msg: MsgObject) -> DraftSendRequest {
    DraftSendRequest { uid: uid.to_owned(), provider: "lark".to_owned(), post: post_of(msg) }
}

fn to(accounts: &[&str], text: &str) -> MsgObject {
    let targets: Vec<_> = accounts.iter().map(|account| endpoint(account, "lark")).collect();
    let targets: Vec<_> = targets.iter().map(String::as_str).collect();
    chat("me", &targets, text)
}

async fn send(store: &dyn Store, draft: DraftSendRequest) -> Result<bool, StoreError> {
    match store.send_draft(draft, &PipelineRouting::default(), at(0)).await? {
        SendResult::Queued { duplicate, .. } => Ok(duplicate),
        blocked => panic!("{blocked:?}"),
    }
}

/// The names of drafts that have ended.
async fn settled(store: &dyn Store) -> String {
    let fates = store.finished_drafts(100).await.unwrap();
    fates.into_iter().map(|fate| fate.uid).collect::<Vec<_>>().join(" ")
}

pub(crate) async fn a_draft_is_posted_once(home: &dyn Home) {
    let store = home.open().await;
    lark(&*store).await;
    assert!(!store.draft_exists("d1").await.unwrap());
    let msg = to(&["ann"], "hello");
    assert!(!send(&*store, draft("d1", msg.clone())).await.unwrap());
    assert!(store.draft_exists("d1").await.unwrap());
    assert!(send(&*store, draft("d1", msg.clone())).await.unwrap());
    drop(store);
    let store = home.open().await;
    assert!(send(&*store, draft("d1", msg)).await.unwrap());
    assert!(store.draft_exists("d1").await.unwrap());
    assert_eq!(outgoing(&*store, "lark").await, "hello WAIT");
}

/// A draft is looked for in files, which somebody may have written again.
pub(crate) async fn a_name_stands_for_one_message(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let first = to(&["ann"], "first");
    let keyed = |uid: &str, text: &str| {
        let mut draft = draft(uid, to(&["ann"], text));
        draft.post.key = Some("key".to_owned());
        draft
    };
    send(store, draft("d1", first.clone())).await.unwrap();
    let reused = send(store, draft("d1", to(&["ann"], "edited"))).await;
    assert!(
        matches!(&reused, Err(StoreError::KeyReused(id)) if *id == first.id().to_string()),
        "{reused:?}"
    );

    send(store, keyed("d2", "second")).await.unwrap();
    let reused = send(store, keyed("d3", "third")).await;
    assert!(matches!(reused, Err(StoreError::KeyReused(_))), "{reused:?}");
    assert!(!store.draft_exists("d3").await.unwrap());
    assert!(send(store, keyed("d4", "second")).await.unwrap(), "the same message is no misuse");
    assert_eq!(outgoing(store, "lark").await, "first WAIT, second WAIT");
}

pub(crate) async fn what_can_not_be_sent_is_not_remembered(home: &dyn Home) {
    let store = &*home.open().await;
    let refused = send(store, draft("d1", to(&["ann"], "hello"))).await;
    assert!(matches!(refused, Err(StoreError::UnresolvableTargets(_))), "{refused:?}");
    assert!(!store.draft_exists("d1").await.unwrap());
    contact(store, "me", ContactLevel::Block).await;
    lark(store).await;
    let blocked = store
        .send_draft(draft("d1", to(&["ann"], "hello")), &PipelineRouting::default(), at(0))
        .await
        .unwrap();
    assert!(matches!(blocked, SendResult::BlockedAuthor { .. }));
    assert!(!store.draft_exists("d1").await.unwrap());
    contact(store, "me", ContactLevel::Friend).await;
    assert!(!send(store, draft("d1", to(&["ann"], "hello"))).await.unwrap());
    assert_eq!(settled(store).await, "");
}

pub(crate) async fn a_draft_has_ended_when_all_its_deliveries_have(home: &dyn Home) {
    let store = home.open().await;
    lark(&*store).await;
    let msg = to(&["ann", "bob", "cat", "dan"], "hello");
    send(&*store, draft("d1", msg.clone())).await.unwrap();
    send(&*store, draft("d2", to(&["ann"], "other"))).await.unwrap();
    let failed = |failure| DeliveryOutcome::Failed(failure);
    let detail = || "no".to_owned();
    let busy = failed(Failure::Temporary { detail: detail(), retry_after_ms: None });
    for (now, outcome) in [
        (0, DeliveryOutcome::Accepted { external_msg_id: None }),
        (0, failed(Failure::Permanent { detail: detail() })),
        (0, failed(Failure::Unknown { detail: detail() })),
        (0, busy),
    ] {
        assert_eq!(settled(&*store).await, "", "some wait");
        let taken = send_next(&*store, "lark", now).await.unwrap().entry;
        assert_eq!(settled(&*store).await, "", "one is being sent");
        let guard = in_epoch(taken.sending.epoch);
        store.report_delivery(taken.id, outcome, guard, AGAIN, at(now)).await.unwrap();
    }
    assert_eq!(settled(&*store).await, "", "one is tried again");
    let page = store.deliveries(&tunnel_id("lark").did(), &[SendState::Failed], ALL).await.unwrap();
    let last = page.entries[0].id;
    store.mark_delivery(last, SendState::Held, by("me"), None, at(1)).await.unwrap();
    assert_eq!(settled(&*store).await, "", "a person looks at one");
    store.mark_delivery(last, SendState::Deleted, by("me"), None, at(2)).await.unwrap();
    drop(store);
    let store = home.open().await;
    let fate = store.finished_drafts(10).await.unwrap().remove(0);
    assert_eq!((fate.uid.as_str(), fate.provider.as_str(), fate.msg_id), ("d1", "lark", msg.id()));
    let mut states: Vec<_> =
        fate.deliveries.iter().map(|delivery| delivery.sending.state.name()).collect();
    states.sort();
    let mut want = [SendState::Sent, SendState::Dead, SendState::Uncertain, SendState::Deleted];
    want.sort();
    assert_eq!(states, want);
}

pub(crate) async fn a_closed_draft_is_not_told_again(home: &dyn Home) {
    let store = home.open().await;
    lives_here(&*store, "bob").await;
    for uid in ["d3", "d1", "d2"] {
        // Who lives here has it at once.
        assert!(!send(&*store, draft(uid, chat("me", &["bob"], uid))).await.unwrap());
    }
    assert_eq!(settled(&*store).await, "d1 d2 d3");
    assert_eq!(store.finished_drafts(2).await.unwrap().len(), 2);
    store.close_draft("d2").await.unwrap();
    store.close_draft("nothing").await.unwrap();
    assert_eq!(settled(&*store).await, "d1 d3");
    assert!(send(&*store, draft("d2", chat("me", &["bob"], "d2"))).await.unwrap());
    drop(store);
    let store = home.open().await;
    assert_eq!(settled(&*store).await, "d1 d3", "closed is closed");
    assert!(store.draft_exists("d2").await.unwrap());
}
