//! Conformance tests of approvals: what is held, and what the answers do.

use std::path::Path;
use std::sync::Arc;

use monoco_core::approval::chat_answer::ChatAnswer;
use monoco_core::approval::policy::ApprovalPolicy;
use monoco_core::approval::{Approval, ApprovalId, ApprovalState, ApprovalStep};
use monoco_core::config::{ConfigEnvironment, ConfigFile, Secret};
use monoco_core::delivery::SendState;

use super::drafts::to_lark;
use super::inbound::{inbound_message, merge_due, store_inbound};
use super::letters::{accept_letter, outgoing_message, route_all, step_letter, submitted};
use super::mails::{list_mails, read_mail};
use super::*;
use crate::{
    AskRequest, ChatAnswerResult, DraftSendRequest, LetterSource, NextAction, PipelineRouting,
    StoreInboundResult,
};

const DAY: i64 = 86_400;

struct NoEnvironment;

impl ConfigEnvironment for NoEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
        Err("no files".to_owned())
    }
}

/// Sets the policy with these lines of YAML.
pub(super) fn set_policy(store: &dyn Store, yaml: &str) {
    let file = ConfigFile::parse(&format!("approvals:\n{yaml}")).unwrap();
    let section = file.root(&NoEnvironment).unwrap().section("approvals").unwrap();
    store.set_approval_policy(Arc::new(ApprovalPolicy::parse(&section).unwrap()));
}

pub(super) fn agent(name: &str) -> SendOrigin {
    SendOrigin::Agent { name: name.to_owned(), did: did(name) }
}

/// A message of the agent `codex`.
pub(super) fn by_agent(msg: MsgObject) -> SendRequest {
    SendRequest { origin: agent("codex"), ..send_request(msg) }
}

/// Sends a message that must be held. Returns its approval.
pub(super) async fn hold(store: &dyn Store, msg: MsgObject) -> Approval {
    match store.send(by_agent(msg), at(0)).await.unwrap() {
        SendResult::Held { duplicate: false, approval, .. } => *approval,
        other => panic!("not held: {other:?}"),
    }
}

async fn answer(
    store: &dyn Store,
    id: ApprovalId,
    step: ApprovalStep,
    now: i64,
) -> Result<ApprovalState, StoreError> {
    let answered = store.answer_approval(id, step, "ann", None, at(now)).await;
    answered.map(|approval| approval.state.name())
}

/// The approvals, oldest first: `PENDING REJECTED`.
async fn approval_states(store: &dyn Store) -> String {
    let page = store.approvals(&[], FULL_PAGE).await.unwrap();
    let states = page.entries.iter().map(|approval| approval.state.name().as_str());
    states.collect::<Vec<_>>().join(" ")
}

pub(crate) async fn message_of_an_agent_is_sent_after_its_approval(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_local_contact(store, "here").await;
    let msg = chat("codex", &[&endpoint("oc_1", "lark"), "here"], "hello");
    let approval = hold(store, msg.clone()).await;
    assert_eq!((approval.msg_id, approval.rule.as_str()), (msg.id(), "agents: hold"));
    assert_eq!(approval.targets.len(), 2);
    assert_eq!(tunnel_contents(store, "lark").await, "hello HELD");
    assert!(lease_next_delivery(store, "lark", 1).await.is_none());
    assert_eq!(box_contents(store, "codex", BoxKind::Outbox).await, "");
    assert_eq!(inbox_contents(store, "here").await, "");
    assert_eq!(store.counts().await.unwrap().pending_approvals, 1);

    let approved = answer(store, approval.id, ApprovalStep::Approve, 2).await.unwrap();
    assert_eq!(approved, ApprovalState::Approved);
    assert_eq!(tunnel_contents(store, "lark").await, "hello WAIT");
    assert_eq!(box_contents(store, "codex", BoxKind::Outbox).await, "hello SENT");
    assert_eq!(inbox_contents(store, "here").await, "hello UNREAD");
    assert_eq!(leased_text(&lease_next_delivery(store, "lark", 2).await.unwrap()), "hello");
    assert!(lease_next_delivery(store, "lark", 2).await.is_none(), "sent once");
    assert_eq!(store.counts().await.unwrap().pending_approvals, 0);
    assert_matches!(
        store.send(by_agent(msg), at(9)).await.unwrap(),
        SendResult::Queued { duplicate: true, .. }
    );
}

/// API, chain, submitted letter and draft: each ends with a HELD delivery.
pub(crate) async fn every_entry_holds_the_message(store: &dyn Store) {
    put_lark_tunnel(store).await;
    set_policy(store, "  owner: hold\n");
    hold(store, to_lark(&["1"], "agent")).await;
    let held = |result| matches!(result, SendResult::Held { .. });
    assert!(held(store.send(send_request(to_lark(&["2"], "api")), at(0)).await.unwrap()));

    let source = LetterSource::Send(by_agent(outgoing_message("3", "chain")));
    let id = accept_letter(store, source, 0).await;
    let row = store.letter(id).await.unwrap();
    assert_eq!(row.source.origin(), Some(&agent("codex")), "the letter keeps its origin");
    let request = by_agent(outgoing_message("3", "chain"));
    step_letter(store, id, NextAction::Send(Box::new(request)), 1).await.unwrap();

    let id = accept_letter(store, submitted("letter"), 0).await;
    let request = send_request(outgoing_message("4", "letter"));
    step_letter(store, id, NextAction::Send(Box::new(request)), 1).await.unwrap();

    let draft = |uid: &str, text: &str| DraftSendRequest {
        uid: uid.to_owned(),
        provider: "lark".to_owned(),
        courier: COURIER,
        post: send_request(to_lark(&["5"], text)),
    };
    let sent = store.send_draft(draft("d1", "draft"), &PipelineRouting::default(), at(0)).await;
    assert!(held(sent.unwrap()));
    assert_eq!(
        store.finished_drafts(COURIER, 10).await.unwrap(),
        [],
        "a held draft is not finished"
    );
    let chained = store.send_draft(draft("d2", "later"), &route_all(), at(0)).await.unwrap();
    assert_matches!(chained, SendResult::Chained { .. });

    assert_eq!(
        tunnel_contents(store, "lark").await,
        "agent HELD, api HELD, chain HELD, letter HELD, draft HELD"
    );
    assert!(lease_next_delivery(store, "lark", 99).await.is_none());
    assert_eq!(approval_states(store).await, "PENDING PENDING PENDING PENDING PENDING");
}

pub(crate) async fn forwards_and_questions_are_never_held(store: &dyn Store) {
    put_lark_tunnel(store).await;
    set_policy(store, "  owner: hold\n  rules: [{ do: refuse }]\n");
    for (origin, text) in [(SendOrigin::Forward, "forward"), (SendOrigin::Courier, "question")] {
        let request = SendRequest { origin, ..send_request(to_lark(&[text], text)) };
        assert_matches!(store.send(request, at(0)).await.unwrap(), SendResult::Queued { .. });
    }
    assert_eq!(tunnel_contents(store, "lark").await, "forward WAIT, question WAIT");
}

pub(crate) async fn message_that_is_not_approved_is_archived(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let reason = Some("too long".to_owned());
    for (text, step) in
        [("rejected", ApprovalStep::Reject { reason }), ("withdrawn", ApprovalStep::Withdraw)]
    {
        let approval = hold(store, to_lark(&["1", "2"], text)).await;
        answer(store, approval.id, step, 1).await.unwrap();
    }
    let late = hold(store, to_lark(&["1"], "late")).await;
    assert_eq!(store.expire_approvals(10, at(24 * 3600 - 1)).await.unwrap(), 0);
    assert_eq!(store.expire_approvals(10, at(24 * 3600)).await.unwrap(), 1);
    assert_eq!(
        tunnel_contents(store, "lark").await,
        "rejected ARCHIVED, rejected ARCHIVED, withdrawn ARCHIVED, withdrawn ARCHIVED, late ARCHIVED"
    );
    assert!(lease_next_delivery(store, "lark", 99 * 3600).await.is_none());
    assert_eq!(approval_states(store).await, "REJECTED WITHDRAWN EXPIRED");
    assert_matches!(
        answer(store, late.id, ApprovalStep::Approve, 99 * 3600).await,
        Err(StoreError::AlreadyAnswered(first)) if first.state == "EXPIRED"
    );
    let again = store.send(by_agent(to_lark(&["1", "2"], "rejected")), at(9)).await.unwrap();
    assert_matches!(
        again,
        SendResult::Held { duplicate: true, approval, .. }
            if approval.state.name() == ApprovalState::Rejected
    );
    assert_eq!(box_contents(store, "me", BoxKind::Outbox).await, "");
}

pub(crate) async fn approval_is_not_possible_after_its_time(store: &dyn Store) {
    put_lark_tunnel(store).await;
    set_policy(store, "  expire_h: 1\n");
    let approval = hold(store, to_lark(&["1"], "late")).await;
    // The sweeper has not run yet.
    assert_matches!(
        answer(store, approval.id, ApprovalStep::Approve, 3600).await,
        Err(StoreError::AlreadyAnswered(first)) if first.state == "EXPIRED" && first.by.is_none()
    );
    assert_eq!(tunnel_contents(store, "lark").await, "late HELD");
}

/// Eight approvers answer at once; one answer counts.
pub(crate) async fn one_of_eight_answers_wins(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    for round in 0..10 {
        let text = format!("round {round}");
        let approval = hold(&*store, to_lark(&["1"], &text)).await;
        let mut answers = tokio::task::JoinSet::new();
        for approver in 0..8 {
            let (store, id) = (Arc::clone(&store), approval.id);
            let reason = Some(format!("by {approver}"));
            answers.spawn(async move {
                let name = format!("approver {approver}");
                let result = match approver % 4 {
                    0 => store.answer_approval(id, ApprovalStep::Approve, &name, None, at(1)).await,
                    1 => {
                        let step = ApprovalStep::Reject { reason };
                        store.answer_approval(id, step, &name, None, at(1)).await
                    }
                    2 => {
                        store.answer_approval(id, ApprovalStep::Withdraw, &name, None, at(1)).await
                    }
                    _ => {
                        let msg = to_lark(&["1"], &format!("edit {round} {approver}"));
                        store.edit_approval(id, msg, &name, None, at(1)).await
                    }
                };
                (name, result)
            });
        }
        let answers = answers.join_all().await;
        let stored = store.approval(approval.id).await.unwrap();
        let winner = stored.state.answer().unwrap().by.clone();
        let (mut counted, mut rejected) = (0, 0);
        for (name, result) in answers {
            match result {
                Ok(approval) => {
                    assert_eq!(approval.state, stored.state, "{name}");
                    counted += 1;
                }
                Err(StoreError::AlreadyAnswered(first)) => {
                    assert_eq!(first.by.as_ref(), Some(&winner), "{name}");
                    rejected += 1;
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert!((1..=2).contains(&counted), "the winner, and the same answer of another one");
        assert_eq!(counted + rejected, 8);
        let state = stored.state.name();
        let expected = match state {
            ApprovalState::Approved | ApprovalState::Replaced => 1,
            _ => 0,
        };
        let mut leased = 0;
        while let Some(entry) = lease_next_delivery(&*store, "lark", 2).await {
            leased += 1;
            let proof = by_epoch(entry.entry.sending.epoch);
            let sent = monoco_core::delivery::DeliveryOutcome::Accepted { external_msg_id: None };
            store.report_delivery(entry.entry.id, sent, proof, RETRY, at(2)).await.unwrap();
        }
        assert_eq!(leased, expected, "{state:?}");
    }
}

pub(crate) async fn same_answer_again_changes_nothing(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let approval = hold(store, to_lark(&["1"], "hello")).await;
    let step = ApprovalStep::Approve;
    let outdated = store.answer_approval(approval.id, step.clone(), "ann", Some(7), at(1)).await;
    assert_matches!(outdated, Err(StoreError::Conflict { revision: 0, .. }));
    let first = store.answer_approval(approval.id, step.clone(), "ann", Some(0), at(1)).await;
    let events = event_kinds(store).await;
    let second = store.answer_approval(approval.id, step, "bob", Some(0), at(2)).await;
    assert_eq!(first.unwrap(), second.unwrap(), "the first answer stays");
    assert_eq!(event_kinds(store).await, events);
    assert_matches!(
        answer(store, approval.id, ApprovalStep::Withdraw, 3).await,
        Err(StoreError::AlreadyAnswered(first))
            if first.state == "APPROVED" && first.by.as_deref() == Some("ann")
    );
    let missing = answer(store, ApprovalId(99), ApprovalStep::Approve, 3).await;
    assert_matches!(missing, Err(StoreError::Missing { what: "approval", .. }));
}

pub(crate) async fn edited_message_is_sent_in_place_of_the_held_one(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let approval = hold(store, to_lark(&["1", "2"], "rude")).await;
    // The plans of the held message count, whatever the address book says now.
    let polite = to_lark(&["1", "2"], "polite");
    let edited =
        store.edit_approval(approval.id, polite.clone(), "ann", None, at(1)).await.unwrap();
    assert_eq!(edited.state.name(), ApprovalState::Replaced);
    assert_eq!(
        tunnel_contents(store, "lark").await,
        "rude ARCHIVED, rude ARCHIVED, polite WAIT, polite WAIT"
    );
    assert_eq!(box_contents(store, "me", BoxKind::Outbox).await, "polite SENT");
    let again = store.edit_approval(approval.id, polite.clone(), "bob", None, at(2)).await;
    assert_eq!(again.unwrap(), edited);
    let other =
        store.edit_approval(approval.id, to_lark(&["1"], "other"), "bob", None, at(2)).await;
    assert_matches!(other, Err(StoreError::AlreadyAnswered(_)));

    let second = hold(store, to_lark(&["1"], "rude again")).await;
    let known = store.edit_approval(second.id, polite.clone(), "ann", None, at(2)).await;
    assert_matches!(known, Err(StoreError::AlreadySent(id)) if id == polite.id());
    assert_eq!(store.approval(second.id).await.unwrap().state.name(), ApprovalState::Pending);
}

pub(crate) async fn held_delivery_is_released_by_its_approval_only(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let approval = hold(store, to_lark(&["1"], "hello")).await;
    let id =
        store.deliveries(&tunnel_id("lark").did(), &[], FULL_PAGE).await.unwrap().entries[0].id;
    let marked = store.mark_delivery(id, SendState::Wait, by_holder("ann"), None, at(1)).await;
    assert_matches!(marked, Err(StoreError::WaitsForApproval(waits)) if waits == approval.id);
    assert!(lease_next_delivery(store, "lark", 2).await.is_none());
    answer(store, approval.id, ApprovalStep::Approve, 2).await.unwrap();

    // A delivery that an operator holds has no approval.
    let msg = to_lark(&["2"], "by hand");
    let id = send_message(store, msg).await[0].record_id.unwrap();
    for to in [SendState::Held, SendState::Wait] {
        store.mark_delivery(id, to, by_holder("ann"), None, at(3)).await.unwrap();
    }
}

pub(crate) async fn approved_message_is_not_sent_before_its_time(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let request = SendRequest { not_before: Some(at(100)), ..by_agent(to_lark(&["1"], "later")) };
    let SendResult::Held { approval, .. } = store.send(request, at(0)).await.unwrap() else {
        panic!("not held")
    };
    answer(store, approval.id, ApprovalStep::Approve, 1).await.unwrap();
    assert!(lease_next_delivery(store, "lark", 99).await.is_none());
    assert_eq!(store.next_due(&tunnel_id("lark").did()).await.unwrap(), Some(at(100)));
    assert_eq!(leased_text(&lease_next_delivery(store, "lark", 100).await.unwrap()), "later");
}

pub(crate) async fn refused_message_leaves_only_an_event(store: &dyn Store) {
    put_lark_tunnel(store).await;
    set_policy(store, "  rules: [{ recipients_over: 1, do: refuse }]\n");
    let (mut events, counts) = (event_kinds(store).await, store.counts().await.unwrap());
    let msg = to_lark(&["1", "2"], "to all");
    let request = SendRequest { key: Some("k".to_owned()), ..by_agent(msg.clone()) };
    assert_matches!(
        store.send(request, at(0)).await,
        Err(StoreError::Refused { rule, .. }) if rule == "recipients_over: 1, do: refuse"
    );
    assert_matches!(store.object(msg.id()).await, Err(StoreError::Missing { .. }));
    events += " approval";
    assert_eq!((event_kinds(store).await, store.counts().await.unwrap()), (events, counts));
    let last = store.events(0, 1_000).await.unwrap().pop().unwrap();
    assert_eq!((&last.detail["state"], last.msg_id), (&json!("REFUSED"), None));
    assert_eq!(last.detail["rule"], "recipients_over: 1, do: refuse");
    hold(store, to_lark(&["1"], "to one")).await;
}

pub(crate) async fn rule_with_a_rate_holds_what_exceeds_it(store: &dyn Store) {
    put_lark_tunnel(store).await;
    set_policy(store, "  rules: [{ text_matches: hi, do: send, at_most: 2/min }]\n");
    let send = async |origin: SendOrigin, text: &str, now: i64| {
        let request = SendRequest { origin, ..send_request(to_lark(&["1"], text)) };
        match store.send(request, at(now)).await.unwrap() {
            SendResult::Queued { .. } => "sent",
            SendResult::Held { .. } => "held",
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(send(agent("codex"), "hi 1", 0).await, "sent");
    assert_eq!(send(agent("codex"), "hi 2", 1).await, "sent");
    assert_eq!(send(agent("codex"), "hi 3", 59).await, "held");
    assert_eq!(send(agent("other"), "hi 4", 59).await, "sent", "another agent has its own rate");
    assert_eq!(send(agent("codex"), "hi 5", 61).await, "sent", "a held message does not count");
    let decision = store.decision_of(to_lark(&["1"], "hi 3").id()).await.unwrap().unwrap();
    assert!(decision.held && decision.rule.ends_with("at_most: 2/min"), "{decision:?}");
    let page = store.decisions(at(59), None, 2).await.unwrap();
    let rest = store.decisions(at(59), page.next, 2).await.unwrap();
    assert_eq!((page.entries.len(), rest.entries.len(), rest.next), (2, 1, None));
    assert_eq!(store.decision_of(to_lark(&["1"], "none").id()).await.unwrap(), None);
    let codex = "codex".parse().unwrap();
    let found = store.decisions_of(&codex, at(1), 2).await.unwrap();
    let times: Vec<_> = found.iter().map(|decision| decision.at).collect();
    assert_eq!(times, [at(61), at(59)], "newest first, without those of others");
    assert_eq!(store.decisions_of(&codex, at(1), 10).await.unwrap().len(), 3);
}

pub(crate) async fn decisions_are_purged_with_their_events(store: &dyn Store) {
    put_lark_tunnel(store).await;
    store.advance_retention_clock(at(0)).await.unwrap();
    let old = to_lark(&["1"], "old");
    hold(store, old.clone()).await;
    store.advance_retention_clock(at(10)).await.unwrap();
    store.advance_retention_clock(at(DAY)).await.unwrap();
    let new = to_lark(&["1"], "new");
    store.send(by_agent(new.clone()), at(DAY)).await.unwrap();
    let found = async |msg: &MsgObject| store.decision_of(msg.id()).await.unwrap().is_some();
    assert_eq!((found(&old).await, found(&new).await), (true, true));
    assert!(store.purge_events(0, 100).await.unwrap() > 0);
    assert_eq!((found(&old).await, found(&new).await), (false, true));
    let left = store.decisions(at(0), None, 10).await.unwrap().entries;
    assert_eq!((left.len(), left[0].msg_id), (1, new.id()));
}

pub(crate) async fn facts_name_replies_and_first_contacts(store: &dyn Store) {
    put_lark_tunnel(store).await;
    add_contact(store, "bound", ContactLevel::Friend).await;
    store.bind(&did("bound"), binding("lark", "ou_7", 3), at(0)).await.unwrap();
    store_inbound(store, inbound_message("1", "ann", "question"), 0).await;
    merge_due(store, 100).await;
    let row = list_mails(store).await.remove(0);
    let mail = read_mail(store, &row).await;
    let reply_to = json!({"thread": {"reply_to": mail.msg_id}});

    let facts = async |msg: MsgObject| {
        hold(store, msg.clone()).await;
        store.decision_of(msg.id()).await.unwrap().unwrap().facts
    };
    let answer_to = mail.header.answer_to.as_str();
    let reply = facts(msg_object(reply_to.clone(), "codex", &[answer_to], "answer")).await;
    assert_eq!(reply.reply, Some(mail.header.trust));
    assert!(!reply.targets[0].first_contact, "it has written to the hub");
    let stranger = endpoint("new", "lark");
    let elsewhere = facts(msg_object(reply_to, "codex", &[&stranger], "elsewhere")).await;
    assert_eq!(elsewhere.reply, None, "not to where the answers of the Mail go");
    assert!(elsewhere.targets[0].first_contact);
    let again = facts(chat("codex", &[&stranger, "bound"], "again")).await;
    assert!(again.targets[0].first_contact, "a held message is no contact");
    assert!(!again.targets[1].first_contact, "a friend is known");

    let approval = hold(store, chat("codex", &[&stranger], "hello")).await;
    answer(store, approval.id, ApprovalStep::Approve, 1).await.unwrap();
    let known = facts(chat("codex", &[&stranger], "second")).await;
    assert!(!known.targets[0].first_contact, "after a message was sent");
}

pub(crate) async fn facts_name_mails_of_strangers_that_the_agent_has_read(store: &dyn Store) {
    put_lark_tunnel(store).await;
    store_inbound(store, inbound_message("1", "eve", "do this"), 0).await;
    merge_due(store, 100).await;
    let row = list_mails(store).await.remove(0);
    let mail = read_mail(store, &row).await;
    let facts = async |text: &str, target: &str, now: i64| {
        let msg = chat("codex", &[target], text);
        let sent = store.send(by_agent(msg.clone()), at(now)).await.unwrap();
        assert_matches!(sent, SendResult::Held { .. });
        let facts = store.decision_of(msg.id()).await.unwrap().unwrap().facts;
        (facts.after_untrusted, facts.elsewhere)
    };
    let (chat_of_mail, other) = (mail.header.answer_to.as_str(), endpoint("bob", "lark"));
    assert_eq!(facts("1", &other, 100).await, (false, false), "nothing was read");
    let name = "codex".parse().unwrap();
    store.record_read(&name, &mail.header.id, at(100)).await.unwrap();
    assert_eq!(facts("2", &other, 101).await, (true, true));
    assert_eq!(facts("3", chat_of_mail, 101).await, (true, false));
    assert_eq!(facts("4", &other, 101 + 24 * 3600).await, (false, false), "a day later");
}

pub(crate) async fn approvals_are_listed_by_state_and_survive_a_restart(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    for text in ["a", "b", "c"] {
        hold(&*store, to_lark(&["1"], text)).await;
    }
    let all = store.approvals(&[], FULL_PAGE).await.unwrap().entries;
    answer(&*store, all[1].id, ApprovalStep::Withdraw, 1).await.unwrap();
    drop(store);
    let store = home.open().await;
    let page = PageRequest { beyond: None, limit: 1, newest_first: true };
    let first = store.approvals(&[ApprovalState::Pending], page.clone()).await.unwrap();
    assert_eq!(first.entries[0].id, all[2].id);
    let next = PageRequest { beyond: first.next, ..page };
    let second = store.approvals(&[ApprovalState::Pending], next).await.unwrap();
    assert_eq!((second.entries[0].id, second.next), (all[0].id, None));
    assert_eq!(store.approval(all[0].id).await.unwrap(), all[0]);
    assert_eq!(store.approval_of(all[0].msg_id).await.unwrap().as_ref(), Some(&all[0]));
    answer(&*store, all[0].id, ApprovalStep::Approve, 1).await.unwrap();
    assert_eq!(leased_text(&lease_next_delivery(&*store, "lark", 2).await.unwrap()), "a");
}

pub(crate) async fn draft_ends_with_the_answer_of_its_approval(store: &dyn Store) {
    put_lark_tunnel(store).await;
    set_policy(store, "  owner: hold\n");
    for (uid, text) in [("d1", "rejected"), ("d2", "edited")] {
        let post = send_request(to_lark(&["1"], text));
        let draft = DraftSendRequest {
            uid: uid.to_owned(),
            provider: "lark".to_owned(),
            courier: COURIER,
            post,
        };
        store.send_draft(draft, &PipelineRouting::default(), at(0)).await.unwrap();
    }
    let all = store.approvals(&[], FULL_PAGE).await.unwrap().entries;
    let reason = Some("no".to_owned());
    answer(store, all[0].id, ApprovalStep::Reject { reason }, 1).await.unwrap();
    let finished = store.finished_drafts(COURIER, 10).await.unwrap();
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0].ended.as_deref(), Some("approval REJECTED by ann: no"));
    let edited = to_lark(&["1"], "better");
    store.edit_approval(all[1].id, edited.clone(), "ann", None, at(1)).await.unwrap();
    assert_eq!(
        store.finished_drafts(COURIER, 10).await.unwrap().len(),
        1,
        "the edited message waits"
    );
    let leased = lease_next_delivery(store, "lark", 1).await.unwrap();
    let sent = monoco_core::delivery::DeliveryOutcome::Accepted { external_msg_id: None };
    let proof = by_epoch(leased.entry.sending.epoch);
    store.report_delivery(leased.entry.id, sent, proof, RETRY, at(1)).await.unwrap();
    let finished = store.finished_drafts(COURIER, 10).await.unwrap();
    assert_eq!((finished.len(), finished[1].msg_id), (2, edited.id()));
}

/// Asks `ann` about an approval with this code.
async fn ask(store: &dyn Store, approval: ApprovalId, code: &str) -> bool {
    let target = did(&endpoint("ann", "lark"));
    let msg = chat("courier", &[&endpoint("ann", "lark")], &format!("{approval} {code}"));
    let request = AskRequest { approval, target, code: code.to_owned(), msg };
    store.ask_approval(request, at(0)).await.unwrap()
}

/// Sends an answer as the message `id` of `who`.
async fn chat_answer(
    store: &dyn Store,
    id: &str,
    who: &str,
    text: &str,
    now: i64,
) -> ChatAnswerResult {
    let answer = ChatAnswer::parse(text).unwrap();
    let message = inbound_message(id, who, text);
    store.answer_by_code(&did(&endpoint(who, "lark")), message, answer, at(now)).await.unwrap()
}

pub(crate) async fn code_counts_for_the_asked_account_only(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let first = hold(store, to_lark(&["1"], "one")).await;
    let second = hold(store, to_lark(&["2"], "two")).await;
    assert_eq!(store.unasked_approvals(10).await.unwrap().len(), 2);
    assert!(ask(store, first.id, "ddddd").await);
    assert!(!ask(store, second.id, "ddddd").await, "the code is in use");
    assert!(ask(store, second.id, "bbbbb").await);
    assert!(ask(store, second.id, "ccccc").await, "asked already; nothing happens");
    store.mark_asked(first.id).await.unwrap();
    assert_eq!(store.unasked_approvals(10).await.unwrap().len(), 1);

    let eve = chat_answer(store, "m1", "eve", "yes ddddd", 1).await;
    assert_eq!(eve, ChatAnswerResult::NotAsked);
    assert_eq!(approval_states(store).await, "PENDING PENDING");
    assert_eq!(unmerged_id(store, "m1", "eve").await, StoreInboundResult::Stored, "not consumed");

    let answered = chat_answer(store, "m2", "ann", "yes ddddd", 1).await;
    let ChatAnswerResult::Answered(approval) = answered else { panic!("{answered:?}") };
    assert_eq!(approval.state.answer().unwrap().by, did(&endpoint("ann", "lark")).as_str());
    assert_eq!(approval_states(store).await, "APPROVED PENDING");
    let copy = chat_answer(store, "m2", "ann", "yes ddddd", 2).await;
    assert_eq!(copy, ChatAnswerResult::Inbound(StoreInboundResult::Duplicate));
    let replayed = chat_answer(store, "m3", "ann", "no ddddd", 2).await;
    assert_matches!(
        replayed,
        ChatAnswerResult::AlreadyAnswered(id, first_answer)
            if id == first.id && first_answer.state == "APPROVED"
    );
    let asked_later = chat_answer(store, "m4", "ann", "no ccccc", 2).await;
    assert_eq!(asked_later, ChatAnswerResult::WrongCode { locked_until: None });
    chat_answer(store, "m5", "ann", "no bbbbb too long", 3).await;
    assert_eq!(approval_states(store).await, "APPROVED REJECTED");
}

/// Stores a message as an ordinary one.
async fn unmerged_id(store: &dyn Store, id: &str, who: &str) -> StoreInboundResult {
    store_inbound(store, inbound_message(id, who, "text"), 1).await
}

pub(crate) async fn account_is_locked_after_three_wrong_codes(store: &dyn Store) {
    put_lark_tunnel(store).await;
    let approval = hold(store, to_lark(&["1"], "one")).await;
    assert!(ask(store, approval.id, "ddddd").await);
    let wrong = ChatAnswerResult::WrongCode { locked_until: None };
    assert_eq!(chat_answer(store, "m1", "ann", "yes xxxxx", 0).await, wrong);
    assert_eq!(chat_answer(store, "m2", "ann", "yes wwwww", 0).await, wrong);
    let third = chat_answer(store, "m3", "ann", "no zzzzz", 0).await;
    assert_eq!(third, ChatAnswerResult::WrongCode { locked_until: Some(at(600)) });
    let correct = chat_answer(store, "m4", "ann", "yes ddddd", 599).await;
    assert_eq!(correct, ChatAnswerResult::Locked { until: at(600) });
    assert_eq!(approval_states(store).await, "PENDING");
    let later = chat_answer(store, "m5", "ann", "yes ddddd", 600).await;
    assert_matches!(later, ChatAnswerResult::Answered(_));
}
