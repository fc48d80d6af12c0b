//! Lark under faults: nothing is lost, nothing is doubled, and the connection comes back.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::chat_harness::{
    ChatSim, assert_all_paragraphs_once, assert_each_once, chat_config,
    keep_messages_over_dropped_sockets, keep_messages_over_killed_couriers, kept_messages,
    long_text, reload_ten_times, run, send_to, wait_for_kept,
};
use crate::common::{Courier, wait_for};
use crate::lark::{
    GENERAL, connected, connected_with, id_of, messages, stream_keys, tunnel_health,
};
use crate::webhook_peer::configure;

/// Paragraphs of a text that Lark takes in several parts.
const PARAGRAPHS: usize = 1500;

#[test]
fn kinds_of_chaos_lose_and_double_no_message() {
    let (sim, courier) = connected(50);
    let mut total = 0;
    let endpoint = |kind: &str, count: u64, status: u64| json!({"drop_socket": true, kind: {"method": "ws_endpoint", "count": count, "status": status}});
    for (name, chaos) in [
        ("duplicates", json!({"duplicate": 20})),
        ("reverse order", json!({"reorder": 10})),
        ("lost sockets", json!({"drop_socket": true})),
        ("drops while sending", json!({"drop_socket": {"every": 7}})),
        ("closed sockets", json!({"drop_socket": false, "disconnect_frame": true})),
        ("rejected handshakes", json!({"reject_handshake": 2, "drop_socket": true})),
        (
            "rejected logins",
            json!({"reject_handshake": {"count": 1, "status": 514, "code": 1}, "drop_socket": true}),
        ),
        ("expired token", json!({"expire_token": true})),
        ("failing endpoint", endpoint("server_error", 2, 500)),
    ] {
        sim.chaos(chaos);
        let text = format!("{name} {{n}}.");
        sim.control("say", &json!({"chat": "general", "text": text, "count": 20}));
        total += 20;
        wait_for(|| match kept_messages(&courier) {
            found if found == total => Ok(()),
            found => {
                Err(format!("{name}: {total} messages, found {found}: {:#}", sim.get("state")))
            }
        });
        sim.chaos(json!({"reset": true}));
    }
    sim.wait_for_connections(1);
    assert_each_once(&courier, &["duplicates", "reverse order", "lost sockets"], 20);
}

#[test]
fn split_events_and_wrong_frames_lose_no_message_and_no_connection() {
    let (sim, courier) = connected(50);
    let connection = |sim: &ChatSim| sim.get("state")["connections"][0]["id"].clone();
    let first = connection(&sim);
    let mut total = 0;
    for order in ["forward", "reversed", "shuffled"] {
        sim.control("split", &json!({"parts": 5, "order": order}));
        let text = format!("{order} {{n}}.");
        sim.control("say", &json!({"chat": "general", "text": text, "count": 10}));
        total += 10;
        wait_for_kept(&courier, total);
    }
    for kind in [
        "garbage",
        "empty",
        "text",
        "truncated",
        "no_headers",
        "no_payload",
        "unknown_method",
        "unknown_type",
        "card",
        "sum_zero",
        "sum_huge",
        "sum_text",
        "seq_beyond_sum",
        "seq_negative",
        "endless",
        "not_json",
        "not_utf8",
    ] {
        sim.control("frame", &json!({"kind": kind, "count": 100}));
        sim.say("general", &format!("after {kind}."));
        total += 1;
        wait_for(|| match kept_messages(&courier) {
            found if found == total => Ok(()),
            found => Err(format!("{kind}: {total} messages, found {found}")),
        });
    }
    assert_eq!(connection(&sim), first, "the connection lives");
    // A frame beyond the limit ends the connection, and the next one works.
    sim.control("frame", &json!({"kind": "huge", "count": 1}));
    sim.say("general", "after huge.");
    wait_for_kept(&courier, total + 1);
    assert_each_once(&courier, &["forward", "reversed", "shuffled"], 10);
}

#[test]
fn rejected_app_is_tried_slowly_and_says_why() {
    let (sim, courier) = connected(50);
    for (round, fault, words) in [
        (1, json!({"count": 1, "status": 403}), "check that the app is published"),
        (2, json!({"count": 1, "status": 514, "code": 1_000_040_350}), "50 connections already"),
    ] {
        sim.chaos(json!({"reject_handshake": fault, "drop_socket": true}));
        wait_for(|| match tunnel_health(&courier) {
            health if health.to_string().contains(words) => Ok(()),
            health => Err(format!("{health:#}")),
        });
        // The next attempt is a minute later, or after a change of the config.
        let mut keys = stream_keys(&sim);
        keys.push(format!("catch_up: {round}h"));
        configure(courier.home(), &chat_config("lark", 50, &keys));
        run(&courier, &["courier", "reload"]).ok();
        sim.wait_for_connections(1);
    }
}

#[test]
fn new_event_of_a_stored_message_is_a_duplicate() {
    let (sim, courier) = connected(50);
    let said = id_of(&sim.say("general", "once 1."));
    wait_for_kept(&courier, 1);
    for _ in 0..3 {
        sim.control("repeat", &json!({"chat": "general", "id": said}));
    }
    sim.say("general", "once 2.");
    wait_for_kept(&courier, 2);
    assert_each_once(&courier, &["once"], 2);
}

/// The connection stays open, but nothing comes through it any more.
#[test]
fn half_dead_connection_is_replaced_within_three_minutes() {
    let (sim, courier) = connected(50);
    sim.chaos(json!({"silent": true, "stop_pong": true}));
    sim.say("general", "into the silence");
    let start = Instant::now();
    while kept_messages(&courier) == 0 {
        assert!(start.elapsed() < Duration::from_secs(180), "{:#}", sim.get("state"));
        std::thread::sleep(Duration::from_millis(200));
    }
    wait_for_kept(&courier, 1);
}

#[test]
fn missed_messages_and_replies_are_read_from_the_history() {
    let (sim, courier) = connected(50);
    let parent = id_of(&sim.say("topics", "before the gap"));
    sim.say("@bob", "direct before the gap");
    wait_for_kept(&courier, 2);
    // The network keeps no events for a bot that is not connected.
    sim.control("settings", &json!({"backlog": false}));
    let mut courier = courier;
    courier.kill();
    wait_for(|| if sim.connections() == 0 { Ok(()) } else { Err("still connected".to_owned()) });
    for number in 1..=3 {
        sim.say("general", &format!("missed {number}."));
    }
    sim.control("say", &json!({"chat": "topics", "text": "missed 4.", "thread": parent}));
    sim.control("say", &json!({"chat": "@bob", "text": "missed 5."}));
    let courier = courier.restart();
    wait_for_kept(&courier, 7);
    assert_each_once(&courier, &["missed"], 5);
    // A second gap reads the same history again and keeps nothing twice.
    sim.chaos(json!({"drop_socket": true}));
    sim.wait_for_connections(1);
    sim.say("general", "after the gap");
    wait_for_kept(&courier, 8);
}

#[test]
fn every_message_is_kept_once_when_the_connection_drops_every_200() {
    // Every message must come through the connection.
    let (sim, courier) = connected_with(200, &["catch_up: off"]);
    keep_messages_over_dropped_sockets(&sim, &courier);
}

#[test]
fn killed_courier_loses_and_doubles_no_message() {
    let (sim, dir) = (ChatSim::start("lark"), tempfile::tempdir().unwrap());
    let config = chat_config("lark", 20, &stream_keys(&sim));
    keep_messages_over_killed_couriers(&sim, &dir.path().join("home"), &config);
}

/// Waits until all deliveries of the tunnel are sent.
#[track_caller]
fn all_sent(courier: &Courier, count: usize) {
    let path = "/api/v1/boxes/did:msgtunnel:lark/TUNNEL_OUTBOX?limit=100";
    courier.until(path, |page| {
        let records = page["records"].as_array().unwrap();
        records.len() == count && records.iter().all(|record| record["state"] == "SENT")
    });
}

#[test]
fn kinds_of_chaos_double_no_send_and_keep_the_order() {
    let (sim, courier) = connected(50);
    let mut total = 0;
    for (name, chaos) in [
        ("throttled", json!({"rate_limit": {"count": 2, "retry_after": 1}})),
        ("chat throttled", json!({"rate_limit": {"count": 1, "retry_after": 1, "code": 230_020}})),
        ("unavailable", json!({"server_error": {"count": 1, "status": 503}})),
        ("broken", json!({"server_error": {"count": 1, "status": 500}})),
        ("unanswered", json!({"accept_then_timeout": {"count": 1, "hang_ms": 300}})),
        ("twice unanswered", json!({"accept_then_timeout": {"count": 2, "hang_ms": 300}})),
        ("expired", json!({"expire_token": true})),
        (
            "expired and broken",
            json!({"expire_token": true, "server_error": {"count": 1, "status": 500}}),
        ),
    ] {
        sim.chaos(chaos);
        send_to(&courier, GENERAL, &format!("first {name}."));
        send_to(&courier, GENERAL, &format!("second {name}."));
        total += 2;
        all_sent(&courier, total);
        let sent = messages(&sim);
        assert_eq!(sent.len(), total, "{name}: {sent:#?}");
        let last: Vec<_> = sent[total - 2..].iter().map(|sent| sent["text"].clone()).collect();
        assert_eq!(last, [json!(format!("first {name}.")), json!(format!("second {name}."))]);
        sim.chaos(json!({"reset": true}));
    }
}

#[test]
fn rejected_sends_are_dead_letters_with_the_code() {
    let (sim, courier) = connected(50);
    let chat = "did:msgtunnel:oc_random.group.lark";
    let answer = send_to(&courier, chat, "nobody hears it");
    let path =
        format!("/api/v1/records/{}", answer["deliveries"][0]["record_id"].as_str().unwrap());
    let record = courier.until(&path, |record| record["state"] == "DEAD");
    let words = record.to_string();
    assert!(words.contains("230002") && words.contains("the bot is not in the chat"), "{words}");
    assert!(sim.sent().is_empty());
}

/// The attempt of the killed courier ends with its lease, about two minutes later. Lark knows the
/// uuid of the part that was under way, so nothing is lost and nothing is doubled.
#[test]
fn killed_courier_resumes_after_the_parts_that_were_sent() {
    let (sim, courier) = connected_with(50, &["catch_up: 1h"]);
    // The second request is executed and not answered, so that the courier dies in between.
    send_to(&courier, GENERAL, "warm up");
    sim.wait_for_sent(1);
    sim.chaos(json!({"accept_then_timeout": {"count": 1, "hang_ms": 60_000}}));
    let answer = send_to(&courier, GENERAL, &long_text(PARAGRAPHS));
    let delivery = answer["deliveries"][0]["record_id"].as_str().unwrap();
    let delivery = format!("/api/v1/records/{delivery}");
    sim.wait_for_sent(2);
    let mut courier = courier;
    courier.kill();
    let courier = courier.restart();
    let start = Instant::now();
    while courier.get(&delivery).ok()["state"] != "SENT" {
        assert!(start.elapsed() < Duration::from_secs(300), "{:#}", courier.get(&delivery).ok());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_all_paragraphs_once(&messages(&sim)[1..], PARAGRAPHS);
}

#[test]
fn ten_reloads_leave_one_connection() {
    let (sim, courier) = connected(50);
    reload_ten_times(&sim, &courier, "lark", &stream_keys(&sim));
}
