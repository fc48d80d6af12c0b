//! A real rspamd as the worker `spam`: what it catches, what it lets through, and what
//! happens while it is away.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{raw, until};
use crate::pipeline_harness::{PipelineCourier, free_port, mail, said, verdicts};

/// The line that every spam filter takes for spam, as the EICAR file is for viruses.
const GTUBE: &str = "XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X";

/// An rspamd started by the test that asks no other service: no name server, no Redis.
struct Rspamd {
    process: Option<Child>,
    port: u16,
    dir: TempDir,
}

impl Rspamd {
    /// One that is ready to be run.
    fn install() -> Self {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
        let (place, db) = (dir.path(), dir.path().join("db"));
        std::fs::create_dir(&db).unwrap();
        // It gives up its rights, and has to find its files all the same.
        let open = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        open(place, 0o755);
        open(&db, 0o777);
        std::fs::write(place.join("tld.dat"), "com\norg\n").unwrap();
        std::fs::write(place.join("rspamd.conf"), config(place, port)).unwrap();
        Self { process: None, port, dir }
    }

    fn start() -> Self {
        let mut rspamd = Self::install();
        rspamd.run();
        rspamd
    }

    /// Runs, and waits until it answers.
    fn run(&mut self) {
        let mut command = Command::new("rspamd");
        command.arg("-f").arg("-c").arg(self.dir.path().join("rspamd.conf"));
        command.args(["-u", "nobody", "-g", "nogroup"]).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|error| {
            panic!("these tests need rspamd: apt-get install rspamd ({error})")
        });
        self.process = Some(process);
        until("rspamd answers", || self.answers());
    }

    fn answers(&self) -> bool {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let host = [("Host".to_owned(), "localhost".to_owned())];
        raw(address, "GET", "/ping", &host, b"").is_ok_and(|answer| answer.text().contains("pong"))
    }

    /// `kill -9`, of its workers as well.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = kill_process_group(Pid::from_child(&process), Signal::KILL);
            process.wait().unwrap();
        }
    }

    /// The settings of a worker that asks it.
    fn worker(&self) -> Value {
        json!({"rspamd": format!("http://127.0.0.1:{}", self.port), "timeout_s": 10})
    }
}

impl Drop for Rspamd {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A config with nothing but what it has built in: GTUBE, and its actions.
fn config(place: &Path, port: u16) -> String {
    let place = place.display();
    format!(
        "options {{
  filters = \"\";
  dns {{ nameserver = [\"127.0.0.1:9\"]; timeout = 0.1s; retransmits = 1; }}
  url_tld = \"{place}/tld.dat\"; pidfile = \"{place}/db/rspamd.pid\";
  control_socket = \"{place}/db/rspamd.sock mode=0600\"; hs_cache_dir = \"{place}/db/\";
  cache_file = \"{place}/db/symbols.cache\"; tempdir = \"{place}/db\";
}}
logging {{ type = \"console\"; level = \"notice\"; }}
actions {{ reject = 15; add_header = 6; greylist = 4; }}
worker \"normal\" {{ bind_socket = \"127.0.0.1:{port}\"; count = 1; mime = true; }}
"
    )
}

/// What rspamd wrote into a letter.
fn spam(letter: &Value) -> &Value {
    &letter["letter"]["extra"]["spam"]
}

#[test]
fn rspamd_catches_gtube_and_lets_ordinary_mail_through() {
    let rspamd = Rspamd::start();
    let pipeline = json!({"outbound": ["spam", "send"], "workers": {"spam": rspamd.worker()}});
    let hub = PipelineCourier::open(&pipeline);
    let bad = hub.post(&mail("bob@example.org", "Hello", GTUBE));
    let good = hub.post(&mail("bob@example.org", "Hello", "How are you?"));

    let trashed = hub.stands(&bad, "TRASHED");
    assert_eq!(verdicts(&trashed), said(&[("spam", "trash")]));
    let note = trashed["verdicts"][0]["note"].as_str().unwrap();
    assert!(note.starts_with("rspamd: reject") && note.contains("GTUBE"), "{note}");
    assert!(trashed["failure"].as_str().unwrap().contains("GTUBE"), "{trashed:#}");
    assert_eq!(spam(&trashed)["action"], "reject");
    assert!(spam(&trashed)["symbols"].as_array().unwrap().contains(&json!("GTUBE")));

    let done = hub.stands(&good, "DONE");
    assert_eq!(verdicts(&done), said(&[("spam", "pass"), ("send", "pass")]));
    assert_eq!(spam(&done)["action"], "no action");
    assert!(spam(&done)["score"].as_f64().unwrap() < 15.0, "{done:#}");
    assert!(hub.arrivals(1)[0].text.contains("How are you?"));

    // A person knows better, and then it is not asked again.
    hub.courier.cli(&["pipeline", "trash", "restore", &bad]).ok();
    let restored = hub.stands(&bad, "DONE");
    assert_eq!(verdicts(&restored), said(&[("spam", "trash"), ("send", "pass")]));
    assert!(hub.arrivals(2)[1].text.contains(GTUBE));
}

#[test]
fn odd_mail_is_judged_by_rspamd_and_not_held_up() {
    let rspamd = Rspamd::start();
    let pipeline = json!({"outbound": ["spam", "send"], "workers": {"spam": rspamd.worker()}});
    let hub = PipelineCourier::open(&pipeline);
    let hidden = "From: ann@example.com\r\nTo: bob@example.org\r\nSubject: x\r\nContent-Type: \
                  multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain\r\n\
                  Content-Transfer-Encoding: base64\r\n\r\n";
    let coded = base64::Engine::encode(&base64::prelude::BASE64_STANDARD, format!("{GTUBE}\r\n"));
    for (to, data, state) in [
        ("bob@example.org", format!("{hidden}{coded}\r\n--b--\r\n"), "TRASHED"),
        ("bob@example.org", "Subject: caf\u{e9}\r\n\r\ncaf\u{e9}\r\n".to_owned(), "DONE"),
        ("b\u{fc}rgermeister@example.org", format!("Subject: y\r\n\r\n{GTUBE}\r\n"), "TRASHED"),
    ] {
        let letter = json!({"from": "ann@example.com", "to": [to], "data": data});
        let judged = hub.stands(&hub.post(&letter), state);
        assert_eq!(judged["verdicts"][0]["worker"], "spam", "{judged:#}");
        assert!(spam(&judged)["score"].is_number(), "{judged:#}");
    }
    // Bytes that are no text reach it as they are.
    let mut letter = mail("bob@example.org", "latin", &format!("caf\u{e9}\r\n{GTUBE}"));
    letter["extra"] = json!({"charset": "latin-1"});
    let judged = hub.stands(&hub.post(&letter), "TRASHED");
    assert_eq!(spam(&judged)["action"], "reject");
}

#[test]
fn letters_wait_while_rspamd_is_down_and_go_on_when_it_is_back() {
    let mut rspamd = Rspamd::install();
    let pipeline = json!({"outbound": ["spam", "send"], "workers": {"spam": rspamd.worker()}});
    let mut hub = PipelineCourier::open(&pipeline);
    let post =
        |hub: &PipelineCourier, words: &str| hub.post(&mail("bob@example.org", "Hello", words));
    let held = |hub: &PipelineCourier, id: &str| {
        // Now and then it is tried again, and is away for a moment.
        let held = |letter: &Value| letter["failure"].is_string() && letter["state"] == "WAITING";
        let held = hub.until(id, held);
        assert_eq!(held["worker"], "spam");
        assert_eq!(verdicts(&held), []);
    };
    let (first, bad) = (post(&hub, "word-1"), post(&hub, GTUBE));
    held(&hub, &first);
    let shown = hub.courier.get("/api/v1/pipeline").ok();
    assert!(shown["workers"]["spam"]["down"].is_string(), "{shown:#}");
    let health = hub.courier.get("/health").ok();
    assert_eq!(health["status"], "degraded", "{health:#}");

    // What waits survives the courier, too.
    hub.restart();
    rspamd.run();
    hub.stands(&first, "DONE");
    hub.stands(&bad, "TRASHED");
    assert_eq!(hub.courier.get("/health").ok()["status"], "ok");

    // It dies in the middle of its work, and comes back.
    rspamd.kill();
    let second = post(&hub, "word-2");
    held(&hub, &second);
    rspamd.run();
    hub.stands(&second, "DONE");
    hub.each_once(&["word-1", "word-2"].map(str::to_owned).into());
}

#[test]
fn our_own_rules_are_asked_before_rspamd() {
    let rspamd = Rspamd::install();
    let mut worker = rspamd.worker();
    worker["rules"] = json!([{"name": "casino", "subject": "(?i)casino", "score": 5}]);
    let pipeline = json!({"outbound": ["spam", "send"], "workers": {"spam": worker}});
    let hub = PipelineCourier::open(&pipeline);
    // It is down, and this one does not need it.
    let trashed = hub.stands(&hub.post(&mail("bob@example.org", "Casino", "x")), "TRASHED");
    assert_eq!(verdicts(&trashed), said(&[("spam", "trash")]));
    assert_eq!(spam(&trashed)["rules"], json!(["casino"]));
}

#[test]
fn gtube_in_a_chat_message_becomes_no_mail() {
    let rspamd = Rspamd::start();
    let pipeline = json!({"inbound": ["spam", "deliver"], "workers": {"spam": rspamd.worker()}});
    let hub = PipelineCourier::open(&pipeline);
    let courier = &hub.courier;
    courier.hears("evt-1", "room-7", "eve", &format!("cheap!\n{GTUBE}"));
    courier.hears("evt-2", "room-7", "ann", "the build is red");
    hub.settled();
    let mails = courier.mails(1);
    assert_eq!(mails[0]["preview"], "the build is red");
    let bin = courier.get("/api/v1/letters?state=TRASHED").ok();
    let bin = bin["letters"].as_array().unwrap();
    assert_eq!(bin.len(), 1, "{bin:#?}");
    assert!(bin[0]["failure"].as_str().unwrap().contains("GTUBE"), "{bin:#?}");
    let passed = courier.get("/api/v1/letters?state=DONE").ok();
    let id = passed["letters"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(spam(&hub.letter(&id))["action"], "no action");
}
