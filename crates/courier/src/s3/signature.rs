//! Signatures of requests to S3 (AWS Signature Version 4), with the hash of the body.

use hmac::{Hmac, KeyInit, Mac};
use monoco_core::config::Secret;
use monoco_core::hex;
use monoco_core::time::Timestamp;
use sha2::{Digest, Sha256};

/// The SHA-256 of an empty body.
pub const EMPTY_BODY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Keys and region that sign the requests of one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Signer {
    pub key: String,
    pub secret: Secret,
    pub region: String,
}

/// What is signed of one request. The path has no characters that must be escaped, and there is no
/// query.
#[derive(Clone, Copy, Debug)]
pub struct S3Request<'r> {
    pub method: &'r str,
    pub host: &'r str,
    pub path: &'r str,
    /// Hexadecimal SHA-256 of the body.
    pub body_hash: &'r str,
    /// A header beside those that every request has, such as `range`.
    pub header: Option<(&'r str, &'r str)>,
}

impl S3Signer {
    /// Returns the values of the headers `x-amz-date` and `authorization`.
    pub fn sign(&self, request: &S3Request<'_>, now: Timestamp) -> (String, String) {
        let time = format!("{}Z", now.compact());
        let (day, _) = time.split_at(8);
        let S3Request { method, host, path, body_hash, header } = *request;
        let mut headers =
            vec![("host", host), ("x-amz-content-sha256", body_hash), ("x-amz-date", &time)];
        headers.extend(header);
        headers.sort_unstable();
        let lines: String =
            headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let names: Vec<_> = headers.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let canonical = format!("{method}\n{path}\n\n{lines}\n{names}\n{body_hash}");
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let hash = hex::encode(&Sha256::digest(canonical));
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}");
        let mut key = mac(format!("AWS4{}", self.secret.expose()).as_bytes(), day);
        for part in [self.region.as_str(), "s3", "aws4_request"] {
            key = mac(&key, part);
        }
        let signature = hex::encode(&mac(&key, &text));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={signature}",
            self.key
        );
        (time, authorization)
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example «GET Object» of "Authenticating Requests: Using the Authorization Header" in the
    /// documentation of Amazon S3.
    #[test]
    fn published_example_has_the_published_signature() {
        let signer = S3Signer {
            key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret: Secret::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            region: "us-east-1".to_owned(),
        };
        let request = S3Request {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            body_hash: EMPTY_BODY,
            header: Some(("range", "bytes=0-9")),
        };
        let now = Timestamp::from_rfc3339("2013-05-24T00:00:00Z").unwrap();
        let (date, authorization) = signer.sign(&request, now);
        assert_eq!(date, "20130524T000000Z");
        assert_eq!(
            authorization,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn every_signed_part_changes_the_signature() {
        let signer = |secret: &str, region: &str| S3Signer {
            key: "key".to_owned(),
            secret: Secret::new(secret),
            region: region.to_owned(),
        };
        let request = S3Request {
            method: "PUT",
            host: "s3.example.com",
            path: "/hub/a",
            body_hash: EMPTY_BODY,
            header: None,
        };
        let now = Timestamp::from_ms(1_770_000_000_000);
        let first = signer("s", "r").sign(&request, now).1;
        let other_hash = EMPTY_BODY.replace('e', "f");
        for other in [
            S3Request { method: "GET", ..request },
            S3Request { host: "s4.example.com", ..request },
            S3Request { path: "/hub/b", ..request },
            S3Request { body_hash: &other_hash, ..request },
            S3Request { header: Some(("range", "bytes=1-")), ..request },
        ] {
            assert_ne!(signer("s", "r").sign(&other, now).1, first, "{other:?}");
        }
        for other in [signer("t", "r"), signer("s", "q")] {
            assert_ne!(other.sign(&request, now).1, first);
        }
        let later = Timestamp::from_ms(1_770_000_001_000);
        assert_ne!(signer("s", "r").sign(&request, later).1, first);
    }
}
