//! The tunnels of the config: which provider each has, and what it takes.

use std::collections::BTreeMap;

use monoco_adapters::webhook::{
    HmacHeader, SignatureEncoding, WebhookConfig, WebhookVerification, wire,
};
use monoco_adapters::{Secret, egress};
use monoco_core::contact::StrangerPolicy;
use monoco_core::did::TunnelId;
use monoco_core::filter::nearest;
use monoco_core::merge::Debounce;

use super::raw::{RawHeader, RawTunnel, RawTunnels, RawVerify};
use super::value::{ConfigReader, listed, shown};
use super::{AdapterConfig, InvalidConfig, TunnelConfig, debounce_of};

/// What has an adapter here.
const BUILT: [&str; 2] = ["stub", "webhook"];

/// What will have one.
const TO_COME: [&str; 5] = ["dingtalk", "lark", "slack", "telegram", "email"];

/// The tunnel that is there without being configured.
const STUB: &str = "stub";

/// Checks all tunnels. `debounce` holds where one does not say otherwise.
pub fn check(
    raw: RawTunnels,
    debounce: Debounce,
    reader: &ConfigReader<'_>,
) -> Result<BTreeMap<TunnelId, TunnelConfig>, InvalidConfig> {
    let mut tunnels = BTreeMap::new();
    for (id, tunnel) in raw {
        let at = format!("courier.adapters.{id}");
        let tunnel = tunnel.unwrap_or_default();
        let provider = provider(&id, tunnel.provider.as_deref())?;
        let id: TunnelId =
            id.parse().map_err(|error| InvalidConfig::at(&at, format!("{error}")))?;
        tunnels.insert(id, one(&at, provider, &tunnel, debounce, reader)?);
    }
    let stub: TunnelId = STUB.parse().expect("the name of a tunnel");
    tunnels.entry(stub).or_insert_with(|| TunnelConfig {
        provider: STUB.to_owned(),
        enabled: true,
        strangers: StrangerPolicy::default(),
        debounce,
        binding: None,
        bindings: BTreeMap::new(),
        adapter: AdapterConfig::Stub,
    });
    Ok(tunnels)
}

/// The provider of a tunnel: its name says it, or `named` does.
pub fn provider(id: &str, named: Option<&str>) -> Result<&'static str, InvalidConfig> {
    let at = format!("courier.adapters.{}", id.escape_debug());
    let known = |name: &str| BUILT.iter().chain(&TO_COME).find(|known| **known == name).copied();
    let provider = match (known(id), named) {
        (Some(provider), None) => provider,
        (Some(provider), Some(named)) if provider == named => provider,
        (Some(provider), Some(_)) => {
            let why = format!(
                "its name says {provider} and `provider` says otherwise; \
                               give it another name"
            );
            return Err(InvalidConfig::at(at, why));
        }
        (None, Some(named)) => known(named).ok_or_else(|| {
            let found = shown(named);
            let why = match nearest(named, &BUILT) {
                Some(meant) => format!("unknown provider {found}, did you mean {meant}?"),
                None => format!("unknown provider {found}; known are {}", listed(&BUILT)),
            };
            InvalidConfig::at(format!("{at}.provider"), why)
        })?,
        (None, None) => {
            let why = format!("`provider` is missing; want {}", listed(&BUILT));
            return Err(InvalidConfig::at(at, why));
        }
    };
    if TO_COME.contains(&provider) {
        return Err(InvalidConfig::at(
            at,
            format!("the provider {provider} is not in this version"),
        ));
    }
    Ok(provider)
}

fn one(
    at: &str,
    provider: &str,
    raw: &RawTunnel,
    debounce: Debounce,
    reader: &ConfigReader<'_>,
) -> Result<TunnelConfig, InvalidConfig> {
    let key = |name: &str| format!("{at}.{name}");
    let enabled = reader.flag(&key("enabled"), raw.enabled.as_deref())?.unwrap_or(true);
    let strangers = [
        ("accept", StrangerPolicy::Accept),
        ("hold", StrangerPolicy::Hold),
        ("drop", StrangerPolicy::Drop),
    ];
    let strangers = reader.one_of(&key("strangers"), raw.strangers.as_deref(), &strangers)?;
    let debounce = debounce_of(&key("debounce"), raw.debounce.as_ref(), debounce, reader)?;
    let binding = raw.binding.as_deref();
    let binding = binding.map(|raw| label(&key("binding"), raw, reader)).transpose()?;
    let mut bindings = BTreeMap::new();
    for (chat, raw) in raw.bindings.iter().flatten() {
        let label = label(&key(&format!("bindings.{}", chat.escape_debug())), raw, reader)?;
        bindings.insert(chat.clone(), label);
    }
    let adapter = match provider {
        "webhook" => AdapterConfig::Webhook(webhook(at, enabled, raw, reader)?),
        _ => {
            no_webhook(at, raw)?;
            AdapterConfig::Stub
        }
    };
    Ok(TunnelConfig {
        provider: provider.to_owned(),
        enabled,
        strangers: strangers.unwrap_or_default(),
        debounce,
        binding,
        bindings,
        adapter,
    })
}

/// A label that Mails carry.
fn label(at: &str, raw: &str, reader: &ConfigReader<'_>) -> Result<String, InvalidConfig> {
    let label = reader.text(at, raw)?;
    if label.is_empty() || label.len() > 128 || label.chars().any(char::is_control) {
        let why = "want a label of 1 to 128 bytes without control characters";
        return Err(InvalidConfig::at(at, why));
    }
    Ok(label)
}

/// Checks the keys that only webhooks take.
fn webhook(
    at: &str,
    enabled: bool,
    raw: &RawTunnel,
    reader: &ConfigReader<'_>,
) -> Result<WebhookConfig, InvalidConfig> {
    let key = |name: &str| format!("{at}.{name}");
    let secret = reader.secret(at, "secret", raw.secret.as_deref(), raw.secret_file.as_deref())?;
    // One that is turned off may be half done.
    if enabled && secret.is_empty() {
        let why = "missing or empty: a tunnel without a secret does not start; \
                   set it to what the other side signs with";
        return Err(InvalidConfig::at(key("secret"), why));
    }
    let send_to = raw.send_to.as_deref();
    let send_to = send_to.map(|raw| reader.text(&key("send_to"), raw)).transpose()?;
    let allow_private = reader.flag(&key("allow_private"), raw.allow_private.as_deref())?;
    let settings = WebhookConfig {
        verify: verify(&key("verify"), raw.verify.as_ref(), reader)?,
        secret: Secret::new(secret),
        send_to,
        map: raw.map.clone().unwrap_or_default(),
        idempotent: reader.flag(&key("idempotent"), raw.idempotent.as_deref())?,
        allow_private: allow_private.unwrap_or(false),
    };
    if enabled {
        wire::Signer::new(&settings.verify, &settings.secret)
            .map_err(|error| InvalidConfig::at(at, error.to_string()))?;
        settings.map.check().map_err(|error| InvalidConfig::at(at, error.to_string()))?;
        if let Some(url) = &settings.send_to {
            egress::EgressTarget::parse(url, settings.allow_private)
                .map_err(|error| InvalidConfig::at(key("send_to"), error.to_string()))?;
        }
    }
    Ok(settings)
}

/// The stub takes none of them.
fn no_webhook(at: &str, raw: &RawTunnel) -> Result<(), InvalidConfig> {
    let given = [
        ("verify", raw.verify.is_some()),
        ("secret", raw.secret.is_some()),
        ("secret_file", raw.secret_file.is_some()),
        ("send_to", raw.send_to.is_some()),
        ("map", raw.map.is_some()),
        ("idempotent", raw.idempotent.is_some()),
        ("allow_private", raw.allow_private.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((key, _)) => {
            let why = "a tunnel of the provider stub takes no such key";
            Err(InvalidConfig::at(format!("{at}.{key}"), why))
        }
    }
}

fn verify(
    at: &str,
    raw: Option<&RawVerify>,
    reader: &ConfigReader<'_>,
) -> Result<WebhookVerification, InvalidConfig> {
    let RawHeader { header, encoding, prefix, timestamp_header } = match raw {
        None => return Ok(WebhookVerification::Standard),
        Some(RawVerify::Named(name)) => {
            let names = [("standard", false), ("github", true)];
            let github = reader.one_of(at, Some(name.as_str()), &names)?.unwrap_or(false);
            return Ok(if github {
                WebhookVerification::Github
            } else {
                WebhookVerification::Standard
            });
        }
        Some(RawVerify::Header(header)) => header,
    };
    let key = |name: &str| format!("{at}.{name}");
    let encodings = [("hex", SignatureEncoding::Hex), ("base64", SignatureEncoding::Base64)];
    let encoding = reader.one_of(&key("encoding"), encoding.as_deref(), &encodings)?;
    let prefix = prefix.as_deref().map(|raw| reader.text(&key("prefix"), raw)).transpose()?;
    let timestamp = timestamp_header.as_deref();
    let timestamp = timestamp.map(|raw| reader.text(&key("timestamp_header"), raw)).transpose()?;
    Ok(WebhookVerification::Hmac(HmacHeader {
        header: reader.text(&key("header"), header)?,
        encoding: encoding.unwrap_or_default(),
        prefix: prefix.unwrap_or_default(),
        timestamp_header: timestamp,
    }))
}
