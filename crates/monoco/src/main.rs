//! One post office for people and AI agents: the courier and its command line.
//!
//! # Reading order
//!
//! * [`serve`]: builds the courier. The only place that wires.
//! * [`center`]: what the hub does with messages, for whoever asks.
//! * [`courier`]: what runs in the background.
//! * [`pipeline`]: letters, and the workers they go through.
//! * [`mailbox`]: the workspace's side: files, and no courier needed.
//! * [`api`]: the HTTP door. One guard in front of all of it.
//! * [`cli`]: the command line. The only place that prints.
//! * [`config`]: the config file, checked.
//! * [`log`]: what the courier says of itself.
//! * [`home`], [`clock`]: the files around the store; the only caller of `now()`.

mod api;
mod center;
mod cli;
mod clock;
mod config;
mod courier;
mod home;
mod log;
mod pipeline;
mod serve;

fn main() -> std::process::ExitCode {
    cli::main()
}
