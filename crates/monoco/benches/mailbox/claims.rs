//! Claims over HTTP: take a Mail, complete it, with few and with many Mails around.
//!
//! A figure is made of rounds. Before each, a hundred Mails are new, so that the
//! small tree does not run dry and the large one has the same to do; the clock runs
//! only while agents claim and complete a hundred Mails, each agent its share.

use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::Result;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::common::http::Conn;
use crate::common::running::refused;
use crate::office::{Office, settle, until};
use crate::plan::Plan;
use crate::population::Population;
use crate::predecessor::Predecessor;
use crate::report::{Report, ms, tenths, times};
use crate::tree::Line;

/// Mails in the small tree, and cycles in a round.
const FEW: usize = 100;

/// How many agents work at the same time.
const AGENTS: [usize; 2] = [1, 8];

/// How long the files of a round may take to move.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is left of the rate with many Mails, at least.
const KEPT: &str = "≥ 0.8";

/// Cycles per second, with few Mails and with many.
type Rates = [f64; 2];

/// Measures both.
pub fn measure(plan: &Plan, large: Population, report: &mut Report) -> Result<()> {
    let (office, mails) = (large.office(), large.index.lines.clone());
    let rounds = plan.rounds.min(mails.len() / FEW);
    settle(&office)?;
    let mut theirs = Vec::new();
    for agents in AGENTS {
        let few = their_cycles(plan, agents, &office, &mails[..rounds * FEW], rounds)?;
        // One round, for it takes its time in a large tree.
        let many = their_cycles(plan, agents, &office, &mails, 1)?;
        theirs.push([few, many]);
    }

    let mut fields = [Population::empty(plan)?, large];
    // A young store still makes room for itself with every commit.
    for field in &mut fields {
        for round in 0..plan.rounds {
            cycles(field, AGENTS[1], round)?;
        }
    }
    let mut slowest = Duration::ZERO;
    report.heading("claim → complete over HTTP, cycles/s");
    for (agents, theirs) in AGENTS.into_iter().zip(theirs) {
        let mut seen = [Vec::new(), Vec::new()];
        for turn in 0..plan.repeats {
            let mut took = [Duration::ZERO; 2];
            for round in 0..plan.rounds {
                // They take turns, so that a slow minute of the disk hits both.
                for (field, took) in fields.iter_mut().zip(&mut took) {
                    let (answered, moved) = cycles(field, agents, turn * plan.rounds + round)?;
                    *took += answered;
                    slowest = slowest.max(moved);
                }
            }
            for (seen, took) in seen.iter_mut().zip(took) {
                seen.push((plan.rounds * FEW) as f64 / took.as_secs_f64());
            }
            eprintln!("{agents} agents, turn {turn}, few and many: {seen:.0?}");
        }
        let ours: Rates = seen.map(|rates| median(rates).unwrap_or_default());
        let who = if agents == 1 { "1 agent".to_owned() } else { format!("{agents} agents") };
        for (n, mails) in [FEW, mails.len()].into_iter().enumerate() {
            let name = format!("{who}, {} Mails in the tree", thousands(mails as f64));
            report.row(&name, "", [ours[n], theirs[n]].map(tenths), &times(ours[n] / theirs[n]));
        }
        let left = [ours, theirs].map(|[few, many]| format!("{:.2}", many / few));
        report.row(&format!("{who}, many ÷ few"), KEPT, left, "");
    }
    let figures = [ms(slowest.as_secs_f64()), "before the answer".to_owned()];
    report.row("files moved after the answer, at most, ms", "", figures, "");
    Ok(())
}

/// One round of our own: how long the answers took, and the files after the last one.
fn cycles(field: &mut Population, agents: usize, round: usize) -> Result<(Duration, Duration)> {
    field.add(FEW)?;
    let office = field.office();
    let mails = pick(&field.index.lines, &office, round);
    let answered = claim_and_complete(&office, agents, &mails)?;
    let archive = office.mailbox.join("archive/webhook");
    let all = || Ok(mails.iter().all(|mail| archive.join(&mail.file).exists()));
    Ok((answered, until("the files of completed Mails", PATIENCE, all)?))
}

/// A hundred Mails that are still to be done, from all over the tree: it must not
/// matter that those around them were not touched for long.
fn pick(lines: &[Line], office: &Office, round: usize) -> Vec<Line> {
    let inbound = office.mailbox.join("inbound/webhook");
    let apart = (lines.len() / FEW).max(1);
    let open = |line: &&Line| inbound.join(&line.file).exists();
    let spread = lines.iter().skip(round % apart).step_by(apart).chain(lines.iter().rev());
    let mut picked: Vec<Line> = Vec::with_capacity(FEW);
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

/// The predecessor's cycles per second: the newest Mails, a hundred a round, beside all
/// that were in the tree before.
fn their_cycles(
    plan: &Plan,
    agents: usize,
    from: &Office,
    mails: &[Line],
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
        took += claim_and_complete(&predecessor.office, agents, mails)?;
    }
    Ok((rounds * FEW) as f64 / took.as_secs_f64())
}

/// Gives the predecessor the same files.
fn link(mails: &[Line], from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for mail in mails {
        fs::hard_link(from.join(&mail.file), to.join(&mail.file))?;
    }
    Ok(())
}

/// Lets so many agents claim and complete these Mails, and says how long it took.
fn claim_and_complete(office: &Office, agents: usize, mails: &[Line]) -> Result<Duration> {
    let ready = Barrier::new(agents + 1);
    thread::scope(|scope| {
        let working: Vec<_> = (0..agents)
            .map(|agent| {
                let ready = &ready;
                scope.spawn(move || -> Result<()> {
                    let body = format!(r#"{{"agent_id":"agent-{agent}"}}"#);
                    let conn = connect(office, &body);
                    // Before the error is looked at, or the others would wait for ever.
                    ready.wait();
                    let mut conn = conn?;
                    for Line { id, .. } in mails.iter().skip(agent).step_by(agents) {
                        for step in ["claim", "complete"] {
                            let path = format!("/api/v1/messages/{id}/{step}");
                            let (status, answer) = conn.post(&path, body.as_bytes())?;
                            if status != 200 {
                                return Err(refused(status, answer));
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

/// A connection that was used once: accepting it is not what is measured.
fn connect(office: &Office, body: &str) -> Result<Conn> {
    let mut conn = Conn::open(office.api, &office.token, "application/json")?;
    let path = "/api/v1/messages/webhook_000000000000000000000000/complete";
    let (status, answer) = conn.post(path, body.as_bytes())?;
    // There is no such Mail.
    if status == 404 { Ok(conn) } else { Err(refused(status, answer)) }
}
