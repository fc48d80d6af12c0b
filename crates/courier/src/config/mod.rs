//! Reads `config.yaml` into [`Config`], with every default filled in and every value checked.
//!
//! [`monoco_core::config`] parses the file and expands variables. This module reads the
//! courier's own keys, and passes each tunnel's section to its provider. Further tunnels are
//! in files of their own, in `adapters.d` beside the config file.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use monoco_core::approval::policy::ApprovalPolicy;
use monoco_core::config::{ConfigFile, ConfigSection, InvalidConfig, SecretSource};
use monoco_core::did::{Did, TunnelId};
use monoco_core::lease::LeaseDuration;
use monoco_core::merge::Debounce;
use monoco_core::retry::{Backoff, RetryPolicy};
use monoco_store::postgres::Durability;
use serde::{Deserialize, Serialize};
use tracing::Level;

use crate::home::Home;
use crate::pipeline::config::PipelineConfig;
use crate::s3::location::S3Location;
use environment::{FileEnvironment, Variables};

mod adapter_files;
mod changes;
pub mod environment;
mod remote;
mod tunnel;

pub use adapter_files::{ADAPTERS_DIR, SECRETS_DIR, adapter_files};
pub use changes::ConfigChange;
pub use remote::{InvalidRemoteName, RemoteConfig, RemoteName};
pub use tunnel::{TunnelConfig, read_tunnel};

/// Largest config file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The configuration of the courier.
#[derive(Clone, Debug)]
pub struct Config {
    /// The owner whose INBOX receives direct messages.
    pub owner: Did,
    /// The address of the listeners; always a loopback address.
    pub host: IpAddr,
    /// The port of the API; 0 for any free port.
    pub port: u16,
    /// The port of the webhook listener; 0 for any free port.
    pub webhook_port: u16,
    /// The listener for clients on other machines, if there is one.
    pub remote: Option<RemoteConfig>,
    pub log_level: Level,
    /// The directory of Mail files, when it is not in the home. See [`Config::mailbox`].
    pub mailbox_root: Option<PathBuf>,
    pub store: StoreConfig,
    /// Whether messages are indexed for search.
    pub search: bool,
    /// How long to wait for another message of a session; tunnels may set their own.
    pub debounce: Debounce,
    pub claims: ClaimsConfig,
    /// When failed deliveries are retried, and when they become dead letters.
    pub deliveries: RetryPolicy,
    pub retention: RetentionConfig,
    /// Which messages wait for a person.
    pub approvals: Arc<ApprovalPolicy>,
    pub pipeline: PipelineConfig,
    /// All tunnels, including those that are not enabled.
    pub tunnels: BTreeMap<TunnelId, TunnelConfig>,
    /// The files from which secrets were read.
    pub secret_files: Vec<PathBuf>,
}

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In the home directory, for one courier.
    Sqlite,
    /// In a PostgreSQL database, which several couriers can share.
    Postgres(PostgresConfig),
}

/// A store in a PostgreSQL database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresConfig {
    /// The connection URL, which can have a password.
    pub url: SecretSource,
    /// The schema with the tables of the store.
    pub schema: String,
    pub durability: Durability,
    /// The URL of the bucket for large objects, with its keys; `None`: in the database.
    pub objects: Option<SecretSource>,
}

impl StoreConfig {
    /// Where a store with this config is, for messages. Has no secrets.
    pub fn place(&self, home: &Home) -> String {
        match self {
            Self::Sqlite => home.store().display().to_string(),
            Self::Postgres(config) => format!("PostgreSQL, schema {}", config.schema),
        }
    }

    pub const fn durability(&self) -> Durability {
        match self {
            Self::Sqlite => Durability::Primary,
            Self::Postgres(config) => config.durability,
        }
    }
}

/// Leases and retries of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimsConfig {
    /// The length of a lease when the agent does not ask for another.
    pub term: LeaseDuration,
    pub retry: RetryPolicy,
}

/// How many days finished data is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionConfig {
    /// Mails that no workspace claims; they are archived.
    pub inbound_days: u32,
    pub archive_days: u32,
    /// Letters that a worker moved to the trash.
    pub trash_days: u32,
    pub events_days: u32,
}

/// Where the config comes from, with the options of the command line. A reload reads the
/// same source again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConfigSource {
    pub path: PathBuf,
    /// Whether the user named the file: then it must exist.
    pub explicit: bool,
    /// Overrides the port in the file.
    pub port: Option<u16>,
    /// Overrides the webhook port in the file.
    pub webhook_port: Option<u16>,
    /// Raises the log level to at least `debug`.
    pub debug: bool,
}

/// Why a config cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {error}")]
    Read { path: PathBuf, error: std::io::Error },
    #[error("{path}: {error}")]
    Invalid { path: PathBuf, error: InvalidConfig },
}

impl ConfigError {
    /// Tells whether the user lacks the permission to read the file.
    pub fn is_permission(&self) -> bool {
        let denied = std::io::ErrorKind::PermissionDenied;
        matches!(self, Self::Read { error, .. } if error.kind() == denied)
    }
}

impl Config {
    /// Reads the file at `path` and the files of tunnels beside it. A missing file counts as
    /// empty, unless it is `explicit`.
    pub fn load(path: &Path, explicit: bool, env: Variables<'_>) -> Result<Self, ConfigError> {
        let text = read(path, explicit)?;
        let parsed = Self::parse_file(&text, env);
        let mut config =
            parsed.map_err(|error| ConfigError::Invalid { path: path.to_owned(), error })?;
        config.add_adapter_files(path, env)?;
        tunnel::add_stub(&mut config.tunnels, config.debounce);
        Ok(config)
    }

    /// Parses and checks a config. Fails with the first invalid value.
    #[cfg(test)]
    pub fn parse(text: &str, env: Variables<'_>) -> Result<Self, InvalidConfig> {
        let mut config = Self::parse_file(text, env)?;
        tunnel::add_stub(&mut config.tunnels, config.debounce);
        Ok(config)
    }

    /// Parses a config file without the tunnels that it does not name.
    fn parse_file(text: &str, env: Variables<'_>) -> Result<Self, InvalidConfig> {
        let file = ConfigFile::parse(text)?;
        let environment = FileEnvironment::new(env);
        let root = file.root(&environment)?;
        root.deny_unknown_keys(&["courier"])?;
        let courier = root.section("courier")?;
        courier.deny_unknown_keys(&COURIER_KEYS)?;
        let service = ServiceConfig::read(&courier.section("service")?)?;
        let (mailbox_root, store) = read_storage(&courier.section("storage")?)?;
        let debounce = read_debounce(&courier.section("debounce")?, Debounce::DEFAULT)?;
        let mut config = Self {
            owner: courier.parsed("owner")?.unwrap_or_else(default_owner),
            host: service.host,
            port: service.port,
            webhook_port: service.webhook_port,
            remote: remote::read(&courier.section("remote")?)?,
            log_level: service.log_level,
            mailbox_root,
            store,
            search: courier.section("storage")?.flag("search")?.unwrap_or(true),
            debounce,
            claims: read_claims(&courier.section("claims")?)?,
            deliveries: read_deliveries(&courier.section("deliveries")?)?,
            retention: read_retention(&courier.section("retention")?)?,
            approvals: Arc::new(ApprovalPolicy::parse(&courier.section("approvals")?)?),
            pipeline: PipelineConfig::parse(&courier.section("pipeline")?)?,
            tunnels: tunnel::read_tunnels(&courier.section("adapters")?, debounce)?,
            secret_files: Vec::new(),
        };
        config.secret_files = environment.secret_files.take();
        Ok(config)
    }

    /// Returns the directory of Mail files.
    pub fn mailbox(&self, home: &Home) -> PathBuf {
        self.mailbox_root.clone().unwrap_or_else(|| home.mailbox())
    }

    /// Returns the tunnels that are enabled.
    pub fn running(&self) -> impl Iterator<Item = (&TunnelId, &TunnelConfig)> {
        self.tunnels.iter().filter(|(_, tunnel)| tunnel.enabled)
    }
}

/// The keys of `courier`.
const COURIER_KEYS: [&str; 11] = [
    "owner",
    "service",
    "remote",
    "storage",
    "debounce",
    "claims",
    "deliveries",
    "retention",
    "approvals",
    "pipeline",
    "adapters",
];

impl ConfigSource {
    /// Returns the config file of `home`, without options.
    pub fn of(home: &Home) -> Self {
        let path = home.config();
        Self { path, explicit: false, port: None, webhook_port: None, debug: false }
    }

    /// Reads and checks the config as it is now.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(&self.path, self.explicit, &variable)?;
        // `--port 0` asks for any free port, so the webhook port must not be a fixed one.
        let webhook_port = self.webhook_port.or(self.port.filter(|port| *port == 0));
        config.webhook_port = webhook_port.unwrap_or(config.webhook_port);
        config.port = self.port.unwrap_or(config.port);
        if self.debug {
            config.log_level = config.log_level.max(Level::DEBUG);
        }
        Ok(config)
    }
}

/// Returns the directory of Mail files of `home`, for commands that work without the
/// courier. Reads only that key: secrets may be in variables that only the courier has.
pub fn mailbox(home: &Home) -> Result<PathBuf, ConfigError> {
    let path = home.config();
    let text = read(&path, false)?;
    let environment = FileEnvironment::new(&variable);
    let read_root = || {
        let file = ConfigFile::parse(&text)?;
        let storage = file.root(&environment)?.section("courier")?.section("storage")?;
        storage.file_path("mailbox_root")
    };
    let root = read_root().map_err(|error| ConfigError::Invalid { path, error })?;
    Ok(root.unwrap_or_else(|| home.mailbox()))
}

/// Returns a variable of the environment of this process.
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
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    let invalid = |why| {
        let error = InvalidConfig::at("the file", why);
        ConfigError::Invalid { path: path.to_owned(), error }
    };
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(invalid("larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| invalid("not UTF-8"))
}

/// Returns the owner when the config names none.
pub fn default_owner() -> Did {
    "did:monoco:me".parse().expect("the default owner is a DID")
}

struct ServiceConfig {
    host: IpAddr,
    port: u16,
    webhook_port: u16,
    log_level: Level,
}

impl ServiceConfig {
    fn read(section: &ConfigSection<'_>) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&["host", "port", "webhook_port", "log_level"])?;
        let host = read_host(section)?;
        let port = section.number_or("port", 0..=u16::MAX, 8644)?;
        let webhook_port = section.number_or("webhook_port", 0..=u16::MAX, 8645)?;
        if port == webhook_port && port != 0 {
            let why = "must differ from the port of the API: \
                       the webhook port may be exposed, the API must not";
            return Err(section.invalid_key("webhook_port", why));
        }
        let levels = [
            ("error", Level::ERROR),
            ("warn", Level::WARN),
            ("info", Level::INFO),
            ("debug", Level::DEBUG),
            ("trace", Level::TRACE),
        ];
        let log_level = section.one_of("log_level", &levels)?.unwrap_or(Level::INFO);
        Ok(Self { host, port, webhook_port, log_level })
    }
}

fn read_host(section: &ConfigSection<'_>) -> Result<IpAddr, InvalidConfig> {
    match section.text("host")?.as_deref() {
        None | Some("localhost" | "127.0.0.1") => Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        Some("::1" | "[::1]") => Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)),
        Some(_) => Err(section.invalid_key(
            "host",
            "expected localhost, 127.0.0.1 or ::1: the API can read and send everything, and its \
             connections are not encrypted; for other machines set `courier.remote`, which uses TLS",
        )),
    }
}

/// The keys of `storage` that only a store in PostgreSQL has.
const POSTGRES_KEYS: [&str; 5] =
    ["schema", "durability", "objects", "objects_file", "objects_command"];

fn read_storage(
    section: &ConfigSection<'_>,
) -> Result<(Option<PathBuf>, StoreConfig), InvalidConfig> {
    let mut known = vec!["mailbox_root", "store", "store_file", "store_command", "search"];
    known.extend(POSTGRES_KEYS);
    section.deny_unknown_keys(&known)?;
    let mailbox_root = section.file_path("mailbox_root")?;
    let is_postgres =
        |url: &str| url.starts_with("postgres://") || url.starts_with("postgresql://");
    let url = match section.secret_source("store")? {
        None => None,
        Some(SecretSource::Value(text)) if text.expose() == "sqlite" => None,
        // Errors do not repeat the value: a URL may hold a password.
        Some(SecretSource::Value(text)) if !is_postgres(text.expose().trim()) => {
            let why = "unknown store; expected sqlite, or a URL that starts with postgres://";
            return Err(section.invalid_key("store", why));
        }
        source => source,
    };
    let Some(url) = url else {
        if let Some(key) = POSTGRES_KEYS.iter().find(|key| section.has(key)) {
            return Err(section.invalid_key(key, "only a store in PostgreSQL has this key"));
        }
        return Ok((mailbox_root, StoreConfig::Sqlite));
    };
    let durability = Durability::ALL.map(|durability| (durability.as_str(), durability));
    let durability = section.one_of("durability", &durability)?.unwrap_or_default();
    let objects = match section.secret_source("objects")? {
        Some(SecretSource::Value(text)) if text.expose().trim() == "database" => None,
        Some(SecretSource::Value(text)) => {
            // The error does not repeat the value.
            let location = S3Location::parse(text.expose());
            location.map_err(|why| section.invalid_key("objects", why))?;
            Some(SecretSource::Value(text))
        }
        source => source,
    };
    let schema = section.text("schema")?.unwrap_or_else(|| "monoco".to_owned());
    let config = PostgresConfig { url, schema, durability, objects };
    Ok((mailbox_root, StoreConfig::Postgres(config)))
}

/// Reads a section `debounce`. Missing keys have the values of `default`.
fn read_debounce(
    section: &ConfigSection<'_>,
    default: Debounce,
) -> Result<Debounce, InvalidConfig> {
    section.deny_unknown_keys(&["window_ms", "max_wait_ms"])?;
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let window = section.number_or("window_ms", 0..=600_000, ms(default.window))?;
    let max_wait = section.number_or("max_wait_ms", 0..=3_600_000, ms(default.max_wait))?;
    if max_wait < window {
        let why = format!("{max_wait} is less than window_ms, {window}");
        return Err(section.invalid_key("max_wait_ms", why));
    }
    Ok(Debounce {
        window: Duration::from_millis(window),
        max_wait: Duration::from_millis(max_wait),
    })
}

fn read_claims(section: &ConfigSection<'_>) -> Result<ClaimsConfig, InvalidConfig> {
    section.deny_unknown_keys(&["timeout_s", "max_retries", "backoff_ms", "max_backoff_ms"])?;
    let secs = section.number_or("timeout_s", 1..=86_400_i64, 300)?;
    let term = LeaseDuration::from_secs(secs)
        .map_err(|error| section.invalid_key("timeout_s", error.to_string()))?;
    let retries = section.number_or("max_retries", 0..=1000, 3)?;
    let first = section.number_or("backoff_ms", 0..=86_400_000, 1_000)?;
    let longest = section.number_or("max_backoff_ms", 0..=86_400_000, 30_000.max(first))?;
    if longest < first {
        let why = format!("{longest} is less than backoff_ms, {first}");
        return Err(section.invalid_key("max_backoff_ms", why));
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

fn read_deliveries(section: &ConfigSection<'_>) -> Result<RetryPolicy, InvalidConfig> {
    section.deny_unknown_keys(&["max_attempts", "give_up_after"])?;
    let max_attempts = match section.text("max_attempts")?.as_deref() {
        None | Some("unlimited") => None,
        Some(_) => Some(section.number_or("max_attempts", 1..=1_000_000_u32, 1)?),
    };
    let give_up_after = match section.text("give_up_after")? {
        None => RetryPolicy::DELIVERY.give_up_after,
        Some(text) => Some(parse_duration(&text).ok_or_else(|| {
            let why = format!("found {text:?}, expected 1s to 365d, such as 90s, 30m, 24h or 7d");
            section.invalid_key("give_up_after", why)
        })?),
    };
    Ok(RetryPolicy { max_attempts, give_up_after, ..RetryPolicy::DELIVERY })
}

/// Parses a duration with a unit: `90s`, `30m`, `24h` or `7d`, up to a year.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let unit = text.chars().last()?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return None,
    };
    let count: u64 = text[..text.len() - unit.len_utf8()].parse().ok()?;
    let length = count.checked_mul(seconds)?;
    (1..=365 * 86_400).contains(&length).then(|| Duration::from_secs(length))
}

fn read_retention(section: &ConfigSection<'_>) -> Result<RetentionConfig, InvalidConfig> {
    section.deny_unknown_keys(&["inbound_days", "archive_days", "trash_days", "events_days"])?;
    let days = |key: &str, default| section.number_or(key, 1..=36_500_u32, default);
    Ok(RetentionConfig {
        inbound_days: days("inbound_days", 30)?,
        archive_days: days("archive_days", 30)?,
        trash_days: days("trash_days", 30)?,
        events_days: days("events_days", 90)?,
    })
}

#[cfg(test)]
pub(crate) mod error_table;
#[cfg(test)]
mod tests;
