//! Columns of the lists that `monoco center` prints.

use crate::cli::message::MessageSummary;
use crate::cli::output::{Column, OutputFormat, ToCell};
use monoco_courier::api::views::boxes::{BoxView, RecordView};
use monoco_courier::api::views::sessions::{ReceiptView, SessionEntryView, SessionSummaryView};
use monoco_courier::api::views::tunnels::TunnelView;

const RECORD_COLUMNS: &[Column<RecordView>] = &[
    ("record", |record| record.record_id.cell()),
    ("box", |record| record.r#box.cell()),
    ("state", |record| record.state.cell()),
    ("owner", |record| record.owner.cell()),
    ("with", |record| record.session.cell()),
    ("target", |record| record.delivery.as_ref()?.target.cell()),
    ("created", |record| record.created_at.cell()),
];

/// The columns that fit into a table. All records of a list have the same owner and box.
const RECORD_TABLE: &[Column<RecordView>] = &[
    ("record", |record| record.record_id.cell()),
    ("state", |record| record.state.cell()),
    ("with", |record| record.session.cell()),
    ("target", |record| record.delivery.as_ref()?.target.cell()),
    ("created", |record| record.created_at.cell()),
];

pub const RECORD_FIELDS: &[Column<RecordView>] = &[
    ("record", |record| record.record_id.cell()),
    ("msg", |record| record.msg_id.cell()),
    ("owner", |record| record.owner.cell()),
    ("box", |record| record.r#box.cell()),
    ("state", |record| record.state.cell()),
    ("epoch", |record| record.epoch.cell()),
    ("attempts", |record| record.attempts.cell()),
    ("revision", |record| record.revision.cell()),
    ("holder", |record| record.lease.as_ref()?.holder.cell()),
    ("until", |record| record.lease.as_ref()?.until.cell()),
    ("with", |record| record.session.cell()),
    ("tags", |record| record.tags.cell()),
    ("thread", |record| record.thread_key.cell()),
    ("tunnel", |record| record.tunnel.cell()),
    ("target", |record| record.delivery.as_ref()?.target.cell()),
    ("due", |record| record.delivery.as_ref()?.due_at.cell()),
    ("failure", |record| record.delivery.as_ref()?.failure.as_ref()?.detail().cell()),
    ("error code", |record| record.delivery.as_ref()?.failure.as_ref()?.error_code()?.cell()),
    ("external id", |record| record.delivery.as_ref()?.external_msg_id.cell()),
    ("parts", |record| record.delivery.as_ref()?.part_ids().cell()),
    ("delivered", |record| record.delivery.as_ref()?.delivered_at.cell()),
    ("created", |record| record.created_at.cell()),
];

pub const BOX_COLUMNS: &[Column<BoxView>] = &[
    ("owner", |it| it.owner.cell()),
    ("box", |it| it.r#box.cell()),
    ("waiting", |it| it.waiting.cell()),
];

pub const RECEIPT_COLUMNS: &[Column<ReceiptView>] = &[
    ("reader", |receipt| receipt.reader.cell()),
    ("state", |receipt| receipt.state.cell()),
    ("at", |receipt| receipt.at.cell()),
    ("reason", |receipt| receipt.reason.cell()),
    ("id", |receipt| receipt.receipt_id.cell()),
];

pub const SESSION_COLUMNS: &[Column<SessionSummaryView>] = &[
    ("with", |session| session.id.cell()),
    ("name", |session| session.name.cell()),
    ("unread", |session| session.unread.cell()),
    ("last", |session| text(&session.last)),
    ("at", |session| session.last.record.created_at.cell()),
];

pub const SESSION_ENTRY_COLUMNS: &[Column<SessionEntryView>] = &[
    ("record", |entry| entry.record.record_id.cell()),
    ("way", |entry| entry.direction.cell()),
    ("state", |entry| entry.record.state.cell()),
    ("delivery", |entry| entry.delivery_state.cell()),
    ("at", |entry| entry.record.created_at.cell()),
    ("text", text),
];

pub const TUNNEL_COLUMNS: &[Column<TunnelView>] = &[
    ("id", |tunnel| tunnel.id.cell()),
    ("provider", |tunnel| tunnel.provider.cell()),
    ("strangers", |tunnel| tunnel.strangers.cell()),
    ("idempotent", |tunnel| tunnel.idempotent.cell()),
    ("did", |tunnel| tunnel.did.cell()),
];

pub const fn record_columns(format: OutputFormat) -> &'static [Column<RecordView>] {
    if matches!(format, OutputFormat::Table) { RECORD_TABLE } else { RECORD_COLUMNS }
}

fn text(entry: &SessionEntryView) -> Option<String> {
    Some(MessageSummary::parse(entry.msg.as_deref())?.content.content)
}
