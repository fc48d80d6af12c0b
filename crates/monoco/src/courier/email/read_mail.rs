//! Parses one mail, stores its attachments, and decides whether and where it is forwarded.

use std::sync::Arc;

use monoco_adapters::email::config::EmailConfig;
use monoco_adapters::email::dsn::{DeliveryReport, delivery_report};
use monoco_adapters::email::inbound::{
    MailAccount, MailContent, UNKNOWN_SENDER, external_id_of_mail, mail_to_message,
};
use monoco_core::did::TunnelId;
use monoco_core::email::directory::Directory;
use monoco_core::email::forward::{ForwardDecision, ForwardInput, LOOP_HEADER, decide};
use monoco_core::email::forward_message::{ForwardedMail, forward_message};
use monoco_core::email::task::{EmailTask, EmailTaskId, MAX_TASK_ATTEMPTS, TaskOutcome};
use monoco_core::filter::MailParts;
use monoco_core::inbound::{
    Artifact, ChatSession, ChatSessionKind, InboundMessage, Participant, RawMail, StoredBytes,
};
use monoco_core::merge::Debounce;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use monoco_store::{SharedStore, StartedTask, StoreError, StoreInboundRequest};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Largest mail that goes through the inbound chain as a whole, in bytes.
const MAX_CHAIN_MAIL: usize = 16 << 20;

/// Largest attachment that is decoded in memory, in bytes. Mails that are read at the same time
/// have 4 MiB together, or are alone.
const MAX_SMALL_PART: usize = 1 << 20;

/// The provider of e-mail tunnels.
const PROVIDER: &str = "email";

/// What is needed to read the mails of one tunnel.
pub(super) struct MailReader {
    pub store: SharedStore,
    pub tunnel: TunnelId,
    pub config: Arc<EmailConfig>,
    pub directory: Directory,
    pub debounce: Debounce,
    /// Whether mails pass an inbound chain, which reads the whole mail.
    pub has_chain: bool,
    pub now: Timestamp,
    /// Limits the mails that are parsed at the same time: every thread that parses keeps memory.
    pub parsing: Semaphore,
}

/// A mail that was read.
pub(super) struct ReadMail {
    pub id: EmailTaskId,
    pub epoch: u64,
    pub hash: ObjId,
    /// The message of the hub; `None` when the tunnel does not deliver.
    pub request: Option<StoreInboundRequest>,
    pub report: Option<DeliveryReport>,
    /// The message that forwards the mail, or the outcome of a task without one.
    pub forward: Result<MsgObject, TaskOutcome>,
}

impl MailReader {
    /// Reads one mail. The third attempt does not parse it: a mail that two attempts could not
    /// process is delivered as it is, with a mark.
    ///
    /// # Errors
    ///
    /// [`Failure`] when the attempt is to be repeated.
    pub async fn read(self: Arc<Self>, started: StartedTask) -> Result<ReadMail, Failure> {
        let StartedTask { task, raw } = started;
        let (bytes, cut) = match raw {
            RawMail::Bytes(bytes) => (bytes, None),
            RawMail::Stored(stored) => (self.store.object(stored.hash).await.map_err(store)?, None),
            RawMail::HeadersOnly { headers, why } => (headers, Some(why)),
        };
        let (reader, handle) = (Arc::clone(&self), Handle::current());
        let permit = self.parsing.acquire().await;
        let read = tokio::task::spawn_blocking(move || {
            let mut parts = Vec::new();
            let read = if task.progress.attempts >= MAX_TASK_ATTEMPTS {
                reader.read_raw(&task, bytes, &handle)
            } else {
                reader.read_parsed(&task, bytes, cut, &mut parts, &handle)
            };
            read.map(|read| (read, parts))
        })
        .await;
        drop(permit);
        let (read, parts) = read.unwrap_or_else(|error| {
            Err(temporary(format!("the mail could not be parsed: {error}")))
        })?;
        for part in parts {
            self.store.put_blob(part).await.map_err(store)?;
        }
        Ok(read)
    }

    fn read_parsed(
        &self,
        task: &EmailTask,
        bytes: Vec<u8>,
        cut: Option<String>,
        parts: &mut Vec<Vec<u8>>,
        handle: &Handle,
    ) -> Result<ReadMail, Failure> {
        let config = &self.config;
        let account =
            MailAccount { address: &config.address, authserv_id: config.authserv_id.as_deref() };
        let content = mail_to_message(&bytes, &hex_of(&task.hash), &account);
        let report = delivery_report(&content.mail);
        let forward = self.forward(task, &content, &bytes, handle)?;
        let request = match config.deliver {
            true => {
                let mut message = content.message.clone();
                self.store_attachments(&content, &mut message, parts, handle)?;
                if content.needs_original() {
                    message.artifacts.push(self.store_original(task, &bytes, handle)?);
                }
                if let Some(why) = &cut {
                    message.text.push_str(&format!("\n\n[cut: {why}]"));
                }
                Some(message)
            }
            false => None,
        };
        drop(content);
        let request = request.map(|message| self.request(message, bytes)).transpose()?;
        Ok(self.done(task, request, report, forward))
    }

    /// The mail as it is, without its text.
    fn read_raw(
        &self,
        task: &EmailTask,
        bytes: Vec<u8>,
        handle: &Handle,
    ) -> Result<ReadMail, Failure> {
        let why = "two attempts to process the mail did not finish";
        let request = match self.config.deliver {
            true => {
                let session = ChatSession {
                    id: self.config.address.clone(),
                    kind: ChatSessionKind::Direct,
                    ..ChatSession::default()
                };
                let from = Participant::mailbox(UNKNOWN_SENDER, None);
                // The same id as in the attempts before, which may have stored the message. A
                // header that cannot be read has stopped them before that.
                let id =
                    std::panic::catch_unwind(|| external_id_of_mail(&bytes, &hex_of(&task.hash)));
                let id = id.unwrap_or_else(|_| format!("#{}", hex_of(&task.hash)));
                let text = format!("[unparsed mail: {why}]");
                let mut message = InboundMessage::new(id, session, from, text);
                message.title = Some(task.subject.clone()).filter(|subject| !subject.is_empty());
                message.sender_verified = Some(false);
                message.artifacts.push(self.store_original(task, &bytes, handle)?);
                let (message, _) = message.cut_to_limits();
                Some(self.request(message, bytes)?)
            }
            false => None,
        };
        let outcome = match self.config.forward.is_empty() {
            true => TaskOutcome::Skipped { why: Some(why.to_owned()) },
            // An operator sees the task and can retry it.
            false => TaskOutcome::Failed(Failure::Permanent {
                detail: format!("{why}, so no rule was applied"),
                error_code: None,
            }),
        };
        Ok(self.done(task, request, None, Err(outcome)))
    }

    fn done(
        &self,
        task: &EmailTask,
        request: Option<StoreInboundRequest>,
        report: Option<DeliveryReport>,
        forward: Result<MsgObject, TaskOutcome>,
    ) -> ReadMail {
        let (id, epoch, hash) = (task.id, task.progress.epoch, task.hash);
        ReadMail { id, epoch, hash, request, report, forward }
    }

    fn request(
        &self,
        mut message: InboundMessage,
        mail: Vec<u8>,
    ) -> Result<StoreInboundRequest, Failure> {
        message.received_at = self.now;
        let message = message.validate().map_err(|error| temporary(error.to_string()))?;
        Ok(StoreInboundRequest {
            tunnel: self.tunnel.clone(),
            provider: PROVIDER.to_owned(),
            message,
            attachments: Vec::new(),
            debounce: self.debounce,
            mail: (self.has_chain && mail.len() <= MAX_CHAIN_MAIL).then_some(mail),
        })
    }

    /// Decides where the mail is forwarded to, and builds the message that does it.
    fn forward(
        &self,
        task: &EmailTask,
        content: &MailContent<'_>,
        bytes: &[u8],
        handle: &Handle,
    ) -> Result<Result<MsgObject, TaskOutcome>, Failure> {
        if self.config.forward.is_empty() {
            return Ok(Err(TaskOutcome::Skipped { why: None }));
        }
        let headers: Vec<_> = content.mail.header.fields().collect();
        let attachments: Vec<_> = content.attachments.iter().map(|part| part.file_name()).collect();
        let own_address = &self.config.address;
        let input = ForwardInput {
            tunnel: &self.tunnel,
            own_address,
            message: &content.message,
            parts: MailParts { headers: &headers, attachments: &attachments },
        };
        let recipients = match decide(&self.config.forward, &self.directory, &input) {
            ForwardDecision::To(recipients) => recipients,
            ForwardDecision::NoMatch => return Ok(Err(TaskOutcome::Skipped { why: None })),
            ForwardDecision::Skip(why) => {
                return Ok(Err(TaskOutcome::Skipped { why: Some(why) }));
            }
        };
        let original = self.store_original(task, bytes, handle)?;
        let marks = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(LOOP_HEADER));
        let forwarded_by: Vec<_> = marks.map(|(_, value)| value.as_ref()).collect();
        let mail = ForwardedMail {
            tunnel: &self.tunnel,
            own_address,
            registered_at: task.created_at,
            message: &content.message,
            message_id: content.mail.message_id.as_deref(),
            references: &content.mail.references,
            forwarded_by: &forwarded_by,
            original: task.hash,
            size: original.size.unwrap_or_default(),
        };
        let forward = forward_message(&mail, &recipients);
        forward
            .map(Ok)
            .map_err(|error| Failure::Permanent { detail: error.to_string(), error_code: None })
    }

    /// Lists the parts of the mail in the message. Large ones are stored here; the bytes of the
    /// others are added to `parts`, which the caller stores.
    fn store_attachments(
        &self,
        content: &MailContent<'_>,
        message: &mut InboundMessage,
        parts: &mut Vec<Vec<u8>>,
        handle: &Handle,
    ) -> Result<(), Failure> {
        for part in &content.attachments {
            let StoredBytes { hash, size } = match decode_small(part.chunks()) {
                Some(bytes) => {
                    let hash = ObjId::of(ObjKind::Bytes, &bytes);
                    let size = bytes.len() as u64;
                    parts.push(bytes);
                    StoredBytes { hash, size }
                }
                None => {
                    let mut chunks = ChunkReader::new(part.chunks());
                    let stored = handle.block_on(self.store.put_blob_from(&mut chunks, u64::MAX));
                    stored.map_err(store)?
                }
            };
            message.artifacts.push(Artifact {
                name: part.file_name(),
                mime_type: part.mime_type.clone(),
                size: Some(size),
                hash: Some(hash),
                ..Artifact::default()
            });
        }
        Ok(())
    }

    /// Stores the mail itself as an attachment.
    fn store_original(
        &self,
        task: &EmailTask,
        bytes: &[u8],
        handle: &Handle,
    ) -> Result<Artifact, Failure> {
        let mut rest = bytes;
        let stored = handle.block_on(self.store.put_blob_from(&mut rest, u64::MAX));
        let StoredBytes { size, .. } = stored.map_err(store)?;
        Ok(Artifact {
            name: "original.eml".to_owned(),
            mime_type: "message/rfc822".to_owned(),
            size: Some(size),
            hash: Some(task.hash),
            ..Artifact::default()
        })
    }
}

/// Returns the bytes of a part, or `None` when it has more than [`MAX_SMALL_PART`].
fn decode_small(chunks: monoco_mime::DecodedChunks<'_>) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for chunk in chunks {
        if bytes.len() + chunk.len() > MAX_SMALL_PART {
            return None;
        }
        bytes.extend_from_slice(&chunk);
    }
    Some(bytes)
}

/// Decoded chunks of a part as a reader.
struct ChunkReader<'m> {
    chunks: monoco_mime::DecodedChunks<'m>,
    rest: Vec<u8>,
    at: usize,
}

impl<'m> ChunkReader<'m> {
    fn new(chunks: monoco_mime::DecodedChunks<'m>) -> Self {
        Self { chunks, rest: Vec::new(), at: 0 }
    }
}

impl tokio::io::AsyncRead for ChunkReader<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        while self.at == self.rest.len() {
            let Some(chunk) = self.chunks.next() else {
                return std::task::Poll::Ready(Ok(()));
            };
            (self.rest, self.at) = (chunk.into_owned(), 0);
        }
        let count = buffer.remaining().min(self.rest.len() - self.at);
        buffer.put_slice(&self.rest[self.at..self.at + count]);
        self.at += count;
        std::task::Poll::Ready(Ok(()))
    }
}

/// The hexadecimal digits of an object id, without its kind.
fn hex_of(id: &ObjId) -> String {
    monoco_core::hex::encode(id.hash())
}

/// A store that cannot write is a reason to repeat the attempt.
fn store(error: StoreError) -> Failure {
    temporary(error.to_string())
}

fn temporary(detail: String) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}
