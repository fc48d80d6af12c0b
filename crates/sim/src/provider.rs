//! What one emulated network implements. Everything else is shared.
//!
//! To add a network, create a folder with a type that implements [`SimProvider`], and add it to
//! `SimNetwork` and to `server.rs`.

use hyper::StatusCode;
use serde_json::Value;
use tokio_tungstenite::tungstenite::Message;

use crate::chaos::{ApiCall, CallFault, HandshakeFault, PushHeader, PushSigner};
use crate::clock::now_ms;
use crate::control::{
    ControlError, EditRequest, MemberRequest, ReactRequest, RecallRequest, SayRequest,
};
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse};
use crate::push::PushResult;
use crate::settings::SimSettings;
use crate::world::World;

/// The frames of an event, usually one, and the id by which they are acknowledged.
#[derive(Debug)]
pub struct EventFrame {
    pub ack_id: String,
    pub frames: Vec<Message>,
}

/// What a frame of the bot means.
#[derive(Debug, PartialEq, Eq)]
pub enum FrameMeaning {
    /// The frame with this id was processed.
    Ack(String),
    /// The frame with this id is to be sent again later.
    Later(String),
    /// The answer to a ping of the network.
    Pong,
    /// A ping of the bot, and the frame that answers it.
    Ping(Message),
    /// A frame without effect.
    Other,
}

/// An HTTP callback with one event.
#[derive(Debug)]
pub struct PushRequest {
    pub headers: Vec<PushHeader>,
    pub body: String,
}

/// A call that waits for events: a number by which the network knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PollTicket(pub u64);

/// What becomes of a call that waits for events.
#[derive(Debug)]
pub enum PollStep {
    Answer(SimResponse),
    /// Nothing yet: ask again when something happened, at the latest at this time in microseconds.
    Wait(u64),
}

/// A fault that hits the calls that wait for events now.
#[derive(Clone, Copy, Debug)]
pub enum PollFault {
    /// They are not answered but stay open; `false` ends this.
    Silence(bool),
    /// Their connections are closed without an answer.
    Drop,
}

/// One emulated network. All methods run under the lock of the [`World`], so they must not wait.
pub trait SimProvider: Send + Sync {
    /// Returns the default times and limits of the network.
    fn settings(&self) -> SimSettings;

    /// Creates the people and chats that exist at the start.
    fn populate(&self, world: &mut World);

    /// Returns the credentials of an app, by the config keys of the tunnel.
    fn credentials(&self, app: usize) -> Value;

    /// Returns the URLs to configure in a tunnel, by config key.
    fn urls(&self, base: &str) -> Value;

    /// Names the call, so that it can be counted and faults can select it.
    fn call(&self, world: &World, request: &SimRequest) -> ApiCall;

    /// Executes a call of the API.
    fn api(&self, world: &mut World, call: &ApiCall, request: &SimRequest) -> SimResponse;

    /// Returns the response to a call that was rejected because of a rate limit.
    fn throttled(&self, call: &ApiCall, fault: &CallFault) -> SimResponse;

    /// Returns the response to a call that met an internal error.
    fn server_error(&self, call: &ApiCall, fault: &CallFault) -> SimResponse;

    /// Returns the response to a handshake that is rejected by chaos.
    fn rejected_handshake(&self, fault: &HandshakeFault) -> SimResponse {
        let status = fault.status.and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        SimResponse::text(status, "text/plain", "handshake rejected by chaos\n")
    }

    /// Checks the ticket of a WebSocket handshake; returns the app that it belongs to.
    fn open_socket(&self, world: &mut World, request: &SimRequest) -> Result<usize, SimResponse>;

    /// Returns the first frame of a new connection, if the network sends one.
    fn first_frame(&self, _world: &World, _app: usize) -> Option<Message> {
        None
    }

    /// Returns the ping of the server: one of the WebSocket protocol, unless the network has its own.
    fn ping_frame(&self) -> Message {
        Message::Ping(now_ms().to_string().into())
    }

    /// Returns the frame that announces the end of a connection; `None` if the network has none
    /// and closes the connection at once.
    fn disconnect_frame(&self, reason: Option<&str>) -> Option<Message>;

    /// Returns the frames of an event.
    fn event_frame(&self, event: &SimEvent, connection: u64) -> EventFrame;

    /// Interprets a text or binary frame of the bot.
    fn read_frame(&self, frame: &Message) -> FrameMeaning;

    /// Returns the HTTP callback of an event.
    fn push(&self, event: &SimEvent, signer: &PushSigner) -> PushRequest;

    /// Returns the callback that checks a new URL, and the answer that it must have.
    fn push_challenge(&self, app: usize) -> Option<(PushRequest, String)>;

    /// Whether the bot fetches events by calls instead of sockets.
    fn is_polled(&self) -> bool {
        false
    }

    /// Registers a call that may wait for events; `None` for any other call.
    fn start_poll(&self, _: &mut World, _: &ApiCall, _: &SimRequest) -> Option<PollTicket> {
        None
    }

    /// Answers a call that waits for events, or lets it wait.
    fn resume_poll(&self, _: &mut World, _: PollTicket) -> PollStep {
        PollStep::Answer(SimResponse::not_found("poll"))
    }

    /// Lets a fault hit the calls that wait for events now.
    fn disturb_polls(&self, _: PollFault) {}

    /// Names the lane of an event. Events of one lane are pushed one after the other, and wait
    /// while one of them waits for a retry. Without lanes all events are pushed one after the
    /// other, but do not wait for retries.
    fn lane<'a>(&self, _: &'a SimEvent) -> Option<&'a str> {
        None
    }

    /// Returns the milliseconds until a failed callback is sent again; `None` gives it up.
    fn push_pause(&self, world: &World, event: &SimEvent, _: &PushResult) -> Option<u64> {
        world.settings.push_retries_ms.get(event.attempt as usize).copied()
    }

    /// Uses the answer to a callback, where it has a meaning beyond its status.
    fn push_ended(&self, _: &mut World, _: &SimEvent, _: &PushResult) {}

    /// Says something as a person in a chat; returns the id of the message.
    fn say(&self, world: &mut World, request: &SayRequest) -> Result<Value, ControlError>;

    /// Changes a message of a person.
    fn edit(&self, world: &mut World, request: &EditRequest) -> Result<Value, ControlError>;

    /// Removes a message of a person.
    fn recall(&self, world: &mut World, request: &RecallRequest) -> Result<Value, ControlError>;

    /// Adds a reaction to a message.
    fn react(&self, world: &mut World, request: &ReactRequest) -> Result<Value, ControlError>;

    /// Adds a person to a chat or removes one.
    fn member(
        &self,
        world: &mut World,
        request: &MemberRequest,
        joins: bool,
    ) -> Result<Value, ControlError>;

    /// Makes the tokens that were issued so far invalid.
    fn expire_tokens(&self, world: &mut World);

    /// Handles a control request that only this network has; `None` if there is no such one.
    fn control(
        &self,
        world: &mut World,
        name: &str,
        body: &Value,
    ) -> Option<Result<Value, ControlError>>;

    /// Returns state of the network for `GET /control/state`.
    fn state(&self) -> Value;
}
