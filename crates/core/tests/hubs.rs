//! Compares the simulation of several hubs (`benches/hubs`) with closed forms of queueing theory.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    clippy::print_stderr,
    dead_code,
    reason = "the modules are those of the benchmark"
)]

#[path = "../../monoco/benches/common/figures.rs"]
mod figures;
#[path = "../benches/hubs/latency.rs"]
mod latency;
#[path = "../benches/hubs/options.rs"]
mod options;
#[path = "../benches/hubs/random.rs"]
mod random;
#[path = "../benches/hubs/service.rs"]
mod service;
#[path = "../benches/hubs/simulation.rs"]
mod simulation;
#[path = "../benches/hubs/tables.rs"]
mod tables;

use options::Options;
use service::ServiceTimes;
use simulation::{Outage, Scenario, simulate};

/// Times of a writer that commits one command at a time: 1 ms for a message, none for a step.
const SINGLE: ServiceTimes =
    ServiceTimes { commit: 0.0, dispatch: 0.001, step: 0.0, max_commands: 1, exponential: false };

/// Direct messages only, at most 200,000.
fn direct(times: ServiceTimes, hubs: u32, rate: f64) -> Scenario {
    let options = Options { groups: 0.0, messages: 200_000.0, ..Options::default() };
    options.scenario(times, hubs, rate)
}

fn assert_near(found: f64, expected: f64, tolerance: f64, what: &str) {
    let ratio = found / expected;
    assert!((ratio - 1.0).abs() < tolerance, "{what}: {found} instead of {expected}");
}

#[test]
fn one_hub_with_constant_times_is_an_m_d_1_queue() {
    for load in [0.3, 0.5, 0.8] {
        let result = simulate(&direct(SINGLE, 1, load * 1e3));
        // Pollaczek and Khinchine: the time in the system, with a service time of 1.
        let expected = 1.0 + load / (2.0 * (1.0 - load));
        assert_near(result.latencies.mean_ms(), expected, 0.03, "mean time");
        assert_near(result.mean_load, load, 0.01, "load");
    }
}

#[test]
fn one_hub_with_exponential_times_is_an_m_m_1_queue() {
    // All of the time is in the commit. In a whole hub the steps that follow would have commits of
    // their own, so this is the writer alone.
    for load in [0.3, 0.5, 0.8] {
        let mut random = random::Random::new(3);
        let times = ServiceTimes { commit: 0.001, dispatch: 0.0, exponential: true, ..SINGLE };
        let sojourns = single_queue(&times, load * 1e3, &mut random);
        assert_near(sojourns.mean_ms(), 1.0 / (1.0 - load), 0.04, "mean time");
        // The time in the system is exponential too.
        let p99 = 100_f64.ln() / (1.0 - load);
        assert_near(sojourns.quantile_ms(0.99), p99, 0.06, "99 %");
    }
}

/// Messages that arrive at one writer by a Poisson process; nothing follows from a commit.
fn single_queue(
    times: &ServiceTimes,
    rate: f64,
    random: &mut random::Random,
) -> latency::Latencies {
    struct Arrived(u64);
    impl service::WriterCommand for Arrived {
        fn time(&self, times: &ServiceTimes) -> f64 {
            times.dispatch
        }
    }
    let mut writer = service::Writer::new();
    let mut latencies = latency::Latencies::new();
    let (mut now, mut next) = (0, 0);
    for _ in 0..400_000 {
        if writer.waiting.is_empty() {
            now = now.max(next);
        }
        while next <= now {
            writer.waiting.push_back(Arrived(next));
            next += service::nanoseconds(random.exponential(1.0 / rate));
        }
        now += writer.start_commit(times, random).unwrap();
        writer.end_commit().iter().for_each(|it| latencies.add(now - it.0));
    }
    latencies
}

#[test]
fn a_message_that_crosses_hubs_takes_three_commits_and_half_a_round_trip() {
    let times = ServiceTimes { commit: 0.002, max_commands: 512, ..SINGLE };
    // So few messages that none waits for another.
    let mut scenario = direct(times, 1_000, 10.0);
    scenario.messages = 5_000;
    scenario.round_trip = 0.040;
    let result = simulate(&scenario);
    // Dispatch 3 ms, lease 2 ms, network 20 ms, inbound dispatch 3 ms.
    assert_near(result.latencies.quantile_ms(0.5), 28.0, 0.02, "median");
    assert_near(result.crossing, 0.999, 0.002, "share in another hub");
    scenario.local_share = 1.0;
    let local = simulate(&scenario);
    assert_near(local.latencies.quantile_ms(0.5), 3.0, 0.02, "median on one hub");
    assert_eq!(local.crossing, 0.0);
}

#[test]
fn the_same_seed_gives_the_same_result_and_another_seed_another() {
    let options = Options { messages: 20_000.0, ..Options::default() };
    let times = options.times().unwrap();
    let run = |seed| simulate(&Scenario { seed, ..options.scenario(times, 100, 5_000.0) });
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).latencies, run(2).latencies);
}

#[test]
fn groups_reach_every_subscriber_once() {
    let options = Options { groups: 1.0, messages: 20_000.0, ..Options::default() };
    let scenario = options.scenario(options.times().unwrap(), 50, 500.0);
    let result = simulate(&scenario);
    assert_near(result.fan_out, scenario.group_sizes.mean(), 0.15, "inboxes per message");
    assert_near(result.crossing, 0.98, 0.01, "share in another hub");
}

#[test]
fn backlog_of_an_outage_drains_in_the_time_of_the_fluid_limit() {
    let mut scenario = direct(SINGLE, 1, 500.0);
    scenario.outage = Some(Outage { from: 10.0, until: 40.0 });
    let result = simulate(&scenario);
    assert_near(result.backlog as f64, 15_000.0, 0.05, "messages waiting");
    assert_near(result.drained_after.unwrap(), 30.0, 0.1, "seconds to drain");
}

#[test]
fn sends_from_one_hub_to_another_are_limited() {
    let times = ServiceTimes { commit: 0.001, max_commands: 512, dispatch: 0.0, ..SINGLE };
    let mut scenario = direct(times, 2, 200.0);
    scenario.messages = 4_000;
    // A send takes more than 0.1 s, so one at a time cannot keep up with 50 messages/s in each
    // direction; 64 can.
    scenario.round_trip = 0.1;
    scenario.sends = 1;
    let one = simulate(&scenario).latencies.quantile_ms(0.99);
    scenario.sends = 64;
    let many = simulate(&scenario).latencies.quantile_ms(0.99);
    assert!(one > 1_000.0 && many < 100.0, "{one} ms with one send, {many} ms with 64");
}
