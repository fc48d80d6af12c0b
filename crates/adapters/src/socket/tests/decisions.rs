//! Tables of the decisions: health of a connection, delays, and acknowledgements.

use std::time::Duration;

use monoco_core::retry::{Failure, Jitter};
use monoco_core::time::Timestamp;

use super::support::notice;
use crate::InboundError;
use crate::socket::batch::{BatchOutcome, FrameBatch};
use crate::socket::health::{DeadReason, HealthAction, SocketHealth};
use crate::socket::plan::ReconnectPlan;
use crate::socket::{ConnectError, ConnectRetry, ConnectionGap, SocketMessage, SocketTiming};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// What happens to a connection at a second.
#[derive(Clone, Copy, Debug)]
enum At {
    /// A frame of the server's own.
    Traffic(u64),
    /// An answer to a ping.
    Answer(u64),
    Ready,
    Check(u64, HealthAction),
}

#[test]
fn connection_is_pinged_and_declared_dead_in_time() {
    use At::{Answer, Check, Ready, Traffic};
    use HealthAction::{Dead, Nothing, Ping, Replace};
    let no_answer = Dead(DeadReason::NoAnswer);
    let plain = SocketTiming::default();
    let hello = SocketTiming { ready: Some(secs(15)), ..plain };
    let busy = SocketTiming { traffic_deadline: Some(secs(60)), ..plain };
    for (name, timing, story) in [
        (
            "answered",
            plain,
            &[
                Check(10, Nothing),
                Check(20, Nothing),
                Check(30, Ping),
                Answer(31),
                Check(40, Nothing),
                Check(50, Nothing),
                Check(60, Ping),
            ][..],
        ),
        (
            "not answered",
            plain,
            &[
                Check(10, Nothing),
                Check(20, Nothing),
                Check(30, Ping),
                Check(40, Nothing),
                Check(49, Nothing),
                Check(50, no_answer),
            ],
        ),
        (
            "any frame is an answer",
            plain,
            &[
                Check(10, Nothing),
                Check(20, Nothing),
                Check(30, Ping),
                Traffic(45),
                Check(50, Nothing),
                Check(60, Ping),
            ],
        ),
        (
            "pings go on while frames arrive",
            plain,
            &[Traffic(9), Traffic(19), Traffic(29), Check(30, Ping)],
        ),
        ("accepted", hello, &[Check(10, Nothing), Ready, Check(15, Nothing)]),
        (
            "not accepted",
            hello,
            &[
                Check(10, Nothing),
                Traffic(12),
                Check(14, Nothing),
                Check(15, Dead(DeadReason::NotReady(secs(15)))),
            ],
        ),
        (
            "traffic",
            busy,
            &[
                Check(10, Nothing),
                Traffic(20),
                Check(30, Ping),
                Answer(31),
                Check(40, Nothing),
                Check(60, Ping),
                Answer(61),
                Check(79, Nothing),
            ],
        ),
        (
            "answers only",
            busy,
            &[
                Check(10, Nothing),
                Check(20, Nothing),
                Check(30, Ping),
                Answer(31),
                Check(45, Nothing),
                Check(59, Nothing),
                Check(60, Replace),
            ],
        ),
        // The machine was suspended for an hour. The ping gets a chance, but a short one.
        (
            "suspended and alive",
            plain,
            &[Check(10, Nothing), Check(3610, Ping), Answer(3611), Check(3620, Nothing)],
        ),
        (
            "suspended and dead",
            plain,
            &[Check(10, Nothing), Check(3610, Ping), Check(3614, Nothing), Check(3615, no_answer)],
        ),
        (
            "suspended while a ping waits",
            plain,
            &[
                Check(10, Nothing),
                Check(20, Nothing),
                Check(30, Ping),
                Check(3630, Ping),
                Check(3635, no_answer),
            ],
        ),
        (
            "suspended with frames in the buffer",
            plain,
            &[Check(10, Nothing), Traffic(3610), Check(3611, Ping), Check(3616, no_answer)],
        ),
    ] {
        let mut health = SocketHealth::new(timing, secs(10), secs(0));
        for event in story {
            match *event {
                Traffic(at) => health.record_frame(secs(at), true),
                Answer(at) => health.record_frame(secs(at), false),
                Ready => health.set_ready(),
                Check(at, want) => assert_eq!(health.check(secs(at)), want, "{name}: {event:?}"),
            }
        }
    }
}

#[test]
fn server_that_has_pinged_once_is_expected_to_send_more() {
    let timing = SocketTiming { deadline_after_ping: Some(secs(120)), ..SocketTiming::default() };
    // Answers every ping of the client, and pings itself at `pings`.
    let replaced_at = |pings: &[u64], expects: bool| {
        let mut health = SocketHealth::new(timing, secs(10), secs(0));
        (0..1000).step_by(10).find(|at| {
            if pings.contains(at) {
                health.record_frame(secs(*at), true);
                health.record_server_ping();
            }
            if !expects {
                health.expect_no_traffic();
            }
            let action = health.check(secs(*at));
            health.record_frame(secs(*at), false);
            action == HealthAction::Replace
        })
    };
    assert_eq!(replaced_at(&[], true), None, "a server without pings");
    assert_eq!(replaced_at(&[10], true), Some(130));
    assert_eq!(replaced_at(&[10, 60, 170], true), Some(290));
    assert_eq!(replaced_at(&[10], false), None, "being replaced already");
}

#[test]
fn next_check_is_never_later_than_a_deadline() {
    let timing = SocketTiming { traffic_deadline: Some(secs(33)), ..SocketTiming::default() };
    let mut health = SocketHealth::new(timing, secs(10), secs(0));
    for (now, want) in [(0, 10), (10, 20), (20, 30), (25, 30)] {
        assert_eq!(health.next_check(secs(now)), secs(want), "at {now}");
    }
    assert_eq!(health.check(secs(30)), HealthAction::Ping);
    assert_eq!(health.next_check(secs(30)), secs(33), "the deadline of traffic");
    health.expect_no_traffic();
    assert_eq!(health.next_check(secs(30)), secs(40));
    assert_eq!(health.next_check(secs(45)), secs(50), "the deadline of the ping");
}

#[test]
fn connection_with_progress_or_of_a_minute_is_good() {
    for (ready, progress, age, want) in [
        (true, true, 1, true),
        (true, false, 59, false),
        (true, false, 60, true),
        (false, true, 90, false),
    ] {
        let timing = SocketTiming { ready: Some(secs(15)), ..SocketTiming::default() };
        let mut health = SocketHealth::new(timing, secs(10), secs(0));
        if ready {
            health.set_ready();
        }
        if progress {
            health.record_progress();
        }
        assert_eq!(health.was_good(secs(age)), want, "{ready} {progress} {age}");
    }
}

#[test]
fn delays_grow_until_a_connection_was_good() {
    let timing = SocketTiming::default();
    let error = |retry, after: Option<u64>| {
        let failure = Failure::Permanent { detail: String::new(), error_code: None };
        ConnectError { failure, retry, after: after.map(secs) }
    };
    let mut plan = ReconnectPlan::default();
    let end = |plan: &mut ReconnectPlan, was_good| plan.after_end(was_good, &timing, Jitter::NONE);
    assert_eq!(end(&mut plan, true), secs(0), "a good connection is replaced at once");
    assert_eq!(end(&mut plan, false), secs(1));
    assert_eq!(end(&mut plan, false), secs(2));
    let fail = |plan: &mut ReconnectPlan, error: &ConnectError| {
        plan.after_error(error, &timing, Jitter::NONE)
    };
    assert_eq!(fail(&mut plan, &error(ConnectRetry::Backoff, None)), Some(secs(4)));
    assert_eq!(fail(&mut plan, &error(ConnectRetry::Backoff, Some(30))), Some(secs(30)));
    assert_eq!(fail(&mut plan, &error(ConnectRetry::Backoff, Some(1))), Some(secs(16)));
    assert_eq!(fail(&mut plan, &error(ConnectRetry::Backoff, Some(u64::MAX))), Some(secs(3600)));
    assert_eq!(fail(&mut plan, &error(ConnectRetry::Slow, None)), Some(secs(900)));
    assert_eq!(fail(&mut plan, &error(ConnectRetry::Never, Some(1))), None);
    assert_eq!(end(&mut plan, true), secs(0));
    assert_eq!(fail(&mut plan, &error(ConnectRetry::Slow, None)), Some(secs(60)));
    for n in 0..20 {
        let delay = plan.after_end(false, &timing, Jitter::from_random(n)).as_secs_f64();
        assert!((1.0..=30.0).contains(&delay), "{delay}");
    }
}

#[test]
fn failures_are_retried_by_their_kind() {
    let detail = String::new;
    for (failure, retry, after) in [
        (
            Failure::Temporary { detail: detail(), retry_after_ms: None, error_code: None },
            ConnectRetry::Backoff,
            None,
        ),
        (
            Failure::Temporary { detail: detail(), retry_after_ms: Some(7_000), error_code: None },
            ConnectRetry::Backoff,
            Some(secs(7)),
        ),
        (Failure::Unknown { detail: detail(), error_code: None }, ConnectRetry::Backoff, None),
        (Failure::Permanent { detail: detail(), error_code: None }, ConnectRetry::Slow, None),
    ] {
        let error = ConnectError::from(failure.clone());
        assert_eq!((error.retry, error.after), (retry, after), "{failure:?}");
    }
}

#[test]
fn only_stored_and_hopeless_frames_are_acknowledged() {
    let text = |id: &str| SocketMessage::Text(id.to_owned());
    let down = || Err(InboundError::Unavailable("away".to_owned()));
    let unusable = || Err(InboundError::Unusable("too long".to_owned()));
    let mut batch = FrameBatch::default();
    batch.push(1, vec![notice("a")], text("a"));
    batch.push(2, vec![notice("b1"), notice("b2")], text("b"));
    batch.push(1, vec![], text("c"));
    batch.push(2, vec![notice("d")], text("d"));
    batch.push(1, vec![notice("e")], text("e"));
    batch.push(1, vec![notice("f")], text("f"));
    assert_eq!(batch.take_events().len(), 6);
    let results = [Ok(false), Ok(true), down(), unusable(), Ok(true)];
    let outcome = batch.finish(&results);
    let want = BatchOutcome {
        acks: vec![(1, text("a")), (1, text("c")), (2, text("d")), (1, text("e"))],
        progress: vec![2, 1],
        unstored: 2,
        error: Some(InboundError::Unavailable("away".to_owned())),
        unusable: 1,
    };
    assert_eq!(outcome, want, "b is stored in part, and f has no result");
}

#[test]
fn unstored_frame_is_answered_when_the_provider_wants_that() {
    let text = |text: &str| SocketMessage::Text(text.to_owned());
    let mut batch = FrameBatch::default();
    batch.push(1, vec![notice("a")], text("ack a"));
    batch.set_nack(text("later a"));
    batch.push(2, vec![notice("b")], text("ack b"));
    batch.set_nack(text("later b"));
    let outcome = batch.finish(&[Err(InboundError::Full), Ok(true)]);
    assert_eq!(outcome.acks, [(1, text("later a")), (2, text("ack b"))]);
    assert_eq!(outcome.unstored, 1);
}

#[test]
fn merged_gap_contains_both() {
    let at = |ms| Timestamp::from_ms(ms);
    let gap = |since: Option<i64>, until| ConnectionGap { since: since.map(at), until: at(until) };
    for (a, b, want) in [
        (gap(Some(1), 2), gap(Some(5), 6), gap(Some(1), 6)),
        (gap(None, 2), gap(Some(5), 6), gap(None, 6)),
        (gap(Some(5), 6), gap(Some(1), 9), gap(Some(1), 9)),
    ] {
        assert_eq!(a.merge(b), want);
        assert_eq!(b.merge(a), want);
    }
}

#[test]
fn server_can_change_the_time_between_pings() {
    let mut health = SocketHealth::new(SocketTiming::default(), secs(10), secs(0));
    health.set_ping_interval(secs(90));
    for second in [10, 20, 30, 40, 50, 60, 70, 80] {
        assert_eq!(health.check(secs(second)), HealthAction::Nothing, "{second}");
    }
    assert_eq!(health.check(secs(90)), HealthAction::Ping);
}
