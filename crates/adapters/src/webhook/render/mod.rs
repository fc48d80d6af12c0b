//! Converts the events of well-known senders into text for people, one file per sender.

pub(super) mod github;
