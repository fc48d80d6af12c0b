//! Shared by all benchmarks: command line, measurement and output.
//!
//! # Reading order
//!
//! * [`args`]: the command line.
//! * [`drive`]: measures rates.
//! * [`courier`]: runs the built courier in a temporary home.
//! * [`http`]: the HTTP client.
//! * [`server`], [`beanstalkd`]: processes of the peers, and a client of beanstalkd.
//! * [`resources`], [`figures`]: memory and CPU of a process, and formatting.

#![allow(dead_code, reason = "each benchmark uses its own part of this")]

pub mod args;
pub mod beanstalkd;
pub mod courier;
pub mod drive;
pub mod figures;
pub mod http;
pub mod resources;
pub mod server;

/// A message that says why a measurement failed.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;
