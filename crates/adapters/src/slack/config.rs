//! The keys of a Slack tunnel: how it receives, its tokens, and what it reads after a gap.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::config::{ConfigSection, InvalidConfig, Secret, SecretSource};
use monoco_core::did::TunnelId;
use monoco_core::rate_limit::Rate;

use super::SlackAdapter;
use crate::Adapter;
use crate::chat_config::{read_base_url, read_catch_up};
use crate::egress::EgressTarget;
use crate::registry::{AdapterResources, ProviderConfig};
use crate::setup::SetupQuestion;

/// The keys of a Slack tunnel beside those of every tunnel.
const KEYS: [&str; 15] = [
    "mode",
    "app_token",
    "app_token_file",
    "app_token_command",
    "bot_token",
    "bot_token_file",
    "bot_token_command",
    "signing_secret",
    "signing_secret_file",
    "signing_secret_command",
    "base_url",
    "catch_up",
    "send_rate",
    "bots",
    "max_silence_s",
];

const DEFAULT_BASE_URL: &str = "https://slack.com/api/";

/// How long Slack, which pings several times per minute, may send nothing of its own, in seconds.
pub(super) const DEFAULT_MAX_SILENCE_S: u64 = 120;

/// Slack accepts about one message per second in each chat.
const DEFAULT_SEND_RATE: Rate = Rate { count: 1, span_ms: 1000 };

/// Slack accepts at least 50 calls of reactions.add per minute (tier 3).
const REACTION_RATE: Rate = Rate { count: 50, span_ms: 60_000 };

/// The configuration of a Slack tunnel.
#[derive(Clone, Debug)]
pub struct SlackConfig {
    pub mode: SlackMode,
    /// The app-level token `xapp-…`, which opens Socket Mode connections.
    pub app_token: Option<SecretSource>,
    /// The bot token `xoxb-…`, for everything else. `None` only in tunnels that are not enabled.
    pub bot_token: Option<SecretSource>,
    /// The key of the signatures of the Events API; empty in Socket Mode.
    pub signing_secret: Secret,
    pub base_url: EgressTarget,
    /// How far back the history is read after a gap; `None`: never.
    pub catch_up: Option<Duration>,
    /// How many messages are sent to one chat.
    pub send_rate: Rate,
    /// Whether messages of other bots are received.
    pub accepts_bots: bool,
    /// How long the socket may be silent before it is replaced, in seconds.
    pub max_silence_s: u64,
}

/// How a Slack tunnel receives events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlackMode {
    /// Socket Mode: through a WebSocket that the adapter opens.
    Socket,
    /// The Events API: Slack posts to the webhook listener.
    Webhook,
}

impl SlackMode {
    /// Returns the name of the mode in the status of the tunnel.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Webhook => "push",
        }
    }
}

impl ProviderConfig for SlackConfig {
    const PROVIDER: &'static str = "slack";

    const REACTION_RATE: Option<Rate> = Some(REACTION_RATE);

    const QUESTIONS: &'static [SetupQuestion] = &[
        SetupQuestion::optional(
            "mode",
            "how to receive: socket (Socket Mode) or webhook (Events API)",
        )
        .with_default("socket"),
        SetupQuestion::required("app_token", "app-level token (xapp-…)")
            .secret()
            .only_if("mode", "socket"),
        SetupQuestion::required("signing_secret", "signing secret")
            .secret()
            .only_if("mode", "webhook"),
        SetupQuestion::required("bot_token", "bot token (xoxb-…)").secret(),
    ];

    fn parse(section: &ConfigSection<'_>, enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&KEYS)?;
        let modes = [("socket", SlackMode::Socket), ("webhook", SlackMode::Webhook)];
        let config = Self {
            mode: section.one_of("mode", &modes)?.unwrap_or(SlackMode::Socket),
            app_token: section.secret_source("app_token")?,
            bot_token: section.secret_source("bot_token")?,
            signing_secret: read_signing_secret(section)?,
            base_url: read_base_url(section, DEFAULT_BASE_URL)?,
            catch_up: read_catch_up(section)?,
            send_rate: section.parsed("send_rate")?.unwrap_or(DEFAULT_SEND_RATE),
            accepts_bots: section
                .one_of("bots", &[("ignore", false), ("accept", true)])?
                .unwrap_or(false),
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
        self.mode.name()
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let keys = [
            ("mode", self.mode != new.mode),
            ("app_token", self.app_token != new.app_token),
            ("bot_token", self.bot_token != new.bot_token),
            ("signing_secret", self.signing_secret != new.signing_secret),
            ("base_url", self.base_url != new.base_url),
            ("catch_up", self.catch_up != new.catch_up),
            ("send_rate", self.send_rate != new.send_rate),
            ("bots", self.accepts_bots != new.accepts_bots),
            ("max_silence_s", self.max_silence_s != new.max_silence_s),
        ];
        keys.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    fn build(
        &self,
        id: TunnelId,
        resources: &AdapterResources,
    ) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(SlackAdapter::new(id, self.clone(), resources.egress.clone()?)?))
    }
}

impl SlackConfig {
    /// Checks that a tunnel can run with this config.
    fn check(&self, section: &ConfigSection<'_>) -> Result<(), InvalidConfig> {
        check_token(section, "bot_token", &self.bot_token, "xoxb-")?;
        match self.mode {
            SlackMode::Socket => check_token(section, "app_token", &self.app_token, "xapp-"),
            SlackMode::Webhook if self.signing_secret.expose().trim().is_empty() => {
                let why = "is missing; `mode: webhook` needs the signing secret of the app \
                           (Basic Information), or `signing_secret_file`";
                Err(section.invalid_key("signing_secret", why))
            }
            SlackMode::Webhook => Ok(()),
        }
    }
}

/// Checks that a token is given and is of the right kind. Errors never repeat the token.
fn check_token(
    section: &ConfigSection<'_>,
    key: &'static str,
    source: &Option<SecretSource>,
    prefix: &str,
) -> Result<(), InvalidConfig> {
    let secret = match source {
        Some(SecretSource::Command(_)) => return Ok(()),
        Some(SecretSource::Value(secret)) => secret.expose(),
        None => "",
    };
    if secret.is_empty() {
        let why = format!("is missing; set it, `{key}_file` or `{key}_command`");
        return Err(section.invalid_key(key, why));
    }
    let plain = secret.bytes().all(|byte| byte.is_ascii_graphic());
    if !secret.starts_with(prefix) || !plain {
        let why = format!("not a token of this kind; expected one that starts with {prefix}");
        return Err(section.invalid_key(key, why));
    }
    Ok(())
}

/// Reads the signing secret. Requests are verified without waiting, so a command cannot give it.
fn read_signing_secret(section: &ConfigSection<'_>) -> Result<Secret, InvalidConfig> {
    if section.has("signing_secret_command") {
        let why = "the signing secret is needed for every request; \
                   set `signing_secret` or `signing_secret_file`";
        return Err(section.invalid_key("signing_secret_command", why));
    }
    section.secret("signing_secret")
}

#[cfg(test)]
mod tests;
