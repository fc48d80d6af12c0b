//! Health of the courier and its parts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

use super::approvals::HaltView;
use super::cluster::ClusterHealth;

/// Health of the courier and its parts.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct HealthView {
    /// `ok`, `degraded` (writes fail for now, letters are delayed, data is lost or damaged, other
    /// machines cannot connect, or a database server or clock needs attention) or `failed` (restart the courier)
    pub status: Cow<'static, str>,
    pub version: Cow<'static, str>,
    pub adapters: BTreeMap<String, AdapterHealth>,
    pub metrics: HealthCounts,
    pub storage: StorageHealth,
    pub mailbox: MailboxHealth,
    pub pipeline: PipelineHealth,
    pub dead: DeadCounts,
    /// The halts that apply now: what they stop is not sent
    #[serde(default)]
    pub halts: Vec<HaltView>,
    /// Messages that wait for approval
    #[serde(default)]
    pub pending_approvals: i64,
    /// The couriers that share the store; absent when it has only this one
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterHealth>,
    /// The listener for other machines; absent without `courier.remote`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteHealth>,
    /// Age of the oldest delivery that is not yet sent
    pub oldest_waiting_delivery_ms: Option<i64>,
    /// Age of the oldest Mail that is not claimed
    pub oldest_unclaimed_mail_ms: Option<i64>,
    /// Difference between the machine's clock and the courier's, which does not jump
    pub clock_drift_ms: i64,
    /// Which clock differs too much from those of the couriers that share the store, and what to do
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock_problem: Option<String>,
}

/// Health of the listener for other machines.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct RemoteHealth {
    /// The address that is bound, or is to be bound
    pub address: String,
    /// Whether it accepts connections
    pub served: bool,
    /// When the certificate in use expires
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_expires_at: Option<String>,
    /// Why it is not served, or why the files of the certificate are not used
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Health of one tunnel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct AdapterHealth {
    /// `hearing`: active in the last 10 min; `quiet`: listening, no activity; `deaf`: authentic
    /// messages cannot be read or stored; `down`: not listening, or not connected; `paused`: by an
    /// operator; `standby`: another courier of the shared store does its work
    pub status: Cow<'static, str>,
    /// How messages are received, such as `push` (webhooks) or `idle` (IMAP)
    pub mode: Cow<'static, str>,
    pub provider: String,
    /// Whether the connection is open, for tunnels that receive messages through one
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connected: Option<bool>,
    /// Since when the connection is open, or lost
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_since: Option<String>,
    /// How often an open connection was lost since the courier started
    #[serde(default, skip_serializing_if = "is_zero")]
    pub connections_lost: u64,
    /// When everything at the provider was read the last time
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scan_at: Option<String>,
    /// How many messages at the provider were not fetched yet at that time
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u64>,
    /// When the last authentic request was received, duplicates included
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_frame_at: Option<String>,
    /// When the last message was stored
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_message_at: Option<String>,
    /// When the last message was delivered
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_sent_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Messages stored since the courier started
    pub received: u64,
    /// Messages delivered since the courier started
    pub sent: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Health of the mailbox files.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct MailboxHealth {
    /// Stored messages that are not yet merged into a Mail
    pub waiting_messages: i64,
    /// Number of files of other programs in the mailbox
    pub foreign_files: usize,
    /// Some of these files
    pub foreign: Vec<String>,
    /// Files that were missing or changed and were written again since the start
    pub repaired: usize,
    /// Some Mails that cannot be written, with the reason
    pub unwritten: Vec<String>,
    /// Number of Mails in the index or in files that the store does not know: the store has
    /// lost data
    #[serde(default)]
    pub lost_mails: usize,
    /// Names of some of their files
    #[serde(default)]
    pub lost: Vec<String>,
    /// The last error of the file system, until a write succeeds
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Numbers of dead letters, as `GET /api/v1/dead` lists them. Each is counted once: deliveries and
/// letters that belong to the forward of a dead e-mail task are counted as that task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct DeadCounts {
    pub claims: i64,
    /// Deliveries that are DEAD or UNCERTAIN
    pub deliveries: i64,
    pub letters: i64,
    /// Drafts that could not be sent
    pub drafts: i64,
    /// E-mail tasks that failed three times, or that cannot be retried
    #[serde(default)]
    pub tasks: i64,
    pub total: i64,
}

/// Health of the pipeline.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct PipelineHealth {
    /// Either `ok` or `degraded`
    pub status: Cow<'static, str>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Letters that wait or are being processed by a worker
    pub under_way: i64,
}

/// Numbers of messages since the store was created.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct HealthCounts {
    pub messages_received: i64,
    pub messages_sent: i64,
    /// What waits: messages that are not yet merged, Mails that are not done, and deliveries
    /// that are not sent
    pub messages_pending: i64,
}

/// Whether the store accepts writes.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct StorageHealth {
    /// `ok`, `full`, `failing` or `broken`
    pub status: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Some damaged rows, which lists pass over, with the reason
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged_rows: Vec<String>,
    /// Number of attachments and large objects whose files are missing
    #[serde(default)]
    pub missing_files: usize,
    /// Names of some of them
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Where attachments and large messages are, when it is a bucket
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<ObjectsHealth>,
}

/// The place of attachments and large messages outside of the database.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ObjectsHealth {
    /// Bucket and prefix, as in `s3://bucket/prefix`
    pub place: String,
    /// Why the last request failed. Messages without large objects are accepted nevertheless
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
