//! Send: queues a message for all of its targets, in one transaction.

use monoco_core::contact::{AddressBook, DeliveryPlans, plan_delivery};
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::letter::{LetterId, LetterStateData};
use monoco_core::object::{MAX_TARGETS, MsgObject};
use monoco_core::record::{BoxKind, RecordId};
use monoco_core::routing::{Placement, place_local};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::db::{Db, params};
use super::events::{self, EventSubject};
use super::records::NewRecord;
use super::writer::Tx;
use super::{address_book, contacts, deliveries, dispatch, letters, objects, records, rows};
use crate::{
    CreatedRecord, LetterSourceKind, SendRequest, SendResult, StoreError, StoreResult, TargetResult,
};

/// How many merged letters are followed, one after the other.
const MAX_MERGES: usize = 100;

/// What became of a message that was sent, or accepted into the outbound chain.
pub(super) enum SendProgress {
    /// A letter that waits or is at a worker.
    InChain,
    /// A letter that a worker or an operator trashed.
    Trashed { letter: LetterId, why: String },
    /// A letter that failed.
    Dead { letter: LetterId, why: String },
    /// This object is queued for the targets: the message, or what its letter became.
    Queued(i64),
}

/// Follows a message through the outbound chain.
pub(super) fn follow(db: &Db, mut object: i64) -> StoreResult<SendProgress> {
    let mut letter = letters::accept::of_object(db, object, LetterSourceKind::Send)?;
    for _ in 0..MAX_MERGES {
        let Some(head) = letter else { break };
        let id = head.id;
        match head.status.standing {
            LetterStateData::Waiting { .. } | LetterStateData::Away { .. } => {
                return Ok(SendProgress::InChain);
            }
            LetterStateData::Trashed { why } => {
                return Ok(SendProgress::Trashed { letter: id, why });
            }
            LetterStateData::Dead { why } => return Ok(SendProgress::Dead { letter: id, why }),
            LetterStateData::Merged { into } => {
                letter = letters::rows::first(db, "l.seq = ?1", params![into.seq])?;
            }
            LetterStateData::Done => {
                object = head.became.unwrap_or(object);
                break;
            }
        }
    }
    Ok(SendProgress::Queued(object))
}

/// Result of checking a message before it is sent.
pub(super) enum SendCheck {
    /// A duplicate, or a message of a blocked author.
    Answered(SendResult),
    /// Every target can be reached.
    Ready(ResolvedSend),
}

/// The delivery plans of a message.
pub(super) struct ResolvedSend {
    pub(super) plans: DeliveryPlans,
    book: AddressBook,
}

/// Queues a message for every target, or for none.
pub(super) fn send(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    now: Timestamp,
) -> StoreResult<SendResult> {
    let known = find_object(tx, request)?;
    match check(tx, request, known, now)? {
        SendCheck::Answered(result) => Ok(result),
        SendCheck::Ready(resolved) => insert(tx, request, known, resolved, now),
    }
}

/// Returns the row of a message's object, if it is stored.
///
/// # Errors
///
/// [`StoreError::KeyReused`] when the idempotency key belongs to another message.
pub(super) fn find_object(tx: &Tx<'_>, request: &SendRequest) -> StoreResult<Option<i64>> {
    let known = objects::find(tx.db, tx.indexes.hashes.recent(), &request.msg.id())?;
    if let Some(key) = &request.key {
        let sql = "SELECT object FROM idempotency_keys WHERE key = ?1";
        if let Some(object) = rows::optional(tx.db, sql, [key], |row| row.get(0))?
            && Some(object) != known
        {
            return Err(StoreError::KeyReused(objects::id_of(tx.db, object)?.to_string()));
        }
    }
    Ok(known)
}

/// Checks a message and plans its deliveries. The message itself is not stored.
pub(super) fn check(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    known: Option<i64>,
    now: Timestamp,
) -> StoreResult<SendCheck> {
    let msg = &request.msg;
    let outbox = RecordId::record(msg.author(), BoxKind::Outbox, &msg.id());
    if let Some(object) = known
        && records::by_id(tx.db, tx.indexes.hashes.recent(), &outbox).is_ok()
    {
        let subject = EventSubject { object: Some(object), ..EventSubject::default() };
        events::append(tx, EventKind::Duplicate, subject, &json!({"of": "post_send"}), now)?;
        let ways = stored_results(tx, object, msg)?;
        let result = SendResult::Queued { msg_id: msg.id(), duplicate: true, ways };
        return Ok(SendCheck::Answered(result));
    }
    if let Some(at) = msg.expires_at.filter(|_| msg.expired(now)) {
        return Err(StoreError::Expired(at));
    }
    let book = address_book::of_message(tx, msg, None)?;
    if book.blocks(msg.author()) {
        dispatch::append_rejection(tx, EventKind::Blocked, msg, now)?;
        return Ok(SendCheck::Answered(SendResult::BlockedAuthor { msg_id: msg.id() }));
    }
    let plans = plan_delivery(msg, &book)?;
    Ok(SendCheck::Ready(ResolvedSend { plans, book }))
}

/// Stores the message that an idempotency key belongs to.
pub(super) fn insert_key(tx: &Tx<'_>, key: &str, object: i64) -> StoreResult<()> {
    let sql = "INSERT INTO idempotency_keys (key, object) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    rows::execute(tx.db, sql, params![key, object])?;
    Ok(())
}

/// Inserts the object, the OUTBOX record, the deliveries and the records of local targets.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    known: Option<i64>,
    resolved: ResolvedSend,
    now: Timestamp,
) -> StoreResult<SendResult> {
    let (SendRequest { msg, key, not_before }, ResolvedSend { plans, book }) = (request, resolved);
    let before = match known {
        Some(object) => records::created(tx.db, object, &msg.id())?,
        None => Vec::new(),
    };
    let object = objects::insert_message(tx, known, msg)?;
    if let Some(key) = key {
        insert_key(tx, key, object)?;
    }
    let author = contacts::party_id(tx, msg.author())?;
    let msg_id = msg.id();
    let thread_key = records::thread_key(msg);
    let new = NewRecord { object, msg_id: &msg_id, tunnel: None, thread_key };
    let peers: Vec<Did> =
        plans.remote.iter().map(|plan| &plan.target_did).chain(&plans.local).cloned().collect();
    let outbox = Placement {
        owner: msg.author().clone(),
        box_kind: BoxKind::Outbox,
        session: peers.first().unwrap_or(&msg.from).clone(),
        group: None,
    };
    records::insert_outbox(tx, &new, &outbox, &peers, now)?;

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
            // The message can have been dispatched to the target before it blocked the author.
            let record_id = record_of(&before, &target);
            ways.push(TargetResult { target, record_id, plan: None });
            continue;
        }
        let mut placements = Vec::new();
        place_local(&target, msg.author(), BoxKind::Inbox, &book, &mut placements);
        let mut record_id = None;
        for placement in &placements {
            let created = records::insert(tx, &new, placement, now)?;
            record_id = record_id.or(Some(created.record_id));
        }
        ways.push(TargetResult { target, record_id, plan: None });
    }
    let targets: Vec<_> = ways.iter().map(|way| &way.target).collect();
    let record = RecordId::record(msg.author(), BoxKind::Outbox, &msg_id);
    let subject = EventSubject { object: Some(object), record: Some(record), owner: Some(author) };
    events::append(tx, EventKind::Posted, subject, &json!({"to": targets}), now)?;
    Ok(SendResult::Queued { msg_id, duplicate: false, ways })
}

/// The record in a box of `target`, which is local.
fn record_of(records: &[CreatedRecord], target: &Did) -> Option<RecordId> {
    records.iter().find(|record| record.owner == *target).map(|record| record.record_id)
}

/// The results that the first caller got.
fn stored_results(tx: &Tx<'_>, object: i64, msg: &MsgObject) -> StoreResult<Vec<TargetResult>> {
    let remote = deliveries::of_object(tx.db, object, MAX_TARGETS)?;
    let mut results: Vec<TargetResult> = remote
        .into_iter()
        .map(|delivery| TargetResult {
            target: delivery.plan.target_did.clone(),
            record_id: Some(delivery.id),
            plan: Some(delivery.plan),
        })
        .collect();
    let local = records::created(tx.db, object, &msg.id())?;
    for target in &msg.to {
        if results.iter().any(|result| result.target == *target) {
            continue;
        }
        let record_id = record_of(&local, target);
        results.push(TargetResult { target: target.clone(), record_id, plan: None });
    }
    Ok(results)
}
