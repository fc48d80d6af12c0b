//! A steady stream of webhooks: kept, merged, and in files, with none lost.
//!
//! The stream follows a schedule, whatever the answers do: a message that leaves
//! late because an earlier answer was late counts from when it was due. 200
//! sessions take turns. Each says 20 things within a second and is then quiet for
//! three, so that a window of one second makes one Mail of each burst.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::Result;
use crate::common::figures::thousands;
use crate::common::resources::resident_bytes;
use crate::hook::{self, Provider, Said};
use crate::office::{self, Office, until};
use crate::plan::Plan;
use crate::predecessor::Predecessor;
use crate::report::{Report, mib, ms, plain, times};
use crate::tree::Messages;

/// How long both wait for another message of a burst.
const WINDOW: Duration = Duration::from_secs(1);

/// Sessions that take turns.
const SESSIONS: u64 = 200;

/// Messages of one burst.
const BURST: u64 = 20;

/// Connections, all of them kept.
const CONNECTIONS: usize = 16;

/// How long the last file may take. The default wait for a merge is at most half of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Seconds at each end over which memory is compared.
const END: usize = 10;

/// What was seen of one office.
struct Seen {
    /// Answers in a second.
    rate: f64,
    /// From when a message was due to its answer, sorted.
    latency: Vec<Duration>,
    /// Resident memory, every second.
    memory: Vec<u64>,
    /// Answered, but in no file when the last answer came.
    behind: u64,
    /// From the last answer to the last file.
    settled: Option<Duration>,
    lost: u64,
    twice: u64,
    mails: usize,
}

/// Measures both.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let courier = office::courier(&plan.dir, WINDOW)?;
    let ours = stream(plan, &Office::of(&courier), "monoco")?;
    drop(courier);
    let predecessor = Predecessor::start(&plan.dir, WINDOW)?;
    let theirs = stream(plan, &predecessor.office, "predecessor")?;
    drop(predecessor);

    report.heading(&format!("{} webhooks/s for {} s", thousands(plan.rate as f64), plan.seconds));
    let both = [&ours, &theirs];
    report.row("answered, messages/s", &plain(plan.rate), both.map(|s| thousands(s.rate)), "");
    report.row("messages lost", "0", both.map(|s| plain(s.lost)), "");
    report.row("messages in two Mails", "0", both.map(|s| plain(s.twice)), "");
    for (name, share) in [("median", 0.5), ("99 %", 0.99), ("slowest", 1.0)] {
        let figures = both.map(|s| s.percentile(share));
        let ratio = times(figures[1] / figures[0]);
        report.row(&format!("answer, {name}, ms"), "", figures.map(ms), &ratio);
    }
    let ends = both.map(Seen::memory_at_ends);
    let figures = ends.map(|(first, last)| format!("{} → {}", mib(first), mib(last)));
    report.row("memory, first → last 10 s, MiB", "flat", figures, "");
    report.row("Mails", "", both.map(|s| plain(s.mails as u64)), "");
    let figures = ["none, by design".to_owned(), plain(theirs.behind)];
    report.row("messages in memory only, at the last answer", "0", figures, "");
    let settled = |s: &Seen| s.settled.map_or_else(|| "never".into(), |d| ms(d.as_secs_f64()));
    report.row("last file after the last answer, ms", "", both.map(settled), "");
    Ok(())
}

/// Who says what, in order: bursts that begin one after the other and overlap.
fn schedule(messages: u64) -> Vec<Said> {
    // 50 bursts are under way at any time, each a little further on.
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
    numbered.map(|(number, (_, session))| Said { number, session }).collect()
}

/// Sends the stream, then waits for the last file and looks for every message.
fn stream(plan: &Plan, office: &Office, name: &str) -> Result<Seen> {
    eprintln!("{name}: {} messages at {}/s", plan.messages(), plan.rate);
    let schedule = schedule(plan.messages());
    let done = AtomicBool::new(false);
    let (sent, memory) = thread::scope(|scope| {
        let watch = scope.spawn(|| watch(office.pid, &done));
        let sent = send(plan, office, &schedule);
        done.store(true, Relaxed);
        let memory = watch.join().map_err(|_| "the watcher panicked")??;
        sent.map(|sent| (sent, memory))
    })?;
    let (mut latency, took) = sent;
    latency.sort_unstable();

    let mut messages = Messages::of(&office.mailbox);
    let wanted = plan.messages();
    let started = Instant::now();
    let behind = wanted.saturating_sub(messages.look()?);
    let settled = until("the last file", PATIENCE, || Ok(messages.look()? >= wanted));
    let settled = settled.ok().map(|_| started.elapsed());
    let lost = (0..wanted).filter(|number| !messages.has(&hook::id(*number))).count() as u64;
    Ok(Seen {
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

/// How long every answer took, and all of them together.
fn send(plan: &Plan, office: &Office, schedule: &[Said]) -> Result<(Vec<Duration>, Duration)> {
    let mut providers = Vec::new();
    for _ in 0..CONNECTIONS {
        providers.push(Provider::open(office.webhooks)?);
    }
    let started = Instant::now();
    let mut latency = Vec::with_capacity(schedule.len());
    thread::scope(|scope| {
        let senders = providers.into_iter().enumerate().map(|(first, mut provider)| {
            scope.spawn(move || -> Result<Vec<Duration>> {
                let mut took = Vec::new();
                for said in schedule.iter().skip(first).step_by(CONNECTIONS) {
                    let due = plan.due(said.number);
                    if let Some(early) = due.checked_sub(started.elapsed()) {
                        thread::sleep(early);
                    }
                    provider.push(*said)?;
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

/// The memory of a process, every second until it is done.
fn watch(pid: u32, done: &AtomicBool) -> Result<Vec<u64>> {
    let mut seen = Vec::new();
    while !done.load(Relaxed) {
        thread::sleep(Duration::from_secs(1));
        seen.push(resident_bytes(pid)?);
    }
    Ok(seen)
}

impl Seen {
    /// How long that share of the answers took at most, in seconds.
    fn percentile(&self, share: f64) -> f64 {
        let last = self.latency.len().saturating_sub(1) as f64;
        #[expect(clippy::cast_possible_truncation, reason = "an index, and never negative")]
        let at = (last * share).round() as usize;
        self.latency.get(at).map_or(0.0, Duration::as_secs_f64)
    }

    /// The most memory in the first and in the last seconds.
    fn memory_at_ends(&self) -> (u64, u64) {
        let most = |part: &mut dyn Iterator<Item = &u64>| part.max().copied().unwrap_or_default();
        let first = most(&mut self.memory.iter().take(END));
        (first, most(&mut self.memory.iter().rev().take(END)))
    }
}
