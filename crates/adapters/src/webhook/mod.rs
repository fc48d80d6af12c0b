//! Signed webhooks, both ways: what others post to us, and what we post to them.
//!
//! * [`wire`]: the signatures.
//! * [`inbound`]: how a JSON body becomes something heard. `github.rs` knows GitHub's.
//! * [`draft_watcher`]: how a message becomes a JSON body, and what the answer means.

use async_trait::async_trait;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::TunnelId;
use monoco_core::inbound::{InboundAttachment, InboundMessage};
use monoco_core::retry::Failure;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::egress::{Egress, EgressTarget, InvalidTarget};
use crate::{Adapter, DeliveryRequest, InboundSink, Secret, WebhookError, WebhookRequest};

mod github;
pub mod inbound;
pub mod outbound;
pub mod wire;

#[cfg(test)]
mod tests;

/// How a webhook tunnel is set up.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// How requests are signed, in both directions.
    pub verify: WebhookVerification,
    /// What they are signed with. Never empty.
    ///
    /// With [`WebhookVerification::Standard`] it is base64, with or without `whsec_` in front, and
    /// there may be several, separated by spaces: the first one signs, and what any
    /// of them has signed is taken. Otherwise it is the key itself.
    pub secret: Secret,
    /// Where messages are posted to; without it the tunnel only hears.
    pub send_to: Option<String>,
    /// Where in the JSON what is to be found.
    pub map: FieldMap,
    /// Whether the receiver recognises a second copy by its id. Standard Webhooks
    /// demands that of receivers, so there it is assumed.
    pub idempotent: Option<bool>,
    /// Whether `send_to` may be an address of this machine or a private network.
    pub allow_private: bool,
}

/// How requests are signed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WebhookVerification {
    /// Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`.
    Standard,
    /// GitHub: `X-Hub-Signature-256`.
    Github,
    /// An HMAC-SHA256 of the body in a header of the sender's choice.
    Hmac(HmacHeader),
}

/// Which header the signature is in, and how.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HmacHeader {
    /// The header's name.
    pub header: String,
    /// How the bytes of the signature are written.
    #[serde(default)]
    pub encoding: SignatureEncoding,
    /// What stands before them, such as `sha256=`.
    #[serde(default)]
    pub prefix: String,
    /// The header with the time in seconds since 1970, where there is one. Then what
    /// is signed is `{timestamp}.{body}`, and it is good for 300 s.
    #[serde(default)]
    pub timestamp_header: Option<String>,
}

/// How the bytes of a signature are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignatureEncoding {
    /// In hexadecimal.
    #[default]
    Hex,
    /// In base64.
    Base64,
}

/// Where in the JSON what is to be found: JSON pointers, such as `/message/text`.
///
/// Where one is missing, or points at nothing, the place in the default body counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FieldMap {
    /// The message's id; default `/id`, then the headers `webhook-id` and
    /// `X-GitHub-Delivery`.
    pub id: Option<String>,
    /// The session; default `/session/id`, then the tunnel itself.
    pub session_id: Option<String>,
    /// `direct`, `group` or `thread`; default `/session/type`.
    pub session_type: Option<String>,
    /// What people call the session; default `/session/name`.
    pub session_name: Option<String>,
    /// The thread in it; default `/session/thread_key`.
    pub thread_key: Option<String>,
    /// The author; default `/from/id`, then `/from`, then `unknown`.
    pub from_id: Option<String>,
    /// What the author is called; default `/from/name`.
    pub from_name: Option<String>,
    /// The subject; default `/title`.
    pub title: Option<String>,
    /// What was said; default `/text`, then the whole JSON.
    pub text: Option<String>,
    /// When, as RFC 3339 or in seconds or milliseconds since 1970; default
    /// `/timestamp`.
    pub timestamp: Option<String>,
    /// Who is mentioned, a list of texts or of `{id}` or `{name}`; default `/mentions`.
    pub mentions: Option<String>,
    /// The id of the message it answers; default `/reply_to`.
    pub reply_to: Option<String>,
    /// Whose words they were before; default `/forwarded_from`.
    pub forwarded_from: Option<String>,
    /// What the sender files it under; default `/correlation_id`.
    pub correlation_id: Option<String>,
    /// What comes with it, a list of `{name, mime_type, base64}` or
    /// `{name, mime_type, url}`; default `/attachments`.
    pub attachments: Option<String>,
}

/// The tunnel can't be set up like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWebhookConfig {
    /// There is no secret.
    #[error(
        "secret: empty; a tunnel without a secret does not start. \
         Set it to what the other side signs with"
    )]
    NoSecret,
    /// It is not one of Standard Webhooks.
    #[error(
        "secret: not one of Standard Webhooks; want base64 of 16 bytes or more, with or without \
         whsec_ in front (`openssl rand -base64 32` makes one)"
    )]
    BadSecret,
    /// A header can't be called that.
    #[error("verify.{field}: {name:?} is not the name of a header")]
    HeaderName {
        /// Which setting.
        field: &'static str,
        /// What it says.
        name: String,
    },
    /// One header for two things.
    #[error("verify: header and timestamp_header must not be the same")]
    SameHeader,
    /// The prefix does not fit into a header.
    #[error("verify.prefix: want printable ASCII")]
    Prefix,
    /// It is not a JSON pointer.
    #[error("map.{field}: {pointer:?} is not a JSON pointer; want one like /message/text")]
    Pointer {
        /// Which setting.
        field: &'static str,
        /// What it says.
        pointer: String,
    },
    /// Nothing may be sent there.
    #[error("send_to: {0}")]
    SendTo(#[from] InvalidTarget),
}

/// A tunnel of signed webhooks.
#[derive(Debug)]
pub struct Webhook {
    id: TunnelId,
    signer: wire::Signer,
    github: bool,
    map: FieldMap,
    target: Option<EgressTarget>,
    takes_keys: bool,
    egress: Egress,
}

impl Webhook {
    /// The tunnel `id`, as `settings` say.
    ///
    /// # Errors
    ///
    /// The first setting that is wrong, and what it should be.
    pub fn new(
        id: TunnelId,
        settings: WebhookConfig,
        egress: Egress,
    ) -> Result<Self, InvalidWebhookConfig> {
        let WebhookConfig { verify, secret, send_to, map, idempotent, allow_private } = settings;
        let signer = wire::Signer::new(&verify, &secret)?;
        map.check()?;
        let target = send_to.map(|url| EgressTarget::parse(&url, allow_private)).transpose()?;
        let takes_keys = idempotent.unwrap_or(verify == WebhookVerification::Standard);
        let github = verify == WebhookVerification::Github;
        Ok(Self { id, signer, github, map, target, takes_keys, egress })
    }
}

#[async_trait]
impl Adapter for Webhook {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        "webhook"
    }

    fn accepts_idempotency_keys(&self) -> bool {
        self.takes_keys
    }

    fn pushed(
        &self,
        push: &WebhookRequest<'_>,
    ) -> Result<Vec<(InboundMessage, Vec<InboundAttachment>)>, WebhookError> {
        self.signer.verify(push)?;
        let heard = if self.github {
            github::read(&self.id, &self.map, push)?
        } else {
            inbound::read(&self.id, &self.map, push)?
        };
        Ok(vec![heard])
    }

    async fn listen(&self, _ear: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        // What is posted to us comes in through `pushed`.
        stop.cancelled().await;
        Ok(())
    }

    async fn deliver(&self, parcel: &DeliveryRequest<'_>) -> DeliveryOutcome {
        let Some(target) = &self.target else {
            let detail = "this tunnel has no send_to".to_owned();
            return DeliveryOutcome::Failed(Failure::Permanent { detail });
        };
        let body = match outbound::body(parcel) {
            Ok(body) => body,
            Err(failure) => return DeliveryOutcome::Failed(failure),
        };
        let headers = outbound::headers(&self.signer, parcel, &body);
        match self.egress.post(target, headers, body).await {
            Ok(reply) => outbound::outcome(&reply, &target.shown(), parcel.now),
            Err(failure) => DeliveryOutcome::Failed(failure),
        }
    }
}

impl FieldMap {
    /// Every pointer, with the name of its setting.
    fn pointers(&self) -> [(&'static str, &Option<String>); 15] {
        [
            ("id", &self.id),
            ("session_id", &self.session_id),
            ("session_type", &self.session_type),
            ("session_name", &self.session_name),
            ("thread_key", &self.thread_key),
            ("from_id", &self.from_id),
            ("from_name", &self.from_name),
            ("title", &self.title),
            ("text", &self.text),
            ("timestamp", &self.timestamp),
            ("mentions", &self.mentions),
            ("reply_to", &self.reply_to),
            ("forwarded_from", &self.forwarded_from),
            ("correlation_id", &self.correlation_id),
            ("attachments", &self.attachments),
        ]
    }

    /// Checks that each is a JSON pointer: it starts with a slash, and a tilde in it
    /// is followed by 0 or 1.
    ///
    /// # Errors
    ///
    /// [`InvalidWebhookConfig::Pointer`] with the first that is not.
    pub fn check(&self) -> Result<(), InvalidWebhookConfig> {
        for (field, pointer) in self.pointers() {
            let Some(pointer) = pointer else { continue };
            let escapes = pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
            if !pointer.starts_with('/') || !escapes {
                return Err(InvalidWebhookConfig::Pointer { field, pointer: pointer.clone() });
            }
        }
        Ok(())
    }
}
