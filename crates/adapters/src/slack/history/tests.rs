//! Tests of where a catch-up starts, and of what it leaves out.

use super::*;

const NOW: i64 = 1_700_000_000;

fn position(chat: &str, seconds: i64) -> ChatPosition {
    let session = ChatSession { id: chat.to_owned(), ..ChatSession::default() };
    ChatPosition { session, message_id: format!("{chat}:{seconds}.000100"), at: None }
}

fn plan(positions: &[ChatPosition], unfinished: Option<&str>, since: Option<i64>) -> CatchUpPlan {
    let at = |seconds: i64| Timestamp::from_ms(seconds * 1000);
    let gap = ConnectionGap { since: since.map(at), until: at(NOW) };
    CatchUpPlan::new(positions, unfinished.map(str::to_owned), gap, Duration::from_secs(3600))
}

#[test]
fn catch_up_starts_before_the_newest_stored_message() {
    let positions = [position("C1", NOW - 1000), position("C2", NOW - 600)];
    let plan = plan(&positions, None, None);
    assert_eq!(plan.since, "1699999100.000000", "5 min before the newest message");
    assert_eq!(plan.oldest, "1699996400.000000");
    assert_eq!(plan.chat_start(Some("1699999000.000100")), "1699999000.000100", "its last message");
    assert_eq!(plan.chat_start(Some("1699999900.000100")), plan.since, "newer than the start");
    assert_eq!(plan.chat_start(None), plan.since);
    assert_eq!(plan.chat_start(Some("1600000000.000100")), plan.oldest);
}

#[test]
fn unfinished_catch_up_and_long_gap_start_earlier() {
    let positions = [position("C1", NOW)];
    assert_eq!(plan(&positions, Some("1699998000.000000"), None).since, "1699998000.000000");
    assert_eq!(plan(&positions, None, Some(NOW - 900)).since, "1699998800.000000");
    assert_eq!(
        plan(&[], None, Some(NOW - 900)).since,
        "1699998800.000000",
        "nothing is stored yet"
    );
    let old = plan(&positions, Some("1600000000.000000"), None);
    assert_eq!(old.since, old.oldest, "at most the configured time");
}

#[test]
fn only_known_errors_are_about_one_chat() {
    let error = |code: &str, kind| SlackApiError {
        failure: Failure::Permanent { detail: code.to_owned(), error_code: Some(code.to_owned()) },
        kind,
    };
    for code in CHAT_ERRORS {
        assert!(is_about_the_chat(&error(code, ApiErrorKind::Rejected)), "{code}");
        assert!(!is_about_the_chat(&error(code, ApiErrorKind::Transport)), "{code}");
    }
    for code in ["invalid_auth", "account_inactive", "team_access_not_granted", "new_code", ""] {
        assert!(!is_about_the_chat(&error(code, ApiErrorKind::Rejected)), "{code}");
    }
}

#[test]
fn everything_that_is_left_out_has_its_own_notice() {
    let session = ChatSession { id: "C1".to_owned(), ..ChatSession::default() };
    let chat = ChatToRead { session, since: "1699999100.000000".to_owned() };
    let notice = |rest| rest_notice(&chat, rest);
    let rests = [UnreadRest::Messages, UnreadRest::Threads(7), UnreadRest::Replies("1.000001")];
    let ids: BTreeSet<_> = rests.into_iter().map(|rest| notice(rest).id).collect();
    assert_eq!(ids.len(), rests.len());
    assert!(ids.contains("gap:C1:1699999100.000000"), "{ids:?}");
    for rest in rests {
        assert_eq!((notice(rest).kind.as_str(), notice(rest)), ("gap", notice(rest)));
        assert!(notice(rest).detail.contains("not read"), "{rest:?}");
    }
    assert!(notice(UnreadRest::Threads(7)).detail.contains("in 7 older threads"));
}

#[test]
fn timestamps_are_compared_by_their_digits() {
    for (small, large) in [
        ("1.000001", "1.000002"),
        ("9.000000", "10.000000"),
        ("1699999999.999999", "1700000000.000000"),
        ("1.1", "1.100001"),
    ] {
        assert!(compare_ts(small, large).is_lt(), "{small} {large}");
        assert!(compare_ts(large, small).is_gt());
    }
    assert!(compare_ts("1.1", "1.100000").is_eq());
}
