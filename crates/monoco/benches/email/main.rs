//! Measures e-mail accounts: the first fetch of a mailbox, polls without news, and memory, beside
//! mbsync, getmail and fetchmail.
//!
//! All programs fetch the same generated mails from one Dovecot on this machine, without
//! encryption, into empty directories. The courier runs as the built binary.
//! Run it with `./bench --only email` from the root of the repository; progress goes to stderr,
//! Markdown to stdout.
//!
//! # Reading order
//!
//! * [`plan`]: sizes and repetitions.
//! * [`mails`]: the generated mails.
//! * [`dovecot`]: the server and its mailboxes.
//! * [`peers`]: the programs beside the courier.
//! * [`account`]: a courier with one account, and how its progress is polled.
//! * [`fetch`], [`large`]: the measurements.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark program: the table is its output, and it needs no log"
)]

mod account;
#[path = "../common/mod.rs"]
mod common;
mod dovecot;
mod fetch;
mod large;
mod mails;
mod peers;
mod plan;
mod report;

use std::process::ExitCode;

use common::Result;
use common::args::{Args, Benchmark};
use plan::Plan;
use report::Report;

fn main() -> ExitCode {
    let benchmark = Benchmark {
        about: "E-mail accounts",
        quick: "a fifth of the mails, and one repetition",
        names: vec!["email", "email-10000", "email-files", "email-100000", "email-large"],
        run,
    };
    benchmark.main()
}

fn run(args: &Args) -> Result<()> {
    let plan = &Plan::new(args);
    let mut report = Report::new(plan)?;
    if args.wants_any(&["email", "email-10000"]) {
        fetch::measure(plan, &mut report)?;
    }
    if args.names_any(&["email-files"]) {
        fetch::measure_files(plan, &mut report)?;
    }
    // About 2 GB on disk and 3 minutes: only when it is asked for.
    if args.names_any(&["email-100000"]) {
        fetch::measure_many(plan, &mut report)?;
    }
    if args.wants_any(&["email", "email-large"]) {
        large::measure(plan, &mut report)?;
    }
    println!("{report}");
    Ok(())
}
