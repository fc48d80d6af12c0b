//! Up to 1,000,000 letters behind a rate limit: their memory, and the latency of letters of
//! another tunnel that do not wait.

use std::time::Instant;

use serde_json::json;

use crate::chain::CHAIN;
use crate::common::Result;
use crate::common::courier::unexpected_response;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::common::http::Conn;
use crate::common::resources::{peak_bytes, resident_bytes};
use crate::harness::{HIGH_RATE, PipelineCourier, SUBMIT_PATH, TUNNEL, workers};
use crate::letters::{SMALL, write_letter};
use crate::plan::Plan;
use crate::report::{Report, mib, ms};

/// Tunnel whose letters do not wait.
const FREE: &str = "free";

const BATCH: u64 = 500;

/// Measurements of one step.
struct Step {
    resident: u64,
    peak: u64,
    median: f64,
    slowest: f64,
    rate: f64,
}

/// Measures all steps in one courier.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut workers = workers();
    workers["limit"] = json!({"per_tunnel": "1/day"});
    workers["roomy"] = json!({"kind": "limit", "per_tunnel": HIGH_RATE});
    let free = CHAIN.map(|name| if name == "limit" { "roomy" } else { name });
    let tunnels = json!({FREE: {"outbound": free}});
    let pipeline = json!({"outbound": CHAIN, "tunnels": tunnels, "workers": workers});
    let mut pipeline_courier = PipelineCourier::open(&plan.dir, &pipeline, &[TUNNEL, FREE])?;

    let mut steps = Vec::new();
    for waiting in &plan.waiting {
        steps.push(step(&mut pipeline_courier, *waiting, plan.passing)?);
    }
    let names: Vec<_> = plan.waiting.iter().map(|n| thousands(*n as f64)).collect();
    report.heading("letters that wait behind `limit`", &names);
    report.row("memory, MiB", "flat: + 20", steps.iter().map(|step| mib(step.resident)));
    report.row("memory, peak, MiB", "", steps.iter().map(|step| mib(step.peak)));
    let name = "a letter through another tunnel, POST to DONE, median, ms";
    report.row(name, "flat", steps.iter().map(|step| ms(step.median)));
    report.row("the same, the slowest, ms", "", steps.iter().map(|step| ms(step.slowest)));
    let name = "letters/s from submission to `limit`, 500 per request";
    report.row(name, "", steps.iter().map(|step| thousands(step.rate)));
    Ok(())
}

/// Submits letters until `waiting` letters wait, and measures.
fn step(pipeline_courier: &mut PipelineCourier, waiting: u64, passing: usize) -> Result<Step> {
    let (started, before) = (Instant::now(), pipeline_courier.submitted);
    fill(pipeline_courier, waiting)?;
    pipeline_courier.connect_again()?;
    pipeline_courier.until("letters wait behind the limit", |state| {
        // The first letter passes the limit.
        state.all["workers"]["limit"]["held"].as_u64() == Some(waiting - 1)
    })?;
    let rate = (waiting - before) as f64 / started.elapsed().as_secs_f64();
    let mut took = Vec::with_capacity(passing);
    for _ in 0..passing {
        took.push(pipeline_courier.one_letter(FREE)?.as_secs_f64());
    }
    let pid = pipeline_courier.courier.pid();
    let (resident, peak) = (resident_bytes(pid)?, peak_bytes(pid)?);
    let slowest = took.iter().copied().fold(0.0, f64::max);
    let median = median(took).unwrap_or_default();
    eprintln!(
        "{waiting} waiting: {} MiB, {} ms for a letter that does not wait, {rate:.0} letters/s",
        mib(resident),
        ms(median)
    );
    Ok(Step { resident, peak, median, slowest, rate })
}

/// Submits letters in batches until `letters` are submitted.
fn fill(pipeline_courier: &mut PipelineCourier, letters: u64) -> Result<()> {
    let courier = &pipeline_courier.courier;
    let mut conn = Conn::open(courier.addr, &courier.token, "application/x-ndjson")?;
    let mut body = Vec::new();
    while pipeline_courier.submitted < letters {
        body.clear();
        let count = BATCH.min(letters - pipeline_courier.submitted);
        for _ in 0..count {
            write_letter(&mut body, SMALL, None);
            body.push(b'\n');
        }
        let (status, answer) = conn.post(SUBMIT_PATH, &body)?;
        let accepted = answer.split(|byte| *byte == b'\n').filter(|line| is_new(line)).count();
        if status != 200 || accepted as u64 != count {
            return Err(unexpected_response(status, answer));
        }
        pipeline_courier.submitted += count;
    }
    Ok(())
}

fn is_new(line: &[u8]) -> bool {
    let marker: &[u8] = br#""duplicate":false"#;
    line.windows(marker.len()).any(|window| window == marker)
}
