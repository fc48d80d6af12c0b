//! What runs in the background: keeping, merging, files, drafts, sending, sweeping.
//!
//! Hints say "look again" and may be lost, so every loop also looks by itself.

/// What the courier's loops are called while they hold something. The rest of the
/// name is the boot, so that what an earlier one held can be told apart; nobody else
/// may call himself so.
pub const HOLDER: &str = "courier:";

pub mod check;
pub mod drafts;
pub mod files;
#[cfg(test)]
mod hub;
pub mod index;
pub mod keep;
pub mod locks;
pub mod merge;
pub mod outbound;
pub mod place;
pub mod retention;
pub mod sender;
pub mod sending;
pub mod sweep;
pub mod tree;
pub mod tunnels;
