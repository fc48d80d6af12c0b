//! Domain types and decisions of the hub.
//!
//! This crate performs no I/O, spawns no task and reads no clock. Callers pass the facts in,
//! `now` included, and carry out the result. So the tests of this crate are tables, and the
//! other crates contain no decisions.
//!
//! # Reading order
//!
//! * [`did`]: DIDs of owners, authors, targets and external endpoints ("shadow DIDs").
//! * [`object`]: MsgObject and ObjId: immutable messages, identified by their hash.
//! * [`outgoing`]: the parts of a message that an adapter sends.
//! * [`receipt`]: read status of one reader for one message.
//! * [`inbound`]: messages received from providers.
//! * [`chat_receipt`]: reactions to messages that were kept, completed or given up.
//! * [`merge`]: when messages become a Mail, and its text.
//! * [`mail`]: the Mail and its file, Markdown with a front matter.
//! * [`draft`]: a message to send, as a file.
//! * [`email`]: watched e-mail accounts; the e-mail task state machine.
//! * [`lease`], [`retry`]: leases with epochs; failures, backoff and retry policies.
//! * [`courier`]: ids of couriers that share a store, and the holders of their leases.
//! * [`duty`]: work that one of these couriers does; the duty state machine.
//! * [`clock_skew`]: differences between the clocks of machines that share a store.
//! * [`rendezvous`]: which of several nodes has a key.
//! * [`record`]: MsgRecord and boxes; the read state machine.
//! * [`delivery`]: Delivery; the send state machine.
//! * [`claim`]: Claim and the location of a Mail's file; the claim state machine.
//! * [`letter`]: Letter, verdicts and chains of the pipeline; the letter state machine.
//! * [`approval`]: which sends wait for a person; the approval state machine.
//! * [`halt`]: the kill switch.
//! * [`dead_letter`]: which dead letters an operator retries or drops together.
//! * [`rate_limit`]: rate limits by reserved time slots.
//! * [`filter`]: which Mails a workspace pulls, and why.
//! * [`contact`]: contacts and bindings; [`contact::plan_delivery`].
//! * [`routing`]: which boxes an inbound message goes to.
//! * [`session`]: conversations of one owner.
//! * [`short_id`]: ids that are given in part.
//! * [`search`]: tokens, queries and snippets of the full-text search.
//! * [`text_budget`]: how many tokens a text has for a language model.
//! * [`token`]: tokens of agents, their scopes, and what a token allows.
//! * [`event`]: the log of events.
//! * [`erasure`]: what happens to a message when its author's text is erased.
//! * [`tunnel_health`]: status and last errors of a tunnel.
//! * [`retention`]: elapsed-time counter for retention.
//! * [`unsafe_text`]: characters that are escaped or removed in untrusted text.
//! * [`config`]: reader of configuration sections for providers and workers.
//! * `names`: macros for types that have a text form.
//! * [`cursor`], [`json`], [`yaml`], [`hex`], [`time`]: page cursors, strict JSON, bounded YAML,
//!   hex and timestamps.

pub mod approval;
pub mod chat_receipt;
pub mod claim;
pub mod clock_skew;
pub mod config;
pub mod contact;
pub mod courier;
pub mod cursor;
pub mod dead_letter;
pub mod delivery;
pub mod did;
pub mod draft;
pub mod duty;
pub mod email;
pub mod erasure;
pub mod event;
pub mod figures;
pub mod filter;
pub mod halt;
pub mod hex;
pub mod inbound;
pub mod json;
pub mod lease;
pub mod letter;
pub mod mail;
pub mod merge;
mod names;
pub mod object;
pub mod outgoing;
pub mod page_login;
pub mod rate_limit;
pub mod receipt;
pub mod record;
pub mod rendezvous;
pub mod retention;
pub mod retry;
pub mod routing;
pub mod search;
pub mod session;
pub mod short_id;
#[cfg(test)]
mod state_tables;
pub mod tag;
pub mod text_budget;
pub mod time;
pub mod token;
pub mod tunnel_health;
pub mod unsafe_text;
pub mod yaml;
