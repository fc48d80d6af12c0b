//! `spam`: trashes spam by rules that give points, or by the result of rspamd.
//!
//! Points are counted as whole thousandths: 0.7, 0.1 and 0.2 add up to 1, which is not true
//! of floating-point numbers.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use monoco_core::config::{ConfigSection, InvalidConfig};
use monoco_core::did::Did;
use monoco_core::letter::{Letter, MAX_EXTRA, WorkerResult, WorkerStep};
use monoco_core::time::Timestamp;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};
use crate::pipeline::external::rspamd;

pub const KIND: WorkerKind = WorkerKind {
    name: "spam",
    built_in: true,
    keys: &[
        "threshold",
        "rules",
        "rspamd",
        "password",
        "password_file",
        "allow_private",
        "timeout_s",
        "retries",
        "when_down",
        "parallel",
    ],
    parse,
};

/// The keys that a worker without rspamd takes.
const KEYS_OF_RULES: [&str; 3] = ["kind", "threshold", "rules"];

/// Points from which a letter is spam, by default.
const DEFAULT_THRESHOLD: f64 = 5.0;

/// Largest part of a text that rules are applied to, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Largest compiled pattern, in bytes.
const MAX_REGEX_BYTES: usize = 1 << 20;

/// Maximum number of rules. Their names are stored in the letter, which has a size limit.
const MAX_RULES: usize = 200;

/// Maximum points of one rule, positive or negative.
const MAX_POINTS: f64 = 1_000_000.0;

/// Rules, and the number of points from which a letter is spam.
#[derive(Clone, Debug, PartialEq)]
pub struct SpamConfig {
    threshold: Points,
    rules: Vec<SpamRule>,
}

/// One rule: points for letters that match a pattern.
#[derive(Clone, Debug)]
pub struct SpamRule {
    name: String,
    points: Points,
    part: RulePart,
    pattern: Regex,
}

/// The part of a letter that a rule is applied to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePart {
    Subject,
    /// The text; for a mail, each text part, HTML with its tags.
    Text,
    /// The sender, both of the letter and in the header of the mail.
    From,
    /// Each recipient, both of the letter and in the header of the mail.
    To,
    /// The first header field of this name. Chat messages have none.
    Header(String),
}

/// Thousandths of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Points(i64);

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let keys = &section.keys;
    let rules = keys.sections("rules")?;
    if rules.is_empty() && !keys.has("rspamd") {
        return Err(keys.invalid("expected `rules`, `rspamd` or both"));
    }
    let rspamd_key = keys.keys().find(|key| !KEYS_OF_RULES.contains(key));
    if let Some(key) = rspamd_key.filter(|_| !keys.has("rspamd")) {
        return Err(keys.invalid(format!("`{key}` needs `rspamd`, which is not set")));
    }
    let threshold = keys.number_or("threshold", 0.001..=MAX_POINTS, DEFAULT_THRESHOLD)?;
    let parsed = rules.iter().map(parse_rule).collect::<Result<_, _>>()?;
    let spam = SpamConfig::new(threshold, parsed).map_err(|why| {
        // The error repeats names of rules, which may be the content of a variable.
        let plain = |rule: &ConfigSection<'_>| match rule.value("name") {
            Ok(Some(name)) => !name.raw().contains("${"),
            _ => true,
        };
        let why = match rules.iter().all(plain) {
            true => why,
            false => "not valid with the content of their variables".to_owned(),
        };
        keys.invalid_key("rules", why)
    })?;
    if keys.has("rspamd") { rspamd::parse(section, spam) } else { Ok(Arc::new(spam)) }
}

fn parse_rule(rule: &ConfigSection<'_>) -> Result<SpamRule, InvalidConfig> {
    const PARTS: [&str; 5] = ["subject", "text", "from", "to", "header"];
    rule.deny_unknown_keys(&["name", "score", "subject", "text", "from", "to", "header"])?;
    let name_value = rule.required("name")?;
    let name = name_value.text()?;
    let score = rule.required("score")?.number(&(-MAX_POINTS..=MAX_POINTS))?;
    let mut given = PARTS.into_iter().filter(|key| rule.has(key));
    let (Some(key), None) = (given.next(), given.next()) else {
        return Err(rule.invalid("expected one of subject, text, from, to and header"));
    };
    rule.required(key)?.checked(|text| {
        let (part, pattern) = RulePart::parse(key, text)?;
        let parsed = SpamRule::new(&name, score, part, pattern);
        parsed.map_err(|why| match name == name_value.raw() {
            true => one_line_error(&why),
            false => format!("not valid, or the name {} is not", name_value.raw()),
        })
    })
}

/// Shortens an error of the regex parser, which draws the pattern over several lines.
fn one_line_error(why: &str) -> String {
    match (why.split_once("regex parse error:"), why.rsplit_once("error: ")) {
        (Some((rule, _)), Some((_, error))) => format!("{rule}not a pattern: {error}"),
        _ => why.to_owned(),
    }
}

impl Worker for SpamConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Decided(self.apply(letter))
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new_rules) = downcast::<Self>(new) else {
            return if new.kind() == rspamd::KIND_NAME { vec!["rspamd"] } else { vec!["kind"] };
        };
        changed(&[("threshold or rules", self != new_rules)])
    }
}

impl SpamConfig {
    /// Combines rules; letters with `threshold` points or more are spam.
    ///
    /// # Errors
    ///
    /// Fails when the threshold is not above 0, when there are more than 200 rules, and when
    /// two rules have the same name.
    pub fn new(threshold: f64, rules: Vec<SpamRule>) -> Result<Self, String> {
        let threshold = Points::new(threshold).filter(|points| points.0 > 0).ok_or(
            "threshold: expected a number from 0.001 to 1000000 with at most three decimals",
        )?;
        if rules.len() > MAX_RULES {
            return Err(format!("{} rules; the limit is {MAX_RULES}", rules.len()));
        }
        for (at, rule) in rules.iter().enumerate() {
            if rules[..at].iter().any(|other| other.name == rule.name) {
                return Err(format!("two rules are named {}", rule.name));
            }
        }
        Ok(Self { threshold, rules })
    }

    /// Applies all rules. When a rule matches, `extra.spam` of the letter gets the names of
    /// the matching rules and the sum of their points.
    pub fn apply(&self, letter: &Letter) -> WorkerResult {
        let parts = LetterParts::new(letter);
        let matching: Vec<&SpamRule> =
            self.rules.iter().filter(|rule| rule.matches(&parts)).collect();
        if matching.is_empty() {
            return WorkerResult::PASS;
        }
        let sum = Points(matching.iter().map(|rule| rule.points.0).sum());
        let names: Vec<&str> = matching.iter().map(|rule| rule.name.as_str()).collect();
        let letter = with_spam(letter, json!({"score": sum.to_json(), "rules": names}));
        if sum < self.threshold {
            return WorkerResult { letter, ..WorkerResult::PASS };
        }
        // The note is short; the letter has all names.
        let first = names[..names.len().min(5)].join(", ");
        let more = if names.len() > 5 { ", …" } else { "" };
        let note = format!("spam, {sum} points of {}: {first}{more}", self.threshold);
        WorkerResult { letter, ..WorkerResult::trash(note) }
    }
}

impl SpamRule {
    /// Compiles a rule that gives `score` points to letters whose `part` matches `pattern`.
    /// A negative score marks wanted letters.
    ///
    /// For [`RulePart::Header`], the pattern is applied to the value of the field. An empty
    /// pattern matches when the field exists.
    ///
    /// # Errors
    ///
    /// Names the rule and says what is wrong with it.
    pub fn new(name: &str, score: f64, part: RulePart, pattern: &str) -> Result<Self, String> {
        let allowed = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
        if name.trim().is_empty() || name.len() > 64 || !name.chars().all(allowed) {
            let start: String = name.chars().take(64).collect();
            return Err(format!(
                "rule {start:?}: expected a name of 1 to 64 letters, digits, spaces, -, _ and ."
            ));
        }
        let invalid = |why: String| format!("rule {name}: {why}");
        let points = Points::new(score).filter(|points| points.0 != 0);
        let points = points.ok_or_else(|| {
            invalid(
                "score: expected a number up to 1000000 with at most three decimals, not 0"
                    .to_owned(),
            )
        })?;
        if let RulePart::Header(field) = &part {
            let plain = |byte: u8| byte.is_ascii_graphic() && byte != b':';
            if field.is_empty() || field.len() > 128 || !field.bytes().all(plain) {
                return Err(invalid("header: expected `Name: pattern`".to_owned()));
            }
        } else if pattern.is_empty() {
            return Err(invalid("an empty pattern matches every letter".to_owned()));
        }
        let pattern = RegexBuilder::new(pattern)
            .size_limit(MAX_REGEX_BYTES)
            .dfa_size_limit(MAX_REGEX_BYTES)
            .build()
            .map_err(|error| invalid(error.to_string()))?;
        Ok(Self { name: name.to_owned(), points, part, pattern })
    }

    fn matches(&self, letter: &LetterParts<'_>) -> bool {
        let is_match = |text: &str| self.pattern.is_match(text);
        match &self.part {
            RulePart::Subject => letter.subject().is_some_and(is_match),
            RulePart::Text => letter.texts().iter().any(|text| is_match(text)),
            RulePart::From => letter.senders().iter().any(|text| is_match(text)),
            RulePart::To => letter.recipients().iter().any(|text| is_match(text)),
            RulePart::Header(name) => letter.header(name).is_some_and(|text| is_match(&text)),
        }
    }
}

/// Patterns are compared by their text.
impl PartialEq for SpamRule {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.points == other.points
            && self.part == other.part
            && self.pattern.as_str() == other.pattern.as_str()
    }
}

impl RulePart {
    /// Parses a key of the config and its value: `subject`, `text`, `from` and `to` with a
    /// pattern, or `header` with `Name: pattern`. Returns the part and the pattern.
    ///
    /// # Errors
    ///
    /// Fails when the key is unknown or the header has no colon.
    pub fn parse<'p>(key: &str, text: &'p str) -> Result<(Self, &'p str), String> {
        Ok(match key {
            "subject" => (Self::Subject, text),
            "text" => (Self::Text, text),
            "from" => (Self::From, text),
            "to" => (Self::To, text),
            "header" => {
                let (name, pattern) =
                    text.split_once(':').ok_or("header: expected `Name: pattern`")?;
                (Self::Header(name.trim().to_owned()), pattern.trim())
            }
            _ => return Err(format!("{key}: expected subject, text, from, to or header")),
        })
    }
}

impl Points {
    /// Returns `None` when the number has more than three decimals or is out of range.
    fn new(points: f64) -> Option<Self> {
        let thousandths = (points * 1000.0).round();
        let exact = points.abs() <= MAX_POINTS && (points * 1000.0 - thousandths).abs() < 1e-6;
        #[expect(clippy::cast_possible_truncation, reason = "whole, and at most 10^9")]
        exact.then_some(Self(thousandths as i64))
    }

    /// Returns an integer where possible.
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

/// The parts of a letter that rules are applied to, each extracted on first use.
struct LetterParts<'l> {
    letter: &'l Letter,
    mail: OnceCell<Option<Cow<'l, [u8]>>>,
    subject: OnceCell<Option<String>>,
    texts: OnceCell<Vec<String>>,
    senders: OnceCell<Vec<String>>,
    recipients: OnceCell<Vec<String>>,
}

impl<'l> LetterParts<'l> {
    fn new(letter: &'l Letter) -> Self {
        Self {
            letter,
            mail: OnceCell::new(),
            subject: OnceCell::new(),
            texts: OnceCell::new(),
            senders: OnceCell::new(),
            recipients: OnceCell::new(),
        }
    }

    /// Returns the bytes of a mail, `None` for other letters.
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
            None => vec![limited(&self.letter.data).to_owned()],
        })
    }

    fn senders(&self) -> &[String] {
        self.senders.get_or_init(|| {
            let header = self.header("From").into_iter().flat_map(with_bare_address);
            with_account(&self.letter.from).into_iter().chain(header).collect()
        })
    }

    fn recipients(&self) -> &[String] {
        self.recipients.get_or_init(|| {
            let header = ["To", "Cc"].into_iter().filter_map(|name| self.header(name));
            self.letter.to.iter().flat_map(|to| with_account(to)).chain(header).collect()
        })
    }
}

/// Returns the part of a text that rules are applied to.
fn limited(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT_BYTES)]
}

/// Returns the address and, if it is the DID of an external endpoint, its account.
fn with_account(address: &str) -> Vec<String> {
    let endpoint = address.parse::<Did>().ok().and_then(|did| did.endpoint());
    let account = endpoint.map(|endpoint| endpoint.account);
    [Some(address.to_owned()), account].into_iter().flatten().collect()
}

/// Returns a `From` field and the address in it alone, so that patterns can match its end.
fn with_bare_address(from: String) -> Vec<String> {
    let address = from.rsplit_once('<').and_then(|(_, rest)| rest.split_once('>'));
    let address = address.map(|(address, _)| address.trim().to_owned());
    [Some(from), address].into_iter().flatten().collect()
}

/// Returns the letter with `findings` in `extra.spam`, or `None` when `extra` would be too large.
pub fn with_spam(letter: &Letter, findings: Value) -> Option<Letter> {
    let mut extra = letter.extra.clone();
    match (extra.get_mut("spam"), findings) {
        (Some(Value::Object(earlier)), Value::Object(findings)) => earlier.extend(findings),
        (_, findings) => drop(extra.insert("spam".to_owned(), findings)),
    }
    let size = serde_json::to_string(&extra).map_or(usize::MAX, |text| text.len());
    (size <= MAX_EXTRA).then(|| Letter { extra, ..letter.clone() })
}

#[cfg(test)]
mod tests;
