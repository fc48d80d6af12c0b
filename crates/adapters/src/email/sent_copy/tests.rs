//! Copies in the folder of a small IMAP server that the tests play.

#![expect(clippy::disallowed_methods, reason = "a test has no task group")]

use monoco_core::config::{Secret, SecretSource};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::email::config::Backfill;
use crate::net::{MailServer, TlsMode};

/// A server with one folder. Its first connections can end in the middle of an APPEND.
#[derive(Clone, Default)]
struct SentFolder {
    mails: Arc<Mutex<Vec<String>>>,
    /// How many connections are closed after the mail was stored and before the OK.
    broken: Arc<Mutex<u32>>,
    connections: Arc<Mutex<u32>>,
}

impl SentFolder {
    async fn start(&self) -> Arc<EmailConfig> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                *server.connections.lock().unwrap() += 1;
                let server = server.clone();
                tokio::spawn(async move { server.session(stream).await });
            }
        });
        Arc::new(config(port))
    }

    async fn session(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        stream.write_all(b"* OK [CAPABILITY IMAP4rev1] ready\r\n").await.ok()?;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await.ok().filter(|length| *length > 0)?;
            let (tag, command) = line.trim_end().split_once(' ')?;
            let mut answer = String::new();
            if command.starts_with("EXAMINE \"Sent\"") {
                answer.push_str("* 1 EXISTS\r\n* OK [UIDVALIDITY 1] ok\r\n* OK [UIDNEXT 9] ok\r\n");
            } else if let Some(wanted) = command.strip_prefix("UID SEARCH HEADER Message-ID ") {
                let wanted = format!("Message-ID: {}\r\n", wanted.trim_matches('"'));
                let mails = self.mails.lock().unwrap();
                let uids = (1..).zip(mails.iter()).filter(|(_, mail)| mail.contains(&wanted));
                answer.push_str("* SEARCH");
                uids.for_each(|(uid, _)| answer.push_str(&format!(" {uid}")));
                answer.push_str("\r\n");
            } else if command.starts_with("APPEND \"Sent\"") {
                let (_, size) = command.rsplit_once('{')?;
                let size: usize = size.trim_end_matches('}').parse().ok()?;
                stream.write_all(b"+ go\r\n").await.ok()?;
                let mut mail = vec![0; size + 2];
                stream.read_exact(&mut mail).await.ok()?;
                mail.truncate(size);
                self.mails.lock().unwrap().push(String::from_utf8(mail).unwrap());
                let mut broken = self.broken.lock().unwrap();
                if *broken > 0 {
                    *broken -= 1;
                    return None;
                }
            }
            answer.push_str(&format!("{tag} OK done\r\n"));
            stream.write_all(answer.as_bytes()).await.ok()?;
        }
    }

    fn ids(&self) -> Vec<String> {
        let mails = self.mails.lock().unwrap();
        mails
            .iter()
            .map(|mail| monoco_mime::header(mail.as_bytes(), "Message-ID").unwrap())
            .collect()
    }
}

fn config(port: u16) -> EmailConfig {
    let server = MailServer {
        host: "localhost".to_owned(),
        port,
        tls: TlsMode::Plain,
        ca_file: None,
        proxy: None,
    };
    EmailConfig {
        address: "team@example.com".to_owned(),
        description: None,
        username: "team".to_owned(),
        password: Some(SecretSource::Value(Secret::new("s3cret"))),
        auth: None,
        imap: server,
        smtp: None,
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
        sent_folder: Some("Sent".to_owned()),
    }
}

fn mail(id: &str) -> ComposedMail {
    ComposedMail {
        bytes: format!("Message-ID: {id}\r\nSubject: x\r\n\r\nhi\r\n").into_bytes(),
        message_id: Some(id.to_owned()),
        utf8_address: None,
    }
}

/// Copies what waits, also when the account is stopped meanwhile.
async fn finished(copies: &SentCopies) {
    let wait = copies.copy_all();
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("in time");
}

#[tokio::test]
async fn stopped_account_copies_what_waits() {
    let folder = SentFolder::default();
    let config = folder.start().await;
    let copies = SentCopies::default();
    copies.add(&config, mail("<1@example.com>"));
    let stop = CancellationToken::new();
    stop.cancel();
    copies.run(&stop).await;
    assert_eq!(folder.ids(), ["<1@example.com>"]);
}

#[tokio::test]
async fn each_message_is_copied_once() {
    let folder = SentFolder::default();
    let config = folder.start().await;
    let copies = SentCopies::default();
    for id in ["<1@example.com>", "<2@example.com>", "<1@example.com>", "<1@example.com>"] {
        copies.add(&config, mail(id));
    }
    finished(&copies).await;
    assert_eq!(folder.ids(), ["<1@example.com>", "<2@example.com>"]);
    assert_eq!(folder.mails.lock().unwrap()[0].as_bytes(), mail("<1@example.com>").bytes);
    let connections = *folder.connections.lock().unwrap();
    assert!(connections <= 2, "{connections} connections for one batch");
    // After a restart, the folder says what it has.
    let copies = SentCopies::default();
    copies.add(&config, mail("<2@example.com>"));
    copies.add(&config, mail("<3@example.com>"));
    finished(&copies).await;
    assert_eq!(folder.ids(), ["<1@example.com>", "<2@example.com>", "<3@example.com>"]);
}

/// The server stores the copy, and its answer is lost.
#[tokio::test]
async fn lost_answer_does_not_give_a_second_copy() {
    let folder = SentFolder::default();
    *folder.broken.lock().unwrap() = 1;
    let config = folder.start().await;
    let copies = SentCopies::default();
    copies.add(&config, mail("<1@example.com>"));
    copies.add(&config, mail("<2@example.com>"));
    finished(&copies).await;
    assert_eq!(folder.ids(), ["<1@example.com>", "<2@example.com>"]);
}

#[tokio::test]
async fn nothing_is_copied_without_folder_or_message_id() {
    let folder = SentFolder::default();
    let config = folder.start().await;
    let copies = SentCopies::default();
    copies.add(&config, ComposedMail { message_id: None, ..mail("<1@example.com>") });
    let without = Arc::new(EmailConfig { sent_folder: None, ..(*config).clone() });
    copies.add(&without, mail("<2@example.com>"));
    let huge = ComposedMail { bytes: vec![b'x'; MAX_WAITING_BYTES + 1], ..mail("<3@example.com>") };
    copies.add(&config, huge);
    assert!(copies.queue().waiting.is_empty());
    assert_eq!(*folder.connections.lock().unwrap(), 0);
}
