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
    /// The directory of its socket and its log.
    dir: TempDir,
    options: ServerOptions,
    process: Option<Child>,
}

/// Where and how a server runs.
#[derive(Clone, Default)]
pub struct ServerOptions {
    /// The method by which it recognizes users, `trust` if empty.
    pub auth: &'static str,
    /// Settings such as `fsync=off`.
    pub settings: Vec<String>,
    /// The start of the command, such as `ip netns exec NAME`.
    pub prefix: Vec<String>,
    /// The clock that it shows.
    pub clock: Vec<String>,
    /// A directory for its data, outside of its own.
    pub data: Option<PathBuf>,
    /// A directory for its log of changes, outside of its data.
    pub wal: Option<PathBuf>,
    /// A TCP port on every address, beside the socket.
    pub port: Option<u16>,
}

impl PostgresServer {
    /// Starts a server on a socket in a directory of its own.
    ///
    /// # Panics
    ///
    /// When PostgreSQL is not installed: tests of the shared store must not be skipped.
    pub fn start() -> Self {
        Self::start_with(ServerOptions::default())
    }

    /// One that asks for a password.
    pub fn start_with_password() -> Self {
        Self::start_with(ServerOptions { auth: "scram-sha-256", ..ServerOptions::default() })
    }

    pub fn start_with(options: ServerOptions) -> Self {
        let mut server = Self::new(options);
        let password = server.dir.path().join("password");
        fs::write(&password, PASSWORD).unwrap();
        fs::set_permissions(&password, fs::Permissions::from_mode(0o644)).unwrap();
        let auth = if server.options.auth.is_empty() { "trust" } else { server.options.auth };
        let mut initdb = command("initdb", &[], &[]);
        initdb.args(["--encoding=UTF8", "--locale=C", "--no-sync", "-U", USER]);
        // Small segments, so that a small disk has room for several.
        initdb.args(["--wal-segsize=1", &format!("--auth={auth}"), "--pwfile"]).arg(password);
        if let Some(wal) = &server.options.wal {
            initdb.arg("--waldir").arg(wal);
        }
        run(initdb.arg("-D").arg(server.data()));
        if server.options.port.is_some() {
            server.set_access(&format!("local all all {auth}\nhost all all all {auth}"));
        }
        server.run();
        server
    }

    /// Writes `pg_hba.conf`, which says who may connect. A running server must reload it.
    pub fn set_access(&self, lines: &str) {
        fs::write(self.data().join("pg_hba.conf"), format!("{lines}\n")).unwrap();
    }

    /// A standby of this server, which follows it under a name.
    pub fn standby(&self, name: &str) -> Self {
        self.standby_with(name, ServerOptions::default())
    }

    /// As [`Self::standby`], with settings of its own.
    pub fn standby_with(&self, name: &str, options: ServerOptions) -> Self {
        let mut standby = Self::new(options);
        let mut copy = command("pg_basebackup", &[], &[]);
        copy.args(["--wal-method=stream", "--write-recovery-conf", "--checkpoint=fast"]);
        let (host, port) = (self.host(), self.port());
        let source = format!("host={host} port={port} user={USER} application_name={name}");
        run(copy.arg("--no-sync").arg("-d").arg(source).arg("-D").arg(standby.data()));
        standby.run();
        standby
    }

    /// Makes the standby with this name synchronous, and waits until it is.
    pub fn set_synchronous(&self, name: &str) {
        self.sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"));
        self.sql("SELECT pg_reload_conf()");
        until("the standby is synchronous", || {
            self.sql("SELECT sync_state FROM pg_stat_replication").trim() == "sync"
        });
    }

    fn new(options: ServerOptions) -> Self {
        let dir = tempfile::Builder::new().prefix("monoco-it-postgres-").tempdir().unwrap();
        // The user of the server reads the directory of a certificate or a clock, too.
        give_to_server(dir.path());
        for place in [&options.data, &options.wal].into_iter().flatten() {
            give_to_server(place);
        }
        Self { dir, options, process: None }
    }

    /// Starts the server, also after [`Self::stop`].
    pub fn run(&mut self) {
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let mut server = command("postgres", &self.options.prefix, &self.options.clock);
        let listen = if self.options.port.is_some() { "*" } else { "" };
        server.args(["-c", &format!("listen_addresses={listen}"), "-c", "max_connections=100"]);
        server.arg("-p").arg(self.port().to_string()).arg("-k");
        server.arg(self.dir.path()).arg("-D").arg(self.data());
        for setting in &self.options.settings {
            server.args(["-c", setting]);
        }
        let process = server.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.process = Some(process);
        until("the PostgreSQL server is ready", || self.is_ready());
    }

    /// Whether it accepts connections.
    pub fn is_ready(&self) -> bool {
        let mut ready = Command::new(program("pg_isready"));
        ready.arg("-q").arg("-h").arg(self.dir.path()).arg("-p").arg(self.port().to_string());
        ready.status().is_ok_and(|status| status.success())
    }

    /// Whether its first process runs, which can still be recovering.
    pub fn is_running(&mut self) -> bool {
        self.process.as_mut().is_some_and(|process| process.try_wait().unwrap().is_none())
    }

    /// Stops the server as `pg_ctl stop -m immediate` does, and waits until it is gone. The next
    /// start recovers as after a crash.
    pub fn stop(&mut self) {
        self.end(Signal::QUIT);
    }

    /// `kill -9` of all its processes, as when its machine is lost.
    pub fn kill(&mut self) {
        self.end(Signal::KILL);
    }

    fn end(&mut self, signal: Signal) {
        let Some(mut process) = self.process.take() else { return };
        let pid = Pid::from_child(&process);
        let sessions = children(pid);
        // It can have ended by itself.
        let _ = kill_process(pid, signal);
        if signal == Signal::KILL {
            for session in sessions {
                let _ = kill_process(session, signal);
            }
        }
        process.wait().unwrap();
    }

    /// Makes a standby the primary, as an operator does.
    pub fn promote(&self) {
        run(command("pg_ctl", &[], &[]).args(["promote", "--wait", "-D"]).arg(self.data()));
    }

    /// Runs statements as the superuser and returns their output.
    #[track_caller]
    pub fn sql(&self, statements: &str) -> String {
        run(self.psql().args(["-v", "ON_ERROR_STOP=1", "-c", statements]))
    }

    /// A session of the superuser, which runs statements from its standard input.
    pub fn psql(&self) -> Command {
        let mut psql = Command::new(program("psql"));
        psql.args(["-qtA", "-U", USER, "-d", "postgres", "-h"]).arg(self.dir.path());
        psql.args(["-p", &self.port().to_string()]).env("PGPASSWORD", PASSWORD);
        psql
    }

    /// The URL of its database, for the superuser.
    pub fn url(&self) -> String {
        self.url_of(USER)
    }

    /// The URL of its database; `user` can have a password.
    pub fn url_of(&self, user: &str) -> String {
        format!("postgres://{user}@{}:{}/postgres", self.encoded_host(), self.port())
    }

    /// The URL of two servers, of which the couriers use the primary.
    pub fn url_with(&self, standby: &Self) -> String {
        let hosts = [self, standby].map(|it| format!("{}:{}", it.encoded_host(), it.port()));
        format!("postgres://{USER}@{}/postgres?target_session_attrs=read-write", hosts.join(","))
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// The directory of its socket.
    fn host(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    fn encoded_host(&self) -> String {
        self.host().replace('/', "%2F")
    }

    fn port(&self) -> u16 {
        self.options.port.unwrap_or(5432)
    }

    /// The directory of its data and its configuration.
    pub fn data(&self) -> PathBuf {
        self.options.data.clone().unwrap_or_else(|| self.dir.path().join("data"))
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
pub fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql");
    let versions = versions.map(|found| found.flatten().map(|entry| entry.path()).collect());
    let mut versions: Vec<PathBuf> = versions.unwrap_or_default();
    versions.sort_by_key(|version| version.file_name()?.to_str()?.parse::<u32>().ok());
    // Programs beside the server, such as Patroni, are found by their names.
    let newest = versions.last().map(|version| version.join("bin").join(name));
    let newest = newest.unwrap_or_else(|| panic!("install the Debian package postgresql"));
    if newest.exists() { newest } else { PathBuf::from(name) }
}

/// A command of the user of the server, which ends with the thread of the test. It runs behind
/// `prefix`, and `clock` sets the time that it shows.
pub fn command(name: &str, prefix: &[String], clock: &[String]) -> Command {
    let mut words = prefix.to_vec();
    words.push("setpriv".to_owned());
    // Another user cannot switch to the user of the server, and need not.
    if is_root() {
        words.extend([format!("--reuid={USER}"), format!("--regid={USER}")]);
        words.push("--clear-groups".to_owned());
    }
    words.extend(["--pdeathsig".to_owned(), "INT".to_owned()]);
    words.extend_from_slice(clock);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg(program(name));
    command.current_dir(Path::new("/")).stdin(Stdio::null());
    command
}

/// Makes a directory that of the user of the server.
pub fn give_to_server(dir: &Path) {
    if is_root() {
        let id = |option: &str| {
            let found = Command::new("id").args([option, USER]).output().unwrap();
            String::from_utf8(found.stdout).unwrap().trim().parse().ok()
        };
        chown(dir, id("-u"), id("-g")).unwrap();
    }
}

/// The processes that a process has started.
pub fn children(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let child = |pid: String| {
        // The name of the program, in parentheses, can have spaces.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        let is_child = rest.split_whitespace().nth(1) == Some(parent.as_str());
        is_child.then(|| pid.parse().ok().and_then(Pid::from_raw)).flatten()
    };
    processes.filter_map(|entry| child(entry.file_name().into_string().ok()?)).collect()
}

#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}
