//! Forwarding rules of e-mail tunnels: which addresses a mail is forwarded to.
//!
//! ```yaml
//! forward:
//!   - { when: { subject_contains: invoice, not: { from_domain: example.org } },
//!       to: [billing@example.com] }
//!   - { directory: true }
//! ```
//!
//! `when` names conditions by their type; all of them must match. A rule without `when` matches
//! every mail. `directory: true` adds the people of the directory that the mail concerns. A mail
//! is forwarded to the addresses of all rules that match, each address once. Mails that could
//! start a loop are never forwarded.

use serde_json::{Map, Value, json};

use super::directory::Directory;
use crate::config::{ConfigSection, InvalidConfig};
use crate::did::{TunnelId, lower_case_domain};
use crate::filter::{Filter, FilterInput, MailParts, filter_of_type};
use crate::inbound::InboundMessage;
use crate::letter::check_address;
use crate::mail::Participants;

/// Maximum number of rules of one tunnel, and of addresses of one rule.
const MAX_RULES: usize = 200;

/// Maximum number of recipients of one forwarded mail.
pub const MAX_RECIPIENTS: usize = 100;

/// Number of `Received` fields from which on a mail is not forwarded: it circulates.
pub const MAX_RECEIVED: usize = 30;

/// The header field that each forwarded mail has, with the address of the tunnel.
pub const LOOP_HEADER: &str = "X-Monoco-Loop";

/// One rule of the config.
#[derive(Clone, Debug)]
pub struct ForwardRule {
    when: Option<Filter>,
    /// The text of the rule in the config, to find out whether a reload changed it.
    written: Value,
    to: Vec<String>,
    directory: bool,
}

impl PartialEq for ForwardRule {
    fn eq(&self, other: &Self) -> bool {
        self.written == other.written
    }
}

/// A mail that rules are evaluated on.
#[derive(Clone, Copy, Debug)]
pub struct ForwardInput<'a> {
    pub tunnel: &'a TunnelId,
    /// The address of the tunnel.
    pub own_address: &'a str,
    pub message: &'a InboundMessage,
    pub parts: MailParts<'a>,
}

/// Where a mail is forwarded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ForwardDecision {
    To(Vec<ForwardRecipient>),
    /// Nowhere: no rule matches.
    NoMatch,
    /// Nowhere, although a rule may match, for this reason.
    Skip(String),
}

/// One address that a mail is forwarded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardRecipient {
    pub address: String,
    /// The rule that matched, or what the directory found.
    pub why: String,
}

impl ForwardRule {
    /// Reads the rules under `forward`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`] with the place of the first invalid rule.
    pub fn read_all(section: &ConfigSection<'_>, key: &str) -> Result<Vec<Self>, InvalidConfig> {
        let sections = section.sections(key)?;
        if sections.len() > MAX_RULES {
            let why = format!("{} rules; {MAX_RULES} is the most", sections.len());
            return Err(section.invalid_key(key, why));
        }
        sections.iter().map(Self::read).collect()
    }

    fn read(section: &ConfigSection<'_>) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&["when", "to", "directory"])?;
        let directory = section.flag("directory")?.unwrap_or(false);
        let mut to = Vec::new();
        for value in section.values("to")?.unwrap_or_default() {
            let address = value.text()?;
            check_address(&address)
                .map_err(|why| value.invalid(format!("{}: {why}", value.quoted())))?;
            to.push(lower_case_domain(&address));
        }
        if to.is_empty() && !directory {
            return Err(section.invalid("`to` is missing; name addresses, or set `directory`"));
        }
        if to.len() > MAX_RECIPIENTS {
            let why = format!("{} addresses; {MAX_RECIPIENTS} is the most", to.len());
            return Err(section.invalid_key("to", why));
        }
        let condition = section.json("when")?;
        let place = section.path_of("when");
        let when = match &condition {
            None => None,
            Some(value) => Some(read_condition(value, &place)?),
        };
        let written = json!({"when": condition, "to": to, "directory": directory});
        Ok(Self { when, written, to, directory })
    }

    /// Whether the rule reads the directory of people.
    pub const fn uses_directory(&self) -> bool {
        self.directory
    }

    fn recipients(&self, directory: &Directory, mail: &ForwardInput<'_>) -> Vec<ForwardRecipient> {
        let participants = Participants {
            from: vec![mail.message.from.clone()],
            to: mail.message.to.clone(),
            cc: mail.message.cc.clone(),
            bcc: Vec::new(),
            mentions: mail.message.mentions.clone(),
        };
        let mut input = FilterInput::of_mail(mail.tunnel, mail.message, &participants, mail.parts);
        if !self.when.as_ref().is_none_or(|when| when.matches(&mut input)) {
            return Vec::new();
        }
        let rule = self.when.as_ref().map_or_else(|| "every mail".to_owned(), Filter::to_string);
        let named = self
            .to
            .iter()
            .map(|address| ForwardRecipient { address: address.clone(), why: rule.clone() });
        let found = if self.directory { directory.find(mail.message) } else { Vec::new() };
        let people = found.iter().filter_map(|found| {
            let why = format!("directory: {} by {}", found.person.name, found.by);
            Some(ForwardRecipient { address: found.person.address.clone()?, why })
        });
        named.chain(people).collect()
    }
}

/// Reads `when`: conditions by type, or one condition in the form of workspace filters.
fn read_condition(value: &Value, place: &str) -> Result<Filter, InvalidConfig> {
    let filter = if value.get("type").is_some() {
        value.clone()
    } else {
        long_form(value).map_err(|why| InvalidConfig::at(place, why))?
    };
    Filter::of_mail(&filter, place).map_err(|error| InvalidConfig::at(error.place, error.why))
}

/// Converts `{subject_contains: x, not: {…}}` into the form of workspace filters.
fn long_form(value: &Value) -> Result<Value, String> {
    let expected = "expected conditions, such as { subject_contains: invoice }";
    let Value::Object(conditions) = value else { return Err(expected.to_owned()) };
    let mut all = Vec::new();
    for (kind, value) in conditions {
        all.push(match (kind.as_str(), value) {
            ("all" | "any", Value::Array(list)) => {
                let list = list.iter().map(long_form).collect::<Result<Vec<_>, _>>()?;
                json!({"type": kind, "conditions": list})
            }
            ("not", value) => json!({"type": "not", "condition": long_form(value)?}),
            (_, Value::Object(keys)) => {
                let mut filter = keys.clone();
                filter.insert("type".to_owned(), json!(kind));
                Value::Object(filter)
            }
            (_, value) => filter_of_type(kind, value.clone()),
        });
    }
    match all.len() {
        0 => Err(expected.to_owned()),
        1 => Ok(all.remove(0)),
        _ => Ok(Value::Object(Map::from_iter([
            ("type".to_owned(), json!("all")),
            ("conditions".to_owned(), Value::Array(all)),
        ]))),
    }
}

/// Decides where a mail is forwarded to.
pub fn decide(
    rules: &[ForwardRule],
    directory: &Directory,
    mail: &ForwardInput<'_>,
) -> ForwardDecision {
    if rules.is_empty() {
        return ForwardDecision::NoMatch;
    }
    if let Some(why) = loop_reason(mail) {
        return ForwardDecision::Skip(format!("not forwarded, to prevent a loop: {why}"));
    }
    let mut recipients: Vec<ForwardRecipient> = Vec::new();
    for recipient in rules.iter().flat_map(|rule| rule.recipients(directory, mail)) {
        // Nearly all servers ignore case, and a second copy is worse than a shared address.
        let is = |address: &str| recipient.address.eq_ignore_ascii_case(address);
        let known = recipients.iter().any(|known| is(&known.address));
        if !known && !is(mail.own_address) && recipients.len() < MAX_RECIPIENTS {
            recipients.push(recipient);
        }
    }
    if recipients.is_empty() {
        return ForwardDecision::NoMatch;
    }
    ForwardDecision::To(recipients)
}

/// Why forwarding a mail could start a loop; `None` when it is an ordinary mail.
fn loop_reason(mail: &ForwardInput<'_>) -> Option<String> {
    let fields = |name: &'static str| {
        let fields = mail.parts.headers.iter();
        fields.filter(move |(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let is_own = |address: &str| address.trim().eq_ignore_ascii_case(mail.own_address);
    if fields(LOOP_HEADER).any(|value| is_own(value)) {
        return Some(format!("{LOOP_HEADER} has the address of this tunnel"));
    }
    if is_own(&mail.message.from.id) {
        return Some("it is from the address of this tunnel".to_owned());
    }
    if let Some(value) = fields("Auto-Submitted").find(|value| !starts_with(value, "no")) {
        return Some(format!("Auto-Submitted is {:?}", shown(value)));
    }
    if fields("Return-Path").next().is_some_and(|path| path.trim() == "<>") {
        return Some("its Return-Path is empty".to_owned());
    }
    if let Some(value) = fields("Precedence")
        .find(|value| ["bulk", "junk", "auto_reply"].iter().any(|word| starts_with(value, word)))
    {
        return Some(format!("Precedence is {:?}", shown(value)));
    }
    if fields("X-Auto-Response-Suppress").next().is_some() && fields("X-Autoreply").next().is_some()
    {
        return Some("it is an automatic answer".to_owned());
    }
    match fields("Received").count() {
        hops if hops > MAX_RECEIVED => Some(format!("{hops} Received fields")),
        _ => None,
    }
}

fn starts_with(value: &str, word: &str) -> bool {
    let value = value.trim_start();
    value.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
}

/// The start of a header value, for a reason.
fn shown(value: &str) -> &str {
    &value[..value.floor_char_boundary(60)]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::directory::parse_csv;
    use super::*;
    use crate::config::{ConfigEnvironment, ConfigFile, Secret};
    use crate::did::EndpointKind;
    use crate::inbound::{ChatSession, Participant};

    struct NoEnvironment;

    impl ConfigEnvironment for NoEnvironment {
        fn variable(&self, _name: &str) -> Option<String> {
            None
        }

        fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
            Err("there are no files".to_owned())
        }
    }

    fn read(yaml: &str) -> Result<Vec<ForwardRule>, String> {
        let file = ConfigFile::parse(yaml).unwrap();
        let section = file.root(&NoEnvironment).unwrap();
        ForwardRule::read_all(&section, "forward").map_err(|error| error.to_string())
    }

    /// The addresses that a mail with these header fields is forwarded to, or why it is not.
    fn decide_for(rules: &[ForwardRule], headers: &[(&str, &str)]) -> String {
        let header = |name: &str| {
            let found = headers.iter().find(|(field, _)| *field == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let participant = |id| Participant { id, kind: EndpointKind::Addr, name: None };
        let from = participant(header("From").unwrap_or_else(|| "joe@example.org".to_owned()));
        let session = ChatSession { id: "team@example.com".to_owned(), ..ChatSession::default() };
        let text = "The bill is attached, see case K-100.";
        let mut message = InboundMessage::new("1", session, from, text);
        message.title = header("Subject");
        message.to = header("To").map(participant).into_iter().collect();
        let headers: Vec<_> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let tunnel = "work-mail".parse().unwrap();
        let csv = "name,address,case_numbers\nAnn,ann@example.com,K-100\nBob,,K-100\n";
        let directory = Directory::new(parse_csv(csv).unwrap().people);
        let attachments = ["Bill 7.PDF".to_owned()];
        let parts = MailParts { headers: &headers, attachments: &attachments };
        let input = ForwardInput {
            tunnel: &tunnel,
            own_address: "team@example.com",
            message: &message,
            parts,
        };
        match decide(rules, &directory, &input) {
            ForwardDecision::To(to) => {
                let to: Vec<_> = to.into_iter().map(|recipient| recipient.address).collect();
                to.join(" ")
            }
            ForwardDecision::NoMatch => "no rule matches".to_owned(),
            ForwardDecision::Skip(why) => why,
        }
    }

    fn forwarded(when: &str, headers: &[(&str, &str)]) -> bool {
        let rules = read(&format!("forward: [{{when: {when}, to: [x@example.com]}}]"));
        decide_for(&rules.unwrap_or_else(|error| panic!("{when}: {error}")), headers)
            == "x@example.com"
    }

    #[test]
    fn conditions_match_as_documented() {
        let invoice = &[("Subject", "Your Invoice 7"), ("To", "team+tax@example.com")];
        let cases = [
            ("{subject_contains: invoice}", true),
            ("{subject_contains: offer}", false),
            ("{from: joe@example.org}", true),
            ("{from_domain: example.org}", true),
            ("{from_domain: example.com}", false),
            ("{recipient: TEAM+tax@example.com}", true),
            ("{recipient: '@example.com'}", true),
            ("{recipient: '@example.org'}", false),
            ("{text_matches: 'K-[0-9]+'}", true),
            ("{attachment: '*.pdf'}", true),
            ("{attachment: '*.doc'}", false),
            ("{header: {name: subject, contains: INVOICE}}", true),
            ("{header: {name: X-Other, contains: a}}", false),
            ("{subject_contains: invoice, from_domain: example.com}", false),
            ("{subject_contains: invoice, not: {from_domain: example.com}}", true),
            ("{any: [{subject_contains: offer}, {attachment: 'bill*'}]}", true),
            ("{type: all, conditions: [{type: subject_contains, value: invoice}]}", true),
            ("{provider: email}", true),
            ("{tunnel: work-mail}", true),
        ];
        for (when, expected) in cases {
            assert_eq!(forwarded(when, invoice), expected, "{when}");
        }
    }

    #[test]
    fn mail_goes_to_the_addresses_of_all_matching_rules_once() {
        let rules = read(
            "forward:\n\
             - { when: { subject_contains: invoice }, to: [Billing@Example.COM, team@example.com] }\n\
             - { to: [billing@example.com, Billing@example.com] }\n\
             - { directory: true }\n",
        )
        .unwrap();
        let to = decide_for(&rules, &[("Subject", "invoice")]);
        assert_eq!(to, "Billing@example.com ann@example.com");
        let to = decide_for(&rules[2..], &[("Subject", "hello")]);
        assert_eq!(to, "ann@example.com", "a person without an address gets nothing");
        let none = decide_for(&rules[..1], &[("Subject", "hello")]);
        assert_eq!(none, "no rule matches");
        assert_eq!(decide_for(&[], &[]), "no rule matches");
    }

    #[test]
    fn mails_that_could_start_a_loop_are_not_forwarded() {
        let rules = read("forward: [{to: [x@example.com]}]").unwrap();
        let fine: &[&[(&str, &str)]] = &[
            &[],
            &[("Auto-Submitted", "no")],
            &[("X-Monoco-Loop", "other@example.com")],
            &[("Return-Path", "<joe@example.org>")],
            &[("Precedence", "list")],
            &[("Received", "x"); MAX_RECEIVED],
        ];
        for headers in fine {
            assert_eq!(decide_for(&rules, headers), "x@example.com", "{headers:?}");
        }
        let loops: &[&[(&str, &str)]] = &[
            &[("x-monoco-loop", " TEAM@example.com")],
            &[("From", "team@EXAMPLE.com")],
            &[("Auto-Submitted", "auto-replied (vacation)")],
            &[("auto-submitted", "Auto-Generated")],
            &[("Return-Path", " <> ")],
            &[("Precedence", "Bulk")],
            &[("Received", "x"); MAX_RECEIVED + 1],
        ];
        for headers in loops {
            let why = decide_for(&rules, headers);
            assert!(why.starts_with("not forwarded, to prevent a loop: "), "{headers:?}: {why}");
        }
    }

    #[test]
    fn invalid_rules_name_their_place() {
        let error = |yaml: &str| read(yaml).unwrap_err();
        assert_eq!(
            error("forward: [{when: {subject_contains: x}}]"),
            "forward[0]: `to` is missing; name addresses, or set `directory`"
        );
        assert_eq!(
            error("forward: [{to: [x]}]"),
            "forward[0].to: \"x\": expected name@domain or a DID"
        );
        assert!(error("forward: [{to: [a@b.org], wen: {}}]").contains("did you mean `when`?"));
        assert_eq!(
            error("forward: [{to: [a@b.org], when: {subject_contain: x}}]"),
            "forward[0].when: no rule of type \"subject_contain\"; \
             did you mean `subject_contains`?"
        );
        assert_eq!(
            error("forward: [{to: [a@b.org], when: {}}]"),
            "forward[0].when: expected conditions, such as { subject_contains: invoice }"
        );
        let same = "forward: [{to: [a@b.org]}]";
        assert_eq!(read(same).unwrap(), read(same).unwrap());
        assert_ne!(read(same).unwrap(), read("forward: [{to: [c@b.org]}]").unwrap());
    }
}
