//! What the hub talks about, and every decision it takes.
//!
//! Nothing here performs I/O, spawns a task or reads a clock. Callers pass the
//! facts in, `now` among them, and carry the answer out. That is what lets the
//! tests of this crate be tables, and the rest of the code be plumbing.
//!
//! # Reading order
//!
//! * [`did`]: who. Every owner, author and target, and endpoints on outside
//!   networks ("shadow DIDs").
//! * [`object`]: what was said. Immutable, and named by its own content.
//! * [`receipt`]: that somebody read it; an object of its own.
//! * [`heard`]: what a provider told us, before anyone has judged it.
//! * [`merge`]: when a burst of messages becomes one Mail, and what it then says.
//! * [`mail`]: the Mail, and its file: Markdown with a front matter.
//! * [`draft`]: what somebody wants to send, as a file.
//! * [`lease`], [`retry`]: holding something for a while; trying again.
//! * [`record`]: one owner's view of one object. The reading machine.
//! * [`delivery`]: one object on its way to one target. The sending machine.
//! * [`claim`]: one workspace's hold on one Mail. The claiming machine.
//! * [`letter`]: what goes through the post office, and where it stands there.
//! * [`rate_limit`]: how often something may go.
//! * [`filter`]: which Mails a workspace pulls, and why.
//! * [`contact`]: whom we know, and how to reach them: [`contact::plan_delivery`].
//! * [`routing`]: into which boxes a message goes that came in.
//! * [`session`]: conversations, as one owner sees them.
//! * [`event`]: what happened, for anyone who wants to know.
//! * [`tunnel_health`]: how a tunnel is.
//! * [`retention`]: how long the hub has lived, for what is thrown away by age.
//! * [`config`]: reading typed values from a YAML config file.
//! * [`cursor`], [`json`], [`yaml`], [`time`]: where a page ends; what JSON and YAML we
//!   take; when.

pub mod claim;
pub mod config;
pub mod contact;
pub mod cursor;
pub mod delivery;
pub mod did;
pub mod draft;
pub mod event;
pub mod filter;
pub mod hex;
pub mod inbound;
pub mod json;
pub mod lease;
pub mod letter;
pub mod mail;
pub mod merge;
pub mod object;
pub mod rate_limit;
pub mod receipt;
pub mod record;
pub mod retention;
pub mod retry;
pub mod routing;
pub mod session;
#[cfg(test)]
mod state_tables;
pub mod time;
pub mod tunnel_health;
pub mod unsafe_text;
pub mod yaml;
