//! Signatures of the emulated networks, over the bytes as they are sent.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    // HMAC takes keys of any length.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return Vec::new() };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// Returns bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the value of `X-Slack-Signature` for a body; `timestamp` is in seconds.
pub fn slack_signature(secret: &str, timestamp: u64, body: &[u8]) -> String {
    let head = format!("v0:{timestamp}:");
    format!("v0={}", hex(&hmac_sha256(secret.as_bytes(), &[head.as_bytes(), body])))
}

/// Returns the `sign` of DingTalk's robots; `timestamp` is in milliseconds.
pub fn dingtalk_sign(secret: &str, timestamp: u64) -> String {
    let text = format!("{timestamp}\n{secret}");
    STANDARD.encode(hmac_sha256(secret.as_bytes(), &[text.as_bytes()]))
}

/// Returns the `sign` of Lark's custom robots: an HMAC of nothing; `timestamp` is in seconds.
pub fn lark_sign(secret: &str, timestamp: u64) -> String {
    let key = format!("{timestamp}\n{secret}");
    STANDARD.encode(hmac_sha256(key.as_bytes(), &[]))
}

/// Returns the SHA-256 of uploaded bytes in hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slack_signature_matches_the_published_vector() {
        let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&\
                    channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&\
                    user_name=roadrunner&command=%2Fwebhook-collect&text=&\
                    response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F\
                    397700885554%2F96rGlfmibIGlgcZRskXaIFfN&\
                    trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let secret = "8f742231b10e8888abcd99yyyzzz85a5";
        assert_eq!(
            slack_signature(secret, 1_531_420_618, body.as_bytes()),
            "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
        );
    }

    #[test]
    fn lark_sign_matches_the_vector_computed_with_another_library() {
        let sign = lark_sign("demo", 1_599_360_473);
        assert_eq!(sign, "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8=");
    }

    #[test]
    fn dingtalk_sign_matches_the_vectors_computed_with_another_library() {
        let sign = dingtalk_sign("SECtest", 1_577_262_236_757);
        assert_eq!(sign, "Za/ne6w2koB8B4ROVlgTNd/X+/FbyDpZrXLz57xNZSA=");
        let sign = dingtalk_sign("this is secret", 1_577_262_236_757);
        assert_eq!(sign, "hmPWwU+7lVdm3ZZz0r9tSfx0L4Q26jWOZr9+Gs6EZQM=");
    }
}
