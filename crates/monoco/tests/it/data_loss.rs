//! Lost and damaged data: it is reported, and Mails are restored from their files.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Courier, cli, raw, until};
use crate::mail_checker::{MailboxCourier, Puller, list, mail_id, name};
use crate::webhook_peer::hmac_hex;

/// Changes one bit in the middle of a file.
fn flip_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn remove_store(home: &Path) {
    for name in ["monoco.db", "monoco.db-wal", "monoco.db-shm"] {
        let _ = fs::remove_file(home.join("store").join(name));
    }
}

/// Waits until the health is degraded, and returns it.
fn degraded(courier: &Courier) -> Value {
    courier.until("/health", |health| health["status"] == "degraded")
}

#[test]
fn mails_that_the_store_has_lost_are_reported_and_restored_from_files() {
    for fault in ["deleted database", "empty database", "bit in the log"] {
        let mut hub = MailboxCourier::open();
        let mails: Vec<_> = (0..12).map(|n| hub.mail(&format!("m{n}"))).collect();
        hub.book.claim(&hub.courier, &mails[0]).unwrap().ok();
        hub.book.complete(&hub.courier, &mails[0]).unwrap().ok();
        let archive = hub.home.join("mailbox/archive/webhook");
        until("the Mail is archived", || archive.exists() && list(&archive).len() == 1);
        let place = tempfile::tempdir().unwrap();
        let here = Puller::new(place.path().join("alpha"));
        here.sync(&hub.home).ok();
        hub.courier.kill();
        match fault {
            "bit in the log" => flip_bit(&hub.home.join("store/monoco.db-wal")),
            _ => remove_store(&hub.home),
        }
        if fault == "empty database" {
            fs::write(hub.home.join("store/monoco.db"), "").unwrap();
        }

        let doctor = cli(&hub.home, &["doctor"], "");
        assert_eq!(doctor.code, 1, "{fault}: {}", doctor.stdout);
        assert!(doctor.stdout.contains("Mails are not in the store"), "{}", doctor.stdout);
        hub.courier = Courier::start_in(&hub.home);
        let health = degraded(&hub.courier);
        assert!(health["mailbox"]["lost_mails"].as_u64() > Some(0), "{fault}: {health:#}");
        let doctor = hub.courier.cli(&["doctor"]);
        assert_eq!(doctor.code, 1, "{fault}");
        assert!(doctor.stdout.contains("FAIL  mailbox"), "{}", doctor.stdout);

        // A new Mail is not taken for one that the workspace has seen.
        hub.mail("new");
        here.sync(&hub.home).ok();
        let inbox = here.dir().join(".monoco/mailbox/inbox");
        let new = mail_id("new");
        let pulled = list(&inbox).iter().any(|path| name(path).contains(&new));
        assert!(pulled, "{fault}: {:?}", list(&inbox));

        let rebuilt = hub.courier.cli(&["courier", "rebuild", "--from-files", "--format", "json"]);
        let rebuilt: Value = serde_json::from_str(&rebuilt.ok()).unwrap();
        assert_eq!(rebuilt["lost"], 0, "{fault}: {rebuilt}");
        assert!(rebuilt["restored"].as_u64() > Some(0), "{fault}: {rebuilt}");
        assert_eq!(hub.courier.get("/health").ok()["status"], "ok", "{fault}");
        hub.courier.cli(&["doctor"]).ok();
        for mail in &mails {
            let path = format!("/api/v1/messages/{mail}");
            let text = hub.courier.get(&path).ok().to_string();
            assert!(text.contains("about"), "{fault}: {text}");
        }
        // The damaged log still has the Mail, and not its completion.
        let archived = usize::from(fault != "bit in the log");
        assert_eq!(list(&archive).len(), archived, "{fault}");
        // The provider repeats a message.
        hub.book.push(&hub.courier, "m5").unwrap().ok();
        let page = hub.courier.get("/api/v1/messages?limit=100").ok();
        assert_eq!(page["messages"].as_array().unwrap().len(), 13, "{fault}: no duplicate");
    }
}

#[test]
fn rebuild_from_files_works_without_a_store_and_without_a_courier() {
    let mut hub = MailboxCourier::open();
    let (intact, torn) = (hub.mail("intact"), hub.mail("torn"));
    hub.courier.kill();
    remove_store(&hub.home);
    let inbound = hub.home.join("mailbox/inbound/webhook");
    let file = list(&inbound).into_iter().find(|path| path.to_str().unwrap().contains(&torn));
    flip_bit(&file.unwrap());
    let rebuilt = cli(&hub.home, &["courier", "rebuild", "--from-files", "--format", "json"], "");
    let rebuilt: Value = serde_json::from_str(&rebuilt.ok()).unwrap();
    assert_eq!((&rebuilt["restored"], &rebuilt["lost"]), (&json!(1), &json!(1)), "{rebuilt}");
    hub.courier = Courier::start_in(&hub.home);
    hub.courier.get(&format!("/api/v1/messages/{intact}")).ok();
    assert_eq!(degraded(&hub.courier)["mailbox"]["lost_mails"], 1);
}

#[test]
fn missing_attachments_are_reported_and_restored_from_the_dropzone() {
    let mut hub = MailboxCourier::open();
    let mut message = crate::webhook_peer::body("big", "room", "ann", "see the log");
    message["attachments"] = json!([{"name": "log.txt", "base64": "bG9n"}]);
    hub.courier.push(&message).ok();
    let inbound = hub.home.join("mailbox/inbound/webhook");
    until("the Mail has a file", || inbound.exists() && list(&inbound).len() == 1);
    hub.courier.kill();
    fs::remove_dir_all(hub.home.join("store/blobs")).unwrap();

    let doctor = cli(&hub.home, &["doctor"], "");
    assert!(doctor.code == 1 && doctor.stdout.contains("1 files are missing"), "{}", doctor.stdout);
    hub.courier = Courier::start_in(&hub.home);
    let courier = &hub.courier;
    assert_eq!(degraded(courier)["storage"]["missing_files"], 1);
    courier.cli(&["courier", "rebuild", "--from-files"]).ok();
    assert_eq!(courier.get("/health").ok()["status"], "ok");
    courier.cli(&["doctor"]).ok();
}

#[test]
fn deleted_or_read_only_database_is_reported_while_the_courier_runs() {
    let mut courier = Courier::start();
    courier.deliver(crate::common::ME, "one");
    let db = courier.home().join("store/monoco.db");
    let chattr = |flag: &str| Command::new("chattr").arg(flag).arg(&db).status().unwrap();
    assert!(chattr("+i").success(), "the temporary directory must support chattr");
    let health = degraded(&courier);
    assert!(health["storage"]["detail"].to_string().contains("read-only"), "{health:#}");
    let doctor = courier.cli(&["doctor"]);
    assert!(doctor.code == 1 && doctor.stdout.contains("read-only"), "{}", doctor.stdout);
    assert!(chattr("-i").success());
    assert_eq!(courier.get("/health").ok()["status"], "ok");

    fs::rename(&db, db.with_extension("old")).unwrap();
    assert_eq!(courier.get("/health").status, 503);
    let msg = crate::common::chat("did:web:ann", crate::common::ME, "two");
    let answer = courier.post("/api/v1/dispatch", &json!({"msg": msg}));
    assert!(answer.status >= 500, "nothing is acknowledged: {}", answer.text());
    courier.kill();
}

/// Posts an event of GitHub, whose delivery id is not signed. Returns whether it is a duplicate.
fn github_event(courier: &Courier, delivery: &str) -> bool {
    let body = br#"{"zen": "Keep it logically awesome."}"#;
    let headers = [
        ("Host", "hooks.test".to_owned()),
        ("X-GitHub-Event", "ping".to_owned()),
        ("X-GitHub-Delivery", delivery.to_owned()),
        ("X-Hub-Signature-256", format!("sha256={}", hmac_hex("s3cret", body))),
    ];
    let headers = headers.map(|(name, value)| (name.to_owned(), value));
    let answer = raw(courier.webhooks(), "POST", "/webhooks/github", &headers, body);
    answer.unwrap().ok()["duplicate"].as_bool().unwrap()
}

#[test]
fn copy_of_a_request_is_still_a_duplicate_after_a_restore() {
    let tunnel = "{ provider: webhook, verify: github, secret: s3cret }";
    let config =
        format!("courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    github: {tunnel}\n");
    let mut courier = Courier::start_configured(&config);
    assert!(!github_event(&courier, "1"));
    courier.mails(1);
    let inbound = courier.home().join("mailbox/inbound/webhook");
    until("the Mail has a file", || list(&inbound).len() == 1);
    assert!(github_event(&courier, "2"), "a copy with another id");
    let dir = tempfile::tempdir().unwrap();
    let (backup, home) = (dir.path().join("backup"), dir.path().join("home"));
    courier.cli(&["backup", backup.to_str().unwrap()]).ok();

    cli(&home, &["restore", backup.to_str().unwrap()], "").ok();
    assert!(github_event(&Courier::start_in(&home), "3"), "restored from a backup");

    courier.kill();
    remove_store(courier.home());
    let courier = courier.restart();
    courier.cli(&["courier", "rebuild", "--from-files"]).ok();
    assert!(github_event(&courier, "4"), "restored from the file");
    assert_eq!(courier.mails(1).len(), 1);
}
