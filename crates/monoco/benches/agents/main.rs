//! Measures what agents and people use beside messages: MCP tools, approvals and full-text search.
//!
//! The benchmark uses the built binary over HTTP. Run it with `./bench --only calls` or `./bench
//! --only search` from the root of the repository, both with `--only agents`; progress goes to
//! stderr, Markdown to stdout.
//!
//! # Reading order
//!
//! * [`calls`]: tools beside the plain API, and sends with and without rules.
//! * [`messages`]: the Chinese, Japanese and English messages.
//! * [`search`]: time of searches, size of the index, and its cost for dispatches.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

mod calls;
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
        quick: "one round each; search: 50,000 messages instead of 1,000,000",
        names: vec!["agents", "calls", "search"],
        run,
    };
    benchmark.main()
}

fn run(args: &Args) -> Result<()> {
    if args.wants_any(&["agents", "calls"]) {
        println!("{}", calls::measure(args)?);
    }
    if args.wants_any(&["agents", "search"]) {
        println!("{}", search::measure(args)?);
    }
    Ok(())
}
