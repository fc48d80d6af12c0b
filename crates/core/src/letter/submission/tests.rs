//! Tests of the validation of submitted letters.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn good() -> Value {
    json!({
        "from": "sender@example.com",
        "to": ["ann@example.com", "did:monoco:bob"],
        "data": "Subject: x\r\n\r\nhi",
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut letter = good();
    letter[key] = value;
    letter
}

fn without(key: &str) -> Value {
    let mut letter = good();
    letter.as_object_mut().unwrap().remove(key);
    letter
}

#[test]
fn valid_letter_is_accepted_unchanged() {
    let mut value = with("extra", json!({"subject": "x", "mine": [1, null]}));
    value["campaign"] = json!({"name": "autumn"});
    let letter = parse_submission(value.clone()).unwrap();
    assert_eq!(letter.from, "sender@example.com");
    assert_eq!(letter.to, ["ann@example.com", "did:monoco:bob"]);
    assert_eq!(letter.data, "Subject: x\r\n\r\nhi");
    assert_eq!(Value::from(letter.extra), value["extra"]);
    assert_eq!(Value::from(letter.rest), json!({"campaign": {"name": "autumn"}}));
    assert!(parse_submission(with("extra", Value::Null)).unwrap().extra.is_empty());
}

#[test]
fn repeated_recipient_is_kept_once() {
    let to = json!(["bob@example.com", "ann@example.com", "bob@example.com"]);
    assert_eq!(
        parse_submission(with("to", to)).unwrap().to,
        ["bob@example.com", "ann@example.com"]
    );
}

#[test]
fn invalid_field_is_named_in_the_error() {
    let extra = |key: &str, value: Value| with("extra", json!({ key: value }));
    let many = vec!["ann@example.com"; MAX_TARGETS + 1];
    let large = "x".repeat(MAX_EXTRA);
    for (letter, field, why) in [
        (json!([]), "letter", "an object"),
        (json!("letter"), "letter", "an object"),
        (with("id", json!("ltr_1_00000000")), "id", "is set by the pipeline"),
        (with("processed", json!([])), "processed", "is set by the pipeline"),
        (with("last_worker", json!("spam")), "last_worker", "is set by the pipeline"),
        (with("result", json!("pass")), "result", "is set by the pipeline"),
        (with("note", json!({})), "note", "is set by the pipeline"),
        (without("from"), "from", "missing"),
        (with("from", json!(["a@example.com"])), "from", "one address"),
        (with("from", json!("nobody")), "from", "name@domain or a DID"),
        (
            with("from", json!("a@example.com\r\nBcc: b@example.com")),
            "from",
            "is not allowed in an address",
        ),
        (without("to"), "to", "missing"),
        (with("to", json!("ann@example.com")), "to", "a list"),
        (with("to", json!([])), "to", "at least one"),
        (with("to", json!(many)), "to", "1001 recipients; 1000 is the most"),
        (with("to", json!(["ann@example.com", 7])), "to[1]", "expected an address"),
        (with("to", json!(["ann@example.com", "@"])), "to[1]", "1 to 64 bytes"),
        (without("data"), "data", "missing"),
        (with("data", json!({})), "data", "a string"),
        (with("data", json!("x".repeat(MAX_DATA + 1))), "data", "16777216 is the most"),
        (with("extra", json!([])), "extra", "an object"),
        (extra("x", json!(large)), "extra", "64 KiB"),
        (with("x", json!(large)), "letter", "64 KiB"),
        (extra("content_type", json!("text/html")), "extra.content_type", "message/rfc822"),
        (extra("content_type", Value::Null), "extra.content_type", "a string"),
        (extra("charset", json!("utf-8")), "extra.charset", "latin-1"),
        (extra("tunnel", json!("Work Mail")), "extra.tunnel", "not the name"),
        (extra("subject", json!(7)), "extra.subject", "a string"),
        (extra("subject", json!("x\r\nBcc: y")), "extra.subject", "one line"),
        (extra("subject", json!("x".repeat(999))), "extra.subject", "998"),
        (extra("merge_key", json!("x\n")), "extra.merge_key", "one line"),
    ] {
        let error = parse_submission(letter).expect_err(field);
        assert_eq!(error.field, field, "{error}");
        assert!(error.why.contains(why), "{field}: {error}");
    }
}

#[test]
fn largest_letter_is_accepted() {
    assert!(parse_submission(with("data", json!("x".repeat(MAX_DATA)))).is_ok());
    let to: Vec<_> = (0..MAX_TARGETS).map(|n| format!("a{n}@example.com")).collect();
    assert_eq!(parse_submission(with("to", json!(to))).unwrap().to.len(), MAX_TARGETS);
    assert!(parse_submission(with("extra", json!({"subject": "x".repeat(998)}))).is_ok());
}

#[test]
fn latin_1_data_has_only_bytes() {
    let mut letter = with("extra", json!({"charset": "latin-1"}));
    letter["data"] = json!("caf\u{e9}");
    assert_eq!(*parse_submission(letter.clone()).unwrap().bytes(), *b"caf\xe9");
    letter["data"] = json!("caf\u{e9} \u{20ac}");
    assert_eq!(parse_submission(letter).unwrap_err().field, "data");
}

#[test]
fn valid_addresses() {
    let shadow = "did:msgtunnel:ann%40example%2Ecom.addr.work-mail";
    let long = format!("{}@{}.example", "x".repeat(64), "y".repeat(63));
    for address in [
        "ann@example.com",
        "ANN@EXAMPLE.COM",
        "a.b-c_d+tag@sub.example.com",
        "root@localhost",
        "x@a-b.example",
        "!#$%&'*+/=?^_`{|}~-@example.com",
        "ann@192-0-2-1.example",
        "ann@[192.0.2.1]",
        "ann@[IPv6:2001:db8::1]",
        "ann@xn--bcher-kva.example",
        "ann@bücher.example",
        "用户@例子.广告",
        "अजय@उदाहरण.परीक्षा",
        "did:monoco:ann",
        shadow,
        &long,
    ] {
        assert_eq!(check_address(address), Ok(()), "{address}");
    }
    let most =
        format!("a@{}", ["x".repeat(63), "y".repeat(63), "z".repeat(63), "w".repeat(60)].join("."));
    assert_eq!((most.len(), check_address(&most)), (254, Ok(())));
}

#[test]
fn invalid_addresses() {
    let long_local = format!("{}@example.com", "x".repeat(65));
    let long_label = format!("a@{}.example", "x".repeat(64));
    let long =
        format!("a@{}", ["x".repeat(63), "y".repeat(63), "z".repeat(63), "w".repeat(61)].join("."));
    assert_eq!(long.len(), 255);
    for address in [
        "",
        "@",
        "ann",
        "ann@",
        "@example.com",
        "ann@example.com ",
        " ann@example.com",
        "Ann <ann@example.com>",
        "<ann@example.com>",
        "ann@example.com, bob@example.com",
        "ann@@example.com",
        "ann@bob@example.com",
        "\"ann smith\"@example.com",
        "\"ann\"@example.com",
        "ann(x)@example.com",
        "ann\\@example.com",
        "ann;bob@example.com",
        "mailto:ann@example.com",
        ".ann@example.com",
        "ann.@example.com",
        "an..n@example.com",
        "ann@.example.com",
        "ann@example.com.",
        "ann@example..com",
        "ann@-example.com",
        "ann@example-.com",
        "ann@exam_ple.com",
        "ann@exa mple.com",
        "ann@example.com\r\nBcc: bob@example.com",
        "ann\r\nBcc: bob@example.com",
        "ann\n@example.com",
        "ann\0@example.com",
        "ann@exam\0ple.com",
        "ann@exam\u{2028}ple.com",
        "ann@exam\u{200b}ple.com",
        "ann@exam\u{202e}ple.com",
        "ann\u{202e}@example.com",
        "ann\u{a0}@example.com",
        "ann@example\u{3002}com",
        "ann\u{ff20}example.com",
        "ann@[192.0.2]",
        "ann@[192.0.2.1",
        "ann@192.0.2.1]",
        "ann@[2001:db8::1]",
        "ann@[IPv6:192.0.2.1]",
        "ann@[]",
        "did:",
        "did:monoco:",
        "did:msgtunnel:ann@example.com.addr.work-mail",
        &long_local,
        &long_label,
        &long,
    ] {
        assert!(check_address(address).is_err(), "{address:?}");
    }
}

#[test]
fn domain_of_an_address() {
    for (address, domain) in [
        ("ann@Example.COM", "example.com"),
        ("ann@BÜCHER.example", "bücher.example"),
        ("ann@[192.0.2.1]", "[192.0.2.1]"),
        ("did:msgtunnel:ann%40Example%2Ecom.addr.work-mail", "example.com"),
        ("did:msgtunnel:ou_7.user.lark-main", "lark-main"),
        ("did:msgtunnel:lark-main", "did"),
        ("did:monoco:ann", "did"),
    ] {
        assert_eq!(address_domain(address), domain, "{address}");
    }
}

proptest! {
    /// Addresses are put into headers, SMTP commands and logs.
    #[test]
    fn valid_address_never_breaks_a_line_or_ends_early(text in "\\PC{0,5}[\\x00-\\x20<>,@.a-z\u{80}-\u{a0}\u{2028}]{0,12}@?\\PC{0,8}") {
        if check_address(&text).is_ok() {
            let odd = |c: char| c.is_control() || c.is_whitespace() || "<>,;\"".contains(c);
            prop_assert!(!text.contains(odd), "{text:?}");
        }
    }

    #[test]
    fn accepted_letter_equals_the_submission(data in "\\PC{0,40}", key in "[a-z]{5,9}", value in "\\PC{0,9}") {
        prop_assume!(!["extra", "processed", "result"].contains(&key.as_str()));
        let letter = parse_submission(json!({
            "from": "a@example.com", "to": ["b@example.com"], "data": data, "extra": {"k": value},
            key.clone(): value,
        })).unwrap();
        prop_assert_eq!(letter.data, data);
        prop_assert_eq!(letter.rest.get(&key).and_then(Value::as_str), Some(value.as_str()));
        prop_assert_eq!(letter.extra.get("k").and_then(Value::as_str), Some(value.as_str()));
    }
}
