//! `monoco mailbox send`: a draft for the courier.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoco_core::claim::MailLocation;
use monoco_core::did::{Did, TunnelId};
use monoco_core::draft::Draft;
use monoco_core::mail::MailId;
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::{MailboxContext, random};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, print, shown};
use crate::config::ConfigSource;
use monoco_mailbox::draft::{self, DraftStatus, NewDraft};

/// How often to look what became of a draft.
const LOOK: Duration = Duration::from_millis(100);

/// How long a draft may be on its way between two directories.
const MOVING: u32 = 20;

#[derive(Debug, clap::Args)]
pub struct SendArgs {
    /// To whom: an account, user:ACCOUNT, group:ACCOUNT, or a DID (can be repeated)
    #[arg(long, value_name = "WHOM")]
    to: Vec<String>,
    /// Who else is to know (can be repeated)
    #[arg(long, value_name = "WHOM")]
    cc: Vec<String>,
    /// Who else, unknown to the others (can be repeated)
    #[arg(long, value_name = "WHOM")]
    bcc: Vec<String>,
    /// The tunnel that the accounts are on
    #[arg(long)]
    tunnel: Option<String>,
    /// The provider, where neither the tunnel nor the answered Mail says it
    #[arg(long)]
    provider: Option<String>,
    /// The Mail it answers; goes back to where that came from
    #[arg(long, value_name = "ID")]
    reply_to: Option<String>,
    /// The thread it belongs to
    #[arg(long, value_name = "KEY")]
    thread_key: Option<String>,
    /// Its subject
    #[arg(long)]
    title: Option<String>,
    /// What to say; without it or with - it is read from stdin
    #[arg(long, short = 'm')]
    text: Option<String>,
    /// A file to go with it (can be repeated)
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Not before this, RFC 3339
    #[arg(long, value_name = "TIME")]
    schedule_at: Option<String>,
    /// Without a sound, where the provider can
    #[arg(long)]
    silent: bool,
    /// With more noise than usual, where the provider can
    #[arg(long)]
    urgent: bool,
    /// What to file it under
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// Your own name for this send: a second one with the same name is not sent
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// A file that is a draft already; - reads it from stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "to", "cc", "bcc", "tunnel", "reply_to", "thread_key", "title", "text", "attach",
        "schedule_at", "silent", "urgent", "correlation_id", "idempotency_key",
    ])]
    draft: Option<PathBuf>,
    /// Wait until it is sent or given up, and say which
    #[arg(long)]
    wait: bool,
    /// How many seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "wait")]
    timeout: u64,
}

pub async fn run(desk: &MailboxContext<'_>, args: SendArgs) -> Result<(), CliError> {
    let (wait, timeout) = (args.wait, Duration::from_secs(args.timeout));
    let (file, provider) = compose(desk, args)?;
    let path = draft::post(desk.tree.root(), &provider, &file, desk.now(), random()?)?;
    if !wait {
        return show(desk.context.format, &json!({"status": "waiting", "file": path}));
    }
    let (status, path, outcome) = follow(desk, &path, timeout).await?;
    show(desk.context.format, &json!({"status": status, "file": path, "outcome": outcome}))?;
    if status == "archived" {
        return Ok(());
    }
    Err(CliError::new(CliExit::NotPossible, format!("it could not be sent: {}", why(&outcome)))
        .hint("set it right and put it into the outbound directory again"))
}

/// Why a draft was given up, with what the first delivery that failed says.
fn why(outcome: &Value) -> String {
    let reason = outcome.get("reason").and_then(Value::as_str).unwrap_or("its file says why");
    let deliveries = outcome.get("deliveries").and_then(Value::as_array);
    let errors = deliveries.into_iter().flatten().filter_map(|it| it.get("error")?.as_str());
    let details: Vec<_> = errors.take(1).collect();
    [&[reason], details.as_slice()].concat().join(": ")
}

fn show(format: OutputFormat, answer: &Value) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => print(&output::json(answer)),
        _ => {
            let status = answer.get("status").and_then(Value::as_str).unwrap_or_default();
            let file = answer.get("file").and_then(Value::as_str).unwrap_or_default();
            let told = if status == "waiting" { String::new() } else { format!("{status}\t") };
            let letter = answer.pointer("/outcome/letter").and_then(Value::as_str);
            let letter = letter.map(|id| format!("\t{}", shown(id))).unwrap_or_default();
            print(&format!("{told}{}{letter}", shown(file)))
        }
    }
}

/// The file of the draft, and the provider in whose directory it goes.
fn compose(desk: &MailboxContext<'_>, args: SendArgs) -> Result<(String, String), CliError> {
    if let Some(path) = &args.draft {
        let file = if path.as_os_str() == "-" { stdin()? } else { text_of(path)? };
        let draft = Draft::parse(&file).map_err(|error| {
            CliError::new(CliExit::NotPossible, format!("{}: {error}", path.display()))
        })?;
        let provider = provider(
            desk,
            args.provider.or(draft.provider),
            draft.reply_to.as_ref(),
            draft.tunnel.as_ref(),
            &draft.to,
        )?;
        return Ok((file, provider));
    }
    let reply_to = args.reply_to.map(|id| desk.id(&id)).transpose()?;
    let tunnel: Option<TunnelId> = match &args.tunnel {
        Some(name) => Some(
            name.parse()
                .map_err(|_| CliError::usage(format!("{name:?} can't be the name of a tunnel")))?,
        ),
        None => None,
    };
    let schedule_at = args.schedule_at.map(|text| {
        Timestamp::from_rfc3339(&text)
            .map_err(|error| CliError::usage(format!("--schedule-at {text:?}: {error}")))
    });
    let provider = provider(desk, args.provider, reply_to.as_ref(), tunnel.as_ref(), &args.to)?;
    let text = match args.text.as_deref() {
        Some("-") => stdin()?,
        Some(text) => text.to_owned(),
        // Whoever attaches something need not say anything.
        None if !args.attach.is_empty() && std::io::stdin().is_terminal() => String::new(),
        None => stdin()?,
    };
    let mut artifacts = Vec::new();
    for file in &args.attach {
        artifacts.push(draft::attach(&desk.context.home.dropzone(), file, random()?)?);
    }
    let letter = NewDraft {
        to: args.to,
        cc: args.cc,
        bcc: args.bcc,
        tunnel: args.tunnel,
        reply_to,
        thread_key: args.thread_key,
        title: args.title,
        text: text.trim_end_matches('\n').to_owned(),
        artifacts,
        silent: args.silent,
        urgent: args.urgent,
        schedule_at: schedule_at.transpose()?,
        correlation_id: args.correlation_id,
        idempotency_key: args.idempotency_key,
    };
    Ok((letter.render(), provider))
}

/// Whose directory a draft goes into: as said, or as the Mail it answers, the tunnel or
/// the addresses say, or the only one there is.
fn provider(
    desk: &MailboxContext<'_>,
    said: Option<String>,
    reply_to: Option<&MailId>,
    tunnel: Option<&TunnelId>,
    to: &[String],
) -> Result<String, CliError> {
    if let Some(provider) = said.or_else(|| reply_to.map(|id| id.provider().to_owned())) {
        let fine = !provider.is_empty()
            && provider.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        return if fine {
            Ok(provider)
        } else {
            Err(CliError::usage(format!("{provider:?} can't be a provider")))
        };
    }
    let addressed = to.iter().find_map(|to| to.parse::<Did>().ok()?.tunnel());
    let tunnel = tunnel.or(addressed.as_ref());
    // Secrets may be in variables that only the courier has; then it must be said.
    let config = ConfigSource::of(&desk.context.home).load().ok();
    let tunnels = config.as_ref().map(|config| &config.tunnels);
    let configured = |id: &TunnelId| Some(tunnels?.get(id)?.provider);
    let mut all: BTreeSet<_> =
        tunnels.into_iter().flat_map(|it| it.values()).map(|it| it.provider).collect();
    if all.len() > 1 {
        // It only plays, and is always there.
        all.remove("stub");
    }
    let found = match tunnel {
        Some(tunnel) => configured(tunnel),
        None => all.first().filter(|_| all.len() == 1).copied(),
    };
    found.map(str::to_owned).ok_or_else(|| {
        let unclear = match tunnel {
            Some(tunnel) => format!("which provider the tunnel {tunnel} has can't be seen here"),
            None => "it is not clear which provider this goes through".to_owned(),
        };
        CliError::usage(unclear).hint("name it with --provider, such as --provider webhook")
    })
}

/// Waits until a draft has come to rest.
async fn follow(
    desk: &MailboxContext<'_>,
    path: &Path,
    timeout: Duration,
) -> Result<(&'static str, PathBuf, Value), CliError> {
    let deadline = tokio::time::Instant::now() + timeout;
    let mut lost = 0;
    loop {
        match draft::fate(desk.tree.root(), path)? {
            DraftStatus::Settled { place: MailLocation::Archive, path, outcome } => {
                return Ok(("archived", path, outcome));
            }
            DraftStatus::Settled { path, outcome, .. } => return Ok(("dead", path, outcome)),
            DraftStatus::Waiting => lost = 0,
            DraftStatus::Gone => lost += 1,
        }
        if lost > MOVING {
            let message = format!("{} is gone, and nobody says where to", path.display());
            return Err(CliError::new(CliExit::NotPossible, message));
        }
        if tokio::time::Instant::now() >= deadline {
            let message = format!("{} is not sent yet", path.display());
            let failure = CliError::new(CliExit::NotPossible, message);
            return Err(if desk.context.client().is_ok() {
                failure.hint("the courier goes on trying; the file moves when it is done")
            } else {
                failure.hint("no courier is running; `monoco courier start` starts one")
            });
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn text_of(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| {
        CliError::new(CliExit::NotPossible, format!("{}: {error}", path.display()))
    })
}

fn stdin() -> Result<String, CliError> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}
