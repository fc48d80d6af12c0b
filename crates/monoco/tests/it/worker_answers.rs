//! Answers of external workers are matched with the attempt that they belong to.

use serde_json::{Value, json};

use crate::pipeline_harness::{Beanstalkd, PipelineCourier, mail, said, verdicts};
use crate::webhook_peer::{Receiver, SECRET};

/// Waits until a worker has had this number of rejected answers.
#[track_caller]
fn rejected(fixture: &PipelineCourier, worker: &str, count: u64) {
    fixture
        .courier
        .until("/api/v1/pipeline", |pipeline| pipeline["workers"][worker]["rejected"] == count);
}

#[test]
fn repeated_answer_of_one_worker_is_not_an_answer_of_the_next() {
    let beanstalkd = Beanstalkd::start();
    let worker = json!({"kind": "beanstalkd", "server": beanstalkd.url(), "timeout_s": 600});
    let mut fixture = PipelineCourier::open(&json!({
        "outbound": ["first", "second", "send"],
        "workers": {"first": worker, "second": worker},
    }));
    let id = fixture.post(&mail("bob@example.org", "Hello", "hello"));
    let letter = beanstalkd.take("first");
    let nonce = letter["nonce"].as_str().unwrap();
    let answer = json!({"id": id, "nonce": nonce, "result": "pass"});
    beanstalkd.answer(&answer);
    let second = beanstalkd.take("second");
    assert_ne!(second["nonce"], letter["nonce"]);

    // The same answer again, one without a nonce, and one with a nonce of the wrong type.
    beanstalkd.answer(&answer);
    beanstalkd.answer(&json!({"id": id, "result": "pass"}));
    beanstalkd.answer(&json!({"id": id, "nonce": 1, "result": "pass"}));
    rejected(&fixture, "second", 3);
    let away = fixture.letter(&id);
    assert_eq!((&away["state"], &away["worker"]), (&json!("AWAY"), &json!("second")));
    assert_eq!(away["attempts"], 1, "a rejected answer is not a failed attempt");
    assert_eq!(verdicts(&away), said(&[("first", "pass")]));
    let metrics = fixture.courier.get("/metrics").text();
    let line = "monoco_worker_letters_total{worker=\"second\",result=\"rejected\"} 3\n";
    assert!(metrics.contains(line), "{metrics}");

    // The answer to the current attempt counts, also after a restart of the courier.
    fixture.restart();
    beanstalkd.answer(&json!({"id": id, "nonce": second["nonce"], "result": "trash"}));
    let trashed = fixture.stands(&id, "TRASHED");
    assert_eq!(verdicts(&trashed), said(&[("first", "pass"), ("second", "trash")]));
}

#[test]
fn answers_without_a_nonce_are_named_in_the_failure() {
    let beanstalkd = Beanstalkd::start();
    let worker = json!({
        "kind": "beanstalkd", "server": beanstalkd.url(), "timeout_s": 1, "retries": 0,
    });
    let fixture = PipelineCourier::open(&json!({
        "outbound": ["old", "send"], "workers": {"old": worker},
    }));
    let id = fixture.post(&mail("bob@example.org", "Hello", "hello"));
    beanstalkd.take("old");
    beanstalkd.answer(&json!({"id": id, "result": "pass"}));
    let dead = fixture.stands(&id, "DEAD");
    assert!(dead["failure"].as_str().unwrap().contains("`nonce`"), "{dead:#}");
}

#[test]
fn answer_on_the_same_connection_may_omit_the_nonce_but_not_change_it() {
    let fixture = PipelineCourier::open(&json!({}));
    let script = |name: &str, edit: &str| fixture.file(name, &format!("sed '{edit}'"));
    // Both scripts insert the result; one changes the nonce and one removes it.
    let other = script("other", r#"s/"nonce":"/"result":"pass","nonce":"x/"#);
    let without = script("without", r#"s/"nonce":"[^"]*"/"result":"pass"/"#);
    let worker = |script: &str| json!({"kind": "exec", "command": ["sh", script], "retries": 0});
    fixture.reload(&json!({
        "outbound": ["without", "other", "send"],
        "workers": {"without": worker(&without), "other": worker(&other)},
    }));
    let id = fixture.post(&mail("bob@example.org", "Hello", "hello"));
    let dead = fixture.stands(&id, "DEAD");
    assert_eq!(verdicts(&dead), said(&[("without", "pass")]));
    assert!(dead["failure"].as_str().unwrap().contains("of another attempt"), "{dead:#}");
}

#[test]
fn retried_dead_letter_gets_a_new_webhook_id() {
    let receiver = Receiver::start();
    let fixture = PipelineCourier::open(&json!({
        "outbound": ["service", "send"],
        "workers": {"service": {
            "kind": "http", "url": receiver.url("/"), "secret": SECRET, "allow_private": true,
            "retries": 0,
        }},
    }));
    for _ in 0..2 {
        receiver.will("500 Internal Server Error");
    }
    let id = fixture.post(&mail("bob@example.org", "Hello", "hello"));
    let mut seen: Vec<String> = Vec::new();
    for retry in [false, true] {
        if retry {
            fixture.courier.cli(&["dead", "retry", &id]).ok();
        }
        let request = receiver.next();
        let webhook_id = request.headers["webhook-id"].as_str().unwrap().to_owned();
        let letter: Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!(webhook_id, format!("{id}.{}", letter["nonce"].as_str().unwrap()));
        assert!(!seen.contains(&webhook_id), "{webhook_id} was used before");
        seen.push(webhook_id);
        fixture.stands(&id, "DEAD");
    }
}
