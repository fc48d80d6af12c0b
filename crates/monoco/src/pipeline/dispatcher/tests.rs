//! Runs letters through chains, on a real store.

use std::collections::BTreeSet;

use monoco_core::contact::{StrangerPolicy, TunnelInfo};
use monoco_core::letter::{LetterState, LetterStateData};
use monoco_store::sqlite::SqliteStore;
use monoco_store::{AcceptResult, LetterSource};
use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::pipeline::doorman;
use crate::pipeline::external::worker::ExternalWorker;

struct DispatcherFixture {
    _dir: tempfile::TempDir,
    dispatcher: Arc<LetterDispatcher>,
    config: watch::Sender<Arc<PipelineConfig>>,
}

fn config(pipeline: &str) -> Arc<PipelineConfig> {
    let text = format!("courier:\n  pipeline: {{ {pipeline} }}\n");
    Arc::new(Config::parse(&text, &|_| None).unwrap().pipeline)
}

impl DispatcherFixture {
    async fn new(pipeline: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store: SharedStore = Arc::new(SqliteStore::open(&dir.path().join("store")).unwrap());
        let clock = Clock::start(None);
        let (id, provider) = ("mail".parse().unwrap(), "stub".to_owned());
        let tunnel =
            TunnelInfo { id, provider, strangers: StrangerPolicy::Accept, idempotent: true };
        store.put_tunnel(tunnel, clock.now()).await.unwrap();
        let (config, receiver) = watch::channel(config(pipeline));
        let dispatcher =
            LetterDispatcher::new(store, clock, QueueNotifier::default(), receiver, Arc::default());
        Self { _dir: dir, dispatcher: Arc::new(dispatcher), config }
    }

    fn source(&self, letter: Value) -> LetterSource {
        let letter = doorman::parse_letter(letter, None).unwrap();
        let tunnels = BTreeSet::from(["mail".parse().unwrap()]);
        let tunnel = doorman::find_tunnel(&letter, &self.config.borrow(), &tunnels).unwrap();
        doorman::into_source(letter, tunnel, None)
    }

    async fn submit(&self, to: &str, text: &str) -> LetterId {
        let letter = json!({
            "from": "team@example.com", "to": [to],
            "data": format!("From: team@example.com\r\nTo: {to}\r\nSubject: News\r\n\r\n{text}\r\n"),
            "extra": {"tunnel": "mail"},
        });
        let source = self.source(letter);
        match self
            .dispatcher
            .store
            .accept(vec![source], Arc::default(), self.dispatcher.now())
            .await
            .pop()
        {
            Some(Ok(AcceptResult::Letter { id, duplicate: false, .. })) => id,
            other => panic!("{other:?}"),
        }
    }

    async fn process_due(&self) {
        self.dispatcher
            .process_due_letters(&mut Instant::now(), &CancellationToken::new())
            .await
            .unwrap();
    }

    async fn letter(&self, id: LetterId) -> LetterRow {
        self.dispatcher.store.letter(id).await.unwrap()
    }

    async fn state(&self, id: LetterId) -> LetterState {
        self.letter(id).await.status.standing.name()
    }
}

fn verdicts(row: &LetterRow) -> String {
    let said = row.verdicts.iter().map(|had| format!("{} {}", had.worker, had.result.as_str()));
    said.collect::<Vec<_>>().join(", ")
}

const FIVE: &str = "outbound: [spam, subject, footer, limit, send], workers: { \
    spam: { threshold: 5, rules: [ { name: casino, text: casino, score: 5 } ] }, \
    subject: { template: '[Team] {subject}' }, footer: { text: Bye }, \
    limit: { per_recipient: 2/h } }";

#[tokio::test]
async fn letter_passes_all_workers_and_is_sent() {
    let fixture = DispatcherFixture::new(FIVE).await;
    let id = fixture.submit("ann@example.com", "hello").await;
    fixture.process_due().await;
    let row = fixture.letter(id).await;
    assert_eq!(row.status.standing, LetterStateData::Done);
    assert_eq!(verdicts(&row), "spam pass, subject pass, footer pass, limit pass, send pass");
    let store = &fixture.dispatcher.store;
    let sent = store.object(row.became.unwrap()).await.unwrap();
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    let mail = sent["content"]["content"].as_str().unwrap();
    assert!(mail.contains("Subject: [Team] News\r\n"), "{mail}");
    assert!(mail.ends_with("hello\r\n-- \r\nBye\r\n"), "{mail}");
    assert_eq!(sent["to"], json!(["did:msgtunnel:ann%40example%2Ecom.addr.mail"]));
    let metrics = fixture.dispatcher.metrics.all();
    assert_eq!(metrics[&"footer".parse().unwrap()].pass, 1);
}

#[tokio::test]
async fn spam_is_trashed_and_ends_the_chain() {
    let fixture = DispatcherFixture::new(FIVE).await;
    let id = fixture.submit("ann@example.com", "the casino is open").await;
    fixture.process_due().await;
    let row = fixture.letter(id).await;
    assert_eq!(verdicts(&row), "spam trash");
    assert!(
        matches!(row.status.standing, LetterStateData::Trashed { why } if why.contains("casino"))
    );
    assert_eq!(row.became, None);
}

#[tokio::test]
async fn letters_over_the_limit_wait_in_order_and_others_pass() {
    let fixture = DispatcherFixture::new(FIVE).await;
    let mut ids = Vec::new();
    for at in 0..5 {
        ids.push(fixture.submit("ann@example.com", &format!("letter {at}")).await);
    }
    let other = fixture.submit("bob@example.com", "hello").await;
    fixture.process_due().await;
    let mut dues = Vec::new();
    for id in &ids {
        match fixture.letter(*id).await.status.standing {
            LetterStateData::Done => dues.push(None),
            LetterStateData::Waiting { due } => dues.push(Some(due)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(dues[..2], [None, None]);
    assert!(dues[2..].is_sorted() && dues[2..].iter().all(Option::is_some), "{dues:?}");
    assert_eq!(fixture.state(other).await, LetterState::Done);
    let kept = fixture.letter(ids[2]).await;
    assert_eq!(kept.held_by.unwrap().as_str(), "limit");
    // A later letter gets a slot behind the waiting ones, also in another batch.
    let late = fixture.submit("ann@example.com", "the last").await;
    fixture.process_due().await;
    let LetterStateData::Waiting { due } = fixture.letter(late).await.status.standing else {
        panic!()
    };
    assert!(Some(due) > dues[4]);
}

#[tokio::test]
async fn decisions_of_a_batch_hold_across_its_commits() {
    let fixture = DispatcherFixture::new(
        "outbound: [limit, merge, send], workers: { limit: { per_recipient: 100/h }, \
         merge: { window_s: 3600, most: 1000 } }",
    )
    .await;
    let count = 2 * MAX_LETTERS_PER_COMMIT + 9;
    let mut ids = Vec::new();
    for at in 0..count {
        ids.push(fixture.submit("ann@example.com", &format!("letter {at}")).await);
    }
    fixture.process_due().await;
    let mut dues = Vec::new();
    for id in ids {
        let row = fixture.letter(id).await;
        let LetterStateData::Waiting { due } = row.status.standing else { panic!("{row:?}") };
        dues.push((row.held_by.unwrap().as_str().to_owned(), due));
    }
    let (limited, merged): (Vec<_>, Vec<_>) =
        dues.into_iter().partition(|(holder, _)| holder == "limit");
    assert_eq!((merged.len(), limited.len()), (100, count - 100));
    assert!(merged.iter().all(|one| *one == merged[0]), "one window: {merged:?}");
    assert!(limited.is_sorted_by(|(_, a), (_, b)| a < b), "one slot each: {limited:?}");
}

#[tokio::test]
async fn held_letter_continues_with_earlier_changes() {
    let fixture = DispatcherFixture::new(FIVE).await;
    let mut last = None;
    for _ in 0..3 {
        last = Some(fixture.submit("ann@example.com", "hello").await);
    }
    fixture.process_due().await;
    let last = last.unwrap();
    assert_eq!(fixture.state(last).await, LetterState::Waiting);
    let store = &fixture.dispatcher.store;
    let now = fixture.dispatcher.clock.now();
    store.move_letter(last, monoco_store::OperatorAction::Retry, now).await.unwrap();
    fixture.process_due().await;
    let row = fixture.letter(last).await;
    assert_eq!(verdicts(&row), "spam pass, subject pass, footer pass, limit pass, send pass");
    assert_eq!(row.letter.data.matches("Bye").count(), 1, "{}", row.letter.data);
}

#[tokio::test]
async fn external_worker_gets_the_letter() {
    let fixture = DispatcherFixture::new(
        "outbound: [subject, tagger, send], workers: { subject: { template: 'x' }, \
         tagger: { kind: exec, command: ['true'] } }",
    )
    .await;
    let id = fixture.submit("ann@example.com", "hello").await;
    fixture.process_due().await;
    let row = fixture.letter(id).await;
    assert_eq!(row.worker.as_ref().map(WorkerName::as_str), Some("tagger"));
    assert_eq!(verdicts(&row), "subject pass");
    let taken = fixture.dispatcher.clock.now();
    let step =
        LetterStep::only(&row, NextAction::HandOver { until: taken + Duration::from_secs(9) });
    let store = &fixture.dispatcher.store;
    let stepped = store.step_letters(vec![step], taken).await.pop().unwrap().unwrap();
    let row = fixture.letter(id).await;
    assert_eq!((row.revision, row.status.attempts), (stepped.revision, 1));
    // The result moves the letter to the end of the chain in one commit.
    let result = ExternalResult { worker: "tagger".parse().unwrap(), result: WorkerResult::PASS };
    let outcomes = fixture
        .dispatcher
        .process_batch(vec![PendingLetter { row, result: Some(result) }])
        .await
        .unwrap();
    assert_eq!(outcomes[0].1.as_ref().unwrap().state, LetterState::Done);
    assert_eq!(verdicts(&fixture.letter(id).await), "subject pass, tagger pass, send pass");
}

#[tokio::test]
async fn letter_that_crashes_the_courier_becomes_dead_after_its_attempts() {
    let fixture = DispatcherFixture::new(
        "outbound: [tagger, send], workers: { tagger: { kind: exec, command: ['true'], \
         retries: 1 } }",
    )
    .await;
    let id = fixture.submit("ann@example.com", "hello").await;
    fixture.process_due().await;
    let config = Arc::clone(&fixture.config.borrow());
    let (name, worker) = config.external_workers().next().unwrap();
    let worker = ExternalWorker {
        name: name.clone(),
        config: worker.clone(),
        dispatcher: Arc::clone(&fixture.dispatcher),
    };
    let store = &fixture.dispatcher.store;
    for attempt in 1..=2 {
        let leased = worker.lease(9).await.unwrap();
        assert_eq!(leased[0].status.attempts, attempt);
        let released =
            store.release_letters(std::slice::from_ref(name), fixture.dispatcher.clock.now());
        assert_eq!(released.await.unwrap(), 1);
    }
    assert!(worker.lease(9).await.unwrap().is_empty());
    let LetterStateData::Dead { why } = fixture.letter(id).await.status.standing else { panic!() };
    assert!(why.contains("tried 2 times: the courier stopped"), "{why}");
}

#[tokio::test]
async fn changed_chain_applies_to_letters_in_progress() {
    let fixture = DispatcherFixture::new(
        "outbound: [tagger, send], workers: { tagger: { kind: exec, command: ['true'] } }",
    )
    .await;
    let id = fixture.submit("ann@example.com", "hello").await;
    fixture.process_due().await;
    assert_eq!(fixture.letter(id).await.worker.unwrap().as_str(), "tagger");
    fixture.config.send_replace(config(
        "outbound: [subject, send], workers: { subject: { template: 'New' } }",
    ));
    let store = &fixture.dispatcher.store;
    let now = fixture.dispatcher.clock.now();
    assert_eq!(store.recall_letters(&[], 10, now).await.unwrap(), 1);
    fixture.process_due().await;
    assert_eq!(verdicts(&fixture.letter(id).await), "subject pass, send pass");
}

#[tokio::test]
async fn letters_with_the_same_key_are_merged_and_none_is_lost() {
    let fixture = DispatcherFixture::new(
        "outbound: [merge, send], workers: { merge: { window_s: 1, most: 3 } }",
    )
    .await;
    let mut ids = Vec::new();
    for at in 0..5 {
        ids.push(fixture.submit("ann@example.com", &format!("letter {at}")).await);
    }
    let alone = fixture.submit("bob@example.com", "alone").await;
    fixture.process_due().await;
    for id in ids.iter().chain([&alone]) {
        assert_eq!(fixture.state(*id).await, LetterState::Waiting);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while fixture.state(ids[4]).await == LetterState::Waiting {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
        fixture.process_due().await;
    }
    let mut sent = String::new();
    let mut ends = Vec::new();
    for id in &ids {
        let row = fixture.letter(*id).await;
        ends.push(row.status.standing.name().as_str());
        if let Some(became) = row.became {
            let body = fixture.dispatcher.store.object(became).await.unwrap();
            sent.push_str(&String::from_utf8(body).unwrap());
        }
    }
    assert_eq!(ends, ["DONE", "MERGED", "MERGED", "DONE", "MERGED"]);
    for at in 0..5 {
        assert_eq!(sent.matches(&format!("letter {at}")).count(), 1, "{at}: {sent}");
    }
    let row = fixture.letter(alone).await;
    assert_eq!(row.status.standing, LetterStateData::Done);
    assert_eq!(row.letter.data, original_data(&row), "a single letter is unchanged");
}

fn original_data(row: &LetterRow) -> String {
    row.source.letter().unwrap().data
}

#[tokio::test]
async fn letter_that_cannot_be_sent_becomes_dead_and_blocks_no_other() {
    let fixture = DispatcherFixture::new("outbound: [send]").await;
    let id = fixture.submit("ann@example.com", "hello").await;
    // A valid letter to a target that cannot be reached.
    let lost = json!({
        "from": "did:monoco:me", "to": ["did:monoco:nobody"],
        "data": "hello", "extra": {"content_type": "text/markdown"},
    });
    let source = fixture.source(lost);
    let lost = match fixture
        .dispatcher
        .store
        .accept(vec![source], Arc::default(), fixture.dispatcher.now())
        .await
        .pop()
    {
        Some(Ok(AcceptResult::Letter { id, .. })) => id,
        other => panic!("{other:?}"),
    };
    let after = fixture.submit("bob@example.com", "hello").await;
    fixture.process_due().await;
    let LetterStateData::Dead { why } = fixture.letter(lost).await.status.standing else {
        panic!("{:?}", fixture.letter(lost).await)
    };
    assert!(why.contains("did:monoco:nobody"), "{why}");
    assert_eq!(fixture.state(id).await, LetterState::Done);
    assert_eq!(fixture.state(after).await, LetterState::Done);
}
