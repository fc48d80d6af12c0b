//! What people do in the chats, as frames of the stream.

use serde_json::{Value, json};

use super::{CORP, DingTalkSim, ROBOT_TOPIC, ReplySession, app_key, bot_user};
use crate::clock::now_ms;
use crate::control::{ControlError, MemberRequest, SayRequest, find_person, resolve_files};
use crate::event_queue::SimEvent;
use crate::provider::EventFrame;
use crate::random::random_hex;
use crate::store::{MAX_CHATS, SimChat, SimChatKind, SimFile, SimMessage, SimUser};
use crate::world::World;

/// A frame with a message (CALLBACK) or another event (EVENT). Each attempt has its own message id.
pub fn frame(event: &SimEvent, connection: u64) -> EventFrame {
    let ack_id = random_hex();
    let mut headers = json!({
        "appId": format!("sim-app-{}", event.app),
        "connectionId": format!("c-{connection}"),
        "contentType": "application/json",
        "messageId": ack_id,
        "time": now_ms().to_string(),
        "topic": "*",
    });
    let kind = if event.topic == ROBOT_TOPIC {
        headers["topic"] = json!(ROBOT_TOPIC);
        "CALLBACK"
    } else {
        headers["eventId"] = json!(event.key);
        headers["eventType"] = json!(event.topic);
        headers["eventCorpId"] = json!(CORP);
        headers["eventBornTime"] = json!(now_ms().to_string());
        headers["eventUnifiedAppId"] = json!(format!("sim-app-{}", event.app));
        "EVENT"
    };
    let frame =
        json!({"specVersion": "1.0", "type": kind, "headers": headers, "data": &*event.payload});
    EventFrame { ack_id, text: frame.to_string() }
}

/// Finds a person by id or name; a new name creates a person of the organisation.
fn person(world: &mut World, name: Option<&str>) -> Result<SimUser, ControlError> {
    find_person(world, name, |store| format!("{:04}", store.users.len() + 1))
}

/// Finds a chat by id or name; `@NAME` is a direct chat, and a new name creates a group.
fn place(world: &mut World, name: &str, user: &SimUser) -> Result<String, ControlError> {
    let (name, kind, user) = match name.strip_prefix('@') {
        Some(other) => (name, SimChatKind::Direct, person(world, Some(other))?),
        None => (name.trim_start_matches('#'), SimChatKind::Group, user.clone()),
    };
    let id = match world.store.find_chat(name) {
        Some(id) => id,
        None if name.is_empty() || world.store.chats.len() >= MAX_CHATS => {
            return Err(ControlError(format!("found chat {name:?}, expected a name or an id")));
        }
        None => {
            let id = format!("cid{}==", &random_hex()[..22]);
            world.store.add_chat(SimChat::new(&id, name, kind, &[]));
            id
        }
    };
    if let Some(chat) = world.store.chats.get_mut(&id) {
        chat.members.insert(user.id);
    }
    Ok(id)
}

/// Kind of a message with one file and without text.
fn kind_of(file: &SimFile) -> &'static str {
    match file.mime_type.split('/').next() {
        Some("image") => "picture",
        Some("audio") => "audio",
        Some("video") => "video",
        _ => "file",
    }
}

/// Issues a code by which the bot can download a file.
fn download_code(sim: &DingTalkSim, file: &SimFile) -> String {
    let code = random_hex();
    sim.state().codes.insert(code.clone(), file.id.clone());
    code
}

/// Content of a message with one file.
fn file_content(sim: &DingTalkSim, kind: &str, file: &SimFile) -> Value {
    let code = download_code(sim, file);
    match kind {
        "picture" => json!({"pictureDownloadCode": code, "downloadCode": code}),
        "audio" => json!({"downloadCode": code, "recognition": "speech as text", "duration": 4000}),
        "video" => json!({"duration": "5", "videoType": "mp4", "downloadCode": code}),
        _ => json!({
            "spaceId": "1001", "fileId": file.id, "fileName": file.name, "downloadCode": code,
        }),
    }
}

/// Text and files as one message.
fn rich_content(sim: &DingTalkSim, text: &str, files: &[SimFile]) -> Value {
    let mut items = Vec::new();
    if !text.is_empty() {
        items.push(json!({"text": text}));
    }
    for file in files {
        let mut item = file_content(sim, kind_of(file), file);
        item["type"] = json!(kind_of(file));
        items.push(item);
    }
    json!({"richText": items})
}

/// The kind of a message and its fields.
fn content(
    sim: &DingTalkSim,
    world: &mut World,
    request: &SayRequest,
    is_group: bool,
) -> Result<(String, Value), ControlError> {
    let files = resolve_files(world, &request.files)?;
    let kind = match (&request.kind, files.as_slice()) {
        (Some(kind), _) => kind.as_str(),
        (None, []) if request.blocks.is_some() => "richText",
        (None, []) => "text",
        (None, [file]) if request.text.is_empty() => kind_of(file),
        (None, _) => "richText",
    };
    // The mention is cut out of the text and leaves a blank.
    let text = if is_group { format!(" {}", request.text) } else { request.text.clone() };
    let body = match (kind, &request.blocks, files.first()) {
        ("text", _, _) => json!({"text": {"content": text}}),
        ("richText", Some(items), _) => json!({"content": {"richText": items}}),
        ("richText", None, _) => json!({"content": rich_content(sim, &request.text, &files)}),
        (_, Some(content), _) => json!({"content": content}),
        (kind, None, Some(file)) => json!({"content": file_content(sim, kind, file)}),
        (kind, None, None) => json!({"content": {"unknownMsgType": kind}}),
    };
    Ok((kind.to_owned(), body))
}

/// Adds the quoted message to the text or the content.
fn quote(world: &World, chat: &str, body: &mut Value, id: &str) -> Result<(), ControlError> {
    let quoted = world.store.chats.get(chat).and_then(|chat| chat.get(id));
    let quoted =
        quoted.ok_or_else(|| ControlError(format!("there is no message {id:?} in {chat:?}")))?;
    let field = if body["text"].is_object() { "text" } else { "content" };
    let inner = if quoted.body["text"].is_object() { "text" } else { "content" };
    body[field]["isReplyMsg"] = json!(true);
    body[field]["repliedMsg"] = json!({
        "msgType": quoted.body["msgtype"], "msgId": id, "senderId": quoted.body["senderId"],
        "content": quoted.body[inner], "createdAt": quoted.body["createAt"],
    });
    Ok(())
}

/// Opens a URL by which the bot can answer for a while.
fn open_session(sim: &DingTalkSim, world: &World, app: usize, chat: &str) -> (String, u64) {
    let key = random_hex();
    let expires_ms = now_ms() + world.settings.session_webhook_ttl_ms;
    let session = ReplySession { app, chat: chat.to_owned(), expires_ms };
    sim.state().sessions.insert(key.clone(), session);
    (format!("{}/robot/sendBySession?session={key}", world.base_url), expires_ms)
}

/// Adds who says it, where and to which robot.
fn address(body: &mut Value, user: &SimUser, app: usize) {
    let is_external = user.id.starts_with('$');
    body["senderNick"] = json!(user.name);
    body["senderId"] =
        json!(if is_external { user.id.clone() } else { format!("$:LWCP_v1:${}", user.name) });
    if !is_external {
        body["senderStaffId"] = json!(user.id);
    }
    body["senderCorpId"] = json!(if is_external { "dingother" } else { CORP });
    body["isAdmin"] = json!(user.id == "0001");
    body["chatbotCorpId"] = json!(CORP);
    body["chatbotUserId"] = json!(bot_user(app));
    body["robotCode"] = json!(app_key(app));
    body["createAt"] = json!(now_ms());
}

/// Says something as a person. A group message without a mention does not reach the bot.
pub fn say(
    sim: &DingTalkSim,
    world: &mut World,
    request: &SayRequest,
) -> Result<Value, ControlError> {
    let user = person(world, request.user.as_deref())?;
    let chat = place(world, &request.chat, &user)?;
    let found = world.store.chats.get(&chat);
    let is_group = found.is_some_and(|chat| chat.kind == SimChatKind::Group);
    let title = found.map(|chat| chat.name.clone()).unwrap_or_default();
    let (kind, mut body) = content(sim, world, request, is_group)?;
    if let Some(id) = &request.quote {
        quote(world, &chat, &mut body, id)?;
    }
    let id = format!("msg{}==", &random_hex()[..22]);
    body["msgtype"] = json!(kind);
    body["msgId"] = json!(id);
    body["conversationId"] = json!(chat);
    body["conversationType"] = json!(if is_group { "2" } else { "1" });
    address(&mut body, &user, request.app);
    let is_mentioned = request.mention.unwrap_or(true) || !is_group;
    if is_group {
        body["conversationTitle"] = json!(title);
        body["isInAtList"] = json!(is_mentioned);
        body["atUsers"] = json!([{"dingtalkId": bot_user(request.app), "staffId": ""}]);
    }
    let (url, expires) = open_session(sim, world, request.app, &chat);
    body["sessionWebhook"] = json!(url);
    body["sessionWebhookExpiredTime"] = json!(expires);
    for (name, value) in &request.raw {
        body[name.as_str()] = value.clone();
    }
    if is_mentioned {
        let key = body["msgId"].as_str().unwrap_or(&id).to_owned();
        world.emit(request.app, ROBOT_TOPIC, key, &body);
    }
    let key = world.ids.next_us();
    if let Some(chat) = world.store.chats.get_mut(&chat) {
        chat.insert(key, SimMessage { id: id.clone(), thread: None, body });
    }
    Ok(json!({"id": id, "chat": chat, "user": user.id, "reaches_bot": is_mentioned}))
}

/// Adds a person to a group or removes one: an EVENT, which only sockets carry.
pub fn member(
    world: &mut World,
    request: &MemberRequest,
    joins: bool,
) -> Result<Value, ControlError> {
    if world.push_urls.contains_key(&request.app) {
        return Err(ControlError::new("events over HTTP are encrypted, which is not emulated"));
    }
    let user = person(world, request.user.as_deref())?;
    let chat = place(world, &request.chat, &user)?;
    if let Some(chat) = world.store.chats.get_mut(&chat).filter(|_| !joins) {
        chat.members.remove(&user.id);
    }
    let topic = if joins { "chat_add_member" } else { "chat_remove_member" };
    let data = json!({
        "chatId": format!("chat{}", chat.trim_start_matches("cid").trim_end_matches('=')),
        "openConversationId": chat, "userId": [user.id], "operator": "0001",
        "timeStamp": now_ms(),
    });
    world.emit(request.app, topic, random_hex(), &data);
    Ok(json!({"chat": chat, "user": user.id}))
}
