//! The courier: the daemon that receives, stores, merges and sends messages, with its HTTP API.
//!
//! # Reading order
//!
//! * [`serve`]: builds the courier and starts its tasks; the only place that wires.
//! * `center`: operations that combine several store calls: dispatch, send, trace.
//! * [`courier`]: background tasks: merging, sending, Mail files, drafts, retention.
//! * `background`: the loop that every background task runs in.
//! * [`pipeline`]: letters and the workers that process them.
//! * [`api`]: the HTTP API; one guard checks every request.
//! * [`mcp`]: tools, resources and prompts for agents, at `/mcp` of the API.
//! * [`config`]: reads and checks the config file.
//! * [`open_store`]: opens the store that the config names.
//! * [`log`], `log_limit`: the courier's log and its rotation; limits repeated messages.
//! * [`tls`], `remote_listener`: the listener for other machines and its certificate.
//! * `task_group`, `signals`: tasks that stop together; process signals.
//! * [`supervisor`]: runs commands so that none of their processes outlives them.
//! * [`home`], [`clock`]: the courier's directory; the only caller of `now()`.

pub mod api;
mod background;
mod center;
pub mod clock;
pub mod config;
pub mod courier;
pub mod home;
pub mod log;
mod log_limit;
pub mod mcp;
pub mod open_store;
pub mod pipeline;
mod remote_listener;
pub mod s3;
pub mod serve;
mod signals;
pub mod supervisor;
mod task_group;
pub mod tls;
