//! One attempt to deliver a message, part by part.
//!
//! Lark sends at most one message for each `uuid` within one hour. The uuid of a part is derived
//! from the delivery, so a part whose outcome is unknown is sent again with the same uuid: Lark
//! answers with the message that it has, or sends it now. When the hour is over, nothing is known
//! and the delivery becomes UNCERTAIN. Custom robots have no uuid.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use monoco_core::config::SecretSource;
use monoco_core::delivery::{DeliveryOutcome, SentPart};
use monoco_core::did::EndpointKind;
use monoco_core::retry::Failure;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use super::client::LarkRequest;
use super::config::LarkRobot;
use super::crypto;
use super::failure::LarkFault;
use super::files;
use super::outbound::{self, LarkMessageContent, LarkPart, LarkSenderKind};
use super::tenant::LarkTenant;
use super::wire::{is_message_id, text};
use crate::DeliveryRequest;
use crate::secret_command::get_secret;

/// How long a uuid is relied on. Lark remembers it for one hour; clocks and requests take time.
const UUID_TIME: Duration = Duration::from_secs(55 * 60);

/// Most parts that are remembered until their outcome is known.
const MAX_REMEMBERED: usize = 1000;

/// Sends the messages of one tunnel.
#[derive(Debug, Default)]
pub(super) struct LarkSender {
    robot: Option<LarkRobot>,
    /// The parts that may have been sent. After a restart they are not known.
    attempted: Mutex<VecDeque<AttemptedPart>>,
}

/// A part that may have been sent.
#[derive(Debug)]
struct AttemptedPart {
    uuid: String,
    /// When its uuid was used first.
    since: Instant,
    /// The key of its file, when it was uploaded.
    file_key: Option<String>,
}

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LarkPlace<'a> {
    id_type: &'static str,
    id: &'a str,
    /// The message that is answered, and whether the answer belongs to its topic.
    reply: Option<(&'a str, bool)>,
}

impl LarkSender {
    pub fn new(robot: Option<LarkRobot>) -> Self {
        Self { robot, attempted: Mutex::default() }
    }

    /// Makes one attempt to send the parts that were not sent before.
    pub async fn deliver(
        &self,
        tenant: &LarkTenant,
        request: &DeliveryRequest<'_>,
    ) -> DeliveryOutcome {
        let sender = sender_kind(request);
        let parts = outbound::parts(request.message, sender);
        if let Err(failure) = self.check(tenant, request, &parts) {
            return DeliveryOutcome::Failed(failure);
        }
        let mut last = request.sent_parts.last().and_then(|part| part.external_msg_id.clone());
        for (number, part) in (0..).zip(&parts).skip(next_part(request)) {
            last = match self.send_part(tenant, request, number, part).await {
                Ok(id) => id,
                Err(fault) => return fault.into_outcome(),
            };
            if usize::try_from(number).is_ok_and(|number| number + 1 == parts.len()) {
                break;
            }
            let sent = SentPart { part: number, external_msg_id: last.clone() };
            if let Err(failure) = request.progress.part_sent(sent).await {
                return DeliveryOutcome::Failed(failure);
            }
        }
        DeliveryOutcome::Accepted { external_msg_id: last }
    }

    /// Repeats the part whose outcome is unknown, while its uuid is valid. `None` afterwards, and
    /// for custom robots.
    pub async fn find_sent(
        &self,
        tenant: &LarkTenant,
        request: &DeliveryRequest<'_>,
    ) -> Result<Option<SentPart>, Failure> {
        let sender = sender_kind(request);
        let parts = outbound::parts(request.message, sender);
        let next = next_part(request);
        let (Some(part), Ok(number)) = (parts.get(next), u32::try_from(next)) else {
            return Ok(None);
        };
        let used_for =
            self.used_for(&uuid(request, number, "")).unwrap_or(request.first_attempt_ago);
        if sender == LarkSenderKind::CustomRobot || used_for > UUID_TIME {
            return Ok(None);
        }
        match self.send_part(tenant, request, number, part).await {
            Ok(external_msg_id) => Ok(Some(SentPart { part: number, external_msg_id })),
            Err(fault) => Err(match fault.into_failure() {
                // The uuid still protects the next attempt.
                Failure::Unknown { detail, error_code } => {
                    Failure::Temporary { detail, retry_after_ms: None, error_code }
                }
                failure => failure,
            }),
        }
    }

    /// Checks that every part can be sent, before the first one is.
    fn check(
        &self,
        tenant: &LarkTenant,
        request: &DeliveryRequest<'_>,
        parts: &[LarkPart<'_>],
    ) -> Result<(), Failure> {
        if parts.is_empty() {
            return Err(permanent("the message has neither a text nor a card nor an attachment"));
        }
        if request.kind != EndpointKind::Channel {
            return tenant.client.app().map(drop);
        }
        if self.robot.is_none() {
            let detail = "a channel is a custom robot, and this tunnel has none; set robot_url";
            return Err(permanent(detail));
        }
        match parts.iter().any(|part| matches!(part, LarkPart::File(_))) {
            true => Err(permanent(
                "a custom robot cannot send files; send the message to a user or group of the app",
            )),
            false => Ok(()),
        }
    }

    /// Sends one part and returns Lark's id of it. A format that is rejected is sent as plain text,
    /// which says so.
    async fn send_part(
        &self,
        tenant: &LarkTenant,
        request: &DeliveryRequest<'_>,
        number: u32,
        part: &LarkPart<'_>,
    ) -> Result<Option<String>, LarkFault> {
        let rejected = match self.send_as_is(tenant, request, number, part, "").await {
            Err(LarkFault::Format(failure)) => failure,
            result => return result,
        };
        let Some(plain) = part.without_format() else { return Err(LarkFault::Format(rejected)) };
        tracing::warn!(
            delivery = %request.key,
            part = number,
            error = rejected.detail(),
            "Lark rejected the format; the text is sent without it"
        );
        self.send_as_is(tenant, request, number, &plain, "plain").await
    }

    async fn send_as_is(
        &self,
        tenant: &LarkTenant,
        request: &DeliveryRequest<'_>,
        number: u32,
        part: &LarkPart<'_>,
        variant: &str,
    ) -> Result<Option<String>, LarkFault> {
        if sender_kind(request) == LarkSenderKind::CustomRobot {
            return self.post_robot(tenant, request, part).await.map(|()| None);
        }
        let place = place(request, number);
        let content = match part {
            LarkPart::File(file) => {
                let uuid = uuid(request, number, variant);
                let key = match self.file_key(&uuid) {
                    Some(key) => key,
                    None => files::upload(tenant, request.files, file).await?,
                };
                self.remember(&uuid, Some(&key));
                LarkMessageContent::file(file, &key)
            }
            text => text.content().ok_or_else(no_file)?,
        };
        match self.post(tenant, request, number, &place, &content, variant).await {
            // The answer is sent without the message that it answers.
            Err(LarkFault::Gone(_)) if place.reply.is_some() => {
                let place = LarkPlace { reply: None, ..place };
                let variant = format!("{variant}gone");
                self.post(tenant, request, number, &place, &content, &variant).await
            }
            result => result,
        }
    }

    /// Sends a content to a place, with the uuid of the part.
    async fn post(
        &self,
        tenant: &LarkTenant,
        request: &DeliveryRequest<'_>,
        number: u32,
        place: &LarkPlace<'_>,
        content: &LarkMessageContent,
        variant: &str,
    ) -> Result<Option<String>, LarkFault> {
        let uuid = uuid(request, number, variant);
        self.remember(&uuid, None);
        let mut body = json!({"msg_type": content.kind, "content": content.content, "uuid": uuid});
        let (path, query) = match place.reply {
            Some((message, in_thread)) => {
                body["reply_in_thread"] = json!(in_thread);
                (format!("im/v1/messages/{message}/reply"), Vec::new())
            }
            None => {
                body["receive_id"] = json!(place.id);
                ("im/v1/messages".to_owned(), vec![("receive_id_type", place.id_type)])
            }
        };
        let answer = tenant.client.call(LarkRequest::send(&path, &query, &body)).await?;
        Ok(text(answer.data(), "message_id").map(str::to_owned))
    }

    async fn post_robot(
        &self,
        tenant: &LarkTenant,
        request: &DeliveryRequest<'_>,
        part: &LarkPart<'_>,
    ) -> Result<(), LarkFault> {
        let Some(LarkRobot { url, secret }) = &self.robot else { return Err(no_file()) };
        let get = async |source: &SecretSource| get_secret(source).await.map_err(LarkFault::Failed);
        let mut body = part.robot_body().ok_or_else(no_file)?;
        if let Some(secret) = secret {
            let (secret, now) = (get(secret).await?, request.now.ms().div_euclid(1000));
            body["timestamp"] = json!(now.to_string());
            body["sign"] = json!(crypto::robot_signature(secret.expose(), now));
        }
        tenant.client.post_robot(&get(url).await?, &body).await.map(drop)
    }

    /// Remembers that a uuid was used, and the key of an uploaded file.
    fn remember(&self, uuid: &str, file_key: Option<&str>) {
        let mut parts = self.attempted();
        let file_key = file_key.map(str::to_owned);
        if let Some(part) = parts.iter_mut().find(|part| part.uuid == uuid) {
            part.file_key = file_key.or(part.file_key.take());
            return;
        }
        if parts.len() >= MAX_REMEMBERED {
            parts.pop_front();
        }
        parts.push_back(AttemptedPart { uuid: uuid.to_owned(), since: Instant::now(), file_key });
    }

    /// Returns for how long a uuid has been used; `None` when that is not known.
    fn used_for(&self, uuid: &str) -> Option<Duration> {
        self.attempted().iter().find(|part| part.uuid == uuid).map(|part| part.since.elapsed())
    }

    fn file_key(&self, uuid: &str) -> Option<String> {
        self.attempted().iter().find(|part| part.uuid == uuid)?.file_key.clone()
    }

    fn attempted(&self) -> MutexGuard<'_, VecDeque<AttemptedPart>> {
        self.attempted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Targets of kind `channel` are the custom robot.
fn sender_kind(request: &DeliveryRequest<'_>) -> LarkSenderKind {
    match request.kind {
        EndpointKind::Channel => LarkSenderKind::CustomRobot,
        _ => LarkSenderKind::App,
    }
}

/// Returns the number of the first part that was not sent.
fn next_part(request: &DeliveryRequest<'_>) -> usize {
    let last = request.sent_parts.iter().map(|part| part.part).max();
    last.map_or(0, |last| usize::try_from(last).unwrap_or(usize::MAX).saturating_add(1))
}

/// Returns the idempotency key of a part: the same for every attempt, another one when the content
/// is sent in another form.
fn uuid(request: &DeliveryRequest<'_>, number: u32, variant: &str) -> String {
    let text = format!("{}:{number}:{variant}", request.key);
    let hash: [u8; 32] = Sha256::digest(text).into();
    monoco_core::hex::encode(&hash[..16])
}

/// Returns where a part goes. In groups the first part answers the message; in a topic all parts
/// belong to it. A direct chat needs no answer, unless it has a topic.
fn place<'a>(request: &DeliveryRequest<'a>, number: u32) -> LarkPlace<'a> {
    let message = request.message;
    let topic = message.topic.as_deref().filter(|topic| is_message_id(topic));
    let answered = message.reply_to.as_deref().filter(|id| is_message_id(id));
    let is_direct = request.kind == EndpointKind::User;
    let reply = match (topic, answered) {
        (Some(topic), answered) => Some((answered.unwrap_or(topic), true)),
        (None, Some(answered)) if number == 0 && !is_direct => Some((answered, false)),
        _ => None,
    };
    LarkPlace { id_type: id_type(request.address), id: request.address, reply }
}

/// Returns the type of an id by its beginning.
fn id_type(id: &str) -> &'static str {
    match id.split_once('_').map(|(kind, _)| kind) {
        Some("oc") => "chat_id",
        Some("ou") => "open_id",
        Some("on") => "union_id",
        _ if id.contains('@') => "email",
        _ => "user_id",
    }
}

fn no_file() -> LarkFault {
    LarkFault::Failed(permanent("a custom robot cannot send files"))
}

fn permanent(detail: &str) -> Failure {
    Failure::Permanent { detail: detail.to_owned(), error_code: None }
}
