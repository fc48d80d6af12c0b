//! The programs beside the courier. Each fetches the INBOX of one user into an empty directory.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::Result;
use crate::dovecot::{PASSWORD, unprivileged_ids};

/// A program that fetches mails.
pub struct Peer {
    pub name: &'static str,
    /// The argument that prints its version.
    version: &'static str,
    /// Writes the config into a directory, and returns the command that fetches what is new.
    prepare: fn(&Path, u16, &str) -> Result<Command>,
    /// Counts the fetched mails.
    count: fn(&Path) -> Result<usize>,
    /// Exit codes that are not an error.
    exits: &'static [i32],
    /// Whether it marks the mails on the server, so that a second first fetch finds none.
    pub marks_mails: bool,
    /// How many mails it fetches at most: a slow program shows its rate with fewer.
    most: usize,
}

pub const PEERS: [Peer; 3] = [
    Peer {
        name: "mbsync",
        version: "--version",
        prepare: mbsync,
        count: in_inbox,
        exits: &[0],
        marks_mails: false,
        most: usize::MAX,
    },
    Peer {
        name: "getmail",
        version: "--version",
        prepare: getmail,
        count: in_inbox,
        exits: &[0],
        marks_mails: false,
        // It starts a process per mail.
        most: 1_000,
    },
    Peer {
        name: "fetchmail",
        version: "--version",
        prepare: fetchmail,
        count: in_batch,
        // 1: there is no new mail.
        exits: &[0, 1],
        marks_mails: true,
        most: usize::MAX,
    },
];

impl Peer {
    /// The first line of what it prints about its version.
    pub fn version(&self) -> Result<String> {
        let output = Command::new(self.name).arg(self.version).stdin(Stdio::null()).output();
        let output = output
            .map_err(|error| format!("cannot run {} ({error}); ./bench installs it", self.name))?;
        let line = String::from_utf8_lossy(&output.stdout);
        let line = line.lines().next().unwrap_or_default();
        let number = line.split(['+', ' ']).find(|word| {
            word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit())
        });
        Ok(format!("{} {}", self.name, number.unwrap_or(line)))
    }

    /// How many of `mails` it fetches.
    pub fn share(&self, mails: usize) -> usize {
        mails.min(self.most)
    }

    /// Writes the config of the program into `dir`.
    pub fn prepare(&self, dir: &Path, port: u16, user: &str) -> Result<Command> {
        (self.prepare)(dir, port, user)
    }

    /// Runs the program once and checks how many mails it has fetched so far.
    pub fn run(&self, command: &mut Command, dir: &Path, wanted: usize) -> Result<Duration> {
        let started = Instant::now();
        let output = command.stdin(Stdio::null()).output()?;
        let took = started.elapsed();
        if !output.status.code().is_some_and(|code| self.exits.contains(&code)) {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{} exited with {}: {stderr}", self.name, output.status).into());
        }
        let found = (self.count)(dir)?;
        if found != wanted {
            return Err(format!("{} has {found} of {wanted} mails", self.name).into());
        }
        Ok(took)
    }
}

fn mbsync(dir: &Path, port: u16, user: &str) -> Result<Command> {
    let place = dir.display();
    let config = format!(
        "IMAPAccount bench\nHost 127.0.0.1\nPort {port}\nUser {user}\nPass {PASSWORD}\n\
         SSLType None\nAuthMechs LOGIN\n\n\
         IMAPStore far\nAccount bench\n\n\
         MaildirStore near\nPath {place}/\nInbox {place}/INBOX\n\n\
         Channel bench\nFar :far:\nNear :near:\nPatterns INBOX\nCreate Near\nSync Pull\n\
         SyncState {place}/state-\n"
    );
    let file = dir.join("mbsyncrc");
    fs::write(&file, config)?;
    let mut command = Command::new("mbsync");
    command.arg("--quiet").arg("--config").arg(file).arg("bench");
    Ok(command)
}

fn getmail(dir: &Path, port: u16, user: &str) -> Result<Command> {
    for name in ["cur", "new", "tmp"] {
        fs::create_dir_all(dir.join("INBOX").join(name))?;
    }
    let place = dir.display();
    let config = format!(
        "[retriever]\ntype = SimpleIMAPRetriever\nserver = 127.0.0.1\nport = {port}\n\
         username = {user}\npassword = {PASSWORD}\n\n\
         [destination]\ntype = Maildir\npath = {place}/INBOX/\n\n\
         [options]\nread_all = false\ndelete = false\nverbose = 0\n"
    );
    let file = dir.join("getmailrc");
    fs::write(&file, config)?;
    // It does not write mails as root.
    let (uid, gid) = unprivileged_ids()?;
    let inbox = dir.join("INBOX");
    let places = [dir.to_owned(), inbox.join("cur"), inbox.join("new"), inbox.join("tmp"), inbox];
    for place in places.iter().chain(std::iter::once(&file)) {
        chown(place, Some(uid), Some(gid))?;
    }
    let mut command = Command::new("getmail");
    command.uid(uid).gid(gid).env("HOME", dir);
    command.arg("--quiet").arg("--getmaildir").arg(dir).arg("--rcfile").arg(file);
    Ok(command)
}

/// Writes one file in the format of batch SMTP, which is the fastest of its destinations: the
/// others start a program or a transaction per mail.
fn fetchmail(dir: &Path, port: u16, user: &str) -> Result<Command> {
    let place = dir.display();
    let config = format!(
        "poll 127.0.0.1 protocol IMAP port {port} auth password user {user} password {PASSWORD} \
         keep bsmtp {place}/batch\n"
    );
    let file = dir.join("fetchmailrc");
    fs::write(&file, config)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let mut command = Command::new("fetchmail");
    command.arg("--silent").arg("--sslproto").arg("").arg("-f").arg(file);
    command.arg("--idfile").arg(dir.join("ids")).arg("--pidfile").arg(dir.join("pid"));
    command.env("HOME", dir);
    Ok(command)
}

fn in_inbox(dir: &Path) -> Result<usize> {
    let mut count = 0;
    for name in ["new", "cur"] {
        count += fs::read_dir(dir.join("INBOX").join(name))?.count();
    }
    Ok(count)
}

fn in_batch(dir: &Path) -> Result<usize> {
    let batch = fs::read(dir.join("batch"))?;
    Ok(batch.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"MAIL FROM:")).count())
}
