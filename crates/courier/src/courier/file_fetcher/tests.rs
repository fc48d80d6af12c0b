//! Files of a scripted adapter, through the sink, the fetcher and the merge.

use std::collections::VecDeque;
use std::io;

use async_trait::async_trait;
use monoco_adapters::{Adapter, DeliveryRequest, InboundSink};
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::inbound::{
    Artifact, ChatSession, ChatSessionKind, InboundEvent, InboundMessage, MessageEdit,
    MessageRecall, Participant,
};
use monoco_core::mail::Mail;
use monoco_core::merge::Debounce;
use monoco_core::object::{ObjId, ObjKind};
use monoco_store::TunnelLabels;

use super::*;
use crate::center::PipelineEntry;
use crate::courier::inbound::DurableInboundSink;
use crate::courier::intake_quota::IntakeQuota;
use crate::courier::test_hub::TestHub;
use crate::courier::tunnels::TunnelSettings;

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);

/// What one call of `open_file` does.
enum Answer {
    Bytes(&'static [u8]),
    Fails(Failure),
    /// Fails after these bytes.
    Breaks(&'static [u8]),
    Hangs,
    Panics,
}

/// An adapter whose files are scripted.
struct ScriptedFiles {
    id: TunnelId,
    answers: Mutex<HashMap<String, VecDeque<Answer>>>,
    opened: Mutex<Vec<String>>,
    busy: watch::Sender<usize>,
}

/// Counts a download that hangs as ended when it is dropped.
struct EndedDownload<'a>(&'a watch::Sender<usize>);

impl Drop for EndedDownload<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|busy| *busy -= 1);
    }
}

#[async_trait]
impl Adapter for ScriptedFiles {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        "stub"
    }

    fn mode(&self) -> &'static str {
        "memory"
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    async fn open_file(&self, handle: &str) -> Result<FileDownload, Failure> {
        self.opened.lock().unwrap().push(handle.to_owned());
        let answer = self.answers.lock().unwrap().get_mut(handle).and_then(VecDeque::pop_front);
        let file = |bytes: &'static [u8]| FileDownload {
            name: Some("from-provider.txt".to_owned()),
            mime_type: None,
            size: None,
            bytes: Box::pin(bytes),
        };
        match answer.unwrap_or(Answer::Hangs) {
            Answer::Bytes(bytes) => Ok(file(bytes)),
            Answer::Fails(failure) => Err(failure),
            Answer::Breaks(bytes) => {
                let broken = tokio_util::io::StreamReader::new(futures_util::stream::iter([
                    Ok(bytes),
                    Err(io::Error::other("connection lost")),
                ]));
                Ok(FileDownload { bytes: Box::pin(broken), ..file(b"") })
            }
            Answer::Hangs => {
                self.busy.send_modify(|busy| *busy += 1);
                let _ended = EndedDownload(&self.busy);
                std::future::pending().await
            }
            Answer::Panics => panic!("scripted"),
        }
    }

    async fn listen(&self, _: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        stop.cancelled().await;
        Ok(())
    }

    async fn deliver(&self, _: &DeliveryRequest<'_>) -> DeliveryOutcome {
        DeliveryOutcome::Accepted { external_msg_id: None }
    }
}

struct Fixture {
    hub: TestHub,
    adapter: Arc<ScriptedFiles>,
    tunnel: Arc<RunningTunnel>,
    tunnels: Arc<TunnelRegistry>,
    tasks: TaskGroup,
}

impl Fixture {
    async fn new(answers: Vec<(&str, Vec<Answer>)>) -> Self {
        let hub = TestHub::new().await;
        let answers =
            answers.into_iter().map(|(handle, answers)| (handle.to_owned(), answers.into()));
        let adapter = Arc::new(ScriptedFiles {
            id: "files".parse().unwrap(),
            answers: Mutex::new(answers.collect()),
            opened: Mutex::default(),
            busy: watch::Sender::new(0),
        });
        let settings = TunnelSettings {
            debounce: Debounce {
                window: Duration::from_millis(50),
                max_wait: Duration::from_millis(50),
            },
            labels: TunnelLabels::default(),
            max_file_bytes: 1 << 20,
        };
        let (quota, stop) = (IntakeQuota::new(0, hub.clock.now()), CancellationToken::new());
        let shared: Arc<dyn Adapter> = Arc::clone(&adapter) as _;
        let tunnel = Arc::new(RunningTunnel::new(shared, settings, quota, stop.clone(), stop));
        let tunnels = Arc::<TunnelRegistry>::default();
        tunnels.set(vec![Arc::clone(&tunnel)], Vec::new());
        Self { hub, adapter, tunnel, tunnels, tasks: TaskGroup::default() }
    }

    async fn receive(&self, events: Vec<InboundEvent>) -> Vec<bool> {
        let entry = PipelineEntry::default();
        let (store, clock) = (self.hub.store(), self.hub.clock);
        let sink = DurableInboundSink { store, clock, entry: &entry, tunnel: &self.tunnel };
        let results = sink.receive_events(events).await;
        results.into_iter().map(|result| result.unwrap()).collect()
    }

    fn start(&self) {
        let store = Arc::clone(self.hub.store());
        let (clock, tunnels) = (self.hub.clock, Arc::clone(&self.tunnels));
        let fetcher = FileFetcher::new(store, clock, tunnels, self.tasks.clone());
        self.tasks.spawn(fetcher.run(self.tasks.stop.clone()));
    }

    /// Merges until there is a Mail, and returns it.
    async fn mail(&self) -> Mail {
        let merge = crate::courier::merge::MergeLoop {
            store: Arc::clone(self.hub.store()),
            clock: self.hub.clock,
            owner: TestHub::owner(),
            tunnels: Arc::clone(&self.tunnels),
        };
        let (stop, store) = (CancellationToken::new(), self.hub.store());
        let looped = Arc::new(merge).run(stop.clone());
        let wait = async {
            loop {
                let entries = store.list_index_entries(0, 10).await.unwrap();
                if let Some(entry) = entries.first() {
                    let text = store.object(entry.entry.msg_id).await.unwrap();
                    let text = String::from_utf8(text).unwrap();
                    break Mail::read(entry.entry.msg_id, &text).unwrap();
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = looped => panic!("the merge loop ended"),
            mail = tokio::time::timeout(PATIENCE, wait) => match mail {
                Ok(mail) => mail,
                Err(_) => {
                    let counts = store.counts().await;
                    let events = store.events(0, 100).await;
                    panic!("no Mail: {counts:?} {events:?}")
                }
            },
        }
    }
}

fn message(id: &str, handles: &[&str]) -> InboundMessage {
    let kind = ChatSessionKind::Group;
    let session = ChatSession { id: "room".to_owned(), kind, ..ChatSession::default() };
    let mut message = InboundMessage::new(id, session, Participant::user("ann", None), "see file");
    message.artifacts = handles
        .iter()
        .map(|handle| Artifact { fetch: Some((*handle).to_owned()), ..Artifact::default() })
        .collect();
    message
}

fn received(message: InboundMessage) -> InboundEvent {
    InboundEvent::Message { message, attachments: Vec::new() }
}

fn temporary_failure() -> Failure {
    Failure::Temporary { detail: "busy".to_owned(), retry_after_ms: None, error_code: None }
}

#[tokio::test]
async fn file_is_fetched_after_its_message_is_stored() {
    let fixture = Fixture::new(vec![("a", vec![Answer::Bytes(b"hello")])]).await;
    assert_eq!(fixture.receive(vec![received(message("1", &["a"]))]).await, [true]);
    fixture.start();
    let mail = fixture.mail().await;
    let file = &mail.messages[0].artifacts[0];
    let hash = ObjId::of(ObjKind::Bytes, b"hello");
    assert_eq!(
        (file.hash, file.size, file.name.as_str()),
        (Some(hash), Some(5), "from-provider.txt")
    );
    assert_eq!(fixture.hub.store().object(hash).await.unwrap(), b"hello");
    assert_eq!(*fixture.adapter.opened.lock().unwrap(), ["a"]);
    fixture.tasks.finish().await;
}

#[tokio::test]
async fn failed_fetch_is_repeated_and_leaves_no_half_file() {
    let failures = vec![Answer::Breaks(b"hal"), Answer::Panics, Answer::Bytes(b"half of it")];
    let fixture = Fixture::new(vec![("a", failures)]).await;
    fixture.receive(vec![received(message("1", &["a"]))]).await;
    fixture.start();
    let file = fixture.mail().await.messages[0].artifacts[0].clone();
    assert_eq!(file.hash, Some(ObjId::of(ObjKind::Bytes, b"half of it")));
    let half = fixture.hub.store().object(ObjId::of(ObjKind::Bytes, b"hal")).await;
    assert!(matches!(half, Err(StoreError::Missing { .. })), "{half:?}");
    assert_eq!(fixture.adapter.opened.lock().unwrap().len(), 3);
    fixture.tasks.finish().await;
}

#[tokio::test]
async fn mail_names_files_that_cannot_be_fetched() {
    static LARGE: [u8; (1 << 20) + 1] = [b'x'; (1 << 20) + 1];
    let gone = Failure::Permanent { detail: "file was deleted".to_owned(), error_code: None };
    let answers = vec![("a", vec![Answer::Fails(gone)]), ("b", vec![Answer::Bytes(&LARGE)])];
    let fixture = Fixture::new(answers).await;
    fixture.receive(vec![received(message("1", &["a", "b"]))]).await;
    fixture.start();
    let mail = fixture.mail().await;
    let missing: Vec<_> =
        mail.messages[0].artifacts.iter().map(|it| it.missing.as_deref().unwrap()).collect();
    let large = "larger than 1 MiB, which is max_file_mb of the tunnel";
    assert_eq!(missing, ["file was deleted", large]);
    fixture.tasks.finish().await;
}

#[tokio::test]
async fn file_that_was_being_fetched_is_fetched_after_a_restart() {
    let answers = vec![Answer::Fails(temporary_failure()), Answer::Hangs, Answer::Bytes(b"x")];
    let fixture = Fixture::new(vec![("a", answers)]).await;
    fixture.receive(vec![received(message("1", &["a"]))]).await;
    fixture.start();
    let mut busy = fixture.adapter.busy.subscribe();
    tokio::time::timeout(PATIENCE, busy.wait_for(|busy| *busy == 1)).await.unwrap().unwrap();
    fixture.tasks.finish().await;
    let fixture = Fixture { tasks: TaskGroup::default(), ..fixture };
    fixture.start();
    let file = fixture.mail().await.messages[0].artifacts[0].clone();
    assert_eq!(file.hash, Some(ObjId::of(ObjKind::Bytes, b"x")));
    fixture.tasks.finish().await;
}

/// Four downloads that hang would otherwise keep the tunnel from fetching anything for 300 s.
#[tokio::test]
async fn download_ends_when_its_message_is_recalled() {
    let fixture = Fixture::new(vec![("next", vec![Answer::Bytes(b"x")])]).await;
    fixture.receive(vec![received(message("1", &["a", "b", "c", "d"]))]).await;
    fixture.start();
    let mut busy = fixture.adapter.busy.subscribe();
    let all = busy.wait_for(|busy| *busy == MAX_FETCHES_PER_TUNNEL);
    tokio::time::timeout(PATIENCE, all).await.unwrap().unwrap();
    let recall = MessageRecall {
        recall_id: "r".to_owned(),
        message_id: "1".to_owned(),
        session: message("1", &[]).session,
        by: None,
        at: None,
    };
    fixture.receive(vec![InboundEvent::Recall(recall), received(message("2", &["next"]))]).await;
    tokio::time::timeout(PATIENCE, busy.wait_for(|busy| *busy == 0)).await.unwrap().unwrap();
    let mail = fixture.mail().await;
    assert!(mail.messages[1].artifacts[0].hash.is_some(), "{:?}", mail.messages);
    fixture.tasks.finish().await;
}

#[tokio::test]
async fn few_files_of_a_tunnel_are_fetched_at_once() {
    let fixture = Fixture::new(Vec::new()).await;
    let handles: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    let handles: Vec<_> = handles.iter().map(String::as_str).collect();
    fixture.receive(vec![received(message("1", &handles))]).await;
    fixture.start();
    let mut busy = fixture.adapter.busy.subscribe();
    let four = busy.wait_for(|busy| *busy >= MAX_FETCHES_PER_TUNNEL);
    tokio::time::timeout(PATIENCE, four).await.unwrap().unwrap();
    let more = tokio::time::timeout(BUSY_INTERVAL * 2, busy.wait_for(|busy| *busy > 4)).await;
    assert!(more.is_err(), "{more:?}");
    fixture.tasks.finish().await;
}

#[tokio::test]
async fn batch_is_stored_in_order_and_an_invalid_event_fails_alone() {
    let fixture = Fixture::new(Vec::new()).await;
    let edited = InboundMessage { text: "edited".to_owned(), ..message("1", &[]) };
    let recall = MessageRecall {
        recall_id: "r".to_owned(),
        message_id: "2".to_owned(),
        session: edited.session.clone(),
        by: None,
        at: None,
    };
    let events = vec![
        received(message("1", &[])),
        InboundEvent::Edit(MessageEdit { edit_id: "e".to_owned(), message: edited }),
        received(message("2", &[])),
        InboundEvent::Recall(recall),
        received(message("1", &[])),
    ];
    assert_eq!(fixture.receive(events).await, [true, true, true, true, false]);
    let mail = fixture.mail().await;
    let texts: Vec<_> = mail.messages.iter().map(|it| it.text.as_str()).collect();
    assert_eq!(texts, ["edited", "[recalled by its author]"]);
    let entry = PipelineEntry::default();
    let (store, clock) = (fixture.hub.store(), fixture.hub.clock);
    let sink = DurableInboundSink { store, clock, entry: &entry, tunnel: &fixture.tunnel };
    let results =
        sink.receive_events(vec![received(message("", &[])), received(message("3", &[]))]).await;
    assert!(results[0].is_err() && results[1] == Ok(true), "{results:?}");
}
