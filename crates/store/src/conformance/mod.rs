//! The laws: what every backend promises, each checked against a fresh store.
//!
//! A law knows the traits and nothing else. A backend says where its stores live
//! ([`Home`]) and gets one test for each law:
//!
//! ```ignore
//! mod laws {
//!     crate::conformance::every_law!(crate::sqlite::tests::home);
//! }
//! ```
//!
//! A law that is written and not listed in [`every_law`] is dead code, and the
//! compiler says so.

use async_trait::async_trait;
use monoco_core::contact::{Binding, Contact, ContactLevel, StrangerPolicy, TunnelInfo};
use monoco_core::delivery::Delivery;
use monoco_core::did::{Did, EndpointKind, TunnelId};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::{BoxKind, MsgRecord};
use monoco_core::retry::{Jitter, RetryPolicy};
use monoco_core::time::Timestamp;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

use crate::{
    DispatchOutcome, DispatchRequest, DispatchResult, JitteredRetry, LeasedEntry, Page,
    PageRequest, SendRequest, SendResult, SharedStore, Store, StoreError,
};

pub(crate) mod boxes;
pub(crate) mod claims;
pub(crate) mod deliveries;
pub(crate) mod dispatch;
pub(crate) mod drafts;
pub(crate) mod journal;
pub(crate) mod letter_care;
pub(crate) mod letter_model;
pub(crate) mod letter_steps;
pub(crate) mod letters;
mod mail_model;
pub(crate) mod mails;
pub(crate) mod model;
pub(crate) mod people;

/// A place where a store lives while its laws are checked.
#[async_trait]
pub(crate) trait Home: Send + Sync {
    /// Opens the store that lives here: a fresh one the first time, afterwards
    /// what was closed before.
    async fn open(&self) -> SharedStore;
}

/// Makes one test for each law. `$home` is a function that returns a fresh
/// [`Home`].
macro_rules! every_law {
    ($home:path) => {
        crate::conformance::laws! { $home, dispatch:
            a_message_waits_for_everybody_it_is_for,
            dispatching_twice_is_dispatching_once,
            twice_in_one_batch_is_once,
            eight_at_once_deliver_it_once,
            a_repeated_external_id_gets_the_first_answer,
            external_ids_of_two_tunnels_are_two,
            an_external_id_of_a_known_message_is_remembered,
            a_blocked_author_gets_through_once_welcome,
            a_dropped_stranger_gets_through_once_known,
            a_stranger_waits_in_the_request_box,
            whoever_blocked_the_author_gets_nothing,
            an_endpoint_counts_as_its_contact,
            a_refused_one_does_not_harm_its_neighbours,
            a_batch_is_one_commit,
            a_group_hears_it_once_and_each_subscriber_too,
            a_tunnel_that_was_heard_from_can_be_answered_through,
            one_message_can_go_out_and_come_in,
        }
        crate::conformance::laws! { $home, boxes:
            each_target_has_its_own_way,
            one_bad_target_leaves_nothing_behind,
            posting_twice_is_posting_once,
            an_idempotency_key_stands_for_one_message,
            a_blocked_author_sends_nothing,
            a_target_that_lives_here_gets_it_straight,
            an_expired_message_is_not_sent,
            eight_takers_get_each_record_once,
            the_oldest_record_is_taken_first,
            taking_follows_the_reading_machine,
            an_ended_lease_makes_it_unread_again,
            a_late_reader_is_refused,
            a_mark_at_another_revision_is_a_conflict,
            a_mark_to_where_it_stands_changes_nothing,
            a_wrong_step_changes_nothing,
            what_is_not_there_is_missing,
            pages_walk_both_ways,
            a_list_shows_the_states_it_is_asked_for,
            a_large_body_is_kept_whole,
            plain_bytes_are_kept_under_their_hash,
            a_hint_says_where_to_look,
            every_box_is_shown_with_what_waits_in_it,
        }
        crate::conformance::laws! { $home, deliveries:
            eight_takers_get_each_delivery_once,
            it_is_known_when_the_next_one_is_due,
            the_longest_due_is_taken_first,
            nothing_is_taken_before_its_time,
            taking_follows_the_sending_machine,
            a_late_report_is_refused,
            a_report_without_epoch_is_checked_by_name,
            a_temporary_failure_is_tried_again,
            a_refusal_is_final,
            doubt_is_settled_by_the_tunnels_manner,
            a_report_can_be_repeated,
            the_sweeper_moves_on_what_nobody_reported,
            a_sweep_keeps_to_its_limit,
            a_release_ends_the_leases_of_one_boot,
            a_person_holds_and_revives,
            a_delivery_at_another_revision_is_a_conflict,
            deliveries_are_listed_by_state_and_both_ways,
        }
        crate::conformance::laws! { $home, mails:
            a_message_is_kept_once_however_often_it_is_heard,
            a_bad_message_in_a_batch_does_not_harm_the_others,
            the_unwanted_are_remembered_and_not_kept,
            a_burst_becomes_one_mail_when_nobody_speaks_any_more,
            a_talker_can_not_hold_the_floor_forever,
            each_tunnel_waits_as_long_as_it_likes,
            what_comes_after_a_window_is_over_opens_the_next,
            sessions_threads_and_tunnels_do_not_mix,
            authors_of_one_room_are_merged,
            merging_is_one_step,
            windows_outlive_a_restart,
            a_stop_closes_every_window,
            the_longest_over_is_merged_first_and_no_more_than_asked,
            a_full_window_is_followed_by_another,
            a_large_mail_comes_whole,
            mails_have_the_label_of_their_chat_or_tunnel,
            a_mail_is_trusted_when_all_who_speak_are_known,
            a_held_mail_is_seen_by_nobody_until_its_author_is_let_in,
            binding_an_address_lets_its_mails_in,
            strangers_of_one_room_are_let_in_one_by_one,
            whoever_is_let_in_before_his_window_closes_is_not_held,
            whoever_is_blocked_before_his_window_closes_takes_nobody_along,
            an_owner_who_blocked_somebody_gets_no_mail_of_him,
            a_burst_that_can_not_be_merged_holds_up_nobody,
            mails_are_listed_by_every_filter_and_both_ways,
            files_follow_in_pages,
            how_far_the_files_are_is_remembered,
            the_newest_filing_is_told_after_its_commit,
            what_was_archived_long_ago_goes,
            a_jump_of_the_clock_makes_nothing_older,
            forgetting_events_keeps_the_newest,
            a_clock_that_was_wrong_holds_nothing_up,
        }
        crate::conformance::laws! { $home, claims:
            agents_of_one_workspace_exclude_each_other,
            two_workspaces_do_not_exclude_each_other,
            only_what_is_there_and_open_is_claimed,
            an_ended_lease_is_free_for_the_next_and_lost_for_the_first,
            three_retries_and_the_fourth_failure_is_a_dead_letter,
            a_failure_for_good_is_dead_at_once,
            a_renewed_lease_runs_longer,
            saying_again_that_it_is_done_changes_nothing,
            a_file_rests_when_nobody_is_at_it_any_more,
            a_dead_letter_says_who_gave_it_up_and_why,
            a_dead_claim_is_revived_by_hand,
            a_dead_claim_is_laid_to_rest_by_hand,
            the_sweeper_takes_back_what_was_let_go,
            an_ended_last_lease_is_not_claimed_once_more,
            open_claims_are_told_oldest_first,
            the_oldest_mail_that_nobody_claimed_is_known,
            of_eight_agents_one_gets_the_mail,
            eight_workers_complete_each_mail_once,
        }
        crate::conformance::laws! { $home, drafts:
            a_draft_is_posted_once,
            a_name_stands_for_one_message,
            what_can_not_be_sent_is_not_remembered,
            a_draft_has_ended_when_all_its_deliveries_have,
            a_closed_draft_is_not_told_again,
        }
        crate::conformance::laws! { $home, letters:
            a_letter_that_is_handed_in_waits_for_the_dispatcher,
            a_letter_of_another_store_is_missing,
            a_key_stands_for_one_letter,
            what_is_heard_becomes_a_letter_once,
            a_message_that_comes_in_becomes_a_letter_once,
            what_is_refused_leaves_no_letter,
            what_goes_out_is_a_letter_where_a_chain_is_in_its_way,
            a_bad_one_among_letters_does_not_harm_the_others,
        }
        crate::conformance::laws! { $home, letter_steps:
            letters_are_due_at_their_desks_in_their_order,
            steps_follow_the_machine,
            a_step_of_a_letter_that_changed_is_refused,
            letters_become_one_together_or_not_at_all,
            what_is_booked_is_written_with_its_step,
            a_letter_is_sent_as_what_it_became,
            what_can_not_be_sent_is_dead_or_in_the_bin,
            what_was_heard_joins_its_session_at_the_end,
            large_letters_are_kept_whole,
        }
        crate::conformance::laws! { $home, letter_care:
            a_person_throws_away_and_takes_out_again,
            a_dead_letter_is_tried_again_where_it_failed,
            a_letter_is_replayed_as_it_came,
            letters_of_workers_that_are_gone_are_taken_back,
            letters_that_are_kept_are_taken_back_with_what_is_booked,
            letters_that_were_away_are_put_back,
            those_whose_time_is_over_come_first,
            bookings_that_are_over_are_forgotten,
            letters_are_forgotten_by_the_days_of_the_hubs_life,
            letter_figures_equal_a_recount,
            letters_are_listed_by_every_filter_and_both_ways,
            a_search_that_looked_at_enough_goes_on_where_it_stopped,
            letters_are_listed_from_a_time_on,
            whoever_is_blocked_is_unwelcome,
            the_newest_letter_is_told_when_one_waits,
            a_draft_ends_as_its_letter_does,
            a_draft_whose_letter_is_part_of_another_ends_with_that,
            a_wrong_clock_holds_up_no_letter,
        }
        crate::conformance::laws! { $home, people:
            a_contact_is_replaced_and_keeps_its_bindings,
            a_forgotten_contact_leaves_its_boxes,
            only_known_things_are_bound,
            contacts_and_groups_come_in_pages,
            a_group_keeps_its_name_and_its_readers,
            a_tunnel_is_put_once_and_changed_after,
            whoever_has_anything_here_is_known,
        }
        crate::conformance::laws! { $home, journal:
            events_are_read_in_order_from_any_point,
            the_newest_event_is_told_after_its_commit,
            a_receipt_is_an_object_of_its_reader,
            a_receipt_is_for_what_was_said_in_the_group,
            a_conversation_shows_both_directions,
            the_liveliest_conversation_comes_first,
            a_trace_tells_the_whole_story,
            external_ids_lead_to_their_message,
            figures_equal_a_recount,
            reopening_keeps_everything,
        }
    };
}

macro_rules! laws {
    ($home:path, $family:ident: $($law:ident,)*) => {
        mod $family {
            $(
                #[tokio::test]
                async fn $law() {
                    crate::conformance::$family::$law(&$home()).await;
                }
            )*
        }
    };
}

pub(crate) use {every_law, laws};

/// Tries histories of at most `longest` calls until one tells the store from its model,
/// and then shows the shortest that does. `replay` compares the two.
// The caller's line in the failure says which model it was.
#[track_caller]
fn any_history<H: Home, C: Strategy>(
    home: impl Fn() -> H,
    call: C,
    longest: usize,
    replay: impl AsyncFn(&dyn Home, &[C::Value]) -> Result<(), TestCaseError>,
) {
    let config = Config { failure_persistence: None, ..Config::with_cases(64) };
    let histories = proptest::collection::vec(call, 1..=longest);
    let result = TestRunner::new(config).run(&histories, |history| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(replay(&home(), &history))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

fn at(secs: i64) -> Timestamp {
    Timestamp::from_ms(1_770_000_000_000 + secs * 1000)
}

/// `ann` is `did:web:ann`; what is a DID already stays one.
fn did(name: &str) -> Did {
    if name.starts_with("did:") {
        return name.parse().unwrap();
    }
    format!("did:web:{name}").parse().unwrap()
}

fn tunnel_id(name: &str) -> TunnelId {
    name.parse().unwrap()
}

/// The endpoint `account` behind a tunnel.
fn endpoint(account: &str, tunnel: &str) -> String {
    format!("did:msgtunnel:{account}.user.{tunnel}")
}

fn dids(names: &[&str]) -> Vec<Did> {
    names.iter().map(|name| did(name)).collect()
}

fn object(mut fields: Value, from: &str, to: &[&str], text: &str) -> MsgObject {
    fields["from"] = json!(did(from));
    fields["to"] = json!(dids(to));
    fields["content"] = json!({"content": text});
    if fields.get("kind").is_none() {
        fields["kind"] = json!("chat");
    }
    MsgObject::from_json(fields).unwrap()
}

fn chat(from: &str, to: &[&str], text: &str) -> MsgObject {
    object(json!({}), from, to, text)
}

/// Something `author` says in `group`.
fn said_in(group: &str, author: &str, text: &str) -> MsgObject {
    object(json!({"source": did(author), "kind": "group_msg"}), group, &[group], text)
}

fn plain(msg: MsgObject) -> DispatchRequest {
    DispatchRequest { msg, tunnel: None, external_id: None }
}

fn heard(tunnel: &str, external_id: &str, msg: MsgObject) -> DispatchRequest {
    let external_id = Some(external_id.to_owned());
    DispatchRequest { msg, tunnel: Some(tunnel_id(tunnel)), external_id }
}

async fn try_dispatch(
    store: &dyn Store,
    one: DispatchRequest,
) -> Result<DispatchResult, StoreError> {
    let mut answers = store.dispatch(vec![one], at(0)).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Dispatches one message and says what became of it.
async fn put_in(store: &dyn Store, one: DispatchRequest) -> String {
    say(&try_dispatch(store, one).await.unwrap())
}

/// `ann/INBOX bob/INBOX`, with `again:` in front when it had come before.
fn say(answer: &DispatchResult) -> String {
    let (duplicate, records) = match &answer.outcome {
        DispatchOutcome::Delivered { duplicate, records } => (*duplicate, records),
        DispatchOutcome::Blocked => return "blocked".to_owned(),
        DispatchOutcome::Dropped => return "dropped".to_owned(),
        DispatchOutcome::Chained { letter, .. } => panic!("not dispatched: {letter}"),
    };
    let boxes: Vec<_> = records
        .iter()
        .map(|placed| format!("{}/{}", short(&placed.owner), placed.box_kind.as_str()))
        .collect();
    format!("{}{}", if duplicate { "again: " } else { "" }, boxes.join(" "))
}

fn short(did: &Did) -> &str {
    did.as_str().trim_start_matches("did:web:")
}

fn post_of(msg: MsgObject) -> SendRequest {
    SendRequest { msg, key: None, not_before: None }
}

/// Posts, and expects it to be on its way. Returns the names of its ways.
async fn post(store: &dyn Store, msg: MsgObject) -> Vec<crate::TargetResult> {
    match store.send(post_of(msg), at(0)).await.unwrap() {
        SendResult::Queued { duplicate: false, ways, .. } => ways,
        other => panic!("not on its way: {other:?}"),
    }
}

fn name(text: &str) -> Holder {
    Holder::new(text).unwrap()
}

/// What a caller shows who knows no epoch.
fn by(holder: &str) -> LeaseProof {
    LeaseProof { epoch: None, holder: name(holder) }
}

fn in_epoch(epoch: u64) -> LeaseProof {
    LeaseProof { epoch: Some(epoch), holder: name("whoever") }
}

fn term(secs: i64) -> LeaseDuration {
    LeaseDuration::from_secs(secs).unwrap()
}

const AGAIN: JitteredRetry = JitteredRetry { retry: RetryPolicy::DELIVERY, jitter: Jitter::NONE };

/// Takes the next record of an INBOX at second `now`, for 60 s.
async fn read_next(store: &dyn Store, owner: &str, now: i64) -> Option<LeasedEntry<MsgRecord>> {
    let owner = did(owner);
    store.lease_record(&owner, BoxKind::Inbox, name("reader"), term(60), at(now)).await.unwrap()
}

/// Takes the next delivery of a tunnel at second `now`, for 60 s.
async fn send_next(store: &dyn Store, tunnel: &str, now: i64) -> Option<LeasedEntry<Delivery>> {
    let tunnel = tunnel_id(tunnel).did();
    store.lease_delivery(&tunnel, name("sender"), term(60), at(now)).await.unwrap()
}

const ALL: PageRequest = PageRequest { beyond: None, limit: 1_000, newest_first: false };

/// All pages of a list, one after the other.
async fn pages<T>(
    limit: usize,
    newest_first: bool,
    page: impl AsyncFn(PageRequest) -> Page<T>,
) -> Vec<Vec<T>> {
    let (mut pages, mut beyond) = (Vec::new(), None);
    loop {
        let Page { entries, next } = page(PageRequest { beyond, limit, newest_first }).await;
        pages.push(entries);
        match next {
            Some(next) => beyond = Some(next),
            None => return pages,
        }
    }
}

/// What the messages of each page say: `012 345 6`.
async fn spell(store: &dyn Store, pages: Vec<Vec<ObjId>>) -> String {
    let mut words = Vec::new();
    for page in pages {
        let mut word = String::new();
        for id in page {
            word += &said(&store.object(id).await.unwrap());
        }
        words.push(word);
    }
    words.join(" ")
}

/// Every record of a box, oldest first: `hello UNREAD, bye READED`.
async fn look(store: &dyn Store, owner: &str, box_kind: BoxKind) -> String {
    let page = store.records(&did(owner), box_kind, &[], ALL).await.unwrap();
    let mut lines = Vec::new();
    for record in page.entries {
        let text = text_of(store, &record).await;
        lines.push(format!("{text} {}", record.reading.state.name().as_str()));
    }
    lines.join(", ")
}

async fn inbox(store: &dyn Store, owner: &str) -> String {
    look(store, owner, BoxKind::Inbox).await
}

/// Every delivery of a tunnel, oldest first: `hello WAIT, bye DEAD`.
async fn outgoing(store: &dyn Store, tunnel: &str) -> String {
    let page = store.deliveries(&tunnel_id(tunnel).did(), &[], ALL).await.unwrap();
    let mut lines = Vec::new();
    for delivery in page.entries {
        let body = store.object(delivery.msg_id).await.unwrap();
        lines.push(format!("{} {}", said(&body), delivery.sending.state.name().as_str()));
    }
    lines.join(", ")
}

async fn text_of(store: &dyn Store, record: &MsgRecord) -> String {
    said(&store.object(record.msg_id).await.unwrap())
}

/// What a message says, of its canonical text.
fn said(body: &[u8]) -> String {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["content"]["content"].as_str().unwrap_or_default().to_owned()
}

/// The kinds of all events, in order.
async fn events(store: &dyn Store) -> String {
    let events = store.events(0, 1_000).await.unwrap();
    events.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>().join(" ")
}

async fn tunnel(store: &dyn Store, id: &str, strangers: StrangerPolicy, idempotent: bool) {
    let tunnel = TunnelInfo { id: tunnel_id(id), provider: "stub".into(), strangers, idempotent };
    store.put_tunnel(tunnel, at(0)).await.unwrap();
}

/// A tunnel that accepts everybody and takes no idempotency key.
async fn lark(store: &dyn Store) {
    tunnel(store, "lark", StrangerPolicy::Accept, false).await;
}

/// A contact of some level, who lives elsewhere.
async fn contact(store: &dyn Store, who: &str, level: ContactLevel) {
    put_contact(store, who, level, false).await;
}

/// A contact who reads his mail here.
async fn lives_here(store: &dyn Store, who: &str) {
    put_contact(store, who, ContactLevel::Friend, true).await;
}

async fn put_contact(store: &dyn Store, who: &str, level: ContactLevel, here: bool) {
    let (did, names) = (did(who), vec![who.to_owned()]);
    let contact = Contact { did, names, level, here, bindings: Vec::new() };
    store.put_contact(contact, at(0)).await.unwrap();
}

fn binding(tunnel: &str, address: &str, priority: i32) -> Binding {
    let (tunnel, address) = (tunnel_id(tunnel), address.to_owned());
    Binding { tunnel, kind: EndpointKind::User, address, priority }
}

/// A group with these subscribers.
async fn group(store: &dyn Store, group: &str, readers: &[&str]) {
    store.put_group(&did(group), Some(group.to_owned()), at(0)).await.unwrap();
    for reader in readers {
        store.set_subscriber(&did(group), &did(reader), true, at(0)).await.unwrap();
    }
}
