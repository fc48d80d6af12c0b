//! The courier's directory: `~/.monoco`, or wherever `MONOCO_HOME` says.
//!
//! ```text
//! store/              the embedded database
//! mailbox/            the Mails as files, unless the config says elsewhere
//! dropzone/           attachments, by content hash
//! courier/config.yaml how it is to run; everything has a default
//! log/courier.log     what it said
//! run/courier.lock    held by the courier while it runs; never removed
//! run/courier.json    where it listens, for the command line
//! run/courier.pid     its process, for everybody else
//! run/courier.token   what every request must show
//! ```
//!
//! Only the user can look inside. One courier at a time owns it: the one that
//! holds the lock, whatever any other file says.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monoco_fs::FileOptions;
use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use crate::config::ConfigSource;

/// How long somebody who only looks whether the lock is held may be in our way.
const LOOKERS: Duration = Duration::from_millis(500);

/// A courier's directory.
#[derive(Clone, Debug)]
pub struct Home(PathBuf);

/// What a running courier tells about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CourierInfo {
    /// Its process.
    pub pid: i32,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where it listens for webhooks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_address: Option<SocketAddr>,
    /// Its version.
    pub version: String,
    /// When it started, in milliseconds since 1970.
    pub started_at_ms: i64,
    /// Where its config is, and what it was told beyond it: a restart does the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigSource>,
    /// Its log, when it does not go to a terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
    /// What came of the last reload, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload: Option<ReloadResult>,
}

/// What came of a reload of the config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadResult {
    /// The how manieth it was.
    pub number: u64,
    /// What it changed.
    pub changes: Vec<String>,
    /// Why it changed nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl ReloadResult {
    /// The one that follows `last`.
    pub fn after(last: Option<&Self>, said: Result<Vec<String>, String>) -> Self {
        let number = last.map_or(0, |last| last.number) + 1;
        match said {
            Ok(changes) => Self { number, changes, error: None },
            Err(error) => Self { number, changes: Vec::new(), error: Some(error) },
        }
    }
}

/// Proof that no other courier runs in this home. Held while one does.
#[derive(Debug)]
pub struct HomeLock(#[expect(dead_code, reason = "holding the file is what it is for")] File);

/// Why the home can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another courier has it.
    #[error("a courier is already running in {0}")]
    Taken(PathBuf),
    /// The token is there, but it protects nothing.
    #[error("{0} is not a token; remove it, and the courier makes a new one")]
    BadToken(PathBuf),
    /// The file system says no.
    #[error("{path}: {error}")]
    Io {
        /// What was tried.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
}

impl Home {
    /// The directory itself.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where the store is.
    pub fn store(&self) -> PathBuf {
        self.0.join("store")
    }

    /// Where the token is.
    pub fn token_path(&self) -> PathBuf {
        self.0.join("run/courier.token")
    }

    /// Where the Mails are as files, when the config does not say otherwise.
    pub fn mailbox(&self) -> PathBuf {
        self.0.join("mailbox")
    }

    /// Where attachments are, by content hash.
    pub fn dropzone(&self) -> PathBuf {
        self.0.join("dropzone")
    }

    /// Where the config is, when no other is named.
    pub fn config(&self) -> PathBuf {
        self.0.join("courier/config.yaml")
    }

    /// Where a courier in the background logs to.
    pub fn log(&self) -> PathBuf {
        self.0.join("log/courier.log")
    }

    fn running_path(&self) -> PathBuf {
        self.0.join("run/courier.json")
    }

    fn pid_path(&self) -> PathBuf {
        self.0.join("run/courier.pid")
    }

    fn lock_path(&self) -> PathBuf {
        self.0.join("run/courier.lock")
    }

    /// Makes the directories that are missing, for the user alone.
    ///
    /// # Errors
    ///
    /// When one can't be made.
    pub fn create(&self) -> Result<(), HomeError> {
        let rooms = ["run", "courier", "log", "dropzone"].map(|room| self.0.join(room));
        for path in [self.0.clone()].into_iter().chain(rooms) {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            made.map_err(|error| HomeError::Io { path: path.clone(), error })?;
            // It may have been there before us, open to others.
            let private = fs::set_permissions(&path, fs::Permissions::from_mode(0o700));
            private.map_err(|error| HomeError::Io { path, error })?;
        }
        // The store syncs its own directory; this is the way to it.
        let synced = File::open(&self.0).and_then(|dir| dir.sync_all());
        synced.map_err(|error| HomeError::Io { path: self.0.clone(), error })
    }

    /// Takes the home for one courier, and clears away what one that died has left.
    ///
    /// # Errors
    ///
    /// [`HomeError::LeasedEntry`], when another one has it.
    pub fn lock(&self) -> Result<HomeLock, HomeError> {
        let path = self.lock_path();
        let io = |error| HomeError::Io { path: path.clone(), error };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(io)?;
        let deadline = Instant::now() + LOOKERS;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                // Whoever asks whether a courier runs holds it for a moment, too.
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(TryLockError::WouldBlock) => return Err(HomeError::Taken(self.0.clone())),
                Err(TryLockError::Error(error)) => return Err(io(error)),
            }
        }
        // A note that names a dead process must not be taken for ours.
        self.withdraw();
        let pid = format!("{}\n", std::process::id());
        // It is only a note; without it we are a little harder to find.
        let _ = monoco_fs::write(&self.pid_path(), pid.as_bytes(), FileOptions::PRIVATE);
        Ok(HomeLock(file))
    }

    /// Whether a courier holds this home.
    pub fn is_taken(&self) -> bool {
        // Looking makes nothing. No such file, or not ours to look at: no courier.
        let Ok(file) = File::open(self.lock_path()) else { return false };
        matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    }

    /// The process that holds this home, if one does, ready or not.
    pub fn holder(&self) -> Option<Pid> {
        if !self.is_taken() {
            return None;
        }
        let text = fs::read_to_string(self.pid_path()).ok()?;
        text.trim().parse().ok().and_then(Pid::from_raw)
    }

    /// The token, made when there is none.
    ///
    /// # Errors
    ///
    /// When it can't be read or made, or is there and empty: an empty token would
    /// let everybody in.
    pub fn ensure_token(&self) -> Result<String, HomeError> {
        let path = self.token_path();
        let io = |error| HomeError::Io { path: path.clone(), error };
        match fs::symlink_metadata(&path) {
            Ok(_) => {
                let private = fs::Permissions::from_mode(0o600);
                fs::set_permissions(&path, private).map_err(io)?;
                self.token()
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut secret = [0; 32];
                let random = getrandom::fill(&mut secret);
                random.map_err(|error| io(io::Error::other(error.to_string())))?;
                let token: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
                // Atomic and synced: an empty token would keep every later courier from starting.
                monoco_fs::write(&path, token.as_bytes(), FileOptions::PRIVATE_SYNCED)
                    .map_err(|error| io(error.into()))?;
                Ok(token)
            }
            Err(error) => Err(io(error)),
        }
    }

    /// The token that is there.
    ///
    /// # Errors
    ///
    /// When there is none, or it is not one of ours.
    pub fn token(&self) -> Result<String, HomeError> {
        let path = self.token_path();
        let mut text = String::new();
        let read = File::open(&path).and_then(|file| file.take(1024).read_to_string(&mut text));
        read.map_err(|error| HomeError::Io { path: path.clone(), error })?;
        let token = text.trim();
        if token.len() != 64 || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(HomeError::BadToken(path));
        }
        Ok(token.to_owned())
    }

    /// Tells the command line where the courier is.
    ///
    /// # Errors
    ///
    /// When the file can't be written.
    pub fn announce(&self, running: &CourierInfo) -> Result<(), HomeError> {
        let path = self.running_path();
        let io = |error| HomeError::Io { path: path.clone(), error };
        let text = serde_json::to_string(running).map_err(|error| io(error.into()))?;
        monoco_fs::write(&path, text.as_bytes(), FileOptions::PRIVATE)
            .map_err(|error| io(error.into()))
    }

    /// Takes the announcement back.
    pub fn withdraw(&self) {
        // These are only notes; the lock says whether anybody is there.
        let _ = fs::remove_file(self.running_path());
        let _ = fs::remove_file(self.pid_path());
    }

    /// The courier that runs here and is ready, if one does.
    pub fn running(&self) -> Option<CourierInfo> {
        if self.is_taken() { self.note() } else { None }
    }

    /// What a courier has announced, whether it still runs or not.
    pub fn note(&self) -> Option<CourierInfo> {
        let text = fs::read_to_string(self.running_path()).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl HomeError {
    /// Whether the user is not allowed to.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        home.create().unwrap();
        (dir, home)
    }

    #[test]
    fn only_the_user_can_look_inside() {
        let (_dir, home) = home();
        home.ensure_token().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(home.path()), 0o700);
        assert_eq!(mode(&home.token_path()), 0o600);
    }

    #[test]
    fn a_token_stays_and_an_empty_one_is_refused() {
        let (_dir, home) = home();
        let token = home.ensure_token().unwrap();
        assert_eq!(token.len(), 64);
        assert_eq!(home.ensure_token().unwrap(), token);
        for bad in ["", "\n", "short", &"z".repeat(64)] {
            fs::write(home.token_path(), bad).unwrap();
            assert!(matches!(home.ensure_token(), Err(HomeError::BadToken(_))), "{bad:?}");
        }
    }

    #[test]
    fn one_courier_at_a_time_and_a_stale_note_is_no_obstacle() {
        let (_dir, home) = home();
        let note = r#"{"pid":1,"address":"127.0.0.1:1","version":"0","started_at_ms":0}"#;
        fs::write(home.running_path(), note).unwrap();
        fs::write(home.pid_path(), "1\n").unwrap();
        assert!(home.running().is_none() && home.holder().is_none(), "nobody holds the lock");
        let lock = home.lock().unwrap();
        assert!(matches!(home.lock(), Err(HomeError::Taken(_))));
        assert!(home.running().is_none(), "that note was of somebody else");
        let me = i32::try_from(std::process::id()).ok().and_then(Pid::from_raw);
        assert_eq!(home.holder(), me);
        // A courier of an older version knows fewer fields.
        fs::write(home.running_path(), note).unwrap();
        assert_eq!(home.running().map(|running| running.pid), Some(1));
        drop(lock);
        assert!(!home.is_taken() && home.lock().is_ok());
    }

    #[test]
    fn those_who_only_look_keep_nobody_from_starting() {
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
