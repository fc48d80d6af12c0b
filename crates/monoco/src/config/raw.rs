//! The shape of the file. Every leaf is text as it stands there: it may hold a
//! variable, and is checked later.

use std::collections::BTreeMap;

use monoco_adapters::webhook;
use monoco_core::filter::nearest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_saphyr::budget::BudgetBreach;

use super::InvalidConfig;
use super::value::listed;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawFile {
    pub courier: Option<RawCourier>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawCourier {
    pub owner: Option<String>,
    pub service: Option<RawService>,
    pub storage: Option<RawStorage>,
    pub debounce: Option<RawDebounce>,
    pub claims: Option<RawClaims>,
    pub retention: Option<RawRetention>,
    pub pipeline: Option<RawPipeline>,
    pub adapters: Option<RawTunnels>,
}

/// The tunnels by name. One that needs no settings may have none.
pub type RawTunnels = BTreeMap<String, Option<RawTunnel>>;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawService {
    pub host: Option<String>,
    pub port: Option<String>,
    pub webhook_port: Option<String>,
    pub log_level: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawStorage {
    pub mailbox_root: Option<String>,
    pub store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawDebounce {
    pub window_ms: Option<String>,
    pub max_wait_ms: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawClaims {
    pub timeout_s: Option<String>,
    pub max_retries: Option<String>,
    pub backoff_ms: Option<String>,
    pub max_backoff_ms: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRetention {
    pub archive_days: Option<String>,
    pub trash_days: Option<String>,
    pub events_days: Option<String>,
}

/// The post office. A list that is there and empty is not one that is missing.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawPipeline {
    pub queue: Option<String>,
    pub inbound: Option<Vec<String>>,
    pub outbound: Option<Vec<String>>,
    pub tunnels: Option<BTreeMap<String, Option<RawChains>>>,
    pub workers: Option<BTreeMap<String, Option<RawWorker>>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawChains {
    pub inbound: Option<Vec<String>>,
    pub outbound: Option<Vec<String>>,
}

/// A worker: the keys of every kind. Which belong to which is checked later.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawWorker {
    pub kind: Option<String>,

    pub senders: Option<Vec<String>>,
    pub recipients: Option<Vec<String>>,

    pub threshold: Option<String>,
    pub rules: Option<Vec<RawRule>>,
    pub rspamd: Option<String>,
    pub password: Option<String>,
    pub password_file: Option<String>,

    pub template: Option<String>,

    pub text: Option<String>,
    pub html: Option<String>,

    pub window_s: Option<String>,
    pub most: Option<String>,

    pub per_recipient: Option<String>,
    pub per_domain: Option<String>,
    pub per_tunnel: Option<String>,

    pub tunnel: Option<String>,

    pub server: Option<String>,
    pub tube: Option<String>,
    pub results: Option<String>,
    pub in_flight: Option<String>,

    pub command: Option<Vec<String>>,
    pub memory_mb: Option<String>,

    pub url: Option<String>,
    pub secret: Option<String>,
    pub secret_file: Option<String>,
    pub allow_private: Option<String>,

    pub timeout_s: Option<String>,
    pub retries: Option<String>,
    pub when_down: Option<String>,
    pub readdress: Option<String>,
    pub parallel: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRule {
    pub name: Option<String>,
    pub score: Option<String>,
    pub subject: Option<String>,
    pub text: Option<String>,
    pub from: Option<String>,
    pub to: Option<String>,
    pub header: Option<String>,
}

/// A tunnel: what all have, and then what webhooks have.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawTunnel {
    pub provider: Option<String>,
    pub enabled: Option<String>,
    pub strangers: Option<String>,
    pub debounce: Option<RawDebounce>,
    pub binding: Option<String>,
    pub bindings: Option<BTreeMap<String, String>>,

    pub verify: Option<RawVerify>,
    pub secret: Option<String>,
    pub secret_file: Option<String>,
    pub send_to: Option<String>,
    pub map: Option<webhook::FieldMap>,
    pub idempotent: Option<String>,
    pub allow_private: Option<String>,
}

/// The name of a way to sign, or a header of one's own.
pub enum RawVerify {
    Named(String),
    Header(RawHeader),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawHeader {
    pub header: String,
    pub encoding: Option<String>,
    pub prefix: Option<String>,
    pub timestamp_header: Option<String>,
}

impl<'de> Deserialize<'de> for RawVerify {
    fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> serde::de::Visitor<'de> for Either {
            type Value = RawVerify;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("standard, github or a mapping with `header`")
            }

            fn visit_str<E>(self, name: &str) -> Result<RawVerify, E> {
                Ok(RawVerify::Named(name.to_owned()))
            }

            fn visit_map<A>(self, map: A) -> Result<RawVerify, A::Error>
            where
                A: serde::de::MapAccess<'de>,
            {
                let header = serde::de::value::MapAccessDeserializer::new(map);
                RawHeader::deserialize(header).map(RawVerify::Header)
            }
        }

        reader.deserialize_any(Either)
    }
}

impl RawFile {
    /// Reads the file. Tunnels of providers that are unknown or not there yet are found
    /// first: nobody knows which keys they take.
    pub fn read(text: &str) -> Result<Self, InvalidConfig> {
        let named: Names = yaml(text)?;
        let tunnels = named.courier.and_then(|courier| courier.adapters).unwrap_or_default();
        for (id, tunnel) in tunnels {
            let named = tunnel.and_then(|tunnel| tunnel.provider);
            super::tunnel::provider(&id, named.as_deref())?;
        }
        yaml(text)
    }
}

/// `courier.storage.mailbox_root`, whatever else the file says.
pub fn mailbox_root(text: &str) -> Result<Option<String>, InvalidConfig> {
    #[derive(Default, Deserialize)]
    struct File {
        courier: Option<Courier>,
    }

    #[derive(Deserialize)]
    struct Courier {
        storage: Option<Storage>,
    }

    #[derive(Deserialize)]
    struct Storage {
        mailbox_root: Option<String>,
    }

    let file: File = yaml(text)?;
    let storage = file.courier.and_then(|courier| courier.storage);
    Ok(storage.and_then(|storage| storage.mailbox_root))
}

/// Only what says which provider each tunnel has.
#[derive(Default, Deserialize)]
struct Names {
    courier: Option<NamesCourier>,
}

#[derive(Deserialize)]
struct NamesCourier {
    adapters: Option<BTreeMap<String, Option<NamesTunnel>>>,
}

#[derive(Deserialize)]
struct NamesTunnel {
    provider: Option<String>,
}

/// Reads YAML, bounded in size and depth, without anchors and aliases.
fn yaml<T: Default + DeserializeOwned>(text: &str) -> Result<T, InvalidConfig> {
    let options = monoco_core::yaml::bounded(16, 50_000, 1 << 20);
    let read = serde_saphyr::from_str_with_options::<Option<T>>(text, options);
    Ok(read.map_err(|error| told(&error))?.unwrap_or_default())
}

/// Where and what, without the values: one of them may be a secret.
fn told(error: &serde_saphyr::Error) -> InvalidConfig {
    use serde_saphyr::Error;
    let place = match error.location() {
        Some(location) => format!("line {}, column {}", location.line(), location.column()),
        None => "the file".to_owned(),
    };
    let why = match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let meant = match nearest(field, expected) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("known are {}", listed(expected)),
            };
            format!("unknown key `{}`, {meant}", field.escape_debug())
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{}` is there twice", key.escape_debug())
        }
        Error::SerdeMissingField { field, .. } => format!("`{field}` is missing"),
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            format!("want {}", wanted(expected))
        }
        Error::Unexpected { expected, .. } => format!("want {}", wanted(expected)),
        Error::MultipleDocuments { .. }
        | Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            "there is a second document".to_owned()
        }
        Error::Budget {
            breach: BudgetBreach::Anchors { .. } | BudgetBreach::Aliases { .. },
            ..
        } => "anchors and aliases are not taken".to_owned(),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => "too deep".to_owned(),
        Error::Budget { .. } => "too much".to_owned(),
        Error::QuotingRequired { .. } => "this needs quotes".to_owned(),
        Error::Message { msg, .. } => format!("not YAML: {msg}"),
        _ => "not YAML that is understood here".to_owned(),
    };
    InvalidConfig::at(place, why)
}

/// What the reader wanted, in the words of whoever writes the file.
fn wanted(expected: &str) -> &str {
    if expected.contains("struct") || expected.contains("map") {
        "keys and values here"
    } else if expected.contains("sequence") {
        "a list here"
    } else if expected.contains("scalar") || expected.contains("string") {
        "a single value here"
    } else {
        expected
    }
}
