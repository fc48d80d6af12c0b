//! Mails that are sent through an account: copies, blind copies, letters, the Sent folder, and
//! a server that takes its time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::ack_checker::{say, times};
use crate::common::{Courier, until};
use crate::email::{account, config, mail, scanned, tasks};
use crate::email_faults::{FORWARD_ALL, failed_deliveries};
use crate::mail_servers::{Dovecot, SmtpServer, SmtpTls, TestCa};
use crate::webhook_peer::seconds;

const ANN: &str = "did:web:ann.example";

fn address(name: &str) -> String {
    format!("did:msgtunnel:{name}%40example%2Eorg.addr.work")
}

/// A courier with the account `work`, which copies what it sends.
fn start(dovecot: &Dovecot, smtp: &SmtpServer, more: &str) -> Courier {
    let account = account("team", dovecot, smtp, "from_name: Team, sent_folder: Sent");
    let courier = Courier::start_configured(&format!("{}{more}", config(&[("work", account)])));
    scanned(&courier, "work");
    courier
}

fn sent_copies(dovecot: &Dovecot) -> u64 {
    dovecot.status("team", "Sent", "messages")
}

#[test]
fn copies_are_equal_hide_blind_recipients_and_are_stored_once() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let courier = start(&dovecot, &smtp, "");
    courier.cli(&["contact", "add", ANN, "--name", "Ann"]).ok();
    courier.cli(&["contact", "bind", ANN, "work", "ann@example.org"]).ok();
    let (bob, joe) = (address("bob"), address("joe"));
    let message = json!({
        "from": "did:monoco:me", "to": [ANN, bob, joe], "cc": [bob], "bcc": [joe], "kind": "chat",
        "content": {"title": "Größe & Preis", "format": "text/markdown", "content": "It is **done**."},
    });
    courier.post("/api/v1/post_send", &json!({"msg": message})).ok();
    let mut mails = smtp.wait_for(3);
    mails.sort_by_key(|mail| mail.recipients());
    let recipients: Vec<_> = mails.iter().map(|mail| mail.recipients().join(",")).collect();
    assert_eq!(recipients, ["ann@example.org", "bob@example.org", "joe@example.org"]);
    for mail in &mails {
        assert_eq!(mail.bytes, mails[0].bytes, "every copy is the same mail");
        assert_eq!(mail.envelope["from"], "team@example.com");
    }
    let header = |name| mails[0].header(name);
    assert_eq!(header("From").as_deref(), Some("\"Team\" <team@example.com>"));
    assert_eq!(header("To").as_deref(), Some("ann@example.org"));
    assert_eq!(header("Cc").as_deref(), Some("bob@example.org"));
    assert_eq!(header("Subject").as_deref(), Some("Größe & Preis"));
    assert_eq!(header("Bcc"), None);
    assert!(!String::from_utf8_lossy(&mails[0].bytes).contains("joe@"));

    until("the copy is in the folder", || sent_copies(&dovecot) == 1);
    let second = json!({
        "from": "did:monoco:me", "to": [bob], "kind": "chat", "content": {"content": "again"},
    });
    courier.post("/api/v1/post_send", &json!({"msg": second})).ok();
    until("the next copy is in the folder", || sent_copies(&dovecot) == 2);
    let copies =
        dovecot.doveadm(&["fetch", "-u", "team", "hdr.message-id", "mailbox", "Sent"], b"");
    let id = header("Message-ID").unwrap();
    assert_eq!(copies.matches(id.as_str()).count(), 1, "{copies}");
    let delivery = courier.get("/api/v1/boxes/did:msgtunnel:work/TUNNEL_OUTBOX").ok();
    assert!(delivery.to_string().contains(&id), "the Message-ID is the external id: {delivery}");
}

/// A letter in the form of a mail is sent as it is, under the envelope of the letter.
#[test]
fn letter_is_sent_byte_for_byte() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let chain = "  pipeline:\n    outbound: [send]\n    workers:\n      send: { tunnel: work }\n";
    let courier = start(&dovecot, &smtp, chain);
    let mail = "From: list@example.com\r\nTo: everyone@example.org\r\nMessage-ID: <l@example.com>\r\n\
                Subject: =?utf-8?q?caf=C3=A9?=\r\n\r\n.\r\n..two\r\nend\r\n";
    let letter = json!({
        "from": "list@example.com", "to": ["ann@example.org"], "data": mail,
        "extra": {"direction": "outbound"},
    });
    courier.post("/api/v1/letters", &letter).ok();
    let sent = smtp.wait_for(1).remove(0);
    assert_eq!(String::from_utf8_lossy(&sent.bytes), mail);
    assert_eq!(sent.envelope["from"], "list@example.com");
    assert_eq!(sent.recipients(), ["ann@example.org"]);
}

/// Texts of the sender that try to be more than a text.
#[test]
fn hostile_texts_arrive_as_one_mail_each() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let courier = start(&dovecot, &smtp, "");
    let texts = [
        "\r\n.\r\nMAIL FROM:<eve@example.com>\r\n",
        "\n.\n",
        "\n.\r\nQUIT\r\n",
        "\r.\r",
        "x\r\nBcc: eve@example.com\r\n\r\nbody",
    ];
    for (n, text) in texts.iter().enumerate() {
        let message = json!({
            "from": "did:monoco:me", "to": [address("bob")], "kind": "chat",
            "content": {"title": format!("{n} {text}"), "format": "text/plain", "content": text},
        });
        courier.post("/api/v1/post_send", &json!({"msg": message})).ok();
        let mails = smtp.wait_for(n + 1);
        assert_eq!(mails.len(), n + 1);
        assert_eq!((mails[n].header("Bcc"), mails[n].recipients().len()), (None, 1));
        assert!(mails[n].header("Subject").unwrap().starts_with(&format!("{n} ")));
        let read = monoco_mime::read_mail(&mails[n].bytes);
        let received = read.texts[0].text(1 << 20).text.replace("\r\n", "\n");
        assert_eq!(
            received.trim_end_matches('\n'),
            text.replace("\r\n", "\n").trim_end_matches('\n')
        );
    }
}

/// `MONOCO_LATE_S` sets for how many seconds more the answer to the final dot is missing.
#[test]
fn acceptance_that_is_late_is_waited_for_and_delays_no_other_mail() {
    let late = Duration::from_secs(times("MONOCO_LATE_S", 0));
    let dovecot = Dovecot::start();
    let smtp = SmtpServer::start_with(SmtpTls::Clear, TestCa::shared(), &["DATA=hold@slow mail"]);
    let section = account("team", &dovecot, &smtp, FORWARD_ALL);
    let courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let status = |subject: &str| {
        let task = tasks(&courier, "work").into_iter().find(|task| task["subject"] == subject);
        task.unwrap_or_default()["status"].clone()
    };
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "slow mail", "x"));
    // The server has the whole mail, and says nothing.
    smtp.wait_for(1);
    let asked = Instant::now();
    let outbox = courier.get("/api/v1/boxes/did:msgtunnel:work/TUNNEL_OUTBOX").ok();
    let sending = &outbox["records"][0];
    assert_eq!(sending["state"], "SENDING", "{outbox:#}");
    let end: jiff::Timestamp = sending["lease"]["until"].as_str().unwrap().parse().unwrap();
    let lease = end.as_second() - seconds().cast_signed();
    assert!(lease > 600, "the lease covers the 10 min of RFC 5321: {lease} s");

    // Deliveries to one address are sent one at a time; this one has another.
    let message = json!({
        "from": "did:monoco:me", "to": ["did:msgtunnel:ann%40example%2Eorg.addr.work"],
        "kind": "chat", "content": {"title": "quick", "content": "x"},
    });
    courier.post("/api/v1/post_send", &json!({"msg": message})).ok();
    smtp.wait_for(2);
    std::thread::sleep(late);
    assert_eq!(status("slow mail"), "in_progress");
    smtp.release();
    until("the late answer counts", || status("slow mail") == "forwarded");
    assert_eq!(smtp.accepted().len(), 2, "nothing is sent again");
    assert_eq!(failed_deliveries(&courier), BTreeMap::new());
    say(&format!("the answer came after {:.1?}", asked.elapsed()));
}
