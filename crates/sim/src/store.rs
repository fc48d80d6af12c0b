//! Users, chats, messages and files of one emulated network, all in bounded memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

use crate::signature::sha256_hex;

/// Newest messages kept per chat.
pub const MAX_MESSAGES_PER_CHAT: usize = 20_000;

/// Newest sends kept of all chats.
const MAX_SENDS: usize = 50_000;

/// Largest file, in bytes.
pub const MAX_FILE_BYTES: usize = 100 << 20;

/// Bytes of all files; the oldest files are dropped first.
const MAX_TOTAL_FILE_BYTES: usize = 256 << 20;

/// Files kept at most, whatever their sizes.
const MAX_FILES: usize = 10_000;

/// Chats and users kept at most; a request for more is rejected.
pub const MAX_CHATS: usize = 10_000;

/// Bytes of a chunk of a generated file.
const CHUNK_BYTES: usize = 64 << 10;

/// Content of a file or of a response.
#[derive(Clone, Debug)]
pub enum FileContent {
    Bytes(Bytes),
    /// A file of this size that is generated while it is sent: the letters a to z, repeated.
    Pattern(u64),
}

impl FileContent {
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self::Bytes(bytes.into())
    }

    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Pattern(size) => *size,
        }
    }

    /// Bytes of memory that the content takes.
    fn memory(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pattern(_) => 0,
        }
    }

    /// Returns the content in chunks.
    pub fn chunks(self) -> Box<dyn Iterator<Item = Bytes> + Send + Sync> {
        match self {
            Self::Bytes(bytes) => Box::new(std::iter::once(bytes)),
            Self::Pattern(size) => {
                // A whole number of alphabets, so that each chunk starts with an `a`.
                let chunk: Bytes = (b'a'..=b'z').cycle().take(CHUNK_BYTES / 26 * 26).collect();
                let length = chunk.len() as u64;
                let full = size / length;
                let rest = usize::try_from(size % length).unwrap_or(0);
                let last = chunk.slice(..rest);
                Box::new((0..full).map(move |_| chunk.clone()).chain(std::iter::once(last)))
            }
        }
    }

    /// SHA-256 of content in memory; `None` for a generated file.
    pub fn sha256(&self) -> Option<String> {
        match self {
            Self::Bytes(bytes) => Some(sha256_hex(bytes)),
            Self::Pattern(_) => None,
        }
    }
}

/// A file that a person or the bot has uploaded.
#[derive(Clone, Debug)]
pub struct SimFile {
    pub id: String,
    pub name: String,
    pub mime_type: String,
    pub content: FileContent,
    /// Unix time in seconds.
    pub created: u64,
    pub owner: String,
}

/// A person or a bot.
#[derive(Clone, Debug, Serialize)]
pub struct SimUser {
    pub id: String,
    pub name: String,
    pub is_bot: bool,
}

/// How many people a chat has, and who may find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SimChatKind {
    Direct,
    Group,
    Private,
}

/// One message of a chat, in the form of its network.
#[derive(Clone, Debug)]
pub struct SimMessage {
    pub id: String,
    pub thread: Option<String>,
    pub body: Value,
}

/// A chat with its newest messages.
#[derive(Debug)]
pub struct SimChat {
    pub id: String,
    pub name: String,
    pub kind: SimChatKind,
    pub members: BTreeSet<String>,
    pub is_archived: bool,
    messages: BTreeMap<u64, SimMessage>,
    keys: HashMap<String, u64>,
    threads: HashMap<String, BTreeSet<u64>>,
}

impl SimChat {
    pub fn new(id: &str, name: &str, kind: SimChatKind, members: &[&str]) -> Self {
        Self {
            id: id.to_owned(),
            name: name.to_owned(),
            kind,
            members: members.iter().map(|member| (*member).to_owned()).collect(),
            is_archived: false,
            messages: BTreeMap::new(),
            keys: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    /// Adds a message; `key` orders the messages. The oldest message beyond the limit is dropped.
    pub fn insert(&mut self, key: u64, message: SimMessage) {
        if let Some(thread) = &message.thread {
            self.threads.entry(thread.clone()).or_default().insert(key);
        }
        self.keys.insert(message.id.clone(), key);
        self.messages.insert(key, message);
        while self.messages.len() > MAX_MESSAGES_PER_CHAT {
            let Some((&oldest, _)) = self.messages.first_key_value() else { break };
            self.remove_key(oldest);
        }
    }

    fn remove_key(&mut self, key: u64) -> Option<SimMessage> {
        let message = self.messages.remove(&key)?;
        self.keys.remove(&message.id);
        if let Some(thread) = &message.thread
            && let Some(keys) = self.threads.get_mut(thread)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.threads.remove(thread);
            }
        }
        Some(message)
    }

    pub fn get(&self, id: &str) -> Option<&SimMessage> {
        self.messages.get(self.keys.get(id)?)
    }

    pub fn get_mut(&mut self, id: &str) -> Option<&mut SimMessage> {
        self.messages.get_mut(self.keys.get(id)?)
    }

    pub fn remove(&mut self, id: &str) -> Option<SimMessage> {
        let key = *self.keys.get(id)?;
        self.remove_key(key)
    }

    /// Messages with keys in the range, newest first.
    pub fn newest_first(
        &self,
        range: impl std::ops::RangeBounds<u64>,
    ) -> impl Iterator<Item = (u64, &SimMessage)> {
        self.messages.range(range).rev().map(|(key, message)| (*key, message))
    }

    /// Messages of a thread, oldest first, without the message that started it.
    pub fn replies(&self, thread: &str) -> impl Iterator<Item = (u64, &SimMessage)> {
        let keys = self.threads.get(thread).into_iter().flatten();
        keys.filter_map(|key| Some((*key, self.messages.get(key)?)))
    }

    pub fn reply_count(&self, thread: &str) -> usize {
        self.threads.get(thread).map_or(0, BTreeSet::len)
    }
}

/// One call by which a bot sent, changed or removed something.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SentRecord {
    /// Counts from 1, in the order of the calls.
    pub seq: u64,
    /// Unix time in milliseconds.
    pub at_ms: u64,
    /// Index of the app that sent.
    pub app: usize,
    /// Method of the API.
    pub via: String,
    pub chat: String,
    pub thread: Option<String>,
    /// Id that the emulator gave to the message.
    pub id: Option<String>,
    /// Text as a person would see it, in the markup of the network.
    pub text: String,
    pub files: Vec<Value>,
    /// Parameters of the call.
    pub request: Value,
}

/// Everything that people and bots said.
#[derive(Debug, Default)]
pub struct SimStore {
    pub users: BTreeMap<String, SimUser>,
    pub chats: BTreeMap<String, SimChat>,
    /// Ids of chats and users by lower-case name.
    chat_names: HashMap<String, String>,
    user_names: HashMap<String, String>,
    files: HashMap<String, SimFile>,
    file_order: VecDeque<String>,
    file_bytes: usize,
    pub sent: VecDeque<SentRecord>,
    sent_count: u64,
}

impl SimStore {
    pub fn add_user(&mut self, user: SimUser) {
        self.user_names.insert(user.name.to_lowercase(), user.id.clone());
        self.users.insert(user.id.clone(), user);
    }

    pub fn add_chat(&mut self, chat: SimChat) {
        self.chat_names.insert(chat.name.to_lowercase(), chat.id.clone());
        self.chats.insert(chat.id.clone(), chat);
    }

    /// Finds a user by id or name.
    pub fn find_user(&self, name: &str) -> Option<&SimUser> {
        let name = name.trim_start_matches('@');
        let id = self.user_names.get(&name.to_lowercase()).map_or(name, String::as_str);
        self.users.get(id)
    }

    /// Finds a chat by id or name; the id is returned.
    pub fn find_chat(&self, name: &str) -> Option<String> {
        if self.chats.contains_key(name) {
            return Some(name.to_owned());
        }
        self.chat_names.get(&name.trim_start_matches('#').to_lowercase()).cloned()
    }

    /// Finds a message by its id, and the id of its chat.
    pub fn find_message(&self, id: &str) -> Option<(&str, &SimMessage)> {
        self.chats.values().find_map(|chat| Some((chat.id.as_str(), chat.get(id)?)))
    }

    pub fn find_message_mut(&mut self, id: &str) -> Option<&mut SimMessage> {
        self.chats.values_mut().find_map(|chat| chat.get_mut(id))
    }

    /// Adds a file, and drops the oldest files beyond the limits.
    pub fn add_file(&mut self, file: SimFile) {
        self.file_bytes += file.content.memory();
        self.file_order.push_back(file.id.clone());
        self.files.insert(file.id.clone(), file);
        while self.file_bytes > MAX_TOTAL_FILE_BYTES || self.files.len() > MAX_FILES {
            let Some(oldest) = self.file_order.pop_front() else { break };
            if let Some(file) = self.files.remove(&oldest) {
                self.file_bytes -= file.content.memory();
            }
        }
    }

    pub fn file(&self, id: &str) -> Option<&SimFile> {
        self.files.get(id)
    }

    /// Records a call of a bot; `seq` and the time are set here.
    pub fn record_sent(&mut self, mut record: SentRecord) {
        self.sent_count += 1;
        record.seq = self.sent_count;
        record.at_ms = crate::clock::now_ms();
        self.sent.push_back(record);
        while self.sent.len() > MAX_SENDS {
            self.sent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: &str, thread: Option<&str>) -> SimMessage {
        SimMessage { id: id.to_owned(), thread: thread.map(str::to_owned), body: Value::Null }
    }

    #[test]
    fn chat_drops_its_oldest_message_beyond_the_limit() {
        let mut chat = SimChat::new("C1", "general", SimChatKind::Group, &[]);
        for key in 0..=MAX_MESSAGES_PER_CHAT as u64 {
            chat.insert(key, message(&key.to_string(), Some("t")));
        }
        assert!(chat.get("0").is_none());
        assert!(chat.get("1").is_some());
        assert_eq!(chat.reply_count("t"), MAX_MESSAGES_PER_CHAT);
    }

    #[test]
    fn removed_reply_leaves_no_empty_thread() {
        let mut chat = SimChat::new("C1", "general", SimChatKind::Group, &[]);
        chat.insert(1, message("1", Some("t")));
        assert!(chat.remove("1").is_some());
        assert_eq!(chat.reply_count("t"), 0);
        assert!(chat.threads.is_empty());
    }

    #[test]
    fn generated_file_has_its_size_and_repeats_the_alphabet() {
        let content = FileContent::Pattern(200_000);
        let bytes: Vec<u8> = content.chunks().flatten().collect();
        assert_eq!(bytes.len(), 200_000);
        assert!(bytes.iter().enumerate().all(|(at, byte)| usize::from(byte - b'a') == at % 26));
    }

    #[test]
    fn oldest_files_are_dropped_when_all_take_too_much_memory() {
        let mut store = SimStore::default();
        let file = |id: &str| SimFile {
            id: id.to_owned(),
            name: id.to_owned(),
            mime_type: String::new(),
            content: FileContent::bytes(vec![0; MAX_FILE_BYTES]),
            created: 0,
            owner: String::new(),
        };
        for id in ["a", "b", "c"] {
            store.add_file(file(id));
        }
        assert!(store.file("a").is_none());
        assert!(store.file("b").is_some() && store.file("c").is_some());
    }
}
