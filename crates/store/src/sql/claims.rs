//! Claims: the work of one workspace on one Mail.

use async_trait::async_trait;
use monoco_core::claim::{
    Claim, ClaimState, ClaimStateData, ClaimStatus, MailLocation, Workspace, location_after_claims,
};
use monoco_core::event::EventKind;
use monoco_core::lease::{Holder, Lease, LeaseDuration, LeaseProof};
use monoco_core::mail::MailId;
use monoco_core::record::InvalidTransition;
use monoco_core::retry::RetryPolicy;
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::db::{Db, Row, RowResult, params};
use super::events::{self, EventSubject};
use super::mails::{self, StoredMail};
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{SqlStore, records};
use crate::{ClaimStore, ClaimUpdate, StoreError, StoreResult};

pub(super) const COLUMNS: &str = "
    c.workspace, c.state, c.due_at, c.holder, c.lease_until, c.attempts, c.epoch, c.revision,
    c.reason, c.updated_at
";

/// The number of [`COLUMNS`].
pub(super) const COLUMN_COUNT: usize = 10;

const PUT: &str = "
    INSERT INTO claims (mail, workspace, state, due_at, holder, lease_until, attempts, epoch,
                        revision, reason, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?10, ?11)
        ON CONFLICT (mail, workspace) DO UPDATE
       SET state = excluded.state, due_at = excluded.due_at, holder = excluded.holder,
           lease_until = excluded.lease_until, attempts = excluded.attempts,
           epoch = excluded.epoch, revision = claims.revision + 1, reason = excluded.reason,
           updated_at = excluded.updated_at
     WHERE claims.revision = ?9
";

const EXPIRED: &str = "
    SELECT mail, workspace
      FROM claims
     WHERE state = 'CLAIMED' AND lease_until <= ?1
     ORDER BY lease_until, id
";

/// The event of a failed attempt, by the state that it led to.
fn failure_event(next: &ClaimStatus, reason: &str) -> (EventKind, Value) {
    match &next.state {
        ClaimStateData::Deadletter { .. } => (EventKind::Dead, json!({"reason": reason})),
        ClaimStateData::New { due } => {
            (EventKind::Failed, json!({"reason": reason, "next_retry_at": due.rfc3339()}))
        }
        _ => (EventKind::Failed, json!({"reason": reason})),
    }
}

/// Ends one claim whose lease has expired.
fn expire(
    tx: &mut Tx<'_>,
    mail: i64,
    workspace: &Workspace,
    retry: &RetryPolicy,
    now: Timestamp,
) -> StoreResult<()> {
    let mail = mails::by_seq(tx.db, mail)?;
    let Some(mut claim) = find(tx.db, &mail, workspace)? else { return Ok(()) };
    let ClaimStateData::Claimed(lease) = &claim.claiming.state else { return Ok(()) };
    let held_by = lease.holder.clone();
    let next = claim.claiming.clone().expire(now, retry)?;
    let (kind, mut detail) = match &next.state {
        ClaimStateData::Deadletter { reason } => {
            claim.reason = Some(reason.clone());
            failure_event(&next, reason)
        }
        _ => (EventKind::LeaseEnded, json!({})),
    };
    detail["held_by"] = json!(held_by);
    let claim = put(tx, &mail, claim, next, now)?;
    append_event(tx, kind, &mail, &claim, detail, now)?;
    move_finished_mail(tx, &mail, now)
}

/// Applies the step of an operator to a dead claim.
fn step_dead_claim(
    tx: &mut Tx<'_>,
    id: &MailId,
    workspace: &Workspace,
    step: impl FnOnce(ClaimStatus) -> Result<ClaimStatus, InvalidTransition>,
    now: Timestamp,
) -> StoreResult<(StoredMail, Claim)> {
    let mail = mails::by_id(tx.db, id)?;
    let missing = || StoreError::Missing { what: "claim on", key: id.to_string() };
    let claim = find(tx.db, &mail, workspace)?.ok_or_else(missing)?;
    let next = step(claim.claiming.clone())?;
    let detail = json!({"from": "DEADLETTER", "to": next.state.name().as_str()});
    let claim = put(tx, &mail, claim, next, now)?;
    append_event(tx, EventKind::Marked, &mail, &claim, detail, now)?;
    Ok((mail, claim))
}

/// Drops the dead claims on an erased Mail, and deletes the reasons of all claims: they can quote
/// the text.
pub(super) fn erase(tx: &mut Tx<'_>, mail: &StoredMail, now: Timestamp) -> StoreResult<()> {
    for claim in of_mail(tx.db, mail)? {
        let Ok(next) = claim.claiming.clone().drop_claim() else { continue };
        let detail = json!({"from": "DEADLETTER", "to": next.state.name().as_str()});
        let claim = put(tx, mail, claim, next, now)?;
        append_event(tx, EventKind::Marked, mail, &claim, detail, now)?;
    }
    rows::execute(tx.db, "UPDATE claims SET reason = NULL WHERE mail = ?1", [mail.seq])?;
    Ok(())
}

/// Moves the Mail's file when no claim on it is open any more.
fn move_finished_mail(tx: &mut Tx<'_>, mail: &StoredMail, now: Timestamp) -> StoreResult<()> {
    let claims = of_mail(tx.db, mail)?;
    let ended = claims.iter().any(|claim| {
        matches!(
            claim.claiming.state,
            ClaimStateData::Completed | ClaimStateData::Deadletter { .. }
        )
    });
    match location_after_claims(claims.iter().map(|claim| &claim.claiming)) {
        Some(location) if ended => {
            mails::move_to(tx, mail, location, now)?;
            if location == MailLocation::Archive {
                // Processed by a workspace, so that it does not wait for the owner.
                records::complete(tx, mail.object, mail.owner, now)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Writes a new status, if the row still has the revision of `claim`.
fn put(
    tx: &mut Tx<'_>,
    mail: &StoredMail,
    claim: Claim,
    next: ClaimStatus,
    now: Timestamp,
) -> StoreResult<Claim> {
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
    if !rows::update_one(tx.db, PUT, row)? {
        return Err(StoreError::Conflict { what: "claim", revision: claim.revision });
    }
    Ok(Claim { claiming: next, revision: claim.revision + 1, updated_at: now, ..claim })
}

fn append_event(
    tx: &mut Tx<'_>,
    kind: EventKind,
    mail: &StoredMail,
    claim: &Claim,
    mut detail: Value,
    now: Timestamp,
) -> StoreResult<()> {
    detail["mail"] = json!(claim.mail);
    detail["workspace"] = json!(claim.workspace);
    let subject = EventSubject { object: Some(mail.object), ..EventSubject::default() };
    events::append(tx, kind, subject, &detail, now)
}

/// Returns the claim of a workspace on a Mail, or `None` when it never claimed it.
pub(super) fn find(
    db: &Db,
    mail: &StoredMail,
    workspace: &Workspace,
) -> StoreResult<Option<Claim>> {
    let sql = format!("SELECT {COLUMNS} FROM claims c WHERE c.mail = ?1 AND c.workspace = ?2");
    let row = params![mail.seq, workspace.as_str()];
    rows::optional(db, &sql, row, |row| read(row, &mail.entry.id))
}

/// Lists the claims of all workspaces on a Mail.
pub(super) fn of_mail(db: &Db, mail: &StoredMail) -> StoreResult<Vec<Claim>> {
    let sql = format!("SELECT {COLUMNS} FROM claims c WHERE c.mail = ?1 ORDER BY c.workspace");
    rows::list_undamaged(db, "claim of workspace", usize::MAX, &sql, [mail.seq], |row| {
        read(row, &mail.entry.id)
    })
}

/// Lists claims that match a condition, oldest first.
fn list(db: &Db, condition: &str, limit: usize) -> StoreResult<Vec<Claim>> {
    let sql = format!(
        "SELECT {COLUMNS}, m.provider || '_' || m.uid
           FROM claims c JOIN mails m ON m.seq = c.mail
          WHERE {condition} ORDER BY c.id"
    );
    rows::list_undamaged(db, "claim of workspace", limit, &sql, [], |row| {
        read(row, &parsed(row, COLUMN_COUNT)?)
    })
}

/// The failure reasons of the dead claims on a Mail.
pub(super) fn failure_reasons(db: &Db, mail: i64) -> StoreResult<Vec<(Workspace, String)>> {
    let sql = "
        SELECT workspace, coalesce(reason, '') FROM claims
         WHERE mail = ?1 AND state = 'DEADLETTER' ORDER BY workspace
    ";
    rows::list_undamaged(db, "claim of workspace", usize::MAX, sql, [mail], |row| {
        Ok((workspace(row, 0)?, row.get(1)?))
    })
}

pub(super) fn read(row: &Row<'_>, id: &MailId) -> RowResult<Claim> {
    let state: String = row.get(1)?;
    let state = ClaimState::parse(&state).ok_or_else(|| rows::damaged(1, "unknown state"))?;
    let reason: Option<String> = row.get(8)?;
    let state = match state {
        ClaimState::New => ClaimStateData::New { due: Timestamp::from_ms(row.get(2)?) },
        ClaimState::Claimed => {
            let holder: String = row.get(3)?;
            let holder = Holder::new(holder).map_err(|_| rows::damaged(3, "invalid holder"))?;
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

fn workspace(row: &Row<'_>, column: usize) -> RowResult<Workspace> {
    let name: String = row.get(column)?;
    Workspace::new(name).map_err(|_| rows::damaged(column, "invalid workspace"))
}

#[async_trait]
impl ClaimStore for SqlStore {
    async fn claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        holder: Holder,
        term: LeaseDuration,
        retry: RetryPolicy,
        now: Timestamp,
    ) -> StoreResult<Claim> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.writer
            .run(move |tx| {
                let mail = mails::by_id(tx.db, &id)?;
                if let Some(at) = mail.entry.tombstone() {
                    return Err(StoreError::Erased { key: id.to_string(), at, by: None });
                }
                let from = match mail.location {
                    MailLocation::Held => Some("HELD"),
                    MailLocation::Removed => Some("GONE"),
                    MailLocation::Inbound | MailLocation::Archive | MailLocation::Deadletter => {
                        None
                    }
                };
                if let Some(from) = from {
                    return Err(InvalidTransition { from, to: "CLAIMED" }.into());
                }
                let claim = find(tx.db, &mail, &workspace)?.unwrap_or_else(|| Claim {
                    mail: id.clone(),
                    workspace: workspace.clone(),
                    claiming: ClaimStatus::start(now),
                    revision: 0,
                    reason: None,
                    updated_at: now,
                });
                let next = claim.claiming.clone().claim(holder.clone(), now, term, &retry)?;
                let detail = json!({"by": holder, "attempt": next.attempts, "epoch": next.epoch});
                let claim = put(tx, &mail, claim, next, now)?;
                append_event(tx, EventKind::Claimed, &mail, &claim, detail, now)?;
                Ok(claim)
            })
            .await
    }

    async fn update_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        proof: LeaseProof,
        update: ClaimUpdate,
        now: Timestamp,
    ) -> StoreResult<Claim> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.writer
            .run(move |tx| {
                let mail = mails::by_id(tx.db, &id)?;
                let Some(mut claim) = find(tx.db, &mail, &workspace)? else {
                    let to = match update {
                        ClaimUpdate::Renew(_) => ClaimState::Claimed,
                        ClaimUpdate::Complete => ClaimState::Completed,
                        ClaimUpdate::Fail { .. } => ClaimState::New,
                    };
                    let (from, to) = (ClaimState::New.as_str(), to.as_str());
                    return Err(InvalidTransition { from, to }.into());
                };
                let status = claim.claiming.clone();
                let (kind, next, detail) = match &update {
                    ClaimUpdate::Renew(term) => {
                        (EventKind::Renewed, status.renew(&proof, now, *term)?, json!({}))
                    }
                    ClaimUpdate::Complete => {
                        // Completing twice with the same epoch succeeds, so that a caller
                        // that lost the response can repeat the request.
                        if status.state == ClaimStateData::Completed
                            && proof.epoch == Some(status.epoch)
                        {
                            return Ok(claim);
                        }
                        (EventKind::Completed, status.complete(&proof)?, json!({}))
                    }
                    ClaimUpdate::Fail { reason, retryable, retry } => {
                        let next = status.fail(&proof, reason.clone(), *retryable, now, retry)?;
                        claim.reason = Some(reason.clone());
                        let (kind, detail) = failure_event(&next, reason);
                        (kind, next, detail)
                    }
                };
                let claim = put(tx, &mail, claim, next, now)?;
                append_event(tx, kind, &mail, &claim, detail, now)?;
                move_finished_mail(tx, &mail, now)?;
                Ok(claim)
            })
            .await
    }

    async fn expire_claims(
        &self,
        retry: RetryPolicy,
        limit: usize,
        now: Timestamp,
    ) -> StoreResult<usize> {
        // A read first, because a read is cheaper than a commit and usually finds nothing.
        let any = self.read(move |db| {
            let sql = "
                SELECT EXISTS (SELECT 1 FROM claims WHERE state = 'CLAIMED' AND lease_until <= ?1)
            ";
            rows::one(db, sql, [now.ms()], |row| row.get::<bool>(0))
        });
        if !any.await? {
            return Ok(0);
        }
        self.writer
            .run(move |tx| {
                let row = [now.ms()];
                let expired: Vec<(i64, Workspace)> =
                    rows::list_undamaged(tx.db, "claim on Mail", limit, EXPIRED, row, |row| {
                        Ok((row.get(0)?, workspace(row, 1)?))
                    })?;
                let mut ended = 0;
                for (mail, workspace) in &expired {
                    let result = expire(tx, *mail, workspace, &retry, now);
                    ended += usize::from(tx.db.unless_damaged("Mail", mail, result)?.is_some());
                }
                Ok(ended)
            })
            .await
    }

    async fn retry_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> StoreResult<Claim> {
        let (id, workspace) = (id.clone(), workspace.clone());
        let retry = self.writer.run(move |tx| {
            let (mail, claim) = step_dead_claim(tx, &id, &workspace, |it| it.retry(now), now)?;
            mails::move_to(tx, &mail, MailLocation::Inbound, now)?;
            Ok(claim)
        });
        retry.await
    }

    async fn drop_claim(
        &self,
        id: &MailId,
        workspace: &Workspace,
        now: Timestamp,
    ) -> StoreResult<Claim> {
        let (id, workspace) = (id.clone(), workspace.clone());
        let drop_claim = self.writer.run(move |tx| {
            let (mail, claim) = step_dead_claim(tx, &id, &workspace, ClaimStatus::drop_claim, now)?;
            move_finished_mail(tx, &mail, now)?;
            Ok(claim)
        });
        drop_claim.await
    }

    async fn dead_claims(&self, limit: usize) -> StoreResult<Vec<Claim>> {
        self.read(move |db| list(db, "c.state = 'DEADLETTER'", limit)).await
    }

    async fn open_claims(&self, limit: usize) -> StoreResult<Vec<Claim>> {
        self.read(move |db| list(db, "c.state IN ('NEW', 'CLAIMED')", limit)).await
    }

    async fn claims(&self, id: &MailId) -> StoreResult<Vec<Claim>> {
        let id = id.clone();
        self.read(move |db| of_mail(db, &mails::by_id(db, &id)?)).await
    }
}
