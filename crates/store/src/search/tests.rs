//! Tests of the embedded index, without a store.

use monoco_core::object::{ObjId, ObjKind};
use monoco_core::search::tokens::tokens;
use monoco_core::search::{SearchDocument, SearchMark, SearchPhrase, SearchQuery};
use monoco_core::time::Timestamp;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::parts::PartSize;
use super::*;

/// Milliseconds of the message with number 0.
const START: i64 = 1_770_000_000_000;

fn document(text: &str) -> SearchDocument {
    SearchDocument { text: text.to_owned(), ..SearchDocument::default() }
}

/// A message that was stored at second `seq`.
fn message(seq: i64, document: &SearchDocument, tunnels: Option<&[&str]>) -> IndexedMessage {
    let tunnels = tunnels.map(|names| names.iter().map(ToString::to_string).collect());
    let at = Some(Timestamp::from_ms(START + seq * 1_000));
    let id = ObjId::of(ObjKind::Msg, &seq.to_be_bytes());
    IndexedMessage::new(&SearchableMessage { seq, id, at, tunnels, body: None }, document)
}

/// A batch that inserts `texts` with numbers from 1.
fn batch(texts: &[impl AsRef<str>]) -> SearchBatch {
    let messages = texts.iter().map(|text| document(text.as_ref()));
    let insert: Vec<_> =
        (1..).zip(messages).map(|(seq, document)| message(seq, &document, Some(&[]))).collect();
    let object = insert.len() as i64;
    let progress = SearchProgress { object, object_hash: -object, change: 7, erasure: 9 };
    SearchBatch { insert, remove: Vec::new(), progress }
}

fn query(text: &str) -> SearchQuery {
    SearchQuery::parse(text, Timestamp::from_ms(START + 100_000)).unwrap()
}

const ALL: SearchRange = SearchRange { beyond: None, newest_first: true, limit: 1_000 };

async fn find(index: &FtsIndex, text: &str) -> Vec<i64> {
    index.find(&query(text), ALL).await.unwrap()
}

/// Whether the files of an index contain `text`.
fn files_contain(dir: &std::path::Path, text: &str) -> bool {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found = files.map(|path| std::fs::read(path).unwrap());
    found.any(|bytes| bytes.windows(text.len()).any(|part| part == text.as_bytes()))
}

/// A part is full after a few of the texts of these tests.
const SMALL_PARTS: PartSize = PartSize { bytes: 40, fraction: 64 };

/// What is left of a message of which a part was erased.
const REWRITTEN: &str = "署サ ab e 部";

/// The numbers of all pages of `limit` hits.
async fn pages(
    index: &FtsIndex,
    query: &SearchQuery,
    newest_first: bool,
    limit: usize,
) -> Vec<i64> {
    let (mut beyond, mut found) = (None, Vec::new());
    loop {
        let range = SearchRange { beyond, newest_first, limit };
        let page = index.find(query, range).await.unwrap();
        assert!(page.len() <= limit);
        let Some(last) = page.last() else { return found };
        beyond = Some(*last);
        found.extend(page);
    }
}

#[test]
fn pages_of_all_parts_have_what_a_scan_of_all_tokens_finds() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let texts = proptest::collection::vec("[部署サ배 ab.é🎉]{0,12}", 1..40);
    let queries =
        "[部署サ배a]{1,3}|[ab]{1,2}\\*|\"[ab] [ab]\"|[ab] [部署]|e|🎉|a部|部a|a b\\*|h\\*";
    let removed = proptest::collection::vec(1_i64..40, 0..6);
    let cases = (texts, queries, removed, 1_usize..7, 1_usize..12, any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 96, ..Config::default() });
    let result = runner.run(&cases, |(texts, text, removed, limit, commit, split)| {
        let dir = tempfile::tempdir().unwrap();
        let size = if split { SMALL_PARTS } else { PartSize::default() };
        let index = FtsIndex::with_part_size(dir.path(), size).unwrap();
        let SearchBatch { insert, progress, .. } = batch(&texts);
        for messages in insert.chunks(commit) {
            let batch = SearchBatch { insert: messages.to_vec(), remove: Vec::new(), progress };
            runtime.block_on(index.apply(batch)).unwrap();
        }
        // Every second one of the removed messages returns with another text, as after the erasure
        // of a part of it.
        let is_back = |seq: i64| seq % 2 == 0;
        let again = insert.iter().filter(|it| removed.contains(&it.seq) && is_back(it.seq));
        let insert = again.map(|it| message(it.seq, &document(REWRITTEN), Some(&[]))).collect();
        let batch = SearchBatch { insert, remove: removed.clone(), progress };
        runtime.block_on(index.apply(batch)).unwrap();
        let query = query(&text);
        let is_found = |seq: i64, text: &String| {
            let text = if removed.contains(&seq) { REWRITTEN } else { text };
            let all = tokens(text, usize::MAX);
            let starts =
                |phrase: &SearchPhrase| (0..all.len()).any(|at| phrase.is_start_of(&all[at..]));
            query.phrases.iter().all(starts) && (!removed.contains(&seq) || is_back(seq))
        };
        let numbered = (1..).zip(&texts).filter(|(seq, text)| is_found(*seq, text));
        let mut expected: Vec<i64> = numbered.map(|(seq, _)| seq).collect();
        prop_assert_eq!(&runtime.block_on(pages(&index, &query, false, limit)), &expected);
        let mut ranked = runtime.block_on(index.rank(&query, 1_000)).unwrap();
        ranked.sort_unstable();
        prop_assert_eq!(&ranked, &expected);
        expected.reverse();
        prop_assert_eq!(&runtime.block_on(pages(&index, &query, true, limit)), &expected);
        // A second connection sees the same after a restart.
        drop(index);
        let index = FtsIndex::with_part_size(dir.path(), size).unwrap();
        prop_assert_eq!(&runtime.block_on(pages(&index, &query, true, limit)), &expected);
        Ok(())
    });
    result.unwrap();
}

#[tokio::test]
async fn filter_of_a_full_part_has_all_of_its_words() {
    let dir = tempfile::tempdir().unwrap();
    let index = FtsIndex::with_part_size(dir.path(), SMALL_PARTS).unwrap();
    let texts: Vec<_> = (0..60).map(|at| format!("word{at} 部{at}署 wörd{at}x")).collect();
    index.apply(batch(&texts)).await.unwrap();
    let db = rusqlite::Connection::open(dir.path().join("search.db")).unwrap();
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    let parts = count("SELECT count(*) FROM parts WHERE blocks > 0");
    assert!(parts > 10, "{parts}");
    assert_eq!(count("SELECT count(DISTINCT part) FROM filters"), parts);
    for at in 0..60 {
        for text in [format!("word{at}"), format!("word{at} 部 署"), format!("word{at}*")] {
            assert!(find(&index, &text).await.contains(&(at + 1)), "{text}");
        }
    }
    // Without its bits, a part is passed over: they are what decides.
    db.execute_batch("UPDATE filters SET bits = zeroblob(1024)").unwrap();
    assert_eq!(find(&index, "word0").await, [0; 0]);
    assert_eq!(find(&index, "部").await, [60, 59]);
    assert_eq!(find(&index, "word0*").await, [1]);
    index.clear().await.unwrap();
    assert_eq!(count("SELECT count(*) FROM filters"), 0);
}

#[tokio::test]
async fn relevance_does_not_depend_on_the_part_of_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let index = FtsIndex::with_part_size(dir.path(), SMALL_PARTS).unwrap();
    // The last part has one message only, and all of its messages have the word.
    let mut texts = vec!["red and other words"; 30];
    texts.extend(["nothing of it"; 10]);
    texts.push("red red red red");
    index.apply(batch(&texts)).await.unwrap();
    let ranked = index.rank(&query("red"), 41).await.unwrap();
    assert_eq!(ranked.len(), 31);
    assert_eq!(ranked[..3], [41, 30, 29]);
    // A rare word counts more than a frequent one.
    let mut texts = vec!["red and other words"; 30];
    texts.extend(["red red red blue", "red blue blue blue"]);
    index.clear().await.unwrap();
    index.apply(batch(&texts)).await.unwrap();
    assert_eq!(index.rank(&query("red blue"), 32).await.unwrap(), [32, 31]);
}

#[tokio::test]
async fn index_of_an_older_layout_is_created_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("search.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(
        "CREATE TABLE progress (name TEXT PRIMARY KEY, value INTEGER);
         INSERT INTO progress VALUES ('object', 7);
         CREATE VIRTUAL TABLE messages USING fts5 (text, content = '', contentless_delete = 1);
         PRAGMA user_version = 2;",
    )
    .unwrap();
    drop(db);
    let index = FtsIndex::open(dir.path()).unwrap();
    assert_eq!(index.progress().await.unwrap(), SearchProgress::default());
    index.apply(batch(&["red"])).await.unwrap();
    assert_eq!(find(&index, "red").await, [1]);
}

#[tokio::test]
async fn batch_and_progress_survive_together_and_can_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let index = FtsIndex::open(dir.path()).unwrap();
    assert_eq!(index.progress().await.unwrap(), SearchProgress::default());
    let all = batch(&["one red", "two red", "three"]);
    for _ in 0..2 {
        index.apply(all.clone()).await.unwrap();
        assert_eq!(find(&index, "red").await, [2, 1]);
    }
    drop(index);
    let index = FtsIndex::open(dir.path()).unwrap();
    assert_eq!(index.progress().await.unwrap(), all.progress);
    assert_eq!(find(&index, "red").await, [2, 1]);
    index.clear().await.unwrap();
    assert_eq!(find(&index, "red").await, [0; 0]);
    assert_eq!(index.progress().await.unwrap(), SearchProgress::default());
    index.apply(all).await.unwrap();
    assert_eq!(find(&index, "red").await, [2, 1]);
}

#[tokio::test]
async fn crash_before_the_commit_loses_the_batch_and_its_progress() {
    let dir = tempfile::tempdir().unwrap();
    let index = FtsIndex::open(dir.path()).unwrap();
    index.apply(batch(&["one red"])).await.unwrap();
    let log = dir.path().join("search.db-wal");
    let first = std::fs::read(&log).unwrap().len();
    index.apply(batch(&["one red", "two red"])).await.unwrap();
    let both = std::fs::read(&log).unwrap();
    // Files as a crash leaves them: the log without its last pages.
    for end in (first..both.len()).step_by(4_000) {
        let copy = tempfile::tempdir().unwrap();
        std::fs::copy(dir.path().join("search.db"), copy.path().join("search.db")).unwrap();
        std::fs::write(copy.path().join("search.db-wal"), &both[..end]).unwrap();
        let index = FtsIndex::open(copy.path()).unwrap();
        assert_eq!(index.progress().await.unwrap().object, 1, "{end} bytes");
        assert_eq!(find(&index, "red").await, [1], "{end} bytes");
    }
}

#[tokio::test]
async fn removed_words_are_not_in_the_files_after_compaction() {
    for size in [PartSize::default(), SMALL_PARTS] {
        let dir = tempfile::tempdir().unwrap();
        let index = FtsIndex::with_part_size(dir.path(), size).unwrap();
        // A search keeps a connection open.
        assert_eq!(find(&index, "anything").await, [0; 0]);
        let mut texts = vec!["quokkas hide", "部署机密", "visible"];
        texts.extend(["some more words for other parts"; 20]);
        index.apply(batch(&texts)).await.unwrap();
        let remove = SearchBatch { remove: vec![1, 2, 99], ..batch(&[""; 0]) };
        index.apply(remove).await.unwrap();
        for gone in ["quokkas", "部署"] {
            assert_eq!(find(&index, gone).await, [0; 0]);
            assert!(files_contain(dir.path(), gone), "{gone}");
        }
        index.compact().await.unwrap();
        for gone in ["quokkas", "uokkas", "部署", "机密"] {
            assert!(!files_contain(dir.path(), gone), "{gone}");
        }
        assert_eq!(find(&index, "visible").await, [3]);
        assert!(files_contain(dir.path(), "visible"));
        // Nor do the filters show that a part had them.
        let db = rusqlite::Connection::open(dir.path().join("search.db")).unwrap();
        let words = filter::words_of_query(&query("quokkas"));
        let sql = "SELECT number, blocks FROM parts WHERE number = 1";
        let (part, blocks) = db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        let is_full = size.bytes == SMALL_PARTS.bytes;
        assert_eq!(blocks > 0, is_full);
        assert_eq!(filter::can_have(&db, part, blocks, &words).unwrap(), !is_full);
    }
}

#[tokio::test]
async fn filters_select_authors_chats_marks_tunnels_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let index = FtsIndex::open(dir.path()).unwrap();
    let first = SearchDocument {
        authors: vec!["Ann Smith".to_owned(), "ann@example.com".to_owned()],
        chat: vec!["Ops".to_owned()],
        marks: vec![SearchMark::Image],
        files: vec!["plan.png".to_owned()],
        ..document("about ops")
    };
    let insert = vec![
        message(1, &first, Some(&["lark-main"])),
        message(2, &document("ann in ops"), Some(&["lark"])),
        message(3, &document("later"), None),
    ];
    let progress = SearchProgress { object: 3, ..SearchProgress::default() };
    index.apply(SearchBatch { insert, remove: Vec::new(), progress }).await.unwrap();
    for (text, expected) in [
        ("ann", vec![2, 1]),
        ("from:ann", vec![1]),
        ("from:\"ann smith\"", vec![1]),
        ("from:ann@example.com", vec![1]),
        ("in:ops", vec![1]),
        ("ops in:ops", vec![1]),
        ("plan", vec![1]),
        ("has:image", vec![1]),
        ("has:link", vec![]),
        // The store decides about a tunnel that was unknown.
        ("tunnel:lark-main", vec![3, 1]),
        ("tunnel:lark", vec![3, 2]),
        ("since:2026-02-02T02:40:02Z", vec![3, 2]),
        ("ann since:2026-02-02T02:40:02Z", vec![2]),
        ("since:2026-02-03", vec![]),
        // Not operators of FTS5, and marks are not words.
        ("AND OR NOT", vec![]),
        ("image", vec![]),
        ("\"has:image\"", vec![]),
    ] {
        assert_eq!(find(&index, text).await, expected, "{text}");
    }
}

#[tokio::test]
async fn hits_are_paged_in_both_orders_and_ranked() {
    let dir = tempfile::tempdir().unwrap();
    let index = FtsIndex::open(dir.path()).unwrap();
    let texts = ["red red red", "red", "blue", "a very long text that says red once in its words"];
    index.apply(batch(&texts)).await.unwrap();
    let red = query("red");
    for (newest_first, expected) in [(true, [4, 2, 1]), (false, [1, 2, 4])] {
        let (mut beyond, mut found) = (None, Vec::new());
        while let [seq] =
            index.find(&red, SearchRange { beyond, newest_first, limit: 1 }).await.unwrap()[..]
        {
            found.push(seq);
            beyond = Some(seq);
        }
        assert_eq!(found, expected);
    }
    assert_eq!(index.rank(&red, 4).await.unwrap(), [1, 2, 4]);
    assert_eq!(index.rank(&red, 2).await.unwrap(), [1, 2]);
    assert_eq!(index.rank(&query("since:1w"), 4).await.unwrap(), [4, 3, 2, 1]);
}

#[tokio::test]
async fn damaged_index_is_created_again() {
    let dir = tempfile::tempdir().unwrap();
    let index = FtsIndex::open(dir.path()).unwrap();
    index.apply(batch(&["red"])).await.unwrap();
    drop(index);
    std::fs::write(dir.path().join("search.db"), "not a database, but long enough for one")
        .unwrap();
    let index = FtsIndex::open(dir.path()).unwrap();
    assert_eq!(index.progress().await.unwrap(), SearchProgress::default());
    assert_eq!(find(&index, "red").await, [0; 0]);
}
