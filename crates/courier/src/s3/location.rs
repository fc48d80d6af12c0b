//! The URL of a bucket: `s3://key:secret@bucket/prefix?endpoint=https://host&region=name`.

use monoco_adapters::egress::EgressTarget;
use monoco_core::config::Secret;
use percent_encoding::percent_decode_str;

use super::signature::S3Signer;

/// The region of servers that have only one.
const DEFAULT_REGION: &str = "us-east-1";

/// Longest prefix, in bytes. With the name of an object it is shorter than a key may be.
const MAX_PREFIX_BYTES: usize = 512;

/// A bucket, and the keys for it.
#[derive(Clone, Debug)]
pub struct S3Location {
    /// Where objects are: the bucket, or the server with the bucket as first part of the path.
    pub target: EgressTarget,
    pub signer: S3Signer,
    pub bucket: String,
    /// The first part of all paths: bucket and prefix, as far as they belong to it.
    pub root: String,
    /// Bucket and prefix, for messages and to compare couriers.
    pub place: String,
}

impl S3Location {
    /// Reads a URL. Errors do not repeat it, because it has a secret.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what was expected.
    pub fn parse(url: &str) -> Result<Self, String> {
        let rest = url.trim().strip_prefix("s3://").ok_or_else(|| {
            "unknown place of attachments; expected database, or a URL that starts with s3://"
                .to_owned()
        })?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (keys, place) = place.rsplit_once('@').ok_or_else(|| {
            "expected s3://KEY:SECRET@bucket: the access key is missing; escape @ as %40".to_owned()
        })?;
        let (key, secret) = keys.split_once(':').ok_or_else(|| {
            "expected s3://KEY:SECRET@bucket: the secret of the access key is missing".to_owned()
        })?;
        let (key, secret) = (decoded(key, "the access key")?, decoded(secret, "the secret")?);
        if key.is_empty() || secret.is_empty() || key.contains(['/', ',', ' ']) {
            return Err("the access key or its secret is empty or invalid".to_owned());
        }
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        check_bucket(bucket)?;
        let prefix = prefix.trim_matches('/');
        check_prefix(prefix)?;
        let S3Query { endpoint, region, is_path } = S3Query::parse(query)?;
        let region = match (region, &endpoint) {
            (Some(region), _) => region,
            (None, Some(_)) => DEFAULT_REGION.to_owned(),
            (None, None) => {
                let why = "region is missing; expected ?region=NAME, and &endpoint=URL for servers \
                           other than those of AWS";
                return Err(why.to_owned());
            }
        };
        let is_path = is_path.unwrap_or(endpoint.is_some());
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let endpoint =
            if is_path { endpoint } else { endpoint.replacen("://", &format!("://{bucket}."), 1) };
        let target =
            EgressTarget::parse(&endpoint, true).map_err(|error| format!("endpoint: {error}"))?;
        if endpoint.trim_end_matches('/') != target.shown() {
            return Err("endpoint: expected scheme, host and port without a path, in lower case, \
                        such as https://s3.example.com"
                .to_owned());
        }
        let parts = [if is_path { bucket } else { "" }, prefix];
        let root: String =
            parts.iter().filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect();
        let place = [bucket, prefix].join("/");
        Ok(Self {
            target,
            signer: S3Signer { key, secret: Secret::new(secret), region },
            bucket: bucket.to_owned(),
            root,
            place: format!("s3://{}", place.trim_end_matches('/')),
        })
    }
}

/// The parameters of the URL.
#[derive(Default)]
struct S3Query {
    endpoint: Option<String>,
    region: Option<String>,
    /// Whether the bucket is in the path, and not in the name of the host.
    is_path: Option<bool>,
}

impl S3Query {
    fn parse(query: &str) -> Result<Self, String> {
        let mut found = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value, "a parameter")?;
            match (name, value.as_str()) {
                ("endpoint", _) => found.endpoint = Some(value),
                ("region", _) if is_name(&value, "-") => found.region = Some(value),
                ("region", _) => return Err("region: expected a name such as eu-central-1".into()),
                ("style", "path") => found.is_path = Some(true),
                ("style", "host") => found.is_path = Some(false),
                ("style", _) => return Err("style: expected path or host".to_owned()),
                // The name can be a part of a secret that was not escaped.
                _ => return Err("unknown parameter; expected endpoint, region or style".to_owned()),
            }
        }
        Ok(found)
    }
}

fn decoded(text: &str, what: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.map(|text| text.into_owned()).map_err(|_| format!("{what} is not UTF-8"))
}

/// Whether a text has only letters, digits and `more` characters.
fn is_name(text: &str, more: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
}

fn check_bucket(bucket: &str) -> Result<(), String> {
    let is_bucket = (3..=63).contains(&bucket.len())
        && is_name(bucket, "-.")
        && !bucket.contains("..")
        && !bucket.chars().any(|c| c.is_ascii_uppercase());
    if is_bucket {
        return Ok(());
    }
    Err("invalid name of a bucket; expected 3 to 63 lower-case letters, digits, `-` and `.`".into())
}

/// Prefixes have only characters that need no escaping, so that a path is signed as it is sent.
fn check_prefix(prefix: &str) -> Result<(), String> {
    let is_part = |part: &str| is_name(part, "-_.~") && part != "." && part != "..";
    if prefix.is_empty() || prefix.len() <= MAX_PREFIX_BYTES && prefix.split('/').all(is_part) {
        return Ok(());
    }
    Err("invalid prefix; expected at most 512 letters, digits, `-`, `_`, `.`, `~` and `/`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_names_server_bucket_prefix_and_keys() {
        let found = |url: &str| {
            let location = S3Location::parse(url).unwrap();
            assert!(!format!("{location:?}").contains("s3cret"), "{location:?}");
            let S3Location { target, root, place, signer, .. } = location;
            format!("{} {root} {place} {} {}", target.shown(), signer.key, signer.region)
        };
        for (url, expected) in [
            (
                "s3://AK:s3cret@hub/a/b?endpoint=http://127.0.0.1:9000",
                "http://127.0.0.1:9000 /hub/a/b s3://hub/a/b AK us-east-1",
            ),
            (
                "s3://AK:s3cret%2F%40@hub?region=eu-central-1",
                "https://hub.s3.eu-central-1.amazonaws.com  s3://hub AK eu-central-1",
            ),
            (
                "s3://AK:s3cret@hub/x/?endpoint=https%3A%2F%2Fs3.example.com%2F&region=r&style=host",
                "https://hub.s3.example.com /x s3://hub/x AK r",
            ),
        ] {
            assert_eq!(found(url), expected, "{url}");
        }
        let location = S3Location::parse("s3://AK:a%2Fb%40c@hub?region=r").unwrap();
        assert_eq!(location.signer.secret.expose(), "a/b@c");
    }

    #[test]
    fn invalid_urls_are_rejected_without_their_secret() {
        for (url, expected) in [
            ("http://hub", "starts with s3://"),
            ("s3://hub/prefix?region=r", "access key is missing"),
            ("s3://s3cret@hub?region=r", "secret of the access key is missing"),
            ("s3://:s3cret@hub?region=r", "empty or invalid"),
            ("s3://AK:@hub?region=r", "empty or invalid"),
            ("s3://AK:s3cret@Hub?region=r", "name of a bucket"),
            ("s3://AK:s3cret@hu?region=r", "name of a bucket"),
            ("s3://AK:s3cret@hub/a b?region=r", "invalid prefix"),
            ("s3://AK:s3cret@hub/../b?region=r", "invalid prefix"),
            ("s3://AK:s3cret@hub", "region is missing"),
            ("s3://AK:s3cret@hub?region=a/b", "expected a name"),
            ("s3://AK:s3cret@hub?region=r&style=other", "expected path or host"),
            ("s3://AK:s3cret@hub?region=r&s3cret=1", "unknown parameter"),
            ("s3://AK:s3cret@hub?endpoint=ftp://host", "endpoint"),
            ("s3://AK:s3cret@hub?endpoint=http://8.8.8.8", "expected https:// for it"),
            ("s3://AK:s3cret@hub?endpoint=https://host/path", "without a path"),
        ] {
            let error = S3Location::parse(url).unwrap_err();
            assert!(error.contains(expected), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{url}: {error}");
        }
    }
}
