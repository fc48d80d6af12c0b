//! Downloads: a response whose body is read as a stream, and redirects to allowed hosts.

use std::fmt;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_util::stream::Stream;
use http::header::{CONTENT_TYPE, LOCATION};
use http::{HeaderMap, StatusCode};
use monoco_core::retry::Failure;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::request::ByteReader;
use super::{Egress, EgressRequest, EgressTarget, HostRule, status_failure};
use crate::FileDownload;

/// How many redirects of one download are followed.
const MAX_REDIRECTS: usize = 4;

/// How long a download may send nothing.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// How long a download may take, however regularly it sends.
const MAX_DOWNLOAD: Duration = Duration::from_secs(3600);

/// The response to a download.
pub struct EgressDownload {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The announced size, at most the limit of the download.
    pub size: Option<u64>,
    /// The body. Reading fails when more bytes than allowed arrive, or none for 30 s.
    pub bytes: ByteReader,
}

impl EgressDownload {
    /// Returns the content type without parameters.
    pub fn mime_type(&self) -> Option<&str> {
        let value = self.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        Some(value.split(';').next().unwrap_or(value).trim()).filter(|value| !value.is_empty())
    }

    /// Returns a name for a file without one: `stem` with the ending of its content type.
    pub fn name_for(&self, stem: &str) -> String {
        match self.mime_type().and_then(ending) {
            Some(ending) => format!("{stem}.{ending}"),
            None => stem.to_owned(),
        }
    }

    /// Returns the download as the content of a file.
    ///
    /// # Errors
    ///
    /// A response that is not 2xx: temporary for 408, 425, 429 and 5xx, otherwise permanent.
    pub fn into_file(self, name: Option<String>) -> Result<FileDownload, Failure> {
        if !self.status.is_success() {
            return Err(status_failure(self.status, &self.headers, "download"));
        }
        let mime_type = self.mime_type().map(str::to_owned);
        Ok(FileDownload { name, mime_type, size: self.size, bytes: self.bytes })
    }
}

impl fmt::Debug for EgressDownload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("EgressDownload");
        shown.field("status", &self.status).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Egress {
    /// Makes a request and returns the response while its body is still read, at most
    /// `max_bytes` of it. Follows redirects to hosts that `redirects` allows; headers such as the
    /// token are sent to the first host only. Other responses than 2xx are returned, too.
    ///
    /// # Errors
    ///
    /// As [`Egress::send`]; also permanent when the announced size exceeds `max_bytes`, or when
    /// a redirect leads to another host.
    pub async fn download(
        &self,
        request: EgressRequest<'_>,
        max_bytes: u64,
        redirects: &HostRule,
    ) -> Result<EgressDownload, Failure> {
        let wait = request.timeout.unwrap_or(self.limits.total);
        let request = request.timeout(MAX_DOWNLOAD);
        let first = request.target.clone();
        let mut response = self.respond_in(wait, request, &first).await?;
        let mut target = first.clone();
        for _ in 0..MAX_REDIRECTS {
            let Some(next) = redirect(&response, &target, redirects)? else { break };
            let request = EgressRequest::get(&next).timeout(MAX_DOWNLOAD);
            response = self.respond_in(wait, request, &next).await?;
            target = next;
        }
        let size = response.content_length();
        if let Some(size) = size.filter(|size| *size > max_bytes) {
            let detail = format!("the file has {size} bytes; at most {max_bytes} are allowed");
            return Err(Failure::Permanent { detail, error_code: None });
        }
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = Box::pin(DownloadReader::new(response, max_bytes));
        Ok(EgressDownload { status, headers, size, bytes })
    }

    /// Waits for the beginning of a response. Its body has the timeout of the request.
    async fn respond_in(
        &self,
        wait: Duration,
        request: EgressRequest<'_>,
        target: &EgressTarget,
    ) -> Result<reqwest::Response, Failure> {
        timeout(wait, self.respond(request)).await.unwrap_or_else(|_| {
            let detail = format!("{}: no response in time", target.shown());
            Err(Failure::Temporary { detail, retry_after_ms: None, error_code: None })
        })
    }
}

/// Returns the target of a redirect; `None` when the response is none.
fn redirect(
    response: &reqwest::Response,
    from: &EgressTarget,
    rule: &HostRule,
) -> Result<Option<EgressTarget>, Failure> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let Some(url) = location.and_then(|location| from.url.join(location).ok()) else {
        let detail = format!("{} redirects without a valid location", from.shown());
        return Err(Failure::Permanent { detail, error_code: None });
    };
    rule.http(url.as_str()).map(Some)
}

type ByteStream = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>;

/// The body of a response, with a limit of its size and a deadline for each read.
struct DownloadReader {
    stream: ByteStream,
    chunk: Bytes,
    left: u64,
    max_bytes: u64,
    silence: Pin<Box<Sleep>>,
}

impl DownloadReader {
    fn new(response: reqwest::Response, max_bytes: u64) -> Self {
        let stream = Box::pin(response.bytes_stream());
        let silence = Box::pin(sleep(MAX_SILENCE));
        Self { stream, chunk: Bytes::new(), left: max_bytes, max_bytes, silence }
    }

    /// Waits for bytes; `false` at the end of the body.
    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        while self.chunk.is_empty() {
            let next = match self.stream.as_mut().poll_next(cx) {
                Poll::Ready(next) => next,
                Poll::Pending => {
                    ready!(self.silence.as_mut().poll(cx));
                    let why = format!("no bytes for {} s", MAX_SILENCE.as_secs());
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
                }
            };
            self.silence.as_mut().reset(Instant::now() + MAX_SILENCE);
            match next {
                None => return Poll::Ready(Ok(false)),
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => {
                    return Poll::Ready(Err(io::Error::other(super::detail(&error))));
                }
            }
            let arrived = self.chunk.len() as u64;
            if arrived > self.left {
                let why = format!("more than {} bytes", self.max_bytes);
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::FileTooLarge, why)));
            }
            self.left -= arrived;
        }
        Poll::Ready(Ok(true))
    }
}

impl AsyncRead for DownloadReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if ready!(self.poll_chunk(cx))? {
            let taken = self.chunk.len().min(buf.remaining());
            buf.put_slice(&self.chunk[..taken]);
            self.chunk.advance(taken);
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the ending of file names of a media type.
fn ending(mime_type: &str) -> Option<&'static str> {
    let endings = [
        ("image/png", "png"),
        ("image/jpeg", "jpg"),
        ("image/gif", "gif"),
        ("image/webp", "webp"),
        ("audio/amr", "amr"),
        ("audio/opus", "opus"),
        ("audio/mpeg", "mp3"),
        ("audio/ogg", "ogg"),
        ("audio/wav", "wav"),
        ("video/mp4", "mp4"),
        ("application/pdf", "pdf"),
        ("application/zip", "zip"),
        ("text/plain", "txt"),
    ];
    endings.iter().find(|(known, _)| *known == mime_type).map(|(_, ending)| *ending)
}
