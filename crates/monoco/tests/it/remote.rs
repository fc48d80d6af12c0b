//! A courier that workspaces on other machines use: TLS, tokens, and a copy of the mailbox.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Courier, PATIENCE, Ran, binary, until, wait_for};
use crate::crash::signal;
use crate::mail_checker::answering;
use crate::mail_servers::TestCa;
use crate::webhook_peer::{Receiver, config, configure};

/// The address under which the tests reach a courier.
const HOST: &str = "127.0.0.2";

/// A courier that listens for other machines.
pub struct Hub {
    pub courier: Courier,
    pub ca: TestCa,
    dir: TempDir,
}

impl Hub {
    /// Adds the listener to a config.
    pub fn start(config: &str) -> Self {
        let (dir, ca) = (tempfile::tempdir().unwrap(), TestCa::create_for(&format!("IP:{HOST}")));
        let home = dir.path().join("home");
        install(&ca, dir.path());
        configure(&home, &with_listener(config, dir.path()));
        Self { courier: Courier::start_in(&home), ca, dir }
    }

    /// What the courier says about itself.
    fn running(&self) -> Value {
        let text = std::fs::read_to_string(self.courier.home().join("run/courier.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        let address: SocketAddr = self.running()["remote"].as_str().unwrap().parse().unwrap();
        SocketAddr::from(([127, 0, 0, 2], address.port()))
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// How many requests to a route succeeded.
    fn requests(&self, route: &str) -> u64 {
        let text = self.courier.get("/metrics").text();
        let line = text.lines().find(|line| {
            line.starts_with("monoco_http_requests_total{")
                && line.contains(&format!("route=\"{route}\""))
                && line.contains("status=\"200\"")
        });
        line.map_or(0, |line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
    }

    /// The directory of the certificate and of the home.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A machine with a token of its own, and a workspace that pulls every Mail.
    pub fn machine(&self, name: &str, scopes: &str) -> Machine {
        let token = self.courier.agent(name, scopes, "alpha");
        Machine::new(&self.url(), &token, &self.ca.file())
    }

    /// One request with curl: the status and the body.
    pub fn curl(&self, path: &str, args: &[&str]) -> (u16, String) {
        let output = Command::new("curl")
            .args(["-s", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.ca.file())
            .args(args)
            .arg(format!("{}{path}", self.url()))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (status.parse().unwrap(), body.to_owned())
    }
}

/// Copies a certificate and its key to where the config names them.
pub fn install(ca: &TestCa, dir: &Path) {
    let (certificate, key) = ca.certificate();
    // A rename, as ACME clients do it.
    for (from, to) in [(certificate, "cert.pem"), (key, "key.pem")] {
        let new = dir.join(format!("{to}.new"));
        std::fs::copy(from, &new).unwrap();
        std::fs::rename(new, dir.join(to)).unwrap();
    }
}

pub fn with_listener(config: &str, dir: &Path) -> String {
    let dir = dir.display();
    let remote = format!(
        "courier:\n  remote: {{ listen: '0.0.0.0:0', names: [{HOST}], certificate: {dir}/cert.pem, \
         key: {dir}/key.pem }}\n"
    );
    config.replacen("courier:\n", &remote, 1)
}

/// Another machine: a home and a workspace without a courier.
pub struct Machine {
    dir: TempDir,
    pub variables: Vec<(&'static str, String)>,
}

impl Machine {
    pub fn new(url: &str, token: &str, ca: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mailbox = dir.path().join("work/.monoco/mailbox");
        std::fs::create_dir_all(&mailbox).unwrap();
        let rules = "mailbox:\n  name: alpha\n  filters: [{ type: provider, value: webhook }]\n";
        std::fs::write(mailbox.join("config.yaml"), rules).unwrap();
        let variables = vec![
            ("MONOCO_URL", url.to_owned()),
            ("MONOCO_TOKEN", token.to_owned()),
            ("MONOCO_CA", ca.display().to_string()),
        ];
        Self { dir, variables }
    }

    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.retain(|(found, _)| *found != name);
        self.variables.push((name, value.to_owned()));
        self
    }

    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.args(args).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
        command.env("MONOCO_HOME", self.dir.path().join("home")).current_dir(self.work());
        command.envs(self.variables.iter().map(|(name, value)| (*name, value.as_str())));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn cli(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub fn json(&self, args: &[&str]) -> Value {
        let text = self.cli(&[args, &["--json"]].concat()).ok();
        serde_json::from_str(&text).unwrap()
    }

    /// The only Mail in a list, with its status.
    #[track_caller]
    fn only_mail(&self) -> (String, String) {
        let list = self.json(&["mailbox", "list"]);
        let [mail] = list["messages"].as_array().unwrap().as_slice() else { panic!("{list:#}") };
        let text = |key: &str| mail[key].as_str().unwrap().to_owned();
        (text("id"), text("status"))
    }
}

/// Waits for a line of a process.
#[track_caller]
fn next_line(lines: &mut impl BufRead) -> String {
    let mut line = String::new();
    assert!(lines.read_line(&mut line).unwrap() > 0, "the process has ended");
    line.trim_end().to_owned()
}

/// A process that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn workspace_on_another_machine_waits_reads_claims_answers_and_completes() {
    let receiver = Receiver::start();
    let hub = Hub::start(&answering(&receiver, 50));
    let (one, two) = (hub.machine("one", "read,claim,reply"), hub.machine("two", "read,claim"));
    let mut waiting =
        Running(one.command(&["mailbox", "wait", "--timeout", "60"]).spawn().unwrap());
    let mut found = BufReader::new(waiting.0.stdout.take().unwrap());
    hub.courier.hears("evt-1", "room-7", "ann", "the build is red");
    let file = PathBuf::from(next_line(&mut found));
    assert!(waiting.0.wait().unwrap().success());
    assert!(file.starts_with(one.work()), "{}", file.display());

    // The file is byte for byte that of the courier.
    let name = file.file_name().unwrap();
    let own = hub.courier.home().join("mailbox/inbound/webhook").join(name);
    until("the courier has written the file", || own.exists());
    assert_eq!(std::fs::read(&file).unwrap(), std::fs::read(&own).unwrap());

    let (id, status) = one.only_mail();
    assert_eq!(status, "NEW");
    let read = one.cli(&["mailbox", "read", &id]).ok();
    assert!(read.contains("the build is red") && read.contains("MONOCO-FENCE"), "{read}");
    let claim = one.json(&["mailbox", "claim", &id, "--timeout", "60"]);
    assert_eq!((&claim["agent_id"], &claim["workspace"]), (&json!("one"), &json!("alpha")));

    // The same workspace on a second machine sees the claim.
    assert!(two.cli(&["mailbox", "sync"]).ok().starts_with("pulled 1"));
    assert_eq!(two.only_mail(), (id.clone(), "CLAIMED".to_owned()));
    let held = two.cli(&["mailbox", "claim", &id]).failed(2);
    assert!(held.contains("claimed by one"), "{held}");
    let other = two.cli(&["mailbox", "done", &id]).failed(2);
    assert!(other.contains("claimed by one"), "{other}");

    let sent = one.json(&["mailbox", "reply", &id, "-m", "it is green again"]);
    assert_eq!(sent["state"], "HELD", "{sent}");
    let approval = sent["approval"]["id"].as_str().unwrap();
    hub.courier.post(&format!("/api/v1/approvals/{approval}/approve"), &json!({})).ok();
    let body: Value = serde_json::from_str(&receiver.next().body).unwrap();
    assert_eq!(body["text"], "it is green again");
    let renewed = one.json(&["mailbox", "renew", &id]);
    assert!(renewed["expires_at"].as_str() > claim["expires_at"].as_str());
    assert_eq!(one.json(&["mailbox", "done", &id])["status"], "COMPLETED");
    assert_eq!(two.only_mail().1, "COMPLETED");

    // The rest of the commands that a token allows.
    let trace = one.json(&["trace", &id]);
    assert!(trace["events"].as_array().unwrap().iter().any(|event| event["kind"] == "completed"));
    wait_for(|| {
        let found = one.json(&["search", "build"]);
        let count = found["messages"].as_array().map_or(0, Vec::len);
        if count == 1 { Ok(()) } else { Err(found.to_string()) }
    });
    assert!(one.cli(&["events"]).ok().contains("claimed"));
    assert_eq!(one.json(&["mailbox", "list", "--global"])["messages"][0]["id"], json!(id));
    let explained = one.cli(&["mailbox", "explain", &id]).ok();
    assert!(explained.contains("alpha pulls"), "{explained}");
}

#[test]
fn first_sync_copies_many_files_with_few_requests() {
    let hub = Hub::start(&config(50));
    let machine = hub.machine("one", "read,claim");
    // More than one response has room for.
    let long = "a line of a long text\n".repeat(11_000);
    for n in 0..20 {
        hub.courier.hears(&format!("long-{n}"), &format!("long-{n}"), "ann", &long);
    }
    for n in 0..60 {
        hub.courier.hears(&format!("evt-{n}"), &format!("room-{n}"), "ann", &format!("no. {n}"));
    }
    let mails = hub.courier.mails(80);
    let summary = machine.json(&["mailbox", "sync"]);
    assert_eq!((&summary["pulled"], &summary["copied"]), (&json!(80), &json!(80)), "{summary}");
    // The files do not fit into one response, and a slow courier ends a response earlier.
    let asked = hub.requests("/api/v1/mailbox/files");
    assert!((2..20).contains(&asked), "asked {asked} times");
    let others = ["/api/v1/messages/{id}/file", "/api/v1/mailbox/index"];
    assert_eq!(others.map(|route| hub.requests(route)), [0, 2]);
    for mail in mails.iter().step_by(11) {
        let name = mail["file"].as_str().unwrap();
        let copy = std::fs::read(machine.work().join(".monoco/mailbox/inbox").join(name)).unwrap();
        let own = hub.courier.home().join("mailbox/inbound/webhook").join(name);
        until("the courier has written the file", || own.exists());
        assert_eq!(copy, std::fs::read(own).unwrap(), "{name}");
    }
    // Each copied file is a read of the token, and other ids are answered one by one.
    let token = &machine.variables[1].1;
    let authorization = format!("Authorization: Bearer {token}");
    let unknown = format!("webhook_{}", "0".repeat(24));
    let ids = json!({"ids": [unknown, mails[79]["id"]]}).to_string();
    let args = ["-H", &authorization, "-H", "Content-Type: application/json", "-d", &ids];
    let (status, body) = hub.curl("/api/v1/mailbox/files", &args);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["files"][0]["code"]), (200, &json!("not_found")), "{body}");
    assert!(body["files"][1]["file"].as_str().unwrap().contains("no. 59"), "{body}");
    let activity = hub.courier.cli(&["events", "--after", "0", "--limit", "1000", "--json"]).ok();
    let activity: Value = serde_json::from_str(&activity).unwrap();
    let events = activity["events"].as_array().unwrap().iter();
    assert_eq!(events.filter(|event| event["kind"] == "read").count(), 80);
}

#[test]
fn idle_wait_makes_few_requests_and_ends_at_its_timeout() {
    let hub = Hub::start(&config(50));
    let machine = hub.machine("one", "read,claim");
    let began = Instant::now();
    let said = machine.cli(&["mailbox", "wait", "--timeout", "6"]).failed(1);
    assert!(said.contains("no Mail to claim within the timeout"), "{said}");
    assert!(began.elapsed() >= Duration::from_secs(6));
    // The first copy of the index, and once more when the stream of hints is open.
    let asked = hub.requests("/api/v1/mailbox/index");
    assert!(asked <= 4, "asked {asked} times");
    assert_eq!(hub.requests("/api/v1/events"), 1);

    // A claim that ends makes the Mail claimable, which a hint says too.
    hub.courier.hears("evt-1", "room-1", "ann", "first");
    let id = hub.courier.mails(1)[0]["id"].as_str().unwrap().to_owned();
    machine.cli(&["mailbox", "sync"]).ok();
    machine.cli(&["mailbox", "claim", &id]).ok();
    let mut waiting =
        Running(machine.command(&["mailbox", "wait", "--timeout", "60"]).spawn().unwrap());
    let mut found = BufReader::new(waiting.0.stdout.take().unwrap());
    until("the wait has asked for the claim", || hub.requests("/api/v1/events") == 2);
    machine.cli(&["mailbox", "fail", &id, "--reason", "not now"]).ok();
    next_line(&mut found);
    assert!(waiting.0.wait().unwrap().success());
    let asked = hub.requests("/api/v1/messages/status");
    assert!(asked <= 8, "asked {asked} times for claims");
}

#[test]
fn wait_ends_at_its_timeout_when_the_courier_does_not_answer() {
    let hub = Hub::start(&config(50));
    let machine = hub.machine("one", "read,claim");
    machine.cli(&["mailbox", "sync"]).ok();
    let mut waiting = machine.command(&["mailbox", "wait", "--timeout", "8"]).spawn().unwrap();
    until("the wait has begun", || hub.requests("/api/v1/events") == 1);
    signal(&hub.courier, Signal::STOP);
    let (stopped, limit) = (Instant::now(), Duration::from_secs(30));
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
    // It has never answered: the error says so, and not that there is no Mail.
    let said = machine.cli(&["mailbox", "wait", "--timeout", "2"]).failed(3);
    assert!(said.contains("has not answered within the timeout"), "{said}");
    // A request has 70 s, and a handshake 10 s.
    assert!(stopped.elapsed() < limit, "{:?}", stopped.elapsed());
    signal(&hub.courier, Signal::CONT);
}

#[test]
fn command_runs_on_mails_of_another_machine_and_survives_a_restart_of_the_courier() {
    let mut hub = Hub::start(&config(50));
    let machine = hub.machine("one", "read,claim");
    let args = ["mailbox", "watch", "--exec", "cat > text; echo worked"];
    // The address stays the same over the restart.
    let home = hub.courier.home().to_owned();
    let text = std::fs::read_to_string(home.join("courier/config.yaml")).unwrap();
    let fixed = format!("0.0.0.0:{}", hub.address().port());
    configure(&home, &text.replace("0.0.0.0:0", &fixed));
    let mut watching = Running(machine.command(&args).spawn().unwrap());
    let mut output = BufReader::new(watching.0.stdout.take().unwrap());
    hub.courier.hears("evt-1", "room-1", "ann", "first");
    assert_eq!(next_line(&mut output), "worked");
    hub.courier = hub.courier.restart();
    hub.courier.hears("evt-2", "room-2", "bob", "second");
    assert_eq!(next_line(&mut output), "worked");
    let text = std::fs::read_to_string(machine.work().join("text")).unwrap();
    assert!(text.contains("second"), "{text}");
    until("both are completed", || {
        let list = machine.json(&["mailbox", "list", "--status", "completed"]);
        list["messages"].as_array().unwrap().len() == 2
    });
    drop(watching);
}

#[test]
fn erased_text_disappears_from_the_other_machine() {
    let hub = Hub::start(&config(50));
    let machine = hub.machine("one", "read,claim");
    hub.courier.hears("evt-1", "room-1", "ann", "a secret");
    hub.courier.hears("evt-2", "room-2", "bob", "harmless");
    until("both are pulled", || {
        machine.cli(&["mailbox", "sync"]).ok();
        machine.json(&["mailbox", "list"])["messages"].as_array().unwrap().len() == 2
    });
    let list = machine.json(&["mailbox", "list"]);
    let secret = list["messages"].as_array().unwrap().iter();
    let secret = secret.clone().find(|mail| mail["preview"] == "a secret").unwrap().clone();
    let account = "did:msgtunnel:ann.user.ci";
    hub.courier.cli(&["forget", account, "--yes"]).ok();
    until("the copy is gone", || {
        machine.cli(&["mailbox", "sync"]).ok();
        !Path::new(secret["file"].as_str().unwrap()).exists()
    });
    assert_eq!(machine.json(&["mailbox", "list"])["messages"].as_array().unwrap().len(), 1);
}

#[test]
fn certificate_is_renewed_while_clients_are_connected() {
    let hub = Hub::start(&config(50));
    let machine = hub.machine("one", "read,claim");
    let follow = ["events", "--follow", "--after", "0", "--json"];
    let mut following = Running(machine.command(&follow).spawn().unwrap());
    let mut events = BufReader::new(following.0.stdout.take().unwrap());
    hub.courier.hears("evt-1", "room-1", "ann", "before");
    next_line(&mut events);

    let reload = |hub: &Hub| hub.courier.cli(&["courier", "reload"]);
    let renewed = TestCa::create_for(&format!("IP:{HOST}"));
    // A key of another certificate, and a key that others can read, change nothing.
    let key = hub.dir().join("key.pem");
    std::fs::copy(renewed.certificate().1, &key).unwrap();
    let mismatch = reload(&hub).failed(1);
    assert!(mismatch.contains("does not belong to the certificate"), "{mismatch}");
    install(&renewed, hub.dir());
    Command::new("chmod").arg("644").arg(&key).status().unwrap();
    let open = reload(&hub).failed(1);
    assert!(open.contains("other users can read the key"), "{open}");
    assert!(machine.cli(&["events"]).ok().contains("merged"));

    Command::new("chmod").arg("600").arg(&key).status().unwrap();
    let replaced = reload(&hub);
    let said = format!("{}{}", replaced.stdout, replaced.stderr);
    assert!(replaced.code == 0 && said.contains("remote certificate: replaced"), "{said}");
    let unknown = machine.cli(&["events"]).failed(4);
    assert!(unknown.contains("unknown CA"), "{unknown}");
    let token = hub.courier.agent("two", "read", "alpha");
    let trusting = Machine::new(&hub.url(), &token, &renewed.file());
    trusting.cli(&["events"]).ok();
    // The connection from before still works.
    let last = trusting.json(&["events"])["last"].as_i64().unwrap();
    hub.courier.hears("evt-2", "room-2", "bob", "after");
    loop {
        let event: Value = serde_json::from_str(&next_line(&mut events)).unwrap();
        if event["seq"].as_i64().unwrap() > last {
            break;
        }
    }
    drop(following);
}

#[test]
fn slow_handshakes_do_not_delay_other_clients() {
    let hub = Hub::start(&config(50));
    let address = hub.address();
    let mut slow: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    for (n, stream) in slow.iter_mut().enumerate() {
        // Half of them send a part of a handshake.
        if n % 2 == 0 {
            stream.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
        }
    }
    let (status, body) = hub.curl("/health", &["--max-time", "4"]);
    assert!(status == 200 && body.contains("ok"), "{status} {body}");
    // The courier ends them after 5 s.
    for stream in &mut slow {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let (status, _) = hub.curl("/health", &[]);
    assert_eq!(status, 200);
}

#[test]
fn mcp_works_from_another_machine_over_stdio_and_http() {
    let hub = Hub::start(&config(50));
    let machine = hub.machine("one", "read,claim,reply");
    let call = |id: u64, method: &str, params: Value| {
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
    };
    let client = json!({"name": "test", "version": "1"});
    let start = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    let whoami = json!({"name": "whoami", "arguments": {}});
    let mut mcp = machine.command(&["mcp"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = mcp.stdin.take().unwrap();
    let mut stdout = BufReader::new(mcp.stdout.take().unwrap());
    let _running = Running(mcp);
    writeln!(stdin, "{}", call(1, "initialize", start)).unwrap();
    assert!(next_line(&mut stdout).contains("serverInfo"));
    writeln!(stdin, "{}", call(2, "tools/call", whoami.clone())).unwrap();
    let answer = next_line(&mut stdout);
    assert!(answer.contains("one") && answer.contains("alpha"), "{answer}");

    let token = &machine.variables[1].1;
    let (authorization, body) =
        (format!("Authorization: Bearer {token}"), call(3, "tools/call", whoami));
    let args = [
        "-H",
        &authorization,
        "-H",
        "Content-Type: application/json",
        "-H",
        "Accept: application/json, text/event-stream",
        "-d",
        &body,
    ];
    let (status, answer) = hub.curl("/mcp", &args);
    assert!(status == 200 && answer.contains("alpha"), "{status} {answer}");
}
