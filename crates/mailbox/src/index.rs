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
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
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

/// Reads an index backwards, the newest Mail first. Lines that cannot be parsed are skipped.
#[derive(Debug)]
pub struct NewestFirst {
    path: PathBuf,
    file: File,
    /// Offset of the first line.
    start: u64,
    /// Offset of the first byte in `rest`.
    offset: u64,
    /// Bytes before the last line that was returned.
    rest: Vec<u8>,
}

/// Number of bytes that are read at once when an index is read backwards.
const BLOCK: u64 = 64 << 10;

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

    /// Reads the Mails of the index backwards.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn newest_first(self) -> Result<NewestFirst, MailboxError> {
        let Self { path, file, start, .. } = self;
        let file = file.into_inner();
        let offset = file.metadata().map_err(at(&path))?.len().max(start);
        let mut newest = NewestFirst { path, file, start, offset, rest: Vec::new() };
        // The bytes after the last line end are a line that is still being written.
        while newest.line_end().is_none() && newest.read_block()? {}
        newest.rest.truncate(newest.line_end().map_or(0, |end| end + 1));
        Ok(newest)
    }

    /// The number of Mails in the index. Reads the whole index without parsing it.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn count(&mut self) -> Result<u64, MailboxError> {
        self.seek(self.start)?;
        let mut count = 0;
        loop {
            let bytes = self.file.fill_buf().map_err(at(&self.path))?;
            if bytes.is_empty() {
                return Ok(count);
            }
            count += bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
            let read = bytes.len();
            self.file.consume(read);
        }
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

impl NewestFirst {
    /// Reads the next older Mail; `None` when there is none.
    ///
    /// # Errors
    ///
    /// When the index cannot be read.
    pub fn next_entry(&mut self) -> Result<Option<MailIndexEntry>, MailboxError> {
        loop {
            // Without the line end of the next line.
            let Some(body) = self.rest.len().checked_sub(1) else { return Ok(None) };
            let begin = match self.rest[..body].iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if self.read_block()? => continue,
                None => 0,
            };
            let entry = serde_json::from_slice(&self.rest[begin..body]).ok();
            self.rest.truncate(begin);
            if entry.is_some() {
                return Ok(entry);
            }
        }
    }

    /// Position of the last line end in `rest`.
    fn line_end(&self) -> Option<usize> {
        self.rest.iter().rposition(|byte| *byte == b'\n')
    }

    /// Reads the block before `rest`. Returns whether there was one.
    fn read_block(&mut self) -> Result<bool, MailboxError> {
        let length = BLOCK.min(self.offset - self.start);
        let mut block = vec![0; usize::try_from(length).unwrap_or_default()];
        self.offset -= length;
        let read = self.file.seek(SeekFrom::Start(self.offset));
        read.and_then(|_| self.file.read_exact(&mut block)).map_err(at(&self.path))?;
        block.append(&mut self.rest);
        self.rest = block;
        Ok(length > 0)
    }
}

fn contains(line: &[u8], part: &[u8]) -> bool {
    part.is_empty() || line.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::CourierFixture;

    #[test]
    fn index_is_read_backwards_across_blocks_without_incomplete_and_malformed_lines() {
        let mut post = CourierFixture::new();
        let open =
            |post: &CourierFixture| IndexReader::open(&post.tree().index()).unwrap().unwrap();
        assert!(open(&post).newest_first().unwrap().next_entry().unwrap().is_none());
        let long = "x".repeat(usize::try_from(BLOCK).unwrap() / 100);
        for n in 0..300 {
            post.deliver(&format!("{long}{n}"), "hi");
            if n == 150 {
                post.append("malformed\n");
            }
        }
        post.append("{\"seq\":301,");
        let mut newest = open(&post).newest_first().unwrap();
        for seq in (1..=300).rev() {
            assert_eq!(newest.next_entry().unwrap().unwrap().seq, seq);
        }
        assert!(newest.next_entry().unwrap().is_none());
        assert_eq!(open(&post).count().unwrap(), 301, "with the malformed line");
    }
}
