//! Pages with cursors, streams, and what the tunnel's health shows of them.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use monoco_adapters::stub::Stub;
use monoco_core::inbound::{ChatSession, FetchedMail, Participant, RawMail};
use monoco_core::merge::Debounce;
use monoco_core::tunnel_health::TunnelStatus;
use monoco_store::TunnelLabels;
use tokio::io::ReadBuf;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::courier::intake_quota::IntakeQuota;
use crate::courier::test_hub::TestHub;
use crate::courier::tunnels::TunnelSettings;

struct Fixture {
    hub: TestHub,
    entry: PipelineEntry,
    tunnel: RunningTunnel,
}

impl Fixture {
    async fn new() -> Self {
        let hub = TestHub::new().await;
        let stub = Arc::new(Stub::new("door".parse().unwrap()));
        let settings = TunnelSettings {
            debounce: Debounce::DEFAULT,
            labels: TunnelLabels::default(),
            max_file_bytes: 1 << 20,
        };
        let (quota, stop) = (IntakeQuota::new(1 << 30, hub.clock.now()), CancellationToken::new());
        let tunnel = RunningTunnel::new(stub, settings, quota, stop.clone(), stop);
        Self { hub, entry: PipelineEntry::default(), tunnel }
    }

    fn sink(&self) -> DurableInboundSink<'_> {
        let (store, clock) = (self.hub.store(), self.hub.clock);
        DurableInboundSink { store, clock, entry: &self.entry, tunnel: &self.tunnel }
    }
}

fn message(id: &str) -> (InboundMessage, Vec<InboundAttachment>) {
    let session = ChatSession { id: "room".to_owned(), ..ChatSession::default() };
    let message = InboundMessage::new(id, session, Participant::user("ann", None), "hi");
    (message, Vec::new())
}

fn mail(uid: u32, raw: RawMail) -> FetchedMail {
    FetchedMail {
        folder: "INBOX".to_owned(),
        uid_validity: 1,
        uid,
        internal_date: None,
        subject: String::new(),
        date: None,
        size: 1,
        raw,
    }
}

fn page(cursor: &str, messages: &[&str], mails: Vec<FetchedMail>) -> InboundPage {
    InboundPage {
        stream: "INBOX".to_owned(),
        cursor: Some(cursor.to_owned()),
        messages: messages.iter().map(|id| message(id)).collect(),
        mails,
    }
}

#[tokio::test]
async fn page_is_stored_once_with_its_cursor() {
    let fixture = Fixture::new().await;
    let sink = fixture.sink();
    assert_eq!(sink.cursor("INBOX").await, Ok(None));
    let mails = || (1..=3).map(|uid| mail(uid, RawMail::Bytes(format!("mail {uid}").into_bytes())));
    let first = page("a", &["1", "2"], mails().collect());
    let result = sink.receive_page(first.clone()).await;
    assert_eq!(result, Ok(PageResult { new: 5, duplicates: 0 }));
    assert_eq!(sink.receive_page(first).await, Ok(PageResult { new: 0, duplicates: 5 }));
    assert_eq!(sink.cursor("INBOX").await.unwrap().as_deref(), Some("a"));
    assert_eq!(sink.cursor("Archive").await, Ok(None), "each stream has its own");
    assert_eq!(fixture.tunnel.health().received, 5);
    sink.receive_page(page("b", &[], Vec::new())).await.unwrap();
    assert_eq!(sink.cursor("INBOX").await.unwrap().as_deref(), Some("b"));
    let without = InboundPage { cursor: None, ..page("", &["3"], Vec::new()) };
    assert_eq!(sink.receive_page(without).await.unwrap().new, 1);
    assert_eq!(sink.cursor("INBOX").await.unwrap().as_deref(), Some("b"));
}

#[tokio::test]
async fn page_that_is_not_stored_does_not_move_the_cursor() {
    let fixture = Fixture::new().await;
    let sink = fixture.sink();
    let missing = StoredBytes { hash: ObjId::of(ObjKind::Bytes, b"not stored"), size: 10 };
    for _ in 0..3 {
        let mails = vec![mail(1, RawMail::Stored(missing))];
        assert!(sink.receive_page(page("a", &[], mails)).await.is_err());
    }
    assert_eq!(sink.cursor("INBOX").await, Ok(None));
    let health = fixture.tunnel.health();
    assert_eq!(health.status(fixture.hub.clock.now()), TunnelStatus::Deaf);
    assert!(health.last_error.is_some());
}

#[tokio::test]
async fn mails_over_the_daily_quota_stay_on_the_server() {
    let fixture = Fixture::new().await;
    let sink = fixture.sink();
    fixture.tunnel.quota.set_limit(1000);
    let large = |uid| vec![mail(uid, RawMail::Bytes(vec![b'a' + u8::try_from(uid).unwrap(); 800]))];
    assert_eq!(sink.receive_page(page("a", &[], large(1))).await.unwrap().new, 1);
    let Err(InboundError::Unavailable(why)) = sink.receive_page(page("b", &[], large(2))).await
    else {
        panic!("over the quota")
    };
    assert!(why.contains("max_mb_per_day"), "{why}");
    assert_eq!(sink.cursor("INBOX").await.unwrap().as_deref(), Some("a"));
    assert!(fixture.tunnel.health().last_error.is_some());
    fixture.tunnel.quota.set_limit(10_000);
    assert_eq!(sink.receive_page(page("b", &[], large(2))).await.unwrap().new, 1);
}

/// Fails after some bytes, like a connection that is lost.
struct LostConnection(usize);

impl AsyncRead for LostConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0 == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let part = self.0.min(buffer.remaining());
        buffer.put_slice(&vec![b'x'; part]);
        self.0 -= part;
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn stream_is_stored_by_its_hash() {
    let fixture = Fixture::new().await;
    let sink = fixture.sink();
    let bytes = vec![b'x'; 3 << 20];
    let stored = sink.store_bytes(Box::pin(&bytes[..])).await.unwrap();
    let hash = ObjId::of(ObjKind::Bytes, &bytes);
    assert_eq!(stored, StoredBytes { hash, size: 3 << 20 });
    assert_eq!(fixture.hub.store().object(hash).await.unwrap(), bytes);
    let result = sink.receive_page(page("a", &[], vec![mail(1, RawMail::Stored(stored))])).await;
    assert_eq!(result.unwrap().new, 1);
    let lost = sink.store_bytes(Box::pin(LostConnection(2 << 20))).await;
    assert!(matches!(lost, Err(InboundError::Unavailable(_))), "{lost:?}");
}
