//! Bulk indexes: indexes with random keys, written in bulk.
//!
//! A commit writes whole pages. An index on a hash changes one page per message, because hashes
//! are random; so does an index that groups records by conversation, when many conversations are
//! active. Written one by one, the indexes of this kind were most of the bytes of a commit.
//!
//! So the newest entries are kept in memory, and the table has the rest. When there are many,
//! they are frozen and merged into the table in the order of their keys, so that neighbours share
//! a page. Each commit merges only a slice, so that no command waits for the whole merge.
//!
//! ```text
//!   rows:       1 ─────────────── up_to ───────────── frozen_to ──────────── newest
//!   found in:       the table      │       frozen        │        fresh
//! ```
//!
//! `up_to` is stored, and raised in the commit that merges the last slice. At start, the entries
//! beyond it are read from the indexed rows. So a crash only loses merge work, and an entry that
//! is merged twice is in the table once.

use std::collections::BTreeSet;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::db::{Db, Row, RowResult, params};
use super::{email, external_ids, objects, rows, sessions};
use crate::{PageRequest, StoreResult};

/// Entries at which a merge starts. With a million objects, a merge of this size puts eight
/// entries on each page it changes; in memory they take a megabyte.
pub(crate) const MERGE_SIZE: usize = 32_768;

/// Entries that a commit merges for each entry it adds. More than one, so that a merge ends long
/// before the next one starts.
const MERGED_PER_ADDED: usize = 4;

/// Entries that a commit merges at least, if it adds any: fewer would not fill a page.
const MIN_SLICE: usize = 32;

/// Definition of one bulk index.
#[derive(Debug)]
pub(super) struct BulkTable {
    /// Its name in `bulk_index_progress`.
    pub(super) name: &'static str,
    /// Inserts the entry (?1, ?2) unless it exists.
    pub(super) insert: &'static str,
    /// Selects the indexed rows beyond ?1. The first column is the row's number.
    pub(super) rows_after: &'static str,
    /// Reads the key from such a row.
    pub(super) key: fn(&Row<'_>) -> RowResult<i64>,
    /// Whether it is a view on PostgreSQL, which has an index on the rows.
    pub(super) is_postgres_view: bool,
}

/// The entries of an index that are not in its table yet, as pairs of key and row.
///
/// Must be read before the first statement of a transaction. An entry is removed after the commit
/// that merges it into the table; a snapshot from before that commit would find it in neither.
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
        let all = PageRequest { beyond: None, limit: usize::MAX, newest_first: false };
        self.page(key, &all)
    }

    /// The rows with this key that can be on a page. Fresh and frozen rows are not merged.
    pub(super) fn page(&self, key: i64, page: &PageRequest) -> Vec<i64> {
        let entries = self.read();
        let mut rows = Vec::new();
        for set in [&entries.fresh, &entries.frozen] {
            if page.newest_first {
                let end = page.beyond.unwrap_or(i64::MAX);
                let range = set.range((key, i64::MIN)..(key, end));
                rows.extend(range.rev().take(page.limit).map(|(_, row)| *row));
            } else {
                let start = page.beyond.unwrap_or(i64::MIN);
                let range = set.range((Excluded((key, start)), Unbounded));
                let range = range.take_while(|(other, _)| *other == key);
                rows.extend(range.take(page.limit).map(|(_, row)| *row));
            }
        }
        rows
    }

    /// Rows whose keys are in a range, at most `limit` fresh and `limit` frozen ones.
    pub(super) fn rows_between(&self, low: i64, high: i64, limit: usize) -> Vec<i64> {
        let entries = self.read();
        let sets = [&entries.fresh, &entries.frozen].into_iter();
        let range = |set: &BTreeSet<(i64, i64)>| {
            let range = set.range((low, i64::MIN)..=(high, i64::MAX)).take(limit);
            range.map(|(_, row)| *row).collect::<Vec<_>>()
        };
        sets.flat_map(range).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        // A panic cannot leave a partial change, because each change is one call.
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
    /// Entries at which a merge starts.
    merge_size: usize,
    /// Fresh entries of the current transaction, removed on a rollback.
    uncommitted: Vec<(i64, i64)>,
    /// The last frozen entry that is committed to the table.
    merged: Option<(i64, i64)>,
    /// The slice that the current transaction merges.
    slice: Option<MergeSlice>,
    /// Rows up to this one are in the table or frozen.
    frozen_to: i64,
}

#[derive(Debug)]
struct MergeSlice {
    last: (i64, i64),
    is_last: bool,
}

impl BulkIndex {
    /// Reads the entries that are not in the table yet. PostgreSQL has none: couriers do not see
    /// each other's memory, so that every entry is added to the table at once.
    fn open(db: &Db, table: &'static BulkTable, merge_size: usize) -> StoreResult<Self> {
        if db.as_postgres().is_some() {
            return Ok(Self {
                table,
                recent: Arc::default(),
                merge_size,
                uncommitted: Vec::new(),
                merged: None,
                slice: None,
                frozen_to: i64::MAX,
            });
        }
        let sql = "SELECT up_to FROM bulk_index_progress WHERE name = ?1";
        let up_to = rows::one(db, sql, [table.name], |row| row.get(0))?;
        let fresh =
            rows::list_undamaged(db, table.name, usize::MAX, table.rows_after, [up_to], |row| {
                Ok(((table.key)(row)?, row.get(0)?))
            })?;
        let fresh = fresh.into_iter().collect();
        let entries = Entries { fresh, frozen: BTreeSet::new() };
        Ok(Self {
            table,
            recent: Arc::new(RecentEntries(RwLock::new(entries))),
            merge_size,
            uncommitted: Vec::new(),
            merged: None,
            slice: None,
            frozen_to: up_to,
        })
    }

    /// The entries in memory, shared with readers.
    pub(super) fn recent(&self) -> &Arc<RecentEntries> {
        &self.recent
    }

    /// Adds the entry of a row that was just inserted.
    pub(super) fn add(&mut self, db: &Db, key: i64, row: i64) -> StoreResult<()> {
        if self.table.is_postgres_view && db.as_postgres().is_some() {
            return Ok(());
        }
        // Rows up to `frozen_to` are not read again at the next start.
        if row <= self.frozen_to {
            return self.add_to_table(db, key, row);
        }
        if self.recent.write().fresh.insert((key, row)) {
            self.uncommitted.push((key, row));
        }
        Ok(())
    }

    /// Adds an entry to the table at once. Needed for a key that cannot be derived from the row.
    pub(super) fn add_to_table(&self, db: &Db, key: i64, row: i64) -> StoreResult<()> {
        rows::execute(db, self.table.insert, [key, row])?;
        Ok(())
    }

    /// Removes the entries that were added since there were `mark` uncommitted ones.
    fn undo(&mut self, mark: usize) {
        let mut entries = self.recent.write();
        for entry in self.uncommitted.drain(mark..) {
            entries.fresh.remove(&entry);
        }
    }

    fn merge(&mut self, db: &Db) -> StoreResult<()> {
        if self.uncommitted.is_empty() {
            return Ok(());
        }
        let entries = self.recent.read();
        let from = self.merged.map_or(Unbounded, Excluded);
        let mut rest = entries.frozen.range((from, Unbounded)).copied();
        let count = MIN_SLICE.max(MERGED_PER_ADDED.saturating_mul(self.uncommitted.len()));
        let mut last = None;
        for (key, row) in rest.by_ref().take(count) {
            self.add_to_table(db, key, row)?;
            last = Some((key, row));
        }
        let is_last = rest.next().is_none();
        drop(entries);
        let Some(last) = last else { return Ok(()) };
        if is_last {
            let sql = "UPDATE bulk_index_progress SET up_to = ?2 WHERE name = ?1";
            rows::execute(db, sql, params![self.table.name, self.frozen_to])?;
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
        if entries.frozen.is_empty() && entries.fresh.len() >= self.merge_size {
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

/// All bulk indexes, on the writer's side.
#[derive(Debug)]
pub(super) struct BulkIndexes {
    pub(super) hashes: BulkIndex,
    /// External ids by hash.
    pub(super) external_ids: BulkIndex,
    pub(super) timeline: BulkIndex,
    /// Mails of e-mail accounts by hash.
    pub(super) email_hashes: BulkIndex,
}

impl BulkIndexes {
    pub(super) fn open(db: &Db, merge_size: usize) -> StoreResult<Self> {
        Ok(Self {
            hashes: BulkIndex::open(db, &objects::HASHES, merge_size)?,
            external_ids: BulkIndex::open(db, &external_ids::EXTERNAL_IDS, merge_size)?,
            timeline: BulkIndex::open(db, &sessions::TIMELINE, merge_size)?,
            email_hashes: BulkIndex::open(db, &email::register::EMAIL_HASHES, merge_size)?,
        })
    }

    fn each(&mut self) -> [&mut BulkIndex; 4] {
        [&mut self.hashes, &mut self.external_ids, &mut self.timeline, &mut self.email_hashes]
    }

    /// A savepoint for [`Self::undo`].
    pub(super) fn mark(&self) -> [usize; 4] {
        [&self.hashes, &self.external_ids, &self.timeline, &self.email_hashes]
            .map(|index| index.uncommitted.len())
    }

    /// Removes the entries that were added since `mark`, because their rows are rolled back.
    pub(super) fn undo(&mut self, mark: [usize; 4]) {
        for (index, mark) in self.each().into_iter().zip(mark) {
            index.undo(mark);
        }
    }

    /// Merges a slice of each index that has new entries. Called before the commit.
    pub(super) fn merge(&mut self, db: &Db) -> StoreResult<()> {
        self.each().into_iter().try_for_each(|index| index.merge(db))
    }

    /// Removes merged entries from memory and freezes full indexes. Called after the commit.
    pub(super) fn committed(&mut self) {
        self.each().into_iter().for_each(BulkIndex::committed);
    }

    /// Removes the entries of a transaction that was rolled back.
    pub(super) fn rolled_back(&mut self) {
        self.each().into_iter().for_each(BulkIndex::rolled_back);
    }
}

/// Adds the entries that are only in memory to the tables, in the transaction of the caller.
/// Needed before the tables are copied. PostgreSQL has no such entries.
pub(crate) fn merge_all(db: &Db) -> StoreResult<()> {
    if db.as_postgres().is_some() {
        return Ok(());
    }
    for index in BulkIndexes::open(db, MERGE_SIZE)?.each() {
        let entries = index.recent.read();
        let mut up_to = index.frozen_to;
        for (key, row) in &entries.fresh {
            index.add_to_table(db, *key, *row)?;
            up_to = up_to.max(*row);
        }
        let sql = "UPDATE bulk_index_progress SET up_to = ?2 WHERE name = ?1";
        rows::execute(db, sql, params![index.table.name, up_to])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sql::db::TxControl;
    use crate::sql::objects::hash_prefix;

    /// A database with an index that merges at four entries.
    struct IndexFixture {
        db: Db,
        hashes: BulkIndex,
        _dir: tempfile::TempDir,
    }

    impl IndexFixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let db = crate::sqlite::open_writer(&dir.path().join("monoco.db")).unwrap();
            let hashes = BulkIndex::open(&db, &objects::HASHES, 4).unwrap();
            Self { db, hashes, _dir: dir }
        }

        /// Reopens the index, as the start after a crash does.
        fn crash(&mut self) {
            self.hashes = BulkIndex::open(&self.db, &objects::HASHES, 4).unwrap();
        }

        fn begin(&self) {
            self.db.control(TxControl::Begin).unwrap();
        }

        fn add(&mut self, hash: [u8; 32]) -> i64 {
            let sql = "INSERT INTO objects (hash, kind) VALUES (?1, 'cymsg')";
            let seq = rows::insert(&self.db, sql, [hash]).unwrap();
            self.hashes.add(&self.db, hash_prefix(&hash), seq).unwrap();
            seq
        }

        fn commit(&mut self) {
            self.hashes.merge(&self.db).unwrap();
            self.db.control(TxControl::Commit).unwrap();
            self.hashes.committed();
        }

        fn rollback(&mut self) {
            self.db.control(TxControl::Rollback).unwrap();
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
            crate::sql::objects::find(&self.db, self.hashes.recent(), &id).unwrap()
        }

        fn in_table(&self) -> i64 {
            rows::one(&self.db, "SELECT count(*) FROM object_hashes", [], |row| row.get(0)).unwrap()
        }

        fn up_to(&self) -> i64 {
            let sql = "SELECT up_to FROM bulk_index_progress WHERE name = 'object_hashes'";
            rows::one(&self.db, sql, [], |row| row.get(0)).unwrap()
        }
    }

    /// A hash whose indexed part is `key`, and the rest `rest`.
    fn hash(key: i64, rest: u8) -> [u8; 32] {
        let mut hash = [rest; 32];
        hash[..8].copy_from_slice(&key.to_be_bytes());
        hash
    }

    /// Keys in random order, like those of hashes.
    fn scattered(n: i64) -> [u8; 32] {
        hash(n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed()), 7)
    }

    #[test]
    fn every_entry_is_found_once_after_crashes_at_any_time() {
        for crash_every in [1, 2, 3, 5, 7, 11, 1000] {
            let mut fixture = IndexFixture::new();
            let mut known = BTreeMap::new();
            for n in 1..=200 {
                assert_eq!(fixture.find(scattered(n)), None);
                known.insert(n, fixture.commit_one(scattered(n)));
                if n % crash_every == 0 {
                    fixture.crash();
                }
                for (n, seq) in &known {
                    assert_eq!(
                        fixture.find(scattered(*n)),
                        Some(*seq),
                        "crash every {crash_every}"
                    );
                }
            }
            let sql = "SELECT count(*) FROM (SELECT 1 FROM object_hashes GROUP BY object HAVING count(*) > 1)";
            let twice: i64 = rows::one(&fixture.db, sql, [], |row| row.get(0)).unwrap();
            assert_eq!(twice, 0);
        }
    }

    #[test]
    fn entries_are_found_during_a_merge_over_several_commits() {
        let mut fixture = IndexFixture::new();
        fixture.hashes.merge_size = 200;
        fixture.begin();
        for n in 1..=200 {
            fixture.add(scattered(n));
        }
        fixture.commit();
        for commit in 1..=7 {
            assert_eq!(fixture.up_to(), 0, "not complete before commit {commit}");
            assert_eq!(fixture.find(scattered(77)), Some(77));
            fixture.commit_one(scattered(1000 + commit));
            assert_eq!(fixture.in_table(), (commit * 32).min(200));
        }
        assert_eq!(fixture.up_to(), 200);
        assert!(fixture.hashes.recent.read().frozen.is_empty());
        assert_eq!(fixture.hashes.recent.read().fresh.len(), 7);
        for n in 1..=200 {
            assert_eq!(fixture.find(scattered(n)), Some(n));
        }
        fixture.crash();
        assert_eq!(
            fixture.hashes.recent.read().fresh.len(),
            7,
            "only entries that are not in the table"
        );
        assert_eq!(fixture.find(scattered(1007)), Some(207));
    }

    #[test]
    fn memory_stays_bounded_while_entries_are_added() {
        let mut fixture = IndexFixture::new();
        fixture.hashes.merge_size = 100;
        for commit in 0..50 {
            fixture.begin();
            for n in 0..60 {
                fixture.add(scattered(commit * 60 + n));
            }
            fixture.commit();
            let entries = fixture.hashes.recent.read();
            assert!(entries.fresh.len() + entries.frozen.len() <= 240, "{commit}");
        }
        let merged = fixture.in_table();
        fixture.begin();
        fixture.commit();
        assert_eq!(fixture.in_table(), merged, "a commit without new entries merges nothing");
    }

    #[test]
    fn rolled_back_entry_is_not_found_and_its_row_can_be_reused() {
        let mut fixture = IndexFixture::new();
        fixture.commit_one(scattered(1));
        fixture.begin();
        let row = fixture.add(scattered(2));
        fixture.rollback();
        assert_eq!(fixture.find(scattered(2)), None);
        assert_eq!(fixture.commit_one(scattered(3)), row);
        assert_eq!(fixture.find(scattered(2)), None);
        assert_eq!(fixture.find(scattered(3)), Some(row));
        assert_eq!(fixture.commit_one(scattered(2)), row + 1);
        assert_eq!(fixture.find(scattered(2)), Some(row + 1));
    }

    #[test]
    fn rolled_back_slice_is_merged_again() {
        let mut fixture = IndexFixture::new();
        for n in 1..=4 {
            fixture.commit_one(scattered(n));
        }
        fixture.begin();
        fixture.add(scattered(5));
        fixture.hashes.merge(&fixture.db).unwrap();
        fixture.rollback();
        assert_eq!((fixture.in_table(), fixture.up_to()), (0, 0));
        assert_eq!(fixture.find(scattered(2)), Some(2));
        fixture.commit_one(scattered(5));
        assert_eq!((fixture.in_table(), fixture.up_to()), (4, 4));
        assert_eq!(fixture.find(scattered(2)), Some(2));
        assert_eq!(fixture.find(scattered(5)), Some(5));
    }

    /// A wrong entry cannot occur without another bug. It must not hide other rows.
    #[test]
    fn wrong_entry_does_not_hide_the_right_row() {
        let mut fixture = IndexFixture::new();
        let row = fixture.commit_one(scattered(1));
        fixture.hashes.recent.write().fresh.insert((hash_prefix(&scattered(2)), row));
        assert_eq!(fixture.find(scattered(2)), None);
        let second = fixture.commit_one(scattered(2));
        assert_eq!(fixture.find(scattered(2)), Some(second));
        assert_eq!(fixture.find(scattered(1)), Some(row));
    }

    #[test]
    fn objects_with_the_same_key_are_distinguished() {
        let mut fixture = IndexFixture::new();
        let mut known = Vec::new();
        for rest in 1..=20 {
            assert_eq!(fixture.find(hash(5, rest)), None);
            known.push((rest, fixture.commit_one(hash(5, rest))));
            // More entries, so that merges happen in between.
            fixture.commit_one(scattered(i64::from(rest)));
            if rest % 6 == 0 {
                fixture.crash();
            }
            for (rest, seq) in &known {
                assert_eq!(fixture.find(hash(5, *rest)), Some(*seq), "{rest}");
            }
        }
    }

    /// Objects are never deleted today. If the newest were, SQLite would reuse its row number,
    /// which is below the first row that the next start reads.
    #[test]
    fn reused_row_below_frozen_to_is_found_after_a_crash() {
        let mut fixture = IndexFixture::new();
        for n in 1..=5 {
            fixture.commit_one(scattered(n));
        }
        assert_eq!(fixture.up_to(), 4);
        rows::execute(&fixture.db, "DELETE FROM objects WHERE seq >= 4", []).unwrap();
        assert_eq!(fixture.commit_one(scattered(9)), 4);
        fixture.crash();
        assert_eq!(fixture.find(scattered(9)), Some(4));
        assert_eq!(fixture.find(scattered(4)), None);
    }
}
