//! A provider that pushes messages with Standard Webhooks signatures.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::common::Result;
use crate::common::courier::unexpected_response;
use crate::common::http::Conn;

/// Secret of the webhook tunnel.
pub const SECRET: &str = "whsec_dGhlIHNlY3JldCBvZiB0aGUgYmVuY2htYXJr";

/// Number of domains of the authors.
pub const DOMAINS: u64 = 50;

/// A text of the usual length of a chat message.
const WORDS: &str = "the build of the night is red again on two of the three machines, the log says \
    that the disk was full when the tests of the store began, the team should look at what the \
    cleaner does after midnight, and @monoco::ops may want to know before the release";

/// One message of the stream of webhooks.
#[derive(Clone, Copy, Debug)]
pub struct StreamMessage {
    /// Makes the id unique.
    pub number: u64,
    pub session: u64,
}

/// A persistent connection and the signing key.
pub struct Provider {
    conn: Conn,
    key: Hmac<Sha256>,
    body: Vec<u8>,
}

impl Provider {
    pub fn open(addr: SocketAddr) -> Result<Self> {
        let key = BASE64_STANDARD.decode(SECRET.trim_start_matches("whsec_"))?;
        let key = Hmac::new_from_slice(&key)?;
        Ok(Self { conn: Conn::plain(addr, "application/json")?, key, body: Vec::new() })
    }

    /// Pushes a message and waits for the response 200.
    pub fn push(&mut self, message: StreamMessage) -> Result<()> {
        let StreamMessage { number, session } = message;
        self.body.clear();
        write!(
            self.body,
            r#"{{"id":"{}","session":{{"id":"room-{session}","type":"group","name":"Room {session}"}},"#,
            id(number)
        )?;
        let (author, domain) = (number % 500, number % DOMAINS);
        write!(
            self.body,
            r#""from":{{"id":"user{author}@team{domain}.example.com","name":"User {author}"}},"#
        )?;
        write!(self.body, r#""title":"[Build {number}] nightly","text":"{number}: {WORDS}"}}"#)?;

        let (name, now) = (delivery(), unix_time().as_secs());
        let mut mac = self.key.clone();
        mac.update(format!("{name}.{now}.").as_bytes());
        mac.update(&self.body);
        let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
        let signed = format!(
            "webhook-id: {name}\r\nwebhook-timestamp: {now}\r\nwebhook-signature: v1,{signature}\r\n"
        );
        let (status, answer) = self.conn.post_with("/webhooks/ci", &signed, &self.body)?;
        if status == 200 { Ok(()) } else { Err(unexpected_response(status, answer)) }
    }
}

pub fn id(number: u64) -> String {
    format!("message-{number}")
}

fn delivery() -> String {
    static SENT: AtomicU64 = AtomicU64::new(0);
    format!("msg_{}_{}", std::process::id(), SENT.fetch_add(1, Relaxed))
}

#[expect(clippy::disallowed_methods, reason = "a signature carries the real time")]
fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
