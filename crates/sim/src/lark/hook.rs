//! Custom robots: a URL per group, with a signature and rate limits of its own.

use hyper::StatusCode;
use serde_json::{Map, Value, json};

use super::{LarkSim, REJECTED, events};
use crate::clock::now_ms;
use crate::counters::SimCounters;
use crate::http::{SimRequest, SimResponse, number_of, text_of};
use crate::signature::lark_sign;
use crate::store::SentRecord;
use crate::world::World;

/// The group that custom robots write to.
pub const CHAT: &str = "oc_ops";

/// Code of a robot that sends too often.
pub const TOO_FAST: i64 = 11_232;

const BAD_REQUEST: i64 = 9_499;
const WRONG_SIGN: i64 = 19_021;

const MAX_BODY_BYTES: usize = 20 << 10;

/// Messages of a robot per second and per minute, when limits are enforced.
const MAX_PER_SECOND: usize = 5;
const MAX_PER_MINUTE: usize = 100;

/// How far the timestamp of a signature may differ from the clock, in seconds.
const MAX_SKEW: u64 = 3600;

/// Last part of the URL of the robot of an app.
pub fn robot_token(app: usize) -> String {
    format!("sim-hook-{app}")
}

pub fn robot_secret(app: usize) -> String {
    format!("sim-hook-secret-{app}")
}

pub fn find_app(world: &World, token: &str) -> Option<usize> {
    (0..world.apps).find(|app| robot_token(*app) == token)
}

/// Handles a message of a custom robot.
pub fn send(
    sim: &LarkSim,
    world: &mut World,
    token: &str,
    request: &SimRequest,
    body: &Map<String, Value>,
) -> SimResponse {
    let (status, code, message) = match check(sim, world, token, request, body) {
        Ok((app, text)) => {
            record(world, app, text, body);
            return SimResponse::ok(&json!({
                "code": 0, "msg": "success", "data": {}, "StatusCode": 0,
                "StatusMessage": "success",
            }));
        }
        Err(failure) => failure,
    };
    SimCounters::count(&mut world.counters.errors, &code.to_string());
    SimResponse::json(status, &json!({"code": code, "msg": message, "data": {}}))
}

type HookFailure = (StatusCode, i64, &'static str);

/// Checks a message; returns the app of the robot and the text.
fn check(
    sim: &LarkSim,
    world: &World,
    token: &str,
    request: &SimRequest,
    body: &Map<String, Value>,
) -> Result<(usize, String), HookFailure> {
    let app =
        find_app(world, token).ok_or((REJECTED, 19_001, "param invalid: incoming webhook"))?;
    let timestamp = number_of(body, "timestamp").unwrap_or(0);
    let is_recent = timestamp.abs_diff(now_ms() / 1000) <= MAX_SKEW;
    if !is_recent || text_of(body, "sign") != lark_sign(&robot_secret(app), timestamp) {
        let message = "sign match fail or timestamp is not within one hour from current time";
        return Err((StatusCode::OK, WRONG_SIGN, message));
    }
    let text = read_text(request, body).ok_or((REJECTED, BAD_REQUEST, "Bad Request"))?;
    let (key, now, calls) = (robot_token(app), now_ms(), &mut sim.state().calls);
    if world.settings.limits
        && (calls.is_too_fast(&format!("{key}/s"), MAX_PER_SECOND, 1000, now)
            || calls.is_too_fast(&format!("{key}/m"), MAX_PER_MINUTE, 60_000, now))
    {
        return Err((StatusCode::OK, TOO_FAST, "frequency limited"));
    }
    Ok((app, text))
}

/// The text of a message; its content is an object, other than in the API.
fn read_text(request: &SimRequest, body: &Map<String, Value>) -> Option<String> {
    if request.body.len() > MAX_BODY_BYTES {
        return None;
    }
    let content = body.get("content").unwrap_or(&Value::Null);
    match text_of(body, "msg_type") {
        "text" => content["text"].as_str().map(str::to_owned),
        "post" => content["post"].is_object().then(|| content["post"].to_string()),
        "image" => content["image_key"].as_str().map(str::to_owned),
        "share_chat" => content["share_chat_id"].as_str().map(str::to_owned),
        "interactive" => body.get("card").filter(|card| card.is_object()).map(Value::to_string),
        _ => None,
    }
}

fn record(world: &mut World, app: usize, text: String, body: &Map<String, Value>) {
    let mut request = body.clone();
    request.remove("sign");
    world.store.record_sent(SentRecord {
        app,
        via: "hook".to_owned(),
        chat: CHAT.to_owned(),
        id: Some(events::new_message_id()),
        text,
        request: Value::Object(request),
        ..SentRecord::default()
    });
}
