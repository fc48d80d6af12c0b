//! The embedded backend: SQLite in WAL mode, with every commit synced.
//!
//! ```text
//!   callers ──▶ writer ──▶ one commit for all who wait       (writer.rs)
//!   callers ──▶ a few read-only connections, beside it       (here)
//!               checkpointer, beside it                      (checkpoint.rs)
//! ```
//!
//! One file per family of tables: objects, records, deliveries, people, sessions,
//! journal, heard, mails, claims, drafts, letters; `center` strings them together for what
//! comes in and goes out, and `bulk` keeps the indexes whose keys come in no order.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use monoco_core::contact::{Binding, Contact, TunnelInfo};
use monoco_core::delivery::{Delivery, DeliveryOutcome, SendState};
use monoco_core::did::{Did, TunnelId};
use monoco_core::event::Event;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::receipt::{Receipt, ReceiptStatus};
use monoco_core::record::{BoxKind, MsgRecord, ReadState, RecordId, RecordKind};
use monoco_core::retry::{Failure, Jitter, RetryPolicy};
use monoco_core::time::Timestamp;
use monoco_fs::WriteError;
use rusqlite::Connection;
use tokio::sync::{Semaphore, broadcast, watch};

use crate::blobs::{self, BlobStore};
use crate::{
    BoxHint, BoxStore, BoxSummary, ContactStore, DispatchRequest, DispatchResult, EventStore,
    Group, JitteredRetry, LeasedEntry, LetterStore, MessageTrace, Page, PageRequest, SendRequest,
    SendResult, SessionEntry, SessionSummary, StoreCounts, StoreError, StoreHealth, SweepCounts,
};
use bulk_index::{BulkIndexes, RecentEntries};
use checkpoint::Checkpointer;
use open::fault;
use records::LeaseEndCause;
use sessions::{SessionEntryHead, SessionHead};
use writer::{Writer, WriterChannels};

mod boxes;
mod bulk_index;
mod center;
mod checkpoint;
mod claims;
mod contacts;
mod counts;
mod deliveries;
mod drafts;
mod events;
mod inbound;
mod letters;
mod mails;
mod objects;
mod open;
mod records;
mod rows;
mod sessions;
#[cfg(test)]
mod tests;
mod writer;

/// Connections that read at the same time.
const READERS: usize = 4;

/// Hints a listener may fall behind before it has to look for itself.
const HINTS: usize = 1024;

/// Rows of each kind that one commit of a release moves, so that nobody waits long
/// behind it.
const RELEASED: usize = 1_000;

/// The embedded store.
#[derive(Debug)]
pub struct SqliteStore {
    // Dropped in this order: the checkpointer outlives the writer that wakes it,
    // and whoever closes last tidies the log away, which a reader can't.
    readers: Arc<Readers>,
    writer: Writer,
    _checkpointer: Checkpointer,
    recent: BulkIndexCaches,
    blobs: Arc<BlobStore>,
    board: Arc<WriterChannels>,
}

/// The newest entries of the indexes that are written in bulk.
#[derive(Debug)]
struct BulkIndexCaches {
    hashes: Arc<RecentEntries>,
    heard: Arc<RecentEntries>,
    timeline: Arc<RecentEntries>,
}

#[derive(Debug)]
struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    places: Semaphore,
}

impl SqliteStore {
    /// Opens the store in `dir`, making it when there is none.
    ///
    /// # Errors
    ///
    /// When the directory or the database can't be opened, or a newer program
    /// wrote it.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, bulk_index::FULL)
    }

    /// Opens the store, with indexes that are merged when `full` entries wait.
    fn open_with(dir: &Path, full: usize) -> Result<Self, StoreError> {
        blobs::create_dir(dir).map_err(unkept)?;
        let path = dir.join("monoco.db");
        let mut db = open::writer(&path)?;
        let board = Arc::new(WriterChannels {
            hints: broadcast::channel(HINTS).0,
            event: watch::channel(events::newest(&db)?).0,
            filing: watch::channel(mails::newest(&db)?).0,
            letter: watch::channel(0).0,
            health: Mutex::new(StoreHealth::Ok),
        });
        let checkpointer =
            Checkpointer::start(open::writer(&path)?, Arc::clone(&board)).map_err(disk)?;
        let log = checkpointer.watch(&mut db)?;
        let indexes = BulkIndexes::open(&db, full)?;
        Ok(Self {
            recent: BulkIndexCaches {
                hashes: Arc::clone(indexes.hashes.recent()),
                heard: Arc::clone(indexes.heard.recent()),
                timeline: Arc::clone(indexes.timeline.recent()),
            },
            writer: Writer::start(db, indexes, log, Arc::clone(&board)).map_err(disk)?,
            _checkpointer: checkpointer,
            readers: Arc::new(Readers {
                path,
                idle: Mutex::new(Vec::new()),
                places: Semaphore::new(READERS),
            }),
            blobs: Arc::new(BlobStore::open(dir.join("blobs")).map_err(unkept)?),
            board,
        })
    }

    /// Runs `work` on a connection that only reads.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _place = self.readers.places.acquire().await.map_err(|_| closed())?;
        let readers = Arc::clone(&self.readers);
        tokio::task::spawn_blocking(move || readers.with(work)).await.map_err(|_| closed())?
    }

    /// Runs `work`, which looks objects up by their hash, on a connection that only
    /// reads.
    async fn look_up<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &RecentEntries) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let hashes = Arc::clone(&self.recent.hashes);
        self.read(move |db| work(db, &hashes)).await
    }

    /// Keeps a body that is too large for a row. Returns once it is on disk, so
    /// that what refers to it may be written.
    async fn keep_large(&self, id: ObjId, body: &[u8]) -> Result<(), StoreError> {
        if let StoreHealth::Broken(why) = self.board.health() {
            return Err(StoreError::Broken(why));
        }
        let (blobs, body) = (Arc::clone(&self.blobs), body.to_vec());
        let kept = tokio::task::spawn_blocking(move || blobs.put(&id, &body)).await;
        let kept = match kept {
            Ok(result) => result.map_err(unkept),
            Err(_) => Err(closed()),
        };
        if let Err(error) = &kept {
            self.board.note(Err(error));
        }
        kept
    }

    /// An object's text, checked against its name.
    async fn text(&self, id: ObjId, body: Option<Vec<u8>>) -> Result<Vec<u8>, StoreError> {
        let body = match body {
            Some(body) => body,
            None => self.blob(id).await?,
        };
        if ObjId::of(id.kind(), &body) == id {
            return Ok(body);
        }
        Err(StoreError::Damaged { what: "object", detail: format!("{id} has another hash") })
    }

    async fn blob(&self, id: ObjId) -> Result<Vec<u8>, StoreError> {
        let blobs = Arc::clone(&self.blobs);
        let read = tokio::task::spawn_blocking(move || blobs.get(&id)).await;
        match read {
            Ok(Ok(Some(bytes))) => Ok(bytes),
            Ok(Ok(None)) => Err(StoreError::Missing { what: "object", key: id.to_string() }),
            Ok(Err(error)) => Err(disk(error)),
            Err(_) => Err(closed()),
        }
    }

    /// The text of an object that there is a row of.
    async fn utf8(&self, id: ObjId, body: Option<Vec<u8>>) -> Result<String, StoreError> {
        let bytes = match self.text(id, body).await {
            Err(StoreError::Missing { .. }) => {
                let detail = format!("the file of {id} is gone");
                return Err(StoreError::Damaged { what: "object", detail });
            }
            text => text?,
        };
        String::from_utf8(bytes).map_err(|_| StoreError::Damaged {
            what: "object",
            detail: format!("{id} is not text"),
        })
    }

    /// The text of an object, or `None` when it is damaged: what lies around it can
    /// still be shown.
    async fn body_of(&self, object: i64) -> Result<Option<String>, StoreError> {
        let (id, body) = self.read(move |db| objects::body(db, object)).await?;
        match self.utf8(id, body).await {
            Ok(text) => Ok(Some(text)),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::error!(%error, "damaged");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn line(
        &self,
        (record, object, delivery): SessionEntryHead,
    ) -> Result<SessionEntry, StoreError> {
        Ok(SessionEntry { record, body: self.body_of(object).await?, delivery })
    }
}

impl Readers {
    fn with<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self.idle.lock().ok().and_then(|mut idle| idle.pop());
        let db = match idle {
            Some(db) => db,
            None => open::reader(&self.path)?,
        };
        // One snapshot for all of it: between two statements the writer may move a
        // row from where we have not looked yet to where we have.
        let tx = db.unchecked_transaction().map_err(fault)?;
        let result = work(&tx);
        // Nothing was written that could be lost with it.
        drop(tx);
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(db);
        }
        result
    }
}

#[async_trait]
impl BoxStore for SqliteStore {
    async fn dispatch(
        &self,
        batch: Vec<DispatchRequest>,
        now: Timestamp,
    ) -> Vec<Result<DispatchResult, StoreError>> {
        let count = batch.len();
        for dispatch in &batch {
            let (id, body) = (dispatch.msg.id(), dispatch.msg.canonical());
            if body.len() > objects::INLINE
                && let Err(error) = self.keep_large(id, body.as_bytes()).await
            {
                return vec![Err(error); count];
            }
        }
        self.writer
            .run_each(batch, move |tx, batch| {
                tx.each(batch, |tx, dispatch| center::dispatch(tx, dispatch, now))
            })
            .await
    }

    async fn send(&self, post: SendRequest, now: Timestamp) -> Result<SendResult, StoreError> {
        let body = post.msg.canonical();
        if body.len() > objects::INLINE {
            self.keep_large(post.msg.id(), body.as_bytes()).await?;
        }
        self.writer.run(move |tx| center::post(tx, &post, now)).await
    }

    async fn object(&self, id: ObjId) -> Result<Vec<u8>, StoreError> {
        if id.kind() == ObjKind::Bytes {
            return self.text(id, None).await;
        }
        let (stored, body) = self
            .look_up(move |db, recent| objects::body(db, objects::row_of(db, recent, &id)?))
            .await?;
        if stored != id {
            return Err(StoreError::Missing { what: "object", key: id.to_string() });
        }
        self.text(id, body).await
    }

    async fn put_blob(&self, bytes: Vec<u8>) -> Result<ObjId, StoreError> {
        let id = ObjId::of(ObjKind::Bytes, &bytes);
        self.keep_large(id, &bytes).await?;
        Ok(id)
    }

    async fn lease_record(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<Option<LeasedEntry<MsgRecord>>, StoreError> {
        loop {
            let (owner, taker) = (owner.clone(), holder.clone());
            let taken = self
                .writer
                .run(move |tx| {
                    let taken = records::take(tx, &owner, box_kind, &taker, term, now)?;
                    with_body(tx, taken)
                })
                .await?;
            let Some((entry, (id, body))) = taken else { return Ok(None) };
            match self.utf8(id, body).await {
                Ok(body) => return Ok(Some(LeasedEntry { entry, body })),
                Err(StoreError::Damaged { detail, .. }) => {
                    let guard =
                        LeaseProof { epoch: Some(entry.reading.epoch), holder: holder.clone() };
                    let put_aside = self
                        .writer
                        .run(move |tx| records::put_aside(tx, &entry.id, &guard, &detail, now));
                    put_aside.await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn lease_delivery(
        &self,
        tunnel: &Did,
        holder: Holder,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<Option<LeasedEntry<Delivery>>, StoreError> {
        loop {
            let (tunnel, taker) = (tunnel.clone(), holder.clone());
            let taken = self
                .writer
                .run(move |tx| {
                    let taken = deliveries::take(tx, &tunnel, &taker, term, now)?;
                    with_body(tx, taken)
                })
                .await?;
            let Some((entry, (id, body))) = taken else { return Ok(None) };
            match self.utf8(id, body).await {
                Ok(body) => return Ok(Some(LeasedEntry { entry, body })),
                Err(StoreError::Damaged { detail, .. }) => {
                    let guard =
                        LeaseProof { epoch: Some(entry.sending.epoch), holder: holder.clone() };
                    let again =
                        JitteredRetry { retry: RetryPolicy::DELIVERY, jitter: Jitter::NONE };
                    let outcome = DeliveryOutcome::Failed(Failure::Permanent { detail });
                    self.report_delivery(entry.id, outcome, guard, again, now).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn next_due(&self, tunnel: &Did) -> Result<Option<Timestamp>, StoreError> {
        let tunnel = tunnel.clone();
        self.read(move |db| deliveries::next_due(db, &tunnel)).await
    }

    async fn record(&self, id: RecordId) -> Result<MsgRecord, StoreError> {
        self.look_up(move |db, recent| records::by_id(db, recent, &id))
            .await
            .map(|(record, _)| record)
    }

    async fn delivery(&self, id: RecordId) -> Result<Delivery, StoreError> {
        self.look_up(move |db, recent| deliveries::by_id(db, recent, &id))
            .await
            .map(|(delivery, _)| delivery)
    }

    async fn mark_record(
        &self,
        id: RecordId,
        to: ReadState,
        guard: LeaseProof,
        revision: Option<i64>,
        term: LeaseDuration,
        now: Timestamp,
    ) -> Result<MsgRecord, StoreError> {
        self.writer.run(move |tx| records::mark(tx, &id, to, &guard, revision, term, now)).await
    }

    async fn mark_delivery(
        &self,
        id: RecordId,
        to: SendState,
        guard: LeaseProof,
        revision: Option<i64>,
        now: Timestamp,
    ) -> Result<Delivery, StoreError> {
        self.writer.run(move |tx| deliveries::mark(tx, &id, to, &guard, revision, now)).await
    }

    async fn report_delivery(
        &self,
        id: RecordId,
        outcome: DeliveryOutcome,
        guard: LeaseProof,
        again: JitteredRetry,
        now: Timestamp,
    ) -> Result<Delivery, StoreError> {
        self.writer.run(move |tx| deliveries::settle(tx, &id, &outcome, &guard, again, now)).await
    }

    async fn records(
        &self,
        owner: &Did,
        box_kind: BoxKind,
        states: &[ReadState],
        window: PageRequest,
    ) -> Result<Page<MsgRecord>, StoreError> {
        let owner = owner.clone();
        let states = if states.is_empty() { ReadState::ALL.to_vec() } else { states.to_vec() };
        self.read(move |db| records::list(db, &owner, box_kind, &states, &window)).await
    }

    async fn deliveries(
        &self,
        tunnel: &Did,
        states: &[SendState],
        window: PageRequest,
    ) -> Result<Page<Delivery>, StoreError> {
        let tunnel = tunnel.clone();
        let states = if states.is_empty() { SendState::ALL.to_vec() } else { states.to_vec() };
        self.read(move |db| deliveries::list(db, &tunnel, &states, &window)).await
    }

    async fn boxes(&self, window: PageRequest) -> Result<Page<BoxSummary>, StoreError> {
        self.read(move |db| boxes::list(db, &window)).await
    }

    async fn expire_leases(
        &self,
        again: JitteredRetry,
        limit: usize,
        now: Timestamp,
    ) -> Result<SweepCounts, StoreError> {
        // Looking costs nothing; a commit does.
        if !self.read(move |db| any_ended(db, now)).await? {
            return Ok(SweepCounts::default());
        }
        self.writer
            .run(move |tx| {
                Ok(SweepCounts {
                    records: records::sweep(tx, LeaseEndCause::ByTime, limit, now)?,
                    deliveries: deliveries::sweep(tx, LeaseEndCause::ByTime, again, limit, now)?,
                })
            })
            .await
    }

    async fn release_leases(
        &self,
        prefix: &str,
        again: JitteredRetry,
        now: Timestamp,
    ) -> Result<SweepCounts, StoreError> {
        let mut all = SweepCounts::default();
        loop {
            let prefix = prefix.to_owned();
            let some = self
                .writer
                .run(move |tx| {
                    let held = LeaseEndCause::ByHolder(&prefix);
                    Ok(SweepCounts {
                        records: records::sweep(tx, held, RELEASED, now)?,
                        deliveries: deliveries::sweep(tx, held, again, RELEASED, now)?,
                    })
                })
                .await?;
            all.records += some.records;
            all.deliveries += some.deliveries;
            if some.records < RELEASED && some.deliveries < RELEASED {
                return Ok(all);
            }
        }
    }

    fn hints(&self) -> broadcast::Receiver<BoxHint> {
        self.board.hints.subscribe()
    }
}

#[async_trait]
impl ContactStore for SqliteStore {
    async fn put_contact(&self, contact: Contact, now: Timestamp) -> Result<Contact, StoreError> {
        self.writer.run(move |tx| contacts::put_contact(tx, &contact, now)).await
    }

    async fn contact(&self, did: &Did) -> Result<Contact, StoreError> {
        let did = did.clone();
        self.read(move |db| contacts::contact(db, &did)).await
    }

    async fn contacts(&self, window: PageRequest) -> Result<Page<Contact>, StoreError> {
        self.read(move |db| contacts::contacts(db, &window)).await
    }

    async fn remove_contact(&self, did: &Did, now: Timestamp) -> Result<(), StoreError> {
        let did = did.clone();
        self.writer.run(move |tx| contacts::remove_contact(tx, &did, now)).await
    }

    async fn bind(
        &self,
        contact: &Did,
        binding: Binding,
        now: Timestamp,
    ) -> Result<Contact, StoreError> {
        let contact = contact.clone();
        self.writer.run(move |tx| contacts::bind(tx, &contact, &binding, now)).await
    }

    async fn unbind(
        &self,
        contact: &Did,
        tunnel: &TunnelId,
        address: &str,
        now: Timestamp,
    ) -> Result<Contact, StoreError> {
        let (contact, tunnel, address) = (contact.clone(), tunnel.clone(), address.to_owned());
        self.writer.run(move |tx| contacts::unbind(tx, &contact, &tunnel, &address, now)).await
    }

    async fn set_block(
        &self,
        sender: &Did,
        target: &Did,
        blocked: bool,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let (sender, target) = (sender.clone(), target.clone());
        self.writer.run(move |tx| contacts::set_block(tx, &sender, &target, blocked, now)).await
    }

    async fn put_group(
        &self,
        group: &Did,
        name: Option<String>,
        now: Timestamp,
    ) -> Result<Group, StoreError> {
        let group = group.clone();
        self.writer.run(move |tx| contacts::put_group(tx, &group, name.as_deref(), now)).await
    }

    async fn group(&self, group: &Did) -> Result<Group, StoreError> {
        let group = group.clone();
        self.read(move |db| contacts::group(db, &group)).await
    }

    async fn groups(&self, window: PageRequest) -> Result<Page<Group>, StoreError> {
        self.read(move |db| contacts::groups(db, &window)).await
    }

    async fn set_subscriber(
        &self,
        group: &Did,
        reader: &Did,
        subscribed: bool,
        now: Timestamp,
    ) -> Result<Group, StoreError> {
        let (group, reader) = (group.clone(), reader.clone());
        self.writer
            .run(move |tx| contacts::set_subscriber(tx, &group, &reader, subscribed, now))
            .await
    }

    async fn put_tunnel(
        &self,
        tunnel: TunnelInfo,
        now: Timestamp,
    ) -> Result<TunnelInfo, StoreError> {
        self.writer.run(move |tx| contacts::put_tunnel(tx, &tunnel, now)).await
    }

    async fn tunnels(&self) -> Result<Vec<TunnelInfo>, StoreError> {
        self.read(contacts::tunnels).await
    }

    async fn owner_exists(&self, owner: &Did) -> Result<bool, StoreError> {
        let owner = owner.clone();
        self.read(move |db| contacts::is_known(db, &owner)).await
    }
}

#[async_trait]
impl EventStore for SqliteStore {
    async fn set_receipt(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: &Did,
        status: ReceiptStatus,
        now: Timestamp,
    ) -> Result<Receipt, StoreError> {
        let (group, reader) = (group.clone(), reader.clone());
        self.writer
            .run(move |tx| sessions::set_receipt(tx, &group, msg_id, &reader, status, now))
            .await
    }

    async fn receipts(
        &self,
        group: &Did,
        msg_id: ObjId,
        reader: Option<&Did>,
    ) -> Result<Vec<Receipt>, StoreError> {
        let (group, reader) = (group.clone(), reader.cloned());
        self.look_up(move |db, recent| {
            sessions::receipts(db, recent, &group, msg_id, reader.as_ref())
        })
        .await
    }

    async fn sessions(
        &self,
        owner: &Did,
        window: PageRequest,
    ) -> Result<Page<SessionSummary>, StoreError> {
        let owner = owner.clone();
        let page = self.read(move |db| sessions::list(db, &owner, &window)).await?;
        let mut entries = Vec::with_capacity(page.entries.len());
        for SessionHead { peer, name, unread, last } in page.entries {
            entries.push(SessionSummary { peer, name, unread, last: self.line(last).await? });
        }
        Ok(Page { entries, next: page.next })
    }

    async fn session(
        &self,
        owner: &Did,
        peer: &Did,
        window: PageRequest,
    ) -> Result<Page<SessionEntry>, StoreError> {
        let (owner, peer) = (owner.clone(), peer.clone());
        let whom = peer.clone();
        let session = self.read(move |db| sessions::session(db, &owner, &whom)).await?;
        // In a snapshot of its own, for the newest lines have to be looked at first.
        let timeline = Arc::clone(&self.recent.timeline);
        let page =
            self.read(move |db| sessions::lines(db, &timeline, session, &peer, &window)).await?;
        let mut entries = Vec::with_capacity(page.entries.len());
        for stub in page.entries {
            entries.push(self.line(stub).await?);
        }
        Ok(Page { entries, next: page.next })
    }

    async fn events(&self, after: i64, limit: usize) -> Result<Vec<Event>, StoreError> {
        self.read(move |db| events::events(db, after, limit)).await
    }

    async fn trace(&self, msg_id: ObjId) -> Result<MessageTrace, StoreError> {
        let (trace, object) =
            self.look_up(move |db, recent| events::trace(db, recent, msg_id)).await?;
        let letters = self.letters_of(msg_id).await?;
        Ok(MessageTrace { body: self.body_of(object).await?, letters, ..trace })
    }

    async fn object_of_record(&self, id: RecordId) -> Result<ObjId, StoreError> {
        match id.kind() {
            RecordKind::Record => self.record(id).await.map(|record| record.msg_id),
            RecordKind::Delivery => self.delivery(id).await.map(|delivery| delivery.msg_id),
        }
    }

    async fn find_by_external_id(&self, external_id: &str) -> Result<ObjId, StoreError> {
        let external_id = external_id.to_owned();
        let heard = Arc::clone(&self.recent.heard);
        self.read(move |db| events::message_heard(db, &heard, &external_id)).await
    }

    fn newest_event(&self) -> watch::Receiver<i64> {
        self.board.event.subscribe()
    }

    async fn counts(&self) -> Result<StoreCounts, StoreError> {
        self.read(|db| {
            Ok(StoreCounts {
                oldest_waiting: deliveries::oldest_waiting(db)?,
                kept: inbound::waiting(db)?,
                oldest_unclaimed: mails::oldest_unclaimed(db)?,
                ..counts::figures(db)?
            })
        })
        .await
    }

    fn health(&self) -> StoreHealth {
        self.board.health()
    }
}

/// What was taken, and its object.
fn with_body<T>(
    tx: &writer::Tx<'_>,
    taken: Option<(T, i64)>,
) -> Result<Option<EntryWithBody<T>>, StoreError> {
    let Some((entry, object)) = taken else { return Ok(None) };
    Ok(Some((entry, objects::body(tx.db, object)?)))
}

/// An entry with the name and body of its object; the body is `None` when it is a
/// file.
type EntryWithBody<T> = (T, (ObjId, Option<Vec<u8>>));

fn any_ended(db: &Connection, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "
        SELECT EXISTS (SELECT 1 FROM records WHERE state = 'READING' AND lease_until <= ?1)
            OR EXISTS (SELECT 1 FROM deliveries WHERE state = 'SENDING' AND lease_until <= ?1)
    ";
    let mut statement = db.prepare_cached(sql).map_err(fault)?;
    statement.query_row([now.ms()], |row| row.get(0)).map_err(fault)
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// What it means for us that bytes were not kept.
fn unkept(why: WriteError) -> StoreError {
    match why {
        WriteError::Write(error) => disk(error),
        WriteError::Sync(error) => StoreError::Broken(error.to_string()),
    }
}

/// What an error of the file system means for us.
fn disk(error: std::io::Error) -> StoreError {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => StoreError::DiskFull,
        _ => StoreError::Unavailable(error.to_string()),
    }
}
