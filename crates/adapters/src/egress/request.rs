//! One outgoing request: its parts, and its body as a stream.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use monoco_core::retry::Failure;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::EgressTarget;

/// How many bytes of a streamed body are read at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The slowest upload that is waited for, in bytes per second.
const MIN_UPLOAD_RATE: u64 = 32 << 10;

/// A byte stream that can be sent to another task.
pub type ByteReader = Pin<Box<dyn AsyncRead + Send>>;

/// One request. Built by [`get`](Self::get), [`post`](Self::post) or [`put`](Self::put).
pub struct EgressRequest<'a> {
    pub(super) method: Method,
    pub(super) target: &'a EgressTarget,
    pub(super) headers: HeaderMap,
    pub(super) body: EgressBody,
    pub(super) timeout: Option<Duration>,
    pub(super) max_reply: Option<usize>,
    pub(super) repeatable: bool,
    /// The first part that cannot be sent; the request fails with it.
    pub(super) problem: Option<Failure>,
}

/// The body of a request.
pub enum EgressBody {
    Empty,
    Bytes(Vec<u8>),
    /// Exactly `size` bytes, which are never all in memory.
    Stream {
        size: u64,
        bytes: ByteReader,
    },
    /// A form with files (RFC 7578), which are never all in memory.
    Multipart(Vec<MultipartField>),
}

/// One field of a form.
pub struct MultipartField {
    name: String,
    file: Option<(String, String)>,
    size: u64,
    bytes: ByteReader,
}

impl MultipartField {
    pub fn text(name: &str, value: impl Into<String>) -> Self {
        let value = value.into().into_bytes();
        let size = value.len() as u64;
        let bytes = Box::pin(io::Cursor::new(value));
        Self { name: name.to_owned(), file: None, size, bytes }
    }

    /// A file with exactly `size` bytes.
    pub fn file(
        name: &str,
        file_name: &str,
        mime_type: &str,
        size: u64,
        bytes: ByteReader,
    ) -> Self {
        let file = Some((file_name.to_owned(), mime_type.to_owned()));
        Self { name: name.to_owned(), file, size, bytes }
    }

    /// Returns the delimiter and headers that precede the content.
    fn head(&self, boundary: &str) -> String {
        let mut head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"",
            quoted(&self.name)
        );
        if let Some((file_name, mime_type)) = &self.file {
            let mime_type = mime_type.replace(['\r', '\n'], "");
            let _ =
                write!(head, "; filename=\"{}\"\r\nContent-Type: {mime_type}", quoted(file_name));
        }
        head.push_str("\r\n\r\n");
        head
    }
}

/// Escapes a name in the way of browsers (WHATWG).
fn quoted(name: &str) -> String {
    name.replace('"', "%22").replace('\r', "%0D").replace('\n', "%0A")
}

impl<'a> EgressRequest<'a> {
    pub fn new(method: Method, target: &'a EgressTarget) -> Self {
        Self {
            method,
            target,
            headers: HeaderMap::new(),
            body: EgressBody::Empty,
            timeout: None,
            max_reply: None,
            repeatable: false,
            problem: None,
        }
    }

    pub fn get(target: &'a EgressTarget) -> Self {
        Self::new(Method::GET, target).repeatable()
    }

    pub fn post(target: &'a EgressTarget) -> Self {
        Self::new(Method::POST, target)
    }

    pub fn put(target: &'a EgressTarget) -> Self {
        Self::new(Method::PUT, target)
    }

    pub fn headers(mut self, headers: HeaderMap) -> Self {
        self.headers.extend(headers);
        self
    }

    /// Adds a header. Its value counts as secret.
    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        match HeaderValue::from_str(value) {
            Ok(mut value) => {
                value.set_sensitive(true);
                self.headers.insert(name, value);
            }
            Err(_) => self.fail(format!("the value of the header {name} has invalid characters")),
        }
        self
    }

    /// Adds `Authorization: Bearer` with a token.
    pub fn bearer(self, token: &str) -> Self {
        self.header(AUTHORIZATION, &format!("Bearer {token}"))
    }

    pub fn body(mut self, body: EgressBody) -> Self {
        self.body = body;
        self
    }

    /// Sets a JSON body with its content type.
    pub fn json(mut self, body: &impl Serialize) -> Self {
        const JSON: HeaderValue = HeaderValue::from_static("application/json; charset=utf-8");
        match serde_json::to_vec(body) {
            Ok(bytes) => self.body = EgressBody::Bytes(bytes),
            Err(error) => self.fail(format!("cannot write the request as JSON: {error}")),
        }
        self.headers.entry(CONTENT_TYPE).or_insert(JSON);
        self
    }

    /// Sets a form as body, with its content type.
    pub fn form(mut self, fields: &[(&str, &str)]) -> Self {
        const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
        let query = self.target.without_query().with_query(fields);
        self.body = EgressBody::Bytes(query.query().unwrap_or_default().as_bytes().to_vec());
        self.headers.insert(CONTENT_TYPE, FORM);
        self
    }

    /// Sets the time until the response has been read. Without it, the limit of the client
    /// applies, and streamed bodies get more time by their size.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how many bytes of the response are read.
    pub fn max_reply(mut self, bytes: usize) -> Self {
        self.max_reply = Some(bytes);
        self
    }

    /// States that repeating the request is harmless, as with every GET. Then a kept connection
    /// may be used, and a missing response is a temporary failure.
    pub fn repeatable(mut self) -> Self {
        self.repeatable = true;
        self
    }

    fn fail(&mut self, detail: String) {
        let problem = Failure::Permanent { detail, error_code: None };
        self.problem.get_or_insert(problem);
    }
}

impl fmt::Debug for EgressRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EgressRequest({} {:?})", self.method, self.target)
    }
}

impl EgressBody {
    /// Returns a copy, unless the body is a stream.
    pub(super) fn copy(&self) -> Option<Self> {
        match self {
            Self::Empty => Some(Self::Empty),
            Self::Bytes(bytes) => Some(Self::Bytes(bytes.clone())),
            Self::Stream { .. } | Self::Multipart(_) => None,
        }
    }

    /// Returns the time for the upload beside the usual limit of a request.
    pub(super) fn upload_time(&self) -> Duration {
        let size = match self {
            Self::Empty | Self::Bytes(_) => 0,
            Self::Stream { size, .. } => *size,
            Self::Multipart(fields) => fields.iter().map(|field| field.size).sum(),
        };
        Duration::from_secs(size / MIN_UPLOAD_RATE)
    }

    /// Returns the body for the client, and sets the headers that describe it.
    pub(super) fn into_body(self, headers: &mut HeaderMap) -> Option<reqwest::Body> {
        let (size, pieces) = match self {
            Self::Empty => return None,
            Self::Bytes(bytes) => {
                // The client leaves the header out for an empty body, and servers of S3 require it.
                if bytes.is_empty() {
                    headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
                }
                return Some(bytes.into());
            }
            Self::Stream { size, bytes } => (size, VecDeque::from([Piece { size, bytes }])),
            Self::Multipart(fields) => {
                let boundary = boundary();
                let mime_type = format!("multipart/form-data; boundary={boundary}");
                if let Ok(value) = HeaderValue::from_str(&mime_type) {
                    headers.insert(CONTENT_TYPE, value);
                }
                form_pieces(fields, &boundary)
            }
        };
        headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
        Some(reqwest::Body::wrap_stream(read_pieces(pieces)))
    }
}

/// A part of a streamed body.
struct Piece {
    size: u64,
    bytes: ByteReader,
}

impl From<String> for Piece {
    fn from(text: String) -> Self {
        Self { size: text.len() as u64, bytes: Box::pin(io::Cursor::new(text.into_bytes())) }
    }
}

fn boundary() -> String {
    // Content that contains the boundary would end its field. Without randomness the boundary
    // is fixed, but still longer than anything by accident.
    let random = getrandom::u64().unwrap_or(0x6d6f_6e6f_636f);
    format!("monoco-form-{random:016x}-{:016x}", getrandom::u64().unwrap_or(random))
}

fn form_pieces(fields: Vec<MultipartField>, boundary: &str) -> (u64, VecDeque<Piece>) {
    let mut pieces = VecDeque::new();
    for field in fields {
        pieces.push_back(Piece::from(field.head(boundary)));
        pieces.push_back(Piece { size: field.size, bytes: field.bytes });
        pieces.push_back(Piece::from("\r\n".to_owned()));
    }
    pieces.push_back(Piece::from(format!("--{boundary}--\r\n")));
    (pieces.iter().map(|piece| piece.size).sum(), pieces)
}

/// The content of a request cannot be read. The peer cannot have accepted the request, because
/// it is shorter than announced.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the content to send: {0}")]
pub(super) struct UnreadableContent(String);

fn read_pieces(
    pieces: VecDeque<Piece>,
) -> impl Stream<Item = Result<Bytes, UnreadableContent>> + Send + 'static {
    stream::try_unfold(pieces, |mut pieces| async move {
        let piece = loop {
            match pieces.front_mut() {
                None => return Ok(None),
                Some(piece) if piece.size == 0 => drop(pieces.pop_front()),
                Some(piece) => break piece,
            }
        };
        let room = usize::try_from(piece.size).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        let mut chunk = BytesMut::with_capacity(room);
        let read = (&mut piece.bytes).take(room as u64).read_buf(&mut chunk).await;
        match read {
            Ok(0) => Err(UnreadableContent(format!("{} bytes are missing", piece.size))),
            Ok(read) => {
                piece.size -= read as u64;
                Ok(Some((chunk.freeze(), pieces)))
            }
            Err(error) => Err(UnreadableContent(error.to_string())),
        }
    })
}
