//! Classifies the errors of DingTalk, in one table with the source of each code.
//!
//! Sources: *docs* is DingTalk's own documentation, *reports* are answers that several users of the
//! API have published. A code that is not in the table is classified by the HTTP status, or is
//! permanent when the status is 200.

use std::time::Duration;

use monoco_core::delivery::{DeliveryOutcome, ThrottleScope};
use monoco_core::retry::Failure;

use super::wire::ApiAnswer;
use crate::egress::EgressResponse;

/// Longest text of the provider that a failure repeats, in characters.
const MAX_MESSAGE_CHARS: usize = 200;

/// How long deliveries wait after the app's credentials were rejected.
pub(super) const CREDENTIALS_PAUSE: Duration = Duration::from_secs(300);

/// Whether a request may have been executed when no answer, or only a timeout, came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// The request sends a message. It must not be repeated blindly.
    Send,
    /// The request can be repeated: a token, a download, an upload.
    Repeatable,
}

/// Why a call was not successful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiFault {
    Failed(Failure),
    /// The token is not valid any more; a new one may help.
    Token(Failure),
    /// The content was rejected because of its format. Nothing was sent.
    Format(Failure),
    /// A rate limit. Nothing was sent.
    Throttled {
        detail: String,
        error_code: Option<String>,
        retry_after: Option<Duration>,
        scope: ThrottleScope,
    },
}

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CodeMeaning {
    Temporary,
    Permanent,
    /// The platform gave up after 3 s; the request may have been executed.
    Unknown,
    Token,
    Format,
    /// The whole app sends too fast.
    TunnelLimit {
        pause_s: u64,
    },
    /// This robot or chat is sent to too fast.
    TargetLimit {
        pause_s: u64,
    },
}

/// A line of the table: the code, what it means, what to do, and who says so.
struct CodeRule {
    code: &'static str,
    meaning: CodeMeaning,
    advice: &'static str,
    #[cfg_attr(not(test), expect(dead_code, reason = "documents the table; read by its test"))]
    source: &'static str,
}

const fn rule(
    code: &'static str,
    meaning: CodeMeaning,
    advice: &'static str,
    source: &'static str,
) -> CodeRule {
    CodeRule { code, meaning, advice, source }
}

const DOCS: &str = "docs";
const REPORTS: &str = "reports";

const SLOW_DOWN: CodeMeaning = CodeMeaning::TunnelLimit { pause_s: 1 };
const QUOTA: &str = "the organisation has used up its calls of this month";
const NO_ROBOT: &str = "check robot_token and whether the robot is still in its group";

/// Codes of the newer API (texts), of the older API and of webhooks (numbers).
const CODES: &[CodeRule] = &[
    // HTTP 403, but no lack of permission: at most 20 calls of an API per second and app.
    rule("Forbidden.AccessDenied.QpsLimitForAppkeyAndApi", SLOW_DOWN, "", DOCS),
    rule("Forbidden.AccessDenied.QpsLimitForApi", SLOW_DOWN, "", DOCS),
    rule("Forbidden.AccessDenied.ApiCountLimitForOrg", CodeMeaning::Permanent, QUOTA, DOCS),
    rule("90018", SLOW_DOWN, "", DOCS),
    rule("90002", SLOW_DOWN, "", DOCS),
    rule("90020", CodeMeaning::Permanent, QUOTA, DOCS),
    rule("15", CodeMeaning::Unknown, "", DOCS),
    rule("-1", CodeMeaning::Temporary, "", REPORTS),
    rule("InvalidAuthentication", CodeMeaning::Token, "", REPORTS),
    rule("40014", CodeMeaning::Token, "", REPORTS),
    rule("42001", CodeMeaning::Token, "", REPORTS),
    rule("invalidParameter.msgParam", CodeMeaning::Format, "", REPORTS),
    rule("invalidParameter.msgKey", CodeMeaning::Format, "", REPORTS),
    rule("invalidParameter.msgParam.invalid", CodeMeaning::Format, "", REPORTS),
    rule("invalidParameter.msgKey.invalid", CodeMeaning::Format, "", REPORTS),
    rule("invalidParameter.msg.unsupport", CodeMeaning::Format, "", REPORTS),
    rule("40035", CodeMeaning::Format, "", REPORTS),
    rule("400105", CodeMeaning::Format, "", REPORTS),
    rule(
        "invalidParameter.robotCode.auth",
        CodeMeaning::Permanent,
        "robot_code does not belong to app_key; copy it from the robot's page in the console",
        REPORTS,
    ),
    rule(
        "invalid.openConversationId",
        CodeMeaning::Permanent,
        "the group does not exist, or the robot is not in it",
        REPORTS,
    ),
    rule(
        "resource.unavailable",
        CodeMeaning::Permanent,
        "the robot is disabled, or is not in the group",
        REPORTS,
    ),
    rule(
        "Forbidden.AccessDenied.AccessTokenPermissionDenied",
        CodeMeaning::Permanent,
        "the app lacks a permission; add qyapi_robot_sendmsg in the console and publish the app",
        REPORTS,
    ),
    // 20 messages per minute, then nothing for about ten minutes.
    rule("130101", CodeMeaning::TargetLimit { pause_s: 600 }, "", REPORTS),
    rule("410100", CodeMeaning::TargetLimit { pause_s: 600 }, "", REPORTS),
    rule(
        "310000",
        CodeMeaning::Permanent,
        "the robot's security settings rejected it: a keyword is missing, robot_secret is wrong, \
         the address of this machine is not allowed, or its clock is wrong",
        REPORTS,
    ),
    rule("300001", CodeMeaning::Permanent, NO_ROBOT, REPORTS),
    rule("300005", CodeMeaning::Permanent, NO_ROBOT, REPORTS),
    rule("400101", CodeMeaning::Permanent, NO_ROBOT, REPORTS),
    rule("400102", CodeMeaning::Permanent, "the robot is disabled", REPORTS),
    rule("400106", CodeMeaning::Permanent, NO_ROBOT, REPORTS),
    rule("400013", CodeMeaning::Permanent, "the group was disbanded", REPORTS),
    rule("430101", CodeMeaning::Permanent, "DingTalk rejects a link in it", REPORTS),
    rule("430102", CodeMeaning::Permanent, "DingTalk rejects its text", REPORTS),
    rule("430103", CodeMeaning::Permanent, "DingTalk rejects an image in it", REPORTS),
    rule("430104", CodeMeaning::Permanent, "DingTalk rejects its content", REPORTS),
    rule("460101", CodeMeaning::Permanent, "it is too long", REPORTS),
];

/// The error code of a machine whose address is banned for some minutes (docs).
const BAN_STATUS: i64 = 1111;

/// The code that only its subcode explains. Without one it is a timeout (docs).
const NESTED_CODE: i64 = 88;

/// Reads a response. `peer` names the API without a secret.
pub(super) fn read_answer(
    response: &EgressResponse,
    peer: &str,
    call: CallKind,
) -> Result<ApiAnswer, ApiFault> {
    let answer = ApiAnswer::parse(&response.body);
    let status = response.status;
    if answer.status == Some(BAN_STATUS) {
        return Err(ApiFault::Throttled {
            detail: format!("{peer} has banned the address of this machine: too many calls"),
            error_code: Some(BAN_STATUS.to_string()),
            retry_after: Some(Duration::from_secs(60 * answer.wait.unwrap_or(5).clamp(1, 60))),
            scope: ThrottleScope::Tunnel,
        });
    }
    let is_success = match call {
        CallKind::Send => answer.is_about_a_message(),
        CallKind::Repeatable => answer.errcode.is_none_or(|code| code == 0),
    };
    if status.is_success() && is_success {
        return Ok(answer);
    }
    let code = error_code(&answer);
    let shown = code.clone().unwrap_or_else(|| status.as_str().to_owned());
    if status.is_success() && code.is_none() {
        // Only for messages: a proxy has answered, or a part of the answer is missing.
        let detail = format!("{peer} answered {shown} with an unreadable answer");
        return Err(ApiFault::Failed(Failure::Unknown { detail, error_code: None }));
    }
    let detail = detail(&answer, peer, &shown);
    let meaning = match code.as_deref().and_then(find_rule) {
        Some(rule) => {
            let advice =
                if rule.advice.is_empty() { String::new() } else { format!("; {}", rule.advice) };
            return Err(fault(rule.meaning, format!("{detail}{advice}"), shown, response, call));
        }
        None => unlisted_meaning(&answer, status.as_u16()),
    };
    Err(fault(meaning, detail, shown, response, call))
}

/// Returns the code that explains an answer: the subcode, the code or the number.
fn error_code(answer: &ApiAnswer) -> Option<String> {
    let errcode = answer.errcode.filter(|code| *code != 0);
    if errcode == Some(NESTED_CODE) && !answer.sub_code.is_empty() {
        return Some(answer.sub_code.clone());
    }
    if !answer.code.is_empty() {
        return Some(answer.code.clone());
    }
    errcode.map(|code| code.to_string())
}

fn find_rule(code: &str) -> Option<&'static CodeRule> {
    CODES.iter().find(|rule| rule.code.eq_ignore_ascii_case(code))
}

/// Classifies a code that is not in the table.
fn unlisted_meaning(answer: &ApiAnswer, status: u16) -> CodeMeaning {
    match (answer.errcode, status) {
        (Some(NESTED_CODE), _) if answer.sub_code.is_empty() => CodeMeaning::Unknown,
        // Reports: an unknown subcode is most often about the token.
        (Some(NESTED_CODE), _) => CodeMeaning::Token,
        (Some(code), 200..=299) if code != 0 => CodeMeaning::Permanent,
        // An answer that names an unknown code and no failure.
        (_, 200..=299) => CodeMeaning::Unknown,
        (_, 401) => CodeMeaning::Token,
        (_, 429) => SLOW_DOWN,
        // Docs: the platform answers within 3 s, or with 504.
        (_, 408 | 504) => CodeMeaning::Unknown,
        (_, 500..=599) => CodeMeaning::Temporary,
        _ => CodeMeaning::Permanent,
    }
}

fn fault(
    meaning: CodeMeaning,
    detail: String,
    code: String,
    response: &EgressResponse,
    call: CallKind,
) -> ApiFault {
    let error_code = Some(code);
    let temporary = |detail: String, error_code: Option<String>| Failure::Temporary {
        detail,
        retry_after_ms: response.retry_after().and_then(|it| u64::try_from(it.as_millis()).ok()),
        error_code,
    };
    let throttled = |detail: String, error_code, pause_s: u64, scope| ApiFault::Throttled {
        detail,
        error_code,
        retry_after: Some(response.retry_after().unwrap_or(Duration::from_secs(pause_s))),
        scope,
    };
    match meaning {
        CodeMeaning::Temporary => ApiFault::Failed(temporary(detail, error_code)),
        CodeMeaning::Unknown if call == CallKind::Repeatable => {
            ApiFault::Failed(temporary(detail, error_code))
        }
        CodeMeaning::Unknown => ApiFault::Failed(Failure::Unknown { detail, error_code }),
        CodeMeaning::Permanent => ApiFault::Failed(Failure::Permanent { detail, error_code }),
        CodeMeaning::Format => ApiFault::Format(Failure::Permanent { detail, error_code }),
        CodeMeaning::Token => ApiFault::Token(Failure::Temporary {
            detail: format!("{detail}; check app_key and app_secret"),
            retry_after_ms: u64::try_from(CREDENTIALS_PAUSE.as_millis()).ok(),
            error_code,
        }),
        CodeMeaning::TunnelLimit { pause_s } => {
            throttled(detail, error_code, pause_s, ThrottleScope::Tunnel)
        }
        CodeMeaning::TargetLimit { pause_s } => {
            throttled(detail, error_code, pause_s, ThrottleScope::Target)
        }
    }
}

/// Reads who was not sent to although the answer is 200. `None`: the user got the message.
pub(super) fn undelivered(answer: &ApiAnswer, user: &str) -> Option<ApiFault> {
    let has = |list: &Option<Vec<String>>| {
        list.as_ref().is_some_and(|list| list.iter().any(|entry| entry == user))
    };
    let permanent = |why: &str, code: &str| {
        let detail = format!("DingTalk did not deliver the message: {why}");
        let error_code = Some(code.to_owned());
        Some(ApiFault::Failed(Failure::Permanent { detail, error_code }))
    };
    if has(&answer.flow_controlled_staff_id_list) {
        return Some(ApiFault::Throttled {
            detail: "DingTalk did not deliver the message: it limits messages to this user"
                .to_owned(),
            error_code: Some("flowControlledStaffIdList".to_owned()),
            retry_after: None,
            scope: ThrottleScope::Target,
        });
    }
    if has(&answer.invalid_staff_id_list) {
        return permanent("there is no such user in the organisation", "invalidStaffIdList");
    }
    if has(&answer.filtered_staff_id_list) {
        return permanent("its filter removed the user", "filteredStaffIdList");
    }
    None
}

impl ApiFault {
    pub(super) fn into_outcome(self) -> DeliveryOutcome {
        match self {
            Self::Failed(failure) | Self::Token(failure) | Self::Format(failure) => {
                DeliveryOutcome::Failed(failure)
            }
            Self::Throttled { detail, error_code, retry_after, scope } => {
                DeliveryOutcome::Throttled { detail, error_code, retry_after, scope }
            }
        }
    }

    /// Returns the failure of a call that is not a delivery.
    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Failed(failure) | Self::Token(failure) | Self::Format(failure) => failure,
            Self::Throttled { detail, error_code, retry_after, .. } => Failure::Temporary {
                detail,
                retry_after_ms: retry_after.and_then(|it| u64::try_from(it.as_millis()).ok()),
                error_code,
            },
        }
    }

    /// Whether the provider has certainly not sent anything and another way may work.
    pub(super) fn is_rejection(&self) -> bool {
        match self {
            Self::Failed(failure) => matches!(failure, Failure::Permanent { .. }),
            Self::Token(_) => true,
            Self::Format(_) | Self::Throttled { .. } => false,
        }
    }
}

/// Makes a failure of the HTTP client one of a call that can be repeated.
pub(super) fn repeatable(failure: Failure) -> Failure {
    match failure {
        Failure::Unknown { detail, error_code } => {
            Failure::Temporary { detail, retry_after_ms: None, error_code }
        }
        other => other,
    }
}

/// Returns what the provider said, in one line.
fn detail(answer: &ApiAnswer, peer: &str, code: &str) -> String {
    let said = if answer.message.is_empty() { &answer.errmsg } else { &answer.message };
    let words: Vec<_> = said
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        // Answers can repeat the URL, whose query is a secret.
        .map(
            |word| if word.contains("://") || word.contains("token=") { "[removed]" } else { word },
        )
        .collect();
    let said: String = words.join(" ").chars().take(MAX_MESSAGE_CHARS).collect();
    let colon = if said.is_empty() { "" } else { ": " };
    format!("{peer} answered {code}{colon}{said}")
}

#[cfg(test)]
mod tests {
    use http::header::RETRY_AFTER;
    use http::{HeaderMap, StatusCode};

    use super::*;

    fn response(status: u16, body: &str) -> EgressResponse {
        EgressResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.as_bytes().to_vec(),
        }
    }

    fn read(status: u16, body: &str) -> Result<ApiAnswer, ApiFault> {
        read_answer(&response(status, body), "api.dingtalk.com", CallKind::Send)
    }

    fn name(result: &Result<ApiAnswer, ApiFault>) -> &'static str {
        match result {
            Ok(_) => "ok",
            Err(ApiFault::Failed(Failure::Temporary { .. })) => "temporary",
            Err(ApiFault::Failed(Failure::Permanent { .. })) => "permanent",
            Err(ApiFault::Failed(Failure::Unknown { .. })) => "unknown",
            Err(ApiFault::Token(Failure::Temporary { .. })) => "token",
            Err(ApiFault::Token(_)) => "wrong",
            Err(ApiFault::Format(_)) => "format",
            Err(ApiFault::Throttled { scope: ThrottleScope::Tunnel, .. }) => "tunnel limit",
            Err(ApiFault::Throttled { scope: ThrottleScope::Target, .. }) => "target limit",
        }
    }

    #[test]
    fn every_documented_error_is_classified() {
        let qps = "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi";
        let coded = |code: &str| format!(r#"{{"code":"{code}","message":"m","requestid":"r"}}"#);
        let numbered = |code: i64| format!(r#"{{"errcode":{code},"errmsg":"m"}}"#);
        for (status, body, want) in [
            (200, r#"{"processQueryKey":"k"}"#.to_owned(), "ok"),
            (200, numbered(0), "ok"),
            (200, String::new(), "unknown"),
            (401, coded("InvalidAuthentication"), "token"),
            (401, "{}".to_owned(), "token"),
            (400, coded("InvalidAuthentication"), "token"),
            (200, numbered(40014), "token"),
            (200, numbered(42001), "token"),
            (200, r#"{"errcode":88,"errmsg":"m","sub_code":"40014"}"#.to_owned(), "token"),
            (200, r#"{"errcode":88,"errmsg":"m","sub_code":"x"}"#.to_owned(), "token"),
            (200, r#"{"errcode":88,"errmsg":"m","sub_code":90018}"#.to_owned(), "tunnel limit"),
            (200, numbered(88), "unknown"),
            (200, numbered(15), "unknown"),
            (504, String::new(), "unknown"),
            (403, coded(qps), "tunnel limit"),
            (403, coded("Forbidden.AccessDenied.QpsLimitForApi"), "tunnel limit"),
            (429, String::new(), "tunnel limit"),
            (200, numbered(90018), "tunnel limit"),
            (200, numbered(90002), "tunnel limit"),
            (403, coded("Forbidden.AccessDenied.ApiCountLimitForOrg"), "permanent"),
            (200, numbered(90020), "permanent"),
            (200, r#"{"status":1111,"wait":5,"punish":"deny"}"#.to_owned(), "tunnel limit"),
            (403, r#"{"status":1111,"wait":5,"punish":"deny"}"#.to_owned(), "tunnel limit"),
            (200, numbered(-1), "temporary"),
            (500, coded("InternalError"), "temporary"),
            (503, String::new(), "temporary"),
            (200, numbered(130_101), "target limit"),
            (200, numbered(310_000), "permanent"),
            (403, coded("Forbidden.AccessDenied.AccessTokenPermissionDenied"), "permanent"),
            (400, coded("invalidParameter.robotCode.auth"), "permanent"),
            (400, coded("invalid.openConversationId"), "permanent"),
            (404, coded("InvalidAction.NotFound"), "permanent"),
            (200, numbered(400_013), "permanent"),
            (200, numbered(987_654), "permanent"),
            (302, String::new(), "permanent"),
            (400, coded("invalidParameter.msgParam.invalid"), "format"),
            (200, numbered(40035), "format"),
        ] {
            let result = read(status, &body);
            assert_eq!(name(&result), want, "{status} {body}: {result:?}");
        }
    }

    #[test]
    fn codes_are_listed_once_with_their_source() {
        let mut codes: Vec<_> = CODES.iter().map(|rule| rule.code.to_lowercase()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), CODES.len());
        assert!(CODES.iter().all(|rule| [DOCS, REPORTS].contains(&rule.source)));
    }

    #[test]
    fn delays_are_those_that_the_provider_asks_for() {
        let pause = |result: Result<ApiAnswer, ApiFault>| match result {
            Err(ApiFault::Throttled { retry_after, .. }) => retry_after.map(|it| it.as_secs()),
            other => panic!("{other:?}"),
        };
        assert_eq!(pause(read(200, r#"{"status":1111,"wait":5}"#)), Some(300));
        assert_eq!(pause(read(200, r#"{"errcode":90018}"#)), Some(1));
        assert_eq!(pause(read(200, r#"{"errcode":130101}"#)), Some(600));
        let mut slow = response(429, "");
        assert_eq!(pause(read_answer(&slow, "x", CallKind::Send)), Some(1));
        slow.headers.insert(RETRY_AFTER, "7".parse().unwrap());
        assert_eq!(pause(read_answer(&slow, "x", CallKind::Send)), Some(7));
    }

    #[test]
    fn message_counts_as_sent_only_when_the_answer_confirms_it() {
        for (body, want) in [
            (r#"{"errcode":0,"errmsg":"ok"}"#, "ok"),
            (r#"{"processQueryKey":"k"}"#, "ok"),
            (r#"{"invalidStaffIdList":["u1"]}"#, "ok"),
            ("<html><body>Sign in</body></html>", "unknown"),
            ("", "unknown"),
            ("{}", "unknown"),
            (r#"{"processQueryKey":""}"#, "unknown"),
            (r#"{"processQueryKey":"k""#, "unknown"),
            (r#"{"errcode":0,"errm"#, "unknown"),
            (r#"{"errcode":"0"}"#, "unknown"),
            (r#"{"errcode":"310000"}"#, "unknown"),
            (r#"{"code":"x","processQueryKey":"k"}"#, "unknown"),
            (r#"{"code":"InvalidAuthentication"}"#, "token"),
        ] {
            let result = read(200, body);
            assert_eq!(name(&result), want, "{body}: {result:?}");
        }
        let upload = response(200, r#"{"media_id":"m"}"#);
        assert_eq!(name(&read_answer(&upload, "x", CallKind::Repeatable)), "ok");
        let Err(ApiFault::Failed(failure)) = read(200, "<html/>") else { panic!() };
        assert_eq!(failure.detail(), "api.dingtalk.com answered 200 with an unreadable answer");
    }

    #[test]
    fn a_call_that_can_be_repeated_never_has_an_unknown_outcome() {
        let result = read_answer(&response(504, ""), "x", CallKind::Repeatable);
        assert_eq!(name(&result), "temporary");
        let lost = Failure::Unknown { detail: "lost".to_owned(), error_code: None };
        assert!(matches!(repeatable(lost), Failure::Temporary { .. }));
    }

    #[test]
    fn users_that_got_nothing_are_found_in_a_successful_answer() {
        let read = |body: &str| undelivered(&ApiAnswer::parse(body.as_bytes()), "u1").map(Err);
        let others = r#"{"invalidStaffIdList":["u2"],"flowControlledStaffIdList":[]}"#;
        assert!(read(others).is_none());
        let name = |body: &str| name(&read(body).unwrap());
        assert_eq!(name(r#"{"flowControlledStaffIdList":["u1"]}"#), "target limit");
        assert_eq!(name(r#"{"invalidStaffIdList":["u1"]}"#), "permanent");
        assert_eq!(name(r#"{"filteredStaffIdList":["u1"]}"#), "permanent");
    }

    #[test]
    fn details_are_short_and_hold_no_url() {
        let body = r#"{"errcode":987,"errmsg":"bad\nhttps://x/robot?access_token=canary token=canary end"}"#;
        let Err(ApiFault::Failed(failure)) = read(200, body) else { panic!() };
        let said = "api.dingtalk.com answered 987: bad [removed] [removed] end";
        assert_eq!((failure.detail(), failure.error_code()), (said, Some("987")));
        let long = format!(r#"{{"code":"x","message":"{}"}}"#, "é".repeat(1000));
        let Err(ApiFault::Failed(failure)) = read(400, &long) else { panic!() };
        assert_eq!(failure.detail().matches('é').count(), MAX_MESSAGE_CHARS);
    }
}
