//! Measures the courier and the mailbox, and the algorithms of the Python predecessor.
//!
//! The benchmark uses the built binary like a user: signed webhooks and claims over HTTP,
//! `mailbox sync` and `mailbox list` from the command line. `predecessor.py` implements the
//! algorithms of the predecessor. Run it with `./bench --only mailbox` from the root of the repository;
//! progress goes to stderr, Markdown to stdout.
//!
//! # Reading order
//!
//! * [`plan`]: sizes and durations.
//! * [`target`], [`predecessor`]: the two programs that are measured.
//! * [`webhook`]: a provider that pushes signed messages.
//! * [`ingest`]: a steady stream of webhooks until the last file is written.
//! * [`population`]: a courier with many Mails, used by [`sync`] and [`claims`].
//! * [`mailbox_files`], [`report`]: reading the files, and writing the tables.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

mod claims;
#[path = "../common/mod.rs"]
mod common;
mod ingest;
mod mailbox_files;
mod plan;
mod population;
mod predecessor;
mod report;
mod sync;
mod target;
mod webhook;

use std::process::ExitCode;

use common::Result;
use common::args::{Args, Benchmark};
use plan::{Part, Plan};
use population::Population;
use report::Report;

fn main() -> ExitCode {
    Benchmark { usage: plan::usage, names: Part::NAMES.to_vec(), run }.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let mut report = Report::new(plan, &predecessor::version()?);
    if plan.wants(Part::Ingest) {
        ingest::measure(plan, &mut report)?;
    }
    if plan.wants(Part::Sync) || plan.wants(Part::Claims) {
        let mut population = Population::make(plan)?;
        if plan.wants(Part::Sync) {
            population = sync::measure(plan, population, &mut report)?;
        }
        if plan.wants(Part::Claims) {
            // Last, because it moves Mails to the archive.
            claims::measure(plan, population, &mut report)?;
        }
    }
    println!("{report}");
    Ok(())
}
