//! Conformance tests of counts, and that all data survives reopening.

use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::retry::Failure;

use super::*;
use crate::StoreCounts;

/// Computes the counts from lists of all records and deliveries.
pub(super) async fn recount(store: &dyn Store, owners: &[&str], tunnels: &[&str]) -> StoreCounts {
    let mut counts = StoreCounts::default();
    for owner in owners {
        for box_kind in BoxKind::ALL {
            let page = store
                .records(&did(owner), box_kind, &RecordFilter::default(), FULL_PAGE)
                .await
                .unwrap();
            for record in page.entries {
                *counts.records.entry((box_kind, record.reading.state.name())).or_default() += 1;
            }
        }
    }
    use SendState::{Failed, Held, Sending, Wait};
    for tunnel in tunnels {
        let page = store.deliveries(&tunnel_id(tunnel).did(), &[], FULL_PAGE).await.unwrap();
        for delivery in page.entries {
            let state = delivery.sending.state.name();
            *counts.deliveries.entry(state).or_default() += 1;
            if [Wait, Failed, Sending, Held].contains(&state) {
                let oldest = counts.oldest_waiting.unwrap_or(delivery.created_at);
                counts.oldest_waiting = Some(oldest.min(delivery.created_at));
            }
        }
    }
    counts
}

/// Fills the store with records, deliveries, contacts and groups in several states.
async fn fill_store(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "bob").await;
    add_group(store, "team", &["ann", "bob"]).await;
    for n in 0..6 {
        let msg = chat("ann", &["bob", "cat"], &n.to_string());
        dispatch(store, via_tunnel("lark", &format!("om_{n}"), msg)).await;
        let out =
            chat("bob", &[&endpoint(&format!("oc_{n}"), "lark"), "cat", "team"], &n.to_string());
        store.send(send_request(out), at(n)).await.unwrap();
    }
    for to in [ReadState::Readed, ReadState::Archived, ReadState::Deleted] {
        let leased = lease_next_record(store, "bob", 10).await.unwrap().entry;
        mark(store, leased.id, to, 11).await.unwrap();
    }
    lease_next_record(store, "cat", 10).await.unwrap();
    let outcomes = [
        DeliveryOutcome::Accepted { external_msg_id: None },
        DeliveryOutcome::Failed(Failure::Unknown { detail: "?".into(), error_code: None }),
        DeliveryOutcome::Failed(Failure::Permanent { detail: "no".into(), error_code: None }),
        DeliveryOutcome::Failed(Failure::Temporary {
            detail: "busy".into(),
            retry_after_ms: None,
            error_code: None,
        }),
    ];
    for outcome in outcomes {
        let leased = lease_next_delivery(store, "lark", 10).await.unwrap().entry;
        store.report_delivery(leased.id, outcome, by_epoch(1), RETRY, at(11)).await.unwrap();
    }
    lease_next_delivery(store, "lark", 10).await.unwrap();
    store.expire_leases(RETRY, 1, at(1000)).await.unwrap();
}

pub(crate) async fn counts_equal_a_recount(home: &dyn TestHome) {
    let store = home.open().await;
    assert_eq!(store.counts().await.unwrap(), StoreCounts::default());
    fill_store(&*store).await;
    let counted = recount(&*store, &["ann", "bob", "cat", "team"], &["lark"]).await;
    assert_eq!(store.counts().await.unwrap(), counted);
    assert!(counted.oldest_waiting.is_some());
    drop(store);
    assert_eq!(home.open().await.counts().await.unwrap(), counted);
}

pub(crate) async fn all_data_survives_reopening(home: &dyn TestHome) {
    async fn everything(store: &dyn Store) -> String {
        let mut out = format!("{:#?}", store.events(0, 10_000).await.unwrap());
        for owner in ["ann", "bob", "cat", "team"] {
            for box_kind in BoxKind::ALL {
                let page = store
                    .records(&did(owner), box_kind, &RecordFilter::default(), FULL_PAGE)
                    .await
                    .unwrap();
                out += &format!("{page:#?}");
            }
            out += &format!("{:#?}", store.sessions(&did(owner), FULL_PAGE).await.unwrap());
        }
        let lark = tunnel_id("lark").did();
        out += &format!("{:#?}", store.deliveries(&lark, &[], FULL_PAGE).await.unwrap());
        out += &format!("{:#?}", store.contacts(FULL_PAGE).await.unwrap());
        out += &format!("{:#?}", store.groups(FULL_PAGE).await.unwrap());
        out += &format!("{:#?}", store.tunnels().await.unwrap());
        out + &format!("{:#?}", store.counts().await.unwrap())
    }
    let store = home.open().await;
    fill_store(&*store).await;
    let before = everything(&*store).await;
    drop(store);
    let store = home.open().await;
    assert_eq!(everything(&*store).await, before);
    assert_eq!(store.health(), crate::StoreHealth::Ok);
    let last = store.events(0, 10_000).await.unwrap().last().map(|event| event.seq);
    assert_eq!(Some(*store.newest_event().borrow()), last);
    let again = via_tunnel("lark", "om_3", chat("ann", &["bob"], "edited"));
    assert_eq!(dispatch(&*store, again).await, "again: bob/INBOX cat/INBOX");
}
