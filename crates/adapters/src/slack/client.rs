//! Calls the Web API: one attempt per call, with the answer classified.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use monoco_core::config::{Secret, SecretSource};
use monoco_core::retry::Failure;

use super::wire::{ApiReply, SlackErrorKind, error_advice, error_kind};
use crate::egress::{Egress, EgressRequest, EgressResponse, EgressTarget, HostRule};
use crate::secret_command::CachedSecret;

/// Hosts that URLs of Slack's answers may name: sockets, uploads and downloads.
const SLACK_HOSTS: [&str; 4] = ["slack.com", ".slack.com", ".slack-edge.com", "slack-files.com"];

/// Most bytes of an answer that are read. A page of a history has up to 200 messages.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// Time limit of one call. It is shorter than that of a delivery attempt.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Errors that say that a token is not valid any more.
const TOKEN_ERRORS: [&str; 4] = ["token_expired", "invalid_auth", "token_revoked", "not_authed"];

/// Which token a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlackToken {
    App,
    Bot,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlackApiError {
    pub failure: Failure,
    pub kind: ApiErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ApiErrorKind {
    /// Slack was not reached, or its answer is missing: the failure says what is known.
    Transport,
    /// Slack has answered with an error and is done with the request, which may have been executed
    /// in part.
    Ambiguous,
    /// A gateway has answered, or the answer is not one of Slack: the request may still be
    /// executed.
    NoVerdict,
    /// Slack has answered with an error, and has executed nothing.
    Rejected,
    Throttled {
        retry_after: Option<Duration>,
    },
    /// The formatted text was rejected.
    Format,
}

impl SlackApiError {
    pub fn code(&self) -> &str {
        self.failure.error_code().unwrap_or_default()
    }
}

/// The answer to a call.
pub(super) struct SlackAnswer {
    pub reply: ApiReply,
    /// The scopes of the token, when the answer names them.
    pub scopes: Option<String>,
}

/// The client of one workspace.
#[derive(Debug)]
pub(super) struct SlackClient {
    pub egress: Egress,
    pub hosts: HostRule,
    base: EgressTarget,
    app_token: CachedSecret,
    bot_token: CachedSecret,
}

impl SlackClient {
    pub fn new(
        egress: Egress,
        base: EgressTarget,
        app_token: Option<SecretSource>,
        bot_token: Option<SecretSource>,
    ) -> Self {
        let hosts = HostRule::new(&SLACK_HOSTS, &base);
        let app_token = CachedSecret::new("app_token", app_token);
        let bot_token = CachedSecret::new("bot_token", bot_token);
        Self { egress, hosts, base, app_token, bot_token }
    }

    /// Returns the bot token.
    pub async fn bot_token(&self) -> Result<Secret, Failure> {
        self.bot_token.get().await
    }

    /// Calls a method that changes nothing.
    pub async fn read(
        &self,
        method: &str,
        fields: &[(&str, &str)],
    ) -> Result<ApiReply, SlackApiError> {
        let answer = self.call(SlackToken::Bot, method, ApiArguments::Read(fields)).await?;
        Ok(answer.reply)
    }

    /// Calls a method with a JSON body once.
    pub async fn write_json(
        &self,
        method: &str,
        body: &serde_json::Value,
    ) -> Result<ApiReply, SlackApiError> {
        Ok(self.call(SlackToken::Bot, method, ApiArguments::Json(body)).await?.reply)
    }

    /// Calls a method with a token.
    pub async fn call(
        &self,
        token: SlackToken,
        method: &str,
        arguments: ApiArguments<'_>,
    ) -> Result<SlackAnswer, SlackApiError> {
        let source = match token {
            SlackToken::App => &self.app_token,
            SlackToken::Bot => &self.bot_token,
        };
        let transport = |failure| SlackApiError { failure, kind: ApiErrorKind::Transport };
        let secret = source.get().await.map_err(transport)?;
        let result = self.call_with(&secret, method, arguments).await;
        let is_rejected = |error: &SlackApiError| TOKEN_ERRORS.contains(&error.code());
        if !result.as_ref().is_err_and(is_rejected) {
            return result;
        }
        // The token may have been replaced since the command for it was run. Slack has executed
        // nothing, so that the call can be made with the new one.
        source.forget();
        let renewed = source.get().await.map_err(transport)?;
        if renewed == secret { result } else { self.call_with(&renewed, method, arguments).await }
    }

    async fn call_with(
        &self,
        secret: &Secret,
        method: &str,
        arguments: ApiArguments<'_>,
    ) -> Result<SlackAnswer, SlackApiError> {
        let transport = |failure| SlackApiError { failure, kind: ApiErrorKind::Transport };
        let target = self.base.below(method);
        let request = EgressRequest::post(&target).bearer(secret.expose());
        let request = request.timeout(CALL_TIMEOUT).max_reply(MAX_REPLY_BYTES);
        let request = match arguments {
            ApiArguments::Read(fields) => request.form(fields).repeatable(),
            ApiArguments::Write(fields) => request.form(fields),
            ApiArguments::Json(body) => request.json(body),
        };
        let response = self.egress.send(request).await.map_err(transport)?;
        read_answer(method, response)
    }
}

/// The arguments of a call.
#[derive(Clone, Copy)]
pub(super) enum ApiArguments<'a> {
    /// A form. The call changes nothing, so it may be repeated.
    Read(&'a [(&'a str, &'a str)]),
    Write(&'a [(&'a str, &'a str)]),
    Json(&'a serde_json::Value),
}

/// Classifies the response to a call.
pub(super) fn read_answer(
    method: &str,
    response: EgressResponse,
) -> Result<SlackAnswer, SlackApiError> {
    let status = response.status;
    let reply = ApiReply::parse(&response.body);
    if status == StatusCode::TOO_MANY_REQUESTS {
        let detail = format!("{method}: too many requests");
        return Err(throttled(detail, "ratelimited", &response));
    }
    let Some(reply) = reply else {
        return Err(no_answer(method, &response));
    };
    let Some(code) = reply.error() else {
        return Ok(SlackAnswer { scopes: scopes(&response.headers), reply });
    };
    let needed = reply.needed_scope().map(|scope| format!(" ({scope})")).unwrap_or_default();
    let detail = format!("{method}: {}{needed}{}", shown(code), error_advice(code));
    let error_code = Some(shown(code));
    let temporary = |retry_after_ms| Failure::Temporary {
        detail: detail.clone(),
        retry_after_ms,
        error_code: error_code.clone(),
    };
    let (failure, kind) = match error_kind(code) {
        SlackErrorKind::Throttled => return Err(throttled(detail, code, &response)),
        SlackErrorKind::Temporary => (temporary(None), ApiErrorKind::Rejected),
        SlackErrorKind::Ambiguous => {
            (Failure::Unknown { detail, error_code }, ApiErrorKind::Ambiguous)
        }
        SlackErrorKind::Format => (Failure::Permanent { detail, error_code }, ApiErrorKind::Format),
        SlackErrorKind::Permanent => {
            (Failure::Permanent { detail, error_code }, ApiErrorKind::Rejected)
        }
    };
    Err(SlackApiError { failure, kind })
}

fn throttled(detail: String, code: &str, response: &EgressResponse) -> SlackApiError {
    let retry_after = response.retry_after();
    let retry_after_ms =
        retry_after.map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX));
    let error_code = Some(code.to_owned());
    let failure = Failure::Temporary { detail, retry_after_ms, error_code };
    SlackApiError { failure, kind: ApiErrorKind::Throttled { retry_after } }
}

/// Classifies a response that is no answer of the Web API. A server error says nothing about
/// what was executed before it, except that 503 is the answer of a server that is not available.
/// Behind 502 and 504 the server may not have finished yet.
fn no_answer(method: &str, response: &EgressResponse) -> SlackApiError {
    let status = response.status;
    let error_code = Some(status.as_str().to_owned());
    let detail = format!("{method}: Slack answered {status}");
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let retry_after = response.retry_after();
        let retry_after_ms = retry_after.map(|after| after.as_secs().saturating_mul(1000));
        let failure = Failure::Temporary { detail, retry_after_ms, error_code };
        return SlackApiError { failure, kind: ApiErrorKind::Rejected };
    }
    if status.is_server_error() || status.is_success() {
        let kind = match status == StatusCode::INTERNAL_SERVER_ERROR {
            true => ApiErrorKind::Ambiguous,
            false => ApiErrorKind::NoVerdict,
        };
        return SlackApiError { failure: Failure::Unknown { detail, error_code }, kind };
    }
    let detail = match status.is_redirection() {
        true => format!("{detail}; check base_url"),
        false => detail,
    };
    let failure = Failure::Permanent { detail, error_code };
    SlackApiError { failure, kind: ApiErrorKind::Rejected }
}

fn scopes(headers: &HeaderMap) -> Option<String> {
    headers.get("x-oauth-scopes")?.to_str().ok().map(str::to_owned)
}

/// Returns an error code as it may be shown: Slack's have letters, digits and underscores.
fn shown(code: &str) -> String {
    code.chars().filter(|c| c.is_ascii_alphanumeric() || "_.-".contains(*c)).take(80).collect()
}

#[cfg(test)]
mod tests;
