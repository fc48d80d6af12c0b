//! `monoco center`: sends messages, reads boxes, and reports deliveries.

use serde_json::{Map, Value, json};

use super::CliContext;
use super::client::{query, segment};
use super::failure::CliError;
use super::message::MessageArgs;
use super::output::{self, OutputFormat, escape_lines, note, print};

#[derive(Debug, clap::Subcommand)]
pub enum CenterCommand {
    /// List all boxes with their number of waiting entries
    Boxes {
        /// Maximum number of owners to list
        #[arg(long, allow_negative_numbers = true)]
        limit: Option<i64>,
        /// Cursor printed at the end of the last page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Send a message to one or more targets
    ///
    /// Resolves every target first. If one target cannot be resolved, nothing is sent.
    Send {
        #[command(flatten)]
        message: MessageArgs,
        /// Idempotency key: a repeated send with this key returns the first result
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
        /// Earliest time to send, such as 2026-02-06T20:45:00Z
        #[arg(long, value_name = "TIME")]
        schedule_at: Option<String>,
    },
    /// Dispatch a received message into its boxes, as a tunnel does
    Dispatch {
        #[command(flatten)]
        message: MessageArgs,
        /// Id of the tunnel that received it
        #[arg(long)]
        tunnel: Option<String>,
        /// Id of the message at its provider; used to detect duplicates
        #[arg(long, requires = "tunnel")]
        external_id: Option<String>,
    },
    /// Lease the next record of a box
    ///
    /// The record is leased to you until the lease expires. End it with `state`, or for a
    /// TUNNEL_OUTBOX with `report`, and pass the epoch that is printed. Exits with 1 when
    /// the box has no waiting record.
    Next {
        #[command(flatten)]
        place: BoxArgs,
        /// Length of the lease in seconds [default: 300]
        #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
        lease: Option<i64>,
        /// Name of the holder, shown to other callers
        #[arg(long)]
        holder: Option<String>,
    },
    /// Show what `next` would lease, without leasing it
    Peek {
        #[command(flatten)]
        place: BoxArgs,
        /// Maximum number of records to show
        #[arg(short, default_value_t = 1, allow_negative_numbers = true)]
        n: i64,
    },
    /// List the records of a box, newest first
    List {
        #[command(flatten)]
        place: BoxArgs,
        /// Filter by these states, separated by commas
        #[arg(long)]
        state: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one record or delivery
    Show {
        /// Id of a record (rec_…) or delivery (dlv_…)
        record: String,
    },
    /// Set the state of a record or delivery
    State {
        /// Id of a record (rec_…) or delivery (dlv_…)
        record: String,
        /// New state, such as READED, UNREAD or ARCHIVED; for a delivery WAIT or HELD
        state: String,
        /// Epoch that `next` printed for the lease
        #[arg(long, allow_negative_numbers = true)]
        epoch: Option<i64>,
        /// Reject the change unless the record has this revision
        #[arg(long, allow_negative_numbers = true)]
        revision: Option<i64>,
        /// Holder name that was passed to `next`
        #[arg(long)]
        holder: Option<String>,
    },
    /// Report the outcome of a delivery attempt
    Report {
        /// Id of the delivery (dlv_…)
        delivery: String,
        /// Report success: the provider accepted the message
        #[arg(long, conflicts_with = "error", required_unless_present = "error")]
        ok: bool,
        /// Id that the provider gave the message
        #[arg(long, requires = "ok")]
        external_id: Option<String>,
        /// Report failure, with the error message of the provider
        #[arg(long)]
        error: Option<String>,
        /// The failure is temporary: retry later
        #[arg(long, requires = "error", conflicts_with = "permanent")]
        retryable: bool,
        /// The failure is permanent: do not retry
        #[arg(long, requires = "error")]
        permanent: bool,
        /// Delay that the provider asked for, in milliseconds
        #[arg(long, value_name = "MS", requires = "retryable")]
        retry_after: Option<u64>,
        /// Epoch that `next` printed for the lease
        #[arg(long, allow_negative_numbers = true)]
        epoch: Option<i64>,
        /// Holder name that was passed to `next`
        #[arg(long)]
        holder: Option<String>,
    },
    /// Print an object as JSON
    Object {
        /// Id of the object: cymsg:…, cymsgr:… or sha256:…
        id: String,
    },
    /// Show or set the read receipts of a group message
    Receipts {
        /// DID of the group
        group: String,
        /// Id of the message
        msg_id: String,
        /// DID of one reader; required with --set
        #[arg(long, value_name = "DID")]
        reader: Option<String>,
        /// New state: UNREAD, READING, READED, ACCEPTED, REJECTED or QUARANTINED
        #[arg(long, value_name = "STATE", requires = "reader")]
        set: Option<String>,
    },
    /// List the sessions of an owner, or show one session
    Sessions {
        /// DID of the owner of the sessions
        #[arg(default_value = "did:monoco:me")]
        owner: String,
        /// Show the session with this DID
        #[arg(long, value_name = "DID")]
        with: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List all tunnels with their settings
    Tunnels,
}

/// Arguments that select one box.
#[derive(Debug, clap::Args)]
pub struct BoxArgs {
    /// DID of the owner of the box
    #[arg(default_value = "did:monoco:me")]
    owner: String,
    /// Kind of box: INBOX, OUTBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX
    #[arg(default_value = "INBOX", value_name = "BOX")]
    box_kind: String,
}

impl BoxArgs {
    fn path(&self) -> String {
        let Self { owner, box_kind } = self;
        format!("/api/v1/boxes/{}/{}", segment(owner), segment(box_kind))
    }
}

/// Arguments that select one page of a list.
#[derive(Debug, clap::Args)]
pub struct PageArgs {
    /// Maximum number of entries to show
    #[arg(long, allow_negative_numbers = true)]
    limit: Option<i64>,
    /// Cursor printed at the end of the last page
    #[arg(long)]
    cursor: Option<String>,
    /// List the oldest entries first
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
    ("created", "created_at"),
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
    ("until", "lease.until"),
    ("with", "session"),
    ("tags", "tags"),
    ("tunnel", "tunnel"),
    ("target", "delivery.target"),
    ("due", "delivery.due_at"),
    ("failure", "delivery.failure.detail"),
    ("external id", "delivery.external_msg_id"),
    ("created", "created_at"),
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
            print_accepted(format, &answer, "deliveries", "target")
        }
        CenterCommand::Dispatch { message, tunnel, external_id } => {
            let ingress = fields([
                ("tunnel", tunnel.map(Value::from)),
                ("external_id", external_id.map(Value::from)),
            ]);
            let body = fields([("msg", Some(message.read()?)), ("ingress", Some(ingress))]);
            let answer = client.post("/api/v1/dispatch", &body).await?;
            print_accepted(format, &answer, "delivered", "owner")
        }
        CenterCommand::Next { place, lease, holder } => {
            let body =
                fields([("lease_s", lease.map(Value::from)), ("holder", holder.map(Value::from))]);
            let answer = client.post(&format!("{}/next", place.path()), &body).await?;
            if answer.is_null() {
                return Err(CliError::new(
                    super::failure::CliExit::NotPossible,
                    format!("{} of {} has no waiting record", place.box_kind, place.owner),
                ));
            }
            print_leased(format, &answer)
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
                [("reader", "reader"), ("state", "state"), ("at", "at"), ("id", "receipt_id")];
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
                    ("at", "last.record.created_at"),
                ];
                let answer = client.get(&format!("/api/v1/sessions{query}")).await?;
                return output::list(format, &answer, "sessions", &columns);
            };
            let columns = [
                ("record", "record.record_id"),
                ("way", "direction"),
                ("state", "record.state"),
                ("delivery", "delivery_state"),
                ("at", "record.created_at"),
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

/// Builds a JSON object from the fields that have a value.
fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(present.collect::<Map<_, _>>())
}

/// Prints the result of a send or dispatch.
fn print_accepted(
    format: OutputFormat,
    answer: &Value,
    key: &str,
    who: &str,
) -> Result<(), CliError> {
    if answer.get("ok") != Some(&Value::Bool(true)) {
        let reason = answer.get("reason").and_then(Value::as_str).unwrap_or("rejected");
        let message = format!("not delivered: {reason}");
        return Err(CliError::new(super::failure::CliExit::NotPossible, message));
    }
    if format == OutputFormat::Table && answer.get("duplicate") == Some(&Value::Bool(true)) {
        note("duplicate: the first result is shown");
    }
    if format != OutputFormat::Table {
        return output::one(format, answer, "msg_id", &[("msg", "msg_id")]);
    }
    output::one(format, answer, "msg_id", &[("msg", "msg_id"), ("letter", "letter")])?;
    output::list(format, answer, key, &[("record", "record_id"), ("to", who)])
}

/// Prints a leased record with its message.
fn print_leased(format: OutputFormat, answer: &Value) -> Result<(), CliError> {
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
            print(&format!("\n{}", escape_lines(text)))
        }
    }
}
