//! The scenarios, and their results as Markdown tables for `docs/scale.md`.

use monoco_core::rendezvous;

use crate::figures::{head, line, machine, thousands};
use crate::options::Options;
use crate::random::{Random, Zipf};
use crate::service::{MEASURED, ServiceTimes, closed_loop_rate};
use crate::simulation::{Outage, SimulationResult, simulate};

const HUBS: [u32; 5] = [1, 10, 100, 1_000, 10_000];

/// Messages per second and hub.
const RATES_PER_HUB: [f64; 3] = [30.0, 100.0, 300.0];

/// Messages per second of all hubs together.
const INTERNET_RATES: [f64; 3] = [1e6, 3e6, 1e7];

/// Load up to which a hub is planned. The rest is for hot owners and for draining after an outage.
const PLANNED_LOAD: f64 = 0.5;

/// Weights that are computed for one row of the table of moved owners.
const MAX_WEIGHTS: u32 = 10_000_000;

/// Simulates all scenarios and prints their tables.
///
/// # Errors
///
/// When the measured rates contradict the model.
pub fn print_all(options: &Options) -> Result<(), String> {
    let times = options.times()?;
    println!(
        "A model, not a measurement; computed on {}. At least {} messages per row, {} of them to groups, seed {}.\n",
        machine(),
        thousands(options.messages),
        percent(options.groups),
        options.seed,
    );
    println!("{}", service_times(options)?);
    println!("{}", load(options, times));
    println!("{}", internet(options, times));
    println!("{}", hot_owners(options, times));
    println!("{}", outages(options, times));
    println!("{}", moved_owners());
    println!("{}", storage(options));
    Ok(())
}

/// Service times, and the prediction for a rate that they do not come from.
fn service_times(options: &Options) -> Result<String, String> {
    progress("service times");
    let columns = [
        "commit, ms",
        "per record, ms",
        "per step, ms",
        "8 producers, model",
        "8 producers, measured",
        "local messages/s with full commits",
    ];
    let mut text = head("couriers of one hub, as measured", &columns.map(str::to_owned));
    for rates in MEASURED {
        let times = ServiceTimes::from_rates(&rates)?;
        let predicted = closed_loop_rate(&times, 8, &mut Random::new(options.seed as u64));
        // Stored once, leased and marked once.
        let local = 1.0 / (times.work(times.dispatch) + 2.0 * times.work(times.step));
        let figures = [
            format!("{:.2}", times.commit * 1e3),
            format!("{:.3}", times.dispatch * 1e3),
            format!("{:.3}", times.step * 1e3),
            thousands(predicted),
            thousands(rates.dispatch_8),
            thousands(local),
        ];
        text += &line(&rates.couriers.to_string(), &figures);
    }
    Ok(text)
}

/// Latency and load by number of hubs and rate.
fn load(options: &Options, times: ServiceTimes) -> String {
    let mut text = head("hubs × messages/s each", &RESULT_COLUMNS.map(str::to_owned));
    for hubs in HUBS {
        for rate in RATES_PER_HUB {
            progress(&format!("{hubs} hubs, {rate} messages/s each"));
            let result = simulate(&options.scenario(times, hubs, rate * f64::from(hubs)));
            let name = format!("{} × {rate}", thousands(f64::from(hubs)));
            text += &line(&name, &result_figures(&result, rate * f64::from(hubs)));
        }
    }
    text
}

/// Hubs that large rates need, and the latency with them.
fn internet(options: &Options, times: ServiceTimes) -> String {
    let mut text = head("hubs for a load of 0.5", &RESULT_COLUMNS.map(str::to_owned));
    // The work of a message hardly depends on the number of hubs when nearly all messages cross.
    let work = simulate(&options.scenario(times, 10_000, 1e5)).work_per_message;
    for rate in INTERNET_RATES {
        let hubs = (rate * work / PLANNED_LOAD).ceil().clamp(1.0, 1e6);
        progress(&format!("{rate} messages/s on {hubs} hubs"));
        let result = simulate(&options.scenario(times, hubs as u32, rate));
        text += &line(&thousands(hubs), &result_figures(&result, rate));
    }
    text
}

const RESULT_COLUMNS: [&str; 9] = [
    "messages/s",
    "inboxes per message",
    "in another hub",
    "load",
    "writer busy",
    "mean, ms",
    "p50, ms",
    "p99, ms",
    "p99.9, ms",
];

fn result_figures(result: &SimulationResult, rate: f64) -> [String; 9] {
    // The latencies of an overloaded hub grow for as long as the overload lasts.
    let is_overloaded = result.mean_load >= 1.0;
    let latency =
        |ms: f64| if is_overloaded { "overloaded".to_owned() } else { format!("{ms:.1}") };
    let quantile = |share: f64| latency(result.latencies.quantile_ms(share));
    [
        thousands(rate),
        format!("{:.1}", result.fan_out),
        percent(result.crossing),
        format!("{:.2}", result.mean_load),
        percent(result.busy),
        latency(result.latencies.mean_ms()),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
    ]
}

/// Rates of the hottest owners, by closed forms. An owner has one hub.
fn hot_owners(options: &Options, times: ServiceTimes) -> String {
    let columns = [
        "messages to the first, 10⁶/s",
        "load of its hub",
        "messages to the first, 10⁷/s",
        "load of its hub",
        "owners above a load of 0.5, 10⁷/s",
    ];
    let mut text = head("10⁹ owners, exponent", &columns.map(str::to_owned));
    // The work of the recipient's hub: an inbound dispatch, and two steps of the record.
    let work = times.work(times.dispatch) + 2.0 * times.work(times.step);
    for exponent in [0.4, 0.6, 0.8, 1.0] {
        let owners = Zipf { count: 1e9, exponent };
        let direct = owners.top_share() * (1.0 - options.groups);
        let (slow, fast) = (direct * 1e6, direct * 1e7);
        let above =
            owners.ranks_above(PLANNED_LOAD / work / 1e7 / (1.0 - options.groups).max(1e-9));
        let figures = [
            thousands(slow),
            format!("{:.2}", slow * work),
            thousands(fast),
            format!("{:.2}", fast * work),
            thousands(above),
        ];
        text += &line(&exponent.to_string(), &figures);
    }
    text
}

/// One of ten hubs fails over.
fn outages(options: &Options, times: ServiceTimes) -> String {
    const BEFORE_S: f64 = 10.0;
    let columns = ["messages waiting at its end", "drained after, s", "fluid limit, s"];
    let mut text = head("one of 10 hubs commits nothing", &columns.map(str::to_owned));
    let work = simulate(&options.scenario(times, 10, 100.0)).work_per_message;
    for load in [0.3, 0.5, 0.7] {
        for seconds in [10.0, 30.0, 60.0] {
            progress(&format!("outage of {seconds} s at load {load}"));
            let rate = 10.0 * load / work;
            let fluid = seconds * load / (1.0 - load);
            let mut scenario = options.scenario(times, 10, rate);
            scenario.outage = Some(Outage { from: BEFORE_S, until: BEFORE_S + seconds });
            scenario.messages = (rate * (BEFORE_S + seconds + 3.0 * fluid + 10.0)) as u32;
            let result = simulate(&scenario);
            let drained = result.drained_after.map_or("–".to_owned(), |it| format!("{it:.0}"));
            let figures = [thousands(result.backlog as f64), drained, format!("{fluid:.0}")];
            text += &line(&format!("{seconds} s at a load of {load}"), &figures);
        }
    }
    text
}

/// Share of owners that move when hubs are added, by the hash that the courier uses for duties.
fn moved_owners() -> String {
    let columns = ["owners that move", "lower bound", "with owner modulo hubs", "owners tried"];
    let mut text = head("hubs", &columns.map(str::to_owned));
    for (before, after) in [(10, 11), (100, 110), (1_000, 1_100), (10_000, 11_000), (1_000, 2_000)]
    {
        progress(&format!("owners that move from {before} to {after} hubs"));
        let hubs: Vec<String> = (0..after).map(|hub| format!("hub-{hub}")).collect();
        let owners = (MAX_WEIGHTS / (before + after)).min(20_000);
        let moves = |owner: &u32| {
            let owner = format!("did:web:owner-{owner}");
            rendezvous::choose(&owner, &hubs[..before as usize])
                != rendezvous::choose(&owner, &hubs)
        };
        let moved = (0..owners).filter(moves).count();
        // Of `before × after` owners in a row, these have the same remainder.
        let (mut a, mut b) = (before, after);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let multiple = before / a * after;
        let stay = f64::from(before) / f64::from(multiple);
        let figures = [
            percent(moved as f64 / f64::from(owners)),
            percent(1.0 - f64::from(before) / f64::from(after)),
            percent(1.0 - stay),
            thousands(f64::from(owners)),
        ];
        text += &line(&format!("{before} → {after}"), &figures);
    }
    text
}

/// Growth of the database of one hub.
fn storage(options: &Options) -> String {
    let corner = format!(
        "messages/s per hub, {} bytes per inbox, kept {} days",
        thousands(options.message_bytes),
        options.days
    );
    let columns = ["GiB per day", "GiB when old messages are deleted"];
    let mut text = head(&corner, &columns.map(str::to_owned));
    let sizes = Zipf { count: options.largest_group, exponent: options.group_exponent };
    let inboxes = 1.0 - options.groups + options.groups * sizes.mean();
    for rate in RATES_PER_HUB {
        let day = rate * inboxes * options.message_bytes * 86_400.0 / f64::from(1 << 30);
        text += &line(&rate.to_string(), &[thousands(day), thousands(day * options.days)]);
    }
    text
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn progress(what: &str) {
    eprintln!("hubs: {what}");
}
