//! The first fetch of a mailbox, and polls that find no new mail.

use std::time::Duration;

use tempfile::TempDir;

use crate::account::AccountCourier;
use crate::common::Result;
use crate::dovecot::Dovecot;
use crate::mails::mail;
use crate::peers::{PEERS, Peer};
use crate::plan::Plan;
use crate::report::{Report, mib, ms, per_second, rate, ratio};

/// The user of the courier; each peer has a user of its own name, because some mark mails.
const USER: &str = "monoco";

/// The place of mbsync among the peers.
const MBSYNC: usize = 0;

/// Disk space that the server, the store with its log, and a peer need for each mail, in bytes.
/// A mail has 5.6 KB on average.
const DISK_BYTES_PER_MAIL: u64 = 30_000;

/// What one contender took: the first fetch of each round, and polls without news.
#[derive(Default)]
struct Times {
    fetches: Vec<Duration>,
    polls: Vec<Duration>,
}

impl Times {
    fn fetch(&self) -> f64 {
        median(&self.fetches)
    }

    fn poll(&self) -> f64 {
        median(&self.polls)
    }
}

/// Measures all contenders with the same mails.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let dovecot = Dovecot::start(&plan.dir)?;
    let peers = PEERS.iter().map(|peer| (peer.name, peer.share(plan.mails)));
    let users: Vec<_> = std::iter::once((USER, plan.mails)).chain(peers).collect();
    eprintln!("writing {} mails", plan.mails);
    let bytes = dovecot.fill(&users, (0..plan.mails).map(mail))?;
    rustix::fs::sync();
    let (mut stored, mut written) = (Times::default(), Times::default());
    let mut peers: [Times; 3] = Default::default();
    let mut peaks = [0; 2];
    for round in 0..plan.repeats {
        let is_first = round == 0;
        let polls = if is_first { plan.polls } else { 0 };
        peaks[0] = peaks[0].max(store(plan, &dovecot, plan.mails, polls, &mut stored)?);
        let contenders = PEERS.iter().zip(&mut peers);
        for (peer, times) in contenders.filter(|(peer, _)| is_first || !peer.marks_mails) {
            let run = run_peer(plan, &dovecot, peer, peer.share(plan.mails), polls, times);
            // A peer that fails on a busy machine has no figure; the others still do.
            run.unwrap_or_else(|error| eprintln!("not measured: {error}"));
        }
        peaks[1] = peaks[1].max(files(plan, &dovecot, plan.mails, &mut written)?);
    }
    let title = format!("{} mails, {} MB", plan.mails, bytes / 1_000_000);
    report.contenders(&title, &PEERS.map(|peer| peer.name));
    let mut all = vec![&stored, &written];
    all.extend(&peers);
    let shares = [plan.mails; 2].into_iter().chain(PEERS.iter().map(|it| it.share(plan.mails)));
    let rates = shares.zip(&all).map(|(mails, times)| mails as f64 / times.fetch());
    let rates: Vec<_> = rates.collect();
    report.row("first fetch, mails/s", "", rates.iter().copied().map(per_second));
    let ratios = rates.iter().map(|rate| ratio(rate / rates[2 + MBSYNC]));
    report.row("first fetch ÷ mbsync", "5; Mail files: faster than each", ratios);
    let polls = [stored.poll(), f64::NAN].into_iter().chain(peers.iter().map(Times::poll));
    let polls: Vec<_> = polls.collect();
    report.row("poll without news, ms", "", polls.iter().copied().map(ms));
    let shares = polls.iter().map(|poll| ratio(poll / polls[2 + MBSYNC]));
    report.row("poll ÷ mbsync", "at most 0.1", shares);
    let none = [0; 3];
    report.row("peak memory, MiB", "under 64", peaks.iter().chain(&none).copied().map(mib));
    Ok(())
}

/// Measures the courier with Mail files, alone.
pub fn measure_files(plan: &Plan, report: &mut Report) -> Result<()> {
    let dovecot = Dovecot::start(&plan.dir)?;
    let bytes = dovecot.fill(&[(USER, plan.mails)], (0..plan.mails).map(mail))?;
    rustix::fs::sync();
    let mut times = Times::default();
    let peak = files(plan, &dovecot, plan.mails, &mut times)?;
    let title = format!("{} mails, {} MB", plan.mails, bytes / 1_000_000);
    report.heading(&title, &["target", "monoco, Mail files"]);
    let cell = rate(plan.mails, times.fetch());
    report.row("first fetch, mails/s", "", std::iter::once(cell));
    report.row("peak memory, MiB", "under 64", std::iter::once(mib(peak)));
    Ok(())
}

/// Measures the courier and mbsync with ten times as many mails, once.
pub fn measure_many(plan: &Plan, report: &mut Report) -> Result<()> {
    check_room(plan, plan.many_mails as u64 * DISK_BYTES_PER_MAIL)?;
    let dovecot = Dovecot::start(&plan.dir)?;
    eprintln!("writing {} mails", plan.many_mails);
    let mbsync = &PEERS[MBSYNC];
    let both = [USER, mbsync.name].map(|user| (user, plan.many_mails));
    let bytes = dovecot.fill(&both, (0..plan.many_mails).map(mail))?;
    rustix::fs::sync();
    let (mut stored, mut peer) = (Times::default(), Times::default());
    let peak = store(plan, &dovecot, plan.many_mails, plan.polls, &mut stored)?;
    run_peer(plan, &dovecot, mbsync, plan.many_mails, plan.polls.min(3), &mut peer)?;
    let title = format!("{} mails, {} MB", plan.many_mails, bytes / 1_000_000);
    report.heading(&title, &["target", "monoco, store", mbsync.name]);
    let both = [&stored, &peer];
    let cells = both.map(|times| rate(plan.many_mails, times.fetch()));
    report.row("first fetch, mails/s", "", cells.into_iter());
    let cells = both.map(|times| ratio(peer.fetch() / times.fetch()));
    report.row("first fetch ÷ mbsync", "3.5", cells.into_iter());
    report.row("poll without news, ms", "", both.map(|times| ms(times.poll())).into_iter());
    let cells = both.map(|times| ratio(times.poll() / peer.poll()));
    report.row("poll ÷ mbsync", "at most 0.1", cells.into_iter());
    report.row("peak memory, MiB", "under 64", [peak, 0].map(mib).into_iter());
    Ok(())
}

/// Fails when the disk has no room: a benchmark that fills it would take an hour to say so.
fn check_room(plan: &Plan, needed: u64) -> Result<()> {
    let disk = rustix::fs::statvfs(&plan.dir)?;
    let free = disk.f_bavail * disk.f_frsize;
    if free >= needed {
        return Ok(());
    }
    let (free, needed, dir) = (free >> 20, needed >> 20, plan.dir.display());
    Err(format!("{dir} has {free} MiB of free space, and {needed} MiB are needed; use --dir")
        .into())
}

/// Fetches into the store, and polls. Returns the maximum memory.
fn store(
    plan: &Plan,
    dovecot: &Dovecot,
    mails: usize,
    polls: usize,
    times: &mut Times,
) -> Result<u64> {
    let mut courier = AccountCourier::start(&plan.dir, dovecot, USER, false)?;
    let fetch = courier.until_registered(mails)?;
    eprintln!("monoco, store: {:.2} s", fetch.took.as_secs_f64());
    times.fetches.push(fetch.took);
    let peak = courier.until_processed(mails)?;
    for _ in 0..polls {
        times.polls.push(courier.poll()?);
    }
    Ok(peak.max(fetch.peak))
}

/// Fetches with Mail files. Returns the maximum memory.
fn files(plan: &Plan, dovecot: &Dovecot, mails: usize, times: &mut Times) -> Result<u64> {
    let mut courier = AccountCourier::start(&plan.dir, dovecot, USER, true)?;
    let fetch = courier.until_written(mails)?;
    eprintln!("monoco, Mail files: {:.2} s", fetch.took.as_secs_f64());
    times.fetches.push(fetch.took);
    Ok(fetch.peak)
}

fn run_peer(
    plan: &Plan,
    dovecot: &Dovecot,
    peer: &Peer,
    mails: usize,
    polls: usize,
    times: &mut Times,
) -> Result<()> {
    let dir = TempDir::new_in(&plan.dir)?;
    let mut command = peer.prepare(dir.path(), dovecot.port, peer.name)?;
    let took = peer.run(&mut command, dir.path(), mails)?;
    eprintln!("{}: {:.2} s", peer.name, took.as_secs_f64());
    times.fetches.push(took);
    for _ in 0..polls {
        times.polls.push(peer.run(&mut command, dir.path(), mails)?);
    }
    // What it has written must not be written back during the next measurement.
    rustix::fs::sync();
    Ok(())
}

/// The median in seconds; not a number when there are none.
fn median(times: &[Duration]) -> f64 {
    let times = times.iter().map(Duration::as_secs_f64).collect();
    crate::common::drive::median(times).unwrap_or(f64::NAN)
}
