//! A stream that can swallow outgoing pong frames.
//!
//! The WebSocket library answers every ping by itself. To act like a peer that has stopped answering
//! but still receives, its pongs are cut out of the bytes that it writes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Opcode of a pong frame.
const PONG: u8 = 0xa;

/// Position in the frames that pass.
#[derive(Debug)]
enum FramePosition {
    /// Bytes of a header that is not complete.
    Header(Vec<u8>),
    Payload {
        rest: u64,
        is_dropped: bool,
    },
}

/// Removes pong frames while the switch is on. Frames of a server are not masked.
#[derive(Debug)]
struct FrameCutter {
    position: FramePosition,
}

impl FrameCutter {
    /// Copies the frames in `bytes` to `out`, without pongs if `drops_pongs`.
    fn cut(&mut self, mut bytes: &[u8], drops_pongs: bool, out: &mut Vec<u8>) {
        while let Some((&first, others)) = bytes.split_first() {
            match &mut self.position {
                FramePosition::Header(header) => {
                    header.push(first);
                    bytes = others;
                    let Some(length) = payload_length(header) else { continue };
                    let is_dropped = drops_pongs && header[0] & 0x0f == PONG;
                    if !is_dropped {
                        out.extend_from_slice(header);
                    }
                    self.position = FramePosition::Payload { rest: length, is_dropped };
                    self.end_frame();
                }
                FramePosition::Payload { rest, is_dropped } => {
                    let count = usize::try_from(*rest).unwrap_or(usize::MAX).min(bytes.len());
                    if !*is_dropped {
                        out.extend_from_slice(&bytes[..count]);
                    }
                    *rest -= count as u64;
                    bytes = &bytes[count..];
                    self.end_frame();
                }
            }
        }
    }

    fn end_frame(&mut self) {
        if matches!(self.position, FramePosition::Payload { rest: 0, .. }) {
            self.position = FramePosition::Header(Vec::new());
        }
    }
}

/// The length of the payload, once the header is complete.
fn payload_length(header: &[u8]) -> Option<u64> {
    let short = header.get(1)? & 0x7f;
    let size = match short {
        126 => 2,
        127 => 8,
        _ => return Some(u64::from(short)),
    };
    let bytes = header.get(2..2 + size)?;
    Some(bytes.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)))
}

/// A stream whose outgoing pongs can be switched off.
#[derive(Debug)]
pub struct PongFilter<S> {
    inner: S,
    drops_pongs: Arc<AtomicBool>,
    cutter: FrameCutter,
    /// Bytes that passed the filter and are not written.
    pending: Vec<u8>,
    written: usize,
}

impl<S> PongFilter<S> {
    pub fn new(inner: S, drops_pongs: Arc<AtomicBool>) -> Self {
        let cutter = FrameCutter { position: FramePosition::Header(Vec::new()) };
        Self { inner, drops_pongs, cutter, pending: Vec::new(), written: 0 }
    }
}

impl<S: AsyncWrite + Unpin> PongFilter<S> {
    fn drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.pending.len() {
            let inner = Pin::new(&mut self.inner);
            let count = ready!(inner.poll_write(cx, &self.pending[self.written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
        }
        self.pending.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PongFilter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PongFilter<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.drain(cx))?;
        let drops_pongs = self.drops_pongs.load(Ordering::Relaxed);
        let this = &mut *self;
        this.cutter.cut(buf, drops_pongs, &mut this.pending);
        // What cannot be written now is written by the next call or flush.
        match this.drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(buf.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.drain(cx))?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.drain(cx))?;
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text frame, a pong, a longer text frame and an empty pong.
    fn frames() -> (Vec<u8>, Vec<u8>) {
        let text = [&[0x81, 2][..], b"hi"].concat();
        let pong = [&[0x8a, 3][..], b"abc"].concat();
        let long = [&[0x81, 126, 1, 0][..], &[b'x'; 256]].concat();
        let all = [&text[..], &pong, &long, &[0x8a, 0]].concat();
        (all, [text, long].concat())
    }

    #[test]
    fn pongs_are_cut_out_however_the_bytes_are_divided() {
        let (all, without_pongs) = frames();
        for size in 1..all.len() {
            for (drops_pongs, expected) in [(true, &without_pongs), (false, &all)] {
                let mut cutter = FrameCutter { position: FramePosition::Header(Vec::new()) };
                let mut out = Vec::new();
                for part in all.chunks(size) {
                    cutter.cut(part, drops_pongs, &mut out);
                }
                assert_eq!(&out, expected, "in parts of {size} bytes");
            }
        }
    }
}
