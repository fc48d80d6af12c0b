//! `monoco doctor`: checks everything that the courier needs and prints how to fix it.

use serde::Serialize;
use serde_json::json;

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, escape_line, print};
use monoco_courier::config::{ConfigSource, StoreConfig};
use monoco_courier::home::Home;

mod files;
mod health;
mod machine;
mod tunnels;

/// Maximum number of directory entries that one check reads.
const MAX_DIR_ENTRIES: usize = 100_000;

/// How to repair a store that has lost data.
const RESTORE_HINT: &str = "restore a backup, or run `monoco courier rebuild --from-files`, which \
                            restores Mails from intact files; `monoco courier logs` shows the rest";

/// The result of one check.
#[derive(Debug, Serialize)]
struct DoctorCheck {
    check: &'static str,
    state: CheckState,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckState {
    Ok,
    Warn,
    Fail,
}

impl CheckState {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

pub async fn run(context: &CliContext) -> Result<(), CliError> {
    let checks = run_checks(&context.home).await;
    show(context.format, &checks)?;
    let failed = checks.iter().filter(|check| check.state == CheckState::Fail).count();
    match failed {
        0 => Ok(()),
        1 => Err(CliError::new(CliExit::NotPossible, "one check failed")),
        failed => Err(CliError::new(CliExit::NotPossible, format!("{failed} checks failed"))),
    }
}

async fn run_checks(home: &Home) -> Vec<DoctorCheck> {
    let running = home.running();
    let source = running.as_ref().and_then(|running| running.config.clone());
    let source = source.unwrap_or_else(|| ConfigSource::of(home));
    let config = source.load();
    let mut checks = vec![machine::home_dir(home), machine::token(home)];
    checks.extend(machine::config_checks(&source, &config, running.is_some()));
    checks.extend(machine::disk(home.path()));
    checks.push(machine::file_system(home.path()));
    let (mut drift, mut skew, mut dead, mut seen) = (None, None, None, None);
    match &running {
        Some(running) => {
            let (check, health) = health::courier(home, running).await;
            checks.push(check);
            drift = health.as_ref().map(|health| health.clock_drift_ms);
            skew = health.as_ref().and_then(|health| health.clock_problem.clone());
            checks.extend(health.iter().flat_map(health::health_checks));
            if let Some(health) = &health {
                checks.extend(tunnels::running(home, health).await);
            }
            dead = health.as_ref().map(|health| health.dead.total);
            seen = health;
        }
        None => {
            checks.push(health::no_courier(home));
            let mailbox = config.as_ref().map_or_else(|_| home.mailbox(), |it| it.mailbox(home));
            match config.as_ref().map(|config| &config.store) {
                Ok(StoreConfig::Postgres(config)) => {
                    checks.push(health::server(config).await);
                    if let Some(source) = &config.objects {
                        checks.push(health::bucket(source).await);
                    }
                }
                _ => checks.extend(files::store(&home.store(), &mailbox)),
            }
            if let Ok(config) = &config {
                checks.extend(tunnels::configured(config).await);
                checks.push(machine::port("port", config.host, config.port));
                checks.push(machine::port("webhook port", config.host, config.webhook_port));
            }
        }
    }
    checks.extend(config.as_ref().ok().and_then(tunnels::shared_credentials));
    let remote = config.as_ref().ok().and_then(|config| config.remote.as_ref());
    checks.extend(remote.map(|remote| machine::certificate(remote, seen.as_ref())));
    checks.push(machine::clock(&home.store(), drift, skew.as_deref()));
    let mailbox = config.map_or_else(|_| home.mailbox(), |config| config.mailbox(home));
    checks.push(files::leftovers(&mailbox));
    checks.push(dead.map_or_else(|| files::dead_letter_files(&mailbox), health::dead_letters));
    checks
}

impl DoctorCheck {
    fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self { check, state: CheckState::Ok, detail: detail.into(), hint: None }
    }

    fn warn(check: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, state: CheckState::Warn, detail: detail.into(), hint: Some(hint.into()) }
    }

    fn fail(check: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { check, state: CheckState::Fail, detail: detail.into(), hint: Some(hint.into()) }
    }
}

/// Prints all checks. A table can cut a text, so the details and hints of problems follow in full.
fn show(format: OutputFormat, checks: &[DoctorCheck]) -> Result<(), CliError> {
    let columns: &[Column<DoctorCheck>] = &[
        ("check", |it| it.check.cell()),
        ("state", |it| it.state.as_str().cell()),
        ("detail", |it| it.detail.cell()),
        ("hint", |it| it.hint.cell()),
    ];
    let is_table = format == OutputFormat::Table;
    let columns = if is_table { &columns[..3] } else { columns };
    output::list(format, &json!({ "checks": checks }), checks, columns)?;
    for DoctorCheck { check, state, detail, hint } in checks.iter().filter(|_| is_table) {
        if let Some(hint) = hint {
            let state = state.as_str().to_uppercase();
            print(&format!("\n{state}  {check}: {}", escape_line(detail)))?;
            print(&format!("      {}", escape_line(hint)))?;
        }
    }
    Ok(())
}

/// Names the first three entries of a list.
fn first_names(names: &[String]) -> String {
    let first: Vec<_> = names.iter().take(3).map(String::as_str).collect();
    first.join(", ")
}

/// What is damaged in the store.
fn store_problems(damaged: &[String], missing_files: usize, missing: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if !damaged.is_empty() {
        problems.push(format!("{} damaged rows: {}", damaged.len(), first_names(damaged)));
    }
    if missing_files > 0 {
        problems.push(format!("{missing_files} files are missing: {}", first_names(missing)));
    }
    problems
}

/// The check of Mails that the store does not know.
fn lost_mails(count: usize, names: &[String]) -> DoctorCheck {
    let detail = format!("{count} Mails are not in the store: {}", first_names(names));
    DoctorCheck::fail("mailbox", detail, RESTORE_HINT)
}
