//! Points of a batch at which tests cut the connection.

use super::driver::PgConnection;

/// A point of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failpoint {
    /// Before the batch waits for its turn.
    BeforeOrder,
    /// All commands have run.
    BeforeCommit,
    /// The server has committed, and its answer is lost.
    AfterCommit,
}

impl PgConnection {
    /// Closes the connection, if a test has set this failpoint.
    #[cfg(test)]
    pub(super) fn reach(&self, point: Failpoint) {
        if self.connector.failpoint.lock().unwrap().take_if(|armed| *armed == point).is_some() {
            self.close();
        }
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "tests use the connection")]
    pub(super) const fn reach(&self, _point: Failpoint) {}
}
