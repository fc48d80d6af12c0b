//! The courier's home directory: `~/.monoco`, or the value of `MONOCO_HOME`.
//!
//! ```text
//! store/              the embedded database
//! mailbox/            Mails as files, unless the config names another directory
//! dropzone/           attachments, by content hash
//! remote/             copies of Mails of couriers on other machines, for `MONOCO_URL`
//! courier/config.yaml the config; every key has a default
//! courier/adapters.d/ further tunnels, one file each
//! courier/id          id of the courier among those of a shared store
//! log/courier.log     the log of a courier in the background
//! run/courier.lock    locked by the courier while it runs; never removed
//! run/courier.json    state and addresses of the courier, for the command line
//! run/courier.pid     process id of the courier
//! run/courier.sock    socket on which the courier answers the command line
//! run/courier.token   token that every request over TCP must carry
//! run/page.json       host name of the web page, and the browsers that are logged in
//! run/open.html       the last link of `monoco open`
//! ```
//!
//! Only the user has access. The courier that holds the lock owns the directory; the other
//! files in `run/` are information only.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monoco_fs::FileOptions;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::config::ConfigSource;

mod courier_id;
mod page;
pub mod process;
mod token;

pub use page::PageAccess;
use process::ProcessIdentity;
pub use token::ApiToken;

/// How long to wait for a process that tests the lock and holds it for a moment.
const LOCK_TEST_WAIT: Duration = Duration::from_millis(500);

/// Longest path of a socket, in bytes: 104 on macOS and 108 on Linux, with a zero byte.
const MAX_SOCKET_PATH: usize = 103;

/// Path of a home directory.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

/// What a courier publishes in `courier.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CourierInfo {
    pub state: CourierState,
    pub pid: i32,
    pub host: IpAddr,
    /// Port of the API.
    pub port: u16,
    pub webhook_port: u16,
    /// Address of the listener for other machines, while it is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// Why that listener is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_problem: Option<String>,
    pub version: String,
    /// Start time, RFC 3339.
    pub started_at: String,
    /// Config file and overrides, so that a restart uses the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigSource>,
    /// Path of the log file; `None` when the log goes to stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
    /// Result of the last reload, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload: Option<ReloadResult>,
}

/// The state of a courier that holds the lock of its home directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CourierState {
    /// Opens its store; does not answer yet.
    Starting,
    Running,
    /// Finishes running work; answers no new requests.
    Stopping,
}

impl CourierState {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
        }
    }
}

impl CourierInfo {
    /// Returns the address of the API.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((self.host, self.port))
    }

    /// Returns the address of the webhook listener.
    pub fn webhook_address(&self) -> SocketAddr {
        SocketAddr::from((self.host, self.webhook_port))
    }
}

/// Result of a reload of the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadResult {
    /// Number of the reload since the start.
    pub number: u64,
    /// Changes that were applied.
    pub changes: Vec<String>,
    /// Why no change was applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ReloadResult {
    /// The result of the reload after `last`.
    pub fn after(last: Option<&Self>, result: Result<Vec<String>, String>) -> Self {
        let number = last.map_or(0, |last| last.number) + 1;
        match result {
            Ok(changes) => Self { number, changes, error: None },
            Err(error) => Self { number, changes: Vec::new(), error: Some(error) },
        }
    }
}

/// Lock of a home directory; released when dropped.
#[derive(Debug)]
pub struct HomeLock(#[expect(dead_code, reason = "holding the file is what it is for")] File);

/// A path of the socket that is short enough for the system calls. On Linux a longer path
/// is replaced by one through an open directory.
#[derive(Debug)]
pub struct SocketPath {
    path: PathBuf,
    _dir: Option<OwnedFd>,
}

impl AsRef<Path> for SocketPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    #[error("a courier is already running in {0}")]
    Taken(PathBuf),
    #[error("{0} is not a valid token; remove it, and the courier creates a new one")]
    BadToken(PathBuf),
    #[error(
        "{0} is not a valid courier id; restore it from a copy, or remove it to start as another courier"
    )]
    BadCourierId(PathBuf),
    #[error(
        "{0} is a symbolic link to a place that other users can access; run `chmod go-rwx` on it"
    )]
    OpenLink(PathBuf),
    #[error("{path}: {error}")]
    Io { path: PathBuf, error: io::Error },
}

impl Home {
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Where files are while they are copied to or from a database.
    pub fn spool(&self) -> PathBuf {
        self.store().join("spool")
    }

    pub fn token_path(&self) -> PathBuf {
        self.0.join("run/courier.token")
    }

    /// Default directory of the Mail files.
    pub fn mailbox(&self) -> PathBuf {
        self.0.join("mailbox")
    }

    pub fn dropzone(&self) -> PathBuf {
        self.0.join("dropzone")
    }

    /// Where commands keep copies of the Mails of couriers on other machines.
    pub fn remote(&self) -> PathBuf {
        self.0.join("remote")
    }

    /// Default path of the config.
    pub fn config(&self) -> PathBuf {
        self.0.join("courier/config.yaml")
    }

    pub fn log(&self) -> PathBuf {
        self.0.join("log/courier.log")
    }

    fn running_path(&self) -> PathBuf {
        self.0.join("run/courier.json")
    }

    fn pid_path(&self) -> PathBuf {
        self.0.join("run/courier.pid")
    }

    fn socket_path(&self) -> PathBuf {
        self.0.join("run/courier.sock")
    }

    fn lock_path(&self) -> PathBuf {
        self.0.join("run/courier.lock")
    }

    /// Creates missing directories with mode 0700.
    ///
    /// # Errors
    ///
    /// When a directory cannot be created.
    pub fn create(&self) -> Result<(), HomeError> {
        let subdirs = ["run", "courier", "log", "dropzone"].map(|name| self.0.join(name));
        for path in [self.0.clone()].into_iter().chain(subdirs) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|error| HomeError::Io { path: path.clone(), error })?;
            // An existing directory may be accessible to other users.
            make_private(&path, 0o700)?;
        }
        // The store syncs its own directory, but not the entry in this one.
        let synced = File::open(&self.0).and_then(|dir| dir.sync_all());
        synced.map_err(|error| HomeError::Io { path: self.0.clone(), error })
    }

    /// Locks the home directory and removes files of a courier that was killed.
    ///
    /// # Errors
    ///
    /// [`HomeError::Taken`] when another courier holds the lock.
    pub fn lock(&self) -> Result<HomeLock, HomeError> {
        let path = self.lock_path();
        let io = |error| HomeError::Io { path: path.clone(), error };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(io)?;
        let deadline = Instant::now() + LOCK_TEST_WAIT;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // A process that tests the lock holds it for a moment.
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => return Err(HomeError::Taken(self.0.clone())),
                Err(TryLockError::Error(error)) => return Err(io(error)),
            }
        }
        // The file of a killed courier must not be taken for that of this one.
        self.withdraw();
        let me = ProcessIdentity::of(rustix::process::getpid());
        // Without it, `stop` does not find the courier; a full disk must not prevent a start.
        let _ = me.write(&file);
        let pid = format!("{}\n", std::process::id());
        // The file is information only, so an error is ignored.
        let _ = monoco_fs::write(&self.pid_path(), pid.as_bytes(), FileOptions::PRIVATE);
        Ok(HomeLock(file))
    }

    /// Whether a courier holds the lock.
    pub fn is_taken(&self) -> bool {
        // Creates nothing. When the file is missing or not readable, no courier of this
        // user runs.
        let Ok(file) = File::open(self.lock_path()) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// Process id of the courier that holds the lock, ready or not. Returns `None` also when
    /// the process in the lock file has ended and its id belongs to another process.
    pub fn holder(&self) -> Option<Pid> {
        if !self.is_taken() {
            return None;
        }
        let holder = ProcessIdentity::read(&self.lock_path())?;
        holder.is_running().then_some(holder.pid)
    }

    /// Writes `courier.json` for the command line.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn announce(&self, running: &CourierInfo) -> Result<(), HomeError> {
        let path = self.running_path();
        let io = |error| HomeError::Io { path: path.clone(), error };
        let text = serde_json::to_string(running).map_err(|error| io(error.into()))?;
        monoco_fs::write(&path, text.as_bytes(), FileOptions::PRIVATE)
            .map_err(|error| io(error.into()))
    }

    /// Removes `courier.json`, `courier.pid` and the socket.
    pub fn withdraw(&self) {
        // The lock decides whether a courier runs, so errors are ignored.
        let _ = fs::remove_file(self.running_path());
        let _ = fs::remove_file(self.pid_path());
        let _ = fs::remove_file(self.socket_path());
    }

    /// Information on the courier that holds the lock, in any state.
    pub fn courier(&self) -> Option<CourierInfo> {
        if self.is_taken() { self.note() } else { None }
    }

    /// Information on the running courier; `None` when none runs, or it starts or stops.
    pub fn running(&self) -> Option<CourierInfo> {
        self.courier().filter(|courier| courier.state == CourierState::Running)
    }

    /// Returns the user id that owns `run/`. Only a process of this user can have created
    /// the socket in it.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn owner(&self) -> io::Result<u32> {
        Ok(fs::metadata(self.0.join("run"))?.uid())
    }

    /// Returns the path of the socket, for `bind` and `connect`.
    ///
    /// # Errors
    ///
    /// When the home directory cannot be opened.
    pub fn socket(&self) -> io::Result<SocketPath> {
        let path = self.socket_path();
        if path.as_os_str().len() <= MAX_SOCKET_PATH || !cfg!(target_os = "linux") {
            return Ok(SocketPath { path, _dir: None });
        }
        let dir = OwnedFd::from(File::open(self.0.join("run"))?);
        let path = format!("/proc/self/fd/{}/courier.sock", dir.as_raw_fd()).into();
        Ok(SocketPath { path, _dir: Some(dir) })
    }

    /// Content of `courier.json`, whether the courier still runs or not.
    pub fn note(&self) -> Option<CourierInfo> {
        let text = fs::read_to_string(self.running_path()).ok()?;
        serde_json::from_str(&text).ok()
    }
}

/// Sets the permissions of a file or directory. Does not follow a symbolic link: the target
/// of a link must be closed to other users already.
fn make_private(path: &Path, mode: u32) -> Result<(), HomeError> {
    let io = |error| HomeError::Io { path: path.to_owned(), error };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => {
            let file = File::from(file);
            file.set_permissions(fs::Permissions::from_mode(mode)).map_err(io)
        }
        Err(Errno::LOOP | Errno::MLINK) => {
            let target = fs::metadata(path).map_err(io)?.permissions().mode();
            if target & 0o077 == 0 { Ok(()) } else { Err(HomeError::OpenLink(path.to_owned())) }
        }
        Err(error) => Err(io(error.into())),
    }
}

impl HomeError {
    /// Whether access was denied.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        home.create().unwrap();
        (dir, home)
    }

    #[test]
    fn lock_is_exclusive_and_a_stale_info_file_is_removed() {
        let (_dir, home) = home();
        let note = |state: &str| {
            format!(
                r#"{{"state":"{state}","pid":1,"host":"127.0.0.1","port":1,"webhook_port":2,
                "version":"0","started_at":"2026-02-06T20:45:00Z"}}"#
            )
        };
        fs::write(home.running_path(), note("running")).unwrap();
        fs::write(home.pid_path(), "1\n").unwrap();
        assert!(home.running().is_none() && home.holder().is_none(), "the lock is free");
        let lock = home.lock().unwrap();
        assert!(matches!(home.lock(), Err(HomeError::Taken(_))));
        assert!(home.running().is_none(), "the stale file was removed");
        let me = i32::try_from(std::process::id()).ok().and_then(Pid::from_raw);
        assert_eq!(home.holder(), me);
        fs::write(home.running_path(), note("running")).unwrap();
        assert_eq!(home.running().map(|running| running.pid), Some(1));
        for state in ["starting", "stopping"] {
            fs::write(home.running_path(), note(state)).unwrap();
            assert!(home.running().is_none(), "{state}");
            assert_eq!(home.courier().map(|courier| courier.state.as_str()), Some(state));
        }
        drop(lock);
        assert!(!home.is_taken() && home.lock().is_ok());
    }

    #[test]
    fn permissions_are_not_changed_through_a_symbolic_link() {
        let (dir, home) = home();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o755)).unwrap();
        fs::remove_dir(home.path().join("log")).unwrap();
        std::os::unix::fs::symlink(&elsewhere, home.path().join("log")).unwrap();
        assert!(matches!(home.create(), Err(HomeError::OpenLink(_))));
        assert_eq!(mode(&elsewhere), 0o755);
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(0o700)).unwrap();
        home.create().unwrap();

        let token = dir.path().join("token");
        fs::write(&token, "0".repeat(64)).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&token, home.token_path()).unwrap();
        assert!(matches!(ApiToken::open(&home), Err(HomeError::OpenLink(_))));
        assert_eq!(mode(&token), 0o644);
    }

    #[test]
    fn process_that_has_reused_the_id_is_not_the_holder() {
        let (_dir, home) = home();
        let _lock = home.lock().unwrap();
        assert!(home.holder().is_some());
        // The id of this process, with the start time of an earlier one.
        let text = fs::read_to_string(home.lock_path()).unwrap();
        let (pid, _) = text.trim_end().split_once(' ').unwrap();
        fs::write(home.lock_path(), format!("{pid} 1\n")).unwrap();
        assert!(home.is_taken() && home.holder().is_none());
    }

    #[test]
    fn testing_the_lock_does_not_prevent_a_start() {
        let (_dir, home) = home();
        drop(home.lock().unwrap());
        let over = std::sync::atomic::AtomicBool::new(false);
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(relaxed) {
                        home.is_taken();
                        std::thread::yield_now();
                    }
                });
            }
            let taken: Vec<_> = (0..200).map(|_| home.lock().map(drop)).collect();
            over.store(true, relaxed);
            assert!(taken.iter().all(Result::is_ok), "{taken:?}");
        });
    }
}
