//! Finds the people that control requests name.

use super::ControlError;
use crate::store::{MAX_CHATS, SimStore, SimUser};
use crate::world::World;

/// Finds a person by id or name; a new name creates a person with the id that `new_id` returns.
pub fn find_person(
    world: &mut World,
    name: Option<&str>,
    new_id: impl FnOnce(&SimStore) -> String,
) -> Result<SimUser, ControlError> {
    let name = name.unwrap_or("ann").trim_start_matches('@');
    if let Some(user) = world.store.find_user(name) {
        return Ok(user.clone());
    }
    if name.is_empty() || world.store.users.len() >= MAX_CHATS {
        return Err(ControlError(format!("found user {name:?}, expected a name or an id")));
    }
    let id = new_id(&world.store);
    let user = SimUser { id, name: name.to_owned(), is_bot: false };
    world.store.add_user(user.clone());
    Ok(user)
}
