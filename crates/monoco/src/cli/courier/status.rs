//! `monoco courier status`: prints the status of the courier and its tunnels, once or every
//! second.

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cli::CliContext;
use crate::cli::client::Client;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, print};
use crate::clock::wall_now;

/// How often `--watch` updates the status.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Print JSON, same as --format json
    #[arg(long)]
    json: bool,
    /// Update the status every second, until interrupted
    #[arg(long)]
    watch: bool,
}

const COURIER: [(&str, &str); 18] = [
    ("status", "status"),
    ("address", "address"),
    ("webhooks", "webhook_address"),
    ("version", "version"),
    ("pid", "pid"),
    ("started", "started_at_ms"),
    ("home", "home"),
    ("log", "log"),
    ("storage", "storage.status"),
    ("storage detail", "storage.detail"),
    ("mailbox error", "mailbox.error"),
    ("foreign files", "mailbox.foreign_files"),
    ("letters", "post_office.under_way"),
    ("post office", "post_office.problems"),
    ("received", "metrics.messages_received"),
    ("sent", "metrics.messages_sent"),
    ("pending", "metrics.messages_pending"),
    ("clock drift ms", "clock_drift_ms"),
];

const TUNNELS: [(&str, &str); 9] = [
    ("tunnel", "tunnel"),
    ("provider", "provider"),
    ("state", "status"),
    ("heard", "heard"),
    ("sent", "sent"),
    ("last frame", "last_frame_at"),
    ("last message", "last_message_at"),
    ("last sent", "last_sent_at"),
    ("last error", "last_error"),
];

pub async fn run(context: &CliContext, args: StatusArgs) -> Result<(), CliError> {
    let format = if args.json { OutputFormat::Json } else { context.format };
    if !args.watch {
        return show(format, &look(context).await?);
    }
    let terminal = std::io::stdout().is_terminal();
    loop {
        let answer = look(context).await;
        match (answer, terminal && format == OutputFormat::Table) {
            (Ok(answer), true) => {
                clear()?;
                show(format, &answer)?;
            }
            (Err(failure), true) => {
                clear()?;
                print(&output::escape_line(&failure.message))?;
            }
            (Ok(answer), false) if format == OutputFormat::Json => {
                print(&output::json_line(&answer))?
            }
            (Ok(answer), false) => print(&line(&answer))?,
            (Err(failure), false) if format == OutputFormat::Json => {
                let answer = json!({"status": "down", "detail": failure.message});
                print(&output::json_line(&answer))?;
            }
            (Err(failure), false) => {
                print(&format!(
                    "{} {}",
                    wall_now().rfc3339(),
                    output::escape_line(&failure.message)
                ))?;
            }
        }
        tokio::time::sleep(WATCH_INTERVAL).await;
    }
}

/// Gets the health of the courier and adds its addresses and files.
async fn look(context: &CliContext) -> Result<Value, CliError> {
    let home = &context.home;
    let client = match Client::find(home) {
        Err(failure) if failure.exit == CliExit::NoCourier => {
            let Some(pid) = home.holder() else { return Err(failure) };
            let message =
                format!("the courier (process {}) is not ready yet", pid.as_raw_nonzero());
            return Err(CliError::new(CliExit::NoCourier, message)
                .hint("`monoco courier logs` shows what the courier is doing"));
        }
        other => other?,
    };
    let health = client.health().await?;
    let running = client.running();
    let mut answer = json!({
        "pid": running.pid,
        "address": format!("http://{}", running.address),
        "started_at_ms": running.started_at_ms,
        "home": home.path(),
    });
    if let Some(address) = running.webhook_address {
        answer["webhook_address"] = json!(format!("http://{address}"));
    }
    if let Some(log) = &running.log {
        answer["log"] = json!(log);
    }
    if let (Some(answer), Some(health)) = (answer.as_object_mut(), health.as_object()) {
        answer.extend(health.clone());
    }
    Ok(answer)
}

fn show(format: OutputFormat, answer: &Value) -> Result<(), CliError> {
    output::one(format, answer, "pid", &COURIER)?;
    if format == OutputFormat::Table {
        let tunnels = tunnels(answer);
        if !tunnels.is_empty() {
            print("")?;
            output::list(format, &json!({ "tunnels": tunnels }), "tunnels", &TUNNELS)?;
        }
    }
    Ok(())
}

/// Returns one row per tunnel.
fn tunnels(answer: &Value) -> Vec<Value> {
    let none = Map::new();
    let all = answer.get("adapters").and_then(Value::as_object).unwrap_or(&none);
    all.iter()
        .map(|(name, tunnel)| {
            let mut tunnel = tunnel.clone();
            tunnel["tunnel"] = json!(name);
            tunnel
        })
        .collect()
}

/// Formats the status on one line.
fn line(answer: &Value) -> String {
    let text = |value: &Value| output::escape_line(value.as_str().unwrap_or("?"));
    let metrics = &answer["metrics"];
    let count = |name: &str| metrics[name].as_i64().unwrap_or(0);
    let tunnels: Vec<_> = tunnels(answer)
        .iter()
        .map(|tunnel| format!("{}={}", text(&tunnel["tunnel"]), text(&tunnel["status"])))
        .collect();
    format!(
        "{} {} received={} sent={} pending={} {}",
        wall_now().rfc3339(),
        text(&answer["status"]),
        count("messages_received"),
        count("messages_sent"),
        count("messages_pending"),
        tunnels.join(" "),
    )
}

/// Clears the terminal screen.
fn clear() -> Result<(), CliError> {
    print("\u{1b}[H\u{1b}[2J")
}
