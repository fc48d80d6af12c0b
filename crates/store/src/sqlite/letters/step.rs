//! One step of a letter, with all that it leads to.

use std::collections::BTreeMap;

use monoco_core::event::EventKind;
use monoco_core::letter::{LetterId, LetterState, LetterStateData, WorkerName, WorkerVerdict};
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::record::InvalidTransition;
use monoco_core::time::Timestamp;
use rusqlite::params;
use serde::Serialize;

use super::rows::{self, LetterHead};
use super::texts::{self, StoredText};
use crate::sqlite::events::{self, EventSubject};
use crate::sqlite::open::fault;
use crate::sqlite::rows::check_revision;
use crate::sqlite::writer::Tx;
use crate::sqlite::{SqliteStore, center, inbound, objects};
use crate::{
    DispatchOutcome, DispatchRequest, LetterSourceKind, LetterStep, LetterStepResult, NextAction,
    SendRequest, SendResult, StoreError, StoreInboundRequest, StoreInboundResult,
};

const BOOK: &str = "
    INSERT INTO bookings (key, booked)
    VALUES (?1, ?2)
        ON CONFLICT (key) DO UPDATE SET booked = excluded.booked
";

/// A step, with the letter's new text where that belongs.
pub(super) struct PreparedStep {
    advance: LetterStep,
    changed: Option<StoredText>,
}

impl SqliteStore {
    /// Puts what is too large for a row into files.
    pub(super) async fn prepare_step(
        &self,
        advance: LetterStep,
    ) -> Result<PreparedStep, StoreError> {
        match &advance.then {
            NextAction::Send(post) => self.keep_msg(&post.msg).await?,
            NextAction::Dispatch(dispatch) => self.keep_msg(&dispatch.msg).await?,
            _ => {}
        }
        let changed = match &advance.letter {
            Some(letter) if advance.in_object => {
                Some(StoredText::Inline(texts::letter_around(letter)?))
            }
            Some(letter) => Some(self.keep_text(texts::letter_text(letter)?).await?),
            None => None,
        };
        Ok(PreparedStep { advance, changed })
    }
}

/// Takes one step.
pub(super) fn advance(
    tx: &mut Tx<'_>,
    step: &PreparedStep,
    now: Timestamp,
) -> Result<LetterStepResult, StoreError> {
    let LetterStep { id, revision, verdicts: had, joins, then, .. } = &step.advance;
    let before = looked_at(tx, *id, *revision)?;
    let parts = parts(tx, *id, joins)?;
    let mut after = before.clone();
    let refused = go(tx, &mut after, then, now)?;
    // Whoever was to end the chain has not: it is its turn again when the letter is
    // taken up once more.
    let had = if refused { had.split_last().map_or(&[][..], |(_, had)| had) } else { had };
    after.had.extend_from_slice(had);
    let revision = rows::save(tx, &before, &after, now)?;
    match (&step.changed, &step.advance.letter) {
        // There is no message after all that has its words.
        (Some(_), Some(letter)) if step.advance.in_object && after.became.is_none() => {
            rows::put_changed(tx, *id, &StoredText::Inline(texts::letter_text(letter)?))?;
        }
        (Some(text), _) => rows::put_changed(tx, *id, text)?,
        (None, _) => {}
    }
    for (before, after) in &parts {
        rows::save(tx, before, after, now)?;
        tell(tx, after, &[], now)?;
    }
    tell(tx, &after, had, now)?;
    Ok(LetterStepResult { state: after.journey.standing.name(), revision })
}

/// A letter, unless it changed since it was looked at.
fn looked_at(tx: &Tx<'_>, id: LetterId, revision: i64) -> Result<LetterHead, StoreError> {
    let stub = rows::find(tx.db, id)?;
    check_revision("the letter", Some(revision), stub.revision)?;
    Ok(stub)
}

/// The letters that are part of `into` from now on, before and after.
fn parts(
    tx: &Tx<'_>,
    into: LetterId,
    joins: &[(LetterId, i64)],
) -> Result<Vec<(LetterHead, LetterHead)>, StoreError> {
    let mut parts = Vec::with_capacity(joins.len());
    for (id, revision) in joins {
        let before = looked_at(tx, *id, *revision)?;
        let journey = before.journey.clone().join(into)?;
        if *id == into {
            let merged = LetterState::Merged.as_str();
            return Err(
                InvalidTransition { from: LetterState::Waiting.as_str(), to: merged }.into()
            );
        }
        let after = LetterHead {
            journey,
            desk: None,
            kept_by: None,
            key: None,
            failure: None,
            ..before.clone()
        };
        parts.push((before, after));
    }
    Ok(parts)
}

/// Moves a letter on. Returns whether it was refused at its end.
fn go(
    tx: &mut Tx<'_>,
    letter: &mut LetterHead,
    then: &NextAction,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let journey = letter.journey.clone();
    match then {
        NextAction::Wait { worker: desk, due } => {
            letter.rest(journey.continue_chain(*due)?);
            letter.desk.clone_from(desk);
        }
        NextAction::Hold { by, key, due } => {
            letter.rest(journey.continue_chain(*due)?);
            letter.kept_by = Some(by.clone());
            letter.key.clone_from(key);
        }
        NextAction::HandOver { until } => {
            if letter.desk.is_none() {
                let (from, to) = (journey.standing.name().as_str(), LetterState::Away.as_str());
                return Err(InvalidTransition { from, to }.into());
            }
            letter.journey = journey.hand_over(now, *until)?;
        }
        NextAction::Return { due, tried, why } => {
            letter.journey = journey.return_to_queue(*due, *tried)?;
            letter.failure = Some(why.clone());
        }
        NextAction::Trash { why } => letter.rest(journey.trash(why.clone())?),
        NextAction::MarkDead { why } => {
            let desk = letter.desk.clone();
            letter.rest(journey.mark_dead(why.clone())?);
            letter.desk = desk;
        }
        NextAction::Send(_) | NextAction::Deliver(_) | NextAction::Dispatch(_) => {
            let through = journey.clone().finish()?;
            let end = match then {
                NextAction::Send(one) => post(tx, letter.made, one, now)?,
                NextAction::Deliver(keep) => deliver(tx, letter, keep, now)?,
                NextAction::Dispatch(one) => dispatch(tx, letter.heard, one, now)?,
                _ => ChainEnd::Through(None),
            };
            match end {
                ChainEnd::Through(object) => {
                    letter.rest(through);
                    letter.became = object;
                }
                ChainEnd::Unwanted(why) => letter.rest(journey.trash(why)?),
                ChainEnd::Refused(why) => letter.rest(journey.mark_dead(why)?),
            }
            return Ok(letter.journey.standing.name() != LetterState::Done);
        }
    }
    Ok(false)
}

impl LetterHead {
    /// With nobody any more, and where this says.
    pub(super) fn rest(&mut self, journey: monoco_core::letter::LetterStatus) {
        self.failure = match &journey.standing {
            LetterStateData::Trashed { why } | LetterStateData::Dead { why } => Some(why.clone()),
            _ => None,
        };
        (self.journey, self.desk, self.kept_by, self.key) = (journey, None, None, None);
    }
}

/// What came of a letter that is through its chain.
enum ChainEnd {
    /// It is through, and became the object of this row, as far as that is known.
    Through(Option<i64>),
    /// Somebody does not want it.
    Unwanted(String),
    /// It can't be sent.
    Refused(String),
}

fn post(
    tx: &mut Tx<'_>,
    made: LetterSourceKind,
    post: &SendRequest,
    now: Timestamp,
) -> Result<ChainEnd, StoreError> {
    // The key stands for the message as it came.
    let keyless = (made == LetterSourceKind::Send && post.key.is_some())
        .then(|| SendRequest { key: None, ..post.clone() });
    match center::post(tx, keyless.as_ref().unwrap_or(post), now) {
        Ok(SendResult::Queued { msg_id, .. } | SendResult::Chained { msg_id, .. }) => {
            let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &msg_id)?;
            Ok(ChainEnd::Through(Some(object)))
        }
        Ok(SendResult::BlockedAuthor { .. }) => Ok(ChainEnd::Unwanted("blocked_author".to_owned())),
        Err(error) => refused(error),
    }
}

fn deliver(
    tx: &mut Tx<'_>,
    letter: &LetterHead,
    keep: &StoreInboundRequest,
    now: Timestamp,
) -> Result<ChainEnd, StoreError> {
    let Some(heard) = letter.heard.filter(|_| letter.made == LetterSourceKind::Inbound) else {
        let what = "message that was heard for";
        return Err(StoreError::Missing { what, key: letter.id.to_string() });
    };
    Ok(match inbound::admit(tx, keep, heard, now)? {
        // What it becomes is known when its window is over.
        StoreInboundResult::Stored | StoreInboundResult::Duplicate => ChainEnd::Through(None),
        StoreInboundResult::Blocked => ChainEnd::Unwanted("blocked_author".to_owned()),
        StoreInboundResult::Dropped => ChainEnd::Unwanted("dropped_stranger".to_owned()),
    })
}

fn dispatch(
    tx: &mut Tx<'_>,
    heard: Option<i64>,
    dispatch: &DispatchRequest,
    now: Timestamp,
) -> Result<ChainEnd, StoreError> {
    let mut dispatch = dispatch.clone();
    if heard.is_some() {
        // It was remembered when the letter came.
        dispatch.external_id = None;
    }
    let dispatched = match center::dispatch(tx, &dispatch, now) {
        Ok(dispatched) => dispatched,
        Err(error) => return refused(error),
    };
    match dispatched.outcome {
        DispatchOutcome::Delivered { .. } | DispatchOutcome::Chained { .. } => {}
        DispatchOutcome::Blocked => return Ok(ChainEnd::Unwanted("blocked_author".to_owned())),
        DispatchOutcome::Dropped => return Ok(ChainEnd::Unwanted("dropped_stranger".to_owned())),
    }
    let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &dispatched.msg_id)?;
    if let Some(heard) = heard {
        let sql = "UPDATE heard SET object = ?2 WHERE seq = ?1";
        let row = params![heard, object];
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    }
    Ok(ChainEnd::Through(Some(object)))
}

/// Sorts what the hub says: what is true of the letter ends it, what is true of the
/// store does not.
fn refused(error: StoreError) -> Result<ChainEnd, StoreError> {
    match error {
        StoreError::UnresolvableTargets(_)
        | StoreError::Expired(_)
        | StoreError::KeyReused(_)
        | StoreError::NoLocalRecipient(_) => Ok(ChainEnd::Refused(error.to_string())),
        other => Err(other),
    }
}

/// Notes what the steps that were taken have booked, each key once. Many letters of one
/// commit have a domain and a tunnel in common.
pub(super) fn book<'s>(
    tx: &Tx<'_>,
    steps: impl Iterator<Item = (&'s PreparedStep, &'s Result<LetterStepResult, StoreError>)>,
) -> Result<(), StoreError> {
    let mut latest: BTreeMap<&str, ReservedUntil> = BTreeMap::new();
    for (step, _) in steps.filter(|(_, answer)| answer.is_ok()) {
        for (key, booked) in &step.advance.reservations {
            latest.insert(key, *booked);
        }
    }
    for (key, booked) in latest {
        let row = params![key, booked];
        tx.db.prepare_cached(BOOK).and_then(|mut s| s.execute(row)).map_err(fault)?;
    }
    Ok(())
}

/// What the event of a step says.
#[derive(Serialize)]
struct LetterEventDetail<'a> {
    letter: LetterId,
    verdicts: &'a [WorkerVerdict],
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    desk: Option<&'a WorkerName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_by: Option<&'a WorkerName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    into: Option<LetterId>,
}

/// Adds an event, if workers said something of the letter or it came to an end.
fn tell(
    tx: &mut Tx<'_>,
    letter: &LetterHead,
    had: &[WorkerVerdict],
    now: Timestamp,
) -> Result<(), StoreError> {
    let state = letter.journey.standing.name();
    if had.is_empty() && matches!(state, LetterState::Waiting | LetterState::Away) {
        return Ok(());
    }
    let detail = LetterEventDetail {
        letter: letter.id,
        verdicts: had,
        state: state.as_str(),
        desk: letter.desk.as_ref(),
        kept_by: letter.kept_by.as_ref(),
        why: letter.failure.as_deref(),
        into: match letter.journey.standing {
            LetterStateData::Merged { into } => Some(into),
            _ => None,
        },
    };
    let about = EventSubject { object: letter.became.or(letter.object), ..EventSubject::default() };
    events::append(tx, EventKind::Verdict, about, &detail, now)
}
