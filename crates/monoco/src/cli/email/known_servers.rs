//! Mail servers of common providers, by the domain of the address.

/// The servers of one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownServers {
    pub imap: &'static str,
    pub smtp: &'static str,
    /// Whether SMTP uses STARTTLS on port 587 instead of TLS on port 465.
    pub starttls: bool,
    /// What the user must do at the provider first.
    pub hint: &'static str,
}

const APP_PASSWORD: &str = "the provider requires an app password instead of the account's own";
const AUTHORISATION_CODE: &str =
    "turn IMAP on in the settings of the mailbox; the password is the authorisation code";
const OAUTH: &str = "the provider requires OAuth 2: set auth: xoauth2 and a password_command that \
                     prints an access token";

/// Domains and servers, as the providers document them (November 2026).
const SERVERS: &[(&[&str], KnownServers)] = &[
    (&["gmail.com", "googlemail.com"], tls("imap.gmail.com", "smtp.gmail.com", APP_PASSWORD)),
    (
        &["outlook.com", "hotmail.com", "live.com", "msn.com"],
        starttls("outlook.office365.com", "smtp-mail.outlook.com", OAUTH),
    ),
    (
        &["icloud.com", "me.com", "mac.com"],
        starttls("imap.mail.me.com", "smtp.mail.me.com", APP_PASSWORD),
    ),
    (&["yahoo.com"], tls("imap.mail.yahoo.com", "smtp.mail.yahoo.com", APP_PASSWORD)),
    (&["fastmail.com"], tls("imap.fastmail.com", "smtp.fastmail.com", APP_PASSWORD)),
    (&["163.com"], tls("imap.163.com", "smtp.163.com", AUTHORISATION_CODE)),
    (&["126.com"], tls("imap.126.com", "smtp.126.com", AUTHORISATION_CODE)),
    (&["qq.com", "foxmail.com"], tls("imap.qq.com", "smtp.qq.com", AUTHORISATION_CODE)),
    (&["aliyun.com"], tls("imap.aliyun.com", "smtp.aliyun.com", "")),
    (&["zoho.com"], tls("imap.zoho.com", "smtp.zoho.com", APP_PASSWORD)),
    (&["gmx.de", "gmx.net"], tls("imap.gmx.net", "mail.gmx.net", "turn IMAP on in the settings")),
    (&["web.de"], tls("imap.web.de", "smtp.web.de", "turn IMAP on in the settings")),
    (&["posteo.de"], tls("posteo.de", "posteo.de", "")),
];

const fn tls(imap: &'static str, smtp: &'static str, hint: &'static str) -> KnownServers {
    KnownServers { imap, smtp, starttls: false, hint }
}

const fn starttls(imap: &'static str, smtp: &'static str, hint: &'static str) -> KnownServers {
    KnownServers { imap, smtp, starttls: true, hint }
}

/// Returns the servers of an address, or `None` when its domain is not a known provider.
pub fn find(address: &str) -> Option<KnownServers> {
    let (_, domain) = address.rsplit_once('@')?;
    let known = SERVERS
        .iter()
        .find(|(domains, _)| domains.iter().any(|known| known.eq_ignore_ascii_case(domain)));
    known.map(|(_, servers)| *servers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_found_by_the_domain_of_the_address() {
        assert_eq!(find("ann@GMail.com").unwrap().imap, "imap.gmail.com");
        assert!(find("ann@outlook.com").unwrap().starttls);
        assert_eq!(find("ann@example.com"), None);
        assert_eq!(find("gmail.com"), None);
    }
}
