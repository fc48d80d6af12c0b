//! Reacts to messages of people.

use monoco_core::chat_receipt::Reaction;
use monoco_core::retry::Failure;
use serde_json::json;

use super::client::{LarkClient, LarkRequest};
use super::failure::LarkFault;
use super::wire::is_message_id;

/// Puts a reaction on a message. Ids of events and edits name no message of a chat.
pub(super) async fn add(
    client: &LarkClient,
    message_id: &str,
    reaction: Reaction,
) -> Result<(), Failure> {
    if !is_message_id(message_id) {
        return Ok(());
    }
    let path = format!("im/v1/messages/{message_id}/reactions");
    let body = json!({"reaction_type": {"emoji_type": emoji(reaction)}});
    match client.call(LarkRequest::post(&path, &body)).await {
        // Its author has recalled the message.
        Ok(_) | Err(LarkFault::Gone(_)) => Ok(()),
        Err(fault) => Err(fault.into_failure()),
    }
}

/// Returns Lark's name of the emoji.
const fn emoji(reaction: Reaction) -> &'static str {
    match reaction {
        Reaction::Eyes => "GLANCE",
        Reaction::Okay => "CheckMark",
        Reaction::Cross => "CrossMark",
        Reaction::ThumbsUp => "THUMBSUP",
        Reaction::ThumbsDown => "ThumbsDown",
    }
}
