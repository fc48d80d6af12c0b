//! Tests of guarantees that only SQLite gives: query plans, damaged letters, memory.

use std::fs;

use monoco_core::approval::SendOrigin;
use monoco_core::letter::{Letter, LetterState};
use rusqlite::{Connection, params_from_iter};

use super::*;
use crate::sql::tests::{NOON, chat, damage, home};
use crate::sqlite::SqliteStore;
use crate::{DispatchRequest, EventStore, NextAction, PageRequest, RetentionStore};

fn submitted(text: &str) -> LetterSource {
    let letter = Letter {
        from: "ann@example.org".to_owned(),
        to: vec!["bob@example.org".to_owned()],
        data: text.to_owned(),
        ..Letter::default()
    };
    LetterSource::Submitted { letter, tunnel: None, key: None, origin: SendOrigin::Owner }
}

async fn accept_letter(store: &SqlStore, text: &str) -> LetterId {
    match store.accept(vec![submitted(text)], Arc::default(), NOON).await.remove(0).unwrap() {
        AcceptResult::Letter { id, .. } => id,
        other => panic!("{other:?}"),
    }
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
    let page = |newest_first| PageRequest { beyond: None, limit: 10, newest_first };
    let (forward, backward) = (page(false), page(true));
    let first = |which: &str| format!("SELECT * FROM letters l WHERE {which} LIMIT 1");
    for (sql, index) in [
        (rows::list_sql(lists::DUE), "letters_waiting (worker=? AND due_at<?)"),
        (lists::NEXT_DUE.to_owned(), "letters_waiting (worker=?)"),
        (rows::list_sql(lists::HELD), "letters_held (held_by=? AND hold_key=?)"),
        (rows::list_sql(lists::AWAY), "letters_away (worker=?)"),
        (rows::list_sql(lists::DEAD), "letters_by_state (state=?)"),
        (rows::list_sql("l.seq = ?1"), "PRIMARY KEY (rowid=?)"),
        (lists::scan_sql(true, &forward), "letters_by_state (state=? AND seq>?)"),
        (lists::scan_sql(true, &backward), "letters_by_state (state=? AND seq>? AND seq<?)"),
        (lists::scan_sql(false, &forward), "PRIMARY KEY (rowid>?)"),
        (lists::scan_sql(false, &backward), "PRIMARY KEY (rowid>? AND rowid<?)"),
        (operator::AWAY_AT.to_owned(), "letters_away (worker=?)"),
        (operator::HELD_BY.to_owned(), "letters_held (held_by=?)"),
        (operator::ENDED.to_owned(), "letters_ended (state=? AND day>? AND day<?)"),
        (operator::ENDED.to_owned(), "drafts_by_object (object=?)"),
        (first("l.external_id = ?1"), "letters_by_external_id (external_id=?)"),
        (
            first("l.object = ?1 AND l.source = ?2 ORDER BY l.seq DESC"),
            "letters_by_object (object=?)",
        ),
        (first("l.became = ?1 ORDER BY l.seq"), "letters_by_became (became=?)"),
    ] {
        let plan = plan(&store, &sql);
        assert!(plan.contains(index), "{sql}\n{plan}");
        assert!(!plan.contains("SCAN l"), "{sql}\n{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{sql}\n{plan}");
    }
}

#[tokio::test]
async fn damaged_letter_does_not_block_other_letters() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let damaged = accept_letter(&store, &"treasure ".repeat(10_000)).await;
    let msg = chat(&"silver ".repeat(10_000));
    let dispatch = LetterSource::Dispatch(DispatchRequest { msg, tunnel: None, external_id: None });
    let lost = match store.accept(vec![dispatch], Arc::default(), NOON).await.remove(0).unwrap() {
        AcceptResult::Letter { id, .. } => id,
        other => panic!("{other:?}"),
    };
    accept_letter(&store, "still fine").await;
    drop(store);
    damage(&dir.path().join("blobs"), "treasure");
    damage(&dir.path().join("blobs"), "silver");

    let store = SqliteStore::open(dir.path()).unwrap();
    for id in [damaged, lost] {
        let read = store.letter(id).await;
        assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
    }
    let due = store.due_letters(None, 1, NOON).await.unwrap();
    assert_eq!(due.iter().map(|row| &*row.letter.data).collect::<String>(), "still fine");
    let dead = store.dead_letters(10).await.unwrap();
    assert_eq!(dead.iter().map(|row| row.id).collect::<Vec<_>>(), [damaged, lost]);
    assert!(dead[0].failure.as_ref().unwrap().contains("another hash"), "{:?}", dead[0].failure);
    let events = store.events(0, 100).await.unwrap();
    assert_eq!(events.last().unwrap().kind.as_str(), "damaged");

    let retried = store.move_letter(damaged, OperatorAction::Retry, NOON).await.unwrap();
    assert_eq!(retried.status.standing.name(), LetterState::Waiting);
    store.due_letters(None, 10, NOON).await.unwrap();
    assert_eq!(store.dead_letters(10).await.unwrap().len(), 2, "the damaged letter is dead again");
}

/// One damaged row stops neither a purge nor the return of letters at a start.
#[tokio::test]
async fn damaged_letter_rows_stop_no_loop() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    store.advance_retention_clock(NOON).await.unwrap();
    let worker: WorkerName = "scanner".parse().unwrap();
    for text in ["one", "two", "three", "four"] {
        accept_letter(&store, text).await;
    }
    let due = store.due_letters(None, 10, NOON).await.unwrap();
    for (at, row) in due.iter().enumerate() {
        let then = match at {
            0 | 1 => NextAction::Trash { why: "spam".to_owned() },
            _ => NextAction::Wait { worker: Some(worker.clone()), due: NOON },
        };
        store.step_letters(vec![LetterStep::only(row, then)], NOON).await.remove(0).unwrap();
    }
    let db = Connection::open(dir.path().join("monoco.db")).unwrap();
    db.execute("UPDATE letters SET verdicts = '{' WHERE seq IN (1, 3)", []).unwrap();
    assert_eq!(store.recall_letters(&[], 10, NOON).await.unwrap(), 1, "without the damaged one");
    assert_eq!(store.recall_letters(&[], 10, NOON).await.unwrap(), 0);
    assert_eq!(store.purge_letters(0, 0, 10).await.unwrap(), 2, "they have ended");
    assert_eq!(store.purge_letters(0, 0, 10).await.unwrap(), 0);
    let counts = store.letter_counts(NOON).await.unwrap();
    assert_eq!(counts.states.get(&LetterState::Trashed).copied().unwrap_or(0), 0);
}

#[tokio::test]
async fn page_of_large_letters_is_limited_by_size() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    for text in ["a", "b", "c", "d"] {
        accept_letter(&store, &text.repeat(12 << 20)).await;
    }
    let window = |beyond| PageRequest { beyond, limit: 10, newest_first: false };
    let page = store.letters(LetterQuery::default(), window(None)).await.unwrap();
    assert_eq!(page.entries.len(), 3);
    let page = store.letters(LetterQuery::default(), window(page.next)).await.unwrap();
    assert_eq!((page.entries.len(), page.next), (1, None));
    let first = store.due_letters(None, 10, NOON).await.unwrap();
    assert_eq!(first.len(), 3);
    for row in first {
        let step = LetterStep::only(&row, NextAction::Trash { why: "read".to_owned() });
        store.step_letters(vec![step], NOON).await.remove(0).unwrap();
    }
    assert_eq!(store.due_letters(None, 10, NOON).await.unwrap().len(), 1);
}

/// A copy of the files at any time is a store in which each letter is either waiting or
/// trashed.
#[tokio::test]
async fn crash_between_steps_neither_loses_nor_repeats_letters() {
    let dir = home();
    let store = SqliteStore::open(dir.path()).unwrap();
    let mut under_way = Vec::new();
    for round in 0..12_usize {
        under_way.push(accept_letter(&store, &format!("{round}")).await);
        if round % 2 == 1 {
            let id = under_way.remove(0);
            let row = store.letter(id).await.unwrap();
            let step = LetterStep::only(&row, NextAction::Trash { why: "done with".to_owned() });
            store.step_letters(vec![step], NOON).await.remove(0).unwrap();
        }
        let copy = home();
        for file in ["monoco.db", "monoco.db-wal"] {
            fs::copy(dir.path().join(file), copy.path().join(file)).unwrap();
        }
        let found = SqliteStore::open(copy.path()).unwrap();
        let due = found.due_letters(None, 100, NOON).await.unwrap();
        assert_eq!(due.iter().map(|row| row.id).collect::<Vec<_>>(), under_way);
        let states = found.letter_counts(NOON).await.unwrap().states;
        let trashed = i64::try_from(round.div_ceil(2)).unwrap();
        assert_eq!(states.get(&LetterState::Trashed).copied().unwrap_or(0), trashed);
        assert_eq!(states[&LetterState::Waiting], i64::try_from(under_way.len()).unwrap());
    }
}
