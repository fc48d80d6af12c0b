//! `monoco events`: prints the event log, or follows it.

use std::time::Duration;

use http_body_util::BodyExt;

use super::CliContext;
use super::client::query;
use super::failure::CliError;
use super::output::{self, Column, OutputFormat, ToCell, escape_line, note};
use monoco_courier::api::views::events::{EventPage, EventView};

/// Delay before a broken event stream is opened again.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Reconnects in a row, without an event in between, before the command fails.
const MAX_RECONNECTS: u32 = 30;

#[derive(Debug, clap::Args)]
pub struct EventsArgs {
    /// Print new events as they occur, until interrupted
    #[arg(long)]
    follow: bool,
    /// Show events after this sequence number [default: the newest events]
    #[arg(long, allow_negative_numbers = true)]
    after: Option<i64>,
    /// Maximum number of events to show, without --follow
    #[arg(long, conflicts_with = "follow", default_value_t = 100, allow_negative_numbers = true)]
    limit: i64,
}

const COLUMNS: &[Column<EventView>] = &[
    ("seq", |event| event.seq.cell()),
    ("at", |event| event.at.cell()),
    ("kind", |event| event.kind.cell()),
    ("msg", |event| event.msg_id.cell()),
    ("owner", |event| event.owner.cell()),
    ("detail", |event| event.detail.cell()),
];

pub async fn run(context: &CliContext, args: EventsArgs) -> Result<(), CliError> {
    let client = context.client()?;
    if args.follow {
        return follow(context, args.after).await;
    }
    let limit = args.limit.to_string();
    let query = query(&[
        ("after", args.after.map(|after| after.to_string())),
        ("tail", args.after.is_none().then(|| limit.clone())),
        ("limit", Some(limit)),
    ]);
    let page: EventPage = client.get(&format!("/api/v1/events{query}")).await?;
    output::list(context.format, &page, &page.events, COLUMNS)?;
    note_cut(context.format, &args, &page);
    Ok(())
}

/// Tells which events are not shown.
fn note_cut(format: OutputFormat, args: &EventsArgs, page: &EventPage) {
    let shown = page.events.len();
    let (Some(first), true) = (page.events.first(), format != OutputFormat::Json) else { return };
    if args.after.is_none() && first.seq > 1 {
        note(&format!("showing the newest {shown} events: use --limit or --after for others"));
    } else if args.after.is_some() && i64::try_from(shown) == Ok(args.limit) {
        note(&format!(
            "showing {shown} events: use --limit or --after {} for later ones",
            page.last
        ));
    }
}

/// Follows the event stream and reconnects where it broke off.
async fn follow(context: &CliContext, mut after: Option<i64>) -> Result<(), CliError> {
    let mut tries = 0;
    loop {
        let broke_off = match context.client() {
            Ok(client) => match client.follow(after).await {
                Ok(mut stream) => {
                    let mut text = String::new();
                    while let Some(Ok(frame)) = stream.frame().await {
                        let Some(data) = frame.data_ref() else { continue };
                        text.push_str(&String::from_utf8_lossy(data));
                        while let Some((line, rest)) = text.split_once('\n') {
                            if let Some(event) = line.strip_prefix("data: ") {
                                after = show(context.format, event)?.or(after);
                                tries = 0;
                            }
                            text = rest.to_owned();
                        }
                    }
                    None
                }
                Err(failure) => Some(failure),
            },
            Err(failure) => Some(failure),
        };
        tries += 1;
        if tries > MAX_RECONNECTS {
            return Err(broke_off.unwrap_or_else(CliError::no_courier));
        }
        if tries == 1 {
            note("event stream interrupted; waiting for the courier");
        }
        tokio::time::sleep(RECONNECT_DELAY).await;
    }
}

/// Prints one event and returns its sequence number.
fn show(format: OutputFormat, event: &str) -> Result<Option<i64>, CliError> {
    let Ok(event) = serde_json::from_str::<EventView>(event) else {
        note(&format!("cannot parse event: {}", escape_line(event)));
        return Ok(None);
    };
    output::stream_entry(format, &event, COLUMNS)?;
    Ok(Some(event.seq))
}
