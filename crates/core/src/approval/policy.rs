//! The approval policy: which messages are sent, held for a person, or refused.
//!
//! ```yaml
//! approvals:
//!   agents: hold
//!   rules:                       # the first rule that matches decides
//!     - { recipients_over: 5, do: refuse }
//!     - { reply: true, trust: known, do: send, at_most: 20/h }
//! ```
//!
//! A rule matches when all of its conditions do. Rules apply to agents, and to the owner only
//! when `owner` says so. [`decide`] gets all facts of one message and performs no I/O. The store
//! calls it in the transaction that creates the deliveries.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use regex::Regex;
use serde::{Deserialize, Serialize};

use super::SendOrigin;
use crate::did::Did;
use crate::letter::RFC822;
use crate::mail::Trust;
use crate::names::variant_names;
use crate::object::MsgObject;
use crate::rate_limit::Rate;
use crate::time::Timestamp;
use crate::token::AgentName;

mod parse;
#[cfg(test)]
mod tests;

/// How long an approval waits for an answer, unless the policy sets another time.
pub const DEFAULT_EXPIRY: Duration = Duration::from_secs(24 * 3600);

/// How long a Mail of a stranger that an agent has read counts as read before.
pub const UNTRUSTED_READ_SPAN: Duration = Duration::from_secs(24 * 3600);

/// Maximum number of bytes of a text that `text_matches` reads.
const MAX_MATCHED_BYTES: usize = 1 << 20;

/// What a rule does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    Send,
    Hold,
    Refuse,
}

/// How messages of the owner are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerPolicy {
    /// They are sent; no rule applies.
    #[default]
    Send,
    /// The rules apply; without a match they are sent.
    Rules,
    /// The rules apply; without a match they are held.
    Hold,
}

/// The checked setting `approvals`.
#[derive(Clone, Debug)]
pub struct ApprovalPolicy {
    /// What happens to messages of agents that no rule matches.
    pub agents: RuleAction,
    pub owner: OwnerPolicy,
    /// How long an approval waits for an answer.
    pub expire_after: Duration,
    /// Accounts that are asked in a chat.
    pub ask: Vec<Did>,
    rules: Vec<ApprovalRule>,
}

/// One rule. All of its conditions must hold.
#[derive(Clone, Debug)]
struct ApprovalRule {
    conditions: Vec<RuleCondition>,
    action: RuleAction,
    /// Only with `send`: messages above this rate are held.
    at_most: Option<Rate>,
    /// The rule as it is written in the configuration.
    text: String,
}

#[derive(Clone, Debug)]
enum RuleCondition {
    /// The message has more targets than this.
    RecipientsOver(usize),
    /// The title or the text matches.
    TextMatches(Regex),
    /// Whether the agent has read a Mail of a stranger in the last 24 h.
    AfterUntrusted(bool),
    /// Whether a target is another one than the chats of these Mails.
    Elsewhere(bool),
    /// Whether the hub has never exchanged a message with at least one target.
    FirstContact(bool),
    /// Whether the message answers a Mail, to exactly where the Mail's answers go.
    Reply(bool),
    /// The trust of the answered Mail.
    ReplyTrust(Trust),
    /// The name of the agent's token.
    AgentName(AgentName),
    /// Every target matches one of these.
    To(Vec<TargetPattern>),
}

/// Targets that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TargetPattern {
    /// Targets with a box in this hub.
    Here,
    /// E-mail addresses of this domain, in lower case.
    Domain(String),
    Exactly(Did),
}

/// One target, as the policy sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetFact {
    pub target: Did,
    /// The provider's address; `None` for a local target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether the hub has never exchanged a message with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_contact: bool,
}

/// What a decision depends on, except for the text. Stored with the decision, so that it can be
/// explained, and replayed with another policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendFacts {
    #[serde(default, skip_serializing_if = "SendOrigin::is_owner")]
    pub origin: SendOrigin,
    pub targets: Vec<TargetFact>,
    /// The trust of the answered Mail, when the message answers one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<Trust>,
    /// Whether the agent has read a Mail of a stranger in the last 24 h.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub after_untrusted: bool,
    /// Whether at least one target is none of the chats of these Mails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// The halt that applies to the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt: Option<HaltFact>,
}

/// A halt that applies to a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HaltFact {
    pub scope: String,
    /// Whether it rejects the message instead of holding it.
    pub lock: bool,
}

/// What happens to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SendDecision {
    Send {
        rule: String,
    },
    /// It waits for a person.
    Hold {
        rule: String,
        why: String,
    },
    /// It is rejected; nothing is stored.
    Refuse {
        rule: String,
        why: String,
    },
}

/// The result of one rule for one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleCheck {
    pub rule: String,
    pub matched: bool,
    /// What the conditions found.
    pub why: String,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self {
            agents: RuleAction::Hold,
            owner: OwnerPolicy::Send,
            expire_after: DEFAULT_EXPIRY,
            ask: Vec::new(),
            rules: Vec::new(),
        }
    }
}

impl PartialEq for ApprovalPolicy {
    fn eq(&self, other: &Self) -> bool {
        let rules =
            |policy: &Self| policy.rules.iter().map(|rule| rule.text.clone()).collect::<Vec<_>>();
        (self.agents, self.owner, self.expire_after)
            == (other.agents, other.owner, other.expire_after)
            && self.ask == other.ask
            && rules(self) == rules(other)
    }
}

impl ApprovalPolicy {
    /// Tells whether messages of this origin are sent without looking at them. Then no facts are
    /// needed.
    pub fn always_sends(&self, origin: &SendOrigin) -> bool {
        match origin {
            SendOrigin::Owner => self.owner == OwnerPolicy::Send,
            SendOrigin::Agent { .. } => false,
            SendOrigin::Forward | SendOrigin::Courier => true,
        }
    }

    /// Tells whether a rule looks at the text of messages.
    pub fn reads_text(&self) -> bool {
        let is_text =
            |condition: &RuleCondition| matches!(condition, RuleCondition::TextMatches(_));
        self.rules.iter().any(|rule| rule.conditions.iter().any(is_text))
    }

    /// Tells whether the rule with this text sends at most at a rate, so that its messages are
    /// counted.
    pub fn is_limited(&self, rule: &str) -> bool {
        self.rules.iter().any(|it| it.at_most.is_some() && it.text == rule)
    }

    /// Evaluates every rule for one message, in order.
    pub fn explain(&self, facts: &SendFacts, text: Option<&str>) -> Vec<RuleCheck> {
        self.rules.iter().map(|rule| rule.check(facts, text)).collect()
    }
}

/// Decides what happens to a message. `sent_before` returns how many messages of the agent a rule
/// has sent since a time; it is called at most once. `text` is that of [`text_of`].
///
/// # Errors
///
/// The error of `sent_before`.
pub fn decide<E>(
    policy: &ApprovalPolicy,
    facts: &SendFacts,
    text: Option<&str>,
    now: Timestamp,
    sent_before: impl FnOnce(&str, Timestamp) -> Result<u32, E>,
) -> Result<SendDecision, E> {
    if let Some(HaltFact { scope, lock }) = &facts.halt {
        let (rule, why) = ("halt".to_owned(), format!("{scope} is halted"));
        return Ok(match lock {
            true => SendDecision::Refuse { rule, why: format!("{why} and locked") },
            false => SendDecision::Hold { rule, why },
        });
    }
    if policy.always_sends(&facts.origin) {
        return Ok(SendDecision::Send { rule: format!("{} sends", facts.origin) });
    }
    for rule in &policy.rules {
        if !rule.matches(facts, text) {
            continue;
        }
        if let Some(rate) = rule.at_most {
            let since = Timestamp::from_ms(now.ms().saturating_sub_unsigned(rate.span_ms));
            let sent = sent_before(&rule.text, since)?;
            if sent >= rate.count {
                let why = format!("{sent} messages were sent by this rule, at most {rate}");
                return Ok(SendDecision::Hold { rule: rule.text.clone(), why });
            }
        }
        let name = rule.text.clone();
        return Ok(match rule.action {
            RuleAction::Send => SendDecision::Send { rule: name },
            other => other.decision(name, rule.check(facts, text).why),
        });
    }
    let (key, action) = match (&facts.origin, policy.owner) {
        (SendOrigin::Agent { .. }, _) => ("agents", policy.agents),
        (_, OwnerPolicy::Hold) => ("owner", RuleAction::Hold),
        (_, OwnerPolicy::Send | OwnerPolicy::Rules) => ("owner", RuleAction::Send),
    };
    let rule = format!("{key}: {}", action.as_str());
    Ok(action.decision(rule, "no rule matches".to_owned()))
}

/// The title and the text of a message. `None` when the text is a mail in its encoded form, which
/// a rule cannot read.
pub fn text_of(msg: &MsgObject) -> Option<String> {
    let TextFields { content } = serde_json::from_str(msg.canonical()).ok()?;
    if content.format.as_deref() == Some(RFC822) {
        return None;
    }
    let (title, text) = (content.title.unwrap_or_default(), content.content.unwrap_or_default());
    Some(format!("{title}\n{text}"))
}

/// The fields of a message that rules read. Parsing only these is several times faster than parsing
/// the whole message.
#[derive(Deserialize)]
struct TextFields<'a> {
    #[serde(borrow)]
    content: ContentFields<'a>,
}

#[derive(Deserialize)]
struct ContentFields<'a> {
    #[serde(borrow, default)]
    format: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    title: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    content: Option<Cow<'a, str>>,
}

impl RuleAction {
    fn decision(self, rule: String, why: String) -> SendDecision {
        match self {
            Self::Send => SendDecision::Send { rule },
            Self::Hold => SendDecision::Hold { rule, why },
            Self::Refuse => SendDecision::Refuse { rule, why },
        }
    }
}

impl SendDecision {
    /// The name in the API and the store.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Send { .. } => "send",
            Self::Hold { .. } => "hold",
            Self::Refuse { .. } => "refuse",
        }
    }

    /// The rule that decided.
    pub fn rule(&self) -> &str {
        match self {
            Self::Send { rule } | Self::Hold { rule, .. } | Self::Refuse { rule, .. } => rule,
        }
    }

    /// What the rule found; empty for a message that is sent.
    pub fn why(&self) -> &str {
        match self {
            Self::Send { .. } => "",
            Self::Hold { why, .. } | Self::Refuse { why, .. } => why,
        }
    }
}

impl ApprovalRule {
    fn matches(&self, facts: &SendFacts, text: Option<&str>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(facts, text, self.action))
    }

    /// Like [`Self::matches`], with what the conditions found: all, or the first that does not hold.
    fn check(&self, facts: &SendFacts, text: Option<&str>) -> RuleCheck {
        let rule = self.text.clone();
        let fails = |it: &&RuleCondition| !it.holds(facts, text, self.action);
        if let Some(failed) = self.conditions.iter().find(fails) {
            return RuleCheck { rule, matched: false, why: failed.finding(facts, text, false) };
        }
        let found: Vec<_> =
            self.conditions.iter().map(|it| it.finding(facts, text, true)).collect();
        let why = match found.is_empty() {
            true => "the rule has no conditions".to_owned(),
            false => found.join(", "),
        };
        RuleCheck { rule, matched: true, why }
    }
}

impl RuleCondition {
    /// Returns whether the condition holds. A text that cannot be read matches only rules that do
    /// not send.
    fn holds(&self, facts: &SendFacts, text: Option<&str>, action: RuleAction) -> bool {
        match self {
            Self::RecipientsOver(most) => facts.targets.len() > *most,
            Self::TextMatches(regex) => match text {
                Some(text) => regex.is_match(&text[..text.floor_char_boundary(MAX_MATCHED_BYTES)]),
                None => action != RuleAction::Send,
            },
            Self::AfterUntrusted(wanted) => facts.after_untrusted == *wanted,
            Self::Elsewhere(wanted) => facts.elsewhere == *wanted,
            Self::FirstContact(wanted) => first_contact(facts).is_some() == *wanted,
            Self::Reply(wanted) => facts.reply.is_some() == *wanted,
            Self::ReplyTrust(wanted) => facts.reply == Some(*wanted),
            Self::AgentName(name) => facts.origin.agent() == Some(name.as_str()),
            Self::To(patterns) => not_allowed(patterns, facts).is_none(),
        }
    }

    /// What the condition found, whether it holds or not.
    fn finding(&self, facts: &SendFacts, text: Option<&str>, holds: bool) -> String {
        let choose = |fact: bool, yes: &str, no: &str| if fact { yes } else { no }.to_owned();
        match self {
            Self::RecipientsOver(_) => match facts.targets.len() {
                1 => "it has 1 recipient".to_owned(),
                count => format!("it has {count} recipients"),
            },
            Self::TextMatches(_) if text.is_none() => "its text is encoded".to_owned(),
            Self::TextMatches(_) => choose(holds, "its text matches", "its text does not match"),
            Self::AfterUntrusted(_) => choose(
                facts.after_untrusted,
                "the agent has read a Mail of a stranger in the last 24 h",
                "the agent has read no Mail of a stranger in the last 24 h",
            ),
            Self::Elsewhere(_) => choose(
                facts.elsewhere,
                "it goes elsewhere than to the chats of these Mails",
                "it goes to the chats of these Mails",
            ),
            Self::FirstContact(_) => match first_contact(facts) {
                Some(first) => format!("it is the first message to {}", first.target),
                None => "all recipients are known".to_owned(),
            },
            Self::Reply(_) => {
                choose(facts.reply.is_some(), "it answers a Mail", "it answers no Mail")
            }
            Self::ReplyTrust(_) => match facts.reply {
                Some(Trust::Known) => "the Mail is from a contact".to_owned(),
                Some(Trust::Untrusted) => "the Mail is from a stranger".to_owned(),
                None => "it answers no Mail".to_owned(),
            },
            Self::AgentName(_) => format!("it is sent by {}", facts.origin),
            Self::To(patterns) => match not_allowed(patterns, facts) {
                Some(other) => format!("{} is not in the list", other.target),
                None => "all recipients are in the list".to_owned(),
            },
        }
    }
}

/// The first target that the hub has never exchanged a message with.
fn first_contact(facts: &SendFacts) -> Option<&TargetFact> {
    facts.targets.iter().find(|target| target.first_contact)
}

/// The first target that matches none of the patterns.
fn not_allowed<'a>(patterns: &[TargetPattern], facts: &'a SendFacts) -> Option<&'a TargetFact> {
    let allowed = |target: &TargetFact| patterns.iter().any(|pattern| pattern.matches(target));
    facts.targets.iter().find(|target| !allowed(target))
}

impl TargetPattern {
    fn matches(&self, fact: &TargetFact) -> bool {
        match self {
            Self::Here => fact.address.is_none(),
            Self::Domain(domain) => fact
                .address
                .as_deref()
                .and_then(|address| address.rsplit_once('@'))
                .is_some_and(|(_, found)| found.eq_ignore_ascii_case(domain)),
            Self::Exactly(did) => fact.target == *did,
        }
    }
}

impl fmt::Display for TargetPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here => f.write_str("here"),
            Self::Domain(domain) => write!(f, "@{domain}"),
            Self::Exactly(did) => f.write_str(did.as_str()),
        }
    }
}

variant_names! { RuleAction: Send = "send", Hold = "hold", Refuse = "refuse" }
