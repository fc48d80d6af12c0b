//! What runs in the background: the sender and the sweeper.
//!
//! Hints say "look again" and may be lost, so every loop also looks by itself.

pub mod sender;
pub mod sweep;
