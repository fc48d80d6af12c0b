//! The state of one emulator, under one lock, and the steps that move events to sockets.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::chaos::{ChaosSwitches, PushHeader};
use crate::clock::{UniqueClock, now_ms, now_us};
use crate::connections::{ConnectionSet, SocketCommand};
use crate::counters::SimCounters;
use crate::event_queue::EventQueue;
use crate::event_queue::SimEvent;
use crate::locked::Locked;
use crate::provider::{FrameMeaning, SimProvider};
use crate::random::random_uuid;
use crate::settings::SimSettings;
use crate::store::SimStore;

/// How long events wait for others to be delivered in reverse order.
const MAX_REORDER_US: u64 = 2_000_000;

/// Tickets that were issued and not used; the oldest is dropped.
const MAX_TICKETS: usize = 10_000;

/// A ticket for one WebSocket handshake.
#[derive(Debug)]
struct Ticket {
    app: usize,
    expires_ms: u64,
}

/// Everything that an emulator knows.
pub struct World {
    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub base_url: String,
    pub settings: SimSettings,
    pub store: SimStore,
    pub chaos: ChaosSwitches,
    pub counters: SimCounters,
    pub connections: ConnectionSet,
    pub queue: EventQueue,
    pub ids: UniqueClock,
    pub apps: usize,
    /// URLs that receive events by HTTP instead of sockets, by app.
    pub push_urls: BTreeMap<usize, String>,
    /// Headers of the newest callback that was signed properly, by app.
    pub push_headers: BTreeMap<usize, Vec<PushHeader>>,
    /// Events that are sent by HTTP now, by app and lane.
    pub busy_lanes: HashMap<(usize, String), u64>,
    tickets: HashMap<String, Ticket>,
    ticket_order: std::collections::VecDeque<String>,
    /// Events that wait to be delivered in reverse order, and until when at most.
    held: Vec<u64>,
    held_until_us: u64,
    /// Until when the timer task sleeps.
    armed_us: u64,
}

impl World {
    pub fn new(base_url: String, settings: SimSettings, apps: usize) -> Self {
        Self {
            base_url,
            settings,
            store: SimStore::default(),
            chaos: ChaosSwitches::default(),
            counters: SimCounters::default(),
            connections: ConnectionSet::default(),
            queue: EventQueue::default(),
            ids: UniqueClock::default(),
            apps,
            push_urls: BTreeMap::new(),
            push_headers: BTreeMap::new(),
            busy_lanes: HashMap::new(),
            tickets: HashMap::new(),
            ticket_order: std::collections::VecDeque::new(),
            held: Vec::new(),
            held_until_us: 0,
            armed_us: u64::MAX,
        }
    }

    /// Issues a ticket that opens one connection of the app.
    pub fn issue_ticket(&mut self, app: usize) -> String {
        let ticket = random_uuid();
        let expires_ms = now_ms() + self.settings.ticket_ttl_ms;
        self.tickets.insert(ticket.clone(), Ticket { app, expires_ms });
        self.ticket_order.push_back(ticket.clone());
        if self.ticket_order.len() > MAX_TICKETS
            && let Some(oldest) = self.ticket_order.pop_front()
        {
            self.tickets.remove(&oldest);
        }
        self.counters.tickets_issued += 1;
        ticket
    }

    /// Uses a ticket; returns its app, or `None` when it is unknown, used or expired.
    pub fn use_ticket(&mut self, ticket: &str) -> Option<usize> {
        let ticket = self.tickets.remove(ticket)?;
        (ticket.expires_ms > now_ms()).then_some(ticket.app)
    }

    /// Adds an event; it is sent by the next [`SimHub::pump`].
    pub fn emit(&mut self, app: usize, topic: &'static str, key: String, payload: &Value) {
        self.counters.events += 1;
        let copies = 1 + u32::from(ChaosSwitches::take(&mut self.chaos.duplicate));
        let payload: Arc<str> = payload.to_string().into();
        let number = self.queue.add(app, topic, key, payload, copies, now_us());
        if self.chaos.reorder > 0 {
            if self.held.is_empty() {
                self.held_until_us = now_us() + MAX_REORDER_US;
            }
            self.held.push(number);
            if self.held.len() as u64 >= self.chaos.reorder {
                self.chaos.reorder = 0;
                self.release_held();
            }
            return;
        }
        self.queue.make_ready(number);
    }

    /// Lets held events go, the newest first.
    pub fn release_held(&mut self) {
        for number in std::mem::take(&mut self.held).into_iter().rev() {
            self.queue.make_ready(number);
        }
    }

    /// Whether another event fits into the queue.
    pub fn has_room(&self) -> bool {
        self.queue.len() < self.settings.max_events
    }

    /// Removes a connection; its events are sent again.
    pub fn close_connection(&mut self, id: u64, command: SocketCommand) {
        if let Some(connection) = self.connections.remove(id) {
            let _ = connection.commands.send(command);
            self.queue.connection_closed(id, self.settings.resend_on_close);
        }
    }

    fn next_due(&self) -> Option<u64> {
        let held = (!self.held.is_empty()).then_some(self.held_until_us);
        [self.queue.next_due(), held].into_iter().flatten().min()
    }

    pub fn describe(&self) -> Value {
        let connections: Vec<_> = self
            .connections
            .iter()
            .map(|(id, connection)| connection.describe(id, self.queue.frames_of(id)))
            .collect();
        json!({
            "connections": connections,
            "events_waiting": self.queue.len(),
            "frames_in_flight": self.queue.in_flight(),
            "tickets_open": self.tickets.len(),
            "ack_ms": self.counters.latency(),
            "counters": self.counters,
        })
    }
}

/// The emulator as its tasks share it.
pub struct SimHub {
    world: Locked<World>,
    pub provider: Box<dyn SimProvider>,
    pub tasks: TaskTracker,
    pub stop: CancellationToken,
    /// Wakes the timer task.
    timer: Notify,
    /// Wakes the task that sends HTTP callbacks.
    pub pushes: Notify,
    /// Wakes the calls that wait for events.
    pub polls: Notify,
}

impl SimHub {
    pub fn new(world: World, provider: Box<dyn SimProvider>) -> Self {
        Self {
            world: Locked::new(world),
            provider,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            timer: Notify::new(),
            pushes: Notify::new(),
            polls: Notify::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Sends what can be sent now, and sets the timer.
    pub fn pump(&self, world: &mut World) {
        self.polls.notify_waiters();
        for app in world.queue.ready_apps() {
            if world.push_urls.contains_key(&app) {
                self.pushes.notify_one();
                continue;
            }
            if self.provider.is_polled() {
                continue;
            }
            while let Some(event) = world.queue.take_ready(app) {
                if !self.send_event(world, &event) {
                    break;
                }
            }
        }
        if world.next_due().is_some_and(|due| due < world.armed_us) {
            self.timer.notify_one();
        }
    }

    /// Sends an event to one connection; returns whether the next event can be tried.
    fn send_event(&self, world: &mut World, event: &SimEvent) -> bool {
        if world.connections.count(event.app) == 0 && !world.settings.backlog {
            world.counters.lost += 1;
            world.queue.finish(event.number);
            return true;
        }
        for copy in 0..event.copies {
            let max = world.settings.max_in_flight;
            let queue = &world.queue;
            let chosen = world.connections.choose(event.app, |id| queue.frames_of(id) < max);
            let Some(id) = chosen else {
                if copy == 0 {
                    world.queue.make_ready(event.number);
                }
                return false;
            };
            self.send_frame(world, event, id);
        }
        true
    }

    fn send_frame(&self, world: &mut World, event: &SimEvent, id: u64) {
        let frame = self.provider.event_frame(event, id);
        let now = now_us();
        let due = now + world.settings.ack_timeout_ms * 1000;
        world.queue.frame_sent(event.number, id, frame.ack_id, now, due);
        world.counters.frames_sent += 1;
        if let Some(connection) = world.connections.get_mut(id) {
            connection.frames_sent += 1;
            for part in frame.frames {
                connection.send(part);
            }
        }
    }

    /// Handles a text or binary frame of the bot.
    pub fn frame_received(&self, id: u64, frame: &Message) {
        let meaning = self.provider.read_frame(frame);
        let mut world = self.lock();
        // What a dropped connection still had to say is lost.
        if world.connections.get_mut(id).is_none() {
            return;
        }
        match meaning {
            FrameMeaning::Ack(ack_id) => match world.queue.acknowledge(&ack_id, now_us()) {
                Some(us) => {
                    world.counters.acks += 1;
                    world.counters.record_latency(us);
                    if let Some(connection) = world.connections.get_mut(id) {
                        connection.acks += 1;
                    }
                    if world.chaos.count_ack() {
                        world.close_connection(id, SocketCommand::Abort);
                        self.timer.notify_one();
                    }
                }
                None => world.counters.unknown_acks += 1,
            },
            FrameMeaning::Later(ack_id) => {
                let due = now_us() + world.settings.ack_timeout_ms * 1000;
                world.queue.postpone(&ack_id, due);
            }
            FrameMeaning::Pong => world.counters.pongs_received += 1,
            FrameMeaning::Ping(answer) => {
                world.counters.pings_received += 1;
                if let Some(connection) = world.connections.get_mut(id) {
                    connection.send_pong(answer);
                }
            }
            FrameMeaning::Other => return,
        }
        if world.queue.has_ready() {
            self.pump(&mut world);
        }
    }

    /// Sends events again whose time is over, until the emulator stops.
    pub async fn run_timer(&self) {
        loop {
            let wait = {
                let mut world = self.lock();
                let now = now_us();
                if world.held_until_us <= now {
                    world.release_held();
                }
                let attempts = world.settings.max_attempts;
                let counts = world.queue.expire(now, attempts);
                world.counters.redelivered += counts.redelivered;
                world.counters.given_up += counts.given_up;
                world.armed_us = 0;
                self.pump(&mut world);
                world.armed_us = world.next_due().unwrap_or(u64::MAX);
                Duration::from_micros(world.armed_us.saturating_sub(now).clamp(1000, 60_000_000))
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.timer.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}
