//! Tests of erasures that a crash has interrupted.

use monoco_core::object::ObjKind;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::courier::test_hub::TestHub;

fn eraser(hub: &TestHub) -> TextEraser {
    let projector =
        Arc::new(FileProjector::new(Arc::clone(hub.store()), hub.tree(), TestHub::COURIER));
    TextEraser { projector, search: hub.search(), clock: hub.clock, owner: TestHub::owner() }
}

/// Writes all files, as a courier that stops.
async fn write_files(eraser: &TextEraser) {
    let stopped = CancellationToken::new();
    stopped.cancel();
    Arc::clone(&eraser.projector).run(stopped).await;
}

#[tokio::test]
async fn start_completes_an_erasure_that_was_interrupted_after_the_store() {
    let hub = TestHub::new().await;
    hub.receive_on("ci", "webhook", &["1", "2"], &[b"text of the attachment"]).await;
    write_files(&eraser(&hub)).await;
    assert!(hub.files().values().filter(|text| text.contains("text of")).count() >= 4);
    let authors = ErasedAuthors(["did:msgtunnel:ann.user.ci".parse().unwrap()].into());
    let request = ErasureRequest { authors: authors.clone(), ..ErasureRequest::default() };
    hub.store().erase(&request, hub.clock.now()).await.unwrap();
    let attachment = ObjId::of(ObjKind::Bytes, b"text of the attachment");
    assert_eq!(hub.store().erased_attachments().await.unwrap(), [attachment]);
    assert!(hub.files().values().any(|text| text.contains("text of")), "files follow");

    let restarted = eraser(&hub);
    restarted.clone().resume().await;
    let files = hub.files();
    assert!(files.values().all(|text| !text.contains("text of")), "{files:#?}");
    assert_eq!(hub.store().open_erasure().await.unwrap(), ErasedAuthors::default());
    assert_eq!(hub.index().matches("[erased]").count(), 2, "{}", hub.index());
    assert_eq!(hub.names(), [""; 0]);
    // A second time there is nothing to do, and the files stay as they are.
    restarted.clone().resume().await;
    assert_eq!(restarted.erase(authors).await.unwrap(), ForgetCounts::default());
    write_files(&restarted).await;
    assert!(hub.files().values().all(|text| !text.contains("text of")));
}

#[tokio::test]
async fn attachment_of_a_draft_that_can_be_sent_stays() {
    let hub = TestHub::new().await;
    hub.receive_on("ci", "webhook", &["1"], &[b"in both"]).await;
    let eraser = eraser(&hub);
    write_files(&eraser).await;
    let hash = ObjId::of(ObjKind::Bytes, b"in both");
    let outbound = hub.mailbox().join("outbound/webhook");
    std::fs::create_dir_all(&outbound).unwrap();
    let draft = format!("---\nto: bob\nartifacts: [{{name: a, hash: \"{hash}\"}}]\n---\n\nhello\n");
    std::fs::write(outbound.join("draft.md"), draft).unwrap();
    let ann = ErasedAuthors(["did:msgtunnel:ann.user.ci".parse().unwrap()].into());
    assert_eq!(eraser.count(ann.clone()).await.unwrap().stored.attachments, 0);
    let erased = eraser.erase(ann).await.unwrap();
    assert_eq!((erased.stored.objects, erased.stored.attachments, erased.drafts), (1, 0, 0));
    assert_eq!(hub.store().object(hash).await.unwrap(), b"in both");
    assert!(outbound.join("draft.md").exists());
    // The owner wrote the draft.
    let me = ErasedAuthors([TestHub::owner()].into());
    hub.store().put_contact(owner_contact(), hub.clock.now()).await.unwrap();
    assert_eq!(eraser.erase(me).await.unwrap().drafts, 1);
    assert!(!outbound.join("draft.md").exists());
}

fn owner_contact() -> monoco_core::contact::Contact {
    let (did, level) = (TestHub::owner(), monoco_core::contact::ContactLevel::Friend);
    let (names, bindings) = (Vec::new(), Vec::new());
    monoco_core::contact::Contact { did, names, level, here: true, bindings }
}
