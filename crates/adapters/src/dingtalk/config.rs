//! The keys of a DingTalk tunnel: the app whose robot receives and sends, and a custom robot
//! that only sends.

use std::sync::Arc;

use monoco_core::config::{ConfigSection, InvalidConfig, SecretSource};
use monoco_core::did::TunnelId;

use super::DingTalkAdapter;
use crate::Adapter;
use crate::chat_config::is_loopback_url;
use crate::egress::EgressTarget;
use crate::registry::{AdapterResources, ProviderConfig};
use crate::setup::{ANY_VALUE, SetupQuestion};

/// The keys of a DingTalk tunnel beside those of every tunnel.
const KEYS: [&str; 16] = [
    "mode",
    "app_key",
    "app_secret",
    "app_secret_file",
    "app_secret_command",
    "robot_code",
    "base_url",
    "oapi_url",
    "file_hosts",
    "robot_token",
    "robot_token_file",
    "robot_token_command",
    "robot_secret",
    "robot_secret_file",
    "robot_secret_command",
    "max_silence_s",
];

/// The host of the API whose failures are HTTP statuses.
const DEFAULT_BASE_URL: &str = "https://api.dingtalk.com";

/// The host of the older API whose failures are error codes in the body.
const DEFAULT_OAPI_URL: &str = "https://oapi.dingtalk.com";

/// How long the server may send no frame, in seconds. It sends one at least every minute.
pub(super) const DEFAULT_MAX_SILENCE_S: u64 = 150;

/// How many hosts `file_hosts` can name.
const MAX_FILE_HOSTS: usize = 16;

/// The configuration of a DingTalk tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DingTalkConfig {
    pub mode: DingTalkMode,
    /// The app. `None`: the tunnel has only a custom robot, and only sends.
    pub app: Option<DingTalkApp>,
    pub base_url: String,
    pub oapi_url: String,
    /// Hosts beside those of DingTalk from which files may be fetched.
    pub file_hosts: Vec<String>,
    /// The custom robot, which posts into one group.
    pub robot: Option<CustomRobot>,
    /// How long the stream may be silent before it is replaced, in seconds.
    pub max_silence_s: u64,
}

/// How messages of the app's robot arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DingTalkMode {
    /// Through a WebSocket that the courier opens.
    #[default]
    Stream,
    /// DingTalk posts them to the webhook listener.
    Webhook,
}

/// The credentials of an app with a robot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DingTalkApp {
    pub key: String,
    pub secret: SecretSource,
    /// The robot's code; the app's key unless the console shows another one.
    pub robot_code: String,
}

/// A custom robot of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomRobot {
    /// The value of `access_token` in the robot's URL.
    pub token: SecretSource,
    /// The key of the signature, when the robot requires one.
    pub secret: Option<SecretSource>,
}

impl ProviderConfig for DingTalkConfig {
    const PROVIDER: &'static str = "dingtalk";

    const QUESTIONS: &'static [SetupQuestion] = &[
        SetupQuestion::optional("mode", "how to receive: stream or webhook (HTTP callbacks)")
            .with_default("stream"),
        SetupQuestion::optional("app_key", "Client ID (AppKey); none for a custom robot"),
        SetupQuestion::required("app_secret", "Client Secret (AppSecret)")
            .secret()
            .only_if("app_key", ANY_VALUE),
        SetupQuestion::optional("robot_code", "robot code").with_default("the Client ID"),
        SetupQuestion::optional("robot_token", "access token of a custom robot").secret(),
        SetupQuestion::optional("robot_secret", "signature key of the custom robot (SEC…)")
            .secret(),
    ];

    fn parse(section: &ConfigSection<'_>, enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&KEYS)?;
        let modes = [("stream", DingTalkMode::Stream), ("webhook", DingTalkMode::Webhook)];
        let config = Self {
            mode: section.one_of("mode", &modes)?.unwrap_or_default(),
            app: read_app(section)?,
            base_url: read_url(section, "base_url", DEFAULT_BASE_URL)?,
            oapi_url: read_url(section, "oapi_url", DEFAULT_OAPI_URL)?,
            file_hosts: read_file_hosts(section)?,
            robot: read_robot(section)?,
            max_silence_s: section.number_or(
                "max_silence_s",
                5..=DEFAULT_MAX_SILENCE_S,
                DEFAULT_MAX_SILENCE_S,
            )?,
        };
        if enabled {
            config.check(section)?;
        }
        Ok(config)
    }

    fn mode(&self) -> &'static str {
        match (&self.app, self.mode) {
            (None, _) => "send",
            (Some(_), DingTalkMode::Stream) => "stream",
            (Some(_), DingTalkMode::Webhook) => "push",
        }
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let app = |config: &Self| config.app.clone();
        let robot = |config: &Self| config.robot.clone();
        let keys = [
            ("mode", self.mode != new.mode),
            ("app_key", app(self).map(|app| app.key) != app(new).map(|app| app.key)),
            ("app_secret", app(self).map(|app| app.secret) != app(new).map(|app| app.secret)),
            (
                "robot_code",
                app(self).map(|app| app.robot_code) != app(new).map(|app| app.robot_code),
            ),
            ("base_url", self.base_url != new.base_url),
            ("oapi_url", self.oapi_url != new.oapi_url),
            ("file_hosts", self.file_hosts != new.file_hosts),
            ("robot_token", robot(self).map(|it| it.token) != robot(new).map(|it| it.token)),
            (
                "robot_secret",
                robot(self).and_then(|it| it.secret) != robot(new).and_then(|it| it.secret),
            ),
            ("max_silence_s", self.max_silence_s != new.max_silence_s),
        ];
        keys.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    fn build(
        &self,
        id: TunnelId,
        resources: &AdapterResources,
    ) -> Result<Arc<dyn Adapter>, String> {
        let adapter = DingTalkAdapter::new(id, self.clone(), resources.egress.clone()?)?;
        Ok(Arc::new(adapter))
    }
}

impl DingTalkConfig {
    /// Checks that the tunnel can run with this config.
    fn check(&self, section: &ConfigSection<'_>) -> Result<(), InvalidConfig> {
        let Some(app) = &self.app else {
            if self.robot.is_none() {
                let why = "is missing; set `app_key` and `app_secret` of the app, or `robot_token` \
                           of a custom robot";
                return Err(section.invalid_key("app_key", why));
            }
            return Ok(());
        };
        if !app.secret.is_given() {
            let why = "is missing; set it, `app_secret_file` or `app_secret_command`";
            return Err(section.invalid_key("app_secret", why));
        }
        // The signature of a request is checked before anything else is done with it.
        let is_command = matches!(app.secret, SecretSource::Command(_));
        if self.mode == DingTalkMode::Webhook && is_command {
            let why = "cannot be used with `mode: webhook`, which checks a signature with it for \
                       each request; use `app_secret` or `app_secret_file`";
            return Err(section.invalid_key("app_secret_command", why));
        }
        Ok(())
    }

    /// Whether the API is an emulator on this machine, so that the URLs that it returns may
    /// name this machine too.
    pub(super) fn is_local(&self) -> bool {
        is_loopback_url(&self.base_url)
    }
}

/// Reads the app. Only its key decides whether there is one.
fn read_app(section: &ConfigSection<'_>) -> Result<Option<DingTalkApp>, InvalidConfig> {
    let secret = section.secret_source("app_secret")?;
    let robot_code = section.text("robot_code")?.filter(|code| !code.is_empty());
    let Some(key) = section.text("app_key")?.filter(|key| !key.trim().is_empty()) else {
        for (key, given) in [("app_secret", secret.is_some()), ("robot_code", robot_code.is_some())]
        {
            if given {
                let why = "needs the app that it belongs to; set `app_key`";
                return Err(section.invalid_key(key, why));
            }
        }
        return Ok(None);
    };
    let missing = || SecretSource::Value(monoco_core::config::Secret::default());
    let robot_code = robot_code.unwrap_or_else(|| key.clone());
    Ok(Some(DingTalkApp { key, secret: secret.unwrap_or_else(missing), robot_code }))
}

fn read_robot(section: &ConfigSection<'_>) -> Result<Option<CustomRobot>, InvalidConfig> {
    let token = section.secret_source("robot_token")?.filter(SecretSource::is_given);
    let secret = section.secret_source("robot_secret")?.filter(SecretSource::is_given);
    if secret.is_some() && token.is_none() {
        let why = "needs the robot that it belongs to; set `robot_token`";
        return Err(section.invalid_key("robot_secret", why));
    }
    Ok(token.map(|token| CustomRobot { token, secret }))
}

/// Reads the address of an API. Plain http is only for emulators on this machine.
fn read_url(
    section: &ConfigSection<'_>,
    key: &'static str,
    default: &str,
) -> Result<String, InvalidConfig> {
    let url = section.text(key)?.unwrap_or_else(|| default.to_owned());
    let url = url.trim_end_matches('/').to_owned();
    match EgressTarget::parse(&url, is_loopback_url(&url)) {
        Ok(_) => Ok(url),
        Err(error) => Err(section.invalid_key(key, error.to_string())),
    }
}

fn read_file_hosts(section: &ConfigSection<'_>) -> Result<Vec<String>, InvalidConfig> {
    let values = section.values("file_hosts")?.unwrap_or_default();
    if values.len() > MAX_FILE_HOSTS {
        let why = format!("{} hosts; {MAX_FILE_HOSTS} is the most", values.len());
        return Err(section.invalid_key("file_hosts", why));
    }
    let is_host = |text: &str| {
        let name = text.strip_prefix('.').unwrap_or(text);
        name.contains('.') && name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
    };
    let read = |value: &monoco_core::config::ConfigValue<'_>| {
        value.checked(|text| match is_host(text) {
            true => Ok(text.to_ascii_lowercase()),
            false => Err("expected a host such as files.example.com, or .example.com for all \
                          hosts of a domain"),
        })
    };
    values.iter().map(read).collect()
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
            Ok(Secret::new("from-file"))
        }
    }

    fn parse(yaml: &str) -> Result<DingTalkConfig, String> {
        let file = ConfigFile::parse(yaml).unwrap();
        let section = file.root(&NoEnvironment).unwrap();
        DingTalkConfig::parse(&section, true).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = parse("app_key: dingapp\napp_secret: s3cret").unwrap();
        assert_eq!(config.mode, DingTalkMode::Stream);
        let app = config.app.as_ref().unwrap();
        assert_eq!((app.key.as_str(), app.robot_code.as_str()), ("dingapp", "dingapp"));
        assert_eq!(config.base_url, "https://api.dingtalk.com");
        assert_eq!(config.oapi_url, "https://oapi.dingtalk.com");
        assert_eq!((config.robot.is_none(), config.is_local()), (true, false));
        assert_eq!(ProviderConfig::mode(&config), "stream");
        assert!(!format!("{config:?}").contains("s3cret"));
    }

    #[test]
    fn custom_robot_alone_only_sends() {
        let config = parse("robot_token: t0ken\nrobot_secret_file: /key").unwrap();
        assert_eq!(ProviderConfig::mode(&config), "send");
        let secret = config.robot.unwrap().secret;
        assert_eq!(secret, Some(SecretSource::Value(Secret::new("from-file"))));
    }

    #[test]
    fn an_emulator_on_this_machine_may_use_http() {
        let config = |url: &str| parse(&format!("app_key: a\napp_secret: b\nbase_url: {url}"));
        for url in ["http://127.0.0.1:7001/", "http://localhost:7001", "http://[::1]:7001"] {
            assert!(config(url).unwrap().is_local(), "{url}");
        }
        assert_eq!(config("http://127.0.0.1:7001/").unwrap().base_url, "http://127.0.0.1:7001");
        assert!(!config("https://api.example.com").unwrap().is_local());
        for url in ["http://api.dingtalk.com", "http://192.168.0.1", "ftp://x.example.com", "api"] {
            assert!(config(url).unwrap_err().starts_with("base_url: "), "{url}");
        }
    }

    #[test]
    fn errors_name_the_key_and_the_next_step() {
        for (yaml, want) in [
            ("mode: stream", "app_key: is missing; set `app_key` and `app_secret`"),
            ("app_key: a", "app_secret: is missing; set it, `app_secret_file`"),
            ("app_secret: b", "app_secret: needs the app that it belongs to; set `app_key`"),
            ("robot_code: b", "robot_code: needs the app that it belongs to; set `app_key`"),
            ("robot_secret: b", "robot_secret: needs the robot that it belongs to"),
            ("app_key: a\napp_secret: b\nmode: socket", "mode: "),
            ("app_key: a\napp_secret: b\nap_key: c", "unknown key `ap_key`"),
            (
                "app_key: a\nmode: webhook\napp_secret_command: [pass, show, x]",
                "app_secret_command: cannot be used with `mode: webhook`",
            ),
            ("app_key: a\napp_secret: b\nfile_hosts: ['https://x']", "file_hosts"),
        ] {
            let error = parse(yaml).unwrap_err();
            assert!(error.contains(want), "{yaml}: {error}");
        }
        let file = ConfigFile::parse("mode: stream").unwrap();
        let section = file.root(&NoEnvironment).unwrap();
        assert!(DingTalkConfig::parse(&section, false).is_ok(), "a disabled tunnel may be empty");
    }

    #[test]
    fn changed_keys_are_named() {
        let old = parse("app_key: a\napp_secret: b").unwrap();
        let new = parse("app_key: a\napp_secret: c\nrobot_token: t\nmode: webhook").unwrap();
        assert_eq!(ProviderConfig::changed_keys(&old, &new), ["mode", "app_secret", "robot_token"]);
        assert!(ProviderConfig::changed_keys(&old, &old.clone()).is_empty());
    }
}
