//! Reads `courier.adapters`: the keys that every tunnel has. The provider reads its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use monoco_adapters::registry::{self, AdapterConfig, PROVIDERS, Provider};
use monoco_adapters::stub::StubConfig;
use monoco_core::chat_receipt::ChatReceipts;
use monoco_core::config::{ConfigSection, ConfigValue, InvalidConfig, or_list};
use monoco_core::contact::StrangerPolicy;
use monoco_core::did::TunnelId;
use monoco_core::filter::nearest;
use monoco_core::merge::Debounce;
use monoco_core::rate_limit::Rate;

use super::read_debounce;

/// The keys that every tunnel has.
const COMMON_TUNNEL_KEYS: [&str; 9] = [
    "provider",
    "enabled",
    "strangers",
    "debounce",
    "binding",
    "bindings",
    "max_mb_per_day",
    "max_file_mb",
    "receipt",
];

/// Quota of a tunnel, in MiB per day.
const DEFAULT_MB_PER_DAY: u64 = 1024;

/// Largest file that is fetched for a message, in MiB.
const DEFAULT_FILE_MB: u64 = 100;

/// Longest label of Mails, in bytes.
const MAX_LABEL_BYTES: usize = 128;

/// The tunnel that exists without being configured, and its provider.
const STUB: &str = "stub";

/// The configuration of one tunnel.
#[derive(Clone, Debug)]
pub struct TunnelConfig {
    pub provider: &'static str,
    pub enabled: bool,
    /// What happens to messages of unknown senders.
    pub strangers: StrangerPolicy,
    pub debounce: Debounce,
    /// The label of all Mails of the tunnel.
    pub binding: Option<String>,
    /// The labels of single chats, by session id.
    pub bindings: BTreeMap<String, String>,
    /// How much the tunnel may receive, in MiB per day.
    pub max_mb_per_day: u64,
    /// Largest file that is fetched for a message, in MiB.
    pub max_file_mb: u64,
    /// The reactions to messages that were kept, completed or given up.
    pub receipt: ChatReceipts,
    /// The provider's own keys.
    pub adapter: Arc<dyn AdapterConfig>,
}

/// Reads the tunnels of a section. `debounce` is the default of tunnels that do not set their
/// own.
pub fn read_tunnels(
    section: &ConfigSection<'_>,
    debounce: Debounce,
) -> Result<BTreeMap<TunnelId, TunnelConfig>, InvalidConfig> {
    let mut tunnels = BTreeMap::new();
    for name in section.keys() {
        let tunnel = section.section(name)?;
        let id: TunnelId = name.parse().map_err(|error| tunnel.invalid(format!("{error}")))?;
        tunnels.insert(id, read_tunnel(name, tunnel, debounce)?);
    }
    Ok(tunnels)
}

/// Adds the tunnel `stub`, unless it is configured.
pub fn add_stub(tunnels: &mut BTreeMap<TunnelId, TunnelConfig>, debounce: Debounce) {
    let stub: TunnelId = STUB.parse().expect("a valid tunnel id");
    tunnels.entry(stub).or_insert_with(|| TunnelConfig {
        provider: STUB,
        enabled: true,
        strangers: StrangerPolicy::default(),
        debounce,
        binding: None,
        bindings: BTreeMap::new(),
        max_mb_per_day: DEFAULT_MB_PER_DAY,
        max_file_mb: DEFAULT_FILE_MB,
        receipt: ChatReceipts::default(),
        adapter: Arc::new(StubConfig::default()),
    });
}

/// Returns the provider of a tunnel: `provider`, or the tunnel's name when that is one.
fn read_provider(
    name: &str,
    tunnel: &ConfigSection<'_>,
) -> Result<&'static Provider, InvalidConfig> {
    let names: Vec<_> = PROVIDERS.iter().map(|provider| provider.name).collect();
    let is_known = |name: &str| names.contains(&name);
    let value = tunnel.value("provider")?;
    let provider = match (is_known(name), &value) {
        (true, Some(value)) if value.raw() != name => {
            let why = format!(
                "the tunnel is called {name}, but `provider` is {}; give the tunnel another name",
                value.quoted()
            );
            return Err(tunnel.invalid(why));
        }
        (true, _) => name,
        (false, Some(value)) if is_known(value.raw()) => value.raw(),
        (false, Some(value)) => {
            let hint = match nearest(value.raw(), &names) {
                Some(meant) => format!("; did you mean {meant}?"),
                None => format!("; known providers are {}", names.join(", ")),
            };
            return Err(value.invalid(format!("unknown provider {}{hint}", value.quoted())));
        }
        (false, None) => {
            let why = format!("`provider` is missing; expected {}", or_list(&names));
            return Err(tunnel.invalid(why));
        }
    };
    let unknown = || tunnel.invalid(format!("unknown provider {provider}"));
    registry::find(provider).ok_or_else(unknown)
}

/// Reads the section of the tunnel called `name`.
pub fn read_tunnel(
    name: &str,
    section: ConfigSection<'_>,
    debounce: Debounce,
) -> Result<TunnelConfig, InvalidConfig> {
    let provider = read_provider(name, &section)?;
    let section = section.with_shared_keys(&COMMON_TUNNEL_KEYS);
    let enabled = section.flag("enabled")?.unwrap_or(true);
    let policies = [
        ("accept", StrangerPolicy::Accept),
        ("hold", StrangerPolicy::Hold),
        ("drop", StrangerPolicy::Drop),
    ];
    let bindings = section.section("bindings")?;
    let bindings = bindings.keys().map(|chat| {
        let label = read_label(&bindings.required(chat)?)?;
        Ok((chat.to_owned(), label))
    });
    Ok(TunnelConfig {
        provider: provider.name,
        enabled,
        strangers: section.one_of("strangers", &policies)?.unwrap_or_default(),
        debounce: read_debounce(&section.section("debounce")?, debounce)?,
        binding: section.value("binding")?.map(|value| read_label(&value)).transpose()?,
        bindings: bindings.collect::<Result<_, _>>()?,
        max_mb_per_day: section.number_or("max_mb_per_day", 1..=1_000_000, DEFAULT_MB_PER_DAY)?,
        max_file_mb: section.number_or("max_file_mb", 1..=10_000, DEFAULT_FILE_MB)?,
        receipt: read_receipt(&section, provider)?,
        adapter: provider.parse(&section, enabled)?,
    })
}

impl TunnelConfig {
    /// Returns how fast the tunnel reacts to messages; `None` when it has no receipts.
    pub fn reaction_rate(&self) -> Option<Rate> {
        let rate = registry::find(self.provider).and_then(|provider| provider.reaction_rate);
        rate.filter(|_| !self.receipt.is_off())
    }
}

/// Reads `receipt`. Providers without reactions reject it.
fn read_receipt(
    section: &ConfigSection<'_>,
    provider: &Provider,
) -> Result<ChatReceipts, InvalidConfig> {
    if provider.reaction_rate.is_none() && section.has("receipt") {
        let able = PROVIDERS.iter().filter(|provider| provider.reaction_rate.is_some());
        let able: Vec<_> = able.map(|provider| provider.name).collect();
        let why = format!(
            "tunnels of the provider {} cannot react to messages, only those of {}; remove the key",
            provider.name,
            or_list(&able)
        );
        return Err(section.invalid_key("receipt", why));
    }
    ChatReceipts::read(&section.section("receipt")?)
}

/// Reads a label of Mails.
fn read_label(value: &ConfigValue<'_>) -> Result<String, InvalidConfig> {
    let label = value.text()?;
    if label.is_empty() || label.len() > MAX_LABEL_BYTES || label.chars().any(char::is_control) {
        let why = "expected a label of 1 to 128 bytes without control characters";
        return Err(value.invalid(why));
    }
    Ok(label)
}
