//! A scripted server on loopback, for behaviour that real servers do not show on request.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use monoco_adapters::egress::EgressTarget;

/// What the server does with a connection after it has read the request.
#[derive(Clone, Debug)]
pub enum ScriptedWorkerAct {
    Answer(String),
    HangUp,
    Silence,
    /// Sends the answer byte by byte until the client closes the connection.
    Drip(String),
    /// Sends 200 and an endless body.
    Endless,
}

#[derive(Debug)]
pub struct ScriptedRequest {
    pub line: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// The server. Each connection uses the next act.
#[derive(Debug)]
pub struct ScriptedWorkerServer {
    addr: SocketAddr,
    heard: mpsc::Receiver<ScriptedRequest>,
}

impl ScriptedWorkerServer {
    pub fn new(acts: impl IntoIterator<Item = ScriptedWorkerAct>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, heard) = mpsc::channel();
        let acts: Vec<_> = acts.into_iter().collect();
        thread::spawn(move || {
            for act in acts {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let Some(request) = read(&mut stream) else { continue };
                let _ = tell.send(request);
                play(&mut stream, &act);
            }
        });
        Self { addr, heard }
    }

    /// A server that answers one request.
    pub fn answering(status: &str, body: &str) -> Self {
        Self::new([ScriptedWorkerAct::Answer(answer(status, body))])
    }

    pub fn target(&self, path: &str) -> EgressTarget {
        EgressTarget::parse(&format!("http://{}{path}", self.addr), true).unwrap()
    }

    /// The address with https, which the server does not support.
    pub fn tls(&self, allow_private: bool) -> EgressTarget {
        let port = self.addr.port();
        EgressTarget::parse(&format!("https://localhost:{port}/"), allow_private).unwrap()
    }

    /// Returns the next received request.
    pub fn request(&self) -> ScriptedRequest {
        self.heard.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    /// Tells whether another request was received.
    pub fn has_request(&self) -> bool {
        self.heard.try_recv().is_ok()
    }
}

/// An address without a listener.
pub fn unreachable() -> EgressTarget {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    EgressTarget::parse(&format!("http://{}/", listener.local_addr().unwrap()), true).unwrap()
}

/// A complete HTTP response.
pub fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn play(stream: &mut TcpStream, act: &ScriptedWorkerAct) {
    match act {
        ScriptedWorkerAct::Answer(text) => {
            let _ = stream.write_all(text.as_bytes());
        }
        ScriptedWorkerAct::HangUp => {}
        ScriptedWorkerAct::Silence => {
            // Until the client closes the connection.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        ScriptedWorkerAct::Drip(text) => {
            for byte in text.bytes() {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        }
        ScriptedWorkerAct::Endless => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        }
    }
}

fn read(stream: &mut TcpStream) -> Option<ScriptedRequest> {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(request) = whole(&text) {
            return Some(request);
        }
        match stream.read(&mut buffer) {
            Ok(read) if read > 0 => text.extend_from_slice(&buffer[..read]),
            _ => return None,
        }
    }
}

/// Parses the request once it is complete.
fn whole(text: &[u8]) -> Option<ScriptedRequest> {
    let end = text.windows(4).position(|bytes| bytes == b"\r\n\r\n")?;
    let head = String::from_utf8(text[..end].to_vec()).ok()?;
    let (line, rest) = head.split_once("\r\n")?;
    let mut headers = HeaderMap::new();
    for (name, value) in rest.lines().filter_map(|line| line.split_once(": ")) {
        headers.append(name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value).ok()?);
    }
    let length = headers.get("content-length")?.to_str().ok()?.parse().ok()?;
    let body = text[end + 4..].to_vec();
    (body.len() >= length).then(|| ScriptedRequest { line: line.to_owned(), headers, body })
}
