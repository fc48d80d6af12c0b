//! Finds people, chats and messages that a control request names; a new name creates one.

use serde_json::{Map, Value};

use crate::control::ControlError;
use crate::store::{MAX_CHATS, SimChat, SimMessage, SimUser};
use crate::world::World;

/// Finds a person by id or name, `ann` if absent; a new name creates a person with a new id.
pub fn person(
    world: &mut World,
    name: Option<&str>,
    new_id: impl FnOnce(&World) -> String,
) -> Result<SimUser, ControlError> {
    let name = name.unwrap_or("ann").trim_start_matches('@');
    if let Some(user) = world.store.find_user(name) {
        return Ok(user.clone());
    }
    if name.is_empty() || world.store.users.len() >= MAX_CHATS {
        return Err(ControlError(format!("found user {name:?}, expected a name or an id")));
    }
    let user = SimUser { id: new_id(world), name: name.to_owned(), is_bot: false };
    world.store.add_user(user.clone());
    Ok(user)
}

/// Finds a chat by id or name and adds the member; a new name creates a chat.
pub fn place(
    world: &mut World,
    name: &str,
    member: &str,
    new_chat: impl FnOnce(&World) -> SimChat,
) -> Result<String, ControlError> {
    let id = match world.store.find_chat(name) {
        Some(id) => id,
        None if name.is_empty() || world.store.chats.len() >= MAX_CHATS => {
            return Err(ControlError(format!("found chat {name:?}, expected a name or an id")));
        }
        None => {
            let chat = new_chat(world);
            let id = chat.id.clone();
            world.store.add_chat(chat);
            id
        }
    };
    if let Some(chat) = world.store.chats.get_mut(&id) {
        chat.members.insert(member.to_owned());
    }
    Ok(id)
}

/// The chat of a request, and the message in it that the request names.
pub fn find_message<'a>(
    world: &'a mut World,
    chat: &str,
    id: &str,
) -> Result<(String, &'a mut SimMessage), ControlError> {
    let missing = || ControlError(format!("there is no message {id:?} in chat {chat:?}"));
    let place = world.store.find_chat(chat).ok_or_else(missing)?;
    let found = world.store.chats.get_mut(&place).and_then(|chat| chat.get_mut(id));
    Ok((place, found.ok_or_else(missing)?))
}

/// Replaces or adds fields that the caller gave.
pub fn merge_fields(body: &mut Value, fields: &Map<String, Value>) {
    for (name, value) in fields {
        body[name.as_str()] = value.clone();
    }
}
