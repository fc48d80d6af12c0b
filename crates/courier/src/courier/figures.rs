//! Counts events per minute for the plots of the web page, and samples how long deliveries and
//! letters wait.
//!
//! Reads the event log behind a stored position, so that each event is counted once, also after
//! a crash, and no message waits for it. While nothing waits, nothing is sampled.

use std::time::Duration;

use monoco_core::figures::{FIGURES_KEPT, count_events, minute_of};
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

/// Poll interval while deliveries or letters wait: one sample per minute.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(60);

/// Most events that one commit counts.
const EVENTS_PER_COMMIT: usize = 1_000;

struct FigureTask {
    store: SharedStore,
    clock: Clock,
    newest: watch::Receiver<i64>,
    /// The minute of the last sample, and whether anything waited then.
    sampled: Option<(i64, bool)>,
}

impl FigureTask {
    /// Samples the waiting times once a minute. Returns whether anything waits.
    async fn sample(&mut self, keep_from: Timestamp) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let minute = minute_of(now);
        if let Some((sampled, waits)) = self.sampled
            && sampled == minute
        {
            return Ok(waits);
        }
        let waits = self.store.sample_waiting(now, keep_from).await?;
        self.sampled = Some((minute, waits));
        Ok(waits)
    }
}

impl BackgroundTask for FigureTask {
    const NAME: &'static str = "figures";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        // Before reading, so that an event in between is not missed.
        self.newest.mark_unchanged();
        let keep_from = Timestamp::from_ms(self.clock.now().ms() - ms(FIGURES_KEPT));
        let waits = self.sample(keep_from).await?;
        let after = self.store.counted_events().await?;
        let events = self.store.events(after, EVENTS_PER_COMMIT).await?;
        let Some(last) = events.last() else {
            return Ok(NextStep::Poll(if waits { SAMPLE_INTERVAL } else { POLL_INTERVAL }));
        };
        let (up_to, figures) = (last.seq, count_events(&events));
        self.store.add_figures(after, up_to, figures, keep_from).await?;
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
    background::run(&mut FigureTask { store, clock, newest, sampled: None }, &stop).await;
}
