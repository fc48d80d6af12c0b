//! Emulates DingTalk: stream gateway, robot API, session webhooks and custom robots.
//!
//! * `api.rs`: the new API (`/v1.0/…`), where the HTTP status carries a failure.
//! * `oapi.rs`: the old API, which answers 200 with an `errcode`.
//! * `events.rs`: what people do, as frames.

use std::collections::HashMap;
use std::sync::MutexGuard;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::call_rates::CallRates;
use crate::chaos::{ApiCall, CallFault, PushSigner};
use crate::clock::now_ms;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse};
use crate::locked::Locked;
use crate::provider::{EventFrame, FrameMeaning, PushRequest, SimProvider};
use crate::random::random_hex;
use crate::recent_map::RecentMap;
use crate::settings::SimSettings;
use crate::signature::dingtalk_sign;
use crate::store::{SimChat, SimChatKind, SimUser};
use crate::world::World;

mod api;
mod events;
mod oapi;

/// Id of the only organisation.
const CORP: &str = "dingsimcorp";

/// Topic of messages to a robot.
const ROBOT_TOPIC: &str = "/v1.0/im/bot/messages/get";

pub struct DingTalkSim {
    state: Locked<DingTalkState>,
}

/// An access token; requesting it again returns the same one.
#[derive(Clone)]
struct AccessToken {
    text: String,
    expires_ms: u64,
    is_revoked: bool,
}

/// A URL that answers one message.
#[derive(Clone, Default)]
struct ReplySession {
    app: usize,
    chat: String,
    expires_ms: u64,
}

/// State that only DingTalk has.
#[derive(Default)]
struct DingTalkState {
    /// Current token by app.
    tokens: HashMap<usize, AccessToken>,
    /// Tokens that were replaced, so that they can be told from unknown ones.
    old_tokens: RecentMap<()>,
    sessions: RecentMap<ReplySession>,
    /// File ids by download code.
    codes: RecentMap<String>,
    /// File ids by the last part of the download URL.
    downloads: RecentMap<String>,
    /// File ids by media id.
    media: RecentMap<String>,
    /// Calls by app and method.
    calls: CallRates,
    /// Until when the custom robot of an app is rejected.
    throttled_until: HashMap<usize, u64>,
}

fn app_key(app: usize) -> String {
    format!("dingsim{app}")
}

fn app_secret(app: usize) -> String {
    format!("sim-app-secret-{app}")
}

fn robot_token(app: usize) -> String {
    format!("sim-robot-token-{app}")
}

fn robot_secret(app: usize) -> String {
    format!("SECsim{app}")
}

/// Id of the bot in conversations.
fn bot_user(app: usize) -> String {
    format!("$:LWCP_v1:$bot{app}")
}

impl DingTalkSim {
    pub fn new(apps: usize) -> Self {
        debug_assert!(apps > 0, "an emulator has at least one app");
        Self { state: Locked::default() }
    }

    fn state(&self) -> MutexGuard<'_, DingTalkState> {
        self.state.lock()
    }

    /// Counts a call; returns whether there were `max` before it in the window.
    fn is_too_fast(&self, app: usize, method: &str, max: usize, window_ms: u64) -> bool {
        let key = format!("{app}/{method}");
        self.state().calls.is_too_fast(&key, max, window_ms, now_ms())
    }
}

impl SimProvider for DingTalkSim {
    fn settings(&self) -> SimSettings {
        SimSettings {
            ack_timeout_ms: 60_000,
            resend_on_close: false,
            backlog: false,
            ping_interval_ms: 15_000,
            ticket_ttl_ms: 90_000,
            session_webhook_ttl_ms: 5_400_000,
            limits: true,
            throttle_ms: 600_000,
            ..SimSettings::default()
        }
    }

    fn populate(&self, world: &mut World) {
        for (id, name) in [("0001", "ann"), ("0002", "bob"), ("0003", "cem")] {
            world.store.add_user(SimUser { id: id.into(), name: name.into(), is_bot: false });
        }
        // A person of another organisation has no staff id.
        let guest = SimUser { id: "$:LWCP_v1:$guest".into(), name: "guest".into(), is_bot: false };
        world.store.add_user(guest);
        let people = ["0001", "0002", "0003"];
        let group = SimChatKind::Group;
        world.store.add_chat(SimChat::new("cidGENERAL==", "general", group, &people));
        world.store.add_chat(SimChat::new("cidOPS==", "ops", group, &people));
    }

    fn credentials(&self, app: usize) -> Value {
        json!({
            "app_key": app_key(app),
            "app_secret": app_secret(app),
            "robot_code": app_key(app),
            "robot_token": robot_token(app),
            "robot_secret": robot_secret(app),
        })
    }

    fn urls(&self, base: &str) -> Value {
        json!({"base_url": base, "oapi_url": base})
    }

    fn call(&self, world: &World, request: &SimRequest) -> ApiCall {
        api::name_call(self, world, request)
    }

    fn api(&self, world: &mut World, call: &ApiCall, request: &SimRequest) -> SimResponse {
        if request.path.starts_with("/v1.0/") {
            api::execute(self, world, call, request)
        } else {
            oapi::execute(self, world, call, request)
        }
    }

    fn throttled(&self, call: &ApiCall, fault: &CallFault) -> SimResponse {
        let response = match call.method.as_str() {
            "robot/send" | "robot/sendBySession" => {
                oapi::failure(130_101, "send too fast, exceed 20 times per minute")
            }
            "gettoken" | "media/upload" => oapi::failure(90_018, "qps limit for app and api"),
            _ => api::qps_limit(),
        };
        let mut response = match fault.retry_after {
            Some(seconds) => response.with_header("retry-after", seconds.to_string()),
            None => response,
        };
        if let Some(status) = fault.status.and_then(|status| StatusCode::from_u16(status).ok()) {
            response.status = status;
        }
        response
    }

    fn server_error(&self, _: &ApiCall, fault: &CallFault) -> SimResponse {
        let status = fault.error_status();
        if status == StatusCode::OK {
            return oapi::failure(-1, "system busy");
        }
        api::failure(status, "ServiceUnavailable", "the service is temporarily unavailable")
    }

    fn open_socket(&self, world: &mut World, request: &SimRequest) -> Result<usize, SimResponse> {
        let ticket = request.query_value("ticket").filter(|_| request.path == "/connect");
        let app = ticket.and_then(|ticket| world.use_ticket(&ticket));
        app.ok_or_else(|| {
            SimResponse::text(StatusCode::UNAUTHORIZED, "text/plain", "invalid ticket\n")
        })
    }

    fn ping_frame(&self) -> Message {
        let data = json!({"opaque": random_hex()}).to_string();
        Message::text(system_frame("ping", &format!("ping_{}", random_hex()), &data))
    }

    fn disconnect_frame(&self, reason: Option<&str>) -> Option<Message> {
        let reason = reason.unwrap_or("connection is expired");
        let data = json!({"reason": reason}).to_string();
        let id = format!("system_{}", random_hex());
        Some(Message::text(system_frame("disconnect", &id, &data)))
    }

    fn event_frame(&self, event: &SimEvent, connection: u64) -> EventFrame {
        events::frame(event, connection)
    }

    fn read_frame(&self, frame: &Message) -> FrameMeaning {
        read_frame(frame.to_text().unwrap_or_default())
    }

    fn push(&self, event: &SimEvent, signer: &PushSigner) -> PushRequest {
        let secret = signer.secret(app_secret);
        let signature = [
            ("timestamp", signer.at_ms.to_string()),
            ("sign", dingtalk_sign(&secret, signer.at_ms)),
        ];
        let kind = ("content-type", "application/json; charset=utf-8".to_owned());
        PushRequest { headers: signer.headers(kind, signature), body: event.payload.to_string() }
    }

    fn push_challenge(&self, _: usize) -> Option<(PushRequest, String)> {
        None
    }

    fn say(&self, world: &mut World, request: &SayRequest) -> Result<Value, ControlError> {
        events::say(self, world, request)
    }

    fn edit(&self, _: &mut World, _: &EditRequest) -> Result<Value, ControlError> {
        Err(ControlError::new("DingTalk tells robots nothing about edited messages"))
    }

    fn recall(&self, _: &mut World, _: &RecallRequest) -> Result<Value, ControlError> {
        Err(ControlError::new("DingTalk tells robots nothing about recalled messages"))
    }

    fn react(&self, _: &mut World, _: &ReactRequest) -> Result<Value, ControlError> {
        Err(ControlError::new("DingTalk tells robots nothing about reactions"))
    }

    fn member(
        &self,
        world: &mut World,
        request: &MemberRequest,
        joins: bool,
    ) -> Result<Value, ControlError> {
        events::member(world, request, joins)
    }

    fn expire_tokens(&self, _: &mut World) {
        for token in self.state().tokens.values_mut() {
            token.is_revoked = true;
        }
    }

    fn control(&self, _: &mut World, name: &str, _: &Value) -> Option<Result<Value, ControlError>> {
        let mut state = self.state();
        match name {
            "expire_sessions" => state.sessions.clear(),
            "expire_codes" => state.codes.clear(),
            "end_throttling" => state.throttled_until.clear(),
            _ => return None,
        }
        Some(Ok(json!({"ok": true})))
    }

    fn state(&self) -> Value {
        let state = self.state();
        let now = now_ms();
        let valid = state.tokens.values().filter(|t| t.expires_ms > now && !t.is_revoked).count();
        let throttled = state.throttled_until.values().filter(|until| **until > now).count();
        json!({
            "valid_tokens": valid, "sessions": state.sessions.len(),
            "throttled_robots": throttled,
        })
    }
}

fn system_frame(topic: &str, message_id: &str, data: &str) -> String {
    let headers = json!({
        "contentType": "application/json", "messageId": message_id, "time": now_ms().to_string(),
        "topic": topic,
    });
    json!({"specVersion": "1.0", "type": "SYSTEM", "headers": headers, "data": data}).to_string()
}

/// Interprets an answer: code 200 acknowledges, unless the data asks for a later attempt.
fn read_frame(text: &str) -> FrameMeaning {
    let frame: Value = serde_json::from_str(text).unwrap_or(Value::Null);
    let Some(id) = frame["headers"]["messageId"].as_str() else { return FrameMeaning::Other };
    if id.starts_with("ping_") {
        return FrameMeaning::Pong;
    }
    if id.starts_with("system_") {
        return FrameMeaning::Other;
    }
    let data = frame["data"].as_str().unwrap_or_default();
    let data: Value = serde_json::from_str(data).unwrap_or(Value::Null);
    if frame["code"] == 200 && data["status"] != "LATER" {
        FrameMeaning::Ack(id.to_owned())
    } else {
        FrameMeaning::Later(id.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_acknowledge_postpone_or_answer_a_ping() {
        let answer = |id: &str, code: u32, data: &str| {
            let headers = json!({"messageId": id, "contentType": "application/json"});
            let frame = json!({"code": code, "headers": headers, "message": "OK", "data": data});
            read_frame(&frame.to_string())
        };
        let ack = FrameMeaning::Ack("m1".to_owned());
        let later = FrameMeaning::Later("m1".to_owned());
        assert_eq!(answer("m1", 200, r#"{"response":null}"#), ack);
        assert_eq!(answer("m1", 200, r#"{"status":"SUCCESS"}"#), ack);
        assert_eq!(answer("m1", 200, r#"{"status":"LATER"}"#), later);
        assert_eq!(answer("m1", 500, ""), later);
        assert_eq!(answer("ping_1", 200, r#"{"opaque":"x"}"#), FrameMeaning::Pong);
        assert_eq!(answer("system_1", 200, ""), FrameMeaning::Other);
    }
}
