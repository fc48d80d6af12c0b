//! Methods that change messages, remove them, and react to them.

use serde_json::{Value, json};

use super::api::{SimTelegramCall, SimTelegramFailure, SimTelegramResult};
use super::bot_id;
use super::chats::{SimTelegramChatKind, facts, target};
use super::format::{MAX_CAPTION, MAX_TEXT, SimFormattedText, read_text, utf16_len};
use super::send::record;
use crate::clock::now_ms;
use crate::store::SimMessage;
use crate::world::World;

/// Age at which a message can no longer be removed, in seconds.
const MAX_DELETE_AGE: u64 = 48 * 3600;

/// Emoji that can be used as reactions. There is no check mark and no cross among them.
const REACTIONS: &str = "👍 👎 ❤ 🔥 🥰 👏 😁 🤔 🤯 😱 🤬 😢 🎉 🤩 🤮 💩 🙏 👌 🕊 🤡 🥱 🥴 😍 🐳 ❤\u{200d}🔥 🌚 🌭 💯 🤣 ⚡ 🍌 🏆 💔 🤨 😐 🍓 🍾 💋 🖕 😈 😴 😭 🤓 👻 👨\u{200d}💻 👀 🎃 🙈 😇 😨 🤝 ✍ 🤗 🫡 🎅 🎄 ☃ 💅 🤪 🗿 🆒 💘 🙉 🦄 😘 💊 🙊 😎 👾 🤷\u{200d}♂ 🤷 🤷\u{200d}♀ 😡";

/// The chat and the message that a call names.
fn named_message<'a>(
    world: &'a mut World,
    call: &SimTelegramCall<'_>,
    what: &str,
) -> Result<(String, &'a mut SimMessage), SimTelegramFailure> {
    let id = target(world, call, "chat_id", true)?;
    let message = call.params.text("message_id");
    let found = world.store.chats.get_mut(&id).and_then(|chat| chat.get_mut(&message));
    let missing = || SimTelegramFailure::bad(&format!("message to {what} not found"));
    found.map(|found| (id, found)).ok_or_else(missing)
}

/// Whether a message is the bot's own. In a channel the bot may change all posts.
fn is_own(message: &SimMessage, app: usize) -> bool {
    message.body["from"]["id"] == bot_id(app) || message.body["chat"]["type"] == "channel"
}

pub fn edit_text(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let text = read_text(call.params, "text", "entities")?;
    if text.text.is_empty() {
        return Err(SimTelegramFailure::bad("message text is empty"));
    }
    if utf16_len(&text.text) > MAX_TEXT {
        return Err(SimTelegramFailure::bad("message is too long"));
    }
    change(world, call, "text", "entities", text)
}

pub fn edit_caption(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let caption = read_text(call.params, "caption", "caption_entities")?;
    if utf16_len(&caption.text) > MAX_CAPTION {
        return Err(SimTelegramFailure::bad("message caption is too long"));
    }
    change(world, call, "caption", "caption_entities", caption)
}

/// Replaces the text or caption of an own message.
fn change(
    world: &mut World,
    call: &SimTelegramCall<'_>,
    text_key: &str,
    entities_key: &str,
    new: SimFormattedText,
) -> SimTelegramResult {
    let (chat, message) = named_message(world, call, "edit")?;
    if !is_own(message, call.app) {
        return Err(SimTelegramFailure::bad("message can't be edited"));
    }
    let has_text = message.body["text"].is_string();
    if has_text != (text_key == "text") {
        let reason = format!("there is no {text_key} in the message to edit");
        return Err(SimTelegramFailure::bad(&reason));
    }
    let entities = json!(new.entities);
    let old_entities = message.body.get(entities_key).cloned().unwrap_or_else(|| json!([]));
    if message.body[text_key] == new.text.as_str() && old_entities == entities {
        return Err(SimTelegramFailure::bad(
            "message is not modified: specified new message content and reply markup are exactly \
             the same as a current content and reply markup of the message",
        ));
    }
    message.body[text_key] = json!(new.text);
    message.body[entities_key] = entities;
    message.body["edit_date"] = json!(now_ms() / 1000);
    let (id, thread, body) = (message.id.clone(), message.thread.clone(), message.body.clone());
    record(world, call, &chat, thread, &id, &new.text, &[]);
    Ok(body)
}

pub fn delete(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let (chat, message) = named_message(world, call, "delete")?;
    let is_private = facts(call.sim, &chat).kind == SimTelegramChatKind::Private;
    let age = (now_ms() / 1000).saturating_sub(message.body["date"].as_u64().unwrap_or(0));
    if (!is_own(message, call.app) && !is_private) || age > MAX_DELETE_AGE {
        return Err(SimTelegramFailure::bad("message can't be deleted"));
    }
    let (id, thread) = (message.id.clone(), message.thread.clone());
    if let Some(chat) = world.store.chats.get_mut(&chat) {
        chat.remove(&id);
    }
    record(world, call, &chat, thread, &id, "", &[]);
    Ok(json!(true))
}

/// Sets the only reaction of the bot to a message; an empty list removes it.
pub fn set_reaction(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let given = call.params.json("reaction").unwrap_or_else(|| json!([]));
    let Value::Array(reactions) = given else {
        return Err(SimTelegramFailure::bad("can't parse reaction types JSON object"));
    };
    let (chat, message) = named_message(world, call, "react")?;
    if reactions.len() > 1 {
        return Err(SimTelegramFailure::bad("REACTIONS_TOO_MANY"));
    }
    let emoji = reactions.first().and_then(|reaction| reaction["emoji"].as_str());
    let is_known = |emoji: &str| REACTIONS.split(' ').any(|known| known == emoji);
    if !reactions.is_empty() && !emoji.is_some_and(is_known) {
        return Err(SimTelegramFailure::bad("REACTION_INVALID"));
    }
    let emoji = emoji.unwrap_or_default().to_owned();
    let (id, thread) = (message.id.clone(), message.thread.clone());
    record(world, call, &chat, thread, &id, &emoji, &[]);
    Ok(json!(true))
}
