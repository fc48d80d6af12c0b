//! Sessions with servers that the tests play: every stage, every kind of failure.

#![expect(clippy::disallowed_methods, reason = "a test has no task group")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use monoco_core::config::Secret;
use monoco_core::did::EndpointKind;
use monoco_core::inbound::InboundAttachment;
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::time::Timestamp;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::delivery_fixture::{MemoryFiles, RecordedParts};
use crate::email::config::Backfill;

/// What the server does in answer to a command.
#[derive(Clone, Debug)]
enum Act {
    Say(String),
    /// Closes the connection without an answer.
    Close,
    /// Answers after this time.
    Later(Duration, String),
    /// Never answers, and keeps the connection open.
    Silence,
}

fn say(reply: &str) -> Act {
    Act::Say(format!("{reply}\r\n"))
}

/// The answer of a server that accepts everything.
fn accept(command: &str) -> Act {
    let word = command.split([' ', ':']).next().unwrap_or_default();
    match word {
        "CONNECT" => say("220 mx.example ESMTP"),
        "EHLO" => say(
            "250-mx.example\r\n250-SIZE 100000000\r\n250-8BITMIME\r\n250-DSN\r\n250-SMTPUTF8\r\n250 AUTH LOGIN PLAIN",
        ),
        "STARTTLS" => say("220 go ahead"),
        "AUTH" => say("235 2.7.0 ok"),
        "DATA" => say("354 go ahead"),
        "CONTENT" => Act::Say(String::new()),
        "." => say("250 2.0.0 queued as 1"),
        "QUIT" => say("221 bye"),
        _ => say("250 2.0.0 ok"),
    }
}

/// A server on loopback. `plan` answers each command of each connection; `CONNECT`, `CONTENT`
/// and `.` stand for a new connection, the begin of the mail and its end.
struct FakeServer {
    port: u16,
    log: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
}

impl FakeServer {
    async fn start(plan: impl Fn(usize, &str) -> Act + Send + Sync + 'static) -> Self {
        Self::with_tls(plan, None).await
    }

    /// With a certificate, STARTTLS is followed by a handshake.
    async fn with_tls(
        plan: impl Fn(usize, &str) -> Act + Send + Sync + 'static,
        certificate: Option<&str>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (log, connections) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let server = Self { port, log: Arc::clone(&log), connections: Arc::clone(&connections) };
        let (plan, acceptor) = (Arc::new(plan), certificate.map(acceptor));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = connections.fetch_add(1, Ordering::SeqCst);
                let (plan, log, acceptor) = (Arc::clone(&plan), Arc::clone(&log), acceptor.clone());
                tokio::spawn(async move {
                    let answer = move |command: &str| {
                        lock(&log).push(command.to_owned());
                        plan(number, command)
                    };
                    let rest = session(stream, &answer, true).await;
                    if let (Some(stream), Some(acceptor)) = (rest, acceptor)
                        && let Ok(stream) = acceptor.accept(stream).await
                    {
                        session(stream, &answer, false).await;
                    }
                });
            }
        });
        server
    }

    fn log(&self) -> Vec<String> {
        lock(&self.log).clone()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn client(&self) -> SmtpClient {
        self.client_with(TlsMode::Plain, |_| {})
    }

    fn client_with(&self, tls: TlsMode, change: impl Fn(&mut EmailConfig)) -> SmtpClient {
        let mut config = config(self.port, tls);
        change(&mut config);
        client(&config, SmtpLimits::default())
    }

    fn client_within(&self, limits: SmtpLimits) -> SmtpClient {
        client(&config(self.port, TlsMode::Plain), limits)
    }

    /// The commands since the last RSET or login.
    fn transaction(&self) -> Vec<String> {
        let log = self.log();
        let start = log.iter().rposition(|line| line.starts_with("MAIL")).unwrap();
        log[start..].to_vec()
    }
}

/// A client that keeps connections, as while the listener of its account runs.
fn client(config: &EmailConfig, limits: SmtpLimits) -> SmtpClient {
    let key = Some(EnvelopeKey::new([1; 32]));
    let client = SmtpClient::new("mail".parse().unwrap(), config, key, limits).unwrap();
    client.pool.is_watched.store(true, Ordering::SeqCst);
    client
}

fn acceptor(certificate: &str) -> TlsAcceptor {
    let path =
        |end: &str| format!("{}/testdata/net/{certificate}.{end}", env!("CARGO_MANIFEST_DIR"));
    let chain = CertificateDer::pem_file_iter(path("pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(path("key")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain.collect::<Result<_, _>>().unwrap(), key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Plays one connection. Returns the stream after STARTTLS.
async fn session<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    answer: &impl Fn(&str) -> Act,
    greet: bool,
) -> Option<S> {
    let mut stream = BufReader::new(stream);
    if greet && !act(&mut stream, answer("CONNECT")).await {
        return None;
    }
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let command = line.trim_end().to_owned();
        let reply = answer(&command);
        let is_data =
            command == "DATA" && matches!(&reply, Act::Say(text) if text.starts_with('3'));
        let is_tls =
            command == "STARTTLS" && matches!(&reply, Act::Say(text) if text.starts_with('2'));
        if !act(&mut stream, reply).await {
            return None;
        }
        if is_tls {
            return Some(stream.into_inner());
        }
        if is_data {
            if !act(&mut stream, answer("CONTENT")).await {
                return None;
            }
            let mut mail = Vec::new();
            while !mail.ends_with(b"\r\n.\r\n") {
                if stream.read_until(b'\n', &mut mail).await.ok()? == 0 {
                    return None;
                }
            }
            mail.truncate(mail.len() - 3);
            if !act(&mut stream, answer(&format!(". {}", String::from_utf8_lossy(&mail)))).await {
                return None;
            }
        }
    }
}

/// Does what the plan says. Returns `false` when the connection is closed.
async fn act<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut BufReader<S>, act: Act) -> bool {
    let text = match act {
        Act::Close => return false,
        Act::Silence => std::future::pending().await,
        Act::Later(time, text) => {
            tokio::time::sleep(time).await;
            text
        }
        Act::Say(text) => text,
    };
    stream.write_all(text.as_bytes()).await.is_ok() && stream.flush().await.is_ok()
}

fn config(port: u16, tls: TlsMode) -> EmailConfig {
    let ca_file = format!("{}/testdata/net/ca.pem", env!("CARGO_MANIFEST_DIR"));
    let server = MailServer {
        host: "localhost".to_owned(),
        port,
        tls,
        ca_file: Some(ca_file.into()),
        proxy: None,
    };
    EmailConfig {
        address: "team@example.com".to_owned(),
        description: None,
        username: "team".to_owned(),
        password: Some(SecretSource::Value(Secret::new("s3cret"))),
        auth: None,
        imap: server.clone(),
        smtp: Some(server),
        authserv_id: None,
        folders: vec!["INBOX".to_owned()],
        backfill: Backfill::New,
        deliver: true,
        forward: Vec::new(),
        mark_seen: false,
        poll: Duration::from_secs(60),
        idle: true,
        max_mail: 1 << 20,
        from_name: None,
        sent_folder: None,
    }
}

fn text(content: &str) -> OutgoingMessage {
    let to = "did:msgtunnel:ann%40example%2Ecom.addr.mail";
    outgoing(json!({"from": "did:monoco:me", "to": [to],
                    "content": {"title": "Hi", "content": content, "format": "text/plain"}}))
}

fn outgoing(message: Value) -> OutgoingMessage {
    OutgoingMessage::parse(&message.to_string()).unwrap()
}

async fn deliver_to(client: &SmtpClient, message: &OutgoingMessage, address: &str) -> SmtpResult {
    deliver_with(client, message, address, &[]).await
}

async fn deliver_with(
    client: &SmtpClient,
    message: &OutgoingMessage,
    address: &str,
    attachments: &[InboundAttachment],
) -> SmtpResult {
    let files = MemoryFiles(attachments.to_vec());
    let message = &OutgoingMessage { attachments: files.references(), ..message.clone() };
    let request = DeliveryRequest {
        address,
        kind: EndpointKind::Addr,
        message,
        files: &files,
        sent_parts: &[],
        progress: &RecordedParts::default(),
        key: format!("dlv_{}", "5".repeat(48)).parse().unwrap(),
        first_attempt_ago: std::time::Duration::ZERO,
        now: Timestamp::from_ms(0),
    };
    client.deliver(&request, &config(1, TlsMode::Plain)).await
}

/// Delivers a short text and describes the outcome: `sent`, or kind and code of the failure.
async fn deliver(client: &SmtpClient) -> String {
    shown(&deliver_to(client, &text("hello"), "ann@example.com").await.outcome)
}

fn shown(outcome: &DeliveryOutcome) -> String {
    let failure = match outcome {
        DeliveryOutcome::Accepted { .. } => return "sent".to_owned(),
        DeliveryOutcome::Failed(failure) => failure,
        DeliveryOutcome::Throttled { .. } => return "throttled".to_owned(),
    };
    let kind = match failure {
        Failure::Temporary { .. } => "temporary",
        Failure::Permanent { .. } => "permanent",
        Failure::Unknown { .. } => "unknown",
    };
    format!("{kind} {}", failure.error_code().unwrap_or("-"))
}

/// Waits for a condition that another task brings about.
async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("in time");
}

#[tokio::test]
async fn mail_is_sent_with_envelope_id_and_size() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let client = server.client();
    let result = deliver_to(&client, &text(".\n..x\n"), "ann+x@example.com").await;
    let id = "<55555555555555555555555555555555@example.com>";
    let expected = DeliveryOutcome::Accepted { external_msg_id: Some(id.to_owned()) };
    assert_eq!(result.outcome, expected);
    let sent = result.sent.unwrap();
    let log = server.log();
    let token =
        EnvelopeKey::new([1; 32]).envelope_id(&format!("dlv_{}", "5".repeat(48)).parse().unwrap());
    assert_eq!(
        log[..7],
        [
            "CONNECT".to_owned(),
            "EHLO example.com".to_owned(),
            "AUTH PLAIN AHRlYW0AczNjcmV0".to_owned(),
            format!(
                "MAIL FROM:<team@example.com> SIZE={} RET=HDRS ENVID={token}",
                sent.bytes.len()
            ),
            "RCPT TO:<ann+x@example.com> NOTIFY=FAILURE,DELAY ORCPT=rfc822;ann+2Bx@example.com"
                .to_owned(),
            "DATA".to_owned(),
            "CONTENT".to_owned(),
        ]
    );
    let received = log[7].strip_prefix(". ").unwrap();
    assert!(received.ends_with("\r\n\r\n..\r\n...x\r\n"), "{received}");
    let unstuffed = received.replace("\r\n..", "\r\n.");
    assert_eq!(unstuffed.as_bytes(), sent.bytes);
    assert!(received.contains("To: ann@example.com\r\n"), "{received}");
}

#[tokio::test]
async fn large_mail_arrives_whole() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let lines: String = (0..60_000).map(|n| format!("{}{n}\n", ".".repeat(n % 5))).collect();
    let result = deliver_to(&server.client(), &text(&lines), "ann@example.com").await;
    let log = server.transaction();
    let received = log.last().unwrap().strip_prefix(". ").unwrap();
    let unstuffed = received.replace("\r\n.", "\r\n");
    assert_eq!(unstuffed.as_bytes(), result.sent.unwrap().bytes);
}

#[tokio::test]
async fn rejections_at_each_stage_are_classified() {
    for stage in ["CONNECT", "EHLO", "AUTH", "MAIL", "RCPT", "DATA", "."] {
        for (reply, want) in [
            ("450 4.2.0 greylisted", "temporary 4.2.0"),
            ("451 try again", "temporary 451"),
            ("421 4.3.2 closing", "temporary 4.3.2"),
            ("550 5.1.1 no", if stage == "AUTH" { "temporary 5.1.1" } else { "permanent 5.1.1" }),
            ("554 no", if stage == "AUTH" { "temporary 554" } else { "permanent 554" }),
        ] {
            let server = FakeServer::start(move |_, command| {
                if command.starts_with(stage) { say(reply) } else { accept(command) }
            })
            .await;
            assert_eq!(deliver(&server.client()).await, want, "{stage} {reply}");
        }
    }
}

#[tokio::test]
async fn rejected_recipient_leaves_the_connection_usable() {
    let server = FakeServer::start(|_, command| match command {
        _ if command.starts_with("RCPT TO:<eve@") => say("550 5.1.1 no such user"),
        _ if command.starts_with("RCPT TO:<bob@") => say("450 4.2.1 mailbox busy"),
        _ => accept(command),
    })
    .await;
    let client = server.client();
    for (address, want) in [
        ("ann@example.com", "sent"),
        ("eve@example.com", "permanent 5.1.1"),
        ("bob@example.com", "temporary 4.2.1"),
        ("joe@example.com", "sent"),
    ] {
        let found = deliver_to(&client, &text("hi"), address).await;
        assert_eq!(shown(&found.outcome), want, "{address}");
    }
    assert_eq!(server.connections(), 1);
    let resets = server.log().iter().filter(|command| *command == "RSET").count();
    assert_eq!(resets, 3);
}

#[tokio::test]
async fn connection_lost_before_the_final_dot_is_temporary_and_after_it_unknown() {
    for (stage, want) in [
        ("CONNECT", "temporary -"),
        ("EHLO", "temporary -"),
        ("AUTH", "temporary -"),
        ("MAIL", "temporary -"),
        ("RCPT", "temporary -"),
        ("DATA", "temporary -"),
        ("CONTENT", "temporary -"),
        (".", "unknown -"),
    ] {
        let server = FakeServer::start(move |_, command| {
            if command.starts_with(stage) { Act::Close } else { accept(command) }
        })
        .await;
        // Larger than the buffers of a connection, so that the rest cannot be written.
        let long = text(&"all work and no play\n".repeat(1 << 20));
        let found = deliver_to(&server.client(), &long, "ann@example.com").await;
        assert_eq!(shown(&found.outcome), want, "{stage}");
    }
}

#[tokio::test]
async fn silent_server_is_given_up_in_time() {
    for stage in ["CONNECT", "EHLO", "AUTH", "MAIL", "RCPT", "DATA", "."] {
        let server = FakeServer::start(move |_, command| {
            if command.starts_with(stage) { Act::Silence } else { accept(command) }
        })
        .await;
        let short = Duration::from_millis(200);
        let (limits, want) = match stage {
            "." => (SmtpLimits { final_reply: short, ..SmtpLimits::default() }, "unknown -"),
            _ => (SmtpLimits { command: short, ..SmtpLimits::default() }, "temporary -"),
        };
        let started = Instant::now();
        assert_eq!(deliver(&server.client_within(limits)).await, want, "{stage}");
        assert!(started.elapsed() >= short, "{stage}");
    }
}

/// Each answer takes less than the time for one command, all together take too long.
#[tokio::test]
async fn slow_server_is_given_up_before_the_attempt_times_out() {
    let server = FakeServer::start(|_, command| match accept(command) {
        Act::Say(text) if !text.is_empty() => Act::Later(Duration::from_millis(300), text),
        other => other,
    })
    .await;
    let limits = SmtpLimits { before_end: Duration::from_millis(800), ..SmtpLimits::default() };
    assert_eq!(deliver(&server.client_within(limits)).await, "temporary -");
    assert!(!server.log().iter().any(|command| command == "DATA"), "{:?}", server.log());
    let SmtpLimits { connect, before_end, final_reply, .. } = SmtpLimits::default();
    assert!(2 * connect + before_end + final_reply <= ATTEMPT_TIMEOUT);
    assert_eq!(final_reply, Duration::from_secs(600), "as RFC 5321 asks for");
}

#[tokio::test]
async fn slow_acceptance_after_the_final_dot_is_waited_for() {
    let server = FakeServer::start(|_, command| match command {
        _ if command.starts_with('.') => {
            Act::Later(Duration::from_secs(4), "250 2.0.0 at last\r\n".to_owned())
        }
        _ => accept(command),
    })
    .await;
    let short = Duration::from_secs(3);
    let limits = SmtpLimits { command: short, before_end: short, ..SmtpLimits::default() };
    assert_eq!(deliver(&server.client_within(limits)).await, "sent");
}

#[tokio::test]
async fn unsolicited_replies_are_not_taken_for_answers() {
    // The server says 250 for what follows before it has seen it.
    for (stage, reply, want) in [
        ("EHLO", "250 mx\r\n250 ok\r\n", "temporary -"),
        ("MAIL", "250 ok\r\n250 ok\r\n", "temporary -"),
        ("RCPT", "250 ok\r\n354 go\r\n250 queued\r\n", "temporary -"),
        ("DATA", "354 go\r\n250 queued\r\n", "temporary -"),
        ("DATA", "354 go\r\n421 4.3.0 closing\r\n", "temporary 4.3.0"),
        ("MAIL", "hello there\r\n", "temporary -"),
        (".", "queued\r\n", "unknown -"),
        (".", "334 what\r\n", "unknown 334"),
        ("MAIL", "354 what\r\n", "temporary 354"),
        ("DATA", "250 what\r\n", "temporary 250"),
        ("CONNECT", "HTTP/1.1 400 Bad Request\r\n", "temporary -"),
    ] {
        let server = FakeServer::start(move |_, command| {
            if command.starts_with(stage) { Act::Say(reply.to_owned()) } else { accept(command) }
        })
        .await;
        assert_eq!(deliver(&server.client()).await, want, "{stage} {reply:?}");
    }
    // After an acceptance the outcome is known, but the connection is not used again.
    let server = FakeServer::start(|_, command| match command {
        _ if command.starts_with('.') => Act::Say("250 ok\r\n250 ok\r\n".to_owned()),
        _ => accept(command),
    })
    .await;
    let client = server.client();
    assert_eq!((deliver(&client).await, deliver(&client).await), ("sent".into(), "sent".into()));
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn reply_without_end_is_not_collected_for_ever() {
    for flood in ["250-x\r\n".repeat(100_000), "2".repeat(1_000_000)] {
        let server = FakeServer::start(move |_, command| {
            if command.starts_with("MAIL") { Act::Say(flood.clone()) } else { accept(command) }
        })
        .await;
        assert_eq!(deliver(&server.client()).await, "temporary -");
    }
}

#[tokio::test]
async fn stale_idle_connection_is_replaced() {
    for stale in [Act::Close, say("421 4.4.2 timeout"), say("500 what")] {
        let server = FakeServer::start(move |number, command| match command {
            "RSET" if number == 0 => stale.clone(),
            _ => accept(command),
        })
        .await;
        let client = server.client();
        assert_eq!(deliver(&client).await, "sent");
        assert_eq!(deliver(&client).await, "sent");
        assert_eq!(server.connections(), 2);
        assert_eq!(deliver(&client).await, "sent");
        assert_eq!(server.connections(), 2, "the second connection is kept");
    }
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let limits = SmtpLimits { idle: Duration::from_millis(100), ..SmtpLimits::default() };
    let client = server.client_within(limits);
    let stop = CancellationToken::new();
    let work = async {
        assert_eq!(deliver(&client).await, "sent");
        until(|| server.log().contains(&"QUIT".to_owned())).await;
        assert!(lock(&client.pool.idle).is_empty());
        stop.cancel();
    };
    tokio::join!(client.close_idle(&stop), work);
}

#[tokio::test]
async fn stopped_account_keeps_no_connection() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let client = server.client();
    let quits = || server.log().iter().filter(|line| *line == "QUIT").count();
    let stop = CancellationToken::new();
    let work = async {
        assert_eq!(deliver(&client).await, "sent");
        assert_eq!((lock(&client.pool.idle).len(), quits()), (1, 0));
        stop.cancel();
    };
    tokio::join!(client.close_idle(&stop), work);
    assert_eq!(quits(), 1);
    // A delivery that ends later closes its connection by itself.
    assert_eq!(deliver(&client).await, "sent");
    assert_eq!((lock(&client.pool.idle).len(), quits()), (0, 2));
}

#[tokio::test]
async fn server_without_ehlo_gets_helo() {
    let server = FakeServer::start(|_, command| match command {
        it if it.starts_with("EHLO") => say("502 5.5.1 command not implemented"),
        _ => accept(command),
    })
    .await;
    let client = server.client();
    assert_eq!(deliver(&client).await, "sent");
    let log = server.log();
    assert!(log.iter().any(|line| line == "HELO example.com"), "{log:?}");
    assert!(log.iter().any(|line| line == "MAIL FROM:<team@example.com>"), "{log:?}");
}

#[tokio::test]
async fn rejection_in_the_middle_of_a_mail_has_the_reason_of_the_server() {
    for (reply, code) in [("552 5.3.4 too large", "5.3.4"), ("451 4.3.1 disk full", "4.3.1")] {
        let server = FakeServer::start(move |_, command| match command {
            "DATA" => Act::Say(format!("354 go\r\n{reply}\r\n")),
            _ => accept(command),
        })
        .await;
        let sent = deliver_to(&server.client(), &text("hello"), "ann@example.com").await;
        let DeliveryOutcome::Failed(failure) = sent.outcome else { panic!("{reply}") };
        assert_eq!(failure.error_code(), Some(code));
        assert_eq!(matches!(failure, Failure::Permanent { .. }), code.starts_with('5'));
        assert!(failure.detail().contains(reply), "{}", failure.detail());
        assert!(!server.log().iter().any(|line| line.starts_with('.')), "the mail is not ended");
    }
}

#[tokio::test]
async fn server_that_strips_starttls_gets_nothing() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let client = server.client_with(TlsMode::StartTls, |_| {});
    let found = deliver_to(&client, &text("hi"), "ann@example.com").await.outcome;
    let DeliveryOutcome::Failed(failure) = &found else { panic!("{found:?}") };
    assert!(failure.detail().contains("does not offer STARTTLS"), "{failure:?}");
    assert_eq!((shown(&found), server.log().len()), ("temporary -".to_owned(), 2));
}

fn offer_starttls(_: usize, command: &str) -> Act {
    match command.split(' ').next() {
        Some("EHLO") => say("250-mx.example\r\n250-STARTTLS\r\n250 AUTH PLAIN"),
        _ => accept(command),
    }
}

#[tokio::test]
async fn starttls_encrypts_before_the_login() {
    let server = FakeServer::with_tls(offer_starttls, Some("localhost")).await;
    let client = server.client_with(TlsMode::StartTls, |_| {});
    assert_eq!(deliver(&client).await, "sent");
    let log = server.log();
    assert_eq!(log[..4], ["CONNECT", "EHLO example.com", "STARTTLS", "EHLO example.com"]);
    assert!(log[4].starts_with("AUTH PLAIN "), "{log:?}");
}

#[tokio::test]
async fn wrong_certificate_and_injected_text_stop_the_session() {
    for certificate in ["other", "expired"] {
        let server = FakeServer::with_tls(offer_starttls, Some(certificate)).await;
        let client = server.client_with(TlsMode::StartTls, |_| {});
        assert_eq!(deliver(&client).await, "temporary certificate", "{certificate}");
        assert_eq!(server.log().len(), 3, "{:?}", server.log());
    }
    let injected = |number: usize, command: &str| match command {
        "STARTTLS" => Act::Say("220 go\r\n250-mx\r\n250 AUTH LOGIN\r\n".to_owned()),
        _ => offer_starttls(number, command),
    };
    let server = FakeServer::with_tls(injected, Some("localhost")).await;
    let client = server.client_with(TlsMode::StartTls, |_| {});
    assert_eq!(deliver(&client).await, "temporary -");
    assert_eq!(server.log().len(), 3, "{:?}", server.log());
}

#[tokio::test]
async fn every_mechanism_logs_in() {
    let plan = |_: usize, command: &str| match command {
        _ if command.starts_with("EHLO") => say("250-mx.example\r\n250 AUTH LOGIN XOAUTH2 PLAIN"),
        "AUTH LOGIN" => say("334 VXNlcm5hbWU6"),
        "dGVhbQ==" => say("334 UGFzc3dvcmQ6"),
        "czNjcmV0" => say("235 ok"),
        _ => accept(command),
    };
    for (auth, line) in [
        (Some(MailAuth::Plain), "AUTH PLAIN AHRlYW0AczNjcmV0"),
        (Some(MailAuth::Login), "AUTH LOGIN"),
        (Some(MailAuth::Xoauth2), "AUTH XOAUTH2 dXNlcj10ZWFtAWF1dGg9QmVhcmVyIHMzY3JldAEB"),
        (None, "AUTH PLAIN AHRlYW0AczNjcmV0"),
    ] {
        let server = FakeServer::start(plan).await;
        let client = server.client_with(TlsMode::Plain, |config| config.auth = auth);
        assert_eq!(deliver(&client).await, "sent", "{auth:?}");
        assert_eq!(server.log()[2], line);
    }
    // A server without AUTH gets no password.
    let open = FakeServer::start(|_, command| match command {
        _ if command.starts_with("EHLO") => say("250 mx.example"),
        _ => accept(command),
    })
    .await;
    assert_eq!(deliver(&open.client()).await, "sent");
    assert!(!open.log().iter().any(|command| command.starts_with("AUTH")));
    let client = open.client_with(TlsMode::Plain, |config| config.auth = Some(MailAuth::Xoauth2));
    assert_eq!(deliver(&client).await, "temporary -");
}

#[tokio::test]
async fn rejected_login_is_not_repeated_for_a_while() {
    let server = FakeServer::start(|number, command| match command {
        _ if command.starts_with("EHLO") => say("250-mx.example\r\n250 AUTH XOAUTH2"),
        // The reason, then an empty line of the client, then the rejection.
        _ if command.starts_with("AUTH") && number == 0 => say("334 eyJzdGF0dXMiOiI0MDEifQ=="),
        "" => say("535 5.7.8 token expired"),
        _ => accept(command),
    })
    .await;
    let mut config = config(server.port, TlsMode::Plain);
    config.auth = Some(MailAuth::Xoauth2);
    let login_pause = Duration::from_secs(3);
    let client = client(&config, SmtpLimits { login_pause, ..SmtpLimits::default() });
    let first = deliver_to(&client, &text("hi"), "ann@example.com").await.outcome;
    let DeliveryOutcome::Failed(Failure::Temporary { retry_after_ms, detail, .. }) = &first else {
        panic!("{first:?}")
    };
    assert_eq!(*retry_after_ms, Some(3_000));
    assert!(detail.contains("token expired") && detail.contains("check username"), "{detail}");
    assert_eq!(deliver_to(&client, &text("hi"), "ann@example.com").await.outcome, first);
    assert_eq!(server.connections(), 1);
    let retry = async {
        while deliver(&client).await != "sent" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), retry).await.expect("tried again");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn limits_of_the_server_are_checked_before_sending() {
    let bare = |_: usize, command: &str| match command {
        _ if command.starts_with("EHLO") => say("250-mx.example\r\n250 SIZE 2000"),
        _ => accept(command),
    };
    let server = FakeServer::start(bare).await;
    let client = server.client();
    let big = text(&"long line\n".repeat(500));
    let letter = outgoing(json!({"from": "did:monoco:me",
        "content": {"format": "message/rfc822", "content": "Subject: x\r\n\r\ncafé\r\n"}}));
    for (message, address, code, why) in [
        (&big, "ann@example.com", "permanent 5.3.4", "accepts at most 2000"),
        (&text("x"), "jörg@example.com", "permanent 5.6.7", "SMTPUTF8"),
        (&letter, "ann@example.com", "permanent 5.6.3", "8BITMIME"),
        (&text("x"), "ann", "permanent 5.1.3", "not an address"),
        (&text("x"), "ann@example.com\r\nRCPT TO:<eve@example.com>", "permanent 5.1.3", "address"),
        (&text("x"), "a>@example.com", "permanent 5.1.3", "not allowed"),
    ] {
        let found = deliver_to(&client, message, address).await.outcome;
        assert_eq!(shown(&found), code, "{address}");
        let DeliveryOutcome::Failed(failure) = found else { panic!() };
        assert!(failure.detail().contains(why), "{failure:?}");
    }
    assert!(!server.log().iter().any(|command| command.starts_with("MAIL")));
    // The same connection still sends what fits.
    assert_eq!((deliver(&client).await, server.connections()), ("sent".to_owned(), 1));
    let server = FakeServer::start(|_, command| accept(command)).await;
    let found = deliver_to(&server.client(), &text("x"), "jörg@example.com").await.outcome;
    assert_eq!(shown(&found), "sent");
    let [mail, rcpt, ..] = &server.transaction()[..] else { panic!() };
    assert!(mail.contains(" SMTPUTF8") && !mail.contains("BODY"), "{mail}");
    assert_eq!(rcpt, "RCPT TO:<jörg@example.com> NOTIFY=FAILURE,DELAY");
}

#[tokio::test]
async fn letter_is_sent_under_its_own_envelope() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let mail = "From: someone@example.org\r\nBcc: eve@example.com\r\nMessage-ID: <1@example.org>\r\n\r\ncafé\r\n";
    let letter = outgoing(json!({
        "from": "did:msgtunnel:list%40example%2Ecom.addr.mail",
        "content": {"format": "message/rfc822", "content": mail},
    }));
    let found = deliver_to(&server.client(), &letter, "ann@example.com").await.outcome;
    let expected =
        DeliveryOutcome::Accepted { external_msg_id: Some("<1@example.org>".to_owned()) };
    assert_eq!(found, expected);
    let log = server.transaction();
    assert!(log[0].starts_with("MAIL FROM:<list@example.com> SIZE="), "{log:?}");
    assert!(log[0].contains(" BODY=8BITMIME"), "{log:?}");
    assert_eq!(log[4], format!(". {}", mail.replace("Bcc: eve@example.com\r\n", "")));
}

#[tokio::test]
async fn copies_share_id_and_recipients_without_the_blind_ones() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let did = |name: &str| format!("did:msgtunnel:{name}%40example%2Ecom.addr.mail");
    let message = outgoing(json!({
        "from": "did:monoco:me", "created_at_ms": 0,
        "to": [did("ann"), did("bob"), did("joe"), "did:web:friend"], "cc": [did("bob")],
        "bcc": [did("joe")], "content": {"title": "Hi", "content": "x"},
    }));
    let mut copies = Vec::new();
    for name in ["ann", "bob", "joe"] {
        let found = deliver_to(&server.client(), &message, &format!("{name}@example.com")).await;
        copies.push(found.sent.unwrap().bytes);
        assert!(server.transaction()[1].starts_with(&format!("RCPT TO:<{name}@example.com>")));
    }
    assert!(copies.iter().all(|copy| *copy == copies[0]));
    let mail = String::from_utf8(copies.remove(0)).unwrap();
    assert!(mail.contains("\r\nTo: ann@example.com\r\nCc: bob@example.com\r\n"), "{mail}");
    assert!(!mail.contains("joe@"), "{mail}");
}

#[tokio::test]
async fn probe_reports_what_the_server_offers() {
    let server = FakeServer::start(|_, command| accept(command)).await;
    let lines = server.client().probe().await.unwrap();
    let shown: Vec<_> = lines.iter().map(|(what, found)| format!("{what}: {found}")).collect();
    let connection = format!("SMTP connection: ok, localhost:{}, not encrypted", server.port);
    let offered = "SMTP server: 8BITMIME, SMTPUTF8, DSN, mails up to 100000000 bytes";
    assert_eq!(shown, [connection.as_str(), "SMTP login: ok, PLAIN", offered]);
    assert_eq!(server.log().last().unwrap(), "QUIT");
    let down = FakeServer::start(|_, _| say("554 5.3.2 not here")).await;
    let failure = down.client().probe().await.unwrap_err();
    assert_eq!(failure.error_code(), Some("5.3.2"));
}
