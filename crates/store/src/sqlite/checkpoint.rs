//! The checkpointer thread: copies the write-ahead log into the database file.
//!
//! `PASSIVE` copies what it can without blocking other connections. While commits keep coming,
//! there is always a rest, and the log would grow without limit, because it restarts only when
//! all of it is copied. So when the log is large, the writer thread copies the small rest
//! between two commits.
//!
//! SQLite's own `RESTART` mode takes the writer's lock, and both sides sleep longer and longer
//! until they get it: measured, all commands waited for 250 ms and more every few seconds.
//!
//! The log file is not truncated, because overwriting it is cheaper than growing it again.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rusqlite::Connection;

use super::open::db_error;
use crate::sql::db::Db;
use crate::sql::writer::WriterChannels;
use crate::{StoreError, StoreResult};

/// Uncopied pages at which a checkpoint starts. Each checkpoint costs a sync.
const MIN_PAGES: i64 = 1_000;

/// Pages in the log at which the log is restarted.
const RESTART_PAGES: i64 = 4_000;

/// Pages that the writer thread may copy: about 1 ms of work.
const MAX_WRITER_PAGES: i64 = 200;

/// Maximum number of passes. Each pass is shorter than the one before, unless the disk is slower
/// than the commits.
const MAX_PASSES: usize = 4;

#[derive(Debug)]
pub(crate) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    wal: Arc<WalSize>,
}

/// The size of the log, shared by the writer and the checkpointer.
#[derive(Debug, Default)]
pub(crate) struct WalSize {
    /// Pages after the last commit.
    pages: AtomicI64,
    /// Pages that are copied.
    copied: AtomicI64,
    /// Whether the writer thread should copy the rest.
    finish: AtomicBool,
    /// Held by the checkpointer while it copies, and by the writer thread while it compacts.
    copying: Mutex<()>,
}

impl Checkpointer {
    /// Starts the thread with its own connection.
    pub(crate) fn start(db: Connection, channels: Arc<WriterChannels>) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let wal = Arc::new(WalSize::default());
        let shared = Arc::clone(&wal);
        let thread = thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || run(&db, &woken, &shared, &channels))?;
        Ok(Self { wake: Some(wake), thread: Some(thread), wal })
    }

    /// Sets a hook on the writer's connection that wakes this thread when the log has grown.
    /// Returns the size of the log for the writer thread.
    pub(crate) fn watch(&self, writer: &mut Db) -> StoreResult<Arc<WalSize>> {
        let (wake, wal) = (self.wake.clone(), Arc::clone(&self.wal));
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            wal.pages.store(i64::from(pages), Ordering::Relaxed);
            // Fewer pages than were copied: the log has restarted.
            wal.copied.fetch_min(i64::from(pages), Ordering::Relaxed);
            if wal.uncopied() >= MIN_PAGES
                && let Some(wake) = &wake
            {
                // A full channel means that a checkpoint is pending already.
                let _ = wake.try_send(());
            }
            Ok(())
        };
        if let Some(writer) = writer.as_sqlite_mut() {
            writer.wal_hook(Some(hook)).map_err(db_error)?;
        }
        Ok(Arc::clone(&self.wal))
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        drop(self.wake.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl WalSize {
    /// Copies the rest of the log, if the checkpointer has requested it. Called by the writer
    /// thread between two commits.
    pub(crate) fn finish(&self, db: &Connection, channels: &WriterChannels) {
        if self.finish.swap(false, Ordering::Relaxed) {
            report(self.copy(db), channels);
        }
    }

    /// Rewrites the database without its unused parts, and empties the log. Called by the writer
    /// thread between two commits.
    ///
    /// `secure_delete` would not be enough: when SQLite moves rows to another page, it can leave
    /// their old copies in the unused part of the page.
    pub(crate) fn compact(&self, db: &Connection, path: &Path) -> StoreResult<()> {
        // SQLite does not wait for another checkpoint.
        let _lock = self.copying.lock().unwrap_or_else(PoisonError::into_inner);
        vacuum(db, path)?;
        let busy: bool = db
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0))
            .map_err(db_error)?;
        if busy {
            let why =
                "another program reads the database, such as a backup; try again when it is done";
            return Err(StoreError::Unavailable(why.to_owned()));
        }
        Ok(())
    }

    /// Copies as many pages as possible without waiting.
    fn copy(&self, db: &Connection) -> StoreResult<()> {
        let copied: i64 = db
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(2))
            .map_err(db_error)?;
        // -1 while the other thread runs a checkpoint.
        if copied >= 0 {
            self.copied.store(copied, Ordering::Relaxed);
        }
        Ok(())
    }

    fn uncopied(&self) -> i64 {
        self.pages.load(Ordering::Relaxed) - self.copied.load(Ordering::Relaxed)
    }
}

fn run(db: &Connection, woken: &Receiver<()>, wal: &WalSize, channels: &WriterChannels) {
    while woken.recv().is_ok() {
        report(copy_most(db, wal), channels);
    }
}

fn copy_most(db: &Connection, wal: &WalSize) -> StoreResult<()> {
    let _lock = wal.copying.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..MAX_PASSES {
        wal.copy(db)?;
        if wal.pages.load(Ordering::Relaxed) < RESTART_PAGES {
            return Ok(());
        }
        if wal.uncopied() <= MAX_WRITER_PAGES {
            break;
        }
    }
    wal.finish.store(true, Ordering::Relaxed);
    Ok(())
}

/// Rewrites a database without its unused parts.
pub(crate) fn vacuum(db: &Connection, path: &Path) -> StoreResult<()> {
    // The temporary copy is as private as the database, and too large for memory.
    let dir = path.parent().unwrap_or(path).to_string_lossy().replace('\'', "''");
    let compacted = db.execute_batch(&format!(
        "PRAGMA temp_store_directory = '{dir}'; PRAGMA temp_store = FILE; VACUUM;"
    ));
    db.execute_batch("PRAGMA temp_store = MEMORY").map_err(db_error)?;
    compacted.map_err(db_error)
}

fn report(result: StoreResult<()>, channels: &WriterChannels) {
    match result {
        Ok(()) => {}
        // The pages are still in the log, but the log is about to be overwritten.
        Err(error @ StoreError::Broken(_)) => channels.record_health(Err(&error)),
        // A full disk or a busy reader. The log keeps the pages.
        Err(error) => tracing::warn!(%error, "checkpoint failed; it is tried again later"),
    }
}
