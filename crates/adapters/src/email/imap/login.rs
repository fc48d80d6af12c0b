//! Opens a connection: greeting, STARTTLS, login and ID.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use monoco_core::config::Secret;
use monoco_core::retry::Failure;

use super::error::{ImapError, RejectedCommand};
use super::folder_name::quote;
use super::response::{ImapResponse, ImapStatus, ResponseCode, shown};
use super::session::{CommandStep, ImapSession};
use super::timing::ImapTiming;
use super::wire::{ImapWire, LiteralRule};
use crate::email::config::{EmailConfig, MailAuth};
use crate::net::{ConnectLimits, MailServer, MailStream, TlsMode, connect};
use crate::secret_command::get_secret;

/// Connects and logs in.
pub async fn open_session(
    config: &EmailConfig,
    timing: ImapTiming,
) -> Result<ImapSession, ImapError> {
    let server = &config.imap;
    let stream = connect(server, ConnectLimits::default()).await.map_err(ImapError::Connect)?;
    let (mut session, logged_in) = greet(stream, timing).await?;
    if server.tls == TlsMode::StartTls {
        session = start_tls(session, logged_in, server).await?;
    }
    if !logged_in {
        // Only now, because the token that a command prints may be short-lived.
        let secret = match &config.password {
            Some(source) => get_secret(source).await.map_err(ImapError::Connect)?,
            None => Secret::default(),
        };
        login(&mut session, config, &secret).await?;
    }
    identify(&mut session).await?;
    Ok(session)
}

/// Reads the greeting. The flag tells whether the server needs no login (PREAUTH).
async fn greet(stream: MailStream, timing: ImapTiming) -> Result<(ImapSession, bool), ImapError> {
    let mut wire = ImapWire::new(stream, timing.silence);
    let (logged_in, code, text) = match wire.read(LiteralRule::SMALL).await? {
        ImapResponse::Status { status: ImapStatus::Ok, code, text } => (false, code, text),
        ImapResponse::Status { status: ImapStatus::Preauth, code, text } => (true, code, text),
        ImapResponse::Status { text, .. } => {
            let why = format!("the server rejects the connection: {}", shown(text.as_bytes()));
            return Err(ImapError::Lost(why));
        }
        _ => {
            let why = "the server does not speak IMAP; check `imap.host` and `imap.port`";
            return Err(ImapError::Lost(why.to_owned()));
        }
    };
    let mut session = ImapSession::new(wire, timing);
    session.stores_uids_by_select = text.contains("Courier-IMAP");
    session.learn_capabilities(code).await?;
    Ok((session, logged_in))
}

/// Encrypts the connection. Never continues without encryption.
async fn start_tls(
    mut session: ImapSession,
    logged_in: bool,
    server: &MailServer,
) -> Result<ImapSession, ImapError> {
    let refused = |why: &str| {
        let detail = format!(
            "{}: {why}, so the connection would not be encrypted; nothing was sent. Use \
             `tls: implicit` if the server offers it; otherwise something between this machine \
             and the server removes STARTTLS",
            server.shown()
        );
        ImapError::Connect(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
    };
    if logged_in {
        return Err(refused("the server skips the login (PREAUTH) and with it STARTTLS"));
    }
    if !session.can("STARTTLS") {
        return Err(refused("the server does not offer STARTTLS"));
    }
    match session.run("STARTTLS", "STARTTLS", |_| ()).await {
        Ok(_) => {}
        Err(ImapError::Rejected(_)) => return Err(refused("the server rejects STARTTLS")),
        Err(error) => return Err(error),
    }
    let (timing, stores_uids_by_select) = (session.timing, session.stores_uids_by_select);
    let stream = session.wire.into_stream()?;
    let stream = stream.start_tls(server, ConnectLimits::default().tls).await;
    let wire = ImapWire::new(stream.map_err(ImapError::Connect)?, timing.silence);
    // What was said before the encryption may be forged.
    let mut session = ImapSession::new(wire, timing);
    // Forged or not, it only chooses between two harmless commands.
    session.stores_uids_by_select = stores_uids_by_select;
    session.learn_capabilities(ResponseCode::Missing).await?;
    Ok(session)
}

async fn login(
    session: &mut ImapSession,
    config: &EmailConfig,
    secret: &Secret,
) -> Result<(), ImapError> {
    let auth = choose_auth(session, config.auth)?;
    let (user, secret) = (config.username.as_str(), secret.expose());
    let done = match auth {
        MailAuth::Plain => session.authenticate("PLAIN", &format!("\0{user}\0{secret}")).await,
        MailAuth::Xoauth2 => {
            let token = format!("user={user}\x01auth=Bearer {secret}\x01\x01");
            session.authenticate("XOAUTH2", &token).await
        }
        MailAuth::Login => session.login(user, secret).await,
    };
    let code = match done {
        Ok(code) => code,
        Err(ImapError::Rejected(RejectedCommand { temporary: false, text, .. })) => {
            let hint = match auth {
                MailAuth::Xoauth2 => "check that the token is valid for IMAP",
                _ => {
                    "check `username` and `password`; many providers want a separate password \
                     for programs"
                }
            };
            return Err(ImapError::Login(format!("the server rejects the login: {text}; {hint}")));
        }
        Err(error) => return Err(error),
    };
    session.capabilities.clear();
    session.learn_capabilities(code).await
}

/// Chooses how to log in: as configured, or by what the server offers.
fn choose_auth(session: &ImapSession, configured: Option<MailAuth>) -> Result<MailAuth, ImapError> {
    match configured {
        Some(auth @ (MailAuth::Plain | MailAuth::Xoauth2)) => return Ok(auth),
        None if session.can("AUTH=PLAIN") => return Ok(MailAuth::Plain),
        // The server rejects the command, and the password would have been sent for nothing.
        _ if session.can("LOGINDISABLED") => {}
        _ => return Ok(MailAuth::Login),
    }
    let offered: Vec<_> =
        session.capabilities.iter().filter_map(|name| name.strip_prefix("AUTH=")).collect();
    let hint = match offered.contains(&"XOAUTH2") {
        true => "; set `auth: xoauth2` and a `password_command` that prints a token",
        false => "",
    };
    let offered = shown(offered.join(", ").as_bytes());
    Err(ImapError::Login(format!(
        "the server accepts no password on this connection; it offers: {offered}{hint}"
    )))
}

/// Tells the server which program this is, when it wants to know. Some providers in China
/// reject the account otherwise. Errors do not matter.
async fn identify(session: &mut ImapSession) -> Result<(), ImapError> {
    if !session.can("ID") {
        return Ok(());
    }
    let version = env!("CARGO_PKG_VERSION");
    let command =
        format!("ID (\"name\" \"monoco\" \"version\" \"{version}\" \"vendor\" \"monoco\")");
    match session.run("ID", &command, |_| ()).await {
        Ok(_) | Err(ImapError::Rejected(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

impl ImapSession {
    /// Takes the capabilities from a code or asks for them. Servers can announce them with the
    /// answer to a command.
    async fn learn_capabilities(&mut self, code: ResponseCode) -> Result<(), ImapError> {
        let mut found = match code {
            ResponseCode::Capability(found) => found,
            _ => Vec::new(),
        };
        if found.is_empty() {
            self.run("CAPABILITY", "CAPABILITY", |response| {
                if let ImapResponse::Capability(names) = response {
                    found = names;
                }
            })
            .await?;
        }
        self.capabilities = found.iter().map(|name| name.to_ascii_uppercase()).collect();
        Ok(())
    }

    /// Logs in by a SASL mechanism with one response. Returns the code of the OK.
    async fn authenticate(
        &mut self,
        mechanism: &str,
        response: &str,
    ) -> Result<ResponseCode, ImapError> {
        self.wire.set_limit(self.timing.command);
        let response = STANDARD.encode(response);
        let (command, mut unsent) = match self.can("SASL-IR") {
            true => (format!("AUTHENTICATE {mechanism} {response}"), None),
            false => (format!("AUTHENTICATE {mechanism}"), Some(response)),
        };
        let tag = self.wire.send(&command).await?;
        let mut reason = String::new();
        loop {
            match self.next("AUTHENTICATE", &tag, LiteralRule::SMALL).await {
                Ok(CommandStep::Response(ImapResponse::Continue(text))) => {
                    // A second challenge is the reason of a rejection (XOAUTH2): the client
                    // answers with nothing, and the server says NO.
                    if unsent.is_none() {
                        let decoded = STANDARD.decode(&text).unwrap_or_default();
                        reason = shown(&decoded);
                    }
                    self.wire.send_line(&unsent.take().unwrap_or_default()).await?;
                }
                Ok(CommandStep::Response(_)) => {}
                Ok(CommandStep::Done(code)) => return Ok(code),
                Err(ImapError::Rejected(mut rejected)) => {
                    if !reason.is_empty() {
                        rejected.text = format!("{} ({reason})", rejected.text);
                    }
                    return Err(ImapError::Rejected(rejected));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Logs in with the command LOGIN. Returns the code of the OK.
    async fn login(&mut self, user: &str, password: &str) -> Result<ResponseCode, ImapError> {
        self.wire.set_limit(self.timing.command);
        // Quoted strings hold ASCII only; everything else is sent as a literal.
        let is_plain = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        let mut literals = Vec::new();
        let mut command = String::from("LOGIN");
        for text in [user, password] {
            if is_plain(text) && literals.is_empty() {
                command += &format!(" {}", quote(text));
            } else {
                literals.push(text);
            }
        }
        let mut literals = literals.into_iter().peekable();
        if let Some(first) = literals.peek() {
            command += &format!(" {{{}}}", first.len());
        }
        let tag = self.wire.send(&command).await?;
        loop {
            match self.next("LOGIN", &tag, LiteralRule::SMALL).await? {
                CommandStep::Response(ImapResponse::Continue(_)) => {
                    let mut line = literals.next().unwrap_or_default().to_owned();
                    if let Some(next) = literals.peek() {
                        line += &format!(" {{{}}}", next.len());
                    }
                    self.wire.send_line(&line).await?;
                }
                CommandStep::Response(_) => {}
                CommandStep::Done(code) => return Ok(code),
            }
        }
    }
}
