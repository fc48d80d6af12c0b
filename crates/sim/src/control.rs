//! The control API: by it a person or a test acts in the chats, sees what the bot sent, and switches
//! faults on. `docs/sim.md` describes each request.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::clock::now_ms;
use crate::counters::SimCounters;
use crate::http::{SimRequest, SimResponse};
use crate::push::{self, PushUrl};
use crate::random::random_hex;
use crate::settings::SettingsChange;
use crate::store::{FileContent, MAX_FILE_BYTES, SimFile};
use crate::world::{SimHub, World};

mod faults;
mod people;
mod requests;

use faults::switch_chaos;
pub use people::find_person;
pub use requests::{EditRequest, FileSpec, MemberRequest, ReactRequest, RecallRequest, SayRequest};

/// Sends that one page of `GET /control/sent` has at most.
const MAX_SENT_PAGE: usize = 10_000;

/// Most messages that one `say` creates.
const MAX_SAY_COUNT: u64 = 1_000_000;

/// Why a control request is rejected.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ControlError(pub String);

impl ControlError {
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

/// A URL that receives events by HTTP; without a URL they go to sockets again.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PushUrlRequest {
    app: usize,
    url: Option<String>,
}

/// Handles one control request; `name` is the path behind `/control/`.
pub async fn handle(hub: &Arc<SimHub>, name: &str, request: &SimRequest) -> SimResponse {
    if request.method == Method::GET {
        return show(hub, name, request);
    }
    let result = match name {
        "say" => parse(request).and_then(|say| say_many(hub, say)),
        "push" => match parse::<PushUrlRequest>(request) {
            Ok(push) => set_push_url(hub, push).await,
            Err(error) => Err(error),
        },
        _ => {
            let mut world = hub.lock();
            let result = act(hub, &mut world, name, request);
            hub.pump(&mut world);
            result
        }
    };
    match result {
        Ok(value) => SimResponse::ok(&value),
        Err(error) => {
            SimResponse::json(StatusCode::BAD_REQUEST, &json!({"error": error.to_string()}))
        }
    }
}

fn parse<T: DeserializeOwned>(request: &SimRequest) -> Result<T, ControlError> {
    let body = if request.body.is_empty() { &b"{}"[..] } else { &request.body };
    serde_json::from_slice(body)
        .map_err(|error| ControlError(format!("cannot read the body: {error}; see docs/sim.md")))
}

/// Executes a request that changes the world at once.
fn act(
    hub: &SimHub,
    world: &mut World,
    name: &str,
    request: &SimRequest,
) -> Result<Value, ControlError> {
    let provider = &hub.provider;
    match name {
        "edit" => provider.edit(world, &parse(request)?),
        "recall" => provider.recall(world, &parse(request)?),
        "react" => provider.react(world, &parse(request)?),
        "join" => provider.member(world, &parse(request)?, true),
        "leave" => provider.member(world, &parse(request)?, false),
        "file" => add_uploaded(world, request),
        "chaos" => Ok(switch_chaos(hub, world, parse(request)?)),
        "settings" => {
            world.settings.apply(parse::<SettingsChange>(request)?);
            Ok(json!(world.settings))
        }
        "reset" => {
            world.counters = SimCounters::default();
            world.store.sent.clear();
            Ok(json!({"ok": true}))
        }
        _ => provider.control(world, name, &request.json()).unwrap_or_else(|| {
            Err(ControlError(format!("there is no POST /control/{name}; see docs/sim.md")))
        }),
    }
}

/// Answers a `GET` request without changing anything.
fn show(hub: &SimHub, name: &str, request: &SimRequest) -> SimResponse {
    let world = hub.lock();
    match name {
        "sent" => SimResponse::ok(&sent(&world, request)),
        "state" => {
            let mut state = world.describe();
            state["network"] = hub.provider.state();
            SimResponse::ok(&state)
        }
        "chaos" => SimResponse::ok(&json!(world.chaos)),
        "settings" => SimResponse::ok(&json!(world.settings)),
        "users" => SimResponse::ok(&json!(world.store.users)),
        "chats" => {
            let chats = world.store.chats.values().map(|chat| {
                json!({"id": chat.id, "name": chat.name, "kind": chat.kind,
                       "members": chat.members, "archived": chat.is_archived})
            });
            SimResponse::ok(&chats.collect())
        }
        _ => match name.strip_prefix("files/").and_then(|id| world.store.file(id)) {
            Some(file) => SimResponse {
                status: StatusCode::OK,
                headers: vec![("content-type", file.mime_type.clone())],
                body: file.content.clone(),
                hang: None,
            },
            None => SimResponse::not_found(&request.path),
        },
    }
}

/// The sends after `?after=SEQ`, optionally of one `chat` or one `app`.
fn sent(world: &World, request: &SimRequest) -> Value {
    let number = |name: &str| request.query_value(name).and_then(|value| value.parse::<u64>().ok());
    let (after, app, chat) =
        (number("after").unwrap_or(0), number("app"), request.query_value("chat"));
    let first = world.store.sent.partition_point(|record| record.seq <= after);
    let wanted = world.store.sent.range(first..).filter(|record| {
        app.is_none_or(|app| record.app as u64 == app)
            && chat.as_ref().is_none_or(|chat| record.chat == *chat)
    });
    json!({"sent": wanted.take(MAX_SENT_PAGE).collect::<Vec<_>>()})
}

/// Says something once, or `count` times, at once or at a rate.
fn say_many(hub: &Arc<SimHub>, request: SayRequest) -> Result<Value, ControlError> {
    let Some(count) = request.count else {
        let mut world = hub.lock();
        check_room(&world, &request)?;
        let result = hub.provider.say(&mut world, &request);
        hub.pump(&mut world);
        return result;
    };
    if count > MAX_SAY_COUNT {
        return Err(ControlError(format!("found count {count}, expected at most {MAX_SAY_COUNT}")));
    }
    match request.rate {
        None => {
            let (first, last) = say_range(hub, &request, 1..=count)?;
            Ok(json!({"count": count, "first": first, "last": last}))
        }
        Some(rate) if rate > 0.0 && rate.is_finite() => {
            let shared = Arc::clone(hub);
            hub.tasks.spawn(async move { say_at_rate(&shared, &request, count, rate).await });
            Ok(json!({"count": count, "rate": rate}))
        }
        Some(rate) => Err(ControlError(format!("found rate {rate}, expected more than 0"))),
    }
}

fn check_room(world: &World, request: &SayRequest) -> Result<(), ControlError> {
    if request.app >= world.apps {
        let message = format!("there is no app {}; start the emulator with --apps", request.app);
        return Err(ControlError(message));
    }
    if world.has_room() {
        return Ok(());
    }
    Err(ControlError::new(
        "too many events are not acknowledged; raise max_events by /control/settings",
    ))
}

/// Says the messages with these numbers; returns the answers to the first and the last.
fn say_range(
    hub: &SimHub,
    request: &SayRequest,
    numbers: std::ops::RangeInclusive<u64>,
) -> Result<(Value, Value), ControlError> {
    let mut world = hub.lock();
    let (mut first, mut last) = (Value::Null, Value::Null);
    for number in numbers {
        check_room(&world, request)?;
        let mut one = request.clone();
        one.text = request.text.replace("{n}", &number.to_string());
        last = hub.provider.say(&mut world, &one)?;
        if first.is_null() {
            first = last.clone();
        }
    }
    hub.pump(&mut world);
    Ok((first, last))
}

/// Says messages at a rate until all are said or the emulator stops. A full queue delays them.
async fn say_at_rate(hub: &SimHub, request: &SayRequest, count: u64, rate: f64) {
    let start = tokio::time::Instant::now();
    for number in 1..=count {
        let at = start + Duration::from_secs_f64((number - 1) as f64 / rate);
        tokio::select! {
            () = hub.stop.cancelled() => return,
            () = tokio::time::sleep_until(at) => {}
        }
        while say_range(hub, request, number..=number).is_err() {
            tokio::select! {
                () = hub.stop.cancelled() => return,
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
        }
    }
}

/// Stores a file that is the body of `POST /control/file?name=…&mime_type=…`.
fn add_uploaded(world: &mut World, request: &SimRequest) -> Result<Value, ControlError> {
    let name = request.query_value("name").unwrap_or_else(|| "file.bin".to_owned());
    let mime_type = request.query_value("mime_type");
    let content = FileContent::Bytes(request.body.clone());
    let id = new_file(world, &name, mime_type, content);
    Ok(json!({"id": id}))
}

fn new_file(world: &mut World, name: &str, mime: Option<String>, content: FileContent) -> String {
    let id = format!("F{}", random_hex()[..10].to_uppercase());
    world.store.add_file(SimFile {
        id: id.clone(),
        name: name.to_owned(),
        mime_type: mime.unwrap_or_else(|| "application/octet-stream".to_owned()),
        content,
        created: now_ms() / 1000,
        owner: String::new(),
    });
    id
}

/// Returns the files of a message; those that are given by content are stored first.
pub fn resolve_files(world: &mut World, specs: &[FileSpec]) -> Result<Vec<SimFile>, ControlError> {
    let mut files = Vec::new();
    for spec in specs {
        let id = match &spec.id {
            Some(id) => id.clone(),
            None => {
                let name = spec.name.as_deref().unwrap_or("file.bin");
                let content = file_content(spec)?;
                new_file(world, name, spec.mime_type.clone(), content)
            }
        };
        let file = world.store.file(&id).cloned();
        files.push(file.ok_or_else(|| ControlError(format!("there is no file {id:?}")))?);
    }
    Ok(files)
}

fn file_content(spec: &FileSpec) -> Result<FileContent, ControlError> {
    let content = match (&spec.text, &spec.base64, spec.size) {
        (Some(text), None, None) => FileContent::bytes(text.clone()),
        (None, Some(base64), None) => {
            let bytes = STANDARD.decode(base64).map_err(|error| {
                ControlError(format!("cannot decode base64 of a file: {error}"))
            })?;
            FileContent::bytes(bytes)
        }
        (None, None, Some(size)) => FileContent::Pattern(size),
        _ => return Err(ControlError::new("a file needs one of id, text, base64 and size")),
    };
    if content.size() > MAX_FILE_BYTES as u64 && spec.size.is_none() {
        return Err(ControlError(format!("a file has more than {MAX_FILE_BYTES} bytes; use size")));
    }
    Ok(content)
}

/// Sets the URL that receives events, and checks it as the network does.
async fn set_push_url(hub: &SimHub, request: PushUrlRequest) -> Result<Value, ControlError> {
    let Some(url) = request.url else {
        let mut world = hub.lock();
        world.push_urls.remove(&request.app);
        hub.pump(&mut world);
        return Ok(json!({"ok": true}));
    };
    let parsed = PushUrl::parse(&url).map_err(ControlError)?;
    let timeout = Duration::from_millis(hub.lock().settings.push_timeout_ms);
    if let Some((challenge, expected)) = hub.provider.push_challenge(request.app) {
        let answer = push::send(&parsed, challenge, timeout).await.map_err(|reason| {
            ControlError(format!("the URL did not answer the challenge: {reason}"))
        })?;
        let json: Value = serde_json::from_str(&answer.body).unwrap_or(Value::Null);
        let is_right = json["challenge"] == expected.as_str() || answer.body.trim() == expected;
        if answer.status != 200 || !is_right {
            let found = answer.status;
            return Err(ControlError(format!(
                "the URL did not answer the challenge: found status {found} and another body, \
                 expected 200 and the challenge"
            )));
        }
    }
    let mut world = hub.lock();
    world.push_urls.insert(request.app, url);
    hub.pump(&mut world);
    Ok(json!({"ok": true}))
}
