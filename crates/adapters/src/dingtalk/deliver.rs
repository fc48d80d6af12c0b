//! One attempt to deliver a message: part by part, by the best way that is open for each.
//!
//! A chat is answered by its session webhook while that is valid, and by the robot's API
//! otherwise. Files always go through the API. Targets of kind `channel` are the custom robot.

use monoco_core::delivery::{DeliveryOutcome, SentPart};
use monoco_core::did::EndpointKind;
use monoco_core::retry::Failure;
use serde_json::Value;

use super::DingTalkAdapter;
use super::config::CustomRobot;
use super::failure::{ApiFault, undelivered};
use super::outbound::{self, ApiContent, MessagePart, SenderKind};
use crate::DeliveryRequest;

/// The start of the ids of people outside of the organisation.
const OUTSIDE_PREFIX: &str = "$:";

/// The way to a target.
#[derive(Clone, Copy, Debug)]
enum Route<'a> {
    User(&'a str),
    Group(&'a str),
    Robot(&'a CustomRobot),
}

impl DingTalkAdapter {
    /// Sends the parts that earlier attempts have not sent.
    pub(super) async fn deliver_parts(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        let route = match self.route(request) {
            Ok(route) => route,
            Err(failure) => return DeliveryOutcome::Failed(failure),
        };
        let sender = match route {
            Route::Robot(_) => SenderKind::CustomRobot,
            Route::User(_) | Route::Group(_) => SenderKind::App,
        };
        let parts = outbound::parts(request.message, sender);
        if let Err(failure) = check_parts(&parts, sender) {
            return DeliveryOutcome::Failed(failure);
        }
        let sent = request.sent_parts.iter().map(|sent| sent.part.saturating_add(1)).max();
        let sent = usize::try_from(sent.unwrap_or(0)).unwrap_or(usize::MAX);
        let mut last = None;
        for (number, part) in parts.iter().enumerate().skip(sent) {
            last = match self.send_part(request, route, part).await {
                Ok(id) => id,
                Err(fault) => return fault.into_outcome(),
            };
            if number + 1 == parts.len() {
                break;
            }
            let part = u32::try_from(number).unwrap_or(u32::MAX);
            let receipt = SentPart { part, external_msg_id: last.clone() };
            if let Err(failure) = request.progress.part_sent(receipt).await {
                return DeliveryOutcome::Failed(failure);
            }
        }
        DeliveryOutcome::Accepted { external_msg_id: last }
    }

    fn route<'a>(&'a self, request: &DeliveryRequest<'a>) -> Result<Route<'a>, Failure> {
        match request.kind {
            EndpointKind::User => self.api.app().map(|_| Route::User(request.address)),
            EndpointKind::Group => self.api.app().map(|_| Route::Group(request.address)),
            EndpointKind::Channel => {
                self.config.robot.as_ref().map(Route::Robot).ok_or_else(|| {
                    permanent(
                        "a channel is a custom robot, and this tunnel has none; set robot_token",
                    )
                })
            }
            EndpointKind::Addr => Err(permanent(
                "DingTalk has users, groups and custom robots (channel), but no addresses",
            )),
        }
    }

    /// Sends one part and returns DingTalk's id of it. A format that is rejected is sent as plain
    /// text, which says so.
    async fn send_part(
        &self,
        request: &DeliveryRequest<'_>,
        route: Route<'_>,
        part: &MessagePart<'_>,
    ) -> Result<Option<String>, ApiFault> {
        let rejected = match self.send_as_is(request, route, part).await {
            Err(ApiFault::Format(failure)) => failure,
            result => return result,
        };
        match part.without_format() {
            Some(plain) => self.send_as_is(request, route, &plain).await,
            None => Err(ApiFault::Failed(rejected)),
        }
    }

    async fn send_as_is(
        &self,
        request: &DeliveryRequest<'_>,
        route: Route<'_>,
        part: &MessagePart<'_>,
    ) -> Result<Option<String>, ApiFault> {
        if let Route::Robot(robot) = route {
            let body = part.webhook_body().ok_or_else(robot_file)?;
            return self.api.post_robot(robot, &body, request.now).await.map(|()| None);
        }
        if let Some(body) = part.webhook_body()
            && let Some(result) = self.answer_session(request, &body).await
        {
            return result.map(|()| None);
        }
        let content = match part {
            MessagePart::File(file) => {
                check_user(route)?;
                let media_id = self.api.upload(request.files, file).await?;
                ApiContent::file(file, &media_id)
            }
            text => text.api_content().ok_or_else(robot_file)?,
        };
        self.send_by_api(route, &content).await
    }

    /// Answers through the session webhook of the chat. Returns `None` when there is none, or
    /// when DingTalk rejects it: then the message was not sent.
    async fn answer_session(
        &self,
        request: &DeliveryRequest<'_>,
        body: &Value,
    ) -> Option<Result<(), ApiFault>> {
        let DeliveryRequest { kind, address, now, .. } = *request;
        let webhook = self.webhooks.get(kind, address, now)?;
        match self.api.post_session(webhook.url(), body).await {
            Err(fault) if fault.is_rejection() => {
                self.webhooks.remove(kind, address);
                None
            }
            result => Some(result),
        }
    }

    async fn send_by_api(
        &self,
        route: Route<'_>,
        content: &ApiContent,
    ) -> Result<Option<String>, ApiFault> {
        check_user(route)?;
        let robot_code = &self.api.app().map_err(ApiFault::Failed)?.robot_code;
        let answer = match route {
            Route::User(user) => {
                let body = content.for_user(robot_code, user);
                let answer = self.api.send("v1.0/robot/oToMessages/batchSend", &body).await?;
                if let Some(fault) = undelivered(&answer, user) {
                    return Err(fault);
                }
                answer
            }
            Route::Group(group) => {
                let body = content.for_group(robot_code, group);
                self.api.send("v1.0/robot/groupMessages/send", &body).await?
            }
            Route::Robot(_) => return Err(robot_file()),
        };
        Ok(answer.process_query_key.filter(|key| !key.is_empty()))
    }
}

/// The API reaches members of the organisation only.
fn check_user(route: Route<'_>) -> Result<(), ApiFault> {
    match route {
        Route::User(user) if user.starts_with(OUTSIDE_PREFIX) => Err(ApiFault::Failed(permanent(
            "this person is not in the organisation, so only a message of theirs can be answered, \
             for about 90 minutes and without files",
        ))),
        _ => Ok(()),
    }
}

/// Checks that every part can be sent, before the first one is.
fn check_parts(parts: &[MessagePart<'_>], sender: SenderKind) -> Result<(), Failure> {
    if parts.is_empty() {
        return Err(permanent("the message has neither a text nor an attachment"));
    }
    let has_file = parts.iter().any(|part| matches!(part, MessagePart::File(_)));
    if has_file && sender == SenderKind::CustomRobot {
        return Err(permanent(
            "a custom robot cannot send files; send the message to a user or group of the app",
        ));
    }
    Ok(())
}

fn robot_file() -> ApiFault {
    ApiFault::Failed(permanent("a custom robot cannot send files"))
}

fn permanent(detail: &str) -> Failure {
    Failure::Permanent { detail: detail.to_owned(), error_code: None }
}
