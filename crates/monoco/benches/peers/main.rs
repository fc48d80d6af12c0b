//! Measures durable queues in one run on one machine.
//!
//! Every contender acknowledges a message only after it would survive a power cut, so the
//! benchmark compares how well each shares one disk among many clients. Run it with `./bench` from the root of the repository, which also
//! installs the peers; progress goes to stderr, Markdown tables to stdout.
//!
//! # Reading order
//!
//! * [`contender`]: the measurements of every contender.
//! * [`beanstalkd`], [`redis`], [`sqlite`]: the peers.
//! * [`store`], [`courier`]: Monoco through the store and over HTTP.
//! * [`resp`], [`payload`], [`table`]: protocol, messages, output.
//! * [`common`]: shared by all benchmarks.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

mod beanstalkd;
#[path = "../common/mod.rs"]
mod common;
mod contender;
mod courier;
mod payload;
mod plan;
mod redis;
mod resp;
mod sqlite;
mod store;
mod table;

use std::process::ExitCode;

use common::Result;
use common::args::{Args, Benchmark};
use common::figures::machine;
use contender::{Cell, Contender, Measured, Peer, measure};
use plan::Plan;
use table::Table;

/// Creates a contender with its data below the given directory.
type Make = fn(&std::path::Path) -> Result<Box<dyn Contender>>;

/// All contenders, in the order of the rows.
const CONTENDERS: &[(&str, Make)] = &[
    (beanstalkd::NAME, |dir| measured(beanstalkd::Beanstalkd::new(dir)?)),
    (redis::NAME, |dir| measured(redis::Redis::new(dir)?)),
    (sqlite::NAME, |dir| measured(sqlite::Sqlite { below: dir.to_owned() })),
    (store::NAME, |dir| measured(store::StoreContender::new(dir)?)),
    (courier::NAME, |dir| measured(courier::Courier { below: dir.to_owned(), batch: 1 })),
    (courier::BATCHES, |dir| measured(courier::Courier { below: dir.to_owned(), batch: 100 })),
];

fn measured(peer: impl Peer + Sync + 'static) -> Result<Box<dyn Contender>> {
    Ok(Box::new(Measured::new(peer)))
}

/// Contenders by whose figures the others are divided.
const YARDSTICKS: &[&str] = &[beanstalkd::NAME, redis::NAME];

fn main() -> ExitCode {
    let names = CONTENDERS.iter().map(|(name, _)| *name).collect();
    let quick = "one short round per cell, and a backlog of 100,000 instead of 1,000,000";
    Benchmark { about: "Message queues (`--only peers` selects all)", quick, names, run }.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let mut field = Vec::new();
    for (name, make) in CONTENDERS.iter().filter(|(name, _)| args.wants(name)) {
        field.push((*name, make(&args.dir).map_err(|err| format!("{name}: {err}"))?));
    }

    let cells = Cell::all(plan.deep_backlog);
    let mut table = Table::new(&cells);
    for cell in &cells {
        for (name, rate) in measure(&mut field, cell, plan)? {
            table.set(name, cell, rate);
        }
    }

    let mut idle_cost = Vec::new();
    for (name, contender) in &mut field {
        if let Some(rest) =
            contender.idle_cost(plan.rest).map_err(|err| format!("{name}: {err}"))?
        {
            idle_cost.push((*name, rest));
        }
    }

    let starts = if args.wants(courier::NAME) {
        Some(courier::starts(&args.dir, plan.deep_backlog, plan.repeats)?)
    } else {
        None
    };

    println!("{}", conditions(plan, &field));
    println!("{}", table.rates());
    println!("{}", table.ratios(YARDSTICKS));
    if !idle_cost.is_empty() {
        println!("{}", table::idle_cost(&idle_cost));
    }
    if let Some(starts) = starts {
        println!("{starts}");
    }
    Ok(())
}

/// One line with machine, versions and durations.
fn conditions(plan: &Plan, field: &[(&str, Box<dyn Contender>)]) -> String {
    let versions: Vec<String> = field.iter().map(|(_, contender)| contender.version()).collect();
    format!(
        "{}; {}; {} B messages; {} s per cell after {} s of warm-up, median of {}.\n",
        machine(),
        versions.join(", "),
        payload::SIZE,
        plan.bounds.measure.as_secs_f64(),
        plan.bounds.warm_up.as_secs_f64(),
        plan.repeats,
    )
}
