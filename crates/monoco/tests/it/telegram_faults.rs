//! Telegram under faults: nothing is lost, nothing is doubled, and two couriers on one bot do not
//! fight.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chat_harness::{
    ChatSim, chat_config, count_tokens, kept_mails, kept_messages, knob, mail_text, run, send_to,
    wait_for_kept,
};
use crate::common::{Courier, until, wait_for};
use crate::telegram::{OPS, keys, polling, pushing, tunnel_health, wait_for_connection};
use crate::webhook_peer::configure;

/// Waits until `count` messages are kept, and checks that each text is there once.
#[track_caller]
fn expect_all_once(courier: &Courier, count: u64, patience: Duration) {
    let deadline = Instant::now() + patience;
    while kept_messages(courier) < count {
        let kept = kept_messages(courier);
        assert!(Instant::now() < deadline, "{kept} of {count}: {:#}", tunnel_health(courier));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(kept_messages(courier), count);
    let wanted: BTreeMap<_, _> = (1..=count).map(|number| (number, 1)).collect();
    let mails = kept_mails(courier);
    let texts = mails.keys().map(|mail| mail_text(courier, mail));
    assert_eq!(count_tokens(texts), wanted);
}

/// How often the emulator has answered with an error that contains `part`.
fn errors(sim: &ChatSim, part: &str) -> u64 {
    let state = sim.get("state");
    let errors = state["counters"]["errors"].as_object().cloned().unwrap_or_default();
    let found = errors.iter().filter(|(text, _)| text.contains(part));
    found.filter_map(|(_, count)| count.as_u64()).sum()
}

#[test]
fn every_receiving_fault_of_polling_loses_and_doubles_nothing() {
    let (sim, courier) = polling(&["poll_s: 2"]);
    let faults = [
        json!({"duplicate": 10}),
        json!({"reorder": 5}),
        json!({"drop_socket": true}),
        json!({"drop_socket": {"every": 3}}),
        json!({"drop_socket": false, "silent": true}),
        json!({"silent": false, "server_error": {"count": 2, "status": 502, "method": "getUpdates"}}),
        json!({"rate_limit": {"count": 1, "retry_after": 1, "method": "getUpdates"}}),
    ];
    let mut said = 0;
    for fault in &faults {
        sim.chaos(fault.clone());
        for _ in 0..10 {
            said += 1;
            sim.say("ops", &format!("tok-{said}."));
        }
        expect_all_once(&courier, said, Duration::from_secs(60));
    }
    sim.chaos(json!({"reset": true}));
    assert_ne!(tunnel_health(&courier)["status"], "down");
}

#[test]
fn every_receiving_fault_of_the_webhook_loses_and_doubles_nothing() {
    let (sim, courier) = pushing();
    let mut said = 0;
    for fault in [json!({"duplicate": 10}), json!({"reorder": 5}), json!({"wrong_signature": 3})] {
        sim.chaos(fault);
        for _ in 0..10 {
            said += 1;
            sim.say("ops", &format!("tok-{said}."));
        }
        expect_all_once(&courier, said, Duration::from_secs(60));
    }
    // The courier is away; Telegram keeps the updates.
    let mut courier = courier;
    courier.kill();
    for _ in 0..5 {
        said += 1;
        sim.say("ops", &format!("tok-{said}."));
    }
    let courier = courier.restart();
    sim.control("proxy", &json!({"url": format!("http://{}", courier.webhooks())}));
    expect_all_once(&courier, said, Duration::from_secs(60));
}

#[test]
fn ids_that_start_over_lose_nothing() {
    let (sim, courier) = polling(&[]);
    sim.say("ops", "tok-1.");
    expect_all_once(&courier, 1, Duration::from_secs(30));
    until("everything is confirmed", || sim.get("state")["events_waiting"] == 0);
    sim.control("restart_ids", &json!({"start": 5}));
    for number in 2..=4 {
        sim.say("ops", &format!("tok-{number}."));
        expect_all_once(&courier, number, Duration::from_secs(30));
    }
}

#[test]
fn many_messages_over_dropped_polls_arrive_exactly_once() {
    let count = knob("MONOCO_CHAT_MESSAGES", 2000);
    let sim = ChatSim::start("telegram");
    let courier = Courier::start_configured(&chat_config("tele", 200, &keys(&sim, &[])));
    wait_for_connection(&courier);
    sim.chaos(json!({"drop_socket": {"every": 200}, "duplicate": count}));
    sim.control("say", &json!({"chat": "ops", "text": "tok-{n}.", "count": count}));
    expect_all_once(&courier, count, Duration::from_secs(60 + count / 20));
    sim.chaos(json!({"reset": true}));
    until("everything is confirmed", || sim.get("state")["events_waiting"] == 0);
    assert_eq!(kept_messages(&courier), count);
}

#[test]
fn killed_courier_loses_and_doubles_no_message() {
    let rounds = knob("MONOCO_ROUNDS", 5);
    let (sim, mut courier) = polling(&[]);
    let count = rounds * 40;
    sim.control("say", &json!({"chat": "ops", "text": "tok-{n}.", "count": count, "rate": 100.0}));
    for round in 1..=rounds {
        wait_for(|| match kept_messages(&courier) {
            found if found >= round * 20 => Ok(()),
            found => Err(format!("{found}")),
        });
        courier = courier.restart();
    }
    expect_all_once(&courier, count, Duration::from_secs(60));
}

#[test]
fn ten_restarts_and_ten_reloads_cause_no_storm_of_conflicts() {
    let (sim, mut courier) = polling(&[]);
    for _ in 0..10 {
        courier = courier.restart();
        wait_for_connection(&courier);
    }
    for round in 1..=10 {
        let poll = format!("poll_s: {}", 20 + round);
        configure(courier.home(), &chat_config("tele", 50, &keys(&sim, &[&poll])));
        run(&courier, &["courier", "reload"]).ok();
        wait_for_connection(&courier);
    }
    sim.say("ops", "tok-1.");
    expect_all_once(&courier, 1, Duration::from_secs(30));
    let health = tunnel_health(&courier);
    assert!(!health.to_string().contains("Conflict"), "{health:#}");
    // The emulator counts the conflicts of calls whose courier is gone. None was answered to a
    // courier that polls again because of it.
    let requests = sim.get("state")["counters"]["requests"]["getUpdates"].as_u64().unwrap();
    assert!(requests < 120, "{requests} polls");
}

#[test]
fn two_couriers_on_one_bot_say_so_and_do_not_hammer() {
    let sim = ChatSim::start("telegram");
    let config = chat_config("tele", 50, &keys(&sim, &["poll_s: 2"]));
    let first = Courier::start_configured(&config);
    wait_for_connection(&first);
    let second = Courier::start_configured(&config);
    let says_so = |courier: &Courier| {
        let health = tunnel_health(courier).to_string();
        health.contains("another program polls with the same token")
    };
    let start = Instant::now();
    let (mut of_first, mut of_second) = (false, false);
    while !(of_first && of_second) {
        of_first |= says_so(&first);
        of_second |= says_so(&second);
        assert!(
            start.elapsed() < Duration::from_secs(180),
            "{of_first} {of_second}: {:#}",
            sim.get("state")
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let doctor = run(&first, &["tunnel", "test", "tele"]);
    let said = format!("{}{}", doctor.stdout, doctor.stderr);
    assert!(said.contains("another program polls"), "{said}");
    let seconds = start.elapsed().as_secs() + 1;
    let conflicts = errors(&sim, "terminated by other getUpdates");
    assert!(conflicts <= 2 + seconds / 10, "{conflicts} conflicts in {seconds} s");
    // Nothing is lost: each message reaches one of them.
    for number in 1..=5 {
        sim.say("ops", &format!("shared {number}."));
    }
    wait_for(|| match kept_messages(&first) + kept_messages(&second) {
        found if found >= 5 => Ok(()),
        found => Err(format!("{found} of 5")),
    });
}

#[test]
fn conflict_with_a_foreign_poller_is_waited_out() {
    let (sim, courier) = polling(&["poll_s: 1"]);
    sim.control("conflict", &json!({"count": 1}));
    let health = wait_for(|| match tunnel_health(&courier) {
        health if health["status"] == "down" => Ok(health),
        health => Err(format!("{health:#}")),
    });
    assert!(health.to_string().contains("stop the other program"), "{health:#}");
    let polls = || sim.get("state")["counters"]["requests"]["getUpdates"].as_u64().unwrap();
    let (before, start) = (polls(), Instant::now());
    sim.say("ops", "tok-1.");
    expect_all_once(&courier, 1, Duration::from_secs(90));
    assert!(start.elapsed() > Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(polls() - before <= 4, "{} polls", polls() - before);
}

#[test]
fn active_webhook_is_named_and_deleted_only_if_the_config_says_so() {
    let sim = ChatSim::start("telegram");
    sim.control("push", &json!({"url": "http://127.0.0.1:9/webhooks/other"}));
    let courier = Courier::start_configured(&chat_config("tele", 50, &keys(&sim, &[])));
    let health = wait_for(|| match tunnel_health(&courier) {
        health if health.to_string().contains("a webhook is set") => Ok(health),
        health => Err(format!("{health:#}")),
    });
    assert_eq!(health["status"], "down");
    let test = run(&courier, &["tunnel", "test", "tele"]);
    let said = format!("{}{}", test.stdout, test.stderr);
    assert!(said.contains("a webhook is set at http://127.0.0.1:9, so nothing"), "{said}");
    let config = chat_config("tele", 50, &keys(&sim, &["delete_webhook: true"]));
    configure(courier.home(), &config);
    run(&courier, &["courier", "reload"]).ok();
    wait_for_connection(&courier);
    sim.say("ops", "tok-1.");
    expect_all_once(&courier, 1, Duration::from_secs(30));
}

/// The state of a delivery.
fn delivery(answer: &Value) -> String {
    format!("/api/v1/records/{}", answer["deliveries"][0]["record_id"].as_str().unwrap())
}

#[test]
fn sending_faults_are_retried_in_order_and_double_nothing() {
    let (sim, courier) = polling(&[]);
    let faults = [
        json!({"rate_limit": {"count": 2, "retry_after": 1}}),
        json!({"rate_limit": {"count": 2}}),
        json!({"server_error": {"count": 2, "status": 503}}),
    ];
    for (number, fault) in faults.iter().enumerate() {
        sim.chaos(fault.clone());
        for part in 0..3 {
            send_to(&courier, OPS, &format!("{number}-{part}"));
        }
        sim.wait_for_sent(3 * (number + 1));
    }
    let texts: Vec<_> = sim.sent().iter().map(|sent| sent["text"].clone()).collect();
    let wanted: Vec<_> =
        (0..faults.len()).flat_map(|n| (0..3).map(move |p| json!(format!("{n}-{p}")))).collect();
    assert_eq!(texts, wanted, "one chat keeps its order");
}

#[test]
fn send_without_an_answer_is_uncertain_and_not_repeated() {
    let (sim, courier) = polling(&[]);
    sim.chaos(json!({"accept_then_timeout": {"count": 1, "hang_ms": 500}}));
    let first = send_to(&courier, OPS, "once");
    sim.wait_for_sent(1);
    courier.until(&delivery(&first), |record| record["state"] == "UNCERTAIN");
    sim.chaos(json!({"server_error": {"count": 1, "status": 502}}));
    let second = send_to(&courier, OPS, "perhaps");
    courier.until(&delivery(&second), |record| record["state"] == "UNCERTAIN");
    assert_eq!(sim.sent().len(), 1);
}

#[test]
fn rejected_sends_are_dead_letters_with_their_reason() {
    let (sim, courier) = polling(&[]);
    sim.control("block", &json!({"user": "cem"}));
    for (to, want) in [
        ("did:msgtunnel:1003.user.tele", "the person has blocked the bot"),
        ("did:msgtunnel:-1009999.group.tele", "chat not found"),
    ] {
        let answer = send_to(&courier, to, "hello");
        let record = courier.until(&delivery(&answer), |record| record["state"] == "DEAD");
        assert!(record.to_string().contains(want), "{record:#}");
    }
    assert!(sim.sent().is_empty());
}

#[test]
fn limits_of_telegram_are_kept() {
    let sim = ChatSim::start("telegram");
    sim.control("settings", &json!({"limits": true}));
    let mut keys = keys(&sim, &[]);
    keys.retain(|key| !key.contains("_rate"));
    let courier = Courier::start_configured(&chat_config("tele", 50, &keys));
    for number in 1..=4 {
        send_to(&courier, OPS, &format!("message {number}"));
        send_to(&courier, "did:msgtunnel:1001.user.tele", &format!("message {number}"));
    }
    sim.wait_for_sent(8);
    assert!(errors(&sim, "Too Many Requests") <= 1, "{:#}", sim.get("state"));
}

#[test]
fn long_message_is_split_at_4096_units_and_continues_after_the_failed_part() {
    let (sim, courier) = polling(&[]);
    let paragraph =
        |number| format!("Paragraph {number} has 😀 in a text that needs several parts.\n\n");
    let text: String = (1..=250).map(paragraph).collect();
    sim.chaos(json!({"rate_limit": {"count": 1, "retry_after": 1}}));
    send_to(&courier, OPS, &text);
    let sent = wait_for(|| {
        let sent = sim.sent();
        let all = sent.iter().map(|it| it["text"].as_str().unwrap()).collect::<Vec<_>>().join("\n");
        if all.contains("Paragraph 250 ") { Ok(sent) } else { Err(format!("{} parts", sent.len())) }
    });
    let all = sent.iter().map(|it| it["text"].as_str().unwrap()).collect::<Vec<_>>();
    assert!(all.iter().all(|text| text.encode_utf16().count() <= 4096));
    let all = all.join("\n");
    for number in 1..=250 {
        assert_eq!(all.matches(&format!("Paragraph {number} has")).count(), 1, "{number}");
    }
}

#[test]
fn half_dead_poll_is_replaced_within_three_minutes() {
    let (sim, courier) = polling(&["poll_s: 5"]);
    // The call that waits is never answered, and its connection stays open.
    wait_for(|| match sim.get("state")["network"]["bots"][0]["polls"].as_u64() {
        Some(1) => Ok(()),
        other => Err(format!("{other:?} polls")),
    });
    sim.chaos(json!({"silent": true}));
    sim.say("ops", "tok-1.");
    expect_all_once(&courier, 1, Duration::from_secs(180));
    wait_for_kept(&courier, 1);
}
