//! Conformance tests of the retention clock, purging by age, and wrong clocks.

use std::collections::BTreeMap;
use std::time::Duration;

use monoco_core::claim::{MailLocation, Workspace};
use monoco_core::email::task::{EmailTaskId, TaskOutcome};
use monoco_core::inbound::ChatSessionKind;
use monoco_core::letter::LetterState;
use monoco_core::mail::MailId;
use monoco_core::object::ObjKind;
use monoco_core::record::ReadState;
use monoco_core::retention::ClockStep;

use super::email::{mail, page, register_texts};
use super::email_tasks::{finish, start};
use super::files::{file_changes, newest_change};
use super::inbound::{inbound_message, merge_context, merge_due, store_inbound, with_message};
use super::letter_lists::list_texts;
use super::letter_operator::hand_over;
use super::letters::{
    accept_letter, apply_step, letter, letter_status, outgoing_message, step_letter, submitted,
    then_hold, then_send, then_trash, then_wait,
};
use super::mails::{location_of, store_mails};
use super::*;
use crate::{ClaimUpdate, LetterQuery, LetterSource, LetterStep, NextAction, RegisterMailsRequest};

const DAY: i64 = 86_400;

/// Claims and completes a Mail for one workspace.
async fn complete_mail(store: &dyn Store, id: &MailId, workspace: &str, now: i64) {
    let workspace = Workspace::new(workspace).unwrap();
    store
        .claim(id, &workspace, holder("a"), lease_for(60), RetryPolicy::CLAIM, at(now))
        .await
        .unwrap();
    store
        .update_claim(id, &workspace, by_holder("a"), ClaimUpdate::Complete, at(now))
        .await
        .unwrap();
}

pub(crate) async fn old_archived_mails_are_purged(store: &dyn Store) {
    store.advance_retention_clock(at(0)).await.unwrap();
    let ids = store_mails(store, &["busy", "old", "young", "open"], 0).await;
    let [busy, old, young, open] = &ids[..] else { panic!() };
    complete_mail(store, busy, "w", 1).await;
    complete_mail(store, old, "w", 1).await;
    for day in 1..=3 {
        store.advance_retention_clock(at(day * DAY)).await.unwrap();
    }
    complete_mail(store, young, "w", 3 * DAY).await;
    let late = Workspace::new("late").unwrap();
    let now = at(3 * DAY);
    store.claim(busy, &late, holder("a"), lease_for(60), RetryPolicy::CLAIM, now).await.unwrap();

    let change = newest_change(store).await;
    assert_eq!(store.purge_archived_mails(-1, 10, now).await.unwrap(), 0);
    // A Mail with an open claim is not purged, and does not count against the limit.
    assert_eq!(store.purge_archived_mails(0, 1, now).await.unwrap(), 1);
    assert_eq!(store.purge_archived_mails(2, 10, now).await.unwrap(), 0);
    for (id, there) in [
        (busy, MailLocation::Archive),
        (old, MailLocation::Removed),
        (young, MailLocation::Archive),
        (open, MailLocation::Inbound),
    ] {
        assert_eq!(location_of(store, id).await, there);
    }
    let gone = file_changes(store, change).await;
    assert_eq!((gone.len(), &gone[0].entry.id, gone[0].location), (1, old, MailLocation::Removed));
    assert_matches!(
        store.claim(old, &late, holder("a"), lease_for(60), RetryPolicy::CLAIM, now).await,
        Err(StoreError::InvalidTransition(_))
    );
    assert!(store.object(gone[0].entry.msg_id).await.is_ok(), "only the file is removed");

    store.update_claim(busy, &late, by_holder("a"), ClaimUpdate::Complete, now).await.unwrap();
    assert_eq!(store.purge_archived_mails(3, 10, now).await.unwrap(), 2);
    assert_eq!(
        location_of(store, open).await,
        MailLocation::Inbound,
        "a Mail that is not archived stays"
    );
}

/// The states of the owner's INBOX records.
async fn inbox_states(store: &dyn Store) -> Vec<ReadState> {
    let owner = merge_context(true).owner.clone();
    let page =
        store.records(&owner, BoxKind::Inbox, &RecordFilter::default(), FULL_PAGE).await.unwrap();
    page.entries.iter().map(|record| record.reading.state.name()).collect()
}

/// Stores one direct message for each text, each a Mail of its own author.
async fn store_direct_mails(store: &dyn Store, texts: &[&str]) -> Vec<MailId> {
    for text in texts {
        let direct = with_message(inbound_message(text, text, text), |message| {
            message.session.kind = ChatSessionKind::Direct;
            message.session.id = (*text).to_owned();
        });
        store_inbound(store, direct, 0).await;
    }
    store.merge(merge_context(true), 1_000, at(0)).await.unwrap();
    texts.iter().map(|text| MailId::of("lark", &tunnel_id("lark"), text)).collect()
}

pub(crate) async fn unclaimed_mails_expire_and_can_still_be_claimed(store: &dyn Store) {
    store.advance_retention_clock(at(0)).await.unwrap();
    let ids = store_direct_mails(store, &["free", "claimed"]).await;
    let work = Workspace::new("w").unwrap();
    let claim = |id| {
        let now = at(2 * DAY);
        store.claim(id, &work, holder("a"), lease_for(60), RetryPolicy::CLAIM, now)
    };
    claim(&ids[1]).await.unwrap();
    for day in 1..=2 {
        store.advance_retention_clock(at(day * DAY)).await.unwrap();
    }
    let young = store_mails(store, &["young"], 2 * DAY).await;
    let now = at(2 * DAY);
    assert_eq!(store.expire_unclaimed_mails(-1, 10, now).await.unwrap(), 0);
    assert_eq!(store.expire_unclaimed_mails(1, 10, now).await.unwrap(), 1);
    assert_eq!(store.expire_unclaimed_mails(1, 10, now).await.unwrap(), 0, "once");
    let locations = [MailLocation::Archive, MailLocation::Inbound, MailLocation::Inbound];
    for (id, location) in ids.iter().chain(&young).zip(locations) {
        assert_eq!(location_of(store, id).await, location, "{id}");
    }
    assert_eq!(inbox_states(store).await[0], ReadState::Unread, "the record keeps its state");
    let events = store.events(0, 1_000).await.unwrap();
    let expired = events.iter().filter(|event| event.kind.as_str() == "expired");
    assert_eq!(expired.map(|event| &event.detail["mail"]).collect::<Vec<_>>(), [&json!(ids[0])]);
    complete_mail(store, &ids[0], "w", 2 * DAY).await;
    assert_eq!(inbox_states(store).await[0], ReadState::Readed);
}

pub(crate) async fn completed_mail_marks_the_owners_record_as_read(store: &dyn Store) {
    let ids = store_direct_mails(store, &["one", "two"]).await;
    let other = Workspace::new("other").unwrap();
    let claim = store.claim(&ids[0], &other, holder("b"), lease_for(60), RetryPolicy::CLAIM, at(1));
    claim.await.unwrap();
    complete_mail(store, &ids[0], "w", 1).await;
    assert_eq!(inbox_states(store).await, [ReadState::Unread; 2], "another claim is open");
    let done = store.update_claim(&ids[0], &other, by_holder("b"), ClaimUpdate::Complete, at(2));
    done.await.unwrap();
    assert_eq!(inbox_states(store).await, [ReadState::Readed, ReadState::Unread]);
    let counts = store.counts().await.unwrap().records;
    assert_eq!(counts.get(&(BoxKind::Inbox, ReadState::Unread)), Some(&1));

    // A record that is being read becomes READED too.
    let owner = merge_context(true).owner.clone();
    let (inbox, reader) = (BoxKind::Inbox, holder("reader"));
    let leased = store.lease_record(&owner, inbox, reader, lease_for(60), at(3)).await.unwrap();
    assert!(leased.is_some());
    complete_mail(store, &ids[1], "w", 3).await;
    assert_eq!(inbox_states(store).await, [ReadState::Readed; 2]);
}

pub(crate) async fn clock_jump_does_not_advance_retention(home: &dyn TestHome) {
    let mut store = home.open().await;
    let (clock, step) = store.advance_retention_clock(at(0)).await.unwrap();
    assert_eq!((clock.elapsed_ms, step), (0, ClockStep::Passed));
    let years = 10 * 365 * DAY;
    let mut elapsed = 0;
    for (now, passed, step) in [
        (DAY, DAY, ClockStep::Passed),
        (DAY + 10, 10, ClockStep::Passed),
        (years, 0, ClockStep::Jumped),
        (years + DAY + 1, 0, ClockStep::Jumped),
        (years + DAY + 2, 1, ClockStep::Passed),
        (20, 0, ClockStep::Jumped),
        (30, 10, ClockStep::Passed),
    ] {
        drop(store);
        store = home.open().await;
        elapsed += passed;
        let (clock, leased) = store.advance_retention_clock(at(now)).await.unwrap();
        assert_eq!((clock.elapsed_ms, clock.noted_at, leased), (elapsed * 1_000, at(now), step));
    }
}

pub(crate) async fn purging_events_keeps_the_newest(home: &dyn TestHome) {
    let store = home.open().await;
    store.advance_retention_clock(at(0)).await.unwrap();
    add_contact(&*store, "ann", ContactLevel::Friend).await;
    add_contact(&*store, "bob", ContactLevel::Friend).await;
    store.advance_retention_clock(at(10)).await.unwrap();
    store.advance_retention_clock(at(DAY)).await.unwrap();
    add_contact(&*store, "cat", ContactLevel::Friend).await;
    store.advance_retention_clock(at(DAY + 10)).await.unwrap();
    let all = store.events(0, 10).await.unwrap();
    assert_eq!(all.len(), 3);
    let left = async |store: &dyn Store| -> Vec<i64> {
        store.events(0, 10).await.unwrap().iter().map(|event| event.seq).collect()
    };
    assert_eq!(store.purge_events(-1, 10).await.unwrap(), 0);
    assert_eq!(store.purge_events(0, 1).await.unwrap(), 1);
    assert_eq!(left(&*store).await, [all[1].seq, all[2].seq], "one event per call");
    assert_eq!(store.purge_events(0, 10).await.unwrap(), 1);
    assert_eq!(store.purge_events(0, 10).await.unwrap(), 0);
    assert_eq!(store.purge_events(1, 10).await.unwrap(), 0, "the newest event stays");
    assert_eq!(left(&*store).await, [all[2].seq]);
    drop(store);
    let store = home.open().await;
    add_contact(&*store, "dan", ContactLevel::Friend).await;
    assert_eq!(
        left(&*store).await,
        [all[2].seq, all[2].seq + 1],
        "no sequence number is used twice"
    );
}

pub(crate) async fn finished_letters_are_purged_by_retention_day(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let advance_day = async |day: i64| {
        // One day in two steps: the clock ignores steps of more than one day.
        for half in 1..=2 {
            store.advance_retention_clock(at((day - 1) * DAY + half * DAY / 2)).await.unwrap();
        }
    };
    store.advance_retention_clock(at(0)).await.unwrap();
    let mut ids = BTreeMap::new();
    for day in 0..3 {
        for (name, then) in [
            ("trashed", then_trash("no")),
            ("done", then_send(outgoing_message("ann", &day.to_string()))),
            ("dead", NextAction::MarkDead { why: "enough".to_owned() }),
            ("waiting", then_wait(None, 0)),
        ] {
            let key = Some(format!("{name} {day}"));
            let source = LetterSource::Submitted {
                letter: letter(name),
                tunnel: None,
                key,
                origin: SendOrigin::Owner,
            };
            let id = accept_letter(store, source, day * DAY).await;
            step_letter(store, id, then, day * DAY).await.unwrap();
            ids.insert((name, day), id);
        }
        advance_day(day + 1).await;
    }
    let purge = |trashed, done| store.purge_letters(trashed, done, 100);
    assert_eq!(purge(-1, -1).await.unwrap(), 0);
    assert_eq!(purge(0, -1).await.unwrap(), 1);
    assert_eq!(purge(1, 1).await.unwrap(), 3);
    for ((name, day), id) in &ids {
        let there = *name == "dead" || *name == "waiting" || *day == 2;
        assert_eq!(store.letter(*id).await.is_ok(), there, "{name} {day}");
    }
    let key = Some("trashed 0".to_owned());
    accept_letter(
        store,
        LetterSource::Submitted {
            letter: letter("new"),
            tunnel: None,
            key,
            origin: SendOrigin::Owner,
        },
        9 * DAY,
    )
    .await;
    let states: Vec<_> = [LetterState::Trashed, LetterState::Done].into();
    let query = LetterQuery { states, ..LetterQuery::default() };
    let newest = accept_letter(store, submitted("newest"), 9 * DAY).await;
    step_letter(store, newest, then_trash("no"), 9 * DAY).await.unwrap();
    assert_eq!(purge(100, 100).await.unwrap(), 2);
    assert_eq!(
        list_texts(store, &query, false).await,
        "newest",
        "the newest letter stays, so that its number is not used twice"
    );
}

pub(crate) async fn expired_reservations_are_purged(store: &dyn Store) {
    let id = accept_letter(store, submitted("hello"), 0).await;
    let row = store.letter(id).await.unwrap();
    // A third of the reservations ends at second 10, the others 1 and 2 µs later.
    let end = |number: i64| at(10).ms() * 1_000 + number % 3;
    let reserved: Vec<_> =
        (0..25).map(|number| (format!("limit:{number:02}"), end(number))).collect();
    let step =
        LetterStep { reservations: reserved.clone(), ..LetterStep::only(&row, then_wait(None, 0)) };
    apply_step(store, step, 0).await.unwrap();
    let purge_all = async |now| {
        let (mut gone, mut key) = (Vec::new(), Some(String::new()));
        while let Some(after) = key {
            let (some, last) = store.purge_reservations(&after, 10, at(now)).await.unwrap();
            gone.push(some);
            key = last;
        }
        gone
    };
    assert_eq!(purge_all(9).await, [0, 0, 0, 0]);
    assert_eq!(purge_all(10).await, [4, 3, 2, 0]);
    let keys: Vec<_> = reserved.iter().map(|(key, _)| key.clone()).collect();
    let left: BTreeMap<_, _> =
        reserved.into_iter().filter(|(_, end)| *end > at(10).ms() * 1_000).collect();
    assert_eq!(store.reservations(keys).await.unwrap(), left);
    assert_eq!(purge_all(11).await, [10, 6, 0]);
    assert_eq!(purge_all(11).await, [0]);
}

/// The system clock was 10 years ahead: leases, retry times and merge windows of that time
/// must not last for 10 years after the clock is corrected.
pub(crate) async fn leases_and_windows_of_a_wrong_clock_are_ended(store: &dyn Store) {
    let years = 10 * 365 * DAY;
    let [held, waiting] = &store_mails(store, &["held", "waiting"], years).await[..] else {
        panic!()
    };
    let shared = Workspace::shared();
    for id in [held, waiting] {
        store
            .claim(id, &shared, holder("a"), lease_for(60), RetryPolicy::CLAIM, at(years))
            .await
            .unwrap();
    }
    let fail =
        ClaimUpdate::Fail { reason: "no".into(), retryable: true, retry: RetryPolicy::CLAIM };
    store.update_claim(waiting, &shared, by_holder("a"), fail, at(years)).await.unwrap();
    store_inbound(store, inbound_message("1", "ann", "a"), years).await;
    assert_eq!(store.last_clock_reading().await.unwrap(), Some(at(years)));

    assert_eq!(
        store.expire_future_leases(at(years + 1)).await.unwrap(),
        0,
        "a lease of a correct clock stays"
    );
    assert_eq!(store.expire_future_leases(at(0)).await.unwrap(), 3);
    assert_eq!(store.expire_future_leases(at(0)).await.unwrap(), 0);
    for id in [held, waiting] {
        store
            .claim(id, &shared, holder("b"), lease_for(60), RetryPolicy::CLAIM, at(1))
            .await
            .unwrap();
    }
    assert_eq!(merge_due(store, 1).await, 1);
}

pub(crate) async fn letters_delayed_by_a_wrong_clock_become_due(store: &dyn Store) {
    let years = 10 * 365 * DAY;
    let mut ids = Vec::new();
    for text in ["away", "waiting", "held"] {
        ids.push(accept_letter(store, submitted(text), 0).await);
    }
    hand_over(store, ids[0], "spam", years).await;
    step_letter(store, ids[1], then_wait(Some("spam"), years), 0).await.unwrap();
    step_letter(store, ids[2], then_hold("limit", None, years), 0).await.unwrap();
    let old = store.letter(ids[1]).await.unwrap();
    assert_eq!(
        store.expire_future_leases(at(years)).await.unwrap(),
        0,
        "a lease of a correct clock stays"
    );
    assert_eq!(store.expire_future_leases(at(1)).await.unwrap(), 2);
    assert_eq!(letter_status(store, ids[0]).await, "AWAY at spam until 1, 1 attempts");
    assert_eq!(letter_status(store, ids[1]).await, "WAITING at spam from 1");
    assert_eq!(letter_status(store, ids[2]).await, format!("WAITING held by limit/- from {years}"));
    assert_matches!(
        apply_step(store, LetterStep::only(&old, then_wait(None, 2)), 2).await,
        Err(StoreError::Conflict { .. })
    );
}

/// The file of a mail is deleted with its last reference.
pub(crate) async fn files_of_purged_mails_are_deleted(home: &dyn TestHome) {
    let store = home.open().await;
    store.advance_retention_clock(at(0)).await.unwrap();
    let [alone, referred, shared] = ["alone ", "referred ", "shared "].map(|it| it.repeat(20_000));
    let id = |text: &str| ObjId::of(ObjKind::Bytes, text.as_bytes());
    register_texts(&*store, &[&alone, &referred, &shared, "newest"]).await;
    let other = RegisterMailsRequest { tunnel: tunnel_id("other"), ..page(vec![mail(1, &shared)]) };
    store.register_mails(other, at(0)).await.unwrap();
    for started in start(&*store, 3, 0).await {
        finish(&*store, &started, TaskOutcome::Skipped { why: None }, 0).await.unwrap();
    }
    dispatch_text(&*store, &id(&referred).to_string()).await;
    for day in 1..=2 {
        store.advance_retention_clock(at(day * DAY)).await.unwrap();
    }
    assert_eq!(store.delete_purged_files(Duration::ZERO).await.unwrap(), 0);
    assert_eq!(store.purge_tasks(1, 10).await.unwrap(), 3);
    drop(store);

    let store = home.open().await;
    let hour = Duration::from_secs(3_600);
    assert_eq!(store.delete_purged_files(hour).await.unwrap(), 0, "the files are new");
    assert!(store.object(id(&alone)).await.is_ok());
    assert_eq!(store.delete_purged_files(Duration::ZERO).await.unwrap(), 1);
    assert_matches!(store.object(id(&alone)).await, Err(StoreError::Missing { .. }));
    assert!(store.object(id(&referred)).await.is_ok());
    assert!(store.raw_mail(EmailTaskId(5)).await.is_ok(), "a mail of another tunnel has the bytes");

    // The mail appears again, and is recognised: its bytes are not needed.
    store.register_mails(page(vec![mail(9, &alone)]), at(2 * DAY)).await.unwrap();
    assert!(store.object(id(&alone)).await.is_ok());
    assert_eq!(store.delete_purged_files(Duration::ZERO).await.unwrap(), 1);
    assert_matches!(store.object(id(&alone)).await, Err(StoreError::Missing { .. }));
}

pub(crate) async fn files_of_purged_letters_are_deleted(store: &dyn Store) {
    store.advance_retention_clock(at(0)).await.unwrap();
    let [alone, shared] = ["alone", "shared"].map(|text| store.put_blob(text.into()));
    let (alone, shared) = (alone.await.unwrap(), shared.await.unwrap());
    let large = format!("{shared} {}", "large ".repeat(20_000));
    for text in [&*alone.to_string(), &*large] {
        let letter = accept_letter(store, submitted(text), 0).await;
        step_letter(store, letter, then_trash("spam"), 0).await.unwrap();
    }
    accept_letter(store, submitted(&shared.to_string()), 0).await;
    for day in 1..=2 {
        store.advance_retention_clock(at(day * DAY)).await.unwrap();
    }
    assert_eq!(store.purge_letters(1, 1, 9).await.unwrap(), 2);
    let deleted = store.delete_purged_files(Duration::ZERO).await.unwrap();
    assert_eq!(deleted, 2, "an attachment and a large text");
    assert_matches!(store.object(alone).await, Err(StoreError::Missing { .. }));
    assert!(store.object(shared).await.is_ok());
}
