//! Reads `courier.remote`: the listener of the API for clients on other machines.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use monoco_core::config::{ConfigSection, InvalidConfig};

/// Where clients on other machines connect, always with TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    pub listen: SocketAddr,
    /// PEM file with the certificate of the server, followed by those of its issuers.
    pub certificate: PathBuf,
    /// PEM file with the private key of the certificate.
    pub key: PathBuf,
    /// The names and addresses under which clients reach the courier.
    pub names: Vec<RemoteName>,
}

/// A host name or an IP address, as in URLs and in the Host header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteName {
    /// The name in lower case.
    Host(String),
    Address(IpAddr),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "found {0:?}, not a host name or an IP address; expected a name such as hub.example.com, \
     without port"
)]
pub struct InvalidRemoteName(String);

impl FromStr for RemoteName {
    type Err = InvalidRemoteName;

    fn from_str(text: &str) -> Result<Self, InvalidRemoteName> {
        let invalid = || InvalidRemoteName(text.to_owned());
        if let Some(address) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: Result<Ipv6Addr, _> = address.parse();
            return address.map(|it| Self::Address(it.into())).map_err(|_| invalid());
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let is_label = |label: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(plain)
        };
        if text.len() > 253 || !text.split('.').all(is_label) {
            return Err(invalid());
        }
        Ok(Self::Host(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for RemoteName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

impl RemoteName {
    /// Reads the value of a Host header. Any port is accepted: a router can forward another one.
    pub fn of_host(header: &str) -> Option<Self> {
        let name = match header.rsplit_once(':') {
            Some((name, port)) if !header.ends_with(']') => {
                port.parse::<u16>().ok()?;
                name
            }
            _ => header,
        };
        // An IPv6 address must be in brackets here.
        if name.contains(':') && !name.starts_with('[') { None } else { name.parse().ok() }
    }
}

/// Reads the section; `None` when it is missing.
pub fn read(section: &ConfigSection<'_>) -> Result<Option<RemoteConfig>, InvalidConfig> {
    section.deny_unknown_keys(&["listen", "certificate", "key", "names"])?;
    if section.keys().next().is_none() {
        return Ok(None);
    }
    let file = |key: &str| {
        section.file_path(key)?.ok_or_else(|| {
            let why = "missing; other machines can use the API only with TLS: set `certificate` \
                       and `key` to PEM files";
            section.invalid_key(key, why)
        })
    };
    let (certificate, key) = (file("certificate")?, file("key")?);
    let listen = section.required("listen")?;
    let text = listen.text()?;
    let listen = text.parse().map_err(|_| {
        let why = format!("found {text:?}, expected an address and a port, such as 0.0.0.0:8646");
        listen.invalid(why)
    })?;
    let mut names = Vec::new();
    for value in section.values("names")?.unwrap_or_default() {
        names.push(value.parsed::<RemoteName>()?);
    }
    if names.is_empty() {
        let why = "expected the names by which clients reach this machine, such as \
                   [hub.example.com]; they must be in the certificate";
        return Err(section.invalid_key("names", why));
    }
    Ok(Some(RemoteConfig { listen, certificate, key, names }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_header_is_a_name_or_an_address_with_any_port() {
        for (header, expected) in [
            ("hub.example.com", "hub.example.com"),
            ("HUB.example.com:8646", "hub.example.com"),
            ("10.0.0.7:443", "10.0.0.7"),
            ("[fd00::7]:8646", "fd00::7"),
            ("[fd00::7]", "fd00::7"),
        ] {
            let name = RemoteName::of_host(header).unwrap();
            assert_eq!(name.to_string(), expected, "{header}");
        }
        for header in
            ["", ":8646", "fd00::7", "hub:x", "a b", "hub/x", "user@hub", "[hub]:1", "a..b"]
        {
            assert_eq!(RemoteName::of_host(header), None, "{header}");
        }
    }
}
