//! Blocking HTTP client with one persistent connection, like the clients of the peers.
//!
//! It supports only what the courier answers: no redirects, no TLS, no pipelining.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::Result;

/// Maximum time until a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// One connection with reused buffers.
pub struct Conn {
    stream: BufReader<TcpStream>,
    /// Headers of every request.
    headers: String,
    out: Vec<u8>,
    line: String,
    body: Vec<u8>,
}

impl Conn {
    /// Connects. Every request has the bearer token.
    pub fn open(addr: SocketAddr, token: &str, content_type: &str) -> Result<Self> {
        let mut conn = Self::plain(addr, content_type)?;
        conn.headers += &format!("Authorization: Bearer {token}\r\n");
        Ok(conn)
    }

    pub fn plain(addr: SocketAddr, content_type: &str) -> Result<Self> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
        stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
        Ok(Self {
            stream: BufReader::new(stream),
            headers: format!("Host: {addr}\r\nContent-Type: {content_type}\r\n"),
            out: Vec::new(),
            line: String::new(),
            body: Vec::new(),
        })
    }

    /// Sends a POST request. Returns status and body of the response.
    pub fn post(&mut self, path: &str, body: &[u8]) -> Result<(u16, &[u8])> {
        self.post_with(path, "", body)
    }

    /// Like [`Self::post`], with additional header lines.
    pub fn post_with(&mut self, path: &str, more: &str, body: &[u8]) -> Result<(u16, &[u8])> {
        self.request("POST", path, more, body)
    }

    /// Like [`Self::post_with`], with any method.
    pub fn request(
        &mut self,
        method: &str,
        path: &str,
        more: &str,
        body: &[u8],
    ) -> Result<(u16, &[u8])> {
        self.out.clear();
        write!(
            self.out,
            "{method} {path} HTTP/1.1\r\n{}{more}Content-Length: {}\r\n\r\n",
            self.headers,
            body.len()
        )?;
        self.out.extend_from_slice(body);
        // In one write: separate packets would wait for a delayed acknowledgement.
        self.stream.get_mut().write_all(&self.out)?;

        let status = self.read_status()?;
        let framing = self.read_headers()?;
        self.body.clear();
        match framing {
            // These statuses have no body.
            _ if status == 204 || status == 304 => {}
            Some(Framing::Length(length)) => self.read_more(length)?,
            Some(Framing::Chunked) => self.read_chunks()?,
            None => return Err("response without a length".into()),
        }
        Ok((status, &self.body))
    }

    fn read_status(&mut self) -> Result<u16> {
        // "HTTP/1.1 200 OK"
        let line = self.read_line()?;
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        Ok(status.ok_or_else(|| format!("not an HTTP/1.1 response: {line:?}"))?.parse()?)
    }

    fn read_headers(&mut self) -> Result<Option<Framing>> {
        let mut framing = None;
        loop {
            let line = self.read_line()?;
            if line.is_empty() {
                return Ok(framing);
            }
            let (name, value) = line.split_once(':').ok_or("a header without a colon")?;
            let value = value.trim();
            if name.eq_ignore_ascii_case("content-length") {
                framing = Some(Framing::Length(value.parse()?));
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                if !value.eq_ignore_ascii_case("chunked") {
                    return Err(format!("cannot read {value}").into());
                }
                framing = Some(Framing::Chunked);
            }
        }
    }

    fn read_chunks(&mut self) -> Result<()> {
        loop {
            let line = self.read_line()?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16)?;
            if size == 0 {
                break;
            }
            self.read_more(size)?;
            if !self.read_line()?.is_empty() {
                return Err("chunk is longer than its size".into());
            }
        }
        // Trailers.
        while !self.read_line()?.is_empty() {}
        Ok(())
    }

    fn read_more(&mut self, length: usize) -> Result<()> {
        let have = self.body.len();
        self.body.resize(have + length, 0);
        Ok(self.stream.read_exact(&mut self.body[have..])?)
    }

    fn read_line(&mut self) -> Result<&str> {
        self.line.clear();
        if self.stream.read_line(&mut self.line)? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(self.line.trim_end_matches(['\r', '\n']))
    }
}

/// How the end of a body is marked.
enum Framing {
    Length(usize),
    Chunked,
}
