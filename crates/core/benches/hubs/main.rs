//! Simulates hubs beyond one PostgreSQL: several hubs by owner hash, joined by tunnels.
//!
//! It is a model: service times come from measurements of one hub, everything between hubs is
//! simulated. Run it with `./bench --only hubs` from the root of the repository; progress goes to
//! stderr, Markdown tables to stdout.
//!
//! # Reading order
//!
//! * [`options`]: what the model takes as given.
//! * [`service`]: service times from measured rates, and the writer of a hub.
//! * [`simulation`]: the discrete-event simulation.
//! * [`tables`]: the scenarios, and their tables.
//! * [`random`], [`latency`]: seeded random numbers, latencies in buckets.
//!
//! `crates/core/tests/hubs.rs` compares the simulation with closed forms and with measurements.

#![cfg_attr(
    test,
    allow(
        dead_code,
        unused_imports,
        reason = "the tests of the modules run in crates/core/tests/hubs.rs, which has a harness"
    )
)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]
#![allow(clippy::cast_possible_truncation, reason = "numbers of a model, bounded by its options")]

#[path = "../../../monoco/benches/common/figures.rs"]
mod figures;
mod latency;
mod options;
mod random;
mod service;
mod simulation;
mod tables;

use std::process::ExitCode;

use options::Action;

fn main() -> ExitCode {
    let printed = match options::parse(std::env::args().skip(1)) {
        Ok(Action::Run(options)) => tables::print_all(&options),
        Ok(Action::Help) => {
            print!("{}", options::usage());
            return ExitCode::SUCCESS;
        }
        // `cargo test --all-targets` runs benches too, without `--bench`.
        Ok(Action::Nothing) => return ExitCode::SUCCESS,
        Err(error) => Err(format!("{error}\n\n{}", options::usage())),
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
