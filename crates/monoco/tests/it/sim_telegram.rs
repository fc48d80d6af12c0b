//! The SDKs that Telegram recommends against `monoco sim telegram`.

use serde_json::{Value, json};

use crate::common::until;
use crate::pipeline_harness::free_port;
use crate::reference_sdks::python;
use crate::sim_harness::{SdkBot, Sim};
use crate::webhook_peer::Receiver;

const BOTS: [&str; 3] =
    ["telegram_ptb_bot.py", "telegram_aiogram_bot.py", "telegram_grammy_bot.cjs"];

/// How each bot begins its answers.
fn prefix(name: &str) -> &'static str {
    match name {
        "telegram_ptb_bot.py" => "re: ",
        "telegram_aiogram_bot.py" => "aiogram: ",
        _ => "grammy: ",
    }
}

fn counter(state: &Value, name: &str) -> u64 {
    state["counters"][name].as_u64().unwrap()
}

/// Has a bot receive a text, answer it, download a file and upload one.
fn check_conversation(sim: &Sim, bot: &SdkBot, name: &str) {
    let id = sim.say("hello");
    let heard = bot.until(|line| line["text"] == "hello");
    assert_eq!((heard["id"].to_string(), &heard["chat"]), (id.clone(), &json!("supergroup")));
    let answer = sim.until_sent(|sent| sent["text"] == format!("{}hello", prefix(name)));
    assert_eq!(
        (&answer["via"], &answer["chat"]),
        (&json!("sendMessage"), &json!("-1001000000001"))
    );
    assert_eq!(answer["request"]["reply_parameters"]["message_id"].to_string(), id, "{answer:#}");

    let file = json!({"name": "log.txt", "mime_type": "text/plain", "text": "one two"});
    sim.control("say", &json!({"chat": "@bob", "user": "bob", "files": [file]}));
    let heard = bot.until(|line| line["content"] == "one two");
    assert_eq!(heard["chat"], "private");
    sim.say("upload");
    let sent = sim.until_sent(|sent| sent["via"] == "sendDocument");
    assert_eq!(sent["text"], "a file");
    let path = format!("/control/files/{}", sent["files"][0]["id"].as_str().unwrap());
    assert!(sim.request("GET", &path, b"").text().starts_with("from "), "{sent:#}");
    if name == "telegram_ptb_bot.py" {
        assert_eq!(sent["files"][0]["name"], "a;b \u{e4}.txt");
    }
}

#[test]
fn sdks_fetch_updates_answer_download_upload_and_confirm() {
    for name in BOTS {
        let sim = Sim::start("telegram");
        let bot = SdkBot::start(name, &sim, &["poll"]);
        check_conversation(&sim, &bot, name);
        let id = sim.say("first");
        sim.control("edit", &json!({"chat": "ops", "id": id, "text": "second"}));
        bot.until(|line| line["saw"] == "edited_message" && line["text"] == "second");
        sim.control("say", &json!({"chat": "news", "text": "posted"}));
        bot.until(|line| line["saw"] == "channel_post" && line["text"] == "posted");
        sim.control("block", &json!({"user": "cem"}));
        bot.until(|line| line["saw"] == "my_chat_member");
        let state = sim.until(|state| state["events_waiting"] == 0);
        assert_eq!(counter(&state, "acks"), counter(&state, "events"), "{name}: {state:#}");
        assert_eq!(counter(&state, "given_up"), 0, "{name}");
    }
}

#[test]
fn sdks_receive_by_webhook_and_reject_a_wrong_secret_token() {
    for name in BOTS {
        let sim = Sim::start("telegram");
        sim.settings(&json!({"push_retries_ms": [0, 100]}));
        let port = free_port().to_string();
        let bot = SdkBot::start(name, &sim, &[&port]);
        let sends = |state: &Value| state["counters"]["requests"]["sendMessage"].clone();
        let before = sends(&sim.state());
        check_conversation(&sim, &bot, name);
        assert_ne!(sends(&sim.state()), before, "{name}");

        sim.chaos(&json!({"wrong_signature": 1}));
        sim.say("forged");
        bot.until(|line| line["text"] == "forged");
        let state = sim.until(|state| state["events_waiting"] == 0);
        assert_eq!(state["counters"]["pushes"]["http_error"], 1, "{name}: {state:#}");
        assert_eq!(bot.count("message", "forged"), 1, "{name}");
    }
}

/// Calls `getUpdates` and its relatives with the standard library.
const API_CALLS: &str = r#"
import json, sys, threading, time, urllib.error, urllib.parse, urllib.request
sim = json.load(sys.stdin)
root = f"{sim['base_url']}/bot{sim['credentials']['token']}/"
def call(method, wait=30, token_root=root, **params):
    request = urllib.request.Request(token_root + method, json.dumps(params).encode(), {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request, timeout=wait))["result"]
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)["description"]]
    except Exception as error:
        return type(error).__name__
def control(name, **body):
    request = urllib.request.Request(sim["control_url"] + "/" + name, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))
def say(*texts, **more):
    for text in texts:
        control("say", chat="ops", text=text, **more)
def texts(updates):
    return [update["message"]["text"] for update in updates]
def updates(**params):
    # A repeated offset within half a second gets one update only.
    time.sleep(0.6)
    return call("getUpdates", **params)
found = {}
"#;

pub fn api(sim: &Sim, script: &str) -> Value {
    let script = format!("{API_CALLS}{script}\nprint(json.dumps(found))");
    serde_json::from_str(&python(&script, &sim.info)).unwrap()
}

#[test]
fn offsets_confirm_updates_and_select_them() {
    let sim = Sim::start("telegram");
    let found = api(
        &sim,
        r#"
say("a", "b", "c", "d")
first = updates()
ids = [update["update_id"] for update in first]
found["ascending"] = ids == list(range(ids[0], ids[0] + 4))
found["again"] = texts(updates())
found["limit"] = texts(updates(limit=2))
found["confirmed"] = texts(updates(offset=ids[1]))
found["before the queue"] = texts(updates(offset=ids[0]))
found["newest"] = texts(updates(offset=-2))
found["rest"] = texts(updates())
found["far ahead"] = texts(updates(offset=ids[3] + 100))
start = time.monotonic()
found["none"] = updates(offset=ids[3] + 1, timeout=1)
found["waited"] = time.monotonic() - start >= 1
threading.Timer(0.3, say, ["late"]).start()
start = time.monotonic()
found["woken"] = texts(updates(offset=ids[3] + 1, timeout=20))
found["at once"] = time.monotonic() - start < 10
start = time.monotonic()
first = call("getUpdates", offset=ids[3] + 7)
found["repeated"] = [texts(first), texts(call("getUpdates", offset=ids[3] + 7, timeout=0))]
"#,
    );
    let expected = json!({
        "ascending": true, "again": ["a", "b", "c", "d"], "limit": ["a", "b"],
        "confirmed": ["b", "c", "d"], "before the queue": ["b", "c", "d"],
        "newest": ["c", "d"], "rest": ["c", "d"], "far ahead": ["c", "d"], "none": [],
        "waited": true, "woken": ["late"], "at once": true, "repeated": [[], []],
    });
    assert_eq!(found, expected);
}

#[test]
fn second_poller_and_active_webhook_are_conflicts() {
    let sim = Sim::start("telegram");
    let found = api(
        &sim,
        r#"
def poll(name):
    start = time.monotonic()
    answer = call("getUpdates", timeout=20)
    found[name] = [answer if answer else [], time.monotonic() - start < 2.5]
first = threading.Thread(target=poll, args=["older"])
first.start()
time.sleep(0.7)
second = threading.Thread(target=poll, args=["newer"])
second.start()
first.join()
control("conflict", count=0)
second.join()
found["active"] = call("setWebhook", url="http://127.0.0.1:9/hook", secret_token="s")
found["while active"] = call("getUpdates")[1]
found["too fast"] = call("setWebhook", url="http://127.0.0.1:9/hook")
found["info"] = call("getWebhookInfo")
found["removed"] = call("deleteWebhook")
found["bad"] = [call("setWebhook", url=url) for url in ("http://example.com/", "https://example.com:1234/", "https://")]
found["bad secret"] = call("setWebhook", url="https://example.com/", secret_token="a b")
"#,
    );
    let other = "Conflict: terminated by other getUpdates request; make sure that only one bot \
                 instance is running";
    assert_eq!(found["older"], json!([[409, other], true]), "{found:#}");
    // Conflicts are answered at most every 3 s.
    assert_eq!(found["newer"], json!([[409, other], false]), "{found:#}");
    assert_eq!(found["active"], true);
    let active = "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook \
                  to delete the webhook first";
    assert_eq!(found["while active"], active);
    assert_eq!(found["too fast"], json!([429, "Too Many Requests: retry after 1"]));
    assert_eq!(found["info"]["url"], "http://127.0.0.1:9/hook");
    assert_eq!(found["removed"], true);
    let bad = json!([
        [400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook"],
        [400, "Bad Request: bad webhook: Webhook can be set up only on ports 80, 88, 443 or 8443"],
        [400, "Bad Request: invalid webhook URL specified"],
    ]);
    assert_eq!(found["bad"], bad);
    let secret = json!([400, "Bad Request: secret token contains unallowed characters"]);
    assert_eq!(found["bad secret"], secret);
}

#[test]
fn update_ids_start_over_and_old_updates_are_dropped() {
    let sim = Sim::start("telegram");
    let found = api(
        &sim,
        r#"
say("a")
last = updates()[0]["update_id"]
updates(offset=last + 1)
control("restart_ids", start=17)
say("b")
after = updates(offset=last + 1)
found["id"] = after[0]["update_id"]
found["text"] = texts(after)
found["kept"] = texts(updates(offset=last + 1))
found["confirmed"] = updates(offset=18)
say("c")
try:
    control("restart_ids", start=1)
except urllib.error.HTTPError as error:
    found["refused"] = error.code
control("settings", ack_timeout_ms=100)
found["expired"] = updates()
"#,
    );
    let expected = json!({
        "id": 17, "text": ["b"], "kept": ["b"], "confirmed": [], "refused": 400, "expired": [],
    });
    assert_eq!(found, expected);
}

#[test]
fn only_allowed_kinds_of_updates_are_created() {
    let sim = Sim::start("telegram");
    let found = api(
        &sim,
        r#"
def kinds():
    return [next(key for key in update if key != "update_id") for update in updates()]
def act():
    message = control("say", chat="ops", text="x")
    control("react", chat="ops", id=message["id"], reaction="\N{THUMBS UP SIGN}")
    control("join", chat="ops", user="dan")
    time.sleep(0.6)
act()
found["default"] = kinds()
call("getUpdates", offset=-1, allowed_updates=["message_reaction", "Chat_Member", "nonsense"])
act()
found["asked"] = kinds()[1:]
call("getUpdates", offset=-1, allowed_updates=[])
act()
found["default again"] = kinds()[1:]
"#,
    );
    let expected = json!({
        "default": ["message", "message"], "asked": ["message_reaction", "chat_member"],
        "default again": ["message", "message"],
    });
    assert_eq!(found, expected);
}

#[test]
fn callbacks_of_one_chat_keep_their_order_and_other_chats_go_on() {
    let sim = Sim::start("telegram");
    let receiver = Receiver::start();
    sim.settings(&json!({"push_retries_ms": [0, 300]}));
    receiver.will("500 Internal Server Error");
    receiver.will("500 Internal Server Error");
    let token = sim.info["credentials"]["token"].as_str().unwrap();
    let path = format!("/bot{token}/setWebhook");
    let url = "https://bot.example.com/hook?a=1";
    sim.control("proxy", &json!({"url": receiver.url("")}));
    let body = json!({"url": url, "secret_token": "s3cret"}).to_string();
    sim.request("POST", &path, body.as_bytes()).ok();
    sim.control("say", &json!({"chat": "ops", "text": "first"}));
    sim.control("say", &json!({"chat": "ops", "text": "second"}));
    sim.control("say", &json!({"chat": "@bob", "text": "other"}));
    let mut arrived = Vec::new();
    for _ in 0..5 {
        let got = receiver.next();
        assert_eq!(got.headers["x-telegram-bot-api-secret-token"], "s3cret");
        let update: Value = serde_json::from_str(&got.body).unwrap();
        arrived.push(update["message"]["text"].as_str().unwrap().to_owned());
    }
    let of_ops: Vec<_> = arrived.iter().filter(|text| *text != "other").collect();
    assert_eq!(of_ops.last().unwrap().as_str(), "second", "{arrived:?}");
    assert_eq!(arrived.iter().filter(|text| *text == "second").count(), 1, "{arrived:?}");
    let state = sim.until(|state| state["events_waiting"] == 0);
    assert_eq!(counter(&state, "acks"), 3, "{state:#}");
}

#[test]
fn dropped_connections_lose_no_update_for_the_sdks() {
    for name in BOTS {
        let sim = Sim::start("telegram");
        let bot = SdkBot::start(name, &sim, &["poll"]);
        sim.until(|state| state["network"]["bots"][0]["polls"] == 1);
        sim.chaos(&json!({"drop_socket": true}));
        sim.chaos(&json!({"drop_socket": {"every": 20}}));
        sim.control("say", &json!({"chat": "ops", "text": "n{n}", "count": 50}));
        let state = sim.until(|state| state["events_waiting"] == 0);
        assert_eq!(counter(&state, "acks"), 50, "{name}: {state:#}");
        until("all arrived", || (1..=50).all(|n| bot.count("message", &format!("n{n}")) >= 1));
    }
}

#[test]
fn silent_poll_is_not_answered_but_a_new_one_is() {
    let sim = Sim::start("telegram");
    let found = api(
        &sim,
        r#"
older = threading.Thread(target=lambda: found.update(silent=call("getUpdates", wait=6, timeout=3)))
older.start()
time.sleep(0.7)
control("chaos", silent=True)
say("x")
older.join()
found["new"] = texts(updates())
control("chaos", duplicate=1)
say("twice")
first = updates()
last = first[-1]["update_id"]
found["confirmed"] = texts(updates(offset=last + 1))
found["confirmed again"] = updates(offset=last + 1)
"#,
    );
    let expected = json!({
        "silent": "TimeoutError", "new": ["x"], "confirmed": ["twice"], "confirmed again": [],
    });
    assert_eq!(found, expected);
}

#[test]
fn updates_of_a_webhook_that_fails_are_fetched_after_it_was_removed() {
    let sim = Sim::start("telegram");
    let receiver = Receiver::start();
    let hook = json!({"url": receiver.url("/hook"), "max_connections": 5}).to_string();
    let token = sim.info["credentials"]["token"].as_str().unwrap();
    sim.request("POST", &format!("/bot{token}/setWebhook"), hook.as_bytes()).ok();
    receiver.will("503 Service Unavailable\r\nRetry-After: 600");
    sim.say("kept");
    sim.until(|state| state["counters"]["pushes"]["http_error"] == 1);
    let found = api(
        &sim,
        r#"
info = call("getWebhookInfo")
found["info"] = [info["pending_update_count"], info["last_error_message"], info["max_connections"]]
call("deleteWebhook")
found["fetched"] = texts(updates())
found["removed"] = call("getWebhookInfo")["url"]
call("setWebhook", url="http://127.0.0.1:9/", drop_pending_updates=True)
call("deleteWebhook")
found["dropped"] = updates(offset=0)
"#,
    );
    let error = "Wrong response from the webhook: 503 Service Unavailable";
    let expected =
        json!({"info": [1, error, 5], "fetched": ["kept"], "removed": "", "dropped": []});
    assert_eq!(found, expected);
    assert_eq!(receiver.all().len(), 1, "Retry-After is kept");
}
