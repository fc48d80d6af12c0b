//! Reads the new mails of a folder: lists them, fetches them in pages, and passes each page with
//! the cursor to the sink.
//!
//! While one page is stored, the next one is fetched; one more page waits between them. Every
//! page has at most [`MAX_PAGE_MAILS`] mails or about [`MAX_PAGE_BYTES`] bytes, and mails over
//! [`MAX_MEMORY_MAIL`] are stored while they are received.
//!
//! A mail that cannot be fetched does not stop the folder. It is fetched alone after a failure,
//! and after 3 failures only its header is registered.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use memchr::memmem;
use monoco_core::email::cursor::FolderCursor;
use monoco_core::inbound::{FetchedMail, MAX_NAME_BYTES, RawMail};
use monoco_core::time::Timestamp;
use tokio::sync::mpsc;

use super::error::{ImapError, RejectedCommand};
use super::response::{FetchData, ImapResponse, Literal};
use super::session::{CommandStep, ImapSession, ListedMail, MailSection, OpenFolder};
use super::wire::LiteralRule;
use crate::email::config::{Backfill, EmailConfig};
use crate::{ConnectionEvent, InboundPage, InboundSink};

/// Most mails of one page.
const MAX_PAGE_MAILS: usize = 200;

/// Bytes after which a page is full.
const MAX_PAGE_BYTES: u64 = 2 << 20;

/// Larger mails are stored while they are received.
const MAX_MEMORY_MAIL: usize = 1 << 20;

/// What a mail of unknown size counts for in a page, in bytes.
const UNKNOWN_SIZE: u64 = 64 << 10;

/// The first range of UIDs that is listed at once.
const FIRST_RANGE: u32 = 2_000;

/// Most mails of one list.
const MAX_LIST_MAILS: usize = 10_000;

/// How often a mail is fetched before only its header is registered.
const MAX_MAIL_ATTEMPTS: u32 = 3;

/// How often its header is fetched before the mail is registered without it.
const MAX_HEADER_ATTEMPTS: u32 = MAX_MAIL_ATTEMPTS + 2;

/// Bytes of a mail in which its header is looked for.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// What the listener knows about a folder between two scans. The store has the cursor.
#[derive(Debug)]
pub struct FolderState {
    pub name: String,
    cursor: Option<FolderCursor>,
    /// How the folder was when all of its mails were stored.
    scanned: Option<OpenFolder>,
    /// Mails up to this UID are fetched one by one, because a page with them failed.
    single_to: u32,
    /// How often mails failed.
    attempts: BTreeMap<u32, u32>,
}

impl FolderState {
    pub fn new(name: String) -> Self {
        Self { name, cursor: None, scanned: None, single_to: 0, attempts: BTreeMap::new() }
    }
}

/// Fetches and stores all new mails of a folder. With `may_ask`, a folder that is open and was
/// scanned is not opened again unless the server announces mails.
pub async fn scan_folder(
    session: &mut ImapSession,
    config: &EmailConfig,
    state: &mut FolderState,
    may_ask: bool,
    sink: &dyn InboundSink,
) -> Result<(), ImapError> {
    // Servers without UIDNEXT are not trusted to announce a mail that replaces a deleted one.
    let may_ask = may_ask && state.scanned.is_some_and(|folder| folder.uid_next.is_some());
    if may_ask && session.is_unchanged(&state.name).await? {
        sink.report(ConnectionEvent::Frame);
        return Ok(());
    }
    let folder = session.open_folder(&state.name, config.mark_seen).await?;
    sink.report(ConnectionEvent::Frame);
    // Without UIDNEXT, a mail that replaces a deleted one would not be noticed.
    if folder.uid_next.is_some() && state.scanned == Some(folder) {
        return Ok(());
    }
    let result = scan_open_folder(session, config, state, folder, sink).await;
    // After a failure the store knows what was stored.
    state.scanned = result.is_ok().then_some(folder);
    if result.is_err() {
        state.cursor = None;
    }
    result
}

async fn scan_open_folder(
    session: &mut ImapSession,
    config: &EmailConfig,
    state: &mut FolderState,
    folder: OpenFolder,
    sink: &dyn InboundSink,
) -> Result<(), ImapError> {
    let mut cursor = match state.cursor {
        Some(cursor) => cursor,
        None => load_cursor(session, config, &state.name, folder, sink).await?,
    };
    let top = top_uid(session, folder).await?;
    if cursor.uid_validity != folder.uid_validity {
        cursor = cursor.restart(folder.uid_validity, top.saturating_add(1));
        state.single_to = 0;
        state.attempts.clear();
    }
    let (sender, receiver) = mpsc::channel(1);
    let exists = folder.exists;
    let scan =
        FolderScan { session: &mut *session, config, state, sink, sender, top, exists, cursor };
    let stores = store_pages(sink, receiver, config.mark_seen);
    let (fetched, stored) = tokio::join!(scan.fetch_all(), stores);
    let seen = stored?;
    state.cursor = Some(fetched?);
    for uids in seen.chunks(MAX_PAGE_MAILS) {
        session.mark_seen(&uid_set(uids)).await?;
    }
    Ok(())
}

/// Returns the stored cursor, or the first one after `backfill`.
async fn load_cursor(
    session: &mut ImapSession,
    config: &EmailConfig,
    name: &str,
    folder: OpenFolder,
    sink: &dyn InboundSink,
) -> Result<FolderCursor, ImapError> {
    let stored = sink.cursor(name).await.map_err(ImapError::Sink)?;
    if let Some(stored) = stored {
        return FolderCursor::parse(&stored)
            .map_err(|error| ImapError::Lost(format!("folder {name:?}: {error}")));
    }
    let cursor = first_cursor(session, config.backfill, folder).await?;
    // Stored at once: mails that arrive before the first page is stored must not be passed over.
    let page = InboundPage {
        stream: name.to_owned(),
        cursor: Some(cursor.json()),
        ..InboundPage::default()
    };
    sink.receive_page(page).await.map_err(ImapError::Sink)?;
    Ok(cursor)
}

/// Returns the cursor before the first mail that `backfill` wants.
async fn first_cursor(
    session: &mut ImapSession,
    backfill: Backfill,
    folder: OpenFolder,
) -> Result<FolderCursor, ImapError> {
    let validity = folder.uid_validity;
    let newest = match backfill {
        Backfill::All => return Ok(FolderCursor::first(validity, 0, None)),
        Backfill::Since(at) => {
            let known = top_uid(session, folder).await?;
            let first = FolderCursor::first(validity, 0, Some(at));
            return Ok(first.restart(validity, known.saturating_add(1)));
        }
        Backfill::New => 1,
        Backfill::Newest(count) => count,
    };
    if folder.exists == 0 {
        // Every mail that appears later is wanted. Their times prove nothing: the clock of the
        // server can be slow, and a mail that is moved here is old.
        let last = folder.uid_next.map_or(0, |next| next - 1);
        return Ok(FolderCursor::first(validity, last, None));
    }
    let place = folder.exists.saturating_sub(newest) + 1;
    let Some(oldest) = session.mail_at(place).await? else {
        let why = "the newest mail was deleted while it was looked for";
        return Err(ImapError::Lost(why.to_owned()));
    };
    let last = oldest.uid.saturating_sub(1);
    Ok(FolderCursor::first(validity, last, oldest.internal_date))
}

/// Returns the highest UID that a mail of the folder can have.
pub(super) async fn top_uid(
    session: &mut ImapSession,
    folder: OpenFolder,
) -> Result<u32, ImapError> {
    match folder.uid_next {
        Some(next) => Ok(next - 1),
        None if folder.exists == 0 => Ok(0),
        // The newest mail may have been deleted; then the next scan finds the others.
        None => Ok(session.mail_at(folder.exists).await?.map_or(0, |mail| mail.uid)),
    }
}

/// Stores pages as they come. Returns the UIDs of all stored mails with `mark_seen`, or none.
async fn store_pages(
    sink: &dyn InboundSink,
    mut pages: mpsc::Receiver<InboundPage>,
    mark_seen: bool,
) -> Result<Vec<u32>, ImapError> {
    let mut seen = Vec::new();
    while let Some(page) = pages.recv().await {
        if mark_seen {
            seen.extend(page.mails.iter().map(|mail| mail.uid));
        }
        sink.receive_page(page).await.map_err(ImapError::Sink)?;
        sink.report(ConnectionEvent::Frame);
    }
    Ok(seen)
}

struct FolderScan<'a> {
    session: &'a mut ImapSession,
    config: &'a EmailConfig,
    state: &'a mut FolderState,
    sink: &'a dyn InboundSink,
    sender: mpsc::Sender<InboundPage>,
    /// The highest UID and the number of mails when the folder was opened.
    top: u32,
    exists: u32,
    cursor: FolderCursor,
}

/// Mails that are fetched and not yet passed on.
#[derive(Default)]
struct PageBuilder {
    mails: Vec<FetchedMail>,
    bytes: u64,
}

impl FolderScan<'_> {
    /// Fetches all mails after the cursor. Returns the cursor after them.
    async fn fetch_all(mut self) -> Result<FolderCursor, ImapError> {
        let mut from = self.cursor.last_uid.saturating_add(1);
        let mut width = FIRST_RANGE;
        while from <= self.top {
            let to = self.top.min(from.saturating_add(width - 1));
            let Some(mails) = self.session.list(from, to, MAX_LIST_MAILS).await? else {
                if width == 1 {
                    let why = format!("the server lists UID {from} more than once");
                    return Err(ImapError::Lost(why));
                }
                width = (width / 8).max(1);
                continue;
            };
            self.fetch_listed(&mails).await?;
            // UIDs with large gaps must not cost a command for each gap.
            let is_sparse = mails.len() < width as usize / 8;
            width = if is_sparse { width.saturating_mul(8) } else { width.min(FIRST_RANGE) };
            if to == u32::MAX {
                break;
            }
            from = to + 1;
        }
        Ok(self.cursor)
    }

    /// Fetches the listed mails that are wanted, in pages.
    async fn fetch_listed(&mut self, listed: &[ListedMail]) -> Result<(), ImapError> {
        let mut page: Vec<ListedMail> = Vec::new();
        let mut bytes = 0;
        for mail in listed {
            if !self.cursor.wants(mail.uid, mail.internal_date) {
                continue;
            }
            let size = mail.size.unwrap_or(UNKNOWN_SIZE);
            let alone = mail.uid <= self.state.single_to || size > self.config.max_mail;
            let is_full = page.len() == MAX_PAGE_MAILS || bytes + size > MAX_PAGE_BYTES;
            if !page.is_empty() && (alone || is_full) {
                self.fetch_page(&page).await?;
                (page, bytes) = (Vec::new(), 0);
            }
            if alone {
                self.fetch_page(&[*mail]).await?;
            } else {
                page.push(*mail);
                bytes += size;
            }
        }
        if !page.is_empty() {
            self.fetch_page(&page).await?;
        }
        match listed.last() {
            // The last mails of the list are not wanted.
            Some(last) if last.uid > self.cursor.last_uid => {
                self.send(PageBuilder::default(), Some(last.uid)).await
            }
            _ => Ok(()),
        }
    }

    /// Fetches a page of mails in ascending order and passes it on with the cursor.
    async fn fetch_page(&mut self, mails: &[ListedMail]) -> Result<(), ImapError> {
        let Some(last) = mails.last() else { return Ok(()) };
        let mut out = PageBuilder::default();
        let mut missing = mails.to_vec();
        if mails.len() > 1 {
            match self.fetch(mails, MailSection::Whole, &mut missing, &mut out).await {
                Ok(()) if missing.is_empty() => {}
                Ok(()) => {
                    // Deleted mails are missing. Others are fetched alone.
                    let uids: Vec<_> = missing.iter().map(|mail| mail.uid).collect();
                    let existing = self.session.existing(&uids).await?;
                    missing.retain(|mail| existing.contains(&mail.uid));
                }
                Err(ImapError::Rejected(RejectedCommand { temporary: false, .. })) => {}
                Err(error) => {
                    self.state.single_to = last.uid;
                    return Err(error);
                }
            }
        }
        for mail in missing {
            // Passed on first: a mail that fails must not repeat the failures before it.
            let before = out.take_before(mail.uid);
            if !before.mails.is_empty() || self.cursor.last_uid.saturating_add(1) < mail.uid {
                self.send(before, Some(mail.uid - 1)).await?;
            }
            self.fetch_alone(mail, &mut out).await?;
        }
        self.send(out, Some(last.uid)).await
    }

    /// Fetches one mail. After too many failures it is registered with less.
    async fn fetch_alone(
        &mut self,
        mail: ListedMail,
        out: &mut PageBuilder,
    ) -> Result<(), ImapError> {
        let uid = mail.uid;
        let attempts = self.state.attempts.get(&uid).copied().unwrap_or(0);
        if attempts >= MAX_HEADER_ATTEMPTS {
            self.state.attempts.remove(&uid);
            let literal = Literal::Bytes(Vec::new());
            out.push(self.fetched_mail(mail, MailSection::Header, literal));
            return Ok(());
        }
        let too_large = mail.size.is_some_and(|size| size > self.config.max_mail);
        let section = match too_large || attempts >= MAX_MAIL_ATTEMPTS {
            true => MailSection::Header,
            false => MailSection::Whole,
        };
        self.state.attempts.insert(uid, attempts + 1);
        let mut missing = vec![mail];
        let mut result = self.fetch(&[mail], section, &mut missing, out).await;
        if result.is_ok() && !missing.is_empty() {
            result = match self.session.existing(&[uid]).await {
                Ok(existing) if existing.is_empty() => Ok(()),
                Ok(_) => {
                    let why = format!("the server does not send the mail with UID {uid}");
                    Err(ImapError::Lost(why))
                }
                Err(error) => Err(error),
            };
        }
        match &result {
            Ok(()) => drop(self.state.attempts.remove(&uid)),
            Err(error) if error.blames_mail() => {}
            Err(_) => drop(self.state.attempts.insert(uid, attempts)),
        }
        result
    }

    /// Fetches mails with one command. `missing` are those that the server has not sent yet.
    async fn fetch(
        &mut self,
        mails: &[ListedMail],
        section: MailSection,
        missing: &mut Vec<ListedMail>,
        out: &mut PageBuilder,
    ) -> Result<(), ImapError> {
        let uids: Vec<_> = mails.iter().map(|mail| mail.uid).collect();
        let bytes = mails.iter().map(|mail| mail.size.unwrap_or(UNKNOWN_SIZE)).sum();
        let rule = match section {
            MailSection::Whole => LiteralRule::Store {
                memory: MAX_MEMORY_MAIL,
                max: self.config.max_mail,
                sink: self.sink,
            },
            MailSection::Header => LiteralRule::Memory { max: MAX_HEADER_BYTES },
        };
        let tag = self.session.send_fetch(&uid_set(&uids), section, bytes).await?;
        loop {
            let response = match self.session.next("FETCH", &tag, rule).await? {
                CommandStep::Done(_) => return Ok(()),
                CommandStep::Response(response) => response,
            };
            let ImapResponse::Fetch(FetchData { uid: Some(uid), body: Some(body), .. }) = response
            else {
                continue;
            };
            let Some(place) = missing.iter().position(|mail| mail.uid == uid) else { continue };
            // NIL for a mail that has a size: the server cannot read it now.
            let is_empty = section == MailSection::Whole && body == Literal::Bytes(Vec::new());
            if is_empty && missing[place].size.is_some_and(|size| size > 0) {
                continue;
            }
            let mail = missing.remove(place);
            out.push(self.fetched_mail(mail, section, body));
            // Only when the sizes of the list were wrong.
            if out.bytes > 2 * MAX_PAGE_BYTES {
                self.send(std::mem::take(out), None).await?;
            }
        }
    }

    /// Passes a page on. `last` is the UID up to which all mails are in this page or before.
    async fn send(&mut self, out: PageBuilder, last: Option<u32>) -> Result<(), ImapError> {
        if let Some(last) = last {
            self.cursor = self.cursor.advance(last);
            // UIDs have gaps, so there cannot be more mails than the folder has.
            let left = self.top.saturating_sub(last).min(self.exists);
            if left > 0 {
                self.sink.report(ConnectionEvent::Backlog(left.into()));
            }
        }
        let page = InboundPage {
            stream: self.state.name.clone(),
            cursor: last.map(|_| self.cursor.json()),
            mails: out.mails,
            ..InboundPage::default()
        };
        let closed = |_| ImapError::Lost("a page was not stored".to_owned());
        self.sender.send(page).await.map_err(closed)
    }

    fn fetched_mail(
        &self,
        mail: ListedMail,
        section: MailSection,
        literal: Literal,
    ) -> FetchedMail {
        let limit = self.config.max_mail;
        let too_large =
            |size: u64| format!("the mail has {size} bytes; `max_mail_mb` is {}", limit >> 20);
        let (size, subject, date, raw) = match (section, literal) {
            (MailSection::Whole, Literal::Bytes(bytes)) => {
                let (subject, date) = subject_and_date(&bytes);
                (bytes.len() as u64, subject, date, RawMail::Bytes(bytes))
            }
            (MailSection::Whole, Literal::Stored { bytes, head }) => {
                let (subject, date) = subject_and_date(&head);
                (bytes.size, subject, date, RawMail::Stored(bytes))
            }
            (section, literal) => {
                let (head, cut) = match literal {
                    Literal::Bytes(head) | Literal::Stored { head, .. } => (head, None),
                    Literal::Cut { size, head } => (head, Some(size)),
                };
                let listed = mail.size.unwrap_or(0);
                let (size, why) = match (section, cut) {
                    (MailSection::Whole, Some(size)) => (size, too_large(size)),
                    _ if listed > limit => (listed, too_large(listed)),
                    _ => {
                        let why = format!("it could not be fetched {MAX_MAIL_ATTEMPTS} times");
                        (listed, why)
                    }
                };
                let (subject, date) = subject_and_date(&head);
                let headers = match header_of(&head) {
                    // Mails are told apart by their bytes, and this one has none.
                    [] => self.missing_header(mail.uid).into_bytes(),
                    header => header.to_vec(),
                };
                (size, subject, date, RawMail::HeadersOnly { headers, why })
            }
        };
        FetchedMail {
            folder: self.state.name.clone(),
            uid_validity: self.cursor.uid_validity,
            uid: mail.uid,
            internal_date: mail.internal_date,
            subject,
            date,
            size,
            raw,
        }
    }
}

impl FolderScan<'_> {
    /// Stands for the header of a mail that the server does not send.
    fn missing_header(&self, uid: u32) -> String {
        let (folder, validity) = (self.state.name.escape_default(), self.cursor.uid_validity);
        format!("X-Monoco-Not-Fetched: UID {uid}, UIDVALIDITY {validity}, {folder}\r\n\r\n")
    }
}

impl PageBuilder {
    /// Removes the mails below a UID and returns them.
    fn take_before(&mut self, uid: u32) -> Self {
        let is_before = |mail: &mut FetchedMail| mail.uid < uid;
        let mut before = Self::default();
        self.mails.extract_if(.., is_before).for_each(|mail| before.push(mail));
        self.bytes -= before.bytes;
        before
    }

    fn push(&mut self, mail: FetchedMail) {
        self.bytes += match &mail.raw {
            RawMail::Bytes(bytes) => bytes.len() as u64,
            RawMail::HeadersOnly { headers, .. } => headers.len() as u64,
            RawMail::Stored(_) => 0,
        };
        self.mails.push(mail);
    }
}

/// Returns subject and date from the header at the start of `bytes`.
fn subject_and_date(bytes: &[u8]) -> (String, Option<Timestamp>) {
    let header = header_of(bytes);
    let mut subject = monoco_mime::subject(header).unwrap_or_default();
    subject.truncate(subject.floor_char_boundary(MAX_NAME_BYTES));
    let date = monoco_mime::header(header, "Date");
    let date = date.and_then(|date| monoco_mime::parse_date(&date)).map(Timestamp::from_ms);
    (subject, date)
}

/// Returns the header at the start of `bytes`, as far as it is looked for.
fn header_of(bytes: &[u8]) -> &[u8] {
    let start = &bytes[..bytes.len().min(MAX_HEADER_BYTES)];
    let end = memmem::find(start, b"\r\n\r\n").map(|end| end + 4);
    let end = end.or_else(|| memmem::find(start, b"\n\n").map(|end| end + 2));
    &start[..end.unwrap_or(start.len())]
}

/// Returns a set of UIDs as IMAP writes it: `1:3,7`. The UIDs must be in ascending order.
pub fn uid_set(uids: &[u32]) -> String {
    let mut set = String::new();
    for run in uids.chunk_by(|one, next| one.checked_add(1) == Some(*next)) {
        let comma = if set.is_empty() { "" } else { "," };
        let _ = match run {
            [one] => write!(set, "{comma}{one}"),
            [first, .., last] => write!(set, "{comma}{first}:{last}"),
            [] => Ok(()),
        };
    }
    set
}
