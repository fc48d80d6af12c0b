//! Decides which addresses the HTTP client may connect to: only public ones, unless a
//! tunnel allows private ones (protection against SSRF).
//!
//! Names are resolved by DNS servers that the operator may not control. So an address in
//! the config is checked when it is read, and every resolved address before connecting.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// Why no request may be sent to an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTarget {
    #[error("not a URL ({0}); expected one such as https://example.com/hook")]
    NotAUrl(String),
    #[error("expected https://, not {0}://")]
    Scheme(String),
    #[error("leave out what stands before the @: names and passwords in a URL end up in logs")]
    Credentials,
    /// The request would not be encrypted.
    #[error(
        "expected https://; http:// is for hosts of your own network, and then set allow_private: true"
    )]
    InTheClear,
    #[error(
        "{0} is an address of this machine or a private network; \
         if that is meant, set allow_private: true"
    )]
    Private(String),
    /// The request would leave the private network without encryption.
    #[error("{0} is an address of the public network; expected https:// for it")]
    Public(String),
}

/// A checked URL. Names are checked when they are resolved.
#[derive(Clone, PartialEq, Eq)]
pub struct EgressTarget {
    pub(super) url: Url,
    pub(super) reach: AddressScope,
}

/// Which addresses may be connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressScope {
    Public,
    Anywhere,
    /// Only private addresses, because requests are not encrypted.
    Inside,
}

impl EgressTarget {
    /// Parses and checks a URL. `allow_private` permits http:// and private addresses.
    pub fn parse(text: &str, allow_private: bool) -> Result<Self, InvalidTarget> {
        let url = Url::parse(text).map_err(|error| InvalidTarget::NotAUrl(error.to_string()))?;
        let reach = match (url.scheme(), allow_private) {
            ("https", false) => AddressScope::Public,
            ("https", true) => AddressScope::Anywhere,
            ("http", true) => AddressScope::Inside,
            ("http", false) => return Err(InvalidTarget::InTheClear),
            (other, _) => return Err(InvalidTarget::Scheme(other.to_owned())),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidTarget::Credentials);
        }
        // An IP address is not resolved, so it is checked here. The URL parser has
        // normalised all its notations, such as 0x7f.1.
        let host = url.host_str().unwrap_or_default();
        if let Ok(ip) = host.trim_start_matches('[').trim_end_matches(']').parse() {
            reach.check(host, ip)?;
        }
        Ok(Self { url, reach })
    }

    /// Returns the target with `path` appended.
    pub fn below(&self, path: &str) -> Self {
        let mut target = self.clone();
        target.url.set_path(&format!("{}/{path}", self.url.path().trim_end_matches('/')));
        target
    }

    /// Returns the target with these pairs appended to the query.
    pub fn with_query(&self, pairs: &[(&str, &str)]) -> Self {
        let mut target = self.clone();
        target.url.query_pairs_mut().extend_pairs(pairs);
        target
    }

    /// Returns the target without query.
    pub(super) fn without_query(&self) -> Self {
        let mut target = self.clone();
        target.url.set_query(None);
        target
    }

    pub(super) fn query(&self) -> Option<&str> {
        self.url.query()
    }

    /// Returns the host, an IPv6 address in brackets.
    pub fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Returns host and port, and whether the connection is encrypted. An IPv6 address has no
    /// brackets.
    pub(crate) fn address(&self) -> (String, u16, bool) {
        let host = self.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = self.url.port_or_known_default().unwrap_or(443);
        (host, port, self.url.scheme() == "https")
    }

    /// Returns those of the looked-up addresses that may be connected to, or an error when there
    /// are none.
    pub(crate) fn allowed_addresses(
        &self,
        found: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, InvalidTarget> {
        self.reach.choose(self.host(), found)
    }

    /// Returns the URL with the scheme `wss`, or `ws` without encryption. It may hold a secret.
    pub(crate) fn socket_url(&self) -> String {
        self.url.as_str().replacen("http", "ws", 1)
    }

    /// Tells whether the target was parsed with `allow_private`.
    pub(super) fn allows_private(&self) -> bool {
        self.reach != AddressScope::Public
    }

    /// Returns scheme, host and port. Path and query are left out: they often hold secrets.
    pub fn shown(&self) -> String {
        self.url.origin().ascii_serialization()
    }
}

impl fmt::Debug for EgressTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({}/…)", self.shown())
    }
}

impl AddressScope {
    fn check(self, host: &str, ip: IpAddr) -> Result<(), InvalidTarget> {
        match self {
            Self::Public if !is_public(ip) => Err(InvalidTarget::Private(host.to_owned())),
            Self::Inside if is_public(ip) => Err(InvalidTarget::Public(host.to_owned())),
            _ => Ok(()),
        }
    }

    /// Returns the addresses of `host` that are allowed, or an error when there are none.
    fn choose(self, host: &str, found: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, InvalidTarget> {
        let rejected = found.iter().find_map(|addr| self.check(host, addr.ip()).err());
        let chosen: Vec<_> =
            found.into_iter().filter(|addr| self.check(host, addr.ip()).is_ok()).collect();
        match rejected {
            Some(error) if chosen.is_empty() => Err(error),
            _ => Ok(chosen),
        }
    }
}

impl Resolve for AddressScope {
    /// Resolves and checks a name. The client connects to exactly these addresses, so a name
    /// that changes between check and use (DNS rebinding) has no effect.
    fn resolve(&self, name: Name) -> Resolving {
        let reach = *self;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let chosen = reach.choose(name.as_str(), found)?;
            Ok(Box::new(chosen.into_iter()) as Addrs)
        })
    }
}

/// Tells whether `ip` is an address of the public network.
///
/// Addresses in the IANA special-purpose registries are not public, and neither are IPv6
/// addresses that embed such an IPv4 address.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !matches!(
        (a, b, c),
        (0 | 10 | 127, ..)
            | (100, 64..=127, _)
            | (169, 254, _)
            | (172, 16..=31, _)
            | (192, 0, 0 | 2)
            | (192, 88, 99)
            | (192, 168, _)
            | (198, 18 | 19, _)
            | (198, 51, 100)
            | (203, 0, 113)
            // Multicast, reserved, broadcast.
            | (224.., ..)
    )
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, g, h] = ip.segments();
    let wrapped = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match (a, b, c, d, e, f) {
        // IPv4-mapped, NAT64, 6to4.
        (0, 0, 0, 0, 0, 0xffff) | (0x64, 0xff9b, 0, 0, 0, 0) => wrapped(g, h),
        (0x2002, ..) => wrapped(b, c),
        // Protocol assignments such as Teredo, and documentation.
        (0x2001, 0..=0x1ff | 0xdb8, ..) | (0x3fff, 0..=0xfff, ..) => false,
        // Global unicast; everything else is local, multicast or not in use.
        (0x2000..=0x3fff, ..) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_purpose_addresses_are_not_public() {
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.1",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.1",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2000::1",
            "2001:200::1",
            "2606:4700:4700::1111",
            "2a00:1450:4001:80b::200e",
            "3fff:1000::1",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ];
        let others = [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.0.170",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "192.168.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::808:808",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:1ff::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:a9fe:a9fe::",
            "3fff::1",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd12:3456:789a::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
        ];
        for ip in public {
            assert!(is_public(ip.parse().unwrap()), "{ip} is public");
        }
        for ip in others {
            assert!(!is_public(ip.parse().unwrap()), "{ip} is not public");
        }
    }

    #[test]
    fn urls_are_checked_when_parsed() {
        let said = |url: &str, allow_private| {
            EgressTarget::parse(url, allow_private)
                .map_or_else(|e| e.to_string(), |_| "fine".to_owned())
        };
        for (url, alone, allowed) in [
            ("https://example.com/hook", "fine", "fine"),
            ("https://8.8.8.8/", "fine", "fine"),
            ("https://127.0.0.1/", "allow_private: true", "fine"),
            ("https://127.1/", "allow_private: true", "fine"),
            ("https://0x7f.1/", "allow_private: true", "fine"),
            ("https://0177.0.0.1/", "allow_private: true", "fine"),
            ("https://2130706433/", "allow_private: true", "fine"),
            ("https://127.0.0.1./", "allow_private: true", "fine"),
            ("https://%31%32%37.0.0.1/", "allow_private: true", "fine"),
            ("https://①②⑦.0.0.1/", "allow_private: true", "fine"),
            ("https://0/", "allow_private: true", "fine"),
            ("https://169.254.169.254/latest", "allow_private: true", "fine"),
            ("https://[::1]/", "allow_private: true", "fine"),
            ("https://[::ffff:7f00:1]/", "allow_private: true", "fine"),
            ("https://[::ffff:127.0.0.1]/", "allow_private: true", "fine"),
            ("https://[fd00::1]/", "allow_private: true", "fine"),
            ("http://127.0.0.1:9000/", "allow_private: true", "fine"),
            ("http://192.168.1.5/", "allow_private: true", "fine"),
            ("http://ci.internal/", "allow_private: true", "fine"),
            ("http://8.8.8.8/", "allow_private: true", "expected https:// for it"),
            ("http://[2606:4700::1]/", "allow_private: true", "expected https:// for it"),
            ("file:///etc/passwd", "not file://", "not file://"),
            ("gopher://127.0.0.1/", "not gopher://", "not gopher://"),
            ("ftp://example.com/", "not ftp://", "not ftp://"),
            ("https://ann:pw@example.com/", "before the @", "before the @"),
            ("https://ann@example.com/", "before the @", "before the @"),
            ("https://:pw@example.com/", "before the @", "before the @"),
            ("example.com/hook", "not a URL", "not a URL"),
            ("https://", "not a URL", "not a URL"),
            ("https://256.256.256.256/", "not a URL", "not a URL"),
            ("", "not a URL", "not a URL"),
        ] {
            for (allow_private, want) in [(false, alone), (true, allowed)] {
                let said = said(url, allow_private);
                assert!(said.contains(want), "{url}, allow_private: {allow_private}: {said}");
            }
        }
    }

    #[test]
    fn appended_path_keeps_host_and_scope() {
        for (above, below) in [
            ("http://127.0.0.1:11333", "http://127.0.0.1:11333/checkv2"),
            ("http://127.0.0.1:11333/", "http://127.0.0.1:11333/checkv2"),
            ("http://ci.internal/spam/", "http://ci.internal/spam/checkv2"),
            ("http://ci.internal/spam?a=b", "http://ci.internal/spam/checkv2?a=b"),
        ] {
            let target = EgressTarget::parse(above, true).unwrap();
            assert!(
                target.below("checkv2") == EgressTarget::parse(below, true).unwrap(),
                "{above}"
            );
        }
        let away =
            EgressTarget::parse("https://example.com/", false).unwrap().below("/@127.0.0.1/../x");
        assert_eq!(away.shown(), "https://example.com", "no path leads to another host");
    }

    #[test]
    fn shown_target_has_no_path_and_no_query() {
        let target = EgressTarget::parse("https://Example.com:8443/s3cret?token=s3cret#x", false);
        let target = target.unwrap();
        assert_eq!(target.shown(), "https://example.com:8443");
        assert_eq!(format!("{target:?}"), "Target(https://example.com:8443/…)");
    }

    #[test]
    fn resolved_private_addresses_are_rejected() {
        let chosen = |reach: AddressScope, ips: &[&str]| {
            let found = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect();
            let chosen = reach.choose("rebind.example", found);
            chosen.map(|found| found.iter().map(|addr| addr.ip().to_string()).collect::<Vec<_>>())
        };
        let private = Err(InvalidTarget::Private("rebind.example".to_owned()));
        let public = Err(InvalidTarget::Public("rebind.example".to_owned()));
        for (reach, found, want) in [
            (AddressScope::Public, &["1.1.1.1", "8.8.8.8"][..], Ok(vec!["1.1.1.1", "8.8.8.8"])),
            (AddressScope::Public, &["127.0.0.1"], private.clone()),
            (AddressScope::Public, &["10.0.0.1", "::1"], private),
            // The allowed addresses remain.
            (
                AddressScope::Public,
                &["127.0.0.1", "1.1.1.1", "::ffff:10.0.0.1"],
                Ok(vec!["1.1.1.1"]),
            ),
            (AddressScope::Public, &[], Ok(vec![])),
            (AddressScope::Anywhere, &["127.0.0.1", "1.1.1.1"], Ok(vec!["127.0.0.1", "1.1.1.1"])),
            (AddressScope::Inside, &["127.0.0.1", "1.1.1.1"], Ok(vec!["127.0.0.1"])),
            (AddressScope::Inside, &["1.1.1.1"], public),
        ] {
            let want = want.map(|ips| ips.into_iter().map(str::to_owned).collect());
            assert_eq!(chosen(reach, found), want, "{reach:?} {found:?}");
        }
    }
}
