//! Creates and migrates the schema, after a check of the server.

use std::sync::Arc;

use super::Durability;
use super::batches::TAKE_ORDER;
use super::connect::{Connector, quoted_name};
use super::dialect;
use super::driver::PgConnection;
use super::server::ServerFacts;
use crate::sql::db::{Db, TxControl, TxStatus};
use crate::{StoreError, StoreResult};

/// Schema migrations, oldest first. Each is applied in its own transaction and must not be
/// edited after a release.
const MIGRATIONS: [Migration; 1] = [Migration {
    tables: include_str!("../../migrations/sqlite/0001_initial.sql"),
    more: include_str!("../../migrations/postgres/0001_initial.sql"),
}];

/// One change of the schema.
struct Migration {
    /// The change in the form of SQLite.
    tables: &'static str,
    /// What is different here.
    more: &'static str,
}

/// The oldest program that can use the newest schema, as the number of migrations it knows.
const OLDEST_PROGRAM: usize = 1;

/// Held by a migration, so that two couriers that start together migrate once.
const LOCK: &str = "SELECT pg_advisory_xact_lock(1297040200, hashtext(current_schema()))";

/// How often a migration is tried when PostgreSQL ends it because of a deadlock with a courier.
const MAX_ATTEMPTS: u32 = 10;

/// Checks the server and migrates the schema.
///
/// # Errors
///
/// When a setting of the server would lose acknowledged messages, or this program is too old for
/// the schema.
pub(super) fn run(
    connector: &Arc<Connector>,
    schema: &str,
    durability: Durability,
) -> StoreResult<()> {
    check_server(connector, durability)?;
    let db = PgConnection::open(Arc::clone(connector))?;
    for number in 1..=MIGRATIONS.len() {
        let mut attempts = 1;
        while let Err(error) = migrate(&db, number, connector, schema, durability) {
            if db.status() != TxStatus::Lost || attempts == MAX_ATTEMPTS {
                return Err(error);
            }
            // A courier that runs held a lock that the migration needs, and waited for another one.
            attempts += 1;
            db.reconnect()?;
        }
    }
    Ok(())
}

/// Applies one migration, unless it is applied.
fn migrate(
    db: &PgConnection,
    number: usize,
    connector: &Arc<Connector>,
    schema: &str,
    durability: Durability,
) -> StoreResult<()> {
    db.control(TxControl::Begin)?;
    // Without the lock, two couriers would both find that the schema does not exist.
    db.run_script("SELECT pg_advisory_xact_lock(1297040199)")?;
    // Needs the privilege to create schemas, which an existing schema does not.
    if db.run_script("SELECT current_schema() IS NULL")?.as_deref() == Some("t") {
        db.run_script(&format!("CREATE SCHEMA {}", quoted_name(schema)))?;
    }
    db.run_script(LOCK)?;
    let version = version(db)?;
    if version > MIGRATIONS.len() {
        // A newer program has migrated since the server was checked.
        check_server(connector, durability)?;
    }
    if version < number {
        // No other courier writes meanwhile.
        db.run_script(TAKE_ORDER)?;
        let Migration { tables, more } = &MIGRATIONS[number - 1];
        db.run_script(&dialect::schema(tables))?;
        db.run_script(more)?;
        db.run_script(&format!(
            "INSERT INTO schema_version (version, oldest_program)
             VALUES ({number}, {OLDEST_PROGRAM})"
        ))?;
    }
    db.control(TxControl::Commit)
}

/// The number of migrations that are applied.
fn version(db: &PgConnection) -> StoreResult<usize> {
    let table = db.run_script("SELECT to_regclass('schema_version') IS NOT NULL")?;
    if table.as_deref() != Some("t") {
        return Ok(0);
    }
    let version = db.run_script("SELECT coalesce(max(version), 0) FROM schema_version")?;
    Ok(version.and_then(|version| version.parse().ok()).unwrap_or_default())
}

/// Why this program cannot use a schema with this newest migration and oldest program.
pub(super) fn incompatible((version, oldest): (i64, i64)) -> Option<String> {
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    let is_incompatible = version > known && oldest > known;
    is_incompatible.then(|| {
        format!(
            "the store has schema {version} for programs with schema {oldest} or newer, this \
             program has schema {known}; stop this courier and install the newer program"
        )
    })
}

/// Rejects a server that could lose what it has acknowledged.
fn check_server(connector: &Arc<Connector>, durability: Durability) -> StoreResult<()> {
    let db = Db::postgres(PgConnection::open(Arc::clone(connector))?, Arc::default());
    let facts = ServerFacts::read(&db)?;
    // Tests of the statements need no power cut.
    let facts = match cfg!(test) {
        true => ServerFacts { fsync: true, full_page_writes: true, ..facts },
        false => facts,
    };
    match facts.problems(durability) {
        problems if problems.is_empty() => Ok(()),
        problems => Err(StoreError::Unavailable(problems.join("; "))),
    }
}
