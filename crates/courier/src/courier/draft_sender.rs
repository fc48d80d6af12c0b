//! Submits a draft to the store, and moves its file when all deliveries have ended.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use monoco_core::approval::SendOrigin;
use monoco_core::delivery::{Delivery, SendStateData};
use monoco_core::draft::{Draft, DraftContext, MAX_DRAFT, PreparedDraft, with_outcome};
use monoco_core::mail::{Mail, MailId};
use monoco_core::object::ObjId;
use monoco_fs::{Dir, FileOptions};
use monoco_mailbox::paths::{MAX_ATTACHMENT_BYTES, OUTBOUND_DIR};
use monoco_store::{DraftResult, DraftSendRequest, SendRequest, SendResult, StoreError};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::dead_drafts::DEADLETTER_DIR;
use super::drafts::{DraftLoop, DraftUid, DraftsError, SENDING_DIR, is_per_file, is_uid};
use super::mailbox_dir::OpenDirs;
use super::sender::open_attachment;
use crate::center::reply::{ReplyError, read_mail};

const MAX_DRAFTS_PER_BATCH: usize = 100;

/// Dead-letter directory of drafts whose provider directory has an invalid name.
const UNKNOWN_PROVIDER: &str = "unknown";

enum DraftSendError {
    /// The draft cannot be sent, now or later.
    Bad(String),
    /// The draft may be sent later.
    Later(DraftsError),
}

impl DraftLoop {
    /// Submits a draft or moves it to the dead letters. Returns whether its result is
    /// pending.
    pub(super) fn send(
        &self,
        dirs: &mut OpenDirs<'_>,
        uid: &DraftUid,
        handle: &Handle,
    ) -> Result<bool, DraftsError> {
        if handle.block_on(self.store.draft_exists(&uid.uid))? {
            return Ok(!is_filed(dirs, uid)?);
        }
        match self.post(dirs, uid, handle) {
            Ok(()) => Ok(true),
            Err(DraftSendError::Later(error)) => Err(error),
            Err(DraftSendError::Bad(reason)) => {
                tracing::warn!(draft = uid.uid, reason, "cannot send draft; moved to dead letters");
                self.move_to_deadletter(dirs, uid, &json!({"draft": uid.uid, "reason": reason}))?;
                Ok(false)
            }
        }
    }

    fn post(
        &self,
        dirs: &mut OpenDirs<'_>,
        uid: &DraftUid,
        handle: &Handle,
    ) -> Result<(), DraftSendError> {
        let Some(bytes) = read_draft(dirs, uid)? else {
            return Err(DraftSendError::Bad("the draft is not a plain file".to_owned()));
        };
        let text = String::from_utf8(bytes).map_err(|_| bad("the draft is not UTF-8"))?;
        let providers = self.providers();
        let Some(tunnels) = providers.get(&uid.provider) else {
            let known: Vec<_> = providers.keys().map(String::as_str).collect();
            let why = format!("unknown provider {:?}; configured providers: {}", uid.provider, {
                known.join(", ")
            });
            return Err(bad(why));
        };
        let draft = Draft::parse(&text).map_err(|error| bad(error.to_string()))?;
        let answers = match &draft.reply_to {
            Some(id) => Some(self.replied_mail(id, handle)?),
            None => None,
        };
        let sizes = self.store_attachments(dirs, &draft, handle)?;
        let facts = DraftContext {
            owner: &self.owner,
            uid: &uid.uid,
            provider: &uid.provider,
            tunnels,
            answers: answers.as_ref(),
            sizes: &sizes,
        };
        let sealed = draft.into_message(&facts).map_err(|error| bad(error.to_string()))?;
        let PreparedDraft { msg, key, not_before } = sealed;
        let post = DraftSendRequest {
            uid: uid.uid.clone(),
            provider: uid.provider.clone(),
            post: SendRequest { msg, key: Some(key), not_before, origin: SendOrigin::Owner },
        };
        let (store, through) = (&self.store, self.entry.outbound());
        match handle.block_on(store.send_draft(post, &through, self.clock.now())) {
            Ok(SendResult::Queued { msg_id, duplicate, .. }) => {
                tracing::info!(draft = uid.uid, %msg_id, duplicate, "draft queued for delivery");
                Ok(())
            }
            Ok(SendResult::Held { msg_id, duplicate, approval, .. }) => {
                let approval = approval.id;
                tracing::info!(draft = uid.uid, %msg_id, %approval, duplicate, "draft held for approval");
                Ok(())
            }
            Ok(SendResult::Chained { msg_id, letter, duplicate }) => {
                tracing::info!(draft = uid.uid, %msg_id, %letter, duplicate, "draft accepted as letter");
                self.entry.notifier.notify(letter, Duration::ZERO);
                Ok(())
            }
            Ok(SendResult::BlockedAuthor { .. }) => {
                Err(bad(format!("the sender {} is blocked", self.owner)))
            }
            Err(error) => Err(send_error(error)),
        }
    }

    /// Reads the Mail that a draft replies to.
    fn replied_mail(&self, id: &MailId, handle: &Handle) -> Result<Mail, DraftSendError> {
        handle.block_on(read_mail(&self.store, id)).map_err(|error| match error {
            ReplyError::Store(error) => send_error(error),
            other => bad(format!("reply_to: {other}")),
        })
    }

    /// Stores the attachments of a draft that are in the dropzone. Returns the size of
    /// each.
    fn store_attachments(
        &self,
        dirs: &OpenDirs<'_>,
        draft: &Draft,
        handle: &Handle,
    ) -> Result<BTreeMap<ObjId, u64>, DraftSendError> {
        let store = &self.store;
        let mut sizes = BTreeMap::new();
        for attached in &draft.artifacts {
            let hash = attached.hash;
            if let Some(file) = dirs.open_attachment(&hash).ok().flatten() {
                let mut file = tokio::fs::File::from_std(file);
                let stored = store.put_blob_from(&mut file, MAX_ATTACHMENT_BYTES);
                match handle.block_on(stored) {
                    // A file that is larger, or was modified meanwhile, is not this attachment.
                    Ok(_) | Err(StoreError::TooLarge(_)) => {}
                    Err(error) => return Err(send_error(error)),
                }
            }
            let size = match handle.block_on(open_attachment(store, hash)) {
                Ok(attachment) => attachment.size,
                Err(StoreError::Missing { .. }) => {
                    let why = "is neither in the dropzone nor in the store";
                    return Err(bad(format!("artifacts: {:?} ({hash}) {why}", attached.name)));
                }
                Err(error) => return Err(send_error(error)),
            };
            sizes.insert(hash, size);
        }
        Ok(sizes)
    }

    /// Moves the files of drafts whose deliveries have all ended. Returns these drafts.
    pub(super) fn settle(
        &self,
        dirs: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<Vec<DraftUid>, DraftsError> {
        let store = &self.store;
        let mut file_draft = Vec::new();
        loop {
            let results = handle.block_on(store.finished_drafts(MAX_DRAFTS_PER_BATCH))?;
            let more = results.len() == MAX_DRAFTS_PER_BATCH;
            for result in results {
                let uid = DraftUid { provider: result.provider.clone(), uid: result.uid.clone() };
                // Only names of the right form are used as paths.
                if is_uid(&uid.uid) && is_plain(&uid.provider) {
                    self.file_draft(dirs, &uid, &result, handle)?;
                }
                handle.block_on(store.close_draft(&uid.uid))?;
                file_draft.push(uid);
            }
            if !more {
                return Ok(file_draft);
            }
        }
    }

    fn file_draft(
        &self,
        dirs: &mut OpenDirs<'_>,
        uid: &DraftUid,
        result: &DraftResult,
        handle: &Handle,
    ) -> Result<(), DraftsError> {
        if is_filed(dirs, uid)? {
            return Ok(());
        }
        let deliveries: Vec<_> = result.deliveries.iter().map(shown).collect();
        let letters = handle.block_on(self.store.letters_of(result.msg_id))?;
        let sent =
            |delivery: &Delivery| matches!(delivery.sending.state, SendStateData::Sent { .. });
        if result.ended.is_some() || !result.deliveries.iter().all(sent) {
            let reason = result.ended.as_deref().unwrap_or("not delivered to all recipients");
            tracing::warn!(draft = uid.uid, msg_id = %result.msg_id, reason, "draft not delivered; moved to dead letters");
            let mut about = json!({
                "draft": uid.uid, "reason": reason, "msg_id": result.msg_id, "deliveries": deliveries,
            });
            if let Some(row) = letters.first() {
                about["letter"] = json!(row.id);
                about["letter_state"] = json!(row.status.standing.name().as_str());
            }
            self.move_to_deadletter(dirs, uid, &about)?;
            return Ok(());
        }
        let (life, _) = handle.block_on(self.store.advance_retention_clock(self.clock.now()))?;
        // Retention counts by `day` and not by the clock.
        let mut outcome =
            json!({"msg_id": result.msg_id, "deliveries": deliveries, "day": life.day()});
        if let Some(row) = letters.first() {
            outcome["letter"] = json!(row.id);
        }
        // The file may have been removed; the outcome is archived without it.
        let draft = match read_draft(dirs, uid) {
            Ok(draft) => draft.unwrap_or_default(),
            Err(DraftSendError::Bad(_)) => Vec::new(),
            Err(DraftSendError::Later(error)) => return Err(error),
        };
        let text = with_outcome(&String::from_utf8_lossy(&draft), &outcome);
        let archive = dirs.provider_dir("archive", &uid.provider, true)?.ok_or_else(gone)?;
        let options = FileOptions { synced: true, ..FileOptions::READ_ONLY };
        dirs.put(&archive, &file(uid), text.as_bytes(), options)?;
        archive.sync()?;
        remove_sending(dirs, uid)?;
        Ok(())
    }

    /// Moves a draft unchanged to the dead letters and writes the reason beside it.
    fn move_to_deadletter(
        &self,
        dirs: &mut OpenDirs<'_>,
        uid: &DraftUid,
        about: &Value,
    ) -> io::Result<()> {
        let subdir = if is_plain(&uid.provider) { &uid.provider } else { UNKNOWN_PROVIDER };
        let dead = dirs.provider_dir(DEADLETTER_DIR, subdir, true)?.ok_or_else(gone)?;
        // The reason is written first, so that every dead letter has one.
        let options = FileOptions { synced: true, ..FileOptions::READ_ONLY };
        let reason = format!("{}.reason.json", uid.uid);
        dirs.put(&dead, &reason, format!("{about:#}\n").as_bytes(), options)?;
        if let Some(sending) = sending(dirs, uid)? {
            match sending.rename(&file(uid), &dead, &file(uid)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            dead.sync()?;
            sending.sync()?;
        }
        self.dead.add(subdir, &uid.uid, about);
        Ok(())
    }
}

/// Outcome of one delivery as JSON.
fn shown(delivery: &Delivery) -> Value {
    let sending = &delivery.sending;
    let mut shown = json!({
        "target": delivery.plan.target_did,
        "state": sending.state.name().as_str(),
        "attempts": sending.attempts,
    });
    if let SendStateData::Sent { external_msg_id: Some(id), .. } = &sending.state {
        shown["external_msg_id"] = json!(id);
    }
    if let Some(why) = sending.state.failure() {
        shown["error"] = json!(why.detail());
    }
    shown
}

/// Whether a draft is in the archive or the dead letters. Removes a remaining copy in
/// `.sending/`.
fn is_filed(dirs: &mut OpenDirs<'_>, uid: &DraftUid) -> io::Result<bool> {
    for part in ["archive", DEADLETTER_DIR] {
        let Some(dir) = dirs.provider_dir(part, &uid.provider, false)? else { continue };
        if dir.stat(&file(uid))?.is_some() {
            remove_sending(dirs, uid)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn remove_sending(dirs: &mut OpenDirs<'_>, uid: &DraftUid) -> io::Result<()> {
    let Some(sending) = sending(dirs, uid)? else { return Ok(()) };
    if sending.remove(&file(uid))? {
        // Synced before the store closes the draft: a file that reappears would be sent
        // again.
        sending.sync()?;
    }
    Ok(())
}

fn read_draft(dirs: &mut OpenDirs<'_>, uid: &DraftUid) -> Result<Option<Vec<u8>>, DraftSendError> {
    let Some(sending) = sending(dirs, uid).map_err(later)? else { return Ok(None) };
    match sending.read(&file(uid), MAX_DRAFT as u64) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge || is_per_file(&error) => {
            Err(bad(error.to_string()))
        }
        Err(error) => Err(later(error)),
    }
}

fn sending(dirs: &mut OpenDirs<'_>, uid: &DraftUid) -> io::Result<Option<Dir>> {
    match dirs.provider_dir(OUTBOUND_DIR, &uid.provider, false)? {
        Some(dir) => monoco_fs::found(dir.sub(SENDING_DIR)),
        None => Ok(None),
    }
}

fn file(uid: &DraftUid) -> String {
    format!("{}.md", uid.uid)
}

/// Whether the name is safe as a directory name.
fn is_plain(provider: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=64).contains(&provider.len()) && provider.bytes().all(plain)
}

/// Tells temporary errors of the store from permanent ones.
fn send_error(error: StoreError) -> DraftSendError {
    match error {
        StoreError::DiskFull
        | StoreError::Broken(_)
        | StoreError::Unavailable(_)
        | StoreError::Conflict { .. } => DraftSendError::Later(error.into()),
        other => bad(other.to_string()),
    }
}

fn bad(why: impl Into<String>) -> DraftSendError {
    DraftSendError::Bad(why.into())
}

fn later(error: io::Error) -> DraftSendError {
    DraftSendError::Later(error.into())
}

fn gone() -> io::Error {
    io::ErrorKind::NotFound.into()
}
