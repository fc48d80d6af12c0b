//! One writer, and one commit for everybody who is waiting.
//!
//! A sync to disk costs the same for one command as for five hundred. So all
//! commands go through one thread, which takes whatever is waiting, runs it,
//! commits once, and only then answers. When the commit fails, nobody is told
//! that anything was done.
//!
//! One bad command must not harm its neighbours. Commands look before they write,
//! so that one that is refused has as a rule written nothing, and stays in the
//! batch at no cost. Should one have written before it was refused, the batch is
//! rolled back and run again with a savepoint around each. That is why a command
//! may be run twice, and why savepoints, which copy every page they touch, are
//! not paid for by everybody.
//!
//! A failed sync is final. The kernel reports it once and may drop the pages, so
//! a later sync that succeeds proves nothing about the earlier write. From then
//! on every command is refused, until the courier is started anew and reads back
//! what is really there.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

use rusqlite::Connection;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::bulk_index::BulkIndexes;
use super::checkpoint::WalSize;
use super::counts::RowCounts;
use super::open::fault;
use crate::{BoxHint, StoreError, StoreHealth};

/// Most commands in one commit. Bounds how long the first one waits for the last.
const BATCH: usize = 512;

/// Commands that may wait. Beyond it callers wait before they are let in.
const QUEUE: usize = 4096;

/// Most rows of one kind that the writer remembers.
const REMEMBERED: usize = 16_384;

/// What a command works with.
pub(super) struct Tx<'c> {
    /// The connection, inside the transaction.
    pub(super) db: &'c Connection,
    /// What was looked up before.
    pub(super) known: &'c mut RowCache,
    /// The indexes that are written in bulk.
    pub(super) indexes: &'c mut BulkIndexes,
    /// What is told to the others once it is committed.
    pub(super) news: CommitEffects,
    /// Whether what a command wrote before it is refused must be undone at once,
    /// because the commands around it have to stay.
    careful: bool,
}

impl Tx<'_> {
    /// Does `work` for each of `items`. One that is refused leaves nothing behind
    /// and does not harm the others.
    ///
    /// # Errors
    ///
    /// When one was refused after it had written, and this is not the careful run.
    pub(super) fn each<I, T>(
        &mut self,
        items: &[I],
        work: impl Fn(&mut Self, &I) -> Result<T, StoreError>,
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            if self.careful {
                let mut answer = None;
                savepoint(self, |tx| answer.insert(work(tx, item)).is_ok())?;
                answers.extend(answer);
                continue;
            }
            let written = self.db.total_changes();
            let answer = work(self, item);
            if let Err(error) = &answer
                && (self.db.is_autocommit() || self.db.total_changes() != written)
            {
                return Err(error.clone());
            }
            answers.push(answer);
        }
        Ok(answers)
    }
}

/// What the writer need not look up again. Forgotten when it may be wrong.
#[derive(Default)]
pub(super) struct RowCache {
    /// Rows of DIDs.
    pub(super) parties: HashMap<String, i64>,
    /// Rows of conversations, by owner and peer.
    pub(super) sessions: HashMap<(i64, i64), i64>,
    /// Parties that are noted to have a box.
    pub(super) boxes: HashSet<i64>,
    /// The day of the hub's life.
    pub(super) day: Option<i64>,
}

impl RowCache {
    fn forget(&mut self) {
        *self = Self::default();
    }

    /// Keeps the memory small, whoever writes to us.
    fn limit(&mut self) {
        let most = self.parties.len().max(self.sessions.len()).max(self.boxes.len());
        if most > REMEMBERED {
            self.forget();
        }
    }
}

/// What a commit changes for those who watch.
#[derive(Default)]
pub(super) struct CommitEffects {
    /// Boxes something was put into.
    pub(super) hints: BTreeSet<BoxHint>,
    /// The newest event.
    pub(super) event: Option<i64>,
    /// The newest change of a file's place.
    pub(super) filing: Option<i64>,
    /// Whether a letter waits that did not before.
    pub(super) letter: bool,
    /// How the counts change.
    pub(super) tally: RowCounts,
}

impl CommitEffects {
    fn add(&mut self, other: Self) {
        self.hints.extend(other.hints);
        self.event = self.event.max(other.event);
        self.filing = self.filing.max(other.filing);
        self.letter |= other.letter;
        self.tally.add(other.tally);
    }
}

/// What everybody can see of the writer.
#[derive(Debug)]
pub(super) struct WriterChannels {
    pub(super) hints: broadcast::Sender<BoxHint>,
    pub(super) event: watch::Sender<i64>,
    pub(super) filing: watch::Sender<i64>,
    pub(super) letter: watch::Sender<u64>,
    pub(super) health: Mutex<StoreHealth>,
}

impl WriterChannels {
    pub(super) fn health(&self) -> StoreHealth {
        self.health.lock().map_or_else(
            |_| StoreHealth::Broken("the writer panicked".to_owned()),
            |health| health.clone(),
        )
    }

    /// Notes how the last write went. A broken store stays broken.
    pub(super) fn note(&self, result: Result<(), &StoreError>) {
        let Ok(mut health) = self.health.lock() else { return };
        if matches!(*health, StoreHealth::Broken(_)) {
            return;
        }
        *health = match result {
            Ok(()) => StoreHealth::Ok,
            Err(StoreError::DiskFull) => StoreHealth::Full,
            Err(StoreError::Broken(why)) => {
                tracing::error!(why, "a sync failed; nothing is accepted any more");
                StoreHealth::Broken(why.clone())
            }
            Err(other) => StoreHealth::Failing(other.to_string()),
        };
    }
}

/// The way to the writer thread.
#[derive(Debug)]
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn QueuedCommand>>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Work for the writer, with somebody waiting for its answer.
trait QueuedCommand: Send {
    /// Does the work. Returns whether it is to be kept.
    fn run(&mut self, tx: &mut Tx<'_>) -> bool;
    /// Answers, after the commit went as it went.
    fn answer(self: Box<Self>, commit: &Result<(), StoreError>);
}

struct WriteCommand<T, F> {
    work: F,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> QueuedCommand for WriteCommand<T, F>
where
    T: Send,
    F: Fn(&mut Tx<'_>) -> Result<T, StoreError> + Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> bool {
        let result = catch_unwind(AssertUnwindSafe(|| (self.work)(tx))).unwrap_or_else(|_| {
            Err(StoreError::Unavailable("a store command panicked; see the log".to_owned()))
        });
        let keep = result.is_ok();
        self.result = Some(result);
        keep
    }

    fn answer(self: Box<Self>, commit: &Result<(), StoreError>) {
        let answer = match (commit, self.result) {
            (Ok(()), Some(result)) => result,
            (Err(error), _) => Err(error.clone()),
            (Ok(()), None) => Err(StoreError::Unavailable("the command was not run".to_owned())),
        };
        // Before the answer: who shares something with it is the last to have it then.
        drop(self.work);
        // Whoever asked may be gone; what was committed stays committed.
        let _ = self.reply.send(answer);
    }
}

impl Writer {
    /// Starts the thread that owns `db`.
    pub(super) fn start(
        db: Connection,
        indexes: BulkIndexes,
        log: Arc<WalSize>,
        board: Arc<WriterChannels>,
    ) -> std::io::Result<Self> {
        let (queue, commands) = mpsc::channel(QUEUE);
        let thread = thread::Builder::new().name("store-writer".to_owned()).spawn(move || {
            WriterThread { db, known: RowCache::default(), indexes, log }.write(commands, &board);
        })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Has `work` done in the next commit, and returns its result after it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Tx<'_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let gone = || StoreError::Unavailable("the store is closed".to_owned());
        let (reply, answer) = oneshot::channel();
        let errand = WriteCommand { work, result: None, reply };
        let queue = self.queue.as_ref().ok_or_else(gone)?;
        queue.send(Box::new(errand)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// The same with each of `items`, which are thrown away by the caller: letters and
    /// messages are large, and others wait for the writer.
    pub(super) async fn run_each<I: Send + Sync + 'static, T: Clone + Send + 'static>(
        &self,
        items: Vec<I>,
        work: impl Fn(&mut Tx<'_>, &[I]) -> Result<Vec<Result<T, StoreError>>, StoreError>
        + Send
        + 'static,
    ) -> Vec<Result<T, StoreError>> {
        let items = Arc::new(items);
        let taken = Arc::clone(&items);
        let answers = self.run(move |tx| work(tx, &taken)).await;
        answers.unwrap_or_else(|error| vec![Err(error); items.len()])
    }
}

impl Drop for Writer {
    /// Lets the thread finish what is waiting, so that the database is closed in
    /// good order.
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Batch = Vec<Box<dyn QueuedCommand>>;

/// What the writer thread works with.
struct WriterThread {
    db: Connection,
    known: RowCache,
    indexes: BulkIndexes,
    log: Arc<WalSize>,
}

impl WriterThread {
    fn write(
        mut self,
        mut commands: mpsc::Receiver<Box<dyn QueuedCommand>>,
        board: &WriterChannels,
    ) {
        while let Some(first) = commands.blocking_recv() {
            if let StoreHealth::Broken(why) = board.health() {
                first.answer(&Err(StoreError::Broken(why)));
                continue;
            }
            let written = self.db.total_changes();
            let (batch, news, commit) = self.commit_batch(first, &mut commands);
            // One that wrote nothing says nothing about the disk.
            if commit.is_err() || self.db.total_changes() != written {
                board.note(commit.as_ref().map(|_| ()));
            }
            if commit.is_ok() {
                // Before anybody is answered: whoever knows that something was done finds
                // it behind the newest number.
                if let Some(event) = news.event {
                    board.event.send_replace(event);
                }
                if let Some(filing) = news.filing {
                    board.filing.send_replace(filing);
                }
                if news.letter {
                    board.letter.send_modify(|count| *count += 1);
                }
            }
            for command in batch {
                command.answer(&commit);
            }
            if commit.is_err() {
                self.forget();
                continue;
            }
            for hint in news.hints {
                let _ = board.hints.send(hint);
            }
            self.indexes.committed();
            self.log.finish(&self.db, board);
        }
    }

    /// Runs what is waiting and commits it once.
    fn commit_batch(
        &mut self,
        first: Box<dyn QueuedCommand>,
        commands: &mut mpsc::Receiver<Box<dyn QueuedCommand>>,
    ) -> (Batch, CommitEffects, Result<(), StoreError>) {
        let mut batch = vec![first];
        let mut news = CommitEffects::default();
        let result = match self.run_together(&mut batch, commands, &mut news) {
            Ok(true) => Ok(()),
            Ok(false) => {
                self.forget();
                news = CommitEffects::default();
                self.run_apart(&mut batch, &mut news)
            }
            Err(error) => Err(error),
        };
        // Neither writes anything when the batch has not: such a commit costs no sync.
        let mut result = result
            .and_then(|()| news.tally.save(&self.db))
            .and_then(|()| self.indexes.merge(&self.db))
            .and_then(|()| execute(&self.db, "COMMIT"));
        if result.is_err() && !self.db.is_autocommit() {
            // Some errors have already rolled back, this one has not.
            if let Err(error) = execute(&self.db, "ROLLBACK") {
                result = Err(error);
            }
        }
        (batch, news, result)
    }

    /// Forgets what was rolled back.
    fn forget(&mut self) {
        self.known.forget();
        self.indexes.rolled_back();
    }

    /// Runs the batch, and what arrives meanwhile, in one transaction. `false`: one
    /// was refused after it had written, and all of it is rolled back.
    fn run_together(
        &mut self,
        batch: &mut Batch,
        commands: &mut mpsc::Receiver<Box<dyn QueuedCommand>>,
        news: &mut CommitEffects,
    ) -> Result<bool, StoreError> {
        execute(&self.db, "BEGIN IMMEDIATE")?;
        let mut at = 0;
        while let Some(command) = batch.get_mut(at) {
            self.known.limit();
            let written = self.db.total_changes();
            let mut tx = self.tx(false);
            if command.run(&mut tx) {
                news.add(tx.news);
            } else if self.db.is_autocommit() {
                // SQLite gave the transaction up, as it does on a full disk.
                return Err(StoreError::DiskFull);
            } else if self.db.total_changes() != written {
                execute(&self.db, "ROLLBACK")?;
                return Ok(false);
            }
            at += 1;
            if at == batch.len()
                && at < BATCH
                && let Ok(next) = commands.try_recv()
            {
                batch.push(next);
            }
        }
        Ok(true)
    }

    /// Runs the batch so that nothing stays of a command that is refused.
    fn run_apart(&mut self, batch: &mut Batch, news: &mut CommitEffects) -> Result<(), StoreError> {
        execute(&self.db, "BEGIN IMMEDIATE")?;
        for command in batch {
            let mut tx = self.tx(true);
            savepoint(&mut tx, |tx| command.run(tx))?;
            news.add(tx.news);
        }
        Ok(())
    }

    fn tx(&mut self, careful: bool) -> Tx<'_> {
        let Self { db, known, indexes, .. } = self;
        Tx { db, known, indexes, news: CommitEffects::default(), careful }
    }
}

/// Runs `work` in a savepoint, and undoes it unless it says that it is to stay.
fn savepoint<'c>(
    tx: &mut Tx<'c>,
    work: impl FnOnce(&mut Tx<'c>) -> bool,
) -> Result<(), StoreError> {
    execute(tx.db, "SAVEPOINT command")?;
    let before = std::mem::take(&mut tx.news);
    let mark = tx.indexes.mark();
    let keep = work(tx);
    let news = std::mem::replace(&mut tx.news, before);
    if keep {
        tx.news.add(news);
    } else {
        // It may have remembered rows that are about to vanish.
        tx.known.forget();
        tx.indexes.undo(mark);
        if tx.db.is_autocommit() {
            // SQLite gave the whole transaction up, as it does on a full disk.
            return Err(StoreError::DiskFull);
        }
        execute(tx.db, "ROLLBACK TO command")?;
    }
    execute(tx.db, "RELEASE command")
}

fn execute(db: &Connection, sql: &str) -> Result<(), StoreError> {
    db.prepare_cached(sql).and_then(|mut statement| statement.raw_execute()).map_err(fault)?;
    Ok(())
}
