//! Tests of what a catch-up leaves out.

use super::*;

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
    let chat = MissedChat { session, since: Timestamp::from_ms(1_699_999_100_000) };
    let notice = |rest| rest_notice(&chat, rest);
    let rests = [UnreadRest::Messages, UnreadRest::Threads(7), UnreadRest::Replies("1.000001")];
    let ids: BTreeSet<_> = rests.into_iter().map(|rest| notice(rest).id).collect();
    assert_eq!(ids.len(), rests.len());
    assert!(ids.contains("gap:messages:C1:1699999100000"), "{ids:?}");
    for rest in rests {
        assert_eq!((notice(rest).kind.as_str(), notice(rest)), ("gap", notice(rest)));
        assert!(notice(rest).detail.contains("not read"), "{rest:?}");
    }
    assert!(notice(UnreadRest::Threads(7)).detail.contains("in 7 older threads"));
}
