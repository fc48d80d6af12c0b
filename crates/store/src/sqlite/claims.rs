//! Claims: one workspace's hold on one Mail.

use monoco_core::claim::{
    Claim, ClaimState, ClaimStateData, ClaimStatus, MailLocation, Workspace, location_after_claims,
};
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use monoco_core::mail::MailId;
use monoco_core::record::InvalidTransition;
use monoco_core::retry::RetryPolicy;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Value, json};

use super::contacts::parsed;
use super::events::{self, EventSubject};
use super::mails::{self, Found};
use super::open::fault;
use super::rows;
use super::writer::Tx;
use crate::{ClaimUpdate, StoreError};

const COLUMNS: &str = "
    c.workspace, c.state, c.due_at, c.holder, c.lease_until, c.attempts, c.epoch, c.revision,
    c.reason, c.updated_at
";

const PUT: &str = "
    INSERT INTO claims (mail, workspace, state, due_at, holder, lease_until, attempts, epoch,
                        revision, reason, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?10, ?11)
        ON CONFLICT (mail, workspace) DO UPDATE
       SET state = excluded.state, due_at = excluded.due_at, holder = excluded.holder,
           lease_until = excluded.lease_until, attempts = excluded.attempts,
           epoch = excluded.epoch, revision = revision + 1, reason = excluded.reason,
           updated_at = excluded.updated_at
     WHERE revision = ?9
";

/// Claims a Mail for a workspace.
pub(super) fn claim(
    tx: &mut Tx<'_>,
    id: &MailId,
    workspace: &Workspace,
    holder: &Holder,
    term: LeaseDuration,
    retry: &RetryPolicy,
    now: Timestamp,
) -> Result<Claim, StoreError> {
    let mail = mails::by_id(tx.db, id)?;
    match mail.place {
        MailLocation::Held => return Err(InvalidTransition { from: "HELD", to: "CLAIMED" }.into()),
        MailLocation::Removed => {
            return Err(InvalidTransition { from: "GONE", to: "CLAIMED" }.into());
        }
        MailLocation::Inbound | MailLocation::Archive | MailLocation::Deadletter => {}
    }
    let claim = find(tx.db, &mail, workspace)?.unwrap_or_else(|| Claim {
        mail: id.clone(),
        workspace: workspace.clone(),
        claiming: ClaimStatus::start(now),
        revision: 0,
        reason: None,
        updated_at: now,
    });
    let next = claim.claiming.clone().claim(holder.clone(), now, term, retry)?;
    let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
    let claim = put(tx, &mail, claim, next, now)?;
    log(tx, EventKind::Claimed, &mail, &claim, detail, now)?;
    Ok(claim)
}

/// Takes a step with a claim that is held.
pub(super) fn settle(
    tx: &mut Tx<'_>,
    id: &MailId,
    workspace: &Workspace,
    guard: &LeaseProof,
    step: &ClaimUpdate,
    now: Timestamp,
) -> Result<Claim, StoreError> {
    let mail = mails::by_id(tx.db, id)?;
    let Some(mut claim) = find(tx.db, &mail, workspace)? else {
        let to = match step {
            ClaimUpdate::Renew(_) => ClaimState::Claimed,
            ClaimUpdate::Complete => ClaimState::Completed,
            ClaimUpdate::Fail { .. } => ClaimState::New,
        };
        return Err(InvalidTransition { from: ClaimState::New.as_str(), to: to.as_str() }.into());
    };
    let standing = claim.claiming.clone();
    let (kind, next, detail) = match step {
        ClaimUpdate::Renew(term) => {
            (EventKind::Renewed, standing.renew(guard, now, *term)?, json!({}))
        }
        ClaimUpdate::Complete => {
            // Saying again what is already so changes nothing, so that an answer that
            // was lost can be asked for again.
            if standing.state == ClaimStateData::Completed && is_current(guard, &standing) {
                return Ok(claim);
            }
            (EventKind::Completed, standing.complete(guard)?, json!({}))
        }
        ClaimUpdate::Fail { reason, retryable, retry } => {
            let next = standing.fail(guard, reason.clone(), *retryable, now, retry)?;
            claim.reason = Some(reason.clone());
            let (kind, detail) = failed(&next, reason);
            (kind, next, detail)
        }
    };
    let claim = put(tx, &mail, claim, next, now)?;
    log(tx, kind, &mail, &claim, detail, now)?;
    rest(tx, &mail, now)?;
    Ok(claim)
}

/// Whether the caller shows the epoch that ended.
fn is_current(guard: &LeaseProof, claiming: &ClaimStatus) -> bool {
    guard.epoch == Some(claiming.epoch)
}

/// What a failure is called, by what it led to.
fn failed(next: &ClaimStatus, reason: &str) -> (EventKind, Value) {
    match &next.state {
        ClaimStateData::Deadletter { .. } => (EventKind::Dead, json!({"reason": reason})),
        ClaimStateData::New { due } => {
            (EventKind::Failed, json!({"reason": reason, "next_retry_at": due.rfc3339()}))
        }
        _ => (EventKind::Failed, json!({"reason": reason})),
    }
}

/// Moves on claims whose leases ended.
pub(super) fn sweep(
    tx: &mut Tx<'_>,
    retry: &RetryPolicy,
    limit: usize,
    now: Timestamp,
) -> Result<usize, StoreError> {
    let sql = "
        SELECT id FROM claims WHERE state = 'CLAIMED' AND lease_until <= ?1
         ORDER BY lease_until LIMIT ?2
    ";
    let ids = rows::seqs(tx.db, sql, params![now.ms(), rows::limit(limit)])?;
    for id in &ids {
        let sql = "SELECT mail, workspace FROM claims WHERE id = ?1";
        let (mail, workspace): (i64, String) = tx
            .db
            .prepare_cached(sql)
            .and_then(|mut s| s.query_row([id], |row| Ok((row.get(0)?, row.get(1)?))))
            .map_err(fault)?;
        let mail = mails::by_seq(tx.db, mail)?;
        let workspace = Workspace::new(workspace)
            .map_err(|error| StoreError::Damaged { what: "claim", detail: error.to_string() })?;
        let Some(mut claim) = find(tx.db, &mail, &workspace)? else { continue };
        let held_by = match &claim.claiming.state {
            ClaimStateData::Claimed(lease) => lease.holder.clone(),
            _ => continue,
        };
        let next = claim.claiming.clone().expire(now, retry)?;
        let (kind, mut detail) = match &next.state {
            ClaimStateData::Deadletter { reason } => {
                claim.reason = Some(reason.clone());
                failed(&next, reason)
            }
            _ => (EventKind::LeaseEnded, json!({})),
        };
        detail["held_by"] = json!(held_by);
        let claim = put(tx, &mail, claim, next, now)?;
        log(tx, kind, &mail, &claim, detail, now)?;
        rest(tx, &mail, now)?;
    }
    Ok(ids.len())
}

/// Puts a dead claim back.
pub(super) fn revive(
    tx: &mut Tx<'_>,
    id: &MailId,
    workspace: &Workspace,
    now: Timestamp,
) -> Result<Claim, StoreError> {
    let mail = mails::by_id(tx.db, id)?;
    let claim = find(tx.db, &mail, workspace)?.ok_or_else(|| no_claim(id))?;
    let next = claim.claiming.clone().retry(now)?;
    let claim = put(tx, &mail, claim, next, now)?;
    let detail = json!({"from": "DEADLETTER", "to": "NEW"});
    log(tx, EventKind::Marked, &mail, &claim, detail, now)?;
    mails::move_to(tx, &mail, MailLocation::Inbound, now)?;
    Ok(claim)
}

/// Lets nobody deal with a dead claim any more.
pub(super) fn lay_to_rest(
    tx: &mut Tx<'_>,
    id: &MailId,
    workspace: &Workspace,
    now: Timestamp,
) -> Result<Claim, StoreError> {
    let mail = mails::by_id(tx.db, id)?;
    let claim = find(tx.db, &mail, workspace)?.ok_or_else(|| no_claim(id))?;
    let next = claim.claiming.clone().drop_claim()?;
    let claim = put(tx, &mail, claim, next, now)?;
    let detail = json!({"from": "DEADLETTER", "to": "COMPLETED"});
    log(tx, EventKind::Marked, &mail, &claim, detail, now)?;
    rest(tx, &mail, now)?;
    Ok(claim)
}

fn no_claim(id: &MailId) -> StoreError {
    StoreError::Missing { what: "claim on", key: id.to_string() }
}

/// Moves the Mail's file when nobody is at it any more.
fn rest(tx: &mut Tx<'_>, mail: &Found, now: Timestamp) -> Result<(), StoreError> {
    let claims = of_mail(tx.db, mail)?;
    let ended = claims.iter().any(|claim| {
        matches!(
            claim.claiming.state,
            ClaimStateData::Completed | ClaimStateData::Deadletter { .. }
        )
    });
    match location_after_claims(claims.iter().map(|claim| &claim.claiming)) {
        Some(place) if ended => mails::move_to(tx, mail, place, now),
        _ => Ok(()),
    }
}

fn put(
    tx: &mut Tx<'_>,
    mail: &Found,
    claim: Claim,
    next: ClaimStatus,
    now: Timestamp,
) -> Result<Claim, StoreError> {
    let (due, lease) = match &next.state {
        ClaimStateData::New { due } => (Some(due.ms()), None),
        ClaimStateData::Claimed(lease) => (None, Some(lease)),
        ClaimStateData::Completed | ClaimStateData::Deadletter { .. } => (None, None),
    };
    let row = params![
        mail.seq,
        claim.workspace.as_str(),
        next.state.name().as_str(),
        due,
        lease.map(|lease| lease.holder.as_str()),
        lease.map(|lease| lease.until.ms()),
        next.attempts,
        rows::signed(next.epoch),
        claim.revision,
        claim.reason,
        now.ms(),
    ];
    let changed = tx.db.prepare_cached(PUT).and_then(|mut s| s.execute(row)).map_err(fault)?;
    if changed != 1 {
        return Err(StoreError::Conflict { what: "claim", revision: claim.revision });
    }
    Ok(Claim { claiming: next, revision: claim.revision + 1, updated_at: now, ..claim })
}

fn log(
    tx: &mut Tx<'_>,
    kind: EventKind,
    mail: &Found,
    claim: &Claim,
    mut detail: Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    detail["mail"] = json!(claim.mail);
    detail["workspace"] = json!(claim.workspace);
    let about = EventSubject { object: Some(mail.object), ..EventSubject::default() };
    events::append(tx, kind, about, &detail, now)
}

/// The claim of a workspace on a Mail, if it ever had one.
pub(super) fn find(
    db: &Connection,
    mail: &Found,
    workspace: &Workspace,
) -> Result<Option<Claim>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM claims c WHERE c.mail = ?1 AND c.workspace = ?2");
    let row = params![mail.seq, workspace.as_str()];
    db.prepare_cached(&sql)
        .and_then(|mut s| s.query_row(row, |row| read(row, &mail.entry.id)).optional())
        .map_err(fault)
}

/// All claims on a Mail.
pub(super) fn of_mail(db: &Connection, mail: &Found) -> Result<Vec<Claim>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM claims c WHERE c.mail = ?1 ORDER BY c.workspace");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map([mail.seq], |row| read(row, &mail.entry.id)).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

/// Claims that stand so, the oldest first.
pub(super) fn list(
    db: &Connection,
    standing: &str,
    limit: usize,
) -> Result<Vec<Claim>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS}, m.provider || '_' || m.uid
           FROM claims c JOIN mails m ON m.seq = c.mail
          WHERE {standing} ORDER BY c.id LIMIT ?1"
    );
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map([rows::limit(limit)], |row| {
        let id: MailId = parsed(row, 10)?;
        read(row, &id)
    });
    rows.and_then(Iterator::collect::<rusqlite::Result<_>>).map_err(fault)
}

/// Why workspaces have given a Mail up.
pub(super) fn reasons(db: &Connection, mail: i64) -> Result<Vec<(Workspace, String)>, StoreError> {
    let sql = "
        SELECT workspace, coalesce(reason, '') FROM claims
         WHERE mail = ?1 AND state = 'DEADLETTER' ORDER BY workspace
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement.query_map([mail], |row| Ok((workspace(row, 0)?, row.get(1)?)));
    rows.and_then(Iterator::collect::<rusqlite::Result<_>>).map_err(fault)
}

/// Whether a lease has ended by `now`.
pub(super) fn any_ended(db: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "
        SELECT EXISTS (SELECT 1 FROM claims WHERE state = 'CLAIMED' AND lease_until <= ?1)
    ";
    db.prepare_cached(sql)
        .and_then(|mut s| s.query_row([now.ms()], |row| row.get(0)))
        .map_err(fault)
}

fn read(row: &Row<'_>, id: &MailId) -> rusqlite::Result<Claim> {
    let state: String = row.get(1)?;
    let state = ClaimState::parse(&state).ok_or_else(|| rows::damaged(1, "no such state"))?;
    let reason: Option<String> = row.get(8)?;
    let state = match state {
        ClaimState::New => ClaimStateData::New { due: Timestamp::from_ms(row.get(2)?) },
        ClaimState::Claimed => {
            let holder: String = row.get(3)?;
            let holder = Holder::new(holder).map_err(|_| rows::damaged(3, "not a holder"))?;
            ClaimStateData::Claimed(Lease { holder, until: Timestamp::from_ms(row.get(4)?) })
        }
        ClaimState::Completed => ClaimStateData::Completed,
        ClaimState::Deadletter => {
            ClaimStateData::Deadletter { reason: reason.clone().unwrap_or_default() }
        }
    };
    Ok(Claim {
        mail: id.clone(),
        workspace: workspace(row, 0)?,
        claiming: ClaimStatus { state, attempts: row.get(5)?, epoch: rows::unsigned(row, 6)? },
        revision: row.get(7)?,
        reason,
        updated_at: Timestamp::from_ms(row.get(9)?),
    })
}

fn workspace(row: &Row<'_>, column: usize) -> rusqlite::Result<Workspace> {
    let name: String = row.get(column)?;
    Workspace::new(name).map_err(|_| rows::damaged(column, "not a workspace"))
}
