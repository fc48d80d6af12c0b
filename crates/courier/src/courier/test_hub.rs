//! Test fixture with a real store and a real mailbox directory.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use monoco_core::claim::Workspace;
use monoco_core::contact::{StrangerPolicy, TunnelInfo};
use monoco_core::courier::{CourierId, CourierRun};
use monoco_core::did::{Did, TunnelId};
use monoco_core::inbound::{Artifact, ChatSession, ChatSessionKind, InboundMessage, Participant};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::mail::MailId;
use monoco_core::merge::Debounce;
use monoco_core::retry::RetryPolicy;
use monoco_store::sqlite::SqliteStore;
use monoco_store::{ClaimUpdate, FtsIndex, MergeContext, SharedStore, StoreInboundRequest};

use super::held_duties::HeldDuties;
use super::mailbox_dir::MailboxDir;
use super::search_indexer::SearchIndexer;
use crate::clock::Clock;

pub(super) struct TestHub {
    pub(super) dir: tempfile::TempDir,
    store: SharedStore,
    pub(super) clock: Clock,
}

impl TestHub {
    pub(super) const COURIER: CourierId = CourierId::from_random([1; 16]);

    pub(super) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store: SharedStore = Arc::new(SqliteStore::open(&dir.path().join("store")).unwrap());
        let hub = Self { dir, store, clock: Clock::start(None) };
        hub.add_tunnel("ci", "webhook", StrangerPolicy::Accept).await;
        hub.add_tunnel("door", "stub", StrangerPolicy::Hold).await;
        hub
    }

    async fn add_tunnel(&self, id: &str, provider: &str, strangers: StrangerPolicy) {
        let (id, provider) = (id.parse().unwrap(), provider.to_owned());
        let tunnel = TunnelInfo { idempotent: true, ..TunnelInfo::new(id, provider, strangers) };
        self.store().put_tunnel(tunnel, self.clock.now()).await.unwrap();
    }

    /// The duties of the only courier of the store.
    pub(super) fn duties() -> HeldDuties {
        HeldDuties::all(CourierRun { id: Self::COURIER, boot: 1 })
    }

    pub(super) fn store(&self) -> &SharedStore {
        &self.store
    }

    /// The indexer of the search index beside the store.
    pub(super) fn search(&self) -> Arc<SearchIndexer> {
        let index = FtsIndex::open(&self.dir.path().join("store")).unwrap();
        Arc::new(SearchIndexer::new(Arc::clone(&self.store), Arc::new(index), true))
    }

    pub(super) fn owner() -> Did {
        "did:monoco:me".parse().unwrap()
    }

    pub(super) fn mailbox(&self) -> PathBuf {
        self.dir.path().join("mailbox")
    }

    pub(super) fn dropzone(&self) -> PathBuf {
        self.dir.path().join("dropzone")
    }

    pub(super) fn tree(&self) -> Arc<MailboxDir> {
        let tree = MailboxDir::new(self.mailbox(), self.dropzone());
        tree.create().unwrap();
        Arc::new(tree)
    }

    /// Receives messages and merges each into a Mail.
    pub(super) async fn receive(&self, ids: impl IntoIterator<Item = &str>) -> Vec<MailId> {
        let ids: Vec<_> = ids.into_iter().collect();
        self.receive_on("ci", "webhook", &ids, &[]).await
    }

    pub(super) async fn receive_on(
        &self,
        tunnel: &str,
        provider: &str,
        ids: &[&str],
        attachments: &[&[u8]],
    ) -> Vec<MailId> {
        let tunnel: TunnelId = tunnel.parse().unwrap();
        let mut artifacts = Vec::new();
        for bytes in attachments {
            let hash = self.store().put_blob(bytes.to_vec()).await.unwrap();
            artifacts.push(Artifact {
                name: "../../log.txt".to_owned(),
                mime_type: "text/plain".to_owned(),
                size: Some(bytes.len() as u64),
                hash: Some(hash),
                ..Artifact::default()
            });
        }
        let keep = |id: &&str| StoreInboundRequest {
            attachments: Vec::new(),
            tunnel: tunnel.clone(),
            provider: provider.to_owned(),
            message: message(id, &artifacts).validate().unwrap(),
            debounce: Debounce::DEFAULT,
            mail: None,
        };
        let now = self.clock.now();
        for kept in self.store().store_inbound(ids.iter().map(keep).collect(), now).await {
            kept.unwrap();
        }
        let merging = Arc::new(MergeContext { owner: Self::owner(), tunnels: None, all: true });
        while self.store().merge(Arc::clone(&merging), 1_000, now).await.unwrap() > 0 {}
        ids.iter().map(|id| MailId::of(provider, &tunnel, id)).collect()
    }

    /// Claims a Mail and applies `step` to the claim.
    pub(super) async fn end(&self, id: &MailId, step: ClaimUpdate) {
        let (now, workspace) = (self.clock.now(), Workspace::shared());
        let holder = Holder::new("ann").unwrap();
        let claim = self.store().claim(
            id,
            &workspace,
            holder.clone(),
            LeaseDuration::DEFAULT,
            RetryPolicy::CLAIM,
            now,
        );
        claim.await.unwrap();
        let guard = LeaseProof { epoch: None, holder };
        self.store().update_claim(id, &workspace, guard, step, now).await.unwrap();
    }

    /// All files of mailbox and dropzone with their content, without `locks.json`.
    pub(super) fn files(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        collect(self.dir.path(), &self.mailbox(), &mut found);
        collect(self.dir.path(), &self.dropzone(), &mut found);
        found
    }

    /// Names of the Mail files and reason files.
    pub(super) fn names(&self) -> Vec<String> {
        let names = self.files().into_keys().filter(|name| !name.contains(".state"));
        names.filter(|name| name.starts_with("mailbox")).collect()
    }

    pub(super) fn index(&self) -> String {
        fs::read_to_string(self.mailbox().join(".state/mails.jsonl")).unwrap()
    }

    /// The file of a Mail in a directory of the mailbox.
    pub(super) fn path(&self, part: &str, id: &MailId) -> Option<PathBuf> {
        let dir = self.mailbox().join(part).join(id.provider());
        let names = fs::read_dir(&dir).ok()?.map(|entry| entry.unwrap().path());
        names.into_iter().find(|path| path.to_string_lossy().ends_with(&format!("_{id}.md")))
    }
}

/// A failure that is not retried.
pub(super) fn permanent_failure() -> ClaimUpdate {
    ClaimUpdate::Fail { reason: "no".to_owned(), retryable: false, retry: RetryPolicy::CLAIM }
}

fn message(id: &str, artifacts: &[Artifact]) -> InboundMessage {
    let (name, kind) = (Some("Ops".to_owned()), ChatSessionKind::Group);
    let session = ChatSession { id: format!("room-{id}"), kind, name, thread_key: None };
    let from = Participant::user("ann", None);
    let message = InboundMessage::new(id, session, from, format!("text of {id}"));
    InboundMessage { artifacts: artifacts.to_vec(), ..message }
}

fn collect(root: &Path, dir: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            collect(root, &path, found);
        } else if !path.ends_with("locks.json") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let text = fs::read(&path).unwrap_or_default();
            found.insert(name, String::from_utf8_lossy(&text).into_owned());
        }
    }
}
