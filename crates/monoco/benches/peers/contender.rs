//! What every contender can be asked, and in which sizes.

use std::fmt;
use std::time::Duration;

use crate::common::Result;
use crate::common::drive::Bounds;
use crate::common::figures::thousands;
use crate::common::resources::AtRest;

/// A durable queue that can be measured.
///
/// A rate is in messages per second, `None` where the question does not apply.
pub trait Contender {
    /// Its name and version, for the line above the table.
    fn version(&self) -> String;

    /// How fast so many producers put messages into an empty queue, each
    /// waiting for the answer to one before it sends the next.
    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>>;

    /// How fast so many takers take one message each and finish it, in two
    /// round trips, with `backlog` messages waiting when they start.
    ///
    /// The queue may be kept for the next call, which then only replaces what
    /// this one took.
    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>>;

    /// Drops what [`take_finish`](Self::take_finish) kept.
    fn release(&mut self);

    /// What an empty, idle server costs, seen for so long.
    fn at_rest(&mut self, _watch: Duration) -> Result<Option<AtRest>> {
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
    /// The small backlog; the deep one depends on how much time there is.
    pub const BACKLOG: u64 = 10_000;

    /// Every column, in order.
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
