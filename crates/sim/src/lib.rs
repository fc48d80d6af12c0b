//! Emulators of chat networks on loopback, for trials without credentials and for tests.
//!
//! The crate uses no other Monoco crate: an error in the reading of a protocol must not be made once
//! and then hide in both the adapter and the emulator. The vendors' own SDKs run against each
//! emulator in the tests.
//!
//! # Reading order
//!
//! * `provider`: what one network implements; `slack`, `dingtalk`, `lark` and `telegram` are the
//!   networks.
//! * `world`: the state of one emulator: chats, messages, files, sockets, queue, chaos.
//! * `event_queue`: events on their way to the bot, acknowledgements and redelivery.
//! * `server`, `socket`, `push`: HTTP server, WebSocket server, HTTP callbacks.
//! * `control`: the control API, by which a person or a test acts; see `docs/sim.md`.
//! * `chaos`: faults that can be switched on.

mod call_rates;
mod chaos;
mod clock;
mod connections;
mod control;
mod counters;
mod dingtalk;
mod event_queue;
mod http;
mod lark;
mod locked;
mod multipart;
mod people;
mod pong_filter;
mod provider;
mod push;
mod random;
mod recent_map;
mod scopes;
mod server;
mod settings;
mod signature;
mod slack;
mod socket;
mod store;
mod telegram;
mod world;

pub use server::{SimError, Simulator};

/// Networks that can be emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimNetwork {
    Slack,
    DingTalk,
    Lark,
    Telegram,
}

/// How an emulator is started.
#[derive(Clone, Debug)]
pub struct SimOptions {
    pub network: SimNetwork,
    /// Address to listen on; must be a loopback address. Port 0 selects a free port.
    pub address: std::net::SocketAddr,
    /// Bearer token that the control API demands, if any.
    pub control_token: Option<String>,
    /// Number of apps with credentials of their own, at least 1.
    pub apps: usize,
}
