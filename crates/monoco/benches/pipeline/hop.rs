//! The same chain with one worker behind a beanstalkd, beside a bare cycle on that
//! beanstalkd.
//!
//! A cycle is put, reserve and delete: two syncs of beanstalkd's log. A hop is such a cycle
//! for the letter and one for the answer, which many letters may share, beside the commits
//! of our own.

use serde_json::json;

use crate::common::Result;
use crate::common::drive::drive;
use crate::common::figures::thousands;
use crate::letters::{SIZE, write_letter};
use crate::office::{Office, TUNNEL, calm, workers};
use crate::plan::{PRODUCERS, Plan};
use crate::report::{Report, Rounds, ratio};
use crate::tubes::{Beanstalkd, Tagger};

/// The chain.
const CHAIN: [&str; 6] = ["spam", "subject", "tagger", "footer", "limit", "send"];

/// What is left of the rate of bare cycles, at least.
const WANTED: &str = "≥ 0.5";

/// Most answers of one job, by a worker that gives many at once.
const TOGETHER: usize = 100;

/// Measures a bare cycle, a worker that answers many letters with a job, and one that
/// answers each with its own, turn by turn.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for producers in PRODUCERS {
        let mut rounds = Rounds::default();
        for round in 1..=plan.repeats {
            let base = cycle(plan, producers)?;
            let (many, one) = (hop(plan, producers, TOGETHER)?, hop(plan, producers, 1)?);
            eprintln!(
                "{producers} producers, round {round}: {base:.0} cycles/s, {many:.0} letters/s, \
                 {one:.0} with an answer per job"
            );
            rounds.add([base, many, one]);
        }
        rows.push(rounds);
    }
    let rates = |at: usize| rows.iter().map(move |rounds| thousands(rounds.rate(at)));
    let ratios = |at: usize| rows.iter().map(move |rounds| ratio(rounds.ratio(at, 0)));
    report.heading("one hop to a beanstalkd", &report.producers());
    report.row("bare put → reserve → delete, jobs/s", "", rates(0));
    let chain = CHAIN.join(", ");
    report.row(&format!("{chain}, letters/s, up to {TOGETHER} answers per job"), "", rates(1));
    report.row("letters ÷ bare cycles", WANTED, ratios(1));
    report.row("the same chain, letters/s, one answer per job", "", rates(2));
    report.row("letters ÷ bare cycles", WANTED, ratios(2));
    Ok(())
}

/// Cycles per second, each connection its own.
fn cycle(plan: &Plan, connections: usize) -> Result<f64> {
    let beanstalkd = Beanstalkd::start(&plan.dir)?;
    let run = |bounds| {
        drive(connections, bounds, |_| {
            let (mut line, mut body) = (beanstalkd.line("cycle", "cycle")?, Vec::new());
            Ok(move || {
                body.clear();
                write_letter(&mut body, SIZE, None);
                line.put(&body)?;
                // Whichever comes: there are as many as there are connections.
                let job = line.reserve(1)?.ok_or("a job that was put is not there")?;
                line.delete(&[job]).map(|()| 1)
            })
        })
    };
    let [warming, counting] = plan.bounds();
    calm();
    run(warming)?;
    Ok(run(counting)?.rate)
}

/// Letters per second, with the worker in the middle of them.
fn hop(plan: &Plan, producers: usize, together: usize) -> Result<f64> {
    let beanstalkd = Beanstalkd::start(&plan.dir)?;
    let mut workers = workers();
    workers["tagger"] = json!({"kind": "beanstalkd", "server": beanstalkd.url()?});
    let pipeline = json!({"outbound": CHAIN, "workers": workers});
    let office = Office::open(&plan.dir, &pipeline, &[TUNNEL])?;
    let tagger = Tagger::start(&beanstalkd, together)?;
    let rate = office.rate(producers, plan.few())?;
    tagger.stop()?;
    Ok(rate)
}
