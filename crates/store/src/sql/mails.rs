//! Mails and their locations.
//!
//! `seq` numbers Mails in the order in which they became visible, and is final once a Mail is
//! visible. `change` is the number of the last change of a Mail's location. The index file
//! follows the first, the directories follow the second.

use async_trait::async_trait;
use monoco_core::claim::{ClaimState, MailLocation, Workspace};
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_core::merge::BuiltMail;
use monoco_core::time::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::damage;
use super::db::{Db, Row, RowResult, ToParam, params};
use super::events::{self, EventSubject};
use super::writer::Tx;
use super::{SqlStore, claims, contacts, files, retention, rows};
use crate::{
    MailQuery, MailRow, MailStore, Page, PageRequest, RestoreMailResult, StoreError, StoreResult,
};

/// Rows that a filtered list reads for one page. Few in tests, so that they reach the limit.
const MAX_ROWS_SEARCHED: usize = if cfg!(test) { 5 } else { 10_000 };

/// Name of the row in the table `progress` below which no Mail gets a number.
const RESERVED_NUMBERS: &str = "reserved_mail_numbers";

/// Held Mails of one author that are released at once.
const MAX_RELEASED: usize = 10_000;

const INSERT: &str = "
    INSERT INTO mails (seq, uid, provider, object, author, owner, location, change,
                       day, received_at, entry)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
";

/// Columns of [`read`], in its order. The table has the alias `m`.
pub(super) const COLUMNS: &str =
    "m.seq, m.entry, m.location, m.change, m.object, m.received_at, m.owner";

pub(super) struct StoredMail {
    pub(super) seq: i64,
    pub(super) entry: MailIndexEntry,
    pub(super) location: MailLocation,
    pub(super) change: i64,
    pub(super) object: i64,
    /// `parties.id` of the courier's owner.
    pub(super) owner: i64,
}

/// A Mail to insert.
pub(super) struct NewMail<'a> {
    pub(super) id: &'a MailId,
    pub(super) entry: &'a MailIndexEntry,
    pub(super) object: i64,
    pub(super) author: i64,
    pub(super) owner: i64,
    pub(super) location: MailLocation,
}

/// Inserts a Mail and gives it a number.
pub(super) fn insert(tx: &mut Tx<'_>, new: NewMail<'_>) -> StoreResult<()> {
    let seq = next_seq(tx)?;
    let change = next_change(tx)?;
    let day = retention::day(tx)?;
    let entry = MailIndexEntry { seq, ..new.entry.clone() };
    let row = params![
        seq,
        new.id.uid(),
        new.id.provider(),
        new.object,
        new.author,
        new.owner,
        new.location.as_str(),
        change,
        day,
        new.entry.received_at.ms(),
        rows::as_json(&entry)?,
    ];
    rows::execute(tx.db, INSERT, row)?;
    Ok(())
}

/// Changes the location of a Mail's file.
pub(super) fn move_to(
    tx: &mut Tx<'_>,
    mail: &StoredMail,
    to: MailLocation,
    now: Timestamp,
) -> StoreResult<()> {
    // An erased Mail has no file, whatever becomes of its claims.
    if mail.location == to || mail.entry.tombstone().is_some() {
        return Ok(());
    }
    let detail = json!({"mail": mail.entry.id, "from": mail.location.as_str(), "to": to.as_str()});
    set_location(tx, mail, to, EventKind::Moved, &detail, now)
}

/// Archives a Mail that no workspace has claimed.
pub(super) fn expire(tx: &mut Tx<'_>, mail: &StoredMail, now: Timestamp) -> StoreResult<()> {
    let detail = json!({"mail": mail.entry.id, "received_at": mail.entry.received_at.rfc3339()});
    set_location(tx, mail, MailLocation::Archive, EventKind::Expired, &detail, now)
}

fn set_location(
    tx: &mut Tx<'_>,
    mail: &StoredMail,
    to: MailLocation,
    kind: EventKind,
    detail: &Value,
    now: Timestamp,
) -> StoreResult<()> {
    let change = next_change(tx)?;
    let day = retention::day(tx)?;
    let sql = "UPDATE mails SET location = ?2, change = ?3, day = ?4 WHERE seq = ?1";
    rows::execute(tx.db, sql, params![mail.seq, to.as_str(), change, day])?;
    let subject = EventSubject { object: Some(mail.object), ..EventSubject::default() };
    events::append(tx, kind, subject, detail, now)
}

/// Replaces the index entry of a Mail whose text was erased. The index of Mails must be rewritten
/// then.
pub(super) fn replace_entry(
    tx: &mut Tx<'_>,
    seq: i64,
    entry: &MailIndexEntry,
    location: MailLocation,
) -> StoreResult<()> {
    let change = next_change(tx)?;
    let sql = "UPDATE mails SET entry = ?2, location = ?3, change = ?4 WHERE seq = ?1";
    let row = params![seq, rows::as_json(entry)?, location.as_str(), change];
    rows::execute(tx.db, sql, row)?;
    files::invalidate_index(tx.db)
}

const HELD: &str = "
    SELECT seq, entry
      FROM mails
     WHERE author = ?1 AND location = 'held'
     ORDER BY seq
";

/// The only field of an entry that decides whether a held Mail is released.
#[derive(Deserialize)]
struct HeldEntry {
    #[serde(default)]
    unverified: bool,
}

/// Makes the held Mails of an author visible, except those that nothing proves to be of this
/// author: anyone can write the address of a friend.
pub(super) fn release_held(tx: &mut Tx<'_>, author: &Did, now: Timestamp) -> StoreResult<()> {
    let Some(author) = contacts::find_party_id(tx, author)? else { return Ok(()) };
    let mut released: Vec<i64> = Vec::new();
    rows::scan(tx.db, MAX_RELEASED, HELD, [author], |row| {
        let entry = serde_json::from_str::<HeldEntry>(row.get_str(1)?);
        // A damaged entry is passed over below, with a report.
        if !entry.is_ok_and(|entry| entry.unverified) {
            released.push(row.get(0)?);
        }
        Ok(released.len() < MAX_RELEASED)
    })?;
    for seq in released {
        let Some(mail) = tx.db.unless_damaged("Mail", seq, by_seq(tx.db, seq))? else { continue };
        // A new number, behind all visible Mails.
        let new_seq = next_seq(tx)?;
        let entry = MailIndexEntry { seq: new_seq, ..mail.entry.clone() };
        let sql = "UPDATE mails SET seq = ?2, entry = ?3 WHERE seq = ?1";
        rows::execute(tx.db, sql, params![seq, new_seq, rows::as_json(&entry)?])?;
        move_to(tx, &StoredMail { seq: new_seq, entry, ..mail }, MailLocation::Inbound, now)?;
    }
    Ok(())
}

fn next(db: &Db, sql: &str) -> StoreResult<i64> {
    rows::one(db, sql, [], |row| row.get(0))
}

/// The number of the next Mail: above all Mails, and above the reserved numbers.
fn next_seq(tx: &mut Tx<'_>) -> StoreResult<i64> {
    let reserved = match tx.cache.reserved_mail_numbers {
        Some(reserved) => reserved,
        None => retention::progress(tx.db, RESERVED_NUMBERS)?.unwrap_or(0),
    };
    tx.cache.reserved_mail_numbers = Some(reserved);
    let next = next(tx.db, "SELECT coalesce(max(seq), 0) + 1 FROM mails")?;
    Ok(next.max(reserved + 1))
}

pub(super) fn next_change(tx: &mut Tx<'_>) -> StoreResult<i64> {
    let change = next(tx.db, "SELECT coalesce(max(change), 0) + 1 FROM mails")?;
    tx.effects.file_change = Some(change);
    Ok(change)
}

pub(super) fn read(row: &Row<'_>) -> RowResult<StoredMail> {
    let entry: String = row.get(1)?;
    let location: String = row.get(2)?;
    Ok(StoredMail {
        seq: row.get(0)?,
        entry: serde_json::from_str(&entry).map_err(|_| rows::damaged(1, "invalid entry"))?,
        location: MailLocation::parse(&location)
            .ok_or_else(|| rows::damaged(2, "unknown location"))?,
        change: row.get(3)?,
        object: row.get(4)?,
        owner: row.get(6)?,
    })
}

pub(super) fn by_seq(db: &Db, seq: i64) -> StoreResult<StoredMail> {
    rows::one(db, &format!("SELECT {COLUMNS} FROM mails m WHERE m.seq = ?1"), [seq], read)
}

pub(super) fn by_id(db: &Db, id: &MailId) -> StoreResult<StoredMail> {
    let sql = format!("SELECT {COLUMNS} FROM mails m WHERE m.uid = ?1 AND m.provider = ?2");
    let found = rows::optional(db, &sql, [id.uid(), id.provider()], read)?;
    found.ok_or_else(|| StoreError::Missing { what: "Mail", key: id.to_string() })
}

/// The number of a Mail, or `None` when the store does not know the Mail.
pub(crate) fn find_seq(db: &Db, id: &MailId) -> StoreResult<Option<i64>> {
    let sql = "SELECT seq FROM mails WHERE uid = ?1 AND provider = ?2";
    rows::optional(db, sql, [id.uid(), id.provider()], |row| row.get(0))
}

/// Returns the Mail of an object, or `None` when the object is not a Mail.
pub(super) fn of_object(db: &Db, object: i64) -> StoreResult<Option<StoredMail>> {
    let sql = format!("SELECT {COLUMNS} FROM mails m WHERE m.object = ?1 LIMIT 1");
    rows::optional(db, &sql, [object], read)
}

/// Time of the oldest Mail without a claim.
pub(super) fn oldest_unclaimed(db: &Db) -> StoreResult<Option<Timestamp>> {
    let sql = "
        SELECT received_at
          FROM mails m
         WHERE location = 'inbound' AND NOT EXISTS (SELECT 1 FROM claims c WHERE c.mail = m.seq)
         ORDER BY day, seq
         LIMIT 1
    ";
    let at = rows::optional(db, sql, [], |row| row.get(0))?;
    Ok(at.map(Timestamp::from_ms))
}

/// Whether no workspace has ever claimed a Mail, and its file is in `inbound`.
fn is_unclaimed(db: &Db, mail: &StoredMail) -> StoreResult<bool> {
    let sql = "SELECT 1 FROM claims WHERE mail = ?1 LIMIT 1";
    let claim = rows::optional(db, sql, [mail.seq], |row| row.get::<i64>(0))?;
    Ok(mail.location == MailLocation::Inbound && claim.is_none())
}

fn list(db: &Db, query: &MailQuery, page: &PageRequest) -> StoreResult<Page<MailRow>> {
    let (beyond, order) = rows::direction(page);
    // Claims in other states than NEW always have a row, and an index.
    let by_claim = query.status.filter(|status| *status != ClaimState::New);
    let state = by_claim.map(ClaimState::as_str);
    let (start, limit) = (rows::start(page), rows::limit(MAX_ROWS_SEARCHED));
    let (sql, values): (_, &[&dyn ToParam]) = match (&state, &query.provider) {
        (Some(state), _) => (
            format!(
                "SELECT {COLUMNS} FROM claims c JOIN mails m ON m.seq = c.mail
                  WHERE c.workspace = ?3 AND c.state = ?4 AND c.mail {beyond} ?1
                  ORDER BY c.mail {order} LIMIT ?2"
            ),
            &[&start, &limit, &query.workspace.as_str(), state],
        ),
        (None, Some(provider)) => (
            format!(
                "SELECT {COLUMNS} FROM mails m
                  WHERE m.provider = ?3 AND m.seq {beyond} ?1 ORDER BY m.seq {order} LIMIT ?2"
            ),
            &[&start, &limit, provider],
        ),
        (None, None) => (
            format!(
                "SELECT {COLUMNS} FROM mails m
                  WHERE m.seq {beyond} ?1 ORDER BY m.seq {order} LIMIT ?2"
            ),
            &[&start, &limit],
        ),
    };
    let mut entries = Vec::new();
    let (mut searched, mut last, mut full) = (0, None, false);
    rows::scan(db, page.limit.saturating_add(1), &sql, values, |row| {
        full = entries.len() == page.limit;
        if full {
            return Ok(false);
        }
        searched += 1;
        last = Some(row.get(0)?);
        // The scan goes on behind the first Mail that is too old, because a Mail that was
        // released late has a higher number than newer ones.
        let received_at = Timestamp::from_ms(row.get(5)?);
        if query.since.is_some_and(|since| received_at < since) {
            return Ok(true);
        }
        let found = read(row).map_err(Into::into).and_then(|mail| {
            let claim = claims::find(db, &mail, &query.workspace)?;
            Ok((mail, claim))
        });
        let Some((mail, claim)) = db.unless_damaged("Mail", damage::key(row), found)? else {
            return Ok(true);
        };
        let state = claim.as_ref().map_or(ClaimState::New, |claim| claim.claiming.state.name());
        let matches = !matches!(mail.location, MailLocation::Held)
            && query.status.is_none_or(|status| status == state)
            && query.provider.as_ref().is_none_or(|provider| provider == mail.entry.id.provider());
        if matches && (!query.unclaimed || is_unclaimed(db, &mail)?) {
            entries.push(MailRow { entry: mail.entry, location: mail.location, claim });
        }
        Ok(true)
    })?;
    // After the maximum number of rows there may be more behind them.
    Ok(Page { entries, next: last.filter(|_| full || searched >= MAX_ROWS_SEARCHED) })
}

#[async_trait]
impl MailStore for SqlStore {
    async fn mail(&self, id: &MailId, workspace: &Workspace) -> StoreResult<MailRow> {
        let (id, workspace) = (id.clone(), workspace.clone());
        self.read(move |db| {
            let mail = by_id(db, &id)?;
            let claim = claims::find(db, &mail, &workspace)?;
            Ok(MailRow { entry: mail.entry, location: mail.location, claim })
        })
        .await
    }

    async fn mails(&self, query: MailQuery, page: PageRequest) -> StoreResult<Page<MailRow>> {
        self.read(move |db| list(db, &query, &page)).await
    }

    async fn unknown_mails(&self, ids: Vec<MailId>) -> StoreResult<Vec<MailId>> {
        self.read(move |db| {
            let mut unknown = Vec::new();
            for id in ids {
                if find_seq(db, &id)?.is_none() {
                    unknown.push(id);
                }
            }
            Ok(unknown)
        })
        .await
    }

    async fn restore_mail(
        &self,
        mail: BuiltMail,
        location: MailLocation,
        owner: &Did,
        now: Timestamp,
    ) -> StoreResult<RestoreMailResult> {
        self.restore(mail, location, owner.clone(), now).await
    }

    async fn reserve_mail_numbers(&self, number: i64) -> StoreResult<()> {
        self.writer
            .run(move |tx| {
                let reserved = retention::progress(tx.db, RESERVED_NUMBERS)?.unwrap_or(0);
                tx.cache.reserved_mail_numbers = None;
                retention::set_progress(tx.db, RESERVED_NUMBERS, number.max(reserved))
            })
            .await
    }
}
