//! The index of the courier's mailbox: one line for each Mail, the newest last.
//!
//! ```text
//! {"monoco_index":1,"generation":7}
//! {"seq":1,"id":"webhook_0f3a…",…}
//! {"seq":2,…
//! ```
//!
//! It is only ever appended to, so a reader that remembers its place reads what is
//! new and nothing else. A rebuilt one has another generation. A last line without
//! its end is still being written, and does not count.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use monoco_core::mail::MailIndexEntry;
use serde::{Deserialize, Serialize};

use super::cursor::SyncCursor;
use super::{MailboxError, at};

/// An index that is being read.
#[derive(Debug)]
pub struct IndexReader {
    path: PathBuf,
    file: BufReader<File>,
    /// Which index: rebuilding it starts another.
    pub generation: i64,
    start: u64,
    offset: u64,
    line: Vec<u8>,
}

/// One line.
#[derive(Debug)]
pub struct IndexLine {
    /// Where it starts.
    pub start: u64,
    /// Where the next one does.
    pub end: u64,
    /// The Mail; `None` when the line can't be read.
    pub entry: Option<MailIndexEntry>,
}

/// Where reading goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumePosition {
    /// With the Mails after this number. Those before it may come again.
    After(i64),
    /// Nowhere yet. After a crash the courier has cut what may not have been on disk, and
    /// writes the same again.
    Cut,
}

/// First line of the index.
#[derive(Serialize, Deserialize)]
pub struct IndexHead {
    monoco_index: u32,
    pub generation: i64,
}

impl IndexHead {
    /// Version of the index format.
    const VERSION: u32 = 1;

    pub const fn new(generation: i64) -> Self {
        Self { monoco_index: Self::VERSION, generation }
    }

    /// Whether this program can read and extend the index.
    pub const fn is_supported(&self) -> bool {
        self.monoco_index == Self::VERSION
    }
}

/// Appends one line of the index to `text`: the head or the entry of a Mail.
///
/// # Errors
///
/// When the line cannot be serialized.
pub fn write_line(text: &mut Vec<u8>, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *text, line)?;
    text.push(b'\n');
    Ok(())
}

impl IndexReader {
    /// Opens an index; `None` when the courier has not written one yet.
    ///
    /// # Errors
    ///
    /// When it can't be read, or is no index of this version.
    pub fn open(path: &Path) -> Result<Option<Self>, MailboxError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(path)(error)),
        };
        let mut index = Self {
            path: path.to_owned(),
            file: BufReader::with_capacity(256 << 10, file),
            generation: 0,
            start: 0,
            offset: 0,
            line: Vec::new(),
        };
        let Some(_) = index.read_line()? else { return Ok(None) };
        let head: IndexHead =
            serde_json::from_slice(&index.line).map_err(|_| MailboxError::Bad {
                path: path.to_owned(),
                why: "this is not an index of Mails".to_owned(),
            })?;
        if !head.is_supported() {
            return Err(MailboxError::Newer(path.to_owned()));
        }
        index.generation = head.generation;
        index.start = index.offset;
        Ok(Some(index))
    }

    /// Goes to where `cursor` left off, or to the start.
    ///
    /// # Errors
    ///
    /// When the index can't be read.
    pub fn resume(&mut self, cursor: &SyncCursor) -> Result<ResumePosition, MailboxError> {
        if cursor.offset == 0 {
            return Ok(ResumePosition::After(0));
        }
        if cursor.generation == self.generation {
            // The last Mail we saw says whether this is still the index we saw it in.
            let last = self.line_at(cursor.last_line)?.and_then(|line| line.entry);
            if last.is_some_and(|entry| entry.seq == cursor.seq) && self.go_to(cursor.offset)? {
                return Ok(ResumePosition::After(cursor.seq));
            }
            let length = self.file.get_ref().metadata().map_err(at(&self.path))?.len();
            if length < cursor.offset && self.first()? == cursor.first {
                return Ok(ResumePosition::Cut);
            }
            self.seek(self.start)?;
            return Ok(ResumePosition::After(0));
        }
        // Numbers only grow while the store lives. An index that ends before the cursor
        // comes from another store, and everything in it is new.
        let mut last = 0;
        while let Some(line) = self.next()? {
            last = line.entry.map_or(last, |entry| entry.seq);
        }
        self.seek(self.start)?;
        Ok(ResumePosition::After(if last < cursor.seq { 0 } else { cursor.seq }))
    }

    /// The id of the first Mail; nothing, when there is none.
    ///
    /// # Errors
    ///
    /// When the index can't be read.
    pub fn first(&mut self) -> Result<String, MailboxError> {
        let before = self.offset;
        self.seek(self.start)?;
        let first = self.next()?.and_then(|line| line.entry);
        self.seek(before)?;
        Ok(first.map(|entry| entry.id.to_string()).unwrap_or_default())
    }

    /// The line that starts at `offset`, if one does; reading goes on after it.
    ///
    /// # Errors
    ///
    /// When the index can't be read.
    pub fn line_at(&mut self, offset: u64) -> Result<Option<IndexLine>, MailboxError> {
        if self.go_to(offset)? { self.next() } else { Ok(None) }
    }

    /// Goes to where a line starts: where another one ends. Returns whether one does.
    fn go_to(&mut self, offset: u64) -> Result<bool, MailboxError> {
        if offset < self.start {
            return Ok(false);
        }
        self.seek(offset - 1)?;
        Ok(self.read_line()? == Some(offset))
    }

    /// The next line; `None` when there is no further whole one.
    ///
    /// # Errors
    ///
    /// When the index can't be read.
    pub fn next(&mut self) -> Result<Option<IndexLine>, MailboxError> {
        let start = self.offset;
        let Some(end) = self.read_line()? else { return Ok(None) };
        Ok(Some(IndexLine { start, end, entry: serde_json::from_slice(&self.line).ok() }))
    }

    /// The Mails whose ids have `fits`, the oldest first. Reads everything.
    ///
    /// # Errors
    ///
    /// When the index can't be read.
    pub fn search(&mut self, fits: &str) -> Result<Vec<MailIndexEntry>, MailboxError> {
        self.seek(self.start)?;
        let mut found = Vec::new();
        while self.read_line()?.is_some() {
            // Most lines need not be understood to see that they do not have it.
            if !contains(&self.line, fits.as_bytes()) {
                continue;
            }
            if let Ok(entry) = serde_json::from_slice::<MailIndexEntry>(&self.line) {
                found.push(entry);
            }
        }
        Ok(found)
    }

    /// Reads a whole line, and returns where the next one starts.
    fn read_line(&mut self) -> Result<Option<u64>, MailboxError> {
        self.line.clear();
        let read = self.file.read_until(b'\n', &mut self.line).map_err(at(&self.path))?;
        if self.line.last() != Some(&b'\n') {
            return Ok(None);
        }
        self.offset += read as u64;
        Ok(Some(self.offset))
    }

    fn seek(&mut self, offset: u64) -> Result<(), MailboxError> {
        self.file.seek(SeekFrom::Start(offset)).map_err(at(&self.path))?;
        self.offset = offset;
        Ok(())
    }
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    part.is_empty() || line.windows(part.len()).any(|window| window == part)
}
