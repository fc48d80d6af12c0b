//! Background tasks: storing inbound messages, fetching their files, merging, Mail files, drafts, sending,
//! receipts in chats, questions about approvals, expiry of leases, retention.
//!
//! Hints may be lost, so every task also polls (see `background`).

/// Prefix of the holder name of the courier's own leases. A random number per start
/// follows, so that leases of an earlier run can be told apart. Clients cannot use the
/// prefix.
pub const HOLDER: &str = "courier:";

pub mod approval_asks;
pub mod dead_drafts;
mod delivery_hints;
pub mod draft_sender;
pub mod draft_watcher;
pub mod drafts;
pub mod email;
pub mod figures;
pub mod file_fetcher;
pub mod file_projector;
pub mod forget;
pub mod inbound;
pub mod index;
pub mod intake_quota;
pub mod locks_file;
mod lost_mails;
pub mod mailbox_check;
pub mod mailbox_dir;
pub mod merge;
pub mod place_file;
pub mod receipts;
pub mod retention;
pub mod sender;
pub mod sweeper;
#[cfg(test)]
mod test_hub;
pub mod tunnel_supervisor;
pub mod tunnels;
