//! Very many letters behind a limit: what they cost in memory, and whether a letter that
//! need not wait gets past them.

use std::time::Instant;

use serde_json::json;

use crate::chain::CHAIN;
use crate::common::Result;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::common::http::Conn;
use crate::common::resources::{peak_bytes, resident_bytes};
use crate::common::running::refused;
use crate::letters::{SMALL, write_letter};
use crate::office::{DOOR, FOR_ALL, Office, TUNNEL, workers};
use crate::plan::Plan;
use crate::report::{Report, mib, ms};

/// The tunnel whose letters do not wait.
const FREE: &str = "free";

/// Letters of one request.
const BATCH: u64 = 500;

/// What one step showed.
struct Step {
    resident: u64,
    peak: u64,
    median: f64,
    slowest: f64,
    rate: f64,
}

/// Measures step by step, in one courier.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut workers = workers();
    workers["limit"] = json!({"per_tunnel": "1/day"});
    workers["roomy"] = json!({"kind": "limit", "per_tunnel": FOR_ALL});
    let free = CHAIN.map(|name| if name == "limit" { "roomy" } else { name });
    let tunnels = json!({FREE: {"outbound": free}});
    let pipeline = json!({"outbound": CHAIN, "tunnels": tunnels, "workers": workers});
    let mut office = Office::open(&plan.dir, &pipeline, &[TUNNEL, FREE])?;

    let mut steps = Vec::new();
    for waiting in &plan.waiting {
        steps.push(step(&mut office, *waiting, plan.passing)?);
    }
    let names: Vec<_> = plan.waiting.iter().map(|n| thousands(*n as f64)).collect();
    report.heading("letters that wait behind `limit`", &names);
    report.row("memory, MiB", "flat: + 20", steps.iter().map(|step| mib(step.resident)));
    report.row("memory, the most so far, MiB", "", steps.iter().map(|step| mib(step.peak)));
    let name = "a letter through another tunnel, POST to DONE, median, ms";
    report.row(name, "flat", steps.iter().map(|step| ms(step.median)));
    report.row("the same, the slowest, ms", "", steps.iter().map(|step| ms(step.slowest)));
    let name = "letters/s from the door to `limit`, 500 per request";
    report.row(name, "", steps.iter().map(|step| thousands(step.rate)));
    Ok(())
}

/// Hands letters in until so many wait, and looks.
fn step(office: &mut Office, waiting: u64, passing: usize) -> Result<Step> {
    let (started, before) = (Instant::now(), office.posted);
    fill(office, waiting)?;
    office.connect_again()?;
    office.until("letters wait behind the limit", |state| {
        // The first one of all finds the limit free.
        state.all["workers"]["limit"]["kept"].as_u64() == Some(waiting - 1)
    })?;
    let rate = (waiting - before) as f64 / started.elapsed().as_secs_f64();
    let mut took = Vec::with_capacity(passing);
    for _ in 0..passing {
        took.push(office.one_letter(FREE)?.as_secs_f64());
    }
    let pid = office.courier.pid();
    let (resident, peak) = (resident_bytes(pid)?, peak_bytes(pid)?);
    let slowest = took.iter().copied().fold(0.0, f64::max);
    let median = median(took).unwrap_or_default();
    eprintln!(
        "{waiting} waiting: {} MiB, {} ms past them, {rate:.0} letters/s",
        mib(resident),
        ms(median)
    );
    Ok(Step { resident, peak, median, slowest, rate })
}

/// Hands letters in by the batch, until there are so many.
fn fill(office: &mut Office, letters: u64) -> Result<()> {
    let courier = &office.courier;
    let mut conn = Conn::open(courier.addr, &courier.token, "application/x-ndjson")?;
    let mut body = Vec::new();
    while office.posted < letters {
        body.clear();
        let count = BATCH.min(letters - office.posted);
        for _ in 0..count {
            write_letter(&mut body, SMALL, None);
            body.push(b'\n');
        }
        let (status, answer) = conn.post(DOOR, &body)?;
        let kept = answer.split(|byte| *byte == b'\n').filter(|line| is_kept(line)).count();
        if status != 200 || kept as u64 != count {
            return Err(refused(status, answer));
        }
        office.posted += count;
    }
    Ok(())
}

fn is_kept(line: &[u8]) -> bool {
    let kept: &[u8] = br#""duplicate":false"#;
    line.windows(kept.len()).any(|window| window == kept)
}
