//! One value of the config: its variables expanded, its form checked.

use std::fmt::Display;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use monoco_core::filter::nearest;

use super::InvalidConfig;

/// Largest file with a secret that is read.
const MAX_SECRET: u64 = 64 << 10;

/// Where variables come from.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads values. `at` is always the key with those above it, for errors; they show
/// what stands in the file, never what a variable holds.
pub struct ConfigReader<'a> {
    variables: Variables<'a>,
}

impl<'a> ConfigReader<'a> {
    pub fn new(variables: Variables<'a>) -> Self {
        Self { variables }
    }

    /// Expands `${VAR}` and `${VAR:-default}`; `$${` is `${` itself.
    pub fn text(&self, at: &str, raw: &str) -> Result<String, InvalidConfig> {
        let mut out = String::new();
        let mut rest = raw;
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
                return Err(InvalidConfig::at(
                    at,
                    "a `${` without its `}`; write `$${` for the signs",
                ));
            };
            let (name, default) = match inside.split_once(":-") {
                Some((name, default)) => (name, Some(default)),
                None => (inside, None),
            };
            if !is_name(name) {
                let why = "`${…}` takes the name of a variable, of letters, digits and `_`; \
                           write `$${` for the signs";
                return Err(InvalidConfig::at(at, why));
            }
            let value =
                (self.variables)(name).filter(|value| default.is_none() || !value.is_empty());
            match value.as_deref().or(default) {
                Some(value) => out.push_str(value),
                None => {
                    let bad = InvalidConfig::at(at, format!("the variable {name} is not set"));
                    return Err(InvalidConfig { unset: true, ..bad });
                }
            }
            rest = after;
        }
        out.push_str(rest);
        Ok(out)
    }

    /// A whole number in `range`, or the default when there is none.
    pub fn number_or<T>(
        &self,
        at: &str,
        raw: Option<&str>,
        range: RangeInclusive<T>,
        default: T,
    ) -> Result<T, InvalidConfig>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(raw) = raw else { return Ok(default) };
        match self.text(at, raw)?.parse::<T>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                let (from, to) = (range.start(), range.end());
                let found = shown(raw);
                Err(InvalidConfig::at(
                    at,
                    format!("want a number from {from} to {to}, found {found}"),
                ))
            }
        }
    }

    /// `true` or `false`.
    pub fn flag(&self, at: &str, raw: Option<&str>) -> Result<Option<bool>, InvalidConfig> {
        self.one_of(at, raw, &[("true", true), ("false", false)])
    }

    /// One of a few words.
    pub fn one_of<T: Copy>(
        &self,
        at: &str,
        raw: Option<&str>,
        words: &[(&str, T)],
    ) -> Result<Option<T>, InvalidConfig> {
        let Some(raw) = raw else { return Ok(None) };
        let text = self.text(at, raw)?;
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Ok(Some(*value));
        }
        let names: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        let meant = nearest(raw, &names).map(|word| format!(", did you mean {word}?"));
        let (found, meant) = (shown(raw), meant.unwrap_or_default());
        Err(InvalidConfig::at(at, format!("want {}; found {found}{meant}", listed(&names))))
    }

    /// Whatever has a form of its own.
    pub fn parsed<T>(&self, at: &str, raw: &str) -> Result<T, InvalidConfig>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.checked(at, raw, str::parse)
    }

    /// Whatever `check` makes of the text.
    pub fn checked<T, E: Display>(
        &self,
        at: &str,
        raw: &str,
        check: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, InvalidConfig> {
        let text = self.text(at, raw)?;
        check(&text).map_err(|error| {
            // What it says of its text may be what a variable holds.
            let why = if text == raw {
                error.to_string()
            } else {
                format!("not what it should be: {raw}")
            };
            InvalidConfig::at(at, why)
        })
    }

    /// An absolute path; `~` is the user's home directory.
    pub fn path(&self, at: &str, raw: &str) -> Result<PathBuf, InvalidConfig> {
        let path = PathBuf::from(self.at_home(at, raw)?);
        if !path.is_absolute() || path.to_str().is_some_and(|path| path.contains('\0')) {
            let found = shown(raw);
            return Err(InvalidConfig::at(
                at,
                format!("want an absolute path or one of ~/; found {found}"),
            ));
        }
        Ok(path)
    }

    /// Text in which a `~` at the start is the user's home directory.
    pub fn at_home(&self, at: &str, raw: &str) -> Result<String, InvalidConfig> {
        let text = self.text(at, raw)?;
        let Some(rest) = text.strip_prefix('~').filter(|r| r.is_empty() || r.starts_with('/'))
        else {
            return Ok(text);
        };
        let Some(home) = (self.variables)("HOME").filter(|home| !home.is_empty()) else {
            return Err(InvalidConfig::at(at, "`~` stands for HOME, which is not set"));
        };
        let path = Path::new(&home).join(rest.trim_start_matches('/'));
        Ok(path.to_string_lossy().into_owned())
    }

    /// A secret: given in place under `key`, or in a file of its own under `{key}_file`;
    /// empty when neither is.
    pub fn secret(
        &self,
        at: &str,
        key: &str,
        given: Option<&str>,
        file: Option<&str>,
    ) -> Result<String, InvalidConfig> {
        let at_file = format!("{at}.{key}_file");
        let file = match (given, file) {
            (Some(_), Some(_)) => {
                let why = format!("there is a `{key}` as well; want one of them");
                return Err(InvalidConfig::at(at_file, why));
            }
            (Some(secret), None) => return self.text(&format!("{at}.{key}"), secret),
            (None, Some(file)) => file,
            (None, None) => return Ok(String::new()),
        };
        let path = self.path(&at_file, file)?;
        let failed = |error: std::io::Error| {
            InvalidConfig::at(&at_file, format!("can't read {}: {error}", path.display()))
        };
        let mut bytes = Vec::new();
        let opened = std::fs::File::open(&path).map_err(failed)?;
        opened.take(MAX_SECRET + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_SECRET {
            return Err(InvalidConfig::at(&at_file, "larger than 64 KiB"));
        }
        let text =
            String::from_utf8(bytes).map_err(|_| InvalidConfig::at(&at_file, "not UTF-8"))?;
        // Editors end the last line.
        Ok(text.trim_end_matches(['\r', '\n']).to_owned())
    }
}

fn is_name(text: &str) -> bool {
    let starts = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// `a, b or c`.
pub fn listed(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

/// What stands in the file, short and harmless.
pub fn shown(raw: &str) -> String {
    let start: String = raw.chars().take(40).collect();
    let end = if start.len() < raw.len() { "…" } else { "" };
    format!("{:?}", start + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand(raw: &str) -> Result<String, String> {
        let variables = |name: &str| match name {
            "A" => Some("${B}".to_owned()),
            "B" => Some("x: [y".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        ConfigReader::new(&variables).text("key", raw).map_err(|error| error.to_string())
    }

    #[test]
    fn variables_are_expanded_once_and_escapes_are_not() {
        for (raw, text) in [
            ("plain $A $$ $", "plain $A $$ $"),
            ("${B}", "x: [y"),
            ("<${A}${B}>", "<${B}x: [y>"),
            ("$${A}", "${A}"),
            ("$$${A}", "$${A}"),
            ("${EMPTY}", ""),
            ("${EMPTY:-d}", "d"),
            ("${NONE:-}", ""),
            ("${NONE:-a b}c", "a bc"),
            ("${B:-d}", "x: [y"),
        ] {
            assert_eq!(expand(raw).as_deref(), Ok(text), "{raw}");
        }
    }

    #[test]
    fn what_can_not_be_expanded_is_said_without_values() {
        for (raw, why) in [
            ("${NONE}", "key: the variable NONE is not set"),
            ("${A} ${NONE}", "key: the variable NONE is not set"),
            ("${A", "without its `}`"),
            ("${}", "takes the name"),
            ("${1A}", "takes the name"),
            ("${A B}", "takes the name"),
            ("${A?x}", "takes the name"),
        ] {
            let said = expand(raw).unwrap_err();
            assert!(said.contains(why) && !said.contains("[y"), "{raw}: {said}");
        }
    }
}
