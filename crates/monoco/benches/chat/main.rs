//! Measures chat tunnels: frames from an emulated network to disk and acknowledgement, beside the
//! Python SDK of the vendor, the latency of acknowledgements, and memory.
//!
//! Emulator, courier and SDK are processes; emulator and courier are the built binary. The handler
//! of the SDK appends each message to a file and syncs it before it acknowledges, as the courier
//! does. Run it with `./bench --only chat` from the root of the repository; progress goes to stderr,
//! Markdown to stdout.
//!
//! # Reading order
//!
//! * [`plan`]: sizes and durations.
//! * [`emulator`]: `monoco sim` as a process, and its control API.
//! * [`contender`]: the courier and the SDK that receive its frames.
//! * [`frames`], [`memory`]: the measurements.
//! * [`report`]: the tables.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

#[path = "../common/mod.rs"]
mod common;
mod contender;
mod emulator;
mod frames;
mod memory;
mod plan;
mod report;

use std::process::ExitCode;

use common::Result;
use common::args::{Args, Benchmark};
use plan::Plan;
use report::Report;

fn main() -> ExitCode {
    let benchmark = Benchmark {
        about: "Chat tunnels",
        quick: "one repetition, 2,000 frames, 5 s of latency, 20 tunnels, 5 of each network",
        names: vec!["chat", "frames", "latency", "memory"],
        run,
    };
    benchmark.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let mut report = Report::new(plan)?;
    type Measure = fn(&Plan, &mut Report) -> Result<()>;
    let parts: [(&str, Measure); 3] = [
        ("frames", frames::measure_rates),
        ("latency", frames::measure_latency),
        ("memory", memory::measure),
    ];
    for (name, measure) in parts {
        if args.wants_any(&["chat", name]) {
            measure(plan, &mut report)?;
        }
    }
    println!("{report}");
    Ok(())
}
