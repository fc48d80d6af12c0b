//! The adapter against a scripted server that plays both APIs of DingTalk.

use std::path::Path;

use monoco_core::config::{ConfigEnvironment, ConfigFile};
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::time::Timestamp;
use serde_json::json;

use super::*;
use crate::scripted::{ScriptedAct, ScriptedServer, answer};

mod delivering;
mod receiving;
mod streaming;

/// The time of all requests, before the session webhooks of the test data expire.
pub(super) const NOW: Timestamp = Timestamp::from_ms(1_690_362_200_000);

struct NoEnvironment;

impl ConfigEnvironment for NoEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
        Err("there are no files".to_owned())
    }
}

/// Builds an adapter whose both APIs are at `url`, with further lines of config.
pub(super) fn adapter(url: &str, lines: &str) -> DingTalkAdapter {
    let yaml = format!(
        "app_key: dingapp\napp_secret: s3cret\nrobot_code: dingrobot\nbase_url: {url}\n\
         oapi_url: {url}\n{lines}"
    );
    let file = ConfigFile::parse(&yaml).unwrap();
    let config = DingTalkConfig::parse(&file.root(&NoEnvironment).unwrap(), true).unwrap();
    DingTalkAdapter::new("ding".parse().unwrap(), config, Egress::new().unwrap()).unwrap()
}

/// A server that gives these answers in turn, and its URL.
pub(super) fn server(answers: &[(u16, &str)]) -> (ScriptedServer, String) {
    let act = |(status, body): &(u16, &str)| {
        ScriptedAct::Answer(answer(&format!("{status} X"), "", body))
    };
    let server = ScriptedServer::new(answers.iter().map(act));
    let url = format!("http://127.0.0.1:{}", server.port());
    (server, url)
}

pub(super) const TOKEN: (u16, &str) = (200, r#"{"accessToken":"at-1","expireIn":7200}"#);
pub(super) const NEW_TOKEN: (u16, &str) = (200, r#"{"accessToken":"at-2","expireIn":7200}"#);
pub(super) const SENT: (u16, &str) = (200, r#"{"processQueryKey":"key-1"}"#);
pub(super) const OK: (u16, &str) = (200, r#"{"errcode":0,"errmsg":"ok"}"#);

/// Returns the path of the next request.
pub(super) fn path(server: &ScriptedServer) -> String {
    path_of(&server.request())
}

pub(super) fn path_of(request: &str) -> String {
    request.split_whitespace().nth(1).unwrap_or_default().to_owned()
}

/// Returns the JSON body of a request.
pub(super) fn body_of(request: &str) -> Value {
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{request}: {error}"))
}

pub(super) fn outgoing(text: &str, format: &str) -> OutgoingMessage {
    let message = json!({"from": "did:web:me", "content": {"content": text, "format": format}});
    OutgoingMessage::parse(&message.to_string()).unwrap()
}

pub(super) fn testdata(name: &str) -> String {
    let path = format!("{}/testdata/dingtalk/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
