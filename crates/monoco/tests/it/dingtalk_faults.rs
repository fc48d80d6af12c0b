//! DingTalk under faults: nothing is lost, nothing is doubled, and the connection comes back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chat_harness::{ChatSim, count_tokens, knob, only_mail, reply, send_to};
use crate::common::{Courier, until, wait_for};
use crate::dingtalk::{config, connected, emulator, mail_files};

/// Sends a text to a group by the API, and returns the path of its delivery.
fn send(courier: &Courier, chat: &str, text: &str) -> String {
    let to = format!("did:msgtunnel:{}.group.ding", chat.replace('=', "%3D"));
    let answer = send_to(courier, &to, text);
    format!("/api/v1/records/{}", answer["deliveries"][0]["record_id"].as_str().unwrap())
}

/// How often each of the texts `tok-N.` is in the Mail files. The front matter names no text.
fn tokens(courier: &Courier) -> BTreeMap<u64, usize> {
    count_tokens(mail_files(courier.home()))
}

/// Waits until every text has arrived, and checks that none has arrived twice.
fn expect_all_once(courier: &Courier, count: u64, patience: Duration) {
    let deadline = Instant::now() + patience;
    let found = loop {
        let found = tokens(courier);
        if found.len() as u64 >= count {
            break found;
        }
        assert!(Instant::now() < deadline, "{} of {count} messages", found.len());
        std::thread::sleep(Duration::from_millis(100));
    };
    let doubled: Vec<_> = found.iter().filter(|(_, times)| **times != 1).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
    assert_eq!(found.keys().copied().collect::<Vec<_>>(), (1..=count).collect::<Vec<_>>());
}

/// Lets the emulator repeat quickly what is not acknowledged, also what it says meanwhile.
fn repeat_quickly(sim: &ChatSim) {
    let settings = json!({
        "ack_timeout_ms": 2000, "resend_on_close": true, "backlog": true, "max_attempts": 1000,
    });
    sim.control("settings", &settings);
}

#[test]
fn every_receiving_fault_loses_and_doubles_nothing() {
    let (sim, courier) = connected();
    repeat_quickly(&sim);
    let faults = [
        json!({"duplicate": 10}),
        json!({"reorder": 5}),
        json!({"drop_socket": true}),
        json!({"disconnect_frame": true}),
        json!({"reject_handshake": 2, "drop_socket": true}),
        json!({"expire_token": true}),
    ];
    let mut said = 0;
    for fault in &faults {
        sim.control("chaos", fault);
        for _ in 0..10 {
            said += 1;
            sim.say("ops", &format!("tok-{said}."));
        }
        expect_all_once(&courier, said, Duration::from_secs(60));
    }
    sim.wait_for_connections(1);
}

#[test]
fn disconnect_frame_opens_the_new_stream_before_the_old_one_ends() {
    let (sim, courier) = connected();
    sim.control("settings", &json!({"disconnect_grace_ms": 60_000}));
    let first = sim.get("state")["connections"][0]["id"].clone();
    sim.control("chaos", &json!({"disconnect_frame": true}));
    let replaced = || {
        let state = sim.get("state");
        let ids: Vec<_> =
            state["connections"].as_array().unwrap().iter().map(|it| it["id"].clone()).collect();
        assert!(ids.len() <= 2, "{ids:?}");
        ids.iter().any(|id| *id != first)
    };
    until("a new connection", replaced);
    sim.say("ops", "tok-1.");
    expect_all_once(&courier, 1, Duration::from_secs(30));
    sim.wait_for_connections(1);
    assert!(!mail_files(courier.home()).is_empty());
}

#[test]
fn every_sending_fault_is_retried_in_order_and_doubles_nothing() {
    let (sim, courier) = connected();
    let faults = [
        json!({"rate_limit": {"count": 2, "retry_after": 1}}),
        json!({"rate_limit": {"count": 2}}),
        json!({"server_error": {"count": 2}}),
        json!({"server_error": {"count": 1, "method": "oauth2/accessToken"}, "expire_token": true}),
        json!({"expire_token": true}),
    ];
    for (number, fault) in faults.iter().enumerate() {
        sim.control("chaos", fault);
        for part in 0..3 {
            send(&courier, "cidOPS==", &format!("{number}-{part}"));
        }
        let sent = sim.wait_for_sent(3 * (number + 1));
        assert_eq!(sent.len(), 3 * (number + 1), "{fault}: {sent:#?}");
    }
    let texts: Vec<_> = sim.sent().iter().map(|it| it["text"].clone()).collect();
    let wanted: Vec<_> =
        (0..faults.len()).flat_map(|n| (0..3).map(move |p| json!(format!("{n}-{p}")))).collect();
    assert_eq!(texts, wanted, "one chat keeps its order");
}

#[test]
fn flow_controlled_message_is_sent_again() {
    let (sim, courier) = connected();
    sim.say("@ann", "hello");
    let mail = only_mail(&courier);
    sim.control("expire_sessions", &json!({}));
    sim.control("chaos", &json!({"flow_control": 1}));
    reply(&courier, &mail, "late");
    let delivered = |sent: &&Value| sent["via"] == "robot/oToMessages/batchSend";
    wait_for(|| {
        let sent = sim.sent();
        let count = sent.iter().filter(delivered).count();
        if count == 1 { Ok(()) } else { Err(format!("{sent:#?}")) }
    });
}

#[test]
fn send_without_an_answer_is_uncertain_and_not_repeated() {
    let (sim, courier) = connected();
    sim.control("chaos", &json!({"accept_then_timeout": {"count": 1, "hang_ms": 500}}));
    let delivery = send(&courier, "cidOPS==", "once");
    sim.wait_for_sent(1);
    let states = courier.until(&delivery, |record| record["state"] == "UNCERTAIN");
    assert_eq!(sim.sent().len(), 1, "{states:#}");
}

#[test]
fn many_messages_over_dropped_sockets_arrive_exactly_once() {
    let count = knob("MONOCO_CHAT_MESSAGES", 2000);
    let (sim, courier) = connected();
    repeat_quickly(&sim);
    sim.control("chaos", &json!({"drop_socket": {"every": 200}, "duplicate": count}));
    sim.control("say", &json!({"chat": "ops", "text": "tok-{n}.", "count": count}));
    expect_all_once(&courier, count, Duration::from_secs(60 + count / 20));
    sim.control("chaos", &json!({"reset": true}));
    sim.wait_for_connections(1);
}

#[test]
fn killed_courier_loses_and_doubles_no_message() {
    let rounds = knob("MONOCO_ROUNDS", 5);
    let (sim, mut courier) = connected();
    repeat_quickly(&sim);
    let count = rounds * 40;
    sim.control("say", &json!({"chat": "ops", "text": "tok-{n}.", "count": count, "rate": 100.0}));
    for round in 1..=rounds {
        let wanted = usize::try_from(round * 20).unwrap();
        until("more messages", || tokens(&courier).len() >= wanted);
        courier = courier.restart();
    }
    expect_all_once(&courier, count, Duration::from_secs(60));
    sim.wait_for_connections(1);
}

#[test]
fn killed_courier_continues_after_the_last_part_that_was_sent() {
    const PARTS: usize = 30;
    let (sim, courier) = connected();
    let part = |n: usize| format!("part-{n} {}\n\n", "x".repeat(13_000));
    let delivery = send(&courier, "cidOPS==", &(0..PARTS).map(part).collect::<String>());
    // The limit of the app slows down the parts after the first 20.
    sim.wait_for_sent(3);
    sim.control("chaos", &json!({"server_error": {"count": 2}}));
    courier.until(&delivery, |record| record["state"] == "FAILED");
    assert!(sim.sent().len() < PARTS);
    let courier = courier.restart();
    wait_for(|| match courier.get(&delivery).ok() {
        record if record["state"] == "SENT" => Ok(()),
        record => Err(format!("{} parts, {}", sim.sent().len(), record["state"])),
    });
    let numbers: Vec<_> = sim
        .sent()
        .iter()
        .map(|it| it["text"].as_str().unwrap().split(' ').next().unwrap().to_owned())
        .collect();
    assert_eq!(numbers, (0..PARTS).map(|n| format!("part-{n}")).collect::<Vec<_>>());
}

#[test]
fn members_and_gaps_are_notices() {
    let (sim, courier) = connected();
    sim.control("join", &json!({"chat": "ops", "user": "bob"}));
    let find = |courier: &Courier, kind: &str| {
        wait_for(|| {
            let answer = courier.get("/api/v1/events?limit=1000").ok();
            let events = answer["events"].as_array().unwrap().clone();
            let is_wanted = |it: &&Value| it["kind"] == "notice" && it.to_string().contains(kind);
            events.iter().find(is_wanted).cloned().ok_or_else(|| format!("{events:#?}"))
        })
    };
    assert!(find(&courier, "member_joined").to_string().contains("0002"));
    sim.control("chaos", &json!({"drop_socket": true}));
    let gap = find(&courier, "was not connected from").to_string();
    assert!(gap.contains("messages of this time may be missing"), "{gap}");
}

#[test]
fn ten_reloads_leave_one_connection() {
    let (sim, courier) = connected();
    for round in 0..10 {
        let config = config(&sim, &[&format!("file_hosts: [files{round}.example.com]")]);
        crate::webhook_peer::configure(courier.home(), &config);
        courier.cli(&["courier", "reload"]).ok();
        sim.wait_for_connections(1);
    }
    let state = sim.get("state");
    assert_eq!(state["connections"].as_array().unwrap().len(), 1, "{state:#}");
    sim.say("ops", "tok-1.");
    expect_all_once(&courier, 1, Duration::from_secs(30));
}

/// The stream stays open, but delivers nothing any more. `max_silence_s` makes the test short; the
/// default is 150 s, which a test of the adapter checks.
#[test]
fn half_dead_streams_are_replaced() {
    for fault in [json!({"stop_pong": true, "silent": true}), json!({"silent": true})] {
        let sim = emulator();
        sim.control("settings", &json!({"ping_interval_ms": 500}));
        let courier = Courier::start_configured(&config(&sim, &["max_silence_s: 5"]));
        sim.wait_for_connections(1);
        repeat_quickly(&sim);
        let first = sim.get("state")["connections"][0]["id"].clone();
        sim.control("chaos", &fault);
        wait_for(|| {
            let state = sim.get("state");
            let mut connections = state["connections"].as_array().unwrap().iter();
            match connections.any(|it| it["id"] != first) {
                true => Ok(()),
                false => Err(format!("{fault}: {state:#}")),
            }
        });
        // The dead connection is closed, so that nothing is sent to it.
        sim.wait_for_connections(1);
        sim.say("ops", "tok-1.");
        expect_all_once(&courier, 1, Duration::from_secs(30));
    }
}
