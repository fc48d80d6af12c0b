//! The built binary, used as a user would: one file per door, and what it must stand.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]
#![allow(missing_docs, reason = "tests are sentences")]

mod acks;
mod api;
mod book;
mod carriers;
mod clerk;
mod cli;
mod clock;
mod common;
mod crash;
mod cuts;
mod daemon;
mod drafts;
mod faults;
mod files;
mod hooks;
mod hostile;
mod judges;
mod letter_mime;
mod letter_sweeps;
mod letters;
mod mails;
mod mime;
mod office;
mod outsiders;
mod pipeline;
mod replays;
mod room;
mod rspamd;
mod story;
mod sweeps;
mod takers;
mod tidy;
mod tour;
mod webhooks;
