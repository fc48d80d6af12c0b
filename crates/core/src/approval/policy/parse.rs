//! Reads and checks the setting `approvals`. Errors name the rule.

use std::fmt::Write;
use std::time::Duration;

use regex::RegexBuilder;

use super::{
    ApprovalPolicy, ApprovalRule, DEFAULT_EXPIRY, OwnerPolicy, RuleAction, RuleCondition,
    TargetPattern,
};
use crate::config::{ConfigSection, ConfigValue, InvalidConfig};
use crate::did::{Did, EndpointKind};
use crate::mail::Trust;
use crate::object::MAX_TARGETS;
use crate::rate_limit::Rate;
use crate::token::AgentName;

/// Maximum number of rules, and of accounts that are asked.
const MAX_ENTRIES: usize = 100;

/// Largest compiled form of one regular expression, in bytes.
const MAX_REGEX_BYTES: usize = 1 << 20;

const KEYS: [&str; 5] = ["agents", "owner", "expire_h", "ask", "rules"];

const RULE_KEYS: [&str; 11] = [
    "recipients_over",
    "text_matches",
    "after_untrusted",
    "elsewhere",
    "first_contact",
    "reply",
    "trust",
    "agent",
    "to",
    "do",
    "at_most",
];

const ACTIONS: [(&str, RuleAction); 3] =
    [("send", RuleAction::Send), ("hold", RuleAction::Hold), ("refuse", RuleAction::Refuse)];

impl ApprovalPolicy {
    /// Reads the section `approvals`. A missing section is the default policy.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] for an invalid value, a rule that cannot match, and a rule that an
    /// earlier one hides.
    pub fn parse(section: &ConfigSection<'_>) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&KEYS)?;
        let owners = [
            ("send", OwnerPolicy::Send),
            ("rules", OwnerPolicy::Rules),
            ("hold", OwnerPolicy::Hold),
        ];
        let default_hours = DEFAULT_EXPIRY.as_secs() / 3600;
        let hours = section.number_or("expire_h", 1..=720, default_hours)?;
        let mut rules: Vec<ApprovalRule> = Vec::new();
        for rule in section.sections("rules")? {
            let new = parse_rule(&rule)?;
            if let Some(number) = rules.iter().position(|earlier| earlier.covers(&new)) {
                let why =
                    format!("is never reached: rules[{number}] matches everything it matches");
                return Err(rule.invalid(why));
            }
            rules.push(new);
        }
        if rules.len() > MAX_ENTRIES {
            return Err(section.invalid_key("rules", format!("has more than {MAX_ENTRIES} rules")));
        }
        Ok(Self {
            agents: section.one_of("agents", &ACTIONS)?.unwrap_or(RuleAction::Hold),
            owner: section.one_of("owner", &owners)?.unwrap_or_default(),
            expire_after: Duration::from_secs(hours * 3600),
            ask: parse_ask(section)?,
            rules,
        })
    }
}

/// Accounts that can be asked: a person in a direct chat, or an e-mail address. In a group, the
/// code would be shown to every member.
fn parse_ask(section: &ConfigSection<'_>) -> Result<Vec<Did>, InvalidConfig> {
    let values = section.values("ask")?.unwrap_or_default();
    if values.len() > MAX_ENTRIES {
        return Err(section.invalid_key("ask", format!("has more than {MAX_ENTRIES} accounts")));
    }
    values
        .iter()
        .map(|value| {
            let did: Did = value.parsed()?;
            let kind = did.endpoint().map(|endpoint| endpoint.kind);
            match kind {
                Some(EndpointKind::User | EndpointKind::Addr) => Ok(did),
                _ => Err(value.invalid(format!(
                    "found {}; expected the account of one person, such as \
                     did:msgtunnel:ann.user.telegram",
                    value.quoted()
                ))),
            }
        })
        .collect()
}

fn parse_rule(rule: &ConfigSection<'_>) -> Result<ApprovalRule, InvalidConfig> {
    rule.deny_unknown_keys(&RULE_KEYS)?;
    let mut conditions = Vec::new();
    if rule.has("recipients_over") {
        let most = rule.number_or("recipients_over", 1..=MAX_TARGETS - 1, 1)?;
        conditions.push(RuleCondition::RecipientsOver(most));
    }
    if let Some(pattern) = rule.text("text_matches")? {
        let built = RegexBuilder::new(&pattern).size_limit(MAX_REGEX_BYTES).build();
        let regex = built.map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default().trim();
            rule.invalid_key("text_matches", format!("invalid regular expression: {reason}"))
        })?;
        conditions.push(RuleCondition::TextMatches(regex));
    }
    conditions.extend(rule.flag("after_untrusted")?.map(RuleCondition::AfterUntrusted));
    conditions.extend(rule.flag("elsewhere")?.map(RuleCondition::Elsewhere));
    conditions.extend(rule.flag("first_contact")?.map(RuleCondition::FirstContact));
    conditions.extend(rule.flag("reply")?.map(RuleCondition::Reply));
    let trusts = [("known", Trust::Known), ("untrusted", Trust::Untrusted)];
    conditions.extend(rule.one_of("trust", &trusts)?.map(RuleCondition::ReplyTrust));
    let agent: Option<AgentName> = rule.parsed("agent")?;
    conditions.extend(agent.map(RuleCondition::AgentName));
    if let Some(values) = rule.values("to")? {
        if values.is_empty() {
            return Err(rule.invalid_key("to", "is empty, so the rule never matches"));
        }
        let patterns = values.iter().map(parse_target).collect::<Result<_, _>>()?;
        conditions.push(RuleCondition::To(patterns));
    }
    let action = rule.one_of("do", &ACTIONS)?;
    let action = action
        .ok_or_else(|| rule.invalid_key("do", "is missing; expected send, hold or refuse"))?;
    let at_most: Option<Rate> = rule.parsed("at_most")?;
    check_conditions(rule, &conditions)?;
    if at_most.is_some() && action != RuleAction::Send {
        return Err(
            rule.invalid_key("at_most", "needs `do: send`; messages above the rate are held")
        );
    }
    let text = rule_text(&conditions, action, at_most);
    Ok(ApprovalRule { conditions, action, at_most, text })
}

fn parse_target(value: &ConfigValue<'_>) -> Result<TargetPattern, InvalidConfig> {
    let text = value.text()?;
    if text == "here" {
        return Ok(TargetPattern::Here);
    }
    if let Some(domain) = text.strip_prefix('@').filter(|domain| !domain.is_empty()) {
        return Ok(TargetPattern::Domain(domain.to_ascii_lowercase()));
    }
    text.parse().map(TargetPattern::Exactly).map_err(|_| {
        let found = value.quoted();
        value.invalid(format!("found {found}; expected here, @domain or a DID"))
    })
}

/// Rejects conditions that need another one, and conditions that exclude each other.
fn check_conditions(
    rule: &ConfigSection<'_>,
    conditions: &[RuleCondition],
) -> Result<(), InvalidConfig> {
    let has = |wanted: fn(&RuleCondition) -> bool| conditions.iter().any(wanted);
    let is_reply = has(|it| matches!(it, RuleCondition::Reply(true)));
    let after_untrusted = has(|it| matches!(it, RuleCondition::AfterUntrusted(true)));
    if has(|it| matches!(it, RuleCondition::Elsewhere(_))) && !after_untrusted {
        return Err(rule.invalid_key("elsewhere", "needs `after_untrusted: true`"));
    }
    if has(|it| matches!(it, RuleCondition::ReplyTrust(_))) && !is_reply {
        return Err(
            rule.invalid_key("trust", "needs `reply: true`: it is the trust of the answered Mail")
        );
    }
    let impossible = |key: &str, why: &str| {
        Err(rule.invalid_key(key, format!("{why}, so the rule never matches")))
    };
    if is_reply && has(|it| matches!(it, RuleCondition::RecipientsOver(_))) {
        return impossible("recipients_over", "a reply has one recipient");
    }
    if is_reply && has(|it| matches!(it, RuleCondition::FirstContact(true))) {
        return impossible("first_contact", "a reply goes to a known recipient");
    }
    Ok(())
}

/// The rule in one line, as it is written in the configuration.
fn rule_text(conditions: &[RuleCondition], action: RuleAction, at_most: Option<Rate>) -> String {
    let mut text = String::new();
    for condition in conditions {
        let _ = match condition {
            RuleCondition::RecipientsOver(most) => write!(text, "recipients_over: {most}, "),
            RuleCondition::TextMatches(regex) => write!(text, "text_matches: '{regex}', "),
            RuleCondition::AfterUntrusted(wanted) => write!(text, "after_untrusted: {wanted}, "),
            RuleCondition::Elsewhere(wanted) => write!(text, "elsewhere: {wanted}, "),
            RuleCondition::FirstContact(wanted) => write!(text, "first_contact: {wanted}, "),
            RuleCondition::Reply(wanted) => write!(text, "reply: {wanted}, "),
            RuleCondition::ReplyTrust(Trust::Known) => write!(text, "trust: known, "),
            RuleCondition::ReplyTrust(Trust::Untrusted) => write!(text, "trust: untrusted, "),
            RuleCondition::AgentName(name) => write!(text, "agent: {name}, "),
            RuleCondition::To(patterns) => {
                let all: Vec<_> = patterns.iter().map(ToString::to_string).collect();
                write!(text, "to: [{}], ", all.join(", "))
            }
        };
    }
    text.push_str(&format!("do: {}", action.as_str()));
    if let Some(rate) = at_most {
        text.push_str(&format!(", at_most: {rate}"));
    }
    text
}

impl ApprovalRule {
    /// Tells whether this rule matches every message that `later` matches.
    fn covers(&self, later: &Self) -> bool {
        self.conditions.iter().all(|mine| later.conditions.iter().any(|other| mine.covers(other)))
    }
}

impl RuleCondition {
    /// Tells whether this condition holds whenever `other` does.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::RecipientsOver(mine), Self::RecipientsOver(other)) => mine <= other,
            (Self::TextMatches(mine), Self::TextMatches(other)) => mine.as_str() == other.as_str(),
            (Self::AfterUntrusted(mine), Self::AfterUntrusted(other))
            | (Self::Elsewhere(mine), Self::Elsewhere(other))
            | (Self::FirstContact(mine), Self::FirstContact(other))
            | (Self::Reply(mine), Self::Reply(other)) => mine == other,
            (Self::ReplyTrust(mine), Self::ReplyTrust(other)) => mine == other,
            (Self::AgentName(mine), Self::AgentName(other)) => mine == other,
            (Self::To(mine), Self::To(other)) => other.iter().all(|target| mine.contains(target)),
            _ => false,
        }
    }
}
