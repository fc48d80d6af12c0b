//! The keys of an e-mail account: its servers and login, which mails are fetched, and what
//! happens to them.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::config::{ConfigSection, ConfigValue, InvalidConfig, SecretSource};
use monoco_core::did::{TunnelId, lower_case_domain};
use monoco_core::email::forward::ForwardRule;
use monoco_core::letter::check_address;
use monoco_core::time::Timestamp;

use super::EmailAccountAdapter;
use crate::Adapter;
use crate::net::{MailServer, ProxyUrl, TlsMode};
use crate::registry::{AdapterResources, ProviderConfig};
use crate::setup::SetupQuestion;

/// The keys of an e-mail tunnel beside those of every tunnel.
const KEYS: [&str; 21] = [
    "address",
    "description",
    "username",
    "password",
    "password_file",
    "password_command",
    "auth",
    "imap",
    "smtp",
    "proxy",
    "authserv_id",
    "folders",
    "backfill",
    "deliver",
    "forward",
    "mark_seen",
    "poll_s",
    "idle",
    "max_mail_mb",
    "from_name",
    "sent_folder",
];

/// How many folders one account can watch. Each costs a command per poll.
const MAX_FOLDERS: usize = 32;

/// Longest name of a folder, in bytes.
const MAX_FOLDER_BYTES: usize = 255;

/// Largest number of mails that `backfill` can name.
const MAX_BACKFILL: u32 = 10_000_000;

/// The configuration of an e-mail account.
#[derive(Clone, Debug, PartialEq)]
pub struct EmailConfig {
    /// The address of the account, with its domain in lower case.
    pub address: String,
    /// A note for people.
    pub description: Option<String>,
    /// The name for the login at both servers; default `address`.
    pub username: String,
    /// The password or the OAuth 2 token. `None` only in tunnels that are not enabled.
    pub password: Option<SecretSource>,
    /// How to log in; `None`: the best way that the server offers, but never XOAUTH2.
    pub auth: Option<MailAuth>,
    pub imap: MailServer,
    /// The server that sends. Without it the account only receives.
    pub smtp: Option<MailServer>,
    /// The name in the `Authentication-Results` header that our server adds. Without it no
    /// sender counts as verified.
    pub authserv_id: Option<String>,
    /// The folders that are watched; the first one without delay.
    pub folders: Vec<String>,
    pub backfill: Backfill,
    /// Whether mails become messages of the hub.
    pub deliver: bool,
    pub forward: Vec<ForwardRule>,
    /// Whether registered mails are marked as seen on the server.
    pub mark_seen: bool,
    /// Time between two checks of folders that the server does not announce mails of.
    pub poll: Duration,
    /// Whether IDLE is used when the server has it.
    pub idle: bool,
    /// Mails over this size are registered with their header only, in bytes.
    pub max_mail: u64,
    /// The display name of the address in mails that are sent.
    pub from_name: Option<String>,
    /// The folder that gets a copy of each mail that is sent.
    pub sent_folder: Option<String>,
}

/// How to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailAuth {
    /// SASL PLAIN (RFC 4616).
    Plain,
    /// The command LOGIN of IMAP, the mechanism LOGIN of SMTP.
    Login,
    /// An OAuth 2 access token.
    Xoauth2,
}

/// Which mails are registered at the first connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backfill {
    /// The newest mail, and those that arrive later.
    New,
    All,
    /// This number of the newest mails.
    Newest(u32),
    /// Mails that the server received at this time or later.
    Since(Timestamp),
}

impl ProviderConfig for EmailConfig {
    const PROVIDER: &'static str = "email";

    const QUESTIONS: &'static [SetupQuestion] = &[
        SetupQuestion::required("address", "address of the account"),
        SetupQuestion::optional("username", "name for the login").with_default("the address"),
        SetupQuestion::required("imap.host", "IMAP server"),
        SetupQuestion::optional("smtp.host", "SMTP server; without it the account only receives"),
        SetupQuestion::required("password", "password").secret(),
    ];

    const LIVE_KEYS: &'static [&'static str] =
        &["description", "authserv_id", "deliver", "forward", "from_name", "sent_folder"];

    fn parse(section: &ConfigSection<'_>, enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&KEYS)?;
        let proxy = section.parsed::<ProxyUrl>("proxy")?;
        let address = read_address(section)?;
        let smtp =
            section.has("smtp").then(|| read_server(section, "smtp", [465, 587, 25], &proxy));
        let config = Self {
            description: section.text("description")?,
            username: section.text("username")?.unwrap_or_else(|| address.clone()),
            address,
            password: section.secret_source("password")?,
            auth: section.one_of(
                "auth",
                &[
                    ("plain", MailAuth::Plain),
                    ("login", MailAuth::Login),
                    ("xoauth2", MailAuth::Xoauth2),
                ],
            )?,
            imap: read_server(section, "imap", [993, 143, 143], &proxy)?,
            smtp: smtp.transpose()?,
            authserv_id: section.text("authserv_id")?,
            folders: read_folders(section)?,
            backfill: read_backfill(section)?,
            deliver: section.flag("deliver")?.unwrap_or(true),
            forward: ForwardRule::read_all(section, "forward")?,
            mark_seen: section.flag("mark_seen")?.unwrap_or(false),
            poll: Duration::from_secs(section.number_or("poll_s", 10..=86_400, 60)?),
            idle: section.flag("idle")?.unwrap_or(true),
            max_mail: section.number_or::<u64>("max_mail_mb", 1..=1024, 100)? << 20,
            from_name: section.text("from_name")?,
            sent_folder: read_folder(section.value("sent_folder")?)?,
        };
        if enabled {
            config.check(section)?;
        }
        Ok(config)
    }

    fn mode(&self) -> &'static str {
        if self.idle { "idle" } else { "poll" }
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let keys = [
            ("address", self.address != new.address),
            ("description", self.description != new.description),
            ("username", self.username != new.username),
            ("password", self.password != new.password),
            ("auth", self.auth != new.auth),
            ("imap", self.imap != new.imap),
            ("smtp", self.smtp != new.smtp),
            ("authserv_id", self.authserv_id != new.authserv_id),
            ("folders", self.folders != new.folders),
            ("backfill", self.backfill != new.backfill),
            ("deliver", self.deliver != new.deliver),
            ("forward", self.forward != new.forward),
            ("mark_seen", self.mark_seen != new.mark_seen),
            ("poll_s", self.poll != new.poll),
            ("idle", self.idle != new.idle),
            ("max_mail_mb", self.max_mail != new.max_mail),
            ("from_name", self.from_name != new.from_name),
            ("sent_folder", self.sent_folder != new.sent_folder),
        ];
        keys.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    fn build(
        &self,
        id: TunnelId,
        resources: &AdapterResources,
    ) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(EmailAccountAdapter::new(id, self.clone(), resources.envelope_key.clone())))
    }
}

impl EmailConfig {
    /// Checks that the account can run with this config.
    fn check(&self, section: &ConfigSection<'_>) -> Result<(), InvalidConfig> {
        if !self.password.as_ref().is_some_and(SecretSource::is_given) {
            let why = "is missing; set it, `password_file` or `password_command`";
            return Err(section.invalid_key("password", why));
        }
        if self.smtp.is_none() {
            for (key, needed) in
                [("forward", !self.forward.is_empty()), ("sent_folder", self.sent_folder.is_some())]
            {
                if needed {
                    let why = "needs a server that sends; set `smtp`";
                    return Err(section.invalid_key(key, why));
                }
            }
        }
        Ok(())
    }
}

fn read_address(section: &ConfigSection<'_>) -> Result<String, InvalidConfig> {
    let value = section.required("address")?;
    value.checked(|text| match check_address(text) {
        Ok(()) if text.contains('@') => Ok(lower_case_domain(text)),
        _ => Err(format!("expected an address such as team@example.com, found {}", value.quoted())),
    })
}

/// Reads a server. `ports` are the defaults for implicit TLS, STARTTLS and no TLS.
fn read_server(
    section: &ConfigSection<'_>,
    key: &'static str,
    ports: [u16; 3],
    proxy: &Option<ProxyUrl>,
) -> Result<MailServer, InvalidConfig> {
    if !section.has(key) {
        let why = "is missing; expected a server such as { host: mail.example.com }";
        return Err(section.invalid_key(key, why));
    }
    let section = section.section(key)?;
    section.deny_unknown_keys(&["host", "port", "tls", "ca_file"])?;
    let modes = [
        ("implicit", TlsMode::Implicit),
        ("starttls", TlsMode::StartTls),
        ("none", TlsMode::Plain),
    ];
    let tls = section.one_of("tls", &modes)?.unwrap_or(TlsMode::Implicit);
    let default_port = match tls {
        TlsMode::Implicit => ports[0],
        TlsMode::StartTls => ports[1],
        TlsMode::Plain => ports[2],
    };
    let server = MailServer {
        host: section.required("host")?.checked(read_host)?,
        port: section.number_or("port", 1..=65_535, default_port)?,
        tls,
        ca_file: section.file_path("ca_file")?,
        proxy: proxy.clone(),
    };
    // Names that this machine resolves to itself are found out when the connection is opened.
    if tls == TlsMode::Plain && !server.is_loopback_name() {
        let is_address = server.host.parse::<IpAddr>().is_ok();
        if is_address || proxy.is_some() || server.host.contains('.') {
            let why = "`none` is only for servers on this machine; use implicit or starttls";
            return Err(section.invalid_key("tls", why));
        }
    }
    if tls == TlsMode::Plain && proxy.is_some() {
        let why = "`none` cannot be used through a proxy; use implicit or starttls";
        return Err(section.invalid_key("tls", why));
    }
    Ok(server)
}

fn read_host(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_alphanumeric() || "-._".contains(c);
    let is_name = (1..=253).contains(&text.len()) && text.chars().all(good);
    match is_name || text.parse::<IpAddr>().is_ok() {
        true => Ok(text.to_owned()),
        false => Err("expected the name or the IP address of a server, without a port".to_owned()),
    }
}

fn read_folders(section: &ConfigSection<'_>) -> Result<Vec<String>, InvalidConfig> {
    let Some(values) = section.values("folders")? else { return Ok(vec!["INBOX".to_owned()]) };
    let mut folders = Vec::new();
    for value in values {
        let Some(folder) = read_folder(Some(value.clone()))? else { continue };
        if folders.contains(&folder) {
            return Err(value.invalid(format!("{} is named twice", value.quoted())));
        }
        folders.push(folder);
    }
    if folders.is_empty() || folders.len() > MAX_FOLDERS {
        let why = format!("expected 1 to {MAX_FOLDERS} folders, found {}", folders.len());
        return Err(section.invalid_key("folders", why));
    }
    Ok(folders)
}

fn read_folder(value: Option<ConfigValue<'_>>) -> Result<Option<String>, InvalidConfig> {
    let Some(value) = value else { return Ok(None) };
    let folder = value.text()?;
    if folder.is_empty()
        || folder.len() > MAX_FOLDER_BYTES
        || folder.contains(|c: char| c.is_control() || "*%".contains(c))
    {
        let found = value.quoted();
        return Err(value.invalid(format!("expected the name of a folder, found {found}")));
    }
    // The name INBOX has no case (RFC 9051, section 5.1).
    Ok(Some(if folder.eq_ignore_ascii_case("inbox") { "INBOX".to_owned() } else { folder }))
}

fn read_backfill(section: &ConfigSection<'_>) -> Result<Backfill, InvalidConfig> {
    let Some(value) = section.value("backfill")? else { return Ok(Backfill::New) };
    let text = value.text()?;
    let since = text.strip_prefix("since ").map(|date| match date.contains('T') {
        true => Timestamp::from_rfc3339(date),
        false => Timestamp::from_rfc3339(&format!("{date}T00:00:00Z")),
    });
    match (text.as_str(), since, text.parse()) {
        ("new", ..) => Ok(Backfill::New),
        ("all", ..) => Ok(Backfill::All),
        (_, Some(Ok(at)), _) => Ok(Backfill::Since(at)),
        (_, None, Ok(count)) if (1..=MAX_BACKFILL).contains(&count) => Ok(Backfill::Newest(count)),
        _ => {
            let found = value.quoted();
            Err(value.invalid(format!(
                "expected new, all, a number of mails or a day such as `since 2026-01-31`, \
                 found {found}"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use monoco_core::config::{ConfigEnvironment, ConfigFile, Secret};

    use super::*;

    struct NoEnvironment;

    impl ConfigEnvironment for NoEnvironment {
        fn variable(&self, _name: &str) -> Option<String> {
            None
        }

        fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
            Err("there are no files".to_owned())
        }
    }

    fn parse(yaml: &str) -> Result<EmailConfig, String> {
        let file = ConfigFile::parse(yaml).unwrap();
        let section = file.root(&NoEnvironment).unwrap();
        EmailConfig::parse(&section, true).map_err(|error| error.to_string())
    }

    /// A valid config with one more line.
    fn with(line: &str) -> Result<EmailConfig, String> {
        parse(&format!(
            "address: Team@Example.COM\npassword: secret\nimap: {{host: imap.example.com}}\n{line}"
        ))
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = with("").unwrap();
        assert_eq!(config.address, "Team@example.com");
        assert_eq!(config.username, "Team@example.com");
        assert_eq!((config.imap.port, config.imap.tls), (993, TlsMode::Implicit));
        assert_eq!(config.smtp, None);
        assert_eq!(config.folders, ["INBOX"]);
        assert_eq!(config.backfill, Backfill::New);
        assert_eq!(config.poll, Duration::from_secs(60));
        assert_eq!(config.max_mail, 100 << 20);
        assert!(config.deliver && config.idle && !config.mark_seen);
        assert_eq!(config.mode(), "idle");
        assert_eq!(with("idle: false").unwrap().mode(), "poll");
    }

    #[test]
    fn servers_have_the_ports_of_their_encryption() {
        let smtp = |text: &str| with(&format!("smtp: {{host: localhost{text}}}")).unwrap().smtp;
        assert_eq!(smtp("").unwrap().port, 465);
        assert_eq!(smtp(", tls: starttls").unwrap().port, 587);
        assert_eq!(smtp(", tls: none").unwrap().port, 25);
        assert_eq!(smtp(", tls: none, port: 2525").unwrap().port, 2525);
        let proxied = with("proxy: socks5://ann:secret@127.0.0.1:1080").unwrap();
        assert_eq!(format!("{:?}", proxied.imap.proxy), "Some(socks5://127.0.0.1:1080)");
    }

    #[test]
    fn backfill_takes_a_word_a_number_or_a_day() {
        let backfill = |text: &str| with(&format!("backfill: {text}")).map(|c| c.backfill);
        assert_eq!(backfill("all"), Ok(Backfill::All));
        assert_eq!(backfill("500"), Ok(Backfill::Newest(500)));
        let day = Timestamp::from_rfc3339("2026-01-31T00:00:00Z").unwrap();
        assert_eq!(backfill("since 2026-01-31"), Ok(Backfill::Since(day)));
        assert_eq!(backfill("since 2026-01-31T01:00:00+01:00"), Ok(Backfill::Since(day)));
        for text in ["0", "-1", "news", "since", "since yesterday", "since 2026-02-30"] {
            let error = backfill(text).unwrap_err();
            assert!(error.starts_with("backfill: expected new, all, a number"), "{error}");
        }
    }

    #[test]
    fn invalid_values_say_what_is_expected() {
        for (line, expected) in [
            ("adress: x", "line 4, column 1: unknown key `adress`; did you mean `address`?"),
            ("password_file: /secret", "password_file: `password` is set as well; set only one"),
            ("password_command: pass", "password_command: `password` is set as well; set only"),
            ("auth: oauth", "auth: expected plain, login or xoauth2, found \"oauth\""),
            ("smtp: {}", "smtp.host: is missing"),
            ("smtp: {host: 'mail.example.com:465'}", "smtp.host: expected the name or the IP"),
            ("smtp: {host: 'https://x'}", "smtp.host: expected the name or the IP address"),
            ("smtp: {host: h, port: 70000}", "smtp.port: expected a number from 1 to 65535"),
            (
                "smtp: {host: h, prot: 1}",
                "line 4, column 17: unknown key `prot`; did you mean `port`",
            ),
            ("smtp: {host: h, tls: ssl}", "smtp.tls: expected implicit, starttls or none, found"),
            (
                "smtp: {host: mail.example.com, tls: none}",
                "smtp.tls: `none` is only for servers on",
            ),
            ("smtp: {host: 192.0.2.1, tls: none}", "smtp.tls: `none` is only for servers on this"),
            ("smtp: {host: h, ca_file: ca.pem}", "smtp.ca_file: expected an absolute path"),
            ("proxy: ftp://x", "proxy: unknown kind of proxy \"ftp\"; expected socks5://"),
            ("folders: []", "folders: expected 1 to 32 folders, found 0"),
            ("folders: [inbox, INBOX]", "folders: \"INBOX\" is named twice"),
            ("folders: ['a*']", "folders: expected the name of a folder, found \"a*\""),
            ("poll_s: 1", "poll_s: expected a number from 10 to 86400, found \"1\""),
            ("max_mail_mb: 0", "max_mail_mb: expected a number from 1 to 1024, found \"0\""),
            ("deliver: maybe", "deliver: expected true or false, found \"maybe\""),
            ("sent_folder: Sent", "sent_folder: needs a server that sends; set `smtp`"),
            ("forward: [{to: [a@b.org]}]", "forward: needs a server that sends; set `smtp`"),
            ("forward: [{to: [x]}]", "forward[0].to: \"x\": expected name@domain"),
        ] {
            let error = with(line).err().unwrap_or_else(|| "ok".to_owned());
            assert!(error.starts_with(expected), "{line}: {error}");
        }
        let error = parse("password: x\nimap: {host: h}").unwrap_err();
        assert_eq!(error, "address: is missing");
        let error = parse("address: team\npassword: x\nimap: {host: h}").unwrap_err();
        assert!(error.starts_with("address: expected an address such as"), "{error}");
        let error = parse("address: a@b.org\nimap: {host: h}").unwrap_err();
        assert!(error.starts_with("password: is missing; set it, `password_file`"), "{error}");
        let error = parse("address: a@b.org\npassword: x").unwrap_err();
        assert!(error.starts_with("imap: is missing; expected a server"), "{error}");
        let proxied = "smtp: {host: localhost, tls: none}\nproxy: http://127.0.0.1:1";
        let error = with(proxied).unwrap_err();
        assert!(error.starts_with("smtp.tls: `none` cannot be used through a proxy"), "{error}");
    }

    #[test]
    fn rules_and_flags_change_without_a_new_connection() {
        let smtp = "smtp: {host: smtp.example.com}\n";
        let old = with(smtp).unwrap();
        let changed = |lines: &str| old.changed_keys(&with(&format!("{smtp}{lines}")).unwrap());
        let live = changed(
            "forward: [{to: [a@b.org]}]\ndeliver: false\nauthserv_id: mx\nfrom_name: Ann\n\
             description: x\nsent_folder: Sent",
        );
        assert_eq!(live.len(), 6);
        assert!(live.iter().all(|key| EmailConfig::LIVE_KEYS.contains(key)), "{live:?}");
        let other = changed(
            "folders: [INBOX, Work]\nbackfill: all\nidle: false\npoll_s: 30\nauth: login\n\
             max_mail_mb: 5\nmark_seen: true\nproxy: http://127.0.0.1:1",
        );
        assert_eq!(other.len(), 9, "{other:?}");
        assert!(!other.iter().any(|key| EmailConfig::LIVE_KEYS.contains(key)), "{other:?}");
        assert_eq!(changed(""), Vec::<&str>::new());
    }

    #[test]
    fn disabled_account_may_lack_its_password() {
        let file = ConfigFile::parse("address: a@b.org\nimap: {host: h}").unwrap();
        let section = file.root(&NoEnvironment).unwrap();
        assert!(EmailConfig::parse(&section, false).is_ok());
    }
}
