//! Emulates Slack: Web API, Socket Mode, Events API and files.
//!
//! * `api.rs`: tokens, scopes, and the table of methods.
//! * `chat.rs`, `conversations.rs`, `files.rs`: the methods.
//! * `events.rs`: what people do, as events.

use std::collections::HashMap;
use std::sync::MutexGuard;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::call_rates::CallRates;
use crate::chaos::{ApiCall, CallFault, PushSigner};
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse};
use crate::locked::Locked;
use crate::provider::{EventFrame, FrameMeaning, PushRequest, SimProvider};
use crate::random::{random_hex, random_uuid};
use crate::scopes::BotScopes;
use crate::settings::SimSettings;
use crate::signature::slack_signature;
use crate::store::{SimChat, SimChatKind, SimUser};
use crate::world::World;

mod api;
mod chat;
mod conversations;
mod events;
mod files;

use files::{FileShare, OpenUpload};

/// Id of the only workspace.
const TEAM: &str = "T0SIM";

/// Scopes of every bot at the start.
const SCOPES: &[&str] = &[
    "app_mentions:read",
    "channels:history",
    "channels:read",
    "chat:write",
    "files:read",
    "files:write",
    "groups:history",
    "groups:read",
    "im:history",
    "im:read",
    "im:write",
    "mpim:history",
    "mpim:read",
    "mpim:write",
    "reactions:read",
    "reactions:write",
    "team:read",
    "users:read",
    "users:read.email",
];

pub struct SlackSim {
    state: Locked<SlackState>,
}

/// State that only Slack has.
struct SlackState {
    scopes: BotScopes,
    /// Error that every call with a token gets, for instance `token_expired`.
    token_error: Option<String>,
    uploads: HashMap<String, OpenUpload>,
    shares: HashMap<String, FileShare>,
    /// Messages by chat, for the rate limit.
    posts: CallRates,
}

/// User id of the bot of an app.
fn bot_user(app: usize) -> String {
    format!("U0BOT{app}")
}

fn bot_id(app: usize) -> String {
    format!("B0BOT{app}")
}

fn app_id(app: usize) -> String {
    format!("A0SIM{app}")
}

fn signing_secret(app: usize) -> String {
    format!("sim-signing-secret-{app}")
}

impl SlackSim {
    pub fn new(apps: usize) -> Self {
        debug_assert!(apps > 0, "an emulator has at least one app");
        let state = SlackState {
            scopes: BotScopes::new(SCOPES),
            token_error: None,
            uploads: HashMap::new(),
            shares: HashMap::new(),
            posts: CallRates::default(),
        };
        Self { state: Locked::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, SlackState> {
        self.state.lock()
    }
}

/// Signs a body as Slack does.
fn signed_push(body: String, signer: &PushSigner) -> PushRequest {
    let seconds = signer.at_ms / 1000;
    let secret = signer.secret(signing_secret);
    let signature = [
        ("x-slack-request-timestamp", seconds.to_string()),
        ("x-slack-signature", slack_signature(&secret, seconds, body.as_bytes())),
    ];
    let mut headers = signer.headers(("content-type", "application/json".to_owned()), signature);
    let agent = "Slackbot 1.0 (+https://api.slack.com/robots)";
    headers.push(("user-agent", agent.to_owned()));
    PushRequest { headers, body }
}

impl SimProvider for SlackSim {
    fn settings(&self) -> SimSettings {
        SimSettings {
            push_retries_ms: vec![0, 60_000, 300_000],
            echo: true,
            ..SimSettings::default()
        }
    }

    fn populate(&self, world: &mut World) {
        for (id, name) in [("U0ANN", "ann"), ("U0BOB", "bob"), ("U0CEM", "cem")] {
            world.store.add_user(SimUser { id: id.into(), name: name.into(), is_bot: false });
        }
        let bots: Vec<String> = (0..world.apps).map(bot_user).collect();
        for (app, id) in bots.iter().enumerate() {
            let name = format!("monoco{app}");
            world.store.add_user(SimUser { id: id.clone(), name, is_bot: true });
        }
        let people = ["U0ANN", "U0BOB", "U0CEM"];
        let all: Vec<&str> = people.into_iter().chain(bots.iter().map(String::as_str)).collect();
        let (group, private) = (SimChatKind::Group, SimChatKind::Private);
        world.store.add_chat(SimChat::new("C0GENERAL", "general", group, &all));
        world.store.add_chat(SimChat::new("C0OPS", "ops", group, &all));
        world.store.add_chat(SimChat::new("C0SECRET", "secret", private, &all));
        world.store.add_chat(SimChat::new("C0MPIM", "mpdm-ann--bob--monoco0-1", private, &all));
        // A chat without the bot, and one that is archived.
        world.store.add_chat(SimChat::new("C0RANDOM", "random", group, &people));
        let mut attic = SimChat::new("C0ATTIC", "attic", group, &all);
        attic.is_archived = true;
        world.store.add_chat(attic);
    }

    fn credentials(&self, app: usize) -> Value {
        json!({
            "app_token": format!("xapp-sim-{app}"),
            "bot_token": format!("xoxb-sim-{app}"),
            "signing_secret": signing_secret(app),
        })
    }

    fn urls(&self, base: &str) -> Value {
        json!({"base_url": format!("{base}/api/")})
    }

    fn call(&self, world: &World, request: &SimRequest) -> ApiCall {
        api::name_call(world, request)
    }

    fn api(&self, world: &mut World, call: &ApiCall, request: &SimRequest) -> SimResponse {
        api::execute(self, world, call, request)
    }

    fn throttled(&self, _: &ApiCall, fault: &CallFault) -> SimResponse {
        api::rate_limited(fault.retry_after)
    }

    fn server_error(&self, _: &ApiCall, fault: &CallFault) -> SimResponse {
        let page = "<html><body>Something went wrong</body></html>";
        SimResponse::text(fault.error_status(), "text/html", page)
    }

    fn open_socket(&self, world: &mut World, request: &SimRequest) -> Result<usize, SimResponse> {
        let ticket = request.query_value("ticket").filter(|_| request.path == "/link/");
        let app = ticket.and_then(|ticket| world.use_ticket(&ticket));
        app.ok_or_else(|| {
            SimResponse::text(StatusCode::FORBIDDEN, "text/plain", "invalid ticket\n")
        })
    }

    fn first_frame(&self, world: &World, app: usize) -> Option<Message> {
        let hello = json!({
            "type": "hello",
            "num_connections": world.connections.count(app),
            "debug_info": {
                "host": "applink-sim", "build_number": 1, "approximate_connection_time": 18060,
            },
            "connection_info": {"app_id": app_id(app)},
        });
        Some(Message::text(hello.to_string()))
    }

    fn disconnect_frame(&self, reason: Option<&str>) -> Option<Message> {
        let reason = reason.unwrap_or("refresh_requested");
        let info = json!({"host": "applink-sim"});
        let frame = json!({"type": "disconnect", "reason": reason, "debug_info": info});
        Some(Message::text(frame.to_string()))
    }

    fn event_frame(&self, event: &SimEvent, _: u64) -> EventFrame {
        let ack_id = random_uuid();
        let (attempt, reason, payload) = (event.attempt, event.reason, &event.payload);
        let text = format!(
            r#"{{"envelope_id":"{ack_id}","type":"events_api","accepts_response_payload":false,"retry_attempt":{attempt},"retry_reason":"{reason}","payload":{payload}}}"#
        );
        EventFrame { ack_id, frames: vec![Message::text(text)] }
    }

    fn read_frame(&self, frame: &Message) -> FrameMeaning {
        let text = frame.to_text().unwrap_or_default();
        let frame: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        match frame["envelope_id"].as_str() {
            Some(id) => FrameMeaning::Ack(id.to_owned()),
            None => FrameMeaning::Other,
        }
    }

    fn push(&self, event: &SimEvent, signer: &PushSigner) -> PushRequest {
        let mut push = signed_push(event.payload.to_string(), signer);
        if event.attempt > 0 {
            push.headers.push(("x-slack-retry-num", event.attempt.to_string()));
            push.headers.push(("x-slack-retry-reason", event.reason.to_owned()));
        }
        push
    }

    fn push_challenge(&self, app: usize) -> Option<(PushRequest, String)> {
        let challenge = random_hex();
        let body = json!({
            "token": "sim-verification-token", "challenge": challenge, "type": "url_verification",
        });
        Some((signed_push(body.to_string(), &PushSigner::honest(app)), challenge))
    }

    fn say(&self, world: &mut World, request: &SayRequest) -> Result<Value, ControlError> {
        events::say(world, request)
    }

    fn edit(&self, world: &mut World, request: &EditRequest) -> Result<Value, ControlError> {
        events::edit(world, request)
    }

    fn recall(&self, world: &mut World, request: &RecallRequest) -> Result<Value, ControlError> {
        events::recall(world, request)
    }

    fn react(&self, world: &mut World, request: &ReactRequest) -> Result<Value, ControlError> {
        events::react(world, request)
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
        self.state().token_error = Some("token_expired".to_owned());
    }

    fn control(
        &self,
        world: &mut World,
        name: &str,
        body: &Value,
    ) -> Option<Result<Value, ControlError>> {
        let mut state = self.state();
        match name {
            "scopes" => Some(state.scopes.change(body)),
            "token" => {
                state.token_error = body["error"].as_str().map(str::to_owned);
                Some(Ok(json!({"error": state.token_error})))
            }
            "archive" => Some(events::archive(world, body)),
            _ => None,
        }
    }

    fn state(&self) -> Value {
        let state = self.state();
        json!({"scopes": state.scopes.names(), "token_error": state.token_error})
    }
}
