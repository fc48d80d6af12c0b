//! Runs the scripts in `tests/attacks` that attack the ports and the socket of the courier as
//! another user. Each exits with 1 when it has done damage.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Courier, PATIENCE, cli, until};
use crate::webhook_peer::{config, courier, signed};

/// A user that owns nothing.
const OTHER_USER: &str = "65534";

/// A script that runs as another user.
struct Attack {
    process: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Attack {
    /// Starts a script. Its text is an argument: the other user may not be able to read the
    /// files of the project.
    fn start(script: &str, args: &[&str]) -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", OTHER_USER, "--regid", OTHER_USER, "--clear-groups"]);
        command.args(["python3", "-c", script]).args(args).current_dir("/");
        // The first python3 of the tests may be in a directory of their user.
        command.env("PATH", "/usr/bin:/bin");
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process =
            spawned.unwrap_or_else(|error| panic!("this test needs root and setpriv: {error}"));
        let output = BufReader::new(process.stdout.take().unwrap());
        Self { process, output }
    }

    /// Waits until the script prints a line.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Ends the script, which must report that the attack has failed.
    #[track_caller]
    fn must_fail(mut self) {
        drop(self.process.stdin.take());
        let mut output = String::new();
        self.output.read_to_string(&mut output).unwrap();
        assert_eq!(self.process.wait().unwrap().code(), Some(0), "{output}");
    }
}

/// The state in `courier.json`.
fn state(home: &Path) -> Option<String> {
    let text = fs::read_to_string(home.join("run/courier.json")).ok()?;
    let info: Value = serde_json::from_str(&text).unwrap();
    Some(info["state"].as_str().unwrap().to_owned())
}

#[test]
fn port_taken_during_a_stop_receives_no_token() {
    let mut courier = courier(&config(300));
    let home = courier.home().to_owned();
    let port = courier.address.port().to_string();
    let mut attack = Attack::start(include_str!("../attacks/take_port.py"), &[&port]);
    assert_eq!(attack.line(), "ready");
    // An unfinished request keeps the courier from stopping at once.
    let mut unfinished = TcpStream::connect(courier.webhooks()).unwrap();
    let mut head = "POST /webhooks/ci HTTP/1.1\r\nContent-Length: 100\r\n".to_owned();
    for (name, value) in signed(crate::webhook_peer::SECRET, b"") {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    write!(unfinished, "{head}\r\n").unwrap();
    crate::crash::signal(&courier, rustix::process::Signal::TERM);
    let deadline = Instant::now() + PATIENCE;
    while state(&home).as_deref() == Some("running") {
        assert!(Instant::now() < deadline, "the courier does not stop");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Commands find no courier, and do not ask on its port.
    let mut commands = 0;
    while courier.is_alive() {
        let stderr = cli(&home, &["courier", "status"], "").failed(3);
        let stopping = stderr.contains(&format!("process {}) is st", courier.pid()))
            && stderr.contains("stopping");
        assert!(stopping || stderr.contains("no courier is running"), "{stderr}");
        cli(&home, &["center", "boxes"], "").failed(3);
        commands += 1;
        if commands == 2 {
            drop(unfinished.write_all(b"x"));
            drop(unfinished.shutdown(std::net::Shutdown::Both));
        }
    }
    assert!(commands > 0, "the courier stopped too early for this test");
    // Now the port is free.
    while attack.line() != "took 127.0.0.1" {}
    cli(&home, &["courier", "status"], "").failed(3);
    cli(&home, &["center", "boxes"], "").failed(3);
    attack.must_fail();
}

#[test]
fn socket_answers_only_the_user_of_the_courier() {
    let courier = Courier::start();
    courier.cli(&["center", "boxes"]).ok();
    let socket = courier.home().join("run/courier.sock");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
    assert_eq!(mode(&socket), 0);
    // Permissions that someone has opened are not the only protection.
    for path in socket.ancestors().take_while(|path| *path != std::env::temp_dir()) {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let socket = socket.to_str().unwrap();
    Attack::start(include_str!("../attacks/use_socket.py"), &[socket]).must_fail();
}

/// Runs an attack on the webhook listener; afterwards the tunnel works as before.
fn hold_webhooks(kind: &str) {
    let courier = courier(&config(100));
    let port = courier.webhooks().port().to_string();
    let script = include_str!("../attacks/hold_webhooks.py");
    Attack::start(script, &[kind, &port]).must_fail();
    courier.hears("after", "room", "ann", "still here");
    assert_eq!(courier.get("/health").ok()["status"], "ok");
}

#[test]
fn announced_bodies_do_not_occupy_the_webhook_listener() {
    hold_webhooks("bodies");
}

#[test]
fn unfinished_heads_do_not_occupy_the_webhook_listener() {
    hold_webhooks("heads");
}

#[test]
fn unread_responses_do_not_occupy_the_webhook_listener() {
    hold_webhooks("responses");
}

#[test]
fn unfinished_uploads_fill_neither_memory_nor_disk() {
    let courier = Courier::start();
    let port = courier.address.port().to_string();
    let script = include_str!("../attacks/fill_memory.py");
    Attack::start(script, &[&port, &courier.token]).must_fail();
    courier.deliver(crate::common::ME, "small requests are accepted");
    let status = fs::read_to_string(format!("/proc/{}/status", courier.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 256 << 10, "the courier held {peak_kib} KiB");
    // The uploads ended with the attack: their space and their files are free again.
    let temporary = courier.home().join("store/blobs/tmp");
    until("unfinished uploads are deleted", || fs::read_dir(&temporary).unwrap().count() == 0);
    let largest = vec![b'x'; 32 << 20];
    let kind = [("Content-Type", "application/octet-stream")];
    let stored = courier.send("POST", "/api/v1/objects", &kind, &largest).unwrap();
    assert_eq!(stored.status, 201, "{}", stored.text());
}

/// An upload that finds no space is told when to come again.
#[test]
fn upload_over_the_shared_space_is_answered_with_retry_after() {
    let courier = Courier::start();
    let part = vec![b'x'; 31 << 20];
    let announce = |size: usize| {
        let mut upload = TcpStream::connect(courier.address).unwrap();
        write!(
            upload,
            "POST /api/v1/objects HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n",
            courier.address, courier.token
        )
        .unwrap();
        upload
    };
    let mut unfinished: Vec<_> = (0..4).map(|_| announce(32 << 20)).collect();
    for upload in &mut unfinished {
        upload.write_all(&part).unwrap();
    }
    // What was sent has arrived when it is on disk.
    let temporary = courier.home().join("store/blobs/tmp");
    until("the uploads have arrived", || {
        let files = fs::read_dir(&temporary).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>() > 120 << 20
    });
    let mut late = announce(part.len());
    // The courier answers before it has read everything.
    let _ = late.write_all(&part);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = late.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
        if String::from_utf8_lossy(&answer).contains('}') {
            break;
        }
    }
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 503"), "{answer}");
    assert!(answer.contains("retry-after: 30"), "{answer}");
    assert!(answer.contains("unfinished requests occupy all 134217728 bytes"), "{answer}");
}
