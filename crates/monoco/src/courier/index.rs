//! `.state/mails.jsonl`: one line for each Mail, in the order they became visible.
//!
//! ```text
//! {"monoco_index":1,"generation":7}
//! {"seq":1,"id":"webhook_0f3a…",…}
//! {"seq":2,…
//! ```
//!
//! Workspaces read it instead of a directory of a hundred thousand files: what is behind
//! the place where they stopped is what is new to them. So it only grows. A Mail has its
//! line once its file is in place, and a line's number is the one that the store gave the
//! Mail when it became visible: a Mail of a stranger gets its number when he is let in,
//! and none appears behind one that was seen. What is written again after a crash is the
//! same, byte for byte, because both the order and the lines come from the store.
//!
//! An index that is made anew, without the lines of Mails long gone, has another
//! generation, and is complete when it appears.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use monoco_core::mail::MailIndexEntry;
use monoco_fs::TemporaryFile;
use monoco_mailbox::index::{IndexHead, write_line};
use monoco_mailbox::paths::INDEX_FILE;
use monoco_store::FileProgress;

use super::mailbox_dir::{Dir, OpenDirs};

/// What we know of the index, having written it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailIndexFile {
    /// Which index.
    pub generation: i64,
    /// The number of the last Mail that was written, or passed over.
    pub seq: i64,
    /// How many lines it has.
    pub lines: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// An index that is being made.
pub struct IndexRebuild {
    file: BufWriter<TemporaryFile<Arc<Dir>>>,
    index: MailIndexFile,
}

impl MailIndexFile {
    /// The index that is there, cut to what is surely on disk; `None` when it is not the
    /// one that was filed.
    ///
    /// # Errors
    ///
    /// When it can't be read or cut.
    pub fn open(state: &Dir, filed: &FileProgress) -> io::Result<Option<Self>> {
        let is_file = state.stat(INDEX_FILE)?.is_some_and(|looks| looks.is_file);
        if !is_file || filed.index_bytes == 0 {
            return Ok(None);
        }
        let mut file = state.append(INDEX_FILE)?;
        let length = file.metadata()?.len();
        if generation(&file)? != Some(filed.generation) || length < filed.index_bytes {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(0))?;
        let Some(lines) = lines(&mut file, filed.index_bytes)? else { return Ok(None) };
        if length > filed.index_bytes {
            file.set_len(filed.index_bytes)?;
        }
        Ok(Some(Self {
            generation: filed.generation,
            seq: filed.index_seq,
            lines,
            bytes: filed.index_bytes,
        }))
    }

    /// The number for the next index: one that was not used before.
    ///
    /// # Errors
    ///
    /// When there is one, and it can't be read.
    pub fn next_generation(state: &Dir, filed: &FileProgress) -> io::Result<i64> {
        // Whatever else somebody has put there is replaced.
        let is_file = state.stat(INDEX_FILE)?.is_some_and(|looks| looks.is_file);
        let there = if is_file { generation(&state.append(INDEX_FILE)?)?.unwrap_or(0) } else { 0 };
        Ok(there.max(filed.generation).saturating_add(1))
    }

    /// Whether it still has the bytes that we wrote.
    ///
    /// # Errors
    ///
    /// When it can't be looked at.
    pub fn is_there(&self, state: &Dir) -> io::Result<bool> {
        Ok(state.stat(INDEX_FILE)?.is_some_and(|looks| looks.is_file && looks.len == self.bytes))
    }

    /// Adds the lines of Mails, and passes over those that have none up to `seq`.
    ///
    /// # Errors
    ///
    /// When there is no room: then those that fitted are in it. With
    /// [`ErrorKind::InvalidData`] somebody else has changed it, and it is to be made
    /// anew.
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
        let changed = || io::Error::new(ErrorKind::InvalidData, "the index is not as we left it");
        if !self.is_there(state)? {
            return Err(changed());
        }
        let mut file = state.append(INDEX_FILE)?;
        let written = file.write_all(&text);
        let fitted = match &written {
            Ok(()) => text.len(),
            // Readers may have seen the whole lines among them, so these stay.
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

    /// Starts an index that is to take the place of this one.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub fn build(hands: &OpenDirs<'_>, generation: i64) -> io::Result<IndexRebuild> {
        let mut file = BufWriter::with_capacity(1 << 18, hands.create_temporary()?);
        let mut head = Vec::new();
        write_line(&mut head, &IndexHead::new(generation))?;
        file.write_all(&head)?;
        let index = Self { generation, seq: 0, lines: 1, bytes: head.len() as u64 };
        Ok(IndexRebuild { file, index })
    }
}

impl IndexRebuild {
    /// Adds a line.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub fn add(&mut self, entry: &MailIndexEntry) -> io::Result<()> {
        let mut text = Vec::new();
        write_line(&mut text, entry)?;
        self.file.write_all(&text)?;
        self.index.lines += 1;
        self.index.bytes += text.len() as u64;
        Ok(())
    }

    /// Puts it into its place. `seq` is the number of the last Mail that was written or
    /// passed over.
    ///
    /// # Errors
    ///
    /// When there is no room.
    pub fn finish(self, hands: &OpenDirs<'_>, seq: i64) -> io::Result<MailIndexFile> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rename(hands.state()?, Path::new(INDEX_FILE))?;
        Ok(MailIndexFile { seq, ..self.index })
    }
}

/// Which index a file is; `None` when it is none.
fn generation(file: &File) -> io::Result<Option<i64>> {
    let mut head = Vec::new();
    BufReader::with_capacity(256, io::Read::take(file, 256)).read_until(b'\n', &mut head)?;
    if head.last() != Some(&b'\n') {
        return Ok(None);
    }
    let head = serde_json::from_slice::<IndexHead>(&head).ok();
    Ok(head.filter(IndexHead::is_supported).map(|head| head.generation))
}

/// How many lines the first `bytes` bytes are; `None` when they end within one.
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
                from: vec![Participant { id: "ann".to_owned(), name: None }],
                ..Participants::default()
            },
            received_at,
            title: None,
            correlation_id: None,
            binding: None,
            trust: Trust::Known,
            messages: 1,
            preview: "é".repeat(length),
        }
    }

    fn tree() -> (tempfile::TempDir, MailboxDir) {
        let dir = tempfile::tempdir().unwrap();
        let tree = MailboxDir::new(dir.path().join("mailbox"), dir.path().join("dropzone"));
        tree.create().unwrap();
        (dir, tree)
    }

    fn filed(index: &MailIndexFile) -> FileProgress {
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
    fn a_tail_torn_at_any_byte_is_written_again_as_it_was() {
        let (_dir, tree) = tree();
        let hands = tree.open_dirs().unwrap();
        let state = hands.state().unwrap();
        let mut building = MailIndexFile::build(&hands, 7).unwrap();
        (1..=3).for_each(|seq| building.add(&entry(seq)).unwrap());
        let mut index = building.finish(&hands, 3).unwrap();
        let synced = filed(&index);
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
    fn an_index_that_is_not_the_one_that_was_filed_is_made_anew() {
        let (_dir, tree) = tree();
        let hands = tree.open_dirs().unwrap();
        let state = hands.state().unwrap();
        let none = FileProgress { generation: 4, ..FileProgress::default() };
        assert_eq!(MailIndexFile::open(&state, &none).unwrap(), None);
        assert_eq!(MailIndexFile::next_generation(&state, &none).unwrap(), 5);

        let mut index = MailIndexFile::build(&hands, 9).unwrap().finish(&hands, 0).unwrap();
        assert_eq!(
            MailIndexFile::open(&state, &FileProgress { generation: 8, ..filed(&index) }).unwrap(),
            None
        );
        assert_eq!(MailIndexFile::next_generation(&state, &none).unwrap(), 10);
        write(&tree, b"{\"monoco_index\":2,\"generation\":9}\n");
        assert_eq!(MailIndexFile::open(&state, &filed(&index)).unwrap(), None);
        write(&tree, b"rubbish");
        assert_eq!(MailIndexFile::next_generation(&state, &none).unwrap(), 5);

        let error = index.append(&state, &[entry(1)], 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        assert_eq!(text(&tree), b"rubbish", "not ours to write to");
    }
}
