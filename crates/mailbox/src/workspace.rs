//! Location, name and filters of a workspace.
//!
//! A workspace is a directory with `.monoco/mailbox/`:
//!
//! ```text
//! inbox/         Mails that were pulled
//! cursor.json    position in the index
//! config.yaml    name and filters; optional
//! names          cache of the file names in the inbox
//! log/           output of commands that ran on Mails
//! ```
//!
//! A workspace whose config names it is one workspace on every machine. Without a config its name
//! is that of the directory. While couriers on several machines share a store, the id of the local
//! courier is added to such a name, so that directories of other people with the same name do not
//! count as one workspace. With a courier on another machine, the token names the workspace.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monoco_core::claim::Workspace;
use monoco_core::courier::CourierId;
use monoco_core::filter::{self, FilterSet};
use monoco_core::mail::digest;
use monoco_fs::FileOptions;
use serde_json::{Map, Value};

use super::paths::{SHARED_COURIER_FILE, STATE_DIR, TOKEN_WORKSPACE_FILE};
use super::{CheckedDir, MailboxError, at};

/// Mailbox directory below the root of a workspace.
const DIR: &str = ".monoco/mailbox";
const DIR_PARTS: [&str; 2] = [".monoco", "mailbox"];

/// Names in the mailbox directory.
const INBOX_DIR: &str = "inbox";
const LOG_DIR: &str = "log";
const LOCK_FILE: &str = ".lock";
const CONFIG_FILE: &str = "config.yaml";

/// Largest config file, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Content of `.gitignore`: only the config belongs in a repository.
const GITIGNORE: &str = "inbox/\nlog/\ncursor.json\nnames\n.lock\n.*.tmp\n";

/// How long a sync waits for another one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub struct WorkspaceDir {
    root: PathBuf,
    /// Name under which its agents claim Mails.
    pub name: Workspace,
    /// Which Mails are pulled.
    pub filters: FilterSet,
    /// Hash of name and filters, to detect changes.
    pub rules: String,
}

/// Lock of a workspace during a sync; released when dropped.
#[derive(Debug)]
pub struct SyncLock(#[expect(dead_code, reason = "holding the file is what it is for")] File);

/// The nearest workspace at or above `start`, except the courier's own directory.
pub fn find(start: &Path, couriers: &Path) -> Option<PathBuf> {
    start
        .ancestors()
        .find(|root| root.join(DIR).is_dir() && !is_couriers(&root.join(DIR), couriers))
        .map(Path::to_owned)
}

/// Whether a courier writes this mailbox directory.
fn is_couriers(dir: &Path, couriers: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    dir == couriers || dir.join(".state").is_dir() || (real(dir) == real(couriers) && dir.exists())
}

impl WorkspaceDir {
    /// Opens the workspace at `root`.
    ///
    /// # Errors
    ///
    /// When there is none, or its config is invalid.
    pub fn open(root: &Path, couriers: &Path) -> Result<Self, MailboxError> {
        let dir = root.join(DIR);
        if is_couriers(&dir, couriers) {
            return Err(MailboxError::Couriers(dir));
        }
        if !dir.is_dir() {
            return Err(MailboxError::NoWorkspace(root.to_owned()));
        }
        Self::read(root, couriers)
    }

    /// Creates a workspace at `root`.
    ///
    /// # Errors
    ///
    /// When a directory cannot be created.
    pub fn create(root: &Path, couriers: &Path) -> Result<Self, MailboxError> {
        let dir = root.join(DIR);
        if is_couriers(&dir, couriers) {
            return Err(MailboxError::Couriers(dir));
        }
        let mut made = CheckedDir::create_root(root)?;
        for part in DIR_PARTS {
            made = made.make(part)?;
        }
        if made.dir().kind(".gitignore").is_none() {
            let options = FileOptions { mode: 0o644, ..FileOptions::PRIVATE };
            made.write(".gitignore", GITIGNORE.as_bytes(), options)?;
        }
        Self::read(root, couriers)
    }

    /// Reads the config of `root` without creating anything.
    ///
    /// # Errors
    ///
    /// When the config is invalid.
    pub fn read(root: &Path, couriers: &Path) -> Result<Self, MailboxError> {
        let path = root.join(DIR).join(CONFIG_FILE);
        let bytes = match open_dir(root)? {
            Some(dir) => dir.read(CONFIG_FILE, MAX_CONFIG_BYTES)?.unwrap_or_default(),
            None => Vec::new(),
        };
        let text = String::from_utf8(bytes)
            .map_err(|_| MailboxError::Bad { path: path.clone(), why: "not UTF-8".to_owned() })?;
        let called = root.file_name().map(|name| name.to_string_lossy().into_owned());
        let invalid = |why| MailboxError::Bad { path: path.clone(), why };
        let forced = token_workspace(couriers);
        let called = forced.as_ref().map(|name| name.as_str().to_owned()).or(called);
        let WorkspaceConfig { name, is_explicit, filters } =
            configure(&text, called.as_deref().unwrap_or("root")).map_err(invalid)?;
        if let Some(forced) = forced.filter(|forced| *forced != name) {
            let why = format!(
                "the name is {:?}, but the token is for workspace {:?}; remove `name`, or use a \
                 token that was made with `--workspace {}`",
                name.as_str(),
                forced.as_str(),
                name.as_str()
            );
            return Err(invalid(why));
        }
        let rules = digest(format!("{}\n{text}", name.as_str()).as_bytes());
        let name = match shared_courier(couriers) {
            Some(courier) if !is_explicit => {
                let name = format!("{}@{}", name.as_str(), courier.short());
                Workspace::new(name).map_err(|error| invalid(error.to_string()))?
            }
            _ => name,
        };
        Ok(Self { root: root.to_owned(), name, filters, rules })
    }

    fn dir(&self) -> PathBuf {
        self.root.join(DIR)
    }

    /// Path of the inbox, for people and other programs. Use [`Self::open_inbox`] to read it.
    pub fn inbox(&self) -> PathBuf {
        self.dir().join(INBOX_DIR)
    }

    /// Opens the mailbox directory.
    ///
    /// # Errors
    ///
    /// When it does not exist, or a part of it is a symbolic link.
    pub fn open_files(&self) -> Result<CheckedDir, MailboxError> {
        open_dir(&self.root)?.ok_or_else(|| MailboxError::NoWorkspace(self.root.clone()))
    }

    /// Opens the inbox; `None` when nothing was pulled yet.
    ///
    /// # Errors
    ///
    /// When a part of it is a symbolic link or a file.
    pub fn open_inbox(&self) -> Result<Option<CheckedDir>, MailboxError> {
        match open_dir(&self.root)? {
            Some(dir) => dir.sub(INBOX_DIR),
            None => Ok(None),
        }
    }

    /// Opens the inbox, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// When a part of it is a symbolic link or a file, or it cannot be created.
    pub fn ensure_inbox(&self) -> Result<CheckedDir, MailboxError> {
        self.open_files()?.make(INBOX_DIR)
    }

    /// Opens the directory of the logs, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// When a part of it is a symbolic link or a file, or it cannot be created.
    pub fn ensure_logs(&self) -> Result<CheckedDir, MailboxError> {
        self.open_files()?.make(LOG_DIR)
    }

    /// Locks the workspace; `None` when it is locked.
    pub fn try_lock(&self) -> Option<SyncLock> {
        let file = self.open_files().ok()?.open_or_create(LOCK_FILE).ok()?;
        file.try_lock().ok()?;
        Some(SyncLock(file))
    }

    /// Waits for the lock of the workspace.
    ///
    /// # Errors
    ///
    /// [`MailboxError::Busy`] after 10 s.
    pub fn lock(&self) -> Result<SyncLock, MailboxError> {
        let path = self.dir().join(LOCK_FILE);
        let file = self.open_files()?.open_or_create(LOCK_FILE)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(SyncLock(file)),
                Err(TryLockError::Error(error)) => return Err(at(&path)(error)),
                Err(TryLockError::WouldBlock) if Instant::now() > deadline => {
                    return Err(MailboxError::Busy(self.root.clone()));
                }
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }
}

/// Opens the mailbox directory below `root`; `None` when there is none.
fn open_dir(root: &Path) -> Result<Option<CheckedDir>, MailboxError> {
    let mut dir = match CheckedDir::open_root(root) {
        Ok(dir) => dir,
        Err(MailboxError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    for part in DIR_PARTS {
        match dir.sub(part)? {
            Some(sub) => dir = sub,
            None => return Ok(None),
        }
    }
    Ok(Some(dir))
}

/// The workspace that a token forces, in a copy of another machine's mailbox.
fn token_workspace(couriers: &Path) -> Option<Workspace> {
    let path = couriers.join(STATE_DIR).join(TOKEN_WORKSPACE_FILE);
    let mut text = String::new();
    File::open(path).ok()?.take(4096).read_to_string(&mut text).ok()?;
    Workspace::new(text.trim_end_matches('\n')).ok()
}

/// The local courier, when its store is shared with couriers on other machines.
fn shared_courier(couriers: &Path) -> Option<CourierId> {
    let path = couriers.join(STATE_DIR).join(SHARED_COURIER_FILE);
    let mut text = String::new();
    File::open(path).ok()?.take(64).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// What a `config.yaml` says.
struct WorkspaceConfig {
    name: Workspace,
    /// Whether the config has the name.
    is_explicit: bool,
    filters: FilterSet,
}

/// Name and filters in the text of a `config.yaml`; `called` is the name of the directory.
fn configure(text: &str, called: &str) -> Result<WorkspaceConfig, String> {
    let nothing = text.lines().all(|line| {
        let line = line.trim();
        line.is_empty() || line.starts_with('#') || line == "---"
    });
    let config =
        if nothing { Value::Null } else { filter::yaml(text).map_err(|e| e.to_string())? };
    let top = map(&config, "the file", &["mailbox"])?;
    let mailbox = top.and_then(|top| top.get("mailbox")).unwrap_or(&Value::Null);
    let mailbox = map(mailbox, "`mailbox`", &["name", "filters"])?;
    let field = |key: &str| mailbox.and_then(|mailbox| mailbox.get(key));
    let name = match field("name") {
        None => called,
        Some(Value::String(name)) => name,
        Some(_) => return Err("`name` must be text; put it in quotes".to_owned()),
    };
    let filters = match field("filters") {
        None => FilterSet::of_name(name),
        Some(filters) => FilterSet::parse(filters).map_err(|error| error.to_string())?,
    };
    let name = Workspace::new(name).map_err(|error| error.to_string())?;
    Ok(WorkspaceConfig { name, is_explicit: field("name").is_some(), filters })
}

/// The keys of one level, all of which must be known.
fn map<'a>(
    value: &'a Value,
    place: &str,
    known: &[&str],
) -> Result<Option<&'a Map<String, Value>>, String> {
    let map = match value {
        Value::Null => return Ok(None),
        Value::Object(map) => map,
        _ => return Err(format!("{place} must have keys: {}", known.join(", "))),
    };
    for key in map.keys() {
        if !known.contains(&key.as_str()) {
            return Err(match filter::nearest(key, known) {
                Some(known) => format!("no key {key:?} in {place}; did you mean `{known}`?"),
                None => format!("no key {key:?} in {place}; it has `{}`", known.join("`, `")),
            });
        }
    }
    Ok(Some(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_workspace_is_found_and_the_couriers_mailbox_is_not_one() {
        let dir = tempfile::tempdir().unwrap();
        let (home, work) = (dir.path().join("home"), dir.path().join("home/projects/alpha"));
        let couriers = home.join(DIR);
        fs::create_dir_all(&couriers).unwrap();
        fs::create_dir_all(work.join("src/deep")).unwrap();
        assert_eq!(find(&work.join("src"), &couriers), None);
        WorkspaceDir::create(&work, &couriers).unwrap();
        assert_eq!(find(&work.join("src/deep"), &couriers), Some(work.clone()));
        assert_eq!(find(&home, &couriers), None);
        assert!(matches!(WorkspaceDir::create(&home, &couriers), Err(MailboxError::Couriers(_))));
        fs::create_dir_all(couriers.join(".state")).unwrap();
        assert_eq!(find(&home, Path::new("/elsewhere")), None, "another courier's");
        let missing = WorkspaceDir::open(&work.join("src"), &couriers);
        assert!(matches!(missing, Err(MailboxError::NoWorkspace(_))));
    }

    #[test]
    fn missing_or_empty_config_has_defaults_and_unknown_keys_are_rejected() {
        let name = |text: &str| configure(text, "alpha").map(|config| String::from(config.name));
        for (text, expected) in [
            ("", "alpha"),
            ("# nothing yet\n", "alpha"),
            ("mailbox:\n", "alpha"),
            ("mailbox: {filters: []}", "alpha"),
            ("mailbox: {name: beta}", "beta"),
            ("mailbox:\n  name: beta\n  filters:\n    - {type: from, value: ann}\n", "beta"),
        ] {
            assert_eq!(name(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, words) in [
            ("mailbx: {}", "did you mean `mailbox`?"),
            ("mailbox: {nmae: x}", "did you mean `name`?"),
            ("mailbox: {filter: []}", "did you mean `filters`?"),
            ("mailbox: {courier: 1}", "it has `name`, `filters`"),
            ("mailbox: {name: 7}", "put it in quotes"),
            ("mailbox: {name: ''}", "empty"),
            ("mailbox: {filters: {type: from}}", "expected a list"),
            ("mailbox: {filters: [{type: form, value: a}]}", "did you mean `from`?"),
            ("[]", "must have keys"),
            ("mailbox: {", "YAML"),
        ] {
            let error = name(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn directory_name_has_the_courier_while_the_store_is_shared() {
        let dir = tempfile::tempdir().unwrap();
        let (couriers, app) = (dir.path().join("mailbox"), dir.path().join("app"));
        fs::create_dir_all(couriers.join(STATE_DIR)).unwrap();
        let own = WorkspaceDir::create(&app, &couriers).unwrap();
        assert_eq!(own.name.as_str(), "app");
        let id = CourierId::from_random([0xab; 16]);
        fs::write(couriers.join(STATE_DIR).join(SHARED_COURIER_FILE), format!("{id}\n")).unwrap();
        let shared = WorkspaceDir::open(&app, &couriers).unwrap();
        assert_eq!(shared.name.as_str(), "app@abababab");
        assert_eq!(shared.rules, own.rules, "the same filters");
        fs::write(app.join(DIR).join(CONFIG_FILE), "mailbox: {name: app}").unwrap();
        let explicit = WorkspaceDir::open(&app, &couriers).unwrap();
        assert_eq!(explicit.name.as_str(), "app", "one workspace on every machine");
    }

    #[test]
    fn second_lock_waits_for_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let here = WorkspaceDir::create(dir.path(), Path::new("/elsewhere")).unwrap();
        let first = here.lock().unwrap();
        let (root, waiting) = (here.clone(), std::thread::spawn(move || here.lock().is_ok()));
        assert!(!waiting.is_finished());
        drop(first);
        assert!(waiting.join().unwrap());
        assert!(root.lock().is_ok());
    }
}
