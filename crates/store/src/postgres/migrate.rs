//! Creates and migrates the schema, and checks the settings of the server.

use std::sync::Arc;

use super::Durability;
use super::connect::{Connector, quoted_name};
use super::driver::PgConnection;
use crate::sql::db::TxControl;
use crate::{StoreError, StoreResult};

/// Schema migrations, oldest first. Each is applied in its own transaction and must not be
/// edited after a release.
const MIGRATIONS: [&str; 1] = [include_str!("../../migrations/postgres/0001_initial.sql")];

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
    let db = PgConnection::open(Arc::clone(connector))?;
    check_settings(&db, durability)?;
    for number in 1..=MIGRATIONS.len() {
        db.control(TxControl::Begin)?;
        // Without the lock, two couriers would both find that the schema does not exist.
        let name = quoted_name(schema);
        db.run_script("SELECT pg_advisory_xact_lock(1297040199)")?;
        db.run_script(&format!("CREATE SCHEMA IF NOT EXISTS {name}"))?;
        db.run_script(LOCK)?;
        let version = version(&db)?;
        check_version(&db, version)?;
        if version < number {
            db.run_script(MIGRATIONS[number - 1])?;
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
pub(super) fn check_settings(db: &PgConnection, durability: Durability) -> StoreResult<()> {
    let is = |sql: &str| Ok::<_, StoreError>(db.run_script(sql)?.as_deref() == Some("t"));
    if is("SELECT pg_is_in_recovery()")? {
        let why = "the PostgreSQL server is a standby; connect to the primary, for example with \
                   several hosts and target_session_attrs=read-write";
        return Err(StoreError::Unavailable(why.to_owned()));
    }
    // Tests of the statements need no power cut.
    if !cfg!(test) {
        for setting in ["fsync", "full_page_writes"] {
            if !is(&format!("SELECT current_setting('{setting}') = 'on'"))? {
                let why = format!("PostgreSQL has {setting} = off and can lose messages; set it to on");
                return Err(StoreError::Unavailable(why));
            }
        }
    }
    let standby = "SELECT EXISTS (SELECT 1 FROM pg_stat_replication
                                   WHERE sync_state IN ('sync', 'quorum'))";
    if durability == Durability::Replicated && !is(standby)? {
        let why = "no synchronous standby is connected to the PostgreSQL server; set \
                   synchronous_standby_names, or use the durability of the primary";
        return Err(StoreError::Unavailable(why.to_owned()));
    }
    Ok(())
}
