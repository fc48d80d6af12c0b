//! Where work that runs on another thread puts its result.
//!
//! The work of commands and reads has a type of its own, and so has each result. Queues and tasks get
//! boxed work that returns nothing instead, so that their code is compiled once and not 200 times.

use std::sync::{Arc, Mutex};

use super::closed;
use crate::StoreResult;

/// The result of work that one thread does and another one waits for.
pub(super) struct ResultSlot<T>(Arc<Mutex<Option<StoreResult<T>>>>);

impl<T> ResultSlot<T> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// The same slot, for the other thread.
    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    /// Puts a result, instead of that of an earlier run.
    pub(super) fn put(&self, result: StoreResult<T>) {
        if let Ok(mut slot) = self.0.lock() {
            *slot = Some(result);
        }
    }

    /// Takes the result that the other thread has put.
    ///
    /// # Errors
    ///
    /// Also when the work was not run.
    pub(super) fn take(&self) -> StoreResult<T> {
        let result = self.0.lock().ok().and_then(|mut slot| slot.take());
        result.unwrap_or_else(|| Err(closed()))
    }
}
