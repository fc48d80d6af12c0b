//! Accepts messages: each becomes a letter once, or is answered at once.

use monoco_core::did::{Did, TunnelId};
use monoco_core::event::EventKind;
use monoco_core::letter::{ChainDirection, Letter, LetterId};
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::rows::{self, LetterHead, NewLetter};
use super::texts::{self, HashedText, StoredText};
use crate::sql::db::{Db, params};
use crate::sql::dispatch::{self, DispatchCheck};
use crate::sql::events::{self, EventSubject};
use crate::sql::inbound::{self, InboundCheck, NewInboundRow, files};
use crate::sql::rows as sql;
use crate::sql::send::{self, SendCheck};
use crate::sql::writer::Tx;
use crate::sql::{SqlStore, contacts, external_ids, objects};
use crate::{
    AcceptResult, DispatchRequest, LetterSource, LetterSourceKind, PipelineRouting, SendRequest,
    StoreError, StoreInboundRequest, StoreResult,
};

/// The source of a letter, with its serialised text.
pub(in crate::sql) struct PreparedLetter {
    source: LetterSource,
    text: Option<HashedText>,
}

impl PreparedLetter {
    /// The start of the hash of the external id of the message.
    pub(in crate::sql) fn external_id(&self) -> Option<i64> {
        let id = match &self.source {
            LetterSource::Inbound(request) => &request.message.id,
            LetterSource::Dispatch(request) => request.external_id.as_ref()?,
            LetterSource::Submitted { .. } | LetterSource::Send(_) => return None,
        };
        Some(external_ids::hash_prefix(id))
    }
}

impl SqlStore {
    /// Serialises the source of a letter and writes large texts to files.
    pub(in crate::sql) async fn prepare_letter(
        &self,
        source: LetterSource,
        now: Timestamp,
    ) -> StoreResult<PreparedLetter> {
        let text = match &source {
            LetterSource::Submitted { letter, origin, .. } => {
                Some(texts::submitted_text(letter, origin)?)
            }
            LetterSource::Inbound(request) => {
                self.put_attachments(request, now).await?;
                Some(texts::inbound_text(request)?)
            }
            LetterSource::Dispatch(request) => {
                self.put_large_message(&request.msg).await?;
                texts::dispatch_text(request)?
            }
            LetterSource::Send(request) => {
                self.put_large_message(&request.msg).await?;
                texts::send_text(request)?
            }
        };
        let text = match text {
            Some(text) => Some(HashedText::new(self.put_text(text).await?)),
            None => None,
        };
        Ok(PreparedLetter { source, text })
    }
}

pub(in crate::sql) fn accept(
    tx: &mut Tx<'_>,
    prepared: &PreparedLetter,
    outbound: &PipelineRouting,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    let text = prepared.text.as_ref();
    match &prepared.source {
        LetterSource::Submitted { letter, tunnel, key, .. } => {
            accept_submitted(tx, letter, tunnel.as_ref(), key.as_deref(), text, now)
        }
        LetterSource::Inbound(request) => accept_inbound(tx, request, text, now),
        LetterSource::Dispatch(request) => accept_dispatch(tx, request, text, now),
        LetterSource::Send(request) => accept_send(tx, request, outbound, text, now),
    }
}

fn accept_submitted(
    tx: &mut Tx<'_>,
    letter: &Letter,
    tunnel: Option<&TunnelId>,
    key: Option<&str>,
    text: Option<&HashedText>,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    let digest = key_digest(text, tunnel);
    if let Some(key) = key
        && let Some((first, same)) = find_key(tx, key, &digest)?
    {
        if !same {
            return Err(StoreError::KeyReused(first.id.to_string()));
        }
        return duplicate(tx, &first, None, now);
    }
    let new = NewLetter {
        direction: ChainDirection::Outbound,
        tunnel,
        source: LetterSourceKind::Submitted,
        object: None,
        external_id: None,
        text,
    };
    let id = rows::insert(tx, &new, now)?;
    if let Some(key) = key {
        let insert = "INSERT INTO letter_keys (key, letter, digest) VALUES (?1, ?2, ?3)";
        sql::execute(tx.db, insert, params![key, id.seq, digest])?;
    }
    let detail = event_detail(id, &new, &letter.from, letter.to.len());
    events::append(tx, EventKind::Letter, EventSubject::default(), &detail, now)?;
    Ok(AcceptResult::Letter { id, duplicate: false, msg_id: None })
}

/// The digest of a submission: its text and its tunnel.
fn key_digest(text: Option<&HashedText>, tunnel: Option<&TunnelId>) -> [u8; 32] {
    let text = text.map(|text| text.digest).unwrap_or_default();
    let tunnel = tunnel.map_or("", TunnelId::as_str).as_bytes();
    *ObjId::of(ObjKind::Bytes, &[&text[..], tunnel].concat()).hash()
}

/// Returns the letter of an idempotency key, and whether it has this digest.
fn find_key(tx: &Tx<'_>, key: &str, digest: &[u8; 32]) -> StoreResult<Option<(LetterHead, bool)>> {
    let select = "SELECT letter, digest = ?2 FROM letter_keys WHERE key = ?1";
    let found: Option<(i64, bool)> =
        sql::optional(tx.db, select, params![key, digest], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let Some((seq, same)) = found else { return Ok(None) };
    Ok(rows::by_seq(tx.db, seq)?.map(|head| (head, same)))
}

fn accept_inbound(
    tx: &mut Tx<'_>,
    request: &StoreInboundRequest,
    text: Option<&HashedText>,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    match inbound::check(tx, request, now)? {
        InboundCheck::Answered(result) => Ok(AcceptResult::Inbound(result)),
        InboundCheck::New(message) => insert_inbound(tx, request, &message, text, now),
    }
}

/// Inserts the letter of a new inbound message. Without `text` the source is serialised here.
pub(in crate::sql) fn insert_inbound(
    tx: &mut Tx<'_>,
    request: &StoreInboundRequest,
    message: &NewInboundRow,
    text: Option<&HashedText>,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    let serialised = match text {
        Some(_) => None,
        None => Some(HashedText::new(StoredText::Inline(texts::inbound_text(request)?))),
    };
    let text = text.or(serialised.as_ref());
    let tunnel = contacts::party_id(tx, &request.tunnel.did())?;
    files::announce(tx, tunnel, message.external_id, &request.message, now)?;
    let new = NewLetter {
        direction: ChainDirection::Inbound,
        tunnel: Some(&request.tunnel),
        source: LetterSourceKind::Inbound,
        object: None,
        external_id: Some(message.external_id),
        text,
    };
    let id = rows::insert(tx, &new, now)?;
    let mut detail = inbound::event_detail(request);
    detail["letter"] = json!(id);
    inbound::append_event(tx, EventKind::Received, &message.author, &detail, now)?;
    Ok(AcceptResult::Letter { id, duplicate: false, msg_id: None })
}

fn accept_dispatch(
    tx: &mut Tx<'_>,
    request: &DispatchRequest,
    text: Option<&HashedText>,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    if let Some((external_id, 0)) = dispatch::find_external_id(tx, request)?
        && let Some(first) = rows::first(tx.db, "l.external_id = ?1", params![external_id])?
    {
        let msg_id = match first.object {
            Some(object) => Some(objects::id_of(tx.db, object)?),
            None => None,
        };
        return duplicate(tx, &first, msg_id, now);
    }
    let resolved = match dispatch::check(tx, request, now)? {
        DispatchCheck::Answered(result) => return Ok(AcceptResult::Dispatched(result)),
        DispatchCheck::New(resolved) => resolved,
    };
    let msg = &request.msg;
    if let Some(object) = resolved.known
        && let Some(first) = of_object(tx.db, object, LetterSourceKind::Dispatch)?
    {
        return duplicate(tx, &first, Some(msg.id()), now);
    }
    let object = objects::insert_message(tx, resolved.known, msg)?;
    let (_, external_id) = dispatch::insert_external_id(tx, request, 0, now)?;
    let new = NewLetter {
        direction: ChainDirection::Inbound,
        tunnel: request.tunnel.as_ref(),
        source: LetterSourceKind::Dispatch,
        object: Some(object),
        external_id,
        text,
    };
    insert(tx, &new, object, msg, now)
}

/// Creates a letter if the message has a chain, or sends the message.
fn accept_send(
    tx: &mut Tx<'_>,
    request: &SendRequest,
    routing: &PipelineRouting,
    text: Option<&HashedText>,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    let (known, msg) = (send::find_object(tx, request)?, &request.msg);
    if let Some(object) = known
        && let Some(first) = of_object(tx.db, object, LetterSourceKind::Send)?
        // A letter that was sent unchanged is reported like a message without a chain.
        && first.became != Some(object)
    {
        return duplicate(tx, &first, Some(msg.id()), now);
    }
    let resolved = match send::check(tx, request, known, now)? {
        SendCheck::Answered(result) => return Ok(AcceptResult::Sent(result)),
        SendCheck::Ready(resolved) => resolved,
    };
    // The tunnel of the letter, if it is the same for all targets.
    let mut tunnels = resolved.plans.remote.iter().map(|plan| &plan.tunnel_did);
    let first = tunnels.next();
    let common = first
        .filter(|first| resolved.plans.local.is_empty() && tunnels.all(|tunnel| tunnel == *first));
    let tunnel = common.and_then(Did::tunnel);
    if !routing.applies_to(tunnel.as_ref()) {
        return send::insert(tx, request, known, resolved, now).map(AcceptResult::Sent);
    }
    let object = objects::insert_message(tx, known, msg)?;
    if let Some(key) = &request.key {
        send::insert_key(tx, key, object)?;
    }
    let new = NewLetter {
        direction: ChainDirection::Outbound,
        tunnel: tunnel.as_ref(),
        source: LetterSourceKind::Send,
        object: Some(object),
        external_id: None,
        text,
    };
    insert(tx, &new, object, msg, now)
}

/// Returns the newest letter that was created from a message in this way.
pub(in crate::sql) fn of_object(
    db: &Db,
    object: i64,
    source: LetterSourceKind,
) -> StoreResult<Option<LetterHead>> {
    let condition = "l.object = ?1 AND l.source = ?2 ORDER BY l.seq DESC";
    rows::first(db, condition, params![object, source.as_str()])
}

fn insert(
    tx: &mut Tx<'_>,
    new: &NewLetter<'_>,
    object: i64,
    msg: &MsgObject,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    let id = rows::insert(tx, new, now)?;
    let owner = contacts::party_id(tx, msg.author())?;
    let subject = EventSubject { object: Some(object), record: None, owner: Some(owner) };
    let detail = event_detail(id, new, msg.author().as_str(), msg.to.len());
    events::append(tx, EventKind::Letter, subject, &detail, now)?;
    Ok(AcceptResult::Letter { id, duplicate: false, msg_id: Some(msg.id()) })
}

fn event_detail(id: LetterId, new: &NewLetter<'_>, from: &str, to: usize) -> Value {
    let mut detail = json!({"letter": id, "direction": new.direction, "from": from, "to": to});
    if let Some(tunnel) = new.tunnel {
        detail["tunnel"] = json!(tunnel);
    }
    detail
}

fn duplicate(
    tx: &mut Tx<'_>,
    first: &LetterHead,
    msg_id: Option<ObjId>,
    now: Timestamp,
) -> StoreResult<AcceptResult> {
    let subject = EventSubject { object: first.object, ..EventSubject::default() };
    let detail = json!({"of": "letter", "letter": first.id});
    events::append(tx, EventKind::Duplicate, subject, &detail, now)?;
    Ok(AcceptResult::Letter { id: first.id, duplicate: true, msg_id })
}
