//! Reads typed values from a YAML config file; every error names its place in the file.
//!
//! A [`ConfigFile`] is parsed once. Its owner walks it section by section: the courier
//! reads its own settings, and passes the section of a tunnel or a worker to the code that
//! defines that provider or kind of worker.
//!
//! Every value may hold `${VAR}` or `${VAR:-default}`. Variables are expanded after the
//! YAML has been parsed, so that the content of a variable cannot become YAML; `$${` is a
//! literal `${`. Errors show the text of the file, never the content of a variable or a
//! secret. The environment and secret files are read through [`ConfigEnvironment`].

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use crate::filter::nearest;

#[cfg(test)]
mod tests;
mod tree;

use tree::{ConfigNode, NodeValue};

/// Longest part of a value that an error repeats, in characters.
const MAX_QUOTED_CHARS: usize = 40;

/// What is wrong in a config file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct InvalidConfig {
    /// The full key, such as `courier.service.port`, or the line and the column.
    pub place: String,
    /// What was found and what is expected.
    pub why: String,
    /// Whether the only problem is a variable that is not set: it may be set in the
    /// environment of another process.
    pub unset: bool,
}

impl InvalidConfig {
    pub fn at(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self { place: place.into(), why: why.into(), unset: false }
    }
}

/// A secret from a config file. Debug output hides it, and its memory is zeroed on drop.
/// Two secrets can be compared to find out whether a reload changed one.
#[derive(Clone, Debug, Default)]
pub struct Secret(SecretString);

impl Secret {
    pub fn new(secret: impl Into<String>) -> Self {
        Self(SecretString::from(secret.into()))
    }

    /// Returns the secret itself. It must not reach a log, an error or an API answer.
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Secret {}

/// Where a secret comes from: the config file or a file that it names, or a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// Known since the config was loaded.
    Value(Secret),
    /// A program and its arguments. It prints the secret and runs before each login, because
    /// the secret can be a token that expires.
    Command(Vec<String>),
}

impl SecretSource {
    /// Tells whether there is a secret. An empty value is none; a command may print one.
    pub fn is_given(&self) -> bool {
        match self {
            Self::Value(secret) => !secret.expose().is_empty(),
            Self::Command(_) => true,
        }
    }
}

/// Access to what a config file refers to.
pub trait ConfigEnvironment {
    /// Returns the environment variable `name`, or `None` when it is not set.
    fn variable(&self, name: &str) -> Option<String>;

    /// Reads a file that holds a secret. The error says why it cannot be used.
    fn read_secret_file(&self, path: &Path) -> Result<Secret, String>;
}

/// A parsed config file. Its values are not checked yet.
#[derive(Debug)]
pub struct ConfigFile(ConfigNode);

impl ConfigFile {
    /// Parses YAML of at most 16 levels, without anchors and aliases.
    pub fn parse(text: &str) -> Result<Self, InvalidConfig> {
        ConfigNode::parse(text).map(Self)
    }

    /// Returns the top level of the file.
    pub fn root<'a>(
        &'a self,
        environment: &'a dyn ConfigEnvironment,
    ) -> Result<ConfigSection<'a>, InvalidConfig> {
        ConfigSection::new(String::new(), Some(&self.0), environment)
    }
}

/// A mapping in the file. A missing or empty section has no keys.
#[derive(Clone)]
pub struct ConfigSection<'a> {
    path: String,
    entries: &'a [tree::ConfigEntry],
    /// Keys that another reader of this section takes.
    shared_keys: &'a [&'static str],
    environment: &'a dyn ConfigEnvironment,
}

impl<'a> ConfigSection<'a> {
    fn new(
        path: String,
        node: Option<&'a ConfigNode>,
        environment: &'a dyn ConfigEnvironment,
    ) -> Result<Self, InvalidConfig> {
        let entries: &[_] = match node.map(|node| (node, &node.value)) {
            None | Some((_, NodeValue::Null)) => &[],
            Some((_, NodeValue::Map(entries))) => entries,
            Some((node, _)) => return Err(unexpected(node, "keys and values")),
        };
        Ok(Self { path, entries, shared_keys: &[], environment })
    }

    /// Returns a section without keys, for the defaults of what is not configured.
    pub fn empty(path: impl Into<String>, environment: &'a dyn ConfigEnvironment) -> Self {
        Self { path: path.into(), entries: &[], shared_keys: &[], environment }
    }

    /// Returns the full key of this section, such as `courier.adapters.ci`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the full key of `key` in this section.
    pub fn path_of(&self, key: &str) -> String {
        let dot = if self.path.is_empty() { "" } else { "." };
        format!("{}{dot}{}", self.path, key.escape_debug())
    }

    /// Returns an error about the whole section.
    pub fn invalid(&self, why: impl Into<String>) -> InvalidConfig {
        let place = if self.path.is_empty() { "the file" } else { &self.path };
        InvalidConfig::at(place, why)
    }

    /// Returns an error about the value of `key`.
    pub fn invalid_key(&self, key: &str, why: impl Into<String>) -> InvalidConfig {
        InvalidConfig::at(self.path_of(key), why)
    }

    /// Tells [`Self::deny_unknown_keys`] that another reader takes `keys` of this section.
    #[must_use]
    pub fn with_shared_keys(self, keys: &'a [&'static str]) -> Self {
        Self { shared_keys: keys, ..self }
    }

    /// Returns an error for the first key that is neither in `keys` nor shared. It names
    /// the nearest known key. Call it before reading values, so that a misspelt key is
    /// reported as such and not as a missing one.
    pub fn deny_unknown_keys(&self, keys: &[&'static str]) -> Result<(), InvalidConfig> {
        let known: Vec<_> = self.shared_keys.iter().chain(keys).copied().collect();
        let unknown = self.entries.iter().find(|entry| !known.contains(&entry.key.as_str()));
        let Some(entry) = unknown else { return Ok(()) };
        let hint = match (nearest(&entry.key, &known), known.is_empty()) {
            (Some(meant), _) => format!("; did you mean `{meant}`?"),
            (None, false) => format!("; known keys are {}", known.join(", ")),
            (None, true) => "; no keys are known here".to_owned(),
        };
        let place = format!("line {}, column {}", entry.line, entry.column);
        Err(InvalidConfig::at(place, format!("unknown key `{}`{hint}", entry.key.escape_debug())))
    }

    /// Returns all keys in the order of the file.
    pub fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.entries.iter().map(|entry| entry.key.as_str())
    }

    /// Tells whether `key` has a value.
    pub fn has(&self, key: &str) -> bool {
        self.node(key).is_some()
    }

    /// Tells whether the value of `key` is a mapping.
    pub fn is_section(&self, key: &str) -> bool {
        self.node(key).is_some_and(|node| matches!(node.value, NodeValue::Map(_)))
    }

    /// Returns the mapping under `key`; one without keys when it is missing.
    pub fn section(&self, key: &str) -> Result<ConfigSection<'a>, InvalidConfig> {
        Self::new(self.path_of(key), self.node(key), self.environment)
    }

    /// Returns the list of mappings under `key`, with paths such as `rules[0]`.
    pub fn sections(&self, key: &str) -> Result<Vec<ConfigSection<'a>>, InvalidConfig> {
        let nodes = self.list(key)?.unwrap_or_default().iter().enumerate();
        let at = |n| format!("{}[{n}]", self.path_of(key));
        nodes.map(|(n, node)| Self::new(at(n), Some(node), self.environment)).collect()
    }

    /// Returns the scalar under `key`.
    pub fn value(&self, key: &str) -> Result<Option<ConfigValue<'a>>, InvalidConfig> {
        self.node(key).map(|node| self.scalar(self.path_of(key), node)).transpose()
    }

    /// Returns the scalar under `key`, or an error when it is missing.
    pub fn required(&self, key: &str) -> Result<ConfigValue<'a>, InvalidConfig> {
        self.value(key)?.ok_or_else(|| self.invalid_key(key, "is missing"))
    }

    /// Returns the list of scalars under `key`. An empty list is not a missing one.
    pub fn values(&self, key: &str) -> Result<Option<Vec<ConfigValue<'a>>>, InvalidConfig> {
        let Some(nodes) = self.list(key)? else { return Ok(None) };
        nodes
            .iter()
            .map(|node| self.scalar(self.path_of(key), node))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Returns everything under `key` as JSON, with scalars as texts and variables expanded.
    pub fn json(&self, key: &str) -> Result<Option<Value>, InvalidConfig> {
        self.node(key).map(|node| self.node_json(self.path_of(key), node)).transpose()
    }

    fn node_json(&self, path: String, node: &'a ConfigNode) -> Result<Value, InvalidConfig> {
        Ok(match &node.value {
            NodeValue::Null => Value::Null,
            NodeValue::Scalar(_) => Value::String(self.scalar(path, node)?.text()?),
            NodeValue::List(nodes) => {
                let each = nodes.iter().enumerate();
                let values = each.map(|(n, node)| self.node_json(format!("{path}[{n}]"), node));
                Value::Array(values.collect::<Result<_, _>>()?)
            }
            NodeValue::Map(entries) => {
                let values = entries.iter().map(|entry| {
                    let path = format!("{path}.{}", entry.key.escape_debug());
                    Ok((entry.key.clone(), self.node_json(path, &entry.node)?))
                });
                Value::Object(values.collect::<Result<_, InvalidConfig>>()?)
            }
        })
    }

    /// Returns the text under `key`.
    pub fn text(&self, key: &str) -> Result<Option<String>, InvalidConfig> {
        self.value(key)?.map(|value| value.text()).transpose()
    }

    /// Returns a number in `range`, or `default` when `key` is missing.
    pub fn number_or<T>(
        &self,
        key: &str,
        range: RangeInclusive<T>,
        default: T,
    ) -> Result<T, InvalidConfig>
    where
        T: FromStr + PartialOrd + Display,
    {
        self.value(key)?.map_or(Ok(default), |value| value.number(&range))
    }

    /// Returns `true` or `false`.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, InvalidConfig> {
        self.one_of(key, &[("true", true), ("false", false)])
    }

    /// Returns what the word under `key` stands for in `words`.
    pub fn one_of<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, InvalidConfig> {
        self.value(key)?.map(|value| value.one_of(words)).transpose()
    }

    /// Parses the text under `key`.
    pub fn parsed<T>(&self, key: &str) -> Result<Option<T>, InvalidConfig>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.value(key)?.map(|value| value.parsed()).transpose()
    }

    /// Returns the absolute path under `key`; `~` is the user's home directory.
    pub fn file_path(&self, key: &str) -> Result<Option<PathBuf>, InvalidConfig> {
        self.value(key)?.map(|value| value.file_path()).transpose()
    }

    /// Returns a secret: the text under `key`, or the content of the file named under
    /// `{key}_file`. It is empty when neither is given.
    pub fn secret(&self, key: &str) -> Result<Secret, InvalidConfig> {
        let file_key = format!("{key}_file");
        let file = match (self.value(key)?, self.value(&file_key)?) {
            (Some(_), Some(_)) => {
                let why = format!("`{key}` is set as well; set only one of them");
                return Err(self.invalid_key(&file_key, why));
            }
            (Some(secret), None) => return secret.text().map(Secret::new),
            (None, Some(file)) => file,
            (None, None) => return Ok(Secret::default()),
        };
        let read = self.environment.read_secret_file(&file.file_path()?);
        read.map_err(|why| self.invalid_key(&file_key, why))
    }

    /// Returns the source of a secret: `key`, `{key}_file` or `{key}_command`, which is a list of
    /// words or a text for the shell. Returns `None` when none of them is given.
    pub fn secret_source(&self, key: &str) -> Result<Option<SecretSource>, InvalidConfig> {
        let (file_key, command_key) = (format!("{key}_file"), format!("{key}_command"));
        if !self.has(&command_key) {
            let given = self.has(key) || self.has(&file_key);
            return given.then(|| self.secret(key).map(SecretSource::Value)).transpose();
        }
        for other in [key, &file_key] {
            if self.has(other) {
                let why = format!("`{other}` is set as well; set only one of them");
                return Err(self.invalid_key(&command_key, why));
            }
        }
        let is_list =
            self.node(&command_key).is_some_and(|node| matches!(node.value, NodeValue::List(_)));
        let words = if is_list {
            let words = self.values(&command_key)?.unwrap_or_default();
            words.iter().map(ConfigValue::with_home).collect::<Result<Vec<_>, _>>()?
        } else {
            let script = self.required(&command_key)?.text()?;
            vec!["/bin/sh".to_owned(), "-c".to_owned(), script]
        };
        let empty = words.first().is_none_or(String::is_empty)
            || words.last().is_none_or(|last| last.trim().is_empty());
        if empty || words.iter().any(|word| word.contains('\0')) {
            let why = "expected a command that prints the secret, such as [pass, show, mail]";
            return Err(self.invalid_key(&command_key, why));
        }
        Ok(Some(SecretSource::Command(words)))
    }

    fn node(&self, key: &str) -> Option<&'a ConfigNode> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        Some(&entry.node).filter(|node| !matches!(node.value, NodeValue::Null))
    }

    fn list(&self, key: &str) -> Result<Option<&'a [ConfigNode]>, InvalidConfig> {
        match self.node(key).map(|node| (node, &node.value)) {
            None => Ok(None),
            Some((_, NodeValue::List(nodes))) => Ok(Some(nodes)),
            Some((node, _)) => Err(unexpected(node, "a list")),
        }
    }

    fn scalar(&self, path: String, node: &'a ConfigNode) -> Result<ConfigValue<'a>, InvalidConfig> {
        match &node.value {
            NodeValue::Scalar(raw) => Ok(ConfigValue { path, raw, environment: self.environment }),
            _ => Err(unexpected(node, "a single value")),
        }
    }
}

fn unexpected(node: &ConfigNode, expected: &str) -> InvalidConfig {
    let place = format!("line {}, column {}", node.line, node.column);
    InvalidConfig::at(place, format!("expected {expected} here"))
}

/// A scalar in the file, with its variables not yet expanded.
#[derive(Clone)]
pub struct ConfigValue<'a> {
    path: String,
    raw: &'a str,
    environment: &'a dyn ConfigEnvironment,
}

impl ConfigValue<'_> {
    /// Returns the text of the file, with variables by name.
    pub fn raw(&self) -> &str {
        self.raw
    }

    /// Returns the text of the file, shortened and quoted for an error.
    pub fn quoted(&self) -> String {
        quoted(self.raw)
    }

    /// Returns an error about this value.
    pub fn invalid(&self, why: impl Into<String>) -> InvalidConfig {
        InvalidConfig::at(self.path.clone(), why)
    }

    /// Expands `${VAR}` and `${VAR:-default}`; `$${` becomes `${`.
    pub fn text(&self) -> Result<String, InvalidConfig> {
        let mut out = String::new();
        let mut rest = self.raw;
        while let Some(found) = rest.find("${") {
            let (before, reference) = rest.split_at(found);
            if let Some(before) = before.strip_suffix('$') {
                out.push_str(before);
                out.push_str("${");
                rest = &reference[2..];
                continue;
            }
            out.push_str(before);
            let Some((inside, after)) = reference[2..].split_once('}') else {
                return Err(self.invalid("`${` without `}`; write `$${` for a literal `${`"));
            };
            out.push_str(&self.variable(inside)?);
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    /// Returns the value of `NAME` or `NAME:-default`. The default also replaces an empty
    /// variable, as in a shell.
    fn variable(&self, reference: &str) -> Result<String, InvalidConfig> {
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !starts || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let why = "`${…}` takes the name of a variable: letters, digits and `_`; \
                       write `$${` for a literal `${`";
            return Err(self.invalid(why));
        }
        let value = self.environment.variable(name);
        let value = value.filter(|value| default.is_none() || !value.is_empty());
        value.or_else(|| default.map(str::to_owned)).ok_or_else(|| {
            let invalid = self.invalid(format!("the variable {name} is not set"));
            InvalidConfig { unset: true, ..invalid }
        })
    }

    pub fn number<T>(&self, range: &RangeInclusive<T>) -> Result<T, InvalidConfig>
    where
        T: FromStr + PartialOrd + Display,
    {
        match self.text()?.parse::<T>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                let (from, to, found) = (range.start(), range.end(), self.quoted());
                let why = format!("expected a number from {from} to {to}, found {found}");
                Err(self.invalid(why))
            }
        }
    }

    /// Returns what the word stands for in `words`.
    pub fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, InvalidConfig> {
        let text = self.text()?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(*value);
        }
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let meant = nearest(self.raw, &names).map(|word| format!("; did you mean {word}?"));
        let (expected, found) = (or_list(&names), self.quoted());
        let why = format!("expected {expected}, found {found}{}", meant.unwrap_or_default());
        Err(self.invalid(why))
    }

    pub fn parsed<T>(&self) -> Result<T, InvalidConfig>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.checked(str::parse)
    }

    /// Passes the text to `check`. Its error is shown only when the value has no variables:
    /// it may repeat the text.
    pub fn checked<T, E: Display>(
        &self,
        check: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, InvalidConfig> {
        let text = self.text()?;
        check(&text).map_err(|error| match text == self.raw {
            true => self.invalid(error.to_string()),
            false => self.invalid(format!("the content of {} is not valid here", self.raw)),
        })
    }

    /// Returns an absolute path; `~` at the start is the user's home directory.
    pub fn file_path(&self) -> Result<PathBuf, InvalidConfig> {
        let path = PathBuf::from(self.with_home()?);
        if !path.is_absolute() || path.to_str().is_some_and(|path| path.contains('\0')) {
            let why = format!("expected an absolute path or one with ~/, found {}", self.quoted());
            return Err(self.invalid(why));
        }
        Ok(path)
    }

    /// Returns the text with a `~` at the start replaced by the user's home directory.
    pub fn with_home(&self) -> Result<String, InvalidConfig> {
        let text = self.text()?;
        let Some(rest) = text.strip_prefix('~').filter(|r| r.is_empty() || r.starts_with('/'))
        else {
            return Ok(text);
        };
        let home = self.environment.variable("HOME").filter(|home| !home.is_empty());
        let Some(home) = home else {
            return Err(self.invalid("`~` needs the variable HOME, which is not set"));
        };
        let path = Path::new(&home).join(rest.trim_start_matches('/'));
        Ok(path.to_string_lossy().into_owned())
    }
}

/// Returns `a, b or c`.
pub fn or_list(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// Quotes a text of the file for an error: at most 40 characters, control characters escaped.
pub fn quoted(raw: &str) -> String {
    let start: String = raw.chars().take(MAX_QUOTED_CHARS).collect();
    let end = if start.len() < raw.len() { "…" } else { "" };
    format!("{:?}", start + end)
}
