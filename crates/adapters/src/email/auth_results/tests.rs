//! Tests of sender verification with real and forged header fields.

use monoco_mime::read_mail;
use proptest::prelude::*;

use super::*;

fn verified(header: &str) -> SenderVerification {
    let mail = format!("{header}\nSubject: x\n\nhello\n");
    verify_sender(&read_mail(mail.as_bytes()), Some("mx.example.net"))
}

/// A mail of `ann@example.com` with these results of the own server.
fn results(results: &str) -> SenderVerification {
    verified(&format!(
        "Authentication-Results: mx.example.net; {results}\nFrom: Ann <ann@example.com>"
    ))
}

#[test]
fn passing_results_of_the_domain_verify_the_sender() {
    for (header, why) in [
        ("dmarc=pass header.from=example.com", "dmarc=pass header.from=example.com"),
        (
            "dmarc=pass (p=reject dis=none) header.from=EXAMPLE.com.",
            "dmarc=pass header.from=example.com",
        ),
        ("DMARC=Pass Header.From=example.com", "dmarc=pass header.from=example.com"),
        (
            "dkim=pass header.d=example.com header.s=x header.b=\"a=b;c\"",
            "dkim=pass header.d=example.com",
        ),
        (
            "dkim=pass (2048-bit key; unprotected) header.i=@example.com",
            "dkim=pass header.d=example.com",
        ),
        (
            "dkim=fail header.d=example.com; dkim=pass header.d=example.com",
            "dkim=pass header.d=example.com",
        ),
        ("dkim/1 = pass header.d = example.com", "dkim=pass header.d=example.com"),
        ("spf=pass smtp.mailfrom=bounce@example.com", "spf=pass smtp.mailfrom=example.com"),
        ("spf=pass smtp.mailfrom=example.com", "spf=pass smtp.mailfrom=example.com"),
        (
            "spf=pass smtp.mailfrom=\"a;b@evil.test\"@example.com",
            "spf=pass smtp.mailfrom=example.com",
        ),
        ("dmarc=none; spf=fail; dkim=pass header.d=example.com", "dkim=pass header.d=example.com"),
        (
            "iprev=pass policy.iprev=192.0.2.1; spf=pass reason=\"ok; fine\" smtp.mailfrom=example.com",
            "spf=pass smtp.mailfrom=example.com",
        ),
    ] {
        let found = results(header);
        assert!(found.verified, "{header}: {}", found.why);
        assert_eq!(found.why, why, "{header}");
    }
    let other = |header: &str| verified(header).verified;
    assert!(other(
        "Authentication-Results: (c) MX.example.net (d) 1; dmarc=pass header.from=example.com\nFrom: ann@example.com"
    ));
    assert!(other(
        "Authentication-Results: \"mx.example.net\" ;\n dmarc=pass\n header.from=example.com\nFrom: ann@example.com"
    ));
    assert!(other(
        "Authentication-Results: mx.example.net; dkim=pass header.d=example.com\nFrom: ann@mail.example.com"
    ));
    // A later hop of another server does not matter.
    assert!(other(
        "Authentication-Results: relay.test; dmarc=fail\nAuthentication-Results: mx.example.net; dmarc=pass header.from=example.com\nFrom: ann@example.com"
    ));
}

#[test]
fn results_of_other_domains_do_not_verify() {
    for header in [
        "none",
        "",
        "dmarc=fail header.from=example.com",
        "dmarc=pass header.from=evil.test",
        "dmarc=pass",
        "dmarc=pass header.from=mail.example.com",
        "dmarc=pass header.from=example.com header.from=example.com",
        "dmarc=pass header.from=\"example.com",
        "dmarc=pass (header.from=example.com",
        "dmarc=pass (header.from=example.com)",
        "dmarc=temperror header.from=example.com; dkim=pass header.d=example.com",
        "dkim=fail header.d=example.com",
        "dkim=none header.d=example.com",
        "dkim=pass header.d=evil.test",
        "dkim=pass header.d=com",
        "dkim=pass header.d=.com",
        "dkim=pass header.d=",
        "dkim=pass header.d=notexample.com",
        "dkim=pass header.d=ample.com",
        "dkim=pass header.d=mail.example.com",
        "dkim=pass header.i=ann@evil.test",
        "dkim=pass header.s=example.com",
        "spf=pass smtp.helo=example.com",
        "spf=pass smtp.mailfrom=ann@mail.example.com",
        "spf=pass smtp.mailfrom=example.com@evil.test",
        "spf=softfail smtp.mailfrom=example.com",
        "spf=fail smtp.mailfrom=example.com; dkim=fail header.d=example.com",
        "x-dmarc=pass header.from=example.com",
        "arc=pass header.from=example.com",
        "spf=fail smtp.mailfrom=\"x; dmarc=pass header.from=example.com\"@evil.test",
        "spf=fail (; dmarc=pass header.from=example.com;) smtp.mailfrom=evil.test",
        "spf=fail reason=\"\\\"; dmarc=pass header.from=example.com; \\\"\" smtp.mailfrom=evil.test",
        "spf=fail smtp.mailfrom==?utf-8?q?=3B_dmarc=3Dpass_header.from=3Dexample.com?=",
    ] {
        let found = results(header);
        assert!(!found.verified, "{header}: {}", found.why);
    }
}

#[test]
fn forged_fields_do_not_verify() {
    let forged = "Authentication-Results: mx.example.net; dmarc=pass header.from=example.com";
    let own = |results: &str| format!("Authentication-Results: mx.example.net; {results}");
    let from = "From: ann@example.com";
    for header in [
        // The own server's field is above the forged one.
        format!("{}\n{forged}\n{from}", own("dmarc=fail header.from=example.com")),
        format!("{}\n{forged}\n{from}", own("spf=pass smtp.mailfrom=evil.test")),
        format!("{}\n{forged}\n{from}", own("none")),
        format!("{}\nReceived: from evil\n{forged}\n{from}", own("spf=fail")),
        // Other servers and similar names.
        format!("{}\n{from}", forged.replace("mx.example.net", "mx.evil.test")),
        format!("{}\n{from}", forged.replace("mx.example.net", "mx.example.net.evil.test")),
        format!("{}\n{from}", forged.replace("mx.example.net", "evil mx.example.net x")),
        format!("{}\n{from}", forged.replace("mx.example.net;", "mx.evil.test; mx.example.net;")),
        format!("{}\n{from}", forged.replace("mx.example.net;", "")),
        format!("{}\n{from}", forged.replace("Authentication-Results", "X-Authentication-Results")),
        format!(
            "{}\n{from}",
            forged.replace("Authentication-Results", "ARC-Authentication-Results")
        ),
        format!(
            "{}\n{from}",
            forged.replace("Authentication-Results", "Authentication-Results-Original")
        ),
        // The field is part of the text.
        format!("{from}\n\n{forged}"),
        // The verified From is not the only one.
        format!("{forged}\n{from}\nFrom: ceo@evil.test"),
        format!("{forged}\nFrom: ann@example.com, ceo@evil.test"),
        format!("{forged}\nFrom: <ann@example.com> <ceo@evil.test>"),
        format!("{forged}\nFrom: \"ann@example.com\" <ceo@evil.test>"),
        format!("{forged}\nFrom: ceo@evil.test (ann@example.com)"),
        format!("{forged}\nFrom: ann@example.com@evil.test"),
        format!("{forged}\nFrom: Ann"),
        format!("{forged}\nSender: ann@example.com"),
        format!("{forged}\nFrom: ann@[192.0.2.1]"),
    ] {
        let found = verified(&header);
        assert!(!found.verified, "{header}: {}", found.why);
    }
    let mail = format!("{forged}\n{from}\n\nx");
    for id in [None, Some(""), Some("example.net"), Some("mx")] {
        assert!(!verify_sender(&read_mail(mail.as_bytes()), id).verified, "{id:?}");
    }
    assert!(verify_sender(&read_mail(mail.as_bytes()), Some("MX.Example.Net")).verified);
}

#[test]
fn fields_of_common_servers_are_read() {
    for (id, field, from) in [
        (
            "mx.google.com",
            "mx.google.com;\n       dkim=pass header.i=@example.com header.s=sel header.b=AbCd/+1;\n       \
             spf=pass (google.com: domain of ann@example.com designates 192.0.2.7 as permitted sender) \
             smtp.mailfrom=ann@example.com;\n       dmarc=pass (p=NONE sp=NONE dis=NONE) header.from=example.com",
            "ann@example.com",
        ),
        (
            "mail.example.org",
            "mail.example.org;\n\tdkim=pass header.d=example.com header.s=x header.b=abc;\n\t\
             dmarc=pass (policy=none) header.from=example.com;\n\tspf=pass (mail.example.org: domain of \
             bounce@lists.test designates 192.0.2.7 as permitted sender) smtp.mailfrom=bounce@lists.test",
            "ann@example.com",
        ),
        (
            "mx1.example.org",
            "mx1.example.org;\n\tdkim=pass (2048-bit key; secure) header.d=example.com header.i=@example.com header.b=\"x\"",
            "ann@sub.example.com",
        ),
    ] {
        let mail = format!("Authentication-Results: {field}\nFrom: {from}\n\nx");
        let found = verify_sender(&read_mail(mail.as_bytes()), Some(id));
        assert!(found.verified, "{id}: {}", found.why);
    }
}

proptest! {
    #[test]
    fn quoted_and_commented_text_never_verifies(text in "[a-z=;. @\\\\()]{0,60}") {
        let quoted = text.replace('\\', "\\\\");
        let commented: String = text.chars().filter(|c| !matches!(c, '(' | ')' | '\\')).collect();
        for header in [
            format!("spf=fail reason=\"{quoted}; dmarc=pass header.from=example.com\""),
            format!("spf=fail ({commented}; dmarc=pass header.from=example.com)"),
        ] {
            prop_assert!(!results(&header).verified, "{}", header);
        }
    }

    #[test]
    fn any_field_is_read(value in any::<String>()) {
        let mail = format!("Authentication-Results: mx.example.net; {value}\nFrom: {value}\n\n");
        verify_sender(&read_mail(mail.as_bytes()), Some("mx.example.net"));
    }
}
