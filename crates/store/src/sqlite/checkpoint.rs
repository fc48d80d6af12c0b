//! Moves the log into the database, beside the writer.
//!
//! `PASSIVE` copies what it can without making anybody wait. While commits keep
//! coming there is always something left over, so that the log would grow for
//! ever; once it is large, `RESTART` holds the writer up for the little that
//! `PASSIVE` has left. The log's file is not cut: writing over it again is
//! cheaper than letting it grow anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use rusqlite::Connection;

use super::open::fault;
use super::writer::Board;
use crate::StoreError;

/// Pages in the log that make a checkpoint worth its sync.
const WORTHWHILE: i64 = 1_000;

/// Pages in the log that make holding the writer up worthwhile.
const LARGE: i64 = 4_000;

#[derive(Debug)]
pub(super) struct Checkpointer {
    wake: Option<SyncSender<()>>,
    thread: Option<thread::JoinHandle<()>>,
    /// Pages of the log that the last checkpoint has moved.
    moved: Arc<AtomicI64>,
}

impl Checkpointer {
    pub(super) fn start(db: Connection, board: Arc<Board>) -> std::io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let moved = Arc::new(AtomicI64::new(0));
        let progress = Arc::clone(&moved);
        let thread = thread::Builder::new()
            .name("store-checkpoint".to_owned())
            .spawn(move || run(&db, &woken, &progress, &board))?;
        Ok(Self { wake: Some(wake), thread: Some(thread), moved })
    }

    /// Has `writer` tell it how long the log is after each commit.
    pub(super) fn watch(&self, writer: &mut Connection) -> Result<(), StoreError> {
        let (wake, moved) = (self.wake.clone(), Arc::clone(&self.moved));
        let hook = move |_: &mut rusqlite::hooks::Wal, pages: i32| {
            let pages = i64::from(pages);
            // The log started over.
            moved.fetch_min(pages, Ordering::Relaxed);
            if pages - moved.load(Ordering::Relaxed) >= WORTHWHILE
                && let Some(wake) = &wake
            {
                // A full channel means that it is at it already.
                let _ = wake.try_send(());
            }
            Ok(())
        };
        writer.wal_hook(Some(hook)).map_err(fault)
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

fn run(db: &Connection, woken: &Receiver<()>, progress: &AtomicI64, board: &Board) {
    while woken.recv().is_ok() {
        let result = checkpoint(db, "PRAGMA wal_checkpoint(PASSIVE)").and_then(|(log, moved)| {
            progress.store(moved, Ordering::Relaxed);
            if log < LARGE {
                return Ok(());
            }
            checkpoint(db, "PRAGMA wal_checkpoint(RESTART)").map(|_| ())
        });
        match result {
            Ok(()) => {}
            // The pages it was to save are still in the log, but the log is about
            // to be written over.
            Err(error @ StoreError::Broken(_)) => board.note(Err(&error)),
            // A full disk or a busy reader: the log keeps everything meanwhile.
            Err(error) => tracing::warn!(%error, "checkpoint put off"),
        }
    }
}

/// Returns how many pages the log has, and how many of them were moved.
fn checkpoint(db: &Connection, sql: &str) -> Result<(i64, i64), StoreError> {
    db.query_row(sql, [], |row| Ok((row.get(1)?, row.get(2)?))).map_err(fault)
}
