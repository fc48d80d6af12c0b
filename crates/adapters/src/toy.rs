//! Provider `toy`: shows that a provider is one module and one line in `registry.rs`.
//!
//! It receives one greeting when it starts and keeps what it is asked to deliver.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use monoco_core::config::{ConfigSection, InvalidConfig};
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::TunnelId;
use monoco_core::inbound::{ChatSession, ChatSessionKind, InboundMessage, Participant};
use monoco_core::retry::Failure;
use monoco_core::time::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::registry::{AdapterResources, ProviderConfig};
use crate::{Adapter, DeliveryRequest, InboundSink};

/// The keys of a toy tunnel.
#[derive(Clone, Debug)]
pub struct ToyConfig {
    greeting: String,
}

impl ProviderConfig for ToyConfig {
    const PROVIDER: &'static str = "toy";

    fn parse(section: &ConfigSection<'_>, _enabled: bool) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&["greeting"])?;
        Ok(Self { greeting: section.required("greeting")?.text()? })
    }

    fn mode(&self) -> &'static str {
        "memory"
    }

    fn changed_keys(&self, new: &Self) -> Vec<&'static str> {
        if self.greeting == new.greeting { Vec::new() } else { vec!["greeting"] }
    }

    fn build(&self, id: TunnelId, _: &AdapterResources) -> Result<Arc<dyn Adapter>, String> {
        Ok(Arc::new(Toy { id, config: self.clone(), sent: Mutex::default() }))
    }
}

struct Toy {
    id: TunnelId,
    config: ToyConfig,
    sent: Mutex<Vec<String>>,
}

#[async_trait]
impl Adapter for Toy {
    fn id(&self) -> &TunnelId {
        &self.id
    }

    fn provider(&self) -> &'static str {
        ToyConfig::PROVIDER
    }

    fn mode(&self) -> &'static str {
        self.config.mode()
    }

    fn accepts_idempotency_keys(&self) -> bool {
        false
    }

    async fn listen(&self, sink: &dyn InboundSink, stop: CancellationToken) -> Result<(), Failure> {
        let id = "ann".to_owned();
        let kind = ChatSessionKind::Direct;
        let session = ChatSession { id: id.clone(), kind, ..ChatSession::default() };
        let from = Participant::user(id, None);
        let message = InboundMessage::new("1", session, from, self.config.greeting.clone());
        let stored = sink.receive(message, Vec::new()).await;
        stored
            .map_err(|error| Failure::Permanent { detail: error.to_string(), error_code: None })?;
        stop.cancelled().await;
        Ok(())
    }

    async fn deliver(&self, request: &DeliveryRequest<'_>) -> DeliveryOutcome {
        let mut sent = self.sent.lock().unwrap();
        sent.push(request.message.text.clone());
        DeliveryOutcome::Accepted { external_msg_id: Some(format!("toy-{}", sent.len())) }
    }
}

mod tests {
    use std::path::Path;
    use std::pin::Pin;

    use monoco_core::config::{ConfigEnvironment, ConfigFile, Secret};
    use monoco_core::did::{Did, EndpointKind};
    use monoco_core::inbound::{ChatPosition, InboundAttachment, InboundEvent, StoredBytes};
    use monoco_core::object::{ObjId, ObjKind};
    use monoco_core::outgoing::OutgoingMessage;
    use monoco_core::record::RecordId;

    use tokio::io::AsyncRead;

    use super::*;
    use crate::delivery_fixture::{MemoryFiles, RecordedParts};
    use crate::registry::{self, AdapterConfig};
    use crate::{ConnectionEvent, InboundError, InboundPage, PageResult};

    struct NoEnvironment;

    impl ConfigEnvironment for NoEnvironment {
        fn variable(&self, _name: &str) -> Option<String> {
            None
        }

        fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
            Err("there are no files".to_owned())
        }
    }

    /// Stops the adapter after the first message.
    struct OneMessageSink {
        received: Mutex<Vec<InboundMessage>>,
        stop: CancellationToken,
    }

    #[async_trait]
    impl InboundSink for OneMessageSink {
        async fn receive(
            &self,
            message: InboundMessage,
            _attachments: Vec<InboundAttachment>,
        ) -> Result<bool, InboundError> {
            self.received.lock().unwrap().push(message);
            self.stop.cancel();
            Ok(true)
        }

        async fn receive_events(
            &self,
            events: Vec<InboundEvent>,
        ) -> Vec<Result<bool, InboundError>> {
            let mut results = Vec::new();
            for event in events {
                let InboundEvent::Message { message, attachments } = event else {
                    panic!("the toy sends messages only")
                };
                results.push(self.receive(message, attachments).await);
            }
            results
        }

        async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError> {
            Ok(Vec::new())
        }

        async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError> {
            let new = page.messages.len();
            for (message, attachments) in page.messages {
                self.receive(message, attachments).await?;
            }
            Ok(PageResult { new, duplicates: 0 })
        }

        async fn cursor(&self, _stream: &str) -> Result<Option<String>, InboundError> {
            Ok(None)
        }

        async fn store_bytes<'a>(
            &'a self,
            _bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
        ) -> Result<StoredBytes, InboundError> {
            Err(InboundError::Unavailable("this sink stores no bytes".to_owned()))
        }

        fn report(&self, _event: ConnectionEvent) {}
    }

    fn parse(yaml: &str) -> Result<Arc<dyn AdapterConfig>, String> {
        let file = ConfigFile::parse(yaml).unwrap();
        let section = file.root(&NoEnvironment).unwrap();
        registry::find("toy").unwrap().parse(&section, true).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_registered_provider_receives_and_sends() {
        let resources = AdapterResources::for_tests_of_connections();
        let config = parse("greeting: hello").unwrap();
        let adapter = config.build("play".parse().unwrap(), &resources).unwrap();
        assert_eq!((adapter.id().as_str(), adapter.provider()), ("play", "toy"));

        let stop = CancellationToken::new();
        let sink = OneMessageSink { received: Mutex::default(), stop: stop.clone() };
        adapter.listen(&sink, stop).await.unwrap();
        assert_eq!(sink.received.lock().unwrap()[0].text, "hello");

        let did: Did = "did:msgtunnel:play".parse().unwrap();
        let text = r#"{"from": "did:monoco:me", "content": {"content": "hi"}}"#;
        let message = OutgoingMessage::parse(text).unwrap();
        let request = DeliveryRequest {
            address: "ann",
            kind: EndpointKind::User,
            message: &message,
            files: &MemoryFiles::default(),
            sent_parts: &[],
            progress: &RecordedParts::default(),
            key: RecordId::delivery(&did, &did, &ObjId::of(ObjKind::Msg, b"1")),
            first_attempt_ago: std::time::Duration::ZERO,
            now: Timestamp::from_ms(0),
        };
        let outcome = adapter.deliver(&request).await;
        let external_msg_id = Some("toy-1".to_owned());
        assert_eq!(outcome, DeliveryOutcome::Accepted { external_msg_id });
    }

    #[test]
    fn a_registered_provider_checks_its_own_keys() {
        let error = parse("greting: hello").unwrap_err();
        assert_eq!(error, "line 1, column 1: unknown key `greting`; did you mean `greeting`?");
        assert_eq!(parse("{}").unwrap_err(), "greeting: is missing");
        let (old, new) = (parse("greeting: a").unwrap(), parse("greeting: b").unwrap());
        assert_eq!(old.changed_keys(new.as_ref()), ["greeting"]);
        assert!(old.changed_keys(old.as_ref()).is_empty());
        assert_eq!(old.changed_keys(&crate::stub::StubConfig::default()), ["provider"]);
    }
}
