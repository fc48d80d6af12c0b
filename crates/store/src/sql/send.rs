//! Send: queues a message for all of its targets, in one transaction.

use monoco_core::approval::policy::SendDecision;
use monoco_core::approval::{ApprovalState, ApprovalStateData, ApprovalTarget};
use monoco_core::contact::{AddressBook, DeliveryPlans, plan_delivery};
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::letter::{LetterId, LetterStateData};
use monoco_core::object::{MAX_TARGETS, MsgObject, ObjId};
use monoco_core::record::{BoxKind, RecordId};
use monoco_core::routing::{Placement, place_local};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::approvals::{self, NewApproval};
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
    /// A message that waits for approval.
    Held,
    /// A message that was rejected or withdrawn, or whose approval has expired.
    Rejected { why: String },
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
    let Some(approval) = approvals::of_object(db, object)? else {
        return Ok(SendProgress::Queued(object));
    };
    Ok(match &approval.state {
        ApprovalStateData::Pending { .. } => SendProgress::Held,
        ApprovalStateData::Approved(_) => SendProgress::Queued(object),
        ApprovalStateData::Replaced { .. } => {
            let sql = "SELECT replaced_by FROM approvals WHERE seq = ?1";
            SendProgress::Queued(rows::one(db, sql, [approval.id.0], |row| row.get(0))?)
        }
        ended => SendProgress::Rejected { why: ended_text(ended) },
    })
}

/// Why a held message was not sent.
fn ended_text(state: &ApprovalStateData) -> String {
    let name = state.name().as_str();
    let by = state.answer().map(|answer| format!(" by {}", answer.by)).unwrap_or_default();
    match state {
        ApprovalStateData::Rejected { reason: Some(reason), .. } => {
            format!("approval {name}{by}: {reason}")
        }
        _ => format!("approval {name}{by}"),
    }
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
    pub(super) book: AddressBook,
}

/// A stored message that is put into boxes.
pub(super) struct Posting {
    /// `objects.seq` of the message.
    pub(super) object: i64,
    /// Whether the object was just inserted, so that no record refers to it.
    pub(super) is_new: bool,
    pub(super) msg_id: ObjId,
    pub(super) author: Did,
    pub(super) thread_key: Option<String>,
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
        && let approval = approvals::of_object(tx.db, object)?
        && (approval.is_some()
            || records::by_id(tx.db, tx.indexes.hashes.recent(), &outbox).is_ok())
    {
        let subject = EventSubject { object: Some(object), ..EventSubject::default() };
        events::append(tx, EventKind::Duplicate, subject, &json!({"of": "post_send"}), now)?;
        let (msg_id, duplicate, ways) = (msg.id(), true, stored_results(tx, object, msg)?);
        let held = approval.filter(|it| it.state.name() != ApprovalState::Approved);
        return Ok(SendCheck::Answered(match held.map(Box::new) {
            Some(approval) => SendResult::Held { msg_id, duplicate, ways, approval },
            None => SendResult::Queued { msg_id, duplicate, ways },
        }));
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

/// Asks the approval policy, then queues the message or holds it.
///
/// # Errors
///
/// [`StoreError::Refused`] when the policy does not allow it. Nothing is written then.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    known: Option<i64>,
    resolved: ResolvedSend,
    now: Timestamp,
) -> StoreResult<SendResult> {
    let (decision, facts) = approvals::decide(tx, request, &resolved.plans, &resolved.book, now)?;
    if let SendDecision::Refuse { rule, why } = decision {
        return Err(StoreError::Refused { rule, why });
    }
    let (event, result) = insert_decided(tx, request, known, resolved, &decision, now)?;
    if let Some(facts) = facts {
        approvals::insert_decision(tx, event, &decision, &facts, now)?;
    }
    Ok(result)
}

/// Inserts the object and the deliveries. A message that is sent also gets the OUTBOX record and
/// the records of local targets; a held one gets them when it is approved. Returns also the number of
/// the event of the message: `posted`, or `approval`.
pub(super) fn insert_decided(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    known: Option<i64>,
    resolved: ResolvedSend,
    decision: &SendDecision,
    now: Timestamp,
) -> StoreResult<(i64, SendResult)> {
    let SendRequest { msg, key, not_before, origin } = request;
    let ResolvedSend { plans, book } = resolved;
    let object = objects::insert_message(tx, known, msg)?;
    if let Some(key) = key {
        insert_key(tx, key, object)?;
    }
    let author = contacts::party_id(tx, msg.author())?;
    let msg_id = msg.id();
    let hold = match decision {
        SendDecision::Hold { rule, why } => Some((rule.as_str(), why.as_str())),
        SendDecision::Send { .. } | SendDecision::Refuse { .. } => None,
    };
    let due = hold.is_none().then(|| not_before.unwrap_or(now).max(now));
    let thread_key = records::thread_key(msg);
    let local = match hold {
        None => {
            let posting = Posting {
                object,
                is_new: known.is_none(),
                msg_id,
                author: msg.author().clone(),
                thread_key: thread_key.map(str::to_owned),
            };
            place(tx, &posting, &plans, &book, now)?
        }
        Some(_) => {
            let held = |target: &Did| TargetResult::local(target.clone(), None);
            plans.local.iter().map(held).collect()
        }
    };
    let mut ways = Vec::with_capacity(plans.remote.len() + local.len());
    for plan in &plans.remote {
        let id = deliveries::insert(tx, object, &msg_id, author, plan, due, now)?;
        let target = plan.target_did.clone();
        ways.push(TargetResult { target, record_id: Some(id), plan: Some(plan.clone()) });
    }
    ways.extend(local);
    let Some((rule, why)) = hold else {
        let targets: Vec<_> = ways.iter().map(|way| &way.target).collect();
        let record = Some(RecordId::record(msg.author(), BoxKind::Outbox, &msg_id));
        let subject = EventSubject { object: Some(object), record, owner: Some(author) };
        let detail = json!({"to": targets});
        let event = events::append_numbered(tx, EventKind::Posted, subject, &detail, now)?;
        return Ok((event, SendResult::Queued { msg_id, duplicate: false, ways }));
    };
    let target =
        |way: &TargetResult| ApprovalTarget { target: way.target.clone(), plan: way.plan.clone() };
    let new = NewApproval {
        object,
        author: msg.author(),
        origin,
        targets: ways.iter().map(target).collect(),
        thread_key,
        rule,
        why,
        not_before: *not_before,
    };
    let (event, approval) = approvals::insert(tx, &new, now)?;
    let approval = Box::new(approval);
    Ok((event, SendResult::Held { msg_id, duplicate: false, ways, approval }))
}

/// Puts a message into the OUTBOX of its author, into the conversations with its targets, and
/// into the boxes of local targets. Returns the results of the local targets. Repeating it changes
/// nothing.
pub(super) fn place(
    tx: &mut Tx<'_>,
    posting: &Posting,
    plans: &DeliveryPlans,
    book: &AddressBook,
    now: Timestamp,
) -> StoreResult<Vec<TargetResult>> {
    let Posting { object, is_new, msg_id, author, thread_key } = posting;
    let before = match is_new {
        true => Vec::new(),
        false => records::created(tx.db, *object, msg_id)?,
    };
    let thread_key = thread_key.as_deref();
    let new = NewRecord { object: *object, msg_id, tunnel: None, thread_key };
    let remote = plans.remote.iter().map(|plan| &plan.target_did);
    let peers: Vec<Did> = remote.chain(&plans.local).cloned().collect();
    let outbox = Placement {
        owner: author.clone(),
        box_kind: BoxKind::Outbox,
        session: peers.first().unwrap_or(author).clone(),
        group: None,
    };
    let outbox_id = RecordId::record(author, BoxKind::Outbox, msg_id);
    if *is_new || records::by_id(tx.db, tx.indexes.hashes.recent(), &outbox_id).is_err() {
        records::insert_outbox(tx, &new, &outbox, &peers, now)?;
    }
    let mut results = Vec::with_capacity(plans.local.len());
    for target in &plans.local {
        if book.is_block(author, target) {
            // The message can have been dispatched to the target before it blocked the author.
            results.push(TargetResult::local(target.clone(), record_of(&before, target)));
            continue;
        }
        let mut placements = Vec::new();
        place_local(target, author, BoxKind::Inbox, book, &mut placements);
        let mut record_id = None;
        for placement in &placements {
            let created = records::insert(tx, &new, placement, now)?;
            record_id = record_id.or(Some(created.record_id));
        }
        results.push(TargetResult::local(target.clone(), record_id));
    }
    Ok(results)
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
