//! `monoco restore DIR`: restores a backup into an empty home directory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monoco_core::claim::Workspace;
use monoco_core::delivery::SendState;
use monoco_core::lease::{Holder, LeaseProof};
use monoco_core::mail::digest;
use monoco_store::sqlite::{self, SqliteStore};
use monoco_store::{MailQuery, PageRequest, SharedStore, StoreError};

use super::CliContext;
use super::backup::{
    BACKUP_VERSION, BackupManifest, CopyProgress, MANIFEST, file_digest, is_config_file,
    read_config, show, write,
};
use super::failure::{CliError, CliExit};
use super::output::note;
use monoco_courier::clock::wall_now;
use monoco_courier::home::Home;

/// Mails after the backup had numbers, which workspaces have seen. New Mails get numbers above
/// these many.
const RESERVED_NUMBERS: i64 = 1_000_000;

/// Deliveries that are held in one step.
const MAX_DELIVERIES_PER_PAGE: usize = 500;

#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// Directory that `monoco backup` has written
    dir: PathBuf,
    /// Send deliveries that wait, although they may have been sent after the backup
    #[arg(long)]
    resend: bool,
}

pub async fn run(context: &CliContext, args: &RestoreArgs) -> Result<(), CliError> {
    let (home, dir) = (&context.home, std::path::absolute(&args.dir)?);
    let failed = |error: String| CliError::new(CliExit::NotPossible, error);
    let manifest = read_manifest(&dir)?;
    check_empty(home)?;
    note("checking the backup");
    let store = dir.join("store");
    if file_digest(&store.join("monoco.db"))? != manifest.store_sha256 {
        return Err(damaged(&dir, "the database has another hash"));
    }
    let found = sqlite::verify(&store).map_err(|error| damaged(&dir, &error.to_string()))?;
    let expected = (manifest.mails, manifest.records, manifest.files);
    if (found.mails, found.records, found.files) != expected {
        return Err(damaged(&dir, "Mails, records or files are missing"));
    }
    let mut config = Vec::new();
    for (name, sha256) in &manifest.config {
        let bytes = match read_config(&dir.join(name))? {
            Some(bytes) if is_config_file(name) && digest(&bytes) == *sha256 => bytes,
            _ => return Err(damaged(&dir, &format!("{name} is missing or has another hash"))),
        };
        config.push((home.path().join(name), bytes));
    }

    home.create()?;
    let lock = home.lock()?;
    // Copied under another name, so that an interrupted restore is not taken for a store.
    let unfinished = home.path().join("store.restoring");
    let mut progress = CopyProgress::new("restored");
    let copied = sqlite::copy(&store, &unfinished, &mut |done, all| progress.show(done, all));
    copied.map_err(|error| {
        let hint = format!("{} is incomplete; remove it", home.path().display());
        failed(format!("cannot restore the store: {error}")).hint(hint)
    })?;
    for (path, bytes) in config {
        write(&path, &bytes)?;
    }
    fs::rename(&unfinished, home.store())?;
    monoco_fs::sync_dir(home.path())?;
    let store = SqliteStore::open(&home.store()).map_err(|error| failed(error.to_string()))?;
    let held = prepare(Arc::new(store), args.resend).await;
    let held = held.map_err(|error| failed(error.to_string()))?;
    home.withdraw();
    drop(lock);
    if held > 0 {
        note(&format!(
            "{held} deliveries are HELD, because they may have been sent after the backup; \
             `monoco center state RECORD WAIT` sends one"
        ));
    }
    note("restored; `monoco courier start` writes the Mail files");
    show(context, &manifest, &dir)
}

fn read_manifest(dir: &Path) -> Result<BackupManifest, CliError> {
    let failed = |error: String| CliError::new(CliExit::NotPossible, error);
    let Some(bytes) = read_config(&dir.join(MANIFEST))? else {
        let message = format!("{} is not a complete backup: it has no {MANIFEST}", dir.display());
        return Err(failed(message).hint("use a directory that `monoco backup` has written"));
    };
    let manifest: BackupManifest = serde_json::from_slice(&bytes)
        .map_err(|error| damaged(dir, &format!("{MANIFEST}: {error}")))?;
    if manifest.monoco_backup > BACKUP_VERSION {
        let message = format!("the backup was written by version {}", manifest.version);
        return Err(failed(message).hint("restore it with that version or a newer one"));
    }
    Ok(manifest)
}

fn damaged(dir: &Path, why: &str) -> CliError {
    let message = format!("the backup in {} is damaged: {why}", dir.display());
    CliError::new(CliExit::NotPossible, message).hint("use another backup; nothing was restored")
}

/// Rejects a home directory that has data.
fn check_empty(home: &Home) -> Result<(), CliError> {
    let path = home.path();
    if home.is_taken() {
        let message = format!("a courier is running in {}", path.display());
        return Err(CliError::new(CliExit::NotPossible, message)
            .hint("`monoco courier stop` stops it; then move its directory away"));
    }
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    if entries.count() > 0 {
        let message = format!("{} is not empty", path.display());
        return Err(CliError::new(CliExit::NotPossible, message)
            .hint("move the directory away, or restore into another one with --home"));
    }
    Ok(())
}

/// Prepares a restored store: new Mails get numbers that no workspace has seen, and deliveries
/// that wait are held, unless they are to be sent. Returns the number of held deliveries.
async fn prepare(store: SharedStore, resend: bool) -> Result<usize, StoreError> {
    let workspace = Workspace::shared();
    let query =
        MailQuery { workspace, status: None, provider: None, since: None, unclaimed: false };
    let newest = PageRequest { beyond: None, limit: 1, newest_first: true };
    let newest = store.mails(query, newest).await?.entries.first().map_or(0, |mail| mail.entry.seq);
    store.reserve_mail_numbers(newest.saturating_add(RESERVED_NUMBERS)).await?;
    let mut held = 0;
    if resend {
        return Ok(held);
    }
    for tunnel in store.tunnels().await? {
        let page =
            PageRequest { beyond: None, limit: MAX_DELIVERIES_PER_PAGE, newest_first: false };
        let states = [SendState::Wait, SendState::Failed];
        loop {
            let waiting = store.deliveries(&tunnel.id.did(), &states, page.clone()).await?;
            for delivery in &waiting.entries {
                let proof = LeaseProof { epoch: None, holder: Holder::anonymous() };
                let (to, now) = (SendState::Held, wall_now());
                store.mark_delivery(delivery.id, to, proof, None, now).await?;
                held += 1;
            }
            if waiting.entries.is_empty() {
                break;
            }
        }
    }
    Ok(held)
}
