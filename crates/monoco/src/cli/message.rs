//! Builds a message from command line options or from JSON.

use std::io::Read;

use monoco_core::object::ObjId;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{Client, segment};
use super::contact::{did_of, maybe_did_of};
use super::failure::{CliError, CliExit};
use monoco_courier::api::views::trace::TraceView;

#[derive(Debug, clap::Args)]
pub struct MessageArgs {
    /// Author, given like --to; for a group message, the group
    #[arg(long, value_name = "CONTACT", required_unless_present = "file")]
    from: Option<String>,
    /// Author of a group message, given like --to
    #[arg(long, value_name = "CONTACT")]
    source: Option<String>,
    /// Target: a DID, the name or e-mail address of a contact, or TUNNEL:ACCOUNT (can be repeated)
    #[arg(long, value_name = "CONTACT")]
    to: Vec<String>,
    /// Text of the message; - reads it from stdin
    #[arg(long, required_unless_present = "file")]
    text: Option<String>,
    /// Title of the message
    #[arg(long)]
    title: Option<String>,
    /// Kind of message: chat, group_msg, deliver, notify, event or operation
    #[arg(long, default_value = "chat")]
    kind: String,
    /// Message it replies to: its id, or that of its Mail, record or delivery, or a unique prefix
    #[arg(long, value_name = "ID")]
    reply_to: Option<String>,
    /// Topic of the thread it belongs to
    #[arg(long)]
    topic: Option<String>,
    /// File with the whole message as JSON; - reads it from stdin
    #[arg(long, conflicts_with_all = ["from", "source", "to", "text", "title", "reply_to", "topic"])]
    file: Option<String>,
}

impl MessageArgs {
    /// Builds the message. Its creation time makes two messages with the same text distinct.
    pub async fn read(self, client: &Client) -> Result<Value, CliError> {
        if let Some(file) = &self.file {
            let text = if file == "-" { stdin()? } else { std::fs::read_to_string(file)? };
            return serde_json::from_str(&text).map_err(|error| {
                CliError::new(
                    CliExit::NotPossible,
                    format!("invalid message: {error}; expected JSON"),
                )
            });
        }
        let text = match self.text.as_deref() {
            Some("-") => stdin()?.trim_end_matches('\n').to_owned(),
            text => text.unwrap_or_default().to_owned(),
        };
        let mut to = Vec::new();
        for target in &self.to {
            to.push(did_of(client, target).await?);
        }
        let now = monoco_courier::clock::Clock::default().now();
        let mut msg = json!({
            "from": maybe_did_of(client, self.from).await?,
            "source": maybe_did_of(client, self.source).await?,
            "to": to,
            "kind": self.kind,
            "created_at_ms": now,
            "content": {"format": "text/markdown", "title": self.title, "content": text},
        });
        if self.reply_to.is_some() || self.topic.is_some() {
            let reply_to = match &self.reply_to {
                Some(id) => Some(msg_id_of(client, id).await?),
                None => None,
            };
            msg["thread"] = json!({"reply_to": reply_to, "topic": self.topic});
        }
        Ok(msg)
    }
}

/// Returns the id of a message that is given by any id that a trace finds. A whole message id is
/// not looked up: the message need not be stored here.
async fn msg_id_of(client: &Client, id: &str) -> Result<String, CliError> {
    if id.parse::<ObjId>().is_ok() {
        return Ok(id.to_owned());
    }
    let trace: TraceView = client.get(&format!("/api/v1/trace/{}", segment(id))).await?;
    trace.msg_id.ok_or_else(|| {
        CliError::new(CliExit::NotPossible, format!("{id} has not become a message yet"))
    })
}

fn stdin() -> Result<String, CliError> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

/// The parts of a MsgObject that commands print.
#[derive(Debug, Default, Deserialize)]
pub struct MessageSummary {
    pub from: String,
    pub source: Option<String>,
    #[serde(default)]
    pub to: Vec<String>,
    #[serde(default)]
    pub content: MessageContent,
}

#[derive(Debug, Default, Deserialize)]
pub struct MessageContent {
    pub title: Option<String>,
    #[serde(default)]
    pub content: String,
}

impl MessageSummary {
    /// Parses a MsgObject; `None` if there is none or it has another form.
    pub fn parse(msg: Option<&RawValue>) -> Option<Self> {
        serde_json::from_str(msg?.get()).ok()
    }
}
