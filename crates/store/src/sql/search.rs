//! What the search index reads: texts of messages, purges, erasures, and the state of hits.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use monoco_core::claim::{Claim, MailLocation, Workspace};
use monoco_core::delivery::SendState;
use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;

use super::db::{Db, Row, RowResult, ToParam, params};
use super::mails::StoredMail;
use super::{SqlStore, claims, mails, objects, rows};
use crate::{
    MailRow, SearchHit, SearchStore, SearchableMessage, SearchablePage, StoreError, StoreResult,
};

/// Objects or erasures of one page.
const MAX_ROWS_PER_PAGE: usize = 256;

/// Bytes of the bodies of one page, besides those of its last message, which has at most 64 KiB.
const MAX_BYTES_PER_PAGE: usize = 1 << 20;

/// Changes of Mails of one page. They have no bodies.
const MAX_CHANGES_PER_PAGE: usize = 1_000;

/// Messages whose rows are read by one statement.
const MAX_LISTED: usize = 64;

/// Columns of [`read`], in its order, for objects with the alias `o`.
const COLUMNS: &str = "o.seq, o.hash, o.kind, o.body, o.erased_at IS NOT NULL";

const ERASED: &str = "
    SELECT seq, object
      FROM erased_objects
     WHERE seq > ?1
     ORDER BY seq
     LIMIT ?2
";

/// An object that can be a message.
struct StoredMessage {
    seq: i64,
    hash: [u8; 32],
    kind: String,
    body: Option<Vec<u8>>,
    is_erased: bool,
}

/// What the rows around a message say about it.
#[derive(Default)]
struct MessageFacts {
    mail: Option<StoredMail>,
    /// Its Mail or the claim cannot be read.
    is_damaged: bool,
    claim: Option<Claim>,
    /// When the first record, delivery and letter was created.
    record_at: Option<i64>,
    delivery_at: Option<i64>,
    letter_at: Option<i64>,
    is_in_outbox: bool,
    tunnels: BTreeSet<String>,
    parties: BTreeSet<String>,
    /// States by the numbers of the deliveries.
    deliveries: BTreeMap<i64, SendState>,
}

/// Selects objects: those of a page, or a few.
enum ObjectSelection {
    /// Above the first number, up to the second.
    Range([i64; 2]),
    /// Always [`MAX_LISTED`] numbers, so that the statement has one text.
    List(Vec<i64>),
}

impl ObjectSelection {
    /// Selects up to [`MAX_LISTED`] objects; `None` when there are none.
    fn list(seqs: &[i64]) -> Option<Self> {
        let mut list = seqs.to_vec();
        list.resize(MAX_LISTED, *seqs.last()?);
        Some(Self::List(list))
    }

    /// The condition for a column with the number of an object.
    fn condition(&self, column: &str) -> String {
        match self {
            Self::Range(_) => format!("{column} > ?1 AND {column} <= ?2"),
            Self::List(list) => {
                let places: Vec<_> = (1..=list.len()).map(|at| format!("?{at}")).collect();
                format!("{column} IN ({})", places.join(", "))
            }
        }
    }

    fn params(&self) -> Vec<&dyn ToParam> {
        let numbers = match self {
            Self::Range(ends) => ends.as_slice(),
            Self::List(list) => list,
        };
        numbers.iter().map(|number| number as &dyn ToParam).collect()
    }
}

fn read(row: &Row<'_>) -> RowResult<StoredMessage> {
    Ok(StoredMessage {
        seq: row.get(0)?,
        hash: row.get(1)?,
        kind: row.get(2)?,
        body: row.get(3)?,
        is_erased: row.get(4)?,
    })
}

/// Reads the objects of a selection by their numbers. Damaged ones are left out.
fn read_objects(db: &Db, selection: &ObjectSelection) -> StoreResult<BTreeMap<i64, StoredMessage>> {
    let sql = format!("SELECT {COLUMNS} FROM objects o WHERE {}", selection.condition("o.seq"));
    let params = selection.params();
    let found =
        rows::list_undamaged(db, "object", usize::MAX, &sql, params.as_slice(), read)?.into_iter();
    Ok(found.map(|message| (message.seq, message)).collect())
}

/// Reads the rows around the objects of a selection.
fn read_facts(db: &Db, selection: &ObjectSelection) -> StoreResult<BTreeMap<i64, MessageFacts>> {
    let mut facts: BTreeMap<i64, MessageFacts> = BTreeMap::new();
    let params = selection.params();
    let condition = selection.condition("m.object");
    let sql = format!("SELECT {} FROM mails m WHERE {condition}", mails::COLUMNS);
    rows::scan(db, usize::MAX, &sql, params.as_slice(), |row| {
        let object = row.get(4)?;
        let mail = mails::read(row).map_err(StoreError::from);
        let facts = facts.entry(object).or_default();
        match db.unless_damaged("Mail of object", object, mail)? {
            Some(mail) => facts.mail = Some(mail),
            None => facts.is_damaged = true,
        }
        Ok(true)
    })?;
    let sql = format!(
        "SELECT r.object, r.created_at, r.box, p.did, t.name
           FROM records r
           LEFT JOIN parties p ON p.id = r.owner
           LEFT JOIN tunnels t ON t.party = r.tunnel
          WHERE {}",
        selection.condition("r.object")
    );
    rows::scan(db, usize::MAX, &sql, params.as_slice(), |row| {
        let facts = facts.entry(row.get(0)?).or_default();
        facts.record_at = earliest(facts.record_at, row.get(1)?);
        facts.is_in_outbox |= row.get_str(2)? == "OUTBOX";
        facts.parties.extend(row.get::<Option<String>>(3)?);
        facts.tunnels.extend(row.get::<Option<String>>(4)?);
        Ok(true)
    })?;
    let sql = format!(
        "SELECT d.object, d.created_at, d.state, a.did, p.did, t.name, d.seq
           FROM deliveries d
           LEFT JOIN parties a ON a.id = d.author
           LEFT JOIN parties p ON p.id = d.tunnel
           LEFT JOIN tunnels t ON t.party = d.tunnel
          WHERE {}",
        selection.condition("d.object")
    );
    rows::scan(db, usize::MAX, &sql, params.as_slice(), |row| {
        let facts = facts.entry(row.get(0)?).or_default();
        facts.delivery_at = earliest(facts.delivery_at, row.get(1)?);
        let state = SendState::parse(row.get_str(2)?);
        if let Some(state) = state {
            facts.deliveries.insert(row.get(6)?, state);
        }
        facts.parties.extend(row.get::<Option<String>>(3)?);
        facts.parties.extend(row.get::<Option<String>>(4)?);
        facts.tunnels.extend(row.get::<Option<String>>(5)?);
        Ok(true)
    })?;
    Ok(facts)
}

/// Adds the times of letters, which messages without record and delivery have.
fn read_letter_times(
    db: &Db,
    selection: &ObjectSelection,
    facts: &mut BTreeMap<i64, MessageFacts>,
) -> StoreResult<()> {
    let sql = format!(
        "SELECT l.object, min(l.created_at) FROM letters l WHERE {} GROUP BY l.object",
        selection.condition("l.object")
    );
    rows::scan(db, usize::MAX, &sql, selection.params().as_slice(), |row| {
        facts.entry(row.get(0)?).or_default().letter_at = row.get(1)?;
        Ok(true)
    })
}

/// Adds the claims of a workspace on Mails.
fn read_claims(
    db: &Db,
    workspace: &Workspace,
    facts: &mut BTreeMap<i64, MessageFacts>,
) -> StoreResult<()> {
    let mails = facts.iter().filter_map(|(object, it)| Some((it.mail.as_ref()?.seq, *object)));
    let objects: BTreeMap<i64, i64> = mails.collect();
    let seqs: Vec<i64> = objects.keys().copied().collect();
    for seqs in seqs.chunks(MAX_LISTED) {
        let Some(selection) = ObjectSelection::list(seqs) else { continue };
        let sql = format!(
            "SELECT {}, c.mail FROM claims c WHERE {} AND c.workspace = ?{}",
            claims::COLUMNS,
            selection.condition("c.mail"),
            MAX_LISTED + 1
        );
        let mut params = selection.params();
        let name = workspace.as_str();
        params.push(&name);
        rows::scan(db, usize::MAX, &sql, params.as_slice(), |row| {
            let Some(object) = objects.get(&row.get(claims::COLUMN_COUNT)?) else {
                return Ok(true);
            };
            let facts = facts.entry(*object).or_default();
            let Some(mail) = &facts.mail else { return Ok(true) };
            let claim = claims::read(row, &mail.entry.id).map_err(StoreError::from);
            match db.unless_damaged("claim of object", object, claim)? {
                Some(claim) => facts.claim = Some(claim),
                None => facts.is_damaged = true,
            }
            Ok(true)
        })?;
    }
    Ok(())
}

fn earliest(known: Option<i64>, at: i64) -> Option<i64> {
    Some(known.map_or(at, |known| known.min(at)))
}

impl StoredMessage {
    /// Number and beginning of the hash.
    fn mark(&self) -> (i64, i64) {
        (self.seq, objects::hash_prefix(&self.hash))
    }

    /// Splits off id and text; `None` when the object is erased, not a message or not UTF-8.
    fn text(&mut self) -> StoreResult<Option<(ObjId, Option<String>)>> {
        if self.is_erased || self.kind != "cymsg" {
            return Ok(None);
        }
        let id = objects::object_id(self.seq, self.hash, &self.kind)?;
        match self.body.take().map(String::from_utf8) {
            None => Ok(Some((id, None))),
            Some(Ok(text)) => Ok(Some((id, Some(text)))),
            Some(Err(_)) => Ok(None),
        }
    }

    /// Returns the message for the index; `None` when it must not be found.
    fn searchable(mut self, facts: MessageFacts) -> StoreResult<Option<SearchableMessage>> {
        let Some((id, body)) = self.text()? else { return Ok(None) };
        if facts.is_damaged {
            return Ok(None);
        }
        let (at, tunnels) = match &facts.mail {
            Some(mail) if mail.location == MailLocation::Removed => return Ok(None),
            Some(mail) => (Some(mail.entry.received_at), Some(vec![mail.entry.tunnel.to_string()])),
            None => {
                let at = facts.placed_at();
                let tunnels = at.map(|_| facts.tunnels.into_iter().collect());
                (at.or(facts.letter_at.map(Timestamp::from_ms)), tunnels)
            }
        };
        Ok(Some(SearchableMessage { seq: self.seq, id, at, tunnels, body }))
    }

    /// Returns the message as a hit; `None` when it is not visible.
    fn hit(mut self, facts: MessageFacts) -> StoreResult<Option<SearchHit>> {
        let Some((id, body)) = self.text()? else { return Ok(None) };
        let placed_at = facts.placed_at();
        let MessageFacts { mail, claim, is_in_outbox, tunnels, parties, deliveries, .. } = facts;
        let mail = match mail {
            _ if facts.is_damaged => return Ok(None),
            Some(mail) if matches!(mail.location, MailLocation::Held | MailLocation::Removed) => {
                return Ok(None);
            }
            Some(mail) => Some(MailRow { entry: mail.entry, location: mail.location, claim }),
            None if placed_at.is_none() => return Ok(None),
            None => None,
        };
        let (at, tunnels, is_sent) = match &mail {
            Some(row) => (Some(row.entry.received_at), vec![row.entry.tunnel.to_string()], false),
            None => {
                let is_sent = is_in_outbox || facts.delivery_at.is_some();
                (placed_at, tunnels.into_iter().collect(), is_sent)
            }
        };
        let parties = parties.into_iter().collect();
        let deliveries = deliveries.into_values().collect();
        Ok(Some(SearchHit {
            seq: self.seq,
            id,
            at,
            mail,
            is_sent,
            tunnels,
            deliveries,
            parties,
            body,
        }))
    }
}

impl MessageFacts {
    /// When the message got its first record, or else its first delivery.
    fn placed_at(&self) -> Option<Timestamp> {
        self.record_at.or(self.delivery_at).map(Timestamp::from_ms)
    }
}

#[async_trait]
impl SearchStore for SqlStore {
    async fn searchable_messages(&self, after: i64) -> StoreResult<SearchablePage> {
        self.read(move |db| {
            let sql =
                format!("SELECT {COLUMNS} FROM objects o WHERE o.seq > ?1 ORDER BY o.seq LIMIT ?2");
            let page = params![after, rows::limit(MAX_ROWS_PER_PAGE)];
            let (mut messages, mut bytes) = (Vec::new(), 0);
            rows::scan(db, MAX_ROWS_PER_PAGE, &sql, page, |row| {
                let message = read(row)?;
                bytes += message.body.as_ref().map_or(0, Vec::len);
                messages.push(message);
                Ok(bytes < MAX_BYTES_PER_PAGE)
            })?;
            let Some(last) = messages.last().map(StoredMessage::mark) else {
                return Ok(SearchablePage::default());
            };
            let selection = ObjectSelection::Range([after, last.0]);
            let mut facts = read_facts(db, &selection)?;
            read_letter_times(db, &selection, &mut facts)?;
            let mut found = SearchablePage { messages: Vec::new(), last: Some(last) };
            for message in messages {
                let facts = facts.remove(&message.seq).unwrap_or_default();
                found.messages.extend(message.searchable(facts)?);
            }
            Ok(found)
        })
        .await
    }

    async fn searchable_message(&self, seq: i64) -> StoreResult<Option<SearchableMessage>> {
        self.read(move |db| {
            let selection = ObjectSelection::Range([seq.saturating_sub(1), seq]);
            let mut facts = read_facts(db, &selection)?;
            read_letter_times(db, &selection, &mut facts)?;
            match read_objects(db, &selection)?.remove(&seq) {
                Some(message) => message.searchable(facts.remove(&seq).unwrap_or_default()),
                None => Ok(None),
            }
        })
        .await
    }

    async fn object_mark(&self, seq: Option<i64>) -> StoreResult<Option<(i64, i64)>> {
        self.read(move |db| {
            let newest = "SELECT coalesce(max(seq), 0) FROM objects";
            let seq = match seq {
                Some(seq) => seq,
                None => rows::one(db, newest, [], |row| row.get(0))?,
            };
            let sql = "SELECT seq, hash FROM objects WHERE seq = ?1";
            rows::optional(db, sql, [seq], |row| {
                let hash: [u8; 32] = row.get(1)?;
                Ok((row.get(0)?, objects::hash_prefix(&hash)))
            })
        })
        .await
    }

    async fn purged_messages(&self, after: i64) -> StoreResult<(Vec<i64>, i64)> {
        self.read(move |db| {
            let sql = "
                SELECT change, object, location FROM mails
                 WHERE change > ?1 ORDER BY change LIMIT ?2
            ";
            let page = params![after, rows::limit(MAX_CHANGES_PER_PAGE)];
            let changes: Vec<(i64, i64, String)> =
                rows::list(db, sql, page, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            let last = changes.last().map_or(after, |(change, ..)| *change);
            let is_purged = |location: &str| location == MailLocation::Removed.as_str();
            let purged = changes.into_iter().filter(|(.., location)| is_purged(location));
            Ok((purged.map(|(_, object, _)| object).collect(), last))
        })
        .await
    }

    async fn erased_messages(&self, after: i64) -> StoreResult<Vec<(i64, i64)>> {
        self.read(move |db| {
            let page = params![after, rows::limit(MAX_ROWS_PER_PAGE)];
            rows::list(db, ERASED, page, |row| Ok((row.get(0)?, row.get(1)?)))
        })
        .await
    }

    async fn search_hits(
        &self,
        seqs: Vec<i64>,
        workspace: &Workspace,
    ) -> StoreResult<Vec<SearchHit>> {
        let workspace = workspace.clone();
        self.read(move |db| {
            let mut hits = Vec::with_capacity(seqs.len());
            for seqs in seqs.chunks(MAX_LISTED) {
                let Some(selection) = ObjectSelection::list(seqs) else { continue };
                let mut messages = read_objects(db, &selection)?;
                let mut facts = read_facts(db, &selection)?;
                read_claims(db, &workspace, &mut facts)?;
                for seq in seqs {
                    let Some(message) = messages.remove(seq) else { continue };
                    let hit = message.hit(facts.remove(seq).unwrap_or_default());
                    hits.extend(db.unless_damaged("object", seq, hit)?.flatten());
                }
            }
            Ok::<_, StoreError>(hits)
        })
        .await
    }
}
