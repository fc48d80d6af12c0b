//! `spam`: throws spam away, by rules that each give points, or by what rspamd says.
//!
//! Points are counted in thousandths, as whole numbers: 0.7, 0.1 and 0.2 are 1, which
//! the sum of three floating-point numbers is not.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;

use monoco_core::did::Did;
use monoco_core::letter::{Letter, MAX_EXTRA};
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use super::WorkerResult;

/// Most text of a letter that is looked at, in bytes.
const MAX_TEXT: usize = 1 << 20;

/// Largest compiled pattern, in bytes.
const MAX_REGEX: usize = 1 << 20;

/// Most rules. What they are called goes into the letter, which has a limit as well.
const MAX_RULES: usize = 200;

/// Most points that one rule may give or take.
const MOST_POINTS: f64 = 1_000_000.0;

/// Rules, and how many points are too many.
#[derive(Clone, Debug, PartialEq)]
pub struct SpamConfig {
    threshold: Points,
    rules: Vec<SpamRule>,
}

/// One rule: points for whatever matches a pattern.
#[derive(Clone, Debug)]
pub struct SpamRule {
    name: String,
    points: Points,
    what: RulePattern,
    pattern: Regex,
}

/// What a rule looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePattern {
    /// The subject.
    Subject,
    /// The text; of a mail each part that is text, HTML with its tags.
    Text,
    /// Who sends it, both as the letter and as the mail says.
    From,
    /// Each of whom it is for, both as the letter and as the mail says.
    To,
    /// The first header field of this name. Chat has none.
    Header(String),
}

/// Thousandths of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Points(i64);

impl SpamConfig {
    /// These rules; `threshold` points and more are spam.
    ///
    /// # Errors
    ///
    /// When the threshold is not more than 0, there are too many rules, or two have the
    /// same name.
    pub fn new(threshold: f64, rules: Vec<SpamRule>) -> Result<Self, String> {
        let threshold = Points::new(threshold)
            .filter(|points| points.0 > 0)
            .ok_or("threshold: want a number from 0.001 to 1000000, to three decimals")?;
        if rules.len() > MAX_RULES {
            return Err(format!("{} rules; {MAX_RULES} is the most", rules.len()));
        }
        for (at, rule) in rules.iter().enumerate() {
            if rules[..at].iter().any(|other| other.name == rule.name) {
                return Err(format!("two rules are called {}", rule.name));
            }
        }
        Ok(Self { threshold, rules })
    }

    /// Looks at one letter. When a rule matches, `extra.spam` says which, and how many
    /// points that is.
    pub fn work(&self, letter: &Letter) -> WorkerResult {
        let looked = Looked::at(letter);
        let hit: Vec<&SpamRule> = self.rules.iter().filter(|rule| rule.matches(&looked)).collect();
        if hit.is_empty() {
            return WorkerResult::PASS;
        }
        let sum = Points(hit.iter().map(|rule| rule.points.0).sum());
        let names: Vec<&str> = hit.iter().map(|rule| rule.name.as_str()).collect();
        let letter = with_spam(letter, json!({"score": sum.to_json(), "rules": names}));
        if sum < self.threshold {
            return WorkerResult { letter, ..WorkerResult::PASS };
        }
        // Few words: all names are in the letter.
        let few = names[..names.len().min(5)].join(", ");
        let more = if names.len() > 5 { ", …" } else { "" };
        let note = format!("spam, {sum} points of {}: {few}{more}", self.threshold);
        WorkerResult { letter, ..WorkerResult::trash(note) }
    }
}

impl SpamRule {
    /// A rule that gives `score` points for what matches `pattern`; less than 0 for what
    /// is surely wanted.
    ///
    /// For [`RulePattern::MailHeader`], `pattern` is what the field's value is to match. An empty
    /// one matches whenever the field is there.
    ///
    /// # Errors
    ///
    /// What is wrong, with the rule's name.
    pub fn new(name: &str, score: f64, what: RulePattern, pattern: &str) -> Result<Self, String> {
        let called = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
        if name.trim().is_empty() || name.len() > 64 || !name.chars().all(called) {
            let start: String = name.chars().take(64).collect();
            return Err(format!("rule {start:?}: its name wants 1 to 64 letters and digits"));
        }
        let bad = |why: String| format!("rule {name}: {why}");
        let points = Points::new(score).filter(|points| points.0 != 0);
        let points = points.ok_or_else(|| {
            bad("score: want a number up to 1000000, to three decimals, and not 0".to_owned())
        })?;
        if let RulePattern::Header(field) = &what {
            let plain = |byte: u8| byte.is_ascii_graphic() && byte != b':';
            if field.is_empty() || field.len() > 128 || !field.bytes().all(plain) {
                return Err(bad("header: want `Name: pattern`".to_owned()));
            }
        } else if pattern.is_empty() {
            return Err(bad("an empty pattern matches every letter".to_owned()));
        }
        let pattern = RegexBuilder::new(pattern)
            .size_limit(MAX_REGEX)
            .dfa_size_limit(MAX_REGEX)
            .build()
            .map_err(|error| bad(error.to_string()))?;
        Ok(Self { name: name.to_owned(), points, what, pattern })
    }

    fn matches(&self, letter: &Looked<'_>) -> bool {
        let is_match = |text: &str| self.pattern.is_match(text);
        match &self.what {
            RulePattern::Subject => letter.subject().is_some_and(is_match),
            RulePattern::Text => letter.texts().iter().any(|text| is_match(text)),
            RulePattern::From => letter.senders().iter().any(|text| is_match(text)),
            RulePattern::To => letter.recipients().iter().any(|text| is_match(text)),
            RulePattern::Header(name) => letter.header(name).is_some_and(|text| is_match(&text)),
        }
    }
}

/// The same pattern is the same text.
impl PartialEq for SpamRule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.points == other.points
            && self.what == other.what
            && self.pattern.as_str() == other.pattern.as_str()
    }
}

impl RulePattern {
    /// What a key of the configuration and its text say: `subject`, `text`, `from` and
    /// `to` with a pattern, or `header` with `Name: pattern`. Returns the pattern, too.
    ///
    /// # Errors
    ///
    /// When the key is another one, or the header has no colon.
    pub fn read<'p>(key: &str, text: &'p str) -> Result<(Self, &'p str), String> {
        Ok(match key {
            "subject" => (Self::Subject, text),
            "text" => (Self::Text, text),
            "from" => (Self::From, text),
            "to" => (Self::To, text),
            "header" => {
                let (name, pattern) = text.split_once(':').ok_or("header: want `Name: pattern`")?;
                (Self::Header(name.trim().to_owned()), pattern.trim())
            }
            _ => return Err(format!("{key}: want subject, text, from, to or header")),
        })
    }
}

impl Points {
    /// So many points, when that is a number of at most three decimals.
    fn new(points: f64) -> Option<Self> {
        let thousandths = (points * 1000.0).round();
        let exact = points.abs() <= MOST_POINTS && (points * 1000.0 - thousandths).abs() < 1e-6;
        #[expect(clippy::cast_possible_truncation, reason = "whole, and at most 10^9")]
        exact.then_some(Self(thousandths as i64))
    }

    /// As a number without a point where it needs none.
    fn to_json(self) -> Value {
        match self.0 % 1000 {
            0 => json!(self.0 / 1000),
            #[expect(clippy::cast_precision_loss, reason = "at most 200 rules of 10^9 each")]
            _ => json!(self.0 as f64 / 1000.0),
        }
    }
}

impl fmt::Display for Points {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_json())
    }
}

/// What rules look at, each found when the first of them asks.
struct Looked<'l> {
    letter: &'l Letter,
    mail: OnceCell<Option<Cow<'l, [u8]>>>,
    subject: OnceCell<Option<String>>,
    texts: OnceCell<Vec<String>>,
    senders: OnceCell<Vec<String>>,
    recipients: OnceCell<Vec<String>>,
}

impl<'l> Looked<'l> {
    fn at(letter: &'l Letter) -> Self {
        Self {
            letter,
            mail: OnceCell::new(),
            subject: OnceCell::new(),
            texts: OnceCell::new(),
            senders: OnceCell::new(),
            recipients: OnceCell::new(),
        }
    }

    /// Its mail, when it is one.
    fn mail(&self) -> Option<&[u8]> {
        self.mail.get_or_init(|| self.letter.is_mail().then(|| self.letter.bytes())).as_deref()
    }

    fn header(&self, name: &str) -> Option<String> {
        monoco_mime::header(self.mail()?, name)
    }

    fn subject(&self) -> Option<&str> {
        let found = || match self.mail() {
            Some(mail) => monoco_mime::subject(mail),
            None => self.letter.extra("subject").map(str::to_owned),
        };
        self.subject.get_or_init(found).as_deref()
    }

    fn texts(&self) -> &[String] {
        self.texts.get_or_init(|| match self.mail() {
            Some(mail) => monoco_mime::texts(mail).into_iter().map(|text| text.decoded).collect(),
            None => vec![start(&self.letter.data).to_owned()],
        })
    }

    fn senders(&self) -> &[String] {
        self.senders.get_or_init(|| {
            let said = self.header("From").into_iter().flat_map(bare);
            names(&self.letter.from).into_iter().chain(said).collect()
        })
    }

    fn recipients(&self) -> &[String] {
        self.recipients.get_or_init(|| {
            let said = ["To", "Cc"].into_iter().filter_map(|name| self.header(name));
            self.letter.to.iter().flat_map(|to| names(to)).chain(said).collect()
        })
    }
}

/// As much of a text as is looked at.
fn start(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

/// An address, and of an endpoint on an outside network also its account.
fn names(address: &str) -> Vec<String> {
    let endpoint = address.parse::<Did>().ok().and_then(|did| did.endpoint());
    let account = endpoint.map(|endpoint| endpoint.account);
    [Some(address.to_owned()), account].into_iter().flatten().collect()
}

/// A `From` as it is, and the address alone: patterns may want to see its end.
fn bare(from: String) -> Vec<String> {
    let address = from.rsplit_once('<').and_then(|(_, rest)| rest.split_once('>'));
    let address = address.map(|(address, _)| address.trim().to_owned());
    [Some(from), address].into_iter().flatten().collect()
}

/// The letter with what is known of it as spam, or `None` when it has no room for it.
fn with_spam(letter: &Letter, known: Value) -> Option<Letter> {
    let mut extra = letter.extra.clone();
    match (extra.get_mut("spam"), known) {
        (Some(Value::Object(before)), Value::Object(known)) => before.extend(known),
        (_, known) => drop(extra.insert("spam".to_owned(), known)),
    }
    let size = serde_json::to_string(&extra).map_or(usize::MAX, |text| text.len());
    (size <= MAX_EXTRA).then(|| Letter { extra, ..letter.clone() })
}

/// What rspamd's answer to `/checkv2` says of a letter.
///
/// `reject`, `discard` and `quarantine` are for the bin, which keeps what is in it. With
/// any other action the letter goes on, and `extra.spam` has what was found, for the
/// workers after it: greylisting and added headers are for servers that talk SMTP.
///
/// # Errors
///
/// When it is no such answer.
pub fn rspamd_opinion(reply: &Value, letter: &Letter) -> Result<WorkerResult, String> {
    let score = reply.get("score").filter(|score| score.is_number());
    let action = reply.get("action").and_then(Value::as_str);
    let (Some(score), Some(action)) = (score, action) else {
        return Err("not rspamd's answer: want a number `score` and a string `action`".to_owned());
    };
    let action: String = action.chars().take(50).collect();
    let required = reply.get("required_score").filter(|score| score.is_number());
    let symbols = strongest(reply);
    let mut known = Map::new();
    known.insert("score".to_owned(), score.clone());
    known.extend(required.map(|required| ("required".to_owned(), required.clone())));
    known.insert("action".to_owned(), json!(action));
    known.insert("symbols".to_owned(), json!(symbols));
    let letter = with_spam(letter, known.into());
    if !["reject", "discard", "quarantine"].contains(&action.as_str()) {
        return Ok(WorkerResult { letter, ..WorkerResult::PASS });
    }
    let of = required.map_or_else(String::new, |required| format!(" of {required}"));
    let few = symbols[..symbols.len().min(5)].join(", ");
    let note = format!("rspamd: {action}, {score} points{of}: {few}");
    Ok(WorkerResult { letter, ..WorkerResult::trash(note) })
}

/// The names of up to 20 symbols that weigh most, for or against.
fn strongest(reply: &Value) -> Vec<String> {
    let weight = |symbol: &Value| symbol["score"].as_f64().unwrap_or_default().abs();
    let symbols = reply.get("symbols").and_then(Value::as_object).into_iter().flatten();
    let mut symbols: Vec<_> = symbols.map(|(name, symbol)| (weight(symbol), name)).collect();
    symbols.sort_by(|(a, name), (b, other)| b.total_cmp(a).then_with(|| name.cmp(other)));
    symbols.into_iter().take(20).map(|(_, name)| name.chars().take(100).collect()).collect()
}

#[cfg(test)]
mod tests;
