//! What each error of the Bot API means.
//!
//! Telegram's errors have a code, which is also the HTTP status, and a description. Sources: the
//! server `tdlib/telegram-bot-api` (2026-05), and `telegram.error` of python-telegram-bot 22.8.

use std::time::Duration;

use monoco_core::retry::Failure;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::wire::without_tokens;
use crate::egress::EgressResponse;

/// Longest description that an error repeats, in characters.
const MAX_DESCRIPTION_CHARS: usize = 300;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TelegramError {
    pub failure: Failure,
    pub kind: TelegramErrorKind,
}

/// What a caller can do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TelegramErrorKind {
    /// Telegram was not reached, or its answer is missing: the failure says what is known.
    Transport,
    /// Telegram could not finish the request. It may have been executed.
    Ambiguous,
    /// Telegram is not available, and has executed nothing.
    Unavailable,
    /// The token is wrong or was revoked.
    Unauthorized,
    /// Another program polls with the same token.
    OtherPoller,
    /// Updates go to a webhook, so they cannot be polled.
    WebhookActive,
    Throttled {
        retry_after: Option<Duration>,
    },
    /// The group has become a supergroup with this id.
    Migrated {
        to: i64,
    },
    /// The answered message is gone.
    ReplyGone,
    /// The entities of a text, or the photo, were rejected. Plain text, or a document, may be
    /// accepted.
    Format,
    /// The message that a call concerns does not exist.
    MessageGone,
    /// Rejected for good, and nothing was executed.
    Rejected,
}

impl From<Failure> for TelegramError {
    /// An error without an answer.
    fn from(failure: Failure) -> Self {
        Self { failure, kind: TelegramErrorKind::Transport }
    }
}

/// Whether a call can be repeated when its answer is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TelegramCallKind {
    /// It changes nothing, or the same change twice is one change.
    Repeatable,
    /// It sends a message.
    Send,
}

/// The envelope of every answer.
#[derive(Deserialize)]
pub(super) struct ApiEnvelope<'a> {
    ok: bool,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error_code: Option<i64>,
    description: Option<String>,
    #[serde(default)]
    parameters: ErrorParameters,
}

#[derive(Default, Deserialize)]
struct ErrorParameters {
    retry_after: Option<u64>,
    migrate_to_chat_id: Option<i64>,
}

/// Returns the JSON of the result, or the classified error.
pub(super) fn read_answer<'a>(
    method: &str,
    call: TelegramCallKind,
    response: &'a EgressResponse,
) -> Result<&'a str, TelegramError> {
    let body = std::str::from_utf8(&response.body).ok();
    let envelope = body.and_then(|body| serde_json::from_str::<ApiEnvelope<'_>>(body).ok());
    match envelope {
        Some(ApiEnvelope { ok: true, result: Some(result), .. }) => Ok(result.get()),
        Some(envelope) if !envelope.ok => {
            let code = envelope.error_code.unwrap_or_else(|| i64::from(response.status.as_u16()));
            let description = envelope.description.as_deref().unwrap_or("no description");
            let parameters = &envelope.parameters;
            let asked = parameters.retry_after.map(Duration::from_secs);
            let answer = ErrorAnswer {
                code,
                description,
                retry_after: asked.or_else(|| response.retry_after()),
                migrate_to: parameters.migrate_to_chat_id,
            };
            Err(answer.classify(method, call))
        }
        _ => {
            let status = response.status;
            let answer = ErrorAnswer {
                code: i64::from(status.as_u16()),
                description: if status.is_success() {
                    "not an answer of Telegram"
                } else {
                    "no reason given"
                },
                retry_after: response.retry_after(),
                migrate_to: None,
            };
            Err(answer.classify(method, call))
        }
    }
}

/// An error as Telegram states it.
struct ErrorAnswer<'a> {
    code: i64,
    description: &'a str,
    retry_after: Option<Duration>,
    migrate_to: Option<i64>,
}

impl ErrorAnswer<'_> {
    fn classify(&self, method: &str, call: TelegramCallKind) -> TelegramError {
        let (kind, advice) = self.meaning();
        let description: String = without_tokens(self.description)
            .chars()
            .filter(|c| !c.is_control())
            .take(MAX_DESCRIPTION_CHARS)
            .collect();
        let detail = format!("{method}: {description} ({}){advice}", self.code);
        let error_code = Some(self.code.to_string());
        let retry_after_ms =
            self.retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
        let failure = match kind {
            TelegramErrorKind::Ambiguous if call == TelegramCallKind::Send => {
                Failure::Unknown { detail, error_code }
            }
            TelegramErrorKind::Ambiguous
            | TelegramErrorKind::Unavailable
            | TelegramErrorKind::OtherPoller
            | TelegramErrorKind::WebhookActive
            | TelegramErrorKind::Throttled { .. } => {
                Failure::Temporary { detail, retry_after_ms, error_code }
            }
            _ => Failure::Permanent { detail, error_code },
        };
        TelegramError { failure, kind }
    }

    /// Returns what the error means, and what an operator can do about it.
    fn meaning(&self) -> (TelegramErrorKind, &'static str) {
        use TelegramErrorKind as Kind;
        let description = self.description.to_lowercase();
        let has = |part: &str| description.contains(part);
        match self.code {
            429 => (Kind::Throttled { retry_after: self.retry_after }, ""),
            // A group that has become a supergroup: the answer names the new id.
            400 if self.migrate_to.is_some() => {
                (Kind::Migrated { to: self.migrate_to.unwrap_or_default() }, "")
            }
            // `allow_sending_without_reply` does not cover every case, such as another topic.
            400 if has("message to be replied not found")
                || has("replied message not found")
                || has("reply_message_id_invalid") =>
            {
                (Kind::ReplyGone, "")
            }
            // PHOTO_INVALID_DIMENSIONS, IMAGE_PROCESS_FAILED, PHOTO_EXT_INVALID: sent as a document.
            400 if has("entit") || has("photo_") || has("image_process_failed") => {
                (Kind::Format, "")
            }
            400 if has("message to react not found")
                || has("message_id_invalid")
                || has("message not found") =>
            {
                (Kind::MessageGone, "")
            }
            400 if has("chat not found") => (
                Kind::Rejected,
                "; check the id, and that the bot is in the chat or the person has written to it",
            ),
            400 if has("message thread not found")
                || has("topic_closed")
                || has("topic_deleted") =>
            {
                (Kind::Rejected, "; the topic is closed or deleted")
            }
            400 if has("not enough rights")
                || has("have no rights")
                || has("need administrator") =>
            {
                (Kind::Rejected, "; let the bot write in this chat")
            }
            400 if has("reaction_invalid") || has("reactions_too_many") => {
                (Kind::Rejected, "; the chat does not allow this reaction")
            }
            400 if has("logged out") => {
                (Kind::Unauthorized, "; the bot is logged out of this server")
            }
            // `wrong file_id or the file is temporarily unavailable`
            400 if has("temporarily unavailable") => (Kind::Unavailable, ""),
            // Also `message is too long`, `message text is empty`, `wrong file identifier`.
            400 => (Kind::Rejected, ""),
            401 => (
                Kind::Unauthorized,
                "; the token is wrong or was revoked: set the current token of @BotFather",
            ),
            403 if has("blocked by the user") => {
                (Kind::Rejected, "; the person has blocked the bot")
            }
            403 if has("kicked") || has("not a member") => {
                (Kind::Rejected, "; add the bot to the chat again")
            }
            403 if has("can't initiate conversation") => {
                (Kind::Rejected, "; the person must write to the bot first")
            }
            // Also `user is deactivated`, `bot can't send messages to bots`.
            403 => (Kind::Rejected, ""),
            // The servers of Telegram answer 404 to a token that is no token. A method that is
            // not known has 404 too, but this adapter calls only methods that exist.
            404 => (Kind::Unauthorized, "; check the token and base_url"),
            409 if has("webhook") => (
                Kind::WebhookActive,
                "; a webhook is set for this bot: set `mode: webhook`, or `delete_webhook: true` \
                 to remove the webhook and poll",
            ),
            // `terminated by other getUpdates request`
            409 => (
                Kind::OtherPoller,
                "; another program polls with the same token, and Telegram gives each message to \
                 only one of them: stop the other program, or give it a bot of its own",
            ),
            413 => (Kind::Rejected, "; Telegram accepts files of up to 50 MB"),
            503 => (Kind::Unavailable, ""),
            // A server that ends while a message is being sent answers 500, and a front end
            // answers 502 or 504 when it waits for nothing any more. The message may be sent.
            408 | 500..=599 | 200..=299 => (Kind::Ambiguous, ""),
            300..=399 => (Kind::Rejected, "; check base_url"),
            _ => (Kind::Rejected, ""),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use serde_json::json;

    use super::*;

    fn response(status: u16, body: &str) -> EgressResponse {
        let status = StatusCode::from_u16(status).unwrap();
        EgressResponse { status, headers: HeaderMap::new(), body: body.as_bytes().to_vec() }
    }

    fn error(call: TelegramCallKind, code: u16, description: &str) -> TelegramError {
        let body = json!({"ok": false, "error_code": code, "description": description});
        read_answer("sendMessage", call, &response(code, &body.to_string())).unwrap_err()
    }

    fn outcome(failure: &Failure) -> &'static str {
        match failure {
            Failure::Temporary { .. } => "temporary",
            Failure::Permanent { .. } => "permanent",
            Failure::Unknown { .. } => "unknown",
        }
    }

    #[test]
    fn every_description_has_a_meaning() {
        use TelegramErrorKind as Kind;
        for (code, description, kind, outcome_of_send) in [
            (400, "Bad Request: chat not found", Kind::Rejected, "permanent"),
            (400, "Bad Request: message is too long", Kind::Rejected, "permanent"),
            (400, "Bad Request: message text is empty", Kind::Rejected, "permanent"),
            (400, "Bad Request: message thread not found", Kind::Rejected, "permanent"),
            (400, "Bad Request: message to be replied not found", Kind::ReplyGone, "permanent"),
            (400, "Bad Request: can't parse entities: …", Kind::Format, "permanent"),
            (400, "Bad Request: ENTITY_BOUNDS_INVALID", Kind::Format, "permanent"),
            (400, "Bad Request: PHOTO_INVALID_DIMENSIONS", Kind::Format, "permanent"),
            (400, "Bad Request: message to react not found", Kind::MessageGone, "permanent"),
            (400, "Bad Request: REACTION_INVALID", Kind::Rejected, "permanent"),
            (
                400,
                "Bad Request: wrong file_id or the file is temporarily unavailable",
                Kind::Unavailable,
                "temporary",
            ),
            (401, "Unauthorized", Kind::Unauthorized, "permanent"),
            (403, "Forbidden: bot was blocked by the user", Kind::Rejected, "permanent"),
            (
                403,
                "Forbidden: bot was kicked from the supergroup chat",
                Kind::Rejected,
                "permanent",
            ),
            (403, "Forbidden: user is deactivated", Kind::Rejected, "permanent"),
            (
                403,
                "Forbidden: bot can't initiate conversation with a user",
                Kind::Rejected,
                "permanent",
            ),
            (404, "Not Found", Kind::Unauthorized, "permanent"),
            (
                409,
                "Conflict: terminated by other getUpdates request; make sure that only one bot \
                 instance is running",
                Kind::OtherPoller,
                "temporary",
            ),
            (
                409,
                "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook \
                 to delete the webhook first",
                Kind::WebhookActive,
                "temporary",
            ),
            (409, "Conflict: terminated by setWebhook request", Kind::WebhookActive, "temporary"),
            (413, "Request Entity Too Large", Kind::Rejected, "permanent"),
            (500, "Internal Server Error: restart", Kind::Ambiguous, "unknown"),
            (502, "Bad Gateway", Kind::Ambiguous, "unknown"),
            (503, "Service Unavailable", Kind::Unavailable, "temporary"),
            (504, "Gateway Timeout", Kind::Ambiguous, "unknown"),
        ] {
            let found = error(TelegramCallKind::Send, code, description);
            assert_eq!(
                (found.kind, outcome(&found.failure)),
                (kind, outcome_of_send),
                "{description}"
            );
            assert_eq!(found.failure.error_code(), Some(code.to_string().as_str()));
            let read = error(TelegramCallKind::Repeatable, code, description);
            let is_unknown = outcome(&found.failure) == "unknown";
            let of_read = if is_unknown { "temporary" } else { outcome_of_send };
            assert_eq!(outcome(&read.failure), of_read, "a repeatable call: {description}");
        }
    }

    #[test]
    fn parameters_of_an_error_are_read() {
        let body = r#"{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 5",
                       "parameters":{"retry_after":5}}"#;
        let found =
            read_answer("sendMessage", TelegramCallKind::Send, &response(429, body)).unwrap_err();
        let retry_after = Some(Duration::from_secs(5));
        assert_eq!(found.kind, TelegramErrorKind::Throttled { retry_after });
        let body = r#"{"ok":false,"error_code":400,
            "description":"Bad Request: group chat was upgraded to a supergroup chat",
            "parameters":{"migrate_to_chat_id":-1001234567890}}"#;
        let found =
            read_answer("sendMessage", TelegramCallKind::Send, &response(400, body)).unwrap_err();
        assert_eq!(found.kind, TelegramErrorKind::Migrated { to: -1_001_234_567_890 });
    }

    #[test]
    fn answers_that_are_no_answers_are_classified_by_their_status() {
        for (status, body, want) in [
            (502, "<html>nginx</html>", "unknown"),
            (200, "hello", "unknown"),
            (200, r#"{"ok":true}"#, "unknown"),
            (302, "", "permanent"),
            (429, "slow down", "temporary"),
        ] {
            let response = response(status, body);
            let found = read_answer("sendMessage", TelegramCallKind::Send, &response);
            assert_eq!(outcome(&found.unwrap_err().failure), want, "{status} {body}");
        }
        let good = response(200, r#"{"ok":true,"result":{"message_id":1}}"#);
        assert_eq!(read_answer("m", TelegramCallKind::Send, &good), Ok(r#"{"message_id":1}"#));
    }

    #[test]
    fn tokens_in_descriptions_are_cut() {
        let token = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
        let found = error(TelegramCallKind::Send, 400, &format!("Bad Request: /bot{token}/x\u{7}"));
        assert_eq!(found.failure.detail(), "sendMessage: Bad Request: /bot[cut]/x (400)");
    }
}
