//! The IMAP client: receives the mails of an account.
//!
//! * [`listener`]: keeps a connection, scans the folders and waits for mails.
//! * [`account`]: single operations, such as the checks of a probe.
//! * `scan`: reads the new mails of one folder.
//! * `login`, `session`: the commands.
//! * `wire`, `response`: bytes and their meaning.
//!
//! The client is written here and not taken from a crate: ADR 9 says why.

pub mod account;
pub mod listener;

mod error;
mod folder_name;
mod login;
mod response;
mod scan;
mod session;
mod timing;
mod wire;

#[cfg(test)]
mod tests;

pub use error::{ImapError, RejectedCommand};
pub use timing::ImapTiming;
