//! One list of dead letters: everything that failed is in it, and all places count alike.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::PATIENCE;
use crate::pipeline_harness::{PipelineCourier, mail};

/// Waits until the list has these kinds, and returns the ids in the same order.
#[track_caller]
fn dead(fixture: &PipelineCourier, kinds: &[&str]) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let list = fixture.courier.cli(&["dead", "list", "--format", "json"]).ok();
        let list: Value = serde_json::from_str(&list).unwrap();
        let mut rows: Vec<_> = list["dead"].as_array().unwrap().iter().collect();
        rows.sort_by_key(|row| row["kind"].as_str().unwrap());
        if rows.iter().map(|row| &row["kind"]).eq(kinds) {
            assert!(rows.iter().all(|row| row["cause"].is_string()), "{list:#}");
            return rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
        }
        assert!(Instant::now() < deadline, "want {kinds:?}: {list:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Checks all places that count dead letters.
#[track_caller]
fn counted(fixture: &PipelineCourier, letters: i64, drafts: i64) {
    let (courier, total) = (&fixture.courier, letters + drafts);
    let want = json!({
        "claims": 0, "deliveries": 0, "letters": letters, "drafts": drafts, "tasks": 0,
        "total": total,
    });
    assert_eq!(courier.get("/health").ok()["dead"], want);
    let status = courier.cli(&["courier", "status", "--json"]).ok();
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!(status["dead"], want);
    let metrics = courier.get("/metrics").text();
    let counts =
        [("claim", 0), ("delivery", 0), ("letter", letters), ("draft", drafts), ("task", 0)];
    for (kind, count) in counts {
        let line = format!("monoco_dead_letters{{kind=\"{kind}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let doctor = courier.cli(&["doctor", "--format", "json"]).ok();
    let doctor: Value = serde_json::from_str(&doctor).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == "dead letters").unwrap();
    let shown = if total == 0 { "none".to_owned() } else { total.to_string() };
    assert_eq!(check["detail"], shown);
}

fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

#[test]
fn dead_drafts_are_listed_counted_retried_and_dropped() {
    let fixture = PipelineCourier::open(&json!({
        "outbound": ["broken", "send"],
        "workers": {"broken": {"kind": "exec", "command": ["sh", "-c", "exit 1"], "retries": 0}},
    }));
    let courier = &fixture.courier;
    dead(&fixture, &[]);
    counted(&fixture, 0, 0);
    let mailbox = fixture.home().join("mailbox");
    let outbound = mailbox.join("outbound/webhook");
    fs::create_dir_all(&outbound).unwrap();
    fs::write(outbound.join("notice.md"), "this is not a draft\n").unwrap();
    let letter = fixture.post(&mail("bob@example.org", "Hello", "hello"));
    let ids = dead(&fixture, &["draft", "letter"]);
    assert_eq!(ids[1], letter);
    counted(&fixture, 1, 1);

    let draft = &ids[0];
    assert!(draft.contains("_notice_"), "{draft}");
    let shown = courier.cli(&["dead", "show", draft, "--format", "json"]).ok();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let text = fs::read_to_string(shown["file"].as_str().unwrap()).unwrap();
    assert_eq!(text, "this is not a draft\n");
    assert!(courier.cli(&["dead", "list"]).ok().contains(shown["reason"].as_str().unwrap()));

    // It is picked up again, and is as invalid as before.
    courier.cli(&["dead", "retry", draft]).ok();
    let deadline = Instant::now() + PATIENCE;
    let retried = loop {
        let list: Value = courier.get("/api/v1/dead").ok();
        match list["drafts"].as_array().unwrap().as_slice() {
            [new] if new["id"] != *draft => break new["id"].as_str().unwrap().to_owned(),
            _ => assert!(Instant::now() < deadline, "{list:#}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(retried.contains("_notice_"), "{retried}");
    counted(&fixture, 1, 1);
    let left = files(&mailbox.join(".deadletter/webhook"));
    assert_eq!(left.len(), 2, "the draft and its reason: {left:?}");
    let again = courier.cli(&["dead", "retry", draft]);
    assert_eq!(again.code, 1, "{again:?}");
    assert_eq!(courier.post(&format!("/api/v1/drafts/{draft}/retry"), &json!({})).status, 404);

    courier.cli(&["dead", "drop", &retried]).ok();
    assert_eq!(dead(&fixture, &["letter"]), [letter]);
    counted(&fixture, 1, 0);
    assert_eq!(files(&mailbox.join(".deadletter/webhook")), Vec::<String>::new());
    let archived = fs::read_to_string(mailbox.join(format!("archive/webhook/{retried}.md")));
    let outcome = monoco_core::draft::outcome(&archived.unwrap()).unwrap();
    assert_eq!(outcome["dropped"], true);
}

#[test]
fn dead_drafts_are_counted_after_a_restart() {
    let mut fixture = PipelineCourier::open(&json!({}));
    let outbound = fixture.home().join("mailbox/outbound/webhook");
    fs::create_dir_all(&outbound).unwrap();
    fs::write(outbound.join("notice.md"), "this is not a draft\n").unwrap();
    dead(&fixture, &["draft"]);
    fixture.restart();
    fixture.courier.until("/health", |health| health["dead"]["drafts"] == 1);
    counted(&fixture, 0, 1);
}
