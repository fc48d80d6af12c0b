//! Questions to chat accounts: their codes, the answers, and locks after wrong codes.

use monoco_core::approval::chat_answer::{ChatAnswer, WrongCodes};
use monoco_core::approval::{Approval, ApprovalId, ApprovalStep, SendOrigin};
use monoco_core::did::Did;
use monoco_core::time::Timestamp;

use super::{COLUMNS, TABLES, read};
use crate::sql::db::{Db, Row, params};
use crate::sql::inbound::{self, InboundCheck};
use crate::sql::writer::Tx;
use crate::sql::{rows, send};
use crate::{
    AskRequest, ChatAnswerResult, SendRequest, StoreError, StoreInboundRequest, StoreResult,
};

const INSERT: &str = "
    INSERT INTO approval_asks (target, code, approval, at) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT DO NOTHING
";

const PUT_LOCK: &str = "
    INSERT INTO approval_locks (target, wrong_codes, locked_until)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (target) DO UPDATE
           SET wrong_codes = excluded.wrong_codes, locked_until = excluded.locked_until
";

/// Lists pending approvals that no account was asked about yet.
pub(super) fn unasked(db: &Db, limit: usize) -> StoreResult<Vec<Approval>> {
    let sql = format!(
        "SELECT {COLUMNS} FROM {TABLES} WHERE a.state = 'PENDING' AND a.asked = 0 ORDER BY a.seq"
    );
    let read = |row: &Row<'_>| read(row).map(|stored| stored.approval);
    rows::list_undamaged(db, "approval", limit, &sql, [], read)
}

/// Stores a code and sends its question. Returns `false` when the code is in use.
pub(super) fn ask(tx: &mut Tx<'_>, request: &AskRequest, now: Timestamp) -> StoreResult<bool> {
    let AskRequest { approval, target, code, msg } = request;
    let sql = "SELECT 1 FROM approval_asks WHERE approval = ?1 AND target = ?2";
    let asked = rows::optional(tx.db, sql, params![approval.0, target.as_str()], |_| Ok(()))?;
    if asked.is_some() {
        return Ok(true);
    }
    let row = params![target.as_str(), code, approval.0, now.ms()];
    if rows::changed_rows(tx.db, INSERT, row)? == 0 {
        return Ok(false);
    }
    let origin = SendOrigin::Courier;
    let request = SendRequest { msg: msg.clone(), key: None, not_before: None, origin };
    send::send(tx, &request, now)?;
    Ok(true)
}

/// Answers the approval with a code of this account, or counts a wrong code.
pub(super) fn answer_by_code(
    tx: &mut Tx<'_>,
    account: &Did,
    message: &StoreInboundRequest,
    answer: &ChatAnswer,
    now: Timestamp,
) -> StoreResult<ChatAnswerResult> {
    let sql = "SELECT 1 FROM approval_asks WHERE target = ?1 LIMIT 1";
    if rows::optional(tx.db, sql, [account.as_str()], |_| Ok(()))?.is_none() {
        return Ok(ChatAnswerResult::NotAsked);
    }
    if let InboundCheck::Answered(result) = inbound::check(tx, message, now)? {
        return Ok(ChatAnswerResult::Inbound(result));
    }
    let wrong = wrong_codes(tx.db, account)?;
    if let Some(until) = wrong.lock(now) {
        return Ok(ChatAnswerResult::Locked { until });
    }
    let sql = "SELECT approval FROM approval_asks WHERE target = ?1 AND code = ?2";
    let found =
        rows::optional(tx.db, sql, params![account.as_str(), answer.code], |row| row.get(0))?;
    let Some(id) = found.map(ApprovalId) else {
        let wrong = wrong.after_wrong(now);
        put_wrong_codes(tx, account, wrong)?;
        return Ok(ChatAnswerResult::WrongCode { locked_until: wrong.lock(now) });
    };
    if wrong != WrongCodes::default() {
        put_wrong_codes(tx, account, WrongCodes::default())?;
    }
    let step = match answer.yes {
        true => ApprovalStep::Approve,
        false => ApprovalStep::Reject { reason: answer.reason.clone() },
    };
    match super::answer(tx, id, &step, account.as_str(), None, now) {
        Ok(approval) => Ok(ChatAnswerResult::Answered(Box::new(approval))),
        Err(StoreError::AlreadyAnswered(first)) => Ok(ChatAnswerResult::AlreadyAnswered(id, first)),
        Err(error) => Err(error),
    }
}

fn wrong_codes(db: &Db, account: &Did) -> StoreResult<WrongCodes> {
    let sql = "SELECT wrong_codes, locked_until FROM approval_locks WHERE target = ?1";
    let found = rows::optional(db, sql, [account.as_str()], |row| {
        let locked_until = row.get::<Option<i64>>(1)?.map(Timestamp::from_ms);
        Ok(WrongCodes { count: row.get(0)?, locked_until })
    })?;
    Ok(found.unwrap_or_default())
}

fn put_wrong_codes(tx: &Tx<'_>, account: &Did, wrong: WrongCodes) -> StoreResult<()> {
    let row = params![account.as_str(), wrong.count, wrong.locked_until.map(Timestamp::ms)];
    rows::execute(tx.db, PUT_LOCK, row)?;
    Ok(())
}

/// Removes the codes and locks of an erased account.
pub(in crate::sql) fn erase_account(tx: &Tx<'_>, account: &Did) -> StoreResult<()> {
    for sql in [
        "DELETE FROM approval_asks WHERE target = ?1",
        "DELETE FROM approval_locks WHERE target = ?1",
    ] {
        rows::execute(tx.db, sql, [account.as_str()])?;
    }
    Ok(())
}
