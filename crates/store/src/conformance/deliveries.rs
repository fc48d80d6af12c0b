//! Conformance tests of deliveries: leases, reports, retries and expiry.

use futures_util::future::join_all;
use monoco_core::delivery::{DeliveryOutcome, SendState, SendStateData, SendStatus, SentPart};
use monoco_core::lease::LeaseLost;
use monoco_core::retry::Failure;

use super::*;
use crate::SweepCounts;

/// Sends `text` to an endpoint of `tunnel` at second `now`.
async fn send_text(store: &dyn Store, tunnel: &str, text: &str, now: i64) -> RecordId {
    send_text_not_before(store, tunnel, text, now, None).await
}

/// Each text has an address of its own, so that the deliveries do not wait for each other.
async fn send_text_not_before(
    store: &dyn Store,
    tunnel: &str,
    text: &str,
    now: i64,
    not_before: Option<i64>,
) -> RecordId {
    let address: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    send_to_address(store, &endpoint(&address, tunnel), text, now, not_before).await
}

async fn send_to_address(
    store: &dyn Store,
    target: &str,
    text: &str,
    now: i64,
    not_before: Option<i64>,
) -> RecordId {
    let msg = chat("me", &[target], text);
    let request =
        SendRequest { msg, key: None, not_before: not_before.map(at), origin: SendOrigin::Owner };
    match store.send(request, at(now)).await.unwrap() {
        SendResult::Queued { ways, .. } => ways[0].record_id.unwrap(),
        other => panic!("not queued: {other:?}"),
    }
}

async fn report(
    store: &dyn Store,
    leased: &Delivery,
    outcome: DeliveryOutcome,
    now: i64,
) -> Result<Delivery, StoreError> {
    store.report_delivery(leased.id, outcome, by_epoch(leased.sending.epoch), RETRY, at(now)).await
}

fn accepted() -> DeliveryOutcome {
    DeliveryOutcome::Accepted { external_msg_id: Some("om_out".to_owned()) }
}

fn temporary_failure(retry_after_ms: Option<u64>) -> DeliveryOutcome {
    DeliveryOutcome::Failed(Failure::Temporary {
        detail: "429".to_owned(),
        retry_after_ms,
        error_code: None,
    })
}

fn unknown_outcome() -> DeliveryOutcome {
    DeliveryOutcome::Failed(Failure::Unknown {
        detail: "connection lost".to_owned(),
        error_code: None,
    })
}

fn permanent_failure() -> DeliveryOutcome {
    DeliveryOutcome::Failed(Failure::Permanent {
        detail: "bot was removed".to_owned(),
        error_code: None,
    })
}

async fn put_idempotent_tunnel(store: &dyn Store) {
    put_tunnel(store, "keyed", StrangerPolicy::Accept, true).await;
}

pub(crate) async fn concurrent_reports_change_each_delivery_once(store: &dyn Store) {
    put_lark_tunnel(store).await;
    for n in 0..12 {
        send_text(store, "lark", &n.to_string(), 0).await;
    }
    let leases = (0..12).map(|_| lease_next_delivery(store, "lark", 0));
    let leased: Vec<_> = join_all(leases).await.into_iter().flatten().collect();
    assert_eq!(leased.len(), 12);
    // Two reports of each, and one of a lease that was never given.
    let reports = leased.iter().flat_map(|it| {
        let unknown = Delivery {
            sending: SendStatus { epoch: it.entry.sending.epoch + 1, ..it.entry.sending.clone() },
            ..it.entry.clone()
        };
        [it.entry.clone(), unknown, it.entry.clone()]
    });
    let reports: Vec<_> = reports.collect();
    let results = join_all(reports.iter().map(|it| report(store, it, accepted(), 1))).await;
    for (n, result) in results.into_iter().enumerate() {
        match (n % 3, result) {
            (1, Err(StoreError::LeaseLost(_))) => {}
            (0 | 2, Ok(delivery)) => {
                assert_eq!(delivery.sending.state.name(), SendState::Sent);
                assert_eq!(delivery.revision, 2);
            }
            (_, other) => panic!("report {n}: {other:?}"),
        }
    }
    assert_eq!(event_kinds(store).await.matches("sent").count(), 12);
}

pub(crate) async fn concurrent_senders_lease_each_delivery_once(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let texts: Vec<_> = (0..60).map(|n| n.to_string()).collect();
    join_all(texts.iter().map(|text| send_text(store, "lark", text, 0))).await;
    let sender = async |_| {
        let mut leased = Vec::new();
        while let Some(next) = lease_next_delivery(store, "lark", 1).await {
            leased.push(leased_text(&next).parse::<usize>().unwrap());
        }
        leased
    };
    let mut leased: Vec<_> = join_all((0..8).map(sender)).await.into_iter().flatten().collect();
    leased.sort_unstable();
    assert_eq!(leased, (0..60).collect::<Vec<_>>());
}

pub(crate) async fn next_due_follows_waiting_and_failed_deliveries(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let lark_did = "lark".parse::<TunnelId>().unwrap().did();
    let due = async || store.next_due(&lark_did).await.unwrap();
    assert_eq!(due().await, None);
    send_text_not_before(store, "lark", "later", 0, Some(90)).await;
    assert_eq!(due().await, Some(at(90)));
    send_text(store, "lark", "now", 5).await;
    assert_eq!(due().await, Some(at(5)));
    // A leased delivery is not due; a failed one is due when its retry is.
    let leased = lease_next_delivery(store, "lark", 6).await.unwrap().entry;
    assert_eq!(due().await, Some(at(90)));
    report(store, &leased, temporary_failure(None), 6).await.unwrap();
    assert_eq!(due().await, Some(at(7)));
}

pub(crate) async fn longest_due_delivery_is_leased_first(store: &dyn Store) {
    put_lark_tunnel(store).await;
    send_text_not_before(store, "lark", "posted first, due last", 0, Some(30)).await;
    send_text_not_before(store, "lark", "due second", 0, Some(20)).await;
    send_text(store, "lark", "due first", 10).await;
    send_text_not_before(store, "lark", "due second, posted later", 0, Some(20)).await;
    let mut order = Vec::new();
    while let Some(next) = lease_next_delivery(store, "lark", 40).await {
        order.push(leased_text(&next));
    }
    let want = ["due first", "due second", "due second, posted later", "posted first, due last"];
    assert_eq!(order, want);
}

pub(crate) async fn delivery_is_not_leased_before_it_is_due(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text_not_before(store, "lark", "later", 0, Some(100)).await;
    assert_eq!(store.delivery(id).await.unwrap().sending, SendStatus::start(at(100)));
    assert_eq!(lease_next_delivery(store, "lark", 99).await, None);
    send_text(store, "lark", "now", 99).await;
    assert_eq!(leased_text(&lease_next_delivery(store, "lark", 99).await.unwrap()), "now");
    assert_eq!(lease_next_delivery(store, "lark", 99).await, None);
    assert_eq!(leased_text(&lease_next_delivery(store, "lark", 100).await.unwrap()), "later");

    // A `not_before` in the past means now.
    send_text_not_before(store, "lark", "past", 200, Some(5)).await;
    let leased = lease_next_delivery(store, "lark", 200).await.unwrap().entry;
    assert_eq!(leased.sending.first_try, Some(at(200)));
}

pub(crate) async fn delivery_lease_matches_the_core_state_machine(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text(store, "lark", "hello", 0).await;
    let leased = lease_next_delivery(store, "lark", 7).await.unwrap();
    let by_core = SendStatus::start(at(0)).lease(holder("sender"), at(7), lease_for(60)).unwrap();
    assert_eq!(leased.entry.sending, by_core);
    assert_eq!((leased.entry.id, leased.entry.revision, leased.entry.updated_at), (id, 1, at(7)));
    assert_eq!(store.delivery(id).await.unwrap(), leased.entry);
    assert_eq!(
        store.object(leased.entry.msg_id).await.unwrap(),
        leased.message.canonical().as_bytes()
    );
    assert_eq!(lease_next_delivery(store, "lark", 8).await, None, "it is leased");
    assert_eq!(lease_next_delivery(store, "other", 8).await, None);
}

/// The lease of a slow sender expires, and a second sender leases the delivery. When the
/// first sender reports, the state is SENDING again, so a check of the state alone would
/// accept the report. The check of the epoch rejects it.
pub(crate) async fn late_report_is_rejected(store: &dyn Store) {
    put_idempotent_tunnel(store).await;
    send_text(store, "keyed", "hello", 0).await;
    let slow = lease_next_delivery(store, "keyed", 0).await.unwrap().entry;
    store.expire_leases(RETRY, 10, at(60)).await.unwrap();
    let fast = lease_next_delivery(store, "keyed", 100).await.unwrap().entry;

    assert_matches!(
        report(store, &slow, permanent_failure(), 101).await,
        Err(StoreError::LeaseLost(LeaseLost::Stale { shown: 1, current: 2 }))
    );
    assert_eq!(store.delivery(slow.id).await.unwrap(), fast);
    report(store, &fast, accepted(), 102).await.unwrap();
    assert_matches!(
        report(store, &slow, temporary_failure(None), 103).await,
        Err(StoreError::LeaseLost(_))
    );
    assert_eq!(tunnel_contents(store, "keyed").await, "hello SENT");
}

pub(crate) async fn report_without_epoch_is_checked_by_holder(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text(store, "lark", "hello", 0).await;
    lease_next_delivery(store, "lark", 0).await.unwrap();
    let settle = |who| store.report_delivery(id, accepted(), by_holder(who), RETRY, at(1));
    assert_matches!(settle("other").await, Err(StoreError::LeaseLost(LeaseLost::Held(_))));
    let sent = settle("sender").await.unwrap().sending.state;
    assert!(matches!(
        &sent,
        SendStateData::Sent { external_msg_id: Some(id), .. } if id == "om_out"
    ));
}

pub(crate) async fn temporary_failure_is_retried_for_24_hours(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text(store, "lark", "hello", 0).await;
    let first = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
    let failed = report(store, &first, temporary_failure(None), 10).await.unwrap();
    assert!(matches!(failed.sending.state, SendStateData::Failed { due, .. } if due == at(11)));
    assert_eq!(store.delivery(id).await.unwrap(), failed);

    assert_eq!(lease_next_delivery(store, "lark", 10).await, None);
    let second = lease_next_delivery(store, "lark", 11).await.unwrap().entry;
    assert_eq!((second.sending.attempts, second.sending.epoch), (2, 2));
    assert_eq!(second.sending.first_try, Some(at(0)), "the time limit runs from the first attempt");
    let failed = report(store, &second, temporary_failure(Some(90_000)), 20).await.unwrap();
    assert!(matches!(failed.sending.state, SendStateData::Failed { due, .. } if due == at(110)));

    let third = lease_next_delivery(store, "lark", 24 * 3600).await.unwrap().entry;
    let dead = report(store, &third, temporary_failure(None), 24 * 3600).await.unwrap();
    assert_eq!(dead.sending.state.name(), SendState::Dead, "no retry after 24 h");
    let kinds = event_kinds(store).await;
    assert!(kinds.ends_with("posted sending failed sending failed sending dead"), "{kinds}");
}

pub(crate) async fn permanent_failure_is_not_retried(store: &dyn Store) {
    put_idempotent_tunnel(store).await;
    send_text(store, "keyed", "hello", 0).await;
    let leased = lease_next_delivery(store, "keyed", 0).await.unwrap().entry;
    let dead = report(store, &leased, permanent_failure(), 1).await.unwrap();
    assert_eq!(dead.sending.state.failure().unwrap().detail(), "bot was removed");
    assert_eq!(tunnel_contents(store, "keyed").await, "hello DEAD");
    assert_eq!(lease_next_delivery(store, "keyed", 1_000_000).await, None);
}

/// When the outcome is unknown, a tunnel with idempotency keys retries. Other tunnels mark
/// the delivery UNCERTAIN, and the sender may still report the outcome later.
pub(crate) async fn unknown_outcome_is_retried_only_by_idempotent_tunnels(store: &dyn Store) {
    put_lark_tunnel(store).await;
    put_idempotent_tunnel(store).await;
    send_text(store, "lark", "hello", 0).await;
    send_text(store, "keyed", "hello", 0).await;
    let plain = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
    let safe = lease_next_delivery(store, "keyed", 0).await.unwrap().entry;
    report(store, &plain, unknown_outcome(), 1).await.unwrap();
    report(store, &safe, unknown_outcome(), 1).await.unwrap();
    assert_eq!(tunnel_contents(store, "lark").await, "hello UNCERTAIN");
    assert_eq!(tunnel_contents(store, "keyed").await, "hello FAILED");
    assert_eq!(lease_next_delivery(store, "lark", 1_000_000).await, None);
    assert!(lease_next_delivery(store, "keyed", 2).await.is_some());

    report(store, &plain, accepted(), 5).await.unwrap();
    assert_eq!(tunnel_contents(store, "lark").await, "hello SENT");
}

pub(crate) async fn repeated_report_changes_nothing(store: &dyn Store) {
    put_lark_tunnel(store).await;
    send_text(store, "lark", "hello", 0).await;
    let leased = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
    let first = report(store, &leased, accepted(), 1).await.unwrap();
    assert_eq!(report(store, &leased, accepted(), 2).await.unwrap(), first);
    assert!(event_kinds(store).await.ends_with("sending sent"));

    assert_matches!(
        report(store, &leased, permanent_failure(), 3).await,
        Err(StoreError::InvalidTransition(_))
    );
    assert_eq!(tunnel_contents(store, "lark").await, "hello SENT");
}

/// The mail server of a tunnel reports the failure of a message that it had accepted. A second
/// report, and a report about a delivery that is retried, change nothing.
pub(crate) async fn bounce_ends_a_sent_or_uncertain_delivery(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let no_mailbox = Failure::Permanent {
        detail: "mailbox does not exist".to_owned(),
        error_code: Some("5.1.1".to_owned()),
    };
    let bounce = |id, secs| store.bounce_delivery(id, no_mailbox.clone(), at(secs));
    for (text, outcome) in [("sent", accepted()), ("uncertain", unknown_outcome())] {
        let id = send_text(store, "lark", text, 0).await;
        let waiting = store.delivery(id).await.unwrap();
        assert_eq!(bounce(id, 1).await.unwrap(), waiting);
        let leased = lease_next_delivery(store, "lark", 2).await.unwrap().entry;
        assert_eq!(bounce(id, 3).await.unwrap(), leased);
        report(store, &leased, outcome, 4).await.unwrap();

        let dead = bounce(id, 5).await.unwrap();
        assert_eq!(dead.sending.state, SendStateData::Dead { why: no_mailbox.clone() });
        assert_eq!(store.delivery(id).await.unwrap(), dead);
        assert_eq!(bounce(id, 6).await.unwrap(), dead);
        let kinds = event_kinds(store).await;
        assert!(kinds.ends_with(&format!("posted sending {text} dead")), "{kinds}");

        let retry = store.mark_delivery(id, SendState::Wait, by_holder("operator"), None, at(7));
        let retried = retry.await.unwrap();
        assert_eq!(bounce(id, 8).await.unwrap(), retried);
        let hold = store.mark_delivery(id, SendState::Held, by_holder("operator"), None, at(8));
        hold.await.unwrap();
    }
    let unknown_id: RecordId = format!("dlv_{}", "0".repeat(48)).parse().unwrap();
    assert_matches!(bounce(unknown_id, 9).await, Err(StoreError::Missing { .. }));
}

pub(crate) async fn expired_delivery_lease_becomes_failed_or_uncertain(store: &dyn Store) {
    put_lark_tunnel(store).await;
    put_idempotent_tunnel(store).await;
    send_text(store, "lark", "hello", 0).await;
    send_text(store, "keyed", "hello", 0).await;
    lease_next_delivery(store, "lark", 0).await.unwrap();
    lease_next_delivery(store, "keyed", 0).await.unwrap();
    assert_eq!(store.expire_leases(RETRY, 10, at(59)).await.unwrap(), SweepCounts::default());
    let expired = store.expire_leases(RETRY, 10, at(60)).await.unwrap();
    assert_eq!(expired, SweepCounts { records: 0, deliveries: 2, email_tasks: 0 });
    assert_eq!(tunnel_contents(store, "lark").await, "hello UNCERTAIN");
    assert_eq!(tunnel_contents(store, "keyed").await, "hello FAILED");
    assert_eq!(store.expire_leases(RETRY, 10, at(99)).await.unwrap(), SweepCounts::default());
}

pub(crate) async fn expire_leases_respects_its_limit(store: &dyn Store) {
    put_idempotent_tunnel(store).await;
    for text in ["1", "2", "3"] {
        send_text(store, "keyed", text, 0).await;
        dispatch_text(store, text).await;
        lease_next_delivery(store, "keyed", 0).await.unwrap();
        lease_next_record(store, "bob", 0).await.unwrap();
    }
    let sweep = || async { store.expire_leases(RETRY, 2, at(60)).await.unwrap() };
    assert_eq!(sweep().await, SweepCounts { records: 2, deliveries: 2, email_tasks: 0 });
    assert_eq!(sweep().await, SweepCounts { records: 1, deliveries: 1, email_tasks: 0 });
    assert_eq!(sweep().await, SweepCounts::default());
}

pub(crate) async fn release_leases_matches_the_holder_prefix(store: &dyn Store) {
    put_lark_tunnel(store).await;
    put_idempotent_tunnel(store).await;
    for tunnel in ["lark", "keyed"] {
        for holder_name in ["boot-1/a", "boot-1/b", "boot-2/a", "100% boot-1/"] {
            send_text(store, tunnel, holder_name, 0).await;
            let tunnel = tunnel_id(tunnel).did();
            store
                .lease_delivery(&tunnel, holder(holder_name), lease_for(3600), at(0))
                .await
                .unwrap()
                .unwrap();
        }
    }
    dispatch_text(store, "hello").await;
    let bob = did("bob");
    let box_kind = BoxKind::Inbox;
    store
        .lease_record(&bob, box_kind, holder("boot-1/r"), lease_for(3600), at(0))
        .await
        .unwrap()
        .unwrap();

    let released = store.release_leases("boot-1/", RETRY, at(5)).await.unwrap();
    assert_eq!(released, SweepCounts { records: 1, deliveries: 4, email_tasks: 0 });
    assert_eq!(inbox_contents(store, "bob").await, "hello UNREAD");
    assert_eq!(
        tunnel_contents(store, "keyed").await,
        "boot-1/a FAILED, boot-1/b FAILED, boot-2/a SENDING, 100% boot-1/ SENDING"
    );
    assert_eq!(
        tunnel_contents(store, "lark").await,
        "boot-1/a UNCERTAIN, boot-1/b UNCERTAIN, boot-2/a SENDING, 100% boot-1/ SENDING"
    );
    assert_eq!(
        store.release_leases("boot-1/", RETRY, at(6)).await.unwrap(),
        SweepCounts::default()
    );
}

pub(crate) async fn operator_can_hold_and_retry_a_delivery(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text(store, "lark", "hello", 0).await;
    let mark = |to, secs| store.mark_delivery(id, to, by_holder("operator"), None, at(secs));
    mark(SendState::Held, 1).await.unwrap();
    assert_eq!(lease_next_delivery(store, "lark", 1_000).await, None);
    mark(SendState::Wait, 1_000).await.unwrap();
    let leased = lease_next_delivery(store, "lark", 1_000).await.unwrap().entry;
    assert_matches!(mark(SendState::Archived, 1_001).await, Err(StoreError::LeaseLost(_)));

    report(store, &leased, permanent_failure(), 1_002).await.unwrap();
    let retried = mark(SendState::Wait, 2_000).await.unwrap().sending;
    assert_eq!((retried.attempts, retried.first_try, retried.epoch), (0, None, 1));
    assert_eq!(retried.state, SendStateData::Wait { due: at(2_000) });
    let same = store.delivery(id).await.unwrap();
    assert_eq!(mark(SendState::Wait, 2_001).await.unwrap(), same, "it is already waiting");
    assert_matches!(mark(SendState::Sent, 2_001).await, Err(StoreError::InvalidTransition(_)));
}

pub(crate) async fn marking_a_stale_delivery_revision_is_a_conflict(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text(store, "lark", "hello", 0).await;
    let mark =
        |to, revision| store.mark_delivery(id, to, by_holder("operator"), Some(revision), at(1));
    mark(SendState::Held, 0).await.unwrap();
    assert_matches!(
        mark(SendState::Deleted, 0).await,
        Err(StoreError::Conflict { revision: 1, .. })
    );
    assert_eq!(tunnel_contents(store, "lark").await, "hello HELD");
}

pub(crate) async fn deliveries_are_listed_by_state_in_both_directions(store: &dyn Store) {
    use SendState::{Failed, Sending, Sent, Wait};
    put_lark_tunnel(store).await;
    for n in 0..6 {
        send_text(store, "lark", &n.to_string(), 0).await;
    }
    for outcome in [accepted(), temporary_failure(None), accepted()] {
        let leased = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
        report(store, &leased, outcome, 0).await.unwrap();
    }
    lease_next_delivery(store, "lark", 0).await.unwrap();
    let all = "0 SENT, 1 FAILED, 2 SENT, 3 SENDING, 4 WAIT, 5 WAIT";
    assert_eq!(tunnel_contents(store, "lark").await, all);

    let list = async |states: &[SendState], newest_first, limit| {
        let page = async |request| {
            let page = store.deliveries(&tunnel_id("lark").did(), states, request).await.unwrap();
            Page { entries: page.entries.iter().map(|d| d.msg_id).collect(), next: page.next }
        };
        texts_by_page(store, all_pages(limit, newest_first, page).await).await
    };
    assert_eq!(list(&[], false, 4).await, "0123 45");
    assert_eq!(list(&[], true, 4).await, "5432 10");
    assert_eq!(list(&[Wait, Sent], false, 3).await, "024 5");
    assert_eq!(list(&[Failed, Sending], true, 3).await, "31");
    assert_eq!(list(&[SendState::Dead], true, 3).await, "");
}

/// The texts that are leased at `now`, in order; each is accepted before the next one is leased.
async fn send_all(store: &dyn Store, tunnel: &str, now: i64) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(next) = lease_next_delivery(store, tunnel, now).await {
        texts.push(leased_text(&next));
        report(store, &next.entry, accepted(), now).await.unwrap();
    }
    texts
}

/// The texts of all deliveries that can be leased at `now`.
async fn lease_all(store: &dyn Store, tunnel: &str, now: i64) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(next) = lease_next_delivery(store, tunnel, now).await {
        texts.push(leased_text(&next));
    }
    texts
}

pub(crate) async fn deliveries_to_one_address_are_leased_one_at_a_time(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let (busy, other) = (endpoint("busy", "lark"), endpoint("other", "lark"));
    for n in 0..5 {
        send_to_address(store, &busy, &format!("b{n}"), n, None).await;
    }
    send_to_address(store, &other, "o0", 9, None).await;
    let first = lease_next_delivery(store, "lark", 10).await.unwrap().entry;
    assert_eq!(lease_all(store, "lark", 10).await, ["o0"], "other addresses go on");

    // The retried delivery is first again, whatever waits behind it.
    report(store, &first, temporary_failure(Some(60_000)), 10).await.unwrap();
    assert_eq!(lease_next_delivery(store, "lark", 69).await, None);
    assert_eq!(store.next_due(&tunnel_id("lark").did()).await.unwrap(), Some(at(70)));
    assert_eq!(send_all(store, "lark", 70).await, ["b0", "b1", "b2", "b3", "b4"]);
}

/// The next delivery follows in the same transaction, whatever ends the first one.
pub(crate) async fn end_of_a_delivery_lets_the_next_one_of_its_address_go(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let target = endpoint("oc_1", "lark");
    let mut ids = Vec::new();
    for n in 0..8 {
        ids.push(send_to_address(store, &target, &n.to_string(), 0, None).await);
    }
    let mark = |n: usize, to| store.mark_delivery(ids[n], to, by_holder("operator"), None, at(1));
    mark(0, SendState::Held).await.unwrap();
    mark(1, SendState::Archived).await.unwrap();
    mark(2, SendState::Deleted).await.unwrap();
    mark(4, SendState::Held).await.unwrap();
    for (text, outcome) in [("3", permanent_failure()), ("5", unknown_outcome())] {
        let leased = lease_next_delivery(store, "lark", 2).await.unwrap();
        assert_eq!(leased_text(&leased), text);
        assert_eq!(lease_next_delivery(store, "lark", 2).await, None);
        report(store, &leased.entry, outcome, 2).await.unwrap();
    }
    let expiring = lease_next_delivery(store, "lark", 2).await.unwrap();
    assert_eq!(leased_text(&expiring), "6");
    store.expire_leases(RETRY, 10, at(62)).await.unwrap();
    assert_eq!(send_all(store, "lark", 62).await, ["7"]);
    assert_eq!(
        tunnel_contents(store, "lark").await,
        "0 HELD, 1 ARCHIVED, 2 DELETED, 3 DEAD, 4 HELD, 5 UNCERTAIN, 6 UNCERTAIN, 7 SENT"
    );
}

/// A dead or held delivery that an operator releases takes its place when it is due again: behind
/// those that wait, and never before one that is being retried.
pub(crate) async fn retried_delivery_goes_behind_those_that_wait(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let target = endpoint("oc_1", "lark");
    let dead = send_to_address(store, &target, "dead", 0, None).await;
    let held = send_to_address(store, &target, "held", 0, None).await;
    let mark = |id, to, now| store.mark_delivery(id, to, by_holder("operator"), None, at(now));
    let leased = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
    report(store, &leased, permanent_failure(), 0).await.unwrap();
    mark(held, SendState::Held, 1).await.unwrap();
    send_to_address(store, &target, "a", 2, None).await;
    send_to_address(store, &target, "b", 3, None).await;
    let a = lease_next_delivery(store, "lark", 3).await.unwrap().entry;
    report(store, &a, temporary_failure(None), 3).await.unwrap();
    mark(dead, SendState::Wait, 4).await.unwrap();
    mark(held, SendState::Wait, 5).await.unwrap();
    send_to_address(store, &target, "c", 6, None).await;
    assert_eq!(send_all(store, "lark", 9).await, ["a", "b", "dead", "held", "c"]);
}

/// An operator that does not want to wait for the next attempt does not change the order.
pub(crate) async fn failed_delivery_that_is_retried_by_hand_stays_first(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let target = endpoint("oc_1", "lark");
    let first = send_to_address(store, &target, "first", 0, None).await;
    send_to_address(store, &target, "second", 1, None).await;
    let leased = lease_next_delivery(store, "lark", 1).await.unwrap().entry;
    report(store, &leased, temporary_failure(Some(3_600_000)), 1).await.unwrap();
    assert_eq!(lease_next_delivery(store, "lark", 2).await, None);
    let operator = by_holder("operator");
    let retried = store.mark_delivery(first, SendState::Wait, operator, None, at(2)).await.unwrap();
    assert_eq!(retried.sending.state, SendStateData::Wait { due: at(2) });
    send_to_address(store, &target, "third", 2, None).await;
    assert_eq!(store.next_due(&tunnel_id("lark").did()).await.unwrap(), Some(at(2)));
    assert_eq!(send_all(store, "lark", 2).await, ["first", "second", "third"]);
}

pub(crate) async fn scheduled_delivery_blocks_no_other_until_it_is_due(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let target = endpoint("oc_1", "lark");
    send_to_address(store, &target, "scheduled", 0, Some(100)).await;
    send_to_address(store, &target, "1", 1, None).await;
    let first = lease_next_delivery(store, "lark", 1).await.unwrap();
    assert_eq!(leased_text(&first), "1");
    send_to_address(store, &target, "2", 2, None).await;
    // It is due now, and waits for the attempt before it.
    assert_eq!(lease_next_delivery(store, "lark", 101).await, None);
    send_to_address(store, &target, "3", 102, None).await;
    report(store, &first.entry, temporary_failure(None), 102).await.unwrap();
    assert_eq!(send_all(store, "lark", 110).await, ["1", "2", "scheduled", "3"]);
}

pub(crate) async fn postponed_delivery_stays_first_and_the_attempt_does_not_count(
    store: &dyn Store,
) {
    put_lark_tunnel(store).await;
    let target = endpoint("oc_1", "lark");
    for text in ["1", "2"] {
        send_to_address(store, &target, text, 0, None).await;
    }
    let first = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
    let proof = by_epoch(first.sending.epoch);
    let postponed = store.postpone_delivery(first.id, at(5), proof.clone(), at(0)).await.unwrap();
    assert_eq!((postponed.sending.attempts, postponed.sending.epoch), (0, 1));
    assert_eq!(lease_next_delivery(store, "lark", 4).await, None);
    assert_eq!(store.next_due(&tunnel_id("lark").did()).await.unwrap(), Some(at(5)));
    let again = store.postpone_delivery(first.id, at(9), proof, at(4)).await;
    assert_matches!(again, Err(StoreError::InvalidTransition(_)));
    assert_eq!(send_all(store, "lark", 5).await, ["1", "2"]);
}

pub(crate) async fn parts_are_stored_in_order_and_survive_retries(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text(store, "lark", "long", 0).await;
    let part = |part: u32| SentPart { part, external_msg_id: Some(format!("om_{part}")) };
    let first = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
    let proof = by_epoch(first.sending.epoch);
    let record =
        |number, now| store.record_part(id, part(number), proof.clone(), lease_for(60), at(now));
    assert_matches!(record(1, 1).await, Err(StoreError::UnexpectedPart { found: 1, expected: 0 }));
    record(0, 30).await.unwrap();
    let stored = record(1, 40).await.unwrap();
    assert_eq!(stored.parts, [part(0), part(1)]);
    assert_eq!(record(1, 40).await.unwrap(), stored, "a repeated receipt changes nothing");
    assert_eq!(store.delivery(id).await.unwrap(), stored);
    // Each part renews the lease.
    store.expire_leases(RETRY, 10, at(99)).await.unwrap();
    assert_eq!(tunnel_contents(store, "lark").await, "long SENDING");
    report(store, &first, temporary_failure(None), 99).await.unwrap();
    assert_matches!(record(2, 99).await, Err(StoreError::InvalidTransition(_)));

    let second = lease_next_delivery(store, "lark", 100).await.unwrap().entry;
    assert_eq!(second.parts, [part(0), part(1)], "the attempt goes on behind them");
    assert_matches!(record(2, 100).await, Err(StoreError::LeaseLost(_)));
    let last = DeliveryOutcome::Accepted { external_msg_id: Some("om_2".to_owned()) };
    let sent = report(store, &second, last, 101).await.unwrap();
    assert_eq!(sent.parts, [part(0), part(1), part(2)]);
    assert_eq!(store.delivery(id).await.unwrap(), sent);
    for external_id in ["om_0", "om_1", "om_2"] {
        assert_eq!(store.find_by_external_id(external_id).await.unwrap(), sent.msg_id);
    }
    let kinds = event_kinds(store).await;
    assert!(kinds.ends_with("sending part_sent part_sent failed sending sent"), "{kinds}");
}

/// The sender was killed between two parts: whether the third was sent is not known.
pub(crate) async fn attempt_that_ends_between_parts_is_uncertain_and_resumed(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let id = send_text(store, "lark", "long", 0).await;
    let leased = lease_next_delivery(store, "lark", 0).await.unwrap().entry;
    let proof = by_epoch(leased.sending.epoch);
    let part = SentPart { part: 0, external_msg_id: None };
    store.record_part(id, part.clone(), proof, lease_for(60), at(1)).await.unwrap();
    store.release_leases("sender", RETRY, at(2)).await.unwrap();
    assert_eq!(tunnel_contents(store, "lark").await, "long UNCERTAIN");
    store.mark_delivery(id, SendState::Wait, by_holder("operator"), None, at(3)).await.unwrap();
    let resumed = lease_next_delivery(store, "lark", 3).await.unwrap().entry;
    assert_eq!(resumed.parts, [part]);
}

pub(crate) async fn unknown_outcome_is_looked_for_where_the_adapter_can(store: &dyn Store) {
    put_finding_tunnel(store, "finding").await;
    send_text(store, "finding", "1", 0).await;
    send_text(store, "finding", "2", 0).await;
    let first = lease_next_delivery(store, "finding", 0).await.unwrap().entry;
    assert!(!first.sending.outcome_unknown);
    report(store, &first, unknown_outcome(), 1).await.unwrap();
    lease_next_delivery(store, "finding", 1).await.unwrap();
    store.expire_leases(RETRY, 10, at(61)).await.unwrap();
    assert_eq!(tunnel_contents(store, "finding").await, "1 FAILED, 2 FAILED");

    let lookup = lease_next_delivery(store, "finding", 99).await.unwrap().entry;
    assert!(lookup.sending.outcome_unknown);
    report(store, &lookup, unknown_outcome(), 99).await.unwrap();
    let lookup = lease_next_delivery(store, "finding", 99).await.unwrap().entry;
    let (proof, part) =
        (by_epoch(lookup.sending.epoch), SentPart { part: 0, external_msg_id: None });
    let found = store.record_part(lookup.id, part, proof, lease_for(60), at(99)).await.unwrap();
    assert!(!found.sending.outcome_unknown);
    report(store, &found, accepted(), 99).await.unwrap();
    assert_eq!(tunnel_contents(store, "finding").await, "1 UNCERTAIN, 2 SENT");
}
