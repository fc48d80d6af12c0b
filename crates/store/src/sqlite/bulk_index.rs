//! Indexes on keys that come in no order, written in bulk.
//!
//! A commit writes pages, and hashes are random: an index on them that grows with
//! every message changes a page of its own for every message. So does an index that
//! keeps the lines of each conversation together, when everybody talks at once. The
//! three such indexes we need were most of the bytes of a commit.
//!
//! So the newest entries are kept in memory, and the table holds the rest. When
//! there are many, they are frozen and merged into the table in its own order, so
//! that neighbours share a page; each commit that happens anyway takes a slice, so
//! that nobody waits for the whole.
//!
//! ```text
//!   rows:       1 ─────────────── up_to ───────────── frozen_to ──────────── newest
//!   found in:       the table      │       frozen        │        fresh
//! ```
//!
//! `up_to` is stored, and raised in the commit that merges the last slice. What lies
//! beyond it is read from the indexed rows again at the next start. So a crash costs
//! nothing but the work done so far, and an entry that is merged twice is merged
//! once.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rusqlite::{Connection, Row, params};

use super::open::fault;
use super::{events, objects, sessions};
use crate::{PageRequest, StoreError};

/// Entries that make a merge worthwhile. With a million objects it puts eight of them
/// on each page it changes, and all of them take a megabyte.
pub(super) const FULL: usize = 32_768;

/// Entries that a commit merges for each one it adds. Above one, so that a merge is
/// over long before the next is due, and the memory stays small.
const PER_ADDED: usize = 4;

/// Entries that a commit merges at least, if it adds any: fewer would not fill a page.
/// A commit that adds none has no reason to wait for a merge.
const SLICE: usize = 32;

/// What tells one index from another.
#[derive(Debug)]
pub(super) struct BulkTable {
    /// What `merged` calls it.
    pub(super) name: &'static str,
    /// Adds the entry (?1, ?2) unless it is there.
    pub(super) insert: &'static str,
    /// The indexed rows beyond ?1. Their first column is the row's number.
    pub(super) beyond: &'static str,
    /// Their key.
    pub(super) key: fn(&Row<'_>) -> rusqlite::Result<i64>,
}

/// The entries of an index that its table does not have yet: keys and rows.
///
/// Look here before the first statement of a transaction. An entry leaves after the
/// commit that brings it into the table, and a snapshot that was taken before that
/// commit shows it neither here nor there.
#[derive(Debug, Default)]
pub(super) struct RecentEntries(RwLock<Entries>);

#[derive(Debug, Default)]
struct Entries {
    fresh: BTreeSet<(i64, i64)>,
    frozen: BTreeSet<(i64, i64)>,
}

impl RecentEntries {
    /// The rows with this key.
    pub(super) fn rows(&self, key: i64) -> Vec<i64> {
        let window = PageRequest { beyond: None, limit: usize::MAX, newest_first: false };
        self.page(key, &window)
    }

    /// As many rows with this key as a window shows, and in its order for each of
    /// the two sets.
    pub(super) fn page(&self, key: i64, window: &PageRequest) -> Vec<i64> {
        let entries = self.read();
        let mut rows = Vec::new();
        for set in [&entries.fresh, &entries.frozen] {
            if window.newest_first {
                let end = window.beyond.unwrap_or(i64::MAX);
                let range = set.range((key, i64::MIN)..(key, end));
                rows.extend(range.rev().take(window.limit).map(|(_, row)| *row));
            } else {
                let start = window.beyond.unwrap_or(i64::MIN);
                let range = set.range((Excluded((key, start)), Unbounded));
                let range = range.take_while(|(other, _)| *other == key);
                rows.extend(range.take(window.limit).map(|(_, row)| *row));
            }
        }
        rows
    }

    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        // Nothing is half done when somebody panics: each change is one call.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writer's side of one index.
#[derive(Debug)]
pub(super) struct BulkIndex {
    table: &'static BulkTable,
    recent: Arc<RecentEntries>,
    /// Entries that make a merge worthwhile.
    full: usize,
    /// Fresh entries that are not committed yet, to be taken back if they never are.
    uncommitted: Vec<(i64, i64)>,
    /// The last frozen entry that is in the table for good.
    merged: Option<(i64, i64)>,
    /// What this transaction merges.
    slice: Option<MergeSlice>,
    /// Rows up to this one are in the table, or frozen.
    frozen_to: i64,
}

#[derive(Debug)]
struct MergeSlice {
    last: (i64, i64),
    is_last: bool,
}

impl BulkIndex {
    /// Reads what the table does not have yet.
    fn open(db: &Connection, table: &'static BulkTable, full: usize) -> Result<Self, StoreError> {
        let up_to = db
            .query_row("SELECT up_to FROM merged WHERE name = ?1", [table.name], |row| row.get(0))
            .map_err(fault)?;
        let mut statement = db.prepare(table.beyond).map_err(fault)?;
        let rows = statement
            .query_map([up_to], |row| Ok(((table.key)(row)?, row.get(0)?)))
            .map_err(fault)?;
        let fresh = rows.collect::<rusqlite::Result<_>>().map_err(fault)?;
        Ok(Self {
            table,
            recent: Arc::new(RecentEntries(RwLock::new(Entries {
                fresh,
                frozen: BTreeSet::new(),
            }))),
            full,
            uncommitted: Vec::new(),
            merged: None,
            slice: None,
            frozen_to: up_to,
        })
    }

    /// What those who look something up share with the writer.
    pub(super) fn recent(&self) -> &Arc<RecentEntries> {
        &self.recent
    }

    /// Enters a row that was just stored.
    pub(super) fn add(&mut self, db: &Connection, key: i64, row: i64) -> Result<(), StoreError> {
        // The next start does not read rows below the line again.
        if row <= self.frozen_to {
            return self.add_now(db, key, row);
        }
        if self.recent.write().fresh.insert((key, row)) {
            self.uncommitted.push((key, row));
        }
        Ok(())
    }

    /// Enters a row under a key that can't be told from the row itself.
    pub(super) fn add_now(&self, db: &Connection, key: i64, row: i64) -> Result<(), StoreError> {
        db.prepare_cached(self.table.insert)
            .and_then(|mut statement| statement.execute(params![key, row]))
            .map_err(fault)?;
        Ok(())
    }

    /// Takes back what was entered since there were `mark` uncommitted entries.
    fn undo(&mut self, mark: usize) {
        let mut entries = self.recent.write();
        for entry in self.uncommitted.drain(mark..) {
            entries.fresh.remove(&entry);
        }
    }

    fn merge(&mut self, db: &Connection) -> Result<(), StoreError> {
        if self.uncommitted.is_empty() {
            return Ok(());
        }
        let entries = self.recent.read();
        let from = self.merged.map_or(Unbounded, Excluded);
        let mut rest = entries.frozen.range((from, Unbounded)).copied();
        let count = SLICE.max(PER_ADDED.saturating_mul(self.uncommitted.len()));
        let mut last = None;
        for (key, row) in rest.by_ref().take(count) {
            self.add_now(db, key, row)?;
            last = Some((key, row));
        }
        let is_last = rest.next().is_none();
        drop(entries);
        let Some(last) = last else { return Ok(()) };
        if is_last {
            let raise = "UPDATE merged SET up_to = ?2 WHERE name = ?1";
            db.prepare_cached(raise)
                .and_then(|mut s| s.execute(params![self.table.name, self.frozen_to]))
                .map_err(fault)?;
        }
        self.slice = Some(MergeSlice { last, is_last });
        Ok(())
    }

    fn committed(&mut self) {
        self.uncommitted.clear();
        match self.slice.take() {
            Some(MergeSlice { is_last: true, .. }) => {
                self.merged = None;
                self.recent.write().frozen = BTreeSet::new();
            }
            Some(MergeSlice { last, .. }) => self.merged = Some(last),
            None => {}
        }
        let entries = self.recent.read();
        if entries.frozen.is_empty() && entries.fresh.len() >= self.full {
            drop(entries);
            self.freeze();
        }
    }

    fn rolled_back(&mut self) {
        self.undo(0);
        self.slice = None;
    }

    fn freeze(&mut self) {
        let mut entries = self.recent.write();
        entries.frozen = std::mem::take(&mut entries.fresh);
        let newest = entries.frozen.iter().map(|(_, row)| *row).max();
        self.frozen_to = self.frozen_to.max(newest.unwrap_or_default());
    }
}

/// Every index that is written in bulk, on the writer's side.
#[derive(Debug)]
pub(super) struct BulkIndexes {
    /// Objects by hash.
    pub(super) hashes: BulkIndex,
    /// What was heard, by external id.
    pub(super) heard: BulkIndex,
    /// Records by conversation.
    pub(super) timeline: BulkIndex,
}

impl BulkIndexes {
    pub(super) fn open(db: &Connection, full: usize) -> Result<Self, StoreError> {
        Ok(Self {
            hashes: BulkIndex::open(db, &objects::HASHES, full)?,
            heard: BulkIndex::open(db, &events::HEARD, full)?,
            timeline: BulkIndex::open(db, &sessions::TIMELINE, full)?,
        })
    }

    fn each(&mut self) -> [&mut BulkIndex; 3] {
        [&mut self.hashes, &mut self.heard, &mut self.timeline]
    }

    /// A point in the transaction to which [`Self::undo`] can go back.
    pub(super) fn mark(&self) -> [usize; 3] {
        [&self.hashes, &self.heard, &self.timeline].map(|index| index.uncommitted.len())
    }

    /// Takes back what was entered since `mark`: its rows are gone.
    pub(super) fn undo(&mut self, mark: [usize; 3]) {
        for (index, mark) in self.each().into_iter().zip(mark) {
            index.undo(mark);
        }
    }

    /// Merges a slice of each that was added to, before the commit.
    pub(super) fn merge(&mut self, db: &Connection) -> Result<(), StoreError> {
        self.each().into_iter().try_for_each(|index| index.merge(db))
    }

    /// The transaction is on disk: what it merged may leave the memory, and what has
    /// become too much is frozen.
    pub(super) fn committed(&mut self) {
        self.each().into_iter().for_each(BulkIndex::committed);
    }

    /// Nothing of the transaction stays. What was merged before it does.
    pub(super) fn rolled_back(&mut self) {
        self.each().into_iter().for_each(BulkIndex::rolled_back);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sqlite::objects::hash8;
    use crate::sqlite::open;

    /// A database with an index that merges at four entries.
    struct Bench {
        db: Connection,
        hashes: BulkIndex,
        _dir: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let db = open::writer(&dir.path().join("monoco.db")).unwrap();
            let hashes = BulkIndex::open(&db, &objects::HASHES, 4).unwrap();
            Self { db, hashes, _dir: dir }
        }

        /// What a start after a crash finds.
        fn crash(&mut self) {
            self.hashes = BulkIndex::open(&self.db, &objects::HASHES, 4).unwrap();
        }

        fn begin(&self) {
            self.db.execute_batch("BEGIN").unwrap();
        }

        fn add(&mut self, hash: [u8; 32]) -> i64 {
            let sql = "INSERT INTO objects (hash, kind) VALUES (?1, 'cymsg')";
            self.db.execute(sql, [hash]).unwrap();
            let seq = self.db.last_insert_rowid();
            self.hashes.add(&self.db, hash8(&hash), seq).unwrap();
            seq
        }

        fn commit(&mut self) {
            self.hashes.merge(&self.db).unwrap();
            self.db.execute_batch("COMMIT").unwrap();
            self.hashes.committed();
        }

        fn rollback(&mut self) {
            self.db.execute_batch("ROLLBACK").unwrap();
            self.hashes.rolled_back();
        }

        /// Adds one object in a commit of its own.
        fn commit_one(&mut self, hash: [u8; 32]) -> i64 {
            self.begin();
            let seq = self.add(hash);
            self.commit();
            seq
        }

        fn find(&self, hash: [u8; 32]) -> Option<i64> {
            let id =
                monoco_core::object::ObjId::from_parts(monoco_core::object::ObjKind::Msg, hash);
            crate::sqlite::objects::find(&self.db, self.hashes.recent(), &id).unwrap()
        }

        fn in_table(&self) -> i64 {
            self.db.query_row("SELECT count(*) FROM hashes", [], |row| row.get(0)).unwrap()
        }

        fn up_to(&self) -> i64 {
            self.db
                .query_row("SELECT up_to FROM merged WHERE name = 'hashes'", [], |row| row.get(0))
                .unwrap()
        }
    }

    /// A hash whose indexed part is `key`, and the rest `rest`.
    fn hash(key: i64, rest: u8) -> [u8; 32] {
        let mut hash = [rest; 32];
        hash[..8].copy_from_slice(&key.to_be_bytes());
        hash
    }

    /// Keys that do not come in order, as hashes do not.
    fn scattered(n: i64) -> [u8; 32] {
        hash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed()), 7)
    }

    #[test]
    fn everything_is_found_once_whenever_it_crashes() {
        for crash_every in [1, 2, 3, 5, 7, 11, 1000] {
            let mut bench = Bench::new();
            let mut known = BTreeMap::new();
            for n in 1..=200 {
                assert_eq!(bench.find(scattered(n)), None);
                known.insert(n, bench.commit_one(scattered(n)));
                if n % crash_every == 0 {
                    bench.crash();
                }
                for (n, seq) in &known {
                    assert_eq!(bench.find(scattered(*n)), Some(*seq), "crash every {crash_every}");
                }
            }
            let twice =
                "SELECT count(*) FROM (SELECT 1 FROM hashes GROUP BY object HAVING count(*) > 1)";
            let twice: i64 = bench.db.query_row(twice, [], |row| row.get(0)).unwrap();
            assert_eq!(twice, 0);
        }
    }

    #[test]
    fn a_merge_takes_several_commits_and_nothing_is_lost_meanwhile() {
        let mut bench = Bench::new();
        bench.hashes.full = 200;
        bench.begin();
        for n in 1..=200 {
            bench.add(scattered(n));
        }
        bench.commit();
        for commit in 1..=7 {
            assert_eq!(bench.up_to(), 0, "not complete before commit {commit}");
            assert_eq!(bench.find(scattered(77)), Some(77));
            bench.commit_one(scattered(1000 + commit));
            assert_eq!(bench.in_table(), (commit * 32).min(200));
        }
        assert_eq!(bench.up_to(), 200);
        assert!(bench.hashes.recent.read().frozen.is_empty());
        assert_eq!(bench.hashes.recent.read().fresh.len(), 7);
        for n in 1..=200 {
            assert_eq!(bench.find(scattered(n)), Some(n));
        }
        bench.crash();
        assert_eq!(bench.hashes.recent.read().fresh.len(), 7, "only what the table has not");
        assert_eq!(bench.find(scattered(1007)), Some(207));
    }

    /// However much is added at once, and however long nothing is.
    #[test]
    fn a_merge_keeps_up_with_what_is_added() {
        let mut bench = Bench::new();
        bench.hashes.full = 100;
        for commit in 0..50 {
            bench.begin();
            for n in 0..60 {
                bench.add(scattered(commit * 60 + n));
            }
            bench.commit();
            let entries = bench.hashes.recent.read();
            assert!(entries.fresh.len() + entries.frozen.len() <= 240, "{commit}");
        }
        let merged = bench.in_table();
        bench.begin();
        bench.commit();
        assert_eq!(bench.in_table(), merged, "who adds nothing merges nothing");
    }

    #[test]
    fn what_was_rolled_back_is_not_found_and_its_row_may_be_reused() {
        let mut bench = Bench::new();
        bench.commit_one(scattered(1));
        bench.begin();
        let row = bench.add(scattered(2));
        bench.rollback();
        assert_eq!(bench.find(scattered(2)), None);
        assert_eq!(bench.commit_one(scattered(3)), row);
        assert_eq!(bench.find(scattered(2)), None);
        assert_eq!(bench.find(scattered(3)), Some(row));
        assert_eq!(bench.commit_one(scattered(2)), row + 1);
        assert_eq!(bench.find(scattered(2)), Some(row + 1));
    }

    #[test]
    fn a_slice_that_was_rolled_back_is_merged_again() {
        let mut bench = Bench::new();
        for n in 1..=4 {
            bench.commit_one(scattered(n));
        }
        bench.begin();
        bench.add(scattered(5));
        bench.hashes.merge(&bench.db).unwrap();
        bench.rollback();
        assert_eq!((bench.in_table(), bench.up_to()), (0, 0));
        assert_eq!(bench.find(scattered(2)), Some(2));
        bench.commit_one(scattered(5));
        assert_eq!((bench.in_table(), bench.up_to()), (4, 4));
        assert_eq!(bench.find(scattered(2)), Some(2));
        assert_eq!(bench.find(scattered(5)), Some(5));
    }

    /// An entry can only be wrong if something else is. It must not hide anything.
    #[test]
    fn a_wrong_entry_is_seen_through() {
        let mut bench = Bench::new();
        let row = bench.commit_one(scattered(1));
        bench.hashes.recent.write().fresh.insert((hash8(&scattered(2)), row));
        assert_eq!(bench.find(scattered(2)), None);
        let second = bench.commit_one(scattered(2));
        assert_eq!(bench.find(scattered(2)), Some(second));
        assert_eq!(bench.find(scattered(1)), Some(row));
    }

    #[test]
    fn objects_that_share_a_key_are_told_apart() {
        let mut bench = Bench::new();
        let mut known = Vec::new();
        for rest in 1..=20 {
            assert_eq!(bench.find(hash(5, rest)), None);
            known.push((rest, bench.commit_one(hash(5, rest))));
            // Some more, so that there are merges in between.
            bench.commit_one(scattered(i64::from(rest)));
            if rest % 6 == 0 {
                bench.crash();
            }
            for (rest, seq) in &known {
                assert_eq!(bench.find(hash(5, *rest)), Some(*seq), "{rest}");
            }
        }
    }

    /// Objects are never deleted today. Should the newest be, its row is given out
    /// again below the line that the next start reads from.
    #[test]
    fn a_row_that_is_used_again_below_the_line_is_found_after_a_crash() {
        let mut bench = Bench::new();
        for n in 1..=5 {
            bench.commit_one(scattered(n));
        }
        assert_eq!(bench.up_to(), 4);
        bench.db.execute("DELETE FROM objects WHERE seq >= 4", []).unwrap();
        assert_eq!(bench.commit_one(scattered(9)), 4);
        bench.crash();
        assert_eq!(bench.find(scattered(9)), Some(4));
        assert_eq!(bench.find(scattered(4)), None);
    }
}
