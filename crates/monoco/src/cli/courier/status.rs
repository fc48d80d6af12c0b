//! `monoco courier status`: prints the status of the courier and its tunnels, once or every
//! second.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::disk_usage::DiskUsage;
use crate::cli::CliContext;
use crate::cli::client::{Client, LocalCourier};
use crate::cli::failure::CliError;
use crate::cli::halt;
use crate::cli::output::{self, Column, OutputFormat, ToCell, escape_line, print};
use monoco_courier::api::views::cluster::{ClusterHealth, CourierView};
use monoco_courier::api::views::health::{AdapterHealth, HealthView};
use monoco_courier::clock::wall_now;
use monoco_courier::home::CourierState;

/// How often `--watch` updates the status.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Update the status every second, until interrupted
    #[arg(long)]
    watch: bool,
}

/// Health of the courier with its process, addresses and files.
#[derive(Serialize)]
struct CourierStatus {
    state: CourierState,
    pid: i32,
    address: String,
    webhook_address: String,
    started_at: String,
    home: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<PathBuf>,
    /// Not measured by `--watch`: it reads all directories.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<DiskUsage>,
    #[serde(flatten)]
    health: HealthView,
}

const COURIER: &[Column<CourierStatus>] = &[
    ("state", |courier| courier.state.as_str().cell()),
    ("status", |courier| courier.health.status.cell()),
    ("address", |courier| courier.address.cell()),
    ("webhooks", |courier| courier.webhook_address.cell()),
    ("remote", |courier| {
        let remote = courier.health.remote.as_ref()?;
        Some(if remote.served {
            format!("https://{}", remote.address)
        } else {
            "not served".to_owned()
        })
    }),
    ("remote problem", |courier| courier.health.remote.as_ref()?.problem.cell()),
    ("version", |courier| courier.health.version.cell()),
    ("pid", |courier| courier.pid.cell()),
    ("started", |courier| courier.started_at.cell()),
    ("home", |courier| courier.home.cell()),
    ("log", |courier| courier.log.as_deref()?.cell()),
    ("disk", |courier| courier.disk.as_ref()?.summary().cell()),
    ("storage", |courier| courier.health.storage.status.cell()),
    ("storage detail", |courier| courier.health.storage.detail.cell()),
    ("large objects", |courier| {
        let found = courier.health.storage.objects.as_ref()?;
        found.error.as_ref().unwrap_or(&found.place).cell()
    }),
    ("mailbox error", |courier| courier.health.mailbox.error.cell()),
    ("foreign files", |courier| courier.health.mailbox.foreign_files.cell()),
    ("letters", |courier| courier.health.pipeline.under_way.cell()),
    ("problems", |courier| courier.health.pipeline.problems.cell()),
    ("received", |courier| courier.health.metrics.messages_received.cell()),
    ("sent", |courier| courier.health.metrics.messages_sent.cell()),
    ("pending", |courier| courier.health.metrics.messages_pending.cell()),
    ("halted", |courier| {
        let scopes: Vec<_> = courier.health.halts.iter().map(halt::scope_text).collect();
        scopes.cell()
    }),
    ("approvals", |courier| {
        Some(courier.health.pending_approvals).filter(|count| *count > 0)?.cell()
    }),
    ("dead letters", |courier| courier.health.dead.total.cell()),
    ("durability", |courier| courier.health.cluster.as_ref()?.durability.cell()),
    ("database", |courier| courier.health.cluster.as_ref()?.database.summary().cell()),
    ("problems", |courier| courier.health.cluster.as_ref()?.database.problems.cell()),
    ("couriers", |courier| courier.health.cluster.as_ref()?.couriers.len().cell()),
    ("clock drift ms", |courier| courier.health.clock_drift_ms.cell()),
];

pub async fn run(context: &CliContext, args: StatusArgs) -> Result<(), CliError> {
    let format = context.format;
    if !args.watch {
        let mut status = get_status(context).await?;
        status.disk = Some(DiskUsage::measure(&context.home));
        return show(format, &status);
    }
    let terminal = std::io::stdout().is_terminal();
    loop {
        let answer = get_status(context).await;
        match (answer, terminal && format == OutputFormat::Table) {
            (Ok(answer), true) => {
                clear()?;
                show(format, &answer)?;
            }
            (Err(failure), true) => {
                clear()?;
                print(&escape_line(&failure.message))?;
            }
            (Ok(answer), false) if format == OutputFormat::Json => {
                output::print_json_line(&answer)?;
            }
            (Ok(answer), false) => print(&line(&answer))?,
            (Err(failure), false) if format == OutputFormat::Json => {
                let answer = json!({"status": "down", "detail": failure.message});
                output::print_json_line(&answer)?;
            }
            (Err(failure), false) => {
                print(&format!("{} {}", wall_now().rfc3339(), escape_line(&failure.message)))?;
            }
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Gets the health of the courier and adds its addresses and files.
async fn get_status(context: &CliContext) -> Result<CourierStatus, CliError> {
    let home = &context.home;
    let local = LocalCourier::find(home).map_err(|failure| match home.holder() {
        // The courier has the lock, and has not written its state yet, or has removed it.
        Some(pid) if home.courier().is_none() => {
            CliError::not_ready(pid.as_raw_nonzero().get(), "starting or stopping")
        }
        _ => failure,
    })?;
    let running = local.running.clone();
    let health = Client::Local(Box::new(local)).health().await?;
    Ok(CourierStatus {
        state: running.state,
        pid: running.pid,
        address: format!("http://{}", running.address()),
        webhook_address: format!("http://{}", running.webhook_address()),
        started_at: running.started_at.clone(),
        home: home.path().to_owned(),
        log: running.log.clone(),
        disk: None,
        health,
    })
}

fn show(format: OutputFormat, status: &CourierStatus) -> Result<(), CliError> {
    output::one(format, status, &status.pid.to_string(), COURIER)?;
    if format != OutputFormat::Table {
        return Ok(());
    }
    if let Some(cluster) = &status.health.cluster {
        show_cluster(format, cluster)?;
    }
    let tunnels: Vec<_> = status.health.adapters.iter().collect();
    if tunnels.is_empty() {
        return Ok(());
    }
    let columns: &[Column<(&String, &AdapterHealth)>] = &[
        ("tunnel", |(id, _)| id.cell()),
        ("provider", |(_, tunnel)| tunnel.provider.cell()),
        ("state", |(_, tunnel)| tunnel.status.cell()),
        ("received", |(_, tunnel)| tunnel.received.cell()),
        ("sent", |(_, tunnel)| tunnel.sent.cell()),
        ("mode", |(_, tunnel)| tunnel.mode.cell()),
        ("last message", |(_, tunnel)| tunnel.last_message_at.cell()),
        ("last error", |(_, tunnel)| tunnel.last_error.cell()),
    ];
    print("")?;
    output::list(format, &(), &tunnels, columns)
}

/// Prints the couriers of a shared store, each with its duties.
fn show_cluster(format: OutputFormat, cluster: &ClusterHealth) -> Result<(), CliError> {
    let duties_of = |courier: &CourierView| {
        let held = cluster.duties.iter().filter(|duty| duty.courier.as_ref() == Some(&courier.id));
        held.map(|duty| duty.name.as_str()).collect::<Vec<_>>().join(" ")
    };
    let rows: Vec<_> = cluster.couriers.iter().map(|it| (it, duties_of(it))).collect();
    let columns: &[Column<(&CourierView, String)>] = &[
        ("courier", |(courier, _)| courier.id.cell()),
        ("live", |(courier, _)| courier.live.cell()),
        ("boot", |(courier, _)| courier.boot.cell()),
        ("seen", |(courier, _)| courier.seen_at.cell()),
        ("duties", |(_, duties)| duties.cell()),
    ];
    print("")?;
    output::list(format, &(), &rows, columns)
}

/// Formats the status on one line.
fn line(status: &CourierStatus) -> String {
    let HealthView { status, adapters, metrics, .. } = &status.health;
    let tunnels: Vec<_> =
        adapters.iter().map(|(id, tunnel)| format!("{id}={}", tunnel.status)).collect();
    let line = format!(
        "{} {status} received={} sent={} pending={} {}",
        wall_now().rfc3339(),
        metrics.messages_received,
        metrics.messages_sent,
        metrics.messages_pending,
        tunnels.join(" "),
    );
    escape_line(&line)
}

/// Clears the terminal screen.
pub fn clear() -> Result<(), CliError> {
    print("\u{1b}[H\u{1b}[2J")
}
