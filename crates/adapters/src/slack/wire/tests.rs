//! Tests of ids, error codes and what is cut from payloads.

use monoco_core::config::Secret;
use serde_json::json;

use super::*;
use crate::WebhookRequest;
use crate::webhook::WebhookVerification;
use crate::webhook::wire::Signer;

/// Slack's published example of a signature.
#[test]
fn published_signature_is_verified() {
    let secret = Secret::new("8f742231b10e8888abcd99yyyzzz85a5");
    let signer = Signer::new(&WebhookVerification::Slack, &secret).unwrap();
    let body = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow\
        &channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner\
        &command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands\
        %2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN\
        &trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let mut headers = http::HeaderMap::new();
    headers.insert("x-slack-request-timestamp", "1531420618".parse().unwrap());
    let signature = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    headers.insert("x-slack-signature", signature.parse().unwrap());
    let at = |seconds: i64| WebhookRequest {
        headers: &headers,
        query: "",
        body,
        now: Timestamp::from_ms(seconds * 1000),
    };
    assert_eq!(signer.verify(&at(1_531_420_618)), Ok(()));
    assert!(signer.verify(&at(1_531_420_618 + 301)).is_err(), "old");
    let other = Signer::new(&WebhookVerification::Slack, &Secret::new("another app")).unwrap();
    assert!(other.verify(&at(1_531_420_618)).is_err());
}

#[test]
fn every_error_code_is_classified() {
    use SlackErrorKind::{Ambiguous, Format, Permanent, Temporary, Throttled};
    for (code, kind) in [
        ("ratelimited", Throttled),
        ("rate_limited", Throttled),
        ("service_unavailable", Temporary),
        ("request_timeout", Temporary),
        ("team_added_to_org", Temporary),
        ("message_limit_exceeded", Temporary),
        ("internal_error", Ambiguous),
        ("fatal_error", Ambiguous),
        ("invalid_blocks", Format),
        ("invalid_blocks_format", Format),
        ("msg_blocks_too_long", Format),
        ("channel_not_found", Permanent),
        ("not_in_channel", Permanent),
        ("is_archived", Permanent),
        ("invalid_auth", Permanent),
        ("token_revoked", Permanent),
        ("token_expired", Temporary),
        ("missing_scope", Permanent),
        ("msg_too_long", Permanent),
        ("no_text", Permanent),
        ("restricted_action", Permanent),
        ("a_code_of_next_year", Permanent),
    ] {
        assert_eq!(error_kind(code), kind, "{code}");
    }
}

#[test]
fn timestamps_are_read_without_loss() {
    assert_eq!(time_of_ts("1700000000.000100"), Some(Timestamp::from_ms(1_700_000_000_000)));
    assert_eq!(time_of_ts("1700000000.123456"), Some(Timestamp::from_ms(1_700_000_000_123)));
    assert_eq!(time_of_ts("1700000000"), Some(Timestamp::from_ms(1_700_000_000_000)));
    for bad in ["", "x", "1.x", "99999999999999999999.0"] {
        assert_eq!(time_of_ts(bad), None, "{bad}");
    }
    assert_eq!(ts_at(Timestamp::from_ms(1_700_000_000_123)), "1700000000.123000");
    assert_eq!(ts_at(Timestamp::from_ms(-5)), "0.000000");
    assert_eq!(split_message_id("C1:1700000000.000100"), Some(("C1", "1700000000.000100")));
    for bad in ["C1", "C1:", ":1.0", "C1:x", "slash_commands:abc"] {
        assert_eq!(split_message_id(bad), None, "{bad}");
    }
}

#[test]
fn secrets_and_private_links_are_cut() {
    let payload = json!({
        "token": "verification", "ok": true, "text": "hi",
        "files": [{"url_private": "https://files.slack.com/a", "thumb_64": "https://x/y",
                   "thumb_64_w": 64, "name": "a.txt", "permalink_public": "https://slack-files.com/a"}],
        "response_url": "https://hooks.slack.com/commands/1/2", "trigger_id": "1.2.3",
        "nested": {"list": ["say xoxb-1-secret", "https://hooks.slack.com/services/T/B/X", "fine"]},
    });
    let cut = redact(&payload);
    assert_eq!(
        cut,
        json!({
            "token": "[cut]", "ok": true, "text": "hi",
            "files": [{"url_private": "[cut]", "thumb_64": "[cut]", "thumb_64_w": 64,
                       "name": "a.txt", "permalink_public": "[cut]"}],
            "response_url": "[cut]", "trigger_id": "[cut]",
            "nested": {"list": ["[cut]", "[cut]", "fine"]},
        })
    );
    let deep = (0..200).fold(json!("x"), |inner, _| json!([inner]));
    assert!(redact(&deep).to_string().contains("[cut]"));
}

#[test]
fn answers_of_the_web_api_are_parsed() {
    let good =
        ApiReply::parse(br#"{"ok":true,"ts":"1.2","response_metadata":{"next_cursor":"abc"}}"#);
    let good = good.unwrap();
    assert_eq!(
        (good.error(), good.text("ts"), good.next_cursor()),
        (None, Some("1.2"), Some("abc"))
    );
    let bad =
        ApiReply::parse(br#"{"ok":false,"error":"missing_scope","needed":"users:read"}"#).unwrap();
    assert_eq!((bad.error(), bad.needed_scope()), (Some("missing_scope"), Some("users:read")));
    assert_eq!(ApiReply::parse(br#"{"ok":false}"#).unwrap().error(), Some("no_error_code"));
    for other in ["", "<html>", "[]", "{}", r#"{"ok":"yes"}"#] {
        assert!(ApiReply::parse(other.as_bytes()).is_none(), "{other}");
    }
}
