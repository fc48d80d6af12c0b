//! Encryption and login.

use std::sync::atomic::{AtomicUsize, Ordering};

use monoco_core::retry::Failure;

use super::super::account;
use super::*;
use crate::email::config::MailAuth;

/// The failure of a probe.
async fn probe_failure(config: &EmailConfig) -> String {
    let failure = account::probe(config).await.unwrap_err().failure();
    failure.detail().to_owned()
}

fn with_starttls(server: &FakeServer) -> EmailConfig {
    let mut config = config(server);
    config.imap.tls = TlsMode::StartTls;
    config
}

#[tokio::test]
async fn stripped_starttls_is_an_error_and_no_password_is_sent() {
    let server = FakeServer::start().await;
    let error = probe_failure(&with_starttls(&server)).await;
    assert!(error.contains("the server does not offer STARTTLS, so the connection"), "{error}");
    assert_eq!(server.account().commands, ["CAPABILITY"]);
}

#[tokio::test]
async fn rejected_starttls_is_an_error_and_no_password_is_sent() {
    let server = FakeServer::start().await;
    server.change(|account| account.capabilities += " STARTTLS");
    server.hook(|command, _| match command {
        "STARTTLS" => ServerReaction::Send("TAG NO not today\r\n".to_owned()),
        _ => ServerReaction::Correct,
    });
    let error = probe_failure(&with_starttls(&server)).await;
    assert!(error.contains("the server rejects STARTTLS"), "{error}");
    assert_eq!(server.account().commands, ["CAPABILITY", "STARTTLS"]);
}

#[tokio::test]
async fn preauth_cannot_replace_starttls() {
    let server = FakeServer::start().await;
    server.change(|account| account.greeting = "* PREAUTH ready".to_owned());
    let error = probe_failure(&with_starttls(&server)).await;
    assert!(error.contains("PREAUTH"), "{error}");
    assert_eq!(server.account().commands, ["CAPABILITY"]);
}

#[tokio::test]
async fn responses_inserted_before_the_handshake_are_rejected() {
    let server = FakeServer::start().await;
    server.change(|account| account.capabilities += " STARTTLS");
    server.hook(|command, _| match command {
        "STARTTLS" => ServerReaction::Send("TAG OK begin\r\n* CAPABILITY AUTH=EVIL\r\n".to_owned()),
        _ => ServerReaction::Correct,
    });
    let error = probe_failure(&with_starttls(&server)).await;
    assert_eq!(error, "the server sent more than its answer before the TLS handshake");
}

#[tokio::test]
async fn preauth_needs_no_login() {
    let server = FakeServer::start().await;
    server.change(|account| account.greeting = "* PREAUTH ready".to_owned());
    account::probe(&config(&server)).await.unwrap();
    assert_eq!((server.count("LOGIN"), server.count("AUTHENTICATE")), (0, 0));
}

#[tokio::test]
async fn way_to_log_in_is_chosen_by_what_the_server_offers() {
    let plain = "AUTHENTICATE PLAIN AHRlYW0Ac2VjcmV0";
    let login = r#"LOGIN "team" "secret""#;
    for (capabilities, auth, expected) in [
        ("IMAP4rev1 AUTH=PLAIN SASL-IR", None, plain),
        ("IMAP4rev1 LOGINDISABLED AUTH=PLAIN SASL-IR", None, plain),
        ("IMAP4rev1", None, login),
        ("imap4rev1 auth=plain sasl-ir", Some(MailAuth::Login), login),
    ] {
        let server = FakeServer::start().await;
        server.change(|account| account.capabilities = capabilities.to_owned());
        account::probe(&EmailConfig { auth, ..config(&server) }).await.unwrap();
        assert_eq!(server.account().commands[1], expected, "{capabilities}");
    }
}

#[tokio::test]
async fn response_of_the_login_waits_for_the_server_without_sasl_ir() {
    let server = FakeServer::start().await;
    server.change(|account| account.capabilities = "IMAP4rev1 AUTH=PLAIN".to_owned());
    server.hook(|command, account| match command {
        "AUTHENTICATE PLAIN" => ServerReaction::Send("+ Go ahead\r\n".to_owned()),
        // The line with the response has no tag: the fake server takes it for one.
        "" => {
            account.commands.pop();
            ServerReaction::Send("a2 OK done\r\n".to_owned())
        }
        _ => ServerReaction::Correct,
    });
    account::probe(&config(&server)).await.unwrap();
}

#[tokio::test]
async fn login_that_the_server_disables_is_not_sent() {
    let server = FakeServer::start().await;
    let capabilities = "IMAP4rev1 LOGINDISABLED AUTH=XOAUTH2 AUTH=GSSAPI";
    server.change(|account| account.capabilities = capabilities.to_owned());
    for auth in [None, Some(MailAuth::Login)] {
        let error = probe_failure(&EmailConfig { auth, ..config(&server) }).await;
        let expected = "the server accepts no password on this connection; it offers: XOAUTH2, \
                        GSSAPI; set `auth: xoauth2` and a `password_command` that prints a token";
        assert_eq!(error, expected);
    }
    assert_eq!(server.count("LOGIN"), 0);
}

#[tokio::test]
async fn rejected_token_says_why_and_is_asked_for_again() {
    let server = FakeServer::start().await;
    let capabilities = "IMAP4rev1 AUTH=XOAUTH2 SASL-IR";
    server.change(|account| account.capabilities = capabilities.to_owned());
    let logins = Arc::new(AtomicUsize::new(0));
    let counted = logins.clone();
    server.hook(move |command, account| {
        if command.is_empty() {
            account.commands.pop();
            return ServerReaction::Send(
                "a2 NO [AUTHENTICATIONFAILED] Invalid credentials\r\n".to_owned(),
            );
        }
        let first = command.starts_with("AUTHENTICATE XOAUTH2 ")
            && counted.fetch_add(1, Ordering::Relaxed) == 0;
        match first {
            // {"status":"401"}
            true => ServerReaction::Send("+ eyJzdGF0dXMiOiI0MDEifQ==\r\n".to_owned()),
            false => ServerReaction::Correct,
        }
    });
    let password =
        Some(SecretSource::Command(["/bin/sh", "-c", "echo token"].map(str::to_owned).to_vec()));
    let config = EmailConfig { auth: Some(MailAuth::Xoauth2), password, ..config(&server) };
    let watching = Watching::start(config);
    watching.sink.until_scanned(1).await;
    let errors = watching.stop().await.errors();
    assert_eq!(
        errors,
        ["the server rejects the login: NO [AUTHENTICATIONFAILED] Invalid credentials \
          ({\"status\":\"401\"}); check that the token is valid for IMAP"]
    );
    assert_eq!(logins.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn rejected_password_is_permanent_and_an_unavailable_server_is_not() {
    let server = FakeServer::start().await;
    server.hook(|command, _| match command.starts_with("AUTH") {
        true => {
            ServerReaction::Send("TAG NO [AUTHENTICATIONFAILED] \u{1b}[31mwrong\r\n".to_owned())
        }
        false => ServerReaction::Correct,
    });
    let failure = account::probe(&config(&server)).await.unwrap_err().failure();
    assert!(matches!(failure, Failure::Permanent { .. }), "{failure:?}");
    assert!(failure.detail().contains("\\u{1b}[31mwrong; check `username`"), "{failure:?}");
    assert!(!failure.detail().contains("secret"));
    server.hook(|command, _| match command.starts_with("AUTH") {
        true => ServerReaction::Send("TAG NO [UNAVAILABLE] try later\r\n".to_owned()),
        false => ServerReaction::Correct,
    });
    let failure = account::probe(&config(&server)).await.unwrap_err().failure();
    assert!(matches!(failure, Failure::Temporary { .. }), "{failure:?}");
}

#[tokio::test]
async fn other_protocols_are_recognised() {
    let server = FakeServer::start().await;
    for greeting in ["220 smtp.example.com ESMTP", "+OK POP3 ready", "SSH-2.0-x", ""] {
        server.change(|account| account.greeting = greeting.to_owned());
        let error = probe_failure(&config(&server)).await;
        let expected = "the server does not speak IMAP; check `imap.host` and `imap.port`";
        assert_eq!(error, expected, "{greeting}");
    }
}

#[tokio::test]
async fn probe_reports_what_it_found() {
    let server = FakeServer::start().await;
    server.add(mail("a"));
    let lines = account::probe(&config(&server)).await.unwrap();
    let expected = [
        ("IMAP server", format!("127.0.0.1:{}, not encrypted", server.port)),
        ("IMAP login", "ok as team; IDLE".to_owned()),
        ("folder INBOX", "1 mails, next UID 2".to_owned()),
    ];
    assert_eq!(lines, expected.map(|(key, text)| (key.to_owned(), text)));
    let folders = vec!["Work".to_owned()];
    let error = probe_failure(&EmailConfig { folders, ..config(&server) }).await;
    assert!(error.contains("(folders: INBOX)"), "{error}");
    assert_eq!(server.count("LOGOUT"), 1);
}

#[tokio::test]
async fn mails_are_fetched_by_place_and_by_uid() {
    let server = FakeServer::start().await;
    server.change(|account| {
        for uid in [3, 5, 2_000, 90_000] {
            account.inbox().uid_next = uid;
            account.inbox().add(mail(&uid.to_string()));
        }
    });
    let config = config(&server);
    let uids = |emails: &[crate::email::IncomingEmail]| -> Vec<u32> {
        emails.iter().map(|email| email.uid).collect()
    };
    let recent = account::recent_emails(&config, 2).await.unwrap();
    assert_eq!(uids(&recent), [2_000, 90_000]);
    assert_eq!(uids(&account::recent_emails(&config, 9).await.unwrap()), [3, 5, 2_000, 90_000]);
    let (page, has_more) = account::emails_by_uid_range(&config, 3, 2).await.unwrap();
    assert_eq!((uids(&page), has_more), (vec![5, 2_000], true));
    let (page, has_more) = account::emails_by_uid_range(&config, 5, 2).await.unwrap();
    assert_eq!((uids(&page), has_more), (vec![2_000, 90_000], false));
    let (page, has_more) = account::emails_by_uid_range(&config, 90_000, 2).await.unwrap();
    assert_eq!((uids(&page), has_more), (vec![], false));
    assert_eq!(account::email_by_uid(&config, 4).await.unwrap(), None);
    let email = account::email_by_uid(&config, 5).await.unwrap().unwrap();
    assert_eq!((email.subject.as_str(), email.from.as_str()), ("5", "ann@example.com"));
    assert_eq!((email.body.as_str(), email.raw), ("Hello.\r\n", mail("5").bytes));
    assert_eq!(account::uid_next(&config).await.unwrap(), 90_001);
    assert_eq!(server.account().open_connections, 0);
}
