//! The newest message of each chat, for adapters that read the history of their provider.

use std::collections::BTreeMap;

use monoco_core::did::TunnelId;
use monoco_core::inbound::{ChatPosition, ChatSession, ChatSessionKind, InboundMessage};
use monoco_core::time::Timestamp;

use crate::StoreError;
use crate::sql::contacts;
use crate::sql::db::{Db, params};
use crate::sql::rows;
use crate::sql::writer::Tx;

/// Chats that one call returns.
const MAX_CHATS: usize = 1_000;

/// Messages of open windows that one call reads. A message that is left out is received again
/// and recognised.
const MAX_OPEN_MESSAGES: usize = 10_000;

// A message from the history can be older than what is stored.
const PUT: &str = "
    INSERT INTO chat_positions (tunnel, session, kind, name, message_id, at, object)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
        ON CONFLICT (tunnel, session) DO UPDATE
       SET kind = excluded.kind, name = coalesce(excluded.name, chat_positions.name),
           message_id = excluded.message_id, at = excluded.at, object = excluded.object
     WHERE excluded.at >= chat_positions.at OR excluded.at IS NULL
        OR chat_positions.at IS NULL
";

const NEWEST: &str = "
    SELECT session, kind, name, message_id, at
      FROM chat_positions
     WHERE tunnel = ?1
     ORDER BY object DESC
     LIMIT ?2
";

const OPEN: &str = "
    SELECT i.message
      FROM merge_windows w
      JOIN inbound_messages i ON i.merge_window = w.id
     WHERE w.tunnel = ?1
     ORDER BY i.external_id DESC
     LIMIT ?2
";

/// The position after the messages of one window.
pub(super) fn of_messages<'m>(
    messages: impl IntoIterator<Item = &'m InboundMessage>,
) -> Option<ChatPosition> {
    // The id of an edit is not the id of a message.
    let messages = messages.into_iter().filter(|message| message.corrects.is_none());
    let newest = messages.max_by_key(|message| message.at)?;
    let session = ChatSession { thread_key: None, ..newest.session.clone() };
    Some(ChatPosition { session, message_id: newest.id.clone(), at: newest.at })
}

/// Stores the position of a chat. `object` is the row of its newest Mail.
pub(super) fn put(
    tx: &mut Tx<'_>,
    tunnel: &TunnelId,
    position: &ChatPosition,
    object: i64,
) -> Result<(), StoreError> {
    let tunnel = contacts::party_id(tx, &tunnel.did())?;
    let ChatPosition { session, message_id, at } = position;
    // The name of a direct chat is that of a person, and would survive its erasure.
    let name = session.name.as_ref().filter(|_| session.kind != ChatSessionKind::Direct);
    let at = at.map(Timestamp::ms);
    let kind = rows::as_json(&session.kind)?;
    rows::execute(tx.db, PUT, params![tunnel, session.id, kind, name, message_id, at, object])?;
    Ok(())
}

/// Lists the newest message of each chat of a tunnel, merged or not.
pub(super) fn list(db: &Db, tunnel: &TunnelId) -> Result<Vec<ChatPosition>, StoreError> {
    let Some(tunnel) = contacts::find(db, &tunnel.did())? else { return Ok(Vec::new()) };
    let page = params![tunnel, rows::limit(MAX_CHATS)];
    let stored: Vec<ChatPosition> = rows::list(db, NEWEST, page, |row| {
        let kind: String = row.get(1)?;
        let kind = serde_json::from_str(&kind).map_err(|_| rows::damaged(1, "invalid kind"))?;
        let (id, name) = (row.get(0)?, row.get(2)?);
        let session = ChatSession { id, kind, name, thread_key: None };
        let at: Option<i64> = row.get(4)?;
        Ok(ChatPosition { session, message_id: row.get(3)?, at: at.map(Timestamp::from_ms) })
    })?;
    let page = params![tunnel, rows::limit(MAX_OPEN_MESSAGES)];
    let open: Vec<InboundMessage> = rows::list(db, OPEN, page, |row| {
        let message = row.get_str(0)?;
        serde_json::from_str(message).map_err(|_| rows::damaged(0, "invalid message"))
    })?;
    let mut newest: BTreeMap<String, ChatPosition> = BTreeMap::new();
    let open = open.iter().filter_map(|message| of_messages([message]));
    for position in open.chain(stored) {
        let known = newest.entry(position.session.id.clone()).or_insert_with(|| position.clone());
        if position.at > known.at {
            *known = position;
        }
    }
    Ok(newest.into_values().take(MAX_CHATS).collect())
}
