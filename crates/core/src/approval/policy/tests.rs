//! Tests of the approval policy: tables of rules, and errors that name the rule.

use std::convert::Infallible;
use std::path::Path;

use super::*;
use crate::config::{ConfigEnvironment, ConfigFile, InvalidConfig, Secret};

struct NoEnvironment;

impl ConfigEnvironment for NoEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
        Err("no files".to_owned())
    }
}

fn policy(yaml: &str) -> Result<ApprovalPolicy, InvalidConfig> {
    let file = ConfigFile::parse(&format!("approvals:\n{yaml}"))?;
    ApprovalPolicy::parse(&file.root(&NoEnvironment)?.section("approvals")?)
}

fn agent(name: &str) -> SendOrigin {
    SendOrigin::Agent { name: name.to_owned(), did: "did:monoco:agent".parse().unwrap() }
}

fn remote(target: &str, address: &str) -> TargetFact {
    let target = target.parse().unwrap();
    TargetFact { target, address: Some(address.to_owned()), first_contact: false }
}

fn local(target: &str) -> TargetFact {
    TargetFact { target: target.parse().unwrap(), address: None, first_contact: false }
}

fn chat() -> SendFacts {
    SendFacts {
        origin: agent("alpha"),
        targets: vec![remote("did:msgtunnel:u1.user.lark", "u1")],
        reply: None,
        after_untrusted: false,
        elsewhere: false,
        halt: None,
    }
}

fn mail(address: &str) -> SendFacts {
    let account = address.replace('@', "%40").replace('.', "%2E");
    let target = remote(&format!("did:msgtunnel:{account}.addr.mail"), address);
    SendFacts { targets: vec![target], ..chat() }
}

/// The decision, with `sent` messages that the rule has sent in its span before.
fn decided(policy: &ApprovalPolicy, facts: &SendFacts, text: &str, sent: u32) -> SendDecision {
    let now = Timestamp::from_ms(100_000_000);
    let count = |_: &str, since: Timestamp| {
        assert!(since < now);
        Ok::<_, Infallible>(sent)
    };
    decide(policy, facts, Some(text), now, count).unwrap()
}

/// The rules of the documentation, each with messages that it matches and that it does not.
#[test]
fn first_matching_rule_decides() {
    let policy = policy(
        "  rules:
    - { recipients_over: 5, do: refuse }
    - { text_matches: '(?i)iban|password', do: hold }
    - { after_untrusted: true, elsewhere: true, do: hold }
    - { first_contact: true, do: hold }
    - { reply: true, trust: known, do: send, at_most: 20/h }
    - { agent: alpha, to: [here, '@example.com'], do: send }
",
    )
    .unwrap();
    let first = |number: usize| policy.rules[number].text.as_str();
    let six = SendFacts { targets: vec![local("did:monoco:me"); 6], ..chat() };
    let five = SendFacts { targets: vec![local("did:monoco:me"); 5], ..chat() };
    let new = TargetFact { first_contact: true, ..local("did:monoco:new") };
    let reply = SendFacts { reply: Some(Trust::Known), ..chat() };
    let table: Vec<(&str, SendFacts, &str, u32, &str, &str)> = vec![
        ("six recipients", six, "password", 0, "refuse", first(0)),
        ("five recipients", five.clone(), "hi", 0, "send", first(5)),
        ("words", five, "your PassWord", 0, "hold", first(1)),
        (
            "after an untrusted Mail, to another chat",
            SendFacts { after_untrusted: true, elsewhere: true, ..reply.clone() },
            "hi",
            0,
            "hold",
            first(2),
        ),
        (
            "after an untrusted Mail, to its own chat",
            SendFacts { after_untrusted: true, ..reply.clone() },
            "hi",
            0,
            "send",
            first(4),
        ),
        (
            "one of two recipients is new",
            SendFacts { targets: vec![local("did:monoco:me"), new], ..chat() },
            "hi",
            0,
            "hold",
            first(3),
        ),
        ("reply to a contact", reply.clone(), "hi", 19, "send", first(4)),
        ("21st reply in an hour", reply.clone(), "hi", 20, "hold", first(4)),
        (
            "reply to a stranger",
            SendFacts { reply: Some(Trust::Untrusted), ..reply.clone() },
            "hi",
            0,
            "hold",
            "agents: hold",
        ),
        ("own domain", mail("bob@Example.com"), "hi", 0, "send", first(5)),
        ("subdomain", mail("bob@sub.example.com"), "hi", 0, "hold", "agents: hold"),
        ("longer domain", mail("bob@notexample.com"), "hi", 0, "hold", "agents: hold"),
        (
            "another agent",
            SendFacts { origin: agent("beta"), ..mail("bob@example.com") },
            "hi",
            0,
            "hold",
            "agents: hold",
        ),
        ("no rule", chat(), "hi", 0, "hold", "agents: hold"),
        (
            "owner",
            SendFacts { origin: SendOrigin::Owner, ..chat() },
            "password",
            0,
            "send",
            "owner sends",
        ),
        (
            "forwarding rule",
            SendFacts { origin: SendOrigin::Forward, ..chat() },
            "password",
            0,
            "send",
            "forwarding rule sends",
        ),
        (
            "halted",
            SendFacts {
                halt: Some(HaltFact { scope: "all".to_owned(), lock: false }),
                ..reply.clone()
            },
            "hi",
            0,
            "hold",
            "halt",
        ),
        (
            "halted and locked",
            SendFacts { halt: Some(HaltFact { scope: "all".to_owned(), lock: true }), ..reply },
            "hi",
            0,
            "refuse",
            "halt",
        ),
    ];
    for (name, facts, text, sent, decision, rule) in table {
        let found = decided(&policy, &facts, text, sent);
        assert_eq!((found.name(), found.rule()), (decision, rule), "{name}: {found:?}");
        if let Some(matched) = policy.explain(&facts, Some(text)).iter().find(|check| check.matched)
            && found.rule().contains("do: ")
        {
            assert_eq!(matched.rule, rule, "{name}: the explanation agrees");
        }
    }
}

#[test]
fn defaults_hold_agents_and_send_for_the_owner() {
    let words = |yaml: &str, origin: SendOrigin| {
        let found = decided(&policy(yaml).unwrap(), &SendFacts { origin, ..chat() }, "hi", 0);
        format!("{} {}", found.name(), found.rule())
    };
    let rule = "  rules: [{ text_matches: hi, do: refuse }]\n";
    for (yaml, origin, expected) in [
        ("  {}\n", agent("a"), "hold agents: hold"),
        ("  {}\n", SendOrigin::Owner, "send owner sends"),
        ("  agents: send\n", agent("a"), "send agents: send"),
        ("  agents: refuse\n", agent("a"), "refuse agents: refuse"),
        (rule, SendOrigin::Owner, "send owner sends"),
        (
            &format!("  owner: rules\n{rule}"),
            SendOrigin::Owner,
            "refuse text_matches: 'hi', do: refuse",
        ),
        ("  owner: rules\n", SendOrigin::Owner, "send owner: send"),
        ("  owner: hold\n", SendOrigin::Owner, "hold owner: hold"),
        ("  owner: hold\n", SendOrigin::Courier, "send courier sends"),
        ("  owner: hold\n", SendOrigin::Forward, "send forwarding rule sends"),
    ] {
        assert_eq!(words(yaml, origin), expected, "{yaml}");
    }
    assert_eq!(policy("  expire_h: 2\n").unwrap().expire_after, Duration::from_secs(7200));
}

#[test]
fn invalid_policies_name_the_rule() {
    for (yaml, error) in [
        ("  rule: []\n", "line 2, column 3: unknown key `rule`; did you mean `rules`?"),
        ("  agents: ask\n", "approvals.agents: expected send, hold or refuse"),
        ("  ask: [did:msgtunnel:oc_1.group.lark]\n", "approvals.ask: found"),
        ("  ask: [did:monoco:me]\n", "approvals.ask: found"),
        ("  rules: [{ recipients_over: 0, do: hold }]\n", "approvals.rules[0].recipients_over:"),
        (
            "  rules: [{ text_matches: '(', do: hold }]\n",
            "approvals.rules[0].text_matches: invalid regular expression: error: unclosed group",
        ),
        (
            "  rules: [{ first_contact: true }]\n",
            "approvals.rules[0].do: is missing; expected send, hold or refuse",
        ),
        (
            "  rules: [{ elsewhere: true, do: hold }]\n",
            "approvals.rules[0].elsewhere: needs `after_untrusted: true`",
        ),
        (
            "  rules: [{ trust: known, do: send }]\n",
            "approvals.rules[0].trust: needs `reply: true`",
        ),
        (
            "  rules: [{ reply: true, at_most: 5/h, do: hold }]\n",
            "approvals.rules[0].at_most: needs `do: send`",
        ),
        (
            "  rules: [{ reply: true, at_most: often, do: send }]\n",
            "approvals.rules[0].at_most: invalid rate",
        ),
        (
            "  rules: [{ reply: true, recipients_over: 2, do: hold }]\n",
            "approvals.rules[0].recipients_over: a reply has one recipient, so the rule never matches",
        ),
        (
            "  rules: [{ reply: true, first_contact: true, do: hold }]\n",
            "approvals.rules[0].first_contact: a reply goes to a known recipient",
        ),
        (
            "  rules: [{ agent: Codex!, do: send }]\n",
            "approvals.rules[0].agent: invalid agent name \"Codex!\"",
        ),
        (
            "  rules: [{ agent: owner, do: send }]\n",
            "approvals.rules[0].agent: the agent name \"owner\" is reserved",
        ),
        ("  rules: [{ to: [], do: send }]\n", "approvals.rules[0].to: is empty"),
        ("  rules: [{ to: [nowhere], do: send }]\n", "approvals.rules[0].to: found"),
        (
            "  rules: [{ reply: true, do: send }, { reply: true, trust: known, do: hold }]\n",
            "approvals.rules[1]: is never reached: rules[0] matches everything it matches",
        ),
        (
            "  rules: [{ do: hold }, { reply: true, do: send }]\n",
            "approvals.rules[1]: is never reached",
        ),
        (
            "  rules: [{ recipients_over: 3, do: hold }, { agent: a, recipients_over: 5, do: refuse }]\n",
            "approvals.rules[1]: is never reached",
        ),
    ] {
        let found = policy(yaml).unwrap_err().to_string();
        assert!(found.starts_with(error), "{yaml}: {found}");
    }
    let reachable =
        "  rules: [{ recipients_over: 5, do: refuse }, { recipients_over: 3, do: hold },
        { to: [here], do: send }, { to: [here, '@example.com'], do: hold }]\n";
    assert_eq!(policy(reachable).unwrap().rules.len(), 4);
}

#[test]
fn encoded_text_matches_only_rules_that_do_not_send() {
    let msg = |format: &str| {
        MsgObject::from_json(serde_json::json!({
            "from": "did:monoco:a", "to": ["did:monoco:b"], "kind": "chat",
            "content": {"title": "Hi", "format": format, "content": "IBAN"},
        }))
        .unwrap()
    };
    assert_eq!(text_of(&msg("text/markdown")).as_deref(), Some("Hi\nIBAN"));
    assert_eq!(text_of(&msg("message/rfc822")), None);
    let escaped = MsgObject::from_json(serde_json::json!({
        "from": "did:monoco:a", "to": ["did:monoco:b"], "kind": "chat",
        "content": {"content": "a \"quoted\"\nline", "machine": {"data": {"title": "no"}}},
    }));
    assert_eq!(text_of(&escaped.unwrap()).as_deref(), Some("\na \"quoted\"\nline"));
    let no_count = |_: &str, _| Ok::<_, Infallible>(0);
    for (action, expected) in [("hold", "hold"), ("refuse", "refuse"), ("send", "hold")] {
        let policy = policy(&format!("  rules: [{{ text_matches: x, do: {action} }}]\n")).unwrap();
        let found = decide(&policy, &chat(), None, Timestamp::from_ms(0), no_count).unwrap();
        assert_eq!(found.name(), expected, "{action}");
    }
}

#[test]
fn facts_are_stored_and_read_again() {
    let owner = SendFacts { origin: SendOrigin::Owner, targets: vec![local("did:a:b")], ..chat() };
    let text = serde_json::to_string(&owner).unwrap();
    assert_eq!(text, r#"{"targets":[{"target":"did:a:b"}]}"#, "what is usual takes no space");
    assert_eq!(serde_json::from_str::<SendFacts>(&text).unwrap(), owner);
    let facts = SendFacts {
        reply: Some(Trust::Known),
        halt: Some(HaltFact { scope: "agent:a".to_owned(), lock: false }),
        ..chat()
    };
    let text = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<SendFacts>(&text).unwrap(), facts);
}
