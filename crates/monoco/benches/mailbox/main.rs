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
//! * [`population`]: a courier with many Mails, used by [`sync`], [`page`] and [`claims`].
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
mod page;
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
use plan::Plan;
use population::Population;
use report::Report;

fn main() -> ExitCode {
    let benchmark = Benchmark {
        about: "Courier and mailbox, compared with the Python predecessor",
        quick: "10 s of webhooks, 5,000 Mails, one repetition",
        names: vec!["mailbox", "ingest", "sync", "page", "claims"],
        run,
    };
    benchmark.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let mut report = Report::new(plan, &predecessor::version()?);
    let wants = |part| args.wants_any(&["mailbox", part]);
    if wants("ingest") {
        ingest::measure(plan, &mut report)?;
    }
    if wants("sync") || wants("page") || wants("claims") {
        let mut population = Population::make(plan)?;
        if wants("sync") {
            population = sync::measure(plan, population, &mut report)?;
        }
        if wants("page") {
            page::measure(plan, &population, &mut report)?;
        }
        if wants("claims") {
            // Last, because it moves Mails to the archive.
            claims::measure(plan, population, &mut report)?;
        }
    }
    println!("{report}");
    Ok(())
}
