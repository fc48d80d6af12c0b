//! Lark's own SDKs against `monoco sim lark`.

use serde_json::{Value, json};

use crate::common::until;
use crate::pipeline_harness::free_port;
use crate::reference_sdks::python;
use crate::sim_harness::{SdkBot, Sim};
use crate::webhook_peer::Receiver;

const BOTS: [&str; 2] = ["lark_oapi_bot.py", "lark_node_bot.cjs"];

fn counter(state: &Value, name: &str) -> u64 {
    state["counters"][name].as_u64().unwrap()
}

/// An emulator that lets bots reconnect and ping within a second.
fn start() -> Sim {
    let sim = Sim::start("lark");
    let config = json!({"ReconnectInterval": 1, "ReconnectNonce": 0, "PingInterval": 1});
    sim.control("client_config", &config);
    sim
}

/// A bot with an open long connection.
fn connect(name: &str, sim: &Sim) -> SdkBot {
    let before = counter(&sim.state(), "sockets_opened");
    let bot = SdkBot::start(name, sim, &["socket"]);
    sim.until(|state| counter(state, "sockets_opened") > before);
    bot
}

/// Waits until every event was acknowledged.
fn settled(sim: &Sim) -> Value {
    sim.until(|state| state["events_waiting"] == 0)
}

#[test]
fn python_sdk_receives_answers_downloads_uploads_and_reacts() {
    let sim = start();
    let bot = connect("lark_oapi_bot.py", &sim);
    let said = json!({"chat": "ops", "user": "ann", "text": "hello @bob", "mention": true});
    let said = sim.control("say", &said);
    let message = bot.until(|line| line["id"] == said["id"]);
    assert_eq!(message["text"], "@_user_1 hello @_user_2", "{message:#}");
    let mentions = json!([["@_user_1", "monoco0", "ou_bot0"], ["@_user_2", "bob", "ou_bob"]]);
    assert_eq!(message["mentions"], mentions);
    assert_eq!(
        (&message["chat"], &message["chat_type"], &message["sender"]),
        (&json!("oc_ops"), &json!("group"), &json!("ou_ann"))
    );
    let id = sim.say("hello");
    let sent = sim.until_sent(|sent| sent["text"] == "re: hello");
    assert_eq!((&sent["via"], &sent["thread"]), (&json!("message.reply"), &json!(id)));
    sim.control("say", &json!({"chat": "@cem", "user": "cem", "text": "hello directly"}));
    let direct = bot.until(|line| line["text"] == "hello directly");
    assert_eq!(direct["chat_type"], "p2p");
    sim.until_sent(|sent| sent["text"] == "re: hello directly" && sent["chat"] == direct["chat"]);

    // The answer starts a topic, in which the person answers.
    let first = sim.say("topic");
    let sent = sim.until_sent(|sent| sent["text"] == "re: topic");
    let topic = sent["thread"].as_str().unwrap();
    assert!(topic.starts_with("omt_"), "{sent:#}");
    let said = json!({"chat": "ops", "user": "bob", "text": "topic two", "thread": topic});
    sim.control("say", &said);
    let second = bot.until(|line| line["text"] == "topic two");
    assert_eq!(
        (&second["root"], &second["parent"], &second["thread"]),
        (&json!(first), &json!(first), &json!(topic))
    );

    for (mime, kind, text) in [("image/png", "image", "one"), ("text/plain", "file", "two")] {
        let file = json!({"name": "a", "mime_type": mime, "text": text});
        sim.control("say", &json!({"chat": "ops", "files": [file]}));
        let file = bot.until(|line| line["saw"] == "file" && line["content"] == text);
        assert_eq!(file["kind"], kind);
    }
    sim.say("upload");
    let sent = sim.until_sent(|sent| sent["files"][0]["name"] == "report.txt");
    let path = format!("/control/files/{}", sent["files"][0]["id"].as_str().unwrap());
    assert_eq!(sim.request("GET", &path, b"").text(), "report");
    sim.until_sent(|sent| sent["files"][0]["size"] == 3);
    let id = sim.say("react");
    let sent = sim.until_sent(|sent| sent["via"] == "message_reaction.create");
    assert_eq!((&sent["id"], &sent["text"]), (&json!(id), &json!("THUMBSUP")));
    let state = settled(&sim);
    assert_eq!(counter(&state, "unknown_acks"), 0, "{state:#}");
    assert_eq!(counter(&state, "tokens_issued"), 1);
    assert!(bot.seen().iter().all(|line| line["saw"] != "error"), "{:#?}", bot.seen());
}

#[test]
fn sdks_receive_recalls_reactions_and_other_events() {
    let sim = start();
    let bot = connect("lark_oapi_bot.py", &sim);
    let id = sim.say("first");
    let place = json!({"chat": "ops", "id": id});
    sim.control("react", &json!({"chat": "ops", "id": id, "user": "bob", "reaction": "SMILE"}));
    let reaction = bot.until(|line| line["saw"] == "reaction");
    assert_eq!((&reaction["id"], &reaction["emoji"]), (&json!(id), &json!("SMILE")));
    assert_eq!(reaction["user"], "ou_bob");
    let removed =
        json!({"chat": "ops", "id": id, "user": "bob", "reaction": "SMILE", "remove": true});
    sim.control("react", &removed);
    bot.until(|line| line["saw"] == "reaction removed" && line["id"] == id.as_str());
    sim.control("recall", &place);
    let recall = bot.until(|line| line["saw"] == "recall");
    assert_eq!((&recall["id"], &recall["type"]), (&json!(id), &json!("message_owner")));
    sim.control("read", &json!({"user": "ann", "ids": ["om_1"]}));
    let read = bot.until(|line| line["saw"] == "read");
    assert_eq!((&read["ids"], &read["user"]), (&json!(["om_1"]), &json!("ou_ann")));
    sim.control("join", &json!({"chat": "ops", "user": "dan"}));
    let member = bot.until(|line| line["saw"] == "member");
    assert_eq!((&member["chat"], &member["users"]), (&json!("oc_ops"), &json!(["dan"])));
    settled(&sim);
}

#[test]
fn node_sdk_receives_answers_downloads_uploads_and_pings() {
    let sim = start();
    let bot = connect("lark_node_bot.cjs", &sim);
    let id = sim.say("hello topic");
    let sent = sim.until_sent(|sent| sent["text"] == "node: hello topic");
    assert!(sent["thread"].as_str().unwrap().starts_with("omt_"), "{sent:#}");
    let image = json!({"name": "a.png", "mime_type": "image/png", "text": "pixels"});
    sim.control("say", &json!({"chat": "ops", "files": [image]}));
    bot.until(|line| line["saw"] == "file" && line["content"] == "pixels");
    sim.say("upload");
    sim.until_sent(|sent| sent["files"][0]["size"] == 3);
    sim.control("recall", &json!({"chat": "ops", "id": id}));
    bot.until(|line| line["saw"] == "recall" && line["id"] == id.as_str());
    let state =
        sim.until(|state| state["events_waiting"] == 0 && counter(state, "pings_received") > 2);
    assert_eq!(counter(&state, "unknown_acks"), 0, "{state:#}");
}

#[test]
fn sdks_join_parts_of_an_event_in_any_order() {
    for name in BOTS {
        let sim = start();
        let bot = connect(name, &sim);
        for order in ["forward", "reversed", "shuffled"] {
            sim.control("split", &json!({"parts": 7, "order": order}));
            sim.say(order);
            bot.until(|line| line["text"] == order);
        }
        let state = settled(&sim);
        assert_eq!((counter(&state, "acks"), counter(&state, "unknown_acks")), (3, 0), "{name}");
    }
}

#[test]
fn event_that_a_handler_fails_is_sent_again_with_the_same_ids() {
    for name in BOTS {
        let sim = start();
        sim.settings(&json!({"ack_timeout_ms": 2000}));
        let bot = connect(name, &sim);
        let id = sim.say("no ack");
        until("the message arrives twice", || bot.count("message", "no ack") == 2);
        let seen: Vec<_> = bot.seen().into_iter().filter(|line| line["text"] == "no ack").collect();
        assert!(seen.iter().all(|line| line["id"] == id.as_str()), "{name}: {seen:#?}");
        assert_eq!(seen[0]["event"], seen[1]["event"], "{name}");
        let state = settled(&sim);
        assert_eq!((counter(&state, "redelivered"), counter(&state, "acks")), (1, 1), "{name}");
    }
}

#[test]
fn repeated_message_has_a_new_event_id_and_a_duplicate_the_same() {
    let sim = start();
    let bot = connect("lark_oapi_bot.py", &sim);
    let id = sim.say("again");
    bot.until(|line| line["text"] == "again");
    sim.control("repeat", &json!({"chat": "ops", "id": id}));
    until("the message arrives twice", || bot.count("message", "again") == 2);
    sim.chaos(&json!({"duplicate": 1}));
    sim.say("twice");
    until("the event arrives twice", || bot.count("message", "twice") == 2);
    let events = |text: &str| {
        let seen = bot.seen();
        let seen = seen.iter().filter(|line| line["text"] == text);
        seen.map(|line| line["event"].clone()).collect::<Vec<_>>()
    };
    let (again, twice) = (events("again"), events("twice"));
    assert_ne!(again[0], again[1]);
    assert_eq!(twice[0], twice[1]);
}

#[test]
fn sdks_reconnect_after_a_dropped_and_a_closed_socket() {
    for name in BOTS {
        let sim = start();
        let bot = connect(name, &sim);
        for (opened, fault) in [(2, "drop_socket"), (3, "disconnect_frame")] {
            sim.chaos(&json!({fault: true}));
            sim.say(fault);
            bot.until(|line| line["text"] == fault);
            let state = settled(&sim);
            assert_eq!(counter(&state, "sockets_opened"), opened, "{name}");
            assert_eq!(counter(&state, "tickets_issued"), opened, "{name}");
        }
    }
}

#[test]
fn sdks_retry_or_give_up_rejected_handshakes_by_status_and_code() {
    // The Python SDK ends for good on 403 and on too many connections, not on other codes.
    for (status, code, is_final) in
        [(403, json!(null), true), (514, json!(1_000_040_350), true), (514, json!(1), false)]
    {
        let sim = start();
        sim.chaos(&json!({"reject_handshake": {"count": 1, "status": status, "code": code}}));
        let bot = SdkBot::start("lark_oapi_bot.py", &sim, &["socket"]);
        if is_final {
            let stopped = bot.until(|line| line["saw"] == "stopped");
            assert!(stopped["text"].as_str().unwrap().contains("rejected"), "{stopped:#}");
            assert_eq!(counter(&sim.state(), "sockets_opened"), 0);
        } else {
            sim.until(|state| counter(state, "sockets_opened") == 1);
        }
        assert_eq!(counter(&sim.state(), "sockets_rejected"), 1, "{status} {code}");
    }
    // A busy system is asked again, wrong credentials end the bot.
    let sim = start();
    let _bot = connect("lark_oapi_bot.py", &sim);
    let busy = json!({"count": 1, "method": "ws_endpoint", "status": 200, "code": 1});
    sim.chaos(&json!({"server_error": busy, "drop_socket": true}));
    let state = sim.until(|state| counter(state, "sockets_opened") == 2);
    assert_eq!(state["counters"]["requests"]["ws_endpoint"], 3);
    let mut wrong = Sim::start("lark");
    wrong.info["credentials"]["app_secret"] = json!("x");
    let bot = SdkBot::start("lark_oapi_bot.py", &wrong, &["socket"]);
    let stopped = bot.until(|line| line["saw"] == "stopped");
    assert!(stopped["text"].as_str().unwrap().contains("1000040345"), "{stopped:#}");
}

#[test]
fn sdks_survive_frames_that_are_wrong() {
    let kinds = [
        "garbage",
        "empty",
        "truncated",
        "no_headers",
        "unknown_method",
        "unknown_type",
        "card",
        "endless",
        "not_json",
        "sum_text",
    ];
    for name in BOTS {
        let sim = start();
        let bot = connect(name, &sim);
        for kind in kinds {
            assert_eq!(sim.control("frame", &json!({"kind": kind}))["sent"], 1);
        }
        sim.say("after");
        bot.until(|line| line["text"] == "after");
        let state = settled(&sim);
        assert_eq!(counter(&state, "sockets_opened"), 1, "{name}: {state:#}");
    }
    let sim = Sim::start("lark");
    let answer = sim.request("POST", "/control/frame", br#"{"kind":"other"}"#);
    assert_eq!(answer.status, 400);
}

#[test]
fn url_opens_one_socket_and_an_app_has_fifty() {
    let sim = Sim::start("lark");
    let open = || {
        let keys = &sim.info["credentials"];
        let body = json!({"AppID": keys["app_id"], "AppSecret": keys["app_secret"]});
        let answer = sim.request("POST", "/callback/ws/endpoint", body.to_string().as_bytes());
        let url = answer.ok()["data"]["URL"].as_str().unwrap().to_owned();
        url[url.find("/ws/v2").unwrap()..].to_owned()
    };
    let path = open();
    let _first = sim.socket(&path);
    assert_eq!(sim.handshake(&path), 514, "a URL opens one socket");
    let _others: Vec<_> = (1..50).map(|_| sim.socket(&open())).collect();
    sim.until(|state| state["connections"].as_array().is_some_and(|open| open.len() == 50));
    assert_eq!(sim.handshake(&open()), 514);
}

/// Sets the callback URL, and has events delivered with right and wrong signatures.
fn check_http_receiver(name: &str, answers_rejected: bool) {
    let sim = Sim::start("lark");
    sim.settings(&json!({"push_retries_ms": [0, 100]}));
    let bot = start_receiver(name, &sim);
    sim.say("hello");
    bot.until(|line| line["text"] == "hello");
    sim.until_sent(|sent| sent["text"].as_str().is_some_and(|text| text.ends_with(": hello")));
    settled(&sim);
    for kind in ["other_secret", "other_app", "missing", "replayed"] {
        sim.control("reset", &json!({}));
        sim.chaos(&json!({"wrong_signature": {"count": 1, "kind": kind}}));
        sim.say(kind);
        if answers_rejected {
            // Rejected once, and right at the second attempt.
            bot.until(|line| line["text"] == kind);
            let state = settled(&sim);
            assert_eq!(state["counters"]["pushes"]["http_error"], 1, "{kind}: {state:#}");
        } else {
            // The SDK answers 200 to what it rejects, so that Lark sends it no more.
            settled(&sim);
        }
        assert_eq!(bot.count("message", kind), usize::from(answers_rejected), "{name}: {kind}");
    }
    // Without an encrypt key only the token proves the origin.
    let mut sim = Sim::start("lark");
    sim.info["credentials"]["encrypt_key"] = json!("");
    sim.control("callback_format", &json!({"encrypt": false}));
    let bot = start_receiver(name, &sim);
    sim.say("hello plain");
    bot.until(|line| line["text"] == "hello plain");
}

/// A bot that has answered the challenge of its callback URL.
fn start_receiver(name: &str, sim: &Sim) -> SdkBot {
    let port = free_port();
    let bot = SdkBot::start(name, sim, &[&port.to_string()]);
    let body = json!({"url": format!("http://127.0.0.1:{port}/hook")}).to_string();
    until("the SDK answers the challenge", || {
        sim.request("POST", "/control/push", body.as_bytes()).status == 200
    });
    bot
}

#[test]
fn python_sdk_verifies_decrypts_and_answers_the_challenge() {
    check_http_receiver("lark_oapi_bot.py", true);
}

#[test]
fn node_sdk_verifies_decrypts_and_answers_the_challenge() {
    check_http_receiver("lark_node_bot.cjs", false);
}

#[test]
fn spaced_json_is_signed_as_it_is_sent() {
    let sim = Sim::start("lark");
    sim.control("callback_format", &json!({"spaced": true}));
    let bot = start_receiver("lark_oapi_bot.py", &sim);
    sim.say("spaced");
    bot.until(|line| line["text"] == "spaced");
    assert_eq!(settled(&sim)["counters"]["pushes"]["ok"], 1);
    let receiver = Receiver::start();
    sim.control("callback_format", &json!({"encrypt": false, "spaced": true}));
    let answer = json!({"url": receiver.url("/hook")}).to_string();
    // The receiver does not answer the challenge.
    assert_eq!(sim.request("POST", "/control/push", answer.as_bytes()).status, 400);
    let challenge = receiver.next();
    assert!(challenge.body.contains(r#""type": "url_verification""#), "{}", challenge.body);
}

/// Calls of the API by the SDK: idempotency, faults, tokens, history and errors.
const API_CALLS: &str = r#"
import json, sys, urllib.request
import lark_oapi as lark
from lark_oapi.api.im.v1 import *
from lark_oapi.api.contact.v3 import GetUserRequest
sim, found = json.load(sys.stdin), {}
keys = sim["credentials"]
def build(secret=keys["app_secret"], timeout=None):
    builder = lark.Client.builder().app_id(keys["app_id"]).app_secret(secret).domain(sim["base_url"])
    return (builder.timeout(timeout) if timeout else builder).log_level(lark.LogLevel.CRITICAL).build()
api = build()
def control(name, **body):
    request = urllib.request.Request(sim["control_url"] + "/" + name, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request))
def send(text, uuid=None, target="oc_ops", kind="chat_id", api=api, msg_type="text", content=None):
    content = json.dumps({"text": text}) if content is None else content
    body = CreateMessageRequestBody.builder().receive_id(target).msg_type(msg_type).content(content)
    body = (body.uuid(uuid) if uuid else body).build()
    return api.im.v1.message.create(
        CreateMessageRequest.builder().receive_id_type(kind).request_body(body).build())
def code(response): return response.code
first, again, other = send("one", "u1"), send("one", "u1"), send("one", "u2")
found["uuid"] = [first.data.message_id == again.data.message_id, first.data.message_id == other.data.message_id]
control("uuid_ttl", ms=0)
found["uuid after its hour"] = send("one", "u1").data.message_id == first.data.message_id
control("uuid_ttl", ms=3600000)
control("chaos", accept_then_timeout={"count": 1, "hang_ms": 5000})
try:
    send("slow", "u3", api=build(timeout=0.5))
    found["timeout"] = "answered"
except Exception as error:
    found["timeout"] = type(error).__name__
found["after timeout"] = code(send("slow", "u3"))
control("chaos", rate_limit={"count": 1, "retry_after": 7})
limited = send("x")
found["429"] = [limited.raw.status_code, limited.code, limited.raw.headers["x-ogw-ratelimit-reset"]]
control("chaos", rate_limit={"count": 1, "code": 230020})
limited = send("x")
found["230020"] = [limited.raw.status_code, limited.code]
control("chaos", server_error={"count": 1, "status": 400, "code": 230013})
found["230013"] = code(send("x"))
found["direct"] = [code(send("x", target="ou_ann", kind="open_id")), code(send("x", target="on_ann", kind="union_id"))]
found["no target"] = [code(send("x", target="oc_none")), code(send("x", target="oc_random"))]
found["content"] = [code(send("", content="no JSON")), code(send("", msg_type="post", content='{"title":"t"}')),
    code(send("", msg_type="interactive", content="1")), code(send("x" * 160000))]
found["long uuid"] = code(send("x", "u" * 51))
card = send("", msg_type="interactive", content='{"elements":[]}')
patch = PatchMessageRequest.builder().message_id(card.data.message_id).request_body(
    PatchMessageRequestBody.builder().content('{"elements":[1]}').build()).build()
found["patch"] = code(api.im.v1.message.patch(patch))
update = UpdateMessageRequest.builder().message_id(first.data.message_id).request_body(
    UpdateMessageRequestBody.builder().msg_type("text").content('{"text":"changed"}').build()).build()
found["update"] = api.im.v1.message.update(update).data.updated
control("chaos", expire_token=True)
found["expired"] = [code(send("x")), code(send("x", api=build()))]
# The SDK keeps the token that has expired; without it, it asks for another.
lark.core.token.TokenManager.cache = type(lark.core.token.TokenManager.cache)()
try:
    found["bad secret"] = code(send("x", api=build("wrong")))
except Exception as error:
    found["bad secret"] = [type(error).__name__, error.code]
said = [control("say", chat="general", text=f"n{n}", user="ann") for n in range(5)]
in_topic = control("say", chat="general", text="inside", thread=said[0]["id"], user="bob")
def history(container, **options):
    items, token = [], None
    while True:
        request = ListMessageRequest.builder().container_id_type("thread" if container.startswith("omt") else "chat")
        request = request.container_id(container).page_size(options.get("size", 2)).sort_type(options.get("sort", "ByCreateTimeAsc"))
        page = api.im.v1.message.list((request.page_token(token) if token else request).build())
        if not page.success(): return page.code
        items += [json.loads(item.body.content)["text"] for item in page.data.items]
        token = page.data.page_token
        if not page.data.has_more: return items
found["history"] = history("oc_general")
found["newest first"] = history("oc_general", sort="ByCreateTimeDesc", size=50)
found["topic"] = history(in_topic["thread"])
control("scopes", remove=["im:message.group_msg"])
found["history scope"] = history("oc_general")
control("scopes", add=["im:message.group_msg"], remove=["im:message", "im:message:send_as_bot"])
found["send scope"] = code(send("x"))
control("scopes", add=["im:message", "im:message:send_as_bot"])
def get(id): return api.im.v1.message.get(GetMessageRequest.builder().message_id(id).build())
forward = control("say", chat="general", kind="merge_forward", blocks=[{"user": "bob", "text": "b1"}, said[1]["id"]])
items = get(forward["id"]).data.items
found["forward"] = [[item.msg_type, item.upper_message_id == forward["id"]] for item in items]
control("recall", chat="general", id=said[2]["id"])
found["recalled"] = get(said[2]["id"]).data.items[0].deleted
reply = ReplyMessageRequest.builder().message_id(said[2]["id"]).request_body(
    ReplyMessageRequestBody.builder().msg_type("text").content('{"text":"x"}').build()).build()
found["reply to recalled"] = code(api.im.v1.message.reply(reply))
user = api.contact.v3.user.get(GetUserRequest.builder().user_id("ou_bob").user_id_type("open_id").build())
found["user"] = user.data.user.name
chat = api.im.v1.chat.get(GetChatRequest.builder().chat_id("oc_topics").build())
found["chat"] = [chat.data.name, chat.data.chat_mode]
chats = api.im.v1.chat.list(ListChatRequest.builder().page_size(2).build())
found["chats"] = [[chat.name for chat in chats.data.items], chats.data.has_more]
members = api.im.v1.chat_members.get(GetChatMembersRequest.builder().chat_id("oc_ops").build())
found["members"] = [member.name for member in members.data.items]
request = lark.BaseRequest.builder().http_method(lark.HttpMethod.GET).uri("/open-apis/bot/v3/info").token_types({lark.AccessTokenType.TENANT}).build()
found["bot"] = json.loads(api.request(request).raw.content)["bot"]["open_id"]
print(json.dumps(found))
"#;

#[test]
fn api_answers_the_sdk_as_documented() {
    let sim = Sim::start("lark");
    let found: Value = serde_json::from_str(&python(API_CALLS, &sim.info)).unwrap();
    let expected = json!({
        "uuid": [true, false],
        "uuid after its hour": false,
        "timeout": "ReadTimeout",
        "after timeout": 0,
        "429": [429, 99_991_400, "7"],
        "230020": [400, 230_020],
        "230013": 230_013,
        "direct": [0, 0],
        "no target": [230_001, 230_002],
        "content": [230_001, 230_001, 230_099, 230_025],
        "long uuid": 99_992_402,
        "patch": 0,
        "update": true,
        "expired": [99_991_663, 99_991_663],
        "bad secret": ["ObtainAccessTokenException", 10_014],
        "history": ["n0", "n1", "n2", "n3", "n4"],
        "newest first": ["n4", "n3", "n2", "n1", "n0"],
        "topic": ["n0", "inside"],
        "history scope": 230_027,
        "send scope": 99_991_672,
        "forward": [["merge_forward", false], ["text", true], ["text", true]],
        "recalled": true,
        "reply to recalled": 230_011,
        "user": "bob",
        "chat": ["topics", "topic"],
        "chats": [["general", "ops"], true],
        "members": ["ann", "bob", "cem"],
        "bot": "ou_bot0",
    });
    assert_eq!(found, expected, "{found:#}");
    let texts: Vec<_> = sim.sent().iter().map(|sent| sent["text"].clone()).collect();
    let slow = texts.iter().filter(|text| **text == "slow").count();
    assert_eq!(slow, 1, "what was accepted is not sent again: {texts:?}");
}

/// Messages of a custom robot, written with the standard library.
const HOOK_CALLS: &str = r#"
import base64, hashlib, hmac, json, sys, time, urllib.error, urllib.request
sim = json.load(sys.stdin)
keys = sim["credentials"]
def post(text, secret=keys["robot_secret"], at=None, token=keys["robot_token"]):
    at = str(at or int(time.time()))
    sign = base64.b64encode(hmac.new(f"{at}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()
    body = {"timestamp": at, "sign": sign, "msg_type": "text", "content": {"text": text}}
    request = urllib.request.Request(f"{sim['base_url']}/open-apis/bot/v2/hook/{token}",
        json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        return json.load(urllib.request.urlopen(request))["code"]
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)["code"]]
print(json.dumps([post("hi"), post("x", secret="other"), post("x", at=int(time.time()) - 7200),
    post("x", token="none"), post("x" * 30000)]))
"#;

#[test]
fn custom_robot_checks_sign_time_and_size() {
    let sim = Sim::start("lark");
    let found: Value = serde_json::from_str(&python(HOOK_CALLS, &sim.info)).unwrap();
    assert_eq!(found, json!([0, 19_021, 19_021, [400, 19_001], [400, 9_499]]));
    let sent = sim.sent();
    assert_eq!((sent.len(), &sent[0]["text"]), (1, &json!("hi")));
}
