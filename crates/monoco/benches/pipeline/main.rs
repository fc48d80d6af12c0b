//! Measures the post office: letters through a chain, over a hop to a beanstalkd, and
//! waiting behind a limit.
//!
//! Everything goes through the built binary over HTTP, as a program would that hands
//! letters in. Nobody takes what is sent: it waits in the outbox of a tunnel, on the disk.
//! Run it with `./bench --only pipeline` from the root of the repository; progress goes to
//! stderr, Markdown to stdout.
//!
//! # Reading order
//!
//! * [`plan`]: how much is measured.
//! * [`letters`]: what is handed in.
//! * [`pipeline`]: a courier with a chain, and how it is watched.
//! * [`chain`]: five workers of our own, beside a bare dispatch.
//! * [`hop`], [`tubes`]: one worker behind a beanstalkd, beside a bare cycle on it.
//! * [`waiting`]: memory and speed while very many letters wait.
//! * [`report`]: the tables.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and nobody logs for it"
)]

mod chain;
#[path = "../common/mod.rs"]
mod common;
mod hop;
mod letters;
mod office;
mod plan;
mod report;
#[path = "../peers/server.rs"]
#[expect(dead_code, reason = "the queues need more of it")]
mod server;
mod tubes;
mod waiting;

use std::process::ExitCode;

use common::Result;
use common::args::{Args, Benchmark};
use plan::{Part, Plan};
use report::Report;

fn main() -> ExitCode {
    Benchmark { usage: plan::usage, names: Part::NAMES.to_vec(), run }.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let mut report = Report::new(plan, &tubes::version()?);
    if plan.wants(Part::Chain) {
        chain::measure(plan, &mut report)?;
    }
    if plan.wants(Part::Hop) {
        hop::measure(plan, &mut report)?;
    }
    if plan.wants(Part::Waiting) {
        waiting::measure(plan, &mut report)?;
    }
    println!("{report}");
    Ok(())
}
