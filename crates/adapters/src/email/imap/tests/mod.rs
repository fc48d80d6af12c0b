//! The IMAP client against a server that the tests play.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use monoco_core::config::{Secret, SecretSource};
use monoco_core::inbound::{
    ChatPosition, FetchedMail, InboundAttachment, InboundEvent, InboundMessage, RawMail,
    StoredBytes,
};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::retry::Backoff;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{ImapTiming, listener};
use crate::email::config::{Backfill, EmailConfig};
use crate::net::{MailServer, TlsMode};
use crate::{ConnectionEvent, InboundError, InboundPage, InboundSink, PageResult};

mod fake_server;
mod login;
mod quirks;
mod scanning;

use fake_server::{FakeMail, FakeServer, ServerReaction, mail};

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store in memory.
#[derive(Default)]
struct MemorySink {
    state: Mutex<MemoryState>,
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct MemoryState {
    mails: Vec<FetchedMail>,
    cursors: HashMap<String, String>,
    events: Vec<ConnectionEvent>,
    /// How many pages fail before one is stored.
    failing_pages: u32,
    largest_page: u64,
}

#[async_trait]
impl InboundSink for MemorySink {
    async fn receive(
        &self,
        _message: InboundMessage,
        _attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        panic!("mails are received in pages")
    }

    async fn receive_events(&self, _events: Vec<InboundEvent>) -> Vec<Result<bool, InboundError>> {
        panic!("mails are received in pages")
    }

    async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError> {
        Ok(Vec::new())
    }

    async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError> {
        let mut state = self.state.lock().unwrap();
        if state.failing_pages > 0 && !page.mails.is_empty() {
            state.failing_pages -= 1;
            return Err(InboundError::Full);
        }
        let bytes = |mail: &FetchedMail| match &mail.raw {
            RawMail::Bytes(bytes) => bytes.len() as u64,
            _ => 0,
        };
        state.largest_page = state.largest_page.max(page.mails.iter().map(bytes).sum());
        // As the store does: a mail that is registered again is a duplicate.
        for mail in page.mails {
            let is_same = |known: &FetchedMail| {
                (&known.folder, known.uid_validity, known.uid)
                    == (&mail.folder, mail.uid_validity, mail.uid)
            };
            if !state.mails.iter().any(is_same) {
                state.mails.push(mail);
            }
        }
        if let Some(cursor) = page.cursor {
            state.cursors.insert(page.stream, cursor);
        }
        drop(state);
        self.changed.send_replace(());
        Ok(PageResult::default())
    }

    async fn cursor(&self, stream: &str) -> Result<Option<String>, InboundError> {
        Ok(self.state.lock().unwrap().cursors.get(stream).cloned())
    }

    async fn store_bytes<'a>(
        &'a self,
        mut bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError> {
        let mut all = Vec::new();
        let read = bytes.read_to_end(&mut all).await;
        read.map_err(|error| InboundError::Unavailable(error.to_string()))?;
        Ok(StoredBytes { hash: ObjId::of(ObjKind::Msg, &all), size: all.len() as u64 })
    }

    fn report(&self, event: ConnectionEvent) {
        self.state.lock().unwrap().events.push(event);
        self.changed.send_replace(());
    }
}

impl MemorySink {
    /// Waits until `condition` is true.
    async fn until(&self, what: &str, condition: impl Fn(&MemoryState) -> bool) {
        let mut changed = self.changed.subscribe();
        let wait = async {
            while !condition(&self.state.lock().unwrap()) {
                let _ = changed.changed().await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            let state = self.state.lock().unwrap();
            panic!("never: {what}; {:?} {:?}", subjects(&state.mails), state.events);
        }
    }

    /// Waits until all folders were scanned this number of times.
    async fn until_scanned(&self, times: usize) {
        self.until("scanned", |state| state.scans() >= times).await;
    }

    async fn until_mails(&self, count: usize) {
        self.until("mails", |state| state.mails.len() >= count).await;
    }

    fn subjects(&self) -> Vec<String> {
        subjects(&self.state.lock().unwrap().mails)
    }

    fn cursor_of(&self, folder: &str) -> String {
        self.state.lock().unwrap().cursors[folder].clone()
    }

    /// The errors of lost connections.
    fn errors(&self) -> Vec<String> {
        self.state.lock().unwrap().errors()
    }
}

impl MemoryState {
    fn scans(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, ConnectionEvent::Scanned { .. })).count()
    }

    fn errors(&self) -> Vec<String> {
        let error = |event: &ConnectionEvent| match event {
            ConnectionEvent::Lost(error) => Some(error.clone()),
            _ => None,
        };
        self.events.iter().filter_map(error).collect()
    }
}

fn subjects(mails: &[FetchedMail]) -> Vec<String> {
    mails.iter().map(|mail| mail.subject.clone()).collect()
}

fn config(server: &FakeServer) -> EmailConfig {
    EmailConfig {
        address: "team@example.com".to_owned(),
        description: None,
        username: "team".to_owned(),
        password: Some(SecretSource::Value(Secret::new("secret"))),
        auth: None,
        imap: MailServer {
            host: "127.0.0.1".to_owned(),
            port: server.port,
            tls: TlsMode::Plain,
            ca_file: None,
            proxy: None,
        },
        smtp: None,
        authserv_id: None,
        folders: vec!["INBOX".to_owned()],
        backfill: Backfill::All,
        deliver: true,
        forward: Vec::new(),
        mark_seen: false,
        poll: Duration::from_millis(20),
        idle: true,
        max_mail: 3 << 20,
        from_name: None,
        sent_folder: None,
    }
}

fn timing() -> ImapTiming {
    let backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(20) };
    ImapTiming {
        command: Duration::from_secs(10),
        silence: Duration::from_secs(10),
        done: Duration::from_millis(200),
        idle: Duration::from_secs(60),
        reopen: Duration::from_secs(60),
        connect_backoff: backoff,
        login_backoff: backoff,
    }
}

/// A listener that runs until it is stopped or dropped.
struct Watching {
    sink: Arc<MemorySink>,
    scan_now: Arc<Notify>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Watching {
    fn start(config: EmailConfig) -> Self {
        Self::start_with(config, timing(), Arc::default())
    }

    fn start_with(config: EmailConfig, timing: ImapTiming, sink: Arc<MemorySink>) -> Self {
        let (scan_now, stop) = (Arc::new(Notify::new()), CancellationToken::new());
        let (shared, waker, token) = (sink.clone(), scan_now.clone(), stop.clone());
        let task = TaskTracker::new().spawn(async move {
            listener::listen(&config, timing, &waker, &*shared, &token).await;
        });
        Self { sink, scan_now, stop, task }
    }

    /// Stops the listener and returns what it stored.
    async fn stop(self) -> Arc<MemorySink> {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.expect("the listener stops").unwrap();
        self.sink
    }
}
