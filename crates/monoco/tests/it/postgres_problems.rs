//! A PostgreSQL server that the courier cannot use, or should not: what the operator reads.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Courier, binary, cli, wait_for};
use crate::postgres_server::{PASSWORD, PostgresServer, ServerOptions, USER};
use crate::webhook_peer::{SECRET, body, configure};

pub const WRONG_PASSWORD: &str = "pg-wrong-secret";

/// A config with these keys in `storage`, and the webhook tunnel `ci`.
fn config(storage: &str) -> String {
    format!(
        "courier:\n  storage: {{ {storage} }}\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    \
         ci: {{ provider: webhook, verify: standard, secret: '{SECRET}' }}\n"
    )
}

/// A home with this config.
pub fn home(storage: &str) -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    configure(&home, &config(storage));
    (dir, home)
}

/// Starts a courier that must not start, and returns why.
#[track_caller]
pub fn refused(storage: &str) -> String {
    let (_dir, home) = home(storage);
    start_refused(&home)
}

/// As [`refused`], for a reason that `monoco doctor` finds without a courier.
#[track_caller]
pub fn refused_and_diagnosed(storage: &str) -> String {
    let (_dir, home) = home(storage);
    let why = start_refused(&home);
    let found = doctor(&home);
    assert_eq!(check(&found, "database")["state"], "fail", "{found:#}");
    assert_no_secret(&found.to_string());
    why
}

#[track_caller]
pub fn start_refused(home: &Path) -> String {
    let mut command = Command::new(binary());
    command.args(["courier", "start", "--foreground", "--port", "0"]);
    let why = Courier::try_spawn(home, &mut command).map(|_| "the courier started").unwrap_err();
    assert_no_secret(&why);
    why
}

#[track_caller]
pub fn assert_no_secret(text: &str) {
    assert!(!text.contains(PASSWORD) && !text.contains(WRONG_PASSWORD), "{text}");
}

/// What `monoco doctor` finds, also when a check fails.
pub fn doctor(home: &Path) -> Value {
    let ran = cli(home, &["doctor", "--format", "json"], "");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"))
}

pub fn check<'a>(doctor: &'a Value, name: &str) -> &'a Value {
    let checks = doctor["checks"].as_array().unwrap();
    checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("{doctor:#}"))
}

#[track_caller]
pub fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn unusable_server_is_explained_with_the_next_step() {
    let server = PostgresServer::start_with_password();
    let url = |user: &str| server.url_of(user);
    let nothing = format!("store: 'postgres://{USER}:{PASSWORD}@127.0.0.1:1/hub'");
    assert_says(
        &refused_and_diagnosed(&nothing),
        &[
            "cannot open the store in PostgreSQL",
            "Connection refused",
            "check that it runs, and the host and port",
        ],
    );
    let wrong = format!("store: '{}'", url(&format!("{USER}:{WRONG_PASSWORD}")));
    assert_says(&refused_and_diagnosed(&wrong), &["28P01", "check the user and the password"]);
    let missing = url(&format!("{USER}:{PASSWORD}"));
    let missing = format!("store: '{}/missing'", missing.rsplit_once('/').unwrap().0);
    assert_says(&refused_and_diagnosed(&missing), &["3D000", "create the database"]);

    server.sql(&format!("CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'"));
    let app = format!("store: '{}'", url(&format!("app:{PASSWORD}")));
    assert_says(&refused(&app), &["42501", "CREATE SCHEMA monoco AUTHORIZATION"]);
    // The step that the error names is enough.
    server.sql("CREATE SCHEMA monoco AUTHORIZATION app");
    let (_dir, home) = home(&app);
    let courier = Courier::start_in(&home);
    courier.hears("evt-1", "room", "ann", "hello");
    courier.mails(1);
}

#[test]
fn server_that_can_lose_messages_is_refused() {
    let server = PostgresServer::start_with(ServerOptions {
        settings: ["fsync=off", "full_page_writes=off"].map(str::to_owned).into(),
        ..ServerOptions::default()
    });
    let why = refused_and_diagnosed(&format!("store: '{}'", server.url()));
    assert_says(&why, &["fsync = off", "full_page_writes = off", "set it to on"]);
}

#[test]
fn password_from_a_file_or_a_command_is_shown_nowhere() {
    let server = PostgresServer::start_with_password();
    let secrets = tempfile::tempdir().unwrap();
    let file = secrets.path().join("url");
    std::fs::write(&file, server.url_of(&format!("{USER}:{PASSWORD}"))).unwrap();
    for storage in [
        format!("store_file: {}", file.display()),
        format!("store_command: [cat, {}], schema: other", file.display()),
    ] {
        let (_dir, home) = home(&storage);
        cli(&home, &["courier", "start", "--port", "0", "--webhook-port", "0"], "").ok();
        let shown = [
            cli(&home, &["courier", "status"], "").ok(),
            cli(&home, &["courier", "status", "--format", "json"], "").ok(),
            cli(&home, &["courier", "logs"], "").ok(),
            doctor(&home).to_string(),
        ];
        cli(&home, &["courier", "stop"], "").ok();
        let version = server.sql("SHOW server_version_num");
        let major: u32 = version.parse::<u32>().unwrap() / 10_000;
        assert_says(&shown[0], &["durability", "local", &format!("PostgreSQL {major}."), "leader"]);
        for text in shown {
            assert_no_secret(&text);
        }
    }
}

#[test]
fn backup_refers_to_the_backups_of_postgresql() {
    let (dir, home) = home("store: 'postgres://ann@127.0.0.1:1/hub'");
    let backup = dir.path().join("backup");
    let said = cli(&home, &["backup", backup.to_str().unwrap()], "").failed(1);
    assert_says(&said, &["the store is in PostgreSQL", "pg_dump"]);
}

#[test]
fn standby_is_needed_for_replicated_durability_and_is_no_store_itself() {
    let server = PostgresServer::start();
    let replicated = |url: &str| format!("store: '{url}', durability: replicated");
    assert_says(
        &refused_and_diagnosed(&replicated(&server.url())),
        &["no synchronous standby is connected", "synchronous_standby_names"],
    );
    let mut standby = server.standby("second");
    assert_says(
        &refused_and_diagnosed(&format!("store: '{}'", standby.url())),
        &["is a standby", "target_session_attrs=read-write"],
    );
    server.sql("CREATE ROLE app LOGIN");
    server.sql("CREATE SCHEMA monoco AUTHORIZATION app");
    server.set_synchronous("second");
    let app = replicated(&server.url_of("app"));
    assert_says(&refused_and_diagnosed(&app), &["GRANT pg_monitor"]);
    server.sql("GRANT pg_monitor TO app");

    let (_dir, home) = home(&app);
    let courier = Courier::start_in(&home);
    courier.hears("evt-1", "room", "ann", "on two disks");
    courier.mails(1);
    let health = courier.get("/health").ok();
    let cluster = &health["cluster"];
    assert_eq!(
        (&health["status"], &cluster["durability"]),
        (&Value::from("ok"), &Value::from("replicated"))
    );
    let followed = &cluster["database"]["standbys"][0];
    assert_eq!(
        (&followed["name"], &followed["state"]),
        (&Value::from("second"), &Value::from("sync"))
    );
    assert_eq!(check(&doctor(&home), "database")["state"], "ok");

    // Commits wait for the standby that is gone, and the courier says so.
    standby.stop();
    let found = wait_for(|| {
        let found = doctor(&home);
        let detail = check(&found, "database")["detail"].as_str().unwrap_or_default().to_owned();
        let is_found = detail.contains("no synchronous standby");
        if is_found { Ok(found) } else { Err(format!("{found:#}")) }
    });
    assert_eq!(check(&found, "database")["state"], "fail");
    assert_eq!(courier.get("/health").ok()["status"], "degraded");
    // The standby comes back, and what waited is acknowledged.
    standby.run();
    assert_eq!(courier.push(&body("evt-2", "room", "ann", "again")).ok()["ok"], true);
    courier.mails(2);
}

#[test]
fn server_that_hangs_does_not_keep_the_courier_from_the_others() {
    let server = PostgresServer::start();
    // The kernel accepts connections for it, as for a server that is stopped.
    let hanging = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let hanging_host = format!("@{},", hanging.local_addr().unwrap());
    let url = server.url().replacen('@', &hanging_host, 1);
    let (_dir, home) = home(&format!("store: '{url}'"));
    let courier = Courier::start_in(&home);
    courier.hears("evt-1", "room", "ann", "hello");
    courier.mails(1);
}
