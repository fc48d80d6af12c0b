//! Calls of DingTalk's API: the access token, and each request that this adapter makes.
//!
//! The token is kept in memory and renewed 300 s before it expires. A request whose token was
//! rejected is repeated once with a new one: DingTalk has not executed it.

use std::fmt;
use std::time::Duration;

use http::HeaderName;
use http::header::ACCEPT;
use monoco_core::config::Secret;
use monoco_core::outgoing::AttachmentRef;
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::config::{CustomRobot, DingTalkApp, DingTalkConfig};
use super::failure::{ApiFault, CREDENTIALS_PAUSE, CallKind, read_answer, repeatable};
use super::inbound::FileHandle;
use super::wire::{ApiAnswer, OpenStreamRequest, StreamTicket, TokenAnswer};
use super::{outbound, signature};
use crate::egress::{Egress, EgressBody, EgressRequest, EgressTarget, HostRule, MultipartField};
use crate::secret_command::get_secret;
use crate::socket::{ConnectError, ConnectRetry, SocketEndpoint};
use crate::{AttachmentSource, FileDownload};

/// The hosts of DingTalk: of sockets, session webhooks and, with those of `file_hosts`, files.
const HOSTS: [&str; 2] = ["dingtalk.com", ".dingtalk.com"];

const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-acs-dingtalk-access-token");

/// How long before it expires a token is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(300);

/// The validity of a token whose answer does not state one.
const DEFAULT_TOKEN_S: u64 = 7200;

/// Largest file that is fetched, in bytes. The courier stops earlier.
const MAX_DOWNLOAD_BYTES: u64 = 2 << 30;

/// The API of one tunnel.
pub(super) struct DingTalkApi {
    egress: Egress,
    base: EgressTarget,
    oapi: EgressTarget,
    hosts: HostRule,
    /// Where files are fetched: also the hosts of `file_hosts`.
    file_hosts: HostRule,
    app: Option<DingTalkApp>,
    token: Mutex<Option<CachedToken>>,
}

#[derive(Clone)]
struct CachedToken {
    token: Secret,
    renew_at: Instant,
}

impl fmt::Debug for DingTalkApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DingTalkApi").field("base", &self.base).finish_non_exhaustive()
    }
}

impl DingTalkApi {
    /// Builds the API of a tunnel. Fails when an address in the config is not usable.
    pub(super) fn new(config: &DingTalkConfig, egress: Egress) -> Result<Self, String> {
        let target = |url: &str| {
            EgressTarget::parse(url, config.is_local()).map_err(|error| error.to_string())
        };
        let base = target(&config.base_url).map_err(|error| format!("base_url: {error}"))?;
        let oapi = target(&config.oapi_url).map_err(|error| format!("oapi_url: {error}"))?;
        let hosts = HostRule::new(&HOSTS, &base);
        let mut names = HOSTS.to_vec();
        names.extend(config.file_hosts.iter().map(String::as_str));
        let file_hosts = HostRule::new(&names, &base);
        let (app, token) = (config.app.clone(), Mutex::default());
        Ok(Self { egress, base, oapi, hosts, file_hosts, app, token })
    }

    /// Returns the app, or a permanent failure when the tunnel has only a custom robot.
    pub(super) fn app(&self) -> Result<&DingTalkApp, Failure> {
        self.app.as_ref().ok_or_else(|| Failure::Permanent {
            detail: "this tunnel has only a custom robot; set app_key and app_secret".to_owned(),
            error_code: None,
        })
    }

    /// Asks for the address of a new stream. The ticket in it is valid once.
    pub(super) async fn open_stream(&self) -> Result<SocketEndpoint, ConnectError> {
        let app = self.app().map_err(|failure| connect_error(ApiFault::Failed(failure)))?;
        let secret = get_secret(&app.secret).await.map_err(|failure| ConnectError {
            failure,
            retry: ConnectRetry::Slow,
            after: None,
        })?;
        let target = self.base.below("v1.0/gateway/connections/open");
        let body = OpenStreamRequest::new(&app.key, secret.expose());
        // Without this header the answer is XML.
        let request = EgressRequest::post(&target)
            .header(ACCEPT, "application/json")
            .json(&body)
            .repeatable();
        let failed = |failure| connect_error(ApiFault::Failed(failure));
        let response = self.egress.send(request).await.map_err(failed)?;
        read_answer(&response, &target.shown(), CallKind::Repeatable).map_err(connect_error)?;
        let ticket: StreamTicket = response.json().map_err(|error| {
            failed(temporary(format!("cannot read the address of the stream: {error}")))
        })?;
        let socket = self.hosts.socket(&ticket.endpoint).map_err(failed)?;
        Ok(SocketEndpoint::new(socket.with_query(&[("ticket", &ticket.ticket)])))
    }

    /// Sends a message of the robot. The path decides who gets it.
    pub(super) async fn send(&self, path: &str, body: &Value) -> Result<ApiAnswer, ApiFault> {
        self.call(path, body, CallKind::Send).await
    }

    /// Posts to a session webhook, which must be on a host of DingTalk.
    pub(super) async fn post_session(&self, url: &Secret, body: &Value) -> Result<(), ApiFault> {
        let target = self.hosts.http(url.expose()).map_err(ApiFault::Failed)?;
        self.post_webhook(&target, body).await
    }

    /// Posts to a custom robot. The signature is made for each request.
    pub(super) async fn post_robot(
        &self,
        robot: &CustomRobot,
        body: &Value,
        now: Timestamp,
    ) -> Result<(), ApiFault> {
        let token = get_secret(&robot.token).await.map_err(ApiFault::Failed)?;
        let mut target =
            self.oapi.below("robot/send").with_query(&[("access_token", token.expose())]);
        if let Some(secret) = &robot.secret {
            let secret = get_secret(secret).await.map_err(ApiFault::Failed)?;
            let at = now.ms().to_string();
            let sign = signature::sign(&secret, &at);
            target = target.with_query(&[("timestamp", &at), ("sign", &sign)]);
        }
        self.post_webhook(&target, body).await
    }

    async fn post_webhook(&self, target: &EgressTarget, body: &Value) -> Result<(), ApiFault> {
        let request = EgressRequest::post(target).json(body);
        let response = self.egress.send(request).await.map_err(ApiFault::Failed)?;
        read_answer(&response, &target.shown(), CallKind::Send).map(drop)
    }

    /// Uploads an attachment while it is read, and returns the id by which it is sent.
    pub(super) async fn upload(
        &self,
        files: &dyn AttachmentSource,
        file: &AttachmentRef,
    ) -> Result<String, ApiFault> {
        let (kind, max) = outbound::upload_limits(file);
        let mut token = self.token().await?;
        for is_last in [false, true] {
            let open = files.open(file).await.map_err(ApiFault::Failed)?;
            if open.size > max || open.size == 0 {
                let detail = format!(
                    "attachment {:?} has {} bytes; DingTalk accepts 1 to {max} bytes of a {kind}",
                    file.name, open.size
                );
                return Err(ApiFault::Failed(Failure::Permanent { detail, error_code: None }));
            }
            let target = self
                .oapi
                .below("media/upload")
                .with_query(&[("access_token", token.expose()), ("type", kind)]);
            let name = outbound::file_name(file);
            let media = MultipartField::file("media", name, &file.mime_type, open.size, open.bytes);
            let form = EgressBody::Multipart(vec![MultipartField::text("type", kind), media]);
            let response = self.egress.send(EgressRequest::post(&target).body(form)).await;
            let response = response.map_err(|failure| ApiFault::Failed(repeatable(failure)))?;
            match read_answer(&response, &target.shown(), CallKind::Repeatable) {
                Err(ApiFault::Token(_)) if !is_last => token = self.renew_token(&token).await?,
                Err(fault) => return Err(fault),
                Ok(ApiAnswer { media_id: Some(id), .. }) => return Ok(id),
                Ok(_) => break,
            }
        }
        Err(ApiFault::Failed(temporary("the answer to the upload has no media_id".to_owned())))
    }

    /// Opens a file of a message. Its code is exchanged for an address, which is fetched without
    /// the token.
    pub(super) async fn open_file(&self, handle: &FileHandle) -> Result<FileDownload, Failure> {
        let body = json!({"robotCode": handle.robot_code, "downloadCode": handle.download_code});
        let path = "v1.0/robot/messageFiles/download";
        let answer = self.call(path, &body, CallKind::Repeatable).await;
        let url = answer
            .map_err(ApiFault::into_failure)?
            .download_url
            .ok_or_else(|| temporary("the answer has no address of the file".to_owned()))?;
        // Some addresses are stated without encryption, which DingTalk's hosts all support.
        let url = match url.strip_prefix("http://") {
            Some(rest) if self.file_hosts.http(&url).is_err() => format!("https://{rest}"),
            _ => url,
        };
        let target = self.file_hosts.http(&url)?;
        let request = EgressRequest::get(&target);
        let download = self.egress.download(request, MAX_DOWNLOAD_BYTES, &self.file_hosts).await?;
        let name = handle.stem.as_ref().map(|stem| download.name_for(stem));
        download.into_file(name)
    }

    /// Gets a new token and opens a stream without connecting to it, and says what was found.
    pub(super) async fn probe(&self, with_stream: bool) -> Result<Vec<(String, String)>, Failure> {
        let mut lines = Vec::new();
        *self.token.lock().await = None;
        self.token().await.map_err(ApiFault::into_failure)?;
        lines.push(("access token".to_owned(), "ok".to_owned()));
        if with_stream {
            let endpoint = self.open_stream().await.map_err(|error| error.failure)?;
            let found = format!(
                "ok, {}; when another process uses the same app_key, DingTalk sends each message \
                 to only one of them",
                endpoint.target.host()
            );
            lines.push(("stream".to_owned(), found));
        }
        Ok(lines)
    }

    async fn call(&self, path: &str, body: &Value, kind: CallKind) -> Result<ApiAnswer, ApiFault> {
        let token = self.token().await?;
        match self.call_with(path, body, kind, &token).await {
            Err(ApiFault::Token(_)) => {
                let token = self.renew_token(&token).await?;
                self.call_with(path, body, kind, &token).await
            }
            result => result,
        }
    }

    async fn call_with(
        &self,
        path: &str,
        body: &Value,
        kind: CallKind,
        token: &Secret,
    ) -> Result<ApiAnswer, ApiFault> {
        let target = self.base.below(path);
        let mut request =
            EgressRequest::post(&target).header(TOKEN_HEADER, token.expose()).json(body);
        if kind == CallKind::Repeatable {
            request = request.repeatable();
        }
        let response = self.egress.send(request).await.map_err(ApiFault::Failed)?;
        read_answer(&response, &target.shown(), kind)
    }

    /// Returns a token that is valid for at least some minutes.
    async fn token(&self) -> Result<Secret, ApiFault> {
        let mut cached = self.token.lock().await;
        match &*cached {
            Some(known) if known.renew_at > Instant::now() => Ok(known.token.clone()),
            _ => self.fetch_token(&mut cached).await,
        }
    }

    /// Returns another token than the rejected one. Callers that were rejected at the same time
    /// share the new one.
    async fn renew_token(&self, rejected: &Secret) -> Result<Secret, ApiFault> {
        let mut cached = self.token.lock().await;
        match &*cached {
            Some(known) if known.token != *rejected => Ok(known.token.clone()),
            _ => self.fetch_token(&mut cached).await,
        }
    }

    async fn fetch_token(&self, cached: &mut Option<CachedToken>) -> Result<Secret, ApiFault> {
        *cached = None;
        let app = self.app().map_err(ApiFault::Failed)?;
        let secret = get_secret(&app.secret).await.map_err(ApiFault::Failed)?;
        let target = self.base.below("v1.0/oauth2/accessToken");
        let body = json!({"appKey": app.key, "appSecret": secret.expose()});
        let request = EgressRequest::post(&target).json(&body).repeatable();
        let response = self.egress.send(request).await.map_err(ApiFault::Failed)?;
        read_answer(&response, &target.shown(), CallKind::Repeatable).map_err(credentials)?;
        let answer: TokenAnswer = response.json().map_err(|error| {
            ApiFault::Failed(temporary(format!("cannot read the access token: {error}")))
        })?;
        let token = Secret::new(answer.access_token);
        let seconds = if answer.expires_in == 0 { DEFAULT_TOKEN_S } else { answer.expires_in };
        let valid = Duration::from_secs(seconds);
        let valid = valid.checked_sub(RENEW_BEFORE).unwrap_or(valid / 2);
        let renew_at = Instant::now() + valid;
        *cached = Some(CachedToken { token: token.clone(), renew_at });
        Ok(token)
    }
}

/// A rejected login is about the account and not about a message, so messages wait until the
/// account works again.
fn credentials(fault: ApiFault) -> ApiFault {
    match fault {
        ApiFault::Failed(Failure::Permanent { detail, error_code }) => {
            ApiFault::Failed(Failure::Temporary {
                detail: format!("{detail}; check app_key and app_secret"),
                retry_after_ms: u64::try_from(CREDENTIALS_PAUSE.as_millis()).ok(),
                error_code,
            })
        }
        ApiFault::Token(failure) => ApiFault::Failed(failure),
        other => other,
    }
}

/// Classifies a stream that cannot be opened. Wrong credentials are tried again slowly, because
/// they can become valid without a change of the config.
fn connect_error(fault: ApiFault) -> ConnectError {
    let after = match &fault {
        ApiFault::Throttled { retry_after, .. } => *retry_after,
        _ => None,
    };
    let is_config = matches!(
        &fault,
        ApiFault::Token(_) | ApiFault::Format(_) | ApiFault::Failed(Failure::Permanent { .. })
    );
    let retry = if is_config { ConnectRetry::Slow } else { ConnectRetry::Backoff };
    let failure = match fault {
        ApiFault::Failed(Failure::Permanent { detail, error_code }) => Failure::Permanent {
            detail: format!(
                "{detail}; check app_key and app_secret, and that the app is published"
            ),
            error_code,
        },
        other => other.into_failure(),
    };
    ConnectError { failure, retry, after }
}

fn temporary(detail: String) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}
