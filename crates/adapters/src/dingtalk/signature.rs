//! Signatures: of requests to a custom robot, and of messages that DingTalk posts to the webhook
//! listener.
//!
//! Both are `base64(HMAC-SHA256(secret, "{timestamp}\n{secret}"))` with the time in milliseconds,
//! so a signature proves that its sender knows the secret at that time. It does not cover the
//! body: a copy of a signature can be put before another body. [`CallbackVerifier`] therefore
//! accepts a signature for one body only, except for bodies that arrive within
//! [`SHARED_SIGNATURE_MS`] of each other, because messages of the same millisecond share one.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_PAD_INDIFFERENT};
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use monoco_core::config::Secret;
use monoco_core::time::Timestamp;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{WebhookError, WebhookRequest};

/// How far the timestamp of a signature may be off, in seconds. DingTalk states one hour.
pub(super) const TOLERANCE_S: u64 = 3600;

/// How long after its first use a signature is accepted for further bodies.
const SHARED_SIGNATURE_MS: i64 = 5_000;

/// How many timestamps are remembered with the bodies that they came with.
const MAX_REMEMBERED: usize = 20_000;

/// How many bodies can share one timestamp.
const MAX_SHARED: usize = 64;

const NOT_ONE_TIMESTAMP: &str = "expected exactly one timestamp header, in milliseconds";
const NOT_ONE_SIGN: &str = "expected exactly one sign header, not empty";

/// Returns the signature of a time in milliseconds since 1970.
pub(super) fn sign(secret: &Secret, at: &str) -> String {
    STANDARD.encode(tag(secret, at))
}

fn tag(secret: &Secret, at: &str) -> Vec<u8> {
    let key = secret.expose().as_bytes();
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC accepts keys of any length");
    for part in [at.as_bytes(), b"\n", key] {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// Checks the signatures of requests to the webhook listener.
#[derive(Debug, Default)]
pub(super) struct CallbackVerifier {
    uses: Mutex<SignatureUses>,
}

/// Which bodies came with which signed time, oldest first.
#[derive(Debug, Default)]
struct SignatureUses {
    by_time: HashMap<i64, SignatureUse>,
    order: VecDeque<i64>,
}

#[derive(Debug)]
struct SignatureUse {
    first: Timestamp,
    bodies: Vec<[u8; 32]>,
}

impl CallbackVerifier {
    /// Checks that a request has the headers that [`Self::verify`] needs.
    pub(super) fn check_headers(headers: &HeaderMap) -> Result<(), WebhookError> {
        signed_headers(headers).map(drop)
    }

    /// Verifies a request. Returns [`WebhookError::Stale`] when the signature is valid, but its
    /// time is more than one hour off.
    pub(super) fn verify(
        &self,
        secret: &Secret,
        request: &WebhookRequest<'_>,
    ) -> Result<(), WebhookError> {
        let (at, given) = signed_headers(request.headers)?;
        let given = STANDARD_PAD_INDIFFERENT
            .decode(given)
            .map_err(|_| WebhookError::Unverified("the sign header is not base64"))?;
        if !bool::from(tag(secret, at).ct_eq(&given)) {
            return Err(WebhookError::Unverified("the signature does not match the app secret"));
        }
        let at: i64 = at.parse().map_err(|_| WebhookError::Unverified(NOT_ONE_TIMESTAMP))?;
        if at.abs_diff(request.now.ms()) > TOLERANCE_S * 1000 {
            return Err(WebhookError::Stale(TOLERANCE_S));
        }
        // Nothing panics while it holds the lock.
        let mut uses = self.uses.lock().unwrap_or_else(PoisonError::into_inner);
        uses.admit(at, Sha256::digest(request.body).into(), request.now)
    }
}

impl SignatureUses {
    /// Remembers that `body` came with the signed time `at`.
    fn admit(&mut self, at: i64, body: [u8; 32], now: Timestamp) -> Result<(), WebhookError> {
        if let Some(known) = self.by_time.get_mut(&at) {
            if known.bodies.contains(&body) {
                // The provider repeats a request; its message id is known.
                return Ok(());
            }
            let is_late = now.ms().saturating_sub(known.first.ms()) > SHARED_SIGNATURE_MS;
            if is_late || known.bodies.len() >= MAX_SHARED {
                return Err(WebhookError::Unverified("the signature was used for another body"));
            }
            known.bodies.push(body);
            return Ok(());
        }
        while self.order.len() >= MAX_REMEMBERED {
            let Some(oldest) = self.order.pop_front() else { break };
            self.by_time.remove(&oldest);
        }
        self.order.push_back(at);
        self.by_time.insert(at, SignatureUse { first: now, bodies: vec![body] });
        Ok(())
    }
}

/// Returns timestamp and signature.
fn signed_headers(headers: &HeaderMap) -> Result<(&str, &str), WebhookError> {
    let at = one(headers, "timestamp").ok_or(WebhookError::Unverified(NOT_ONE_TIMESTAMP))?;
    let given = one(headers, "sign").ok_or(WebhookError::Unverified(NOT_ONE_SIGN))?;
    Ok((at, given))
}

/// Returns the value of a header that is there once and not empty.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    value.to_str().ok().map(str::trim).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_577_262_236_757;

    #[test]
    fn signatures_are_those_of_the_reference() {
        let at = NOW.to_string();
        let secret = Secret::new("SECtest");
        assert_eq!(sign(&secret, &at), "Za/ne6w2koB8B4ROVlgTNd/X+/FbyDpZrXLz57xNZSA=");
        let other = sign(&Secret::new("this is secret"), &at);
        assert_eq!(other, "hmPWwU+7lVdm3ZZz0r9tSfx0L4Q26jWOZr9+Gs6EZQM=");
    }

    fn headers(at: i64, secret: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("timestamp", at.to_string().parse().unwrap());
        let sign = sign(&Secret::new(secret), &at.to_string());
        headers.insert("sign", sign.parse().unwrap());
        headers
    }

    fn verify(
        verifier: &CallbackVerifier,
        headers: &HeaderMap,
        body: &str,
        now: i64,
    ) -> Result<(), WebhookError> {
        let now = Timestamp::from_ms(now);
        let request = WebhookRequest { headers, query: "", body: body.as_bytes(), now };
        verifier.verify(&Secret::new("s3cret"), &request)
    }

    #[test]
    fn only_signatures_of_the_app_are_accepted() {
        let verifier = CallbackVerifier::default();
        assert_eq!(verify(&verifier, &headers(NOW, "s3cret"), "a", NOW), Ok(()));
        let refused = |headers: &HeaderMap, want: &str| {
            let error = verify(&verifier, headers, "a", NOW).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        };
        refused(&headers(NOW, "other"), "does not match");
        let mut missing = headers(NOW, "s3cret");
        missing.remove("sign");
        refused(&missing, "exactly one sign");
        assert!(CallbackVerifier::check_headers(&missing).is_err());
        assert!(CallbackVerifier::check_headers(&headers(NOW, "x")).is_ok());
        let mut twice = headers(NOW, "s3cret");
        twice.append("timestamp", "1".parse().unwrap());
        refused(&twice, "exactly one timestamp");
        let mut moved = headers(NOW, "s3cret");
        moved.insert("timestamp", (NOW + 1).to_string().parse().unwrap());
        refused(&moved, "does not match");
        let mut garbage = headers(NOW, "s3cret");
        garbage.insert("sign", "%%%".parse().unwrap());
        refused(&garbage, "not base64");
    }

    #[test]
    fn a_signature_is_valid_for_one_hour() {
        let verifier = CallbackVerifier::default();
        let hour = 3_600_000;
        for off in [-hour, hour] {
            let at = NOW + off;
            assert_eq!(verify(&verifier, &headers(at, "s3cret"), "a", NOW), Ok(()), "{off}");
            let at = at + off.signum();
            let stale = verify(&verifier, &headers(at, "s3cret"), "a", NOW);
            assert_eq!(stale, Err(WebhookError::Stale(3600)), "{off}");
        }
        let far = verify(&verifier, &headers(i64::MIN, "s3cret"), "a", NOW);
        assert_eq!(far, Err(WebhookError::Stale(3600)));
    }

    #[test]
    fn a_copied_signature_is_rejected_with_another_body() {
        let verifier = CallbackVerifier::default();
        let signed = headers(NOW, "s3cret");
        assert_eq!(verify(&verifier, &signed, "a", NOW), Ok(()));
        assert_eq!(verify(&verifier, &signed, "b", NOW + 5_000), Ok(()), "the same millisecond");
        let copied = verify(&verifier, &signed, "c", NOW + 5_001).unwrap_err().to_string();
        assert!(copied.contains("used for another body"), "{copied}");
        assert_eq!(verify(&verifier, &signed, "a", NOW + 60_000), Ok(()), "the same request");
        assert_eq!(verify(&verifier, &signed, "b", NOW + 60_000), Ok(()), "the same request");
    }

    #[test]
    fn remembered_signatures_are_bounded() {
        let mut uses = SignatureUses::default();
        let now = Timestamp::from_ms(NOW);
        for at in 0..i64::try_from(MAX_REMEMBERED).unwrap() + 10 {
            uses.admit(at, [0; 32], now).unwrap();
        }
        assert_eq!((uses.by_time.len(), uses.order.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        for body in 1..u8::try_from(MAX_SHARED).unwrap() {
            uses.admit(100, [body; 32], now).unwrap();
        }
        assert!(uses.admit(100, [255; 32], now).is_err());
    }
}
