//! A PostgreSQL server of one test, with its disk synced as in production.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::until;

/// The server refuses to run as root.
pub const USER: &str = "postgres";

/// The password of the role of the store in servers that ask for one.
pub const PASSWORD: &str = "pg-secret-of-the-tests";

/// A server that ends with the test.
pub struct PostgresServer {
    dir: TempDir,
    settings: Vec<String>,
    process: Option<Child>,
}

impl PostgresServer {
    /// Starts a server on a socket in a directory of its own.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed: tests of the shared store must not be skipped.
    pub fn start() -> Self {
        Self::start_with("trust", &[])
    }

    /// One that asks for a password.
    pub fn start_with_password() -> Self {
        Self::start_with("scram-sha-256", &[])
    }

    /// One with further settings, such as `fsync=off`.
    pub fn start_with(auth: &str, settings: &[&str]) -> Self {
        let mut server = Self::new(settings);
        let password = server.dir.path().join("password");
        fs::write(&password, PASSWORD).unwrap();
        fs::set_permissions(&password, fs::Permissions::from_mode(0o644)).unwrap();
        let mut initdb = command("initdb");
        initdb.args(["--encoding=UTF8", "--locale=C", "--no-sync", "-U", USER]);
        initdb.arg(format!("--auth={auth}")).arg("--pwfile").arg(password);
        run(initdb.arg("-D").arg(server.data()));
        server.run();
        server
    }

    /// A standby of this server, which follows it under a name.
    pub fn standby(&self, name: &str) -> Self {
        let mut standby = Self::new(&[]);
        let mut copy = command("pg_basebackup");
        copy.args(["--wal-method=stream", "--write-recovery-conf", "--checkpoint=fast"]);
        let source = format!("host={} user={USER} application_name={name}", self.host());
        run(copy.arg("--no-sync").arg("-d").arg(source).arg("-D").arg(standby.data()));
        standby.run();
        standby
    }

    fn new(settings: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("monoco-it-postgres-").tempdir().unwrap();
        if is_root() {
            let id = |option: &str| {
                let found = Command::new("id").args([option, USER]).output().unwrap();
                String::from_utf8(found.stdout).unwrap().trim().parse().ok()
            };
            chown(dir.path(), id("-u"), id("-g")).unwrap();
        }
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        Self { dir, settings, process: None }
    }

    /// Starts the server, also after [`Self::stop`].
    pub fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.dir.path().join("log"));
        let log = log.unwrap();
        let mut server = command("postgres");
        server.args(["-c", "listen_addresses=", "-c", "max_connections=100", "-k"]);
        server.arg(self.dir.path()).arg("-D").arg(self.data());
        for setting in &self.settings {
            server.args(["-c", setting]);
        }
        let process = server.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.process = Some(process);
        until("the PostgreSQL server is ready", || {
            let mut ready = Command::new(program("pg_isready"));
            ready.arg("-q").arg("-h").arg(self.dir.path());
            ready.status().is_ok_and(|status| status.success())
        });
    }

    /// Stops the server as `pg_ctl stop -m immediate` does, and waits until it is gone. The next
    /// start recovers as after a crash.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let pid = Pid::from_child(&process);
            kill_process(pid, Signal::QUIT).unwrap();
            process.wait().unwrap();
        }
    }

    /// Runs statements as the superuser and returns their output.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> String {
        let mut psql = Command::new(program("psql"));
        psql.args(["-qtA", "-v", "ON_ERROR_STOP=1", "-U", USER, "-h"]).arg(self.dir.path());
        psql.env("PGPASSWORD", PASSWORD).args(["-d", "postgres", "-c", statements]);
        run(&mut psql)
    }

    /// The URL of its database, for the superuser.
    pub fn url(&self) -> String {
        self.url_of(USER)
    }

    /// The URL of its database; `user` can have a password.
    pub fn url_of(&self, user: &str) -> String {
        format!("postgres://{user}@{}/postgres", self.host().replace('/', "%2F"))
    }

    fn host(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}

/// The newest installed version of a program of PostgreSQL.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql");
    let versions = versions.map(|found| found.flatten().map(|entry| entry.path()).collect());
    let mut versions: Vec<PathBuf> = versions.unwrap_or_default();
    versions.sort_by_key(|version| version.file_name()?.to_str()?.parse::<u32>().ok());
    let newest = versions.last().map(|version| version.join("bin").join(name));
    newest.unwrap_or_else(|| panic!("{name} is missing: install the Debian package postgresql"))
}

/// A command of the user of the server, which ends with the thread of the test.
fn command(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    // Another user cannot switch to the user of the server, and need not.
    if is_root() {
        command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"]);
    }
    command.args(["--pdeathsig", "INT"]).arg(program(name));
    command.current_dir(Path::new("/")).stdin(Stdio::null());
    command
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
