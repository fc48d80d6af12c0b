//! `monoco doctor`: checks everything that the courier needs and prints how to fix it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, TcpListener};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use monoco_core::claim::MailLocation;
use monoco_core::mail::{MailId, MailIndexEntry};
use monoco_mailbox::paths::{MAIL_DIRS, MailboxPaths};
use monoco_store::sqlite;
use serde::Serialize;
use serde_json::json;

use super::CliContext;
use super::client::Client;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, OutputFormat, ToCell, escape_line, print};
use crate::api::views::health::{AdapterHealth, HealthView, PipelineHealth, StorageHealth};
use crate::clock::wall_now;
use crate::config::{Config, ConfigError, ConfigSource};
use crate::courier::mailbox_check::mail_of;
use crate::home::{CourierInfo, Home};

/// How long the courier may take to answer a health request.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

/// Largest accepted difference between the clocks of machine and courier, in milliseconds.
const MAX_DRIFT_MS: i64 = 60_000;

/// Age from which a temporary file is a leftover.
const STALE_AGE: Duration = Duration::from_secs(3600);

/// Maximum number of directory entries that one check reads.
const MAX_DIR_ENTRIES: usize = 100_000;

/// How to repair a store that has lost data.
const RESTORE_HINT: &str = "restore a backup, or run `monoco courier rebuild --from-files`, which \
                            restores Mails from intact files; `monoco courier logs` shows the rest";

/// 2026-01-01 in milliseconds: an earlier time means that the clock is not set.
const MIN_CLOCK_MS: i64 = 1_767_225_600_000;

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
    let mut checks = vec![home_dir(home), token(home)];
    checks.extend(config_checks(&source, &config, running.is_some()));
    checks.extend(disk(home.path()));
    checks.push(file_system(home.path()));
    let (mut drift, mut dead) = (None, None);
    match &running {
        Some(running) => {
            let (check, health) = courier(home, running).await;
            checks.push(check);
            drift = health.as_ref().map(|health| health.clock_drift_ms);
            checks.extend(health.iter().flat_map(health_checks));
            dead = health.map(|health| health.dead.total);
        }
        None => {
            checks.push(no_courier(home));
            let mailbox = config.as_ref().map_or_else(|_| home.mailbox(), |it| it.mailbox(home));
            checks.extend(store(&home.store(), &mailbox));
            if let Ok(config) = &config {
                checks.push(port("port", config.host, config.port));
                checks.push(port("webhook port", config.host, config.webhook_port));
            }
        }
    }
    checks.push(clock(&home.store(), drift));
    let mailbox = config.map_or_else(|_| home.mailbox(), |config| config.mailbox(home));
    checks.push(leftovers(&mailbox));
    checks.push(dead.map_or_else(|| dead_letter_files(&mailbox), dead_letters));
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

fn show(format: OutputFormat, checks: &[DoctorCheck]) -> Result<(), CliError> {
    match format {
        OutputFormat::Json | OutputFormat::Compact | OutputFormat::Id => {
            let columns: &[Column<DoctorCheck>] = &[
                ("check", |it| it.check.cell()),
                ("state", |it| it.state.as_str().cell()),
                ("detail", |it| it.detail.cell()),
                ("hint", |it| it.hint.cell()),
            ];
            output::list(format, &json!({ "checks": checks }), checks, columns)
        }
        OutputFormat::Table => {
            for DoctorCheck { check, state, detail, hint } in checks {
                let state = match state {
                    CheckState::Ok => "ok",
                    CheckState::Warn => "warn",
                    CheckState::Fail => "FAIL",
                };
                print(&format!("{state:<4}  {check:<12}  {}", escape_line(detail)))?;
                if let Some(hint) = hint {
                    print(&format!("{:20}{}", "", escape_line(hint)))?;
                }
            }
            Ok(())
        }
    }
}

/// Checks that the home directory exists, belongs to the user and is closed to others.
fn home_dir(home: &Home) -> DoctorCheck {
    let (name, path) = ("home", home.path());
    let Ok(found) = fs::metadata(path) else {
        let detail = format!("{} does not exist", path.display());
        return DoctorCheck::warn(name, detail, "`monoco courier start` creates it");
    };
    if !found.is_dir() {
        let detail = format!("{} is not a directory", path.display());
        return DoctorCheck::fail(name, detail, "move the file, or set MONOCO_HOME to a directory");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        let detail = format!("{} belongs to another user", path.display());
        return DoctorCheck::fail(name, detail, "set MONOCO_HOME to a directory that you own");
    }
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let detail =
            format!("other users can access {} (mode {mode:o}, expected 700)", path.display());
        return DoctorCheck::fail(name, detail, format!("chmod 700 {}", path.display()));
    }
    DoctorCheck::ok(name, path.display().to_string())
}

fn token(home: &Home) -> DoctorCheck {
    let (name, path) = ("token", home.token_path());
    let Ok(found) = fs::metadata(&path) else {
        return DoctorCheck::ok(name, "none yet; the courier creates it at the first start");
    };
    let mode = found.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        let detail = format!("other users can read the token (mode {mode:o}, expected 600)");
        let hint = format!("remove {} and restart the courier", path.display());
        return DoctorCheck::fail(name, detail, hint);
    }
    match home.token() {
        Ok(_) => DoctorCheck::ok(name, path.display().to_string()),
        Err(error) => {
            let hint = format!("remove {} and restart the courier", path.display());
            DoctorCheck::fail(name, error.to_string(), hint)
        }
    }
}

fn config_checks(
    source: &ConfigSource,
    config: &Result<Config, ConfigError>,
    running: bool,
) -> Vec<DoctorCheck> {
    let (name, path) = ("config", source.path.display());
    let mut checks = Vec::new();
    checks.push(match config {
        Ok(_) if !source.path.exists() => {
            DoctorCheck::ok(name, "no config file; using the defaults")
        }
        Ok(config) => {
            let tunnels: Vec<_> = config.running().map(|(id, _)| id.as_str()).collect();
            DoctorCheck::ok(name, format!("{path}: tunnels {}", tunnels.join(", ")))
        }
        Err(error) => {
            let unset = matches!(error, ConfigError::Invalid { error, .. } if error.unset);
            if unset && running {
                let hint = "the variable may be set for the running courier; \
                            a reload or restart fails without it";
                DoctorCheck::warn(name, error.to_string(), hint)
            } else {
                let hint = "fix the config; until then `courier start` and `courier reload` fail";
                DoctorCheck::fail(name, error.to_string(), hint)
            }
        }
    });
    let mode = fs::metadata(&source.path).map_or(0, |found| found.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        let hint = format!("chmod 600 {path} if it contains secrets");
        checks.push(DoctorCheck::warn(
            name,
            format!("other users can read it (mode {mode:o})"),
            hint,
        ));
    }
    checks
}

/// Returns the nearest existing ancestor of `path`.
fn existing(path: &Path) -> &Path {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"))
}

fn disk(home: &Path) -> Vec<DoctorCheck> {
    let Ok(stat) = rustix::fs::statvfs(existing(home)) else {
        return vec![DoctorCheck::warn("disk", "cannot read the free space", "check it with `df`")];
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
    let (detail, hint) =
        (format!("{free} MiB free"), "free disk space: received messages cannot be stored");
    let space = match free {
        0..64 => DoctorCheck::fail("disk", detail, hint),
        64..1024 => DoctorCheck::warn("disk", detail, "free disk space before the disk is full"),
        _ => DoctorCheck::ok("disk", detail),
    };
    // File systems that allocate inodes on demand report zero.
    if stat.f_files == 0 {
        return vec![space];
    }
    let (free, hint) = (stat.f_favail, "remove files: each Mail needs one inode");
    let detail = format!("{free} inodes free");
    let files = match free {
        0..1_000 => DoctorCheck::fail("inodes", detail, hint),
        1_000..50_000 => DoctorCheck::warn("inodes", detail, hint),
        _ => DoctorCheck::ok("inodes", detail),
    };
    vec![space, files]
}

/// Checks the type of the file system: file locks and shared memory are not safe on network
/// file systems.
#[cfg(target_os = "linux")]
fn file_system(home: &Path) -> DoctorCheck {
    let name = "file system";
    let Ok(stat) = rustix::fs::statfs(existing(home)) else {
        return DoctorCheck::warn(
            name,
            "cannot read its type",
            "use a home directory on a local disk",
        );
    };
    // Magic numbers of statfs(2); f_type is signed on some platforms.
    #[expect(clippy::cast_possible_truncation, reason = "the numbers have 32 bits")]
    let remote = match stat.f_type as u32 {
        0x6969 => "NFS",
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "SMB",
        0x0102_1997 => "9p",
        0x0102_1994 => {
            let hint = "all data is lost when the machine is turned off; use a local disk";
            return DoctorCheck::warn(name, "in memory (tmpfs)", hint);
        }
        _ => return DoctorCheck::ok(name, "local"),
    };
    let hint = "file locks and the shared memory of the store are not safe there; use a local disk";
    DoctorCheck::warn(name, remote, hint)
}

#[cfg(not(target_os = "linux"))]
fn file_system(_home: &Path) -> DoctorCheck {
    DoctorCheck::ok("file system", "not checked on this system")
}

fn no_courier(home: &Home) -> DoctorCheck {
    match home.holder() {
        Some(pid) => {
            let detail = format!("process {} is starting or stopping", pid.as_raw_nonzero());
            DoctorCheck::warn(
                "courier",
                detail,
                "try again in a moment, or see `monoco courier logs`",
            )
        }
        None => DoctorCheck::warn("courier", "not running", "`monoco courier start` starts it"),
    }
}

async fn courier(home: &Home, running: &CourierInfo) -> (DoctorCheck, Option<HealthView>) {
    let name = "courier";
    let asked = async { Client::find(home)?.health().await };
    let health = match tokio::time::timeout(HEALTH_TIMEOUT, asked).await {
        Ok(Ok(health)) => health,
        Ok(Err(failure)) => {
            let hint = "see `monoco courier logs`, then `monoco courier restart`";
            return (DoctorCheck::fail(name, failure.message, hint), None);
        }
        Err(_) => {
            let detail =
                format!("the courier did not answer within {} s", HEALTH_TIMEOUT.as_secs());
            let hint = "see `monoco courier logs`; `monoco courier kill` ends it";
            return (DoctorCheck::fail(name, detail, hint), None);
        }
    };
    let status = health.status.as_ref();
    let detail = format!("{status}, process {} on {}", running.pid, running.address());
    let check = match status {
        "ok" if running.version != env!("CARGO_PKG_VERSION") => {
            let detail = format!("{detail}, version {}", running.version);
            DoctorCheck::warn(name, detail, "`monoco courier restart` starts the version you have")
        }
        "ok" => DoctorCheck::ok(name, detail),
        "failed" => {
            DoctorCheck::fail(name, detail, "check the disk, then `monoco courier restart`")
        }
        // A part is degraded; its own check has the details.
        "degraded" if health.storage.status == "ok" => DoctorCheck::ok(name, detail),
        _ => DoctorCheck::fail(name, detail, "see the check of the store"),
    };
    (check, Some(health))
}

/// Evaluates the health report: store, tunnels, mailbox and pipeline.
fn health_checks(health: &HealthView) -> Vec<DoctorCheck> {
    let mut checks = Vec::new();
    let StorageHealth { status, detail, damaged_rows, missing_files, missing } = &health.storage;
    let detail = format!("{status} {}", detail.as_deref().unwrap_or_default());
    let detail = detail.trim().to_owned();
    let problems = store_problems(damaged_rows, *missing_files, missing);
    checks.push(match status.as_ref() {
        "ok" if !problems.is_empty() => {
            DoctorCheck::fail("store", problems.join("; "), RESTORE_HINT)
        }
        "ok" => DoctorCheck::ok("store", detail),
        "full" => DoctorCheck::fail("store", detail, "free disk space; the courier then continues"),
        "failing" => {
            DoctorCheck::fail("store", detail, "check the disk; the courier then continues")
        }
        _ => DoctorCheck::fail("store", detail, "check the disk, then `monoco courier restart`"),
    });
    checks.extend(health.adapters.iter().map(|(id, tunnel)| tunnel_check(id, tunnel)));
    let mailbox = &health.mailbox;
    if let Some(error) = &mailbox.error {
        let hint = "free disk space or make the directory writable; the courier then continues";
        checks.push(DoctorCheck::fail("mailbox", error, hint));
    } else if mailbox.lost_mails > 0 {
        checks.push(lost_mails(mailbox.lost_mails, &mailbox.lost));
    } else if !mailbox.unwritten.is_empty() {
        let detail = format!("cannot write {}", first_names(&mailbox.unwritten));
        checks.push(DoctorCheck::fail("mailbox", detail, RESTORE_HINT));
    } else if mailbox.foreign_files > 0 {
        let (count, names) = (mailbox.foreign_files, first_names(&mailbox.foreign));
        let detail = format!("{count} files were not written by the courier: {names}");
        let hint = "move these files to another directory; the courier ignores them";
        checks.push(DoctorCheck::warn("mailbox", detail, hint));
    } else {
        checks.push(DoctorCheck::ok("mailbox", "contains only files of the courier"));
    }
    checks.push(pipeline(&health.pipeline));
    checks
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

fn tunnel_check(id: &str, tunnel: &AdapterHealth) -> DoctorCheck {
    let status = tunnel.status.as_ref();
    let error = tunnel.last_error.as_deref().unwrap_or_default();
    let detail = format!("{id} is {status} {error}").trim().to_owned();
    match status {
        "hearing" | "quiet" => DoctorCheck::ok("tunnel", format!("{id} is {status}")),
        "down" if error.contains("turned off") => DoctorCheck::ok("tunnel", detail),
        "deaf" => {
            let hint = "received messages are not verified or not readable: check that both \
                        sides use the same secret";
            DoctorCheck::warn("tunnel", detail, hint)
        }
        _ => {
            let hint = "fix its config, then run `monoco courier reload`";
            DoctorCheck::fail("tunnel", detail, hint)
        }
    }
}

/// Evaluates the health of the pipeline.
fn pipeline(health: &PipelineHealth) -> DoctorCheck {
    let name = "pipeline";
    let problems: Vec<_> = health.problems.iter().take(3).map(String::as_str).collect();
    if !problems.is_empty() {
        let hint = "start the worker or change the chain; see `monoco pipeline status`";
        return DoctorCheck::warn(name, problems.join("; "), hint);
    }
    let detail = format!("{} letters in progress", health.under_way);
    DoctorCheck::ok(name, detail)
}

/// Checks the store while no courier is running: its format, its files, and whether it knows
/// the Mails of the index and the directories.
fn store(dir: &Path, mailbox: &Path) -> Vec<DoctorCheck> {
    let (name, path) = ("store", dir.join("monoco.db"));
    let mails = mails_of_files(mailbox);
    let found = match sqlite::check(dir, &mails) {
        Ok(found) => found,
        Err(error) => {
            let detail = format!("{}: {error}", path.display());
            return vec![DoctorCheck::fail(name, detail, RESTORE_HINT)];
        }
    };
    let mut checks = Vec::new();
    let mut problems = found.problems;
    problems.extend(store_problems(&[], found.missing_blobs.len(), &found.missing_blobs));
    checks.push(match (problems.is_empty(), path.exists()) {
        (false, _) => DoctorCheck::fail(name, problems.join("; "), RESTORE_HINT),
        (true, true) => DoctorCheck::ok(name, path.display().to_string()),
        (true, false) => {
            DoctorCheck::ok(name, "none yet; the courier creates it at the first start")
        }
    });
    if !found.unknown_mails.is_empty() {
        let names: Vec<_> = found.unknown_mails.iter().map(ToString::to_string).collect();
        checks.push(lost_mails(names.len(), &names));
    }
    checks
}

/// The Mails that the index and the directories name.
fn mails_of_files(mailbox: &Path) -> BTreeSet<MailId> {
    let paths = MailboxPaths::new(mailbox.to_owned());
    let index = fs::File::open(paths.index()).map(BufReader::new);
    let lines = index.into_iter().flat_map(|index| index.lines().map_while(Result::ok));
    let entries = lines.filter_map(|line| serde_json::from_str::<MailIndexEntry>(&line).ok());
    let mut mails: BTreeSet<_> = entries.map(|entry| entry.id).collect();
    let entries = |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten();
    for dir in MAIL_DIRS.into_iter().filter_map(MailLocation::dir) {
        let files = entries(mailbox.join(dir)).flat_map(|provider| entries(provider.path()));
        mails.extend(files.filter_map(|file| mail_of(file.file_name().to_str()?)));
    }
    mails
}

fn port(name: &'static str, host: IpAddr, port: u16) -> DoctorCheck {
    match TcpListener::bind((host, port)) {
        Ok(_) => DoctorCheck::ok(name, format!("{port} is free")),
        Err(error) => {
            let detail = format!("{port}: {error}");
            let hint = "stop the program that uses the port, or set another port in courier.service of the config";
            DoctorCheck::fail(name, detail, hint)
        }
    }
}

/// Compares the machine's clock with the newest file of the store and with the courier's
/// clock.
fn clock(store: &Path, drift: Option<i64>) -> DoctorCheck {
    let (name, now) = ("clock", wall_now());
    if now.ms() < MIN_CLOCK_MS {
        let detail = format!("the clock shows {}", now.rfc3339());
        return DoctorCheck::fail(
            name,
            detail,
            "set the clock of the machine, then restart the courier",
        );
    }
    if let Some(drift) = drift
        && drift.abs() > MAX_DRIFT_MS
    {
        let detail = format!("changed by {} s since the courier started", drift / 1000);
        let hint = "the courier ignores clock steps; when the clock is right, run \
                    `monoco courier restart`";
        return DoctorCheck::warn(name, detail, hint);
    }
    let ahead = newest(store).map_or(Duration::ZERO, |noted| {
        let now = Duration::from_millis(u64::try_from(now.ms()).unwrap_or(0));
        noted.saturating_sub(now)
    });
    if ahead > Duration::from_secs(60) {
        let detail = format!("the store was written {} s in the future", ahead.as_secs());
        return DoctorCheck::warn(
            name,
            detail,
            "the clock was ahead then or is behind now; set the clock",
        );
    }
    DoctorCheck::ok(name, now.rfc3339())
}

/// Returns the newest modification time of the files in `dir`, since 1970.
fn newest(dir: &Path) -> Option<Duration> {
    let times = fs::read_dir(dir).ok()?.flatten().take(MAX_DIR_ENTRIES).filter_map(|entry| {
        entry.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()
    });
    times.max()
}

/// Checks for temporary files of interrupted writes.
fn leftovers(mailbox: &Path) -> DoctorCheck {
    let dir = mailbox.join(".state/tmp");
    let now = UNIX_EPOCH + Duration::from_millis(u64::try_from(wall_now().ms()).unwrap_or(0));
    let old = |written: SystemTime| now.duration_since(written).is_ok_and(|age| age > STALE_AGE);
    let files = fs::read_dir(&dir).into_iter().flatten().flatten().take(MAX_DIR_ENTRIES);
    let stale =
        files.filter(|entry| entry.metadata().and_then(|found| found.modified()).is_ok_and(old));
    match stale.count() {
        0 => DoctorCheck::ok("leftovers", "none"),
        stale => {
            let detail = format!("{stale} unfinished files in {}", dir.display());
            DoctorCheck::warn("leftovers", detail, "`monoco courier restart` removes them")
        }
    }
}

/// Reports the dead letters that the courier counts.
fn dead_letters(dead: i64) -> DoctorCheck {
    let name = "dead letters";
    match dead {
        0 => DoctorCheck::ok(name, "none"),
        dead => {
            let hint = "`monoco dead list` shows the reasons, `monoco dead retry` retries them";
            DoctorCheck::warn(name, dead.to_string(), hint)
        }
    }
}

/// Counts the files of dead letters while no courier is running.
fn dead_letter_files(mailbox: &Path) -> DoctorCheck {
    let name = "dead letters";
    let entries =
        |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().flatten().take(MAX_DIR_ENTRIES);
    let providers = entries(mailbox.join(".deadletter"));
    let dead = providers
        .flat_map(|provider| entries(provider.path()))
        .filter(|entry| entry.path().extension().is_some_and(|ending| ending == "md"))
        .count();
    match dead {
        0 => DoctorCheck::ok(name, "none"),
        dead => {
            let dir = mailbox.join(".deadletter");
            let hint = "start the courier; `monoco dead list` then shows all with their reasons";
            DoctorCheck::warn(name, format!("{dead} files in {}", dir.display()), hint)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(checks: &[DoctorCheck]) -> Vec<(&str, CheckState)> {
        checks.iter().map(|check| (check.check, check.state)).collect()
    }

    #[test]
    fn health_report_is_evaluated() {
        let health = |text: &str| health_checks(&serde_json::from_str(text).unwrap());
        let healthy = r#"{"status":"ok","version":"0","clock_drift_ms":0,
            "metrics":{"messages_received":0,"messages_sent":0,"messages_pending":0},
            "storage":{"status":"ok"},
            "mailbox":{"waiting_messages":0,"foreign_files":0,"foreign":[],"repaired":0,"unwritten":[]},
            "adapters":{
                "a":{"status":"hearing","mode":"push","provider":"webhook","received":0,"sent":0},
                "b":{"status":"quiet","mode":"push","provider":"webhook","received":0,"sent":0},
                "c":{"status":"down","mode":"push","provider":"webhook","received":0,"sent":0,
                     "last_error":"turned off in the config"}},
            "pipeline":{"status":"ok","problems":[],"under_way":3},
            "dead":{"claims":0,"deliveries":0,"letters":0,"drafts":0,"total":0}}"#;
        assert!(health(healthy).iter().all(|check| check.state == CheckState::Ok));
        let unhealthy = healthy
            .replace(r#""storage":{"status":"ok"}"#, r#""storage":{"status":"full"}"#)
            .replace(r#""foreign_files":0,"foreign":[]"#, r#""foreign_files":2,"foreign":["x.md"]"#)
            .replace("hearing", "deaf")
            .replace("quiet", "down")
            .replace(r#""problems":[]"#, r#""problems":["mine is down: refused"]"#);
        let wanted = [
            ("store", CheckState::Fail),
            ("tunnel", CheckState::Warn),
            ("tunnel", CheckState::Fail),
            ("tunnel", CheckState::Ok),
            ("mailbox", CheckState::Warn),
            ("pipeline", CheckState::Warn),
        ];
        assert_eq!(states(&health(&unhealthy)), wanted);
        let unknown =
            healthy.replace(r#""storage":{"status":"ok"}"#, r#""storage":{"status":"?"}"#);
        assert!(health(&unknown).iter().any(|check| check.state == CheckState::Fail));
    }

    #[test]
    fn clock_step_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(clock(dir.path(), None).state, CheckState::Ok);
        assert_eq!(clock(dir.path(), Some(-59_000)).state, CheckState::Ok);
        assert_eq!(clock(dir.path(), Some(-61_000)).state, CheckState::Warn);
        let file = fs::File::create(dir.path().join("monoco.db")).unwrap();
        assert_eq!(clock(dir.path(), None).state, CheckState::Ok);
        let later = u64::try_from(wall_now().ms()).unwrap() + 3_600_000;
        file.set_modified(UNIX_EPOCH + Duration::from_millis(later)).unwrap();
        assert_eq!(clock(dir.path(), None).state, CheckState::Warn);
    }

    #[test]
    fn leftovers_and_dead_letters_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(leftovers(dir.path()).state, CheckState::Ok);
        assert_eq!(dead_letter_files(dir.path()).state, CheckState::Ok);
        let tmp = dir.path().join(".state/tmp");
        fs::create_dir_all(&tmp).unwrap();
        let file = fs::File::create(tmp.join("x")).unwrap();
        assert_eq!(leftovers(dir.path()).state, CheckState::Ok, "a new file may still be written");
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        assert_eq!(leftovers(dir.path()).state, CheckState::Warn);
        let dead = dir.path().join(".deadletter/ci");
        fs::create_dir_all(&dead).unwrap();
        fs::write(dead.join("a.md"), "").unwrap();
        fs::write(dead.join("a.md.reason.json"), "").unwrap();
        let check = dead_letter_files(dir.path());
        assert_eq!(check.state, CheckState::Warn);
        assert!(check.detail.starts_with("1 files in "), "{}", check.detail);
        assert_eq!(dead_letters(0).state, CheckState::Ok);
        assert_eq!(dead_letters(2).detail, "2");
    }

    #[test]
    fn file_that_is_not_a_database_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let state = || store(dir.path(), &dir.path().join("mailbox"))[0].state;
        assert_eq!(state(), CheckState::Ok);
        for text in ["this is not a database but a text", "short"] {
            fs::write(dir.path().join("monoco.db"), text).unwrap();
            assert_eq!(state(), CheckState::Fail, "{text}");
        }
    }

    #[test]
    fn home_that_other_users_can_access_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        assert_eq!(home_dir(&home).state, CheckState::Warn);
        home.create().unwrap();
        home.replace_token().unwrap();
        assert_eq!((home_dir(&home).state, token(&home).state), (CheckState::Ok, CheckState::Ok));
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(home.token_path(), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(
            (home_dir(&home).state, token(&home).state),
            (CheckState::Fail, CheckState::Fail)
        );
    }
}
