//! Parses one mail, stores its attachments, and decides whether and where it is forwarded.

use std::panic::{AssertUnwindSafe, catch_unwind};
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

use super::is_failing_store;

/// Largest mail that goes through the inbound chain as a whole, in bytes.
const MAX_CHAIN_MAIL: usize = 16 << 20;

/// Largest attachment that is decoded in memory, in bytes.
const MAX_SMALL_PART: usize = 1 << 20;

/// Bytes of the attachments of one mail that are decoded in memory. The others are stored while
/// they are decoded.
const MAX_SMALL_PARTS: usize = 4 << 20;

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
    /// Runs the operations of the store.
    pub runtime: Handle,
}

/// A mail in memory.
struct LoadedMail {
    bytes: Vec<u8>,
    /// Why only its header was fetched.
    cut: Option<String>,
    /// Whether the store has it as a file, which an attachment can refer to.
    is_file: bool,
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
    /// Attachments that must be stored before the messages.
    pub parts: Vec<Vec<u8>>,
}

/// Why a mail was not read.
pub(super) enum MailReadError {
    /// The attempt failed, and is to be repeated.
    Attempt(Failure),
    /// The store fails, whatever the mail.
    Store(StoreError),
}

impl From<Failure> for MailReadError {
    fn from(failure: Failure) -> Self {
        Self::Attempt(failure)
    }
}

impl MailReader {
    /// Reads one mail, on a thread that may block. The third attempt does not parse it: a mail that
    /// two attempts could not process is delivered as it is, with a mark.
    ///
    /// # Errors
    ///
    /// [`MailReadError`] when the mail cannot be parsed or its attachments cannot be stored.
    pub fn read(&self, started: StartedTask) -> Result<ReadMail, MailReadError> {
        let StartedTask { task, raw } = started;
        let mail = match raw {
            RawMail::Bytes(bytes) => LoadedMail { bytes, cut: None, is_file: false },
            RawMail::Stored(stored) => {
                // One unreadable file is the problem of this mail, not of the store.
                let bytes = self.runtime.block_on(self.store.object(stored.hash));
                let bytes = bytes.map_err(|error| temporary(error.to_string()))?;
                LoadedMail { bytes, cut: None, is_file: true }
            }
            RawMail::HeadersOnly { headers, why } => {
                LoadedMail { bytes: headers, cut: Some(why), is_file: false }
            }
        };
        // A mail that makes the parser panic must not stop the mails behind it.
        let read = catch_unwind(AssertUnwindSafe(|| {
            if task.progress.attempts >= MAX_TASK_ATTEMPTS {
                Ok(self.read_raw(&task, mail)?)
            } else {
                self.read_parsed(&task, mail)
            }
        }));
        read.unwrap_or_else(|_| {
            tracing::error!(task = %task.id, "parser of mails panicked");
            Err(temporary("the mail could not be parsed: the parser panicked".to_owned()).into())
        })
    }

    fn read_parsed(&self, task: &EmailTask, mail: LoadedMail) -> Result<ReadMail, MailReadError> {
        let config = &self.config;
        let account =
            MailAccount { address: &config.address, authserv_id: config.authserv_id.as_deref() };
        let content = mail_to_message(&mail.bytes, &hex_of(&task.hash), &account);
        let report = delivery_report(&content.mail);
        let mut parts = Vec::new();
        let forward = self.forward(task, &content, &mail, &mut parts)?;
        let message = match config.deliver {
            true => {
                let mut message = content.message.clone();
                self.store_attachments(&content, &mut message, &mut parts)?;
                if content.needs_original() {
                    message.artifacts.push(original(task, &mail, &mut parts));
                }
                if let Some(why) = &mail.cut {
                    message.text.push_str(&format!("\n\n[cut: {why}]"));
                }
                Some(message)
            }
            false => None,
        };
        drop(content);
        let request = message.map(|message| self.request(message, mail.bytes)).transpose()?;
        Ok(done(task, request, report, forward, parts))
    }

    /// The mail as it is, without its text.
    fn read_raw(&self, task: &EmailTask, mail: LoadedMail) -> Result<ReadMail, Failure> {
        let why = "two attempts to process the mail did not finish";
        let mut parts = Vec::new();
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
                let id = catch_unwind(|| external_id_of_mail(&mail.bytes, &hex_of(&task.hash)));
                let id = id.unwrap_or_else(|_| format!("#{}", hex_of(&task.hash)));
                let text = format!("[unparsed mail: {why}]");
                let mut message = InboundMessage::new(id, session, from, text);
                message.title = Some(task.subject.clone()).filter(|subject| !subject.is_empty());
                message.sender_verified = Some(false);
                message.artifacts.push(original(task, &mail, &mut parts));
                let (message, _) = message.cut_to_limits();
                Some(self.request(message, mail.bytes)?)
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
        Ok(done(task, request, None, Err(outcome), parts))
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
        loaded: &LoadedMail,
        parts: &mut Vec<Vec<u8>>,
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
        let original = original(task, loaded, parts);
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
    ) -> Result<(), MailReadError> {
        let mut room = MAX_SMALL_PARTS;
        for part in &content.attachments {
            let small = decode_small(part.chunks(), room.min(MAX_SMALL_PART));
            let StoredBytes { hash, size } = match small {
                Some(bytes) => {
                    let hash = ObjId::of(ObjKind::Bytes, &bytes);
                    let size = bytes.len() as u64;
                    room -= bytes.len();
                    parts.push(bytes);
                    StoredBytes { hash, size }
                }
                None => {
                    let mut chunks = ChunkReader::new(part.chunks());
                    let put = self.store.put_blob_from(&mut chunks, u64::MAX);
                    self.runtime.block_on(put).map_err(store)?
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
}

fn done(
    task: &EmailTask,
    request: Option<StoreInboundRequest>,
    report: Option<DeliveryReport>,
    forward: Result<MsgObject, TaskOutcome>,
    parts: Vec<Vec<u8>>,
) -> ReadMail {
    let (id, epoch, hash) = (task.id, task.progress.epoch, task.hash);
    ReadMail { id, epoch, hash, request, report, forward, parts }
}

/// The mail itself as an attachment. Its bytes are added to `parts`, unless the store has them as
/// a file or they are there already.
fn original(task: &EmailTask, mail: &LoadedMail, parts: &mut Vec<Vec<u8>>) -> Artifact {
    if !mail.is_file && !parts.contains(&mail.bytes) {
        parts.push(mail.bytes.clone());
    }
    Artifact {
        name: "original.eml".to_owned(),
        mime_type: "message/rfc822".to_owned(),
        size: Some(mail.bytes.len() as u64),
        hash: Some(task.hash),
        ..Artifact::default()
    }
}

/// Returns the bytes of a part, or `None` when it has more than `max`.
fn decode_small(chunks: monoco_mime::DecodedChunks<'_>, max: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for chunk in chunks {
        if bytes.len() + chunk.len() > max {
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

/// The error of a mail that the store rejects, or of the store itself.
fn store(error: StoreError) -> MailReadError {
    if is_failing_store(&error) {
        return MailReadError::Store(error);
    }
    temporary(error.to_string()).into()
}

fn temporary(detail: String) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}
