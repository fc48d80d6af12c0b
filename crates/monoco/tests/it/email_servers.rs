//! E-mail accounts with more servers: access tokens, a real Postfix, a network that swallows
//! packets.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use tempfile::TempDir;

use crate::common::{Courier, until};
use crate::email::{config, ended, mail, scanned};
use crate::mail_servers::{Dovecot, PASSWORD, TestCa};
use crate::network::Namespace;
use crate::pipeline_harness::free_port;

/// Answers whether a token is valid, as an authorization server does (RFC 7662).
struct Introspection {
    process: Child,
    _stdin: ChildStdin,
    port: u16,
}

impl Introspection {
    fn start(valid: &str) -> Self {
        let script = r#"
import http.server, json, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        active = "token=" + sys.argv[1] + "&" in self.path + "&"
        answer = json.dumps({"active": active, "user": "team"}).encode()
        self.send_response(200 if active else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"#;
        let mut command = Command::new("python3");
        command.args(["-c", script, valid]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let stdin = process.stdin.take().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { process, _stdin: stdin, port: line.trim().parse().unwrap() }
    }
}

impl Drop for Introspection {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn access_token_of_a_command_logs_in_and_is_read_again_after_it_expires() {
    let introspection = Introspection::start("good-token");
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let oauth2 = dir.path().join("oauth2.conf");
    let settings = format!(
        "introspection_url = http://127.0.0.1:{}/?token=\nintrospection_mode = get\n\
         username_attribute = user\nactive_attribute = active\nactive_value = true\n",
        introspection.port
    );
    fs::write(&oauth2, settings).unwrap();
    let settings = format!(
        "auth_mechanisms = xoauth2\npassdb {{\n  driver = oauth2\n  mechanisms = xoauth2\n  \
         args = {}\n}}\n",
        oauth2.display()
    );
    let dovecot = Dovecot::start_with(TestCa::shared(), &settings);
    let token = dir.path().join("token");
    fs::write(&token, "expired-token\n").unwrap();
    let section = format!(
        "{{ provider: email, address: team@example.com, username: team, auth: xoauth2, \
         password_command: cat {}, imap: {{ host: 127.0.0.1, port: {}, tls: none }}, \
         debounce: {{ window_ms: 50 }} }}",
        token.display(),
        dovecot.port
    );
    let courier = Courier::start_configured(&config(&[("work", section)]));
    let test = || courier.post("/api/v1/email/accounts/work/test", &json!({})).ok();
    let rejected = test();
    assert_eq!(rejected["ok"], false, "{rejected:#}");
    assert!(!rejected.to_string().contains("expired-token"), "{rejected:#}");
    fs::write(&token, "good-token\n").unwrap();
    let accepted = test();
    assert_eq!(accepted["ok"], true, "{accepted:#}\n{}", dovecot.log());
    // The listener waits after a rejected login; a scan ends the wait.
    until("the account is scanned", || {
        courier.post("/api/v1/email/accounts/work/scan", &json!({})).ok();
        courier.get("/api/v1/email/accounts/work").ok()["last_scanned_at"].is_string()
    });
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "by token", "x"));
    ended(&courier, "work", 1);
}

/// A Postfix of its own, which delivers `example.com` into maildirs.
struct Postfix {
    process: Child,
    port: u16,
    dir: TempDir,
}

impl Postfix {
    fn start(maildirs: &Path) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let (port, place) = (free_port(), dir.path().display().to_string());
        for name in ["config", "queue", "data"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let owner = Command::new("chown").arg("postfix").arg(dir.path().join("data")).status();
        assert!(owner.unwrap().success(), "these tests need postfix: apt-get install postfix");
        let main = format!(
            "compatibility_level = 3.6\nqueue_directory = {place}/queue\n\
             data_directory = {place}/data\nmaillog_file_prefixes = {place}\n\
             maillog_file = {place}/log\ninet_interfaces = 127.0.0.1\ninet_protocols = ipv4\n\
             myhostname = mx.example.com\nmydestination =\nmynetworks = 127.0.0.0/8\n\
             virtual_mailbox_domains = example.com\nvirtual_mailbox_base = {}\n\
             virtual_mailbox_maps = static:team/\nvirtual_uid_maps = static:65534\n\
             virtual_gid_maps = static:65534\nvirtual_minimum_uid = 1\n\
             smtpd_recipient_restrictions = permit_mynetworks, reject\n\
             smtputf8_enable = no\nalias_maps =\nalias_database =\n",
            maildirs.display()
        );
        fs::write(dir.path().join("config/main.cf"), main).unwrap();
        let master = format!(
            "127.0.0.1:{port} inet n - n - - smtpd\npickup unix n - n 60 1 pickup\n\
             cleanup unix n - n - 0 cleanup\nqmgr unix n - n 300 1 qmgr\n\
             tlsmgr unix - - n 1000? 1 tlsmgr\nrewrite unix - - n - - trivial-rewrite\n\
             bounce unix - - n - 0 bounce\ndefer unix - - n - 0 bounce\n\
             trace unix - - n - 0 bounce\nverify unix - - n - 1 verify\n\
             flush unix n - n 1000? 0 flush\nproxymap unix - - n - - proxymap\n\
             smtp unix - - n - - smtp\nrelay unix - - n - - smtp\nshowq unix n - n - - showq\n\
             error unix - - n - - error\nretry unix - - n - - error\n\
             discard unix - - n - - discard\nlocal unix - n n - - local\n\
             virtual unix - n n - - virtual\nlmtp unix - - n - - lmtp\n\
             anvil unix - - n - 1 anvil\nscache unix - - n - 1 scache\n\
             postlog unix-dgram n - n - 1 postlogd\n"
        );
        fs::write(dir.path().join("config/master.cf"), master).unwrap();
        let mut command = Command::new("postfix");
        command.arg("-c").arg(dir.path().join("config")).arg("start-fg").process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let postfix = Self { process, port, dir };
        until("postfix listens", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        postfix
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let config = self.dir.path().join("config");
        let _ = Command::new("postfix").arg("-c").arg(config).arg("stop").output();
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// The mail goes through a real queue and comes back by IMAP.
#[test]
fn mail_that_is_sent_through_postfix_arrives_in_the_watched_account() {
    let dovecot = Dovecot::start();
    dovecot.status("team", "INBOX", "messages");
    let postfix = Postfix::start(&dovecot.maildirs());
    let section = format!(
        "{{ provider: email, address: team@example.com, username: team, password: {PASSWORD}, \
         imap: {{ host: 127.0.0.1, port: {}, tls: none }}, \
         smtp: {{ host: 127.0.0.1, port: {}, tls: none }}, debounce: {{ window_ms: 50 }} }}",
        dovecot.port, postfix.port
    );
    let courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let message = json!({
        "from": "did:monoco:me", "to": ["did:msgtunnel:team%40example%2Ecom.addr.work"],
        "kind": "chat", "content": {"title": "Größe 测试", "content": "Line one.\n\n.\n\n*done*"},
    });
    courier.post("/api/v1/post_send", &json!({"msg": message})).ok();
    let tasks = ended(&courier, "work", 1);
    assert_eq!(tasks[0]["subject"], "Größe 测试", "{}", postfix.log());
    let listed = courier.until("/api/v1/messages", |answer| answer["messages"][0].is_object());
    assert_eq!(listed["messages"][0]["title"], "Größe 测试");
    assert!(!postfix.log().contains("fatal"), "{}", postfix.log());
}

#[test]
fn silently_dead_connection_is_noticed_and_replaced() {
    let namespace = Namespace::create(1);
    let (prefix, address) = (namespace.prefix(), namespace.address(0));
    let ca = TestCa::of_address(address);
    let dovecot = Dovecot::start_at(address, &ca, &prefix);
    dovecot.doveadm(&["mailbox", "create", "-u", "team", "Archive"], b"");
    // With two folders, IDLE is renewed every `poll_s` seconds.
    let section = format!(
        "{{ provider: email, address: team@example.com, username: team, password: {PASSWORD}, \
         imap: {{ host: {address}, port: {}, tls: implicit, ca_file: {} }}, \
         folders: [INBOX, Archive], poll_s: 10, debounce: {{ window_ms: 50 }} }}",
        dovecot.tls_port,
        ca.file().display()
    );
    let courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let account = || courier.get("/api/v1/email/accounts/work").ok();
    assert!(account()["last_error"].is_null());
    namespace.swallow_packets(0);
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "behind the dead line", "x"));
    let started = std::time::Instant::now();
    until("the loss is noticed", || account()["last_error"].is_string());
    // 10 s until IDLE is renewed, and 15 s for the answer.
    assert!(started.elapsed().as_secs() < 40, "{:?}", started.elapsed());
    namespace.pass_packets();
    courier.post("/api/v1/email/accounts/work/scan", &json!({})).ok();
    ended(&courier, "work", 1);
}
