//! PostgreSQL servers of the tests and benchmarks. The tests share one, with a schema for each.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

/// Start of the names of the directories of servers; the rest is the id of the test process.
const PREFIX: &str = "monoco-postgres-";

/// The statements are tested here, not the disk.
const TEST_SETTINGS: [&str; 4] =
    ["fsync=off", "full_page_writes=off", "shared_buffers=64MB", "track_functions=pl"];

/// How long the server may take to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The server refuses to run as root.
const USER: &str = "postgres";

/// The connection string of the server, which is started by the first call.
///
/// # Panics
///
/// When PostgreSQL is not installed or does not start: its tests must not be skipped.
pub(crate) fn url() -> String {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    url_in(DIR.get_or_init(|| {
        // They have many files, for which the tests need not wait.
        thread::spawn(remove_old_servers);
        new_server("")
    }))
}

/// The connection string of a server of one test, which changes its settings.
pub(crate) fn own_url(test: &str) -> String {
    url_in(&new_server(test))
}

fn new_server(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("{PREFIX}{}{name}", std::process::id()));
    start(&dir, &dir.join("data"), &TEST_SETTINGS);
    dir
}

pub(crate) fn url_in(dir: &Path) -> String {
    format!("host={} port=5432 user={USER} dbname=postgres", dir.display())
}

/// The newest installed version of a program of PostgreSQL.
fn program(name: &str) -> PathBuf {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|versions| versions.flatten().map(|version| version.path()).collect())
        .unwrap_or_default();
    versions.sort_by_key(|version| {
        version.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok())
    });
    let newest = versions.last().map(|version| version.join("bin").join(name));
    newest.unwrap_or_else(|| panic!("{name} is missing: install the Debian package postgresql"))
}

/// A command that runs as the user of the server, and ends when this process ends.
pub(crate) fn command(name: &str) -> Command {
    let mut command = Command::new("setpriv");
    // Another user cannot switch to the user of the server, and need not.
    if fs::metadata("/proc/self")
        .is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0)
    {
        command.args([format!("--reuid={USER}"), format!("--regid={USER}")]);
        command.arg("--clear-groups");
    }
    command.args(["--pdeathsig", "INT"]).arg(program(name));
    command.current_dir("/").stdin(Stdio::null());
    command
}

/// Starts a server with its socket in `dir` and its tables in `data`. It ends with this process.
pub(crate) fn start(dir: &Path, data: &Path, settings: &[&str]) {
    create_dirs(dir, data);
    let initialised = command("initdb")
        .args(["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "-U", USER, "-D"])
        .arg(data)
        .output()
        .unwrap();
    assert!(initialised.status.success(), "{}", String::from_utf8_lossy(&initialised.stderr));
    run(dir, data, settings);
}

/// Creates directories for the user of the server.
pub(crate) fn create_dirs(dir: &Path, data: &Path) {
    fs::create_dir_all(dir).unwrap();
    fs::create_dir_all(data).unwrap();
    let id = |option: &str| {
        let found = Command::new("id").args([option, USER]).output().unwrap();
        String::from_utf8(found.stdout).unwrap().trim().parse().ok()
    };
    // Fails without the rights of root, where the directories belong to the right user already.
    let _ = chown(dir, id("-u"), id("-g"));
    let _ = chown(data, id("-u"), id("-g"));
}

/// Runs a server with its socket in `dir` and the tables that are in `data`. It ends with this
/// process.
pub(crate) fn run(dir: &Path, data: &Path, settings: &[&str]) {
    let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
    let (server_dir, data) = (dir.to_owned(), data.to_owned());
    let log = fs::File::create(dir.join("log")).unwrap();
    // The server ends with the thread that has started it, so that thread never ends.
    thread::spawn(move || {
        let mut server = command("postgres");
        for setting in ["listen_addresses=", "max_connections=300", "max_wal_size=256MB"] {
            server.args(["-c", setting]);
        }
        for setting in settings {
            server.args(["-c", &setting]);
        }
        server.arg("-k").arg(&server_dir).arg("-D").arg(data);
        let ended = server.stdout(log.try_clone().unwrap()).stderr(log).status();
        // It ends when its directories are removed, at the end of a benchmark.
        assert!(!server_dir.exists(), "the PostgreSQL server has ended: {ended:?}");
    });
    let socket = dir.join(".s.PGSQL.5432");
    let deadline = Instant::now() + START_TIMEOUT;
    while std::os::unix::net::UnixStream::connect(&socket).is_err() || !is_ready(dir) {
        assert!(Instant::now() < deadline, "{}", fs::read_to_string(dir.join("log")).unwrap());
        thread::sleep(Duration::from_millis(20));
    }
}

fn is_ready(dir: &Path) -> bool {
    let ready = Command::new(program("pg_isready")).arg("-q").arg("-h").arg(dir).status();
    ready.is_ok_and(|status| status.success())
}

/// Removes the directories of servers whose test process is gone.
fn remove_old_servers() {
    for entry in fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(process) = name.strip_prefix(PREFIX)
            && let Some(process) = process.split('-').next()
            && !Path::new("/proc").join(process).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
