//! Conformance tests of halts: what they stop, and what their end releases.

use monoco_core::approval::{ApprovalState, ApprovalStep};
use monoco_core::delivery::SendState;
use monoco_core::halt::{Halt, HaltScope, HaltSet};

use super::approvals::{agent, by_agent, hold};
use super::drafts::to_lark;
use super::*;
use crate::HaltCounts;

async fn halt(store: &dyn Store, scope: &str, lock: bool) -> HaltCounts {
    let scope: HaltScope = scope.parse().unwrap();
    store.put_halt(Halt { scope, lock, by: "ann".to_owned(), at: at(0) }).await.unwrap()
}

async fn resume(store: &dyn Store, scope: &str) -> Option<HaltCounts> {
    store.remove_halt(&scope.parse().unwrap(), "ann", at(9)).await.unwrap()
}

/// The texts of all deliveries of a tunnel that can be leased.
async fn leased_texts(store: &dyn Store, tunnel: &str) -> String {
    let mut texts = Vec::new();
    while let Some(leased) = lease_next_delivery(store, tunnel, 10).await {
        texts.push(leased_text(&leased));
    }
    texts.join(" ")
}

pub(crate) async fn nothing_is_leased_while_all_is_halted(home: &dyn TestHome) {
    let store = home.open().await;
    put_lark_tunnel(&*store).await;
    send_message(&*store, to_lark(&["1"], "one")).await;
    send_message(&*store, to_lark(&["2"], "two")).await;
    assert!(lease_next_delivery(&*store, "lark", 1).await.is_some());
    let counts = halt(&*store, "all", false).await;
    assert_eq!(counts, HaltCounts { sending: 1, waiting: 1, pending: 0 });
    assert_eq!(leased_texts(&*store, "lark").await, "");
    send_message(&*store, to_lark(&["3"], "three")).await;
    drop(store);

    let store = home.open().await;
    assert_eq!(leased_texts(&*store, "lark").await, "", "after a restart");
    let HaltSet(halts) = store.halts().await.unwrap();
    assert_eq!((halts.len(), halts[0].scope.to_string()), (1, "all".to_owned()));
    assert!(resume(&*store, "tunnel:lark").await.is_none());
    assert_eq!(resume(&*store, "all").await.unwrap().waiting, 2);
    assert_eq!(resume(&*store, "all").await, None);
    assert_eq!(leased_texts(&*store, "lark").await, "two three", "the owner's messages go on");
}

pub(crate) async fn halt_of_a_tunnel_stops_this_tunnel_only(store: &dyn Store) {
    put_lark_tunnel(store).await;
    put_tunnel(store, "mail", StrangerPolicy::Accept, false).await;
    let mail = endpoint("m", "mail");
    send_message(store, to_lark(&["1"], "lark")).await;
    send_message(store, chat("me", &[&mail], "mail")).await;
    assert_eq!(halt(store, "tunnel:lark", false).await.waiting, 1);
    assert_eq!(leased_texts(store, "lark").await, "");
    assert_eq!(leased_texts(store, "mail").await, "mail");
    hold(store, to_lark(&["1"], "agent")).await;
    resume(store, "tunnel:lark").await.unwrap();
    assert_eq!(leased_texts(store, "lark").await, "lark");
}

/// No flood after the end of a halt: what agents have sent meanwhile waits for a person.
pub(crate) async fn messages_of_agents_are_held_during_a_halt(store: &dyn Store) {
    put_lark_tunnel(store).await;
    super::approvals::set_policy(store, "  agents: send\n");
    let send = async |text: &str| store.send(by_agent(to_lark(&[text], text)), at(0)).await;
    assert_matches!(send("before").await, Ok(SendResult::Queued { .. }));
    halt(store, "all", false).await;
    assert_matches!(
        send("during").await,
        Ok(SendResult::Held { approval, .. }) if approval.rule == "halt"
    );
    halt(store, "all", true).await;
    assert_matches!(send("locked").await, Err(StoreError::Refused { rule, .. }) if rule == "halt");
    halt(store, "all", false).await;
    assert_matches!(send("again").await, Err(StoreError::Refused { .. }));
    let counts = resume(store, "all").await.unwrap();
    assert_eq!((counts.waiting, counts.pending), (1, 1));
    assert_eq!(leased_texts(store, "lark").await, "before");
    assert_matches!(send("after").await, Ok(SendResult::Queued { .. }));
    assert_eq!(tunnel_contents(store, "lark").await, "before SENDING, during HELD, after WAIT");
}

pub(crate) async fn waiting_messages_of_a_halted_agent_are_held(store: &dyn Store) {
    put_lark_tunnel(store).await;
    super::approvals::set_policy(store, "  agents: send\n");
    let approved = {
        super::approvals::set_policy(store, "  agents: hold\n");
        let approval = hold(store, to_lark(&["1", "2"], "approved")).await;
        let step = ApprovalStep::Approve;
        store.answer_approval(approval.id, step, "ann", None, at(0)).await.unwrap();
        super::approvals::set_policy(store, "  agents: send\n");
        approval
    };
    store.send(by_agent(to_lark(&["3"], "codex")), at(0)).await.unwrap();
    let other = SendRequest { origin: agent("other"), ..send_request(to_lark(&["4"], "other")) };
    store.send(other, at(0)).await.unwrap();
    send_message(store, to_lark(&["5"], "owner")).await;

    halt(store, "agent:codex", false).await;
    assert_eq!(leased_texts(store, "lark").await, "other owner");
    assert_eq!(
        tunnel_contents(store, "lark").await,
        "approved HELD, approved HELD, codex HELD, other SENDING, owner SENDING"
    );
    let pending = store.approvals(&[ApprovalState::Pending], FULL_PAGE).await.unwrap().entries;
    assert_eq!(pending.len(), 2);
    assert_eq!(pending[0].msg_id, approved.msg_id, "the message has a second approval");
    assert_eq!(pending[0].targets.len(), 2, "for all targets");
    resume(store, "agent:codex").await.unwrap();
    assert_eq!(leased_texts(store, "lark").await, "", "a person decides");
    for approval in &pending {
        let step = ApprovalStep::Approve;
        store.answer_approval(approval.id, step, "ann", None, at(1)).await.unwrap();
    }
    assert_eq!(leased_texts(store, "lark").await, "approved approved codex");
    assert_eq!(box_contents(store, "me", BoxKind::Outbox).await.matches("approved").count(), 1);
    let waiting = store.deliveries(&tunnel_id("lark").did(), &[SendState::Held], FULL_PAGE).await;
    assert!(waiting.unwrap().entries.is_empty());
}
