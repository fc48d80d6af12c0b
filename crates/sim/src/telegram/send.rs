//! Methods that put messages of a bot into a chat.

use serde_json::{Value, json};

use super::api::{SimTelegramCall, SimTelegramFailure, SimTelegramResult};
use super::chats::{
    SimTelegramChatKind, bot_json, chat_json, facts, next_message_id, number, target,
};
use super::files::{given_file, media_json, merge, record_json};
use super::format::{MAX_CAPTION, MAX_TEXT, formatted, read_text, utf16_len};
use crate::clock::now_ms;
use crate::random::random_below;
use crate::store::{SentRecord, SimFile, SimMessage};
use crate::world::World;

/// Id of the topic that messages without a topic belong to; a bot must not name it.
const GENERAL_TOPIC: u64 = 1;

/// Where a message goes: the chat, its topic, and the message that it answers.
struct SendPlace {
    chat: String,
    thread: Option<u64>,
    reply: Option<Value>,
}

/// Checks chat, topic and answered message of a call.
fn send_place(world: &World, call: &SimTelegramCall<'_>) -> Result<SendPlace, SimTelegramFailure> {
    let chat = target(world, call, "chat_id", true)?;
    let facts = facts(call.sim, &chat);
    let asked = call.params.integer("message_thread_id").filter(|id| *id != 0);
    let asked = asked.and_then(|id| u64::try_from(id).ok()).filter(|_| facts.is_forum);
    if let Some(thread) = asked {
        match facts.topics.get(&thread) {
            Some(topic) if topic.is_closed => {
                return Err(SimTelegramFailure::bad("TOPIC_CLOSED"));
            }
            Some(_) if thread != GENERAL_TOPIC => {}
            _ => return Err(SimTelegramFailure::bad("message thread not found")),
        }
    }
    let reply = answered(world, call, &chat)?;
    // An answer is in the topic of the message that it answers.
    let inherited = reply.as_ref().and_then(|reply| reply["message_thread_id"].as_u64());
    Ok(SendPlace { chat, thread: asked.or(inherited), reply })
}

/// The message that a call answers, without the one that it answers itself.
fn answered(
    world: &World,
    call: &SimTelegramCall<'_>,
    chat: &str,
) -> Result<Option<Value>, SimTelegramFailure> {
    let given = call.params.text("reply_parameters");
    let (id, may_miss) = if given.is_empty() {
        let id = call.params.integer("reply_to_message_id").unwrap_or(0);
        (id, call.params.flag("allow_sending_without_reply"))
    } else {
        let Some(Value::Object(given)) = call.params.json("reply_parameters") else {
            return Err(SimTelegramFailure::bad("can't parse reply parameters JSON object"));
        };
        let id = given.get("message_id").and_then(Value::as_i64).unwrap_or(0);
        let may_miss = given.get("allow_sending_without_reply").and_then(Value::as_bool);
        (id, may_miss.unwrap_or(false))
    };
    if id == 0 {
        return Ok(None);
    }
    let found = world.store.chats.get(chat).and_then(|chat| chat.get(&id.to_string()));
    match found {
        Some(message) => Ok(Some(without_reply(&message.body))),
        None if may_miss => Ok(None),
        None => Err(SimTelegramFailure::bad("message to be replied not found")),
    }
}

/// A message as another one shows it that answers it.
pub fn without_reply(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.remove("reply_to_message");
    }
    body
}

/// The fields that every new message of a bot has.
fn new_message(world: &World, call: &SimTelegramCall<'_>, place: &SendPlace) -> Value {
    let chat = chat_json(call.sim, world, &place.chat);
    let mut body = json!({
        "message_id": next_message_id(call.sim, &place.chat), "date": now_ms() / 1000,
        "chat": chat,
    });
    if facts(call.sim, &place.chat).kind == SimTelegramChatKind::Channel {
        body["sender_chat"] = chat;
    } else {
        body["from"] = bot_json(call.app);
    }
    if let Some(thread) = place.thread {
        body["message_thread_id"] = json!(thread);
        body["is_topic_message"] = json!(true);
    }
    if let Some(reply) = &place.reply {
        body["reply_to_message"] = reply.clone();
    }
    if call.params.flag("protect_content") {
        body["has_protected_content"] = json!(true);
    }
    if let Some(markup) =
        call.params.json("reply_markup").filter(|m| m["inline_keyboard"].is_array())
    {
        body["reply_markup"] = markup;
    }
    body
}

/// Puts a message into its chat and records the call.
fn insert(
    world: &mut World,
    call: &SimTelegramCall<'_>,
    place: &SendPlace,
    body: &Value,
    files: &[SimFile],
) {
    let id = body["message_id"].as_u64().unwrap_or(0);
    let thread = place.thread.map(|thread| thread.to_string());
    if let Some(chat) = world.store.chats.get_mut(&place.chat) {
        let message = SimMessage { id: id.to_string(), thread: thread.clone(), body: body.clone() };
        chat.insert(id, message);
    }
    let text = body["text"].as_str().or(body["caption"].as_str()).unwrap_or_default().to_owned();
    record(world, call, &place.chat, thread, &id.to_string(), &text, files);
}

/// Records what a bot did, for `GET /control/sent`.
pub fn record(
    world: &mut World,
    call: &SimTelegramCall<'_>,
    chat: &str,
    thread: Option<String>,
    id: &str,
    text: &str,
    files: &[SimFile],
) {
    world.store.record_sent(SentRecord {
        seq: 0,
        at_ms: 0,
        app: call.app,
        via: call.method.to_owned(),
        chat: chat.to_owned(),
        thread,
        id: Some(id.to_owned()),
        text: text.to_owned(),
        files: files.iter().map(record_json).collect(),
        request: request_json(call),
    });
}

/// The parameters of a call; those that a form has as JSON text are shown as JSON.
fn request_json(call: &SimTelegramCall<'_>) -> Value {
    let structured =
        ["entities", "caption_entities", "reply_parameters", "media", "reaction", "reply_markup"];
    let fields = call.params.fields.iter().map(|(name, value)| {
        let parsed = structured.contains(&name.as_str()).then(|| call.params.json(name)).flatten();
        (name.clone(), parsed.unwrap_or_else(|| value.clone()))
    });
    Value::Object(fields.collect())
}

pub fn send_message(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let text = read_text(call.params, "text", "entities")?;
    if text.text.is_empty() {
        return Err(SimTelegramFailure::bad("message text is empty"));
    }
    if utf16_len(&text.text) > MAX_TEXT {
        return Err(SimTelegramFailure::bad("message is too long"));
    }
    let place = send_place(world, call)?;
    let mut body = new_message(world, call, &place);
    body["text"] = json!(text.text);
    if !text.entities.is_empty() {
        body["entities"] = json!(text.entities);
    }
    insert(world, call, &place, &body, &[]);
    Ok(body)
}

/// The caption of a file, as fields of its message.
fn caption_fields(
    text: &str,
    parse_mode: &str,
    entities: Option<&Value>,
) -> Result<Value, SimTelegramFailure> {
    let caption = formatted(text, parse_mode, entities)?;
    if utf16_len(&caption.text) > MAX_CAPTION {
        return Err(SimTelegramFailure::bad("message caption is too long"));
    }
    let mut fields = json!({});
    if !caption.text.is_empty() {
        fields["caption"] = json!(caption.text);
        if !caption.entities.is_empty() {
            fields["caption_entities"] = json!(caption.entities);
        }
    }
    Ok(fields)
}

/// `sendPhoto`, `sendDocument` and the other methods that send one file.
pub fn send_file(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let kind = call.method.trim_start_matches("send").to_lowercase();
    let entities = call.params.json("caption_entities");
    let caption = caption_fields(
        &call.params.text("caption"),
        &call.params.text("parse_mode"),
        entities.as_ref(),
    )?;
    let place = send_place(world, call)?;
    let value = call.params.text(&kind);
    let file = given_file(world, call, &kind, &value, &kind)?;
    let mut body = new_message(world, call, &place);
    add_media(&mut body, &kind, &file);
    merge(&mut body, &caption);
    insert(world, call, &place, &body, &[file]);
    Ok(body)
}

/// Adds a file to a message. An animation is shown as a document too.
pub fn add_media(body: &mut Value, kind: &str, file: &SimFile) {
    body[kind] = media_json(kind, file);
    if kind == "animation" {
        body["document"] = media_json("document", file);
    }
}

/// Sends 2 to 10 files as an album: one message for each, with one `media_group_id`.
pub fn send_media_group(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let Some(Value::Array(media)) = call.params.json("media") else {
        return Err(SimTelegramFailure::bad("can't parse media JSON object"));
    };
    if !(2..=10).contains(&media.len()) {
        return Err(SimTelegramFailure::bad("wrong number of items in the media group"));
    }
    let kinds: Vec<_> =
        media.iter().map(|item| item["type"].as_str().unwrap_or_default()).collect();
    let is_mixed = |kind: &str| kinds.contains(&kind) && kinds.iter().any(|other| *other != kind);
    if is_mixed("document") || is_mixed("audio") {
        let reason = format!("{} can't be mixed with other media types", kinds[0]);
        return Err(SimTelegramFailure::bad(&reason));
    }
    let place = send_place(world, call)?;
    let mut parts = Vec::new();
    for item in &media {
        let text = |name: &str| item[name].as_str().unwrap_or_default().to_owned();
        let kind = text("type");
        if !["photo", "video", "document", "audio"].contains(&kind.as_str()) {
            let reason = format!(
                "can't parse InputMedia: type must be one of animation, document, audio, photo and video, found {kind:?}"
            );
            return Err(SimTelegramFailure::bad(&reason));
        }
        let caption =
            caption_fields(&text("caption"), &text("parse_mode"), item.get("caption_entities"))?;
        let file = given_file(world, call, "", &text("media"), &kind)?;
        parts.push((kind, caption, file));
    }
    let group = random_below(usize::MAX).to_string();
    let mut messages = Vec::new();
    for (kind, caption, file) in parts {
        let mut body = new_message(world, call, &place);
        body["media_group_id"] = json!(group);
        add_media(&mut body, &kind, &file);
        merge(&mut body, &caption);
        insert(world, call, &place, &body, &[file]);
        messages.push(body);
    }
    Ok(json!(messages))
}

/// Where a message comes from, as the forwarded one shows it.
fn origin_of(message: &Value) -> Value {
    let (date, from) = (&message["date"], &message["from"]);
    if let Some(origin) = message.get("forward_origin") {
        return origin.clone();
    }
    match message["chat"]["type"].as_str() {
        Some("channel") => json!({
            "type": "channel", "date": date, "chat": message["chat"],
            "message_id": message["message_id"],
        }),
        _ if message["sender_chat"].is_object() => {
            json!({"type": "chat", "date": date, "sender_chat": message["sender_chat"]})
        }
        _ => json!({"type": "user", "date": date, "sender_user": from}),
    }
}

pub fn forward_message(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let from = target(world, call, "from_chat_id", false)?;
    let place = send_place(world, call)?;
    let id = call.params.text("message_id");
    let found = world.store.chats.get(&from).and_then(|chat| chat.get(&id));
    let original = found.map(|message| message.body.clone());
    let original =
        original.ok_or_else(|| SimTelegramFailure::bad("message to forward not found"))?;
    let mut body = without_reply(&original);
    if let Some(fields) = body.as_object_mut() {
        for name in ["sender_chat", "edit_date", "media_group_id", "reply_markup", "quote"] {
            fields.remove(name);
        }
    }
    body["forward_origin"] = origin_of(&original);
    merge(&mut body, &new_message(world, call, &place));
    insert(world, call, &place, &body, &[]);
    debug_assert_eq!(body["chat"]["id"], json!(number(&place.chat)), "the message is in its chat");
    Ok(body)
}
