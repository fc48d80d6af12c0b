//! What a process costs: memory and processor time, as Linux reports them.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::Result;

/// Ticks per second in `/proc/PID/stat`: part of the kernel's interface on
/// every machine we build for, whatever its internal clock.
const TICKS_PER_SECOND: f64 = 100.0;

/// How often a command is run to find its usual time.
const RUNS: usize = 20;

/// A pause after the start, so that starting is not counted as idling.
const SETTLE: Duration = Duration::from_secs(1);

/// What an empty, idle server costs.
pub struct AtRest {
    /// Resident memory.
    pub resident_bytes: u64,
    /// Processor time per second of doing nothing.
    pub cpu_share: f64,
    /// How long its smallest command takes.
    pub command: Duration,
}

impl AtRest {
    /// Watches a server that nobody uses, then times a command.
    pub fn watch(pid: u32, watch: Duration, command: &mut Command) -> Result<Self> {
        thread::sleep(SETTLE);
        let cpu_share = cpu_share(pid, watch)?;
        let resident_bytes = resident_bytes(pid)?;
        Ok(Self { resident_bytes, cpu_share, command: median_run(command)? })
    }
}

/// The resident memory of a process.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    memory(pid, "VmRSS:")
}

/// The most memory that a process had resident so far.
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

/// The processor time a process uses per second, over an interval.
pub fn cpu_share(pid: u32, interval: Duration) -> Result<f64> {
    let (before, started) = (cpu_seconds(pid)?, Instant::now());
    thread::sleep(interval);
    Ok((cpu_seconds(pid)? - before) / started.elapsed().as_secs_f64())
}

/// The processor time a process has used so far, its own and the kernel's.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in brackets and may hold spaces and brackets itself.
    let (_, fields) = stat.rsplit_once(')').ok_or("no process name in its stat")?;
    let ticks: Vec<f64> = fields
        .split_whitespace()
        .skip(11) // From the state on: utime and stime are the 12th and 13th.
        .take(2)
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / TICKS_PER_SECOND)
}

/// How long a command usually takes, from its start to its end.
pub fn median_run(command: &mut Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut took = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let started = Instant::now();
        let status = command.status()?;
        took.push(started.elapsed());
        if !status.success() {
            return Err(format!("{:?} ended with {status}", command.get_program()).into());
        }
    }
    took.sort();
    Ok(took[RUNS / 2])
}

/// How long a command takes this once, from its start to its end.
pub fn timed_run(command: &mut Command) -> Result<Duration> {
    let started = Instant::now();
    let output = command.stdin(Stdio::null()).output()?;
    let took = started.elapsed();
    if output.status.success() {
        return Ok(took);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{:?} ended with {}: {said}", command.get_program(), output.status).into())
}
