//! Emulates Lark: long connection, HTTP events, messages, files and custom robots.
//!
//! * `frame.rs`, `connection.rs`: the long connection and its protobuf frames.
//! * `crypto.rs`, `callback.rs`: HTTP events, encrypted and signed.
//! * `events.rs`, `content.rs`: what people do, as events.
//! * `api.rs`: tokens, scopes, and the table of methods.
//! * `messages.rs`, `history.rs`, `reactions.rs`, `directory.rs`, `files.rs`, `hook.rs`: the methods.

use std::sync::MutexGuard;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::call_rates::CallRates;
use crate::chaos::{ApiCall, CallFault, HandshakeFault, PushSigner};
use crate::clock::now_ms;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse};
use crate::locked::Locked;
use crate::provider::{EventFrame, FrameMeaning, PushRequest, SimProvider};
use crate::recent_map::RecentMap;
use crate::scopes::BotScopes;
use crate::settings::SimSettings;
use crate::store::{SimChat, SimChatKind, SimUser};
use crate::world::World;

mod api;
mod callback;
mod connection;
mod content;
mod crypto;
mod directory;
mod events;
mod files;
mod frame;
mod history;
mod hook;
mod messages;
mod reactions;
#[cfg(test)]
mod tests;

use callback::CallbackFormat;
use connection::{FrameSplit, SimClientConfig};

/// Key of the only tenant.
const TENANT: &str = "736588c92lxf175d";

/// Id of a group in which every message starts a topic.
const TOPIC_CHAT: &str = "oc_topics";

/// Scopes of every app at the start.
const SCOPES: &[&str] = &[
    "contact:contact.base:readonly",
    "contact:user.base:readonly",
    "im:chat",
    "im:chat:readonly",
    "im:message",
    "im:message.group_at_msg:readonly",
    "im:message.group_msg",
    "im:message.p2p_msg:readonly",
    "im:message.reactions:write_only",
    "im:message:readonly",
    "im:message:send_as_bot",
    "im:resource",
];

pub struct LarkSim {
    state: Locked<LarkState>,
}

/// A tenant access token.
struct TenantToken {
    app: usize,
    text: String,
    expires_ms: u64,
}

/// A message that was sent with an idempotency key.
struct UuidSend {
    message_id: String,
    at_ms: u64,
}

/// State that only Lark has.
struct LarkState {
    /// Valid tokens, at most two per app.
    tokens: Vec<TenantToken>,
    scopes: BotScopes,
    /// Sends by app and `uuid`.
    uuids: RecentMap<UuidSend>,
    /// How long a `uuid` is remembered.
    uuid_ttl_ms: u64,
    /// Reactions by message id.
    reactions: RecentMap<Vec<Value>>,
    /// Messages inside of forwarded ones, by the id of the outer message.
    forwarded: RecentMap<Vec<Value>>,
    config: SimClientConfig,
    split: FrameSplit,
    format: CallbackFormat,
    /// Calls by app, and messages by chat.
    calls: CallRates,
    /// Number of the newest log id.
    last_log_id: u64,
}

/// Id of an app. Lark's SDK for Node.js demands 16 hexadecimal digits.
fn app_id(app: usize) -> String {
    format!("cli_51a0{app:012x}")
}

fn app_secret(app: usize) -> String {
    format!("sim-app-secret-{app}")
}

fn encrypt_key(app: usize) -> String {
    format!("sim-encrypt-key-{app}")
}

fn verification_token(app: usize) -> String {
    format!("sim-verification-token-{app}")
}

/// Open id of the bot of an app.
fn bot_user(app: usize) -> String {
    format!("ou_bot{app}")
}

impl LarkSim {
    pub fn new(apps: usize) -> Self {
        debug_assert!(apps > 0, "an emulator has at least one app");
        Self {
            state: Locked::new(LarkState {
                tokens: Vec::new(),
                scopes: BotScopes::new(SCOPES),
                uuids: RecentMap::default(),
                uuid_ttl_ms: 3_600_000,
                reactions: RecentMap::default(),
                forwarded: RecentMap::default(),
                config: SimClientConfig::default(),
                split: FrameSplit::default(),
                format: CallbackFormat::default(),
                calls: CallRates::default(),
                last_log_id: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, LarkState> {
        self.state.lock()
    }
}

impl SimProvider for LarkSim {
    fn settings(&self) -> SimSettings {
        SimSettings {
            // The bot pings; Lark's SDKs ignore pings of the server.
            ping_interval_ms: 0,
            ticket_ttl_ms: 60_000,
            push_retries_ms: vec![15_000, 300_000, 3_600_000, 21_600_000],
            ..SimSettings::default()
        }
    }

    fn populate(&self, world: &mut World) {
        let people = ["ou_ann", "ou_bob", "ou_cem"];
        for id in people {
            let name = id.trim_start_matches("ou_").to_owned();
            world.store.add_user(SimUser { id: id.to_owned(), name, is_bot: false });
        }
        let bots: Vec<String> = (0..world.apps).map(bot_user).collect();
        for (app, id) in bots.iter().enumerate() {
            let name = format!("monoco{app}");
            world.store.add_user(SimUser { id: id.clone(), name, is_bot: true });
        }
        let all: Vec<&str> = people.into_iter().chain(bots.iter().map(String::as_str)).collect();
        for (id, name, members) in [
            ("oc_general", "general", &all[..]),
            ("oc_ops", "ops", &all),
            (TOPIC_CHAT, "topics", &all),
            // A chat without the bot.
            ("oc_random", "random", &people),
        ] {
            world.store.add_chat(SimChat::new(id, name, SimChatKind::Group, members));
        }
    }

    fn credentials(&self, app: usize) -> Value {
        json!({
            "app_id": app_id(app),
            "app_secret": app_secret(app),
            "verification_token": verification_token(app),
            "encrypt_key": encrypt_key(app),
            "robot_token": hook::robot_token(app),
            "robot_secret": hook::robot_secret(app),
        })
    }

    fn urls(&self, base: &str) -> Value {
        json!({"base_url": base})
    }

    fn call(&self, world: &World, request: &SimRequest) -> ApiCall {
        api::name_call(self, world, request)
    }

    fn api(&self, world: &mut World, call: &ApiCall, request: &SimRequest) -> SimResponse {
        api::execute(self, world, call, request)
    }

    fn throttled(&self, call: &ApiCall, fault: &CallFault) -> SimResponse {
        api::throttled(call, fault)
    }

    fn server_error(&self, _: &ApiCall, fault: &CallFault) -> SimResponse {
        let status = fault.error_status();
        match fault.code {
            Some(code) => api::failure(status, code, "error by chaos"),
            None => {
                let page = format!("<html><body><h1>{status}</h1></body></html>");
                SimResponse::text(status, "text/html", &page)
            }
        }
    }

    fn rejected_handshake(&self, fault: &HandshakeFault) -> SimResponse {
        connection::rejection(fault.status.unwrap_or(503), fault.code, "rejected by chaos")
    }

    fn open_socket(&self, world: &mut World, request: &SimRequest) -> Result<usize, SimResponse> {
        connection::open_socket(world, request)
    }

    fn ping_frame(&self) -> Message {
        connection::control_frame("ping", None)
    }

    fn disconnect_frame(&self, _: Option<&str>) -> Option<Message> {
        None
    }

    fn event_frame(&self, event: &SimEvent, _: u64) -> EventFrame {
        connection::event_frame(&mut self.state(), event)
    }

    fn read_frame(&self, frame: &Message) -> FrameMeaning {
        connection::read_frame(&self.state().config, frame)
    }

    fn push(&self, event: &SimEvent, signer: &PushSigner) -> PushRequest {
        callback::push(self.state().format, event, signer)
    }

    fn push_challenge(&self, app: usize) -> Option<(PushRequest, String)> {
        Some(callback::challenge(self.state().format, app))
    }

    fn say(&self, world: &mut World, request: &SayRequest) -> Result<Value, ControlError> {
        events::say(self, world, request)
    }

    fn edit(&self, world: &mut World, request: &EditRequest) -> Result<Value, ControlError> {
        events::edit(world, request)
    }

    fn recall(&self, world: &mut World, request: &RecallRequest) -> Result<Value, ControlError> {
        events::recall(world, request)
    }

    fn react(&self, world: &mut World, request: &ReactRequest) -> Result<Value, ControlError> {
        events::react(self, world, request)
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
        self.state().tokens.clear();
    }

    fn control(
        &self,
        world: &mut World,
        name: &str,
        body: &Value,
    ) -> Option<Result<Value, ControlError>> {
        Some(match name {
            "scopes" => self.state().scopes.change(body),
            "client_config" => change(&mut self.state().config, body),
            "split" => change(&mut self.state().split, body),
            "callback_format" => change(&mut self.state().format, body),
            "uuid_ttl" => change(&mut self.state().uuid_ttl_ms, &body["ms"]),
            "frame" => connection::send_bad_frames(world, body),
            "read" => events::read(world, body),
            "repeat" => events::repeat(world, body),
            _ => return None,
        })
    }

    fn state(&self) -> Value {
        let state = self.state();
        let now = now_ms();
        json!({
            "valid_tokens": state.tokens.iter().filter(|token| token.expires_ms > now).count(),
            "scopes": state.scopes.names(),
            "client_config": state.config,
            "split": state.split,
            "callback_format": state.format,
            "uuid_ttl_ms": state.uuid_ttl_ms,
        })
    }
}

/// Replaces a part of the state by the value of a control request.
fn change<T>(part: &mut T, body: &Value) -> Result<Value, ControlError>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    *part = T::deserialize(body)
        .map_err(|error| ControlError(format!("cannot read the body: {error}; see docs/sim.md")))?;
    Ok(json!(part))
}

/// The status of a rejected call whose code is in the body.
const REJECTED: StatusCode = StatusCode::BAD_REQUEST;
