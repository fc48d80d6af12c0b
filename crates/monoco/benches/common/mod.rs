//! What the benchmarks share: how they are called, how they measure, how they show it.
//!
//! # Reading order
//!
//! * [`args`]: what the command line asks for.
//! * [`drive`]: how a rate is measured.
//! * [`running`]: the built courier, in a home of its own.
//! * [`http`]: the client it is asked with.
//! * [`resources`], [`figures`]: what a process costs, and how numbers are written.

#![allow(dead_code, reason = "each benchmark uses its own part of this")]

pub mod args;
pub mod drive;
pub mod figures;
pub mod http;
pub mod resources;
pub mod running;

/// Why a measurement was not possible, in words.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;
