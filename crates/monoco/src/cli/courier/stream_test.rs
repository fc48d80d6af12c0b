//! `monoco courier stream-test`: connects with the config of a tunnel and shows what arrives.
//!
//! Nothing is stored, so nothing is acknowledged: the provider sends it again.

use std::pin::Pin;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use monoco_adapters::{ConnectionEvent, InboundError, InboundPage, InboundSink, PageResult};
use monoco_core::did::TunnelId;
use monoco_core::inbound::{
    ChatPosition, InboundAttachment, InboundEvent, InboundMessage, StoredBytes,
};
use serde_json::{Value, json};
use tokio::io::AsyncRead;
use tokio_util::sync::CancellationToken;

use crate::cli::CliContext;
use crate::cli::failure::{CliError, CliExit};
use crate::cli::output::{self, OutputFormat, escape_line, note, print};
use crate::cli::tunnel::file::{self, ConfigFileArgs};
use monoco_courier::clock::wall_now;
use monoco_courier::config::parse_duration;

/// How long an adapter may take to close its connections.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest part of a text that is shown, in characters.
const MAX_SHOWN_CHARS: usize = 120;

#[derive(Debug, clap::Args)]
pub struct StreamTestArgs {
    /// Id of the tunnel
    tunnel: String,
    /// How long to listen, such as 30s or 5m
    #[arg(long, default_value = "30s")]
    duration: String,
    #[command(flatten)]
    config: ConfigFileArgs,
}

pub async fn run(context: &CliContext, args: StreamTestArgs) -> Result<(), CliError> {
    let length = parse_duration(&args.duration).ok_or_else(|| {
        CliError::usage(format!(
            "--duration: found {:?}, expected such as 30s or 5m",
            args.duration
        ))
    })?;
    let id: TunnelId = args.tunnel.parse().map_err(|error| CliError::usage(format!("{error}")))?;
    let config = args.config.source(&context.home)?.load();
    let config = config.map_err(|error| CliError::new(CliExit::NotPossible, error.to_string()))?;
    let tunnel = config.tunnels.get(&id).ok_or_else(|| {
        CliError::new(CliExit::NotPossible, format!("there is no tunnel {id} in the config"))
            .hint("`monoco tunnel list` shows all tunnels")
    })?;
    let adapter = file::build(id.clone(), tunnel)?;
    if !adapter.opens_connection() {
        let message = format!("tunnel {id} opens no connection: the provider posts its messages");
        return Err(CliError::new(CliExit::NotPossible, message)
            .hint("`monoco tunnel test` tests its credentials"));
    }
    if context.home.running().is_some() && tunnel.enabled {
        note(&format!(
            "warning: the running courier may be connected with the same credentials; a provider \
             such as DingTalk, Slack, Lark or Telegram sends each message to one of them. \
             `monoco tunnel pause {id}` closes that of the courier"
        ));
    }
    let sink = PrintingSink { format: context.format, count: Mutex::new(0) };
    let stop = CancellationToken::new();
    let listen = adapter.listen(&sink, stop.clone());
    tokio::pin!(listen);
    let ended = tokio::select! {
        ended = &mut listen => Some(ended),
        () = tokio::time::sleep(length) => None,
        _ = tokio::signal::ctrl_c() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            stop.cancel();
            tokio::time::timeout(CLOSE_TIMEOUT, listen).await.unwrap_or(Ok(()))
        }
    };
    ended.map_err(|failure| {
        CliError::new(CliExit::NotPossible, failure.detail().to_owned())
            .hint(format!("`monoco tunnel test {id}` tests the credentials"))
    })?;
    note(&format!("{} events arrived; none was kept or acknowledged", sink.count()));
    Ok(())
}

/// Prints what arrives and stores nothing.
struct PrintingSink {
    format: OutputFormat,
    count: Mutex<u64>,
}

impl PrintingSink {
    fn count(&self) -> u64 {
        *self.count.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn show(&self, kind: &str, what: &Value) {
        let at = wall_now().rfc3339();
        // An error of stdout does not end the connection; the next one is reported again.
        let _ = match self.format {
            OutputFormat::Json => {
                output::print_json_line(&json!({"at": at, "kind": kind, "event": what}))
            }
            _ => print(&format!("{at}  {kind}  {}", escape_line(&summary(what)))),
        };
    }

    fn show_event(&self, event: &InboundEvent) -> InboundError {
        *self.count.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += 1;
        let (kind, what) = match event {
            InboundEvent::Message { message, attachments } => {
                let mut what = message_json(message);
                what["files"] = json!(attachments.len() + message.artifacts.len());
                ("message", what)
            }
            InboundEvent::Edit(edit) => ("edit", message_json(&edit.message)),
            InboundEvent::Recall(recall) => ("recall", json!({"id": recall.message_id})),
            InboundEvent::Notice(notice) => {
                ("notice", json!({"id": notice.id, "kind": notice.kind, "text": notice.detail}))
            }
        };
        self.show(kind, &what);
        not_kept()
    }
}

fn not_kept() -> InboundError {
    InboundError::Unavailable("a test keeps nothing".to_owned())
}

fn message_json(message: &InboundMessage) -> Value {
    json!({
        "id": message.id,
        "session": message.session.id,
        "from": message.from.id,
        "text": message.text,
    })
}

/// The values of an event on one line.
fn summary(what: &Value) -> String {
    let values = what.as_object().into_iter().flatten().map(|(key, value)| {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let shown: String = text.chars().take(MAX_SHOWN_CHARS).collect();
        format!("{key}={shown}")
    });
    values.collect::<Vec<_>>().join("  ")
}

#[async_trait]
impl InboundSink for PrintingSink {
    async fn receive(
        &self,
        message: InboundMessage,
        attachments: Vec<InboundAttachment>,
    ) -> Result<bool, InboundError> {
        Err(self.show_event(&InboundEvent::Message { message, attachments }))
    }

    async fn receive_events(&self, events: Vec<InboundEvent>) -> Vec<Result<bool, InboundError>> {
        events.iter().map(|event| Err(self.show_event(event))).collect()
    }

    async fn last_received(&self) -> Result<Vec<ChatPosition>, InboundError> {
        Ok(Vec::new())
    }

    async fn receive_page(&self, page: InboundPage) -> Result<PageResult, InboundError> {
        for mail in &page.mails {
            self.show(
                "mail",
                &json!({"folder": mail.folder, "uid": mail.uid, "text": mail.subject}),
            );
        }
        for (message, attachments) in page.messages {
            self.show_event(&InboundEvent::Message { message, attachments });
        }
        Err(not_kept())
    }

    async fn cursor(&self, _stream: &str) -> Result<Option<String>, InboundError> {
        Ok(None)
    }

    async fn store_bytes<'a>(
        &'a self,
        _bytes: Pin<Box<dyn AsyncRead + Send + 'a>>,
    ) -> Result<StoredBytes, InboundError> {
        Err(not_kept())
    }

    fn report(&self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Connected => self.show("connected", &json!({})),
            ConnectionEvent::Lost(why) => self.show("lost", &json!({ "error": why })),
            _ => {}
        }
    }
}
