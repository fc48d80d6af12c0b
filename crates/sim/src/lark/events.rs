//! What people do in the chats, as events of version 2.

use serde_json::{Map, Value, json};

use super::content::{self, SaidContent};
use super::{LarkSim, TENANT, TOPIC_CHAT, app_id, bot_user, reactions, verification_token};
use crate::clock::now_ms;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::people::{self, find_message, merge_fields};
use crate::random::random_hex;
use crate::store::{SimChat, SimChatKind, SimMessage, SimUser};
use crate::world::World;

/// Adds an event for an app.
pub fn emit(world: &mut World, app: usize, event_type: &str, event: &Value) {
    let event_id = random_hex();
    let payload = json!({
        "schema": "2.0",
        "header": {
            "event_id": event_id, "token": verification_token(app),
            "create_time": now_ms().to_string(), "event_type": event_type, "tenant_key": TENANT,
            "app_id": app_id(app),
        },
        "event": event,
    });
    world.emit(app, "event", event_id, &payload);
}

/// The three ids of a person.
pub fn user_ids(open_id: &str) -> Value {
    let name = open_id.trim_start_matches("ou_");
    json!({"union_id": format!("on_{name}"), "user_id": name, "open_id": open_id})
}

/// The sender of a message as the API shows it.
pub fn user_sender(open_id: &str) -> Value {
    json!({"id": open_id, "id_type": "open_id", "sender_type": "user", "tenant_key": TENANT})
}

pub fn app_sender(id: &str) -> Value {
    json!({"id": id, "id_type": "app_id", "sender_type": "app", "tenant_key": TENANT})
}

pub fn new_message_id() -> String {
    format!("om_{}", random_hex())
}

/// Id of the topic that a message starts.
pub fn topic_of(message_id: &str) -> String {
    message_id.replacen("om_", "omt_", 1)
}

/// A message as the API shows it.
pub fn new_item(id: &str, chat: &str, sender: &Value, said: &SaidContent, us: u64) -> Value {
    let at = (us / 1000).to_string();
    let mut item = json!({
        "message_id": id, "msg_type": said.kind, "create_time": at, "update_time": at,
        "deleted": false, "updated": false, "chat_id": chat, "sender": sender,
        "body": {"content": said.content},
    });
    if !said.mentions.is_empty() {
        item["mentions"] = json!(said.mentions);
    }
    item
}

/// Adds the place of a reply: its parent, the first message, and the topic.
pub fn link_reply(world: &mut World, item: &mut Value, parent: &str, in_topic: bool) {
    let Some((_, message)) = world.store.find_message(parent) else { return };
    let root = message.body["root_id"].as_str().unwrap_or(parent).to_owned();
    let topic = message.body["thread_id"].as_str().map(str::to_owned);
    item["parent_id"] = json!(parent);
    match topic {
        Some(topic) => {
            item["root_id"] = json!(root);
            item["thread_id"] = json!(topic);
        }
        // The message that is answered becomes the first one of a topic.
        None if in_topic => {
            let topic = topic_of(parent);
            item["root_id"] = json!(parent);
            item["thread_id"] = json!(topic);
            if let Some(message) = world.store.find_message_mut(parent) {
                message.body["thread_id"] = json!(topic);
            }
        }
        None => item["root_id"] = json!(root),
    }
}

/// Stores a message. In a group of topics it starts one, unless it is a reply.
pub fn insert(world: &mut World, chat: &str, us: u64, item: &mut Value) {
    let id = item["message_id"].as_str().unwrap_or_default().to_owned();
    let is_reply = item["parent_id"].is_string();
    if chat == TOPIC_CHAT && !is_reply {
        item["thread_id"] = json!(topic_of(&id));
    }
    let thread = item["thread_id"].as_str().filter(|_| is_reply).map(str::to_owned);
    if let Some(chat) = world.store.chats.get_mut(chat) {
        chat.insert(us, SimMessage { id, thread, body: item.clone() });
    }
}

/// The event about a message.
pub fn message_event(world: &World, item: &Value) -> Value {
    let chat = item["chat_id"].as_str().and_then(|chat| world.store.chats.get(chat));
    let is_direct = chat.is_some_and(|chat| chat.kind == SimChatKind::Direct);
    let mut message = json!({"chat_type": if is_direct { "p2p" } else { "group" }});
    let names = [
        "message_id",
        "root_id",
        "parent_id",
        "create_time",
        "update_time",
        "chat_id",
        "thread_id",
    ];
    for name in names.into_iter().filter(|name| item[*name].is_string()) {
        message[name] = item[name].clone();
    }
    message["message_type"] = item["msg_type"].clone();
    message["content"] = item["body"]["content"].clone();
    if let Some(mentions) = item["mentions"].as_array() {
        message["mentions"] =
            mentions.iter().map(|mention| mention_event(world, mention)).collect();
    }
    let sender = &item["sender"];
    let id = sender["id"].as_str().unwrap_or_default();
    let is_user = sender["sender_type"] == "user";
    json!({
        "sender": {
            "sender_id": if is_user { user_ids(id) } else { json!({"open_id": id}) },
            "sender_type": sender["sender_type"], "tenant_key": TENANT,
        },
        "message": message,
    })
}

fn mention_event(world: &World, mention: &Value) -> Value {
    let id = mention["id"].as_str().unwrap_or_default();
    let is_bot = world.store.users.get(id).is_some_and(|user| user.is_bot);
    let ids = if is_bot {
        json!({"union_id": id.replacen("ou_", "on_", 1), "user_id": "", "open_id": id})
    } else {
        user_ids(id)
    };
    json!({
        "key": mention["key"], "id": ids, "name": mention["name"], "tenant_key": TENANT,
        "mentioned_type": if is_bot { "bot" } else { "user" },
    })
}

/// Finds a person by id or name; a new name creates a person.
pub fn person(world: &mut World, name: Option<&str>) -> Result<SimUser, ControlError> {
    people::person(world, name, |_| format!("ou_{}", random_hex()))
}

/// The direct chat of a person and a bot; created when it does not exist.
pub fn direct_chat(world: &mut World, user: &SimUser, app: usize) -> Result<String, ControlError> {
    let name = if app == 0 { format!("@{}", user.name) } else { format!("@{}/{app}", user.name) };
    people::place(world, &name, &user.id, |_| {
        let id = format!("oc_{}_{app}", user.id.trim_start_matches("ou_"));
        SimChat::new(&id, &name, SimChatKind::Direct, &[&bot_user(app)])
    })
}

/// Finds a chat by id or name; `@NAME` is a direct chat, and a new name creates a group.
fn place(
    world: &mut World,
    name: &str,
    user: &SimUser,
    app: usize,
) -> Result<String, ControlError> {
    if let Some(other) = name.strip_prefix('@') {
        let other = person(world, Some(other))?;
        return direct_chat(world, &other, app);
    }
    let name = name.trim_start_matches('#');
    people::place(world, name, &user.id, |world| {
        let bots: Vec<_> = (0..world.apps).map(bot_user).collect();
        let bots: Vec<_> = bots.iter().map(String::as_str).collect();
        SimChat::new(&format!("oc_{}", random_hex()), name, SimChatKind::Group, &bots)
    })
}

/// Whether an app receives messages of this chat.
fn reaches(sim: &LarkSim, world: &World, chat: &str, app: usize, item: &Value) -> bool {
    let Some(chat) = world.store.chats.get(chat) else { return false };
    let bot = bot_user(app);
    let mentions = item["mentions"].as_array().into_iter().flatten();
    let is_mentioned = mentions.into_iter().any(|mention| mention["id"] == bot.as_str());
    let state = sim.state();
    let has_scope = match chat.kind {
        SimChatKind::Direct => state.scopes.allows(&["im:message.p2p_msg:readonly", "im:message"]),
        _ if is_mentioned => {
            state.scopes.allows(&["im:message.group_at_msg:readonly", "im:message.group_msg"])
        }
        _ => state.scopes.has("im:message.group_msg"),
    };
    has_scope && chat.members.contains(&bot)
}

/// Says something as a person.
pub fn say(sim: &LarkSim, world: &mut World, request: &SayRequest) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let chat = place(world, &request.chat, &user, request.app)?;
    let is_direct =
        world.store.chats.get(&chat).is_some_and(|chat| chat.kind == SimChatKind::Direct);
    let said = content::said(world, request, is_direct)?;
    let (us, id) = (world.ids.next_us(), new_message_id());
    let sender =
        if request.bot { app_sender("cli_0000000000000bad") } else { user_sender(&user.id) };
    let mut item = new_item(&id, &chat, &sender, &said, us);
    let parent = request.thread.as_ref().or(request.quote.as_ref());
    if let Some(parent) = parent {
        // A topic is named by its id or by its first message.
        let parent = parent.replacen("omt_", "om_", 1);
        find_message(world, &chat, &parent)?;
        link_reply(world, &mut item, &parent, request.thread.is_some());
    }
    insert(world, &chat, us, &mut item);
    if !said.forwarded.is_empty() {
        sim.state().forwarded.insert(id.clone(), said.forwarded);
    }
    let reaches_bot = reaches(sim, world, &chat, request.app, &item);
    if reaches_bot {
        let mut event = message_event(world, &item);
        merge_raw(&mut event, &request.raw);
        emit(world, request.app, "im.message.receive_v1", &event);
    }
    Ok(json!({
        "id": id, "chat": chat, "user": user.id, "thread": item["thread_id"],
        "reaches_bot": reaches_bot,
    }))
}

/// Replaces fields of the message; `sender` replaces the sender.
fn merge_raw(event: &mut Value, fields: &Map<String, Value>) {
    let mut fields = fields.clone();
    if let Some(sender) = fields.remove("sender") {
        event["sender"] = sender;
    }
    merge_fields(&mut event["message"], &fields);
}

/// Sends the event of a message again, with a new event id: `{"chat": …, "id": …, "app": N}`.
pub fn repeat(world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let text = |name: &str| body[name].as_str().unwrap_or_default();
    let (_, message) = find_message(world, text("chat"), text("id"))?;
    let item = message.body.clone();
    let event = message_event(world, &item);
    emit(world, app_of(body), "im.message.receive_v1", &event);
    Ok(json!({"id": text("id")}))
}

fn app_of(body: &Value) -> usize {
    body["app"].as_u64().and_then(|app| usize::try_from(app).ok()).unwrap_or(0)
}

/// Changes a message. Lark tells bots nothing about it; history shows the new content.
pub fn edit(world: &mut World, request: &EditRequest) -> Result<Value, ControlError> {
    let said = content::said(
        world,
        &SayRequest {
            app: request.app,
            text: request.text.clone(),
            blocks: request.blocks.clone(),
            ..SayRequest::default()
        },
        true,
    )?;
    let (chat, message) = find_message(world, &request.chat, &request.id)?;
    message.body["msg_type"] = json!(said.kind);
    message.body["body"]["content"] = json!(said.content);
    message.body["updated"] = json!(true);
    message.body["update_time"] = json!(now_ms().to_string());
    Ok(json!({"id": request.id, "chat": chat, "event": false}))
}

/// Marks a message as removed. Its content is not shown any more.
pub fn mark_deleted(item: &mut Value) {
    item["deleted"] = json!(true);
    item["body"]["content"] = json!("This message was recalled");
    item["update_time"] = json!(now_ms().to_string());
}

pub fn recall(world: &mut World, request: &RecallRequest) -> Result<Value, ControlError> {
    let (chat, message) = find_message(world, &request.chat, &request.id)?;
    mark_deleted(&mut message.body);
    let event = json!({
        "message_id": request.id, "chat_id": chat, "recall_time": now_ms().to_string(),
        "recall_type": "message_owner",
    });
    emit(world, request.app, "im.message.recalled_v1", &event);
    Ok(json!({"id": request.id, "chat": chat}))
}

/// Builds the event that a person or an app reacted, or took the reaction back.
pub fn reaction_event(message_id: &str, reaction: &Value) -> Value {
    let operator = &reaction["operator"];
    let mut event = json!({
        "message_id": message_id, "reaction_type": reaction["reaction_type"],
        "operator_type": operator["operator_type"], "action_time": now_ms().to_string(),
    });
    let id = operator["operator_id"].as_str().unwrap_or_default();
    if operator["operator_type"] == "user" {
        event["user_id"] = user_ids(id);
    } else {
        event["app_id"] = json!(id);
    }
    event
}

pub fn react(
    sim: &LarkSim,
    world: &mut World,
    request: &ReactRequest,
) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let (chat, _) = find_message(world, &request.chat, &request.id)?;
    let reaction = reactions::new_reaction(&user.id, "user", &request.reaction);
    let kind = if request.remove {
        reactions::remove_of(sim, &request.id, &user.id, &request.reaction);
        "im.message.reaction.deleted_v1"
    } else {
        reactions::add(sim, &request.id, reaction.clone());
        "im.message.reaction.created_v1"
    };
    emit(world, request.app, kind, &reaction_event(&request.id, &reaction));
    Ok(json!({"id": request.id, "chat": chat}))
}

/// A person has read messages of the bot: `{"user": …, "ids": […], "app": N}`.
pub fn read(world: &mut World, body: &Value) -> Result<Value, ControlError> {
    let user = person(world, body["user"].as_str())?;
    let event = json!({
        "reader": {
            "reader_id": user_ids(&user.id), "read_time": now_ms().to_string(),
            "tenant_key": TENANT,
        },
        "message_id_list": body["ids"],
    });
    emit(world, app_of(body), "im.message.message_read_v1", &event);
    Ok(json!({"user": user.id}))
}

pub fn member(
    world: &mut World,
    request: &MemberRequest,
    joins: bool,
) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let chat = place(world, &request.chat, &user, request.app)?;
    if let Some(chat) = world.store.chats.get_mut(&chat).filter(|_| !joins) {
        chat.members.remove(&user.id);
    }
    let name = world.store.chats.get(&chat).map(|chat| chat.name.clone());
    let mut event = json!({
        "chat_id": chat, "operator_id": user_ids("ou_ann"), "external": false,
        "operator_tenant_key": TENANT, "name": name,
    });
    let kind = match (user.is_bot, joins) {
        (true, true) => "im.chat.member.bot.added_v1",
        (true, false) => "im.chat.member.bot.deleted_v1",
        (false, _) => {
            let ids = user_ids(&user.id);
            event["users"] = json!([{"name": user.name, "tenant_key": TENANT, "user_id": ids}]);
            if joins { "im.chat.member.user.added_v1" } else { "im.chat.member.user.deleted_v1" }
        }
    };
    emit(world, request.app, kind, &event);
    Ok(json!({"chat": chat, "user": user.id}))
}
