//! Emulates DingTalk: stream gateway, robot API, session webhooks and custom robots.
//!
//! * `api.rs`: the new API (`/v1.0/…`), where the HTTP status carries a failure.
//! * `oapi.rs`: the old API, which answers 200 with an `errcode`.
//! * `events.rs`: what people do, as frames.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::chaos::{ApiCall, CallFault};
use crate::clock::now_ms;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse};
use crate::provider::{EventFrame, FrameMeaning, PushRequest, SimProvider};
use crate::random::random_hex;
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

/// Session webhooks, download codes and media ids that are kept.
const MAX_ENTRIES: usize = 50_000;

pub struct DingTalkSim {
    state: Mutex<DingTalkState>,
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

/// Newest entries by key; the oldest is dropped.
#[derive(Default)]
struct RecentMap<V> {
    entries: HashMap<String, V>,
    order: VecDeque<String>,
}

impl<V> RecentMap<V> {
    fn insert(&mut self, key: String, value: V) {
        self.order.push_back(key.clone());
        self.entries.insert(key, value);
        if self.order.len() > MAX_ENTRIES
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }

    fn get(&self, key: &str) -> Option<&V> {
        self.entries.get(key)
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.order.clear();
    }
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
    /// Times of the newest calls by app and method, in milliseconds.
    calls: HashMap<(usize, String), VecDeque<u64>>,
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
        Self { state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, DingTalkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call; returns whether there were `max` before it in the window.
    fn is_too_fast(&self, app: usize, method: &str, max: usize, window_ms: u64) -> bool {
        let now = now_ms();
        let mut state = self.state();
        let calls = state.calls.entry((app, method.to_owned())).or_default();
        while calls.front().is_some_and(|at| at + window_ms <= now) {
            calls.pop_front();
        }
        let is_full = calls.len() >= max;
        if !is_full {
            calls.push_back(now);
        }
        is_full
    }
}

impl SimProvider for DingTalkSim {
    fn settings(&self) -> SimSettings {
        SimSettings {
            ack_timeout_ms: 60_000,
            max_attempts: 10,
            resend_on_close: false,
            backlog: false,
            max_in_flight: 1000,
            max_events: 50_000,
            ping_interval_ms: 15_000,
            disconnect_grace_ms: 10_000,
            ticket_ttl_ms: 90_000,
            token_ttl_ms: 7_200_000,
            session_webhook_ttl_ms: 5_400_000,
            push_timeout_ms: 3000,
            push_retries_ms: Vec::new(),
            limits: true,
            throttle_ms: 600_000,
            echo: false,
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

    fn server_error(&self, _: &ApiCall, status: u16) -> SimResponse {
        if status == 200 {
            return oapi::failure(-1, "system busy");
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        api::failure(status, "ServiceUnavailable", "the service is temporarily unavailable")
    }

    fn open_socket(&self, world: &mut World, request: &SimRequest) -> Result<usize, SimResponse> {
        let ticket = request.query_value("ticket").filter(|_| request.path == "/connect");
        let app = ticket.and_then(|ticket| world.use_ticket(&ticket));
        app.ok_or_else(|| {
            SimResponse::text(StatusCode::UNAUTHORIZED, "text/plain", "invalid ticket\n")
        })
    }

    fn first_frame(&self, _: &World, _: usize) -> Option<String> {
        None
    }

    fn ping_frame(&self, _: u64) -> Option<String> {
        let data = json!({"opaque": random_hex()}).to_string();
        Some(system_frame("ping", &format!("ping_{}", random_hex()), &data))
    }

    fn disconnect_frame(&self, reason: Option<&str>) -> String {
        let reason = reason.unwrap_or("connection is expired");
        let data = json!({"reason": reason}).to_string();
        system_frame("disconnect", &format!("system_{}", random_hex()), &data)
    }

    fn event_frame(&self, event: &SimEvent, connection: u64) -> EventFrame {
        events::frame(event, connection)
    }

    fn read_frame(&self, text: &str) -> FrameMeaning {
        read_frame(text)
    }

    fn push(&self, event: &SimEvent, is_forged: bool) -> PushRequest {
        let timestamp = now_ms();
        let secret = if is_forged { "another secret".into() } else { app_secret(event.app) };
        let headers = vec![
            ("content-type", "application/json; charset=utf-8".to_owned()),
            ("timestamp", timestamp.to_string()),
            ("sign", dingtalk_sign(&secret, timestamp)),
        ];
        PushRequest { headers, body: event.payload.to_string() }
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
            "valid_tokens": valid, "sessions": state.sessions.entries.len(),
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

    #[test]
    fn recent_map_drops_its_oldest_entry() {
        let mut map = RecentMap::default();
        for number in 0..=MAX_ENTRIES {
            map.insert(number.to_string(), number);
        }
        assert_eq!(map.get("0"), None);
        assert_eq!(map.get("1"), Some(&1));
    }
}
