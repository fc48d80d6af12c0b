//! Creates and migrates the schema, after a check of the server.

use std::sync::Arc;

use super::Durability;
use super::connect::{Connector, quoted_name};
use super::dialect;
use super::driver::PgConnection;
use super::server::ServerFacts;
use crate::sql::db::{Db, TxControl};
use crate::{StoreError, StoreResult};

/// Schema migrations, oldest first. Each is applied in its own transaction and must not be
/// edited after a release.
const MIGRATIONS: [Migration; 2] = [
    Migration {
        tables: include_str!("../../migrations/sqlite/0001_initial.sql"),
        more: include_str!("../../migrations/postgres/0001_initial.sql"),
    },
    Migration {
        tables: include_str!("../../migrations/sqlite/0002_store_facts.sql"),
        more: include_str!("../../migrations/postgres/0002_store_facts.sql"),
    },
];

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
        db.control(TxControl::Begin)?;
        // Without the lock, two couriers would both find that the schema does not exist.
        db.run_script("SELECT pg_advisory_xact_lock(1297040199)")?;
        // Needs the privilege to create schemas, which an existing schema does not.
        if db.run_script("SELECT current_schema() IS NULL")?.as_deref() == Some("t") {
            db.run_script(&format!("CREATE SCHEMA {}", quoted_name(schema)))?;
        }
        db.run_script(LOCK)?;
        let version = version(&db)?;
        check_version(&db, version)?;
        if version < number {
            let Migration { tables, more } = &MIGRATIONS[number - 1];
            db.run_script(&dialect::schema(tables))?;
            db.run_script(more)?;
            db.run_script(&format!(
                "INSERT INTO schema_version (version, oldest_program)
                 VALUES ({number}, {OLDEST_PROGRAM})"
            ))?;
        }
        db.control(TxControl::Commit)?;
    }
    Ok(())
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

/// Rejects a schema that this program cannot use.
fn check_version(db: &PgConnection, version: usize) -> StoreResult<()> {
    if version <= MIGRATIONS.len() {
        return Ok(());
    }
    let oldest = db.run_script("SELECT max(oldest_program) FROM schema_version")?;
    let oldest = oldest.and_then(|oldest| oldest.parse::<usize>().ok()).unwrap_or(version);
    if oldest <= MIGRATIONS.len() {
        return Ok(());
    }
    Err(StoreError::Unavailable(format!(
        "the store has schema {version} for programs with schema {oldest} or newer, this program \
         has schema {}; use the newer program",
        MIGRATIONS.len()
    )))
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
