//! Official libraries as sdks: what they sign we accept, what we sign they accept.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::Courier;
use crate::webhook_peer::{Receiver, SECRET, courier};

/// Python, with the SDKs in its path.
pub fn python_command() -> Command {
    let sdks = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/reference-sdks");
    assert!(
        sdks.exists(),
        "the reference SDKs are missing: {sdks:?} does not exist; run ./test once"
    );
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", sdks);
    command
}

/// Runs a script of Python with the SDKs at hand, and returns what it prints.
pub fn python(script: &str, input: &Value) -> String {
    let mut process = python_command()
        .args(["-c", script])
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

/// Signs a body with a vendor's library and posts it.
const SIGN: &str = r#"
import sys, json, time, datetime, urllib.request
given = json.load(sys.stdin)
body, now, secret = given["body"], int(time.time()), given["secret"]
if given["kind"] == "svix":
    from svix.webhooks import Webhook
    at = datetime.datetime.fromtimestamp(now, tz=datetime.timezone.utc)
    headers = {"svix-id": "msg_1", "svix-timestamp": str(now),
               "svix-signature": Webhook(secret).sign("msg_1", at, body)}
elif given["kind"] == "stripe":
    from stripe import WebhookSignature
    signature = WebhookSignature._compute_signature(f"{now}.{body}", secret)
    headers = {"Stripe-Signature": f"t={now},v1={signature}"}
elif given["kind"] == "slack":
    from slack_sdk.signature import SignatureVerifier
    signature = SignatureVerifier(secret).generate_signature(timestamp=str(now), body=body)
    headers = {"X-Slack-Request-Timestamp": str(now), "X-Slack-Signature": signature}
elif given["kind"] == "gitlab":
    headers = {"X-Gitlab-Token": secret}
elif given["kind"] == "bearer":
    headers = {"Authorization": "Bearer " + secret}
else:
    import base64
    headers = {"Authorization": "Basic " + base64.b64encode(secret.encode()).decode()}
def post(body):
    request = urllib.request.Request(given["url"], body.encode(), {"content-type": "application/json", **headers})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
print(json.dumps([post(body), post(body + " ")]))
"#;

/// Verifies a request of ours with a vendor's library.
const VERIFY: &str = r#"
import sys, json
given = json.load(sys.stdin)
body, headers, secret = given["body"], given["headers"], given["secret"]
if given["kind"] == "svix":
    from svix.webhooks import Webhook
    Webhook(secret).verify(body, headers)
elif given["kind"] == "stripe":
    from stripe import WebhookSignature
    assert WebhookSignature.verify_header(body, headers["stripe-signature"], secret, 300)
elif given["kind"] == "slack":
    from slack_sdk.signature import SignatureVerifier
    assert SignatureVerifier(secret).is_valid_request(body, headers)
print("verified")
"#;

#[test]
fn vendor_libraries_and_courier_accept_each_other() {
    for (kind, verify, secret, altered) in [
        ("svix", "standard", SECRET, 401),
        ("stripe", "stripe", "whsec_test_secret", 401),
        ("slack", "slack", "8f742231b10e8888abcd99yyyzzz85a5", 401),
        // These do not sign the body.
        ("gitlab", "gitlab", "s3cret", 200),
        ("bearer", "bearer", "mF_9.B5f-4.1JqM", 200),
        ("basic", "basic", "Aladdin:open sesame", 200),
    ] {
        let receiver = Receiver::start();
        let courier = courier(&answering(verify, secret, &receiver));
        let url = format!("http://{}/webhooks/ci", courier.webhooks());
        let body = r#"{"id": "evt-1", "text": "grüße 世界"}"#;
        let input = json!({"kind": kind, "secret": secret, "url": url, "body": body});
        assert_eq!(python(SIGN, &input).trim(), format!("[200, {altered}]"), "{kind}");
        let wrong =
            json!({"kind": kind, "secret": SECRET.replace('a', "b"), "url": url, "body": body});
        assert_eq!(python(SIGN, &wrong).trim(), "[401, 401]", "{kind}");
        assert_eq!(courier.mails(1)[0]["preview"], "grüße 世界", "{kind}");

        send(&courier);
        let got = receiver.next();
        let input =
            json!({"kind": kind, "secret": secret, "body": got.body, "headers": got.headers});
        assert_eq!(python(VERIFY, &input).trim(), "verified", "{kind}");
    }
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
