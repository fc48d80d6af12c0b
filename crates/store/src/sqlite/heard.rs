//! What was heard: kept once, in the window of its session, until it is a Mail.

use std::collections::HashSet;

use monoco_core::contact::{AddressBook, Strangers};
use monoco_core::did::TunnelId;
use monoco_core::event::EventKind;
use monoco_core::heard::Said;
use monoco_core::mail::{Mail, MailId, Trust};
use monoco_core::merge::{Burst, Debounce, Kept, Window};
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::journal::{self, About};
use super::mails::{self, NewMail};
use super::open::fault;
use super::people::parsed;
use super::writer::Tx;
use super::{center, objects, people, rows};
use crate::{Dispatch, DispatchOutcome, Keep, Keeping, Merging, StoreError};

const OPEN_WINDOW: &str = "
    SELECT id, first_at, last_at, messages, bytes
      FROM windows
     WHERE tunnel = ?1 AND session = ?2 AND held = ?3 AND closes_at > ?4
     ORDER BY closes_at DESC
     LIMIT 1
";

const ADD_WINDOW: &str = "
    INSERT INTO windows (tunnel, name, provider, session, held, first_at, last_at,
                         messages, bytes, closes_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
";

const JOIN_WINDOW: &str = "
    UPDATE windows
       SET last_at = ?2, messages = ?3, bytes = ?4, closes_at = ?5
     WHERE id = ?1
";

const ADD: &str = "INSERT INTO kept (window, heard, heard_at, said) VALUES (?1, ?2, ?3, ?4)";

const MESSAGES: &str = "SELECT heard_at, said FROM kept WHERE window = ?1 ORDER BY seq";

const BECAME: &str = "
    UPDATE heard
       SET object = ?2
     WHERE seq IN (SELECT heard FROM kept WHERE window = ?1)
";

/// Keeps one message, unless we have it.
pub(super) fn keep(tx: &mut Tx<'_>, keep: &Keep, now: Timestamp) -> Result<Keeping, StoreError> {
    let Keep { tunnel, provider, said, debounce } = keep;
    if let Some(through) = people::peek(tx, &tunnel.did())?
        && let recent = tx.indexes.heard.recent()
        && let Some(object) = journal::heard(tx.db, recent, &said.id, Some(through))?
    {
        let about = About { object: Some(object).filter(|row| *row != 0), ..About::default() };
        let detail = json!({"of": "heard", "tunnel": tunnel, "external_id": said.id});
        journal::append(tx, EventKind::Duplicate, about, &detail, now)?;
        return Ok(Keeping::Duplicate);
    }
    let author = said.from.did(tunnel).map_err(|error| unusable(&error))?;
    let book = people::book_of(tx, &author, &[], Some(tunnel))?;
    let strangers = book.tunnels.get(tunnel).map(|tunnel| tunnel.strangers);
    let stranger = book.is_stranger(&author);

    people::heard_from(tx, tunnel, now)?;
    let through = people::row_of(tx, &tunnel.did())?;
    let owner = people::row_of(tx, &author)?;
    let about = || About { owner: Some(owner), ..About::default() };
    let detail = json!({"tunnel": tunnel, "external_id": said.id});
    let refused = match strangers {
        _ if book.blocks(&author) => Some((EventKind::Blocked, Keeping::Blocked)),
        Some(Strangers::Drop) if stranger => Some((EventKind::Dropped, Keeping::Dropped)),
        _ => None,
    };
    let heard = journal::hear(tx, through, &said.id, 0)?;
    if let Some((kind, keeping)) = refused {
        journal::append(tx, kind, about(), &detail, now)?;
        return Ok(keeping);
    }
    let text = json!(said).to_string();
    let held = stranger && strangers == Some(Strangers::Hold);
    let place = Place { tunnel: through, name: tunnel, provider, held };
    let window =
        window(tx, &place, said, u32::try_from(text.len()).unwrap_or(u32::MAX), debounce, now)?;
    let row = params![window, heard, now.ms(), text];
    tx.db.prepare_cached(ADD).and_then(|mut s| s.execute(row)).map_err(fault)?;
    journal::append(tx, EventKind::Heard, about(), &detail, now)?;
    Ok(Keeping::Kept)
}

/// Where a message belongs, but for its session.
struct Place<'a> {
    tunnel: i64,
    name: &'a TunnelId,
    provider: &'a str,
    held: bool,
}

/// The window that a message joins or opens.
fn window(
    tx: &Tx<'_>,
    place: &Place<'_>,
    said: &Said,
    bytes: u32,
    debounce: &Debounce,
    now: Timestamp,
) -> Result<i64, StoreError> {
    let session = said.session.key();
    let open: Option<(i64, Window)> = tx
        .db
        .prepare_cached(OPEN_WINDOW)
        .and_then(|mut s| {
            let row = params![place.tunnel, session, place.held, now.ms()];
            s.query_row(row, |row| {
                let window = Window {
                    first: Timestamp::from_ms(row.get(1)?),
                    last: Timestamp::from_ms(row.get(2)?),
                    messages: row.get(3)?,
                    bytes: row.get(4)?,
                };
                Ok((row.get(0)?, window))
            })
            .optional()
        })
        .map_err(fault)?;
    let joined = open.and_then(|(id, window)| Some((id, window.join(debounce, now, bytes)?)));
    if let Some((id, window)) = joined {
        let closes_at = window.closes_at(debounce).ms();
        let row = params![id, window.last.ms(), window.messages, window.bytes, closes_at];
        tx.db.prepare_cached(JOIN_WINDOW).and_then(|mut s| s.execute(row)).map_err(fault)?;
        return Ok(id);
    }
    let window = Window::open(now, bytes);
    let row = params![
        place.tunnel,
        place.name.as_str(),
        place.provider,
        session,
        place.held,
        window.first.ms(),
        window.last.ms(),
        window.messages,
        window.bytes,
        window.closes_at(debounce).ms(),
    ];
    tx.db.prepare_cached(ADD_WINDOW).and_then(|mut s| s.insert(row)).map_err(fault)
}

/// Windows that are over by `now`, the oldest first.
pub(super) fn due(db: &Connection, now: Timestamp, limit: usize) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT id FROM windows WHERE closes_at <= ?1 ORDER BY closes_at LIMIT ?2";
    rows::seqs(db, sql, params![now.ms(), rows::limit(limit)])
}

/// When the next window is over.
pub(super) fn next_due(db: &Connection) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT closes_at FROM windows ORDER BY closes_at LIMIT 1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let at = statement.query_row([], |row| row.get(0)).optional().map_err(fault)?;
    Ok(at.map(Timestamp::from_ms))
}

/// How many messages wait.
pub(super) fn waiting(db: &Connection) -> Result<i64, StoreError> {
    let sql = "SELECT coalesce(sum(messages), 0) FROM windows";
    db.prepare_cached(sql).and_then(|mut s| s.query_row([], |row| row.get(0))).map_err(fault)
}

/// What became of a window.
pub(super) enum Closed {
    /// A Mail, or nothing, because its author is not wanted any more.
    Merged,
    /// Its object is too large for a row, and has to be a file first.
    Large(Box<MsgObject>),
}

/// Makes a Mail of a window, and takes its messages away. `files` are the large
/// objects that are on disk.
pub(super) fn close(
    tx: &mut Tx<'_>,
    window: i64,
    merging: &Merging,
    files: &HashSet<ObjId>,
    now: Timestamp,
) -> Result<Closed, StoreError> {
    let Some((burst, held)) = burst(tx, window, merging)? else { return Ok(Closed::Merged) };
    let tunnel = burst.tunnel.clone();
    let (id, count) = (burst.mail_id(), burst.messages.len());
    let object = burst.seal(now).map_err(|error| unusable(&error))?;
    if object.canonical().len() > objects::INLINE && !files.contains(&object.id()) {
        return Ok(Closed::Large(Box::new(object)));
    }
    let msg_id = object.id();
    let dispatch = Dispatch { msg: object, tunnel: Some(tunnel.clone()), external_id: None };
    let dispatched = center::dispatch(tx, &dispatch, now)?;
    let row = match dispatched.outcome {
        DispatchOutcome::Delivered { .. } => {
            let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &msg_id)?;
            let mail = Mail::read(msg_id, dispatch.msg.canonical());
            let mail = mail.map_err(|error| unusable(&error))?;
            let author = people::row_of(tx, dispatch.msg.author())?;
            mails::insert(tx, NewMail { mail: &mail, object, author, held }, now)?;
            object
        }
        DispatchOutcome::Blocked | DispatchOutcome::Dropped => 0,
    };
    let became = params![window, row];
    tx.db.prepare_cached(BECAME).and_then(|mut s| s.execute(became)).map_err(fault)?;
    for sql in ["DELETE FROM kept WHERE window = ?1", "DELETE FROM windows WHERE id = ?1"] {
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute([window])).map_err(fault)?;
    }
    if row != 0 {
        let about = About { object: Some(row), ..About::default() };
        let id = id.as_ref().map(MailId::to_string);
        let detail = json!({"mail": id, "messages": count, "tunnel": tunnel, "held": held});
        journal::append(tx, EventKind::Merged, about, &detail, now)?;
    }
    Ok(Closed::Merged)
}

/// Puts off a window that could not be merged, so that it does not hold up the others.
pub(super) fn put_off(tx: &mut Tx<'_>, window: i64, until: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE windows SET closes_at = ?2 WHERE id = ?1";
    let row = params![window, until.ms()];
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    Ok(())
}

/// The messages of a window, with what is needed to merge them, and whether they are
/// held.
fn burst(
    tx: &mut Tx<'_>,
    window: i64,
    merging: &Merging,
) -> Result<Option<(Burst, bool)>, StoreError> {
    let sql = "SELECT name, provider, held FROM windows WHERE id = ?1";
    let found: Option<(TunnelId, String, bool)> = tx
        .db
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.query_row([window], |row| Ok((parsed(row, 0)?, row.get(1)?, row.get(2)?))).optional()
        })
        .map_err(fault)?;
    // Whoever looked may have been overtaken.
    let Some((tunnel, provider, held)) = found else { return Ok(None) };
    let mut statement = tx.db.prepare_cached(MESSAGES).map_err(fault)?;
    let rows = statement.query_map([window], |row| {
        let said: String = row.get(1)?;
        Ok(Kept {
            heard_at: Timestamp::from_ms(row.get(0)?),
            said: serde_json::from_str(&said).map_err(|_| rows::damaged(1, "not a message"))?,
        })
    });
    let messages: Vec<Kept> =
        rows.and_then(Iterator::collect::<rusqlite::Result<_>>).map_err(fault)?;
    drop(statement);
    let labels = merging.labels.get(&tunnel);
    let session = messages.first().map(|kept| kept.said.session.id.as_str()).unwrap_or_default();
    let binding = labels.and_then(|labels| labels.of(session)).map(str::to_owned);
    let trust = trust(tx, &messages, &tunnel)?;
    let owner = merging.owner.clone();
    Ok(Some((Burst { tunnel, provider, owner, binding, trust, messages }, held)))
}

/// Known only when all of them are.
fn trust(tx: &mut Tx<'_>, messages: &[Kept], tunnel: &TunnelId) -> Result<Trust, StoreError> {
    let mut asked = HashSet::new();
    for Kept { said, .. } in messages {
        if !asked.insert(&said.from.id) {
            continue;
        }
        let author = said.from.did(tunnel).map_err(|error| unusable(&error))?;
        let book: AddressBook = people::book_of(tx, &author, &[], None)?;
        if book.is_stranger(&author) {
            return Ok(Trust::Untrusted);
        }
    }
    Ok(Trust::Known)
}

/// What was kept was checked before; if it does not fit now, it is not what was kept.
fn unusable(error: &dyn std::error::Error) -> StoreError {
    StoreError::Damaged { what: "message", detail: error.to_string() }
}
