//! Calls of Lark's API: the tenant access token, and one attempt per call.
//!
//! The token is kept in memory and renewed 600 s before it expires, as the SDKs do. A request whose
//! token was rejected is repeated once with a new one: Lark has not executed it.

use std::fmt;
use std::time::Duration;

use http::HeaderName;
use monoco_core::config::Secret;
use monoco_core::retry::Failure;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::config::LarkApp;
use super::failure::{CREDENTIALS_PAUSE, LarkAnswer, LarkCallKind, LarkFault, read_answer};
use crate::egress::{
    Egress, EgressBody, EgressDownload, EgressRequest, EgressResponse, EgressTarget, HostRule,
    MultipartField,
};
use crate::secret_command::get_secret;

/// Hosts that URLs of Lark's answers may name: sockets, and redirects of downloads.
const LARK_HOSTS: [&str; 6] = [
    "feishu.cn",
    ".feishu.cn",
    "larksuite.com",
    ".larksuite.com",
    ".feishucdn.com",
    ".larksuitecdn.com",
];

/// How long before it expires a token is renewed.
const RENEW_BEFORE: Duration = Duration::from_secs(600);

/// The validity of a token whose answer does not state one, and the longest that is accepted.
const DEFAULT_TOKEN_S: u64 = 7200;

/// Most bytes of an answer that are read. A page of a history has 50 messages of up to 150 KB.
const MAX_REPLY_BYTES: usize = 16 << 20;

/// Time limit of one call. It is shorter than that of a delivery attempt.
const CALL_TIMEOUT: Duration = Duration::from_secs(25);

/// Largest file that is fetched, in bytes. Lark gives out at most 100 MB.
const MAX_DOWNLOAD_BYTES: u64 = 128 << 20;

/// The language of error messages of the endpoint. The SDKs send it.
const LOCALE: HeaderName = HeaderName::from_static("locale");

/// One request of the API.
#[derive(Clone, Copy, Debug)]
pub(super) struct LarkRequest<'a> {
    /// The path without the leading slash.
    pub path: &'a str,
    pub query: &'a [(&'a str, &'a str)],
    /// The body of a POST; `None`: a GET.
    pub body: Option<&'a Value>,
    pub kind: LarkCallKind,
}

impl<'a> LarkRequest<'a> {
    /// A call that reads.
    pub fn get(path: &'a str, query: &'a [(&'a str, &'a str)]) -> Self {
        Self { path, query, body: None, kind: LarkCallKind::Repeatable }
    }

    /// A call that sends a message.
    pub fn send(path: &'a str, query: &'a [(&'a str, &'a str)], body: &'a Value) -> Self {
        Self { path, query, body: Some(body), kind: LarkCallKind::Send }
    }

    /// A call with a body that can be repeated.
    pub fn post(path: &'a str, body: &'a Value) -> Self {
        Self { path, query: &[], body: Some(body), kind: LarkCallKind::Repeatable }
    }
}

/// Where a long connection is opened.
#[derive(Debug)]
pub(super) struct LarkEndpoint {
    pub target: EgressTarget,
    /// The number that pings carry.
    pub service_id: i32,
    pub settings: ConnectionSettings,
}

/// What the server asks of a client. The values are seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ConnectionSettings {
    #[serde(rename = "PingInterval")]
    pub ping_interval: Option<i64>,
    #[serde(rename = "ReconnectInterval")]
    pub reconnect_interval: Option<i64>,
}

/// The API of one tunnel.
pub(super) struct LarkClient {
    egress: Egress,
    base: EgressTarget,
    pub hosts: HostRule,
    app: Option<LarkApp>,
    token: Mutex<Option<CachedTenantToken>>,
}

#[derive(Clone)]
struct CachedTenantToken {
    token: Secret,
    renew_at: Instant,
}

impl fmt::Debug for LarkClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LarkClient").field("base", &self.base).finish_non_exhaustive()
    }
}

impl LarkClient {
    pub fn new(egress: Egress, base: EgressTarget, app: Option<LarkApp>) -> Self {
        let hosts = HostRule::new(&LARK_HOSTS, &base);
        Self { egress, base, hosts, app, token: Mutex::default() }
    }

    /// Returns the app, or a permanent failure when the tunnel has only a custom robot.
    pub fn app(&self) -> Result<&LarkApp, Failure> {
        self.app.as_ref().ok_or_else(|| Failure::Permanent {
            detail: "this tunnel has only a custom robot; set app_id and app_secret".to_owned(),
            error_code: None,
        })
    }

    /// Makes one call, and a second one when the token was rejected.
    pub async fn call(&self, call: LarkRequest<'_>) -> Result<LarkAnswer, LarkFault> {
        let token = self.token().await?;
        match self.call_with(call, &token).await {
            Err(LarkFault::Token(_)) => {
                let token = self.renew_token(&token).await?;
                self.call_with(call, &token).await
            }
            result => result,
        }
    }

    async fn call_with(
        &self,
        call: LarkRequest<'_>,
        token: &Secret,
    ) -> Result<LarkAnswer, LarkFault> {
        let mut target = self.base.below(&format!("open-apis/{}", call.path));
        if !call.query.is_empty() {
            target = target.with_query(call.query);
        }
        let request = match call.body {
            Some(body) => EgressRequest::post(&target).json(body),
            None => EgressRequest::get(&target),
        };
        let request =
            request.bearer(token.expose()).timeout(CALL_TIMEOUT).max_reply(MAX_REPLY_BYTES);
        let request = match call.kind {
            LarkCallKind::Repeatable => request.repeatable(),
            LarkCallKind::Send => request,
        };
        let response = self.egress.send(request).await.map_err(LarkFault::Failed)?;
        read_answer(&response, method_name(call.path), call.kind)
    }

    /// Posts to a custom robot, whose address must be on a host of Lark. There is no token.
    pub async fn post_robot(&self, url: &Secret, body: &Value) -> Result<LarkAnswer, LarkFault> {
        let target = self.hosts.http(url.expose()).map_err(LarkFault::Failed)?;
        let request = EgressRequest::post(&target).json(body).timeout(CALL_TIMEOUT);
        let response = self.egress.send(request).await.map_err(LarkFault::Failed)?;
        read_answer(&response, "custom robot", LarkCallKind::Send)
    }

    /// Uploads a file. `form` builds the form for each attempt, because its content is a stream.
    pub async fn upload<F, R>(&self, path: &str, form: F) -> Result<LarkAnswer, LarkFault>
    where
        F: Fn() -> R + Send + Sync,
        R: Future<Output = Result<Vec<MultipartField>, Failure>> + Send,
    {
        let target = self.base.below(&format!("open-apis/{path}"));
        let mut token = self.token().await?;
        for is_last in [false, true] {
            let fields = form().await.map_err(LarkFault::Failed)?;
            let request = EgressRequest::post(&target).bearer(token.expose());
            let response = self.egress.send(request.body(EgressBody::Multipart(fields))).await;
            // An upload is not visible, so a missing answer is no unknown outcome.
            let response = response.map_err(|failure| LarkFault::Failed(not_visible(failure)))?;
            match read_answer(&response, method_name(path), LarkCallKind::Repeatable) {
                Err(LarkFault::Token(_)) if !is_last => token = self.renew_token(&token).await?,
                result => return result,
            }
        }
        Err(LarkFault::Failed(temporary("the upload was not accepted".to_owned())))
    }

    /// Downloads a file while it is read.
    pub async fn download(
        &self,
        path: &str,
        query: &[(&str, &str)],
    ) -> Result<EgressDownload, LarkFault> {
        let target = self.base.below(&format!("open-apis/{path}")).with_query(query);
        let mut token = self.token().await?;
        for is_last in [false, true] {
            let request = EgressRequest::get(&target).bearer(token.expose());
            let opened = self.egress.download(request, MAX_DOWNLOAD_BYTES, &self.hosts).await;
            let download = opened.map_err(LarkFault::Failed)?;
            let is_json = download.mime_type() == Some("application/json");
            if download.status.is_success() && !is_json {
                return Ok(download);
            }
            match rejected_download(download).await {
                Ok(download) => return Ok(download),
                Err(LarkFault::Token(_)) if !is_last => token = self.renew_token(&token).await?,
                Err(fault) => return Err(fault),
            }
        }
        Err(LarkFault::Failed(temporary("the file was not sent".to_owned())))
    }

    /// Asks for the address of a long connection. The ticket in it is valid once.
    pub async fn open_socket(&self) -> Result<LarkEndpoint, LarkFault> {
        let app = self.app().map_err(LarkFault::Failed)?;
        let secret = get_secret(&app.secret).await.map_err(LarkFault::Failed)?;
        let target = self.base.below("callback/ws/endpoint");
        let body = json!({"AppID": app.id, "AppSecret": secret.expose()});
        let request = EgressRequest::post(&target)
            .header(LOCALE, "zh")
            .json(&body)
            .timeout(CALL_TIMEOUT)
            .repeatable();
        let response = self.egress.send(request).await.map_err(LarkFault::Failed)?;
        if response.status == http::StatusCode::NOT_FOUND {
            let detail = format!(
                "{} offers no long connections; set `mode: webhook` and subscribe to events by HTTP",
                target.shown()
            );
            let error_code = Some("404".to_owned());
            return Err(LarkFault::Failed(Failure::Permanent { detail, error_code }));
        }
        let answer = read_answer(&response, "ws/endpoint", LarkCallKind::Repeatable)?;
        let url = answer.data()["URL"].as_str().unwrap_or_default();
        let target = self.hosts.socket(url).map_err(LarkFault::Failed)?;
        let settings = &answer.data()["ClientConfig"];
        let settings = serde_json::from_value(settings.clone()).unwrap_or_default();
        Ok(LarkEndpoint { target, service_id: service_id(url), settings })
    }

    /// Drops the token, so that the next call gets a new one.
    pub async fn forget_token(&self) {
        *self.token.lock().await = None;
    }

    /// Returns a token that is valid for at least some minutes.
    pub async fn token(&self) -> Result<Secret, LarkFault> {
        let mut cached = self.token.lock().await;
        match &*cached {
            Some(known) if known.renew_at > Instant::now() => Ok(known.token.clone()),
            _ => self.fetch_token(&mut cached).await,
        }
    }

    /// Returns another token than the rejected one. Callers that were rejected at the same time
    /// share the new one.
    async fn renew_token(&self, rejected: &Secret) -> Result<Secret, LarkFault> {
        let mut cached = self.token.lock().await;
        match &*cached {
            Some(known) if known.token != *rejected => Ok(known.token.clone()),
            _ => self.fetch_token(&mut cached).await,
        }
    }

    async fn fetch_token(
        &self,
        cached: &mut Option<CachedTenantToken>,
    ) -> Result<Secret, LarkFault> {
        *cached = None;
        let app = self.app().map_err(LarkFault::Failed)?;
        let secret = get_secret(&app.secret).await.map_err(LarkFault::Failed)?;
        let target = self.base.below("open-apis/auth/v3/tenant_access_token/internal");
        let body = json!({"app_id": app.id, "app_secret": secret.expose()});
        let request = EgressRequest::post(&target).json(&body).timeout(CALL_TIMEOUT).repeatable();
        let response = self.egress.send(request).await.map_err(LarkFault::Failed)?;
        let answer = read_answer(&response, "tenant_access_token", LarkCallKind::Repeatable);
        let answer = answer.map_err(credentials)?;
        let body = answer.body();
        let Some(token) = body["tenant_access_token"].as_str().filter(|token| !token.is_empty())
        else {
            let detail = "tenant_access_token: the answer has no token".to_owned();
            return Err(LarkFault::Failed(temporary(detail)));
        };
        let token = Secret::new(token);
        let seconds = body["expire"].as_u64().filter(|seconds| *seconds > 0);
        let valid = Duration::from_secs(seconds.unwrap_or(DEFAULT_TOKEN_S).min(DEFAULT_TOKEN_S));
        let valid = valid.checked_sub(RENEW_BEFORE).unwrap_or(valid / 2);
        *cached =
            Some(CachedTenantToken { token: token.clone(), renew_at: Instant::now() + valid });
        Ok(token)
    }
}

/// A rejected login is about the app and not about a message, so messages wait until the app works
/// again.
fn credentials(fault: LarkFault) -> LarkFault {
    match fault {
        LarkFault::Throttled { .. } | LarkFault::Failed(Failure::Temporary { .. }) => fault,
        fault => {
            let failure = fault.into_failure();
            LarkFault::Failed(Failure::Temporary {
                detail: failure.detail().to_owned(),
                retry_after_ms: u64::try_from(CREDENTIALS_PAUSE.as_millis()).ok(),
                error_code: failure.error_code().map(str::to_owned),
            })
        }
    }
}

/// Reads an answer in place of a file. A file can itself be JSON.
async fn rejected_download(mut download: EgressDownload) -> Result<EgressDownload, LarkFault> {
    use tokio::io::AsyncReadExt as _;
    const MAX_ERROR_BYTES: u64 = 64 << 10;
    let mut body = Vec::new();
    let mut start = (&mut download.bytes).take(MAX_ERROR_BYTES);
    start.read_to_end(&mut body).await.map_err(|error| {
        LarkFault::Failed(temporary(format!("the download has broken off: {error}")))
    })?;
    let is_file = download.status.is_success()
        && serde_json::from_slice::<Value>(&body)
            .map_or(true, |body| body.get("code").is_none() || body.get("msg").is_none());
    if is_file {
        let rest = download.bytes;
        download.bytes = Box::pin(std::io::Cursor::new(body).chain(rest));
        return Ok(download);
    }
    let response =
        EgressResponse { status: download.status, headers: download.headers.clone(), body };
    let fault = read_answer(&response, "resources", LarkCallKind::Repeatable).err();
    Err(fault.unwrap_or_else(|| {
        LarkFault::Failed(temporary("resources: Lark answered without the file".to_owned()))
    }))
}

/// Returns the number in the query of the address of a connection.
fn service_id(url: &str) -> i32 {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let found = pairs.find(|(key, _)| *key == "service_id").map(|(_, value)| value);
    found.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Returns the end of a path without ids, for errors.
fn method_name(path: &str) -> &str {
    let has_id = |part: &&str| !part.contains('_') || part.len() < 20;
    path.split('/').rfind(has_id).unwrap_or(path)
}

fn not_visible(failure: Failure) -> Failure {
    match failure {
        Failure::Unknown { detail, error_code } => {
            Failure::Temporary { detail, retry_after_ms: None, error_code }
        }
        other => other,
    }
}

fn temporary(detail: String) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_id_and_names_are_found() {
        let url = "wss://x/ws/v2?fpid=493&device_id=7&service_id=33554678&ticket=t";
        assert_eq!(service_id(url), 33_554_678);
        assert_eq!((service_id("wss://x/"), service_id("wss://x/?service_id=x")), (0, 0));
        let reply = "im/v1/messages/om_5ce6d572455d361153b7cb51da133945/reply";
        assert_eq!(method_name(reply), "reply");
        let chat = "im/v1/chats/oc_5ce6d572455d361153b7cb51da133945";
        assert_eq!(method_name(chat), "chats");
    }

    #[test]
    fn settings_of_the_server_may_be_incomplete() {
        let read =
            |json: &str| serde_json::from_str::<ConnectionSettings>(json).unwrap_or_default();
        let all = r#"{"ReconnectCount":-1,"ReconnectInterval":120,"PingInterval":90}"#;
        assert_eq!(read(all).ping_interval, Some(90));
        for json in ["{}", "null", r#"{"PingInterval":"x"}"#] {
            assert_eq!(read(json).ping_interval, None, "{json}");
        }
    }
}
