//! A provider that pushes webhooks, signed as Standard Webhooks says, and a server that
//! takes them.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::common::{Answer, Courier, PATIENCE, raw, wait_for};

/// The secret of every tunnel in these tests.
pub const SECRET: &str = "whsec_dGhlIHNlY3JldCBvZiB0aGUgdGVzdHM=";

/// A config with one webhook tunnel, `ci`, that merges what comes within `window_ms`.
pub fn config(window_ms: u64) -> String {
    format!(
        "courier:\n  debounce: {{ window_ms: {window_ms}, max_wait_ms: 120000 }}\n  adapters:\n    \
         ci: {{ provider: webhook, verify: standard, secret: '{SECRET}' }}\n"
    )
}

/// Writes the config of a home.
pub fn configure(home: &Path, config: &str) {
    std::fs::create_dir_all(home.join("courier")).unwrap();
    std::fs::write(home.join("courier/config.yaml"), config).unwrap();
}

/// A courier in a home of its own, with this config.
pub fn courier(config: &str) -> Courier {
    Courier::start_configured(config)
}

/// A message in the default shape.
pub fn body(id: &str, session: &str, from: &str, text: &str) -> Value {
    json!({
        "id": id, "session": {"id": session, "type": "group", "name": "Ops"},
        "from": {"id": from, "name": from}, "text": text,
    })
}

/// The headers that sign a body now.
pub fn signed(secret: &str, body: &[u8]) -> Vec<(String, String)> {
    signed_at(secret, body, seconds())
}

/// The HMAC-SHA256 of a text, in hexadecimal.
pub fn hmac_hex(secret: &str, text: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(text);
    monoco_core::hex::encode(&mac.finalize().into_bytes())
}

/// The seconds since 1970, as the machine's clock says.
pub fn seconds() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a provider has a clock of its own")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// The headers that sign a body at a time.
pub fn signed_at(secret: &str, body: &[u8], secs: u64) -> Vec<(String, String)> {
    static SENT: AtomicU64 = AtomicU64::new(0);
    let id = format!("msg_{}_{}", std::process::id(), SENT.fetch_add(1, Ordering::Relaxed));
    let key = BASE64_STANDARD.decode(secret.trim_start_matches("whsec_")).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(format!("{id}.{secs}.").as_bytes());
    mac.update(body);
    let signature = BASE64_STANDARD.encode(mac.finalize().into_bytes());
    [
        ("Content-Type", "application/json".to_owned()),
        ("Host", "hooks.test".to_owned()),
        ("webhook-id", id),
        ("webhook-timestamp", secs.to_string()),
        ("webhook-signature", format!("v1,{signature}")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// The address of the webhook listener in `courier.json`.
pub fn webhook_address(running: &Value) -> SocketAddr {
    let port = running["webhook_port"].as_u64().unwrap();
    SocketAddr::from(([127, 0, 0, 1], u16::try_from(port).unwrap()))
}

impl Courier {
    pub fn webhooks(&self) -> SocketAddr {
        self.try_webhooks().unwrap()
    }

    /// Fails when its home can't be read.
    fn try_webhooks(&self) -> std::io::Result<SocketAddr> {
        let text = std::fs::read_to_string(self.home().join("run/courier.json"))?;
        let running: Value = serde_json::from_str(&text)?;
        Ok(webhook_address(&running))
    }

    /// Pushes a body to the tunnel `ci`, signed.
    pub fn push(&self, body: &Value) -> Answer {
        self.try_push(body).unwrap()
    }

    /// Fails when the courier is gone before it has answered.
    pub fn try_push(&self, body: &Value) -> std::io::Result<Answer> {
        let body = body.to_string();
        let headers = signed(SECRET, body.as_bytes());
        raw(self.try_webhooks()?, "POST", "/webhooks/ci", &headers, body.as_bytes())
    }

    /// Says something through the webhook, and sees that it is kept.
    #[track_caller]
    pub fn hears(&self, id: &str, session: &str, from: &str, text: &str) {
        assert_eq!(self.push(&body(id, session, from, text)).ok()["ok"], true);
    }

    /// Waits until there are so many Mails, and returns them, oldest first.
    #[track_caller]
    pub fn mails(&self, count: usize) -> Vec<Value> {
        let path = "/api/v1/messages?order=oldest&limit=1000";
        let full = |answer: &Value| answer["messages"].as_array().is_some_and(|m| m.len() >= count);
        let answer = self.until(path, full);
        let mails = answer["messages"].as_array().unwrap().clone();
        assert_eq!(mails.len(), count, "{mails:#?}");
        mails
    }

    /// One message that became one Mail; its id.
    #[track_caller]
    pub fn mail(&self, id: &str) -> String {
        self.hears(id, id, "ann", &format!("about {id}"));
        let path = "/api/v1/messages?limit=1000";
        let named = |answer: &Value| find(answer, id).is_some();
        let answer = self.until(path, named);
        find(&answer, id).unwrap()
    }

    /// Claims a Mail as soon as that is possible; until then the answer must be `code`.
    #[track_caller]
    pub fn claim_at_last(&self, mail: &str, by: &Value, code: &str) -> Value {
        wait_for(|| {
            let answer = self.ask(mail, "claim", by.clone());
            if answer.status == 200 {
                return Ok(answer.json());
            }
            assert_eq!(answer.refused(409), code);
            assert_eq!(answer.json()["next_retry_at"].is_string(), code == "not_due");
            Err(format!("{mail} is still {code}"))
        })
    }

    /// Asks something of a Mail.
    pub fn ask(&self, mail: &str, verb: &str, body: Value) -> Answer {
        self.post(&format!("/api/v1/messages/{mail}/{verb}"), &body)
    }
}

fn find(answer: &Value, session: &str) -> Option<String> {
    let mails = answer["messages"].as_array()?;
    let mail = mails.iter().find(|mail| mail["session"]["id"] == session)?;
    mail["id"].as_str().map(str::to_owned)
}

/// A request that a receiver got.
#[derive(Clone, Debug)]
pub struct Got {
    pub headers: Value,
    pub body: String,
}

/// A server on loopback that receives webhooks, and answers as configured.
pub struct Receiver {
    address: SocketAddr,
    got: mpsc::Receiver<Got>,
    answers: Arc<Mutex<VecDeque<String>>>,
}

impl Receiver {
    /// One that answers 200 to everything.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (send, got) = mpsc::channel();
        let answers = Arc::new(Mutex::new(VecDeque::<String>::new()));
        let planned = Arc::clone(&answers);
        // Ends when the test does: then no request is read any more.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let Some(request) = receive(&mut stream) else { continue };
                let answer = planned.lock().unwrap().pop_front();
                let answer = answer.unwrap_or_else(|| "200 OK\r\nContent-Length: 0".to_owned());
                let _ = write!(stream, "HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n");
                if send.send(request).is_err() {
                    return;
                }
            }
        });
        Self { address, got, answers }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Answers the next request with this status line, and says this.
    pub fn will_say(&self, status: &str, body: &str) {
        let answer = format!(
            "{status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        self.answers.lock().unwrap().push_back(answer);
    }

    /// Answers the next request with this status line, and headers.
    pub fn will(&self, answer: &str) {
        self.answers.lock().unwrap().push_back(format!("{answer}\r\nContent-Length: 0"));
    }

    /// The next request, once it is here.
    #[track_caller]
    pub fn next(&self) -> Got {
        self.got.recv_timeout(PATIENCE).expect("a request")
    }

    /// Requests that the test has not read yet.
    pub fn all(&self) -> Vec<Got> {
        self.got.try_iter().collect()
    }

    /// Whether all received requests were read.
    pub fn is_quiet(&self) -> bool {
        self.got.try_recv().is_err()
    }
}

fn receive(stream: &mut TcpStream) -> Option<Got> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut headers = serde_json::Map::new();
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_lowercase(), json!(value.trim()));
    }
    let length = headers.get("content-length")?.as_str()?.parse().ok()?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Got { headers: Value::Object(headers), body: String::from_utf8(body).ok()? })
}
