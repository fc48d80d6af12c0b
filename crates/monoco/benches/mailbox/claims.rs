//! Claims over HTTP: claim a Mail and complete it, in a small and in a large mailbox.
//!
//! A figure is the sum of several rounds. 100 new Mails are stored before each round, so
//! that the small mailbox does not become empty and both have the same work. Only the time
//! in which the agents claim and complete 100 Mails is measured.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::unexpected_response;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::common::http::Conn;
use crate::mailbox_files::MailLine;
use crate::plan::Plan;
use crate::population::Population;
use crate::predecessor::Predecessor;
use crate::report::{Report, ms, tenths, times};
use crate::target::{Target, settle, until};

/// Mails in the small mailbox, and cycles per round.
const FEW: usize = 100;

/// Numbers of concurrent agents.
const AGENTS: [usize; 2] = [1, 8];

/// Maximum time until the files of a round are moved.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Target: rate in the large mailbox divided by the rate in the small one.
const TARGET_RATIO: &str = "≥ 0.8";

/// Cycles per second in the small and in the large mailbox.
type Rates = [f64; 2];

/// Measures the courier and the predecessor.
pub fn measure(plan: &Plan, large: Population, report: &mut Report) -> Result<()> {
    let (target, mails) = (large.target(), large.index.lines.clone());
    let rounds = plan.rounds.min(mails.len() / FEW);
    settle(&target)?;
    let mut predecessor_result = Vec::new();
    for agents in AGENTS {
        let few = predecessor_cycles(plan, agents, &target, &mails[..rounds * FEW], rounds)?;
        // One round, because the predecessor is slow in a large mailbox.
        let many = predecessor_cycles(plan, agents, &target, &mails, 1)?;
        predecessor_result.push([few, many]);
    }

    let mut fields = [Population::empty(plan)?, large];
    // Warm-up: the files of a new store still grow with every commit.
    for field in &mut fields {
        for round in 0..plan.rounds {
            cycles(field, AGENTS[1], round)?;
        }
    }
    let mut slowest = Duration::ZERO;
    report.heading("claim → complete over HTTP, cycles/s");
    for (agents, predecessor_result) in AGENTS.into_iter().zip(predecessor_result) {
        let mut measured = [Vec::new(), Vec::new()];
        for turn in 0..plan.repeats {
            let mut took = [Duration::ZERO; 2];
            for round in 0..plan.rounds {
                // In turns, so that a slow phase of the disk affects both.
                for (field, took) in fields.iter_mut().zip(&mut took) {
                    let (answered, moved) = cycles(field, agents, turn * plan.rounds + round)?;
                    *took += answered;
                    slowest = slowest.max(moved);
                }
            }
            for (measured, took) in measured.iter_mut().zip(took) {
                measured.push((plan.rounds * FEW) as f64 / took.as_secs_f64());
            }
            eprintln!("{agents} agents, turn {turn}, few and many: {measured:.0?}");
        }
        let monoco_result: Rates = measured.map(|rates| median(rates).unwrap_or_default());
        let who = if agents == 1 { "1 agent".to_owned() } else { format!("{agents} agents") };
        for (n, mails) in [FEW, mails.len()].into_iter().enumerate() {
            let name = format!("{who}, {} Mails in the tree", thousands(mails as f64));
            report.row(
                &name,
                "",
                [monoco_result[n], predecessor_result[n]].map(tenths),
                &times(monoco_result[n] / predecessor_result[n]),
            );
        }
        let left =
            [monoco_result, predecessor_result].map(|[few, many]| format!("{:.2}", many / few));
        report.row(&format!("{who}, many ÷ few"), TARGET_RATIO, left, "");
    }
    let figures = [ms(slowest.as_secs_f64()), "before the answer".to_owned()];
    report.row("files moved after the answer, at most, ms", "", figures, "");
    Ok(())
}

/// One round of the courier. Returns the time of the responses, and the time from the last
/// response until all files are moved.
fn cycles(field: &mut Population, agents: usize, round: usize) -> Result<(Duration, Duration)> {
    field.add(FEW)?;
    let target = field.target();
    let mails = pick(&field.index.lines, &target, round);
    let answered = claim_and_complete(&target, agents, &mails)?;
    let archive = target.mailbox.join("archive/webhook");
    let all = || Ok(mails.iter().all(|mail| archive.join(&mail.file).exists()));
    Ok((answered, until("the files of completed Mails", TIMEOUT, all)?))
}

/// 100 open Mails spread over the whole mailbox, so that recently used pages do not speed up
/// the claims.
fn pick(lines: &[MailLine], target: &Target, round: usize) -> Vec<MailLine> {
    let inbound = target.mailbox.join("inbound/webhook");
    let apart = (lines.len() / FEW).max(1);
    let open = |line: &&MailLine| inbound.join(&line.file).exists();
    let spread = lines.iter().skip(round % apart).step_by(apart).chain(lines.iter().rev());
    let mut picked: Vec<MailLine> = Vec::with_capacity(FEW);
    for line in spread.filter(open) {
        if picked.len() == FEW {
            break;
        }
        if !picked.iter().any(|have| have.id == line.id) {
            picked.push(line.clone());
        }
    }
    picked
}

/// Cycles per second of the predecessor: the newest Mails, 100 per round, beside all older
/// Mails.
fn predecessor_cycles(
    plan: &Plan,
    agents: usize,
    from: &Target,
    mails: &[MailLine],
    rounds: usize,
) -> Result<f64> {
    let data = TempDir::new_in(&plan.dir)?;
    let (all, inbound) =
        (from.mailbox.join("inbound/webhook"), data.path().join("inbound/webhook"));
    let (before, new) = mails.split_at(mails.len() - rounds * FEW);
    link(before, &all, &inbound)?;
    let predecessor = Predecessor::start_on(data, Duration::ZERO)?;
    let mut took = Duration::ZERO;
    for mails in new.chunks(FEW) {
        link(mails, &all, &inbound)?;
        took += claim_and_complete(&predecessor.target, agents, mails)?;
    }
    Ok((rounds * FEW) as f64 / took.as_secs_f64())
}

/// Links the files of the courier into the mailbox of the predecessor.
fn link(mails: &[MailLine], from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for mail in mails {
        fs::hard_link(from.join(&mail.file), to.join(&mail.file))?;
    }
    Ok(())
}

/// Claims and completes these Mails with concurrent agents. Returns the elapsed time.
fn claim_and_complete(target: &Target, agents: usize, mails: &[MailLine]) -> Result<Duration> {
    let ready = Barrier::new(agents + 1);
    thread::scope(|scope| {
        let working: Vec<_> = (0..agents)
            .map(|agent| {
                let ready = &ready;
                scope.spawn(move || -> Result<()> {
                    let body = format!(r#"{{"agent_id":"agent-{agent}"}}"#);
                    let conn = connect(target, &body);
                    // Before the error is returned: otherwise the other agents wait forever.
                    ready.wait();
                    let mut conn = conn?;
                    for MailLine { id, .. } in mails.iter().skip(agent).step_by(agents) {
                        for step in ["claim", "complete"] {
                            let path = format!("/api/v1/messages/{id}/{step}");
                            let (status, answer) = conn.post(&path, body.as_bytes())?;
                            if status != 200 {
                                return Err(unexpected_response(status, answer));
                            }
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        ready.wait();
        let started = Instant::now();
        for agent in working {
            agent.join().map_err(|_| "an agent panicked")??;
        }
        Ok(started.elapsed())
    })
}

/// Opens a connection and uses it once, so that accepting it is not measured.
fn connect(target: &Target, body: &str) -> Result<Conn> {
    let mut conn = Conn::open(target.api, &target.token, "application/json")?;
    let path = "/api/v1/messages/webhook_000000000000000000000000/complete";
    let (status, answer) = conn.post(path, body.as_bytes())?;
    // The Mail does not exist.
    if status == 404 { Ok(conn) } else { Err(unexpected_response(status, answer)) }
}
