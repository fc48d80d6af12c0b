//! Test support: a server on loopback that follows a script, including protocol violations.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// What the server does with one connection after it has read the request.
#[derive(Clone, Debug)]
pub(crate) enum ScriptedAct {
    Answer(String),
    HangUp,
    /// Sends nothing and keeps the connection open.
    Silence,
    /// Sends this text and keeps the connection open.
    Stall(String),
    /// Sends this text byte by byte, until the client closes the connection.
    Drip(String),
    /// Does not even read the request.
    Deaf,
}

/// The server. Each connection follows the next act.
#[derive(Debug)]
pub(crate) struct ScriptedServer {
    addr: SocketAddr,
    requests: mpsc::Receiver<String>,
}

impl ScriptedServer {
    pub(crate) fn new(acts: impl IntoIterator<Item = ScriptedAct>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (sender, requests) = mpsc::channel();
        let acts: Vec<_> = acts.into_iter().collect();
        thread::spawn(move || {
            for act in acts {
                let Ok((stream, _)) = listener.accept() else { return };
                play(stream, &act, &sender);
            }
        });
        Self { addr, requests }
    }

    /// Starts a server that answers once.
    pub(crate) fn answering(status: &str, headers: &str, body: &str) -> Self {
        Self::new([ScriptedAct::Answer(answer(status, headers, body))])
    }

    pub(crate) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/hook?token=canary-in-the-query", self.addr)
    }

    pub(crate) fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Returns the next request that the server read, head and body.
    pub(crate) fn request(&self) -> String {
        self.requests.recv_timeout(Duration::from_secs(10)).unwrap()
    }

    /// Tells whether the server read another request.
    pub(crate) fn received_more(&self) -> bool {
        self.requests.try_recv().is_ok()
    }
}

pub(crate) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len())
}

fn play(mut stream: TcpStream, act: &ScriptedAct, sender: &mpsc::Sender<String>) {
    if !matches!(act, ScriptedAct::Deaf) {
        let _ = sender.send(read_request(&mut stream));
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
            // Until the client closes the connection.
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
