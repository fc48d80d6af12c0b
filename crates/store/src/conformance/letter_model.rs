//! Any history of letters, on the store and on a model of it.
//!
//! Like [`super::model`], for letters: the model keeps a plain list and asks
//! [`monoco_core`] for every step. What is compared after each call is the answer, where
//! every letter stands, who is due at which desk, what is kept and booked, and the
//! figures.

use std::collections::BTreeMap;

use monoco_core::contact::{AddressBook, plan_delivery};
use monoco_core::letter::{LetterId, LetterState, LetterStateData, LetterStatus};
use monoco_core::record::InvalidTransition;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use self::model::Model;
use super::letter_care::recount;
use super::letters::{accept, door, keep, letter, out, passed, posted, send, trash, wait, worker};
use super::*;
use crate::{
    AcceptResult, LetterQuery, LetterRow, LetterSource, LetterStep, LetterStepResult, NextAction,
    OperatorAction,
};

mod model;

/// How many calls the longest history has.
const CALLS: usize = 60;

const DESKS: [&str; 3] = ["", "spam", "note"];
const KEEPERS: [&str; 2] = ["limit", "merge"];

/// Which letter: by its number among all there ever were.
type Which = usize;

#[derive(Clone, Debug)]
enum Call {
    /// With a key or not.
    Door {
        key: Option<u8>,
        text: u8,
    },
    /// A message, of which there are only a few.
    Post {
        text: u8,
    },
    /// A step, of the letter as it is or as it was.
    Step {
        which: Which,
        stale: bool,
        step: Step,
        change: bool,
    },
    /// Some become part of another.
    Join {
        into: Which,
        others: Vec<Which>,
    },
    Hand {
        which: Which,
        how: u8,
    },
    Recall {
        desk: usize,
        limit: usize,
    },
    RecallKept {
        by: usize,
        limit: usize,
    },
    Release {
        desk: usize,
    },
    Purge {
        trashed: bool,
        done: bool,
        limit: usize,
    },
    Tick {
        secs: i64,
    },
    Reopen,
}

#[derive(Clone, Debug)]
enum Step {
    Wait { desk: usize, secs: i64 },
    Keep { by: usize, secs: i64 },
    HandOver { secs: i64 },
    PutBack { tried: bool, secs: i64 },
    Send,
    Unsendable,
    Trash,
    GiveUp,
}

fn call() -> impl Strategy<Value = Call> {
    let which = || 0..12_usize;
    let secs = || 0..4_i64;
    let step = prop_oneof![
        4 => (0..DESKS.len(), secs()).prop_map(|(desk, secs)| Step::Wait { desk, secs }),
        3 => (0..KEEPERS.len(), secs()).prop_map(|(by, secs)| Step::Keep { by, secs }),
        6 => secs().prop_map(|secs| Step::HandOver { secs }),
        3 => (any::<bool>(), secs()).prop_map(|(tried, secs)| Step::PutBack { tried, secs }),
        2 => Just(Step::Send),
        1 => Just(Step::Unsendable),
        2 => Just(Step::Trash),
        2 => Just(Step::GiveUp),
    ];
    prop_oneof![
        6 => (prop::option::weighted(0.3, 0..3_u8), 0..3_u8)
            .prop_map(|(key, text)| Call::Door { key, text }),
        3 => (0..4_u8).prop_map(|text| Call::Post { text }),
        20 => (which(), prop::bool::weighted(0.1), step, prop::bool::weighted(0.3))
            .prop_map(|(which, stale, step, change)| Call::Step { which, stale, step, change }),
        2 => (which(), prop::collection::vec(which(), 1..3))
            .prop_map(|(into, others)| Call::Join { into, others }),
        5 => (which(), 0..4_u8).prop_map(|(which, how)| Call::Hand { which, how }),
        1 => (0..DESKS.len(), 1..4_usize).prop_map(|(desk, limit)| Call::Recall { desk, limit }),
        1 => (0..KEEPERS.len(), 1..4_usize)
            .prop_map(|(by, limit)| Call::RecallKept { by, limit }),
        1 => (0..DESKS.len()).prop_map(|desk| Call::Release { desk }),
        1 => (any::<bool>(), any::<bool>(), 1..4_usize)
            .prop_map(|(trashed, done, limit)| Call::Purge { trashed, done, limit }),
        6 => (1..4_i64).prop_map(|secs| Call::Tick { secs }),
        1 => Just(Call::Reopen),
    ]
}

pub(crate) fn any_history_is_the_models_history<H: Home>(home: impl Fn() -> H) {
    any_history(home, call(), CALLS, replay);
}

async fn replay(home: &dyn Home, history: &[Call]) -> Result<(), TestCaseError> {
    let mut model = Model::default();
    let mut store = home.open().await;
    lark(&*store).await;
    for (number, call) in history.iter().enumerate() {
        if matches!(call, Call::Reopen) {
            drop(store);
            store = home.open().await;
        }
        let answer = ask(&*store, &mut model, call).await;
        prop_assert_eq!(answer, model.answer(call), "call {}: {:?}", number, call);
        let found = contents(&*store, model.now).await;
        prop_assert_eq!(found, model.contents(), "call {}: {:?}", number, call);
        let now = at(model.now);
        let figures = store.letter_counts(now).await.unwrap();
        prop_assert_eq!(figures, recount(&*store, now).await, "call {}: {:?}", number, call);
    }
    drop(store);
    prop_assert_eq!(contents(&*home.open().await, model.now).await, model.contents(), "closed");
    Ok(())
}

impl Step {
    fn then(&self, now: i64) -> NextAction {
        match self {
            Self::Wait { desk, secs } => {
                wait(Some(DESKS[*desk]).filter(|name| !name.is_empty()), now + secs)
            }
            Self::Keep { by, secs } => keep(KEEPERS[*by], Some("k"), now + secs),
            Self::HandOver { secs } => NextAction::HandOver { until: at(now + secs) },
            Self::PutBack { tried, secs } => {
                NextAction::Return { due: at(now + secs), tried: *tried, why: "no".to_owned() }
            }
            Self::Send => send(out("ann", "sent")),
            Self::Unsendable => send(chat("me", &["nobody"], "x")),
            Self::Trash => trash("bad"),
            Self::GiveUp => NextAction::MarkDead { why: "enough".to_owned() },
        }
    }
}

fn hand(how: u8) -> OperatorAction {
    match how {
        0 => OperatorAction::Retry,
        1 => OperatorAction::Trash { why: "by hand".to_owned() },
        2 => OperatorAction::Restore,
        _ => OperatorAction::Replay,
    }
}

fn handed_in(key: Option<u8>, text: u8) -> LetterSource {
    match door(&text.to_string()) {
        LetterSource::Submitted { letter, tunnel, .. } => {
            LetterSource::Submitted { letter, tunnel, key: key.map(|key| key.to_string()) }
        }
        other => other,
    }
}

/// Makes the call on the store and says what it answered. The names that the store
/// gives are noted in the model.
async fn ask(store: &dyn Store, model: &mut Model, call: &Call) -> String {
    let now = at(model.now);
    match call {
        Call::Door { key, text } => {
            model.name(accept(store, handed_in(*key, *text), model.now).await)
        }
        Call::Post { text } => {
            model.name(accept(store, posted(out("ann", &text.to_string())), model.now).await)
        }
        Call::Step { which, stale, step, change } => {
            let Some(one) = model.find(*which) else { return String::new() };
            let (id, revision) = (one.id, one.revision - i64::from(*stale));
            let advance = LetterStep {
                in_object: false,
                id,
                revision,
                letter: change.then(|| letter("changed")),
                verdicts: vec![passed("w")],
                reservations: vec![("limit:k".to_owned(), model.now + 1)],
                joins: Vec::new(),
                then: step.then(model.now),
            };
            advanced(store.step_letters(vec![advance], now).await.remove(0))
        }
        Call::Join { into, others } => {
            let Some(one) = model.find(*into) else { return String::new() };
            let joins = others.iter().filter_map(|which| model.find(*which));
            let advance = LetterStep {
                in_object: false,
                id: one.id,
                revision: one.revision,
                letter: Some(letter("joined")),
                verdicts: Vec::new(),
                reservations: Vec::new(),
                joins: joins.map(|other| (other.id, other.revision)).collect(),
                then: wait(None, model.now),
            };
            advanced(store.step_letters(vec![advance], now).await.remove(0))
        }
        Call::Hand { which, how } => {
            let Some(one) = model.find(*which) else { return String::new() };
            match store.move_letter(one.id, hand(*how), now).await {
                Ok(row) => format!("{} {}", row.status.standing.name().as_str(), row.revision),
                Err(error) => word(&error),
            }
        }
        Call::Recall { desk, limit } => {
            let known: Vec<_> = DESKS
                .iter()
                .enumerate()
                .filter(|(n, name)| n != desk && !name.is_empty())
                .collect();
            let known: Vec<_> = known.into_iter().map(|(_, name)| worker(name)).collect();
            store.recall_letters(&known, *limit, now).await.unwrap().to_string()
        }
        Call::RecallKept { by, limit } => {
            store.recall_held_letters(&worker(KEEPERS[*by]), *limit, now).await.unwrap().to_string()
        }
        Call::Release { desk } => {
            let desks: Vec<_> =
                DESKS[*desk..=*desk].iter().filter_map(|name| name.parse().ok()).collect();
            store.release_letters(&desks, now).await.unwrap().to_string()
        }
        Call::Purge { trashed, done, limit } => {
            let day = |all: bool| if all { 0 } else { -1 };
            let gone = store.purge_letters(day(*trashed), day(*done), *limit);
            gone.await.unwrap().to_string()
        }
        Call::Tick { .. } | Call::Reopen => String::new(),
    }
}

fn advanced(answer: Result<LetterStepResult, StoreError>) -> String {
    match answer {
        Ok(advanced) => format!("{} {}", advanced.state.as_str(), advanced.revision),
        Err(error) => word(&error),
    }
}

/// Which error it was, without its details.
fn word(error: &StoreError) -> String {
    match error {
        StoreError::InvalidTransition(_) => "wrong state".to_owned(),
        StoreError::Conflict { .. } => "conflict".to_owned(),
        other => panic!("{other:?}"),
    }
}

/// How one letter is shown, of the store and of the model.
fn line(
    id: LetterId,
    journey: &LetterStatus,
    place: (&str, &str),
    rest: (&str, usize, i64),
) -> String {
    let ((desk, kept_by), (text, had, revision)) = (place, rest);
    format!("{} {journey:?} {desk:?} {kept_by:?} {text} {had} {revision}", id.seq)
}

fn shown(row: &LetterRow) -> String {
    let desk = row.worker.as_ref().map_or("", |name| name.as_str());
    let kept_by = row.held_by.as_ref().map_or("", |name| name.as_str());
    let rest = (&*row.letter.data, row.verdicts.len(), row.revision);
    line(row.id, &row.status, (desk, kept_by), rest)
}

type Contents = (Vec<String>, Vec<Vec<i64>>, Option<i64>);

/// Every letter, which are due, away and kept in which order, and what is booked.
async fn contents(store: &dyn Store, now: i64) -> Contents {
    let all =
        pages(3, true, async |window| store.letters(LetterQuery::default(), window).await.unwrap());
    let mut letters: Vec<_> = all.await.into_iter().flatten().collect();
    letters.reverse();
    let seqs = |rows: Vec<LetterRow>| rows.iter().map(|row| row.id.seq).collect::<Vec<_>>();
    let mut lists = Vec::new();
    for desk in DESKS {
        let desk = desk.parse().ok();
        lists.push(seqs(store.due_letters(desk.as_ref(), 100, at(now)).await.unwrap()));
        if let Some(desk) = &desk {
            lists.push(seqs(store.away_letters(desk, 100).await.unwrap()));
        }
    }
    for by in KEEPERS {
        lists.push(seqs(store.held_letters(&worker(by), "k", 100).await.unwrap()));
    }
    lists.push(seqs(store.dead_letters(100).await.unwrap()));
    let booked = store.reservations(vec!["limit:k".to_owned()]).await.unwrap().into_values().next();
    (letters.iter().map(shown).collect(), lists, booked)
}
