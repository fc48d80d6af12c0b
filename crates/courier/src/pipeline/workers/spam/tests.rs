//! Points, patterns and responses of rspamd.

use monoco_core::letter::{RFC822, Verdict};
use proptest::prelude::*;
use serde_json::Map;

use super::*;
use crate::pipeline::external::rspamd::parse_response;

fn chat(subject: Option<&str>, text: &str) -> Letter {
    let mut extra = Map::new();
    extra.insert("content_type".to_owned(), json!("text/markdown"));
    extra.extend(subject.map(|subject| ("subject".to_owned(), json!(subject))));
    Letter {
        from: "did:msgtunnel:eve%40example%2Ecom.addr.work-mail".to_owned(),
        to: vec!["did:monoco:me".to_owned(), "did:msgtunnel:oc_42.group.lark-main".to_owned()],
        data: text.to_owned(),
        extra,
        rest: Map::new(),
    }
}

fn mail(bytes: &[u8]) -> Letter {
    let mut letter = chat(None, "");
    letter.from = "envelope@example.com".to_owned();
    letter.extra.insert("content_type".to_owned(), json!(RFC822));
    letter.set_bytes(bytes.to_vec());
    letter
}

fn rule(name: &str, score: f64, key: &str, text: &str) -> SpamRule {
    let (part, pattern) = RulePart::parse(key, text).unwrap();
    SpamRule::new(name, score, part, pattern).unwrap()
}

fn hits(letter: &Letter, key: &str, text: &str) -> bool {
    let spam = SpamConfig::new(1.0, vec![rule("x", 1.0, key, text)]).unwrap();
    spam.apply(letter).verdict == Verdict::Trash
}

#[test]
fn rules_apply_to_chat_messages() {
    let letter = chat(Some("Casino night"), "Buy CHEAP watches");
    for (key, pattern, hit) in [
        ("subject", "(?i)casino", true),
        ("subject", "casino", false),
        ("subject", "watches", false),
        ("text", "CHEAP", true),
        ("text", "^watches", false),
        ("text", "Casino", false),
        ("from", r"@example\.com$", true),
        ("from", r"\.addr\.work-mail$", true),
        ("from", "me", false),
        ("to", "^did:monoco:me$", true),
        ("to", "^oc_42$", true),
        ("to", "eve", false),
        ("header", "Subject: Casino", false),
        ("header", "Subject:", false),
    ] {
        assert_eq!(hits(&letter, key, pattern), hit, "{key} {pattern}");
    }
    assert!(!hits(&chat(None, "x"), "subject", ".*"), "there is none");
}

#[test]
fn rules_apply_to_decoded_mails() {
    let letter = mail(
        b"From: =?utf-8?q?Zo=C3=AB?= <zoe@example.net>\r\nTo: Team <team@example.net>\r\n\
          Cc: boss@example.net\r\nSubject: =?utf-8?B?Q2FzaW5v?=\r\n =?utf-8?Q?_night?=\r\n\
          Precedence: bulk\r\nX-Empty:\r\nMIME-Version: 1.0\r\n\
          Content-Type: multipart/alternative; boundary=b\r\n\r\n\
          --b\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\
          Content-Transfer-Encoding: quoted-printable\r\n\r\ncaf=E9 CHE=\r\nAP\r\n\
          --b\r\nContent-Type: text/html; charset=utf-8\r\n\
          Content-Transfer-Encoding: base64\r\n\r\nPGI+YmFyZ2FpbjwvYj4=\r\n--b--\r\n",
    );
    for (key, pattern, hit) in [
        ("subject", "^Casino night$", true),
        ("text", "^café CHEAP", true),
        ("text", "<b>bargain</b>", true),
        ("text", "=E9", false),
        ("text", "Casino", false),
        ("from", "Zoë", true),
        ("from", r"^zoe@example\.net$", true),
        ("from", r"^envelope@example\.com$", true),
        ("to", r"team@example\.net", true),
        ("to", r"boss@example\.net", true),
        ("to", "^did:monoco:me$", true),
        ("header", "Precedence: bulk", true),
        ("header", "precedence: ^bulk$", true),
        ("header", "Precedence: list", false),
        ("header", "Precedence:", true),
        ("header", "X-Empty:", true),
        ("header", "X-None:", false),
    ] {
        assert_eq!(hits(&letter, key, pattern), hit, "{key} {pattern}");
    }
}

#[test]
fn rules_apply_to_mails_that_are_not_utf8() {
    assert!(hits(&mail(b"Subject: caf\xe9\n\ncasino \xff"), "text", "casino"));
}

#[test]
fn rules_ignore_text_after_1_mib() {
    let text = format!("{}€needle", "x".repeat(MAX_TEXT_BYTES - 1));
    assert!(hits(&chat(None, &text), "text", "x$"), "cut between characters");
    assert!(!hits(&chat(None, &text), "text", "needle"));
}

#[test]
fn points_are_summed_exactly() {
    let letter = chat(Some("casino"), "casino");
    for (scores, threshold, verdict) in [
        (&[3.0, 2.0][..], 5.0, Verdict::Trash),
        (&[3.0, 1.999], 5.0, Verdict::Pass),
        (&[3.0, 2.001], 5.0, Verdict::Trash),
        (&[0.1, 0.2], 0.3, Verdict::Trash),
        (&[0.7, 0.1, 0.2], 1.0, Verdict::Trash),
        (&[0.7, 0.1, 0.2], 1.001, Verdict::Pass),
        (&[10.0, -5.0], 5.0, Verdict::Trash),
        (&[10.0, -5.001], 5.0, Verdict::Pass),
        (&[1_000_000.0, 1_000_000.0], 1_000_000.0, Verdict::Trash),
    ] {
        let rules = scores.iter().enumerate();
        let rules = rules.map(|(n, score)| rule(&format!("r{n}"), *score, "text", "casino"));
        let spam = SpamConfig::new(threshold, rules.collect()).unwrap();
        assert_eq!(spam.apply(&letter).verdict, verdict, "{scores:?} of {threshold}");
    }
}

#[test]
fn spam_is_trashed_with_a_note() {
    let rules = vec![
        rule("casino", 4.0, "subject", "(?i)casino"),
        rule("friend", -5.0, "from", "friend@"),
        rule("shout", 2.0, "text", "[A-Z]{5}"),
    ];
    let spam = SpamConfig::new(5.0, rules).unwrap();
    let letter = chat(Some("CASINO"), "WINNER");
    let result = spam.apply(&letter);
    assert_eq!(result.verdict, Verdict::Trash);
    assert_eq!(result.note.as_deref(), Some("spam, 6 points of 5: casino, shout"));
    let mut want = letter;
    want.extra.insert("spam".to_owned(), json!({"score": 6, "rules": ["casino", "shout"]}));
    assert_eq!(result.letter, Some(want), "a letter that is restored still says so");
}

#[test]
fn letter_below_the_threshold_passes_with_its_findings() {
    let spam = SpamConfig::new(5.0, vec![rule("shout", 2.5, "text", "[A-Z]{5}")]).unwrap();
    let result = spam.apply(&chat(None, "HELLO"));
    assert_eq!((result.verdict, &result.note), (Verdict::Pass, &None));
    let letter = result.letter.unwrap();
    assert_eq!(letter.extra["spam"], json!({"score": 2.5, "rules": ["shout"]}));
    assert_eq!(spam.apply(&chat(None, "hello")), WorkerResult::PASS, "no rule matches");
}

#[test]
fn note_names_at_most_five_rules() {
    let rules = (0..7).map(|n| rule(&format!("r{n}"), 1.0, "text", "x")).collect();
    let result = SpamConfig::new(5.0, rules).unwrap().apply(&chat(None, "x"));
    let want = "spam, 7 points of 5: r0, r1, r2, r3, r4, …";
    assert_eq!(result.note.as_deref(), Some(want));
}

#[test]
fn full_extra_does_not_prevent_the_verdict() {
    let mut letter = chat(None, "casino");
    letter.extra.insert("x".to_owned(), json!("x".repeat(MAX_EXTRA - 70)));
    let spam = |threshold| SpamConfig::new(threshold, vec![rule("casino", 2.0, "text", "casino")]);
    assert_eq!(spam(5.0).unwrap().apply(&letter), WorkerResult::PASS);
    let trash = WorkerResult::trash("spam, 2 points of 1: casino");
    assert_eq!(spam(1.0).unwrap().apply(&letter), trash);
}

#[test]
fn invalid_rules_are_rejected() {
    let long = "x".repeat(65);
    for (name, score, key, text, why) in [
        ("", 1.0, "text", "x", "rule \"\": expected a name"),
        (" ", 1.0, "text", "x", "expected a name"),
        ("a\nb", 1.0, "text", "x", "expected a name"),
        (long.as_str(), 1.0, "text", "x", "expected a name"),
        ("casino", 0.0, "text", "x", "rule casino: score"),
        ("casino", 1.2345, "text", "x", "rule casino: score"),
        ("casino", 0.0001, "text", "x", "rule casino: score"),
        ("casino", f64::NAN, "text", "x", "rule casino: score"),
        ("casino", f64::INFINITY, "text", "x", "rule casino: score"),
        ("casino", 1e7, "text", "x", "rule casino: score"),
        ("casino", 1.0, "text", "", "rule casino: an empty pattern"),
        ("casino", 1.0, "text", "(", "rule casino: regex parse error"),
        ("casino", 1.0, "text", "(?=x)", "rule casino: regex parse error"),
        ("casino", 1.0, "text", r"\w{5000}", "rule casino: Compiled regex exceeds size limit"),
        ("casino", 1.0, "header", ": x", "rule casino: header: expected `Name: pattern`"),
        ("casino", 1.0, "header", "X Y: x", "rule casino: header: expected `Name: pattern`"),
    ] {
        let (part, pattern) = RulePart::parse(key, text).unwrap();
        let error = SpamRule::new(name, score, part, pattern).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(RulePart::parse("header", "bulk").unwrap_err(), "header: expected `Name: pattern`");
    assert!(RulePart::parse("body", "x").unwrap_err().contains("expected subject, text"));
}

#[test]
fn invalid_rule_lists_are_rejected() {
    let one = || rule("casino", 1.0, "text", "x");
    for (threshold, rules, why) in [
        (0.0, vec![one()], "threshold"),
        (-1.0, vec![one()], "threshold"),
        (f64::NAN, vec![one()], "threshold"),
        (f64::INFINITY, vec![one()], "threshold"),
        (5.0, vec![one(), one()], "two rules are named casino"),
        (5.0, vec![one(); MAX_RULES + 1], "201 rules; the limit is 200"),
    ] {
        let error = SpamConfig::new(threshold, rules).unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(
        SpamConfig::new(5.0, Vec::new()).unwrap().apply(&chat(None, "x")),
        WorkerResult::PASS
    );
}

#[test]
fn rules_are_compared_by_content() {
    assert_eq!(rule("a", 1.0, "text", "x"), rule("a", 1.0, "text", "x"));
    for other in [
        rule("b", 1.0, "text", "x"),
        rule("a", 2.0, "text", "x"),
        rule("a", 1.0, "subject", "x"),
        rule("a", 1.0, "text", "y"),
        rule("a", 1.0, "header", "X: x"),
    ] {
        assert_ne!(rule("a", 1.0, "text", "x"), other);
    }
}

fn reply(action: &str) -> Value {
    json!({
        "is_skipped": false, "score": 15.2, "required_score": 15.0, "action": action,
        "symbols": {
            "MIME_GOOD": {"name": "MIME_GOOD", "score": -0.1},
            "GTUBE": {"name": "GTUBE", "score": 15.0},
            "R_SPF_ALLOW": {"score": -0.2},
            "ARC_NA": {"score": 0.0},
            "BAYES_SPAM": {"score": 5.1},
            "WHITELIST": {"score": -7.0},
            "ODD": 7,
        },
        "messages": {}, "message-id": "x@example.com",
    })
}

#[test]
fn letter_rejected_by_rspamd_is_trashed_with_the_strongest_symbols() {
    for action in ["reject", "discard", "quarantine"] {
        let result = parse_response(&reply(action), &chat(None, "x")).unwrap();
        assert_eq!(result.verdict, Verdict::Trash);
        let want = format!(
            "rspamd: {action}, 15.2 points of 15.0: GTUBE, WHITELIST, BAYES_SPAM, R_SPF_ALLOW, \
             MIME_GOOD"
        );
        assert_eq!(result.note, Some(want));
        assert_eq!(result.letter.unwrap().extra["spam"]["action"], action);
    }
}

#[test]
fn letter_passed_by_rspamd_gets_its_findings() {
    for action in ["no action", "greylist", "add header", "rewrite subject", "soft reject", "new"] {
        let result = parse_response(&reply(action), &chat(None, "x")).unwrap();
        assert_eq!((result.verdict, result.note), (Verdict::Pass, None));
        let symbols =
            ["GTUBE", "WHITELIST", "BAYES_SPAM", "R_SPF_ALLOW", "MIME_GOOD", "ARC_NA", "ODD"];
        assert_eq!(
            result.letter.unwrap().extra["spam"],
            json!({"score": 15.2, "required": 15.0, "action": action, "symbols": symbols})
        );
    }
}

#[test]
fn findings_of_rules_and_rspamd_are_kept_together() {
    let mut letter = chat(None, "x");
    letter.extra.insert("spam".to_owned(), json!({"score": 1, "rules": ["shout"]}));
    let result = parse_response(&json!({"score": 0, "action": "no action"}), &letter).unwrap();
    assert_eq!(
        result.letter.unwrap().extra["spam"],
        json!({"score": 0, "action": "no action", "symbols": [], "rules": ["shout"]})
    );
}

#[test]
fn symbols_are_limited() {
    let symbols: Map<String, Value> =
        (0..5_000).map(|n| (format!("{n}{}", "X".repeat(500)), json!({"score": n}))).collect();
    let reply = json!({"score": 1, "action": "x".repeat(1 << 20), "symbols": symbols});
    let letter = parse_response(&reply, &chat(None, "x")).unwrap().letter.unwrap();
    let spam = &letter.extra["spam"];
    assert_eq!(spam["symbols"].as_array().unwrap().len(), 20);
    assert!(spam.to_string().len() < 4_000);
}

#[test]
fn invalid_response_of_rspamd_is_an_error() {
    for reply in [
        json!(null),
        json!([]),
        json!("no action"),
        json!({}),
        json!({"score": 1}),
        json!({"action": "reject"}),
        json!({"score": "15", "action": "reject"}),
        json!({"score": null, "action": "reject"}),
        json!({"score": 15, "action": ["reject"]}),
        json!({"error": "unauthorized"}),
    ] {
        let error = parse_response(&reply, &chat(None, "x")).unwrap_err();
        assert!(error.starts_with("not a response of rspamd"), "{error}");
    }
}

proptest! {
    #[test]
    fn no_letter_is_too_odd(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let rules = [("subject", "x"), ("text", "x"), ("from", "x"), ("to", "x"), ("header", "a: x")];
        let rules = rules.iter().map(|(key, text)| rule(key, 1.0, key, text)).collect();
        let spam = SpamConfig::new(2.0, rules).unwrap();
        for letter in [mail(&bytes), chat(Some("x"), &String::from_utf8_lossy(&bytes))] {
            // Whatever the verdict, only `extra.spam` changes.
            if let Some(mut after) = spam.apply(&letter).letter {
                prop_assert!(after.extra.remove("spam").is_some());
                prop_assert_eq!(after, letter);
            }
        }
    }

    #[test]
    fn sums_of_points_are_exact(scores in prop::collection::vec(-1_000_000i64..1_000_000, 1..20)) {
        let total: i64 = scores.iter().sum();
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let points = |thousandths: i64| Points::new(thousandths as f64 / 1000.0).unwrap();
        let sum: i64 = scores.iter().map(|score| points(*score).0).sum();
        prop_assert_eq!(sum, total);
    }
}
