//! Reads the files of a mailbox: Mails and index.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::Deserialize;

use crate::common::Result;

/// Ids of the messages in the Mails of one directory. Reads each file once.
pub struct Messages {
    dir: PathBuf,
    files: HashSet<String>,
    ids: HashSet<String>,
    /// Number of messages that are in more than one Mail, or twice in one.
    pub twice: u64,
}

/// One line of the index.
#[derive(Clone, Debug, Deserialize)]
pub struct MailLine {
    pub id: String,
    pub file: String,
}

/// The index. Each read continues where the last one ended.
pub struct Index {
    path: PathBuf,
    offset: u64,
    rest: Vec<u8>,
    /// The Mails that were read, oldest first.
    pub lines: Vec<MailLine>,
}

impl Messages {
    pub fn of(mailbox: &std::path::Path) -> Self {
        let dir = mailbox.join("inbound/webhook");
        Self { dir, files: HashSet::new(), ids: HashSet::new(), twice: 0 }
    }

    /// Reads new files and returns the number of messages.
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
            // An incomplete file has no such line or a part of it: it is read again later.
            let text = fs::read_to_string(self.dir.join(&name))?;
            let Some(ids) = messages(&text) else { continue };
            self.files.insert(name);
            for id in ids {
                self.twice += u64::from(!self.ids.insert(id));
            }
        }
        Ok(self.ids.len() as u64)
    }

    pub fn mails(&self) -> usize {
        self.files.len()
    }

    pub fn has(&self, id: &str) -> bool {
        self.ids.contains(id)
    }
}

/// The ids of the messages of a Mail.
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
    /// The index of `mailbox`. The file may not exist yet.
    pub fn of(mailbox: &std::path::Path) -> Self {
        let path = mailbox.join(".state/mails.jsonl");
        Self { path, offset: 0, rest: Vec::new(), lines: Vec::new() }
    }

    /// Reads new lines and returns the number of Mails.
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
            // The first line is the header of the index.
            if !line.is_empty() && !line.starts_with(br#"{"monoco_index""#) {
                self.lines.push(serde_json::from_slice(line)?);
            }
        }
        self.rest.drain(..whole);
        Ok(self.lines.len())
    }
}
