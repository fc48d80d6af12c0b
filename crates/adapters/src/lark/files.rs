//! Files of messages: how they are fetched later, and how attachments are uploaded.

use std::io::Cursor;

use monoco_core::inbound::Artifact;
use monoco_core::outgoing::AttachmentRef;
use monoco_core::retry::Failure;
use serde::{Deserialize, Serialize};

use super::client::LarkRequest;
use super::failure::LarkFault;
use super::forward;
use super::tenant::LarkTenant;
use super::wire::{is_message_id, text};
use crate::egress::MultipartField;
use crate::{AttachmentSource, FileDownload};

/// Largest image and largest other file that Lark accepts, in bytes.
const MAX_IMAGE_BYTES: u64 = 10 << 20;
const MAX_FILE_BYTES: u64 = 30 << 20;

/// How a file is fetched later. Its JSON is the handle of the artifact.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LarkFileHandle {
    pub message_id: String,
    /// The key of the file in the message.
    pub key: String,
    pub kind: LarkFileKind,
    /// The beginning of the name of a file without a name. Its ending comes from the download.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stem: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LarkFileKind {
    Image,
    /// Also audio and video.
    File,
    /// The messages of a conversation that was forwarded.
    Forwarded,
}

impl LarkFileHandle {
    /// Returns the artifact that announces the file.
    pub fn artifact(&self, name: &str, mime_type: &str) -> Artifact {
        Artifact {
            name: name.to_owned(),
            mime_type: mime_type.to_owned(),
            fetch: serde_json::to_string(self).ok(),
            ..Artifact::default()
        }
    }
}

/// Opens a file of a message by the handle of its artifact.
pub(super) async fn open(tenant: &LarkTenant, handle: &str) -> Result<FileDownload, Failure> {
    let handle: LarkFileHandle = serde_json::from_str(handle)
        .map_err(|error| permanent(format!("not a handle of a file of Lark: {error}")))?;
    let LarkFileHandle { message_id, key, kind, stem } = &handle;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !is_message_id(message_id) || !key.chars().all(is_plain) || key.contains("..") {
        return Err(permanent("the ids of the file are not valid".to_owned()));
    }
    let kind = match kind {
        LarkFileKind::Image => "image",
        LarkFileKind::File => "file",
        LarkFileKind::Forwarded => return open_forwarded(tenant, message_id).await,
    };
    let path = format!("im/v1/messages/{message_id}/resources/{key}");
    let download = tenant.client.download(&path, &[("type", kind)]).await;
    let download = download.map_err(LarkFault::into_failure)?;
    let name = stem.as_ref().map(|stem| download.name_for(stem));
    download.into_file(name)
}

/// Reads the messages of a forwarded conversation and writes them as one text.
async fn open_forwarded(tenant: &LarkTenant, message_id: &str) -> Result<FileDownload, Failure> {
    let path = format!("im/v1/messages/{message_id}");
    let answer = tenant.client.call(LarkRequest::get(&path, &[])).await;
    let answer = answer.map_err(LarkFault::into_failure)?;
    let markdown = forward::read(tenant, message_id, answer.data()).await.into_bytes();
    Ok(FileDownload {
        name: None,
        mime_type: Some("text/markdown".to_owned()),
        size: Some(markdown.len() as u64),
        bytes: Box::pin(Cursor::new(markdown)),
    })
}

/// Tells whether a file is sent as an image.
pub(super) fn is_image(file: &AttachmentRef) -> bool {
    const IMAGES: [&str; 7] = [
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
        "image/bmp",
        "image/tiff",
        "image/x-icon",
    ];
    IMAGES.contains(&file.mime_type.as_str())
}

/// Uploads a file and returns its key. It is not visible yet.
pub(super) async fn upload(
    tenant: &LarkTenant,
    files: &dyn AttachmentSource,
    file: &AttachmentRef,
) -> Result<String, LarkFault> {
    let (path, key, max) = match is_image(file) {
        true => ("im/v1/images", "image_key", MAX_IMAGE_BYTES),
        false => ("im/v1/files", "file_key", MAX_FILE_BYTES),
    };
    let form = move || async move {
        let open = files.open(file).await?;
        if open.size > max || open.size == 0 {
            let detail = format!(
                "attachment {:?} has {} bytes; Lark accepts 1 to {max} bytes",
                file.name, open.size
            );
            return Err(permanent(detail));
        }
        let name = file_name(file);
        let content =
            |field| MultipartField::file(field, name, &file.mime_type, open.size, open.bytes);
        Ok(match is_image(file) {
            true => vec![MultipartField::text("image_type", "message"), content("image")],
            false => vec![
                MultipartField::text("file_type", file_type(file)),
                MultipartField::text("file_name", name),
                content("file"),
            ],
        })
    };
    let answer = tenant.client.upload(path, form).await?;
    text(answer.data(), key).map(str::to_owned).ok_or_else(|| {
        let detail = format!("{path}: the answer has no {key}");
        LarkFault::Failed(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
    })
}

/// Returns the name of a file, which Lark requires.
fn file_name(file: &AttachmentRef) -> &str {
    if file.name.trim().is_empty() { "file.bin" } else { &file.name }
}

/// Returns the type of a file, by which Lark shows it. Audio and video would need a duration and a
/// cover, so they are sent as files.
fn file_type(file: &AttachmentRef) -> &'static str {
    let name = file.name.to_ascii_lowercase();
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "pdf" => "pdf",
        "doc" | "docx" => "doc",
        "xls" | "xlsx" => "xls",
        "ppt" | "pptx" => "ppt",
        _ => "stream",
    }
}

fn permanent(detail: String) -> Failure {
    Failure::Permanent { detail, error_code: None }
}
