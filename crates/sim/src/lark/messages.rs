//! Methods that send, change and remove messages of a bot.

use serde_json::{Value, json};

use super::api::{INVALID_FIELD, SimLarkCall, SimLarkFailure, SimLarkResult};
use super::content::{SaidContent, file_of_key};
use super::{UuidSend, app_id, bot_user, events};
use crate::clock::now_ms;
use crate::http::is_set;
use crate::store::{SentRecord, SimChatKind};
use crate::world::World;

/// Bytes of the content of a text message.
const MAX_TEXT_BYTES: usize = 150 << 10;

/// Bytes of the content of other messages.
const MAX_RICH_BYTES: usize = 30 << 10;

/// Characters of an idempotency key.
const MAX_UUID: usize = 50;

/// Finds the chat of a new message by the type of its target.
fn target(world: &mut World, call: &SimLarkCall<'_>) -> Result<String, SimLarkFailure> {
    let id = call.text("receive_id");
    let person = match call.query("receive_id_type").as_str() {
        "chat_id" => {
            let known = world.store.chats.contains_key(id);
            return if known { Ok(id.to_owned()) } else { Err(invalid_target()) };
        }
        "open_id" => id.to_owned(),
        "union_id" => id.replacen("on_", "ou_", 1),
        "user_id" => format!("ou_{id}"),
        "email" => format!("ou_{}", id.split('@').next().unwrap_or_default()),
        _ => {
            let message = "field validation failed: receive_id_type is required";
            return Err(SimLarkFailure::new(INVALID_FIELD, message));
        }
    };
    let user = world.store.users.get(&person).filter(|user| !user.is_bot).cloned();
    let user = user.ok_or_else(invalid_target)?;
    events::direct_chat(world, &user, call.app).map_err(|_| invalid_target())
}

fn invalid_target() -> SimLarkFailure {
    SimLarkFailure::parameter("invalid receive_id")
}

/// Rejects a message to a group without the bot.
pub fn check_member(world: &World, chat: &str, app: usize) -> Result<(), SimLarkFailure> {
    let found = world.store.chats.get(chat).ok_or_else(invalid_target)?;
    if found.kind == SimChatKind::Direct || found.members.contains(&bot_user(app)) {
        return Ok(());
    }
    Err(SimLarkFailure::new(230_002, "The bot can not be outside the group."))
}

/// Text of a message as a person would see it, and the keys of its files.
#[derive(Debug, Default)]
struct SentContent {
    text: String,
    keys: Vec<String>,
}

/// Adds what one element of a post shows.
fn add_element(sent: &mut SentContent, element: &Value) {
    let text = |name: &str| element[name].as_str().unwrap_or_default();
    match text("tag") {
        "img" => sent.keys.push(text("image_key").to_owned()),
        "media" => sent.keys.push(text("file_key").to_owned()),
        "at" => sent.text.push_str(&format!("@{}", text("user_id"))),
        "emotion" => sent.text.push_str(&format!(":{}:", text("emoji_type"))),
        "hr" => sent.text.push_str("---"),
        "a" => sent.text.push_str(&format!("[{}]({})", text("text"), text("href"))),
        _ => sent.text.push_str(text("text")),
    }
}

/// The content of a post, which has one or several languages.
fn read_post(content: &Value) -> Option<SentContent> {
    let languages = content.as_object()?;
    let first = languages.values().find(|language| language["content"].is_array())?;
    let mut sent = SentContent::default();
    if let Some(title) = first["title"].as_str().filter(|title| !title.is_empty()) {
        sent.text = format!("{title}\n");
    }
    for (number, paragraph) in first["content"].as_array()?.iter().enumerate() {
        if number > 0 {
            sent.text.push('\n');
        }
        for element in paragraph.as_array()? {
            element["tag"].as_str()?;
            add_element(&mut sent, element);
        }
    }
    Some(sent)
}

/// Checks the kind and the content of a message of a bot.
fn read_content(kind: &str, text: &str) -> Result<SentContent, SimLarkFailure> {
    let limit = if kind == "text" { MAX_TEXT_BYTES } else { MAX_RICH_BYTES };
    if text.len() > limit {
        let message = "The length of the message content reaches its limit.";
        return Err(SimLarkFailure::new(230_025, message));
    }
    let invalid = || SimLarkFailure::parameter("content is not a string in json format");
    let content: Value = serde_json::from_str(text).map_err(|_| invalid())?;
    let field = |name: &str| {
        let value = content[name].as_str().filter(|value| !value.is_empty());
        let missing = || SimLarkFailure::parameter(&format!("{name} is required"));
        value.map(str::to_owned).ok_or_else(missing)
    };
    let file = |name: &str| Ok(SentContent { text: String::new(), keys: vec![field(name)?] });
    match kind {
        "text" => Ok(SentContent { text: field("text")?, keys: Vec::new() }),
        "post" => read_post(&content)
            .ok_or_else(|| SimLarkFailure::parameter("invalid content of a post")),
        "image" => file("image_key"),
        "file" | "audio" | "media" | "sticker" => file("file_key"),
        "share_chat" => Ok(SentContent { text: field("chat_id")?, keys: Vec::new() }),
        "share_user" => Ok(SentContent { text: field("user_id")?, keys: Vec::new() }),
        "interactive" if content.is_object() => {
            Ok(SentContent { text: text.to_owned(), keys: Vec::new() })
        }
        "interactive" => Err(SimLarkFailure::new(230_099, "Failed to create card content")),
        kind => Err(SimLarkFailure::parameter(&format!("invalid msg_type {kind:?}"))),
    }
}

/// The files of a message, as `GET /control/sent` shows them.
fn describe_files(world: &World, keys: &[String]) -> Result<Vec<Value>, SimLarkFailure> {
    let describe = |key: &String| {
        let file = world.store.file(file_of_key(key));
        let file = file.ok_or_else(|| SimLarkFailure::parameter("invalid file key"))?;
        Ok(json!({
            "id": file.id, "key": key, "name": file.name, "size": file.content.size(),
            "sha256": file.content.sha256(),
        }))
    };
    keys.iter().map(describe).collect()
}

/// The message that was sent with this idempotency key in the last hour.
fn earlier_send(world: &World, call: &SimLarkCall<'_>) -> Result<Option<Value>, SimLarkFailure> {
    let uuid = call.text("uuid");
    if uuid.chars().count() > MAX_UUID {
        let message = format!("field validation failed: uuid has more than {MAX_UUID} characters");
        return Err(SimLarkFailure::new(INVALID_FIELD, message));
    }
    if uuid.is_empty() {
        return Ok(None);
    }
    let state = call.sim.state();
    let sent = state.uuids.get(&uuid_key(call));
    let sent = sent.filter(|sent| sent.at_ms + state.uuid_ttl_ms > now_ms());
    let message = sent.and_then(|sent| world.store.find_message(&sent.message_id));
    Ok(message.map(|(_, message)| message.body.clone()))
}

fn uuid_key(call: &SimLarkCall<'_>) -> String {
    format!("{}/{}", call.app, call.text("uuid"))
}

/// Sends a message to a chat, in reply to another one or not.
fn send(
    world: &mut World,
    call: &SimLarkCall<'_>,
    chat: &str,
    parent: Option<(&str, bool)>,
) -> SimLarkResult {
    if let Some(item) = earlier_send(world, call)? {
        return Ok(item);
    }
    check_member(world, chat, call.app)?;
    let (kind, content) = (call.text("msg_type"), call.text("content"));
    let sent = read_content(kind, content)?;
    let files = describe_files(world, &sent.keys)?;
    let (us, id) = (world.ids.next_us(), events::new_message_id());
    let said = SaidContent {
        kind: kind.to_owned(),
        content: content.to_owned(),
        ..SaidContent::default()
    };
    let sender = events::app_sender(&app_id(call.app));
    let mut item = events::new_item(&id, chat, &sender, &said, us);
    if let Some((parent, in_topic)) = parent {
        events::link_reply(world, &mut item, parent, in_topic);
    }
    events::insert(world, chat, us, &mut item);
    if !call.text("uuid").is_empty() {
        let sent = UuidSend { message_id: id.clone(), at_ms: now_ms() };
        call.sim.state().uuids.insert(uuid_key(call), sent);
    }
    if world.settings.echo {
        let event = events::message_event(world, &item);
        events::emit(world, call.app, "im.message.receive_v1", &event);
    }
    record(world, call, &item, sent.text, files);
    Ok(item)
}

/// Records what a bot did, for `GET /control/sent`.
pub fn record(
    world: &mut World,
    call: &SimLarkCall<'_>,
    item: &Value,
    text: String,
    files: Vec<Value>,
) {
    let field = |name: &str| item[name].as_str().map(str::to_owned);
    world.store.record_sent(SentRecord {
        app: call.app,
        via: call.method.to_owned(),
        chat: field("chat_id").unwrap_or_default(),
        thread: field("thread_id").or_else(|| field("parent_id")),
        id: field("message_id"),
        text,
        files,
        request: Value::Object(call.body.clone()),
        ..SentRecord::default()
    });
}

pub fn create(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let chat = target(world, call)?;
    send(world, call, &chat, None)
}

/// The chat and the message that a call names. A message that was removed is an error.
pub fn present_message(
    world: &World,
    call: &SimLarkCall<'_>,
    deleted: i64,
) -> Result<(String, Value), SimLarkFailure> {
    let found = world.store.find_message(call.id(0));
    let missing = || SimLarkFailure::parameter("invalid message_id");
    let (chat, message) = found.ok_or_else(missing)?;
    if message.body["deleted"] == true {
        return Err(SimLarkFailure::new(deleted, "The message was withdrawn."));
    }
    Ok((chat.to_owned(), message.body.clone()))
}

pub fn reply(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let (chat, _) = match earlier_send(world, call)? {
        Some(item) => return Ok(item),
        None => present_message(world, call, 230_011)?,
    };
    let in_topic = is_set(call.body, "reply_in_thread");
    send(world, call, &chat, Some((call.id(0), in_topic)))
}

/// The bot's own message that a call names.
fn own_message(world: &World, call: &SimLarkCall<'_>) -> Result<Value, SimLarkFailure> {
    let (_, item) = present_message(world, call, 230_011)?;
    if item["sender"]["id"] != app_id(call.app).as_str() {
        return Err(SimLarkFailure::new(230_012, "Bot is NOT the sender of the message."));
    }
    Ok(item)
}

/// Changes a text or a post (`PUT`), or a card (`PATCH`).
pub fn update(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let mut item = own_message(world, call)?;
    let is_card = call.method == "message.patch";
    let kind = if is_card { "interactive" } else { call.text("msg_type") };
    let is_allowed = item["msg_type"] == kind && (is_card || ["text", "post"].contains(&kind));
    if !is_allowed {
        return Err(SimLarkFailure::parameter("this type of message can not be changed"));
    }
    let sent = read_content(kind, call.text("content"))?;
    let files = describe_files(world, &sent.keys)?;
    item["body"]["content"] = json!(call.text("content"));
    item["updated"] = json!(true);
    item["update_time"] = json!(now_ms().to_string());
    if let Some(message) = world.store.find_message_mut(call.id(0)) {
        message.body = item.clone();
    }
    record(world, call, &item, sent.text, files);
    Ok(if is_card { json!({}) } else { item })
}

pub fn delete(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let item = own_message(world, call)?;
    if let Some(message) = world.store.find_message_mut(call.id(0)) {
        events::mark_deleted(&mut message.body);
    }
    record(world, call, &item, String::new(), Vec::new());
    Ok(json!({}))
}
