//! Order, pace and parts of what is sent, through the provider `stub`.
//!
//! The stub numbers what it accepts, so the external ids show the order of arrival.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Courier, ME, chat};

fn courier(keys: &str) -> Courier {
    Courier::start_configured(&format!(
        "courier:\n  adapters:\n    chat: {{ provider: stub{keys} }}\n"
    ))
}

/// Sends a text and returns the id of its delivery.
fn send(courier: &Courier, address: &str, text: &str) -> String {
    let msg = chat(ME, &format!("did:msgtunnel:{address}.user.chat"), text);
    let sent = courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
    sent["deliveries"][0]["record_id"].as_str().unwrap().to_owned()
}

fn delivery(courier: &Courier, id: &str) -> Value {
    courier.get(&format!("/api/v1/records/{id}")).ok()
}

fn wait_for_state(courier: &Courier, id: &str, state: &str) -> Value {
    let path = format!("/api/v1/records/{id}");
    courier.until(&path, |record| record["state"] == state)
}

/// The number that the stub gave to a message.
fn number(record: &Value) -> u64 {
    let id = record["delivery"]["external_msg_id"].as_str().unwrap();
    id.strip_prefix("stub-").unwrap().parse().unwrap()
}

#[test]
fn two_hundred_sends_to_one_address_arrive_in_order_under_a_rate_limit() {
    let courier = courier("");
    let ids: Vec<_> = (0..200).map(|n| send(&courier, "slow-5", &format!("no. {n}"))).collect();
    let other = send(&courier, "ann", "hello");
    let other = wait_for_state(&courier, &other, "SENT");
    let open = delivery(&courier, ids.last().unwrap());
    assert_ne!(open["state"], "SENT", "another address does not wait for the queue");

    let last = wait_for_state(&courier, ids.last().unwrap(), "SENT");
    let numbers: Vec<_> =
        ids.iter().map(|id| number(&wait_for_state(&courier, id, "SENT"))).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert!(number(&other) < number(&last));
    let retried = ids.iter().filter(|id| delivery(&courier, id)["attempts"] != 1).count();
    assert!(retried > 20, "only {retried} were throttled");
}

#[test]
fn retried_message_is_not_overtaken() {
    let courier = courier("");
    let ids: Vec<_> = (0..3).map(|n| send(&courier, "busy-1", &format!("no. {n}"))).collect();
    let numbers: Vec<_> =
        ids.iter().map(|id| number(&wait_for_state(&courier, id, "SENT"))).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn rate_limit_of_the_tunnel_uses_up_no_attempts_of_other_messages() {
    let courier = courier("");
    let limited: Vec<_> = (0..10).map(|n| send(&courier, "limit-2", &n.to_string())).collect();
    let others: Vec<_> = (0..10).map(|n| send(&courier, &format!("ann-{n}"), "hello")).collect();
    for id in &others {
        assert_eq!(wait_for_state(&courier, id, "SENT")["attempts"], 1);
    }
    let numbers: Vec<_> =
        limited.iter().map(|id| number(&wait_for_state(&courier, id, "SENT"))).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn known_limits_are_kept_before_they_are_hit() {
    let courier = courier(", per_target: 5/s");
    let begin = Instant::now();
    let ids: Vec<_> = (0..15).map(|n| send(&courier, "room", &n.to_string())).collect();
    let other = send(&courier, "ann", "hello");
    wait_for_state(&courier, &other, "SENT");
    assert!(begin.elapsed() < Duration::from_secs(2), "another address has slots of its own");
    let numbers: Vec<_> = ids
        .iter()
        .map(|id| {
            let sent = wait_for_state(&courier, id, "SENT");
            assert_eq!(sent["attempts"], 1, "waiting is not an attempt");
            number(&sent)
        })
        .collect();
    assert!(begin.elapsed() >= Duration::from_millis(1_900), "{:?}", begin.elapsed());
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn each_part_has_a_receipt_and_can_be_answered() {
    let courier = courier("");
    let id = send(&courier, "parts-3", "long");
    let sent = wait_for_state(&courier, &id, "SENT");
    let want = json!([
        {"part": 0, "external_msg_id": "stub-1"},
        {"part": 1, "external_msg_id": "stub-2"},
        {"part": 2, "external_msg_id": "stub-3"},
    ]);
    assert_eq!(sent["delivery"]["parts"], want);
    for part in ["stub-1", "stub-2", "stub-3"] {
        let trace = courier.get(&format!("/api/v1/trace/{part}")).ok();
        assert_eq!(trace["msg_id"], sent["msg_id"], "{part}");
        let kinds: Vec<_> =
            trace["events"].as_array().unwrap().iter().map(|e| &e["kind"]).collect();
        assert_eq!(kinds, ["posted", "sending", "part_sent", "part_sent", "sent"]);
    }
    assert!(courier.cli(&["trace", &id]).ok().contains("stub-2"));
    assert!(courier.cli(&["center", "show", &id]).ok().contains("stub-2"));
}

/// The stub has accepted two parts, of which one has a receipt, when the courier is killed.
#[test]
fn courier_killed_between_parts_sends_no_part_twice() {
    for (keys, state) in [(", idempotent: false", "UNCERTAIN"), ("", "SENDING")] {
        let mut courier = courier(keys);
        let id = send(&courier, "stuck-1", "long");
        let path = format!("/api/v1/records/{id}");
        courier.until(&path, |record| record["delivery"]["parts"][0]["part"] == 0);
        courier.kill();
        let courier = courier.restart();
        let killed = wait_for_state(&courier, &id, state);
        let parts = killed["delivery"]["parts"].as_array().unwrap();
        assert_eq!(parts.len(), 1, "the receipt is stored: {killed:#}");
        if state == "UNCERTAIN" {
            // The part after the receipt may be sent: only an operator repeats it.
            let retry = json!({"state": "WAIT"});
            courier.post(&format!("{path}/state"), &retry).ok();
            let resumed = wait_for_state(&courier, &id, "SENDING");
            assert_eq!(resumed["delivery"]["parts"].as_array().unwrap().len(), 1);
        }
    }
}

#[test]
fn message_with_unknown_outcome_is_found_at_the_provider() {
    let finding = courier(", idempotent: false, finds_sent: true");
    let found = send(&finding, "lose", "hello");
    let sent = wait_for_state(&finding, &found, "SENT");
    assert_eq!(sent["delivery"]["external_msg_id"], "stub-1", "it was sent once");
    let missing = send(&finding, "vanish", "hello");
    wait_for_state(&finding, &missing, "UNCERTAIN");

    let blind = courier(", idempotent: false");
    let lost = send(&blind, "lose", "hello");
    assert_eq!(wait_for_state(&blind, &lost, "UNCERTAIN")["attempts"], 1);
}
