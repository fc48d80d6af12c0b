//! Conformance tests of the counters per minute.

use monoco_core::event::EventKind;
use monoco_core::figures::{Figure, FigureKey, WaitingAge, minute_of};
use monoco_core::time::Timestamp;

use super::drafts::to_lark;
use super::*;

fn figure(minute: i64, kind: EventKind, tunnel: &str, count: i64) -> Figure {
    Figure { key: FigureKey { minute, kind, tunnel: tunnel.into(), worker: String::new() }, count }
}

fn minute(number: i64) -> Timestamp {
    Timestamp::from_ms(number * 60_000)
}

/// Counts add up; a batch that was counted before is not counted again; old minutes are deleted.
pub async fn figures_are_added_once_and_kept_for_a_time(store: &dyn Store) {
    let kind = EventKind::Received;
    assert_eq!(store.counted_events().await.unwrap(), 0);
    let batch = vec![figure(100, kind, "ci", 2), figure(101, kind, "ci", 1)];
    assert!(store.add_figures(0, 3, batch.clone(), minute(0)).await.unwrap());
    assert!(!store.add_figures(0, 3, batch, minute(0)).await.unwrap());
    assert_eq!(store.counted_events().await.unwrap(), 3);
    let more = vec![figure(101, kind, "ci", 4), figure(101, kind, "", 1)];
    assert!(store.add_figures(3, 9, more, minute(0)).await.unwrap());
    let expected =
        [figure(100, kind, "ci", 2), figure(101, kind, "", 1), figure(101, kind, "ci", 5)];
    assert_eq!(store.figures(minute(0), 1, 100).await.unwrap(), expected);
    assert_eq!(store.figures(minute(101), 1, 100).await.unwrap(), expected[1..]);
    assert_eq!(store.figures(minute(0), 1, 1).await.unwrap(), expected[..1]);
    let sums = [figure(100, kind, "", 1), figure(100, kind, "ci", 7)];
    assert_eq!(store.figures(minute(0), 10, 100).await.unwrap(), sums);
    assert!(store.add_figures(9, 10, Vec::new(), minute(101)).await.unwrap());
    assert_eq!(store.figures(minute(0), 1, 100).await.unwrap(), expected[1..]);
}

/// The age of the oldest delivery of a tunnel is stored, the longest of an interval is listed, and
/// nothing is stored while nothing waits.
pub async fn waiting_times_are_sampled_while_something_waits(store: &dyn Store) {
    put_lark_tunnel(store).await;
    assert!(!store.sample_waiting(at(60), minute(0)).await.unwrap());
    for (text, secs) in [("first", 60), ("second", 120)] {
        store.send(send_request(to_lark(&["1"], text)), at(secs)).await.unwrap();
    }
    for secs in [70, 130, 125, 190] {
        assert!(store.sample_waiting(at(secs), minute(0)).await.unwrap());
    }
    let age = |secs: i64, age_secs: i64| WaitingAge {
        minute: minute_of(at(secs)),
        tunnel: "lark".into(),
        worker: String::new(),
        oldest_ms: age_secs * 1_000,
    };
    let expected = [age(70, 10), age(130, 70), age(190, 130)];
    assert_eq!(store.waiting_ages(at(0), 1, 100).await.unwrap(), expected);
    assert_eq!(store.waiting_ages(at(120), 1, 1).await.unwrap(), expected[1..2]);
    let longest = store.waiting_ages(at(0), 1_000_000, 100).await.unwrap();
    assert_eq!(longest.len(), 1);
    assert_eq!(longest[0].oldest_ms, 130_000);
    assert!(store.sample_waiting(at(250), at(180)).await.unwrap());
    let kept = [age(190, 130), age(250, 190)];
    assert_eq!(store.waiting_ages(at(0), 1, 100).await.unwrap(), kept);
}
