//! Conformance tests of erasure: what a person wrote is gone, and all ids still work.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use monoco_core::claim::{MailLocation, Workspace};
use monoco_core::delivery::SendState;
use monoco_core::erasure::{ERASED_TEXT, ErasedAuthors};
use monoco_core::inbound::Artifact;
use monoco_core::letter::{LetterState, Verdict, WorkerVerdict};
use monoco_core::mail::MailId;
use monoco_core::object::ObjKind;
use monoco_core::receipt::ReceiptStatus;
use monoco_core::retry::RetryPolicy as Retry;

use super::inbound::{
    in_room, inbound_message, merge_due, store_inbound, unmerged_count, with_message,
};
use super::letters::{accept_duplicate, accept_letter, letter, worker};
use super::mails::{list_mails, location_of, mail_texts, read_mail, store_mails};
use super::*;
use crate::StoreInboundResult::{Duplicate, Stored};
use crate::{
    ErasureCounts, ErasureRequest, LetterQuery, LetterSource, LetterStep, NextAction,
    OperatorAction, StoreInboundRequest,
};

/// The time of all erasures.
const ERASED: i64 = 500;

pub(super) fn of(names: &[&str]) -> ErasureRequest {
    let authors = ErasedAuthors(names.iter().map(|name| did(name)).collect());
    ErasureRequest { authors, ..ErasureRequest::default() }
}

/// The contact ann, and her account at the tunnel `lark`.
fn ann() -> ErasureRequest {
    of(&["ann", &endpoint("ann", "lark")])
}

/// Counts, erases and completes an erasure. The counts must agree.
async fn erase(store: &dyn Store, request: &ErasureRequest) -> ErasureCounts {
    let counted = store.count_erasure(request).await.unwrap();
    let erased = store.erase(request, at(ERASED)).await.unwrap();
    assert_eq!(counted, erased);
    assert_eq!(store.open_erasure().await.unwrap(), request.authors);
    store.finish_erasure().await.unwrap();
    assert_eq!(store.open_erasure().await.unwrap(), ErasedAuthors::default());
    assert_eq!(store.erased_attachments().await.unwrap(), []);
    erased
}

async fn assert_erased(store: &dyn Store, id: ObjId) {
    assert_matches!(store.object(id).await, Err(StoreError::Erased { at, .. }) if at == super::at(ERASED));
}

/// A message with attachments.
pub(super) fn with_files(request: StoreInboundRequest, files: &[&[u8]]) -> StoreInboundRequest {
    let artifact = |bytes: &&[u8]| Artifact {
        name: "file".to_owned(),
        mime_type: "text/plain".to_owned(),
        hash: Some(ObjId::of(ObjKind::Bytes, bytes)),
        ..Artifact::default()
    };
    let artifacts = files.iter().map(artifact).collect();
    let attachments = files.iter().map(|bytes| bytes.to_vec()).collect();
    StoreInboundRequest { attachments, ..with_message(request, |it| it.artifacts = artifacts) }
}

pub(crate) async fn messages_of_an_author_become_tombstones(home: &dyn TestHome) {
    let store = home.open().await;
    let long = "long ".repeat(60_000);
    let (short, large) = (chat("ann", &["bob"], "hello"), chat("ann", &["bob"], &long));
    let other = chat("cat", &["bob"], "to stay");
    for msg in [&short, &large, &other] {
        dispatch(&*store, without_tunnel(msg.clone())).await;
    }
    let counts = erase(&*store, &of(&["ann"])).await;
    assert_eq!(counts, ErasureCounts { objects: 2, ..ErasureCounts::default() });
    drop(store);

    let store = &*home.open().await;
    for msg in [&short, &large] {
        assert_erased(store, msg.id()).await;
        let record = RecordId::record(&did("bob"), BoxKind::Inbox, &msg.id());
        let record = store.record(record).await.unwrap();
        assert_eq!(record.reading.state.name(), ReadState::Archived);
        let trace = store.trace(msg.id()).await.unwrap();
        assert_eq!((trace.erased_at, trace.body), (Some(at(ERASED)), None));
        assert_eq!(trace.records.len(), 1);
        assert_eq!(trace.events.last().unwrap().kind.as_str(), "erased");
    }
    assert_eq!(lease_next_record(store, "bob", 600).await.unwrap().message, other);
    assert!(lease_next_record(store, "bob", 600).await.is_none());
    assert_eq!(store.missing_blobs(10).await.unwrap(), (0, Vec::new()));
    assert_eq!(store.damaged_rows(), [""; 0]);
    let sessions = store.sessions(&did("bob"), FULL_PAGE).await.unwrap();
    let bodies = sessions.entries.iter().filter(|session| session.last.body.is_some());
    assert_eq!((sessions.entries.len(), bodies.count()), (2, 1), "lists go on");
    // The same message again is still a duplicate, and brings no text back.
    for msg in [&short, &large] {
        assert_eq!(dispatch(store, without_tunnel(msg.clone())).await, "again: bob/INBOX");
        assert_erased(store, msg.id()).await;
    }
    assert_eq!(store.missing_blobs(10).await.unwrap().0, 0);
    // By hand, a record can be unread again. It has nothing to read.
    dispatch(store, without_tunnel(chat("ann", &["bob"], "new"))).await;
    assert_eq!(leased_text(&lease_next_record(store, "bob", 600).await.unwrap()), "new");
}

/// A store can look up more records than one batch leases.
pub(crate) async fn leases_after_an_erasure_return_no_erased_text(home: &dyn TestHome) {
    let store = &*home.open().await;
    for n in 0..20 {
        let author = if n % 2 == 0 { "ann" } else { "cat" };
        dispatch(store, without_tunnel(chat(author, &["bob"], &n.to_string()))).await;
    }
    join_all((0..4).map(|_| lease_next_record(store, "bob", 1))).await;
    erase(store, &of(&["ann"])).await;
    let mut texts = Vec::new();
    while let Some(leased) = lease_next_record(store, "bob", 2).await {
        texts.push(leased_text(&leased));
    }
    assert_eq!(texts, ["5", "7", "9", "11", "13", "15", "17", "19"]);
}

pub(crate) async fn unknown_person_is_reported_and_nothing_is_erased(store: &dyn Store) {
    dispatch_text(store, "hello").await;
    let events = event_kinds(store).await;
    assert_matches!(
        store.count_erasure(&of(&["nemo"])).await,
        Err(StoreError::Missing { what: "person with the DID", .. })
    );
    let counts = store.count_erasure(&of(&["ann"])).await.unwrap();
    assert_eq!(counts.objects, 1);
    assert_eq!(event_kinds(store).await, events, "counting changes nothing");
    assert_eq!(inbox_contents(store, "bob").await, "hello UNREAD");
    // Bob has received it, and has written nothing.
    assert_eq!(store.count_erasure(&of(&["bob"])).await.unwrap(), ErasureCounts::default());
}

pub(crate) async fn mail_of_several_authors_is_rewritten(home: &dyn TestHome) {
    let store = home.open().await;
    let large = "secret ".repeat(20_000);
    store_inbound(&*store, inbound_message("1", "ann", &large), 0).await;
    store_inbound(&*store, inbound_message("2", "bob", "to stay"), 1).await;
    merge_due(&*store, 60).await;
    store_mails(&*store, &["alone"], 100).await;
    let rows = list_mails(&*store).await;
    let (old, alone) = (rows[0].entry.clone(), rows[1].entry.clone());
    let group: Did = "did:msgtunnel:room.group.lark".parse().unwrap();
    let old_record = RecordId::record(&group, BoxKind::GroupInbox, &old.msg_id);
    assert_eq!(store.record(old_record).await.unwrap().msg_id, old.msg_id);
    let shared = Workspace::shared();
    let (agent, now) = (holder("agent"), at(200));
    store.claim(&old.id, &shared, agent, lease_for(60), Retry::CLAIM, now).await.unwrap();
    let change = *store.newest_file_change().borrow();
    let progress = crate::FileProgress { index_bytes: 99, ..Default::default() };
    store.set_file_progress(COURIER, progress).await.unwrap();

    let counts = erase(&*store, &ann()).await;
    let expected =
        ErasureCounts { objects: 1, mails: 1, external_ids: 2, files: 2, ..Default::default() };
    assert_eq!(counts, expected);
    drop(store);

    let store = &*home.open().await;
    let rows = list_mails(store).await;
    let new = &rows[0];
    assert_eq!((&new.entry.id, new.entry.seq), (&old.id, old.seq));
    assert_ne!(new.entry.msg_id, old.msg_id);
    assert_eq!(new.entry.erased_at, Some(at(ERASED)));
    assert_eq!(new.location, MailLocation::Inbound);
    assert!(new.claim.is_some(), "the claim stays");
    let mail = read_mail(store, new).await;
    let texts: Vec<_> = mail.messages.iter().map(|message| message.text.as_str()).collect();
    assert_eq!(texts, [ERASED_TEXT, "to stay"]);
    assert_eq!(new.entry.sha256, monoco_core::mail::digest(mail.render().as_bytes()));
    // The old ids lead to the new object.
    let by = Some(new.entry.msg_id);
    assert_matches!(store.object(old.msg_id).await, Err(StoreError::Erased { by: found, .. }) if found == by);
    assert_eq!(store.record(old_record).await.unwrap().msg_id, new.entry.msg_id);
    for id in ["1", "2"] {
        assert_eq!(store.find_by_external_id(id).await.unwrap(), new.entry.msg_id);
    }
    for id in [old.msg_id, new.entry.msg_id] {
        let trace = store.trace(id).await.unwrap();
        assert_eq!((trace.msg_id, trace.erased_at), (new.entry.msg_id, None));
        assert!(trace.events.iter().any(|event| event.kind.as_str() == "merged"));
    }
    // The Mail of the person alone has no file, no claim and no text.
    let tombstone = &rows[1];
    assert_eq!((&tombstone.entry.id, tombstone.location), (&alone.id, MailLocation::Removed));
    assert_eq!(tombstone.entry.tombstone(), Some(at(ERASED)));
    assert_eq!(tombstone.entry.preview, ERASED_TEXT);
    assert_erased(store, alone.msg_id).await;
    let (agent, now) = (holder("agent"), at(600));
    let claim = store.claim(&alone.id, &shared, agent, lease_for(60), Retry::CLAIM, now).await;
    assert_matches!(claim, Err(StoreError::Erased { .. }));
    // Files and index follow.
    let changes = store.list_file_changes(change, 10).await.unwrap();
    assert_eq!(changes.len(), 2);
    assert_eq!(store.file_progress(COURIER).await.unwrap().index_bytes, 0);
    assert_eq!(store.missing_blobs(10).await.unwrap(), (0, Vec::new()));
    for (id, from) in [("1", "ann"), ("alone", "ann")] {
        assert_eq!(store_inbound(store, inbound_message(id, from, "again"), 700).await, Duplicate);
    }
}

pub(crate) async fn claim_of_an_erased_mail_can_still_end(store: &dyn Store) {
    let ids = store_mails(store, &["dead", "held"], 0).await;
    let shared = Workspace::shared();
    let mut epochs = Vec::new();
    for id in &ids {
        let term = lease_for(600);
        let claim = store.claim(id, &shared, holder("a"), term, Retry::CLAIM, at(1)).await.unwrap();
        epochs.push(claim.claiming.epoch);
    }
    let reason = "quotes the secret".to_owned();
    let fail = crate::ClaimUpdate::Fail { reason, retryable: false, retry: Retry::CLAIM };
    let proof = |at: usize| by_epoch(epochs[at]);
    store.update_claim(&ids[0], &shared, proof(0), fail, at(2)).await.unwrap();
    assert_eq!(store.dead_claims(10).await.unwrap().len(), 1);
    erase(store, &ann()).await;
    assert_eq!(store.dead_claims(10).await.unwrap(), []);
    let complete = crate::ClaimUpdate::Complete;
    store.update_claim(&ids[1], &shared, proof(1), complete, at(600)).await.unwrap();
    for id in &ids {
        assert_eq!(location_of(store, id).await, MailLocation::Removed);
        assert!(store.claims(id).await.unwrap().iter().all(|claim| claim.reason.is_none()));
    }
    let events = store.events(0, 1_000).await.unwrap();
    assert!(events.iter().all(|event| !event.detail.to_string().contains("secret")), "{events:?}");
}

pub(crate) async fn unmerged_messages_of_the_person_are_deleted(store: &dyn Store) {
    for (id, from, room) in [("1", "ann", "a"), ("2", "bob", "a"), ("3", "ann", "b")] {
        store_inbound(store, in_room(room, inbound_message(id, from, id)), 0).await;
    }
    let counts = erase(store, &ann()).await;
    let expected =
        ErasureCounts { inbound_messages: 2, external_ids: 2, ..ErasureCounts::default() };
    assert_eq!((counts, unmerged_count(store).await), (expected, 1));
    assert_eq!(merge_due(store, 60).await, 1);
    assert_eq!(mail_texts(store).await, "2");
    assert_eq!(store_inbound(store, inbound_message("1", "ann", "again"), 61).await, Duplicate);
    assert_eq!(store_inbound(store, inbound_message("4", "ann", "new"), 61).await, Stored);
}

pub(crate) async fn attachments_without_other_references_are_deleted(home: &dyn TestHome) {
    let store = home.open().await;
    let id = |bytes: &[u8]| ObjId::of(ObjKind::Bytes, bytes);
    let (own, shared, in_draft, waiting) = (&b"own"[..], &b"shared"[..], &b"draft"[..], &b"w"[..]);
    let first = with_files(inbound_message("1", "ann", "a"), &[own, shared, in_draft]);
    store_inbound(&*store, first.clone(), 0).await;
    store_inbound(&*store, with_files(inbound_message("2", "bob", "b"), &[shared]), 1).await;
    merge_due(&*store, 60).await;
    let last = with_files(in_room("x", inbound_message("3", "ann", "c")), &[waiting, own]);
    store_inbound(&*store, last.clone(), 100).await;
    let sent = json!({"from": did("me"), "to": [did("bob")], "kind": "chat", "content":
        {"refs": [{"role": "attachment", "target": {"hash": id(b"sent")}}]}});
    store.put_blob(b"sent".to_vec()).await.unwrap();
    dispatch(&*store, without_tunnel(MsgObject::from_json(sent).unwrap())).await;

    let request = ErasureRequest { attachments_in_use: BTreeSet::from([id(in_draft)]), ..ann() };
    let counted = store.count_erasure(&request).await.unwrap();
    assert_eq!((counted.attachments, counted.mails, counted.inbound_messages), (2, 1, 1));
    assert_eq!(store.erase(&request, at(ERASED)).await.unwrap(), counted);
    let deleted: BTreeSet<_> = store.erased_attachments().await.unwrap().into_iter().collect();
    assert_eq!(deleted, BTreeSet::from([id(own), id(waiting)]), "for the copies of the courier");
    drop(store);
    let store = &*home.open().await;
    store.finish_erasure().await.unwrap();
    // A copy that the provider sends again is a duplicate, with its attachments.
    for again in [first, last] {
        assert_eq!(store_inbound(store, again, 600).await, Duplicate);
    }
    for (bytes, is_kept) in
        [(own, false), (shared, true), (in_draft, true), (waiting, false), (b"sent", true)]
    {
        assert_eq!(store.object(id(bytes)).await.is_ok(), is_kept, "{bytes:?}");
    }
    assert_eq!(store.missing_blobs(10).await.unwrap(), (0, Vec::new()));
}

pub(crate) async fn letters_of_the_person_are_erased(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    let large = "secret ".repeat(20_000);
    let key = Some("key".to_owned());
    let submitted = |text: &str| LetterSource::Submitted {
        letter: monoco_core::letter::Letter { from: did("ann").to_string(), ..letter(text) },
        tunnel: None,
        key: key.clone(),
        origin: SendOrigin::Owner,
    };
    let first = accept_letter(&*store, submitted(&large), 0).await;
    let inbound = LetterSource::Inbound(inbound_message("1", "ann", "secret"));
    let inbound = accept_letter(&*store, inbound, 0).await;
    let sent = chat("ann", &[&endpoint("oc_1", "lark")], "secret");
    let source = LetterSource::Send(send_request(sent.clone()));
    let send = accept_letter(&*store, source.clone(), 0).await;
    let other = accept_letter(&*store, super::letters::submitted("to stay"), 0).await;
    // The worker changes the text and the author, quotes the text, and the chain ends.
    let row = store.letter(send).await.unwrap();
    let changed = chat("list", &[&endpoint("oc_1", "lark")], "secret, changed");
    let note = Some("because of the secret".to_owned());
    let verdict = WorkerVerdict { worker: worker("spam"), result: Verdict::Pass, at: at(1), note };
    let step = LetterStep {
        id: send,
        revision: row.revision,
        letter: Some(letter("secret, changed")),
        in_object: false,
        verdicts: vec![verdict],
        reservations: Vec::new(),
        joins: Vec::new(),
        duty: None,
        then: NextAction::Send(Box::new(send_request(changed.clone()))),
    };
    store.step_letters(vec![step], at(1)).await.remove(0).unwrap();

    assert_eq!(store.count_erasure(&ann()).await.unwrap().letters, 3);
    let revision = store.letter(first).await.unwrap().revision;
    let counts = store.erase(&ann(), at(ERASED)).await.unwrap();
    assert_eq!((counts.letters, counts.objects), (3, 2));
    store.finish_erasure().await.unwrap();
    // A worker that had the letter answers late, with its text.
    let late = LetterStep {
        id: first,
        revision,
        letter: Some(letter(&large)),
        in_object: false,
        verdicts: Vec::new(),
        reservations: Vec::new(),
        joins: Vec::new(),
        duty: None,
        then: NextAction::Wait { worker: None, due: at(2) },
    };
    assert_matches!(
        store.step_letters(vec![late], at(600)).await.remove(0),
        Err(StoreError::Conflict { .. })
    );
    drop(store);

    let store = &*home.open().await;
    for (id, state) in
        [(first, LetterState::Trashed), (inbound, LetterState::Trashed), (send, LetterState::Done)]
    {
        assert_matches!(store.letter(id).await, Err(StoreError::Erased { .. }));
        for action in [OperatorAction::Restore, OperatorAction::Replay] {
            let moved = store.move_letter(id, action, at(600)).await;
            assert_matches!(moved, Err(StoreError::Erased { .. }));
        }
        let all = store.letters(LetterQuery::default(), FULL_PAGE).await.unwrap().entries;
        let row = all.iter().find(|row| row.id == id).unwrap();
        assert_eq!((row.status.standing.name(), row.erased_at), (state, Some(at(ERASED))));
        assert!(row.verdicts.iter().all(|verdict| verdict.note.is_none()));
    }
    assert_eq!(store.letter(other).await.unwrap().letter.data, "to stay");
    assert_eq!(accept_duplicate(store, submitted(&large)).await, first);
    assert_eq!(accept_duplicate(store, source).await, send);
    for msg in [sent, changed] {
        assert_erased(store, msg.id()).await;
    }
    assert_eq!(tunnel_states(store, "lark").await, [SendState::Deleted]);
    let events = store.events(0, 1_000).await.unwrap();
    assert!(events.iter().all(|event| !event.detail.to_string().contains("secret")), "{events:?}");
    assert_eq!(store.missing_blobs(10).await.unwrap(), (0, Vec::new()));
}

async fn tunnel_states(store: &dyn Store, tunnel: &str) -> Vec<SendState> {
    let page = store.deliveries(&tunnel_id(tunnel).did(), &[], FULL_PAGE).await.unwrap();
    page.entries.iter().map(|delivery| delivery.sending.state.name()).collect()
}

pub(crate) async fn waiting_deliveries_of_the_person_are_deleted(store: &dyn Store) {
    put_lark_tunnel(store).await;
    for text in ["waits", "is sent now"] {
        send_message(store, chat("ann", &[&endpoint("oc_1", "lark")], text)).await;
    }
    let leased = lease_next_delivery(store, "lark", 1).await.unwrap().entry;
    erase(store, &ann()).await;
    assert_eq!(tunnel_states(store, "lark").await, [SendState::Deleted; 2]);
    let outcome = monoco_core::delivery::DeliveryOutcome::Accepted { external_msg_id: None };
    let report = store.report_delivery(leased.id, outcome, by_epoch(1), RETRY, at(600)).await;
    assert_matches!(report, Err(StoreError::InvalidTransition(_)));
    assert!(lease_next_delivery(store, "lark", 600).await.is_none());
}

pub(crate) async fn contact_bindings_and_reasons_of_the_person_are_removed(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "me").await;
    add_contact(store, "ann", ContactLevel::Friend).await;
    add_contact(store, "bob", ContactLevel::Friend).await;
    store.bind(&did("ann"), binding("lark", "ann", 0), at(0)).await.unwrap();
    store.bind(&did("ann"), binding("lark", "ann-2", 0), at(0)).await.unwrap();
    store.bind(&did("bob"), binding("lark", "bob", 0), at(0)).await.unwrap();
    add_group(store, "team", &["ann"]).await;
    let msg = group_chat("team", "bob", "vote");
    dispatch(store, without_tunnel(msg.clone())).await;
    let (team, reason) = (did("team"), Some("because of the secret".to_owned()));
    let status = ReceiptStatus::Rejected;
    let receipt = store.set_receipt(&team, msg.id(), &did("ann"), status, reason, at(1)).await;
    let receipt = receipt.unwrap().id();

    let counts = erase(store, &ann()).await;
    assert_eq!((counts.contacts, counts.bindings, counts.objects), (1, 2, 1));
    assert_matches!(store.contact(&did("ann")).await, Err(StoreError::Missing { .. }));
    assert_eq!(store.contacts_by_name("ann", 10).await.unwrap(), []);
    assert_eq!(store.contact(&did("bob")).await.unwrap().bindings.len(), 1);
    assert_erased(store, receipt).await;
    let receipts = store.receipts(&team, msg.id(), None).await.unwrap();
    assert_eq!((receipts[0].status, &receipts[0].reason), (status, &None));

    // The account alone: the contact stays, without the binding.
    let counts = erase(store, &of(&[&endpoint("bob", "lark")])).await;
    assert_eq!((counts.contacts, counts.bindings), (0, 1));
    assert_eq!(store.contact(&did("bob")).await.unwrap().bindings, []);
    // The owner of the courier stays local.
    let me = ErasureRequest { owner: Some(did("me")), ..of(&["me"]) };
    erase(store, &me).await;
    assert!(store.contact(&did("me")).await.unwrap().here);
    let events = store.events(0, 1_000).await.unwrap();
    let erasures = events.iter().filter(|event| event.kind.as_str() == "erased");
    assert!(erasures.clone().count() >= 3);
    for event in erasures {
        assert!(!event.detail.to_string().contains("did:"), "{event:?}");
    }
}

pub(crate) async fn interrupted_erasure_is_continued_with_the_next_one(home: &dyn TestHome) {
    let store = home.open().await;
    dispatch(&*store, without_tunnel(chat("ann", &["bob"], "hello"))).await;
    store_mails(&*store, &["1"], 0).await;
    store.erase(&ann(), at(ERASED)).await.unwrap();
    drop(store);
    let store = home.open().await;
    assert_eq!(store.open_erasure().await.unwrap(), ann().authors);
    dispatch(&*store, without_tunnel(chat("ann", &["bob"], "written meanwhile"))).await;
    dispatch(&*store, without_tunnel(chat("cat", &["bob"], "hello"))).await;
    let counts = store.erase(&of(&["cat"]), at(ERASED)).await.unwrap();
    assert_eq!(counts.objects, 2);
    store.finish_erasure().await.unwrap();
    assert_eq!(store.open_erasure().await.unwrap(), ErasedAuthors::default());
    let again = store.erase(&ann(), at(ERASED)).await.unwrap();
    assert_eq!(again, ErasureCounts::default());
    store.finish_erasure().await.unwrap();
    let ids = [MailId::of("lark", &tunnel_id("lark"), "1")];
    assert_eq!(store.unknown_mails(ids.to_vec()).await.unwrap(), []);
}

pub(crate) async fn rewritten_mails_are_found_in_a_large_store(home: &dyn TestHome) {
    let store = home.open().await;
    // More objects than a bulk index of the tests holds in memory.
    for n in 0..40 {
        let (ann, bob) = (format!("{n}-ann"), format!("{n}-bob"));
        let room = n.to_string();
        store_inbound(&*store, in_room(&room, inbound_message(&ann, "ann", "x")), n).await;
        store_inbound(&*store, in_room(&room, inbound_message(&bob, "bob", &bob)), n).await;
        merge_due(&*store, n + 60).await;
    }
    let old: Vec<_> = list_mails(&*store).await.into_iter().map(|row| row.entry.msg_id).collect();
    assert_eq!(erase(&*store, &ann()).await.mails, 40);
    check_rewritten(&*store, &old).await;
    drop(store);
    check_rewritten(&*home.open().await, &old).await;
}

async fn check_rewritten(store: &dyn Store, old: &[ObjId]) {
    let new = list_mails(store).await;
    assert_eq!(new.len(), old.len());
    for (row, old) in new.iter().zip(old) {
        assert_eq!(read_mail(store, row).await.messages.len(), 2);
        assert_eq!(store.trace(*old).await.unwrap().msg_id, row.entry.msg_id);
    }
}
