//! Runs the conformance tests on SQLite, and tests guarantees that only SQLite gives.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use async_trait::async_trait;
use futures_util::future::join_all;
use monoco_core::claim::{MailLocation, Workspace};
use monoco_core::did::Did;
use monoco_core::erasure::ErasedAuthors;
use monoco_core::event::{Event, EventKind};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::mail::MailId;
use monoco_core::object::{MsgObject, ObjKind};
use monoco_core::record::{BoxKind, ReadState};
use monoco_core::retry::{Jitter, RetryPolicy};
use monoco_core::time::Timestamp;
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::AsyncReadExt;

use super::*;
use crate::conformance::{
    TestHome, erasure, letter_model, mail_model, mails as conformance_mails, store_model,
};
use crate::sqlite::{self, SqliteStore};
use crate::{
    DispatchOutcome, DispatchRequest, DispatchResult, DraftStore, ErasureRequest, ErasureStore,
    EventStore, JitteredRetry, MailStore, ObjectStore, PageRequest, RecordFilter, RecordStore,
    RetentionStore, SessionStore, SharedStore, StatusStore,
};

#[async_trait]
impl TestHome for TempDir {
    async fn open(&self) -> SharedStore {
        Arc::new(SqliteStore::open(self.path()).unwrap())
    }
}

pub(super) fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

mod conformance {
    crate::conformance::conformance_tests!(crate::sql::tests::home);
}

/// Opens stores that merge their bulk indexes after every 3 entries.
struct MergingHome(TempDir);

#[async_trait]
impl TestHome for MergingHome {
    async fn open(&self) -> SharedStore {
        Arc::new(sqlite::open_with(self.0.path(), 3).unwrap())
    }
}

#[test]
fn store_histories_match_the_model() {
    store_model::histories_match_the_model(|| MergingHome(home()));
}

#[test]
fn mail_histories_match_the_model() {
    mail_model::histories_match_the_model(|| MergingHome(home()));
}

#[test]
fn letter_histories_match_the_model() {
    letter_model::histories_match_the_model(|| MergingHome(home()));
}

#[tokio::test]
async fn rewritten_mails_are_found_when_bulk_indexes_are_merged() {
    erasure::rewritten_mails_are_found_in_a_large_store(&MergingHome(home())).await;
}

/// The files below `dir` that contain `text`.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if fs::read(&path).unwrap().windows(text.len()).any(|it| it == text.as_bytes()) {
            found.push(path);
        }
    }
    found
}

/// Rows that were deleted or moved long before leave copies in unused parts of pages.
#[tokio::test]
async fn no_file_has_an_erased_text() {
    // Not a word of the schema, which is in the database as well.
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    for n in 0..300 {
        let text = format!("hushed {n} {}", "x".repeat(n * 40 % 3_000));
        dispatch(&store, chat(&text)).await;
        let db = Connection::open(dir.path().join("monoco.db")).unwrap();
        let sql = "INSERT INTO inbound_messages (merge_window, external_id, message)
                   VALUES (1, (SELECT coalesce(max(external_id), 0) + 1 FROM inbound_messages), ?1)";
        db.execute(sql, [&text]).unwrap();
        if n % 3 == 2 {
            db.execute("DELETE FROM inbound_messages WHERE external_id % 3 <> 0", []).unwrap();
        }
    }
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute("DELETE FROM inbound_messages", []).unwrap();
    drop(db);
    dispatch(&store, chat(&"hushed ".repeat(30_000))).await;
    // A crash after the file and before the row of a message or a letter.
    let lost = chat(&"hushed, lost ".repeat(10_000));
    let letter = json!({"from": "did:web:ann", "to": [], "data": lost.canonical()}).to_string();
    let other = json!({"from": "did:web:bob", "to": [], "data": lost.canonical()}).to_string();
    let other = other.replace("hushed", "of bob");
    store.put_file(lost.id(), lost.canonical().as_bytes().to_vec()).await.unwrap();
    let ids = [&letter, &other].map(|text| ObjId::of(ObjKind::Bytes, text.as_bytes()));
    store.blobs.put(&ids[0], letter.as_bytes()).unwrap();
    store.blobs.put(&ids[1], other.as_bytes()).unwrap();
    assert!(files_with(dir.path(), "hushed").len() >= 4, "in the database and in blobs");
    let authors = ErasedAuthors(["did:web:ann".parse().unwrap()].into());
    let request = ErasureRequest { authors, ..ErasureRequest::default() };
    assert_eq!(store.erase(&request, NOON).await.unwrap().objects, 301);
    store.finish_erasure().await.unwrap();
    assert!(files_with(dir.path(), "hushed").is_empty(), "while the store is open");
    assert_eq!(files_with(dir.path(), "of bob").len(), 1);
    dispatch(&store, chat("the next message")).await;
    drop(store);
    let store = SqliteStore::open(dir.path()).unwrap();
    assert_eq!(record_count(&store).await, 302);
    assert!(files_with(dir.path(), "hushed").is_empty());
}

/// The rewrite of the database fills the log, which wakes the checkpointer.
#[tokio::test]
async fn database_is_compacted_beside_the_checkpointer() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let text = "x".repeat(8_000);
    let request = |n: u32| DispatchRequest {
        msg: chat(&format!("{n} {text}")),
        tunnel: None,
        external_id: None,
    };
    for result in store.dispatch((0..2_000).map(request).collect(), NOON).await {
        result.unwrap();
    }
    for _ in 0..5 {
        store.finish_erasure().await.unwrap();
        let log = fs::metadata(dir.path().join("monoco.db-wal")).unwrap().len();
        assert!(log < 1 << 20, "{log} bytes of log");
    }
}

pub(super) const NOON: Timestamp = Timestamp::from_ms(1_770_000_000_000);

pub(super) fn chat(text: &str) -> MsgObject {
    let msg = json!({"from": "did:web:ann", "to": ["did:web:bob"], "kind": "chat",
                     "content": {"content": text}});
    MsgObject::from_json(msg).unwrap()
}

async fn dispatch(store: &SqlStore, msg: MsgObject) -> DispatchResult {
    let one = DispatchRequest { msg, tunnel: None, external_id: None };
    store.dispatch(vec![one], NOON).await.remove(0).unwrap()
}

async fn record_count(store: &SqlStore) -> usize {
    let window = PageRequest { beyond: None, limit: 1_000, newest_first: false };
    let bob = "did:web:bob".parse().unwrap();
    store
        .records(&bob, BoxKind::Inbox, &RecordFilter::default(), window)
        .await
        .unwrap()
        .entries
        .len()
}

/// Changes one byte after each occurrence of `text` in the files below `dir`.
pub(super) fn damage(dir: &Path, text: &str) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            damage(&path, text);
            continue;
        }
        let mut bytes = fs::read(&path).unwrap();
        let hits: Vec<_> = bytes
            .windows(text.len())
            .enumerate()
            .filter(|(_, window)| *window == text.as_bytes())
            .map(|(at, _)| at)
            .collect();
        for at in hits {
            bytes[at] ^= 1;
        }
        fs::write(&path, bytes).unwrap();
    }
}

#[tokio::test]
async fn damaged_object_is_not_returned() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let (small, large) = (chat("treasure"), chat(&"treasure ".repeat(10_000)));
    let bytes = store.put_blob(b"treasure".to_vec()).await.unwrap();
    dispatch(&store, small.clone()).await;
    dispatch(&store, large.clone()).await;
    drop(store);

    damage(dir.path(), "treasure");
    let store = SqliteStore::open(dir.path()).unwrap();
    for id in [small.id(), large.id(), bytes] {
        let body = store.object(id).await;
        assert!(matches!(body, Err(StoreError::Damaged { .. })), "{body:?}");
    }
    assert_eq!(store.trace(small.id()).await.unwrap().body, None, "the rest of the trace is shown");
}

/// The last part of a damaged attachment is not returned, so that a reader cannot take it for
/// complete.
#[tokio::test]
async fn damaged_blob_is_not_read_to_its_end() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let bytes = "treasure ".repeat(100_000).into_bytes();
    let changed = store.put_blob(bytes.clone()).await.unwrap();
    let cut = store.put_blob(bytes[1..].to_vec()).await.unwrap();
    damage(&dir.path().join("blobs"), "treasure");
    let hex = cut.to_string().split(':').next_back().unwrap().to_owned();
    fs::write(dir.path().join("blobs").join(&hex[..2]).join(&hex), "").unwrap();
    for (id, most) in [(changed, bytes.len() - 1), (cut, 0)] {
        let mut reader = store.open_blob(id).await.unwrap();
        let mut read = Vec::new();
        let error = reader.read_to_end(&mut read).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        assert!(read.len() <= most, "{}", read.len());
    }
    // Stored again, the damaged file is replaced.
    store.put_blob_from(&mut &bytes[..], u64::MAX).await.unwrap();
    assert_eq!(store.object(changed).await.unwrap(), bytes);
    assert_eq!(fs::read_dir(dir.path().join("blobs/tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn damaged_object_does_not_block_other_records() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    for text in ["treasure", &"treasure ".repeat(10_000), "still fine"] {
        dispatch(&store, chat(text)).await;
    }
    drop(store);
    damage(dir.path(), "treasure");

    let store = SqliteStore::open(dir.path()).unwrap();
    let (bob, holder) = ("did:web:bob".parse().unwrap(), Holder::anonymous());
    let take = || {
        let holder = holder.clone();
        store.lease_record(
            &bob,
            BoxKind::Inbox,
            holder,
            LeaseDuration::DEFAULT,
            Timestamp::from_ms(1),
        )
    };
    let leased = take().await.unwrap().unwrap();
    assert!(leased.message.canonical().contains("still fine"), "{leased:?}");
    assert_eq!(take().await.unwrap(), None, "damaged records are skipped");
    let events = store.events(0, 100).await.unwrap();
    let damaged = events.iter().filter(|event| event.kind == EventKind::Damaged).count();
    assert_eq!(damaged, 2);
}

#[tokio::test]
async fn lost_blob_file_is_reported_missing() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let large = chat(&"treasure ".repeat(10_000));
    dispatch(&store, large.clone()).await;
    fs::remove_dir_all(dir.path().join("blobs")).unwrap();
    assert!(matches!(store.object(large.id()).await, Err(StoreError::Missing { .. })));
}

#[tokio::test]
async fn closing_the_store_removes_the_write_ahead_log() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    dispatch(&store, chat("hello")).await;
    assert_eq!(record_count(&store).await, 1);
    drop(store);
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["blobs", "monoco.db"]);
}

#[tokio::test]
async fn newer_schema_is_rejected() {
    let dir = home();
    drop(SqliteStore::open(dir.path()).unwrap());
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.pragma_update(None, "user_version", 1_000).unwrap();
    drop(db);
    let rejected = SqliteStore::open(dir.path()).map(drop);
    let Err(StoreError::Unavailable(why)) = rejected else { panic!("{rejected:?}") };
    assert!(why.contains("schema 1000"), "{why}");
}

/// Runs `commands` in one commit: the writer thread is blocked until all of them are queued.
async fn together<T: Send + 'static>(
    store: &SqlStore,
    commands: Vec<impl Fn(&mut writer::Tx<'_>) -> Result<T, StoreError> + Send + 'static>,
) -> Vec<Result<T, StoreError>> {
    let (go, gate) = mpsc::channel::<()>();
    let held = store.writer.run(move |_| {
        // The gate stays open, because the writer may run a command twice.
        let _ = gate.recv();
        Ok(())
    });
    let commands = join_all(commands.into_iter().map(|work| store.writer.run(work)));
    // Polled in this order, so that all commands are queued before the gate opens.
    let ((), answers, ()) =
        tokio::join!(async { held.await.unwrap() }, commands, async { drop(go) });
    answers
}

fn note(tx: &writer::Tx<'_>, text: &str) {
    let sql = "INSERT INTO idempotency_keys (key, object) VALUES (?1, 0)";
    rows::execute(tx.db, sql, [text]).unwrap();
}

fn notes(store: &SqlStore) -> Vec<String> {
    let sql = "SELECT key FROM idempotency_keys ORDER BY key";
    store.readers.with(|db| rows::list(db, sql, [], |row| row.get(0))).unwrap()
}

#[tokio::test]
async fn failed_command_does_not_affect_other_commands_of_its_commit() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let command = |text: &'static str| {
        move |tx: &mut writer::Tx<'_>| {
            note(tx, text);
            contacts::party_id(tx, &format!("did:web:{text}").parse().unwrap())?;
            if text == "bad" { Err(StoreError::DiskFull) } else { Ok(text) }
        }
    };
    let answers = together(&store, vec![command("first"), command("bad"), command("last")]).await;
    assert!(
        matches!(&answers[..], [Ok("first"), Err(StoreError::DiskFull), Ok("last")]),
        "{answers:?}"
    );
    assert_eq!(notes(&store), ["first", "last"]);
    for (who, known) in [("first", true), ("bad", false), ("last", true)] {
        let did: Did = format!("did:web:{who}").parse().unwrap();
        let row = store.writer.run(move |tx| contacts::find_party_id(tx, &did)).await.unwrap();
        assert_eq!(row.is_some(), known, "{who}");
    }
}

#[tokio::test]
async fn failed_item_does_not_affect_the_rest_of_its_batch() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let batch = |texts: &'static [&'static str]| {
        move |tx: &mut writer::Tx<'_>| {
            tx.each(texts, |tx, text| {
                note(tx, text);
                if *text == "bad" { Err(StoreError::DiskFull) } else { Ok(*text) }
            })
        }
    };
    let batches = vec![batch(&["neighbour"]), batch(&["first", "bad", "last"])];
    let answers = together(&store, batches).await;
    let [Ok(_), Ok(answers)] = &answers[..] else { panic!("{answers:?}") };
    assert!(
        matches!(&answers[..], [Ok("first"), Err(StoreError::DiskFull), Ok("last")]),
        "{answers:?}"
    );
    assert_eq!(notes(&store), ["first", "last", "neighbour"]);
}

#[tokio::test]
async fn panic_in_a_command_does_not_stop_the_writer_thread() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let command = |text: &'static str| {
        move |tx: &mut writer::Tx<'_>| {
            note(tx, text);
            assert_ne!(text, "bad", "intended panic");
            Ok(())
        }
    };
    let answers = together(&store, vec![command("first"), command("bad"), command("last")]).await;
    assert!(
        matches!(&answers[..], [Ok(()), Err(StoreError::Unavailable(_)), Ok(())]),
        "{answers:?}"
    );
    assert_eq!(notes(&store), ["first", "last"]);
    dispatch(&store, chat("after the panic")).await;
    assert_eq!(record_count(&store).await, 1);
}

/// A list is read state by state. A record that changes its state meanwhile must be listed
/// exactly once.
#[tokio::test]
async fn list_is_one_snapshot() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    dispatch(&store, chat("hello")).await;
    let bob: Did = "did:web:bob".parse().unwrap();
    let holder = Holder::anonymous();
    let proof = || LeaseProof { epoch: None, holder: Holder::anonymous() };
    let change_state = async {
        for _ in 0..50 {
            let (now, term) = (NOON, LeaseDuration::DEFAULT);
            let leased =
                store.lease_record(&bob, BoxKind::Inbox, holder.clone(), term, now).await.unwrap();
            let id = leased.unwrap().entry.id;
            store.mark_record(id, ReadState::Unread, proof(), None, term, now).await.unwrap();
        }
    };
    let list = async {
        for _ in 0..100 {
            assert_eq!(record_count(&store).await, 1);
        }
    };
    tokio::join!(change_state, list);
}

#[tokio::test]
async fn queued_commands_run_before_the_store_closes() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let queued = store.writer.run(|tx| {
        note(tx, "queued");
        Ok(())
    });
    // Polled once, so that the command is queued, and then never again.
    assert!(futures_util::FutureExt::now_or_never(queued).is_none());
    drop(store);
    assert_eq!(notes(&SqliteStore::open(dir.path()).unwrap()), ["queued"]);
}

#[tokio::test]
async fn blob_and_message_ids_differ_for_the_same_hash() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let msg = chat("hello");
    dispatch(&store, msg.clone()).await;
    let as_bytes = ObjId::from_parts(ObjKind::Bytes, *msg.id().hash());
    let as_receipt = ObjId::from_parts(ObjKind::Receipt, *msg.id().hash());
    for id in [as_bytes, as_receipt] {
        assert!(matches!(store.object(id).await, Err(StoreError::Missing { .. })), "{id}");
    }
}

/// A copy of the files at any time is a store with all acknowledged messages, each once.
#[tokio::test]
async fn crash_during_an_index_merge_loses_nothing() {
    let (dir, rounds) = (home(), 12);
    let store = sqlite::open_with(dir.path(), 50).unwrap();
    let batch = |round: usize| -> Vec<DispatchRequest> {
        let one = |n| DispatchRequest {
            msg: chat(&format!("{round} {n}")),
            tunnel: Some("lark".parse().unwrap()),
            external_id: Some(format!("om_{round}_{n}")),
        };
        (0..20).map(one).collect()
    };
    for round in 0..rounds {
        assert!(store.dispatch(batch(round), NOON).await.iter().all(Result::is_ok));
        let copy = home();
        for file in ["monoco.db", "monoco.db-wal"] {
            fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let found = sqlite::open_with(copy.path(), 50).unwrap();
        for earlier in 0..=round {
            for answer in found.dispatch(batch(earlier), NOON).await {
                let DispatchOutcome::Delivered { duplicate, .. } = answer.unwrap().outcome else {
                    panic!("not delivered")
                };
                assert!(duplicate, "batch {earlier} after {round}");
            }
        }
        assert_eq!(record_count(&found).await, (round + 1) * 20);
        let (bob, ann) = ("did:web:bob".parse().unwrap(), "did:web:ann".parse().unwrap());
        let window = PageRequest { beyond: None, limit: 1_000, newest_first: true };
        let lines = found.session(&bob, &ann, window).await.unwrap();
        assert_eq!(lines.entries.len(), (round + 1) * 20);
    }
}

#[tokio::test]
async fn damaged_rows_are_passed_over_and_reported() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    for text in ["one", "two", "three"] {
        dispatch(&store, chat(text)).await;
    }
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute_batch(
        "UPDATE events SET kind = 'fabricated' WHERE seq = 1;
         UPDATE records SET box = 'INBOX', holder = 'x', lease_until = 1 WHERE seq = 1;",
    )
    .unwrap();

    assert_eq!(record_count(&store).await, 2, "the damaged record is passed over");
    let numbers = |events: Vec<Event>| events.iter().map(|event| event.seq).collect::<Vec<_>>();
    assert_eq!(numbers(store.events(0, 1).await.unwrap()), [2], "a page is full");
    assert_eq!(numbers(store.events(0, 100).await.unwrap()), [2, 3]);
    let (bob, holder) = ("did:web:bob".parse().unwrap(), Holder::anonymous());
    let term = LeaseDuration::DEFAULT;
    let leased = store.lease_record(&bob, BoxKind::Inbox, holder, term, NOON).await.unwrap();
    assert!(leased.unwrap().message.canonical().contains("two"));
    let peer = store.sessions(&bob, PageRequest { beyond: None, limit: 9, newest_first: true });
    assert_eq!(peer.await.unwrap().entries.len(), 1);
    let damaged: Vec<_> = store.damaged_rows().iter().map(|row| row[..8].to_owned()).collect();
    assert_eq!(damaged, ["event 1:", "record 1"]);
}

#[tokio::test]
async fn damaged_mails_neither_count_as_purged_nor_hide_those_behind_them() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    store.advance_retention_clock(NOON).await.unwrap();
    let texts = ["one", "two", "three", "four", "five"];
    let ids = conformance_mails::store_mails(&store, &texts, 0).await;
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute("UPDATE mails SET entry = '{' WHERE seq IN (1, 2, 4)", []).unwrap();

    let intact = [(2, MailLocation::Inbound), (4, MailLocation::Inbound)];
    assert_eq!(locations(&store, &ids).await, intact);
    for _ in 0..2 {
        assert_eq!(store.expire_unclaimed_mails(0, 1, NOON).await.unwrap(), 1);
    }
    assert_eq!(store.expire_unclaimed_mails(0, 1, NOON).await.unwrap(), 0, "no page of damage");
    let expired = [(2, MailLocation::Archive), (4, MailLocation::Archive)];
    assert_eq!(locations(&store, &ids).await, expired);

    db.execute("UPDATE mails SET location = 'archive'", []).unwrap();
    assert_eq!(store.purge_archived_mails(0, 9, NOON).await.unwrap(), 2);
    assert_eq!(store.purge_archived_mails(0, 9, NOON).await.unwrap(), 0);
    let damaged: Vec<_> = store.damaged_rows().iter().map(|row| row[..6].to_owned()).collect();
    assert_eq!(damaged, ["Mail 1", "Mail 2", "Mail 4"]);
}

#[tokio::test]
async fn damaged_draft_does_not_delay_the_results_of_others() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    for text in ["one", "two"] {
        dispatch(&store, chat(text)).await;
    }
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute_batch(
        "INSERT INTO drafts (uid, provider, object, open)
         VALUES ('d1', 'lark', 1, 1), ('d2', 'lark', 2, 1);
         UPDATE objects SET hash = x'00' WHERE seq = 1;",
    )
    .unwrap();
    let finished = store.finished_drafts(9).await.unwrap();
    assert_eq!(finished.iter().map(|draft| &*draft.uid).collect::<Vec<_>>(), ["d2"]);
    assert!(store.damaged_rows()[0].starts_with("draft d1:"), "{:?}", store.damaged_rows());
}

/// The locations of the Mails that are not damaged, by their place in `ids`.
async fn locations(store: &SqlStore, ids: &[MailId]) -> Vec<(usize, MailLocation)> {
    let mut found = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        if let Ok(row) = store.mail(id, &Workspace::shared()).await {
            found.push((at, row.location));
        }
    }
    found
}

#[tokio::test]
async fn damaged_records_do_not_count_as_ended_leases() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let (bob, term) = ("did:web:bob".parse().unwrap(), LeaseDuration::DEFAULT);
    for text in ["one", "two"] {
        dispatch(&store, chat(text)).await;
        let reader = Holder::new("reader-1").unwrap();
        store.lease_record(&bob, BoxKind::Inbox, reader, term, NOON).await.unwrap().unwrap();
    }
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute("UPDATE records SET box = 'nowhere' WHERE seq = 1", []).unwrap();
    let retry = JitteredRetry { retry: RetryPolicy::DELIVERY, jitter: Jitter::NONE };
    for ended in [1, 0] {
        let counts = store.release_leases("reader-", retry, NOON).await.unwrap();
        assert_eq!(counts.records, ended, "a full page of damage would never end");
    }
}
