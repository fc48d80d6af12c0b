//! DingTalk's own SDKs against `monoco sim dingtalk`.

use serde_json::{Value, json};

use crate::common::until;
use crate::reference_sdks::python;
use crate::sim_harness::{SdkBot, Sim};
use crate::webhook_peer::Receiver;

fn counter(state: &Value, name: &str) -> u64 {
    state["counters"][name].as_u64().unwrap()
}

#[test]
fn python_sdk_receives_answers_downloads_and_acknowledges() {
    let sim = Sim::start("dingtalk");
    sim.settings(&json!({"ping_interval_ms": 300}));
    let bot = SdkBot::start("dingtalk_stream_bot.py", &sim, &[]);
    sim.until(|state| counter(state, "sockets_opened") == 1);
    let id = sim.say("hello");
    let message = bot.until(|line| line["text"] == "hello");
    assert_eq!((&message["id"], &message["staff"]), (&json!(id), &json!("0001")));
    assert_eq!(message["chat"], "2");
    let sent = sim.until_sent(|sent| sent["text"] == "re: hello");
    assert_eq!((&sent["via"], &sent["chat"]), (&json!("robot/sendBySession"), &json!("cidOPS==")));
    sim.until_sent(|sent| sent["text"] == "# re: hello");
    sim.control("say", &json!({"chat": "@guest", "user": "guest", "text": "direct"}));
    let direct = bot.until(|line| line["text"] == "direct");
    assert_eq!((&direct["chat"], &direct["staff"]), (&json!("1"), &Value::Null));

    // The token is valid for 300 s, which the SDK takes as expired: it asks for it each time.
    sim.settings(&json!({"token_ttl_ms": 300_000}));
    let picture = |text: &str| json!({"name": "a.png", "mime_type": "image/png", "text": text});
    sim.control("say", &json!({"chat": "ops", "files": [picture("one")]}));
    bot.until(|line| line["saw"] == "file" && line["content"] == "one");
    sim.chaos(&json!({"expire_token": true}));
    let files = json!([picture("two"), picture("three")]);
    sim.control("say", &json!({"chat": "ops", "text": "rich", "files": files}));
    bot.until(|line| line["kind"] == "richText");
    bot.until(|line| line["content"] == "three");
    let state = sim.until(|state| state["events_waiting"] == 0);
    assert_eq!(counter(&state, "tokens_issued"), 2, "{state:#}");
    assert_eq!(counter(&state, "unknown_acks"), 0);

    sim.control("join", &json!({"chat": "ops", "user": "dan"}));
    let event = bot.until(|line| line["saw"] == "event");
    assert_eq!(event["type"], "chat_add_member");
    assert_eq!(event["data"]["openConversationId"], "cidOPS==");
    sim.until(|state| state["events_waiting"] == 0 && counter(state, "pongs_received") > 1);
}

#[test]
fn unacknowledged_message_is_sent_again_with_the_same_msg_id() {
    for name in ["dingtalk_stream_bot.py", "dingtalk_stream_bot.cjs"] {
        let sim = Sim::start("dingtalk");
        sim.settings(&json!({"ack_timeout_ms": 700}));
        let bot = SdkBot::start(name, &sim, &[]);
        sim.until(|state| counter(state, "sockets_opened") == 1);
        let id = sim.say("no ack");
        until("the message arrives twice", || bot.count("message", "no ack") == 2);
        let seen: Vec<_> = bot.seen().into_iter().filter(|line| line["text"] == "no ack").collect();
        assert!(seen.iter().all(|line| line["id"] == id.as_str()), "{name}: {seen:#?}");
        assert_ne!(seen[0]["frame"], seen[1]["frame"], "{name}");
        sim.until(|state| counter(state, "redelivered") == 1 && state["events_waiting"] == 0);
    }
}

#[test]
fn sdks_reconnect_after_a_disconnect_frame() {
    for name in ["dingtalk_stream_bot.py", "dingtalk_stream_bot.cjs"] {
        let sim = Sim::start("dingtalk");
        sim.settings(&json!({"disconnect_grace_ms": 300}));
        let bot = SdkBot::start(name, &sim, &[]);
        sim.until(|state| counter(state, "sockets_opened") == 1);
        sim.chaos(&json!({"disconnect_frame": true}));
        // The Python SDK waits 10 s.
        let state = sim.until(|state| {
            counter(state, "sockets_opened") == 2
                && state["connections"].as_array().is_some_and(|open| open.len() == 1)
        });
        assert_eq!(counter(&state, "tickets_issued"), 2, "{name}: each connection has a ticket");
        sim.say("after");
        bot.until(|line| line["text"] == "after");
        sim.until(|state| state["events_waiting"] == 0);
    }
}

#[test]
fn node_sdk_receives_answers_and_acknowledges_events() {
    let sim = Sim::start("dingtalk");
    sim.settings(&json!({"ping_interval_ms": 300}));
    let bot = SdkBot::start("dingtalk_stream_bot.cjs", &sim, &[]);
    sim.until(|state| counter(state, "sockets_opened") == 1);
    sim.say("hello");
    sim.until_sent(|sent| sent["text"] == "node: hello");
    sim.control("leave", &json!({"chat": "ops", "user": "bob"}));
    assert_eq!(bot.until(|line| line["saw"] == "event")["type"], "chat_remove_member");
    let state =
        sim.until(|state| state["events_waiting"] == 0 && counter(state, "pongs_received") > 1);
    assert_eq!(counter(&state, "acks"), 2, "{state:#}");
}

#[test]
fn message_without_a_connection_or_a_mention_does_not_reach_the_bot() {
    let sim = Sim::start("dingtalk");
    sim.say("nobody is connected");
    assert_eq!(counter(&sim.state(), "lost"), 1);
    let unheard = json!({"chat": "ops", "text": "among us", "mention": false});
    assert_eq!(sim.control("say", &unheard)["reaches_bot"], false);
    assert_eq!(counter(&sim.state(), "events"), 1);
    sim.settings(&json!({"backlog": true}));
    sim.say("kept");
    let bot = SdkBot::start("dingtalk_stream_bot.py", &sim, &[]);
    bot.until(|line| line["text"] == "kept");
}

/// Calls of the robot API with the token of the app, written with the standard library.
const ROBOT_CALLS: &str = r#"
import base64, hashlib, hmac, json, sys, time, urllib.error, urllib.parse, urllib.request
sim = json.load(sys.stdin)
keys, found = sim["credentials"], {}
def post(path, body, headers={}, base=sim["base_url"], kind="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"Content-Type": kind, "Accept": "application/json", **headers})
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)["code"]]
login = {"appKey": keys["app_key"], "appSecret": keys["app_secret"]}
token = post("/v1.0/oauth2/accessToken", login)["accessToken"]
found["same token"] = post("/v1.0/oauth2/accessToken", login)["accessToken"] == token
found["bad secret"] = post("/v1.0/oauth2/accessToken", {**login, "appSecret": "x"})
old = json.load(urllib.request.urlopen(f"{sim['oapi_url']}/gettoken?appkey={keys['app_key']}&appsecret={keys['app_secret']}"))
found["old token"] = [old["errcode"], old["access_token"] == token]
auth = {"x-acs-dingtalk-access-token": token}
def message(**target):
    return {"robotCode": keys["robot_code"], "msgKey": "sampleText", "msgParam": json.dumps({"content": "hi"}), **target}
direct = post("/v1.0/robot/oToMessages/batchSend", message(userIds=["0001", "9999"]), auth)
found["direct"] = [direct["invalidStaffIdList"], bool(direct["processQueryKey"])]
found["group"] = list(post("/v1.0/robot/groupMessages/send", message(openConversationId="cidOPS=="), auth))
found["no group"] = post("/v1.0/robot/groupMessages/send", message(openConversationId="cidNONE=="), auth)
found["bad param"] = post("/v1.0/robot/groupMessages/send", {**message(openConversationId="cidOPS=="), "msgParam": "x"}, auth)
found["no token"] = post("/v1.0/robot/groupMessages/send", message(openConversationId="cidOPS=="))
boundary = "limit"
form = (f'--{boundary}\r\nContent-Disposition: form-data; name="type"\r\n\r\nfile\r\n--{boundary}\r\n'
        f'Content-Disposition: form-data; name="media"; filename="r.txt"\r\n\r\nreport\r\n--{boundary}--\r\n').encode()
media = post(f"/media/upload?access_token={token}", form, base=sim["oapi_url"], kind=f"multipart/form-data; boundary={boundary}")
file = {"msgKey": "sampleFile", "msgParam": json.dumps({"mediaId": media["media_id"], "fileName": "r.txt", "fileType": "txt"})}
found["file"] = list(post("/v1.0/robot/groupMessages/send", {**message(openConversationId="cidOPS=="), **file}, auth))
def custom(text, secret=keys["robot_secret"], at=None):
    at = str(at or round(time.time() * 1000))
    sign = base64.b64encode(hmac.new(secret.encode(), f"{at}\n{secret}".encode(), hashlib.sha256).digest())
    query = urllib.parse.urlencode({"access_token": keys["robot_token"], "timestamp": at, "sign": sign})
    return post("/robot/send?" + query, {"msgtype": "text", "text": {"content": text}}, base=sim["oapi_url"])["errcode"]
found["wrong sign"] = custom("x", secret="other")
found["old sign"] = custom("x", at=round(time.time() * 1000) - 2 * 3600 * 1000)
found["long"] = custom("x" * 20001)
found["custom"] = [custom(f"n{n}") for n in range(22)]
print(json.dumps(found))
"#;

#[test]
fn robot_api_checks_tokens_targets_signs_and_limits() {
    let sim = Sim::start("dingtalk");
    let found: Value = serde_json::from_str(&python(ROBOT_CALLS, &sim.info)).unwrap();
    assert_eq!(found["same token"], true, "{found:#}");
    assert_eq!(found["bad secret"][0], 400);
    assert_eq!(found["old token"], json!([0, true]));
    assert_eq!(found["direct"], json!([["9999"], true]));
    assert_eq!(found["group"], json!(["processQueryKey"]));
    assert_eq!(found["no group"], json!([400, "invalidParameter.openConversationId"]));
    assert_eq!(found["bad param"], json!([400, "invalidParameter.msgParam"]));
    assert_eq!(found["no token"], json!([401, "InvalidAuthentication"]));
    assert_eq!(found["file"], json!(["processQueryKey"]));
    assert_eq!((&found["wrong sign"], &found["old sign"]), (&json!(310_000), &json!(310_000)));
    assert_eq!(found["long"], 460_101);
    let codes: Vec<_> = found["custom"].as_array().unwrap().clone();
    assert!(codes[..20].iter().all(|code| *code == 0), "{codes:?}");
    assert_eq!(codes[20..], [json!(130_101), json!(130_101)]);
    let sent = sim.until_sent(|sent| sent["files"][0]["title"] == "r.txt");
    assert_eq!(sent["files"][0]["size"], 6);
}

#[test]
fn faults_of_the_robot_api_have_the_documented_form() {
    let sim = Sim::start("dingtalk");
    let script = r#"
import json, sys, urllib.error, urllib.request
sim = json.load(sys.stdin)
def post(url, body, headers={}):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers})
    try:
        return json.load(urllib.request.urlopen(request))
    except urllib.error.HTTPError as error:
        return [error.code, json.load(error)["code"], error.headers.get("retry-after")]
keys = sim["credentials"]
login = {"appKey": keys["app_key"], "appSecret": keys["app_secret"]}
token = post(sim["base_url"] + "/v1.0/oauth2/accessToken", login)["accessToken"]
def send():
    body = {"robotCode": keys["robot_code"], "userIds": ["0001"], "msgKey": "sampleText", "msgParam": '{"content":"x"}'}
    return post(sim["base_url"] + "/v1.0/robot/oToMessages/batchSend", body, {"x-acs-dingtalk-access-token": token})
def chaos(**switches): post(sim["control_url"] + "/chaos", switches)
found = []
chaos(rate_limit={"count": 1}); found.append(send())
chaos(rate_limit={"count": 1, "retry_after": 2, "status": 429}); found.append(send())
chaos(server_error={"count": 1, "status": 504}); found.append(send())
chaos(flow_control=1); found.append(send()["flowControlledStaffIdList"])
chaos(expire_token=True); found.append(send())
print(json.dumps(found))
"#;
    let found: Value = serde_json::from_str(&python(script, &sim.info)).unwrap();
    let qps = "Forbidden.AccessDenied.QpsLimitForAppkeyAndApi";
    let expected = json!([
        [403, qps, null],
        [429, qps, "2"],
        [504, "ServiceUnavailable", null],
        ["0001"],
        [401, "InvalidAuthentication", null],
    ]);
    assert_eq!(found, expected);
    assert!(sim.sent().is_empty(), "nothing was delivered");
}

#[test]
fn http_callback_is_signed_and_can_be_forged() {
    let sim = Sim::start("dingtalk");
    let receiver = Receiver::start();
    sim.control("push", &json!({"url": receiver.url("/hook")}));
    let verify = r#"
import base64, hashlib, hmac, json, sys
given = json.load(sys.stdin)
at, secret = given["headers"]["timestamp"], given["secret"]
sign = base64.b64encode(hmac.new(secret.encode(), f"{at}\n{secret}".encode(), hashlib.sha256).digest())
print(json.dumps(sign.decode() == given["headers"]["sign"]))
"#;
    for (wrong, expected) in [(0, "true"), (1, "false")] {
        sim.chaos(&json!({"wrong_signature": wrong}));
        let id = sim.say("by HTTP");
        let got = receiver.next();
        let body: Value = serde_json::from_str(&got.body).unwrap();
        assert_eq!((&body["msgId"], &body["text"]["content"]), (&json!(id), &json!(" by HTTP")));
        let given = json!({
            "headers": got.headers, "secret": sim.info["credentials"]["app_secret"],
        });
        assert_eq!(python(verify, &given).trim(), expected);
    }
}

#[test]
fn reordered_events_arrive_in_reverse_order_and_duplicated_ones_twice() {
    let sim = Sim::start("dingtalk");
    let receiver = Receiver::start();
    sim.control("push", &json!({"url": receiver.url("/hook")}));
    let next = || {
        let body: Value = serde_json::from_str(&receiver.next().body).unwrap();
        body["text"]["content"].as_str().unwrap().trim().to_owned()
    };
    sim.chaos(&json!({"reorder": 3, "duplicate": 1}));
    for text in ["one", "two", "three", "four"] {
        sim.say(text);
    }
    let arrived: Vec<_> = (0..5).map(|_| next()).collect();
    assert_eq!(arrived, ["three", "two", "one", "one", "four"]);
    // Fewer events than asked for are held for 2 s at most.
    sim.chaos(&json!({"reorder": 5}));
    sim.say("five");
    sim.say("six");
    assert_eq!([next(), next()], ["six", "five"]);
}

#[test]
fn quotes_rich_text_and_large_files_have_the_documented_form() {
    let sim = Sim::start("dingtalk");
    let receiver = Receiver::start();
    sim.control("push", &json!({"url": receiver.url("/hook")}));
    let next = || serde_json::from_str::<Value>(&receiver.next().body).unwrap();
    let id = sim.say("first");
    next();
    sim.control("say", &json!({"chat": "ops", "text": "second", "quote": id}));
    let quote = next();
    assert_eq!(quote["text"]["isReplyMsg"], true, "{quote:#}");
    assert_eq!(quote["text"]["repliedMsg"]["msgId"], id);
    assert_eq!(quote["text"]["repliedMsg"]["content"]["content"], " first");
    let file = json!({"name": "big.bin", "size": 30_000_000});
    sim.control("say", &json!({"chat": "ops", "files": [file]}));
    let message = next();
    assert_eq!(
        (&message["msgtype"], &message["content"]["fileName"]),
        (&json!("file"), &json!("big.bin"))
    );
    let script = r#"
import json, sys, urllib.request
sim = json.load(sys.stdin)
def post(path, body, headers={}):
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(sim["base_url"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))
keys = sim["credentials"]
token = post("/v1.0/oauth2/accessToken", {"appKey": keys["app_key"], "appSecret": keys["app_secret"]})
body = {"robotCode": keys["robot_code"], "downloadCode": sim["code"]}
url = post("/v1.0/robot/messageFiles/download", body, {"x-acs-dingtalk-access-token": token["accessToken"]})
print(len(urllib.request.urlopen(url["downloadUrl"]).read()))
"#;
    let mut given = sim.info.clone();
    given["code"] = message["content"]["downloadCode"].clone();
    assert_eq!(python(script, &given).trim(), "30000000");
}

#[test]
fn session_webhook_expires() {
    let sim = Sim::start("dingtalk");
    let receiver = Receiver::start();
    sim.control("push", &json!({"url": receiver.url("/hook")}));
    sim.settings(&json!({"session_webhook_ttl_ms": 0}));
    sim.say("too late");
    let body: Value = serde_json::from_str(&receiver.next().body).unwrap();
    let url = body["sessionWebhook"].as_str().unwrap();
    let path = &url[url.find("/robot/").unwrap()..];
    let answer = json!({"msgtype": "text", "text": {"content": "x"}}).to_string();
    assert_eq!(sim.request("POST", path, answer.as_bytes()).ok()["errcode"], 300_001);
    assert!(sim.sent().is_empty());
}
