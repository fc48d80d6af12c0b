//! Provider `email`: watches one IMAP account and sends through one SMTP server.
//!
//! * [`config`]: the keys of an account.
//! * [`inbound`]: converts a mail into a message, with [`html`] and [`auth_results`]; [`dsn`]
//!   reads delivery reports.
//! * [`imap`]: receives. Mails are registered as they are; the courier parses them later.
//! * [`compose`]: writes mails; [`smtp`]: sends them; [`sent_copy`]: copies them into a folder.

use std::any::Any;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::TunnelId;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::registry::{AdapterConfig, ProviderConfig};
use crate::{Adapter, DeliveryRequest, InboundSink, ProbeReport};

pub mod auth_results;
pub mod compose;
pub mod config;
pub mod dsn;
pub mod envelope_key;
pub mod html;
pub mod imap;
pub mod inbound;
pub mod sent_copy;
pub mod smtp;

use config::EmailConfig;
use envelope_key::EnvelopeKey;
use imap::{ImapError, ImapTiming, account, listener};
use sent_copy::SentCopies;
use smtp::{SmtpClient, SmtpLimits};

/// The e-mail side of a tunnel, for the courier and the command line.
#[async_trait]
pub trait EmailAdapter: Send + Sync {
    /// Returns the current config. A reload replaces it when only
    /// [`LIVE_KEYS`](ProviderConfig::LIVE_KEYS) have changed.
    fn config(&self) -> Arc<EmailConfig>;

    /// Makes the listener check all folders now. Does nothing while it is not connected: it
    /// checks all folders when it connects.
    fn scan_now(&self);

    /// Fetches the newest `count` mails of the first folder, oldest first, at most 100.
    async fn fetch_recent_emails(&self, count: u32) -> Result<Vec<IncomingEmail>, Failure>;

    /// Fetches up to `limit` mails of the first folder whose UID is greater than `start`, in
    /// ascending order, at most 100. The flag tells whether there are more.
    async fn fetch_emails_by_uid_range(
        &self,
        start: u32,
        limit: u32,
    ) -> Result<(Vec<IncomingEmail>, bool), Failure>;

    /// Fetches one mail of the first folder; `None` when there is no mail with this UID.
    async fn fetch_email_by_uid(&self, uid: u32) -> Result<Option<IncomingEmail>, Failure>;

    /// Returns the UID that the next mail of the first folder will have at least.
    async fn mailbox_uid_next(&self) -> Result<u32, Failure>;
}

/// One mail of a folder, with the fields that people look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingEmail {
    pub uid: u32,
    /// With its angle brackets; empty when the mail has none.
    pub message_id: String,
    pub from: String,
    pub to: String,
    pub subject: String,
    /// The text of the mail, as far as it can be decoded.
    pub body: String,
    pub raw: Vec<u8>,
    /// The time in the header; `None` when there is no valid one.
    pub date: Option<Timestamp>,
}

/// The adapter of one e-mail account.
#[derive(Debug)]
pub struct EmailAccountAdapter {
    id: TunnelId,
    config: RwLock<Arc<EmailConfig>>,
    scan_now: Notify,
    /// `None` when the account only receives.
    smtp: Option<SmtpClient>,
    sent_copies: SentCopies,
}

impl EmailAccountAdapter {
    pub fn new(id: TunnelId, config: EmailConfig, envelope_key: Option<EnvelopeKey>) -> Self {
        let smtp = SmtpClient::new(id.clone(), &config, envelope_key, SmtpLimits::default());
        let (config, scan_now) = (RwLock::new(Arc::new(config)), Notify::new());
        Self { id, config, scan_now, smtp, sent_copies: SentCopies::default() }
    }
}

#[async_trait]
impl Adapter for EmailAccountAdapter {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        EmailConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        ProviderConfig::mode(&*self.config())
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    fn opens_connection(&self) -> bool {
        true
    }

    fn apply_live(&self, config: &dyn AdapterConfig) {
        if let Some(new) = (config as &dyn Any).downcast_ref::<EmailConfig>() {
            *self.config.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new.clone());
        }
    }

    fn email(&self) -> Option<&dyn EmailAdapter> {
        Some(self)
    }

    async fn probe(&self) -> Result<ProbeReport, Failure> {
        let mut lines = account::probe(&self.config()).await.map_err(ImapError::failure)?;
        if let Some(smtp) = &self.smtp {
            lines.extend(smtp.probe().await?);
        }
        Ok(ProbeReport { lines, warnings: Vec::new() })
    }

    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        let (config, timing) = (self.config(), ImapTiming::default());
        let close_idle = async {
            if let Some(smtp) = &self.smtp {
                smtp.close_idle(&stop).await;
            }
        };
        tokio::join!(
            listener::listen(&config, timing, &self.scan_now, sink, &stop),
            close_idle,
            self.sent_copies.run(&stop),
        );
        Ok(())
    }

    fn attempt_timeout(&self) -> Duration {
        smtp::ATTEMPT_TIMEOUT
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        let Some(smtp) = &self.smtp else {
            let detail = "the account only receives; set `smtp` to send".to_owned();
            return DeliveryOutcome::Failed(Failure::Permanent { detail, error_code: None });
        };
        let config = self.config();
        let result = smtp.deliver(request, &config).await;
        if let Some(mail) = result.sent {
            self.sent_copies.add(&config, mail);
        }
        result.outcome
    }
}

#[async_trait]
impl EmailAdapter for EmailAccountAdapter {
    fn config(&self) -> Arc<EmailConfig> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn scan_now(&self) {
        self.scan_now.notify_one();
    }

    async fn fetch_recent_emails(&self, count: u32) -> Result<Vec<IncomingEmail>, Failure> {
        account::recent_emails(&self.config(), count).await.map_err(ImapError::failure)
    }

    async fn fetch_emails_by_uid_range(
        &self,
        start: u32,
        limit: u32,
    ) -> Result<(Vec<IncomingEmail>, bool), Failure> {
        let config = self.config();
        account::emails_by_uid_range(&config, start, limit).await.map_err(ImapError::failure)
    }

    async fn fetch_email_by_uid(&self, uid: u32) -> Result<Option<IncomingEmail>, Failure> {
        account::email_by_uid(&self.config(), uid).await.map_err(ImapError::failure)
    }

    async fn mailbox_uid_next(&self) -> Result<u32, Failure> {
        account::uid_next(&self.config()).await.map_err(ImapError::failure)
    }
}
