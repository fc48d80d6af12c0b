//! The rows of letters: queries, inserts and updates.

use monoco_core::did::TunnelId;
use monoco_core::lease::Holder;
use monoco_core::letter::{
    ChainDirection, Letter, LetterId, LetterState, LetterStateData, LetterStatus, WorkerName,
    WorkerVerdict,
};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;

use super::texts::{HashedText, StoredText};
use crate::sql::counts::LetterCountKey;
use crate::sql::db::{Db, Row, RowResult, SqlValue, ToParam, params};
use crate::sql::rows::{self as sql, damaged, parsed};
use crate::sql::writer::Tx;
use crate::sql::{purged_files, require_file, retention};
use crate::{LetterRow, LetterSource, LetterSourceKind, StoreError, StoreResult};

/// Columns of [`read`], in its order.
const COLUMNS: &str = "
    l.seq, l.mark, l.direction, l.tunnel, l.source, l.object, l.external_id, l.state, l.worker,
    l.due_at, l.until, l.attempts, l.revision, l.held_by, l.hold_key, l.failure, l.became,
    l.merged_into, l.verdicts, l.created_at, l.updated_at, l.erased_at
";

/// Further columns of [`read_with_texts`], from column 22 on.
const TEXT_COLUMNS: &str = "
    s.letter, s.hash, s.body, c.letter, c.hash, c.body, o.hash, o.body, b.hash
";

const TABLES: &str = "
    letters l
      LEFT JOIN letter_sources s ON s.letter = l.seq
      LEFT JOIN letter_changes c ON c.letter = l.seq
      LEFT JOIN objects o ON o.seq = l.object
      LEFT JOIN objects b ON b.seq = l.became
";

const INSERT: &str = "
    INSERT INTO letters (mark, direction, tunnel, source, object, external_id, state, worker,
                         due_at, attempts, revision, verdicts, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, '', ?8, ?9, 1, '[]', ?10, ?10)
";

const INSERT_SOURCE: &str = "INSERT INTO letter_sources (letter, hash, body) VALUES (?1, ?2, ?3)";

const PUT_CHANGE: &str = "
    INSERT INTO letter_changes (letter, hash, body)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (letter) DO UPDATE SET hash = excluded.hash, body = excluded.body
";

const UPDATE: &str = "
    UPDATE letters
       SET state = ?3, worker = ?4, due_at = ?5, until = ?6, attempts = ?7,
           revision = revision + 1, held_by = ?8, hold_key = ?9, failure = ?10, became = ?11,
           merged_into = ?12, day = ?13, verdicts = ?14, updated_at = ?15, holder = ?16
     WHERE seq = ?1 AND revision = ?2
";

/// A letter without its texts.
#[derive(Clone, Debug)]
pub(in crate::sql) struct LetterHead {
    pub(in crate::sql) id: LetterId,
    pub(super) direction: ChainDirection,
    pub(super) tunnel: Option<TunnelId>,
    pub(super) source: LetterSourceKind,
    /// The row of the message it was created from.
    pub(super) object: Option<i64>,
    /// The row of the external id of the inbound message.
    pub(super) external_id: Option<i64>,
    pub(in crate::sql) status: LetterStatus,
    pub(super) worker: Option<WorkerName>,
    pub(super) held_by: Option<WorkerName>,
    pub(super) hold_key: Option<String>,
    pub(super) failure: Option<String>,
    /// The run that hands it over, to be written. `None` in a row that was read: only releases
    /// ask for it, and every other step ends the hand-over.
    pub(super) holder: Option<Holder>,
    /// The row of the message it became.
    pub(in crate::sql) became: Option<i64>,
    pub(super) verdicts: Vec<WorkerVerdict>,
    pub(super) revision: i64,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    /// When its texts were deleted.
    pub(super) erased_at: Option<Timestamp>,
}

/// A letter with its texts, as far as they are not in files.
pub(super) struct LetterWithTexts {
    pub(super) head: LetterHead,
    pub(super) source: Option<StoredText>,
    pub(super) change: Option<StoredText>,
    pub(super) object: Option<(ObjId, Option<Vec<u8>>)>,
    pub(super) became: Option<ObjId>,
}

/// A letter to insert.
pub(super) struct NewLetter<'a> {
    pub(super) direction: ChainDirection,
    pub(super) tunnel: Option<&'a TunnelId>,
    pub(super) source: LetterSourceKind,
    pub(super) object: Option<i64>,
    pub(super) external_id: Option<i64>,
    pub(super) text: Option<&'a HashedText>,
}

impl LetterHead {
    /// Sets a new status and clears the worker, so that the letter belongs to the dispatcher or
    /// has ended.
    pub(super) fn finish(&mut self, status: LetterStatus) {
        self.failure = match &status.standing {
            LetterStateData::Trashed { why } | LetterStateData::Dead { why } => Some(why.clone()),
            _ => None,
        };
        (self.status, self.worker, self.held_by, self.hold_key) = (status, None, None, None);
    }

    fn count_key(&self) -> LetterCountKey<'_> {
        LetterCountKey {
            state: self.status.standing.name(),
            worker: self.worker.as_ref().map_or("", WorkerName::as_str),
            held_by: self.held_by.as_ref().map(WorkerName::as_str),
        }
    }

    pub(super) fn into_row(
        self,
        source: LetterSource,
        letter: Letter,
        became: Option<ObjId>,
    ) -> LetterRow {
        LetterRow {
            id: self.id,
            direction: self.direction,
            tunnel: self.tunnel,
            source,
            letter,
            verdicts: self.verdicts,
            status: self.status,
            worker: self.worker,
            held_by: self.held_by,
            key: self.hold_key,
            failure: self.failure,
            became,
            revision: self.revision,
            created_at: self.created_at,
            updated_at: self.updated_at,
            erased_at: self.erased_at,
        }
    }
}

/// Inserts a letter that waits for the dispatcher.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    new: &NewLetter<'_>,
    now: Timestamp,
) -> StoreResult<LetterId> {
    let status = LetterStatus::start(now);
    let state = status.standing.name();
    let mark = mark(new, now);
    let row = params![
        mark,
        new.direction.as_str(),
        new.tunnel.map(TunnelId::as_str),
        new.source.as_str(),
        new.object,
        new.external_id,
        state.as_str(),
        now.ms(),
        status.attempts,
        now.ms(),
    ];
    let seq = sql::insert(tx.db, INSERT, row)?;
    if let Some(text) = new.text {
        put_text(tx, INSERT_SOURCE, seq, &text.text)?;
    }
    tx.effects.counts.letter(&LetterCountKey { state, worker: "", held_by: None }, 1);
    tx.effects.letter = true;
    Ok(LetterId { seq, mark })
}

/// The second part of a letter's id. It differs for letters of two stores, whose numbers are the
/// same.
fn mark(new: &NewLetter<'_>, now: Timestamp) -> u32 {
    let digest = new.text.map(|text| text.digest).unwrap_or_default();
    let parts = [&digest[..], &now.ms().to_be_bytes(), &new.object.unwrap_or(0).to_be_bytes()];
    let hash = ObjId::of(ObjKind::Bytes, &parts.concat());
    u32::from_be_bytes(hash.hash().first_chunk().copied().unwrap_or_default())
}

/// Stores the text of a letter that workers have changed.
pub(super) fn put_change(tx: &Tx<'_>, id: LetterId, text: &StoredText) -> StoreResult<()> {
    put_text(tx, PUT_CHANGE, id.seq, text)
}

fn put_text(tx: &Tx<'_>, put: &str, letter: i64, text: &StoredText) -> StoreResult<()> {
    if let StoredText::File(id) = text {
        require_file(tx, id)?;
    }
    let (hash, body) = text.columns();
    sql::execute(tx.db, put, params![letter, hash, body])?;
    Ok(())
}

/// Writes a letter after a step, if the row still has the revision of `before`. Returns the new
/// revision.
pub(super) fn save(
    tx: &mut Tx<'_>,
    before: &LetterHead,
    after: &LetterHead,
    now: Timestamp,
) -> StoreResult<i64> {
    let (mut due, mut until, mut into, mut day) = (None, None, None, None);
    match &after.status.standing {
        LetterStateData::Waiting { due: at } => due = Some(at.ms()),
        LetterStateData::Away { until: at } => until = Some(at.ms()),
        LetterStateData::Merged { into: other } => into = Some(other.to_string()),
        LetterStateData::Done | LetterStateData::Trashed { .. } | LetterStateData::Dead { .. } => {}
    }
    let state = after.status.standing.name();
    if matches!(state, LetterState::Done | LetterState::Merged | LetterState::Trashed) {
        day = Some(retention::day(tx)?);
    }
    let row = params![
        before.id.seq,
        before.revision,
        state.as_str(),
        after.worker.as_ref().map_or("", WorkerName::as_str),
        due,
        until,
        after.status.attempts,
        after.held_by.as_ref().map(WorkerName::as_str),
        after.hold_key,
        after.failure,
        after.became,
        into,
        day,
        sql::as_json(&after.verdicts)?,
        now.ms(),
        after.holder.as_ref().map(Holder::as_str),
    ];
    tx.cache.letters.remove(&before.id.seq);
    if !sql::update_one(tx.db, UPDATE, row)? {
        let revision = by_seq(tx.db, before.id.seq)?.map_or(0, |head| head.revision);
        return Err(StoreError::Conflict { what: "the letter", revision });
    }
    tx.effects.counts.letter(&before.count_key(), -1);
    tx.effects.counts.letter(&after.count_key(), 1);
    tx.effects.letter |= state == LetterState::Waiting;
    Ok(before.revision + 1)
}

/// Deletes a letter that has ended in `state`, and its texts. Notes their files.
pub(super) fn delete(tx: &mut Tx<'_>, seq: i64, state: LetterState) -> StoreResult<()> {
    purged_files::note_letter(tx, seq)?;
    for delete in [
        // Its message was not merged, or has no files any more.
        "DELETE FROM inbound_files
          WHERE external_id = (SELECT external_id FROM letters WHERE seq = ?1)
            AND merge_window IS NULL",
        "DELETE FROM letters WHERE seq = ?1",
        "DELETE FROM letter_sources WHERE letter = ?1",
        "DELETE FROM letter_changes WHERE letter = ?1",
        "DELETE FROM letter_keys WHERE letter = ?1",
    ] {
        sql::execute(tx.db, delete, [seq])?;
    }
    let key = LetterCountKey { state, worker: "", held_by: None };
    tx.effects.counts.letter(&key, -1);
    Ok(())
}

pub(super) fn find(db: &Db, id: LetterId) -> StoreResult<LetterHead> {
    by_seq(db, id.seq)?.filter(|head| head.id == id).ok_or_else(|| missing(id))
}

/// Looks up letters by number, for the current command. On SQLite, and for one alone, a query for each
/// one is as fast.
pub(super) fn look_up(tx: &mut Tx<'_>, seqs: &[i64]) -> StoreResult<()> {
    if seqs.len() < 2 || tx.db.as_postgres().is_none() {
        return Ok(());
    }
    let seqs: Vec<String> = seqs.iter().map(i64::to_string).collect();
    let select = format!(
        "SELECT {COLUMNS} FROM letters l
          WHERE l.seq = ANY (CAST(string_to_array(?1, ',') AS BIGINT[]))"
    );
    let all = usize::MAX;
    let found = sql::list_undamaged(tx.db, "letter", all, &select, [seqs.join(",")], read)?;
    tx.cache.letters = found.into_iter().map(|head| (head.id.seq, head)).collect();
    Ok(())
}

/// Like [`find`], in the writer.
pub(super) fn find_in_tx(tx: &mut Tx<'_>, id: LetterId) -> StoreResult<LetterHead> {
    match tx.cache.letters.remove(&id.seq) {
        Some(head) if head.id == id => Ok(head),
        _ => find(tx.db, id),
    }
}

pub(super) fn missing(id: LetterId) -> StoreError {
    StoreError::Missing { what: "letter", key: id.to_string() }
}

pub(super) fn by_seq(db: &Db, seq: i64) -> StoreResult<Option<LetterHead>> {
    first(db, "l.seq = ?1", params![seq])
}

/// Returns the first letter that matches a condition, which can have an order.
pub(in crate::sql) fn first(
    db: &Db,
    condition: &str,
    values: &[&dyn ToParam],
) -> StoreResult<Option<LetterHead>> {
    let select = format!("SELECT {COLUMNS} FROM letters l WHERE {condition} LIMIT 1");
    sql::optional(db, &select, values, read)
}

/// Lists letters that match a condition, which can have an order and a limit.
pub(super) fn list(
    db: &Db,
    condition: &str,
    values: &[&dyn ToParam],
    limit: usize,
) -> StoreResult<Vec<LetterWithTexts>> {
    sql::list_undamaged(db, "letter", limit, &list_sql(condition), values, read_with_texts)
}

pub(super) fn list_sql(condition: &str) -> String {
    format!("SELECT {COLUMNS}, {TEXT_COLUMNS} FROM {TABLES} WHERE {condition}")
}

fn read(row: &Row<'_>) -> RowResult<LetterHead> {
    let (direction, source, state): (String, String, String) =
        (row.get(2)?, row.get(4)?, row.get(7)?);
    let (verdicts, failure): (String, Option<String>) = (row.get(18)?, row.get(15)?);
    let direction =
        ChainDirection::parse(&direction).ok_or_else(|| damaged(2, "unknown direction"))?;
    let state = LetterState::parse(&state).ok_or_else(|| damaged(7, "unknown state"))?;
    let worker: String = row.get(8)?;
    Ok(LetterHead {
        id: LetterId { seq: row.get(0)?, mark: row.get(1)? },
        direction,
        tunnel: optional(row, 3)?,
        source: LetterSourceKind::parse(&source).ok_or_else(|| damaged(4, "unknown source"))?,
        object: row.get(5)?,
        external_id: row.get(6)?,
        status: LetterStatus {
            standing: state_data(row, state, failure.clone())?,
            attempts: row.get(11)?,
        },
        worker: if worker.is_empty() { None } else { Some(parsed(row, 8)?) },
        held_by: optional(row, 13)?,
        hold_key: row.get(14)?,
        failure,
        holder: None,
        became: row.get(16)?,
        verdicts: serde_json::from_str(&verdicts).map_err(|_| damaged(18, "invalid verdicts"))?,
        revision: row.get(12)?,
        created_at: Timestamp::from_ms(row.get(19)?),
        updated_at: Timestamp::from_ms(row.get(20)?),
        erased_at: row.get::<Option<i64>>(21)?.map(Timestamp::from_ms),
    })
}

fn state_data(
    row: &Row<'_>,
    state: LetterState,
    failure: Option<String>,
) -> RowResult<LetterStateData> {
    let why = failure.unwrap_or_default();
    Ok(match state {
        LetterState::Waiting => LetterStateData::Waiting { due: Timestamp::from_ms(row.get(9)?) },
        LetterState::Away => LetterStateData::Away { until: Timestamp::from_ms(row.get(10)?) },
        LetterState::Done => LetterStateData::Done,
        LetterState::Merged => LetterStateData::Merged { into: parsed(row, 17)? },
        LetterState::Trashed => LetterStateData::Trashed { why },
        LetterState::Dead => LetterStateData::Dead { why },
    })
}

/// Parses a text column that can be NULL.
fn optional<T>(row: &Row<'_>, column: usize) -> RowResult<Option<T>>
where
    T: std::str::FromStr<Err: std::error::Error>,
{
    match row.get_ref(column)? {
        SqlValue::Null => Ok(None),
        _ => parsed(row, column).map(Some),
    }
}

/// Reads [`COLUMNS`] and [`TEXT_COLUMNS`].
fn read_with_texts(row: &Row<'_>) -> RowResult<LetterWithTexts> {
    let object_id = |column, kind| -> RowResult<Option<ObjId>> {
        let hash: Option<[u8; 32]> = row.get(column)?;
        Ok(hash.map(|hash| ObjId::from_parts(kind, hash)))
    };
    let text = |column| -> RowResult<Option<StoredText>> {
        if row.get::<Option<i64>>(column)?.is_none() {
            return Ok(None);
        }
        match object_id(column + 1, ObjKind::Bytes)? {
            Some(id) => Ok(Some(StoredText::File(id))),
            None => Ok(Some(StoredText::Inline(row.get(column + 2)?))),
        }
    };
    let object = match object_id(28, ObjKind::Msg)? {
        Some(id) => Some((id, row.get(29)?)),
        None => None,
    };
    Ok(LetterWithTexts {
        head: read(row)?,
        source: text(22)?,
        change: text(25)?,
        object,
        became: object_id(30, ObjKind::Msg)?,
    })
}
