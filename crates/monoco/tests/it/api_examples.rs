//! Calls every route of a running courier with `curl`, and records the exchanges as the
//! examples of docs/api.md.

use std::collections::{BTreeMap, HashMap};
use std::process::Command;

use regex::{Captures, Regex};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::common::{Courier, ME, until};
use crate::json_layout;
use crate::mail_checker::list;
use crate::mail_servers::{Dovecot, PASSWORD, SmtpServer, SmtpTls, TestCa};
use crate::webhook_peer::{Receiver, SECRET};

/// Longest line of an example, in bytes.
const MAX_LINE: usize = 100;

/// Time that stands for every time in the examples.
const EXAMPLE_TIME: &str = "2026-02-06T20:51:00Z";

/// Numbers that differ from run to run, and what stands for them.
const MEASURED: [(&str, i64); 9] = [
    ("clock_drift_ms", 0),
    ("copies", 0),
    ("created_at_ms", 1_770_411_060_000),
    ("duration_ms", 12),
    ("oldest_unclaimed_mail_ms", 0),
    ("oldest_waiting_delivery_ms", 0),
    ("registered", 1),
    ("seconds", 0),
    ("uid_validity", 1_770_411_060),
];

/// A request and its answer, as the document shows them.
pub struct ApiExample {
    pub curl: String,
    pub status: u16,
    pub answer: String,
}

/// Examples by method and path of the route.
pub type ApiExamples = BTreeMap<(String, String), ApiExample>;

/// A courier, and the examples that were recorded from it.
struct Recorder {
    courier: Courier,
    /// Method and path of each route, from the OpenAPI document.
    routes: Vec<(String, String)>,
    examples: ApiExamples,
    normalizer: Normalizer,
    /// Ports of test servers, and the usual ports that stand for them.
    ports: Vec<(u16, u16)>,
}

/// The body of a request in an example.
enum Body<'a> {
    None,
    Json(Value),
    Bytes(&'a str),
    Csv(&'a str),
}

impl Recorder {
    fn get(&mut self, path: &str) -> Value {
        self.record("GET", path, &Body::None, "")
    }

    fn post(&mut self, path: &str, body: Value) -> Value {
        self.record("POST", path, &Body::Json(body), "")
    }

    fn put(&mut self, path: &str, body: Value) -> Value {
        self.record("PUT", path, &Body::Json(body), "")
    }

    fn call(&mut self, method: &str, path: &str) -> Value {
        self.record(method, path, &Body::None, "")
    }

    /// Runs a request with `curl`, and records it as the example of its route.
    fn record(&mut self, method: &str, path: &str, body: &Body<'_>, filter: &str) -> Value {
        let curl = format!("{}{filter}", curl(method, path, body));
        let headers = self.courier.home().join("headers");
        let command = curl
            .replacen("curl -s", &format!("curl -s -D '{}'", headers.display()), 1)
            .replace("localhost:8644", &self.courier.address.to_string());
        let ran = Command::new("bash")
            .args(["-o", "pipefail", "-c", &command])
            .env("TOKEN", &self.courier.token)
            .output()
            .unwrap();
        let printed = String::from_utf8(ran.stdout).unwrap();
        assert!(ran.status.success(), "{command}\n{}\n{printed}", ran.status);
        let headers = std::fs::read_to_string(headers).unwrap();
        let status = headers.split(' ').nth(1).unwrap().parse().unwrap();
        assert!((200..300).contains(&status), "{command}\n{status} {printed}");

        let value = serde_json::from_str::<Value>(&printed).unwrap_or_default();
        let answer = match value.clone() {
            Value::Null => printed,
            mut value => {
                replace_measured(&mut value);
                json_layout::format(&value, MAX_LINE)
            }
        };
        let route = self.route(method, path);
        let home = self.courier.home().to_str().unwrap();
        let [curl, answer] =
            [curl, answer].map(|text| self.normalizer.normalize(&text.replace(home, "~/.monoco")));
        let answer = self.ports.iter().fold(answer, |answer, (found, usual)| {
            answer.replace(&format!(":{found}"), &format!(":{usual}"))
        });
        let example = ApiExample { curl, status, answer };
        let replaced = self.examples.insert(route.clone(), example);
        assert!(replaced.is_none(), "{route:?} has two examples");
        value
    }

    /// The route of a request: of all that fit, the one with the fewest parameters.
    fn route(&self, method: &str, path: &str) -> (String, String) {
        let path = path.split('?').next().unwrap();
        let fits = |route: &str| {
            route.split('/').count() == path.split('/').count()
                && route.split('/').zip(path.split('/')).all(|(a, b)| a == b || a.starts_with('{'))
        };
        let fitting = self.routes.iter().filter(|(m, route)| m == method && fits(route));
        let route = fitting.min_by_key(|(_, route)| route.matches('{').count());
        route.unwrap_or_else(|| panic!("no route for {method} {path}")).clone()
    }
}

/// The command of an example.
fn curl(method: &str, path: &str, body: &Body<'_>) -> String {
    let method = match (method, body) {
        ("GET", Body::None) | ("POST", Body::Json(_) | Body::Bytes(_)) => String::new(),
        _ => format!(" -X {method}"),
    };
    let quote = if path.contains('?') { "'" } else { "" };
    let head = format!(
        "curl -s{method} {quote}http://localhost:8644{path}{quote} \\\n     \
         -H \"Authorization: Bearer $TOKEN\""
    );
    let (kind, data) = match body {
        Body::None => return head,
        Body::Json(value) => {
            let text = json_layout::format(value, MAX_LINE);
            ("application/json", text.trim_end().replace('\n', "\n         "))
        }
        Body::Bytes(text) => ("application/octet-stream", (*text).to_owned()),
        Body::Csv(text) => ("text/csv", (*text).to_owned()),
    };
    assert!(!data.contains('\''), "{data}");
    // `-d` would remove the line breaks.
    let option = if kind == "text/csv" { "--data-binary" } else { "-d" };
    format!("{head} -H 'Content-Type: {kind}' \\\n     {option} '{data}'")
}

fn replace_measured(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(replace_measured),
        Value::Object(map) => {
            // An account that has just been paused or resumed may still close its connection.
            if map.contains_key("last_seen_uid") {
                map.insert("status".to_owned(), json!("hearing"));
                map.retain(|key, _| !key.starts_with("last_error"));
            }
            // A tunnel that has just been resumed may not listen yet.
            if map.get("mode") == Some(&json!("memory")) && map["status"] == "down" {
                map.insert("status".to_owned(), json!("quiet"));
            }
            for (key, value) in map {
                let measured = MEASURED.iter().find(|(name, _)| name == key);
                if key == "generation" {
                    *value = json!("1c9d2a07-1");
                }
                if let (true, Some((_, number))) = (value.is_number(), measured) {
                    *value = json!(number);
                }
                replace_measured(value);
            }
        }
        _ => {}
    }
}

/// Replaces what differs from run to run by values that do not.
struct Normalizer {
    time: Regex,
    compact_time: Regex,
    hex: Regex,
    /// Hex digits of ids, and what stands for them.
    digits: HashMap<String, String>,
}

impl Normalizer {
    fn new() -> Self {
        Self {
            time: Regex::new(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z").unwrap(),
            compact_time: Regex::new(r"\b\d{8}T\d{6}_").unwrap(),
            hex: Regex::new(r"(ltr_\d+_|[:_\x22/])([0-9a-f]{8,64})\b").unwrap(),
            digits: HashMap::new(),
        }
    }

    fn normalize(&mut self, text: &str) -> String {
        let text = self.time.replace_all(text, EXAMPLE_TIME);
        let text = self.compact_time.replace_all(&text, "20260206T205100_");
        let digits = &mut self.digits;
        let replaced = self.hex.replace_all(&text, |found: &Captures<'_>| {
            let next = monoco_core::hex::encode(&Sha256::digest(digits.len().to_string()));
            let known = digits.entry(found[2].to_owned());
            format!("{}{}", &found[1], known.or_insert(next[..found[2].len()].to_owned()))
        });
        replaced.into_owned()
    }
}

/// Runs the story and returns the recorded examples.
pub fn api_examples(openapi: &Value) -> ApiExamples {
    let receiver = Receiver::start();
    let config = format!(
        "courier:
  debounce: {{ window_ms: 50 }}
  approvals: {{ owner: rules, rules: [ {{ text_matches: IBAN, do: hold }} ] }}
  adapters:
    ci: {{ provider: webhook, verify: standard, secret: '{SECRET}', send_to: '{}', allow_private: true }}
    news: {{ provider: stub }}
  pipeline:
    tunnels: {{ news: {{ outbound: [spam, check, send] }} }}
    workers:
      spam: {{ rules: [ {{ name: casino, text: '(?i)casino', score: 5 }} ] }}
      check: {{ kind: exec, command: [\"false\"], retries: 0 }}
",
        receiver.url("/hook")
    );
    let mut routes = Vec::new();
    for (path, item) in openapi["paths"].as_object().unwrap() {
        let methods = item.as_object().unwrap().keys();
        routes.extend(methods.map(|method| (method.to_uppercase(), path.clone())));
    }
    let mut recorder = Recorder {
        courier: Courier::start_configured(&config),
        routes,
        examples: BTreeMap::new(),
        normalizer: Normalizer::new(),
        ports: Vec::new(),
    };
    contacts(&mut recorder);
    boxes(&mut recorder);
    deliveries(&mut recorder);
    approvals(&mut recorder);
    mails(&mut recorder, &receiver);
    letters(&mut recorder);
    dead_letters(&mut recorder);
    courier(&mut recorder);
    email(&mut recorder);
    recorder.examples
}

/// The text at a pointer into an answer.
fn text(answer: &Value, pointer: &str) -> String {
    let found = answer.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("{pointer} is missing in {answer:#}")).to_owned()
}

fn contacts(on: &mut Recorder) {
    on.put("/api/v1/tunnels/my-net", json!({"provider": "my-net", "idempotent": true}));
    on.get("/api/v1/tunnels");
    on.get("/api/v1/tunnels/news");
    on.call("POST", "/api/v1/tunnels/news/test");
    on.call("POST", "/api/v1/tunnels/news/pause");
    on.call("POST", "/api/v1/tunnels/news/resume");
    on.put("/api/v1/contacts/did:web:ann", json!({"names": ["Ann"], "level": "friend"}));
    let binding = json!({"tunnel": "my-net", "address": "ann"});
    on.put("/api/v1/contacts/did:web:ann/bindings", binding);
    on.get("/api/v1/contacts/did:web:ann");
    on.get("/api/v1/contacts?limit=10");
    on.get("/api/v1/dids?text=Ann");
    on.call("PUT", "/api/v1/blocks/did:monoco:me/did:web:joe");
    on.call("DELETE", "/api/v1/blocks/did:monoco:me/did:web:joe");
    on.put("/api/v1/groups/did:web:team", json!({"name": "Team"}));
    on.call("PUT", "/api/v1/groups/did:web:team/subscribers/did:web:bob");
    on.get("/api/v1/groups/did:web:team");
    on.get("/api/v1/groups");
}

fn boxes(on: &mut Recorder) {
    let content = json!({"format": "text/markdown", "content": "The build is **red**."});
    let msg = json!({"from": "did:msgtunnel:ann.user.my-net", "to": [ME], "kind": "chat",
                     "content": content});
    let ingress = json!({"tunnel": "my-net", "external_id": "evt-1"});
    let sent = on.post("/api/v1/dispatch", json!({"msg": msg, "ingress": ingress}));
    on.get(&format!("/api/v1/objects/{}", text(&sent, "/msg_id")));
    on.get("/api/v1/boxes?limit=2");
    on.get("/api/v1/boxes/did:monoco:me/INBOX?state=UNREAD");
    on.get("/api/v1/boxes/did:monoco:me/INBOX/peek");
    let lease = json!({"holder": "agent-1", "lease_s": 60});
    let leased = on.post("/api/v1/boxes/did:monoco:me/INBOX/next", lease);
    let record = text(&leased, "/record/record_id");
    let read = json!({"state": "READED", "epoch": leased["record"]["epoch"]});
    on.post(&format!("/api/v1/records/{record}/state"), read);
    on.post(&format!("/api/v1/records/{record}/tags"), json!({"add": ["starred"]}));
    on.get(&format!("/api/v1/records/{record}"));
    on.get("/api/v1/sessions?owner=did:monoco:me");
    on.get("/api/v1/sessions/did:msgtunnel:ann.user.my-net?owner=did:monoco:me");

    let msg = json!({"from": "did:web:team", "source": "did:web:ann", "to": ["did:web:team"],
                     "kind": "group_msg", "content": {"content": "Lunch?"}});
    let sent = on.courier.post("/api/v1/dispatch", &json!({ "msg": msg })).ok();
    let msg_id = text(&sent, "/msg_id");
    let receipt = json!({"msg_id": msg_id, "reader": "did:web:bob", "state": "READED"});
    on.put("/api/v1/groups/did:web:team/receipts", receipt);
    on.get(&format!("/api/v1/groups/did:web:team/receipts?msg_id={msg_id}"));
    on.call("DELETE", "/api/v1/groups/did:web:team/subscribers/did:web:bob");
}

fn deliveries(on: &mut Recorder) {
    let bytes = Body::Bytes("Tests of 4f2a91c: 12 failed");
    on.record("POST", "/api/v1/objects", &bytes, "");
    let msg = json!({"from": ME, "to": ["did:web:ann"], "kind": "chat",
                     "content": {"content": "On it."}});
    let send = json!({"msg": msg, "idempotency_key": "answer-1"});
    on.post("/api/v1/post_send", send);
    let next = "/api/v1/boxes/did:msgtunnel:my-net/TUNNEL_OUTBOX/next";
    let leased = on.courier.post(next, &json!({})).ok();
    let delivery = text(&leased, "/record/record_id");
    let report = json!({"ok": true, "epoch": leased["record"]["epoch"], "external_msg_id": "m-9"});
    on.post(&format!("/api/v1/deliveries/{delivery}/report"), report);
    on.get("/api/v1/trace/m-9");
    on.call("DELETE", "/api/v1/contacts/did:web:ann/bindings?tunnel=my-net&address=ann");
    on.call("DELETE", "/api/v1/contacts/did:web:ann");
}

fn approvals(on: &mut Recorder) {
    let hold = |on: &Recorder, text: &str| {
        let to = "did:msgtunnel:bob.user.my-net";
        let msg = json!({"from": ME, "to": [to], "kind": "chat", "content": {"content": text}});
        on.courier.post("/api/v1/post_send", &json!({ "msg": msg })).ok()
    };
    let held = hold(on, "Our IBAN is DE02 1203 0000 0000 2020 51.");
    let path = |held: &Value| format!("/api/v1/approvals/{}", text(held, "/approval/id"));
    on.get("/api/v1/approvals?state=PENDING");
    on.get(&path(&held));
    on.get(&format!("/api/v1/decisions/{}", text(&held, "/msg_id")));
    on.call("POST", &format!("{}/approve", path(&held)));
    let held = hold(on, "Which IBAN do you have?");
    on.post(&format!("{}/reject", path(&held)), json!({"reason": "ask by phone"}));
    let held = hold(on, "The IBAN is on the way.");
    on.post(&format!("{}/edit", path(&held)), json!({"text": "The number is on the way."}));
    let held = hold(on, "My IBAN has changed.");
    on.call("POST", &format!("{}/withdraw", path(&held)));
    on.post("/api/v1/approvals/replay", json!({"since": "2026-01-01T00:00:00Z"}));
    on.put("/api/v1/halts/tunnel:my-net", json!({"lock": false}));
    on.get("/api/v1/halts");
    on.call("DELETE", "/api/v1/halts/tunnel:my-net");
}

fn mails(on: &mut Recorder, receiver: &Receiver) {
    on.courier.hears("evt-2", "room-7", "ann", "@monoco::alpha the build is red");
    on.courier.mails(1);
    let list = on.get("/api/v1/messages?status=NEW&limit=10");
    let mail = format!("/api/v1/messages/{}", text(&list, "/messages/0/id"));
    on.get(&mail);
    let claim = json!({"agent_id": "agent-1", "timeout": 60});
    let claim = on.post(&format!("{mail}/claim"), claim);
    let epoch = &claim["epoch"];
    let renew = json!({"agent_id": "agent-1", "epoch": epoch, "timeout": 300});
    on.post(&format!("{mail}/renew"), renew);
    on.post("/api/v1/messages/status", json!({"ids": [text(&claim, "/id")]}));
    let reply = json!({"text": "Fixed in 4f2a91c.", "idempotency_key": "fix-1"});
    on.post(&format!("{mail}/reply"), reply);
    receiver.next();
    on.courier.until("/health", |health| health["adapters"]["ci"]["sent"] == 1);
    on.post(&format!("{mail}/complete"), json!({"agent_id": "agent-1", "epoch": epoch}));
    on.get(&format!("{mail}/trace"));
    on.record("GET", &format!("{mail}/file"), &Body::None, " | head -2");
    on.get("/api/v1/mailbox/index?limit=1");
    on.post("/api/v1/mailbox/files", json!({"ids": [text(&claim, "/id")]}));
    on.record("GET", &format!("{mail}/view"), &Body::None, " | grep '^<p>'");
    let search = "/api/v1/search?q=%22build%20is%20red%22%20from:ann";
    on.courier.until(search, |page| page["complete"] == true);
    on.get(search);
}

fn letters(on: &mut Recorder) {
    let letter = |text: &str| {
        json!({"from": "me@example.com", "to": ["bob@example.org"], "data": text,
               "extra": {"tunnel": "news", "content_type": "text/plain", "subject": "News"}})
    };
    let wait = |on: &Recorder, id: &str, state: &str| {
        on.courier.until(&format!("/api/v1/letters/{id}"), |letter| letter["state"] == state);
    };
    let spam = text(&on.post("/api/v1/letters", letter("Our casino is open.")), "/id");
    wait(on, &spam, "TRASHED");
    on.get("/api/v1/letters?state=TRASHED");
    on.get(&format!("/api/v1/letters/{spam}"));
    on.get("/api/v1/pipeline");
    on.post("/api/v1/pipeline/replay", json!({"dry_run": true}));
    on.call("POST", &format!("/api/v1/letters/{spam}/restore"));
    wait(on, &spam, "DEAD");
    on.call("POST", &format!("/api/v1/letters/{spam}/retry"));
    wait(on, &spam, "DEAD");
    on.post(&format!("/api/v1/letters/{spam}/trash"), json!({"reason": "not wanted"}));
    on.call("POST", &format!("/api/v1/letters/{spam}/replay"));
    wait(on, &spam, "TRASHED");
    // A dead letter for the list of them.
    let dead = text(&on.courier.post("/api/v1/letters", &letter("Hello.")).ok(), "/id");
    wait(on, &dead, "DEAD");
}

fn dead_letters(on: &mut Recorder) {
    let fail = json!({"agent_id": "agent-1", "reason": "no access to the log", "retryable": false});
    let mail = on.courier.mail("room-8");
    on.courier.ask(&mail, "claim", json!({"agent_id": "agent-1"})).ok();
    on.post(&format!("/api/v1/messages/{mail}/fail"), fail.clone());

    let outbound = on.courier.home().join("mailbox/outbound/webhook");
    std::fs::create_dir_all(&outbound).unwrap();
    let draft = "---\nto: group:room-7\ntunnel: cd\n---\nHello.\n";
    std::fs::write(outbound.join(".note.md"), draft).unwrap();
    std::fs::rename(outbound.join(".note.md"), outbound.join("note.md")).unwrap();
    let has_draft = |dead: &Value| dead["drafts"][0].is_object();
    on.courier.until("/api/v1/dead", has_draft);
    let dead = on.get("/api/v1/dead");
    on.post("/api/v1/dead/retry", json!({"kind": "letter", "dry_run": true}));
    on.post("/api/v1/dead/drop", json!({"kind": "claim", "workspace": "shared", "dry_run": true}));
    let draft = text(&dead, "/drafts/0/id");
    on.call("POST", &format!("/api/v1/drafts/{draft}/retry"));
    let draft = text(&on.courier.until("/api/v1/dead", has_draft), "/drafts/0/id");
    on.call("POST", &format!("/api/v1/drafts/{draft}/drop"));

    on.call("POST", &format!("/api/v1/messages/{mail}/retry"));
    on.courier.ask(&mail, "claim", json!({"agent_id": "agent-1"})).ok();
    on.courier.ask(&mail, "fail", fail).ok();
    on.call("POST", &format!("/api/v1/messages/{mail}/drop"));
}

fn courier(on: &mut Recorder) {
    on.get("/api/v1/events?after=6&limit=3");
    // All Mails are done: a rebuild finds their files where they belong once these are moved.
    let mailbox = on.courier.home().join("mailbox");
    until("the files of the Mails are in the archive", || {
        let dirs = ["inbound/webhook", ".deadletter/webhook"].map(|dir| mailbox.join(dir));
        dirs.iter().all(|dir| list(dir).is_empty())
    });
    on.call("POST", "/api/v1/mailbox/rebuild");
    on.call("POST", "/api/v1/search/rebuild");
    on.get("/health");
    // How many events were counted depends on the time.
    on.record("GET", "/api/v1/figures", &Body::None, " | grep -o '\"step_minutes\":[0-9]*'");
    on.record("GET", "/metrics", &Body::None, " | grep ^monoco_dispatches");
    on.courier.cli(&["token", "add", "codex", "--scope", "read,claim,reply"]).ok();
    on.get("/api/v1/caller");
    on.get("/api/v1/tokens");
    on.get("/api/v1/tokens/codex/activity");
    on.call("POST", "/api/v1/tokens/codex/revoke");
    on.post("/api/v1/forget", json!({"did": "did:web:joe", "dry_run": true}));
}

/// The routes of e-mail accounts, with real servers. Ports differ from run to run.
fn email(on: &mut Recorder) {
    let dovecot = Dovecot::start();
    let smtp =
        SmtpServer::start_with(SmtpTls::Clear, TestCa::shared(), &["RCPT=550 5.1.1 unknown"]);
    on.ports = vec![(dovecot.port, 143), (smtp.port, 25)];
    let dir = on.courier.home().join("courier/adapters.d");
    std::fs::create_dir_all(&dir).unwrap();
    let section = format!(
        "provider: email\naddress: team@example.com\nusername: team\npassword: {PASSWORD}\n\
         imap: {{ host: 127.0.0.1, port: {}, tls: none }}\n\
         smtp: {{ host: 127.0.0.1, port: {}, tls: none }}\n\
         forward: [ {{ when: {{ subject_contains: invoice }}, to: [gone@example.com] }} ]\n",
        dovecot.port, smtp.port
    );
    std::fs::write(dir.join("work-mail.yaml"), section).unwrap();
    on.courier.cli(&["courier", "reload"]).ok();
    let account = "/api/v1/email/accounts/work-mail";
    on.courier.until(account, |it| it["last_scanned_at"].is_string());
    let mail = "From: joe@example.org\r\nTo: team@example.com\r\nSubject: Hello\r\n\
                Message-ID: <1@example.org>\r\n\r\nHello.\r\n";
    dovecot.deliver("team", "INBOX", mail.as_bytes());
    let task = "/api/v1/email/tasks/eml_1";
    until("the mail is processed", || on.courier.get(task).json()["status"] == "skipped_no_match");
    let scanned = |it: &Value| it["last_round"]["registered"] == 1 && it["last_seen_uid"] == 1;
    on.courier.until(account, scanned);
    on.get("/api/v1/email/accounts");
    on.get(account);
    on.call("POST", &format!("{account}/scan"));
    on.call("POST", &format!("{account}/test"));
    on.get("/api/v1/email/tasks?account=work-mail");
    on.get(task);
    let csv = "name,address,case_numbers\nAnn,ann@example.com,2026-A-17";
    on.record("PUT", "/api/v1/email/directory", &Body::Csv(csv), "");
    on.get("/api/v1/email/directory");
    on.call("POST", &format!("{task}/retry"));
    let invoice = mail.replace("Hello", "Invoice").replace("<1@", "<2@");
    dovecot.deliver("team", "INBOX", invoice.as_bytes());
    let failed = "/api/v1/email/tasks/eml_2";
    until("the forward fails", || on.courier.get(failed).json()["status"] == "error");
    on.call("POST", &format!("{failed}/drop"));
    on.call("POST", &format!("{account}/pause"));
    on.call("POST", &format!("{account}/resume"));
}
