//! Contacts, groups and tunnels; and the page of the address book that one
//! message needs.

use std::collections::BTreeSet;

use monoco_core::contact::{
    AddressBook, Binding, Contact, ContactLevel, Party, StrangerPolicy, TunnelInfo,
};
use monoco_core::did::{Did, Endpoint, TunnelId};
use monoco_core::event::EventKind;
use monoco_core::object::MsgObject;
use monoco_core::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::json;

use super::events::{self, EventSubject};
use super::open::fault;
use super::writer::Tx;
use super::{mails, rows};
use crate::{Group, Page, PageRequest, StoreError};

const PARTY_ID: &str = "SELECT id FROM parties WHERE did = ?1";
const INSERT_PARTY: &str = "INSERT INTO parties (did) VALUES (?1)";

const PARTY: &str = "
    SELECT level, here, has_box, is_group
      FROM parties
     WHERE id = ?1
";

const CONTACT: &str = "
    SELECT id, did, level, names, here
      FROM parties
     WHERE did = ?1 AND (level IS NOT NULL OR here = 1)
";

const PUT_CONTACT: &str = "
    UPDATE parties
       SET level = ?2, names = ?3, here = ?4
     WHERE id = ?1
";

const FORGET_CONTACT: &str = "
    UPDATE parties
       SET level = NULL, names = '[]', here = 0
     WHERE id = ?1
";

const BINDINGS: &str = "
    SELECT tunnel, kind, address, priority
      FROM bindings
     WHERE contact = ?1
     ORDER BY priority DESC, tunnel, address
";

const BIND: &str = "
    INSERT INTO bindings (contact, tunnel, kind, address, priority)
    VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (contact, tunnel, kind, address) DO UPDATE SET priority = excluded.priority
";

// The contact an endpoint belongs to: the one who was bound first, should two
// claim it.
const BOUND_TO: &str = "
    SELECT contact
      FROM bindings
     WHERE tunnel = ?1 AND address = ?2 AND kind = ?3
     ORDER BY contact
     LIMIT 1
";

const TUNNEL: &str = "
    SELECT name, provider, strangers, idempotent
      FROM tunnels
     WHERE name = ?1
";

const PUT_TUNNEL: &str = "
    INSERT INTO tunnels (party, name, provider, strangers, idempotent)
    VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (party) DO UPDATE
       SET provider = excluded.provider, strangers = excluded.strangers,
           idempotent = excluded.idempotent
";

const SUBSCRIBERS: &str = "
    SELECT p.did
      FROM subscribers s
      JOIN parties p ON p.id = s.reader
     WHERE s.grp = ?1
     ORDER BY s.reader
";

const BLOCKED_BY: &str = "
    SELECT p.did
      FROM blocks b
      JOIN parties p ON p.id = b.target
     WHERE b.sender = ?1
";

/// The row of a DID, if it has one.
pub(super) fn find(db: &Connection, did: &Did) -> Result<Option<i64>, StoreError> {
    let mut statement = db.prepare_cached(PARTY_ID).map_err(fault)?;
    statement.query_row([did.as_str()], |row| row.get(0)).optional().map_err(fault)
}

/// The row of a DID, made when there is none.
pub(super) fn row_of(tx: &mut Tx<'_>, did: &Did) -> Result<i64, StoreError> {
    if let Some(&id) = tx.known.parties.get(did.as_str()) {
        return Ok(id);
    }
    let id = match find(tx.db, did)? {
        Some(id) => id,
        None => {
            let mut statement = tx.db.prepare_cached(INSERT_PARTY).map_err(fault)?;
            statement.insert([did.as_str()]).map_err(fault)?
        }
    };
    tx.known.parties.insert(did.as_str().to_owned(), id);
    Ok(id)
}

/// The row of a DID that we have heard of, without making one.
pub(super) fn peek(tx: &mut Tx<'_>, did: &Did) -> Result<Option<i64>, StoreError> {
    if let Some(&id) = tx.known.parties.get(did.as_str()) {
        return Ok(Some(id));
    }
    let id = find(tx.db, did)?;
    if let Some(id) = id {
        tx.known.parties.insert(did.as_str().to_owned(), id);
    }
    Ok(id)
}

/// Reads a column of text into something that checks it.
pub(super) fn parsed<T>(row: &Row<'_>, column: usize) -> rusqlite::Result<T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static>,
{
    let text: String = row.get(column)?;
    text.parse().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(
            column,
            rusqlite::types::Type::Text,
            Box::new(error),
        )
    })
}

/// What is known of everybody `msg` names, for one decision about it.
pub(super) fn book(
    tx: &mut Tx<'_>,
    msg: &MsgObject,
    through: Option<&TunnelId>,
) -> Result<AddressBook, StoreError> {
    let others: Vec<&Did> = msg.to.iter().chain([&msg.from]).collect();
    book_of(tx, msg.author(), &others, through)
}

/// What is known of an author and of everybody else he names.
pub(super) fn book_of(
    tx: &mut Tx<'_>,
    author: &Did,
    others: &[&Did],
    through: Option<&TunnelId>,
) -> Result<AddressBook, StoreError> {
    let db = tx.db;
    book_by(db, |did| peek(tx, did), author, others, through)
}

/// The same, where `find` is how the row of a DID is looked up.
pub(super) fn book_by(
    db: &Connection,
    mut find: impl FnMut(&Did) -> Result<Option<i64>, StoreError>,
    author: &Did,
    others: &[&Did],
    through: Option<&TunnelId>,
) -> Result<AddressBook, StoreError> {
    let mut book = AddressBook::default();
    if let Some(through) = through {
        add_tunnel(db, through, &mut book)?;
    }
    for did in [author].into_iter().chain(others.iter().copied()) {
        if book.parties.contains_key(did) {
            continue;
        }
        if let Some(endpoint) = did.endpoint() {
            add_tunnel(db, &endpoint.tunnel, &mut book)?;
        }
        let Some(row) = find(did)? else { continue };
        let party = party_row(db, row)?;
        for binding in &party.bindings {
            add_tunnel(db, &binding.tunnel, &mut book)?;
        }
        book.parties.insert(did.clone(), party);
    }
    // An endpoint that is bound to a contact counts as that contact.
    let contact = author.endpoint().map(|endpoint| bound_to(db, &endpoint)).transpose()?;
    if let Some(contact) = contact.flatten() {
        let level = party_row(db, contact)?.level;
        let known = book.parties.entry(author.clone()).or_default();
        known.level = match (known.level, level) {
            (Some(own), Some(bound)) => Some(own.min(bound)),
            (own, bound) => own.or(bound),
        };
        book.blocked_by.extend(blocked_by(db, contact)?);
    }
    if let Some(author) = find(author)? {
        book.blocked_by.extend(blocked_by(db, author)?);
    }
    Ok(book)
}

fn party_row(db: &Connection, id: i64) -> Result<Party, StoreError> {
    let mut statement = db.prepare_cached(PARTY).map_err(fault)?;
    let (level, here, has_box, is_group) = statement
        .query_row([id], |row| Ok((level(row, 0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .map_err(fault)?;
    let subscribers = if is_group { Some(subscribers(db, id)?) } else { None };
    let bindings = if level.is_some() { bindings(db, id)? } else { Vec::new() };
    Ok(Party { level, here, subscribers, has_box, bindings })
}

fn level(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<ContactLevel>> {
    let text: Option<String> = row.get(column)?;
    Ok(text.as_deref().and_then(ContactLevel::parse))
}

fn add_tunnel(db: &Connection, id: &TunnelId, book: &mut AddressBook) -> Result<(), StoreError> {
    if !book.tunnels.contains_key(id)
        && let Some(tunnel) = tunnel(db, id)?
    {
        book.tunnels.insert(id.clone(), tunnel);
    }
    Ok(())
}

/// One tunnel.
pub(super) fn tunnel(db: &Connection, id: &TunnelId) -> Result<Option<TunnelInfo>, StoreError> {
    let mut statement = db.prepare_cached(TUNNEL).map_err(fault)?;
    statement.query_row([id.as_str()], tunnel_row).optional().map_err(fault)
}

fn tunnel_row(row: &Row<'_>) -> rusqlite::Result<TunnelInfo> {
    let strangers: String = row.get(2)?;
    Ok(TunnelInfo {
        id: parsed(row, 0)?,
        provider: row.get(1)?,
        strangers: StrangerPolicy::parse(&strangers).unwrap_or(StrangerPolicy::Hold),
        idempotent: row.get(3)?,
    })
}

fn dids(db: &Connection, sql: &str, id: i64) -> Result<Vec<Did>, StoreError> {
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement.query_map([id], |row| parsed(row, 0)).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

fn subscribers(db: &Connection, group: i64) -> Result<Vec<Did>, StoreError> {
    dids(db, SUBSCRIBERS, group)
}

fn blocked_by(db: &Connection, sender: i64) -> Result<BTreeSet<Did>, StoreError> {
    Ok(dids(db, BLOCKED_BY, sender)?.into_iter().collect())
}

fn bound_to(db: &Connection, endpoint: &Endpoint) -> Result<Option<i64>, StoreError> {
    let Endpoint { account, kind, tunnel } = endpoint;
    let mut statement = db.prepare_cached(BOUND_TO).map_err(fault)?;
    statement
        .query_row(params![tunnel.as_str(), account, kind.to_string()], |row| row.get(0))
        .optional()
        .map_err(fault)
}

fn bindings(db: &Connection, contact: i64) -> Result<Vec<Binding>, StoreError> {
    let mut statement = db.prepare_cached(BINDINGS).map_err(fault)?;
    let rows = statement
        .query_map([contact], |row| {
            Ok(Binding {
                tunnel: parsed(row, 0)?,
                kind: parsed(row, 1)?,
                address: row.get(2)?,
                priority: row.get(3)?,
            })
        })
        .map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

fn contact_row(db: &Connection, row: &Row<'_>) -> Result<Contact, StoreError> {
    let id = row.get(0).map_err(fault)?;
    let names: String = row.get(3).map_err(fault)?;
    Ok(Contact {
        did: parsed(row, 1).map_err(fault)?,
        names: serde_json::from_str(&names).unwrap_or_default(),
        level: level(row, 2).map_err(fault)?.unwrap_or(ContactLevel::Stranger),
        here: row.get(4).map_err(fault)?,
        bindings: bindings(db, id)?,
    })
}

pub(super) fn contact(db: &Connection, did: &Did) -> Result<Contact, StoreError> {
    let mut statement = db.prepare_cached(CONTACT).map_err(fault)?;
    let mut rows = statement.query([did.as_str()]).map_err(fault)?;
    match rows.next().map_err(fault)? {
        Some(row) => contact_row(db, row),
        None => Err(StoreError::Missing { what: "contact", key: did.to_string() }),
    }
}

pub(super) fn put_contact(
    tx: &mut Tx<'_>,
    contact: &Contact,
    now: Timestamp,
) -> Result<Contact, StoreError> {
    let id = row_of(tx, &contact.did)?;
    let names = rows::as_json(&contact.names)?;
    let mut statement = tx.db.prepare_cached(PUT_CONTACT).map_err(fault)?;
    statement.execute(params![id, contact.level.as_str(), names, contact.here]).map_err(fault)?;
    drop(statement);
    let detail = json!({"contact": contact.did, "level": contact.level, "here": contact.here});
    changed(tx, id, detail, now)?;
    welcome(tx, &contact.did, now)
}

/// Shows the Mails that were held for a contact who is no stranger any more.
fn welcome(tx: &mut Tx<'_>, did: &Did, now: Timestamp) -> Result<Contact, StoreError> {
    let contact = contact(tx.db, did)?;
    if matches!(contact.level, ContactLevel::Temporary | ContactLevel::Friend) {
        mails::let_in(tx, did, now)?;
        for Binding { tunnel, kind, address, .. } in &contact.bindings {
            let (account, kind, tunnel) = (address.clone(), *kind, tunnel.clone());
            if let Ok(endpoint) = (Endpoint { account, kind, tunnel }).did() {
                mails::let_in(tx, &endpoint, now)?;
            }
        }
    }
    Ok(contact)
}

pub(super) fn contacts(db: &Connection, window: &PageRequest) -> Result<Page<Contact>, StoreError> {
    let known = "level IS NOT NULL OR here = 1";
    page(db, "id, did, level, names, here", known, window, |row| contact_row(db, row))
}

pub(super) fn groups(db: &Connection, window: &PageRequest) -> Result<Page<Group>, StoreError> {
    page(db, "id, did, names", "is_group = 1", window, |row| group_row(db, row))
}

/// A page of parties, whose first column is the id.
fn page<T>(
    db: &Connection,
    columns: &str,
    condition: &str,
    window: &PageRequest,
    read: impl Fn(&Row<'_>) -> Result<T, StoreError>,
) -> Result<Page<T>, StoreError> {
    let (beyond, order) = rows::range(window);
    let sql = format!(
        "SELECT {columns} FROM parties WHERE ({condition}) AND id {beyond} ?1 ORDER BY id {order} LIMIT ?2"
    );
    let mut statement = db.prepare_cached(&sql).map_err(fault)?;
    let mut rows =
        statement.query(params![rows::start(window), rows::count(window) + 1]).map_err(fault)?;
    let mut entries = Vec::new();
    while let Some(row) = rows.next().map_err(fault)? {
        entries.push((row.get(0).map_err(fault)?, read(row)?));
    }
    Ok(rows::cut(entries, window))
}

pub(super) fn remove_contact(tx: &mut Tx<'_>, did: &Did, now: Timestamp) -> Result<(), StoreError> {
    contact(tx.db, did)?;
    let id = row_of(tx, did)?;
    tx.db.prepare_cached(FORGET_CONTACT).and_then(|mut s| s.execute([id])).map_err(fault)?;
    tx.db.execute("DELETE FROM bindings WHERE contact = ?1", [id]).map_err(fault)?;
    changed(tx, id, json!({"contact": did, "removed": true}), now)
}

pub(super) fn bind(
    tx: &mut Tx<'_>,
    did: &Did,
    binding: &Binding,
    now: Timestamp,
) -> Result<Contact, StoreError> {
    contact(tx.db, did)?;
    if tunnel(tx.db, &binding.tunnel)?.is_none() {
        return Err(StoreError::Missing { what: "tunnel", key: binding.tunnel.to_string() });
    }
    let id = row_of(tx, did)?;
    let Binding { tunnel, kind, address, priority } = binding;
    tx.db
        .prepare_cached(BIND)
        .and_then(|mut s| {
            s.execute(params![id, tunnel.as_str(), kind.to_string(), address, priority])
        })
        .map_err(fault)?;
    changed(tx, id, json!({"contact": did, "bound": binding}), now)?;
    welcome(tx, did, now)
}

pub(super) fn unbind(
    tx: &mut Tx<'_>,
    did: &Did,
    tunnel: &TunnelId,
    address: &str,
    now: Timestamp,
) -> Result<Contact, StoreError> {
    contact(tx.db, did)?;
    let id = row_of(tx, did)?;
    let sql = "DELETE FROM bindings WHERE contact = ?1 AND tunnel = ?2 AND address = ?3";
    if tx.db.execute(sql, params![id, tunnel.as_str(), address]).map_err(fault)? == 0 {
        let key = format!("{tunnel} {address}");
        return Err(StoreError::Missing { what: "binding", key });
    }
    changed(
        tx,
        id,
        json!({"contact": did, "unbound": {"tunnel": tunnel, "address": address}}),
        now,
    )?;
    contact(tx.db, did)
}

pub(super) fn set_block(
    tx: &mut Tx<'_>,
    sender: &Did,
    target: &Did,
    blocked: bool,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (sender_id, target_id) = (row_of(tx, sender)?, row_of(tx, target)?);
    let sql = if blocked {
        "INSERT INTO blocks (sender, target) VALUES (?1, ?2) ON CONFLICT DO NOTHING"
    } else {
        "DELETE FROM blocks WHERE sender = ?1 AND target = ?2"
    };
    tx.db.execute(sql, [sender_id, target_id]).map_err(fault)?;
    let detail = json!({"sender": sender, "blocked": blocked, "for": target});
    changed(tx, target_id, detail, now)
}

fn group_row(db: &Connection, row: &Row<'_>) -> Result<Group, StoreError> {
    let id = row.get(0).map_err(fault)?;
    let names: String = row.get(2).map_err(fault)?;
    let names: Vec<String> = serde_json::from_str(&names).unwrap_or_default();
    Ok(Group {
        did: parsed(row, 1).map_err(fault)?,
        name: names.into_iter().next(),
        subscribers: subscribers(db, id)?,
    })
}

pub(super) fn group(db: &Connection, did: &Did) -> Result<Group, StoreError> {
    let sql = "SELECT id, did, names FROM parties WHERE did = ?1 AND is_group = 1";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let mut rows = statement.query([did.as_str()]).map_err(fault)?;
    match rows.next().map_err(fault)? {
        Some(row) => group_row(db, row),
        None => Err(StoreError::Missing { what: "group", key: did.to_string() }),
    }
}

pub(super) fn put_group(
    tx: &mut Tx<'_>,
    did: &Did,
    name: Option<&str>,
    now: Timestamp,
) -> Result<Group, StoreError> {
    let id = row_of(tx, did)?;
    let sql = "
        UPDATE parties
           SET is_group = 1, names = CASE WHEN ?2 IS NULL THEN names ELSE json_array(?2) END
         WHERE id = ?1
    ";
    tx.db.execute(sql, params![id, name]).map_err(fault)?;
    changed(tx, id, json!({"group": did, "name": name}), now)?;
    group(tx.db, did)
}

pub(super) fn set_subscriber(
    tx: &mut Tx<'_>,
    did: &Did,
    reader: &Did,
    subscribed: bool,
    now: Timestamp,
) -> Result<Group, StoreError> {
    group(tx.db, did)?;
    let (group_id, reader_id) = (row_of(tx, did)?, row_of(tx, reader)?);
    let sql = if subscribed {
        "INSERT INTO subscribers (grp, reader) VALUES (?1, ?2) ON CONFLICT DO NOTHING"
    } else {
        "DELETE FROM subscribers WHERE grp = ?1 AND reader = ?2"
    };
    tx.db.execute(sql, [group_id, reader_id]).map_err(fault)?;
    let detail = json!({"group": did, "reader": reader, "subscribed": subscribed});
    changed(tx, group_id, detail, now)?;
    group(tx.db, did)
}

pub(super) fn put_tunnel(
    tx: &mut Tx<'_>,
    tunnel: &TunnelInfo,
    now: Timestamp,
) -> Result<TunnelInfo, StoreError> {
    if self::tunnel(tx.db, &tunnel.id)?.as_ref() == Some(tunnel) {
        return Ok(tunnel.clone());
    }
    let id = row_of(tx, &tunnel.id.did())?;
    let TunnelInfo { id: name, provider, strangers, idempotent } = tunnel;
    tx.db
        .prepare_cached(PUT_TUNNEL)
        .and_then(|mut s| {
            s.execute(params![id, name.as_str(), provider, strangers.as_str(), idempotent])
        })
        .map_err(fault)?;
    let detail = json!({"tunnel": name, "provider": provider, "strangers": strangers});
    changed(tx, id, detail, now)?;
    Ok(tunnel.clone())
}

/// Makes sure that a tunnel that was heard from can be answered through.
pub(super) fn heard_from(tx: &mut Tx<'_>, id: &TunnelId, now: Timestamp) -> Result<(), StoreError> {
    if tunnel(tx.db, id)?.is_some() {
        return Ok(());
    }
    let tunnel = TunnelInfo {
        id: id.clone(),
        provider: "external".to_owned(),
        strangers: StrangerPolicy::Accept,
        idempotent: false,
    };
    put_tunnel(tx, &tunnel, now).map(|_| ())
}

pub(super) fn tunnels(db: &Connection) -> Result<Vec<TunnelInfo>, StoreError> {
    let sql = "SELECT name, provider, strangers, idempotent FROM tunnels ORDER BY name";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let rows = statement.query_map([], tunnel_row).map_err(fault)?;
    rows.collect::<rusqlite::Result<_>>().map_err(fault)
}

pub(super) fn is_known(db: &Connection, did: &Did) -> Result<bool, StoreError> {
    let sql = "
        SELECT level IS NOT NULL OR here OR has_box OR is_group
               OR EXISTS (SELECT 1 FROM tunnels t WHERE t.party = parties.id)
          FROM parties
         WHERE did = ?1
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    let known = statement.query_row([did.as_str()], |row| row.get(0)).optional().map_err(fault)?;
    Ok(known.unwrap_or(false))
}

fn changed(
    tx: &mut Tx<'_>,
    owner: i64,
    detail: serde_json::Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    events::append(
        tx,
        EventKind::Changed,
        EventSubject { owner: Some(owner), ..EventSubject::default() },
        &detail,
        now,
    )
}
