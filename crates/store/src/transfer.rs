//! Copies a whole store from one database to another, while no courier uses either.
//!
//! Rows are copied table by table in the order of their keys, then the files. A copy that was
//! interrupted continues after the last key of each table. At the end both sides are read again:
//! each table must have the same number of rows and the same sum of the hashes of its rows. Until
//! then the target is marked as incomplete, and no courier starts on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;

use crate::blobs::{self, BlobFiles, BlobStorage};
use crate::postgres::{ObjectLocation, PostgresStore};
use crate::sql::db::{Db, Params, RowResult, SqlValue, TxControl};
use crate::sql::{blob_error, bulk_index, disk_error, facts, rows};
use crate::sqlite;
use crate::{StoreError, StoreResult};

/// Rows of one statement and of one commit.
const ROWS_PER_COMMIT: usize = 100;

/// How long ago a courier that lives can have reported.
const LIVE_TIME: Duration = Duration::from_secs(60);

/// Copied after everything else is verified. A store that has such rows is or was in use.
const LAST_TABLE: &str = "couriers";

/// Leases of couriers that do not run, and facts about one store.
const SKIPPED_TABLES: [&str; 2] = ["duties", "store_facts"];

/// The migrations insert rows into it, so it is emptied first.
const SEEDED_TABLE: &str = "bulk_index_progress";

/// Where a store is.
#[derive(Clone)]
pub enum StoreLocation {
    /// A directory with an embedded store.
    Directory(PathBuf),
    /// A schema of a PostgreSQL database.
    Postgres { url: String, schema: String, objects: ObjectLocation },
}

impl std::fmt::Debug for StoreLocation {
    /// Leaves out the URL, which has the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Self::Postgres { schema, .. } => f.debug_tuple("Postgres").field(schema).finish(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferResult {
    pub tables: usize,
    pub rows: u64,
    pub files: usize,
    /// Files that the source does not have.
    pub missing: Vec<String>,
}

/// A table of the schema.
#[derive(Debug, PartialEq, Eq)]
struct StoreTable {
    name: String,
    columns: Vec<String>,
    key: Vec<String>,
}

/// A value that was read from one database and is written to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CopiedValue {
    Null,
    Integer(i64),
    Text(String),
    Blob(Vec<u8>),
}

/// The number of rows of a table, and the sum of their hashes, which does not depend on their
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TableSum {
    rows: u64,
    hash: [u64; 4],
}

struct StoreSide {
    db: Db,
    blobs: Arc<dyn BlobStorage>,
}

/// Copies the store in `from` to `to`, and verifies the copy. Calls `progress` with what is done,
/// how much of it, and how much there is. Blocks.
///
/// # Errors
///
/// When a courier uses the source, the source is incomplete, the target has a complete store, a
/// database fails, or the copy differs. After an error the call can be repeated, and continues.
pub fn transfer(
    from: &StoreLocation,
    to: &StoreLocation,
    now: Timestamp,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> StoreResult<TransferResult> {
    let source = from.open()?;
    check_unused(&source.db, now)?;
    if facts::is_incomplete(&source.db)? {
        return Err(StoreError::Unavailable(facts::INCOMPLETE_COPY.to_owned()));
    }
    let target = to.open()?;
    if facts::is_incomplete(&target.db)? {
        // The last table was not verified.
        rows::execute(&target.db, &format!("DELETE FROM {LAST_TABLE}"), [])?;
    } else if count(&target.db, LAST_TABLE)? > 0 {
        let why = "the target has a store that is complete or in use; choose an empty schema or \
                   directory";
        return Err(StoreError::Unavailable(why.to_owned()));
    }
    facts::start_copy(&target.db)?;
    merge_indexes(&source.db)?;
    let schema = sqlite::MIGRATIONS.concat();
    let all = tables(&schema);
    let (last, tables): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter(|table| !SKIPPED_TABLES.contains(&table.name.as_str()))
        .partition(|table| table.name == LAST_TABLE);
    for table in &tables {
        table.copy(&source.db, &target.db, progress)?;
    }
    let mut result = TransferResult { tables: tables.len() + last.len(), ..Default::default() };
    copy_files(&source, &target, &mut result, progress)?;
    for table in &tables {
        result.rows += table.verify(&source.db, &target.db, progress)?;
    }
    if target.db.as_postgres().is_some() {
        let sql = "SELECT setval(pg_get_serial_sequence('inbound_files', 'seq'),
                                 coalesce(max(seq), 0) + 1, false) FROM inbound_files";
        rows::one(&target.db, sql, [], |_| Ok(()))?;
    }
    merge_indexes(&target.db)?;
    for table in &last {
        table.copy(&source.db, &target.db, progress)?;
        result.rows += table.verify(&source.db, &target.db, progress)?;
    }
    // No courier of the source runs, and none of the target has started yet.
    rows::execute(&target.db, "UPDATE couriers SET live = 0", [])?;
    facts::finish_copy(&target.db)?;
    facts::set_moved(&source.db)?;
    Ok(result)
}

/// Completes the tables of the indexes that an embedded store has partly in memory.
fn merge_indexes(db: &Db) -> StoreResult<()> {
    db.control(TxControl::Begin)?;
    bulk_index::merge_all(db)?;
    db.control(TxControl::Commit)
}

impl StoreLocation {
    fn open(&self) -> StoreResult<StoreSide> {
        match self {
            Self::Directory(dir) => {
                blobs::create_dir(dir).map_err(blob_error)?;
                let db = sqlite::open_writer(&dir.join("monoco.db"))?;
                let blobs = BlobFiles::open(dir.join("blobs")).map_err(blob_error)?;
                Ok(StoreSide { db, blobs: Arc::new(blobs) })
            }
            Self::Postgres { url, schema, objects } => {
                let (db, blobs) = PostgresStore::open_parts(url, schema, objects)?;
                Ok(StoreSide { db, blobs })
            }
        }
    }
}

/// Rejects a store whose couriers run.
fn check_unused(db: &Db, now: Timestamp) -> StoreResult<()> {
    let sql = "SELECT count(*) FROM couriers WHERE live = 1 AND seen_at > ?1";
    let since = now.ms().saturating_sub(i64::try_from(LIVE_TIME.as_millis()).unwrap_or(i64::MAX));
    // The embedded store has one courier, whose lock the caller holds.
    if db.as_postgres().is_none() || rows::one(db, sql, [since], |row| row.get::<i64>(0))? == 0 {
        return Ok(());
    }
    let why = "a courier uses the store; stop all couriers, and wait for 60 s if one was killed";
    Err(StoreError::Unavailable(why.to_owned()))
}

fn count(db: &Db, table: &str) -> StoreResult<u64> {
    let sql = format!("SELECT count(*) FROM {table}");
    rows::one(db, &sql, [], |row| rows::unsigned(row, 0))
}

fn copy_files(
    source: &StoreSide,
    target: &StoreSide,
    result: &mut TransferResult,
    progress: &mut dyn FnMut(&str, u64, u64),
) -> StoreResult<()> {
    let files = sqlite::files(&source.db)?;
    for (at, (id, bytes)) in files.iter().enumerate() {
        progress("files", at as u64, files.len() as u64);
        if !target.blobs.is_stored(id, *bytes).map_err(disk_error)? {
            let mut file = target.blobs.start().map_err(blob_error)?;
            let found = source.blobs.copy_to(id, &mut file).map_err(disk_error)?;
            if !found || file.stored().hash.hash() != id.hash() {
                result.missing.push(id.to_string());
                continue;
            }
            target.blobs.finish(file).map_err(blob_error)?;
        }
        result.files += 1;
    }
    Ok(())
}

impl StoreTable {
    /// Copies the rows behind the last key of the target.
    fn copy(
        &self,
        source: &Db,
        target: &Db,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> StoreResult<()> {
        if self.name == SEEDED_TABLE {
            rows::execute(target, &format!("DELETE FROM {SEEDED_TABLE}"), [])?;
        }
        let all = count(source, &self.name)?;
        let mut done = count(target, &self.name)?;
        let mut after = self.last_key(target)?;
        loop {
            progress(&self.name, done, all);
            let page = self.page(source, after.as_deref())?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(self.key_of(last));
            let values: Vec<CopiedValue> = page.concat();
            target.control(TxControl::Begin)?;
            let inserted = target.execute(&self.insert(page.len()), &CopiedParams(&values));
            if let Err(error) = inserted {
                // The connection is closed after an error.
                let _ = target.control(TxControl::Rollback);
                return Err(error);
            }
            target.control(TxControl::Commit)?;
            done += page.len() as u64;
        }
    }

    /// Compares both sides. Returns the number of rows.
    fn verify(
        &self,
        source: &Db,
        target: &Db,
        progress: &mut dyn FnMut(&str, u64, u64),
    ) -> StoreResult<u64> {
        let expected = self.sum(source)?;
        let found = self.sum(target)?;
        progress(&format!("verified {}", self.name), found.rows, expected.rows);
        if found == expected {
            return Ok(found.rows);
        }
        let detail = format!(
            "table {} has {} rows, expected {}, or other values; if the source has changed since \
             an interrupted copy, copy it to an empty schema or directory",
            self.name, found.rows, expected.rows
        );
        Err(StoreError::Damaged { what: "copy", detail })
    }

    fn sum(&self, db: &Db) -> StoreResult<TableSum> {
        let (mut sum, mut after) = (TableSum::default(), None);
        loop {
            let page = self.page(db, after.as_deref())?;
            let Some(last) = page.last() else { return Ok(sum) };
            after = Some(self.key_of(last));
            for row in &page {
                sum.add(row);
            }
        }
    }

    /// The rows behind a key, in the order of their keys.
    fn page(&self, db: &Db, after: Option<&[CopiedValue]>) -> StoreResult<Vec<Vec<CopiedValue>>> {
        let (columns, key) = (self.columns.join(", "), self.key.join(", "));
        let condition = match after {
            None => String::new(),
            Some(after) => format!(" WHERE ({key}) > ({})", parameters(1, after.len())),
        };
        let sql = format!(
            "SELECT {columns} FROM {}{condition} ORDER BY {key} LIMIT {ROWS_PER_COMMIT}",
            self.name
        );
        let mut page = Vec::new();
        db.scan(&sql, &CopiedParams(after.unwrap_or_default()), usize::MAX, &mut |row| {
            let values = (0..self.columns.len()).map(|at| row.get_ref(at).map(copied));
            page.push(values.collect::<RowResult<Vec<_>>>()?);
            Ok(true)
        })?;
        Ok(page)
    }

    fn last_key(&self, db: &Db) -> StoreResult<Option<Vec<CopiedValue>>> {
        let descending: Vec<_> = self.key.iter().map(|column| format!("{column} DESC")).collect();
        let (columns, order) = (self.key.join(", "), descending.join(", "));
        let sql = format!("SELECT {columns} FROM {} ORDER BY {order} LIMIT 1", self.name);
        let mut found = None;
        db.scan(&sql, &CopiedParams(&[]), usize::MAX, &mut |row| {
            let values = (0..self.key.len()).map(|at| row.get_ref(at).map(copied));
            found = Some(values.collect::<RowResult<Vec<_>>>()?);
            Ok(false)
        })?;
        Ok(found)
    }

    fn key_of(&self, row: &[CopiedValue]) -> Vec<CopiedValue> {
        let pairs = || self.columns.iter().zip(row);
        let value =
            |key: &String| pairs().find(|(column, _)| *column == key).map(|it| it.1.clone());
        self.key.iter().filter_map(value).collect()
    }

    fn insert(&self, rows: usize) -> String {
        let count = self.columns.len();
        let row = |row: usize| format!("({})", parameters(row * count + 1, count));
        let rows: Vec<_> = (0..rows).map(row).collect();
        format!(
            "INSERT INTO {} ({}) VALUES {}",
            self.name,
            self.columns.join(", "),
            rows.join(", ")
        )
    }
}

/// A list of parameters, from the number `first` on.
fn parameters(first: usize, count: usize) -> String {
    (first..first + count).map(|number| format!("?{number}")).collect::<Vec<_>>().join(", ")
}

/// Reads the tables of a schema, with their columns and primary keys.
fn tables(schema: &str) -> Vec<StoreTable> {
    let (mut tables, mut open) = (Vec::new(), None);
    for line in schema.lines() {
        let line = line.split("--").next().unwrap_or_default().trim();
        if let Some(name) = line.strip_prefix("CREATE TABLE ") {
            let name = name.trim_end_matches('(').trim().to_owned();
            open = Some(StoreTable { name, columns: Vec::new(), key: Vec::new() });
        } else if line.starts_with(')') {
            tables.extend(open.take());
        } else if let Some(table) = &mut open {
            if let Some(key) = line.strip_prefix("PRIMARY KEY (") {
                let key = key.split(')').next().unwrap_or_default();
                table.key = key.split(',').map(|column| column.trim().to_owned()).collect();
            } else if let Some(column) = line.split_whitespace().next() {
                table.columns.push(column.to_owned());
                if line.contains("PRIMARY KEY") {
                    table.key = vec![column.to_owned()];
                }
            }
        }
    }
    tables
}

fn copied(value: SqlValue<'_>) -> CopiedValue {
    match value {
        SqlValue::Null => CopiedValue::Null,
        SqlValue::Integer(number) => CopiedValue::Integer(number),
        SqlValue::Text(text) => CopiedValue::Text(text.to_owned()),
        SqlValue::Blob(bytes) => CopiedValue::Blob(bytes.to_owned()),
    }
}

struct CopiedParams<'v>(&'v [CopiedValue]);

impl Params for CopiedParams<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn value(&self, at: usize) -> SqlValue<'_> {
        match &self.0[at] {
            CopiedValue::Null => SqlValue::Null,
            CopiedValue::Integer(number) => SqlValue::Integer(*number),
            CopiedValue::Text(text) => SqlValue::Text(text),
            CopiedValue::Blob(bytes) => SqlValue::Blob(bytes),
        }
    }
}

impl TableSum {
    fn add(&mut self, row: &[CopiedValue]) {
        let mut bytes = Vec::new();
        let mut put = |kind: u8, content: &[u8]| {
            bytes.push(kind);
            bytes.extend_from_slice(&(content.len() as u64).to_be_bytes());
            bytes.extend_from_slice(content);
        };
        for value in row {
            match value {
                CopiedValue::Null => put(0, &[]),
                CopiedValue::Integer(number) => put(1, &number.to_be_bytes()),
                CopiedValue::Text(text) => put(2, text.as_bytes()),
                CopiedValue::Blob(content) => put(3, content),
            }
        }
        let id = ObjId::of(ObjKind::Bytes, &bytes);
        for (sum, part) in self.hash.iter_mut().zip(id.hash().chunks_exact(8)) {
            let part = part.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
            *sum = sum.wrapping_add(part);
        }
        self.rows += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_schema_have_columns_and_keys() {
        let found = tables(&sqlite::MIGRATIONS.concat());
        let dir = tempfile::tempdir().unwrap();
        let db = sqlite::open_writer(&dir.path().join("monoco.db")).unwrap();
        let sql = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'
                    ORDER BY name";
        let expected = rows::list(&db, sql, [], |row| row.get::<String>(0)).unwrap();
        let mut names: Vec<_> = found.iter().map(|table| table.name.clone()).collect();
        names.sort();
        assert_eq!(names, expected);
        for table in &found {
            let sql = format!("SELECT name FROM pragma_table_info('{}') ORDER BY cid", table.name);
            let columns = rows::list(&db, &sql, [], |row| row.get::<String>(0)).unwrap();
            assert_eq!(table.columns, columns, "{}", table.name);
            let sql = format!(
                "SELECT name FROM pragma_table_info('{}') WHERE pk > 0 ORDER BY pk",
                table.name
            );
            let key = rows::list(&db, &sql, [], |row| row.get::<String>(0)).unwrap();
            assert_eq!(table.key, key, "{}", table.name);
        }
    }

    #[test]
    fn sum_depends_on_every_value_and_not_on_the_order() {
        let row = |number: i64, text: &str| {
            vec![CopiedValue::Integer(number), CopiedValue::Text(text.to_owned())]
        };
        let sum = |rows: &[Vec<CopiedValue>]| {
            let mut sum = TableSum::default();
            rows.iter().for_each(|row| sum.add(row));
            sum
        };
        let both = sum(&[row(1, "a"), row(2, "b")]);
        assert_eq!(both, sum(&[row(2, "b"), row(1, "a")]));
        for other in [[row(1, "b"), row(2, "a")], [row(1, "a"), row(3, "b")]] {
            assert_ne!(both, sum(&other));
        }
        let texts = |a: &str, b: &str| [a, b].map(|text| CopiedValue::Text(text.to_owned()));
        assert_ne!(sum(&[texts("ab", "c").to_vec()]), sum(&[texts("a", "bc").to_vec()]));
    }
}
