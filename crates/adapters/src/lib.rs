//! Adapters: one folder per provider, which receives and sends messages and does nothing else.
//!
//! An adapter has no access to the store, so it cannot route, retry or store state. It
//! passes received messages to an [`InboundSink`] and acknowledges them to the provider
//! only after the sink has stored them. It makes one attempt at each delivery and reports
//! the outcome; the queue retries. [`registry`] lists the providers.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use http::{HeaderMap, StatusCode};
use monoco_core::chat_receipt::Reaction;
use monoco_core::delivery::{DeliveryOutcome, SentPart};
use monoco_core::did::{EndpointKind, TunnelId};
use monoco_core::inbound::{
    ChatPosition, FetchedMail, InboundAttachment, InboundEvent, InboundMessage, StoredBytes,
};
use monoco_core::outgoing::{AttachmentRef, OutgoingMessage};
use monoco_core::rate_limit::SendLimits;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_util::sync::CancellationToken;

use crate::email::EmailAdapter;
use crate::registry::AdapterConfig;

mod chat_config;
pub mod dingtalk;
pub mod egress;
pub mod email;
pub mod lark;
pub mod markdown;
mod missed_history;
mod names;
mod naming_sink;
pub mod net;
mod push_mode;
pub mod registry;
pub mod secret_command;
pub mod setup;
pub mod slack;
pub mod socket;
pub mod stub;
pub mod telegram;
mod throttle;
pub mod webhook;

#[cfg(test)]
mod delivery_fixture;
#[cfg(test)]
mod scripted;
#[cfg(test)]
mod toy;

/// The default of [`Adapter::attempt_timeout`].
const DEFAULT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(45);

/// One tunnel: a connection to one provider.
#[async_trait]
pub trait Adapter: Send + Sync {
    /// Returns the id of the tunnel.
    fn id(&self) -> &TunnelId;

    /// Returns the provider's name in the config.
    fn provider(&self) -> &'static str;

    /// Returns how the tunnel receives messages, such as `push`, `idle` or `memory`.
    fn mode(&self) -> &'static str;

    /// Tells whether the provider recognises a second copy by [`DeliveryRequest::key`].
    /// Only then is a delivery with an unknown outcome retried.
    fn accepts_idempotency_keys(&self) -> bool;

    /// Returns why the tunnel sends nothing at all, `None` when it sends.
    fn cannot_send(&self) -> Option<&'static str> {
        None
    }

    /// Tells whether the tunnel receives messages through a connection that it opens. Then it
    /// is down until it reports [`ConnectionEvent::Connected`].
    fn opens_connection(&self) -> bool {
        false
    }

    /// Tells whether the adapter reads missed messages from the provider's history. Then
    /// [`InboundSink::last_received`] tells it where to start; for other tunnels it is empty.
    fn reads_history(&self) -> bool {
        false
    }

    /// Applies the values of [`ProviderConfig::LIVE_KEYS`](registry::ProviderConfig::LIVE_KEYS)
    /// that a reload has changed. The tunnel keeps its connections.
    fn apply_live(&self, _config: &dyn AdapterConfig) {}

    /// Returns how long one delivery attempt may take, or each part of it when the message has
    /// several. The lease of the delivery is longer.
    fn attempt_timeout(&self) -> Duration {
        DEFAULT_ATTEMPT_TIMEOUT
    }

    /// Checks connection and login once, without receiving or sending anything. Adapters
    /// that open no connection of their own have nothing to check.
    async fn probe(&self) -> Result<ProbeReport, Failure> {
        Ok(ProbeReport::default())
    }

    /// Returns the e-mail side of the tunnel, when it is an e-mail account.
    fn email(&self) -> Option<&dyn EmailAdapter> {
        None
    }

    /// Checks the headers of a webhook request before its body is read. Rejects a request that
    /// lacks a header that its verification needs.
    fn check_webhook_headers(&self, _headers: &HeaderMap) -> Result<(), WebhookError> {
        Err(WebhookError::NotSupported)
    }

    /// Verifies and parses a request that the provider posted to the webhook listener.
    /// Adapters of providers without webhooks reject every request.
    fn parse_webhook(&self, _request: &WebhookRequest<'_>) -> Result<WebhookContent, WebhookError> {
        Err(WebhookError::NotSupported)
    }

    /// Adds to events of [`Self::parse_webhook`] what must be looked up, such as names. The
    /// provider waits for the answer, so it takes at most 2 s and never fails.
    async fn complete_events(&self, events: Vec<InboundEvent>) -> Vec<InboundEvent> {
        events
    }

    /// Opens a file that was announced with a message, by the handle in
    /// [`Artifact::fetch`](monoco_core::inbound::Artifact::fetch). Makes one attempt; the courier
    /// stores the bytes while they are read, and retries after a failure.
    async fn open_file(&self, _handle: &str) -> Result<FileDownload, Failure> {
        let detail = "this provider has no files".to_owned();
        Err(Failure::Permanent { detail, error_code: None })
    }

    /// Puts a reaction on a message that the tunnel has received, by its external id. Makes one
    /// attempt. A reaction that is there already is a success, and so is an id without a message
    /// in the chat, such as that of an edit, a command or a deleted message: there is nothing to
    /// react to. The courier calls it only for providers with a
    /// [`REACTION_RATE`](registry::ProviderConfig::REACTION_RATE).
    async fn react(&self, _message_id: &str, _reaction: Reaction) -> Result<(), Failure> {
        let detail = "this provider has no reactions".to_owned();
        Err(Failure::Permanent { detail, error_code: None })
    }

    /// Receives messages until `stop` and passes them to `sink`.
    ///
    /// Returns early only when reconnecting cannot help, such as with a revoked token. The
    /// courier calls it again when it panics.
    /// The adapter handles lost connections itself and reports them to `sink`. Returns only
    /// after its connections are closed, because a reload then opens new ones.
    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure>;

    /// Returns the rate limits of the provider that are known before they are hit. The courier
    /// keeps them: it waits before an attempt, and before the next part of a message.
    fn send_limits(&self, _kind: EndpointKind) -> SendLimits {
        SendLimits::default()
    }

    /// Tells whether [`Self::find_sent`] can find a message at the provider.
    fn finds_sent(&self) -> bool {
        false
    }

    /// Looks for the part whose outcome is unknown at the provider: the one after
    /// [`DeliveryRequest::sent_parts`], or the message itself. The courier calls it before the
    /// next attempt, and only when [`Self::finds_sent`] is true. When the part is found, the
    /// attempt continues after it; when it is `None`, the delivery becomes UNCERTAIN.
    ///
    /// A provider that remembers idempotency keys for a limited time can be asked by the same
    /// request with the same key: it answers with the message that it has, or sends it now.
    async fn find_sent(&self, _request: &DeliveryRequest<'_>) -> Result<Option<SentPart>, Failure> {
        Ok(None)
    }

    /// Makes one attempt to deliver a message and returns its outcome. Never retries.
    ///
    /// A message that is too long for one request is sent in parts. The attempt starts after
    /// [`DeliveryRequest::sent_parts`] and reports each part to [`DeliveryRequest::progress`]
    /// before it sends the next one; the last part can be returned as
    /// [`DeliveryOutcome::Accepted`] instead. When every part is among the sent ones, nothing is
    /// sent and the outcome is `Accepted`.
    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome;
}

/// Where adapters pass inbound messages.
#[async_trait]
pub trait InboundSink: Send + Sync {
    /// Checks the limits of a message and stores it with its attachments. Returns after the
    /// commit: only then may the adapter acknowledge the message to the provider. Returns
    /// `false` when the message is not new or not wanted.
    async fn receive(
        &self,
        message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError>;

    /// Stores a batch of events in one commit where possible. Returns after the commit, with one
    /// result for each event, in the order of the batch, which is the order of arrival. `false`:
    /// the event is not new or not wanted.
    ///
    /// An edit or recall changes the stored message while its merge window is open. Later it is an
    /// event on the Mail, and a message in the same session that names the message it corrects. An
    /// edit that changes neither text nor mentions is a duplicate. A notice is an event in the log.
    async fn receive_events(&self, events: Vec<InboundEvent>) -> Vec<Result<bool, InboundError>>;

    /// Returns the newest stored message of each chat of this tunnel, for at most the 1,000 chats
    /// with the newest messages. An adapter that [reads the history](Adapter::reads_history)
    /// starts there after a gap.
    async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError>;

    /// Stores a page. Mails and the cursor are stored in one transaction; messages are stored
    /// before it, and recognised as duplicates when the page is received again.
    async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError>;

    /// Returns the stored cursor of a stream of this tunnel, such as a mail folder.
    async fn cursor(&self, stream: &str) -> Result<Option<String>, InboundError>;

    /// Stores bytes that are too large for memory while they are read, and returns their hash
    /// after they are on disk.
    async fn store_bytes<'a>(
        &'a self,
        bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError>;

    /// Reports the state of the connection, for the tunnel's health.
    fn report(&self, event: ConnectionEvent);
}

/// What an adapter received from one stream of its tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboundPage {
    /// The stream that the cursor belongs to, such as a mail folder.
    pub stream: String,
    /// The cursor after this page; `None` leaves the stored cursor as it is.
    pub cursor: Option<String>,
    pub messages: Vec<(InboundMessage, Vec<InboundAttachment>)>,
    pub mails: Vec<FetchedMail>,
}

/// How many entries of a page were stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageResult {
    pub new: usize,
    /// Not new, or not wanted.
    pub duplicates: usize,
}

/// A change of the connection through which a tunnel receives messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectionEvent {
    Connected,
    /// The provider sent something, so the connection works.
    Frame,
    /// The connection was lost, or could not be opened. Holds the error.
    Lost(String),
    /// A stream is being read, and about this number of messages is not fetched yet.
    Backlog(u64),
    /// All streams were read; `backlog` counts the messages that are not fetched yet.
    Scanned {
        backlog: u64,
    },
}

/// The result of [`Adapter::probe`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReport {
    /// What was checked and what was found, such as `IMAP login` and `ok, IDLE, UIDPLUS`.
    pub lines: Vec<(String, String)>,
    /// What does not keep the tunnel from working, but should be fixed, such as a missing scope
    /// or another process with the same credentials.
    pub warnings: Vec<String>,
}

/// Why a message was not stored. It must not be acknowledged to the provider.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboundError {
    #[error("disk full: message not stored")]
    Full,
    /// The store cannot write now; the provider should send the message again.
    #[error("message not stored: {0}")]
    Unavailable(String),
    /// The message exceeds a limit; sending it again does not help.
    #[error("{0}")]
    Unusable(String),
}

/// The content of a file of a provider, read while it is downloaded.
pub struct FileDownload {
    /// The provider's name for it, when that is known now. Never a path.
    pub name: Option<String>,
    pub mime_type: Option<String>,
    /// The size that the provider states, in bytes.
    pub size: Option<u64>,
    pub bytes: Pin<Box<dyn AsyncRead + Send>>,
}

impl fmt::Debug for FileDownload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, mime_type, size, bytes: _ } = self;
        let mut shown = f.debug_struct("FileDownload");
        shown.field("name", name).field("mime_type", mime_type).field("size", size);
        shown.finish_non_exhaustive()
    }
}

/// A request that a provider posted to the webhook listener.
#[derive(Clone, Copy, Debug)]
pub struct WebhookRequest<'a> {
    pub headers: &'a HeaderMap,
    /// The query of the URL without the question mark; empty when there is none.
    pub query: &'a str,
    /// The bytes as received: signatures are over bytes.
    pub body: &'a [u8],
    pub now: Timestamp,
}

/// The content of a verified webhook request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookContent {
    pub events: Vec<InboundEvent>,
    /// The answer after the events are stored; `None`: a JSON object with `ok` and the number of
    /// stored events.
    pub answer: Option<WebhookAnswer>,
}

/// The answer that a provider expects, such as the challenge that it sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookAnswer {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub body: Vec<u8>,
}

/// Why a webhook request was rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WebhookError {
    #[error("this tunnel does not accept webhooks")]
    NotSupported,
    /// The signature is missing or does not match.
    #[error("not verified: {0}")]
    Unverified(&'static str),
    /// The signature is valid, but too old or in the future. Holds the limit in seconds.
    #[error("not verified: its timestamp is more than {0} s off")]
    Stale(u64),
    /// The request is authentic, but cannot be parsed.
    #[error("{0}")]
    Unreadable(String),
}

impl WebhookError {
    /// Returns the short name of the reason, for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotSupported => "not_supported",
            Self::Unverified(_) => "unverified",
            Self::Stale(_) => "stale",
            Self::Unreadable(_) => "unreadable",
        }
    }

    /// Tells whether the request comes from the provider and not from any peer.
    pub const fn is_authentic(&self) -> bool {
        matches!(self, Self::Unreadable(_))
    }
}

/// Stores the receipts of the parts of a message while it is sent.
#[async_trait]
pub trait DeliveryProgress: Send + Sync {
    /// Stores that a part was sent. Returns after the commit, and when the limits of the tunnel
    /// allow another part.
    ///
    /// # Errors
    ///
    /// The adapter sends no further part and returns this failure as its outcome.
    async fn part_sent(&self, part: SentPart) -> Result<(), Failure>;
}

/// Where adapters read the content of attachments.
#[async_trait]
pub trait AttachmentSource: Send + Sync {
    /// Opens an attachment of the message. It can be opened more than once.
    ///
    /// # Errors
    ///
    /// The failure is the outcome of the attempt when the message cannot be sent without it.
    async fn open(&self, attachment: &AttachmentRef) -> Result<OpenAttachment, Failure>;
}

/// The content of an attachment. Reading fails at the last byte when the stored file is damaged,
/// so a peer never gets all announced bytes of a damaged file.
pub struct OpenAttachment {
    pub size: u64,
    pub bytes: Pin<Box<dyn AsyncRead + Send>>,
}

/// Reads an attachment into memory.
///
/// # Errors
///
/// A permanent failure when it has more than `max_bytes` bytes or is damaged.
pub async fn read_attachment(
    files: &dyn AttachmentSource,
    attachment: &AttachmentRef,
    max_bytes: u64,
) -> Result<Vec<u8>, Failure> {
    let OpenAttachment { size, bytes } = files.open(attachment).await?;
    let permanent = |detail| Failure::Permanent { detail, error_code: None };
    let name = &attachment.name;
    if size > max_bytes {
        let detail = format!("attachment {name:?} has {size} bytes; at most {max_bytes} fit");
        return Err(permanent(detail));
    }
    let mut read = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
    let result = bytes.take(max_bytes.saturating_add(1)).read_to_end(&mut read).await;
    match result {
        Ok(_) if read.len() as u64 == size => Ok(read),
        Ok(found) => {
            Err(permanent(format!("attachment {name:?} has {found} bytes; {size} were announced")))
        }
        Err(error) => Err(permanent(format!("cannot read attachment {name:?}: {error}"))),
    }
}

/// Reads all attachments of a message into memory.
///
/// # Errors
///
/// A permanent failure when they have more than `max_bytes` bytes together, or one is damaged.
pub async fn read_attachments(
    request: &DeliveryRequest<'_>,
    max_bytes: u64,
) -> Result<Vec<InboundAttachment>, Failure> {
    let mut attachments = Vec::new();
    let mut left = max_bytes;
    for attachment in &request.message.attachments {
        let bytes = read_attachment(request.files, attachment, left).await?;
        left = left.saturating_sub(bytes.len() as u64);
        let (name, mime_type) = (attachment.name.clone(), attachment.mime_type.clone());
        attachments.push(InboundAttachment { name, mime_type, bytes });
    }
    Ok(attachments)
}

/// One attempt to deliver a message to one address.
#[derive(Clone, Copy)]
pub struct DeliveryRequest<'a> {
    /// The recipient's account in the provider's own notation.
    pub address: &'a str,
    pub kind: EndpointKind,
    pub message: &'a OutgoingMessage,
    /// The content of [`OutgoingMessage::attachments`].
    pub files: &'a dyn AttachmentSource,
    /// The parts that earlier attempts have sent, in order.
    pub sent_parts: &'a [SentPart],
    /// Where the parts of this attempt are reported.
    pub progress: &'a dyn DeliveryProgress,
    /// Identifies the delivery: the same for every attempt.
    pub key: RecordId,
    /// How long ago the first attempt began, for keys that a provider remembers for some time.
    pub first_attempt_ago: Duration,
    pub now: Timestamp,
}
