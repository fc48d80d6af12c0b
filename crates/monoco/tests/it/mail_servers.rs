//! Mail servers for the tests: a real Dovecot, and an SMTP server that plays scripted answers.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{until, wait_for};
use crate::pipeline_harness::free_port;
use crate::reference_sdks::python_command;

/// The password of every account.
pub const PASSWORD: &str = "secret";

/// A certificate authority and a certificate of `localhost`, made once per test run.
pub struct TestCa {
    dir: TempDir,
}

impl TestCa {
    pub fn shared() -> &'static Self {
        static CA: OnceLock<TestCa> = OnceLock::new();
        CA.get_or_init(Self::create)
    }

    /// One whose certificate is for another name than `localhost`.
    pub fn of_another_host() -> Self {
        Self::create_for("DNS:mail.example.com")
    }

    /// One whose certificate is for an address.
    pub fn of_address(address: Ipv4Addr) -> Self {
        Self::create_for(&format!("IP:{address}"))
    }

    pub fn create() -> Self {
        Self::create_for("DNS:localhost,IP:127.0.0.1")
    }

    /// One whose certificate was valid last year.
    pub fn expired() -> Self {
        Self::create_at("DNS:localhost,IP:127.0.0.1", "faketime -f -365d")
    }

    /// One whose certificate has these names, such as `DNS:hub.test,IP:127.0.0.2`.
    pub fn create_for(names: &str) -> Self {
        Self::create_at(names, "")
    }

    /// Signs the certificate at the time that the command `clock` shows.
    fn create_at(names: &str, clock: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = format!(
            "set -e
             key='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
             openssl req -x509 $key -keyout ca.key -out ca.pem -days 30 -subj '/CN=Test CA' \
               -addext basicConstraints=critical,CA:TRUE
             openssl req $key -keyout key.pem -out csr.pem -subj /CN=localhost
             echo subjectAltName={names} > names
             {clock} openssl x509 -req -in csr.pem -CA ca.pem -CAkey ca.key -CAcreateserial \
               -out cert.pem -days 30 -extfile names"
        );
        let output =
            Command::new("sh").args(["-c", &script]).current_dir(dir.path()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "these tests need openssl: {errors}");
        open_to_others(dir.path());
        Self { dir }
    }

    /// The certificate of the authority.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// The certificate of the server, and its key.
    pub fn certificate(&self) -> (PathBuf, PathBuf) {
        (self.dir.path().join("cert.pem"), self.dir.path().join("key.pem"))
    }
}

/// Dovecot gives up its rights, and has to find its files all the same.
fn open_to_others(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// An IMAP server with a maildir for every user name. Stopped when it is dropped.
pub struct Dovecot {
    process: Option<Child>,
    host: Ipv4Addr,
    /// A command that runs the server, such as `ip netns exec NAME`.
    prefix: Vec<String>,
    pub port: u16,
    pub tls_port: u16,
    dir: TempDir,
}

impl Dovecot {
    pub fn start() -> Self {
        Self::start_with(TestCa::shared(), "")
    }

    /// One with another certificate and further settings.
    pub fn start_with(ca: &TestCa, settings: &str) -> Self {
        Self::start_all(ca, settings, Ipv4Addr::LOCALHOST, &[])
    }

    /// One that listens on another address, and that the command `prefix` runs.
    pub fn start_at(host: Ipv4Addr, ca: &TestCa, prefix: &[&str]) -> Self {
        Self::start_all(ca, &format!("listen = {host}\n"), host, prefix)
    }

    fn start_all(ca: &TestCa, settings: &str, host: Ipv4Addr, prefix: &[&str]) -> Self {
        let prefix = prefix.iter().map(|word| (*word).to_owned()).collect();
        let dir = tempfile::tempdir().unwrap();
        open_to_others(dir.path());
        let (port, tls_port) = (free_port(), free_port());
        let mut dovecot = Self { process: None, host, prefix, port, tls_port, dir };
        let place = dovecot.dir.path();
        for name in ["mail", "run", "state"] {
            fs::create_dir(place.join(name)).unwrap();
        }
        let (uid, gid) = nobody();
        std::os::unix::fs::chown(place.join("mail"), Some(uid), Some(gid)).unwrap();
        let config = dovecot.config(ca) + settings;
        fs::write(dovecot.config_file(), config).unwrap();
        dovecot.run();
        dovecot
    }

    /// Starts the server and waits until it accepts connections.
    pub fn run(&mut self) {
        let mut words = self.prefix.iter().map(String::as_str).chain(["dovecot"]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).arg("-F").arg("-c").arg(self.config_file()).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|error| {
            panic!("these tests need dovecot: apt-get install dovecot-imapd ({error})")
        });
        self.process = Some(process);
        let ports = [self.port, self.tls_port];
        until("dovecot listens", || {
            ports.iter().all(|port| TcpStream::connect((self.host, *port)).is_ok())
        });
    }

    /// `kill -9`, of its workers as well.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = kill_process_group(Pid::from_child(&process), Signal::KILL);
            process.wait().unwrap();
            // Its pid file would keep the next one from starting.
            let _ = fs::remove_file(self.dir.path().join("run/master.pid"));
        }
    }

    /// The directory with the maildir of each user.
    pub fn maildirs(&self) -> PathBuf {
        self.dir.path().join("mail")
    }

    fn config_file(&self) -> PathBuf {
        self.dir.path().join("dovecot.conf")
    }

    fn config(&self, ca: &TestCa) -> String {
        let (place, port, tls_port) = (self.dir.path().display(), self.port, self.tls_port);
        let (cert, key) = ca.certificate();
        let (cert, key) = (cert.display(), key.display());
        format!(
            "base_dir = {place}/run
state_dir = {place}/state
log_path = {place}/log
protocols = imap
listen = 127.0.0.1
default_internal_user = nobody
default_login_user = nobody
default_internal_group = nogroup
auth_mechanisms = plain login
disable_plaintext_auth = no
auth_failure_delay = 0
ssl = yes
ssl_cert = <{cert}
ssl_key = <{key}
mail_location = maildir:{place}/mail/%u
mail_uid = nobody
mail_gid = nogroup
first_valid_uid = 1
mail_max_userip_connections = 100
passdb {{
  driver = static
  args = password={PASSWORD}
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={place}/mail/%u
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = {tls_port}
    ssl = yes
  }}
}}
service anvil {{
  chroot =
}}
service stats {{
  chroot =
}}
namespace inbox {{
  inbox = yes
  mailbox Sent {{
    auto = create
    special_use = \\Sent
  }}
}}
"
        )
    }

    /// Runs `doveadm` and returns what it prints.
    #[track_caller]
    pub fn doveadm(&self, args: &[&str], input: &[u8]) -> String {
        let mut command = Command::new("doveadm");
        command.arg("-c").arg(self.config_file()).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        process.stdin.take().unwrap().write_all(input).unwrap();
        let output = process.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "doveadm {args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Puts a mail into a folder, as a delivery agent does.
    #[track_caller]
    pub fn deliver(&self, user: &str, folder: &str, mail: &[u8]) {
        self.doveadm(&["save", "-u", user, "-m", folder], mail);
    }

    /// Puts many mails into the INBOX at once: files in the maildir, as mail servers do.
    pub fn deliver_many(&self, user: &str, mails: impl IntoIterator<Item = Vec<u8>>) {
        // The first access creates the maildir.
        self.doveadm(&["mailbox", "status", "-u", user, "messages", "INBOX"], b"");
        let (uid, gid) = nobody();
        let inbox = self.dir.path().join("mail").join(user);
        for (n, mail) in mails.into_iter().enumerate() {
            let name = format!("{}.{n}.{}.test", 1_700_000_000 + n, std::process::id());
            let temporary = inbox.join("tmp").join(&name);
            fs::write(&temporary, mail).unwrap();
            std::os::unix::fs::chown(&temporary, Some(uid), Some(gid)).unwrap();
            fs::rename(&temporary, inbox.join("new").join(&name)).unwrap();
        }
    }

    /// A value of `doveadm mailbox status`, such as `uidvalidity` or `unseen`.
    #[track_caller]
    pub fn status(&self, user: &str, folder: &str, field: &str) -> u64 {
        let printed = self.doveadm(&["mailbox", "status", "-u", user, field, folder], b"");
        let value = printed.trim().rsplit('=').next().unwrap_or_default();
        value.parse().unwrap_or_else(|_| panic!("{field}: {printed}"))
    }

    /// Number of processes that serve a connection of this user.
    pub fn connections(&self, user: &str) -> usize {
        let printed = self.doveadm(&["who", "-1", user], b"");
        printed.lines().skip(1).filter(|line| line.starts_with(user)).count()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Dovecot {
    fn drop(&mut self) {
        self.kill();
    }
}

/// User and group of the server's processes.
fn nobody() -> (u32, u32) {
    static IDS: OnceLock<(u32, u32)> = OnceLock::new();
    *IDS.get_or_init(|| {
        let id = |flag: &str| {
            let printed = Command::new("id").args([flag, "nobody"]).output().unwrap().stdout;
            String::from_utf8(printed).unwrap().trim().parse().unwrap()
        };
        (id("-u"), id("-g"))
    })
}

/// How clients of [`SmtpServer`] are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpTls {
    Clear,
    StartTls,
    Implicit,
}

/// An SMTP server that stores what it accepts, and plays the answers of its rules. The comment at
/// the top of `tests/smtp_server.py` describes the rules.
pub struct SmtpServer {
    process: Option<(Child, ChildStdin)>,
    pub port: u16,
    spool: TempDir,
}

/// A mail that an [`SmtpServer`] accepted.
#[derive(Clone, Debug)]
pub struct AcceptedMail {
    pub envelope: Value,
    pub bytes: Vec<u8>,
}

impl SmtpServer {
    pub fn start() -> Self {
        Self::start_with(SmtpTls::Clear, TestCa::shared(), &[])
    }

    pub fn start_with(tls: SmtpTls, ca: &TestCa, rules: &[&str]) -> Self {
        let spool = tempfile::tempdir().unwrap();
        let mut server = Self { process: None, port: free_port(), spool };
        server.run(tls, ca, rules);
        server
    }

    /// Starts the server with new rules. What it has accepted stays.
    pub fn run(&mut self, tls: SmtpTls, ca: &TestCa, rules: &[&str]) {
        self.kill();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/smtp_server.py");
        let (cert, key) = ca.certificate();
        let tls = match tls {
            SmtpTls::Clear => "none",
            SmtpTls::StartTls => "starttls",
            SmtpTls::Implicit => "implicit",
        };
        let mut command = python_command();
        command.arg(script).arg(self.port.to_string()).arg(self.spool.path());
        command.arg(tls).arg(cert).arg(key).args(rules);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().unwrap();
        let stdin = process.stdin.take().unwrap();
        self.process = Some((process, stdin));
        let port = self.port;
        until("the SMTP server listens", || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
        });
    }

    /// `kill -9`. What it has accepted stays.
    pub fn kill(&mut self) {
        if let Some((mut process, stdin)) = self.process.take() {
            drop(stdin);
            let _ = process.kill();
            process.wait().unwrap();
        }
    }

    /// Lets it answer what a rule `hold` holds.
    pub fn release(&self) {
        fs::write(self.spool.path().join("release"), "").unwrap();
    }

    /// What it has accepted so far, in order.
    pub fn accepted(&self) -> Vec<AcceptedMail> {
        let mut mails = Vec::new();
        loop {
            let name = self.spool.path().join((mails.len() + 1).to_string());
            let Ok(envelope) = fs::read(name.with_extension("json")) else { return mails };
            let envelope = serde_json::from_slice(&envelope).unwrap();
            let bytes = fs::read(name.with_extension("eml")).unwrap();
            mails.push(AcceptedMail { envelope, bytes });
        }
    }

    /// Waits until it has accepted exactly `count` mails.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<AcceptedMail> {
        wait_for(|| {
            let mails = self.accepted();
            if mails.len() >= count { Ok(mails) } else { Err(format!("{} mails", mails.len())) }
        })
    }
}

impl Drop for SmtpServer {
    fn drop(&mut self) {
        self.kill();
    }
}

impl AcceptedMail {
    /// The first header field of this name, unfolded and decoded by monoco-mime.
    pub fn header(&self, name: &str) -> Option<String> {
        monoco_mime::header(&self.bytes, name)
    }

    pub fn recipients(&self) -> Vec<String> {
        let to = self.envelope["to"].as_array().unwrap();
        to.iter().map(|address| address.as_str().unwrap().to_owned()).collect()
    }
}
