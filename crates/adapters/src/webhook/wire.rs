//! Creates and verifies webhook signatures over the received bytes, in constant time.
//!
//! | scheme | headers | signed text |
//! | --- | --- | --- |
//! | Standard Webhooks | `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,{base64}`, or the same names with `svix-` | `{id}.{timestamp}.{body}` |
//! | GitHub | `X-Hub-Signature-256: sha256={hex}` | `{body}` |
//! | Stripe | `Stripe-Signature: t={timestamp},v1={hex}` | `{timestamp}.{body}` |
//! | Slack | `X-Slack-Request-Timestamp`, `X-Slack-Signature: v0={hex}` | `v0:{timestamp}:{body}` |
//! | configured | a configured header | `{body}`, or `{timestamp}.{body}` |
//! | GitLab | `X-Gitlab-Token: {secret}` | nothing |
//! | bearer, basic | `Authorization` | nothing |
//! | none | no forwarding headers, `Host` is loopback | nothing |
//!
//! A signature with a timestamp is valid for 300 s. A signature without one is valid
//! forever: only the message's id, if it is signed, or the signed body distinguishes a replay
//! from a new message.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_PAD_INDIFFERENT};
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, HOST, HeaderName};
use http::{HeaderMap, HeaderValue};
use monoco_core::config::Secret;
use monoco_core::time::Timestamp;
use sha2::Sha256;
use subtle::{Choice, ConstantTimeEq};

use super::{HmacHeader, InvalidWebhookConfig, SignatureEncoding, WebhookVerification};
use crate::{WebhookError, WebhookRequest};

/// How far the timestamp of a signature may be off, in seconds.
pub const TOLERANCE_S: u64 = 300;

/// Shortest key of Standard Webhooks that is accepted, in bytes.
const MIN_KEY_BYTES: usize = 16;

/// How many signatures of one request are checked.
const MAX_SIGNATURES: usize = 16;

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const SVIX_ID: HeaderName = HeaderName::from_static("svix-id");
const SVIX_TIMESTAMP: HeaderName = HeaderName::from_static("svix-timestamp");
const SVIX_SIGNATURE: HeaderName = HeaderName::from_static("svix-signature");
const HUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
const STRIPE_SIGNATURE: HeaderName = HeaderName::from_static("stripe-signature");
const SLACK_SIGNATURE: HeaderName = HeaderName::from_static("x-slack-signature");
const SLACK_TIMESTAMP: HeaderName = HeaderName::from_static("x-slack-request-timestamp");
const GITLAB_TOKEN: HeaderName = HeaderName::from_static("x-gitlab-token");

/// Headers that proxies and browsers add. A request that has one was not made by a program on
/// this machine.
const FOREIGN_HEADERS: [&str; 13] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
    "x-forwarded-server",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "origin",
    "sec-fetch-site",
];

type HmacSha256 = Hmac<Sha256>;

/// Signs outgoing requests and verifies received ones.
#[derive(Clone, Debug)]
pub struct Signer {
    scheme: SignatureScheme,
    /// The key that signs. Its signatures are also accepted.
    first: HmacSha256,
    /// Keys whose signatures are only accepted.
    others: Vec<HmacSha256>,
}

#[derive(Clone, Debug)]
enum SignatureScheme {
    Standard,
    Stripe,
    /// One signature in a header of its own.
    Header {
        header: HeaderName,
        encoding: SignatureEncoding,
        prefix: String,
        time: Option<SignedTime>,
    },
    /// The secret itself, in a header. `value` is the whole header.
    Token {
        header: HeaderName,
        kind: TokenKind,
        expected: [u8; 32],
        value: HeaderValue,
    },
    Unsigned,
}

/// A header with a timestamp, which is signed between two texts before the body.
#[derive(Clone, Debug)]
struct SignedTime {
    header: HeaderName,
    before: &'static str,
    after: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Plain,
    Bearer,
    Basic,
}

/// What a valid signature proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignedParts {
    /// The id in the header and the body.
    IdAndBody,
    /// The body. A copy of the request is rejected after `valid_for`, or never.
    Body { valid_for: Option<Duration> },
    /// Only that the sender knows the secret.
    Nothing,
}

impl Signer {
    /// Decodes the secret in the scheme's notation. Errors never repeat the secret.
    pub fn new(
        verify: &WebhookVerification,
        secret: &Secret,
    ) -> Result<Self, InvalidWebhookConfig> {
        let secret = secret.expose();
        let unsigned = *verify == WebhookVerification::Unverified;
        if !unsigned && secret.trim().is_empty() {
            return Err(no_secret());
        }
        let scheme = match verify {
            WebhookVerification::Standard => {
                let mut keys = secret.split_whitespace().map(standard_key);
                let first = keys.next().ok_or_else(no_secret)??;
                let others = keys.collect::<Result<_, _>>()?;
                return Ok(Self { scheme: SignatureScheme::Standard, first, others });
            }
            WebhookVerification::Github => github(),
            WebhookVerification::Stripe => SignatureScheme::Stripe,
            WebhookVerification::Slack => slack(),
            WebhookVerification::Hmac(header) => configured(header)?,
            WebhookVerification::Gitlab => token(TokenKind::Plain, secret)?,
            WebhookVerification::Bearer => token(TokenKind::Bearer, secret)?,
            WebhookVerification::Basic => token(TokenKind::Basic, secret)?,
            WebhookVerification::Unverified => SignatureScheme::Unsigned,
        };
        Ok(Self { scheme, first: key(secret.as_bytes()), others: Vec::new() })
    }

    /// Checks that a request has the headers that [`Signer::verify`] needs, before its body is
    /// read.
    pub fn check_headers(&self, headers: &HeaderMap) -> Result<(), WebhookError> {
        let unverified = WebhookError::Unverified;
        match &self.scheme {
            SignatureScheme::Standard => standard_headers(headers).map(drop),
            SignatureScheme::Stripe => stripe_signature(headers).map(drop),
            SignatureScheme::Header { header, time, .. } => {
                signature_and_time(headers, header, time.as_ref()).map(drop)
            }
            SignatureScheme::Token { header, kind, expected, .. } => {
                let given = one(headers, header)
                    .ok_or(unverified("expected exactly one header with the secret, not empty"))?;
                let given = kind
                    .secret(given)
                    .ok_or(unverified("the header with the secret has the wrong format"))?;
                // The hashes are compared, so that the time does not depend on the length.
                if self.matches(&[&given], &[expected.to_vec()]) {
                    Ok(())
                } else {
                    Err(unverified("the secret in the header does not match"))
                }
            }
            SignatureScheme::Unsigned => check_local(headers),
        }
    }

    /// Verifies the signature of a request and its timestamp. Returns
    /// [`WebhookError::Stale`] when the signature is valid and the timestamp is not.
    pub fn verify(&self, request: &WebhookRequest<'_>) -> Result<(), WebhookError> {
        let WebhookRequest { headers, body, now, .. } = *request;
        let unverified = WebhookError::Unverified;
        let (signed_at, genuine) = match &self.scheme {
            SignatureScheme::Standard => self.verify_standard(headers, body)?,
            SignatureScheme::Stripe => self.verify_stripe(headers, body)?,
            SignatureScheme::Header { header, encoding, prefix, time: signed_time } => {
                let (given, time) = signature_and_time(headers, header, signed_time.as_ref())?;
                let given = given
                    .strip_prefix(prefix.as_str())
                    .and_then(|text| encoding.decode(text))
                    .ok_or(unverified("the signature header has the wrong format"))?;
                let genuine = match (signed_time, time) {
                    (Some(signed), Some(time)) => self.matches(&signed.text(time, body), &[given]),
                    _ => self.matches(&[body], &[given]),
                };
                (time, genuine)
            }
            // The body is not signed.
            SignatureScheme::Token { .. } | SignatureScheme::Unsigned => {
                return self.check_headers(headers);
            }
        };
        if !genuine {
            return Err(unverified("the signature does not match the secret and the body"));
        }
        signed_at.map_or(Ok(()), |time| check_time(time, now))
    }

    /// Returns the timestamp, and whether the signature is genuine.
    fn verify_standard<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &[u8],
    ) -> Result<(Option<&'a str>, bool), WebhookError> {
        let (id, time, listed) = standard_headers(headers)?;
        // Signatures of other versions may be listed beside v1.
        let given: Vec<_> = listed
            .split(' ')
            .filter_map(|entry| entry.strip_prefix("v1,"))
            .filter_map(|text| STANDARD_PAD_INDIFFERENT.decode(text).ok())
            .take(MAX_SIGNATURES)
            .collect();
        let signed = [id.as_bytes(), b".", time.as_bytes(), b".", body];
        Ok((Some(time), self.matches(&signed, &given)))
    }

    /// Returns the timestamp, and whether one of the signatures is genuine.
    fn verify_stripe<'a>(
        &self,
        headers: &'a HeaderMap,
        body: &[u8],
    ) -> Result<(Option<&'a str>, bool), WebhookError> {
        let unverified = WebhookError::Unverified;
        let listed = stripe_signature(headers)?;
        let entries = || listed.split(',').filter_map(|entry| entry.trim().split_once('='));
        let mut times = entries().filter(|(name, _)| *name == "t").map(|(_, time)| time);
        let (Some(time), None) = (times.next(), times.next()) else {
            return Err(unverified("expected exactly one t= in the Stripe-Signature header"));
        };
        let given: Vec<_> = entries()
            .filter(|(version, _)| *version == "v1")
            .filter_map(|(_, text)| SignatureEncoding::Hex.decode(text))
            .take(MAX_SIGNATURES)
            .collect();
        Ok((Some(time), self.matches(&[time.as_bytes(), b".", body], &given)))
    }

    pub(super) fn signed_parts(&self) -> SignedParts {
        // A timestamp may be 300 s in the future when the request is received first.
        let valid_for = Some(Duration::from_secs(2 * TOLERANCE_S));
        match &self.scheme {
            SignatureScheme::Standard => SignedParts::IdAndBody,
            SignatureScheme::Stripe | SignatureScheme::Header { time: Some(_), .. } => {
                SignedParts::Body { valid_for }
            }
            SignatureScheme::Header { time: None, .. } => SignedParts::Body { valid_for: None },
            SignatureScheme::Token { .. } | SignatureScheme::Unsigned => SignedParts::Nothing,
        }
    }

    /// Returns the headers that sign `body`.
    pub fn sign(&self, id: &str, now: Timestamp, body: &[u8]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut put = |name: &HeaderName, text: String| {
            // Ids, numbers, checked prefixes and encodings are printable ASCII.
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(name, value);
            }
        };
        let time = now.ms().div_euclid(1000).to_string();
        match &self.scheme {
            SignatureScheme::Standard => {
                let tag = tag(&self.first, &[id.as_bytes(), b".", time.as_bytes(), b".", body]);
                put(&SIGNATURE, format!("v1,{}", STANDARD.encode(tag)));
                put(&ID, id.to_owned());
                put(&TIMESTAMP, time);
            }
            SignatureScheme::Stripe => {
                let tag = tag(&self.first, &[time.as_bytes(), b".", body]);
                let hex = SignatureEncoding::Hex.encode(&tag);
                put(&STRIPE_SIGNATURE, format!("t={time},v1={hex}"));
            }
            SignatureScheme::Header { header, encoding, prefix, time: signed } => {
                let tag = match signed {
                    Some(signed) => tag(&self.first, &signed.text(&time, body)),
                    None => tag(&self.first, &[body]),
                };
                put(header, format!("{prefix}{}", encoding.encode(&tag)));
                if let Some(signed) = signed {
                    put(&signed.header, time);
                }
            }
            SignatureScheme::Token { header, value, .. } => {
                headers.insert(header, value.clone());
            }
            SignatureScheme::Unsigned => {}
        }
        headers
    }

    /// Tells whether one of the signatures was made with one of the keys. Takes the same
    /// time whichever matches, and however much of it matches.
    fn matches(&self, parts: &[&[u8]], given: &[Vec<u8>]) -> bool {
        let mut found = Choice::from(0);
        for key in std::iter::once(&self.first).chain(&self.others) {
            let expected = tag(key, parts);
            for given in given {
                found |= expected.ct_eq(given.as_slice());
            }
        }
        found.into()
    }
}

/// Returns id, timestamp and signatures of a request that is signed by Standard Webhooks.
fn standard_headers(headers: &HeaderMap) -> Result<(&str, &str, &str), WebhookError> {
    let unverified = WebhookError::Unverified;
    let (id, time, signature) = if headers.contains_key(&SVIX_ID) && !headers.contains_key(&ID) {
        (SVIX_ID, SVIX_TIMESTAMP, SVIX_SIGNATURE)
    } else {
        (ID, TIMESTAMP, SIGNATURE)
    };
    let id =
        one(headers, &id).ok_or(unverified("expected exactly one webhook-id header, not empty"))?;
    let time = one(headers, &time)
        .ok_or(unverified("expected exactly one webhook-timestamp header, not empty"))?;
    let listed = one(headers, &signature)
        .ok_or(unverified("expected exactly one webhook-signature header, not empty"))?;
    Ok((id, time, listed))
}

fn stripe_signature(headers: &HeaderMap) -> Result<&str, WebhookError> {
    one(headers, &STRIPE_SIGNATURE)
        .ok_or(WebhookError::Unverified("expected exactly one Stripe-Signature header, not empty"))
}

/// Returns the signature in `header`, and the timestamp if one is signed.
fn signature_and_time<'a>(
    headers: &'a HeaderMap,
    header: &HeaderName,
    signed_time: Option<&SignedTime>,
) -> Result<(&'a str, Option<&'a str>), WebhookError> {
    let unverified = WebhookError::Unverified;
    let time = signed_time.map(|time| {
        one(headers, &time.header)
            .ok_or(unverified("expected exactly one timestamp header, not empty"))
    });
    let time = time.transpose()?;
    let signature = one(headers, header)
        .ok_or(unverified("expected exactly one signature header, not empty"))?;
    Ok((signature, time))
}

impl SignedTime {
    fn text<'a>(&self, time: &'a str, body: &'a [u8]) -> [&'a [u8]; 4] {
        [self.before.as_bytes(), time.as_bytes(), self.after.as_bytes(), body]
    }
}

impl TokenKind {
    /// Returns the secret in a header.
    fn secret(self, header: &str) -> Option<Vec<u8>> {
        let after = |scheme: &str| {
            let (name, rest) = header.split_once(' ')?;
            name.eq_ignore_ascii_case(scheme).then(|| rest.trim_start())
        };
        match self {
            Self::Plain => Some(header.as_bytes().to_vec()),
            Self::Bearer => after("Bearer").map(|token| token.as_bytes().to_vec()),
            Self::Basic => STANDARD_PAD_INDIFFERENT.decode(after("Basic")?).ok(),
        }
    }
}

/// Checks that a program on this machine made the request: it came through no proxy, and no
/// web page made it.
fn check_local(headers: &HeaderMap) -> Result<(), WebhookError> {
    let unverified = WebhookError::Unverified;
    if FOREIGN_HEADERS.iter().any(|name| headers.contains_key(*name)) {
        return Err(unverified(
            "this tunnel has `verify: none` and rejects requests of proxies and browsers",
        ));
    }
    let host = one(headers, &HOST).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let address = name.parse::<std::net::IpAddr>();
    if name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip| ip.is_loopback()) {
        return Ok(());
    }
    Err(unverified("this tunnel has `verify: none` and needs a loopback address in Host"))
}

fn tag(key: &HmacSha256, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = key.clone();
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn key(bytes: &[u8]) -> HmacSha256 {
    HmacSha256::new_from_slice(bytes).expect("an HMAC takes a key of any length")
}

fn standard_key(secret: &str) -> Result<HmacSha256, InvalidWebhookConfig> {
    let text = secret.strip_prefix("whsec_").unwrap_or(secret);
    match STANDARD_PAD_INDIFFERENT.decode(text) {
        Ok(bytes) if bytes.len() >= MIN_KEY_BYTES => Ok(key(&bytes)),
        _ => Err(InvalidWebhookConfig::at(
            "secret",
            "not a secret of Standard Webhooks; expected base64 of 16 bytes or more, with or \
             without the prefix whsec_ (`openssl rand -base64 32` creates one)",
        )),
    }
}

fn no_secret() -> InvalidWebhookConfig {
    let why = "missing or empty: a tunnel without a secret does not start; \
               set it to the secret that the other side signs with";
    InvalidWebhookConfig::at("secret", why)
}

fn github() -> SignatureScheme {
    let (encoding, prefix) = (SignatureEncoding::Hex, "sha256=".to_owned());
    SignatureScheme::Header { header: HUB_SIGNATURE, encoding, prefix, time: None }
}

fn slack() -> SignatureScheme {
    let (encoding, prefix) = (SignatureEncoding::Hex, "v0=".to_owned());
    let time = SignedTime { header: SLACK_TIMESTAMP, before: "v0:", after: ":" };
    SignatureScheme::Header { header: SLACK_SIGNATURE, encoding, prefix, time: Some(time) }
}

fn token(kind: TokenKind, secret: &str) -> Result<SignatureScheme, InvalidWebhookConfig> {
    let (header, value) = match kind {
        TokenKind::Plain => (GITLAB_TOKEN, secret.to_owned()),
        TokenKind::Bearer => (AUTHORIZATION, format!("Bearer {secret}")),
        TokenKind::Basic => (AUTHORIZATION, format!("Basic {}", STANDARD.encode(secret))),
    };
    if kind == TokenKind::Basic && !secret.contains(':') {
        let why = "not a user and a password; expected `user:password`";
        return Err(InvalidWebhookConfig::at("secret", why));
    }
    let printable = secret.bytes().all(|byte| byte.is_ascii_graphic());
    let value = HeaderValue::try_from(value).ok().filter(|_| printable || kind == TokenKind::Basic);
    let Some(mut value) = value else {
        let why = "not usable in a header; expected printable ASCII without spaces";
        return Err(InvalidWebhookConfig::at("secret", why));
    };
    value.set_sensitive(true);
    let expected = tag(&key(secret.as_bytes()), &[secret.as_bytes()]);
    Ok(SignatureScheme::Token { header, kind, expected, value })
}

fn configured(settings: &HmacHeader) -> Result<SignatureScheme, InvalidWebhookConfig> {
    let HmacHeader { header, encoding, prefix, timestamp_header } = settings;
    let parse = |key: &str, name: &String| {
        HeaderName::try_from(name).map_err(|_| {
            let why = format!("{name:?} is not a valid header name");
            InvalidWebhookConfig::at(format!("verify.{key}"), why)
        })
    };
    let header = parse("header", header)?;
    let timestamp =
        timestamp_header.as_ref().map(|name| parse("timestamp_header", name)).transpose()?;
    if timestamp.as_ref() == Some(&header) {
        let why = "header and timestamp_header must not be the same";
        return Err(InvalidWebhookConfig::at("verify", why));
    }
    // HTTP removes spaces around the value of a header.
    if !prefix.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ')
        || prefix.starts_with(' ')
    {
        let why = "expected printable ASCII that does not start with a space";
        return Err(InvalidWebhookConfig::at("verify.prefix", why));
    }
    let time = timestamp.map(|header| SignedTime { header, before: "", after: "." });
    Ok(SignatureScheme::Header { header, encoding: *encoding, prefix: prefix.clone(), time })
}

/// Returns the value of a header that occurs exactly once and is not empty. With two values,
/// a proxy may have checked the other one.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(value), None) => value.to_str().ok().filter(|text| !text.is_empty()),
        _ => None,
    }
}

fn check_time(text: &str, now: Timestamp) -> Result<(), WebhookError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let ms = text.parse::<i64>().ok().filter(|_| digits).and_then(|secs| secs.checked_mul(1000));
    let ms =
        ms.ok_or(WebhookError::Unverified("the timestamp is not a number of seconds since 1970"))?;
    if ms.abs_diff(now.ms()) > TOLERANCE_S * 1000 {
        return Err(WebhookError::Stale(TOLERANCE_S));
    }
    Ok(())
}

impl SignatureEncoding {
    fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Hex => monoco_core::hex::encode(bytes),
            Self::Base64 => STANDARD.encode(bytes),
        }
    }

    fn decode(self, text: &str) -> Option<Vec<u8>> {
        match self {
            Self::Hex => {
                let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let byte =
                    |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
                pairs.iter().map(byte).collect()
            }
            Self::Base64 => STANDARD_PAD_INDIFFERENT.decode(text).ok(),
        }
    }
}

#[cfg(test)]
mod tests;
