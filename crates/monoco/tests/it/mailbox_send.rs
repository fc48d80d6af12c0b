//! `mailbox reply` and `send`: answers go to the chat of the Mail, and a message that cannot
//! be sent is rejected before anything is written.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::common::raw;
use crate::common::until;
use crate::mail_checker::list;
use crate::mailbox_run::Worker;
use crate::webhook_peer::Receiver;

/// A worker whose tunnel `ci` can send, and the server that it sends to.
fn sending() -> (Worker, Receiver) {
    let receiver = Receiver::start();
    let keys = format!(", send_to: '{}', allow_private: true", receiver.url("/hook"));
    (Worker::with_tunnel(&keys), receiver)
}

/// The number of files that a send writes: drafts and attachments.
fn written(worker: &Worker) -> usize {
    let dirs = ["mailbox/outbound/webhook", "dropzone"];
    let files = dirs.iter().flat_map(|dir| list(&worker.user.home().join(dir)));
    files.filter(|path| path.is_file()).count()
}

/// Posts JSON to the API of the courier.
fn post(worker: &Worker, path: &str, body: &Value) -> (u16, Value) {
    let running = worker.user.running();
    let token = fs::read_to_string(worker.user.home().join("run/courier.token")).unwrap();
    let address = format!("{}:{}", running["host"].as_str().unwrap(), running["port"]);
    let address: SocketAddr = address.parse().unwrap();
    let headers = [
        ("Host".to_owned(), format!("localhost:{}", address.port())),
        ("Authorization".to_owned(), format!("Bearer {}", token.trim())),
        ("Content-Type".to_owned(), "application/json".to_owned()),
    ];
    let answer = raw(address, "POST", path, &headers, body.to_string().as_bytes()).unwrap();
    (answer.status, answer.json())
}

#[test]
fn reply_goes_to_the_session_of_the_mail_in_its_thread() {
    let (worker, receiver) = sending();
    let id = worker.mail("room-9");
    let reply = ["mailbox", "reply", &id[..16], "-m", "on it", "--wait", "--format", "json"];
    let ran = worker.user.runs(&worker.workspace, &reply).ok();
    assert_eq!(serde_json::from_str::<Value>(&ran).unwrap()["status"], "sent", "{ran}");
    let got: Value = serde_json::from_str(&receiver.next().body).unwrap();
    assert_eq!((&got["text"], &got["to"]), (&json!("on it"), &json!("room-9")));
    assert_eq!((&got["session"]["type"], &got["reply_to"]), (&json!("group"), &json!("room-9")));

    let path = format!("/api/v1/messages/{id}/reply");
    let body = json!({"text": "done", "title": "Build", "idempotency_key": "k-1"});
    let (status, first) = post(&worker, &path, &body);
    assert_eq!((status, &first["ok"], &first["duplicate"]), (200, &json!(true), &json!(false)));
    assert_eq!(first["deliveries"][0]["target"], "did:msgtunnel:room-9.group.ci");
    let got: Value = serde_json::from_str(&receiver.next().body).unwrap();
    assert_eq!((&got["text"], &got["to"]), (&json!("done"), &json!("room-9")));
    let (_, again) = post(&worker, &path, &body);
    assert_eq!((&again["duplicate"], &again["msg_id"]), (&json!(true), &first["msg_id"]));
    // Without a key, the same words are said twice.
    for _ in 0..2 {
        let (status, said) = post(&worker, &path, &json!({"text": "twice"}));
        assert_eq!((status, &said["duplicate"]), (200, &json!(false)), "{said}");
        assert!(receiver.next().body.contains("twice"));
    }
    assert!(receiver.is_quiet());

    let hash = format!("sha256:{}", "0".repeat(64));
    for (body, status, words) in [
        (json!({"text": " "}), 422, "expected text or attachments"),
        (json!({"txt": "x"}), 422, "did you mean `text`?"),
        (json!({"text": "x", "titel": "x"}), 422, "did you mean `title`?"),
        (json!({"text": "x", "attachments": [{"name": "a", "hash": hash}]}), 404, "0000"),
    ] {
        let (found, said) = post(&worker, &path, &body);
        assert_eq!(found, status, "{body}: {said}");
        assert!(said["message"].as_str().unwrap().contains(words), "{said}");
    }
    let unknown = "/api/v1/messages/webhook_000000000000000000000000/reply";
    assert_eq!(post(&worker, unknown, &json!({"text": "x"})).0, 404);
}

#[test]
fn send_through_a_tunnel_that_only_receives_writes_nothing() {
    let worker = Worker::new();
    let id = worker.mail("room-9");
    let cases: [(&[&str], &str); 3] = [
        (&["mailbox", "reply", &id, "--text", "hi"], "it has no send_to"),
        (&["mailbox", "send", "--tunnel", "ci", "--to", "ann", "--text", "hi"], "no send_to"),
        (&["mailbox", "send", "--tunnel", "gone", "--to", "ann", "--text", "hi"], "no tunnel gone"),
    ];
    for (args, words) in cases {
        let said = worker.user.runs(&worker.workspace, args).failed(1);
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(written(&worker), 0, "{args:?}");
    }
}

#[test]
fn send_that_cannot_be_delivered_writes_nothing() {
    let (worker, receiver) = sending();
    let file = worker.workspace.join("report.txt");
    fs::write(&file, "text").unwrap();
    let draft = worker.workspace.join("draft.md");
    fs::write(&draft, "---\nto: group:room-7\nreplyto: x\n---\nhello").unwrap();
    let (file, draft) = (file.to_str().unwrap(), draft.to_str().unwrap());
    let provider = ["--provider", "webhook"];
    let cases: [(&[&str], &str); 6] = [
        (&["--tunnel", "gone", "--to", "ann", "--text", "hi"], "no gone"),
        (&["--to", "did:web:unknown", "--text", "hi", "--attach", file], "did:web:unknown"),
        (&["--to", "did:msgtunnel:x.user.gone", "--text", "hi"], "no tunnel gone"),
        (&["--to", "did:msgtunnel:ci", "--text", "hi"], "it is a tunnel"),
        (&["--text", "hi"], "no recipient"),
        (&["--draft", draft], "did you mean `reply_to`?"),
    ];
    for (args, words) in cases {
        let args = [&["mailbox", "send"], args, &provider].concat();
        let said = worker.user.runs(&worker.workspace, &args).failed(1);
        assert!(said.contains(words), "{args:?}: {said}");
        assert_eq!(written(&worker), 0, "{args:?}");
    }
    let good = ["mailbox", "send", "--to", "group:room-7", "--text", "hi", "--attach", file];
    worker.user.runs(&worker.workspace, &[&good[..], &["--wait"]].concat()).ok();
    assert!(receiver.next().body.contains("report.txt"));

    // The tunnel is removed from the config.
    let config = worker.user.home().join("courier/config.yaml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("    ci: {", "    other: {")).unwrap();
    worker.user.types(&worker.workspace, "courier reload").ok();
    let body = json!({"msg": {"from": "did:monoco:me", "to": ["did:msgtunnel:room-7.group.ci"],
        "kind": "chat", "content": {"content": "late"}}, "dry_run": true});
    until("the tunnel is gone", || {
        let (status, said) = post(&worker, "/api/v1/post_send", &body);
        status == 422 && said["message"].as_str().unwrap().contains("no tunnel ci")
    });
    let before = written(&worker);
    let late = ["mailbox", "send", "--to", "did:msgtunnel:room-7.group.ci", "--text", "late"];
    let late = [&late[..], &provider].concat();
    let said = worker.user.runs(&worker.workspace, &late).failed(1);
    assert!(said.contains("no tunnel ci"), "{said}");
    // Without the courier, the config is used.
    worker.user.types(&worker.workspace, "courier stop").ok();
    let said = worker.user.runs(&worker.workspace, &late).failed(1);
    assert!(said.contains("no tunnel ci"), "{said}");
    assert_eq!(written(&worker), before);
    assert!(receiver.is_quiet());
}
