//! Measures the pipeline: letters through a chain, through a worker behind beanstalkd, and
//! waiting behind a rate limit.
//!
//! The benchmark submits letters to the built binary over HTTP. The tunnel has no sender, so
//! sent letters stay in its outbox on disk.
//! Run it with `./bench --only pipeline` from the root of the repository; progress goes to
//! stderr, Markdown to stdout.
//!
//! # Reading order
//!
//! * [`plan`]: sizes and durations.
//! * [`letters`]: the letters that are submitted.
//! * [`harness`]: a courier with a chain, and how its progress is polled.
//! * [`chain`]: five built-in workers, compared with a dispatch without a chain.
//! * [`hop`], [`tubes`]: one worker behind beanstalkd, compared with jobs on beanstalkd alone.
//! * [`waiting`]: memory and speed while up to 1,000,000 letters wait.
//! * [`report`]: the tables.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

mod chain;
#[path = "../common/mod.rs"]
mod common;
mod harness;
mod hop;
mod letters;
mod plan;
mod report;
mod tubes;
mod waiting;

use std::process::ExitCode;

use common::Result;
use common::args::{Args, Benchmark};
use plan::Plan;
use report::Report;

fn main() -> ExitCode {
    let benchmark = Benchmark {
        about: "Pipeline",
        quick: "one repetition, and 50,000 waiting letters instead of 1,000,000",
        names: vec!["pipeline", "chain", "hop", "waiting"],
        run,
    };
    benchmark.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let mut report = Report::new(plan, &common::beanstalkd::version()?);
    type Measure = fn(&Plan, &mut Report) -> Result<()>;
    let parts: [(&str, Measure); 3] =
        [("chain", chain::measure), ("hop", hop::measure), ("waiting", waiting::measure)];
    for (name, measure) in parts {
        if args.wants_any(&["pipeline", name]) {
            measure(plan, &mut report)?;
        }
    }
    println!("{report}");
    Ok(())
}
