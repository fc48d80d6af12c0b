//! Tests of the socket loop against scripted servers.

#![expect(clippy::disallowed_methods, reason = "a test has no task group")]

mod connections;
mod decisions;
mod encryption;
mod frames;
pub(super) mod support;
