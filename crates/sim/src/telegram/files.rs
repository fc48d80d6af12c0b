//! Files: `getFile`, download, and how files are shown in messages.

use bytes::Bytes;
use hyper::StatusCode;
use serde_json::{Value, json};

use super::api::{SimTelegramCall, SimTelegramFailure, SimTelegramResult};
use crate::clock::now_ms;
use crate::http::SimResponse;
use crate::random::random_hex;
use crate::store::{FileContent, SimFile};
use crate::world::World;

/// Largest file that a bot can download, in bytes.
const MAX_DOWNLOAD: u64 = 20 << 20;

/// Largest file that a bot can send, in bytes, and largest photo.
const MAX_UPLOAD: u64 = 50 << 20;
const MAX_PHOTO: u64 = 10 << 20;

/// Ending of the file id of the small size of a photo.
const SMALL: &str = "-s";

/// Bytes of the small size of a photo.
const SMALL_BYTES: u64 = 900;

/// Ids and size that every kind of file has.
fn base(file: &SimFile) -> Value {
    json!({
        "file_id": file.id, "file_unique_id": format!("u{}", file.id.to_lowercase()),
        "file_size": file.content.size(),
    })
}

/// The kind of a file by its type, as a client of Telegram sends it.
pub fn kind_of(file: &SimFile) -> &'static str {
    match file.mime_type.as_str() {
        "image/jpeg" | "image/png" => "photo",
        "audio/ogg" => "voice",
        "image/gif" => "animation",
        "image/webp" => "sticker",
        mime if mime.starts_with("video/") => "video",
        mime if mime.starts_with("audio/") => "audio",
        _ => "document",
    }
}

/// A file as the field `kind` of a message shows it.
pub fn media_json(kind: &str, file: &SimFile) -> Value {
    let mut shown = base(file);
    let fields = match kind {
        "photo" => {
            let mut small = base(file);
            small["file_id"] = json!(format!("{}{SMALL}", file.id));
            small["file_unique_id"] = json!(format!("us{}", file.id.to_lowercase()));
            small["file_size"] = json!(SMALL_BYTES);
            (small["width"], small["height"]) = (json!(90), json!(68));
            (shown["width"], shown["height"]) = (json!(1280), json!(960));
            return json!([small, shown]);
        }
        "voice" => json!({"duration": 3, "mime_type": file.mime_type}),
        "video_note" => json!({"duration": 3, "length": 240}),
        "sticker" => json!({
            "type": "regular", "width": 512, "height": 512, "is_animated": false,
            "is_video": false, "emoji": "\u{1f44d}", "set_name": "SimStickers",
        }),
        "video" | "animation" => json!({
            "duration": 3, "width": 640, "height": 480, "mime_type": file.mime_type,
            "file_name": file.name,
        }),
        "audio" => json!({
            "duration": 3, "mime_type": file.mime_type, "file_name": file.name,
            "title": "A title", "performer": "A performer",
        }),
        _ => json!({"mime_type": file.mime_type, "file_name": file.name}),
    };
    merge(&mut shown, &fields);
    shown
}

/// Adds the fields of an object to another; existing ones are replaced.
pub fn merge(body: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        body[name.as_str()] = value.clone();
    }
}

/// A file as `GET /control/sent` shows it.
pub fn record_json(file: &SimFile) -> Value {
    json!({
        "id": file.id, "name": file.name, "size": file.content.size(),
        "mime_type": file.mime_type, "sha256": file.content.sha256(),
    })
}

fn find(world: &World, file_id: &str) -> Option<SimFile> {
    let (id, is_small) = match file_id.strip_suffix(SMALL) {
        Some(id) => (id, true),
        None => (file_id, false),
    };
    let mut file = world.store.file(id)?.clone();
    if is_small {
        file.content = FileContent::Pattern(SMALL_BYTES);
    }
    Some(file)
}

pub fn get_file(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let file_id = call.params.text("file_id");
    if file_id.is_empty() {
        return Err(SimTelegramFailure::bad("file_id not specified"));
    }
    let missing = "invalid file_id";
    let file = find(world, &file_id).ok_or_else(|| SimTelegramFailure::bad(missing))?;
    if file.content.size() > MAX_DOWNLOAD {
        return Err(SimTelegramFailure::bad("file is too big"));
    }
    let ending = file.name.rsplit_once('.').map_or("bin", |(_, ending)| ending);
    let is_plain = ending.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let ending = if is_plain { ending } else { "bin" };
    let mut shown = base(&file);
    shown["file_id"] = json!(file_id);
    shown["file_path"] = json!(format!("{}s/file_{file_id}.{ending}", kind_of(&file)));
    Ok(shown)
}

/// Sends the bytes of the file that `getFile` has named.
pub fn download(world: &World, path: &str) -> Result<SimResponse, SimTelegramFailure> {
    let name = path.rsplit('/').next().unwrap_or_default();
    let id = name.trim_start_matches("file_").split('.').next().unwrap_or_default();
    let file = find(world, id).filter(|file| file.content.size() <= MAX_DOWNLOAD);
    let file = file.ok_or_else(|| SimTelegramFailure::new(404, "Not Found"))?;
    Ok(SimResponse {
        status: StatusCode::OK,
        // The server of files does not tell types.
        headers: vec![("content-type", "application/octet-stream".to_owned())],
        body: file.content,
        hang: None,
    })
}

/// The file that a parameter names: an upload with this field name, `attach://` and the name of an
/// upload, or the id of a file that exists.
pub fn given_file(
    world: &mut World,
    call: &SimTelegramCall<'_>,
    field: &str,
    value: &str,
    kind: &str,
) -> Result<SimFile, SimTelegramFailure> {
    let name = value.strip_prefix("attach://").unwrap_or(field);
    if let Some(part) = call.params.file(name) {
        let file_name = part.file_name.clone().unwrap_or_default();
        return add_upload(world, &file_name, part.content.clone(), kind);
    }
    if value.is_empty() {
        return Err(SimTelegramFailure::bad(&format!("there is no {kind} in the request")));
    }
    if value.starts_with("http://") || value.starts_with("https://") {
        // An emulator fetches nothing.
        return Err(SimTelegramFailure::bad("failed to get HTTP URL content"));
    }
    let wrong = "wrong file identifier/HTTP URL specified";
    find(world, value).ok_or_else(|| SimTelegramFailure::bad(wrong))
}

fn add_upload(
    world: &mut World,
    name: &str,
    content: Bytes,
    kind: &str,
) -> Result<SimFile, SimTelegramFailure> {
    let size = content.len() as u64;
    if size == 0 {
        return Err(SimTelegramFailure::bad("file must be non-empty"));
    }
    if size > MAX_UPLOAD {
        return Err(SimTelegramFailure::new(413, "Request Entity Too Large"));
    }
    if kind == "photo" && size > MAX_PHOTO {
        let reason = format!(
            "file of size {size} bytes is too big for a photo; the maximum size is {MAX_PHOTO} bytes"
        );
        return Err(SimTelegramFailure::bad(&reason));
    }
    let file = SimFile {
        id: format!("F{}", random_hex()[..10].to_uppercase()),
        name: name.to_owned(),
        mime_type: mime_of(name, kind).to_owned(),
        content: FileContent::Bytes(content),
        created: now_ms() / 1000,
        owner: String::new(),
    };
    world.store.add_file(file.clone());
    Ok(file)
}

/// The type of an upload by its kind or the ending of its name; Telegram ignores what a part says.
fn mime_of(name: &str, kind: &str) -> &'static str {
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending).to_lowercase();
    match (kind, ending.as_str()) {
        ("photo", _) | (_, "jpg" | "jpeg") => "image/jpeg",
        ("voice", _) | (_, "ogg") => "audio/ogg",
        (_, "png") => "image/png",
        (_, "txt" | "log") => "text/plain",
        (_, "pdf") => "application/pdf",
        (_, "mp4") => "video/mp4",
        (_, "mp3") => "audio/mpeg",
        (_, "zip") => "application/zip",
        _ => "application/octet-stream",
    }
}
