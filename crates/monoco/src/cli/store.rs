//! `monoco store migrate`: copies the store to another database, while no courier runs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use monoco_core::config::{Secret, SecretSource};
use monoco_store::{StoreError, StoreLocation, transfer};
use serde::Serialize;

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, ToCell, note};
use monoco_courier::clock::wall_now;
use monoco_courier::config::ConfigSource;
use monoco_courier::home::Home;
use monoco_courier::open_store::{location, objects};

/// How often the progress is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Subcommand)]
pub enum StoreCommand {
    /// Copy the store to PostgreSQL, or back into a directory
    ///
    /// Reads the store of the config and writes a new one. Needs a stopped courier. Every table is
    /// verified by the number and the hashes of its rows, every file by its hash. An interrupted copy
    /// is continued by the same command, and no courier starts on it before it is complete. The source keeps its contents; then set courier.storage.store, and start the
    /// courier. Example: MONOCO_MIGRATE_TO=postgres://monoco@db/hub monoco store migrate
    Migrate(MigrateArgs),
}

#[derive(Debug, clap::Args)]
pub struct MigrateArgs {
    /// URL of a PostgreSQL database, or a directory for an embedded store
    #[arg(long, env = "MONOCO_MIGRATE_TO", hide_env_values = true, value_name = "URL|DIR")]
    to: String,
    /// Schema of the database for the tables
    #[arg(long, default_value = "monoco")]
    schema: String,
    /// URL of a bucket for large objects, as in courier.storage.objects; without it they are copied
    /// into the database
    #[arg(long, env = "MONOCO_MIGRATE_OBJECTS", hide_env_values = true, value_name = "S3-URL")]
    objects: Option<String>,
}

/// What `monoco store migrate` has copied.
#[derive(Debug, Serialize)]
struct MigrateView {
    tables: usize,
    rows: u64,
    files: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

pub async fn run(context: &CliContext, command: StoreCommand) -> Result<(), CliError> {
    let StoreCommand::Migrate(args) = command;
    let home = &context.home;
    let failed = |error: String| CliError::new(CliExit::NotPossible, error);
    let config = ConfigSource::of(home).load().map_err(|error| failed(error.to_string()))?;
    // The lock keeps a courier from starting meanwhile.
    let lock = home.lock()?;
    let from = location(home, &config.store).await.map_err(|error| failed(error.to_string()))?;
    if let StoreLocation::Directory(dir) = &from
        && !dir.join("monoco.db").exists()
    {
        return Err(failed(format!("there is no store in {}", dir.display())).hint(
            "an empty store needs no copy: set courier.storage.store and start the courier",
        ));
    }
    let to = target(home, &args).await?;
    let copied = tokio::task::spawn_blocking(move || {
        let mut last = Instant::now();
        transfer(&from, &to, wall_now(), &mut |what, done, all| {
            if last.elapsed() >= PROGRESS_INTERVAL {
                last = Instant::now();
                note(&format!("{what}: {done} of {all}"));
            }
        })
    });
    let copied = copied.await.map_err(|error| failed(error.to_string()))?;
    home.withdraw();
    drop(lock);
    let result = copied.map_err(|error: StoreError| {
        failed(format!("cannot copy the store: {error}"))
            .hint("run the command again to continue; the source is not changed")
    })?;
    let missing = result.missing.len();
    let view = MigrateView {
        tables: result.tables,
        rows: result.rows,
        files: result.files,
        missing: result.missing,
    };
    let fields: &[Column<MigrateView>] = &[
        ("tables", |it| it.tables.cell()),
        ("rows", |it| it.rows.cell()),
        ("files", |it| it.files.cell()),
        ("missing files", |it| it.missing.cell()),
    ];
    output::one(context.format, &view, &view.rows.to_string(), fields)?;
    if missing > 0 {
        return Err(failed(format!("{missing} files are missing or damaged in the source"))
            .hint("the copy has everything else; run `monoco doctor`"));
    }
    note(
        "copied and verified; set store, schema and objects of courier.storage in the config, then \
         start the courier",
    );
    Ok(())
}

async fn target(home: &Home, args: &MigrateArgs) -> Result<StoreLocation, CliError> {
    let to = args.to.trim();
    if to.starts_with("postgres://") || to.starts_with("postgresql://") {
        let (url, schema) = (to.to_owned(), args.schema.clone());
        let source = args.objects.as_deref().map(|url| SecretSource::Value(Secret::new(url)));
        let opened = objects(home, source.as_ref(), false).await;
        let mut objects =
            opened.map_err(|error| CliError::new(CliExit::NotPossible, error.to_string()))?;
        // The source can have the same one.
        objects.spool = objects.spool.join("target");
        return Ok(StoreLocation::Postgres { url, schema, objects });
    }
    if args.objects.is_some() {
        return Err(CliError::usage(
            "--objects: only a store in PostgreSQL can have its large objects in a bucket",
        ));
    }
    if to.contains("://") {
        return Err(CliError::usage(
            "--to: expected a URL that starts with postgres://, or a directory",
        ));
    }
    Ok(StoreLocation::Directory(std::path::absolute(PathBuf::from(to))?))
}
