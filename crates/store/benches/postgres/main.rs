//! Measures the store on PostgreSQL beside plain tables on the same server, and beside SQLite.
//!
//! One server is started for the run, with its default durability: a commit returns after it is
//! synced. Another one has a synchronous standby on the same machine. Run it with
//! `./bench --only postgres` from the root of the repository; progress goes to stderr, Markdown tables
//! to stdout.
//!
//! # Reading order
//!
//! * [`contender`]: the measurements of every contender.
//! * [`tables`]: plain tables, with group commit, by one writer or by several in order.
//! * [`skip_locked`]: a queue in one table, with a connection per client.
//! * [`store`]: Monoco, on SQLite and with 1, 2 and 4 couriers on PostgreSQL.
//! * [`servers`]: the server, and the one with a synchronous standby.
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
mod servers;
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
use std::time::Duration;

use common::Result;
use common::args::{Args, Benchmark};
use common::drive::Bounds;
use common::figures::machine;
use common::resources::IdleCost;
use contender::{Cell, Contender, Measured, Peer, measure};
use monoco_store::SqlStore;
use monoco_store::postgres::{Durability, ObjectLocation, PostgresOptions, PostgresStore};
use plan::Plan;
use servers::Servers;
use store::StoreContender;
use table::Table;

/// All contenders, in the order of the rows.
const NAMES: [&str; 10] = [
    tables::ONE,
    tables::THREE,
    tables::IN_ORDER,
    tables::TWO_IN_ORDER,
    tables::FOUR_IN_ORDER,
    skip_locked::NAME,
    "monoco, SQLite",
    "monoco, PostgreSQL",
    "monoco, 2 couriers",
    "monoco, 4 couriers",
];

/// Contenders with a synchronous standby, whose names are those above.
const WITH_STANDBY: [&str; 4] =
    [tables::THREE, skip_locked::NAME, "monoco, PostgreSQL", "monoco, 2 couriers"];

/// Contenders by whose figures the others are divided.
const YARDSTICKS: [&str; 3] = [tables::THREE, skip_locked::NAME, "monoco, PostgreSQL"];

/// How long a cell is measured, unless `--quick` is shorter. There are three times as many cells as
/// in other benchmarks.
const MEASURE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let quick = "one short round per cell, and a backlog of 100,000 instead of 1,000,000";
    let mut names = NAMES.to_vec();
    names.extend(["postgres", STANDBY, CHURN]);
    Benchmark { about: "PostgreSQL (`--only postgres` selects all)", quick, names, run }.main()
}

/// The names of the other parts.
const STANDBY: &str = "standby";
const CHURN: &str = "churn";

fn run(args: &Args) -> Result<()> {
    let mut plan = Plan::new(args);
    plan.bounds.measure = plan.bounds.measure.min(MEASURE);
    let plan = &plan;
    let server = Servers::start(&args.dir, false)?;
    let selected = |name: &&str| args.wants_any(&["postgres", *name]);
    let names: Vec<_> = NAMES.into_iter().filter(selected).collect();
    println!(
        "{}; PostgreSQL {}, Monoco {}; {} B messages; {} s per cell after {} s of warm-up, median of {}.\n",
        machine(),
        tables::version(&server.url)?,
        env!("CARGO_PKG_VERSION"),
        payload::SIZE,
        plan.bounds.measure.as_secs_f64(),
        plan.bounds.warm_up.as_secs_f64(),
        plan.repeats,
    );
    if !names.is_empty() {
        let cells = Cell::all(plan.deep_backlog);
        let table = measure_all(&names, &cells, plan, &args.dir, &server)?;
        println!("{}\n{}", table.rates(), table.ratios(&YARDSTICKS));
    }
    if args.wants_any(&["postgres", STANDBY]) {
        let server = Servers::start(&args.dir, true)?;
        let cells = Cell::all(Cell::BACKLOG);
        let table = measure_all(&WITH_STANDBY, &cells[..4], plan, &args.dir, &server)?;
        println!("With a synchronous standby on the same machine:\n\n{}", table.rates());
        println!("{}", table.ratios(&YARDSTICKS));
    }
    if args.wants_any(&["postgres", CHURN]) {
        println!("{}", churn::measure(&args.dir, &server.url, args.quick)?);
    }
    Ok(())
}

/// Measures contenders in all cells.
fn measure_all(
    names: &[&'static str],
    cells: &[Cell],
    plan: &Plan,
    dir: &Path,
    server: &Servers,
) -> Result<Table> {
    let mut field: Vec<(&str, Box<dyn Contender>)> = Vec::new();
    for &name in names {
        field.push((name, contender(name, dir, server)?));
    }
    let mut table = Table::new(cells);
    for cell in cells {
        for (name, rate) in measure(&mut field, cell, plan)? {
            table.set(name, cell, rate);
        }
    }
    Ok(table)
}

fn contender(name: &'static str, dir: &Path, server: &Servers) -> Result<Box<dyn Contender>> {
    let url = &server.url;
    let couriers = match name {
        "monoco, 2 couriers" => 2,
        "monoco, 4 couriers" => 4,
        skip_locked::NAME => return measured(skip_locked::SkipLocked::new(url)?),
        "monoco, SQLite" => return measured(StoreContender::new(dir)?),
        "monoco, PostgreSQL" => 1,
        _ => return measured(tables::Tables::new(url, name)?),
    };
    let (url, durability) = (Arc::clone(url), server.durability());
    let open = move |dir: &Path| open_couriers(&url, &new_schema(), couriers, durability, dir);
    let contender = measured(StoreContender::with(dir, Box::new(open))?)?;
    Ok(if couriers == 1 { contender } else { Box::new(SmallBacklog(contender)) })
}

fn measured(peer: impl Peer + Sync + 'static) -> Result<Box<dyn Contender>> {
    Ok(Box::new(Measured::new(peer)))
}

/// A contender without the deep backlog, whose tables take minutes to fill.
struct SmallBacklog(Box<dyn Contender>);

impl Contender for SmallBacklog {
    fn version(&self) -> String {
        self.0.version()
    }

    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>> {
        self.0.enqueue(producers, bounds)
    }

    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>> {
        if backlog > Cell::BACKLOG {
            return Ok(None);
        }
        self.0.take_finish(takers, backlog, bounds)
    }

    fn release(&mut self) {
        self.0.release();
    }

    fn idle_cost(&mut self, watch: Duration) -> Result<Option<IdleCost>> {
        self.0.idle_cost(watch)
    }
}

/// A name for a schema that does not exist.
fn new_schema() -> String {
    static SCHEMAS: AtomicU64 = AtomicU64::new(1);
    format!("bench_{}", SCHEMAS.fetch_add(1, Relaxed))
}

/// Opens the stores of couriers that share a schema.
fn open_couriers(
    url: &str,
    schema: &str,
    couriers: usize,
    durability: Durability,
    dir: &Path,
) -> Result<Vec<SqlStore>> {
    let open = |courier: usize| {
        let options = PostgresOptions {
            url: url.to_owned(),
            schema: schema.to_owned(),
            courier: format!("courier-{courier}"),
            boot: "1".to_owned(),
            durability,
            objects: ObjectLocation::database(dir.join(format!("spool-{courier}"))),
        };
        Ok(PostgresStore::open(&options)?)
    };
    (0..couriers).map(open).collect()
}
