//! Moves the log into the database, beside the writer.
//!
//! `PASSIVE` copies what it can without making anybody wait. While commits keep
//! coming there is always something left over, and the log, which starts over only
//! once all of it is moved, would grow for ever. So when it is large, the little that
//! the last pass has left is moved by the writer itself, between two commits.
//!
//! SQLite's own way for this, `RESTART`, takes the writer's lock away from it, with
//! both of them sleeping longer and longer until they get it: every few seconds
//! everybody waited for a quarter of a second and more.
//!
//! The log's file is not cut: writing over it again is cheaper than letting it grow
//! anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rusqlite::Connection;

use super::open::fault;
use super::writer::WriterChannels;
use crate::StoreError;

/// Pages in the log that make a checkpoint worth its sync.
const WORTHWHILE: i64 = 1_000;

/// Pages in the log that make it worthwhile to start it over.
const LARGE: i64 = 4_000;

/// Pages that the writer may be left with: a millisecond's work.
const LITTLE: i64 = 200;

/// Passes over what the last one left, at most. Each is shorter than the one before,
/// unless the disk does not keep up.
const PASSES: usize = 4;

#[derive(Debug)]
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    log: Arc<WalSize>,
}

/// What the writer and the checkpointer know of the log.
#[derive(Debug, Default)]
pub(super) struct WalSize {
    /// Pages it had after the last commit.
    pages: AtomicI64,
    /// How many of them are in the database.
    moved: AtomicI64,
    /// Whether the writer is to move the rest.
    finish: AtomicBool,
}

impl Checkpointer {
    pub(super) fn start(db: Connection, board: Arc<WriterChannels>) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let log = Arc::new(WalSize::default());
        let shared = Arc::clone(&log);
        let thread = thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || run(&db, &woken, &shared, &board))?;
        Ok(Self { wake: Some(wake), thread: Some(thread), log })
    }

    /// Has `writer` tell it how long the log is after each commit. Returns what the
    /// writer is to look at between two commits.
    pub(super) fn watch(&self, writer: &mut Connection) -> Result<Arc<WalSize>, StoreError> {
        let (wake, log) = (self.wake.clone(), Arc::clone(&self.log));
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            log.pages.store(i64::from(pages), Ordering::Relaxed);
            // Fewer than were moved: the log started over.
            log.moved.fetch_min(i64::from(pages), Ordering::Relaxed);
            if log.left() >= WORTHWHILE
                && let Some(wake) = &wake
            {
                // A full channel means that it is at it already.
                let _ = wake.try_send(());
            }
            Ok(())
        };
        writer.wal_hook(Some(hook)).map_err(fault)?;
        Ok(Arc::clone(&self.log))
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
    /// Moves the rest of the log, when that is the writer's turn to do.
    pub(super) fn finish(&self, db: &Connection, board: &WriterChannels) {
        if self.finish.swap(false, Ordering::Relaxed) {
            note(self.pass(db), board);
        }
    }

    /// Moves what can be moved.
    fn pass(&self, db: &Connection) -> Result<(), StoreError> {
        let moved: i64 =
            db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(2)).map_err(fault)?;
        // It is -1 when the other one is at it.
        if moved >= 0 {
            self.moved.store(moved, Ordering::Relaxed);
        }
        Ok(())
    }

    fn left(&self) -> i64 {
        self.pages.load(Ordering::Relaxed) - self.moved.load(Ordering::Relaxed)
    }
}

fn run(db: &Connection, woken: &Receiver<()>, log: &WalSize, board: &WriterChannels) {
    while woken.recv().is_ok() {
        note(move_most(db, log), board);
    }
}

fn move_most(db: &Connection, log: &WalSize) -> Result<(), StoreError> {
    for _ in 0..PASSES {
        log.pass(db)?;
        if log.pages.load(Ordering::Relaxed) < LARGE {
            return Ok(());
        }
        if log.left() <= LITTLE {
            break;
        }
    }
    log.finish.store(true, Ordering::Relaxed);
    Ok(())
}

fn note(result: Result<(), StoreError>, board: &WriterChannels) {
    match result {
        Ok(()) => {}
        // The pages it was to save are still in the log, but the log is about to be
        // written over.
        Err(error @ StoreError::Broken(_)) => board.note(Err(&error)),
        // A full disk or a busy reader: the log keeps everything meanwhile.
        Err(error) => tracing::warn!(%error, "checkpoint put off"),
    }
}
