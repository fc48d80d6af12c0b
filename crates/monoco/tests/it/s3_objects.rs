//! Large objects of a store in PostgreSQL that are in a bucket: shared by couriers, missing while the
//! server is down, erased, and copied to and from other stores.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::ack_checker::{LARGE, times};
use crate::chat_harness::{ChatSim, chat_config};
use crate::common::{Answer, Courier, ME, binary, cli, wait_within};
use crate::postgres_server::PostgresServer;
use crate::s3_server::{S3Server, SECRET as S3_SECRET};
use crate::slack::socket_keys;
use crate::webhook_peer::{SECRET, body, configure};

/// How long a courier may take to notice that the server is gone, or is back.
const MAX_NOTICE: Duration = Duration::from_secs(90);

/// How long a courier may take to fetch a large file.
const MAX_FETCH: Duration = Duration::from_secs(120);

/// A database, a bucket, and homes of couriers that use both.
struct Hub {
    dir: TempDir,
    s3: S3Server,
    server: PostgresServer,
}

impl Hub {
    fn start() -> Self {
        let (server, s3) = (PostgresServer::start(), S3Server::start());
        Self { dir: tempfile::tempdir().unwrap(), s3, server }
    }

    /// The home of a courier whose large objects are at this URL.
    fn home(&self, name: &str, objects: &str) -> PathBuf {
        let home = self.dir.path().join(name);
        let store = self.server.url();
        let keys = format!("store: '{store}', objects: '{objects}'");
        configure(&home, &config(&keys));
        home
    }

    fn courier(&self, name: &str) -> Courier {
        let home = self.home(name, &self.s3.url("p/q"));
        // Its log is also kept in a file.
        let script = format!("exec \"$0\" \"$@\" 2> >(tee -a '{}' >&2)", log_of(&home).display());
        Courier::start_under(&home, &["bash", "-c", &script].map(str::to_owned))
    }
}

fn log_of(home: &Path) -> PathBuf {
    home.with_extension("log")
}

fn config(storage: &str) -> String {
    format!(
        "courier:\n  storage: {{ {storage} }}\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    \
         ci: {{ provider: webhook, verify: standard, secret: '{SECRET}' }}\n"
    )
}

fn upload(courier: &Courier, bytes: &[u8]) -> Answer {
    let headers = [("Content-Type", "application/octet-stream")];
    courier.send("POST", "/api/v1/objects", &headers, bytes).unwrap()
}

fn stored_id(answer: &Answer) -> String {
    assert_eq!(answer.status, 201, "{}", answer.text());
    answer.json()["id"].as_str().unwrap().to_owned()
}

/// Pushes a message with a file. Returns the answer of the courier.
fn push_file(courier: &Courier, id: &str, from: &str, bytes: &str) -> Answer {
    let mut message = body(id, "room", from, "see the file");
    let base64 = BASE64_STANDARD.encode(bytes);
    message["attachments"] =
        json!([{"name": "file.txt", "mime_type": "text/plain", "base64": base64}]);
    courier.push(&message)
}

fn large_text(courier: &Courier, record: &str) -> Value {
    let record = courier.get(&format!("/api/v1/records/{record}")).ok();
    courier.get(&format!("/api/v1/objects/{}", record["msg_id"].as_str().unwrap())).ok()
}

/// The part of `/health` about the bucket, once it has an error or has none.
#[track_caller]
fn wait_for_objects(courier: &Courier, has_error: bool) -> Value {
    wait_within(MAX_NOTICE, || {
        let health = courier.get("/health").json();
        match health["storage"]["objects"]["error"].is_string() == has_error {
            true => Ok(health),
            false => Err(format!("{health:#}")),
        }
    })
}

fn doctor(home: &Path) -> Value {
    let ran = cli(home, &["doctor", "--format", "json"], "");
    let found: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{ran:?}"));
    assert!(!found.to_string().contains(S3_SECRET), "{found}");
    let mut checks = found["checks"].as_array().unwrap().iter();
    checks.find(|check| check["check"] == "objects").unwrap_or_else(|| panic!("{found:#}")).clone()
}

/// Starts a courier that must not start, and returns why.
#[track_caller]
fn start_refused(home: &Path) -> String {
    let mut command = Command::new(binary());
    command.args(["courier", "start", "--foreground", "--port", "0"]);
    let why = Courier::try_spawn(home, &mut command).map(|_| "the courier started").unwrap_err();
    assert!(!why.contains(S3_SECRET), "{why}");
    why
}

#[test]
fn large_objects_are_in_the_bucket_and_both_couriers_read_them() {
    let hub = Hub::start();
    let [a, b] = ["a", "b"].map(|name| hub.courier(name));
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|n| n.to_le_bytes()[1]).collect();
    let id = stored_id(&upload(&a, &bytes));
    let found = b.get(&format!("/api/v1/objects/{id}"));
    assert!(found.bytes == bytes, "{} bytes of {}", found.bytes.len(), bytes.len());
    let empty = stored_id(&upload(&b, b""));
    assert_eq!(a.get(&format!("/api/v1/objects/{empty}")).bytes, b"");
    let record = a.deliver(ME, &"large ".repeat(LARGE / 6));
    assert_eq!(large_text(&b, &record), large_text(&a, &record));
    assert_eq!(hub.server.sql("SELECT count(*) FROM monoco.stored_parts"), "0");
    assert_eq!(hub.s3.objects("p/q").len(), 3);

    // A person's file is erased with its object, unless another message has the same bytes.
    for (n, (from, file)) in
        [("ann", "only of ann"), ("ann", "of both"), ("bob", "of both")].into_iter().enumerate()
    {
        assert_eq!(push_file(&a, &format!("evt-{n}"), from, file).status, 200);
    }
    // In one Mail or more, by how fast they arrived.
    b.until("/api/v1/messages", |list| {
        let mails = list["messages"].as_array().unwrap();
        mails.iter().filter_map(|mail| mail["messages"].as_u64()).sum::<u64>() == 3
    });
    assert_eq!(hub.s3.objects("p/q").len(), 5);
    b.cli(&["forget", "ci:ann", "--yes"]).ok();
    assert_eq!(hub.s3.objects("p/q").len(), 4);

    // Other bytes in the bucket are damage, never an answer.
    let path = hub.s3.objects("p/q").into_iter().find(|path| id.ends_with(name(path))).unwrap();
    std::fs::write(&path, vec![7; bytes.len()]).unwrap();
    // The connection is cut before the last byte, when the answer has begun.
    if let Ok(damaged) = a.try_request("GET", &format!("/api/v1/objects/{id}"), None) {
        assert!(damaged.status >= 500, "{}", damaged.status);
    }

    for courier in [&a, &b] {
        let status = courier.cli(&["courier", "status", "--format", "json"]).ok();
        assert!(status.contains("s3://hub/p/q"), "{status}");
        assert!(!status.contains(S3_SECRET), "{status}");
        let log = std::fs::read_to_string(log_of(courier.home())).unwrap();
        assert!(log.contains("listens on"), "{log}");
        assert!(!log.contains(S3_SECRET), "{log}");
    }
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn outage_of_the_bucket_rejects_only_large_objects_and_ends_by_itself() {
    let mut hub = Hub::start();
    let courier = hub.courier("a");
    let before = stored_id(&upload(&courier, b"before the outage"));
    assert_eq!(courier.get("/health").json()["storage"]["objects"]["place"], "s3://hub/p/q");
    hub.s3.stop();
    assert_eq!(upload(&courier, b"during the outage").refused(503), "unavailable");
    let path = format!("/api/v1/objects/{before}");
    assert_eq!(courier.get(&path).refused(503), "unavailable");
    assert_eq!(push_file(&courier, "evt-1", "ann", "not acknowledged").status, 503);
    // Messages without large objects do not need the bucket.
    courier.hears("evt-2", "room", "ann", "small");
    courier.mails(1);
    let health = wait_for_objects(&courier, true);
    assert_eq!(
        (&health["status"], &health["storage"]["status"]),
        (&json!("degraded"), &json!("ok"))
    );
    assert_eq!(doctor(courier.home())["state"], "fail");

    // A courier can start meanwhile.
    let courier = courier.restart();
    courier.hears("evt-3", "room", "ann", "small again");
    hub.s3.run();
    let health = wait_for_objects(&courier, false);
    assert_eq!(health["status"], "ok", "{health:#}");
    assert_eq!(courier.get(&path).bytes, b"before the outage");
    assert_eq!(push_file(&courier, "evt-1", "ann", "not acknowledged").ok()["stored"], 1);
    assert_eq!(doctor(courier.home())["state"], "ok");
}

#[test]
fn bucket_that_cannot_be_used_is_named_at_the_start_and_by_doctor() {
    let hub = Hub::start();
    for (url, parts) in [
        (hub.s3.url_of("hub", "wrong", "p"), ["SignatureDoesNotMatch", "secret of the access key"]),
        (hub.s3.url_of("absent", S3_SECRET, "p"), ["NoSuchBucket", "absent does not exist"]),
    ] {
        let home = hub.home("refused", &url);
        let (why, check) = (start_refused(&home), doctor(&home));
        for part in parts {
            assert!(why.contains(part), "{part}: {why}");
            assert!(check["detail"].as_str().unwrap().contains(part), "{part}: {check:#}");
        }
    }
    // The objects of a store are in one place.
    let courier = hub.courier("a");
    courier.cli(&["courier", "stop"]).ok();
    for other in [hub.s3.url("other"), "database".to_owned()] {
        let why = start_refused(&hub.home("other", &other));
        assert!(why.contains("are in s3://hub/p/q, not in"), "{why}");
    }
}

#[test]
fn large_file_is_not_in_the_memory_of_the_courier() {
    let hub = Hub::start();
    let courier = hub.courier("a");
    let peak = || peak_memory(courier.pid()).unwrap();
    stored_id(&upload(&courier, b"warm"));
    let before = peak();
    // The largest upload that the API accepts.
    let bytes: Vec<u8> = (0..32_u32 << 20).map(|n| n.to_le_bytes()[2]).collect();
    let id = stored_id(&upload(&courier, &bytes));
    let found = courier.get(&format!("/api/v1/objects/{id}"));
    assert!(found.bytes == bytes, "{} bytes of {}", found.bytes.len(), bytes.len());
    let grown = peak() - before;
    assert!(grown < 16, "the courier has grown by {grown} MiB");
}

/// The largest memory of a process so far, in MiB.
fn peak_memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? / 1024)
}

/// Says something with a file of so many MiB, and returns the id of the file once the courier has it.
fn fetch_file(sim: &ChatSim, courier: &Courier, mb: u64, name: &str) -> String {
    let file = json!({"name": name, "mime_type": "application/x-tar", "size": mb << 20});
    sim.control("say", &json!({"chat": "general", "text": name, "files": [file]}));
    let path = "/api/v1/messages?limit=1000";
    let mail = wait_within(MAX_FETCH, || {
        let list = courier.get(path).ok();
        let mut mails = list["messages"].as_array().unwrap().iter();
        let found = mails.find(|mail| mail["preview"].as_str().unwrap().contains(name));
        found.and_then(|mail| mail["id"].as_str().map(str::to_owned)).ok_or(list.to_string())
    });
    let full = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    let artifact = &full["msg"]["content"]["machine"]["data"]["mail"]["artifacts"][0];
    artifact["hash"].as_str().unwrap_or_else(|| panic!("{full:#}")).to_owned()
}

#[test]
fn file_larger_than_any_upload_goes_to_the_bucket_as_a_stream() {
    let mb = times("MONOCO_FILE_MB", 40);
    let (hub, sim) = (Hub::start(), ChatSim::start("slack"));
    let objects = hub.s3.url("p/q");
    let keys = [socket_keys(&sim), vec!["max_file_mb: 1000".to_owned()]].concat();
    let tunnel = chat_config("slack", 50, &keys);
    let with_store = |storage: &str| {
        tunnel.replacen("courier:\n", &format!("courier:\n  storage: {{ {storage} }}\n"), 1)
    };
    let fetched = |home: &Path, mb: u64, name: &str| {
        let courier = Courier::start_in(home);
        sim.wait_for_connections(1);
        fetch_file(&sim, &courier, 1, &name.to_uppercase());
        let before = peak_memory(courier.pid()).unwrap();
        let id = fetch_file(&sim, &courier, mb, name);
        let grown = peak_memory(courier.pid()).unwrap() - before;
        assert!(grown < 24, "the courier has grown by {grown} MiB for {name}");
        courier.cli(&["courier", "stop"]).ok();
        sim.wait_for_connections(0);
        id
    };
    let sizes = |path: PathBuf| std::fs::metadata(path).unwrap().len();
    let in_bucket = |id: &str| {
        let found = hub.s3.objects("p/q").into_iter().find(|path| id.ends_with(name(path)));
        found.map(sizes)
    };

    let embedded = hub.dir.path().join("embedded");
    configure(&embedded, &with_store("store: sqlite"));
    let first = fetched(&embedded, mb, "first.tar");
    let mut command = Command::new(binary());
    command.args(["store", "migrate", "--to", &hub.server.url(), "--objects", &objects]);
    command.env_clear().env("MONOCO_HOME", &embedded).stdout(Stdio::null()).stdin(Stdio::null());
    let mut migration = command.spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        peak = peak_memory(migration.id()).unwrap_or(0).max(peak);
        if let Some(status) = migration.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success());
    // The program alone has about 60 MiB.
    assert!(peak < 90, "the copy had {peak} MiB");
    assert_eq!(in_bucket(&first), Some(mb << 20));

    let shared = hub.dir.path().join("shared");
    configure(
        &shared,
        &with_store(&format!("store: '{}', objects: '{objects}'", hub.server.url())),
    );
    let second = fetched(&shared, mb + 1, "second.tar");
    assert_eq!(in_bucket(&second), Some((mb + 1) << 20));
    assert_eq!(hub.server.sql("SELECT count(*) FROM monoco.stored_parts"), "0");
    // The bytes come back as a stream, and are those of the hash.
    let courier = Courier::start_in(&shared);
    let before = peak_memory(courier.pid()).unwrap();
    for id in [&first, &second] {
        let bytes = courier.get(&format!("/api/v1/objects/{id}")).bytes;
        let found = hex(&Sha256::digest(&bytes));
        assert!(id.ends_with(&found), "{id}: {} bytes", bytes.len());
    }
    let grown = peak_memory(courier.pid()).unwrap() - before;
    assert!(grown < 24, "the courier has grown by {grown} MiB");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn store_moves_into_a_bucket_and_back_with_all_its_objects() {
    let hub = Hub::start();
    let home = hub.dir.path().join("embedded");
    configure(&home, &config("store: sqlite"));
    let courier = Courier::start_in(&home);
    let files: Vec<_> = (0..3).map(|n| vec![n; 100_000 + usize::from(n)]).collect();
    let ids: Vec<_> = files.iter().map(|bytes| stored_id(&upload(&courier, bytes))).collect();
    let record = courier.deliver(ME, &"large ".repeat(LARGE / 6));
    let text = large_text(&courier, &record);
    courier.cli(&["courier", "stop"]).ok();
    let migrate = |from: &Path, to: &str, objects: &[&str]| {
        let args = [&["store", "migrate", "--to", to, "--format", "json"], objects].concat();
        cli(from, &args, "")
    };
    let check = |courier: &Courier| {
        for (id, bytes) in ids.iter().zip(&files) {
            let found = courier.get(&format!("/api/v1/objects/{id}"));
            assert!(found.bytes == *bytes, "{id}: {}", found.status);
        }
        assert_eq!(large_text(courier, &record), text);
    };

    let url = hub.s3.url("p/q");
    let dir = hub.dir.path().join("unused");
    let usage = migrate(&home, dir.to_str().unwrap(), &["--objects", &url]).failed(64);
    assert!(usage.contains("only a store in PostgreSQL"), "{usage}");
    let to = hub.server.url();
    let copied = migrate(&home, &to, &["--objects", &url]).ok();
    assert!(copied.contains("\"files\": 4") || copied.contains("\"files\":4"), "{copied}");
    assert_eq!(hub.s3.objects("p/q").len(), 4);
    assert_eq!(hub.server.sql("SELECT count(*) FROM monoco.stored_parts"), "0");
    let shared = hub.courier("shared");
    check(&shared);
    shared.cli(&["courier", "stop"]).ok();

    let back = hub.dir.path().join("back");
    configure(&back, &config("store: sqlite"));
    migrate(shared.home(), back.join("store").to_str().unwrap(), &[]).ok();
    check(&Courier::start_in(&back));
}
