//! The duties that this run of the courier holds.
//!
//! The only courier of an embedded store holds every duty. A courier of a shared store holds those
//! that [`super::duties`] has acquired, each until a deadline on the elapsed-time clock: a process
//! that was stopped for a while does not continue with work that another courier does by then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::courier::CourierRun;
use monoco_core::duty::{DutyName, DutyProof};
use tokio::sync::watch;

use crate::clock;

/// The duties of this run. Clones share them.
#[derive(Clone, Debug)]
pub struct HeldDuties {
    run: CourierRun,
    /// `None`: every duty, because there is no other courier.
    held: Option<Arc<watch::Sender<DutyDeadlines>>>,
}

/// The duties with their epochs, and the readings of the elapsed-time clock at which they end.
pub type DutyDeadlines = BTreeMap<DutyName, (i64, Duration)>;

/// Why a task must not work for a duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DutyNotHeld;

impl HeldDuties {
    /// All duties, for the only courier of its store.
    pub const fn all(run: CourierRun) -> Self {
        Self { run, held: None }
    }

    /// No duties yet, for a courier that shares its store.
    pub fn none(run: CourierRun) -> Self {
        Self { run, held: Some(Arc::new(watch::Sender::new(DutyDeadlines::new()))) }
    }

    pub const fn run(&self) -> CourierRun {
        self.run
    }

    /// Whether other couriers can have duties.
    pub const fn is_shared(&self) -> bool {
        self.held.is_some()
    }

    /// Whether this run does the work of a duty now.
    pub fn holds(&self, name: &DutyName) -> bool {
        self.proof(name).is_ok()
    }

    /// Returns what transactions of a duty show; `None` when there is no other courier.
    ///
    /// # Errors
    ///
    /// [`DutyNotHeld`] when this run does not hold the duty, or not any more.
    pub fn proof(&self, name: &DutyName) -> Result<Option<DutyProof>, DutyNotHeld> {
        let Some(held) = &self.held else { return Ok(None) };
        match held.borrow().get(name) {
            Some((epoch, until)) if clock::elapsed() < *until => {
                Ok(Some(DutyProof { name: name.clone(), epoch: *epoch }))
            }
            _ => Err(DutyNotHeld),
        }
    }

    /// Returns the duties that are held now; `None` when there is no other courier.
    pub fn names(&self) -> Option<Vec<DutyName>> {
        let held = self.held.as_ref()?;
        let now = clock::elapsed();
        let held = held.borrow();
        Some(held.iter().filter(|(_, (_, until))| now < *until).map(|it| it.0.clone()).collect())
    }

    pub fn set(&self, duties: DutyDeadlines) {
        if let Some(held) = &self.held {
            held.send_replace(duties);
        }
    }

    /// Changes when duties are acquired, renewed or lost. `None` when that never happens.
    pub fn changes(&self) -> Option<watch::Receiver<DutyDeadlines>> {
        self.held.as_ref().map(|held| held.subscribe())
    }

    /// Waits until this run holds a duty.
    pub async fn wait_for(&self, name: &DutyName) {
        let Some(mut changes) = self.changes() else { return };
        while !self.holds(name) {
            // The sender lives as long as this value.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use monoco_core::courier::CourierId;

    use super::*;

    fn run() -> CourierRun {
        CourierRun { id: CourierId::from_random([1; 16]), boot: 1 }
    }

    #[test]
    fn only_courier_holds_every_duty_without_a_proof() {
        let duties = HeldDuties::all(run());
        assert_eq!(duties.proof(&DutyName::Leader), Ok(None));
        assert!(!duties.is_shared() && duties.names().is_none());
    }

    #[test]
    fn duty_is_held_until_its_deadline() {
        let duties = HeldDuties::none(run());
        assert!(!duties.holds(&DutyName::Leader));
        let (now, hour) = (clock::elapsed(), Duration::from_secs(3600));
        duties.set([(DutyName::Leader, (7, now + hour)), (DutyName::Dispatcher, (3, now))].into());
        let proof = DutyProof { name: DutyName::Leader, epoch: 7 };
        assert_eq!(duties.proof(&DutyName::Leader), Ok(Some(proof)));
        assert_eq!(duties.proof(&DutyName::Dispatcher), Err(DutyNotHeld), "the deadline is over");
        assert_eq!(duties.names(), Some(vec![DutyName::Leader]));
    }

    #[tokio::test]
    async fn wait_ends_when_the_duty_is_acquired() {
        let duties = HeldDuties::none(run());
        let waiting = duties.clone();
        let (wait, ()) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(30), waiting.wait_for(&DutyName::Leader)),
            async {
                let until = clock::elapsed() + Duration::from_secs(3600);
                duties.set([(DutyName::Leader, (1, until))].into());
            }
        );
        wait.unwrap();
    }
}
