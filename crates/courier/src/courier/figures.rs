//! Counts events per minute for the plots of the web page.
//!
//! Reads the event log behind a stored position, so that each event is counted once, also after
//! a crash, and no message waits for it.

use std::time::Duration;

use monoco_core::figures::{FIGURES_KEPT, count_events};
use monoco_core::time::Timestamp;
use monoco_store::{SharedStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::Clock;

/// Pause between two commits. A plot has one point per minute.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Poll interval when no event is appended.
const POLL_INTERVAL: Duration = Duration::from_secs(300);

/// Most events that one commit counts.
const EVENTS_PER_COMMIT: usize = 1_000;

struct FigureTask {
    store: SharedStore,
    clock: Clock,
    newest: watch::Receiver<i64>,
}

impl BackgroundTask for FigureTask {
    const NAME: &'static str = "figures";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        // Before reading, so that an event in between is not missed.
        self.newest.mark_unchanged();
        let after = self.store.counted_events().await?;
        let events = self.store.events(after, EVENTS_PER_COMMIT).await?;
        let Some(last) = events.last() else { return Ok(NextStep::Poll(POLL_INTERVAL)) };
        let up_to = last.seq;
        let keep_from = self.clock.now().ms() - ms(FIGURES_KEPT);
        let figures = count_events(&events);
        self.store.add_figures(after, up_to, figures, Timestamp::from_ms(keep_from)).await?;
        let is_full = events.len() == EVENTS_PER_COMMIT;
        Ok(if is_full { NextStep::Now } else { NextStep::After(COUNT_INTERVAL) })
    }

    async fn hint(&mut self) {
        background::changed(&mut self.newest).await;
    }
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Counts events until `stop` is cancelled.
pub async fn run(store: SharedStore, clock: Clock, stop: CancellationToken) {
    let newest = store.newest_event();
    background::run(&mut FigureTask { store, clock, newest }, &stop).await;
}
