//! Which hosts the URLs of a server may name.
//!
//! Providers answer with URLs: of sockets, of downloads, of redirects. A wrong or forged one
//! must not lead requests into the own network, or tokens to a foreign host.

use std::net::IpAddr;

use monoco_core::retry::Failure;
use reqwest::Url;

use super::EgressTarget;

/// The hosts of one provider.
#[derive(Clone, Debug)]
pub struct HostRule {
    hosts: Vec<String>,
    base: EgressTarget,
}

impl HostRule {
    /// Allows https to `hosts`, and the origin of `base`, which the config names. A host that
    /// starts with a dot stands for all its subdomains. If `base` is on this machine, every
    /// port of this machine is allowed, also without encryption, for emulators.
    pub fn new(hosts: &[&str], base: &EgressTarget) -> Self {
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Self { hosts, base: base.clone() }
    }

    /// Checks an `https://` URL of the server.
    ///
    /// # Errors
    ///
    /// A permanent failure that shows the host only, because the URL may hold a secret.
    pub fn http(&self, url: &str) -> Result<EgressTarget, Failure> {
        self.check(url).map_err(|detail| Failure::Permanent { detail, error_code: None })
    }

    /// Checks a `wss://` URL of the server. The target has the scheme `https`.
    ///
    /// # Errors
    ///
    /// A permanent failure that shows the host only, because the URL may hold a secret.
    pub fn socket(&self, url: &str) -> Result<EgressTarget, Failure> {
        let http = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("wss") => format!("https://{rest}"),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("ws") => format!("http://{rest}"),
            _ => {
                let detail = "the provider names a socket that does not start with wss://";
                return Err(Failure::Permanent { detail: detail.to_owned(), error_code: None });
            }
        };
        self.http(&http)
    }

    fn check(&self, text: &str) -> Result<EgressTarget, String> {
        let url = Url::parse(text).map_err(|_| "the provider names an invalid URL".to_owned())?;
        let shown = url.origin().ascii_serialization();
        let rejected = |why: &str| Err(format!("the provider names {shown}: {why}"));
        let host = url.host_str().unwrap_or_default().trim_end_matches('.');
        let is_ours = url.origin() == self.base.url.origin();
        let is_local = is_loopback(host) && is_loopback(self.base.host());
        if !(is_ours || is_local || self.is_vendor(host)) {
            return rejected("this is not one of its hosts; if it is meant, set base_url to it");
        }
        let allow_private = is_local || (is_ours && self.base.allows_private());
        match EgressTarget::parse(text, allow_private) {
            Ok(target) => Ok(target),
            Err(why) => rejected(&why.to_string()),
        }
    }

    fn is_vendor(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.hosts.iter().any(|allowed| {
            if allowed.starts_with('.') { host.ends_with(allowed) } else { host == *allowed }
        })
    }
}

/// Tells whether a host of a URL can only be this machine.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.to_canonical().is_loopback())
}
