//! `monoco center`: messages and boxes.

use serde_json::{Map, Value, json};

use super::CliContext;
use super::client::{query, segment};
use super::failure::CliError;
use super::message::MessageArgs;
use super::output::{self, OutputFormat, note, print, shown_lines};

#[derive(Debug, clap::Subcommand)]
pub enum CenterCommand {
    /// List the boxes there are, and what waits in them
    Boxes {
        /// Most owners whose boxes to show
        #[arg(long, allow_negative_numbers = true)]
        limit: Option<i64>,
        /// Where the last page ended
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Put a message on its way to every target
    ///
    /// All targets are resolved before anything is written; one that can't be reached
    /// fails the whole send.
    Send {
        #[command(flatten)]
        message: MessageArgs,
        /// Your own name for this send; repeating it does nothing
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Not to be sent before this, such as 2026-02-06T20:45:00Z
        #[arg(long, value_name = "TIME")]
        schedule_at: Option<String>,
    },
    /// Put a message that came in into its boxes, as a tunnel does
    Dispatch {
        #[command(flatten)]
        message: MessageArgs,
        /// The tunnel it came through
        #[arg(long)]
        tunnel: Option<String>,
        /// The provider's stable id of it
        #[arg(long, requires = "tunnel")]
        external_id: Option<String>,
    },
    /// Take the next record of a box
    ///
    /// It is yours until the lease ends. Say what became of it with `state`, or for a
    /// TUNNEL_OUTBOX with `report`, and the epoch that is shown. Prints nothing and
    /// exits with 1 when nothing waits.
    Next {
        #[command(flatten)]
        place: BoxArgs,
        /// How long to hold it, in seconds
        #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
        lease: Option<i64>,
        /// Your name, for others to see who holds it
        #[arg(long)]
        holder: Option<String>,
    },
    /// Look at what `next` would give
    Peek {
        #[command(flatten)]
        place: BoxArgs,
        /// Most records to show
        #[arg(short, default_value_t = 1, allow_negative_numbers = true)]
        n: i64,
    },
    /// List a box, the newest first
    List {
        #[command(flatten)]
        place: BoxArgs,
        /// Only these states, separated by commas
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one record or delivery
    Show {
        /// rec_… or dlv_…
        record: String,
    },
    /// Move a record or a delivery to another state
    State {
        /// rec_… or dlv_…
        record: String,
        /// Such as READED, UNREAD, ARCHIVED; for a delivery WAIT or HELD
        state: String,
        /// The epoch you were given when you took it
        #[arg(long, allow_negative_numbers = true)]
        epoch: Option<i64>,
        /// Only if it still has this revision
        #[arg(long, allow_negative_numbers = true)]
        revision: Option<i64>,
        /// Your name, as you gave it when you took it
        #[arg(long)]
        holder: Option<String>,
    },
    /// Say what came of a delivery
    Report {
        /// dlv_…
        delivery: String,
        /// The provider took it
        #[arg(long, conflicts_with = "error", required_unless_present = "error")]
        ok: bool,
        /// The provider's own id of the message
        #[arg(long, requires = "ok")]
        external_id: Option<String>,
        /// What the provider said when it did not
        #[arg(long)]
        error: Option<String>,
        /// Another try may work
        #[arg(long, requires = "error", conflicts_with = "permanent")]
        retryable: bool,
        /// No try will work
        #[arg(long, requires = "error")]
        permanent: bool,
        /// How long the provider asked to wait, in milliseconds
        #[arg(long, value_name = "MS", requires = "retryable")]
        retry_after: Option<u64>,
        /// The epoch you were given when you took it
        #[arg(long, allow_negative_numbers = true)]
        epoch: Option<i64>,
        /// Your name, as you gave it when you took it
        #[arg(long)]
        holder: Option<String>,
    },
    /// Print an object
    Object {
        /// cymsg:…, cymsgr:… or sha256:…
        id: String,
    },
    /// Show or set how far the readers of a group are with a message
    Receipts {
        /// The group's DID
        group: String,
        /// The message
        msg_id: String,
        /// Only this reader; needed to set a state
        #[arg(long, value_name = "DID")]
        reader: Option<String>,
        /// UNREAD, READING, READED, ACCEPTED, REJECTED or QUARANTINED
        #[arg(long, value_name = "STATE", requires = "reader")]
        set: Option<String>,
    },
    /// List an owner's conversations, or show one
    Sessions {
        /// Whose
        #[arg(default_value = "did:monoco:me")]
        owner: String,
        /// Only the conversation with this party
        #[arg(long, value_name = "DID")]
        with: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List the tunnels
    Tunnels,
}

/// A box of an owner.
#[derive(Debug, clap::Args)]
pub struct BoxArgs {
    /// Whose box
    #[arg(default_value = "did:monoco:me")]
    owner: String,
    /// INBOX, OUTBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX
    #[arg(default_value = "INBOX", value_name = "BOX")]
    box_kind: String,
}

impl BoxArgs {
    fn path(&self) -> String {
        let Self { owner, box_kind } = self;
        format!("/api/v1/boxes/{}/{}", segment(owner), segment(box_kind))
    }
}

/// Which part of a list.
#[derive(Debug, clap::Args)]
pub struct PageArgs {
    /// Most entries to show
    #[arg(long, allow_negative_numbers = true)]
    limit: Option<i64>,
    /// Where the last page ended
    #[arg(long)]
    cursor: Option<String>,
    /// Start with the oldest
    #[arg(long)]
    oldest: bool,
}

impl PageArgs {
    pub fn query(self, more: &[(&str, Option<String>)]) -> String {
        let mut parameters = more.to_vec();
        parameters.push(("limit", self.limit.map(|limit| limit.to_string())));
        parameters.push(("cursor", self.cursor));
        parameters.push(("order", self.oldest.then(|| "oldest".to_owned())));
        query(&parameters)
    }
}

const RECORD: [(&str, &str); 7] = [
    ("record", "record_id"),
    ("box", "box"),
    ("state", "state"),
    ("owner", "owner"),
    ("with", "session"),
    ("target", "delivery.target"),
    ("created", "created_at_ms"),
];

const RECORD_FIELDS: [(&str, &str); 18] = [
    ("record", "record_id"),
    ("msg", "msg_id"),
    ("owner", "owner"),
    ("box", "box"),
    ("state", "state"),
    ("epoch", "epoch"),
    ("attempts", "attempts"),
    ("revision", "revision"),
    ("holder", "lease.holder"),
    ("until", "lease.until_ms"),
    ("with", "session"),
    ("tags", "tags"),
    ("tunnel", "tunnel"),
    ("target", "delivery.target"),
    ("due", "delivery.due_at_ms"),
    ("failure", "delivery.failure.detail"),
    ("external id", "delivery.external_msg_id"),
    ("created", "created_at_ms"),
];

pub async fn run(context: &CliContext, command: CenterCommand) -> Result<(), CliError> {
    let format = context.format;
    let client = context.client()?;
    match command {
        CenterCommand::Boxes { limit, cursor } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = query(&[("limit", limit), ("cursor", cursor)]);
            let answer = client.get(&format!("/api/v1/boxes{query}")).await?;
            let columns = [("owner", "owner"), ("box", "box"), ("waiting", "waiting")];
            output::list(format, &answer, "boxes", &columns)
        }
        CenterCommand::Send { message, idempotency_key, schedule_at } => {
            let body = fields([
                ("msg", Some(message.read()?)),
                ("idempotency_key", idempotency_key.map(Value::from)),
                ("schedule_at", schedule_at.map(Value::from)),
            ]);
            let answer = client.post("/api/v1/post_send", &body).await?;
            accepted(format, &answer, "deliveries", "target")
        }
        CenterCommand::Dispatch { message, tunnel, external_id } => {
            let ingress = fields([
                ("tunnel", tunnel.map(Value::from)),
                ("external_id", external_id.map(Value::from)),
            ]);
            let body = fields([("msg", Some(message.read()?)), ("ingress", Some(ingress))]);
            let answer = client.post("/api/v1/dispatch", &body).await?;
            accepted(format, &answer, "delivered", "owner")
        }
        CenterCommand::Next { place, lease, holder } => {
            let body =
                fields([("lease_s", lease.map(Value::from)), ("holder", holder.map(Value::from))]);
            let answer = client.post(&format!("{}/next", place.path()), &body).await?;
            if answer.is_null() {
                return Err(CliError::new(
                    super::failure::CliExit::NotPossible,
                    format!("nothing waits in {} of {}", place.box_kind, place.owner),
                ));
            }
            taken(format, &answer)
        }
        CenterCommand::Peek { place, n } => {
            let path = format!("{}/peek?n={n}", place.path());
            output::list(format, &client.get(&path).await?, "records", &RECORD)
        }
        CenterCommand::List { place, state, page } => {
            let path = format!("{}{}", place.path(), page.query(&[("state", state)]));
            output::list(format, &client.get(&path).await?, "records", &RECORD)
        }
        CenterCommand::Show { record } => {
            let answer = client.get(&format!("/api/v1/records/{}", segment(&record))).await?;
            output::one(format, &answer, "record_id", &RECORD_FIELDS)
        }
        CenterCommand::State { record, state, epoch, revision, holder } => {
            let body = fields([
                ("state", Some(state.into())),
                ("epoch", epoch.map(Value::from)),
                ("revision", revision.map(Value::from)),
                ("holder", holder.map(Value::from)),
            ]);
            let path = format!("/api/v1/records/{}/state", segment(&record));
            let answer = client.post(&path, &body).await?;
            output::one(format, &answer, "record_id", &RECORD_FIELDS)
        }
        CenterCommand::Report {
            delivery,
            ok,
            external_id,
            error,
            retryable,
            permanent,
            retry_after,
            epoch,
            holder,
        } => {
            let retryable = (retryable || permanent).then_some(retryable);
            let body = fields([
                ("ok", Some(ok.into())),
                ("external_msg_id", external_id.map(Value::from)),
                ("error", error.map(Value::from)),
                ("retryable", retryable.map(Value::from)),
                ("retry_after_ms", retry_after.map(Value::from)),
                ("epoch", epoch.map(Value::from)),
                ("holder", holder.map(Value::from)),
            ]);
            let path = format!("/api/v1/deliveries/{}/report", segment(&delivery));
            let answer = client.post(&path, &body).await?;
            output::one(format, &answer, "record_id", &RECORD_FIELDS)
        }
        CenterCommand::Object { id } => {
            let answer = client.get(&format!("/api/v1/objects/{}", segment(&id))).await?;
            print(&output::json(&answer))
        }
        CenterCommand::Receipts { group, msg_id, reader, set } => {
            let path = format!("/api/v1/groups/{}/receipts", segment(&group));
            let columns =
                [("reader", "reader"), ("state", "state"), ("at", "at_ms"), ("id", "receipt_id")];
            if let Some(state) = set {
                let body = json!({"msg_id": msg_id, "reader": reader, "state": state});
                let answer = client.put(&path, &body).await?;
                return output::one(format, &answer, "receipt_id", &columns);
            }
            let path = path + &query(&[("msg_id", Some(msg_id)), ("reader", reader)]);
            output::list(format, &client.get(&path).await?, "receipts", &columns)
        }
        CenterCommand::Sessions { owner, with, page } => {
            let query = page.query(&[("owner", Some(owner))]);
            let Some(peer) = with else {
                let columns = [
                    ("with", "id"),
                    ("name", "name"),
                    ("unread", "unread"),
                    ("last", "last.msg.content.content"),
                    ("at", "last.record.created_at_ms"),
                ];
                let answer = client.get(&format!("/api/v1/sessions{query}")).await?;
                return output::list(format, &answer, "sessions", &columns);
            };
            let columns = [
                ("record", "record.record_id"),
                ("way", "direction"),
                ("state", "record.state"),
                ("delivery", "delivery_state"),
                ("at", "record.created_at_ms"),
                ("text", "msg.content.content"),
            ];
            let path = format!("/api/v1/sessions/{}{query}", segment(&peer));
            output::list(format, &client.get(&path).await?, "lines", &columns)
        }
        CenterCommand::Tunnels => {
            let columns = [
                ("id", "id"),
                ("provider", "provider"),
                ("strangers", "strangers"),
                ("idempotent", "idempotent"),
                ("did", "did"),
            ];
            let answer = client.get("/api/v1/tunnels").await?;
            output::list(format, &answer, "tunnels", &columns)
        }
    }
}

/// An object of the fields that have a value.
fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(present.collect::<Map<_, _>>())
}

/// What became of a message, in words.
fn accepted(format: OutputFormat, answer: &Value, key: &str, who: &str) -> Result<(), CliError> {
    if answer.get("ok") != Some(&Value::Bool(true)) {
        let reason = answer.get("reason").and_then(Value::as_str).unwrap_or("refused");
        let message = format!("not delivered: {reason}");
        return Err(CliError::new(super::failure::CliExit::NotPossible, message));
    }
    if format == OutputFormat::Table && answer.get("duplicate") == Some(&Value::Bool(true)) {
        note("it had come before; nothing was done");
    }
    if format != OutputFormat::Table {
        return output::one(format, answer, "msg_id", &[("msg", "msg_id")]);
    }
    output::one(format, answer, "msg_id", &[("msg", "msg_id"), ("letter", "letter")])?;
    output::list(format, answer, key, &[("record", "record_id"), ("to", who)])
}

/// A record that was taken, with what was said.
fn taken(format: OutputFormat, answer: &Value) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => print(&output::json(answer)),
        OutputFormat::Id | OutputFormat::Compact => {
            let record = &answer["record"];
            output::one(format, record, "record_id", &RECORD_FIELDS)
        }
        OutputFormat::Table => {
            output::one(format, &answer["record"], "record_id", &RECORD_FIELDS)?;
            let msg = &answer["msg"];
            output::one(format, msg, "from", &[("from", "from"), ("title", "content.title")])?;
            let text = msg["content"]["content"].as_str().unwrap_or_default();
            print(&format!("\n{}", shown_lines(text)))
        }
    }
}
