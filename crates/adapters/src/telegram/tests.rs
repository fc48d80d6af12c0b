//! Support for the tests of the adapter, and tests of its surface.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use monoco_core::config::{ConfigEnvironment, ConfigFile, Secret};
use monoco_core::inbound::{ChatPosition, InboundAttachment, InboundMessage, StoredBytes};
use monoco_core::time::Timestamp;
use serde_json::Value;
use tokio::io::AsyncRead;

use super::wire::{TelegramUpdate, parse_update};
use super::*;
use crate::scripted::{ScriptedAct, ScriptedServer, answer};
use crate::{ConnectionEvent, InboundError, InboundPage, PageResult};

pub(super) const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";

pub(super) struct SecretFiles;

impl ConfigEnvironment for SecretFiles {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
        Ok(Secret::new("1:from-a-file"))
    }
}

pub(super) fn config(yaml: &str) -> Result<TelegramConfig, String> {
    let file = ConfigFile::parse(yaml).unwrap();
    let section = file.root(&SecretFiles).unwrap();
    TelegramConfig::parse(&section, true).map_err(|error| error.to_string())
}

/// Builds an adapter whose API is at `url`, with further lines of config.
pub(super) fn adapter(url: &str, lines: &str) -> TelegramAdapter {
    let config = config(&format!("token: {TOKEN}\nbase_url: {url}\n{lines}")).unwrap();
    TelegramAdapter::new("tele".parse().unwrap(), config, Egress::new().unwrap())
}

/// A server that gives these answers in turn, and its URL.
pub(super) fn server(answers: &[(u16, &str)]) -> (ScriptedServer, String) {
    let act = |(status, body): &(u16, &str)| {
        ScriptedAct::Answer(answer(&format!("{status} X"), "connection: close\r\n", body))
    };
    let server = ScriptedServer::new(answers.iter().map(act));
    let url = format!("http://127.0.0.1:{}", server.port());
    (server, url)
}

/// The method and the JSON body of a request.
pub(super) fn call_of(request: &str) -> (String, Value) {
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let path = head.split_whitespace().nth(1).unwrap();
    let method = path.rsplit('/').next().unwrap().to_owned();
    (method, serde_json::from_str(body).unwrap_or_default())
}

/// A recorded update of the test data.
pub(super) fn testdata(name: &str) -> TelegramUpdate {
    let path = format!("{}/testdata/telegram/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let json = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    parse_update(&json).unwrap()
}

/// A sink that keeps events in memory, or fails.
#[derive(Debug, Default)]
pub(super) struct EventSink {
    pub events: Mutex<Vec<InboundEvent>>,
    pub reports: Mutex<Vec<ConnectionEvent>>,
    pub cursor: Mutex<Option<String>>,
    pub is_full: AtomicBool,
}

#[async_trait]
impl InboundSink for EventSink {
    async fn receive(
        &self,
        message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        let event = InboundEvent::Message { message, attachments };
        self.receive_events(vec![event]).await.remove(0)
    }

    async fn receive_events(&self, events: Vec<InboundEvent>) -> Vec<Result<bool, InboundError>> {
        let is_full = self.is_full.load(Ordering::Relaxed);
        let results =
            events.iter().map(|_| if is_full { Err(InboundError::Full) } else { Ok(true) });
        let results = results.collect();
        if !is_full {
            self.events.lock().unwrap().extend(events);
        }
        results
    }

    async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError> {
        Ok(Vec::new())
    }

    async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError> {
        assert_eq!(page.stream, "chats");
        *self.cursor.lock().unwrap() = page.cursor;
        Ok(PageResult::default())
    }

    async fn cursor(&self, _stream: &str) -> Result<Option<String>, InboundError> {
        Ok(self.cursor.lock().unwrap().clone())
    }

    async fn store_bytes<'a>(
        &'a self,
        _bytes: std::pin::Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError> {
        Err(InboundError::Full)
    }

    fn report(&self, event: ConnectionEvent) {
        self.reports.lock().unwrap().push(event);
    }
}

#[test]
fn limits_are_those_of_telegram() {
    let adapter = adapter("https://api.telegram.org", "");
    let rate = |text: &str| text.parse::<Rate>().unwrap();
    let user = adapter.send_limits(EndpointKind::User);
    assert_eq!((user.per_target, user.per_tunnel), (vec![rate("1/s")], vec![rate("30/s")]));
    let group = adapter.send_limits(EndpointKind::Group);
    assert_eq!(group.per_target, [rate("1/s"), rate("20/min")]);
    let live = config(&format!("token: {TOKEN}\nsend_rate: 100/s\ngroup_rate: 50/s")).unwrap();
    adapter.apply_live(&live);
    let group = adapter.send_limits(EndpointKind::Channel);
    assert_eq!(group.per_target, [rate("100/s"), rate("50/s")]);
    assert_eq!(group.per_tunnel, [rate("100/s")], "never less than that of one chat");
    assert!(!adapter.accepts_idempotency_keys() && !adapter.finds_sent());
    assert!(!format!("{adapter:?}").contains("AAHdq"));
}

#[tokio::test]
async fn probe_names_bot_webhook_and_privacy_mode() {
    let me = r#"{"ok":true,"result":{"id":7,"is_bot":true,"username":"test_bot"}}"#;
    let info = r#"{"ok":true,"result":{"url":"https://x.example.com/y","pending_update_count":2}}"#;
    let (_server, url) = server(&[(200, me), (200, info)]);
    let report = adapter(&url, "").probe().await.unwrap();
    assert_eq!(report.lines[0], ("token".to_owned(), "ok, @test_bot (7)".to_owned()));
    assert!(report.warnings[0].starts_with("a webhook is set at https://x.example.com, so"));
    let wrong = r#"{"ok":false,"error_code":401,"description":"Unauthorized"}"#;
    let (_server, url) = server(&[(401, wrong)]);
    let failure = adapter(&url, "").probe().await.unwrap_err();
    assert!(matches!(failure, Failure::Permanent { .. }) && failure.detail().contains("token"));
}

#[tokio::test]
async fn migrated_ids_are_loaded_and_stored() {
    let adapter = adapter("https://api.telegram.org", "");
    let sink = EventSink::default();
    *sink.cursor.lock().unwrap() = Some(r#"{"-1007":-7}"#.to_owned());
    let migrations = &adapter.intake.migrations;
    assert!(!migrations.is_stored(Duration::from_millis(1)).await, "nothing is loaded");
    let work = async {
        assert!(migrations.is_stored(Duration::from_secs(5)).await);
        assert_eq!(migrations.session_of(-1007), -7);
        migrations.insert(-5, -1005);
        assert!(migrations.is_stored(Duration::from_secs(5)).await);
    };
    tokio::select! {
        () = work => {}
        () = migrations.keep_stored(&sink) => {}
    }
    assert_eq!(sink.cursor.lock().unwrap().as_deref(), Some(r#"{"-1007":-7,"-1005":-5}"#));
}

#[test]
fn webhooks_are_for_webhook_mode() {
    let request = WebhookRequest {
        headers: &HeaderMap::new(),
        query: "",
        body: b"{}",
        now: Timestamp::from_ms(0),
    };
    let found = adapter("https://api.telegram.org", "").parse_webhook(&request);
    assert_eq!(found, Err(WebhookError::NotSupported));
}
