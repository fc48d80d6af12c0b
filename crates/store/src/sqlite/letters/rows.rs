//! The rows of letters: found, added, and saved after a step.

use monoco_core::did::TunnelId;
use monoco_core::letter::{
    ChainDirection, Letter, LetterId, LetterState, LetterStateData, LetterStatus, WorkerName,
    WorkerVerdict,
};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};

use super::texts::{HashedText, StoredText};
use crate::sqlite::contacts::parsed;
use crate::sqlite::counts::LetterCountKey;
use crate::sqlite::open::fault;
use crate::sqlite::writer::Tx;
use crate::sqlite::{mails, rows};
use crate::{LetterRow, LetterSource, LetterSourceKind, StoreError};

const COLUMNS: &str = "
    l.seq, l.mark, l.direction, l.tunnel, l.origin, l.object, l.heard, l.state, l.desk, l.due_at,
    l.until, l.attempts, l.revision, l.kept_by, l.keep_key, l.failure, l.became, l.merged_into,
    l.verdicts, l.created_at, l.updated_at
";

/// What belongs to a letter beyond its row, from column 21 on.
const WITH_TEXTS: &str = "
    f.letter, f.hash, f.body, c.letter, c.hash, c.body, o.hash, o.body, b.hash
";

const TABLES: &str = "
    letters l
      LEFT JOIN letter_origins f ON f.letter = l.seq
      LEFT JOIN letter_changes c ON c.letter = l.seq
      LEFT JOIN objects o ON o.seq = l.object
      LEFT JOIN objects b ON b.seq = l.became
";

const INSERT: &str = "
    INSERT INTO letters (mark, direction, tunnel, origin, object, heard, state, desk, due_at,
                         attempts, revision, verdicts, created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, '', ?8, ?9, 1, '[]', ?10, ?10)
";

const ADD_ORIGIN: &str = "INSERT INTO letter_origins (letter, hash, body) VALUES (?1, ?2, ?3)";

const PUT_CHANGED: &str = "
    INSERT INTO letter_changes (letter, hash, body)
    VALUES (?1, ?2, ?3)
        ON CONFLICT (letter) DO UPDATE SET hash = excluded.hash, body = excluded.body
";

const SAVE: &str = "
    UPDATE letters
       SET state = ?3, desk = ?4, due_at = ?5, until = ?6, attempts = ?7, revision = revision + 1,
           kept_by = ?8, keep_key = ?9, failure = ?10, became = ?11, merged_into = ?12, day = ?13,
           verdicts = ?14, updated_at = ?15
     WHERE seq = ?1 AND revision = ?2
";

/// A letter without what it says.
#[derive(Clone, Debug)]
pub(in crate::sqlite) struct LetterHead {
    pub(in crate::sqlite) id: LetterId,
    pub(super) direction: ChainDirection,
    pub(super) tunnel: Option<TunnelId>,
    pub(super) made: LetterSourceKind,
    /// The row of the message it was made of.
    pub(super) object: Option<i64>,
    /// The row of what was heard.
    pub(super) heard: Option<i64>,
    pub(in crate::sqlite) journey: LetterStatus,
    pub(super) desk: Option<WorkerName>,
    pub(super) kept_by: Option<WorkerName>,
    pub(super) key: Option<String>,
    pub(super) failure: Option<String>,
    /// The row of the message it became.
    pub(in crate::sqlite) became: Option<i64>,
    pub(super) had: Vec<WorkerVerdict>,
    pub(super) revision: i64,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
}

/// A letter with what it says, as far as that is not in files.
pub(super) struct LetterWithTexts {
    pub(super) stub: LetterHead,
    pub(super) origin: Option<StoredText>,
    pub(super) changed: Option<StoredText>,
    pub(super) object: Option<(ObjId, Option<Vec<u8>>)>,
    pub(super) became: Option<ObjId>,
}

/// A letter that is to be.
pub(super) struct NewLetter<'a> {
    pub(super) direction: ChainDirection,
    pub(super) tunnel: Option<&'a TunnelId>,
    pub(super) made: LetterSourceKind,
    pub(super) object: Option<i64>,
    pub(super) heard: Option<i64>,
    pub(super) origin: Option<&'a HashedText>,
}

impl LetterHead {
    /// Where it counts.
    fn place(&self) -> LetterCountKey<'_> {
        LetterCountKey {
            state: self.journey.standing.name(),
            desk: self.desk.as_ref().map_or("", WorkerName::as_str),
            kept_by: self.kept_by.as_ref().map(WorkerName::as_str),
        }
    }

    pub(super) fn row(
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
            verdicts: self.had,
            status: self.journey,
            worker: self.desk,
            held_by: self.kept_by,
            key: self.key,
            failure: self.failure,
            became,
            revision: self.revision,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}

/// Adds a letter. It waits for the dispatcher.
pub(super) fn insert(
    tx: &mut Tx<'_>,
    new: &NewLetter<'_>,
    now: Timestamp,
) -> Result<LetterId, StoreError> {
    let journey = LetterStatus::start(now);
    let mark = mark(new, now);
    let row = params![
        mark,
        new.direction.as_str(),
        new.tunnel.map(TunnelId::as_str),
        new.made.as_str(),
        new.object,
        new.heard,
        journey.standing.name().as_str(),
        now.ms(),
        journey.attempts,
        now.ms(),
    ];
    let seq = tx.db.prepare_cached(INSERT).and_then(|mut s| s.insert(row)).map_err(fault)?;
    if let Some(origin) = new.origin {
        put_text(tx, ADD_ORIGIN, seq, &origin.text)?;
    }
    let place = LetterCountKey { state: journey.standing.name(), desk: "", kept_by: None };
    tx.news.tally.letter(&place, 1);
    tx.news.letter = true;
    Ok(LetterId { seq, mark })
}

/// Two letters of one store differ by their number. Those of two stores should not have
/// the same mark as well.
fn mark(new: &NewLetter<'_>, now: Timestamp) -> u32 {
    let digest = new.origin.map(|origin| origin.digest).unwrap_or_default();
    let about = [&digest[..], &now.ms().to_be_bytes(), &new.object.unwrap_or(0).to_be_bytes()];
    let hash = ObjId::of(ObjKind::Bytes, &about.concat());
    u32::from_be_bytes(hash.hash().first_chunk().copied().unwrap_or_default())
}

/// Notes how workers left a letter.
pub(super) fn put_changed(tx: &Tx<'_>, id: LetterId, text: &StoredText) -> Result<(), StoreError> {
    put_text(tx, PUT_CHANGED, id.seq, text)
}

fn put_text(tx: &Tx<'_>, sql: &str, letter: i64, text: &StoredText) -> Result<(), StoreError> {
    let (hash, body) = text.columns();
    let row = params![letter, hash, body];
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    Ok(())
}

/// Writes a letter down after a step. Returns its revision.
pub(super) fn save(
    tx: &mut Tx<'_>,
    before: &LetterHead,
    after: &LetterHead,
    now: Timestamp,
) -> Result<i64, StoreError> {
    let (mut due, mut until, mut into, mut day) = (None, None, None, None);
    match &after.journey.standing {
        LetterStateData::Waiting { due: at } => due = Some(at.ms()),
        LetterStateData::Away { until: at } => until = Some(at.ms()),
        LetterStateData::Merged { into: other } => into = Some(other.to_string()),
        LetterStateData::Done | LetterStateData::Trashed { .. } | LetterStateData::Dead { .. } => {}
    }
    let state = after.journey.standing.name();
    if matches!(state, LetterState::Done | LetterState::Merged | LetterState::Trashed) {
        day = Some(mails::day(tx)?);
    }
    let row = params![
        before.id.seq,
        before.revision,
        state.as_str(),
        after.desk.as_ref().map_or("", WorkerName::as_str),
        due,
        until,
        after.journey.attempts,
        after.kept_by.as_ref().map(WorkerName::as_str),
        after.key,
        after.failure,
        after.became,
        into,
        day,
        rows::as_json(&after.had)?,
        now.ms(),
    ];
    if tx.db.prepare_cached(SAVE).and_then(|mut s| s.execute(row)).map_err(fault)? == 0 {
        let revision = by_seq(tx.db, before.id.seq)?.map_or(0, |stub| stub.revision);
        return Err(StoreError::Conflict { what: "the letter", revision });
    }
    tx.news.tally.letter(&before.place(), -1);
    tx.news.tally.letter(&after.place(), 1);
    tx.news.letter |= state == LetterState::Waiting;
    Ok(before.revision + 1)
}

/// Forgets a letter.
pub(super) fn forget(tx: &mut Tx<'_>, stub: &LetterHead) -> Result<(), StoreError> {
    for sql in [
        "DELETE FROM letters WHERE seq = ?1",
        "DELETE FROM letter_origins WHERE letter = ?1",
        "DELETE FROM letter_changes WHERE letter = ?1",
        "DELETE FROM letter_keys WHERE letter = ?1",
    ] {
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute([stub.id.seq])).map_err(fault)?;
    }
    tx.news.tally.letter(&stub.place(), -1);
    Ok(())
}

/// A letter by its name.
pub(super) fn find(db: &Connection, id: LetterId) -> Result<LetterHead, StoreError> {
    by_seq(db, id.seq)?.filter(|stub| stub.id == id).ok_or_else(|| missing(id))
}

pub(super) fn missing(id: LetterId) -> StoreError {
    StoreError::Missing { what: "letter", key: id.to_string() }
}

/// A letter by its number.
pub(super) fn by_seq(db: &Connection, seq: i64) -> Result<Option<LetterHead>, StoreError> {
    first(db, "l.seq = ?1", params![seq])
}

/// The first letter of which `which` is so.
pub(in crate::sqlite) fn first(
    db: &Connection,
    which: &str,
    values: &[&dyn ToSql],
) -> Result<Option<LetterHead>, StoreError> {
    let sql = format!("SELECT {COLUMNS} FROM letters l WHERE {which} LIMIT 1");
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    statement.query_row(values, read).optional().map_err(fault)
}

/// Letters of which `which` is so, with what they say.
pub(super) fn bundles(
    db: &Connection,
    which: &str,
    values: &[&dyn ToSql],
) -> Result<Vec<LetterWithTexts>, StoreError> {
    let sql = bundles_sql(which);
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let rows = statement.query_map(values, read_bundle).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

pub(super) fn bundles_sql(which: &str) -> String {
    format!("SELECT {COLUMNS}, {WITH_TEXTS} FROM {TABLES} WHERE {which}")
}

fn read(row: &Row<'_>) -> rusqlite::Result<LetterHead> {
    let (direction, made, state): (String, String, String) =
        (row.get(2)?, row.get(4)?, row.get(7)?);
    let (verdicts, failure): (String, Option<String>) = (row.get(18)?, row.get(15)?);
    let no = rows::damaged;
    let state = LetterState::parse(&state).ok_or_else(|| no(7, "no such state"))?;
    Ok(LetterHead {
        id: LetterId { seq: row.get(0)?, mark: row.get(1)? },
        direction: ChainDirection::parse(&direction).ok_or_else(|| no(2, "no such direction"))?,
        tunnel: optional(row, 3)?,
        made: LetterSourceKind::parse(&made).ok_or_else(|| no(4, "no such origin"))?,
        object: row.get(5)?,
        heard: row.get(6)?,
        journey: LetterStatus {
            standing: standing(row, state, failure.clone())?,
            attempts: row.get(11)?,
        },
        desk: Some(row.get::<_, String>(8)?)
            .filter(|name| !name.is_empty())
            .map(|name| name.parse().map_err(|_| no(8, "no name of a worker")))
            .transpose()?,
        kept_by: optional(row, 13)?,
        key: row.get(14)?,
        failure,
        became: row.get(16)?,
        had: serde_json::from_str(&verdicts).map_err(|_| no(18, "unreadable verdicts"))?,
        revision: row.get(12)?,
        created_at: Timestamp::from_ms(row.get(19)?),
        updated_at: Timestamp::from_ms(row.get(20)?),
    })
}

fn standing(
    row: &Row<'_>,
    state: LetterState,
    failure: Option<String>,
) -> rusqlite::Result<LetterStateData> {
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

/// A column of text that may be missing, read into something that checks it.
fn optional<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    match row.get_ref(column)? {
        rusqlite::types::ValueRef::Null => Ok(None),
        _ => parsed(row, column).map(Some),
    }
}

fn read_bundle(row: &Row<'_>) -> rusqlite::Result<LetterWithTexts> {
    let object = |column, kind| -> rusqlite::Result<Option<ObjId>> {
        let hash: Option<[u8; 32]> = row.get(column)?;
        Ok(hash.map(|hash| ObjId::from_parts(kind, hash)))
    };
    let text = |column| -> rusqlite::Result<Option<StoredText>> {
        if row.get::<_, Option<i64>>(column)?.is_none() {
            return Ok(None);
        }
        match object(column + 1, ObjKind::Bytes)? {
            Some(id) => Ok(Some(StoredText::File(id))),
            None => Ok(Some(StoredText::Inline(row.get(column + 2)?))),
        }
    };
    let made_of = match object(27, ObjKind::Msg)? {
        Some(id) => Some((id, row.get(28)?)),
        None => None,
    };
    Ok(LetterWithTexts {
        stub: read(row)?,
        origin: text(21)?,
        changed: text(24)?,
        object: made_of,
        became: object(29, ObjKind::Msg)?,
    })
}
