//! Checks every minute that the database server still keeps what it acknowledges.
//!
//! The courier does not start on a server with unsafe settings. An operator can change them, and a
//! standby can be lost, while it runs: then it continues, logs it, and `/health` is degraded.

use std::time::Duration;

use monoco_store::postgres::{Durability, ServerFacts};
use monoco_store::{SharedStore, StoreError};
use tokio_util::sync::CancellationToken;

use crate::background::{self, BackgroundTask, NextStep};

const CHECK_INTERVAL: Duration = Duration::from_secs(60);

struct DatabaseCheck {
    store: SharedStore,
    durability: Durability,
    /// What the last check found.
    problems: Vec<String>,
}

impl BackgroundTask for DatabaseCheck {
    const NAME: &'static str = "database check";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        if let Some(facts) = self.store.server_facts().await? {
            self.compare(&facts);
        }
        Ok(NextStep::After(CHECK_INTERVAL))
    }
}

impl DatabaseCheck {
    /// Logs what has changed since the last check.
    fn compare(&mut self, facts: &ServerFacts) {
        let mut problems = facts.problems(self.durability);
        problems.extend(facts.warnings());
        for problem in problems.iter().filter(|problem| !self.problems.contains(problem)) {
            tracing::warn!(problem, "database server needs attention");
        }
        if problems.is_empty() && !self.problems.is_empty() {
            tracing::info!("database server is in order again");
        }
        self.problems = problems;
    }
}

/// Checks the server until `stop` is cancelled.
pub async fn run(store: SharedStore, durability: Durability, stop: CancellationToken) {
    let mut check = DatabaseCheck { store, durability, problems: Vec::new() };
    background::run(&mut check, &stop).await;
}
