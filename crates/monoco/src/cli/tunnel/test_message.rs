//! A test message through a tunnel: posted to the courier, and followed until it is sent.

use std::time::{Duration, Instant};

use monoco_core::did::{Endpoint, EndpointKind, TunnelId};
use serde_json::json;

use crate::cli::CliContext;
use crate::cli::client::segment;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::note;
use monoco_courier::api::views::boxes::RecordView;
use monoco_courier::api::views::messages::SendResponse;
use monoco_courier::clock::wall_now;
use monoco_courier::config::default_owner;

/// How long the command waits until the message is sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the state of the delivery is read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Default, clap::Args)]
pub struct TestMessageArgs {
    /// Send a test message to this account, as ADDRESS or KIND:ADDRESS; KIND is user, group,
    /// channel or addr [default kind: user]
    #[arg(long, value_name = "ACCOUNT")]
    to: Option<String>,
    /// Text of the test message
    #[arg(long, requires = "to")]
    text: Option<String>,
}

/// A message to one account of a tunnel.
#[derive(Debug, PartialEq, Eq)]
pub struct TestMessage {
    to: Endpoint,
    text: Option<String>,
}

impl TestMessageArgs {
    /// Returns the message that was asked for, if any.
    pub fn resolve(self, tunnel: &TunnelId) -> Result<Option<TestMessage>, CliError> {
        let Some(to) = self.to else { return Ok(None) };
        let message = TestMessage::parse(&to, tunnel)?;
        Ok(Some(TestMessage { text: self.text, ..message }))
    }
}

impl TestMessage {
    /// Parses `ADDRESS` or `KIND:ADDRESS`.
    pub fn parse(text: &str, tunnel: &TunnelId) -> Result<Self, CliError> {
        let typed = text.split_once(':').and_then(|(kind, account)| {
            let kind: EndpointKind = kind.parse().ok()?;
            Some((kind, account))
        });
        let (kind, account) = typed.unwrap_or((EndpointKind::User, text));
        if account.is_empty() {
            return Err(CliError::usage("--to: expected ADDRESS or KIND:ADDRESS"));
        }
        let to = Endpoint { account: account.to_owned(), kind, tunnel: tunnel.clone() };
        Ok(Self { to, text: None })
    }
}

/// Sends the message through the running courier, and waits until it is sent.
pub async fn send(context: &CliContext, message: &TestMessage) -> Result<(), CliError> {
    let client = context.client()?;
    let target = message.to.did().map_err(|error| CliError::usage(format!("--to: {error}")))?;
    let text = message.text.as_deref().unwrap_or("Test message of Monoco.");
    let content = json!({"format": "text/markdown", "content": text});
    let msg = json!({
        "from": default_owner(), "to": [target], "kind": "chat",
        "created_at_ms": wall_now(), "content": content,
    });
    let sent: SendResponse = client.post("/api/v1/post_send", &json!({ "msg": msg })).await?;
    let delivery = sent.deliveries.first().and_then(|target| target.record_id.clone());
    let Some(delivery) = delivery else {
        note(&format!("the test message {} is in the outbound chain", sent.msg_id));
        return Ok(());
    };
    let deadline = Instant::now() + SEND_TIMEOUT;
    loop {
        let path = format!("/api/v1/records/{}", segment(&delivery));
        let record: RecordView = client.get(&path).await?;
        let failure = record.delivery.and_then(|delivery| delivery.failure);
        let error = failure.map(|failure| failure.detail().to_owned());
        match record.state.as_ref() {
            "SENT" => {
                note(&format!("sent a test message to {}", message.to.account));
                return Ok(());
            }
            "DEAD" | "UNCERTAIN" | "FAILED" => return Err(not_sent(&delivery, error)),
            _ if Instant::now() > deadline => return Err(not_sent(&delivery, error)),
            _ => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

fn not_sent(delivery: &str, error: Option<String>) -> CliError {
    let why = error.unwrap_or_else(|| format!("no result within {} s", SEND_TIMEOUT.as_secs()));
    CliError::new(CliExit::NotPossible, format!("the test message was not sent: {why}"))
        .hint(format!("the tunnel stays; `monoco center show {delivery}` shows the delivery"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn account_of_a_test_message_can_have_a_kind() {
        let tunnel: TunnelId = "work".parse().unwrap();
        for (text, kind, account) in [
            ("U123", EndpointKind::User, "U123"),
            ("group:C123", EndpointKind::Group, "C123"),
            ("channel:a:b", EndpointKind::Channel, "a:b"),
            ("http://x", EndpointKind::User, "http://x"),
        ] {
            let to = TestMessage::parse(text, &tunnel).unwrap().to;
            assert_eq!((to.kind, to.account.as_str()), (kind, account), "{text}");
        }
        assert!(TestMessage::parse("group:", &tunnel).is_err());
    }
}
