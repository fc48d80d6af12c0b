//! Random sequences of calls on letters, compared with a model in memory.
//!
//! Like [`super::store_model`]. After each call the test compares the result, all letters,
//! the letters that are due, away, held or dead, the reservations and the counts.

use std::collections::BTreeMap;

use monoco_core::contact::{AddressBook, plan_delivery};
use monoco_core::letter::{LetterId, LetterState, LetterStateData, LetterStatus};
use monoco_core::record::InvalidTransition;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use self::model::LetterModel;
use super::letter_lists::recount_letters;
use super::letters::{
    accept, apply_step, letter, outgoing_message, pass_verdict, send_source, submitted, then_hold,
    then_send, then_trash, then_wait, worker,
};
use super::*;
use crate::{
    AcceptResult, LetterQuery, LetterRow, LetterSource, LetterStep, LetterStepResult, NextAction,
    OperatorAction,
};

mod model;

const MAX_CALLS: usize = 60;

const WORKERS: [&str; 3] = ["", "spam", "note"];
const HOLDING_WORKERS: [&str; 2] = ["limit", "merge"];

/// Selects a letter: index into all letters of the model, modulo their count.
type LetterNumber = usize;

/// A call. `Send` uses one of 4 messages, so that duplicates occur; a stale `Step` is one of
/// the previous revision; `Join` joins `others` into another letter.
#[derive(Clone, Debug)]
enum LetterCall {
    Submit { key: Option<u8>, text: u8 },
    Send { text: u8 },
    Step { which: LetterNumber, stale: bool, step: Step, change: bool },
    Join { into: LetterNumber, others: Vec<LetterNumber> },
    Operator { which: LetterNumber, how: u8 },
    Recall { worker_index: usize, limit: usize },
    RecallHeld { by: usize, limit: usize },
    Release { worker_index: usize },
    Purge { trashed: bool, done: bool, limit: usize },
    AdvanceClock { secs: i64 },
    Reopen,
}

#[derive(Clone, Debug)]
enum Step {
    Wait { worker_index: usize, secs: i64 },
    Hold { by: usize, secs: i64 },
    HandOver { secs: i64 },
    Return { tried: bool, secs: i64 },
    Send,
    Unsendable,
    Trash,
    MarkDead,
}

fn any_call() -> impl Strategy<Value = LetterCall> {
    let which = || 0..12_usize;
    let secs = || 0..4_i64;
    let step = prop_oneof![
        4 => (0..WORKERS.len(), secs()).prop_map(|(worker_index, secs)| Step::Wait { worker_index, secs }),
        3 => (0..HOLDING_WORKERS.len(), secs()).prop_map(|(by, secs)| Step::Hold { by, secs }),
        6 => secs().prop_map(|secs| Step::HandOver { secs }),
        3 => (any::<bool>(), secs()).prop_map(|(tried, secs)| Step::Return { tried, secs }),
        2 => Just(Step::Send),
        1 => Just(Step::Unsendable),
        2 => Just(Step::Trash),
        2 => Just(Step::MarkDead),
    ];
    prop_oneof![
        6 => (prop::option::weighted(0.3, 0..3_u8), 0..3_u8)
            .prop_map(|(key, text)| LetterCall::Submit { key, text }),
        3 => (0..4_u8).prop_map(|text| LetterCall::Send { text }),
        20 => (which(), prop::bool::weighted(0.1), step, prop::bool::weighted(0.3))
            .prop_map(|(which, stale, step, change)| LetterCall::Step { which, stale, step, change }),
        2 => (which(), prop::collection::vec(which(), 1..3))
            .prop_map(|(into, others)| LetterCall::Join { into, others }),
        5 => (which(), 0..4_u8).prop_map(|(which, how)| LetterCall::Operator { which, how }),
        1 => (0..WORKERS.len(), 1..4_usize).prop_map(|(worker_index, limit)| LetterCall::Recall { worker_index, limit }),
        1 => (0..HOLDING_WORKERS.len(), 1..4_usize)
            .prop_map(|(by, limit)| LetterCall::RecallHeld { by, limit }),
        1 => (0..WORKERS.len()).prop_map(|worker_index| LetterCall::Release { worker_index }),
        1 => (any::<bool>(), any::<bool>(), 1..4_usize)
            .prop_map(|(trashed, done, limit)| LetterCall::Purge { trashed, done, limit }),
        6 => (1..4_i64).prop_map(|secs| LetterCall::AdvanceClock { secs }),
        1 => Just(LetterCall::Reopen),
    ]
}

pub(crate) fn histories_match_the_model<H: TestHome>(home: impl Fn() -> H) {
    check_histories(home, any_call(), MAX_CALLS, replay);
}

async fn replay(home: &dyn TestHome, history: &[LetterCall]) -> Result<(), TestCaseError> {
    let mut model = LetterModel::default();
    let mut store = home.open().await;
    put_lark_tunnel(&*store).await;
    for (number, call) in history.iter().enumerate() {
        if matches!(call, LetterCall::Reopen) {
            drop(store);
            store = home.open().await;
        }
        let answer = call_store(&*store, &mut model, call).await;
        prop_assert_eq!(answer, model.answer(call), "call {}: {:?}", number, call);
        let found = contents(&*store, model.now).await;
        prop_assert_eq!(found, model.contents(), "call {}: {:?}", number, call);
        let now = at(model.now);
        let counts = store.letter_counts(now).await.unwrap();
        prop_assert_eq!(counts, recount_letters(&*store, now).await, "call {}: {:?}", number, call);
    }
    drop(store);
    prop_assert_eq!(contents(&*home.open().await, model.now).await, model.contents(), "closed");
    Ok(())
}

impl Step {
    fn then(&self, now: i64) -> NextAction {
        match self {
            Self::Wait { worker_index, secs } => {
                then_wait(Some(WORKERS[*worker_index]).filter(|name| !name.is_empty()), now + secs)
            }
            Self::Hold { by, secs } => then_hold(HOLDING_WORKERS[*by], Some("k"), now + secs),
            Self::HandOver { secs } => NextAction::HandOver { until: at(now + secs) },
            Self::Return { tried, secs } => {
                NextAction::Return { due: at(now + secs), tried: *tried, why: "no".to_owned() }
            }
            Self::Send => then_send(outgoing_message("ann", "sent")),
            Self::Unsendable => then_send(chat("me", &["unknown"], "x")),
            Self::Trash => then_trash("bad"),
            Self::MarkDead => NextAction::MarkDead { why: "enough".to_owned() },
        }
    }
}

fn operator_action(how: u8) -> OperatorAction {
    match how {
        0 => OperatorAction::Retry,
        1 => OperatorAction::Trash { why: "operator".to_owned() },
        2 => OperatorAction::Restore,
        _ => OperatorAction::Replay,
    }
}

fn submitted_key(key: Option<u8>, text: u8) -> LetterSource {
    match submitted(&text.to_string()) {
        LetterSource::Submitted { letter, tunnel, .. } => LetterSource::Submitted {
            letter,
            tunnel,
            key: key.map(|key| key.to_string()),
            origin: SendOrigin::Owner,
        },
        other => other,
    }
}

/// Makes the call on the store and describes the result. The model records the ids of new
/// letters.
async fn call_store(store: &dyn Store, model: &mut LetterModel, call: &LetterCall) -> String {
    let now = at(model.now);
    match call {
        LetterCall::Submit { key, text } => {
            model.record_id(accept(store, submitted_key(*key, *text), model.now).await)
        }
        LetterCall::Send { text } => model.record_id(
            accept(store, send_source(outgoing_message("ann", &text.to_string())), model.now).await,
        ),
        LetterCall::Step { which, stale, step, change } => {
            let Some(one) = model.find(*which) else { return String::new() };
            let (id, revision) = (one.id, one.revision - i64::from(*stale));
            let letter_step = LetterStep {
                in_object: false,
                id,
                revision,
                letter: change.then(|| letter("changed")),
                verdicts: vec![pass_verdict("w")],
                reservations: vec![("limit:k".to_owned(), model.now + 1)],
                joins: Vec::new(),
                then: step.then(model.now),
            };
            describe_step(apply_step(store, letter_step, model.now).await)
        }
        LetterCall::Join { into, others } => {
            let Some(one) = model.find(*into) else { return String::new() };
            let joins = others.iter().filter_map(|which| model.find(*which));
            let letter_step = LetterStep {
                in_object: false,
                id: one.id,
                revision: one.revision,
                letter: Some(letter("joined")),
                verdicts: Vec::new(),
                reservations: Vec::new(),
                joins: joins.map(|other| (other.id, other.revision)).collect(),
                then: then_wait(None, model.now),
            };
            describe_step(apply_step(store, letter_step, model.now).await)
        }
        LetterCall::Operator { which, how } => {
            let Some(one) = model.find(*which) else { return String::new() };
            match store.move_letter(one.id, operator_action(*how), now).await {
                Ok(row) => format!("{} {}", row.status.standing.name().as_str(), row.revision),
                Err(error) => describe_error(&error),
            }
        }
        LetterCall::Recall { worker_index, limit } => {
            let mut known = WORKERS.to_vec();
            known.remove(*worker_index);
            let known: Vec<_> = known.iter().filter_map(|name| name.parse().ok()).collect();
            store.recall_letters(&known, *limit, now).await.unwrap().to_string()
        }
        LetterCall::RecallHeld { by, limit } => store
            .recall_held_letters(&worker(HOLDING_WORKERS[*by]), *limit, now)
            .await
            .unwrap()
            .to_string(),
        LetterCall::Release { worker_index } => {
            let workers: Vec<_> = WORKERS[*worker_index].parse().into_iter().collect();
            store.release_letters(&workers, now).await.unwrap().to_string()
        }
        LetterCall::Purge { trashed, done, limit } => {
            let day = |all: bool| if all { 0 } else { -1 };
            let gone = store.purge_letters(day(*trashed), day(*done), *limit);
            gone.await.unwrap().to_string()
        }
        LetterCall::AdvanceClock { .. } | LetterCall::Reopen => String::new(),
    }
}

fn describe_step(answer: Result<LetterStepResult, StoreError>) -> String {
    match answer {
        Ok(result) => format!("{} {}", result.state.as_str(), result.revision),
        Err(error) => describe_error(&error),
    }
}

/// The kind of an error, without details.
fn describe_error(error: &StoreError) -> String {
    match error {
        StoreError::InvalidTransition(_) => "wrong state".to_owned(),
        StoreError::Conflict { .. } => "conflict".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// Describes a letter of the store or of the model.
fn describe_letter(
    id: LetterId,
    status: &LetterStatus,
    place: (&str, &str),
    rest: (&str, usize, i64),
) -> String {
    let ((worker, held_by), (text, verdicts, revision)) = (place, rest);
    format!("{} {status:?} {worker:?} {held_by:?} {text} {verdicts} {revision}", id.seq)
}

fn describe_row(row: &LetterRow) -> String {
    let worker_index = row.worker.as_ref().map_or("", |name| name.as_str());
    let held_by = row.held_by.as_ref().map_or("", |name| name.as_str());
    let rest = (&*row.letter.data, row.verdicts.len(), row.revision);
    describe_letter(row.id, &row.status, (worker_index, held_by), rest)
}

type Contents = (Vec<String>, Vec<Vec<i64>>, Option<i64>);

/// All letters; the numbers of due, away, held and dead letters in order; the reservation.
async fn contents(store: &dyn Store, now: i64) -> Contents {
    let all = all_pages(3, true, async |request| {
        store.letters(LetterQuery::default(), request).await.unwrap()
    });
    let mut letters: Vec<_> = all.await.into_iter().flatten().collect();
    letters.reverse();
    let seqs = |rows: Vec<LetterRow>| rows.iter().map(|row| row.id.seq).collect::<Vec<_>>();
    let mut lists = Vec::new();
    for worker_index in WORKERS {
        let worker_index = worker_index.parse().ok();
        lists.push(seqs(store.due_letters(worker_index.as_ref(), 100, at(now)).await.unwrap()));
        if let Some(worker_index) = &worker_index {
            lists.push(seqs(store.away_letters(worker_index, 100).await.unwrap()));
        }
    }
    for by in HOLDING_WORKERS {
        lists.push(seqs(store.held_letters(&worker(by), "k", 100).await.unwrap()));
    }
    lists.push(seqs(store.dead_letters(100).await.unwrap()));
    let reserved =
        store.reservations(vec!["limit:k".to_owned()]).await.unwrap().into_values().next();
    (letters.iter().map(describe_row).collect(), lists, reserved)
}
