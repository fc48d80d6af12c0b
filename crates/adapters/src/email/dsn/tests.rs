//! Tests of delivery reports: those of common servers, odd ones, and bounces that are none.

use super::*;

/// A report with this status part, and a returned message.
fn report(status: &str, returned: &str) -> Option<DeliveryReport> {
    let mail = format!(
        "From: MAILER-DAEMON@mx.test\nTo: ann@example.com\nSubject: Undelivered\n\
         Auto-Submitted: auto-replied\nReturn-Path: <>\n\
         Content-Type: multipart/report; report-type=delivery-status;\n boundary=\"b\"\n\n\
         --b\nContent-Description: Notification\nContent-Type: text/plain\n\nSorry.\n\n\
         --b\nContent-Type: message/delivery-status\n\n{status}\n--b\n{returned}\n--b--\n"
    );
    delivery_report(&read_mail(mail.as_bytes()))
}

const HEADERS: &str = "Content-Type: text/rfc822-headers\n\nFrom: ann@example.com\nMessage-ID: <sent-1@example.com>\n";
const MESSAGE: &str = "Content-Type: message/rfc822\n\nFrom: ann@example.com\nMessage-ID:\n <sent-1@example.com>\n\ntext\n";

#[test]
fn failures_are_read_per_recipient() {
    // As Postfix writes it.
    let status = "Reporting-MTA: dns; mx.test\nOriginal-Envelope-Id: 0123abcd\nX-Postfix-Queue-ID: 4F\n\
                  X-Postfix-Sender: rfc822; ann@example.com\nArrival-Date: Mon,  2 Nov 2026 10:00:00 +0000 (UTC)\n\n\
                  Final-Recipient: rfc822; bob@example.org\nOriginal-Recipient: rfc822;Bob@example.org\n\
                  Action: failed\nStatus: 5.1.1\nRemote-MTA: dns; mail.example.org\n\
                  Diagnostic-Code: smtp; 550 5.1.1 <bob@example.org>: Recipient address\n    rejected: User unknown\n\n\
                  Final-Recipient: rfc822; joe@example.org\nAction: Delayed (still trying)\nStatus: 4.4.1 (no answer)\n";
    let found = report(status, MESSAGE).unwrap();
    assert_eq!(found.envelope_id.as_deref(), Some("0123abcd"));
    assert_eq!(found.reporting_mta.as_deref(), Some("mx.test"));
    assert_eq!(found.message_id.as_deref(), Some("<sent-1@example.com>"));
    assert_eq!(
        found.recipients,
        [
            RecipientReport {
                final_recipient: "bob@example.org".to_owned(),
                original_recipient: Some("Bob@example.org".to_owned()),
                action: ReportedAction::Failed,
                status: Some("5.1.1".to_owned()),
                diagnostic: Some(
                    "550 5.1.1 <bob@example.org>: Recipient address rejected: User unknown"
                        .to_owned()
                ),
            },
            RecipientReport {
                final_recipient: "joe@example.org".to_owned(),
                original_recipient: None,
                action: ReportedAction::Delayed,
                status: Some("4.4.1".to_owned()),
                diagnostic: None,
            },
        ]
    );
}

#[test]
fn all_actions_are_known() {
    for (word, want) in [
        ("failed", ReportedAction::Failed),
        ("Delayed", ReportedAction::Delayed),
        ("DELIVERED", ReportedAction::Delivered),
        ("relayed (to mailer with no DSN support)", ReportedAction::Relayed),
        ("expanded", ReportedAction::Expanded),
    ] {
        let status = format!(
            "Reporting-MTA: dns;x\r\n\r\nFinal-Recipient: RFC822;<bob@example.org>\r\nAction: {word}\r\nStatus: 2.0.0\r\n"
        );
        let found = report(&status, HEADERS).unwrap();
        assert_eq!(found.recipients[0].action, want, "{word}");
        assert_eq!(found.recipients[0].final_recipient, "bob@example.org");
        assert_eq!(
            (found.envelope_id, found.message_id.as_deref()),
            (None, Some("<sent-1@example.com>"))
        );
    }
}

#[test]
fn encoded_status_parts_are_decoded() {
    let encoded = "Content-Type: multipart/report; report-type=\"delivery-status\"; boundary=b\n\n--b\n\nx\n--b\n\
                   Content-Type: message/delivery-status\nContent-Transfer-Encoding: quoted-printable\n\n\
                   Reporting-MTA: dns; x\n\nFinal-Recipient: rfc822; bob=40example.org\nAction: failed\n--b--";
    let found = delivery_report(&read_mail(encoded.as_bytes())).unwrap();
    assert_eq!(found.recipients[0].final_recipient, "bob@example.org");
    let global = "Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\n\nx\n--b\n\
                  Content-Type: message/global-delivery-status\n\n\
                  Reporting-MTA: dns; x\n\nFinal-Recipient: utf-8; jörg@example.org\nAction: failed\n--b--";
    let found = delivery_report(&read_mail(global.as_bytes())).unwrap();
    assert_eq!(found.recipients[0].final_recipient, "jörg@example.org");
}

#[test]
fn other_mails_are_no_reports() {
    for mail in [
        // As qmail bounces.
        "From: MAILER-DAEMON@mx.test\nReturn-Path: <>\n\nHi. This is the qmail-send program at mx.test.\n\
         <bob@example.org>:\nSorry, no mailbox here by that name. (#5.1.1)\n\n--- Below this line is a copy of the message.\n\n\
         Message-ID: <sent-1@example.com>\n",
        // As Exim bounces without DSN.
        "From: Mail Delivery System <Mailer-Daemon@mx.test>\nX-Failed-Recipients: bob@example.org\nAuto-Submitted: auto-replied\n\n\
         This message was created automatically by mail delivery software.\n",
        // A report about reading, and one that names no type.
        "Content-Type: multipart/report; report-type=disposition-notification; boundary=b\n\n--b\n\nread\n--b\n\
         Content-Type: message/disposition-notification\n\nFinal-Recipient: rfc822;bob@example.org\nDisposition: manual-action; displayed\n--b--",
        "Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\nA: b\n\nFinal-Recipient: rfc822;x@y\nAction: failed\n--b--",
        // The report is attached to another mail.
        "Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\nA: b\n\nFinal-Recipient: rfc822;x@y\nAction: failed\n--b--",
        // Reports without a recipient, an action or a status part.
        "Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; x\n--b--",
        "Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\nA: b\n\nFinal-Recipient: rfc822;x@y\n--b--",
        "Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\nA: b\n\nFinal-Recipient: rfc822;\nAction: failed\n--b--",
        "Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\nA: b\n\nFinal-Recipient: rfc822;x@y\nAction: exploded\n--b--",
        "Content-Type: multipart/report; report-type=delivery-status; boundary=b\n\nnothing",
        "",
    ] {
        assert_eq!(delivery_report(&read_mail(mail.as_bytes())), None, "{mail}");
    }
}

#[test]
fn forged_reports_are_read_but_prove_nothing() {
    // The fields of a forged report are as the forger wrote them. Only the envelope id, which
    // the forger cannot know, makes the courier believe a report.
    let status = "Reporting-MTA: dns; x\n\nFinal-Recipient: rfc822; bob@example.org\nAction: failed\nStatus: 5.0.0\n\
                  Original-Envelope-Id: 0123abcd\n";
    let found = report(status, MESSAGE).unwrap();
    assert_eq!(found.envelope_id, None, "an id of a recipient's group does not count");
    let twice = "Original-Envelope-Id: first\nOriginal-Envelope-Id: second\n\nFinal-Recipient: rfc822; b@x\nAction: failed\n";
    assert_eq!(report(twice, MESSAGE).unwrap().envelope_id.as_deref(), Some("first"));
}

#[test]
fn large_reports_are_limited() {
    let recipient =
        "Final-Recipient: rfc822; bob@example.org\nAction: failed\nDiagnostic-Code: smtp; ";
    let long = format!("Reporting-MTA: dns; x\n\n{recipient}{}\n", "é".repeat(2_000));
    let found = report(&long, HEADERS).unwrap();
    assert_eq!(found.recipients[0].diagnostic.as_ref().map(String::len), Some(1_024));
    let many = format!("Reporting-MTA: dns; x\n\n{}", format!("{recipient}x\n\n").repeat(2_000));
    assert_eq!(report(&many, HEADERS).unwrap().recipients.len(), MAX_REPORTED_RECIPIENTS);
}
