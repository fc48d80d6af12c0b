//! What people do in the chats, as updates.

use serde_json::{Map, Value, json};

use super::chats::{
    SimChatFacts, SimForumTopic, SimTelegramChatKind, add_chat, chat_json, facts, member_json,
    next_message_id, number, private_chat, user_json,
};
use super::content::{contents, is_service, quote_json, text_fields};
use super::files::merge;
use super::send::without_reply;
use super::updates::{app_of, emit};
use super::{TelegramSim, bot_id, bot_name};
use crate::clock::now_ms;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::people;
use crate::random::random_below;
use crate::store::{MAX_CHATS, SimMessage, SimUser};
use crate::world::World;

/// Finds a person by id or name; a new name creates a person.
fn person(world: &mut World, name: Option<&str>) -> Result<SimUser, ControlError> {
    people::person(world, name, |_| (1_000_000 + random_below(4_000_000)).to_string())
}

/// A new id of a supergroup or channel, or of a basic group.
fn new_chat_id(kind: SimTelegramChatKind) -> String {
    match kind {
        SimTelegramChatKind::Group => format!("-{}", 1_000_000 + random_below(9_000_000)),
        _ => format!("-100{}", 1_100_000_000 + random_below(800_000_000)),
    }
}

/// Finds a chat by id or name; `@NAME` is a private chat, and a new name creates a supergroup.
fn place(
    sim: &TelegramSim,
    world: &mut World,
    name: &str,
    user: &SimUser,
) -> Result<String, ControlError> {
    if let Some(person_name) = name.strip_prefix('@') {
        let other = person(world, Some(person_name))?;
        return Ok(private_chat(sim, world, &other.id));
    }
    let name = name.trim_start_matches('#');
    let id = match world.store.find_chat(name) {
        Some(id) => id,
        None if name.is_empty() || world.store.chats.len() >= MAX_CHATS => {
            return Err(ControlError(format!("found chat {name:?}, expected a name or an id")));
        }
        None => {
            let id = new_chat_id(SimTelegramChatKind::Supergroup);
            add_chat(sim, world, &id, name, SimChatFacts::default());
            id
        }
    };
    if let Some(chat) = world.store.chats.get_mut(&id) {
        chat.members.insert(user.id.clone());
    }
    Ok(id)
}

/// Who a message is from: the person, an anonymous administrator, or the channel itself.
fn author(sim: &TelegramSim, world: &World, chat: &str, user: &SimUser, hidden: bool) -> Value {
    let shown = chat_json(sim, world, chat);
    if facts(sim, chat).kind == SimTelegramChatKind::Channel {
        return json!({"sender_chat": shown});
    }
    if hidden {
        // The account that Telegram shows for every anonymous administrator.
        let bot = json!({
            "id": 1_087_968_824, "is_bot": true, "first_name": "Group",
            "username": "GroupAnonymousBot",
        });
        return json!({"from": bot, "sender_chat": shown, "author_signature": "Moderator"});
    }
    json!({"from": user_json(user)})
}

/// Where a forwarded message comes from.
fn origin(sim: &TelegramSim, world: &World, kind: &str) -> Result<Value, ControlError> {
    let date = now_ms() / 1000 - 3600;
    let bob = world.store.find_user("bob").map(user_json);
    let chat = |name: &str| {
        let id = world.store.find_chat(name).unwrap_or_default();
        chat_json(sim, world, &id)
    };
    Ok(match kind {
        "user" => json!({"type": kind, "date": date, "sender_user": bob}),
        "hidden_user" => json!({"type": kind, "date": date, "sender_user_name": "A hidden user"}),
        "chat" => json!({"type": kind, "date": date, "sender_chat": chat("ops")}),
        "channel" => json!({
            "type": kind, "date": date, "chat": chat("news"), "message_id": 7,
            "author_signature": "Editor",
        }),
        _ => {
            return Err(ControlError(format!(
                "found forward {kind:?}, expected user, hidden_user, chat or channel"
            )));
        }
    })
}

/// Topic and answered message of a request, as fields.
fn context(
    sim: &TelegramSim,
    world: &World,
    chat: &str,
    request: &SayRequest,
) -> Result<Value, ControlError> {
    let mut fields = json!({});
    if let Some(thread) = &request.thread {
        fields["message_thread_id"] = json!(number(thread));
        if facts(sim, chat).is_forum {
            fields["is_topic_message"] = json!(true);
        }
    }
    if let Some(id) = &request.quote {
        let quoted = world.store.chats.get(chat).and_then(|chat| chat.get(id));
        let missing = || ControlError(format!("there is no message {id:?} in the chat"));
        let quoted = without_reply(&quoted.ok_or_else(missing)?.body);
        if let Some(part) = &request.quote_text {
            fields["quote"] = quote_json(&quoted, part)?;
        }
        fields["reply_to_message"] = quoted;
    }
    if let Some(kind) = &request.forward {
        fields["forward_origin"] = origin(sim, world, kind)?;
    }
    Ok(fields)
}

/// Whether a bot sees a message: all of private chats, and without privacy all of groups.
fn is_visible(sim: &TelegramSim, app: usize, body: &Value) -> bool {
    let is_group = matches!(body["chat"]["type"].as_str(), Some("group" | "supergroup"));
    if !is_group || !sim.state().has_privacy || is_service(body) {
        return true;
    }
    let text = body["text"].as_str().or(body["caption"].as_str()).unwrap_or_default();
    text.contains(&format!("@{}", bot_name(app)))
        || (text.starts_with('/') && !text.contains('@'))
        || body["reply_to_message"]["from"]["id"] == bot_id(app)
}

/// Puts a message into its chat and tells the bot about it.
fn publish(
    sim: &TelegramSim,
    world: &mut World,
    app: usize,
    chat: &str,
    mut body: Value,
    raw: &Map<String, Value>,
) -> String {
    let id = next_message_id(sim, chat);
    body["message_id"] = json!(id);
    body["date"] = json!(now_ms() / 1000);
    body["chat"] = chat_json(sim, world, chat);
    merge(&mut body, &Value::Object(raw.clone()));
    let is_channel = facts(sim, chat).kind == SimTelegramChatKind::Channel;
    let kind = if is_channel { "channel_post" } else { "message" };
    let bot = bot_id(app).to_string();
    let is_member = world.store.chats.get(chat).is_some_and(|chat| chat.members.contains(&bot));
    if is_member && is_visible(sim, app, &body) {
        emit(sim, world, app, kind, chat, &body);
    }
    let thread = body["message_thread_id"].as_u64().map(|thread| thread.to_string());
    if let Some(chat) = world.store.chats.get_mut(chat) {
        chat.insert(id, SimMessage { id: id.to_string(), thread, body });
    }
    id.to_string()
}

/// Says something as a person. An album is several messages, whose ids are in `ids`.
pub fn say(
    sim: &TelegramSim,
    world: &mut World,
    request: &SayRequest,
) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let chat = place(sim, world, &request.chat, &user)?;
    if let Some(new) = facts(sim, &chat).migrated_to {
        return Err(ControlError(format!("chat {chat} has become {new}; say it there")));
    }
    let context = context(sim, world, &chat, request)?;
    let mut ids = Vec::new();
    for content in contents(world, request)? {
        let mut body = author(sim, world, &chat, &user, request.anonymous);
        if request.bot {
            body["from"] = json!({
                "id": 5_000_001, "is_bot": true, "first_name": "Other", "username": "other_bot",
            });
        }
        merge(&mut body, &context);
        merge(&mut body, &content);
        ids.push(publish(sim, world, request.app, &chat, body, &request.raw));
    }
    Ok(json!({"id": ids.first(), "ids": ids, "chat": chat, "user": user.id}))
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

pub fn edit(
    sim: &TelegramSim,
    world: &mut World,
    request: &EditRequest,
) -> Result<Value, ControlError> {
    let (chat, message) = find_message(world, &request.chat, &request.id)?;
    let is_caption = !message.body["text"].is_string();
    if let Some(fields) = message.body.as_object_mut() {
        fields.remove(if is_caption { "caption_entities" } else { "entities" });
    }
    merge(&mut message.body, &text_fields(&request.text, request.blocks.as_ref(), is_caption));
    message.body["edit_date"] = json!(now_ms() / 1000);
    let body = message.body.clone();
    let is_channel = body["chat"]["type"] == "channel";
    let kind = if is_channel { "edited_channel_post" } else { "edited_message" };
    if is_visible(sim, request.app, &body) {
        emit(sim, world, request.app, kind, &chat, &body);
    }
    Ok(json!({"id": request.id, "chat": chat}))
}

/// Removes a message. Telegram does not tell bots about it.
pub fn recall(
    _: &TelegramSim,
    world: &mut World,
    request: &RecallRequest,
) -> Result<Value, ControlError> {
    let (chat, _) = find_message(world, &request.chat, &request.id)?;
    if let Some(chat) = world.store.chats.get_mut(&chat) {
        chat.remove(&request.id);
    }
    Ok(json!({"id": request.id, "chat": chat}))
}

/// Reacts to a message; the bot gets this update only if it asks for it.
pub fn react(
    sim: &TelegramSim,
    world: &mut World,
    request: &ReactRequest,
) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let (chat, _) = find_message(world, &request.chat, &request.id)?;
    let reaction = json!([{"type": "emoji", "emoji": request.reaction}]);
    let none = json!([]);
    let (old, new) = if request.remove { (&reaction, &none) } else { (&none, &reaction) };
    let update = json!({
        "chat": chat_json(sim, world, &chat), "message_id": number(&request.id),
        "user": user_json(&user), "date": now_ms() / 1000, "old_reaction": old,
        "new_reaction": new,
    });
    emit(sim, world, request.app, "message_reaction", &chat, &update);
    Ok(json!({"id": request.id, "chat": chat}))
}

/// A change of a membership, as `my_chat_member` and `chat_member` show it.
fn member_update(
    sim: &TelegramSim,
    world: &World,
    chat: &str,
    user: &SimUser,
    (old, new): (&str, &str),
) -> Value {
    let actor = if user.is_bot { world.store.find_user("ann") } else { Some(user) };
    json!({
        "chat": chat_json(sim, world, chat), "from": actor.map(user_json),
        "date": now_ms() / 1000, "old_chat_member": member_json(user, old),
        "new_chat_member": member_json(user, new),
    })
}

/// Adds a person or the bot to a chat or removes one.
pub fn member(
    sim: &TelegramSim,
    world: &mut World,
    request: &MemberRequest,
    joins: bool,
) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let chat = place(sim, world, &request.chat, &user)?;
    let is_own = user.id == bot_id(request.app).to_string();
    let (old, new) = match (joins, is_own) {
        (true, _) => ("left", "member"),
        (false, true) => ("member", "kicked"),
        (false, false) => ("member", "left"),
    };
    let update = member_update(sim, world, &chat, &user, (old, new));
    let kind = if is_own { "my_chat_member" } else { "chat_member" };
    emit(sim, world, request.app, kind, &chat, &update);
    let shown = user_json(&user);
    let mut body = json!({"from": update["from"]});
    if joins {
        body["new_chat_members"] = json!([shown]);
        body["new_chat_member"] = shown;
    } else {
        body["left_chat_member"] = shown;
    }
    if is_own {
        let mut state = sim.state();
        let kicked = state.chats.entry(chat.clone()).or_default();
        if joins {
            kicked.kicked.remove(&request.app)
        } else {
            kicked.kicked.insert(request.app)
        };
    }
    let id = match facts(sim, &chat).kind {
        SimTelegramChatKind::Channel => None,
        _ => Some(publish(sim, world, request.app, &chat, body, &Map::new())),
    };
    if let Some(chat) = world.store.chats.get_mut(&chat).filter(|_| !joins) {
        chat.members.remove(&user.id);
    }
    Ok(json!({"id": id, "chat": chat, "user": user.id}))
}

fn text<'a>(body: &'a Value, name: &str) -> &'a str {
    body[name].as_str().unwrap_or_default()
}

/// `POST /control/block`: a person blocks a bot, or ends this with `blocked: false`.
pub fn block(sim: &TelegramSim, world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let app = app_of(sim, body)?;
    let user = person(world, body["user"].as_str())?;
    let is_blocked = body["blocked"].as_bool().unwrap_or(true);
    let chat = private_chat(sim, world, &user.id);
    let entry = (app, user.id.clone());
    let changed = {
        let mut state = sim.state();
        if is_blocked { state.blocked.insert(entry) } else { state.blocked.remove(&entry) }
    };
    if changed {
        let change = if is_blocked { ("member", "kicked") } else { ("kicked", "member") };
        let bot = world.store.users.get(&bot_id(app).to_string()).cloned();
        if let Some(bot) = bot {
            let mut update = member_update(sim, world, &chat, &bot, change);
            update["from"] = user_json(&user);
            emit(sim, world, app, "my_chat_member", &chat, &update);
        }
    }
    Ok(json!({"user": user.id, "blocked": is_blocked}))
}

/// `POST /control/migrate`: a basic group becomes a supergroup with another id.
pub fn migrate(sim: &TelegramSim, world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let app = app_of(sim, body)?;
    let name = text(body, "chat");
    let missing = || ControlError(format!("there is no chat {name:?}"));
    let old = world.store.find_chat(name).ok_or_else(missing)?;
    let old_facts = facts(sim, &old);
    if old_facts.kind != SimTelegramChatKind::Group || old_facts.migrated_to.is_some() {
        return Err(ControlError(format!("chat {name:?} is not a basic group")));
    }
    let new = new_chat_id(SimTelegramChatKind::Supergroup);
    let actor = person(world, None)?;
    let title = world.store.chats.get(&old).map(|chat| chat.name.clone()).unwrap_or_default();
    let members = world.store.chats.get(&old).map(|chat| chat.members.clone()).unwrap_or_default();
    let notice = json!({"from": user_json(&actor), "migrate_to_chat_id": number(&new)});
    publish(sim, world, app, &old, notice, &Map::new());
    // The name leads to the new chat from now on.
    add_chat(sim, world, &new, &title, SimChatFacts::default());
    if let Some(chat) = world.store.chats.get_mut(&new) {
        chat.members = members;
    }
    let notice = json!({
        "from": {"id": 1_087_968_824, "is_bot": true, "first_name": "Group",
                 "username": "GroupAnonymousBot"},
        "sender_chat": chat_json(sim, world, &new), "migrate_from_chat_id": number(&old),
    });
    publish(sim, world, app, &new, notice, &Map::new());
    if let Some(facts) = sim.state().chats.get_mut(&old) {
        facts.migrated_to = Some(new.clone());
    }
    if let Some(chat) = world.store.chats.get_mut(&old) {
        chat.is_archived = true;
    }
    Ok(json!({"from": old, "to": new}))
}

/// `POST /control/topic`: opens a topic in a forum, or closes one with `id` and `closed`.
pub fn topic(sim: &TelegramSim, world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let app = app_of(sim, body)?;
    let name = text(body, "chat");
    let chat = world.store.find_chat(name).filter(|chat| facts(sim, chat).is_forum);
    let chat = chat.ok_or_else(|| ControlError(format!("there is no forum {name:?}")))?;
    let actor = person(world, body["user"].as_str())?;
    if let Some(id) = body["id"].as_str() {
        let is_closed = body["closed"].as_bool().unwrap_or(true);
        let mut state = sim.state();
        let topics = state.chats.get_mut(&chat).map(|facts| &mut facts.topics);
        let found = topics.and_then(|topics| topics.get_mut(&u64::try_from(number(id)).ok()?));
        let missing = || ControlError(format!("there is no topic {id:?}"));
        found.ok_or_else(missing)?.is_closed = is_closed;
        drop(state);
        let field = if is_closed { "forum_topic_closed" } else { "forum_topic_reopened" };
        let notice = json!({
            "from": user_json(&actor), "message_thread_id": number(id), "is_topic_message": true,
            field: {},
        });
        publish(sim, world, app, &chat, notice, &Map::new());
        return Ok(json!({"id": id, "closed": is_closed}));
    }
    let title = body["name"].as_str().unwrap_or("Topic");
    // The id of a topic is the id of the message that opens it.
    let next = facts(sim, &chat).last_message + 1;
    let notice = json!({
        "from": user_json(&actor), "message_thread_id": next, "is_topic_message": true,
        "forum_topic_created": {"name": title, "icon_color": 7_322_096},
    });
    let id = publish(sim, world, app, &chat, notice, &Map::new());
    if let Some(facts) = sim.state().chats.get_mut(&chat) {
        facts.topics.insert(next, SimForumTopic { name: title.to_owned(), is_closed: false });
    }
    Ok(json!({"id": id, "chat": chat}))
}

/// `POST /control/create`: creates a group, supergroup, forum or channel.
pub fn create(sim: &TelegramSim, world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let name = text(body, "name");
    if name.is_empty() || world.store.find_chat(name).is_some() {
        return Err(ControlError(format!("found name {name:?}, expected one that is not used")));
    }
    if world.store.chats.len() >= MAX_CHATS {
        return Err(ControlError(format!("there are {MAX_CHATS} chats already")));
    }
    let kind = match body["type"].as_str().unwrap_or("supergroup") {
        "group" => SimTelegramChatKind::Group,
        "supergroup" | "forum" => SimTelegramChatKind::Supergroup,
        "channel" => SimTelegramChatKind::Channel,
        other => {
            return Err(ControlError(format!(
                "found type {other:?}, expected group, supergroup, forum or channel"
            )));
        }
    };
    let facts = SimChatFacts {
        kind,
        is_forum: body["type"] == "forum",
        username: body["username"].as_str().map(str::to_owned),
        ..SimChatFacts::default()
    };
    let id = new_chat_id(kind);
    add_chat(sim, world, &id, name, facts);
    Ok(json!({"chat": id}))
}
