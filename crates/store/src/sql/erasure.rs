//! Erases what one person wrote: letters, inbound messages, then objects.
//!
//! This is the order in which a text moves on, so that none escapes. Each page of rows is one
//! commit, and a repeated erasure finds what is left. `core/erasure.rs` decides what happens to
//! an object. The row of a rewritten Mail keeps its number, so that records, events and external
//! ids refer to the new object; the old id gets a tombstone of its own.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use monoco_core::claim::MailLocation;
use monoco_core::did::Did;
use monoco_core::erasure::{
    ErasedAuthors, ErasureAction, attachments, mail_hashes, tombstone_entry,
};
use monoco_core::event::EventKind;
use monoco_core::letter::LetterId;
use monoco_core::mail::MailIndexEntry;
use monoco_core::merge::BuiltMail;
use monoco_core::object::{MsgObject, ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde_json::{Value, json};

use super::db::{Db, ToParam, params};
use super::events::{self, EventSubject};
use super::letters::erasure as letter_erasure;
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{
    ReaderSource, SqlStore, approvals, claims, contacts, deliveries, email, inbound, mails,
    objects, records, tokens,
};
use crate::postgres::ErasureLock;
use crate::{ErasureCounts, ErasureRequest, ErasureStore, StoreError};
use texts::{InboundText, ObjectText, TextPage, action, is_written_by};
pub(super) use texts::{TextFiles, TextPositions};

mod orphans;
mod texts;

/// Rows that one page reads. Bounds how long one commit takes.
const MAX_ROWS_PER_PAGE: usize = 500;

// Events with texts of workers, operators or providers, which can quote the message.
const EVENTS_WITH_REASONS: &str = "
    SELECT e.seq, e.detail,
           o.erased_at IS NOT NULL
           OR e.kind = 'notice'
              AND EXISTS (SELECT 1 FROM parties p JOIN erasures x ON x.did = p.did
                           WHERE p.id = e.owner)
      FROM events e
      LEFT JOIN objects o ON o.seq = e.object
     WHERE e.seq > ?1
       AND e.kind IN ('verdict', 'marked', 'damaged', 'failed', 'dead', 'uncertain', 'notice')
     ORDER BY e.seq
     LIMIT ?2
";

/// Stops an erasure between the search for references and the deletion of files.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct DeletionPause {
    is_set: std::sync::atomic::AtomicBool,
    reached: tokio::sync::Notify,
    resume: tokio::sync::Notify,
}

#[cfg(test)]
impl DeletionPause {
    /// Stops the next erasure.
    pub(crate) fn set(&self) {
        self.is_set.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    /// Waits until the erasure has stopped.
    pub(crate) async fn wait(&self) {
        self.reached.notified().await;
    }

    pub(crate) fn resume(&self) {
        self.resume.notify_one();
    }

    async fn reach(&self) {
        if self.is_set.swap(false, std::sync::atomic::Ordering::SeqCst) {
            self.reached.notify_one();
            self.resume.notified().await;
        }
    }
}

/// An object to erase.
struct ObjectErasure {
    seq: i64,
    id: ObjId,
    location: Option<MailLocation>,
    action: ErasureAction,
    /// Without the attachments of the rewritten Mail.
    files: TextFiles,
}

/// Notes files to delete, unless another text refers to them.
pub(super) fn add_files(tx: &Tx<'_>, files: &TextFiles) -> Result<(), StoreError> {
    for id in files.attachments.iter().chain(&files.texts) {
        let sql = "INSERT INTO erased_files (hash) VALUES (?1) ON CONFLICT DO NOTHING";
        rows::execute(tx.db, sql, [id.hash()])?;
    }
    for prefix in &files.mails {
        email::erase_mail(tx, prefix)?;
    }
    Ok(())
}

/// Applies the action for one object.
fn erase_object(tx: &mut Tx<'_>, object: &ObjectErasure, now: Timestamp) -> Result<(), StoreError> {
    add_files(tx, &object.files)?;
    if object.action != ErasureAction::Keep {
        let sql = "INSERT INTO erased_objects (object) VALUES (?1)";
        rows::insert(tx.db, sql, [object.seq])?;
    }
    match &object.action {
        ErasureAction::Keep => Ok(()),
        ErasureAction::Tombstone { .. } => erase_whole(tx, object.seq, now),
        ErasureAction::Rewrite { mail, .. } => rewrite(tx, object, mail, now),
    }
}

/// Makes an object a tombstone, and ends what waits for its text.
fn erase_whole(tx: &mut Tx<'_>, object: i64, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE objects SET body = NULL, erased_at = ?2 WHERE seq = ?1";
    rows::execute(tx.db, sql, [object, now.ms()])?;
    records::erase(tx, object, now)?;
    deliveries::erase(tx, object, now)?;
    approvals::erase(tx, object, now)?;
    rows::execute(tx.db, "UPDATE drafts SET open = 0 WHERE object = ?1", [object])?;
    if let Some(mail) = mails::of_object(tx.db, object)? {
        claims::erase(tx, &mail, now)?;
        tokens::delete_reads(tx, &mail)?;
        let entry = tombstone_entry(&mail.entry, now);
        mails::replace_entry(tx, mail.seq, &entry, MailLocation::Removed)?;
    }
    append_event(tx, Some(object), &json!({}), now)
}

/// Replaces a Mail by one without the person's messages. The old id stays as a tombstone.
fn rewrite(
    tx: &mut Tx<'_>,
    object: &ObjectErasure,
    built: &BuiltMail,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (msg, seq) = (&built.object, object.seq);
    let body = Some(msg.canonical()).filter(|body| body.len() <= objects::MAX_INLINE_BYTES);
    let sql = "UPDATE objects SET hash = ?2, body = ?3 WHERE seq = ?1";
    rows::execute(tx.db, sql, params![seq, msg.id().hash(), body.map(str::as_bytes)])?;
    tx.indexes.hashes.add(tx.db, objects::hash_prefix(msg.id().hash()), seq)?;
    let tombstone = objects::insert(tx, &object.id, None)?;
    tx.replace_known_object();
    let sql = "UPDATE objects SET erased_at = ?2, superseded_by = ?3 WHERE seq = ?1";
    rows::execute(tx.db, sql, [tombstone, now.ms(), seq])?;
    if let Some(mail) = mails::of_object(tx.db, seq)? {
        let entry = built.mail.entry(mail.seq, &built.mail.render());
        let entry = MailIndexEntry { erased_at: Some(now), ..entry };
        mails::replace_entry(tx, mail.seq, &entry, mail.location)?;
    }
    append_event(tx, Some(seq), &json!({"supersedes": object.id}), now)
}

/// Deletes an inbound message and takes it out of its merge window.
fn erase_inbound(tx: &Tx<'_>, message: &InboundText) -> Result<(), StoreError> {
    let (attachments, mails) =
        (message.attachments().collect(), mail_hashes(&message.json).collect());
    inbound::files::remove(tx, message.external_id)?;
    add_files(tx, &TextFiles { attachments, mails, ..TextFiles::default() })?;
    rows::execute(
        tx.db,
        "DELETE FROM inbound_messages WHERE external_id = ?1",
        [message.external_id],
    )?;
    let sql = "
        UPDATE merge_windows SET messages = messages - 1, bytes = CASE WHEN bytes > ?2 THEN bytes - ?2 ELSE 0 END
         WHERE id = ?1
    ";
    let bytes = rows::limit(message.json.len());
    rows::execute(tx.db, sql, [message.window, bytes])?;
    let sql = "DELETE FROM merge_windows WHERE id = ?1 AND messages <= 0";
    rows::execute(tx.db, sql, [message.window])?;
    Ok(())
}

/// Appends an event. It has ids and counts only: the DIDs name a person.
fn append_event(
    tx: &mut Tx<'_>,
    object: Option<i64>,
    detail: &Value,
    now: Timestamp,
) -> Result<(), StoreError> {
    let subject = EventSubject { object, ..EventSubject::default() };
    events::append(tx, EventKind::Erased, subject, detail, now)
}

/// Removes reasons and notes from the events of erased messages and letters. Returns the number
/// of the last event that was read.
fn erase_reasons(tx: &Tx<'_>, after: i64) -> Result<Option<i64>, StoreError> {
    let page = params![after, rows::limit(MAX_ROWS_PER_PAGE)];
    let events: Vec<(i64, String, bool)> = rows::list(tx.db, EVENTS_WITH_REASONS, page, |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?))
    })?;
    for (seq, detail, erased) in &events {
        // An event that cannot be parsed is damaged, and shown by no list.
        let Ok(mut value) = serde_json::from_str::<Value>(detail) else { continue };
        if !(*erased || is_of_erased_letter(tx.db, &value)?) {
            continue;
        }
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|key, _| !["why", "reason", "detail"].contains(&key.as_str()));
        }
        let verdicts = value.get_mut("verdicts").and_then(Value::as_array_mut);
        for verdict in verdicts.into_iter().flatten() {
            verdict.as_object_mut().and_then(|fields| fields.remove("note"));
        }
        let sql = "UPDATE events SET detail = ?2 WHERE seq = ?1";
        rows::execute(tx.db, sql, params![seq, value.to_string()])?;
    }
    Ok(events.last().map(|(seq, ..)| *seq))
}

fn is_of_erased_letter(db: &Db, detail: &Value) -> Result<bool, StoreError> {
    let letter = detail["letter"].as_str().and_then(|id| id.parse::<LetterId>().ok());
    let Some(letter) = letter else { return Ok(false) };
    let sql = "SELECT erased_at IS NOT NULL FROM letters WHERE seq = ?1";
    Ok(rows::optional(db, sql, [letter.seq], |row| row.get(0))?.unwrap_or(false))
}

/// Removes the contacts, names and bindings of a person, and the reasons of its receipts.
fn erase_contacts(tx: &mut Tx<'_>, request: &ErasureRequest) -> Result<(usize, usize), StoreError> {
    let counted = count_contacts(tx.db, request)?;
    for did in &request.authors.0 {
        if let Some(endpoint) = did.endpoint() {
            let sql = "DELETE FROM bindings WHERE tunnel = ?1 AND address = ?2 AND kind = ?3";
            let row =
                params![endpoint.tunnel.as_str(), endpoint.account, endpoint.kind.to_string()];
            rows::execute(tx.db, sql, row)?;
        }
        approvals::erase_account(tx, did)?;
        let Some(party) = contacts::find_party_id(tx, did)? else { continue };
        rows::execute(tx.db, "UPDATE receipts SET reason = NULL WHERE reader = ?1", [party])?;
        if request.owner.as_ref() == Some(did) {
            continue;
        }
        contacts::remove(tx.db, party)?;
    }
    tx.change_address_book();
    Ok(counted)
}

/// Counts the contacts and bindings that are removed.
fn count_contacts(db: &Db, request: &ErasureRequest) -> Result<(usize, usize), StoreError> {
    let (mut contacts, mut bindings) = (0, BTreeSet::new());
    for did in &request.authors.0 {
        let mut list = |condition: &str, values: &[&dyn ToParam]| {
            let sql = format!(
                "SELECT contact || ' ' || tunnel || ' ' || kind || ' ' || address
                   FROM bindings WHERE {condition}"
            );
            let found: Vec<String> = rows::list(db, &sql, values, |row| row.get(0))?;
            bindings.extend(found);
            Ok::<_, StoreError>(())
        };
        if let Some(endpoint) = did.endpoint() {
            let (tunnel, kind) = (endpoint.tunnel.as_str(), endpoint.kind.to_string());
            let values = params![tunnel, endpoint.account, kind];
            list("tunnel = ?1 AND address = ?2 AND kind = ?3", values)?;
        }
        let Some(party) = contacts::find(db, did)? else { continue };
        if request.owner.as_ref() == Some(did) {
            continue;
        }
        list("contact = ?1", params![party])?;
        let sql = "SELECT level IS NOT NULL OR here = 1 FROM parties WHERE id = ?1";
        contacts += usize::from(rows::one(db, sql, [party], |row| row.get::<bool>(0))?);
    }
    Ok((contacts, bindings.len()))
}

impl ErasureCounts {
    fn add(&mut self, object: &ObjectErasure) {
        let messages = match &object.action {
            ErasureAction::Keep => return,
            ErasureAction::Tombstone { messages } => {
                self.objects += 1;
                *messages
            }
            ErasureAction::Rewrite { messages, .. } => {
                self.mails += 1;
                *messages
            }
        };
        self.external_ids += messages;
        self.files += usize::from(object.location.is_some_and(|it| it.dir().is_some()));
    }

    fn detail(&self) -> Value {
        json!({
            "objects": self.objects,
            "mails": self.mails,
            "inbound_messages": self.inbound_messages,
            "letters": self.letters,
            "attachments": self.attachments,
            "contacts": self.contacts,
            "bindings": self.bindings,
        })
    }
}

impl SqlStore {
    /// Returns a message that has a row.
    pub(super) async fn message_of_row(&self, object: i64) -> Result<MsgObject, StoreError> {
        let (id, body) = self.read(move |db| objects::body(db, object)).await?;
        self.message(id, body).await
    }

    /// Decides about the objects after a number. Damaged objects are left out.
    async fn object_erasures(
        &self,
        authors: &ErasedAuthors,
        after: i64,
    ) -> Result<TextPage<ObjectErasure>, StoreError> {
        let terms = authors.search_terms();
        let is_wanted = move |text: &str| terms.iter().any(|term| text.contains(term.as_str()));
        let TextPage { texts, last } = self.object_texts(after, is_wanted).await?;
        let mut erasures = Vec::new();
        for object in texts {
            let action = match action(authors, &object) {
                Err(error @ StoreError::Damaged { .. }) => {
                    tracing::error!(%error, "cannot decide about a damaged object");
                    continue;
                }
                action => action?,
            };
            let attachments_of = |text: &str| attachments(text).collect::<BTreeSet<_>>();
            let mut files = TextFiles {
                attachments: attachments_of(&object.text),
                mails: mail_hashes(&object.text).collect(),
                ..TextFiles::default()
            };
            if object.in_file {
                files.texts.insert(ObjId::from_parts(ObjKind::Bytes, *object.id.hash()));
            }
            match &action {
                ErasureAction::Keep => continue,
                ErasureAction::Tombstone { .. } => {}
                ErasureAction::Rewrite { mail, .. } => {
                    let kept = attachments_of(mail.object.canonical());
                    files.attachments.retain(|id| !kept.contains(id));
                }
            }
            let ObjectText { seq, id, location, .. } = object;
            erasures.push(ObjectErasure { seq, id, location, action, files });
        }
        Ok(TextPage { texts: erasures, last })
    }

    /// Keeps other couriers of a shared store from erasing until the erasure is finished.
    async fn lock_erasures(&self) -> Result<(), StoreError> {
        let ReaderSource::Postgres(connector) = &self.readers.source else { return Ok(()) };
        // An erasure that has failed can still hold it.
        self.erasure_lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        let connector = Arc::clone(connector);
        let acquire = tokio::task::spawn_blocking(move || ErasureLock::acquire(&connector));
        let lock = acquire.await.map_err(|_| super::closed())??;
        *self.erasure_lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(lock);
        Ok(())
    }

    /// Deletes the files that were noted and that no text refers to any more, and returns them.
    /// Their names stay noted for copies outside of the store.
    async fn delete_files(&self, in_use: &BTreeSet<ObjId>) -> Result<BTreeSet<ObjId>, StoreError> {
        let noted: BTreeSet<_> = self.erased_attachments().await?.into_iter().collect();
        let candidates: BTreeSet<_> = noted.difference(in_use).copied().collect();
        let mut all = TextPositions::default();
        let unused = self.retain_unused(candidates, &ErasedAuthors::default(), &mut all).await?;
        let unused = self.retain_without_object(unused).await?;
        let (used, files) =
            (noted.difference(&unused).copied().collect::<Vec<_>>(), unused.clone());
        #[cfg(test)]
        self.deletion_pause.reach().await;
        let commit = self.writer.run(move |tx| {
            for id in &used {
                rows::execute(tx.db, "DELETE FROM erased_files WHERE hash = ?1", [id.hash()])?;
            }
            let mut deleted = BTreeSet::new();
            for id in &files {
                // Another courier that refers to it since the search has removed the note.
                let noted = "SELECT 1 FROM erased_files WHERE hash = ?1";
                if rows::optional(tx.db, noted, [id.hash()], |_| Ok(()))?.is_some() {
                    rows::execute(tx.db, "DELETE FROM blobs WHERE hash = ?1", [id.hash()])?;
                    deleted.insert(*id);
                }
            }
            Ok(deleted)
        });
        let unused = commit.await?;
        let (blobs, files) = (Arc::clone(&self.blobs), unused.clone());
        let removed =
            tokio::task::spawn_blocking(move || files.iter().try_for_each(|id| blobs.remove(id)));
        removed.await.map_err(|_| super::closed())?.map_err(super::blob_error)?;
        Ok(unused)
    }

    async fn erase_letters(
        &self,
        authors: &ErasedAuthors,
        texts: &mut BTreeSet<ObjId>,
        now: Timestamp,
    ) -> Result<usize, StoreError> {
        let (mut count, mut after) = (0, 0);
        loop {
            let mut page = self.letter_references(authors, after).await?;
            let Some(last) = page.last() else { return Ok(count) };
            after = last.id.seq;
            page.retain(|letter| letter.is_erased);
            count += page.len();
            texts.extend(page.iter().flat_map(|letter| &letter.files.texts));
            let erase = self.writer.run(move |tx| {
                page.iter().try_for_each(|letter| letter_erasure::erase(tx, letter, now))
            });
            erase.await?;
        }
    }

    async fn erase_inbound_messages(&self, authors: &ErasedAuthors) -> Result<usize, StoreError> {
        let (mut count, mut after) = (0, 0);
        loop {
            let TextPage { mut texts, last } = self.inbound_texts(after).await?;
            let Some(last) = last else { return Ok(count) };
            after = last;
            texts.retain(|message| is_written_by(message, authors));
            count += texts.len();
            let erase = self
                .writer
                .run(move |tx| texts.iter().try_for_each(|message| erase_inbound(tx, message)));
            erase.await?;
        }
    }

    async fn erase_objects(
        &self,
        authors: &ErasedAuthors,
        counts: &mut ErasureCounts,
        large_texts: &mut BTreeSet<ObjId>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let mut after = 0;
        loop {
            let TextPage { texts, last } = self.object_erasures(authors, after).await?;
            let Some(last) = last else { return Ok(()) };
            after = last;
            for object in &texts {
                counts.add(object);
                large_texts.extend(&object.files.texts);
                if let ErasureAction::Rewrite { mail, .. } = &object.action {
                    self.put_large_message(&mail.object).await?;
                }
            }
            let erase = self
                .writer
                .run(move |tx| texts.iter().try_for_each(|object| erase_object(tx, object, now)));
            erase.await?;
        }
    }
}

#[async_trait]
impl ErasureStore for SqlStore {
    async fn count_erasure(&self, request: &ErasureRequest) -> Result<ErasureCounts, StoreError> {
        let authors = &request.authors;
        let (mut counts, mut files, mut after) = (ErasureCounts::default(), BTreeSet::new(), 0);
        while let TextPage { texts, last: Some(last) } =
            self.object_erasures(authors, after).await?
        {
            after = last;
            for object in texts {
                counts.add(&object);
                files.extend(object.files.attachments);
            }
        }
        after = 0;
        while let TextPage { texts, last: Some(last) } = self.inbound_texts(after).await? {
            after = last;
            for message in texts.iter().filter(|message| is_written_by(message, authors)) {
                counts.inbound_messages += 1;
                counts.external_ids += 1;
                files.extend(message.attachments());
            }
        }
        after = 0;
        loop {
            let page = self.letter_references(authors, after).await?;
            let Some(last) = page.last() else { break };
            after = last.id.seq;
            for letter in page.iter().filter(|letter| letter.is_erased) {
                counts.letters += 1;
                files.extend(&letter.files.attachments);
            }
        }
        let candidates = files.difference(&request.attachments_in_use).copied().collect();
        let mut all = TextPositions::default();
        counts.attachments = self.retain_unused(candidates, authors, &mut all).await?.len();
        let request = request.clone();
        let dids: Vec<_> = authors.0.iter().map(Did::to_string).collect();
        let count = self.read(move |db| {
            let mut is_known = false;
            for did in &request.authors.0 {
                is_known |= contacts::find(db, did)?.is_some();
            }
            Ok((count_contacts(db, &request)?, is_known))
        });
        let ((contacts, bindings), is_known) = count.await?;
        let counts = ErasureCounts { contacts, bindings, ..counts };
        if !is_known && counts == ErasureCounts::default() {
            return Err(StoreError::Missing { what: "person with the DID", key: dids.join(", ") });
        }
        Ok(counts)
    }

    async fn erase(
        &self,
        request: &ErasureRequest,
        now: Timestamp,
    ) -> Result<ErasureCounts, StoreError> {
        let _lock = self.erasing.write().await;
        self.lock_erasures().await?;
        let mut request = request.clone();
        // Continues an erasure that is not complete.
        request.authors.0.extend(self.open_erasure().await?.0);
        let dids = request.authors.0.clone();
        let begin = self.writer.run(move |tx| {
            dids.iter().try_for_each(|did| {
                let sql = "INSERT INTO erasures (did) VALUES (?1) ON CONFLICT DO NOTHING";
                rows::execute(tx.db, sql, [did.as_str()])
            })
        });
        begin.await?;
        let authors = &request.authors;
        let mut texts = BTreeSet::new();
        let mut counts = ErasureCounts {
            letters: self.erase_letters(authors, &mut texts, now).await?,
            inbound_messages: self.erase_inbound_messages(authors).await?,
            ..ErasureCounts::default()
        };
        counts.external_ids = counts.inbound_messages;
        self.erase_objects(authors, &mut counts, &mut texts, now).await?;
        texts.extend(self.note_orphans(authors).await?);
        let mut after = 0;
        while let Some(last) = self.writer.run(move |tx| erase_reasons(tx, after)).await? {
            after = last;
        }
        let deleted = self.delete_files(&request.attachments_in_use).await?;
        counts.attachments = deleted.difference(&texts).count();
        let last = self.writer.run(move |tx| {
            let (contacts, bindings) = erase_contacts(tx, &request)?;
            let counts = ErasureCounts { contacts, bindings, ..counts };
            append_event(tx, None, &counts.detail(), now)?;
            Ok(counts)
        });
        last.await
    }

    async fn open_erasure(&self) -> Result<ErasedAuthors, StoreError> {
        let read = self.read(|db| {
            rows::list(db, "SELECT did FROM erasures ORDER BY did", [], |row| parsed(row, 0))
        });
        Ok(ErasedAuthors(read.await?.into_iter().collect()))
    }

    async fn erased_attachments(&self) -> Result<Vec<ObjId>, StoreError> {
        self.read(|db| {
            rows::list(db, "SELECT hash FROM erased_files ORDER BY hash", [], |row| {
                Ok(ObjId::from_parts(ObjKind::Bytes, row.get(0)?))
            })
        })
        .await
    }

    async fn finish_erasure(&self) -> Result<(), StoreError> {
        let _lock = self.erasing.write().await;
        self.writer.compact(&self.channels).await?;
        let finish = self.writer.run(|tx| {
            for sql in ["DELETE FROM erased_files", "DELETE FROM erasures"] {
                rows::execute(tx.db, sql, [])?;
            }
            Ok(())
        });
        finish.await?;
        self.erasure_lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }
}
