//! Tests of the verification of HTTP events.

use aws_lc_rs::cipher::{AES_256, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monoco_core::hex;
use sha2::{Digest as _, Sha256};

use super::*;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
const KEY: &str = "test-encrypt-key";

fn keys(token: &str, key: &str) -> CallbackKeys {
    CallbackKeys {
        app_id: "cli_a1b2c3d4e5f60708".to_owned(),
        verification_token: Secret::new(token),
        encrypt_key: Secret::new(key),
    }
}

fn event() -> String {
    let path = format!("{}/testdata/lark/text_group.json", env!("CARGO_MANIFEST_DIR"));
    let value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    value.to_string()
}

fn encrypt(key: &str, text: &str) -> String {
    let key: [u8; 32] = Sha256::digest(key).into();
    let key = UnboundCipherKey::new(&AES_256, &key).unwrap();
    let key = PaddedBlockEncryptingKey::cbc_pkcs7(key).unwrap();
    let iv = [7; 16];
    let mut text = text.as_bytes().to_vec();
    let context = EncryptionContext::Iv128(FixedLength::from(iv));
    key.less_safe_encrypt(&mut text, context).unwrap();
    STANDARD.encode([&iv[..], &text].concat())
}

/// Returns the headers of a signature by the SHA-256 of timestamp, nonce, key and body.
fn signed(timestamp: &str, key: &str, body: &[u8]) -> HeaderMap {
    let hash = Sha256::digest([timestamp.as_bytes(), b"nonce", key.as_bytes(), body].concat());
    let mut headers = HeaderMap::new();
    headers.insert("x-lark-request-timestamp", timestamp.parse().unwrap());
    headers.insert("x-lark-request-nonce", "nonce".parse().unwrap());
    headers.insert("x-lark-signature", hex::encode(&hash).parse().unwrap());
    headers
}

fn check(
    keys: &CallbackKeys,
    headers: &HeaderMap,
    body: &str,
) -> Result<VerifiedCallback, WebhookError> {
    verify(keys, &WebhookRequest { headers, query: "", body: body.as_bytes(), now: NOW })
}

fn unverified(result: Result<VerifiedCallback, WebhookError>) -> String {
    match result.unwrap_err() {
        error @ (WebhookError::Unverified(_) | WebhookError::Stale(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn challenge_is_answered_without_a_signature() {
    let none = HeaderMap::new();
    let plain = r#"{"challenge":"ajls384k","token":"vt","type":"url_verification"}"#;
    let spaced = r#"{ "challenge" : "ajls384k" , "token": "vt", "type": "url_verification" }"#;
    let encrypted = format!(r#"{{"encrypt":"{}"}}"#, encrypt(KEY, plain));
    for (keys, body) in [
        (keys("vt", ""), plain),
        (keys("vt", ""), spaced),
        (keys("vt", KEY), &encrypted),
        (keys("", KEY), &encrypted),
    ] {
        let Ok(VerifiedCallback::Challenge(answer)) = check(&keys, &none, body) else {
            panic!("{body}")
        };
        assert_eq!(answer.body, br#"{"challenge":"ajls384k"}"#);
        assert_eq!(answer.status, StatusCode::OK);
    }
    // The computed vector.
    let vector = "AAECAwQFBgcICQoLDA0OD47mz+aMA6ocLBGE+7lXLVeZi57jTTTEKzmH9SQ/cndt57AJt8i+24AjQBG4viDv\
                  ZBh882V3Tlhe31aiIIE8C/g=";
    let body = format!(r#"{{"encrypt":"{vector}"}}"#);
    assert!(matches!(check(&keys("vt", KEY), &none, &body), Ok(VerifiedCallback::Challenge(_))));
    let wrong = check(&keys("other", KEY), &none, &body);
    assert!(unverified(wrong).contains("verification token"));
    assert!(unverified(check(&keys("", KEY), &none, plain)).contains("not encrypted"));
}

#[test]
fn signed_events_are_verified_over_the_bytes() {
    let encrypted = encrypt(KEY, &event());
    for body in [
        format!(r#"{{"encrypt":"{encrypted}"}}"#),
        format!("{{ \"encrypt\" : \"{encrypted}\" }}\n"),
    ] {
        let headers = signed("1700000000", KEY, body.as_bytes());
        let found = check(&keys("v-canary", KEY), &headers, &body).unwrap();
        let VerifiedCallback::Event(payload) = found else { panic!("{found:?}") };
        assert_eq!(payload["header"]["event_type"], "im.message.receive_v1");
    }
}

#[test]
fn signatures_that_are_missing_wrong_old_or_of_another_app_are_rejected() {
    let keys = keys("v-canary", KEY);
    let body = format!(r#"{{"encrypt":"{}"}}"#, encrypt(KEY, &event()));
    let sign = |timestamp: &str, key: &str| signed(timestamp, key, body.as_bytes());
    assert!(check(&keys, &sign("1700000000", KEY), &body).is_ok());
    for missing in ["x-lark-request-timestamp", "x-lark-request-nonce", "x-lark-signature"] {
        let mut headers = sign("1700000000", KEY);
        headers.remove(missing);
        assert!(unverified(check(&keys, &headers, &body)).contains("is missing"), "{missing}");
    }
    for (headers, words) in [
        (sign("1700000000", "other"), "signature does not match"),
        (signed("1700000000", KEY, b"{}"), "signature does not match"),
        (sign("now", KEY), "not a number"),
        (sign("1699970000", KEY), "more than 28800 s off"),
        (sign("1700007200", KEY), "more than 3600 s off"),
    ] {
        let found = unverified(check(&keys, &headers, &body));
        assert!(found.contains(words), "{found}");
    }
    // A repeated request of Lark can be 7 h old.
    assert!(check(&keys, &sign("1699974800", KEY), &body).is_ok());

    for (from, to, words) in [
        ("cli_a1b2c3d4e5f60708", "cli_other", "another app"),
        ("v-canary", "v-other", "verification token"),
    ] {
        let other = encrypt(KEY, &event().replace(from, to));
        let body = format!(r#"{{"encrypt":"{other}"}}"#);
        let found = check(&keys, &signed("1700000000", KEY, body.as_bytes()), &body);
        assert!(unverified(found).contains(words));
    }
    let foreign = format!(r#"{{"encrypt":"{}"}}"#, encrypt("another key", &event()));
    let headers = signed("1700000000", KEY, foreign.as_bytes());
    unverified(check(&keys, &headers, &foreign));
}

#[test]
fn plain_events_need_the_verification_token() {
    let none = HeaderMap::new();
    let found = check(&keys("v-canary", ""), &none, &event());
    assert!(matches!(found, Ok(VerifiedCallback::Event(_))));
    for body in [
        event().replace("v-canary", "v-other"),
        event().replace("v-canary", ""),
        event().replace("cli_a1b2c3d4e5f60708", "cli_other"),
        format!(r#"{{"encrypt":"{}"}}"#, encrypt(KEY, &event())),
        "[]".to_owned(),
        "not json".to_owned(),
        String::new(),
        r#"{"type":"url_verification","challenge":"x"}"#.to_owned(),
    ] {
        unverified(check(&keys("v-canary", ""), &none, &body));
    }
}
