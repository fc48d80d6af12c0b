//! Conformance tests of drafts: sent once, and reported when finished.

use std::collections::BTreeMap;

use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::letter::LetterId;
use monoco_core::retry::Failure;

use super::letter_operator::{hand_over, mark_dead};
use super::letters::{
    accept_letter, apply_step, outgoing_message, route_all, step_letter, submitted, then_send,
    then_trash, then_wait,
};
use super::*;
use crate::{DraftSendRequest, LetterStep, PipelineRouting};

fn draft_request(uid: &str, msg: MsgObject) -> DraftSendRequest {
    let (uid, provider) = (uid.to_owned(), "lark".to_owned());
    DraftSendRequest { uid, provider, courier: COURIER, post: send_request(msg) }
}

pub(super) fn to_lark(accounts: &[&str], text: &str) -> MsgObject {
    let targets: Vec<_> = accounts.iter().map(|account| endpoint(account, "lark")).collect();
    let targets: Vec<_> = targets.iter().map(String::as_str).collect();
    chat("me", &targets, text)
}

async fn send_draft(store: &dyn Store, draft: DraftSendRequest) -> Result<bool, StoreError> {
    match store.send_draft(draft, &PipelineRouting::default(), at(0)).await? {
        SendResult::Queued { duplicate, .. } => Ok(duplicate),
        blocked => panic!("{blocked:?}"),
    }
}

/// The uids of finished drafts, separated by spaces.
async fn finished_uids(store: &dyn Store) -> String {
    let results = store.finished_drafts(COURIER, 100).await.unwrap();
    results.into_iter().map(|result| result.uid).collect::<Vec<_>>().join(" ")
}

async fn send_chained_draft(store: &dyn Store, uid: &str, msg: &MsgObject) -> LetterId {
    match store.send_draft(draft_request(uid, msg.clone()), &route_all(), at(0)).await.unwrap() {
        SendResult::Chained { letter, duplicate: false, msg_id } if msg_id == msg.id() => letter,
        other => panic!("{other:?}"),
    }
}

/// Finished drafts: `d1 SENT`, or `d1: reason` when the draft was not sent.
async fn finished_drafts(store: &dyn Store) -> String {
    let results = store.finished_drafts(COURIER, 100).await.unwrap();
    let shown = results.iter().map(|result| {
        let states = result.deliveries.iter().map(|one| one.sending.state.name().as_str());
        match &result.ended {
            Some(why) => format!("{}: {why}", result.uid),
            None => format!("{} {}", result.uid, states.collect::<String>()),
        }
    });
    shown.collect::<Vec<_>>().join(", ")
}

async fn report_next_as_sent(store: &dyn Store) {
    let leased = lease_next_delivery(store, "lark", 50).await.unwrap().entry;
    let ok = monoco_core::delivery::DeliveryOutcome::Accepted { external_msg_id: None };
    store
        .report_delivery(leased.id, ok, by_epoch(leased.sending.epoch), RETRY, at(51))
        .await
        .unwrap();
}

pub(crate) async fn draft_is_sent_once(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    assert!(!store.draft_exists("d1").await.unwrap());
    let msg = to_lark(&["ann"], "hello");
    assert!(!send_draft(&*store, draft_request("d1", msg.clone())).await.unwrap());
    assert!(store.draft_exists("d1").await.unwrap());
    assert!(send_draft(&*store, draft_request("d1", msg.clone())).await.unwrap());
    drop(store);
    let store = home.open().await;
    assert!(send_draft(&*store, draft_request("d1", msg)).await.unwrap());
    assert!(store.draft_exists("d1").await.unwrap());
    assert_eq!(tunnel_contents(&*store, "lark").await, "hello WAIT");
}

/// The file of a draft may be overwritten with other text after it was sent.
pub(crate) async fn draft_uid_cannot_be_reused_for_another_message(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let first = to_lark(&["ann"], "first");
    let keyed = |uid: &str, text: &str| {
        let mut draft = draft_request(uid, to_lark(&["ann"], text));
        draft.post.key = Some("key".to_owned());
        draft
    };
    send_draft(store, draft_request("d1", first.clone())).await.unwrap();
    assert_matches!(send_draft(store, draft_request("d1", to_lark(&["ann"], "edited"))).await, Err(StoreError::KeyReused(id)) if *id == first.id().to_string());

    send_draft(store, keyed("d2", "second")).await.unwrap();
    assert_matches!(send_draft(store, keyed("d3", "third")).await, Err(StoreError::KeyReused(_)));
    assert!(!store.draft_exists("d3").await.unwrap());
    assert!(
        send_draft(store, keyed("d4", "second")).await.unwrap(),
        "the same message may use the key again"
    );
    assert_eq!(tunnel_contents(store, "lark").await, "first WAIT, second WAIT");
}

pub(crate) async fn rejected_draft_is_not_remembered(store: &dyn Store) {
    assert_matches!(
        send_draft(store, draft_request("d1", to_lark(&["ann"], "hello"))).await,
        Err(StoreError::UnresolvableTargets(_))
    );
    assert!(!store.draft_exists("d1").await.unwrap());
    add_contact(store, "me", ContactLevel::Block).await;
    put_lark_tunnel(store).await;
    let blocked = store
        .send_draft(
            draft_request("d1", to_lark(&["ann"], "hello")),
            &PipelineRouting::default(),
            at(0),
        )
        .await
        .unwrap();
    assert!(matches!(blocked, SendResult::BlockedAuthor { .. }));
    assert!(!store.draft_exists("d1").await.unwrap());
    add_contact(store, "me", ContactLevel::Friend).await;
    assert!(!send_draft(store, draft_request("d1", to_lark(&["ann"], "hello"))).await.unwrap());
    assert_eq!(finished_uids(store).await, "");
}

pub(crate) async fn draft_is_finished_when_all_deliveries_are(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    let msg = to_lark(&["ann", "bob", "cat", "dan"], "hello");
    send_draft(&*store, draft_request("d1", msg.clone())).await.unwrap();
    send_draft(&*store, draft_request("d2", to_lark(&["ann"], "other"))).await.unwrap();
    let failed = |failure| DeliveryOutcome::Failed(failure);
    let detail = || "no".to_owned();
    let busy =
        failed(Failure::Temporary { detail: detail(), retry_after_ms: None, error_code: None });
    for (now, outcome) in [
        (0, DeliveryOutcome::Accepted { external_msg_id: None }),
        (0, failed(Failure::Permanent { detail: detail(), error_code: None })),
        (0, failed(Failure::Unknown { detail: detail(), error_code: None })),
        (0, busy),
    ] {
        assert_eq!(finished_uids(&*store).await, "", "deliveries are waiting");
        let leased = lease_next_delivery(&*store, "lark", now).await.unwrap().entry;
        assert_eq!(finished_uids(&*store).await, "", "a delivery is leased");
        let proof = by_epoch(leased.sending.epoch);
        store.report_delivery(leased.id, outcome, proof, RETRY, at(now)).await.unwrap();
    }
    assert_eq!(finished_uids(&*store).await, "", "a delivery is retried");
    let page =
        store.deliveries(&tunnel_id("lark").did(), &[SendState::Failed], FULL_PAGE).await.unwrap();
    let last = page.entries[0].id;
    store.mark_delivery(last, SendState::Held, by_holder("me"), None, at(1)).await.unwrap();
    assert_eq!(finished_uids(&*store).await, "", "a delivery is held");
    store.mark_delivery(last, SendState::Deleted, by_holder("me"), None, at(2)).await.unwrap();
    drop(store);
    let store = home.open().await;
    let result = store.finished_drafts(COURIER, 10).await.unwrap().remove(0);
    assert_eq!(
        (result.uid.as_str(), result.provider.as_str(), result.msg_id),
        ("d1", "lark", msg.id())
    );
    let mut states: Vec<_> =
        result.deliveries.iter().map(|delivery| delivery.sending.state.name()).collect();
    states.sort();
    let mut want = [SendState::Sent, SendState::Dead, SendState::Uncertain, SendState::Deleted];
    want.sort();
    assert_eq!(states, want);
}

pub(crate) async fn closed_draft_is_not_listed_again(home: &dyn TestHome) {
    let store = home.open().await;
    add_local_contact(&*store, "bob").await;
    for uid in ["d3", "d1", "d2"] {
        // A draft to a local recipient is finished at once.
        assert!(!send_draft(&*store, draft_request(uid, chat("me", &["bob"], uid))).await.unwrap());
    }
    assert_eq!(finished_uids(&*store).await, "d1 d2 d3");
    assert_eq!(store.finished_drafts(COURIER, 2).await.unwrap().len(), 2);
    store.close_draft("d2").await.unwrap();
    store.close_draft("nothing").await.unwrap();
    assert_eq!(finished_uids(&*store).await, "d1 d3");
    assert!(send_draft(&*store, draft_request("d2", chat("me", &["bob"], "d2"))).await.unwrap());
    drop(store);
    let store = home.open().await;
    assert_eq!(finished_uids(&*store).await, "d1 d3", "a closed draft stays closed");
    assert!(store.draft_exists("d2").await.unwrap());
}

pub(crate) async fn draft_finishes_with_its_letter(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    let names = ["d1", "d2", "d3", "d4"];
    let mut ids: BTreeMap<&str, LetterId> = BTreeMap::new();
    for uid in names {
        ids.insert(uid, send_chained_draft(&*store, uid, &outgoing_message("ann", uid)).await);
    }
    assert_matches!(
        store
            .send_draft(draft_request("d1", outgoing_message("ann", "d1")), &route_all(), at(0))
            .await
            .unwrap(),
        SendResult::Chained { duplicate: true, .. }
    );
    assert_matches!(
        store
            .send_draft(draft_request("d1", outgoing_message("ann", "other")), &route_all(), at(0))
            .await,
        Err(StoreError::KeyReused(_))
    );
    assert!(store.draft_exists("d4").await.unwrap());
    assert_eq!(finished_drafts(&*store).await, "");
    hand_over(&*store, ids["d4"], "spam", 9).await;
    step_letter(&*store, ids["d2"], then_trash("spam: rubbish"), 1).await.unwrap();
    mark_dead(&*store, ids["d3"]).await;
    assert_eq!(finished_drafts(&*store).await, "d2: spam: rubbish, d3: enough");
    step_letter(&*store, ids["d1"], then_send(outgoing_message("ann", "d1, with a footer")), 1)
        .await
        .unwrap();
    assert_eq!(
        finished_drafts(&*store).await,
        "d2: spam: rubbish, d3: enough",
        "the delivery of d1 is waiting"
    );
    report_next_as_sent(&*store).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(finished_drafts(&*store).await, "d1 SENT, d2: spam: rubbish, d3: enough");
    let result = store.finished_drafts(COURIER, 1).await.unwrap().remove(0);
    assert_eq!(result.msg_id, outgoing_message("ann", "d1, with a footer").id());

    accept_letter(&*store, submitted("newer"), 0).await;
    assert_eq!(
        store.purge_letters(9, 9, 9).await.unwrap(),
        0,
        "drafts that are not closed keep their letters"
    );
    store.close_draft("d1").await.unwrap();
    store.close_draft("d2").await.unwrap();
    assert_eq!(store.purge_letters(9, 9, 9).await.unwrap(), 2);
}

pub(crate) async fn draft_of_a_merged_letter_finishes_with_the_merged_one(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let mut rows = Vec::new();
    for uid in ["d1", "d2"] {
        let id = send_chained_draft(store, uid, &outgoing_message("ann", uid)).await;
        rows.push(store.letter(id).await.unwrap());
    }
    let joins = vec![(rows[1].id, rows[1].revision)];
    let step = LetterStep { joins, ..LetterStep::only(&rows[0], then_wait(None, 1)) };
    apply_step(store, step, 1).await.unwrap();
    assert_eq!(finished_drafts(store).await, "");
    step_letter(store, rows[0].id, then_send(outgoing_message("ann", "both")), 1).await.unwrap();
    assert_eq!(finished_drafts(store).await, "");
    report_next_as_sent(store).await;
    assert_eq!(finished_drafts(store).await, "d1 SENT, d2 SENT");
}

pub(crate) async fn drafts_are_reported_to_the_courier_that_has_the_file(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let other = CourierId::from_random([2; 16]);
    let own = draft_request("d1", to_lark(&["ann"], "own"));
    let others = DraftSendRequest {
        courier: other,
        ..draft_request("d2", to_lark(&["bob"], "of the other courier"))
    };
    for draft in [own, others] {
        send_draft(store, draft).await.unwrap();
        report_next_as_sent(store).await;
    }
    assert_eq!(finished_uids(store).await, "d1");
    let finished = store.finished_drafts(other, 9).await.unwrap();
    assert_eq!(finished.iter().map(|draft| draft.uid.as_str()).collect::<Vec<_>>(), ["d2"]);
    store.close_draft("d1").await.unwrap();
    assert_eq!(store.finished_drafts(other, 9).await.unwrap().len(), 1);
}
