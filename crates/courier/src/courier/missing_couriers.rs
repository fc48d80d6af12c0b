//! Couriers that count as dead when another one starts, because the clock of the database server was
//! set: by an operator, or by a failover to a server with another clock.
//!
//! Running couriers follow the clock of the server slowly, so that their leases stay right. A courier
//! that started with the clock of the server would take them for dead, and their duties and leases.

use std::time::Duration;

use monoco_core::courier::CourierId;
use monoco_core::duty::{RegisteredCourier, newest_report};
use monoco_core::time::Timestamp;
use monoco_store::{SharedStore, StoreError};

/// How often reports are looked for.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A courier that runs reports within 5 s, and the store can be busy.
const MAX_CHECKS: u32 = 7 * 4;

/// A courier whose last report is further away has died.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(3_600);

/// Waits for a report of couriers that count as dead by the clock of the database server. Returns the
/// time of a report: then the couriers run, and the clock of the server was set, as by a failover to
/// another server. This courier must start with their time, which follows that of the server slowly.
pub async fn wait_for_report(
    store: &SharedStore,
    me: CourierId,
    server: Timestamp,
) -> Result<Option<Timestamp>, StoreError> {
    let before = store.couriers().await?;
    let others = || before.iter().filter(|courier| courier.run.id != me);
    let is_recent = |courier: &RegisteredCourier| {
        let seen = courier.seen_at.unwrap_or(server);
        seen.since(server).max(server.since(seen)) < MAX_CLOCK_DIFFERENCE
    };
    let any_live = others().any(|courier| courier.is_live(server));
    if any_live || !others().any(|courier| courier.is_missing(server) && is_recent(courier)) {
        return Ok(None);
    }
    tracing::info!("other couriers have not reported their end; waiting for their reports");
    for _ in 0..MAX_CHECKS {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let report = newest_report(me, &before, &store.couriers().await?);
        if let Some(time) = report {
            let ahead_s = (server.ms() - time.ms()) / 1_000;
            tracing::warn!(
                ahead_s,
                "the clock of the database server differs from the time of running couriers; starting with their time"
            );
            return Ok(Some(time));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use monoco_core::courier::CourierRun;

    use super::*;
    use crate::courier::test_hub::TestHub;

    /// How far the clock of the server is ahead.
    const AHEAD: Duration = Duration::from_secs(60);

    async fn register(hub: &TestHub, number: u8, at: Timestamp) -> CourierRun {
        let id = CourierId::from_random([number; 16]);
        hub.store().register_courier(id, BTreeSet::new(), at).await.unwrap()
    }

    #[tokio::test]
    async fn courier_starts_with_the_time_of_running_couriers() {
        let hub = TestHub::new().await;
        let now = hub.clock.now();
        let me = register(&hub, 1, now).await.id;
        let running = register(&hub, 2, now).await;
        let report = async {
            for n in 1.. {
                let time = now + Duration::from_millis(n);
                hub.store().renew_duties(running, BTreeSet::new(), time).await.unwrap();
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
        };
        let found = tokio::select! {
            found = wait_for_report(hub.store(), me, now + AHEAD) => found.unwrap().unwrap(),
            () = report => unreachable!("reports do not end"),
        };
        assert!(now < found && found < now + AHEAD, "{found:?}");
    }

    #[tokio::test]
    async fn courier_starts_with_the_time_of_the_server_when_the_clocks_agree() {
        let hub = TestHub::new().await;
        let now = hub.clock.now();
        let me = register(&hub, 1, now).await.id;
        assert_eq!(wait_for_report(hub.store(), me, now + AHEAD).await.unwrap(), None, "alone");
        let other = register(&hub, 2, now).await;
        assert_eq!(wait_for_report(hub.store(), me, now).await.unwrap(), None, "in time");
        let days = now + Duration::from_secs(3 * 86_400);
        assert_eq!(wait_for_report(hub.store(), me, days).await.unwrap(), None, "long ago");
        hub.store().end_courier(other, now).await.unwrap();
        assert_eq!(wait_for_report(hub.store(), me, now + AHEAD).await.unwrap(), None, "ended");
    }

    #[tokio::test]
    async fn courier_that_has_died_is_not_waited_for_longer_than_a_report_takes() {
        let hub = TestHub::new().await;
        let now = hub.clock.now();
        let me = register(&hub, 1, now).await.id;
        register(&hub, 2, now).await;
        assert_eq!(wait_for_report(hub.store(), me, now + AHEAD).await.unwrap(), None);
    }
}
