//! Measures durable queues side by side, in one run on one machine.
//!
//! Every contender acknowledges a message only once it would survive a power
//! cut, so what is compared is how well each shares one disk among many
//! clients. Run it with `./bench` from the root of the repository, which also
//! installs the peers; progress goes to stderr, Markdown tables to stdout.
//!
//! # Reading order
//!
//! * [`contender`]: what every contender can be asked.
//! * [`beanstalkd`], [`redis`], [`sqlite`]: the peers.
//! * [`store`], [`courier`]: ourselves, through the store and over HTTP.
//! * [`server`], [`resp`], [`payload`], [`table`]: the furniture.
//! * [`common`]: what all benchmarks measure with.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and nobody logs for it"
)]

mod beanstalkd;
#[path = "../common/mod.rs"]
mod common;
mod contender;
mod courier;
mod flags;
mod payload;
mod redis;
mod resp;
mod server;
mod sqlite;
mod store;
mod table;

use std::process::ExitCode;

use common::args::{Args, Benchmark};
use common::figures::{machine, thousands};
use common::{Result, drive};
use contender::{Cell, Contender};
use flags::Flags;
use table::Table;

/// Makes a contender that keeps its data below the given directory.
type Make = fn(&std::path::Path) -> Result<Box<dyn Contender>>;

/// Everyone who runs, in the order of the rows.
const CONTENDERS: &[(&str, Make)] = &[
    (beanstalkd::NAME, |dir| Ok(Box::new(beanstalkd::Beanstalkd::new(dir)?))),
    (redis::NAME, |dir| Ok(Box::new(redis::Redis::new(dir)?))),
    (sqlite::NAME, |dir| Ok(Box::new(sqlite::Sqlite::new(dir)))),
    (store::NAME, |dir| Ok(Box::new(store::Ours::new(dir)?))),
    (courier::NAME, |dir| Ok(Box::new(courier::Courier::new(dir, 1)))),
    (courier::BATCHES, |dir| Ok(Box::new(courier::Courier::new(dir, 100)))),
];

/// Whose figures the others are divided by.
const YARDSTICKS: &[&str] = &[beanstalkd::NAME, redis::NAME];

fn main() -> ExitCode {
    let names = CONTENDERS.iter().map(|(name, _)| *name).collect();
    Benchmark { usage: flags::usage, names, run }.main()
}

fn run(args: &Args) -> Result<()> {
    let flags = &Flags::new(args);
    let mut field = Vec::new();
    for (name, make) in CONTENDERS.iter().filter(|(name, _)| args.wants(name)) {
        field.push((*name, make(&args.dir).map_err(|err| format!("{name}: {err}"))?));
    }

    let cells = Cell::all(flags.deep_backlog);
    let mut table = Table::new(&cells);
    for cell in &cells {
        for (name, rate) in measure(&mut field, cell, flags)? {
            table.set(name, cell, rate);
        }
    }

    let mut at_rest = Vec::new();
    for (name, contender) in &mut field {
        if let Some(rest) = contender.at_rest(flags.rest).map_err(|err| format!("{name}: {err}"))? {
            at_rest.push((*name, rest));
        }
    }

    let starts = if args.wants(courier::NAME) {
        Some(courier::starts(&args.dir, flags.deep_backlog, flags.repeats)?)
    } else {
        None
    };

    println!("{}", conditions(flags, &field));
    println!("{}", table.rates());
    println!("{}", table.ratios(YARDSTICKS));
    if !at_rest.is_empty() {
        println!("{}", table::at_rest(&at_rest));
    }
    if let Some(starts) = starts {
        println!("{starts}");
    }
    Ok(())
}

/// The median rate of every contender in one cell.
///
/// The contenders take turns, one repetition each, so that a disk that is slow
/// for a minute is slow for all of them.
fn measure<'a>(
    field: &mut [(&'a str, Box<dyn Contender>)],
    cell: &Cell,
    flags: &Flags,
) -> Result<Vec<(&'a str, Option<f64>)>> {
    let mut seen: Vec<Vec<f64>> = field.iter().map(|_| Vec::new()).collect();
    for round in 1..=flags.repeats {
        for ((name, contender), rates) in field.iter_mut().zip(&mut seen) {
            let rate = match *cell {
                Cell::Enqueue { producers } => contender.enqueue(producers, flags.bounds),
                Cell::TakeFinish { takers, backlog } => {
                    contender.take_finish(takers, backlog, flags.bounds)
                }
            };
            let rate = rate.map_err(|err| format!("{name}, {cell}: {err}"))?;
            if let Some(rate) = rate {
                eprintln!("{cell}, round {round}: {name} {}/s", thousands(rate));
                rates.push(rate);
            }
        }
    }
    for (_, contender) in field.iter_mut() {
        contender.release();
    }
    Ok(field.iter().zip(seen).map(|((name, _), rates)| (*name, drive::median(rates))).collect())
}

/// One line that says on what, and of what, the figures were taken.
fn conditions(flags: &Flags, field: &[(&str, Box<dyn Contender>)]) -> String {
    let versions: Vec<String> = field.iter().map(|(_, contender)| contender.version()).collect();
    format!(
        "{}; {}; {} B messages; {} s per cell after {} s of warm-up, median of {}.\n",
        machine(),
        versions.join(", "),
        payload::SIZE,
        flags.bounds.measure.as_secs_f64(),
        flags.bounds.warm_up.as_secs_f64(),
        flags.repeats,
    )
}
