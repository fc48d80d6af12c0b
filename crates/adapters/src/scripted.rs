//! A server on loopback that does what a test tells it, also what no real one would.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// What the server does with one connection.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedAct {
    /// Reads the request and answers.
    Answer(String),
    /// Reads the request and hangs up.
    HangUp,
    /// Reads the request and says nothing.
    Silence,
    /// Reads the request, says this and no more, and does not hang up.
    Stall(String),
    /// Reads the request and answers byte by byte, until nobody listens.
    Drip(String),
    /// Reads nothing and says nothing.
    Deaf,
}

/// The server. Each connection takes the next act.
#[derive(Debug)]
pub(crate) struct ScriptedServer {
    addr: SocketAddr,
    heard: mpsc::Receiver<String>,
}

impl ScriptedServer {
    pub(crate) fn new(acts: impl IntoIterator<Item = ScriptedAct>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (tell, heard) = mpsc::channel();
        let acts: Vec<_> = acts.into_iter().collect();
        thread::spawn(move || {
            for act in acts {
                let Ok((stream, _)) = listener.accept() else { return };
                play(stream, &act, &tell);
            }
        });
        Self { addr, heard }
    }

    /// One that answers once, with this status line, these headers and this body.
    pub(crate) fn answering(status: &str, headers: &str, body: &str) -> Self {
        Self::new([ScriptedAct::Answer(answer(status, headers, body))])
    }

    pub(crate) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/hook?token=canary-in-the-query", self.addr)
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// The next request that it read, head and body.
    pub(crate) fn request(&self) -> String {
        self.heard.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    /// Whether it read another one.
    pub(crate) fn heard_more(&self) -> bool {
        self.heard.try_recv().is_ok()
    }
}

pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

fn play(mut stream: TcpStream, act: &ScriptedAct, tell: &mpsc::Sender<String>) {
    if !matches!(act, ScriptedAct::Deaf) {
        let _ = tell.send(read_request(&mut stream));
    }
    match act {
        ScriptedAct::Answer(text) => {
            let _ = stream.write_all(text.as_bytes());
        }
        ScriptedAct::Stall(text) => {
            let _ = stream.write_all(text.as_bytes());
            let _ = stream.read_to_end(&mut Vec::new());
        }
        ScriptedAct::HangUp => {}
        ScriptedAct::Silence | ScriptedAct::Deaf => {
            // Until the other side gives up.
            let _ = stream.read_to_end(&mut Vec::new());
        }
        ScriptedAct::Drip(text) => {
            for byte in text.bytes() {
                if stream.write_all(&[byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn read_request(stream: &mut TcpStream) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let request = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = request.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return request;
            }
        }
        match stream.read(&mut buffer) {
            Ok(read) if read > 0 => text.extend_from_slice(&buffer[..read]),
            _ => return request,
        }
    }
}
