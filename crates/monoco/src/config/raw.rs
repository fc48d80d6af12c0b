//! The shape of `courier.pipeline` in the file. Every leaf is text as it stands there: it may
//! hold a variable, and is checked later.

use std::collections::BTreeMap;

use monoco_core::filter::nearest;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_saphyr::budget::BudgetBreach;

use super::InvalidConfig;
use super::value::listed;

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct RawFile {
    pub courier: Option<RawCourier>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub struct RawCourier {
    pub pipeline: Option<RawPipeline>,
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

impl RawFile {
    pub fn read(text: &str) -> Result<Self, InvalidConfig> {
        yaml(text)
    }
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
