//! E-mail accounts under faults: kills, lost servers, loops, forged reports and hostile mails.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::ack_checker::{TestRng, say, times};
use crate::common::{Courier, until};
use crate::email::{account, config, ended, mail, mail_with, mails, scanned, tasks};
use crate::mail_servers::{AcceptedMail, Dovecot, PASSWORD, SmtpServer, SmtpTls, TestCa};
use crate::webhook_peer::configure;

/// A rule for every mail.
pub const FORWARD_ALL: &str = "forward: [{ to: [boss@example.com] }]";

/// The subjects of forwarded mails without `Fwd: `, and how often each was sent.
pub fn sent_subjects(smtp: &SmtpServer) -> BTreeMap<String, usize> {
    let mut sent = BTreeMap::new();
    for mail in smtp.accepted() {
        let subject = mail.header("Subject").unwrap_or_default();
        *sent.entry(subject.trim_start_matches("Fwd: ").to_owned()).or_default() += 1;
    }
    sent
}

/// The states of the deliveries that have failed, by the message that they deliver.
pub fn failed_deliveries(courier: &Courier) -> BTreeMap<String, String> {
    let dead = courier.get("/api/v1/dead").ok();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let deliveries = dead["deliveries"].as_array().unwrap().iter();
    deliveries.map(|it| (text(&it["msg_id"]), text(&it["state"]))).collect()
}

/// Checks that every subject is one Mail of the hub, and was forwarded once. A forward whose end
/// is not known is UNCERTAIN and was sent at most once, and so is one of a mail that two kills
/// have interrupted.
#[track_caller]
pub fn check_each_once(
    courier: &Courier,
    smtp: &SmtpServer,
    tasks: &[Value],
    subjects: &BTreeSet<String>,
) {
    let of = |values: &[Value], field: &str| -> Vec<String> {
        let mut found: Vec<_> =
            values.iter().map(|value| value[field].as_str().unwrap().to_owned()).collect();
        found.sort();
        found
    };
    let expected: Vec<_> = subjects.iter().cloned().collect();
    assert_eq!(of(tasks, "subject"), expected, "each mail is registered once");
    assert_eq!(of(&mails(courier, expected.len()), "title"), expected, "each is one Mail");
    let (sent, failed) = (sent_subjects(smtp), failed_deliveries(courier));
    for task in tasks {
        let count = sent.get(task["subject"].as_str().unwrap()).copied().unwrap_or_default();
        match task["status"].as_str().unwrap() {
            "forwarded" => assert_eq!(count, 1, "{task}"),
            "error" => {
                match task["forward"].as_str() {
                    Some(forward) => assert_eq!(failed[forward], "UNCERTAIN", "{task}"),
                    None => {
                        let error = task["error"].as_str().unwrap();
                        assert!(error.starts_with("two attempts"), "{task}");
                    }
                }
                assert!(count <= 1, "{count} times: {task}");
            }
            _ => panic!("not forwarded: {task}"),
        }
    }
    let known: BTreeSet<_> = sent.into_keys().collect();
    assert!(known.is_subset(subjects), "{known:?}");
}

/// `MONOCO_MAILS` and `MONOCO_ROUNDS` set the numbers of mails, at most 1,000, and of kills.
#[test]
fn killed_at_random_moments_while_mails_arrive_it_doubles_and_loses_nothing() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let section = account("team", &dovecot, &smtp, FORWARD_ALL);
    let mut courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let mut dice = TestRng::new();
    let (rounds, count) = (times("MONOCO_ROUNDS", 10), times("MONOCO_MAILS", 300));
    let subjects: BTreeSet<_> = (0..count).map(|n| format!("crash {n:04}")).collect();
    let courier = std::thread::scope(|scope| {
        let arriving = scope.spawn(|| {
            dovecot.deliver_many(
                "team",
                subjects.iter().map(|subject| {
                    std::thread::sleep(Duration::from_millis(8));
                    mail("joe@example.org", subject, "x")
                }),
            );
        });
        for _ in 0..rounds {
            std::thread::sleep(Duration::from_millis(dice.below(400)));
            courier = courier.restart();
            // A mail that three kills in a row interrupt would be a dead letter, as it should.
            until("interrupted mails are processed", || {
                let interrupted = |task: &Value| {
                    task["attempts"].as_u64() > Some(1)
                        && (task["status"] == "received" || task["status"] == "in_progress")
                        && task["forward"].is_null()
                };
                !tasks(&courier, "work").iter().any(interrupted)
            });
        }
        arriving.join().unwrap();
        courier
    });
    let all = ended(&courier, "work", subjects.len());
    check_each_once(&courier, &smtp, &all, &subjects);
    let uncertain = failed_deliveries(&courier).len();
    assert!(uncertain as u64 <= 4 * rounds, "{uncertain} forwards of unknown end");
    let sent = smtp.accepted().len();
    say(&format!("{count} mails, {rounds} kills: {sent} sent, {uncertain} of unknown end"));
}

#[test]
fn lost_server_and_expunged_mails_double_and_miss_nothing() {
    let (mut dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let section = account("team", &dovecot, &smtp, FORWARD_ALL);
    let mut courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let deliver = |dovecot: &Dovecot, subject: &str| {
        dovecot.deliver("team", "INBOX", &mail("joe@example.org", subject, "x"));
    };
    let expunge = |dovecot: &Dovecot, subject: &str| {
        dovecot.doveadm(&["expunge", "-u", "team", "mailbox", "INBOX", "subject", subject], b"");
    };
    for subject in ["first", "second", "third"] {
        deliver(&dovecot, subject);
    }
    ended(&courier, "work", 3);

    dovecot.kill();
    until("the loss is noticed", || {
        courier.get("/api/v1/email/accounts/work").ok()["last_error"].is_string()
    });
    dovecot.run();
    deliver(&dovecot, "after the server");
    ended(&courier, "work", 4);

    courier.kill();
    expunge(&dovecot, "second");
    deliver(&dovecot, "never seen");
    deliver(&dovecot, "while it was down");
    expunge(&dovecot, "never seen");
    let mut courier = courier.restart();
    ended(&courier, "work", 5);

    courier.kill();
    dovecot.kill();
    let restarted = courier.restart();
    dovecot.run();
    expunge(&dovecot, "while it was down");
    deliver(&dovecot, "after both");
    let tasks = ended(&restarted, "work", 6);
    let subjects =
        ["first", "second", "third", "after the server", "while it was down", "after both"];
    let subjects = subjects.map(str::to_owned).into();
    check_each_once(&restarted, &smtp, &tasks, &subjects);
    assert_eq!(smtp.accepted().len(), 6);
}

/// A mail without one header field, as a relay that removes it delivers the mail.
fn without(mail: &AcceptedMail, field: &str) -> Vec<u8> {
    let text = String::from_utf8(mail.bytes.clone()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let head: Vec<_> = head.split("\r\n").filter(|line| !line.starts_with(field)).collect();
    format!("{}\r\n\r\n{body}", head.join("\r\n")).into_bytes()
}

#[test]
fn two_hubs_that_forward_to_each_other_stop() {
    for removed in ["Nothing-At-All:", "Auto-Submitted:"] {
        let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
        let hub = |user: &str, to: &str| {
            let rules = format!("forward: [{{ to: [{to}@example.com] }}]");
            let courier = Courier::start_configured(&config(&[(
                "work",
                account(user, &dovecot, &smtp, &rules),
            )]));
            scanned(&courier, "work");
            courier
        };
        let (ann, bob) = (hub("ann", "bob"), hub("bob", "ann"));
        dovecot.deliver("ann", "INBOX", &mail("joe@example.org", "ping", "x"));
        let (mut delivered, mut received) = (0, BTreeMap::from([("ann", 1), ("bob", 0)]));
        loop {
            ended(&ann, "work", received["ann"]);
            ended(&bob, "work", received["bob"]);
            let accepted = smtp.accepted();
            // Every task has ended, so nothing else is on its way.
            let Some(mail) = accepted.get(delivered) else { break };
            delivered += 1;
            let user = if mail.recipients() == ["ann@example.com"] { "ann" } else { "bob" };
            dovecot.deliver(user, "INBOX", &without(mail, removed));
            *received.get_mut(user).unwrap() += 1;
            assert!(delivered <= 2, "{received:?}");
        }
        assert!(delivered >= 1, "the first hub forwards");
        assert_eq!(mails(&bob, 1).len(), 1, "the mail arrives");
    }
}

/// A delivery status notification about a mail.
fn bounce(n: usize, mail: &AcceptedMail, envelope_id: &str) -> Vec<u8> {
    let id = mail.header("Message-ID").unwrap();
    let recipient = &mail.recipients()[0];
    format!(
        "Return-Path: <>\r\nFrom: MAILER-DAEMON@mx.example.com\r\nTo: team@example.com\r\n\
         Subject: Undelivered {n}\r\nMessage-ID: <bounce-{n}@mx.example.com>\r\n\
         Auto-Submitted: auto-replied\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/report; report-type=delivery-status; boundary=b\r\n\r\n\
         --b\r\nContent-Type: text/plain\r\n\r\nYour mail could not be delivered.\r\n\
         --b\r\nContent-Type: message/delivery-status\r\n\r\n\
         Reporting-MTA: dns; mx.example.com\r\n{envelope_id}\r\n\
         Final-Recipient: rfc822; {recipient}\r\nAction: failed\r\nStatus: 5.1.1\r\n\
         Diagnostic-Code: smtp; 550 no such user\r\n\r\n\
         --b\r\nContent-Type: text/rfc822-headers\r\n\r\nMessage-ID: {id}\r\n\r\n--b--\r\n"
    )
    .into_bytes()
}

#[test]
fn only_a_report_with_the_secret_envelope_id_changes_a_delivery() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let section = account("team", &dovecot, &smtp, FORWARD_ALL);
    let courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "hello", "x"));
    ended(&courier, "work", 1);
    let sent = smtp.wait_for(1).remove(0);
    let options = sent.envelope["mail_options"].as_array().unwrap().clone();
    let envelope_id = options.iter().find_map(|option| option.as_str()?.strip_prefix("ENVID="));
    let envelope_id = envelope_id.unwrap_or_else(|| panic!("{options:?}"));

    let (delivery, token) = envelope_id.split_once('.').unwrap();
    let last = if token.ends_with('0') { '1' } else { '0' };
    let wrong = format!("{delivery}.{}{last}", &token[..token.len() - 1]);
    let forged = [
        "".to_owned(),
        format!("Original-Envelope-Id: {delivery}\r\n"),
        format!("Original-Envelope-Id: {wrong}\r\n"),
    ];
    for (n, forged) in forged.iter().enumerate() {
        dovecot.deliver("team", "INBOX", &bounce(n, &sent, forged));
    }
    ended(&courier, "work", 4);
    assert_eq!(failed_deliveries(&courier), BTreeMap::new());

    let real = format!("Original-Envelope-Id: {envelope_id}\r\n");
    dovecot.deliver("team", "INBOX", &bounce(3, &sent, &real));
    until("the delivery has failed", || !failed_deliveries(&courier).is_empty());
    let dead = courier.get("/api/v1/dead").ok()["deliveries"][0].clone();
    assert_eq!(dead["state"], "DEAD", "{dead:#}");
    assert!(dead.to_string().contains("no such user"), "{dead:#}");
    assert_eq!(smtp.accepted().len(), 1, "reports are never forwarded");
    // The task was forwarded before the report arrived.
    let task = || tasks(&courier, "work").remove(0);
    assert_eq!(task()["status"], "error", "{:#}", task());
    assert!(task()["error"].as_str().unwrap().contains("no such user"), "{:#}", task());
    let listed = courier.get("/api/v1/dead").ok();
    assert_eq!(listed["tasks"][0]["id"], task()["id"], "{listed:#}");
}

/// A mail as bytes that no careful program would write.
fn hostile_mails() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<_> =
        std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "eml"));
    files.sort();
    let mut mails: Vec<_> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    let odd = "=?utf-8?q?=1b=5b31mred=00=07=0d=0aBcc:_x=40example.org_=e2=80=ae_abc?=";
    let named = |name: &str| {
        format!(
            "MIME-Version: 1.0\r\nContent-Type: application/octet-stream; name=\"{name}\"\r\n\
             Content-Disposition: attachment; filename=\"{name}\"\r\n"
        )
    };
    let subject = |subject: &str, n: usize, more: &str| {
        let from = format!("{odd} <joe@example.org>");
        mail_with(&format!("<hostile-{n}@example.org>"), &from, subject, more, "x")
    };
    mails.push(subject(odd, 0, &named("../../../../tmp/evil\u{1b}[2J")));
    mails.push(subject("\u{1b}]0;title\u{7}\u{9b}31m\u{202e}", 1, &named(odd)));
    mails.push(subject(&"long ".repeat(4_000), 2, &named(&"n".repeat(9_000))));
    mails.push(subject(
        "=?utf-8?b?////?= =?x?y?z?=",
        3,
        "Reply-To: <<<@@>>>, \"\r\nDate: never\r\n",
    ));
    mails.push(b"\r\n\r\nno header at all".to_vec());
    mails.push(b"Subject: \xff\xfe\x00\x1b\r\nFrom: \xff\r\nContent-Type: multipart/mixed; boundary=\"\"\r\n\r\n--\r\n--\r\n".to_vec());
    mails.push([b"From: x\r\n".as_slice(), &b"Received: y\r\n".repeat(5_000), b"\r\nx"].concat());
    mails
}

#[test]
fn hostile_mails_are_registered_and_shown_without_control_characters() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let section = account("team", &dovecot, &smtp, FORWARD_ALL);
    let courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let hostile = hostile_mails();
    let count = hostile.len();
    dovecot.deliver_many("team", hostile);
    let tasks = ended(&courier, "work", count);
    for task in &tasks {
        assert_eq!(task["attempts"], 1, "the first attempt reads it: {task:#}");
        assert_ne!(task["status"], "error", "{task:#}");
    }
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "the last one", "x"));
    ended(&courier, "work", count + 1);
    mails(&courier, tasks.iter().filter(|task| task["copy_of"].is_null()).count() + 1);
    let commands: [&[&str]; 2] =
        [&["email", "tasks", "--limit=1000"], &["mailbox", "list", "--global", "--limit=1000"]];
    for args in commands {
        let printed = courier.cli(args).ok();
        let bad = printed.chars().find(|char| {
            char.is_control() && *char != '\n' || ['\u{202e}', '\u{2028}'].contains(char)
        });
        assert_eq!(bad, None, "{args:?}: {printed}");
        assert!(printed.contains("the last one"), "{args:?}: {printed}");
    }
}

#[test]
fn accounts_of_servers_that_hang_do_not_stop_the_others() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    // The system accepts the connections; nothing ever answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent_port = silent.local_addr().unwrap().port().to_string();
    let accounts: Vec<_> = (0..20)
        .map(|n| {
            let section = account(&format!("user{n}"), &dovecot, &smtp, FORWARD_ALL);
            let hangs = n % 8 == 0;
            let silent = section.replace(&dovecot.port.to_string(), &silent_port);
            (format!("a{n}"), hangs, if hangs { silent } else { section })
        })
        .collect();
    let sections: Vec<_> = accounts.iter().map(|(id, _, it)| (id.as_str(), it.clone())).collect();
    let courier = Courier::start_configured(&config(&sections));
    for (n, (id, ..)) in accounts.iter().enumerate().filter(|(_, (_, hangs, _))| !hangs) {
        scanned(&courier, id);
        let subject = format!("for {n}");
        dovecot.deliver(&format!("user{n}"), "INBOX", &mail("joe@example.org", &subject, "x"));
    }
    for (id, hangs, _) in &accounts {
        ended(&courier, id, usize::from(!hangs));
    }
    assert_eq!(smtp.wait_for(17).len(), 17);
    let hung = courier.get("/api/v1/email/accounts/a0").ok();
    assert!(hung["last_scanned_at"].is_null(), "{hung}");
}

#[test]
fn reload_under_load_keeps_the_connection_and_applies_new_rules() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let section = |to: &str| {
        let rules = format!("forward: [{{ to: [{to}@example.com] }}]");
        config(&[("work", account("team", &dovecot, &smtp, &rules))])
    };
    let courier = Courier::start_configured(&section("first"));
    scanned(&courier, "work");
    let logins = || dovecot.log().matches("Login: user=<team>").count();
    let before = logins();
    assert_eq!((before, dovecot.connections("team")), (1, 1), "{}", dovecot.log());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            dovecot.deliver_many(
                "team",
                (0..100).map(|n| {
                    std::thread::sleep(Duration::from_millis(10));
                    mail("joe@example.org", &format!("load {n:03}"), "x")
                }),
            );
        });
        for n in 0..5 {
            smtp.wait_for(1 + 5 * n);
            configure(courier.home(), &section(["second", "first"][n % 2]));
            courier.cli(&["courier", "reload"]).ok();
        }
    });
    ended(&courier, "work", 100);
    let sent = sent_subjects(&smtp);
    assert_eq!((sent.len(), smtp.accepted().len()), (100, 100), "{sent:?}");
    assert_eq!((logins(), dovecot.connections("team")), (1, 1), "{}", dovecot.log());

    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "by the new rules", "x"));
    let last = smtp.wait_for(101).remove(100);
    assert_eq!(last.recipients(), ["second@example.com"]);
    assert_eq!(logins(), 1, "{}", dovecot.log());
}

#[test]
fn friend_is_known_only_when_our_server_has_verified_the_mail() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let section = account("team", &dovecot, &smtp, "authserv_id: mx.example.com");
    let courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    let receive = |n: usize, results: &str| {
        let id = format!("<trust-{n}@example.org>");
        let title = format!("mail {n}");
        let mail = mail_with(&id, "Ann <ann@example.org>", &title, results, "x");
        dovecot.deliver("team", "INBOX", &mail);
        let all = mails(&courier, n);
        all.into_iter().find(|mail| mail["title"] == title.as_str()).unwrap()
    };
    let first = receive(1, "");
    assert_eq!(first["trust"], "untrusted");
    let ann = "did:msgtunnel:ann%2540example%252Eorg.addr.work";
    courier.put(&format!("/api/v1/contacts/{ann}"), &json!({"level": "friend"})).ok();
    let results = |server: &str, verdict: &str| {
        format!("Authentication-Results: {server}; dmarc={verdict} header.from=example.org\r\n")
    };
    let cases = [
        (String::new(), "untrusted"),
        (results("mx.example.com", "fail"), "untrusted"),
        (results("mx.example.net", "pass"), "untrusted"),
        (results("mx.example.com", "pass"), "known"),
        // A field of the sender below the one of our server proves nothing.
        (results("mx.example.com", "fail") + &results("mx.example.com", "pass"), "untrusted"),
    ];
    for (n, (results, trust)) in cases.iter().enumerate() {
        let mail = receive(n + 2, results);
        assert_eq!(mail["trust"], *trust, "{results}");
    }
}

/// Settings of a Dovecot without any TLS.
const NO_TLS: &str = "ssl = no
service imap-login {
  inet_listener imaps {
    ssl = no
  }
}
";

#[test]
fn removed_encryption_and_a_certificate_of_another_host_are_refused() {
    let other = TestCa::of_another_host();
    let plain = Dovecot::start_with(TestCa::shared(), NO_TLS);
    let named = Dovecot::start_with(&other, "");
    let smtp_plain = SmtpServer::start();
    let smtp_named = SmtpServer::start_with(SmtpTls::Implicit, &other, &[]);
    let good = Dovecot::start();
    let (ca, shared) = (other.file(), TestCa::shared().file());
    let cases = [
        (plain.port, "starttls", &shared, smtp_plain.port, "starttls", &shared, "STARTTLS"),
        (named.tls_port, "implicit", &ca, smtp_plain.port, "starttls", &shared, "certificate"),
        (named.port, "starttls", &ca, smtp_plain.port, "starttls", &shared, "certificate"),
        (good.port, "starttls", &shared, smtp_plain.port, "starttls", &shared, "STARTTLS"),
        (good.port, "starttls", &shared, smtp_named.port, "implicit", &ca, "certificate"),
    ];
    let sections: Vec<_> = cases.iter().enumerate().map(|(n, case)| {
        let (imap, imap_tls, imap_ca, smtp, smtp_tls, smtp_ca, _) = case;
        let section = format!(
            "{{ provider: email, address: u{n}@example.com, username: u{n}, password: {PASSWORD}, \
             imap: {{ host: localhost, port: {imap}, tls: {imap_tls}, ca_file: {} }}, \
             smtp: {{ host: localhost, port: {smtp}, tls: {smtp_tls}, ca_file: {} }} }}",
            imap_ca.display(), smtp_ca.display()
        );
        (format!("u{n}"), section)
    }).collect();
    let sections: Vec<_> = sections.iter().map(|(id, it)| (id.as_str(), it.clone())).collect();
    let courier = Courier::start_configured(&config(&sections));
    for (n, case) in cases.iter().enumerate() {
        let answer = courier.post(&format!("/api/v1/email/accounts/u{n}/test"), &json!({})).ok();
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(answer["ok"] == false && error.contains(case.6), "{n}: {answer}");
    }
    for server in [&plain, &named] {
        assert!(!server.log().contains("Login: user="), "{}", server.log());
    }
}
