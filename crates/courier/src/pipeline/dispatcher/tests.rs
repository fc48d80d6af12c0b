//! Runs letters through chains, on a real store.

use std::collections::{BTreeMap, BTreeSet};

use monoco_core::approval::SendOrigin;
use monoco_core::contact::{StrangerPolicy, TunnelInfo};
use monoco_core::inbound::{ChatSession, InboundMessage, Participant};
use monoco_core::letter::{LetterState, LetterStateData};
use monoco_core::merge::Debounce;
use monoco_store::sqlite::SqliteStore;
use monoco_store::{AcceptResult, LetterSource, MergeContext, StoreInboundRequest};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::*;
use crate::config::Config;
use crate::pipeline::config::QueueKind;
use crate::pipeline::external::worker::ExternalWorker;
use crate::pipeline::{Pipeline, doorman};

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
        let tunnel = TunnelInfo {
            id,
            provider,
            strangers: StrangerPolicy::Accept,
            idempotent: true,
            finds_sent: false,
        };
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
        doorman::into_source(letter, tunnel, None, SendOrigin::Owner)
    }

    fn mail(&self, to: &str, text: &str) -> LetterSource {
        self.source(json!({
            "from": "team@example.com", "to": [to],
            "data": format!("From: team@example.com\r\nTo: {to}\r\nSubject: News\r\n\r\n{text}\r\n"),
            "extra": {"tunnel": "mail"},
        }))
    }

    async fn submit(&self, to: &str, text: &str) -> LetterId {
        let source = self.mail(to, text);
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

#[tokio::test(flavor = "multi_thread")]
async fn reload_leaves_no_letter_of_the_batch_in_progress_with_a_removed_worker() {
    let limited = "outbound: [limit, send], workers: { limit: { per_recipient: 1/day } }";
    let fixture = DispatcherFixture::new(limited).await;
    let LetterDispatcher { store, clock, .. } = &*fixture.dispatcher;
    let letters =
        (0..MAX_LETTERS_PER_BATCH).map(|at| fixture.mail("ann@example.com", &format!("{at}")));
    let accepted = store.accept(letters.collect(), Arc::default(), clock.now()).await;
    assert!(accepted.iter().all(Result::is_ok));
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let (queue, notifier) = LetterQueue::open(&QueueKind::Store, store, &tasks, &stop);
    let started =
        Pipeline::start(store.clone(), *clock, notifier, config(limited), queue, &tasks, &stop);
    let pipeline = started.await.unwrap();

    let deadline = Instant::now() + Duration::from_secs(30);
    let counts = async || store.letter_counts(clock.now()).await.unwrap();
    while counts().await.held.is_empty() {
        assert!(Instant::now() < deadline, "no letter is held");
        tokio::task::yield_now().await;
    }
    // The first commit of the batch is stored, and the others follow.
    pipeline.reload(config("outbound: [send]")).await.unwrap();
    let all = i64::try_from(MAX_LETTERS_PER_BATCH).unwrap();
    loop {
        let now = counts().await;
        if now.states.get(&LetterState::Done) == Some(&all) {
            break;
        }
        assert!(Instant::now() < deadline, "letters stay with a removed worker: {now:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.cancel();
    tasks.close();
    tasks.wait().await;
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

#[tokio::test]
async fn inbound_mail_keeps_its_text_and_takes_the_changed_subject() {
    let fixture = DispatcherFixture::new(
        "inbound: [subject, deliver], workers: { subject: { template: '[in] {subject}' } }",
    )
    .await;
    let session = ChatSession { id: "team@example.com".to_owned(), ..ChatSession::default() };
    let from = Participant::mailbox("ann@example.org", None);
    let message = InboundMessage::new("<1@example.org>#00", session, from, "Lunch?");
    let message = InboundMessage { title: Some("Hi".to_owned()), ..message };
    let mail = b"From: ann@example.org\r\nSubject: Hi\r\n\r\nLunch? (raw)\r\n";
    let request = StoreInboundRequest {
        tunnel: "mail".parse().unwrap(),
        provider: "email".to_owned(),
        message: message.validate().unwrap(),
        attachments: Vec::new(),
        debounce: Debounce { window: Duration::ZERO, max_wait: Duration::ZERO },
        mail: Some(mail.to_vec()),
    };
    let (store, now) = (&fixture.dispatcher.store, fixture.dispatcher.now());
    let source = vec![LetterSource::Inbound(request)];
    let accepted = store.accept(source, Arc::default(), now).await.pop();
    let Some(Ok(AcceptResult::Letter { id, .. })) = accepted else { panic!("{accepted:?}") };
    fixture.process_due().await;
    let row = fixture.letter(id).await;
    assert_eq!(row.status.standing, LetterStateData::Done, "{row:?}");
    let bytes = row.letter.bytes();
    assert_eq!(monoco_mime::subject(&bytes).as_deref(), Some("[in] Hi"));
    assert!(row.letter.data.ends_with("Lunch? (raw)\r\n"), "{}", row.letter.data);
    let owner = "did:monoco:me".parse().unwrap();
    let context = MergeContext {
        owner,
        labels: BTreeMap::new(),
        read_history: Default::default(),
        all: true,
    };
    let now = fixture.dispatcher.now();
    assert_eq!(store.merge(Arc::new(context), 10, now).await.unwrap(), 1);
    let became = fixture.letter(id).await.became.unwrap();
    let object: Value = serde_json::from_slice(&store.object(became).await.unwrap()).unwrap();
    assert_eq!(object["content"]["content"], "Lunch?");
    assert_eq!(object["content"]["title"], "[in] Hi");
}

fn original_data(row: &LetterRow) -> String {
    row.source.letter().unwrap().data
}
