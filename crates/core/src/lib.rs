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
//! * [`limit`]: how often something may go.
//! * [`rule`]: which Mails a workspace pulls, and why.
//! * [`contact`]: whom we know, and how to reach them: [`contact::plan_delivery`].
//! * [`route`]: into which boxes a message goes that came in.
//! * [`session`]: conversations, as one owner sees them.
//! * [`event`]: what happened, for anyone who wants to know.
//! * [`pulse`]: how a tunnel is.
//! * [`life`]: how long the hub has lived, for what is thrown away by age.
//! * [`cursor`], [`json`], [`yaml`], [`time`]: where a page ends; what JSON and YAML we
//!   take; when.

pub mod claim;
pub mod contact;
pub mod cursor;
pub mod delivery;
pub mod did;
#[cfg(test)]
mod documented;
pub mod draft;
pub mod event;
pub mod heard;
pub mod json;
pub mod lease;
pub mod letter;
pub mod life;
pub mod limit;
pub mod mail;
pub mod merge;
pub mod object;
pub mod pulse;
pub mod receipt;
pub mod record;
pub mod retry;
pub mod route;
pub mod rule;
pub mod session;
pub mod time;
pub mod yaml;
