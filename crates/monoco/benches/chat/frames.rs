//! Frames per second from the emulator to disk and acknowledgement, and the time of an
//! acknowledgement at a fixed rate.

use std::time::Instant;

use serde_json::Value;

use crate::common::Result;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::contender::{SdkHandler, start_courier};
use crate::emulator::{Emulator, Network};
use crate::plan::{MESSAGE_RATE, Plan};
use crate::report::{Report, ms, ratio};

/// Networks, the SDK beside which the courier is measured, and the least ratio.
const NETWORKS: [(Network, &str, &str); 4] = [
    (Network::DingTalk, "dingtalk-stream", "≥ 5 × the SDK"),
    (Network::Slack, "slack_sdk Socket Mode", "≥ the SDK"),
    (Network::Lark, "lark-oapi", "≥ 5 × the SDK"),
    (Network::Telegram, "python-telegram-bot", "≥ 5 × the SDK"),
];

/// Measures courier and SDK in turns on the same machine.
pub fn measure_rates(plan: &Plan, report: &mut Report) -> Result<()> {
    let columns = ["courier, frames/s", "SDK, frames/s", "ratio"].map(str::to_owned);
    report.heading("kept and acknowledged", &columns);
    for (network, sdk, target) in NETWORKS {
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.repeats {
            let emulators = [Emulator::start(network, 1)?];
            let courier = start_courier(&plan.dir, &emulators, 1)?;
            let our_rate = rate(plan, &emulators[0], None)?;
            drop((courier, emulators));
            let emulator = Emulator::start(network, 1)?;
            let handler = SdkHandler::start(&plan.dir, &emulator)?;
            let their_rate = rate(plan, &emulator, Some(&handler))?;
            drop((handler, emulator));
            ours.push(our_rate);
            theirs.push(their_rate);
            ratios.push(our_rate / their_rate);
        }
        let of = |figures: Vec<f64>| median(figures).unwrap_or_default();
        let figures = [thousands(of(ours)), thousands(of(theirs)), ratio(of(ratios))];
        report.row(&format!("{} beside {sdk}", network.name()), target, figures.into_iter());
    }
    Ok(())
}

/// Frames per second from the first frame until all are on disk and acknowledged.
fn rate(plan: &Plan, emulator: &Emulator, handler: Option<&SdkHandler>) -> Result<f64> {
    let started = Instant::now();
    emulator.say(plan.frames, None)?;
    emulator.wait_for_acks(plan.frames)?;
    if let Some(handler) = handler {
        handler.wait_for_lines(plan.frames)?;
    }
    Ok(plan.frames as f64 / started.elapsed().as_secs_f64())
}

/// Measures the time from a frame to its acknowledgement, by the clock of the emulator.
pub fn measure_latency(plan: &Plan, report: &mut Report) -> Result<()> {
    let columns = ["p50, ms", "p99, ms", "max, ms"].map(str::to_owned);
    report.heading(&format!("acknowledgement at {MESSAGE_RATE} messages/s"), &columns);
    for (network, ..) in NETWORKS {
        let emulators = [Emulator::start(network, 1)?];
        let _courier = start_courier(&plan.dir, &emulators, 1)?;
        let [emulator] = &emulators;
        let count = MESSAGE_RATE * plan.latency.as_secs();
        emulator.say(count, Some(MESSAGE_RATE))?;
        let state = emulator.wait_for_acks(count)?;
        let figure = |key: &str| ms(state["ack_ms"][key].as_f64().unwrap_or(f64::NAN));
        let unexpected = |key: &str| state["counters"][key].as_u64() != Some(0);
        if unexpected("redelivered") || unexpected("lost") {
            return Err(format!("frames were sent again or lost: {}", counters(&state)).into());
        }
        let figures = ["p50", "p99", "max"].map(figure);
        report.row(network.name(), "p99 < 100 ms", figures.into_iter());
    }
    Ok(())
}

fn counters(state: &Value) -> &Value {
    &state["counters"]
}
