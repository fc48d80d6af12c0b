//! Memory and CPU time of a process, from `/proc`.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Result;

/// Ticks per second in `/proc/PID/stat`: `USER_HZ`, which is 100 on all supported
/// architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// Runs per median of [`median_run`].
const RUNS: usize = 20;

/// Pause after the start, so that the start is not measured as idle time.
const SETTLE: Duration = Duration::from_secs(1);

/// Resources of an empty, idle server.
pub struct IdleCost {
    pub resident_bytes: u64,
    /// The part of the resident memory that is no page of a file: heap, stacks and relocated data.
    pub anonymous_bytes: u64,
    /// CPU time per second.
    pub cpu_share: f64,
    /// Time of its smallest command.
    pub command: Duration,
}

impl IdleCost {
    /// Measures an idle server for `watch`, then times a command.
    pub fn watch(pid: u32, watch: Duration, command: &mut Command) -> Result<Self> {
        thread::sleep(SETTLE);
        let cpu_share = cpu_share(pid, watch)?;
        let (resident_bytes, anonymous_bytes) = (resident_bytes(pid)?, memory(pid, "RssAnon:")?);
        Ok(Self { resident_bytes, anonymous_bytes, cpu_share, command: median_run(command)? })
    }
}

pub fn resident_bytes(pid: u32) -> Result<u64> {
    memory(pid, "VmRSS:")
}

/// Maximum resident memory of a process so far.
pub fn peak_bytes(pid: u32) -> Result<u64> {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, key: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or_else(|| format!("process {pid} has no resident memory"))?;
    Ok(kib.parse::<u64>()? * 1024)
}

/// CPU time that a process uses per second, measured over an interval.
pub fn cpu_share(pid: u32, interval: Duration) -> Result<f64> {
    let (before, started) = (cpu_seconds(pid)?, Instant::now());
    thread::sleep(interval);
    Ok((cpu_seconds(pid)? - before) / started.elapsed().as_secs_f64())
}

/// CPU time that a process has used, in user and kernel mode.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The process name is in parentheses and may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')').ok_or("no process name in its stat")?;
    let ticks: Vec<f64> = fields
        .split_whitespace()
        .skip(11) // From the state on: utime and stime are the 12th and 13th.
        .take(2)
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// Median time of a command, from start to exit.
pub fn median_run(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut took = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let started = Instant::now();
        let status = command.status()?;
        took.push(started.elapsed());
        if !status.success() {
            return Err(format!("{:?} exited with {status}", command.get_program()).into());
        }
    }
    took.sort();
    Ok(took[RUNS / 2])
}

/// Time of one run of a command, from start to exit.
pub fn timed_run(command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let took = started.elapsed();
    if output.status.success() {
        return Ok(took);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{:?} exited with {}: {stderr}", command.get_program(), output.status).into())
}
