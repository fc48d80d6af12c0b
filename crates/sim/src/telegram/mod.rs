//! Emulates the Bot API of Telegram: long polling, webhooks, messages and files.
//!
//! * `api.rs`, `params.rs`: tokens, parameters, the table of methods, and the envelope of answers.
//! * `updates.rs`: `getUpdates`, offsets, conflicts of two pollers.
//! * `webhook.rs`: `setWebhook` and its relatives, callbacks, and answers that are method calls.
//! * `chats.rs`: users and chats, access rights, migration.
//! * `send.rs`, `edit.rs`, `files.rs`: methods that send, change and download.
//! * `events.rs`, `content.rs`: what people do, as updates.
//! * `format.rs`, `markup.rs`: entities, found in plain text or parsed from HTML and MarkdownV2.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::chaos::{ApiCall, CallFault, PushSigner};
use crate::clock::now_ms;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse};
use crate::provider::{
    EventFrame, FrameMeaning, PollFault, PollStep, PollTicket, PushRequest, SimProvider,
};
use crate::push::PushResult;
use crate::settings::SimSettings;
use crate::world::World;

mod api;
mod chats;
mod content;
mod edit;
mod events;
mod files;
mod format;
mod markup;
mod params;
mod send;
#[cfg(test)]
mod tests;
mod updates;
mod webhook;

use chats::SimChatFacts;
use updates::PollBook;
use webhook::SimWebhook;

/// Id of the bot of the first app; the others follow.
const FIRST_BOT: u64 = 7_000_000;

/// Start of the numbers of updates and messages: the seconds since 2023-07-22 that have passed when
/// the emulator starts. They are new after each start, because a bot knows those of an earlier one.
const FIRST_NUMBER_EPOCH: u64 = 1_690_000_000;

pub struct TelegramSim {
    state: Mutex<TelegramState>,
}

/// What only Telegram has.
#[derive(Default)]
struct TelegramState {
    /// One per app, in their order.
    bots: Vec<BotFacts>,
    chats: BTreeMap<String, SimChatFacts>,
    /// The last message id of private chats and basic groups, which share one sequence.
    last_message: u64,
    /// People who have blocked a bot, by app and user id.
    blocked: BTreeSet<(usize, String)>,
    /// Whether bots see only the messages of groups that are meant for them.
    has_privacy: bool,
    /// Where callbacks to `https` URLs go, as to a TLS proxy in front of the bot.
    proxy: Option<String>,
    /// Whether all tokens were revoked.
    is_revoked: bool,
    /// Times of the newest sends by app and chat, in milliseconds; the empty chat counts all.
    sends: HashMap<(usize, String), VecDeque<u64>>,
}

/// State of one bot.
struct BotFacts {
    polls: PollBook,
    webhook: Option<SimWebhook>,
    /// Kinds of updates that the bot has asked for; the default ones if absent.
    allowed: Option<BTreeSet<String>>,
    /// The update in place N of the queue has this id plus N.
    update_base: i64,
}

fn bot_id(app: usize) -> u64 {
    FIRST_BOT + app as u64
}

fn bot_name(app: usize) -> String {
    format!("monoco{app}_bot")
}

fn bot_token(app: usize) -> String {
    format!("{}:AAsim{app:030}", bot_id(app))
}

/// Secret token that forged callbacks carry.
const WRONG_SECRET: &str = "another-secret";

impl TelegramSim {
    pub fn new(apps: usize) -> Self {
        debug_assert!(apps > 0, "an emulator has at least one app");
        let first = (now_ms() / 1000).saturating_sub(FIRST_NUMBER_EPOCH);
        let bot = || BotFacts {
            polls: PollBook::default(),
            webhook: None,
            allowed: None,
            update_base: i64::try_from(first).unwrap_or(0),
        };
        let bots = (0..apps).map(|_| bot()).collect();
        let state = TelegramState { bots, last_message: first, ..TelegramState::default() };
        Self { state: Mutex::new(state) }
    }

    /// Locks the state. The lock of the world is held, so no other task waits for this one.
    fn state(&self) -> MutexGuard<'_, TelegramState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimProvider for TelegramSim {
    fn settings(&self) -> SimSettings {
        SimSettings {
            // Updates are kept for so long.
            ack_timeout_ms: 86_400_000,
            max_attempts: u32::MAX,
            resend_on_close: false,
            backlog: true,
            max_in_flight: 1000,
            max_events: 50_000,
            ping_interval_ms: 0,
            disconnect_grace_ms: 0,
            ticket_ttl_ms: 0,
            token_ttl_ms: 0,
            session_webhook_ttl_ms: 0,
            push_timeout_ms: 60_000,
            push_retries_ms: vec![0, 2000, 4000, 8000, 16_000, 32_000, 64_000],
            limits: false,
            throttle_ms: 0,
            echo: false,
        }
    }

    fn populate(&self, world: &mut World) {
        chats::populate(self, world);
    }

    fn credentials(&self, app: usize) -> Value {
        json!({"token": bot_token(app), "username": bot_name(app), "id": bot_id(app)})
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

    fn throttled(&self, _: &ApiCall, fault: &CallFault) -> SimResponse {
        api::too_many_requests(fault.retry_after)
    }

    fn server_error(&self, _: &ApiCall, fault: &CallFault) -> SimResponse {
        api::server_error(fault.error_status())
    }

    fn open_socket(&self, _: &mut World, request: &SimRequest) -> Result<usize, SimResponse> {
        Err(SimResponse::not_found(&request.path))
    }

    fn disconnect_frame(&self, _: Option<&str>) -> Option<Message> {
        None
    }

    fn event_frame(&self, _: &SimEvent, _: u64) -> EventFrame {
        EventFrame { ack_id: String::new(), frames: Vec::new() }
    }

    fn read_frame(&self, _: &Message) -> FrameMeaning {
        FrameMeaning::Other
    }

    fn push(&self, event: &SimEvent, signer: &PushSigner) -> PushRequest {
        webhook::callback(self, event, signer)
    }

    fn push_challenge(&self, _: usize) -> Option<(PushRequest, String)> {
        None
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn start_poll(
        &self,
        world: &mut World,
        call: &ApiCall,
        request: &SimRequest,
    ) -> Option<PollTicket> {
        updates::start_poll(self, world, call, request)
    }

    fn resume_poll(&self, world: &mut World, ticket: PollTicket) -> PollStep {
        updates::resume_poll(self, world, ticket)
    }

    fn disturb_polls(&self, fault: PollFault) {
        for bot in &mut self.state().bots {
            bot.polls.disturb(fault);
        }
    }

    fn lane<'a>(&self, event: &'a SimEvent) -> Option<&'a str> {
        Some(&event.key)
    }

    fn push_pause(&self, world: &World, event: &SimEvent, result: &PushResult) -> Option<u64> {
        webhook::pause(world, event, result)
    }

    fn push_ended(&self, world: &mut World, event: &SimEvent, result: &PushResult) {
        webhook::use_answer(self, world, event, result);
    }

    fn say(&self, world: &mut World, request: &SayRequest) -> Result<Value, ControlError> {
        events::say(self, world, request)
    }

    fn edit(&self, world: &mut World, request: &EditRequest) -> Result<Value, ControlError> {
        events::edit(self, world, request)
    }

    fn recall(&self, world: &mut World, request: &RecallRequest) -> Result<Value, ControlError> {
        events::recall(self, world, request)
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
        events::member(self, world, request, joins)
    }

    fn expire_tokens(&self, _: &mut World) {
        self.state().is_revoked = true;
    }

    fn control(
        &self,
        world: &mut World,
        name: &str,
        body: &Value,
    ) -> Option<Result<Value, ControlError>> {
        match name {
            "token" => {
                let mut state = self.state();
                state.is_revoked = body["revoked"].as_bool().unwrap_or(true);
                Some(Ok(json!({"revoked": state.is_revoked})))
            }
            "privacy" => {
                let mut state = self.state();
                state.has_privacy = body["on"].as_bool().unwrap_or(true);
                Some(Ok(json!({"on": state.has_privacy})))
            }
            "proxy" => Some(webhook::set_proxy(self, world, body)),
            "conflict" => Some(updates::second_poller(self, body)),
            "restart_ids" => Some(updates::restart_ids(self, world, body)),
            "block" => Some(events::block(self, world, body)),
            "migrate" => Some(events::migrate(self, world, body)),
            "topic" => Some(events::topic(self, world, body)),
            "create" => Some(events::create(self, world, body)),
            _ => None,
        }
    }

    fn state(&self) -> Value {
        let state = self.state();
        let bots = state.bots.iter().map(|bot| {
            json!({
                "webhook": bot.webhook.as_ref().map(|webhook| &webhook.url),
                "polls": bot.polls.open(), "allowed_updates": bot.allowed,
                "update_base": bot.update_base,
            })
        });
        let chats = state.chats.iter().map(|(id, chat)| (id.clone(), chat.describe()));
        json!({
            "bots": bots.collect::<Vec<_>>(), "chats": chats.collect::<BTreeMap<_, _>>(),
            "revoked": state.is_revoked, "privacy": state.has_privacy, "proxy": state.proxy,
            "blocked": state.blocked,
        })
    }
}

/// A status of an answer; an unknown number is an internal error.
fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
