//! E-mail accounts through the built binary: mails arrive once, are forwarded once, and answered.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Courier, PATIENCE, until, wait_for};
use crate::mail_servers::{AcceptedMail, Dovecot, PASSWORD, SmtpServer, SmtpTls, TestCa};
use crate::metrics::check_with_promtool;
use crate::reference_sdks::python;

/// The section of an account on test servers, without TLS.
pub fn account(user: &str, dovecot: &Dovecot, smtp: &SmtpServer, more: &str) -> String {
    account_at(user, dovecot.port, smtp, more)
}

/// The same, with any IMAP server on loopback.
pub fn account_at(user: &str, imap_port: u16, smtp: &SmtpServer, more: &str) -> String {
    format!(
        "{{ provider: email, address: {user}@example.com, username: {user}, password: {PASSWORD}, \
         imap: {{ host: 127.0.0.1, port: {imap_port}, tls: none }}, \
         smtp: {{ host: 127.0.0.1, port: {}, tls: none }}, debounce: {{ window_ms: 50 }}, \
         poll_s: 10, {more} }}",
        smtp.port
    )
}

pub fn config(accounts: &[(&str, String)]) -> String {
    let mut config = "courier:\n  adapters:\n".to_owned();
    for (id, section) in accounts {
        config.push_str(&format!("    {id}: {section}\n"));
    }
    config
}

pub fn mail(from: &str, subject: &str, text: &str) -> Vec<u8> {
    mail_with(&format!("<{}@example.org>", subject.replace(' ', "-")), from, subject, "", text)
}

pub fn mail_with(id: &str, from: &str, subject: &str, more: &str, text: &str) -> Vec<u8> {
    format!(
        "Return-Path: <{from}>\r\nFrom: {from}\r\nTo: team@example.com\r\nSubject: {subject}\r\n\
         Message-ID: {id}\r\nDate: Fri, 06 Feb 2026 20:45:00 +0000\r\n{more}\r\n{text}\r\n"
    )
    .into_bytes()
}

/// Waits until the account has been scanned.
pub fn scanned(courier: &Courier, id: &str) -> Value {
    courier.until(&format!("/api/v1/email/accounts/{id}"), |it| it["last_scanned_at"].is_string())
}

/// All tasks of an account, oldest first.
pub fn tasks(courier: &Courier, id: &str) -> Vec<Value> {
    let answer = courier.get(&format!("/api/v1/email/tasks?account={id}&limit=1000")).ok();
    let mut tasks = answer["tasks"].as_array().unwrap().clone();
    tasks.reverse();
    tasks
}

/// Waits until every task of the account, copies included, has ended; there are `count` of them.
/// A slow machine may take its time, as long as tasks end.
#[track_caller]
pub fn ended(courier: &Courier, id: &str, count: usize) -> Vec<Value> {
    let is_open = |task: &&Value| {
        ["received", "in_progress"].contains(&task["status"].as_str().unwrap_or_default())
    };
    let (mut least, mut deadline) = (usize::MAX, Instant::now() + PATIENCE);
    loop {
        let tasks = tasks(courier, id);
        let open = tasks.iter().filter(is_open).count();
        if open == 0 && tasks.len() == count {
            return tasks;
        }
        let left = count.saturating_sub(tasks.len()) + open;
        if left < least {
            (least, deadline) = (left, Instant::now() + PATIENCE);
        }
        if Instant::now() > deadline {
            let first = tasks.iter().find(is_open).cloned().unwrap_or_default();
            let forward = first["forward"].as_str().unwrap_or("none");
            let trace = courier.get(&format!("/api/v1/trace/{forward}")).text();
            panic!("{} tasks, {open} open: {first:#}\n{trace}", tasks.len());
        }
        // To list many tasks takes the courier time that it needs to process them.
        std::thread::sleep(Duration::from_millis(10 + count as u64 / 10));
    }
}

/// The Mails of the hub, as the API lists them.
pub fn mails(courier: &Courier, count: usize) -> Vec<Value> {
    let answer = courier.until("/api/v1/messages?limit=1000", |answer| {
        answer["messages"].as_array().is_some_and(|mails| mails.len() >= count)
    });
    answer["messages"].as_array().unwrap().clone()
}

/// What Python's `email` reads in a mail.
fn python_reads(mail: &AcceptedMail) -> Value {
    let script = r#"
import sys, json, email, email.policy, base64
given = json.load(sys.stdin)
mail = email.message_from_bytes(base64.b64decode(given["mail"]), policy=email.policy.default)
parts = [[part.get_content_type(), part.get_filename()] for part in mail.walk()]
original = [part for part in mail.walk() if part.get_content_type() == "message/rfc822"]
print(json.dumps({
    "defects": [str(defect) for part in mail.walk() for defect in part.defects],
    "from": str(mail["From"]), "to": str(mail["To"]), "cc": str(mail["Cc"]),
    "bcc": str(mail["Bcc"]), "reply_to": str(mail["Reply-To"]), "subject": str(mail["Subject"]),
    "references": str(mail["References"]), "in_reply_to": str(mail["In-Reply-To"]),
    "parts": parts, "text": mail.get_body(("plain",)).get_content(),
    "original_subject": str(original[0].get_payload(0)["Subject"]) if original else None}))
"#;
    let encoded = base64(&mail.bytes);
    serde_json::from_str(&python(script, &json!({"mail": encoded}))).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - chunk.len()));
        for at in 0..=chunk.len() {
            out.push(char::from(DIGITS[(word >> (18 - 6 * at) & 63) as usize]));
        }
        out.push_str(&"=".repeat(3 - chunk.len()));
    }
    out
}

#[test]
fn mail_arrives_once_is_forwarded_once_and_answered_in_its_thread() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    dovecot.deliver("team", "INBOX", &mail("old@example.org", "before the first start", "x"));
    let rules = "authserv_id: mx.example.com, \
                 forward: [{ when: { subject_contains: invoice }, to: [billing@example.com] }]";
    let courier =
        Courier::start_configured(&config(&[("work", account("team", &dovecot, &smtp, rules))]));
    let first = scanned(&courier, "work");
    assert_eq!(first["last_seen_uid"], 1, "the newest mail is where the account starts");

    let invoice = mail_with(
        "<inv-7@example.org>",
        "Ann <ann@example.org>",
        "Invoice 7",
        "Reply-To: office@Example.ORG\r\nReferences: <root@example.org>\r\n",
        "Please pay.",
    );
    dovecot.deliver("team", "INBOX", &invoice);
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "hello", "no rule matches"));
    let done = ended(&courier, "work", 3);
    let statuses: Vec<_> = done.iter().map(|task| task["status"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["skipped_no_match", "forwarded", "skipped_no_match"]);
    assert_eq!(dovecot.status("team", "INBOX", "unseen"), 3, "nothing is marked as seen");

    let forwarded = smtp.wait_for(1).remove(0);
    assert_eq!(forwarded.recipients(), ["billing@example.com"]);
    assert_eq!(forwarded.envelope["from"], "team@example.com");
    let read = python_reads(&forwarded);
    assert_eq!(read["defects"], json!([]));
    assert_eq!(
        (&read["from"], &read["reply_to"]),
        (&json!("team@example.com"), &json!("office@example.org"))
    );
    assert_eq!(read["subject"], "Fwd: Invoice 7");
    assert_eq!(read["original_subject"], "Invoice 7");
    assert_eq!(read["references"], "<root@example.org> <inv-7@example.org>");
    assert_eq!(forwarded.header("X-Monoco-Loop").as_deref(), Some("team@example.com"));
    assert_eq!(forwarded.header("Auto-Submitted").as_deref(), Some("auto-forwarded"));

    let all = mails(&courier, 3);
    let invoice = all.iter().find(|mail| mail["title"] == "Invoice 7").unwrap();
    assert_eq!(invoice["session"]["id"], "team@example.com");
    assert_eq!(invoice["session"]["thread_key"], "<root@example.org>");
    assert_eq!(invoice["trust"], "untrusted", "no server has verified the sender");
    let id = invoice["id"].as_str().unwrap();
    courier.post(&format!("/api/v1/messages/{id}/reply"), &json!({"text": "Paid."})).ok();
    let reply = smtp.wait_for(2).remove(1);
    assert_eq!(reply.recipients(), ["office@example.org"]);
    let read = python_reads(&reply);
    assert_eq!(read["in_reply_to"], "<inv-7@example.org>");
    assert_eq!(read["references"], "<root@example.org> <inv-7@example.org>");
    assert_eq!(read["text"].as_str().unwrap().trim(), "Paid.");

    let courier = courier.restart();
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "invoice again", "x"));
    ended(&courier, "work", 4);
    assert_eq!(smtp.wait_for(3).len(), 3, "what was forwarded before the restart is not repeated");
    assert_eq!(mails(&courier, 4).len(), 4);
}

#[test]
fn changed_uidvalidity_and_copies_double_nothing_and_miss_nothing() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let rules = "folders: [INBOX, Archive], forward: [{ to: [boss@example.com] }]";
    dovecot.doveadm(&["mailbox", "create", "-u", "team", "Archive"], b"");
    let section = account("team", &dovecot, &smtp, rules);
    let mut courier = Courier::start_configured(&config(&[("work", section)]));
    scanned(&courier, "work");
    for n in 0..5 {
        dovecot.deliver("team", "INBOX", &mail("joe@example.org", &format!("mail {n}"), "x"));
    }
    ended(&courier, "work", 5);
    smtp.wait_for(5);

    courier.kill();
    let valid = dovecot.status("team", "INBOX", "uidvalidity") + 1;
    dovecot.doveadm(
        &["mailbox", "update", "-u", "team", "--uid-validity", &valid.to_string(), "INBOX"],
        b"",
    );
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "while it was down", "x"));
    dovecot
        .doveadm(&["copy", "-u", "team", "Archive", "mailbox", "INBOX", "subject", "mail 3"], b"");
    let courier = courier.restart();
    // Five mails again under the new UIDVALIDITY, one new one, one copy in the other folder.
    let all = ended(&courier, "work", 12);
    let copies = all.iter().filter(|task| task["copy_of"].is_string()).count();
    assert_eq!(copies, 6);
    let sent = smtp.wait_for(6);
    assert_eq!(
        sent.len(),
        6,
        "{:?}",
        sent.iter().map(|mail| mail.header("Subject")).collect::<Vec<_>>()
    );
    assert_eq!(mails(&courier, 6).len(), 6);
}

#[test]
fn forgotten_sender_leaves_no_text_of_the_mail() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let section = account("team", &dovecot, &smtp, "backfill: all");
    let courier = Courier::start_configured(&config(&[("work", section)]));
    // The id of a mail is a key and stays, so it has no text here.
    let secret =
        mail_with("<1@example.org>", "joe@example.org", "secret-subject", "", "secret-text");
    dovecot.deliver("team", "INBOX", &secret);
    let large = "secret-line\r\n".repeat(10_000);
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "second", &large));
    dovecot.deliver("team", "INBOX", &mail("ann@example.org", "other", "kept-text"));
    ended(&courier, "work", 3);
    mails(&courier, 3);
    courier.cli(&["forget", "joe@example.org", "--yes"]).ok();
    let contains = |text: &str| {
        let mut grep = std::process::Command::new("grep");
        grep.args(["-rlaF", text]).arg(courier.home());
        String::from_utf8(grep.output().unwrap().stdout).unwrap()
    };
    until("the files are gone", || contains("secret-").is_empty());
    assert!(!contains("kept-text").is_empty());
    assert_eq!(tasks(&courier, "work").len(), 3, "the mails stay registered");
}

#[test]
fn temporary_errors_are_retried_permanent_ones_are_dead_letters_and_lost_answers_uncertain() {
    let dovecot = Dovecot::start();
    let rules = [
        "RCPT=450 4.2.0 greylisted*1@grey",
        "RCPT=550 5.1.1 no such user@gone",
        "DATA=drop@lost answer",
    ];
    let smtp = SmtpServer::start_with(SmtpTls::Clear, TestCa::shared(), &rules);
    let forward = "forward: [{ when: { subject_contains: grey }, to: [grey@example.com] }, \
                   { when: { subject_contains: gone }, to: [gone@example.com] }, \
                   { when: { subject_contains: lost }, to: [lost@example.com] }]";
    let courier =
        Courier::start_configured(&config(&[("work", account("team", &dovecot, &smtp, forward))]));
    scanned(&courier, "work");
    for subject in ["grey", "gone", "lost answer"] {
        dovecot.deliver("team", "INBOX", &mail("joe@example.org", subject, "x"));
    }
    let status = |subject: &str| {
        let tasks = tasks(&courier, "work");
        let task = tasks.into_iter().find(|task| task["subject"] == subject);
        task.unwrap_or_default()
    };
    until("the greylisted mail is forwarded", || status("grey")["status"] == "forwarded");
    until("the rejected mail fails", || status("gone")["status"] == "error");
    assert!(status("gone")["error"].as_str().unwrap().contains("no such user"));
    until("the lost answer is an error", || status("lost answer")["status"] == "error");
    let outbox = courier.get("/api/v1/dead").ok();
    let states: Vec<_> = outbox["deliveries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|delivery| delivery["state"].as_str().unwrap())
        .collect();
    assert!(states.contains(&"UNCERTAIN"), "{states:?}");
    let lost = |mail: &AcceptedMail| mail.header("Subject").is_some_and(|it| it.contains("lost"));
    assert_eq!(smtp.accepted().iter().filter(|mail| lost(mail)).count(), 1, "never sent again");
}

#[test]
fn task_that_failed_three_times_is_a_dead_letter_until_it_is_retried_or_dropped() {
    let dovecot = Dovecot::start();
    let rules = ["RCPT=550 5.1.1 no such user*3@gone", "DATA=drop@lost answer"];
    let smtp = SmtpServer::start_with(SmtpTls::Clear, TestCa::shared(), &rules);
    let forward = "forward: [{ when: { subject_contains: gone }, to: [gone@example.com] }, \
                   { when: { subject_contains: lost }, to: [lost@example.com] }]";
    let courier =
        Courier::start_configured(&config(&[("work", account("team", &dovecot, &smtp, forward))]));
    scanned(&courier, "work");
    let dead = |kind: &str| -> Vec<Value> {
        let list = courier.cli(&["dead", "list", "--format", "json"]).ok();
        let list: Value = serde_json::from_str(&list).unwrap();
        let rows = list["dead"].as_array().unwrap().iter();
        rows.filter(|row| row["kind"] == kind).cloned().collect()
    };
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "gone", "x"));
    let task = || tasks(&courier, "work").into_iter().next().unwrap_or_default();
    until("the first attempt fails", || task()["status"] == "error");
    assert!(task()["next_attempt_at"].is_string(), "{}", task());
    assert_eq!(dead("task"), [] as [Value; 0], "a task that is retried is not dead");
    for attempt in [2, 3] {
        until("the next attempt starts", || task()["attempts"] == attempt);
    }
    until("the third attempt fails", || dead("task").len() == 1);
    let failed = task();
    let id = failed["id"].as_str().unwrap();
    let row = dead("task").remove(0);
    assert_eq!((&row["id"], &row["of"], &row["attempts"]), (&json!(id), &json!("work"), &json!(3)));
    assert!(row["cause"].as_str().unwrap().contains("no such user"), "{row}");
    assert!(courier.cli(&["dead", "show", id]).ok().contains("no such user"));
    assert_eq!(courier.get("/health").ok()["dead"]["tasks"], 1);
    let counted = |count: i64| {
        let line = format!("monoco_dead_letters{{kind=\"task\"}} {count}\n");
        courier.get("/metrics").text().contains(&line)
    };
    assert!(counted(1));
    let doctor = courier.cli(&["doctor", "--format", "json"]).stdout;
    let doctor: Value = serde_json::from_str(&doctor).unwrap();
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == "dead letters").unwrap();
    assert_eq!(check["detail"], "1", "the delivery belongs to the task");
    let health = courier.get("/health").ok()["dead"].clone();
    assert_eq!((&health["deliveries"], &health["total"]), (&json!(0), &json!(1)));
    let delivery = dead("delivery").remove(0);
    assert_eq!(delivery["task"], id, "{delivery}");
    let table = courier.cli(&["dead", "list"]).ok();
    let groups: Vec<_> = table.lines().filter(|line| line.contains("no such user")).collect();
    assert!(matches!(groups[..], [group] if group.ends_with("(1)")), "{table}");

    courier.cli(&["dead", "retry", id]).ok();
    until("the retry is sent", || task()["status"] == "forwarded");
    assert_eq!(task()["forward"], failed["forward"], "nothing new is posted");
    assert_eq!(smtp.wait_for(1).len(), 1);
    assert_eq!((dead("task").len(), dead("delivery").len()), (0, 0));

    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "lost answer", "x"));
    until("the lost answer is a dead letter", || dead("task").len() == 1);
    let row = dead("task").remove(0);
    let changed = courier.cli(&["dead", "drop", row["id"].as_str().unwrap()]).ok();
    assert!(changed.contains("error"), "{changed}");
    assert_eq!(dead("task").len(), 0);
    assert_eq!(dead("delivery").len(), 1, "the delivery is still uncertain");
    assert_eq!(dead("delivery")[0]["task"], Value::Null);
    assert_eq!(courier.get("/health").ok()["dead"]["total"], 1);
    assert!(counted(0));
}

#[test]
fn metrics_count_the_mails_rounds_and_tasks_of_each_account() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let rules = "forward: [{ when: { subject_contains: invoice }, to: [billing@example.com] }]";
    let courier =
        Courier::start_configured(&config(&[("work", account("team", &dovecot, &smtp, rules))]));
    scanned(&courier, "work");
    for subject in ["invoice 1", "invoice 2", "hello"] {
        dovecot.deliver("team", "INBOX", &mail("joe@example.org", subject, "x"));
    }
    ended(&courier, "work", 3);
    let has = |metrics: &str, line: &str| metrics.lines().any(|found| found == line);
    courier.cli(&["email", "scan", "work", "--once"]).ok();
    let metrics = wait_for(|| {
        let metrics = courier.get("/metrics").text();
        let done = r#"monoco_email_mails_total{account="work",result="forwarded"} 2"#;
        if has(&metrics, done) { Ok(metrics) } else { Err(format!("{done}: {metrics}")) }
    });
    for line in [
        r#"monoco_email_tasks{account="work",status="forwarded"} 2"#,
        r#"monoco_email_tasks{account="work",status="skipped_no_match"} 1"#,
        r#"monoco_email_tasks{account="work",status="copy"} 0"#,
        r#"monoco_email_mails_total{account="work",result="registered"} 3"#,
        r#"monoco_email_mails_total{account="work",result="skipped"} 1"#,
        r#"monoco_email_mails_total{account="work",result="failed"} 0"#,
        r#"monoco_email_mails_total{account="work",result="retried"} 0"#,
        r#"monoco_email_backlog{account="work"} 0"#,
    ] {
        assert!(has(&metrics, line), "{line}\n{metrics}");
    }
    for name in ["email_rounds_total", "email_round_seconds_total", "email_last_round_seconds"] {
        let start = format!("monoco_{name}{{account=\"work\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
        assert!(value.unwrap().parse::<f64>().unwrap() > 0.0, "{name}: {value:?}");
    }
    check_with_promtool(&metrics);

    // Mails that were registered before a restart are not counted again.
    let courier = courier.restart();
    let rounds = |metrics: &str| metrics.contains("monoco_email_rounds_total{account=\"work\"} 1");
    let metrics = wait_for(|| {
        let metrics = courier.get("/metrics").text();
        if rounds(&metrics) { Ok(metrics) } else { Err(metrics) }
    });
    let registered = r#"monoco_email_mails_total{account="work",result="registered"} 0"#;
    assert!(has(&metrics, registered), "{metrics}");
}

#[test]
fn account_is_added_tested_paused_and_removed_by_the_command_line() {
    let (dovecot, smtp) = (Dovecot::start(), SmtpServer::start());
    let courier = Courier::start();
    let secret = courier.home().join("mail-password");
    std::fs::write(&secret, format!("{PASSWORD}\n")).unwrap();
    let (imap, out) = (format!("127.0.0.1:{}", dovecot.port), format!("127.0.0.1:{}", smtp.port));
    let add = |password: &Path| {
        courier.cli(&[
            "email",
            "add",
            "team",
            "--address",
            "team@example.com",
            "--username",
            "team",
            "--imap",
            &imap,
            "--smtp",
            &out,
            "--tls",
            "none",
            "--password-file",
            password.to_str().unwrap(),
        ])
    };
    let wrong = courier.home().join("wrong");
    std::fs::write(&wrong, "wrong").unwrap();
    let error = add(&wrong).failed(1);
    assert!(
        error.to_lowercase().contains("password") || error.contains("uthentication"),
        "{error}"
    );
    assert!(!courier.home().join("courier/adapters.d/team.yaml").exists());

    add(&secret).ok();
    let file =
        std::fs::read_to_string(courier.home().join("courier/adapters.d/team.yaml")).unwrap();
    assert!(!file.contains(PASSWORD), "{file}");
    scanned(&courier, "team");
    assert!(courier.cli(&["email", "list"]).ok().contains("team@example.com"));
    assert!(courier.cli(&["email", "test", "team"]).ok().contains("IMAP"));

    courier.cli(&["email", "pause", "team"]).ok();
    until("the connection is closed", || dovecot.connections("team") == 0);
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "while paused", "x"));
    courier.cli(&["email", "resume", "team"]).ok();
    ended(&courier, "team", 1);
    courier.cli(&["email", "scan", "team", "--once"]).ok();
    assert!(courier.cli(&["email", "tasks"]).ok().contains("while paused"));

    let csv = courier.home().join("people.csv");
    std::fs::write(&csv, "name,address\nAnn,ann@example.com\nBob,nonsense\n").unwrap();
    let ran = courier.cli(&["email", "directory", "import", csv.to_str().unwrap()]);
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.contains('3') && ran.stderr.contains("imported 1 people"), "{ran:?}");
    assert!(courier.cli(&["email", "directory", "list"]).ok().contains("ann@example.com"));

    courier.cli(&["email", "remove", "team"]).ok();
    until("the tunnel is gone", || courier.cli(&["email", "test", "team"]).code != 0);
}

#[test]
fn connections_are_encrypted_and_certificates_verified() {
    let ca = TestCa::shared().file();
    let dovecot = Dovecot::start();
    let smtp = SmtpServer::start_with(SmtpTls::StartTls, TestCa::shared(), &[]);
    let section = |imap: &str, ca: &str| {
        format!(
            "{{ provider: email, address: team@example.com, username: team, password: {PASSWORD}, \
             imap: {imap}, smtp: {{ host: localhost, port: {}, tls: starttls{ca} }}, \
             debounce: {{ window_ms: 50 }}, forward: [{{ to: [x@example.com] }}] }}",
            smtp.port
        )
    };
    let trusted = format!(", ca_file: {}", ca.display());
    let implicit =
        format!("{{ host: localhost, port: {}, tls: implicit{trusted} }}", dovecot.tls_port);
    let courier = Courier::start_configured(&config(&[("work", section(&implicit, &trusted))]));
    scanned(&courier, "work");
    dovecot.deliver("team", "INBOX", &mail("joe@example.org", "hello", "x"));
    let sent = smtp.wait_for(1);
    assert_eq!(sent[0].envelope["tls"], true);
    assert_eq!(sent[0].envelope["authenticated"], true);

    let unknown = format!("{{ host: localhost, port: {}, tls: starttls }}", dovecot.port);
    let courier = Courier::start_configured(&config(&[("work", section(&unknown, ""))]));
    let account = courier.until("/api/v1/email/accounts/work", |it| it["last_error"].is_string());
    let error = account["last_error"].as_str().unwrap();
    assert!(error.contains("certificate") && account["status"] == "down", "{account}");
}
