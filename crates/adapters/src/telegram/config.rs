//! The keys of a Telegram tunnel: its bot, how it receives, and how fast it sends.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::config::{ConfigSection, InvalidConfig, Secret, SecretSource};
use monoco_core::did::TunnelId;
use monoco_core::rate_limit::Rate;

use super::TelegramAdapter;
use super::client::is_token;
use crate::Adapter;
use crate::chat_config::{is_loopback_url, read_base_url};
use crate::egress::EgressTarget;
use crate::registry::{AdapterResources, ProviderConfig};
use crate::setup::SetupQuestion;

/// The keys of a Telegram tunnel beside those of every tunnel.
const KEYS: [&str; 13] = [
    "mode",
    "token",
    "token_file",
    "token_command",
    "base_url",
    "poll_s",
    "delete_webhook",
    "secret_token",
    "secret_token_file",
    "secret_token_command",
    "webhook_url",
    "send_rate",
    "group_rate",
];

const DEFAULT_BASE_URL: &str = "https://api.telegram.org";

/// The longest poll that Telegram's server allows, in seconds.
const MAX_POLL_S: u64 = 50;

/// Longest secret of a webhook, in characters.
const MAX_SECRET_CHARS: usize = 256;

/// Telegram accepts about one message per second in each chat.
const DEFAULT_SEND_RATE: Rate = Rate { count: 1, span_ms: 1000 };

/// Telegram accepts 20 messages per minute in each group.
const DEFAULT_GROUP_RATE: Rate = Rate { count: 20, span_ms: 60_000 };

/// Reactions count as calls of the bot; one per second leaves room for messages.
const REACTION_RATE: Rate = Rate { count: 1, span_ms: 1000 };

/// The configuration of a Telegram tunnel.
#[derive(Clone, Debug)]
pub struct TelegramConfig {
    pub mode: TelegramMode,
    /// The bot token. `None` only in tunnels that are not enabled.
    pub token: Option<SecretSource>,
    pub base_url: EgressTarget,
    /// How long Telegram waits for an update.
    pub poll: Duration,
    /// Whether a webhook that is set for the bot is removed, so that the tunnel can poll.
    pub delete_webhook: bool,
    /// The secret in the header of webhook requests; empty with `mode: poll`.
    pub secret_token: Secret,
    /// The public URL of the webhook, when the tunnel sets it.
    pub webhook_url: Option<String>,
    pub rates: TelegramRates,
}

/// How many messages are sent to one chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TelegramRates {
    pub chat: Rate,
    /// Beside that, for groups and channels.
    pub group: Rate,
}

/// How a Telegram tunnel receives updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TelegramMode {
    /// Long polling: the courier asks.
    Poll,
    /// Telegram posts to the webhook listener.
    Webhook,
}

impl TelegramMode {
    /// Returns the name of the mode in the status of the tunnel.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Webhook => "push",
        }
    }
}

impl ProviderConfig for TelegramConfig {
    const PROVIDER: &'static str = "telegram";

    const REACTION_RATE: Option<Rate> = Some(REACTION_RATE);

    const LIVE_KEYS: &'static [&'static str] = &["send_rate", "group_rate"];

    const QUESTIONS: &'static [SetupQuestion] = &[
        SetupQuestion::optional("mode", "how to receive: poll or webhook").with_default("poll"),
        SetupQuestion::required("token", "bot token of @BotFather (110201543:AAH…)").secret(),
        SetupQuestion::required(
            "secret_token",
            "secret of the webhook, 1 to 256 of A-Z a-z 0-9 _ -",
        )
        .secret()
        .only_if("mode", "webhook"),
        SetupQuestion::optional("webhook_url", "public URL of the webhook; none: set it yourself")
            .only_if("mode", "webhook"),
    ];

    fn parse(section: &ConfigSection<'_>, enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&KEYS)?;
        let modes = [("poll", TelegramMode::Poll), ("webhook", TelegramMode::Webhook)];
        let poll_s: u64 = section.number_or("poll_s", 1..=MAX_POLL_S, MAX_POLL_S)?;
        let rates = TelegramRates {
            chat: section.parsed("send_rate")?.unwrap_or(DEFAULT_SEND_RATE),
            group: section.parsed("group_rate")?.unwrap_or(DEFAULT_GROUP_RATE),
        };
        let config = Self {
            mode: section.one_of("mode", &modes)?.unwrap_or(TelegramMode::Poll),
            token: section.secret_source("token")?,
            base_url: read_base_url(section, DEFAULT_BASE_URL)?,
            poll: Duration::from_secs(poll_s),
            delete_webhook: section.flag("delete_webhook")?.unwrap_or(false),
            secret_token: read_secret_token(section)?,
            webhook_url: read_webhook_url(section)?,
            rates,
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
            ("token", self.token != new.token),
            ("base_url", self.base_url != new.base_url),
            ("poll_s", self.poll != new.poll),
            ("delete_webhook", self.delete_webhook != new.delete_webhook),
            ("secret_token", self.secret_token != new.secret_token),
            ("webhook_url", self.webhook_url != new.webhook_url),
            ("send_rate", self.rates.chat != new.rates.chat),
            ("group_rate", self.rates.group != new.rates.group),
        ];
        keys.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    fn build(
        &self,
        id: TunnelId,
        resources: &AdapterResources,
    ) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(TelegramAdapter::new(id, self.clone(), resources.egress.clone()?)))
    }
}

impl TelegramConfig {
    /// Checks that a tunnel can run with this config.
    fn check(&self, section: &ConfigSection<'_>) -> Result<(), InvalidConfig> {
        match &self.token {
            Some(SecretSource::Command(_)) => {}
            Some(SecretSource::Value(token)) if is_token(token.expose()) => {}
            Some(SecretSource::Value(token)) if !token.expose().is_empty() => {
                let why = "not a bot token; expected one such as 110201543:AAH…, as @BotFather \
                           shows it";
                return Err(section.invalid_key("token", why));
            }
            _ => {
                let why = "is missing; set it, `token_file` or `token_command`";
                return Err(section.invalid_key("token", why));
            }
        }
        match self.mode {
            TelegramMode::Poll => {
                for key in ["webhook_url", "secret_token", "secret_token_file"] {
                    if section.has(key) {
                        return Err(section.invalid_key(key, "needs `mode: webhook`"));
                    }
                }
                Ok(())
            }
            TelegramMode::Webhook if self.delete_webhook => {
                Err(section.invalid_key("delete_webhook", "needs `mode: poll`"))
            }
            TelegramMode::Webhook => check_secret_token(section, self.secret_token.expose()),
        }
    }
}

/// Checks the secret of a webhook. Errors never repeat it.
fn check_secret_token(section: &ConfigSection<'_>, secret: &str) -> Result<(), InvalidConfig> {
    if secret.is_empty() {
        let why = "is missing; `mode: webhook` needs the secret that Telegram sends with every \
                   request: set it, or `secret_token_file`";
        return Err(section.invalid_key("secret_token", why));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if secret.len() > MAX_SECRET_CHARS || !secret.bytes().all(is_allowed) {
        let why = "expected 1 to 256 characters of A-Z, a-z, 0-9, _ and -";
        return Err(section.invalid_key("secret_token", why));
    }
    Ok(())
}

/// Reads the secret of the webhook. Requests are verified without waiting, so a command cannot
/// give it.
fn read_secret_token(section: &ConfigSection<'_>) -> Result<Secret, InvalidConfig> {
    if section.has("secret_token_command") {
        let why = "the secret is needed for every request; set `secret_token` or \
                   `secret_token_file`";
        return Err(section.invalid_key("secret_token_command", why));
    }
    section.secret("secret_token")
}

/// Reads the URL that Telegram posts to. Telegram accepts https only; an emulator on this machine
/// accepts http.
fn read_webhook_url(section: &ConfigSection<'_>) -> Result<Option<String>, InvalidConfig> {
    let Some(text) = section.text("webhook_url")? else { return Ok(None) };
    match EgressTarget::parse(&text, is_loopback_url(&text)) {
        Ok(_) => Ok(Some(text)),
        Err(error) => Err(section.invalid_key("webhook_url", error.to_string())),
    }
}

#[cfg(test)]
mod tests;
