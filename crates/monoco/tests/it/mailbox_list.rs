//! `mailbox list`: all Mails, Mails without a workspace, search, limits and width.

use serde_json::Value;

use crate::mailbox_run::Worker;

/// Runs a command outside any workspace.
fn outside(worker: &Worker, args: &str) -> (String, String) {
    let dir = worker.user.path("elsewhere");
    std::fs::create_dir_all(&dir).unwrap();
    let ran = worker.user.types(&dir, args);
    assert_eq!(ran.code, 0, "{args}: {}", ran.stderr);
    (ran.stdout, ran.stderr)
}

#[test]
fn all_mails_are_listed_outside_a_workspace_with_and_without_the_courier() {
    let worker = Worker::new();
    let ids = ["one", "two", "three"].map(|session| worker.mail(session));
    let without = worker.user.types(&worker.user.path("."), "mailbox list");
    assert!(without.failed(1).contains("list --global"));
    for round in ["running", "stopped"] {
        let (all, _) = outside(&worker, "mailbox list --global --format id");
        let listed: Vec<_> = all.lines().collect();
        assert_eq!(listed, [&*ids[2], &ids[1], &ids[0]], "{round}");
        let (found, _) = outside(&worker, "mailbox list --global --search three\u{a0}TWO");
        assert_eq!(found, "", "{round}");
        let (found, _) = outside(&worker, "mailbox list --global --search tw* --format id");
        assert_eq!(found.trim(), ids[1], "{round}");
        let (found, _) = outside(&worker, "mailbox list --global --search T\u{77}O --format id");
        assert_eq!(found.trim(), ids[1], "{round}");
        let (part, said) = outside(&worker, "mailbox list --global --limit 1");
        assert!(part.contains("about three") && !part.contains("about two"), "{part}");
        assert!(said.contains("showing 1 of 3 Mails; use --limit or --all"), "{said}");
        let (part, said) = outside(&worker, "mailbox list --global --search about --limit 2");
        assert!(part.contains("about two") && said.contains("showing the newest 2"), "{said}");
        let here = worker.user.types(&worker.workspace, "mailbox list --limit 2 --format json");
        let json: Value = serde_json::from_str(&here.ok()).unwrap();
        assert_eq!((&json["has_more"], &json["total"]), (&Value::from(true), &Value::from(3)));
        if round == "running" {
            worker.user.types(&worker.workspace, "courier stop").ok();
        }
    }
}

#[test]
fn unrouted_mails_were_neither_pulled_nor_claimed() {
    let worker = Worker::new();
    let pulled = worker.mail("pulled");
    let unrouted = || {
        let (ids, _) = outside(&worker, "mailbox list --unrouted --format id");
        ids.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(unrouted(), [""; 0], "{pulled} has a link in the workspace");
    let filters = "mailbox: {filters: [{type: tunnel, value: other}]}";
    let other = worker.user.workspace("beta", filters);
    worker.user.curl(&crate::webhook_peer::body("late", "late", "bob", "nobody reads this"));
    let all = worker
        .user
        .until(&other, "mailbox list --global --format id", |ids| ids.lines().count() == 2);
    worker.user.types(&other, "mailbox sync").ok();
    let late = all.lines().next().unwrap();
    assert_eq!(unrouted(), [late], "no filter of beta matches");
    worker.user.types(&other, &format!("mailbox claim {late} --shared")).ok();
    worker.user.until(&other, "mailbox list --unrouted --format id", str::is_empty);
    // The filter by tunnel pulls it after a change.
    std::fs::write(
        other.join(".monoco/mailbox/config.yaml"),
        "mailbox: {filters: [{type: tunnel, value: ci}]}",
    )
    .unwrap();
    let synced = worker.user.types(&other, "mailbox sync --full").ok();
    assert!(synced.contains("pulled 2"), "{synced}");
}

#[test]
fn table_fits_80_columns_and_its_ids_are_accepted() {
    let worker = Worker::new();
    let long = "x".repeat(70);
    let id = worker.mail(&format!("a session with a long name {long}"));
    let table = worker.user.types(&worker.workspace, "mailbox list").ok();
    assert_eq!(table.lines().count(), 2, "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    assert!(!table.contains('\u{1b}'), "no colour in a pipe: {table:?}");
    let short = table.lines().nth(1).unwrap().split(' ').next().unwrap();
    assert!(id.starts_with(short) && short.len() < id.len(), "{table}");
    let shown = worker.user.types(&worker.workspace, &format!("mailbox read {short} --format id"));
    assert_eq!(shown.ok().trim(), id);
    let explained = worker.user.types(&worker.workspace, &format!("mailbox explain {short}"));
    assert!(explained.ok().contains(&id));
}
