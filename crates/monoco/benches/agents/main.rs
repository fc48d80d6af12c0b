//! Measures what agents and people use beside messages: full-text search.
//!
//! The benchmark dispatches messages to the built binary over HTTP and searches them over HTTP.
//! Run it with `./bench --only search` from the root of the repository; progress goes to stderr,
//! Markdown to stdout.
//!
//! # Reading order
//!
//! * [`messages`]: the Chinese, Japanese and English messages.
//! * [`search`]: time of searches, size of the index, and its cost for dispatches.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

#[path = "../common/mod.rs"]
mod common;
mod messages;
mod search;

use std::process::ExitCode;

use common::Result;
use common::args::{Args, Benchmark};

fn main() -> ExitCode {
    let benchmark = Benchmark {
        about: "Agents",
        quick: "search: 50,000 messages instead of 1,000,000, and one round",
        names: vec!["agents", "search"],
        run,
    };
    benchmark.main()
}

fn run(args: &Args) -> Result<()> {
    if args.wants_any(&["agents", "search"]) {
        println!("{}", search::measure(args)?);
    }
    Ok(())
}
