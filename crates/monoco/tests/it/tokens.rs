//! Tokens of agents: scopes, forced sender and workspace, revocation, and recorded reads.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use serde_json::{Value, json};

use crate::common::{Answer, Courier, ME, PATIENCE, chat, raw, until};
use crate::mail_checker::answering;
use crate::webhook_peer::{Receiver, config, courier};

const CODEX: &str = "did:monoco:codex";

/// An agent with its token.
struct Agent<'a> {
    courier: &'a Courier,
    secret: String,
}

impl Agent<'_> {
    fn get(&self, path: &str) -> Answer {
        self.request("GET", path, None)
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        self.request("POST", path, Some(body))
    }

    fn ask(&self, mail: &str, verb: &str, body: &Value) -> Answer {
        self.post(&format!("/api/v1/messages/{mail}/{verb}"), body)
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(method, path, "application/json", &body)
    }

    fn send(&self, method: &str, path: &str, media_type: &str, body: &str) -> Answer {
        let headers = [
            ("Host".to_owned(), format!("localhost:{}", self.courier.address.port())),
            ("Authorization".to_owned(), format!("Bearer {}", self.secret)),
            ("Content-Type".to_owned(), media_type.to_owned()),
        ];
        raw(self.courier.address, method, path, &headers, body.as_bytes()).unwrap()
    }

    /// Opens a stream of events that has started when this returns.
    fn follow(&self) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.courier.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "GET /api/v1/events?after=0 HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
             Accept: text/event-stream\r\nConnection: close\r\n\r\n",
            self.courier.address, self.secret
        )
        .unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), "HTTP/1.1 200 OK");
        stream
    }
}

/// Creates a token with the command line, as a user does.
fn add<'a>(courier: &'a Courier, name: &str, args: &[&str]) -> Agent<'a> {
    let args = [&["token", "add", name], args].concat();
    let secret = courier.cli(&args).ok().trim().to_owned();
    Agent { courier, secret }
}

/// The events of one kind, from the owner's view.
fn events_of(courier: &Courier, kind: &str) -> Vec<Value> {
    let events = courier.get("/api/v1/events?limit=1000").ok()["events"].clone();
    let events = events.as_array().unwrap().iter().filter(|event| event["kind"] == kind);
    events.cloned().collect()
}

/// Whether a file below `dir` contains `text`.
fn contains(dir: &std::path::Path, text: &str) -> bool {
    std::fs::read_dir(dir).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return contains(&path, text);
        }
        let bytes = std::fs::read(&path).unwrap_or_default();
        bytes.windows(text.len()).any(|found| found == text.as_bytes())
    })
}

#[test]
fn token_is_shown_once_listed_and_revoked() {
    let courier = Courier::start();
    let args = ["--scope", "read,claim", "--workspace", "alpha", "--json"];
    let created = courier.cli(&[&["token", "add", "codex"], &args[..]].concat()).ok();
    let created: Value = serde_json::from_str(&created).unwrap();
    let secret = created["secret"].as_str().unwrap().to_owned();
    assert_eq!((created["did"].as_str(), secret.len()), (Some(CODEX), 71));
    let agent = Agent { courier: &courier, secret };
    agent.get("/api/v1/messages").ok();

    let list = || -> Value {
        let list = courier.cli(&["token", "list", "--json"]).ok();
        assert!(!list.contains(&agent.secret), "{list}");
        serde_json::from_str(&list).unwrap()
    };
    let listed = list()["tokens"][0].clone();
    assert_eq!(listed["scopes"], json!(["read", "claim"]));
    assert_eq!((&listed["name"], &listed["workspace"]), (&json!("codex"), &json!("alpha")));
    assert!(listed["last_used_at"].is_string() && listed["revoked_at"].is_null(), "{listed}");

    let again = courier.cli(&["token", "add", "codex", "--scope", "operate"]).failed(1);
    assert!(again.contains("already a token codex"), "{again}");
    courier.cli(&["token", "revoke", "codex"]).ok();
    assert!(list()["tokens"][0]["revoked_at"].is_string());
    for path in ["/api/v1/messages", "/health"] {
        let answer = agent.get(path);
        assert_eq!(answer.refused(401), "revoked_token");
        assert!(answer.headers.to_lowercase().contains("www-authenticate: bearer"));
    }
    let unknown = courier.cli(&["token", "revoke", "claude"]).failed(1);
    assert!(unknown.contains("there is no token claude"), "{unknown}");

    // The name can be used again; the old secret stays invalid.
    let second = add(&courier, "codex", &["--scope", "read"]);
    second.get("/api/v1/messages").ok();
    assert_eq!(agent.get("/api/v1/messages").refused(401), "wrong_token");
    // Valid after a restart, and the secret is in no file.
    let (second, home) = (second.secret, courier.home().to_owned());
    let digits = second.trim_start_matches("monoco_").to_owned();
    assert!(!contains(&home, &digits));
    let courier = courier.restart();
    Agent { courier: &courier, secret: second }.get("/api/v1/messages").ok();
}

#[test]
fn invalid_tokens_are_rejected_with_a_reason() {
    let courier = Courier::start();
    for (args, said) in [
        (&["codex", "--scope", "reed"][..], "did you mean \"read\"?"),
        (&["codex", "--scope", "everything"], "expected one of read, claim"),
        (&["codex", "--scope", "send,approve"], "could approve its own messages"),
        (&["codex", "--scope", "approve", "--scope", "reply"], "could approve its own messages"),
        (&["codex", "--scope", ","], "no scope given"),
        (&["owner", "--scope", "read"], "is reserved"),
        (&["Codex!", "--scope", "read"], "invalid agent name"),
        (&["codex", "--scope", "read", "--as", "codex"], "invalid DID"),
        (&["codex", "--scope", "read", "--workspace", ""], "workspace"),
    ] {
        let error = courier.cli(&[&["token", "add"], args].concat()).failed(1);
        assert!(error.contains(said), "{args:?}: {error}");
    }
    assert_eq!(courier.get("/api/v1/tokens").ok()["tokens"], json!([]));
    // Only the socket creates tokens: a stolen owner's token cannot leave one behind.
    let body = json!({"name": "codex", "scopes": ["operate"]});
    assert_eq!(courier.post("/api/v1/tokens", &body).refused(405), "method_not_allowed");
    for secret in ["monoco_", "monoco_00", &format!("monoco_{}", "0".repeat(64))] {
        let stranger = Agent { courier: &courier, secret: secret.to_owned() };
        assert_eq!(stranger.get("/api/v1/messages").refused(401), "wrong_token");
        assert_eq!(stranger.get("/health").refused(401), "wrong_token");
    }
}

#[test]
fn revoked_token_ends_only_its_own_streams() {
    let courier = Courier::start();
    let (first, second) = (
        add(&courier, "first", &["--scope", "read"]),
        add(&courier, "second", &["--scope", "read"]),
    );
    let (mut ended, mut open) = (first.follow(), second.follow());
    courier.cli(&["token", "revoke", "first"]).ok();
    let mut rest = String::new();
    ended.read_to_string(&mut rest).unwrap();
    // The other stream still gets events.
    courier
        .post("/api/v1/dispatch", &json!({"msg": chat("did:web:ann", "did:monoco:second", "hi")}))
        .ok();
    let deadline = Instant::now() + PATIENCE;
    let mut line = String::new();
    while !line.contains("event: dispatched") {
        assert!(Instant::now() < deadline, "no event");
        line.clear();
        assert_ne!(open.read_line(&mut line).unwrap(), 0, "the stream has ended");
    }
}

#[test]
fn sender_is_forced_by_the_token() {
    let courier = Courier::start();
    courier.put("/api/v1/contacts/did:web:bob", &json!({"names": ["Bob"], "here": true})).ok();
    let agent = add(&courier, "codex", &["--scope", "send,read"]);
    let forged = chat(ME, "did:web:bob", "forged");
    let group = json!({"from": CODEX, "source": ME, "to": ["did:web:bob"], "kind": "group_msg",
                       "content": {"content": "forged"}});
    for msg in [&forged, &group] {
        for path in ["/api/v1/post_send", "/api/v1/dispatch"] {
            let answer = agent.post(path, &json!({ "msg": msg }));
            assert_eq!(answer.refused(403), "forged_sender", "{path}");
            assert_eq!(answer.json()["expected"], CODEX);
        }
        let batch = format!("{}\n", json!({ "msg": msg }));
        let lines = agent.send("POST", "/api/v1/dispatch", "application/x-ndjson", &batch);
        assert_eq!(lines.json()["code"], "forged_sender");
    }
    let own = chat(CODEX, "did:web:bob", "own");
    let through = json!({"msg": own, "ingress": {"tunnel": "lark", "external_id": "1"}});
    assert_eq!(agent.post("/api/v1/dispatch", &through).refused(403), "forged_sender");
    let letter = |from: &str| {
        json!({"from": from, "to": ["did:web:bob"], "data": "forged",
               "extra": {"content_type": "text/plain"}})
    };
    for from in [ME, "me@example.com"] {
        let answer = agent.post("/api/v1/letters", &letter(from));
        assert!([403, 422].contains(&answer.status), "{}", answer.text());
    }
    assert_eq!(agent.post("/api/v1/letters", &letter(ME)).refused(403), "forged_sender");
    let mail = "From: did:monoco:me\r\nTo: did:web:bob\r\nSubject: x\r\n\r\nforged\r\n";
    let path = "/api/v1/letters?from=did:monoco:codex&to=did:web:bob";
    let answer = agent.send("POST", path, "message/rfc822", mail);
    assert_eq!(answer.refused(403), "forged_sender");
    assert_eq!(events_of(&courier, "posted"), [] as [Value; 0]);
    assert_eq!(events_of(&courier, "dispatched"), [] as [Value; 0]);
    assert_eq!(events_of(&courier, "letter"), [] as [Value; 0]);

    // Without a sender, the agent's DID is filled in.
    let mut msg = chat("", "did:web:bob", "hello");
    msg.as_object_mut().unwrap().remove("from");
    let sent = agent.post("/api/v1/post_send", &json!({ "msg": msg })).ok();
    let id = sent["msg_id"].as_str().unwrap();
    assert_eq!(courier.get(&format!("/api/v1/objects/{id}")).ok()["from"], CODEX);
    assert_eq!(agent.get(&format!("/api/v1/trace/{id}")).ok()["msg"]["from"], CODEX);
}

#[test]
fn idempotency_keys_of_callers_are_separate() {
    let courier = Courier::start();
    courier.put("/api/v1/contacts/did:web:bob", &json!({"names": ["Bob"], "here": true})).ok();
    let codex = add(&courier, "codex", &["--scope", "send"]);
    let claude = add(&courier, "claude", &["--scope", "send"]);
    let send = |from: &str, text: &str| json!({"msg": chat(from, "did:web:bob", text), "idempotency_key": "1"});
    let owner = courier.post("/api/v1/post_send", &send(ME, "of the owner")).ok();
    let first = codex.post("/api/v1/post_send", &send(CODEX, "of codex")).ok();
    let second = claude.post("/api/v1/post_send", &send("did:monoco:claude", "of claude")).ok();
    for result in [&owner, &first, &second] {
        assert_eq!(result["duplicate"], false, "{result:#}");
    }
    let again = codex.post("/api/v1/post_send", &send(CODEX, "of codex, later"));
    assert_eq!(again.refused(409), "key_reused");
}

#[test]
fn reply_is_sent_as_the_agent_and_claims_use_its_workspace() {
    let receiver = Receiver::start();
    let approvals = "courier:\n  approvals: { agents: send }\n";
    let config = answering(&receiver, 50).replacen("courier:\n", approvals, 1);
    let courier = courier(&config);
    let mail = courier.mail("room-1");
    let scopes = ["--scope", "read,claim,reply", "--workspace", "alpha"];
    let (agent, other) = (add(&courier, "codex", &scopes), add(&courier, "claude", &scopes));

    for (body, code) in [
        (json!({"agent_id": "claude"}), "foreign_agent"),
        (json!({"workspace": "beta"}), "foreign_workspace"),
    ] {
        for verb in ["claim", "renew", "complete", "fail"] {
            assert_eq!(agent.ask(&mail, verb, &body).refused(403), code, "{verb}");
        }
    }
    let list = agent.get("/api/v1/messages?workspace=beta");
    assert_eq!(list.refused(403), "foreign_workspace");
    let claim = agent.ask(&mail, "claim", &json!({})).ok();
    assert_eq!((&claim["agent_id"], &claim["workspace"]), (&json!("codex"), &json!("alpha")));
    // An agent cannot end the claim of another one, even if it guesses the epoch.
    for verb in ["renew", "complete", "fail"] {
        let guess = json!({"epoch": claim["epoch"]});
        assert_eq!(other.ask(&mail, verb, &guess).refused(409), "claimed", "{verb}");
    }
    let shown = agent.get("/api/v1/messages?status=CLAIMED").ok();
    assert_eq!(shown["messages"][0]["id"], mail.as_str());

    let sent = agent.ask(&mail, "reply", &json!({"text": "Fixed."})).ok();
    receiver.next();
    let id = sent["msg_id"].as_str().unwrap();
    assert_eq!(courier.get(&format!("/api/v1/objects/{id}")).ok()["from"], CODEX);
    let done = json!({"epoch": claim["epoch"], "agent_id": "codex", "workspace": "alpha"});
    assert_eq!(agent.ask(&mail, "complete", &done).ok()["status"], "COMPLETED");
}

#[test]
fn agent_sees_mails_and_its_own_boxes_only() {
    let courier = courier(&config(50));
    let mail = courier.mail("room-1");
    let agent = add(&courier, "codex", &["--scope", "read,claim"]);
    let operator = add(&courier, "ops", &["--scope", "read,operate"]);
    let mine = courier.deliver(CODEX, "for the agent");
    let private = courier.deliver(ME, "for the owner");

    let boxes = agent.get("/api/v1/boxes").ok();
    let owners = boxes["boxes"].as_array().unwrap().iter().map(|found| &found["owner"]);
    assert!(owners.clone().count() > 0 && owners.clone().all(|owner| owner == CODEX), "{boxes}");
    for path in [
        "/api/v1/boxes/did:monoco:me/INBOX",
        "/api/v1/boxes/did:monoco:me/INBOX/peek",
        "/api/v1/sessions?owner=did:monoco:me",
        "/api/v1/sessions/did:web:ann?owner=did:monoco:me",
        &format!("/api/v1/records/{private}"),
    ] {
        assert_eq!(agent.get(path).refused(403), "foreign_box", "{path}");
        operator.get(path).ok();
    }
    let next = "/api/v1/boxes/did:monoco:me/INBOX/next";
    assert_eq!(agent.post(next, &json!({})).refused(403), "foreign_box");
    let state = format!("/api/v1/records/{private}/state");
    assert_eq!(agent.post(&state, &json!({"state": "READED"})).refused(403), "foreign_box");
    let tags = format!("/api/v1/records/{private}/tags");
    assert_eq!(agent.post(&tags, &json!({"add": ["x"]})).refused(403), "foreign_box");

    let msg_id = |record: &str| {
        let record = courier.get(&format!("/api/v1/records/{record}")).ok();
        record["msg_id"].as_str().unwrap().to_owned()
    };
    for (record, status) in [(&mine, 200), (&private, 404)] {
        for path in ["trace", "objects"] {
            let answer = agent.get(&format!("/api/v1/{path}/{}", msg_id(record)));
            assert_eq!(answer.status, status, "{path}: {}", answer.text());
            assert!(!answer.text().contains("for the owner"), "{path}");
        }
        let answer = agent.get(&format!("/api/v1/trace/{record}"));
        assert_eq!(answer.status, status, "{}", answer.text());
        operator.get(&format!("/api/v1/trace/{record}")).ok();
    }
    agent.get(&format!("/api/v1/messages/{mail}/trace")).ok();

    let seen = agent.get("/api/v1/events?limit=1000").ok();
    for event in seen["events"].as_array().unwrap() {
        let detail = &event["detail"];
        let is_own = event["owner"] == CODEX || detail["to"].to_string().contains(CODEX);
        assert!(is_own || detail["mail"].is_string(), "{event}");
    }
    let all = courier.get("/api/v1/events?limit=1000").ok();
    assert_eq!(seen["last"], all["last"], "the page continues behind the hidden events");
    let leased = agent.post("/api/v1/boxes/did:monoco:codex/INBOX/next", &json!({})).ok();
    assert_eq!(leased["record"]["record_id"], mine.as_str());
    let read = json!({"state": "READED", "epoch": leased["record"]["epoch"]});
    agent.post(&format!("/api/v1/records/{mine}/state"), &read).ok();
}

#[test]
fn release_needs_approve_and_retry_needs_operate() {
    let courier = Courier::start();
    courier.put("/api/v1/tunnels/my-net", &json!({"provider": "my-net"})).ok();
    let to = "did:msgtunnel:bob.user.my-net";
    let sent = courier.post("/api/v1/post_send", &json!({"msg": chat(ME, to, "hello")})).ok();
    let delivery = sent["deliveries"][0]["record_id"].as_str().unwrap();
    let state = format!("/api/v1/records/{delivery}/state");
    let (claimer, approver) = (
        add(&courier, "claimer", &["--scope", "read,claim,reply,send"]),
        add(&courier, "approver", &["--scope", "approve"]),
    );
    let operator = add(&courier, "operator", &["--scope", "operate"]);

    let to_state = |to: &str| json!({ "state": to });
    let refused = |agent: &Agent<'_>, scope: &str| {
        let answer = agent.post(&state, &to_state("WAIT"));
        assert_eq!(answer.refused(403), "missing_scope");
        assert_eq!(answer.json()["scope"], scope);
    };
    courier.post(&state, &to_state("HELD")).ok();
    refused(&claimer, "approve");
    refused(&operator, "approve");
    assert_eq!(approver.post(&state, &to_state("WAIT")).ok()["state"], "WAIT");

    let next = "/api/v1/boxes/did:msgtunnel:my-net/TUNNEL_OUTBOX/next";
    assert_eq!(claimer.post(next, &json!({})).refused(403), "foreign_box");
    // The token of a tunnel takes and reports the deliveries of its own tunnel.
    let tunnel =
        add(&courier, "net", &["--scope", "read,claim,send", "--as", "did:msgtunnel:my-net"]);
    let leased = tunnel.post(next, &json!({})).ok();
    assert_eq!(leased["record"]["record_id"], delivery);
    let report = json!({"ok": false, "error": "lost", "epoch": leased["record"]["epoch"]});
    let path = format!("/api/v1/deliveries/{delivery}/report");
    assert_eq!(claimer.post(&path, &report).refused(403), "foreign_box");
    assert_eq!(operator.post(&path, &report).refused(409), "lease_lost");
    assert_eq!(tunnel.post(&path, &report).ok()["state"], "UNCERTAIN");
    refused(&approver, "operate");
    refused(&claimer, "operate");
    refused(&tunnel, "operate");
    assert_eq!(operator.post(&state, &to_state("WAIT")).ok()["state"], "WAIT");
    let inbound = chat("did:msgtunnel:bob.user.my-net", ME, "answer");
    let ingress = json!({"tunnel": "my-net", "external_id": "1"});
    tunnel.post("/api/v1/dispatch", &json!({"msg": inbound, "ingress": ingress})).ok();
}

#[test]
fn first_read_of_a_mail_is_an_event() {
    let courier = courier(&config(50));
    let (first, second) = (courier.mail("room-1"), courier.mail("room-2"));
    let agent = add(&courier, "codex", &["--scope", "read"]);
    let lister = add(&courier, "lister", &["--scope", "read"]);
    courier.get(&format!("/api/v1/messages/{first}")).ok();
    courier.get("/api/v1/messages").ok();
    assert_eq!(events_of(&courier, "read"), [] as [Value; 0], "the owner does not count");
    let msg_id = agent.get(&format!("/api/v1/messages/{first}")).ok()["msg_id"].clone();
    for path in [
        format!("/api/v1/messages/{first}"),
        format!("/api/v1/messages/{first}/trace"),
        format!("/api/v1/objects/{}", msg_id.as_str().unwrap()),
        format!("/api/v1/messages/{second}/trace"),
        format!("/api/v1/messages/{second}"),
        "/api/v1/messages".to_owned(),
    ] {
        agent.get(&path).ok();
    }
    // Titles and previews of strangers count, once.
    lister.get("/api/v1/messages").ok();
    lister.get("/api/v1/messages").ok();
    let reads: Vec<_> = events_of(&courier, "read")
        .iter()
        .map(|event| (event["detail"]["agent"].clone(), event["detail"]["mail"].clone()))
        .collect();
    let expected = [("codex", &first), ("codex", &second), ("lister", &second), ("lister", &first)];
    assert_eq!(reads, expected.map(|(agent, mail)| (json!(agent), json!(mail))));
}

/// The path of a route with values for its parameters.
fn example_path(route: &str) -> String {
    let parts = route.split('/').map(|part| match part {
        "{owner}" | "{did}" | "{target}" | "{sender}" | "{group}" | "{reader}" => "did:web:none",
        "{box}" => "INBOX",
        "{record_id}" => "rec_1",
        "{name}" => "none",
        part if part.starts_with('{') => "none",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn eight_agents_at_once_use_only_the_routes_of_their_scopes() {
    let courier = Courier::start();
    let doc = courier.get("/api/openapi.json").ok();
    let mut routes = Vec::new();
    for (path, item) in doc["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let needed = operation["security"].as_array().unwrap_or_else(|| panic!("{path}"));
            let needed = needed.iter().map(|one| one["token"][0].as_str().unwrap().to_owned());
            routes.push((method.to_uppercase(), path.clone(), needed.collect::<Vec<_>>()));
        }
    }
    assert!(routes.len() > 70, "{}", routes.len());
    let scopes = [
        "read",
        "claim",
        "reply",
        "send",
        "operate",
        "approve",
        "read,claim,reply",
        "operate,approve",
    ];
    let agents: Vec<_> = (scopes.iter().enumerate())
        .map(|(at, scopes)| add(&courier, &format!("agent-{at}"), &["--scope", scopes]))
        .collect();
    std::thread::scope(|threads| {
        for (agent, scopes) in agents.iter().zip(scopes) {
            let routes = &routes;
            threads.spawn(move || {
                let mut rejected = 0;
                for (method, route, needed) in routes {
                    let body = json!({});
                    let body = (method != "GET").then_some(&body);
                    let answer = agent.request(method, &example_path(route), body);
                    let allowed = needed.is_empty()
                        || needed.iter().any(|it| scopes.split(',').any(|own| own == it));
                    if allowed {
                        assert!(
                            answer.status != 401 && !answer.text().contains("missing_scope"),
                            "{scopes}: {method} {route}: {}",
                            answer.text()
                        );
                        continue;
                    }
                    let said = answer.json();
                    assert_eq!(answer.refused(403), "missing_scope", "{scopes}: {method} {route}");
                    assert_eq!(said["scope"], needed.join(" or ").as_str(), "{method} {route}");
                    rejected += 1;
                }
                assert!(rejected > 20, "{scopes}: {rejected}");
            });
        }
    });
    // Revoked while others work: rejected everywhere, from the next request on.
    courier.cli(&["token", "revoke", "agent-4"]).ok();
    for (method, route, _) in &routes {
        let answer = agents[4].request(method, &example_path(route), None);
        assert_eq!(answer.refused(401), "revoked_token", "{method} {route}");
    }
    until("the others still work", || agents[0].get("/api/v1/messages").status == 200);
}
