//! The API: tokens, scopes, errors, and the table of methods.

use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::{
    LarkSim, REJECTED, TenantToken, app_id, app_secret, connection, directory, files, history,
    hook, messages, reactions,
};
use crate::chaos::{ApiCall, CallFault};
use crate::clock::now_ms;
use crate::counters::SimCounters;
use crate::http::{SimRequest, SimResponse, text_of};
use crate::random::random_hex;
use crate::world::World;

/// Code of a call beyond a rate limit of the gateway.
pub const TOO_MANY_CALLS: i64 = 99_991_400;

/// Code of a message beyond the rate limit of a chat.
pub const TOO_MANY_MESSAGES: i64 = 230_020;

const NO_TOKEN: i64 = 99_991_661;
const INVALID_TOKEN: i64 = 99_991_663;
const MISSING_SCOPE: i64 = 99_991_672;

/// Code of a parameter that is missing or has the wrong form.
pub const INVALID_FIELD: i64 = 99_992_402;

/// Code of an invalid parameter of a message.
pub const INVALID_PARAMETER: i64 = 230_001;

/// Calls of one app per second, when limits are enforced.
const MAX_CALLS: usize = 50;

/// Messages to one chat or person per second, when limits are enforced.
const MAX_MESSAGES: usize = 5;

/// Below this rest of its time a token is replaced by a new one.
const RENEWAL_MS: u64 = 1_800_000;

/// Why a call fails.
#[derive(Debug)]
pub struct SimLarkFailure {
    pub status: StatusCode,
    pub code: i64,
    pub message: String,
}

impl SimLarkFailure {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { status: REJECTED, code, message: message.into() }
    }

    /// An invalid parameter of a message; the detail stands behind `ext=`.
    pub fn parameter(detail: &str) -> Self {
        let message = "Your request contains an invalid request parameter";
        Self::new(INVALID_PARAMETER, format!("{message}, ext={detail}"))
    }
}

/// Result of a method: its `data`.
pub type SimLarkResult = Result<Value, SimLarkFailure>;

/// A call whose token is valid.
pub struct SimLarkCall<'a> {
    pub sim: &'a LarkSim,
    pub app: usize,
    pub method: &'a str,
    /// Ids in the path, in their order.
    pub ids: &'a [String],
    pub request: &'a SimRequest,
    pub body: &'a Map<String, Value>,
}

impl SimLarkCall<'_> {
    pub fn text(&self, name: &str) -> &str {
        text_of(self.body, name)
    }

    pub fn query(&self, name: &str) -> String {
        self.request.query_value(name).unwrap_or_default()
    }

    /// An id of the path; empty if there are fewer.
    pub fn id(&self, index: usize) -> &str {
        self.ids.get(index).map_or("", String::as_str)
    }
}

type LarkHandler = fn(&mut World, &SimLarkCall<'_>) -> SimLarkResult;

const SEND: &[&str] = &["im:message:send_as_bot", "im:message"];
const READ: &[&str] = &["im:message:readonly", "im:message"];
const REACT: &[&str] = &["im:message.reactions:write_only", "im:message"];
const CHATS: &[&str] = &["im:chat:readonly", "im:chat"];
const PEOPLE: &[&str] = &["contact:user.base:readonly", "contact:contact.base:readonly"];

/// Scopes of which a method needs one, and its handler.
fn find_method(name: &str) -> Option<(&'static [&'static str], LarkHandler)> {
    Some(match name {
        "message.create" => (SEND, messages::create),
        "message.reply" => (SEND, messages::reply),
        "message.update" | "message.patch" => (SEND, messages::update),
        "message.delete" => (SEND, messages::delete),
        "message.get" => (READ, history::get),
        "message.list" => (READ, history::list),
        "message_reaction.create" => (REACT, reactions::create),
        "message_reaction.list" => (READ, reactions::list),
        "message_reaction.delete" => (REACT, reactions::delete),
        "image.create" => (&["im:resource"], files::create_image),
        "file.create" => (&["im:resource"], files::create_file),
        "chat.get" => (CHATS, directory::chat),
        "chat.list" => (CHATS, directory::chats),
        "chat_members.get" => (CHATS, directory::members),
        "user.get" => (PEOPLE, directory::user),
        "user.batch" => (PEOPLE, directory::users),
        "user.basic_batch" => (PEOPLE, directory::basic_users),
        _ => return None,
    })
}

/// The name of a request, as Lark's SDKs name the method, and the ids in its path.
fn route(request: &SimRequest) -> (&'static str, Vec<String>) {
    if request.path == "/callback/ws/endpoint" && request.method == Method::POST {
        return ("ws_endpoint", Vec::new());
    }
    let path = request.path.trim_start_matches("/open-apis/");
    let parts: Vec<&str> = path.split('/').collect();
    let (name, ids): (_, &[&str]) = match (request.method.as_str(), parts.as_slice()) {
        ("POST", ["auth", "v3", "tenant_access_token", "internal"]) => ("tenant_access_token", &[]),
        ("POST", ["auth", "v3", "app_access_token", "internal"]) => ("app_access_token", &[]),
        ("POST", ["im", "v1", "messages"]) => ("message.create", &[]),
        ("GET", ["im", "v1", "messages"]) => ("message.list", &[]),
        ("GET", ["im", "v1", "messages", id]) => ("message.get", &[*id]),
        ("PUT", ["im", "v1", "messages", id]) => ("message.update", &[*id]),
        ("PATCH", ["im", "v1", "messages", id]) => ("message.patch", &[*id]),
        ("DELETE", ["im", "v1", "messages", id]) => ("message.delete", &[*id]),
        ("POST", ["im", "v1", "messages", id, "reply"]) => ("message.reply", &[*id]),
        ("POST", ["im", "v1", "messages", id, "reactions"]) => ("message_reaction.create", &[*id]),
        ("GET", ["im", "v1", "messages", id, "reactions"]) => ("message_reaction.list", &[*id]),
        ("DELETE", ["im", "v1", "messages", id, "reactions", reaction]) => {
            ("message_reaction.delete", &[*id, *reaction])
        }
        ("GET", ["im", "v1", "messages", id, "resources", key]) => {
            ("message_resource.get", &[*id, *key])
        }
        ("POST", ["im", "v1", "images"]) => ("image.create", &[]),
        ("POST", ["im", "v1", "files"]) => ("file.create", &[]),
        ("GET", ["im", "v1", "chats"]) => ("chat.list", &[]),
        ("GET", ["im", "v1", "chats", id]) => ("chat.get", &[*id]),
        ("GET", ["im", "v1", "chats", id, "members"]) => ("chat_members.get", &[*id]),
        ("GET", ["contact", "v3", "users", "batch"]) => ("user.batch", &[]),
        ("POST", ["contact", "v3", "users", "basic_batch"]) => ("user.basic_batch", &[]),
        ("GET", ["contact", "v3", "users", id]) => ("user.get", &[*id]),
        ("GET", ["bot", "v3", "info"]) => ("bot.info", &[]),
        ("POST", ["bot", "v2", "hook", token]) => ("hook", &[*token]),
        _ => ("other", &[]),
    };
    (name, ids.iter().map(|id| (*id).to_owned()).collect())
}

/// Names the method of a request, its chat, and the app of its token.
pub fn name_call(sim: &LarkSim, world: &World, request: &SimRequest) -> ApiCall {
    let (method, ids) = route(request);
    let chat = match method {
        "message.create" => {
            let body = request.json();
            let target = body["receive_id"].as_str().unwrap_or_default();
            let direct = world.store.users.get(target).map(|user| format!("@{}", user.name));
            let found = world.store.find_chat(direct.as_deref().unwrap_or(target));
            Some(found.unwrap_or_else(|| target.to_owned()))
        }
        "message.list" => request.query_value("container_id"),
        name if name.starts_with("message") => {
            let found = ids.first().and_then(|id| world.store.find_message(id));
            found.map(|(chat, _)| chat.to_owned())
        }
        "hook" => Some(hook::CHAT.to_owned()),
        _ => None,
    };
    let is_send = ["message.create", "message.reply", "hook"].contains(&method);
    let app = match method {
        "hook" => hook::find_app(world, ids.first().map_or("", String::as_str)),
        _ => request.bearer().and_then(|token| token_app(sim, token)),
    };
    ApiCall { method: method.to_owned(), chat, is_send, app: app.unwrap_or(0) }
}

/// The app that these credentials belong to.
pub fn find_app(world: &World, id: &str, secret: &str) -> Option<usize> {
    (0..world.apps).find(|app| app_id(*app) == id && app_secret(*app) == secret)
}

/// The app of a valid token.
fn token_app(sim: &LarkSim, text: &str) -> Option<usize> {
    let now = now_ms();
    let state = sim.state();
    let found = state.tokens.iter().find(|token| token.text == text && token.expires_ms > now);
    found.map(|token| token.app)
}

/// Returns the token of an app with its rest of time: the current one, unless it ends soon.
fn issue_token(sim: &LarkSim, world: &mut World, app: usize) -> (String, u64) {
    let (now, ttl) = (now_ms(), world.settings.token_ttl_ms);
    let mut state = sim.state();
    state.tokens.retain(|token| token.expires_ms > now);
    let renewal = RENEWAL_MS.min(ttl / 4);
    let fresh = |token: &&TenantToken| token.app == app && token.expires_ms > now + renewal;
    if let Some(token) = state.tokens.iter().find(fresh) {
        return (token.text.clone(), (token.expires_ms - now) / 1000);
    }
    world.counters.tokens_issued += 1;
    let text = format!("t-{}", random_hex());
    state.tokens.push(TenantToken { app, text: text.clone(), expires_ms: now + ttl });
    (text, ttl / 1000)
}

/// Issues a token. Its fields are beside `code`, not in `data`.
fn log_in(sim: &LarkSim, world: &mut World, body: &Map<String, Value>) -> SimResponse {
    let (id, secret) = (text_of(body, "app_id"), text_of(body, "app_secret"));
    let Some(app) = find_app(world, id, secret) else {
        let is_known = (0..world.apps).any(|app| app_id(app) == id);
        let (code, message) =
            if is_known { (10_014, "app secret invalid") } else { (10_003, "invalid param") };
        SimCounters::count(&mut world.counters.errors, &code.to_string());
        return SimResponse::ok(&json!({"code": code, "msg": message}));
    };
    let (token, seconds) = issue_token(sim, world, app);
    SimResponse::ok(&json!({
        "code": 0, "msg": "ok", "tenant_access_token": token, "app_access_token": token,
        "expire": seconds,
    }))
}

/// An error in the form of the API.
pub fn failure(status: StatusCode, code: i64, message: &str) -> SimResponse {
    let log_id = random_hex();
    let body = json!({"code": code, "msg": message, "error": {"log_id": log_id}});
    SimResponse::json(status, &body).with_header("x-tt-logid", log_id)
}

/// The answer to a call that is over a rate limit: 429 of the gateway, or a code of the method.
pub fn throttled(call: &ApiCall, fault: &CallFault) -> SimResponse {
    let default = if call.method == "hook" { hook::TOO_FAST } else { TOO_MANY_CALLS };
    let code = fault.code.unwrap_or(default);
    let status = match code {
        TOO_MANY_CALLS => StatusCode::TOO_MANY_REQUESTS,
        hook::TOO_FAST => StatusCode::OK,
        _ => REJECTED,
    };
    let status = fault.status.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(status);
    let response = failure(status, code, "request trigger frequency limit")
        .with_header("x-ogw-ratelimit-limit", MAX_CALLS.to_string());
    match fault.retry_after {
        Some(seconds) => response.with_header("x-ogw-ratelimit-reset", seconds.to_string()),
        None => response,
    }
}

/// Executes a request of the API, of a custom robot, or for the URL of a socket.
pub fn execute(
    sim: &LarkSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
) -> SimResponse {
    let body = request.json().as_object().cloned().unwrap_or_default();
    let (method, ids) = route(request);
    match method {
        "ws_endpoint" => return connection::endpoint(sim, world, &body),
        "tenant_access_token" | "app_access_token" => return log_in(sim, world, &body),
        "hook" => return hook::send(sim, world, &ids[0], request, &body),
        _ => {}
    }
    let result = authorize(sim, world, call, request).and_then(|app| {
        let call = SimLarkCall { sim, app, method, ids: &ids, request, body: &body };
        match method {
            "other" => Ok(SimResponse::not_found(&request.path)),
            "bot.info" => Ok(directory::bot_info(app)),
            "message_resource.get" => {
                check_scopes(sim, READ)?;
                files::download(world, &call)
            }
            _ => {
                let missing = || SimLarkFailure::new(99_992_404, "no such method");
                let (scopes, handler) = find_method(method).ok_or_else(missing)?;
                check_scopes(sim, scopes)?;
                let data = handler(world, &call)?;
                Ok(SimResponse::ok(&json!({"code": 0, "msg": "success", "data": data})))
            }
        }
    });
    result.unwrap_or_else(|error| {
        SimCounters::count(&mut world.counters.errors, &error.code.to_string());
        failure(error.status, error.code, &error.message)
    })
}

/// Checks the token and, if they are enforced, the rate limits; returns the app.
fn authorize(
    sim: &LarkSim,
    world: &World,
    call: &ApiCall,
    request: &SimRequest,
) -> Result<usize, SimLarkFailure> {
    let missing = || SimLarkFailure::new(NO_TOKEN, "Missing access token for authorization.");
    let token = request.bearer().ok_or_else(missing)?;
    let invalid = || SimLarkFailure::new(INVALID_TOKEN, "Invalid access token for authorization.");
    let app = token_app(sim, token).ok_or_else(invalid)?;
    if !world.settings.limits {
        return Ok(app);
    }
    let (now, calls) = (now_ms(), &mut sim.state().calls);
    if calls.is_too_fast(&format!("{app}/{}", call.method), MAX_CALLS, 1000, now) {
        let failure = SimLarkFailure::new(TOO_MANY_CALLS, "request trigger frequency limit");
        return Err(SimLarkFailure { status: StatusCode::TOO_MANY_REQUESTS, ..failure });
    }
    let chat = call.chat.as_deref().filter(|_| call.is_send);
    if chat.is_some_and(|chat| calls.is_too_fast(chat, MAX_MESSAGES, 1000, now)) {
        return Err(SimLarkFailure::new(TOO_MANY_MESSAGES, "The message sending frequency limit"));
    }
    Ok(app)
}

/// Rejects a call when the app has none of the scopes that allow it.
fn check_scopes(sim: &LarkSim, scopes: &[&str]) -> Result<(), SimLarkFailure> {
    if sim.state().scopes.allows(scopes) {
        return Ok(());
    }
    let list = scopes.join(", ");
    let message = format!("Access denied. One of the following scopes is required: [{list}]");
    Err(SimLarkFailure::new(MISSING_SCOPE, message))
}
