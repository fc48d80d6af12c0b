//! Measures the store on PostgreSQL beside plain tables on the same server, and beside SQLite.
//!
//! One server is started for the run, with its default durability: a commit returns after it is
//! synced. Run it with `./bench --only postgres` from the root of the repository; progress goes to
//! stderr, Markdown tables to stdout.
//!
//! # Reading order
//!
//! * [`contender`]: the measurements of every contender.
//! * [`tables`]: plain tables, with one writer and group commit.
//! * [`skip_locked`]: a queue in one table, with a connection per client.
//! * [`store`]: Monoco, on SQLite and with 1, 2 and 4 couriers on PostgreSQL.
//! * [`churn`]: sizes of the tables after messages were taken and finished.
//! * [`common`]: shared by all benchmarks.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

mod churn;
#[path = "../../../monoco/benches/common"]
mod common {
    #![allow(dead_code, reason = "each benchmark uses its own part of this")]

    pub mod args;
    pub mod drive;
    pub mod figures;
    pub mod resources;

    /// A message that says why a measurement failed.
    pub type Error = Box<dyn std::error::Error + Send + Sync>;
    pub type Result<T> = std::result::Result<T, Error>;
}
#[path = "../../../monoco/benches/peers/contender.rs"]
#[allow(dead_code, reason = "idle servers are measured elsewhere")]
mod contender;
#[path = "../../../monoco/benches/peers/payload.rs"]
mod payload;
#[path = "../../../monoco/benches/peers/plan.rs"]
#[allow(dead_code, reason = "idle servers are measured elsewhere")]
mod plan;
#[path = "../../src/postgres/tests/server.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests")]
mod server;
mod skip_locked;
#[path = "../../../monoco/benches/peers/store.rs"]
#[allow(dead_code, reason = "the name is that of another benchmark")]
mod store;
#[path = "../../../monoco/benches/peers/table.rs"]
#[allow(dead_code, reason = "idle servers are measured elsewhere")]
mod table;
mod tables;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use common::Result;
use common::args::{Args, Benchmark};
use common::figures::machine;
use contender::{Cell, Contender, Measured, Peer, measure};
use monoco_store::SqlStore;
use monoco_store::postgres::{Durability, ObjectLocation, PostgresOptions, PostgresStore};
use plan::Plan;
use store::StoreContender;
use table::Table;
use tempfile::TempDir;

/// All contenders, in the order of the rows.
const NAMES: [&str; 7] = [
    tables::ONE,
    tables::THREE,
    skip_locked::NAME,
    "monoco, SQLite",
    "monoco, PostgreSQL",
    "monoco, 2 couriers",
    "monoco, 4 couriers",
];

/// Contenders by whose figures the others are divided.
const YARDSTICKS: [&str; 3] = [tables::THREE, skip_locked::NAME, "monoco, PostgreSQL"];

fn main() -> ExitCode {
    let quick = "one short round per cell, and a backlog of 100,000 instead of 1,000,000";
    let mut names = NAMES.to_vec();
    names.push("postgres");
    Benchmark { about: "PostgreSQL (`--only postgres` selects all)", quick, names, run }.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let data = TempDir::new_in(&args.dir)?;
    // The path of a socket has at most 107 bytes.
    let socket = tempfile::tempdir()?;
    server::start(socket.path(), data.path(), &["shared_buffers=256MB", "max_wal_size=2GB"]);
    let url: Arc<str> = server::url_in(socket.path()).into();
    let mut field: Vec<(&str, Box<dyn Contender>)> = Vec::new();
    for name in NAMES.into_iter().filter(|name| args.wants_any(&["postgres", name])) {
        field.push((name, contender(name, &args.dir, &url)?));
    }
    let cells = Cell::all(plan.deep_backlog);
    let mut table = Table::new(&cells);
    for cell in &cells {
        for (name, rate) in measure(&mut field, cell, plan)? {
            table.set(name, cell, rate);
        }
    }
    println!(
        "{}; PostgreSQL {}, Monoco {}; {} B messages; {} s per cell after {} s of warm-up, median of {}.\n",
        machine(),
        tables::version(&url)?,
        env!("CARGO_PKG_VERSION"),
        payload::SIZE,
        plan.bounds.measure.as_secs_f64(),
        plan.bounds.warm_up.as_secs_f64(),
        plan.repeats,
    );
    println!("{}", table.rates());
    println!("{}", table.ratios(&YARDSTICKS));
    if args.wants_any(&["postgres", "monoco, PostgreSQL"]) {
        println!("{}", churn::measure(&args.dir, &url, plan)?);
    }
    Ok(())
}

fn contender(name: &str, dir: &Path, url: &Arc<str>) -> Result<Box<dyn Contender>> {
    let couriers = match name {
        tables::ONE | tables::THREE => {
            return measured(tables::Tables::new(url, name == tables::THREE)?);
        }
        skip_locked::NAME => return measured(skip_locked::SkipLocked::new(url)?),
        "monoco, SQLite" => return measured(StoreContender::new(dir)?),
        "monoco, 2 couriers" => 2,
        "monoco, 4 couriers" => 4,
        _ => 1,
    };
    let url = Arc::clone(url);
    let open = move |dir: &Path| open_couriers(&url, &new_schema(), couriers, dir);
    measured(StoreContender::with(dir, Box::new(open))?)
}

fn measured(peer: impl Peer + Sync + 'static) -> Result<Box<dyn Contender>> {
    Ok(Box::new(Measured::new(peer)))
}

/// A name for a schema that does not exist.
fn new_schema() -> String {
    static SCHEMAS: AtomicU64 = AtomicU64::new(1);
    format!("bench_{}", SCHEMAS.fetch_add(1, Relaxed))
}

/// Opens the stores of couriers that share a schema.
fn open_couriers(url: &str, schema: &str, couriers: usize, dir: &Path) -> Result<Vec<SqlStore>> {
    let open = |courier: usize| {
        let options = PostgresOptions {
            url: url.to_owned(),
            schema: schema.to_owned(),
            courier: format!("courier-{courier}"),
            boot: "1".to_owned(),
            durability: Durability::Primary,
            objects: ObjectLocation::database(dir.join(format!("spool-{courier}"))),
        };
        Ok(PostgresStore::open(&options)?)
    };
    (0..couriers).map(open).collect()
}
