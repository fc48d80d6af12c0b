//! `monoco trace`: prints the history of one message.

use super::client::segment;
use super::failure::CliError;
use super::message::MessageSummary;
use super::output::{self, Column, OutputFormat, ToCell, print};
use super::pipeline::verdict_line;
use super::{CliContext, for_each_id};
use monoco_courier::api::views::boxes::RecordView;
use monoco_courier::api::views::events::EventView;
use monoco_courier::api::views::letters::LetterView;
use monoco_courier::api::views::trace::{MergedMessageView, TraceView};
use monoco_mailbox::claim_info::ClaimInfo;

#[derive(Debug, clap::Args)]
pub struct TraceArgs {
    /// Id of a message, Mail, letter, record or delivery, or the id that a provider gave; -
    /// reads ids from stdin
    pub id: String,
}

const MESSAGES: &[Column<MergedMessageView>] = &[
    ("message", |message| message.id.cell()),
    ("from", |message| message.from.id.cell()),
    ("written", |message| message.at.cell()),
    ("received", |message| message.received_at.cell()),
];

const LETTERS: &[Column<LetterView>] = &[
    ("letter", |letter| letter.id.cell()),
    ("direction", |letter| letter.direction.cell()),
    ("state", |letter| letter.state.cell()),
    ("worker", |letter| letter.worker.cell()),
    ("verdicts", |letter| verdict_line(&letter.verdicts).cell()),
    ("failure", |letter| letter.failure.cell()),
    ("became", |letter| letter.became.cell()),
];

const RECORDS: &[Column<RecordView>] = &[
    ("record", |record| record.record_id.cell()),
    ("owner", |record| record.owner.cell()),
    ("box", |record| record.r#box.cell()),
    ("state", |record| record.state.cell()),
];

const CLAIMS: &[Column<ClaimInfo>] = &[
    ("claim of", |claim| claim.workspace.cell()),
    ("status", |claim| claim.status.cell()),
    ("agent", |claim| claim.agent_id.cell()),
    ("attempts", |claim| claim.attempts.cell()),
    ("reason", |claim| claim.reason.cell()),
];

const DELIVERIES: &[Column<RecordView>] = &[
    ("delivery", |record| record.record_id.cell()),
    ("target", |record| record.delivery.as_ref()?.target.cell()),
    ("state", |record| record.state.cell()),
    ("attempts", |record| record.attempts.cell()),
    ("external id", |record| record.delivery.as_ref()?.external_msg_id.cell()),
    ("parts", |record| record.delivery.as_ref()?.part_ids().cell()),
    ("failure", |record| record.delivery.as_ref()?.failure.as_ref()?.detail().cell()),
];

const EVENTS: &[Column<EventView>] = &[
    ("seq", |event| event.seq.cell()),
    ("at", |event| event.at.cell()),
    ("kind", |event| event.kind.cell()),
    ("owner", |event| event.owner.cell()),
    ("detail", |event| event.detail.cell()),
];

pub async fn run(context: &CliContext, args: TraceArgs) -> Result<(), CliError> {
    let client = context.client()?;
    let show = async |id: &str| {
        let path = format!("/api/v1/trace/{}", segment(id));
        show(context.format, &client.get(&path).await?)
    };
    for_each_id(context, args.id, show).await
}

fn show(format: OutputFormat, trace: &TraceView) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => output::print_json(trace),
        OutputFormat::Id => match &trace.msg_id {
            Some(id) => print(id),
            // A letter that has not become a message has only its own id.
            None => output::list(format, trace, &trace.letters, LETTERS),
        },
        OutputFormat::Compact => output::list(format, trace, &trace.events, EVENTS),
        OutputFormat::Table => print_trace(trace),
    }
}

fn print_trace(trace: &TraceView) -> Result<(), CliError> {
    let msg = MessageSummary::parse(trace.msg.as_deref());
    let msg = msg.as_ref();
    output::print_values(&[
        ("msg", trace.msg_id.cell()),
        ("mail", trace.mail.as_ref().map(|mail| mail.id.to_string())),
        ("erased", trace.erased_at.cell()),
        ("from", msg.and_then(|msg| msg.from.cell())),
        ("source", msg.and_then(|msg| msg.source.cell())),
        ("to", msg.and_then(|msg| msg.to.cell())),
        ("title", msg.and_then(|msg| msg.content.title.cell())),
        ("text", msg.and_then(|msg| msg.content.content.cell())),
    ])?;
    print_section(&trace.messages, MESSAGES)?;
    // Not a table: the verdicts of a letter need a line of their own.
    for letter in &trace.letters {
        print("")?;
        output::print_fields(letter, LETTERS)?;
    }
    print_section(&trace.records, RECORDS)?;
    print_section(&trace.claims, CLAIMS)?;
    print_section(&trace.deliveries, DELIVERIES)?;
    print_section(&trace.events, EVENTS)
}

/// Prints an empty line and a table, unless there are no rows.
fn print_section<T>(rows: &[T], columns: &[Column<T>]) -> Result<(), CliError> {
    if rows.is_empty() {
        return Ok(());
    }
    print("")?;
    output::list(OutputFormat::Table, &(), rows, columns)
}
