//! `.state/locks.json`: the live claims, for whoever reads files.
//!
//! It is a copy, written whole and at most once a second. Nobody may decide anything by
//! it: whoever wants a Mail asks the courier.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use monoco_core::claim::{Claim, ClaimStateData};
use monoco_fs::FileOptions;
use monoco_store::{SharedStore, StoreError};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::mailbox_dir::{FileStat, MailboxDir};
use crate::clock::Clock;

/// Its name.
const NAME: &str = "locks.json";

/// How often it is written, at most.
const EVERY: Duration = Duration::from_secs(1);

/// How long a change may go unnoticed when no hint comes.
const LOOK: Duration = Duration::from_secs(30);

/// Most claims in it; the oldest.
const MOST: usize = 10_000;

/// A claim as the API and `locks.json` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenClaimView {
    /// The Mail
    pub id: String,
    pub workspace: String,
    /// NEW, CLAIMED, COMPLETED or DEADLETTER
    pub status: &'static str,
    /// Who has it, while it is CLAIMED
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Which claim is the current one; send it back with what you do
    pub epoch: u64,
    /// How often it was claimed
    pub attempts: u32,
    /// How often it was claimed again
    pub retry_count: u32,
    /// Until when it is held
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When it may be claimed again
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<String>,
    /// Why it last failed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub updated_at: String,
}

impl From<&Claim> for OpenClaimView {
    fn from(claim: &Claim) -> Self {
        let (agent_id, expires_at, next_retry_at) = match &claim.claiming.state {
            ClaimStateData::Claimed(lease) => {
                (Some(lease.holder.as_str().to_owned()), Some(lease.until.rfc3339()), None)
            }
            ClaimStateData::New { due } => (None, None, Some(due.rfc3339())),
            ClaimStateData::Completed | ClaimStateData::Deadletter { .. } => (None, None, None),
        };
        Self {
            id: claim.mail.to_string(),
            workspace: claim.workspace.as_str().to_owned(),
            status: claim.claiming.state.name().as_str(),
            agent_id,
            epoch: claim.claiming.epoch,
            attempts: claim.claiming.attempts,
            retry_count: claim.claiming.attempts.saturating_sub(1),
            expires_at,
            next_retry_at,
            reason: claim.reason.clone(),
            updated_at: claim.updated_at.rfc3339(),
        }
    }
}

/// Why it is not written.
#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error("{0}")]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes the live claims whenever they change, until `stop`, and then once more.
pub async fn run(store: SharedStore, clock: Clock, tree: Arc<MailboxDir>, stop: CancellationToken) {
    let mut news = store.newest_event();
    let mut written = None;
    let mut troubled = false;
    loop {
        // Before looking, so that what comes while we look is not missed.
        news.mark_unchanged();
        let last = stop.is_cancelled();
        match write(&store, clock, &tree, &mut written).await {
            Ok(()) => troubled = false,
            Err(error) => {
                if !std::mem::replace(&mut troubled, true) {
                    tracing::warn!(%error, "locks.json is not written for now");
                }
            }
        }
        if last {
            return;
        }
        let pause = async {
            tokio::time::sleep(EVERY).await;
            let wait = if troubled { EVERY } else { LOOK };
            let _ = tokio::time::timeout(wait, news.changed()).await;
        };
        let _ = stop.run_until_cancelled(pause).await;
    }
}

/// What was written last, and how the file looked then.
type Written = Option<(Vec<OpenClaimView>, Option<FileStat>)>;

/// Writes the claims, unless they are those that were written last and nobody has been
/// at the file since.
async fn write(
    store: &SharedStore,
    clock: Clock,
    tree: &Arc<MailboxDir>,
    written: &mut Written,
) -> Result<(), Unwritten> {
    let claims = store.open_claims(MOST).await?;
    let locks: Vec<_> = claims.iter().map(OpenClaimView::from).collect();
    let text = json!({"version": 1, "written_at": clock.now().rfc3339(), "locks": locks});
    let left = written.take().filter(|(last, _)| *last == locks).map(|(_, looks)| looks);
    let tree = Arc::clone(tree);
    let put = tokio::task::spawn_blocking(move || {
        let hands = tree.open_dirs()?;
        let state = hands.state()?;
        let there = state.look(NAME)?;
        if there.is_some() && left == Some(there) {
            return Ok(there);
        }
        // On disk before it appears: readers have nothing else to go by, not even after a
        // power cut.
        let look = FileOptions::PRIVATE_SYNCED;
        hands.put(&state, NAME, format!("{text}\n").as_bytes(), look)?;
        state.look(NAME)
    });
    let looks = put.await.unwrap_or_else(|error| Err(io::Error::other(error)))?;
    *written = Some((locks, looks));
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
    use crate::courier::test_hub::{TestHub, for_good};

    #[tokio::test]
    async fn it_has_what_is_claimed_or_waits_for_its_next_try_and_nothing_else() {
        let hub = TestHub::new().await;
        let (tree, mut written) = (hub.tree(), None);
        let path = hub.mailbox().join(".state/locks.json");
        let ids = hub.hear(["1", "2", "3", "4", "5"]).await;
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
        hub.end(&ids[3], for_good()).await;
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
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), before, "not for nothing");
    }
}
