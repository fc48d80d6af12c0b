//! How a message becomes a letter, once.

use monoco_core::did::{Did, TunnelId};
use monoco_core::event::EventKind;
use monoco_core::letter::{ChainDirection, Letter, LetterId};
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use super::rows::{self, LetterHead, NewLetter};
use super::texts::{self, HashedText};
use crate::sqlite::center::{DispatchCheck, SendCheck};
use crate::sqlite::events::{self, EventSubject};
use crate::sqlite::inbound::InboundCheck;
use crate::sqlite::open::fault;
use crate::sqlite::writer::Tx;
use crate::sqlite::{SqliteStore, center, contacts, inbound, objects};
use crate::{
    AcceptResult, DispatchRequest, LetterSource, LetterSourceKind, PipelineRouting, SendRequest,
    StoreError, StoreInboundRequest,
};

/// What a letter is made of, with its text where that belongs.
pub(in crate::sqlite) struct Prepared {
    origin: LetterSource,
    text: Option<HashedText>,
}

impl SqliteStore {
    /// Puts what is too large for a row into files.
    pub(in crate::sqlite) async fn prepare(
        &self,
        origin: LetterSource,
    ) -> Result<Prepared, StoreError> {
        let text = match &origin {
            LetterSource::Submitted { letter, .. } => Some(texts::letter_text(letter)?),
            LetterSource::Inbound(keep) => Some(texts::heard_text(keep)?),
            LetterSource::Dispatch(dispatch) => {
                self.keep_msg(&dispatch.msg).await?;
                texts::dispatch_text(dispatch)?
            }
            LetterSource::Send(post) => {
                self.keep_msg(&post.msg).await?;
                texts::post_text(post)?
            }
        };
        let text = match text {
            Some(text) => Some(HashedText::new(self.keep_text(text).await?)),
            None => None,
        };
        Ok(Prepared { origin, text })
    }
}

/// Takes one letter in.
pub(in crate::sqlite) fn accept(
    tx: &mut Tx<'_>,
    prepared: &Prepared,
    outbound: &PipelineRouting,
    now: Timestamp,
) -> Result<AcceptResult, StoreError> {
    let text = prepared.text.as_ref();
    match &prepared.origin {
        LetterSource::Submitted { letter, tunnel, key } => {
            door(tx, letter, tunnel.as_ref(), key.as_deref(), text, now)
        }
        LetterSource::Inbound(keep) => hear(tx, keep, text, now),
        LetterSource::Dispatch(one) => dispatch(tx, one, text, now),
        LetterSource::Send(one) => post(tx, one, outbound, text, now),
    }
}

fn door(
    tx: &mut Tx<'_>,
    letter: &Letter,
    tunnel: Option<&TunnelId>,
    key: Option<&str>,
    text: Option<&HashedText>,
    now: Timestamp,
) -> Result<AcceptResult, StoreError> {
    let digest = key_digest(text, tunnel);
    if let Some(key) = key
        && let Some((first, same)) = find_key(tx, key, &digest)?
    {
        if !same {
            return Err(StoreError::KeyReused(first.id.to_string()));
        }
        return again(tx, &first, None, now);
    }
    let new = NewLetter {
        direction: ChainDirection::Outbound,
        tunnel,
        made: LetterSourceKind::Submitted,
        object: None,
        heard: None,
        origin: text,
    };
    let id = rows::insert(tx, &new, now)?;
    if let Some(key) = key {
        let sql = "INSERT INTO letter_keys (key, letter, digest) VALUES (?1, ?2, ?3)";
        let row = params![key, id.seq, digest];
        tx.db.prepare_cached(sql).and_then(|mut s| s.execute(row)).map_err(fault)?;
    }
    let detail = detail(id, &new, &letter.from, letter.to.len());
    events::append(tx, EventKind::Letter, EventSubject::default(), &detail, now)?;
    Ok(AcceptResult::Letter { id, duplicate: false, msg_id: None })
}

/// What a key stands for. The tunnel is part of it.
fn key_digest(text: Option<&HashedText>, tunnel: Option<&TunnelId>) -> [u8; 32] {
    let said = text.map(|text| text.digest).unwrap_or_default();
    let name = tunnel.map_or("", TunnelId::as_str).as_bytes();
    *ObjId::of(ObjKind::Bytes, &[&said[..], name].concat()).hash()
}

/// The letter that a key stands for, and whether it is the one with this digest.
fn find_key(
    tx: &Tx<'_>,
    key: &str,
    digest: &[u8; 32],
) -> Result<Option<(LetterHead, bool)>, StoreError> {
    let sql = "SELECT letter, digest = ?2 FROM letter_keys WHERE key = ?1";
    let found: Option<(i64, bool)> = tx
        .db
        .prepare_cached(sql)
        .and_then(|mut s| {
            s.query_row(params![key, digest], |row| Ok((row.get(0)?, row.get(1)?))).optional()
        })
        .map_err(fault)?;
    let Some((seq, same)) = found else { return Ok(None) };
    Ok(rows::by_seq(tx.db, seq)?.map(|stub| (stub, same)))
}

fn hear(
    tx: &mut Tx<'_>,
    keep: &StoreInboundRequest,
    text: Option<&HashedText>,
    now: Timestamp,
) -> Result<AcceptResult, StoreError> {
    let hearsay = match inbound::hear(tx, keep, now)? {
        InboundCheck::Answered(answer) => return Ok(AcceptResult::Inbound(answer)),
        InboundCheck::New(hearsay) => hearsay,
    };
    let new = NewLetter {
        direction: ChainDirection::Inbound,
        tunnel: Some(&keep.tunnel),
        made: LetterSourceKind::Inbound,
        object: None,
        heard: Some(hearsay.heard),
        origin: text,
    };
    let id = rows::insert(tx, &new, now)?;
    let mut detail = inbound::name_of(keep);
    detail["letter"] = json!(id);
    inbound::log(tx, EventKind::Received, &hearsay.author, &detail, now)?;
    Ok(AcceptResult::Letter { id, duplicate: false, msg_id: None })
}

fn dispatch(
    tx: &mut Tx<'_>,
    dispatch: &DispatchRequest,
    text: Option<&HashedText>,
    now: Timestamp,
) -> Result<AcceptResult, StoreError> {
    if let Some((heard, 0)) = center::heard_before(tx, dispatch)?
        && let Some(first) = rows::first(tx.db, "l.heard = ?1", params![heard])?
    {
        let msg_id = match first.object {
            Some(object) => Some(objects::body(tx.db, object)?.0),
            None => None,
        };
        return again(tx, &first, msg_id, now);
    }
    let arrival = match center::receive(tx, dispatch, now)? {
        DispatchCheck::Answered(answer) => return Ok(AcceptResult::Dispatched(answer)),
        DispatchCheck::New(arrival) => arrival,
    };
    let msg = &dispatch.msg;
    if let Some(object) = arrival.known
        && let Some(first) = of_object(tx.db, object, LetterSourceKind::Dispatch)?
    {
        return again(tx, &first, Some(msg.id()), now);
    }
    let object = center::keep(tx, arrival.known, msg)?;
    let mut heard = None;
    if let Some(tunnel) = &dispatch.tunnel {
        contacts::heard_from(tx, tunnel, now)?;
        let through = contacts::row_of(tx, &tunnel.did())?;
        if let Some(external_id) = &dispatch.external_id {
            heard = Some(events::hear(tx, through, external_id, 0)?);
        }
    }
    let new = NewLetter {
        direction: ChainDirection::Inbound,
        tunnel: dispatch.tunnel.as_ref(),
        made: LetterSourceKind::Dispatch,
        object: Some(object),
        heard,
        origin: text,
    };
    taken_in(tx, &new, object, msg, now)
}

/// Puts a message on its way, through the post office where that is its way.
fn post(
    tx: &mut Tx<'_>,
    post: &SendRequest,
    through: &PipelineRouting,
    text: Option<&HashedText>,
    now: Timestamp,
) -> Result<AcceptResult, StoreError> {
    let (known, msg) = (center::known(tx, post)?, &post.msg);
    if let Some(object) = known
        && let Some(first) = of_object(tx.db, object, LetterSourceKind::Send)?
        // What was sent as it came is answered like any other.
        && first.became != Some(object)
    {
        return again(tx, &first, Some(msg.id()), now);
    }
    let departure = match center::prepare(tx, post, known, now)? {
        SendCheck::Answered(answer) => return Ok(AcceptResult::Sent(answer)),
        SendCheck::Ready(departure) => departure,
    };
    let mut tunnels = departure.plans.remote.iter().map(|plan| &plan.tunnel_did);
    let first = tunnels.next();
    let one = first
        .filter(|first| departure.plans.local.is_empty() && tunnels.all(|tunnel| tunnel == *first));
    let tunnel = one.and_then(Did::tunnel);
    if !through.applies_to(tunnel.as_ref()) {
        return center::send(tx, post, known, departure, now).map(AcceptResult::Sent);
    }
    let object = center::keep(tx, known, msg)?;
    if let Some(key) = &post.key {
        center::remember_key(tx, key, object)?;
    }
    let new = NewLetter {
        direction: ChainDirection::Outbound,
        tunnel: tunnel.as_ref(),
        made: LetterSourceKind::Send,
        object: Some(object),
        heard: None,
        origin: text,
    };
    taken_in(tx, &new, object, msg, now)
}

/// The newest letter that was made of a message, in this way.
pub(in crate::sqlite) fn of_object(
    db: &Connection,
    object: i64,
    made: LetterSourceKind,
) -> Result<Option<LetterHead>, StoreError> {
    let which = "l.object = ?1 AND l.origin = ?2 ORDER BY l.seq DESC";
    rows::first(db, which, params![object, made.as_str()])
}

fn taken_in(
    tx: &mut Tx<'_>,
    new: &NewLetter<'_>,
    object: i64,
    msg: &MsgObject,
    now: Timestamp,
) -> Result<AcceptResult, StoreError> {
    let id = rows::insert(tx, new, now)?;
    let owner = contacts::row_of(tx, msg.author())?;
    let about = EventSubject { object: Some(object), record: None, owner: Some(owner) };
    let detail = detail(id, new, msg.author().as_str(), msg.to.len());
    events::append(tx, EventKind::Letter, about, &detail, now)?;
    Ok(AcceptResult::Letter { id, duplicate: false, msg_id: Some(msg.id()) })
}

fn detail(id: LetterId, new: &NewLetter<'_>, from: &str, to: usize) -> Value {
    let mut detail = json!({"letter": id, "direction": new.direction, "from": from, "to": to});
    if let Some(tunnel) = new.tunnel {
        detail["tunnel"] = json!(tunnel);
    }
    detail
}

fn again(
    tx: &mut Tx<'_>,
    first: &LetterHead,
    msg_id: Option<ObjId>,
    now: Timestamp,
) -> Result<AcceptResult, StoreError> {
    let about = EventSubject { object: first.object, ..EventSubject::default() };
    let detail = json!({"of": "letter", "letter": first.id});
    events::append(tx, EventKind::Duplicate, about, &detail, now)?;
    Ok(AcceptResult::Letter { id: first.id, duplicate: true, msg_id })
}
