//! Provider `webhook`: receives signed webhook requests and posts signed messages.
//!
//! * [`config`]: the keys of a tunnel.
//! * [`wire`]: creates and verifies signatures.
//! * `body`: parses the body of a request.
//! * `inbound`: converts a JSON body into an inbound message.
//! * `render`: renders JSON as Markdown.
//! * [`outbound`]: converts a message into a JSON body, and the response into an outcome.

use async_trait::async_trait;
use http::HeaderMap;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::TunnelId;
use monoco_core::inbound::InboundEvent;
use monoco_core::retry::Failure;
use tokio_util::sync::CancellationToken;

use crate::egress::{Egress, EgressTarget};
use crate::registry::ProviderConfig as _;
use crate::{
    Adapter, DeliveryRequest, InboundSink, WebhookContent, WebhookError, WebhookRequest,
    read_attachments,
};

mod body;
pub mod config;
mod inbound;
pub mod outbound;
mod render;
pub mod wire;

#[cfg(test)]
mod tests;

pub(crate) use body::read_lenient;
pub use config::{
    FieldMap, HmacHeader, InvalidWebhookConfig, SignatureEncoding, WebhookConfig,
    WebhookVerification,
};

/// The adapter of one webhook tunnel.
#[derive(Debug)]
pub struct Webhook {
    signer: wire::Signer,
    reader: inbound::MessageReader,
    target: Option<EgressTarget>,
    accepts_idempotency_keys: bool,
    egress: Egress,
}

impl Webhook {
    /// Builds the adapter of tunnel `id`. Fails with the first value that is not usable.
    pub fn new(
        id: TunnelId,
        config: WebhookConfig,
        egress: Egress,
    ) -> Result<Self, InvalidWebhookConfig> {
        let signer = config.signer()?;
        config.map.check()?;
        let target = config.target()?;
        let standard = config.verify == WebhookVerification::Standard;
        let accepts_idempotency_keys = config.idempotent.unwrap_or(standard);
        let template = config.template()?;
        let reader = inbound::MessageReader {
            tunnel: id,
            map: config.map,
            signed: signer.signed_parts(),
            dedupe: config.dedupe,
            template,
        };
        Ok(Self { signer, reader, target, accepts_idempotency_keys, egress })
    }
}

/// Why a tunnel that only receives cannot send.
const NO_TARGET: &str = "this tunnel cannot send: it has no send_to";

#[async_trait]
impl Adapter for Webhook {
    fn id(&self) -> &TunnelId {
        &self.reader.tunnel
    }

    fn provider(&self) -> &'static str {
        WebhookConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        config::MODE
    }

    fn accepts_idempotency_keys(&self) -> bool {
        self.accepts_idempotency_keys
    }

    fn cannot_send(&self) -> Option<&'static str> {
        self.target.is_none().then_some(NO_TARGET)
    }

    fn check_webhook_headers(&self, headers: &HeaderMap) -> Result<(), WebhookError> {
        self.signer.check_headers(headers)
    }

    fn parse_webhook(&self, request: &WebhookRequest<'_>) -> Result<WebhookContent, WebhookError> {
        self.signer.verify(request)?;
        let (message, attachments) = self.reader.read(request)?;
        let events = vec![InboundEvent::Message { message, attachments }];
        Ok(WebhookContent { events, answer: None })
    }

    async fn listen(
        &self,
        _sink: &dyn InboundSink,
        stop: CancellationToken,
    ) -> Result<(), Failure> {
        // Requests arrive through `parse_webhook`.
        stop.cancelled().await;
        Ok(())
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        let Some(target) = &self.target else {
            let detail = NO_TARGET.to_owned();
            return DeliveryOutcome::Failed(Failure::Permanent { detail, error_code: None });
        };
        let attachments = match read_attachments(request, outbound::MAX_ATTACHMENT_BYTES).await {
            Ok(attachments) => attachments,
            Err(failure) => return DeliveryOutcome::Failed(failure),
        };
        let body = outbound::body(request, &attachments);
        drop(attachments);
        let headers = outbound::headers(&self.signer, request, &body);
        match self.egress.post(target, headers, body).await {
            Ok(response) => outbound::outcome(&response, &target.shown(), request.now),
            Err(failure) => DeliveryOutcome::Failed(failure),
        }
    }
}
