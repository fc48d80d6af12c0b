//! The providers: one line each. The folder of a provider holds everything else about it.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use monoco_core::config::{ConfigSection, InvalidConfig};
use monoco_core::did::TunnelId;
use monoco_core::rate_limit::Rate;

use crate::egress::Egress;
use crate::email::envelope_key::EnvelopeKey;
use crate::setup::SetupQuestion;
use crate::{Adapter, dingtalk, email, lark, slack, stub, telegram, webhook};

/// Every provider of this version.
pub static PROVIDERS: &[Provider] = &[
    Provider::of::<dingtalk::config::DingTalkConfig>(),
    Provider::of::<email::config::EmailConfig>(),
    Provider::of::<lark::config::LarkConfig>(),
    Provider::of::<slack::config::SlackConfig>(),
    Provider::of::<stub::StubConfig>(),
    Provider::of::<telegram::config::TelegramConfig>(),
    Provider::of::<webhook::WebhookConfig>(),
    #[cfg(test)]
    Provider::of::<crate::toy::ToyConfig>(),
];

/// Returns the provider called `name`, or `None` when this version has none.
pub fn find(name: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|provider| provider.name == name)
}

/// Reads a tunnel's section; the flag tells whether the tunnel is enabled.
type ParseConfig = fn(&ConfigSection<'_>, bool) -> Result<Arc<dyn AdapterConfig>, InvalidConfig>;

/// A provider that tunnels can name in the config.
#[derive(Debug)]
pub struct Provider {
    pub name: &'static str,
    /// What `monoco tunnel add` asks for.
    pub questions: &'static [SetupQuestion],
    /// How fast the courier reacts to messages; `None`: the provider has no reactions.
    pub reaction_rate: Option<Rate>,
    parse: ParseConfig,
}

impl Provider {
    const fn of<C: ProviderConfig>() -> Self {
        Self {
            name: C::PROVIDER,
            questions: C::QUESTIONS,
            reaction_rate: C::REACTION_RATE,
            parse: |section, enabled| Ok(Arc::new(C::parse(section, enabled)?)),
        }
    }

    /// Reads the keys of a tunnel that belong to this provider. A tunnel that is not
    /// `enabled` may lack required values.
    pub fn parse(
        &self,
        section: &ConfigSection<'_>,
        enabled: bool,
    ) -> Result<Arc<dyn AdapterConfig>, InvalidConfig> {
        (self.parse)(section, enabled)
    }
}

#[derive(Clone, Debug)]
pub struct AdapterResources {
    /// The HTTP client, or why there is none.
    pub egress: Result<Egress, String>,
    /// The key of the envelope ids of mails; `None` sends mails without envelope ids.
    pub envelope_key: Option<EnvelopeKey>,
}

impl AdapterResources {
    /// Resources of adapters that are only tested, in a process that sends nothing.
    pub fn for_tests_of_connections() -> Self {
        Self { egress: Err("there is no HTTP client".to_owned()), envelope_key: None }
    }
}

/// The configuration of one provider's tunnels. A provider implements it once.
pub trait ProviderConfig: Debug + Sized + Send + Sync + 'static {
    /// The value of `provider` in the config.
    const PROVIDER: &'static str;

    /// What `monoco tunnel add` asks for, in this order.
    const QUESTIONS: &'static [SetupQuestion] = &[];

    /// How fast the courier may call [`Adapter::react`]. `None`: the provider has no reactions, and
    /// a tunnel with the key `receipt` is rejected.
    const REACTION_RATE: Option<Rate> = None;

    /// Reads and checks the provider's own keys. Must reject unknown keys first.
    fn parse(section: &ConfigSection<'_>, enabled: bool) -> Result<Self, InvalidConfig>;

    /// Keys that [`Adapter::apply_live`] applies. When only such keys and keys that every tunnel
    /// has are changed, a reload keeps the adapter and its connections.
    const LIVE_KEYS: &'static [&'static str] = &[];

    /// Returns how a tunnel with this config receives messages, such as `push` or `idle`.
    fn mode(&self) -> &'static str;

    /// Returns the keys whose values differ in `new`.
    fn changed_keys(&self, new: &Self) -> Vec<&'static str>;

    /// Builds the adapter of tunnel `id`. The error says why the tunnel cannot run.
    fn build(&self, id: TunnelId, resources: &AdapterResources)
    -> Result<Arc<dyn Adapter>, String>;
}

/// The configuration of one tunnel, whatever its provider. Every [`ProviderConfig`] is one.
pub trait AdapterConfig: Any + Debug + Send + Sync {
    /// Returns how the tunnel receives messages.
    fn mode(&self) -> &'static str;

    /// Returns the keys that a reload applies to a running tunnel.
    fn live_keys(&self) -> &'static [&'static str];

    /// Returns the keys whose values differ in `new`; `provider` when that is another one.
    fn changed_keys(&self, new: &dyn AdapterConfig) -> Vec<&'static str>;

    /// Builds the adapter of tunnel `id`. The error says why the tunnel cannot run.
    fn build(&self, id: TunnelId, resources: &AdapterResources)
    -> Result<Arc<dyn Adapter>, String>;
}

impl<C: ProviderConfig> AdapterConfig for C {
    fn mode(&self) -> &'static str {
        ProviderConfig::mode(self)
    }

    fn live_keys(&self) -> &'static [&'static str] {
        C::LIVE_KEYS
    }

    fn changed_keys(&self, new: &dyn AdapterConfig) -> Vec<&'static str> {
        match (new as &dyn Any).downcast_ref::<C>() {
            Some(new) => ProviderConfig::changed_keys(self, new),
            None => vec!["provider"],
        }
    }

    fn build(
        &self,
        id: TunnelId,
        resources: &AdapterResources,
    ) -> Result<Arc<dyn Adapter>, String> {
        ProviderConfig::build(self, id, resources)
    }
}
