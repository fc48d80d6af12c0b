//! Decisions of the approval policy: the facts of a message, the decision, and its row.

use monoco_core::approval::SendOrigin;
use monoco_core::approval::policy::{
    self, HaltFact, SendDecision, SendFacts, TargetFact, UNTRUSTED_READ_SPAN,
};
use monoco_core::contact::{AddressBook, DeliveryPlans};
use monoco_core::did::{Did, TunnelId};
use monoco_core::mail::Trust;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use monoco_core::token::AgentName;
use serde_json::Value;

use crate::sql::db::{Db, Row, RowResult, params};
use crate::sql::rows::parsed;
use crate::sql::writer::Tx;
use crate::sql::{contacts, halts, mails, objects, rows};
use crate::{Page, PageRequest, SendRequest, StoreResult, StoredDecision};

const COLUMNS: &str = "d.event, o.hash, d.held, d.rule, d.facts, d.at";

const TABLES: &str = "
    send_decisions d
      JOIN events e ON e.seq = d.event
      JOIN objects o ON o.seq = e.object
";

const INSERT: &str = "
    INSERT INTO send_decisions (event, agent, held, rule, limited, facts, at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
";

// Counts no further than the limit of the rate.
const SENT_SINCE: &str = "
    SELECT count(*)
      FROM (SELECT 1
              FROM send_decisions
             WHERE agent = ?1 AND rule = ?2 AND at > ?3 AND limited = 1
             LIMIT 100000) AS sent
";

const ENDS: &str = "
    SELECT coalesce(min(event), 0), coalesce(max(event) + 1, 0) FROM send_decisions
";

const NEXT: &str = "
    SELECT event, at FROM send_decisions WHERE event >= ?1 AND event < ?2 ORDER BY event LIMIT 1
";

// A thousand chats are more than enough to compare the targets with.
const UNTRUSTED_READS: &str = "
    SELECT DISTINCT answer_to
      FROM agent_reads
     WHERE agent = ?1 AND at >= ?2 AND trust = 'untrusted'
     LIMIT 1000
";

const HAS_SESSION: &str = "SELECT 1 FROM sessions WHERE peer = ?1 LIMIT 1";

/// Decides about a message that is about to be queued. Returns also the facts, unless messages of
/// this origin are always sent.
pub(in crate::sql) fn decide(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    plans: &DeliveryPlans,
    book: &AddressBook,
    now: Timestamp,
) -> StoreResult<(SendDecision, Option<SendFacts>)> {
    let policy = tx.policy.clone();
    if policy.always_sends(&request.origin) {
        let rule = format!("{} sends", request.origin);
        return Ok((SendDecision::Send { rule }, None));
    }
    let facts = facts(tx, request, plans, book, now)?;
    let text = policy.reads_text().then(|| policy::text_of(&request.msg)).flatten();
    let agent = agent_name(&request.origin);
    let sent_before = |rule: &str, since: Timestamp| {
        let row = params![agent, rule, since.ms()];
        rows::one(tx.db, SENT_SINCE, row, |row| row.get::<u32>(0))
    };
    let decision = policy::decide(&policy, &facts, text.as_deref(), now, sent_before)?;
    Ok((decision, Some(facts)))
}

/// The name in the column `agent`.
fn agent_name(origin: &SendOrigin) -> &str {
    origin.agent().unwrap_or_default()
}

fn facts(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    plans: &DeliveryPlans,
    book: &AddressBook,
    now: Timestamp,
) -> StoreResult<SendFacts> {
    let SendRequest { msg, origin, .. } = request;
    let mut targets = Vec::new();
    for plan in &plans.remote {
        targets.push((plan.target_did.clone(), Some(plan.address.clone())));
    }
    targets.extend(plans.local.iter().map(|target| (target.clone(), None)));
    let mut target_facts = Vec::with_capacity(targets.len());
    for (target, address) in targets {
        // A group chat has a box with its messages, and no conversation.
        let has_box = book.party(&target).is_some_and(|party| party.has_box);
        let first_contact = book.is_stranger(&target) && !has_box && !has_session(tx, &target)?;
        target_facts.push(TargetFact { target, address, first_contact });
    }
    let tunnels: Vec<TunnelId> =
        plans.remote.iter().filter_map(|plan| plan.tunnel_did.tunnel()).collect();
    let halt = halt_of(tx.db, origin, &tunnels)?;
    let reply = reply_trust(tx, msg)?;
    let untrusted = untrusted_chats(tx.db, origin, now)?;
    let elsewhere =
        !untrusted.is_empty() && target_facts.iter().any(|fact| !untrusted.contains(&fact.target));
    Ok(SendFacts {
        origin: origin.clone(),
        targets: target_facts,
        reply,
        after_untrusted: !untrusted.is_empty(),
        elsewhere,
        halt,
    })
}

/// The halt that applies to a message. Messages of the owner wait in the queue instead.
fn halt_of(db: &Db, origin: &SendOrigin, tunnels: &[TunnelId]) -> StoreResult<Option<HaltFact>> {
    let Some(agent) = origin.agent() else { return Ok(None) };
    let halts = halts::read(db)?;
    Ok(halts.of_send(origin, tunnels.iter()).map(|halt| HaltFact {
        scope: halt.scope.to_string(),
        lock: halts.lock_of(agent).is_some(),
    }))
}

/// Whether the hub has a conversation with `peer`. A held message is in none.
fn has_session(tx: &mut Tx<'_>, peer: &Did) -> StoreResult<bool> {
    let Some(peer) = contacts::find_party_id(tx, peer)? else { return Ok(false) };
    Ok(rows::optional(tx.db, HAS_SESSION, [peer], |_| Ok(()))?.is_some())
}

/// The trust of the Mail that a message answers, when it goes exactly to where the answers of the
/// Mail go.
fn reply_trust(tx: &Tx<'_>, msg: &MsgObject) -> StoreResult<Option<Trust>> {
    let (Some(answered), [target]) = (&msg.reply_to, msg.to.as_slice()) else { return Ok(None) };
    let object = objects::find(tx.db, tx.indexes.hashes.recent(), answered)?;
    let Some(object) = object else { return Ok(None) };
    let Some(mail) = mails::of_object(tx.db, object)? else { return Ok(None) };
    let answer_to = answer_to(tx.db, &mail)?;
    Ok((answer_to.as_ref() == Some(target)).then_some(mail.entry.trust))
}

/// Where the answers of a Mail go. The index line of a Mail does not name it, and the object of a
/// large Mail is in a file; then it is the chat or the first author.
fn answer_to(db: &Db, mail: &mails::StoredMail) -> StoreResult<Option<Did>> {
    if let Ok((_, Some(body))) = objects::body(db, mail.object) {
        let object: Option<Value> = serde_json::from_slice(&body).ok();
        let answer_to = object.as_ref().and_then(|it| {
            it.pointer("/content/machine/data/mail/answer_to")?.as_str()?.parse().ok()
        });
        return Ok(answer_to);
    }
    let entry = &mail.entry;
    let author = entry.participants.from.first();
    Ok(author.and_then(|author| entry.session.answer_to(author, &entry.tunnel).ok()))
}

/// The chats of the Mails of strangers that the agent has read in the last 24 h.
fn untrusted_chats(db: &Db, origin: &SendOrigin, now: Timestamp) -> StoreResult<Vec<Did>> {
    let Some(agent) = origin.agent() else { return Ok(Vec::new()) };
    let span = i64::try_from(UNTRUSTED_READ_SPAN.as_millis()).unwrap_or(i64::MAX);
    let since = now.ms().saturating_sub(span);
    rows::list(db, UNTRUSTED_READS, params![agent, since], |row| parsed(row, 0))
}

/// Stores a decision with its facts. `event` is the number of the event of the message.
pub(in crate::sql) fn insert_decision(
    tx: &Tx<'_>,
    event: i64,
    decision: &SendDecision,
    facts: &SendFacts,
    now: Timestamp,
) -> StoreResult<()> {
    let (agent, rule) = (agent_name(&facts.origin), decision.rule());
    let held = !matches!(decision, SendDecision::Send { .. });
    let limited = !held && tx.policy.is_limited(rule);
    let facts = rows::as_json(facts)?;
    rows::execute(tx.db, INSERT, params![event, agent, held, rule, limited, facts, now.ms()])
}

/// The origin of a message of an agent, or `None` when it is not of an agent.
pub(in crate::sql) fn agent_of(db: &Db, object: i64) -> StoreResult<Option<SendOrigin>> {
    let decision = of_object(db, object)?;
    let origin = decision.map(|decision| decision.facts.origin);
    Ok(origin.filter(|origin| origin.agent().is_some()))
}

fn read(row: &Row<'_>) -> RowResult<StoredDecision> {
    let facts: String = row.get(4)?;
    Ok(StoredDecision {
        seq: row.get(0)?,
        msg_id: ObjId::from_parts(ObjKind::Msg, row.get(1)?),
        held: row.get(2)?,
        rule: row.get(3)?,
        facts: serde_json::from_str(&facts).map_err(|_| rows::damaged(4, "invalid facts"))?,
        at: Timestamp::from_ms(row.get(5)?),
    })
}

pub(super) fn of_object(db: &Db, object: i64) -> StoreResult<Option<StoredDecision>> {
    let sql =
        format!("SELECT {COLUMNS} FROM {TABLES} WHERE e.object = ?1 ORDER BY e.seq DESC LIMIT 1");
    rows::optional(db, &sql, [object], read)
}

/// Lists decisions since a time, oldest first.
pub(super) fn list(
    db: &Db,
    since: Timestamp,
    after: Option<i64>,
    limit: usize,
) -> StoreResult<Page<StoredDecision>> {
    let page = PageRequest { beyond: after, limit, newest_first: false };
    let ends = rows::one(db, ENDS, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let first = rows::first_since(since, ends, |from, to| {
        rows::optional(db, NEXT, [from, to], |row| Ok((row.get(0)?, row.get(1)?)))
    })?;
    let Some(first) = first else { return Ok(rows::page(Vec::new(), &page)) };
    let start = after.unwrap_or(i64::MIN).max(first - 1);
    let sql = format!("SELECT {COLUMNS} FROM {TABLES} WHERE d.event > ?1 ORDER BY d.event");
    let read = |row: &Row<'_>| read(row).map(|decision| (decision.seq, decision));
    let most = limit.saturating_add(1);
    let entries = rows::list_undamaged(db, "decision", most, &sql, [start], read)?;
    Ok(rows::page(entries, &page))
}

/// Lists decisions about messages of an agent since a time, newest first.
pub(super) fn of_agent(
    db: &Db,
    agent: &AgentName,
    since: Timestamp,
    limit: usize,
) -> StoreResult<Vec<StoredDecision>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM {TABLES} WHERE d.agent = ?1 AND d.agent <> '' AND d.at >= ?2
          ORDER BY d.at DESC, d.event DESC"
    );
    let page = params![agent.as_str(), since.ms()];
    rows::list_undamaged(db, "decision", limit, &sql, page, read)
}

/// Deletes decisions whose events were deleted, and codes that are older than the oldest event.
pub(in crate::sql) fn purge(tx: &Tx<'_>, limit: usize) -> StoreResult<()> {
    let decisions = "
        DELETE FROM send_decisions WHERE event IN (
            SELECT event FROM send_decisions
             WHERE event < (SELECT min(seq) FROM events)
             ORDER BY event LIMIT ?1)
    ";
    rows::execute(tx.db, decisions, [rows::limit(limit)])?;
    let oldest = "(SELECT at FROM events ORDER BY seq LIMIT 1)";
    let codes = format!(
        "DELETE FROM approval_asks WHERE approval IN (
             SELECT k.approval FROM approval_asks k JOIN approvals a ON a.seq = k.approval
              WHERE k.at < {oldest} AND a.state <> 'PENDING' ORDER BY k.at LIMIT ?1)"
    );
    rows::execute(tx.db, &codes, [rows::limit(limit)])?;
    Ok(())
}
