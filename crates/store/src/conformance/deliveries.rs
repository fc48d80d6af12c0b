//! Laws of deliveries: taken, reported, retried, swept.

use futures_util::future::join_all;
use monoco_core::delivery::{DeliveryOutcome, SendState, SendStateData, SendStatus};
use monoco_core::lease::LeaseLost;
use monoco_core::record::RecordId;
use monoco_core::retry::Failure;

use super::*;
use crate::SweepCounts;

/// Posts `text` to an endpoint behind `tunnel` at second `now`.
async fn send(store: &dyn Store, tunnel: &str, text: &str, now: i64) -> RecordId {
    send_at(store, tunnel, text, now, None).await
}

async fn send_at(
    store: &dyn Store,
    tunnel: &str,
    text: &str,
    now: i64,
    not_before: Option<i64>,
) -> RecordId {
    let msg = chat("me", &[&endpoint("oc_1", tunnel)], text);
    let post = SendRequest { msg, key: None, not_before: not_before.map(at) };
    match store.send(post, at(now)).await.unwrap() {
        SendResult::Queued { ways, .. } => ways[0].record_id.unwrap(),
        other => panic!("not on its way: {other:?}"),
    }
}

async fn report(
    store: &dyn Store,
    taken: &Delivery,
    outcome: DeliveryOutcome,
    now: i64,
) -> Result<Delivery, StoreError> {
    store.report_delivery(taken.id, outcome, in_epoch(taken.sending.epoch), AGAIN, at(now)).await
}

fn accepted() -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: Some("om_out".to_owned()) }
}

fn busy(retry_after_ms: Option<u64>) -> DeliveryOutcome {
    DeliveryOutcome::Failed(Failure::Temporary { detail: "429".to_owned(), retry_after_ms })
}

fn lost() -> DeliveryOutcome {
    DeliveryOutcome::Failed(Failure::Unknown { detail: "line went dead".to_owned() })
}

fn refused() -> DeliveryOutcome {
    DeliveryOutcome::Failed(Failure::Permanent { detail: "bot was removed".to_owned() })
}

async fn keyed(store: &dyn Store) {
    tunnel(store, "keyed", StrangerPolicy::Accept, true).await;
}

pub(crate) async fn eight_takers_get_each_delivery_once(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let texts: Vec<_> = (0..60).map(|n| n.to_string()).collect();
    join_all(texts.iter().map(|text| send(store, "lark", text, 0))).await;
    let taker = async |_| {
        let mut taken = Vec::new();
        while let Some(next) = send_next(store, "lark", 1).await {
            taken.push(said(next.message.canonical().as_bytes()).parse::<usize>().unwrap());
        }
        taken
    };
    let mut taken: Vec<_> = join_all((0..8).map(taker)).await.into_iter().flatten().collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..60).collect::<Vec<_>>());
}

pub(crate) async fn it_is_known_when_the_next_one_is_due(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let lark_did = "lark".parse::<TunnelId>().unwrap().did();
    let due = async || store.next_due(&lark_did).await.unwrap();
    assert_eq!(due().await, None);
    send_at(store, "lark", "later", 0, Some(90)).await;
    assert_eq!(due().await, Some(at(90)));
    send(store, "lark", "now", 5).await;
    assert_eq!(due().await, Some(at(5)));
    // What is being tried is not due, and what failed is due again.
    let taken = send_next(store, "lark", 6).await.unwrap().entry;
    assert_eq!(due().await, Some(at(90)));
    report(store, &taken, busy(None), 6).await.unwrap();
    assert_eq!(due().await, Some(at(7)));
}

pub(crate) async fn the_longest_due_is_taken_first(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    send_at(store, "lark", "posted first, due last", 0, Some(30)).await;
    send_at(store, "lark", "due second", 0, Some(20)).await;
    send(store, "lark", "due first", 10).await;
    send_at(store, "lark", "due second, posted later", 0, Some(20)).await;
    let mut order = Vec::new();
    while let Some(next) = send_next(store, "lark", 40).await {
        order.push(said(next.message.canonical().as_bytes()));
    }
    let want = ["due first", "due second", "due second, posted later", "posted first, due last"];
    assert_eq!(order, want);
}

pub(crate) async fn nothing_is_taken_before_its_time(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let id = send_at(store, "lark", "later", 0, Some(100)).await;
    assert_eq!(store.delivery(id).await.unwrap().sending, SendStatus::start(at(100)));
    assert_eq!(send_next(store, "lark", 99).await, None);
    send(store, "lark", "now", 99).await;
    assert_eq!(
        said(send_next(store, "lark", 99).await.unwrap().message.canonical().as_bytes()),
        "now"
    );
    assert_eq!(send_next(store, "lark", 99).await, None);
    assert_eq!(
        said(send_next(store, "lark", 100).await.unwrap().message.canonical().as_bytes()),
        "later"
    );

    // A time that is over means now.
    send_at(store, "lark", "past", 200, Some(5)).await;
    let taken = send_next(store, "lark", 200).await.unwrap().entry;
    assert_eq!(taken.sending.first_try, Some(at(200)));
}

pub(crate) async fn taking_follows_the_sending_machine(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let id = send(store, "lark", "hello", 0).await;
    let taken = send_next(store, "lark", 7).await.unwrap();
    let by_core = SendStatus::start(at(0)).lease(name("sender"), at(7), term(60)).unwrap();
    assert_eq!(taken.entry.sending, by_core);
    assert_eq!((taken.entry.id, taken.entry.revision, taken.entry.updated_at), (id, 1, at(7)));
    assert_eq!(store.delivery(id).await.unwrap(), taken.entry);
    assert_eq!(
        store.object(taken.entry.msg_id).await.unwrap(),
        taken.message.canonical().as_bytes()
    );
    assert_eq!(send_next(store, "lark", 8).await, None, "it is somebody's");
    assert_eq!(send_next(store, "other", 8).await, None);
}

/// The sender stalls, its lease runs out, another one tries. When the first one
/// wakes up, the row is SENDING again, so a guard on the state alone would let it
/// overwrite the truth. The epoch does not.
pub(crate) async fn a_late_report_is_refused(home: &dyn Home) {
    let store = &*home.open().await;
    keyed(store).await;
    send(store, "keyed", "hello", 0).await;
    let slow = send_next(store, "keyed", 0).await.unwrap().entry;
    store.expire_leases(AGAIN, 10, at(60)).await.unwrap();
    let fast = send_next(store, "keyed", 100).await.unwrap().entry;

    let late = report(store, &slow, refused(), 101).await;
    assert!(
        matches!(late, Err(StoreError::LeaseLost(LeaseLost::Stale { shown: 1, current: 2 }))),
        "{late:?}"
    );
    assert_eq!(store.delivery(slow.id).await.unwrap(), fast);
    report(store, &fast, accepted(), 102).await.unwrap();
    let late = report(store, &slow, busy(None), 103).await;
    assert!(matches!(late, Err(StoreError::LeaseLost(_))), "{late:?}");
    assert_eq!(outgoing(store, "keyed").await, "hello SENT");
}

pub(crate) async fn a_report_without_epoch_is_checked_by_name(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let id = send(store, "lark", "hello", 0).await;
    send_next(store, "lark", 0).await.unwrap();
    let settle = |who| store.report_delivery(id, accepted(), by(who), AGAIN, at(1));
    let other = settle("somebody else").await;
    assert!(matches!(other, Err(StoreError::LeaseLost(LeaseLost::Held(_)))), "{other:?}");
    let sent = settle("sender").await.unwrap().sending.state;
    assert_eq!(sent, SendStateData::Sent { external_msg_id: Some("om_out".to_owned()) });
}

pub(crate) async fn a_temporary_failure_is_tried_again(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let id = send(store, "lark", "hello", 0).await;
    let first = send_next(store, "lark", 0).await.unwrap().entry;
    let failed = report(store, &first, busy(None), 10).await.unwrap();
    assert!(matches!(failed.sending.state, SendStateData::Failed { due, .. } if due == at(11)));
    assert_eq!(store.delivery(id).await.unwrap(), failed);

    assert_eq!(send_next(store, "lark", 10).await, None);
    let second = send_next(store, "lark", 11).await.unwrap().entry;
    assert_eq!((second.sending.attempts, second.sending.epoch), (2, 2));
    assert_eq!(second.sending.first_try, Some(at(0)), "patience runs from the first try");
    let failed = report(store, &second, busy(Some(90_000)), 20).await.unwrap();
    assert!(matches!(failed.sending.state, SendStateData::Failed { due, .. } if due == at(110)));

    let third = send_next(store, "lark", 24 * 3600).await.unwrap().entry;
    let dead = report(store, &third, busy(None), 24 * 3600).await.unwrap();
    assert_eq!(dead.sending.state.name(), SendState::Dead, "a day is enough");
    let told = events(store).await;
    assert!(told.ends_with("posted sending failed sending failed sending dead"), "{told}");
}

pub(crate) async fn a_refusal_is_final(home: &dyn Home) {
    let store = &*home.open().await;
    keyed(store).await;
    send(store, "keyed", "hello", 0).await;
    let taken = send_next(store, "keyed", 0).await.unwrap().entry;
    let dead = report(store, &taken, refused(), 1).await.unwrap();
    assert_eq!(dead.sending.state.failure().unwrap().detail(), "bot was removed");
    assert_eq!(outgoing(store, "keyed").await, "hello DEAD");
    assert_eq!(send_next(store, "keyed", 1_000_000).await, None);
}

/// Where the provider takes an idempotency key it is sent again, elsewhere never
/// blindly; whoever tried may still find out.
pub(crate) async fn doubt_is_settled_by_the_tunnels_manner(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    keyed(store).await;
    send(store, "lark", "hello", 0).await;
    send(store, "keyed", "hello", 0).await;
    let plain = send_next(store, "lark", 0).await.unwrap().entry;
    let safe = send_next(store, "keyed", 0).await.unwrap().entry;
    report(store, &plain, lost(), 1).await.unwrap();
    report(store, &safe, lost(), 1).await.unwrap();
    assert_eq!(outgoing(store, "lark").await, "hello UNCERTAIN");
    assert_eq!(outgoing(store, "keyed").await, "hello FAILED");
    assert_eq!(send_next(store, "lark", 1_000_000).await, None);
    assert!(send_next(store, "keyed", 2).await.is_some());

    report(store, &plain, accepted(), 5).await.unwrap();
    assert_eq!(outgoing(store, "lark").await, "hello SENT");
}

pub(crate) async fn a_report_can_be_repeated(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    send(store, "lark", "hello", 0).await;
    let taken = send_next(store, "lark", 0).await.unwrap().entry;
    let first = report(store, &taken, accepted(), 1).await.unwrap();
    assert_eq!(report(store, &taken, accepted(), 2).await.unwrap(), first);
    assert!(events(store).await.ends_with("sending sent"));

    let contrary = report(store, &taken, refused(), 3).await;
    assert!(matches!(contrary, Err(StoreError::InvalidTransition(_))), "{contrary:?}");
    assert_eq!(outgoing(store, "lark").await, "hello SENT");
}

pub(crate) async fn the_sweeper_moves_on_what_nobody_reported(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    keyed(store).await;
    send(store, "lark", "hello", 0).await;
    send(store, "keyed", "hello", 0).await;
    send_next(store, "lark", 0).await.unwrap();
    send_next(store, "keyed", 0).await.unwrap();
    assert_eq!(store.expire_leases(AGAIN, 10, at(59)).await.unwrap(), SweepCounts::default());
    let swept = store.expire_leases(AGAIN, 10, at(60)).await.unwrap();
    assert_eq!(swept, SweepCounts { records: 0, deliveries: 2 });
    assert_eq!(outgoing(store, "lark").await, "hello UNCERTAIN");
    assert_eq!(outgoing(store, "keyed").await, "hello FAILED");
    assert_eq!(store.expire_leases(AGAIN, 10, at(99)).await.unwrap(), SweepCounts::default());
}

pub(crate) async fn a_sweep_keeps_to_its_limit(home: &dyn Home) {
    let store = &*home.open().await;
    keyed(store).await;
    for text in ["1", "2", "3"] {
        send(store, "keyed", text, 0).await;
        put_in(store, plain(chat("ann", &["bob"], text))).await;
        send_next(store, "keyed", 0).await.unwrap();
        read_next(store, "bob", 0).await.unwrap();
    }
    let sweep = || async { store.expire_leases(AGAIN, 2, at(60)).await.unwrap() };
    assert_eq!(sweep().await, SweepCounts { records: 2, deliveries: 2 });
    assert_eq!(sweep().await, SweepCounts { records: 1, deliveries: 1 });
    assert_eq!(sweep().await, SweepCounts::default());
}

pub(crate) async fn a_release_ends_the_leases_of_one_boot(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    keyed(store).await;
    for tunnel in ["lark", "keyed"] {
        for holder in ["boot-1/a", "boot-1/b", "boot-2/a", "100% boot-1/"] {
            send(store, tunnel, holder, 0).await;
            let tunnel = tunnel_id(tunnel).did();
            store.lease_delivery(&tunnel, name(holder), term(3600), at(0)).await.unwrap().unwrap();
        }
    }
    put_in(store, plain(chat("ann", &["bob"], "hello"))).await;
    let bob = did("bob");
    let box_kind = BoxKind::Inbox;
    store.lease_record(&bob, box_kind, name("boot-1/r"), term(3600), at(0)).await.unwrap().unwrap();

    let released = store.release_leases("boot-1/", AGAIN, at(5)).await.unwrap();
    assert_eq!(released, SweepCounts { records: 1, deliveries: 4 });
    assert_eq!(inbox(store, "bob").await, "hello UNREAD");
    assert_eq!(
        outgoing(store, "keyed").await,
        "boot-1/a FAILED, boot-1/b FAILED, boot-2/a SENDING, 100% boot-1/ SENDING"
    );
    assert_eq!(
        outgoing(store, "lark").await,
        "boot-1/a UNCERTAIN, boot-1/b UNCERTAIN, boot-2/a SENDING, 100% boot-1/ SENDING"
    );
    assert_eq!(
        store.release_leases("boot-1/", AGAIN, at(6)).await.unwrap(),
        SweepCounts::default()
    );
}

pub(crate) async fn a_person_holds_and_revives(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let id = send(store, "lark", "hello", 0).await;
    let mark = |to, secs| store.mark_delivery(id, to, by("person"), None, at(secs));
    mark(SendState::Held, 1).await.unwrap();
    assert_eq!(send_next(store, "lark", 1_000).await, None);
    mark(SendState::Wait, 1_000).await.unwrap();
    let taken = send_next(store, "lark", 1_000).await.unwrap().entry;
    let held = mark(SendState::Archived, 1_001).await;
    assert!(matches!(held, Err(StoreError::LeaseLost(_))), "{held:?}");

    report(store, &taken, refused(), 1_002).await.unwrap();
    let revived = mark(SendState::Wait, 2_000).await.unwrap().sending;
    assert_eq!((revived.attempts, revived.first_try, revived.epoch), (0, None, 1));
    assert_eq!(revived.state, SendStateData::Wait { due: at(2_000) });
    let same = store.delivery(id).await.unwrap();
    assert_eq!(mark(SendState::Wait, 2_001).await.unwrap(), same, "it waits already");
    let wrong = mark(SendState::Sent, 2_001).await;
    assert!(matches!(wrong, Err(StoreError::InvalidTransition(_))), "{wrong:?}");
}

pub(crate) async fn a_delivery_at_another_revision_is_a_conflict(home: &dyn Home) {
    let store = &*home.open().await;
    lark(store).await;
    let id = send(store, "lark", "hello", 0).await;
    let mark = |to, revision| store.mark_delivery(id, to, by("person"), Some(revision), at(1));
    mark(SendState::Held, 0).await.unwrap();
    let stale = mark(SendState::Deleted, 0).await;
    assert!(matches!(stale, Err(StoreError::Conflict { revision: 1, .. })), "{stale:?}");
    assert_eq!(outgoing(store, "lark").await, "hello HELD");
}

pub(crate) async fn deliveries_are_listed_by_state_and_both_ways(home: &dyn Home) {
    use SendState::{Failed, Sending, Sent, Wait};
    let store = &*home.open().await;
    lark(store).await;
    for n in 0..6 {
        send(store, "lark", &n.to_string(), 0).await;
    }
    for outcome in [accepted(), busy(None), accepted()] {
        let taken = send_next(store, "lark", 0).await.unwrap().entry;
        report(store, &taken, outcome, 0).await.unwrap();
    }
    send_next(store, "lark", 0).await.unwrap();
    let all = "0 SENT, 1 FAILED, 2 SENT, 3 SENDING, 4 WAIT, 5 WAIT";
    assert_eq!(outgoing(store, "lark").await, all);

    let list = async |states: &[SendState], newest_first, limit| {
        let page = async |window| {
            let page = store.deliveries(&tunnel_id("lark").did(), states, window).await.unwrap();
            Page { entries: page.entries.iter().map(|d| d.msg_id).collect(), next: page.next }
        };
        spell(store, pages(limit, newest_first, page).await).await
    };
    assert_eq!(list(&[], false, 4).await, "0123 45");
    assert_eq!(list(&[], true, 4).await, "5432 10");
    assert_eq!(list(&[Wait, Sent], false, 3).await, "024 5");
    assert_eq!(list(&[Failed, Sending], true, 3).await, "31");
    assert_eq!(list(&[SendState::Dead], true, 3).await, "");
}
