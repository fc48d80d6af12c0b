//! Sends a message in parts: its text, split before it is formatted, and then its files.
//!
//! A short text is the caption of the first file. Telegram has no idempotency keys and no search,
//! so a part whose answer is missing is UNCERTAIN.

use monoco_core::delivery::{DeliveryOutcome, SentPart, ThrottleScope};
use monoco_core::did::EndpointKind;
use monoco_core::outgoing::{AttachmentRef, OutgoingMessage};
use monoco_core::retry::Failure;
use serde_json::{Map, Value, json};

use super::TelegramAdapter;
use super::failure::{TelegramError, TelegramErrorKind};
use super::formatting::EntityText;
use super::wire::{integer, message_id, split_message_id};
use crate::egress::MultipartField;
use crate::{DeliveryRequest, OpenAttachment, markdown};

/// Longest text of one message, in UTF-16 units after formatting.
const MAX_TEXT_UNITS: usize = 4096;

/// Longest caption of a file, in UTF-16 units after formatting.
const MAX_CAPTION_UNITS: usize = 1024;

/// Most entities of one text. Telegram ignores the others.
const MAX_ENTITIES: usize = 100;

/// Largest photo, in bytes. Larger images are sent as documents.
const MAX_PHOTO_BYTES: u64 = 10 << 20;

/// Largest file, in bytes.
const MAX_FILE_BYTES: u64 = 50 << 20;

/// Most changes of one request after a rejection: new chat, no reply, no format.
const MAX_CHANGES: usize = 4;

/// One part of a message. The texts are Markdown, or plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TelegramPart<'a> {
    Text(String),
    File { file: &'a AttachmentRef, caption: Option<String> },
}

/// A chat by its id, or a public one by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ChatAddress {
    Id(i64),
    Name(String),
}

/// How a part is sent. Some rejections of Telegram are answered by changing it.
#[derive(Clone, Debug)]
struct PartPlan {
    chat: ChatAddress,
    thread: Option<i64>,
    reply: Option<i64>,
    is_silent: bool,
    is_formatted: bool,
    is_photo: bool,
}

impl TelegramAdapter {
    /// Makes one attempt to send the parts that were not sent before.
    pub(super) async fn deliver_parts(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        let parts = parts(request.message);
        let mut plan = match self.plan(request) {
            Ok(plan) => plan,
            Err(failure) => return DeliveryOutcome::Failed(failure),
        };
        if let Err(failure) = check_parts(request, &parts).await {
            return DeliveryOutcome::Failed(failure);
        }
        let mut last = request.sent_parts.last().and_then(|part| part.external_msg_id.clone());
        for (number, part) in (0..).zip(&parts).skip(next_part(request)) {
            // Only the first part is an answer.
            plan.reply = plan.reply.filter(|_| number == 0);
            last = match self.send_part(request, &mut plan, part).await {
                Ok(id) => id,
                Err(error) => return self.outcome(error, request.address),
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

    fn plan(&self, request: &DeliveryRequest<'_>) -> Result<PartPlan, Failure> {
        let mut chat = address(request.kind, request.address)?;
        if let ChatAddress::Id(id) = &mut chat {
            *id = self.intake.migrations.current(*id);
        }
        let message = request.message;
        let topic = message.topic.as_deref().and_then(|topic| topic.parse().ok());
        let answered = message.reply_to.as_deref().and_then(split_message_id);
        let answered = answered.filter(|(of, _)| chat == ChatAddress::Id(*of));
        Ok(PartPlan {
            chat,
            // The general topic has the id 1, which Telegram does not accept.
            thread: topic.filter(|topic| *topic > 1),
            reply: answered.map(|(_, number)| number),
            is_silent: message.silent,
            is_formatted: !is_plain(message),
            is_photo: true,
        })
    }

    /// Sends one part and returns its id. A request that Telegram has rejected, and that can be
    /// changed, is sent again: nothing of it was executed.
    async fn send_part(
        &self,
        request: &DeliveryRequest<'_>,
        plan: &mut PartPlan,
        part: &TelegramPart<'_>,
    ) -> Result<Option<String>, TelegramError> {
        // What is changed because of this part does not concern the next ones, except its chat.
        let mut plan_of_part = plan.clone();
        for _ in 0..MAX_CHANGES {
            let result = self.send_once(request, &plan_of_part, part).await;
            let error = match result {
                Ok(id) => {
                    plan.chat = plan_of_part.chat;
                    return Ok(id);
                }
                Err(error) => error,
            };
            if !self.change(&mut plan_of_part, &error, part) {
                return Err(error);
            }
            tracing::info!(
                tunnel = %self.id,
                delivery = %request.key,
                error = error.failure.detail(),
                "Telegram rejected the request; it is sent again in another way"
            );
        }
        self.send_once(request, &plan_of_part, part).await
    }

    /// Changes a plan so that its request can be accepted; `false` when there is no other way.
    fn change(&self, plan: &mut PartPlan, error: &TelegramError, part: &TelegramPart<'_>) -> bool {
        match (error.kind, &plan.chat) {
            (TelegramErrorKind::Migrated { to }, ChatAddress::Id(from)) if *from != to => {
                self.intake.migrations.insert(*from, to);
                // The messages of the group have no ids in the supergroup.
                (plan.chat, plan.reply) = (ChatAddress::Id(to), None);
                true
            }
            (TelegramErrorKind::ReplyGone, _) => plan.reply.take().is_some(),
            (TelegramErrorKind::Format, _) => match part {
                TelegramPart::File { .. } if plan.is_photo => {
                    plan.is_photo = false;
                    true
                }
                _ => std::mem::take(&mut plan.is_formatted),
            },
            _ => false,
        }
    }

    async fn send_once(
        &self,
        request: &DeliveryRequest<'_>,
        plan: &PartPlan,
        part: &TelegramPart<'_>,
    ) -> Result<Option<String>, TelegramError> {
        let mut fields = plan.fields();
        let sent = match part {
            TelegramPart::Text(text) => {
                plan.add_text(&mut fields, "text", "entities", text);
                fields.insert("link_preview_options".to_owned(), json!({"is_disabled": true}));
                self.client.send("sendMessage", &Value::Object(fields)).await?
            }
            TelegramPart::File { file, caption } => {
                let OpenAttachment { size, bytes } = request.files.open(file).await?;
                if let Some(caption) = caption {
                    plan.add_text(&mut fields, "caption", "caption_entities", caption);
                }
                let is_photo = plan.is_photo && is_photo(file) && size <= MAX_PHOTO_BYTES;
                let (method, field) =
                    if is_photo { ("sendPhoto", "photo") } else { ("sendDocument", "document") };
                let mut form: Vec<_> = fields.iter().map(form_field).collect();
                form.push(MultipartField::file(
                    field,
                    file_name(file),
                    &file.mime_type,
                    size,
                    bytes,
                ));
                self.client.upload(method, form).await?
            }
        };
        let chat = integer(&sent["chat"], "id");
        Ok(chat.zip(integer(&sent, "message_id")).map(|(chat, number)| message_id(chat, number)))
    }

    /// Returns the outcome of an attempt that failed. A rate limit concerns the chat; while it
    /// lasts, that of another chat concerns the whole tunnel.
    fn outcome(&self, error: TelegramError, address: &str) -> DeliveryOutcome {
        let TelegramErrorKind::Throttled { retry_after } = error.kind else {
            return DeliveryOutcome::Failed(error.failure);
        };
        let scope: ThrottleScope = self.throttled.scope(address, retry_after);
        let detail = error.failure.detail().to_owned();
        let error_code = error.failure.error_code().map(str::to_owned);
        DeliveryOutcome::Throttled { detail, error_code, retry_after, scope }
    }
}

impl PartPlan {
    /// Returns the fields that all methods have.
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let chat = match &self.chat {
            ChatAddress::Id(id) => json!(id),
            ChatAddress::Name(name) => json!(name),
        };
        fields.insert("chat_id".to_owned(), chat);
        if let Some(thread) = self.thread {
            fields.insert("message_thread_id".to_owned(), json!(thread));
        }
        if let Some(number) = self.reply {
            let reply = json!({"message_id": number, "allow_sending_without_reply": true});
            fields.insert("reply_parameters".to_owned(), reply);
        }
        if self.is_silent {
            fields.insert("disable_notification".to_owned(), json!(true));
        }
        fields
    }

    fn add_text(&self, fields: &mut Map<String, Value>, text: &str, entities: &str, source: &str) {
        let formatted = match self.is_formatted {
            true => EntityText::from_markdown(source),
            false => EntityText::plain(source),
        };
        if !formatted.entities.is_empty() {
            fields.insert(entities.to_owned(), formatted.entities_json());
        }
        fields.insert(text.to_owned(), json!(formatted.text));
    }
}

/// Returns a field of a form. Lists and objects are JSON.
fn form_field((name, value): (&String, &Value)) -> MultipartField {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    MultipartField::text(name, text)
}

/// Returns the number of the first part that was not sent.
fn next_part(request: &DeliveryRequest<'_>) -> usize {
    let last = request.sent_parts.iter().map(|part| part.part).max();
    last.map_or(0, |last| usize::try_from(last).unwrap_or(usize::MAX).saturating_add(1))
}

/// Returns the parts of a message. They are the same for every attempt.
pub(super) fn parts(message: &OutgoingMessage) -> Vec<TelegramPart<'_>> {
    let is_plain = is_plain(message);
    let mut text = message.text.trim().to_owned();
    if let Some(title) = message.title.as_deref().filter(|title| !title.trim().is_empty()) {
        let title = title.trim();
        text = match is_plain {
            true => format!("{title}\n\n{text}"),
            false => format!("**{}**\n\n{text}", title.replace('*', "\\*")),
        };
    }
    let size = |text: &str| units(text, is_plain);
    let text = text.trim();
    let mut files = message.attachments.iter().peekable();
    let mut parts = Vec::new();
    let is_blank = |text: &str| size(text) == 0;
    if !is_blank(text) {
        if let Some(file) = files.next_if(|_| size(text) <= MAX_CAPTION_UNITS) {
            parts.push(TelegramPart::File { file, caption: Some(text.to_owned()) });
        } else {
            let texts = match is_plain {
                true => markdown::split_plain(text, &size, MAX_TEXT_UNITS),
                false => markdown::split(text, &size, MAX_TEXT_UNITS),
            };
            let texts = texts.into_iter().filter(|text| !is_blank(text));
            parts.extend(texts.map(TelegramPart::Text));
        }
    }
    parts.extend(files.map(|file| TelegramPart::File { file, caption: None }));
    parts
}

/// Returns the length of a text as Telegram counts it. A text with too many entities is too long.
fn units(text: &str, is_plain: bool) -> usize {
    let formatted = match is_plain {
        true => EntityText::plain(text),
        false => EntityText::from_markdown(text),
    };
    match formatted.entities.len() > MAX_ENTITIES {
        true => formatted.length().max(MAX_TEXT_UNITS + 1),
        false => formatted.length(),
    }
}

fn is_plain(message: &OutgoingMessage) -> bool {
    message.format.as_deref() == Some("text/plain")
}

/// Checks that every part can be sent, before the first one is.
async fn check_parts(
    request: &DeliveryRequest<'_>,
    parts: &[TelegramPart<'_>],
) -> Result<(), Failure> {
    if parts.is_empty() {
        return Err(permanent("the message has neither text nor files".to_owned()));
    }
    for part in parts {
        if let TelegramPart::File { file, .. } = part {
            let OpenAttachment { size, .. } = request.files.open(file).await?;
            if size > MAX_FILE_BYTES {
                let name = file_name(file);
                return Err(permanent(format!(
                    "attachment {name:?} has {size} bytes; Telegram accepts up to 50 MB of a bot"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the chat of a target: its id, or the name of a public chat.
fn address(kind: EndpointKind, address: &str) -> Result<ChatAddress, Failure> {
    if let Ok(id) = address.parse() {
        return Ok(ChatAddress::Id(id));
    }
    let is_name = |name: &str| {
        (4..=32).contains(&name.len())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match address.strip_prefix('@').filter(|name| is_name(name)) {
        Some(_) if kind != EndpointKind::User => Ok(ChatAddress::Name(address.to_owned())),
        Some(_) => Err(permanent(
            "Telegram knows people by numbers: use the id of the person, not the name".to_owned(),
        )),
        None => Err(permanent(
            "not a chat of Telegram; expected a number such as -1001234567890, or the @name of a \
             public group or channel"
                .to_owned(),
        )),
    }
}

/// Tells whether a file can be sent as a photo. Telegram makes GIFs and SVGs into something else.
fn is_photo(file: &AttachmentRef) -> bool {
    matches!(file.mime_type.as_str(), "image/jpeg" | "image/png" | "image/webp")
}

/// Telegram needs a name.
fn file_name(file: &AttachmentRef) -> &str {
    if file.name.trim().is_empty() { "file" } else { &file.name }
}

fn permanent(detail: String) -> Failure {
    Failure::Permanent { detail, error_code: None }
}

#[cfg(test)]
mod tests;
