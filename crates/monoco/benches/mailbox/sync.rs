//! `mailbox sync` and `mailbox list` in a large mailbox, from the command line.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::Result;
use crate::common::courier::program;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::common::resources::{median_run, timed_run};
use crate::plan::Plan;
use crate::population::Population;
use crate::predecessor;
use crate::report::{Report, ms, times};
use crate::target::settle;

/// Target in ms for commands whose time must not depend on the number of Mails.
const TARGET: &str = "< 50";

/// Number of filters of the workspace.
const FILTERS: usize = 50;

/// Limit of `mailbox list`.
const NEWEST: &str = "50";

/// Measures the courier and the predecessor. Returns the population.
pub fn measure(plan: &Plan, population: Population, report: &mut Report) -> Result<Population> {
    let mut population = population;
    let home = population.courier.home().to_owned();
    let mailbox = population.target().mailbox;
    let work = TempDir::new_in(&plan.dir)?;
    // The last filter matches all Mails, or one in fifty.
    let everything = filters(json!({"type": "provider", "value": "webhook"}));
    let some = filters(json!({"type": "from_domain", "domain": "team7.example.com"}));
    let mails = population.index.lines.len();
    report.heading(&format!("{} Mails, {FILTERS} filters", thousands(mails as f64)));

    settle(&population.target())?;
    // One workspace for the courier and one for the predecessor.
    let (monoco_root, predecessor_root) =
        (work.path().join("monoco"), work.path().join("predecessor"));
    for (name, filters, pulled) in [
        ("sync, first, 1 in 50 pulled", &some, mails / FILTERS),
        ("sync, first, all pulled", &everything, mails),
    ] {
        let mut measured = Vec::new();
        for _ in 0..plan.repeats {
            workspace(&monoco_root, filters)?;
            measured.push(timed(&mut sync(&home, &monoco_root))?);
        }
        expect_inbox(&monoco_root, pulled)?;
        let measured = median(measured).unwrap_or_default();
        workspace(&predecessor_root, filters)?;
        let predecessor_time = timed(&mut predecessor_sync(&mailbox, &predecessor_root))?;
        expect_inbox(&predecessor_root, pulled)?;
        report.row(
            &format!("{name}, ms"),
            "",
            [ms(measured), ms(predecessor_time)],
            &times(predecessor_time / measured),
        );
    }

    let measured = median_run(&mut sync(&home, &monoco_root))?.as_secs_f64();
    let predecessor_time = timed(&mut predecessor_sync(&mailbox, &predecessor_root))?;
    let figures = [ms(measured), ms(predecessor_time)];
    report.row("sync, nothing new, ms", TARGET, figures, &times(predecessor_time / measured));

    let mut measured = Vec::new();
    for round in 1..=plan.repeats {
        population.add(plan.fresh)?;
        measured.push(timed(&mut sync(&home, &monoco_root))?);
        expect_inbox(&monoco_root, mails + round * plan.fresh)?;
    }
    let measured = median(measured).unwrap_or_default();
    // The predecessor reads all files again.
    let predecessor_time = timed(&mut predecessor_sync(&mailbox, &predecessor_root))?;
    let name = format!("sync, {} new, ms", thousands(plan.fresh as f64));
    report.row(
        &name,
        "",
        [ms(measured), ms(predecessor_time)],
        &times(predecessor_time / measured),
    );

    expect_newest(&mut list(&home, &monoco_root))?;
    let predecessor_time = timed(&mut predecessor_list(&mailbox, &predecessor_root))?;
    let measured = median_run(&mut list(&home, &monoco_root))?.as_secs_f64();
    let figures = [ms(measured), ms(predecessor_time)];
    report.row(
        "list, newest 50, courier running, ms",
        TARGET,
        figures,
        &times(predecessor_time / measured),
    );
    let (population, measured) =
        population.without_courier(|home| median_run(&mut list(home, &monoco_root)))?;
    let measured = measured.as_secs_f64();
    let figures = [ms(measured), ms(predecessor_time)];
    report.row(
        "list, newest 50, courier stopped, ms",
        TARGET,
        figures,
        &times(predecessor_time / measured),
    );
    Ok(population)
}

/// Filters of which only the last matches, so that all are evaluated.
fn filters(last: Value) -> Vec<Value> {
    let kinds = (0..FILTERS - 1).map(|n| match n % 6 {
        0 => json!({"type": "mention", "pattern": format!("@monoco::project{n}")}),
        1 => json!({"type": "binding", "value": format!("project{n}")}),
        2 => json!({"type": "from_domain", "domain": format!("project{n}.example.org")}),
        3 => json!({"type": "from", "value": format!("unknown{n}@example.org")}),
        4 => json!({"type": "session", "value": format!("Project {n}")}),
        _ => json!({"type": "all", "conditions": [
            {"type": "provider", "value": "webhook"},
            {"type": "subject_contains", "value": format!("[Project {n}]")},
        ]}),
    });
    kinds.chain([last]).collect()
}

/// Creates an empty workspace with these filters.
fn workspace(root: &Path, filters: &[Value]) -> Result<()> {
    let _ = fs::remove_dir_all(root);
    let dir = root.join(".monoco/mailbox");
    fs::create_dir_all(&dir)?;
    // JSON is valid YAML.
    let config = json!({"mailbox": {"name": "bench", "filters": filters}});
    Ok(fs::write(dir.join("config.yaml"), config.to_string())?)
}

fn expect_inbox(root: &Path, mails: usize) -> Result<()> {
    let have = fs::read_dir(root.join(".monoco/mailbox/inbox"))?.count();
    if have == mails {
        Ok(())
    } else {
        Err(format!("{}: {have} Mails were pulled, not {mails}", root.display()).into())
    }
}

fn expect_newest(list: &mut Command) -> Result<()> {
    let listed = list.args(["--format", "id"]).output()?.stdout;
    let listed = listed.iter().filter(|byte| **byte == b'\n').count().to_string();
    if listed == NEWEST { Ok(()) } else { Err(format!("the list has {listed} Mails").into()) }
}

fn sync(home: &Path, root: &Path) -> Command {
    monoco(home, root, &["mailbox", "sync"])
}

fn list(home: &Path, root: &Path) -> Command {
    monoco(home, root, &["mailbox", "list", "--limit", NEWEST])
}

fn monoco(home: &Path, root: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).env("MONOCO_HOME", home).current_dir(root);
    command
}

fn predecessor_sync(mailbox: &Path, root: &Path) -> Command {
    let mut command = predecessor::command("sync");
    command.arg("--mailbox").arg(mailbox).arg("--workspace").arg(root);
    command
}

fn predecessor_list(mailbox: &Path, root: &Path) -> Command {
    let mut command = predecessor::command("list");
    command.arg("--mailbox").arg(mailbox).arg("--workspace").arg(root).args(["--limit", NEWEST]);
    command
}

/// Runs a command. Returns the elapsed time in seconds.
fn timed(command: &mut Command) -> Result<f64> {
    Ok(timed_run(command)?.as_secs_f64())
}
