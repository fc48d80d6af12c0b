//! Tests of signatures: published vectors, and everything that must be rejected.

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX";
const BODY: &[u8] = br#"{"test": 2432232314}"#;
const NOW: i64 = 1_614_265_330;

fn signer(verify: &WebhookVerification, secret: &str) -> Signer {
    Signer::new(verify, &Secret::new(secret)).unwrap()
}

fn configured_as(
    header: &str,
    encoding: SignatureEncoding,
    prefix: &str,
    time: Option<&str>,
) -> WebhookVerification {
    WebhookVerification::Hmac(HmacHeader {
        header: header.to_owned(),
        encoding,
        prefix: prefix.to_owned(),
        timestamp_header: time.map(str::to_owned),
    })
}

/// `sent` has one header in each line.
fn verify(signer: &Signer, sent: &str, body: &[u8], now: i64) -> String {
    let mut headers = HeaderMap::new();
    for (name, value) in sent.lines().filter_map(|line| line.trim().split_once(':')) {
        let name = HeaderName::try_from(name).unwrap();
        headers.append(name, HeaderValue::from_str(value.trim()).unwrap());
    }
    let now = Timestamp::from_ms(now * 1000);
    match signer.verify(&WebhookRequest { headers: &headers, query: "", body, now }) {
        Ok(()) => "accepted".to_owned(),
        Err(rejected) => rejected.to_string(),
    }
}

#[test]
fn published_vector_of_standard_webhooks_matches() {
    let signer = signer(&WebhookVerification::Standard, SECRET);
    let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let headers = signer.sign(id, Timestamp::from_ms(NOW * 1000 + 999), BODY);
    assert_eq!(headers["webhook-signature"], signature);
    assert_eq!(headers["webhook-id"], id);
    assert_eq!(headers["webhook-timestamp"], "1614265330");
    let sent =
        format!("Webhook-Id: {id}\nWebhook-Timestamp: 1614265330\nWebhook-Signature: {signature}");
    assert_eq!(verify(&signer, &sent, BODY, NOW), "accepted");
}

#[test]
fn published_vector_of_github_matches() {
    let signer = signer(&WebhookVerification::Github, "It's a Secret to Everybody");
    let signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let headers = signer.sign("dlv_1", Timestamp::from_ms(0), b"Hello, World!");
    assert_eq!(headers["x-hub-signature-256"], signature);
    assert_eq!(headers.len(), 1);
    let sent = format!("X-Hub-Signature-256: {signature}");
    assert_eq!(verify(&signer, &sent, b"Hello, World!", NOW), "accepted");
}

/// From Slack's documentation of request signing.
#[test]
fn published_vector_of_slack_matches() {
    let signer = signer(&WebhookVerification::Slack, "8f742231b10e8888abcd99yyyzzz85a5");
    let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow\
        &channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner\
        &command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands\
        %2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121\
        .803a0bc887a14d10d2c447fce8b6703c";
    let signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let now = 1_531_420_618;
    let headers = signer.sign("", Timestamp::from_ms(now * 1000), body.as_bytes());
    assert_eq!(headers["x-slack-signature"], signature);
    assert_eq!(headers["x-slack-request-timestamp"], "1531420618");
    let sent = format!("X-Slack-Request-Timestamp: {now}\nX-Slack-Signature: {signature}");
    assert_eq!(verify(&signer, &sent, body.as_bytes(), now), "accepted");
    for (sent, now, want) in [
        (sent.as_str(), now + 301, "more than 300 s off"),
        (&sent.replace("v0=a2", "v0=a3"), now, "does not match"),
        (&sent.replace("v0=", "v1="), now, "wrong format"),
        (&sent.replace("618", "619"), now, "does not match"),
    ] {
        assert!(verify(&signer, sent, body.as_bytes(), now).contains(want), "{sent}");
    }
}

#[test]
fn svix_header_names_are_accepted_and_not_mixed() {
    let signer = signer(&WebhookVerification::Standard, SECRET);
    let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let id = "msg_p5jXN8AQM9LWM0D4loKWxJek";
    let sent = format!("svix-id: {id}\nsvix-timestamp: {NOW}\nsvix-signature: {signature}");
    assert_eq!(verify(&signer, &sent, BODY, NOW), "accepted");
    let mixed = sent.replace("svix-timestamp", "webhook-timestamp");
    assert!(verify(&signer, &mixed, BODY, NOW).contains("webhook-timestamp"));
    let other_id = format!("{sent}\nwebhook-id: other");
    assert!(verify(&signer, &other_id, BODY, NOW).contains("webhook-timestamp"));
}

#[test]
fn stripe_signatures_are_verified() {
    let signer = signer(&WebhookVerification::Stripe, "whsec_test_secret");
    let headers = signer.sign("", Timestamp::from_ms(NOW * 1000), BODY);
    let good = headers["stripe-signature"].to_str().unwrap();
    let (time, v1) = good.split_once(',').unwrap();
    for (header, want) in [
        (good.to_owned(), "accepted"),
        (format!("{v1}, {time},v0=6ffb"), "accepted"),
        (format!("{time},v1={},{v1}", "00".repeat(32)), "accepted"),
        (time.to_owned(), "does not match"),
        (v1.to_owned(), "exactly one t="),
        (format!("{time},{good}"), "exactly one t="),
        (good.replace("v1=", "v0="), "does not match"),
        (good.replace("30,", "31,"), "does not match"),
        (good[..good.len() - 2].to_owned(), "does not match"),
        (String::new(), "exactly one Stripe-Signature"),
    ] {
        let found = verify(&signer, &format!("stripe-signature: {header}"), BODY, NOW);
        assert!(found.contains(want), "{header}: {found}");
    }
    let late = verify(&signer, &format!("stripe-signature: {good}"), BODY, NOW + 301);
    assert!(late.contains("more than 300 s off"), "{late}");
}

/// The tokens of RFC 6750 and RFC 7617, and the header of GitLab.
#[test]
fn secrets_in_headers_are_verified() {
    use WebhookVerification::{Basic, Bearer, Gitlab};
    let mismatch = "secret in the header does not match";
    let format = "wrong format";
    for (scheme, secret, sent, want) in [
        (Bearer, "mF_9.B5f-4.1JqM", "Authorization: Bearer mF_9.B5f-4.1JqM", "accepted"),
        (Bearer, "mF_9.B5f-4.1JqM", "authorization: bearer mF_9.B5f-4.1JqM", "accepted"),
        (Bearer, "mF_9.B5f-4.1JqM", "authorization: Bearer mF_9.B5f-4.1Jq", mismatch),
        (Bearer, "mF_9.B5f-4.1JqM", "authorization: Bearer mF_9.B5f-4.1JqMM", mismatch),
        (Bearer, "mF_9.B5f-4.1JqM", "authorization: mF_9.B5f-4.1JqM", format),
        (Bearer, "mF_9.B5f-4.1JqM", "authorization: Basic mF_9.B5f-4.1JqM", format),
        (Bearer, "mF_9.B5f-4.1JqM", "x-other: 1", "exactly one header with the secret"),
        (
            Basic,
            "Aladdin:open sesame",
            "Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==",
            "accepted",
        ),
        (
            Basic,
            "Aladdin:open sesame",
            "authorization: basic QWxhZGRpbjpvcGVuIHNlc2FtZQ",
            "accepted",
        ),
        (Basic, "Aladdin:open sesame", "authorization: Basic QWxhZGRpbjpvcGVu", mismatch),
        (Basic, "Aladdin:open sesame", "authorization: Basic ???", format),
        (Gitlab, "s3cret", "X-Gitlab-Token: s3cret", "accepted"),
        (Gitlab, "s3cret", "X-Gitlab-Token: s3cret2", mismatch),
        (Gitlab, "s3cret", "X-Gitlab-Token: S3cret", mismatch),
        (Gitlab, "s3cret", "X-Gitlab-Token: s3cret\nX-Gitlab-Token: s3cret", "exactly one header"),
        (Gitlab, "s3cret", "X-Gitlab-Token:", "exactly one header"),
    ] {
        let signer = signer(&scheme, secret);
        let found = verify(&signer, sent, BODY, NOW);
        assert!(found.contains(want), "{sent}: {found}");
        let headers = signer.sign("", Timestamp::from_ms(0), BODY);
        let request =
            WebhookRequest { headers: &headers, query: "", body: BODY, now: Timestamp::from_ms(0) };
        assert_eq!(signer.verify(&request), Ok(()), "{scheme:?}");
        let shown = format!("{headers:?} {signer:?}");
        assert!(!shown.contains(secret) && !shown.contains("QWxh"), "{shown}");
    }
}

#[test]
fn unverified_requests_must_be_local() {
    let signer = signer(&WebhookVerification::Unverified, "");
    for (sent, want) in [
        ("Host: localhost:8645", "accepted"),
        ("Host: 127.0.0.1:8645", "accepted"),
        ("Host: [::1]:8645", "accepted"),
        ("Host: [::1]", "accepted"),
        ("Host: LOCALHOST", "accepted"),
        ("Host: hooks.example.com", "loopback address"),
        ("Host: localhost.example.com:8645", "loopback address"),
        ("Host: 10.0.0.1:8645", "loopback address"),
        ("X-Other: 1", "loopback address"),
        ("Host: localhost\nX-Forwarded-For: 127.0.0.1", "rejects requests of proxies"),
        ("Host: localhost\nForwarded: for=127.0.0.1", "rejects requests of proxies"),
        ("Host: localhost\nVia: 1.1 proxy", "rejects requests of proxies"),
        ("Host: localhost\nOrigin: https://example.com", "rejects requests of proxies"),
    ] {
        let found = verify(&signer, sent, BODY, NOW);
        assert!(found.contains(want), "{sent}: {found}");
    }
    assert!(signer.sign("m1", Timestamp::from_ms(0), BODY).is_empty());
}

#[test]
fn invalid_standard_webhooks_signature_is_rejected() {
    let signer = signer(&WebhookVerification::Standard, SECRET);
    let good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
    let id = "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek";
    let time = "webhook-timestamp: 1614265330";
    let sig = |text: &str| format!("{id}\n{time}\nwebhook-signature: {text}");
    let mismatch = "does not match";
    for (sent, want) in [
        (sig(good), "accepted"),
        (sig(&format!("v1,AAAA {good}")), "accepted"),
        (sig(&format!("{good} v2,x v1a,y")), "accepted"),
        (sig(good.trim_end_matches('=')), "accepted"),
        (sig(""), "exactly one webhook-signature"),
        (sig("v1,"), mismatch),
        (sig("v1"), mismatch),
        (sig(&good[3..]), mismatch),
        (sig(&good.replace("v1,", "v2,")), mismatch),
        (sig(&good.replace("v1,", "v1a,")), mismatch),
        (sig(&good[..20]), mismatch),
        (sig(&good.replace("g0hM", "g0hN")), mismatch),
        (sig("v1,!!!"), mismatch),
        (sig(&format!("{good},{good}")), mismatch),
        (format!("{}\nwebhook-signature: {good}", sig(good)), "exactly one webhook-signature"),
        (format!("{id}\n{}", sig(good)), "exactly one webhook-id"),
        (format!("{time}\n{}", sig(good)), "exactly one webhook-timestamp"),
        (format!("{time}\nwebhook-signature: {good}"), "exactly one webhook-id"),
        (format!("{id}\nwebhook-signature: {good}"), "exactly one webhook-timestamp"),
        (format!("{id}\n{time}"), "exactly one webhook-signature"),
        (String::new(), "exactly one webhook-id"),
        (sig(good).replace("msg_p5", "msg_p6"), mismatch),
        (sig(good).replace("1614265330", "1614265331"), mismatch),
        (sig(good).replace("1614265330", "tomorrow"), mismatch),
    ] {
        let found = verify(&signer, &sent, BODY, NOW);
        assert!(found.contains(want), "{sent}: {found}");
    }
    assert!(verify(&signer, &sig(good), b"{\"test\": 2432232315}", NOW).contains(mismatch));
}

#[test]
fn signature_is_valid_for_five_minutes_in_both_directions() {
    let standard = signer(&WebhookVerification::Standard, SECRET);
    let with_time = configured_as("x-sig", SignatureEncoding::Hex, "", Some("x-time"));
    let own = signer(&with_time, "s3cret");
    for signer in [standard, own] {
        let headers = signer.sign("m1", Timestamp::from_ms(NOW * 1000), BODY);
        for (off, want) in [
            (0, Ok(())),
            (300_000, Ok(())),
            (-300_000, Ok(())),
            (300_001, Err(WebhookError::Stale(300))),
            (-300_001, Err(WebhookError::Stale(300))),
            (86_400_000, Err(WebhookError::Stale(300))),
        ] {
            let now = Timestamp::from_ms(NOW * 1000 + off);
            let request = WebhookRequest { headers: &headers, query: "", body: BODY, now };
            assert_eq!(signer.verify(&request), want, "{off} ms off");
        }
    }
}

/// The timestamp is signed, so only a sender with the secret can send these.
#[test]
fn invalid_signed_timestamp_is_rejected() {
    let with_time = configured_as("x-sig", SignatureEncoding::Hex, "", Some("x-time"));
    let signer = signer(&with_time, "s3cret");
    for time in ["x", "1614265330.5", "+1614265330", "-5", "9223372036854775807", " "] {
        let tag = tag(&signer.first, &[time.trim().as_bytes(), b".", BODY]);
        let sent = format!("x-sig: {}\nx-time: {time}", SignatureEncoding::Hex.encode(&tag));
        let found = verify(&signer, &sent, BODY, NOW);
        let want = if time == " " { "exactly one timestamp" } else { "seconds since 1970" };
        assert!(found.contains(want), "{time}: {found}");
    }
}

#[test]
fn invalid_configured_signature_is_rejected() {
    let github = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let base64 = "dXEH6g6yUJ/CESIczphLijdXC211hsIsRvQ3nIsEPhc=";
    let hex = configured_as("X-Sig", SignatureEncoding::Hex, "", None);
    let prefixed = configured_as("X-Sig", SignatureEncoding::Base64, "hmac ", None);
    for (scheme, sent, want) in [
        (&hex, format!("x-sig: {github}"), "accepted"),
        (&hex, format!("x-sig: {}", github.to_uppercase()), "accepted"),
        (&hex, format!("x-sig: sha256={github}"), "has the wrong format"),
        (&hex, format!("x-sig: {}", &github[..63]), "has the wrong format"),
        (&hex, format!("x-sig: {}", &github[..62]), "does not match"),
        (&hex, format!("x-sig: {github}00"), "does not match"),
        (&hex, format!("x-sig: {}", github.replace('7', "g")), "has the wrong format"),
        (&hex, format!("x-sig: {}", github.replace("757", "758")), "does not match"),
        (&hex, "x-sig: ".to_owned(), "exactly one signature header"),
        (&hex, format!("x-sig: {github}\nx-sig: {github}"), "exactly one signature header"),
        (&hex, format!("x-other: {github}"), "exactly one signature header"),
        (&prefixed, format!("x-sig: hmac {base64}"), "accepted"),
        (&prefixed, format!("x-sig: {base64}"), "has the wrong format"),
        (&prefixed, "x-sig: hmac %%%".to_owned(), "has the wrong format"),
        (&WebhookVerification::Github, format!("x-hub-signature-256: sha256={github}"), "accepted"),
        (
            &WebhookVerification::Github,
            format!("x-hub-signature-256: {github}"),
            "has the wrong format",
        ),
        (
            &WebhookVerification::Github,
            format!("x-hub-signature: sha256={github}"),
            "exactly one signature",
        ),
        (
            &WebhookVerification::Github,
            "x-hub-signature: sha1=01dc10d0c83e72ed246219cdd91669667fe2ca59".to_owned(),
            "exactly one signature header",
        ),
    ] {
        let signer = signer(scheme, "It's a Secret to Everybody");
        let found = verify(&signer, &sent, b"Hello, World!", NOW);
        assert!(found.contains(want), "{sent}: {found}");
    }
}

#[test]
fn signature_of_another_secret_is_rejected() {
    let schemes = [
        (WebhookVerification::Standard, SECRET, OTHER),
        (WebhookVerification::Github, "ours", "theirs"),
        (
            configured_as("x-sig", SignatureEncoding::Base64, "v0=", Some("x-time")),
            "ours",
            "theirs",
        ),
        (configured_as("x-sig", SignatureEncoding::Hex, "", None), "ours", "theirs"),
    ];
    let now = Timestamp::from_ms(NOW * 1000);
    for (scheme, ours, theirs) in schemes {
        let headers = signer(&scheme, ours).sign("m1", now, BODY);
        let request = WebhookRequest { headers: &headers, query: "", body: BODY, now };
        assert_eq!(signer(&scheme, ours).verify(&request), Ok(()), "{scheme:?}");
        let rejected = signer(&scheme, theirs).verify(&request);
        assert!(matches!(rejected, Err(WebhookError::Unverified(_))), "{scheme:?}: {rejected:?}");
    }
}

#[test]
fn several_secrets_are_accepted_during_rotation() {
    let both = signer(&WebhookVerification::Standard, &format!("{OTHER} {SECRET}"));
    let now = Timestamp::from_ms(NOW * 1000);
    for secret in [SECRET, OTHER] {
        let headers = signer(&WebhookVerification::Standard, secret).sign("m1", now, BODY);
        assert_eq!(
            both.verify(&WebhookRequest { headers: &headers, query: "", body: BODY, now }),
            Ok(())
        );
    }
    let first = signer(&WebhookVerification::Standard, OTHER).sign("m1", now, BODY);
    assert_eq!(both.sign("m1", now, BODY), first);
}

#[test]
fn invalid_secrets_and_headers_are_rejected() {
    let short = "whsec_AAECAwQFBgcICQoLDA0O";
    let custom = |header, prefix, time| configured_as(header, SignatureEncoding::Hex, prefix, time);
    for (verify, secret, want) in [
        (WebhookVerification::Standard, "", "without a secret does not start"),
        (WebhookVerification::Standard, "  ", "without a secret does not start"),
        (WebhookVerification::Github, "", "without a secret does not start"),
        (custom("x-sig", "", None), "\n", "without a secret does not start"),
        (WebhookVerification::Gitlab, " ", "without a secret does not start"),
        (WebhookVerification::Bearer, "two words", "expected printable ASCII"),
        (WebhookVerification::Gitlab, "grüße", "expected printable ASCII"),
        (WebhookVerification::Basic, "no-password", "expected `user:password`"),
        (WebhookVerification::Standard, "whsec_", "openssl rand -base64 32"),
        (WebhookVerification::Standard, "hunter2 is not base64!", "openssl rand -base64 32"),
        (WebhookVerification::Standard, short, "openssl rand -base64 32"),
        (WebhookVerification::Standard, &format!("{SECRET} {short}"), "openssl rand -base64 32"),
        (custom("x sig", "", None), "s", "verify.header: \"x sig\""),
        (custom("", "", None), "s", "verify.header: \"\""),
        (custom("x-sig", "", Some("é")), "s", "verify.timestamp_header: \"é\""),
        (custom("x-sig", "", Some("X-Sig")), "s", "must not be the same"),
        (custom("x-sig", "a\nb", None), "s", "verify.prefix"),
        (custom("x-sig", " a", None), "s", "verify.prefix"),
    ] {
        let error = Signer::new(&verify, &Secret::new(secret)).unwrap_err().to_string();
        assert!(error.contains(want), "{verify:?}: {error}");
        assert!(!error.contains("hunter2") && !error.contains("AAECAw"), "{error}");
    }
    for good in [SECRET, &SECRET[6..], "AAECAwQFBgcICQoLDA0ODw==", "AAECAwQFBgcICQoLDA0ODw"] {
        assert!(Signer::new(&WebhookVerification::Standard, &Secret::new(good)).is_ok(), "{good}");
    }
}

#[test]
fn debug_output_does_not_show_keys() {
    let shown = format!("{:?}", signer(&WebhookVerification::Github, "canary"));
    assert!(!shown.contains("canary") && !shown.contains("99, 97, 110"), "{shown}");
}
