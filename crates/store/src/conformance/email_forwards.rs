//! Conformance tests of forwarded mails: a task follows the deliveries of its forward.

use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::email::task::{EmailTaskId, TaskOutcome};
use monoco_core::letter::LetterId;
use monoco_core::retry::Failure;

use super::drafts::to_lark;
use super::email::{describe_task, register_texts, task_list};
use super::email_tasks::{finish, start};
use super::letter_operator::mark_dead;
use super::letters::{accept_letter, outgoing_message, send_source, step_letter, submitted};
use super::letters::{then_send, then_trash};
use super::*;
use crate::SettleCounts;

fn accepted() -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: None }
}

fn refused() -> DeliveryOutcome {
    let detail = "550 no such user".to_owned();
    DeliveryOutcome::Failed(Failure::Permanent { detail, error_code: None })
}

fn unknown() -> DeliveryOutcome {
    let detail = "no answer after the final dot".to_owned();
    DeliveryOutcome::Failed(Failure::Unknown { detail, error_code: None })
}

/// Starts the next task and forwards its mail with `msg`.
async fn forward(store: &dyn Store, msg: &MsgObject) -> EmailTaskId {
    put_lark_tunnel(store).await;
    let started = start(store, 1, 0).await.remove(0);
    send_message(store, msg.clone()).await;
    let outcome = TaskOutcome::Forwarding { forward: msg.id() };
    finish(store, &started, outcome, 0).await.unwrap();
    started.task.id
}

/// Reports the outcome of the next due delivery.
async fn report_next(store: &dyn Store, outcome: DeliveryOutcome, now: i64) {
    let leased = lease_next_delivery(store, "lark", now).await.expect("a delivery is due").entry;
    let proof = by_epoch(leased.sending.epoch);
    store.report_delivery(leased.id, outcome, proof, RETRY, at(now)).await.unwrap();
}

async fn settle(store: &dyn Store, now: i64) -> SettleCounts {
    store.settle_forwards(&tunnel_id("mail"), 100, at(now)).await.unwrap()
}

async fn task_state(store: &dyn Store, id: EmailTaskId) -> String {
    describe_task(&store.task(id).await.unwrap())
}

/// The states of the deliveries of a message, in the order of its targets.
async fn delivery_states(store: &dyn Store) -> String {
    let page = store.deliveries(&tunnel_id("lark").did(), &[], FULL_PAGE).await.unwrap();
    let states = page.entries.iter().map(|delivery| delivery.sending.state.name().as_str());
    states.collect::<Vec<_>>().join(" ")
}

/// How often a message was accepted for sending.
async fn posted(store: &dyn Store) -> usize {
    event_kinds(store).await.split(' ').filter(|kind| *kind == "posted").count()
}

const NONE: SettleCounts = SettleCounts { forwarded: 0, failed: 0, retried: 0, skipped: 0 };

pub(crate) async fn task_is_forwarded_when_all_deliveries_are_sent(home: &dyn TestHome) {
    let store = home.open().await;
    register_texts(&*store, &["one", "two"]).await;
    let msg = to_lark(&["ann", "bob"], "a forward");
    let id = forward(&*store, &msg).await;
    assert_eq!(task_state(&*store, id).await, "1 in_progress");
    assert_eq!(store.task(id).await.unwrap().progress.forward, Some(msg.id()));
    report_next(&*store, accepted(), 1).await;
    assert_eq!(settle(&*store, 1).await, NONE, "a delivery waits");
    drop(store);
    let store = home.open().await;
    assert_eq!(start(&*store, 9, 100).await.len(), 1, "only the other task can be started");
    report_next(&*store, accepted(), 2).await;
    assert_eq!(settle(&*store, 3).await, SettleCounts { forwarded: 1, ..NONE });
    assert_eq!(settle(&*store, 4).await, NONE);
    assert_eq!(task_state(&*store, id).await, "1 forwarded");
    let of_message = store.tasks_of(msg.id()).await.unwrap();
    assert_eq!(of_message.iter().map(describe_task).collect::<String>(), "1 forwarded");
    assert_eq!(store.tasks_of(chat("ann", &["bob"], "x").id()).await.unwrap(), []);
    assert_matches!(store.retry_task(id, at(5)).await, Err(StoreError::InvalidTransition(_)));
    let last = store.events(0, 100).await.unwrap().pop().unwrap();
    assert_eq!((last.kind.as_str(), last.msg_id), ("email_task", Some(msg.id())));
    assert_eq!(last.detail["to"], "forwarded");
}

pub(crate) async fn retry_sends_dead_deliveries_again_and_posts_nothing(home: &dyn TestHome) {
    let store = home.open().await;
    register_texts(&*store, &["one"]).await;
    let id = forward(&*store, &to_lark(&["ann", "bob", "joe"], "a forward")).await;
    for outcome in [accepted(), refused(), unknown()] {
        report_next(&*store, outcome, 1).await;
    }
    let dead = "1 error: delivery to bob is DEAD: 550 no such user";
    for (attempt, failed_at) in [(1, 1), (2, 11), (3, 31)] {
        assert_eq!(settle(&*store, failed_at).await, SettleCounts { failed: 1, ..NONE });
        assert_eq!(task_state(&*store, id).await, dead);
        assert_eq!(delivery_states(&*store).await, "SENT DEAD UNCERTAIN");
        let task = store.task(id).await.unwrap();
        assert_eq!(task.progress.attempts, attempt);
        assert_eq!(store.dead_tasks(9).await.unwrap().is_empty(), attempt < 3);
        let dead = store.dead_forwards(9).await.unwrap();
        let parts = dead.iter().map(|dead| (dead.task, dead.deliveries.len(), dead.letter));
        let expected = if attempt < 3 { vec![] } else { vec![(id, 2, None)] };
        assert_eq!(parts.collect::<Vec<_>>(), expected, "the DEAD and the UNCERTAIN delivery");
        let due = store.next_task(&tunnel_id("mail")).await.unwrap();
        let Some(due) = due else { break };
        assert_eq!(settle(&*store, failed_at + 1).await, NONE, "not due");
        let retry = (due.ms() - at(0).ms()) / 1000;
        assert_eq!(settle(&*store, retry).await, SettleCounts { retried: 1, ..NONE });
        assert_eq!(task_state(&*store, id).await, "1 in_progress");
        assert_eq!(delivery_states(&*store).await, "SENT WAIT UNCERTAIN");
        report_next(&*store, refused(), retry).await;
    }
    assert_eq!(settle(&*store, 9_999).await, NONE, "three attempts were made");
    drop(store);
    let store = home.open().await;
    let retried = store.retry_task(id, at(100)).await.unwrap();
    assert_eq!((describe_task(&retried), retried.progress.attempts), ("1 in_progress".into(), 1));
    assert_eq!(delivery_states(&*store).await, "SENT WAIT UNCERTAIN");
    report_next(&*store, accepted(), 101).await;
    assert_eq!(settle(&*store, 102).await, SettleCounts { failed: 1, ..NONE });
    assert_eq!(posted(&*store).await, 1);
}

pub(crate) async fn uncertain_delivery_is_never_sent_again(store: &dyn Store) {
    register_texts(store, &["one"]).await;
    let id = forward(store, &to_lark(&["ann"], "a forward")).await;
    report_next(store, unknown(), 1).await;
    let error = "1 error: delivery to ann is UNCERTAIN: no answer after the final dot; it may have \
                 arrived, so that it is not sent again: confirm or retry the delivery";
    assert_eq!(settle(store, 1).await, SettleCounts { failed: 1, ..NONE });
    assert_eq!(task_state(store, id).await, error);
    assert_eq!(store.dead_tasks(9).await.unwrap().len(), 1, "shown at once");
    let dead = store.dead_forwards(9).await.unwrap().remove(0);
    assert!(store.delivery(dead.deliveries[0]).await.is_ok());
    assert_eq!(store.dead_forwards(0).await.unwrap(), []);
    assert_eq!(settle(store, 100_000).await, NONE);
    store.retry_task(id, at(2)).await.unwrap();
    assert_eq!(delivery_states(store).await, "UNCERTAIN");
    assert_eq!(settle(store, 3).await, SettleCounts { failed: 1, ..NONE });
    assert_eq!(task_state(store, id).await, error);

    let page = store.deliveries(&tunnel_id("lark").did(), &[], FULL_PAGE).await.unwrap();
    let delivery = page.entries[0].id;
    store.mark_delivery(delivery, SendState::Sent, by_holder("me"), None, at(4)).await.unwrap();
    assert_eq!(settle(store, 5).await, SettleCounts { forwarded: 1, ..NONE });
    assert_eq!(task_state(store, id).await, "1 forwarded");
    assert_eq!(store.dead_tasks(9).await.unwrap(), []);
    assert_eq!(store.dead_forwards(9).await.unwrap(), []);
}

/// An operator can retry or drop the deliveries themselves. The task follows.
pub(crate) async fn task_follows_deliveries_that_an_operator_changes(store: &dyn Store) {
    register_texts(store, &["one"]).await;
    let id = forward(store, &to_lark(&["ann"], "a forward")).await;
    report_next(store, refused(), 1).await;
    settle(store, 1).await;
    let page = store.deliveries(&tunnel_id("lark").did(), &[], FULL_PAGE).await.unwrap();
    let delivery = page.entries[0].id;
    let mark = async |to, now| {
        store.mark_delivery(delivery, to, by_holder("me"), None, at(now)).await.unwrap();
    };
    mark(SendState::Wait, 2).await;
    assert_eq!(settle(store, 2).await, NONE);
    assert_eq!(task_state(store, id).await, "1 in_progress");
    report_next(store, refused(), 3).await;
    settle(store, 3).await;
    mark(SendState::Archived, 4).await;
    assert_eq!(settle(store, 4).await, SettleCounts { skipped: 1, ..NONE });
    let dropped = "1 skipped_no_match: every delivery of the forward was dropped";
    assert_eq!(task_state(store, id).await, dropped);
}

pub(crate) async fn forward_to_a_local_recipient_is_forwarded_at_once(store: &dyn Store) {
    register_texts(store, &["one", "two"]).await;
    add_local_contact(store, "bob").await;
    let id = forward(store, &chat("me", &["bob"], "a forward")).await;
    assert_eq!(settle(store, 1).await, SettleCounts { forwarded: 1, ..NONE });
    assert_eq!(task_state(store, id).await, "1 forwarded");

    let started = start(store, 1, 1).await.remove(0);
    let lost = TaskOutcome::Forwarding { forward: chat("me", &["bob"], "never posted").id() };
    assert_matches!(finish(store, &started, lost, 1).await, Err(StoreError::Missing { .. }));
    assert_eq!(task_list(store).await, "1 forwarded, 2 in_progress");
}

pub(crate) async fn settle_changes_at_most_its_limit(store: &dyn Store) {
    add_local_contact(store, "bob").await;
    register_texts(store, &["1", "2", "3"]).await;
    for n in 1..=3 {
        forward(store, &chat("me", &["bob"], &n.to_string())).await;
    }
    let settle = async |limit| store.settle_forwards(&tunnel_id("mail"), limit, at(1)).await;
    assert_eq!(settle(2).await.unwrap().forwarded, 2);
    assert_eq!(task_list(store).await, "1 forwarded, 2 forwarded, 3 in_progress");
    assert_eq!(settle(2).await.unwrap().forwarded, 1);
    assert_eq!(store.settle_forwards(&tunnel_id("other"), 9, at(1)).await.unwrap(), NONE);
}

/// Forwards that are on their way do not hide the ones behind them.
pub(crate) async fn every_forward_is_read_in_turn(store: &dyn Store) {
    let texts: Vec<String> = (1..=23).map(|n| n.to_string()).collect();
    register_texts(store, &texts.iter().map(String::as_str).collect::<Vec<_>>()).await;
    add_local_contact(store, "bob").await;
    for text in &texts {
        let local = text.ends_with('7');
        let msg = if local { chat("me", &["bob"], text) } else { to_lark(&["ann"], text) };
        forward(store, &msg).await;
    }
    let mut forwarded = 0;
    for _ in 0..23 {
        forwarded += settle(store, 1).await.forwarded;
    }
    assert_eq!(forwarded, 2);
    report_next(store, accepted(), 2).await;
    for _ in 0..23 {
        forwarded += settle(store, 3).await.forwarded;
    }
    assert_eq!(forwarded, 3);
}

/// With an outbound chain, the letter counts until it becomes a message.
pub(crate) async fn task_follows_the_letter_of_its_forward(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    let texts = ["passed", "trashed", "dead"];
    register_texts(&*store, &texts).await;
    let mut letters: Vec<LetterId> = Vec::new();
    for text in texts {
        let started = start(&*store, 1, 0).await.remove(0);
        let msg = outgoing_message("ann", text);
        letters.push(accept_letter(&*store, send_source(msg.clone()), 0).await);
        let outcome = TaskOutcome::Forwarding { forward: msg.id() };
        finish(&*store, &started, outcome, 0).await.unwrap();
    }
    assert_eq!(settle(&*store, 1).await, NONE);
    let with_footer = then_send(outgoing_message("ann", "passed, with a footer"));
    step_letter(&*store, letters[0], with_footer, 1).await.unwrap();
    step_letter(&*store, letters[1], then_trash("spam: rubbish"), 1).await.unwrap();
    mark_dead(&*store, letters[2]).await;
    assert_eq!(settle(&*store, 2).await, SettleCounts { failed: 2, ..NONE });
    let trashed = "2 error: the forward was trashed in the outbound chain: spam: rubbish";
    let dead = "3 error: the outbound chain failed: enough";
    let list = format!("1 in_progress, {trashed}, {dead}");
    assert_eq!(task_list(&*store).await, list);
    drop(store);

    let store = home.open().await;
    accept_letter(&*store, submitted("newer"), 0).await;
    assert_eq!(store.purge_letters(9, 9, 9).await.unwrap(), 0, "open tasks keep their letters");
    report_next(&*store, accepted(), 3).await;
    let counts = SettleCounts { forwarded: 1, retried: 1, ..NONE };
    assert_eq!(settle(&*store, 100).await, counts, "a dead letter is retried, trash is not");
    let list = format!("1 forwarded, {trashed}, 3 in_progress");
    assert_eq!(task_list(&*store).await, list);
    let retried = outgoing_message("ann", "dead");
    step_letter(&*store, letters[2], then_send(retried), 101).await.unwrap();
    store.retry_task(EmailTaskId(2), at(102)).await.unwrap();
    let restored = outgoing_message("ann", "trashed");
    step_letter(&*store, letters[1], then_send(restored), 103).await.unwrap();
    for _ in 0..2 {
        report_next(&*store, accepted(), 104).await;
    }
    assert_eq!(settle(&*store, 105).await, SettleCounts { forwarded: 2, ..NONE });
    assert_eq!(task_list(&*store).await, "1 forwarded, 2 forwarded, 3 forwarded");
    assert!(store.purge_letters(9, 9, 9).await.unwrap() > 0);
}
