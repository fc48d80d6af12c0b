//! `monoco trace`: prints the history of one message.

use super::CliContext;
use super::client::segment;
use super::failure::CliError;
use super::output::{self, OutputFormat, print};
use super::pipeline;

#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// Id of a message, Mail, letter, record or delivery, or the id that a provider gave
    pub id: String,
}

pub async fn run(context: &CliContext, args: TraceArgs) -> Result<(), CliError> {
    let format = context.format;
    let client = context.client()?;
    let mut answer = client.get(&format!("/api/v1/trace/{}", segment(&args.id))).await?;
    let records = [("record", "record_id"), ("owner", "owner"), ("box", "box"), ("state", "state")];
    let deliveries = [
        ("delivery", "record_id"),
        ("target", "delivery.target"),
        ("state", "state"),
        ("attempts", "attempts"),
        ("external id", "delivery.external_msg_id"),
        ("failure", "delivery.failure.detail"),
    ];
    let events =
        [("seq", "seq"), ("at", "at"), ("kind", "kind"), ("owner", "owner"), ("detail", "detail")];
    let messages =
        [("message", "id"), ("from", "from.id"), ("said", "at"), ("received", "received_at")];
    let claims = [
        ("claim of", "workspace"),
        ("status", "status"),
        ("agent", "agent_id"),
        ("attempts", "attempts"),
        ("reason", "reason"),
    ];
    let letters = [
        ("letter", "id"),
        ("direction", "direction"),
        ("state", "state"),
        ("worker", "worker"),
        ("verdicts", "said"),
        ("failure", "failure"),
        ("became", "became"),
    ];
    match format {
        // A letter that has not become a message has only its own id.
        OutputFormat::Id if answer["msg_id"].is_null() => {
            output::list(format, &answer, "letters", &letters)
        }
        OutputFormat::Json | OutputFormat::Id => output::one(format, &answer, "msg_id", &[]),
        OutputFormat::Compact => output::list(format, &answer, "events", &events),
        OutputFormat::Table => {
            let said = [
                ("msg", "msg_id"),
                ("mail", "mail.id"),
                ("from", "msg.from"),
                ("source", "msg.source"),
                ("to", "msg.to"),
                ("title", "msg.content.title"),
                ("text", "msg.content.content"),
            ];
            output::one(format, &answer, "msg_id", &said)?;
            for letter in answer["letters"].as_array_mut().into_iter().flatten() {
                letter["said"] = pipeline::verdict_line(&letter["verdicts"]).into();
            }
            for (key, columns) in [
                ("messages", &messages[..]),
                ("letters", &letters),
                ("records", &records),
                ("claims", &claims),
                ("deliveries", &deliveries),
                ("events", &events),
            ] {
                if answer[key].as_array().is_none_or(Vec::is_empty) {
                    continue;
                }
                print("")?;
                output::list(format, &answer, key, columns)?;
            }
            Ok(())
        }
    }
}
