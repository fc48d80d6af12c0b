//! Letters and the verdicts of workers.

use std::borrow::Cow;

use monoco_core::letter::{LetterStateData, WorkerVerdict};
use monoco_core::time::Timestamp;
use monoco_store::LetterRow;
use serde::{Deserialize, Serialize};
use serde_json::Value;
#[cfg(test)]
use utoipa::ToSchema;

/// Recipients that a view of a letter lists.
const MAX_RECIPIENTS_SHOWN: usize = 10;

/// Longest subject that a view of a letter has, in bytes. The rest is cut.
const MAX_SUBJECT_BYTES: usize = 200;

/// A letter without its text.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Letter))]
pub struct LetterView {
    pub id: String,
    /// Either `inbound` or `outbound`
    pub direction: Cow<'static, str>,
    /// The tunnel of the message, if it is already known
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<String>,
    /// What the letter was created from: `submitted`, `inbound`, `dispatch` or `send`
    pub source: Cow<'static, str>,
    pub from: String,
    /// The first ten recipients
    pub to: Vec<String>,
    /// Number of all recipients
    pub recipients: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Size of `data` in bytes
    pub size: usize,
    /// WAITING, AWAY, DONE, MERGED, TRASHED or DEAD
    pub state: Cow<'static, str>,
    /// The worker that is next, holds the letter, or failed
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    /// When the letter is processed next
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<String>,
    /// Until when the external worker may answer
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Number of attempts by that worker
    pub attempts: u32,
    /// The workers that processed the letter, and their verdicts
    pub verdicts: Vec<VerdictView>,
    /// Why the last attempt failed, or why the letter was trashed or is dead
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// The message that the letter became
    #[serde(skip_serializing_if = "Option::is_none")]
    pub became: Option<String>,
    /// The letter that this one was merged into
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merged_into: Option<String>,
    /// When the text was erased; then `from`, `to` and `subject` are empty
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erased_at: Option<String>,
    pub created_at: String,
    pub updated_at: String,
}

/// The verdict of one worker.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Verdict))]
pub struct VerdictView {
    pub worker: String,
    /// `pass`, `skip` or `trash`
    pub result: Cow<'static, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The reason that the worker gave
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A page of letters.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Letters))]
pub struct LetterPage {
    pub letters: Vec<LetterView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// One letter with its text.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = LetterDetail))]
pub struct LetterDetailView {
    #[serde(flatten)]
    pub view: LetterView,
    /// The letter as workers get it: `id`, `from`, `to`, `data`, `extra`, `processed`
    #[cfg_attr(test, schema(value_type = Object))]
    pub letter: Value,
    /// The letter as it was accepted, if it was asked for and workers changed it
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(test, schema(value_type = Option<Object>))]
    pub original: Option<Value>,
    /// The letters that were merged into this one
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub merged: Vec<String>,
    /// Number of changes so far
    pub revision: i64,
}

/// The result of submitting one letter.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = SubmitResult))]
pub struct SubmitResultView {
    /// Line of the batch, from 1
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    pub id: String,
    /// Whether the letter was submitted before; then nothing was written
    pub duplicate: bool,
}

impl LetterView {
    /// The view with time and reason of each verdict, which lists leave out.
    pub fn with_notes(row: &LetterRow) -> Self {
        let verdicts = row.verdicts.iter().map(VerdictView::with_note).collect();
        Self { verdicts, ..row.into() }
    }
}

impl From<&LetterRow> for LetterView {
    fn from(row: &LetterRow) -> Self {
        let (mut due_at, mut until, mut merged_into, mut why) = (None, None, None, None);
        match &row.status.standing {
            LetterStateData::Waiting { due } => due_at = Some(due.rfc3339()),
            LetterStateData::Away { until: end } => until = Some(end.rfc3339()),
            LetterStateData::Merged { into } => merged_into = Some(into.to_string()),
            LetterStateData::Trashed { why: reason } | LetterStateData::Dead { why: reason } => {
                why = Some(reason.clone());
            }
            LetterStateData::Done => {}
        }
        let worker = row.worker.as_ref().or(row.held_by.as_ref());
        Self {
            id: row.id.to_string(),
            direction: row.direction.as_str().into(),
            tunnel: row.tunnel.as_ref().map(ToString::to_string),
            source: row.source.kind().as_str().into(),
            from: row.letter.from.clone(),
            to: row.letter.to.iter().take(MAX_RECIPIENTS_SHOWN).cloned().collect(),
            recipients: row.letter.to.len(),
            subject: subject(row),
            size: row.letter.data.len(),
            state: row.status.standing.name().as_str().into(),
            worker: worker.map(ToString::to_string),
            due_at,
            until,
            attempts: row.status.attempts,
            erased_at: row.erased_at.map(Timestamp::rfc3339),
            verdicts: row.verdicts.iter().map(VerdictView::from).collect(),
            failure: why.or_else(|| row.failure.clone()),
            became: row.became.map(|msg_id| msg_id.to_string()),
            merged_into,
            created_at: row.created_at.rfc3339(),
            updated_at: row.updated_at.rfc3339(),
        }
    }
}

impl VerdictView {
    pub fn with_note(verdict: &WorkerVerdict) -> Self {
        let (at, note) = (Some(verdict.at.rfc3339()), verdict.note.clone());
        Self { at, note, ..verdict.into() }
    }
}

impl From<&WorkerVerdict> for VerdictView {
    fn from(verdict: &WorkerVerdict) -> Self {
        Self {
            worker: verdict.worker.to_string(),
            result: verdict.result.as_str().into(),
            at: None,
            note: None,
        }
    }
}

fn subject(row: &LetterRow) -> Option<String> {
    let mut subject = match row.letter.is_mail() {
        true => monoco_mime::subject(&row.letter.bytes())?,
        false => row.letter.extra("subject")?.to_owned(),
    };
    subject.truncate(subject.floor_char_boundary(MAX_SUBJECT_BYTES));
    Some(subject)
}
