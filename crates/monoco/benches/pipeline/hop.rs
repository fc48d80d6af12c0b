//! The same chain with one worker behind a beanstalkd, beside a bare cycle on that
//! beanstalkd.
//!
//! A cycle is put, reserve and delete: two syncs of beanstalkd's log. A hop is two such
//! cycles, one for the letter and one for the answer, beside the commits of our own.

use serde_json::json;

use crate::common::Result;
use crate::common::drive::{drive, median};
use crate::common::figures::thousands;
use crate::letters::{SIZE, write_letter};
use crate::office::{Office, TUNNEL, calm, workers};
use crate::plan::{PRODUCERS, Plan};
use crate::report::{Report, ratio};
use crate::tubes::{Beanstalkd, Tagger};

/// The chain.
const CHAIN: [&str; 6] = ["spam", "subject", "tagger", "footer", "limit", "send"];

/// What is left of the rate of bare cycles, at least.
const WANTED: &str = "≥ 0.5";

/// Measures both, turn by turn.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let (mut bare, mut through) = (Vec::new(), Vec::new());
    for producers in PRODUCERS {
        let (mut cycles, mut letters) = (Vec::new(), Vec::new());
        // They take turns, so that a slow minute of the disk hits both.
        for round in 1..=plan.repeats {
            let (base, ours) = (cycle(plan, producers)?, hop(plan, producers)?);
            eprintln!(
                "{producers} producers, round {round}: {base:.0} cycles/s, {ours:.0} letters/s"
            );
            cycles.push(base);
            letters.push(ours);
        }
        bare.push(median(cycles).unwrap_or_default());
        through.push(median(letters).unwrap_or_default());
    }
    report.heading("one hop to a beanstalkd", &report.producers());
    report.row("bare put → reserve → delete, jobs/s", "", bare.iter().copied().map(thousands));
    let name = format!("{}, letters/s", CHAIN.join(", "));
    report.row(&name, "", through.iter().copied().map(thousands));
    let ratios = bare.iter().zip(&through).map(|(bare, through)| ratio(through / bare));
    report.row("letters ÷ bare cycles", WANTED, ratios);
    let cycles = bare.iter().zip(&through).map(|(bare, through)| ratio(2.0 * through / bare));
    report.row("cycles of letters and answers ÷ bare cycles", "", cycles);
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
                let job = line.reserve()?.ok_or("a job that was put is not there")?;
                line.delete(job).map(|()| 1)
            })
        })
    };
    let [warming, counting] = plan.bounds();
    calm();
    run(warming)?;
    Ok(run(counting)?.rate)
}

/// Letters per second, with the worker in the middle of them.
fn hop(plan: &Plan, producers: usize) -> Result<f64> {
    let beanstalkd = Beanstalkd::start(&plan.dir)?;
    let mut workers = workers();
    workers["tagger"] = json!({"kind": "beanstalkd", "server": beanstalkd.url()?});
    let pipeline = json!({"outbound": CHAIN, "workers": workers});
    let office = Office::open(&plan.dir, &pipeline, &[TUNNEL])?;
    let tagger = Tagger::start(&beanstalkd)?;
    let rate = office.rate(producers, plan.few())?;
    tagger.stop()?;
    Ok(rate)
}
