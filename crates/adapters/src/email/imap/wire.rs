//! Sends commands and reads responses: lines, literals and deadlines.
//!
//! A response is framed before it is parsed, so its end is known whatever it contains. No
//! response takes more memory than the limits here: a literal is kept in memory, stored while
//! it is received, or cut, by its announced length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout_at};

use super::error::ImapError;
use super::response::{ImapResponse, Literal, RawResponse};
use crate::InboundSink;
use crate::net::MailStream;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Longest response without its literals, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// How many literals one response may have.
const MAX_LITERALS: usize = 100;

/// How many bytes of a literal that is not kept are returned, for the header of a mail.
const HEAD_BYTES: usize = 256 << 10;

/// Literals above this length are not read at all. No mail is this large.
const MAX_SKIPPED_BYTES: u64 = 8 << 30;

/// The slowest connection that is put up with, in bytes per second.
pub const MIN_BYTES_PER_SECOND: u64 = 8 << 10;

/// What happens to literals.
#[derive(Clone, Copy)]
pub enum LiteralRule<'a> {
    /// Up to `max` bytes are kept; longer ones are cut.
    Memory { max: usize },
    /// Up to `memory` bytes are kept; up to `max` bytes are stored; longer ones are cut.
    Store { memory: usize, max: u64, sink: &'a dyn InboundSink },
}

impl LiteralRule<'_> {
    /// For commands whose responses are small.
    pub const SMALL: Self = Self::Memory { max: 64 << 10 };
}

/// A connection to an IMAP server.
pub struct ImapWire {
    stream: MailStream,
    /// Received bytes; those before `start` are consumed.
    input: Vec<u8>,
    start: usize,
    deadline: Instant,
    /// How long the server may send nothing while a response is expected.
    silence: Duration,
    last_tag: u32,
}

impl ImapWire {
    pub fn new(stream: MailStream, silence: Duration) -> Self {
        let deadline = Instant::now() + silence;
        Self { stream, input: Vec::new(), start: 0, deadline, silence, last_tag: 0 }
    }

    pub fn is_encrypted(&self) -> bool {
        self.stream.is_encrypted()
    }

    /// Sets the time until which everything that follows must be sent and received.
    pub fn set_limit(&mut self, limit: Duration) {
        self.deadline = Instant::now() + limit;
    }

    /// Returns the connection for the TLS handshake. Fails when the server has sent more than
    /// was read: an attacker may have inserted it before the encryption.
    pub fn into_stream(self) -> Result<MailStream, ImapError> {
        if self.start < self.input.len() {
            let why = "the server sent more than its answer before the TLS handshake";
            return Err(ImapError::Lost(why.to_owned()));
        }
        Ok(self.stream)
    }

    /// Sends a command and returns its tag.
    pub async fn send(&mut self, command: &str) -> Result<String, ImapError> {
        self.last_tag += 1;
        let tag = format!("a{}", self.last_tag);
        self.send_bytes(format!("{tag} {command}\r\n").as_bytes()).await?;
        Ok(tag)
    }

    /// Sends a line that continues a command.
    pub async fn send_line(&mut self, line: &str) -> Result<(), ImapError> {
        self.send_bytes(format!("{line}\r\n").as_bytes()).await
    }

    /// Sends bytes as they are.
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), ImapError> {
        let write = async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        };
        match timeout_at(self.deadline, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(&error)),
            Err(_) => Err(ImapError::too_slow()),
        }
    }

    /// Returns when the server has sent something. Has no deadline, and can be cancelled.
    pub async fn wait_for_data(&mut self) -> Result<(), ImapError> {
        if self.start == self.input.len() {
            self.make_room();
            let count = self.stream.read_buf(&mut self.input).await.map_err(|e| lost(&e))?;
            if count == 0 {
                return Err(closed());
            }
        }
        Ok(())
    }

    /// Reads the next response.
    pub async fn read(&mut self, rule: LiteralRule<'_>) -> Result<ImapResponse, ImapError> {
        let mut raw = RawResponse::default();
        loop {
            let line = raw.text.len();
            self.read_line(&mut raw.text).await?;
            let Some(length) = announced_literal(&raw.text[line..]) else { break };
            if !can_have_literals(&raw.text) {
                break;
            }
            if raw.literals.len() == MAX_LITERALS {
                let why = format!("the server sent more than {MAX_LITERALS} strings in a response");
                return Err(ImapError::Lost(why));
            }
            let literal = self.read_literal(length, rule).await?;
            raw.literals.push(literal);
        }
        Ok(ImapResponse::parse(raw))
    }

    /// Appends the next line to `text`, without its line break.
    async fn read_line(&mut self, text: &mut Vec<u8>) -> Result<(), ImapError> {
        let mut searched = 0;
        loop {
            let unread = &self.input[self.start..];
            if let Some(end) = unread[searched..].iter().position(|byte| *byte == b'\n') {
                let line = &unread[..searched + end];
                text.extend_from_slice(line.strip_suffix(b"\r").unwrap_or(line));
                self.start += searched + end + 1;
                return Ok(());
            }
            searched = unread.len();
            if text.len() + searched > MAX_TEXT_BYTES {
                return Err(ImapError::Lost("the server sent a line of over 1 MiB".to_owned()));
            }
            self.fill().await?;
        }
    }

    async fn read_literal(
        &mut self,
        length: u64,
        rule: LiteralRule<'_>,
    ) -> Result<Literal, ImapError> {
        let (memory, stored) = match rule {
            LiteralRule::Memory { max } => (max, None),
            LiteralRule::Store { memory, max, sink } => (memory, Some((max, sink))),
        };
        if let Ok(length) = usize::try_from(length)
            && length <= memory
        {
            return self.read_bytes(length).await.map(Literal::Bytes);
        }
        if length > MAX_SKIPPED_BYTES {
            let why = format!("the server announces a string of {length} bytes");
            return Err(ImapError::Lost(why));
        }
        let seconds = length / MIN_BYTES_PER_SECOND;
        self.deadline = self.deadline.max(Instant::now() + Duration::from_secs(60 + seconds));
        match stored {
            Some((max, sink)) if length <= max => self.store_literal(length, sink).await,
            _ => self.cut_literal(length).await,
        }
    }

    async fn read_bytes(&mut self, length: usize) -> Result<Vec<u8>, ImapError> {
        let mut bytes = Vec::with_capacity(length);
        let buffered = length.min(self.input.len() - self.start);
        bytes.extend_from_slice(&self.input[self.start..self.start + buffered]);
        self.start += buffered;
        while bytes.len() < length {
            let left = (length - bytes.len()) as u64;
            let until = self.silence_deadline();
            let mut literal = (&mut self.stream).take(left);
            read_result(timeout_at(until, literal.read_buf(&mut bytes)).await)?;
        }
        Ok(bytes)
    }

    async fn store_literal(
        &mut self,
        length: u64,
        sink: &dyn InboundSink,
    ) -> Result<Literal, ImapError> {
        let mut progress = LiteralProgress { left: length, head: Vec::new(), problem: None };
        let reader = LiteralReader {
            deadline: Box::pin(sleep(self.silence)),
            wire: self,
            progress: &mut progress,
        };
        let stored = sink.store_bytes(Box::pin(reader)).await;
        if let Some(problem) = progress.problem {
            return Err(problem);
        }
        let bytes = stored.map_err(ImapError::Sink)?;
        if progress.left > 0 || bytes.size != length {
            return Err(ImapError::Lost("a mail was not stored completely".to_owned()));
        }
        Ok(Literal::Stored { bytes, head: progress.head })
    }

    /// Keeps the start of a literal and drops the rest.
    async fn cut_literal(&mut self, length: u64) -> Result<Literal, ImapError> {
        let kept = usize::try_from(length).unwrap_or(HEAD_BYTES).min(HEAD_BYTES);
        let head = self.read_bytes(kept).await?;
        let mut left = length - kept as u64;
        while left > 0 {
            if self.start == self.input.len() {
                self.fill().await?;
            }
            let buffered = (self.input.len() - self.start) as u64;
            let dropped = usize::try_from(left.min(buffered)).unwrap_or(0);
            self.start += dropped;
            left -= dropped as u64;
        }
        Ok(Literal::Cut { size: length, head })
    }

    /// Receives more bytes into the buffer.
    async fn fill(&mut self) -> Result<(), ImapError> {
        self.make_room();
        let until = self.silence_deadline();
        read_result(timeout_at(until, self.stream.read_buf(&mut self.input)).await)
    }

    fn make_room(&mut self) {
        self.input.drain(..self.start);
        self.start = 0;
        self.input.reserve(READ_BYTES);
    }

    fn silence_deadline(&self) -> Instant {
        self.deadline.min(Instant::now() + self.silence)
    }
}

/// Tells whether a response can have literals. The text of a status response cannot, but it
/// can end like the announcement of one.
fn can_have_literals(text: &[u8]) -> bool {
    let mut words = text.split(|byte| *byte == b' ');
    let (tag, word) = (words.next(), words.next().unwrap_or_default());
    tag == Some(b"*") && !matches!(word, b"OK" | b"NO" | b"BAD" | b"BYE" | b"PREAUTH")
}

/// Returns the length that a line announces: `{12}`, `{12+}` or `~{12}` at its end.
fn announced_literal(text: &[u8]) -> Option<u64> {
    let inside = text.strip_suffix(b"}")?;
    let inside = inside.strip_suffix(b"+").unwrap_or(inside);
    let digits = inside.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, number) = inside.split_at(inside.len() - digits);
    if digits == 0 || before.last() != Some(&b'{') {
        return None;
    }
    // A number that is too large is rejected as a length.
    Some(String::from_utf8_lossy(number).parse().unwrap_or(u64::MAX))
}

fn read_result(
    result: Result<io::Result<usize>, tokio::time::error::Elapsed>,
) -> Result<(), ImapError> {
    match result {
        Ok(Ok(0)) => Err(closed()),
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(lost(&error)),
        Err(_) => Err(ImapError::too_slow()),
    }
}

fn lost(error: &io::Error) -> ImapError {
    match error.kind() {
        // Many servers close a TLS connection without saying so.
        io::ErrorKind::UnexpectedEof => closed(),
        _ => ImapError::Lost(format!("connection lost: {error}")),
    }
}

fn closed() -> ImapError {
    ImapError::Lost("the server closed the connection".to_owned())
}

/// How much of a literal was read.
struct LiteralProgress {
    left: u64,
    head: Vec<u8>,
    /// Why the connection failed, told apart from a failure of the store.
    problem: Option<ImapError>,
}

/// Reads a literal as a stream of bytes.
struct LiteralReader<'a> {
    wire: &'a mut ImapWire,
    progress: &'a mut LiteralProgress,
    deadline: Pin<Box<Sleep>>,
}

impl AsyncRead for LiteralReader<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let (wire, progress) = (&mut *this.wire, &mut *this.progress);
        if progress.left == 0 {
            return Poll::Ready(Ok(()));
        }
        if wire.start == wire.input.len() {
            wire.make_room();
            let mut space = [0; READ_BYTES / 4];
            let mut read = ReadBuf::new(&mut space);
            match Pin::new(&mut wire.stream).poll_read(cx, &mut read) {
                Poll::Pending => match this.deadline.as_mut().poll(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(()) => progress.problem = Some(ImapError::too_slow()),
                },
                Poll::Ready(Ok(())) if read.filled().is_empty() => {
                    progress.problem = Some(closed());
                }
                Poll::Ready(Ok(())) => wire.input.extend_from_slice(read.filled()),
                Poll::Ready(Err(error)) => progress.problem = Some(lost(&error)),
            }
            if let Some(problem) = &progress.problem {
                return Poll::Ready(Err(io::Error::other(problem.to_string())));
            }
            let until = wire.silence_deadline();
            this.deadline.as_mut().reset(until);
        }
        let unread = &wire.input[wire.start..];
        let left = usize::try_from(progress.left).unwrap_or(usize::MAX);
        let bytes = &unread[..unread.len().min(left).min(buf.remaining())];
        buf.put_slice(bytes);
        let room = HEAD_BYTES - progress.head.len();
        progress.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
        progress.left -= bytes.len() as u64;
        wire.start += bytes.len();
        Poll::Ready(Ok(()))
    }
}
