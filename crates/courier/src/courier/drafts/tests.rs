//! Tests of drafts with a real store: each is sent once and moved when it has ended.

use std::fs;
use std::path::PathBuf;

use monoco_adapters::stub::Stub;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::merge::Debounce;
use monoco_core::retry::RetryPolicy;
use monoco_store::{LeasedEntry, TunnelLabels};
use serde_json::Value;

use super::*;
use crate::center::lease::{delivery_retry, lease_next_delivery};
use crate::courier::intake_quota::IntakeQuota;
use crate::courier::test_hub::TestHub;
use crate::courier::tunnels::{InactiveTunnel, RunningTunnel, TunnelSettings};

struct Sender {
    hub: TestHub,
    drafts: Arc<DraftLoop>,
}

impl Sender {
    async fn new() -> Self {
        let hub = TestHub::new().await;
        let drafts = Self::courier(&hub);
        Self { hub, drafts }
    }

    /// Another courier on the same home directory.
    fn courier(hub: &TestHub) -> Arc<DraftLoop> {
        let tunnels = TunnelRegistry::default();
        let stub = Arc::new(Stub::new("door".parse().unwrap()));
        let stop = CancellationToken::new();
        let (settings, quota) = (
            TunnelSettings {
                debounce: Debounce::DEFAULT,
                labels: TunnelLabels::default(),
                max_file_bytes: 1 << 20,
            },
            IntakeQuota::new(0, hub.clock.now()),
        );
        let door = RunningTunnel::new(stub, settings, quota, stop.clone(), stop);
        let off = InactiveTunnel {
            id: "ci".parse().unwrap(),
            provider: "webhook",
            mode: "push",
            why: "turned off".to_owned(),
        };
        tunnels.set(vec![Arc::new(door)], vec![off]);
        Arc::new(DraftLoop {
            store: Arc::clone(hub.store()),
            clock: hub.clock,
            entry: PipelineEntry::default(),
            tree: hub.tree(),
            owner: TestHub::owner(),
            tunnels: Arc::new(tunnels),
            dead: Arc::new(DeadDrafts::new(hub.tree())),
        })
    }

    fn write(&self, path: &str, text: &str) -> PathBuf {
        let path = self.hub.mailbox().join("outbound").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Runs a step as if all files had been unchanged for an hour.
    async fn round(&self) -> Result<(), DraftsError> {
        let mut queue = DraftQueue::default();
        let (drafts, handle) = (Arc::clone(&self.drafts), Handle::current());
        let round = tokio::task::spawn_blocking(move || {
            let dirs = drafts.tree.open_dirs()?;
            let long_ago = Instant::now().checked_sub(Duration::from_secs(3600)).unwrap();
            queue.files.update(list_drafts(&dirs)?, long_ago);
            drafts.round(&mut queue, &handle).map(drop)
        });
        round.await.unwrap()
    }

    /// Delivers all waiting messages of the tunnel `door`. Returns their bodies.
    async fn deliver(&self, outcome: DeliveryOutcome) -> Vec<Value> {
        let tunnel = "did:msgtunnel:door".parse().unwrap();
        let holder = Holder::new("test").unwrap();
        let mut bodies = Vec::new();
        let (store, clock) = (self.hub.store(), self.hub.clock);
        while let Some(LeasedEntry { entry, message }) =
            lease_next_delivery(store, clock, &tunnel, holder.clone(), LeaseDuration::DEFAULT)
                .await
                .unwrap()
        {
            let guard = LeaseProof { epoch: Some(entry.sending.epoch), holder: holder.clone() };
            let retry = delivery_retry(RetryPolicy::DELIVERY);
            let reported =
                store.report_delivery(entry.id, outcome.clone(), guard, retry, clock.now());
            reported.await.unwrap();
            bodies.push(serde_json::from_str(message.canonical()).unwrap());
        }
        bodies
    }

    /// The drafts in a directory of the mailbox: provider and stem, and text.
    fn at(&self, part: &str) -> Vec<(String, String)> {
        let files = self.hub.files();
        let drafts = files.into_iter().filter_map(|(name, text)| {
            let below = name.strip_prefix(&format!("mailbox/{part}/"))?.to_owned();
            let (subdir, file) = below.rsplit_once('/')?;
            let stem = file.split('_').nth(1).unwrap_or(file);
            file.ends_with(".md").then(|| (format!("{subdir}/{stem}"), text))
        });
        drafts.collect()
    }

    fn stems(&self, part: &str) -> Vec<String> {
        self.at(part).into_iter().map(|(stem, _)| stem).collect()
    }
}

fn accepted() -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: Some("om_1".to_owned()) }
}

const DRAFT: &str = "---\nto: ann\n---\n\nhello\n";

#[tokio::test]
async fn submitted_draft_is_not_validated_again() {
    let sender = Sender::new().await;
    sender.write("stub/build.md", DRAFT);
    sender.round().await.unwrap();
    // The tunnel has been removed from the config meanwhile.
    sender.drafts.tunnels.set(Vec::new(), Vec::new());
    sender.round().await.unwrap();
    assert_eq!(sender.stems(".deadletter"), Vec::<String>::new());
    assert_eq!(sender.deliver(accepted()).await.len(), 1);
    sender.round().await.unwrap();
    assert_eq!(sender.stems("archive"), ["stub/build"]);
}

#[tokio::test]
async fn files_that_are_no_drafts_are_not_changed() {
    let sender = Sender::new().await;
    let outside = sender.hub.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret.md"), DRAFT).unwrap();
    let outbound = sender.hub.mailbox().join("outbound");
    std::os::unix::fs::symlink(&outside, outbound.join("lark")).unwrap();
    sender.write("stub/.hidden.md", DRAFT);
    sender.write("stub/notes.txt", DRAFT);
    std::os::unix::fs::symlink(outside.join("secret.md"), outbound.join("stub/a.md")).unwrap();
    fs::create_dir(outbound.join("stub/b.md")).unwrap();
    let before = sender.hub.files();
    sender.round().await.unwrap();
    assert_eq!(sender.hub.files(), before);
    assert_eq!(sender.deliver(accepted()).await.len(), 0);
}

#[tokio::test]
async fn failing_draft_does_not_delay_others() {
    let sender = Sender::new().await;
    sender.write("aaa/.sending", "not a directory");
    sender.write("aaa/a.md", DRAFT);
    sender.write("stub/b.md", DRAFT);
    assert!(sender.round().await.is_err());
    assert_eq!(sender.deliver(accepted()).await.len(), 1);
    assert!(sender.round().await.is_err());
    assert_eq!(sender.stems("archive"), ["stub/b"]);
    assert_eq!(sender.stems("outbound"), ["aaa/a.md"]);
}

/// A script that keeps its file open, or closes it in the middle.
#[tokio::test]
async fn draft_of_a_slow_writer_is_sent_complete() {
    use std::io::Write;
    let sender = Sender::new().await;
    let path = sender.write("stub/slow.md", "");
    let mut script = fs::OpenOptions::new().append(true).open(&path).unwrap();
    for part in ["---\nto: ann\n", "---\n\nfirst line\n", "second line\n"] {
        script.write_all(part.as_bytes()).unwrap();
        sender.round().await.unwrap();
        assert!(path.exists(), "picked up after {part:?}");
    }
    drop(script);
    sender.round().await.unwrap();
    let sent = sender.deliver(accepted()).await;
    assert_eq!(sent[0]["content"]["content"], "first line\nsecond line");

    // Half a front matter in a closed file: the courier waits up to a minute.
    let path = sender.write("stub/half.md", "---\nto: ann\n");
    let mut queue = DraftQueue::default();
    let dirs = sender.drafts.tree.open_dirs().unwrap();
    let ago = |secs| Instant::now().checked_sub(Duration::from_secs(secs)).unwrap();
    queue.files.update(list_drafts(&dirs).unwrap(), ago(59));
    let round = {
        let (drafts, handle) = (Arc::clone(&sender.drafts), Handle::current());
        tokio::task::spawn_blocking(move || drafts.round(&mut queue, &handle))
    };
    assert!(round.await.unwrap().unwrap() <= POLL_INTERVAL);
    assert!(path.exists());
    sender.round().await.unwrap();
    assert_eq!(sender.stems(".deadletter"), ["stub/half"]);
}

#[test]
fn uid_contains_only_safe_characters() {
    let now = Timestamp::from_ms(1_770_410_700_000);
    let made = |name: &str| uid(name, 0xabc, now);
    assert_eq!(made("build.md"), "20260206T204500_build_0000000000000abc");
    assert_eq!(made(".md"), "20260206T204500_draft_0000000000000abc");
    assert_eq!(made("../e\u{301}_x/\0.md"), "20260206T204500_---e--x--_0000000000000abc");
    for name in ["build.md", ".md", "../../etc/passwd", &"long".repeat(80), "é_\n.md"] {
        assert!(is_uid(&made(name)), "{}", made(name));
    }
    for bad in ["", "a_b_c", "20260206T204500_a_b_0000000000000abc", "20260206T204500__000", "../x"]
    {
        assert!(!is_uid(bad), "{bad}");
    }
}
