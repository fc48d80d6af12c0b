//! `monoco center`: sends messages, reads boxes, and reports deliveries.

use monoco_core::did::TunnelId;
use monoco_core::record::BoxKind;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::client::{Client, query, segment};
use super::contact::{did_of, maybe_did_of};
use super::failure::{CliError, CliExit};
use super::message::{MessageArgs, MessageSummary};
use super::output::{self, Column, OutputFormat, ToCell, escape_line, escape_lines, note, print};
use super::{CliContext, for_each_id};
use columns::{
    BOX_COLUMNS, RECEIPT_COLUMNS, RECORD_FIELDS, SESSION_COLUMNS, SESSION_ENTRY_COLUMNS,
    TUNNEL_COLUMNS, record_columns,
};
use monoco_courier::api::views::boxes::{BoxPage, LeasedEntryView, RecordPage, RecordView};
use monoco_courier::api::views::messages::{DispatchResponse, SendResponse};
use monoco_courier::api::views::sessions::{
    ReceiptList, ReceiptView, SessionEntryPage, SessionPage,
};
use monoco_courier::api::views::tunnels::TunnelList;

mod columns;

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
        /// Filter by a tag, such as starred
        #[arg(long)]
        tag: Option<String>,
        /// Filter by a thread
        #[arg(long, value_name = "KEY")]
        thread_key: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one record or delivery
    Show {
        /// Id of a record (rec_…) or delivery (dlv_…); - reads ids from stdin
        record: String,
    },
    /// Set the state of a record or delivery
    State {
        /// Id of a record (rec_…) or delivery (dlv_…); - reads ids from stdin
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
    /// Add or remove tags of a record
    ///
    /// Example: monoco center tag rec_0f3a9c --add starred
    Tag {
        /// Id of a record (rec_…); - reads ids from stdin
        record: String,
        /// Tag to add; can be repeated
        #[arg(long, value_name = "TAG", required_unless_present = "remove")]
        add: Vec<String>,
        /// Tag to remove; can be repeated
        #[arg(long, value_name = "TAG")]
        remove: Vec<String>,
    },
    /// Report the outcome of a delivery attempt
    Report {
        /// Id of the delivery (dlv_…); - reads ids from stdin
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
        /// Error code of the provider
        #[arg(long, value_name = "CODE", requires = "error")]
        error_code: Option<String>,
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
    /// Print an object: a message or receipt as JSON, or the bytes of an attachment
    Object {
        /// Id of the object: cymsg:…, cymsgr:… or sha256:…; - reads ids from stdin
        id: String,
    },
    /// Show or set the read receipts of a group message
    Receipts {
        /// DID or name of the group
        group: String,
        /// Id of the message
        msg_id: String,
        /// Reader: a DID, name, e-mail address or TUNNEL:ACCOUNT; required with --set
        #[arg(long, value_name = "CONTACT")]
        reader: Option<String>,
        /// New state: UNREAD, READING, READED, ACCEPTED, REJECTED or QUARANTINED
        #[arg(long, value_name = "STATE", requires = "reader")]
        set: Option<String>,
        /// Why the reader has set this state
        #[arg(long, value_name = "TEXT", requires = "set")]
        reason: Option<String>,
    },
    /// List the sessions of an owner, or show one session
    Sessions {
        /// Owner of the sessions: a DID, name, e-mail address or TUNNEL:ACCOUNT
        #[arg(default_value = "did:monoco:me")]
        owner: String,
        /// Show the session with this contact: a DID, name, e-mail address or TUNNEL:ACCOUNT
        #[arg(long, value_name = "CONTACT")]
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
    /// Owner of the box: a DID, name, e-mail address or TUNNEL:ACCOUNT; of a TUNNEL_OUTBOX, the id
    /// of the tunnel
    #[arg(default_value = "did:monoco:me")]
    owner: String,
    /// Kind of box: INBOX, OUTBOX, GROUP_INBOX, REQUEST_BOX or TUNNEL_OUTBOX
    #[arg(default_value = "INBOX", value_name = "BOX")]
    box_kind: String,
}

impl BoxArgs {
    async fn path(&self, client: &Client) -> Result<String, CliError> {
        let owner = match self.owner.parse::<TunnelId>() {
            Ok(tunnel) if self.box_kind == BoxKind::TunnelOutbox.as_str() => {
                tunnel.did().to_string()
            }
            _ => did_of(client, &self.owner).await?,
        };
        Ok(format!("/api/v1/boxes/{}/{}", segment(&owner), segment(&self.box_kind)))
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

pub async fn run(context: &CliContext, command: CenterCommand) -> Result<(), CliError> {
    let format = context.format;
    let client = context.client()?;
    match command {
        CenterCommand::Boxes { limit, cursor } => {
            let limit = limit.map(|limit| limit.to_string());
            let query = query(&[("limit", limit), ("cursor", cursor)]);
            let page: BoxPage = client.get(&format!("/api/v1/boxes{query}")).await?;
            let cursor = page.next_cursor.as_deref();
            output::page(format, &page, &page.boxes, BOX_COLUMNS, cursor)
        }
        CenterCommand::Send { message, idempotency_key, schedule_at } => {
            let body = fields([
                ("msg", Some(message.read(&client).await?)),
                ("idempotency_key", idempotency_key.map(Value::from)),
                ("schedule_at", schedule_at.map(Value::from)),
            ]);
            let result: SendResponse = client.post("/api/v1/post_send", &body).await?;
            check_accepted(format, result.ok, result.reason.as_deref(), result.duplicate)?;
            print_accepted(format, &result, &result.msg_id, result.letter.as_deref())?;
            print_records(
                format,
                &result.deliveries,
                &[("record", |it| it.record_id.cell()), ("to", |it| it.target.cell())],
            )
        }
        CenterCommand::Dispatch { message, tunnel, external_id } => {
            let ingress = fields([
                ("tunnel", tunnel.map(Value::from)),
                ("external_id", external_id.map(Value::from)),
            ]);
            let body =
                fields([("msg", Some(message.read(&client).await?)), ("ingress", Some(ingress))]);
            let result: DispatchResponse = client.post("/api/v1/dispatch", &body).await?;
            check_accepted(format, result.ok, result.reason.as_deref(), result.duplicate)?;
            print_accepted(format, &result, &result.msg_id, result.letter.as_deref())?;
            print_records(
                format,
                &result.delivered,
                &[("record", |it| it.record_id.cell()), ("to", |it| it.owner.cell())],
            )
        }
        CenterCommand::Next { place, lease, holder } => {
            let body =
                fields([("lease_s", lease.map(Value::from)), ("holder", holder.map(Value::from))]);
            let path = format!("{}/next", place.path(&client).await?);
            let leased: Option<LeasedEntryView> = client.post(&path, &body).await?;
            let leased = leased.ok_or_else(|| {
                let BoxArgs { owner, box_kind } = &place;
                let message = format!("{box_kind} of {owner} has no waiting record");
                CliError::new(CliExit::NotPossible, message)
            })?;
            print_leased(format, &leased)
        }
        CenterCommand::Peek { place, n } => {
            let path = format!("{}/peek?n={n}", place.path(&client).await?);
            let page: RecordPage = client.get(&path).await?;
            let cursor = page.next_cursor.as_deref();
            output::page(format, &page, &page.records, record_columns(format), cursor)
        }
        CenterCommand::List { place, state, tag, thread_key, page } => {
            let filter = [("state", state), ("tag", tag), ("thread_key", thread_key)];
            let path = format!("{}{}", place.path(&client).await?, page.query(&filter));
            let page: RecordPage = client.get(&path).await?;
            let cursor = page.next_cursor.as_deref();
            output::page(format, &page, &page.records, record_columns(format), cursor)
        }
        CenterCommand::Show { record } => {
            let show = async |id: &str| {
                let path = format!("/api/v1/records/{}", segment(id));
                print_record(format, &client.get(&path).await?)
            };
            for_each_id(context, record, show).await
        }
        CenterCommand::State { record, state, epoch, revision, holder } => {
            let body = fields([
                ("state", Some(state.into())),
                ("epoch", epoch.map(Value::from)),
                ("revision", revision.map(Value::from)),
                ("holder", holder.map(Value::from)),
            ]);
            let set = async |id: &str| {
                let path = format!("/api/v1/records/{}/state", segment(id));
                print_record(format, &client.post(&path, &body).await?)
            };
            for_each_id(context, record, set).await
        }
        CenterCommand::Tag { record, add, remove } => {
            let body = json!({"add": add, "remove": remove});
            let tag = async |id: &str| {
                let path = format!("/api/v1/records/{}/tags", segment(id));
                print_record(format, &client.post(&path, &body).await?)
            };
            for_each_id(context, record, tag).await
        }
        CenterCommand::Report {
            delivery,
            ok,
            external_id,
            error,
            error_code,
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
                ("error_code", error_code.map(Value::from)),
                ("retryable", retryable.map(Value::from)),
                ("retry_after_ms", retry_after.map(Value::from)),
                ("epoch", epoch.map(Value::from)),
                ("holder", holder.map(Value::from)),
            ]);
            let report = async |id: &str| {
                let path = format!("/api/v1/deliveries/{}/report", segment(id));
                print_record(format, &client.post(&path, &body).await?)
            };
            for_each_id(context, delivery, report).await
        }
        CenterCommand::Object { id } => {
            let show = async |id: &str| {
                let path = format!("/api/v1/objects/{}", segment(id));
                if id.starts_with("sha256:") {
                    return output::print_bytes(&client.get_bytes(&path, None).await?);
                }
                output::print_json(&client.get::<Value>(&path).await?)
            };
            for_each_id(context, id, show).await
        }
        CenterCommand::Receipts { group, msg_id, reader, set, reason } => {
            let group = did_of(&client, &group).await?;
            let reader = maybe_did_of(&client, reader).await?;
            let path = format!("/api/v1/groups/{}/receipts", segment(&group));
            if let Some(state) = set {
                let body = fields([
                    ("msg_id", Some(msg_id.into())),
                    ("reader", reader.map(Value::from)),
                    ("state", Some(state.into())),
                    ("reason", reason.map(Value::from)),
                ]);
                let receipt: ReceiptView = client.put(&path, &body).await?;
                return output::one(format, &receipt, &receipt.receipt_id, RECEIPT_COLUMNS);
            }
            let path = path + &query(&[("msg_id", Some(msg_id)), ("reader", reader)]);
            let list: ReceiptList = client.get(&path).await?;
            output::list(format, &list, &list.receipts, RECEIPT_COLUMNS)
        }
        CenterCommand::Sessions { owner, with, page } => {
            let owner = did_of(&client, &owner).await?;
            let query = page.query(&[("owner", Some(owner))]);
            let Some(peer) = with else {
                let page: SessionPage = client.get(&format!("/api/v1/sessions{query}")).await?;
                let cursor = page.next_cursor.as_deref();
                return output::page(format, &page, &page.sessions, SESSION_COLUMNS, cursor);
            };
            let peer = did_of(&client, &peer).await?;
            let path = format!("/api/v1/sessions/{}{query}", segment(&peer));
            let page: SessionEntryPage = client.get(&path).await?;
            let cursor = page.next_cursor.as_deref();
            output::page(format, &page, &page.lines, SESSION_ENTRY_COLUMNS, cursor)
        }
        CenterCommand::Tunnels => {
            let list: TunnelList = client.get("/api/v1/tunnels").await?;
            output::list(format, &list, &list.tunnels, TUNNEL_COLUMNS)
        }
    }
}

fn print_record(format: OutputFormat, record: &RecordView) -> Result<(), CliError> {
    output::one(format, record, &record.record_id, RECORD_FIELDS)
}

/// Builds a JSON object from the fields that have a value.
fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Value {
    let present = fields.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(present.collect::<Map<_, _>>())
}

/// Fails if the message was rejected, and reports a duplicate.
fn check_accepted(
    format: OutputFormat,
    ok: bool,
    reason: Option<&str>,
    duplicate: bool,
) -> Result<(), CliError> {
    if !ok {
        let message = format!("not delivered: {}", reason.unwrap_or("rejected"));
        return Err(CliError::new(CliExit::NotPossible, message));
    }
    if duplicate && format == OutputFormat::Table {
        note("duplicate: the first result is shown");
    }
    Ok(())
}

/// Prints the id of the accepted message, and of its letter.
fn print_accepted(
    format: OutputFormat,
    answer: &impl Serialize,
    msg_id: &str,
    letter: Option<&str>,
) -> Result<(), CliError> {
    match format {
        OutputFormat::Json => output::print_json(answer),
        OutputFormat::Id | OutputFormat::Compact => print(&escape_line(msg_id)),
        OutputFormat::Table => output::print_fields(
            &(msg_id, letter),
            &[("msg", |(msg_id, _)| msg_id.cell()), ("letter", |(_, letter)| (*letter)?.cell())],
        ),
    }
}

/// Prints the created records below the message, in a table only.
fn print_records<T>(
    format: OutputFormat,
    records: &[T],
    columns: &[Column<T>],
) -> Result<(), CliError> {
    match format {
        OutputFormat::Table => output::list(format, &Value::Null, records, columns),
        _ => Ok(()),
    }
}

/// Prints a leased record with its message.
fn print_leased(format: OutputFormat, leased: &LeasedEntryView) -> Result<(), CliError> {
    let LeasedEntryView { record, msg } = leased;
    match format {
        OutputFormat::Json => output::print_json(leased),
        OutputFormat::Id | OutputFormat::Compact => {
            output::one(format, record, &record.record_id, RECORD_FIELDS)
        }
        OutputFormat::Table => {
            output::print_fields(record, RECORD_FIELDS)?;
            let msg = MessageSummary::parse(Some(msg)).unwrap_or_default();
            let fields: [Column<MessageSummary>; 2] =
                [("from", |msg| msg.from.cell()), ("title", |msg| msg.content.title.cell())];
            output::print_fields(&msg, &fields)?;
            print(&format!("\n{}", escape_lines(&msg.content.content)))
        }
    }
}
