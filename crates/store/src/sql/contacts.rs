//! Contacts, groups, blocks and tunnels.

use std::collections::BTreeSet;

use async_trait::async_trait;
use monoco_core::contact::{Binding, Contact, ContactLevel, StrangerPolicy, TunnelInfo};
use monoco_core::did::{Did, EMAIL_PROVIDER, Endpoint, TunnelId, lower_case_domain};
use monoco_core::event::EventKind;
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::db::{Db, Row, params};
use super::events::{self, EventSubject};
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{SqlStore, address_book, contact_lookup, mails};
use crate::{ContactStore, Group, Page, PageRequest, StoreError, StoreResult};

const PARTY_ID: &str = "SELECT id FROM parties WHERE did = ?1";
const INSERT_PARTY: &str = "INSERT INTO parties (did) VALUES (?1)";

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

const REMOVE_CONTACT: &str = "
    UPDATE parties
       SET level = NULL, names = '[]', here = 0
     WHERE id = ?1
";

const PUT_BINDING: &str = "
    INSERT INTO bindings (contact, tunnel, kind, address, priority)
    VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (contact, tunnel, kind, address) DO UPDATE SET priority = excluded.priority
";

const PUT_GROUP: &str = "
    UPDATE parties
       SET is_group = 1, names = coalesce(?2, names)
     WHERE id = ?1
";

const PUT_TUNNEL: &str = "
    INSERT INTO tunnels (party, name, provider, strangers, idempotent, finds_sent, reads_history,
                         labels)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
        ON CONFLICT (party) DO UPDATE
       SET provider = excluded.provider, strangers = excluded.strangers,
           idempotent = excluded.idempotent, finds_sent = excluded.finds_sent,
           reads_history = excluded.reads_history, labels = excluded.labels
";

/// Returns the party id of a DID, on any connection.
pub(super) fn find(db: &Db, did: &Did) -> StoreResult<Option<i64>> {
    rows::optional(db, PARTY_ID, [did.as_str()], |row| row.get(0))
}

/// Returns the party id of a DID in the writer, and inserts the party when there is none.
pub(super) fn party_id(tx: &mut Tx<'_>, did: &Did) -> StoreResult<i64> {
    if let Some(id) = find_party_id(tx, did)? {
        return Ok(id);
    }
    let id = rows::insert(tx.db, INSERT_PARTY, [did.as_str()])?;
    tx.cache.parties.insert(did.as_str().to_owned(), id);
    Ok(id)
}

/// Returns the party id of a DID in the writer, or `None` when there is none.
pub(super) fn find_party_id(tx: &mut Tx<'_>, did: &Did) -> StoreResult<Option<i64>> {
    if let Some(&id) = tx.cache.parties.get(did.as_str()) {
        return Ok(Some(id));
    }
    let id = find(tx.db, did)?;
    if let Some(id) = id {
        tx.cache.parties.insert(did.as_str().to_owned(), id);
    }
    Ok(id)
}

fn read_contact(db: &Db, row: &Row<'_>) -> StoreResult<Contact> {
    let id = row.get(0)?;
    let names: String = row.get(3)?;
    let level = address_book::level(row, 2)?;
    Ok(Contact {
        did: parsed(row, 1)?,
        names: serde_json::from_str(&names).unwrap_or_default(),
        level: level.unwrap_or(ContactLevel::Stranger),
        here: row.get(4)?,
        bindings: address_book::bindings(db, id)?,
    })
}

fn contact(db: &Db, did: &Did) -> StoreResult<Contact> {
    let mut found = None;
    rows::scan(db, 1, CONTACT, [did.as_str()], |row| {
        found = Some(read_contact(db, row)?);
        Ok(false)
    })?;
    found.ok_or_else(|| StoreError::Missing { what: "contact", key: did.to_string() })
}

/// Releases the held Mails of a contact that is no longer a stranger.
fn release_held_mails(tx: &mut Tx<'_>, did: &Did, now: Timestamp) -> StoreResult<Contact> {
    let contact = contact(tx.db, did)?;
    if matches!(contact.level, ContactLevel::Temporary | ContactLevel::Friend) {
        mails::release_held(tx, did, now)?;
        for Binding { tunnel, kind, address, .. } in &contact.bindings {
            let (account, kind, tunnel) = (address.clone(), *kind, tunnel.clone());
            if let Ok(endpoint) = (Endpoint { account, kind, tunnel }).did() {
                mails::release_held(tx, &endpoint, now)?;
            }
        }
    }
    Ok(contact)
}

/// Removes a contact with its names and bindings. The party stays.
pub(super) fn remove(db: &Db, party: i64) -> StoreResult<()> {
    rows::execute(db, REMOVE_CONTACT, [party])?;
    rows::execute(db, "DELETE FROM bindings WHERE contact = ?1", [party])?;
    contact_lookup::set_names(db, party, &[])
}

fn read_group(db: &Db, row: &Row<'_>) -> StoreResult<Group> {
    let id = row.get(0)?;
    let names: String = row.get(2)?;
    let names: Vec<String> = serde_json::from_str(&names).unwrap_or_default();
    Ok(Group {
        did: parsed(row, 1)?,
        name: names.into_iter().next(),
        subscribers: address_book::subscribers(db, id)?,
    })
}

fn group(db: &Db, did: &Did) -> StoreResult<Group> {
    let sql = "SELECT id, did, names FROM parties WHERE did = ?1 AND is_group = 1";
    let mut found = None;
    rows::scan(db, 1, sql, [did.as_str()], |row| {
        found = Some(read_group(db, row)?);
        Ok(false)
    })?;
    found.ok_or_else(|| StoreError::Missing { what: "group", key: did.to_string() })
}

/// Lists a page of parties. The first of `columns` is the id.
fn list_parties<T>(
    db: &Db,
    columns: &str,
    condition: &str,
    page: &PageRequest,
    read: impl Fn(&Row<'_>) -> StoreResult<T>,
) -> StoreResult<Page<T>> {
    let (beyond, order) = rows::direction(page);
    let sql = format!(
        "SELECT {columns} FROM parties WHERE ({condition}) AND id {beyond} ?1 ORDER BY id {order}"
    );
    let mut entries = Vec::new();
    rows::scan(db, page.limit.saturating_add(1), &sql, [rows::start(page)], |row| {
        let id: i64 = row.get(0)?;
        let entry = db.unless_damaged("party", id, read(row))?;
        entries.extend(entry.map(|entry| (id, entry)));
        Ok(entries.len() <= page.limit)
    })?;
    Ok(rows::page(entries, page))
}

fn put_tunnel(tx: &mut Tx<'_>, tunnel: &TunnelInfo, now: Timestamp) -> StoreResult<TunnelInfo> {
    if address_book::tunnel(tx.db, &tunnel.id)?.as_ref() == Some(tunnel) {
        return Ok(tunnel.clone());
    }
    let id = party_id(tx, &tunnel.id.did())?;
    let TunnelInfo { id: name, provider, strangers, idempotent, finds_sent, .. } = tunnel;
    let TunnelInfo { reads_history, labels, .. } = tunnel;
    let row = params![
        id,
        name.as_str(),
        provider,
        strangers.as_str(),
        idempotent,
        finds_sent,
        reads_history,
        rows::as_json(labels)?
    ];
    rows::execute(tx.db, PUT_TUNNEL, row)?;
    let detail = json!({"tunnel": name, "provider": provider, "strangers": strangers});
    changed(tx, id, detail, now)?;
    Ok(tunnel.clone())
}

/// Inserts a tunnel that a message came through and that is not configured here, so that
/// replies can be queued for it.
pub(super) fn insert_unknown_tunnel(
    tx: &mut Tx<'_>,
    id: &TunnelId,
    now: Timestamp,
) -> StoreResult<()> {
    if address_book::tunnel_exists(tx, id)? {
        return Ok(());
    }
    let tunnel = TunnelInfo::new(id.clone(), "external".to_owned(), StrangerPolicy::Accept);
    put_tunnel(tx, &tunnel, now).map(|_| ())
}

/// Clears the cached address book and appends an event. Called after every write to the
/// address book tables.
fn changed(tx: &mut Tx<'_>, owner: i64, detail: Value, now: Timestamp) -> StoreResult<()> {
    tx.change_address_book();
    let subject = EventSubject { owner: Some(owner), ..EventSubject::default() };
    events::append(tx, EventKind::Changed, subject, &detail, now)
}

#[async_trait]
impl ContactStore for SqlStore {
    async fn put_contact(&self, contact: Contact, now: Timestamp) -> StoreResult<Contact> {
        self.writer
            .run(move |tx| {
                let Contact { did, names, level, here, .. } = &contact;
                let id = party_id(tx, did)?;
                let row = params![id, level.as_str(), rows::as_json(names)?, here];
                rows::execute(tx.db, PUT_CONTACT, row)?;
                contact_lookup::set_names(tx.db, id, names)?;
                changed(tx, id, json!({"contact": did, "level": level, "here": here}), now)?;
                release_held_mails(tx, did, now)
            })
            .await
    }

    async fn contact(&self, did: &Did) -> StoreResult<Contact> {
        let did = did.clone();
        self.read(move |db| contact(db, &did)).await
    }

    async fn contacts_by_name(&self, name: &str, limit: usize) -> StoreResult<Vec<Did>> {
        let name = name.to_owned();
        self.read(move |db| contact_lookup::by_name(db, &name, limit)).await
    }

    async fn contacts_by_account(
        &self,
        tunnel: &TunnelId,
        account: &str,
        limit: usize,
    ) -> StoreResult<Vec<Did>> {
        let (tunnel, account) = (tunnel.clone(), account.to_owned());
        self.read(move |db| contact_lookup::by_account(db, &tunnel, &account, limit)).await
    }

    async fn contacts(&self, page: PageRequest) -> StoreResult<Page<Contact>> {
        self.read(move |db| {
            let (columns, known) = ("id, did, level, names, here", "level IS NOT NULL OR here = 1");
            list_parties(db, columns, known, &page, |row| read_contact(db, row))
        })
        .await
    }

    async fn remove_contact(&self, did: &Did, now: Timestamp) -> StoreResult<()> {
        let did = did.clone();
        self.writer
            .run(move |tx| {
                contact(tx.db, &did)?;
                let id = party_id(tx, &did)?;
                remove(tx.db, id)?;
                changed(tx, id, json!({"contact": did, "removed": true}), now)
            })
            .await
    }

    async fn bind(&self, did: &Did, binding: Binding, now: Timestamp) -> StoreResult<Contact> {
        let did = did.clone();
        self.writer
            .run(move |tx| {
                contact(tx.db, &did)?;
                let Some(info) = address_book::tunnel(tx.db, &binding.tunnel)? else {
                    let key = binding.tunnel.to_string();
                    return Err(StoreError::Missing { what: "tunnel", key });
                };
                let binding = binding.clone().at_provider(&info.provider);
                let Binding { tunnel, kind, address, priority } = &binding;
                let id = party_id(tx, &did)?;
                let row = params![id, tunnel.as_str(), kind.to_string(), address, priority];
                rows::execute(tx.db, PUT_BINDING, row)?;
                changed(tx, id, json!({"contact": did, "bound": binding}), now)?;
                release_held_mails(tx, &did, now)
            })
            .await
    }

    async fn unbind(
        &self,
        did: &Did,
        tunnel: &TunnelId,
        address: &str,
        now: Timestamp,
    ) -> StoreResult<Contact> {
        let (did, tunnel, address) = (did.clone(), tunnel.clone(), address.to_owned());
        self.writer
            .run(move |tx| {
                contact(tx.db, &did)?;
                let id = party_id(tx, &did)?;
                let info = address_book::tunnel(tx.db, &tunnel)?;
                let email = info.is_some_and(|info| info.provider == EMAIL_PROVIDER);
                let address = if email { lower_case_domain(&address) } else { address.clone() };
                let sql = "
                    DELETE FROM bindings WHERE contact = ?1 AND tunnel = ?2 AND address = ?3
                ";
                if rows::changed_rows(tx.db, sql, params![id, tunnel.as_str(), address])? == 0 {
                    let key = format!("{tunnel} {address}");
                    return Err(StoreError::Missing { what: "binding", key });
                }
                let unbound = json!({"tunnel": tunnel, "address": address});
                changed(tx, id, json!({"contact": did, "unbound": unbound}), now)?;
                contact(tx.db, &did)
            })
            .await
    }

    async fn set_block(
        &self,
        sender: &Did,
        target: &Did,
        blocked: bool,
        now: Timestamp,
    ) -> StoreResult<()> {
        let (sender, target) = (sender.clone(), target.clone());
        self.writer
            .run(move |tx| {
                let (sender_id, target_id) = (party_id(tx, &sender)?, party_id(tx, &target)?);
                let sql = if blocked {
                    "INSERT INTO blocks (sender, target) VALUES (?1, ?2) ON CONFLICT DO NOTHING"
                } else {
                    "DELETE FROM blocks WHERE sender = ?1 AND target = ?2"
                };
                rows::execute(tx.db, sql, [sender_id, target_id])?;
                let detail = json!({"sender": sender, "blocked": blocked, "for": target});
                changed(tx, target_id, detail, now)
            })
            .await
    }

    async fn find_block(
        &self,
        author: &Did,
        to: &[Did],
        tunnel: Option<&TunnelId>,
    ) -> StoreResult<Option<String>> {
        let (author, to, tunnel) = (author.clone(), to.to_vec(), tunnel.cloned());
        self.read(move |db| {
            let others: Vec<&Did> = to.iter().collect();
            let book = address_book::read(db, &author, &others, tunnel.as_ref())?;
            if book.blocks(&author) {
                return Ok(Some("its author is blocked".to_owned()));
            }
            let blocked = to.iter().find(|target| book.is_block(&author, target));
            Ok(blocked.map(|target| format!("{target} has blocked its author")))
        })
        .await
    }

    async fn put_group(
        &self,
        did: &Did,
        name: Option<String>,
        now: Timestamp,
    ) -> StoreResult<Group> {
        let did = did.clone();
        self.writer
            .run(move |tx| {
                let id = party_id(tx, &did)?;
                let names = name.as_ref().map(std::slice::from_ref);
                let json = names.map(|names| rows::as_json(&names)).transpose()?;
                rows::execute(tx.db, PUT_GROUP, params![id, json])?;
                if let Some(names) = names {
                    contact_lookup::set_names(tx.db, id, names)?;
                }
                changed(tx, id, json!({"group": did, "name": name}), now)?;
                group(tx.db, &did)
            })
            .await
    }

    async fn group(&self, did: &Did) -> StoreResult<Group> {
        let did = did.clone();
        self.read(move |db| group(db, &did)).await
    }

    async fn groups(&self, page: PageRequest) -> StoreResult<Page<Group>> {
        self.read(move |db| {
            let (columns, condition) = ("id, did, names", "is_group = 1");
            list_parties(db, columns, condition, &page, |row| read_group(db, row))
        })
        .await
    }

    async fn set_subscriber(
        &self,
        did: &Did,
        reader: &Did,
        subscribed: bool,
        now: Timestamp,
    ) -> StoreResult<Group> {
        let (did, reader) = (did.clone(), reader.clone());
        self.writer
            .run(move |tx| {
                group(tx.db, &did)?;
                let (group_id, reader_id) = (party_id(tx, &did)?, party_id(tx, &reader)?);
                let sql = if subscribed {
                    "INSERT INTO subscribers (group_id, reader) VALUES (?1, ?2)
                         ON CONFLICT DO NOTHING"
                } else {
                    "DELETE FROM subscribers WHERE group_id = ?1 AND reader = ?2"
                };
                rows::execute(tx.db, sql, [group_id, reader_id])?;
                let detail = json!({"group": did, "reader": reader, "subscribed": subscribed});
                changed(tx, group_id, detail, now)?;
                group(tx.db, &did)
            })
            .await
    }

    async fn put_tunnel(&self, tunnel: TunnelInfo, now: Timestamp) -> StoreResult<TunnelInfo> {
        self.writer.run(move |tx| put_tunnel(tx, &tunnel, now)).await
    }

    async fn remove_tunnel(&self, id: &TunnelId, now: Timestamp) -> StoreResult<()> {
        let name = id.clone();
        self.writer
            .run(move |tx| {
                if !address_book::tunnel_exists(tx, &name)? {
                    return Ok(());
                }
                let id = party_id(tx, &name.did())?;
                rows::execute(tx.db, "DELETE FROM tunnels WHERE party = ?1", [id])?;
                changed(tx, id, json!({"tunnel": name, "removed": true}), now)
            })
            .await
    }

    async fn set_tunnel_active(
        &self,
        id: &TunnelId,
        active: bool,
        now: Timestamp,
    ) -> StoreResult<()> {
        let name = id.clone();
        self.writer
            .run(move |tx| {
                if !address_book::tunnel_exists(tx, &name)? {
                    return Err(StoreError::Missing { what: "tunnel", key: name.to_string() });
                }
                let id = party_id(tx, &name.did())?;
                let sql = "UPDATE tunnels SET active = ?2 WHERE party = ?1 AND active <> ?2";
                match rows::changed_rows(tx.db, sql, params![id, active])? {
                    0 => Ok(()),
                    _ => changed(tx, id, json!({"tunnel": name, "active": active}), now),
                }
            })
            .await
    }

    async fn paused_tunnels(&self) -> StoreResult<BTreeSet<TunnelId>> {
        self.read(|db| {
            let sql = "SELECT party, name FROM tunnels WHERE active = 0";
            let paused =
                rows::list_undamaged(db, "tunnel", usize::MAX, sql, [], |row| parsed(row, 1))?;
            Ok(paused.into_iter().collect())
        })
        .await
    }

    async fn tunnels(&self) -> StoreResult<Vec<TunnelInfo>> {
        self.read(|db| {
            let sql = "
                SELECT name, provider, strangers, idempotent, finds_sent, reads_history, labels
                  FROM tunnels
                 ORDER BY name
            ";
            rows::list_undamaged(db, "tunnel", usize::MAX, sql, [], address_book::read_tunnel)
        })
        .await
    }

    async fn owner_exists(&self, owner: &Did) -> StoreResult<bool> {
        let owner = owner.clone();
        self.read(move |db| {
            let sql = "
                SELECT level IS NOT NULL OR here = 1 OR has_box = 1 OR is_group = 1
                       OR EXISTS (SELECT 1 FROM tunnels t WHERE t.party = parties.id)
                  FROM parties
                 WHERE did = ?1
            ";
            let known = rows::optional(db, sql, [owner.as_str()], |row| row.get(0))?;
            Ok(known.unwrap_or(false))
        })
        .await
    }
}
