//! Sends mails by SMTP: one transaction per delivery, over connections that are kept for a while.
//!
//! The client is the project's own, see `docs/adr/0011-smtp-client.md`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use monoco_core::config::SecretSource;
use monoco_core::delivery::DeliveryOutcome;
use monoco_core::did::{Did, TunnelId};
use monoco_core::inbound::InboundAttachment;
use monoco_core::letter::RFC822;
use monoco_core::retry::Failure;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod connection;
mod failure;
mod reply;
#[cfg(test)]
mod tests;

use connection::{SmtpConnection, SmtpEnvelope};
use failure::{SmtpError, SmtpStage};

use super::compose::{ComposeRequest, ComposedMail, check_mail_address, compose};
use super::config::{EmailConfig, MailAuth};
use super::envelope_key::EnvelopeKey;
use crate::net::{MailServer, TlsMode};
use crate::{DeliveryRequest, read_attachments};

/// Limit of the attachments of one mail together, in bytes. Few servers accept larger mails.
const MAX_ATTACHMENT_BYTES: u64 = 32 << 20;

/// How many idle connections are kept.
const MAX_IDLE: usize = 2;

/// How many mails go through one connection. Servers have such limits of their own.
const MAX_MAILS_PER_CONNECTION: u32 = 100;

/// How long QUIT on the idle connections may take when the account is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// How long one attempt may take: all steps before the final dot, the wait after it, and what is
/// between them.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(21 * 60);

/// Time limits of a session (RFC 5321, section 4.5.3.2).
#[derive(Clone, Copy, Debug)]
pub struct SmtpLimits {
    /// Time for TCP and the proxy, then for the TLS handshake, and for a check of an idle
    /// connection.
    pub connect: Duration,
    /// Time for the greeting, and for each command with its reply.
    pub command: Duration,
    /// Time until the server has read one block of the mail.
    pub data_block: Duration,
    /// Time for all steps before the final dot together.
    pub before_end: Duration,
    /// Time for the reply to the final dot. Servers check the mail before they answer.
    pub final_reply: Duration,
    /// How long an idle connection is kept.
    pub idle: Duration,
    /// How long no login is tried after the server has rejected one. Servers lock accounts that
    /// repeat a wrong password.
    pub login_pause: Duration,
}

impl Default for SmtpLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            command: Duration::from_secs(300),
            data_block: Duration::from_secs(180),
            before_end: Duration::from_secs(600),
            final_reply: Duration::from_secs(600),
            idle: Duration::from_secs(30),
            login_pause: Duration::from_secs(300),
        }
    }
}

/// How to log in at the server.
#[derive(Clone, Debug)]
pub struct SmtpLogin {
    pub username: String,
    pub password: Option<SecretSource>,
    /// `None`: PLAIN or LOGIN, as the server offers.
    pub auth: Option<MailAuth>,
}

/// The sending side of an account.
#[derive(Debug)]
pub struct SmtpClient {
    tunnel: TunnelId,
    server: MailServer,
    login: SmtpLogin,
    /// The address of the account: author and envelope sender of what is sent.
    address: String,
    /// The name in EHLO: the domain of the account's address.
    host_name: String,
    limits: SmtpLimits,
    envelope_key: Option<EnvelopeKey>,
    pool: SmtpPool,
}

/// The result of one attempt.
#[derive(Clone, Debug)]
pub struct SmtpResult {
    pub outcome: DeliveryOutcome,
    /// The mail, when the server has accepted it.
    pub sent: Option<ComposedMail>,
}

/// Idle connections, and the last rejected login.
#[derive(Debug, Default)]
struct SmtpPool {
    idle: Mutex<Vec<IdleConnection>>,
    /// Set while [`SmtpClient::close_idle`] runs. Without it no connection is kept.
    is_watched: AtomicBool,
    /// Notified when a connection becomes idle.
    changed: Notify,
    rejected_login: Mutex<Option<(Instant, Failure)>>,
}

#[derive(Debug)]
struct IdleConnection {
    connection: SmtpConnection,
    since: Instant,
    mails: u32,
}

impl SmtpClient {
    /// Returns the client of an account, or `None` when the account only receives.
    pub fn new(
        tunnel: TunnelId,
        config: &EmailConfig,
        envelope_key: Option<EnvelopeKey>,
        limits: SmtpLimits,
    ) -> Option<Self> {
        let address = check_mail_address("address", &config.address).ok();
        let address = address.unwrap_or_else(|| config.address.clone());
        let host_name = address.rsplit_once('@').map_or("localhost", |(_, domain)| domain);
        Some(Self {
            tunnel,
            server: config.smtp.clone()?,
            login: SmtpLogin {
                username: config.username.clone(),
                password: config.password.clone(),
                auth: config.auth,
            },
            host_name: host_name.to_owned(),
            address,
            limits,
            envelope_key,
            pool: SmtpPool::default(),
        })
    }

    /// Makes one attempt to send a message to one recipient. `config` has the current name and
    /// address of the author.
    pub async fn deliver(&self, request: &DeliveryRequest<'_>, config: &EmailConfig) -> SmtpResult {
        match self.attempt(request, config).await {
            Ok(sent) => {
                let external_msg_id = sent.message_id.clone();
                let outcome = DeliveryOutcome::Accepted { external_msg_id };
                SmtpResult { outcome, sent: Some(sent) }
            }
            Err(failure) => SmtpResult { outcome: DeliveryOutcome::Failed(failure), sent: None },
        }
    }

    /// Closes connections that have been idle for too long, until `stop`; then all of them.
    /// Connections are kept only while this runs.
    pub async fn close_idle(&self, stop: &CancellationToken) {
        self.pool.is_watched.store(true, Ordering::SeqCst);
        while !stop.is_cancelled() {
            for entry in self.pool.take_old(self.limits.idle) {
                entry.connection.quit().await;
            }
            let due = self.pool.oldest().map(|since| since + self.limits.idle);
            let wait = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => self.pool.changed.notified().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = wait => {}
            }
        }
        self.pool.is_watched.store(false, Ordering::SeqCst);
        let quit = async {
            for entry in self.pool.take_old(Duration::ZERO) {
                entry.connection.quit().await;
            }
        };
        let _ = tokio::time::timeout(STOP_TIMEOUT, quit).await;
    }

    /// Connects, logs in and ends the session. Returns what was found, line by line.
    pub async fn probe(&self) -> Result<Vec<(String, String)>, Failure> {
        let connection = self.connect().await?;
        let extensions = &connection.extensions;
        let offered = [
            (extensions.eight_bit, "8BITMIME".to_owned()),
            (extensions.smtp_utf8, "SMTPUTF8".to_owned()),
            (extensions.dsn, "DSN".to_owned()),
            (
                extensions.max_size.is_some(),
                format!("mails up to {} bytes", extensions.max_size.unwrap_or_default()),
            ),
        ];
        let offered: Vec<_> =
            offered.into_iter().filter(|(has, _)| *has).map(|(_, what)| what).collect();
        let encrypted = match self.server.tls {
            TlsMode::Implicit => "TLS",
            TlsMode::StartTls => "STARTTLS",
            TlsMode::Plain => "not encrypted",
        };
        let login = match connection.mechanism {
            Some(mechanism) => format!("ok, {mechanism}"),
            None => "not offered by the server; mails are sent without login".to_owned(),
        };
        let lines = vec![
            ("SMTP connection".to_owned(), format!("ok, {}, {encrypted}", self.server.shown())),
            ("SMTP login".to_owned(), login),
            ("SMTP server".to_owned(), offered.join(", ")),
        ];
        connection.quit().await;
        Ok(lines)
    }

    async fn attempt(
        &self,
        request: &DeliveryRequest<'_>,
        config: &EmailConfig,
    ) -> Result<ComposedMail, Failure> {
        let recipient = check_mail_address("recipient", request.address)
            .map_err(|error| permanent(error.to_string(), "5.1.3"))?;
        let attachments = read_attachments(request, MAX_ATTACHMENT_BYTES).await?;
        let (mut connection, mails) = self.checkout().await?;
        let mail = match self.compose(request, &attachments, config, &recipient, &connection) {
            Ok(mail) => mail,
            Err(failure) => {
                self.pool.put(connection, mails).await;
                return Err(failure);
            }
        };
        let sender = self.envelope_sender(request);
        let token = self.envelope_key.as_ref().map(|key| key.envelope_id(&request.key));
        let envelope = SmtpEnvelope {
            sender: &sender,
            recipient: &recipient,
            envelope_id: token.as_deref(),
            is_utf8: mail.utf8_address.is_some() || !recipient.is_ascii() || !sender.is_ascii(),
            is_eight_bit: !mail.bytes.is_ascii(),
        };
        let sent = connection.send(&envelope, &mail.bytes).await;
        let is_usable = sent.as_ref().map_or_else(SmtpError::is_connection_usable, |()| true);
        if is_usable && !connection.has_unread_bytes() {
            self.pool.put(connection, mails + 1).await;
        }
        sent.map(|()| mail).map_err(|error| self.failure(error))
    }

    /// Writes the mail and checks it against what the server accepts.
    fn compose(
        &self,
        request: &DeliveryRequest<'_>,
        attachments: &[InboundAttachment],
        config: &EmailConfig,
        recipient: &str,
        connection: &SmtpConnection,
    ) -> Result<ComposedMail, Failure> {
        let extensions = &connection.extensions;
        let addresses =
            |dids: &[Did]| -> Vec<String> { dids.iter().filter_map(mail_address).collect() };
        let (to, cc) = (addresses(&request.message.to), addresses(&request.message.cc));
        let domain = self.address.rsplit_once('@').map_or("localhost", |(_, domain)| domain);
        let message_id = message_id(request, domain);
        let mail = compose(&ComposeRequest {
            message: request.message,
            attachments,
            from_address: &self.address,
            from_name: config.from_name.as_deref(),
            to: &to,
            cc: &cc,
            message_id: &message_id,
            now: request.now,
            eight_bit: extensions.eight_bit,
        })
        .map_err(|error| permanent(error.to_string(), "5.6.0"))?;
        let server = self.server.shown();
        let utf8_address = mail.utf8_address.as_deref();
        let utf8_address = utf8_address.or_else(|| (!recipient.is_ascii()).then_some(recipient));
        if let Some(address) = utf8_address.filter(|_| !extensions.smtp_utf8) {
            let detail = format!(
                "{server} does not support addresses with other than ASCII characters (SMTPUTF8): \
                 {address}"
            );
            return Err(permanent(detail, "5.6.7"));
        }
        if let Some(max) = extensions.max_size.filter(|max| mail.bytes.len() as u64 > *max) {
            let size = mail.bytes.len();
            let detail = format!("the mail has {size} bytes; {server} accepts at most {max}");
            return Err(permanent(detail, "5.3.4"));
        }
        if !extensions.eight_bit && !mail.bytes.is_ascii() {
            let detail = format!(
                "the mail has bytes above 127, and {server} does not support them (8BITMIME); \
                 encode its parts as base64 or quoted-printable"
            );
            return Err(permanent(detail, "5.6.3"));
        }
        Ok(mail)
    }

    /// Returns the envelope sender: the address of the account, or the sender of a letter.
    fn envelope_sender(&self, request: &DeliveryRequest<'_>) -> String {
        let is_letter = request.message.format.as_deref() == Some(RFC822);
        let author = request.message.author.parse::<Did>().ok().filter(|_| is_letter);
        let author = author.and_then(|did| did.endpoint());
        author
            .filter(|endpoint| endpoint.tunnel == self.tunnel)
            .and_then(|endpoint| check_mail_address("sender", &endpoint.account).ok())
            .unwrap_or_else(|| self.address.clone())
    }

    fn failure(&self, error: SmtpError) -> Failure {
        failure::failure(error, &self.server.shown(), self.limits.login_pause)
    }

    /// Returns a connection and how many mails it has sent. An idle one is checked first.
    async fn checkout(&self) -> Result<(SmtpConnection, u32), Failure> {
        if let Some(IdleConnection { mut connection, mails, .. }) = self.pool.take()
            && connection.reset().await.is_ok()
        {
            return Ok((connection, mails));
        }
        Ok((self.connect().await?, 0))
    }

    /// Opens a connection. After a rejected login, none is opened for a while.
    async fn connect(&self) -> Result<SmtpConnection, Failure> {
        if let Some((at, failure)) = lock(&self.pool.rejected_login).clone()
            && at.elapsed() < self.limits.login_pause
        {
            return Err(failure);
        }
        let opened =
            SmtpConnection::open(&self.server, &self.login, &self.host_name, self.limits).await;
        let is_rejected_login = matches!(
            &opened,
            Err(SmtpError::Rejected { stage: SmtpStage::Auth, reply }) if reply.code >= 500
        );
        let opened = opened.map_err(|error| self.failure(error));
        *lock(&self.pool.rejected_login) = match &opened {
            Err(failure) if is_rejected_login => Some((Instant::now(), failure.clone())),
            _ => None,
        };
        opened
    }
}

impl SmtpPool {
    /// Takes the connection that was used last.
    fn take(&self) -> Option<IdleConnection> {
        lock(&self.idle).pop()
    }

    /// Keeps a connection until it is used again or was idle for too long, or closes it.
    async fn put(&self, connection: SmtpConnection, mails: u32) {
        let closed = {
            let mut idle = lock(&self.idle);
            let is_kept = self.is_watched.load(Ordering::SeqCst)
                && mails < MAX_MAILS_PER_CONNECTION
                && idle.len() < MAX_IDLE;
            match is_kept {
                true => {
                    idle.push(IdleConnection { connection, since: Instant::now(), mails });
                    None
                }
                false => Some(connection),
            }
        };
        match closed {
            Some(connection) => connection.quit().await,
            None => self.changed.notify_one(),
        }
    }

    /// Removes connections that have been idle for at least `timeout`.
    fn take_old(&self, timeout: Duration) -> Vec<IdleConnection> {
        let mut idle = lock(&self.idle);
        idle.extract_if(.., |entry| entry.since.elapsed() >= timeout).collect()
    }

    /// Returns when the oldest connection became idle.
    fn oldest(&self) -> Option<Instant> {
        lock(&self.idle).iter().map(|entry| entry.since).min()
    }
}

/// Returns the mail address of an endpoint.
fn mail_address(did: &Did) -> Option<String> {
    did.endpoint().map(|endpoint| endpoint.account).filter(|account| account.contains('@'))
}

/// Returns the message id of a message, which is the same for all recipients and attempts: the
/// beginning of the object's hash.
fn message_id(request: &DeliveryRequest<'_>, domain: &str) -> String {
    let hex: String = request.key.msg_prefix().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("<{hex}@{domain}>")
}

fn permanent(detail: String, code: &str) -> Failure {
    Failure::Permanent { detail, error_code: Some(code.to_owned()) }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
