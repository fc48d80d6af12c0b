//! Letters walked through chains, on a real store.

use std::collections::BTreeSet;

use monoco_core::contact::{StrangerPolicy, TunnelInfo};
use monoco_core::letter::{LetterState, LetterStateData};
use monoco_store::sqlite::SqliteStore;
use monoco_store::{AcceptResult, LetterSource};
use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::pipeline::doorman;
use crate::pipeline::external::worker::take;

struct Post {
    _dir: tempfile::TempDir,
    dispatcher: LetterDispatcher,
    settings: watch::Sender<Arc<PipelineConfig>>,
}

fn settings(pipeline: &str) -> Arc<PipelineConfig> {
    let text = format!("courier:\n  pipeline: {{ {pipeline} }}\n");
    Arc::new(Config::parse(&text, &|_| None).unwrap().pipeline)
}

impl Post {
    async fn new(pipeline: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store: SharedStore = Arc::new(SqliteStore::open(&dir.path().join("store")).unwrap());
        let clock = Clock::start(None);
        let (id, provider) = ("mail".parse().unwrap(), "stub".to_owned());
        let tunnel =
            TunnelInfo { id, provider, strangers: StrangerPolicy::Accept, idempotent: true };
        store.put_tunnel(tunnel, clock.now()).await.unwrap();
        let (settings, receiver) = watch::channel(settings(pipeline));
        let dispatcher =
            LetterDispatcher::new(store, clock, QueueNotifier::default(), receiver, Arc::default());
        Self { _dir: dir, dispatcher, settings }
    }

    fn addressed(&self, letter: Value) -> LetterSource {
        let letter = doorman::read(letter, None).unwrap();
        let tunnels = BTreeSet::from(["mail".parse().unwrap()]);
        let tunnel = doorman::way(&letter, &self.settings.borrow(), &tunnels).unwrap();
        doorman::addressed(letter, tunnel, None)
    }

    async fn hand_in(&self, to: &str, text: &str) -> LetterId {
        let letter = json!({
            "from": "team@example.com", "to": [to],
            "data": format!("From: team@example.com\r\nTo: {to}\r\nSubject: News\r\n\r\n{text}\r\n"),
            "extra": {"tunnel": "mail"},
        });
        let origin = self.addressed(letter);
        match self
            .dispatcher
            .store
            .accept(vec![origin], Arc::default(), self.dispatcher.now())
            .await
            .pop()
        {
            Some(Ok(AcceptResult::Letter { id, duplicate: false, .. })) => id,
            other => panic!("{other:?}"),
        }
    }

    async fn clear(&self) {
        self.dispatcher.clear(&mut Instant::now(), &CancellationToken::new()).await.unwrap();
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
async fn an_ordinary_letter_passes_everybody_and_is_sent() {
    let post = Post::new(FIVE).await;
    let id = post.hand_in("ann@example.com", "hello").await;
    post.clear().await;
    let row = post.letter(id).await;
    assert_eq!(row.status.standing, LetterStateData::Done);
    assert_eq!(verdicts(&row), "spam pass, subject pass, footer pass, limit pass, send pass");
    let store = &post.dispatcher.store;
    let sent = store.object(row.became.unwrap()).await.unwrap();
    let sent: Value = serde_json::from_slice(&sent).unwrap();
    let mail = sent["content"]["content"].as_str().unwrap();
    assert!(mail.contains("Subject: [Team] News\r\n"), "{mail}");
    assert!(mail.ends_with("hello\r\n-- \r\nBye\r\n"), "{mail}");
    assert_eq!(sent["to"], json!(["did:msgtunnel:ann%40example%2Ecom.addr.mail"]));
    let figures = post.dispatcher.figures.all();
    assert_eq!(figures[&"footer".parse().unwrap()].pass, 1);
}

#[tokio::test]
async fn spam_goes_to_the_bin_and_no_further() {
    let post = Post::new(FIVE).await;
    let id = post.hand_in("ann@example.com", "the casino is open").await;
    post.clear().await;
    let row = post.letter(id).await;
    assert_eq!(verdicts(&row), "spam trash");
    assert!(
        matches!(row.status.standing, LetterStateData::Trashed { why } if why.contains("casino"))
    );
    assert_eq!(row.became, None);
}

#[tokio::test]
async fn letters_over_the_limit_wait_in_their_order_and_others_pass_by() {
    let post = Post::new(FIVE).await;
    let mut ids = Vec::new();
    for at in 0..5 {
        ids.push(post.hand_in("ann@example.com", &format!("letter {at}")).await);
    }
    let other = post.hand_in("bob@example.com", "hello").await;
    post.clear().await;
    let mut dues = Vec::new();
    for id in &ids {
        match post.letter(*id).await.status.standing {
            LetterStateData::Done => dues.push(None),
            LetterStateData::Waiting { due } => dues.push(Some(due)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(dues[..2], [None, None]);
    assert!(dues[2..].is_sorted() && dues[2..].iter().all(Option::is_some), "{dues:?}");
    assert_eq!(post.state(other).await, LetterState::Done);
    let kept = post.letter(ids[2]).await;
    assert_eq!(kept.held_by.unwrap().as_str(), "limit");
    // What waits was booked before; the next one comes behind it, also in another walk.
    let late = post.hand_in("ann@example.com", "the last").await;
    post.clear().await;
    let LetterStateData::Waiting { due } = post.letter(late).await.status.standing else {
        panic!()
    };
    assert!(Some(due) > dues[4]);
}

#[tokio::test]
async fn what_a_walk_decides_holds_over_all_of_its_commits() {
    let post = Post::new(
        "outbound: [limit, merge, send], workers: { limit: { per_recipient: 100/h }, \
         merge: { window_s: 3600, most: 1000 } }",
    )
    .await;
    let count = 2 * COMMIT + 9;
    let mut ids = Vec::new();
    for at in 0..count {
        ids.push(post.hand_in("ann@example.com", &format!("letter {at}")).await);
    }
    post.clear().await;
    let mut dues = Vec::new();
    for id in ids {
        let row = post.letter(id).await;
        let LetterStateData::Waiting { due } = row.status.standing else { panic!("{row:?}") };
        dues.push((row.held_by.unwrap().as_str().to_owned(), due));
    }
    let (limited, merged): (Vec<_>, Vec<_>) =
        dues.into_iter().partition(|(keeper, _)| keeper == "limit");
    assert_eq!((merged.len(), limited.len()), (100, count - 100));
    assert!(merged.iter().all(|one| *one == merged[0]), "one group: {merged:?}");
    assert!(limited.is_sorted_by(|(_, a), (_, b)| a < b), "one place each: {limited:?}");
}

#[tokio::test]
async fn a_letter_that_waited_its_turn_goes_on_with_what_was_done_before() {
    let post = Post::new(FIVE).await;
    let mut last = None;
    for _ in 0..3 {
        last = Some(post.hand_in("ann@example.com", "hello").await);
    }
    post.clear().await;
    let last = last.unwrap();
    assert_eq!(post.state(last).await, LetterState::Waiting);
    let store = &post.dispatcher.store;
    let now = post.dispatcher.clock.now();
    store.move_letter(last, monoco_store::OperatorAction::Retry, now).await.unwrap();
    post.clear().await;
    let row = post.letter(last).await;
    assert_eq!(verdicts(&row), "spam pass, subject pass, footer pass, limit pass, send pass");
    assert_eq!(row.letter.data.matches("Bye").count(), 1, "{}", row.letter.data);
}

#[tokio::test]
async fn a_worker_outside_gets_the_letter_at_its_desk() {
    let post = Post::new(
        "outbound: [subject, tagger, send], workers: { subject: { template: 'x' }, \
         tagger: { kind: exec, command: ['true'] } }",
    )
    .await;
    let id = post.hand_in("ann@example.com", "hello").await;
    post.clear().await;
    let row = post.letter(id).await;
    assert_eq!(row.worker.as_ref().map(WorkerName::as_str), Some("tagger"));
    assert_eq!(verdicts(&row), "subject pass");
    let taken = post.dispatcher.clock.now();
    let over =
        LetterStep::only(&row, NextAction::HandOver { until: taken + Duration::from_secs(9) });
    let store = &post.dispatcher.store;
    let over = store.step_letters(vec![over], taken).await.pop().unwrap().unwrap();
    let row = post.letter(id).await;
    assert_eq!((row.revision, row.status.attempts), (over.revision, 1));
    // Its answer takes the letter on to the end, in one commit.
    let said = ExternalResult { worker: "tagger".parse().unwrap(), opinion: WorkerResult::PASS };
    let went =
        post.dispatcher.process_batch(vec![PendingLetter { row, said: Some(said) }]).await.unwrap();
    assert_eq!(went[0].1.as_ref().unwrap().state, LetterState::Done);
    assert_eq!(verdicts(&post.letter(id).await), "subject pass, tagger pass, send pass");
}

#[tokio::test]
async fn a_letter_that_stops_the_courier_each_time_runs_out_of_tries() {
    let post = Post::new(
        "outbound: [tagger, send], workers: { tagger: { kind: exec, command: ['true'], \
         retries: 1 } }",
    )
    .await;
    let id = post.hand_in("ann@example.com", "hello").await;
    post.clear().await;
    let settings = Arc::clone(&post.settings.borrow());
    let (name, outside) = settings.outside().next().unwrap();
    let store = &post.dispatcher.store;
    for attempt in 1..=2 {
        let taken = take(&post.dispatcher, name, outside, 9).await.unwrap();
        assert_eq!(taken[0].status.attempts, attempt);
        let released =
            store.release_letters(std::slice::from_ref(name), post.dispatcher.clock.now());
        assert_eq!(released.await.unwrap(), 1);
    }
    assert!(take(&post.dispatcher, name, outside, 9).await.unwrap().is_empty());
    let LetterStateData::Dead { why } = post.letter(id).await.status.standing else { panic!() };
    assert!(why.contains("tried 2 times: the courier stopped"), "{why}");
}

#[tokio::test]
async fn a_chain_that_changed_counts_from_where_the_letter_is() {
    let post = Post::new(
        "outbound: [tagger, send], workers: { tagger: { kind: exec, command: ['true'] } }",
    )
    .await;
    let id = post.hand_in("ann@example.com", "hello").await;
    post.clear().await;
    assert_eq!(post.letter(id).await.worker.unwrap().as_str(), "tagger");
    post.settings.send_replace(settings(
        "outbound: [subject, send], workers: { subject: { template: 'New' } }",
    ));
    let store = &post.dispatcher.store;
    let now = post.dispatcher.clock.now();
    assert_eq!(store.recall_letters(&[], 10, now).await.unwrap(), 1);
    post.clear().await;
    assert_eq!(verdicts(&post.letter(id).await), "subject pass, send pass");
}

#[tokio::test]
async fn letters_of_one_key_become_one_and_none_is_lost() {
    let post =
        Post::new("outbound: [merge, send], workers: { merge: { window_s: 1, most: 3 } }").await;
    let mut ids = Vec::new();
    for at in 0..5 {
        ids.push(post.hand_in("ann@example.com", &format!("letter {at}")).await);
    }
    let alone = post.hand_in("bob@example.com", "alone").await;
    post.clear().await;
    for id in ids.iter().chain([&alone]) {
        assert_eq!(post.state(*id).await, LetterState::Waiting);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while post.state(ids[4]).await == LetterState::Waiting {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
        post.clear().await;
    }
    let mut sent = String::new();
    let mut ends = Vec::new();
    for id in &ids {
        let row = post.letter(*id).await;
        ends.push(row.status.standing.name().as_str());
        if let Some(became) = row.became {
            let body = post.dispatcher.store.object(became).await.unwrap();
            sent.push_str(&String::from_utf8(body).unwrap());
        }
    }
    assert_eq!(ends, ["DONE", "MERGED", "MERGED", "DONE", "MERGED"]);
    for at in 0..5 {
        assert_eq!(sent.matches(&format!("letter {at}")).count(), 1, "{at}: {sent}");
    }
    let row = post.letter(alone).await;
    assert_eq!(row.status.standing, LetterStateData::Done);
    assert_eq!(row.letter.data, post_data(&row), "one alone stays as it is");
}

fn post_data(row: &LetterRow) -> String {
    row.source.letter().unwrap().data
}

#[tokio::test]
async fn a_letter_that_cannot_be_sent_is_dead_with_words_and_holds_up_nobody() {
    let post = Post::new("outbound: [send]").await;
    let id = post.hand_in("ann@example.com", "hello").await;
    // A target nobody can reach: the letter is right, the way is not.
    let lost = json!({
        "from": "did:monoco:me", "to": ["did:monoco:nobody"],
        "data": "hello", "extra": {"content_type": "text/markdown"},
    });
    let origin = post.addressed(lost);
    let lost = match post
        .dispatcher
        .store
        .accept(vec![origin], Arc::default(), post.dispatcher.now())
        .await
        .pop()
    {
        Some(Ok(AcceptResult::Letter { id, .. })) => id,
        other => panic!("{other:?}"),
    };
    let after = post.hand_in("bob@example.com", "hello").await;
    post.clear().await;
    let LetterStateData::Dead { why } = post.letter(lost).await.status.standing else {
        panic!("{:?}", post.letter(lost).await)
    };
    assert!(why.contains("did:monoco:nobody"), "{why}");
    assert_eq!(post.state(id).await, LetterState::Done);
    assert_eq!(post.state(after).await, LetterState::Done);
}
