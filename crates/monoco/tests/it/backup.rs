//! Backup and restore: a copy of a running courier, and what is refused.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::common::{Courier, ME, cli};
use crate::mail_checker::{MailboxCourier, list};

fn restore(home: &Path, backup: &Path, more: &[&str]) -> crate::common::Ran {
    let args = [&["restore", backup.to_str().unwrap()], more].concat();
    cli(home, &args, "")
}

#[test]
fn backup_of_a_running_courier_is_restored_completely() {
    let mut hub = MailboxCourier::open();
    let dir = tempfile::tempdir().unwrap();
    let mails: Vec<_> = (0..5).map(|n| hub.mail(&format!("m{n}"))).collect();
    let large = hub.courier.deliver(ME, &"large ".repeat(20_000));
    let msg = crate::common::chat(ME, "did:msgtunnel:bob.user.own", "not sent yet");
    hub.courier.put("/api/v1/tunnels/own", &json!({})).ok();
    let sent = hub.courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
    let delivery = sent["deliveries"][0]["record_id"].as_str().unwrap().to_owned();

    let backup = dir.path().join("backup");
    let shown = hub.courier.cli(&["backup", backup.to_str().unwrap(), "--format", "json"]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown["mails"], &shown["files"]), (&json!(5), &json!(1)), "{shown}");
    hub.mail("after the backup");

    let home = dir.path().join("restored");
    let said = restore(&home, &backup, &[]);
    assert!(said.stderr.contains("1 deliveries are HELD"), "{}", said.stderr);
    said.ok();
    let config = fs::read(hub.home.join("courier/config.yaml")).unwrap();
    assert_eq!(fs::read(home.join("courier/config.yaml")).unwrap(), config);
    let courier = Courier::start_in(&home);
    let inbound = home.join("mailbox/inbound/webhook");
    crate::common::until("the Mail files are written", || {
        inbound.exists() && list(&inbound).len() == 5
    });
    for mail in &mails {
        courier.get(&format!("/api/v1/messages/{mail}")).ok();
    }
    let record = courier.get(&format!("/api/v1/records/{large}")).ok();
    let object = courier.get(&format!("/api/v1/objects/{}", record["msg_id"].as_str().unwrap()));
    assert!(object.ok()["content"]["content"].as_str().unwrap().len() > 100_000);
    assert_eq!(courier.get(&format!("/api/v1/records/{delivery}")).ok()["state"], "HELD");
    let doctor = courier.cli(&["doctor"]);
    assert!(!doctor.stdout.contains("FAIL  store"), "{}", doctor.stdout);

    // A Mail after the restore has a number that no workspace has seen.
    let after = courier.push(&crate::webhook_peer::body("new", "new", "ann", "new"));
    after.ok();
    courier.until("/api/v1/messages?limit=1", |page| {
        page["messages"][0]["seq"].as_i64() > Some(1_000_000)
    });
}

#[test]
fn bad_backups_and_targets_are_refused() {
    let hub = MailboxCourier::open();
    let dir = tempfile::tempdir().unwrap();
    let (backup, home) = (dir.path().join("backup"), dir.path().join("home"));
    let path = backup.to_str().unwrap();

    let inside = hub.home.join("backup");
    let said = hub.courier.cli(&["backup", inside.to_str().unwrap()]).failed(1);
    assert!(said.contains("in the directory to back up"), "{said}");
    let said = cli(&home, &["backup", path], "").failed(1);
    assert!(said.contains("there is no store"), "{said}");
    hub.courier.cli(&["backup", path]).ok();
    let said = hub.courier.cli(&["backup", path]).failed(1);
    assert!(said.contains("is not empty"), "{said}");

    let said = restore(&hub.home, &backup, &[]).failed(1);
    assert!(said.contains("a courier is running"), "{said}");
    let said = restore(&home, dir.path(), &[]).failed(1);
    assert!(said.contains("not a complete backup"), "{said}");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("notes"), "mine").unwrap();
    let said = restore(&home, &backup, &[]).failed(1);
    assert!(said.contains("is not empty"), "{said}");
    fs::remove_file(home.join("notes")).unwrap();

    let db = backup.join("store/monoco.db");
    let mut bytes = fs::read(&db).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&db, &bytes).unwrap();
    let said = restore(&home, &backup, &[]).failed(1);
    assert!(said.contains("is damaged") && said.contains("nothing was restored"), "{said}");
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
    bytes[middle] ^= 1;
    fs::write(&db, &bytes).unwrap();
    restore(&home, &backup, &["--resend"]).ok();
}
