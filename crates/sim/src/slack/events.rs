//! What people do in the chats, as events of the Events API.

use serde_json::{Map, Value, json};

use super::{TEAM, app_id, bot_user, files};
use crate::clock::slack_ts;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest, find_person,
    resolve_files,
};
use crate::random::{random_hex, random_uuid};
use crate::store::{MAX_CHATS, SimChat, SimChatKind, SimMessage, SimUser};
use crate::world::World;

/// Adds an event for an app.
pub fn emit(world: &mut World, app: usize, event: Value) {
    let event_id = format!("Ev{}", random_hex()[..16].to_uppercase());
    let ts = event["event_ts"].as_str().unwrap_or_default();
    let seconds: u64 = ts.split('.').next().and_then(|s| s.parse().ok()).unwrap_or(0);
    let payload = json!({
        "token": "sim-verification-token",
        "team_id": TEAM,
        "context_team_id": TEAM,
        "context_enterprise_id": null,
        "api_app_id": app_id(app),
        "event": event,
        "type": "event_callback",
        "event_id": event_id,
        "event_time": seconds,
        "authorizations": [{
            "enterprise_id": null, "team_id": TEAM, "user_id": bot_user(app), "is_bot": true,
            "is_enterprise_install": false,
        }],
        "is_ext_shared_channel": false,
        "event_context": format!("4-sim-{event_id}"),
    });
    world.emit(app, "events_api", event_id, &payload);
}

fn channel_type(chat: &SimChat) -> &'static str {
    match chat.kind {
        SimChatKind::Direct => "im",
        SimChatKind::Group => "channel",
        SimChatKind::Private if chat.name.starts_with("mpdm-") => "mpim",
        SimChatKind::Private => "group",
    }
}

/// The event about a new message.
pub fn message_event(world: &World, chat: &str, body: &Value) -> Value {
    let mut event = body.clone();
    event["channel"] = json!(chat);
    event["event_ts"] = event["ts"].clone();
    event["channel_type"] = json!(world.store.chats.get(chat).map(channel_type));
    event
}

/// The event about a message that has changed.
pub fn changed_event(world: &mut World, chat: &str, body: &Value, before: &Value) -> Value {
    let ts = slack_ts(world.ids.next_us());
    json!({
        "type": "message", "subtype": "message_changed", "hidden": true, "channel": chat,
        "ts": ts, "event_ts": ts, "message": body, "previous_message": before,
        "channel_type": world.store.chats.get(chat).map(channel_type),
    })
}

/// The event about a message that was removed.
pub fn deleted_event(world: &mut World, chat: &str, before: &Value) -> Value {
    let ts = slack_ts(world.ids.next_us());
    json!({
        "type": "message", "subtype": "message_deleted", "hidden": true, "channel": chat,
        "ts": ts, "event_ts": ts, "deleted_ts": before["ts"], "previous_message": before,
        "channel_type": world.store.chats.get(chat).map(channel_type),
    })
}

/// The direct chat of a person and a bot; created when it does not exist.
pub fn direct_chat(world: &mut World, user: &SimUser, app: usize) -> String {
    let name = if app == 0 { format!("@{}", user.name) } else { format!("@{}/{app}", user.name) };
    if let Some(id) = world.store.find_chat(&name) {
        return id;
    }
    let id = format!("D{}X{app}", user.id.trim_start_matches('U'));
    let members = [user.id.as_str(), &bot_user(app)];
    world.store.add_chat(SimChat::new(&id, &name, SimChatKind::Direct, &members));
    id
}

/// Finds a person by id or name; a new name creates a person.
fn person(world: &mut World, name: Option<&str>) -> Result<SimUser, ControlError> {
    find_person(world, name, |_| format!("U{}", random_hex()[..9].to_uppercase()))
}

/// Finds a chat by id or name; `@NAME` is a direct chat, and a new name creates a channel.
fn place(
    world: &mut World,
    name: &str,
    user: &SimUser,
    app: usize,
) -> Result<String, ControlError> {
    if let Some(person_name) = name.strip_prefix('@') {
        let other = person(world, Some(person_name))?;
        return Ok(direct_chat(world, &other, app));
    }
    let name = name.trim_start_matches('#');
    let id = match world.store.find_chat(name) {
        Some(id) => id,
        None if name.is_empty() || world.store.chats.len() >= MAX_CHATS => {
            return Err(ControlError(format!("found chat {name:?}, expected a name or an id")));
        }
        None => {
            let id = format!("C{}", random_hex()[..9].to_uppercase());
            let bots: Vec<_> = (0..world.apps).map(bot_user).collect();
            let bots: Vec<_> = bots.iter().map(String::as_str).collect();
            world.store.add_chat(SimChat::new(&id, name, SimChatKind::Group, &bots));
            id
        }
    };
    if let Some(chat) = world.store.chats.get_mut(&id) {
        chat.members.insert(user.id.clone());
    }
    Ok(id)
}

/// A rich text block with the text, mentions and links, as Slack's own clients send it.
fn rich_text(text: &str) -> Value {
    let mut elements = Vec::new();
    let mut rest = text;
    while let Some((before, marked)) = rest.split_once('<') {
        let Some((mark, after)) = marked.split_once('>') else { break };
        if !before.is_empty() {
            elements.push(json!({"type": "text", "text": unescape(before)}));
        }
        elements.push(rich_element(mark));
        rest = after;
    }
    if !rest.is_empty() {
        elements.push(json!({"type": "text", "text": unescape(rest)}));
    }
    json!([{
        "type": "rich_text", "block_id": random_hex()[..5],
        "elements": [{"type": "rich_text_section", "elements": elements}],
    }])
}

fn rich_element(mark: &str) -> Value {
    let (target, label) = mark.split_once('|').unwrap_or((mark, ""));
    match target.split_at_checked(1) {
        Some(("@", user)) => json!({"type": "user", "user_id": user}),
        Some(("#", channel)) => json!({"type": "channel", "channel_id": channel}),
        Some(("!", range)) => json!({"type": "broadcast", "range": range}),
        _ if label.is_empty() => json!({"type": "link", "url": target}),
        _ => json!({"type": "link", "url": target, "text": label}),
    }
}

fn unescape(text: &str) -> String {
    text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// The message of a person, without its place in a thread.
fn said(world: &mut World, request: &SayRequest, user: &SimUser) -> Result<Value, ControlError> {
    let mention = format!("<@{}>", bot_user(request.app));
    let text = match request.mention {
        Some(true) if !request.text.contains(&mention) => format!("{mention} {}", request.text),
        _ => request.text.clone(),
    };
    let mut body = json!({
        "type": "message", "user": user.id, "text": text, "team": TEAM,
        "client_msg_id": random_uuid(),
    });
    match &request.blocks {
        Some(blocks) => body["blocks"] = blocks.clone(),
        None if !text.is_empty() => body["blocks"] = rich_text(&text),
        None => {}
    }
    if request.bot {
        body["bot_id"] = json!("B0OTHER");
        body["app_id"] = json!("A0OTHER");
    }
    if !request.files.is_empty() {
        let mut found = resolve_files(world, &request.files)?;
        for file in &mut found {
            file.owner = user.id.clone();
        }
        let shown: Vec<_> = found.iter().map(|file| files::describe(world, file)).collect();
        body["files"] = json!(shown);
        body["subtype"] = json!("file_share");
        body["upload"] = json!(false);
    }
    Ok(body)
}

/// Says something as a person. A mention of the bot causes two events, as Slack does.
pub fn say(world: &mut World, request: &SayRequest) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let chat = place(world, &request.chat, &user, request.app)?;
    let mut body = said(world, request, &user)?;
    let us = world.ids.next_us();
    let ts = slack_ts(us);
    body["ts"] = json!(ts);
    let thread = request.thread.clone();
    if let Some(thread) = &thread {
        body["thread_ts"] = json!(thread);
        body["parent_user_id"] = parent_author(world, &chat, thread);
        if request.broadcast {
            body["subtype"] = json!("thread_broadcast");
        }
    }
    merge(&mut body, &request.raw);
    let event = message_event(world, &chat, &body);
    let is_direct = event["channel_type"] == "im";
    let text = body["text"].as_str().unwrap_or_default();
    let is_mention = text.contains(&format!("<@{}>", bot_user(request.app))) && !is_direct;
    if let Some(chat) = world.store.chats.get_mut(&chat) {
        chat.insert(us, SimMessage { id: ts.clone(), thread, body });
    }
    if is_mention {
        let mut mention = event.clone();
        mention["type"] = json!("app_mention");
        if let Some(mention) = mention.as_object_mut() {
            mention.remove("subtype");
            mention.remove("channel_type");
        }
        emit(world, request.app, mention);
    }
    emit(world, request.app, event);
    Ok(json!({"id": ts, "chat": chat, "user": user.id}))
}

/// Replaces or adds fields that the caller gave.
fn merge(body: &mut Value, fields: &Map<String, Value>) {
    for (name, value) in fields {
        body[name.as_str()] = value.clone();
    }
}

fn parent_author(world: &World, chat: &str, thread: &str) -> Value {
    let parent = world.store.chats.get(chat).and_then(|chat| chat.get(thread));
    parent.map_or(Value::Null, |parent| parent.body["user"].clone())
}

/// The chat of a request, and the message in it that the request names.
fn find_message<'a>(
    world: &'a mut World,
    chat: &str,
    id: &str,
) -> Result<(String, &'a mut SimMessage), ControlError> {
    let missing = || ControlError(format!("there is no message {id:?} in chat {chat:?}"));
    let place = world.store.find_chat(chat).ok_or_else(missing)?;
    let found = world.store.chats.get_mut(&place).and_then(|chat| chat.get_mut(id));
    Ok((place, found.ok_or_else(missing)?))
}

pub fn edit(world: &mut World, request: &EditRequest) -> Result<Value, ControlError> {
    let edited = slack_ts(world.ids.next_us());
    let (chat, message) = find_message(world, &request.chat, &request.id)?;
    let before = message.body.clone();
    if request.unfurl {
        message.body["attachments"] = json!([{
            "from_url": "https://example.com/", "title": "Example", "id": 1, "text": "A preview",
        }]);
    } else {
        message.body["text"] = json!(request.text);
        message.body["blocks"] = request.blocks.clone().unwrap_or_else(|| rich_text(&request.text));
        message.body["edited"] = json!({"user": before["user"], "ts": edited});
    }
    let body = message.body.clone();
    let event = changed_event(world, &chat, &body, &before);
    emit(world, request.app, event);
    // A mention in an edited message is announced again.
    let mention = format!("<@{}>", bot_user(request.app));
    if !request.unfurl && request.text.contains(&mention) {
        let mut event = message_event(world, &chat, &body);
        event["type"] = json!("app_mention");
        event["event_ts"] = json!(edited);
        emit(world, request.app, event);
    }
    Ok(json!({"id": request.id, "chat": chat}))
}

pub fn recall(world: &mut World, request: &RecallRequest) -> Result<Value, ControlError> {
    let (chat, message) = find_message(world, &request.chat, &request.id)?;
    let before = message.body.clone();
    if let Some(chat) = world.store.chats.get_mut(&chat) {
        chat.remove(&request.id);
    }
    let event = deleted_event(world, &chat, &before);
    emit(world, request.app, event);
    Ok(json!({"id": request.id, "chat": chat}))
}

/// Adds a reaction to a message; returns whether it is new.
pub fn add_reaction(body: &mut Value, name: &str, user: &str) -> bool {
    if !body["reactions"].is_array() {
        body["reactions"] = json!([]);
    }
    let Some(reactions) = body["reactions"].as_array_mut() else { return false };
    let found = reactions.iter_mut().find(|reaction| reaction["name"] == name);
    let Some(reaction) = found else {
        reactions.push(json!({"name": name, "users": [user], "count": 1}));
        return true;
    };
    let Some(users) = reaction["users"].as_array_mut() else { return false };
    if users.iter().any(|other| other == user) {
        return false;
    }
    users.push(json!(user));
    reaction["count"] = json!(reaction["users"].as_array().map_or(0, Vec::len));
    true
}

/// Builds the event that a person or bot reacted to a message, or took the reaction back.
pub fn reaction_event(
    world: &mut World,
    kind: &str,
    (user, reaction): (&str, &str),
    (chat, ts): (&str, &str),
    author: &Value,
) -> Value {
    let event_ts = slack_ts(world.ids.next_us());
    json!({
        "type": kind, "user": user, "reaction": reaction, "item_user": author,
        "item": {"type": "message", "channel": chat, "ts": ts}, "event_ts": event_ts,
    })
}

pub fn react(world: &mut World, request: &ReactRequest) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let (chat, message) = find_message(world, &request.chat, &request.id)?;
    if !request.remove {
        add_reaction(&mut message.body, &request.reaction, &user.id);
    }
    let author = message.body["user"].clone();
    let kind = if request.remove { "reaction_removed" } else { "reaction_added" };
    let reaction = (user.id.as_str(), request.reaction.as_str());
    let event = reaction_event(world, kind, reaction, (&chat, &request.id), &author);
    emit(world, request.app, event);
    Ok(json!({"id": request.id, "chat": chat}))
}

pub fn member(
    world: &mut World,
    request: &MemberRequest,
    joins: bool,
) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let chat = place(world, &request.chat, &user, request.app)?;
    let us = world.ids.next_us();
    let ts = slack_ts(us);
    let (kind, subtype, verb) = if joins {
        ("member_joined_channel", "channel_join", "joined")
    } else {
        ("member_left_channel", "channel_leave", "left")
    };
    let letter = if channel_type_of(world, &chat) == Some("channel") { "C" } else { "G" };
    let event = json!({
        "type": kind, "user": user.id, "channel": chat, "channel_type": letter, "team": TEAM,
        "event_ts": ts,
    });
    emit(world, request.app, event);
    let body = json!({
        "type": "message", "subtype": subtype, "user": user.id, "ts": ts,
        "text": format!("<@{}> has {verb} the channel", user.id),
    });
    let event = message_event(world, &chat, &body);
    emit(world, request.app, event);
    if let Some(chat) = world.store.chats.get_mut(&chat) {
        if !joins {
            chat.members.remove(&user.id);
        }
        chat.insert(us, SimMessage { id: ts.clone(), thread: None, body });
    }
    Ok(json!({"id": ts, "chat": chat, "user": user.id}))
}

fn channel_type_of(world: &World, chat: &str) -> Option<&'static str> {
    world.store.chats.get(chat).map(channel_type)
}

/// Archives a chat, or restores it: `{"chat": …, "archived": true}`.
pub fn archive(world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let name = body["chat"].as_str().unwrap_or_default();
    let id = world.store.find_chat(name);
    let chat = id.and_then(|id| world.store.chats.get_mut(&id));
    let chat = chat.ok_or_else(|| ControlError(format!("there is no chat {name:?}")))?;
    chat.is_archived = body["archived"].as_bool().unwrap_or(true);
    Ok(json!({"chat": chat.id, "archived": chat.is_archived}))
}
