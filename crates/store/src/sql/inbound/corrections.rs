//! Edits and recalls: finds the versions of a message, lets core decide, and writes the result.
//!
//! The text of a merged message can be in a file, so it is read before the writer thread runs.
//! If the message has moved on meanwhile, the correction is stale and is prepared again.

use monoco_core::did::TunnelId;
use monoco_core::event::EventKind;
use monoco_core::inbound::{
    EditAction, InboundMessage, MessageEdit, MessageRecall, RecallAction, RecallFollowUp,
    RecallStep, StoredVersion, ValidInboundMessage, decide_edit, decide_recall,
};
use monoco_core::letter::{LetterId, LetterState};
use monoco_core::mail::Mail;
use monoco_core::merge::{Debounce, MAX_BYTES};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::{batch, damaged_message, files};
use crate::sql::bulk_index::RecentEntries;
use crate::sql::db::{Db, params};
use crate::sql::events::{self, EventSubject};
use crate::sql::letters::corrections as letters;
use crate::sql::rows;
use crate::sql::writer::Tx;
use crate::sql::{SqlStore, contacts, external_ids, objects, purged_files};
use crate::{
    StoreError, StoreEventResult, StoreInboundEvent, StoreInboundRequest, StoreInboundResult,
};

const ADD_VERSION: &str = "
    INSERT INTO corrected_messages (external_id, version) VALUES (?1, ?2)
        ON CONFLICT DO NOTHING
";

const LATER_VERSIONS: &str = "
    SELECT c.version, e.object
      FROM corrected_messages c
      JOIN external_ids e ON e.seq = c.version
     WHERE c.external_id = ?1
     ORDER BY c.version
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
    versions: Vec<VersionKey>,
    /// The corrected text and the number of its version, unless it is in a merge window.
    previous: Option<(usize, InboundMessage)>,
}

/// Identifies a version of a message and the stage that it is in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct VersionKey {
    external_id: i64,
    stage: StageKey,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum StageKey {
    NotKept,
    InWindow,
    InPipeline,
    InOtherLetter,
    Merged(i64),
}

/// A message that is corrected.
struct StoredMessage {
    /// Row of the object of the first version; 0: it has none.
    original_object: i64,
    /// All versions, oldest first.
    versions: Vec<Version>,
}

/// The message, or a later message that corrects it.
struct Version {
    /// Row of the external id.
    external_id: i64,
    stage: Stage,
}

enum Stage {
    NotKept,
    /// With the text, read from its row.
    InWindow {
        window: i64,
        size: usize,
        message: Box<InboundMessage>,
    },
    InPipeline(LetterId),
    /// A worker has added the letter to another one.
    InOtherLetter,
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

impl StoredMessage {
    fn keys(message: Option<&Self>) -> Vec<VersionKey> {
        let versions = message.map(|message| message.versions.iter().map(Version::key));
        versions.into_iter().flatten().collect()
    }
}

impl Version {
    fn key(&self) -> VersionKey {
        let stage = match &self.stage {
            Stage::NotKept => StageKey::NotKept,
            Stage::InWindow { .. } => StageKey::InWindow,
            Stage::InPipeline(_) => StageKey::InPipeline,
            Stage::InOtherLetter => StageKey::InOtherLetter,
            Stage::Merged(object) => StageKey::Merged(*object),
        };
        VersionKey { external_id: self.external_id, stage }
    }

    /// `previous`: the text of this version, when it was read.
    fn stored<'a>(&'a self, previous: Option<&'a InboundMessage>) -> StoredVersion<'a> {
        match &self.stage {
            Stage::NotKept => StoredVersion::NotKept,
            Stage::InWindow { message, .. } => StoredVersion::InWindow(message),
            Stage::InPipeline(_) => StoredVersion::InPipeline(previous),
            Stage::InOtherLetter | Stage::Merged(_) => StoredVersion::Merged(previous),
        }
    }
}

/// Finds the versions of a message of a tunnel.
fn find_message(
    db: &Db,
    recent: &RecentEntries,
    tunnel: i64,
    message_id: &str,
) -> Result<Option<StoredMessage>, StoreError> {
    let Some((original, original_object)) =
        external_ids::find(db, recent, message_id, Some(tunnel))?
    else {
        return Ok(None);
    };
    let later: Vec<(i64, i64)> =
        rows::list(db, LATER_VERSIONS, [original], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut versions = Vec::new();
    for (external_id, object) in [(original, original_object)].into_iter().chain(later) {
        let stage =
            if object == 0 { unmerged_stage(db, external_id)? } else { Stage::Merged(object) };
        versions.push(Version { external_id, stage });
    }
    Ok(Some(StoredMessage { original_object, versions }))
}

fn unmerged_stage(db: &Db, external_id: i64) -> Result<Stage, StoreError> {
    let sql = "SELECT merge_window, message FROM inbound_messages WHERE external_id = ?1";
    let in_window: Option<(i64, String)> =
        rows::optional(db, sql, [external_id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if let Some((window, json)) = in_window {
        let message = serde_json::from_str(&json).map_err(|error| damaged_message(&error))?;
        return Ok(Stage::InWindow { window, size: json.len(), message });
    }
    Ok(match letters::state_of(db, external_id)? {
        Some((id, LetterState::Waiting | LetterState::Away | LetterState::Dead)) => {
            Stage::InPipeline(id)
        }
        Some((_, LetterState::Merged)) => Stage::InOtherLetter,
        _ => Stage::NotKept,
    })
}

impl SqlStore {
    /// Reads the text that a correction corrects.
    pub(super) async fn prepare_correction(
        &self,
        correction: Correction,
        has_chain: bool,
    ) -> Result<PreparedCorrection, StoreError> {
        let (tunnel, id) = (correction.tunnel().did(), correction.message_id().to_owned());
        let recent = std::sync::Arc::clone(&self.recent.external_ids);
        let find = self.read(move |db| match contacts::find(db, &tunnel)? {
            Some(tunnel) => {
                let found = find_message(db, &recent, tunnel, &id)?;
                Ok(StoredMessage::keys(found.as_ref()))
            }
            None => Ok(Vec::new()),
        });
        let versions = find.await?;
        // An edit is compared with the newest version. A recall needs any text of the author.
        let compared = match correction {
            Correction::Edit { .. } => 1,
            Correction::Recall { .. } => versions.len(),
        };
        let mut previous = None;
        for (number, version) in versions.iter().enumerate().rev().take(compared) {
            if let Some(message) = self.version_text(*version).await? {
                previous = Some((number, message));
                break;
            }
        }
        Ok(PreparedCorrection { correction, has_chain, versions, previous })
    }

    /// Returns the text of a version that is not in a merge window, or was in a chain before;
    /// `None` when it is erased or damaged.
    async fn version_text(
        &self,
        version: VersionKey,
    ) -> Result<Option<InboundMessage>, StoreError> {
        let VersionKey { external_id, stage } = version;
        if stage == StageKey::NotKept {
            return Ok(None);
        }
        // Workers can have changed the text, so that the letter is compared.
        match (self.letter_source_message(external_id).await?, stage) {
            (Some(message), _) => Ok(Some(message)),
            (None, StageKey::Merged(object)) => self.merged_message(object, external_id).await,
            (None, _) => Ok(None),
        }
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
    let found = match contacts::find_party_id(tx, &tunnel.did())? {
        Some(tunnel) => {
            let recent = tx.indexes.external_ids.recent();
            find_message(tx.db, recent, tunnel, correction.message_id())?
        }
        None => None,
    };
    let newest = found.as_ref().and_then(|found| found.versions.last());
    let in_window = newest.is_some_and(|newest| matches!(newest.stage, Stage::InWindow { .. }));
    let is_current = StoredMessage::keys(found.as_ref()) == prepared.versions;
    // A message in a window is read here, so that it can be of the same batch.
    let is_recall = matches!(correction, Correction::Recall { .. });
    let without_text = in_window && (is_recall || !prepared.has_chain);
    if !is_current && !without_text {
        return Ok(None);
    }
    let previous = |number: usize| {
        let previous = prepared.previous.as_ref().filter(|_| is_current);
        previous.filter(|(of, _)| *of == number).map(|(_, message)| message)
    };
    let versions = found.as_ref().map_or(&[][..], |found| &found.versions);
    match correction {
        Correction::Edit { edit, request } => {
            let previous = versions.len().checked_sub(1).and_then(previous);
            let stored = match (newest, previous) {
                (None, _) => StoredVersion::Unknown,
                (Some(Version { stage: Stage::InWindow { .. }, .. }), Some(previous))
                    if prepared.has_chain =>
                {
                    StoredVersion::InWindow(previous)
                }
                (Some(newest), previous) => newest.stored(previous),
            };
            let mut action = decide_edit(stored, edit, prepared.has_chain);
            if let (EditAction::Replace(message), Some(newest)) = (&action, newest)
                && !fits(tx.db, newest, message)?
            {
                action = decide_edit(stored, edit, true);
            }
            edit_message(tx, prepared, request, found.as_ref(), action, now).map(Some)
        }
        Correction::Recall { recall, .. } => {
            let stored: Vec<_> = versions
                .iter()
                .enumerate()
                .map(|(number, version)| version.stored(previous(number)))
                .collect();
            let action = decide_recall(&stored, recall);
            recall_message(tx, prepared, found.as_ref(), action, now).map(Some)
        }
    }
}

/// Whether the window has space for the changed message.
fn fits(db: &Db, version: &Version, message: &InboundMessage) -> Result<bool, StoreError> {
    let Stage::InWindow { window, size, .. } = &version.stage else { return Ok(false) };
    let Ok(valid) = message.clone().validate() else { return Ok(false) };
    let sql = "SELECT messages, bytes FROM merge_windows WHERE id = ?1";
    let (messages, bytes): (i64, i64) =
        rows::one(db, sql, [window], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let bytes = bytes + rows::limit(valid.json().len()) - rows::limit(*size);
    Ok(messages <= 1 || bytes <= i64::from(MAX_BYTES))
}

fn edit_message(
    tx: &mut Tx<'_>,
    prepared: &PreparedCorrection,
    request: &StoreInboundRequest,
    found: Option<&StoredMessage>,
    action: EditAction,
    now: Timestamp,
) -> Result<StoreEventResult, StoreError> {
    match (action, found) {
        (EditAction::StoreAsNew, _) | (_, None) => {
            Ok(batch::store_new(tx, request, prepared.has_chain, now)?.0)
        }
        (EditAction::Ignore, Some(found)) => {
            let subject = subject(found);
            let detail = json!({
                "of": "received", "tunnel": request.tunnel,
                "external_id": prepared.correction.id(),
            });
            events::append(tx, EventKind::Duplicate, subject, &detail, now)?;
            Ok(answered(StoreInboundResult::Duplicate))
        }
        (EditAction::Replace(message), Some(found)) => {
            if let Some(newest) = found.versions.last() {
                replace(tx, &prepared.correction, newest, *message, now)?;
            }
            insert_id(tx, &prepared.correction)?;
            append_event(tx, &prepared.correction, found, None, now)?;
            Ok(answered(StoreInboundResult::Stored))
        }
        (EditAction::FollowUp(message), Some(found)) => {
            follow_up(tx, prepared, found, *message, now)
        }
    }
}

fn recall_message(
    tx: &mut Tx<'_>,
    prepared: &PreparedCorrection,
    found: Option<&StoredMessage>,
    action: RecallAction,
    now: Timestamp,
) -> Result<StoreEventResult, StoreError> {
    let correction = &prepared.correction;
    let Some(found) = found else {
        // The message is a duplicate when it arrives.
        contacts::insert_unknown_tunnel(tx, correction.tunnel(), now)?;
        let tunnel = contacts::party_id(tx, &correction.tunnel().did())?;
        external_ids::insert(tx, tunnel, correction.message_id(), 0)?;
        external_ids::insert(tx, tunnel, correction.id(), 0)?;
        return Ok(answered(StoreInboundResult::Dropped));
    };
    let RecallAction::Apply { steps, follow_up: told } = action else {
        return Ok(answered(StoreInboundResult::Duplicate));
    };
    let mut trashed = Vec::new();
    for (step, version) in steps.into_iter().zip(&found.versions) {
        match (step, &version.stage) {
            (RecallStep::Replace(message), Stage::InWindow { .. }) => {
                remove_files(tx, version)?;
                replace(tx, correction, version, *message, now)?;
            }
            (RecallStep::TrashLetter, Stage::InPipeline(letter)) => {
                letters::trash_recalled(tx, *letter, now)?;
                trashed.push(*letter);
            }
            _ => {}
        }
    }
    for letter in &trashed {
        append_event(tx, correction, found, Some(*letter), now)?;
    }
    if let RecallFollowUp::Message(message) = told {
        let message = InboundMessage { received_at: now, ..*message };
        return follow_up(tx, prepared, found, message, now);
    }
    if trashed.is_empty() {
        append_event(tx, correction, found, None, now)?;
    }
    insert_id(tx, correction)?;
    Ok(answered(StoreInboundResult::Stored))
}

/// Deletes the files of a message in a window. Their bytes are deleted later, unless another
/// message has the same file.
fn remove_files(tx: &Tx<'_>, version: &Version) -> Result<(), StoreError> {
    let Stage::InWindow { message, .. } = &version.stage else { return Ok(()) };
    let fetched = files::remove(tx, version.external_id)?;
    let received = message.artifacts.iter().filter_map(|artifact| artifact.hash);
    for file in fetched.into_iter().chain(received) {
        purged_files::note(tx, file.hash())?;
    }
    Ok(())
}

/// Replaces a message in its merge window.
fn replace(
    tx: &mut Tx<'_>,
    correction: &Correction,
    version: &Version,
    message: InboundMessage,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Stage::InWindow { window, size, .. } = &version.stage else { return Ok(()) };
    let valid = message.validate().map_err(|error| damaged_message(&error))?;
    let sql = "UPDATE inbound_messages SET message = ?2 WHERE external_id = ?1";
    rows::execute(tx.db, sql, params![version.external_id, valid.json()])?;
    let change = rows::limit(valid.json().len()) - rows::limit(*size);
    rows::execute(tx.db, REPLACED, [*window, change])?;
    let tunnel = contacts::party_id(tx, &correction.tunnel().did())?;
    files::add_to_window(tx, tunnel, version.external_id, *window, &valid, now)
}

/// Stores a message that corrects another one.
fn follow_up(
    tx: &mut Tx<'_>,
    prepared: &PreparedCorrection,
    found: &StoredMessage,
    message: InboundMessage,
    now: Timestamp,
) -> Result<StoreEventResult, StoreError> {
    let message = message.validate().map_err(|error| damaged_message(&error))?;
    let request = prepared.correction.follow_up(message);
    let (result, external_id) = batch::store_new(tx, &request, prepared.has_chain, now)?;
    if let Some(external_id) = external_id {
        let original = found.versions.first().map(|version| version.external_id);
        rows::execute(tx.db, ADD_VERSION, params![original, external_id])?;
        append_event(tx, &prepared.correction, found, result.letter, now)?;
    }
    Ok(result)
}

/// Stores the id of a correction, so that it is recognised when it is received again.
fn insert_id(tx: &mut Tx<'_>, correction: &Correction) -> Result<(), StoreError> {
    let tunnel = contacts::party_id(tx, &correction.tunnel().did())?;
    external_ids::insert(tx, tunnel, correction.id(), 0)?;
    Ok(())
}

fn subject(found: &StoredMessage) -> EventSubject {
    let object = Some(found.original_object).filter(|object| *object != 0);
    EventSubject { object, ..EventSubject::default() }
}

/// Appends the event of an edit or recall, on the Mail when there is one.
fn append_event(
    tx: &mut Tx<'_>,
    correction: &Correction,
    found: &StoredMessage,
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
    events::append(tx, kind, subject(found), &detail, now)
}

fn answered(result: StoreInboundResult) -> StoreEventResult {
    StoreEventResult { result, letter: None }
}
