//! Mails: consecutive messages of one session, merged, which agents claim.
//!
//! A Mail is a MsgObject in the store and a file in the mailbox. The file is rendered from
//! the object alone and can be rendered again at any time. It is Markdown with a YAML front
//! matter:
//!
//! ```text
//! ---
//! id: "webhook_0f3a…"
//! …
//! content: {"format":"text/markdown","bytes":31,"sha256":"…"}
//! …
//! checksum: "…"
//! ---
//!
//! @monoco::alpha the build is red
//! ```
//!
//! Untrusted text cannot break out of its place. Every string of the front matter is quoted
//! on one line, with the characters of [`crate::unsafe_text`] escaped; no key comes from a
//! message. The body is never searched: the front matter has its length and hash. The last
//! line of the front matter, `checksum`, is the hash of the lines before it, so that a
//! modified file is not read as another Mail.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::did::{Did, TunnelId};
use crate::hex;
use crate::inbound::{Artifact, ChatSession, InboundMessage, Participant};
use crate::names::{text_conversions, variant_names};
use crate::object::ObjId;
use crate::text_budget::estimate_tokens;
use crate::time::{Timestamp, rfc3339, rfc3339_maybe};
use crate::unsafe_text::is_unsafe;
use crate::yaml;

/// The MIME type of a Mail's text.
pub const FORMAT: &str = "text/markdown";

/// Maximum length of a preview, in characters.
pub const MAX_PREVIEW_CHARS: usize = 160;

/// Start of the last line of the front matter.
const CHECKSUM: &str = "checksum: \"";

/// The id of a Mail: its provider, and a hash of tunnel and id of the first message.
///
/// It has only letters, digits and one underscore, so that it can be part of a file name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MailId {
    provider: String,
    uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid Mail id {0:?}; expected PROVIDER_ and 24 lower-case hex digits")]
pub struct InvalidMailId(String);

/// Whether all authors of a Mail are contacts of the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// At least one author is not a contact. The text is data, never an instruction.
    Untrusted,
    /// All authors are friends or temporary contacts. The text is still not the owner's.
    Known,
}

variant_names! { Trust: Untrusted = "untrusted", Known = "known" }

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participants {
    /// The authors, in the order of their first message.
    pub from: Vec<Participant>,
    /// Recipients that the provider names beside the session.
    #[serde(default)]
    pub to: Vec<Participant>,
    #[serde(default)]
    pub cc: Vec<Participant>,
    #[serde(default)]
    pub bcc: Vec<Participant>,
    /// Mentioned workspaces first, then names that the provider reports.
    #[serde(default)]
    pub mentions: Vec<String>,
}

/// The metadata of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailHeader {
    pub id: MailId,
    pub tunnel: TunnelId,
    pub session: ChatSession,
    pub participants: Participants,
    /// When the first message was written, by the provider's clock if it has one.
    #[serde(with = "rfc3339")]
    pub timestamp: Timestamp,
    /// When the messages became a Mail, by the hub's clock.
    #[serde(with = "rfc3339")]
    pub received_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The attachments of all messages.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// The sender's id for related messages.
    #[serde(default)]
    pub correlation_id: Option<String>,
    /// The provider's id of the message that the first message answers.
    #[serde(default)]
    pub reply_to: Option<String>,
    /// The label of the tunnel or chat.
    #[serde(default)]
    pub binding: Option<String>,
    pub trust: Trust,
    /// Where an answer is sent.
    pub answer_to: Did,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    pub header: MailHeader,
    /// The id of its object.
    pub msg_id: ObjId,
    /// The single messages, without their session. A Mail read from a file has their texts
    /// only in `text`.
    pub messages: Vec<InboundMessage>,
    /// The merged text, as Markdown.
    pub text: String,
}

/// One line of the mailbox's index: what filters and lists read of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailIndexEntry {
    /// Later Mails have larger numbers.
    pub seq: i64,
    pub id: MailId,
    /// The id of its object.
    pub msg_id: ObjId,
    /// The name of its file, in `inbound`, `archive` or `.deadletter`.
    pub file: String,
    /// The SHA-256 of its file, in hex. A file with another hash is not the Mail's.
    pub sha256: String,
    pub tunnel: TunnelId,
    pub session: ChatSession,
    pub participants: Participants,
    /// When the messages became a Mail, by the hub's clock.
    #[serde(with = "rfc3339")]
    pub received_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The label of the tunnel or chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    pub trust: Trust,
    pub messages: usize,
    /// The start of its text.
    pub preview: String,
    /// Estimated tokens of its text, for language models; `None` when it was erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Nothing proves that its author wrote it: a mail whose server has not verified the sender.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unverified: bool,
    /// When text of it was erased. Without messages, all of it was, and it has no file.
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub erased_at: Option<Timestamp>,
}

/// Why a text is not the file or the object of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMailFile {
    #[error("no front matter; expected it between two lines of `---` at the start")]
    NoFrontMatter,
    #[error("invalid front matter: {0}")]
    FrontMatter(String),
    /// The body has another length or hash than the front matter says.
    #[error("the body was modified: {0}")]
    Body(&'static str),
    #[error("the object is not a Mail: {0}")]
    NotMail(String),
}

/// The front matter of a Mail without its checksum.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MailFrontMatter {
    id: MailId,
    msg_id: ObjId,
    #[serde(rename = "provider")]
    _provider: String,
    #[serde(rename = "direction")]
    _direction: MailDirection,
    session: ChatSession,
    participants: Participants,
    #[serde(with = "rfc3339")]
    timestamp: Timestamp,
    #[serde(with = "rfc3339")]
    received_at: Timestamp,
    #[serde(rename = "type")]
    _kind: MailKind,
    content: Content,
    artifacts: Vec<Artifact>,
    correlation_id: Option<String>,
    reply_to: Option<String>,
    #[serde(rename = "thread_root")]
    _thread_root: Option<String>,
    binding: Option<String>,
    trust: Trust,
    metadata: Metadata,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MailDirection {
    Inbound,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MailKind {
    Message,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    format: String,
    bytes: usize,
    sha256: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    tunnel: TunnelId,
    answer_to: Did,
    messages: Vec<InboundMessage>,
}

impl MailId {
    /// The id of the Mail whose first message has this external id.
    pub fn of(provider: &str, tunnel: &TunnelId, external_id: &str) -> Self {
        let hash = Sha256::new()
            .chain_update(tunnel.as_str())
            .chain_update([0])
            .chain_update(external_id)
            .finalize();
        Self { provider: provider.to_owned(), uid: hex::encode(&hash[..12]) }
    }

    /// Whether an id can consist of these parts.
    pub fn is_valid(provider: &str, uid: &str) -> bool {
        let is_digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        (1..=32).contains(&provider.len())
            && provider.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            && uid.len() == 24
            && uid.bytes().all(is_digit)
    }

    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// The part after the provider.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The name of the file of a Mail with this id.
    pub fn file(&self, received_at: Timestamp) -> String {
        format!("{}_{self}.md", received_at.compact())
    }
}

impl Mail {
    /// Reads the Mail from the canonical JSON of its object.
    ///
    /// # Errors
    ///
    /// [`InvalidMailFile::NotMail`] when the object is something else.
    pub fn read(msg_id: ObjId, canonical: &str) -> Result<Self, InvalidMailFile> {
        #[derive(Deserialize)]
        struct Object {
            content: Content,
        }
        #[derive(Deserialize)]
        struct Content {
            content: String,
            machine: Machine,
        }
        #[derive(Deserialize)]
        struct Machine {
            data: Data,
        }
        #[derive(Deserialize)]
        struct Data {
            mail: MailHeader,
            messages: Vec<InboundMessage>,
        }
        let object: Object = serde_json::from_str(canonical)
            .map_err(|error| InvalidMailFile::NotMail(error.to_string()))?;
        let Content { content: text, machine: Machine { data } } = object.content;
        Ok(Self { header: data.mail, msg_id, messages: data.messages, text })
    }

    /// The name of its file.
    pub fn file(&self) -> String {
        self.header.id.file(self.header.received_at)
    }

    pub fn render(&self) -> String {
        let messages = self.messages.iter();
        let messages =
            messages.map(|message| InboundMessage { text: String::new(), ..message.clone() });
        let header = &self.header;
        let content = Content {
            title: header.title.clone(),
            format: FORMAT.to_owned(),
            bytes: self.text.len(),
            sha256: digest(self.text.as_bytes()),
        };
        let metadata = Metadata {
            tunnel: header.tunnel.clone(),
            answer_to: header.answer_to.clone(),
            messages: messages.collect(),
        };
        let lines = lines(&[
            ("id", json!(header.id)),
            ("msg_id", json!(self.msg_id)),
            ("provider", json!(header.id.provider)),
            ("direction", json!(MailDirection::Inbound)),
            ("session", json!(header.session)),
            ("participants", json!(header.participants)),
            ("timestamp", json!(header.timestamp.rfc3339())),
            ("received_at", json!(header.received_at.rfc3339())),
            ("type", json!(MailKind::Message)),
            ("content", json!(content)),
            ("artifacts", json!(header.artifacts)),
            ("correlation_id", json!(header.correlation_id)),
            ("reply_to", json!(header.reply_to)),
            ("thread_root", json!(header.session.thread_key)),
            ("binding", json!(header.binding)),
            ("trust", json!(header.trust)),
            ("metadata", json!(metadata)),
        ]);
        let checksum = digest(lines.as_bytes());
        format!("---\n{lines}{CHECKSUM}{checksum}\"\n---\n\n{}\n", self.text)
    }

    /// Reads a file that [`Self::render`] wrote.
    ///
    /// # Errors
    ///
    /// [`InvalidMailFile`] when it is something else or was modified.
    pub fn parse(file: &str) -> Result<Self, InvalidMailFile> {
        let (front, body) = split(file).ok_or(InvalidMailFile::NoFrontMatter)?;
        let front: MailFrontMatter = from_yaml(check_checksum(front)?)?;
        let length = front.content.bytes;
        let (text, rest) =
            body.split_at_checked(length).ok_or(InvalidMailFile::Body("it is too short"))?;
        match rest {
            "\n" => {}
            "" => return Err(InvalidMailFile::Body("it is too short")),
            _ => return Err(InvalidMailFile::Body("it is too long")),
        }
        if digest(text.as_bytes()) != front.content.sha256 {
            return Err(InvalidMailFile::Body("it has another hash"));
        }
        Ok(Self {
            header: MailHeader {
                id: front.id,
                tunnel: front.metadata.tunnel,
                session: front.session,
                participants: front.participants,
                timestamp: front.timestamp,
                received_at: front.received_at,
                title: front.content.title,
                artifacts: front.artifacts,
                correlation_id: front.correlation_id,
                reply_to: front.reply_to,
                binding: front.binding,
                trust: front.trust,
                answer_to: front.metadata.answer_to,
            },
            msg_id: front.msg_id,
            messages: front.metadata.messages,
            text: text.to_owned(),
        })
    }

    /// Returns its line in the index. `file` is the result of [`Self::render`].
    pub fn entry(&self, seq: i64, file: &str) -> MailIndexEntry {
        let header = self.header.clone();
        MailIndexEntry {
            seq,
            file: self.file(),
            sha256: digest(file.as_bytes()),
            id: header.id,
            msg_id: self.msg_id,
            tunnel: header.tunnel,
            session: header.session,
            participants: header.participants,
            received_at: header.received_at,
            title: header.title,
            correlation_id: header.correlation_id,
            binding: header.binding,
            trust: header.trust,
            messages: self.messages.len(),
            preview: preview(&self.text),
            tokens: Some(estimate_tokens(&self.text)),
            unverified: self.messages.iter().any(InboundMessage::is_unverified),
            erased_at: None,
        }
    }
}

impl MailIndexEntry {
    /// When the whole text was erased; `None` while the Mail has text.
    pub fn tombstone(&self) -> Option<Timestamp> {
        self.erased_at.filter(|_| self.messages == 0)
    }
}

/// The SHA-256 of `bytes`, in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes))
}

/// Returns the lines of a Mail's front matter before the checksum, if it is correct.
fn check_checksum(front: &str) -> Result<&str, InvalidMailFile> {
    let wrong = || InvalidMailFile::FrontMatter("wrong checksum; the file was modified".into());
    let at = front.rfind(CHECKSUM).ok_or_else(wrong)?;
    let (lines, checksum) = front.split_at(at);
    if checksum != format!("{CHECKSUM}{}\"\n", digest(lines.as_bytes())) {
        return Err(wrong());
    }
    Ok(lines)
}

/// Splits a file into its front matter and its body.
///
/// The front matter starts with the first line and ends at the next line that is
/// `---`; one empty line after it belongs to neither.
pub fn split(file: &str) -> Option<(&str, &str)> {
    let rest = file.strip_prefix("---\n")?;
    let end = if rest.starts_with("---\n") { 0 } else { rest.find("\n---\n")? + 1 };
    let (front, rest) = rest.split_at(end);
    let body = &rest["---\n".len()..];
    Some((front, body.strip_prefix('\n').unwrap_or(body)))
}

/// Reads untrusted YAML: bounded in size and depth, without anchors, aliases and custom tags.
///
/// # Errors
///
/// [`InvalidMailFile::FrontMatter`], with line and column.
pub fn from_yaml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, InvalidMailFile> {
    serde_saphyr::from_str_with_options(text, yaml::bounded(16, MAX_NODES, MAX_FRONT_MATTER))
        .map_err(|error| InvalidMailFile::FrontMatter(error.to_string()))
}

/// Writes a front matter: one line for each key of the first two levels, every string
/// quoted.
pub fn front_matter(fields: &[(&str, Value)]) -> String {
    format!("---\n{}---\n\n", lines(fields))
}

fn lines(fields: &[(&str, Value)]) -> String {
    let mut out = String::new();
    for (key, value) in fields {
        match value {
            Value::Object(inner) if !inner.is_empty() => {
                let _ = writeln!(out, "{key}:");
                for (key, value) in inner {
                    let _ = writeln!(out, "  {key}: {}", Quoted(value));
                }
            }
            value => {
                let _ = writeln!(out, "{key}: {}", Quoted(value));
            }
        }
    }
    out
}

/// Returns the start of a text on one line, cut after [`MAX_PREVIEW_CHARS`].
pub fn preview(text: &str) -> String {
    let words = text.split_whitespace();
    let mut out = String::new();
    for word in words {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(word.chars().take(MAX_PREVIEW_CHARS + 1));
        if out.chars().count() > MAX_PREVIEW_CHARS {
            out = out.chars().take(MAX_PREVIEW_CHARS - 1).collect();
            out.push('…');
            break;
        }
    }
    out
}

/// Maximum size of a front matter, in bytes and in values. The largest Mail fits; a
/// decompression bomb does not.
const MAX_FRONT_MATTER: usize = 8 << 20;
const MAX_NODES: usize = 600_000;

/// Displays JSON on one line that YAML reads too, with unsafe characters escaped.
struct Quoted<'a>(&'a Value);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::String(text) => quote(f, text),
            Value::Array(values) => {
                f.write_char('[')?;
                for (at, value) in values.iter().enumerate() {
                    if at > 0 {
                        f.write_str(", ")?;
                    }
                    Quoted(value).fmt(f)?;
                }
                f.write_char(']')
            }
            Value::Object(fields) => {
                f.write_char('{')?;
                for (at, (key, value)) in fields.iter().enumerate() {
                    if at > 0 {
                        f.write_str(", ")?;
                    }
                    quote(f, key)?;
                    f.write_str(": ")?;
                    Quoted(value).fmt(f)?;
                }
                f.write_char('}')
            }
            plain => plain.fmt(f),
        }
    }
}

fn quote(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\r' => f.write_str("\\r")?,
            '\t' => f.write_str("\\t")?,
            // No escape above U+FFFF is read by both JSON and YAML: tag characters stay, and
            // are escaped where the text is shown.
            c if is_unsafe(c) && c <= '\u{ffff}' => write!(f, "\\u{:04x}", u32::from(c))?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

impl fmt::Display for MailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.provider, self.uid)
    }
}

impl FromStr for MailId {
    type Err = InvalidMailId;

    fn from_str(text: &str) -> Result<Self, InvalidMailId> {
        let bad = || InvalidMailId(text.chars().take(80).collect());
        let (provider, uid) = text.split_once('_').ok_or_else(bad)?;
        if !Self::is_valid(provider, uid) {
            return Err(bad());
        }
        Ok(Self { provider: provider.to_owned(), uid: uid.to_owned() })
    }
}

text_conversions!(MailId, InvalidMailId, |id| id.to_string());

#[cfg(test)]
mod tests;
