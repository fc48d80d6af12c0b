//! Checks of a running courier, by its health report.

use std::time::Duration;

use super::{DoctorCheck, RESTORE_HINT, first_names, lost_mails, store_problems};
use crate::cli::client::Client;
use monoco_core::config::SecretSource;
use monoco_courier::api::views::cluster::{ClusterHealth, DatabaseHealth};
use monoco_courier::api::views::health::{
    AdapterHealth, HealthView, PipelineHealth, StorageHealth,
};
use monoco_courier::config::PostgresConfig;
use monoco_courier::home::{CourierInfo, Home};
use monoco_courier::open_store::{check_bucket, check_server};

const OBJECTS_HINT: &str = "messages with attachments or large texts are not accepted until the \
    bucket answers; docs/scale.md describes `objects`";

/// How long the courier may take to answer a health request.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn no_courier(home: &Home) -> DoctorCheck {
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

pub(super) async fn courier(
    home: &Home,
    running: &CourierInfo,
) -> (DoctorCheck, Option<HealthView>) {
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
pub(super) fn health_checks(health: &HealthView) -> Vec<DoctorCheck> {
    let mut checks = Vec::new();
    let StorageHealth { status, detail, damaged_rows, missing_files, missing, objects } =
        &health.storage;
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
    checks.extend(objects.as_ref().map(|found| match &found.error {
        None => DoctorCheck::ok("objects", &found.place),
        Some(error) => DoctorCheck::fail("objects", error, OBJECTS_HINT),
    }));
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
    if let Some(found) = &health.cluster {
        checks.push(database(&found.database, &found.durability));
        checks.push(cluster(found));
    }
    checks
}

/// Writes and reads an object in the bucket of a shared store, while no courier is running.
pub(super) async fn bucket(source: &SecretSource) -> DoctorCheck {
    match check_bucket(source).await {
        Ok(place) => DoctorCheck::ok("objects", place),
        Err(error) => DoctorCheck::fail("objects", error.to_string(), OBJECTS_HINT),
    }
}

/// Asks the database server of a shared store, while no courier is running.
pub(super) async fn server(config: &PostgresConfig) -> DoctorCheck {
    match check_server(config).await {
        Ok(facts) => {
            let found = DatabaseHealth::new(facts, config.durability);
            database(&found, config.durability.as_str())
        }
        Err(error) => {
            let hint = "the courier does not start without the database server";
            DoctorCheck::fail("database", error.to_string(), hint)
        }
    }
}

/// Evaluates the database server of a shared store.
pub(super) fn database(database: &DatabaseHealth, durability: &str) -> DoctorCheck {
    if database.problems.is_empty() {
        let detail = format!("{}, durability {durability}", database.summary());
        return DoctorCheck::ok("database", detail);
    }
    let hint = "docs/scale.md describes the settings of the server";
    DoctorCheck::fail("database", database.problems.join("; "), hint)
}

/// Evaluates the couriers of a shared store.
fn cluster(cluster: &ClusterHealth) -> DoctorCheck {
    let live = cluster.couriers.iter().filter(|courier| courier.live).count();
    let (vacant, all) = (cluster.vacant(), cluster.couriers.len());
    if vacant.is_empty() {
        return DoctorCheck::ok("cluster", format!("{live} of {all} couriers live"));
    }
    let detail = format!("no courier holds {}", vacant.join(", "));
    DoctorCheck::warn("cluster", detail, "run it again in 30 s; duties move within 25 s")
}

/// Evaluates the health of one tunnel.
pub(super) fn tunnel_check(id: &str, tunnel: &AdapterHealth) -> DoctorCheck {
    let status = tunnel.status.as_ref();
    let error = tunnel.last_error.as_deref().unwrap_or_default();
    let detail = format!("{id} is {status} {error}").trim().to_owned();
    match status {
        "hearing" | "quiet" | "standby" => DoctorCheck::ok("tunnel", format!("{id} is {status}")),
        "paused" => {
            let hint = format!("`monoco tunnel resume {id}` resumes it");
            DoctorCheck::warn("tunnel", format!("{id} is paused"), hint)
        }
        "down" if error.contains("turned off") => DoctorCheck::ok("tunnel", detail),
        "deaf" => {
            let hint = "authentic requests cannot be read or stored: see `monoco courier logs`";
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

/// Reports the dead letters that the courier counts.
pub(super) fn dead_letters(dead: i64) -> DoctorCheck {
    let name = "dead letters";
    match dead {
        0 => DoctorCheck::ok(name, "none"),
        dead => {
            let hint = "`monoco dead list` shows the reasons, `monoco dead retry` retries them";
            DoctorCheck::warn(name, dead.to_string(), hint)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckState;
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
            "dead":{"claims":0,"deliveries":0,"letters":0,"drafts":0,"tasks":0,"total":0}}"#;
        assert!(health(healthy).iter().all(|check| check.state == CheckState::Ok));
        let unhealthy = healthy
            .replace(r#""storage":{"status":"ok"}"#, r#""storage":{"status":"full"}"#)
            .replace(r#""foreign_files":0,"foreign":[]"#, r#""foreign_files":2,"foreign":["x.md"]"#)
            .replace(r#""problems":[]"#, r#""problems":["mine is down: refused"]"#);
        let wanted = [
            ("store", CheckState::Fail),
            ("mailbox", CheckState::Warn),
            ("pipeline", CheckState::Warn),
        ];
        assert_eq!(states(&health(&unhealthy)), wanted);
        let unknown =
            healthy.replace(r#""storage":{"status":"ok"}"#, r#""storage":{"status":"?"}"#);
        assert!(health(&unknown).iter().any(|check| check.state == CheckState::Fail));
        let parsed: HealthView = serde_json::from_str(healthy).unwrap();
        let tunnel = |id: &str, status: &'static str| {
            let mut health = parsed.adapters[id].clone();
            health.status = status.into();
            tunnel_check(id, &health).state
        };
        assert_eq!(tunnel("a", "hearing"), CheckState::Ok);
        assert_eq!(tunnel("a", "deaf"), CheckState::Warn);
        assert_eq!(tunnel("a", "paused"), CheckState::Warn);
        assert_eq!(tunnel("b", "down"), CheckState::Fail);
        assert_eq!(tunnel("c", "down"), CheckState::Ok, "turned off in the config");
        assert_eq!(dead_letters(0).state, CheckState::Ok);
        assert_eq!(dead_letters(2).detail, "2");
    }
}
