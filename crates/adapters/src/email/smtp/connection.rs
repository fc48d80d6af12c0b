//! One connection to an SMTP server: commands, replies, encryption and login.
//!
//! Commands are not pipelined: each failure has the stage in which it happened. Bytes that the
//! server sends without being asked are never taken as a reply to a later command.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use monoco_core::retry::Failure;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

use super::failure::{SmtpError, SmtpStage};
use super::reply::{SmtpExtensions, SmtpReply};
use super::{SmtpLimits, SmtpLogin};
use crate::email::config::MailAuth;
use crate::net::{self, ConnectLimits, MailServer, MailStream, TlsMode};
use crate::secret_command::get_secret;

/// Largest number of bytes that are received and not read yet.
const MAX_BUFFERED_BYTES: usize = 64 << 10;

/// Size of the blocks in which a mail is sent.
const BLOCK_BYTES: usize = 32 << 10;

/// How long to wait for a last reply of a server that closes while the mail is being sent.
const LAST_REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that is encrypted and logged in, as far as the account asks for it.
#[derive(Debug)]
pub struct SmtpConnection {
    stream: MailStream,
    /// Received and not read yet.
    received: Vec<u8>,
    limits: SmtpLimits,
    /// When the steps before the final dot must be done.
    deadline: Instant,
    pub extensions: SmtpExtensions,
    /// The mechanism of the login; `None` when the server offers no login.
    pub mechanism: Option<&'static str>,
}

/// The addresses and parameters of one transaction.
#[derive(Clone, Copy, Debug)]
pub struct SmtpEnvelope<'a> {
    pub sender: &'a str,
    pub recipient: &'a str,
    /// Repeated by the server in a delivery status notification (RFC 3461).
    pub envelope_id: Option<&'a str>,
    pub is_utf8: bool,
    pub is_eight_bit: bool,
}

impl SmtpConnection {
    /// Connects, encrypts and logs in.
    pub async fn open(
        server: &MailServer,
        login: &SmtpLogin,
        host_name: &str,
        limits: SmtpLimits,
    ) -> Result<Self, SmtpError> {
        let deadline = Instant::now() + limits.before_end;
        let connect = ConnectLimits { connect: limits.connect, tls: limits.connect };
        let stream = net::connect(server, connect).await.map_err(SmtpError::Stopped)?;
        let mut connection = Self {
            stream,
            received: Vec::new(),
            limits,
            deadline,
            extensions: SmtpExtensions::default(),
            mechanism: None,
        };
        let greeting = connection.reply(SmtpStage::Greeting, limits.command).await?;
        expect(SmtpStage::Greeting, greeting, 200..300)?;
        connection.hello(host_name).await?;
        if server.tls == TlsMode::StartTls {
            connection = connection.start_tls(server).await?;
            connection.hello(host_name).await?;
        }
        connection.log_in(server, login).await?;
        Ok(connection)
    }

    /// Introduces the client. A server that does not know EHLO gets HELO, and has no extensions
    /// then (RFC 5321, section 3.2).
    async fn hello(&mut self, host_name: &str) -> Result<(), SmtpError> {
        let reply = self.command(SmtpStage::Ehlo, &format!("EHLO {host_name}")).await?;
        if matches!(reply.code, 500 | 502 | 504) {
            let reply = self.command(SmtpStage::Ehlo, &format!("HELO {host_name}")).await?;
            expect(SmtpStage::Ehlo, reply, 200..300)?;
            self.extensions = SmtpExtensions::default();
            return Ok(());
        }
        self.extensions = expect(SmtpStage::Ehlo, reply, 200..300)?.extensions();
        Ok(())
    }

    /// Encrypts the connection. A server that does not offer it, or sends more than its answer
    /// before the handshake, is not trusted.
    async fn start_tls(mut self, server: &MailServer) -> Result<Self, SmtpError> {
        if !self.extensions.starttls {
            return Err(stopped(format!(
                "{} does not offer STARTTLS; nothing is sent without encryption: check `port` and \
                 `tls`",
                server.shown()
            )));
        }
        let reply = self.command(SmtpStage::StartTls, "STARTTLS").await?;
        expect(SmtpStage::StartTls, reply, 200..300)?;
        if !self.received.is_empty() {
            let why = "the server sent plain text before the encryption".to_owned();
            return Err(SmtpError::Lost { stage: SmtpStage::StartTls, why });
        }
        let limit = self.limits.connect;
        let stream = self.stream.start_tls(server, limit).await.map_err(SmtpError::Stopped)?;
        Ok(Self { stream, extensions: SmtpExtensions::default(), ..self })
    }

    /// Logs in, when the server offers it.
    async fn log_in(&mut self, server: &MailServer, login: &SmtpLogin) -> Result<(), SmtpError> {
        let Some(source) = &login.password else { return Ok(()) };
        let offered = |name: &str| self.extensions.auth.iter().any(|offered| offered == name);
        let mechanism = match login.auth {
            Some(MailAuth::Plain) => "PLAIN",
            Some(MailAuth::Login) => "LOGIN",
            Some(MailAuth::Xoauth2) => "XOAUTH2",
            None if offered("PLAIN") => "PLAIN",
            None if offered("LOGIN") => "LOGIN",
            None if self.extensions.auth.is_empty() => return Ok(()),
            None => "PLAIN",
        };
        if !offered(mechanism) {
            return Err(stopped(format!(
                "{} does not offer AUTH {mechanism}; it offers: {}",
                server.shown(),
                self.extensions.auth.join(", ").escape_debug()
            )));
        }
        if !self.stream.is_encrypted() && server.tls != TlsMode::Plain {
            return Err(stopped(format!("{}: no login without encryption", server.shown())));
        }
        let secret = get_secret(source).await.map_err(SmtpError::Stopped)?;
        let (user, secret) = (login.username.as_str(), secret.expose());
        let (first, answers) = match mechanism {
            "LOGIN" => (None, vec![STANDARD.encode(user), STANDARD.encode(secret)]),
            "PLAIN" => (Some(format!("\0{user}\0{secret}")), Vec::new()),
            // A rejected token is answered with 334 and a reason, then with 535.
            _ => {
                let token = format!("user={user}\u{1}auth=Bearer {secret}\u{1}\u{1}");
                (Some(token), vec![String::new()])
            }
        };
        let first = first.map(|first| format!(" {}", STANDARD.encode(first))).unwrap_or_default();
        let mut reply = self.command(SmtpStage::Auth, &format!("AUTH {mechanism}{first}")).await?;
        for answer in answers {
            if reply.code == 334 {
                reply = self.command(SmtpStage::Auth, &answer).await?;
            }
        }
        expect(SmtpStage::Auth, reply, 200..300)?;
        self.mechanism = Some(mechanism);
        Ok(())
    }

    /// Prepares a connection that was idle. An error means that it cannot be used.
    pub async fn reset(&mut self) -> Result<(), SmtpError> {
        self.deadline = Instant::now() + self.limits.connect;
        let reply = self.command(SmtpStage::Reset, "RSET").await?;
        expect(SmtpStage::Reset, reply, 200..300)?;
        self.deadline = Instant::now() + self.limits.before_end;
        Ok(())
    }

    /// Sends one mail to one recipient.
    pub async fn send(
        &mut self,
        envelope: &SmtpEnvelope<'_>,
        mail: &[u8],
    ) -> Result<(), SmtpError> {
        let mut line = format!("MAIL FROM:<{}>", envelope.sender);
        if self.extensions.size {
            line.push_str(&format!(" SIZE={}", mail.len()));
        }
        if envelope.is_eight_bit && self.extensions.eight_bit {
            line.push_str(" BODY=8BITMIME");
        }
        if envelope.is_utf8 {
            line.push_str(" SMTPUTF8");
        }
        let envelope_id = envelope.envelope_id.filter(|_| self.extensions.dsn);
        if let Some(id) = envelope_id {
            line.push_str(&format!(" RET=HDRS ENVID={}", xtext(id)));
        }
        let reply = self.command(SmtpStage::Mail, &line).await?;
        expect(SmtpStage::Mail, reply, 200..300)?;

        let mut line = format!("RCPT TO:<{}>", envelope.recipient);
        if envelope_id.is_some() {
            line.push_str(" NOTIFY=FAILURE,DELAY");
            if envelope.recipient.is_ascii() {
                line.push_str(&format!(" ORCPT=rfc822;{}", xtext(envelope.recipient)));
            }
        }
        let reply = self.command(SmtpStage::Rcpt, &line).await?;
        expect(SmtpStage::Rcpt, reply, 200..300)?;

        let reply = self.command(SmtpStage::Data, "DATA").await?;
        expect(SmtpStage::Data, reply, 300..400)?;
        self.send_content(mail).await?;
        let reply = self.reply(SmtpStage::End, self.limits.final_reply).await?;
        expect(SmtpStage::End, reply, 200..300)?;
        Ok(())
    }

    /// Sends the mail and the final dot. When this fails, the server has not received the dot: a
    /// write that fails was not passed to the network as a whole.
    async fn send_content(&mut self, mail: &[u8]) -> Result<(), SmtpError> {
        let mut block = Vec::with_capacity(BLOCK_BYTES * 2);
        let mut is_line_start = true;
        for piece in mail.chunks(BLOCK_BYTES) {
            block.clear();
            for line in piece.split_inclusive(|byte| *byte == b'\n') {
                if is_line_start && line.starts_with(b".") {
                    block.push(b'.');
                }
                block.extend_from_slice(line);
                is_line_start = line.ends_with(b"\n");
            }
            self.write_content(&block).await?;
        }
        if !is_line_start {
            self.write_content(b"\r\n").await?;
        }
        // A server that has closed or rejected already does not get the dot.
        self.check_silence(SmtpStage::Content).await?;
        self.write_content(b".\r\n").await
    }

    async fn write_content(&mut self, block: &[u8]) -> Result<(), SmtpError> {
        let Err(lost) = self.write(SmtpStage::Content, block, self.limits.data_block).await else {
            return Ok(());
        };
        // A server that does not want the rest says why and closes.
        self.deadline = Instant::now() + LAST_REPLY_TIMEOUT;
        match self.reply(SmtpStage::Content, LAST_REPLY_TIMEOUT).await {
            Ok(reply) if reply.code >= 400 => {
                Err(SmtpError::Rejected { stage: SmtpStage::Content, reply })
            }
            _ => Err(lost),
        }
    }

    /// Ends the session with QUIT, without waiting for long.
    pub async fn quit(mut self) {
        self.deadline = Instant::now() + LAST_REPLY_TIMEOUT;
        if self.command(SmtpStage::Reset, "QUIT").await.is_ok() {
            let _ = tokio::time::timeout(LAST_REPLY_TIMEOUT, self.stream.shutdown()).await;
        }
    }

    /// Tells whether the server has sent something that no command asked for.
    pub fn has_unread_bytes(&self) -> bool {
        !self.received.is_empty()
    }

    /// Sends a line and reads the reply to it.
    async fn command(&mut self, stage: SmtpStage, line: &str) -> Result<SmtpReply, SmtpError> {
        if line.contains(['\r', '\n']) {
            let detail = format!("a line break in a command {stage}");
            return Err(SmtpError::Stopped(Failure::Permanent { detail, error_code: None }));
        }
        self.check_silence(stage).await?;
        let line = format!("{line}\r\n");
        self.write(stage, line.as_bytes(), self.limits.command).await?;
        self.reply(stage, self.limits.command).await
    }

    /// Checks that the server has sent nothing that was not asked for, and has not closed.
    async fn check_silence(&mut self, stage: SmtpStage) -> Result<(), SmtpError> {
        if self.received.is_empty() {
            let read = self.stream.read_buf(&mut self.received);
            match tokio::time::timeout(Duration::ZERO, read).await {
                Err(_) => return Ok(()),
                Ok(Ok(0)) => return Err(lost(stage, "the server closed the connection")),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(lost(stage, error)),
            }
        }
        match self.reply(stage, LAST_REPLY_TIMEOUT).await? {
            // The only reply that a server may send without a command (RFC 5321, section 3.8).
            reply if reply.code == 421 => Err(SmtpError::Rejected { stage, reply }),
            // A server that rejects the mail before its end, such as one with a size limit.
            reply if stage == SmtpStage::Content && reply.code >= 400 => {
                Err(SmtpError::Rejected { stage, reply })
            }
            reply => {
                Err(lost(stage, format!("the server said without a command: {}", reply.shown())))
            }
        }
    }

    async fn write(
        &mut self,
        stage: SmtpStage,
        bytes: &[u8],
        limit: Duration,
    ) -> Result<(), SmtpError> {
        let until = (Instant::now() + limit).min(self.deadline);
        let write = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        match timeout_at(until, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(stage, error)),
            Err(_) => Err(lost(stage, "the server does not read")),
        }
    }

    async fn reply(&mut self, stage: SmtpStage, limit: Duration) -> Result<SmtpReply, SmtpError> {
        let started = Instant::now();
        // The wait after the final dot has a time limit of its own.
        let until = match stage {
            SmtpStage::End => started + limit,
            _ => (started + limit).min(self.deadline),
        };
        loop {
            match SmtpReply::read(&self.received) {
                Ok(Some((reply, length))) => {
                    self.received.drain(..length);
                    return Ok(reply);
                }
                Ok(None) if self.received.len() < MAX_BUFFERED_BYTES => {}
                Ok(None) => return Err(lost(stage, "the reply is too long")),
                Err(error) => return Err(lost(stage, error)),
            }
            match timeout_at(until, self.stream.read_buf(&mut self.received)).await {
                Ok(Ok(0)) => return Err(lost(stage, "the server closed the connection")),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(lost(stage, error)),
                Err(_) => {
                    let secs = started.elapsed().as_secs();
                    return Err(lost(stage, format!("no reply within {secs} s")));
                }
            }
        }
    }
}

/// Returns the reply if its code is in the range.
fn expect(
    stage: SmtpStage,
    reply: SmtpReply,
    codes: std::ops::Range<u16>,
) -> Result<SmtpReply, SmtpError> {
    if codes.contains(&reply.code) { Ok(reply) } else { Err(SmtpError::Rejected { stage, reply }) }
}

fn lost(stage: SmtpStage, why: impl ToString) -> SmtpError {
    SmtpError::Lost { stage, why: why.to_string() }
}

/// The server or the network is not as configured; the message is not the reason.
fn stopped(detail: String) -> SmtpError {
    SmtpError::Stopped(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
}

/// Encodes a parameter value (RFC 3461, section 4).
fn xtext(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'+' && byte != b'=' => out.push(char::from(byte)),
            _ => out.push_str(&format!("+{byte:02X}")),
        }
    }
    out
}
