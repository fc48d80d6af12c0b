//! Classifies the errors of Lark, in one table with the source of each code.
//!
//! Sources: *docs* is the documentation of the Open Platform, *SDK* the source of lark-oapi,
//! *connector* that of Lark's own connectors, *reports* are answers that several users of the API
//! have published. A code that is not in the table is permanent, unless the HTTP status says that
//! Lark could not finish the request.
//!
//! Two codes are classified otherwise by one of the SDKs (99991400 as a rejected token, 230020 as
//! a message that is gone); the documentation and the connectors say that they are rate limits.

use std::time::Duration;

use http::HeaderMap;
use monoco_core::delivery::{DeliveryOutcome, ThrottleScope};
use monoco_core::retry::Failure;
use serde_json::Value;

use super::wire::text;
use crate::egress::EgressResponse;

/// Longest text of the provider that a failure repeats, in characters.
const MAX_MESSAGE_CHARS: usize = 200;

/// How long deliveries wait after the app's credentials were rejected.
pub(super) const CREDENTIALS_PAUSE: Duration = Duration::from_secs(300);

/// The header with the seconds until a rate limit ends.
const LIMIT_RESET: &str = "x-ogw-ratelimit-reset";

/// Whether a request may have been executed when no answer came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LarkCallKind {
    /// The request sends a message.
    Send,
    /// The request can be repeated: a token, a list, an upload, a reaction.
    Repeatable,
}

/// Why a call was not successful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LarkFault {
    Failed(Failure),
    /// The token is not valid any more; a new one may help. Nothing was executed.
    Token(Failure),
    /// The content was rejected because of its format. Nothing was sent.
    Format(Failure),
    /// The message that is answered or reacted to does not exist any more.
    Gone(Failure),
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
pub(super) enum LarkMeaning {
    /// Nothing was executed, and another attempt may succeed.
    Temporary,
    Permanent,
    /// Lark could not finish the request; it may have been executed.
    Unknown,
    Token,
    Format,
    Gone,
    /// The app sends too fast.
    TunnelLimit,
    /// This chat, user or robot is sent to too fast.
    TargetLimit,
}

/// Where the meaning of a code is stated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LarkSource {
    Docs,
    Sdk,
    Connector,
    Reports,
}

/// Returns what a code means, what to do about it, and who says so; `None` for other codes.
fn rule(code: i64) -> Option<(LarkMeaning, &'static str, LarkSource)> {
    use LarkMeaning::{
        Format, Gone, Permanent, TargetLimit, Temporary, Token, TunnelLimit, Unknown,
    };
    use LarkSource::{Connector, Docs, Reports, Sdk};
    const SCOPE: &str = "the app lacks a permission; add it in the console and publish a version";
    const SECRET: &str = "check app_id and app_secret";
    const NO_BOT: &str = "turn on the bot of the app in the console and publish a version";
    Some(match code {
        // Rate limits. HTTP 429, for older methods 400.
        99_991_400 => (TunnelLimit, "", Docs),
        99_991_402 | 11_020 | 11_021 => (TunnelLimit, "", Sdk),
        // One chat, user or custom robot.
        230_020 => (TargetLimit, "", Connector),
        11_232 | 11_233 => (TargetLimit, "", Docs),
        // The token has expired or was replaced.
        99_991_663 | 99_991_664 | 99_991_665 | 99_991_668 => (Token, "", Sdk),
        99_991_661 | 99_991_671 | 99_991_677 => (Token, "", Docs),
        // Scopes and credentials.
        99_991_672 | 99_991_679 | 230_027 => (Permanent, SCOPE, Docs),
        10_003 | 10_014 | 10_015 => (Permanent, SECRET, Reports),
        // Lark is busy, or still works on a request with the same uuid.
        1 | 1_000_040_343 => (Temporary, "", Sdk),
        230_049 => (Temporary, "the first request with this uuid is not finished", Docs),
        // Lark could not finish the request.
        2200 | 55_000 | 1_500 => (Unknown, "", Docs),
        // The content.
        230_001 => (Format, "", Docs),
        230_099 => (Format, "Lark rejects the content of the card", Connector),
        230_025 | 230_021 => (Permanent, "the message is too long", Sdk),
        230_022 | 230_028 => (Permanent, "Lark rejects what the message says", Docs),
        230_054 | 230_055 => (Permanent, "Lark does not accept this type of message here", Docs),
        // The message that is answered.
        230_011 | 231_003 => (Gone, "the answered message was recalled or deleted", Docs),
        // The chat or the user.
        230_002 => (Permanent, "the bot is not in the chat; add it to the group", Docs),
        230_006 => (Permanent, NO_BOT, Docs),
        230_013 => (Permanent, "the user is not in the availability scope of the app", Docs),
        230_017 => (Permanent, "the bot is not the owner of the message or file", Docs),
        230_018 => (Permanent, "the owner of the group does not let the bot write", Docs),
        230_029 => (Permanent, "the user has left the organisation", Docs),
        230_034 => (Permanent, "there is no such chat or user", Docs),
        230_035 => (Permanent, "the chat does not let the bot write", Docs),
        230_038 => (Permanent, "the user belongs to another organisation", Docs),
        230_053 => (Permanent, "the user has stopped messages of the bot", Docs),
        232_009 | 232_010 => (Permanent, "the group was disbanded", Docs),
        // Files.
        234_001 | 234_010 => (Permanent, "Lark rejects the file", Docs),
        234_006 => (Permanent, "the file is too large: at most 30 MB, images 10 MB", Docs),
        234_007 => (Permanent, NO_BOT, Docs),
        234_037 => (Permanent, "Lark does not give out files of more than 100 MB", Docs),
        234_003 | 234_004 | 234_008 | 234_009 => {
            (Permanent, "the bot may not fetch this file", Docs)
        }
        // Reactions.
        231_001 => (Permanent, "Lark does not know this reaction", Docs),
        231_002 => (Permanent, "the bot may not react here", Docs),
        // Custom robots.
        9_499 => (Format, "", Docs),
        19_001 => (Permanent, "there is no such custom robot; check robot_url", Docs),
        19_021 => {
            (Permanent, "the signature does not match; check robot_secret and the clock", Docs)
        }
        19_022 => (Permanent, "the robot does not allow the address of this machine", Docs),
        19_024 => (Permanent, "the robot only accepts texts with one of its keywords", Docs),
        // The long connection.
        1_000_040_345 => (
            Permanent,
            "check app_id and app_secret, that the app is published, and that it subscribes to \
             events by long connection; if that is not offered, set `mode: webhook`",
            Connector,
        ),
        1_000_040_344 => (Permanent, SECRET, Sdk),
        1_000_040_350 => (
            Permanent,
            "the app has its 50 connections already; end another process that uses it",
            Sdk,
        ),
        _ => return None,
    })
}

/// The body of a successful answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LarkAnswer(Value);

impl LarkAnswer {
    /// Returns the object under `data`, or `null`.
    pub fn data(&self) -> &Value {
        &self.0["data"]
    }

    /// Returns the whole body, for methods that put their results beside `code`.
    pub fn body(&self) -> &Value {
        &self.0
    }
}

/// Reads a response. `peer` names the method without a secret.
pub(super) fn read_answer(
    response: &EgressResponse,
    peer: &str,
    call: LarkCallKind,
) -> Result<LarkAnswer, LarkFault> {
    let status = response.status;
    let body = serde_json::from_slice::<Value>(&response.body).ok();
    let code = body.as_ref().and_then(error_code);
    if let (true, Some(body), Some(0)) = (status.is_success(), &body, code) {
        return Ok(LarkAnswer(body.clone()));
    }
    let shown = match code {
        Some(code) if code != 0 => code.to_string(),
        _ => status.as_str().to_owned(),
    };
    let (meaning, advice) = match code.filter(|code| *code != 0).and_then(rule) {
        Some((meaning, advice, _)) => (meaning, advice),
        None => (unlisted_meaning(code, status.as_u16()), ""),
    };
    let detail = describe(peer, &shown, body.as_ref(), advice);
    Err(fault(meaning, detail, shown, response, call))
}

/// Returns the code of an answer. Custom robots also write `StatusCode`.
fn error_code(body: &Value) -> Option<i64> {
    let code = |key: &str| body.get(key).and_then(Value::as_i64);
    code("code").or_else(|| code("StatusCode"))
}

/// Classifies an answer whose code is not in the table, or that has none.
fn unlisted_meaning(code: Option<i64>, status: u16) -> LarkMeaning {
    match (code, status) {
        (_, 429) => LarkMeaning::TunnelLimit,
        (_, 401) => LarkMeaning::Token,
        (_, 408 | 500..=599) => LarkMeaning::Unknown,
        // A proxy has answered, or a part of the answer is missing.
        (None | Some(0), 200..=299) => LarkMeaning::Unknown,
        _ => LarkMeaning::Permanent,
    }
}

fn describe(peer: &str, code: &str, body: Option<&Value>, advice: &str) -> String {
    let mut detail = format!("{peer}: Lark answered {code}");
    let words = body.and_then(|body| text(body, "msg").or(text(body, "StatusMessage")));
    if let Some(words) = words {
        let words = words.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS);
        detail.push_str(" (");
        detail.extend(words);
        detail.push(')');
    }
    if !advice.is_empty() {
        detail.push_str("; ");
        detail.push_str(advice);
    }
    let log_id = body.and_then(|body| text(&body["error"], "log_id"));
    if let Some(log_id) = log_id {
        let is_plain = |c: &char| c.is_ascii_alphanumeric();
        detail.push_str("; log id ");
        detail.extend(log_id.chars().filter(is_plain).take(80));
    }
    detail
}

fn fault(
    meaning: LarkMeaning,
    detail: String,
    code: String,
    response: &EgressResponse,
    call: LarkCallKind,
) -> LarkFault {
    let error_code = Some(code);
    let retry_after = limit_reset(&response.headers).or_else(|| response.retry_after());
    let throttled = |scope| LarkFault::Throttled {
        detail: detail.clone(),
        error_code: error_code.clone(),
        retry_after,
        scope,
    };
    let temporary = || Failure::Temporary {
        detail: detail.clone(),
        retry_after_ms: retry_after.and_then(|it| u64::try_from(it.as_millis()).ok()),
        error_code: error_code.clone(),
    };
    match meaning {
        LarkMeaning::TunnelLimit => throttled(ThrottleScope::Tunnel),
        LarkMeaning::TargetLimit => throttled(ThrottleScope::Target),
        LarkMeaning::Temporary => LarkFault::Failed(temporary()),
        LarkMeaning::Unknown if call == LarkCallKind::Repeatable => LarkFault::Failed(temporary()),
        LarkMeaning::Unknown => LarkFault::Failed(Failure::Unknown { detail, error_code }),
        LarkMeaning::Permanent => LarkFault::Failed(Failure::Permanent { detail, error_code }),
        LarkMeaning::Format => LarkFault::Format(Failure::Permanent { detail, error_code }),
        LarkMeaning::Gone => LarkFault::Gone(Failure::Permanent { detail, error_code }),
        LarkMeaning::Token => LarkFault::Token(Failure::Temporary {
            detail: format!("{detail}; check app_id and app_secret"),
            retry_after_ms: u64::try_from(CREDENTIALS_PAUSE.as_millis()).ok(),
            error_code,
        }),
    }
}

/// Returns the delay that a rate limit asks for.
fn limit_reset(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(LIMIT_RESET)?.to_str().ok()?.trim().parse::<u32>().ok()?;
    Some(Duration::from_secs(u64::from(seconds)))
}

impl LarkFault {
    pub fn into_outcome(self) -> DeliveryOutcome {
        match self {
            Self::Throttled { detail, error_code, retry_after, scope } => {
                DeliveryOutcome::Throttled { detail, error_code, retry_after, scope }
            }
            other => DeliveryOutcome::Failed(other.into_failure()),
        }
    }

    /// Returns the failure of a call that is not a delivery.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Failed(failure)
            | Self::Token(failure)
            | Self::Format(failure)
            | Self::Gone(failure) => failure,
            Self::Throttled { detail, error_code, retry_after, .. } => Failure::Temporary {
                detail,
                retry_after_ms: retry_after.and_then(|it| u64::try_from(it.as_millis()).ok()),
                error_code,
            },
        }
    }

    /// Tells whether Lark has answered with an error that another attempt would get again.
    pub fn is_rejection(&self) -> bool {
        match self {
            Self::Failed(failure) => matches!(failure, Failure::Permanent { .. }),
            Self::Format(_) | Self::Gone(_) => true,
            Self::Token(_) | Self::Throttled { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests;
