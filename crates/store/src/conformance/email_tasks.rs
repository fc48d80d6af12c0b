//! Conformance tests of e-mail tasks: leases, attempts, retries, counts and purges.

use std::collections::BTreeMap;

use monoco_core::did::TunnelId;
use monoco_core::email::task::{EmailTaskId, TaskOutcome, TaskRetry, TaskStateData};
use monoco_core::retry::Failure;

use super::email::{all_tasks, describe_task, mail, page, register_texts, task_list};
use super::*;
use crate::{EmailTaskCounts, RegisterMailsRequest, StartedTask, SweepCounts};

const DAY: i64 = 86_400;

/// Starts at most `limit` tasks of the tunnel `mail` at second `now`, for 60 s.
pub(super) async fn start(store: &dyn Store, limit: usize, now: i64) -> Vec<StartedTask> {
    let tunnel = tunnel_id("mail");
    store.start_tasks(&tunnel, holder("loop-1"), lease_for(60), limit, at(now)).await.unwrap()
}

/// The numbers of started tasks, separated by spaces.
async fn started_ids(store: &dyn Store, limit: usize, now: i64) -> String {
    let started = start(store, limit, now).await;
    started.iter().map(|one| one.task.id.0.to_string()).collect::<Vec<_>>().join(" ")
}

pub(super) async fn finish(
    store: &dyn Store,
    started: &StartedTask,
    outcome: TaskOutcome,
    now: i64,
) -> Result<(), StoreError> {
    let result = (started.task.id, started.task.progress.epoch, outcome);
    store.finish_tasks(vec![result], at(now)).await.remove(0)
}

pub(super) fn no_match() -> TaskOutcome {
    TaskOutcome::Skipped { why: None }
}

fn busy() -> TaskOutcome {
    let detail = "the store is full".to_owned();
    TaskOutcome::Failed(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
}

fn unreadable() -> TaskOutcome {
    TaskOutcome::Failed(Failure::Permanent { detail: "not a mail".into(), error_code: None })
}

async fn next_due(store: &dyn Store) -> Option<Timestamp> {
    store.next_task(&tunnel_id("mail")).await.unwrap()
}

pub(crate) async fn oldest_tasks_are_started_first(home: &dyn TestHome) {
    let store = home.open().await;
    assert_eq!(next_due(&*store).await, None);
    register_texts(&*store, &["1", "2", "3", "4", "5"]).await;
    assert_eq!(next_due(&*store).await, Some(at(0)));
    let started = start(&*store, 3, 1).await;
    let ids: Vec<_> = started.iter().map(|one| one.task.id.0).collect();
    assert_eq!(ids, [1, 2, 3]);
    let progress = &started[0].task.progress;
    assert_eq!((progress.attempts, progress.epoch), (1, 1));
    assert_eq!(store.task(EmailTaskId(1)).await.unwrap(), started[0].task);
    let skip = |one: &StartedTask| (one.task.id, one.task.progress.epoch, no_match());
    for result in store.finish_tasks(started.iter().map(skip).collect(), at(2)).await {
        result.unwrap();
    }
    drop(store);
    let store = home.open().await;
    assert_eq!(started_ids(&*store, 10, 3).await, "4 5");
    assert_eq!(started_ids(&*store, 10, 3).await, "");
    let skipped = "1 skipped_no_match, 2 skipped_no_match, 3 skipped_no_match";
    assert_eq!(task_list(&*store).await, format!("{skipped}, 4 in_progress, 5 in_progress"));
    assert_eq!(next_due(&*store).await, Some(at(63)), "the end of the leases");
}

/// The caller has the mails of all started tasks in memory, also those that the store has in files.
pub(crate) async fn large_mails_are_started_alone(store: &dyn Store) {
    let sized = |uid: u32, bytes: usize| mail(uid, &format!("{uid} {}", "x".repeat(bytes)));
    let mails = vec![sized(1, 10), sized(2, 3 << 19), sized(3, 1 << 20), sized(4, 9 << 20)];
    store.register_mails(page(mails), at(0)).await.unwrap();
    store.register_mails(page(vec![sized(5, 1 << 20), sized(6, 10)]), at(0)).await.unwrap();
    for expected in ["1 2", "3", "4", "5 6", ""] {
        assert_eq!(started_ids(store, 10, 1).await, expected);
    }
}

pub(crate) async fn concurrent_loops_start_each_task_once(store: &dyn Store) {
    let texts: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    register_texts(store, &texts.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let take = async || {
        let mut ids = Vec::new();
        loop {
            let started = start(store, 3, 1).await;
            if started.is_empty() {
                return ids;
            }
            ids.extend(started.iter().map(|one| one.task.id.0));
        }
    };
    let (a, b, c) = tokio::join!(take(), take(), take());
    let mut ids = [a, b, c].concat();
    ids.sort_unstable();
    assert_eq!(ids, (1..=40).collect::<Vec<_>>());
}

pub(crate) async fn outcome_of_a_lost_lease_is_rejected(store: &dyn Store) {
    register_texts(store, &["one"]).await;
    let slow = start(store, 1, 0).await.remove(0);
    assert!(start(store, 1, 59).await.is_empty());
    let fast = start(store, 1, 60).await.remove(0);
    assert_eq!((fast.task.progress.attempts, fast.task.progress.epoch), (2, 2));
    assert_matches!(finish(store, &slow, no_match(), 61).await, Err(StoreError::LeaseLost(_)));
    finish(store, &fast, no_match(), 61).await.unwrap();
    assert_matches!(finish(store, &slow, no_match(), 62).await, Err(StoreError::LeaseLost(_)));
    finish(store, &fast, no_match(), 62).await.unwrap();
    let other = finish(store, &fast, unreadable(), 62).await;
    assert_matches!(other, Err(StoreError::InvalidTransition(_)));
    assert_eq!(task_list(store).await, "1 skipped_no_match");
    let unknown = store.finish_tasks(vec![(EmailTaskId(9), 1, no_match())], at(0)).await.remove(0);
    assert_matches!(unknown, Err(StoreError::Missing { .. }));
}

pub(crate) async fn rejected_outcome_does_not_affect_the_rest_of_the_batch(store: &dyn Store) {
    register_texts(store, &["1", "2", "3"]).await;
    start(store, 3, 0).await;
    let results = store
        .finish_tasks(
            vec![
                (EmailTaskId(1), 1, no_match()),
                (EmailTaskId(2), 7, no_match()),
                (EmailTaskId(3), 1, unreadable()),
            ],
            at(1),
        )
        .await;
    assert!(results[0].is_ok() && results[1].is_err() && results[2].is_ok(), "{results:?}");
    let list = "1 skipped_no_match, 2 in_progress, 3 error: not a mail";
    assert_eq!(task_list(store).await, list);
}

pub(crate) async fn lease_of_an_earlier_run_is_released(home: &dyn TestHome) {
    let store = home.open().await;
    register_texts(&*store, &["1", "2"]).await;
    start(&*store, 1, 0).await;
    let other = (tunnel_id("mail"), holder("other-1"));
    store.start_tasks(&other.0, other.1, lease_for(60), 1, at(0)).await.unwrap();
    drop(store);
    let store = home.open().await;
    let released = store.release_leases("loop", RETRY, at(1)).await.unwrap();
    assert_eq!(released, SweepCounts { email_tasks: 1, ..SweepCounts::default() });
    assert_eq!(task_list(&*store).await, "1 received, 2 in_progress");
    assert_eq!(started_ids(&*store, 10, 1).await, "1");
    assert_eq!(store.expire_leases(RETRY, 10, at(59)).await.unwrap(), SweepCounts::default());
    let expired = store.expire_leases(RETRY, 10, at(61)).await.unwrap();
    assert_eq!(expired, SweepCounts { email_tasks: 2, ..SweepCounts::default() });
    assert_eq!(task_list(&*store).await, "1 received, 2 received");
    assert_eq!(store.task(EmailTaskId(1)).await.unwrap().progress.attempts, 2);
}

pub(crate) async fn third_failure_makes_a_dead_letter(home: &dyn TestHome) {
    let store = home.open().await;
    register_texts(&*store, &["1", "2"]).await;
    let failed = start(&*store, 1, 0).await.remove(0);
    finish(&*store, &failed, busy(), 0).await.unwrap();
    assert_eq!(describe_task(&all_tasks(&*store).await[0]), "1 error: the store is full");
    assert_eq!(started_ids(&*store, 10, 9).await, "2", "not due before 10 s");
    assert_eq!(next_due(&*store).await, Some(at(10)));
    for (now, due) in [(10, Some(30)), (30, None)] {
        let failed = start(&*store, 1, now).await.remove(0);
        finish(&*store, &failed, busy(), now).await.unwrap();
        let next = store.task(EmailTaskId(1)).await.unwrap().progress.state;
        let TaskStateData::Error { next, .. } = next else { panic!("{next:?}") };
        assert_eq!(next, due.map_or(TaskRetry::Dead, |due| TaskRetry::At(at(due))));
    }
    drop(store);
    let store = home.open().await;
    let dead = store.dead_tasks(10).await.unwrap();
    assert_eq!(dead.iter().map(describe_task).collect::<String>(), "1 error: the store is full");
    assert_eq!(dead[0].progress.attempts, 3);
    assert_eq!(started_ids(&*store, 1, 60).await, "", "a dead letter is not retried");

    let retried = store.retry_task(EmailTaskId(1), at(60)).await.unwrap();
    assert_eq!((describe_task(&retried), retried.progress.attempts), ("1 received".to_owned(), 0));
    assert_eq!(store.dead_tasks(10).await.unwrap(), []);
    assert_eq!(started_ids(&*store, 1, 60).await, "1");
}

/// A mail that stops the courier is not tried without end, and the mails that were started with it
/// keep their attempts.
pub(crate) async fn mail_that_stops_the_courier_is_isolated(store: &dyn Store) {
    register_texts(store, &["harmless", "deadly", "late"]).await;
    assert_eq!(started_ids(store, 2, 0).await, "1 2");
    let restart = async |now| store.release_leases("loop", RETRY, at(now)).await.unwrap();
    restart(1).await;
    assert_eq!(started_ids(store, 10, 1).await, "3", "tasks of the first attempt go together");
    let first = start(store, 10, 1).await;
    assert_eq!(first.iter().map(|one| one.task.id.0).collect::<Vec<_>>(), [1], "alone");
    finish(store, &first[0], no_match(), 1).await.unwrap();
    for attempt in 2..=3 {
        let deadly = start(store, 10, 2).await.remove(0);
        assert_eq!((deadly.task.id.0, deadly.task.progress.attempts), (2, attempt));
        restart(2).await;
    }
    let why = "loop-1 did not finish before its lease expired, in 3 attempts";
    assert_eq!(describe_task(&store.dead_tasks(10).await.unwrap()[0]), format!("2 error: {why}"));
    let late = store.task(EmailTaskId(3)).await.unwrap();
    assert_eq!((describe_task(&late), late.progress.attempts), ("3 received".to_owned(), 1));
}

/// The lease of the last attempt ends without a sweep: the next start ends the task.
pub(crate) async fn third_expired_lease_is_not_started_again(store: &dyn Store) {
    register_texts(store, &["deadly"]).await;
    for now in [0, 60, 120] {
        assert_eq!(started_ids(store, 1, now).await, "1");
    }
    store.register_mails(page(vec![mail(2, "harmless")]), at(200)).await.unwrap();
    assert_eq!(started_ids(store, 1, 200).await, "2");
    assert_eq!(store.dead_tasks(10).await.unwrap().len(), 1);
}

pub(crate) async fn operator_can_drop_and_retry_errors_and_skipped_mails(store: &dyn Store) {
    register_texts(store, &["1", "2", "3"]).await;
    let started = start(store, 3, 0).await;
    finish(store, &started[0], unreadable(), 1).await.unwrap();
    finish(store, &started[1], busy(), 1).await.unwrap();
    let looped = TaskOutcome::Skipped { why: Some("Auto-Submitted".into()) };
    finish(store, &started[2], looped, 1).await.unwrap();
    assert_eq!(store.dead_tasks(10).await.unwrap().len(), 1, "permanent: not retried");
    for id in [1, 2] {
        let dropped = store.drop_task(EmailTaskId(id), at(2)).await.unwrap();
        assert_eq!(store.drop_task(EmailTaskId(id), at(3)).await.unwrap(), dropped);
    }
    assert_eq!(store.dead_tasks(10).await.unwrap(), []);
    assert_eq!(started_ids(store, 10, 1_000).await, "", "a dropped error is not retried");
    let list = "1 error: not a mail, 2 error: the store is full, \
                3 skipped_no_match: Auto-Submitted";
    assert_eq!(task_list(store).await, list);
    assert_matches!(
        store.drop_task(EmailTaskId(3), at(3)).await,
        Err(StoreError::InvalidTransition(_))
    );
    for id in [1, 3] {
        store.retry_task(EmailTaskId(id), at(4)).await.unwrap();
    }
    assert_eq!(started_ids(store, 10, 4).await, "1 3");
    let kinds = event_kinds(store).await;
    assert_eq!(kinds.split(' ').count(), 8, "{kinds}");
}

pub(crate) async fn task_counts_equal_a_recount(home: &dyn TestHome) {
    async fn recount(store: &dyn Store) -> BTreeMap<TunnelId, EmailTaskCounts> {
        let mut counts: BTreeMap<TunnelId, EmailTaskCounts> = BTreeMap::new();
        for task in all_tasks(store).await {
            let counts = counts.entry(task.tunnel).or_default();
            let state = &task.progress.state;
            match state {
                TaskStateData::Copy { .. } => {
                    counts.copies += 1;
                    continue;
                }
                TaskStateData::Error { next: TaskRetry::Dead, .. } => counts.dead += 1,
                _ => {}
            }
            *counts.statuses.entry(state.status()).or_default() += 1;
        }
        counts
    }
    let store = home.open().await;
    assert_eq!(store.task_counts().await.unwrap(), BTreeMap::new());
    register_texts(&*store, &["1", "2", "3", "4", "5", "6"]).await;
    store.register_mails(page(vec![mail(9, "1"), mail(10, "2")]), at(0)).await.unwrap();
    let other = RegisterMailsRequest { tunnel: tunnel_id("second"), ..page(vec![mail(1, "x")]) };
    store.register_mails(other, at(0)).await.unwrap();
    let started = start(&*store, 5, 0).await;
    for (started, outcome) in started.iter().zip([no_match(), busy(), unreadable(), unreadable()]) {
        finish(&*store, started, outcome, 1).await.unwrap();
    }
    store.drop_task(EmailTaskId(4), at(2)).await.unwrap();
    let counted = store.task_counts().await.unwrap();
    assert_eq!(counted, recount(&*store).await);
    let mail = &counted[&tunnel_id("mail")];
    assert_eq!((mail.copies, mail.dead, counted.len()), (2, 1, 2));
    assert_eq!(store.counts().await.unwrap(), crate::StoreCounts::default());
    store.purge_tasks(9, 10).await.unwrap();
    drop(store);
    let store = home.open().await;
    let counted = store.task_counts().await.unwrap();
    assert_eq!(counted, recount(&*store).await);
    assert_eq!(counted[&tunnel_id("mail")].copies, 0);
}

pub(crate) async fn ended_tasks_are_purged_and_their_mails_recognised(home: &dyn TestHome) {
    let store = home.open().await;
    store.advance_retention_clock(at(0)).await.unwrap();
    register_texts(&*store, &["old", "dead", "dropped", "waiting", "young"]).await;
    store.register_mails(page(vec![mail(9, "old")]), at(0)).await.unwrap();
    let started = start(&*store, 3, 0).await;
    for (started, outcome) in started.iter().zip([no_match(), unreadable(), unreadable()]) {
        finish(&*store, started, outcome, 0).await.unwrap();
    }
    store.drop_task(EmailTaskId(3), at(0)).await.unwrap();
    for day in 1..=2 {
        store.advance_retention_clock(at(day * DAY)).await.unwrap();
    }
    start(&*store, 1, 2 * DAY).await;
    let young = start(&*store, 1, 2 * DAY).await.remove(0);
    finish(&*store, &young, no_match(), 2 * DAY).await.unwrap();
    store.register_mails(page(vec![mail(10, "newest")]), at(2 * DAY)).await.unwrap();

    assert_eq!(store.purge_tasks(-1, 10).await.unwrap(), 0);
    assert_eq!(store.purge_tasks(1, 1).await.unwrap(), 1);
    assert_eq!(store.purge_tasks(1, 10).await.unwrap(), 2);
    assert_eq!(store.purge_tasks(1, 10).await.unwrap(), 0);
    let list = "2 error: not a mail, 4 in_progress, 5 skipped_no_match, 7 received";
    assert_eq!(task_list(&*store).await, list);
    for id in [EmailTaskId(1), EmailTaskId(6)] {
        assert_matches!(store.task(id).await, Err(StoreError::Missing { .. }));
        assert_matches!(store.raw_mail(id).await, Err(StoreError::Missing { .. }));
    }
    drop(store);
    let store = home.open().await;
    store.register_mails(page(vec![mail(11, "old")]), at(2 * DAY)).await.unwrap();
    let copy = store.task(EmailTaskId(8)).await.unwrap();
    assert_eq!(describe_task(&copy), "8 skipped_no_match: copy of eml_1");
    assert_matches!(store.raw_mail(copy.id).await, Err(StoreError::Missing { .. }));
}

pub(crate) async fn tasks_delayed_by_a_wrong_clock_become_due(store: &dyn Store) {
    register_texts(store, &["leased", "failed"]).await;
    let late = store.register_mails(page(vec![mail(3, "received")]), at(300 * DAY)).await;
    assert_eq!(late.unwrap().new, 1);
    let started = start(store, 2, 200 * DAY).await;
    finish(store, &started[1], busy(), 200 * DAY).await.unwrap();
    assert_eq!(started_ids(store, 10, 0).await, "");
    assert_eq!(store.expire_future_leases(at(0)).await.unwrap(), 3);
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(started_ids(store, 1, 0).await);
    }
    ids.sort();
    assert_eq!(ids, ["1", "2", "3"]);
}
