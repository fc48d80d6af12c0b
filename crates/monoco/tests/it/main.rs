//! The built binary, used as a user would: one file per door.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]
#![allow(missing_docs, reason = "tests are sentences")]

mod api;
mod cli;
mod common;
mod tidy;
mod tour;
