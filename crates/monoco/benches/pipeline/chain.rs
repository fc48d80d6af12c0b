//! Letters through five built-in workers, compared with a dispatch without a chain.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::{RunningCourier, unexpected_response};
use crate::common::drive::{Bounds, drive};
use crate::common::figures::thousands;
use crate::common::http::Conn;
use crate::harness::{PipelineCourier, TUNNEL, sync_disks, workers};
use crate::letters::{SIZE, write_message};
use crate::plan::{PRODUCERS, Plan};
use crate::report::{Report, Rounds, ratio};

pub const CHAIN: [&str; 5] = ["spam", "subject", "footer", "limit", "send"];

/// Target: time of a letter divided by the time of a dispatch.
const TARGET: &str = "≤ 2";

/// Measures dispatches and letters in turns.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let pipeline = json!({"outbound": CHAIN, "workers": workers()});
    let mut rows = Vec::new();
    for producers in PRODUCERS {
        let mut rounds = Rounds::default();
        for round in 1..=plan.repeats {
            let base = dispatch(plan, producers)?;
            let pipeline_courier = PipelineCourier::open(&plan.dir, &pipeline, &[TUNNEL])?;
            let letter_rate = pipeline_courier.rate(producers, plan.bounds())?;
            eprintln!(
                "{producers} producers, round {round}: {base:.0} dispatches/s, {letter_rate:.0} letters/s"
            );
            rounds.add([base, letter_rate]);
        }
        rows.push(rounds);
    }
    let rates = |at: usize| rows.iter().map(move |rounds| thousands(rounds.rate(at)));
    report.heading("five built-in workers", &report.producers());
    report.row("dispatch without a chain, messages/s", "", rates(0));
    report.row(&format!("{}, letters/s", CHAIN.join(", ")), "", rates(1));
    let times = rows.iter().map(|rounds| ratio(rounds.ratio(0, 1)));
    report.row("time of a letter ÷ time of a dispatch", TARGET, times);
    Ok(())
}

/// Messages per second, dispatched one by one to a courier without chains.
fn dispatch(plan: &Plan, producers: usize) -> Result<f64> {
    let courier = RunningCourier::start(TempDir::new_in(&plan.dir)?)?;
    let [warming, counting] = plan.bounds();
    sync_disks();
    dispatched(&courier, producers, warming)?;
    let (messages, took) = dispatched(&courier, producers, counting)?;
    Ok(messages as f64 / took.as_secs_f64())
}

fn dispatched(
    courier: &RunningCourier,
    producers: usize,
    bounds: Bounds,
) -> Result<(u64, Duration)> {
    let first = &OnceLock::new();
    let measured = drive(producers, bounds, |producer| {
        let mut conn = Conn::open(courier.addr, &courier.token, "application/json")?;
        let mut body = Vec::new();
        Ok(move || {
            body.clear();
            write_message(&mut body, SIZE, producer);
            first.get_or_init(Instant::now);
            let (status, answer) = conn.post("/api/v1/dispatch", &body)?;
            if status == 200 { Ok(1) } else { Err(unexpected_response(status, answer)) }
        })
    })?;
    Ok((measured.messages, first.get().ok_or("nothing was dispatched")?.elapsed()))
}
