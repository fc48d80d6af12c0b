//! Posts a draft that was picked up, and files what became of it.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use monoco_core::claim::Workspace;
use monoco_core::delivery::{Delivery, SendStateData};
use monoco_core::draft::{Draft, DraftContext, MAX_DRAFT, PreparedDraft, with_outcome};
use monoco_core::mail::{Mail, MailId, digest};
use monoco_core::object::ObjId;
use monoco_fs::FileOptions;
use monoco_mailbox::paths::{MAX_ATTACHMENT_BYTES, OUTBOUND_DIR};
use monoco_store::{DraftResult, DraftSendRequest, SendRequest, SendResult, StoreError};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use super::drafts::{DraftLoop, DraftUid, DraftsError, SENDING, is_its_own, is_uid};
use super::mailbox_dir::{Dir, OpenDirs};

/// Most drafts that are put away in one go.
const MAX_DRAFTS_PER_BATCH: usize = 100;

/// Where a draft of a directory goes whose name we do not take.
const ELSEWHERE: &str = "unknown";

/// Why a draft is not on its way.
enum DraftSendError {
    /// It can't be sent, now or later.
    Bad(String),
    /// Not now.
    Later(DraftsError),
}

impl DraftLoop {
    /// Posts a draft, or gives it up. Returns whether its end is to be awaited.
    pub(super) fn send(
        &self,
        hands: &mut OpenDirs<'_>,
        uid: &DraftUid,
        handle: &Handle,
    ) -> Result<bool, DraftsError> {
        if handle.block_on(self.store.draft_exists(&uid.uid))? {
            return Ok(!is_put_away(hands, uid)?);
        }
        match self.post(hands, uid, handle) {
            Ok(()) => Ok(true),
            Err(DraftSendError::Later(error)) => Err(error),
            Err(DraftSendError::Bad(reason)) => {
                tracing::warn!(draft = uid.uid, reason, "a draft can't be sent");
                give_up(hands, uid, &json!({"draft": uid.uid, "reason": reason}))?;
                Ok(false)
            }
        }
    }

    fn post(
        &self,
        hands: &mut OpenDirs<'_>,
        uid: &DraftUid,
        handle: &Handle,
    ) -> Result<(), DraftSendError> {
        let Some(bytes) = read_draft(hands, uid)? else {
            return Err(DraftSendError::Bad("it is not a plain file any more".to_owned()));
        };
        let text = String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8"))?;
        let providers = self.providers();
        let Some(tunnels) = providers.get(&uid.provider) else {
            let known: Vec<_> = providers.keys().map(String::as_str).collect();
            let why = format!("there is no provider {}; there are {}", uid.provider, {
                known.join(", ")
            });
            return Err(bad(why));
        };
        let draft = Draft::parse(&text).map_err(|error| bad(error.to_string()))?;
        let answers = match &draft.reply_to {
            Some(id) => Some(self.answered(id, handle)?),
            None => None,
        };
        let sizes = self.keep_artifacts(hands, &draft, handle)?;
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
            post: SendRequest { msg, key: Some(key), not_before },
        };
        let (store, through) = (&self.store, self.entry.outbound());
        match handle.block_on(store.send_draft(post, &through, self.clock.now())) {
            Ok(SendResult::Queued { msg_id, duplicate, .. }) => {
                tracing::info!(draft = uid.uid, %msg_id, duplicate, "a draft is on its way");
                Ok(())
            }
            Ok(SendResult::Chained { msg_id, letter, duplicate }) => {
                tracing::info!(draft = uid.uid, %msg_id, %letter, duplicate, "a draft is a letter");
                self.entry.notifier.notify(letter, Duration::ZERO);
                Ok(())
            }
            Ok(SendResult::BlockedAuthor { .. }) => Err(bad(format!("{} is blocked", self.owner))),
            Err(error) => Err(refusal(error)),
        }
    }

    /// The Mail that a draft answers.
    fn answered(&self, id: &MailId, handle: &Handle) -> Result<Mail, DraftSendError> {
        let store = &self.store;
        let row = handle.block_on(store.mail(id, &Workspace::shared())).map_err(refusal)?;
        let msg_id = row.entry.msg_id;
        let object = handle.block_on(store.object(msg_id)).map_err(refusal)?;
        let unreadable = |why: String| bad(format!("reply_to: {id} can't be read: {why}"));
        let text = String::from_utf8(object).map_err(|error| unreadable(error.to_string()))?;
        Mail::read(msg_id, &text).map_err(|error| unreadable(error.to_string()))
    }

    /// Sees to it that the store has what goes with a draft. Returns how large it is.
    fn keep_artifacts(
        &self,
        hands: &OpenDirs<'_>,
        draft: &Draft,
        handle: &Handle,
    ) -> Result<BTreeMap<ObjId, u64>, DraftSendError> {
        let store = &self.store;
        let mut sizes = BTreeMap::new();
        for attached in &draft.artifacts {
            let hash = attached.hash.to_string();
            let name = hash.rsplit(':').next().unwrap_or(&hash);
            let dropped = hands.dropped(name, MAX_ATTACHMENT_BYTES).ok().flatten();
            let bytes = match dropped.filter(|bytes| digest(bytes) == name) {
                Some(bytes) => {
                    let size = bytes.len();
                    handle.block_on(store.put_blob(bytes)).map_err(refusal)?;
                    size
                }
                None => match handle.block_on(store.object(attached.hash)) {
                    Ok(bytes) => bytes.len(),
                    Err(StoreError::Missing { .. }) => {
                        let why = "is neither in the dropzone nor in the store";
                        return Err(bad(format!("artifacts: {:?} ({hash}) {why}", attached.name)));
                    }
                    Err(error) => return Err(refusal(error)),
                },
            };
            sizes.insert(attached.hash, bytes as u64);
        }
        Ok(sizes)
    }

    /// Puts drafts away whose deliveries have all ended. Returns which.
    pub(super) fn settle(
        &self,
        hands: &mut OpenDirs<'_>,
        handle: &Handle,
    ) -> Result<Vec<DraftUid>, DraftsError> {
        let store = &self.store;
        let mut put_away = Vec::new();
        loop {
            let fates = handle.block_on(store.finished_drafts(MAX_DRAFTS_PER_BATCH))?;
            let more = fates.len() == MAX_DRAFTS_PER_BATCH;
            for fate in fates {
                let uid = DraftUid { provider: fate.provider.clone(), uid: fate.uid.clone() };
                // Names from the store are ours; whatever else it says is no path.
                if is_uid(&uid.uid) && is_plain(&uid.provider) {
                    self.put_away(hands, &uid, &fate, handle)?;
                }
                handle.block_on(store.close_draft(&uid.uid))?;
                put_away.push(uid);
            }
            if !more {
                return Ok(put_away);
            }
        }
    }

    fn put_away(
        &self,
        hands: &mut OpenDirs<'_>,
        uid: &DraftUid,
        fate: &DraftResult,
        handle: &Handle,
    ) -> Result<(), DraftsError> {
        if is_put_away(hands, uid)? {
            return Ok(());
        }
        let deliveries: Vec<_> = fate.deliveries.iter().map(shown).collect();
        let letters = handle.block_on(self.store.letters_of(fate.msg_id))?;
        let letter = letters.first().map(|row| json!(row.id));
        let sent =
            |delivery: &Delivery| matches!(delivery.sending.state, SendStateData::Sent { .. });
        if fate.ended.is_some() || !fate.deliveries.iter().all(sent) {
            let reason = fate.ended.as_deref().unwrap_or("it was not delivered to everybody");
            tracing::warn!(draft = uid.uid, msg_id = %fate.msg_id, reason, "a draft is given up");
            let mut about = json!({
                "draft": uid.uid, "reason": reason, "msg_id": fate.msg_id, "deliveries": deliveries,
            });
            if let Some(letter) = letter {
                about["letter"] = letter;
            }
            give_up(hands, uid, &about)?;
            return Ok(());
        }
        let (life, _) = handle.block_on(self.store.advance_retention_clock(self.clock.now()))?;
        // `day` is for retention, which does not trust the clock.
        let mut outcome =
            json!({"msg_id": fate.msg_id, "deliveries": deliveries, "day": life.day()});
        if let Some(letter) = letter {
            outcome["letter"] = letter;
        }
        // Somebody may have removed it meanwhile; what became of it is still worth knowing.
        let draft = match read_draft(hands, uid) {
            Ok(draft) => draft.unwrap_or_default(),
            Err(DraftSendError::Bad(_)) => Vec::new(),
            Err(DraftSendError::Later(error)) => return Err(error),
        };
        let text = with_outcome(&String::from_utf8_lossy(&draft), &outcome);
        let archive = hands.provider_dir("archive", &uid.provider, true)?.ok_or_else(gone)?;
        let look = FileOptions { synced: true, ..FileOptions::READ_ONLY };
        hands.put(&archive, &file(uid), text.as_bytes(), look)?;
        archive.sync()?;
        remove_sending(hands, uid)?;
        Ok(())
    }
}

/// What became of one delivery.
fn shown(delivery: &Delivery) -> Value {
    let sending = &delivery.sending;
    let mut shown = json!({
        "target": delivery.plan.target_did,
        "state": sending.state.name().as_str(),
        "attempts": sending.attempts,
    });
    if let SendStateData::Sent { external_msg_id: Some(id) } = &sending.state {
        shown["external_msg_id"] = json!(id);
    }
    if let Some(why) = sending.state.failure() {
        shown["error"] = json!(why.detail());
    }
    shown
}

/// Moves a draft to the dead letters, its bytes as they are, with the reason beside it.
fn give_up(hands: &mut OpenDirs<'_>, uid: &DraftUid, about: &Value) -> io::Result<()> {
    let shelf = if is_plain(&uid.provider) { &uid.provider } else { ELSEWHERE };
    let dead = hands.provider_dir(".deadletter", shelf, true)?.ok_or_else(gone)?;
    // First the reason, so that there is no dead letter without one.
    let look = FileOptions { synced: true, ..FileOptions::READ_ONLY };
    let reason = format!("{}.reason.json", uid.uid);
    hands.put(&dead, &reason, format!("{about:#}\n").as_bytes(), look)?;
    if let Some(sending) = sending(hands, uid)? {
        match sending.rename(&file(uid), &dead, &file(uid)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        dead.sync()?;
        sending.sync()?;
    }
    Ok(())
}

/// Whether a draft has reached the archive or the dead letters; then it is nowhere else.
fn is_put_away(hands: &mut OpenDirs<'_>, uid: &DraftUid) -> io::Result<bool> {
    for part in ["archive", ".deadletter"] {
        let Some(dir) = hands.provider_dir(part, &uid.provider, false)? else { continue };
        if dir.stat(&file(uid))?.is_some() {
            remove_sending(hands, uid)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn remove_sending(hands: &mut OpenDirs<'_>, uid: &DraftUid) -> io::Result<()> {
    let Some(sending) = sending(hands, uid)? else { return Ok(()) };
    if sending.remove(&file(uid))? {
        // Before the store forgets it: otherwise it would come back to nobody.
        sending.sync()?;
    }
    Ok(())
}

fn read_draft(hands: &mut OpenDirs<'_>, uid: &DraftUid) -> Result<Option<Vec<u8>>, DraftSendError> {
    let Some(sending) = sending(hands, uid).map_err(later)? else { return Ok(None) };
    match sending.read(&file(uid), MAX_DRAFT as u64) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge || is_its_own(&error) => {
            Err(bad(error.to_string()))
        }
        Err(error) => Err(later(error)),
    }
}

fn sending(hands: &mut OpenDirs<'_>, uid: &DraftUid) -> io::Result<Option<Dir>> {
    match hands.provider_dir(OUTBOUND_DIR, &uid.provider, false)? {
        Some(dir) => super::mailbox_dir::found(dir.sub(SENDING)),
        None => Ok(None),
    }
}

fn file(uid: &DraftUid) -> String {
    format!("{}.md", uid.uid)
}

/// Whether a directory's name may name another one of ours.
fn is_plain(provider: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=64).contains(&provider.len()) && provider.bytes().all(plain)
}

/// Sorts what the store says into what will pass and what will not.
fn refusal(error: StoreError) -> DraftSendError {
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
