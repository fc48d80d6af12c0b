//! A steady stream of webhooks: response times, memory, and lost messages.
//!
//! The stream follows a schedule: the latency of a message counts from when it was due, even
//! when an earlier response delayed it. Each of 200 sessions sends 20 messages within one
//! second and then none for three, so that a window of one second makes one Mail per burst.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Result;
use crate::common::figures::thousands;
use crate::common::resources::resident_bytes;
use crate::mailbox_files::Messages;
use crate::plan::Plan;
use crate::predecessor::Predecessor;
use crate::report::{Report, mib, ms, plain, times};
use crate::target::{self, Target, until};
use crate::webhook::{self, Provider, StreamMessage};

/// Merge window of both programs.
const WINDOW: Duration = Duration::from_secs(1);

const SESSIONS: u64 = 200;

const BURST: u64 = 20;

const CONNECTIONS: usize = 16;

/// Maximum time until the last file is written: twice the default maximum wait for a merge.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Seconds at the start and at the end over which memory is compared.
const END: usize = 10;

/// Measurements of one target.
struct Measured {
    rate: f64,
    /// Time from when a message was due to its response, sorted.
    latency: Vec<Duration>,
    /// Resident memory, sampled every second.
    memory: Vec<u64>,
    /// Messages in no file at the time of the last response.
    behind: u64,
    /// Time from the last response to the last file.
    settled: Option<Duration>,
    lost: u64,
    twice: u64,
    mails: usize,
}

/// Measures the courier and the predecessor.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let courier = target::courier(&plan.dir, WINDOW)?;
    let monoco_result = stream(plan, &Target::of(&courier), "monoco")?;
    drop(courier);
    let predecessor = Predecessor::start(&plan.dir, WINDOW)?;
    let predecessor_result = stream(plan, &predecessor.target, "predecessor")?;
    drop(predecessor);

    report.heading(&format!("{} webhooks/s for {} s", thousands(plan.rate as f64), plan.seconds));
    let both = [&monoco_result, &predecessor_result];
    report.row("answered, messages/s", &plain(plan.rate), both.map(|s| thousands(s.rate)), "");
    report.row("messages lost", "0", both.map(|s| plain(s.lost)), "");
    report.row("messages in two Mails", "0", both.map(|s| plain(s.twice)), "");
    for (name, share) in [("median", 0.5), ("99 %", 0.99), ("slowest", 1.0)] {
        let figures = both.map(|s| s.percentile(share));
        let ratio = times(figures[1] / figures[0]);
        report.row(&format!("answer, {name}, ms"), "", figures.map(ms), &ratio);
    }
    let ends = both.map(Measured::memory_at_ends);
    let figures = ends.map(|(first, last)| format!("{} → {}", mib(first), mib(last)));
    report.row("memory, first → last 10 s, MiB", "flat", figures, "");
    report.row("Mails", "", both.map(|s| plain(s.mails as u64)), "");
    let figures = ["none, by design".to_owned(), plain(predecessor_result.behind)];
    report.row("messages in memory only, at the last answer", "0", figures, "");
    let settled = |s: &Measured| s.settled.map_or_else(|| "never".into(), |d| ms(d.as_secs_f64()));
    report.row("last file after the last answer, ms", "", both.map(settled), "");
    Ok(())
}

/// The messages in order. Bursts start one after the other and overlap.
fn schedule(messages: u64) -> Vec<StreamMessage> {
    // 50 bursts overlap at any time.
    let (every, apart) = (20, 50);
    let mut timed = Vec::new();
    for burst in 0..messages.div_ceil(BURST) {
        for nth in 0..BURST {
            timed.push((burst * every + nth * apart, burst % SESSIONS));
        }
    }
    timed.sort_unstable();
    timed.truncate(usize::try_from(messages).unwrap_or(usize::MAX));
    let numbered = (0..).zip(timed);
    numbered.map(|(number, (_, session))| StreamMessage { number, session }).collect()
}

/// Sends the stream, waits for the last file and checks for lost messages.
fn stream(plan: &Plan, target: &Target, name: &str) -> Result<Measured> {
    eprintln!("{name}: {} messages at {}/s", plan.messages(), plan.rate);
    let schedule = schedule(plan.messages());
    let done = AtomicBool::new(false);
    let (sent, memory) = thread::scope(|scope| {
        let watch = scope.spawn(|| watch(target.pid, &done));
        let sent = send(plan, target, &schedule);
        done.store(true, Relaxed);
        let memory = watch.join().map_err(|_| "the memory sampler panicked")??;
        sent.map(|sent| (sent, memory))
    })?;
    let (mut latency, took) = sent;
    latency.sort_unstable();

    let mut messages = Messages::of(&target.mailbox);
    let wanted = plan.messages();
    let started = Instant::now();
    let behind = wanted.saturating_sub(messages.look()?);
    let settled = until("the last file", TIMEOUT, || Ok(messages.look()? >= wanted));
    let settled = settled.ok().map(|_| started.elapsed());
    let lost = (0..wanted).filter(|number| !messages.has(&webhook::id(*number))).count() as u64;
    Ok(Measured {
        rate: wanted as f64 / took.as_secs_f64(),
        latency,
        memory,
        behind,
        settled,
        lost,
        twice: messages.twice,
        mails: messages.mails(),
    })
}

/// Sends all messages. Returns the latencies and the total time.
fn send(
    plan: &Plan,
    target: &Target,
    schedule: &[StreamMessage],
) -> Result<(Vec<Duration>, Duration)> {
    let mut providers = Vec::new();
    for _ in 0..CONNECTIONS {
        providers.push(Provider::open(target.webhooks)?);
    }
    let started = Instant::now();
    let mut latency = Vec::with_capacity(schedule.len());
    thread::scope(|scope| {
        let senders = providers.into_iter().enumerate().map(|(first, mut provider)| {
            scope.spawn(move || -> Result<Vec<Duration>> {
                let mut took = Vec::new();
                for message in schedule.iter().skip(first).step_by(CONNECTIONS) {
                    let due = plan.due(message.number);
                    if let Some(early) = due.checked_sub(started.elapsed()) {
                        thread::sleep(early);
                    }
                    provider.push(*message)?;
                    took.push(started.elapsed().saturating_sub(due));
                }
                Ok(took)
            })
        });
        let senders: Vec<_> = senders.collect();
        for sender in senders {
            latency.extend(sender.join().map_err(|_| "a sender panicked")??);
        }
        Ok((latency, started.elapsed()))
    })
}

/// Samples the memory of a process every second until `done`.
fn watch(pid: u32, done: &AtomicBool) -> Result<Vec<u64>> {
    let mut measured = Vec::new();
    while !done.load(Relaxed) {
        thread::sleep(Duration::from_secs(1));
        measured.push(resident_bytes(pid)?);
    }
    Ok(measured)
}

impl Measured {
    /// Latency that this share of the responses did not exceed, in seconds.
    fn percentile(&self, share: f64) -> f64 {
        let last = self.latency.len().saturating_sub(1) as f64;
        #[expect(clippy::cast_possible_truncation, reason = "an index, and never negative")]
        let at = (last * share).round() as usize;
        self.latency.get(at).map_or(0.0, Duration::as_secs_f64)
    }

    /// Maximum memory in the first and in the last seconds.
    fn memory_at_ends(&self) -> (u64, u64) {
        let most = |part: &mut dyn Iterator<Item = &u64>| part.max().copied().unwrap_or_default();
        let first = most(&mut self.memory.iter().take(END));
        (first, most(&mut self.memory.iter().rev().take(END)))
    }
}
