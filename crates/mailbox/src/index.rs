//! Format and reader of the index of Mails: one line per Mail, the newest last.
//!
//! ```text
//! {"monoco_index":1,"generation":7}
//! {"seq":1,"id":"webhook_0f3a…",…}
//! {"seq":2,…
//! ```
//!
//! The index is only appended to, so a reader continues at its last position. A rewritten
//! index has another generation. A last line without line end is still being written and
//! is ignored.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use monoco_core::mail::MailIndexEntry;
use serde::{Deserialize, Serialize};

use super::cursor::SyncCursor;
use super::{MailboxError, at};

/// Reads an index line by line.
#[derive(Debug)]
pub struct IndexReader {
    path: PathBuf,
    file: BufReader<File>,
    /// Generation of the index.
    pub generation: i64,
    start: u64,
    offset: u64,
    line: Vec<u8>,
}

#[derive(Debug)]
pub struct IndexLine {
    /// Offset of the line.
    pub start: u64,
    /// Offset of the next line.
    pub end: u64,
    /// `None` when the line cannot be parsed.
    pub entry: Option<MailIndexEntry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumePosition {
    /// With the Mails after this number. Earlier Mails may be read again.
    After(i64),
    /// Nowhere yet: after a crash, the courier truncated the index and writes the same
    /// lines again.
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
    /// Opens an index; `None` when there is none yet.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or is not an index of this version.
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

    /// Seeks to the position of `cursor`, or to the start.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn resume(&mut self, cursor: &SyncCursor) -> Result<ResumePosition, MailboxError> {
        if cursor.offset == 0 {
            return Ok(ResumePosition::After(0));
        }
        if cursor.generation == self.generation {
            // The line of the last Mail shows whether this is still the same index.
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
        // Numbers only grow within a store. An index that ends before the cursor belongs
        // to another store, and all Mails in it are new.
        let mut last = 0;
        while let Some(line) = self.next_line()? {
            last = line.entry.map_or(last, |entry| entry.seq);
        }
        self.seek(self.start)?;
        Ok(ResumePosition::After(if last < cursor.seq { 0 } else { cursor.seq }))
    }

    /// The id of the first Mail; empty when there is none.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn first(&mut self) -> Result<String, MailboxError> {
        let before = self.offset;
        self.seek(self.start)?;
        let first = self.next_line()?.and_then(|line| line.entry);
        self.seek(before)?;
        Ok(first.map(|entry| entry.id.to_string()).unwrap_or_default())
    }

    /// Reads the line at `offset`; `None` when no line starts there.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn line_at(&mut self, offset: u64) -> Result<Option<IndexLine>, MailboxError> {
        if self.go_to(offset)? { self.next_line() } else { Ok(None) }
    }

    /// Seeks to `offset`. Returns whether a line starts there.
    fn go_to(&mut self, offset: u64) -> Result<bool, MailboxError> {
        if offset < self.start {
            return Ok(false);
        }
        self.seek(offset - 1)?;
        Ok(self.read_line()? == Some(offset))
    }

    /// Reads the next line; `None` when there is no further complete one.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn next_line(&mut self) -> Result<Option<IndexLine>, MailboxError> {
        let start = self.offset;
        let Some(end) = self.read_line()? else { return Ok(None) };
        Ok(Some(IndexLine { start, end, entry: serde_json::from_slice(&self.line).ok() }))
    }

    /// The Mails whose ids contain `fits`, the oldest first. Reads the whole index.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn search(&mut self, fits: &str) -> Result<Vec<MailIndexEntry>, MailboxError> {
        self.seek(self.start)?;
        let mut found = Vec::new();
        while self.read_line()?.is_some() {
            // Most lines are skipped without parsing.
            if !contains(&self.line, fits.as_bytes()) {
                continue;
            }
            if let Ok(entry) = serde_json::from_slice::<MailIndexEntry>(&self.line) {
                found.push(entry);
            }
        }
        Ok(found)
    }

    /// Reads a complete line and returns the offset of the next one.
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
