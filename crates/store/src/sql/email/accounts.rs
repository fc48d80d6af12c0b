//! Accounts, cursors of streams, the directory of people, and the secret of the store.

use monoco_core::did::{Did, TunnelId};
use monoco_core::email::cursor::FolderCursor;
use monoco_core::email::directory::Person;
use monoco_core::email::{EmailAccount, ScanReport};
use monoco_core::time::Timestamp;

use crate::StoreError;
use crate::sql::contacts;
use crate::sql::db::{Db, Row, RowResult, params};
use crate::sql::rows::{self, parsed};
use crate::sql::writer::Tx;

/// The row of the secret that proves envelope ids.
const ENVELOPE_SECRET: &str = "email_envelope";

const SELECT: &str = "
    SELECT p.did, a.tunnel, a.address, a.description, COALESCE(t.active, 1), a.last_scanned_at,
           a.last_scan, a.created_at, a.updated_at
      FROM email_accounts a
      JOIN parties p ON p.id = a.tunnel
      LEFT JOIN tunnels t ON t.party = a.tunnel
";

const PUT: &str = "
    INSERT INTO email_accounts (tunnel, address, description, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?4)
        ON CONFLICT (tunnel) DO UPDATE
       SET address = excluded.address, description = excluded.description,
           updated_at = excluded.updated_at
     WHERE email_accounts.address <> excluded.address
        OR email_accounts.description IS DISTINCT FROM excluded.description
";

const PUT_CURSOR: &str = "
    INSERT INTO stream_cursors (tunnel, stream, cursor)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (tunnel, stream) DO UPDATE SET cursor = excluded.cursor
";

/// Adds an account, or changes its address and description.
pub(super) fn put(
    tx: &mut Tx<'_>,
    tunnel: &TunnelId,
    address: &str,
    description: Option<&str>,
    now: Timestamp,
) -> Result<EmailAccount, StoreError> {
    let id = contacts::party_id(tx, &tunnel.did())?;
    rows::execute(tx.db, PUT, params![id, address, description, now.ms()])?;
    find(tx, tunnel)
}

pub(super) fn set_scanned(
    tx: &mut Tx<'_>,
    tunnel: &TunnelId,
    report: &ScanReport,
    now: Timestamp,
) -> Result<(), StoreError> {
    let id = account_id(tx, tunnel)?;
    let sql = "UPDATE email_accounts SET last_scanned_at = ?2, last_scan = ?3 WHERE tunnel = ?1";
    rows::execute(tx.db, sql, params![id, now.ms(), rows::as_json(report)?])?;
    Ok(())
}

/// Removes an account and its cursors.
pub(super) fn remove(tx: &mut Tx<'_>, tunnel: &TunnelId) -> Result<(), StoreError> {
    let id = account_id(tx, tunnel)?;
    rows::execute(tx.db, "DELETE FROM email_accounts WHERE tunnel = ?1", [id])?;
    rows::execute(tx.db, "DELETE FROM stream_cursors WHERE tunnel = ?1", [id])?;
    Ok(())
}

/// The row of an account that must exist.
fn account_id(tx: &mut Tx<'_>, tunnel: &TunnelId) -> Result<i64, StoreError> {
    let missing = || StoreError::Missing { what: "e-mail account", key: tunnel.to_string() };
    let id = contacts::find_party_id(tx, &tunnel.did())?.ok_or_else(missing)?;
    let sql = "SELECT tunnel FROM email_accounts WHERE tunnel = ?1";
    rows::optional(tx.db, sql, [id], |row| row.get(0))?.ok_or_else(missing)
}

fn find(tx: &mut Tx<'_>, tunnel: &TunnelId) -> Result<EmailAccount, StoreError> {
    let id = account_id(tx, tunnel)?;
    let sql = format!("{SELECT} WHERE a.tunnel = ?1");
    let (_, account) = rows::one(tx.db, &sql, [id], read)?;
    Ok(EmailAccount { last_seen_uid: last_seen_uid(tx.db, id)?, ..account })
}

/// Lists all accounts, ordered by tunnel.
pub(super) fn list(db: &Db) -> Result<Vec<EmailAccount>, StoreError> {
    let sql = format!("{SELECT} ORDER BY p.did");
    let found = rows::list_undamaged(db, "e-mail account", usize::MAX, &sql, [], read)?;
    let with_uid =
        |(id, account)| Ok(EmailAccount { last_seen_uid: last_seen_uid(db, id)?, ..account });
    found.into_iter().map(with_uid).collect()
}

/// Reads an account without its last UID.
fn read(row: &Row<'_>) -> RowResult<(i64, EmailAccount)> {
    let did: Did = parsed(row, 0)?;
    let scan: Option<String> = row.get(6)?;
    let last_scan = match scan {
        Some(scan) => {
            Some(serde_json::from_str(&scan).map_err(|_| rows::damaged(6, "invalid report"))?)
        }
        None => None,
    };
    let account = EmailAccount {
        tunnel: did.tunnel().ok_or_else(|| rows::damaged(0, "not the DID of a tunnel"))?,
        address: row.get(2)?,
        description: row.get(3)?,
        active: row.get(4)?,
        last_seen_uid: 0,
        last_scanned_at: row.get::<Option<i64>>(5)?.map(Timestamp::from_ms),
        last_scan,
        created_at: Timestamp::from_ms(row.get(7)?),
        updated_at: Timestamp::from_ms(row.get(8)?),
    };
    Ok((row.get(1)?, account))
}

/// The last UID of the INBOX, or of the folder that was read furthest.
fn last_seen_uid(db: &Db, tunnel: i64) -> Result<u32, StoreError> {
    let sql = "SELECT stream, cursor FROM stream_cursors WHERE tunnel = ?1";
    let cursors: Vec<(String, String)> =
        rows::list(db, sql, [tunnel], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let uid = |cursor: &str| FolderCursor::parse(cursor).ok().map(|cursor| cursor.last_uid);
    let inbox = cursors.iter().find(|(stream, _)| stream.eq_ignore_ascii_case("INBOX"));
    let furthest = || cursors.iter().filter_map(|(_, cursor)| uid(cursor)).max();
    Ok(inbox.and_then(|(_, cursor)| uid(cursor)).or_else(furthest).unwrap_or(0))
}

/// The stored cursor of a stream.
pub(super) fn cursor(db: &Db, tunnel: i64, stream: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT cursor FROM stream_cursors WHERE tunnel = ?1 AND stream = ?2";
    rows::optional(db, sql, params![tunnel, stream], |row| row.get(0))
}

pub(super) fn put_cursor(
    tx: &Tx<'_>,
    tunnel: i64,
    stream: &str,
    cursor: &str,
) -> Result<(), StoreError> {
    rows::execute(tx.db, PUT_CURSOR, params![tunnel, stream, cursor])?;
    Ok(())
}

/// Replaces the directory of people.
pub(super) fn put_directory(tx: &Tx<'_>, people: &[Person]) -> Result<(), StoreError> {
    rows::execute(tx.db, "DELETE FROM people", [])?;
    for person in people {
        let json = rows::as_json(person)?;
        rows::execute(tx.db, "INSERT INTO people (person) VALUES (?1)", [json])?;
    }
    Ok(())
}

pub(super) fn directory(db: &Db) -> Result<Vec<Person>, StoreError> {
    let sql = "SELECT seq, person FROM people ORDER BY seq";
    rows::list_undamaged(db, "person", usize::MAX, sql, [], |row| {
        let person: String = row.get(1)?;
        serde_json::from_str(&person).map_err(|_| rows::damaged(1, "invalid person"))
    })
}

/// Returns the secret that proves envelope ids, and creates it when there is none.
pub(super) fn secret(tx: &Tx<'_>) -> Result<[u8; 32], StoreError> {
    let sql = "SELECT value FROM secrets WHERE name = ?1";
    if let Some(secret) = rows::optional(tx.db, sql, [ENVELOPE_SECRET], |row| row.get(0))? {
        return Ok(secret);
    }
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| {
        StoreError::Unavailable(format!("the system has no random numbers: {error}"))
    })?;
    let sql = "INSERT INTO secrets (name, value) VALUES (?1, ?2)";
    rows::execute(tx.db, sql, params![ENVELOPE_SECRET, secret])?;
    Ok(secret)
}
