//! The Web API: tokens, scopes, and the table of methods.

use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};

use super::{SlackSim, TEAM, app_id, bot_id, bot_user, chat, conversations, files};
use crate::chaos::ApiCall;
use crate::counters::SimCounters;
use crate::http::{SimRequest, SimResponse, text_of};
use crate::world::World;

/// Why a method fails: the error code and further fields of the answer.
#[derive(Debug)]
pub struct SlackFailure {
    pub code: String,
    pub fields: Map<String, Value>,
}

impl SlackFailure {
    pub fn new(code: &str) -> Self {
        Self { code: code.to_owned(), fields: Map::new() }
    }
}

/// Result of a method: the fields beside `ok`.
pub type MethodResult = Result<Value, SlackFailure>;

/// A call of a method whose token is valid.
pub struct MethodCall<'a> {
    pub sim: &'a SlackSim,
    pub app: usize,
    pub params: &'a Map<String, Value>,
}

impl MethodCall<'_> {
    pub fn text(&self, name: &str) -> &str {
        text_of(self.params, name)
    }
}

type MethodHandler = fn(&mut World, &MethodCall<'_>) -> MethodResult;

/// A method with the scopes of which one is needed.
struct ApiMethod {
    scopes: &'static [&'static str],
    handler: MethodHandler,
}

const HISTORY: &[&str] = &["channels:history", "groups:history", "im:history", "mpim:history"];
const READ: &[&str] = &["channels:read", "groups:read", "im:read", "mpim:read"];

fn find_method(name: &str) -> Option<ApiMethod> {
    let (scopes, handler): (&[&str], MethodHandler) = match name {
        "auth.test" => (&[], auth_test),
        "chat.postMessage" => (&["chat:write"], chat::post_message),
        "chat.update" => (&["chat:write"], chat::update),
        "chat.delete" => (&["chat:write"], chat::delete),
        "reactions.add" => (&["reactions:write"], chat::add_reaction),
        "conversations.history" => (HISTORY, conversations::history),
        "conversations.replies" => (HISTORY, conversations::replies),
        "conversations.info" => (READ, conversations::info),
        "conversations.list" => (READ, conversations::list),
        "conversations.members" => (READ, conversations::members),
        "conversations.open" => (&["im:write", "mpim:write"], conversations::open),
        "users.info" => (&["users:read"], conversations::user_info),
        "users.list" => (&["users:read"], conversations::user_list),
        "bots.info" => (&["users:read"], conversations::bot_info),
        "team.info" => (&["team:read"], conversations::team_info),
        "files.getUploadURLExternal" => (&["files:write"], files::get_upload_url),
        "files.completeUploadExternal" => (&["files:write"], files::complete_upload),
        "files.info" => (&["files:read"], files::info),
        _ => return None,
    };
    Some(ApiMethod { scopes, handler })
}

/// Names the method of a request, its chat, and the app of its token.
pub fn name_call(world: &World, request: &SimRequest) -> ApiCall {
    let method = match request.path.strip_prefix("/api/") {
        Some(method) => method.to_owned(),
        None if request.path.starts_with("/upload/") => "upload".to_owned(),
        None if request.path.starts_with("/files-pri/") => "download".to_owned(),
        None => "other".to_owned(),
    };
    let params = request.params();
    let chat = ["channel", "channel_id"].iter().find_map(|name| params.get(*name)?.as_str());
    let chat = chat.map(|chat| world.store.find_chat(chat).unwrap_or_else(|| chat.to_owned()));
    let sends = ["chat.postMessage", "files.completeUploadExternal"];
    let is_send = sends.contains(&method.as_str());
    let app = token_of(request, &params).and_then(|token| token_app(&token, world)).unwrap_or(0);
    ApiCall { method, chat, is_send, app }
}

fn token_of(request: &SimRequest, params: &Map<String, Value>) -> Option<String> {
    let given = request.bearer().or_else(|| params.get("token")?.as_str());
    given.map(str::to_owned).filter(|token| !token.is_empty())
}

/// The app of a token; `None` if the token is unknown.
fn token_app(token: &str, world: &World) -> Option<usize> {
    let number = token.strip_prefix("xoxb-sim-").or_else(|| token.strip_prefix("xapp-sim-"))?;
    number.parse().ok().filter(|app| *app < world.apps)
}

/// Executes a request of the Web API, an upload or a download.
pub fn execute(
    sim: &SlackSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
) -> SimResponse {
    match call.method.as_str() {
        "upload" => return files::upload(sim, world, request),
        "download" => return files::download(sim, world, request),
        "other" if request.path == "/" && request.method == Method::GET => {
            let page = "<!DOCTYPE html><html><title>Slack</title><body>Sign in</body></html>";
            return SimResponse::text(StatusCode::OK, "text/html; charset=utf-8", page);
        }
        "other" => return SimResponse::not_found(&request.path),
        _ => {}
    }
    if world.settings.limits && call.is_send && chat::is_too_fast(sim, call) {
        SimCounters::count(&mut world.counters.errors, "ratelimited");
        return rate_limited(Some(1));
    }
    let result = run_method(sim, world, call, request);
    if let Err(failure) = &result {
        SimCounters::count(&mut world.counters.errors, &failure.code);
    }
    let scopes = sim.state().scopes.names();
    answer(result).with_header("x-oauth-scopes", scopes.join(","))
}

fn answer(result: MethodResult) -> SimResponse {
    let body = match result {
        Ok(mut body) => {
            body["ok"] = json!(true);
            body
        }
        Err(failure) => {
            let mut body = Value::Object(failure.fields);
            body["ok"] = json!(false);
            body["error"] = json!(failure.code);
            body
        }
    };
    SimResponse::ok(&body)
}

/// The answer to a call that is over a rate limit.
pub fn rate_limited(retry_after: Option<u64>) -> SimResponse {
    let body = json!({"ok": false, "error": "ratelimited"});
    let response = SimResponse::json(StatusCode::TOO_MANY_REQUESTS, &body);
    match retry_after {
        Some(seconds) => response.with_header("retry-after", seconds.to_string()),
        None => response,
    }
}

fn run_method(
    sim: &SlackSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
) -> MethodResult {
    let params = request.params();
    let token = token_of(request, &params).ok_or_else(|| SlackFailure::new("not_authed"))?;
    let app = token_app(&token, world).ok_or_else(|| SlackFailure::new("invalid_auth"))?;
    if let Some(error) = &sim.state().token_error {
        return Err(SlackFailure::new(error));
    }
    let is_app_token = token.starts_with("xapp-");
    if call.method == "apps.connections.open" {
        return open_connection(world, app, is_app_token, request);
    }
    if is_app_token && call.method != "auth.test" {
        return Err(SlackFailure::new("not_allowed_token_type"));
    }
    let method = find_method(&call.method).ok_or_else(|| SlackFailure::new("unknown_method"))?;
    check_scopes(sim, &method)?;
    (method.handler)(world, &MethodCall { sim, app, params: &params })
}

/// Rejects a call when the bot has none of the scopes that allow it.
fn check_scopes(sim: &SlackSim, method: &ApiMethod) -> Result<(), SlackFailure> {
    let state = sim.state();
    if state.scopes.allows(method.scopes) {
        return Ok(());
    }
    let provided = state.scopes.names();
    let mut failure = SlackFailure::new("missing_scope");
    failure.fields.insert("needed".to_owned(), json!(method.scopes[0]));
    failure.fields.insert("provided".to_owned(), json!(provided.join(",")));
    Err(failure)
}

/// `apps.connections.open`: takes an app token, in the header only.
fn open_connection(
    world: &mut World,
    app: usize,
    is_app_token: bool,
    request: &SimRequest,
) -> MethodResult {
    if !is_app_token || request.bearer().is_none() {
        return Err(SlackFailure::new("not_allowed_token_type"));
    }
    let ticket = world.issue_ticket(app);
    let base = world.base_url.replacen("http://", "ws://", 1);
    Ok(json!({"url": format!("{base}/link/?ticket={ticket}&app_id={}", app_id(app))}))
}

fn auth_test(world: &mut World, call: &MethodCall<'_>) -> MethodResult {
    Ok(json!({
        "url": format!("{}/", world.base_url),
        "team": "Emulated workspace",
        "user": format!("monoco{}", call.app),
        "team_id": TEAM,
        "user_id": bot_user(call.app),
        "bot_id": bot_id(call.app),
        "is_enterprise_install": false,
    }))
}
