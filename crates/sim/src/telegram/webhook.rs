//! Webhooks: the methods that set and show them, callbacks with one update each, and answers to
//! callbacks that are method calls.

use serde_json::{Value, json};

use super::api::{SimTelegramCall, SimTelegramFailure, SimTelegramResult, execute_answer};
use super::updates::{WEBHOOK_SET, set_allowed, update_text};
use super::{TelegramSim, WRONG_SECRET};
use crate::chaos::PushSigner;
use crate::clock::{now_ms, now_us};
use crate::control::ControlError;
use crate::event_queue::SimEvent;
use crate::provider::PushRequest;
use crate::push::{PushResult, PushUrl};
use crate::world::World;

/// Time between two calls that set a webhook, in microseconds.
const SET_PAUSE_US: u64 = 1_000_000;

/// Longest pause that a receiver can ask for, in seconds.
const MAX_RETRY_AFTER: u64 = 3600;

const HTTPS_PORTS: [u16; 4] = [80, 88, 443, 8443];

/// A webhook that a bot has set.
pub struct SimWebhook {
    pub url: String,
    secret: String,
    max_connections: i64,
    ip_address: String,
    /// Unix time in seconds and text of the last failed callback.
    last_error: Option<(u64, String)>,
    set_us: u64,
}

/// The loopback URL that callbacks to a webhook go to; `None` if there is none.
fn deliver_to(url: &str, proxy: Option<&str>) -> Option<String> {
    let Some(rest) = url.strip_prefix("https://") else { return Some(url.to_owned()) };
    let path = rest.split_once('/').map_or("", |(_, path)| path);
    Some(format!("{}/{path}", proxy?.trim_end_matches('/')))
}

/// Checks the URL of a webhook. Loopback URLs need no TLS, unlike those of Telegram.
fn check_url(url: &str) -> Result<(), SimTelegramFailure> {
    let Some(rest) = url.strip_prefix("https://") else {
        return PushUrl::parse(url).map(|_| ()).map_err(|_| {
            SimTelegramFailure::bad("bad webhook: An HTTPS URL must be provided for webhook")
        });
    };
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let invalid = || SimTelegramFailure::bad("invalid webhook URL specified");
    let port = match host.rsplit_once(':') {
        Some((_, port)) if !host.ends_with(']') => port.parse().map_err(|_| invalid())?,
        _ => 443,
    };
    if host.is_empty() {
        return Err(invalid());
    }
    if !HTTPS_PORTS.contains(&port) {
        let reason = "bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443";
        return Err(SimTelegramFailure::bad(reason));
    }
    Ok(())
}

fn check_secret(secret: &str) -> Result<(), SimTelegramFailure> {
    if secret.len() > 256 {
        return Err(SimTelegramFailure::bad("secret token is too long"));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if secret.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(SimTelegramFailure::bad("secret token contains unallowed characters"))
}

/// Sets a webhook. An empty URL removes it.
pub fn set(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let url = call.params.text("url");
    if url.is_empty() {
        return delete(world, call);
    }
    let now = now_us();
    let last_set = call.sim.state().bots[call.app].webhook.as_ref().map(|webhook| webhook.set_us);
    if last_set.is_some_and(|at| now < at + SET_PAUSE_US) {
        return Err(SimTelegramFailure::new(429, "Too Many Requests").with("retry_after", json!(1)));
    }
    let secret = call.params.text("secret_token");
    check_url(&url)?;
    check_secret(&secret)?;
    set_allowed(call.sim, call.app, call.params);
    if call.params.flag("drop_pending_updates") {
        drop_pending(world, call.app);
    }
    let mut state = call.sim.state();
    let address = deliver_to(&url, state.proxy.as_deref());
    let bot = &mut state.bots[call.app];
    bot.polls.end_parked(WEBHOOK_SET, now);
    let last_error = match address {
        Some(address) => {
            world.push_urls.insert(call.app, address);
            None
        }
        None => Some((now_ms() / 1000, "Connection refused".to_owned())),
    };
    bot.webhook = Some(SimWebhook {
        url,
        secret,
        max_connections: call.params.integer("max_connections").unwrap_or(40).clamp(1, 100),
        ip_address: call.params.text("ip_address"),
        last_error,
        set_us: now,
    });
    Ok(json!(true))
}

/// Removes the webhook; the updates that it has not confirmed wait for `getUpdates`.
pub fn delete(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    call.sim.state().bots[call.app].webhook = None;
    world.push_urls.remove(&call.app);
    world.queue.end_pauses(call.app);
    if call.params.flag("drop_pending_updates") {
        drop_pending(world, call.app);
    }
    Ok(json!(true))
}

fn drop_pending(world: &mut World, app: usize) {
    world.queue.end_pauses(app);
    world.queue.keep_newest(app, 0);
}

pub fn info(world: &mut World, call: &SimTelegramCall<'_>) -> SimTelegramResult {
    let state = call.sim.state();
    let bot = &state.bots[call.app];
    let pushed = world.push_urls.get(&call.app).cloned().unwrap_or_default();
    let mut info = json!({
        "url": bot.webhook.as_ref().map_or(pushed, |webhook| webhook.url.clone()),
        "has_custom_certificate": false,
        "pending_update_count": world.queue.waiting(call.app),
    });
    if let Some(webhook) = &bot.webhook {
        info["max_connections"] = json!(webhook.max_connections);
        let is_fixed = !webhook.ip_address.is_empty();
        info["ip_address"] = json!(if is_fixed { &webhook.ip_address } else { "127.0.0.1" });
        if let Some((date, message)) = &webhook.last_error {
            info["last_error_date"] = json!(date);
            info["last_error_message"] = json!(message);
        }
    }
    if let Some(kinds) = &bot.allowed {
        info["allowed_updates"] = json!(kinds);
    }
    Ok(info)
}

/// The callback with an update. A forged one carries another secret token, or none.
pub fn callback(sim: &TelegramSim, event: &SimEvent, signer: &PushSigner) -> PushRequest {
    let body = update_text(sim, event);
    let state = sim.state();
    let secret = signer.secret(|app| {
        let webhook = state.bots.get(app).map(|bot| bot.webhook.as_ref());
        let known = webhook.map(|webhook| webhook.map(|webhook| webhook.secret.clone()));
        known.map_or_else(|| WRONG_SECRET.to_owned(), Option::unwrap_or_default)
    });
    let token = (!secret.is_empty()).then_some(("x-telegram-bot-api-secret-token", secret));
    let mut headers = signer.headers(("content-type", "application/json".to_owned()), token);
    headers.push(("accept-encoding", "gzip, deflate".to_owned()));
    PushRequest { headers, body }
}

/// Milliseconds until a failed callback is sent again: what the receiver asks for, or the pauses of
/// the settings, of which the last is repeated until the update is too old.
pub fn pause(world: &World, event: &SimEvent, result: &PushResult) -> Option<u64> {
    let asked = result.as_ref().ok().and_then(|answer| answer.retry_after).unwrap_or(0);
    let pauses = &world.settings.push_retries_ms;
    let usual = pauses.get(event.attempt as usize).or(pauses.last()).copied().unwrap_or(1000);
    let pause = if asked > 0 { asked.min(MAX_RETRY_AFTER) * 1000 } else { usual };
    let expires_us = event.created_us + world.settings.ack_timeout_ms * 1000;
    (now_us() + pause * 1000 <= expires_us).then_some(pause)
}

/// Executes the method call in the answer to a callback, or notes why the callback failed.
pub fn use_answer(sim: &TelegramSim, world: &mut World, event: &SimEvent, result: &PushResult) {
    let error = match result {
        Ok(answer) if (200..300).contains(&answer.status) => {
            execute_answer(sim, world, event.app, answer);
            return;
        }
        Ok(answer) => {
            let reason = super::status(answer.status);
            format!("Wrong response from the webhook: {reason}")
        }
        Err("http_timeout") => "Read timeout expired".to_owned(),
        Err(_) => "Connection refused".to_owned(),
    };
    if let Some(webhook) = &mut sim.state().bots[event.app].webhook {
        webhook.last_error = Some((now_ms() / 1000, error));
    }
}

/// `POST /control/proxy`: callbacks to `https` URLs go to the same path of this loopback URL, as a
/// TLS proxy in front of the bot would send them.
pub fn set_proxy(
    sim: &TelegramSim,
    world: &mut World,
    body: &Value,
) -> Result<Value, ControlError> {
    let proxy = body["url"].as_str().map(str::to_owned);
    if let Some(url) = &proxy {
        PushUrl::parse(url).map_err(ControlError)?;
    }
    let mut state = sim.state();
    state.proxy.clone_from(&proxy);
    for (app, bot) in state.bots.iter().enumerate() {
        let Some(webhook) = &bot.webhook else { continue };
        match deliver_to(&webhook.url, proxy.as_deref()) {
            Some(address) => world.push_urls.insert(app, address),
            None => world.push_urls.remove(&app),
        };
    }
    Ok(json!({"url": proxy}))
}
