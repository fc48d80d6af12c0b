//! What runs in the background: keeping, merging, files, drafts, sending, sweeping.
//!
//! Hints say "look again" and may be lost, so every loop also looks by itself.

/// What the courier's loops are called while they hold something. The rest of the
/// name is the boot, so that what an earlier one held can be told apart; nobody else
/// may call himself so.
pub const HOLDER: &str = "courier:";

pub mod draft_sender;
pub mod draft_watcher;
pub mod drafts;
pub mod file_projector;
pub mod inbound;
pub mod index;
pub mod locks_file;
pub mod mailbox_check;
pub mod mailbox_dir;
pub mod merge;
pub mod place_file;
pub mod retention;
pub mod sender;
pub mod sweeper;
#[cfg(test)]
mod test_hub;
pub mod tunnels;
