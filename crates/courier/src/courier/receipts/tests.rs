//! Receipts of a scripted adapter: what is reacted to, what a failure and a crash do.

use std::sync::Mutex;

use async_trait::async_trait;
use monoco_adapters::{Adapter, DeliveryRequest, InboundSink};
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::TunnelId;
use monoco_core::merge::Debounce;
use monoco_core::retry::RetryPolicy;
use monoco_store::{ClaimUpdate, TunnelLabels};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::courier::intake_quota::IntakeQuota;
use crate::courier::test_hub::TestHub;
use crate::courier::tunnels::TunnelSettings;

const RECEIPTS: ChatReceipts = ChatReceipts {
    kept: Some(Reaction::Eyes),
    done: Some(Reaction::Okay),
    dead: Some(Reaction::Cross),
};

const FAST: Rate = Rate { count: 1_000, span_ms: 1_000 };

/// What one call of `react` does.
enum ReactAnswer {
    Fails(Failure),
    Hangs,
    Panics,
}

/// An adapter whose reactions are scripted; without an answer a reaction succeeds.
struct ScriptedReactions {
    id: TunnelId,
    answers: Mutex<VecDeque<ReactAnswer>>,
    reactions: Mutex<Vec<(String, Reaction)>>,
}

#[async_trait]
impl Adapter for ScriptedReactions {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        "webhook"
    }

    fn mode(&self) -> &'static str {
        "memory"
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    async fn react(&self, message_id: &str, reaction: Reaction) -> Result<(), Failure> {
        let answer = self.answers.lock().unwrap().pop_front();
        match answer {
            Some(ReactAnswer::Fails(failure)) => return Err(failure),
            Some(ReactAnswer::Hangs) => std::future::pending::<()>().await,
            Some(ReactAnswer::Panics) => panic!("scripted"),
            None => {}
        }
        self.reactions.lock().unwrap().push((message_id.to_owned(), reaction));
        Ok(())
    }

    async fn listen(&self, _: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        stop.cancelled().await;
        Ok(())
    }

    async fn deliver(&self, _: &DeliveryRequest<'_>) -> DeliveryOutcome {
        DeliveryOutcome::Accepted { external_msg_id: None }
    }
}

struct Fixture {
    hub: TestHub,
    adapter: Arc<ScriptedReactions>,
    tunnel: Arc<RunningTunnel>,
}

impl Fixture {
    /// A hub with the tunnel `ci`.
    async fn new() -> Self {
        let hub = TestHub::new().await;
        let adapter = Arc::new(ScriptedReactions {
            id: "ci".parse().unwrap(),
            answers: Mutex::default(),
            reactions: Mutex::default(),
        });
        let settings = TunnelSettings {
            debounce: Debounce::DEFAULT,
            labels: TunnelLabels::default(),
            max_file_bytes: 1 << 20,
        };
        let quota = IntakeQuota::new(1 << 30, hub.clock.now());
        let (stop, listener_stop) = (CancellationToken::new(), CancellationToken::new());
        let of_tunnel = Arc::clone(&adapter) as Arc<dyn Adapter>;
        let tunnel = RunningTunnel::new(of_tunnel, settings, quota, stop, listener_stop);
        Self { hub, adapter, tunnel: Arc::new(tunnel) }
    }

    /// A loop that starts after the events so far, unless it has a stored position.
    fn start(&self, receipts: ChatReceipts, rate: Rate) -> ReceiptLoop {
        let (store, tunnel) = (Arc::clone(self.hub.store()), Arc::clone(&self.tunnel));
        ReceiptLoop::new(store, self.hub.clock, tunnel, receipts, rate)
    }

    fn reactions(&self) -> Vec<(String, Reaction)> {
        self.adapter.reactions.lock().unwrap().clone()
    }

    fn answer(&self, answer: ReactAnswer) {
        self.adapter.answers.lock().unwrap().push_back(answer);
    }

    fn counts(&self) -> [u64; 3] {
        self.tunnel.receipts.by_result().map(|(_, count)| count)
    }
}

/// Runs steps until the loop waits, and returns for how long.
async fn settle(receipts: &mut ReceiptLoop) -> NextStep {
    for _ in 0..1_000 {
        match receipts.step().await.unwrap() {
            NextStep::Now | NextStep::After(READ_INTERVAL) => {}
            wait => return wait,
        }
    }
    panic!("the loop does not end");
}

fn given_up() -> ClaimUpdate {
    let (reason, retry) = ("no".to_owned(), RetryPolicy::CLAIM);
    ClaimUpdate::Fail { reason, retryable: false, retry }
}

fn retried() -> ClaimUpdate {
    let (reason, retry) = ("later".to_owned(), RetryPolicy::CLAIM);
    ClaimUpdate::Fail { reason, retryable: true, retry }
}

fn temporary(retry_after_ms: Option<u64>) -> ReactAnswer {
    let detail = "busy".to_owned();
    ReactAnswer::Fails(Failure::Temporary { detail, retry_after_ms, error_code: None })
}

#[tokio::test]
async fn reactions_follow_a_message_to_the_end_of_its_mail() {
    let fixture = Fixture::new().await;
    let hub = &fixture.hub;
    hub.receive(["before"]).await;
    let mut receipts = fixture.start(RECEIPTS, FAST);
    let mails = hub.receive(["1", "2", "3"]).await;
    hub.receive_on("door", "stub", &["of another tunnel"], &[]).await;
    assert_eq!(settle(&mut receipts).await, NextStep::Poll(POLL_INTERVAL));
    let kept = ["1", "2", "3"].map(|id| (id.to_owned(), Reaction::Eyes));
    assert_eq!(fixture.reactions(), kept, "those since the start");
    hub.end(&mails[1], ClaimUpdate::Complete).await;
    hub.end(&mails[2], retried()).await;
    hub.end(&mails[0], given_up()).await;
    settle(&mut receipts).await;
    let ended = [("2".to_owned(), Reaction::Okay), ("1".to_owned(), Reaction::Cross)];
    assert_eq!(fixture.reactions()[3..], ended, "the Mail of 3 is retried");
    assert_eq!(fixture.counts(), [5, 0, 0]);
}

#[tokio::test]
async fn only_the_configured_receipts_are_sent() {
    let fixture = Fixture::new().await;
    let receipts = ChatReceipts { done: Some(Reaction::ThumbsUp), ..ChatReceipts::default() };
    let mut receipts = fixture.start(receipts, FAST);
    let mails = fixture.hub.receive(["1"]).await;
    settle(&mut receipts).await;
    assert_eq!(fixture.reactions(), []);
    fixture.hub.end(&mails[0], ClaimUpdate::Complete).await;
    settle(&mut receipts).await;
    assert_eq!(fixture.reactions(), [("1".to_owned(), Reaction::ThumbsUp)]);
}

#[tokio::test]
async fn failing_reaction_is_retried_five_times_and_then_given_up() {
    let fixture = Fixture::new().await;
    let mut receipts = fixture.start(RECEIPTS, FAST);
    fixture.hub.receive(["1", "2"]).await;
    for after in [None, Some(60_000), None] {
        fixture.answer(temporary(after));
    }
    fixture.answer(ReactAnswer::Panics);
    fixture.answer(temporary(None));
    for seconds in [2, 60, 8, 16] {
        let NextStep::After(delay) = settle(&mut receipts).await else { panic!("{seconds}") };
        let shortest = Duration::from_secs(seconds).mul_f64(0.74);
        assert!((shortest..=Duration::from_secs(seconds)).contains(&delay), "{delay:?}");
    }
    assert_eq!(settle(&mut receipts).await, NextStep::Poll(POLL_INTERVAL));
    assert_eq!(fixture.reactions(), [("2".to_owned(), Reaction::Eyes)]);
    assert_eq!(fixture.counts(), [1, 1, 0]);
    let failure = Failure::Permanent { detail: "no scope".to_owned(), error_code: None };
    fixture.answer(ReactAnswer::Fails(failure));
    fixture.hub.receive(["3", "4"]).await;
    assert_eq!(settle(&mut receipts).await, NextStep::Poll(POLL_INTERVAL));
    assert_eq!(fixture.reactions()[1..], [("4".to_owned(), Reaction::Eyes)]);
    assert_eq!(fixture.counts(), [2, 2, 0]);
}

#[tokio::test]
async fn crash_repeats_at_most_the_receipt_that_was_being_sent() {
    let fixture = Fixture::new().await;
    let mut receipts = fixture.start(RECEIPTS, FAST);
    fixture.hub.receive(["1", "2", "3"]).await;
    while fixture.reactions().len() < 2 {
        receipts.step().await.unwrap();
    }
    // Crashes: the position is in the store, the rest of the page is not.
    drop(receipts);
    let mut receipts = fixture.start(RECEIPTS, FAST);
    settle(&mut receipts).await;
    let ids: Vec<_> = fixture.reactions().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["1", "2", "3"]);
    // A crash before anything was sent loses nothing.
    fixture.hub.receive(["4"]).await;
    fixture.answer(temporary(None));
    assert!(matches!(settle(&mut receipts).await, NextStep::After(_)));
    drop(receipts);
    settle(&mut fixture.start(RECEIPTS, FAST)).await;
    assert_eq!(fixture.reactions()[3..], [("4".to_owned(), Reaction::Eyes)]);
}

#[tokio::test]
async fn pace_of_the_provider_is_kept() {
    let fixture = Fixture::new().await;
    let rate = Rate { count: 2, span_ms: 60_000 };
    let mut receipts = fixture.start(RECEIPTS, rate);
    fixture.hub.receive(["1", "2", "3"]).await;
    let NextStep::After(delay) = settle(&mut receipts).await else { panic!("no pace") };
    assert!((25..=30).contains(&delay.as_secs()), "{delay:?}");
    assert_eq!(fixture.reactions().len(), 2);
}

#[tokio::test]
async fn paused_tunnel_sends_no_receipts_and_a_stop_ends_an_attempt() {
    let fixture = Fixture::new().await;
    let mut receipts = fixture.start(RECEIPTS, FAST);
    fixture.hub.receive(["1"]).await;
    fixture.tunnel.set_active(false);
    assert_eq!(settle(&mut receipts).await, NextStep::Poll(POLL_INTERVAL));
    assert_eq!(fixture.reactions(), []);
    fixture.tunnel.set_active(true);
    fixture.answer(ReactAnswer::Hangs);
    let stop = fixture.tunnel.stop.clone();
    let run = tokio::time::timeout(Duration::from_secs(20), receipts.run());
    let (ended, ()) = tokio::join!(run, async {
        while !fixture.adapter.answers.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    });
    ended.unwrap();
    assert_eq!(fixture.counts(), [0; 3]);
}
