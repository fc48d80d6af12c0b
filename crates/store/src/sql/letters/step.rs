//! One step of a letter, with everything that it leads to.

use std::collections::BTreeMap;

use monoco_core::event::EventKind;
use monoco_core::letter::{LetterId, LetterState, LetterStateData, WorkerName, WorkerVerdict};
use monoco_core::rate_limit::ReservedUntil;
use monoco_core::record::InvalidTransition;
use monoco_core::time::Timestamp;
use serde::Serialize;

use super::rows::{self, LetterHead};
use super::texts::{self, StoredText};
use crate::sql::db::{Db, params};
use crate::sql::events::{self, EventSubject};
use crate::sql::rows as sql;
use crate::sql::writer::Tx;
use crate::sql::{SqlStore, dispatch, duties, external_ids, inbound, objects, send};
use crate::{
    DispatchOutcome, DispatchRequest, LetterSourceKind, LetterStep, LetterStepResult, NextAction,
    SendRequest, SendResult, StoreError, StoreInboundRequest, StoreInboundResult, StoreResult,
};

const PUT_RESERVATION: &str = "
    INSERT INTO reservations (key, reserved_until)
    VALUES (?1, ?2)
        ON CONFLICT (key) DO UPDATE SET reserved_until = excluded.reserved_until
";

/// A step with the serialised text of the letter.
pub(super) struct PreparedStep {
    step: LetterStep,
    change: Option<StoredText>,
}

impl SqlStore {
    /// Serialises the letter of a step and writes large texts to files.
    pub(super) async fn prepare_step(&self, step: LetterStep) -> StoreResult<PreparedStep> {
        let text = match &step.letter {
            Some(letter) if step.in_object => Some(texts::letter_text_without_data(letter)?),
            Some(letter) => Some(texts::letter_text(letter)?),
            None => None,
        };
        let msg = match &step.then {
            NextAction::Send(request) => Some(&request.msg),
            NextAction::Dispatch(request) => Some(&request.msg),
            _ => None,
        };
        let is_large = |text: &str| text.len() > objects::MAX_INLINE_BYTES;
        if text.as_deref().is_some_and(is_large) || msg.is_some_and(|msg| is_large(msg.canonical()))
        {
            // The step of a letter that was erased meanwhile must leave no file. It is rejected
            // when it is applied.
            let (id, revision) = (step.id, step.revision);
            match self.read(move |db| find_unchanged(db, id, revision).map(drop)).await {
                Err(StoreError::Conflict { .. } | StoreError::Missing { .. }) => {
                    return Ok(PreparedStep { step, change: None });
                }
                unchanged => unchanged?,
            }
        }
        if let Some(msg) = msg {
            self.put_large_message(msg).await?;
        }
        let change = match text {
            Some(text) if step.in_object => Some(StoredText::Inline(text)),
            Some(text) => Some(self.put_text(text).await?),
            None => None,
        };
        Ok(PreparedStep { step, change })
    }
}

/// The rows of the letters that some steps read.
pub(super) fn rows_of(steps: &[PreparedStep]) -> Vec<i64> {
    let of_step = |PreparedStep { step, .. }: &PreparedStep| {
        let joined = step.joins.iter().map(|(id, _)| id.seq);
        joined.chain([step.id.seq]).collect::<Vec<_>>()
    };
    steps.iter().flat_map(of_step).collect()
}

pub(super) fn apply(
    tx: &mut Tx<'_>,
    prepared: &PreparedStep,
    now: Timestamp,
) -> StoreResult<LetterStepResult> {
    let PreparedStep { step, change } = prepared;
    if let Some(duty) = &step.duty {
        duties::check(tx, duty)?;
    }
    let before = rows::find_in_tx(tx, step.id)?;
    sql::check_revision("the letter", Some(step.revision), before.revision)?;
    let joined = join_letters(tx, step.id, &step.joins)?;
    let mut after = before.clone();
    let rejected = act(tx, &mut after, &step.then, now)?;
    // If the end of the chain was rejected, the verdict of the last worker does not count, so
    // that this worker runs again when the letter is retried.
    let verdicts = match step.verdicts.split_last() {
        Some((_, earlier)) if rejected => earlier,
        _ => &step.verdicts,
    };
    after.verdicts.extend_from_slice(verdicts);
    let revision = rows::save(tx, &before, &after, now)?;
    match (change, &step.letter) {
        // The message that was to contain the letter's data was not sent.
        (Some(_), Some(letter)) if step.in_object && after.became.is_none() => {
            let text = StoredText::Inline(texts::letter_text(letter)?);
            rows::put_change(tx, step.id, &text)?;
        }
        (Some(text), _) => rows::put_change(tx, step.id, text)?,
        (None, _) => {}
    }
    for (before, after) in &joined {
        rows::save(tx, before, after, now)?;
        append_event(tx, after, &[], now)?;
    }
    append_event(tx, &after, verdicts, now)?;
    Ok(LetterStepResult { state: after.status.standing.name(), revision })
}

/// Returns a letter that still has this revision.
fn find_unchanged(db: &Db, id: LetterId, revision: i64) -> StoreResult<LetterHead> {
    let head = rows::find(db, id)?;
    sql::check_revision("the letter", Some(revision), head.revision)?;
    Ok(head)
}

/// Prepares the letters that are merged into `into`. Returns each before and after.
fn join_letters(
    tx: &mut Tx<'_>,
    into: LetterId,
    joins: &[(LetterId, i64)],
) -> StoreResult<Vec<(LetterHead, LetterHead)>> {
    let mut joined = Vec::with_capacity(joins.len());
    for (id, revision) in joins {
        let before = rows::find_in_tx(tx, *id)?;
        sql::check_revision("the letter", Some(*revision), before.revision)?;
        let status = before.status.clone().join(into)?;
        if *id == into {
            let (from, to) = (LetterState::Waiting.as_str(), LetterState::Merged.as_str());
            return Err(InvalidTransition { from, to }.into());
        }
        let mut after = before.clone();
        after.finish(status);
        joined.push((before, after));
    }
    Ok(joined)
}

/// Performs the next action of a letter. Returns whether the end of its chain was rejected.
fn act(
    tx: &mut Tx<'_>,
    letter: &mut LetterHead,
    then: &NextAction,
    now: Timestamp,
) -> StoreResult<bool> {
    let status = letter.status.clone();
    match then {
        NextAction::Wait { worker, due } => {
            letter.finish(status.continue_chain(*due)?);
            letter.worker.clone_from(worker);
        }
        NextAction::Hold { by, key, due } => {
            letter.finish(status.continue_chain(*due)?);
            letter.held_by = Some(by.clone());
            letter.hold_key.clone_from(key);
        }
        NextAction::HandOver { until, holder } => {
            if letter.worker.is_none() {
                let (from, to) = (status.standing.name().as_str(), LetterState::Away.as_str());
                return Err(InvalidTransition { from, to }.into());
            }
            letter.status = status.hand_over(now, *until)?;
            letter.holder.clone_from(holder);
        }
        NextAction::Return { due, tried, why } => {
            letter.status = status.return_to_queue(*due, *tried)?;
            letter.failure = Some(why.clone());
        }
        NextAction::Trash { why } => letter.finish(status.trash(why.clone())?),
        NextAction::MarkDead { why } => {
            let worker = letter.worker.clone();
            letter.finish(status.mark_dead(why.clone())?);
            letter.worker = worker;
        }
        NextAction::Send(_) | NextAction::Deliver(_) | NextAction::Dispatch(_) => {
            let done = status.clone().finish()?;
            let end = match then {
                NextAction::Send(request) => end_with_send(tx, letter.source, request, now)?,
                NextAction::Deliver(request) => end_with_inbound(tx, letter, request, now)?,
                NextAction::Dispatch(request) => {
                    end_with_dispatch(tx, letter.external_id, request, now)?
                }
                _ => ChainEnd::Done(None),
            };
            match end {
                ChainEnd::Done(object) => {
                    letter.finish(done);
                    letter.became = object;
                }
                ChainEnd::Blocked(why) => letter.finish(status.trash(why)?),
                ChainEnd::Rejected(why) => letter.finish(status.mark_dead(why)?),
            }
            return Ok(letter.status.standing.name() != LetterState::Done);
        }
    }
    Ok(false)
}

/// Result of the end of a chain.
enum ChainEnd {
    /// The letter became the object of this row, if it is known already.
    Done(Option<i64>),
    /// The author is blocked or dropped; the letter is trashed.
    Blocked(String),
    /// The message cannot be sent; the letter is dead.
    Rejected(String),
}

fn end_with_send(
    tx: &mut Tx<'_>,
    source: LetterSourceKind,
    request: &SendRequest,
    now: Timestamp,
) -> StoreResult<ChainEnd> {
    // The idempotency key of a send belongs to the original message.
    let without_key = (source == LetterSourceKind::Send && request.key.is_some())
        .then(|| SendRequest { key: None, ..request.clone() });
    match send::send(tx, without_key.as_ref().unwrap_or(request), now) {
        Ok(
            SendResult::Queued { msg_id, .. }
            | SendResult::Held { msg_id, .. }
            | SendResult::Chained { msg_id, .. },
        ) => {
            let object = objects::seq_of(tx.db, tx.indexes.hashes.recent(), &msg_id)?;
            Ok(ChainEnd::Done(Some(object)))
        }
        Ok(SendResult::BlockedAuthor { .. }) => Ok(ChainEnd::Blocked("blocked_author".to_owned())),
        Err(error) => rejected(error),
    }
}

fn end_with_inbound(
    tx: &mut Tx<'_>,
    letter: &LetterHead,
    request: &StoreInboundRequest,
    now: Timestamp,
) -> StoreResult<ChainEnd> {
    let external_id = letter.external_id.filter(|_| letter.source == LetterSourceKind::Inbound);
    let Some(external_id) = external_id else {
        let what = "inbound message for";
        return Err(StoreError::Missing { what, key: letter.id.to_string() });
    };
    Ok(match inbound::store_checked(tx, request, external_id, now)? {
        // The message it becomes is known when the window is merged.
        StoreInboundResult::Stored | StoreInboundResult::Duplicate => ChainEnd::Done(None),
        StoreInboundResult::Blocked => ChainEnd::Blocked("blocked_author".to_owned()),
        StoreInboundResult::Dropped => ChainEnd::Blocked("dropped_stranger".to_owned()),
    })
}

fn end_with_dispatch(
    tx: &mut Tx<'_>,
    external_id: Option<i64>,
    request: &DispatchRequest,
    now: Timestamp,
) -> StoreResult<ChainEnd> {
    let mut request = request.clone();
    if external_id.is_some() {
        // It was stored when the letter was accepted.
        request.external_id = None;
    }
    let result = match dispatch::dispatch(tx, &request, now) {
        Ok(result) => result,
        Err(error) => return rejected(error),
    };
    match result.outcome {
        DispatchOutcome::Delivered { .. } | DispatchOutcome::Chained { .. } => {}
        DispatchOutcome::Blocked => return Ok(ChainEnd::Blocked("blocked_author".to_owned())),
        DispatchOutcome::Dropped => return Ok(ChainEnd::Blocked("dropped_stranger".to_owned())),
    }
    let object = objects::seq_of(tx.db, tx.indexes.hashes.recent(), &result.msg_id)?;
    if let Some(external_id) = external_id {
        external_ids::set_object(tx, external_id, object)?;
    }
    Ok(ChainEnd::Done(Some(object)))
}

/// Separates errors of the letter, which end it, from errors of the store.
fn rejected(error: StoreError) -> StoreResult<ChainEnd> {
    match error {
        StoreError::UnresolvableTargets(_)
        | StoreError::Expired(_)
        | StoreError::KeyReused(_)
        | StoreError::Refused { .. }
        | StoreError::Erased { .. }
        | StoreError::NoLocalRecipient(_) => Ok(ChainEnd::Rejected(error.to_string())),
        other => Err(other),
    }
}

/// Stores the reservations of successful steps, each key once. Many letters of one commit have a
/// domain and a tunnel in common.
pub(super) fn put_reservations<'s>(
    tx: &Tx<'_>,
    steps: impl Iterator<Item = (&'s PreparedStep, &'s StoreResult<LetterStepResult>)>,
) -> StoreResult<()> {
    let mut latest: BTreeMap<&str, ReservedUntil> = BTreeMap::new();
    for (prepared, _) in steps.filter(|(_, result)| result.is_ok()) {
        for (key, until) in &prepared.step.reservations {
            latest.insert(key, *until);
        }
    }
    for (key, until) in latest {
        sql::execute(tx.db, PUT_RESERVATION, params![key, until])?;
    }
    Ok(())
}

/// Detail of the event of a step.
#[derive(Serialize)]
struct LetterEventDetail<'a> {
    letter: LetterId,
    verdicts: &'a [WorkerVerdict],
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    worker: Option<&'a WorkerName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<&'a WorkerName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    into: Option<LetterId>,
}

/// Appends an event if there are new verdicts or the letter has ended.
fn append_event(
    tx: &mut Tx<'_>,
    letter: &LetterHead,
    verdicts: &[WorkerVerdict],
    now: Timestamp,
) -> StoreResult<()> {
    let state = letter.status.standing.name();
    if verdicts.is_empty() && matches!(state, LetterState::Waiting | LetterState::Away) {
        return Ok(());
    }
    let detail = LetterEventDetail {
        letter: letter.id,
        verdicts,
        state: state.as_str(),
        worker: letter.worker.as_ref(),
        held_by: letter.held_by.as_ref(),
        why: letter.failure.as_deref(),
        into: match letter.status.standing {
            LetterStateData::Merged { into } => Some(into),
            _ => None,
        },
    };
    let object = letter.became.or(letter.object);
    let subject = EventSubject { object, ..EventSubject::default() };
    events::append(tx, EventKind::Verdict, subject, &detail, now)
}
