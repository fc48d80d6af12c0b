//! The same chain with one worker behind beanstalkd, compared with jobs on beanstalkd alone.
//!
//! A cycle is put, reserve and delete: two syncs of the log of beanstalkd. A hop is one cycle
//! for the letter and one for the answer, which several letters can share, plus the commits
//! of the courier.

use serde_json::json;

use crate::common::Result;
use crate::common::drive::drive;
use crate::common::figures::thousands;
use crate::harness::{PipelineCourier, TUNNEL, sync_disks, workers};
use crate::letters::{SIZE, write_letter};
use crate::plan::{PRODUCERS, Plan};
use crate::report::{Report, Rounds, ratio};
use crate::tubes::{Beanstalkd, Tagger};

const CHAIN: [&str; 6] = ["spam", "subject", "tagger", "footer", "limit", "send"];

/// Target: letters per second divided by cycles per second.
const TARGET: &str = "≥ 0.5";

/// Answers per job of the worker that combines answers.
const MAX_ANSWERS_PER_JOB: usize = 100;

/// Measures, in turns: cycles, a worker that combines answers, and a worker with one answer
/// per job.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut rows = Vec::new();
    for producers in PRODUCERS {
        let mut rounds = Rounds::default();
        for round in 1..=plan.repeats {
            let base = cycle(plan, producers)?;
            let (many, one) =
                (hop(plan, producers, MAX_ANSWERS_PER_JOB)?, hop(plan, producers, 1)?);
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
    report.heading("one worker behind beanstalkd", &report.producers());
    report.row("put → reserve → delete without a courier, jobs/s", "", rates(0));
    let chain = CHAIN.join(", ");
    report.row(
        &format!("{chain}, letters/s, up to {MAX_ANSWERS_PER_JOB} answers per job"),
        "",
        rates(1),
    );
    report.row("letters ÷ jobs", TARGET, ratios(1));
    report.row("the same chain, letters/s, one answer per job", "", rates(2));
    report.row("letters ÷ jobs", TARGET, ratios(2));
    Ok(())
}

/// Cycles per second. Each connection runs its own cycles.
fn cycle(plan: &Plan, connections: usize) -> Result<f64> {
    let beanstalkd = Beanstalkd::start(&plan.dir)?;
    let run = |bounds| {
        drive(connections, bounds, |_| {
            let (mut line, mut body) = (beanstalkd.connect("cycle", "cycle")?, Vec::new());
            Ok(move || {
                body.clear();
                write_letter(&mut body, SIZE, None);
                line.put(&body)?;
                // The job of any connection: each connection has put one.
                let job = line.reserve(1)?.ok_or("no job within 1 s")?;
                line.delete(&[job]).map(|()| 1)
            })
        })
    };
    let [warming, counting] = plan.bounds();
    sync_disks();
    run(warming)?;
    Ok(run(counting)?.rate)
}

/// Letters per second through the chain with the worker.
fn hop(plan: &Plan, producers: usize, answers_per_job: usize) -> Result<f64> {
    let beanstalkd = Beanstalkd::start(&plan.dir)?;
    let mut workers = workers();
    workers["tagger"] = json!({"kind": "beanstalkd", "server": beanstalkd.url()?});
    let pipeline = json!({"outbound": CHAIN, "workers": workers});
    let pipeline_courier = PipelineCourier::open(&plan.dir, &pipeline, &[TUNNEL])?;
    let tagger = Tagger::start(&beanstalkd, answers_per_job)?;
    let rate = pipeline_courier.rate(producers, plan.external_bounds())?;
    tagger.stop()?;
    Ok(rate)
}
