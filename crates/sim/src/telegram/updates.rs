//! `getUpdates`: the updates of a bot in order, confirmed by the offset of the next call.
//!
//! The rules are those of the server that Telegram has published: a call with an offset confirms all
//! updates before it; a call that finds no update waits; a second call that has to wait ends the
//! first one with a conflict; conflicts are answered at most every 3 s.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::api::{SimTelegramFailure, poll_app};
use super::params::SimTelegramParams;
use super::{TelegramSim, bot_id};
use crate::chaos::ApiCall;
use crate::clock::now_us;
use crate::control::ControlError;
use crate::counters::SimCounters;
use crate::event_queue::SimEvent;
use crate::http::{SimRequest, SimResponse};
use crate::provider::{PollFault, PollStep, PollTicket};
use crate::store::FileContent;
use crate::world::World;

/// Longest time that a call waits, in seconds.
const MAX_TIMEOUT: i64 = 50;

const MAX_LIMIT: i64 = 100;

/// Time in which a repeated call with the same offset is slowed down, in microseconds.
const REPEAT_US: u64 = 3_000_000;

/// Time in which a repeated call with the same offset gets one update, in microseconds.
const FAST_REPEAT_US: u64 = 500_000;

/// Time between two answers with a conflict, in microseconds.
const CONFLICT_PAUSE_US: u64 = 3_000_000;

/// Distance behind the newest update at which an offset is ignored.
const MAX_AHEAD: i64 = 10;

/// Distance before the newest update at which an offset is ignored.
const MAX_BEHIND: i64 = 2_000_000;

/// Time after which a call that was not answered is forgotten, in microseconds.
const STALE_US: u64 = 600_000_000;

/// Calls of one bot that are known at one time; the oldest is forgotten.
const MAX_POLLS: usize = 1000;

const OTHER_POLLER: &str = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running";

const WEBHOOK_ACTIVE: &str = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first";

pub const WEBHOOK_SET: &str = "Conflict: terminated by setWebhook request";

/// Kinds of updates that a bot gets without asking for them.
const DEFAULT_KINDS: [&str; 12] = [
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "inline_query",
    "chosen_inline_result",
    "callback_query",
    "poll",
    "poll_answer",
    "my_chat_member",
    "chat_join_request",
    "chat_boost",
];

/// Kinds of updates that a bot has to ask for.
const OTHER_KINDS: [&str; 3] = ["chat_member", "message_reaction", "message_reaction_count"];

/// A call that waits, or is about to be answered.
#[derive(Debug)]
enum Poll {
    /// Looks for updates until the deadline.
    Looking { offset: i64, limit: usize, deadline_us: u64, is_parked: bool },
    /// Is answered with a conflict at its time.
    Conflict { text: &'static str, due_us: u64 },
    /// Its connection is closed without an answer.
    Dropped,
}

/// The `getUpdates` calls of one bot.
#[derive(Debug, Default)]
pub struct PollBook {
    next_number: u64,
    polls: BTreeMap<PollTicket, Poll>,
    /// The call that waits. A newer one that has to wait ends it.
    parked: Option<PollTicket>,
    /// Calls that are not answered because of a fault.
    silenced: BTreeSet<PollTicket>,
    last_offset: Option<i64>,
    last_start_us: u64,
    next_conflict_us: u64,
    /// Number of the next calls that another instance of the bot ends.
    foreign_calls: u64,
}

impl PollBook {
    /// Calls that are not answered yet.
    pub fn open(&self) -> usize {
        self.polls.len()
    }

    fn add(&mut self, app: usize, poll: Poll, now: u64) -> PollTicket {
        self.next_number += 1;
        // The connections of calls that were not answered in time are closed.
        self.polls.retain(|_, poll| match poll {
            Poll::Looking { deadline_us: time, .. } | Poll::Conflict { due_us: time, .. } => {
                *time + STALE_US > now
            }
            Poll::Dropped => true,
        });
        let polls = &self.polls;
        self.silenced.retain(|ticket| polls.contains_key(ticket));
        // The number of the app is in the ticket, because a ticket is all that names a call.
        let ticket = PollTicket(self.next_number << 16 | app as u64);
        self.polls.insert(ticket, poll);
        while self.polls.len() > MAX_POLLS {
            self.polls.pop_first();
        }
        ticket
    }

    /// A conflict that is answered now, or 3 s later if there was one a moment ago.
    fn conflict(&mut self, text: &'static str, now: u64) -> Poll {
        if now >= self.next_conflict_us {
            self.next_conflict_us = now + CONFLICT_PAUSE_US;
            return Poll::Conflict { text, due_us: now };
        }
        Poll::Conflict { text, due_us: now + CONFLICT_PAUSE_US }
    }

    /// Ends the call that waits with a conflict.
    pub fn end_parked(&mut self, text: &'static str, now: u64) {
        if let Some(ticket) = self.parked.take()
            && self.polls.contains_key(&ticket)
        {
            let conflict = self.conflict(text, now);
            self.polls.insert(ticket, conflict);
        }
    }

    /// Lets a fault hit the calls that wait now.
    pub fn disturb(&mut self, fault: PollFault) {
        match fault {
            PollFault::Silence(true) => self.silenced.extend(self.polls.keys()),
            PollFault::Silence(false) => self.silenced.clear(),
            PollFault::Drop => {
                self.parked = None;
                for poll in self.polls.values_mut() {
                    *poll = Poll::Dropped;
                }
            }
        }
    }
}

/// Kinds of updates that a call asks for: `None` keeps the setting, an empty set is the default.
fn asked_kinds(params: &SimTelegramParams) -> Option<BTreeSet<String>> {
    let Some(Value::Array(names)) = params.json("allowed_updates") else { return None };
    let names: Option<Vec<_>> =
        names.iter().map(|name| Some(name.as_str()?.to_lowercase())).collect();
    let known = |name: &String| {
        DEFAULT_KINDS.contains(&name.as_str()) || OTHER_KINDS.contains(&name.as_str())
    };
    Some(names?.into_iter().filter(known).collect())
}

/// Applies `allowed_updates` of a call; it holds for updates that are created later.
pub fn set_allowed(sim: &TelegramSim, app: usize, params: &SimTelegramParams) {
    if let Some(kinds) = asked_kinds(params) {
        sim.state().bots[app].allowed = (!kinds.is_empty()).then_some(kinds);
    }
}

/// Adds an update for a bot, unless the bot has not asked for its kind. `lane` is the chat, whose
/// updates are pushed one after the other.
pub fn emit(
    sim: &TelegramSim,
    world: &mut World,
    app: usize,
    kind: &'static str,
    lane: &str,
    content: &Value,
) {
    let is_allowed = match &sim.state().bots[app].allowed {
        Some(kinds) => kinds.contains(kind),
        None => DEFAULT_KINDS.contains(&kind),
    };
    if is_allowed {
        world.emit(app, kind, lane.to_owned(), &json!({kind: content}));
    }
}

/// An update as the bot gets it: the payload with its id in front.
pub fn update_text(sim: &TelegramSim, event: &SimEvent) -> String {
    let id = sim.state().bots[event.app].update_base + place(event);
    format!(r#"{{"update_id":{id},{}"#, &event.payload[1..])
}

fn place(event: &SimEvent) -> i64 {
    i64::try_from(event.order).unwrap_or(i64::MAX)
}

/// Registers a `getUpdates` call with a valid token.
pub fn start_poll(
    sim: &TelegramSim,
    world: &mut World,
    _: &ApiCall,
    request: &SimRequest,
) -> Option<PollTicket> {
    let app = poll_app(sim, world, request)?;
    let params = SimTelegramParams::read(request);
    let now = now_us();
    let is_pushed = world.push_urls.contains_key(&app);
    if !is_pushed && sim.state().bots[app].webhook.is_none() {
        set_allowed(sim, app, &params);
    }
    let mut state = sim.state();
    let bot = &mut state.bots[app];
    let book = &mut bot.polls;
    if is_pushed || bot.webhook.is_some() {
        let conflict = book.conflict(WEBHOOK_ACTIVE, now);
        return Some(book.add(app, conflict, now));
    }
    if book.foreign_calls > 0 {
        book.foreign_calls -= 1;
        let conflict = book.conflict(OTHER_POLLER, now);
        return Some(book.add(app, conflict, now));
    }
    let offset = params.integer("offset").unwrap_or(0);
    let mut limit = params.integer("limit").unwrap_or(MAX_LIMIT).clamp(1, MAX_LIMIT);
    let mut timeout = params.integer("timeout").unwrap_or(0).clamp(0, MAX_TIMEOUT);
    let is_repeated = book.last_offset == Some(offset);
    if is_repeated && timeout < 3 && now < book.last_start_us + REPEAT_US {
        timeout = 3;
    }
    if is_repeated && now < book.last_start_us + FAST_REPEAT_US {
        limit = 1;
    }
    (book.last_offset, book.last_start_us) = (Some(offset), now);
    let deadline_us = now + u64::try_from(timeout).unwrap_or(0) * 1_000_000;
    let limit = usize::try_from(limit).unwrap_or(1);
    let poll = Poll::Looking { offset, limit, deadline_us, is_parked: false };
    Some(book.add(app, poll, now))
}

/// Answers a `getUpdates` call if there is something to answer, or lets it wait.
pub fn resume_poll(sim: &TelegramSim, world: &mut World, ticket: PollTicket) -> PollStep {
    let now = now_us();
    let app = usize::try_from(ticket.0 & 0xffff).unwrap_or(0);
    let mut state = sim.state();
    let book = &mut state.bots[app].polls;
    if book.silenced.contains(&ticket) {
        return PollStep::Wait(now + 60_000_000);
    }
    let (offset, limit, deadline_us, is_parked) = match book.polls.get(&ticket) {
        None => return PollStep::Answer(updates_response("")),
        Some(Poll::Dropped) => {
            book.polls.remove(&ticket);
            let dropped = updates_response("");
            return PollStep::Answer(SimResponse {
                hang: Some(std::time::Duration::ZERO),
                ..dropped
            });
        }
        Some(Poll::Conflict { due_us, .. }) if *due_us > now => return PollStep::Wait(*due_us),
        Some(Poll::Conflict { text, .. }) => {
            let failure = SimTelegramFailure::new(409, *text);
            SimCounters::count(&mut world.counters.errors, text);
            book.polls.remove(&ticket);
            return PollStep::Answer(failure.response());
        }
        Some(Poll::Looking { offset, limit, deadline_us, is_parked }) => {
            (*offset, *limit, *deadline_us, *is_parked)
        }
    };
    drop(state);
    let is_dropped = confirm(sim, world, app, offset, is_parked);
    let updates: Vec<_> = world.queue.ready_of(app).take(limit).cloned().collect();
    let mut state = sim.state();
    let book = &mut state.bots[app].polls;
    if updates.is_empty() && deadline_us > now && !is_dropped {
        if !is_parked {
            book.end_parked(OTHER_POLLER, now);
            book.parked = Some(ticket);
            let poll = Poll::Looking { offset, limit, deadline_us, is_parked: true };
            book.polls.insert(ticket, poll);
        }
        return PollStep::Wait(deadline_us);
    }
    book.polls.remove(&ticket);
    if book.parked == Some(ticket) {
        book.parked = None;
    }
    drop(state);
    world.counters.frames_sent += updates.len() as u64;
    let texts: Vec<_> = updates.iter().map(|event| update_text(sim, event)).collect();
    let mut response = updates_response(&texts.join(","));
    response.hang = is_dropped.then_some(std::time::Duration::ZERO);
    PollStep::Answer(response)
}

fn updates_response(list: &str) -> SimResponse {
    let mut response = SimResponse::ok(&Value::Null);
    response.body = FileContent::bytes(format!(r#"{{"ok":true,"result":[{list}]}}"#));
    response
}

/// Drops updates that are too old, and those that the offset confirms; returns whether the
/// connection is to be dropped. A call that waits has confirmed before.
fn confirm(sim: &TelegramSim, world: &mut World, app: usize, offset: i64, is_parked: bool) -> bool {
    let now = now_us();
    let oldest = now.saturating_sub(world.settings.ack_timeout_ms * 1000);
    world.counters.given_up += world.queue.drop_older(app, oldest) as u64;
    if is_parked {
        return false;
    }
    let confirmed = if offset < 0 {
        let keep = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let dropped = world.queue.keep_newest(app, keep);
        vec![0; dropped]
    } else {
        let base = sim.state().bots[app].update_base;
        let next = base + i64::try_from(world.queue.last_order(app)).unwrap_or(0) + 1;
        let is_believed = offset <= next + MAX_AHEAD && offset >= next - MAX_BEHIND;
        let order = u64::try_from(offset - base).unwrap_or(0);
        if offset > 0 && is_believed { world.queue.confirm_before(app, order, now) } else { vec![] }
    };
    let mut is_dropped = false;
    for age in confirmed {
        world.counters.acks += 1;
        world.counters.record_latency(age);
        is_dropped |= world.chaos.count_ack();
    }
    is_dropped
}

/// `POST /control/conflict`: another instance of the bot ends the call that waits and the next
/// `count` calls.
pub fn second_poller(sim: &TelegramSim, body: &Value) -> Result<Value, ControlError> {
    let app = app_of(sim, body)?;
    let count = body["count"].as_u64().unwrap_or(0);
    let mut state = sim.state();
    let book = &mut state.bots[app].polls;
    book.foreign_calls = count;
    book.end_parked(OTHER_POLLER, now_us());
    Ok(json!({"app": app, "count": count}))
}

/// `POST /control/restart_ids`: the next update gets the id `start`. Telegram does this when a bot
/// had no update for a week, so there must be none that waits.
pub fn restart_ids(
    sim: &TelegramSim,
    world: &mut World,
    body: &Value,
) -> Result<Value, ControlError> {
    let app = app_of(sim, body)?;
    let waiting = world.queue.waiting(app);
    if waiting > 0 {
        let message =
            format!("{waiting} updates are not confirmed; ids start over only when there are none");
        return Err(ControlError(message));
    }
    let start = body["start"].as_i64().unwrap_or(1).clamp(1, 1 << 31);
    let last = i64::try_from(world.queue.last_order(app)).unwrap_or(0);
    sim.state().bots[app].update_base = start - 1 - last;
    Ok(json!({"app": app, "start": start}))
}

/// The app that a control request names; the first one if it names none.
pub fn app_of(sim: &TelegramSim, body: &Value) -> Result<usize, ControlError> {
    let app = usize::try_from(body["app"].as_u64().unwrap_or(0)).unwrap_or(usize::MAX);
    let apps = sim.state().bots.len();
    if app < apps {
        return Ok(app);
    }
    let last = bot_id(apps - 1);
    Err(ControlError(format!("there is no app {app}; the bot of the last app has the id {last}")))
}
