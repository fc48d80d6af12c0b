//! `monoco backup DIR`: a consistent copy of store, attachments and config.
//!
//! ```text
//! backup.json           written last: a directory without it is not a backup
//! store/                database and blobs
//! courier/config.yaml   the config, if there is one
//! courier/env           its variables, if there are any
//! courier/adapters.d/   the files of tunnels, if there are any
//! ```

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use monoco_core::did::TunnelId;
use monoco_core::hex;
use monoco_core::mail::digest;
use monoco_fs::FileOptions;
use monoco_store::sqlite::{self, StoreCopy};
use serde::{Deserialize, Serialize};

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output::{self, Column, ToCell, note};
use monoco_courier::clock::wall_now;
use monoco_courier::config::{self, ADAPTERS_DIR, ConfigSource, StoreConfig};
use monoco_courier::home::Home;

/// Version of the layout of a backup.
pub const BACKUP_VERSION: u32 = 1;

/// File that completes a backup.
pub const MANIFEST: &str = "backup.json";

/// Files beside the store: the name in the backup and in a home directory.
const CONFIG_FILES: [&str; 2] = ["courier/config.yaml", "courier/env"];

/// Largest config file that is copied, in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Time between two progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// Directory to create; it may exist if it is empty
    dir: PathBuf,
}

/// The content of `backup.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct BackupManifest {
    pub monoco_backup: u32,
    /// Version of the program that wrote it
    pub version: String,
    pub created_at: String,
    /// SHA-256 of the database
    pub store_sha256: String,
    pub mails: u64,
    pub records: u64,
    /// Attachments and large messages
    pub files: u64,
    /// Config files in the backup, with their SHA-256
    pub config: Vec<(String, String)>,
}

pub fn run(context: &CliContext, args: &BackupArgs) -> Result<(), CliError> {
    let home = &context.home;
    let failed = |error: String| CliError::new(CliExit::NotPossible, error);
    let (dir, store) = (std::path::absolute(&args.dir)?, home.store());
    let running = home.running().and_then(|running| running.config);
    let source = running.unwrap_or_else(|| ConfigSource::of(home));
    if let Ok(config) = source.load()
        && config.store != StoreConfig::Sqlite
    {
        let message = "the store is in PostgreSQL, which has backups of its own";
        return Err(failed(message.to_owned()).hint("use `pg_dump` or a base backup"));
    }
    if !store.join("monoco.db").exists() {
        let message = format!("there is no store in {}", home.path().display());
        return Err(failed(message).hint("`monoco courier start` creates it"));
    }
    if dir.starts_with(home.path()) {
        let message = format!("{} is in the directory to back up", dir.display());
        return Err(failed(message).hint("choose a directory outside of it, on another disk"));
    }
    create_empty(&dir)?;
    let mut progress = CopyProgress::new("backed up");
    let copied =
        sqlite::copy(&store, &dir.join("store"), &mut |done, all| progress.show(done, all));
    let StoreCopy { mails, records, files, missing } = copied.map_err(|error| {
        failed(format!("cannot back up the store: {error}"))
            .hint(format!("{} is incomplete; remove it", dir.display()))
    })?;

    let mut config = Vec::new();
    for (name, path) in config_files(&source, home)? {
        let Some(bytes) = read_config(&path)? else { continue };
        write(&dir.join(&name), &bytes)?;
        config.push((name, digest(&bytes)));
    }
    let manifest = BackupManifest {
        monoco_backup: BACKUP_VERSION,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_at: wall_now().rfc3339(),
        store_sha256: file_digest(&dir.join("store/monoco.db"))?,
        mails,
        records,
        files,
        config,
    };
    let text = serde_json::to_string_pretty(&manifest).map_err(io::Error::from)?;
    write(&dir.join(MANIFEST), text.as_bytes())?;
    show(context, &manifest, &dir)?;
    if missing.is_empty() {
        return Ok(());
    }
    let first: Vec<_> = missing.iter().take(3).map(String::as_str).collect();
    let message = format!(
        "{} files are missing or damaged in the store: {}",
        missing.len(),
        first.join(", ")
    );
    Err(failed(message).hint("the backup has everything else; run `monoco doctor`"))
}

/// Returns the name in the backup and the path of each config file.
fn config_files(source: &ConfigSource, home: &Home) -> Result<Vec<(String, PathBuf)>, CliError> {
    let names = CONFIG_FILES.map(str::to_owned);
    let paths = [source.path.clone(), home.path().join("courier/env")];
    let mut files: Vec<_> = names.into_iter().zip(paths).collect();
    let tunnels = config::adapter_files(&source.path);
    for path in tunnels.map_err(|error| CliError::new(CliExit::NotPossible, error.to_string()))? {
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            files.push((format!("courier/{ADAPTERS_DIR}/{name}"), path));
        }
    }
    Ok(files)
}

/// Tells whether a backup can have a config file of this name, which is a path in a home
/// directory.
pub fn is_config_file(name: &str) -> bool {
    let tunnel = name.strip_prefix(&format!("courier/{ADAPTERS_DIR}/"));
    let tunnel = tunnel.and_then(|name| name.strip_suffix(".yaml"));
    CONFIG_FILES.contains(&name) || tunnel.is_some_and(|id| id.parse::<TunnelId>().is_ok())
}

/// Prints the facts of a backup.
pub fn show(context: &CliContext, manifest: &BackupManifest, dir: &Path) -> Result<(), CliError> {
    let fields: &[Column<BackupManifest>] = &[
        ("created", |it| it.created_at.cell()),
        ("version", |it| it.version.cell()),
        ("mails", |it| it.mails.cell()),
        ("records", |it| it.records.cell()),
        ("files", |it| it.files.cell()),
    ];
    output::one(context.format, manifest, &dir.display().to_string(), fields)
}

/// Prints the progress of copying files, at most every 2 s.
pub struct CopyProgress {
    verb: &'static str,
    last: Instant,
}

impl CopyProgress {
    pub fn new(verb: &'static str) -> Self {
        Self { verb, last: Instant::now() }
    }

    /// Prints how many of all files are done, unless the last message is recent.
    pub fn show(&mut self, done: usize, all: usize) {
        if self.last.elapsed() >= PROGRESS_INTERVAL {
            self.last = Instant::now();
            note(&format!("{} {done} of {all} files", self.verb));
        }
    }
}

/// Creates a private directory, or accepts an empty one.
pub fn create_empty(dir: &Path) -> Result<(), CliError> {
    make_dir(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        let message = format!("{} is not empty", dir.display());
        return Err(CliError::new(CliExit::NotPossible, message)
            .hint("choose a directory that does not exist or is empty"));
    }
    Ok(())
}

fn make_dir(dir: &Path) -> Result<(), CliError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| {
        CliError::new(CliExit::NotPossible, format!("cannot create {}: {error}", dir.display()))
    })
}

/// Writes a private file and syncs it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    if let Some(dir) = path.parent() {
        make_dir(dir)?;
    }
    monoco_fs::write(path, bytes, FileOptions::PRIVATE_SYNCED).map_err(|error| {
        CliError::new(CliExit::NotPossible, format!("cannot write {}: {error}", path.display()))
    })
}

/// Reads a config file; `None` when there is none.
pub fn read_config(path: &Path) -> Result<Option<Vec<u8>>, CliError> {
    let failed = |error: io::Error| {
        CliError::new(CliExit::NotPossible, format!("cannot read {}: {error}", path.display()))
    };
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(failed(io::Error::other("larger than 1 MiB")));
    }
    Ok(Some(bytes))
}

/// The SHA-256 of a file, in hex.
pub fn file_digest(path: &Path) -> Result<String, CliError> {
    let mut file = fs::File::open(path)?;
    let mut hash = sha2::Sha256::default();
    let mut part = vec![0; 1 << 20];
    loop {
        let length = file.read(&mut part)?;
        if length == 0 {
            break;
        }
        sha2::Digest::update(&mut hash, &part[..length]);
    }
    Ok(hex::encode(&sha2::Digest::finalize(hash)))
}
