//! How long a hub needs for its commits: service times from measured rates, and the writer.
//!
//! A hub has one writer, as the store does. The writer takes the waiting commands, at most
//! [`MAX_COMMANDS_PER_COMMIT`], runs them in one transaction, and answers all of them after the
//! commit. A commit takes a fixed time and a time per command:
//!
//! ```text
//! commit of n commands = commit + n × (dispatch or step)
//! ```
//!
//! The times come from rates of closed loops: `p` producers that each send the next message after the
//! answer to the last one. After a commit the first producer to send finds the writer idle and is
//! committed alone; the others wait for that commit and share the next one. So `p` messages take two
//! commits (one, when there is only one producer). With the rates of 1 and of 64 producers this gives `commit`
//! and `dispatch`; that of 8 producers is not used, and tests the model.

use std::collections::VecDeque;

use crate::random::Random;

/// As in the writer thread of the store.
pub const MAX_COMMANDS_PER_COMMIT: usize = 512;

/// Messages per second, measured by `./bench --only postgres` and recorded in `docs/benchmarks.md`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredRates {
    /// Number of couriers that share the database of the hub.
    pub couriers: u8,
    /// Durable dispatches of 1 producer.
    pub dispatch_1: f64,
    /// Durable dispatches of 8 producers. Only compared with the prediction.
    pub dispatch_8: f64,
    /// Durable dispatches of 64 producers.
    pub dispatch_64: f64,
    /// Messages that 8 takers lease and mark, with 10,000 waiting.
    pub take_finish_8: f64,
}

/// The section PostgreSQL of `docs/benchmarks.md`: 2 cores, PostgreSQL on the same machine.
pub const MEASURED: [MeasuredRates; 3] = [
    MeasuredRates {
        couriers: 1,
        dispatch_1: 552.0,
        dispatch_8: 1_855.0,
        dispatch_64: 5_500.0,
        take_finish_8: 690.0,
    },
    MeasuredRates {
        couriers: 2,
        dispatch_1: 689.0,
        dispatch_8: 1_411.0,
        dispatch_64: 4_316.0,
        take_finish_8: 515.0,
    },
    MeasuredRates {
        couriers: 4,
        dispatch_1: 630.0,
        dispatch_8: 749.0,
        dispatch_64: 2_829.0,
        take_finish_8: 252.0,
    },
];

/// Service times of one hub, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServiceTimes {
    /// Fixed time of a commit.
    pub commit: f64,
    /// Time per stored record or delivery.
    pub dispatch: f64,
    /// Time per step of a record or delivery: lease, mark, report.
    pub step: f64,
    pub max_commands: usize,
    /// Whether the fixed time is exponentially distributed instead of constant. Commits have a long
    /// tail, so the tables use it.
    pub exponential: bool,
}

impl ServiceTimes {
    /// Derives the times from measured rates.
    ///
    /// # Errors
    ///
    /// When the rates contradict the model: a time would be negative.
    pub fn from_rates(rates: &MeasuredRates) -> Result<Self, String> {
        let dispatch = (64.0 / rates.dispatch_64 - 2.0 / rates.dispatch_1) / 62.0;
        let commit = 1.0 / rates.dispatch_1 - dispatch;
        // A taker needs two commands per message.
        let step = (8.0 / (2.0 * rates.take_finish_8) - 2.0 * commit) / 8.0;
        for (name, time) in [("dispatch", dispatch), ("commit", commit), ("step", step)] {
            if time <= 0.0 {
                return Err(format!(
                    "the rates give a negative time per {name}: {:.3} ms; check that --dispatch-1, \
                     --dispatch-64 and --take-finish-8 are rates of one machine, in messages/s",
                    time * 1e3
                ));
            }
        }
        let max_commands = MAX_COMMANDS_PER_COMMIT;
        Ok(Self { commit, dispatch, step, max_commands, exponential: true })
    }

    /// The times with a wait for a synchronous standby in every commit, on hardware that is `speed`
    /// times as fast.
    pub fn adjusted(self, standby: f64, speed: f64) -> Self {
        Self {
            commit: self.commit / speed + standby,
            dispatch: self.dispatch / speed,
            step: self.step / speed,
            ..self
        }
    }

    /// Time of the writer that a command needs at least, when all commits are full.
    pub fn work(&self, command_time: f64) -> f64 {
        command_time + self.commit / self.max_commands as f64
    }
}

/// A command that waits for the writer.
pub trait WriterCommand {
    /// Time of the command in a commit, in seconds.
    fn time(&self, times: &ServiceTimes) -> f64;
}

/// The writer of one hub. It knows nothing of time: the caller asks how long a commit takes.
pub struct Writer<C> {
    pub waiting: VecDeque<C>,
    committing: Vec<C>,
}

impl<C: WriterCommand> Writer<C> {
    pub const fn new() -> Self {
        Self { waiting: VecDeque::new(), committing: Vec::new() }
    }

    /// Starts a commit, and returns its duration in nanoseconds; `None` when a commit is running or
    /// no command waits.
    pub fn start_commit(&mut self, times: &ServiceTimes, random: &mut Random) -> Option<u64> {
        if !self.committing.is_empty() || self.waiting.is_empty() {
            return None;
        }
        let count = self.waiting.len().min(times.max_commands);
        self.committing.extend(self.waiting.drain(..count));
        let commit =
            if times.exponential { random.exponential(times.commit) } else { times.commit };
        let seconds: f64 = commit + self.committing.iter().map(|it| it.time(times)).sum::<f64>();
        Some(nanoseconds(seconds))
    }

    /// Ends the commit, and returns its commands.
    pub fn end_commit(&mut self) -> Vec<C> {
        std::mem::take(&mut self.committing)
    }
}

/// The rate of a closed loop, in messages/s: each producer sends its next message 50 µs on average
/// after the answer to its last one.
pub fn closed_loop_rate(times: &ServiceTimes, producers: usize, random: &mut Random) -> f64 {
    const MESSAGES: usize = 50_000;
    const PAUSE: f64 = 50e-6;
    struct Dispatch;
    impl WriterCommand for Dispatch {
        fn time(&self, times: &ServiceTimes) -> f64 {
            times.dispatch
        }
    }
    let mut writer = Writer::new();
    // When each producer sends its next message.
    let mut sends = vec![0_u64; producers];
    let (mut now, mut done) = (0, 0);
    while done < MESSAGES {
        // The writer waits for the first message, and takes all that have been sent by then.
        now = now.max(sends.iter().copied().min().unwrap_or(now));
        let sent = sends.extract_if(.., |at| *at <= now);
        writer.waiting.extend(sent.map(|_| Dispatch));
        now += writer.start_commit(times, random).unwrap_or_default();
        let answered = writer.end_commit().len();
        sends.extend((0..answered).map(|_| now + nanoseconds(random.exponential(PAUSE))));
        done += answered;
    }
    done as f64 / (now as f64 / 1e9)
}

pub fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_reproduces_the_rates_it_comes_from() {
        for rates in MEASURED {
            let times = ServiceTimes::from_rates(&rates).unwrap();
            for (producers, measured) in [(1, rates.dispatch_1), (64, rates.dispatch_64)] {
                let rate = closed_loop_rate(&times, producers, &mut Random::new(5));
                // The pause of a producer is not part of the derivation.
                assert!((rate / measured - 1.0).abs() < 0.06, "{producers}: {rate} {measured}");
            }
        }
    }

    #[test]
    fn model_predicts_the_measured_rate_of_8_producers_on_one_courier() {
        let rates = MEASURED[0];
        let times = ServiceTimes::from_rates(&rates).unwrap();
        let rate = closed_loop_rate(&times, 8, &mut Random::new(6));
        assert!((rate / rates.dispatch_8 - 1.0).abs() < 0.1, "{rate} for {}", rates.dispatch_8);
    }

    #[test]
    fn rates_that_contradict_the_model_are_an_error_with_a_next_step() {
        let rates = MeasuredRates { dispatch_64: 90_000.0, ..MEASURED[0] };
        let error = ServiceTimes::from_rates(&rates).unwrap_err();
        assert!(error.contains("negative time per dispatch"), "{error}");
        assert!(error.contains("check that --dispatch-1"), "{error}");
    }

    #[test]
    fn standby_delays_commits_and_speed_divides_the_times() {
        let times = ServiceTimes::from_rates(&MEASURED[0]).unwrap();
        let other = times.adjusted(0.001, 2.0);
        assert!((other.commit - (times.commit / 2.0 + 0.001)).abs() < 1e-12);
        assert_eq!((other.dispatch, other.step), (times.dispatch / 2.0, times.step / 2.0));
    }
}
