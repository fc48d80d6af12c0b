//! Lost and damaged data: it is reported, and Mails are restored from their files.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Courier, cli, until};
use crate::mail_checker::{Office, Puller, list, mail_id, name};

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
        let mut office = Office::open();
        let mails: Vec<_> = (0..12).map(|n| office.mail(&format!("m{n}"))).collect();
        office.book.claim(&office.courier, &mails[0]).unwrap().ok();
        office.book.complete(&office.courier, &mails[0]).unwrap().ok();
        let archive = office.home.join("mailbox/archive/webhook");
        until("the Mail is archived", || archive.exists() && list(&archive).len() == 1);
        let place = tempfile::tempdir().unwrap();
        let here = Puller::new(place.path().join("alpha"));
        here.sync(&office.home).ok();
        office.courier.kill();
        match fault {
            "bit in the log" => flip_bit(&office.home.join("store/monoco.db-wal")),
            _ => remove_store(&office.home),
        }
        if fault == "empty database" {
            fs::write(office.home.join("store/monoco.db"), "").unwrap();
        }

        let doctor = cli(&office.home, &["doctor"], "");
        assert_eq!(doctor.code, 1, "{fault}: {}", doctor.stdout);
        assert!(doctor.stdout.contains("Mails are not in the store"), "{}", doctor.stdout);
        office.courier = Courier::start_in(&office.home);
        let health = degraded(&office.courier);
        assert!(health["mailbox"]["lost_mails"].as_u64() > Some(0), "{fault}: {health:#}");
        let doctor = office.courier.cli(&["doctor"]);
        assert_eq!(doctor.code, 1, "{fault}");
        assert!(doctor.stdout.contains("FAIL  mailbox"), "{}", doctor.stdout);

        // A new Mail is not taken for one that the workspace has seen.
        office.mail("new");
        here.sync(&office.home).ok();
        let inbox = here.dir().join(".monoco/mailbox/inbox");
        let new = mail_id("new");
        let pulled = list(&inbox).iter().any(|path| name(path).contains(&new));
        assert!(pulled, "{fault}: {:?}", list(&inbox));

        let rebuilt =
            office.courier.cli(&["courier", "rebuild", "--from-files", "--format", "json"]);
        let rebuilt: Value = serde_json::from_str(&rebuilt.ok()).unwrap();
        assert_eq!(rebuilt["lost"], 0, "{fault}: {rebuilt}");
        assert!(rebuilt["restored"].as_u64() > Some(0), "{fault}: {rebuilt}");
        assert_eq!(office.courier.get("/health").ok()["status"], "ok", "{fault}");
        office.courier.cli(&["doctor"]).ok();
        for mail in &mails {
            let path = format!("/api/v1/messages/{mail}");
            let text = office.courier.get(&path).ok().to_string();
            assert!(text.contains("about"), "{fault}: {text}");
        }
        // The damaged log still has the Mail, and not its completion.
        let archived = usize::from(fault != "bit in the log");
        assert_eq!(list(&archive).len(), archived, "{fault}");
        // The provider repeats a message.
        office.book.push(&office.courier, "m5").unwrap().ok();
        let page = office.courier.get("/api/v1/messages?limit=100").ok();
        assert_eq!(page["messages"].as_array().unwrap().len(), 13, "{fault}: no duplicate");
    }
}

#[test]
fn rebuild_from_files_works_without_a_store_and_without_a_courier() {
    let mut office = Office::open();
    let (intact, torn) = (office.mail("intact"), office.mail("torn"));
    office.courier.kill();
    remove_store(&office.home);
    let inbound = office.home.join("mailbox/inbound/webhook");
    let file = list(&inbound).into_iter().find(|path| path.to_str().unwrap().contains(&torn));
    flip_bit(&file.unwrap());
    let rebuilt =
        cli(&office.home, &["courier", "rebuild", "--from-files", "--format", "json"], "");
    let rebuilt: Value = serde_json::from_str(&rebuilt.ok()).unwrap();
    assert_eq!((&rebuilt["restored"], &rebuilt["lost"]), (&json!(1), &json!(1)), "{rebuilt}");
    office.courier = Courier::start_in(&office.home);
    office.courier.get(&format!("/api/v1/messages/{intact}")).ok();
    assert_eq!(degraded(&office.courier)["mailbox"]["lost_mails"], 1);
}

#[test]
fn missing_attachments_are_reported_and_restored_from_the_dropzone() {
    let mut office = Office::open();
    let mut message = crate::webhook_peer::body("big", "room", "ann", "see the log");
    message["attachments"] = json!([{"name": "log.txt", "base64": "bG9n"}]);
    office.courier.push(&message).ok();
    let inbound = office.home.join("mailbox/inbound/webhook");
    until("the Mail has a file", || inbound.exists() && list(&inbound).len() == 1);
    office.courier.kill();
    fs::remove_dir_all(office.home.join("store/blobs")).unwrap();

    let doctor = cli(&office.home, &["doctor"], "");
    assert!(doctor.code == 1 && doctor.stdout.contains("1 files are missing"), "{}", doctor.stdout);
    office.courier = Courier::start_in(&office.home);
    let courier = &office.courier;
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
