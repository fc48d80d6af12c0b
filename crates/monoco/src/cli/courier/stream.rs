//! `monoco courier stream`: shows the connection of each tunnel that receives messages through
//! one, once or every second.

use std::io::IsTerminal;
use std::time::Duration;

use serde::Serialize;

use super::status::clear;
use crate::cli::CliContext;
use crate::cli::failure::CliError;
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, note, print};
use monoco_courier::api::views::health::AdapterHealth;

/// How often `--watch` updates the list.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct StreamArgs {
    /// Update the list every second, until interrupted
    #[arg(long)]
    watch: bool,
}

/// The connection of one tunnel.
#[derive(Debug, Serialize)]
struct StreamStatus {
    tunnel: String,
    provider: String,
    mode: String,
    /// `open`, `opening`, `lost` or `paused`
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    /// Time of the last frame, pings and their answers included
    #[serde(skip_serializing_if = "Option::is_none")]
    last_frame_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_message_at: Option<String>,
    /// How often the open connection was lost since the courier started
    reconnects: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
}

#[derive(Debug, Serialize)]
struct StreamList {
    streams: Vec<StreamStatus>,
    /// Difference between the machine's clock and the courier's, which does not jump
    clock_drift_ms: i64,
}

const STREAM: &[Column<StreamStatus>] = &[
    ("tunnel", |stream| stream.tunnel.cell()),
    ("provider", |stream| stream.provider.cell()),
    ("mode", |stream| stream.mode.cell()),
    ("state", |stream| stream.state.cell()),
    ("since", |stream| stream.since.cell()),
    ("last frame", |stream| stream.last_frame_at.cell()),
    ("last message", |stream| stream.last_message_at.cell()),
    ("reconnects", |stream| stream.reconnects.cell()),
    ("last error", |stream| stream.last_error.cell()),
];

pub async fn run(context: &CliContext, args: StreamArgs) -> Result<(), CliError> {
    if !args.watch {
        let streams = get_streams(context).await?;
        if streams.streams.is_empty() && context.format == OutputFormat::Table {
            note("no tunnel receives messages through a connection of its own");
        }
        return output::list(context.format, &streams, &streams.streams, STREAM);
    }
    let redraw = std::io::stdout().is_terminal() && context.format == OutputFormat::Table;
    loop {
        let answer = get_streams(context).await;
        if redraw {
            clear()?;
        }
        match answer {
            Ok(streams) if context.format == OutputFormat::Json => {
                output::print_json_line(&streams)?;
            }
            Ok(streams) => output::list(context.format, &streams, &streams.streams, STREAM)?,
            Err(failure) if redraw => print(&escape_line(&failure.message))?,
            Err(failure) => note(&escape_line(&failure.message)),
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

async fn get_streams(context: &CliContext) -> Result<StreamList, CliError> {
    let health = context.client()?.health().await?;
    let streams = health.adapters.into_iter();
    let streams = streams.filter_map(|(tunnel, health)| StreamStatus::new(tunnel, health));
    Ok(StreamList { streams: streams.collect(), clock_drift_ms: health.clock_drift_ms })
}

impl StreamStatus {
    /// Returns `None` for a tunnel that opens no connection to receive messages.
    fn new(tunnel: String, health: AdapterHealth) -> Option<Self> {
        let state = match (health.connected?, &health.connection_since) {
            _ if health.status == "paused" => "paused",
            (true, _) => "open",
            (false, Some(_)) => "lost",
            (false, None) => "opening",
        };
        Some(Self {
            tunnel,
            provider: health.provider,
            mode: health.mode.into_owned(),
            state,
            since: health.connection_since,
            last_frame_at: health.last_frame_at,
            last_message_at: health.last_message_at,
            reconnects: health.connections_lost,
            last_error_at: health.last_error_at,
            last_error: health.last_error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_stream_follows_its_connection() {
        let stream = |connection: &str| {
            let health = format!(
                r#"{{"status":"hearing","mode":"socket","provider":"slack","received":0,"sent":0{connection}}}"#
            );
            let health = serde_json::from_str(&health).unwrap();
            StreamStatus::new("work".to_owned(), health).map(|stream| stream.state)
        };
        assert_eq!(stream(""), None, "a tunnel of webhooks has no connection");
        assert_eq!(stream(r#","connected":false"#), Some("opening"));
        assert_eq!(stream(r#","connected":true,"connection_since":"t""#), Some("open"));
        assert_eq!(stream(r#","connected":false,"connection_since":"t""#), Some("lost"));
    }
}
