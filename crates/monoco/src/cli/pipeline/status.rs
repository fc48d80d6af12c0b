//! `monoco pipeline status`: prints chains, workers and the number of letters per state.

use std::io::IsTerminal;
use std::time::Duration;

use crate::cli::CliContext;
use crate::cli::failure::CliError;
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, print};
use monoco_courier::api::views::pipeline::{PipelineView, TunnelChainsView, WorkerView};
use monoco_courier::clock::wall_now;

/// How often `--watch` updates the status.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct PipelineStatusArgs {
    /// Update the status every second, until interrupted
    #[arg(long)]
    watch: bool,
}

const PIPELINE: &[Column<PipelineView>] = &[
    ("queue", |pipeline| pipeline.queue.kind.cell()),
    ("at", |pipeline| pipeline.queue.address.cell()),
    ("queue error", |pipeline| pipeline.queue.error.cell()),
    ("inbound", |pipeline| pipeline.chains.inbound.cell()),
    ("outbound", |pipeline| pipeline.chains.outbound.cell()),
    ("letters", |pipeline| counts(pipeline).cell()),
    ("oldest due", |pipeline| pipeline.oldest_due_at.cell()),
];

pub async fn run(context: &CliContext, args: PipelineStatusArgs) -> Result<(), CliError> {
    let format = context.format;
    if !args.watch {
        return show(format, &get_status(context).await?);
    }
    let screen = std::io::stdout().is_terminal() && format == OutputFormat::Table;
    loop {
        let status = get_status(context).await;
        if screen {
            print("\u{1b}[H\u{1b}[2J")?;
        }
        match status {
            Ok(status) if screen => show(format, &status)?,
            Ok(status) if format == OutputFormat::Json => output::print_json_line(&status)?,
            Ok(status) => print(&format!("{} {}", wall_now().rfc3339(), counts(&status)))?,
            Err(failure) => output::note(&escape_line(&failure.message)),
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

async fn get_status(context: &CliContext) -> Result<PipelineView, CliError> {
    context.client()?.get("/api/v1/pipeline").await
}

fn show(format: OutputFormat, status: &PipelineView) -> Result<(), CliError> {
    let columns: &[Column<(&String, &WorkerView)>] = &[
        ("worker", |(name, _)| name.cell()),
        ("kind", |(_, worker)| worker.kind.cell()),
        ("in", |(_, worker)| worker.r#in.cell()),
        ("pass", |(_, worker)| worker.pass.cell()),
        ("skip", |(_, worker)| worker.skip.cell()),
        ("trash", |(_, worker)| worker.trash.cell()),
        ("errors", |(_, worker)| worker.errors.cell()),
        ("rejected", |(_, worker)| worker.rejected.cell()),
        ("seconds", |(_, worker)| Some(format!("{:.3}", worker.seconds))),
        ("waiting", |(_, worker)| worker.waiting.cell()),
        ("away", |(_, worker)| worker.away.cell()),
        ("held", |(_, worker)| worker.held.cell()),
        ("down", |(_, worker)| worker.down.cell()),
    ];
    let workers: Vec<_> = status.workers.iter().collect();
    if format != OutputFormat::Table {
        return output::list(format, status, &workers, columns);
    }
    output::print_fields(status, PIPELINE)?;
    for (tunnel, TunnelChainsView { inbound, outbound }) in &status.chains.tunnels {
        for (direction, chain) in [("inbound", inbound), ("outbound", outbound)] {
            if let Some(chain) = chain {
                let (tunnel, chain) = (escape_line(tunnel), escape_line(&chain.join(", ")));
                print(&format!("{direction} of {tunnel}: {chain}"))?;
            }
        }
    }
    print("")?;
    // A table has no room for counters that are zero everywhere.
    let counted = columns
        .iter()
        .filter(|(_, value)| workers.iter().any(|row| value(row).as_deref() != Some("0")));
    let columns: Vec<_> = counted.copied().collect();
    output::list(format, status, &workers, &columns)
}

/// Formats the number of letters in each state on one line.
fn counts(status: &PipelineView) -> String {
    let counts = status.states.iter().map(|(state, count)| format!("{state}={count}"));
    escape_line(&counts.collect::<Vec<_>>().join(" "))
}
