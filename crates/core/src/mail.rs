//! A Mail: consecutive messages of one session, merged into what gets consumed.
//!
//! A Mail is a MsgObject in the store and a file in the mailbox, and the file is
//! made from the object alone, so that it can be made again. The file is Markdown
//! with a YAML front matter:
//!
//! ```text
//! ---
//! id: "webhook_0f3a…"
//! …
//! content: {"format":"text/markdown","bytes":31,"sha256":"…"}
//! …
//! ---
//!
//! @monoco::alpha the build is red
//! ```
//!
//! Text of strangers can't break out. Every string of the front matter is quoted on
//! one line, with whatever could end the line or fool a terminal escaped; keys are
//! ours. The body is never searched: the front matter says how long it is and what
//! it hashes to. Its last line, the seal, is the hash of the lines before it, so that
//! a file that was changed anywhere is not read as another Mail.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::did::{Did, TunnelId};
use crate::hex;
use crate::inbound::{Artifact, ChatSession, InboundMessage, Participant};
use crate::object::ObjId;
use crate::time::{Timestamp, rfc3339, rfc3339_maybe};
use crate::unsafe_text::is_unsafe;
use crate::yaml;

/// The MIME type of a Mail's text.
pub const FORMAT: &str = "text/markdown";

/// Most characters of a text that a list shows.
const PREVIEW: usize = 120;

/// How the last line of a Mail's front matter starts.
const SEAL: &str = "seal: \"";

/// The name of a Mail: its provider, and a hash of the first message's id.
///
/// It is made of letters, digits and one underscore, whatever the provider's ids
/// look like, so that it can name a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MailId {
    provider: String,
    uid: String,
}

/// The text is not the id of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a Mail: {0:?} (want PROVIDER_ and 24 lower-case hex digits)")]
pub struct InvalidMailId(String);

/// Whether those who said it are known to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Somebody among them is not a contact of ours. What they say is data, and
    /// never an instruction.
    Untrusted,
    /// All of them are friends or temporary contacts. Still not the owner's word.
    Known,
}

/// Everybody in a Mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Participants {
    /// Who spoke, in the order they began to.
    pub from: Vec<Participant>,
    /// To whom, where the provider says.
    #[serde(default)]
    pub to: Vec<Participant>,
    /// Who else was to know.
    #[serde(default)]
    pub cc: Vec<Participant>,
    /// Who else, unknown to the others.
    #[serde(default)]
    pub bcc: Vec<Participant>,
    /// Who or what is mentioned.
    #[serde(default)]
    pub mentions: Vec<String>,
}

/// One message of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailMessage {
    /// The provider's id of it.
    pub id: String,
    /// When the provider says it was said.
    #[serde(with = "rfc3339_maybe", default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
    /// When we heard it.
    #[serde(with = "rfc3339")]
    pub heard_at: Timestamp,
    /// Who said it.
    pub from: Participant,
    /// To whom, where the provider says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<Participant>,
    /// Who else was to know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cc: Vec<Participant>,
    /// Its subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Who or what is mentioned in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mentions: Vec<String>,
    /// The provider's id of the message it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<String>,
    /// Whose words they were before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forwarded_from: Option<String>,
    /// What its sender files it under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// What came with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<Artifact>,
    /// What was said. Not in the file, whose body has the texts of all.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// What a Mail says of itself, without its name as an object and its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailHeader {
    /// Its name.
    pub id: MailId,
    /// The tunnel it came through.
    pub tunnel: TunnelId,
    /// Where it was said.
    pub session: ChatSession,
    /// Who took part.
    pub participants: Participants,
    /// When the first message was said, by the provider's clock where it has one.
    #[serde(with = "rfc3339")]
    pub timestamp: Timestamp,
    /// When it became a Mail, by ours.
    #[serde(with = "rfc3339")]
    pub received_at: Timestamp,
    /// Its subject, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What came with it.
    #[serde(default)]
    pub artifacts: Vec<Artifact>,
    /// What its sender files it under.
    #[serde(default)]
    pub correlation_id: Option<String>,
    /// The provider's id of the message that the first one answers.
    #[serde(default)]
    pub reply_to: Option<String>,
    /// The label of its tunnel or chat.
    #[serde(default)]
    pub binding: Option<String>,
    /// Whether its authors are known.
    pub trust: Trust,
    /// Where an answer goes.
    pub answer_to: Did,
}

/// A Mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// What it says of itself.
    pub header: MailHeader,
    /// Its name as an object.
    pub msg_id: ObjId,
    /// Its single messages.
    pub messages: Vec<MailMessage>,
    /// What was said, merged, as Markdown.
    pub text: String,
}

/// What a filter and a list look at: one line of the mailbox's index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailIndexEntry {
    /// Its number. Later ones are larger.
    pub seq: i64,
    /// Its name.
    pub id: MailId,
    /// Its name as an object.
    pub msg_id: ObjId,
    /// The name of its file, in `inbound`, `archive` or `.deadletter`.
    pub file: String,
    /// The SHA-256 of its file, in hex: what makes the file ours.
    pub sha256: String,
    /// The tunnel it came through.
    pub tunnel: TunnelId,
    /// Where it was said.
    pub session: ChatSession,
    /// Who took part.
    pub participants: Participants,
    /// When it became a Mail, by our clock.
    #[serde(with = "rfc3339")]
    pub received_at: Timestamp,
    /// Its subject.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What its sender files it under.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// The label of its tunnel or chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Whether its authors are known.
    pub trust: Trust,
    /// How many messages it has.
    pub messages: usize,
    /// How its text starts.
    pub preview: String,
}

/// The text is not the file of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMailFile {
    /// It does not start with a front matter.
    #[error("there is no front matter between two lines of `---` at the start")]
    NoFrontMatter,
    /// The front matter can't be read.
    #[error("the front matter can't be read: {0}")]
    FrontMatter(String),
    /// The body is another than was written.
    #[error("the body is not what was written: {0}")]
    Body(&'static str),
    /// The object is not a Mail.
    #[error("not a Mail: {0}")]
    NotMail(String),
}

/// The front matter as it is read.
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
    messages: Vec<MailMessage>,
}

impl MailId {
    /// The id of the Mail whose first message has this external id. The same
    /// message makes the same id, however often it is heard.
    pub fn of(provider: &str, tunnel: &TunnelId, external_id: &str) -> Self {
        let hash = Sha256::new()
            .chain_update(tunnel.as_str())
            .chain_update([0])
            .chain_update(external_id)
            .finalize();
        Self { provider: provider.to_owned(), uid: hex::encode(&hash[..12]) }
    }

    /// The provider.
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// What it has beyond the provider.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The name of its file.
    pub fn file(&self, received_at: Timestamp) -> String {
        format!("{}_{self}.md", received_at.compact())
    }
}

impl Mail {
    /// The Mail that an object holds.
    ///
    /// # Errors
    ///
    /// When it holds something else.
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
            messages: Vec<MailMessage>,
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

    /// Its file.
    pub fn render(&self) -> String {
        let messages = self.messages.iter();
        let messages =
            messages.map(|message| MailMessage { text: String::new(), ..message.clone() });
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
        let seal = digest(lines.as_bytes());
        format!("---\n{lines}{SEAL}{seal}\"\n---\n\n{}\n", self.text)
    }

    /// Reads a file that [`Self::render`] wrote.
    ///
    /// # Errors
    ///
    /// When it is not one, or was changed since.
    pub fn parse(file: &str) -> Result<Self, InvalidMailFile> {
        let (front, body) = split(file).ok_or(InvalidMailFile::NoFrontMatter)?;
        let front: MailFrontMatter = from_yaml(unsealed(front)?)?;
        let length = front.content.bytes;
        let (text, rest) =
            body.split_at_checked(length).ok_or(InvalidMailFile::Body("it is shorter"))?;
        match rest {
            "\n" => {}
            "" => return Err(InvalidMailFile::Body("it is shorter")),
            _ => return Err(InvalidMailFile::Body("it is longer")),
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

    /// Its line in the index. `file` is what [`Self::render`] gave.
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
        }
    }
}

impl MailMessage {
    /// A message as a Mail keeps it.
    pub fn new(said: InboundMessage, heard_at: Timestamp) -> Self {
        Self {
            id: said.id,
            at: said.at,
            heard_at,
            from: said.from,
            to: said.to,
            cc: said.cc,
            title: said.title,
            mentions: said.mentions,
            reply_to: said.reply_to,
            forwarded_from: said.forwarded_from,
            correlation_id: said.correlation_id,
            artifacts: said.artifacts,
            text: said.text,
        }
    }
}

/// The SHA-256 of `bytes`, in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex::encode(&Sha256::digest(bytes))
}

/// The lines of a Mail's front matter before the seal, when it is not broken.
fn unsealed(front: &str) -> Result<&str, InvalidMailFile> {
    let broken =
        || InvalidMailFile::FrontMatter("it is not what was written: the seal is broken".into());
    let at = front.rfind(SEAL).ok_or_else(broken)?;
    let (lines, seal) = front.split_at(at);
    if seal != format!("{SEAL}{}\"\n", digest(lines.as_bytes())) {
        return Err(broken());
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

/// Reads YAML that may come from anybody: bounded in size and depth, without anchors,
/// aliases, and tags that are not YAML's own.
///
/// # Errors
///
/// [`BadMail::FrontMatter`], with the place.
pub fn from_yaml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, InvalidMailFile> {
    serde_saphyr::from_str_with_options(text, yaml::bounded(16, MAX_NODES, MAX_FRONT_MATTER))
        .map_err(|error| InvalidMailFile::FrontMatter(error.to_string()))
}

/// Writes a front matter: one line for each key of the first two levels, every
/// string quoted.
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

/// How a text starts, on one line.
pub fn preview(text: &str) -> String {
    let words = text.split_whitespace();
    let mut out = String::new();
    for word in words {
        if !out.is_empty() {
            out.push(' ');
        }
        out.extend(word.chars().take(PREVIEW + 1));
        if out.chars().count() > PREVIEW {
            out = out.chars().take(PREVIEW - 1).collect();
            out.push('…');
            break;
        }
    }
    out
}

/// Most bytes of a front matter, and most values in it: a Mail of many messages with
/// many attachments is long, a bomb is longer.
const MAX_FRONT_MATTER: usize = 8 << 20;
const MAX_NODES: usize = 600_000;

/// JSON on one line, which YAML also reads, with everything escaped that ends a line
/// somewhere, or turns text around, or is not for YAML.
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
        let named = !provider.is_empty()
            && provider.len() <= 32
            && provider.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let hashed = uid.len() == 24 && uid.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !(named && hashed) {
            return Err(bad());
        }
        Ok(Self { provider: provider.to_owned(), uid: uid.to_owned() })
    }
}

impl TryFrom<String> for MailId {
    type Error = InvalidMailId;

    fn try_from(text: String) -> Result<Self, InvalidMailId> {
        text.parse()
    }
}

impl From<MailId> for String {
    fn from(id: MailId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests;
