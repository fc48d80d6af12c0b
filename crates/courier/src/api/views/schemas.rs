//! Schemas of JSON that this crate does not parse or write with types of its own.
//!
//! Only the tests contain them, for the OpenAPI document.

#![expect(dead_code, reason = "the fields only describe JSON")]

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::ToSchema;

/// A message. Other keys are kept.
#[derive(ToSchema)]
#[schema(as = MsgObject)]
pub struct MsgObjectSchema {
    /// DID of the author; of a group message, the DID of the group
    from: String,
    /// DID of the author of a group message
    source: Option<String>,
    /// DIDs of the targets, at most 1000
    to: Vec<String>,
    /// `chat`, `group_msg`, `deliver`, `notify`, `event` or `operation`
    kind: String,
    content: MsgContentSchema,
    thread: Option<MsgThreadSchema>,
    created_at_ms: Option<i64>,
    /// After this time the message is not delivered, in milliseconds since 1970
    expires_at_ms: Option<i64>,
    /// A number that makes equal messages different
    nonce: Option<u64>,
}

/// The content of a message. Other keys are kept.
#[derive(ToSchema)]
#[schema(as = MsgContent)]
pub struct MsgContentSchema {
    title: Option<String>,
    /// Media type of the text, such as `text/plain` or `text/markdown`
    format: Option<String>,
    /// Text of the message
    content: Option<String>,
    /// Data for programs: `intent` and `data`
    machine: Option<BTreeMap<String, Value>>,
    /// Attachments and links: `role`, `target` and `label`
    refs: Option<Vec<BTreeMap<String, Value>>>,
}

/// How a message relates to other messages.
#[derive(ToSchema)]
#[schema(as = MsgThread)]
pub struct MsgThreadSchema {
    topic: Option<String>,
    /// Id of the message that this one answers
    reply_to: Option<String>,
    /// The sender's id for related messages
    correlation_id: Option<String>,
}

/// The index entry of a Mail.
#[derive(ToSchema)]
#[schema(as = MailIndexEntry)]
pub struct MailIndexEntrySchema {
    /// Later Mails have larger numbers
    seq: i64,
    id: String,
    /// Id of the MsgObject
    msg_id: String,
    /// Name of the file in the mailbox
    file: String,
    /// SHA-256 of the file, in hex
    sha256: String,
    tunnel: String,
    session: ChatSessionSchema,
    participants: ParticipantsSchema,
    /// When the messages became a Mail
    #[schema(format = DateTime)]
    received_at: String,
    title: Option<String>,
    correlation_id: Option<String>,
    /// Label of the tunnel or chat
    binding: Option<String>,
    /// `untrusted`, or `known` when all authors are contacts
    trust: String,
    /// Number of messages in the Mail
    messages: usize,
    /// Start of the text
    preview: String,
    /// Estimated tokens of the text, for language models
    tokens: Option<usize>,
    /// When text of a person was erased; the whole text when `messages` is 0
    #[schema(format = DateTime)]
    erased_at: Option<String>,
}

/// A chat at a provider.
#[derive(ToSchema)]
#[schema(as = ChatSession)]
pub struct ChatSessionSchema {
    id: String,
    /// `direct`, `group` or `thread`
    r#type: String,
    name: Option<String>,
    thread_key: Option<String>,
}

/// The accounts that a Mail involves.
#[derive(ToSchema)]
#[schema(as = Participants)]
pub struct ParticipantsSchema {
    /// The authors, in the order of their first message
    from: Vec<ParticipantSchema>,
    to: Vec<ParticipantSchema>,
    cc: Vec<ParticipantSchema>,
    bcc: Vec<ParticipantSchema>,
    /// Mentioned workspaces and names
    mentions: Vec<String>,
}

/// An account at a provider.
#[derive(ToSchema)]
#[schema(as = Participant)]
pub struct ParticipantSchema {
    id: String,
    /// `group`, `channel` or `addr`; not present for a user
    kind: Option<String>,
    name: Option<String>,
}

/// The claim of a workspace on a Mail.
#[derive(ToSchema)]
#[schema(as = Claim)]
pub struct ClaimSchema {
    /// Id of the Mail
    id: String,
    workspace: String,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER
    status: String,
    /// The agent that holds the Mail, while it is CLAIMED
    agent_id: Option<String>,
    /// Number of the current claim; send it with renew, complete and fail
    epoch: u64,
    /// Number of claims so far
    attempts: u32,
    /// Number of claims after the first
    retry_count: u32,
    /// When the claim expires
    #[schema(format = DateTime)]
    expires_at: Option<String>,
    /// When the Mail can be claimed again
    #[schema(format = DateTime)]
    next_retry_at: Option<String>,
    /// Why the last attempt failed
    reason: Option<String>,
    #[schema(format = DateTime)]
    updated_at: Option<String>,
}

/// Why an attempt failed.
#[derive(ToSchema)]
#[schema(as = Failure)]
pub struct FailureSchema {
    /// `temporary`, `permanent` or `unknown`
    kind: String,
    detail: String,
    /// The provider's code of the error, if it has one
    error_code: Option<String>,
    /// The delay that the provider asked for
    retry_after_ms: Option<u64>,
}

/// A letter to submit. Other keys are passed to the workers.
#[derive(ToSchema)]
#[schema(as = LetterBody)]
pub struct SubmitBodySchema {
    /// The sender: an address or a DID
    from: String,
    /// The recipients: addresses or DIDs, 1 to 1000
    to: Vec<String>,
    /// A whole e-mail (RFC 5322) or text, according to `extra.content_type`
    data: String,
    /// Options for workers. `content_type`: `message/rfc822` (default), `text/markdown` or
    /// `text/plain`; `charset`: `latin-1` when `data` has one character for each byte of an
    /// e-mail that is not UTF-8; `tunnel`, `subject`, `merge_key`
    #[schema(value_type = Option<Object>)]
    extra: Option<Value>,
}

/// Bytes as they were stored.
#[derive(ToSchema)]
#[schema(as = Bytes, value_type = String, format = Binary)]
pub struct BytesSchema(Vec<u8>);
