//! The web page in Chromium on a large mailbox: time until it is drawn, what it transfers, and what
//! an open page costs while nothing happens.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::Result;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::common::resources::cpu_share;
use crate::plan::Plan;
use crate::population::Population;
use crate::report::Report;
use crate::target::settle;

/// How long an open page is watched while nothing happens.
const WATCH: Duration = Duration::from_secs(20);

/// A scenario of `tests/page/browser.mjs` that runs.
struct Scenario {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Scenario {
    /// Starts a scenario with a link that logs it in.
    fn start(population: &Population, name: &str) -> Result<Self> {
        let printed = population.courier.command(&["open", "--print"]).output()?.stdout;
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page");
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/reference-npm");
        let mut command = Command::new("node");
        command.arg(tests.join("browser.mjs")).args([name, String::from_utf8(printed)?.trim()]);
        command.env("REFERENCE_NPM", packages.canonicalize()?);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = process.stdin.take().ok_or("the browser has no input")?;
        let output = process.stdout.take().ok_or("the browser has no output")?;
        Ok(Self { process, input, output: BufReader::new(output).lines() })
    }

    /// The next line that it prints.
    fn next(&mut self) -> Result<Value> {
        let line = self.output.next().ok_or("the browser has ended")??;
        let value: Value = serde_json::from_str(&line)?;
        match value["failed"].as_str() {
            Some(why) => Err(why.to_owned().into()),
            None => Ok(value),
        }
    }

    /// Lets it continue, and returns the next line.
    fn proceed(&mut self) -> Result<Value> {
        writeln!(self.input)?;
        self.next()
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Measures the page of a courier with many Mails.
pub fn measure(plan: &Plan, population: &Population, report: &mut Report) -> Result<()> {
    let mails = population.index.lines.len();
    report.heading(&format!("Web page in Chromium, {} Mails", thousands(mails as f64)));
    settle(&population.target())?;
    let mut views = Vec::new();
    for _ in 0..plan.repeats.max(3) {
        views.push(Scenario::start(population, "many")?.next()?);
    }
    let figure = |name: &str| -> Result<f64> {
        let values = views.iter().filter_map(|view| view[name].as_f64()).collect();
        median(values).ok_or_else(|| format!("the browser did not measure {name}").into())
    };
    let mut row = |name: &str, target: &str, measured: String| {
        report.row(name, target, [measured, "–".to_owned()], "–");
    };
    row("first contentful paint, ms", "< 500", format!("{:.0}", figure("first_paint_ms")?));
    row("rows of the inbox are drawn, ms", "–", format!("{:.0}", figure("rows_ms")?));
    row("rows in the document", "≤ 200", format!("{:.0}", figure("rows")?));
    row("first view, transferred, KB", "< 60", format!("{:.1}", figure("transferred")? / 1e3));
    let mut open = Scenario::start(population, "rest")?;
    open.next()?;
    let courier = cpu_share(population.courier.pid(), WATCH)?;
    let page = open.proceed()?["busy_ms"].as_f64().ok_or("no time of the page")?;
    let page = page / (WATCH.as_secs_f64() * 1e3);
    row("courier, CPU while the page is open and nothing happens, %", "–", percent(courier));
    row("page, CPU while nothing happens, %", "–", percent(page));
    Ok(())
}

fn percent(share: f64) -> String {
    format!("{:.2}", share * 100.0)
}
