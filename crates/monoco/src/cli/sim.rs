//! `monoco sim`: emulates a chat network on loopback, for trials without credentials and for tests.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use monoco_sim::{SimError, SimNetwork, SimOptions, Simulator};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use super::CliContext;
use super::failure::{CliError, CliExit};
use super::output::{OutputFormat, print, print_json_line};

#[derive(Debug, clap::Subcommand)]
pub enum SimCommand {
    /// Emulate Slack: Web API, Socket Mode, Events API and files
    ///
    /// Prints the URL, made-up credentials and the next steps; --json prints one line. Stops on
    /// Ctrl-C. docs/sim.md describes the control API. Example: monoco sim slack
    Slack(SimArgs),
    /// Emulate DingTalk: stream, robot API, session webhooks and custom robots
    ///
    /// Prints the URL, made-up credentials and the next steps; --json prints one line. Stops on
    /// Ctrl-C. docs/sim.md describes the control API. Example: monoco sim dingtalk
    #[command(name = "dingtalk")]
    DingTalk(SimArgs),
    /// Emulate Lark: long connection, HTTP events, messages, files and custom robots
    ///
    /// Prints the URL, made-up credentials and the next steps; --json prints one line. Stops on
    /// Ctrl-C. docs/sim.md describes the control API. Example: monoco sim lark
    Lark(SimArgs),
    /// Emulate Telegram: Bot API with long polling, webhooks and files
    ///
    /// Prints the URL, made-up credentials and the next steps; --json prints one line. Stops on
    /// Ctrl-C. docs/sim.md describes the control API. Example: monoco sim telegram
    Telegram(SimArgs),
}

#[derive(Debug, clap::Args)]
pub struct SimArgs {
    /// Port to listen on; 0 selects a free port [default: 8661 for Slack, 8662 for DingTalk,
    /// 8663 for Lark, 8664 for Telegram]
    #[arg(long, value_name = "N")]
    port: Option<u16>,
    /// Address to listen on; only loopback addresses are allowed
    #[arg(long, value_name = "IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Token that requests to the control API must have; by default they need none
    #[arg(long, value_name = "TOKEN")]
    control_token: Option<String>,
    /// Number of apps, each with credentials of its own
    #[arg(long, value_name = "N", default_value_t = 1)]
    apps: usize,
}

pub async fn run(context: &CliContext, command: SimCommand) -> Result<(), CliError> {
    let (network, args, port) = match command {
        SimCommand::Slack(args) => (SimNetwork::Slack, args, 8661),
        SimCommand::DingTalk(args) => (SimNetwork::DingTalk, args, 8662),
        SimCommand::Lark(args) => (SimNetwork::Lark, args, 8663),
        SimCommand::Telegram(args) => (SimNetwork::Telegram, args, 8664),
    };
    let options = SimOptions {
        network,
        address: SocketAddr::new(args.address, args.port.unwrap_or(port)),
        control_token: args.control_token,
        apps: args.apps,
    };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let simulator = Simulator::bind(options).await?;
    let info = simulator.info();
    if context.format == OutputFormat::Json {
        print_json_line(&info)?;
    } else {
        print_steps(&info)?;
    }
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    simulator.run(stop).await;
    Ok(())
}

/// Prints what to do next, in the order of the steps.
fn print_steps(info: &Value) -> Result<(), CliError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (provider, control) = (text(&info["provider"]), text(&info["control_url"]));
    print(&format!("Emulating {provider} on {}", text(&info["base_url"])))?;
    print("\nIn another terminal, add it as a tunnel with these made-up credentials:")?;
    let (settings, secrets): (&[&str], &[&str]) = match provider.as_str() {
        "slack" => (&[], &["app_token", "bot_token"]),
        "lark" => (&["app_id"], &["app_secret"]),
        "telegram" => (&[], &["token"]),
        _ => (&["app_key", "oapi_url"], &["app_secret"]),
    };
    let value = |key: &str| text(info.get(key).unwrap_or(&info["credentials"][key]));
    let entered: Vec<_> = secrets.iter().map(|key| value(key)).collect();
    let settings = settings.iter().map(|key| format!("--set {key}={}", value(key)));
    let secrets = secrets.iter().map(|key| format!("--secret {key}=stdin"));
    let base = std::iter::once(format!("--base-url {}", value("base_url")));
    let options: Vec<_> = base.chain(settings).chain(secrets).collect();
    print(&format!("  printf '%s\\n' {} |", entered.join(" ")))?;
    print(&format!("    monoco tunnel add {provider} --yes {}", options.join(" ")))?;
    print("\nSay something to the bot, and see what the bot answered:")?;
    let said = r#"{"chat":"ops","user":"ann","text":"Hello","mention":true}"#;
    print(&format!("  curl -d '{said}' {control}/say"))?;
    print(&format!("  curl {control}/sent"))?;
    print("\nCtrl-C stops the emulator; its chats are not stored. docs/sim.md describes faults.")
}

impl From<SimError> for CliError {
    fn from(error: SimError) -> Self {
        let message = error.to_string();
        match error {
            SimError::NotLoopback(_) | SimError::AppCount(_) => Self::usage(message),
            SimError::Listen { .. } => {
                Self::new(CliExit::NotPossible, message).code("listen_failed")
            }
        }
    }
}
