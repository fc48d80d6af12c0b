//! Reactions to messages.

use serde_json::{Value, json};

use super::api::{SimLarkCall, SimLarkFailure, SimLarkResult};
use super::history::{page_from, page_request};
use super::messages::{check_member, present_message, record};
use super::{LarkSim, app_id, events};
use crate::clock::now_ms;
use crate::random::random_hex;
use crate::world::World;

/// Code of a reaction to a message that was removed.
const MESSAGE_DELETED: i64 = 231_003;

const INVALID_EMOJI: i64 = 231_001;

/// A reaction as the API shows it.
pub fn new_reaction(operator: &str, operator_type: &str, emoji: &str) -> Value {
    json!({
        "reaction_id": random_hex(),
        "operator": {"operator_id": operator, "operator_type": operator_type},
        "action_time": now_ms().to_string(),
        "reaction_type": {"emoji_type": emoji},
    })
}

fn is_same(one: &Value, other: &Value) -> bool {
    one["operator"] == other["operator"] && one["reaction_type"] == other["reaction_type"]
}

/// Adds a reaction; returns the one that exists if the operator has reacted like this before.
pub fn add(sim: &LarkSim, message_id: &str, reaction: Value) -> Value {
    let mut state = sim.state();
    let Some(list) = state.reactions.get_mut(message_id) else {
        state.reactions.insert(message_id.to_owned(), vec![reaction.clone()]);
        return reaction;
    };
    if let Some(found) = list.iter().find(|found| is_same(found, &reaction)) {
        return found.clone();
    }
    list.push(reaction.clone());
    reaction
}

/// Removes the reaction of an operator.
pub fn remove_of(sim: &LarkSim, message_id: &str, operator: &str, emoji: &str) {
    if let Some(list) = sim.state().reactions.get_mut(message_id) {
        list.retain(|reaction| {
            reaction["operator"]["operator_id"] != operator
                || reaction["reaction_type"]["emoji_type"] != emoji
        });
    }
}

pub fn create(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let (chat, item) = present_message(world, call, MESSAGE_DELETED)?;
    check_member(world, &chat, call.app)?;
    let emoji = call
        .body
        .get("reaction_type")
        .map_or("", |kind| kind["emoji_type"].as_str().unwrap_or_default());
    let is_name = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if emoji.is_empty() || emoji.len() > 40 || !is_name(emoji) {
        return Err(SimLarkFailure::new(INVALID_EMOJI, "reaction type is invalid."));
    }
    let reaction = add(call.sim, call.id(0), new_reaction(&app_id(call.app), "app", emoji));
    if world.settings.echo {
        let event = events::reaction_event(call.id(0), &reaction);
        events::emit(world, call.app, "im.message.reaction.created_v1", &event);
    }
    record(world, call, &item, emoji.to_owned(), Vec::new());
    Ok(reaction)
}

pub fn list(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let (chat, _) = present_message(world, call, MESSAGE_DELETED)?;
    check_member(world, &chat, call.app)?;
    let (size, start) = page_request(call, 50)?;
    let (emoji, state) = (call.query("reaction_type"), call.sim.state());
    let wanted = state.reactions.get(call.id(0)).into_iter().flatten().filter(|reaction| {
        emoji.is_empty() || reaction["reaction_type"]["emoji_type"] == emoji.as_str()
    });
    Ok(page_from(wanted.cloned(), size, start))
}

pub fn delete(world: &mut World, call: &SimLarkCall<'_>) -> SimLarkResult {
    let (_, item) = present_message(world, call, MESSAGE_DELETED)?;
    let mut state = call.sim.state();
    let list = state.reactions.get_mut(call.id(0));
    let place = list
        .as_ref()
        .and_then(|list| list.iter().position(|reaction| reaction["reaction_id"] == call.id(1)));
    let (Some(list), Some(place)) = (list, place) else {
        return Err(SimLarkFailure::new(231_007, "The reaction does not exist."));
    };
    if list[place]["operator"]["operator_id"] != app_id(call.app).as_str() {
        return Err(SimLarkFailure::new(231_007, "The bot is not the operator of the reaction."));
    }
    let removed = list.remove(place);
    drop(state);
    let emoji = removed["reaction_type"]["emoji_type"].as_str().unwrap_or_default().to_owned();
    record(world, call, &item, emoji, Vec::new());
    Ok(removed)
}
