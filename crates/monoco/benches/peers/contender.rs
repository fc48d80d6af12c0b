//! The measurements of every contender, and their sizes.

use std::fmt;
use std::time::Duration;

use crate::common::Result;
use crate::common::drive::{Bounds, drive, median};
use crate::common::figures::thousands;
use crate::common::resources::IdleCost;
use crate::plan::Plan;

/// One call of a producer or consumer. Returns how many messages it processed.
pub type Call<'q> = Box<dyn FnMut() -> Result<u64> + 'q>;

/// A durable queue that can be measured.
pub trait Peer {
    /// A started queue. Its processes and files are removed on drop.
    type Queue: Sync;

    /// Name and version, for the line above the table.
    fn version(&self) -> String;

    /// Starts an empty queue.
    fn start(&self) -> Result<Self::Queue>;

    /// Adds messages, faster than producers do.
    fn fill(&self, queue: Self::Queue, messages: u64) -> Result<Self::Queue>;

    /// A producer, which waits for the response before it sends the next message.
    fn producer<'q>(&'q self, queue: &'q Self::Queue, number: usize) -> Result<Call<'q>>;

    /// A consumer, which takes and finishes a message in two round trips.
    fn taker<'q>(&'q self, queue: &'q Self::Queue, number: usize) -> Result<Call<'q>>;

    /// Whether consumers are measured.
    fn has_takers(&self) -> bool {
        true
    }

    /// Resources of an empty, idle server, measured for `watch`.
    fn idle_cost(&self, _watch: Duration) -> Result<Option<IdleCost>> {
        Ok(None)
    }
}

/// The measurements of a [`Peer`]. Rates are in messages per second, `None` when a
/// measurement does not apply.
pub trait Contender {
    fn version(&self) -> String;

    /// Rate at which producers put messages into an empty queue.
    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>>;

    /// Rate at which consumers take and finish messages, with `backlog` messages waiting at
    /// the start. The queue is kept, so that the next call only replaces the messages that
    /// this call took.
    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>>;

    /// Drops the queue that [`take_finish`](Self::take_finish) kept.
    fn release(&mut self);

    fn idle_cost(&mut self, watch: Duration) -> Result<Option<IdleCost>>;
}

/// A peer and its filled queue.
pub struct Measured<P: Peer> {
    peer: P,
    /// The filled queue and the number of waiting messages.
    filled: Option<(P::Queue, u64)>,
}

impl<P: Peer> Measured<P> {
    pub fn new(peer: P) -> Self {
        Self { peer, filled: None }
    }
}

impl<P: Peer + Sync> Contender for Measured<P> {
    fn version(&self) -> String {
        self.peer.version()
    }

    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>> {
        let queue = self.peer.start()?;
        let measured = drive(producers, bounds, |number| self.peer.producer(&queue, number))?;
        Ok(Some(measured.rate))
    }

    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>> {
        if !self.peer.has_takers() {
            return Ok(None);
        }
        let (queue, waiting) = match self.filled.take() {
            Some(filled) => filled,
            None => (self.peer.start()?, 0),
        };
        let queue = self.peer.fill(queue, backlog.saturating_sub(waiting))?;
        let bounds = Bounds { calls: bounds.calls.min(backlog), ..bounds };
        let measured = drive(takers, bounds, |number| self.peer.taker(&queue, number))?;
        self.filled = Some((queue, backlog - measured.messages));
        Ok(Some(measured.rate))
    }

    fn release(&mut self) {
        self.filled = None;
    }

    fn idle_cost(&mut self, watch: Duration) -> Result<Option<IdleCost>> {
        self.peer.idle_cost(watch)
    }
}

/// The median rate of every contender in one cell.
///
/// The contenders run in turns, so that a slow phase of the disk affects all of them.
pub fn measure<'a>(
    field: &mut [(&'a str, Box<dyn Contender>)],
    cell: &Cell,
    plan: &Plan,
) -> Result<Vec<(&'a str, Option<f64>)>> {
    let mut measured: Vec<Vec<f64>> = field.iter().map(|_| Vec::new()).collect();
    for round in 1..=plan.repeats {
        for ((name, contender), rates) in field.iter_mut().zip(&mut measured) {
            let rate = match *cell {
                Cell::Enqueue { producers } => contender.enqueue(producers, plan.bounds),
                Cell::TakeFinish { takers, backlog } => {
                    contender.take_finish(takers, backlog, plan.bounds)
                }
            };
            let rate = rate.map_err(|err| format!("{name}, {cell}: {err}"))?;
            if let Some(rate) = rate {
                eprintln!("{cell}, round {round}: {name} {}/s", thousands(rate));
                rates.push(rate);
            }
        }
    }
    for (_, contender) in field.iter_mut() {
        contender.release();
    }
    Ok(field.iter().zip(measured).map(|((name, _), rates)| (*name, median(rates))).collect())
}

/// One column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    Enqueue { producers: usize },
    TakeFinish { takers: usize, backlog: u64 },
}

impl Cell {
    /// The small backlog; the deep one depends on the plan.
    pub const BACKLOG: u64 = 10_000;

    /// All columns in order.
    pub fn all(deep_backlog: u64) -> Vec<Cell> {
        vec![
            Cell::Enqueue { producers: 1 },
            Cell::Enqueue { producers: 8 },
            Cell::Enqueue { producers: 64 },
            Cell::TakeFinish { takers: 8, backlog: Self::BACKLOG },
            Cell::TakeFinish { takers: 8, backlog: deep_backlog },
        ]
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cell::Enqueue { producers: 1 } => write!(f, "enqueue, 1 producer"),
            Cell::Enqueue { producers } => write!(f, "enqueue, {producers} producers"),
            Cell::TakeFinish { takers, backlog } => {
                write!(f, "take + finish, {takers} takers, {} waiting", thousands(*backlog as f64))
            }
        }
    }
}
