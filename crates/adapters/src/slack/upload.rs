//! Uploads files: asks for an address, streams the bytes to it, and shares the file in a chat.
//!
//! Nothing is visible before the file is shared, so a failure before it is never unknown.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use monoco_core::outgoing::AttachmentRef;
use monoco_core::retry::Failure;
use serde_json::{Value, json};

use super::client::{ApiErrorKind, SlackApiError};
use super::outbound::MessagePlace;
use super::wire::{list, message_id, text};
use super::workspace::SlackWorkspace;
use crate::OpenAttachment;
use crate::egress::{EgressBody, EgressRequest};

/// Most uploads that are remembered until their outcome is known.
const MAX_REMEMBERED: usize = 1000;

/// The ids of files that were uploaded, by delivery and part. They help to find out whether a
/// file was shared; after a restart they are not known.
#[derive(Debug, Default)]
pub(super) struct UploadedFiles(Mutex<VecDeque<UploadEntry>>);

#[derive(Debug)]
struct UploadEntry {
    delivery: String,
    part: u32,
    file: String,
}

impl UploadedFiles {
    pub fn insert(&self, delivery: &str, part: u32, file: &str) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.delivery != delivery || entry.part != part);
        if entries.len() >= MAX_REMEMBERED {
            entries.pop_front();
        }
        let (delivery, file) = (delivery.to_owned(), file.to_owned());
        entries.push_back(UploadEntry { delivery, part, file });
    }

    pub fn get(&self, delivery: &str, part: u32) -> Option<String> {
        let entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = entries.iter().filter(|entry| entry.delivery == delivery);
        found.find(|entry| entry.part == part).map(|entry| entry.file.clone())
    }
}

/// Uploads a file and returns its id. It is not visible yet.
pub(super) async fn upload(
    workspace: &SlackWorkspace,
    file: &AttachmentRef,
    content: OpenAttachment,
) -> Result<String, SlackApiError> {
    let size = content.size.to_string();
    let name = file_name(file);
    let fields = [("filename", name), ("length", size.as_str())];
    let reply = workspace.client.read("files.getUploadURLExternal", &fields).await;
    let reply = reply.map_err(not_visible)?;
    let (Some(url), Some(id)) = (reply.text("upload_url"), reply.text("file_id")) else {
        let detail = "files.getUploadURLExternal: the answer has no address".to_owned();
        return Err(temporary(detail, None));
    };
    let rejected = |failure| SlackApiError { failure, kind: ApiErrorKind::Rejected };
    let target = workspace.client.hosts.http(url).map_err(rejected)?;
    let body = EgressBody::Stream { size: content.size, bytes: content.bytes };
    let response = workspace.client.egress.send(EgressRequest::post(&target).body(body)).await;
    let response = response.map_err(|failure| match failure {
        Failure::Unknown { detail, error_code } => temporary(detail, error_code),
        failure => rejected(failure),
    })?;
    let status = response.status;
    if status.is_success() {
        return Ok(id.to_owned());
    }
    let detail = format!("upload of {name:?}: Slack answered {status}");
    let error_code = Some(status.as_str().to_owned());
    if status.is_server_error() || status.as_u16() == 429 || status.as_u16() == 408 {
        return Err(temporary(detail, error_code));
    }
    Err(rejected(Failure::Permanent { detail, error_code }))
}

/// Shares an uploaded file in a chat and returns the id of its message, if it is known.
pub(super) async fn share(
    workspace: &SlackWorkspace,
    place: &MessagePlace,
    file: &AttachmentRef,
    id: &str,
) -> Result<Option<String>, SlackApiError> {
    let mut body = json!({
        "files": [{ "id": id, "title": file_name(file) }],
        "channel_id": place.chat,
    });
    if let Some(thread) = &place.thread {
        body["thread_ts"] = json!(thread);
    }
    let reply = workspace.client.write_json("files.completeUploadExternal", &body).await?;
    let shared = list(reply.value(), "files").first();
    if let Some(ts) = shared.and_then(|file| share_ts(file, &place.chat)) {
        return Ok(Some(message_id(&place.chat, &ts)));
    }
    // The message is only for answers to the file. The file itself was sent.
    let found = shared_ts(workspace, id, &place.chat).await.unwrap_or(None);
    Ok(found.map(|ts| message_id(&place.chat, &ts)))
}

/// Returns the timestamp of the message that shares a file in a chat.
pub(super) async fn shared_ts(
    workspace: &SlackWorkspace,
    id: &str,
    chat: &str,
) -> Result<Option<String>, SlackApiError> {
    let reply = workspace.client.read("files.info", &[("file", id)]).await?;
    Ok(share_ts(&reply.value()["file"], chat))
}

fn share_ts(file: &Value, chat: &str) -> Option<String> {
    let shares = ["public", "private"].iter().map(|kind| &file["shares"][kind][chat]);
    let mut shares = shares.filter_map(|list| list.get(0));
    shares.find_map(|share| text(share, "ts").map(str::to_owned))
}

/// Slack needs a name.
fn file_name(file: &AttachmentRef) -> &str {
    if file.name.trim().is_empty() { "file" } else { &file.name }
}

/// Turns a failure with an unknown outcome into a temporary one.
fn not_visible(error: SlackApiError) -> SlackApiError {
    match error.failure {
        Failure::Unknown { detail, error_code } => temporary(detail, error_code),
        _ => error,
    }
}

fn temporary(detail: String, error_code: Option<String>) -> SlackApiError {
    let failure = Failure::Temporary { detail, retry_after_ms: None, error_code };
    SlackApiError { failure, kind: ApiErrorKind::Rejected }
}
