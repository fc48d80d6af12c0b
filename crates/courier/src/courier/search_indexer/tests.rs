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
