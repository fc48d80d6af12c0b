//! The keys of a webhook tunnel: `verify`, `secret`, `send_to`, `map` and so on.

use std::sync::Arc;
use std::time::Duration;

use monoco_core::config::{ConfigSection, InvalidConfig, Secret};
use monoco_core::did::TunnelId;

use super::render::WebhookTemplate;
use super::{Webhook, wire};
use crate::Adapter;
use crate::egress::EgressTarget;
use crate::registry::{AdapterResources, ProviderConfig};
use crate::setup::SetupQuestion;

/// The keys of a webhook tunnel beside those of every tunnel.
const KEYS: [&str; 10] = [
    "verify",
    "secret",
    "secret_file",
    "allow_unverified",
    "send_to",
    "map",
    "dedupe_s",
    "template",
    "idempotent",
    "allow_private",
];

/// How a webhook tunnel receives messages: the sender posts them to the courier.
pub(super) const MODE: &str = "push";

/// The configuration of a webhook tunnel.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// How requests are signed, in both directions.
    pub verify: WebhookVerification,
    /// The key of the signatures. It is empty only in tunnels that are not enabled.
    ///
    /// With [`WebhookVerification::Standard`] it is base64, with or without the prefix
    /// `whsec_`. Several secrets may be given, separated by spaces: the first one signs,
    /// and signatures of all of them are accepted. With other schemes it is the key itself.
    pub secret: Secret,
    /// Must be `true` for [`WebhookVerification::Unverified`].
    pub allow_unverified: bool,
    /// The URL that messages are posted to. Without it the tunnel only receives.
    pub send_to: Option<String>,
    pub map: FieldMap,
    /// How long a body without an id counts as a duplicate of an equal one; default 60 s.
    pub dedupe: Duration,
    /// A minijinja template that renders the body as Markdown.
    pub template: Option<String>,
    /// Whether the receiver recognises a second copy by its id. The default is `true` for
    /// Standard Webhooks, which requires that of receivers, and `false` otherwise.
    pub idempotent: Option<bool>,
    /// Whether `send_to` may be an address of this machine or of a private network.
    pub allow_private: bool,
}

/// How requests are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookVerification {
    /// Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    Standard,
    Github,
    /// The secret itself in the header `X-Gitlab-Token`.
    Gitlab,
    /// `Stripe-Signature` with `t=` and `v1=`.
    Stripe,
    /// The headers `X-Slack-Signature` and `X-Slack-Request-Timestamp`.
    Slack,
    /// The secret as a bearer token (RFC 6750).
    Bearer,
    /// The secret is `user:password` (RFC 7617).
    Basic,
    /// An HMAC-SHA256 of the body in a configured header.
    Hmac(HmacHeader),
    /// `none`: every program on this machine may post.
    Unverified,
}

/// The header that holds the signature, and its format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HmacHeader {
    pub header: String,
    pub encoding: SignatureEncoding,
    /// The text before the signature, such as `sha256=`.
    pub prefix: String,
    /// The header with the time in seconds since 1970. When it is set, the signature is
    /// over `{timestamp}.{body}` and is valid for 300 s.
    pub timestamp_header: Option<String>,
}

/// The encoding of the bytes of a signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SignatureEncoding {
    #[default]
    Hex,
    Base64,
}

/// Where the fields of a message are in the JSON: JSON pointers, such as `/message/text`.
///
/// When a pointer is missing or points at nothing, the default place is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldMap {
    /// The message's id; default `/id`, then headers such as `webhook-id` and
    /// `X-GitHub-Delivery`.
    pub id: Option<String>,
    /// The session; default `/session/id`, then the tunnel itself.
    pub session_id: Option<String>,
    /// `direct`, `group` or `thread`; default `/session/type`.
    pub session_type: Option<String>,
    /// The display name of the session; default `/session/name`.
    pub session_name: Option<String>,
    /// The thread in the session; default `/session/thread_key`.
    pub thread_key: Option<String>,
    /// The author; default `/from/id`, then `/from`, then `unknown`.
    pub from_id: Option<String>,
    /// The display name of the author; default `/from/name`.
    pub from_name: Option<String>,
    /// The subject; default `/title`.
    pub title: Option<String>,
    /// The text; default `/text`, then a rendering of the JSON.
    pub text: Option<String>,
    /// The time, as RFC 3339 or in seconds or milliseconds since 1970; default
    /// `/timestamp`.
    pub timestamp: Option<String>,
    /// The mentions, a list of texts or of `{id}` or `{name}`; default `/mentions`.
    pub mentions: Option<String>,
    /// The id of the message that it answers; default `/reply_to`.
    pub reply_to: Option<String>,
    /// The original author of a forwarded message; default `/forwarded_from`.
    pub forwarded_from: Option<String>,
    /// The sender's own correlation id; default `/correlation_id`.
    pub correlation_id: Option<String>,
    /// The attachments, a list of `{name, mime_type, base64}` or
    /// `{name, mime_type, url}`; default `/attachments`.
    pub attachments: Option<String>,
}

/// A value with which a webhook tunnel cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct InvalidWebhookConfig {
    /// The key below the tunnel, such as `verify.header`.
    pub key: String,
    pub why: String,
}

impl InvalidWebhookConfig {
    pub(super) fn at(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: key.into(), why: why.into() }
    }
}

impl ProviderConfig for WebhookConfig {
    const PROVIDER: &'static str = "webhook";

    const QUESTIONS: &'static [SetupQuestion] = &[
        SetupQuestion::optional(
            "verify",
            "how requests are signed: standard, github, gitlab, stripe, slack, bearer or basic",
        )
        .with_default("standard"),
        SetupQuestion::required("secret", "secret of the signatures").secret(),
        SetupQuestion::optional("send_to", "URL that messages are posted to"),
    ];

    fn parse(section: &ConfigSection<'_>, enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&KEYS)?;
        let config = Self {
            verify: WebhookVerification::parse(section)?,
            secret: section.secret("secret")?,
            allow_unverified: section.flag("allow_unverified")?.unwrap_or(false),
            send_to: section.text("send_to")?,
            map: FieldMap::parse(&section.section("map")?)?,
            dedupe: Duration::from_secs(section.number_or("dedupe_s", 1..=86_400, 60)?),
            template: section.text("template")?,
            idempotent: section.flag("idempotent")?,
            allow_private: section.flag("allow_private")?.unwrap_or(false),
        };
        if enabled {
            config.check().map_err(|error| section.invalid_key(&error.key, error.why))?;
        }
        Ok(config)
    }

    fn mode(&self) -> &'static str {
        MODE
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        let keys = [
            ("verify", self.verify != new.verify),
            ("secret", self.secret != new.secret),
            ("allow_unverified", self.allow_unverified != new.allow_unverified),
            ("send_to", self.send_to != new.send_to),
            ("map", self.map != new.map),
            ("dedupe_s", self.dedupe != new.dedupe),
            ("template", self.template != new.template),
            ("idempotent", self.idempotent != new.idempotent),
            ("allow_private", self.allow_private != new.allow_private),
        ];
        keys.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    fn build(
        &self,
        id: TunnelId,
        resources: &AdapterResources,
    ) -> Result<Arc<dyn Adapter>, String> {
        let webhook = Webhook::new(id, self.clone(), resources.egress.clone()?);
        Ok(Arc::new(webhook.map_err(|error| error.to_string())?))
    }
}

impl WebhookConfig {
    /// Checks that a tunnel can run with this config.
    fn check(&self) -> Result<(), InvalidWebhookConfig> {
        self.signer()?;
        self.map.check()?;
        self.template()?;
        self.target()?;
        Ok(())
    }

    /// Compiles the template, so that its errors are errors of the config.
    pub(super) fn template(&self) -> Result<Option<WebhookTemplate>, InvalidWebhookConfig> {
        let template = self.template.as_deref().map(WebhookTemplate::compile).transpose();
        template.map_err(|error| InvalidWebhookConfig::at("template", error))
    }

    /// Returns what verifies and signs requests.
    pub(super) fn signer(&self) -> Result<wire::Signer, InvalidWebhookConfig> {
        let unverified = self.verify == WebhookVerification::Unverified;
        if unverified && !self.allow_unverified {
            let why = "`none` accepts requests of every program on this machine; set \
                       `allow_unverified: true` if that is intended";
            return Err(InvalidWebhookConfig::at("verify", why));
        }
        if unverified && !self.secret.expose().is_empty() {
            let why = "not used with `verify: none`; remove it or choose how requests are verified";
            return Err(InvalidWebhookConfig::at("secret", why));
        }
        wire::Signer::new(&self.verify, &self.secret)
    }

    /// Returns where messages are posted to, or `None` when the tunnel only receives.
    pub(super) fn target(&self) -> Result<Option<EgressTarget>, InvalidWebhookConfig> {
        let parse = |url: &String| EgressTarget::parse(url, self.allow_private);
        let target = self.send_to.as_ref().map(parse).transpose();
        target.map_err(|error| InvalidWebhookConfig::at("send_to", error.to_string()))
    }
}

impl WebhookVerification {
    /// The values of `verify` that are one word.
    const NAMED: [(&'static str, Self); 8] = [
        ("standard", Self::Standard),
        ("github", Self::Github),
        ("gitlab", Self::Gitlab),
        ("stripe", Self::Stripe),
        ("slack", Self::Slack),
        ("bearer", Self::Bearer),
        ("basic", Self::Basic),
        ("none", Self::Unverified),
    ];

    /// Reads `verify`: a word or a mapping with `header`.
    fn parse(section: &ConfigSection<'_>) -> Result<Self, InvalidConfig> {
        if !section.is_section("verify") {
            let words = Self::NAMED.each_ref().map(|(name, verification)| (*name, verification));
            return Ok(section.one_of("verify", &words)?.cloned().unwrap_or(Self::Standard));
        }
        let section = section.section("verify")?;
        section.deny_unknown_keys(&["header", "encoding", "prefix", "timestamp_header"])?;
        let encodings = [("hex", SignatureEncoding::Hex), ("base64", SignatureEncoding::Base64)];
        Ok(Self::Hmac(HmacHeader {
            header: section.required("header")?.text()?,
            encoding: section.one_of("encoding", &encodings)?.unwrap_or_default(),
            prefix: section.text("prefix")?.unwrap_or_default(),
            timestamp_header: section.text("timestamp_header")?,
        }))
    }
}

impl FieldMap {
    /// Reads the pointers. [`Self::check`] checks them.
    fn parse(section: &ConfigSection<'_>) -> Result<Self, InvalidConfig> {
        let mut map = Self::default();
        section.deny_unknown_keys(&map.pointers().map(|(key, _)| key))?;
        for (key, pointer) in map.pointers() {
            *pointer = section.text(key)?;
        }
        Ok(map)
    }

    /// Returns maps with these pointers. The second pointer of a key is in the second map, and
    /// so on.
    pub(super) fn list(pointers: &[(&str, &str)]) -> Vec<Self> {
        let mut maps: Vec<Self> = Vec::new();
        for (key, pointer) in pointers {
            let free = |map: &mut Self| {
                let mut places = map.pointers().into_iter();
                let place = places.find(|(name, place)| name == key && place.is_none());
                place.map(|(_, place)| *place = Some((*pointer).to_owned()))
            };
            if maps.iter_mut().find_map(free).is_none() {
                maps.push(Self::default());
                maps.last_mut().and_then(free);
            }
        }
        maps
    }

    /// Returns every pointer with its key.
    fn pointers(&mut self) -> [(&'static str, &mut Option<String>); 15] {
        [
            ("id", &mut self.id),
            ("session_id", &mut self.session_id),
            ("session_type", &mut self.session_type),
            ("session_name", &mut self.session_name),
            ("thread_key", &mut self.thread_key),
            ("from_id", &mut self.from_id),
            ("from_name", &mut self.from_name),
            ("title", &mut self.title),
            ("text", &mut self.text),
            ("timestamp", &mut self.timestamp),
            ("mentions", &mut self.mentions),
            ("reply_to", &mut self.reply_to),
            ("forwarded_from", &mut self.forwarded_from),
            ("correlation_id", &mut self.correlation_id),
            ("attachments", &mut self.attachments),
        ]
    }

    /// Checks that each pointer is a JSON pointer: it starts with a slash, and every tilde
    /// is followed by 0 or 1.
    pub(super) fn check(&self) -> Result<(), InvalidWebhookConfig> {
        for (key, pointer) in self.clone().pointers() {
            let Some(pointer) = pointer else { continue };
            let escapes = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            if !pointer.starts_with('/') || !escapes {
                let why = format!(
                    "{pointer:?} is not a JSON pointer; expected one such as /message/text"
                );
                return Err(InvalidWebhookConfig::at(format!("map.{key}"), why));
            }
        }
        Ok(())
    }
}
