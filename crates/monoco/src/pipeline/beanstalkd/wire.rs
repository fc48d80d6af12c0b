//! beanstalkd's words: commands as bytes, bytes as replies. Nothing here does I/O.
//!
//! Lines and bodies have limits, and whatever is not exactly a reply is an error:
//! behind half a reply nobody knows any more whose answer comes next.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Buf, BytesMut};

use super::{BeanstalkdJob, JobId, PutOptions, TubeName};

/// The largest body that is taken or given.
pub const MOST_BODY: usize = 64 * 1024 * 1024;

/// The longest line that is read. The longest honest one has about 240 bytes.
const MOST_LINE: usize = 1024;

/// What was asked, as far as it decides which answers make sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// `put`.
    Put,
    /// `use`.
    Use,
    /// `watch` and `ignore`.
    Watch,
    /// `reserve-with-timeout`.
    Reserve,
    /// `reserve-job`.
    ReserveJob,
    /// `delete`.
    Delete,
    /// `release`.
    Release,
    /// `bury`.
    Bury,
    /// `touch`.
    Touch,
    /// `kick`.
    Kick,
    /// `kick-job`.
    KickJob,
    /// `peek` and its kin.
    Peek,
    /// `stats` and its kin.
    Stats,
}

/// One command, ready to be written.
#[derive(Debug)]
pub struct BeanstalkdCommand {
    /// What it is.
    pub kind: CommandKind,
    /// The tube that must be in use when it is written.
    pub tube: Option<TubeName>,
    /// Its bytes, line ends included.
    pub bytes: Vec<u8>,
}

/// What a beanstalkd answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BeanstalkdReply {
    /// The job is there.
    Inserted(JobId),
    /// Buried; with the new job's number when it answers a `put`.
    Buried(Option<JobId>),
    /// A job that this connection holds is about to time out.
    DeadlineSoon,
    /// No job came in time.
    TimedOut,
    /// A job, now held by this connection.
    Reserved(BeanstalkdJob),
    /// A job that was looked at.
    Found(BeanstalkdJob),
    /// A job larger than [`MOST_BODY`]; its body was passed over.
    TooLong(JobId, u64),
    /// Statistics.
    Stats(Vec<u8>),
    /// No such job or tube.
    NotFound,
    /// Takes no jobs any more.
    Draining,
    /// A body did not end where its line said.
    ExpectedCrlf,
    /// The body is larger than the server takes.
    JobTooBig,
    /// Not a command.
    UnknownCommand,
    /// Not the form of this command.
    BadFormat,
    /// The server has no room.
    OutOfMemory,
    /// The server is at fault.
    InternalError,
    /// Kicked; with a count when it answers `kick`.
    Kicked(Option<u64>),
    /// The job's time begins anew.
    Touched,
    /// The tube in use.
    Using(String),
    /// How many tubes are watched.
    Watching(u64),
    /// The last tube can't be ignored.
    NotIgnored,
    /// The job is back in its tube.
    Released,
    /// The job is gone.
    Deleted,
}

/// Why what came is not a reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// No line end within the limit.
    #[error("a line of more than {MOST_LINE} bytes")]
    EndlessLine,
    /// A line that is no reply.
    #[error("{0:?} is no reply")]
    NoReply(String),
    /// A body that does not end where its line said.
    #[error("a body that does not end where it should")]
    UnendedBody,
    /// Statistics that are longer than any can be.
    #[error("statistics of {0} bytes")]
    EndlessStats(u64),
}

impl BeanstalkdCommand {
    /// A command of one line.
    pub fn line(kind: CommandKind, line: String) -> Self {
        Self { kind, tube: None, bytes: (line + "\r\n").into_bytes() }
    }

    /// A command of one line about the tube in use.
    pub fn in_tube(kind: CommandKind, tube: &TubeName, line: String) -> Self {
        Self { tube: Some(tube.clone()), ..Self::line(kind, line) }
    }

    /// `put`.
    pub fn put(tube: &TubeName, job: &PutOptions) -> Self {
        let (delay, ttr) = (seconds(job.delay), seconds(job.ttr).max(1));
        let line = format!("put {} {delay} {ttr} {}", job.priority, job.body.len());
        let mut put = Self::in_tube(CommandKind::Put, tube, line);
        put.bytes.extend_from_slice(&job.body);
        put.bytes.extend_from_slice(b"\r\n");
        put
    }

    /// `use`.
    pub fn use_tube(tube: &TubeName) -> Self {
        Self::line(CommandKind::Use, format!("use {tube}"))
    }

    /// What makes a new connection watch these tubes and no other. With none it goes on
    /// watching the default tube, for it must watch one.
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

/// Whole seconds, rounded up; what is longer than the protocol can say is cut off.
pub fn seconds(time: Duration) -> u32 {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

impl CommandKind {
    /// Whether this can be the answer. If not, answers and questions are out of step.
    pub fn fits(self, reply: &BeanstalkdReply) -> bool {
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
            Self::ReserveJob => matches!(reply, Reserved(_) | TooLong(..) | NotFound),
            Self::Delete => matches!(reply, Deleted | NotFound),
            Self::Release => matches!(reply, Released | Buried(None) | NotFound),
            Self::Bury => matches!(reply, Buried(None) | NotFound),
            Self::Touch => matches!(reply, Touched | NotFound),
            Self::Kick => matches!(reply, Kicked(Some(_))),
            Self::KickJob => matches!(reply, Kicked(None) | NotFound),
            Self::Peek => matches!(reply, Found(_) | TooLong(..) | NotFound),
            Self::Stats => matches!(reply, Stats(_) | NotFound),
        }
    }
}

/// Cuts what comes into replies.
#[derive(Default)]
pub struct ReplyParser {
    /// What came and is not a reply yet. Filled by the owner of the socket.
    pub input: BytesMut,
    /// How much of a body that is too long has yet to pass, and what to say then.
    passing: Option<(u64, BeanstalkdReply)>,
}

impl ReplyParser {
    /// The next reply, if all of it is there.
    pub fn next(&mut self) -> Result<Option<BeanstalkdReply>, ProtocolError> {
        if let Some((left, reply)) = self.passing.take() {
            return Ok(self.pass(left, reply));
        }
        let look = &self.input[..self.input.len().min(MOST_LINE)];
        let Some(end) = look.windows(2).position(|two| two == b"\r\n") else {
            let endless = look.len() == MOST_LINE;
            return if endless { Err(ProtocolError::EndlessLine) } else { Ok(None) };
        };
        let words = Words::of(&look[..end]).ok_or_else(|| no_reply(&look[..end]))?;
        match words {
            Words::Whole(reply) => {
                self.input.advance(end + 2);
                Ok(Some(reply))
            }
            Words::Body(body, size) => self.body(body, end + 2, size),
        }
    }

    /// The reply whose line ended at `start` and whose body has `size` bytes.
    fn body(
        &mut self,
        body: Body,
        start: usize,
        size: u64,
    ) -> Result<Option<BeanstalkdReply>, ProtocolError> {
        let Some(size) = usize::try_from(size).ok().filter(|size| *size <= MOST_BODY) else {
            let id = body.job().ok_or(ProtocolError::EndlessStats(size))?;
            self.input.advance(start);
            return Ok(self.pass(size.saturating_add(2), BeanstalkdReply::TooLong(id, size)));
        };
        let end = start + size;
        if self.input.len() < end + 2 {
            return Ok(None);
        }
        if &self.input[end..end + 2] != b"\r\n" {
            return Err(ProtocolError::UnendedBody);
        }
        let reply = body.reply(self.input[start..end].to_vec());
        self.input.advance(end + 2);
        Ok(Some(reply))
    }

    /// Drops what is there of a body, so that its length costs time but no memory.
    fn pass(&mut self, left: u64, reply: BeanstalkdReply) -> Option<BeanstalkdReply> {
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(self.input.len());
        self.input.advance(here);
        let left = left - here as u64;
        if left == 0 {
            return Some(reply);
        }
        self.passing = Some((left, reply));
        None
    }
}

/// What the line of a reply says.
enum Words {
    Whole(BeanstalkdReply),
    Body(Body, u64),
}

/// Whose body follows.
enum Body {
    Reserved(JobId),
    Found(JobId),
    Stats,
}

impl Body {
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

impl Words {
    fn of(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let words: Vec<&str> = line.split(' ').collect();
        let id = |word| number(word).map(JobId);
        Some(Self::Whole(match words[..] {
            ["RESERVED", job, size] => {
                return Some(Self::Body(Body::Reserved(id(job)?), number(size)?));
            }
            ["FOUND", job, size] => {
                return Some(Self::Body(Body::Found(id(job)?), number(size)?));
            }
            ["OK", size] => return Some(Self::Body(Body::Stats, number(size)?)),
            ["INSERTED", job] => BeanstalkdReply::Inserted(id(job)?),
            ["BURIED", job] => BeanstalkdReply::Buried(Some(id(job)?)),
            ["BURIED"] => BeanstalkdReply::Buried(None),
            ["KICKED", count] => BeanstalkdReply::Kicked(Some(number(count)?)),
            ["KICKED"] => BeanstalkdReply::Kicked(None),
            ["USING", tube] => BeanstalkdReply::Using(tube.to_owned()),
            ["WATCHING", count] => BeanstalkdReply::Watching(number(count)?),
            [word] => single(word)?,
            _ => return None,
        }))
    }
}

/// The replies of one word.
fn single(word: &str) -> Option<BeanstalkdReply> {
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

/// A number in decimal digits and nothing else.
fn number(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

fn no_reply(line: &[u8]) -> ProtocolError {
    ProtocolError::NoReply(String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned())
}

/// The `key: value` lines of statistics.
pub struct StatsFields(BTreeMap<String, String>);

impl StatsFields {
    /// Reads them. Lines of another form are passed over.
    pub fn read(yaml: &[u8]) -> Self {
        let text = String::from_utf8_lossy(yaml);
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        Self(pairs.map(|(key, value)| (key.to_owned(), unquoted(value).to_owned())).collect())
    }

    /// A text, or what is missing.
    pub fn text(&self, key: &'static str) -> Result<String, &'static str> {
        self.0.get(key).cloned().ok_or(key)
    }

    /// A number, or what is missing.
    pub fn number(&self, key: &'static str) -> Result<u64, &'static str> {
        self.0.get(key).and_then(|value| number(value)).ok_or(key)
    }

    /// A time in seconds, or what is missing. One that is over counts as none.
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
