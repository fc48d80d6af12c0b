//! Registers pages of mails: tasks, bytes and the cursor in one transaction.

use std::collections::HashMap;

use monoco_core::did::TunnelId;
use monoco_core::email::task::{EmailTaskId, TaskProgress};
use monoco_core::event::EventKind;
use monoco_core::inbound::{FetchedMail, RawMail, StoredBytes};
use monoco_core::object::{ObjId, ObjKind};
use monoco_core::time::Timestamp;
use serde_json::json;

use super::accounts;
use super::rows::StateColumns;
use crate::sql::bulk_index::BulkTable;
use crate::sql::db::params;
use crate::sql::events::{self, EventSubject};
use crate::sql::objects::{MAX_INLINE_BYTES, hash_prefix};
use crate::sql::writer::Tx;
use crate::sql::{
    SqlStore, blob_size, contacts, purged_files, put_blob_row, require_file, retention, rows,
};
use crate::{RegisterMailsRequest, RegisterMailsResult, StoreError};

/// Mails by the first eight bytes of their hash. Lookups compare the rest.
pub(in crate::sql) const EMAIL_HASHES: BulkTable = BulkTable {
    name: "email_hashes",
    insert: "
        INSERT INTO email_tasks_by_hash (hash_prefix, task) VALUES (?1, ?2) ON CONFLICT DO NOTHING
    ",
    rows_after: "SELECT task, hash FROM email_hashes WHERE task > ?1",
    key: |row| row.get::<[u8; 32]>(1).map(|hash| hash_prefix(&hash)),
    is_postgres_view: false,
};

const HAS_HASH: &str = "
    SELECT task
      FROM email_hashes
     WHERE task = ?1 AND hash = ?2 AND tunnel = ?3
";

pub(super) const FIND_HASH: &str = "
    SELECT h.task
      FROM email_tasks_by_hash b
      JOIN email_hashes h ON h.task = b.task
     WHERE b.hash_prefix = ?1 AND h.hash = ?2 AND h.tunnel = ?3
     ORDER BY b.task
     LIMIT 1
";

const IS_MAIL_FILE: &str = "
    SELECT 1
      FROM email_hashes h
      JOIN email_mails m ON m.task = h.task
     WHERE h.task = ?1 AND h.hash = ?2 AND m.raw IS NULL
";

pub(super) const FIND_MAIL_FILE: &str = "
    SELECT 1
      FROM email_tasks_by_hash b
      JOIN email_hashes h ON h.task = b.task
      JOIN email_mails m ON m.task = h.task
     WHERE b.hash_prefix = ?1 AND h.hash = ?2 AND m.raw IS NULL
     LIMIT 1
";

pub(super) const KNOWN_UID: &str = "SELECT 1 FROM email_tasks WHERE folder = ?1 AND uid = ?2";

const INSERT: &str = "
    INSERT INTO email_tasks (tunnel, folder, uid, subject, sent_at, internal_date, bytes, cut,
                             copy_of, status, due_at, attempts, epoch, revision, dropped, day,
                             created_at, updated_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0, 0, 0, 0, ?12, ?13, ?13)
";

/// Longer subjects are cut: they are for lists, and the mail has the whole one.
const MAX_SUBJECT_BYTES: usize = 1_024;

/// A page of mails to register.
pub(super) struct PreparedPage {
    tunnel: TunnelId,
    stream: String,
    cursor: Option<String>,
    mails: Vec<PreparedMail>,
    /// Files that were written for this page.
    files: Vec<StoredBytes>,
}

struct PreparedMail {
    /// The mail; its bytes were moved to `raw` or to a file.
    mail: FetchedMail,
    hash: ObjId,
    /// The bytes to store in the row; `None` when they are in a file.
    raw: Option<Vec<u8>>,
}

impl SqlStore {
    /// Computes the hashes of mails and writes large ones to files.
    pub(super) async fn prepare_mails(
        &self,
        page: RegisterMailsRequest,
    ) -> Result<PreparedPage, StoreError> {
        let RegisterMailsRequest { tunnel, stream, cursor, mails } = page;
        let (mut prepared, mut large) = (Vec::with_capacity(mails.len()), Vec::new());
        for mut mail in mails {
            let bytes = match &mut mail.raw {
                RawMail::Stored(stored) => {
                    let hash = stored.hash;
                    prepared.push(PreparedMail { mail, hash, raw: None });
                    continue;
                }
                RawMail::Bytes(bytes) | RawMail::HeadersOnly { headers: bytes, .. } => {
                    std::mem::take(bytes)
                }
            };
            let hash = ObjId::of(ObjKind::Bytes, &bytes);
            let raw = if bytes.len() <= MAX_INLINE_BYTES {
                Some(bytes)
            } else {
                large.push((hash, bytes));
                None
            };
            prepared.push(PreparedMail { mail, hash, raw });
        }
        let files = match large.is_empty() {
            true => Vec::new(),
            false => self.write_blob(move |blobs| blobs.put_all(&large)).await?,
        };
        Ok(PreparedPage { tunnel, stream, cursor, mails: prepared, files })
    }
}

/// Registers the mails of a page and stores its cursor.
pub(super) fn register(
    tx: &mut Tx<'_>,
    page: &PreparedPage,
    now: Timestamp,
) -> Result<RegisterMailsResult, StoreError> {
    let tunnel = contacts::party_id(tx, &page.tunnel.did())?;
    for file in &page.files {
        put_blob_row(tx, file)?;
    }
    let mut folders = HashMap::new();
    let mut result = RegisterMailsResult::default();
    for prepared in &page.mails {
        let mail = &prepared.mail;
        let key = (mail.folder.as_str(), mail.uid_validity);
        let folder = match folders.get(&key) {
            Some(folder) => *folder,
            None => *folders.entry(key).or_insert(folder_id(tx, tunnel, mail)?),
        };
        if rows::optional(tx.db, KNOWN_UID, params![folder, mail.uid], |_| Ok(()))?.is_some() {
            result.known += 1;
            continue;
        }
        let first = find_hash(tx, tunnel, &prepared.hash)?;
        match first {
            Some(_) => result.copies += 1,
            None => result.new += 1,
        }
        insert(tx, &Registration { page, tunnel, folder, prepared, first }, now)?;
    }
    if let Some(cursor) = &page.cursor {
        accounts::put_cursor(tx, tunnel, &page.stream, cursor)?;
    }
    if result.new + result.copies > 0 {
        let detail = json!({
            "tunnel": page.tunnel, "folder": page.stream,
            "registered": result.new, "copies": result.copies,
        });
        let subject = EventSubject { owner: Some(tunnel), ..EventSubject::default() };
        events::append(tx, EventKind::EmailTask, subject, &detail, now)?;
    }
    Ok(result)
}

/// Returns the row of a mail's folder, and inserts it when it is new.
fn folder_id(tx: &Tx<'_>, tunnel: i64, mail: &FetchedMail) -> Result<i64, StoreError> {
    let key = params![tunnel, mail.folder, mail.uid_validity];
    let sql = "
        SELECT id FROM email_folders WHERE tunnel = ?1 AND name = ?2 AND uid_validity = ?3
    ";
    if let Some(id) = rows::optional(tx.db, sql, key, |row| row.get(0))? {
        return Ok(id);
    }
    let sql = "INSERT INTO email_folders (tunnel, name, uid_validity) VALUES (?1, ?2, ?3)";
    rows::insert(tx.db, sql, key)
}

/// Returns the first task of the tunnel with these bytes.
fn find_hash(tx: &Tx<'_>, tunnel: i64, hash: &ObjId) -> Result<Option<i64>, StoreError> {
    let query = |sql: &str, key: i64| {
        rows::optional(tx.db, sql, params![key, hash.hash(), tunnel], |row| row.get(0))
    };
    let key = hash_prefix(hash.hash());
    for task in tx.indexes.email_hashes.recent().rows(key) {
        if let Some(task) = query(HAS_HASH, task)? {
            return Ok(Some(task));
        }
    }
    query(FIND_HASH, key)
}

/// Whether the bytes of a registered mail are in the file named `id`.
pub(in crate::sql) fn has_mail_file(tx: &Tx<'_>, id: &ObjId) -> Result<bool, StoreError> {
    let query = |sql: &str, key: i64| {
        rows::optional(tx.db, sql, params![key, id.hash()], |_| Ok(())).map(|row| row.is_some())
    };
    let key = hash_prefix(id.hash());
    for task in tx.indexes.email_hashes.recent().rows(key) {
        if query(IS_MAIL_FILE, task)? {
            return Ok(true);
        }
    }
    query(FIND_MAIL_FILE, key)
}

/// A mail that was not registered before.
struct Registration<'a> {
    page: &'a PreparedPage,
    tunnel: i64,
    folder: i64,
    prepared: &'a PreparedMail,
    /// The first task with the same bytes.
    first: Option<i64>,
}

fn insert(tx: &mut Tx<'_>, new: &Registration<'_>, now: Timestamp) -> Result<(), StoreError> {
    let Registration { page, tunnel, folder, prepared, first } = new;
    let PreparedMail { mail, hash, raw } = prepared;
    if raw.is_none() {
        if blob_size(tx.db, hash)?.is_none() {
            return Err(StoreError::Missing { what: "object", key: hash.to_string() });
        }
        require_file(tx, hash)?;
    }
    let progress = match first {
        Some(first) => TaskProgress::copy(EmailTaskId(*first)),
        None => TaskProgress::new(),
    };
    let cut = match &mail.raw {
        RawMail::HeadersOnly { why, .. } => Some(why),
        RawMail::Bytes(_) | RawMail::Stored(_) => None,
    };
    let day = if progress.state.has_ended() { Some(retention::day(tx)?) } else { None };
    let subject = &mail.subject[..mail.subject.floor_char_boundary(MAX_SUBJECT_BYTES)];
    let seq = rows::insert(
        tx.db,
        INSERT,
        params![
            tunnel,
            folder,
            mail.uid,
            subject,
            mail.date.map(Timestamp::ms),
            mail.internal_date.map(Timestamp::ms),
            rows::signed(mail.size),
            cut,
            first,
            progress.state.status().as_str(),
            StateColumns::new(&progress.state, now).due,
            day,
            now.ms(),
        ],
    )?;
    if first.is_none() {
        let sql = "INSERT INTO email_mails (task, raw) VALUES (?1, ?2)";
        rows::execute(tx.db, sql, params![seq, raw])?;
        let sql = "INSERT INTO email_hashes (task, tunnel, hash) VALUES (?1, ?2, ?3)";
        rows::execute(tx.db, sql, params![seq, tunnel, hash.hash()])?;
        tx.indexes.email_hashes.add(tx.db, hash_prefix(hash.hash()), seq)?;
        tx.effects.email_task = true;
    } else if raw.is_none() {
        // The first mail can have been purged with its file; this one was written again.
        purged_files::note(tx, hash.hash())?;
    }
    tx.effects.counts.email_task(&page.tunnel, &progress.state, 1);
    Ok(())
}
