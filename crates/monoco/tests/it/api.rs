//! The HTTP door: who may come in, what is refused, and what the center does.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::common::{Answer, Courier, ME, PATIENCE, chat, header, raw};

/// Every route with every method it takes, from the courier's own description.
fn routes(courier: &Courier) -> Vec<(String, String)> {
    let doc = courier.get("/api/openapi.json").ok();
    let file: Value = serde_json::from_str(include_str!("../../../../docs/openapi.json")).unwrap();
    assert_eq!(doc, file, "the courier serves the document of its version");
    let mut routes = Vec::new();
    for (path, item) in doc["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let path = path
                .replace("{owner}", ME)
                .replace("{target}", ME)
                .replace("{group}", "did:web:g")
                .replace("{box}", "INBOX")
                .replace("{id}", "x")
                .replace("{did}", "did:web:x")
                .replace("{sender}", "did:web:x")
                .replace("{reader}", "did:web:x")
                .replace("{record_id}", "rec_0")
                .replace("{name}", "x")
                .replace("{scope}", "all");
            assert!(!path.contains('{'), "{path}: say here what stands for its parameter");
            routes.push((method.to_uppercase(), path));
        }
    }
    routes.push(("GET".to_owned(), "/api/openapi.json".to_owned()));
    assert!(routes.len() > 30, "{routes:?}");
    routes
}

fn pairs(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// What is wrong with a request, the status it gets, and its headers.
type Bad<'a> = (&'a str, u16, &'a [(&'a str, &'a str)]);

#[test]
fn nobody_comes_in_who_should_not_and_nothing_happens() {
    let courier = Courier::start();
    let host = format!("localhost:{}", courier.address.port());
    let token = format!("Bearer {}", courier.token);
    let body = json!({
        "msg": chat("did:web:eve", ME, "let me in"), "level": "friend", "state": "READED",
        "msg_id": "x", "reader": ME, "name": "x", "tunnel": "stub", "address": "x",
    })
    .to_string();
    let json = ("Content-Type", "application/json");
    let before = courier.get("/api/v1/events?limit=1000").ok();

    for (method, path) in routes(&courier) {
        let ask = |path: &str, headers: &[(&str, &str)]| {
            let body = if method == "GET" { "" } else { &body };
            let mut headers = headers.to_vec();
            headers.push(json);
            raw(courier.address, &method, path, &pairs(&headers), body.as_bytes()).unwrap()
        };
        let bad: [Bad<'_>; 9] = [
            ("no token", 401, &[("Host", &host)]),
            ("wrong token", 401, &[("Host", &host), ("Authorization", "Bearer 00")]),
            ("empty token", 401, &[("Host", &host), ("Authorization", "Bearer ")]),
            ("foreign host", 403, &[("Host", "evil.test"), ("Authorization", &token)]),
            ("no host", 403, &[("Authorization", &token)]),
            (
                "foreign origin",
                403,
                &[("Host", &host), ("Authorization", &token), ("Origin", "http://evil.test")],
            ),
            ("null origin", 403, &[("Host", &host), ("Authorization", &token), ("Origin", "null")]),
            (
                "cross-site",
                403,
                &[("Host", &host), ("Authorization", &token), ("Sec-Fetch-Site", "cross-site")],
            ),
            (
                "another port's origin",
                403,
                &[("Host", &host), ("Authorization", &token), ("Origin", "http://localhost:1")],
            ),
        ];
        for (what, status, headers) in bad {
            // Without a token, but else from the right place, health is open.
            if path == "/health" && status == 401 {
                continue;
            }
            assert_eq!(ask(&path, headers).status, status, "{method} {path}: {what}");
        }
        // The same place spelt otherwise is another place, and needs a token too.
        let spelt = [
            path.replacen("/api", "/%61pi", 1).replacen("/health", "/%68ealth", 1),
            format!("/{path}"),
            format!("/.{path}"),
            path.replacen("/api", "/%2e/api", 1),
            path.to_uppercase(),
        ];
        for spelt in spelt.iter().filter(|spelt| **spelt != path) {
            assert_eq!(ask(spelt, &[("Host", &host)]).status, 401, "{method} {spelt}");
            let known = ask(spelt, &[("Host", &host), ("Authorization", &token)]);
            assert_eq!(known.status, 404, "{method} {spelt}");
        }
    }
    assert_eq!(courier.get("/api/v1/events?limit=1000").ok(), before, "something happened");
}

#[test]
fn bad_input_gets_a_plain_answer_and_writes_nothing() {
    let courier = Courier::start();
    courier.deliver(ME, "the one message");
    let known = courier.get(&format!("/api/v1/boxes/{ME}/INBOX")).ok();
    let record = known["records"][0]["record_id"].as_str().unwrap().to_owned();
    let before = courier.get("/api/v1/events?limit=1000").ok();

    let good = chat("did:web:ann", ME, "hi");
    let with = |key: &str, value: Value| {
        let mut msg = good.clone();
        msg[key] = value;
        json!({ "msg": msg })
    };
    let (dispatch, send) = ("/api/v1/dispatch", "/api/v1/post_send");
    let next = format!("/api/v1/boxes/{ME}/INBOX/next");
    let state = format!("/api/v1/records/{record}/state");
    let gone = format!("rec_{}", "0".repeat(48));
    let deep = serde_json::from_str::<Value>(&format!("{}{}", "[".repeat(100), "]".repeat(100)));
    let posts: &[(&str, Value, u16, &str)] = &[
        (dispatch, json!({}), 422, "wrong_shape"),
        (dispatch, json!([]), 422, "wrong_shape"),
        (dispatch, json!({"msg": good, "extra": 1}), 422, "wrong_shape"),
        (dispatch, json!({"msg": "hi"}), 422, "bad_object"),
        (dispatch, with("from", json!("ann")), 422, "bad_object"),
        (dispatch, with("from", json!("did:msgtunnel:a.b.c.d")), 422, "bad_object"),
        (dispatch, with("to", json!([])), 422, "bad_object"),
        (dispatch, with("kind", json!("shout")), 422, "bad_object"),
        (dispatch, with("created_at_ms", json!(-1)), 422, "bad_object"),
        (dispatch, with("x", deep.unwrap()), 200, ""),
        (
            dispatch,
            json!({"msg": good, "msg_id": format!("cymsg:{}", "0".repeat(64))}),
            422,
            "id_mismatch",
        ),
        (dispatch, json!({"msg": good, "ingress": {"tunnel": "Not A Name"}}), 422, "bad_field"),
        (dispatch, json!({"msg": good, "ingress": {"external_id": "1"}}), 422, "bad_field"),
        (
            dispatch,
            json!({"msg": good, "ingress": {"tunnel": "t", "external_id": ""}}),
            422,
            "bad_field",
        ),
        (dispatch, with("to", json!(["did:msgtunnel:a.user.stub"])), 422, "no_local_recipient"),
        (dispatch, with("x", json!("y".repeat(1_100_000))), 413, "too_large"),
        (dispatch, with("x", json!("y".repeat(2_100_000))), 413, "too_large"),
        (send, with("to", json!(["did:web:nobody"])), 422, "unresolvable"),
        (send, with("to", json!(["did:msgtunnel:a.user.nowhere"])), 422, "unresolvable"),
        (send, with("expires_at_ms", json!(1)), 422, "expired"),
        (send, json!({"msg": good, "schedule_at": "tomorrow"}), 422, "bad_field"),
        (send, json!({"msg": good, "schedule_at": -5}), 422, "bad_field"),
        (send, json!({"msg": good, "idempotency_key": ""}), 422, "bad_field"),
        (&next, json!({"lease_s": 0}), 422, "bad_field"),
        (&next, json!({"lease_s": -1}), 422, "bad_field"),
        (&next, json!({"lease_s": 1_000_000_000_000_i64}), 422, "bad_field"),
        (&next, json!({"holder": ""}), 422, "bad_field"),
        (&next, json!({"holder": "courier:1"}), 422, "bad_field"),
        (&next, json!({"holder": "x".repeat(1_000_000)}), 422, "bad_field"),
        (&next, json!({"states": ["SLEEPING"]}), 422, "unknown_state"),
        (&next, json!({"states": ["READED"]}), 422, "not_takeable"),
        ("/api/v1/boxes/did:web:nobody/INBOX/next", json!({}), 404, "unknown_owner"),
        ("/api/v1/boxes/nobody/INBOX/next", json!({}), 400, "bad_parameter"),
        ("/api/v1/boxes/did:monoco:me/OUTBOX/next", json!({}), 422, "not_takeable"),
        (&state, json!({"state": "SLEEPING"}), 422, "unknown_state"),
        (&state, json!({"state": "READED"}), 409, "wrong_state"),
        (&state, json!({"state": "READING", "epoch": 7}), 409, "lease_lost"),
        (&state, json!({"state": "READING", "epoch": -7}), 422, "bad_field"),
        (&state, json!({"state": "READING", "revision": 7}), 409, "conflict"),
        ("/api/v1/records/rec_1/state", json!({"state": "READED"}), 400, "bad_parameter"),
        (&format!("/api/v1/records/{gone}/state"), json!({"state": "READED"}), 404, "not_found"),
        (&format!("/api/v1/deliveries/{record}/report"), json!({"ok": true}), 400, "bad_parameter"),
        (
            &format!("/api/v1/deliveries/{}/report", gone.replace("rec_", "dlv_")),
            json!({"ok": true}),
            404,
            "not_found",
        ),
    ];
    for (path, body, status, code) in posts {
        let answer = courier.post(path, body);
        if *status == 200 {
            // Deep, but not too deep: the one that is welcome.
            continue;
        }
        assert_eq!(answer.refused(*status), *code, "{path} {:.200}", body.to_string());
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.len() > 10, "says nothing: {message}");
    }

    let gets = [
        (format!("/api/v1/boxes/{ME}/INBOX?limit=0"), 400, "bad_parameter"),
        (format!("/api/v1/boxes/{ME}/INBOX?limit=-1"), 400, "bad_parameter"),
        (format!("/api/v1/boxes/{ME}/INBOX?limit=99999999999999999999"), 400, "bad_parameter"),
        (format!("/api/v1/boxes/{ME}/INBOX?colour=red"), 400, "bad_parameter"),
        (format!("/api/v1/boxes/{ME}/INBOX?order=best"), 400, "bad_parameter"),
        (format!("/api/v1/boxes/{ME}/INBOX?cursor=xyz"), 400, "bad_parameter"),
        (format!("/api/v1/boxes/{ME}/INBOX?state=SLEEPING"), 422, "unknown_state"),
        (format!("/api/v1/boxes/{ME}/CUPBOARD"), 400, "bad_parameter"),
        (format!("/api/v1/boxes/{ME}/INBOX/peek?n=0"), 400, "bad_parameter"),
        ("/api/v1/boxes/did:web:nobody/INBOX".to_owned(), 404, "unknown_owner"),
        ("/api/v1/objects/cymsg:12".to_owned(), 400, "bad_parameter"),
        (format!("/api/v1/objects/cymsg:{}", "0".repeat(64)), 404, "not_found"),
        (format!("/api/v1/objects/sha256:{}", "0".repeat(64)), 404, "not_found"),
        ("/api/v1/objects/sha256:..%2F..%2Frun%2Fcourier.token".to_owned(), 400, "bad_parameter"),
        ("/api/v1/events?after=-1".to_owned(), 400, "bad_parameter"),
        ("/api/v1/events?tail=0".to_owned(), 400, "bad_parameter"),
        ("/api/v1/events?tail=5&after=1".to_owned(), 400, "bad_parameter"),
        ("/api/v1/trace/nothing".to_owned(), 404, "not_found"),
        ("/api/v1/sessions?owner=x".to_owned(), 400, "bad_parameter"),
        ("/api/v1/sessions".to_owned(), 400, "bad_parameter"),
        (format!("/api/v1/sessions/did:web:x?owner={ME}"), 404, "not_found"),
        ("/api/v1/contacts/did:web:x".to_owned(), 404, "not_found"),
        ("/api/v1/nothing".to_owned(), 404, "no_route"),
        ("/api/v1/dispatch".to_owned(), 405, "method_not_allowed"),
        ("/api/v1/boxes/%ff/INBOX".to_owned(), 400, "bad_parameter"),
    ];
    for (path, status, code) in gets {
        assert_eq!(courier.get(&path).refused(status), code, "{path}");
    }
    let events = courier.get("/api/v1/events?limit=1000").ok();
    let count = |page: &Value| page["events"].as_array().unwrap().len();
    assert_eq!(count(&events), count(&before) + 1, "only the welcome one was written");
}

#[test]
fn bodies_that_are_not_what_they_say() {
    let courier = Courier::start();
    let send = |kind: &str, body: &[u8]| -> Answer {
        courier.send("POST", "/api/v1/dispatch", &[("Content-Type", kind)], body).unwrap()
    };
    let json = "application/json";
    assert_eq!(send("text/plain", b"{}").refused(415), "wrong_type");
    assert_eq!(send("application/x-www-form-urlencoded", b"msg=1").refused(415), "wrong_type");
    assert_eq!(send(json, br#"{"msg":{"from":"#).refused(400), "truncated_json");
    assert_eq!(send(json, b"").refused(400), "truncated_json");
    assert_eq!(send(json, b"\xff\xfe").refused(400), "bad_json");
    assert_eq!(send(json, br#"{"msg":1,"msg":2}"#).refused(400), "bad_json");
    assert_eq!(send(json, br#"{"msg":{"a":{"b":1,"b":2}}}"#).refused(400), "bad_json");
    assert_eq!(send(json, br#"{"msg":"\ud800"}"#).refused(400), "bad_json");
    assert_eq!(send(json, br#"{"msg":18446744073709551615}"#).refused(400), "bad_json");
    let deep = "[".repeat(100_000);
    assert_eq!(send(json, deep.as_bytes()).refused(400), "bad_json");
    assert_eq!(send("application/json; charset=utf-8", b"{}").refused(422), "wrong_shape");
    assert_eq!(send(json, &vec![b' '; 3 << 20]).refused(413), "too_large");

    // A head that is too large, and one with too many lines.
    let long = "x".repeat(100_000);
    let answer = raw(courier.address, "GET", "/health", &pairs(&[("X", &long)]), b"").unwrap();
    assert_eq!(answer.status, 431);
    let many: Vec<_> = (0..200).map(|n| (format!("X-{n}"), "x".to_owned())).collect();
    assert_eq!(raw(courier.address, "GET", "/health", &many, b"").unwrap().status, 431);
    // Whatever was refused, the courier is fine.
    assert_eq!(courier.get("/health").ok()["status"], "ok");
}

#[test]
fn a_batch_is_answered_line_by_line() {
    let courier = Courier::start();
    let line = |text: &str| json!({"msg": chat("did:web:ann", ME, text)}).to_string();
    let body = [
        &line("one"),
        "{not json",
        &line("two"),
        "",
        &line("one"),
        &json!({"msg": {"from": "nobody"}}).to_string(),
        &line("three"),
    ]
    .join("\n");
    let answer = crate::ack_checker::batch_dispatch(&courier, &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    let told: Vec<String> = answer
        .text()
        .lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let what = match (&line["ok"], &line["duplicate"]) {
                (Value::Bool(true), Value::Bool(true)) => "again",
                (Value::Bool(true), _) => "new",
                _ => line["code"].as_str().unwrap(),
            };
            format!("{} {what}", line["line"])
        })
        .collect();
    assert_eq!(told, ["1 new", "2 bad_json", "3 new", "5 again", "6 bad_object", "7 new"]);
    let box_ = courier.get(&format!("/api/v1/boxes/{ME}/INBOX")).ok();
    assert_eq!(box_["records"].as_array().unwrap().len(), 3);

    let many = vec!["{}"; 1_001].join("\n");
    let answer = crate::ack_checker::batch_dispatch(&courier, &many);
    assert_eq!(answer.refused(422), "bad_field");
}

#[test]
fn a_send_with_one_bad_target_writes_nothing_and_names_it() {
    let courier = Courier::start();
    let before = courier.get("/api/v1/events?limit=1000").ok();
    let mut msg = chat(ME, "did:msgtunnel:ann.user.stub", "hi");
    msg["to"] = json!(["did:msgtunnel:ann.user.stub", "did:web:lost", ME]);
    let answer = courier.post("/api/v1/post_send", &json!({ "msg": msg }));
    assert_eq!(answer.refused(422), "unresolvable");
    let targets = &answer.json()["targets"];
    assert_eq!(targets.as_array().unwrap().len(), 1);
    assert_eq!(targets[0]["target"], "did:web:lost");
    assert_eq!(courier.get("/api/v1/events?limit=1000").ok(), before);
    let outbox = courier.get(&format!("/api/v1/boxes/{ME}/OUTBOX")).ok();
    assert_eq!(outbox["records"], json!([]));
}

#[test]
fn a_send_is_delivered_and_its_bad_days_are_seen() {
    let courier = Courier::start();
    let send = |account: &str, key: Option<&str>| {
        let msg = chat(ME, &format!("did:msgtunnel:{account}.user.stub"), account);
        let body = json!({"msg": msg, "idempotency_key": key});
        let answer = courier.post("/api/v1/post_send", &body).ok();
        answer["deliveries"][0]["record_id"].as_str().unwrap().to_owned()
    };
    let ends = |id: &str, state: &str| {
        courier.until(&format!("/api/v1/records/{id}"), |record| record["state"] == state)
    };
    let fine = ends(&send("ann", None), "SENT");
    assert_eq!(fine["delivery"]["external_msg_id"], "stub-1");
    assert_eq!(fine["attempts"], 1);
    let busy = ends(&send("busy-2", None), "SENT");
    assert_eq!(busy["attempts"], 3);
    let dead = ends(&send("refuse", None), "DEAD");
    assert_eq!(dead["delivery"]["failure"]["kind"], "permanent");
    // The stub takes keys, so a line that went dead is tried again with the same.
    let vanished = send("vanish", None);
    ends(&vanished, "FAILED");

    // A person has fixed the address, so to speak.
    let path = format!("/api/v1/records/{}/state", dead["record_id"].as_str().unwrap());
    let revived = courier.post(&path, &json!({"state": "WAIT"})).ok();
    assert_eq!(revived["attempts"], 0);
    ends(revived["record_id"].as_str().unwrap(), "DEAD");

    // The second caller gets the first one's answer and is told so.
    let first = send("twice", Some("k1"));
    let msg = chat(ME, "did:msgtunnel:twice.user.stub", "twice");
    let again =
        courier.post("/api/v1/post_send", &json!({"msg": msg, "idempotency_key": "k1"})).ok();
    assert_eq!(again["duplicate"], true);
    assert_eq!(again["deliveries"][0]["record_id"], first.as_str());
    let other = chat(ME, "did:msgtunnel:other.user.stub", "other");
    let reused = courier.post("/api/v1/post_send", &json!({"msg": other, "idempotency_key": "k1"}));
    assert_eq!(reused.refused(409), "key_reused");
}

#[test]
fn a_tunnel_in_any_language_needs_nothing_else() {
    let courier = Courier::start();
    // It hears something…
    let msg = chat("did:msgtunnel:u1.user.my-net", ME, "is anybody there?");
    let ingress = json!({"tunnel": "my-net", "external_id": "evt-1"});
    let heard = courier.post("/api/v1/dispatch", &json!({"msg": msg, "ingress": ingress})).ok();
    assert_eq!(heard["duplicate"], false);
    // …the network repeats itself, with the time changed…
    let mut repeated = msg.clone();
    repeated["created_at_ms"] = json!(1);
    let again =
        courier.post("/api/v1/dispatch", &json!({"msg": repeated, "ingress": ingress})).ok();
    assert_eq!((&again["duplicate"], &again["msg_id"]), (&json!(true), &heard["msg_id"]));
    // The agent answers.
    let answer = chat(ME, "did:msgtunnel:u1.user.my-net", "yes");
    courier.post("/api/v1/post_send", &json!({ "msg": answer })).ok();
    // …and it delivers the answer.
    let next = "/api/v1/boxes/did:msgtunnel:my-net/TUNNEL_OUTBOX/next";
    let taken = courier.post(next, &json!({"holder": "my-program", "lease_s": 1})).ok();
    assert_eq!(taken["record"]["delivery"]["plan"]["address"], "u1");
    assert_eq!(taken["msg"]["content"]["content"], "yes");
    assert_eq!(courier.post(next, &json!({})).status, 204);
    let id = taken["record"]["record_id"].as_str().unwrap();
    let report = format!("/api/v1/deliveries/{id}/report");
    let stale = json!({"ok": true, "epoch": 9});
    assert_eq!(courier.post(&report, &stale).refused(409), "lease_lost");
    let done = json!({"ok": true, "epoch": taken["record"]["epoch"], "external_msg_id": "m-9"});
    assert_eq!(courier.post(&report, &done).ok()["state"], "SENT");
    assert_eq!(courier.post(&report, &done).ok()["state"], "SENT", "said again, nothing changes");
    // The provider's id leads back to all of it.
    let trace = courier.get("/api/v1/trace/m-9").ok();
    let kinds: Vec<_> =
        trace["events"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["posted", "sending", "sent"]);
    assert_eq!(courier.get("/api/v1/trace/evt-1").ok()["msg_id"], heard["msg_id"]);
}

#[test]
fn what_nobody_reports_on_is_uncertain_and_a_person_decides() {
    let courier = Courier::start();
    courier.put("/api/v1/tunnels/my-net", &json!({"provider": "carrier pigeon"})).ok();
    let msg = chat(ME, "did:msgtunnel:u1.user.my-net", "fly");
    courier.post("/api/v1/post_send", &json!({ "msg": msg })).ok();
    let next = "/api/v1/boxes/did:msgtunnel:my-net/TUNNEL_OUTBOX/next";
    let taken = courier.post(next, &json!({"lease_s": 1})).ok();
    let id = taken["record"]["record_id"].as_str().unwrap();
    let path = format!("/api/v1/records/{id}");
    courier.until(&path, |record| record["state"] == "UNCERTAIN");
    assert_eq!(courier.post(next, &json!({})).status, 204, "never resent blindly");
    let decided = courier.post(&format!("{path}/state"), &json!({"state": "WAIT"})).ok();
    assert_eq!(decided["state"], "WAIT");
    let again = courier.post(next, &json!({})).ok();
    assert_eq!(again["record"]["record_id"], id);
    assert_eq!(again["record"]["epoch"], 2, "epochs never go back");
}

#[test]
fn a_reader_that_dies_gives_its_message_back() {
    let courier = Courier::start();
    let id = courier.deliver(ME, "read me");
    let next = format!("/api/v1/boxes/{ME}/INBOX/next");
    let first = courier.post(&next, &json!({"holder": "ann", "lease_s": 1})).ok();
    let held = courier
        .post(&format!("/api/v1/records/{id}/state"), &json!({"state": "READED", "holder": "bob"}));
    assert_eq!(held.refused(409), "lease_lost");
    assert_eq!(held.json()["held_by"], "ann");
    courier.until(&format!("/api/v1/records/{id}"), |record| record["state"] == "UNREAD");
    let second = courier.post(&next, &json!({"holder": "bob"})).ok();
    assert_eq!(second["record"]["attempts"], 2);
    let finish = |epoch: &Value| {
        let body = json!({"state": "READED", "epoch": epoch});
        courier.post(&format!("/api/v1/records/{id}/state"), &body)
    };
    assert_eq!(finish(&first["record"]["epoch"]).refused(409), "lease_lost");
    assert_eq!(finish(&second["record"]["epoch"]).ok()["state"], "READED");
}

#[test]
fn groups_blocks_strangers_and_receipts() {
    let courier = Courier::start();
    let group = "did:web:team";
    courier.put(&format!("/api/v1/groups/{group}"), &json!({"name": "The team"})).ok();
    for reader in ["did:web:ann", "did:web:bob"] {
        courier.put(&format!("/api/v1/groups/{group}/subscribers/{reader}"), &json!(null)).ok();
    }
    let said = |author: &str, text: &str| {
        let msg = json!({"from": group, "source": author, "to": [group], "kind": "group_msg",
                         "content": {"content": text}});
        courier.post("/api/v1/dispatch", &json!({ "msg": msg })).ok()
    };
    let told = |answer: &Value| -> Vec<String> {
        let delivered = answer["delivered"].as_array().unwrap().iter();
        delivered
            .map(|d| format!("{} {}", d["owner"].as_str().unwrap(), d["box"].as_str().unwrap()))
            .collect()
    };
    let hello = said("did:web:ann", "hello");
    assert_eq!(told(&hello), ["did:web:team GROUP_INBOX", "did:web:bob INBOX"]);
    let inbox = courier.get("/api/v1/boxes/did:web:bob/INBOX").ok();
    assert_eq!(inbox["records"][0]["tags"], json!(["group:did:web:team"]));

    courier.put("/api/v1/blocks/did:web:bob/did:web:ann", &json!(null)).ok();
    assert_eq!(told(&said("did:web:ann", "bob?")), ["did:web:team GROUP_INBOX"]);
    courier.put("/api/v1/contacts/did:web:ann", &json!({"level": "block"})).ok();
    let blocked = said("did:web:ann", "anybody?");
    assert_eq!((&blocked["ok"], &blocked["reason"]), (&json!(false), &json!("blocked")));
    let own = chat("did:web:ann", ME, "out");
    let refused = courier.post("/api/v1/post_send", &json!({ "msg": own })).ok();
    assert_eq!(refused["reason"], "blocked_author");
    // A refusal is not remembered.
    courier.put("/api/v1/contacts/did:web:ann", &json!({"level": "friend"})).ok();
    assert_eq!(said("did:web:ann", "anybody?")["duplicate"], false);

    courier.put("/api/v1/tunnels/wary", &json!({"strangers": "hold"})).ok();
    let knock = json!({"msg": chat("did:msgtunnel:x.user.wary", ME, "hi"),
                       "ingress": {"tunnel": "wary"}});
    let held = courier.post("/api/v1/dispatch", &knock).ok();
    assert_eq!(told(&held), ["did:monoco:me REQUEST_BOX"]);

    let receipts = format!("/api/v1/groups/{group}/receipts");
    let msg_id = hello["msg_id"].as_str().unwrap();
    for state in ["READING", "READED"] {
        let body = json!({"msg_id": msg_id, "reader": "did:web:bob", "state": state});
        courier.put(&receipts, &body).ok();
    }
    let list = courier.get(&format!("{receipts}?msg_id={msg_id}")).ok();
    assert_eq!(list["receipts"].as_array().unwrap().len(), 1);
    assert_eq!(list["receipts"][0]["state"], "READED");
    // A receipt is an object of its own.
    let receipt = list["receipts"][0]["receipt_id"].as_str().unwrap();
    assert_eq!(courier.get(&format!("/api/v1/objects/{receipt}")).ok()["status"], "readed");
    let wrong = json!({"msg_id": msg_id, "reader": "did:web:bob", "state": "EATEN"});
    assert_eq!(courier.put(&receipts, &wrong).refused(422), "bad_field");
}

#[test]
fn a_conversation_shows_both_directions() {
    let courier = Courier::start();
    let ann = "did:msgtunnel:ann.user.stub";
    let send = |from: &str, to: &str, text: &str, path: &str| {
        courier.post(path, &json!({"msg": chat(from, to, text)})).ok()
    };
    send(ann, ME, "ping", "/api/v1/dispatch");
    send(ME, ann, "pong", "/api/v1/post_send");
    let path = format!("/api/v1/sessions/{ann}?owner={ME}&order=oldest");
    let page = courier.until(&path, |page| page["lines"][1]["delivery_state"] == "SENT");
    let lines: Vec<_> = page["lines"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            let text = line["msg"]["content"]["content"].as_str().unwrap();
            format!("{} {text}", line["direction"].as_str().unwrap())
        })
        .collect();
    assert_eq!(lines, ["in ping", "out pong"]);
    let sessions = courier.get(&format!("/api/v1/sessions?owner={ME}")).ok();
    assert_eq!(sessions["sessions"][0]["id"], ann);
    assert_eq!(sessions["sessions"][0]["unread"], 1);
}

#[test]
fn pages_fit_together_and_cursors_stay_at_home() {
    let courier = Courier::start();
    for n in 0..7 {
        courier.deliver(ME, &format!("message {n}"));
    }
    courier.deliver("did:web:bob", "elsewhere");
    let page = |path: &str| courier.get(path).ok();
    for order in ["newest", "oldest"] {
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/api/v1/boxes/{ME}/INBOX?limit=3&order={order}{cursor}");
            let page = page(&path);
            let records = page["records"].as_array().unwrap();
            assert!(records.len() <= 3);
            seen.extend(records.iter().map(|r| r["record_id"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let all: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!((seen.len(), all.len()), (7, 7), "{order}");
    }
    let next = page(&format!("/api/v1/boxes/{ME}/INBOX?limit=3"))["next_cursor"].clone();
    let next = next.as_str().unwrap();
    for elsewhere in [
        format!("/api/v1/boxes/did:web:bob/INBOX?cursor={next}"),
        format!("/api/v1/boxes/{ME}/OUTBOX?cursor={next}"),
        format!("/api/v1/boxes/{ME}/INBOX?order=oldest&cursor={next}"),
        format!("/api/v1/contacts?cursor={next}"),
    ] {
        assert_eq!(courier.get(&elsewhere).refused(400), "bad_parameter", "{elsewhere}");
    }
}

#[test]
fn events_stream_and_resume_where_they_broke_off() {
    let courier = Courier::start();
    courier.deliver(ME, "before");
    let last = courier.get("/api/v1/events").ok()["last"].as_i64().unwrap();
    let open = |resume: Option<i64>| {
        let mut stream = TcpStream::connect(courier.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let resume = resume.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        let head = format!(
            "GET /api/v1/events HTTP/1.1\r\nHost: localhost:{}\r\nAuthorization: Bearer {}\r\n\
             Accept: text/event-stream\r\n{resume}\r\n",
            courier.address.port(),
            courier.token
        );
        stream.write_all(head.as_bytes()).unwrap();
        BufReader::new(stream)
    };
    let next = |stream: &mut BufReader<TcpStream>| -> Value {
        loop {
            let mut line = String::new();
            assert_ne!(stream.read_line(&mut line).unwrap(), 0, "the stream ended");
            if let Some(data) = line.trim_end().strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    };
    // From the end: only what happens from now on.
    let mut live = open(None);
    let mut head = [0; 15];
    live.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 200 OK");
    courier.deliver(ME, "after");
    let event = next(&mut live);
    assert_eq!(
        (event["kind"].as_str(), event["seq"].as_i64()),
        (Some("dispatched"), Some(last + 1))
    );
    // From where it broke off: nothing is missed, nothing comes twice.
    courier.deliver(ME, "while away");
    let mut resumed = open(Some(last));
    assert_eq!(next(&mut resumed)["seq"].as_i64(), Some(last + 1));
    assert_eq!(next(&mut resumed)["seq"].as_i64(), Some(last + 2));
}

#[test]
fn attachments_are_kept_by_their_hash() {
    let courier = Courier::start();
    let put = |courier: &Courier, kind: &str, bytes: &[u8]| {
        courier.send("POST", "/api/v1/objects", &[("Content-Type", kind)], bytes).unwrap()
    };
    // The second is sent in parts.
    let stored = [200_000_u32, 3_000_001].map(|size| {
        let bytes: Vec<u8> = (0..size).map(|n| n.to_le_bytes()[0]).collect();
        let kept = put(&courier, "application/octet-stream", &bytes);
        assert_eq!(kept.status, 201);
        (format!("/api/v1/objects/{}", kept.json()["id"].as_str().unwrap()), bytes)
    });
    let courier = courier.restart();
    for (path, bytes) in &stored {
        let answer = courier.get(path);
        assert!(answer.bytes == *bytes, "{} bytes of {}", answer.bytes.len(), bytes.len());
        assert!(answer.headers.contains("attachment") && answer.headers.contains("nosniff"));
        let length = header(&answer.headers, "content-length").unwrap();
        assert_eq!(length, bytes.len().to_string());
    }
    assert_eq!(put(&courier, "image/png", b"x").refused(415), "wrong_type");

    // Damaged bytes are an error, or a response without its end.
    let [(small, _), (large, _)] = &stored;
    for path in [small, large] {
        let hex = path.rsplit(':').next().unwrap();
        let file = courier.home().join("store/blobs").join(&hex[..2]).join(hex);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[100] ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    assert_eq!(courier.get(small).refused(500), "damaged");
    let cut = courier.send("GET", large, &[], b"").unwrap_err();
    assert_eq!(cut.kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(courier.get("/health").status, 200);
}

#[test]
fn figures_are_there_for_prometheus() {
    let courier = Courier::start();
    courier.deliver(ME, "count me");
    courier.post("/api/v1/dispatch", &json!({"msg": chat("did:web:ann", ME, "count me")})).ok();
    let text = courier.get("/metrics").text();
    for line in [
        "monoco_dispatches_total{outcome=\"delivered\"} 1",
        "monoco_dispatches_total{outcome=\"duplicate\"} 1",
        "monoco_records{box=\"INBOX\",state=\"UNREAD\"} 1",
        "monoco_http_requests_total{route=\"/api/v1/dispatch\",status=\"200\"} 2",
        "monoco_store_writable 1",
        "# TYPE monoco_dispatches_total counter",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
}

#[test]
fn slow_and_idle_callers_do_not_hold_up_the_others() {
    let courier = Courier::start();
    // Five hundred callers that never finish their request.
    let idle: Vec<_> = (0..500)
        .map(|n| {
            let mut stream = TcpStream::connect(courier.address).unwrap();
            let half = if n % 2 == 0 { "GET /health HT" } else { "" };
            stream.write_all(half.as_bytes()).unwrap();
            stream
        })
        .collect();
    courier.deliver(ME, "through the crowd");
    assert_eq!(courier.get("/health").ok()["status"], "ok");
    drop(idle);
}
