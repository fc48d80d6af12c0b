//! Tests of the task state machine, as one table and by example.

use super::*;
use crate::object::ObjKind;
use crate::state_tables::StateTable;

fn at(secs: i64) -> Timestamp {
    Timestamp::from_ms(secs * 1000)
}

fn holder() -> Holder {
    Holder::new("tasks").unwrap()
}

fn proof(epoch: u64) -> LeaseProof {
    LeaseProof { epoch: Some(epoch), holder: holder() }
}

fn forward() -> ObjId {
    ObjId::of(ObjKind::Msg, b"the forward")
}

fn permanent() -> Failure {
    Failure::Permanent { detail: "no".into(), error_code: None }
}

fn deliveries(states: &[SendState]) -> ForwardProgress {
    let one = |state: &SendState| ForwardDelivery {
        target: "did:msgtunnel:ann%40example%2Ecom.addr.mail".parse().unwrap(),
        state: *state,
        why: Some("550 no such user".to_owned()),
    };
    ForwardProgress::Queued(states.iter().map(one).collect())
}

/// Every state with its name in the table.
fn states() -> Vec<(&'static str, TaskProgress)> {
    let lease = Lease::start(holder(), at(0), LeaseDuration::DEFAULT);
    let error = |next| TaskStateData::Error { why: "failed".into(), next };
    let task = |state, forward| TaskProgress { state, attempts: 1, epoch: 1, forward };
    let sent = Some(forward());
    vec![
        ("received", task(TaskStateData::Received, None)),
        ("in_progress", task(TaskStateData::Processing(lease), None)),
        ("in_progress, forwarding", task(TaskStateData::Forwarding, sent)),
        ("forwarded", task(TaskStateData::Forwarded, sent)),
        ("skipped_no_match", task(TaskStateData::Skipped { why: None }, None)),
        ("skipped_no_match, copy", task(TaskStateData::Copy { of: EmailTaskId(7) }, None)),
        ("error", task(error(TaskRetry::At(at(1))), None)),
        ("error, forwarding", task(error(TaskRetry::At(at(1))), sent)),
        ("error, dead", task(error(TaskRetry::Dead), None)),
        ("error, dead, forwarding", task(error(TaskRetry::Dead), sent)),
        ("error, dropped", task(error(TaskRetry::Dropped), None)),
    ]
}

/// The name of a state in the table.
fn name(progress: &TaskProgress) -> &'static str {
    let kind = |task: &TaskProgress| {
        let next = match &task.state {
            TaskStateData::Error { next: TaskRetry::At(_), .. } => 1,
            TaskStateData::Error { next: TaskRetry::Dead, .. } => 2,
            TaskStateData::Error { next: TaskRetry::Dropped, .. } => 3,
            _ => 0,
        };
        let forward = next != 3 && task.forward.is_some();
        (std::mem::discriminant(&task.state), next, forward)
    };
    let is_skipped = |task: &TaskProgress| matches!(task.state, TaskStateData::Skipped { .. });
    let found = states().into_iter().find(|(_, state)| {
        kind(state) == kind(progress) || is_skipped(state) && is_skipped(progress)
    });
    found.expect("every state is in the list").0
}

/// Every step from every state. A new state or step changes the table.
#[test]
fn every_step_from_every_state() {
    use SendState::{Archived, Dead, Sent, Uncertain, Wait};
    let mut table = StateTable::new("email tasks");
    for (from, task) in states() {
        let now = || task.clone();
        let third = || TaskProgress { attempts: MAX_TASK_ATTEMPTS, ..task.clone() };
        let mut row = |step: &str, end: Result<TaskProgress, String>| {
            table.row(from, step, end.as_ref().map(name));
        };
        let start = |task: TaskProgress, secs| {
            task.start(holder(), at(secs), LeaseDuration::DEFAULT).map_err(|e| e.to_string())
        };
        row("start", start(now(), 1));
        row("start, not due", start(now(), 0));
        row("start, lease expired", start(now(), 301));
        row("start, 3rd expired", start(third(), 301));
        let finish = |task: TaskProgress, outcome| {
            task.finish(outcome, &proof(1), at(1)).map_err(|error| error.to_string())
        };
        row(
            "finish, forward posted",
            finish(now(), TaskOutcome::Forwarding { forward: forward() }),
        );
        row("finish, no match", finish(now(), TaskOutcome::Skipped { why: None }));
        row("finish, temporary", finish(now(), TaskOutcome::Failed(temporary("busy".into()))));
        row(
            "finish, 3rd temporary",
            finish(third(), TaskOutcome::Failed(temporary("busy".into()))),
        );
        row("finish, permanent", finish(now(), TaskOutcome::Failed(permanent())));
        row("expire", now().expire(at(300)).map_err(|error| error.to_string()));
        row("expire, 3rd time", third().expire(at(300)).map_err(|error| error.to_string()));
        row("bounce", now().bounce(&permanent()).map_err(|error| error.to_string()));
        let trashed = ForwardProgress::LetterTrashed { why: "spam".into() };
        let dead = ForwardProgress::LetterDead { why: "down".into() };
        for (step, forward) in [
            ("settle, in chain", ForwardProgress::InChain),
            ("settle, trashed", trashed),
            ("settle, dead letter", dead),
            ("settle, WAIT", deliveries(&[Sent, Dead, Wait])),
            ("settle, SENT", deliveries(&[Sent, Archived])),
            ("settle, local", deliveries(&[])),
            ("settle, DEAD", deliveries(&[Sent, Dead, Uncertain])),
            ("settle, UNCERTAIN", deliveries(&[Sent, Uncertain])),
            ("settle, dropped", deliveries(&[Archived])),
        ] {
            row(step, now().settle(&forward, at(1)).map_err(|error| error.to_string()));
        }
        let third_dead = third().settle(&deliveries(&[Dead]), at(1));
        row("settle, 3rd DEAD", third_dead.map_err(|error| error.to_string()));
        row("resume", now().resume(at(1)).map_err(|error| error.to_string()));
        row("resume, not due", now().resume(at(0)).map_err(|error| error.to_string()));
        row("retry", now().retry().map_err(|error| error.to_string()));
        row("drop", now().drop_error().map_err(|error| error.to_string()));
    }
    table.check();
}

#[test]
fn third_failure_makes_a_dead_letter_after_10_and_20_seconds() {
    let mut task = TaskProgress::new();
    let (mut now, mut waits) = (at(0), Vec::new());
    loop {
        task = task.start(holder(), now, LeaseDuration::DEFAULT).unwrap();
        let outcome = TaskOutcome::Failed(temporary("busy".into()));
        task = task.clone().finish(outcome, &proof(task.epoch), now).unwrap();
        match &task.state {
            TaskStateData::Error { next: TaskRetry::At(due), .. } => {
                waits.push(due.since(now).as_secs());
                now = *due;
            }
            TaskStateData::Error { next: TaskRetry::Dead, .. } => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((waits, task.attempts), (vec![10, 20], MAX_TASK_ATTEMPTS));
    let retried = task.retry().unwrap();
    assert_eq!((retried.attempts, retried.epoch), (0, 3), "all attempts again, but no old epoch");
}

#[test]
fn mail_that_stops_the_courier_three_times_is_a_dead_letter() {
    let mut task = TaskProgress::new();
    for attempt in 1..=3 {
        task = task.start(holder(), at(attempt * 1000), LeaseDuration::DEFAULT).unwrap();
        task = task.expire(at(attempt * 1000 + 300)).unwrap();
    }
    let why = "tasks did not finish before its lease expired, in 3 attempts".to_owned();
    assert_eq!(task.state, TaskStateData::Error { why, next: TaskRetry::Dead });
}

#[test]
fn late_report_is_rejected_and_a_repeated_one_changes_nothing() {
    let first = TaskProgress::new().start(holder(), at(0), LeaseDuration::DEFAULT).unwrap();
    let second = first.start(holder(), at(300), LeaseDuration::DEFAULT).unwrap();
    let skip = || TaskOutcome::Skipped { why: Some("loop".into()) };
    let late = second.clone().finish(skip(), &proof(1), at(301));
    assert!(matches!(late, Err(TransitionError::LeaseLost(_))), "{late:?}");
    let skipped = second.finish(skip(), &proof(2), at(301)).unwrap();
    assert_eq!(skipped.clone().finish(skip(), &proof(2), at(302)).unwrap(), skipped);
    assert!(skipped.clone().finish(skip(), &proof(1), at(302)).is_err());
    let other = TaskOutcome::Forwarding { forward: forward() };
    assert!(skipped.finish(other, &proof(2), at(302)).is_err());
}

#[test]
fn dead_delivery_is_retried_twice_and_uncertain_never() {
    let started = TaskProgress::new().start(holder(), at(0), LeaseDuration::DEFAULT).unwrap();
    let posted = TaskOutcome::Forwarding { forward: forward() };
    let mut task = started.finish(posted, &proof(1), at(0)).unwrap();
    let uncertain = task.clone().settle(&deliveries(&[SendState::Uncertain]), at(1)).unwrap();
    assert!(uncertain.clone().resume(at(1_000)).is_err());
    assert_eq!(
        uncertain.state.why().unwrap(),
        "delivery to ann@example.com is UNCERTAIN: 550 no such user; it may have arrived, so \
         that it is not sent again: confirm or retry the delivery"
    );
    for attempt in 1..=3 {
        assert_eq!(task.attempts, attempt);
        task = task.settle(&deliveries(&[SendState::Dead]), at(0)).unwrap();
        // The next round finds the same deliveries, which must not delay the retry.
        assert_eq!(task.clone().settle(&deliveries(&[SendState::Dead]), at(5)).unwrap(), task);
        match task.clone().resume(at(20)) {
            Ok(resumed) => task = resumed,
            Err(_) => assert_eq!(attempt, 3),
        }
    }
    let confirmed = uncertain.settle(&deliveries(&[SendState::Sent]), at(9)).unwrap();
    assert_eq!(confirmed.state, TaskStateData::Forwarded, "a delivery report was received");
}

#[test]
fn ids_are_parsed_in_one_form_only() {
    assert_eq!("eml_17".parse(), Ok(EmailTaskId(17)));
    assert_eq!(EmailTaskId(17).to_string(), "eml_17");
    for text in ["", "eml_", "eml_0", "eml_017", "eml_-1", "eml_+1", "ltr_1", "eml_1 ", "17"] {
        assert!(text.parse::<EmailTaskId>().is_err(), "{text}");
    }
    assert!("eml_99999999999999999999".parse::<EmailTaskId>().is_err());
}
