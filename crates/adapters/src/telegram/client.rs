//! Calls the Bot API: one attempt per call, with the answer classified.
//!
//! The token is part of the path of every URL, so a URL is never shown.

use std::time::Duration;

use monoco_core::config::SecretSource;
use monoco_core::retry::Failure;
use serde_json::{Value, json};

use super::failure::{TelegramCallKind, TelegramError, TelegramErrorKind, read_answer};
use super::wire::{TelegramUpdate, parse_page, text};
use crate::FileDownload;
use crate::egress::{Egress, EgressBody, EgressRequest, EgressTarget, HostRule, MultipartField};
use crate::secret_command::CachedSecret;

/// Hosts that redirects of a download may name.
const TELEGRAM_HOSTS: [&str; 2] = ["api.telegram.org", ".telegram.org"];

/// Time limit of one call.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Time limit of the upload of a file. It is shorter than that of a delivery attempt.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(280);

/// How much longer than a poll its HTTP request may take.
const POLL_MARGIN: Duration = Duration::from_secs(15);

/// Most bytes of a page of updates that are read.
const MAX_PAGE_BYTES: usize = 16 << 20;

/// The updates that are asked for. Telegram leaves out reactions unless they are named.
pub(super) const ALLOWED_UPDATES: [&str; 6] = [
    "message",
    "edited_message",
    "channel_post",
    "edited_channel_post",
    "my_chat_member",
    "message_reaction",
];

/// Largest file that bots may download, in bytes.
pub(super) const MAX_DOWNLOAD_BYTES: u64 = 20 << 20;

/// The client of one bot.
#[derive(Debug)]
pub(super) struct TelegramClient {
    egress: Egress,
    base: EgressTarget,
    hosts: HostRule,
    token: CachedSecret,
}

/// One call of getUpdates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PollRequest {
    /// Confirms all updates below it.
    pub offset: Option<i64>,
    pub limit: u32,
    /// How long Telegram waits for an update.
    pub timeout: Duration,
}

impl TelegramClient {
    pub fn new(egress: Egress, base: EgressTarget, token: Option<SecretSource>) -> Self {
        let hosts = HostRule::new(&TELEGRAM_HOSTS, &base);
        Self { egress, base, hosts, token: CachedSecret::new("token", token) }
    }

    /// Calls a method that can be repeated.
    pub async fn read(&self, method: &str, body: &Value) -> Result<Value, TelegramError> {
        let kind = TelegramCallKind::Repeatable;
        self.call(method, kind, |it| it.json(body).timeout(CALL_TIMEOUT).repeatable()).await
    }

    /// Calls a method that sends a message, once.
    pub async fn send(&self, method: &str, body: &Value) -> Result<Value, TelegramError> {
        self.call(method, TelegramCallKind::Send, |it| it.json(body).timeout(CALL_TIMEOUT)).await
    }

    /// Calls a method that sends a file, once.
    pub async fn upload(
        &self,
        method: &str,
        fields: Vec<MultipartField>,
    ) -> Result<Value, TelegramError> {
        let body = EgressBody::Multipart(fields);
        self.call(method, TelegramCallKind::Send, |it| it.body(body).timeout(UPLOAD_TIMEOUT)).await
    }

    /// Asks for a page of updates. `None`: the answer is no page of updates.
    pub async fn updates(
        &self,
        poll: &PollRequest,
    ) -> Result<Option<Vec<TelegramUpdate>>, TelegramError> {
        let mut body = json!({
            "timeout": poll.timeout.as_secs(),
            "limit": poll.limit,
            "allowed_updates": ALLOWED_UPDATES,
        });
        if let Some(offset) = poll.offset {
            body["offset"] = json!(offset);
        }
        let target = self.method("getUpdates").await?;
        let request = EgressRequest::post(&target).json(&body).repeatable();
        let request = request.timeout(poll.timeout + POLL_MARGIN).max_reply(MAX_PAGE_BYTES);
        let response = self.egress.send(request).await?;
        let answer = read_answer("getUpdates", TelegramCallKind::Repeatable, &response);
        match answer {
            Ok(page) => Ok(parse_page(page)),
            // A page that is cut, or that breaks off.
            Err(error)
                if error.kind == TelegramErrorKind::Ambiguous && response.status.is_success() =>
            {
                Ok(None)
            }
            Err(error) => Err(self.checked(error)),
        }
    }

    /// Opens a file by its id.
    pub async fn open_file(&self, file_id: &str) -> Result<FileDownload, Failure> {
        let file = self.read("getFile", &json!({ "file_id": file_id })).await;
        let file = file.map_err(|error| error.failure)?;
        let path = text(&file, "file_path").ok_or_else(|| Failure::Temporary {
            detail: "getFile: the answer has no path".to_owned(),
            retry_after_ms: None,
            error_code: None,
        })?;
        let path = checked_path(path)?;
        let token = self.token.get().await?;
        let target = self.base.below(&format!("file/bot{}/{path}", token.expose()));
        let request = EgressRequest::get(&target);
        let download = self.egress.download(request, MAX_DOWNLOAD_BYTES, &self.hosts).await?;
        // The type is that of a download, and the message states a better one.
        Ok(FileDownload { mime_type: None, ..download.into_file(None)? })
    }

    async fn call(
        &self,
        method: &str,
        call: TelegramCallKind,
        complete: impl FnOnce(EgressRequest<'_>) -> EgressRequest<'_>,
    ) -> Result<Value, TelegramError> {
        let target = self.method(method).await?;
        let request = complete(EgressRequest::post(&target));
        let response = self.egress.send(request).await?;
        let result = read_answer(method, call, &response).map_err(|error| self.checked(error))?;
        // A result that is valid JSON and has no exact value is not needed.
        Ok(serde_json::from_str(result).unwrap_or_default())
    }

    /// Returns the URL of a method. It holds the token.
    async fn method(&self, method: &str) -> Result<EgressTarget, Failure> {
        let token = self.token.get().await?;
        if !is_token(token.expose()) {
            let detail = "the command for the token printed no bot token".to_owned();
            return Err(Failure::Permanent { detail, error_code: None });
        }
        Ok(self.base.below(&format!("bot{}/{method}", token.expose())))
    }

    /// Makes the next call get a new token when this one was rejected.
    fn checked(&self, error: TelegramError) -> TelegramError {
        if error.kind == TelegramErrorKind::Unauthorized {
            self.token.forget();
        }
        error
    }
}

/// Tells whether a text has the form of a bot token, such as `110201543:AAHdqTcvCH1vGWJx`.
pub(super) fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    text.split_once(':').is_some_and(|(id, secret)| {
        let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
        is_id && !secret.is_empty() && secret.bytes().all(is_part)
    })
}

/// Checks the path of a file, which becomes a part of a URL.
fn checked_path(path: &str) -> Result<&str, Failure> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~ ()+,@".contains(c) || !c.is_ascii();
    let is_segment = |part: &str| !matches!(part, "" | "." | "..") && part.chars().all(is_plain);
    if path.split('/').all(is_segment) {
        return Ok(path);
    }
    let detail = match path.starts_with('/') {
        true => "the server keeps files on its own disk (`--local`), so they cannot be fetched",
        false => "getFile: the path of the file is not usable",
    };
    Err(Failure::Permanent { detail: detail.to_owned(), error_code: None })
}

#[cfg(test)]
pub(super) mod tests;
