//! Files: external upload, facts, and download with the token of the bot.

use hyper::{Method, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::api::{MethodCall, MethodResult, SlackFailure};
use super::chat::{bot_message, find_chat, insert_bot_message, record};
use super::{SlackSim, TEAM, bot_user};
use crate::clock::now_ms;
use crate::http::{SimRequest, SimResponse, number_of};
use crate::multipart::parse_multipart;
use crate::random::random_hex;
use crate::store::{FileContent, MAX_FILE_BYTES, SimChatKind, SimFile};
use crate::world::World;

/// Uploads that are open at one time.
const MAX_OPEN_UPLOADS: usize = 1000;

/// Shares of files that `files.info` shows; then the list starts again.
const MAX_SHARES: usize = 10_000;

/// An upload whose URL was given out.
pub struct OpenUpload {
    app: usize,
    file: String,
    name: String,
    length: u64,
}

/// The message that a file of a bot was shared with.
pub struct FileShare {
    chat: String,
    ts: String,
}

/// A file as messages and `files.info` show it.
pub fn describe(world: &World, file: &SimFile) -> Value {
    let name = utf8_percent_encode(&file.name, NON_ALPHANUMERIC).to_string();
    let place = format!("{}/files-pri/{TEAM}-{}", world.base_url, file.id);
    let ending = file.name.rsplit_once('.').map_or("binary", |(_, ending)| ending);
    json!({
        "id": file.id, "created": file.created, "timestamp": file.created, "name": file.name,
        "title": file.name, "mimetype": file.mime_type, "filetype": ending, "user": file.owner,
        "size": file.content.size(), "mode": "hosted", "is_external": false, "is_public": false,
        "file_access": "visible",
        "url_private": format!("{place}/{name}"),
        "url_private_download": format!("{place}/download/{name}"),
        "permalink": format!("{}/files/{}/{}/{name}", world.base_url, file.owner, file.id),
    })
}

pub fn get_upload_url(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let name = call.text("filename");
    let length = number_of(call.params, "length").unwrap_or(0);
    if name.is_empty() || length == 0 {
        return Err(SlackFailure::new("invalid_arguments"));
    }
    if length > MAX_FILE_BYTES as u64 {
        return Err(SlackFailure::new("file_upload_size_restricted"));
    }
    let (ticket, file) = (random_hex(), format!("F{}", random_hex()[..10].to_uppercase()));
    let mut state = call.sim.state();
    if state.uploads.len() >= MAX_OPEN_UPLOADS {
        state.uploads.clear();
    }
    let upload = OpenUpload { app: call.app, file: file.clone(), name: name.to_owned(), length };
    state.uploads.insert(ticket.clone(), upload);
    Ok(json!({"upload_url": format!("{}/upload/v1/{ticket}", world.base_url), "file_id": file}))
}

/// Receives the bytes of an upload: as the body, or as a field of a form.
pub fn upload(sim: &SlackSim, world: &mut World, request: &SimRequest) -> SimResponse {
    let text = |status, text: &str| SimResponse::text(status, "text/plain", text);
    let ticket = request.path.rsplit('/').next().unwrap_or_default();
    let Some(upload) = sim.state().uploads.remove(ticket) else {
        return text(StatusCode::NOT_FOUND, "upload URL is unknown or was used");
    };
    let kind = request.header("content-type").unwrap_or_default().to_owned();
    let content = if kind.starts_with("multipart/form-data") {
        let parts = parse_multipart(&kind, &request.body).unwrap_or_default();
        let file = parts.into_iter().find(|part| part.file_name.is_some());
        file.map(|part| part.content).unwrap_or_default()
    } else {
        request.body.clone()
    };
    if content.len() as u64 != upload.length {
        let found = content.len();
        let message = format!("found {found} bytes, expected {}", upload.length);
        return text(StatusCode::BAD_REQUEST, &message);
    }
    world.store.add_file(SimFile {
        id: upload.file,
        name: upload.name,
        mime_type: "application/octet-stream".to_owned(),
        content: FileContent::Bytes(content),
        created: now_ms() / 1000,
        owner: bot_user(upload.app),
    });
    text(StatusCode::OK, &format!("OK - {}", upload.length))
}

pub fn complete_upload(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let wanted = call.params.get("files").and_then(Value::as_array);
    let wanted = wanted.ok_or_else(|| SlackFailure::new("invalid_arguments"))?;
    let (mut described, mut recorded, mut ids) = (Vec::new(), Vec::new(), Vec::new());
    for entry in wanted {
        let id = entry["id"].as_str().unwrap_or_default();
        let file = world.store.file(id).filter(|file| file.owner == bot_user(call.app));
        let file = file.ok_or_else(|| SlackFailure::new("file_not_found"))?;
        let mut shown = describe(world, file);
        if let Some(title) = entry["title"].as_str() {
            shown["title"] = json!(title);
        }
        recorded.push(json!({
            "id": id, "name": file.name, "title": shown["title"], "size": file.content.size(),
            "sha256": file.content.sha256(),
        }));
        described.push(shown);
        ids.push(id.to_owned());
    }
    let given = [call.text("channel_id"), call.text("channels")];
    for name in given.into_iter().flat_map(|names| names.split(',')).filter(|n| !n.is_empty()) {
        share(world, call, name, (&described, &recorded), &ids)?;
    }
    Ok(json!({"files": described}))
}

/// Posts a message with the files to one chat.
fn share(
    world: &mut World,
    call: &MethodCall<'_>,
    name: &str,
    files: (&[Value], &[Value]),
    ids: &[String],
) -> Result<(), SlackFailure> {
    let chat = find_chat(world, name, call.app)?;
    if !chat.members.contains(&bot_user(call.app)) {
        return Err(SlackFailure::new("not_in_channel"));
    }
    let chat = chat.id.clone();
    let thread = Some(call.text("thread_ts")).filter(|thread| !thread.is_empty());
    let text = call.text("initial_comment");
    let mut body = bot_message(call.app, "", text);
    body["files"] = json!(files.0);
    body["subtype"] = json!("file_share");
    body["upload"] = json!(true);
    let ts = insert_bot_message(world, call.app, &chat, thread, body);
    for id in ids {
        let share = FileShare { chat: chat.clone(), ts: ts.clone() };
        let mut state = call.sim.state();
        if state.shares.len() >= MAX_SHARES {
            state.shares.clear();
        }
        state.shares.insert(id.clone(), share);
    }
    let via = "files.completeUploadExternal";
    record(world, call, via, (&chat, thread, &ts), text, files.1.to_vec());
    Ok(())
}

pub fn info(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let file = world.store.file(call.text("file"));
    let file = file.ok_or_else(|| SlackFailure::new("file_not_found"))?;
    let mut shown = describe(world, file);
    if let Some(share) = call.sim.state().shares.get(&file.id) {
        let kind = world.store.chats.get(&share.chat).map(|chat| chat.kind);
        let place = if kind == Some(SimChatKind::Group) { "public" } else { "private" };
        shown["shares"] = json!({place: {share.chat.as_str(): [{"ts": share.ts}]}});
    }
    Ok(json!({"file": shown}))
}

/// Sends the bytes of a file. Without a valid token Slack redirects to a page for signing in.
pub fn download(sim: &SlackSim, world: &World, request: &SimRequest) -> SimResponse {
    let id = request.path.trim_start_matches("/files-pri/").split('/').next().unwrap_or_default();
    let file = id.split_once('-').and_then(|(_, id)| world.store.file(id));
    let state = sim.state();
    let is_allowed = request.bearer().is_some_and(|token| token.starts_with("xoxb-sim-"))
        && state.token_error.is_none()
        && state.scopes.has("files:read");
    if !is_allowed {
        let place = format!("{}/?redir=%2Ffiles-pri", world.base_url);
        return SimResponse::text(StatusCode::FOUND, "text/html", "")
            .with_header("location", place);
    }
    match file {
        Some(file) if request.method == Method::GET => SimResponse::file(file),
        _ => SimResponse::not_found(&request.path),
    }
}
