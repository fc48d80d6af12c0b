//! Stores batches of events of providers: messages, edits, recalls and notices, in one commit.

use monoco_core::did::TunnelId;
use monoco_core::event::EventKind;
use monoco_core::inbound::TunnelNotice;
use monoco_core::time::Timestamp;
use serde_json::json;

use super::corrections::{self, Correction, PreparedCorrection};
use super::{InboundCheck, check, files, insert_message};
use crate::sql::events::{self, EventSubject};
use crate::sql::letters::accept::{self, PreparedLetter};
use crate::sql::writer::{Lookups, Tx};
use crate::sql::{SqlStore, contacts, external_ids, require_file};
use crate::{
    AcceptResult, LetterSource, PipelineRouting, StoreError, StoreEventResult, StoreInboundEvent,
    StoreInboundRequest, StoreInboundResult,
};

/// How often an edit is prepared again because its message has moved on meanwhile.
const MAX_ROUNDS: usize = 5;

/// An event with everything that the writer thread needs.
enum PreparedEvent {
    Message(StoreInboundRequest),
    Letter(PreparedLetter),
    Correction(Box<PreparedCorrection>),
    Notice { tunnel: TunnelId, notice: TunnelNotice },
}

/// What the writer thread did with an event.
#[derive(Clone)]
enum StepResult {
    Done(StoreEventResult),
    /// The corrected message has moved on since the event was prepared.
    Stale,
}

impl SqlStore {
    /// Stores a batch. Edits whose message moves on meanwhile are stored by another commit.
    pub(super) async fn store_batch(
        &self,
        batch: Vec<StoreInboundEvent>,
        routing: &PipelineRouting,
        now: Timestamp,
    ) -> Vec<Result<StoreEventResult, StoreError>> {
        let _lock = self.erasing.read().await;
        let mut results: Vec<_> = batch.iter().map(|_| Err(moves_on())).collect();
        let mut open: Vec<(usize, StoreInboundEvent)> = batch.into_iter().enumerate().collect();
        for _ in 0..MAX_ROUNDS {
            let (mut numbers, mut prepared) = (Vec::new(), Vec::new());
            // Corrections can be needed again.
            let mut kept = Vec::new();
            for (number, event) in open {
                let correction = Correction::of(&event).map(|it| (number, it));
                match self.prepare_event(event, routing, now).await {
                    Ok(event) => {
                        numbers.push(number);
                        prepared.push(event);
                        kept.push(correction);
                    }
                    Err(error) => results[number] = Err(error),
                }
            }
            let lookups = lookups(&prepared, now);
            let stored = self.writer.run_each_on(lookups, prepared, move |tx, prepared| {
                tx.each(prepared, |tx, event| apply(tx, event, now))
            });
            open = Vec::new();
            for ((number, correction), result) in numbers.into_iter().zip(kept).zip(stored.await) {
                match result {
                    Ok(StepResult::Done(result)) => results[number] = Ok(result),
                    Ok(StepResult::Stale) => {
                        open.extend(correction.map(|(number, it)| (number, it.into_event())));
                    }
                    Err(error) => results[number] = Err(error),
                }
            }
            if open.is_empty() {
                break;
            }
        }
        results
    }

    async fn prepare_event(
        &self,
        event: StoreInboundEvent,
        routing: &PipelineRouting,
        now: Timestamp,
    ) -> Result<PreparedEvent, StoreError> {
        let has_chain = |tunnel: &TunnelId| routing.applies_to(Some(tunnel));
        Ok(match event {
            StoreInboundEvent::Message(request) if has_chain(&request.tunnel) => {
                let source = LetterSource::Inbound(*request);
                PreparedEvent::Letter(self.prepare_letter(source, now).await?)
            }
            StoreInboundEvent::Message(request) => {
                self.put_attachments(&request, now).await?;
                PreparedEvent::Message(*request)
            }
            StoreInboundEvent::Notice { tunnel, notice } => {
                PreparedEvent::Notice { tunnel, notice }
            }
            StoreInboundEvent::Edit { .. } | StoreInboundEvent::Recall { .. } => {
                let Some(correction) = Correction::of(&event) else { return Err(moves_on()) };
                let has_chain = has_chain(correction.tunnel());
                let prepared = self.prepare_correction(correction, has_chain).await?;
                PreparedEvent::Correction(Box::new(prepared))
            }
        })
    }
}

/// What is looked up to store events.
fn lookups(events: &[PreparedEvent], now: Timestamp) -> Lookups {
    let messages = events.iter().filter_map(|event| match event {
        PreparedEvent::Message(request) => Some(request),
        _ => None,
    });
    let mut lookups = Lookups::of_inbound(messages, now);
    for event in events {
        if let PreparedEvent::Letter(letter) = event {
            lookups.external_ids.extend(letter.external_id());
        }
    }
    lookups
}

fn moves_on() -> StoreError {
    let why = "the corrected message is being processed; try again";
    StoreError::Unavailable(why.to_owned())
}

fn apply(tx: &mut Tx<'_>, event: &PreparedEvent, now: Timestamp) -> Result<StepResult, StoreError> {
    let result = match event {
        PreparedEvent::Message(request) => store_new(tx, request, false, now)?.0,
        PreparedEvent::Letter(letter) => {
            let accepted = accept::accept(tx, letter, &PipelineRouting::default(), now)?;
            StoreEventResult::of_letter(accepted)
        }
        PreparedEvent::Notice { tunnel, notice } => {
            StoreEventResult::without_letter(store_notice(tx, tunnel, notice, now)?)
        }
        PreparedEvent::Correction(correction) => {
            tx.cache.windows.clear();
            return Ok(match corrections::apply(tx, correction, now)? {
                Some(result) => StepResult::Done(result),
                None => StepResult::Stale,
            });
        }
    };
    Ok(StepResult::Done(result))
}

/// Stores a message in its merge window, or as a letter. Returns also the row of its external
/// id, when it is new.
pub(super) fn store_new(
    tx: &mut Tx<'_>,
    request: &StoreInboundRequest,
    has_chain: bool,
    now: Timestamp,
) -> Result<(StoreEventResult, Option<i64>), StoreError> {
    let new = match check(tx, request, now)? {
        InboundCheck::Answered(result) => {
            return Ok((StoreEventResult::without_letter(result), None));
        }
        InboundCheck::New(new) => new,
    };
    for hash in request.message.artifacts.iter().filter_map(|artifact| artifact.hash) {
        require_file(tx, &hash)?;
    }
    let external_id = new.external_id;
    if has_chain {
        let accepted = accept::insert_inbound(tx, request, &new, None, now)?;
        return Ok((StoreEventResult::of_letter(accepted), Some(external_id)));
    }
    if request.message.has_announced_files() {
        let tunnel = contacts::party_id(tx, &request.tunnel.did())?;
        files::announce(tx, tunnel, external_id, &request.message, now)?;
    }
    insert_message(tx, request, external_id, new.policy, now)?;
    let detail = super::event_detail(request);
    super::append_event(tx, EventKind::Received, &new.author, &detail, now)?;
    let result = StoreEventResult::without_letter(StoreInboundResult::Stored);
    Ok((result, Some(external_id)))
}

/// Whether the tunnel has stored this id. If so, an event says so.
pub(super) fn is_repeated(
    tx: &mut Tx<'_>,
    tunnel: &TunnelId,
    id: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let Some(tunnel_id) = contacts::find_party_id(tx, &tunnel.did())? else { return Ok(false) };
    let Some((_, object)) = external_ids::find_in_tx(tx, id, tunnel_id)? else {
        return Ok(false);
    };
    let object = Some(object).filter(|object| *object != 0);
    let subject = EventSubject { object, ..EventSubject::default() };
    let detail = json!({"of": "received", "tunnel": tunnel, "external_id": id});
    events::append(tx, EventKind::Duplicate, subject, &detail, now)?;
    Ok(true)
}

/// Stores a notice in the event log, each id once.
fn store_notice(
    tx: &mut Tx<'_>,
    tunnel: &TunnelId,
    notice: &TunnelNotice,
    now: Timestamp,
) -> Result<StoreInboundResult, StoreError> {
    // Messages and notices of a provider can have the same ids.
    let id = format!("notice:{}", notice.id);
    if is_repeated(tx, tunnel, &id, now)? {
        return Ok(StoreInboundResult::Duplicate);
    }
    contacts::insert_unknown_tunnel(tx, tunnel, now)?;
    let tunnel_id = contacts::party_id(tx, &tunnel.did())?;
    external_ids::insert(tx, tunnel_id, &id, 0)?;
    let owner = match &notice.by {
        Some(by) => {
            let did = by.did(tunnel).map_err(|error| super::damaged_message(&error))?;
            Some(contacts::party_id(tx, &did)?)
        }
        None => None,
    };
    let mut detail = json!({
        "tunnel": tunnel, "external_id": notice.id, "kind": notice.kind, "detail": notice.detail,
    });
    if let Some(session) = &notice.session {
        detail["session"] = json!(session);
    }
    if let Some(at) = notice.at {
        detail["at"] = json!(at.rfc3339());
    }
    let subject = EventSubject { owner, ..EventSubject::default() };
    events::append(tx, EventKind::Notice, subject, &detail, now)?;
    Ok(StoreInboundResult::Stored)
}

impl StoreEventResult {
    fn without_letter(result: StoreInboundResult) -> Self {
        Self { result, letter: None }
    }

    fn of_letter(accepted: AcceptResult) -> Self {
        match accepted {
            AcceptResult::Letter { id, duplicate: false, .. } => {
                Self { result: StoreInboundResult::Stored, letter: Some(id) }
            }
            AcceptResult::Inbound(result) => Self::without_letter(result),
            _ => Self::without_letter(StoreInboundResult::Duplicate),
        }
    }
}
