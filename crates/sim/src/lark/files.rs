//! Uploads of a bot, and files in messages.

use serde_json::json;

use super::api::{SimLarkCall, SimLarkFailure, SimLarkResult};
use super::bot_user;
use super::content::{file_key, file_of_key};
use super::messages::{check_member, present_message};
use crate::clock::now_ms;
use crate::http::SimResponse;
use crate::multipart::{FormPart, parse_multipart};
use crate::random::random_hex;
use crate::store::{FileContent, SimFile};
use crate::world::World;

const MAX_IMAGE_BYTES: usize = 10 << 20;
const MAX_UPLOAD_BYTES: usize = 30 << 20;

/// Largest file that can be downloaded.
const MAX_DOWNLOAD_BYTES: u64 = 100 << 20;

const INVALID_UPLOAD: i64 = 234_001;

/// The fields of an upload.
struct UploadForm(Vec<FormPart>);

impl UploadForm {
    fn read(call: &SimLarkCall<'_>) -> Result<Self, SimLarkFailure> {
        let kind = call.request.header("content-type").unwrap_or_default();
        let parts = parse_multipart(kind, &call.request.body);
        let invalid = || SimLarkFailure::new(INVALID_UPLOAD, "Invalid request param.");
        parts.map(Self).ok_or_else(invalid)
    }

    fn text(&self, name: &str) -> String {
        let part = self.0.iter().find(|part| part.name == name);
        part.map(|part| String::from_utf8_lossy(&part.content).into_owned()).unwrap_or_default()
    }

    /// Stores the field as a file; returns its key.
    fn store(
        self,
        world: &mut World,
        call: &SimLarkCall<'_>,
        (field, name, mime_type): (&str, &str, &str),
        max: usize,
    ) -> Result<String, SimLarkFailure> {
        let part = self.0.into_iter().find(|part| part.name == field);
        let missing = || SimLarkFailure::new(INVALID_UPLOAD, format!("Invalid param: no {field}"));
        let content = part.ok_or_else(missing)?.content;
        if content.is_empty() {
            return Err(SimLarkFailure::new(234_010, "File's size can't be 0."));
        }
        if content.len() > max {
            return Err(SimLarkFailure::new(234_006, "The file size exceed the max value."));
        }
        let file = SimFile {
            id: random_hex(),
            name: name.to_owned(),
            mime_type: mime_type.to_owned(),
            content: FileContent::Bytes(content),
            created: now_ms() / 1000,
            owner: bot_user(call.app),
        };
        let key = file_key(&file);
        world.store.add_file(file);
        Ok(key)
    }
}

pub fn create_image(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let form = UploadForm::read(call)?;
    if !["message", "avatar"].contains(&form.text("image_type").as_str()) {
        return Err(SimLarkFailure::new(INVALID_UPLOAD, "Invalid param: image_type"));
    }
    let target = ("image", "image", "image/png");
    Ok(json!({"image_key": form.store(world, call, target, MAX_IMAGE_BYTES)?}))
}

pub fn create_file(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let form = UploadForm::read(call)?;
    let kinds = ["opus", "mp4", "pdf", "doc", "xls", "ppt", "stream"];
    let (kind, name) = (form.text("file_type"), form.text("file_name"));
    if !kinds.contains(&kind.as_str()) || name.is_empty() {
        return Err(SimLarkFailure::new(INVALID_UPLOAD, "Invalid param: file_type or file_name"));
    }
    let mime_type = match kind.as_str() {
        "opus" => "audio/opus",
        "mp4" => "video/mp4",
        _ => "application/octet-stream",
    };
    let target = ("file", name.as_str(), mime_type);
    Ok(json!({"file_key": form.store(world, call, target, MAX_UPLOAD_BYTES)?}))
}

/// Sends the bytes of a file in a message: `type=image` for images, `type=file` for all others.
pub fn download(world: &World, call: &SimLarkCall<'_>) -> Result<SimResponse, SimLarkFailure> {
    let (chat, item) = present_message(world, call, 230_110)?;
    check_member(world, &chat, call.app)?;
    let key = call.id(1);
    let content = item["body"]["content"].as_str().unwrap_or_default();
    let file = world.store.file(file_of_key(key)).filter(|_| content.contains(key));
    let foreign = || SimLarkFailure::new(234_003, "File not in msg.");
    let file = file.ok_or_else(foreign)?;
    let is_image = key.starts_with("img_");
    if call.query("type") != if is_image { "image" } else { "file" } {
        return Err(SimLarkFailure::new(INVALID_UPLOAD, "Invalid request param."));
    }
    if item["msg_type"] == "sticker" {
        return Err(SimLarkFailure::new(234_043, "Unsupported message type."));
    }
    if file.content.size() > MAX_DOWNLOAD_BYTES {
        return Err(SimLarkFailure::new(234_037, "Downloaded file size exceeds limit."));
    }
    let name =
        percent_encoding::utf8_percent_encode(&file.name, percent_encoding::NON_ALPHANUMERIC);
    let disposition = format!("attachment; filename*=UTF-8''{name}");
    Ok(SimResponse::file(file).with_header("content-disposition", disposition))
}
