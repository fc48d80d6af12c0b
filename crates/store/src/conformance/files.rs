//! Conformance tests of the files of Mails: changes, index entries and progress.

use monoco_core::claim::{MailLocation, Workspace};

use super::inbound::{inbound_message, merge_due, store_inbound};
use super::mails::store_mails;
use super::*;
use crate::{ClaimUpdate, FileChange, FileProgress};

pub(super) async fn file_changes(store: &dyn Store, after: i64) -> Vec<FileChange> {
    store.list_file_changes(after, 1_000).await.unwrap()
}

/// The number of the newest change.
pub(super) async fn newest_change(store: &dyn Store) -> i64 {
    file_changes(store, 0).await.last().map_or(0, |change| change.change)
}

pub(crate) async fn index_entries_and_file_changes_are_paged(store: &dyn Store) {
    let ids = store_mails(store, &["a", "b", "c", "d", "e"], 0).await;
    let (shared, holder) = (Workspace::shared(), holder("agent"));
    store.claim(&ids[1], &shared, holder, lease_for(60), RetryPolicy::CLAIM, at(10)).await.unwrap();
    store
        .update_claim(&ids[1], &shared, by_holder("agent"), ClaimUpdate::Complete, at(11))
        .await
        .unwrap();

    let walk = async |index: bool| {
        let (mut after, mut walked) = (0, Vec::new());
        loop {
            let page = match index {
                true => store.list_index_entries(after, 2).await.unwrap(),
                false => store.list_file_changes(after, 2).await.unwrap(),
            };
            assert!(page.len() <= 2);
            let Some(last) = page.last() else { return walked };
            after = if index { last.entry.seq } else { last.change };
            walked.extend(page.into_iter().map(|change| (change.entry.id, change.location)));
        }
    };
    let line = |n: usize, place| (ids[n].clone(), place);
    use MailLocation::{Archive, Inbound};
    let by_number =
        [line(0, Inbound), line(1, Archive), line(2, Inbound), line(3, Inbound), line(4, Inbound)];
    assert_eq!(walk(true).await, by_number);
    let by_change =
        [line(0, Inbound), line(2, Inbound), line(3, Inbound), line(4, Inbound), line(1, Archive)];
    assert_eq!(walk(false).await, by_change, "each Mail has only its last change");
}

pub(crate) async fn each_courier_has_a_file_progress_that_survives_reopening(home: &dyn TestHome) {
    let store = home.open().await;
    assert_eq!(store.file_progress(COURIER).await.unwrap(), FileProgress::default());
    for change in [7, 3] {
        let progress = FileProgress { change, index_bytes: 1 << 40, index_seq: 9, generation: 2 };
        store.set_file_progress(COURIER, progress).await.unwrap();
        assert_eq!(store.file_progress(COURIER).await.unwrap(), progress);
    }
    let progress = store.file_progress(COURIER).await.unwrap();
    let other = CourierId::from_random([2; 16]);
    assert_eq!(store.file_progress(other).await.unwrap(), FileProgress::default());
    store.set_file_progress(other, FileProgress { change: 1, ..progress }).await.unwrap();
    drop(store);
    assert_eq!(home.open().await.file_progress(COURIER).await.unwrap(), progress);
}

pub(crate) async fn newest_file_change_is_published_after_commit(home: &dyn TestHome) {
    let store = home.open().await;
    let mut news = store.newest_file_change();
    assert_eq!(*news.borrow_and_update(), 0);
    store_inbound(&*store, inbound_message("1", "ann", "a"), 0).await;
    assert!(!news.has_changed().unwrap());
    merge_due(&*store, 60).await;
    let newest = newest_change(&*store).await;
    news.changed().await.unwrap();
    assert_eq!(*news.borrow_and_update(), newest);
    drop(store);
    assert_eq!(*home.open().await.newest_file_change().borrow(), newest);
}
