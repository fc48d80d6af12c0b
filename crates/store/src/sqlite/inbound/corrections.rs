//! Edits and recalls: finds the newest version of a message, lets core decide, and writes the
//! result.
//!
//! The text of a merged message can be in a file, so it is read before the writer thread runs.
//! If the message has moved on meanwhile, the correction is stale and is prepared again.

use monoco_core::did::TunnelId;
use monoco_core::event::EventKind;
use monoco_core::inbound::{
    EditAction, InboundMessage, MessageEdit, MessageRecall, RecallAction, StoredVersion,
    ValidInboundMessage, decide_edit, decide_recall,
};
use monoco_core::letter::{LetterId, LetterState};
use monoco_core::mail::Mail;
use monoco_core::merge::{Debounce, MAX_BYTES};
use monoco_core::time::Timestamp;
use rusqlite::params;
use serde_json::json;

use super::{batch, damaged_message, files};
use crate::sqlite::bulk_index::RecentEntries;
use crate::sqlite::damage::Db;
use crate::sqlite::events::{self, EventSubject};
use crate::sqlite::letters::corrections as letters;
use crate::sqlite::rows;
use crate::sqlite::writer::Tx;
use crate::sqlite::{SqliteStore, contacts, external_ids, objects};
use crate::{
    StoreError, StoreEventResult, StoreInboundEvent, StoreInboundRequest, StoreInboundResult,
};

const SET_NEWEST: &str = "
    INSERT INTO corrected_messages (external_id, newest) VALUES (?1, ?2)
        ON CONFLICT (external_id) DO UPDATE SET newest = excluded.newest
";

const NEWEST: &str = "
    SELECT c.newest, e.object
      FROM corrected_messages c
      JOIN external_ids e ON e.seq = c.newest
     WHERE c.external_id = ?1
";

const REPLACED: &str = "
    UPDATE merge_windows SET bytes = bytes + ?2, revision = revision + 1 WHERE id = ?1
";

/// An edit or a recall.
#[derive(Clone)]
pub(super) enum Correction {
    Edit { edit: Box<MessageEdit>, request: Box<StoreInboundRequest> },
    Recall { recall: Box<MessageRecall>, tunnel: TunnelId, provider: String, debounce: Debounce },
}

/// A correction with the text that it corrects.
pub(super) struct PreparedCorrection {
    correction: Correction,
    has_chain: bool,
    version: Option<VersionKey>,
    /// The corrected text, unless it is in a merge window.
    previous: Option<InboundMessage>,
}

/// Identifies the newest version of a message and the stage that it is in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct VersionKey {
    newest: i64,
    stage: StageKey,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StageKey {
    NotKept,
    InWindow,
    InPipeline,
    Merged(i64),
}

/// The newest version of a message.
struct Version {
    /// Row of the external id of the first version.
    original: i64,
    /// Row of the object of the first version; 0: it has none.
    original_object: i64,
    /// Row of the external id of the newest version.
    newest: i64,
    stage: Stage,
}

enum Stage {
    NotKept,
    InWindow { window: i64, json: String },
    InPipeline(LetterId),
    Merged(i64),
}

impl Correction {
    /// Returns `None` when the event is a message or a notice.
    pub(super) fn of(event: &StoreInboundEvent) -> Option<Self> {
        match event {
            StoreInboundEvent::Edit { edit_id, request } => {
                let message = (*request.message).clone();
                let edit = Box::new(MessageEdit { edit_id: edit_id.clone(), message });
                Some(Self::Edit { edit, request: request.clone() })
            }
            StoreInboundEvent::Recall { recall, tunnel, provider, debounce } => {
                Some(Self::Recall {
                    recall: Box::new(recall.clone()),
                    tunnel: tunnel.clone(),
                    provider: provider.clone(),
                    debounce: *debounce,
                })
            }
            StoreInboundEvent::Message(_) | StoreInboundEvent::Notice { .. } => None,
        }
    }

    pub(super) fn into_event(self) -> StoreInboundEvent {
        match self {
            Self::Edit { edit, request } => {
                StoreInboundEvent::Edit { edit_id: edit.edit_id, request }
            }
            Self::Recall { recall, tunnel, provider, debounce } => {
                StoreInboundEvent::Recall { recall: *recall, tunnel, provider, debounce }
            }
        }
    }

    pub(super) fn tunnel(&self) -> &TunnelId {
        match self {
            Self::Edit { request, .. } => &request.tunnel,
            Self::Recall { tunnel, .. } => tunnel,
        }
    }

    /// The id of the correction itself.
    fn id(&self) -> &str {
        match self {
            Self::Edit { edit, .. } => &edit.edit_id,
            Self::Recall { recall, .. } => &recall.recall_id,
        }
    }

    /// The id of the message that is corrected.
    fn message_id(&self) -> &str {
        match self {
            Self::Edit { edit, .. } => &edit.message.id,
            Self::Recall { recall, .. } => &recall.message_id,
        }
    }

    /// The request that stores a message which follows the corrected one.
    fn follow_up(&self, message: ValidInboundMessage) -> StoreInboundRequest {
        let (tunnel, provider, debounce) = match self {
            Self::Edit { request, .. } => {
                (request.tunnel.clone(), request.provider.clone(), request.debounce)
            }
            Self::Recall { tunnel, provider, debounce, .. } => {
                (tunnel.clone(), provider.clone(), *debounce)
            }
        };
        let attachments = Vec::new();
        StoreInboundRequest { tunnel, provider, message, attachments, debounce, mail: None }
    }
}

impl Version {
    fn key(&self) -> VersionKey {
        let stage = match &self.stage {
            Stage::NotKept => StageKey::NotKept,
            Stage::InWindow { .. } => StageKey::InWindow,
            Stage::InPipeline(_) => StageKey::InPipeline,
            Stage::Merged(object) => StageKey::Merged(*object),
        };
        VersionKey { newest: self.newest, stage }
    }
}

/// Finds the newest version of a message of a tunnel.
fn find_version(
    db: &Db,
    recent: &RecentEntries,
    tunnel: i64,
    message_id: &str,
) -> Result<Option<Version>, StoreError> {
    let Some((original, original_object)) =
        external_ids::find(db, recent, message_id, Some(tunnel))?
    else {
        return Ok(None);
    };
    let corrected: Option<(i64, i64)> =
        rows::optional(db, NEWEST, [original], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (newest, object) = corrected.unwrap_or((original, original_object));
    let stage = if object == 0 { unmerged_stage(db, newest)? } else { Stage::Merged(object) };
    Ok(Some(Version { original, original_object, newest, stage }))
}

fn unmerged_stage(db: &Db, external_id: i64) -> Result<Stage, StoreError> {
    let sql = "SELECT merge_window, message FROM inbound_messages WHERE external_id = ?1";
    let in_window = rows::optional(db, sql, [external_id], |row| {
        Ok(Stage::InWindow { window: row.get(0)?, json: row.get(1)? })
    })?;
    if let Some(stage) = in_window {
        return Ok(stage);
    }
    Ok(match letters::state_of(db, external_id)? {
        Some((id, LetterState::Waiting | LetterState::Away | LetterState::Dead)) => {
            Stage::InPipeline(id)
        }
        _ => Stage::NotKept,
    })
}

impl SqliteStore {
    /// Reads the text that a correction corrects.
    pub(super) async fn prepare_correction(
        &self,
        correction: Correction,
        has_chain: bool,
    ) -> Result<PreparedCorrection, StoreError> {
        let (tunnel, id) = (correction.tunnel().did(), correction.message_id().to_owned());
        let recent = std::sync::Arc::clone(&self.recent.external_ids);
        let find = self.read(move |db| match contacts::find(db, &tunnel)? {
            Some(tunnel) => find_version(db, &recent, tunnel, &id),
            None => Ok(None),
        });
        let version = find.await?.map(|version| version.key());
        let previous = match version {
            Some(VersionKey { newest, stage }) => {
                // Workers can have changed the text, so that the letter is compared.
                match (self.letter_source_message(newest).await?, stage) {
                    (Some(message), _) => Some(message),
                    (None, StageKey::Merged(object)) => self.merged_message(object, newest).await?,
                    (None, _) => None,
                }
            }
            None => None,
        };
        Ok(PreparedCorrection { correction, has_chain, version, previous })
    }

    /// Returns a message of a Mail; `None` when its text is erased or damaged.
    async fn merged_message(
        &self,
        object: i64,
        external_id: i64,
    ) -> Result<Option<InboundMessage>, StoreError> {
        let read = self.read(move |db| {
            let sql = "SELECT external_id FROM external_ids WHERE seq = ?1";
            let id: String = rows::one(db, sql, [external_id], |row| row.get(0))?;
            Ok((id, objects::body_or_erased(db, object)?))
        });
        let (id, Ok((msg_id, body))) = read.await? else { return Ok(None) };
        let text = match self.verified_text(msg_id, body).await {
            Err(StoreError::Damaged { .. } | StoreError::Missing { .. }) => return Ok(None),
            text => text?,
        };
        let Ok(mail) = Mail::read(msg_id, &text) else { return Ok(None) };
        Ok(mail.messages.into_iter().find(|message| message.id == id))
    }
}

/// Applies a correction. Returns `None` when it is stale.
pub(super) fn apply(
    tx: &mut Tx<'_>,
    prepared: &PreparedCorrection,
    now: Timestamp,
) -> Result<Option<StoreEventResult>, StoreError> {
    let correction = &prepared.correction;
    let tunnel = correction.tunnel();
    if batch::is_repeated(tx, tunnel, correction.id(), now)? {
        return Ok(Some(answered(StoreInboundResult::Duplicate)));
    }
    let version = match contacts::find_party_id(tx, &tunnel.did())? {
        Some(tunnel) => {
            let recent = tx.indexes.external_ids.recent();
            find_version(tx.db, recent, tunnel, correction.message_id())?
        }
        None => None,
    };
    let is_current = version.as_ref().map(Version::key) == prepared.version;
    let in_window = match &version {
        Some(Version { stage: Stage::InWindow { json, .. }, .. }) => {
            Some(serde_json::from_str(json).map_err(|error| damaged_message(&error))?)
        }
        _ => None,
    };
    // A message in a window is read here, so that it can be of the same batch.
    let without_text = in_window.is_some() && !prepared.has_chain
        || matches!(correction, Correction::Recall { .. }) && in_window.is_some();
    if !is_current && !without_text {
        return Ok(None);
    }
    let previous = prepared.previous.as_ref().filter(|_| is_current);
    let stored = match &version {
        None => StoredVersion::Unknown,
        Some(version) => match (&version.stage, &in_window) {
            (Stage::InWindow { .. }, Some(in_window)) => match correction {
                Correction::Edit { .. } if prepared.has_chain => {
                    StoredVersion::InWindow(previous.unwrap_or(in_window))
                }
                _ => StoredVersion::InWindow(in_window),
            },
            (Stage::InPipeline(_), _) => StoredVersion::InPipeline(previous),
            (Stage::Merged(_), _) => StoredVersion::Merged(previous),
            (Stage::NotKept | Stage::InWindow { .. }, _) => StoredVersion::NotKept,
        },
    };
    match correction {
        Correction::Edit { edit, request } => {
            let mut action = decide_edit(stored, edit, prepared.has_chain);
            if let (EditAction::Replace(message), Some(version)) = (&action, &version)
                && !fits(tx.db, version, message)?
            {
                action = decide_edit(stored, edit, true);
            }
            edit_message(tx, prepared, request, version.as_ref(), action, now).map(Some)
        }
        Correction::Recall { recall, .. } => {
            let action = decide_recall(stored, recall);
            recall_message(tx, prepared, version.as_ref(), action, now).map(Some)
        }
    }
}

/// Whether the window has space for the changed message.
fn fits(db: &Db, version: &Version, message: &InboundMessage) -> Result<bool, StoreError> {
    let Stage::InWindow { window, json } = &version.stage else { return Ok(false) };
    let Ok(valid) = message.clone().validate() else { return Ok(false) };
    let sql = "SELECT messages, bytes FROM merge_windows WHERE id = ?1";
    let (messages, bytes): (i64, i64) =
        rows::one(db, sql, [window], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let bytes = bytes + rows::limit(valid.json().len()) - rows::limit(json.len());
    Ok(messages <= 1 || bytes <= i64::from(MAX_BYTES))
}

fn edit_message(
    tx: &mut Tx<'_>,
    prepared: &PreparedCorrection,
    request: &StoreInboundRequest,
    version: Option<&Version>,
    action: EditAction,
    now: Timestamp,
) -> Result<StoreEventResult, StoreError> {
    match (action, version) {
        (EditAction::StoreAsNew, _) | (_, None) => {
            Ok(batch::store_new(tx, request, prepared.has_chain, now)?.0)
        }
        (EditAction::Ignore, Some(version)) => {
            let subject = subject(version);
            let detail = json!({
                "of": "received", "tunnel": request.tunnel,
                "external_id": prepared.correction.id(),
            });
            events::append(tx, EventKind::Duplicate, subject, &detail, now)?;
            Ok(answered(StoreInboundResult::Duplicate))
        }
        (EditAction::Replace(message), Some(version)) => {
            replace(tx, &prepared.correction, version, *message, now)?;
            append_event(tx, &prepared.correction, version, None, now)?;
            Ok(answered(StoreInboundResult::Stored))
        }
        (EditAction::FollowUp(message), Some(version)) => {
            follow_up(tx, prepared, version, *message, now)
        }
    }
}

fn recall_message(
    tx: &mut Tx<'_>,
    prepared: &PreparedCorrection,
    version: Option<&Version>,
    action: RecallAction,
    now: Timestamp,
) -> Result<StoreEventResult, StoreError> {
    let correction = &prepared.correction;
    let Some(version) = version else {
        // The message is a duplicate when it arrives.
        contacts::insert_unknown_tunnel(tx, correction.tunnel(), now)?;
        let tunnel = contacts::party_id(tx, &correction.tunnel().did())?;
        external_ids::insert(tx, tunnel, correction.message_id(), 0)?;
        external_ids::insert(tx, tunnel, correction.id(), 0)?;
        return Ok(answered(StoreInboundResult::Dropped));
    };
    match action {
        RecallAction::Ignore | RecallAction::RejectLater => {
            Ok(answered(StoreInboundResult::Duplicate))
        }
        RecallAction::Replace(message) => {
            files::remove(tx, version.newest)?;
            replace(tx, correction, version, *message, now)?;
            append_event(tx, correction, version, None, now)?;
            Ok(answered(StoreInboundResult::Stored))
        }
        RecallAction::TrashLetter => {
            let Stage::InPipeline(letter) = version.stage else {
                return Ok(answered(StoreInboundResult::Duplicate));
            };
            letters::trash_recalled(tx, letter, now)?;
            insert_id(tx, correction)?;
            append_event(tx, correction, version, Some(letter), now)?;
            Ok(answered(StoreInboundResult::Stored))
        }
        RecallAction::FollowUp(message) => {
            let message = InboundMessage { received_at: now, ..*message };
            follow_up(tx, prepared, version, message, now)
        }
        RecallAction::EventOnly => {
            insert_id(tx, correction)?;
            append_event(tx, correction, version, None, now)?;
            Ok(answered(StoreInboundResult::Stored))
        }
    }
}

/// Replaces a message in its merge window.
fn replace(
    tx: &mut Tx<'_>,
    correction: &Correction,
    version: &Version,
    message: InboundMessage,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Stage::InWindow { window, json } = &version.stage else { return Ok(()) };
    let valid = message.validate().map_err(|error| damaged_message(&error))?;
    let sql = "UPDATE inbound_messages SET message = ?2 WHERE external_id = ?1";
    rows::execute(tx.db, sql, params![version.newest, valid.json()])?;
    let change = rows::limit(valid.json().len()) - rows::limit(json.len());
    rows::execute(tx.db, REPLACED, [*window, change])?;
    let tunnel = contacts::party_id(tx, &correction.tunnel().did())?;
    files::add_to_window(tx, tunnel, version.newest, *window, &valid, now)?;
    insert_id(tx, correction)
}

/// Stores a message that corrects another one.
fn follow_up(
    tx: &mut Tx<'_>,
    prepared: &PreparedCorrection,
    version: &Version,
    message: InboundMessage,
    now: Timestamp,
) -> Result<StoreEventResult, StoreError> {
    let message = message.validate().map_err(|error| damaged_message(&error))?;
    let request = prepared.correction.follow_up(message);
    let (result, external_id) = batch::store_new(tx, &request, prepared.has_chain, now)?;
    if let Some(external_id) = external_id {
        rows::execute(tx.db, SET_NEWEST, [version.original, external_id])?;
        append_event(tx, &prepared.correction, version, result.letter, now)?;
    }
    Ok(result)
}

/// Stores the id of a correction, so that it is recognised when it is received again.
fn insert_id(tx: &mut Tx<'_>, correction: &Correction) -> Result<(), StoreError> {
    let tunnel = contacts::party_id(tx, &correction.tunnel().did())?;
    external_ids::insert(tx, tunnel, correction.id(), 0)?;
    Ok(())
}

fn subject(version: &Version) -> EventSubject {
    let object = Some(version.original_object).filter(|object| *object != 0);
    EventSubject { object, ..EventSubject::default() }
}

/// Appends the event of an edit or recall, on the Mail when there is one.
fn append_event(
    tx: &mut Tx<'_>,
    correction: &Correction,
    version: &Version,
    letter: Option<LetterId>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (kind, by) = match correction {
        Correction::Edit { .. } => (EventKind::Edited, "edit_id"),
        Correction::Recall { .. } => (EventKind::Recalled, "recall_id"),
    };
    let mut detail = json!({
        "tunnel": correction.tunnel(), "external_id": correction.message_id(),
    });
    detail[by] = json!(correction.id());
    if let Some(letter) = letter {
        detail["letter"] = json!(letter);
    }
    events::append(tx, kind, subject(version), &detail, now)
}

fn answered(result: StoreInboundResult) -> StoreEventResult {
    StoreEventResult { result, letter: None }
}
