//! `monoco pipeline try`: one worker of the config with one letter, without a courier.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::common::binary;
use crate::pipeline_harness::{Beanstalkd, PipelineCourier, Python, mail};
use crate::webhook_peer::configure;

fn try_worker(home: &Path, worker: &str, letter: &Value) -> Output {
    let mut command = Command::new(binary());
    command.args(["pipeline", "try", worker, "--format", "json"]).env("MONOCO_HOME", home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(letter.to_string().as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Tries a worker that gives a verdict.
#[track_caller]
fn verdict(home: &Path, worker: &str, letter: &Value) -> Value {
    let output = try_worker(home, worker, letter);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn workers_are_tried_without_a_courier() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    let shouts =
        r#"echo "reading" >&2; sed 's/^{/{"result":"pass","note":"louder",/; s/hello/HELLO/'"#;
    let script = dir.path().join("shout.sh");
    std::fs::write(&script, shouts).unwrap();
    let config = json!({"courier": {"pipeline": {
        "outbound": ["spam", "subject", "shout", "broken", "missing", "send"],
        "workers": {
            "spam": {"threshold": 5, "rules": [{"name": "casino", "text": "casino", "score": 5}]},
            "subject": {"template": "[Team] {subject}"},
            "shout": {"kind": "exec", "command": ["sh", script]},
            "broken": {"kind": "exec", "command": ["sh", "-c", "echo oh dear >&2; exit 3"]},
            "missing": {"kind": "exec", "command": ["/nonexistent"]},
        },
    }}});
    configure(&home, &config.to_string());
    let letter = mail("bob@example.org", "Hello", "hello");

    let shout = verdict(&home, "shout", &letter);
    assert_eq!((&shout["verdict"], &shout["note"]), (&json!("pass"), &json!("louder")));
    assert_eq!((&shout["kind"], &shout["stderr"]), (&json!("exec"), &json!("reading\n")));
    assert!(shout["changes"]["data"].as_str().unwrap().contains("HELLO"), "{shout:#}");
    let subject = verdict(&home, "subject", &letter);
    let data = subject["changes"]["data"].as_str().unwrap();
    assert!(data.contains("Subject: [Team] Hello\r\n"), "{subject:#}");
    let spam = verdict(&home, "spam", &mail("bob@example.org", "Hello", "casino"));
    assert_eq!(spam["verdict"], "trash");
    assert_eq!(verdict(&home, "send", &letter)["action"], "sends the letter");

    for (worker, error) in [("broken", "exit 3: oh dear"), ("missing", "the worker is down: ")] {
        let output = try_worker(&home, worker, &letter);
        assert_eq!(output.status.code(), Some(1), "{worker}: {output:?}");
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(shown["error"].as_str().unwrap().starts_with(error), "{shown:#}");
    }
    for (worker, letter, words) in [
        (
            "nosuch",
            letter.clone(),
            "there is no worker nosuch; configured workers: block, broken, ",
        ),
        ("spam", json!({"from": "ann@example.com"}), "to"),
    ] {
        let output = try_worker(&home, worker, &letter);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && errors.contains(words), "{errors}");
    }
    assert!(!home.join("store").exists(), "no store is created");
}

#[test]
fn worker_behind_a_tube_is_tried_while_no_courier_reads_its_answers() {
    let beanstalkd = Beanstalkd::start();
    let fixture = PipelineCourier::open(&json!({
        "outbound": ["tagger", "send"],
        "workers": {"tagger": {"kind": "beanstalkd", "server": beanstalkd.url()}},
    }));
    let _worker = Python::tagger(&beanstalkd);
    let letter = mail("bob@example.org", "Hello", "This is urgent.");
    let output = try_worker(&fixture.home(), "tagger", &letter);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the running courier reads the answers"), "{errors}");
    fixture.courier.cli(&["courier", "stop"]).ok();
    let tagged = verdict(&fixture.home(), "tagger", &letter);
    assert_eq!(tagged["verdict"], "pass");
    assert_eq!(tagged["changes"]["extra.tags"], json!(["urgent"]));
}
