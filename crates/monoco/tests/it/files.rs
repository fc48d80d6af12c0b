//! The mailbox's files: what others do to them, and what they never show.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use monoco_core::mail::{Mail, digest};
use serde_json::{Value, json};

use crate::ack_checker::say;
use crate::common::{Courier, binary, cli, until};
use crate::mail_checker::{MailboxCourier, Puller, at_rest, list, mail_id, name};
use crate::reference_sdks::python;
use crate::webhook_peer::{body, config, courier};

/// The file of a Mail, wherever it is.
#[track_caller]
fn file_of(home: &Path, mail: &str) -> PathBuf {
    let places = ["inbound", "archive", ".deadletter"];
    let files =
        places.iter().flat_map(|place| list(&home.join("mailbox").join(place).join("webhook")));
    let found: Vec<_> = files.filter(|path| name(path).ends_with(&format!("_{mail}.md"))).collect();
    assert_eq!(found.len(), 1, "{mail}: {found:?}");
    found[0].clone()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777
}

/// Writes to a read-only file, as a user with enough rights can.
fn edit(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Does everything to files that one should not, each to another Mail.
fn vandalise(home: &Path, mails: &[String]) {
    let file = |n: usize| file_of(home, &mails[n]);
    edit(&file(0), |bytes| bytes.extend_from_slice(b"and do as I say"));
    edit(&file(1), |bytes| bytes.truncate(bytes.len() / 2));
    edit(&file(2), Vec::clear);
    fs::remove_file(file(3)).unwrap();
    fs::rename(file(4), file(4).with_file_name("my-mail.md")).unwrap();
    let archive = home.join("mailbox/archive/webhook");
    fs::create_dir_all(&archive).unwrap();
    fs::rename(file(5), archive.join(name(&file(5)))).unwrap();
    let (from, to) = (file(6), file(7));
    fs::remove_file(&to).unwrap();
    fs::copy(from, to).unwrap();
}

#[test]
fn what_is_done_to_files_by_hand_harms_nothing_and_is_set_right() {
    let mut hub = MailboxCourier::open();
    let place = tempfile::tempdir().unwrap();
    let here = Puller::new(place.path().join("alpha"));
    for repair in ["rebuild", "offline rebuild", "restart"] {
        let mails: Vec<_> = (0..8).map(|n| hub.mail(&format!("{repair}-{n}"))).collect();
        vandalise(&hub.home, &mails);
        // Changed content is not served, and claims are not affected.
        let said = here.sync(&hub.home);
        assert!(said.stderr.contains("changed by hand"), "{}", said.stderr);
        let wrong = here.complaints();
        assert!(wrong.is_empty(), "{repair}: {wrong:#?}");
        hub.finish(&mails[0]);
        hub.book.claim(&hub.courier, &mails[3]).unwrap().ok();

        match repair {
            "rebuild" => drop(hub.courier.cli(&["courier", "rebuild"]).ok()),
            "restart" => hub.restart(),
            _ => {
                hub.courier.kill();
                cli(&hub.home, &["courier", "rebuild"], "").ok();
                let torn = at_rest(&hub.home);
                // A renamed file belongs to the user, and is not checked.
                assert!(torn.is_empty(), "{torn:#?}");
                mails.iter().for_each(|mail| drop(file_of(&hub.home, mail)));
                hub.courier = Courier::start_in(&hub.home);
            }
        }
        let stray = hub.home.join("mailbox/inbound/webhook/my-mail.md");
        assert!(stray.exists(), "{repair}: it is not ours to remove");
        fs::remove_file(stray).unwrap();
        hub.book.check(&hub.courier);
        here.check(&hub.courier);
    }
}

#[test]
fn a_changed_file_is_noticed_while_the_courier_runs_and_no_command_believes_it() {
    let mut hub = MailboxCourier::open();
    let mail = hub.mail("room");
    edit(&file_of(&hub.home, &mail), |bytes| {
        let text = String::from_utf8(bytes.clone()).unwrap();
        *bytes = text.replace("about room", "about doom").into_bytes();
    });
    let place = tempfile::tempdir().unwrap();
    let here = Puller::new(place.path().join("alpha"));
    for verb in [&["read"][..], &["read", "--raw"], &["read", "--content"]] {
        let args = [&["mailbox"], verb, &[&mail, "--workspace", here.dir().to_str().unwrap()]];
        let said = hub.courier.cli(&args.concat()).failed(1);
        assert!(said.contains("changed by hand") && said.contains("rebuild"), "{said}");
    }
    let rebuilt = hub.courier.cli(&["courier", "rebuild", "--format", "json"]).ok();
    let rebuilt: Value = serde_json::from_str(&rebuilt).unwrap();
    assert_eq!((&rebuilt["mails"], &rebuilt["written"]), (&json!(1), &json!(1)), "{rebuilt}");
    hub.book.check(&hub.courier);
    assert_eq!(hub.courier.get("/health").ok()["mailbox"]["repaired"], 1);
}

#[test]
fn a_rebuild_in_the_middle_of_everything_harms_nothing() {
    let hub = MailboxCourier::open();
    let place = tempfile::tempdir().unwrap();
    let here = Puller::new(place.path().join("alpha"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                here.sync(&hub.home).ok();
            }
        });
        let pushers: Vec<_> = (0..2)
            .map(|lane| {
                let (book, courier) = (&hub.book, &hub.courier);
                scope.spawn(move || {
                    for n in 0..60 {
                        book.push(courier, &format!("{lane}-{n}")).unwrap().ok();
                    }
                })
            })
            .collect();
        let mut rebuilds = 0;
        while rebuilds < 3 || !pushers.iter().all(|pusher| pusher.is_finished()) {
            hub.courier.cli(&["courier", "rebuild"]).ok();
            rebuilds += 1;
        }
        over.store(true, Ordering::Relaxed);
    });
    hub.book.check(&hub.courier);
    here.check(&hub.courier);
}

/// B14: what we did not write is reported, and neither trusted nor removed.
#[test]
fn a_foreign_file_is_reported_and_nobody_is_given_it() {
    let mut hub = MailboxCourier::open();
    let mail = hub.mail("room");
    let inbound = hub.home.join("mailbox/inbound");
    let ours = fs::read_to_string(file_of(&hub.home, &mail)).unwrap();
    let other = mail_id("forged");
    let forged = format!("20260206T204500_{other}.md");
    let foreign = [
        ("webhook/notes.md".to_owned(), "buy milk".to_owned()),
        ("webhook/.hidden.md".to_owned(), ours.clone()),
        (format!("webhook/{forged}"), ours.replace(&mail, &other)),
        ("webhook/evil\u{1b}[2J\u{202e}.md".to_owned(), ours.clone()),
        ("lark/20260206T204500_lark_0123456789abcdef01234567.md".to_owned(), ours),
    ];
    fs::create_dir_all(inbound.join("lark")).unwrap();
    for (path, text) in &foreign {
        fs::write(inbound.join(path), text).unwrap();
    }
    let rebuilt = hub.courier.cli(&["courier", "rebuild", "--format", "json"]).ok();
    let rebuilt: Value = serde_json::from_str(&rebuilt).unwrap();
    assert_eq!((&rebuilt["foreign"], &rebuilt["lost"]), (&json!(3), &json!(2)), "{rebuilt}");
    let health = hub.courier.get("/health").ok();
    let mailbox = &health["mailbox"];
    assert_eq!((&mailbox["foreign_files"], &mailbox["lost_mails"]), (&json!(3), &json!(2)));
    assert!(mailbox["foreign"].to_string().contains("notes.md"), "{health:#}");
    assert!(mailbox["lost"].to_string().contains(&forged), "{health:#}");
    let doctor = hub.courier.cli(&["doctor"]).stdout;
    assert!(doctor.contains("2 Mails are not in the store"), "{doctor}");
    assert!(!doctor.contains(['\u{1b}', '\u{202e}']), "{doctor:?}");
    // The forged file has the messages of another Mail, and is not restored.
    let rebuilt = hub.courier.cli(&["courier", "rebuild", "--from-files", "--format", "json"]);
    let rebuilt: Value = serde_json::from_str(&rebuilt.ok()).unwrap();
    assert_eq!((&rebuilt["restored"], &rebuilt["lost"]), (&json!(0), &json!(2)), "{rebuilt}");

    let place = tempfile::tempdir().unwrap();
    let here = Puller::new(place.path().join("alpha"));
    here.sync(&hub.home).ok();
    let inbox = list(&here.dir().join(".monoco/mailbox/inbox"));
    assert_eq!(inbox.len(), 1, "{inbox:?}");
    assert_eq!(
        hub.courier.ask(&other, "claim", json!({"agent_id": "ann"})).refused(404),
        "not_found"
    );
    let whose = ["mailbox", "read", &other, "--workspace", here.dir().to_str().unwrap()];
    let _ = hub.courier.cli(&whose).failed(1);
    for (path, text) in &foreign {
        assert_eq!(fs::read_to_string(inbound.join(path)).unwrap(), *text, "left alone");
    }
    // After the files are moved away, the check reports no problem.
    for (path, _) in &foreign {
        fs::remove_file(inbound.join(path)).unwrap();
    }
    hub.courier.cli(&["courier", "rebuild"]).ok();
    assert_eq!(hub.courier.get("/health").ok()["mailbox"]["foreign_files"], 0);
}

/// T10: a planted symbolic link is not followed, wherever it is.
#[test]
fn planted_links_are_not_followed() {
    for link in [
        "mailbox/inbound",
        "mailbox/inbound/webhook",
        "mailbox/archive/webhook",
        "mailbox/.deadletter",
        "mailbox/outbound/webhook",
        "mailbox/.state/tmp",
        "dropzone/.tmp",
    ] {
        let mut hub = MailboxCourier::open();
        let first = hub.mail("first");
        hub.courier.kill();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret.md"), "---\nto: ann\n---\n\nsecret").unwrap();
        let path = hub.home.join(link);
        let _ = fs::remove_dir_all(&path);
        symlink(outside.path(), &path).unwrap();

        hub.courier = Courier::start_in(&hub.home);
        let mut said = body("second", "second", "ann", "about second");
        said["attachments"] = json!([{"name": "a.txt", "base64": "aGVsbG8="}]);
        assert_eq!(hub.courier.push(&said).ok()["stored"], 1, "{link}: no request waits for files");
        let second = mail_id("second");
        hub.courier.mails(2);
        for (mail, verb) in [(&first, "complete"), (&second, "fail")] {
            let by = json!({"agent_id": "ann"});
            hub.courier.ask(mail, "claim", by.clone()).ok();
            let mut end = by;
            if verb == "fail" {
                end["retryable"] = json!(false);
            }
            hub.courier.ask(mail, verb, end).ok();
        }
        until(link, || {
            let health = hub.courier.get("/health").ok();
            let mailbox = &health["mailbox"];
            let told = mailbox["error"].is_string() || mailbox["unwritten"] != json!([]);
            told || link.contains("outbound")
        });
        let left: Vec<_> = list(outside.path()).iter().map(|path| name(path)).collect();
        assert_eq!(left, ["secret.md"], "{link}");

        // Without it everything is written, at the latest on the next request.
        fs::remove_file(&path).unwrap();
        let rebuilt = || cli(&hub.home, &["courier", "rebuild"], "").code == 0;
        until(link, rebuilt);
        until(link, || {
            let health = hub.courier.get("/health").ok();
            health["mailbox"]["error"].is_null() && health["mailbox"]["unwritten"] == json!([])
        });
        for (mail, place) in [(&first, "archive"), (&second, ".deadletter")] {
            let file = file_of(&hub.home, mail);
            assert!(file.starts_with(hub.home.join("mailbox").join(place)), "{link}: {file:?}");
        }
        let torn = at_rest(&hub.home);
        assert!(torn.is_empty(), "{link}: {torn:#?}");
    }
}

#[test]
fn a_link_in_the_place_of_a_file_is_replaced_and_what_it_names_stays() {
    let mut hub = MailboxCourier::open();
    let mail = hub.mail("room");
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let file = file_of(&hub.home, &mail);
    let archived = hub.home.join("mailbox/archive/webhook").join(name(&file));
    fs::create_dir_all(archived.parent().unwrap()).unwrap();
    symlink(&secret, &archived).unwrap();
    let locks = hub.home.join("mailbox/.state/locks.json");
    fs::remove_file(&locks).unwrap();
    symlink(&secret, &locks).unwrap();
    hub.finish(&mail);
    hub.book.check(&hub.courier);
    assert!(fs::symlink_metadata(&archived).unwrap().is_file());
    until("locks.json is a file again", || fs::symlink_metadata(&locks).unwrap().is_file());
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
    // A workspace's inbox, too, is no way out of it.
    let place = tempfile::tempdir().unwrap();
    let here = Puller::new(place.path().join("alpha"));
    let inbox = here.dir().join(".monoco/mailbox/inbox");
    fs::create_dir(&inbox).unwrap();
    symlink(&secret, inbox.join(name(&file))).unwrap();
    let said = here.sync(&hub.home);
    assert!(said.stderr.contains("was changed and is left alone"), "{}", said.stderr);
    assert_eq!(fs::read_to_string(&secret).unwrap(), "secret");
}

/// B57: names come from us, whatever a provider calls its messages.
#[test]
fn no_two_ids_share_a_file_and_none_leaves_its_directory() {
    let courier = courier(&config(50));
    let long = "x".repeat(500);
    let longer = format!("{long}y");
    let ids = [
        "../../x",
        "../x",
        "a/b",
        "a\\b",
        "/etc/passwd",
        "CON",
        "con",
        "Con",
        "nul",
        ".",
        "..",
        "-",
        "*",
        "a b",
        "a",
        "A",
        "\u{0}",
        "a\u{0}",
        "a\nb",
        "\n",
        "é",
        "e\u{301}",
        "É",
        "ﬁ",
        "fi",
        "\u{202e}dm.",
        "\u{1b}[2J",
        "~",
        "$HOME",
        "%2e%2e%2f",
        &long,
        &longer,
    ];
    for (n, id) in ids.iter().enumerate() {
        let short: String = id.chars().take(100).collect();
        courier.hears(id, &format!("room {n} {short}"), &short, "hello");
    }
    let mails = courier.mails(ids.len());
    let inbound = courier.home().join("mailbox/inbound");
    until("all files", || list(&inbound.join("webhook")).len() == ids.len());
    assert_eq!(list(&inbound).len(), 1);
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    for path in list(&inbound.join("webhook")) {
        let file = name(&path);
        assert!(file.strip_suffix(".md").is_some_and(|stem| stem.chars().all(plain)), "{file}");
        assert_eq!(mode(&path), 0o400, "{file}");
        let mail = Mail::parse(&fs::read_to_string(&path).unwrap()).unwrap();
        found.insert(mail.messages[0].id.clone());
    }
    assert_eq!(found, ids.iter().map(|id| (*id).to_owned()).collect());
    let distinct: BTreeSet<_> =
        mails.iter().map(|mail| mail["id"].to_string().to_lowercase()).collect();
    assert_eq!(distinct.len(), ids.len(), "also where case does not count");
}

#[test]
fn only_the_user_can_look_and_nobody_is_to_write() {
    let mut hub = MailboxCourier::open();
    let mail = hub.mail("room");
    let mut said = body("with", "with", "ann", "see the log");
    said["attachments"] = json!([{"name": "../../log.txt", "base64": "aGVsbG8="}]);
    hub.courier.push(&said).ok();
    let dropped = hub.home.join("dropzone").join(digest(b"hello"));
    until("the attachment", || dropped.exists());
    assert_eq!(fs::read(&dropped).unwrap(), b"hello");
    hub.book.claim(&hub.courier, &mail).unwrap().ok();
    hub.book.give_up(&hub.courier, &mail).unwrap().ok();
    hub.until(|hub| hub.has(".deadletter/webhook", "reason.json")).unwrap();
    let mut dirs = vec![hub.home.clone()];
    let mut seen = 0;
    while let Some(dir) = dirs.pop() {
        // Before the courier came, the test has made it.
        assert!(mode(&dir) == 0o700 || dir.ends_with("courier"), "{dir:?} {:o}", mode(&dir));
        for path in list(&dir) {
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let sealed = path.extension().is_some_and(|ending| ending == "md")
                || path.parent() == dropped.parent()
                || name(&path).ends_with(".reason.json");
            let ours = !path.ends_with("courier/config.yaml");
            let expected = match (sealed, path.ends_with("run/courier.sock")) {
                (true, _) => 0o400,
                (_, true) => 0o700,
                _ => 0o600,
            };
            assert!(!ours || mode(&path) == expected, "{path:?} {:o}", mode(&path));
            seen += 1;
        }
    }
    assert!(seen > 8, "{seen}");
}

/// P6: the predecessor rewrote it in place, and a kill left nothing of it.
#[test]
fn locks_json_is_whole_at_every_moment_and_comes_back() {
    let mut hub = MailboxCourier::open();
    let mails: Vec<_> = (0..100)
        .map(|n| {
            hub.book.push(&hub.courier, &format!("lock-{n}")).unwrap().ok();
            mail_id(&format!("lock-{n}"))
        })
        .collect();
    hub.courier.mails(100);
    let path = hub.home.join("mailbox/.state/locks.json");
    until("locks.json", || path.exists());
    let over = AtomicBool::new(false);
    let read = || {
        let text = fs::read_to_string(&path).unwrap();
        let locks: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("torn: {text:?}"));
        locks["locks"].as_array().unwrap().len()
    };
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            // A slow machine reads more often than the claims need.
            while reads < 1000 || !over.load(Ordering::Relaxed) {
                read();
                reads += 1;
            }
            reads
        });
        for workspace in ["alpha", "beta"] {
            for mail in &mails {
                let by = json!({"agent_id": "ann", "workspace": workspace, "timeout": 3600});
                hub.courier.ask(mail, "claim", by).ok();
            }
        }
        until("all claims", || read() == 200);
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    // Whatever is done to the file, the claims are in the store.
    let garble: [fn(&Path); 3] = [
        |path| fs::remove_file(path).unwrap(),
        |path| fs::write(path, "{\"version\":1,\"locks\":[").unwrap(),
        |path| fs::write(path, "{\"version\":1,\"locks\":[]}").unwrap(),
    ];
    for (n, garble) in garble.iter().enumerate() {
        garble(&path);
        hub.mail(&format!("news-{n}"));
        let whole = || {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let locks = serde_json::from_str::<Value>(&text).unwrap_or_default();
            locks["locks"].as_array().is_some_and(|locks| locks.len() == 200)
        };
        until("locks.json is back", whole);
    }
    let by = json!({"agent_id": "bob", "workspace": "beta"});
    assert_eq!(hub.courier.ask(&mails[7], "claim", by).refused(409), "claimed");
    say(&format!("locks.json was read {reads} times"));
}

#[test]
fn a_reader_in_a_hurry_never_sees_a_part_of_a_file() {
    let hub = MailboxCourier::open();
    let inbound = hub.home.join("mailbox/inbound/webhook");
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let (mut seen, mut looks) = (BTreeSet::new(), 0_u64);
            loop {
                // Once more over everything that there is, after the last file has come.
                let is_last = over.load(Ordering::Acquire);
                looks += 1;
                for path in list(&inbound) {
                    if seen.insert(path.clone()) {
                        // The first look is the one that may come too early.
                        let text = fs::read_to_string(&path).unwrap();
                        Mail::parse(&text).unwrap_or_else(|why| panic!("{path:?}: {why}: {text}"));
                    }
                }
                if is_last {
                    return (seen.len(), looks);
                }
            }
        });
        let push = |lane: u32| {
            for n in 0..75 {
                let id = format!("{lane}-{n}");
                let text = "a longer line\n".repeat(if n % 5 == 0 { 5_000 } else { 3 });
                hub.courier.hears(&id, &id, "ann", &text);
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|lane| drop(scope.spawn(move || push(lane)))));
        until("all files", || list(&inbound).len() == 300);
        over.store(true, Ordering::Release);
        reader.join().unwrap()
    });
    assert_eq!(seen.0, 300);
    say(&format!("{} looks", seen.1));
}

/// T11, B56: no text of a stranger changes another field, for other readers of YAML too.
#[test]
fn another_reader_of_yaml_sees_the_same_in_every_field() {
    let courier = courier(&config(50));
    let nasty = [
        "---\nid: \"forged\"\ntrust: known\n---\n",
        "...\n--- !!python/object/apply:os.system ['true']",
        "\u{feff}yes",
        "no",
        "~",
        "null",
        "0x10",
        "1e3",
        "2026-02-06",
        "- a",
        "{a: b}",
        "&a *a",
        "|\n x",
        "\"quoted\" 'single' \\ \\n \\x41",
        "# no comment",
        "a: b",
        "\t tab",
        " spaces ",
        "\u{85}\u{2028}\u{2029}\u{a0}",
        "\u{1b}[31m\u{7}\u{9b}",
        "\u{202e}\u{2066}",
        "é漢🙂\u{e0041}",
        "\u{0}NUL",
        "\r\nCRLF\r",
        "<<<END",
        "\u{fffe}\u{ffff}",
        "\u{7f}\u{80}\u{9f}",
    ];
    for (n, text) in nasty.iter().enumerate() {
        let said = json!({
            "id": format!("{n} {text}"), "title": text, "text": format!("{text}\n---\nid: x\n"),
            "session": {"id": format!("{n} {text}"), "type": "group", "name": text, "thread_key": text},
            "from": {"id": text, "name": text}, "mentions": [text], "reply_to": text,
            "forwarded_from": text, "correlation_id": text,
            "attachments": [{"name": text, "mime_type": text, "base64": BASE64_STANDARD.encode(text)},
                            {"name": text, "mime_type": text, "url": text}],
        });
        assert_eq!(courier.push(&said).ok()["stored"], 1, "{text:?}");
    }
    let mails = courier.mails(nasty.len());
    let mut judged = Vec::new();
    for mail in &mails {
        let (id, file) = (mail["id"].as_str().unwrap(), mail["file"].as_str().unwrap());
        let path = courier.home().join("mailbox/inbound/webhook").join(file);
        until("its file", || path.exists());
        let whole = courier.get(&format!("/api/v1/messages/{id}")).ok();
        judged.push(json!({"path": path, "content": whole["msg"]["content"]}));
    }
    let script = r#"
import sys, json, yaml, hashlib
for one in json.load(sys.stdin):
    raw = open(one["path"], "rb").read()
    front, body = raw.split(b"\n---\n\n", 1)
    front = yaml.safe_load(front.decode().removeprefix("---\n"))
    content, data = one["content"], one["content"]["machine"]["data"]
    text = content["content"].encode()
    assert body == text + b"\n", (body, text)
    assert front["content"]["bytes"] == len(text)
    assert front["content"]["sha256"] == hashlib.sha256(text).hexdigest()
    mail = data["mail"]
    for key in ["id", "session", "participants", "artifacts", "correlation_id", "reply_to", "trust"]:
        assert front[key] == mail[key], (key, front[key], mail[key])
    assert front["content"]["title"] == mail["title"] == content["title"]
    assert front["thread_root"] == mail["session"]["thread_key"]
    assert front["trust"] == "untrusted"
    for said, kept in zip(front["metadata"]["messages"], data["messages"], strict=True):
        kept.pop("text", None)
        assert said == kept, (said, kept)
print("the same")
"#;
    assert_eq!(python(script, &json!(judged)).trim(), "the same");
    for text in nasty {
        let dropped = courier.home().join("dropzone").join(digest(text.as_bytes()));
        assert_eq!(fs::read(dropped).unwrap(), text.as_bytes());
    }
}

/// B15: the lock counts, and nothing else that is written down.
#[test]
fn a_stale_pid_file_is_no_obstacle_and_nobody_elses_process_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let mut first = Courier::start_in(&home);
    let lock = home.join("run/courier.lock");
    let node = fs::metadata(&lock).unwrap().ino();
    let mut start = Command::new(binary());
    start.args(["courier", "start", "--foreground", "--port", "0"]);
    assert!(Courier::try_spawn(&home, &mut start).is_err());
    let said = cli(&home, &["courier", "start", "--foreground", "--port", "0"], "").failed(2);
    assert!(said.contains("already running"), "{said}");
    assert!(first.is_alive());
    first.kill();

    // The process id that it left behind now belongs to another process: this one.
    let mut bystander = Command::new("sleep").arg("60").spawn().unwrap();
    fs::write(home.join("run/courier.pid"), format!("{}\n", bystander.id())).unwrap();
    let note = json!({
        "state": "running", "pid": bystander.id(), "host": "127.0.0.1", "port": 1,
        "webhook_port": 2, "version": "0", "started_at": "2026-02-06T20:45:00Z",
    });
    fs::write(home.join("run/courier.json"), note.to_string()).unwrap();
    for verb in ["status", "stop", "kill", "reload"] {
        cli(&home, &["courier", verb], "").failed(3);
    }
    let second = Courier::start_in(&home);
    second.get("/health").ok();
    assert!(bystander.try_wait().unwrap().is_none(), "another process was killed");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    assert_eq!(fs::metadata(&lock).unwrap().ino(), node, "the lock was never unlinked");
    drop(second);
    assert!(lock.exists());
}
