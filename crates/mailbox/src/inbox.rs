//! The Mails in a workspace's inbox, by file name.
//!
//! A name contains time, provider and id: `20260206T204500_webhook_0f3a….md`. Searches by
//! time, provider or id therefore open no files.

use std::collections::BinaryHeap;
use std::path::Path;

use monoco_core::mail::{Mail, MailId};
use monoco_core::short_id::MIN_DIGITS;
use monoco_core::time::Timestamp;

use super::paths::MAX_MAIL_FILE_BYTES;
use super::workspace::WorkspaceDir;
use super::{CheckedDir, MailboxError, inbox_cache};

/// Lengths of the time and of the hash in a file name.
const STAMP: usize = 15;
const UID: usize = 24;

/// File name of a Mail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MailFileName(String);

/// Selects Mails by id, prefix of the hash, or file name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailSelector {
    provider: Option<String>,
    uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the id of a Mail; expected its id, or at least {MIN_DIGITS} hex digits of it"
)]
pub struct InvalidMailFileName(String);

impl MailFileName {
    /// Parses a file name; `None` when it is not that of a Mail.
    pub fn new(file: String) -> Option<Self> {
        let stamp = file.get(..STAMP)?.bytes().enumerate();
        let rest = file.get(STAMP..)?.strip_prefix('_')?.strip_suffix(".md")?;
        let timed = stamp.fold(true, |fine, (at, byte)| {
            fine && if at == 8 { byte == b'T' } else { byte.is_ascii_digit() }
        });
        // The id is parsed when it is needed; most names are only sorted.
        let (provider, uid) = rest.split_once('_')?;
        (timed && uid.len() == UID && !provider.is_empty()).then_some(Self(file))
    }

    pub fn file(&self) -> &str {
        &self.0
    }

    /// Time of the Mail, to the second.
    pub fn stamp(&self) -> &str {
        &self.0[..STAMP]
    }

    pub fn provider(&self) -> &str {
        self.parts().0
    }

    /// Whether the id is well-formed.
    pub fn has_id(&self) -> bool {
        let (provider, uid) = self.parts();
        MailId::is_valid(provider, uid)
    }

    /// The id; `None` when it is malformed.
    pub fn id(&self) -> Option<MailId> {
        self.0[STAMP + 1..].strip_suffix(".md")?.parse().ok()
    }

    fn parts(&self) -> (&str, &str) {
        let rest = self.0[STAMP + 1..].trim_end_matches(".md");
        rest.split_once('_').unwrap_or_default()
    }
}

impl MailSelector {
    /// Parses the argument of a command.
    ///
    /// # Errors
    ///
    /// When the text cannot select a Mail.
    pub fn parse(text: &str) -> Result<Self, InvalidMailFileName> {
        let bad = || InvalidMailFileName(text.chars().take(80).collect());
        let file = Path::new(text).file_name().and_then(|name| name.to_str());
        if let Some(id) = file.and_then(|file| MailFileName::new(file.to_owned())?.id()) {
            return Ok(Self::from(&id));
        }
        let (provider, uid) = match text.split_once('_') {
            Some((provider, uid)) => (Some(provider.to_owned()), uid),
            None => (None, text),
        };
        let named = provider.as_deref().is_none_or(|provider| {
            (1..=32).contains(&provider.len())
                && provider.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        });
        let hashed = (MIN_DIGITS..=UID).contains(&uid.len())
            && uid.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if named && hashed { Ok(Self { provider, uid: uid.to_owned() }) } else { Err(bad()) }
    }

    /// The id, if it was given completely.
    pub fn full(&self) -> Option<MailId> {
        format!("{}_{}", self.provider.as_deref()?, self.uid).parse().ok()
    }

    /// Whether this Mail is selected.
    pub fn fits(&self, provider: &str, uid: &str) -> bool {
        uid.starts_with(&self.uid) && self.provider.as_deref().is_none_or(|p| p == provider)
    }

    /// A part that the ids of all selected Mails contain.
    pub fn part(&self) -> String {
        format!("_{}", self.uid)
    }
}

impl From<&MailId> for MailSelector {
    fn from(id: &MailId) -> Self {
        Self { provider: Some(id.provider().to_owned()), uid: id.uid().to_owned() }
    }
}

/// Files in the inbox, the newest first; none when there is no inbox. Callers need the first few of
/// a heap in order, and count the others without sorting them.
///
/// # Errors
///
/// When the directory cannot be read.
pub fn newest_first(
    here: &WorkspaceDir,
    now: Timestamp,
) -> Result<BinaryHeap<MailFileName>, MailboxError> {
    Ok(inbox_cache::read(here, now)?.into())
}

/// Files in the inbox, the oldest first.
///
/// # Errors
///
/// When the directory cannot be read.
pub fn oldest_first(
    here: &WorkspaceDir,
    now: Timestamp,
) -> Result<Vec<MailFileName>, MailboxError> {
    let mut names = inbox_cache::read(here, now)?;
    names.sort();
    Ok(names)
}

/// Files in the inbox that `wanted` selects.
///
/// # Errors
///
/// When the directory cannot be read.
pub fn find(
    here: &WorkspaceDir,
    wanted: &MailSelector,
    now: Timestamp,
) -> Result<Vec<MailFileName>, MailboxError> {
    let mut names = inbox_cache::read(here, now)?;
    names.retain(|name| {
        let (provider, uid) = name.parts();
        wanted.fits(provider, uid) && name.has_id()
    });
    names.sort();
    Ok(names)
}

/// Reads a Mail from the inbox, with the text of its file.
///
/// # Errors
///
/// A message for the user.
pub fn open(inbox: &CheckedDir, name: &MailFileName) -> Result<(Mail, String), String> {
    let bytes = inbox.read(name.file(), MAX_MAIL_FILE_BYTES).map_err(|error| error.to_string())?;
    let bad = |why: &str| format!("{}: {why}", inbox.path().join(name.file()).display());
    let bytes = bytes.ok_or_else(|| bad("the file was removed"))?;
    let text = String::from_utf8(bytes).map_err(|_| bad("not UTF-8"))?;
    let mail = Mail::parse(&text).map_err(|error| bad(&error.to_string()))?;
    if name.id().as_ref() != Some(&mail.header.id) {
        return Err(bad("its name is not that of the Mail in it"));
    }
    Ok((mail, text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::fixture::{CourierFixture, START};

    const ID: &str = "webhook_0123456789abcdef01234567";

    #[test]
    fn only_well_formed_names_are_accepted() {
        let name = |file: &str| MailFileName::new(file.to_owned());
        let good = name(&format!("20260206T204500_{ID}.md")).unwrap();
        assert_eq!(good.id().unwrap().to_string(), ID);
        assert_eq!((good.stamp(), good.provider()), ("20260206T204500", "webhook"));
        for bad in [
            "notes.md",
            ".incoming.tmp",
            "20260206X204500_webhook_0123456789abcdef01234567.md",
            "20260206T204500_webhook_0123.md",
            "20260206T204500_webhook_0123456789abcdef01234567.md.bak",
            "é20260206T20450_webhook_0123456789abcdef01234567.md",
        ] {
            assert_eq!(name(bad), None, "{bad}");
        }
        let looks = name("20260206T204500_web.hook_0123456789abcdef01234567.md").unwrap();
        assert_eq!((looks.id(), looks.has_id(), good.has_id()), (None, false, true));
    }

    #[test]
    fn mail_is_selected_by_id_prefix_or_file() {
        let fits = |text: &str| MailSelector::parse(text).map(|w| w.fits("webhook", &ID[8..]));
        for (text, expected) in [
            (ID, true),
            ("0123", true),
            ("webhook_012345", true),
            ("lark_012345", false),
            ("123456", false),
            (&format!("/x/inbox/20260206T204500_{ID}.md"), true),
        ] {
            assert_eq!(fits(text), Ok(expected), "{text}");
        }
        assert_eq!(MailSelector::parse(ID).unwrap().full().unwrap().to_string(), ID);
        assert_eq!(MailSelector::parse("012345").unwrap().full(), None);
        for bad in ["", "012", "*", "webhook_*", "_012345", "ABCDEF", "../../x", "web_hook_0123456"]
        {
            assert!(fits(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn newest_mails_come_first_and_other_files_are_ignored() {
        let post = CourierFixture::new();
        let here = post.workspace("[]");
        let now = Timestamp::from_ms(START);
        assert_eq!(newest_first(&here, now).unwrap().len(), 0, "there is no inbox yet");
        let inbox = here.ensure_inbox().unwrap().path().to_owned();
        let file = |second: u32| format!("20260206T2045{second:02}_{ID}.md");
        for second in [7, 1, 9, 3] {
            fs::write(inbox.join(file(second)), "").unwrap();
        }
        fs::write(inbox.join("notes.md"), "").unwrap();
        let mut newest = newest_first(&here, now).unwrap();
        let newest: Vec<_> = std::iter::from_fn(|| newest.pop()).map(|n| n.0).collect();
        assert_eq!(newest, [9, 7, 3, 1].map(file));
        let oldest: Vec<_> = oldest_first(&here, now).unwrap().into_iter().map(|n| n.0).collect();
        assert_eq!(oldest, [1, 3, 7, 9].map(file));
    }
}
