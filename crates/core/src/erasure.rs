//! Erasure of one person's text: what happens to a message, a Mail, a receipt or a letter.
//!
//! ```text
//!   written by the person alone ──▶ tombstone: the id stays, the text goes
//!   a Mail of several authors   ──▶ a new object with `[erased]` in place of the person's
//!                                   messages supersedes the old one
//! ```
//!
//! Ids, times and accounts stay, because records, events and duplicate detection refer to them.

use std::collections::BTreeSet;

use crate::did::{Did, TunnelId};
use crate::hex;
use crate::inbound::{ChatSession, InboundMessage, Participant};
use crate::mail::{Mail, MailHeader, MailIndexEntry, Participants};
use crate::merge::{self, BuiltMail};
use crate::object::{MsgObject, ObjId, ObjKind};
use crate::receipt::Receipt;
use crate::time::Timestamp;

/// Stands in place of an erased text.
pub const ERASED_TEXT: &str = "[erased]";

/// The DIDs of one person: a contact, and the accounts that are bound to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErasedAuthors(pub BTreeSet<Did>);

/// What an erasure does with one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErasureAction {
    /// The person wrote nothing of it, or it was erased before.
    Keep,
    /// The person wrote all of it: the text goes, the id stays.
    Tombstone {
        /// Messages of the person, when the object is a Mail.
        messages: usize,
    },
    /// The person wrote some messages of a Mail: this one supersedes it.
    Rewrite { mail: Box<BuiltMail>, messages: usize },
}

impl ErasedAuthors {
    /// Texts of which at least one occurs in the JSON of everything that the person wrote.
    pub fn search_terms(&self) -> Vec<String> {
        let mut terms = Vec::new();
        for did in &self.0 {
            terms.push(did.to_string());
            // Messages in Mails and letters name the account instead of the DID.
            let account = did.endpoint().map(|endpoint| endpoint.account);
            terms.extend(account.and_then(|account| serde_json::to_string(&account).ok()));
        }
        terms
    }

    /// Whether the person wrote an inbound message of `tunnel`.
    pub fn wrote(&self, message: &InboundMessage, tunnel: &TunnelId) -> bool {
        message.from.did(tunnel).is_ok_and(|did| self.0.contains(&did))
    }

    /// Whether the person wrote a letter. `from` is a DID, or an address behind `tunnel`, which
    /// is `None` while it is unknown.
    pub fn wrote_letter(&self, from: &str, tunnel: Option<&TunnelId>) -> bool {
        self.0.iter().any(|did| {
            let is_account = did.endpoint().is_some_and(|endpoint| {
                endpoint.account.eq_ignore_ascii_case(from)
                    && tunnel.is_none_or(|tunnel| *tunnel == endpoint.tunnel)
            });
            did.as_str() == from || is_account
        })
    }

    /// Decides about a message. `is_mail` tells whether the store has it as a Mail.
    pub fn action(&self, msg: &MsgObject, is_mail: bool) -> ErasureAction {
        let mail = if is_mail { Mail::read(msg.id(), msg.canonical()).ok() } else { None };
        match mail {
            Some(mail) => self.action_for_mail(msg, &mail),
            None if self.0.contains(msg.author()) => ErasureAction::Tombstone { messages: 0 },
            None => ErasureAction::Keep,
        }
    }

    /// Decides about a receipt, which can have a reason in the reader's words.
    pub fn action_for_receipt(&self, receipt: &Receipt) -> ErasureAction {
        if self.0.contains(&receipt.iss) || self.0.contains(&receipt.reader) {
            return ErasureAction::Tombstone { messages: 0 };
        }
        ErasureAction::Keep
    }

    fn action_for_mail(&self, msg: &MsgObject, mail: &Mail) -> ErasureAction {
        let wrote = |message: &&InboundMessage| self.wrote(message, &mail.header.tunnel);
        let count = mail.messages.iter().filter(wrote).count();
        if count == 0 {
            return ErasureAction::Keep;
        }
        // Messages of others that were erased before have no text either.
        if mail.messages.iter().all(|message| wrote(&message) || erased(message) == *message) {
            return ErasureAction::Tombstone { messages: count };
        }
        match self.rewrite(msg, mail) {
            Some(rewritten) if rewritten.object.id() == msg.id() => ErasureAction::Keep,
            Some(rewritten) => ErasureAction::Rewrite { mail: rewritten.into(), messages: count },
            // Cannot happen, because the new object is smaller. The text must go anyway.
            None => ErasureAction::Tombstone { messages: count },
        }
    }

    /// Builds the Mail again, with the person's messages erased.
    fn rewrite(&self, msg: &MsgObject, mail: &Mail) -> Option<BuiltMail> {
        let Mail { header, messages, .. } = mail;
        let erase = |message: &InboundMessage| match self.wrote(message, &header.tunnel) {
            true => erased(message),
            false => message.clone(),
        };
        let messages: Vec<_> = messages.iter().map(erase).collect();
        let header = MailHeader {
            participants: merge::participants(&messages),
            title: messages.iter().find_map(|message| message.title.clone()),
            artifacts: merge::artifacts(&messages),
            correlation_id: messages.iter().find_map(|message| message.correlation_id.clone()),
            reply_to: messages.first().and_then(|first| first.reply_to.clone()),
            ..header.clone()
        };
        let (text, owner) = (merge::compose(&messages), msg.to.first()?);
        let object = merge::object(&header, &messages, &text, msg.author(), owner).ok()?;
        let mail = Mail { header, msg_id: object.id(), messages, text };
        Some(BuiltMail { mail, object })
    }
}

/// The message without anything that its author wrote: its id, times and account stay.
fn erased(message: &InboundMessage) -> InboundMessage {
    let from = Participant { name: None, ..message.from.clone() };
    InboundMessage {
        at: message.at,
        received_at: message.received_at,
        ..InboundMessage::new(message.id.clone(), ChatSession::default(), from, ERASED_TEXT)
    }
}

/// The index entry of a Mail that became a tombstone.
pub fn tombstone_entry(entry: &MailIndexEntry, at: Timestamp) -> MailIndexEntry {
    let account = |author: &Participant| Participant { name: None, ..author.clone() };
    let from = entry.participants.from.iter().map(account).collect();
    MailIndexEntry {
        session: ChatSession { name: None, thread_key: None, ..entry.session.clone() },
        participants: Participants { from, ..Participants::default() },
        title: None,
        correlation_id: None,
        messages: 0,
        preview: ERASED_TEXT.to_owned(),
        tokens: None,
        erased_at: Some(at),
        ..entry.clone()
    }
}

/// The first eight bytes of the hashes of the e-mails that the messages of a stored text were read
/// from: their external ids end with `#` and these bytes, or with the whole hash.
pub fn mail_hashes(text: &str) -> impl Iterator<Item = [u8; 8]> + '_ {
    text.match_indices('#').filter_map(|(at, _)| {
        let digits = text.get(at + 1..at + 17)?;
        let end = text[at + 17..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
        if end.starts_with('"') { hex::decode(digits) } else { None }
    })
}

/// The attachments that a stored text refers to.
pub fn attachments(text: &str) -> impl Iterator<Item = ObjId> + '_ {
    const PREFIX: &str = "sha256:";
    text.match_indices(PREFIX).filter_map(move |(at, _)| {
        let start = at + PREFIX.len();
        let hash = hex::decode(text.get(start..start + 64)?)?;
        Some(ObjId::from_parts(ObjKind::Bytes, hash))
    })
}

#[cfg(test)]
mod tests;
