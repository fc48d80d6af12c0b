//! Which Mails a workspace pulls: its rules, and why one matched or did not.
//!
//! ```yaml
//! filters:
//!   - { type: mention, pattern: "@monoco::alpha" }
//!   - { type: all, conditions: [ { type: provider, value: email },
//!                                { type: subject_contains, value: "[Alpha]" } ] }
//! ```
//!
//! Any filter that matches pulls the Mail. A rule looks at the Mail's line in the
//! index; its file is opened only when a rule asks for the text. Rules are written
//! by people, so letters match whatever their case; only `text_matches` is taken as
//! it is written, for a regular expression can say `(?i)` itself.

use std::fmt;

use regex::Regex;
use serde::Serialize;

use crate::inbound::Participant;
use crate::mail::MailIndexEntry;

mod parse;

pub use parse::{InvalidFilter, KINDS, nearest, yaml};

/// Most bytes of a text that a rule looks at.
pub const MAX_TEXT: usize = 1 << 20;

/// Most rules inside one another.
pub const MAX_DEPTH: usize = 16;

/// Most rules of one workspace, those inside others counted too.
pub const MAX_RULES: usize = 1_000;

/// One rule.
#[derive(Clone, Debug)]
pub enum Filter {
    /// Every condition matches.
    All(Vec<Filter>),
    /// At least one condition matches.
    Any(Vec<Filter>),
    /// The condition does not match.
    Not(Box<Filter>),
    /// Somebody or something is mentioned; `*` stands for anything.
    Mention(Folded),
    /// The Mail has this label.
    Binding(Folded),
    /// The Mail's chat has this label: the label, the chat, or both are given.
    ChatBinding {
        /// The label; any, when there is none.
        value: Option<Folded>,
        /// The id or name of the chat; any, when there is none.
        session: Option<Folded>,
    },
    /// It came through this provider.
    Provider(Folded),
    /// It was said in the session of this id or name.
    Session(Folded),
    /// Somebody of this id or name spoke.
    From(Folded),
    /// Somebody of this domain or one below it spoke.
    FromDomain(Folded),
    /// The subject has this in it.
    SubjectContains(Folded),
    /// The text matches this regular expression.
    TextMatches(Regex),
    /// It is filed under this.
    Correlation(Folded),
}

/// Text as it was written in a rule, and in small letters to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded {
    written: String,
    small: String,
}

/// A workspace's filters. Any that matches pulls the Mail.
#[derive(Clone, Debug)]
pub struct FilterSet(Vec<Filter>);

/// A Mail that may be pulled.
pub struct FilterInput<'a> {
    entry: &'a MailIndexEntry,
    fetch: &'a mut dyn FnMut() -> Option<String>,
    text: Option<Option<String>>,
}

/// What a rule says of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterResult {
    /// Whether it matched.
    pub matched: bool,
    /// The rule, in short.
    pub rule: String,
    /// What the Mail has there.
    pub why: String,
    /// What the conditions in it say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<FilterResult>,
}

/// What a workspace's filters say of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterReport {
    /// Whether the Mail is pulled.
    pub pulled: bool,
    /// What each filter says.
    pub filters: Vec<FilterResult>,
}

impl FilterSet {
    /// Filters of these rules.
    pub const fn new(rules: Vec<Filter>) -> Self {
        Self(rules)
    }

    /// What holds for a workspace that says nothing: it is mentioned by its name, or
    /// its name is the Mail's label.
    pub fn of_name(name: &str) -> Self {
        let binding = Filter::Binding(Folded::new(name));
        if name.contains('*') {
            // As a pattern it would match other workspaces too.
            return Self(vec![binding]);
        }
        Self(vec![Filter::Mention(Folded::new(&format!("@monoco::{name}"))), binding])
    }

    /// Whether one of them matches.
    pub fn pull(&self, mail: &mut FilterInput<'_>) -> bool {
        self.0.iter().any(|rule| rule.matches(mail))
    }

    /// What each of them says.
    pub fn explain(&self, mail: &mut FilterInput<'_>) -> FilterReport {
        let filters: Vec<_> = self.0.iter().map(|rule| rule.explain(mail)).collect();
        FilterReport { pulled: filters.iter().any(|verdict| verdict.matched), filters }
    }
}

impl<'a> FilterInput<'a> {
    /// A Mail, and how to get at its text: `None` when its file can't be read. That is
    /// asked for at most once, and only when a rule wants it.
    pub fn new(entry: &'a MailIndexEntry, fetch: &'a mut dyn FnMut() -> Option<String>) -> Self {
        Self { entry, fetch, text: None }
    }

    fn text(&mut self) -> Option<&str> {
        let fetch = &mut self.fetch;
        let text = self.text.get_or_insert_with(fetch).as_deref()?;
        Some(&text[..text.floor_char_boundary(MAX_TEXT)])
    }
}

impl Filter {
    /// Whether it matches.
    pub fn matches(&self, mail: &mut FilterInput<'_>) -> bool {
        let entry = mail.entry;
        match self {
            Self::All(rules) => rules.iter().all(|rule| rule.matches(mail)),
            Self::Any(rules) => rules.iter().any(|rule| rule.matches(mail)),
            Self::Not(rule) => !rule.matches(mail),
            Self::Mention(pattern) => {
                entry.participants.mentions.iter().any(|mention| pattern.mentioned_by(mention))
            }
            Self::Binding(value) => value.is_maybe(entry.binding.as_deref()),
            Self::ChatBinding { value, session } => {
                let label = match value {
                    Some(value) => value.is_maybe(entry.binding.as_deref()),
                    None => entry.binding.is_some(),
                };
                label && session.as_ref().is_none_or(|session| said_in(entry, session))
            }
            Self::Provider(value) => value.is(entry.id.provider()),
            Self::Session(value) => said_in(entry, value),
            Self::From(value) => entry
                .participants
                .from
                .iter()
                .any(|person| value.is(&person.id) || value.is_maybe(person.name.as_deref())),
            Self::FromDomain(domain) => {
                entry.participants.from.iter().any(|person| domain.has(&person.id))
            }
            Self::SubjectContains(value) => {
                entry.title.as_deref().is_some_and(|title| value.is_in(title))
            }
            Self::TextMatches(regex) => mail.text().is_some_and(|text| regex.is_match(text)),
            Self::Correlation(value) => value.is_maybe(entry.correlation_id.as_deref()),
        }
    }

    /// Whether it matches, and why.
    pub fn explain(&self, mail: &mut FilterInput<'_>) -> FilterResult {
        let inner = match self {
            Self::All(rules) | Self::Any(rules) => rules.as_slice(),
            Self::Not(rule) => std::slice::from_ref(&**rule),
            _ => {
                let matched = self.matches(mail);
                let (rule, why) = (self.to_string(), self.why(mail, matched));
                return FilterResult { matched, rule, why, conditions: Vec::new() };
            }
        };
        let conditions: Vec<_> = inner.iter().map(|rule| rule.explain(mail)).collect();
        let met = conditions.iter().filter(|verdict| verdict.matched).count();
        let matched = match self {
            Self::All(_) => met == conditions.len(),
            Self::Not(_) => met == 0,
            _ => met > 0,
        };
        let why = match (self, met) {
            (Self::Not(_), 0) => "the condition does not match".to_owned(),
            (Self::Not(_), _) => "the condition matches".to_owned(),
            (_, met) => format!("{met} of {} conditions match", conditions.len()),
        };
        FilterResult { matched, rule: self.to_string(), why, conditions }
    }

    /// What the Mail has where the rule looks.
    fn why(&self, mail: &mut FilterInput<'_>, matched: bool) -> String {
        let entry = mail.entry;
        match self {
            Self::All(_) | Self::Any(_) | Self::Not(_) => String::new(),
            Self::Mention(_) => match entry.participants.mentions.as_slice() {
                [] => "nobody is mentioned".to_owned(),
                mentions => format!("mentioned: {}", few(mentions.iter().map(String::clone))),
            },
            Self::Binding(_) => binding(entry),
            Self::ChatBinding { .. } => format!("{}; {}", binding(entry), session(entry)),
            Self::Provider(_) => format!("it came through {}", entry.id.provider()),
            Self::Session(_) => session(entry),
            Self::From(_) | Self::FromDomain(_) => {
                format!("it is from {}", few(entry.participants.from.iter().map(person)))
            }
            Self::SubjectContains(_) => match &entry.title {
                Some(title) => format!("its subject is {title:?}"),
                None => "it has no subject".to_owned(),
            },
            Self::TextMatches(_) if mail.text().is_none() => "its text can't be read".to_owned(),
            Self::TextMatches(_) if matched => "its text matches".to_owned(),
            Self::TextMatches(_) => "its text does not match".to_owned(),
            Self::Correlation(_) => match &entry.correlation_id {
                Some(id) => format!("it is filed under {id:?}"),
                None => "it is filed under nothing".to_owned(),
            },
        }
    }
}

fn said_in(entry: &MailIndexEntry, session: &Folded) -> bool {
    session.is(&entry.session.id) || session.is_maybe(entry.session.name.as_deref())
}

fn binding(entry: &MailIndexEntry) -> String {
    match &entry.binding {
        Some(label) => format!("its label is {label:?}"),
        None => "it has no label".to_owned(),
    }
}

fn session(entry: &MailIndexEntry) -> String {
    match &entry.session.name {
        Some(name) => format!("it was said in {name:?} ({:?})", entry.session.id),
        None => format!("it was said in {:?}", entry.session.id),
    }
}

fn person(person: &Participant) -> String {
    match &person.name {
        Some(name) => format!("{name:?} ({:?})", person.id),
        None => format!("{:?}", person.id),
    }
}

/// The first ones, and how many more there are.
fn few(all: impl Iterator<Item = String>) -> String {
    const FEW: usize = 5;
    let all: Vec<_> = all.collect();
    let shown = all[..all.len().min(FEW)].join(", ");
    match all.len().saturating_sub(FEW) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl Folded {
    /// Text of a rule.
    pub fn new(written: &str) -> Self {
        Self { written: written.to_owned(), small: small(written).collect() }
    }

    fn is(&self, text: &str) -> bool {
        small(text).eq(self.small.chars())
    }

    fn is_maybe(&self, text: Option<&str>) -> bool {
        text.is_some_and(|text| self.is(text))
    }

    fn is_in(&self, text: &str) -> bool {
        small(text).collect::<String>().contains(&self.small)
    }

    /// Whether a mention is what the pattern means, with or without its `@`.
    fn mentioned_by(&self, mention: &str) -> bool {
        let mention = mention.strip_prefix('@').unwrap_or(mention);
        let pattern = self.small.strip_prefix('@').unwrap_or(&self.small);
        let Some((first, rest)) = pattern.split_once('*') else {
            return small(mention).eq(pattern.chars());
        };
        let mention: String = small(mention).collect();
        let Some(mut left) = mention.strip_prefix(first) else { return false };
        let mut parts: Vec<_> = rest.split('*').collect();
        let last = parts.pop().unwrap_or_default();
        for part in parts {
            let Some(at) = left.find(part) else { return false };
            left = &left[at + part.len()..];
        }
        left.ends_with(last)
    }

    /// Whether an address or a name is of this domain or one below it.
    fn has(&self, id: &str) -> bool {
        let domain = self.small.strip_prefix('@').unwrap_or(&self.small);
        let id: String = small(id).collect();
        let Some((_, host)) = id.rsplit_once('@') else { return id == domain };
        host.strip_suffix(domain).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
    }
}

/// Small letters, one by one. Not `str::to_lowercase`, which looks at the letters
/// around a sigma.
fn small(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_lowercase)
}

/// A rule as a person would name it.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self {
            Self::All(rules) => return write!(f, "all of {}", rules.len()),
            Self::Any(rules) => return write!(f, "any of {}", rules.len()),
            Self::Not(_) => return f.write_str("not"),
            Self::ChatBinding { value, session } => {
                f.write_str("chat_binding")?;
                for given in [value, session].into_iter().flatten() {
                    write!(f, " {:?}", given.written)?;
                }
                return Ok(());
            }
            Self::TextMatches(regex) => regex.as_str(),
            Self::Mention(value)
            | Self::Binding(value)
            | Self::Provider(value)
            | Self::Session(value)
            | Self::From(value)
            | Self::FromDomain(value)
            | Self::SubjectContains(value)
            | Self::Correlation(value) => &value.written,
        };
        write!(f, "{} {value:?}", self.kind())
    }
}

impl fmt::Debug for FilterInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidate").field("entry", self.entry).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
