//! Tests of what is polled next, and of the loop against a scripted server.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::super::tests::{EventSink, adapter, call_of, server};
use super::*;
use crate::Adapter as _;

const POLL: Duration = Duration::from_secs(50);
const SECOND: Duration = Duration::from_secs(1);

fn error(kind: TelegramErrorKind) -> TelegramError {
    let failure =
        Failure::Temporary { detail: "x".to_owned(), retry_after_ms: None, error_code: None };
    TelegramError { failure, kind }
}

fn connected() -> PollPlan {
    let mut plan = PollPlan::new(POLL);
    let request = plan.request();
    assert_eq!(
        plan.after_page(&[], &request, Duration::ZERO, SECOND, Jitter::NONE),
        Duration::ZERO
    );
    plan
}

#[test]
fn first_request_and_confirmations_return_at_once_and_others_wait() {
    let mut plan = PollPlan::new(POLL);
    let first = PollRequest { offset: None, limit: 100, timeout: Duration::ZERO };
    assert_eq!(plan.request(), first);
    plan.after_page(&[], &first, Duration::ZERO, SECOND, Jitter::NONE);
    let waiting = PollRequest { timeout: POLL, ..first };
    assert_eq!(plan.request(), waiting);
    plan.after_page(&[7, 8], &waiting, SECOND, SECOND, Jitter::NONE);
    plan.confirm(Some(8));
    let confirmation = PollRequest { offset: Some(9), ..first };
    assert_eq!(plan.request(), confirmation);
    plan.after_page(&[], &confirmation, Duration::ZERO, SECOND, Jitter::NONE);
    assert_eq!(plan.request(), waiting, "ids may start over, so the offset is not repeated");
}

#[test]
fn page_that_is_not_stored_is_not_confirmed() {
    let mut plan = connected();
    let request = plan.request();
    plan.after_page(&[7], &request, SECOND, SECOND, Jitter::NONE);
    plan.confirm(None);
    assert_eq!(plan.after_unstored(Jitter::NONE), SECOND);
    assert_eq!(plan.request().offset, None);
}

#[test]
fn server_that_does_not_wait_or_repeats_itself_is_not_hammered() {
    let mut plan = connected();
    let request = plan.request();
    let early = |plan: &mut PollPlan| {
        plan.after_page(&[], &request, Duration::from_millis(3), SECOND, Jitter::NONE)
    };
    assert_eq!([early(&mut plan), early(&mut plan)], [SECOND, 2 * SECOND]);
    let waited = plan.after_page(&[], &request, POLL, SECOND, Jitter::NONE);
    assert_eq!(waited, Duration::ZERO);
    let mut repeat = || {
        let request = plan.request();
        let delay = plan.after_page(&[7, 8], &request, SECOND, SECOND, Jitter::NONE);
        plan.confirm(Some(8));
        delay
    };
    assert_eq!([repeat(), repeat(), repeat()], [Duration::ZERO, SECOND, 2 * SECOND]);
}

#[test]
fn conflicts_are_waited_out_longer_than_the_longest_poll() {
    for kind in [TelegramErrorKind::OtherPoller, TelegramErrorKind::WebhookActive] {
        let mut plan = connected();
        let shortest = plan.clone().after_error(&error(kind), SECOND, Jitter::from_random(0));
        assert!(shortest > POLL + Duration::from_secs(10), "{shortest:?}");
        let mut delays = Vec::new();
        for round in 1..=8 {
            let now = round * 100 * SECOND;
            delays.push(plan.after_error(&error(kind), now, Jitter::NONE));
            // The other program waits as well, so that polls succeed in between.
            let request = plan.request();
            plan.after_page(&[], &request, SECOND, now + SECOND, Jitter::NONE);
        }
        assert!(delays.windows(2).all(|pair| pair[0] <= pair[1]), "{delays:?}");
        assert_eq!(delays.last(), Some(&LONGEST_DELAY), "{delays:?}");
        let request = plan.request();
        plan.after_page(&[], &request, SECOND, 10_000 * SECOND, Jitter::NONE);
        let again = plan.after_error(&error(kind), 10_000 * SECOND, Jitter::NONE);
        assert_eq!(again, delays[0], "a conflict after a long time is a new one");
    }
}

#[test]
fn errors_have_delays_by_their_kind() {
    use TelegramErrorKind as Kind;
    let mut plan = connected();
    let wait =
        |plan: &mut PollPlan, error: &TelegramError| plan.after_error(error, SECOND, Jitter::NONE);
    assert_eq!(wait(&mut plan, &error(Kind::Transport)), SECOND);
    assert_eq!(wait(&mut plan, &error(Kind::Unavailable)), 2 * SECOND);
    let retry_after = Some(40 * SECOND);
    assert_eq!(wait(&mut plan, &error(Kind::Throttled { retry_after })), 40 * SECOND);
    let retry_after = Some(1_000_000 * SECOND);
    assert_eq!(wait(&mut plan, &error(Kind::Throttled { retry_after })), MAX_RETRY_AFTER);
    let failure = Failure::Permanent { detail: "x".to_owned(), error_code: None };
    let wrong = TelegramError { failure, kind: Kind::Unauthorized };
    assert_eq!(wait(&mut connected(), &wrong), 60 * SECOND);
    assert_eq!(plan.request().timeout, Duration::ZERO, "the state is known soon after an error");
}

#[test]
fn waiting_requests_that_always_fail_have_growing_delays() {
    let mut plan = connected();
    let mut delays = Vec::new();
    for _ in 0..4 {
        delays.push(plan.after_error(&error(TelegramErrorKind::Transport), SECOND, Jitter::NONE));
        let at_once = plan.request();
        plan.after_page(&[], &at_once, Duration::ZERO, SECOND, Jitter::NONE);
    }
    assert_eq!(delays, [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND]);
    let waiting = plan.request();
    plan.after_page(&[], &waiting, POLL, SECOND, Jitter::NONE);
    let after = plan.after_error(&error(TelegramErrorKind::Transport), SECOND, Jitter::NONE);
    assert_eq!(after, SECOND);
}

#[test]
fn page_that_cannot_be_read_is_asked_for_one_by_one() {
    let mut plan = connected();
    plan.after_unreadable(Jitter::NONE);
    assert_eq!(plan.request().limit, 1);
    let request = plan.request();
    plan.after_page(&[7], &request, SECOND, SECOND, Jitter::NONE);
    assert_eq!(plan.request().limit, 100);
}

#[test]
fn only_updates_before_the_first_failure_are_confirmed() {
    let unusable = || Err(InboundError::Unusable("too large".to_owned()));
    let full = || Err(InboundError::Full);
    for (sources, results, want) in [
        (&[0, 1, 2][..], vec![Ok(true), Ok(false), Ok(true)], 3),
        (&[0, 1, 2], vec![Ok(true), unusable(), Ok(true)], 3),
        (&[0, 1, 2], vec![Ok(true), full(), Ok(true)], 1),
        (&[2, 0], vec![full(), full()], 0),
        (&[1], vec![full()], 1),
        (&[0, 1], vec![Ok(true)], 1),
        (&[], vec![], 3),
    ] {
        let (end, error) = stored_prefix(3, sources, sources.len(), &results);
        assert_eq!((end, error.is_some()), (want, want < 3), "{sources:?} {results:?}");
    }
}

fn page(ids: &[i64]) -> String {
    let update = |id: &i64| {
        json!({"update_id": id, "message": {"message_id": id, "date": 1, "text": format!("t{id}"),
            "from": {"id": 42, "is_bot": false, "first_name": "Ann"},
            "chat": {"id": 42, "type": "private"}}})
    };
    json!({"ok": true, "result": ids.iter().map(update).collect::<Vec<_>>()}).to_string()
}

/// Runs the tunnel until `is_done`, and returns the offsets of its requests.
async fn offsets(
    answers: &[(u16, &str)],
    sink: &EventSink,
    is_done: impl Fn() -> bool,
) -> Vec<Value> {
    let (server, url) = server(answers);
    let adapter = adapter(&url, "poll_s: 1");
    let stop = CancellationToken::new();
    let watch = async {
        while !is_done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    let (result, ()) = tokio::join!(adapter.listen(sink, stop.clone()), watch);
    assert_eq!(result, Ok(()));
    answers.iter().map(|_| call_of(&server.request()).1["offset"].clone()).collect()
}

#[tokio::test]
async fn stored_updates_are_confirmed_by_the_next_request() {
    let (first, rest, empty) = (page(&[7, 8]), page(&[9]), page(&[]));
    let sink = EventSink::default();
    let answers = [(200, first.as_str()), (200, &rest), (200, &empty), (200, &empty)];
    let found = offsets(&answers, &sink, || sink.reports.lock().unwrap().len() >= 4).await;
    assert_eq!(found, [Value::Null, json!(9), json!(10), Value::Null]);
    assert_eq!(sink.events.lock().unwrap().len(), 3);
    assert_eq!(
        sink.reports.lock().unwrap()[..2],
        [ConnectionEvent::Connected, ConnectionEvent::Frame]
    );
}

#[tokio::test]
async fn updates_that_cannot_be_stored_stay_at_telegram() {
    let (first, empty) = (page(&[7]), page(&[]));
    let sink = EventSink::default();
    sink.is_full.store(true, Ordering::Relaxed);
    let answers = [(200, first.as_str()), (200, first.as_str()), (200, &empty)];
    let is_done = || {
        // The disk has space again after the first page.
        let reports = sink.reports.lock().unwrap().len();
        sink.is_full.store(reports < 1, Ordering::Relaxed);
        reports >= 3
    };
    let found = offsets(&answers, &sink, is_done).await;
    assert_eq!(found, [Value::Null, Value::Null, json!(8)]);
    assert_eq!(sink.events.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn conflict_is_reported_in_words_and_kept_for_the_probe() {
    let conflict = r#"{"ok":false,"error_code":409,"description":"Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"}"#;
    let (_server, url) = server(&[(409, conflict)]);
    let adapter = adapter(&url, "poll_s: 1");
    let (sink, stop) = (EventSink::default(), CancellationToken::new());
    let watch = async {
        while sink.reports.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    let (_, ()) = tokio::join!(adapter.listen(&sink, stop.clone()), watch);
    let ConnectionEvent::Lost(words) = sink.reports.lock().unwrap()[0].clone() else { panic!() };
    assert!(words.contains("stop the other program, or give it a bot of its own"), "{words}");
    assert_eq!(adapter.intake.conflict(), Some(words));
}

#[tokio::test]
async fn active_webhook_is_deleted_only_when_the_config_says_so() {
    let conflict = r#"{"ok":false,"error_code":409,"description":"Conflict: can't use getUpdates method while webhook is active"}"#;
    let done = r#"{"ok":true,"result":true}"#;
    let empty = page(&[]);
    let (server, url) = server(&[(409, conflict), (200, done), (200, &empty)]);
    let adapter = adapter(&url, "delete_webhook: true");
    let (sink, stop) = (EventSink::default(), CancellationToken::new());
    let watch = async {
        while !sink.reports.lock().unwrap().contains(&ConnectionEvent::Connected) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stop.cancel();
    };
    let (_, ()) = tokio::join!(adapter.listen(&sink, stop.clone()), watch);
    let methods: Vec<_> = (0..3).map(|_| call_of(&server.request())).collect();
    assert_eq!(methods[1], ("deleteWebhook".to_owned(), json!({"drop_pending_updates": false})));
    assert_eq!(methods[2].0, "getUpdates");
}
