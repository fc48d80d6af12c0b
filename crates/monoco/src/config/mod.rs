//! The config: the file's shape outside, checked values inside.
//!
//! The types in `raw` mirror the file. [`Config`] is what the courier runs on: every
//! default filled in, every number checked, every variable expanded. Nothing past
//! [`Config::parse`] asks whether a setting makes sense.
//!
//! Every value may hold `${VAR}` or `${VAR:-default}`, which are taken from the
//! environment after the file has been read, so that what is in a variable can't
//! become YAML; `$${` stands for `${` itself. No error shows what a variable or a
//! secret holds.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoco_adapters::webhook;
use monoco_core::contact::StrangerPolicy;
use monoco_core::did::{Did, TunnelId};
use monoco_core::lease::LeaseDuration;
use monoco_core::merge::Debounce;
use monoco_core::retry::{Backoff, RetryPolicy};
use serde::{Deserialize, Serialize};
use tracing::Level;

use crate::home::Home;
use crate::pipeline::config::PipelineConfig;
use raw::{RawClaims, RawCourier, RawDebounce, RawFile, RawRetention, RawService, RawStorage};
use value::{ConfigReader, Variables};

mod changes;
mod pipeline;
mod raw;
mod tunnel;
mod value;

/// Largest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// How the courier is to run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whose INBOX direct messages reach.
    pub owner: Did,
    /// Where it listens; always this machine.
    pub host: IpAddr,
    /// The port of the API; 0 for any that is free.
    pub port: u16,
    /// The port of the webhooks; 0 for any that is free.
    pub webhook_port: u16,
    /// What is worth a line in the log.
    pub log_level: Level,
    /// Where the Mails are as files, when not in the home. See [`Config::mailbox`].
    pub mailbox_root: Option<PathBuf>,
    /// What remembers.
    pub store: StoreKind,
    /// How long to wait for another message, where a tunnel does not say otherwise.
    pub debounce: Debounce,
    /// How claims are held and tried again.
    pub claims: ClaimsConfig,
    /// How long what is done is kept.
    pub retention: RetentionConfig,
    /// How letters go through the post office.
    pub pipeline: PipelineConfig,
    /// All tunnels, those that are turned off among them.
    pub tunnels: BTreeMap<TunnelId, TunnelConfig>,
}

/// What remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// The embedded one.
    Sqlite,
}

/// How claims are held and tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimsConfig {
    /// How long a claim holds when its taker does not say.
    pub term: LeaseDuration,
    /// When a failed one may be taken again, and when it is dead.
    pub retry: RetryPolicy,
}

/// How long what is done is kept, in days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Completed Mails.
    pub archive_days: u32,
    /// What a worker threw away.
    pub trash_days: u32,
    /// The log of events.
    pub events_days: u32,
}

/// One tunnel.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    /// The network behind it.
    pub provider: String,
    /// Whether it runs.
    pub enabled: bool,
    /// What becomes of messages of people we do not know.
    pub strangers: StrangerPolicy,
    /// How long to wait for another message.
    pub debounce: Debounce,
    /// The label of all its Mails.
    pub binding: Option<String>,
    /// The labels of single chats, by session id.
    pub bindings: BTreeMap<String, String>,
    /// What only its own adapter understands.
    pub adapter: AdapterConfig,
}

/// What only one adapter understands.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there are a few tunnels, and most are of that kind")]
pub enum AdapterConfig {
    /// The provider in memory needs nothing.
    Stub,
    /// Signed webhooks.
    Webhook(webhook::WebhookConfig),
}

/// Where the config comes from, and what the command line says beyond it. A reload
/// reads the same again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConfigSource {
    /// The file.
    pub path: PathBuf,
    /// Whether somebody named it: then it must be there.
    pub explicit: bool,
    /// The port, whatever the file says.
    pub port: Option<u16>,
    /// The port of the webhooks, whatever the file says.
    pub webhook_port: Option<u16>,
    /// Log more, whatever the file says.
    pub debug: bool,
}

/// What is wrong, and where in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct InvalidConfig {
    /// The key with those above it, or the line and the column.
    pub place: String,
    /// What is wrong there, and what is wanted instead.
    pub why: String,
    /// Whether only a variable is missing: another environment may have it.
    pub unset: bool,
}

/// Why there is no config.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("{path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// It makes no sense.
    #[error("{path}: {error}")]
    Bad {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: InvalidConfig,
    },
}

impl ConfigError {
    /// Whether the user is not allowed to read it.
    pub fn is_permission(&self) -> bool {
        let denied = std::io::ErrorKind::PermissionDenied;
        matches!(self, Self::Read { error, .. } if error.kind() == denied)
    }
}

impl Config {
    /// Reads the file. One that is missing is as good as an empty one, unless somebody
    /// has named it.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the place.
    pub fn load(path: &Path, explicit: bool, env: Variables<'_>) -> Result<Self, ConfigError> {
        let text = read(path, explicit)?;
        Self::parse(&text, env).map_err(|error| ConfigError::Bad { path: path.to_owned(), error })
    }

    /// Checks a config.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`]: the first thing that is wrong.
    pub fn parse(text: &str, env: Variables<'_>) -> Result<Self, InvalidConfig> {
        let file = RawFile::read(text)?;
        let RawCourier { owner, service, storage, debounce, claims, retention, pipeline, adapters } =
            file.courier.unwrap_or_default();
        let reader = ConfigReader::new(env);
        let owner = match owner {
            Some(owner) => reader.parsed("courier.owner", &owner)?,
            None => default_owner(),
        };
        let service = Service::check(service.unwrap_or_default(), &reader)?;
        let (mailbox_root, store) = storage_of(storage.unwrap_or_default(), &reader)?;
        let debounce =
            debounce_of("courier.debounce", debounce.as_ref(), Debounce::DEFAULT, &reader)?;
        let claims = claims_of(claims.unwrap_or_default(), &reader)?;
        let retention = retention_of(retention.unwrap_or_default(), &reader)?;
        let pipeline = pipeline::check(pipeline.unwrap_or_default(), &reader)?;
        let tunnels = tunnel::check(adapters.unwrap_or_default(), debounce, &reader)?;
        let Service { host, port, webhook_port, log_level } = service;
        Ok(Self {
            owner,
            host,
            port,
            webhook_port,
            log_level,
            mailbox_root,
            store,
            debounce,
            claims,
            retention,
            pipeline,
            tunnels,
        })
    }

    /// Where the Mails are as files.
    pub fn mailbox(&self, home: &Home) -> PathBuf {
        self.mailbox_root.clone().unwrap_or_else(|| home.mailbox())
    }

    /// The tunnels that are to run.
    pub fn running(&self) -> impl Iterator<Item = (&TunnelId, &TunnelConfig)> {
        self.tunnels.iter().filter(|(_, tunnel)| tunnel.enabled)
    }
}

impl ConfigSource {
    /// The file of `home`, and nothing beyond it.
    pub fn of(home: &Home) -> Self {
        let path = home.config();
        Self { path, explicit: false, port: None, webhook_port: None, debug: false }
    }

    /// Reads and checks it, as it is now.
    ///
    /// # Errors
    ///
    /// [`ConfigError`], with the place.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(&self.path, self.explicit, &variable)?;
        // Whoever asks for any port that is free does not want the usual one beside it.
        let beside = self.port.filter(|port| *port == 0);
        config.webhook_port = self.webhook_port.or(beside).unwrap_or(config.webhook_port);
        config.port = self.port.unwrap_or(config.port);
        if self.debug {
            config.log_level = config.log_level.max(Level::DEBUG);
        }
        Ok(config)
    }
}

/// Where the Mails of `home` are as files, for commands that work without the courier.
/// Only that is read: the secrets may be in variables that only the courier has.
///
/// # Errors
///
/// When the file is there and can't be read.
pub fn mailbox(home: &Home) -> Result<PathBuf, ConfigError> {
    let path = home.config();
    let text = read(&path, false)?;
    let bad = |error| ConfigError::Bad { path: path.clone(), error };
    let root = raw::mailbox_root(&text).map_err(bad)?;
    let reader = ConfigReader::new(&variable);
    let root = root.map(|root| reader.path(MAILBOX_ROOT, &root)).transpose().map_err(bad)?;
    Ok(root.unwrap_or_else(|| home.mailbox()))
}

/// A variable of our own environment.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn read(path: &Path, explicit: bool) -> Result<String, ConfigError> {
    let failed = |error| ConfigError::Read { path: path.to_owned(), error };
    let file = match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !explicit => {
            return Ok(String::new());
        }
        other => other.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let bad =
        |why| ConfigError::Bad { path: path.to_owned(), error: InvalidConfig::at("the file", why) };
    if bytes.len() as u64 > MAX_BYTES {
        return Err(bad("larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| bad("not UTF-8"))
}

const MAILBOX_ROOT: &str = "courier.storage.mailbox_root";

/// Whose INBOX direct messages reach when nobody is named.
pub fn default_owner() -> Did {
    "did:monoco:me".parse().expect("the default owner is a DID")
}

struct Service {
    host: IpAddr,
    port: u16,
    webhook_port: u16,
    log_level: Level,
}

impl Service {
    fn check(raw: RawService, reader: &ConfigReader<'_>) -> Result<Self, InvalidConfig> {
        let host = match raw.host {
            Some(host) => host_of(&host, reader)?,
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let port =
            reader.number_or("courier.service.port", raw.port.as_deref(), 0..=u16::MAX, 8644)?;
        let at = "courier.service.webhook_port";
        let webhook_port = reader.number_or(at, raw.webhook_port.as_deref(), 0..=u16::MAX, 8645)?;
        if port == webhook_port && port != 0 {
            let why = "must not be that of the API: it is the one that gets exposed";
            return Err(InvalidConfig::at(at, why));
        }
        let levels = [
            ("error", Level::ERROR),
            ("warn", Level::WARN),
            ("info", Level::INFO),
            ("debug", Level::DEBUG),
            ("trace", Level::TRACE),
        ];
        let log_level =
            reader.one_of("courier.service.log_level", raw.log_level.as_deref(), &levels)?;
        Ok(Self { host, port, webhook_port, log_level: log_level.unwrap_or(Level::INFO) })
    }
}

fn host_of(raw: &str, reader: &ConfigReader<'_>) -> Result<IpAddr, InvalidConfig> {
    match reader.text("courier.service.host", raw)?.as_str() {
        "localhost" | "127.0.0.1" => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        "::1" | "[::1]" => Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        _ => Err(InvalidConfig::at(
            "courier.service.host",
            "only localhost, 127.0.0.1 or ::1: whoever reaches the port with the token can read \
             and send everything, and nothing on the way would be encrypted; \
             put a proxy with TLS in front",
        )),
    }
}

fn storage_of(
    raw: RawStorage,
    reader: &ConfigReader<'_>,
) -> Result<(Option<PathBuf>, StoreKind), InvalidConfig> {
    let root = raw.mailbox_root.map(|root| reader.path(MAILBOX_ROOT, &root)).transpose()?;
    if let Some(store) = raw.store {
        // What it says may have a password in it, and is not shown.
        match reader.text("courier.storage.store", &store)?.as_str() {
            "sqlite" => {}
            other if other.starts_with("postgres:") || other.starts_with("postgresql:") => {
                let why = "PostgreSQL is not in this version; want sqlite";
                return Err(InvalidConfig::at("courier.storage.store", why));
            }
            _ => return Err(InvalidConfig::at("courier.storage.store", "unknown; want sqlite")),
        }
    }
    Ok((root, StoreKind::Sqlite))
}

/// `at` is where it stands; what it does not say is as in `default`.
fn debounce_of(
    at: &str,
    raw: Option<&RawDebounce>,
    default: Debounce,
    reader: &ConfigReader<'_>,
) -> Result<Debounce, InvalidConfig> {
    let window_ms = raw.and_then(|raw| raw.window_ms.as_deref());
    let max_wait_ms = raw.and_then(|raw| raw.max_wait_ms.as_deref());
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let window = format!("{at}.window_ms");
    let window = reader.number_or(&window, window_ms, 0..=600_000, ms(default.window))?;
    let wait = format!("{at}.max_wait_ms");
    let max_wait = reader.number_or(&wait, max_wait_ms, 0..=3_600_000, ms(default.max_wait))?;
    if max_wait < window {
        let why = format!("{max_wait} is less than window_ms, {window}");
        return Err(InvalidConfig::at(&wait, why));
    }
    Ok(Debounce {
        window: Duration::from_millis(window),
        max_wait: Duration::from_millis(max_wait),
    })
}

fn claims_of(raw: RawClaims, reader: &ConfigReader<'_>) -> Result<ClaimsConfig, InvalidConfig> {
    let at = "courier.claims.timeout_s";
    let secs = reader.number_or(at, raw.timeout_s.as_deref(), 1..=86_400_i64, 300)?;
    let term =
        LeaseDuration::from_secs(secs).map_err(|error| InvalidConfig::at(at, error.to_string()))?;
    let retries =
        reader.number_or("courier.claims.max_retries", raw.max_retries.as_deref(), 0..=1000, 3)?;
    let backoff = "courier.claims.backoff_ms";
    let first = reader.number_or(backoff, raw.backoff_ms.as_deref(), 0..=86_400_000, 1_000)?;
    let at = "courier.claims.max_backoff_ms";
    let longest =
        reader.number_or(at, raw.max_backoff_ms.as_deref(), 0..=86_400_000, 30_000.max(first))?;
    if longest < first {
        return Err(InvalidConfig::at(at, format!("{longest} is less than backoff_ms, {first}")));
    }
    let retry = RetryPolicy {
        backoff: Backoff {
            first: Duration::from_millis(first),
            longest: Duration::from_millis(longest),
        },
        max_attempts: Some(retries + 1),
        ..RetryPolicy::CLAIM
    };
    Ok(ClaimsConfig { term, retry })
}

fn retention_of(
    raw: RawRetention,
    reader: &ConfigReader<'_>,
) -> Result<RetentionConfig, InvalidConfig> {
    let days = |key: &str, raw: Option<String>, default: u32| {
        reader.number_or(
            &format!("courier.retention.{key}"),
            raw.as_deref(),
            1..=36_500_u32,
            default,
        )
    };
    Ok(RetentionConfig {
        archive_days: days("archive_days", raw.archive_days, 30)?,
        trash_days: days("trash_days", raw.trash_days, 30)?,
        events_days: days("events_days", raw.events_days, 90)?,
    })
}

impl InvalidConfig {
    fn at(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self { place: place.into(), why: why.into(), unset: false }
    }
}

#[cfg(test)]
mod tests;
