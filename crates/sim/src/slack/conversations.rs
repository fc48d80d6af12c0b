//! Methods that read chats, people and history.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::api::{MethodCall, MethodResult, SlackFailure};
use super::chat::find_chat;
use super::{TEAM, app_id, bot_id, bot_user, events};
use crate::clock::parse_slack_ts;
use crate::http::{is_set, number_of, text_of};
use crate::store::{SimChat, SimChatKind, SimMessage, SimUser};
use crate::world::World;

const DEFAULT_LIMIT: u64 = 100;
const MAX_LIMIT: u64 = 1000;

fn limit_of(call: &MethodCall<'_>) -> usize {
    let limit = number_of(call.params, "limit").unwrap_or(DEFAULT_LIMIT);
    usize::try_from(limit.clamp(1, MAX_LIMIT)).unwrap_or(1)
}

/// A cursor that continues at a position.
fn cursor(position: u64) -> String {
    STANDARD.encode(format!("next:{position}"))
}

/// The position of the cursor of a call; `None` for the first page.
fn position(call: &MethodCall<'_>) -> Result<Option<u64>, SlackFailure> {
    let text = call.text("cursor");
    if text.is_empty() {
        return Ok(None);
    }
    let bytes = STANDARD.decode(text).unwrap_or_default();
    let text = String::from_utf8(bytes).unwrap_or_default();
    let number = text.strip_prefix("next:").and_then(|number| number.parse().ok());
    number.map(Some).ok_or_else(|| SlackFailure::new("invalid_cursor"))
}

/// The first and the last id of the range that a call selects, both included.
fn range(call: &MethodCall<'_>) -> Result<(u64, u64), SlackFailure> {
    let shift = u64::from(!is_set(call.params, "inclusive"));
    let bound = |name: &str| match text_of(call.params, name) {
        "" => Ok(None),
        text => parse_slack_ts(text)
            .map(Some)
            .ok_or_else(|| SlackFailure::new(&format!("invalid_ts_{name}"))),
    };
    let oldest = bound("oldest")?.map_or(0, |oldest| oldest.saturating_add(shift));
    let latest = bound("latest")?.map_or(u64::MAX, |latest| latest.saturating_sub(shift));
    Ok((oldest, latest))
}

/// A message as history shows it: with facts about its thread, and metadata only on request.
fn shown(chat: &SimChat, message: &SimMessage, call: &MethodCall<'_>) -> Value {
    let mut body = message.body.clone();
    let replies = chat.reply_count(&message.id);
    if replies > 0 {
        let latest = chat.replies(&message.id).last().map(|(_, reply)| reply.id.clone());
        body["thread_ts"] = json!(message.id);
        body["reply_count"] = json!(replies);
        body["latest_reply"] = json!(latest);
    }
    if !is_set(call.params, "include_all_metadata")
        && let Some(body) = body.as_object_mut()
    {
        body.remove("metadata");
    }
    body
}

/// The chat of a call, if the bot is a member.
fn readable_chat<'a>(
    world: &'a mut World,
    call: &MethodCall<'_>,
) -> Result<&'a mut SimChat, SlackFailure> {
    let chat = find_chat(world, call.text("channel"), call.app)?;
    if !chat.members.contains(&bot_user(call.app)) {
        return Err(SlackFailure::new("not_in_channel"));
    }
    Ok(chat)
}

/// A page of messages with the cursor of the next page.
fn page(messages: Vec<Value>, next: Option<u64>) -> Value {
    let mut body = json!({"messages": messages, "has_more": next.is_some()});
    if let Some(next) = next {
        body["response_metadata"] = json!({"next_cursor": cursor(next)});
    }
    body
}

pub fn history(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let (oldest, latest) = range(call)?;
    let latest = position(call)?.map_or(latest, |position| position.min(latest));
    let limit = limit_of(call);
    let chat = readable_chat(world, call)?;
    if oldest > latest {
        return Ok(page(Vec::new(), None));
    }
    // Replies are not part of the history, unless they were also sent to the chat.
    let is_shown = |message: &SimMessage| {
        message.thread.is_none() || message.body["subtype"] == "thread_broadcast"
    };
    let mut found = chat.newest_first(oldest..=latest).filter(|(_, message)| is_shown(message));
    let messages: Vec<_> =
        found.by_ref().take(limit).map(|(_, message)| shown(chat, message, call)).collect();
    let next = found.next().map(|(key, _)| key);
    Ok(page(messages, next))
}

pub fn replies(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let (oldest, latest) = range(call)?;
    let start = position(call)?;
    let limit = limit_of(call);
    let chat = readable_chat(world, call)?;
    let parent = chat.get(call.text("ts")).ok_or_else(|| SlackFailure::new("thread_not_found"))?;
    // The first message of the thread is always on the first page.
    let mut messages = Vec::new();
    if start.is_none() {
        messages.push(shown(chat, parent, call));
    }
    let mut found = chat
        .replies(&parent.id)
        .filter(|(key, _)| (oldest.max(start.unwrap_or(0))..=latest).contains(key));
    messages.extend(found.by_ref().take(limit).map(|(_, message)| shown(chat, message, call)));
    let next = found.next().map(|(key, _)| key);
    Ok(page(messages, next))
}

fn describe(chat: &SimChat, app: usize) -> Value {
    let is_mpim = chat.name.starts_with("mpdm-");
    let person = chat.members.iter().find(|member| **member != bot_user(app));
    json!({
        "id": chat.id,
        "name": if chat.kind == SimChatKind::Direct { Value::Null } else { json!(chat.name) },
        "is_channel": chat.kind == SimChatKind::Group,
        "is_group": chat.kind == SimChatKind::Private && !is_mpim,
        "is_im": chat.kind == SimChatKind::Direct,
        "is_mpim": is_mpim,
        "is_private": chat.kind != SimChatKind::Group,
        "is_archived": chat.is_archived,
        "is_member": chat.members.contains(&bot_user(app)),
        "user": if chat.kind == SimChatKind::Direct { json!(person) } else { Value::Null },
        "num_members": chat.members.len(),
    })
}

pub fn info(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let chat = find_chat(world, call.text("channel"), call.app)?;
    Ok(json!({"channel": describe(chat, call.app)}))
}

pub fn list(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let types = Some(call.text("types")).filter(|types| !types.is_empty());
    let types: Vec<&str> = types.unwrap_or("public_channel").split(',').map(str::trim).collect();
    let is_wanted = |chat: &&SimChat| {
        let kind = match chat.kind {
            SimChatKind::Direct => "im",
            SimChatKind::Group => "public_channel",
            SimChatKind::Private if chat.name.starts_with("mpdm-") => "mpim",
            SimChatKind::Private => "private_channel",
        };
        let is_visible =
            chat.kind == SimChatKind::Group || chat.members.contains(&bot_user(call.app));
        let is_archived = chat.is_archived && is_set(call.params, "exclude_archived");
        types.contains(&kind) && is_visible && !is_archived
    };
    let skip = position(call)?.unwrap_or(0);
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let mut found = world.store.chats.values().filter(is_wanted).skip(skip);
    let limit = limit_of(call);
    let channels: Vec<_> =
        found.by_ref().take(limit).map(|chat| describe(chat, call.app)).collect();
    let next = found.next().map(|_| cursor((skip + limit) as u64)).unwrap_or_default();
    Ok(json!({"channels": channels, "response_metadata": {"next_cursor": next}}))
}

pub fn members(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let chat = find_chat(world, call.text("channel"), call.app)?;
    Ok(json!({"members": chat.members, "response_metadata": {"next_cursor": ""}}))
}

/// Opens the direct chat with one person.
pub fn open(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let channel = call.text("channel");
    if !channel.is_empty() {
        let chat = find_chat(world, channel, call.app)?;
        return Ok(json!({"channel": {"id": chat.id}}));
    }
    let user = world.store.users.get(call.text("users")).cloned();
    let user = user.ok_or_else(|| SlackFailure::new("user_not_found"))?;
    let id = events::direct_chat(world, &user, call.app);
    Ok(json!({"no_op": false, "already_open": false, "channel": {"id": id}}))
}

fn describe_user(user: &SimUser) -> Value {
    let mut real_name = user.name.clone();
    if let Some(first) = real_name.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    json!({
        "id": user.id, "team_id": TEAM, "name": user.name, "deleted": false,
        "real_name": real_name, "is_bot": user.is_bot, "tz": "Europe/Berlin",
        "profile": {
            "real_name": real_name, "display_name": user.name,
            "email": format!("{}@example.com", user.name),
        },
    })
}

pub fn user_info(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let user = world.store.users.get(call.text("user"));
    let user = user.ok_or_else(|| SlackFailure::new("user_not_found"))?;
    Ok(json!({"user": describe_user(user)}))
}

pub fn user_list(world: &mut World, _: &MethodCall<'_>) -> MethodResult {
    let members: Vec<_> = world.store.users.values().map(describe_user).collect();
    Ok(json!({"members": members, "response_metadata": {"next_cursor": ""}}))
}

pub fn bot_info(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    let app = (0..world.apps).find(|app| bot_id(*app) == call.text("bot"));
    let app = app.ok_or_else(|| SlackFailure::new("bot_not_found"))?;
    Ok(json!({"bot": {
        "id": bot_id(app), "deleted": false, "name": format!("monoco{app}"),
        "app_id": app_id(app), "user_id": bot_user(app),
    }}))
}

pub fn team_info(_: &mut World, _: &MethodCall<'_>) -> MethodResult {
    Ok(json!({"team": {"id": TEAM, "name": "Emulated workspace", "domain": "sim"}}))
}
