//! A request body as a reader, for bytes that are stored while they arrive.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use hyper::body::Body as _;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::error::ApiError;
use super::input::{BODY_GRACE, body_timeout};

/// A body with the time limits of [`super::input::body`].
pub struct RequestBodyReader {
    frames: Body,
    /// Received and not read yet.
    rest: Bytes,
    received: usize,
    limit: usize,
    started: Instant,
    timer: Pin<Box<Sleep>>,
    failure: Option<ApiError>,
}

impl RequestBodyReader {
    /// # Errors
    ///
    /// [`ApiError`] when the announced size exceeds `limit`.
    pub fn new(frames: Body, limit: usize) -> Result<Self, ApiError> {
        if usize::try_from(frames.size_hint().lower()).is_ok_and(|announced| announced > limit) {
            return Err(ApiError::too_large(limit));
        }
        let started = Instant::now();
        Ok(Self {
            frames,
            rest: Bytes::new(),
            received: 0,
            limit,
            started,
            timer: Box::pin(tokio::time::sleep_until(started + BODY_GRACE)),
            failure: None,
        })
    }

    /// Returns why reading failed, once.
    pub fn take_failure(&mut self) -> Option<ApiError> {
        self.failure.take()
    }

    /// Waits for the next bytes. Empty at the end of the body.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, ApiError>> {
        loop {
            if let Poll::Ready(frame) = Pin::new(&mut self.frames).poll_frame(cx) {
                let data = match frame {
                    None => return Poll::Ready(Ok(Bytes::new())),
                    Some(Err(_)) => return Poll::Ready(Err(ApiError::body_broke_off())),
                    // Trailers are ignored.
                    Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                };
                self.received += data.len();
                match data {
                    _ if self.received > self.limit => {
                        return Poll::Ready(Err(ApiError::too_large(self.limit)));
                    }
                    data if data.is_empty() => continue,
                    data => return Poll::Ready(Ok(data)),
                }
            }
            ready!(self.timer.as_mut().poll(cx));
            let deadline = self.started + body_timeout(self.received);
            if Instant::now() >= deadline {
                return Poll::Ready(Err(ApiError::body_too_slow()));
            }
            self.timer.as_mut().reset(deadline);
        }
    }
}

impl AsyncRead for RequestBodyReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.rest.is_empty() {
            match ready!(self.poll_next(cx)) {
                Ok(data) => self.rest = data,
                Err(failure) => {
                    self.failure = Some(failure);
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
            }
        }
        let count = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(count));
        Poll::Ready(Ok(()))
    }
}
