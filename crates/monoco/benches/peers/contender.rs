//! The measurements of every contender, and their sizes.

use std::fmt;
use std::time::Duration;

use crate::common::Result;
use crate::common::drive::Bounds;
use crate::common::figures::thousands;
use crate::common::resources::IdleCost;

/// A durable queue that can be measured.
///
/// Rates are in messages per second, `None` when a measurement does not apply.
pub trait Contender {
    /// Name and version, for the line above the table.
    fn version(&self) -> String;

    /// Rate at which producers put messages into an empty queue. Each waits for the response
    /// before it sends the next message.
    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>>;

    /// Rate at which consumers take and finish messages, in two round trips each, with
    /// `backlog` messages waiting at the start.
    ///
    /// The contender may keep the queue, so that the next call only replaces the messages
    /// that this call took.
    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>>;

    /// Drops the queue that [`take_finish`](Self::take_finish) kept.
    fn release(&mut self);

    /// Resources of an empty, idle server, measured for `watch`.
    fn idle_cost(&mut self, _watch: Duration) -> Result<Option<IdleCost>> {
        Ok(None)
    }
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
