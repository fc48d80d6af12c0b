//! Conformance tests of what the search index reads.

use monoco_core::claim::Workspace;
use monoco_core::delivery::SendState;
use monoco_core::erasure::ErasedAuthors;

use super::mails::{store_held_mail, store_mails};
use super::*;
use crate::{ErasureRequest, SearchHit, SearchableMessage};

/// All messages that an index would contain, in pages.
async fn searchable(store: &dyn Store) -> Vec<SearchableMessage> {
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let page = store.searchable_messages(after).await.unwrap();
        found.extend(page.messages);
        let Some((last, hash)) = page.last else { return found };
        assert_eq!(store.object_mark(Some(last)).await.unwrap(), Some((last, hash)));
        after = last;
    }
}

async fn hits(store: &dyn Store, messages: &[SearchableMessage]) -> Vec<SearchHit> {
    let seqs = messages.iter().rev().map(|message| message.seq).collect();
    store.search_hits(seqs, &Workspace::shared()).await.unwrap()
}

pub(crate) async fn messages_of_both_directions_are_searchable(store: &dyn Store) {
    assert_eq!(store.object_mark(None).await.unwrap(), None);
    put_tunnel(store, "lark", StrangerPolicy::Accept, false).await;
    let mails = store_mails(store, &["mail"], 0).await;
    dispatch(store, without_tunnel(chat("ann", &["bob"], "dispatched"))).await;
    let target = endpoint("cat", "lark");
    send_message(store, chat("bob", &[&target], "sent")).await;
    let all = searchable(store).await;
    let tunnels: Vec<_> = all.iter().map(|it| it.tunnels.clone().unwrap().join(" ")).collect();
    assert_eq!(tunnels, ["lark", "", "lark"]);
    assert!(all.iter().all(|message| message.body.is_some() && message.at.is_some()));
    assert!(all.windows(2).all(|pair| pair[0].seq < pair[1].seq));

    let hits = hits(store, &all).await;
    let order: Vec<_> = hits.iter().map(|hit| hit.id).collect();
    let expected: Vec<_> = all.iter().rev().map(|message| message.id).collect();
    assert_eq!(order, expected);
    let sent: Vec<_> = hits.iter().map(|hit| (hit.is_sent, hit.deliveries.clone())).collect();
    assert_eq!(sent, [(true, vec![SendState::Wait]), (false, vec![]), (false, vec![])]);
    assert_eq!(hits[1].parties, [did("bob").as_str()]);
    assert!(hits[0].parties.contains(&did("bob").to_string()), "{:?}", hits[0].parties);
    assert_eq!(hits[2].mail.as_ref().unwrap().entry.id, mails[0]);
    let newest = store.object_mark(None).await.unwrap().unwrap();
    assert!(newest.0 >= all[2].seq);
}

pub(crate) async fn hidden_messages_are_not_hits(store: &dyn Store) {
    store_held_mail(store, "eve", "held", 0).await;
    store_mails(store, &["purged", "kept"], 100).await;
    dispatch(store, without_tunnel(chat("joe", &["bob"], "erased"))).await;
    let all = searchable(store).await;
    assert_eq!(all.len(), 4);
    let (_, change) = store.purged_messages(0).await.unwrap();

    store.expire_unclaimed_mails(i64::MAX, 1, at(200)).await.unwrap();
    store.purge_archived_mails(i64::MAX, 1, at(201)).await.unwrap();
    let authors = ErasedAuthors([did("joe")].into());
    let request = ErasureRequest { authors, ..ErasureRequest::default() };
    store.erase(&request, at(300)).await.unwrap();

    let visible = hits(store, &all).await;
    let ids: Vec<_> = visible.iter().map(|hit| hit.id).collect();
    assert_eq!(ids, [all[2].id], "{visible:#?}");
    let (purged, last) = store.purged_messages(change).await.unwrap();
    assert_eq!(purged, [all[1].seq]);
    assert_eq!(store.purged_messages(last).await.unwrap(), (Vec::new(), last));
    let erased = store.erased_messages(0).await.unwrap();
    let [(number, gone)] = erased[..] else { panic!("{erased:?}") };
    assert_eq!(gone, all[3].seq);
    assert_eq!(store.erased_messages(number).await.unwrap(), []);
    // A repeated erasure erases nothing.
    store.erase(&request, at(301)).await.unwrap();
    assert_eq!(store.erased_messages(number).await.unwrap(), []);
    for (message, is_left) in all.iter().zip([true, false, true, false]) {
        let read = store.searchable_message(message.seq).await.unwrap();
        assert_eq!(read.is_some(), is_left, "{message:?}");
    }
    assert_eq!(searchable(store).await.len(), 2);
}
