//! Every rule against Mails that it matches and that it does not.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// A Mail with these fields.
fn mail(fields: &Value) -> MailIndexEntry {
    let mut entry = json!({
        "seq": 1, "id": "webhook_0123456789abcdef01234567",
        "msg_id": format!("cymsg:{}", "0".repeat(64)),
        "file": "x.md", "sha256": "", "tunnel": "ci",
        "session": {"id": "room-7", "type": "group", "name": "Ops"},
        "participants": {"from": [{"id": "u1", "name": "Ann"}], "mentions": ["@monoco::Alpha"]},
        "received_at": "2026-02-06T20:45:00.000Z",
        "trust": "untrusted", "messages": 1, "preview": "",
    });
    for (key, value) in fields.as_object().unwrap() {
        entry[key] = value.clone();
    }
    serde_json::from_value(entry).unwrap()
}

fn from(id: &str) -> Value {
    json!({"participants": {"from": [{"id": id}], "mentions": []}})
}

fn recipients() -> Value {
    json!({"participants": {"from": [{"id": "u1"}], "cc": [{"id": "bob@example.com", "name": "Bob"}],
                            "to": [{"id": "team@x.org"}], "mentions": []}})
}

/// Whether a filter matches a Mail with this text; checks that the explanation agrees.
fn check(rule: &str, entry: &MailIndexEntry, text: Option<&str>) -> bool {
    let rule = Filter::parse(rule).unwrap_or_else(|error| panic!("{rule}: {error}"));
    let mut fetch = || text.map(str::to_owned);
    let matched = rule.matches(&mut FilterInput::new(entry, &mut fetch));
    let verdict = rule.explain(&mut FilterInput::new(entry, &mut fetch));
    assert_eq!(verdict.matched, matched, "{verdict:?}");
    matched
}

#[test]
fn every_filter_type_matches_as_documented() {
    let ops = json!({"binding": "alpha"});
    let subject = json!({"title": "Re: [ALPHA] Straße", "correlation_id": "Job-7"});
    let cases: &[(&str, Value, bool)] = &[
        ("{type: mention, pattern: '@monoco::alpha'}", json!({}), true),
        ("{type: mention, pattern: 'MONOCO::alpha'}", json!({}), true),
        ("{type: mention, pattern: '@monoco::alph'}", json!({}), false),
        ("{type: mention, pattern: '@monoco::*'}", json!({}), true),
        ("{type: mention, pattern: '@*::a*a'}", json!({}), true),
        ("{type: mention, pattern: '@*::a*b*'}", json!({}), false),
        ("{type: mention, pattern: '*monoco::alpha*alpha'}", json!({}), false),
        ("{type: binding, value: ALPHA}", ops.clone(), true),
        ("{type: binding, value: alpha}", json!({}), false),
        ("{type: binding, value: alp}", ops.clone(), false),
        ("{type: chat_binding, value: alpha}", ops.clone(), true),
        ("{type: chat_binding, value: alpha, session: ops}", ops.clone(), true),
        ("{type: chat_binding, value: alpha, session: room-8}", ops.clone(), false),
        ("{type: chat_binding, session: room-7}", ops, true),
        ("{type: chat_binding, session: room-7}", json!({}), false),
        ("{type: recipient, value: BOB@example.com}", recipients(), true),
        ("{type: recipient, value: Bob}", recipients(), true),
        ("{type: recipient, value: '@example.com'}", recipients(), true),
        ("{type: recipient, value: '@example.org'}", recipients(), false),
        ("{type: recipient, value: ann}", recipients(), false),
        ("{type: provider, value: webhook}", json!({}), true),
        ("{type: provider, value: email}", json!({}), false),
        ("{type: tunnel, value: CI}", json!({}), true),
        ("{type: tunnel, value: c}", json!({}), false),
        ("{type: session, value: room-7}", json!({}), true),
        ("{type: session, value: ops}", json!({}), true),
        ("{type: session, value: room}", json!({}), false),
        ("{type: from, value: U1}", json!({}), true),
        ("{type: from, value: ann}", json!({}), true),
        ("{type: from, value: an}", json!({}), false),
        ("{type: from_domain, domain: github.com}", from("ann@github.com"), true),
        ("{type: from_domain, domain: '@GitHub.com'}", from("ann@mail.GITHUB.com"), true),
        ("{type: from_domain, domain: github.com}", from("github.com"), true),
        ("{type: from_domain, domain: github.com}", from("ann@evilgithub.com"), false),
        ("{type: from_domain, domain: github.com}", from("ann@github.com@evil.test"), false),
        ("{type: from_domain, domain: github.com}", from("ann@github.com.evil.test"), false),
        ("{type: subject_contains, value: '[alpha]'}", subject.clone(), true),
        ("{type: subject_contains, value: 'STRAßE'}", subject.clone(), true),
        ("{type: subject_contains, value: alpha}", json!({}), false),
        ("{type: correlation, value: job-7}", subject.clone(), true),
        ("{type: correlation, value: job}", subject, false),
        ("{type: text_matches, pattern: 'build\\s+is (red|broken)'}", json!({}), true),
        ("{type: text_matches, pattern: BUILD}", json!({}), false),
        ("{type: text_matches, pattern: '(?i)BUILD'}", json!({}), true),
        ("{type: not, condition: {type: from, value: bob}}", json!({}), true),
        ("{type: not, condition: {type: from, value: ann}}", json!({}), false),
        (
            "{type: all, conditions: [{type: from, value: ann}, {type: session, value: ops}]}",
            json!({}),
            true,
        ),
        (
            "{type: all, conditions: [{type: from, value: ann}, {type: from, value: bob}]}",
            json!({}),
            false,
        ),
        (
            "{type: any, conditions: [{type: from, value: ann}, {type: from, value: bob}]}",
            json!({}),
            true,
        ),
        (r#"{"type": "any", "conditions": [{"type": "from", "value": "bob"}]}"#, json!({}), false),
    ];
    for (rule, fields, expected) in cases {
        let matched = check(rule, &mail(fields), Some("the build is red"));
        assert_eq!(matched, *expected, "{rule} on {fields}");
    }
    let tried = KINDS.iter().filter(|kind| {
        cases.iter().any(|(rule, ..)| Filter::parse(rule).is_ok_and(|rule| rule.kind() == **kind))
    });
    assert_eq!(tried.count() + 2, KINDS.len(), "`header` and `attachment` are for mails only");
}

#[test]
fn invalid_filter_is_rejected_with_a_suggestion() {
    let deep = |depth: usize| {
        let (open, close) = ("{type: not, condition: ".repeat(depth - 1), "}".repeat(depth - 1));
        format!("{open}{{type: from, value: a}}{close}")
    };
    for (rule, words) in [
        ("{type: metion, pattern: a}", "did you mean `mention`?"),
        ("{type: form, value: a}", "did you mean `from`?"),
        ("{type: quux, value: a}", "there are all, any"),
        ("{type: from, valeu: a}", "no key \"valeu\" in `from`; did you mean `value`?"),
        ("{type: from, value: a, x: 1}", "no key \"x\" in `from`; it has `value`"),
        ("{type: from}", "`value` is missing"),
        ("{type: from, value: ''}", "`value` is empty"),
        ("{type: from, value: 007}", "put it in quotes"),
        ("{type: attachment, pattern: '*'}", "only in forwarding rules"),
        ("{type: not, condition: {type: header, name: a, contains: b}}", "only in forwarding"),
        ("{type: header, name: a}", "`contains` is missing"),
        ("{type: chat_binding}", "`value` or `session` is missing"),
        ("{type: all, conditions: []}", "at least one rule"),
        ("{type: all, conditions: [{type: form}]}", "rule.conditions[0]: no rule of type"),
        ("{type: text_matches, pattern: '('}", "`pattern`"),
        ("{type: text_matches, pattern: '(a{1000}){1000}'}", "size limit"),
        ("{value: a}", "`type` is missing"),
        ("from", "expected a rule"),
        ("{type: from", "YAML"),
        ("&a {type: from, value: a}", "YAML"),
        ("!ours {type: from, value: a}", "YAML"),
        (&deep(MAX_DEPTH + 1), "more than 16 deep"),
        (&deep(10 * MAX_DEPTH), "YAML"),
    ] {
        let error = Filter::parse(rule).unwrap_err().to_string();
        assert!(error.contains(words), "{rule}: {error}");
    }
    assert!(Filter::parse(&deep(MAX_DEPTH)).is_ok());
    let many = |count| json!(vec![json!({"type": "from", "value": "a"}); count]);
    assert!(FilterSet::parse(&many(MAX_RULES)).is_ok());
    assert!(FilterSet::parse(&many(MAX_RULES + 1)).is_err());
}

#[test]
fn file_is_read_once_and_only_for_the_text() {
    let entry = mail(&json!({}));
    let opened = |filters: &[&str]| {
        let rules = filters.iter().map(|rule| Filter::parse(rule).unwrap()).collect();
        let mut count = 0;
        let mut fetch = || {
            count += 1;
            Some("hello".to_owned())
        };
        FilterSet::new(rules).pull(&mut FilterInput::new(&entry, &mut fetch));
        count
    };
    let text = "{type: text_matches, pattern: bye}";
    assert_eq!(opened(&["{type: from, value: bob}"]), 0);
    assert_eq!(opened(&["{type: from, value: ann}", text]), 0, "the first one matched");
    assert_eq!(opened(&[text, text]), 1);
}

#[test]
fn unreadable_text_does_not_match_and_long_text_is_cut() {
    let entry = mail(&json!({}));
    assert!(!check("{type: text_matches, pattern: ''}".replace("''", ".*").as_str(), &entry, None));
    let long = format!("{}é needle", "x".repeat(MAX_TEXT - 1));
    assert!(!check("{type: text_matches, pattern: needle}", &entry, Some(&long)));
    assert!(check("{type: text_matches, pattern: needle}", &entry, Some(&long[10..])));
}

#[test]
fn default_filters_match_the_name_of_the_workspace() {
    let pulls = |name: &str, fields: &Value| {
        let entry = mail(fields);
        FilterSet::of_name(name).pull(&mut FilterInput::new(&entry, &mut || None))
    };
    assert!(pulls("alpha", &json!({})), "it is mentioned");
    assert!(!pulls("alph", &json!({})));
    assert!(pulls("beta", &json!({"binding": "Beta"})));
    assert!(!pulls("a*", &json!({})), "a name is no pattern");
}

#[test]
fn explanation_names_the_compared_value() {
    let rule = Filter::parse(
        "{type: all, conditions: [{type: from, value: bob}, {type: binding, value: x}]}",
    );
    let entry = mail(&json!({}));
    let verdict = rule.unwrap().explain(&mut FilterInput::new(&entry, &mut || None));
    assert_eq!(
        json!(verdict),
        json!({"matched": false, "rule": "all of 2", "why": "0 of 2 conditions match",
            "conditions": [
                {"matched": false, "rule": "from \"bob\"", "why": "it is from \"Ann\" (\"u1\")"},
                {"matched": false, "rule": "binding \"x\"", "why": "it has no label"}]})
    );
}

fn any_rule() -> impl Strategy<Value = Filter> {
    let word = prop::sample::select(vec!["a", "b", "A", "*", "a@b", "b"]);
    let leaf = (0..11usize, word).prop_map(|(kind, word)| {
        let value = Folded::new(word);
        match kind {
            0 => Filter::Mention(value),
            1 => Filter::Binding(value),
            2 => Filter::ChatBinding { value: Some(value), session: None },
            3 => Filter::ChatBinding { value: None, session: Some(value) },
            4 => Filter::Provider(value),
            5 => Filter::Session(value),
            6 => Filter::From(value),
            7 => Filter::FromDomain(value),
            8 => Filter::SubjectContains(value),
            9 => Filter::Correlation(value),
            _ => Filter::TextMatches(Regex::new(&regex::escape(word)).unwrap()),
        }
    });
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Filter::All),
            prop::collection::vec(inner.clone(), 1..4).prop_map(Filter::Any),
            inner.prop_map(|rule| Filter::Not(Box::new(rule))),
        ]
    })
}

proptest! {
    #[test]
    fn explanation_agrees_with_the_match(
        rules in prop::collection::vec(any_rule(), 0..4),
        words in prop::collection::vec(prop::option::of("[abAB@.]{0,3}"), 6),
    ) {
        let entry = mail(&json!({
            "session": {"id": words[0].clone().unwrap_or_default(), "type": "group", "name": words[1]},
            "participants": {"from": [{"id": words[2].clone().unwrap_or_default()}],
                             "mentions": words[3].iter().collect::<Vec<_>>()},
            "binding": words[4], "title": words[5], "correlation_id": words[1],
        }));
        let filters = FilterSet::new(rules);
        let mut fetch = || words[0].clone();
        let pulled = filters.pull(&mut FilterInput::new(&entry, &mut fetch));
        let explained = filters.explain(&mut FilterInput::new(&entry, &mut fetch));
        prop_assert_eq!(pulled, explained.pulled);
    }
}
