//! Measures rates: threads repeat a call, and the main thread counts over a time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use super::Result;

/// Polling interval; precise enough for measurements of at least one second.
const TICK: Duration = Duration::from_millis(2);

/// Limits of a measurement. It ends at the first limit that is reached.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub warm_up: Duration,
    pub measure: Duration,
    /// Maximum number of calls, including the warm-up.
    pub calls: u64,
}

/// Result of a measurement.
pub struct Measured {
    /// Messages per second, after the warm-up.
    pub rate: f64,
    /// All messages, including the warm-up.
    pub messages: u64,
}

/// Runs `workers` threads and measures their messages per second.
///
/// `start` runs in each thread before the measurement and returns the call that is repeated.
/// The call returns how many messages it processed. The first error ends the measurement.
pub fn drive<Call>(
    workers: usize,
    bounds: Bounds,
    start: impl Fn(usize) -> Result<Call> + Sync,
) -> Result<Measured>
where
    Call: FnMut() -> Result<u64>,
{
    let run = Run {
        bounds,
        ready: Barrier::new(workers + 1),
        stop: AtomicBool::new(false),
        calls: AtomicU64::new(0),
        messages: AtomicU64::new(0),
        busy: AtomicUsize::new(workers),
    };
    thread::scope(|scope| {
        let (run, start) = (&run, &start);
        let threads: Vec<_> =
            (0..workers).map(|worker| scope.spawn(move || run.work(|| start(worker)))).collect();
        let rate = run.watch();
        for thread in threads {
            thread.join().map_err(|_| "a worker panicked")??;
        }
        if rate > 0.0 {
            Ok(Measured { rate, messages: run.messages.load(Relaxed) })
        } else {
            Err("no message was processed during the measurement".into())
        }
    })
}

/// The median; `None` when the list is empty.
pub fn median(mut rates: Vec<f64>) -> Option<f64> {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// State that the threads of one measurement share.
struct Run {
    bounds: Bounds,
    ready: Barrier,
    stop: AtomicBool,
    calls: AtomicU64,
    messages: AtomicU64,
    busy: AtomicUsize,
}

impl Run {
    fn work<Call>(&self, start: impl FnOnce() -> Result<Call>) -> Result<()>
    where
        Call: FnMut() -> Result<u64>,
    {
        let call = start();
        // Before the error is returned: otherwise the other threads wait forever.
        self.ready.wait();
        let done = call.and_then(|call| self.repeat(call));
        if done.is_err() {
            self.stop.store(true, Relaxed);
        }
        self.busy.fetch_sub(1, Relaxed);
        done
    }

    fn repeat(&self, mut call: impl FnMut() -> Result<u64>) -> Result<()> {
        // Counted before the call, so that no thread asks for a message too many.
        while !self.stop.load(Relaxed) && self.calls.fetch_add(1, Relaxed) < self.bounds.calls {
            self.messages.fetch_add(call()?, Relaxed);
        }
        Ok(())
    }

    fn watch(&self) -> f64 {
        self.ready.wait();
        let started = Instant::now();
        // The warm-up must not use up a small backlog.
        while started.elapsed() < self.bounds.warm_up
            && self.calls.load(Relaxed) < self.bounds.calls / 10
            && self.running()
        {
            thread::sleep(TICK);
        }
        let (counted_from, before) = (Instant::now(), self.messages.load(Relaxed));
        while counted_from.elapsed() < self.bounds.measure && self.running() {
            thread::sleep(TICK);
        }
        let (took, after) = (counted_from.elapsed(), self.messages.load(Relaxed));
        self.stop.store(true, Relaxed);
        (after - before) as f64 / took.as_secs_f64()
    }

    fn running(&self) -> bool {
        !self.stop.load(Relaxed) && self.busy.load(Relaxed) > 0
    }
}
