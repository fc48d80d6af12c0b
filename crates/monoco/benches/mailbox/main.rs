//! Measures the courier and the mailbox beside the predecessor's way of doing it.
//!
//! Everything goes through the built binary, as a user would: signed webhooks
//! and claims over HTTP, `mailbox sync` and `mailbox list` from the command
//! line. The predecessor's way is `predecessor.py`, which says what it stands
//! for. Run it with `./bench --only mailbox` from the root of the repository;
//! progress goes to stderr, Markdown to stdout.
//!
//! # Reading order
//!
//! * [`plan`]: how much is measured.
//! * [`pipeline`], [`predecessor`]: who is measured, and how both are reached.
//! * [`hook`]: a provider that pushes signed messages.
//! * [`ingest`]: a steady stream of webhooks, to the last file.
//! * [`population`]: many Mails, made once; [`pull`] and [`claims`] work on them.
//! * [`tree`], [`report`]: reading the files, and writing the table.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and nobody logs for it"
)]

mod claims;
#[path = "../common/mod.rs"]
mod common;
mod hook;
mod ingest;
mod office;
mod plan;
mod population;
mod predecessor;
mod pull;
mod report;
mod tree;

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
    if plan.wants(Part::Pull) || plan.wants(Part::Claims) {
        let mut population = Population::make(plan)?;
        if plan.wants(Part::Pull) {
            population = pull::measure(plan, population, &mut report)?;
        }
        if plan.wants(Part::Claims) {
            // Last, for it moves Mails to the archive.
            claims::measure(plan, population, &mut report)?;
        }
    }
    println!("{report}");
    Ok(())
}
