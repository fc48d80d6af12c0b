//! DIDs of owners, authors, targets and external endpoints.
//!
//! A DID is `did:method:rest`. The method `msgtunnel` has two forms:
//!
//! ```text
//! did:msgtunnel:lark-main                  the tunnel itself; owns a TUNNEL_OUTBOX
//! did:msgtunnel:ou_7.user.lark-main        a shadow DID: one endpoint behind it
//!               ────  ──── ─────────
//!               account    tunnel
//! ```
//!
//! A shadow DID is the exact address of an answer. The account is percent-encoded in one
//! canonical way, so that one endpoint has one DID.

use std::fmt;
use std::str::FromStr;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::names::text_conversions;

/// Maximum length of a DID, in bytes.
pub const MAX_DID: usize = 1024;

const TUNNEL_METHOD: &str = "msgtunnel";

/// The provider whose accounts are e-mail addresses.
pub const EMAIL_PROVIDER: &str = "email";

/// Bytes of an account that are escaped: all but ASCII letters, digits, `-` and `_`.
const ESCAPED_IN_ACCOUNT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// A syntactically valid DID. Shadow DIDs are in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Did(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid DID {text:?}: {why}")]
pub struct InvalidDid {
    text: String,
    why: &'static str,
}

/// The name of a tunnel: its key in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TunnelId(String);

/// The kind of account that a shadow DID names.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum EndpointKind {
    #[default]
    User,
    Group,
    Channel,
    /// An address, such as an e-mail address or a URL.
    Addr,
}

/// An account on an external network: the parts of a shadow DID.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The provider's id of the account, not escaped.
    pub account: String,
    pub kind: EndpointKind,
    pub tunnel: TunnelId,
}

impl Did {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The endpoint; `None` when this is not a shadow DID.
    pub fn endpoint(&self) -> Option<Endpoint> {
        let rest = self.tunnel_rest()?;
        let (account, rest) = rest.split_once('.')?;
        let (kind, tunnel) = rest.split_once('.')?;
        Some(Endpoint {
            account: decode(account)?,
            kind: kind.parse().ok()?,
            tunnel: tunnel.parse().ok()?,
        })
    }

    /// The tunnel; `None` when this is not the DID of a tunnel.
    pub fn tunnel(&self) -> Option<TunnelId> {
        self.tunnel_rest().filter(|rest| !rest.contains('.'))?.parse().ok()
    }

    fn tunnel_rest(&self) -> Option<&str> {
        self.0.strip_prefix("did:")?.strip_prefix(TUNNEL_METHOD)?.strip_prefix(':')
    }
}

impl Endpoint {
    /// An address behind `tunnel`. The domain of an e-mail address is in lower case, so that
    /// one mailbox has one DID.
    pub fn address(address: &str, tunnel: TunnelId) -> Self {
        Self { account: lower_case_domain(address), kind: EndpointKind::Addr, tunnel }
    }

    /// An account as a user writes it. Every account of the provider `email` is an address,
    /// whatever `kind` says.
    pub fn at_provider(
        provider: &str,
        kind: EndpointKind,
        account: &str,
        tunnel: TunnelId,
    ) -> Self {
        if provider == EMAIL_PROVIDER {
            return Self::address(account, tunnel);
        }
        Self { account: account.to_owned(), kind, tunnel }
    }

    /// Returns the shadow DID of this endpoint.
    ///
    /// # Errors
    ///
    /// [`InvalidDid`] when the account is empty or too long.
    pub fn did(&self) -> Result<Did, InvalidDid> {
        let Self { account, kind, tunnel } = self;
        format!("did:{TUNNEL_METHOD}:{}.{kind}.{tunnel}", encode(account)).parse()
    }
}

impl TunnelId {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The DID of the tunnel itself.
    pub fn did(&self) -> Did {
        Did(format!("did:{TUNNEL_METHOD}:{}", self.0))
    }
}

/// Returns an e-mail address with its domain in lower case. The part before the `@` keeps its
/// case, which only its own server can interpret. Other addresses, such as URLs, stay the same.
pub fn lower_case_domain(address: &str) -> String {
    match address.rsplit_once('@') {
        Some((local, domain)) if !domain.contains(['/', ':']) => {
            format!("{local}@{}", domain.to_lowercase())
        }
        _ => address.to_owned(),
    }
}

impl FromStr for Did {
    type Err = InvalidDid;

    fn from_str(text: &str) -> Result<Self, InvalidDid> {
        let bad = |why| InvalidDid { text: text.chars().take(200).collect(), why };
        if text.len() > MAX_DID {
            return Err(bad("longer than 1,024 bytes"));
        }
        let Some((method, rest)) = text.strip_prefix("did:").and_then(|t| t.split_once(':')) else {
            return Err(bad("expected did:method:rest"));
        };
        if method.is_empty()
            || !method.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        {
            return Err(bad("the method may have lower-case letters and digits only"));
        }
        if rest.is_empty() || rest.ends_with(':') {
            return Err(bad("nothing after the method"));
        }
        if !well_escaped(rest) {
            return Err(bad("expected letters, digits, '.', '-', '_', ':' and %XX escapes"));
        }
        let did = Self(text.to_owned());
        if method == TUNNEL_METHOD {
            let canonical = match (did.tunnel(), did.endpoint()) {
                (Some(tunnel), _) => tunnel.did().0,
                (_, Some(Endpoint { account, kind, tunnel })) if !account.is_empty() => {
                    format!("did:{TUNNEL_METHOD}:{}.{kind}.{tunnel}", encode(&account))
                }
                _ => return Err(bad("expected {account}.{user|group|channel|addr}.{tunnel}")),
            };
            if canonical != text {
                return Err(bad(
                    "the account is not in canonical form: all but letters, digits, '-' \
                                and '_' must be escaped as upper-case %XX",
                ));
            }
        }
        Ok(did)
    }
}

impl FromStr for TunnelId {
    type Err = InvalidDid;

    fn from_str(text: &str) -> Result<Self, InvalidDid> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let starts =
            text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if starts && text.len() <= 64 && text.bytes().all(plain) {
            return Ok(Self(text.to_owned()));
        }
        let text = text.chars().take(200).collect();
        Err(InvalidDid {
            text,
            why: "the name of a tunnel has 1 to 64 characters of a-z, 0-9, '-' and '_'",
        })
    }
}

impl EndpointKind {
    pub const ALL: [Self; 4] = [Self::User, Self::Group, Self::Channel, Self::Addr];

    pub(crate) fn is_user(&self) -> bool {
        *self == Self::User
    }
}

impl FromStr for EndpointKind {
    type Err = InvalidDid;

    fn from_str(text: &str) -> Result<Self, InvalidDid> {
        Ok(match text {
            "user" => Self::User,
            "group" => Self::Group,
            "channel" => Self::Channel,
            "addr" => Self::Addr,
            _ => {
                let text = text.chars().take(200).collect();
                return Err(InvalidDid { text, why: "expected user, group, channel or addr" });
            }
        })
    }
}

impl fmt::Display for EndpointKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Channel => "channel",
            Self::Addr => "addr",
        })
    }
}

impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for TunnelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_conversions!(Did, InvalidDid, |did| did.0);

text_conversions!(TunnelId, InvalidDid, |id| id.0);

fn well_escaped(text: &str) -> bool {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        at += match byte {
            b'%' => match bytes.get(at + 1..at + 3) {
                Some(hex) if hex.iter().all(u8::is_ascii_hexdigit) => 3,
                _ => return false,
            },
            b'.' | b'-' | b'_' | b':' => 1,
            _ if byte.is_ascii_alphanumeric() => 1,
            _ => return false,
        };
    }
    true
}

fn encode(account: &str) -> impl fmt::Display + '_ {
    utf8_percent_encode(account, ESCAPED_IN_ACCOUNT)
}

/// Decodes what [`well_escaped`] accepts; `None` when the bytes are not UTF-8.
fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Into::into)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_and_invalid_dids() {
        for good in [
            "did:web:a.example.com",
            "did:monoco:me",
            "did:bns:alice",
            "did:x:a:b",
            "did:msgtunnel:lark-main",
            "did:msgtunnel:ou_123.user.lark-main",
            "did:msgtunnel:a%40b%2Ecom.addr.work-mail",
        ] {
            assert_eq!(good.parse::<Did>().map(|d| d.to_string()).as_deref(), Ok(good));
        }
        let long = format!("did:web:{}", "a".repeat(MAX_DID));
        for bad in [
            "",
            "did",
            "did:web",
            "did:web:",
            "did::x",
            "did:Web:x",
            "web:did:x",
            "did:web:a b",
            "did:web:a/b",
            "did:web:é",
            "did:web:a%2",
            "did:web:a%zz",
            "did:web:a\n",
            "did:web:a:",
            "did:msgtunnel:a.b",
            "did:msgtunnel:a.user.b.c",
            "did:msgtunnel:.user.b",
            "did:msgtunnel:a.robot.b",
            "did:msgtunnel:a.user.B",
            "did:msgtunnel:a%2d.user.b",
            "did:msgtunnel:a%2Db.user.b",
            "did:msgtunnel:%FF.user.b",
            "did:msgtunnel:UPPER",
            long.as_str(),
        ] {
            assert!(bad.parse::<Did>().is_err(), "{bad}");
        }
    }

    #[test]
    fn error_says_what_was_expected() {
        let error = "did:msgtunnel:a.b".parse::<Did>().unwrap_err().to_string();
        assert!(error.contains("{account}.{user|group|channel|addr}.{tunnel}"), "{error}");
    }

    #[test]
    fn one_mailbox_has_one_did() {
        let tunnel = || "mail".parse::<TunnelId>().unwrap();
        let did = |provider, kind, account| {
            Endpoint::at_provider(provider, kind, account, tunnel()).did().unwrap().to_string()
        };
        let expected = "did:msgtunnel:Joe%40example%2Ecom.addr.mail";
        for kind in EndpointKind::ALL {
            for account in ["Joe@example.com", "Joe@Example.COM"] {
                assert_eq!(did(EMAIL_PROVIDER, kind, account), expected);
            }
        }
        assert_eq!(
            Endpoint::address("Joe@EXAMPLE.com", tunnel()).did().unwrap().as_str(),
            expected
        );
        assert_eq!(did("lark", EndpointKind::User, "A@B"), "did:msgtunnel:A%40B.user.mail");
        for same in ["https://a@B.example/C", "no domain", "joe@[IPv6:2001:DB8::1]"] {
            assert_eq!(lower_case_domain(same), same);
        }
    }

    proptest! {
        #[test]
        fn any_account_is_read_back_from_its_shadow_did(account in "\\PC{1,80}|[./:@% \u{0}-\u{1f}]{1,20}") {
            for kind in [EndpointKind::User, EndpointKind::Group, EndpointKind::Channel, EndpointKind::Addr] {
                let endpoint = Endpoint { account: account.clone(), kind, tunnel: "lark-main".parse().unwrap() };
                let did = endpoint.did().unwrap();
                prop_assert_eq!(did.endpoint(), Some(endpoint));
                prop_assert_eq!(did.tunnel(), None);
                prop_assert_eq!(did.to_string().parse::<Did>().unwrap(), did);
            }
        }

        #[test]
        fn valid_dids_are_written_as_they_were_read(text in "did:[a-z0-9]{1,12}:[ -~]{1,40}") {
            if let Ok(did) = text.parse::<Did>() {
                prop_assert_eq!(did.to_string(), text);
            }
        }
    }
}
