//! Creates and verifies webhook signatures over the received bytes, in constant time.
//!
//! | scheme | headers | signed text |
//! | --- | --- | --- |
//! | Standard Webhooks | `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,{base64}` | `{id}.{timestamp}.{body}` |
//! | GitHub | `X-Hub-Signature-256: sha256={hex}` | `{body}` |
//! | configured | a configured header | `{body}`, or `{timestamp}.{body}` |
//!
//! A signature with a timestamp is valid for 300 s. A signature without one is valid
//! forever: only the message's id, if it is signed, or the signed body distinguishes a replay
//! from a new message.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_PAD_INDIFFERENT};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
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
const HUB_SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");

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
    Plain {
        header: HeaderName,
        encoding: SignatureEncoding,
        prefix: String,
        timestamp: Option<HeaderName>,
    },
}

/// What a valid signature proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SignedParts {
    /// The id in the header and the body.
    IdAndBody,
    /// The body. A copy of the request is rejected after `valid_for`, or never.
    Body { valid_for: Option<Duration> },
}

impl Signer {
    /// Decodes the secret in the scheme's notation. Errors never repeat the secret.
    pub fn new(
        verify: &WebhookVerification,
        secret: &Secret,
    ) -> Result<Self, InvalidWebhookConfig> {
        let secret = secret.expose();
        if secret.trim().is_empty() {
            return Err(no_secret());
        }
        let plain = |scheme| Self { scheme, first: key(secret.as_bytes()), others: Vec::new() };
        match verify {
            WebhookVerification::Standard => {
                let mut keys = secret.split_whitespace().map(standard_key);
                let first = keys.next().ok_or_else(no_secret)??;
                let others = keys.collect::<Result<_, _>>()?;
                Ok(Self { scheme: SignatureScheme::Standard, first, others })
            }
            WebhookVerification::Github => Ok(plain(github())),
            WebhookVerification::Hmac(header) => Ok(plain(configured(header)?)),
        }
    }

    /// Verifies the signature of a request and its timestamp. Returns
    /// [`WebhookError::Stale`] when the signature is valid and the timestamp is not.
    pub fn verify(&self, request: &WebhookRequest<'_>) -> Result<(), WebhookError> {
        let WebhookRequest { headers, body, now } = *request;
        let unverified = WebhookError::Unverified;
        let (signed_at, genuine) = match &self.scheme {
            SignatureScheme::Standard => {
                let id = one(headers, &ID)
                    .ok_or(unverified("expected exactly one webhook-id header, not empty"))?;
                let time = one(headers, &TIMESTAMP).ok_or(unverified(
                    "expected exactly one webhook-timestamp header, not empty",
                ))?;
                let listed = one(headers, &SIGNATURE).ok_or(unverified(
                    "expected exactly one webhook-signature header, not empty",
                ))?;
                // Signatures of other versions may be listed beside v1.
                let given: Vec<_> = listed
                    .split(' ')
                    .filter_map(|entry| entry.strip_prefix("v1,"))
                    .filter_map(|text| STANDARD_PAD_INDIFFERENT.decode(text).ok())
                    .take(MAX_SIGNATURES)
                    .collect();
                let signed = [id.as_bytes(), b".", time.as_bytes(), b".", body];
                (Some(time), self.matches(&signed, &given))
            }
            SignatureScheme::Plain { header, encoding, prefix, timestamp } => {
                let time = timestamp.as_ref().map(|header| {
                    one(headers, header)
                        .ok_or(unverified("expected exactly one timestamp header, not empty"))
                });
                let time = time.transpose()?;
                let given = one(headers, header)
                    .ok_or(unverified("expected exactly one signature header, not empty"))?;
                let given = given
                    .strip_prefix(prefix.as_str())
                    .and_then(|text| encoding.decode(text))
                    .ok_or(unverified("the signature header has the wrong format"))?;
                let genuine = match time {
                    Some(time) => self.matches(&[time.as_bytes(), b".", body], &[given]),
                    None => self.matches(&[body], &[given]),
                };
                (time, genuine)
            }
        };
        if !genuine {
            return Err(unverified("the signature does not match the secret and the body"));
        }
        signed_at.map_or(Ok(()), |time| check_time(time, now))
    }

    pub(super) fn signed_parts(&self) -> SignedParts {
        // A timestamp may be 300 s in the future when the request is received first.
        let valid_for = Duration::from_secs(2 * TOLERANCE_S);
        match &self.scheme {
            SignatureScheme::Standard => SignedParts::IdAndBody,
            SignatureScheme::Plain { timestamp: Some(_), .. } => {
                SignedParts::Body { valid_for: Some(valid_for) }
            }
            SignatureScheme::Plain { timestamp: None, .. } => SignedParts::Body { valid_for: None },
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
            SignatureScheme::Plain { header, encoding, prefix, timestamp } => {
                let tag = match timestamp {
                    Some(_) => tag(&self.first, &[time.as_bytes(), b".", body]),
                    None => tag(&self.first, &[body]),
                };
                put(header, format!("{prefix}{}", encoding.encode(&tag)));
                if let Some(header) = timestamp {
                    put(header, time);
                }
            }
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
    SignatureScheme::Plain { header: HUB_SIGNATURE, encoding, prefix, timestamp: None }
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
    Ok(SignatureScheme::Plain { header, encoding: *encoding, prefix: prefix.clone(), timestamp })
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
mod tests {
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
        match signer.verify(&WebhookRequest { headers: &headers, body, now }) {
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
        let sent = format!(
            "Webhook-Id: {id}\nWebhook-Timestamp: 1614265330\nWebhook-Signature: {signature}"
        );
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
                let request = WebhookRequest { headers: &headers, body: BODY, now };
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
            (
                &WebhookVerification::Github,
                format!("x-hub-signature-256: sha256={github}"),
                "accepted",
            ),
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
            let request = WebhookRequest { headers: &headers, body: BODY, now };
            assert_eq!(signer(&scheme, ours).verify(&request), Ok(()), "{scheme:?}");
            let rejected = signer(&scheme, theirs).verify(&request);
            assert!(
                matches!(rejected, Err(WebhookError::Unverified(_))),
                "{scheme:?}: {rejected:?}"
            );
        }
    }

    #[test]
    fn several_secrets_are_accepted_during_rotation() {
        let both = signer(&WebhookVerification::Standard, &format!("{OTHER} {SECRET}"));
        let now = Timestamp::from_ms(NOW * 1000);
        for secret in [SECRET, OTHER] {
            let headers = signer(&WebhookVerification::Standard, secret).sign("m1", now, BODY);
            assert_eq!(both.verify(&WebhookRequest { headers: &headers, body: BODY, now }), Ok(()));
        }
        let first = signer(&WebhookVerification::Standard, OTHER).sign("m1", now, BODY);
        assert_eq!(both.sign("m1", now, BODY), first);
    }

    #[test]
    fn invalid_secrets_and_headers_are_rejected() {
        let short = "whsec_AAECAwQFBgcICQoLDA0O";
        let custom =
            |header, prefix, time| configured_as(header, SignatureEncoding::Hex, prefix, time);
        for (verify, secret, want) in [
            (WebhookVerification::Standard, "", "without a secret does not start"),
            (WebhookVerification::Standard, "  ", "without a secret does not start"),
            (WebhookVerification::Github, "", "without a secret does not start"),
            (custom("x-sig", "", None), "\n", "without a secret does not start"),
            (WebhookVerification::Standard, "whsec_", "openssl rand -base64 32"),
            (WebhookVerification::Standard, "hunter2 is not base64!", "openssl rand -base64 32"),
            (WebhookVerification::Standard, short, "openssl rand -base64 32"),
            (
                WebhookVerification::Standard,
                &format!("{SECRET} {short}"),
                "openssl rand -base64 32",
            ),
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
            assert!(
                Signer::new(&WebhookVerification::Standard, &Secret::new(good)).is_ok(),
                "{good}"
            );
        }
    }

    #[test]
    fn debug_output_does_not_show_keys() {
        let shown = format!("{:?}", signer(&WebhookVerification::Github, "canary"));
        assert!(!shown.contains("canary") && !shown.contains("99, 97, 110"), "{shown}");
    }
}
