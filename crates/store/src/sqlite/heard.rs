//! What was heard: kept once, in the window of its session, until it is a Mail.

use std::collections::{HashMap, HashSet};

use monoco_core::contact::Strangers;
use monoco_core::did::{Did, TunnelId};
use monoco_core::event::EventKind;
use monoco_core::heard::Said;
use monoco_core::mail::{Mail, Trust};
use monoco_core::merge::{Burst, Debounce, Kept, Window};
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use super::journal::{self, About};
use super::mails::{self, NewMail};
use super::open::fault;
use super::people::parsed;
use super::writer::Tx;
use super::{center, objects, people, rows};
use crate::{Dispatch, DispatchOutcome, Keep, Keeping, Merging, StoreError};

// The newest, for one that could not be merged is put off to after it.
const OPEN_WINDOW: &str = "
    SELECT id, first_at, last_at, messages, bytes
      FROM windows
     WHERE tunnel = ?1 AND session = ?2 AND held = ?3 AND closes_at > ?4
     ORDER BY id DESC
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

const MESSAGES: &str = "SELECT seq, heard_at, said FROM kept WHERE window = ?1 ORDER BY seq";

const BECAME: &str = "
    UPDATE heard
       SET object = ?2
     WHERE seq IN (SELECT heard FROM kept WHERE window = ?1)
";

// Letters that such messages were.
const LETTERS_BECAME: &str = "
    UPDATE letters
       SET became = ?2
     WHERE heard IN (SELECT heard FROM kept WHERE window = ?1)
";

/// What a message that is heard comes to.
pub(super) enum Hearing {
    /// It is dealt with: it was heard before, or its author is not wanted.
    Answered(Keeping),
    /// It is new.
    New(Hearsay),
}

/// A message that is new, and remembered as heard.
pub(super) struct Hearsay {
    /// Its row.
    pub(super) heard: i64,
    /// Who said it.
    pub(super) author: Did,
    /// Whether it is of a stranger whom nobody has let in.
    held: bool,
}

/// Keeps one message, unless we have it.
pub(super) fn keep(tx: &mut Tx<'_>, keep: &Keep, now: Timestamp) -> Result<Keeping, StoreError> {
    let hearsay = match hear(tx, keep, now)? {
        Hearing::Answered(answer) => return Ok(answer),
        Hearing::New(hearsay) => hearsay,
    };
    join(tx, keep, hearsay.heard, hearsay.held, now)?;
    log(tx, EventKind::Heard, &hearsay.author, &name_of(keep), now)?;
    Ok(Keeping::Kept)
}

/// Remembers that a message was heard, unless it was before. Where it goes next is not
/// decided here.
pub(super) fn hear(tx: &mut Tx<'_>, keep: &Keep, now: Timestamp) -> Result<Hearing, StoreError> {
    let Keep { tunnel, said, .. } = keep;
    if let Some(through) = people::peek(tx, &tunnel.did())?
        && let recent = tx.indexes.heard.recent()
        && let Some((_, object)) = journal::heard(tx.db, recent, &said.id, Some(through))?
    {
        let about = About { object: Some(object).filter(|row| *row != 0), ..About::default() };
        let detail = json!({"of": "heard", "tunnel": tunnel, "external_id": said.id});
        journal::append(tx, EventKind::Duplicate, about, &detail, now)?;
        return Ok(Hearing::Answered(Keeping::Duplicate));
    }
    let (author, welcome) = welcome(tx, said, tunnel)?;
    people::heard_from(tx, tunnel, now)?;
    let through = people::row_of(tx, &tunnel.did())?;
    let heard = journal::hear(tx, through, &said.id, 0)?;
    if let Welcome::Refused(kind, answer) = welcome {
        log(tx, kind, &author, &name_of(keep), now)?;
        return Ok(Hearing::Answered(answer));
    }
    Ok(Hearing::New(Hearsay { heard, author, held: welcome == Welcome::Held }))
}

/// Takes a message that was heard, and has been through the post office, into its
/// window: as its author is received now.
pub(super) fn admit(
    tx: &mut Tx<'_>,
    keep: &Keep,
    heard: i64,
    now: Timestamp,
) -> Result<Keeping, StoreError> {
    let (author, welcome) = welcome(tx, &keep.said, &keep.tunnel)?;
    if let Welcome::Refused(kind, answer) = welcome {
        log(tx, kind, &author, &name_of(keep), now)?;
        return Ok(answer);
    }
    join(tx, keep, heard, welcome == Welcome::Held, now)?;
    Ok(Keeping::Kept)
}

/// Puts a message into the window of its session.
fn join(
    tx: &mut Tx<'_>,
    keep: &Keep,
    heard: i64,
    held: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Keep { tunnel, provider, said, debounce } = keep;
    let text = rows::as_json(&said)?;
    let through = people::row_of(tx, &tunnel.did())?;
    let place = Place { tunnel: through, name: tunnel, provider, held };
    let window =
        window(tx, &place, said, u32::try_from(text.len()).unwrap_or(u32::MAX), debounce, now)?;
    let row = params![window, heard, now.ms(), text];
    tx.db.prepare_cached(ADD).and_then(|mut s| s.execute(row)).map_err(fault)?;
    Ok(())
}

/// How an author is received, as things stand now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Welcome {
    Known,
    Stranger,
    Held,
    Refused(EventKind, Keeping),
}

fn welcome(tx: &mut Tx<'_>, said: &Said, tunnel: &TunnelId) -> Result<(Did, Welcome), StoreError> {
    let author = said.from.did(tunnel).map_err(|error| unusable(&error))?;
    let book = people::book_of(tx, &author, &[], Some(tunnel))?;
    let strangers = book.tunnels.get(tunnel).map(|tunnel| tunnel.strangers);
    let welcome = match strangers {
        _ if book.blocks(&author) => Welcome::Refused(EventKind::Blocked, Keeping::Blocked),
        _ if !book.is_stranger(&author) => Welcome::Known,
        Some(Strangers::Drop) => Welcome::Refused(EventKind::Dropped, Keeping::Dropped),
        Some(Strangers::Hold) => Welcome::Held,
        Some(Strangers::Accept) | None => Welcome::Stranger,
    };
    Ok((author, welcome))
}

/// By what a message is known outside.
pub(super) fn name_of(keep: &Keep) -> Value {
    json!({"tunnel": keep.tunnel, "external_id": keep.said.id})
}

/// Adds an event about a message that was heard.
pub(super) fn log(
    tx: &mut Tx<'_>,
    kind: EventKind,
    author: &Did,
    detail: &Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    let owner = people::row_of(tx, author)?;
    let about = About { owner: Some(owner), ..About::default() };
    journal::append(tx, kind, about, detail, now)
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
    let session = said.burst_key(place.held);
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
    /// A Mail, or nothing, because nobody in it is wanted any more.
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
    let Some(talk) = talk(tx, window, merging)? else { return Ok(Closed::Merged) };
    let Talk { burst, held, refused } = talk;
    let (tunnel, id, count) = (burst.tunnel.clone(), burst.mail_id(), burst.messages.len());
    let mail = match id {
        Some(id) => Some((id, burst.seal(now).map_err(|error| unusable(&error))?)),
        None => None,
    };
    if let Some((_, object)) = &mail
        && object.canonical().len() > objects::INLINE
        && !files.contains(&object.id())
    {
        return Ok(Closed::Large(Box::new(object.clone())));
    }
    for Refused { kept, author, said, kind } in refused {
        let sql = "DELETE FROM kept WHERE seq = ?1";
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute([kept])).map_err(fault)?;
        log(tx, kind, &author, &json!({"tunnel": tunnel, "external_id": said.id}), now)?;
    }
    if let Some((id, object)) = mail
        && let Some(row) = deliver(tx, object, &tunnel, held, now)?
    {
        let became = params![window, row];
        for sql in [LETTERS_BECAME, BECAME] {
            tx.db.prepare_cached(sql).and_then(|mut s| s.execute(became)).map_err(fault)?;
        }
        let about = About { object: Some(row), ..About::default() };
        let detail = json!({"mail": id, "messages": count, "tunnel": tunnel, "held": held});
        journal::append(tx, EventKind::Merged, about, &detail, now)?;
    }
    for sql in ["DELETE FROM kept WHERE window = ?1", "DELETE FROM windows WHERE id = ?1"] {
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute([window])).map_err(fault)?;
    }
    Ok(Closed::Merged)
}

/// Puts a Mail into its boxes. Returns the row of its object; `None` when its author
/// is not wanted there.
fn deliver(
    tx: &mut Tx<'_>,
    msg: MsgObject,
    tunnel: &TunnelId,
    held: bool,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    let dispatch = Dispatch { msg, tunnel: Some(tunnel.clone()), external_id: None };
    match center::dispatch(tx, &dispatch, now)?.outcome {
        DispatchOutcome::Blocked | DispatchOutcome::Dropped => return Ok(None),
        DispatchOutcome::Delivered { .. } | DispatchOutcome::Chained { .. } => {}
    }
    let msg = &dispatch.msg;
    let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &msg.id())?;
    let mail = Mail::read(msg.id(), msg.canonical()).map_err(|error| unusable(&error))?;
    let author = people::row_of(tx, msg.author())?;
    mails::insert(tx, NewMail { mail: &mail, object, author, held }, now)?;
    Ok(Some(object))
}

/// Puts off a window that could not be merged, so that it does not hold up the others.
pub(super) fn put_off(tx: &mut Tx<'_>, window: i64, until: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE windows SET closes_at = ?2 WHERE id = ?1";
    let row = params![window, until.ms()];
    tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    Ok(())
}

/// What is in a window, as it stands now.
struct Talk {
    /// What becomes a Mail; without messages when nobody in it is wanted any more.
    burst: Burst,
    /// Whether it is of a stranger whom nobody has let in.
    held: bool,
    /// Messages of those who are not wanted any more.
    refused: Vec<Refused>,
}

struct Refused {
    kept: i64,
    author: Did,
    said: Said,
    kind: EventKind,
}

/// The messages of a window, with what is needed to merge them. Somebody may have been
/// let in or blocked since they were kept, and that is no matter of the others.
fn talk(tx: &mut Tx<'_>, window: i64, merging: &Merging) -> Result<Option<Talk>, StoreError> {
    let sql = "SELECT name, provider, held FROM windows WHERE id = ?1";
    let found: Option<(TunnelId, String, bool)> = tx
        .db
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.query_row([window], |row| Ok((parsed(row, 0)?, row.get(1)?, row.get(2)?))).optional()
        })
        .map_err(fault)?;
    // Whoever looked may have been overtaken.
    let Some((tunnel, provider, mut held)) = found else { return Ok(None) };
    let mut trust = Trust::Known;
    let (mut messages, mut refused) = (Vec::new(), Vec::new());
    let mut asked: HashMap<String, (Did, Welcome)> = HashMap::new();
    for (kept, message) in kept(tx.db, window)? {
        let from = &message.said.from.id;
        let (author, welcome) = match asked.get(from) {
            Some(known) => known.clone(),
            None => {
                let judged = welcome(tx, &message.said, &tunnel)?;
                asked.insert(from.clone(), judged.clone());
                judged
            }
        };
        if let Welcome::Refused(kind, _) = welcome {
            refused.push(Refused { kept, author, said: message.said, kind });
            continue;
        }
        held &= welcome == Welcome::Held;
        if welcome != Welcome::Known {
            trust = Trust::Untrusted;
        }
        messages.push(message);
    }
    let labels = merging.labels.get(&tunnel);
    let session = messages.first().map(|kept| kept.said.session.id.as_str()).unwrap_or_default();
    let binding = labels.and_then(|labels| labels.of(session)).map(str::to_owned);
    let owner = merging.owner.clone();
    let burst = Burst { tunnel, provider, owner, binding, trust, messages };
    Ok(Some(Talk { burst, held, refused }))
}

/// The messages that wait in a window, with their rows.
fn kept(db: &Connection, window: i64) -> Result<Vec<(i64, Kept)>, StoreError> {
    let mut statement = db.prepare_cached(MESSAGES).map_err(fault)?;
    let rows = statement.query_map([window], |row| {
        let said: String = row.get(2)?;
        let said = serde_json::from_str(&said).map_err(|_| rows::damaged(2, "not a message"))?;
        Ok((row.get(0)?, Kept { heard_at: Timestamp::from_ms(row.get(1)?), said }))
    });
    rows.and_then(Iterator::collect::<rusqlite::Result<_>>).map_err(fault)
}

/// What was kept was checked before; if it does not fit now, it is not what was kept.
fn unusable(error: &dyn std::error::Error) -> StoreError {
    StoreError::Damaged { what: "message", detail: error.to_string() }
}
