//! Methods that read messages.

use serde_json::{Value, json};

use super::TOPIC_CHAT;
use super::api::{INVALID_FIELD, SimLarkCall, SimLarkFailure, SimLarkResult};
use super::messages::check_member;
use crate::store::{SimChat, SimChatKind, SimMessage};
use crate::world::World;

const DEFAULT_PAGE: usize = 20;
const MAX_PAGE: usize = 50;

/// One message. A forwarded message is followed by those inside of it.
pub fn get(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let id = call.id(0);
    let found = world.store.find_message(id);
    let missing = || SimLarkFailure::parameter("invalid message_id");
    let (chat, message) = found.ok_or_else(missing)?;
    check_member(world, chat, call.app)?;
    let mut items = vec![message.body.clone()];
    let state = call.sim.state();
    for inner in state.forwarded.get(id).into_iter().flatten() {
        let mut item = inner.clone();
        item["upper_message_id"] = json!(id);
        items.push(item);
    }
    Ok(json!({"items": items}))
}

/// A page of a list, as Lark shows it. `token` continues it.
fn page(items: Vec<Value>, token: Option<u64>) -> Value {
    let mut page = json!({"has_more": token.is_some(), "items": items});
    page["page_token"] = json!(token.map(|token| token.to_string()).unwrap_or_default());
    page
}

/// The page of a list that starts at a number.
pub fn page_from(items: impl Iterator<Item = Value>, size: usize, start: u64) -> Value {
    let mut rest = items.skip(usize::try_from(start).unwrap_or(usize::MAX));
    let found: Vec<_> = rest.by_ref().take(size).collect();
    let next = start + found.len() as u64;
    page(found, rest.next().map(|_| next))
}

/// Size of the page, and where it starts.
pub fn page_request(call: &SimLarkCall<'_>, max: usize) -> Result<(usize, u64), SimLarkFailure> {
    let number = |name: &str| {
        let text = call.query(name);
        let invalid = || SimLarkFailure::new(INVALID_FIELD, format!("{name} is invalid"));
        if text.is_empty() {
            Ok(None)
        } else {
            text.parse::<u64>().map(Some).map_err(|_| invalid())
        }
    };
    let size = number("page_size")?.map_or(Ok(DEFAULT_PAGE), usize::try_from).unwrap_or(0);
    if size == 0 || size > max {
        let message = format!("field validation failed: page_size must be 1 to {max}");
        return Err(SimLarkFailure::new(INVALID_FIELD, message));
    }
    Ok((size, number("page_token")?.unwrap_or(0)))
}

/// Messages of a chat or of a topic, oldest or newest first.
pub fn list(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let id = call.query("container_id");
    let invalid = || SimLarkFailure::parameter("invalid container_id");
    let (size, start) = page_request(call, MAX_PAGE)?;
    let (chat, messages) = match call.query("container_id_type").as_str() {
        "chat" => {
            let chat = world.store.chats.get(&id).ok_or_else(invalid)?;
            (chat, chat_messages(call, chat)?)
        }
        "thread" => {
            let root = id.replacen("omt_", "om_", 1);
            let chats = world.store.chats.values();
            let chat = chats.into_iter().find(|chat| chat.get(&root).is_some());
            let chat = chat.ok_or_else(invalid)?;
            let first = chat.newest_first(..).find(|(_, message)| message.id == root);
            (chat, first.into_iter().chain(chat.replies(&id)).collect())
        }
        _ => {
            let message = "field validation failed: container_id_type is required";
            return Err(SimLarkFailure::new(INVALID_FIELD, message));
        }
    };
    check_member(world, &chat.id, call.app)?;
    let is_direct = chat.kind == SimChatKind::Direct;
    if !is_direct && !call.sim.state().scopes.has("im:message.group_msg") {
        let message = "Lack of necessary permissions, ext=need scope: im:message.group_msg";
        return Err(SimLarkFailure::new(230_027, message));
    }
    let is_descending = call.query("sort_type") == "ByCreateTimeDesc";
    let mut messages = messages;
    if is_descending {
        messages.reverse();
    }
    // The token is the key of the next message, so that new messages do not shift the pages.
    let mut rest = messages.into_iter().skip_while(|(key, _)| {
        start > 0 && if is_descending { *key > start } else { *key < start }
    });
    let items = rest.by_ref().take(size).map(|(_, message)| message.body.clone()).collect();
    Ok(page(items, rest.next().map(|(key, _)| key)))
}

/// Messages of a chat in the range of the call, oldest first. Of a topic in an ordinary group only
/// the first message belongs to the chat.
fn chat_messages<'a>(
    call: &SimLarkCall<'_>,
    chat: &'a SimChat,
) -> Result<Vec<(u64, &'a SimMessage)>, SimLarkFailure> {
    let bound = |name: &str| {
        let text = call.query(name);
        let invalid = || SimLarkFailure::parameter(&format!("{name} is not a time in seconds"));
        if text.is_empty() {
            Ok(None)
        } else {
            text.parse::<u64>().map(Some).map_err(|_| invalid())
        }
    };
    // Both times are included; messages are ordered by microseconds.
    let first = bound("start_time")?.unwrap_or(0).saturating_mul(1_000_000);
    let end = bound("end_time")?.unwrap_or(u64::MAX / 2_000_000).saturating_add(1);
    let last = end.saturating_mul(1_000_000).saturating_sub(1);
    if first > last {
        return Err(SimLarkFailure::parameter("start_time is later than end_time"));
    }
    let is_listed = |message: &SimMessage| message.thread.is_none() || chat.id == TOPIC_CHAT;
    let found = chat.newest_first(first..=last).filter(|(_, message)| is_listed(message));
    let mut messages: Vec<_> = found.collect();
    messages.reverse();
    Ok(messages)
}
