//! Reads the mailbox's files as anybody may: the Mails themselves, and the index.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::Deserialize;

use crate::common::Result;

/// Every message in the Mails of one directory. Reads each file once.
pub struct Messages {
    dir: PathBuf,
    files: HashSet<String>,
    /// The ids of the messages.
    ids: HashSet<String>,
    /// Messages that are in more than one Mail, or twice in one.
    pub twice: u64,
}

/// One Mail, as the index has it.
#[derive(Clone, Debug, Deserialize)]
pub struct Line {
    /// Its name.
    pub id: String,
    /// The name of its file.
    pub file: String,
}

/// The index, read on from where the last look ended.
pub struct Index {
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
    /// Its Mails so far, oldest first.
    pub lines: Vec<Line>,
}

impl Messages {
    /// Those of `mailbox`, none of which has been read yet.
    pub fn of(mailbox: &std::path::Path) -> Self {
        let dir = mailbox.join("inbound/webhook");
        Self { dir, files: HashSet::new(), ids: HashSet::new(), twice: 0 }
    }

    /// Reads what is new, and says how many messages there are by now.
    pub fn look(&mut self) -> Result<u64> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".md") || self.files.contains(&name) {
                continue;
            }
            // Half a file has no such line yet, or half of it: the next look finds the rest.
            let text = fs::read_to_string(self.dir.join(&name))?;
            let Some(ids) = messages(&text) else { continue };
            self.files.insert(name);
            for id in ids {
                self.twice += u64::from(!self.ids.insert(id));
            }
        }
        Ok(self.ids.len() as u64)
    }

    /// How many Mails there are.
    pub fn mails(&self) -> usize {
        self.files.len()
    }

    /// Whether a message is in one of them.
    pub fn has(&self, id: &str) -> bool {
        self.ids.contains(id)
    }
}

/// The ids of a Mail's messages.
fn messages(file: &str) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Message {
        id: String,
    }
    let line = file.lines().find_map(|line| line.strip_prefix("  messages: "))?;
    let messages: Vec<Message> = serde_json::from_str(line).ok()?;
    Some(messages.into_iter().map(|message| message.id).collect())
}

impl Index {
    /// That of `mailbox`, which may not be there yet.
    pub fn of(mailbox: &std::path::Path) -> Self {
        let path = mailbox.join(".state/mails.jsonl");
        Self { path, offset: 0, rest: Vec::new(), lines: Vec::new() }
    }

    /// Reads what is new, and says how many Mails there are by now.
    pub fn look(&mut self) -> Result<usize> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        file.seek(SeekFrom::Start(self.offset))?;
        self.offset += file.read_to_end(&mut self.rest)? as u64;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in self.rest[..whole].split(|byte| *byte == b'\n') {
            // The first line is about the index itself.
            if !line.is_empty() && !line.starts_with(br#"{"monoco_index""#) {
                self.lines.push(serde_json::from_slice(line)?);
            }
        }
        self.rest.drain(..whole);
        Ok(self.lines.len())
    }
}
