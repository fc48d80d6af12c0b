//! The new API under `/v1.0/`: the HTTP status carries a failure.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::{AccessToken, DingTalkSim, app_key, app_secret};
use crate::chaos::{ApiCall, ChaosSwitches};
use crate::clock::now_ms;
use crate::counters::SimCounters;
use crate::http::{SimRequest, SimResponse, text_of};
use crate::random::random_hex;
use crate::store::{SentRecord, SimChatKind};
use crate::world::World;

/// People that one batch can reach.
const MAX_USERS: usize = 20;

/// Calls of one app and method per second, when limits are enforced.
const MAX_CALLS_PER_SECOND: usize = 20;

/// A failed call: status, code and message.
type ApiFailure = (StatusCode, &'static str, String);

type ApiResult = Result<Value, ApiFailure>;

/// An error in the form of the new API.
pub fn failure(status: StatusCode, code: &str, message: &str) -> SimResponse {
    let body = json!({"code": code, "message": message, "requestid": random_hex().to_uppercase()});
    SimResponse::json(status, &body)
}

pub fn qps_limit() -> SimResponse {
    let code = "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi";
    failure(StatusCode::FORBIDDEN, code, "the app calls this API too often")
}

fn invalid(code: &'static str, message: impl Into<String>) -> ApiFailure {
    (StatusCode::BAD_REQUEST, code, message.into())
}

/// Names the method of a request, its chat, and the app of its credentials.
pub fn name_call(sim: &DingTalkSim, world: &World, request: &SimRequest) -> ApiCall {
    let method = match request.path.strip_prefix("/v1.0/") {
        Some(method) => method.to_owned(),
        None if request.path.starts_with("/download/") => "download".to_owned(),
        None => request.path.trim_start_matches('/').to_owned(),
    };
    let mut call = ApiCall { method, ..ApiCall::default() };
    call.is_send = [
        "robot/oToMessages/batchSend",
        "robot/groupMessages/send",
        "robot/sendBySession",
        "robot/send",
    ]
    .contains(&call.method.as_str());
    let state = sim.state();
    if let Some(session) = request.query_value("session") {
        if let Some(session) = state.sessions.get(&session) {
            (call.app, call.chat) = (session.app, Some(session.chat.clone()));
        }
        return call;
    }
    drop(state);
    if let Some(token) = request.header("x-acs-dingtalk-access-token") {
        call.app = token_app(sim, token).unwrap_or(0);
    }
    if call.method.starts_with("robot/") {
        let body = request.json();
        let group = body["openConversationId"].as_str();
        let target = group.or_else(|| body["userIds"][0].as_str());
        let found = target.and_then(|target| world.store.find_chat(target));
        call.chat = found.or_else(|| target.map(str::to_owned));
    }
    call
}

/// The app of a valid token.
pub fn token_app(sim: &DingTalkSim, text: &str) -> Option<usize> {
    let now = now_ms();
    let state = sim.state();
    let is_valid =
        |token: &AccessToken| token.text == text && token.expires_ms > now && !token.is_revoked;
    state.tokens.iter().find(|(_, token)| is_valid(token)).map(|(app, _)| *app)
}

/// Returns the token of an app: the current one if it is valid, otherwise a new one.
pub fn issue_token(sim: &DingTalkSim, world: &mut World, app: usize) -> (String, u64) {
    let now = now_ms();
    let expires_ms = now + world.settings.token_ttl_ms;
    let mut state = sim.state();
    let current = state.tokens.get_mut(&app).filter(|t| t.expires_ms > now && !t.is_revoked);
    let text = match current {
        Some(token) => {
            token.expires_ms = expires_ms;
            token.text.clone()
        }
        None => {
            world.counters.tokens_issued += 1;
            let text = random_hex();
            let token = AccessToken { text: text.clone(), expires_ms, is_revoked: false };
            if let Some(old) = state.tokens.insert(app, token) {
                state.old_tokens.insert(old.text, ());
            }
            text
        }
    };
    (text, world.settings.token_ttl_ms / 1000)
}

/// The app that these credentials belong to.
pub fn find_app(world: &World, key: &str, secret: &str) -> Option<usize> {
    (0..world.apps).find(|app| app_key(*app) == key && app_secret(*app) == secret)
}

/// Executes a call of the new API.
pub fn execute(
    sim: &DingTalkSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
) -> SimResponse {
    let body = request.json().as_object().cloned().unwrap_or_default();
    if call.method == "gateway/connections/open" {
        return open_connection(world, request, &body);
    }
    let result = run(sim, world, call, request, &body);
    match result {
        Ok(value) => SimResponse::ok(&value),
        Err((status, code, message)) => {
            SimCounters::count(&mut world.counters.errors, code);
            failure(status, code, &message)
        }
    }
}

/// Opens a stream: answers with an endpoint and a ticket, as JSON only if JSON is accepted.
fn open_connection(
    world: &mut World,
    request: &SimRequest,
    body: &Map<String, Value>,
) -> SimResponse {
    let app = find_app(world, text_of(body, "clientId"), text_of(body, "clientSecret"));
    let Some(app) = app else {
        SimCounters::count(&mut world.counters.errors, "authFailed");
        return failure(
            StatusCode::UNAUTHORIZED,
            "authFailed",
            "clientId or clientSecret is wrong",
        );
    };
    let has_subscriptions = body.get("subscriptions").is_some_and(|list| {
        list.as_array().is_some_and(|list| list.iter().all(|entry| entry["topic"].is_string()))
    });
    if !has_subscriptions {
        let message = "subscriptions must be a list with type and topic";
        return failure(StatusCode::BAD_REQUEST, "invalidParameter.subscriptions", message);
    }
    let ticket = world.issue_ticket(app);
    let endpoint = format!("{}/connect", world.base_url.replacen("http://", "ws://", 1));
    if request.header("accept").is_some_and(|accept| accept.contains("application/json")) {
        return SimResponse::ok(&json!({"endpoint": endpoint, "ticket": ticket}));
    }
    let xml = format!(
        "<openConnectionResponse><endpoint>{endpoint}</endpoint><ticket>{ticket}</ticket>\
         </openConnectionResponse>"
    );
    SimResponse::text(StatusCode::OK, "application/xml", &xml)
}

/// Issues a token, if the call asks for one.
fn log_in(
    sim: &DingTalkSim,
    world: &mut World,
    method: &str,
    body: &Map<String, Value>,
) -> Option<ApiResult> {
    let is_new = match method.split('/').collect::<Vec<_>>().as_slice() {
        ["oauth2", "accessToken"] => false,
        ["oauth2", _, "token"] => true,
        _ => return None,
    };
    let (key, secret, code) = if is_new {
        ("client_id", "client_secret", "invalid.client")
    } else {
        ("appKey", "appSecret", "invalidClientIdOrSecret")
    };
    if is_new && text_of(body, "grant_type") != "client_credentials" {
        return Some(Err(invalid("unsupported.grant.type", "expected client_credentials")));
    }
    let Some(app) = find_app(world, text_of(body, key), text_of(body, secret)) else {
        return Some(Err(invalid(code, format!("{key} or {secret} is wrong"))));
    };
    let (token, seconds) = issue_token(sim, world, app);
    Some(Ok(if is_new {
        json!({"access_token": token, "expires_in": seconds})
    } else {
        json!({"accessToken": token, "expireIn": seconds})
    }))
}

fn run(
    sim: &DingTalkSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
    body: &Map<String, Value>,
) -> ApiResult {
    if let Some(result) = log_in(sim, world, &call.method, body) {
        return result;
    }
    let token = request.header("x-acs-dingtalk-access-token").unwrap_or_default();
    let app = token_app(sim, token).ok_or_else(|| {
        (
            StatusCode::UNAUTHORIZED,
            "InvalidAuthentication",
            "the access token is invalid".to_owned(),
        )
    })?;
    if world.settings.limits && sim.is_too_fast(app, &call.method, MAX_CALLS_PER_SECOND, 1000) {
        let code = "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi";
        return Err((StatusCode::FORBIDDEN, code, "the app calls this API too often".to_owned()));
    }
    if text_of(body, "robotCode") != app_key(app) {
        return Err(invalid("invalidParameter.robotCode", "the robotCode is not that of the app"));
    }
    match call.method.as_str() {
        "robot/messageFiles/download" => download_url(sim, world, body),
        "robot/oToMessages/batchSend" => batch_send(sim, world, app, body),
        "robot/groupMessages/send" => group_send(sim, world, app, body),
        "robot/otoMessages/batchRecall" | "robot/groupMessages/recall" => {
            recall(world, app, &call.method, body)
        }
        _ => Err((StatusCode::NOT_FOUND, "InvalidAction.NotFound", "no such API".to_owned())),
    }
}

fn download_url(sim: &DingTalkSim, world: &World, body: &Map<String, Value>) -> ApiResult {
    let mut state = sim.state();
    let file = state.codes.get(text_of(body, "downloadCode")).cloned();
    let file = file.ok_or_else(|| {
        invalid("invalidParameter.downloadCode", "the download code is unknown or has expired")
    })?;
    let key = random_hex();
    state.downloads.insert(key.clone(), file);
    Ok(json!({"downloadUrl": format!("{}/download/{key}", world.base_url)}))
}

/// The text and the files of a message by its key and parameters.
fn read_message(
    sim: &DingTalkSim,
    world: &World,
    body: &Map<String, Value>,
) -> Result<(String, Vec<Value>), ApiFailure> {
    let param = text_of(body, "msgParam");
    let param: Value = serde_json::from_str(param)
        .map_err(|_| invalid("invalidParameter.msgParam", "msgParam must be JSON as a string"))?;
    let field = |name: &str| {
        let text = param[name].as_str().filter(|text| !text.is_empty());
        let missing = || invalid("invalidParameter.msgParam", format!("msgParam has no {name}"));
        text.map(str::to_owned).ok_or_else(missing)
    };
    let media = |name: &str| describe_media(sim, world, &field(name)?);
    match text_of(body, "msgKey") {
        "sampleText" => Ok((field("content")?, Vec::new())),
        "sampleMarkdown" => {
            field("title")?;
            Ok((field("text")?, Vec::new()))
        }
        "sampleImageMsg" => {
            let photo = field("photoURL")?;
            if !photo.starts_with('@') {
                return Ok((photo, Vec::new()));
            }
            Ok((String::new(), vec![describe_media(sim, world, &photo)?]))
        }
        "sampleFile" => {
            let mut file = media("mediaId")?;
            field("fileType")?;
            file["title"] = json!(field("fileName")?);
            Ok((String::new(), vec![file]))
        }
        "sampleAudio" => {
            field("duration")?;
            Ok((String::new(), vec![media("mediaId")?]))
        }
        "sampleVideo" => {
            field("duration")?;
            Ok((String::new(), vec![media("videoMediaId")?]))
        }
        "sampleLink" | "sampleActionCard" => Ok((field("text")?, Vec::new())),
        key => Err(invalid("invalidParameter.msgKey", format!("unknown msgKey {key:?}"))),
    }
}

/// The file of a media id, as `GET /control/sent` shows it.
fn describe_media(sim: &DingTalkSim, world: &World, media: &str) -> Result<Value, ApiFailure> {
    let state = sim.state();
    let file = state.media.get(media).and_then(|id| world.store.file(id));
    let file =
        file.ok_or_else(|| invalid("invalidParameter.mediaId", "the media id is unknown"))?;
    Ok(json!({
        "id": file.id, "media_id": media, "name": file.name, "size": file.content.size(),
        "sha256": file.content.sha256(),
    }))
}

/// Records what the bot sent.
pub fn record(
    world: &mut World,
    app: usize,
    via: &str,
    chat: &str,
    id: Option<&str>,
    content: (String, Vec<Value>),
    request: Value,
) {
    let (text, files) = content;
    world.store.record_sent(SentRecord {
        app,
        via: via.to_owned(),
        chat: chat.to_owned(),
        id: id.map(str::to_owned),
        text,
        files,
        request,
        ..SentRecord::default()
    });
}

fn batch_send(
    sim: &DingTalkSim,
    world: &mut World,
    app: usize,
    body: &Map<String, Value>,
) -> ApiResult {
    let users = body.get("userIds").and_then(Value::as_array).cloned().unwrap_or_default();
    if users.is_empty() || users.len() > MAX_USERS {
        return Err(invalid(
            "invalidParameter.userIds",
            format!("expected 1 to {MAX_USERS} userIds"),
        ));
    }
    let content = read_message(sim, world, body)?;
    let key = random_hex();
    let (mut unknown, mut held) = (Vec::new(), Vec::new());
    for user in users.iter().filter_map(Value::as_str) {
        if !world.store.users.contains_key(user) {
            unknown.push(user);
        } else if ChaosSwitches::take(&mut world.chaos.flow_control) {
            held.push(user);
        } else {
            let request = Value::Object(body.clone());
            let via = "robot/oToMessages/batchSend";
            record(world, app, via, user, Some(&key), content.clone(), request);
        }
    }
    Ok(json!({
        "processQueryKey": key, "invalidStaffIdList": unknown,
        "flowControlledStaffIdList": held, "filteredStaffIdList": [],
    }))
}

fn group_send(
    sim: &DingTalkSim,
    world: &mut World,
    app: usize,
    body: &Map<String, Value>,
) -> ApiResult {
    let id = text_of(body, "openConversationId").to_owned();
    let chat = world.store.chats.get(&id).filter(|chat| chat.kind == SimChatKind::Group);
    if chat.is_none_or(|chat| chat.is_archived) {
        let code = "invalidParameter.openConversationId";
        return Err(invalid(code, "the conversation is unknown or was disbanded"));
    }
    let content = read_message(sim, world, body)?;
    let key = random_hex();
    let request = Value::Object(body.clone());
    record(world, app, "robot/groupMessages/send", &id, Some(&key), content, request);
    Ok(json!({"processQueryKey": key}))
}

fn recall(world: &mut World, app: usize, method: &str, body: &Map<String, Value>) -> ApiResult {
    let keys = body.get("processQueryKeys").and_then(Value::as_array).cloned().unwrap_or_default();
    let chat = text_of(body, "openConversationId").to_owned();
    for key in keys.iter().filter_map(Value::as_str) {
        let request = Value::Object(body.clone());
        record(world, app, method, &chat, Some(key), (String::new(), Vec::new()), request);
    }
    Ok(json!({"successResult": keys, "failedResult": {}}))
}
