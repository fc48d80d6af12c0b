//! The keys of a Lark tunnel: the app that receives and sends, and a custom robot that only sends.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::config::{ConfigSection, InvalidConfig, Secret, SecretSource};
use monoco_core::did::TunnelId;
use monoco_core::rate_limit::Rate;

use super::LarkAdapter;
use crate::Adapter;
use crate::chat_config::{read_base_url, read_catch_up};
use crate::egress::EgressTarget;
use crate::registry::{AdapterResources, ProviderConfig};
use crate::setup::{ANY_VALUE, SetupQuestion};

/// The keys of a Lark tunnel beside those of every tunnel.
const KEYS: [&str; 21] = [
    "mode",
    "host",
    "base_url",
    "app_id",
    "app_secret",
    "app_secret_file",
    "app_secret_command",
    "verification_token",
    "verification_token_file",
    "verification_token_command",
    "encrypt_key",
    "encrypt_key_file",
    "encrypt_key_command",
    "robot_url",
    "robot_url_file",
    "robot_url_command",
    "robot_secret",
    "robot_secret_file",
    "robot_secret_command",
    "catch_up",
    "send_rate",
];

/// Lark accepts about five messages per second for each user and chat.
const DEFAULT_SEND_RATE: Rate = Rate { count: 5, span_ms: 1000 };

/// Lark allows 1,000 calls per minute of most methods. Reactions leave room for messages.
const REACTION_RATE: Rate = Rate { count: 100, span_ms: 60_000 };

/// The configuration of a Lark tunnel.
#[derive(Clone, Debug)]
pub struct LarkConfig {
    pub mode: LarkMode,
    pub host: LarkHost,
    pub base_url: EgressTarget,
    /// The app. `None`: the tunnel has only a custom robot, and only sends.
    pub app: Option<LarkApp>,
    /// The token in events that Lark posts; empty when it is not checked.
    pub verification_token: Secret,
    /// The key of the encryption and of the signatures of events that Lark posts; empty when they
    /// are not encrypted.
    pub encrypt_key: Secret,
    pub robot: Option<LarkRobot>,
    /// How far back the history is read after a gap; `None`: never.
    pub catch_up: Option<Duration>,
    /// How many messages are sent to one chat.
    pub send_rate: Rate,
}

/// How events of the app arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LarkMode {
    /// Through a long connection, which the courier opens.
    #[default]
    Stream,
    /// Lark posts them to the webhook listener.
    Webhook,
}

/// Which of the two services the app belongs to. They have separate accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LarkHost {
    /// The service in China, `open.feishu.cn`.
    #[default]
    Feishu,
    /// The service elsewhere, `open.larksuite.com`.
    Lark,
}

impl LarkHost {
    const fn base_url(self) -> &'static str {
        match self {
            Self::Feishu => "https://open.feishu.cn",
            Self::Lark => "https://open.larksuite.com",
        }
    }
}

/// The credentials of an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LarkApp {
    pub id: String,
    pub secret: SecretSource,
}

/// A custom robot of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LarkRobot {
    /// The webhook of the robot, which ends with a secret.
    pub url: SecretSource,
    /// The key of the signature, when the robot requires one.
    pub secret: Option<SecretSource>,
}

impl ProviderConfig for LarkConfig {
    const PROVIDER: &'static str = "lark";

    const REACTION_RATE: Option<Rate> = Some(REACTION_RATE);

    const QUESTIONS: &'static [SetupQuestion] = &[
        SetupQuestion::optional("host", "which service: feishu (China) or lark (international)")
            .with_default("feishu"),
        SetupQuestion::optional(
            "mode",
            "how to receive: stream (long connection) or webhook (HTTP events)",
        )
        .with_default("stream"),
        SetupQuestion::optional("app_id", "App ID (cli_…); none for a custom robot"),
        SetupQuestion::required("app_secret", "App Secret").secret().only_if("app_id", ANY_VALUE),
        SetupQuestion::required("encrypt_key", "Encrypt Key").secret().only_if("mode", "webhook"),
        SetupQuestion::optional("verification_token", "Verification Token")
            .secret()
            .only_if("mode", "webhook"),
        SetupQuestion::optional("robot_url", "webhook of a custom robot").secret(),
        SetupQuestion::optional("robot_secret", "signature key of the custom robot").secret(),
    ];

    fn parse(section: &ConfigSection<'_>, enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&KEYS)?;
        let modes = [("stream", LarkMode::Stream), ("webhook", LarkMode::Webhook)];
        let hosts = [("feishu", LarkHost::Feishu), ("lark", LarkHost::Lark)];
        let host = section.one_of("host", &hosts)?.unwrap_or_default();
        let config = Self {
            mode: section.one_of("mode", &modes)?.unwrap_or_default(),
            host,
            base_url: read_base_url(section, host.base_url())?,
            app: read_app(section)?,
            verification_token: read_plain(section, "verification_token")?,
            encrypt_key: read_plain(section, "encrypt_key")?,
            robot: read_robot(section)?,
            catch_up: read_catch_up(section)?,
            send_rate: section.parsed("send_rate")?.unwrap_or(DEFAULT_SEND_RATE),
        };
        if enabled {
            config.check(section)?;
        }
        Ok(config)
    }

    fn mode(&self) -> &'static str {
        match (&self.app, self.mode) {
            (None, _) => "send",
            (Some(_), LarkMode::Stream) => "stream",
            (Some(_), LarkMode::Webhook) => "push",
        }
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let id = |config: &Self| config.app.as_ref().map(|app| app.id.clone());
        let secret = |config: &Self| config.app.as_ref().map(|app| app.secret.clone());
        let robot = |config: &Self| config.robot.clone();
        let keys = [
            ("mode", self.mode != new.mode),
            ("host", self.host != new.host),
            ("base_url", self.base_url != new.base_url),
            ("app_id", id(self) != id(new)),
            ("app_secret", secret(self) != secret(new)),
            ("verification_token", self.verification_token != new.verification_token),
            ("encrypt_key", self.encrypt_key != new.encrypt_key),
            ("robot_url", robot(self).map(|it| it.url) != robot(new).map(|it| it.url)),
            (
                "robot_secret",
                robot(self).and_then(|it| it.secret) != robot(new).and_then(|it| it.secret),
            ),
            ("catch_up", self.catch_up != new.catch_up),
            ("send_rate", self.send_rate != new.send_rate),
        ];
        keys.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    fn build(
        &self,
        id: TunnelId,
        resources: &AdapterResources,
    ) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(LarkAdapter::new(id, self.clone(), resources.egress.clone()?)))
    }
}

impl LarkConfig {
    /// Checks that the tunnel can run with this config.
    fn check(&self, section: &ConfigSection<'_>) -> Result<(), InvalidConfig> {
        let Some(app) = &self.app else {
            if self.robot.is_none() {
                let why = "is missing; set `app_id` and `app_secret` of the app, or `robot_url` \
                           of a custom robot";
                return Err(section.invalid_key("app_id", why));
            }
            return Ok(());
        };
        if !app.secret.is_given() {
            let why = "is missing; set it, `app_secret_file` or `app_secret_command`";
            return Err(section.invalid_key("app_secret", why));
        }
        let is_open =
            self.verification_token.expose().is_empty() && self.encrypt_key.expose().is_empty();
        if self.mode == LarkMode::Webhook && is_open {
            let why = "is missing; `mode: webhook` needs the Encrypt Key of the app (Events & \
                       Callbacks, Encryption Strategy), or at least `verification_token`";
            return Err(section.invalid_key("encrypt_key", why));
        }
        Ok(())
    }
}

/// Reads the app. Only its id decides whether there is one.
fn read_app(section: &ConfigSection<'_>) -> Result<Option<LarkApp>, InvalidConfig> {
    let secret = section.secret_source("app_secret")?;
    let Some(id) =
        section.text("app_id")?.map(|id| id.trim().to_owned()).filter(|id| !id.is_empty())
    else {
        if secret.is_some() {
            let why = "needs the app that it belongs to; set `app_id`";
            return Err(section.invalid_key("app_secret", why));
        }
        return Ok(None);
    };
    let is_id = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !id.starts_with("cli_") || !id.chars().all(is_id) || id.len() > 64 {
        let why = "not the id of an app; expected one such as cli_a1b2c3d4e5f60708";
        return Err(section.invalid_key("app_id", why));
    }
    let secret = secret.unwrap_or_else(|| SecretSource::Value(Secret::default()));
    Ok(Some(LarkApp { id, secret }))
}

fn read_robot(section: &ConfigSection<'_>) -> Result<Option<LarkRobot>, InvalidConfig> {
    let url = section.secret_source("robot_url")?.filter(SecretSource::is_given);
    let secret = section.secret_source("robot_secret")?.filter(SecretSource::is_given);
    if secret.is_some() && url.is_none() {
        let why = "needs the robot that it belongs to; set `robot_url`";
        return Err(section.invalid_key("robot_secret", why));
    }
    if let Some(SecretSource::Value(url)) = &url
        && !url.expose().starts_with("http")
    {
        let why = "expected the whole webhook of the robot, such as \
                   https://open.feishu.cn/open-apis/bot/v2/hook/…";
        return Err(section.invalid_key("robot_url", why));
    }
    Ok(url.map(|url| LarkRobot { url, secret }))
}

/// Reads a secret that is needed for every request, so that a command cannot give it.
fn read_plain(section: &ConfigSection<'_>, key: &'static str) -> Result<Secret, InvalidConfig> {
    let command = match key {
        "encrypt_key" => "encrypt_key_command",
        _ => "verification_token_command",
    };
    if section.has(command) {
        let why = format!("is needed for every request; set `{key}` or `{key}_file`");
        return Err(section.invalid_key(command, why));
    }
    section.secret(key)
}

#[cfg(test)]
mod tests;
