//! Stores Mails again that were read from their files.

use std::sync::Arc;

use monoco_core::claim::MailLocation;
use monoco_core::did::Did;
use monoco_core::event::EventKind;
use monoco_core::inbound::InboundMessage;
use monoco_core::mail::MailIndexEntry;
use monoco_core::merge::BuiltMail;
use monoco_core::time::Timestamp;
use serde_json::json;

use super::db::params;
use super::events::{self, EventSubject};
use super::mails::{self, NewMail};
use super::writer::Tx;
use super::{SqlStore, contacts, dispatch, external_ids, objects, records, rows};
use crate::{
    DispatchOutcome, DispatchRequest, ObjectStore, RestoreMailResult, StoreError, StoreResult,
};

impl SqlStore {
    /// Stores a Mail that was read from its file, or what is damaged of it.
    pub(super) async fn restore(
        &self,
        built: BuiltMail,
        location: MailLocation,
        owner: Did,
        now: Timestamp,
    ) -> StoreResult<RestoreMailResult> {
        let id = built.mail.header.id.clone();
        let find = self.read(move |db| match mails::find_seq(db, &id)? {
            Some(seq) => db.unless_damaged("Mail", seq, mails::by_seq(db, seq)),
            None => Ok(None),
        });
        let known = find.await?.map(|mail| mail.entry.msg_id);
        if known.is_some_and(|msg_id| msg_id != built.object.id()) {
            // The first message was received and merged again after the loss.
            return Ok(RestoreMailResult::Known);
        }
        let intact = match self.object(built.object.id()).await {
            Ok(_) => true,
            Err(StoreError::Damaged { .. } | StoreError::Missing { .. }) => false,
            // The file is older than the erasure.
            Err(StoreError::Erased { .. }) => return Ok(RestoreMailResult::Known),
            Err(error) => return Err(error),
        };
        if known.is_some() && intact {
            return Ok(RestoreMailResult::Known);
        }
        let _lock = self.erasing.read().await;
        self.put_large_message(&built.object).await?;
        let built = Arc::new(built);
        self.writer.run(move |tx| restore(tx, &built, location, &owner, now)).await
    }
}

fn restore(
    tx: &mut Tx<'_>,
    built: &BuiltMail,
    location: MailLocation,
    owner: &Did,
    now: Timestamp,
) -> StoreResult<RestoreMailResult> {
    let BuiltMail { mail, object: msg } = built;
    let id = &mail.header.id;
    if let Some(object) = objects::find(tx.db, tx.indexes.hashes.recent(), &msg.id())? {
        let body = Some(msg.canonical()).filter(|body| body.len() <= objects::MAX_INLINE_BYTES);
        let sql = "UPDATE objects SET body = ?2 WHERE seq = ?1";
        rows::execute(tx.db, sql, params![object, body.map(str::as_bytes)])?;
    }
    let entry = mail.entry(0, &mail.render());
    if let Some(seq) = mails::find_seq(tx.db, id)? {
        let change = mails::next_change(tx)?;
        let entry = MailIndexEntry { seq, ..entry };
        let sql = "SELECT location FROM mails WHERE seq = ?1";
        let stored: String = rows::one(tx.db, sql, [seq], |row| row.get(0))?;
        let location = MailLocation::parse(&stored).unwrap_or(location);
        let sql = "UPDATE mails SET entry = ?2, location = ?3, change = ?4 WHERE seq = ?1";
        let row = params![seq, rows::as_json(&entry)?, location.as_str(), change];
        rows::execute(tx.db, sql, row)?;
        return Ok(RestoreMailResult::Repaired);
    }
    let tunnel = &mail.header.tunnel;
    let request =
        DispatchRequest { msg: msg.clone(), tunnel: Some(tunnel.clone()), external_id: None };
    let unverified = mail.messages.iter().any(InboundMessage::is_unverified);
    match dispatch::dispatch_mail(tx, &request, unverified, now)?.outcome {
        DispatchOutcome::Blocked | DispatchOutcome::Dropped => {
            return Ok(RestoreMailResult::Rejected);
        }
        DispatchOutcome::Delivered { .. } | DispatchOutcome::Chained { .. } => {}
    }
    let object = objects::seq_of(tx.db, tx.indexes.hashes.recent(), &msg.id())?;
    let author = contacts::party_id(tx, msg.author())?;
    let owner = contacts::party_id(tx, owner)?;
    mails::insert(tx, NewMail { id, entry: &entry, object, author, owner, location })?;
    if location == MailLocation::Archive {
        records::complete(tx, object, owner, now)?;
    }
    let tunnel_id = contacts::party_id(tx, &tunnel.did())?;
    for message in &mail.messages {
        let recent = tx.indexes.external_ids.recent();
        let external_id = match external_ids::find(tx.db, recent, &message.id, Some(tunnel_id))? {
            Some((seq, known)) => {
                if known == 0 {
                    external_ids::set_object(tx, seq, object)?;
                }
                seq
            }
            None => external_ids::insert(tx, tunnel_id, &message.id, object)?,
        };
        if let Some(body) = &message.body_hash
            && external_ids::find_body(tx.db, tunnel_id, body, now)?.is_none()
        {
            let received_at = message.received_at;
            external_ids::insert_body(tx, tunnel_id, body, external_id, received_at)?;
        }
    }
    let subject = EventSubject { object: Some(object), ..EventSubject::default() };
    let detail = json!({"mail": id, "location": location.as_str()});
    events::append(tx, EventKind::Restored, subject, &detail, now)?;
    Ok(RestoreMailResult::Restored)
}
