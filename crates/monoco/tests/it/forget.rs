//! `monoco forget`: the text of a person is in no file any more, and all else goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::ack_checker::{Tracer, say};
use crate::common::{Answer, Courier, ME, Ran, binary, chat, cli, raw, until, wait_for};
use crate::crash::signal;
use crate::mail_checker::{Puller, list, name};
use crate::webhook_peer::{SECRET as KEY, body, configure, signed, webhook_address};

/// Occurs in everything that ann writes.
const SECRET: &str = "ann-wrote-this";

/// Two tunnels: `ci` merges at once, and `slow` keeps messages in their windows.
fn config() -> String {
    let tunnel = |id: &str, window: u32| {
        let debounce = format!("{{ window_ms: {window}, max_wait_ms: {window} }}");
        format!(
            "    {id}: {{ provider: webhook, verify: standard, secret: '{KEY}', \
             debounce: {debounce} }}\n"
        )
    };
    let service = "  service: { port: 0, webhook_port: 0 }\n";
    format!("courier:\n{service}  adapters:\n{}{}", tunnel("ci", 400), tunnel("slow", 600_000))
}

/// A message with attachments, whose bytes are the given texts.
fn message(id: &str, room: &str, from: &str, text: &str, files: &[&str]) -> Value {
    let mut message = body(id, room, from, text);
    let attached = files.iter().map(|text| {
        let base64 = BASE64_STANDARD.encode(text);
        json!({"name": format!("{from}.txt"), "mime_type": "text/plain", "base64": base64})
    });
    message["attachments"] = attached.collect();
    message["from"]["name"] =
        json!(if from == "ann" { format!("{SECRET}, name") } else { from.into() });
    message
}

fn push(courier: &Courier, tunnel: &str, message: &Value) -> Answer {
    let text = message.to_string();
    let (path, headers) = (format!("/webhooks/{tunnel}"), signed(KEY, text.as_bytes()));
    raw(courier.webhooks(), "POST", &path, &headers, text.as_bytes()).unwrap()
}

/// The files below `dir` that contain `text`, in plain text or in base64 at any offset.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(dir) else { return found };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_symlink() {
            continue;
        }
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if fs::read(&path).is_ok_and(|bytes| contains(&bytes, text.as_bytes())) {
            found.push(path);
        }
    }
    found
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    let first = text[0];
    let mut at = bytes.iter().enumerate().filter(|(_, byte)| **byte == first);
    at.any(|(at, _)| bytes[at..].starts_with(text))
}

#[track_caller]
fn assert_gone(dir: &Path, text: &str) {
    let found = files_with(dir, text);
    assert!(found.is_empty(), "{text:?} is still in {found:#?}");
}

fn mail_in(courier: &Courier, room: &str) -> Value {
    wait_for(|| {
        let page = courier.get("/api/v1/messages?limit=1000").ok();
        let mails = page["messages"].as_array().unwrap();
        let mail = mails.iter().find(|mail| mail["session"]["id"] == room);
        mail.cloned().ok_or_else(|| format!("no Mail of {room}: {page:#}"))
    })
}

fn id(mail: &Value) -> String {
    mail["id"].as_str().unwrap().to_owned()
}

/// Claims a Mail, and ends the claim.
fn end(courier: &Courier, mail: &str, verb: &str) {
    let agent = json!({"agent_id": "agent"});
    courier.ask(mail, "claim", agent).ok();
    let reason = format!("cannot parse {SECRET}");
    let how = match verb {
        "fail" => json!({"agent_id": "agent", "retryable": false, "reason": reason}),
        _ => json!({"agent_id": "agent"}),
    };
    courier.ask(mail, verb, how).ok();
}

struct Fixture {
    courier: Courier,
    here: Puller,
    /// The Mails: of both, of ann alone, with a large text, archived, and a dead letter.
    mails: Vec<Value>,
    direct: String,
    home: PathBuf,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        configure(&home, &config());
        let courier = Courier::start_in(&home);
        for args in [
            &["contact", "add", "did:web:ann", "--name", "Ann"][..],
            &["contact", "bind", "did:web:ann", "ci", "ann"],
            &["contact", "bind", "did:web:ann", "slow", "ann"],
        ] {
            courier.cli(args).ok();
        }
        let large = format!("{SECRET} ").repeat(8_000);
        let own = format!("{SECRET}, attached");
        let mut first = message("1", "both", "ann", SECRET, &[&own, "shared bytes"]);
        first["title"] = json!(format!("{SECRET}, title"));
        push(&courier, "ci", &first).ok();
        let bob = message("2", "both", "bob", "bob wrote this", &["shared bytes", "bytes of bob"]);
        push(&courier, "ci", &bob).ok();
        for (id, text) in [("3", SECRET), ("4", &large), ("5", SECRET), ("6", SECRET)] {
            push(&courier, "ci", &message(id, &format!("room-{id}"), "ann", text, &[])).ok();
        }
        let waiting = format!("{SECRET}, attached and not merged");
        push(&courier, "slow", &message("7", "slow", "ann", SECRET, &[&waiting])).ok();
        push(&courier, "slow", &message("8", "slow", "bob", "bob waits", &[])).ok();
        let rooms = ["both", "room-3", "room-4", "room-5", "room-6"];
        let mails: Vec<_> = rooms.iter().map(|room| mail_in(&courier, room)).collect();
        end(&courier, &id(&mails[3]), "complete");
        end(&courier, &id(&mails[4]), "fail");
        for (part, mail) in [("archive", &mails[3]), (".deadletter", &mails[4])] {
            let path = home.join("mailbox").join(part).join("webhook");
            until("the file is moved", || {
                path.exists() && list(&path).iter().any(|path| name(path).contains(&id(mail)))
            });
        }
        let direct = courier.deliver(ME, &format!("{SECRET}, directly"));
        courier.deliver("did:web:bob", &format!("{SECRET}, to bob"));
        let reply = chat("did:web:bob", "did:web:ann", "bob answers");
        courier.post("/api/v1/dispatch", &json!({"msg": reply})).ok();
        // A draft that cannot be sent: its tunnel does not exist.
        let draft = "---\nto: ann\ntunnel: none\n---\n\nme to ann\n";
        fs::write(home.join("mailbox/outbound/webhook/draft.md"), draft).unwrap();
        until("the draft is dead", || list(&home.join("mailbox/.deadletter/webhook")).len() >= 4);
        let here = Puller::new(dir.path().join("alpha"));
        here.sync(&home).ok();
        Self { courier, here, mails, direct, home, dir }
    }

    fn forget(&self, args: &[&str]) -> Ran {
        self.courier.cli(&[&["forget"], args].concat())
    }
}

#[test]
fn text_of_a_person_is_erased_everywhere_and_all_else_stays() {
    let Fixture { courier, here, mails, direct, home, dir } = &Fixture::new();
    assert!(files_with(home, SECRET).len() >= 8, "{:#?}", files_with(home, SECRET));
    assert!(!files_with(here.dir(), SECRET).is_empty());
    let fixture = |args: &[&str]| courier.cli(&[&["forget"], args].concat());

    // Counts, and what is rejected.
    let counts: Value =
        serde_json::from_str(&fixture(&["Ann", "--dry-run", "--json"]).ok()).unwrap();
    let expected = json!({
        "dids": ["did:msgtunnel:ann.user.ci", "did:msgtunnel:ann.user.slow", "did:web:ann"],
        "dry_run": true, "objects": 6, "mails": 1, "inbound_messages": 1, "letters": 0, "drafts": 0,
        "attachments": 2, "contacts": 1, "bindings": 2, "external_ids": 6, "files": 5,
    });
    assert_eq!(counts, expected);
    let said = fixture(&["Ann"]).failed(1);
    assert!(said.contains("no terminal") && said.contains("--yes"), "{said}");
    assert!(fixture(&["nemo", "--yes"]).failed(1).contains("unknown contact"));
    let said = fixture(&["did:web:nemo", "--yes"]).failed(1);
    assert!(said.contains("there is no person with the DID did:web:nemo"), "{said}");
    assert!(fixture(&["did:bad", "--yes"]).failed(1).contains("invalid DID"));
    fixture(&["Ann", "--yes", "--dry-run"]).failed(64);
    assert_eq!(mail_in(courier, "both")["preview"], mails[0]["preview"], "nothing has changed");

    let erased: Value = serde_json::from_str(&fixture(&["Ann", "--yes", "--json"]).ok()).unwrap();
    let mut expected = counts.clone();
    expected["dry_run"] = json!(false);
    assert_eq!(erased, expected);
    assert_gone(home, SECRET);

    // The other author's text, and what ann received.
    let both = id(&mails[0]);
    let mail = courier.get(&format!("/api/v1/messages/{both}")).ok();
    let text = mail["msg"]["content"]["content"].as_str().unwrap();
    assert!(text.contains("[erased]") && text.contains("bob wrote this"), "{text}");
    assert_eq!(mail["title"], Value::Null);
    for bytes in ["shared bytes", "bytes of bob", "bob answers", "bob waits", "me to ann"] {
        assert!(!files_with(home, bytes).is_empty(), "{bytes}");
    }
    let file = &files_with(&home.join("mailbox/inbound"), "bob wrote this")[0];
    assert!(fs::read_to_string(file).unwrap().contains("[erased]"));

    // What was erased says so.
    for old in mails.iter().skip(1) {
        let path = format!("/api/v1/messages/{}", id(old));
        let gone = courier.get(&path);
        assert_eq!(gone.refused(410), "erased");
        assert!(gone.json()["erased_at"].is_string());
        assert_eq!(courier.ask(&id(old), "claim", json!({"agent_id": "a"})).refused(410), "erased");
        let trace = courier.get(&format!("{path}/trace")).ok();
        assert!(trace["erased_at"].is_string() && trace["msg"].is_null(), "{trace:#}");
    }
    let superseded =
        courier.get(&format!("/api/v1/objects/{}", mails[0]["msg_id"].as_str().unwrap()));
    assert_eq!(superseded.refused(410), "erased");
    assert_eq!(superseded.json()["superseded_by"], mail["msg_id"]);
    let said = courier.cli(&["center", "object", mails[1]["msg_id"].as_str().unwrap()]).failed(1);
    assert!(said.contains("was erased at"), "{said}");
    assert_eq!(courier.get(&format!("/api/v1/records/{direct}")).ok()["state"], "ARCHIVED");
    for trace in [both.as_str(), "1", "2", "3", direct, &id(&mails[2])] {
        courier.cli(&["trace", trace]).ok();
    }
    assert!(courier.cli(&["trace", &id(&mails[1])]).ok().contains("erased "));
    let said = cli(home, &["mailbox", "read", &id(&mails[1])], "").failed(1);
    assert!(said.contains("was erased at"), "{said}");

    // Lists, checks and rebuilds go on.
    assert_eq!(courier.mails(5).len(), 5);
    let listed = courier.cli(&["mailbox", "list", "--global"]).ok();
    assert!(listed.contains("[erased]"), "{listed}");
    courier.cli(&["center", "list", ME, "INBOX"]).ok();
    courier.cli(&["events"]).ok();
    assert_eq!(
        courier.cli(&["dead", "list", "--format", "id"]).ok().lines().count(),
        1,
        "the draft"
    );
    check_health(courier);
    for args in [&["courier", "rebuild"][..], &["courier", "rebuild", "--from-files"]] {
        courier.cli(args).ok();
        assert_gone(home, SECRET);
    }
    check_health(courier);

    // The provider's next attempts bring nothing back, and erasing again finds nothing.
    let own = format!("{SECRET}, attached");
    let again = push(courier, "ci", &message("1", "both", "ann", SECRET, &[&own])).ok();
    assert_eq!(again["duplicate"], true);
    push(courier, "slow", &message("7", "slow", "ann", SECRET, &[&own])).ok();
    assert_gone(home, SECRET);
    let counts = fixture(&["did:msgtunnel:ann.user.ci", "--yes", "--json"]).ok();
    let counts: Value = serde_json::from_str(&counts).unwrap();
    assert_eq!((&counts["objects"], &counts["mails"]), (&json!(0), &json!(0)));

    // The workspace removes and replaces its copies.
    let said = here.sync(home).ok();
    assert!(said.contains("erased 5"), "{said}");
    assert_gone(here.dir(), SECRET);
    assert_eq!(files_with(here.dir(), "bob wrote this").len(), 1);
    assert!(here.sync(home).ok().contains("pulled 0"));

    // Neither a backup nor its restoration has the text.
    let backup = dir.path().join("backup");
    courier.cli(&["backup", backup.to_str().unwrap()]).ok();
    let restored = dir.path().join("restored");
    cli(&restored, &["restore", backup.to_str().unwrap()], "").ok();
    let second = Courier::start_in(&restored);
    mail_in(&second, "both");
    check_health(&second);
    for dir in [home, &backup, &restored] {
        assert_gone(dir, SECRET);
        assert!(!files_with(dir, "bob wrote this").is_empty());
    }
}

#[track_caller]
fn check_health(courier: &Courier) {
    courier.until("/health", |health| health["status"] == "ok");
    let doctor = courier.cli(&["doctor"]);
    for what in ["FAIL  store", "FAIL  mailbox", "damaged", "missing"] {
        assert!(!doctor.stdout.contains(what), "{}", doctor.stdout);
    }
}

#[test]
fn message_that_waits_is_merged_without_the_person() {
    let fixture = Fixture::new();
    fixture.forget(&["did:web:ann", "--yes"]).ok();
    // The courier merges all windows when it stops.
    let Fixture { mut courier, home, dir, .. } = fixture;
    signal(&courier, rustix::process::Signal::TERM);
    courier.wait();
    let courier = Courier::start_in(&home);
    let mail = courier.get(&format!("/api/v1/messages/{}", id(&mail_in(&courier, "slow")))).ok();
    assert_eq!(mail["messages"], 1);
    assert_eq!(mail["msg"]["content"]["content"], "bob waits");
    assert_gone(&home, SECRET);
    drop(dir);
}

#[test]
fn confirmation_on_a_terminal_is_asked_for() {
    let Fixture { courier, home, dir, .. } = Fixture::new();
    let answer = |text: &str| {
        let command = format!("{} forget Ann", binary().display());
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("MONOCO_HOME", &home);
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = script.spawn().unwrap();
        std::io::Write::write_all(process.stdin.as_mut().unwrap(), text.as_bytes()).unwrap();
        let ran = process.wait_with_output().unwrap();
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let (code, said) = answer("n\n");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("rewritten mails") && said.contains("nothing was erased"), "{said}");
    assert!(!files_with(&home, SECRET).is_empty());
    let (code, said) = answer("y\n");
    assert_eq!(code, Some(0), "{said}");
    assert_gone(&home, SECRET);
    drop((courier, dir));
}

#[test]
fn lost_mails_are_restored_before_a_person_is_forgotten() {
    let Fixture { courier, home, dir, .. } = Fixture::new();
    // A file of a Mail that the store does not know, as after the loss of the database.
    let inbound = home.join("mailbox/inbound/webhook");
    let file = list(&inbound).into_iter().next().unwrap();
    let lost = name(&file).replace("webhook_", "webhook_ffff");
    let lost = format!("{}.md", &lost[..lost.len() - 7]);
    fs::copy(&file, inbound.join(&lost)).unwrap();
    let said = courier.cli(&["forget", "Ann", "--yes"]).failed(1);
    assert!(said.contains("1 Mails that the store does not know"), "{said}");
    fs::remove_file(inbound.join(&lost)).unwrap();
    courier.cli(&["forget", "Ann", "--yes"]).ok();
    assert_gone(&home, SECRET);
    drop(dir);
}

/// The owner writes drafts: those to send, sent ones and dead ones.
#[test]
fn owner_can_be_forgotten_with_all_drafts_and_stays_the_owner() {
    let Fixture { courier, home, dir, .. } = Fixture::new();
    let counts = courier.cli(&["forget", ME, "--yes", "--json"]).ok();
    let counts: Value = serde_json::from_str(&counts).unwrap();
    assert_eq!((&counts["drafts"], &counts["contacts"]), (&json!(1), &json!(0)));
    assert_gone(&home, "me to ann");
    assert!(!files_with(&home, SECRET).is_empty(), "ann's text stays");
    courier.deliver(ME, "a new message");
    drop(dir);
}

#[test]
fn log_has_no_text_of_messages() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    configure(&home, &config());
    cli(&home, &["courier", "start", "--debug"], "").ok();
    let running = fs::read_to_string(home.join("run/courier.json")).unwrap();
    let address = webhook_address(&serde_json::from_str(&running).unwrap());
    let text = message("1", "both", "ann", SECRET, &[SECRET]).to_string();
    raw(address, "POST", "/webhooks/ci", &signed(KEY, text.as_bytes()), text.as_bytes())
        .unwrap()
        .ok();
    // An unreadable body is rejected, and not quoted.
    let bad = format!("{{\"id\": \"2\", \"from\": \"{SECRET}\"");
    let answer = raw(address, "POST", "/webhooks/ci", &signed(KEY, bad.as_bytes()), bad.as_bytes());
    assert!(answer.unwrap().status >= 400);
    until("the Mail is there", || {
        cli(&home, &["mailbox", "list", "--global"], "").stdout.contains(SECRET)
    });
    let forgotten = cli(&home, &["forget", "ci:ann", "--yes"], "");
    cli(&home, &["courier", "stop"], "").ok();
    forgotten.ok();
    assert!(fs::read_to_string(home.join("log/courier.log")).unwrap().len() > 100);
    assert_gone(&home, SECRET);
}

/// Kills the courier at some of the calls with which it erases; then it is asked again.
#[test]
fn killed_while_it_erases_it_completes_the_erasure() {
    let calls = [
        ("pwrite64", None),
        ("fsync", None),
        ("unlink,unlinkat", None),
        ("rename,renameat,renameat2", None),
        ("ftruncate", None),
        ("syncfs", None),
    ];
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    configure(&home, &config());
    let mut courier = Courier::start_in(&home);
    let (mut round, mut killed) = (0, 0);
    for call in calls {
        for n in [1, 2, 4, 9, 20, 40] {
            round += 1;
            let room = |name: &str| format!("{name}-{round}");
            let secret = format!("{SECRET}-{round}");
            let large = format!("{secret} ").repeat(5_000);
            for (name, from, text) in [
                ("both", "ann", &secret),
                ("both", "bob", &room("bob wrote")),
                ("large", "ann", &large),
            ] {
                let files = [format!("{from} attached {text}")];
                let files = [files[0].as_str()];
                let id = format!("{name}-{from}-{round}");
                push(&courier, "ci", &message(&id, &room(name), from, text, &files[..])).ok();
            }
            ["both", "large"].iter().for_each(|name| drop(mail_in(&courier, &room(name))));
            let tracer = Tracer::killing(&courier, call, n);
            let body = json!({"did": "did:msgtunnel:ann.user.ci"});
            let answer = courier.try_request("POST", "/api/v1/forget", Some(&body));
            drop(tracer);
            let answers = courier.try_request("GET", "/health", None).is_ok();
            let through = answer.is_ok_and(|answer| answer.status == 200) && answers;
            if !through {
                killed += 1;
                courier.kill();
                courier = Courier::start_in(&home);
                courier.post("/api/v1/forget", &body).ok();
            }
            assert_gone(&home, &secret);
            let mail =
                courier.get(&format!("/api/v1/messages/{}", id(&mail_in(&courier, &room("both")))));
            let text = mail.ok()["msg"]["content"]["content"].as_str().unwrap().to_owned();
            assert!(text.contains(&room("bob wrote")), "{call:?} {n}: {text}");
            if through {
                break;
            }
        }
    }
    say(&format!("killed {killed} times while erasing"));
    assert!(killed >= 12, "only {killed} kills");
    courier.cli(&["courier", "rebuild"]).ok();
    check_health(&courier);
    assert_gone(&home, SECRET);
}
