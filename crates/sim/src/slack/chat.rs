//! Methods that post, change and remove messages of a bot.

use serde_json::{Value, json};

use super::api::{MethodCall, MethodResult, SlackFailure};
use super::{SlackSim, TEAM, app_id, bot_id, bot_user, events};
use crate::chaos::ApiCall;
use crate::clock::{now_ms, slack_ts};
use crate::http::is_set;
use crate::store::{SentRecord, SimChat, SimChatKind, SimMessage};
use crate::world::World;

/// Characters of a text that are kept; Slack cuts longer texts.
const MAX_TEXT: usize = 40_000;

/// Characters of `markdown_text` at most.
const MAX_MARKDOWN: usize = 12_000;

const MAX_BLOCKS: usize = 50;

/// Characters of the text of a section block.
const MAX_SECTION: usize = 3000;

/// Characters of all blocks of a message.
const MAX_BLOCKS_TEXT: usize = 13_200;

/// Messages to one chat in [`LIMIT_WINDOW_MS`], when limits are enforced.
const MAX_POSTS: usize = 4;
const LIMIT_WINDOW_MS: u64 = 3000;

/// Whether a message to this chat is over the rate limit; counts it if not.
pub fn is_too_fast(sim: &SlackSim, call: &ApiCall) -> bool {
    let Some(chat) = &call.chat else { return false };
    sim.state().posts.is_too_fast(chat, MAX_POSTS, LIMIT_WINDOW_MS, now_ms())
}

/// Finds the chat that a call names: by id, by name, or a person for the direct chat.
pub fn find_chat<'a>(
    world: &'a mut World,
    name: &str,
    app: usize,
) -> Result<&'a mut SimChat, SlackFailure> {
    let id = match world.store.users.get(name) {
        Some(user) if !user.is_bot => {
            let user = user.clone();
            Some(events::direct_chat(world, &user, app))
        }
        _ => world.store.find_chat(name),
    };
    let chat = id.and_then(|id| world.store.chats.get_mut(&id));
    // A bot does not see private chats of others.
    let is_visible =
        |chat: &SimChat| chat.kind == SimChatKind::Group || chat.members.contains(&bot_user(app));
    chat.filter(|chat| is_visible(chat)).ok_or_else(|| SlackFailure::new("channel_not_found"))
}

/// The chat, if the bot may write to it.
fn writable_chat(world: &mut World, name: &str, app: usize) -> Result<String, SlackFailure> {
    if name.is_empty() {
        return Err(SlackFailure::new("channel_not_found"));
    }
    let chat = find_chat(world, name, app)?;
    if chat.is_archived {
        return Err(SlackFailure::new("is_archived"));
    }
    if !chat.members.contains(&bot_user(app)) {
        return Err(SlackFailure::new("not_in_channel"));
    }
    Ok(chat.id.clone())
}

/// Checks the content of a message; returns its text as it is kept.
fn checked_text(call: &MethodCall<'_>) -> Result<String, SlackFailure> {
    let markdown = call.text("markdown_text");
    let blocks = call.params.get("blocks").and_then(Value::as_array);
    let attachments = call.params.get("attachments").and_then(Value::as_array);
    if markdown.chars().count() > MAX_MARKDOWN {
        return Err(SlackFailure::new("msg_too_long"));
    }
    if !markdown.is_empty() && (blocks.is_some() || !call.text("text").is_empty()) {
        return Err(SlackFailure::new("markdown_text_conflict"));
    }
    let text = if markdown.is_empty() { call.text("text") } else { markdown };
    let is_empty = |list: Option<&Vec<Value>>| list.is_none_or(Vec::is_empty);
    if text.is_empty() && is_empty(blocks) && is_empty(attachments) {
        return Err(SlackFailure::new("no_text"));
    }
    check_blocks(blocks.map_or(&[], Vec::as_slice))?;
    Ok(text.chars().take(MAX_TEXT).collect())
}

fn check_blocks(blocks: &[Value]) -> Result<(), SlackFailure> {
    let is_long = |block: &Value| {
        let text = block["text"]["text"].as_str().unwrap_or_default();
        block["type"] == "section" && text.chars().count() > MAX_SECTION
    };
    if blocks.len() > MAX_BLOCKS || blocks.iter().any(is_long) {
        return Err(SlackFailure::new("invalid_blocks"));
    }
    if blocks.iter().any(|block| !block["type"].is_string()) {
        return Err(SlackFailure::new("invalid_blocks"));
    }
    let size: usize = blocks.iter().map(|block| block.to_string().chars().count()).sum();
    if size > MAX_BLOCKS_TEXT {
        return Err(SlackFailure::new("msg_blocks_too_long"));
    }
    Ok(())
}

/// The message of a bot, as Slack shows it.
pub fn bot_message(app: usize, ts: &str, text: &str) -> Value {
    json!({
        "type": "message", "user": bot_user(app), "bot_id": bot_id(app), "app_id": app_id(app),
        "ts": ts, "text": text, "team": TEAM,
        "bot_profile": {
            "id": bot_id(app), "app_id": app_id(app), "name": format!("monoco{app}"),
            "deleted": false, "team_id": TEAM,
        },
    })
}

/// Adds a message of a bot to a chat, and tells the bot about it as Slack does.
pub fn insert_bot_message(
    world: &mut World,
    app: usize,
    chat: &str,
    thread: Option<&str>,
    mut body: Value,
) -> String {
    let us = world.ids.next_us();
    let ts = slack_ts(us);
    body["ts"] = json!(ts);
    if let Some(thread) = thread {
        body["thread_ts"] = json!(thread);
    }
    if world.settings.echo {
        let event = events::message_event(world, chat, &body);
        events::emit(world, app, event);
    }
    if let Some(chat) = world.store.chats.get_mut(chat) {
        let thread = thread.map(str::to_owned);
        chat.insert(us, SimMessage { id: ts.clone(), thread, body });
    }
    ts
}

/// Records what a bot did, for `GET /control/sent`.
pub fn record(
    world: &mut World,
    call: &MethodCall<'_>,
    via: &str,
    place: (&str, Option<&str>, &str),
    text: &str,
    files: Vec<Value>,
) {
    let (chat, thread, id) = place;
    let mut request = call.params.clone();
    request.remove("token");
    world.store.record_sent(SentRecord {
        app: call.app,
        via: via.to_owned(),
        chat: chat.to_owned(),
        thread: thread.map(str::to_owned),
        id: Some(id.to_owned()),
        text: text.to_owned(),
        files,
        request: Value::Object(request),
        ..SentRecord::default()
    });
}

pub fn post_message(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let chat = writable_chat(world, call.text("channel"), call.app)?;
    let text = checked_text(call)?;
    let thread = Some(call.text("thread_ts")).filter(|thread| !thread.is_empty());
    let mut body = bot_message(call.app, "", &text);
    for name in ["blocks", "attachments", "metadata"] {
        if let Some(value) = call.params.get(name).filter(|value| !value.is_string()) {
            body[name] = value.clone();
        }
    }
    if thread.is_some() && is_set(call.params, "reply_broadcast") {
        body["subtype"] = json!("thread_broadcast");
    }
    let ts = insert_bot_message(world, call.app, &chat, thread, body.clone());
    body["ts"] = json!(ts);
    if let Some(thread) = thread {
        body["thread_ts"] = json!(thread);
    }
    record(world, call, "chat.postMessage", (&chat, thread, &ts), &text, Vec::new());
    Ok(json!({"channel": chat, "ts": ts, "message": body}))
}

/// The own message that a call names by `channel` and `ts`.
fn own_message<'a>(
    chat: &'a mut SimChat,
    call: &MethodCall<'_>,
    error: &str,
) -> Result<&'a mut SimMessage, SlackFailure> {
    let message = chat.get_mut(call.text("ts"));
    let message = message.ok_or_else(|| SlackFailure::new("message_not_found"))?;
    if message.body["bot_id"] != bot_id(call.app).as_str() {
        return Err(SlackFailure::new(error));
    }
    Ok(message)
}

pub fn update(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let id = writable_chat(world, call.text("channel"), call.app)?;
    let text = checked_text(call)?;
    let edited = slack_ts(world.ids.next_us());
    let chat = find_chat(world, &id, call.app)?;
    let message = own_message(chat, call, "cant_update_message")?;
    let before = message.body.clone();
    message.body["text"] = json!(text);
    message.body["edited"] = json!({"user": bot_user(call.app), "ts": edited});
    if let Some(blocks) = call.params.get("blocks").filter(|value| !value.is_string()) {
        message.body["blocks"] = blocks.clone();
    }
    let (body, thread) = (message.body.clone(), message.thread.clone());
    let ts = call.text("ts");
    if world.settings.echo {
        let event = events::changed_event(world, &id, &body, &before);
        events::emit(world, call.app, event);
    }
    record(world, call, "chat.update", (&id, thread.as_deref(), ts), &text, Vec::new());
    Ok(json!({"channel": id, "ts": ts, "text": text, "message": body}))
}

pub fn delete(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let id = writable_chat(world, call.text("channel"), call.app)?;
    let chat = find_chat(world, &id, call.app)?;
    own_message(chat, call, "cant_delete_message")?;
    let removed = chat.remove(call.text("ts"));
    if let Some(message) = removed.filter(|_| world.settings.echo) {
        let event = events::deleted_event(world, &id, &message.body);
        events::emit(world, call.app, event);
    }
    record(world, call, "chat.delete", (&id, None, call.text("ts")), "", Vec::new());
    Ok(json!({"channel": id, "ts": call.text("ts")}))
}

pub fn add_reaction(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let id = writable_chat(world, call.text("channel"), call.app)?;
    let name = call.text("name").trim_matches(':');
    if name.is_empty() {
        return Err(SlackFailure::new("invalid_name"));
    }
    let chat = find_chat(world, &id, call.app)?;
    let message = chat.get_mut(call.text("timestamp"));
    let message = message.ok_or_else(|| SlackFailure::new("message_not_found"))?;
    if !events::add_reaction(&mut message.body, name, &bot_user(call.app)) {
        return Err(SlackFailure::new("already_reacted"));
    }
    let author = message.body["user"].clone();
    if world.settings.echo {
        let (user, place) = (bot_user(call.app), (id.as_str(), call.text("timestamp")));
        let event = events::reaction_event(world, "reaction_added", (&user, name), place, &author);
        events::emit(world, call.app, event);
    }
    record(world, call, "reactions.add", (&id, None, call.text("timestamp")), name, Vec::new());
    Ok(json!({}))
}
