//! Background tasks: storing inbound messages, fetching their files, merging, Mail files, drafts, sending,
//! receipts in chats, questions about approvals, expiry of leases, retention, the search
//! index, the check of the database server.
//!
//! Hints may be lost, so every task also polls (see `background`).

pub mod approval_asks;
pub mod database_check;
pub mod dead_drafts;
mod delivery_hints;
pub mod draft_sender;
pub mod draft_watcher;
pub mod drafts;
pub mod duties;
pub mod email;
pub mod figures;
pub mod file_fetcher;
pub mod file_projector;
pub mod forget;
pub mod held_duties;
pub mod inbound;
pub mod index;
pub mod intake_quota;
pub mod locks_file;
mod lost_mails;
pub mod mailbox_check;
pub mod mailbox_dir;
pub mod merge;
pub mod missing_couriers;
pub mod object_check;
pub mod place_file;
pub mod receipts;
pub mod retention;
pub mod search_indexer;
pub mod sender;
pub mod sweeper;
#[cfg(test)]
mod test_hub;
pub mod tunnel_supervisor;
pub mod tunnels;
mod unrouted;
