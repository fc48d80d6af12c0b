//! The daemon's life: started in the background, stopped, killed, restarted, reloaded,
//! and what it says of itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Courier, PATIENCE, Ran, binary, cli, raw, until};

/// A secret of Standard Webhooks.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A home, and whatever courier runs in its background. None is left behind.
pub struct Daemon {
    _dir: TempDir,
    pub home: PathBuf,
}

impl Daemon {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        Self { _dir: dir, home }
    }

    fn started() -> Self {
        let daemon = Self::new();
        daemon.run(&["courier", "start", "--port", "0"]).ok();
        daemon
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        cli(&self.home, args, "")
    }

    pub fn configure(&self, text: &str) {
        std::fs::create_dir_all(self.home.join("courier")).unwrap();
        std::fs::write(self.home.join("courier/config.yaml"), text).unwrap();
    }

    fn note(&self) -> Value {
        let text = std::fs::read_to_string(self.home.join("run/courier.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.note()["pid"].as_i64().unwrap()).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.join("log/courier.log")).unwrap()
    }

    /// Waits until a process is gone, or is a zombie.
    fn gone(pid: i32) {
        let gone = || state(pid).is_none_or(|state| state == 'Z');
        until(&format!("process {pid} is gone"), gone);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.run(&["courier", "kill"]);
    }
}

/// The state of a process, as the kernel spells it.
fn state(pid: i32) -> Option<char> {
    state_in(Path::new(&format!("/proc/{pid}")))
}

/// The state of the process or thread with this directory.
fn state_in(dir: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(dir.join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// The states of all threads of a process.
fn threads(pid: i32) -> Vec<char> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.filter_map(|thread| state_in(&thread.unwrap().path())).collect()
}

#[test]
fn start_returns_when_it_answers_and_stop_when_it_is_gone() {
    let daemon = Daemon::new();
    let started = Instant::now();
    let ran = daemon.run(&["courier", "start", "--port", "0"]);
    assert!(ran.stderr.contains("listens on http://127.0.0.1:"), "{}", ran.stderr);
    assert!(ran.stderr.contains("webhooks on http://127.0.0.1:"), "{}", ran.stderr);
    ran.ok();
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    // It answers at once, and reports its process id and version.
    let status: Value =
        serde_json::from_str(&daemon.run(&["courier", "status", "--json"]).ok()).unwrap();
    assert_eq!(status["status"], "ok");
    let pid = daemon.pid();
    assert_eq!(status["pid"], pid);
    let written = std::fs::read_to_string(daemon.home.join("run/courier.pid")).unwrap();
    assert_eq!(written.trim(), pid.to_string());
    // It has a session of its own: no terminal ends it.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string());
    assert!(daemon.log().contains(" INFO monoco::"), "{}", daemon.log());
    for path in ["log", "run", "courier", "log/courier.log"] {
        let mode = std::fs::metadata(daemon.home.join(path)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{path} is open to others");
    }
    let ran = daemon.run(&["courier", "stop"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "courier stopped\n"));
    Daemon::gone(pid);
    assert!(!daemon.home.join("run/courier.json").exists());
    assert!(!daemon.home.join("run/courier.pid").exists());
    assert!(daemon.home.join("run/courier.lock").exists(), "the lock is never removed");
    daemon.run(&["courier", "stop"]).failed(3);
}

#[test]
fn what_is_in_the_way_has_its_exit_code_in_the_background_too() {
    let daemon = Daemon::started();
    for place in [&["courier", "start"][..], &["courier", "start", "--foreground"]] {
        let said = daemon.run(place).failed(2);
        assert!(said.contains("already running") && said.contains("hint:"), "{said}");
    }
    // The port of the API, then the one of the webhooks.
    let note = daemon.note();
    for (flag, port) in [("--port", &note["port"]), ("--webhook-port", &note["webhook_port"])] {
        let port = &port.to_string();
        let other = Daemon::new();
        let args = ["courier", "start", "--port", "0", flag, port];
        let args = if flag == "--port" { [&args[..2], &args[4..]].concat() } else { args.to_vec() };
        let said = other.run(&args).failed(4);
        assert!(said.contains(port) && said.contains("in use"), "{said}");
        assert!(said.contains("hint:"), "{said}");
        assert!(!other.home.join("run/courier.json").exists());
    }
    // A config that makes no sense, and one that was named and is not there.
    let other = Daemon::new();
    other.configure("courier: {servise: {}}");
    let said = other.run(&["courier", "start"]).failed(1);
    assert!(said.contains("unknown key `servise`; did you mean `service`?"), "{said}");
    let said = other.run(&["courier", "start", "--config", "/nowhere.yaml"]).failed(1);
    assert!(said.contains("/nowhere.yaml: No such file"), "{said}");
    other.configure("courier: {adapters: {ci: {provider: webhook}}}");
    let said = other.run(&["courier", "start"]).failed(1);
    assert!(said.contains("a tunnel without a secret does not start"), "{said}");
}

/// Root may do everything, unless it lays that down first.
fn without_privilege(home: &Path, args: &[&str]) -> std::process::Output {
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command.arg("--bounding-set=-dac_override,-dac_read_search,-fowner").arg(binary());
        command
    } else {
        Command::new(binary())
    };
    command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("MONOCO_HOME", home).stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("this test needs setpriv: {error}"))
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

#[test]
fn a_directory_that_is_not_ours_is_permission_denied() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
    for args in [&["courier", "start", "--port", "0"][..], &["courier", "start", "--foreground"]] {
        let ran = without_privilege(&closed.join("home"), args);
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert_eq!(ran.status.code(), Some(3), "{said}");
        assert!(said.contains("Permission denied") && said.contains("hint:"), "{said}");
    }
    // A config that we may not read.
    let daemon = Daemon::new();
    daemon.configure("courier: {}");
    let config = daemon.home.join("courier/config.yaml");
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o000)).unwrap();
    let ran = without_privilege(&daemon.home, &["courier", "start", "--port", "0"]);
    assert_eq!(ran.status.code(), Some(3), "{}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn many_starts_at_once_make_one_courier() {
    let daemon = Daemon::new();
    let start = |_| {
        let mut command = Command::new(binary());
        command.args(["courier", "start", "--port", "0"]).env_clear();
        command.env("MONOCO_HOME", &daemon.home).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let starts: Vec<Child> = (0..6).map(start).collect();
    let ended = starts.into_iter().map(|mut start| start.wait().unwrap().code().unwrap());
    let mut codes: Vec<i32> = ended.collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 2, 2, 2, 2, 2]);
    daemon.run(&["courier", "status"]).ok();
}

#[test]
fn a_killed_courier_leaves_nothing_in_the_way() {
    let daemon = Daemon::started();
    let pid = daemon.pid();
    let ran = daemon.run(&["courier", "kill"]);
    assert!(ran.stderr.contains(&format!("killed process {pid}")), "{}", ran.stderr);
    ran.ok();
    Daemon::gone(pid);
    daemon.run(&["courier", "kill"]).failed(3);
    // Files of a dead courier name a process id that now belongs to another program.
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let other = bystander.id();
    let note = json!({
        "state": "running", "pid": other, "host": "127.0.0.1", "port": 1, "webhook_port": 2,
        "version": "0", "started_at": "2026-02-06T20:45:00Z",
    });
    std::fs::write(daemon.home.join("run/courier.json"), note.to_string()).unwrap();
    std::fs::write(daemon.home.join("run/courier.pid"), format!("{other}\n")).unwrap();
    for command in ["stop", "kill", "status", "reload"] {
        daemon.run(&["courier", command]).failed(3);
    }
    assert!(bystander.try_wait().unwrap().is_none(), "a bystander was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    daemon.run(&["courier", "start", "--port", "0"]).ok();
    assert_ne!(daemon.pid(), i32::try_from(other).unwrap());
}

#[test]
fn a_courier_that_does_not_stop_is_reported_and_can_be_killed() {
    let daemon = Daemon::started();
    let pid = daemon.pid();
    let stopped = Command::new("kill").args(["-STOP", &pid.to_string()]).status().unwrap();
    assert!(stopped.success());
    until("every thread has stopped", || threads(pid).iter().all(|state| *state == 'T'));
    let said = daemon.run(&["courier", "status"]).failed(4);
    assert!(said.contains("did not answer within 10 s"), "{said}");
    let said = daemon.run(&["courier", "stop", "--timeout", "1"]).failed(4);
    assert!(said.contains(&format!("process {pid} did not stop within 1 s")), "{said}");
    assert!(said.contains("monoco courier kill"), "{said}");
    daemon.run(&["courier", "kill"]).ok();
    Daemon::gone(pid);
}

#[test]
fn commands_without_an_object_answer_in_json_too() {
    let daemon = Daemon::new();
    let json = |args: &[&str]| -> Value {
        let answer = daemon.run(&[args, &["--json"]].concat()).ok();
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{args:?}: {error}: {answer}"))
    };
    let started = json(&["courier", "start", "--port", "0"]);
    assert_eq!(started["pid"], daemon.pid());
    assert!(started["address"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{started}");
    assert_eq!(json(&["courier", "reload"])["changes"], json!([]));
    let before = json(&["token", "show"])["token"].clone();
    assert_eq!(json(&["token", "rotate"])["rotated"], true);
    assert_ne!(json(&["courier", "token"])["token"], before);
    assert_eq!(json(&["courier", "logs", "clean"])["removed"], 1);
    assert_eq!(json(&["courier", "stop"])["stopped"], true);
    let started = json(&["courier", "restart"]);
    assert_eq!(json(&["courier", "kill"])["killed"], started["pid"]);
    let pages = daemon.home.join("man");
    assert_eq!(json(&["man", pages.to_str().unwrap()])["dir"], pages.to_str().unwrap());
}

#[test]
fn restart_starts_it_again_as_it_was() {
    let daemon = Daemon::new();
    // None runs: then it is started.
    daemon.configure("courier: {service: {port: 0, webhook_port: 0}}");
    let ran = daemon.run(&["courier", "restart"]);
    assert!(ran.stderr.contains("no courier was running"), "{}", ran.stderr);
    ran.ok();
    let first = daemon.pid();
    // With a config and ports of its own, which a second restart keeps.
    let elsewhere = daemon.home.join("elsewhere.yaml");
    std::fs::write(&elsewhere, "courier: {owner: 'did:web:ann'}").unwrap();
    let config = elsewhere.to_str().unwrap();
    daemon.run(&["courier", "restart", "--config", config, "--port", "0"]).ok();
    let second = daemon.pid();
    assert_ne!(first, second);
    daemon.run(&["courier", "restart"]).ok();
    let note = daemon.note();
    assert_ne!(second, daemon.pid());
    assert_eq!(note["config"]["path"], config);
    assert!(daemon.run(&["contact", "list"]).ok().contains("did:web:ann"));
}

#[test]
fn a_reload_says_what_changed_and_a_wrong_config_changes_nothing() {
    let daemon = Daemon::started();
    let pid = daemon.pid();
    let said = daemon.run(&["courier", "reload"]);
    assert!(said.stderr.contains("nothing changed"), "{}", said.stderr);
    said.ok();
    daemon.configure(&format!(
        "courier:\n  service: {{ log_level: debug, port: 1 }}\n  adapters:\n    \
         ci: {{ provider: webhook, secret: {SECRET} }}\n"
    ));
    let said = daemon.run(&["courier", "reload"]);
    for change in ["log_level: INFO becomes DEBUG", "tunnel ci: added"] {
        assert!(said.stderr.contains(change), "{}", said.stderr);
    }
    said.ok();
    let status = daemon.run(&["courier", "status"]).ok();
    assert!(status.contains("ci      webhook   quiet"), "{status}");
    daemon.configure("courier: {adapters: {ci: {provider: webhook, secrt: hunter2}}}");
    let said = daemon.run(&["courier", "reload"]).failed(1);
    assert!(said.contains("unknown key `secrt`; did you mean `secret`?"), "{said}");
    let status = daemon.run(&["courier", "status"]).ok();
    assert!(status.contains("ci      webhook   quiet"), "{status}");
    assert_eq!(daemon.pid(), pid, "it is the same process");
    // One in the foreground has no log, and answers all the same.
    let ran = Courier::start().cli(&["courier", "reload"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "config reloaded, nothing changed\n"));
    let log = daemon.log();
    assert!(!log.contains(SECRET) && !log.contains("hunter2"), "{log}");
}

#[test]
fn status_shows_tunnels_once_and_for_a_while() {
    let daemon = Daemon::new();
    daemon.configure(&format!(
        "courier: {{adapters: {{ci: {{provider: webhook, secret: {SECRET}}}, \
         off: {{provider: webhook, enabled: false}}}}}}"
    ));
    daemon.run(&["courier", "start", "--port", "0"]).ok();
    let table = daemon.run(&["courier", "status"]).ok();
    for word in
        ["TUNNEL", "ci      webhook   quiet", "off     webhook   down", "stub    stub      quiet"]
    {
        assert!(table.contains(word), "{word}\n{table}");
    }
    let mut command = Command::new(binary());
    command.args(["courier", "status", "--watch"]).env_clear().env("MONOCO_HOME", &daemon.home);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.next().unwrap();
    assert!(line.contains(" ok received=0 ") && line.contains("ci=quiet"), "{line}");
    // The courier goes on while no client is connected, and serves the next one.
    daemon.run(&["courier", "stop"]).ok();
    assert!(lines.by_ref().take(30).any(|line| line.contains("no courier is running")));
    daemon.run(&["courier", "start", "--port", "0"]).ok();
    assert!(lines.by_ref().take(30).any(|line| line.contains(" ok received=")));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

#[test]
fn logs_are_filtered_followed_and_cleaned() {
    let daemon = Daemon::started();
    daemon.configure("courier: {servise: {}}");
    daemon.run(&["courier", "reload"]).failed(1);
    daemon.configure("courier: {}");
    let all = daemon.run(&["courier", "logs"]).ok();
    assert!(all.contains("courier is listening") && all.contains("config not reloaded"), "{all}");
    let errors = daemon.run(&["courier", "logs", "--level", "error"]).ok();
    assert!(errors.contains("servise") && !errors.contains("listens"), "{errors}");
    assert_eq!(daemon.run(&["courier", "logs", "--lines", "1"]).ok().lines().count(), 1);
    assert_eq!(daemon.run(&["courier", "logs", "--since", "1h"]).ok(), all);
    assert_eq!(daemon.run(&["courier", "logs", "--since", "2100-01-01"]).ok(), "");
    assert_eq!(daemon.run(&["courier", "logs", "--adapter", "stub"]).ok(), "");
    daemon.run(&["courier", "logs", "--since", "later"]).failed(64);
    let json = daemon.run(&["courier", "logs", "--lines", "1", "--format", "json"]).ok();
    let entry: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(entry["level"], "error");

    let mut command = Command::new(binary());
    command.args(["courier", "logs", "--follow", "--lines", "1"]).env_clear();
    command.env("MONOCO_HOME", &daemon.home);
    let mut follow = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().contains("servise"));
    daemon.run(&["courier", "reload"]).ok();
    assert!(lines.next().unwrap().contains("nothing changed"));
    let ran = daemon.run(&["courier", "logs", "clean"]);
    assert!(ran.stderr.contains("1 log files deleted or emptied"), "{}", ran.stderr);
    ran.ok();
    assert_eq!(daemon.log(), "");
    daemon.run(&["courier", "reload"]).ok();
    assert!(lines.next().unwrap().contains("nothing changed"));
    follow.kill().unwrap();
    follow.wait().unwrap();
    assert!(Daemon::new().run(&["courier", "logs"]).failed(1).contains("there is no log yet"));
}

#[test]
fn a_log_that_is_full_is_rotated_while_it_runs() {
    let daemon = Daemon::started();
    let log = daemon.home.join("log/courier.log");
    // Full but for a line; it is sparse, so nothing is really written.
    let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
    file.set_len((10 << 20) - 1).unwrap();
    drop(file);
    daemon.run(&["courier", "restart"]).ok();
    let old = daemon.home.join("log/courier.log.1");
    assert!(std::fs::metadata(&old).unwrap().len() >= (10 << 20) - 1);
    assert!(daemon.log().contains("courier is listening"), "{}", daemon.log());
}

#[test]
fn install_writes_a_unit_that_systemd_takes() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("my home");
    let run = |args: &[&str]| {
        let mut command = Command::new(binary());
        command.args(args).env_clear().env("MONOCO_HOME", &home);
        command.env("HOME", dir.path()).env("XDG_CONFIG_HOME", dir.path().join("cfg"));
        command.output().unwrap()
    };
    let unit = String::from_utf8(run(&["courier", "install", "--print"]).stdout).unwrap();
    assert!(unit.contains("courier start --foreground"), "{unit}");
    assert!(unit.contains(&format!("--home \"{}\"", home.display())), "{unit}");
    let path = dir.path().join("cfg/systemd/user/monoco.service");
    assert!(!path.exists(), "--print wrote something");
    let ran = run(&["courier", "install"]);
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && said.contains("systemctl --user enable --now"), "{said}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), unit);
    // The judge, where there is one.
    if let Ok(ran) = Command::new("systemd-analyze").args(["--user", "verify"]).arg(&path).output()
    {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        let about_us: Vec<_> = said.lines().filter(|line| line.contains("monoco")).collect();
        assert!(about_us.is_empty(), "{said}");
    }
    // Another one is not written over, unless that is said.
    std::fs::write(&path, "mine").unwrap();
    assert_eq!(run(&["courier", "install"]).status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    assert!(run(&["courier", "install", "--force"]).status.success());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), unit);
}

/// The demo, in a directory of its own, at this speed.
fn demo(dir: &Path, speed: &str) -> Command {
    let mut command = Command::new(binary());
    command.args(["demo", "--speed", speed]).env_clear().env("TMPDIR", dir);
    command.env("HOME", dir).stdin(Stdio::null());
    command
}

#[test]
fn the_demo_plays_to_its_end_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let ran = demo(dir.path(), "20").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    for word in [
        "alpha $ monoco mailbox sync\npulled 1, skipped 1",
        "beta $ monoco mailbox sync\npulled 2, skipped 0",
        "STATUS",
        "claimed by robot-1",
        "(exit code 2)",
        "received answer with a valid signature",
        "COMPLETED",
        "no permission to hold deploys",
        "demo    webhook   hearing  7         1",
        "$ monoco courier stop\ncourier stopped",
        "monoco courier start",
    ] {
        assert!(said.contains(word), "{word}\n{said}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_demo_that_is_interrupted_leaves_no_courier() {
    let dir = tempfile::tempdir().unwrap();
    let mut demo =
        demo(dir.path(), "1").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line.starts_with("Ann in Ops")), "it did not get that far");
    let home = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path().join("home");
    let pid = std::fs::read_to_string(home.join("run/courier.pid")).unwrap();
    let told = Command::new("kill").args(["-INT", &demo.id().to_string()]).status().unwrap();
    assert!(told.success());
    assert_eq!(demo.wait().unwrap().code(), Some(130));
    Daemon::gone(pid.trim().parse().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn files_are_written_again_with_and_without_a_courier() {
    let daemon = Daemon::started();
    let figures = |ran: Ran| -> Value { serde_json::from_str(&ran.ok()).unwrap() };
    let rebuild = ["courier", "rebuild", "--format", "json"];
    assert_eq!(figures(daemon.run(&rebuild))["written"], 0);
    let index = daemon.home.join("mailbox/.state/mails.jsonl");
    assert!(index.exists());
    daemon.run(&["courier", "stop"]).ok();
    std::fs::remove_dir_all(daemon.home.join("mailbox")).unwrap();
    assert_eq!(figures(daemon.run(&rebuild))["written"], 0);
    assert!(index.exists(), "the index was not made again");
    // It has taken its lock back.
    daemon.run(&["courier", "start", "--port", "0"]).ok();
    let said = Daemon::new().run(&rebuild).failed(1);
    assert!(said.contains("there is no store"), "{said}");
}

#[test]
fn rotated_token_is_the_only_one_that_is_accepted() {
    let courier = Courier::start();
    let old = courier.token.clone();
    let status = |token: &str| {
        let headers = [
            ("Host".to_owned(), format!("localhost:{}", courier.address.port())),
            ("Authorization".to_owned(), format!("Bearer {token}")),
        ];
        raw(courier.address, "GET", "/api/v1/boxes", &headers, b"").unwrap().status
    };
    assert_eq!(status(&old), 200);
    // A stream that was opened with the old token ends with it.
    let mut stream = std::net::TcpStream::connect(courier.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(
        stream,
        "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {old}\r\n\
         Accept: text/event-stream\r\nConnection: close\r\n\r\n",
        courier.address
    )
    .unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    assert_eq!(line.trim_end(), "HTTP/1.1 200 OK");
    let ran = courier.cli(&["token", "rotate"]);
    assert!(!ran.stderr.contains(&old), "{}", ran.stderr);
    ran.ok();
    stream.read_to_string(&mut line).unwrap();
    let new = courier.cli(&["token", "show"]).ok();
    let new = new.trim();
    assert_eq!(courier.cli(&["courier", "token"]).ok().trim(), new);
    assert_eq!((new.len(), status(&old), status(new)), (64, 401, 200));
    let mode = std::fs::metadata(courier.home().join("run/courier.token")).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    // The command line is not affected: it sends no token.
    courier.cli(&["center", "boxes"]).ok();
    // A token cannot replace itself.
    let headers = [
        ("Host".to_owned(), format!("localhost:{}", courier.address.port())),
        ("Authorization".to_owned(), format!("Bearer {new}")),
    ];
    let answer = raw(courier.address, "POST", "/api/v1/token/rotate", &headers, b"").unwrap();
    assert_eq!(answer.status, 404);
}

#[test]
fn token_is_rotated_while_no_courier_runs() {
    let daemon = Daemon::started();
    let old = daemon.run(&["token", "show"]).ok();
    daemon.run(&["courier", "stop"]).ok();
    daemon.run(&["token", "rotate"]).ok();
    let new = daemon.run(&["token", "show"]).ok();
    assert_ne!(old, new);
    daemon.run(&["courier", "start", "--port", "0"]).ok();
    assert_eq!(daemon.run(&["token", "show"]).ok(), new);
}

#[test]
fn home_with_a_long_path_has_a_socket() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("long-".repeat(30)).join("home");
    let courier = Courier::start_in(&home);
    courier.cli(&["center", "boxes"]).ok();
}

#[test]
fn health_without_a_token_shows_only_the_status() {
    let courier = Courier::start();
    let host = [("Host".to_owned(), courier.address.to_string())];
    let answer = raw(courier.address, "GET", "/health", &host, b"").unwrap();
    assert_eq!(answer.ok(), json!({"status": "ok"}));
    let all = courier.get("/health").ok();
    assert!(all["version"].is_string() && all["storage"].is_object(), "{all:#}");
}

#[test]
fn rejected_webhooks_are_logged_once_per_second() {
    let daemon = Daemon::new();
    daemon.configure(&format!(
        "courier: {{adapters: {{ci: {{provider: webhook, secret: {SECRET}}}}}}}"
    ));
    daemon.run(&["courier", "start", "--port", "0"]).ok();
    let address = crate::webhook_peer::webhook_address(&daemon.note());
    let (started, requests) = (Instant::now(), 200);
    for _ in 0..requests {
        assert_eq!(raw(address, "POST", "/webhooks/ci", &[], b"{}").unwrap().status, 401);
    }
    let most = usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    let logged = daemon.log().matches("webhook request rejected").count();
    assert!((1..=most).contains(&logged), "{logged} lines for {requests} requests");
}

#[test]
fn both_loopback_addresses_are_bound() {
    let daemon = Daemon::started();
    let note = daemon.note();
    let port = |key: &str| u16::try_from(note[key].as_u64().unwrap()).unwrap();
    let token = daemon.run(&["token", "show"]).ok();
    for host in ["127.0.0.1", "::1"] {
        let host: std::net::IpAddr = host.parse().unwrap();
        let api = std::net::SocketAddr::from((host, port("port")));
        let headers = [
            ("Host".to_owned(), api.to_string()),
            ("Authorization".to_owned(), format!("Bearer {}", token.trim())),
        ];
        assert_eq!(raw(api, "GET", "/api/v1/boxes", &headers, b"").unwrap().status, 200);
        let webhooks = std::net::SocketAddr::from((host, port("webhook_port")));
        assert_eq!(raw(webhooks, "POST", "/webhooks/ci", &[], b"").unwrap().status, 404);
    }
    // Another process that has one of the two would receive the requests of some clients.
    let held = std::net::TcpListener::bind("[::1]:0").unwrap();
    let held_port = held.local_addr().unwrap().port().to_string();
    let other = Daemon::new();
    let args = ["courier", "start", "--port", &held_port, "--webhook-port", "0"];
    let said = other.run(&args).failed(4);
    assert!(said.contains("in use"), "{said}");
}

#[test]
fn mailbox_that_others_can_write_to_is_rejected() {
    let daemon = Daemon::new();
    let mailbox = daemon.home.join("shared");
    std::fs::create_dir_all(&mailbox).unwrap();
    daemon.configure(&format!("courier: {{storage: {{mailbox_root: '{}'}}}}", mailbox.display()));
    for mode in [0o777, 0o1777, 0o770, 0o702] {
        std::fs::set_permissions(&mailbox, std::fs::Permissions::from_mode(mode)).unwrap();
        let said = daemon.run(&["courier", "start", "--port", "0"]).failed(1);
        assert!(said.contains("other users can write") && said.contains("chmod go-w"), "{said}");
    }
    std::fs::set_permissions(&mailbox, std::fs::Permissions::from_mode(0o755)).unwrap();
    daemon.run(&["courier", "start", "--port", "0"]).ok();
}

#[test]
fn courier_writes_no_core_dumps() {
    let daemon = Daemon::started();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.pid())).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"]);
}

#[test]
fn process_that_is_not_the_courier_is_not_killed() {
    let daemon = Daemon::started();
    let pid = daemon.pid();
    // The lock is held, and its file names another process, as after a reused process id.
    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let lock = daemon.home.join("run/courier.lock");
    let before = std::fs::read_to_string(&lock).unwrap();
    let (_, started) = before.trim_end().split_once(' ').unwrap();
    std::fs::write(&lock, format!("{} {started}\n", bystander.id())).unwrap();
    for command in ["kill", "stop"] {
        daemon.run(&["courier", command]).failed(3);
    }
    assert!(bystander.try_wait().unwrap().is_none(), "another process was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    std::fs::write(&lock, before).unwrap();
    daemon.run(&["courier", "kill"]).ok();
    Daemon::gone(pid);
}

#[test]
fn unit_file_with_a_line_break_in_a_path_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("a\nExecStartPre=evil");
    let said = cli(&home, &["courier", "install", "--print"], "").failed(64);
    assert!(said.contains("control characters"), "{said}");
}

/// The value of a variable in the environment of a process.
fn variable(pid: u32, name: &str) -> Option<String> {
    let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let mut variables = environment.split('\0').filter_map(|it| it.split_once('='));
    variables.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
}

/// Every arena of the allocator keeps memory that is not in use any more.
#[test]
fn courier_has_few_arenas_unless_the_environment_says_otherwise() {
    let name = "MALLOC_ARENA_MAX";
    let courier = Courier::start();
    let arenas = variable(courier.pid(), name).and_then(|arenas| arenas.parse::<u32>().ok());
    assert!(arenas.is_some_and(|arenas| (2..=4).contains(&arenas)), "{arenas:?}");
    let command = std::fs::read_to_string(format!("/proc/{}/cmdline", courier.pid())).unwrap();
    assert!(command.ends_with("courier\0start\0--foreground\0--port\x000\0"), "{command:?}");
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("env");
    command.arg(format!("{name}=7")).arg(binary());
    command.args(["courier", "start", "--foreground", "--port", "0"]);
    let courier = Courier::spawn(&home.path().join("home"), &mut command);
    assert_eq!(variable(courier.pid(), name).as_deref(), Some("7"));
}
