//! Tags and threads of records, reasons of receipts, and how long deliveries are retried.

use serde_json::{Value, json};

use crate::common::{Courier, ME, wait_for};

fn record_ids(page: &Value) -> Vec<&str> {
    let records = page["records"].as_array().unwrap().iter();
    records.map(|record| record["record_id"].as_str().unwrap()).collect()
}

#[test]
fn records_are_tagged_and_listed_by_tag_and_thread() {
    let courier = Courier::start();
    let plain = courier.deliver(ME, "plain");
    let mut msg = crate::common::chat("did:web:ann", ME, "in a thread");
    msg["thread"] = json!({"topic": "release"});
    let answer = courier.post("/api/v1/dispatch", &json!({"msg": msg})).ok();
    let threaded = answer["delivered"][0]["record_id"].as_str().unwrap().to_owned();

    courier.cli(&["center", "tag", &plain, "--add", "starred", "--add", "later"]).ok();
    courier.cli(&["center", "tag", &plain[..16], "--remove", "later"]).ok();
    let list = |filter: &str| courier.get(&format!("/api/v1/boxes/{ME}/INBOX?{filter}"));
    assert_eq!(record_ids(&list("tag=starred").ok()), [&plain]);
    assert!(record_ids(&list("tag=later").ok()).is_empty());
    let page = list("thread_key=release&state=UNREAD").ok();
    assert_eq!(record_ids(&page), [&threaded]);
    assert_eq!(page["records"][0]["thread_key"], "release");
    let shown = courier.cli(&["center", "list", "--tag", "starred", "--format", "id"]).ok();
    assert_eq!(shown.trim(), plain);

    let tags = format!("/api/v1/records/{plain}/tags");
    for bad in ["", "two words", "group:did:web:x"] {
        assert_eq!(courier.post(&tags, &json!({"add": [bad]})).status, 422, "{bad:?}");
    }
    let many: Vec<_> = (0..40).map(|n| format!("t{n}")).collect();
    assert_eq!(courier.post(&tags, &json!({"add": many})).refused(422), "invalid_tags");
    let outbox = courier.get("/api/v1/boxes/did:msgtunnel:stub/TUNNEL_OUTBOX?tag=starred");
    assert!(outbox.status >= 400, "deliveries have no tags");
}

#[test]
fn receipt_has_the_reason_of_its_reader() {
    let courier = Courier::start();
    let group = "did:web:team";
    courier.put(&format!("/api/v1/groups/{group}"), &json!({"name": "Team"})).ok();
    let msg = json!({"from": group, "source": "did:web:ann", "to": [group], "kind": "group_msg",
                     "content": {"content": "lunch?"}});
    let answer = courier.post("/api/v1/dispatch", &json!({"msg": msg})).ok();
    let msg_id = answer["msg_id"].as_str().unwrap();
    let receipts = format!("/api/v1/groups/{group}/receipts");
    let body = json!({"msg_id": msg_id, "reader": "did:web:bob", "state": "REJECTED",
                      "reason": "not today"});
    courier.put(&receipts, &body).ok();
    let list = courier.get(&format!("{receipts}?msg_id={msg_id}")).ok();
    assert_eq!(list["receipts"][0]["reason"], "not today");
}

#[test]
fn delivery_is_given_up_after_the_configured_attempts_and_shows_code_and_time() {
    let courier = Courier::start_configured(
        "courier:\n  deliveries: { max_attempts: 1, give_up_after: 7d }\n",
    );
    // A tunnel of the user's own, in any language.
    let tunnel = json!({"provider": "custom", "strangers": "accept", "idempotent": false});
    courier.put("/api/v1/tunnels/own", &tunnel).ok();
    let send = |text: &str| {
        let target = "did:msgtunnel:bob.user.own";
        let msg = crate::common::chat(ME, target, text);
        let sent = courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
        let id = sent["deliveries"][0]["record_id"].as_str().unwrap().to_owned();
        let outbox = sent["deliveries"][0]["plan"]["tunnel_did"].as_str().unwrap().to_owned();
        let leased =
            courier.post(&format!("/api/v1/boxes/{outbox}/TUNNEL_OUTBOX/next"), &json!({}));
        (id, leased.ok()["record"]["epoch"].as_i64().unwrap())
    };
    let report =
        |id: &str, body: Value| courier.post(&format!("/api/v1/deliveries/{id}/report"), &body);

    let (id, epoch) = send("one");
    let failed = json!({"ok": false, "error": "busy", "error_code": "E429", "retryable": true,
                        "epoch": epoch});
    let record = report(&id, failed).ok();
    assert_eq!(record["state"], "DEAD", "one attempt only");
    assert_eq!(record["delivery"]["failure"]["error_code"], "E429");
    let (id, epoch) = send("two");
    let record = report(&id, json!({"ok": true, "external_msg_id": "x1", "epoch": epoch})).ok();
    assert!(record["delivery"]["delivered_at"].as_str().unwrap().ends_with('Z'), "{record:#}");
}

/// A tunnel of a user's own program resumes after the parts that it has reported.
#[test]
fn external_tunnel_reports_parts_and_resumes_after_them() {
    let courier = Courier::start();
    let tunnel = json!({"provider": "custom", "strangers": "accept", "idempotent": false});
    courier.put("/api/v1/tunnels/own", &tunnel).ok();
    let msg = crate::common::chat(ME, "did:msgtunnel:bob.user.own", "a long message");
    courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
    let next = "/api/v1/boxes/did:msgtunnel:own/TUNNEL_OUTBOX/next";
    let leased = courier.post(next, &json!({})).ok()["record"].clone();
    let report = format!("/api/v1/deliveries/{}/report", leased["record_id"].as_str().unwrap());
    let part = |part: u32, id: &str, epoch: &Value| {
        let body = json!({"ok": true, "part": part, "external_msg_id": id, "epoch": epoch});
        courier.post(&report, &body)
    };
    let epoch = &leased["epoch"];
    assert_eq!(part(1, "m-1", epoch).refused(409), "unexpected_part");
    let record = part(0, "m-0", epoch).ok();
    assert_eq!(record["state"], "SENDING", "{record:#}");
    assert_eq!(record["delivery"]["parts"][0]["external_msg_id"], "m-0", "{record:#}");
    let failed = json!({"ok": false, "part": 1, "error": "busy", "retryable": true});
    assert_eq!(courier.post(&report, &failed).status, 422);
    let failed = json!({"ok": false, "error": "busy", "retryable": true, "epoch": epoch});
    courier.post(&report, &failed).ok();
    let again = wait_for(|| {
        let answer = courier.post(next, &json!({}));
        if answer.status == 200 { Ok(answer.ok()["record"].clone()) } else { Err(answer.text()) }
    });
    assert_eq!(again["delivery"]["parts"].as_array().unwrap().len(), 1, "{again:#}");
    let last = json!({"ok": true, "external_msg_id": "m-1", "epoch": again["epoch"]});
    let sent = courier.post(&report, &last).ok();
    assert_eq!(sent["state"], "SENT");
    let parts: Vec<_> = sent["delivery"]["parts"].as_array().unwrap().iter().collect();
    assert_eq!(parts.len(), 2, "{sent:#}");
    for id in ["m-0", "m-1"] {
        assert_eq!(courier.get(&format!("/api/v1/trace/{id}")).ok()["msg_id"], sent["msg_id"]);
    }
}
