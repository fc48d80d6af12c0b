//! The web page in Debian's Chromium, driven by playwright-core.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Answer, Courier, binary, chat, header, raw};
use crate::mail_checker::answering;
use crate::sim_harness::node_command;
use crate::tidy::root;
use crate::webhook_peer::{Receiver, SECRET, body, config, courier};

/// Texts that become code on careless pages.
pub const HOSTILE: [&str; 8] = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>",
    "[click](javascript:alert(1))",
    "![pixel](https://tracker.test/p.png)",
    "<meta http-equiv=refresh content=\"0;url=https://evil.test\">",
    "<style>@import 'https://evil.test/x.css'</style>",
    "\u{202e}gnp.exe ${alert(1)} {{constructor.constructor('alert(1)')()}}",
];

/// Every view, by its address.
const VIEWS: [&str; 11] = [
    "#/inbox",
    "#/inbox?view=requests",
    "#/search?q=build",
    "#/conversations",
    "#/approvals",
    "#/dead",
    "#/pipeline",
    "#/trace",
    "#/health",
    "#/agents",
    "#/agents/codex",
];

/// Screenshots that the README shows. `UPDATE_SCREENSHOTS=1` copies them.
const README_IMAGES: [(&str, &str); 3] = [
    ("inbox-light-wide.png", "page-inbox.png"),
    ("mail-one-light-wide.png", "page-mail.png"),
    ("health-dark-wide.png", "page-health.png"),
];

/// A scenario of `browser.mjs` that runs.
pub struct Browser {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Browser {
    /// Starts a scenario with a new link of the courier's page.
    pub fn start(courier: &Courier, scenario: &str, args: &[&str]) -> Self {
        let link = link(courier);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/browser.mjs");
        let mut command = node_command();
        command.arg(script).args([scenario, &link]).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, input, output }
    }

    /// The next line that the scenario prints.
    #[track_caller]
    pub fn next(&mut self) -> Value {
        let line = self.output.next().expect("the browser prints a line").unwrap();
        let value: Value = serde_json::from_str(&line).unwrap();
        assert!(value["failed"].is_null(), "{}", value["failed"].as_str().unwrap_or_default());
        value
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Waits until the scenario has passed, and returns what it printed before.
    #[track_caller]
    pub fn passed(mut self) -> Value {
        let mut last = Value::Null;
        loop {
            let value = self.next();
            if value["passed"] == true {
                assert!(self.process.wait().unwrap().success());
                return last;
            }
            last = value;
        }
    }
}

/// A link that logs in one browser.
fn link(courier: &Courier) -> String {
    let printed = courier.cli(&["open", "--print"]).ok();
    let link = printed.trim().to_owned();
    assert!(link.starts_with("http://monoco-") && link.contains(".localhost:"), "{link}");
    link
}

/// The secret of a new token of an agent.
pub fn agent_token(courier: &Courier, name: &str, scopes: &str) -> String {
    let added = courier.cli(&["token", "add", name, "--scope", scopes, "--json"]).ok();
    let added: Value = serde_json::from_str(&added).unwrap();
    added["secret"].as_str().unwrap().to_owned()
}

/// Posts with the token of an agent.
pub fn post_as(courier: &Courier, secret: &str, path: &str, body: &Value) -> Answer {
    let body = body.to_string();
    raw(courier.address, "POST", path, &agent_headers(courier, secret), body.as_bytes()).unwrap()
}

/// Gets with the token of an agent.
pub fn get_as(courier: &Courier, secret: &str, path: &str) -> Answer {
    raw(courier.address, "GET", path, &agent_headers(courier, secret), b"").unwrap()
}

fn agent_headers(courier: &Courier, secret: &str) -> Vec<(String, String)> {
    [
        ("Host", courier.address.to_string()),
        ("Authorization", format!("Bearer {secret}")),
        ("Content-Type", "application/json".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

fn screenshots() -> PathBuf {
    root().join("target/page-screenshots")
}

/// A hub with Mails, conversations, dead letters and letters of several kinds.
fn full_hub() -> Courier {
    let courier = courier(&format!(
        "courier:\n  debounce: {{ window_ms: 100, max_wait_ms: 60000 }}\n  adapters:\n    \
         ci: {{ provider: webhook, verify: standard, secret: '{SECRET}' }}\n    \
         chat: {{ provider: stub, idempotent: false, strangers: hold }}\n    \
         news: {{ provider: stub }}\n  pipeline:\n    inbound: [block, spam, deliver]\n    \
         outbound: [spam, send]\n    workers:\n      \
         spam: {{ kind: spam, rules: [{{ name: casino, text: casino, score: 10 }}] }}\n"
    ));
    let talks = [
        ("Ops", "Ann", "The nightly build is red again. @monoco::alpha can you look?"),
        ("Deploys", "Cem", "Shall we hold deploy 42 until the build is **green**?"),
        ("销售", "王芳", "客户想知道新版本什么时候发布，最好今天答复。"),
        ("Incident 1207", "PagerDuty", "High latency on `api-3`: p99 4.2 s since 02:14 UTC"),
        ("Billing", "Dave", "Could you send me the invoice of March again?"),
        ("Support", "Maria", "The export stops at 99 % since this morning. Ticket 8841."),
    ];
    for (number, (name, from, text)) in talks.iter().enumerate() {
        let mut message = body(&format!("evt-{number}"), &format!("room-{number}"), from, text);
        message["session"]["name"] = json!(name);
        courier.push(&message).ok();
    }
    let mails = courier.mails(talks.len());
    let id = |number: usize| mails[number]["id"].as_str().unwrap();
    let ask = |number: usize, verb: &str, body: Value| {
        courier.post(&format!("/api/v1/messages/{}/{verb}", id(number)), &body).ok()
    };
    ask(1, "claim", json!({"agent_id": "codex", "timeout": 3600}));
    ask(5, "claim", json!({"agent_id": "claude"}));
    let reason = "no access to the export log";
    ask(5, "fail", json!({"agent_id": "claude", "reason": reason, "retryable": false}));
    let owner = json!({"here": true, "names": ["me"]});
    courier.put("/api/v1/contacts/did:monoco:me", &owner).ok();
    for (to, text) in [
        ("refuse.user.chat", "Your invoice is attached."),
        ("lose.user.chat", "The meeting moved to 15:00."),
        ("ann.user.news", "Deploy 42 is done."),
    ] {
        let msg = json!({"from": "did:monoco:me", "to": [format!("did:msgtunnel:{to}")],
                         "kind": "chat", "content": {"content": text}});
        courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
    }
    for (tunnel, from, text) in [
        ("news", "ann", "Thanks! The build is green again."),
        ("chat", "stranger", "Hello, I found your address on the site."),
    ] {
        let msg = json!({"from": format!("did:msgtunnel:{from}.user.{tunnel}"),
                         "to": ["did:monoco:me"], "kind": "chat", "content": {"content": text}});
        let ingress = json!({"tunnel": tunnel, "external_id": from});
        courier.post("/api/v1/dispatch", &json!({"msg": msg, "ingress": ingress})).ok();
    }
    let letter = json!({"from": "did:monoco:me", "to": ["did:msgtunnel:bob.user.news"],
        "data": "Our casino is open.",
        "extra": {"content_type": "text/plain", "subject": "News", "tunnel": "news"}});
    courier.post("/api/v1/letters", &letter);
    let secret = agent_token(&courier, "codex", "read,send");
    get_as(&courier, &secret, &format!("/api/v1/messages/{}", id(0))).ok();
    let msg = chat("did:monoco:codex", "did:msgtunnel:ann.user.news", "Shall I renew it now?");
    post_as(&courier, &secret, "/api/v1/post_send", &json!({"msg": msg})).ok();
    courier.until("/health", |health| {
        health["dead"]["deliveries"] == 2
            && health["adapters"]["news"]["sent"] == 1
            && health["pending_approvals"] == 1
    });
    courier
}

#[test]
fn webhook_appears_without_reload_and_after_a_restart() {
    let mut courier = courier(&config(50));
    let port = courier.address.port().to_string();
    let home = courier.home().to_owned();
    let mut browser = Browser::start(&courier, "live", &[]);
    assert_eq!(browser.next()["ready"], true);
    courier.hears("evt-1", "room-1", "ann", "the first message");
    browser.tell("the first message");
    assert_eq!(browser.next()["seen"], true);
    courier.kill();
    assert_eq!(browser.next()["disconnected"], true);
    let mut command = Command::new(binary());
    command.args(["courier", "start", "--foreground", "--port", &port]);
    let restarted = Courier::spawn(&home, &mut command);
    restarted.hears("evt-2", "room-2", "bob", "the second message");
    browser.tell("the second message");
    assert_eq!(browser.passed()["resumed"], true);
    drop(restarted);
}

#[test]
fn mail_is_read_claimed_answered_and_done_by_keyboard() {
    let receiver = Receiver::start();
    let courier = courier(&answering(&receiver, 50));
    courier.hears("evt-1", "room-1", "ann", "please look");
    courier.mails(1);
    let printed = Browser::start(&courier, "keyboard", &[]).passed();
    let mail = courier.get(&format!("/api/v1/messages/{}", printed["mail"].as_str().unwrap())).ok();
    assert_eq!(mail["claims"][0]["status"], "COMPLETED");
    let sent = receiver.next();
    assert!(sent.body.contains("ceej: fixed"), "{}", sent.body);
}

#[test]
fn hostile_texts_run_nothing_and_load_nothing() {
    let courier = courier(&config(50));
    for (number, text) in HOSTILE.iter().enumerate() {
        let mut message = body(&format!("evt-{number}"), &format!("room-{number}"), text, text);
        message["session"]["name"] = json!(text);
        message["title"] = json!(text);
        courier.push(&message).ok();
    }
    // All of them in one text, and a long line.
    let all = format!("{}\n{}", HOSTILE.join("\n"), "x".repeat(200_000));
    courier.hears("evt-all", "room-all", "m", &all);
    let mails = courier.mails(HOSTILE.len() + 1);
    let mut addresses: Vec<String> = VIEWS.iter().map(|it| (*it).to_owned()).collect();
    for mail in &mails {
        let id = mail["id"].as_str().unwrap();
        let claim = json!({"agent_id": HOSTILE[1]});
        courier.post(&format!("/api/v1/messages/{id}/claim"), &claim);
        let failure = json!({"agent_id": HOSTILE[1], "reason": HOSTILE[0], "retryable": false});
        courier.post(&format!("/api/v1/messages/{id}/fail"), &failure);
        addresses.extend([
            format!("#/mail/{id}"),
            format!("#/mail/{id}?as=formatted"),
            format!("#/trace/{id}"),
        ]);
    }
    addresses.push("#/mail/%3Cscript%3Ealert(1)%3C/script%3E".to_owned());
    addresses.push("#/trace/%E0%A4%A".to_owned());
    let args: Vec<&str> = addresses.iter().map(String::as_str).collect();
    Browser::start(&courier, "hostile", &args).passed();
}

#[test]
fn every_view_is_accessible_in_both_themes() {
    let courier = full_hub();
    let mails = courier.get("/api/v1/messages?limit=10").ok();
    let id = mails["messages"].as_array().unwrap().iter();
    let id = id.map(|it| it["id"].as_str().unwrap()).next_back().unwrap();
    let out = screenshots();
    let approvals = courier.get("/api/v1/approvals").ok();
    let approval = approvals["approvals"][0]["id"].as_str().unwrap();
    let opened = [
        format!("#/mail/{id}"),
        format!("#/trace/{id}"),
        format!("#/approvals/{approval}"),
        "#/conversations/did%3Amsgtunnel%3Aann.user.news?owner=did:monoco:me".to_owned(),
    ];
    let mut args = vec![out.to_str().unwrap()];
    args.extend(VIEWS.iter().filter(|it| !it.contains("view=") && **it != "#/trace"));
    args.extend(opened.iter().map(String::as_str));
    let printed = Browser::start(&courier, "views", &args).passed();
    assert_eq!(printed["violations"], json!([]), "{printed:#}");
    if std::env::var_os("UPDATE_SCREENSHOTS").is_some() {
        for (name, image) in README_IMAGES {
            let image = root().join("docs/images").join(image);
            std::fs::copy(out.join(name), image).unwrap();
        }
    }
}

#[test]
fn other_servers_get_no_cookie_and_a_code_works_once() {
    let courier = courier(&config(50));
    let printed = Browser::start(&courier, "others", &[]).passed();
    assert!(printed["requests"].as_u64().unwrap() > 0);
    let file = std::fs::read_to_string(courier.home().join("run/page.json")).unwrap();
    assert!(!file.contains("monoco_"), "a secret is stored");
}

#[test]
fn of_two_browsers_that_answer_an_approval_one_is_told_who_was_first() {
    let courier = courier("courier:\n  adapters:\n    news: { provider: stub }\n");
    let secret = agent_token(&courier, "codex", "read,send");
    let msg = chat("did:monoco:codex", "did:msgtunnel:ann.user.news", "May I send this?");
    post_as(&courier, &secret, "/api/v1/post_send", &json!({"msg": msg})).ok();
    let listed =
        courier.until("/api/v1/approvals", |list| list["approvals"][0]["state"] == "PENDING");
    let id = listed["approvals"][0]["id"].as_str().unwrap();
    Browser::start(&courier, "approvals", &[&link(&courier), id]).passed();
    let approval = courier.get(&format!("/api/v1/approvals/{id}")).ok();
    assert_eq!(approval["state"], "APPROVED");
    courier.until("/health", |health| health["adapters"]["news"]["sent"] == 1);
}

#[test]
fn list_of_many_mails_has_few_rows() {
    let courier = courier(&config(0));
    for number in 0..250 {
        courier.hears(&format!("evt-{number}"), &format!("room-{number}"), "ann", "hello");
    }
    courier.mails(250);
    let printed = Browser::start(&courier, "many", &[]).passed();
    assert!((10..=200).contains(&printed["rows"].as_u64().unwrap()), "{printed}");
    assert!((10..=200).contains(&printed["older"].as_u64().unwrap()), "{printed}");
    assert!(printed["transferred"].as_u64().unwrap() < 60_000, "{printed}");
}

#[test]
fn revoked_login_says_how_to_log_in_again() {
    let courier = courier(&config(50));
    let mut browser = Browser::start(&courier, "revoked", &[]);
    assert_eq!(browser.next()["ready"], true);
    let printed = courier.cli(&["open", "--revoke", "--json"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&printed).unwrap()["revoked"], 1);
    browser.tell("revoked");
    assert_eq!(browser.passed()["logged_out"], true);
}

#[test]
fn files_of_the_page_need_no_token_and_are_protected() {
    let courier = courier(&config(50));
    let host = ("Host".to_owned(), courier.address.to_string());
    let get = |path: &str, more: &[(&str, &str)]| {
        let more = more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let headers: Vec<_> = std::iter::once(host.clone()).chain(more).collect();
        raw(courier.address, "GET", path, &headers, b"").unwrap()
    };
    let page = get("/", &[("Sec-Fetch-Site", "cross-site")]);
    assert_eq!(page.status, 200);
    let policy = header(&page.headers, "content-security-policy").unwrap();
    for rule in ["default-src 'none'", "script-src 'self'", "trusted-types 'none'"] {
        assert!(policy.contains(rule), "{policy}");
    }
    let script = get("/assets/app.js", &[]);
    assert_eq!(script.status, 200);
    let etag = header(&script.headers, "etag").unwrap().to_owned();
    assert_eq!(get("/assets/app.js", &[("If-None-Match", &etag)]).status, 304);
    assert_eq!(get("/assets/none.js", &[]).status, 404);
    assert_eq!(get("/assets/../run/courier.token", &[]).status, 404);
    assert_eq!(get("/api/v1/messages", &[("Sec-Fetch-Site", "same-origin")]).status, 401);
}

#[test]
fn page_uses_the_api_as_the_api_document_describes_it() {
    let packages = root().join("target/reference-npm/node_modules");
    let compiler = packages.join("typescript/bin/tsc");
    assert!(compiler.exists(), "TypeScript is missing: {compiler:?}; run ./test once");
    let types = root().join("target/page-types");
    std::fs::create_dir_all(&types).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/api_types.mjs");
    let run = |command: &mut Command| {
        let ran = command.output().unwrap();
        let printed = [ran.stdout, ran.stderr].concat();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&printed));
    };
    let document = root().join("docs/openapi.json");
    run(Command::new("node").args([script, document, types.join("api.d.ts")]));
    let project = root().join("page/tsconfig.json");
    run(Command::new("node").arg(compiler).arg("--project").arg(project));
}
