//! Methods that read people, chats and the bot itself.

use serde_json::{Value, json};

use super::api::{INVALID_FIELD, SimLarkCall, SimLarkFailure, SimLarkResult};
use super::history::{page_from, page_request};
use super::messages::check_member;
use super::{TENANT, TOPIC_CHAT, bot_user, events};
use crate::http::{SimResponse, parse_form};
use crate::store::{SimChat, SimChatKind, SimUser};
use crate::world::World;

/// Chats of one page.
const MAX_CHATS_PAGE: usize = 100;

/// People that one call looks up.
const MAX_USERS: usize = 50;

/// `bot.info`: the fields are beside `code`, not in `data`.
pub fn bot_info(app: usize) -> SimResponse {
    SimResponse::ok(&json!({
        "code": 0, "msg": "ok",
        "bot": {
            "activate_status": 2, "app_name": format!("monoco{app}"), "avatar_url": "",
            "ip_white_list": [], "open_id": bot_user(app),
        },
    }))
}

/// The open id of a person that a call names by `user_id_type`.
fn open_id(call: &SimLarkCall<'_>, id: &str) -> Result<String, SimLarkFailure> {
    match call.query("user_id_type").as_str() {
        "" | "open_id" => Ok(id.to_owned()),
        "union_id" => Ok(id.replacen("on_", "ou_", 1)),
        "user_id" => Ok(format!("ou_{id}")),
        _ => Err(SimLarkFailure::new(INVALID_FIELD, "user_id_type is invalid")),
    }
}

fn describe(user: &SimUser) -> Value {
    let mut described = events::user_ids(&user.id);
    described["name"] = json!(user.name);
    described["en_name"] = json!("");
    described["avatar"] = json!({});
    described["status"] = json!({"is_frozen": false, "is_resigned": false, "is_activated": true});
    described
}

fn find_user<'a>(world: &'a World, open_id: &str) -> Result<&'a SimUser, SimLarkFailure> {
    let user = world.store.users.get(open_id).filter(|user| !user.is_bot);
    user.ok_or_else(|| SimLarkFailure::new(41_012, "user id invalid error"))
}

pub fn user(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let id = open_id(call, call.id(0))?;
    Ok(json!({"user": describe(find_user(world, &id)?)}))
}

/// People by the repeated parameter `user_ids`; unknown ones are left out.
pub fn users(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let query = parse_form(&call.request.query);
    let ids = query.iter().filter(|(name, _)| name == "user_ids").take(MAX_USERS);
    let mut items = Vec::new();
    for (_, id) in ids {
        items.extend(find_user(world, &open_id(call, id)?).ok().map(describe));
    }
    Ok(json!({"items": items}))
}

/// Names of people by `user_ids` in the body; unknown ones are left out.
pub fn basic_users(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let ids = call.body.get("user_ids").and_then(Value::as_array).cloned().unwrap_or_default();
    let mut users = Vec::new();
    for id in ids.iter().filter_map(Value::as_str).take(MAX_USERS) {
        let found = find_user(world, &open_id(call, id)?).ok();
        users.extend(found.map(|user| json!({"user_id": id, "name": user.name})));
    }
    Ok(json!({"users": users}))
}

fn describe_chat(chat: &SimChat) -> Value {
    let (is_direct, is_topics) = (chat.kind == SimChatKind::Direct, chat.id == TOPIC_CHAT);
    let bots = chat.members.iter().filter(|id| id.starts_with("ou_bot")).count();
    json!({
        "chat_id": chat.id, "name": if is_direct { "" } else { &chat.name }, "description": "",
        "avatar": "", "owner_id": "ou_ann", "owner_id_type": "open_id", "external": false,
        "tenant_key": TENANT, "chat_status": "normal", "chat_type": "private",
        "chat_mode": if is_direct { "p2p" } else if is_topics { "topic" } else { "group" },
        "user_count": (chat.members.len() - bots).to_string(), "bot_count": bots.to_string(),
    })
}

/// The chat that a call names, if the bot is a member.
fn own_chat<'a>(world: &'a World, call: &SimLarkCall<'_>) -> Result<&'a SimChat, SimLarkFailure> {
    let chat = world.store.chats.get(call.id(0));
    let chat = chat.ok_or_else(|| SimLarkFailure::new(232_006, "The chat_id is invalid."))?;
    let outside = || SimLarkFailure::new(232_011, "Operator can NOT be out of the chat.");
    check_member(world, &chat.id, call.app).map_err(|_| outside())?;
    Ok(chat)
}

pub fn chat(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    own_chat(world, call).map(describe_chat)
}

/// Groups of the bot. Direct chats are not listed.
pub fn chats(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let (size, start) = page_request(call, MAX_CHATS_PAGE)?;
    let bot = bot_user(call.app);
    let groups = world.store.chats.values();
    let groups =
        groups.filter(|chat| chat.kind != SimChatKind::Direct && chat.members.contains(&bot));
    Ok(page_from(groups.map(describe_chat), size, start))
}

/// People of a chat. Bots are not listed.
pub fn members(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let (size, start) = page_request(call, MAX_CHATS_PAGE)?;
    let chat = own_chat(world, call)?;
    let people = chat.members.iter().filter_map(|id| find_user(world, id).ok());
    let total = people.clone().count();
    let described = people.map(|user| {
        json!({
            "member_id_type": "open_id", "member_id": user.id, "name": user.name,
            "tenant_key": TENANT,
        })
    });
    let mut page = page_from(described, size, start);
    page["member_total"] = json!(total);
    Ok(page)
}
