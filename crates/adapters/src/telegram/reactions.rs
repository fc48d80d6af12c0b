//! Reacts to messages of people.

use monoco_core::chat_receipt::Reaction;
use monoco_core::retry::Failure;
use serde_json::json;

use super::client::TelegramClient;
use super::failure::TelegramErrorKind;
use super::wire::split_message_id;

/// Puts a reaction on a message. A bot has one reaction per message, so it replaces the last one.
/// Ids of edits and notices name no message of a chat.
pub(super) async fn set(
    client: &TelegramClient,
    message_id: &str,
    reaction: Reaction,
) -> Result<(), Failure> {
    let Some((chat, number)) = split_message_id(message_id) else { return Ok(()) };
    let body = json!({
        "chat_id": chat,
        "message_id": number,
        "reaction": [{"type": "emoji", "emoji": emoji(reaction)}],
    });
    match client.read("setMessageReaction", &body).await {
        Ok(_) => Ok(()),
        // Its author has deleted the message, or it is in the group before it migrated.
        Err(error)
            if matches!(
                error.kind,
                TelegramErrorKind::MessageGone | TelegramErrorKind::Migrated { .. }
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(error.failure),
    }
}

/// Returns the emoji. Telegram has a list of reactions that bots may use, without a cross.
const fn emoji(reaction: Reaction) -> &'static str {
    match reaction {
        Reaction::Eyes => "👀",
        Reaction::Okay => "👌",
        Reaction::Cross => "💔",
        Reaction::ThumbsUp => "👍",
        Reaction::ThumbsDown => "👎",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::scripted::{ScriptedAct, ScriptedServer, answer};
    use crate::telegram::client::tests::client;

    async fn react_once(status: &str, body: &str) -> (Result<(), Failure>, String) {
        let head = "content-type: application/json\r\n";
        let server = ScriptedServer::new([ScriptedAct::Answer(answer(status, head, body))]);
        let result = set(&client(&server), "-1001:55", Reaction::Okay).await;
        (result, server.request())
    }

    #[tokio::test]
    async fn reaction_names_chat_message_and_emoji() {
        let (result, request) = react_once("200 OK", r#"{"ok":true,"result":true}"#).await;
        assert_eq!(result, Ok(()));
        let body: Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        let reaction = json!([{"type": "emoji", "emoji": "👌"}]);
        assert_eq!(body, json!({"chat_id": -1001, "message_id": 55, "reaction": reaction}));
    }

    #[tokio::test]
    async fn failures_say_whether_another_attempt_can_help() {
        for (status, description, want) in [
            ("400 Bad Request", "Bad Request: message to react not found", None),
            ("400 Bad Request", "Bad Request: MESSAGE_ID_INVALID", None),
            ("400 Bad Request", "Bad Request: REACTION_INVALID", Some(true)),
            ("429 Too Many Requests", "Too Many Requests: retry after 5", Some(false)),
            ("502 Bad Gateway", "Bad Gateway", Some(false)),
        ] {
            let code = &status[..3];
            let body =
                format!(r#"{{"ok":false,"error_code":{code},"description":"{description}"}}"#);
            let result = react_once(status, &body).await.0;
            let found = result.err().map(|failure| matches!(failure, Failure::Permanent { .. }));
            assert_eq!(found, want, "{description}");
        }
    }

    #[tokio::test]
    async fn ids_that_are_no_messages_are_passed_over() {
        let server = ScriptedServer::new([]);
        for id in ["5:6:1700000000:ab", "member_joined:5:6", "5", ""] {
            assert_eq!(set(&client(&server), id, Reaction::Eyes).await, Ok(()), "{id}");
        }
        assert!(!server.received_more());
    }
}
