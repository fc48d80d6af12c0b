//! Parses a YAML file into a tree of nodes that know their line and column.
//!
//! Scalars stay text: `port: 80.5` is `"80.5"`, so that the reader of the value can
//! expand variables and report what it found.

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, Location, NonFiniteFloatPolicy, Spanned};

use super::InvalidConfig;

/// Limits of a config file: nesting depth, number of nodes, bytes.
const MAX_DEPTH: usize = 16;
const MAX_NODES: usize = 50_000;
const MAX_BYTES: usize = 1 << 20;

/// One value of the file and where it is.
#[derive(Debug)]
pub(super) struct ConfigNode {
    pub line: u64,
    pub column: u64,
    pub value: NodeValue,
}

#[derive(Debug)]
pub(super) enum NodeValue {
    /// Nothing, `~` or `null`.
    Null,
    Scalar(String),
    List(Vec<ConfigNode>),
    Map(Vec<ConfigEntry>),
}

/// One key of a mapping with its value.
#[derive(Debug)]
pub(super) struct ConfigEntry {
    pub key: String,
    pub line: u64,
    pub column: u64,
    pub node: ConfigNode,
}

impl ConfigNode {
    /// Parses `text`: at most 16 levels, no anchors or aliases, one document.
    pub fn parse(text: &str) -> Result<Self, InvalidConfig> {
        // The spans of scalars count from behind the byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut options = crate::yaml::bounded(MAX_DEPTH, MAX_NODES, MAX_BYTES);
        // `.nan` and `1e999` are texts like all others; the reader of a number rejects them.
        options.non_finite_float_policy = NonFiniteFloatPolicy::PassThrough;
        let parsed = serde_saphyr::from_str_with_options::<Spanned<ParsedValue>>(text, options);
        Ok(Self::from_parsed(parsed.map_err(|error| invalid_yaml(&error))?, text))
    }

    fn from_parsed(parsed: Spanned<ParsedValue>, text: &str) -> Self {
        let at = parsed.referenced;
        let value = match parsed.value {
            ParsedValue::Null => NodeValue::Null,
            ParsedValue::Text(scalar) => NodeValue::Scalar(scalar),
            ParsedValue::Typed => NodeValue::Scalar(source_text(at, text).to_owned()),
            ParsedValue::List(list) => {
                let nodes = list.into_iter().map(|node| Self::from_parsed(node, text));
                NodeValue::List(nodes.collect())
            }
            ParsedValue::Map(entries) => {
                let entries = entries.into_iter().map(|(key, node)| ConfigEntry {
                    line: key.referenced.line(),
                    column: key.referenced.column(),
                    key: key.value,
                    node: Self::from_parsed(node, text),
                });
                NodeValue::Map(entries.collect())
            }
        };
        Self { line: at.line(), column: at.column(), value }
    }
}

/// The text of a plain scalar that the YAML library read as a number or a boolean.
fn source_text(at: Location, text: &str) -> &str {
    let span = at.span();
    let start = span.byte_offset().and_then(|start| usize::try_from(start).ok());
    let len = span.byte_len().and_then(|len| usize::try_from(len).ok());
    let range = start.zip(len).and_then(|(start, len)| text.get(start..start.checked_add(len)?));
    range.unwrap_or_default().trim()
}

/// A node as the YAML library reports it.
enum ParsedValue {
    Null,
    Text(String),
    /// A number or a boolean. Its text is taken from the source: `1.0` must not become `1`.
    Typed,
    List(Vec<Spanned<ParsedValue>>),
    Map(Vec<(Spanned<String>, Spanned<ParsedValue>)>),
}

impl<'de> Deserialize<'de> for ParsedValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ParsedValueVisitor)
    }
}

struct ParsedValueVisitor;

impl<'de> Visitor<'de> for ParsedValueVisitor {
    type Value = ParsedValue;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<ParsedValue, E> {
        Ok(ParsedValue::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<ParsedValue, E> {
        Ok(ParsedValue::Typed)
    }

    fn visit_i64<E>(self, _: i64) -> Result<ParsedValue, E> {
        Ok(ParsedValue::Typed)
    }

    fn visit_u64<E>(self, _: u64) -> Result<ParsedValue, E> {
        Ok(ParsedValue::Typed)
    }

    fn visit_f64<E>(self, _: f64) -> Result<ParsedValue, E> {
        Ok(ParsedValue::Typed)
    }

    fn visit_str<E>(self, text: &str) -> Result<ParsedValue, E> {
        Ok(ParsedValue::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ParsedValue, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(ParsedValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ParsedValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(ParsedValue::Map(entries))
    }
}

/// Describes a syntax error by place and kind. Values are left out: one may be a secret.
fn invalid_yaml(error: &Error) -> InvalidConfig {
    let place = match error.location() {
        Some(location) => format!("line {}, column {}", location.line(), location.column()),
        None => "the file".to_owned(),
    };
    let why = match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key `{}`", key.escape_debug())
        }
        Error::MultipleDocuments { .. }
        | Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "second YAML document; a config file has one".to_owned()
        }
        Error::Budget {
            breach: BudgetBreach::Anchors { .. } | BudgetBreach::Aliases { .. },
            ..
        } => "anchors and aliases are not supported".to_owned(),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            format!("nested too deeply; the limit is {MAX_DEPTH} levels")
        }
        Error::Budget { .. } => format!("too many values; the limit is {MAX_NODES}"),
        Error::QuotingRequired { .. } => "this value needs quotes".to_owned(),
        Error::Message { msg, .. } => format!("not valid YAML: {msg}"),
        _ => "not valid YAML".to_owned(),
    };
    InvalidConfig::at(place, why)
}
