//! What happens to a message that comes in or goes out, in one transaction each.

use monoco_core::contact::{AddressBook, DeliveryPlans, plan_delivery};
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::{BoxKind, InvalidTransition, RecordId};
use monoco_core::routing::{Placement, Routing, place_here, route};
use monoco_core::time::Timestamp;
use rusqlite::{OptionalExtension, params};
use serde_json::json;

use super::events::{self, EventSubject};
use super::open::fault;
use super::records::NewRecord;
use super::writer::Tx;
use super::{contacts, deliveries, objects, records};
use crate::{
    CreatedRecord, DispatchOutcome, DispatchRequest, DispatchResult, SendRequest, SendResult,
    StoreError, TargetResult,
};

/// What a message that comes in comes to.
pub(super) enum DispatchCheck {
    /// It is dealt with: it came before, or its author is not wanted.
    Answered(DispatchResult),
    /// It belongs into boxes.
    New(ResolvedDispatch),
}

/// A message that comes in, and where it belongs.
pub(super) struct ResolvedDispatch {
    /// The row of its object, if it has one.
    pub(super) known: Option<i64>,
    placements: Vec<Placement>,
}

/// Puts a message that came in into its boxes.
pub(super) fn dispatch(
    tx: &mut Tx<'_>,
    dispatch: &DispatchRequest,
    now: Timestamp,
) -> Result<DispatchResult, StoreError> {
    match receive(tx, dispatch, now)? {
        DispatchCheck::Answered(answer) => Ok(answer),
        DispatchCheck::New(arrival) => place(tx, dispatch, arrival, now),
    }
}

/// Looks at a message that comes in. Nothing of it is kept yet.
pub(super) fn receive(
    tx: &mut Tx<'_>,
    dispatch: &DispatchRequest,
    now: Timestamp,
) -> Result<DispatchCheck, StoreError> {
    let DispatchRequest { msg, tunnel, .. } = dispatch;
    // The provider's name for it comes before its content: what is repeated may
    // have been edited meanwhile.
    if let Some((_, object)) = heard_before(tx, dispatch)? {
        if object == 0 {
            return Err(InvalidTransition { from: "KEPT", to: "DISPATCHED" }.into());
        }
        let (first, _) = objects::body(tx.db, object)?;
        let records = records::placed(tx.db, object, &first)?;
        return again(tx, object, first, records, now).map(DispatchCheck::Answered);
    }
    let known = objects::find(tx.db, tx.indexes.hashes.recent(), &msg.id())?;
    if let Some(object) = known
        && let records = records::placed(tx.db, object, &msg.id())?
        && !records.is_empty()
    {
        remember(tx, dispatch, object, now)?;
        return again(tx, object, msg.id(), records, now).map(DispatchCheck::Answered);
    }

    let book = contacts::book(tx, msg, tunnel.as_ref())?;
    let (kind, outcome) = match route(msg, tunnel.as_ref(), &book)? {
        Routing::Deliver(placements) => {
            return Ok(DispatchCheck::New(ResolvedDispatch { known, placements }));
        }
        Routing::Blocked => (EventKind::Blocked, DispatchOutcome::Blocked),
        Routing::Dropped => (EventKind::Dropped, DispatchOutcome::Dropped),
    };
    // Neither is remembered: the object is not kept, so that it gets through once its
    // author is welcome.
    refuse(tx, kind, msg, now)?;
    Ok(DispatchCheck::Answered(DispatchResult { msg_id: msg.id(), outcome }))
}

/// What the external id of a message stands for, if it was heard: the row of that, and
/// of the object it became.
pub(super) fn heard_before(
    tx: &mut Tx<'_>,
    dispatch: &DispatchRequest,
) -> Result<Option<(i64, i64)>, StoreError> {
    let DispatchRequest { tunnel: Some(tunnel), external_id: Some(external_id), .. } = dispatch
    else {
        return Ok(None);
    };
    let Some(tunnel) = contacts::peek(tx, &tunnel.did())? else { return Ok(None) };
    events::heard(tx.db, tx.indexes.heard.recent(), external_id, Some(tunnel))
}

fn place(
    tx: &mut Tx<'_>,
    dispatch: &DispatchRequest,
    arrival: ResolvedDispatch,
    now: Timestamp,
) -> Result<DispatchResult, StoreError> {
    let DispatchRequest { msg, tunnel, external_id } = dispatch;
    let object = keep(tx, arrival.known, msg)?;
    let through = remember(tx, dispatch, object, now)?;
    let subject = NewRecord { object, msg_id: &msg.id(), tunnel: through };
    let mut records = Vec::with_capacity(arrival.placements.len());
    for placement in &arrival.placements {
        records.push(records::place(tx, &subject, placement, now)?);
    }
    let owners: Vec<_> = records.iter().map(|placed| &placed.owner).collect();
    let mut detail = json!({"to": owners});
    if let Some(tunnel) = tunnel {
        detail["tunnel"] = json!(tunnel);
    }
    if let Some(external_id) = external_id {
        detail["external_id"] = json!(external_id);
    }
    let author = contacts::row_of(tx, msg.author())?;
    let about = EventSubject { object: Some(object), record: None, owner: Some(author) };
    events::append(tx, EventKind::Dispatched, about, &detail, now)?;
    let outcome = DispatchOutcome::Delivered { duplicate: false, records };
    Ok(DispatchResult { msg_id: msg.id(), outcome })
}

/// Remembers which message the external id became. Returns the row of the tunnel.
fn remember(
    tx: &mut Tx<'_>,
    dispatch: &DispatchRequest,
    object: i64,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    let Some(tunnel) = &dispatch.tunnel else { return Ok(None) };
    contacts::heard_from(tx, tunnel, now)?;
    let through = contacts::row_of(tx, &tunnel.did())?;
    if let Some(external_id) = &dispatch.external_id {
        events::hear(tx, through, external_id, object)?;
    }
    Ok(Some(through))
}

fn again(
    tx: &mut Tx<'_>,
    object: i64,
    msg_id: ObjId,
    records: Vec<CreatedRecord>,
    now: Timestamp,
) -> Result<DispatchResult, StoreError> {
    let about = EventSubject { object: Some(object), ..EventSubject::default() };
    events::append(tx, EventKind::Duplicate, about, &json!({"of": "dispatch"}), now)?;
    let outcome = DispatchOutcome::Delivered { duplicate: true, records };
    Ok(DispatchResult { msg_id, outcome })
}

fn refuse(
    tx: &mut Tx<'_>,
    kind: EventKind,
    msg: &MsgObject,
    now: Timestamp,
) -> Result<(), StoreError> {
    let author = contacts::row_of(tx, msg.author())?;
    let about = EventSubject { owner: Some(author), ..EventSubject::default() };
    events::append(tx, kind, about, &json!({"msg_id": msg.id(), "to": msg.to}), now)
}

/// Stores a message, unless it is. Returns its row.
pub(super) fn keep(
    tx: &mut Tx<'_>,
    known: Option<i64>,
    msg: &MsgObject,
) -> Result<i64, StoreError> {
    if let Some(object) = known {
        return Ok(object);
    }
    // A larger one is a file already, see `SqliteStore::keep_large`.
    let body = Some(msg.canonical()).filter(|body| body.len() <= objects::INLINE);
    objects::insert(tx, &msg.id(), body)
}

/// What a message that goes out comes to.
pub(super) enum SendCheck {
    /// It is dealt with: it went before, or its author is blocked.
    Answered(SendResult),
    /// Every target can be reached.
    Ready(ResolvedSend),
}

/// A message that goes out, and its ways.
pub(super) struct ResolvedSend {
    /// How its targets are reached.
    pub(super) plans: DeliveryPlans,
    book: AddressBook,
}

/// Puts a message on its way to every target, or to none.
pub(super) fn post(
    tx: &mut Tx<'_>,
    post: &SendRequest,
    now: Timestamp,
) -> Result<SendResult, StoreError> {
    let known = known(tx, post)?;
    match prepare(tx, post, known, now)? {
        SendCheck::Answered(answer) => Ok(answer),
        SendCheck::Ready(departure) => send(tx, post, known, departure, now),
    }
}

/// The row of a message's object, if it has one. Its key must not stand for another.
pub(super) fn known(tx: &Tx<'_>, post: &SendRequest) -> Result<Option<i64>, StoreError> {
    let known = objects::find(tx.db, tx.indexes.hashes.recent(), &post.msg.id())?;
    if let Some(key) = &post.key
        && let Some(object) = find_key(tx, key)?
        && Some(object) != known
    {
        return Err(StoreError::KeyReused(objects::body(tx.db, object)?.0.to_string()));
    }
    Ok(known)
}

/// Looks at a message that goes out. Nothing of it is kept yet.
pub(super) fn prepare(
    tx: &mut Tx<'_>,
    post: &SendRequest,
    known: Option<i64>,
    now: Timestamp,
) -> Result<SendCheck, StoreError> {
    let msg = &post.msg;
    let outbox = RecordId::record(msg.author(), BoxKind::Outbox, &msg.id());
    if let Some(object) = known
        && records::by_id(tx.db, tx.indexes.hashes.recent(), &outbox).is_ok()
    {
        let about = EventSubject { object: Some(object), ..EventSubject::default() };
        events::append(tx, EventKind::Duplicate, about, &json!({"of": "post_send"}), now)?;
        let ways = ways_of(tx, object, msg)?;
        let posted = SendResult::Queued { msg_id: msg.id(), duplicate: true, ways };
        return Ok(SendCheck::Answered(posted));
    }
    if let Some(at) = msg.expires_at.filter(|_| msg.expired(now)) {
        return Err(StoreError::Expired(at));
    }
    let book = contacts::book(tx, msg, None)?;
    if book.blocks(msg.author()) {
        refuse(tx, EventKind::Blocked, msg, now)?;
        return Ok(SendCheck::Answered(SendResult::BlockedAuthor { msg_id: msg.id() }));
    }
    let plans = plan_delivery(msg, &book)?;
    Ok(SendCheck::Ready(ResolvedSend { plans, book }))
}

/// Remembers which message a key stands for.
pub(super) fn remember_key(tx: &Tx<'_>, key: &str, object: i64) -> Result<(), StoreError> {
    let sql = "INSERT INTO keys (key, object) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(params![key, object])).map_err(fault)?;
    Ok(())
}

/// Puts a message on its way that every target can be reached with.
pub(super) fn send(
    tx: &mut Tx<'_>,
    post: &SendRequest,
    known: Option<i64>,
    departure: ResolvedSend,
    now: Timestamp,
) -> Result<SendResult, StoreError> {
    let (SendRequest { msg, key, not_before }, ResolvedSend { plans, book }) = (post, departure);
    let before = match known {
        Some(object) => records::placed(tx.db, object, &msg.id())?,
        None => Vec::new(),
    };
    let object = keep(tx, known, msg)?;
    if let Some(key) = key {
        remember_key(tx, key, object)?;
    }
    let author = contacts::row_of(tx, msg.author())?;
    let msg_id = msg.id();
    let subject = NewRecord { object, msg_id: &msg_id, tunnel: None };
    let peers: Vec<Did> =
        plans.remote.iter().map(|plan| &plan.target_did).chain(&plans.local).cloned().collect();
    let first = peers.first().unwrap_or(&msg.from).clone();
    let own = Placement {
        owner: msg.author().clone(),
        box_kind: BoxKind::Outbox,
        session: first,
        group: None,
    };
    records::place_outbox(tx, &subject, &own, &peers, now)?;

    let mut ways = Vec::with_capacity(peers.len());
    for plan in plans.remote {
        let due = not_before.unwrap_or(now).max(now);
        let id = deliveries::insert(tx, object, &msg_id, author, &plan, due, now)?;
        ways.push(TargetResult {
            target: plan.target_did.clone(),
            record_id: Some(id),
            plan: Some(plan),
        });
    }
    for target in plans.local {
        if book.is_block(msg.author(), &target) {
            // It may have come in before the target blocked its author.
            let record_id = record_of(&before, &target);
            ways.push(TargetResult { target, record_id, plan: None });
            continue;
        }
        let mut placements = Vec::new();
        place_here(&target, msg.author(), BoxKind::Inbox, &book, &mut placements);
        let mut record_id = None;
        for placement in &placements {
            let placed = records::place(tx, &subject, placement, now)?;
            record_id = record_id.or(Some(placed.record_id));
        }
        ways.push(TargetResult { target, record_id, plan: None });
    }
    let targets: Vec<_> = ways.iter().map(|way| &way.target).collect();
    let outbox = RecordId::record(msg.author(), BoxKind::Outbox, &msg_id);
    let about = EventSubject { object: Some(object), record: Some(outbox), owner: Some(author) };
    events::append(tx, EventKind::Posted, about, &json!({"to": targets}), now)?;
    Ok(SendResult::Queued { msg_id, duplicate: false, ways })
}

fn find_key(tx: &Tx<'_>, key: &str) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT object FROM keys WHERE key = ?1";
    tx.db
        .prepare_cached(sql)
        .and_then(|mut s| s.query_row([key], |row| row.get(0)).optional())
        .map_err(fault)
}

/// The record in a box of `target`, which lives here.
fn record_of(here: &[CreatedRecord], target: &Did) -> Option<RecordId> {
    here.iter().find(|placed| placed.owner == *target).map(|placed| placed.record_id)
}

/// The answer that the first caller got.
fn ways_of(tx: &Tx<'_>, object: i64, msg: &MsgObject) -> Result<Vec<TargetResult>, StoreError> {
    let away = deliveries::of_object(tx.db, object, monoco_core::object::MAX_TARGETS)?;
    let mut ways: Vec<TargetResult> = away
        .into_iter()
        .map(|delivery| TargetResult {
            target: delivery.plan.target_did.clone(),
            record_id: Some(delivery.id),
            plan: Some(delivery.plan),
        })
        .collect();
    let here = records::placed(tx.db, object, &msg.id())?;
    for target in &msg.to {
        if ways.iter().any(|way| way.target == *target) {
            continue;
        }
        let record_id = record_of(&here, target);
        ways.push(TargetResult { target: target.clone(), record_id, plan: None });
    }
    Ok(ways)
}
