//! `monoco mailbox send`: writes a draft for the courier and waits for its result.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use monoco_core::claim::MailLocation;
use monoco_core::did::{Did, TunnelId};
use monoco_core::draft::Draft;
use monoco_core::mail::MailId;
use monoco_core::time::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{MailboxContext, random, read_one_id, send_check, send_remote};
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, escape_line, print};
use monoco_courier::api::views::tunnels::TunnelList;
use monoco_courier::config::ConfigSource;
use monoco_mailbox::draft::{self, AttachedFile, DraftStatus, NewDraft};

/// How often `--wait` checks the draft.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Checks in a row without a file before the draft counts as lost: the courier moves it
/// between directories.
const MAX_MISSING_CHECKS: u32 = 20;

#[derive(Debug, Default, clap::Args)]
pub struct SendArgs {
    /// Recipient: an account, user:ACCOUNT, group:ACCOUNT or a DID (can be repeated)
    #[arg(long, value_name = "WHOM")]
    to: Vec<String>,
    /// Recipient of a copy (can be repeated)
    #[arg(long, value_name = "WHOM")]
    cc: Vec<String>,
    /// Recipient of a copy, hidden from the others (can be repeated)
    #[arg(long, value_name = "WHOM")]
    bcc: Vec<String>,
    /// Id of the tunnel of the accounts
    #[arg(long)]
    tunnel: Option<String>,
    /// Provider, such as webhook [default: provider of the tunnel or the answered Mail]
    #[arg(long)]
    provider: Option<String>,
    /// Id of the Mail to answer; the answer goes to its session
    #[arg(long, value_name = "ID")]
    reply_to: Option<String>,
    /// Key of the thread it belongs to
    #[arg(long, value_name = "KEY")]
    thread_key: Option<String>,
    /// Subject of the message
    #[arg(long)]
    title: Option<String>,
    /// Text of the message; - reads it from stdin [default: stdin]
    #[arg(long, short = 'm')]
    text: Option<String>,
    /// File to attach (can be repeated)
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Earliest time to send, in RFC 3339
    #[arg(long, value_name = "TIME")]
    schedule_at: Option<String>,
    /// Send without a notification sound, if the provider supports it
    #[arg(long)]
    silent: bool,
    /// Send with high priority, if the provider supports it
    #[arg(long)]
    urgent: bool,
    /// Correlation id of the message
    #[arg(long, value_name = "ID")]
    correlation_id: Option<String>,
    /// Idempotency key: a second message with this key is not sent
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// File with a complete draft; - reads it from stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "to", "cc", "bcc", "tunnel", "reply_to", "thread_key", "title", "text", "attach",
        "schedule_at", "silent", "urgent", "correlation_id", "idempotency_key",
    ])]
    draft: Option<PathBuf>,
    /// Wait until the message is sent or has failed, and print the result
    #[arg(long)]
    wait: bool,
    /// Maximum number of seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "wait")]
    timeout: u64,
}

#[derive(Debug, clap::Args)]
pub struct ReplyArgs {
    /// Id of the Mail to answer, or a unique prefix; - reads it from stdin
    id: String,
    /// Text of the answer; - reads it from stdin [default: stdin]
    #[arg(long, short = 'm')]
    text: Option<String>,
    /// Subject of the answer
    #[arg(long)]
    title: Option<String>,
    /// File to attach (can be repeated)
    #[arg(long, value_name = "FILE")]
    attach: Vec<PathBuf>,
    /// Idempotency key: a second message with this key is not sent
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Wait until the answer is sent or has failed, and print the result
    #[arg(long)]
    wait: bool,
    /// Maximum number of seconds to wait
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "wait")]
    timeout: u64,
}

pub async fn reply(mailbox: &MailboxContext<'_>, args: ReplyArgs) -> Result<(), CliError> {
    let id = read_one_id(args.id)?;
    let ReplyArgs { text, title, attach, idempotency_key, wait, timeout, .. } = args;
    let args = SendArgs {
        reply_to: Some(id),
        text,
        title,
        attach,
        idempotency_key,
        wait,
        timeout,
        ..SendArgs::default()
    };
    run(mailbox, args).await
}

pub async fn run(mailbox: &MailboxContext<'_>, args: SendArgs) -> Result<(), CliError> {
    let (wait, timeout) = (args.wait, Duration::from_secs(args.timeout));
    if let Some(remote) = &mailbox.remote {
        let wait = wait.then_some(timeout);
        if args.is_plain_reply() {
            return send_remote::reply(mailbox, args.into_reply(mailbox)?, wait).await;
        }
        let list: TunnelList = mailbox.context.client()?.get("/api/v1/tunnels").await?;
        let tunnels = list.tunnels.into_iter();
        let tunnels = tunnels.filter_map(|it| Some((it.id.parse().ok()?, it.provider)));
        let composed = compose(mailbox, args, Some(tunnels.collect()))?;
        return send_remote::send(mailbox, remote, composed, wait).await;
    }
    // The config may need variables that only the courier has; then --provider is required.
    let config = ConfigSource::of(&mailbox.context.home).load().ok();
    let tunnels = config.map(|config| {
        config.tunnels.into_iter().map(|(id, tunnel)| (id, tunnel.provider.to_owned())).collect()
    });
    let ComposedDraft { file, provider, attached, .. } = compose(mailbox, args, tunnels)?;
    send_check::check(mailbox, &file, &provider, &attached).await?;
    for attachment in &attached {
        attachment.store(&mailbox.context.home.dropzone(), random()?)?;
    }
    let path = draft::post(mailbox.paths.root(), &provider, &file, mailbox.now(), random()?)?;
    if !wait {
        return show(
            mailbox.context.format,
            &SendReport { status: "waiting", file: path, outcome: None },
        );
    }
    let report = follow(mailbox, &path, timeout).await?;
    show(mailbox.context.format, &report)?;
    if report.status == "sent" {
        return Ok(());
    }
    let outcome = report.outcome.unwrap_or_default();
    Err(CliError::new(CliExit::NotPossible, format!("message not sent: {}", why(&outcome)))
        .hint("fix the draft and move it to the outbound directory again"))
}

/// Formats why a draft failed, with the error of the first failed delivery.
fn why(outcome: &Value) -> String {
    let reason =
        outcome.get("reason").and_then(Value::as_str).unwrap_or("see the reason in its file");
    let deliveries = outcome.get("deliveries").and_then(Value::as_array);
    let errors = deliveries.into_iter().flatten().filter_map(|it| it.get("error")?.as_str());
    let details: Vec<_> = errors.take(1).collect();
    [&[reason], details.as_slice()].concat().join(": ")
}

/// Status and file of a draft.
#[derive(Serialize)]
struct SendReport {
    /// `waiting`, `sent` or `dead`
    status: &'static str,
    file: PathBuf,
    /// Content of the result file beside an archived or dead draft
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Value>,
}

fn show(format: OutputFormat, report: &SendReport) -> Result<(), CliError> {
    if format == OutputFormat::Json {
        return output::print_json(report);
    }
    let letter = report.outcome.as_ref().and_then(|outcome| outcome.get("letter")?.as_str());
    let mut words = vec![escape_line(&report.file.display().to_string())];
    if report.status != "waiting" {
        words.insert(0, report.status.to_owned());
    }
    words.extend(letter.map(escape_line));
    print(&words.join("\t"))
}

/// A draft that is not written yet.
pub struct ComposedDraft {
    /// Content of the file.
    pub file: String,
    pub provider: String,
    pub attached: Vec<AttachedFile>,
    /// The tunnels of the courier, if they are known.
    pub tunnels: Option<TunnelProviders>,
}

/// The provider of each tunnel.
pub type TunnelProviders = BTreeMap<TunnelId, String>;

/// An answer that goes exactly to the `answer_to` of a Mail.
pub struct SendReply {
    pub id: MailId,
    pub text: String,
    pub title: Option<String>,
    pub attached: Vec<AttachedFile>,
    pub idempotency_key: Option<String>,
}

impl SendArgs {
    /// Whether the message is an answer without other recipients and options.
    const fn is_plain_reply(&self) -> bool {
        self.reply_to.is_some()
            && self.to.is_empty()
            && self.cc.is_empty()
            && self.bcc.is_empty()
            && self.tunnel.is_none()
            && self.thread_key.is_none()
            && self.schedule_at.is_none()
            && self.correlation_id.is_none()
            && !self.silent
            && !self.urgent
    }

    fn into_reply(self, mailbox: &MailboxContext<'_>) -> Result<SendReply, CliError> {
        let id = mailbox.id(self.reply_to.as_deref().unwrap_or_default())?;
        let text = self.read_text()?;
        let attached: Result<Vec<_>, _> =
            self.attach.iter().map(|file| draft::read_attachment(file)).collect();
        let Self { title, idempotency_key, .. } = self;
        Ok(SendReply { id, text, title, attached: attached?, idempotency_key })
    }

    /// The text of the option or of stdin, without line ends at its end.
    fn read_text(&self) -> Result<String, CliError> {
        let text = match self.text.as_deref() {
            Some("-") => stdin()?,
            Some(text) => text.to_owned(),
            // A message with an attachment needs no text.
            None if !self.attach.is_empty() && std::io::stdin().is_terminal() => String::new(),
            None => stdin()?,
        };
        Ok(text.trim_end_matches('\n').to_owned())
    }
}

fn compose(
    mailbox: &MailboxContext<'_>,
    args: SendArgs,
    tunnels: Option<TunnelProviders>,
) -> Result<ComposedDraft, CliError> {
    if let Some(path) = &args.draft {
        let file = if path.as_os_str() == "-" { stdin()? } else { text_of(path)? };
        let draft = Draft::parse(&file).map_err(|error| {
            CliError::new(
                CliExit::NotPossible,
                format!("invalid draft {}: {error}", path.display()),
            )
        })?;
        let provider = provider(
            tunnels.as_ref(),
            args.provider.or(draft.provider),
            draft.reply_to.as_ref(),
            draft.tunnel.as_ref(),
            &draft.to,
        )?;
        return Ok(ComposedDraft { file, provider, attached: Vec::new(), tunnels });
    }
    let text = args.read_text()?;
    let reply_to = args.reply_to.map(|id| mailbox.id(&id)).transpose()?;
    let tunnel: Option<TunnelId> = match &args.tunnel {
        Some(name) => {
            Some(name.parse().map_err(|_| CliError::usage(format!("invalid tunnel id {name:?}")))?)
        }
        None => None,
    };
    let schedule_at = args.schedule_at.map(|text| {
        Timestamp::from_rfc3339(&text)
            .map_err(|error| CliError::usage(format!("--schedule-at {text:?}: {error}")))
    });
    let provider =
        provider(tunnels.as_ref(), args.provider, reply_to.as_ref(), tunnel.as_ref(), &args.to)?;
    let attached: Result<Vec<_>, _> =
        args.attach.iter().map(|file| draft::read_attachment(file)).collect();
    let attached = attached?;
    let artifacts = attached.iter().map(|file| file.attachment.clone()).collect();
    let draft = NewDraft {
        to: args.to,
        cc: args.cc,
        bcc: args.bcc,
        tunnel: args.tunnel,
        reply_to,
        thread_key: args.thread_key,
        title: args.title,
        text,
        artifacts,
        silent: args.silent,
        urgent: args.urgent,
        schedule_at: schedule_at.transpose()?,
        correlation_id: args.correlation_id,
        idempotency_key: args.idempotency_key,
    };
    Ok(ComposedDraft { file: draft.render(), provider, attached, tunnels })
}

/// Selects the provider directory of a draft: the option, the provider of the answered Mail,
/// of the tunnel or of the recipients, or the only configured provider.
fn provider(
    tunnels: Option<&TunnelProviders>,
    option: Option<String>,
    reply_to: Option<&MailId>,
    tunnel: Option<&TunnelId>,
    to: &[String],
) -> Result<String, CliError> {
    if let Some(provider) = option.or_else(|| reply_to.map(|id| id.provider().to_owned())) {
        let valid = !provider.is_empty()
            && provider.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        return if valid {
            Ok(provider)
        } else {
            Err(CliError::usage(format!(
                "invalid provider {provider:?}; expected lower-case letters and digits"
            )))
        };
    }
    let addressed = to.iter().find_map(|to| to.parse::<Did>().ok()?.tunnel());
    let tunnel = tunnel.or(addressed.as_ref());
    let configured = |id: &TunnelId| tunnels?.get(id).map(String::as_str);
    let mut all: BTreeSet<_> =
        tunnels.into_iter().flat_map(|it| it.values()).map(String::as_str).collect();
    if all.len() > 1 {
        // The stub provider is always configured.
        all.remove("stub");
    }
    let found = match tunnel {
        Some(tunnel) => configured(tunnel),
        None => all.first().filter(|_| all.len() == 1).copied(),
    };
    found.map(str::to_owned).ok_or_else(|| match tunnel {
        Some(tunnel) if tunnels.is_some() => {
            let message = format!("not sent: there is no tunnel {tunnel}");
            CliError::new(CliExit::NotPossible, message)
                .hint("`monoco tunnel list` lists all tunnels")
        }
        Some(tunnel) => needs_provider(&format!("of tunnel {tunnel}")),
        None => needs_provider("of this message"),
    })
}

fn needs_provider(of: &str) -> CliError {
    CliError::usage(format!("cannot determine the provider {of}"))
        .hint("pass --provider, such as --provider webhook")
}

/// Waits until a draft is archived or dead.
async fn follow(
    mailbox: &MailboxContext<'_>,
    path: &Path,
    timeout: Duration,
) -> Result<SendReport, CliError> {
    let deadline = tokio::time::Instant::now() + timeout;
    let mut missing = 0;
    loop {
        match draft::fate(mailbox.paths.root(), path)? {
            DraftStatus::Settled { place: MailLocation::Archive, path, outcome } => {
                return Ok(SendReport { status: "sent", file: path, outcome: Some(outcome) });
            }
            DraftStatus::Settled { path, outcome, .. } => {
                return Ok(SendReport { status: "dead", file: path, outcome: Some(outcome) });
            }
            DraftStatus::Waiting => missing = 0,
            DraftStatus::Gone => missing += 1,
        }
        if missing > MAX_MISSING_CHECKS {
            let message = format!("{} was removed and has no result", path.display());
            return Err(CliError::new(CliExit::NotPossible, message));
        }
        if tokio::time::Instant::now() >= deadline {
            let message = format!("{} was not sent within the timeout", path.display());
            let failure = CliError::new(CliExit::NotPossible, message);
            return Err(if mailbox.context.client().is_ok() {
                failure.hint("the courier keeps trying; it moves the file when the message is sent or has failed")
            } else {
                failure.hint("no courier is running; start it with `monoco courier start`")
            });
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn text_of(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| {
        CliError::new(CliExit::NotPossible, format!("cannot read {}: {error}", path.display()))
    })
}

fn stdin() -> Result<String, CliError> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}
