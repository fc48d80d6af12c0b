//! Conformance tests of letters moved by an operator or recalled from workers.

use monoco_core::event::EventKind;
use monoco_core::letter::LetterId;

use super::letters::{
    accept_letter, apply_step, describe_letter, due_texts, letter, letter_status, pass_verdict,
    step_letter, submitted, then_hold, then_trash, then_wait, worker,
};
use super::*;
use crate::{LetterStep, NextAction, OperatorAction};

async fn apply_action(store: &dyn Store, id: LetterId, how: OperatorAction, now: i64) -> String {
    match store.move_letter(id, how, at(now)).await {
        Ok(row) => describe_letter(&row),
        Err(StoreError::InvalidTransition(_)) => "-".to_owned(),
        Err(error) => panic!("{error:?}"),
    }
}

fn trash_action(why: &str) -> OperatorAction {
    OperatorAction::Trash { why: why.to_owned() }
}

pub(super) async fn hand_over(store: &dyn Store, id: LetterId, worker_name: &str, until: i64) {
    step_letter(store, id, then_wait(Some(worker_name), 0), 0).await.unwrap();
    let away = NextAction::HandOver { until: at(until), holder: None };
    step_letter(store, id, away, 0).await.unwrap();
}

pub(super) async fn mark_dead(store: &dyn Store, id: LetterId) {
    step_letter(store, id, NextAction::MarkDead { why: "enough".to_owned() }, 0).await.unwrap();
}

pub(crate) async fn operator_can_trash_and_restore_a_letter(store: &dyn Store) {
    let id = accept_letter(store, submitted("a"), 0).await;
    assert_eq!(apply_action(store, id, OperatorAction::Restore, 1).await, "-");
    hand_over(store, id, "spam", 9).await;
    assert_eq!(
        apply_action(store, id, trash_action("no good"), 1).await,
        "TRASHED, 1 attempts: no good"
    );
    assert_eq!(apply_action(store, id, trash_action("again"), 1).await, "-");
    assert_eq!(apply_action(store, id, OperatorAction::Retry, 1).await, "-");
    assert_eq!(apply_action(store, id, OperatorAction::Restore, 3).await, "WAITING from 3");
    assert_eq!(
        store.letter(id).await.unwrap().verdicts.len(),
        2,
        "workers with a verdict do not run again"
    );
    let last = store.events(0, 100).await.unwrap().pop().unwrap();
    assert_eq!(last.kind, EventKind::Marked);
    assert_eq!(last.detail, json!({"letter": id, "to": "WAITING"}));
}

pub(crate) async fn dead_letter_is_retried_at_the_worker_that_failed(store: &dyn Store) {
    let id = accept_letter(store, submitted("a"), 0).await;
    hand_over(store, id, "spam", 9).await;
    assert_eq!(apply_action(store, id, OperatorAction::Retry, 1).await, "-", "a worker has it");
    mark_dead(store, id).await;
    assert_eq!(
        apply_action(store, id, OperatorAction::Retry, 4).await,
        "WAITING at spam from 4: enough"
    );
    step_letter(store, id, then_wait(Some("spam"), 99), 4).await.unwrap();
    assert_eq!(apply_action(store, id, OperatorAction::Retry, 5).await, "WAITING at spam from 5");
    step_letter(store, id, then_hold("limit", Some("k"), 99), 5).await.unwrap();
    assert_eq!(
        apply_action(store, id, OperatorAction::Retry, 6).await,
        "WAITING held by limit/k from 6"
    );
    step_letter(store, id, then_wait(None, 0), 6).await.unwrap();
    mark_dead(store, id).await;
    assert_eq!(apply_action(store, id, OperatorAction::Retry, 7).await, "WAITING from 7: enough");
    step_letter(store, id, then_trash("no"), 7).await.unwrap();
    assert_eq!(apply_action(store, id, OperatorAction::Retry, 8).await, "-");
}

pub(crate) async fn replay_restores_the_original_letter(store: &dyn Store) {
    for end in [then_trash("no"), NextAction::MarkDead { why: "enough".to_owned() }] {
        let id = accept_letter(store, submitted("as it came"), 0).await;
        assert_eq!(
            apply_action(store, id, OperatorAction::Replay, 1).await,
            "-",
            "the letter is in its chain"
        );
        let row = store.letter(id).await.unwrap();
        let (changed, had) = (Some(letter("changed")), vec![pass_verdict("subject")]);
        // `in_object` is ignored, because the letter does not become a message.
        let change = LetterStep {
            letter: changed,
            in_object: true,
            verdicts: had,
            ..LetterStep::only(&row, end)
        };
        apply_step(store, change, 1).await.unwrap();
        assert_eq!(store.letter(id).await.unwrap().letter, letter("changed"));
        assert_eq!(apply_action(store, id, OperatorAction::Replay, 2).await, "WAITING from 2");
        let row = store.letter(id).await.unwrap();
        assert_eq!((row.letter, row.verdicts), (letter("as it came"), vec![]));
    }
}

pub(crate) async fn letters_of_removed_workers_are_recalled(store: &dyn Store) {
    let mut ids = Vec::new();
    for (text, worker_name) in
        [("a", "old"), ("b", "old"), ("c", "new"), ("d", "older"), ("e", "old")]
    {
        let id = accept_letter(store, submitted(text), 0).await;
        step_letter(store, id, then_wait(Some(worker_name), 50), 0).await.unwrap();
        ids.push(id);
    }
    hand_over(store, ids[1], "old", 99).await;
    mark_dead(store, ids[4]).await;
    let known = [worker("new")];
    assert_eq!(store.recall_letters(&known, 2, at(7)).await.unwrap(), 2);
    assert_eq!(store.recall_letters(&known, 2, at(7)).await.unwrap(), 1);
    assert_eq!(store.recall_letters(&known, 2, at(7)).await.unwrap(), 0);
    assert_eq!(due_texts(store, None, 7).await, "a b d");
    assert_eq!(letter_status(store, ids[1]).await, "WAITING from 7");
    assert_eq!(letter_status(store, ids[2]).await, "WAITING at new from 50");
    assert_eq!(letter_status(store, ids[4]).await, "DEAD at old: enough");
}

pub(crate) async fn held_letters_are_recalled_with_their_reservations(store: &dyn Store) {
    for (text, by) in [("a", "limit"), ("b", "limit"), ("c", "limit-2"), ("d", "limit")] {
        let id = accept_letter(store, submitted(text), 0).await;
        let row = store.letter(id).await.unwrap();
        let reserved = vec![(format!("{by}:{text}"), 5)];
        let step = LetterStep {
            reservations: reserved,
            ..LetterStep::only(&row, then_hold(by, None, 50))
        };
        apply_step(store, step, 1).await.unwrap();
    }
    assert_eq!(due_texts(store, None, 7).await, "");
    assert_eq!(store.recall_held_letters(&worker("limit"), 2, at(7)).await.unwrap(), 2);
    assert_eq!(store.recall_held_letters(&worker("limit"), 2, at(7)).await.unwrap(), 1);
    assert_eq!(due_texts(store, None, 7).await, "a b d");
    let keys = ["limit:a", "limit:b", "limit-2:c", "limit:d"].map(str::to_owned).to_vec();
    let reserved = store.reservations(keys).await.unwrap();
    assert_eq!(reserved, [("limit-2:c".to_owned(), 5)].into());
}

pub(crate) async fn letters_of_a_lost_holder_return_to_their_worker(store: &dyn Store) {
    let mut ids = Vec::new();
    for (worker_name, by) in
        [("exec", Some("a:1")), ("exec", Some("a:2")), ("http", Some("b:1")), ("tube", None)]
    {
        let id = accept_letter(store, submitted(worker_name), 0).await;
        step_letter(store, id, then_wait(Some(worker_name), 0), 0).await.unwrap();
        let away = NextAction::HandOver { until: at(99), holder: by.map(holder) };
        step_letter(store, id, away, 0).await.unwrap();
        ids.push(id);
    }
    // A holder is remembered only while the worker has the letter.
    let answered = accept_letter(store, submitted("answered"), 0).await;
    step_letter(store, answered, then_wait(Some("exec"), 0), 0).await.unwrap();
    let away = NextAction::HandOver { until: at(99), holder: Some(holder("a:1")) };
    step_letter(store, answered, away, 0).await.unwrap();
    step_letter(store, answered, then_wait(Some("tube"), 0), 0).await.unwrap();
    let away = NextAction::HandOver { until: at(99), holder: None };
    step_letter(store, answered, away, 0).await.unwrap();

    assert_eq!(store.release_letters("a:", at(5)).await.unwrap(), 2);
    assert_eq!(store.release_letters("a:", at(5)).await.unwrap(), 0);
    assert_eq!(letter_status(store, answered).await, "AWAY at tube until 99, 1 attempts");
    assert_eq!(letter_status(store, ids[3]).await, "AWAY at tube until 99, 1 attempts");
    let shown = letter_status(store, ids[0]).await;
    assert!(
        shown.starts_with("WAITING at exec from 5, 1 attempts: the courier stopped"),
        "{shown}"
    );
    assert_eq!(letter_status(store, ids[2]).await, "AWAY at http until 99, 1 attempts");
}
