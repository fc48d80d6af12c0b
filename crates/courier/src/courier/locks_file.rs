//! Writes `.state/locks.json`: a copy of the open claims for programs that read files.
//!
//! The file is written atomically, at most once per second. It is for display only: the
//! courier decides who may claim a Mail.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use monoco_fs::{FileOptions, FileStat};
use monoco_mailbox::claim_info::{ClaimInfo, LOCKS_VERSION};
use monoco_store::{SharedStore, StoreError};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::mailbox_dir::MailboxDir;
use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::Clock;

const FILE_NAME: &str = "locks.json";

const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between checks when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// Limit of claims in the file; the oldest are written.
const MAX_CLAIMS: usize = 10_000;

#[derive(Debug, thiserror::Error)]
enum LocksFileError {
    #[error("cannot write locks.json: {0}")]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

struct LocksFileTask {
    store: SharedStore,
    clock: Clock,
    tree: Arc<MailboxDir>,
    events: watch::Receiver<i64>,
    written: WrittenLocks,
}

/// The claims that were written last, and the state of the file after that write.
type WrittenLocks = Option<(Vec<ClaimInfo>, Option<FileStat>)>;

impl BackgroundTask for LocksFileTask {
    const NAME: &'static str = "locks file";
    const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);
    type Error = LocksFileError;

    async fn step(&mut self) -> Result<NextStep, LocksFileError> {
        self.events.mark_unchanged();
        write(&self.store, self.clock, &self.tree, &mut self.written).await?;
        Ok(NextStep::Poll(POLL_INTERVAL))
    }

    async fn hint(&mut self) {
        tokio::time::sleep(MIN_WRITE_INTERVAL).await;
        background::changed(&mut self.events).await;
    }
}

/// Writes the open claims whenever they change, until `stop` is cancelled, and once more
/// after that.
pub async fn run(store: SharedStore, clock: Clock, tree: Arc<MailboxDir>, stop: CancellationToken) {
    let events = store.newest_event();
    let mut task = LocksFileTask { store, clock, tree, events, written: None };
    background::run(&mut task, &stop).await;
    if let Err(error) = task.step().await {
        tracing::warn!(%error, "cannot write locks.json before shutdown");
    }
}

/// Writes the claims, unless the same claims were written last and the file is unchanged
/// since then.
async fn write(
    store: &SharedStore,
    clock: Clock,
    tree: &Arc<MailboxDir>,
    written: &mut WrittenLocks,
) -> Result<(), LocksFileError> {
    let claims = store.open_claims(MAX_CLAIMS).await?;
    let locks: Vec<_> = claims.iter().map(ClaimInfo::from).collect();
    let written_at = clock.now().rfc3339();
    let text = json!({"version": LOCKS_VERSION, "written_at": written_at, "locks": locks});
    let unchanged = written.take().filter(|(last, _)| *last == locks).map(|(_, stat)| stat);
    let tree = Arc::clone(tree);
    let put = tokio::task::spawn_blocking(move || {
        let dirs = tree.open_dirs()?;
        let state = dirs.state()?;
        let present = state.stat(FILE_NAME)?;
        if present.is_some() && unchanged == Some(present) {
            return Ok(present);
        }
        // Synced before the rename: after a power cut, readers have no other source.
        let text = format!("{text}\n");
        dirs.put(&state, FILE_NAME, text.as_bytes(), FileOptions::PRIVATE_SYNCED)?;
        state.stat(FILE_NAME)
    });
    let stat = put.await.unwrap_or_else(|error| Err(io::Error::other(error)))?;
    *written = Some((locks, stat));
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use monoco_core::claim::Workspace;
    use monoco_core::lease::{Holder, LeaseDuration};
    use monoco_core::mail::MailId;
    use monoco_core::retry::RetryPolicy;
    use monoco_store::ClaimUpdate;
    use serde_json::Value;

    use super::*;
    use crate::courier::test_hub::{TestHub, permanent_failure};

    #[tokio::test]
    async fn locks_file_lists_leased_claims_and_claims_that_wait_for_a_retry() {
        let hub = TestHub::new().await;
        let (tree, mut written) = (hub.tree(), None);
        let path = hub.mailbox().join(".state/locks.json");
        let ids = hub.receive(["1", "2", "3", "4", "5"]).await;
        write(hub.store(), hub.clock, &tree, &mut written).await.unwrap();
        let read = || serde_json::from_str::<Value>(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!((&read()["version"], &read()["locks"]), (&json!(1), &json!([])));

        let alpha = Workspace::new("alpha").unwrap();
        let (holder, now) = (Holder::new("ann").unwrap(), hub.clock.now());
        let claimed = hub.store().claim(
            &ids[0],
            &alpha,
            holder,
            LeaseDuration::DEFAULT,
            RetryPolicy::CLAIM,
            now,
        );
        claimed.await.unwrap();
        let again =
            ClaimUpdate::Fail { reason: "busy".into(), retryable: true, retry: RetryPolicy::CLAIM };
        hub.end(&ids[1], again).await;
        hub.end(&ids[2], ClaimUpdate::Complete).await;
        hub.end(&ids[3], permanent_failure()).await;
        write(hub.store(), hub.clock, &tree, &mut written).await.unwrap();
        let locks = read()["locks"].clone();
        let shown = |lock: &Value| {
            let field = |name: &str| lock[name].as_str().unwrap_or("-").to_owned();
            let times = ["expires_at", "next_retry_at"].map(|name| lock[name].is_string());
            (field("id"), field("workspace"), field("status"), field("agent_id"), times)
        };
        let shown: Vec<_> = locks.as_array().unwrap().iter().map(shown).collect();
        let row = |id: &MailId, workspace: &str, status: &str, agent: &str, times| {
            let texts = [workspace, status, agent].map(str::to_owned);
            let [workspace, status, agent] = texts;
            (id.to_string(), workspace, status, agent, times)
        };
        assert_eq!(
            shown,
            [
                row(&ids[0], "alpha", "CLAIMED", "ann", [true, false]),
                row(&ids[1], "shared", "NEW", "-", [false, true]),
            ]
        );
        assert_eq!(locks[1]["reason"], "busy");

        let before = fs::metadata(&path).unwrap().modified().unwrap();
        write(hub.store(), hub.clock, &tree, &mut written).await.unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().modified().unwrap(),
            before,
            "unchanged claims are not written again"
        );
    }
}
