//! E-mail accounts, their tasks and the directory of people.

use std::borrow::Cow;
use std::collections::BTreeMap;

use monoco_core::email::directory::Person;
use monoco_core::email::task::{EmailTask, TaskRetry, TaskStateData};
use monoco_core::email::{EmailAccount, ScanReport};
use monoco_core::time::Timestamp;
use monoco_core::tunnel_health::TunnelHealth;
use monoco_store::EmailTaskCounts;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

/// A watched e-mail account.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = EmailAccount))]
pub struct EmailAccountView {
    /// The tunnel of the account
    pub id: String,
    pub address: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// `false` while the account is paused
    pub active: bool,
    /// `hearing`, `quiet`, `deaf`, `down` or `paused`
    pub status: Cow<'static, str>,
    /// How new mails are noticed: `idle` or `poll`
    pub mode: Cow<'static, str>,
    pub last_seen_uid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scanned_at: Option<String>,
    /// What the last round did
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_round: Option<EmailRoundView>,
    pub tasks: EmailTaskCountsView,
    /// The last error of the connection
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error_at: Option<String>,
    pub created_at: String,
    pub updated_at: String,
}

/// What one round of an account did.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = EmailRound))]
pub struct EmailRoundView {
    /// Mails that were registered
    pub registered: u64,
    /// Mails with the bytes of a known mail
    pub copies: u64,
    pub retried: u64,
    pub forwarded: u64,
    pub skipped: u64,
    pub failed: u64,
    /// Mails on the server that are not registered yet
    pub backlog: u64,
    pub duration_ms: u64,
}

/// Number of tasks of an account.
#[derive(Debug, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = EmailTaskCounts))]
pub struct EmailTaskCountsView {
    /// Tasks by status, without copies
    pub statuses: BTreeMap<Cow<'static, str>, i64>,
    pub copies: i64,
    /// Tasks in `error` that are not retried any more
    pub dead: i64,
}

/// One mail of a folder and what became of it.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = EmailTask))]
pub struct EmailTaskView {
    pub id: String,
    /// The tunnel of the account
    pub account: String,
    pub folder: String,
    pub uid_validity: u32,
    pub uid: u32,
    pub subject: String,
    /// The date in the header of the mail
    #[serde(skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    pub size: u64,
    /// SHA-256 of the mail
    pub hash: String,
    /// `received`, `in_progress`, `forwarded`, `skipped_no_match` or `error`
    pub status: Cow<'static, str>,
    pub attempts: u32,
    /// Why the task failed or was skipped
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When a failed task is tried again
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<String>,
    /// The task with the same mail that was processed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_of: Option<String>,
    /// The message that forwards the mail
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward: Option<String>,
    /// Why only the header of the mail is stored
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    pub created_at: String,
    pub updated_at: String,
}

/// A page of e-mail tasks.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = EmailTasks))]
pub struct EmailTaskPage {
    pub tasks: Vec<EmailTaskView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// All watched e-mail accounts.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = EmailAccounts))]
pub struct EmailAccountsView {
    pub accounts: Vec<EmailAccountView>,
}

/// One person of the directory.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = DirectoryPerson))]
pub struct PersonView {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub keywords: Vec<String>,
    pub case_numbers: Vec<String>,
    pub active: bool,
}

/// The directory of people.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Directory))]
pub struct DirectoryView {
    pub people: Vec<PersonView>,
}

/// The result of an import.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = DirectoryImport))]
pub struct DirectoryImportView {
    /// Number of people that the directory has now
    pub imported: usize,
    /// Lines that were not imported
    pub invalid: Vec<InvalidLineView>,
}

/// One line that was not imported.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = InvalidLine))]
pub struct InvalidLineView {
    pub line: usize,
    pub why: String,
}

impl EmailAccountView {
    /// The view of an account. `tunnel` is its mode and health, when the tunnel runs.
    pub fn new(
        account: EmailAccount,
        counts: Option<&EmailTaskCounts>,
        tunnel: Option<(&'static str, TunnelHealth)>,
        now: Timestamp,
    ) -> Self {
        let (mode, health) = tunnel.unwrap_or_default();
        Self {
            id: account.tunnel.to_string(),
            address: account.address,
            description: account.description,
            active: account.active,
            status: health.status(now).as_str().into(),
            mode: mode.into(),
            last_seen_uid: account.last_seen_uid,
            last_scanned_at: account.last_scanned_at.map(Timestamp::rfc3339),
            last_round: account.last_scan.map(EmailRoundView::from),
            tasks: counts.map(EmailTaskCountsView::from).unwrap_or_default(),
            last_error_at: health.last_error.as_ref().map(|(at, _)| at.rfc3339()),
            last_error: health.last_error.map(|(_, why)| why),
            created_at: account.created_at.rfc3339(),
            updated_at: account.updated_at.rfc3339(),
        }
    }
}

impl From<ScanReport> for EmailRoundView {
    fn from(report: ScanReport) -> Self {
        Self {
            registered: report.registered,
            copies: report.copies,
            retried: report.retried,
            forwarded: report.forwarded,
            skipped: report.skipped,
            failed: report.failed,
            backlog: report.backlog,
            duration_ms: report.duration_ms,
        }
    }
}

impl From<&EmailTaskCounts> for EmailTaskCountsView {
    fn from(counts: &EmailTaskCounts) -> Self {
        let statuses = counts.statuses.iter();
        Self {
            statuses: statuses.map(|(status, count)| (status.as_str().into(), *count)).collect(),
            copies: counts.copies,
            dead: counts.dead,
        }
    }
}

impl From<EmailTask> for EmailTaskView {
    fn from(task: EmailTask) -> Self {
        let (error, next, copy_of) = match &task.progress.state {
            TaskStateData::Skipped { why } => (why.clone(), None, None),
            TaskStateData::Error { why, next: TaskRetry::At(at) } => {
                (Some(why.clone()), Some(at.rfc3339()), None)
            }
            TaskStateData::Error { why, .. } => (Some(why.clone()), None, None),
            TaskStateData::Copy { of } => (None, None, Some(of.to_string())),
            _ => (None, None, None),
        };
        Self {
            id: task.id.to_string(),
            account: task.tunnel.to_string(),
            folder: task.folder,
            uid_validity: task.uid_validity,
            uid: task.uid,
            subject: task.subject,
            date: task.date.map(Timestamp::rfc3339),
            size: task.size,
            hash: task.hash.to_string(),
            status: task.progress.state.status().as_str().into(),
            attempts: task.progress.attempts,
            error,
            next_attempt_at: next,
            copy_of,
            forward: task.progress.forward.map(|id| id.to_string()),
            cut: task.cut,
            created_at: task.created_at.rfc3339(),
            updated_at: task.updated_at.rfc3339(),
        }
    }
}

impl From<Person> for PersonView {
    fn from(person: Person) -> Self {
        let Person { name, address, keywords, case_numbers, active } = person;
        Self { name, address, keywords, case_numbers, active }
    }
}
