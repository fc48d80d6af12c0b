//! Sends a message in parts: its text, split before it is formatted, and then its files.
//!
//! Every text carries the id of the delivery as metadata, because Slack has no idempotency keys:
//! by it a message whose answer is missing is looked for. After an error that Slack answers when it
//! may have sent the message (500, `internal_error`, `fatal_error`), Slack is done with the request,
//! so the message is looked for at once: found, the part was sent; not found twice, it was not, and
//! the failure is temporary. After an answer of a gateway (502, 504) the message can still appear,
//! so that the outcome stays unknown when it is not found.
//!
//! A 429 of chat.postMessage concerns the chat, because its limit is one message per second and
//! chat. While the pause of one chat lasts, a 429 of another chat concerns the whole tunnel, and
//! so does every 429 of another method, whose limits are per workspace.

use std::time::Duration;

use monoco_core::delivery::{DeliveryOutcome, SentPart, ThrottleScope};
use monoco_core::did::EndpointKind;
use monoco_core::outgoing::{AttachmentRef, OutgoingMessage};
use monoco_core::retry::Failure;
use serde_json::{Value, json};

use super::client::{ApiErrorKind, SlackApiError};
use super::rich_text;
use super::sent_search::{self, SentLookup, SentSearch};
use super::upload::{self, UploadedFiles};
use super::wire::{is_ts, message_id, split_message_id};
use super::workspace::SlackWorkspace;
use crate::throttle::ChatThrottle;
use crate::{DeliveryRequest, markdown};

/// Longest text of one message, in characters of Markdown. Slack recommends 4,000 at most and
/// cuts at 40,000; escapes make a text up to five times as long.
const MAX_PART_CHARS: usize = 3500;

/// The type of the metadata of messages that were sent by this program.
pub(super) const METADATA_TYPE: &str = "monoco_delivery";

/// Follows a text whose formatting was rejected.
const PLAIN_NOTE: &str = "\n\n[sent without formatting: Slack rejected it]";

/// How long after an error a message that is not in the chat is looked for once more.
const SECOND_LOOK: Duration = Duration::from_secs(5);

/// Sends the messages of one tunnel.
#[derive(Debug)]
pub(super) struct SlackSender {
    throttled: ChatThrottle,
    uploads: UploadedFiles,
    second_look: Duration,
}

impl Default for SlackSender {
    fn default() -> Self {
        let (throttled, uploads) = (ChatThrottle::default(), UploadedFiles::default());
        Self { throttled, uploads, second_look: SECOND_LOOK }
    }
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MessagePlace {
    pub chat: String,
    pub thread: Option<String>,
}

/// One part of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SlackPart<'a> {
    Text(String),
    File(&'a AttachmentRef),
}

/// Why a part was not sent.
enum PartError {
    Api(SlackApiError),
    Failed(Failure),
}

impl From<SlackApiError> for PartError {
    fn from(error: SlackApiError) -> Self {
        Self::Api(error)
    }
}

impl From<Failure> for PartError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl SlackSender {
    /// Makes one attempt to send the parts that were not sent before.
    pub async fn deliver(
        &self,
        workspace: &SlackWorkspace,
        request: &DeliveryRequest<'_>,
    ) -> DeliveryOutcome {
        let parts = parts(request.message);
        if parts.is_empty() {
            let detail = "the message has neither text nor files".to_owned();
            let error_code = Some("no_text".to_owned());
            return DeliveryOutcome::Failed(Failure::Permanent { detail, error_code });
        }
        let place = match place(workspace, request).await {
            Ok(place) => place,
            Err(error) => return self.outcome(error.into(), None),
        };
        let mut last = request.sent_parts.last().and_then(|part| part.external_msg_id.clone());
        for (number, part) in (0..).zip(&parts).skip(next_part(request)) {
            last = match self.send(workspace, request, &place, number, part).await {
                Ok(id) => id,
                Err(error) => return self.outcome(error, Some(&place)),
            };
            let is_last = usize::try_from(number).is_ok_and(|number| number + 1 == parts.len());
            if is_last {
                break;
            }
            let sent = SentPart { part: number, external_msg_id: last.clone() };
            if let Err(failure) = request.progress.part_sent(sent).await {
                return DeliveryOutcome::Failed(failure);
            }
        }
        DeliveryOutcome::Accepted { external_msg_id: last }
    }

    /// Looks for the part after those that were sent.
    pub async fn find_sent(
        &self,
        workspace: &SlackWorkspace,
        request: &DeliveryRequest<'_>,
    ) -> Result<Option<SentPart>, Failure> {
        let parts = parts(request.message);
        let next = next_part(request);
        let (Some(part), Ok(number)) = (parts.get(next), u32::try_from(next)) else {
            return Ok(None);
        };
        let place = place(workspace, request).await.map_err(|error| error.failure)?;
        let found = self.find(workspace, request, &place, number, part).await;
        let found = found.map_err(|error| error.failure)?;
        Ok(match found {
            SentLookup::Found(external_msg_id) => Some(SentPart { part: number, external_msg_id }),
            SentLookup::Absent | SentLookup::Unclear => None,
        })
    }

    /// Looks for a part at Slack.
    async fn find(
        &self,
        workspace: &SlackWorkspace,
        request: &DeliveryRequest<'_>,
        place: &MessagePlace,
        number: u32,
        part: &SlackPart<'_>,
    ) -> Result<SentLookup, SlackApiError> {
        let key = request.key.to_string();
        // The clock of the program that created the message may be ahead.
        let since = request.message.created_at.map_or(request.now, |at| at.min(request.now));
        let search = SentSearch { place, key: &key, number, since };
        match part {
            SlackPart::Text(_) => sent_search::find_text(workspace, &search).await,
            SlackPart::File(_) => {
                let uploaded = self.uploads.get(&key, number);
                sent_search::find_file(workspace, &search, uploaded.as_deref()).await
            }
        }
    }

    /// Sends one part and returns its id.
    async fn send(
        &self,
        workspace: &SlackWorkspace,
        request: &DeliveryRequest<'_>,
        place: &MessagePlace,
        number: u32,
        part: &SlackPart<'_>,
    ) -> Result<Option<String>, PartError> {
        let sent = match part {
            SlackPart::Text(text) => {
                send_text(workspace, request, place, number, text).await.map(Some)
            }
            SlackPart::File(file) => {
                let opened = request.files.open(file).await?;
                let uploaded = upload::upload(workspace, file, opened).await?;
                self.uploads.insert(&request.key.to_string(), number, &uploaded);
                upload::share(workspace, place, file, &uploaded).await
            }
        };
        // The times at which an answer without a result is followed by a look into the chat.
        let (error, looks) = match sent {
            Err(error) if error.kind == ApiErrorKind::Ambiguous => {
                (error, vec![Duration::ZERO, self.second_look])
            }
            Err(error) if error.kind == ApiErrorKind::NoVerdict => (error, vec![Duration::ZERO]),
            other => return Ok(other?),
        };
        for delay in looks {
            tokio::time::sleep(delay).await;
            match self.find(workspace, request, place, number, part).await {
                Ok(SentLookup::Found(id)) => return Ok(id),
                Ok(SentLookup::Absent) => {}
                Ok(SentLookup::Unclear) | Err(_) => return Err(error.into()),
            }
        }
        match error.failure {
            Failure::Unknown { detail, error_code } if error.kind == ApiErrorKind::Ambiguous => {
                let detail = format!("{detail}; the message is not in the chat");
                Err(Failure::Temporary { detail, retry_after_ms: None, error_code }.into())
            }
            failure => Err(failure.into()),
        }
    }

    /// Returns the outcome of an attempt that failed.
    fn outcome(&self, error: PartError, place: Option<&MessagePlace>) -> DeliveryOutcome {
        let error = match error {
            PartError::Failed(failure) => return DeliveryOutcome::Failed(failure),
            PartError::Api(error) => error,
        };
        let ApiErrorKind::Throttled { retry_after } = error.kind else {
            return DeliveryOutcome::Failed(error.failure);
        };
        let detail = error.failure.detail().to_owned();
        let is_post = detail.starts_with("chat.postMessage");
        let scope = match place.filter(|_| is_post) {
            Some(place) => self.throttled.scope(&place.chat, retry_after),
            None => ThrottleScope::Tunnel,
        };
        let error_code = error.failure.error_code().map(str::to_owned);
        DeliveryOutcome::Throttled { detail, error_code, retry_after, scope }
    }
}

/// Returns the number of the first part that was not sent.
fn next_part(request: &DeliveryRequest<'_>) -> usize {
    let last = request.sent_parts.iter().map(|part| part.part).max();
    last.map_or(0, |last| usize::try_from(last).unwrap_or(usize::MAX).saturating_add(1))
}

/// Returns the parts of a message. They are the same for every attempt.
pub(super) fn parts(message: &OutgoingMessage) -> Vec<SlackPart<'_>> {
    let mut text = message.text.trim().to_owned();
    if let Some(title) = message.title.as_deref().filter(|title| !title.trim().is_empty()) {
        let title = title.trim();
        text = match is_plain(message) {
            true => format!("{title}\n\n{text}"),
            false => format!("**{}**\n\n{text}", title.replace('*', "\\*")),
        };
    }
    let mut parts = Vec::new();
    if !text.trim().is_empty() {
        let size = |text: &str| text.chars().count();
        let texts = match is_plain(message) {
            true => markdown::split_plain(text.trim(), &size, MAX_PART_CHARS),
            false => markdown::split(text.trim(), &size, MAX_PART_CHARS),
        };
        parts.extend(texts.into_iter().filter(|text| !text.trim().is_empty()).map(SlackPart::Text));
    }
    parts.extend(message.attachments.iter().map(SlackPart::File));
    parts
}

fn is_plain(message: &OutgoingMessage) -> bool {
    message.format.as_deref() == Some("text/plain")
}

/// Returns chat and thread of a message. An answer to a message of a channel goes into its
/// thread; in a direct chat only an answer to a thread does.
async fn place(
    workspace: &SlackWorkspace,
    request: &DeliveryRequest<'_>,
) -> Result<MessagePlace, SlackApiError> {
    let address = request.address;
    let is_user = request.kind == EndpointKind::User || address.starts_with(['U', 'W']);
    let chat = match is_user && !address.starts_with('D') {
        true => workspace.direct_chat(address).await?,
        false => address.to_owned(),
    };
    let message = request.message;
    let topic = message.topic.as_deref().filter(|topic| is_ts(topic));
    let answered = message.reply_to.as_deref().and_then(split_message_id);
    let answered = answered.filter(|(other, _)| *other == chat && !chat.starts_with('D'));
    let thread = topic.or(answered.map(|(_, ts)| ts)).map(str::to_owned);
    Ok(MessagePlace { chat, thread })
}

/// Sends a text. When Slack rejects the format, it is sent again without one.
async fn send_text(
    workspace: &SlackWorkspace,
    request: &DeliveryRequest<'_>,
    place: &MessagePlace,
    number: u32,
    text: &str,
) -> Result<String, SlackApiError> {
    let key = request.key.to_string();
    let blocks = match is_plain(request.message) {
        true => rich_text::plain_blocks(text),
        false => rich_text::blocks(text),
    };
    let mut body = message_body(place, &key, number);
    body["text"] = json!(rich_text::mrkdwn(&blocks));
    if !blocks.is_empty() {
        body["blocks"] = Value::Array(blocks);
    }
    let reply = match workspace.client.write_json("chat.postMessage", &body).await {
        Err(error) if error.kind == ApiErrorKind::Format => {
            tracing::warn!(
                delivery = key,
                part = number,
                code = error.code(),
                "Slack rejected the format; the text is sent without it"
            );
            let mut plain = message_body(place, &key, number);
            let note = if is_plain(request.message) { "" } else { PLAIN_NOTE };
            plain["text"] = json!(rich_text::escape(text) + note);
            plain["mrkdwn"] = json!(false);
            workspace.client.write_json("chat.postMessage", &plain).await?
        }
        result => result?,
    };
    let chat = reply.text("channel").unwrap_or(&place.chat);
    Ok(message_id(chat, reply.text("ts").unwrap_or_default()))
}

/// Returns the body of a message without its text.
fn message_body(place: &MessagePlace, key: &str, number: u32) -> Value {
    let mut body = json!({
        "channel": place.chat,
        "unfurl_links": false,
        "unfurl_media": false,
        "metadata": {
            "event_type": METADATA_TYPE,
            "event_payload": { "delivery": key, "part": number },
        },
    });
    if let Some(thread) = &place.thread {
        body["thread_ts"] = json!(thread);
    }
    body
}

#[cfg(test)]
mod tests;
