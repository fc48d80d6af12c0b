//! A wall clock that a test sets, for one process and its children.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A clock at some distance from the true time.
pub struct FakeClock {
    dir: TempDir,
}

impl FakeClock {
    /// A clock that differs from the true time by `offset`: `+1d`, `-5`.
    pub fn new(offset: &str) -> Self {
        let clock = Self { dir: tempfile::tempdir().unwrap() };
        // Servers of other users read it.
        fs::set_permissions(clock.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        clock.set(offset);
        clock
    }

    /// Sets the clock, also of running processes.
    pub fn set(&self, offset: &str) {
        let incoming = self.dir.path().join("clock.tmp");
        fs::write(&incoming, offset).unwrap();
        fs::rename(incoming, self.dir.path().join("clock")).unwrap();
    }

    /// The start of a command that runs with this clock. Elapsed time stays true.
    pub fn prefix(&self) -> Vec<String> {
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", library().display()),
            format!("FAKETIME_TIMESTAMP_FILE={}", self.dir.path().join("clock").display()),
            "FAKETIME_NO_CACHE=1".to_owned(),
            "FAKETIME_DONT_FAKE_MONOTONIC=1".to_owned(),
            "DONT_FAKE_MONOTONIC=1".to_owned(),
        ]
    }
}

fn library() -> PathBuf {
    let places = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
        .map(|triple| format!("/usr/lib/{triple}/faketime/libfaketimeMT.so.1"));
    let found = places.iter().find(|place| Path::new(place).exists());
    found.unwrap_or_else(|| panic!("libfaketime is missing; ./test installs it")).into()
}
