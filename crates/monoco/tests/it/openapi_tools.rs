//! docs/openapi.json in the hands of other tools: two validators, and a generated client that
//! answers a Mail.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::common::Courier;
use crate::mail_checker::answering;
use crate::reference_sdks::{python, python_command};
use crate::tidy::root;
use crate::webhook_peer::Receiver;

fn document() -> PathBuf {
    root().join("docs/openapi.json")
}

#[test]
fn openapi_spec_validator_accepts_the_document() {
    let script = r#"
import sys, json
from openapi_spec_validator import OpenAPIV31SpecValidator
for doc in json.load(sys.stdin):
    print([error.message for error in OpenAPIV31SpecValidator(doc).iter_errors()])
"#;
    let doc: Value = serde_json::from_slice(&std::fs::read(document()).unwrap()).unwrap();
    assert!(doc["openapi"].as_str().unwrap().starts_with("3.1."));
    let mut broken = doc.clone();
    broken["paths"]["/health"]["get"]["responses"]["200"] = json!({});
    let printed = python(script, &json!([doc, broken]));
    let [intact, broken] = printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    assert_eq!(intact, "[]");
    assert!(broken.contains("'description'"), "the validator finds no error in a broken document");
}

/// Errors and warnings that Redocly finds in a document.
fn lint(document: &Path) -> Value {
    let redocly = root().join("target/reference-npm/node_modules/@redocly/cli/bin/cli.js");
    assert!(redocly.exists(), "Redocly is missing: {redocly:?} does not exist; run ./test once");
    let ran = Command::new("node")
        .arg(redocly)
        .args(["lint", "--format=json"])
        .arg(document)
        .current_dir(document.parent().unwrap())
        // Without these it reports its use to its vendor and looks for newer versions.
        .env("REDOCLY_TELEMETRY", "off")
        .env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&ran.stderr);
    let found: Value = serde_json::from_slice(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {stderr}{}", ran.status));
    json!([found["totals"]["errors"], found["totals"]["warnings"], found["problems"]])
}

#[test]
fn redocly_finds_nothing_to_complain_about() {
    assert_eq!(lint(&document()), json!([0, 0, []]));
    let dir = tempfile::tempdir().unwrap();
    let broken = dir.path().join("openapi.json");
    let text = std::fs::read_to_string(document()).unwrap();
    std::fs::write(&broken, text.replace("#/components/schemas/Claim\"", "#/nowhere\"")).unwrap();
    assert!(lint(&broken)[0].as_u64().unwrap() > 0, "Redocly finds no error in a broken document");
}

/// Answers a Mail with the generated client.
const ANSWER: &str = r#"
import sys, json, time
given = json.load(sys.stdin)
sys.path.insert(0, given["dir"])
from client import AuthenticatedClient
from client.api.center import dispatch
from client.api.mails import (
    claim_mail, complete_claim, get_mail, list_mails, reply_to_mail, trace_mail)
from client.models import (
    ClaimBody, CompleteBody, DispatchBody, Error, Ingress, MsgContent, MsgObject, ReplyBody)

hub = AuthenticatedClient(
    base_url=given["url"], token=given["token"], raise_on_unexpected_status=True)
msg = MsgObject(
    from_="did:msgtunnel:ann.user.ci", to=["did:monoco:me"], kind="chat",
    content=MsgContent(content="by the generated client"))
body = DispatchBody(msg=msg, ingress=Ingress(tunnel="ci", external_id="evt-2"))
for repeated in [False, True]:
    sent = dispatch.sync(client=hub, body=body)
    assert sent.ok and sent.duplicate == repeated, sent

mail, = list_mails.sync(client=hub, status="NEW").messages
assert mail.preview == "the build is red" and mail.session.id == "room-7", mail
detail = get_mail.sync(mail.id, client=hub)
assert detail.msg.content.content.endswith("the build is red"), detail
claim = claim_mail.sync(mail.id, client=hub, body=ClaimBody(agent_id="ann", timeout=60))
assert (claim.status, claim.agent_id) == ("CLAIMED", "ann"), claim
other = claim_mail.sync(mail.id, client=hub, body=ClaimBody(agent_id="bob"))
assert isinstance(other, Error) and other.code == "claimed", other
reply = reply_to_mail.sync(mail.id, client=hub, body=ReplyBody(text="Fixed."))
assert reply.ok and len(reply.deliveries) == 1, reply
done = complete_claim.sync(
    mail.id, client=hub, body=CompleteBody(agent_id="ann", epoch=claim.epoch))
assert done.status == "COMPLETED", done
trace = trace_mail.sync(mail.id, client=hub)
assert trace.mail.id == mail.id and trace.claims[0].status == "COMPLETED", trace
print([event.kind for event in trace.events])
"#;

#[test]
fn a_generated_python_client_answers_a_mail() {
    let receiver = Receiver::start();
    let courier = Courier::start_configured(&answering(&receiver, 50));
    courier.hears("evt-1", "room-7", "ann", "the build is red");
    courier.mails(1);

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.yaml"), "post_hooks: []").unwrap();
    let ran = python_command()
        .args(["-m", "openapi_python_client", "generate", "--meta", "none", "--output-path"])
        .args(["client", "--config", "config.yaml", "--path"])
        .arg(document())
        .current_dir(&dir)
        .output()
        .unwrap();
    let printed = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    assert!(ran.status.success(), "{printed}");
    // The generator has no batches and no e-mails as bodies, and warns about these only.
    let warnings: Vec<_> = printed.lines().filter(|line| line.starts_with("WARNING")).collect();
    let left_out = ["application/x-ndjson", "message/rfc822", "text/csv"]
        .map(|kind| printed.matches(&format!("\nUnsupported content type {kind}\n")).count());
    assert_eq!(warnings.len(), left_out.iter().sum::<usize>(), "{printed}");

    let url = format!("http://{}", courier.address);
    let input = json!({"dir": dir.path(), "url": url, "token": courier.token});
    let events = python(ANSWER, &input);
    for kind in ["merged", "claimed", "completed"] {
        assert!(events.contains(&format!("'{kind}'")), "{kind} is missing in {events}");
    }
    let sent: Value = serde_json::from_str(&receiver.next().body).unwrap();
    assert_eq!((&sent["text"], &sent["to"]), (&json!("Fixed."), &json!("room-7")));
}
