//! Couriers that use the store, and the duties that they share.

use std::collections::BTreeSet;

use async_trait::async_trait;
use monoco_core::courier::{CourierId, CourierRun};
use monoco_core::did::TunnelId;
use monoco_core::duty::{Duty, DutyProof, DutyStep, RegisteredCourier};
use monoco_core::time::Timestamp;

use crate::StoreResult;
use crate::postgres::ServerFacts;

/// Registers couriers and leases duties to them.
#[async_trait]
pub trait DutyStore: Send + Sync {
    /// Whether several couriers can use the store at the same time. Otherwise its only courier
    /// does all the work, and no duty has a row.
    fn is_shared(&self) -> bool;

    /// Returns the time of the database server, which all couriers follow. `None` when the store
    /// is part of the courier.
    async fn server_time(&self) -> StoreResult<Option<Timestamp>>;

    /// Returns the state of the database server. `None` when the store is part of the courier.
    async fn server_facts(&self) -> StoreResult<Option<ServerFacts>>;

    /// Registers the start of a courier, and gives the run the next boot number.
    async fn register_courier(
        &self,
        id: CourierId,
        tunnels: BTreeSet<TunnelId>,
        now: Timestamp,
    ) -> StoreResult<CourierRun>;

    /// Reports that a run lives and which tunnels it configures, and acquires and renews duties
    /// as [`monoco_core::duty::plan_duties`] decides. Returns each duty of the plan as it is
    /// stored now, with its step. A duty that another courier has changed meanwhile is left.
    ///
    /// # Errors
    ///
    /// `StoreError::CourierReplaced` when the courier was started again.
    async fn renew_duties(
        &self,
        run: CourierRun,
        tunnels: BTreeSet<TunnelId>,
        now: Timestamp,
    ) -> StoreResult<Vec<(Duty, DutyStep)>>;

    /// Releases duties whose work has stopped. Those that were acquired by another courier since
    /// are not changed.
    async fn release_duties(&self, duties: Vec<DutyProof>) -> StoreResult<()>;

    /// Ends the registration of a run before the courier stops, and releases all of its duties.
    /// Returns whether no other courier lives.
    async fn end_courier(&self, run: CourierRun, now: Timestamp) -> StoreResult<bool>;

    /// Lists all couriers that were registered, live or not.
    async fn couriers(&self) -> StoreResult<Vec<RegisteredCourier>>;

    /// Lists all duties with their holders.
    async fn duties(&self) -> StoreResult<Vec<Duty>>;

    /// Removes the registrations of couriers that ended, or were last seen, before `before`.
    /// Returns their number.
    async fn remove_couriers(&self, before: Timestamp) -> StoreResult<usize>;
}
