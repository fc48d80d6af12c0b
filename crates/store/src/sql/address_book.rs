//! The part of the address book that one message needs, and its cache in the writer.

use std::collections::{BTreeSet, HashMap};

use monoco_core::contact::{AddressBook, Binding, ContactLevel, Party, StrangerPolicy, TunnelInfo};
use monoco_core::did::{Did, Endpoint, TunnelId};
use monoco_core::object::MsgObject;

use super::contacts;
use super::db::{Db, Row, RowResult, params};
use super::rows::{self, parsed};
use super::writer::Tx;
use crate::StoreResult;

const PARTY: &str = "
    SELECT level, here, has_box, is_group
      FROM parties
     WHERE id = ?1
";

const BINDINGS: &str = "
    SELECT tunnel, kind, address, priority
      FROM bindings
     WHERE contact = ?1
     ORDER BY priority DESC, tunnel, address
";

// If two contacts have a binding to the same endpoint, the older contact counts.
const BOUND_CONTACT: &str = "
    SELECT contact
      FROM bindings
     WHERE tunnel = ?1 AND address = ?2 AND kind = ?3
     ORDER BY contact
     LIMIT 1
";

const TUNNEL: &str = "
    SELECT name, provider, strangers, idempotent, finds_sent, reads_history, labels
      FROM tunnels
     WHERE name = ?1
";

const SUBSCRIBERS: &str = "
    SELECT p.did
      FROM subscribers s
      JOIN parties p ON p.id = s.reader
     WHERE s.group_id = ?1
     ORDER BY s.reader
";

const BLOCKED_BY: &str = "
    SELECT p.did
      FROM blocks b
      JOIN parties p ON p.id = b.target
     WHERE b.sender = ?1
";

/// Address book rows that the writer has read before.
///
/// Every change of `parties`, `tunnels`, `bindings`, `blocks` and `subscribers` goes through
/// the writer thread, which clears the cache in the same transaction; a rollback clears the
/// whole [`super::writer::RowCache`]. Other couriers clear theirs before their next transaction.
#[derive(Default)]
pub(super) struct AddressCache {
    tunnels: HashMap<TunnelId, Option<TunnelInfo>>,
    parties: HashMap<i64, Party>,
    bound_contacts: HashMap<Endpoint, Option<i64>>,
    blocked_by: HashMap<i64, BTreeSet<Did>>,
    /// Number of cached entries and of the rows in their lists.
    size: usize,
}

impl AddressCache {
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// Forgets all. Every change of an address book table calls [`Tx::change_address_book`].
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn tunnel(&mut self, db: &Db, id: &TunnelId) -> StoreResult<Option<TunnelInfo>> {
        if let Some(tunnel) = self.tunnels.get(id) {
            return Ok(tunnel.clone());
        }
        let tunnel = tunnel(db, id)?;
        self.tunnels.insert(id.clone(), tunnel.clone());
        self.size += 1;
        Ok(tunnel)
    }

    fn party(&mut self, db: &Db, id: i64) -> StoreResult<Party> {
        if let Some(party) = self.parties.get(&id) {
            return Ok(party.clone());
        }
        let party = party(db, id)?;
        self.size += 1 + party.bindings.len() + party.subscribers.as_ref().map_or(0, Vec::len);
        self.parties.insert(id, party.clone());
        Ok(party)
    }

    fn bound_contact(&mut self, db: &Db, endpoint: Endpoint) -> StoreResult<Option<i64>> {
        if let Some(contact) = self.bound_contacts.get(&endpoint) {
            return Ok(*contact);
        }
        let row = params![endpoint.tunnel.as_str(), endpoint.account, endpoint.kind.to_string()];
        let contact = rows::optional(db, BOUND_CONTACT, row, |row| row.get(0))?;
        self.bound_contacts.insert(endpoint, contact);
        self.size += 1;
        Ok(contact)
    }

    fn blocked_by(&mut self, db: &Db, sender: i64) -> StoreResult<&BTreeSet<Did>> {
        if !self.blocked_by.contains_key(&sender) {
            let targets: BTreeSet<Did> = dids(db, BLOCKED_BY, sender)?.into_iter().collect();
            self.size += 1 + targets.len();
            self.blocked_by.insert(sender, targets);
        }
        Ok(self.blocked_by.entry(sender).or_default())
    }
}

/// Collects what is known about the author and the targets of a message.
pub(super) fn of_message(
    tx: &mut Tx<'_>,
    msg: &MsgObject,
    tunnel: Option<&TunnelId>,
) -> StoreResult<AddressBook> {
    let others: Vec<&Did> = msg.to.iter().chain([&msg.from]).collect();
    of_parties(tx, msg.author(), &others, tunnel)
}

/// Collects what is known about an author and the other parties, in the writer.
pub(super) fn of_parties(
    tx: &mut Tx<'_>,
    author: &Did,
    others: &[&Did],
    tunnel: Option<&TunnelId>,
) -> StoreResult<AddressBook> {
    // Taken out, so that looking up party ids can use the rest of the cache.
    let mut cache = std::mem::take(&mut tx.cache.address_book);
    let db = tx.db;
    let book =
        collect(db, &mut cache, |did| contacts::find_party_id(tx, did), author, others, tunnel);
    tx.cache.address_book = cache;
    book
}

/// Collects what is known about an author and the other parties, on a reading connection.
pub(super) fn read(
    db: &Db,
    author: &Did,
    others: &[&Did],
    tunnel: Option<&TunnelId>,
) -> StoreResult<AddressBook> {
    let find = |did: &Did| contacts::find(db, did);
    collect(db, &mut AddressCache::default(), find, author, others, tunnel)
}

fn collect(
    db: &Db,
    cache: &mut AddressCache,
    mut party_id: impl FnMut(&Did) -> StoreResult<Option<i64>>,
    author: &Did,
    others: &[&Did],
    tunnel: Option<&TunnelId>,
) -> StoreResult<AddressBook> {
    let mut book = AddressBook::default();
    if let Some(tunnel) = tunnel {
        add_tunnel(db, cache, tunnel, &mut book)?;
    }
    for did in [author].into_iter().chain(others.iter().copied()) {
        if book.parties.contains_key(did) {
            continue;
        }
        if let Some(endpoint) = did.endpoint() {
            add_tunnel(db, cache, &endpoint.tunnel, &mut book)?;
        }
        let Some(id) = party_id(did)? else { continue };
        let party = cache.party(db, id)?;
        for binding in &party.bindings {
            add_tunnel(db, cache, &binding.tunnel, &mut book)?;
        }
        book.parties.insert(did.clone(), party);
    }
    // An endpoint with a binding counts as the contact that it is bound to.
    let contact = match author.endpoint() {
        Some(endpoint) => cache.bound_contact(db, endpoint)?,
        None => None,
    };
    if let Some(contact) = contact {
        let level = cache.party(db, contact)?.level;
        let known = book.parties.entry(author.clone()).or_default();
        known.level = match (known.level, level) {
            (Some(own), Some(bound)) => Some(own.min(bound)),
            (own, bound) => own.or(bound),
        };
        book.blocked_by.extend(cache.blocked_by(db, contact)?.iter().cloned());
    }
    if let Some(author) = party_id(author)? {
        book.blocked_by.extend(cache.blocked_by(db, author)?.iter().cloned());
    }
    Ok(book)
}

fn add_tunnel(
    db: &Db,
    cache: &mut AddressCache,
    id: &TunnelId,
    book: &mut AddressBook,
) -> StoreResult<()> {
    if !book.tunnels.contains_key(id)
        && let Some(tunnel) = cache.tunnel(db, id)?
    {
        book.tunnels.insert(id.clone(), tunnel);
    }
    Ok(())
}

fn party(db: &Db, id: i64) -> StoreResult<Party> {
    let (level, here, has_box, is_group) = rows::one(db, PARTY, [id], |row| {
        Ok((level(row, 0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    let subscribers = if is_group { Some(subscribers(db, id)?) } else { None };
    let bindings = if level.is_some() { bindings(db, id)? } else { Vec::new() };
    Ok(Party { level, here, subscribers, has_box, bindings })
}

pub(super) fn level(row: &Row<'_>, column: usize) -> RowResult<Option<ContactLevel>> {
    let text: Option<String> = row.get(column)?;
    Ok(text.as_deref().and_then(ContactLevel::parse))
}

/// Returns whether a tunnel is stored, in the writer.
pub(super) fn tunnel_exists(tx: &mut Tx<'_>, id: &TunnelId) -> StoreResult<bool> {
    Ok(tx.cache.address_book.tunnel(tx.db, id)?.is_some())
}

/// Returns a tunnel, in the writer.
pub(super) fn tunnel_in_tx(tx: &mut Tx<'_>, id: &TunnelId) -> StoreResult<Option<TunnelInfo>> {
    tx.cache.address_book.tunnel(tx.db, id)
}

pub(super) fn tunnel(db: &Db, id: &TunnelId) -> StoreResult<Option<TunnelInfo>> {
    rows::optional(db, TUNNEL, [id.as_str()], read_tunnel)
}

/// Reads the columns name, provider, strangers, idempotent, finds_sent, reads_history and labels.
pub(super) fn read_tunnel(row: &Row<'_>) -> RowResult<TunnelInfo> {
    let (strangers, labels): (String, String) = (row.get(2)?, row.get(6)?);
    Ok(TunnelInfo {
        id: parsed(row, 0)?,
        provider: row.get(1)?,
        strangers: StrangerPolicy::parse(&strangers).unwrap_or(StrangerPolicy::Hold),
        idempotent: row.get(3)?,
        finds_sent: row.get(4)?,
        reads_history: row.get(5)?,
        labels: serde_json::from_str(&labels).map_err(|_| rows::damaged(6, "invalid labels"))?,
    })
}

pub(super) fn subscribers(db: &Db, group: i64) -> StoreResult<Vec<Did>> {
    dids(db, SUBSCRIBERS, group)
}

fn dids(db: &Db, sql: &str, id: i64) -> StoreResult<Vec<Did>> {
    rows::list(db, sql, [id], |row| parsed(row, 0))
}

pub(super) fn bindings(db: &Db, contact: i64) -> StoreResult<Vec<Binding>> {
    rows::list(db, BINDINGS, [contact], |row| {
        Ok(Binding {
            tunnel: parsed(row, 0)?,
            kind: parsed(row, 1)?,
            address: row.get(2)?,
            priority: row.get(3)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use monoco_core::did::EndpointKind;
    use monoco_core::time::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::sql::SqlStore;
    use crate::sqlite::SqliteStore;
    use crate::{ContactStore, DispatchOutcome, DispatchRequest, RecordStore, StoreError};

    const NOW: Timestamp = Timestamp::from_ms(1_770_000_000_000);

    fn did(text: &str) -> Did {
        text.parse().unwrap()
    }

    /// Dispatches a message of `author` that came through the tunnel "chat". Returns the owners
    /// of the boxes that it was put into.
    async fn recipients(store: &SqlStore, author: &str, to: &str, text: &str) -> String {
        let mut msg =
            json!({"from": author, "to": [to], "kind": "chat", "content": {"content": text}});
        if to == "did:web:team" {
            msg["kind"] = json!("group_msg");
            msg["source"] = json!(author);
            msg["from"] = json!(to);
        }
        let msg = MsgObject::from_json(msg).unwrap();
        let tunnel = Some("chat".parse().unwrap());
        let request = DispatchRequest { msg, tunnel, external_id: None };
        match store.dispatch(vec![request], NOW).await.remove(0).unwrap().outcome {
            DispatchOutcome::Delivered { records, .. } => {
                let owners: Vec<_> = records.iter().map(|record| record.owner.as_str()).collect();
                owners.join(" ")
            }
            other => format!("{other:?}"),
        }
    }

    async fn put_tunnel(store: &SqlStore, strangers: StrangerPolicy) {
        let (id, provider) = ("chat".parse().unwrap(), "stub".to_owned());
        store.put_tunnel(TunnelInfo::new(id, provider, strangers), NOW).await.unwrap();
    }

    /// Each change follows a dispatch that has filled the cache.
    #[tokio::test]
    async fn address_book_changes_apply_to_the_next_message() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let (ann, bob, team) = ("did:web:ann", "did:web:bob", "did:web:team");
        put_tunnel(&store, StrangerPolicy::Accept).await;
        assert_eq!(recipients(&store, ann, bob, "1").await, bob);
        store.set_block(&did(ann), &did(bob), true, NOW).await.unwrap();
        assert_eq!(recipients(&store, ann, bob, "2").await, "Blocked");
        store.set_block(&did(ann), &did(bob), false, NOW).await.unwrap();
        assert_eq!(recipients(&store, ann, bob, "3").await, bob);

        store.put_group(&did(team), None, NOW).await.unwrap();
        assert_eq!(recipients(&store, ann, team, "4").await, team);
        store.set_subscriber(&did(team), &did(bob), true, NOW).await.unwrap();
        assert_eq!(recipients(&store, ann, team, "5").await, format!("{team} {bob}"));
        store.set_subscriber(&did(team), &did(bob), false, NOW).await.unwrap();
        assert_eq!(recipients(&store, ann, team, "6").await, team);

        put_tunnel(&store, StrangerPolicy::Drop).await;
        let endpoint = "did:msgtunnel:ou_1.user.chat";
        assert_eq!(recipients(&store, endpoint, bob, "7").await, "Dropped");
        let (names, bindings) = (Vec::new(), Vec::new());
        let level = ContactLevel::Friend;
        let contact =
            monoco_core::contact::Contact { did: did(ann), names, level, here: false, bindings };
        store.put_contact(contact, NOW).await.unwrap();
        assert_eq!(recipients(&store, endpoint, bob, "8").await, "Dropped");
        let (tunnel, address) = ("chat".parse().unwrap(), "ou_1".to_owned());
        let binding = Binding { tunnel, kind: EndpointKind::User, address, priority: 0 };
        store.bind(&did(ann), binding.clone(), NOW).await.unwrap();
        assert_eq!(recipients(&store, endpoint, bob, "9").await, bob);
        store.unbind(&did(ann), &binding.tunnel, "ou_1", NOW).await.unwrap();
        assert_eq!(recipients(&store, endpoint, bob, "10").await, "Dropped");
        store.remove_contact(&did(ann), NOW).await.unwrap();
        assert_eq!(recipients(&store, ann, bob, "11").await, "Dropped");
    }

    #[tokio::test]
    async fn rolled_back_change_is_not_cached() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path()).unwrap();
        let (ann, bob) = ("did:web:ann", "did:web:bob");
        assert_eq!(recipients(&store, ann, bob, "1").await, bob);
        let rejected = store.writer.run(move |tx| {
            let (sender, target) =
                (contacts::party_id(tx, &did(ann))?, contacts::party_id(tx, &did(bob))?);
            let sql = "INSERT INTO blocks (sender, target) VALUES (?1, ?2)";
            rows::execute(tx.db, sql, [sender, target])?;
            tx.cache.address_book.clear();
            // Fills the cache with the block.
            assert!(of_parties(tx, &did(ann), &[&did(bob)], None)?.is_block(&did(ann), &did(bob)));
            Err::<(), _>(StoreError::DiskFull)
        });
        assert!(matches!(rejected.await, Err(StoreError::DiskFull)));
        assert_eq!(recipients(&store, ann, bob, "2").await, bob);
    }
}
