//! Parsing of workspace filters.

use regex::RegexBuilder;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value, json};

use super::{Filter, FilterSet, Folded, MAX_DEPTH, MAX_RULES};
use crate::yaml::bounded;

/// The types of filters.
pub const KINDS: [&str; 17] = [
    "all",
    "any",
    "not",
    "mention",
    "binding",
    "chat_binding",
    "provider",
    "tunnel",
    "session",
    "from",
    "from_domain",
    "subject_contains",
    "text_matches",
    "correlation",
    "recipient",
    "header",
    "attachment",
];

/// A filter with one value, not checked yet.
pub(crate) fn filter_of_type(kind: &str, value: Value) -> Value {
    let key = match kind {
        "mention" | "text_matches" | "attachment" => "pattern",
        "from_domain" => "domain",
        _ => "value",
    };
    json!({"type": kind, key: value})
}

/// Maximum size of a compiled regular expression, in bytes.
const MAX_REGEX: usize = 1 << 20;

/// Maximum size of filters as YAML, in bytes and in values.
const MAX_YAML: usize = 1 << 20;
const MAX_NODES: usize = 20 * MAX_RULES;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct InvalidFilter {
    /// The path, such as `filters[2].conditions[0]`.
    pub place: String,
    pub why: String,
}

impl FilterSet {
    /// Parses a list of filters.
    ///
    /// # Errors
    ///
    /// [`InvalidFilter`] for the first invalid filter.
    pub fn parse(value: &Value) -> Result<Self, InvalidFilter> {
        let mut count = 0;
        let list = value.as_array().ok_or_else(|| bad("filters", "expected a list of rules"))?;
        let rules = rules(list, "filters", 1, &mut count)?;
        for (at, rule) in rules.iter().enumerate() {
            rule.check_for_workspace(&format!("filters[{at}]"))?;
        }
        Ok(Self::new(rules))
    }
}

impl Filter {
    /// Parses one filter in YAML or JSON.
    ///
    /// # Errors
    ///
    /// [`InvalidFilter`] with the path of the invalid part.
    pub fn parse(text: &str) -> Result<Self, InvalidFilter> {
        let filter = rule(&yaml(text)?, "rule", 1, &mut 0)?;
        filter.check_for_workspace("rule")?;
        Ok(filter)
    }

    /// Parses the condition of a forwarding rule.
    pub(crate) fn of_mail(value: &Value, place: &str) -> Result<Self, InvalidFilter> {
        rule(value, place, 1, &mut 0)
    }

    /// Rejects filters that read what only a mail has, not the index.
    fn check_for_workspace(&self, place: &str) -> Result<(), InvalidFilter> {
        match self {
            Self::All(rules) | Self::Any(rules) => {
                rules.iter().try_for_each(|rule| rule.check_for_workspace(place))
            }
            Self::Not(rule) => rule.check_for_workspace(place),
            Self::Header { .. } | Self::Attachment(_) => {
                let why = format!("`{}` works only in forwarding rules of e-mail", self.kind());
                Err(bad(place, why))
            }
            _ => Ok(()),
        }
    }

    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::All(_) => "all",
            Self::Any(_) => "any",
            Self::Not(_) => "not",
            Self::Mention(_) => "mention",
            Self::Binding(_) => "binding",
            Self::ChatBinding { .. } => "chat_binding",
            Self::Provider(_) => "provider",
            Self::Tunnel(_) => "tunnel",
            Self::Session(_) => "session",
            Self::From(_) => "from",
            Self::FromDomain(_) => "from_domain",
            Self::SubjectContains(_) => "subject_contains",
            Self::TextMatches(_) => "text_matches",
            Self::Correlation(_) => "correlation",
            Self::Recipient(_) => "recipient",
            Self::Header { .. } => "header",
            Self::Attachment(_) => "attachment",
        }
    }
}

impl<'de> Deserialize<'de> for Filter {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(reader)?;
        let filter = rule(&value, "rule", 1, &mut 0).map_err(de::Error::custom)?;
        filter.check_for_workspace("rule").map_err(de::Error::custom)?;
        Ok(filter)
    }
}

/// Reads YAML with the limits for filters.
///
/// # Errors
///
/// [`InvalidFilter`] with line and column.
pub fn yaml(text: &str) -> Result<Value, InvalidFilter> {
    if text.len() > MAX_YAML {
        return Err(bad("rules", format!("{} bytes; {MAX_YAML} is the most", text.len())));
    }
    let deep = 2 * MAX_DEPTH + 8;
    let options = bounded(deep, MAX_NODES, MAX_YAML);
    serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| bad("YAML", error.to_string()))
}

fn rules(
    list: &[Value],
    place: &str,
    depth: usize,
    count: &mut usize,
) -> Result<Vec<Filter>, InvalidFilter> {
    let each = list.iter().enumerate();
    each.map(|(at, value)| rule(value, &format!("{place}[{at}]"), depth, count)).collect()
}

fn rule(
    value: &Value,
    place: &str,
    depth: usize,
    count: &mut usize,
) -> Result<Filter, InvalidFilter> {
    *count += 1;
    if *count > MAX_RULES {
        return Err(bad(place, format!("more than {MAX_RULES} rules")));
    }
    if depth > MAX_DEPTH {
        return Err(bad(place, format!("rules inside one another more than {MAX_DEPTH} deep")));
    }
    let fields = Fields::of(value, place)?;
    let inner = |key| -> Result<&[Value], InvalidFilter> {
        match fields.map.get(key).and_then(Value::as_array) {
            Some(list) if !list.is_empty() => Ok(list),
            _ => Err(bad(place, format!("`{key}` must be a list of at least one rule"))),
        }
    };
    Ok(match fields.kind {
        "all" | "any" => {
            fields.only(&["conditions"])?;
            let place = format!("{place}.conditions");
            let rules = rules(inner("conditions")?, &place, depth + 1, count)?;
            if fields.kind == "all" { Filter::All(rules) } else { Filter::Any(rules) }
        }
        "not" => {
            fields.only(&["condition"])?;
            let inner = fields.map.get("condition");
            let inner = inner.ok_or_else(|| bad(place, "`condition` is missing"))?;
            Filter::Not(Box::new(rule(inner, &format!("{place}.condition"), depth + 1, count)?))
        }
        "mention" => Filter::Mention(fields.one("pattern")?),
        "binding" => Filter::Binding(fields.one("value")?),
        "chat_binding" => {
            fields.only(&["value", "session"])?;
            let (value, session) = (fields.maybe("value")?, fields.maybe("session")?);
            if value.is_none() && session.is_none() {
                return Err(bad(place, "`value` or `session` is missing"));
            }
            Filter::ChatBinding { value, session }
        }
        "provider" => Filter::Provider(fields.one("value")?),
        "tunnel" => Filter::Tunnel(fields.one("value")?),
        "session" => Filter::Session(fields.one("value")?),
        "from" => Filter::From(fields.one("value")?),
        "from_domain" => Filter::FromDomain(fields.one("domain")?),
        "subject_contains" => Filter::SubjectContains(fields.one("value")?),
        "correlation" => Filter::Correlation(fields.one("value")?),
        "recipient" => Filter::Recipient(fields.one("value")?),
        "attachment" => Filter::Attachment(fields.one("pattern")?),
        "header" => {
            fields.only(&["name", "contains"])?;
            let get = |key: &'static str| {
                fields.maybe(key)?.ok_or_else(|| bad(place, format!("`{key}` is missing")))
            };
            Filter::Header { name: get("name")?, contains: get("contains")? }
        }
        "text_matches" => {
            let pattern = fields.one("pattern")?.written;
            let regex = RegexBuilder::new(&pattern)
                .size_limit(MAX_REGEX)
                .dfa_size_limit(MAX_REGEX)
                .build()
                .map_err(|error| bad(place, format!("`pattern`: {error}")))?;
            Filter::TextMatches(regex)
        }
        unknown => {
            let why = match nearest(unknown, &KINDS) {
                Some(known) => format!("no rule of type {unknown:?}; did you mean `{known}`?"),
                None => format!("no rule of type {unknown:?}; there are {}", KINDS.join(", ")),
            };
            return Err(bad(place, why));
        }
    })
}

/// The keys of one filter.
struct Fields<'a> {
    kind: &'a str,
    map: &'a Map<String, Value>,
    place: &'a str,
}

impl<'a> Fields<'a> {
    fn of(value: &'a Value, place: &'a str) -> Result<Self, InvalidFilter> {
        let map = value
            .as_object()
            .ok_or_else(|| bad(place, "expected a rule, such as { type: from, value: ann }"))?;
        let kind = map.get("type").and_then(Value::as_str);
        let kind = kind.ok_or_else(|| bad(place, "`type` is missing"))?;
        Ok(Self { kind, map, place })
    }

    /// Rejects all keys except `type` and `known`.
    fn only(&self, known: &[&str]) -> Result<(), InvalidFilter> {
        for key in self.map.keys() {
            if key != "type" && !known.contains(&key.as_str()) {
                let kind = self.kind;
                let why = match nearest(key, known) {
                    Some(known) => format!("no key {key:?} in `{kind}`; did you mean `{known}`?"),
                    None => {
                        format!("no key {key:?} in `{kind}`; it has `{}`", known.join("`, `"))
                    }
                };
                return Err(bad(self.place, why));
            }
        }
        Ok(())
    }

    /// The string value of the only key.
    fn one(&self, key: &'static str) -> Result<Folded, InvalidFilter> {
        self.only(&[key])?;
        self.maybe(key)?.ok_or_else(|| bad(self.place, format!("`{key}` is missing")))
    }

    fn maybe(&self, key: &str) -> Result<Option<Folded>, InvalidFilter> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::String(text)) if !text.is_empty() => Ok(Some(Folded::new(text))),
            Some(Value::String(_)) => Err(bad(self.place, format!("`{key}` is empty"))),
            // A number would lose its leading zeros.
            Some(_) => Err(bad(self.place, format!("`{key}` must be text; put it in quotes"))),
        }
    }
}

fn bad(place: impl Into<String>, why: impl Into<String>) -> InvalidFilter {
    InvalidFilter { place: place.into(), why: why.into() }
}

/// Returns the entry of `known` that `word` probably means: at most a third of its letters
/// added, dropped, changed or swapped with a neighbour.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word: String = word.chars().take(64).collect();
    let distances = known.iter().map(|known| (strsim::osa_distance(&word, known), *known));
    let (distance, known) = distances.min()?;
    (distance <= known.len().div_ceil(3)).then_some(known)
}
