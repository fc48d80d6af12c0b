//! Official libraries as sdks: what they sign we accept, what we sign they accept.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::Courier;
use crate::webhook_peer::{Receiver, SECRET, courier};

/// Runs a script of Python with the sdks at hand, and returns what it prints.
pub fn python(script: &str, input: &Value) -> String {
    let sdks = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/reference-sdks");
    assert!(
        sdks.exists(),
        "the reference SDKs are missing: {sdks:?} does not exist; run ./test once"
    );
    let mut process = Command::new("python3")
        .args(["-c", script])
        .env("PYTHONPATH", sdks)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(input.to_string().as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// A tunnel that answers to `receiver`.
fn answering(verify: &str, secret: &str, receiver: &Receiver) -> String {
    let url = receiver.url("/hook");
    format!(
        "courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    ci: {{ provider: webhook, \
         verify: {verify}, secret: \"{secret}\", send_to: '{url}', allow_private: true }}\n"
    )
}

fn send(courier: &Courier) {
    let msg = json!({
        "from": "did:monoco:me", "to": ["did:msgtunnel:room-7.group.ci"], "kind": "chat",
        "content": {"content": "grüße, 世界 \u{1f600}", "format": "text/markdown"},
    });
    courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
}

#[test]
fn standardwebhooks_signs_and_we_accept() {
    let courier = courier(&crate::webhook_peer::config(50));
    let script = r#"
import sys, json, datetime, urllib.request
from standardwebhooks.webhooks import Webhook
given = json.load(sys.stdin)
body = json.dumps({"id": "evt-1", "session": {"id": "room-7"}, "from": {"id": "ann"}, "text": "grüße 世界"})
at = datetime.datetime.now(tz=datetime.timezone.utc)
signature = Webhook(given["secret"]).sign("msg_reference", at, body)
request = urllib.request.Request(given["url"], body.encode(), {
    "content-type": "application/json", "webhook-id": "msg_reference",
    "webhook-timestamp": str(int(at.timestamp())), "webhook-signature": signature})
print(urllib.request.urlopen(request).read().decode())
"#;
    let url = format!("http://{}/webhooks/ci", courier.webhooks());
    let answer = python(script, &json!({"secret": SECRET, "url": url}));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!(answer["stored"], 1, "{answer}");
    assert_eq!(courier.mails(1)[0]["preview"], "grüße 世界");
}

#[test]
fn we_sign_and_standardwebhooks_accepts() {
    let receiver = Receiver::start();
    let courier = courier(&answering("standard", SECRET, &receiver));
    send(&courier);
    let got = receiver.next();
    let script = r#"
import sys, json
from standardwebhooks.webhooks import Webhook
given = json.load(sys.stdin)
print(json.dumps(Webhook(given["secret"]).verify(given["body"], given["headers"])))
"#;
    let verified =
        python(script, &json!({"secret": SECRET, "body": got.body, "headers": got.headers}));
    let verified: Value = serde_json::from_str(&verified).unwrap();
    assert_eq!(verified["text"], "grüße, 世界 \u{1f600}");
    assert_eq!(verified["session"]["id"], "room-7");
    assert_eq!(got.headers["webhook-id"], got.headers["idempotency-key"]);
}

#[test]
fn githubs_published_vector_is_believed() {
    let receiver = Receiver::start();
    let secret = "It's a Secret to Everybody";
    let courier = courier(&answering("github", secret, &receiver));
    let vector = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    let push = |signature: &str| {
        let headers = [
            ("Host".to_owned(), "hooks.test".to_owned()),
            ("X-Hub-Signature-256".to_owned(), signature.to_owned()),
            ("X-GitHub-Event".to_owned(), "ping".to_owned()),
        ];
        crate::common::raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, b"Hello, World!")
            .unwrap()
    };
    // It is not JSON, which only a verified sender is told.
    assert_eq!(push(vector).refused(422), "unreadable");
    assert_eq!(push(&vector.replace("3e17", "3e18")).refused(401), "unverified");

    send(&courier);
    let got = receiver.next();
    let script = r#"
import sys, json, hmac, hashlib
given = json.load(sys.stdin)
digest = hmac.new(given["secret"].encode(), msg=given["body"].encode(), digestmod=hashlib.sha256)
print(hmac.compare_digest("sha256=" + digest.hexdigest(), given["headers"]["x-hub-signature-256"]))
"#;
    let input = json!({"secret": secret, "body": got.body, "headers": got.headers});
    assert_eq!(python(script, &input).trim(), "True");
}
