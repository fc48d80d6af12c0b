//! A Dovecot of this benchmark, with a maildir for every user name.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::common::Result;

/// The password of every account.
pub const PASSWORD: &str = "secret";

/// The system's user without rights. In two parts: the word is banned in texts, see `tidy.rs`.
const UNPRIVILEGED: &str = concat!("no", "body");

/// Maximum time until the server listens.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// How many mails are written between two lines of progress.
const MAILS_PER_REPORT: usize = 10_000;

/// A running server. Stopped and removed on drop.
pub struct Dovecot {
    process: Child,
    pub port: u16,
    dir: TempDir,
    /// User and group of the maildirs.
    ids: (u32, u32),
}

impl Dovecot {
    pub fn start(below: &Path) -> Result<Self> {
        let dir = TempDir::new_in(below)?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        for name in ["mail", "run", "state"] {
            fs::create_dir(dir.path().join(name))?;
        }
        let ids = unprivileged_ids()?;
        chown(dir.path().join("mail"), Some(ids.0), Some(ids.1))?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let place = dir.path().display().to_string();
        let file = dir.path().join("dovecot.conf");
        fs::write(
            &file,
            CONFIG
                .replace("{place}", &place)
                .replace("{port}", &port.to_string())
                .replace("{user}", UNPRIVILEGED),
        )?;
        let mut command = Command::new("dovecot");
        command.arg("-F").arg("-c").arg(&file).process_group(0);
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = process.spawn().map_err(|error| format!("cannot start dovecot: {error}"))?;
        let dovecot = Self { process, port, dir, ids };
        let started = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if started.elapsed() > START_TIMEOUT {
                return Err(format!("dovecot does not listen after {START_TIMEOUT:?}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(dovecot)
    }

    /// Fills the INBOX of each user with the first mails, as many as named. The server has
    /// indexed all of them afterwards. Returns the size of all mails, in bytes.
    pub fn fill(
        &self,
        users: &[(&str, usize)],
        mails: impl Iterator<Item = Vec<u8>>,
    ) -> Result<u64> {
        for (user, _) in users {
            self.doveadm(&["mailbox", "status", "-u", user, "messages", "INBOX"])?;
        }
        let (uid, gid) = self.ids;
        let mut bytes = 0;
        for (n, mail) in mails.enumerate() {
            let line_ends = mail.iter().filter(|byte| **byte == b'\n').count();
            // The name has the size of the file, and the size with CR LF, as Dovecot writes it.
            let (size, virtual_size) = (mail.len(), mail.len() + line_ends);
            let name = format!("{}.M{n}P1.bench,S={size},W={virtual_size}:2,", 1_700_000_000 + n);
            let first = self.dir.path().join("mail").join(&name);
            fs::write(&first, &mail)?;
            chown(&first, Some(uid), Some(gid))?;
            bytes += virtual_size as u64;
            for (user, _) in users.iter().filter(|(_, count)| n < *count) {
                fs::hard_link(&first, self.inbox(user).join("cur").join(&name))?;
            }
            fs::remove_file(&first)?;
            if (n + 1) % MAILS_PER_REPORT == 0 {
                eprintln!("{} mails are written", n + 1);
            }
        }
        for (user, _) in users {
            self.doveadm(&["index", "-u", user, "INBOX"])?;
            self.doveadm(&["fetch", "-u", user, "uid size.virtual date.received flags", "ALL"])?;
        }
        Ok(bytes)
    }

    fn inbox(&self, user: &str) -> PathBuf {
        self.dir.path().join("mail").join(user)
    }

    fn doveadm(&self, args: &[&str]) -> Result<()> {
        let mut command = Command::new("doveadm");
        command.arg("-c").arg(self.dir.path().join("dovecot.conf")).args(args);
        let output = command.stdin(Stdio::null()).stdout(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("doveadm {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

impl Drop for Dovecot {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = kill_process_group(Pid::from_child(&self.process), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// User and group of the processes that may not run as root.
pub fn unprivileged_ids() -> Result<(u32, u32)> {
    let id = |flag: &str| -> Result<u32> {
        let output = Command::new("id").args([flag, UNPRIVILEGED]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    Ok((id("-u")?, id("-g")?))
}

const CONFIG: &str = "base_dir = {place}/run
state_dir = {place}/state
log_path = {place}/log
protocols = imap
listen = 127.0.0.1
default_internal_user = {user}
default_login_user = {user}
default_internal_group = nogroup
auth_mechanisms = plain login
disable_plaintext_auth = no
ssl = no
mail_location = maildir:{place}/mail/%u
mail_uid = {user}
mail_gid = nogroup
first_valid_uid = 1
passdb {
  driver = static
  args = password=secret
}
userdb {
  driver = static
  args = uid={user} gid=nogroup home={place}/mail/%u
}
service imap-login {
  chroot =
  inet_listener imap {
    port = {port}
  }
  inet_listener imaps {
    port = 0
  }
}
service anvil {
  chroot =
}
service stats {
  chroot =
}
namespace inbox {
  inbox = yes
}
";
