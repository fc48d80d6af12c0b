//! The command line of Monoco, a message hub for people and AI agents.
//!
//! [`cli`] has one file per command; it is the only place that prints. The daemon that the commands
//! talk to is in the crate `monoco-courier`.

mod cli;

fn main() -> std::process::ExitCode {
    monoco_courier::supervisor::run_mode().unwrap_or_else(cli::main)
}
