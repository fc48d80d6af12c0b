//! The old API: always HTTP 200, with an `errcode`. Also session webhooks, custom robots and the
//! bytes of files.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::api::{find_app, issue_token, record, token_app};
use super::{DingTalkSim, robot_secret, robot_token};
use crate::chaos::ApiCall;
use crate::clock::now_ms;
use crate::counters::SimCounters;
use crate::http::{SimRequest, SimResponse};
use crate::multipart::parse_multipart;
use crate::random::random_hex;
use crate::signature::dingtalk_sign;
use crate::store::{FileContent, SimFile};
use crate::world::World;

/// Largest message of a robot, in bytes.
const MAX_MESSAGE_BYTES: usize = 20_000;

/// Messages of a custom robot per minute.
const MAX_PER_MINUTE: usize = 20;

/// How far the timestamp of a signature may differ from the clock.
const MAX_SKEW_MS: u64 = 3_600_000;

/// The group that custom robots write to.
const ROBOT_CHAT: &str = "cidOPS==";

/// A failed call: code and message.
type OldFailure = (i64, String);

/// An error in the form of the old API.
pub fn failure(code: i64, message: &str) -> SimResponse {
    SimResponse::ok(&json!({"errcode": code, "errmsg": message}))
}

/// Executes a call of the old API, or sends a file.
pub fn execute(
    sim: &DingTalkSim,
    world: &mut World,
    call: &ApiCall,
    request: &SimRequest,
) -> SimResponse {
    let result = match call.method.as_str() {
        "download" => return download(sim, world, request),
        "gettoken" => get_token(sim, world, request),
        "media/upload" => upload(sim, world, request),
        "robot/sendBySession" => send_by_session(sim, world, request),
        "robot/send" => send_by_robot(sim, world, request),
        _ => return SimResponse::not_found(&request.path),
    };
    match result {
        Ok(mut body) => {
            body["errcode"] = json!(0);
            body["errmsg"] = json!("ok");
            SimResponse::ok(&body)
        }
        Err((code, message)) => {
            SimCounters::count(&mut world.counters.errors, &code.to_string());
            failure(code, &message)
        }
    }
}

fn download(sim: &DingTalkSim, world: &World, request: &SimRequest) -> SimResponse {
    let key = request.path.trim_start_matches("/download/");
    let state = sim.state();
    let file = state.downloads.get(key).and_then(|id| world.store.file(id));
    match file {
        Some(file) if request.method == Method::GET => SimResponse::file(file),
        _ => SimResponse::text(StatusCode::FORBIDDEN, "application/xml", "<Error>expired</Error>"),
    }
}

fn get_token(
    sim: &DingTalkSim,
    world: &mut World,
    request: &SimRequest,
) -> Result<Value, OldFailure> {
    let value = |name: &str| request.query_value(name).unwrap_or_default();
    let app = find_app(world, &value("appkey"), &value("appsecret"));
    let app = app.ok_or_else(|| (40_089, "wrong appkey or appsecret".to_owned()))?;
    let (token, seconds) = issue_token(sim, world, app);
    Ok(json!({"access_token": token, "expires_in": seconds}))
}

/// The app of the token in the query.
fn query_app(sim: &DingTalkSim, request: &SimRequest) -> Result<usize, OldFailure> {
    let token = request.query_value("access_token").unwrap_or_default();
    token_app(sim, &token).ok_or_else(|| {
        let state = sim.state();
        let is_known = state.old_tokens.get(&token).is_some()
            || state.tokens.values().any(|known| known.text == token);
        if is_known {
            (42_001, "the access token has expired".to_owned())
        } else {
            (40_014, "the access token is invalid".to_owned())
        }
    })
}

fn upload(sim: &DingTalkSim, world: &mut World, request: &SimRequest) -> Result<Value, OldFailure> {
    query_app(sim, request)?;
    let kind = request.header("content-type").unwrap_or_default();
    let parts = parse_multipart(kind, &request.body);
    let parts = parts.ok_or_else(|| (40_035, "the body is not multipart/form-data".to_owned()))?;
    let field = parts.iter().find(|part| part.name == "type");
    let media_type = field.map(|part| String::from_utf8_lossy(&part.content).into_owned());
    let media_type = media_type.or_else(|| request.query_value("type")).unwrap_or_default();
    let max_mb = match media_type.as_str() {
        "image" => 10,
        "voice" => 2,
        "video" | "file" => 20,
        _ => return Err((40_004, format!("unknown media type {media_type:?}"))),
    };
    let media = parts.into_iter().find(|part| part.name == "media");
    let media = media.ok_or_else(|| (40_035, "the form has no field `media`".to_owned()))?;
    if media.content.len() > max_mb << 20 {
        return Err((40_006, format!("the file has more than {max_mb} MB")));
    }
    let (id, media_id) = (random_hex(), format!("@lA{}", random_hex()));
    world.store.add_file(SimFile {
        id: id.clone(),
        name: media.file_name.unwrap_or_else(|| "file".to_owned()),
        mime_type: "application/octet-stream".to_owned(),
        content: FileContent::Bytes(media.content),
        created: now_ms() / 1000,
        owner: String::new(),
    });
    sim.state().media.insert(media_id.clone(), id);
    Ok(json!({"type": media_type, "media_id": media_id, "created_at": now_ms()}))
}

/// Reads a message of a session webhook or custom robot; returns its text.
fn read_message(request: &SimRequest) -> Result<(String, Value), OldFailure> {
    let is_json = request.header("content-type").is_some_and(|kind| kind.contains("json"));
    if !is_json {
        return Err((43_004, "the content type must be application/json".to_owned()));
    }
    if request.body.len() > MAX_MESSAGE_BYTES {
        return Err((460_101, format!("message too long, exceed {MAX_MESSAGE_BYTES} bytes")));
    }
    let body = request.json();
    let kind = body["msgtype"].as_str().unwrap_or_default().to_owned();
    let content = &body[kind.as_str()];
    let text = match kind.as_str() {
        "text" => content["content"].as_str(),
        "markdown" | "link" | "actionCard" => content["text"].as_str(),
        "feedCard" => Some("feedCard"),
        _ => return Err((400_105, format!("unsupported msgtype {kind:?}"))),
    };
    let text = text.filter(|text| !text.is_empty()).map(str::to_owned);
    let text = text.ok_or_else(|| (40_035, format!("the message has no {kind} text")))?;
    if kind == "markdown" && content["title"].as_str().is_none_or(str::is_empty) {
        return Err((40_035, "the message has no markdown title".to_owned()));
    }
    Ok((text, body))
}

fn send_by_session(
    sim: &DingTalkSim,
    world: &mut World,
    request: &SimRequest,
) -> Result<Value, OldFailure> {
    let key = request.query_value("session").unwrap_or_default();
    let session = sim.state().sessions.get(&key).cloned();
    let session = session.filter(|session| session.expires_ms > now_ms());
    let session =
        session.ok_or_else(|| (300_001, "the session is unknown or expired".to_owned()))?;
    let (text, body) = read_message(request)?;
    let content = (text, Vec::new());
    record(world, session.app, "robot/sendBySession", &session.chat, None, content, body);
    Ok(json!({}))
}

fn send_by_robot(
    sim: &DingTalkSim,
    world: &mut World,
    request: &SimRequest,
) -> Result<Value, OldFailure> {
    let token = request.query_value("access_token").unwrap_or_default();
    let app = (0..world.apps).find(|app| robot_token(*app) == token);
    let app = app.ok_or_else(|| (300_005, "token is not exist".to_owned()))?;
    check_sign(app, request)?;
    let (text, body) = read_message(request)?;
    check_pace(sim, world, app)?;
    record(world, app, "robot/send", ROBOT_CHAT, None, (text, Vec::new()), body);
    Ok(json!({}))
}

/// Checks `timestamp` and `sign` of the query.
fn check_sign(app: usize, request: &SimRequest) -> Result<(), OldFailure> {
    let timestamp = request.query_value("timestamp").and_then(|text| text.parse::<u64>().ok());
    let timestamp = timestamp.ok_or_else(|| (310_000, "invalid timestamp".to_owned()))?;
    if timestamp.abs_diff(now_ms()) > MAX_SKEW_MS {
        return Err((310_000, "invalid timestamp".to_owned()));
    }
    let sign = request.query_value("sign").unwrap_or_default();
    if sign != dingtalk_sign(&robot_secret(app), timestamp) {
        return Err((310_000, "sign not match".to_owned()));
    }
    Ok(())
}

/// Rejects a robot that sends more than 20 messages per minute, for a while.
fn check_pace(sim: &DingTalkSim, world: &World, app: usize) -> Result<(), OldFailure> {
    if !world.settings.limits {
        return Ok(());
    }
    let now = now_ms();
    let is_throttled = sim.state().throttled_until.get(&app).is_some_and(|until| *until > now);
    if !is_throttled && !sim.is_too_fast(app, "robot/send", MAX_PER_MINUTE, 60_000) {
        return Ok(());
    }
    if !is_throttled {
        sim.state().throttled_until.insert(app, now + world.settings.throttle_ms);
    }
    Err((130_101, "send too fast, exceed 20 times per minute".to_owned()))
}
