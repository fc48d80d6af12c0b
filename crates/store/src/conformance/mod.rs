//! Conformance tests: the guarantees of the store traits, checked on every backend.
//!
//! A conformance test uses the traits only and starts with an empty store. A backend
//! implements [`TestHome`] and gets one test for each conformance test:
//!
//! ```ignore
//! mod conformance {
//!     crate::conformance::conformance_tests!(crate::sqlite::tests::home);
//! }
//! ```
//!
//! A conformance test that is not listed in [`conformance_tests`] is reported by the
//! compiler as dead code. [`store_model`], [`mail_model`] and [`letter_model`] compare
//! random sequences of calls with a model in memory.

use async_trait::async_trait;
use monoco_core::approval::SendOrigin;
use monoco_core::contact::{
    Binding, Contact, ContactLevel, StrangerPolicy, TunnelInfo, TunnelLabels,
};
use monoco_core::courier::CourierId;
use monoco_core::delivery::Delivery;
use monoco_core::did::{Did, EndpointKind, TunnelId};
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::{MsgObject, ObjId};
use monoco_core::record::{BoxKind, MsgRecord, ReadState, RecordId};
use monoco_core::retry::{Jitter, RetryPolicy};
use monoco_core::time::Timestamp;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::{Value, json};

use self::fixture::*;
use crate::{
    DispatchOutcome, DispatchRequest, DispatchResult, JitteredRetry, LeasedEntry, Page,
    PageRequest, RecordFilter, SendRequest, SendResult, SharedStore, Store, StoreError,
};

pub(crate) mod approvals;
pub(crate) mod claims;
pub(crate) mod contacts;
pub(crate) mod corrections;
pub(crate) mod deliveries;
pub(crate) mod dispatch;
pub(crate) mod drafts;
pub(crate) mod duties;
pub(crate) mod email;
pub(crate) mod email_forwards;
pub(crate) mod email_tasks;
pub(crate) mod erasure;
pub(crate) mod events;
pub(crate) mod figures;
pub(crate) mod files;
mod fixture;
pub(crate) mod halts;
pub(crate) mod inbound;
pub(crate) mod inbound_files;
pub(crate) mod letter_lists;
pub(crate) mod letter_model;
pub(crate) mod letter_operator;
pub(crate) mod letter_steps;
pub(crate) mod letters;
pub(crate) mod mail_model;
pub(crate) mod mails;
pub(crate) mod objects;
pub(crate) mod records;
pub(crate) mod retention;
pub(crate) mod search;
pub(crate) mod send;
pub(crate) mod sessions;
pub(crate) mod shared;
pub(crate) mod status;
pub(crate) mod store_model;
pub(crate) mod tokens;

/// The directory or database in which a backend keeps the store of one test.
#[async_trait]
pub(crate) trait TestHome: Send + Sync {
    /// Opens the store: an empty one at the first call, the same data at later calls.
    async fn open(&self) -> SharedStore;
}

/// Defines a `#[tokio::test]` for each conformance test. `$home` is a function that
/// returns a new [`TestHome`].
macro_rules! conformance_tests {
    ($home:path) => {
        crate::conformance::tests_of! { $home, dispatch:
            dispatch_creates_a_record_for_every_local_recipient,
            repeated_dispatch_is_reported_as_duplicate,
            message_repeated_in_one_batch_is_stored_once,
            concurrent_dispatches_store_each_message_once,
            repeated_external_id_returns_the_first_message,
            external_ids_are_scoped_to_their_tunnel,
            external_id_of_a_duplicate_is_stored,
            message_of_blocked_author_is_delivered_after_unblocking,
            dropped_message_is_delivered_once_its_author_is_a_contact,
            message_of_stranger_goes_to_request_box,
            owner_who_blocked_the_author_gets_no_record,
            endpoint_has_the_level_and_blocks_of_its_contact,
            rejected_message_does_not_affect_the_rest_of_the_batch,
            dispatch_batch_is_one_commit,
            group_message_goes_to_group_and_each_subscriber,
            dispatch_registers_its_tunnel_for_replies,
            message_can_be_both_sent_and_dispatched,
        }
        crate::conformance::tests_of! { $home, send:
            send_creates_a_delivery_or_record_per_target,
            send_with_an_unresolvable_target_writes_nothing,
            plan_names_the_tunnel_of_each_target_and_writes_nothing,
            nothing_is_sent_through_a_removed_tunnel,
            repeated_send_returns_the_first_result,
            idempotency_key_cannot_be_reused_for_another_message,
            send_of_blocked_author_is_rejected,
            local_targets_get_records_instead_of_deliveries,
            expired_message_is_not_sent,
        }
        crate::conformance::tests_of! { $home, records:
            concurrent_readers_lease_each_record_once,
            oldest_unread_record_is_leased_first,
            records_that_change_between_leases_are_leased_as_they_are,
            record_lease_matches_the_core_state_machine,
            expired_lease_returns_record_to_unread,
            late_reader_is_rejected,
            marking_a_stale_record_revision_is_a_conflict,
            marking_the_current_state_changes_nothing,
            invalid_transition_changes_nothing,
            records_are_paged_in_both_directions,
            records_are_listed_by_state,
            records_are_listed_by_tag_and_thread,
            hint_arrives_after_the_commit_that_filled_the_box,
            boxes_are_listed_with_waiting_counts,
        }
        crate::conformance::tests_of! { $home, objects:
            unknown_ids_are_reported_missing,
            external_ids_of_received_and_sent_messages_are_found,
            small_objects_are_read_together,
            ;
            large_message_body_survives_reopening,
            blobs_are_stored_under_their_hash,
            many_blobs_are_stored_together,
            blobs_are_written_and_read_in_parts,
            ids_are_found_by_their_beginning_and_end,
        }
        crate::conformance::tests_of! { $home, deliveries:
            concurrent_senders_lease_each_delivery_once,
            concurrent_reports_change_each_delivery_once,
            next_due_follows_waiting_and_failed_deliveries,
            longest_due_delivery_is_leased_first,
            delivery_is_not_leased_before_it_is_due,
            delivery_lease_matches_the_core_state_machine,
            late_report_is_rejected,
            report_without_epoch_is_checked_by_holder,
            temporary_failure_is_retried_for_24_hours,
            permanent_failure_is_not_retried,
            unknown_outcome_is_retried_only_by_idempotent_tunnels,
            deliveries_to_one_address_are_leased_one_at_a_time,
            end_of_a_delivery_lets_the_next_one_of_its_address_go,
            retried_delivery_goes_behind_those_that_wait,
            failed_delivery_that_is_retried_by_hand_stays_first,
            scheduled_delivery_blocks_no_other_until_it_is_due,
            postponed_delivery_stays_first_and_the_attempt_does_not_count,
            parts_are_stored_in_order_and_survive_retries,
            attempt_that_ends_between_parts_is_uncertain_and_resumed,
            unknown_outcome_is_looked_for_where_the_adapter_can,
            repeated_report_changes_nothing,
            bounce_ends_a_sent_or_uncertain_delivery,
            expired_delivery_lease_becomes_failed_or_uncertain,
            expire_leases_respects_its_limit,
            release_leases_matches_the_holder_prefix,
            operator_can_hold_and_retry_a_delivery,
            marking_a_stale_delivery_revision_is_a_conflict,
            deliveries_are_listed_by_state_in_both_directions,
        }
        crate::conformance::tests_of! { $home, inbound:
            invalid_inbound_message_does_not_affect_its_batch,
            blocked_and_dropped_messages_are_remembered_but_not_stored,
            merge_window_closes_after_its_debounce_time,
            merge_window_closes_after_its_maximum_wait,
            debounce_is_set_per_tunnel,
            message_after_a_closed_window_opens_the_next,
            sessions_threads_and_tunnels_are_merged_separately,
            authors_of_one_room_share_a_window,
            merge_is_one_transaction,
            merging_all_closes_open_windows,
            merge_takes_the_oldest_windows_up_to_its_limit,
            full_window_is_followed_by_another,
            author_accepted_before_the_merge_is_not_held,
            unverified_friend_is_treated_as_a_stranger,
            accepted_contact_releases_only_verified_mails,
            unverified_messages_are_not_merged_with_verified_ones,
            blocking_an_author_before_the_merge_drops_only_that_author,
            owner_gets_no_mail_from_a_blocked_sender,
            unmergeable_window_does_not_block_other_windows,
            ;
            repeated_inbound_message_is_stored_once,
            repeated_body_is_a_duplicate_until_its_window_ends,
            merge_windows_survive_reopening,
        }
        crate::conformance::tests_of! { $home, inbound_files:
            mail_names_missing_files_and_reasons,
            too_large_file_is_not_stored,
            files_get_another_chance_after_a_start,
            late_download_does_not_end_another_file,
            files_of_an_erased_author_are_deleted,
            letter_is_delivered_with_its_files,
            purged_letter_leaves_no_files,
            recalled_message_leaves_no_files,
            new_file_is_published_after_commit,
            ;
            window_waits_until_its_files_are_fetched,
        }
        crate::conformance::tests_of! { $home, corrections:
            edit_in_the_window_changes_the_stored_message,
            edit_of_the_same_batch_finds_its_message,
            edit_after_the_merge_is_an_event_and_a_message,
            recall_in_the_window_leaves_a_mark,
            recall_after_the_merge_is_an_event_and_a_message,
            corrections_of_unknown_and_unwanted_messages,
            edit_of_a_letter_goes_through_the_chain,
            recalled_letter_is_trashed,
            recall_trashes_every_version_in_the_chain,
            recall_removes_versions_in_the_window_and_in_the_chain,
            readers_learn_of_a_recall_while_an_edit_is_in_the_chain,
            readers_learn_of_a_recall_after_the_edit_was_trashed,
            edit_after_the_recall_changes_nothing,
            notice_is_stored_once,
            newest_message_of_each_chat_is_listed,
            ;
            edit_of_a_large_mail_is_compared,
        }
        crate::conformance::tests_of! { $home, mails:
            mail_has_the_binding_of_its_chat_or_tunnel,
            only_windows_of_the_named_tunnels_are_merged,
            mail_is_trusted_when_every_author_is_a_contact,
            held_mail_is_hidden_until_its_author_is_accepted,
            binding_an_address_releases_its_held_mails,
            strangers_of_one_room_are_accepted_separately,
            mails_are_listed_by_every_filter_in_both_directions,
            ;
            large_mail_survives_reopening,
        }
        crate::conformance::tests_of! { $home, files:
            index_entries_and_file_changes_are_paged,
            ;
            each_courier_has_a_file_progress_that_survives_reopening,
            newest_file_change_is_published_after_commit,
        }
        crate::conformance::tests_of! { $home, claims:
            only_one_agent_of_a_workspace_holds_a_mail,
            workspaces_claim_a_mail_independently,
            missing_and_finished_mails_cannot_be_claimed,
            expired_claim_is_lost_once_another_agent_claims,
            permanent_failure_makes_a_dead_letter_at_once,
            renewal_extends_the_lease,
            repeated_completion_changes_nothing,
            mail_is_moved_when_no_claim_is_open,
            dead_mail_lists_its_workspaces_and_reasons,
            operator_can_retry_a_dead_claim,
            operator_can_drop_a_dead_claim,
            expired_lease_returns_mail_to_new,
            expired_last_attempt_is_not_claimed_again,
            counts_report_the_oldest_unclaimed_mail,
            one_of_eight_concurrent_claims_succeeds,
            eight_agents_complete_each_mail_once,
            ;
            fourth_failure_makes_a_dead_letter,
            open_claims_are_listed_oldest_first,
        }
        crate::conformance::tests_of! { $home, approvals:
            message_of_an_agent_is_sent_after_its_approval,
            every_entry_holds_the_message,
            forwards_and_questions_are_never_held,
            message_that_is_not_approved_is_archived,
            approval_is_not_possible_after_its_time,
            same_answer_again_changes_nothing,
            edited_message_is_sent_in_place_of_the_held_one,
            held_delivery_is_released_by_its_approval_only,
            approved_message_is_not_sent_before_its_time,
            refused_message_leaves_only_an_event,
            rule_with_a_rate_holds_what_exceeds_it,
            decisions_are_purged_with_their_events,
            facts_name_replies_and_first_contacts,
            facts_name_mails_of_strangers_that_the_agent_has_read,
            draft_ends_with_the_answer_of_its_approval,
            code_counts_for_the_asked_account_only,
            account_is_locked_after_three_wrong_codes,
            ;
            one_of_eight_answers_wins,
            approvals_are_listed_by_state_and_survive_a_restart,
        }
        crate::conformance::tests_of! { $home, halts:
            halt_of_a_tunnel_stops_this_tunnel_only,
            messages_of_agents_are_held_during_a_halt,
            waiting_messages_of_a_halted_agent_are_held,
            ;
            nothing_is_leased_while_all_is_halted,
        }
        crate::conformance::tests_of! { $home, drafts:
            draft_uid_cannot_be_reused_for_another_message,
            rejected_draft_is_not_remembered,
            draft_of_a_merged_letter_finishes_with_the_merged_one,
            drafts_are_reported_to_the_courier_that_has_the_file,
            ;
            draft_is_sent_once,
            draft_is_finished_when_all_deliveries_are,
            closed_draft_is_not_listed_again,
            draft_finishes_with_its_letter,
        }
        crate::conformance::tests_of! { $home, duties:
            single_courier_acquires_and_renews_every_duty,
            a_duty_has_one_holder_and_moves_when_its_holder_dies,
            clean_end_releases_all_duties_and_names_the_last_courier,
            earlier_run_of_a_courier_is_rejected,
            write_with_a_stale_epoch_is_rejected,
            couriers_that_were_not_seen_for_long_are_removed,
            ;
            each_start_of_a_courier_has_the_next_boot_number,
        }
        crate::conformance::tests_of! { $home, letters:
            submitted_letter_waits_for_the_dispatcher,
            letter_id_of_another_store_is_missing,
            inbound_message_becomes_a_letter_once,
            dispatched_message_becomes_a_letter_once,
            rejected_message_leaves_no_letter,
            pipeline_routing_decides_which_sends_become_letters,
            rejected_source_does_not_affect_the_rest_of_the_batch,
            ;
            idempotency_key_cannot_be_reused_for_another_letter,
            letter_of_an_inbound_mail_has_its_bytes,
        }
        crate::conformance::tests_of! { $home, letter_steps:
            due_letters_are_ordered_per_worker,
            letter_steps_match_the_transition_table,
            step_of_a_changed_letter_is_a_conflict,
            letters_are_joined_atomically,
            letter_is_sent_as_changed_by_workers,
            unsendable_letter_becomes_dead_or_trashed,
            inbound_letter_joins_its_merge_window_at_the_end,
            ;
            reservations_are_written_with_their_step,
            large_letters_survive_reopening,
        }
        crate::conformance::tests_of! { $home, letter_operator:
            operator_can_trash_and_restore_a_letter,
            dead_letter_is_retried_at_the_worker_that_failed,
            replay_restores_the_original_letter,
            letters_of_removed_workers_are_recalled,
            held_letters_are_recalled_with_their_reservations,
            letters_of_a_lost_holder_return_to_their_worker,
        }
        crate::conformance::tests_of! { $home, letter_lists:
            away_letters_are_listed_by_deadline,
            letters_are_listed_by_every_filter_in_both_directions,
            sparse_query_resumes_where_the_last_page_stopped,
            letters_are_listed_since_a_time,
            newest_letter_changes_when_a_letter_starts_to_wait,
            ;
            letter_counts_equal_a_recount,
        }
        crate::conformance::tests_of! { $home, email:
            tasks_are_listed_by_tunnel_and_status_in_both_directions,
            registration_wakes_the_task_loop,
            ;
            mail_is_registered_once,
            mail_with_known_bytes_is_a_copy,
            cursor_is_stored_with_its_mails_or_not_at_all,
            large_and_cut_mails_are_read_back,
            account_keeps_its_state,
            directory_and_secret_survive_reopening,
        }
        crate::conformance::tests_of! { $home, email_tasks:
            large_mails_are_started_alone,
            concurrent_loops_start_each_task_once,
            outcome_of_a_lost_lease_is_rejected,
            rejected_outcome_does_not_affect_the_rest_of_the_batch,
            mail_that_stops_the_courier_is_isolated,
            third_expired_lease_is_not_started_again,
            operator_can_drop_and_retry_errors_and_skipped_mails,
            tasks_delayed_by_a_wrong_clock_become_due,
            ;
            oldest_tasks_are_started_first,
            lease_of_an_earlier_run_is_released,
            third_failure_makes_a_dead_letter,
            task_counts_equal_a_recount,
            ended_tasks_are_purged_and_their_mails_recognised,
        }
        crate::conformance::tests_of! { $home, email_forwards:
            uncertain_delivery_is_never_sent_again,
            task_follows_deliveries_that_an_operator_changes,
            forward_to_a_local_recipient_is_forwarded_at_once,
            settle_changes_at_most_its_limit,
            every_forward_is_read_in_turn,
            ;
            task_is_forwarded_when_all_deliveries_are_sent,
            retry_sends_dead_deliveries_again_and_posts_nothing,
            task_follows_the_letter_of_its_forward,
        }
        crate::conformance::tests_of! { $home, retention:
            old_archived_mails_are_purged,
            unclaimed_mails_expire_and_can_still_be_claimed,
            completed_mail_marks_the_owners_record_as_read,
            finished_letters_are_purged_by_retention_day,
            expired_reservations_are_purged,
            leases_and_windows_of_a_wrong_clock_are_ended,
            letters_delayed_by_a_wrong_clock_become_due,
            files_of_purged_letters_are_deleted,
            ;
            clock_jump_does_not_advance_retention,
            purging_events_keeps_the_newest,
            files_of_purged_mails_are_deleted,
        }
        crate::conformance::tests_of! { $home, search:
            messages_of_both_directions_are_searchable,
            hidden_messages_are_not_hits,
        }
        crate::conformance::tests_of! { $home, erasure:
            unknown_person_is_reported_and_nothing_is_erased,
            claim_of_an_erased_mail_can_still_end,
            unmerged_messages_of_the_person_are_deleted,
            waiting_deliveries_of_the_person_are_deleted,
            contact_bindings_and_reasons_of_the_person_are_removed,
            ;
            messages_of_an_author_become_tombstones,
            leases_after_an_erasure_return_no_erased_text,
            mail_of_several_authors_is_rewritten,
            attachments_without_other_references_are_deleted,
            letters_of_the_person_are_erased,
            interrupted_erasure_is_continued_with_the_next_one,
            rewritten_mails_are_found_in_a_large_store,
        }
        crate::conformance::tests_of! { $home, contacts:
            replaced_contact_keeps_its_bindings,
            binding_to_a_mailbox_recognises_its_mails,
            removed_contact_keeps_its_boxes,
            binding_requires_contact_and_tunnel,
            contacts_and_groups_are_paged,
            group_keeps_its_name_and_subscribers,
            putting_an_unchanged_tunnel_writes_no_event,
            owner_exists_for_contacts_groups_tunnels_and_box_owners,
            find_block_reports_blocked_author_and_blocking_target,
            ;
            paused_tunnel_stays_paused_until_it_is_resumed_or_removed,
        }
        crate::conformance::tests_of! { $home, sessions:
            receipt_is_stored_as_an_object,
            receipt_requires_a_message_of_the_group,
            session_lists_both_directions,
            sessions_are_listed_most_recent_first,
        }
        crate::conformance::tests_of! { $home, events:
            events_are_listed_in_order_after_any_number,
            each_reader_of_events_has_a_cursor,
            newest_event_is_published_after_commit,
            trace_lists_records_deliveries_and_events,
        }
        crate::conformance::tests_of! { $home, figures:
            figures_are_added_once_and_kept_for_a_time,
            waiting_times_are_sampled_while_something_waits,
        }
        crate::conformance::tests_of! { $home, tokens:
            name_of_a_valid_token_cannot_be_used_again,
            revoked_token_stays_listed_and_its_name_can_be_used_again,
            last_use_is_stored_once_a_minute,
            first_read_of_each_agent_is_recorded,
            reads_of_a_list_are_recorded_once_and_refreshed,
            read_of_a_direct_mail_names_trust_and_author,
            reads_of_purged_and_erased_mails_are_deleted,
            ;
            token_is_found_by_the_hash_of_its_secret,
        }
        crate::conformance::tests_of! { $home, status:
            ;
            counts_equal_a_recount,
            all_data_survives_reopening,
        }
    };
}

/// The tests before the semicolon get an empty store, those after it open the store themselves.
macro_rules! tests_of {
    ($home:path, $noun:ident: $($test:ident,)* $(; $($opening:ident,)*)?) => {
        mod $noun {
            $(
                #[tokio::test]
                async fn $test() {
                    let home = $home();
                    let store = crate::conformance::TestHome::open(&home).await;
                    crate::conformance::$noun::$test(&*store).await;
                }
            )*
            $($(
                #[tokio::test]
                async fn $opening() {
                    crate::conformance::$noun::$opening(&$home()).await;
                }
            )*)?
        }
    };
}

/// Fails with the value unless it has the form of the pattern.
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        match $value {
            $pattern $(if $guard)? => {}
            value => panic!("{value:?} is not {}", stringify!($pattern)),
        }
    };
}

pub(crate) use {assert_matches, conformance_tests, tests_of};

/// Runs `replay` on 64 random sequences of at most `max_calls` calls. Panics with the
/// shortest sequence on which the store and its model differ.
// `track_caller` makes the failure name the model.
#[track_caller]
fn check_histories<H: TestHome, C: Strategy>(
    home: impl Fn() -> H,
    call: C,
    max_calls: usize,
    replay: impl AsyncFn(&dyn TestHome, &[C::Value]) -> Result<(), TestCaseError>,
) {
    let config = Config { failure_persistence: None, ..Config::with_cases(64) };
    let histories = proptest::collection::vec(call, 1..=max_calls);
    let result = TestRunner::new(config).run(&histories, |history| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(replay(&home(), &history))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
