//! Runs the scripts in `tests/attacks`: each attacks a user of a running courier, and exits
//! with 1 when it has done damage.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{binary, until};
use crate::mail_checker::{list, name};
use crate::webhook_peer::{config, courier};

#[test]
fn links_and_pipes_of_a_hostile_repository_do_no_damage() {
    let courier = courier(&config(50));
    let id = courier.mail("room-1");
    let inbound = courier.home().join("mailbox/inbound/webhook");
    until("the file of the Mail", || !list(&inbound).is_empty());
    let index = courier.home().join("mailbox/.state/mails.jsonl");
    until("the index", || fs::read_to_string(&index).is_ok_and(|text| text.contains(&id)));
    let scratch = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attacks/hostile_repository.sh");
    let output = Command::new("sh")
        .arg(script)
        .env("MONOCO", binary())
        .env("MONOCO_HOME", courier.home())
        .env("MAIL_ID", &id)
        .env("MAIL_FILE", name(&list(&inbound)[0]))
        .env("SCRATCH", scratch.path())
        .env("HOME", scratch.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
