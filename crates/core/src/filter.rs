//! Workspace filters: which Mails a workspace pulls, and why.
//!
//! ```yaml
//! filters:
//!   - { type: mention, pattern: "@monoco::alpha" }
//!   - { type: all, conditions: [ { type: provider, value: email },
//!                                { type: subject_contains, value: "[Alpha]" } ] }
//! ```
//!
//! A Mail is pulled when one filter matches. Filters read the Mail's line in the index; its
//! file is opened only when a filter needs the text. Comparisons ignore case, except
//! `text_matches`, whose regular expression can set `(?i)`.
//!
//! Forwarding rules of e-mail tunnels use the same filters on a mail that was received, with
//! two more types: `header` and `attachment`.

use std::borrow::Cow;
use std::fmt;

use regex::Regex;
use serde::Serialize;

use crate::did::TunnelId;
use crate::inbound::{ChatSession, InboundMessage, Participant};
use crate::mail::{MailIndexEntry, Participants};

mod parse;

pub(crate) use parse::filter_of_type;
pub use parse::{InvalidFilter, KINDS, nearest, yaml};

/// Maximum number of bytes of a text that filters read.
pub const MAX_TEXT: usize = 1 << 20;

/// Maximum nesting of filters.
pub const MAX_DEPTH: usize = 16;

/// Maximum number of filters of one workspace, nested ones included.
pub const MAX_RULES: usize = 1_000;

#[derive(Clone, Debug)]
pub enum Filter {
    All(Vec<Filter>),
    /// At least one condition matches.
    Any(Vec<Filter>),
    /// The condition does not match.
    Not(Box<Filter>),
    /// A mention matches this pattern; `*` matches any text.
    Mention(Folded),
    /// The label of the Mail.
    Binding(Folded),
    /// A chat with a label.
    ChatBinding {
        /// The label; `None`: any label.
        value: Option<Folded>,
        /// The id or name of the chat; `None`: any chat.
        session: Option<Folded>,
    },
    Provider(Folded),
    /// The id of the tunnel.
    Tunnel(Folded),
    /// The id or name of the session.
    Session(Folded),
    /// The id or name of an author.
    From(Folded),
    /// The domain of an author, or a parent domain.
    FromDomain(Folded),
    /// A part of the subject.
    SubjectContains(Folded),
    /// A regular expression for the text.
    TextMatches(Regex),
    Correlation(Folded),
    /// The address, name or `@domain` of a recipient in To or Cc.
    Recipient(Folded),
    /// A part of a header field of a mail; only in forwarding rules.
    Header {
        name: Folded,
        contains: Folded,
    },
    /// The name of an attachment of a mail; `*` matches any text. Only in forwarding rules.
    Attachment(Folded),
}

/// Text of a filter, as written and in lower case for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded {
    written: String,
    lower: String,
}

/// The filters of a workspace. One that matches pulls the Mail.
#[derive(Clone, Debug)]
pub struct FilterSet(Vec<Filter>);

/// The Mail that filters are evaluated on.
pub struct FilterInput<'a> {
    provider: &'a str,
    tunnel: &'a TunnelId,
    session: &'a ChatSession,
    participants: &'a Participants,
    title: Option<&'a str>,
    correlation_id: Option<&'a str>,
    binding: Option<&'a str>,
    mail: MailParts<'a>,
    text: FilterText<'a>,
}

/// The text of a Mail, read when a filter needs it.
enum FilterText<'a> {
    Unread(&'a mut dyn FnMut() -> Option<String>),
    /// `None` when the file cannot be read.
    Read(Option<Cow<'a, str>>),
}

/// What only forwarding rules read of a mail. A Mail of the index has none of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MailParts<'a> {
    /// The header fields: names and decoded values.
    pub headers: &'a [(String, String)],
    /// The names of the attachments.
    pub attachments: &'a [String],
}

/// The result of one filter for one Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterResult {
    pub matched: bool,
    /// The filter in short form.
    pub rule: String,
    /// The compared value of the Mail.
    pub why: String,
    /// The results of nested filters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<FilterResult>,
}

/// The results of all filters of a workspace for one Mail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilterReport {
    pub pulled: bool,
    pub filters: Vec<FilterResult>,
}

impl FilterSet {
    pub const fn new(rules: Vec<Filter>) -> Self {
        Self(rules)
    }

    /// The default filters of a workspace: its name is mentioned, or is the label of the Mail.
    pub fn of_name(name: &str) -> Self {
        let binding = Filter::Binding(Folded::new(name));
        if name.contains('*') {
            // As a pattern, the name would match other workspaces too.
            return Self(vec![binding]);
        }
        Self(vec![Filter::Mention(Folded::new(&format!("@monoco::{name}"))), binding])
    }

    /// Whether one filter matches.
    pub fn pull(&self, mail: &mut FilterInput<'_>) -> bool {
        self.0.iter().any(|rule| rule.matches(mail))
    }

    /// Evaluates all filters and explains the results.
    pub fn explain(&self, mail: &mut FilterInput<'_>) -> FilterReport {
        let filters: Vec<_> = self.0.iter().map(|rule| rule.explain(mail)).collect();
        FilterReport { pulled: filters.iter().any(|verdict| verdict.matched), filters }
    }
}

impl<'a> FilterInput<'a> {
    /// `fetch` reads the text, or returns `None` when the file cannot be read. It is called at
    /// most once, and only when a filter needs the text.
    pub fn new(entry: &'a MailIndexEntry, fetch: &'a mut dyn FnMut() -> Option<String>) -> Self {
        Self {
            provider: entry.id.provider(),
            tunnel: &entry.tunnel,
            session: &entry.session,
            participants: &entry.participants,
            title: entry.title.as_deref(),
            correlation_id: entry.correlation_id.as_deref(),
            binding: entry.binding.as_deref(),
            mail: MailParts::default(),
            text: FilterText::Unread(fetch),
        }
    }

    /// A mail of an e-mail tunnel, before it has become a Mail.
    pub fn of_mail(
        tunnel: &'a TunnelId,
        message: &'a InboundMessage,
        participants: &'a Participants,
        mail: MailParts<'a>,
    ) -> Self {
        Self {
            provider: "email",
            tunnel,
            session: &message.session,
            participants,
            title: message.title.as_deref(),
            correlation_id: message.correlation_id.as_deref(),
            binding: None,
            mail,
            text: FilterText::Read(Some(Cow::Borrowed(&message.text))),
        }
    }

    fn text(&mut self) -> Option<&str> {
        if let FilterText::Unread(fetch) = &mut self.text {
            self.text = FilterText::Read(fetch().map(Cow::Owned));
        }
        let FilterText::Read(text) = &self.text else { return None };
        text.as_deref().map(|text| &text[..text.floor_char_boundary(MAX_TEXT)])
    }
}

impl Filter {
    pub fn matches(&self, mail: &mut FilterInput<'_>) -> bool {
        match self {
            Self::All(rules) => rules.iter().all(|rule| rule.matches(mail)),
            Self::Any(rules) => rules.iter().any(|rule| rule.matches(mail)),
            Self::Not(rule) => !rule.matches(mail),
            Self::Mention(pattern) => {
                mail.participants.mentions.iter().any(|mention| pattern.mentioned_by(mention))
            }
            Self::Binding(value) => value.is_maybe(mail.binding),
            Self::ChatBinding { value, session } => {
                let label = match value {
                    Some(value) => value.is_maybe(mail.binding),
                    None => mail.binding.is_some(),
                };
                label && session.as_ref().is_none_or(|session| is_session(mail.session, session))
            }
            Self::Provider(value) => value.is(mail.provider),
            Self::Tunnel(value) => value.is(mail.tunnel.as_str()),
            Self::Session(value) => is_session(mail.session, value),
            Self::From(value) => mail
                .participants
                .from
                .iter()
                .any(|person| value.is(&person.id) || value.is_maybe(person.name.as_deref())),
            Self::FromDomain(domain) => {
                mail.participants.from.iter().any(|person| domain.has(&person.id))
            }
            Self::SubjectContains(value) => mail.title.is_some_and(|title| value.is_in(title)),
            Self::TextMatches(regex) => mail.text().is_some_and(|text| regex.is_match(text)),
            Self::Correlation(value) => value.is_maybe(mail.correlation_id),
            Self::Recipient(value) => {
                let Participants { to, cc, .. } = mail.participants;
                to.iter().chain(cc).any(|person| value.is_recipient(person))
            }
            Self::Header { name, contains } => mail
                .mail
                .headers
                .iter()
                .any(|(field, value)| name.is(field) && contains.is_in(value)),
            Self::Attachment(pattern) => {
                mail.mail.attachments.iter().any(|name| pattern.matches_pattern(name))
            }
        }
    }

    /// Evaluates the filter and explains the result.
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

    /// Describes the value of the Mail that the filter compares.
    fn why(&self, mail: &mut FilterInput<'_>, matched: bool) -> String {
        match self {
            Self::All(_) | Self::Any(_) | Self::Not(_) => String::new(),
            Self::Mention(_) => match mail.participants.mentions.as_slice() {
                [] => "no mentions".to_owned(),
                mentions => {
                    format!("mentioned: {}", first_entries(mentions.iter().map(String::clone)))
                }
            },
            Self::Binding(_) => binding(mail.binding),
            Self::ChatBinding { .. } => {
                format!("{}; {}", binding(mail.binding), session(mail.session))
            }
            Self::Provider(_) => format!("its provider is {}", mail.provider),
            Self::Tunnel(_) => format!("its tunnel is {}", mail.tunnel),
            Self::Session(_) => session(mail.session),
            Self::From(_) | Self::FromDomain(_) => {
                format!("it is from {}", first_entries(mail.participants.from.iter().map(person)))
            }
            Self::SubjectContains(_) => match mail.title {
                Some(title) => format!("its subject is {title:?}"),
                None => "it has no subject".to_owned(),
            },
            Self::TextMatches(_) if mail.text().is_none() => "its text cannot be read".to_owned(),
            Self::TextMatches(_) if matched => "its text matches".to_owned(),
            Self::TextMatches(_) => "its text does not match".to_owned(),
            Self::Correlation(_) => match mail.correlation_id {
                Some(id) => format!("its correlation id is {id:?}"),
                None => "it has no correlation id".to_owned(),
            },
            Self::Recipient(_) => {
                let Participants { to, cc, .. } = mail.participants;
                format!("it is to {}", first_entries(to.iter().chain(cc).map(person)))
            }
            Self::Header { .. } if matched => "the header field has this text".to_owned(),
            Self::Header { .. } => "no such header field has this text".to_owned(),
            Self::Attachment(_) => match mail.mail.attachments {
                [] => "it has no attachments".to_owned(),
                names => format!("attached: {}", first_entries(names.iter().cloned())),
            },
        }
    }
}

fn is_session(session: &ChatSession, value: &Folded) -> bool {
    value.is(&session.id) || value.is_maybe(session.name.as_deref())
}

fn binding(label: Option<&str>) -> String {
    match label {
        Some(label) => format!("its label is {label:?}"),
        None => "it has no label".to_owned(),
    }
}

fn session(session: &ChatSession) -> String {
    match &session.name {
        Some(name) => format!("its session is {name:?} ({:?})", session.id),
        None => format!("its session is {:?}", session.id),
    }
}

fn person(person: &Participant) -> String {
    match &person.name {
        Some(name) => format!("{name:?} ({:?})", person.id),
        None => format!("{:?}", person.id),
    }
}

/// The first 5 entries, and the number of others.
fn first_entries(all: impl Iterator<Item = String>) -> String {
    const MAX_SHOWN: usize = 5;
    let all: Vec<_> = all.collect();
    let shown = all[..all.len().min(MAX_SHOWN)].join(", ");
    match all.len().saturating_sub(MAX_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl Folded {
    pub fn new(written: &str) -> Self {
        Self { written: written.to_owned(), lower: lower_case(written).collect() }
    }

    fn is(&self, text: &str) -> bool {
        lower_case(text).eq(self.lower.chars())
    }

    fn is_maybe(&self, text: Option<&str>) -> bool {
        text.is_some_and(|text| self.is(text))
    }

    fn is_in(&self, text: &str) -> bool {
        lower_case(text).collect::<String>().contains(&self.lower)
    }

    /// Whether a mention matches the pattern, with or without `@`.
    fn mentioned_by(&self, mention: &str) -> bool {
        let mention = mention.strip_prefix('@').unwrap_or(mention);
        matches_pattern(self.lower.strip_prefix('@').unwrap_or(&self.lower), mention)
    }

    fn matches_pattern(&self, text: &str) -> bool {
        matches_pattern(&self.lower, text)
    }

    /// Whether this is the address or the name of `person`, or `@` and the domain.
    fn is_recipient(&self, person: &Participant) -> bool {
        match self.lower.strip_prefix('@') {
            Some(_) => self.has(&person.id),
            None => self.is(&person.id) || self.is_maybe(person.name.as_deref()),
        }
    }

    /// Whether an address is of this domain or a subdomain.
    fn has(&self, id: &str) -> bool {
        let domain = self.lower.strip_prefix('@').unwrap_or(&self.lower);
        let id: String = lower_case(id).collect();
        let Some((_, host)) = id.rsplit_once('@') else { return id == domain };
        host.strip_suffix(domain).is_some_and(|sub| sub.is_empty() || sub.ends_with('.'))
    }
}

/// Whether `text` matches a pattern in lower case, in which `*` stands for any text.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return lower_case(text).eq(pattern.chars());
    };
    let text: String = lower_case(text).collect();
    let Some(mut left) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(last)
}

/// Lower case, character by character: `str::to_lowercase` depends on the letters around a
/// sigma.
fn lower_case(text: &str) -> impl Iterator<Item = char> + '_ {
    text.chars().flat_map(char::to_lowercase)
}

/// The short form of a filter.
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
            | Self::Tunnel(value)
            | Self::Session(value)
            | Self::From(value)
            | Self::FromDomain(value)
            | Self::SubjectContains(value)
            | Self::Recipient(value)
            | Self::Attachment(value)
            | Self::Correlation(value) => &value.written,
            Self::Header { name, contains } => {
                return write!(f, "header {:?} {:?}", name.written, contains.written);
            }
        };
        write!(f, "{} {value:?}", self.kind())
    }
}

impl fmt::Debug for FilterInput<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterInput").field("title", &self.title).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
