//! Tests of guarantees that only SQLite gives: query plans, damaged mails, crashes.

use std::fs;
use std::time::Duration;

use monoco_core::email::task::TaskStatus;
use monoco_core::inbound::{FetchedMail, StoredBytes};
use monoco_core::retry::{Jitter, RetryPolicy};
use rusqlite::{Connection, params_from_iter};

use super::*;
use crate::blobs;
use crate::sql::tests::{NOON, chat, damage, home};
use crate::sqlite::SqliteStore;
use crate::{
    DispatchRequest, JitteredRetry, ObjectStore, RecordStore, RetentionStore, StatusStore,
};

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

async fn register(store: &SqlStore, mails: Vec<FetchedMail>) -> RegisterMailsResult {
    let cursor = mails.last().map(|mail| mail.uid.to_string());
    let page = RegisterMailsRequest { tunnel: tunnel(), stream: "INBOX".into(), cursor, mails };
    store.register_mails(page, NOON).await.unwrap()
}

async fn start(store: &SqlStore, limit: usize) -> Vec<StartedTask> {
    let holder = Holder::new("loop").unwrap();
    store.start_tasks(&tunnel(), holder, LeaseDuration::DEFAULT, limit, NOON).await.unwrap()
}

/// The tasks with a status: `1 not a mail`.
async fn tasks_in(store: &SqlStore, status: TaskStatus) -> Vec<String> {
    let query = EmailTaskQuery { tunnel: None, statuses: vec![status] };
    let page = PageRequest { beyond: None, limit: 100, newest_first: false };
    let tasks = store.tasks(query, page).await.unwrap().entries;
    let shown = |task: &EmailTask| {
        format!("{} {}", task.id.0, task.progress.state.why().unwrap_or_default())
    };
    tasks.iter().map(shown).collect()
}

fn plan(store: &SqlStore, sql: &str) -> String {
    let plan = store.readers.with(|db| {
        let mut statement =
            db.as_sqlite().unwrap().prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
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
        (forwards::DEAD_FORWARDS.to_owned(), "email_tasks_dead"),
        (forwards::DEAD_DELIVERIES.to_owned(), "deliveries_by_tag (object=?)"),
        (register::KNOWN_UID.to_owned(), "email_tasks_by_uid (folder=? AND uid=?)"),
        (register::FIND_HASH.to_owned(), "PRIMARY KEY (hash_prefix=?)"),
        (register::FIND_MAIL_FILE.to_owned(), "PRIMARY KEY (hash_prefix=?)"),
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
    let store = crate::sqlite::open_with(dir.path(), 7).unwrap();
    let text = |uid: u32| format!("mail {uid}");
    for page in 0..12 {
        let uids = page * 5 + 1..=page * 5 + 5;
        register(&store, uids.map(|uid| mail(uid, &text(uid))).collect()).await;
        let copy = home();
        for file in ["monoco.db", "monoco.db-wal"] {
            fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let found = crate::sqlite::open_with(copy.path(), 7).unwrap();
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

#[tokio::test]
async fn damaged_tasks_do_not_count_as_ended_leases() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    register(&store, (1..=4).map(|uid| mail(uid, &uid.to_string())).collect()).await;
    assert_eq!(start(&store, 10).await.len(), 4);
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute("UPDATE email_tasks SET status = 'fabricated' WHERE seq < 3", []).unwrap();
    let retry = JitteredRetry { retry: RetryPolicy::DELIVERY, jitter: Jitter::NONE };
    let late = NOON + Duration::from_secs(86_400);
    // The first page has the damaged tasks, which are postponed.
    for ended in [0, 2, 0] {
        let counts = store.expire_leases(retry, 2, late).await.unwrap();
        assert_eq!(counts.email_tasks, ended);
    }
    let released = store.release_leases("loop", retry, late).await.unwrap();
    assert_eq!(released.email_tasks, 0, "a full page of damage would never end");
}

#[tokio::test]
async fn files_of_purged_mails_stay_while_a_backup_copies_them() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    store.advance_retention_clock(NOON).await.unwrap();
    register(&store, vec![mail(1, &"large ".repeat(20_000)), mail(2, "newest")]).await;
    let large = start(&store, 1).await.remove(0).task;
    let skipped = (large.id, large.progress.epoch, TaskOutcome::Skipped { why: None });
    store.finish_tasks(vec![skipped], NOON).await.remove(0).unwrap();
    assert_eq!(store.purge_tasks(0, 10).await.unwrap(), 1);
    let backup = blobs::lock_for_copy(&dir.path().join("blobs")).unwrap();
    assert_eq!(store.delete_purged_files(Duration::ZERO).await.unwrap(), 0);
    assert!(store.object(large.hash).await.is_ok());
    drop(backup);
    assert_eq!(store.delete_purged_files(Duration::ZERO).await.unwrap(), 1);
    assert!(store.object(large.hash).await.is_err());
}
