//! An e-mail account on a real courier-imap, which `tools/unpack_courier_imap` has unpacked.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::common::{Courier, until};
use crate::email::{account_at, config, ended, mail, scanned};
use crate::email_faults::{FORWARD_ALL, check_each_once};
use crate::mail_servers::{PASSWORD, SmtpServer};
use crate::pipeline_harness::free_port;

/// Runs the server and its authentication daemon. Their paths are fixed, so that they run in a
/// mount namespace in which the unpacked files are below `/usr/lib` and `/etc`. The process
/// namespace ends with its first process, and takes all others with it.
const RUN: &str = r#"
set -eu
unpacked=$1 place=$2 port=$3
mount -t tmpfs tmpfs /run
mkdir -p /run/courier/authdaemon
mount -t overlay overlay -o "lowerdir=$unpacked/usr/lib:/usr/lib" /usr/lib
database() {
  /usr/lib/courier/courier-authlib/makedatprog - "$place/tmp" "$place/etc/courier/$1"
}
printf 'team\tuid=65534|gid=65534|home=%s|mail=%s/Maildir\n.\n' "$place" "$place" |
  database userdb.dat
printf 'team\timappw=%s\n.\n' "$(openssl passwd -6 "$4")" | database userdbshadow.dat
mount -t overlay overlay -o "lowerdir=$place/etc:$unpacked/etc:/etc" /etc
/usr/lib/courier/courier-authlib/authdaemond &
set -a
. /etc/courier/imapd
# How often it looks for new mails during IDLE, in seconds.
IMAP_IDLE_TIMEOUT=1
IMAP_STARTTLS=NO
exec "$unpacked/usr/sbin/couriertcpd" -address=127.0.0.1 -nodnslookup -noidentlookup \
  "$port" /usr/lib/courier/courier/imaplogin "$unpacked/usr/bin/imapd" Maildir
"#;

const AUTHENTICATION: &str = "authmodulelist=\"authuserdb\"
authmodulelistorig=\"authuserdb\"
daemons=2
authdaemonvar=/run/courier/authdaemon
";

/// A courier-imap with the account `team`. Stopped when it is dropped.
struct CourierImap {
    process: Option<Child>,
    port: u16,
    dir: TempDir,
    delivered: u32,
}

impl CourierImap {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path();
        fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        fs::create_dir_all(place.join("etc/courier")).unwrap();
        fs::write(place.join("etc/courier/authdaemonrc"), AUTHENTICATION).unwrap();
        for name in ["cur", "new", "tmp"] {
            fs::create_dir_all(place.join("Maildir").join(name)).unwrap();
        }
        let mut chown = Command::new("chown");
        chown.args(["-R", "65534:65534"]).arg(place.join("Maildir"));
        assert!(chown.status().unwrap().success());
        let mut server = Self { process: None, port: free_port(), dir, delivered: 0 };
        server.run();
        server
    }

    fn run(&mut self) {
        let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/courier-imap");
        let unpacked = unpacked.canonicalize().unwrap_or_else(|error| {
            panic!("courier-imap is missing: run tools/unpack_courier_imap ({error})")
        });
        let log = fs::File::create(self.dir.path().join("log")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", RUN, "sh"]);
        command.arg(unpacked).arg(self.dir.path()).arg(self.port.to_string()).arg(PASSWORD);
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(command.process_group(0).spawn().unwrap());
        until("courier-imap listens", || {
            let process = self.process.as_mut().unwrap();
            if let Some(status) = process.try_wait().unwrap() {
                let log = fs::read_to_string(self.dir.path().join("log")).unwrap();
                panic!("courier-imap did not start: {status}: {log}");
            }
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok()
        });
    }

    /// `kill -9` of all of its processes.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = kill_process_group(Pid::from_child(&process), Signal::KILL);
            process.wait().unwrap();
            until("the port is free", || {
                TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_err()
            });
        }
    }

    /// Puts a mail into the INBOX, as a delivery agent does.
    fn deliver(&mut self, subject: &str) {
        self.delivered += 1;
        let name = format!("{}.{}.test", 1_700_000_000 + self.delivered, std::process::id());
        let maildir = self.dir.path().join("Maildir");
        let temporary = maildir.join("tmp").join(&name);
        fs::write(&temporary, mail("joe@example.org", subject, "x")).unwrap();
        std::os::unix::fs::chown(&temporary, Some(65_534), Some(65_534)).unwrap();
        fs::rename(&temporary, maildir.join("new").join(&name)).unwrap();
    }

    /// The files of all mails of the INBOX. Their names end with their flags.
    fn files(&self) -> Vec<PathBuf> {
        let dirs = ["new", "cur"].map(|name| self.dir.path().join("Maildir").join(name));
        let entries = dirs.iter().flat_map(|dir| fs::read_dir(dir).unwrap());
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    /// Deletes a mail, as another client does.
    fn delete(&self, subject: &str) {
        let has = |file: &&PathBuf| fs::read_to_string(file).unwrap().contains(subject);
        let files = self.files();
        fs::remove_file(files.iter().find(has).unwrap()).unwrap();
    }
}

impl Drop for CourierImap {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn courier_imap_account_doubles_and_misses_nothing() {
    let (mut imap, smtp) = (CourierImap::start(), SmtpServer::start());
    let section = account_at("team", imap.port, &smtp, FORWARD_ALL);
    let mut courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let mut subjects = BTreeSet::new();
    let mut deliver = |imap: &mut CourierImap, subject: &str| {
        subjects.insert(subject.to_owned());
        imap.deliver(subject);
        subjects.len()
    };
    for subject in ["first", "second", "third"] {
        let count = deliver(&mut imap, subject);
        ended(&courier, "work", count);
    }

    courier.kill();
    deliver(&mut imap, "while it was down");
    let count = deliver(&mut imap, "another one");
    let courier = courier.restart();
    ended(&courier, "work", count);

    imap.kill();
    until("the loss is noticed", || {
        courier.get("/api/v1/email/accounts/work").ok()["last_error"].is_string()
    });
    imap.delete("Subject: second");
    let count = deliver(&mut imap, "while the server was down");
    imap.run();
    ended(&courier, "work", count);
    // Each of them opens the folder again.
    for _ in 0..3 {
        courier.cli(&["email", "scan", "work", "--once"]).ok();
    }
    let count = deliver(&mut imap, "the last one");
    let tasks = ended(&courier, "work", count);
    assert!(tasks.iter().all(|task| task["copy_of"].is_null()), "{tasks:#?}");
    let validities: BTreeSet<_> = tasks.iter().map(|task| task["uid_validity"].as_u64()).collect();
    assert!(validities.len() == 1 && !validities.contains(&None), "{validities:?}");
    check_each_once(&courier, &smtp, &tasks, &subjects);
    assert_eq!(smtp.accepted().len(), count);
    let seen = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy();
        name.rsplit_once(":2,").is_some_and(|(_, flags)| flags.contains('S'))
    };
    let files = imap.files();
    assert_eq!(files.len(), count - 1);
    assert!(!files.iter().any(seen), "nothing is marked as seen: {files:?}");
}
