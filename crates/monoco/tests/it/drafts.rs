//! Drafts: however they are written, each is sent whole and once, or given up with a
//! reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use crate::ack_checker::{TestRng, say, times};
use crate::common::{Courier, until, wait_for};
use crate::mail_checker::{MailboxCourier, answering, list, name};
use crate::webhook_peer::{Got, Receiver, SECRET, body, configure, seconds};

fn outbound(hub: &MailboxCourier) -> PathBuf {
    let dir = hub.home.join("mailbox/outbound/webhook");
    fs::create_dir_all(&dir).unwrap();
    dir
}

fn said(got: &Got) -> Value {
    serde_json::from_str(&got.body).unwrap()
}

/// Waits until so many drafts have ended there, and returns their files.
#[track_caller]
fn ended(hub: &MailboxCourier, place: &str, count: usize) -> Vec<PathBuf> {
    wait_for(|| {
        let files = list(&hub.home.join("mailbox").join(place).join("webhook"));
        let files: Vec<_> = files.into_iter().filter(|path| name(path).ends_with(".md")).collect();
        let ended = files.len() == count && is_empty(hub);
        if ended { Ok(files) } else { Err(format!("{place}: {files:?}")) }
    })
}

/// Whether no draft is left where they are put and sent from.
fn is_empty(hub: &MailboxCourier) -> bool {
    let left = list(&outbound(hub)).into_iter().filter(|path| path.is_file());
    left.count() == 0 && list(&outbound(hub).join(".sending")).is_empty()
}

/// What became of a draft that was sent.
fn outcome(path: &Path) -> Value {
    monoco_core::draft::outcome(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Why a draft was given up.
fn reason(path: &Path) -> Value {
    let text = fs::read_to_string(path.with_extension("reason.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_draft_that_appears_whole_is_sent_at_once() {
    let hub = MailboxCourier::open();
    let dir = outbound(&hub);
    // The first of a courier may have to be found by looking.
    for n in 0..3 {
        let hidden = dir.join(".new.md");
        fs::write(&hidden, "---\nto: group:room-7\n---\n\nhello").unwrap();
        let moved = Instant::now();
        fs::rename(&hidden, dir.join(format!("{n}.md"))).unwrap();
        assert_eq!(said(&hub.receiver.next())["text"], "hello");
        // A file whose close was not seen must be unchanged for three seconds.
        assert!(n == 0 || moved.elapsed() < Duration::from_secs(3), "{:?}", moved.elapsed());
    }
    ended(&hub, "archive", 3);
}

#[test]
fn drafts_are_read_however_people_write_them() {
    let hub = MailboxCourier::open();
    let drafts = [
        ("crlf", "---\r\nto: group:room-7\r\n---\r\n\r\nline one\r\nline two\r\n"),
        ("bom", "\u{feff}---\nto: group:room-7\n---\n\nline one\nline two\n"),
        ("both", "\u{feff}---\r\nto: 'group:room-7'\r\n---\r\nline one\r\nline two"),
        ("json", "---\n{\"to\": [\"group:room-7\"]}\n---\n\nline one\nline two\n"),
        ("did", "---\nto: did:msgtunnel:room-7.group.ci\n---\nline one\nline two"),
        (
            "tunnel",
            "---\nto: [group:room-7]\ntunnel: ci\nprovider: webhook\n---\nline one\nline two",
        ),
        ("Ein Entwurf für Ann & Bob ✉", "---\nto: group:room-7\n---\nline one\nline two"),
    ];
    for (file, text) in drafts {
        fs::write(outbound(&hub).join(format!("{file}.md")), text).unwrap();
    }
    for _ in drafts {
        let got = said(&hub.receiver.next());
        assert_eq!((&got["text"], &got["to"]), (&json!("line one\nline two"), &json!("room-7")));
        assert_eq!(got["session"]["type"], "group");
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    for path in ended(&hub, "archive", drafts.len()) {
        assert!(name(&path).chars().all(plain), "{path:?}");
        assert_eq!(outcome(&path)["deliveries"][0]["state"], "SENT");
    }
}

#[test]
fn a_bad_draft_is_given_up_with_its_reason_and_as_it_was() {
    let receiver = Receiver::start();
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let url = receiver.url("/hook");
    let tunnel = |id: &str| {
        format!(
            "    {id}: {{ provider: webhook, verify: standard, secret: '{SECRET}', \
             send_to: '{url}', allow_private: true }}\n"
        )
    };
    configure(&home, &format!("courier:\n  adapters:\n{}{}", tunnel("ci"), tunnel("cd")));
    let hub = MailboxCourier::resume(home, receiver, dir);
    let hash = format!("sha256:{}", "0".repeat(64));
    let missing = format!(
        "---\nto: did:msgtunnel:a.user.ci\nartifacts: [{{name: x, hash: '{hash}'}}]\n---\nhi"
    );
    let long = format!("---\nto: did:msgtunnel:a.user.ci\n---\n{}", "x".repeat(600 << 10));
    let huge = vec![b'x'; 2 << 20];
    let bad: [(&str, &[u8], &str); 16] = [
        ("unknown key", b"---\nto: ann\ncolour: red\n---\nhi", "unknown key `colour`"),
        ("misspelt", b"---\nto: ann\nreplyto: x\n---\nhi", "did you mean `reply_to`?"),
        ("no target", b"---\ntunnel: ci\n---\nhi", "no recipient"),
        ("two tunnels", b"---\nto: ann\n---\nhi", "set `tunnel` to one of"),
        ("no such tunnel", b"---\nto: ann\ntunnel: co\n---\nhi", "webhook has no co"),
        ("no such way", b"---\nto: did:msgtunnel:a.user.lark\n---\nhi", "lark"),
        (
            "another provider",
            b"---\nto: ann\ntunnel: ci\nprovider: lark\n---\nhi",
            "outbound/webhook",
        ),
        ("missing attachment", missing.as_bytes(), "neither in the dropzone nor in the store"),
        (
            "no such Mail",
            b"---\nreply_to: webhook_0123456789abcdef01234567\n---\nhi",
            "0123456789abcdef",
        ),
        ("bad YAML", b"---\nto: [ann\n---\nhi", "front matter"),
        ("a bomb", b"---\na: &a [x, x]\nb: &b [*a, *a]\nto: ann\n---\nhi", ""),
        ("no front matter", b"just a text", "no front matter"),
        ("a wrong type", b"---\nto: {a: b}\n---\nhi", "expected a text"),
        ("binary", b"---\nto: ann\n---\n\xff\xfe\x00", "not UTF-8"),
        ("too long", long.as_bytes(), ""),
        ("too large", &huge, "bytes"),
    ];
    for (what, bytes, _) in &bad {
        fs::write(outbound(&hub).join(format!("{what}.md")), bytes).unwrap();
    }
    let files = ended(&hub, ".deadletter", bad.len());
    for (what, bytes, why) in bad {
        let stem = what.replace(' ', "-");
        let file = files.iter().find(|path| name(path).contains(&format!("_{stem}_"))).unwrap();
        assert_eq!(fs::read(file).unwrap(), bytes, "{what}");
        let reason = reason(file)["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains(why), "{what}: {reason}");
    }
    assert!(list(&hub.home.join("mailbox/archive/webhook")).is_empty());
    assert!(hub.receiver.is_quiet(), "nothing of it was sent");
    // A directory of no provider, and one whose name is none.
    for (dir, dead, why) in [
        ("lark", "lark", "unknown provider \"lark\"; configured providers:"),
        ("not a provider", "unknown", "unknown provider \"not a provider\""),
    ] {
        let dir = hub.home.join("mailbox/outbound").join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("x.md"), "---\nto: ann\n---\nhi").unwrap();
        let dead = hub.home.join("mailbox/.deadletter").join(dead);
        until(&format!("{dead:?} has a draft and its reason"), || list(&dead).len() == 2);
        let reason = reason(&list(&dead)[0])["reason"].to_string().replace('\\', "");
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn an_answer_goes_to_exactly_where_the_mail_came_from() {
    let mut hub = MailboxCourier::open();
    let sessions = [
        ("room-7", "group", Some("t-1")),
        ("room-7", "group", None),
        ("room-8", "group", Some("t-1")),
        ("a.b:c/d e%ü", "group", Some("t \"2\"")),
        ("dm", "direct", None),
    ];
    let mut mails = Vec::new();
    for (n, (id, kind, thread)) in sessions.iter().enumerate() {
        let mut message = body(&format!("evt-{n}"), id, &format!("u.{n}"), "hello");
        message["session"]["type"] = json!(kind);
        message["session"]["thread_key"] = json!(thread);
        message["correlation_id"] = json!(format!("case-{n}"));
        hub.courier.push(&message).ok();
        mails.push(crate::mail_checker::mail_id(&format!("evt-{n}")));
    }
    for mail in &mails {
        hub.until(|hub| hub.has("inbound/webhook", mail)).unwrap();
    }
    // Not in the order they came.
    for n in [3, 0, 4, 2, 1] {
        hub.courier.cli(&["mailbox", "send", "--reply-to", &mails[n], "--text", "here"]).ok();
        let got = said(&hub.receiver.next());
        let (id, kind, thread) = sessions[n];
        // What was said to us alone is answered to its author.
        let to = if kind == "direct" { format!("u.{n}") } else { id.to_owned() };
        let kind = if kind == "direct" { "user" } else { kind };
        assert_eq!((&got["session"]["id"], &got["to"]), (&json!(to), &json!(to)));
        assert_eq!(got["session"]["type"], kind);
        assert_eq!(got["session"]["thread_key"], json!(thread));
        assert_eq!(got["reply_to"], format!("evt-{n}"));
        assert_eq!(got["correlation_id"], format!("case-{n}"));
    }
    ended(&hub, "archive", 5);
    assert!(hub.receiver.is_quiet());
}

/// So many seconds from now, on our clock, and as a draft says it.
fn in_seconds(after: u64) -> (Timestamp, String) {
    let at = Timestamp::from_ms(i64::try_from((seconds() + after) * 1000).unwrap());
    (at, at.rfc3339())
}

#[test]
fn what_is_to_be_sent_later_waits_also_over_a_restart() {
    let mut hub = MailboxCourier::open();
    let (at, text) = in_seconds(5);
    let send = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--text"];
    let later = [&send[..], &["later", "--schedule-at", &text]].concat();
    hub.courier.cli(&later).ok();
    hub.courier.cli(&[&send[..], &["now"]].concat()).ok();
    assert_eq!(said(&hub.receiver.next())["text"], "now");
    hub.until(|hub| hub.has("archive/webhook", "now")).unwrap();
    assert!(hub.has("outbound/webhook/.sending", "later"), "it waits where it is sent from");
    hub.restart();
    assert_eq!(said(&hub.receiver.next())["text"], "later");
    assert!(in_seconds(0).0 >= at, "it came too early");
    ended(&hub, "archive", 2);
    assert!(hub.receiver.is_quiet());
}

#[test]
fn the_same_text_twice_is_two_messages_and_the_same_key_twice_is_one() {
    let mut hub = MailboxCourier::open();
    let send = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--text", "hello"];
    for _ in 0..2 {
        hub.courier.cli(&send).ok();
    }
    let keys = [hub.receiver.next(), hub.receiver.next()];
    assert_ne!(keys[0].headers["idempotency-key"], keys[1].headers["idempotency-key"]);
    ended(&hub, "archive", 2);
    let keyed = [&send[..], &["--idempotency-key", "case-7", "--wait"]].concat();
    for round in 0..3 {
        hub.courier.cli(&keyed).ok();
        if round == 0 {
            hub.receiver.next();
        }
        if round == 1 {
            hub.restart();
        }
        assert!(hub.receiver.is_quiet(), "{round}");
    }
    // Another text under the same key is not what was promised to be sent.
    let other = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--text", "other"];
    let other = [&other[..], &["--idempotency-key", "case-7", "--wait"]].concat();
    let ran = hub.courier.cli(&other);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(hub.receiver.is_quiet());
}

#[test]
fn attachments_arrive_with_their_bytes() {
    let hub = MailboxCourier::open();
    let files = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    fs::write(files.path().join("data.bin"), &bytes).unwrap();
    fs::write(files.path().join("empty.txt"), "").unwrap();
    let path = |name: &str| files.path().join(name).display().to_string();
    let (data, empty) = (path("data.bin"), path("empty.txt"));
    let send = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--text", "see"];
    hub.courier.cli(&[&send[..], &["--attach", &data, "--attach", &empty]].concat()).ok();
    let got = said(&hub.receiver.next());
    let attached = got["attachments"].as_array().unwrap();
    assert_eq!(attached.len(), 2, "{attached:?}");
    let decode = |n: usize| {
        use base64::Engine;
        let text = attached[n]["base64"].as_str().unwrap();
        base64::prelude::BASE64_STANDARD.decode(text).unwrap()
    };
    assert_eq!((&attached[0]["name"], decode(0)), (&json!("data.bin"), bytes));
    assert_eq!((&attached[1]["name"], decode(1)), (&json!("empty.txt"), Vec::new()));
    ended(&hub, "archive", 1);
}

#[test]
fn a_refusal_is_given_up_and_a_busy_receiver_asked_again() {
    let hub = MailboxCourier::open();
    let send = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--wait", "--text"];
    hub.receiver.will("400 Bad Request");
    let ran = hub.courier.cli(&[&send[..], &["refused"]].concat());
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.stderr.contains("message not sent"), "{}", ran.stderr);
    let dead = ended(&hub, ".deadletter", 1);
    let why = reason(&dead[0]);
    assert_eq!(why["deliveries"][0]["state"], "DEAD");
    let error = why["deliveries"][0]["error"].as_str().unwrap();
    assert!(error.contains("400 Bad Request"), "{error}");
    assert!(fs::read_to_string(&dead[0]).unwrap().ends_with("\nrefused\n"));
    hub.receiver.next();

    hub.receiver.will("503 Service Unavailable");
    hub.receiver.will("429 Too Many Requests\r\nRetry-After: 1");
    hub.courier.cli(&[&send[..], &["busy"]].concat()).ok();
    let keys: BTreeSet<_> =
        (0..3).map(|_| hub.receiver.next().headers["idempotency-key"].to_string()).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let sent = ended(&hub, "archive", 1);
    let delivery = outcome(&sent[0])["deliveries"][0].clone();
    assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("SENT"), &json!(3)));
    assert!(fs::read_to_string(&sent[0]).unwrap().ends_with("\nbusy\n"), "and its text");
    assert!(hub.receiver.is_quiet());
}

#[test]
fn killed_again_and_again_while_drafts_come_each_is_received_under_one_key() {
    let mut hub = MailboxCourier::open();
    let mut dice = TestRng::new();
    let kills = times("MONOCO_ROUNDS", 10);
    for round in 0..kills {
        for n in 0..2 {
            let word = format!("word-{round}-{n}");
            let draft = format!("---\nto: group:room-7\n---\n\n{word} and more");
            hub.book.draft(&hub.home, &word, &draft, "archive");
            std::thread::sleep(Duration::from_millis(dice.below(200)));
        }
        std::thread::sleep(Duration::from_millis(dice.below(400)));
        hub.restart();
    }
    hub.book.check_drafts(&hub.home, &hub.receiver);
    say(&format!("{kills} kills, {} drafts", 2 * kills));
}

/// A user edits, removes or adds drafts during the send; at most that draft is affected.
#[test]
fn what_is_done_to_drafts_by_hand_harms_no_other() {
    let mut hub = MailboxCourier::open();
    let sending = outbound(&hub).join(".sending");
    // Late enough for all of them to be posted before the first is sent.
    let (_, later) = in_seconds(20);
    let put = |hub: &MailboxCourier, word: &str, options: &str| {
        let draft = format!("---\nto: group:room-7\n{options}---\n\n{word} says hello");
        hub.book.draft(&hub.home, word, &draft, "archive");
    };
    for word in ["edited", "removed", "untouched"] {
        put(&hub, word, &format!("options: {{ schedule_at: '{later}' }}\n"));
    }
    let posted = |events: &Value| events.to_string().matches("\"posted\"").count() == 3;
    hub.courier.until("/api/v1/events?limit=1000", posted);
    let find = |word: &str| {
        let files = list(&sending).into_iter();
        files.into_iter().find(|path| name(path).contains(word)).unwrap()
    };
    fs::write(find("edited"), "---\nto: group:room-8\n---\n\nanother text").unwrap();
    fs::remove_file(find("removed")).unwrap();
    fs::write(sending.join("notes.md"), "not a draft").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", outbound(&hub).join("link.md")).unwrap();
    std::os::unix::fs::symlink(
        "/etc/passwd",
        sending.join("20260206T204500_x_0123456789abcdef.md"),
    )
    .unwrap();
    hub.restart();
    // What was posted is what is sent.
    let mut got = BTreeMap::new();
    for _ in 0..3 {
        let body = said(&hub.receiver.next());
        got.insert(body["text"].as_str().unwrap().to_owned(), body["to"].clone());
    }
    let words = ["edited", "removed", "untouched"].map(|word| format!("{word} says hello"));
    assert_eq!(got.keys().cloned().collect::<Vec<_>>(), words);
    assert!(got.values().all(|to| to == "room-7"), "{got:?}");
    hub.until(|hub| hub.has("archive/webhook", "untouched")).unwrap();
    put(&hub, "after", "");
    assert_eq!(said(&hub.receiver.next())["text"], "after says hello");
    hub.until(|hub| hub.has("archive/webhook", "after")).unwrap();
    assert!(sending.join("notes.md").exists(), "not ours");
    let dead = list(&hub.home.join("mailbox/.deadletter/webhook"));
    for path in dead.iter().chain(&list(&hub.home.join("mailbox/archive/webhook"))) {
        let about = fs::symlink_metadata(path).unwrap();
        let text = if about.is_file() { fs::read_to_string(path).unwrap() } else { String::new() };
        assert!(!text.contains("root:"), "{path:?} has what a link named");
    }
    assert!(hub.receiver.is_quiet());
}

/// The config of a courier that can't send yet, and then can.
#[test]
fn drafts_wait_for_a_courier_and_are_taken_when_it_starts() {
    let receiver = Receiver::start();
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    configure(&home, &answering(&receiver, 20));
    let send = ["mailbox", "send", "--tunnel", "ci", "--to", "group:room-7", "--text"];
    for text in ["one", "two"] {
        crate::common::cli(&home, &[&send[..], &[text]].concat(), "").ok();
    }
    let _courier = Courier::start_in(&home);
    let mut got: Vec<_> = (0..2).map(|_| said(&receiver.next())["text"].to_string()).collect();
    got.sort();
    assert_eq!(got, ["\"one\"", "\"two\""]);
}
