//! Discrete-event simulation of several hubs.
//!
//! The path of a message, with one commit at each `▶`:
//!
//! ```text
//! author's hub      ▶ dispatch ─┬─ recipient is local: in the inbox
//!                               └▶ lease the delivery ── network ──┐        ▶ report
//! recipient's hub                                                  ▶ inbound dispatch: in the inbox
//!                                                                    ▶ lease the record ▶ mark it
//! ```
//!
//! A message to a group goes to the hub of the group, which stores it for its own subscribers and
//! sends it once to every other hub that has subscribers. A hub has a tunnel to every other hub, and a
//! tunnel has a bounded number of sends at a time. Commands that follow from a commit are part of the
//! next one: the simulation has no poll intervals, because hints arrive at once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use crate::latency::Latencies;
use crate::random::{Random, Zipf};
use crate::service::{ServiceTimes, Writer, WriterCommand, nanoseconds};

/// Hubs, their messages, and what they need.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub hubs: u32,
    /// Messages per second that authors dispatch, on all hubs together.
    pub rate: f64,
    /// Number of messages. The latencies of the first fifth are not counted.
    pub messages: u32,
    pub times: ServiceTimes,
    /// Time that a request to another hub and its answer spend in the network, in seconds.
    pub round_trip: f64,
    /// Sends at a time from one hub to another.
    pub sends: u32,
    /// Share of messages that go to a group.
    pub group_share: f64,
    /// Sizes of groups: the rank is the number of subscribers.
    pub group_sizes: Zipf,
    /// Recipients of direct messages, by rank.
    pub owners: Zipf,
    /// Share of direct messages whose recipient is on the author's hub by placement.
    pub local_share: f64,
    pub outage: Option<Outage>,
}

/// The hub 0 commits nothing for a while. Its commands, and deliveries to it, wait.
#[derive(Clone, Copy, Debug)]
pub struct Outage {
    pub from: f64,
    pub until: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SimulationResult {
    /// From the dispatch to the commit that puts the message into an inbox, per inbox.
    pub latencies: Latencies,
    /// Inboxes per dispatched message, on average.
    pub fan_out: f64,
    /// Share of inboxes that are not on the author's hub.
    pub crossing: f64,
    /// Time of writers that a message needs on all hubs together when all commits are full, in s.
    pub work_per_message: f64,
    /// Share of time that a hub needs for its work, on average.
    pub mean_load: f64,
    /// Share of time in which the writer of a hub commits, on average, while messages are dispatched.
    /// Commits that are not full make it higher than the load.
    pub busy: f64,
    /// Messages for hub 0 that were not stored at the end of the outage.
    pub backlog: u64,
    /// Seconds from the end of the outage until no more messages waited for hub 0 than before it.
    pub drained_after: Option<f64>,
}

/// A message on its way to a hub.
#[derive(Clone, Copy)]
struct Parcel {
    born: u64,
    author: u32,
    from: u32,
    to: u32,
    content: Content,
}

#[derive(Clone, Copy)]
enum Content {
    Direct,
    /// To the hub of a group with so many subscribers.
    Group(u32),
    /// From the hub of a group, for so many subscribers.
    Subscribers(u32),
}

enum Command {
    /// Stores a message that an author dispatches or that another hub has sent.
    Store {
        parcel: Parcel,
        inboxes: u32,
        onward: Vec<Parcel>,
    },
    /// Leases a delivery to another hub.
    LeaseDelivery(Parcel),
    /// Reports the outcome of a delivery to another hub.
    Report {
        to: u32,
    },
    LeaseRecord,
    MarkRecord,
}

impl WriterCommand for Command {
    fn time(&self, times: &ServiceTimes) -> f64 {
        match self {
            // Every further inbox or delivery counts as a dispatch, although the object is stored once.
            Self::Store { inboxes, onward, .. } => {
                times.dispatch * (*inboxes as usize + onward.len()).max(1) as f64
            }
            Self::LeaseDelivery(_) | Self::Report { .. } | Self::LeaseRecord | Self::MarkRecord => {
                times.step
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EventKind {
    /// The author of the next message dispatches it.
    Dispatch,
    Committed {
        hub: u32,
    },
    /// The parcel with this key arrives at its hub.
    Arrives {
        parcel: usize,
    },
    /// The answer of `to` arrives at `from`.
    Answered {
        from: u32,
        to: u32,
    },
    OutageEnds,
}

/// Sends from one hub to another.
#[derive(Default)]
struct Tunnel {
    sending: u32,
    waiting: VecDeque<Parcel>,
}

struct Hub {
    writer: Writer<Command>,
    /// Time that its commands need when all commits are full, in s.
    work: f64,
    busy_ns: u64,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    random: Random,
    now: u64,
    /// When the last message is dispatched, about.
    end: u64,
    /// Ordered by time, then by number, so that equal times keep one order.
    events: BinaryHeap<Reverse<(u64, u64, EventKind)>>,
    next_event: u64,
    hubs: Vec<Hub>,
    tunnels: HashMap<(u32, u32), Tunnel>,
    /// Parcels in the network; freed places are used again.
    parcels: Vec<Parcel>,
    free: Vec<usize>,
    latencies: Latencies,
    /// Latencies of messages that were dispatched earlier are not counted.
    counted_from: u64,
    inboxes: u64,
    crossing: u64,
    watch: OutageWatch,
}

/// Messages for hub 0 that are not stored, and how many there are in an outage.
#[derive(Default)]
struct OutageWatch {
    pending: u64,
    most_before: u64,
    backlog: u64,
    drained_at: Option<u64>,
}

/// Simulates until every message is stored, reported and marked.
pub fn simulate(scenario: &Scenario) -> SimulationResult {
    let horizon = f64::from(scenario.messages) / scenario.rate;
    let hub = || Hub { writer: Writer::new(), work: 0.0, busy_ns: 0 };
    let mut simulation = Simulation {
        scenario,
        random: Random::new(scenario.seed),
        now: 0,
        end: nanoseconds(horizon),
        events: BinaryHeap::new(),
        next_event: 0,
        hubs: (0..scenario.hubs).map(|_| hub()).collect(),
        tunnels: HashMap::new(),
        parcels: Vec::new(),
        free: Vec::new(),
        latencies: Latencies::new(),
        counted_from: nanoseconds(horizon / 5.0),
        inboxes: 0,
        crossing: 0,
        watch: OutageWatch::default(),
    };
    simulation.run();
    simulation.result(horizon)
}

impl Simulation<'_> {
    fn run(&mut self) {
        let mut remaining = self.scenario.messages;
        self.schedule(0, EventKind::Dispatch);
        if let Some(outage) = self.scenario.outage {
            self.schedule(nanoseconds(outage.until), EventKind::OutageEnds);
        }
        while let Some(Reverse((at, _, kind))) = self.events.pop() {
            self.now = at;
            match kind {
                EventKind::Dispatch => {
                    self.dispatch();
                    remaining -= 1;
                    if remaining > 0 {
                        let pause = self.random.exponential(1.0 / self.scenario.rate);
                        self.schedule(nanoseconds(pause), EventKind::Dispatch);
                    }
                }
                EventKind::Committed { hub } => self.committed(hub),
                EventKind::Arrives { parcel } => {
                    self.free.push(parcel);
                    self.store(self.parcels[parcel]);
                }
                EventKind::Answered { from, to } => self.queue(from, Command::Report { to }),
                EventKind::OutageEnds => {
                    self.watch.backlog = self.watch.pending;
                    self.start_commit(0);
                }
            }
        }
    }

    fn schedule(&mut self, after: u64, kind: EventKind) {
        self.next_event += 1;
        self.events.push(Reverse((self.now + after, self.next_event, kind)));
    }

    /// An author dispatches a message: to one owner, or to a group.
    fn dispatch(&mut self) {
        let scenario = self.scenario;
        let from = self.random.below(scenario.hubs);
        let (to, content) = if self.random.unit() < scenario.group_share {
            let size = scenario.group_sizes.draw(&mut self.random) as u32;
            (self.random.below(scenario.hubs), Content::Group(size))
        } else if self.random.unit() < scenario.local_share {
            (from, Content::Direct)
        } else {
            (self.hub_of_owner(), Content::Direct)
        };
        let parcel = Parcel { born: self.now, author: from, from, to, content };
        if to == from {
            self.expect(to, 1);
            self.store(parcel);
        } else {
            self.expect(from, 1);
            let command = Command::Store { parcel, inboxes: 0, onward: vec![parcel] };
            self.queue(from, command);
        }
    }

    /// Draws the recipient of a direct message. Rendezvous hashing spreads owners evenly, and a hash of
    /// the rank does the same in less time.
    fn hub_of_owner(&mut self) -> u32 {
        let rank = self.scenario.owners.draw(&mut self.random);
        Random::new(self.scenario.seed ^ rank.to_bits()).below(self.scenario.hubs)
    }

    /// Queues the command that stores a parcel on its hub.
    fn store(&mut self, parcel: Parcel) {
        let (inboxes, onward) = match parcel.content {
            Content::Direct => (1, Vec::new()),
            Content::Subscribers(count) => (count, Vec::new()),
            Content::Group(size) => self.fan_out(&parcel, size),
        };
        self.queue(parcel.to, Command::Store { parcel, inboxes, onward });
    }

    /// Draws the hubs of the subscribers of a group. Returns the number of subscribers on the hub of
    /// the group, and a parcel for every other hub.
    fn fan_out(&mut self, parcel: &Parcel, size: u32) -> (u32, Vec<Parcel>) {
        let mut hubs: Vec<u32> = (0..size).map(|_| self.random.below(self.scenario.hubs)).collect();
        hubs.sort_unstable();
        let mut onward = Vec::new();
        let mut local = 0;
        for subscribers in hubs.chunk_by(|a, b| a == b) {
            let (to, count) = (subscribers[0], subscribers.len() as u32);
            if to == parcel.to {
                local = count;
            } else {
                let content = Content::Subscribers(count);
                onward.push(Parcel { from: parcel.to, to, content, ..*parcel });
            }
        }
        (local, onward)
    }

    fn queue(&mut self, hub: u32, command: Command) {
        self.queue_for_next(hub, command);
        self.start_commit(hub);
    }

    fn start_commit(&mut self, hub: u32) {
        if hub == 0 && self.is_out() {
            return;
        }
        let state = &mut self.hubs[hub as usize];
        let Some(ns) = state.writer.start_commit(&self.scenario.times, &mut self.random) else {
            return;
        };
        state.busy_ns += ns.min(self.end.saturating_sub(self.now));
        self.schedule(ns, EventKind::Committed { hub });
    }

    fn is_out(&self) -> bool {
        let now = self.now as f64 / 1e9;
        self.scenario.outage.is_some_and(|outage| outage.from <= now && now < outage.until)
    }

    fn committed(&mut self, hub: u32) {
        for command in self.hubs[hub as usize].writer.end_commit() {
            match command {
                Command::Store { parcel, inboxes, onward } => {
                    self.stored(hub, &parcel, inboxes);
                    for parcel in onward {
                        self.send(parcel);
                    }
                }
                Command::LeaseDelivery(parcel) => {
                    let place = self.free.pop().unwrap_or(self.parcels.len());
                    if place == self.parcels.len() {
                        self.parcels.push(parcel);
                    } else {
                        self.parcels[place] = parcel;
                    }
                    let way = nanoseconds(self.scenario.round_trip / 2.0);
                    self.schedule(way, EventKind::Arrives { parcel: place });
                }
                Command::Report { to } => self.reported(hub, to),
                Command::LeaseRecord => self.queue_for_next(hub, Command::MarkRecord),
                Command::MarkRecord => {}
            }
        }
        self.start_commit(hub);
    }

    /// Queues a command that follows from the commit that has just ended on the same hub.
    fn queue_for_next(&mut self, hub: u32, command: Command) {
        let state = &mut self.hubs[hub as usize];
        state.work += self.scenario.times.work(command.time(&self.scenario.times));
        state.writer.waiting.push_back(command);
    }

    fn stored(&mut self, hub: u32, parcel: &Parcel, inboxes: u32) {
        if parcel.from != hub {
            let way = nanoseconds(self.scenario.round_trip / 2.0);
            self.schedule(way, EventKind::Answered { from: parcel.from, to: hub });
        }
        for _ in 0..inboxes {
            if parcel.born >= self.counted_from {
                self.latencies.add(self.now - parcel.born);
            }
            self.queue_for_next(hub, Command::LeaseRecord);
        }
        self.inboxes += u64::from(inboxes);
        self.crossing += if parcel.author == hub { 0 } else { u64::from(inboxes) };
        self.expect(hub, -1);
    }

    /// Leases a delivery to another hub as soon as its tunnel has a free send.
    fn send(&mut self, parcel: Parcel) {
        self.expect(parcel.to, 1);
        let tunnel = self.tunnels.entry((parcel.from, parcel.to)).or_default();
        if tunnel.sending < self.scenario.sends {
            tunnel.sending += 1;
            self.queue_for_next(parcel.from, Command::LeaseDelivery(parcel));
        } else {
            tunnel.waiting.push_back(parcel);
        }
    }

    fn reported(&mut self, from: u32, to: u32) {
        let Some(tunnel) = self.tunnels.get_mut(&(from, to)) else { return };
        if let Some(parcel) = tunnel.waiting.pop_front() {
            self.queue_for_next(from, Command::LeaseDelivery(parcel));
        } else {
            tunnel.sending -= 1;
            if tunnel.sending == 0 {
                self.tunnels.remove(&(from, to));
            }
        }
    }

    /// Counts messages that hub 0 has to store, and notes when they are as few as before the outage.
    fn expect(&mut self, hub: u32, change: i64) {
        let Some(outage) = self.scenario.outage.filter(|_| hub == 0) else { return };
        let watch = &mut self.watch;
        watch.pending = watch.pending.saturating_add_signed(change);
        let now = self.now as f64 / 1e9;
        if now < outage.from {
            watch.most_before = watch.most_before.max(watch.pending);
        } else if now >= outage.until && watch.pending <= watch.most_before {
            watch.drained_at.get_or_insert(self.now);
        }
    }

    fn result(self, horizon: f64) -> SimulationResult {
        let hubs = f64::from(self.scenario.hubs);
        let work: f64 = self.hubs.iter().map(|hub| hub.work).sum();
        let busy_s: f64 = self.hubs.iter().map(|hub| hub.busy_ns as f64 / 1e9).sum();
        let end = self.scenario.outage.map_or(0.0, |outage| outage.until);
        SimulationResult {
            fan_out: self.inboxes as f64 / f64::from(self.scenario.messages),
            crossing: self.crossing as f64 / self.inboxes.max(1) as f64,
            work_per_message: work / f64::from(self.scenario.messages),
            mean_load: work / hubs / horizon,
            busy: busy_s / hubs / horizon,
            backlog: self.watch.backlog,
            drained_after: self.watch.drained_at.map(|at| at as f64 / 1e9 - end),
            latencies: self.latencies,
        }
    }
}
