//! A request body as a reader, for bytes that are stored while they arrive.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use hyper::body::Body as _;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::error::ApiError;
use super::input::{BODY_GRACE, BodyCharge, BodySpace, body_timeout};

/// A body with the limits of [`super::input::body`]. It occupies its space until it is dropped,
/// because the bytes that were read are stored somewhere else.
pub struct RequestBodyReader {
    frames: Body,
    charge: BodyCharge,
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
    pub fn new(frames: Body, limit: usize, space: &'static BodySpace) -> Result<Self, ApiError> {
        if usize::try_from(frames.size_hint().lower()).is_ok_and(|announced| announced > limit) {
            return Err(ApiError::too_large(limit));
        }
        let started = Instant::now();
        Ok(Self {
            frames,
            charge: BodyCharge::new(space),
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
                if self.received > self.limit {
                    return Poll::Ready(Err(ApiError::too_large(self.limit)));
                }
                self.charge.grow_to(self.received)?;
                if data.is_empty() {
                    continue;
                }
                return Poll::Ready(Ok(data));
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::api::input::UNCHARGED_BODY;

    static SPACE: BodySpace = BodySpace::new(1 << 20);

    fn upload(sizes: &[usize]) -> RequestBodyReader {
        let chunks: Vec<Result<_, Infallible>> =
            sizes.iter().map(|size| Ok(Bytes::from(vec![b'x'; *size]))).collect();
        let body = Body::from_stream(futures_util::stream::iter(chunks));
        RequestBodyReader::new(body, 2 << 20, &SPACE).ok().unwrap()
    }

    async fn read(upload: &mut RequestBodyReader) -> Result<usize, ApiError> {
        let mut part = vec![0; 64 << 10];
        let mut all = 0;
        loop {
            match upload.read(&mut part).await {
                Ok(0) => return Ok(all),
                Ok(count) => all += count,
                Err(_) => return Err(upload.take_failure().unwrap()),
            }
        }
    }

    #[tokio::test]
    async fn unfinished_uploads_share_their_space_until_they_are_dropped() {
        let large = [UNCHARGED_BODY, 1 << 19, 1 << 18];
        let size = large.iter().sum::<usize>();
        // Bytes that were read stay charged: they are on disk.
        let mut unfinished = upload(&large);
        unfinished.read_exact(&mut vec![0; size]).await.unwrap();
        let busy = read(&mut upload(&large)).await.unwrap_err();
        assert_eq!((busy.status.as_u16(), busy.code), (503, "busy"));
        assert!(busy.message.contains("all 1048576 bytes"), "{}", busy.message);
        // Small uploads are accepted, and rejected ones keep nothing.
        assert_eq!(read(&mut upload(&[UNCHARGED_BODY])).await.unwrap(), UNCHARGED_BODY);
        assert_eq!(read(&mut upload(&[UNCHARGED_BODY, 1 << 18])).await.unwrap(), size - (1 << 19));
        drop(unfinished);
        assert_eq!(read(&mut upload(&large)).await.unwrap(), size);
    }
}
