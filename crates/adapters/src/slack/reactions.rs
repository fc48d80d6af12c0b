//! Reacts to messages of people.

use monoco_core::chat_receipt::Reaction;
use monoco_core::retry::Failure;

use super::client::{ApiArguments, SlackClient, SlackToken};
use super::wire::split_message_id;

/// Puts a reaction on a message. Ids of edits and commands name no message of a chat.
pub(super) async fn add(
    client: &SlackClient,
    message_id: &str,
    reaction: Reaction,
) -> Result<(), Failure> {
    let Some((channel, ts)) = split_message_id(message_id) else { return Ok(()) };
    let fields = [("channel", channel), ("timestamp", ts), ("name", emoji(reaction))];
    match client.call(SlackToken::Bot, "reactions.add", ApiArguments::Write(&fields)).await {
        Ok(_) => Ok(()),
        // The second: its author has deleted the message.
        Err(error) if matches!(error.code(), "already_reacted" | "message_not_found") => Ok(()),
        Err(error) => Err(error.failure),
    }
}

/// Returns Slack's name of the emoji, without colons.
const fn emoji(reaction: Reaction) -> &'static str {
    match reaction {
        Reaction::Eyes => "eyes",
        Reaction::Okay => "white_check_mark",
        Reaction::Cross => "x",
        Reaction::ThumbsUp => "+1",
        Reaction::ThumbsDown => "-1",
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::config::{Secret, SecretSource};

    use super::*;
    use crate::egress::{Egress, EgressTarget};
    use crate::scripted::{ScriptedAct, ScriptedServer, answer};

    const MESSAGE: &str = "C1:1700000000.000100";

    fn client(server: &ScriptedServer) -> SlackClient {
        let base = EgressTarget::parse(&format!("http://127.0.0.1:{}/api/", server.port()), true);
        let token = Some(SecretSource::Value(Secret::new("xoxb-canary")));
        SlackClient::new(Egress::new().unwrap(), base.unwrap(), None, token)
    }

    async fn react_once(status: &str, body: &str) -> (Result<(), Failure>, String) {
        let head = "content-type: application/json\r\n";
        let server = ScriptedServer::new([ScriptedAct::Answer(answer(status, head, body))]);
        let result = add(&client(&server), MESSAGE, Reaction::Okay).await;
        (result, server.request())
    }

    #[tokio::test]
    async fn reaction_names_chat_timestamp_and_emoji() {
        let (result, request) = react_once("200 OK", r#"{"ok":true}"#).await;
        assert_eq!(result, Ok(()));
        assert!(request.starts_with("POST /api/reactions.add "), "{request}");
        assert!(request.to_lowercase().contains("authorization: bearer xoxb-canary"));
        let body = request.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(body, "channel=C1&timestamp=1700000000.000100&name=white_check_mark");
    }

    #[tokio::test]
    async fn existing_reaction_and_deleted_message_are_a_success() {
        for code in ["already_reacted", "message_not_found"] {
            let body = format!(r#"{{"ok":false,"error":"{code}"}}"#);
            assert_eq!(react_once("200 OK", &body).await.0, Ok(()), "{code}");
        }
    }

    #[tokio::test]
    async fn failures_say_whether_another_attempt_can_help() {
        for (status, code, is_permanent) in [
            ("200 OK", "missing_scope", true),
            ("200 OK", "too_many_reactions", true),
            ("200 OK", "internal_error", false),
            ("429 Too Many Requests", "ratelimited", false),
            ("503 Service Unavailable", "service_unavailable", false),
        ] {
            let body = format!(r#"{{"ok":false,"error":"{code}"}}"#);
            let failure = react_once(status, &body).await.0.unwrap_err();
            let found = matches!(failure, Failure::Permanent { .. });
            assert_eq!(found, is_permanent, "{code}: {failure:?}");
        }
    }

    #[tokio::test]
    async fn ids_that_are_no_messages_are_passed_over() {
        let server = ScriptedServer::new([]);
        let client = client(&server);
        let edit = format!("{MESSAGE}:1700000009.000000");
        for id in [edit.as_str(), "C1:1700000000.000100:deleted", "command:7", "C1", ""] {
            assert_eq!(add(&client, id, Reaction::Eyes).await, Ok(()), "{id}");
        }
        assert!(!server.received_more());
    }
}
