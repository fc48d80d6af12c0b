//! The commands of docs/operations.md and docs/upgrade.md, run as they are written.

use std::fs;
use std::process::Command;

use crate::common::binary;
use crate::tour::blocks;

const OPERATIONS: &str = include_str!("../../../../docs/operations.md");
const UPGRADE: &str = include_str!("../../../../docs/upgrade.md");

#[test]
fn documented_operations_work_when_pasted() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path();
    fs::create_dir_all(home.join(".monoco/courier")).unwrap();
    fs::create_dir_all(home.join(".local/bin")).unwrap();
    fs::create_dir_all(home.join("backups")).unwrap();
    fs::copy(binary(), home.join("monoco-new")).unwrap();
    let config = "courier:\n  service: { port: 0, webhook_port: 0 }\n";
    fs::write(home.join(".monoco/courier/config.yaml"), config).unwrap();

    let documented = [blocks(OPERATIONS, "sh run"), blocks(UPGRADE, "sh run")].concat();
    assert!(documented.len() >= 5, "{documented:?}");
    let stop = "for h in ~/.monoco ~/.monoco-restored ~/.monoco-new; do
                  monoco --home $h courier kill 2>/dev/null || true; done";
    let script = format!(
        "set -eu\ntrap '{stop}' EXIT\ncd ~\nchmod 700 .monoco\nmonoco courier start\n{}",
        documented.concat().replace("/mnt/backups", home.join("backups").to_str().unwrap())
    );
    let bin = binary().parent().unwrap().to_str().unwrap();
    let path = format!("{}/.local/bin:{bin}:/usr/bin:/bin", home.display());
    let ran = Command::new("timeout")
        .args(["300", "bash", "-c", &script])
        .env_clear()
        .env("HOME", home)
        .env("PATH", path)
        .output()
        .unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stdout}\n{stderr}");
    for written in ["monoco-2026-02-06/backup.json", "monoco-before-upgrade/backup.json"] {
        assert!(home.join("backups").join(written).exists(), "{written}\n{stdout}\n{stderr}");
    }
}
