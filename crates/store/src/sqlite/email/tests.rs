//! Tests of guarantees that only SQLite gives: query plans, damaged mails, crashes, speed.

use std::fs;
use std::time::Instant;

use monoco_core::email::task::TaskStatus;
use monoco_core::inbound::{FetchedMail, StoredBytes};
use monoco_core::object::ObjKind;
use rusqlite::{Connection, params_from_iter};

use super::*;
use crate::sqlite::bulk_index;
use crate::sqlite::tests::{NOON, chat, damage, home};
use crate::{DispatchRequest, ObjectStore, RecordStore, StatusStore};

fn tunnel() -> TunnelId {
    "mail".parse().unwrap()
}

fn mail(uid: u32, text: &str) -> FetchedMail {
    FetchedMail {
        folder: "INBOX".to_owned(),
        uid_validity: 1,
        uid,
        internal_date: Some(NOON),
        subject: "a subject".to_owned(),
        date: Some(NOON),
        size: text.len() as u64,
        raw: RawMail::Bytes(text.as_bytes().to_vec()),
    }
}

async fn register(store: &SqliteStore, mails: Vec<FetchedMail>) -> RegisterMailsResult {
    let cursor = mails.last().map(|mail| mail.uid.to_string());
    let page = RegisterMailsRequest { tunnel: tunnel(), stream: "INBOX".into(), cursor, mails };
    store.register_mails(page, NOON).await.unwrap()
}

async fn start(store: &SqliteStore, limit: usize) -> Vec<StartedTask> {
    let holder = Holder::new("loop").unwrap();
    store.start_tasks(&tunnel(), holder, LeaseDuration::DEFAULT, limit, NOON).await.unwrap()
}

/// The tasks with a status: `1 not a mail`.
async fn tasks_in(store: &SqliteStore, status: TaskStatus) -> Vec<String> {
    let query = EmailTaskQuery { tunnel: None, statuses: vec![status] };
    let page = PageRequest { beyond: None, limit: 100, newest_first: false };
    let tasks = store.tasks(query, page).await.unwrap().entries;
    let shown = |task: &EmailTask| {
        format!("{} {}", task.id.0, task.progress.state.why().unwrap_or_default())
    };
    tasks.iter().map(shown).collect()
}

fn plan(store: &SqliteStore, sql: &str) -> String {
    let plan = store.readers.with(|db| {
        let mut statement = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let nothing = vec![rusqlite::types::Null; statement.parameter_count()];
        let rows = statement.query_map(params_from_iter(nothing), |row| row.get::<_, String>(3));
        Ok(rows.unwrap().collect::<Result<Vec<_>, _>>().unwrap())
    });
    plan.unwrap().join("; ")
}

#[tokio::test]
async fn every_query_uses_an_index() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    for (sql, index) in [
        (tasks::DUE.to_owned(), "email_tasks_due (tunnel=? AND due_at>? AND due_at<?)"),
        (tasks::NEXT_DUE.to_owned(), "email_tasks_due (tunnel=? AND due_at>?)"),
        (tasks::EXPIRED.to_owned(), "email_tasks_leased (due_at<?)"),
        (tasks::HELD_BY_PREFIX.to_owned(), "email_tasks_leased"),
        (tasks::ENDED.to_owned(), "email_tasks_ended (day>? AND day<?)"),
        (
            rows::select(&tasks::list_condition("<", "DESC")),
            "email_tasks_by_status (tunnel=? AND status=? AND seq<?)",
        ),
        (rows::select(rows::DEAD), "email_tasks_dead"),
        (rows::select(rows::OF_FORWARD), "email_tasks_by_forward (forward=?)"),
        (rows::select("t.seq = ?1"), "PRIMARY KEY (rowid=?)"),
        (forwards::FORWARDING.to_owned(), "email_tasks_forwarding (tunnel=? AND seq>?)"),
        (forwards::FORWARDING.to_owned(), "deliveries_by_tag (object=?)"),
        (forwards::DELIVERIES.to_owned(), "deliveries_by_tag (object=?)"),
        (register::KNOWN_UID.to_owned(), "email_tasks_by_uid (folder=? AND uid=?)"),
        (register::FIND_HASH.to_owned(), "PRIMARY KEY (hash_prefix=?)"),
    ] {
        let plan = plan(&store, &sql);
        assert!(plan.contains(index), "{sql}\n{plan}");
        assert!(!plan.contains("SCAN email_tasks;"), "{sql}\n{plan}");
    }
}

#[tokio::test]
async fn damaged_mail_does_not_block_other_mails() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let lost = store.put_blob(b"a lost mail".to_vec()).await.unwrap();
    let stored = RawMail::Stored(StoredBytes { hash: lost, size: 11 });
    let mails = vec![
        mail(1, "a treasure"),
        mail(2, &"silver ".repeat(20_000)),
        FetchedMail { raw: stored, ..mail(3, "") },
        mail(4, "still fine"),
    ];
    register(&store, mails).await;
    drop(store);
    damage(dir.path(), "treasure");
    let hex = lost.to_string().split(':').next_back().unwrap().to_owned();
    fs::remove_file(dir.path().join("blobs").join(&hex[..2]).join(&hex)).unwrap();

    let store = SqliteStore::open(dir.path()).unwrap();
    let started = start(&store, 10).await;
    assert_eq!(started.iter().map(|one| one.task.id.0).collect::<Vec<_>>(), [2, 4]);
    let errors = tasks_in(&store, TaskStatus::Error).await;
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].starts_with("1 the stored mail is damaged: eml_1 has another hash"));
    assert!(errors[1].starts_with("3 the stored mail is damaged: the file of sha256:"));
    assert_eq!(store.dead_tasks(10).await.unwrap().len(), 2, "they are not retried");
    let read = store.raw_mail(EmailTaskId(1)).await;
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
}

/// When only damaged mails are due, `start_tasks` ends them and returns.
#[tokio::test]
async fn start_ends_when_all_mails_are_damaged() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    register(&store, (1..=25).map(|uid| mail(uid, &format!("treasure {uid}"))).collect()).await;
    drop(store);
    damage(dir.path(), "treasure");
    let store = SqliteStore::open(dir.path()).unwrap();
    assert_eq!(start(&store, 10).await, []);
    assert_eq!(tasks_in(&store, TaskStatus::Error).await.len(), 25);
}

#[tokio::test]
async fn damaged_tasks_are_passed_over_and_reported() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    register(&store, (1..=4).map(|uid| mail(uid, &uid.to_string())).collect()).await;
    store.put_account(&tunnel(), "team@example.com", None, NOON).await.unwrap();
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute_batch(
        "UPDATE email_tasks SET status = 'fabricated' WHERE seq = 1;
         UPDATE email_tasks SET holder = '' WHERE seq = 2;
         DELETE FROM email_hashes WHERE task = 3;
         INSERT INTO people (person) VALUES ('{}');",
    )
    .unwrap();
    let started = start(&store, 10).await;
    assert_eq!(started.iter().map(|one| one.task.id.0).collect::<Vec<_>>(), [2, 4]);
    assert_eq!(start(&store, 10).await, [], "damaged tasks wait for an hour");
    let due = store.next_task(&tunnel()).await.unwrap();
    assert!(due.is_some_and(|due| due > NOON), "{due:?}");
    assert_eq!(store.directory().await.unwrap(), []);
    assert_eq!(store.settle_forwards(&tunnel(), 10, NOON).await.unwrap().forwarded, 0);
    let damaged = store.damaged_rows();
    let starts: Vec<_> = damaged.iter().map(|row| row.split(':').next().unwrap()).collect();
    assert_eq!(starts, ["e-mail task 1", "e-mail task 3", "person 1"]);
}

/// A forward whose delivery is damaged is neither forwarded nor retried, and does not keep the task
/// loop busy.
#[tokio::test]
async fn damaged_delivery_of_a_forward_is_reported() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    register(&store, vec![mail(1, "one"), mail(2, "two")]).await;
    let started = start(&store, 2).await;
    for (started, text) in started.iter().zip(["first", "second"]) {
        let msg = chat(text);
        let local = DispatchRequest { msg: msg.clone(), tunnel: None, external_id: None };
        store.dispatch(vec![local], NOON).await.remove(0).unwrap();
        let outcome = TaskOutcome::Forwarding { forward: msg.id() };
        let result = (started.task.id, started.task.progress.epoch, outcome);
        store.finish_tasks(vec![result], NOON).await.remove(0).unwrap();
    }
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute_batch(
        "INSERT INTO deliveries (object, tag, tunnel, author, plan, target, state, attempts, epoch,
                                 revision, outcome_unknown, created_at, updated_at)
         VALUES (1, 1, 1, 1, '{}', 0, 'DEAD', 0, 0, 0, 0, 0, 0);
         UPDATE email_tasks SET status = 'error', error = 'x', due_at = 1 WHERE seq = 1;",
    )
    .unwrap();
    let settled = store.settle_forwards(&tunnel(), 10, NOON).await.unwrap();
    assert_eq!(settled, SettleCounts { forwarded: 1, ..SettleCounts::default() });
    let due = store.next_task(&tunnel()).await.unwrap();
    assert!(due.is_some_and(|due| due > NOON), "{due:?}");
    assert!(store.damaged_rows()[0].starts_with("e-mail task 1: "), "{:?}", store.damaged_rows());
}

/// A copy of the files at any time is a store in which the cursor and the tasks agree.
#[tokio::test]
async fn crash_between_pages_leaves_no_gap_and_no_duplicate() {
    let dir = home();
    let store = SqliteStore::open_with(dir.path(), 7).unwrap();
    let text = |uid: u32| format!("mail {uid}");
    for page in 0..12 {
        let uids = page * 5 + 1..=page * 5 + 5;
        register(&store, uids.map(|uid| mail(uid, &text(uid))).collect()).await;
        let copy = home();
        for file in ["monoco.db", "monoco.db-wal"] {
            fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let found = SqliteStore::open_with(copy.path(), 7).unwrap();
        let last = page * 5 + 5;
        let cursor = found.cursor(&tunnel(), "INBOX").await.unwrap();
        assert_eq!(cursor, Some(last.to_string()));
        // All mails appear again, under another UIDVALIDITY.
        let again = |uid| FetchedMail { uid_validity: 2, ..mail(uid, &text(uid)) };
        let result = register(&found, (1..=last + 1).map(again).collect()).await;
        assert_eq!((result.new, result.copies), (1, last as usize));
        assert_eq!(tasks_in(&found, TaskStatus::Received).await.len(), last as usize + 1);
    }
}

/// Registers mails of 4 KiB in pages of 100 and prints the time; run it in release mode. With a
/// merge size of 1, every commit writes its hashes to the index, as a plain index does.
#[tokio::test]
#[ignore = "a measurement: cargo test --release -p monoco-store registration_speed -- --ignored"]
#[expect(clippy::print_stderr, reason = "the result of the measurement")]
async fn registration_speed() {
    let sizes = [bulk_index::MERGE_SIZE, 1];
    for (count, merge_size) in [10_000, 100_000].into_iter().flat_map(|n| sizes.map(|m| (n, m))) {
        let dir = home();
        let store = SqliteStore::open_with(dir.path(), merge_size).unwrap();
        let mut spent = std::time::Duration::ZERO;
        for first in (1..=count).step_by(100) {
            let body = |uid: u32| {
                let mut text = format!("Subject: {uid}\r\n\r\n");
                while text.len() < 4_300 {
                    let hash = ObjId::of(ObjKind::Bytes, text.as_bytes());
                    text.push_str(&hash.to_string());
                }
                text
            };
            let mails = (first..first + 100).map(|uid| mail(uid, &body(uid))).collect();
            let from = Instant::now();
            assert_eq!(register(&store, mails).await.new, 100);
            spent += from.elapsed();
        }
        let from = Instant::now();
        drop(store);
        eprintln!(
            "{count} mails, merge size {merge_size}: {spent:.2?}, and {:.2?} to close",
            from.elapsed()
        );
        let store = SqliteStore::open_with(dir.path(), merge_size).unwrap();
        let from = Instant::now();
        let mut processed = 0;
        loop {
            let started = start(&store, 100).await;
            if started.is_empty() {
                break;
            }
            processed += started.len();
            let skip = |one: &StartedTask| {
                let outcome = TaskOutcome::Skipped { why: None };
                (one.task.id, one.task.progress.epoch, outcome)
            };
            let results = started.iter().map(skip).collect();
            assert!(store.finish_tasks(results, NOON).await.iter().all(Result::is_ok));
        }
        assert_eq!(processed, count as usize);
        eprintln!("{count} tasks started and finished: {:.2?}", from.elapsed());
    }
}
