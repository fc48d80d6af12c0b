//! Checks twice a minute that large objects can be written to and read from their remote place, so
//! that `/health` shows an outage, and its end, also while no large object is stored.

use std::time::Duration;

use monoco_store::{SharedStore, StoreError};
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};

const CHECK_INTERVAL: Duration = Duration::from_secs(30);

struct ObjectCheck(SharedStore);

impl BackgroundTask for ObjectCheck {
    const NAME: &'static str = "check of large objects";
    const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        self.0.check_remote_objects().await?;
        Ok(NextStep::After(CHECK_INTERVAL))
    }
}

/// Checks the place until `stop` is cancelled. Ends at once when there is none.
pub async fn run(store: SharedStore, stop: CancellationToken) {
    if store.remote_objects().is_some() {
        background::run(&mut ObjectCheck(store), &stop).await;
    }
}
