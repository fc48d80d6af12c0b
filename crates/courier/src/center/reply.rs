//! Answers a Mail: exactly to its `answer_to`, in its thread.

use std::collections::BTreeMap;

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
}

/// Why a Mail cannot be answered.
#[derive(Debug, thiserror::Error)]
pub enum ReplyError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Invalid(#[from] InvalidDraft),
    #[error("cannot read the Mail {0}: {1}")]
    Unreadable(MailId, String),
}

/// Sends an answer. `uid` makes answers with the same text different messages, unless the
/// caller has set an idempotency key.
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
    uid: &str,
    now: Timestamp,
) -> Result<SendResult, ReplyError> {
    let mail = read_mail(store, &request.mail).await?;
    let mut sizes = BTreeMap::new();
    for attached in &request.attachments {
        let bytes = store.object(attached.hash).await?;
        sizes.insert(attached.hash, bytes.len() as u64);
    }
    let draft = Draft {
        to: Vec::new(),
        cc: Vec::new(),
        bcc: Vec::new(),
        provider: None,
        tunnel: None,
        reply_to: Some(request.mail.clone()),
        thread_key: None,
        title: request.title,
        format: mail::FORMAT.to_owned(),
        text: request.text,
        artifacts: request.attachments,
        options: DraftOptions::default(),
        correlation_id: None,
        idempotency_key: request.key.clone(),
    };
    let prepared = draft.into_message(&DraftContext {
        owner,
        uid,
        provider: request.mail.provider(),
        tunnels: &[],
        answers: Some(&mail),
        sizes: &sizes,
    })?;
    let request = SendRequest { msg: prepared.msg, key: request.key, not_before: None };
    Ok(post_send(store, entry, request, now).await?)
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
