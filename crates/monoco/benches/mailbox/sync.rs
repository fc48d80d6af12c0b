//! `mailbox sync` and `mailbox list` on a large tree, from the command line.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::Result;
use crate::common::drive::median;
use crate::common::figures::thousands;
use crate::common::resources::{median_run, timed_run};
use crate::common::running::program;
use crate::office::settle;
use crate::plan::Plan;
use crate::population::Population;
use crate::predecessor;
use crate::report::{Report, ms, times};

/// How long may take what has nothing to do with how many Mails there are.
const WANTED: &str = "< 50";

/// Filters of a workspace.
const FILTERS: usize = 50;

/// Most that a list shows.
const NEWEST: &str = "50";

/// Measures both, and gives the population back.
pub fn measure(plan: &Plan, population: Population, report: &mut Report) -> Result<Population> {
    let mut population = population;
    let home = population.courier.home().to_owned();
    let mailbox = population.office().mailbox;
    let work = TempDir::new_in(&plan.dir)?;
    // The last of its filters takes every Mail; or one in fifty.
    let everything = filters(json!({"type": "provider", "value": "webhook"}));
    let some = filters(json!({"type": "from_domain", "domain": "team7.example.com"}));
    let mails = population.index.lines.len();
    report.heading(&format!("{} Mails, {FILTERS} filters", thousands(mails as f64)));

    settle(&population.office())?;
    // Ours and theirs side by side, one workspace each.
    let (ours, theirs) = (work.path().join("ours"), work.path().join("theirs"));
    for (name, filters, pulled) in [
        ("sync, first, 1 in 50 pulled", &some, mails / FILTERS),
        ("sync, first, all pulled", &everything, mails),
    ] {
        let mut seen = Vec::new();
        for _ in 0..plan.repeats {
            workspace(&ours, filters)?;
            seen.push(timed(&mut sync(&home, &ours))?);
        }
        expect_inbox(&ours, pulled)?;
        let seen = median(seen).unwrap_or_default();
        workspace(&theirs, filters)?;
        let their = timed(&mut their_sync(&mailbox, &theirs))?;
        expect_inbox(&theirs, pulled)?;
        report.row(&format!("{name}, ms"), "", [ms(seen), ms(their)], &times(their / seen));
    }

    let seen = median_run(&mut sync(&home, &ours))?.as_secs_f64();
    let their = timed(&mut their_sync(&mailbox, &theirs))?;
    let figures = [ms(seen), ms(their)];
    report.row("sync, nothing new, ms", WANTED, figures, &times(their / seen));

    let mut seen = Vec::new();
    for round in 1..=plan.repeats {
        population.add(plan.fresh)?;
        seen.push(timed(&mut sync(&home, &ours))?);
        expect_inbox(&ours, mails + round * plan.fresh)?;
    }
    let seen = median(seen).unwrap_or_default();
    // The predecessor reads everything again, however much of it is new.
    let their = timed(&mut their_sync(&mailbox, &theirs))?;
    let name = format!("sync, {} new, ms", thousands(plan.fresh as f64));
    report.row(&name, "", [ms(seen), ms(their)], &times(their / seen));

    expect_newest(&mut list(&home, &ours))?;
    let their = timed(&mut their_list(&mailbox, &theirs))?;
    let seen = median_run(&mut list(&home, &ours))?.as_secs_f64();
    let figures = [ms(seen), ms(their)];
    report.row("list, newest 50, courier running, ms", WANTED, figures, &times(their / seen));
    let (population, seen) =
        population.without_courier(|home| median_run(&mut list(home, &ours)))?;
    let seen = seen.as_secs_f64();
    let figures = [ms(seen), ms(their)];
    report.row("list, newest 50, courier stopped, ms", WANTED, figures, &times(their / seen));
    Ok(population)
}

/// Filters that all have to be asked: none matches but the last.
fn filters(last: Value) -> Vec<Value> {
    let kinds = (0..FILTERS - 1).map(|n| match n % 6 {
        0 => json!({"type": "mention", "pattern": format!("@monoco::project{n}")}),
        1 => json!({"type": "binding", "value": format!("project{n}")}),
        2 => json!({"type": "from_domain", "domain": format!("project{n}.example.org")}),
        3 => json!({"type": "from", "value": format!("nobody{n}@example.org")}),
        4 => json!({"type": "session", "value": format!("Project {n}")}),
        _ => json!({"type": "all", "conditions": [
            {"type": "provider", "value": "webhook"},
            {"type": "subject_contains", "value": format!("[Project {n}]")},
        ]}),
    });
    kinds.chain([last]).collect()
}

/// A workspace that has pulled nothing yet.
fn workspace(root: &Path, filters: &[Value]) -> Result<()> {
    let _ = fs::remove_dir_all(root);
    let dir = root.join(".monoco/mailbox");
    fs::create_dir_all(&dir)?;
    // JSON is YAML.
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

fn their_sync(mailbox: &Path, root: &Path) -> Command {
    let mut command = predecessor::command("sync");
    command.arg("--mailbox").arg(mailbox).arg("--workspace").arg(root);
    command
}

fn their_list(mailbox: &Path, root: &Path) -> Command {
    let mut command = predecessor::command("list");
    command.arg("--mailbox").arg(mailbox).arg("--workspace").arg(root).args(["--limit", NEWEST]);
    command
}

/// How long a command takes, in seconds.
fn timed(command: &mut Command) -> Result<f64> {
    Ok(timed_run(command)?.as_secs_f64())
}
