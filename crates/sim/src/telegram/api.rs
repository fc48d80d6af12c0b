//! Tokens, the table of methods, and the envelope of answers.

use bytes::Bytes;
use hyper::header::HeaderMap;
use hyper::{Method, StatusCode};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::params::SimTelegramParams;
use super::{TelegramSim, bot_token, chats, edit, files, send, status, webhook};
use crate::chaos::ApiCall;
use crate::clock::now_ms;
use crate::counters::SimCounters;
use crate::http::{SimRequest, SimResponse};
use crate::push::PushAnswer;
use crate::store::MAX_CHATS;
use crate::world::World;

/// Why a method fails.
#[derive(Debug)]
pub struct SimTelegramFailure {
    pub code: u16,
    pub description: String,
    pub parameters: Map<String, Value>,
}

impl SimTelegramFailure {
    pub fn new(code: u16, description: impl Into<String>) -> Self {
        Self { code, description: description.into(), parameters: Map::new() }
    }

    /// A request that can never succeed as it is.
    pub fn bad(reason: &str) -> Self {
        Self::new(400, format!("Bad Request: {reason}"))
    }

    pub fn forbidden(reason: &str) -> Self {
        Self::new(403, format!("Forbidden: {reason}"))
    }

    pub fn with(mut self, name: &str, value: Value) -> Self {
        self.parameters.insert(name.to_owned(), value);
        self
    }

    pub fn response(self) -> SimResponse {
        let mut body =
            json!({"ok": false, "error_code": self.code, "description": self.description});
        if !self.parameters.is_empty() {
            body["parameters"] = Value::Object(self.parameters);
        }
        SimResponse::json(status(self.code), &body)
    }
}

/// Result of a method, which the envelope carries as `result`.
pub type SimTelegramResult = Result<Value, SimTelegramFailure>;

/// A call of a method whose token is valid.
pub struct SimTelegramCall<'a> {
    pub sim: &'a TelegramSim,
    pub app: usize,
    /// Name of the method as it is documented.
    pub method: &'static str,
    pub params: &'a SimTelegramParams,
}

type MethodHandler = fn(&mut World, &SimTelegramCall<'_>) -> SimTelegramResult;

/// Name of the method that waits for updates.
pub const GET_UPDATES: &str = "getUpdates";

/// All other methods by their documented names.
const METHODS: [(&str, MethodHandler); 25] = [
    ("getMe", chats::get_me),
    ("getChat", chats::get_chat),
    ("getChatMember", chats::get_chat_member),
    ("getChatMemberCount", chats::get_chat_member_count),
    ("getFile", files::get_file),
    ("setWebhook", webhook::set),
    ("deleteWebhook", webhook::delete),
    ("getWebhookInfo", webhook::info),
    ("getMyCommands", chats::get_my_commands),
    ("setMyCommands", chats::accept),
    ("sendChatAction", chats::send_chat_action),
    ("sendMessage", send::send_message),
    ("sendPhoto", send::send_file),
    ("sendDocument", send::send_file),
    ("sendVoice", send::send_file),
    ("sendVideo", send::send_file),
    ("sendAudio", send::send_file),
    ("sendAnimation", send::send_file),
    ("sendSticker", send::send_file),
    ("sendMediaGroup", send::send_media_group),
    ("forwardMessage", send::forward_message),
    ("editMessageText", edit::edit_text),
    ("editMessageCaption", edit::edit_caption),
    ("deleteMessage", edit::delete),
    ("setMessageReaction", edit::set_reaction),
];

/// Methods that put a message into a chat.
fn is_send(method: &str) -> bool {
    (method.starts_with("send") && method != "sendChatAction") || method == "forwardMessage"
}

/// The documented name of a method; names are not case-sensitive.
fn canonical(name: &str) -> Option<&'static str> {
    let mut names = METHODS.iter().map(|(name, _)| *name).chain([GET_UPDATES]);
    names.find(|known| known.eq_ignore_ascii_case(name))
}

/// Splits `/bot{token}/{method}` or, with another prefix, a path of the same form.
fn split_path(path: &str, prefix: &str) -> Option<(String, String)> {
    let (token, rest) = path.strip_prefix(prefix)?.split_once('/')?;
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((decode(token), decode(rest)))
}

/// The app of a token; `None` if no bot has it.
fn token_app(world: &World, token: &str) -> Option<usize> {
    (0..world.apps).find(|app| bot_token(*app) == token)
}

/// Names the method of a request, its chat, and the app of its token.
pub fn name_call(sim: &TelegramSim, world: &World, request: &SimRequest) -> ApiCall {
    let Some((token, name)) = split_path(&request.path, "/bot") else {
        let is_file = request.path.starts_with("/file/bot");
        let method = if is_file { "download" } else { "other" };
        return ApiCall { method: method.to_owned(), ..ApiCall::default() };
    };
    let method = canonical(&name).unwrap_or("other");
    let chat = SimTelegramParams::read(request).text("chat_id");
    let chat = (!chat.is_empty()).then(|| chats::resolve(sim, world, &chat).unwrap_or(chat));
    let app = token_app(world, &token).unwrap_or(0);
    ApiCall { method: method.to_owned(), chat, is_send: is_send(method), app }
}

/// The app of the token in the path, or why the call is rejected.
pub fn authorize(
    sim: &TelegramSim,
    world: &World,
    token: &str,
) -> Result<usize, SimTelegramFailure> {
    let is_well_formed = token.split_once(':').is_some_and(|(id, secret)| {
        !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()) && !secret.is_empty()
    });
    if !is_well_formed {
        return Err(SimTelegramFailure::new(404, "Not Found"));
    }
    let app = token_app(world, token).filter(|_| !sim.state().is_revoked);
    app.ok_or_else(|| SimTelegramFailure::new(401, "Unauthorized"))
}

/// The app of a valid `getUpdates` request; `None` for any other request.
pub fn poll_app(sim: &TelegramSim, world: &World, request: &SimRequest) -> Option<usize> {
    let (token, name) = split_path(&request.path, "/bot")?;
    (canonical(&name) == Some(GET_UPDATES)).then_some(())?;
    authorize(sim, world, &token).ok()
}

/// Executes a call of a method, or a download.
pub fn execute(
    sim: &TelegramSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
) -> SimResponse {
    if let Some((token, path)) = split_path(&request.path, "/file/bot") {
        let found = authorize(sim, world, &token);
        let file = found.and_then(|_| files::download(world, &path));
        return file.unwrap_or_else(SimTelegramFailure::response);
    }
    let result = match split_path(&request.path, "/bot") {
        Some((token, name)) => run_method(sim, world, call, request, &token, &name),
        None => Err(SimTelegramFailure::new(404, "Not Found")),
    };
    match result {
        Ok(result) => SimResponse::ok(&json!({"ok": true, "result": result})),
        Err(failure) => {
            SimCounters::count(&mut world.counters.errors, &failure.description);
            let retry_after = failure.parameters.get("retry_after").and_then(Value::as_u64);
            match retry_after {
                Some(_) => too_many_requests(retry_after),
                None => failure.response(),
            }
        }
    }
}

fn run_method(
    sim: &TelegramSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
    token: &str,
    name: &str,
) -> SimTelegramResult {
    let app = authorize(sim, world, token)?;
    if ![Method::GET, Method::POST].contains(&request.method) {
        return Err(SimTelegramFailure::new(405, "Method Not Allowed"));
    }
    let method = METHODS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let unknown = || SimTelegramFailure::new(404, "Not Found: method not found");
    let (method, handler) = method.ok_or_else(unknown)?;
    if world.settings.limits && call.is_send {
        check_pace(sim, call, app)?;
    }
    let params = SimTelegramParams::read(request);
    handler(world, &SimTelegramCall { sim, app, method, params: &params })
}

/// Executes the method that the answer to a callback names; the bot does not see its result.
pub fn execute_answer(sim: &TelegramSim, world: &mut World, app: usize, answer: &PushAnswer) {
    let mut headers = HeaderMap::new();
    let Ok(content_type) = answer.content_type.parse() else { return };
    headers.insert("content-type", content_type);
    let mut request = SimRequest {
        method: Method::POST,
        path: String::new(),
        query: String::new(),
        headers,
        body: Bytes::from(answer.body.clone()),
    };
    let name = SimTelegramParams::read(&request).text("method");
    let Some(method) = canonical(&name) else { return };
    if ["setWebhook", "deleteWebhook"].contains(&method) || method.starts_with("get") {
        return;
    }
    request.path = format!("/bot{}/{method}", bot_token(app));
    let call = name_call(sim, world, &request);
    SimCounters::count(&mut world.counters.requests, &call.method);
    execute(sim, world, &call, &request);
}

/// Times in which a chat or all chats take a number of messages: window in milliseconds, number.
fn pace_of(chat: &str) -> &'static [(u64, usize)] {
    match chat {
        "" => &[(1000, 30)],
        // Groups, supergroups and channels have negative ids.
        _ if chat.starts_with('-') => &[(1000, 1), (60_000, 20)],
        _ => &[(1000, 1)],
    }
}

/// Rejects a message that is over a rate limit; counts it if not.
fn check_pace(sim: &TelegramSim, call: &ApiCall, app: usize) -> Result<(), SimTelegramFailure> {
    let now = now_ms();
    let mut state = sim.state();
    if state.sends.len() > MAX_CHATS {
        state.sends.clear();
    }
    let places = [String::new(), call.chat.clone().unwrap_or_default()];
    for place in &places {
        let times = state.sends.entry((app, place.clone())).or_default();
        while times.front().is_some_and(|at| at + 60_000 <= now) {
            times.pop_front();
        }
        for (window, max) in pace_of(place) {
            let recent: Vec<_> = times.iter().filter(|at| **at + window > now).collect();
            if recent.len() >= *max {
                let free_at = *recent[recent.len() - max] + window;
                let seconds = free_at.saturating_sub(now).div_ceil(1000).max(1);
                let failure = SimTelegramFailure::new(429, "Too Many Requests");
                return Err(failure.with("retry_after", json!(seconds)));
            }
        }
    }
    for place in places {
        state.sends.entry((app, place)).or_default().push_back(now);
    }
    Ok(())
}

/// The answer to a call that is over a rate limit.
pub fn too_many_requests(retry_after: Option<u64>) -> SimResponse {
    match retry_after {
        None => SimTelegramFailure::new(429, "Too Many Requests").response(),
        Some(seconds) => {
            let text = format!("Too Many Requests: retry after {seconds}");
            let failure = SimTelegramFailure::new(429, text).with("retry_after", json!(seconds));
            failure.response().with_header("retry-after", seconds.to_string())
        }
    }
}

/// The answer to a call that met an internal error: JSON of the server, or the page of a proxy.
pub fn server_error(status: StatusCode) -> SimResponse {
    if status == StatusCode::INTERNAL_SERVER_ERROR {
        return SimTelegramFailure::new(500, "Internal Server Error").response();
    }
    let page = format!("<html><head><title>{status}</title></head><body>nginx</body></html>");
    SimResponse::text(status, "text/html", &page)
}
