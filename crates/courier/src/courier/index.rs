//! Writes `.state/mails.jsonl`: one line per Mail, in the order in which Mails became
//! visible.
//!
//! ```text
//! {"monoco_index":1,"generation":7}
//! {"seq":1,"id":"webhook_0f3a…",…}
//! {"seq":2,…
//! ```
//!
//! Workspaces read the index instead of listing directories with many files: lines after
//! their last position are new. The index is therefore only appended to. A line is written
//! after the file of the Mail. Its sequence number is assigned by the store when the Mail
//! becomes visible; a held Mail gets its number when its sender is accepted, so no line is
//! inserted before one that was read. Lines that are written again after a crash are
//! identical, because order and content come from the store.
//!
//! A rewritten index, without the lines of purged Mails, has a new generation number and
//! appears complete.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use monoco_core::mail::MailIndexEntry;
use monoco_fs::{Dir, TemporaryFile};
use monoco_mailbox::index::{IndexHead, write_line};
use monoco_mailbox::paths::INDEX_FILE;
use monoco_store::FileProgress;

use super::mailbox_dir::OpenDirs;

/// State of the index after the last write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailIndexFile {
    pub generation: i64,
    /// Sequence number of the last Mail that was written or skipped.
    pub seq: i64,
    pub lines: u64,
    pub bytes: u64,
}

/// An index that is being written under a temporary name.
pub struct IndexRebuild {
    file: BufWriter<TemporaryFile<Arc<Dir>>>,
    index: MailIndexFile,
}

impl MailIndexFile {
    /// Opens the index and truncates it to the length that is known to be on disk. Returns
    /// `None` when it is not the index that `progress` describes.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or truncated.
    pub fn open(state: &Dir, progress: &FileProgress) -> io::Result<Option<Self>> {
        let is_file = state.stat(INDEX_FILE)?.is_some_and(|stat| stat.is_file);
        if !is_file || progress.index_bytes == 0 {
            return Ok(None);
        }
        let mut file = state.append(INDEX_FILE)?;
        let length = file.metadata()?.len();
        if generation(&file)? != Some(progress.generation) || length < progress.index_bytes {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(0))?;
        let Some(lines) = lines(&mut file, progress.index_bytes)? else { return Ok(None) };
        if length > progress.index_bytes {
            file.set_len(progress.index_bytes)?;
        }
        Ok(Some(Self {
            generation: progress.generation,
            seq: progress.index_seq,
            lines,
            bytes: progress.index_bytes,
        }))
    }

    /// Returns the generation of the index; `None` when there is none of this version.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn generation_of(state: &Dir) -> io::Result<Option<i64>> {
        let is_file = state.stat(INDEX_FILE)?.is_some_and(|stat| stat.is_file);
        if is_file { generation(&state.append(INDEX_FILE)?) } else { Ok(None) }
    }

    /// Returns an unused generation number.
    ///
    /// # Errors
    ///
    /// When an index exists and cannot be read.
    pub fn next_generation(state: &Dir, progress: &FileProgress) -> io::Result<i64> {
        // Anything that is not a plain file is replaced.
        let there = Self::generation_of(state)?.unwrap_or(0);
        Ok(there.max(progress.generation).saturating_add(1))
    }

    /// Whether the file still has the length that was written.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn is_there(&self, state: &Dir) -> io::Result<bool> {
        Ok(state.stat(INDEX_FILE)?.is_some_and(|stat| stat.is_file && stat.len == self.bytes))
    }

    /// Appends the lines of `entries` and marks all Mails up to `seq` as done.
    ///
    /// # Errors
    ///
    /// When the disk is full: lines that were written completely remain.
    /// [`ErrorKind::InvalidData`] when another program has changed the file; the caller
    /// must rewrite the index.
    pub fn append(&mut self, state: &Dir, entries: &[MailIndexEntry], seq: i64) -> io::Result<()> {
        let mut text = Vec::new();
        let mut ends = Vec::with_capacity(entries.len());
        for entry in entries {
            write_line(&mut text, entry)?;
            ends.push((text.len(), entry.seq));
        }
        if text.is_empty() {
            self.seq = seq;
            return Ok(());
        }
        let changed =
            || io::Error::new(ErrorKind::InvalidData, "another program has changed the index");
        if !self.is_there(state)? {
            return Err(changed());
        }
        let mut file = state.append(INDEX_FILE)?;
        let written = file.write_all(&text);
        let fitted = match &written {
            Ok(()) => text.len(),
            // Readers may have read complete lines, so complete lines remain.
            Err(_) => {
                let length = file.metadata()?.len().saturating_sub(self.bytes);
                let length = usize::try_from(length).unwrap_or(usize::MAX).min(text.len());
                let whole = text[..length].iter().rposition(|byte| *byte == b'\n');
                let whole = whole.map_or(0, |at| at + 1);
                file.set_len(self.bytes + whole as u64)?;
                whole
            }
        };
        for (end, last) in ends {
            if end <= fitted {
                self.lines += 1;
                self.seq = last;
            }
        }
        self.bytes += fitted as u64;
        written?;
        self.seq = seq;
        Ok(())
    }

    /// Starts a new index that replaces the present one.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn build(dirs: &OpenDirs<'_>, generation: i64) -> io::Result<IndexRebuild> {
        let mut file = BufWriter::with_capacity(1 << 18, dirs.create_temporary()?);
        let mut head = Vec::new();
        write_line(&mut head, &IndexHead::new(generation))?;
        file.write_all(&head)?;
        let index = Self { generation, seq: 0, lines: 1, bytes: head.len() as u64 };
        Ok(IndexRebuild { file, index })
    }
}

impl IndexRebuild {
    /// Writes the line of one Mail.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn add(&mut self, entry: &MailIndexEntry) -> io::Result<()> {
        let mut text = Vec::new();
        write_line(&mut text, entry)?;
        self.file.write_all(&text)?;
        self.index.lines += 1;
        self.index.bytes += text.len() as u64;
        Ok(())
    }

    /// Renames the new index to its final name. `seq` is the number of the last Mail that
    /// was written or skipped.
    ///
    /// # Errors
    ///
    /// When the file system returns an error.
    pub fn finish(self, dirs: &OpenDirs<'_>, seq: i64) -> io::Result<MailIndexFile> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rename(dirs.state()?, Path::new(INDEX_FILE))?;
        Ok(MailIndexFile { seq, ..self.index })
    }
}

/// Reads the generation; `None` when the file is not an index of this version.
fn generation(file: &File) -> io::Result<Option<i64>> {
    let mut head = Vec::new();
    BufReader::with_capacity(256, io::Read::take(file, 256)).read_until(b'\n', &mut head)?;
    if head.last() != Some(&b'\n') {
        return Ok(None);
    }
    let head = serde_json::from_slice::<IndexHead>(&head).ok();
    Ok(head.filter(IndexHead::is_supported).map(|head| head.generation))
}

/// Counts the lines in the first `bytes` bytes; `None` when they end within a line.
fn lines(file: &mut File, bytes: u64) -> io::Result<Option<u64>> {
    let mut reader = BufReader::with_capacity(1 << 16, io::Read::take(file, bytes));
    let (mut lines, mut last) = (0, b'\n');
    loop {
        let part = reader.fill_buf()?;
        let Some(end) = part.last() else { break };
        last = *end;
        lines += part.iter().filter(|byte| **byte == b'\n').count() as u64;
        let length = part.len();
        reader.consume(length);
    }
    Ok((last == b'\n').then_some(lines))
}

#[cfg(test)]
pub(super) mod tests {
    use monoco_core::inbound::{ChatSession, ChatSessionKind, Participant};
    use monoco_core::mail::{MailId, Participants, Trust};
    use monoco_core::object::{ObjId, ObjKind};
    use monoco_core::time::Timestamp;

    use super::*;
    use crate::courier::mailbox_dir::MailboxDir;

    fn entry(seq: i64) -> MailIndexEntry {
        let tunnel = "ci".parse().unwrap();
        let id = MailId::of("webhook", &tunnel, &seq.to_string());
        let received_at = Timestamp::from_ms(seq * 1000);
        let length = usize::try_from(seq % 7).unwrap();
        MailIndexEntry {
            seq,
            msg_id: ObjId::of(ObjKind::Msg, &seq.to_le_bytes()),
            file: id.file(received_at),
            sha256: "0".repeat(64),
            id,
            tunnel,
            session: ChatSession {
                id: "room".to_owned(),
                kind: ChatSessionKind::Group,
                name: None,
                thread_key: None,
            },
            participants: Participants {
                from: vec![Participant::user("ann", None)],
                ..Participants::default()
            },
            received_at,
            title: None,
            correlation_id: None,
            binding: None,
            trust: Trust::Known,
            messages: 1,
            preview: "é".repeat(length),
            tokens: None,
            unverified: false,
            erased_at: None,
        }
    }

    fn tree() -> (tempfile::TempDir, MailboxDir) {
        let dir = tempfile::tempdir().unwrap();
        let tree = MailboxDir::new(dir.path().join("mailbox"), dir.path().join("dropzone"));
        tree.create().unwrap();
        (dir, tree)
    }

    fn progress(index: &MailIndexFile) -> FileProgress {
        FileProgress {
            change: 0,
            index_bytes: index.bytes,
            index_seq: index.seq,
            generation: index.generation,
        }
    }

    fn text(tree: &MailboxDir) -> Vec<u8> {
        std::fs::read(tree.mailbox().join(".state/mails.jsonl")).unwrap()
    }

    fn write(tree: &MailboxDir, bytes: &[u8]) {
        std::fs::write(tree.mailbox().join(".state/mails.jsonl"), bytes).unwrap();
    }

    #[test]
    fn tail_torn_at_any_byte_is_restored_identically() {
        let (_dir, tree) = tree();
        let dirs = tree.open_dirs().unwrap();
        let state = dirs.state().unwrap();
        let mut building = MailIndexFile::build(&dirs, 7).unwrap();
        (1..=3).for_each(|seq| building.add(&entry(seq)).unwrap());
        let mut index = building.finish(&dirs, 3).unwrap();
        let synced = progress(&index);
        let tail: Vec<_> = (4..=6).map(entry).collect();
        index.append(&state, &tail, 6).unwrap();
        let whole = text(&tree);
        assert_eq!(whole.len() as u64, index.bytes);
        assert_eq!(index.lines, 7);

        let kept = usize::try_from(synced.index_bytes).unwrap();
        for torn in kept..=whole.len() {
            for lost in [&whole[..torn], &[&whole[..torn], &b"\0\0\0"[..]].concat()] {
                write(&tree, lost);
                let mut again = MailIndexFile::open(&state, &synced).unwrap().unwrap();
                assert_eq!((again.lines, again.seq), (4, 3));
                assert_eq!(text(&tree), whole[..kept]);
                again.append(&state, &tail, 6).unwrap();
                assert_eq!(again, index);
                assert_eq!(text(&tree), whole);
            }
        }
        for torn in 0..kept {
            write(&tree, &whole[..torn]);
            assert_eq!(MailIndexFile::open(&state, &synced).unwrap(), None, "{torn}");
        }
    }

    #[test]
    fn index_that_does_not_match_the_progress_is_rewritten() {
        let (_dir, tree) = tree();
        let dirs = tree.open_dirs().unwrap();
        let state = dirs.state().unwrap();
        let none = FileProgress { generation: 4, ..FileProgress::default() };
        assert_eq!(MailIndexFile::open(&state, &none).unwrap(), None);
        assert_eq!(MailIndexFile::next_generation(&state, &none).unwrap(), 5);

        let mut index = MailIndexFile::build(&dirs, 9).unwrap().finish(&dirs, 0).unwrap();
        assert_eq!(
            MailIndexFile::open(&state, &FileProgress { generation: 8, ..progress(&index) })
                .unwrap(),
            None
        );
        assert_eq!(MailIndexFile::next_generation(&state, &none).unwrap(), 10);
        write(&tree, b"{\"monoco_index\":2,\"generation\":9}\n");
        assert_eq!(MailIndexFile::open(&state, &progress(&index)).unwrap(), None);
        write(&tree, b"rubbish");
        assert_eq!(MailIndexFile::next_generation(&state, &none).unwrap(), 5);

        let error = index.append(&state, &[entry(1)], 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(text(&tree), b"rubbish", "not ours to write to");
    }
}
