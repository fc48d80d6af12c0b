//! The writer thread: runs queued commands and commits them in groups.
//!
//! A sync to disk costs the same for one command as for five hundred. So all commands go
//! through one thread, which takes the waiting commands, runs them in one transaction, commits
//! once, and answers only then. If the commit fails, every caller gets the error.
//!
//! A rejected command must not affect the others. Commands check before they write, so that
//! most rejected commands have written nothing and stay in the batch at no cost. If a command
//! is rejected after it has written, the batch is rolled back and run again with a savepoint
//! around each command. So a command can run twice, and the cost of savepoints, which copy
//! every page they touch, is paid only in that case.
//!
//! A failed sync is final. The kernel reports it once and may drop the pages, so that a later
//! successful sync proves nothing about the earlier write. From then on every command is
//! rejected, until the courier is restarted and reads back what is on disk.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use monoco_core::approval::policy::ApprovalPolicy;
use monoco_core::delivery::Delivery;
use monoco_core::did::Did;
use monoco_core::duty::DutyProof;
use monoco_core::record::{BoxKind, MsgRecord, RecordId};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::address_book::AddressCache;
use super::bulk_index::BulkIndexes;
use super::counts::RowCounts;
use super::db::{Db, TxControl, TxStatus};
use super::external_ids::{self, KnownExternalIds};
use super::inbound::{self, KnownWindows, WindowLookup};
use super::letters::rows::LetterHead;
use super::objects::{self, KnownObjects};
use super::records::{self, UnreadRecord};
use super::result_slot::ResultSlot;
use super::sessions::SessionChanges;
use super::{closed, deliveries, events, files};
use crate::postgres::driver::PgConnection;
use crate::postgres::{Assumption, BatchStart, OtherCommits, PendingHints};
use crate::sqlite::{DatabaseFile, WalSize};
use crate::{BoxHint, StoreError, StoreHealth, StoreResult};

/// Maximum number of commands in one commit. Bounds how long the first one waits.
const MAX_COMMANDS_PER_COMMIT: usize = 512;

/// Commands that may wait in the queue. Beyond that, callers wait before they are queued.
const MAX_QUEUED_COMMANDS: usize = 4096;

/// Hints that a slow subscriber can fall behind before it loses some.
const HINT_CAPACITY: usize = 1024;

/// The first delay before a lost connection is opened again, which is doubled after each failure.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// How long a batch waits for a lost connection before its callers get an error.
const MAX_RECONNECT_TIME: Duration = Duration::from_secs(15);

/// How long a batch on PostgreSQL waits for the callers of the last one at most, and which part of
/// the time that the last one took.
const MAX_GROUP_WAIT: Duration = Duration::from_micros(500);
const GROUP_WAIT_PART: u32 = 8;

/// Batches that assume nothing after a wrong assumption: a repeated message is often followed by
/// others.
const CERTAIN_BATCHES: u32 = 16;

/// How long the store counts as full after PostgreSQL has rejected a row: smaller rows can still
/// fit, and commits of duties every 5 s do.
const FULL_TIME: Duration = Duration::from_secs(10);

/// Maximum number of rows of one kind in [`RowCache`].
const MAX_CACHED_ROWS: usize = 16_384;

/// The transaction that a command runs in.
pub(super) struct Tx<'c> {
    pub(super) db: &'c Db,
    pub(super) cache: &'c mut RowCache,
    pub(super) indexes: &'c mut BulkIndexes,
    /// Decides which messages are held for approval.
    pub(super) policy: Arc<ApprovalPolicy>,
    /// Published after the commit.
    pub(super) effects: CommitEffects,
    /// Second run of a batch: the writes of a rejected command are undone by a savepoint.
    savepoints: bool,
}

impl Tx<'_> {
    /// Must be called with every change of a table of the address book.
    pub(super) fn change_address_book(&mut self) {
        self.cache.address_book.clear();
        self.effects.address_book = true;
    }

    /// Must be called when an object gets another hash, and its records other ids. Other couriers
    /// forget their records with the address book.
    pub(super) fn replace_known_object(&mut self) {
        self.cache.objects.clear();
        self.cache.unread.clear();
        self.cache.leased.clear();
        self.effects.address_book = true;
    }

    /// Runs `work` for each item. A rejected item leaves nothing behind and does not affect
    /// the others.
    ///
    /// # Errors
    ///
    /// When an item was rejected after it had written, and this is the run without savepoints.
    pub(super) fn each<I, T>(
        &mut self,
        items: &[I],
        work: impl Fn(&mut Self, &I) -> StoreResult<T>,
    ) -> StoreResult<Vec<StoreResult<T>>> {
        let mut results = Vec::with_capacity(items.len());
        for item in items {
            if self.savepoints {
                let mut result = None;
                savepoint(self, |tx| result.insert(work(tx, item)).is_ok())?;
                results.extend(result);
                continue;
            }
            let changes = self.db.total_changes();
            let result = work(self, item);
            if let Err(error) = &result
                && (self.db.status() != TxStatus::Open || self.db.total_changes() != changes)
            {
                return Err(error.clone());
            }
            results.push(result);
        }
        Ok(results)
    }
}

/// Rows that the writer has looked up before. Cleared when a transaction is rolled back.
#[derive(Default)]
pub(super) struct RowCache {
    /// Party ids by DID.
    pub(super) parties: HashMap<String, i64>,
    /// Session ids by owner and peer.
    pub(super) sessions: HashMap<(i64, i64), i64>,
    /// Parties whose `has_box` is set.
    pub(super) boxes: HashSet<i64>,
    pub(super) address_book: AddressCache,
    /// Objects that were looked up for the current batch.
    pub(super) objects: KnownObjects,
    /// The oldest unread records of boxes that were looked up: the current batch leases some, and later
    /// ones the others.
    pub(super) unread: HashMap<(i64, BoxKind), VecDeque<UnreadRecord>>,
    /// The last records that were leased: those of the box before them are not unread.
    pub(super) leased_up_to: HashMap<(i64, BoxKind), i64>,
    /// External ids that were looked up for the current batch.
    pub(super) external_ids: KnownExternalIds,
    /// Merge windows that were looked up for the current batch.
    pub(super) windows: KnownWindows,
    /// Deliveries that were looked up for the current batch, with the rows of their objects.
    pub(super) deliveries: HashMap<RecordId, (Delivery, i64)>,
    /// Letters that were looked up for the current command, by their rows.
    pub(super) letters: HashMap<i64, LetterHead>,
    /// A duty that this courier holds, as the current batch has found out.
    pub(super) duty: Option<DutyProof>,
    /// Records that were leased, with the rows of their objects.
    pub(super) leased: HashMap<RecordId, (MsgRecord, i64)>,
    /// The current day of the retention clock.
    pub(super) day: Option<i64>,
    /// Mails get numbers above this one.
    pub(super) reserved_mail_numbers: Option<i64>,
}

impl RowCache {
    fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets what is valid for one batch only, and what other couriers have changed. Rows of
    /// parties and sessions are never deleted.
    fn start_batch(&mut self, others: OtherCommits) {
        self.objects.clear();
        self.external_ids.clear();
        self.windows.clear();
        self.deliveries.clear();
        self.duty = None;
        if others != OtherCommits::None {
            self.unread.clear();
            self.leased_up_to.clear();
            self.day = None;
            self.reserved_mail_numbers = None;
        }
        if others == OtherCommits::AddressBook {
            self.address_book.clear();
            self.leased.clear();
        }
    }

    fn limit_size(&mut self) {
        let most = self.parties.len().max(self.sessions.len()).max(self.boxes.len());
        let most = most.max(self.leased.len()).max(self.leased_up_to.len()).max(self.unread.len());
        if most.max(self.address_book.size()) > MAX_CACHED_ROWS {
            // The others are those of the current batch.
            *self = Self {
                objects: std::mem::take(&mut self.objects),
                external_ids: std::mem::take(&mut self.external_ids),
                windows: std::mem::take(&mut self.windows),
                deliveries: std::mem::take(&mut self.deliveries),
                ..Self::default()
            };
        }
    }
}

/// What is published after a commit.
#[derive(Default)]
pub(crate) struct CommitEffects {
    /// Boxes with new entries.
    pub(crate) hints: BTreeSet<BoxHint>,
    /// Number of the newest event.
    pub(crate) event: Option<i64>,
    /// Number of the newest file change.
    pub(crate) file_change: Option<i64>,
    /// Whether an inbound message was stored.
    pub(crate) inbound: bool,
    /// Whether a message with files to fetch was stored.
    pub(crate) inbound_file: bool,
    /// Whether a letter started to wait.
    pub(crate) letter: bool,
    /// Whether an e-mail task became startable.
    pub(crate) email_task: bool,
    /// Whether the address book was changed.
    pub(crate) address_book: bool,
    /// Changes of the row counts.
    pub(crate) counts: RowCounts,
    pub(crate) sessions: SessionChanges,
}

impl CommitEffects {
    /// Whether another courier has something to do or to show.
    pub(crate) fn concern_others(&self) -> bool {
        let flags = self.inbound | self.inbound_file | self.letter | self.email_task;
        flags || !self.hints.is_empty() || self.event.max(self.file_change).is_some()
    }

    fn add(&mut self, other: Self) {
        self.hints.extend(other.hints);
        self.event = self.event.max(other.event);
        self.file_change = self.file_change.max(other.file_change);
        self.inbound |= other.inbound;
        self.inbound_file |= other.inbound_file;
        self.letter |= other.letter;
        self.email_task |= other.email_task;
        self.address_book |= other.address_book;
        self.counts.add(other.counts);
        self.sessions.add(other.sessions);
    }
}

/// Channels and health that the writer shares with the callers.
#[derive(Debug)]
pub(crate) struct WriterChannels {
    pub(super) hints: broadcast::Sender<BoxHint>,
    pub(super) event: watch::Sender<i64>,
    pub(super) file_change: watch::Sender<i64>,
    pub(super) inbound: watch::Sender<u64>,
    pub(super) inbound_file: watch::Sender<u64>,
    pub(super) letter: watch::Sender<u64>,
    pub(super) email_task: watch::Sender<u64>,
    pub(super) policy: watch::Sender<Arc<ApprovalPolicy>>,
    pub(super) health: Mutex<StoreHealth>,
    /// The caller that waits until the database is compacted.
    pub(super) compaction: Mutex<Option<oneshot::Sender<StoreResult<()>>>>,
    /// The database file of SQLite.
    pub(super) file: Option<DatabaseFile>,
    /// Where other couriers hear of commits.
    pub(super) pending: Option<Arc<PendingHints>>,
}

impl WriterChannels {
    /// Creates the channels, with the newest numbers of the store.
    pub(crate) fn new(
        db: &Db,
        file: Option<DatabaseFile>,
        pending: Option<Arc<PendingHints>>,
    ) -> StoreResult<Self> {
        Ok(Self {
            file,
            pending,
            hints: broadcast::channel(HINT_CAPACITY).0,
            event: watch::channel(events::newest(db)?).0,
            file_change: watch::channel(files::newest_change(db)?).0,
            inbound: watch::channel(0).0,
            inbound_file: watch::channel(0).0,
            letter: watch::channel(0).0,
            email_task: watch::channel(0).0,
            policy: watch::channel(Arc::default()).0,
            health: Mutex::new(StoreHealth::Ok),
            compaction: Mutex::new(None),
        })
    }

    pub(crate) fn health(&self) -> StoreHealth {
        if let Some(why) = self.file.as_ref().and_then(DatabaseFile::loss) {
            self.record_health(Err(&StoreError::Broken(why)));
        }
        self.health.lock().map_or_else(
            |_| StoreHealth::Broken("the writer thread panicked".to_owned()),
            |health| health.clone(),
        )
    }

    /// Like [`Self::health`], and checks whether the files may be written.
    pub(super) fn checked_health(&self) -> StoreHealth {
        match self.health() {
            StoreHealth::Ok => {
                let why = self.file.as_ref().and_then(DatabaseFile::write_protection);
                why.map_or(StoreHealth::Ok, StoreHealth::Failing)
            }
            health => health,
        }
    }

    /// Records the result of the last write. A broken store stays broken.
    pub(crate) fn record_health(&self, result: Result<(), &StoreError>) {
        let Ok(mut health) = self.health.lock() else { return };
        if matches!(*health, StoreHealth::Broken(_)) {
            return;
        }
        *health = match result {
            Ok(()) => StoreHealth::Ok,
            Err(StoreError::DiskFull) => StoreHealth::Full,
            Err(StoreError::Broken(why)) => {
                tracing::error!(why, "the store is broken; rejecting writes until restart");
                StoreHealth::Broken(why.clone())
            }
            Err(other) => StoreHealth::Failing(other.to_string()),
        };
    }

    /// Publishes the effects of a commit of another courier.
    pub(crate) fn publish(&self, effects: &CommitEffects) {
        self.publish_numbers(effects);
        for hint in &effects.hints {
            let _ = self.hints.send(hint.clone());
        }
    }

    /// Publishes what callers must find once they are answered.
    fn publish_numbers(&self, effects: &CommitEffects) {
        // Couriers hear of each other's commits in any order.
        let raise = |number: &watch::Sender<i64>, to: Option<i64>| {
            number.send_if_modified(|number| {
                let newer = to.filter(|to| to > number);
                newer.is_some_and(|to| std::mem::replace(number, to) != to)
            });
        };
        raise(&self.event, effects.event);
        raise(&self.file_change, effects.file_change);
        if effects.inbound {
            self.inbound.send_modify(|count| *count += 1);
        }
        if effects.inbound_file {
            self.inbound_file.send_modify(|count| *count += 1);
        }
        if effects.letter {
            self.letter.send_modify(|count| *count += 1);
        }
        if effects.email_task {
            self.email_task.send_modify(|count| *count += 1);
        }
    }
}

/// Handle to the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<mpsc::Sender<WriteCommand>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What a command looks up. PostgreSQL finds it for all waiting commands together.
#[derive(Default)]
pub(super) struct Lookups {
    /// Objects, by the first part of their hashes.
    pub(super) objects: Vec<i64>,
    /// The box of which a record is leased.
    pub(super) unread: Option<(Did, BoxKind)>,
    /// External ids, by the first part of their hashes.
    pub(super) external_ids: Vec<i64>,
    /// Windows that messages join.
    pub(super) windows: Vec<WindowLookup>,
    /// The delivery that a sender reports about.
    pub(super) delivery: Option<RecordId>,
}

impl Lookups {
    pub(super) fn of_delivery(id: RecordId) -> Self {
        Self { delivery: Some(id), ..Self::default() }
    }

    /// Whether the command usually reads nothing: it only looks up messages, which are assumed to
    /// be new.
    fn are_assumed(&self) -> bool {
        let Self { objects, unread, external_ids, windows, delivery } = self;
        let others = external_ids.is_empty() && windows.is_empty();
        !objects.is_empty() && others && unread.is_none() && delivery.is_none()
    }
}

/// The work of a command. Stores its result where the caller finds it, and returns whether it
/// succeeded.
type WriteWork = Box<dyn FnMut(&mut Tx<'_>) -> bool + Send>;

/// A command in the queue, with its caller waiting for the commit. One type for commands with any
/// result: the code of the queue is compiled once.
struct WriteCommand {
    work: WriteWork,
    lookups: Lookups,
    /// Why the last run has no result.
    missing: Option<&'static str>,
    reply: oneshot::Sender<StoreResult<()>>,
}

impl WriteCommand {
    /// Runs the command. Returns whether it succeeded.
    fn run(&mut self, tx: &mut Tx<'_>) -> bool {
        let succeeded = catch_unwind(AssertUnwindSafe(|| (self.work)(tx)));
        self.missing = succeeded.is_err().then_some("a store command panicked; see the log");
        succeeded.unwrap_or(false)
    }

    /// Tells the caller whether the commit succeeded.
    fn answer(self, commit: &StoreResult<()>) {
        let answer = match (commit, self.missing) {
            (Ok(()), Some(why)) => Err(StoreError::Unavailable(why.to_owned())),
            (commit, _) => commit.clone(),
        };
        // Dropped before the answer, so that the caller holds the last reference to shared
        // arguments and frees them.
        drop(self.work);
        // The caller may be gone. What was committed stays committed.
        let _ = self.reply.send(answer);
    }
}

impl Writer {
    /// Starts the thread that owns `db`.
    pub(super) fn start(
        db: Db,
        indexes: BulkIndexes,
        wal: Option<Arc<WalSize>>,
        channels: Arc<WriterChannels>,
    ) -> std::io::Result<Self> {
        let (queue, commands) = mpsc::channel(MAX_QUEUED_COMMANDS);
        let policy = channels.policy.subscribe();
        let thread = thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
            let thread = WriterThread {
                db,
                cache: RowCache::default(),
                indexes,
                wal,
                policy,
                postponed: None,
                assumes_new_objects: false,
                is_independent: false,
                certain_batches: 0,
                last_batch: (0, Duration::ZERO),
            };
            thread.run(commands, &channels);
        })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Runs `work` in the next transaction and returns its result after the commit.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.run_on(Lookups::default(), work).await
    }

    /// Like [`Self::run`], for `work` whose lookups are known.
    pub(super) async fn run_on<T: Send + 'static>(
        &self,
        lookups: Lookups,
        work: impl Fn(&mut Tx<'_>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let result = ResultSlot::new();
        let slot = result.share();
        let work = move |tx: &mut Tx<'_>| {
            let result = work(tx);
            let succeeded = result.is_ok();
            slot.put(result);
            succeeded
        };
        self.commit(lookups, Box::new(work)).await?;
        result.take()
    }

    /// Runs `work` in the next transaction, and returns after the commit.
    async fn commit(&self, lookups: Lookups, work: WriteWork) -> StoreResult<()> {
        let (reply, answer) = oneshot::channel();
        let missing = Some("the command was not run");
        let command = WriteCommand { work, lookups, missing, reply };
        let queue = self.queue.as_ref().ok_or_else(closed)?;
        queue.send(command).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Rewrites the database without its unused parts, between two commits. Queued commands wait
    /// meanwhile.
    pub(super) async fn compact(&self, channels: &WriterChannels) -> StoreResult<()> {
        let (caller, done) = oneshot::channel();
        *channels.compaction.lock().map_err(|_| closed())? = Some(caller);
        // The thread looks after the next commit.
        if let Err(error) = self.run(|_| Ok(())).await {
            drop(channels.compaction.lock().map(|mut caller| caller.take()));
            return Err(error);
        }
        done.await.map_err(|_| closed())?
    }

    /// Like [`Self::run`] for a batch. The items are dropped in the caller, because letters
    /// and messages are large and the writer thread is shared.
    pub(super) async fn run_each<I: Send + Sync + 'static, T: Clone + Send + 'static>(
        &self,
        items: Vec<I>,
        work: impl Fn(&mut Tx<'_>, &[I]) -> StoreResult<Vec<StoreResult<T>>> + Send + 'static,
    ) -> Vec<StoreResult<T>> {
        self.run_each_on(Lookups::default(), items, work).await
    }

    /// Like [`Self::run_each`], for `work` whose lookups are known.
    pub(super) async fn run_each_on<I: Send + Sync + 'static, T: Clone + Send + 'static>(
        &self,
        lookups: Lookups,
        items: Vec<I>,
        work: impl Fn(&mut Tx<'_>, &[I]) -> StoreResult<Vec<StoreResult<T>>> + Send + 'static,
    ) -> Vec<StoreResult<T>> {
        let items = Arc::new(items);
        let shared = Arc::clone(&items);
        let results = self.run_on(lookups, move |tx| work(tx, &shared)).await;
        results.unwrap_or_else(|error| vec![Err(error); items.len()])
    }
}

impl Drop for Writer {
    /// Waits until the thread has run the queued commands and closed the database.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Batch = Vec<WriteCommand>;

/// State of the writer thread.
struct WriterThread {
    db: Db,
    cache: RowCache,
    indexes: BulkIndexes,
    /// The log of SQLite.
    wal: Option<Arc<WalSize>>,
    policy: watch::Receiver<Arc<ApprovalPolicy>>,
    /// The first command of the next batch, if it was taken from the queue already.
    postponed: Option<WriteCommand>,
    /// Whether messages are assumed to be new instead of looked up. A unique index of PostgreSQL
    /// rejects a message that is not.
    assumes_new_objects: bool,
    /// Whether only commands that usually read nothing are added to the batch.
    is_independent: bool,
    /// The number of next batches that assume nothing.
    certain_batches: u32,
    /// The number of commands of the last batch, and the time that it took.
    last_batch: (usize, Duration),
}

impl WriterThread {
    fn run(mut self, mut commands: mpsc::Receiver<WriteCommand>, channels: &WriterChannels) {
        let mut full_until = None;
        while let Some(first) = self.postponed.take().or_else(|| commands.blocking_recv()) {
            if let StoreHealth::Broken(why) = channels.health() {
                first.answer(&Err(StoreError::Broken(why)));
                continue;
            }
            self.wait_for_callers(&commands);
            let (changes, started) = (self.db.total_changes(), Instant::now());
            let (batch, mut effects, commit) = self.commit_batch(first, &mut commands, channels);
            self.last_batch = (batch.len(), started.elapsed());
            let is_full = self.db.as_postgres().is_some_and(|db| db.take_disk_full());
            if is_full {
                full_until = Some(Instant::now() + FULL_TIME);
            }
            if commit.is_ok() && full_until.is_some_and(|until| Instant::now() < until) {
                channels.record_health(Err(&StoreError::DiskFull));
            } else if commit.is_err() || self.db.total_changes() != changes {
                // A batch that wrote nothing proves nothing about the disk.
                channels.record_health(commit.as_ref().map(|_| ()));
            }
            if commit.is_ok() {
                for number in [&mut effects.event, &mut effects.file_change] {
                    *number = number.and_then(|number| self.db.final_number(number));
                }
                // Before the answers, so that a caller finds its own write below the newest
                // number.
                channels.publish_numbers(&effects);
            }
            for command in batch {
                command.answer(&commit);
            }
            if commit.is_err() {
                self.discard();
                continue;
            }
            if let Some(pending) = &channels.pending {
                pending.add(&effects);
            }
            for hint in effects.hints {
                let _ = channels.hints.send(hint);
            }
            self.indexes.committed();
            self.maintain_log(channels);
        }
    }

    /// Waits a moment for the callers that the last batch has answered: most come again at once, and a
    /// commit costs the same for one of them as for all. Without it, the first one has a commit of
    /// its own, and the others wait for it. A batch that gets its commands after it has its turn waits
    /// long enough.
    fn wait_for_callers(&self, commands: &mpsc::Receiver<WriteCommand>) {
        let (callers, took) = self.last_batch;
        let waits = |db: &PgConnection| self.is_independent || !db.takes_turns();
        let waits = self.db.as_postgres().is_some_and(waits);
        let deadline = Instant::now() + (took / GROUP_WAIT_PART).min(MAX_GROUP_WAIT);
        while waits && commands.len() + 1 < callers && Instant::now() < deadline {
            thread::yield_now();
        }
    }

    /// Copies the rest of the log when it is large, and compacts the database when a caller waits
    /// for that.
    fn maintain_log(&self, channels: &WriterChannels) {
        let (db, wal) = (self.db.as_sqlite(), self.wal.as_deref());
        if let (Some(db), Some(wal)) = (db, wal) {
            wal.finish(db, channels);
        }
        let caller = channels.compaction.lock().ok().and_then(|mut caller| caller.take());
        let Some(caller) = caller else { return };
        let compacted = match (db, wal, &channels.file) {
            (Some(db), Some(wal), Some(file)) => wal.compact(db, file.path()),
            _ => Ok(()),
        };
        // The caller may be gone. The database is smaller anyway.
        let _ = caller.send(compacted);
    }

    /// Runs the waiting commands and commits them once. When the connection is lost, they are run
    /// again on another one, unless they are found to be committed.
    fn commit_batch(
        &mut self,
        first: WriteCommand,
        commands: &mut mpsc::Receiver<WriteCommand>,
        channels: &WriterChannels,
    ) -> (Batch, CommitEffects, StoreResult<()>) {
        let mut batch = vec![first];
        let mut effects = CommitEffects::default();
        let mut delays = ReconnectDelays::default();
        let mut assumption = self.assume(&mut batch, commands);
        loop {
            let result = match self.db.begin(assumption) {
                Ok(BatchStart::Started { others }) => {
                    self.cache.start_batch(others);
                    self.assumes_new_objects =
                        assumption != Assumption::Nothing && self.db.as_postgres().is_some();
                    self.is_independent = assumption == Assumption::Independent;
                    effects = CommitEffects::default();
                    self.run_batch(&mut batch, commands, &mut effects)
                }
                // The results and effects of the run that was committed are still here.
                Ok(BatchStart::Committed) => self.db.confirm_commit(),
                Err(error) => Err(error),
            };
            let Err(error) = &result else {
                if delays.attempts > 0 {
                    channels.record_health(Ok(()));
                }
                return (batch, effects, result);
            };
            if self.db.status() != TxStatus::Lost {
                return (batch, effects, result);
            }
            self.discard();
            channels.record_health(Err(error));
            // An unknown result is looked up for as long as the store is open.
            let is_final =
                if self.db.has_unknown_commit() { commands.is_closed() } else { delays.is_over() };
            if is_final {
                return (batch, effects, result);
            }
            delays.reconnect(&self.db);
            // The batch may be committed, so that it gets no more commands before that is known.
            assumption = Assumption::Nothing;
        }
    }

    /// What is assumed about the next batch. A batch that could be independent of those of other
    /// couriers gets the waiting commands before.
    fn assume(
        &mut self,
        batch: &mut Batch,
        commands: &mut mpsc::Receiver<WriteCommand>,
    ) -> Assumption {
        if self.certain_batches > 0 {
            self.certain_batches -= 1;
            return Assumption::Nothing;
        }
        let takes_turns = self.db.as_postgres().is_some_and(PgConnection::takes_turns);
        if !takes_turns || !batch.iter().all(|command| command.lookups.are_assumed()) {
            return Assumption::Undisturbed;
        }
        self.is_independent = false;
        self.receive(commands, batch, 0);
        match batch.iter().all(|command| command.lookups.are_assumed()) {
            true => Assumption::Independent,
            false => Assumption::Undisturbed,
        }
    }

    /// Runs and commits the batch in the transaction that was started. Rolls back after an error.
    fn run_batch(
        &mut self,
        batch: &mut Batch,
        commands: &mut mpsc::Receiver<WriteCommand>,
        effects: &mut CommitEffects,
    ) -> StoreResult<()> {
        let mut committed = self.run_together(batch, Some(commands), effects);
        if matches!(committed, Ok(false)) && self.assumes_new_objects {
            // What was assumed may be wrong, which is no fault of a command.
            self.certain_batches = CERTAIN_BATCHES;
            committed =
                self.begin_again(effects).and_then(|()| self.run_together(batch, None, effects));
        }
        let mut result = match committed {
            Ok(true) => Ok(()),
            Ok(false) => self.run_again(batch, effects),
            Err(error) => Err(error),
        };
        if result.is_err() && matches!(self.db.status(), TxStatus::Open | TxStatus::Aborted) {
            // Some errors roll back by themselves, this one has not.
            if let Err(error) = self.db.control(TxControl::Rollback) {
                result = Err(error);
            }
        }
        result
    }

    /// Runs the batch, and commands that arrive meanwhile, and commits. Returns `false` after a
    /// rollback, when a command was rejected after it had written, or PostgreSQL has rejected a
    /// deferred statement of one of the commands.
    fn run_together(
        &mut self,
        batch: &mut Batch,
        commands: Option<&mut mpsc::Receiver<WriteCommand>>,
        effects: &mut CommitEffects,
    ) -> StoreResult<bool> {
        let committed = match self.run_commands(batch, commands, effects) {
            Ok(true) => self.commit(effects).map(|()| true),
            not_run => not_run,
        };
        match committed {
            Err(_) if self.db.status() == TxStatus::Aborted => {
                self.db.control(TxControl::Rollback)?;
                Ok(false)
            }
            committed => committed,
        }
    }

    /// Starts another transaction after a rollback.
    fn begin_again(&mut self, effects: &mut CommitEffects) -> StoreResult<()> {
        self.discard();
        self.assumes_new_objects = false;
        self.is_independent = false;
        *effects = CommitEffects::default();
        self.db.begin(Assumption::Nothing).map(drop)
    }

    /// Runs and commits a batch that was rolled back, with a savepoint around each command.
    fn run_again(&mut self, batch: &mut Batch, effects: &mut CommitEffects) -> StoreResult<()> {
        self.begin_again(effects)?;
        self.run_separately(batch, effects)?;
        self.commit(effects)
    }

    /// Commits the transaction. Writes nothing when the batch has written nothing: such a commit
    /// costs no sync.
    fn commit(&mut self, effects: &CommitEffects) -> StoreResult<()> {
        effects.sessions.save(&self.db)?;
        effects.counts.save(&self.db)?;
        self.indexes.merge(&self.db)?;
        self.db.commit(effects.address_book)
    }

    /// Forgets the state of a transaction that was rolled back.
    fn discard(&mut self) {
        self.cache.clear();
        self.indexes.rolled_back();
    }

    /// Runs the batch, and commands that arrive meanwhile, in one transaction. Returns `false`
    /// after a rollback, when a command was rejected after it had written.
    fn run_commands(
        &mut self,
        batch: &mut Batch,
        mut commands: Option<&mut mpsc::Receiver<WriteCommand>>,
        effects: &mut CommitEffects,
    ) -> StoreResult<bool> {
        let is_postgres = self.db.as_postgres().is_some();
        let (mut at, mut looked_up) = (0, 0);
        loop {
            if let Some(commands) = &mut commands {
                self.receive(commands, batch, at);
            }
            if looked_up == at && at < batch.len() && is_postgres {
                self.look_up(&batch[at..])?;
                looked_up = batch.len();
            }
            let Some(command) = batch.get_mut(at) else { break };
            self.cache.limit_size();
            let changes = self.db.total_changes();
            let mut tx = self.tx(false);
            if command.run(&mut tx) {
                effects.add(tx.effects);
                // Commands of other kinds can change them.
                if command.lookups.windows.is_empty() {
                    self.cache.windows.clear();
                }
                if command.lookups.delivery.is_none() {
                    self.cache.deliveries.clear();
                }
            } else {
                check_open(&self.db)?;
                if self.db.status() == TxStatus::Aborted || self.db.total_changes() != changes {
                    self.db.control(TxControl::Rollback)?;
                    return Ok(false);
                }
            }
            at += 1;
        }
        Ok(true)
    }

    /// Adds waiting commands to a batch of which `at` have run. SQLite gets one when it has no other
    /// one to run. PostgreSQL gets all before the first one, whose lookups are one query, and later
    /// those that need no other query.
    fn receive(
        &mut self,
        commands: &mut mpsc::Receiver<WriteCommand>,
        batch: &mut Batch,
        at: usize,
    ) {
        let is_postgres = self.db.as_postgres().is_some();
        let is_empty = at == batch.len();
        if !is_empty && (at > 0 || !is_postgres) {
            return;
        }
        let room = MAX_COMMANDS_PER_COMMIT.saturating_sub(batch.len());
        let most = if is_postgres { room } else { room.min(1) };
        for _ in 0..most {
            // One that is postponed is the first of the next batch.
            if self.postponed.is_some() {
                return;
            }
            let Ok(command) = commands.try_recv() else { return };
            let reads = at > 0 && command.lookups.unread.is_some()
                || self.is_independent && !command.lookups.are_assumed();
            if is_postgres && reads {
                self.postponed = Some(command);
            } else {
                batch.push(command);
            }
        }
    }

    /// Reads what several commands look up.
    fn look_up(&mut self, commands: &[WriteCommand]) -> StoreResult<()> {
        let hashes = commands.iter().flat_map(|command| command.lookups.objects.iter().copied());
        if self.assumes_new_objects {
            self.cache.objects.assume_new(hashes);
        } else {
            objects::look_up(&self.db, &mut self.cache.objects, hashes.collect())?;
        }
        let ids = commands.iter().flat_map(|command| command.lookups.external_ids.iter());
        external_ids::look_up(&self.db, &mut self.cache.external_ids, ids.copied().collect())?;
        let windows: Vec<_> = commands.iter().flat_map(|it| it.lookups.windows.iter()).collect();
        inbound::look_up_windows(&mut self.tx(false), &windows)?;
        let ids: Vec<_> = commands.iter().filter_map(|it| it.lookups.delivery).collect();
        deliveries::look_up(&mut self.tx(false), &ids)?;
        let mut boxes = HashMap::<_, usize>::new();
        for unread in commands.iter().filter_map(|command| command.lookups.unread.as_ref()) {
            *boxes.entry(unread).or_default() += 1;
        }
        for ((owner, box_kind), count) in boxes.into_iter().filter(|(_, count)| *count > 1) {
            records::look_up_unread(&mut self.tx(false), owner, *box_kind, count)?;
        }
        Ok(())
    }

    /// Runs the batch with a savepoint around each command.
    fn run_separately(
        &mut self,
        batch: &mut Batch,
        effects: &mut CommitEffects,
    ) -> StoreResult<()> {
        for command in batch {
            let mut tx = self.tx(true);
            savepoint(&mut tx, |tx| command.run(tx))?;
            effects.add(tx.effects);
        }
        Ok(())
    }

    fn tx(&mut self, savepoints: bool) -> Tx<'_> {
        let Self { db, cache, indexes, policy, .. } = self;
        let policy = Arc::clone(&policy.borrow());
        Tx { db, cache, indexes, policy, effects: CommitEffects::default(), savepoints }
    }
}

/// Runs `work` in a savepoint, and undoes it when it returns `false`.
fn savepoint<'c>(tx: &mut Tx<'c>, work: impl FnOnce(&mut Tx<'c>) -> bool) -> StoreResult<()> {
    tx.db.control(TxControl::Savepoint)?;
    let before = std::mem::take(&mut tx.effects);
    let mark = tx.indexes.mark();
    let succeeded = work(tx);
    let effects = std::mem::replace(&mut tx.effects, before);
    if succeeded {
        tx.effects.add(effects);
    } else {
        // The cache may contain rows that are rolled back.
        tx.cache.clear();
        tx.indexes.undo(mark);
        check_open(tx.db)?;
        tx.db.control(TxControl::Undo)?;
    }
    tx.db.control(TxControl::Release)
}

/// Checks that a failed command has not ended the whole transaction.
fn check_open(db: &Db) -> StoreResult<()> {
    match db.status() {
        TxStatus::Open | TxStatus::Aborted => Ok(()),
        // SQLite has rolled back, as it does on a full disk.
        TxStatus::None => Err(StoreError::DiskFull),
        TxStatus::Lost => {
            Err(StoreError::Unavailable("the connection to the database is lost".to_owned()))
        }
    }
}

/// When a lost connection is opened again: at once, then after growing delays.
#[derive(Default)]
struct ReconnectDelays {
    attempts: u32,
    since: Option<Instant>,
}

impl ReconnectDelays {
    /// Whether callers have waited long enough for an error.
    fn is_over(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() >= MAX_RECONNECT_TIME)
    }

    /// Waits and opens the connection. When it fails, so does the next batch.
    fn reconnect(&mut self, db: &Db) {
        self.since.get_or_insert_with(Instant::now);
        if self.attempts > 0 {
            let delay = RECONNECT_DELAY.saturating_mul(1 << self.attempts.min(10));
            thread::sleep(delay.min(MAX_RECONNECT_DELAY));
        }
        self.attempts = self.attempts.saturating_add(1);
        if let Some(db) = db.as_postgres()
            && let Err(error) = db.reconnect()
        {
            tracing::warn!(%error, "cannot reconnect to the database; trying again");
        }
    }
}
