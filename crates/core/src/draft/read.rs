//! Parsing of a draft's file.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{Draft, DraftAttachment, DraftOptions, InvalidDraft, MAX_DRAFT, MAX_TEXT, invalid};
use crate::filter::nearest;
use crate::inbound::{MAX_LIST_ENTRIES, MAX_NAME_BYTES};
use crate::mail::{FORMAT, from_yaml};
use crate::object::{MAX_TARGETS, ObjKind};

/// Maximum length of an idempotency key, in bytes.
const MAX_KEY: usize = 256;

const KEYS: [&str; 15] = [
    "to",
    "cc",
    "bcc",
    "provider",
    "tunnel",
    "reply_to",
    "thread_key",
    "type",
    "title",
    "content",
    "artifacts",
    "options",
    "correlation_id",
    "idempotency_key",
    "outcome",
];
const CONTENT: [&str; 1] = ["format"];
const OPTIONS: [&str; 3] = ["silent", "urgent", "schedule_at"];
const ARTIFACT: [&str; 3] = ["name", "mime_type", "hash"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DraftFrontMatter {
    #[serde(default)]
    to: Words,
    #[serde(default)]
    cc: Words,
    #[serde(default)]
    bcc: Words,
    provider: Option<String>,
    tunnel: Option<String>,
    reply_to: Option<String>,
    thread_key: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    title: Option<String>,
    content: Option<Content>,
    #[serde(default)]
    artifacts: Option<Vec<DraftAttachment>>,
    options: Option<DraftOptions>,
    correlation_id: Option<String>,
    idempotency_key: Option<String>,
}

/// One string or a list of strings.
#[derive(Default)]
struct Words(Vec<String>);

/// The text, or its format.
enum Content {
    Text(String),
    Format(Option<String>),
}

impl Draft {
    /// Parses the file of a draft.
    ///
    /// # Errors
    ///
    /// [`InvalidDraft`]; `Incomplete` when the file may not be fully written yet.
    pub fn parse(file: &str) -> Result<Self, InvalidDraft> {
        if file.len() > MAX_DRAFT {
            let why = format!("{} bytes; {MAX_DRAFT} is the most", file.len());
            return Err(invalid("the draft", why));
        }
        let (front, body) = split(file)?;
        let front = file[front].replace("\r\n", "\n");
        let body = file[body..].replace("\r\n", "\n");
        check_keys(&front)?;
        let front: DraftFrontMatter =
            from_yaml(&front).map_err(|error| InvalidDraft::FrontMatter(error.to_string()))?;
        let body = body.strip_prefix('\n').unwrap_or(&body).trim_end_matches('\n');
        front.draft(body)
    }
}

/// Returns the range of the front matter, and the start of the body.
pub(super) fn split(file: &str) -> Result<(Range<usize>, usize), InvalidDraft> {
    let start = if file.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let is_fence = |line: &str| line.trim_end() == "---";
    let mut lines = file[start..].split_inclusive('\n');
    let first = lines.next().unwrap_or_default();
    if !is_fence(first) {
        let begun = file[start..].len() < 4 && "---".starts_with(first.trim_end());
        return Err(if begun { InvalidDraft::Incomplete } else { InvalidDraft::NoFrontMatter });
    }
    let front = start + first.len();
    let mut at = front;
    for line in lines {
        let next = at + line.len();
        if is_fence(line) {
            return Ok((front..at, next));
        }
        at = next;
    }
    Err(InvalidDraft::Incomplete)
}

/// Rejects unknown keys before anything else is checked.
fn check_keys(front: &str) -> Result<(), InvalidDraft> {
    // Invalid YAML is reported by the second parse.
    let Ok(front) = from_yaml::<Map<String, Value>>(front) else { return Ok(()) };
    let check = |inside: &str, map: &Map<String, Value>, known: &'static [&'static str]| {
        let Some(key) = map.keys().find(|key| !known.contains(&key.as_str())) else {
            return Ok(());
        };
        let shown: String = key.chars().take(80).collect();
        let nearest = nearest(key, known);
        Err(InvalidDraft::UnknownKey { key: format!("{inside}{shown}"), nearest })
    };
    check("", &front, &KEYS)?;
    if front.contains_key("outcome") {
        let why = "this draft was sent before; remove the key to send it again";
        return Err(invalid("outcome", why));
    }
    if let Some(Value::Object(content)) = front.get("content") {
        check("content.", content, &CONTENT)?;
    }
    if let Some(Value::Object(options)) = front.get("options") {
        check("options.", options, &OPTIONS)?;
    }
    for attached in front.get("artifacts").and_then(Value::as_array).into_iter().flatten() {
        if let Value::Object(attached) = attached {
            check("artifacts.", attached, &ARTIFACT)?;
        }
    }
    Ok(())
}

impl DraftFrontMatter {
    fn draft(self, body: &str) -> Result<Draft, InvalidDraft> {
        if let Some(kind) = self.kind.filter(|kind| kind != "message") {
            return Err(invalid("type", format!("{kind:?}; expected message")));
        }
        for (field, Words(words)) in [("to", &self.to), ("cc", &self.cc), ("bcc", &self.bcc)] {
            if words.len() > MAX_TARGETS {
                let why = format!("{} targets; {MAX_TARGETS} is the most", words.len());
                return Err(invalid(field, why));
            }
        }
        for (field, text, most) in [
            ("thread_key", &self.thread_key, MAX_NAME_BYTES),
            ("title", &self.title, MAX_NAME_BYTES),
            ("correlation_id", &self.correlation_id, MAX_NAME_BYTES),
            ("idempotency_key", &self.idempotency_key, MAX_KEY),
        ] {
            let Some(text) = text else { continue };
            if text.is_empty() || text.len() > most {
                let why = format!("{} bytes; expected 1 to {most}", text.len());
                return Err(invalid(field, why));
            }
        }
        let (format, text) = match self.content {
            Some(Content::Text(_)) if !body.trim().is_empty() => {
                return Err(invalid("content", "there is a text here, and another one below"));
            }
            Some(Content::Text(text)) => (None, text),
            Some(Content::Format(format)) => (format, body.to_owned()),
            None => (None, body.to_owned()),
        };
        let format = format.unwrap_or_else(|| FORMAT.to_owned());
        if !is_mime_type(&format) {
            return Err(invalid(
                "content.format",
                format!("{format:?}; expected a type such as {FORMAT}"),
            ));
        }
        if text.len() > MAX_TEXT {
            return Err(invalid(
                "the text",
                format!("{} bytes; {MAX_TEXT} is the most", text.len()),
            ));
        }
        let artifacts = self.artifacts.unwrap_or_default();
        check_artifacts(&artifacts)?;
        if text.trim().is_empty() && artifacts.is_empty() {
            return Err(invalid("the text", "empty, and there is no attachment"));
        }
        let named = |field: &'static str, error: String| invalid(field, error);
        Ok(Draft {
            to: self.to.0,
            cc: self.cc.0,
            bcc: self.bcc.0,
            provider: self.provider,
            tunnel: match self.tunnel {
                Some(name) => Some(name.parse().map_err(|e| named("tunnel", format!("{e}")))?),
                None => None,
            },
            reply_to: match self.reply_to {
                Some(id) => Some(id.parse().map_err(|e| named("reply_to", format!("{e}")))?),
                None => None,
            },
            thread_key: self.thread_key,
            title: self.title,
            format,
            text,
            artifacts,
            options: self.options.unwrap_or_default(),
            correlation_id: self.correlation_id,
            idempotency_key: self.idempotency_key,
        })
    }
}

fn check_artifacts(artifacts: &[DraftAttachment]) -> Result<(), InvalidDraft> {
    if artifacts.len() > MAX_LIST_ENTRIES {
        let why = format!("{} entries; {MAX_LIST_ENTRIES} is the most", artifacts.len());
        return Err(invalid("artifacts", why));
    }
    for attached in artifacts {
        if attached.name.is_empty() || attached.name.len() > MAX_NAME_BYTES {
            let why = format!("{} bytes; expected 1 to {MAX_NAME_BYTES}", attached.name.len());
            return Err(invalid("artifacts.name", why));
        }
        if !is_mime_type(&attached.mime_type) {
            let why = format!("{:?}; expected a type such as text/plain", attached.mime_type);
            return Err(invalid("artifacts.mime_type", why));
        }
        if attached.hash.kind() != ObjKind::Bytes {
            return Err(invalid("artifacts.hash", "expected sha256: and 64 lower-case hex digits"));
        }
    }
    Ok(())
}

fn is_mime_type(text: &str) -> bool {
    let plain = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&b))
    };
    text.len() <= 255 && text.split_once('/').is_some_and(|(kind, sub)| plain(kind) && plain(sub))
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // YAML reads `+49 …` as a number; an account must be quoted.
                f.write_str("a text (numbers in quotes), or a list of them")
            }

            fn visit_unit<E>(self) -> Result<Words, E> {
                Ok(Words::default())
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Words, E> {
                Ok(Words(vec![word.to_owned()]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = list.next_element()? {
                    words.push(word);
                }
                Ok(Words(words))
            }
        }
        reader.deserialize_any(Either)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, or {format}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Content, A::Error> {
                let mut format = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key != "format" {
                        return Err(de::Error::unknown_field(&key, &CONTENT));
                    }
                    format = Some(map.next_value()?);
                }
                Ok(Content::Format(format))
            }
        }
        reader.deserialize_any(Either)
    }
}
