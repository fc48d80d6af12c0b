//! The address of a beanstalkd and the name of a tube, checked when they are parsed.

use std::fmt;
use std::str::FromStr;

/// Port of an address without one.
const DEFAULT_PORT: u16 = 11300;

/// Longest name of a tube, in bytes.
const MAX_TUBE_BYTES: usize = 200;

/// An address `beanstalkd://host:port`; the default port is 11300.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BeanstalkdAddress {
    /// A name or an IP address; an IPv6 address without its brackets.
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not the address of a beanstalkd: it {why}; expected beanstalkd://host:port")]
pub struct InvalidBeanstalkdAddress {
    found: String,
    why: &'static str,
}

/// The name of a tube: a queue within a beanstalkd.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TubeName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the name of a tube; expected 1 to 200 characters of A-Z a-z 0-9 - + / ; . $ _ ( ), \
     not starting with -"
)]
pub struct InvalidTubeName(String);

impl TubeName {
    /// Returns the tube that every new connection uses and watches.
    pub fn default_tube() -> Self {
        Self("default".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TubeName {
    type Err = InvalidTubeName;

    fn from_str(text: &str) -> Result<Self, InvalidTubeName> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-+/;.$_()".contains(&byte);
        let fits = (1..=MAX_TUBE_BYTES).contains(&text.len());
        if fits && !text.starts_with('-') && text.bytes().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            // An error repeats at most as much as a valid name could have.
            Err(InvalidTubeName(text.chars().take(MAX_TUBE_BYTES).collect()))
        }
    }
}

impl fmt::Display for TubeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for BeanstalkdAddress {
    type Err = InvalidBeanstalkdAddress;

    fn from_str(text: &str) -> Result<Self, InvalidBeanstalkdAddress> {
        let invalid = |why| InvalidBeanstalkdAddress {
            found: text.chars().take(MAX_TUBE_BYTES).collect(),
            why,
        };
        let place = text
            .strip_prefix("beanstalkd://")
            .ok_or_else(|| invalid("does not start with beanstalkd://"))?;
        let place = place.strip_suffix('/').unwrap_or(place);
        let (host, port) = split(place).map_err(invalid)?;
        if host.is_empty() {
            return Err(invalid("has no host"));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
        if !host.bytes().all(allowed) {
            return Err(invalid("has a host that is neither a name nor an IP address"));
        }
        let port = match port {
            None => DEFAULT_PORT,
            // `parse` alone would accept a plus sign.
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                let port = port.parse().ok().filter(|port| *port != 0);
                port.ok_or_else(|| invalid("has a port outside of 1…65535"))?
            }
            Some(_) => return Err(invalid("has a port that is not a number")),
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

/// Splits `host`, `host:port`, `[v6]` and `[v6]:port`.
fn split(place: &str) -> Result<(&str, Option<&str>), &'static str> {
    if let Some(rest) = place.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or("has an unclosed bracket")?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err("has no IPv6 address within its brackets");
        }
        return match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if rest.is_empty() => Ok((host, None)),
            None => Err("has text behind the bracket that is not a port"),
        };
    }
    match place.split_once(':') {
        Some((_, port)) if port.contains(':') => Err("has an IPv6 address without brackets"),
        Some((host, port)) => Ok((host, Some(port))),
        None => Ok((place, None)),
    }
}

impl fmt::Display for BeanstalkdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "beanstalkd://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "beanstalkd://{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_displayed() {
        for (text, host, port, written) in [
            ("beanstalkd://localhost", "localhost", 11300, "beanstalkd://localhost:11300"),
            ("beanstalkd://127.0.0.1:1/", "127.0.0.1", 1, "beanstalkd://127.0.0.1:1"),
            ("beanstalkd://a-b.c_d:65535", "a-b.c_d", 65535, "beanstalkd://a-b.c_d:65535"),
            ("beanstalkd://[::1]", "::1", 11300, "beanstalkd://[::1]:11300"),
            ("beanstalkd://[fe80::2]:99", "fe80::2", 99, "beanstalkd://[fe80::2]:99"),
        ] {
            let address: BeanstalkdAddress = text.parse().unwrap();
            assert_eq!((address.host.as_str(), address.port), (host, port), "{text}");
            assert_eq!(address.to_string(), written);
            assert_eq!(written.parse::<BeanstalkdAddress>().unwrap(), address);
        }
    }

    #[test]
    fn invalid_addresses_are_rejected_with_a_reason() {
        for (text, why) in [
            ("", "does not start"),
            ("http://localhost", "does not start"),
            ("beanstalkd:localhost", "does not start"),
            ("beanstalkd://", "no host"),
            ("beanstalkd://:11300", "no host"),
            ("beanstalkd://a:0", "1…65535"),
            ("beanstalkd://a:65536", "1…65535"),
            ("beanstalkd://a:", "1…65535"),
            ("beanstalkd://a:+1", "not a number"),
            ("beanstalkd://a:x", "not a number"),
            ("beanstalkd://::1", "without brackets"),
            ("beanstalkd://[::1", "unclosed bracket"),
            ("beanstalkd://[a]", "no IPv6"),
            ("beanstalkd://[::1]x", "behind the bracket"),
            ("beanstalkd://me@host", "neither a name"),
            ("beanstalkd://host/tube", "neither a name"),
            ("beanstalkd://ho st", "neither a name"),
        ] {
            let error = text.parse::<BeanstalkdAddress>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn tube_names_cannot_contain_commands() {
        for good in ["a", "monoco.worker.tagger", "A-+/;.$_()9", &"x".repeat(200)] {
            assert_eq!(good.parse::<TubeName>().unwrap().to_string(), good);
        }
        let long = "x".repeat(201);
        for bad in ["", "-a", "a b", "a\r\nput 0 0 1 0", "ä", "a\0", "a:b", "{}", &long] {
            assert!(bad.parse::<TubeName>().is_err(), "{bad:?}");
        }
        let error = "ü".repeat(1000).parse::<TubeName>().unwrap_err().to_string();
        assert!(error.len() < 600, "an invalid name is shortened: {}", error.len());
    }
}
