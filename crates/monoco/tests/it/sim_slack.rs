//! Slack's own SDKs against `monoco sim slack`: what they accept and send is how we know it right.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::common::{cli, raw, until};
use crate::pipeline_harness::free_port;
use crate::reference_sdks::python;
use crate::sim_harness::{SdkBot, Sim};

#[test]
fn python_sdk_receives_acknowledges_and_answers_in_the_thread() {
    let sim = Sim::start("slack");
    let bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    let id = sim.say("hello & <https://example.com|link>");
    let answer = sim.until_sent(|sent| sent["via"] == "chat.postMessage");
    assert_eq!(answer["text"], "re: hello & <https://example.com|link>");
    assert_eq!((&answer["thread"], &answer["chat"]), (&json!(id), &json!("C0OPS")));
    // A mention causes two events; the bot hears of its own messages too.
    sim.control("say", &json!({"chat": "@bob", "user": "bob", "text": "direct"}));
    sim.control("say", &json!({"chat": "ops", "text": "both", "mention": true}));
    let mention = bot.until(|line| line["type"] == "app_mention");
    assert_eq!(mention["text"], "<@U0BOT0> both");
    bot.until(|line| line["text"] == "re: direct");
    let state = sim.until(|state| state["events_waiting"] == 0);
    assert_eq!(state["counters"]["unknown_acks"], 0, "{state:#}");
    assert_eq!(state["counters"]["acks"], state["counters"]["frames_sent"]);
    // The SDK pings every second, and takes our pings.
    sim.settings(&json!({"ping_interval_ms": 200}));
    sim.until(|state| {
        let count = |name: &str| state["counters"][name].as_u64().unwrap();
        count("pings_received") > 0 && count("pongs_received") > 0
    });
}

#[test]
fn python_sdk_downloads_uploads_pages_history_and_changes_messages() {
    let sim = Sim::start("slack");
    let bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    let file = json!({"name": "käse.txt", "mime_type": "text/plain", "text": "grüße"});
    sim.control("say", &json!({"chat": "ops", "text": "download", "files": [file]}));
    assert_eq!(bot.until(|line| line["saw"] == "file")["content"], json!(["grüße"]));

    let id = sim.say("upload");
    let sent = sim.until_sent(|sent| sent["via"] == "files.completeUploadExternal");
    assert_eq!((&sent["thread"], &sent["text"]), (&json!(id), &json!("see the file")));
    assert_eq!(
        (&sent["files"][0]["size"], &sent["files"][0]["title"]),
        (&json!(12), &json!("Bot"))
    );
    let path = format!("/control/files/{}", sent["files"][0]["id"].as_str().unwrap());
    assert_eq!(sim.request("GET", &path, b"").text(), "from the bot");

    for text in ["one", "two", "three"] {
        let said = json!({"chat": "general", "text": text, "thread": null});
        sim.control("say", &said);
        sim.until_sent(|sent| sent["text"] == format!("re: {text}"));
    }
    sim.control("say", &json!({"chat": "general", "text": "history"}));
    let pages = bot.until(|line| line["saw"] == "history")["pages"].clone();
    assert_eq!(pages, json!([["history", "three"], ["two", "one"]]), "replies are not in it");

    sim.say("change");
    let deleted = sim.until_sent(|sent| sent["via"] == "chat.delete");
    let changed = sim.until_sent(|sent| sent["via"] == "chat.update");
    assert_eq!((&changed["text"], &changed["id"]), (&json!("second"), &deleted["id"]));
    sim.until_sent(|sent| sent["via"] == "reactions.add" && sent["text"] == "eyes");
    bot.until(|line| line["subtype"] == "message_changed");
    bot.until(|line| line["subtype"] == "message_deleted");
}

#[test]
fn python_sdk_sees_edits_recalls_reactions_and_members() {
    let sim = Sim::start("slack");
    let bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    let id = sim.say("frist");
    sim.control("edit", &json!({"chat": "ops", "id": id, "text": "first"}));
    sim.control("react", &json!({"chat": "ops", "id": id, "user": "bob", "reaction": "tada"}));
    sim.control("recall", &json!({"chat": "ops", "id": id}));
    sim.control("join", &json!({"chat": "ops", "user": "dan"}));
    sim.control("leave", &json!({"chat": "ops", "user": "dan"}));
    for (key, kind) in [
        ("subtype", "message_changed"),
        ("type", "reaction_added"),
        ("subtype", "message_deleted"),
        ("type", "member_joined_channel"),
        ("subtype", "channel_join"),
        ("type", "member_left_channel"),
    ] {
        bot.until(|line| line[key] == kind);
    }
}

#[test]
fn python_sdk_reconnects_after_disconnect_frame_drop_and_missing_pongs() {
    let sim = Sim::start("slack");
    let bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    let opened = |count: u64| {
        sim.until(|state| {
            state["counters"]["sockets_opened"].as_u64() >= Some(count)
                && state["connections"].as_array().is_some_and(|open| open.len() == 1)
        });
    };
    opened(1);
    sim.settings(&json!({"disconnect_grace_ms": 500}));
    sim.chaos(&json!({"disconnect_frame": {"reason": "refresh_requested"}}));
    opened(2);
    sim.chaos(&json!({"drop_socket": true}));
    opened(3);
    // The SDK misses pongs only on a socket that has had one: wait for the ping after the first.
    let pings = |state: &Value| state["counters"]["pings_received"].as_u64().unwrap();
    let before = pings(&sim.state());
    sim.until(|state| pings(state) >= before + 2);
    sim.chaos(&json!({"stop_pong": true, "silent": true}));
    sim.say("said while the socket is half dead");
    opened(4);
    bot.until(|line| line["text"] == "said while the socket is half dead");
    let state = sim.until(|state| state["events_waiting"] == 0);
    assert_eq!(
        (&state["counters"]["lost"], &state["counters"]["given_up"]),
        (&json!(0), &json!(0))
    );
}

#[test]
fn unacknowledged_envelope_is_sent_again_with_the_same_event_id() {
    for name in ["slack_sdk_bot.py", "slack_socket_bot.cjs"] {
        let sim = Sim::start("slack");
        sim.settings(&json!({"ack_timeout_ms": 700}));
        let bot = SdkBot::start(name, &sim, &[]);
        sim.say("no ack");
        let again = bot.until(|line| line["text"] == "no ack" && line["retry"] == 1);
        let first = bot.until(|line| line["text"] == "no ack" && line["retry"] != 1);
        assert_eq!(first["event_id"], again["event_id"], "{name}");
        sim.until(|state| state["counters"]["redelivered"] == 1 && state["events_waiting"] == 0);
    }
}

#[test]
fn duplicated_event_has_one_event_id_and_two_envelopes() {
    let sim = Sim::start("slack");
    let bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    sim.settings(&json!({"echo": false}));
    sim.chaos(&json!({"duplicate": 1}));
    sim.say("twice");
    until("both copies arrive", || bot.count("event", "twice") == 2);
    let copies: Vec<_> = bot.seen().into_iter().filter(|line| line["text"] == "twice").collect();
    assert_eq!(copies[0]["event_id"], copies[1]["event_id"]);
}

/// Calls that fail, and how the SDK names the failures.
const FAILING_CALLS: &str = r#"
import sys, json
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
sim = json.load(sys.stdin)
def client(token): return WebClient(token, base_url=sim["base_url"], timeout=2)
bot, app = client(sim["credentials"]["bot_token"]), client(sim["credentials"]["app_token"])
def code(call):
    try:
        call()
        return "ok"
    except SlackApiError as error:
        return error.response["error"]
post = lambda **args: code(lambda: bot.chat_postMessage(**args))
print(json.dumps([
    post(channel="C0NONE", text="x"),
    post(channel="C0RANDOM", text="x"),
    post(channel="C0ATTIC", text="x"),
    post(channel="C0OPS", text=""),
    post(channel="C0OPS", blocks=[{"type": "section", "text": {"type": "mrkdwn", "text": "x" * 3001}}]),
    post(channel="U0ANN", text="x"),
    code(lambda: client("xoxb-other").auth_test()),
    code(lambda: client("").auth_test()),
    code(lambda: app.chat_postMessage(channel="C0OPS", text="x")),
    code(lambda: bot.apps_connections_open(app_token=sim["credentials"]["bot_token"])),
    code(lambda: bot.users_info(user="U0NONE")),
    code(lambda: bot.conversations_replies(channel="C0OPS", ts="1.000000")),
    code(lambda: bot.files_info(file="F0NONE")),
]))
"#;

#[test]
fn python_sdk_reports_the_documented_errors() {
    let sim = Sim::start("slack");
    let found: Value = serde_json::from_str(&python(FAILING_CALLS, &sim.info)).unwrap();
    let expected = json!([
        "channel_not_found",
        "not_in_channel",
        "is_archived",
        "no_text",
        "invalid_blocks",
        "ok",
        "invalid_auth",
        "not_authed",
        "not_allowed_token_type",
        "not_allowed_token_type",
        "user_not_found",
        "thread_not_found",
        "file_not_found",
    ]);
    assert_eq!(found, expected);
}

/// Sends under faults: rate limits, server errors, timeouts, missing scopes, expired tokens.
const SENDS_UNDER_FAULTS: &str = r#"
import sys, json, time, urllib.request
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.http_retry.builtin_handlers import RateLimitErrorRetryHandler
sim = json.load(sys.stdin)
def control(name, **body):
    request = urllib.request.Request(sim["control_url"] + "/" + name, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))
def client(**options):
    return WebClient(sim["credentials"]["bot_token"], base_url=sim["base_url"], timeout=2, **options)
def send(text, web=client()):
    try:
        web.chat_postMessage(channel="C0OPS", text=text)
        return "ok"
    except SlackApiError as error:
        return [error.response.status_code, error.response.get("error"), error.response.headers.get("retry-after")]
    except Exception as error:
        return type(error).__name__
found = {}
control("chaos", rate_limit={"count": 1, "retry_after": 1})
start = time.monotonic()
patient = client(retry_handlers=[RateLimitErrorRetryHandler(max_retry_count=1)])
found["patient"] = [send("patient", patient), time.monotonic() - start >= 1]
control("chaos", rate_limit={"count": 1, "retry_after": 30})
found["limited"] = send("limited")
control("chaos", rate_limit={"count": 1})
found["without header"] = send("without header")
control("chaos", rate_limit={"count": 1, "chat": "C0GENERAL"})
found["other chat"] = send("other chat")
control("chaos", reset=True, server_error={"count": 1, "status": 502})
found["server error"] = send("server error")
control("chaos", accept_then_timeout={"count": 1, "hang_ms": 5000})
found["timeout"] = send("timeout")
control("scopes", remove=["chat:write"])
found["scope"] = send("scope")
control("scopes", add=["chat:write"])
control("chaos", expire_token=True)
found["expired"] = send("expired")
control("token", error=None)
found["restored"] = send("restored")
print(json.dumps(found))
"#;

#[test]
fn python_sdk_meets_rate_limits_errors_and_timeouts() {
    let sim = Sim::start("slack");
    let found: Value = serde_json::from_str(&python(SENDS_UNDER_FAULTS, &sim.info)).unwrap();
    assert_eq!(found["patient"], json!(["ok", true]), "{found:#}");
    assert_eq!(found["limited"], json!([429, "ratelimited", "30"]));
    assert_eq!(found["without header"], json!([429, "ratelimited", null]));
    assert_eq!((&found["other chat"], &found["restored"]), (&json!("ok"), &json!("ok")));
    assert_eq!(found["server error"][0], 502);
    assert_eq!(found["timeout"], "TimeoutError");
    assert_eq!(found["scope"][1], "missing_scope");
    assert_eq!(found["expired"][1], "token_expired");
    let texts: Vec<_> = sim.sent().iter().map(|sent| sent["text"].clone()).collect();
    assert_eq!(texts, ["patient", "other chat", "timeout", "restored"], "what was executed");
}

/// Sets the callback URL, and has one event delivered with a right and one with a wrong signature.
fn check_http_receiver(name: &str) {
    let sim = Sim::start("slack");
    sim.settings(&json!({"echo": false, "push_retries_ms": [0, 100]}));
    let port = free_port();
    let bot = SdkBot::start(name, &sim, &[&port.to_string()]);
    let url = format!("http://127.0.0.1:{port}/slack/events");
    until("the SDK answers the challenge", || {
        let body = json!({"url": url}).to_string();
        sim.request("POST", "/control/push", body.as_bytes()).status == 200
    });
    let say = |text: &str| {
        sim.control("say", &json!({"chat": "ops", "text": text, "mention": true}));
    };
    say("signed");
    bot.until(|line| line["saw"] == "app_mention" && line["text"] == "<@U0BOT0> signed");
    sim.until_sent(|sent| sent["text"] == "bolt: <@U0BOT0> signed");
    sim.until(|state| state["events_waiting"] == 0);

    // Both events of the mention are forged once, rejected, and right at the second attempt.
    sim.chaos(&json!({"wrong_signature": 2}));
    say("forged");
    let is_forged = |line: &Value| line["text"] == "<@U0BOT0> forged";
    let again = bot.until(|line| is_forged(line) && line["saw"] == "app_mention");
    assert!(again["retry"] == 1 || again["retry"] == "1", "{again:#}");
    let state = sim.until(|state| state["events_waiting"] == 0);
    assert_eq!(state["counters"]["pushes"]["http_error"], 2, "{state:#}");
    assert_eq!(bot.count("app_mention", "<@U0BOT0> forged"), 1);
}

#[test]
fn python_bolt_verifies_signatures_and_answers_the_challenge() {
    check_http_receiver("slack_bolt_bot.py");
}

#[test]
fn node_bolt_verifies_signatures_and_answers_the_challenge() {
    check_http_receiver("slack_bolt_bot.cjs");
}

#[test]
fn bolt_receives_and_answers_by_socket_mode() {
    for name in ["slack_bolt_bot.py", "slack_bolt_bot.cjs"] {
        let sim = Sim::start("slack");
        let _bot = SdkBot::start(name, &sim, &["socket"]);
        sim.control("say", &json!({"chat": "ops", "text": "hello", "mention": true}));
        let answer = sim.until_sent(|sent| sent["text"] == "bolt: <@U0BOT0> hello");
        assert!(answer["thread"].is_string(), "{name}: {answer:#}");
        sim.until(|state| state["events_waiting"] == 0);
    }
}

#[test]
fn node_sdk_receives_answers_uploads_pings_and_reconnects() {
    let sim = Sim::start("slack");
    sim.settings(&json!({"ping_interval_ms": 300, "disconnect_grace_ms": 500}));
    let bot = SdkBot::start("slack_socket_bot.cjs", &sim, &[]);
    let id = sim.say("hello");
    let answer = sim.until_sent(|sent| sent["text"] == "node: hello");
    assert_eq!(answer["thread"], id);
    assert_eq!(answer["request"]["blocks"][0]["type"], "section", "blocks of a form are parsed");
    sim.say("upload");
    let sent = sim.until_sent(|sent| sent["via"] == "files.completeUploadExternal");
    let path = format!("/control/files/{}", sent["files"][0]["id"].as_str().unwrap());
    assert_eq!(sim.request("GET", &path, b"").text(), "from node");
    let count = |state: &Value, name: &str| state["counters"][name].as_u64().unwrap();
    sim.until(|state| count(state, "pings_received") > 1 && count(state, "pongs_received") > 1);

    sim.chaos(&json!({"disconnect_frame": {"reason": "warning"}}));
    sim.until(|state| count(state, "sockets_opened") == 2);
    sim.say("after the frame");
    bot.until(|line| line["text"] == "after the frame");
    sim.chaos(&json!({"drop_socket": true}));
    sim.until(|state| count(state, "sockets_opened") >= 3);
    sim.say("after the drop");
    bot.until(|line| line["text"] == "after the drop");
}

#[test]
fn dropped_sockets_lose_no_event_for_the_python_sdk() {
    let sim = Sim::start("slack");
    sim.settings(&json!({"echo": false, "max_attempts": 100}));
    let bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    sim.chaos(&json!({"drop_socket": {"every": 20}}));
    sim.control("say", &json!({"chat": "ops", "text": "n{n}", "count": 50}));
    let state = sim.until(|state| state["events_waiting"] == 0);
    assert!(state["counters"]["sockets_opened"].as_u64() > Some(2), "{state:#}");
    assert_eq!(state["counters"]["given_up"], 0);
    until("all arrived", || (1..=50).all(|n| bot.count("event", &format!("n{n}")) >= 1));
}

/// Requests the state with these headers; returns the status.
fn state_status(sim: &Sim, headers: &[(&str, &str)]) -> u16 {
    let headers: Vec<_> =
        headers.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    raw(sim.address, "GET", "/control/state", &headers, b"").unwrap().status
}

#[test]
fn emulator_refuses_other_addresses_and_web_pages() {
    let home = tempfile::tempdir().unwrap();
    let args = ["sim", "slack", "--port", "0", "--address", "0.0.0.0"];
    let refused = cli(home.path(), &args, "").failed(64);
    assert!(refused.contains("must not be reachable from other machines"), "{refused}");
    let sim = Sim::start("slack");
    assert_eq!(state_status(&sim, &[("Host", "localhost")]), 200);
    assert_eq!(state_status(&sim, &[("Host", "evil.example")]), 403);
    let page = [("Host", "localhost"), ("Origin", "https://evil.example")];
    assert_eq!(state_status(&sim, &page), 403);
}

#[test]
fn control_token_protects_the_control_api() {
    let sim = Sim::start_with("slack", &["--control-token", "t0ken"]);
    assert_eq!(state_status(&sim, &[("Host", "localhost")]), 403);
    let right = [("Host", "localhost"), ("Authorization", "Bearer t0ken")];
    assert_eq!(state_status(&sim, &right), 200);
}

#[test]
fn socket_url_is_valid_once_and_for_a_while() {
    let sim = Sim::start("slack");
    let open = || {
        let token = sim.info["credentials"]["app_token"].as_str().unwrap();
        let headers = [
            ("Host".to_owned(), "localhost".to_owned()),
            ("Authorization".to_owned(), format!("Bearer {token}")),
        ];
        let answer = raw(sim.address, "POST", "/api/apps.connections.open", &headers, b"").unwrap();
        let url = answer.ok()["url"].as_str().unwrap().to_owned();
        url[url.find("/link/").unwrap()..].to_owned()
    };
    let connect = |path: &str| sim.handshake(path);
    let path = open();
    assert_eq!(connect(&path), 101);
    assert_eq!(connect(&path), 403, "a URL opens one socket");
    sim.settings(&json!({"ticket_ttl_ms": 0}));
    assert_eq!(connect(&open()), 403, "the ticket has expired");
    sim.settings(&json!({"ticket_ttl_ms": 30_000}));
    sim.chaos(&json!({"reject_handshake": 1}));
    assert_eq!(connect(&open()), 503);
    assert_eq!(connect(&open()), 101);
}

#[test]
fn apps_of_one_emulator_have_their_own_credentials_and_events() {
    let sim = Sim::start_with("slack", &["--apps", "2"]);
    assert_eq!(sim.info["apps"][1]["bot_token"], "xoxb-sim-1");
    let bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    sim.control("say", &json!({"chat": "ops", "text": "for the second", "app": 1}));
    sim.control("say", &json!({"chat": "ops", "text": "for the first", "app": 0}));
    bot.until(|line| line["text"] == "for the first");
    let state = sim.until(|state| state["frames_in_flight"] == 0);
    assert_eq!(state["events_waiting"], 1, "the second app is not connected");
    assert_eq!(bot.count("event", "for the second"), 0);
}

#[test]
fn emulator_stops_on_sigterm_with_open_sockets() {
    let mut sim = Sim::start("slack");
    let _bot = SdkBot::start("slack_sdk_bot.py", &sim, &[]);
    let pid = Pid::from_raw(i32::try_from(sim.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(sim.wait(), Some(0));
}
