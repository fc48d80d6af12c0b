//! The protocol of beanstalkd: encodes commands and parses replies, without I/O.
//!
//! Lines and bodies have limits, and anything that is not exactly a reply is an error: after an
//! invalid reply, later replies cannot be assigned to their commands.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Buf, BytesMut};

use super::{BeanstalkdJob, JobId, PutOptions, TubeName};

/// Largest body, in bytes.
pub const MAX_BODY_BYTES: usize = 64 * 1024 * 1024;

/// Longest line, in bytes. The longest valid one has about 240.
const MAX_LINE_BYTES: usize = 1024;

/// The commands, as far as they have different replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    Put,
    Use,
    Watch,
    Reserve,
    Delete,
    Release,
    Bury,
    Touch,
    Peek,
    /// `stats`, `stats-job` and `stats-tube`.
    Stats,
}

#[derive(Debug)]
pub struct BeanstalkdCommand {
    pub kind: CommandKind,
    /// The tube that must be in use when the command is sent.
    pub tube: Option<TubeName>,
    /// The bytes, line ends included.
    pub bytes: Vec<u8>,
}

/// A reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeanstalkdReply {
    Inserted(JobId),
    /// With the id of the new job in the reply to `put`.
    Buried(Option<JobId>),
    /// A job that this connection has reserved is about to time out.
    DeadlineSoon,
    TimedOut,
    Reserved(BeanstalkdJob),
    /// The reply to `peek`.
    Found(BeanstalkdJob),
    /// A job larger than [`MAX_BODY_BYTES`], whose body was skipped; with its size.
    TooLong(JobId, u64),
    Stats(Vec<u8>),
    NotFound,
    Draining,
    ExpectedCrlf,
    JobTooBig,
    UnknownCommand,
    BadFormat,
    OutOfMemory,
    InternalError,
    Touched,
    Using(String),
    /// With the number of watched tubes.
    Watching(u64),
    /// The last watched tube cannot be ignored.
    NotIgnored,
    Released,
    Deleted,
}

/// Why the received bytes are not a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    #[error("a line of more than {MAX_LINE_BYTES} bytes")]
    LineTooLong,
    #[error("{0:?} is not a reply")]
    NotAReply(String),
    #[error("a body of another length than announced")]
    WrongBodyLength,
    #[error("statistics of {0} bytes")]
    StatsTooLong(u64),
}

impl BeanstalkdCommand {
    /// Encodes a command of one line.
    pub fn line(kind: CommandKind, line: String) -> Self {
        Self { kind, tube: None, bytes: (line + "\r\n").into_bytes() }
    }

    /// Encodes a command of one line that needs `tube` in use.
    pub fn in_tube(kind: CommandKind, tube: &TubeName, line: String) -> Self {
        Self { tube: Some(tube.clone()), ..Self::line(kind, line) }
    }

    pub fn put(tube: &TubeName, job: &PutOptions) -> Self {
        let (delay, ttr) = (seconds(job.delay), seconds(job.ttr).max(1));
        let line = format!("put {} {delay} {ttr} {}", job.priority, job.body.len());
        let mut put = Self::in_tube(CommandKind::Put, tube, line);
        put.bytes.extend_from_slice(&job.body);
        put.bytes.extend_from_slice(b"\r\n");
        put
    }

    pub fn use_tube(tube: &TubeName) -> Self {
        Self::line(CommandKind::Use, format!("use {tube}"))
    }

    /// Encodes the commands that make a new connection watch only these tubes; the default
    /// tube when there are none, because a connection watches at least one.
    pub fn watch_only(tubes: &[TubeName]) -> Vec<Self> {
        let watch = |tube| Self::line(CommandKind::Watch, format!("watch {tube}"));
        let mut commands: Vec<_> = tubes.iter().map(watch).collect();
        let default = TubeName::default_tube();
        if !tubes.is_empty() && !tubes.contains(&default) {
            commands.push(Self::line(CommandKind::Watch, format!("ignore {default}")));
        }
        commands
    }
}

/// Returns whole seconds, rounded up and limited to `u32`.
pub fn seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

impl CommandKind {
    /// Tells whether the reply belongs to this command. Otherwise commands and replies are out
    /// of step.
    pub fn accepts(self, reply: &BeanstalkdReply) -> bool {
        use BeanstalkdReply::*;
        if matches!(reply, UnknownCommand | BadFormat | OutOfMemory | InternalError) {
            return true;
        }
        match self {
            Self::Put => {
                matches!(reply, Inserted(_) | Buried(Some(_)) | Draining | ExpectedCrlf | JobTooBig)
            }
            Self::Use => matches!(reply, Using(_)),
            Self::Watch => matches!(reply, Watching(_) | NotIgnored),
            Self::Reserve => matches!(reply, Reserved(_) | TooLong(..) | TimedOut | DeadlineSoon),
            Self::Delete => matches!(reply, Deleted | NotFound),
            Self::Release => matches!(reply, Released | Buried(None) | NotFound),
            Self::Bury => matches!(reply, Buried(None) | NotFound),
            Self::Touch => matches!(reply, Touched | NotFound),
            Self::Peek => matches!(reply, Found(_) | TooLong(..) | NotFound),
            Self::Stats => matches!(reply, Stats(_) | NotFound),
        }
    }
}

/// Splits received bytes into replies.
#[derive(Default)]
pub struct ReplyParser {
    /// Received bytes that are not parsed yet. Filled by the owner of the socket.
    pub input: BytesMut,
    /// Number of bytes to skip of a body that is too long, and its reply.
    skipping: Option<(u64, BeanstalkdReply)>,
}

impl ReplyParser {
    /// Returns the next reply; `None` when it is not complete yet.
    pub fn next(&mut self) -> Result<Option<BeanstalkdReply>, ProtocolError> {
        if let Some((left, reply)) = self.skipping.take() {
            return Ok(self.skip(left, reply));
        }
        let start = &self.input[..self.input.len().min(MAX_LINE_BYTES)];
        let Some(end) = start.windows(2).position(|two| two == b"\r\n") else {
            let too_long = start.len() == MAX_LINE_BYTES;
            return if too_long { Err(ProtocolError::LineTooLong) } else { Ok(None) };
        };
        let line = ReplyLine::parse(&start[..end]).ok_or_else(|| not_a_reply(&start[..end]))?;
        match line {
            ReplyLine::Whole(reply) => {
                self.input.advance(end + 2);
                Ok(Some(reply))
            }
            ReplyLine::WithBody(body, size) => self.body(body, end + 2, size),
        }
    }

    /// Returns the reply whose line ends at `start` and whose body has `size` bytes.
    fn body(
        &mut self,
        body: BodyKind,
        start: usize,
        size: u64,
    ) -> Result<Option<BeanstalkdReply>, ProtocolError> {
        let Some(size) = usize::try_from(size).ok().filter(|size| *size <= MAX_BODY_BYTES) else {
            let id = body.job().ok_or(ProtocolError::StatsTooLong(size))?;
            self.input.advance(start);
            return Ok(self.skip(size.saturating_add(2), BeanstalkdReply::TooLong(id, size)));
        };
        let end = start + size;
        if self.input.len() < end + 2 {
            return Ok(None);
        }
        if &self.input[end..end + 2] != b"\r\n" {
            return Err(ProtocolError::WrongBodyLength);
        }
        let reply = body.reply(self.input[start..end].to_vec());
        self.input.advance(end + 2);
        Ok(Some(reply))
    }

    /// Skips the received part of a body without storing it.
    fn skip(&mut self, left: u64, reply: BeanstalkdReply) -> Option<BeanstalkdReply> {
        let received = usize::try_from(left).unwrap_or(usize::MAX).min(self.input.len());
        self.input.advance(received);
        let left = left - received as u64;
        if left == 0 {
            return Some(reply);
        }
        self.skipping = Some((left, reply));
        None
    }
}

/// The line of a reply: the whole reply, or the kind and size of the body that follows.
enum ReplyLine {
    Whole(BeanstalkdReply),
    WithBody(BodyKind, u64),
}

/// The reply that a body belongs to.
enum BodyKind {
    Reserved(JobId),
    Found(JobId),
    Stats,
}

impl BodyKind {
    fn job(&self) -> Option<JobId> {
        match self {
            Self::Reserved(id) | Self::Found(id) => Some(*id),
            Self::Stats => None,
        }
    }

    fn reply(self, body: Vec<u8>) -> BeanstalkdReply {
        match self {
            Self::Reserved(id) => BeanstalkdReply::Reserved(BeanstalkdJob { id, body }),
            Self::Found(id) => BeanstalkdReply::Found(BeanstalkdJob { id, body }),
            Self::Stats => BeanstalkdReply::Stats(body),
        }
    }
}

impl ReplyLine {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let words: Vec<&str> = line.split(' ').collect();
        let id = |word| number(word).map(JobId);
        Some(Self::Whole(match words[..] {
            ["RESERVED", job, size] => {
                return Some(Self::WithBody(BodyKind::Reserved(id(job)?), number(size)?));
            }
            ["FOUND", job, size] => {
                return Some(Self::WithBody(BodyKind::Found(id(job)?), number(size)?));
            }
            ["OK", size] => return Some(Self::WithBody(BodyKind::Stats, number(size)?)),
            ["INSERTED", job] => BeanstalkdReply::Inserted(id(job)?),
            ["BURIED", job] => BeanstalkdReply::Buried(Some(id(job)?)),
            ["BURIED"] => BeanstalkdReply::Buried(None),
            ["USING", tube] => BeanstalkdReply::Using(tube.to_owned()),
            ["WATCHING", count] => BeanstalkdReply::Watching(number(count)?),
            [word] => single_word(word)?,
            _ => return None,
        }))
    }
}

/// Parses replies of one word.
fn single_word(word: &str) -> Option<BeanstalkdReply> {
    Some(match word {
        "DEADLINE_SOON" => BeanstalkdReply::DeadlineSoon,
        "TIMED_OUT" => BeanstalkdReply::TimedOut,
        "NOT_FOUND" => BeanstalkdReply::NotFound,
        "DRAINING" => BeanstalkdReply::Draining,
        "EXPECTED_CRLF" => BeanstalkdReply::ExpectedCrlf,
        "JOB_TOO_BIG" => BeanstalkdReply::JobTooBig,
        "UNKNOWN_COMMAND" => BeanstalkdReply::UnknownCommand,
        "BAD_FORMAT" => BeanstalkdReply::BadFormat,
        "OUT_OF_MEMORY" => BeanstalkdReply::OutOfMemory,
        "INTERNAL_ERROR" => BeanstalkdReply::InternalError,
        "TOUCHED" => BeanstalkdReply::Touched,
        "NOT_IGNORED" => BeanstalkdReply::NotIgnored,
        "RELEASED" => BeanstalkdReply::Released,
        "DELETED" => BeanstalkdReply::Deleted,
        _ => return None,
    })
}

/// Parses a number of decimal digits only.
fn number(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

fn not_a_reply(line: &[u8]) -> ProtocolError {
    ProtocolError::NotAReply(String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned())
}

/// The `key: value` lines of a statistics reply.
pub struct StatsFields(BTreeMap<String, String>);

impl StatsFields {
    /// Parses the lines. Lines of another form are skipped.
    pub fn parse(yaml: &[u8]) -> Self {
        let text = String::from_utf8_lossy(yaml);
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        Self(pairs.map(|(key, value)| (key.to_owned(), unquoted(value).to_owned())).collect())
    }

    /// Returns a text, or the key when it is missing.
    pub fn text(&self, key: &'static str) -> Result<String, &'static str> {
        self.0.get(key).cloned().ok_or(key)
    }

    /// Returns a number, or the key when it is missing.
    pub fn number(&self, key: &'static str) -> Result<u64, &'static str> {
        self.0.get(key).and_then(|value| number(value)).ok_or(key)
    }

    /// Returns a duration in seconds, or the key when it is missing. Negative values are 0.
    pub fn time(&self, key: &'static str) -> Result<Duration, &'static str> {
        let seconds: i64 = self.0.get(key).and_then(|value| value.parse().ok()).ok_or(key)?;
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }
}

fn unquoted(value: &str) -> &str {
    let value = value.trim();
    value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value)
}

#[cfg(test)]
mod tests;
