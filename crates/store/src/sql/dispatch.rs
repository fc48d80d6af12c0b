//! Dispatch: puts a message into the boxes of its local recipients, in one transaction.

use monoco_core::event::EventKind;
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::InvalidTransition;
use monoco_core::routing::{Placement, Routing, route};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::events::{self, EventSubject};
use super::records::NewRecord;
use super::writer::Tx;
use super::{address_book, contacts, external_ids, objects, records};
use crate::{CreatedRecord, DispatchOutcome, DispatchRequest, DispatchResult, StoreResult};

/// Result of checking a message before it is dispatched.
pub(super) enum DispatchCheck {
    /// A duplicate, or a message of a blocked or dropped author.
    Answered(DispatchResult),
    /// A new message with recipients here.
    New(ResolvedDispatch),
}

/// A new message and the boxes that it goes to.
pub(super) struct ResolvedDispatch {
    /// The row of its object, if it is stored already.
    pub(super) known: Option<i64>,
    placements: Vec<Placement>,
}

/// Puts a message into its boxes, unless it is a duplicate or rejected.
pub(super) fn dispatch(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    now: Timestamp,
) -> StoreResult<DispatchResult> {
    dispatch_mail(tx, request, false, now)
}

/// Puts a Mail into its boxes. With `unverified`, its author is treated as a stranger.
pub(super) fn dispatch_mail(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    unverified: bool,
    now: Timestamp,
) -> StoreResult<DispatchResult> {
    match check_author(tx, request, unverified, now)? {
        DispatchCheck::Answered(result) => Ok(result),
        DispatchCheck::New(resolved) => insert_records(tx, request, resolved, now),
    }
}

/// Checks a message. The message itself is not stored.
pub(super) fn check(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    now: Timestamp,
) -> StoreResult<DispatchCheck> {
    check_author(tx, request, false, now)
}

fn check_author(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    unverified: bool,
    now: Timestamp,
) -> StoreResult<DispatchCheck> {
    let DispatchRequest { msg, tunnel, .. } = request;
    // The external id is checked before the content, because a repeated message can have
    // been edited meanwhile.
    if let Some((_, object)) = find_external_id(tx, request)? {
        if object == 0 {
            return Err(InvalidTransition { from: "KEPT", to: "DISPATCHED" }.into());
        }
        let first = objects::id_of(tx.db, object)?;
        let records = records::created(tx.db, object, &first)?;
        return duplicate(tx, object, first, records, now).map(DispatchCheck::Answered);
    }
    let assumed = objects::find_before_insert(tx, &msg.id())?;
    if let Some(answer) = check_known(tx, request, assumed, now)? {
        return Ok(answer);
    }
    let mut book = address_book::of_message(tx, msg, tunnel.as_ref())?;
    if unverified {
        book.distrust(msg.author());
    }
    let routing = route(msg, tunnel.as_ref(), &book);
    if let Ok(Routing::Deliver(placements)) = routing {
        return Ok(DispatchCheck::New(ResolvedDispatch { known: assumed, placements }));
    }
    // No insert follows, so that nothing may be assumed.
    let known = objects::find_in_tx(tx, &msg.id())?;
    if let Some(answer) = check_known(tx, request, known, now)? {
        return Ok(answer);
    }
    let (kind, outcome) = match routing? {
        Routing::Dropped => (EventKind::Dropped, DispatchOutcome::Dropped),
        _ => (EventKind::Blocked, DispatchOutcome::Blocked),
    };
    // The object is not stored, so that the message is accepted later if the operator lets
    // its author in.
    append_rejection(tx, kind, msg, now)?;
    Ok(DispatchCheck::Answered(DispatchResult { msg_id: msg.id(), outcome }))
}

/// Answers a message whose object `known` has records already.
fn check_known(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    known: Option<i64>,
    now: Timestamp,
) -> StoreResult<Option<DispatchCheck>> {
    let Some(object) = known else { return Ok(None) };
    let msg_id = request.msg.id();
    let records = records::created(tx.db, object, &msg_id)?;
    if records.is_empty() {
        return Ok(None);
    }
    insert_external_id(tx, request, object, now)?;
    duplicate(tx, object, msg_id, records, now).map(|result| Some(DispatchCheck::Answered(result)))
}

/// Finds the external id of a message: its row and the row of the object that it became.
pub(super) fn find_external_id(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
) -> StoreResult<Option<(i64, i64)>> {
    let DispatchRequest { tunnel: Some(tunnel), external_id: Some(external_id), .. } = request
    else {
        return Ok(None);
    };
    let Some(tunnel) = contacts::find_party_id(tx, &tunnel.did())? else { return Ok(None) };
    external_ids::find_in_tx(tx, external_id, tunnel)
}

fn insert_records(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    resolved: ResolvedDispatch,
    now: Timestamp,
) -> StoreResult<DispatchResult> {
    let DispatchRequest { msg, tunnel, external_id } = request;
    let object = objects::insert_message(tx, resolved.known, msg)?;
    let (tunnel_id, _) = insert_external_id(tx, request, object, now)?;
    let thread_key = records::thread_key(msg);
    let new = NewRecord { object, msg_id: &msg.id(), tunnel: tunnel_id, thread_key };
    let mut records = Vec::with_capacity(resolved.placements.len());
    for placement in &resolved.placements {
        records.push(records::insert(tx, &new, placement, now)?);
    }
    let owners: Vec<_> = records.iter().map(|record| &record.owner).collect();
    let mut detail = json!({"to": owners});
    if let Some(tunnel) = tunnel {
        detail["tunnel"] = json!(tunnel);
    }
    if let Some(external_id) = external_id {
        detail["external_id"] = json!(external_id);
    }
    let author = contacts::party_id(tx, msg.author())?;
    let subject = EventSubject { object: Some(object), record: None, owner: Some(author) };
    events::append(tx, EventKind::Dispatched, subject, &detail, now)?;
    let outcome = DispatchOutcome::Delivered { duplicate: false, records };
    Ok(DispatchResult { msg_id: msg.id(), outcome })
}

/// Stores the tunnel and the external id of a message. Returns the party of the tunnel and the
/// row of the external id.
pub(super) fn insert_external_id(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    object: i64,
    now: Timestamp,
) -> StoreResult<(Option<i64>, Option<i64>)> {
    let Some(tunnel) = &request.tunnel else { return Ok((None, None)) };
    contacts::insert_unknown_tunnel(tx, tunnel, now)?;
    let tunnel = contacts::party_id(tx, &tunnel.did())?;
    let external_id = match &request.external_id {
        Some(external_id) => Some(external_ids::insert(tx, tunnel, external_id, object)?),
        None => None,
    };
    Ok((Some(tunnel), external_id))
}

fn duplicate(
    tx: &mut Tx<'_>,
    object: i64,
    msg_id: ObjId,
    records: Vec<CreatedRecord>,
    now: Timestamp,
) -> StoreResult<DispatchResult> {
    let subject = EventSubject { object: Some(object), ..EventSubject::default() };
    events::append(tx, EventKind::Duplicate, subject, &json!({"of": "dispatch"}), now)?;
    let outcome = DispatchOutcome::Delivered { duplicate: true, records };
    Ok(DispatchResult { msg_id, outcome })
}

/// Appends an event about a message that is not stored.
pub(super) fn append_rejection(
    tx: &mut Tx<'_>,
    kind: EventKind,
    msg: &MsgObject,
    now: Timestamp,
) -> StoreResult<()> {
    let author = contacts::party_id(tx, msg.author())?;
    let subject = EventSubject { owner: Some(author), ..EventSubject::default() };
    events::append(tx, kind, subject, &json!({"msg_id": msg.id(), "to": msg.to}), now)
}
