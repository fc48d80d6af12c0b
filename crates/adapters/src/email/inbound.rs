//! Converts a raw mail into an inbound message.
//!
//! The conversion never fails: a mail that cannot be read becomes a message that says so, and
//! its original is attached. Nothing here is trusted; whether the sender is verified is decided
//! by [`super::auth_results`].

use monoco_core::did::lower_case_domain;
use monoco_core::inbound::{
    ChatSession, ChatSessionKind, InboundMessage, MAX_LIST_ENTRIES, Participant,
};
use monoco_core::letter::check_address;
use monoco_core::time::Timestamp;
use monoco_mime::{DecodedText, MailAddress, MailPart, ParsedMail, read_mail};

use super::auth_results::{SenderVerification, verify_sender};
use super::html::{MAX_HTML_BYTES, html_to_markdown};

/// The author of mails whose `From` names none. Mail to `.invalid` is never delivered.
pub const UNKNOWN_SENDER: &str = "unknown@sender.invalid";

/// Longest message id in an external id, in bytes.
const MAX_MESSAGE_ID_BYTES: usize = 400;
/// Bytes of text that are read. The limits of a message cut it further.
const MAX_TEXT_BYTES: usize = 2 << 20;

/// The account that received a mail.
#[derive(Clone, Copy, Debug)]
pub struct MailAccount<'a> {
    pub address: &'a str,
    /// Whose `Authentication-Results` count; `None` when no server is trusted.
    pub authserv_id: Option<&'a str>,
}

/// A mail as the hub stores it.
#[derive(Debug)]
pub struct MailContent<'m> {
    /// The message, within its limits. Its attachments are in `attachments`.
    pub message: InboundMessage,
    /// Parts to store with the message, at most 99: one place is left for the original.
    pub attachments: Vec<MailPart<'m>>,
    pub verification: SenderVerification,
    /// What was cut or could not be read. The original must be attached when there is any.
    pub losses: Vec<String>,
    /// The parsed mail, for what the message does not have: header fields, delivery reports.
    pub mail: ParsedMail<'m>,
}

impl MailContent<'_> {
    /// Whether the original must be attached, because the message lacks some of it.
    pub fn needs_original(&self) -> bool {
        !self.losses.is_empty()
    }
}

/// Converts a mail. `hash` is the SHA-256 of `raw` in hexadecimal: it identifies the mail,
/// because several mails may have the same `Message-ID`.
pub fn mail_to_message<'m>(
    raw: &'m [u8],
    hash: &str,
    account: &MailAccount<'_>,
) -> MailContent<'m> {
    let mail = read_mail(raw);
    let mut losses: Vec<String> = mail.cut.map(str::to_owned).into_iter().collect();
    let verification = verify_sender(&mail, account.authserv_id);
    let id = external_id(mail.message_id.as_deref(), hash);
    let thread_key = mail.references.first().or(mail.in_reply_to.as_ref());
    let thread_key = thread_key.or(mail.message_id.as_ref()).unwrap_or(&id).clone();
    let session = ChatSession {
        id: own_address(&mail, account.address),
        kind: ChatSessionKind::Direct,
        name: None,
        thread_key: Some(thread_key),
    };
    let from = author(&mail, &mut losses);
    let text = text(&mail, &mut losses);
    let mut message = InboundMessage::new(id, session, from, text);
    message.at = mail.date_ms.map(Timestamp::from_ms);
    message.title = mail.subject.clone().filter(|subject| !subject.is_empty());
    message.to = participants(&mail.to);
    message.cc = participants(&mail.cc);
    message.reply_to = mail.in_reply_to.clone();
    message.sender_verified = Some(verification.verified);
    let mut answer_to = participants(&mail.reply_to).into_iter();
    let answer_to = answer_to.find(|answer_to| check_address(&answer_to.id).is_ok());
    message.answer_to = answer_to.filter(|answer_to| answer_to.id != message.from.id);
    let (message, cut) = message.cut_to_limits();
    losses.extend(cut.iter().map(|field| format!("{field} was cut")));
    let mut attachments = mail.attachments.clone();
    if attachments.len() >= MAX_LIST_ENTRIES {
        losses.push(format!("{} attachments were cut", attachments.len()));
        attachments.truncate(MAX_LIST_ENTRIES - 1);
    }
    if attachments.iter().any(|part| part.is_undecoded) {
        losses.push("an attachment has an unknown transfer encoding".to_owned());
    }
    MailContent { message, attachments, verification, losses, mail }
}

/// The external id that [`mail_to_message`] gives the message of a mail, from the header alone.
pub fn external_id_of_mail(raw: &[u8], hash: &str) -> String {
    let end = |blank: &[u8]| raw.windows(blank.len()).position(|bytes| bytes == blank);
    let end = [end(b"\n\r\n"), end(b"\n\n")].into_iter().flatten().min();
    let header = read_mail(&raw[..end.map_or(raw.len(), |end| end + 1)]);
    external_id(header.message_id.as_deref(), hash)
}

/// `{message id}#{start of the hash}`, or `#{hash}`. An answer takes the part before the `#`.
fn external_id(message_id: Option<&str>, hash: &str) -> String {
    match message_id {
        Some(id) => {
            let id = &id[..id.floor_char_boundary(MAX_MESSAGE_ID_BYTES)];
            format!("{id}#{}", hash.get(..16).unwrap_or(hash))
        }
        None => format!("#{hash}"),
    }
}

/// The address that the mail was sent to: the account's own, or with a tag, as in
/// `ann+lists@example.com`.
fn own_address(mail: &ParsedMail<'_>, account: &str) -> String {
    let account = lower_case_domain(account);
    let (local, domain) = account.rsplit_once('@').unwrap_or((&account, ""));
    let is_tagged = |address: &String| {
        address.rsplit_once('@').is_some_and(|(found, found_domain)| {
            let tag = found.get(local.len()..).filter(|tag| tag.starts_with('+'));
            let is_same = found.get(..local.len()).is_some_and(|l| l.eq_ignore_ascii_case(local));
            found_domain == domain && is_same && tag.is_some()
        })
    };
    let all = mail.delivered_to.iter().chain(&mail.to).chain(&mail.cc);
    let tagged = all.map(|found| lower_case_domain(&found.address)).find(is_tagged);
    tagged.unwrap_or(account)
}

/// The author: the first address of `From`, else `Sender`, else a placeholder.
fn author(mail: &ParsedMail<'_>, losses: &mut Vec<String>) -> Participant {
    let has_address = |found: &&MailAddress| !found.address.is_empty();
    let from = mail.from.iter().find(has_address);
    if from.is_none() {
        losses.push("no From address".to_owned());
    }
    match from.or(mail.sender.as_ref()) {
        Some(found) => Participant::mailbox(&found.address, found.name.clone()),
        None => {
            let name = mail.from.iter().find_map(|found| found.name.clone());
            Participant::mailbox(UNKNOWN_SENDER, name)
        }
    }
}

fn participants(addresses: &[MailAddress]) -> Vec<Participant> {
    addresses.iter().map(|found| Participant::mailbox(&found.address, found.name.clone())).collect()
}

/// The text of the mail. Quoted history stays; HTML becomes Markdown. A mail that could not be
/// read as a whole says why at the end, or at the start when it has no sender.
fn text(mail: &ParsedMail<'_>, losses: &mut Vec<String>) -> String {
    let mut text = String::new();
    for part in &mail.texts {
        if text.len() > MAX_TEXT_BYTES {
            losses.push("text was cut".to_owned());
            break;
        }
        let DecodedText { text: piece, is_cut } = match part.is_html() {
            true => {
                let html = part.text(MAX_HTML_BYTES);
                let found = html_to_markdown(&html.text, MAX_TEXT_BYTES);
                DecodedText { text: found.markdown, is_cut: html.is_cut || found.is_cut }
            }
            false => part.plain_text(MAX_TEXT_BYTES),
        };
        if is_cut {
            losses.push("a text was cut".to_owned());
        }
        if part.is_undecoded {
            losses.push("a text has an unknown transfer encoding".to_owned());
        }
        let piece = piece.trim_end().trim_start_matches('\n');
        if !piece.is_empty() {
            text.push_str(if text.is_empty() { "" } else { "\n\n" });
            text.push_str(piece);
        }
    }
    if mail.from.iter().all(|found| found.address.is_empty()) {
        let gap = if text.is_empty() { "" } else { "\n\n" };
        text = format!("[unparsed mail: no From address]{gap}{text}");
    }
    if let Some(why) = mail.cut {
        text.push_str(&format!("\n\n[cut: {why}]"));
    }
    text
}

#[cfg(test)]
mod tests;
