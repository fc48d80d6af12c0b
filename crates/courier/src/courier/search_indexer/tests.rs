//! Tests of the indexer with a real store.

use monoco_core::erasure::ErasedAuthors;
use monoco_core::search::SearchQuery;
use monoco_core::time::Timestamp;
use monoco_store::{ClaimUpdate, ErasureRequest, FtsIndex, SearchRange};

use super::*;
use crate::courier::test_hub::TestHub;

/// Indexes until there is nothing left to do.
async fn catch_up(indexer: &SearchIndexer) {
    while indexer.step().await.unwrap() == NextStep::Now {}
}

async fn find(indexer: &SearchIndexer, text: &str) -> Vec<i64> {
    let query = SearchQuery::parse(text, Timestamp::from_ms(0)).unwrap();
    let range = SearchRange { beyond: None, newest_first: true, limit: 10_000 };
    indexer.index().find(&query, range).await.unwrap()
}

#[tokio::test]
async fn restart_continues_and_rebuild_gives_the_same_hits() {
    let hub = TestHub::new().await;
    let ids: Vec<_> = (0..3 * 1_024).map(|id| id.to_string()).collect();
    hub.receive(ids.iter().map(String::as_str)).await;
    let first = hub.search();
    // One batch, then the courier is killed.
    assert_eq!(first.step().await.unwrap(), NextStep::Now);
    let some = find(&first, "text").await.len();
    assert!(some > 0 && some < ids.len(), "{some}");
    drop(first);

    let second = hub.search();
    catch_up(&second).await;
    let all = find(&second, "text").await;
    assert_eq!(all.len(), ids.len());
    assert_eq!(find(&second, "\"text of 17\"").await.len(), 1);
    assert!(second.wait_for_newest(Duration::ZERO).await.unwrap());

    second.rebuild().await.unwrap();
    assert_eq!(find(&second, "text").await, [0; 0]);
    assert!(!second.wait_for_newest(Duration::ZERO).await.unwrap());
    catch_up(&second).await;
    assert_eq!(find(&second, "text").await, all);
}

#[tokio::test]
async fn purged_mail_is_removed_and_held_mail_is_not_a_hit() {
    let hub = TestHub::new().await;
    let mails = hub.receive(["old", "new"]).await;
    hub.receive_on("door", "stub", &["held"], &[]).await;
    let indexer = hub.search();
    catch_up(&indexer).await;
    assert_eq!(find(&indexer, "text").await.len(), 3);
    hub.end(&mails[0], ClaimUpdate::Complete).await;
    hub.store().purge_archived_mails(i64::MAX, 10, hub.clock.now()).await.unwrap();
    catch_up(&indexer).await;
    assert_eq!(find(&indexer, "old").await, [0; 0]);
    let left = find(&indexer, "text").await;
    assert_eq!(left.len(), 2);
    let workspace = monoco_core::claim::Workspace::shared();
    let hits = hub.store().search_hits(left, &workspace).await.unwrap();
    let ids: Vec<_> = hits.into_iter().map(|hit| hit.mail.unwrap().entry.id).collect();
    assert_eq!(ids, [mails[1].clone()]);
    // A rebuild does not bring the purged Mail back.
    indexer.rebuild().await.unwrap();
    catch_up(&indexer).await;
    assert_eq!(find(&indexer, "old").await, [0; 0]);
}

#[tokio::test]
async fn erased_text_leaves_the_index_and_its_files() {
    let hub = TestHub::new().await;
    hub.receive(["wombat"]).await;
    let indexer = hub.search();
    catch_up(&indexer).await;
    assert_eq!(find(&indexer, "wombat").await.len(), 1);
    let authors = ErasedAuthors(["did:msgtunnel:ann.user.ci".parse().unwrap()].into());
    let request = ErasureRequest { authors, ..ErasureRequest::default() };
    hub.store().erase(&request, hub.clock.now()).await.unwrap();
    for _ in 0..2 {
        indexer.erase().await.unwrap();
        assert_eq!(find(&indexer, "wombat").await, [0; 0]);
        for name in ["search.db", "search.db-wal"] {
            let bytes = std::fs::read(hub.dir.path().join("store").join(name)).unwrap_or_default();
            assert!(!bytes.windows(6).any(|part| part == b"wombat"), "{name}");
        }
    }
    // The index is still that of this store.
    let restarted = hub.search();
    hub.receive_on("door", "stub", &["later"], &[]).await;
    catch_up(&restarted).await;
    assert_eq!(find(&restarted, "text").await.len(), 1);
}

/// Whether the files of an index have a word.
fn files_have(dir: &std::path::Path, word: &str) -> bool {
    ["search.db", "search.db-wal"].iter().any(|name| {
        let bytes = std::fs::read(dir.join(name)).unwrap_or_default();
        bytes.windows(word.len()).any(|part| part == word.as_bytes())
    })
}

#[tokio::test]
async fn erasures_of_other_couriers_are_followed_also_after_a_restart() {
    let hub = TestHub::new().await;
    hub.receive(["wombat"]).await;
    let dir = tempfile::tempdir().unwrap();
    let open = |is_enabled: bool| {
        let index = Arc::new(FtsIndex::open(dir.path()).unwrap());
        SearchIndexer::new(Arc::clone(hub.store()), index, is_enabled)
    };
    let other = open(true);
    catch_up(&other).await;
    drop(other);
    assert!(files_have(dir.path(), "wombat"));
    // Another courier erases the text while this one does not run.
    let authors = ErasedAuthors(["did:msgtunnel:ann.user.ci".parse().unwrap()].into());
    let request = ErasureRequest { authors, ..ErasureRequest::default() };
    hub.store().erase(&request, hub.clock.now()).await.unwrap();
    hub.store().finish_erasure().await.unwrap();
    // Also when search was turned off meanwhile.
    let other = open(false);
    other.step().await.unwrap();
    assert!(!files_have(dir.path(), "wombat"));
    let progress = other.index().progress().await.unwrap();
    assert!(progress.erasure > 0);
    drop(other);
    let other = open(true);
    catch_up(&other).await;
    assert_eq!(other.index().progress().await.unwrap().erasure, progress.erasure);
    assert_eq!(find(&other, "wombat").await, [0; 0]);
}

#[tokio::test]
async fn index_with_an_erasure_that_the_store_does_not_have_is_built_again() {
    let hub = TestHub::new().await;
    hub.receive(["wombat"]).await;
    let indexer = hub.search();
    catch_up(&indexer).await;
    // A backup of the store was restored that is older than an erasure.
    let progress = indexer.index().progress().await.unwrap();
    let batch = SearchBatch {
        remove: find(&indexer, "wombat").await,
        progress: SearchProgress { erasure: 7, ..progress },
        ..SearchBatch::default()
    };
    indexer.index().apply(batch).await.unwrap();
    assert_eq!(find(&indexer, "wombat").await, [0; 0]);
    drop(indexer);
    let restarted = hub.search();
    catch_up(&restarted).await;
    assert_eq!(find(&restarted, "wombat").await.len(), 1);
    assert_eq!(restarted.index().progress().await.unwrap().erasure, 0);
}

#[test]
fn busy_courier_is_indexed_less_often_and_a_quiet_one_at_once() {
    let start = Instant::now();
    let at = |ms: u64| start + Duration::from_millis(ms);
    let mut pace = IndexerPace::new(0, start);
    assert_eq!(pace.wait(3, at(1)), Duration::ZERO);
    pace.note(at(1), at(11), true);
    // A few events of one message are no load.
    assert_eq!(pace.wait(6, at(12)), Duration::ZERO);
    pace.note(at(12), at(22), true);
    // 500 events in 100 ms: 39 times as long as the last step took, which was 10 ms.
    assert_eq!(pace.wait(500, at(100)), Duration::from_millis(22 + 390 - 100));
    assert_eq!(pace.wait(1_500, at(300)), Duration::from_millis(22 + 390 - 300));
    assert_eq!(pace.wait(2_500, at(500)), Duration::ZERO);
    pace.note(at(500), at(600), false);
    assert_eq!(pace.wait(3_000, at(610)), Duration::from_millis(3_890));
    // It ends when the courier is quiet.
    assert_eq!(pace.wait(3_001, at(800)), Duration::ZERO);
    // A courier that is busy for a long time does not fall behind without limit.
    pace.note(at(800), at(900), false);
    assert_eq!(pace.wait(1_000_000, at(700_000)), Duration::ZERO);
    pace.note(at(700_000), at(700_100), false);
    assert_eq!(pace.wait(2_000_000, at(700_150)), Duration::from_millis(50));
}

#[tokio::test]
async fn index_of_another_store_is_built_again() {
    let (old, new) = (TestHub::new().await, TestHub::new().await);
    old.receive(["a", "b"]).await;
    new.receive(["c"]).await;
    let index = || Arc::new(FtsIndex::open(&old.dir.path().join("store")).unwrap());
    catch_up(&SearchIndexer::new(Arc::clone(old.store()), index(), true)).await;
    let restored = SearchIndexer::new(Arc::clone(new.store()), index(), true);
    catch_up(&restored).await;
    assert_eq!(find(&restored, "text").await.len(), 1);
    assert_eq!(find(&restored, "a").await, [0; 0]);
}
