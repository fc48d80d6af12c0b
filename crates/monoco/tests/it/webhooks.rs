//! The webhook door: who is believed, what is kept, and what is answered.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Courier, PATIENCE, header, raw, until};
use crate::webhook_peer::{
    Receiver, SECRET, body, config, courier, hmac_hex, seconds, signed, signed_at,
};

#[test]
fn a_burst_becomes_one_mail_that_keeps_every_message() {
    let courier = courier(&config(300));
    for n in 1..=5 {
        let mut said =
            body(&format!("evt-{n}"), "room-7", ["ann", "bob"][n % 2], &format!("line {n}"));
        said["timestamp"] = json!(format!("2026-02-06T20:45:0{n}Z"));
        said["reply_to"] = json!(format!("evt-{}", n - 1));
        said["mentions"] = json!([format!("@user-{n}")]);
        assert_eq!(courier.push(&said).ok()["stored"], 1);
    }
    let mails = courier.mails(1);
    assert_eq!(mails[0]["messages"], 5);
    assert_eq!(mails[0]["trust"], "untrusted");
    let id = mails[0]["id"].as_str().unwrap();
    let whole = courier.get(&format!("/api/v1/messages/{id}")).ok();
    let data = &whole["msg"]["content"]["machine"]["data"];
    for n in 1..=5 {
        let message = &data["messages"][n - 1];
        assert_eq!(message["id"], format!("evt-{n}"));
        assert_eq!(message["at"], format!("2026-02-06T20:45:0{n}.000Z"));
        assert_eq!(message["from"]["id"], ["ann", "bob"][n % 2]);
        assert_eq!(message["reply_to"], format!("evt-{}", n - 1));
        assert_eq!(message["mentions"], json!([format!("@user-{n}")]));
        assert_eq!(message["text"], format!("line {n}"));
    }
    // Any message's own id leads to the Mail.
    let trace = courier.get("/api/v1/trace/evt-3").ok();
    assert_eq!(trace["mail"]["id"], id);
    assert_eq!(trace["messages"].as_array().unwrap().len(), 5);
}

#[test]
fn sessions_threads_and_pauses_are_not_merged() {
    let courier = courier(&config(200));
    courier.hears("a1", "room-a", "ann", "one");
    courier.hears("b1", "room-b", "ann", "two");
    let mut threaded = body("a2", "room-a", "ann", "three");
    threaded["session"]["thread_key"] = json!("t-1");
    assert_eq!(courier.push(&threaded).ok()["stored"], 1);
    courier.mails(3);
    courier.hears("a3", "room-a", "ann", "much later");
    courier.mails(4);
}

/// P8: the predecessor's window was 5 ms instead of 5 s, so almost nothing was merged.
#[test]
fn the_window_is_as_long_as_it_says() {
    let courier = courier(&config(3000));
    courier.hears("1", "room", "ann", "one");
    let first = Instant::now();
    courier.until("/health", |health| health["mailbox"]["waiting_messages"] == 1);
    while first.elapsed() < Duration::from_millis(700) {
        let mails = courier.get("/api/v1/messages").ok();
        assert_eq!(mails["messages"], json!([]), "after {:?}", first.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    courier.hears("2", "room", "bob", "two");
    assert_eq!(courier.mails(1)[0]["messages"], 2);
    assert!(first.elapsed() >= Duration::from_millis(3600), "{:?}", first.elapsed());
}

/// P9, and B31: once, however often, in whatever order, and across restarts.
#[test]
fn a_webhook_replayed_ten_times_across_restarts_gives_one_mail() {
    let mut courier = courier(&config(100));
    let said = body("evt-1", "room", "ann", "only once");
    for round in 0..10 {
        let answer = courier.push(&said).ok();
        assert_eq!(answer["stored"], i32::from(round == 0), "{round}");
        assert_eq!(answer["duplicate"], round != 0, "{round}");
        if round % 3 == 1 {
            courier = courier.restart();
        }
        if round == 5 {
            courier.mails(1);
        }
    }
    let mails = courier.mails(1);
    assert_eq!(mails[0]["messages"], 1);
    let again = courier.restart();
    assert_eq!(again.mails(1)[0]["id"], mails[0]["id"]);
}

#[test]
fn what_is_kept_and_not_merged_survives_a_kill_and_is_merged_after_it() {
    let mut courier = courier(&config(60_000));
    courier.hears("evt-1", "room", "ann", "before the kill");
    courier.kill();
    crate::webhook_peer::configure(courier.home(), &config(100));
    // Its window keeps its own end; the next message joins or follows it.
    let mut courier = courier.restart();
    courier.until("/health", |health| health["mailbox"]["waiting_messages"] == 1);
    // A graceful stop closes windows, and loses none.
    assert!(courier.cli(&["courier", "stop"]).code == 0);
    courier.wait();
    let courier = courier.restart();
    assert_eq!(courier.mails(1)[0]["preview"], "before the kill");
}

#[test]
fn who_is_not_verified_is_not_heard() {
    let courier = courier(&config(100));
    let said = body("evt-1", "room", "eve", "let me in").to_string();
    let now = seconds();
    let good = signed(SECRET, said.as_bytes());
    let without =
        |name: &str| good.iter().filter(|(key, _)| key != name).cloned().collect::<Vec<_>>();
    let with = |name: &str, value: &str| {
        let mut headers = without(name);
        headers.push((name.to_owned(), value.to_owned()));
        headers
    };
    let other = "whsec_b3RoZXIgc2VjcmV0IG9mIHRoZSB0ZXN0cw==";
    let wrong = [
        ("no signature", without("webhook-signature")),
        ("no timestamp", without("webhook-timestamp")),
        ("no id", without("webhook-id")),
        ("an empty signature", with("webhook-signature", "")),
        ("no version", with("webhook-signature", "v1,")),
        ("another version", with("webhook-signature", "v0,AAAA")),
        ("another id", with("webhook-id", "msg_other")),
        ("another time", with("webhook-timestamp", &(now - 1).to_string())),
        ("another secret", signed(other, said.as_bytes())),
        ("another body", signed(SECRET, b"{}")),
        ("301 s ago", signed_at(SECRET, said.as_bytes(), now - 301)),
        ("301 s ahead", signed_at(SECRET, said.as_bytes(), now + 310)),
    ];
    let before = courier.get("/api/v1/events?limit=1000").ok();
    for (what, headers) in wrong {
        let answer = raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, said.as_bytes());
        assert_eq!(answer.unwrap().refused(401), "unverified", "{what}");
    }
    assert_eq!(courier.get("/api/v1/events?limit=1000").ok(), before, "nothing was kept");
    let metrics = courier.get("/metrics").text();
    for count in [r#"{tunnel="ci",reason="unverified"} 10"#, r#"{tunnel="ci",reason="stale"} 2"#] {
        assert!(metrics.contains(&format!("monoco_webhooks_rejected_total{count}")), "{metrics}");
    }
    // Any peer can send such requests: they say nothing about the tunnel.
    let health = |courier: &Courier| courier.get("/health").ok()["adapters"]["ci"].clone();
    let tunnel = health(&courier);
    assert_eq!((&tunnel["status"], &tunnel["last_error"]), (&json!("quiet"), &Value::Null));
    courier.hears("evt-2", "room", "ann", "hello");
    assert_eq!(health(&courier)["status"], "hearing");
}

#[test]
fn tunnel_is_deaf_when_authentic_requests_cannot_be_read() {
    let courier = courier(&config(100));
    let tunnel = || courier.get("/health").ok()["adapters"]["ci"].clone();
    for expected in ["quiet", "quiet", "deaf"] {
        let headers = signed(SECRET, b"hello");
        let answer = raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, b"hello");
        assert_eq!(answer.unwrap().refused(422), "unreadable");
        assert_eq!(tunnel()["status"], expected);
    }
    assert!(tunnel()["last_error"].is_string());
    courier.hears("evt-1", "room", "ann", "hello");
    assert_eq!(tunnel()["status"], "hearing");
}

#[test]
fn what_can_not_be_read_gets_a_plain_answer_and_is_not_kept() {
    let courier = courier(&config(100));
    for (what, said) in [
        ("nothing", ""),
        ("no JSON", "hello"),
        ("breaks off", r#"{"id": "evt-1", "text""#),
        ("two values", "{} {}"),
    ] {
        let headers = signed(SECRET, said.as_bytes());
        let answer = raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, said.as_bytes());
        assert_eq!(answer.unwrap().refused(422), "unreadable", "{what}");
    }
    let huge = vec![b' '; 9 << 20];
    let headers = signed(SECRET, &huge);
    let answer = raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, &huge).unwrap();
    assert_eq!(answer.refused(413), "too_large");
    assert_eq!(courier.get("/health").ok()["mailbox"]["waiting_messages"], 0);
}

/// Every body here is JSON, and the id in `webhook-id` is signed.
#[test]
fn verified_json_is_never_rejected_and_can_be_read_verbatim() {
    let courier = courier(&config(50));
    let bodies = [
        r#"{"id": 820982911946154508, "total_price": "199.00", "line_items": [{"id": 466157049219000001}]}"#.to_owned(),
        r#"{"id": 123456789012345678901234567890, "text": {"de": "bezahlt"}}"#.to_owned(),
        r#"{"id": "1", "id": "2", "text": ["\ud800"]}"#.to_owned(),
        r#"{"id": {"a": 1}, "session": {"id": ["r"], "type": 7}, "from": false, "text": "x"}"#.to_owned(),
        r#"{"id": "a", "timestamp": "yesterday", "mentions": 1, "attachments": [{"base64": "*"}]}"#.to_owned(),
        format!("{}1{}", "[".repeat(10_000), "]".repeat(10_000)),
        format!(r#"{{"id": "x", "text": "{}"}}"#, "y".repeat(2 << 20)),
        "\"just a text\"".to_owned(),
    ];
    for (n, body) in bodies.iter().enumerate() {
        let headers = signed(SECRET, body.as_bytes());
        let answer = raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, body.as_bytes());
        let start: String = body.chars().take(60).collect();
        assert_eq!(answer.unwrap().ok()["stored"], 1, "{start}");
        let mail = courier.mails(n + 1).pop().unwrap();
        let id = mail["id"].as_str().unwrap();
        let whole = courier.get(&format!("/api/v1/messages/{id}")).ok();
        let artifacts = &whole["msg"]["content"]["machine"]["data"]["mail"]["artifacts"];
        let artifacts = artifacts.as_array().unwrap();
        let payload = artifacts.iter().find(|file| file["name"] == "payload.json").unwrap();
        let hash = payload["hash"].as_str().unwrap();
        assert_eq!(courier.get(&format!("/api/v1/objects/{hash}")).text(), *body, "{start}");
    }
    let trace = courier.get("/api/v1/trace/820982911946154508").ok();
    let text = trace["mail"]["preview"].as_str().unwrap();
    assert!(text.contains("**id**: 820982911946154508"), "{text}");
}

/// GitHub signs the body alone, so a copy of a request can have another delivery id, or none.
#[test]
fn copied_request_with_another_id_is_a_duplicate() {
    let secret = "It's a Secret to Everybody";
    let config = format!(
        "courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    \
         hub: {{ provider: webhook, verify: github, secret: \"{secret}\" }}\n    \
         own: {{ provider: webhook, verify: {{ header: X-Sig }}, secret: \"{secret}\" }}\n"
    );
    let mut courier = courier(&config);
    let body = br#"{"zen": "Keep it logically awesome.", "hook_id": 7}"#;
    let signature = hmac_hex(secret, body);
    for (tunnel, header, signature) in [
        ("hub", "X-Hub-Signature-256", format!("sha256={signature}")),
        ("own", "X-Sig", signature.clone()),
    ] {
        for (n, id) in [Some("a-1"), Some("a-1"), Some("a-2"), None, Some("a-3")].iter().enumerate()
        {
            let mut headers = vec![
                ("Host".to_owned(), "hooks.test".to_owned()),
                (header.to_owned(), signature.clone()),
                ("X-GitHub-Event".to_owned(), "ping".to_owned()),
            ];
            headers.extend(id.map(|id| ("X-GitHub-Delivery".to_owned(), id.to_owned())));
            let path = format!("/webhooks/{tunnel}");
            let answer = raw(courier.webhooks(), "POST", &path, &headers, body).unwrap().ok();
            assert_eq!(answer["stored"], i32::from(n == 0), "{tunnel} {id:?}");
            assert_eq!(answer["duplicate"], n != 0, "{tunnel} {id:?}");
            if n == 3 {
                courier = courier.restart();
            }
        }
    }
    courier.mails(2);
}

#[test]
fn unverified_tunnel_accepts_only_programs_on_this_machine() {
    let courier = courier(
        "courier:\n  debounce: { window_ms: 50 }\n  adapters:\n    \
         open: { provider: webhook, verify: none, allow_unverified: true }\n",
    );
    let push = |n: u32, name: &str, value: &str| {
        let body = json!({"id": n, "text": "hi"}).to_string();
        let mut headers = vec![(name.to_owned(), value.to_owned())];
        if name != "Host" {
            headers.push(("Host".to_owned(), "localhost:8645".to_owned()));
        }
        raw(courier.webhooks(), "POST", "/webhooks/open", &headers, body.as_bytes()).unwrap()
    };
    assert_eq!(push(1, "Host", "127.0.0.1:8645").ok()["stored"], 1);
    for (name, value) in [
        ("X-Forwarded-For", "203.0.113.9"),
        ("Forwarded", "for=203.0.113.9"),
        ("Via", "1.1 proxy"),
        ("Origin", "https://example.com"),
        ("Host", "hooks.example.com"),
    ] {
        assert_eq!(push(2, name, value).refused(401), "unverified", "{name}");
    }
    courier.mails(1);
}

/// An alert that fires again hours later has the same body.
#[test]
fn body_without_an_id_is_a_duplicate_only_for_a_while() {
    let config = format!(
        "courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    \
         own: {{ provider: webhook, verify: {{ header: X-Sig }}, secret: \"{SECRET}\", dedupe_s: 2 }}\n"
    );
    let courier = courier(&config);
    let body = br#"{"alert": "disk full"}"#;
    let headers = [
        ("Host".to_owned(), "hooks.test".to_owned()),
        ("X-Sig".to_owned(), hmac_hex(SECRET, body)),
    ];
    let push = || raw(courier.webhooks(), "POST", "/webhooks/own", &headers, body).unwrap().ok();
    assert_eq!(push()["stored"], 1);
    assert_eq!(push()["duplicate"], true);
    until("the body counts as new", || push()["stored"] == 1);
    courier.mails(2);
}

/// T6, P12: the door that gets exposed has nothing else behind it.
#[test]
fn nothing_else_is_behind_the_webhook_door() {
    let courier = courier(&config(100));
    let token = ("Authorization".to_owned(), format!("Bearer {}", courier.token));
    let host = ("Host".to_owned(), format!("localhost:{}", courier.webhooks().port()));
    let json = ("Content-Type".to_owned(), "application/json".to_owned());
    for (method, path) in [
        ("GET", "/health"),
        ("GET", "/api/v1/messages"),
        ("GET", "/api/openapi.json"),
        ("POST", "/api/v1/dispatch"),
        ("POST", "/webhooks/stub"),
        ("POST", "/webhooks/none"),
        ("POST", "/webhooks/"),
        ("POST", "/webhooks/ci/../../api/v1/dispatch"),
        ("POST", "/registry/register"),
    ] {
        let headers = [host.clone(), token.clone(), json.clone()];
        let answer = raw(courier.webhooks(), method, path, &headers, b"{}").unwrap();
        assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
    }
    let answer = raw(courier.webhooks(), "GET", "/webhooks/ci", &[host], b"").unwrap();
    assert_eq!(answer.status, 405);
}

/// P13: one slow client does not stop the others.
#[test]
fn somebody_slow_does_not_hold_up_the_others() {
    let courier = courier(&config(100));
    let slow: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(courier.webhooks()).unwrap();
            stream.write_all(b"POST /webhooks/ci HTTP/1.1\r\nHost: x\r\n").unwrap();
            stream
        })
        .collect();
    for n in 0..20 {
        courier.hears(&format!("evt-{n}"), "room", "ann", "quick");
    }
    for mut stream in slow {
        stream.set_nonblocking(true).unwrap();
        let waiting = stream.read(&mut [0; 1]).unwrap_err();
        assert_eq!(waiting.kind(), std::io::ErrorKind::WouldBlock, "it is still let wait");
    }
}

#[test]
fn a_tunnel_without_a_secret_does_not_start() {
    for secret in ["", "secret: ''", "secret: '${NOT_SET}'", "secret: whsec_c2hvcnQ="] {
        let dir = tempfile::tempdir().unwrap();
        let entry = format!("ci: {{ provider: webhook, verify: standard, {secret} }}");
        crate::webhook_peer::configure(
            dir.path(),
            &format!("courier:\n  adapters:\n    {entry}\n"),
        );
        let mut command = std::process::Command::new(crate::common::binary());
        command.args(["courier", "start", "--foreground", "--port", "0"]);
        match Courier::try_spawn(dir.path(), &mut command) {
            Err(said) => assert!(said.contains("secret") || said.contains("NOT_SET"), "{said}"),
            Ok(courier) => {
                let health = courier.get("/health").ok();
                assert_eq!(health["adapters"]["ci"]["status"], "down", "{secret}");
                let said = health["adapters"]["ci"]["last_error"].as_str().unwrap();
                assert!(said.contains("secret"), "{said}");
            }
        }
    }
}

#[test]
fn attachments_come_back_by_their_hash() {
    let courier = courier(&config(100));
    let mut said = body("evt-1", "room", "ann", "see the log");
    said["attachments"] =
        json!([{"name": "../../log.txt", "mime_type": "text/plain", "base64": "aGVsbG8="}]);
    assert_eq!(courier.push(&said).ok()["stored"], 1);
    let mail = &courier.mails(1)[0];
    let id = mail["id"].as_str().unwrap();
    let whole = courier.get(&format!("/api/v1/messages/{id}")).ok();
    let artifact = &whole["msg"]["content"]["machine"]["data"]["mail"]["artifacts"][0];
    assert_eq!(artifact["name"], "../../log.txt");
    assert_eq!(artifact["size"], 5);
    let hash = artifact["hash"].as_str().unwrap();
    assert_eq!(courier.get(&format!("/api/v1/objects/{hash}")).text(), "hello");
}

#[test]
fn strangers_meet_the_tunnels_rule() {
    let config = |rule: &str| {
        format!(
            "courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    \
             ci: {{ provider: webhook, verify: standard, secret: '{SECRET}', strangers: {rule} }}\n"
        )
    };
    let shut = courier(&config("drop"));
    assert_eq!(shut.push(&body("1", "room", "eve", "hi")).ok()["stored"], 0);
    let wary = courier(&config("hold"));
    assert_eq!(wary.push(&body("1", "room", "eve", "hi")).ok()["stored"], 1);
    wary.until("/api/v1/events?limit=1000", |events| events.to_string().contains("merged"));
    assert_eq!(wary.mails(0).len(), 0, "held Mails are not listed");
    // When a sender is let in, its held messages are delivered.
    let eve = "did:msgtunnel:eve.user.ci";
    wary.put(&format!("/api/v1/contacts/{eve}"), &json!({"level": "friend"})).ok();
    assert_eq!(wary.mails(1)[0]["preview"], "hi");
}

/// A tunnel that answers to a receiver on loopback.
fn answering(url: &str, more: &str) -> String {
    format!(
        "courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    ci: {{ provider: webhook, \
         verify: standard, secret: '{SECRET}', send_to: '{url}'{more} }}\n"
    )
}

fn send(courier: &Courier, to: &str) -> String {
    let msg = json!({
        "from": "did:monoco:me", "to": [format!("did:msgtunnel:{to}.group.ci")], "kind": "chat",
        "content": {"content": format!("to {to}")},
    });
    let answer = courier.post("/api/v1/post_send", &json!({"msg": msg})).ok();
    answer["deliveries"][0]["record_id"].as_str().unwrap().to_owned()
}

/// Waits until a delivery has ended as it should.
fn ends(courier: &Courier, delivery: &str, state: &str) -> serde_json::Value {
    let path = format!("/api/v1/records/{delivery}");
    courier.until(&path, |record| record["state"] == state)
}

#[test]
fn a_busy_receiver_is_asked_again_with_the_same_key() {
    let receiver = Receiver::start();
    let courier = courier(&answering(&receiver.url("/hook"), ", allow_private: true"));
    receiver.will("429 Too Many Requests\r\nRetry-After: 2");
    receiver.will("503 Service Unavailable");
    let asked = Instant::now();
    let delivery = send(&courier, "room-7");
    let tries = [receiver.next(), receiver.next(), receiver.next()];
    assert!(asked.elapsed() >= Duration::from_secs(2), "Retry-After counts");
    for name in ["idempotency-key", "webhook-id"] {
        let keys: Vec<_> = tries.iter().map(|got| &got.headers[name]).collect();
        assert!(keys.iter().all(|key| *key == keys[0]), "{name}: {keys:?}");
    }
    assert!(tries[0].headers["webhook-signature"].as_str().unwrap().starts_with("v1,"));
    assert_eq!(ends(&courier, &delivery, "SENT")["attempts"], 3);
}

#[test]
fn a_refusal_is_not_argued_with_and_a_redirect_is_not_followed() {
    let receiver = Receiver::start();
    let courier = courier(&answering(&receiver.url("/hook"), ", allow_private: true"));
    for answer in ["400 Bad Request", "410 Gone", "302 Found\r\nLocation: http://127.0.0.1:1/"] {
        receiver.will(answer);
        let delivery = send(&courier, &answer[..3]);
        let dead = ends(&courier, &delivery, "DEAD");
        receiver.next();
        assert_eq!(dead["attempts"], 1);
        let why = dead["delivery"]["failure"]["detail"].as_str().unwrap();
        assert!(why.contains(&answer[..3]), "{why}");
        assert!(receiver.is_quiet(), "asked once");
    }
}

/// T9: nothing goes to addresses of this machine or its network that was not meant to.
#[test]
fn nothing_is_sent_into_the_own_network_by_accident() {
    let receiver = Receiver::start();
    let port = receiver.url("").rsplit(':').next().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433"] {
        for scheme in ["http", "https"] {
            let dir = tempfile::tempdir().unwrap();
            let config = answering(&format!("{scheme}://{host}:{port}/hook"), "");
            crate::webhook_peer::configure(dir.path(), &config);
            let mut command = std::process::Command::new(crate::common::binary());
            command.args(["courier", "start", "--foreground", "--port", "0"]);
            // What the address itself gives away is refused with the config, and the
            // rest when it is about to be reached.
            let courier = match Courier::try_spawn(dir.path(), &mut command) {
                Ok(courier) => courier,
                Err(why) => {
                    assert!(why.contains("allow_private"), "{host}: {why}");
                    continue;
                }
            };
            let dead = ends(&courier, &send(&courier, "room"), "DEAD");
            let why = dead["delivery"]["failure"]["detail"].as_str().unwrap();
            assert!(why.contains("allow_private"), "{host}: {why}");
        }
    }
    assert!(receiver.is_quiet());
}

/// P11: a link in a message is data, and is not followed.
#[test]
fn a_link_to_an_attachment_is_kept_and_not_followed() {
    let receiver = Receiver::start();
    let courier = courier(&config(50));
    let mut said = body("evt-1", "room", "eve", "look here");
    said["attachments"] =
        json!([{"name": "x.png", "mime_type": "image/png", "url": receiver.url("/x.png")}]);
    assert_eq!(courier.push(&said).ok()["stored"], 1);
    let mail = courier.mails(1)[0]["id"].as_str().unwrap().to_owned();
    let whole = courier.get(&format!("/api/v1/messages/{mail}")).ok();
    let artifact = &whole["msg"]["content"]["machine"]["data"]["mail"]["artifacts"][0];
    assert_eq!(artifact["url"], receiver.url("/x.png"));
    assert_eq!(artifact["hash"], json!(null));
    assert!(receiver.is_quiet());
}

/// P14, T14: secrets are in the config and nowhere else, and what a provider sends
/// along without being asked for is in the attached body, and not in the Mail.
#[test]
fn secrets_stay_where_they_are() {
    let receiver = Receiver::start();
    let canary = "Y2FuYXJ5LXNlY3JldC1vZi10aGUtdGVzdHMh";
    let url = receiver.url("/hook?token=canary-of-the-url");
    let text = format!(
        "courier:\n  debounce: {{ window_ms: 50 }}\n  adapters:\n    ci: {{ provider: webhook, \
         verify: standard, secret: whsec_{canary}, send_to: '{url}', allow_private: true }}\n"
    );
    let mut courier = courier(&text);
    let mut said = body("evt-1", "room", "ann", "hello");
    said["sessionWebhook"] = json!("https://oapi.example.com/send?session=canary-of-the-body");
    let said = said.to_string();
    let headers = signed(&format!("whsec_{canary}"), said.as_bytes());
    raw(courier.webhooks(), "POST", "/webhooks/ci", &headers, said.as_bytes()).unwrap().ok();
    courier.mails(1);
    receiver.will("400 Bad Request");
    ends(&courier, &send(&courier, "room"), "DEAD");
    receiver.next();
    let shown = format!(
        "{}{}{}{}",
        courier.get("/health").text(),
        courier.get("/metrics").text(),
        courier.get("/api/v1/events?limit=1000").text(),
        courier.cli(&["courier", "status"]).ok(),
    );
    assert!(courier.cli(&["courier", "stop"]).code == 0);
    courier.wait();

    let mut found = Vec::new();
    let mut dirs = vec![courier.home().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            let holds = |word: &str| bytes.windows(word.len()).any(|part| part == word.as_bytes());
            let words = [canary, "canary-secret", "canary-of-the-url", "canary-of-the-body"];
            let config = path.ends_with("courier/config.yaml");
            let attachment = path.iter().any(|part| part == "blobs" || part == "dropzone");
            let expected = |word: &str| config || attachment && word == "canary-of-the-body";
            found.extend(
                words.iter().filter(|w| !expected(w) && holds(w)).map(|w| (path.clone(), *w)),
            );
        }
    }
    assert_eq!(found, []);
    assert!(!shown.contains("canary"), "{shown}");
}

#[test]
fn request_without_a_signature_is_rejected_before_its_body_is_read() {
    let courier = courier(&config(100));
    let mut stream = TcpStream::connect(courier.webhooks()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The body is announced and not sent.
    stream
        .write_all(b"POST /webhooks/ci HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        .unwrap();
    let started = Instant::now();
    let mut answer = [0; 64];
    let read = stream.read(&mut answer).unwrap();
    assert!(answer[..read].starts_with(b"HTTP/1.1 401 "), "{answer:?}");
    assert!(started.elapsed() < Duration::from_secs(4), "it waited for the body");
}

#[test]
fn tunnel_over_its_daily_quota_is_answered_429() {
    let courier = courier(&format!(
        "courier:\n  adapters:\n    ci: {{ provider: webhook, verify: standard, secret: '{SECRET}', \
         max_mb_per_day: 1 }}\n"
    ));
    let long = "x".repeat(400_000);
    for n in 0..2 {
        assert_eq!(
            courier.push(&body(&format!("evt-{n}"), "room", "ann", &long)).ok()["stored"],
            1
        );
    }
    let answer = courier.push(&body("evt-2", "room", "ann", &long));
    assert_eq!(answer.refused(429), "over_quota");
    let wait: u64 = header(&answer.headers, "retry-after").unwrap().parse().unwrap();
    assert!((1..86_400).contains(&wait), "{wait}");
    // Small messages still fit.
    courier.hears("evt-3", "room", "ann", "short");
}
