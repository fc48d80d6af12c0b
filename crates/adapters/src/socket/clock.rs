//! The clocks of the socket loop: elapsed time for deadlines, wall-clock time for frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monoco_core::time::Timestamp;
use rustix::time::{ClockId, clock_gettime};

/// Counts elapsed time, also while the machine is suspended. Timers stand still meanwhile, so
/// the loop compares both at least every [`SocketClock::check_interval`].
#[cfg(target_os = "linux")]
const ELAPSED_CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const ELAPSED_CLOCK: ClockId = ClockId::Monotonic;

#[derive(Clone, Debug)]
pub(super) struct SocketClock {
    pub check_interval: Duration,
    /// Milliseconds that tests add to both clocks, as if the machine had been suspended.
    pub ahead_ms: Arc<AtomicU64>,
}

impl Default for SocketClock {
    fn default() -> Self {
        Self { check_interval: Duration::from_secs(10), ahead_ms: Arc::default() }
    }
}

impl SocketClock {
    /// Reads the elapsed-time counter. Steps of the wall clock do not change it.
    pub fn elapsed(&self) -> Duration {
        Duration::try_from(clock_gettime(ELAPSED_CLOCK)).unwrap_or_default() + self.ahead()
    }

    /// Reads the wall clock, which providers use for times of messages and signatures.
    pub fn wall(&self) -> Timestamp {
        #[expect(clippy::disallowed_methods, reason = "compared with times of the provider")]
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_ms(i64::try_from((since + self.ahead()).as_millis()).unwrap_or(i64::MAX))
    }

    fn ahead(&self) -> Duration {
        Duration::from_millis(self.ahead_ms.load(Ordering::Relaxed))
    }
}
