//! Message hub for people and AI agents: the courier and its command line.
//!
//! # Reading order
//!
//! * [`serve`]: builds the courier and starts its tasks; the only place that wires.
//! * [`center`]: operations that combine several store calls: dispatch, send, trace.
//! * [`courier`]: background tasks: merging, sending, Mail files, drafts, retention.
//! * [`background`]: the loop that every background task runs in.
//! * [`pipeline`]: letters and the workers that process them.
//! * [`api`]: the HTTP API; one guard checks every request.
//! * [`cli`]: the command line; the only place that prints.
//! * [`config`]: reads and checks the config file.
//! * [`log`], [`log_limit`]: the courier's log and its rotation; limits repeated messages.
//! * [`task_group`], [`signals`]: tasks that stop together; process signals.
//! * [`supervisor`]: runs commands so that none of their processes outlives them.
//! * [`home`], [`clock`]: the courier's directory; the only caller of `now()`.

mod api;
mod background;
mod center;
mod cli;
mod clock;
mod config;
mod courier;
mod home;
mod log;
mod log_limit;
mod pipeline;
mod serve;
mod signals;
mod supervisor;
mod task_group;

fn main() -> std::process::ExitCode {
    supervisor::run_mode().unwrap_or_else(cli::main)
}
