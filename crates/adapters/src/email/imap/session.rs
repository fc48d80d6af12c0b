//! The commands of a logged-in connection, each under a deadline.
//!
//! A command counts as successful only after the server's OK: a connection that ends, or a NO in
//! the middle of a list, must not look like the end of the list.

use std::time::Duration;

use monoco_core::time::Timestamp;
use tokio::time::{Instant, sleep_until};

use super::error::ImapError;
use super::folder_name;
use super::response::{FetchData, ImapResponse, ImapStatus, ResponseCode, shown};
use super::timing::ImapTiming;
use super::wire::{ImapWire, LiteralRule, MIN_BYTES_PER_SECOND};

/// Time for LOGOUT when the courier stops.
const LOGOUT_LIMIT: Duration = Duration::from_secs(2);

/// Time for a list of mails. Some servers read every mail for its size.
const LIST_LIMIT: Duration = Duration::from_secs(300);

/// A connection after the login.
pub struct ImapSession {
    pub(super) wire: ImapWire,
    pub(super) timing: ImapTiming,
    /// What the server can do, in upper case.
    pub(super) capabilities: Vec<String>,
    /// Whether the server stores UIDs only for clients that may write. courier-imap gives all
    /// mails new UIDs and a new UIDVALIDITY at each EXAMINE, until a client has sent SELECT.
    pub(super) stores_uids_by_select: bool,
    /// The open folder, and when it was opened.
    open: Option<(String, Instant)>,
    /// Whether the server has announced mails since the folder was opened.
    news: bool,
    /// What the server said before it closed the connection.
    bye: Option<String>,
}

/// A folder that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFolder {
    pub uid_validity: u32,
    /// Some servers leave it out.
    pub uid_next: Option<u32>,
    /// The number of mails.
    pub exists: u32,
}

/// A mail of a folder, before it is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedMail {
    pub uid: u32,
    /// What the server says. It may be wrong.
    pub size: Option<u64>,
    pub internal_date: Option<Timestamp>,
}

/// Why waiting for mails ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdleEnd {
    /// The server announced mails.
    News,
    /// The time is up, or the caller stopped it.
    Ended,
}

impl ImapSession {
    pub(super) fn new(wire: ImapWire, timing: ImapTiming) -> Self {
        let (capabilities, stores_uids_by_select) = (Vec::new(), false);
        let (open, news, bye) = (None, false, None);
        Self { wire, timing, capabilities, stores_uids_by_select, open, news, bye }
    }

    /// Tells whether the server has a capability, written in upper case.
    pub fn can(&self, capability: &str) -> bool {
        self.capabilities.iter().any(|name| name == capability)
    }

    /// Tells whether the server has announced mails since the folder was opened.
    pub fn has_news(&self) -> bool {
        self.news
    }

    /// Runs a command and passes its responses to `each`. Returns the code of its OK.
    pub async fn run(
        &mut self,
        name: &'static str,
        command: &str,
        mut each: impl FnMut(ImapResponse),
    ) -> Result<ResponseCode, ImapError> {
        self.wire.set_limit(self.timing.command);
        let tag = self.wire.send(command).await?;
        loop {
            match self.next(name, &tag, LiteralRule::SMALL).await? {
                CommandStep::Response(response) => each(response),
                CommandStep::Done(code) => return Ok(code),
            }
        }
    }

    /// Reads the next response of the command with this tag. NO and BAD are errors.
    pub(super) async fn next(
        &mut self,
        name: &'static str,
        tag: &str,
        rule: LiteralRule<'_>,
    ) -> Result<CommandStep, ImapError> {
        let response = match self.wire.read(rule).await {
            Ok(response) => response,
            Err(ImapError::Lost(why)) => return Err(self.lost(why)),
            Err(error) => return Err(error),
        };
        match response {
            ImapResponse::Done { tag: found, status, code, text } => match status {
                _ if found != tag => {
                    Err(self.lost(format!("the server answers a command with the tag {found:?}")))
                }
                ImapStatus::Ok => Ok(CommandStep::Done(code)),
                status => Err(ImapError::rejected(name, status, &code, &text)),
            },
            ImapResponse::Status { status: ImapStatus::Bye, text, .. } => {
                self.bye = Some(shown(text.as_bytes()));
                Ok(CommandStep::Response(ImapResponse::Other))
            }
            ImapResponse::Exists(count) => {
                self.news = true;
                Ok(CommandStep::Response(ImapResponse::Exists(count)))
            }
            response => Ok(CommandStep::Response(response)),
        }
    }

    /// Explains a lost connection with what the server said before.
    fn lost(&mut self, why: String) -> ImapError {
        match self.bye.take() {
            Some(bye) => ImapError::Lost(format!("the server closed the connection: {bye}")),
            None => ImapError::Lost(why),
        }
    }

    /// Opens a folder: read-only unless `writable`, or unless the server needs SELECT. Mails are
    /// fetched with PEEK, so that SELECT changes no flag but `\Recent`.
    pub async fn open_folder(
        &mut self,
        folder: &str,
        writable: bool,
    ) -> Result<OpenFolder, ImapError> {
        let (mut exists, mut uid_validity, mut uid_next) = (0, None, None);
        self.open = None;
        let selects = writable || self.stores_uids_by_select;
        let (name, command) = if selects { ("SELECT", "SELECT") } else { ("EXAMINE", "EXAMINE") };
        let command = format!("{command} {}", folder_name::quoted(folder));
        let done = self
            .run(name, &command, |response| match response {
                ImapResponse::Exists(count) => exists = count,
                ImapResponse::Status { code: ResponseCode::UidValidity(uid), .. } => {
                    uid_validity = Some(uid);
                }
                ImapResponse::Status { code: ResponseCode::UidNext(uid), .. } => {
                    uid_next = Some(uid);
                }
                _ => {}
            })
            .await;
        match done {
            Ok(_) => {}
            Err(ImapError::Rejected(rejected)) => {
                return Err(ImapError::Folder(folder.to_owned(), rejected));
            }
            Err(error) => return Err(error),
        }
        self.news = false;
        let Some(uid_validity) = uid_validity.filter(|number| *number > 0) else {
            let why = format!("the server has no UIDs for folder {folder:?}, which are needed");
            return Err(ImapError::Lost(why));
        };
        self.open = Some((folder.to_owned(), Instant::now()));
        Ok(OpenFolder { uid_validity, uid_next: uid_next.filter(|uid| *uid > 0), exists })
    }

    /// Asks whether a folder has new mails without opening it again. Returns `false` when it has,
    /// or when it is not the folder that was opened a short time ago.
    pub async fn is_unchanged(&mut self, folder: &str) -> Result<bool, ImapError> {
        let is_open =
            |(name, at): &(String, Instant)| name == folder && at.elapsed() < self.timing.reopen;
        if self.news || !self.open.as_ref().is_some_and(is_open) {
            return Ok(false);
        }
        match self.run("NOOP", "NOOP", |_| ()).await {
            Ok(_) => Ok(!self.news),
            Err(ImapError::Rejected(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns UID and time of the mail at a place in the folder, counted from 1; `None` when it
    /// was deleted meanwhile.
    pub async fn mail_at(&mut self, place: u32) -> Result<Option<ListedMail>, ImapError> {
        let mut found = None;
        let command = format!("FETCH {place} (UID INTERNALDATE)");
        self.run("FETCH", &command, |response| {
            if let ImapResponse::Fetch(FetchData {
                sequence, uid: Some(uid), internal_date, ..
            }) = response
                && sequence == place
            {
                found = Some(ListedMail { uid, size: None, internal_date });
            }
        })
        .await?;
        Ok(found)
    }

    /// Lists the mails with UIDs from `from` to `to` in ascending order; `None` when there are
    /// more than `max`.
    pub async fn list(
        &mut self,
        from: u32,
        to: u32,
        max: usize,
    ) -> Result<Option<Vec<ListedMail>>, ImapError> {
        self.list_set(&format!("{from}:{to}"), from, to, max).await
    }

    /// Returns which of `uids`, in ascending order, exist in the folder.
    pub async fn existing(&mut self, uids: &[u32]) -> Result<Vec<u32>, ImapError> {
        let (Some(first), Some(last)) = (uids.first(), uids.last()) else { return Ok(Vec::new()) };
        let set = uids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let listed = self.list_set(&set, *first, *last, uids.len()).await?.unwrap_or_default();
        let found = listed.iter().map(|mail| mail.uid);
        Ok(found.filter(|uid| uids.binary_search(uid).is_ok()).collect())
    }

    /// Lists mails. When an answer cannot be read, the list is repeated with UIDs only, so that
    /// one odd mail does not hide itself or stop the others.
    async fn list_set(
        &mut self,
        set: &str,
        from: u32,
        to: u32,
        max: usize,
    ) -> Result<Option<Vec<ListedMail>>, ImapError> {
        let full = format!("UID FETCH {set} (UID RFC822.SIZE INTERNALDATE)");
        let (mails, unreadable) = self.list_by(&full, from, to, max).await?;
        if !unreadable {
            return Ok(mails);
        }
        let (mails, _) = self.list_by(&format!("UID FETCH {set} (UID)"), from, to, max).await?;
        Ok(mails)
    }

    /// Runs a command that lists mails. The flag tells whether an answer could not be read.
    async fn list_by(
        &mut self,
        command: &str,
        from: u32,
        to: u32,
        max: usize,
    ) -> Result<(Option<Vec<ListedMail>>, bool), ImapError> {
        self.wire.set_limit(LIST_LIMIT);
        let tag = self.wire.send(command).await?;
        let mut mails = Vec::new();
        let (mut too_many, mut unreadable) = (false, false);
        loop {
            let response = match self.next("FETCH", &tag, LiteralRule::SMALL).await? {
                CommandStep::Done(_) => break,
                CommandStep::Response(response) => response,
            };
            match response {
                // Other UIDs are changes of flags, or answers that were not asked for.
                ImapResponse::Fetch(FetchData { uid: Some(uid), size, internal_date, .. })
                    if (from..=to).contains(&uid) =>
                {
                    too_many |= mails.len() == max;
                    if !too_many {
                        mails.push(ListedMail { uid, size, internal_date });
                    }
                }
                ImapResponse::Unreadable(_) => unreadable = true,
                _ => {}
            }
        }
        if too_many {
            return Ok((None, unreadable));
        }
        // A change of flags can repeat a mail; the first answer has all items.
        mails.sort_by_key(|mail| mail.uid);
        mails.dedup_by(|later, first| {
            let repeated = later.uid == first.uid;
            if repeated {
                first.size = first.size.or(later.size);
                first.internal_date = first.internal_date.or(later.internal_date);
            }
            repeated
        });
        Ok((Some(mails), unreadable))
    }

    /// Sends the command that fetches mails or headers of about `bytes` bytes. The caller reads
    /// the responses with [`Self::next`].
    pub(super) async fn send_fetch(
        &mut self,
        set: &str,
        part: MailSection,
        bytes: u64,
    ) -> Result<String, ImapError> {
        self.wire
            .set_limit(self.timing.command + Duration::from_secs(bytes / MIN_BYTES_PER_SECOND));
        let section = match part {
            MailSection::Whole => "BODY.PEEK[]",
            MailSection::Header => "BODY.PEEK[HEADER]",
        };
        self.wire.send(&format!("UID FETCH {set} (UID {section})")).await
    }

    /// Marks mails as seen.
    pub async fn mark_seen(&mut self, set: &str) -> Result<(), ImapError> {
        let command = format!("UID STORE {set} +FLAGS.SILENT (\\Seen)");
        self.run("STORE", &command, |_| ()).await.map(drop)
    }

    /// Waits until the server announces mails, until `end`, or until `stop` is ready. Calls
    /// `frame` for everything that the server sends.
    ///
    /// Without an answer to DONE the connection is dead, which is an error.
    pub async fn idle(
        &mut self,
        end: Instant,
        stop: impl Future<Output = ()>,
        frame: impl Fn(),
    ) -> Result<IdleEnd, ImapError> {
        self.wire.set_limit(self.timing.command);
        let tag = self.wire.send("IDLE").await?;
        loop {
            match self.next("IDLE", &tag, LiteralRule::SMALL).await? {
                CommandStep::Response(ImapResponse::Continue(_)) => break,
                CommandStep::Response(_) => {}
                // The server ended IDLE before it began.
                CommandStep::Done(_) => return Ok(IdleEnd::News),
            }
        }
        tokio::pin!(stop);
        while !self.news && self.bye.is_none() {
            tokio::select! {
                data = self.wire.wait_for_data() => data.map_err(|error| match error {
                    ImapError::Lost(why) => self.lost(why),
                    error => error,
                })?,
                () = sleep_until(end) => break,
                () = &mut stop => break,
            }
            frame();
            self.wire.set_limit(self.timing.command);
            if let CommandStep::Done(_) = self.next("IDLE", &tag, LiteralRule::SMALL).await? {
                // The server ended IDLE by itself.
                return Ok(IdleEnd::News);
            }
        }
        self.wire.set_limit(self.timing.done);
        self.wire.send_line("DONE").await?;
        while let CommandStep::Response(_) = self.next("IDLE", &tag, LiteralRule::SMALL).await? {}
        Ok(if self.news { IdleEnd::News } else { IdleEnd::Ended })
    }

    /// Appends a mail to a folder, marked as seen.
    pub async fn append(&mut self, folder: &str, mail: &[u8]) -> Result<(), ImapError> {
        let seconds = mail.len() as u64 / MIN_BYTES_PER_SECOND;
        self.wire.set_limit(self.timing.command + Duration::from_secs(seconds));
        let name = folder_name::quoted(folder);
        let command = format!("APPEND {name} (\\Seen) {{{}}}", mail.len());
        let tag = self.wire.send(&command).await?;
        loop {
            match self.next("APPEND", &tag, LiteralRule::SMALL).await? {
                CommandStep::Response(ImapResponse::Continue(_)) => break,
                CommandStep::Response(_) => {}
                CommandStep::Done(_) => return Ok(()),
            }
        }
        self.wire.send_bytes(mail).await?;
        self.wire.send_line("").await?;
        while let CommandStep::Response(_) = self.next("APPEND", &tag, LiteralRule::SMALL).await? {}
        Ok(())
    }

    /// Returns the UIDs of mails in the open folder whose header field contains `text`.
    pub async fn search_header(&mut self, field: &str, text: &str) -> Result<Vec<u32>, ImapError> {
        let mut uids = Vec::new();
        let command = format!("UID SEARCH HEADER {field} {}", folder_name::quote(text));
        self.run("SEARCH", &command, |response| {
            if let ImapResponse::Search(found) = response {
                uids.extend(found);
            }
        })
        .await?;
        Ok(uids)
    }

    /// Returns the names of all folders with their attributes.
    pub async fn folders(&mut self) -> Result<Vec<(String, Vec<String>)>, ImapError> {
        let mut folders = Vec::new();
        self.run("LIST", "LIST \"\" \"*\"", |response| {
            if let ImapResponse::Folder { attributes, name } = response {
                folders.push((folder_name::decode(&name), attributes));
            }
        })
        .await?;
        Ok(folders)
    }

    /// Says goodbye. The connection is closed whatever the server answers.
    pub async fn logout(mut self) {
        self.wire.set_limit(LOGOUT_LIMIT);
        if let Ok(tag) = self.wire.send("LOGOUT").await {
            while let Ok(CommandStep::Response(_)) =
                self.next("LOGOUT", &tag, LiteralRule::SMALL).await
            {}
        }
    }
}

/// What to fetch of a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MailSection {
    Whole,
    Header,
}

/// One step of a running command.
pub(super) enum CommandStep {
    Response(ImapResponse),
    /// The OK at the end of the command.
    Done(ResponseCode),
}
