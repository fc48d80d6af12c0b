//! Reads a whole mail: header fields, text and attachments.

use std::ops::Range;

use super::address::{AddressList, MailAddress};
use super::body::{BodyReader, MailBody};
use super::charset::{Charset, decode_unnamed};
use super::date;
use super::head::{Field, fields, line_at, unfold};
use super::part::{MAX_ID, MailPart, ids};
use super::scan::{MimeTree, scan};
use super::word;

/// Bytes of a header section that [`read_mail`] considers.
pub const MAX_READ_HEADER: usize = 256 * 1024;
/// Limit of ids in `References`: the first, which is the root of the thread, and the last ones.
pub const MAX_REFERENCES: usize = 100;
/// Limit of groups in a delivery report.
const MAX_GROUPS: usize = 1_000;

/// What a mail says. Every field is a best effort: nothing is validated, and a missing or
/// unreadable field is `None` or empty.
#[derive(Debug)]
pub struct ParsedMail<'m> {
    pub from: Vec<MailAddress>,
    /// Whether the mail has one `From` field with one address that all readers find.
    pub is_from_clear: bool,
    pub sender: Option<MailAddress>,
    pub reply_to: Vec<MailAddress>,
    pub to: Vec<MailAddress>,
    pub cc: Vec<MailAddress>,
    pub delivered_to: Vec<MailAddress>,
    /// On one line, without control characters.
    pub subject: Option<String>,
    /// `Date` in milliseconds since 1970 in UTC.
    pub date_ms: Option<i64>,
    /// With its angle brackets.
    pub message_id: Option<String>,
    pub in_reply_to: Option<String>,
    /// At most [`MAX_REFERENCES`] ids.
    pub references: Vec<String>,
    /// The word of `Auto-Submitted`, in lower case: `no`, `auto-replied`.
    pub auto_submitted: Option<String>,
    /// `Precedence` in lower case: `bulk`, `list`.
    pub precedence: Option<String>,
    pub return_path: Option<ReturnPath>,
    /// Number of `Received` fields.
    pub received: usize,
    /// The parts that are the text of the mail: plain where there is a choice, else HTML.
    pub texts: Vec<MailPart<'m>>,
    /// All other parts, also inline images, invitations and attached mails.
    pub attachments: Vec<MailPart<'m>>,
    /// Why some of the mail was not read; `None` when all of it was.
    pub cut: Option<&'static str>,
    /// Media type of the mail.
    pub mime_type: String,
    /// The `report-type` of a `multipart/report`, in lower case.
    pub report_type: Option<String>,
    /// Access to any field by its name.
    pub header: ParsedHeader<'m>,
}

/// The fields of a mail's header, of which at most [`MAX_READ_HEADER`] bytes are considered.
#[derive(Debug)]
pub struct ParsedHeader<'m> {
    mail: &'m [u8],
    fields: Vec<Field>,
    /// Charset of bytes that are neither ASCII nor UTF-8.
    hint: Option<Charset>,
}

/// The sender of the envelope, as the last server recorded it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReturnPath {
    /// `<>`: a report or an automatic answer, which must not be answered.
    Null,
    Address(String),
}

/// Reads a mail. Never fails and takes linear time.
///
/// Considers [`MAX_READ_HEADER`] bytes of the header, [`super::MAX_PARTS`] parts and
/// [`super::MAX_DEPTH`] levels; [`ParsedMail::cut`] tells when there is more. Texts and
/// attachments are not decoded before they are asked for.
pub fn read_mail(mail: &[u8]) -> ParsedMail<'_> {
    let tree = scan(mail);
    let hint = first_charset(&tree);
    let head_end = tree.parts[0].head.end;
    let head = &mail[..head_end.min(MAX_READ_HEADER)];
    let MailBody { texts, attachments } = BodyReader { mail, tree: &tree, hint }.read(0);
    let root = &tree.parts[0];
    let report_type = root.content.get("report-type");
    let header = ParsedHeader { mail, fields: fields(head).collect(), hint };
    let (from, is_from_clear) = header.clear_addresses("From");
    let date_ms = header.raw_values("Date").next().and_then(|value| date::parse(&value));
    let message_id = header.unfolded("Message-ID").next().and_then(|value| message_id(&value));
    let in_reply_to = header.unfolded("In-Reply-To").find_map(|value| ids(&value).next());
    let return_path = header.unfolded("Return-Path").next().map(|value| return_path(&value));
    let received = header.unfolded("Received").count();
    ParsedMail {
        from,
        is_from_clear,
        sender: header.addresses("Sender").into_iter().next(),
        reply_to: header.addresses("Reply-To"),
        to: header.addresses("To"),
        cc: header.addresses("Cc"),
        delivered_to: header.addresses("Delivered-To"),
        subject: header.first("Subject").map(|subject| word::clean(&subject)),
        date_ms,
        message_id,
        in_reply_to,
        references: header.references(),
        auto_submitted: header.lower_word("Auto-Submitted"),
        precedence: header.lower_word("Precedence"),
        return_path,
        received,
        texts,
        attachments,
        cut: cut(&tree, head_end),
        mime_type: root.kind().to_owned(),
        report_type: report_type.map(|word| String::from_utf8_lossy(&word).to_ascii_lowercase()),
        header,
    }
}

/// The charset of the first text that names one.
fn first_charset(tree: &MimeTree) -> Option<Charset> {
    let names = tree.parts.iter().filter_map(|part| part.content.get("charset"));
    names.take(1).find_map(|name| Charset::find(Some(&name)))
}

fn cut(tree: &MimeTree, head_end: usize) -> Option<&'static str> {
    if head_end > MAX_READ_HEADER {
        Some("the header is longer than 256 KiB")
    } else if tree.is_full {
        Some("the mail has more than 1000 parts")
    } else if tree.parts.iter().any(|part| part.too_deep) {
        Some("the parts of the mail are nested deeper than 32 levels")
    } else {
        None
    }
}

impl ParsedHeader<'_> {
    /// All values of a field, in order: unfolded and decoded.
    pub fn values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = String> + 'a {
        self.unfolded(name).map(|value| word::decode(&value, self.hint))
    }

    /// All values of a field as written, for fields with a syntax: unfolded, and encoded words
    /// are not decoded, because decoded ones could pretend to be syntax.
    pub fn raw_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = String> + 'a {
        self.unfolded(name).map(|value| String::from_utf8_lossy(&value).into_owned())
    }

    /// All fields in order: names as written, and values unfolded and decoded.
    pub fn fields(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.fields.iter().map(|field| {
            let name = String::from_utf8_lossy(&self.mail[field.name.clone()]).into_owned();
            (name, word::decode(&unfold(&self.mail[field.value.clone()]), self.hint))
        })
    }

    /// The first value of a field, unfolded and decoded.
    pub fn first(&self, name: &str) -> Option<String> {
        self.values(name).next()
    }

    fn unfolded<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Vec<u8>> + 'a {
        let fields = self.fields.iter().filter(move |field| field.is(self.mail, name));
        fields.map(|field| unfold(&self.mail[field.value.clone()]))
    }

    /// The addresses of all fields of a name. Only `From` may have a name without an address.
    fn addresses(&self, name: &str) -> Vec<MailAddress> {
        let (mut found, _) = self.clear_addresses(name);
        found.retain(|address| !address.address.is_empty());
        found
    }

    /// The addresses of all fields of a name, and whether it is one address in one field.
    fn clear_addresses(&self, name: &str) -> (Vec<MailAddress>, bool) {
        let (mut found, mut is_clear, mut fields) = (Vec::new(), true, 0);
        for value in self.unfolded(name) {
            let list = AddressList::read(&decode_unnamed(&value, self.hint));
            is_clear &= list.flaw.is_none();
            fields += 1;
            found.extend(list.lenient());
        }
        is_clear &= fields == 1 && found.len() == 1;
        (found, is_clear)
    }

    fn references(&self) -> Vec<String> {
        let mut all = self.unfolded("References").flat_map(|value| ids(&value).collect::<Vec<_>>());
        let Some(root) = all.next() else { return Vec::new() };
        let mut last: Vec<String> = all.collect();
        let excess = (last.len() + 1).saturating_sub(MAX_REFERENCES);
        last.drain(..excess);
        last.insert(0, root);
        last
    }

    /// The first word of a field, without parameters and comments.
    fn lower_word(&self, name: &str) -> Option<String> {
        let value = self.raw_values(name).next()?.to_ascii_lowercase();
        let word = value.split([';', '(', ' ', '\t']).find(|word| !word.is_empty());
        Some(word.unwrap_or_default().to_owned())
    }
}

fn return_path(value: &[u8]) -> ReturnPath {
    let list = AddressList::read(&String::from_utf8_lossy(value)).lenient();
    let address = list.into_iter().next().filter(|address| !address.address.is_empty());
    address.map_or(ReturnPath::Null, |address| ReturnPath::Address(address.address))
}

/// A message id with its angle brackets, which some senders leave out.
fn message_id(value: &[u8]) -> Option<String> {
    if let Some(id) = ids(value).next() {
        return Some(id);
    }
    let text = String::from_utf8_lossy(value);
    let word = text.split_whitespace().next()?.trim_matches(['<', '>']);
    let word: String = word.chars().filter(|c| !c.is_control()).collect();
    (!word.is_empty() && word.len() <= MAX_ID).then(|| format!("<{word}>"))
}

/// Groups of fields that blank lines separate, as in a delivery report (RFC 3464): names in
/// lower case with their unfolded values. At most 1,000 groups.
pub fn field_groups(text: &[u8]) -> Vec<Vec<(String, String)>> {
    let mut groups = Vec::new();
    let mut group: Vec<(String, String)> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() && groups.len() < MAX_GROUPS {
        let mut found = fields(rest);
        for Field { name, value } in found.by_ref() {
            let text =
                |range: Range<usize>| String::from_utf8_lossy(&unfold(&rest[range])).into_owned();
            group.push((text(name).to_ascii_lowercase(), text(value)));
        }
        if !group.is_empty() {
            groups.push(std::mem::take(&mut group));
        }
        // Skip the line that ended the group.
        let end = found.position();
        let line = line_at(rest, end).map_or(rest.len(), |line| line.end);
        rest = &rest[line..];
    }
    groups
}
