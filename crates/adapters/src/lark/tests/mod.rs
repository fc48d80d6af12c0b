//! The adapter against a scripted server that plays the API of Lark.

use std::path::Path;

use monoco_core::config::{ConfigEnvironment, ConfigFile, Secret};
use monoco_core::outgoing::OutgoingMessage;
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::scripted::{ScriptedAct, ScriptedServer, answer};

mod calling;
mod delivering;

const NOW: Timestamp = Timestamp::from_ms(1_599_360_473_000);

struct NoEnvironment;

impl ConfigEnvironment for NoEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, _path: &Path) -> Result<Secret, String> {
        Err("there are no files".to_owned())
    }
}

/// Builds an adapter of an app at `url`, with further lines of config.
fn adapter(url: &str, lines: &str) -> LarkAdapter {
    let yaml = format!("app_id: cli_a1\napp_secret: s3cret\nbase_url: {url}\n{lines}");
    let file = ConfigFile::parse(&yaml).unwrap();
    let config = LarkConfig::parse(&file.root(&NoEnvironment).unwrap(), true).unwrap();
    LarkAdapter::new("lark".parse().unwrap(), config, Egress::new().unwrap())
}

/// A server that gives these answers in turn, and its URL.
fn server(answers: &[(u16, &str)]) -> (ScriptedServer, String) {
    let act = |(status, body): &(u16, &str)| {
        ScriptedAct::Answer(answer(&format!("{status} X"), "connection: close\r\n", body))
    };
    serve(answers.iter().map(act))
}

fn serve(acts: impl IntoIterator<Item = ScriptedAct>) -> (ScriptedServer, String) {
    let server = ScriptedServer::new(acts);
    let url = format!("http://127.0.0.1:{}", server.port());
    (server, url)
}

const TOKEN: (u16, &str) = (200, r#"{"code":0,"tenant_access_token":"t-1","expire":7200}"#);
const NEW_TOKEN: (u16, &str) = (200, r#"{"code":0,"tenant_access_token":"t-2","expire":7200}"#);
const SENT: (u16, &str) = (200, r#"{"code":0,"data":{"message_id":"om_sent"}}"#);
const OK: (u16, &str) = (200, r#"{"code":0,"msg":"ok","data":{}}"#);

fn act((status, body): (u16, &str)) -> ScriptedAct {
    ScriptedAct::Answer(answer(&format!("{status} X"), "connection: close\r\n", body))
}

fn path_of(request: &str) -> String {
    request.split_whitespace().nth(1).unwrap_or_default().to_owned()
}

/// Returns the JSON body of a request.
fn body_of(request: &str) -> Value {
    let (_, body) = request.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{request}: {error}"))
}

fn outgoing(message: Value) -> OutgoingMessage {
    let mut object = json!({"from": "did:web:me"});
    for (key, value) in message.as_object().unwrap() {
        object[key] = value.clone();
    }
    OutgoingMessage::parse(&object.to_string()).unwrap()
}
