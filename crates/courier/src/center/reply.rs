//! Sends texts: an answer to a Mail, exactly to its `answer_to` and in its thread, or a new message.

use std::collections::BTreeMap;

use monoco_core::approval::SendOrigin;
use monoco_core::claim::Workspace;
use monoco_core::did::Did;
use monoco_core::draft::{Draft, DraftAttachment, DraftContext, DraftOptions, InvalidDraft};
use monoco_core::mail::{self, Mail, MailId};
use monoco_core::time::Timestamp;
use monoco_store::{SendRequest, SendResult, SharedStore, StoreError};

use super::{PipelineEntry, post_send};

/// An answer to one Mail.
#[derive(Clone, Debug)]
pub struct ReplyRequest {
    pub mail: MailId,
    pub text: String,
    pub title: Option<String>,
    pub attachments: Vec<DraftAttachment>,
    pub key: Option<String>,
    /// On whose behalf it is sent.
    pub origin: SendOrigin,
}

/// A new message to given targets.
#[derive(Clone, Debug)]
pub struct NewMessage {
    pub to: Vec<Did>,
    pub title: Option<String>,
    pub text: String,
    pub key: String,
    /// On whose behalf it is sent.
    pub origin: SendOrigin,
}

/// Why a Mail cannot be answered, or a message not be sent.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Invalid(#[from] InvalidDraft),
    #[error("cannot read the Mail {0}: {1}")]
    Unreadable(MailId, String),
}

/// Sends an answer. Answers with the same text are different messages, unless the caller has set
/// an idempotency key.
///
/// # Errors
///
/// When the Mail or an attachment does not exist, the answer is too large, or its tunnel is
/// gone. Nothing is written then.
pub async fn reply(
    store: &SharedStore,
    entry: &PipelineEntry,
    owner: &Did,
    request: ReplyRequest,
    now: Timestamp,
) -> Result<SendResult, ReplyError> {
    let mail = read_mail(store, &request.mail).await?;
    let mut sizes = BTreeMap::new();
    for attached in &request.attachments {
        let bytes = store.object(attached.hash).await?;
        sizes.insert(attached.hash, bytes.len() as u64);
    }
    let draft = Draft {
        reply_to: Some(request.mail.clone()),
        artifacts: request.attachments,
        ..draft(request.title, request.text, request.key.clone())
    };
    let prepared = draft.into_message(&DraftContext {
        owner,
        uid: &new_uid(now)?,
        provider: request.mail.provider(),
        tunnels: &[],
        answers: Some(&mail),
        sizes: &sizes,
    })?;
    let request = SendRequest {
        msg: prepared.msg,
        key: request.key,
        not_before: None,
        origin: request.origin,
    };
    Ok(post_send(store, entry, request, now).await?)
}

/// Sends a new message of `owner`. A repeated idempotency key sends nothing.
///
/// # Errors
///
/// When a target cannot be resolved or the message is too large. Nothing is written then.
pub async fn send_new(
    store: &SharedStore,
    entry: &PipelineEntry,
    owner: &Did,
    message: NewMessage,
    now: Timestamp,
) -> Result<SendResult, ReplyError> {
    let NewMessage { to, title, text, key, origin } = message;
    let to = to.into_iter().map(Into::into).collect();
    let draft = Draft { to, ..draft(title, text, Some(key.clone())) };
    let prepared = draft.into_message(&DraftContext {
        owner,
        uid: &new_uid(now)?,
        provider: "",
        tunnels: &[],
        answers: None,
        sizes: &BTreeMap::new(),
    })?;
    let request = SendRequest { msg: prepared.msg, key: Some(key), not_before: None, origin };
    Ok(post_send(store, entry, request, now).await?)
}

/// A draft in Markdown without recipients.
fn draft(title: Option<String>, text: String, idempotency_key: Option<String>) -> Draft {
    Draft {
        to: Vec::new(),
        cc: Vec::new(),
        bcc: Vec::new(),
        provider: None,
        tunnel: None,
        reply_to: None,
        thread_key: None,
        title,
        format: mail::FORMAT.to_owned(),
        text,
        artifacts: Vec::new(),
        options: DraftOptions::default(),
        correlation_id: None,
        idempotency_key,
    }
}

/// A new id, which makes messages with the same text different.
fn new_uid(now: Timestamp) -> Result<String, StoreError> {
    let random = getrandom::u64()
        .map_err(|error| StoreError::Unavailable(format!("no random bytes: {error}")))?;
    Ok(format!("{}_reply_{random:016x}", now.compact()))
}

/// Reads a Mail from the store.
///
/// # Errors
///
/// When there is none, or its object cannot be read.
pub async fn read_mail(store: &SharedStore, id: &MailId) -> Result<Mail, ReplyError> {
    let msg_id = store.mail(id, &Workspace::shared()).await?.entry.msg_id;
    let object = store.object(msg_id).await?;
    let unreadable = |why: String| ReplyError::Unreadable(id.clone(), why);
    let text = String::from_utf8(object).map_err(|error| unreadable(error.to_string()))?;
    Mail::read(msg_id, &text).map_err(|error| unreadable(error.to_string()))
}
