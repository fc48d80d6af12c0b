//! What was heard: kept once, in the window of its session, until it is a Mail.

use std::collections::{HashMap, HashSet};

use monoco_core::contact::StrangerPolicy;
use monoco_core::did::{Did, TunnelId};
use monoco_core::event::EventKind;
use monoco_core::inbound::InboundMessage;
use monoco_core::mail::Trust;
use monoco_core::merge::{BuiltMail, Debounce, MailBuilder, MergeWindow};
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use super::contacts::parsed;
use super::events::{self, EventSubject};
use super::mails::{self, NewMail};
use super::open::fault;
use super::writer::Tx;
use super::{center, contacts, objects, rows};
use crate::{
    DispatchOutcome, DispatchRequest, MergeContext, StoreError, StoreInboundRequest,
    StoreInboundResult,
};

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

const MESSAGES: &str = "SELECT seq, said FROM kept WHERE window = ?1 ORDER BY seq";

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
pub(super) enum InboundCheck {
    /// It is dealt with: it was heard before, or its author is not wanted.
    Answered(StoreInboundResult),
    /// It is new.
    New(NewInboundRow),
}

/// A message that is new, and remembered as heard.
pub(super) struct NewInboundRow {
    /// Its row.
    pub(super) heard: i64,
    /// Who said it.
    pub(super) author: Did,
    /// Whether it is of a stranger whom nobody has let in.
    held: bool,
}

/// Keeps one message, unless we have it.
pub(super) fn keep(
    tx: &mut Tx<'_>,
    keep: &StoreInboundRequest,
    now: Timestamp,
) -> Result<StoreInboundResult, StoreError> {
    let hearsay = match hear(tx, keep, now)? {
        InboundCheck::Answered(answer) => return Ok(answer),
        InboundCheck::New(hearsay) => hearsay,
    };
    join(tx, keep, hearsay.heard, hearsay.held, now)?;
    log(tx, EventKind::Received, &hearsay.author, &name_of(keep), now)?;
    Ok(StoreInboundResult::Stored)
}

/// Remembers that a message was heard, unless it was before. Where it goes next is not
/// decided here.
pub(super) fn hear(
    tx: &mut Tx<'_>,
    keep: &StoreInboundRequest,
    now: Timestamp,
) -> Result<InboundCheck, StoreError> {
    let StoreInboundRequest { tunnel, message, .. } = keep;
    if let Some(through) = contacts::peek(tx, &tunnel.did())?
        && let recent = tx.indexes.heard.recent()
        && let Some((_, object)) = events::heard(tx.db, recent, &message.id, Some(through))?
    {
        let about = EventSubject {
            object: Some(object).filter(|row| *row != 0),
            ..EventSubject::default()
        };
        let detail = json!({"of": "received", "tunnel": tunnel, "external_id": message.id});
        events::append(tx, EventKind::Duplicate, about, &detail, now)?;
        return Ok(InboundCheck::Answered(StoreInboundResult::Duplicate));
    }
    let (author, welcome) = welcome(tx, message, tunnel)?;
    contacts::heard_from(tx, tunnel, now)?;
    let through = contacts::row_of(tx, &tunnel.did())?;
    let heard = events::hear(tx, through, &message.id, 0)?;
    if let SenderPolicy::Refused(kind, answer) = welcome {
        log(tx, kind, &author, &name_of(keep), now)?;
        return Ok(InboundCheck::Answered(answer));
    }
    Ok(InboundCheck::New(NewInboundRow { heard, author, held: welcome == SenderPolicy::Held }))
}

/// Takes a message that was heard, and has been through the post office, into its
/// window: as its author is received now.
pub(super) fn admit(
    tx: &mut Tx<'_>,
    keep: &StoreInboundRequest,
    heard: i64,
    now: Timestamp,
) -> Result<StoreInboundResult, StoreError> {
    let (author, welcome) = welcome(tx, &keep.message, &keep.tunnel)?;
    if let SenderPolicy::Refused(kind, answer) = welcome {
        log(tx, kind, &author, &name_of(keep), now)?;
        return Ok(answer);
    }
    join(tx, keep, heard, welcome == SenderPolicy::Held, now)?;
    Ok(StoreInboundResult::Stored)
}

/// Puts a message into the window of its session.
fn join(
    tx: &mut Tx<'_>,
    keep: &StoreInboundRequest,
    heard: i64,
    held: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let StoreInboundRequest { tunnel, provider, message, debounce } = keep;
    let text = message.json();
    let through = contacts::row_of(tx, &tunnel.did())?;
    let place = WindowKey { tunnel: through, name: tunnel, provider, held };
    let window =
        window(tx, &place, message, u32::try_from(text.len()).unwrap_or(u32::MAX), debounce, now)?;
    let row = params![window, heard, now.ms(), text];
    tx.db.prepare_cached(ADD).and_then(|mut s| s.execute(row)).map_err(fault)?;
    Ok(())
}

/// How an author is received, as things stand now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SenderPolicy {
    Known,
    Stranger,
    Held,
    Refused(EventKind, StoreInboundResult),
}

fn welcome(
    tx: &mut Tx<'_>,
    message: &InboundMessage,
    tunnel: &TunnelId,
) -> Result<(Did, SenderPolicy), StoreError> {
    let author = message.from.did(tunnel).map_err(|error| unusable(&error))?;
    let book = contacts::book_of(tx, &author, &[], Some(tunnel))?;
    let strangers = book.tunnels.get(tunnel).map(|tunnel| tunnel.strangers);
    let welcome = match strangers {
        _ if book.blocks(&author) => {
            SenderPolicy::Refused(EventKind::Blocked, StoreInboundResult::Blocked)
        }
        _ if !book.is_stranger(&author) => SenderPolicy::Known,
        Some(StrangerPolicy::Drop) => {
            SenderPolicy::Refused(EventKind::Dropped, StoreInboundResult::Dropped)
        }
        Some(StrangerPolicy::Hold) => SenderPolicy::Held,
        Some(StrangerPolicy::Accept) | None => SenderPolicy::Stranger,
    };
    Ok((author, welcome))
}

/// By what a message is known outside.
pub(super) fn name_of(keep: &StoreInboundRequest) -> Value {
    json!({"tunnel": keep.tunnel, "external_id": keep.message.id})
}

/// Adds an event about a message that was heard.
pub(super) fn log(
    tx: &mut Tx<'_>,
    kind: EventKind,
    author: &Did,
    detail: &Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    let owner = contacts::row_of(tx, author)?;
    let about = EventSubject { owner: Some(owner), ..EventSubject::default() };
    events::append(tx, kind, about, detail, now)
}

/// Where a message belongs, but for its session.
struct WindowKey<'a> {
    tunnel: i64,
    name: &'a TunnelId,
    provider: &'a str,
    held: bool,
}

/// The window that a message joins or opens.
fn window(
    tx: &Tx<'_>,
    place: &WindowKey<'_>,
    message: &InboundMessage,
    bytes: u32,
    debounce: &Debounce,
    now: Timestamp,
) -> Result<i64, StoreError> {
    let session = message.merge_key(place.held);
    let open: Option<(i64, MergeWindow)> = tx
        .db
        .prepare_cached(OPEN_WINDOW)
        .and_then(|mut s| {
            let row = params![place.tunnel, session, place.held, now.ms()];
            s.query_row(row, |row| {
                let window = MergeWindow {
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
    let window = MergeWindow::open(now, bytes);
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
pub(super) enum ClosedWindow {
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
    merging: &MergeContext,
    files: &HashSet<ObjId>,
    now: Timestamp,
) -> Result<ClosedWindow, StoreError> {
    let Some(talk) = talk(tx, window, merging)? else { return Ok(ClosedWindow::Merged) };
    let WindowContents { burst, held, refused } = talk;
    let (tunnel, id, count) = (burst.tunnel.clone(), burst.mail_id(), burst.messages.len());
    let mail = match id {
        Some(id) => Some((id, burst.build(now).map_err(|error| unusable(&error))?)),
        None => None,
    };
    if let Some((_, BuiltMail { object, .. })) = &mail
        && object.canonical().len() > objects::INLINE
        && !files.contains(&object.id())
    {
        return Ok(ClosedWindow::Large(Box::new(object.clone())));
    }
    for UnusableWindow { kept, author, message, kind } in refused {
        let sql = "DELETE FROM kept WHERE seq = ?1";
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute([kept])).map_err(fault)?;
        log(tx, kind, &author, &json!({"tunnel": tunnel, "external_id": message.id}), now)?;
    }
    if let Some((id, built)) = mail
        && let Some(row) = deliver(tx, built, &tunnel, held, now)?
    {
        let became = params![window, row];
        for sql in [LETTERS_BECAME, BECAME] {
            tx.db.prepare_cached(sql).and_then(|mut s| s.execute(became)).map_err(fault)?;
        }
        let about = EventSubject { object: Some(row), ..EventSubject::default() };
        let detail = json!({"mail": id, "messages": count, "tunnel": tunnel, "held": held});
        events::append(tx, EventKind::Merged, about, &detail, now)?;
    }
    for sql in ["DELETE FROM kept WHERE window = ?1", "DELETE FROM windows WHERE id = ?1"] {
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute([window])).map_err(fault)?;
    }
    Ok(ClosedWindow::Merged)
}

/// Puts a Mail into its boxes. Returns the row of its object; `None` when its author
/// is not wanted there.
fn deliver(
    tx: &mut Tx<'_>,
    built: BuiltMail,
    tunnel: &TunnelId,
    held: bool,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    let BuiltMail { mail, object: msg } = built;
    let dispatch = DispatchRequest { msg, tunnel: Some(tunnel.clone()), external_id: None };
    match center::dispatch(tx, &dispatch, now)?.outcome {
        DispatchOutcome::Blocked | DispatchOutcome::Dropped => return Ok(None),
        DispatchOutcome::Delivered { .. } | DispatchOutcome::Chained { .. } => {}
    }
    let msg = &dispatch.msg;
    let object = objects::row_of(tx.db, tx.indexes.hashes.recent(), &msg.id())?;
    let author = contacts::row_of(tx, msg.author())?;
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
struct WindowContents {
    /// What becomes a Mail; without messages when nobody in it is wanted any more.
    burst: MailBuilder,
    /// Whether it is of a stranger whom nobody has let in.
    held: bool,
    /// Messages of those who are not wanted any more.
    refused: Vec<UnusableWindow>,
}

struct UnusableWindow {
    kept: i64,
    author: Did,
    message: InboundMessage,
    kind: EventKind,
}

/// The messages of a window, with what is needed to merge them. Somebody may have been
/// let in or blocked since they were kept, and that is no matter of the others.
fn talk(
    tx: &mut Tx<'_>,
    window: i64,
    merging: &MergeContext,
) -> Result<Option<WindowContents>, StoreError> {
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
    let mut asked: HashMap<String, (Did, SenderPolicy)> = HashMap::new();
    for (kept, message) in kept(tx.db, window)? {
        let from = &message.from.id;
        let (author, welcome) = match asked.get(from) {
            Some(known) => known.clone(),
            None => {
                let judged = welcome(tx, &message, &tunnel)?;
                asked.insert(from.clone(), judged.clone());
                judged
            }
        };
        if let SenderPolicy::Refused(kind, _) = welcome {
            refused.push(UnusableWindow { kept, author, message, kind });
            continue;
        }
        held &= welcome == SenderPolicy::Held;
        if welcome != SenderPolicy::Known {
            trust = Trust::Untrusted;
        }
        messages.push(message);
    }
    let labels = merging.labels.get(&tunnel);
    let session = messages.first().map(|message| message.session.id.as_str()).unwrap_or_default();
    let binding = labels.and_then(|labels| labels.of(session)).map(str::to_owned);
    let owner = merging.owner.clone();
    let burst = MailBuilder { tunnel, provider, owner, binding, trust, messages };
    Ok(Some(WindowContents { burst, held, refused }))
}

/// The messages that wait in a window, with their rows.
fn kept(db: &Connection, window: i64) -> Result<Vec<(i64, InboundMessage)>, StoreError> {
    let mut statement = db.prepare_cached(MESSAGES).map_err(fault)?;
    let rows = statement.query_map([window], |row| {
        let message = row.get_ref(1)?.as_str()?;
        let message =
            serde_json::from_str(message).map_err(|_| rows::damaged(1, "not a message"))?;
        Ok((row.get(0)?, message))
    });
    rows.and_then(Iterator::collect::<rusqlite::Result<_>>).map_err(fault)
}

/// What was kept was checked before; if it does not fit now, it is not what was kept.
fn unusable(error: &dyn std::error::Error) -> StoreError {
    StoreError::Damaged { what: "message", detail: error.to_string() }
}
