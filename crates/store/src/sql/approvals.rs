//! Approvals: messages that wait for a person, their answers, and the codes of chat answers.

use std::sync::Arc;

use async_trait::async_trait;
use monoco_core::approval::chat_answer::ChatAnswer;
use monoco_core::approval::policy::{ApprovalPolicy, SendDecision};
use monoco_core::approval::{
    Approval, ApprovalAnswer, ApprovalId, ApprovalState, ApprovalStateData, ApprovalStep,
    ApprovalTarget, SendOrigin,
};
use monoco_core::contact::DeliveryPlans;
use monoco_core::delivery::SendState;
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_core::token::AgentName;
use serde_json::json;

use super::db::{Db, Row, RowResult, params};
use super::events::{self, EventSubject};
use super::rows::{self, parsed};
use super::send::{self, Posting, ResolvedSend, SendCheck};
use super::writer::Tx;
use super::{SqlStore, address_book, contacts, deliveries, objects};
use crate::{
    ApprovalStore, AskRequest, ChatAnswerResult, Page, PageRequest, SendRequest, StoreError,
    StoreInboundRequest, StoreResult, StoredDecision,
};

mod asks;
mod decisions;

pub(super) use asks::erase_account;
pub(super) use decisions::{agent_of, decide, insert_decision, purge};

const COLUMNS: &str = "
    a.seq, o.hash, p.did, a.origin, a.targets, a.rule, a.why, a.not_before, a.state, a.expires_at,
    a.answered_by, a.answered_at, a.reason, r.hash, a.revision, a.created_at, a.object, a.thread_key
";

const TABLES: &str = "
    approvals a
      JOIN objects o ON o.seq = a.object
      JOIN parties p ON p.id = a.author
      LEFT JOIN objects r ON r.seq = a.replaced_by
";

const INSERT: &str = "
    INSERT INTO approvals (object, author, origin, targets, thread_key, rule, why, not_before,
                           state, expires_at, asked, revision, created_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'PENDING', ?9, 0, 0, ?10)
";

const UPDATE: &str = "
    UPDATE approvals
       SET state = ?3, answered_by = ?4, answered_at = ?5, reason = ?6, replaced_by = ?7,
           revision = revision + 1
     WHERE seq = ?1 AND revision = ?2
";

const EXPIRED: &str = "
    SELECT seq
      FROM approvals
     WHERE state = 'PENDING' AND expires_at <= ?1
     ORDER BY expires_at, seq
     LIMIT ?2
";

const PENDING_OF_OBJECT: &str = "
    SELECT seq FROM approvals WHERE object = ?1 AND state = 'PENDING' ORDER BY seq DESC LIMIT 1
";

/// An approval with the columns that only the store needs.
pub(super) struct StoredApproval {
    pub(super) approval: Approval,
    /// `objects.seq` of the message.
    object: i64,
    thread_key: Option<String>,
}

/// A message to hold.
pub(super) struct NewApproval<'a> {
    pub(super) object: i64,
    pub(super) author: &'a Did,
    pub(super) origin: &'a SendOrigin,
    pub(super) targets: Vec<ApprovalTarget>,
    pub(super) thread_key: Option<&'a str>,
    pub(super) rule: &'a str,
    pub(super) why: &'a str,
    pub(super) not_before: Option<Timestamp>,
}

fn read(row: &Row<'_>) -> RowResult<StoredApproval> {
    let json = |column: usize| row.get::<String>(column);
    let state: String = row.get(8)?;
    let at = row.get::<Option<i64>>(11)?.map(Timestamp::from_ms);
    let by: Option<String> = row.get(10)?;
    let answer = by.zip(at).map(|(by, at)| ApprovalAnswer { by, at });
    let replaced_by: Option<[u8; 32]> = row.get(13)?;
    let replaced_by = replaced_by.map(|hash| ObjId::from_parts(ObjKind::Msg, hash));
    let state = match (ApprovalState::parse(&state), answer, replaced_by) {
        (Some(ApprovalState::Pending), None, None) => {
            ApprovalStateData::Pending { expires_at: Timestamp::from_ms(row.get(9)?) }
        }
        (Some(ApprovalState::Approved), Some(answer), None) => ApprovalStateData::Approved(answer),
        (Some(ApprovalState::Replaced), Some(answer), Some(replaced_by)) => {
            ApprovalStateData::Replaced { answer, replaced_by }
        }
        (Some(ApprovalState::Rejected), Some(answer), None) => {
            ApprovalStateData::Rejected { answer, reason: row.get(12)? }
        }
        (Some(ApprovalState::Withdrawn), Some(answer), None) => {
            ApprovalStateData::Withdrawn(answer)
        }
        (Some(ApprovalState::Expired), None, None) => {
            let at = at.ok_or_else(|| rows::damaged(11, "expired without a time"))?;
            ApprovalStateData::Expired { at }
        }
        _ => return Err(rows::damaged(8, "invalid state of an approval")),
    };
    let approval = Approval {
        id: ApprovalId(row.get(0)?),
        msg_id: ObjId::from_parts(ObjKind::Msg, row.get(1)?),
        author: parsed(row, 2)?,
        origin: serde_json::from_str(&json(3)?).map_err(|_| rows::damaged(3, "invalid origin"))?,
        targets: serde_json::from_str(&json(4)?)
            .map_err(|_| rows::damaged(4, "invalid targets"))?,
        rule: row.get(5)?,
        why: row.get(6)?,
        not_before: row.get::<Option<i64>>(7)?.map(Timestamp::from_ms),
        state,
        revision: row.get(14)?,
        created_at: Timestamp::from_ms(row.get(15)?),
    };
    Ok(StoredApproval { approval, object: row.get(16)?, thread_key: row.get(17)? })
}

fn find(db: &Db, seq: i64) -> StoreResult<Option<StoredApproval>> {
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE a.seq = ?1");
    rows::optional(db, &sql, [seq], read)
}

fn by_id(db: &Db, id: ApprovalId) -> StoreResult<StoredApproval> {
    let missing = || StoreError::Missing { what: "approval", key: id.to_string() };
    find(db, id.0)?.ok_or_else(missing)
}

/// Returns the last approval of a message, or `None` when it was never held.
pub(super) fn of_object(db: &Db, object: i64) -> StoreResult<Option<Approval>> {
    let sql =
        format!("SELECT {COLUMNS} FROM {TABLES} WHERE a.object = ?1 ORDER BY a.seq DESC LIMIT 1");
    let found = rows::optional(db, &sql, [object], read)?;
    Ok(found.map(|stored| stored.approval))
}

/// Returns the approval that the deliveries of a message wait for.
pub(super) fn pending_of_object(db: &Db, object: i64) -> StoreResult<Option<ApprovalId>> {
    let seq = rows::optional(db, PENDING_OF_OBJECT, [object], |row| row.get(0))?;
    Ok(seq.map(ApprovalId))
}

/// Inserts a pending approval. The deliveries of the message are HELD in the same transaction.
/// Returns also the number of its event.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    new: &NewApproval<'_>,
    now: Timestamp,
) -> StoreResult<(i64, Approval)> {
    let author = contacts::party_id(tx, new.author)?;
    let expires_at = now + tx.policy.expire_after;
    let row = params![
        new.object,
        author,
        rows::as_json(new.origin)?,
        rows::as_json(&new.targets)?,
        new.thread_key,
        new.rule,
        new.why,
        new.not_before.map(Timestamp::ms),
        expires_at.ms(),
        now.ms(),
    ];
    let seq = rows::insert(tx.db, INSERT, row)?;
    let stored = by_id(tx.db, ApprovalId(seq))?;
    let event = append_event(tx, &stored, now)?;
    Ok((event, stored.approval))
}

fn append_event(tx: &mut Tx<'_>, stored: &StoredApproval, now: Timestamp) -> StoreResult<i64> {
    let Approval { id, author, origin, rule, why, state, .. } = &stored.approval;
    let mut detail = json!({"approval": id, "state": state.name().as_str(), "rule": rule});
    match state {
        ApprovalStateData::Pending { expires_at } => {
            detail["origin"] = json!(origin);
            detail["why"] = json!(why);
            detail["expires_at"] = json!(expires_at);
        }
        ApprovalStateData::Rejected { reason, .. } => detail["reason"] = json!(reason),
        ApprovalStateData::Replaced { replaced_by, .. } => {
            detail["replaced_by"] = json!(replaced_by);
        }
        _ => {}
    }
    if let Some(ApprovalAnswer { by, .. }) = state.answer() {
        detail["by"] = json!(by);
    }
    let owner = Some(contacts::party_id(tx, author)?);
    let subject = EventSubject { object: Some(stored.object), record: None, owner };
    events::append_numbered(tx, EventKind::Approval, subject, &detail, now)
}

/// The event of a message that a rule has refused. The message itself is not stored.
pub(super) fn append_refusal(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    refused: &StoreError,
    now: Timestamp,
) -> StoreResult<()> {
    let StoreError::Refused { rule, why } = refused else { return Ok(()) };
    let owner = Some(contacts::party_id(tx, request.msg.author())?);
    let detail = json!({
        "state": "REFUSED", "origin": request.origin, "rule": rule, "why": why,
    });
    let subject = EventSubject { object: None, record: None, owner };
    events::append(tx, EventKind::Approval, subject, &detail, now)
}

/// Writes a new state, if the row still has the revision of `stored`.
fn update(
    tx: &mut Tx<'_>,
    mut stored: StoredApproval,
    state: ApprovalStateData,
    now: Timestamp,
) -> StoreResult<StoredApproval> {
    let (by, at) = match (&state, state.answer()) {
        (_, Some(answer)) => (Some(answer.by.as_str()), Some(answer.at.ms())),
        (ApprovalStateData::Expired { at }, None) => (None, Some(at.ms())),
        (_, None) => (None, None),
    };
    let (reason, replaced_by) = match &state {
        ApprovalStateData::Rejected { reason, .. } => (reason.as_deref(), None),
        ApprovalStateData::Replaced { replaced_by, .. } => {
            let object = objects::seq_of(tx.db, tx.indexes.hashes.recent(), replaced_by)?;
            (None, Some(object))
        }
        _ => (None, None),
    };
    let revision = stored.approval.revision;
    let row = params![
        stored.approval.id.0,
        revision,
        state.name().as_str(),
        by,
        at,
        reason,
        replaced_by,
    ];
    if !rows::update_one(tx.db, UPDATE, row)? {
        return Err(StoreError::Conflict { what: "approval", revision });
    }
    stored.approval.state = state;
    stored.approval.revision += 1;
    append_event(tx, &stored, now)?;
    Ok(stored)
}

/// Answers an approval and changes the deliveries of its message.
fn answer(
    tx: &mut Tx<'_>,
    id: ApprovalId,
    step: &ApprovalStep,
    by: &str,
    revision: Option<i64>,
    now: Timestamp,
) -> StoreResult<Approval> {
    let stored = by_id(tx.db, id)?;
    let next = stored.approval.state.clone().apply(step.clone(), by, now)?;
    if next == stored.approval.state {
        return Ok(stored.approval);
    }
    rows::check_revision("approval", revision, stored.approval.revision)?;
    let stored = update(tx, stored, next, now)?;
    match stored.approval.state.name() {
        ApprovalState::Approved => release(tx, &stored, now)?,
        _ => deliveries::end_held(tx, stored.object, by, now)?,
    }
    Ok(stored.approval)
}

/// Sends an approved message: its deliveries become WAIT, local targets get their records.
fn release(tx: &mut Tx<'_>, stored: &StoredApproval, now: Timestamp) -> StoreResult<()> {
    let Approval { msg_id, author, not_before, targets, .. } = &stored.approval;
    let plans = plans(targets);
    let others: Vec<&Did> = targets.iter().map(|target| &target.target).collect();
    let book = address_book::of_parties(tx, author, &others, None)?;
    let posting = Posting {
        object: stored.object,
        is_new: false,
        msg_id: *msg_id,
        author: author.clone(),
        thread_key: stored.thread_key.clone(),
    };
    send::place(tx, &posting, &plans, &book, now)?;
    let due = not_before.unwrap_or(now).max(now);
    deliveries::release_held(tx, stored.object, due, now)
}

/// The plans of a held message, as they were when it was posted.
fn plans(targets: &[ApprovalTarget]) -> DeliveryPlans {
    let mut plans = DeliveryPlans::default();
    for ApprovalTarget { target, plan } in targets {
        match plan {
            Some(plan) => plans.remote.push(plan.clone()),
            None => plans.local.push(target.clone()),
        }
    }
    plans
}

/// Sends an edited message by the plans of the held one.
fn edit(
    tx: &mut Tx<'_>,
    id: ApprovalId,
    msg: &MsgObject,
    by: &str,
    revision: Option<i64>,
    now: Timestamp,
) -> StoreResult<Approval> {
    let stored = by_id(tx.db, id)?;
    let step = ApprovalStep::Edit { replaced_by: msg.id() };
    let next = stored.approval.state.clone().apply(step, by, now)?;
    if next == stored.approval.state {
        return Ok(stored.approval);
    }
    rows::check_revision("approval", revision, stored.approval.revision)?;
    let Approval { origin, not_before, targets, .. } = &stored.approval;
    let request = SendRequest {
        msg: msg.clone(),
        key: None,
        not_before: *not_before,
        origin: origin.clone(),
    };
    let known = send::find_object(tx, &request)?;
    if known.is_some() {
        return Err(StoreError::AlreadySent(msg.id()));
    }
    let book = match send::check(tx, &request, known, now)? {
        SendCheck::Ready(resolved) => resolved.book,
        SendCheck::Answered(_) => return Err(StoreError::AlreadySent(msg.id())),
    };
    let resolved = ResolvedSend { plans: plans(targets), book };
    let rule = format!("edited by {by} as {id}");
    send::insert_decided(tx, &request, known, resolved, &SendDecision::Send { rule }, now)?;
    let stored = update(tx, stored, next, now)?;
    deliveries::end_held(tx, stored.object, by, now)?;
    Ok(stored.approval)
}

fn expire(tx: &mut Tx<'_>, limit: usize, now: Timestamp) -> StoreResult<usize> {
    let mut expired = 0;
    for seq in rows::numbers(tx.db, EXPIRED, params![now.ms(), rows::limit(limit)])? {
        let found = tx.db.unless_damaged("approval", seq, by_id(tx.db, ApprovalId(seq)))?;
        let Some(stored) = found else { continue };
        let next = stored.approval.state.clone().expire(now)?;
        let stored = update(tx, stored, next, now)?;
        deliveries::end_held(tx, stored.object, "expiry", now)?;
        expired += 1;
    }
    Ok(expired)
}

/// Withdraws the approval of an erased message and removes its reasons.
pub(super) fn erase(tx: &mut Tx<'_>, object: i64, now: Timestamp) -> StoreResult<()> {
    if let Some(id) = pending_of_object(tx.db, object)? {
        let stored = by_id(tx.db, id)?;
        let answer = ApprovalAnswer { by: "erasure".to_owned(), at: now };
        update(tx, stored, ApprovalStateData::Withdrawn(answer), now)?;
    }
    rows::execute(tx.db, "UPDATE approvals SET reason = NULL WHERE object = ?1", [object])?;
    Ok(())
}

/// Holds a message whose agent was halted after the message had been posted.
pub(super) fn hold_waiting(
    tx: &mut Tx<'_>,
    object: i64,
    origin: &SendOrigin,
    why: &str,
    now: Timestamp,
) -> StoreResult<()> {
    let held = deliveries::hold_waiting(tx, object, now)?;
    let Some(author) = held.first().map(|delivery| delivery.author.clone()) else { return Ok(()) };
    let target = |delivery: &monoco_core::delivery::Delivery| ApprovalTarget {
        target: delivery.plan.target_did.clone(),
        plan: Some(delivery.plan.clone()),
    };
    let targets = held.iter().map(target).collect();
    let new = NewApproval {
        object,
        author: &author,
        origin,
        targets,
        thread_key: None,
        rule: "halt",
        why,
        not_before: None,
    };
    insert(tx, &new, now)?;
    Ok(())
}

#[async_trait]
impl ApprovalStore for SqlStore {
    fn set_approval_policy(&self, policy: Arc<ApprovalPolicy>) {
        self.channels.policy.send_replace(policy);
    }

    fn approval_policy(&self) -> Arc<ApprovalPolicy> {
        Arc::clone(&self.channels.policy.borrow())
    }

    async fn approvals(
        &self,
        states: &[ApprovalState],
        page: PageRequest,
    ) -> StoreResult<Page<Approval>> {
        let states = if states.is_empty() { ApprovalState::ALL.to_vec() } else { states.to_vec() };
        self.read(move |db| {
            let (beyond, order) = rows::direction(&page);
            let sql = format!(
                "SELECT {COLUMNS} FROM {TABLES}
                  WHERE a.state = ?1 AND a.seq {beyond} ?2
                  ORDER BY a.seq {order}"
            );
            let (start, limit) = (rows::start(&page), page.limit.saturating_add(1));
            let mut entries = Vec::new();
            for state in states {
                let row = params![state.as_str(), start];
                let read = |row: &Row<'_>| read(row).map(|it| (it.approval.id.0, it.approval));
                entries.extend(rows::list_undamaged(db, "approval", limit, &sql, row, read)?);
            }
            Ok(rows::page(entries, &page))
        })
        .await
    }

    async fn approval(&self, id: ApprovalId) -> StoreResult<Approval> {
        self.read(move |db| by_id(db, id).map(|stored| stored.approval)).await
    }

    async fn approval_of(&self, msg_id: ObjId) -> StoreResult<Option<Approval>> {
        self.read_by_hash(move |db, recent| match objects::find(db, recent, &msg_id)? {
            Some(object) => of_object(db, object),
            None => Ok(None),
        })
        .await
    }

    async fn answer_approval(
        &self,
        id: ApprovalId,
        step: ApprovalStep,
        by: &str,
        revision: Option<i64>,
        now: Timestamp,
    ) -> StoreResult<Approval> {
        let by = by.to_owned();
        self.writer.run(move |tx| answer(tx, id, &step, &by, revision, now)).await
    }

    async fn edit_approval(
        &self,
        id: ApprovalId,
        msg: MsgObject,
        by: &str,
        revision: Option<i64>,
        now: Timestamp,
    ) -> StoreResult<Approval> {
        let by = by.to_owned();
        let _lock = self.erasing.read().await;
        self.put_large_message(&msg).await?;
        self.writer.run(move |tx| edit(tx, id, &msg, &by, revision, now)).await
    }

    async fn expire_approvals(&self, limit: usize, now: Timestamp) -> StoreResult<usize> {
        let any = self
            .read(move |db| Ok(!rows::numbers(db, EXPIRED, params![now.ms(), 1])?.is_empty()))
            .await?;
        if !any {
            return Ok(0);
        }
        self.writer.run(move |tx| expire(tx, limit, now)).await
    }

    async fn unasked_approvals(&self, limit: usize) -> StoreResult<Vec<Approval>> {
        self.read(move |db| asks::unasked(db, limit)).await
    }

    async fn ask_approval(&self, request: AskRequest, now: Timestamp) -> StoreResult<bool> {
        let _lock = self.erasing.read().await;
        self.put_large_message(&request.msg).await?;
        self.writer.run(move |tx| asks::ask(tx, &request, now)).await
    }

    async fn mark_asked(&self, id: ApprovalId) -> StoreResult<()> {
        let sql = "UPDATE approvals SET asked = 1 WHERE seq = ?1";
        self.writer.run(move |tx| rows::execute(tx.db, sql, [id.0])).await
    }

    async fn answer_by_code(
        &self,
        account: &Did,
        message: StoreInboundRequest,
        answer: ChatAnswer,
        now: Timestamp,
    ) -> StoreResult<ChatAnswerResult> {
        let account = account.clone();
        self.writer.run(move |tx| asks::answer_by_code(tx, &account, &message, &answer, now)).await
    }

    async fn decisions(
        &self,
        since: Timestamp,
        after: Option<i64>,
        limit: usize,
    ) -> StoreResult<Page<StoredDecision>> {
        self.read(move |db| decisions::list(db, since, after, limit)).await
    }

    async fn decisions_of(
        &self,
        agent: &AgentName,
        since: Timestamp,
        limit: usize,
    ) -> StoreResult<Vec<StoredDecision>> {
        let agent = agent.clone();
        self.read(move |db| decisions::of_agent(db, &agent, since, limit)).await
    }

    async fn decision_of(&self, msg_id: ObjId) -> StoreResult<Option<StoredDecision>> {
        self.read_by_hash(move |db, recent| match objects::find(db, recent, &msg_id)? {
            Some(object) => decisions::of_object(db, object),
            None => Ok(None),
        })
        .await
    }
}

/// The states of deliveries that a halt of their agent holds.
pub(super) const WAITING: [SendState; 2] = [SendState::Wait, SendState::Failed];
