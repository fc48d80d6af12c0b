//! Single operations on an account, each over a connection of its own: the checks of `probe`, and
//! mails of the first folder.

use std::fmt::Write as _;

use monoco_core::time::Timestamp;

use super::error::ImapError;
use super::login::open_session;
use super::response::{FetchData, ImapResponse, Literal, shown};
use super::scan::{top_uid, uid_set};
use super::session::{CommandStep, ImapSession, MailSection, OpenFolder};
use super::timing::ImapTiming;
use super::wire::LiteralRule;
use crate::email::IncomingEmail;
use crate::email::config::EmailConfig;
use crate::email::sent_copy::SentCopy;

/// Most mails that one call returns.
const MAX_EMAILS: u32 = 100;

/// Mails above this size are returned with their start only.
const MAX_EMAIL_BYTES: usize = 4 << 20;

/// The range of UIDs that is listed first.
const FIRST_RANGE: u32 = 1_000;

/// Most UIDs that are listed at once.
const MAX_LIST: usize = 10_000;

/// Capabilities that change how the account is watched, for the report of `probe`.
const SHOWN_CAPABILITIES: [&str; 5] = ["IDLE", "ID", "UIDPLUS", "CONDSTORE", "SPECIAL-USE"];

/// Connects, logs in and opens every folder. Returns what was checked and what was found.
pub async fn probe(config: &EmailConfig) -> Result<Vec<(String, String)>, ImapError> {
    let mut session = open_session(config, ImapTiming::default()).await?;
    let encrypted = if session.wire.is_encrypted() { "TLS" } else { "not encrypted" };
    let server = format!("{}, {encrypted}", config.imap.shown());
    let mut lines = vec![("IMAP server".to_owned(), server)];
    let known = SHOWN_CAPABILITIES.into_iter().filter(|name| session.can(name));
    let known: Vec<_> = known.collect();
    let mut login = format!("ok as {}", config.username.escape_debug());
    if !known.is_empty() {
        let _ = write!(login, "; {}", known.join(", "));
    }
    if config.idle && !session.can("IDLE") {
        let _ = write!(login, "; no IDLE: checked every {} s", config.poll.as_secs());
    }
    lines.push(("IMAP login".to_owned(), login));
    for folder in &config.folders {
        let found = match session.open_folder(folder, config.mark_seen).await {
            Ok(found) => found,
            Err(error @ ImapError::Folder(..)) => {
                return Err(explain_folders(&mut session, error).await);
            }
            Err(error) => return Err(error),
        };
        let next = found.uid_next.map(|next| format!(", next UID {next}"));
        let text = format!("{} mails{}", found.exists, next.unwrap_or_default());
        lines.push((format!("folder {}", folder.escape_debug()), text));
    }
    session.logout().await;
    Ok(lines)
}

/// Adds the names of the folders that exist to an error about a folder.
async fn explain_folders(session: &mut ImapSession, error: ImapError) -> ImapError {
    match (error, session.folders().await) {
        (ImapError::Folder(folder, mut rejected), Ok(folders)) => {
            let names: Vec<_> = folders.into_iter().map(|(name, _)| name).collect();
            let _ = write!(rejected.text, " (folders: {})", shown(names.join(", ").as_bytes()));
            ImapError::Folder(folder, rejected)
        }
        (error, _) => error,
    }
}

/// Fetches the newest mails, oldest first.
pub async fn recent_emails(
    config: &EmailConfig,
    count: u32,
) -> Result<Vec<IncomingEmail>, ImapError> {
    let (mut session, folder) = open(config).await?;
    let count = count.min(MAX_EMAILS).min(folder.exists);
    let mut emails = Vec::new();
    if count > 0
        && let Some(first) = session.mail_at(folder.exists - count + 1).await?
    {
        let top = top_uid(&mut session, folder).await?;
        let uids = next_uids(&mut session, first.uid, top, count as usize).await?;
        emails = fetch(&mut session, &uids).await?;
    }
    session.logout().await;
    Ok(emails)
}

/// Fetches mails with a UID above `start`. The flag tells whether there are more.
pub async fn emails_by_uid_range(
    config: &EmailConfig,
    start: u32,
    limit: u32,
) -> Result<(Vec<IncomingEmail>, bool), ImapError> {
    let (mut session, folder) = open(config).await?;
    let limit = limit.min(MAX_EMAILS) as usize;
    let top = top_uid(&mut session, folder).await?;
    let mut uids = next_uids(&mut session, start.saturating_add(1), top, limit + 1).await?;
    let has_more = uids.len() > limit;
    uids.truncate(limit);
    let emails = fetch(&mut session, &uids).await?;
    session.logout().await;
    Ok((emails, has_more))
}

/// Fetches one mail; `None` when there is none with this UID.
pub async fn email_by_uid(
    config: &EmailConfig,
    uid: u32,
) -> Result<Option<IncomingEmail>, ImapError> {
    let (mut session, _) = open(config).await?;
    let mut emails = fetch(&mut session, &[uid]).await?;
    session.logout().await;
    Ok(emails.pop())
}

/// Returns the UID that the next mail will have at least.
pub async fn uid_next(config: &EmailConfig) -> Result<u32, ImapError> {
    let (mut session, folder) = open(config).await?;
    let top = top_uid(&mut session, folder).await?;
    session.logout().await;
    Ok(top.saturating_add(1))
}

/// Appends mails to a folder. A mail whose Message-ID the folder has already is left out.
pub async fn append_missing(
    config: &EmailConfig,
    folder: &str,
    mails: &[SentCopy],
) -> Result<(), ImapError> {
    let mut session = open_session(config, ImapTiming::default()).await?;
    session.open_folder(folder, false).await?;
    for SentCopy { message_id, bytes } in mails {
        if session.search_header("Message-ID", message_id).await?.is_empty() {
            session.append(folder, bytes).await?;
        }
    }
    session.logout().await;
    Ok(())
}

async fn open(config: &EmailConfig) -> Result<(ImapSession, OpenFolder), ImapError> {
    let mut session = open_session(config, ImapTiming::default()).await?;
    let name = config.folders.first().map_or("INBOX", String::as_str);
    let folder = session.open_folder(name, false).await?;
    Ok((session, folder))
}

/// Returns up to `count` UIDs of mails, from `from` on.
async fn next_uids(
    session: &mut ImapSession,
    from: u32,
    top: u32,
    count: usize,
) -> Result<Vec<u32>, ImapError> {
    let (mut uids, mut from, mut width) = (Vec::new(), from, FIRST_RANGE);
    while from <= top && uids.len() < count {
        let to = top.min(from.saturating_add(width - 1));
        match session.list(from, to, MAX_LIST).await? {
            Some(mails) => uids.extend(mails.iter().map(|mail| mail.uid)),
            None if width > 1 => {
                width /= 2;
                continue;
            }
            None => break,
        }
        width = width.saturating_mul(8);
        if to == u32::MAX {
            break;
        }
        from = to + 1;
    }
    uids.truncate(count);
    Ok(uids)
}

async fn fetch(session: &mut ImapSession, uids: &[u32]) -> Result<Vec<IncomingEmail>, ImapError> {
    let mut emails = Vec::new();
    // One by one, so that the largest mail decides how much memory is needed at once.
    for uid in uids {
        let bytes = MAX_EMAIL_BYTES as u64;
        let tag = session.send_fetch(&uid_set(&[*uid]), MailSection::Whole, bytes).await?;
        let rule = LiteralRule::Memory { max: MAX_EMAIL_BYTES };
        while let CommandStep::Response(response) = session.next("FETCH", &tag, rule).await? {
            if let ImapResponse::Fetch(FetchData { uid: Some(found), body: Some(body), .. }) =
                response
                && found == *uid
            {
                let raw = match body {
                    Literal::Bytes(raw) => raw,
                    Literal::Stored { head, .. } | Literal::Cut { head, .. } => head,
                };
                emails.push(read_email(*uid, raw));
            }
        }
    }
    Ok(emails)
}

fn read_email(uid: u32, raw: Vec<u8>) -> IncomingEmail {
    let mail = monoco_mime::read_mail(&raw);
    let texts = monoco_mime::texts(&raw);
    IncomingEmail {
        uid,
        message_id: mail.message_id.clone().unwrap_or_default(),
        from: monoco_mime::header(&raw, "From").unwrap_or_default(),
        to: monoco_mime::header(&raw, "To").unwrap_or_default(),
        subject: mail.subject.clone().unwrap_or_default(),
        body: texts.into_iter().next().map(|text| text.decoded).unwrap_or_default(),
        date: mail.date_ms.map(Timestamp::from_ms),
        raw,
    }
}
