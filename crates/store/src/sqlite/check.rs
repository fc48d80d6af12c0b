//! Checks a store that no courier has open.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use monoco_core::mail::MailId;
use monoco_core::object::{ObjId, ObjKind};

use super::open_reader;
use crate::StoreResult;
use crate::blobs;
use crate::sql::{facts, mails, rows};

/// What a check of a store found.
#[derive(Debug, Default)]
pub struct StoreCheck {
    /// What is wrong with the database, one line each.
    pub problems: Vec<String>,
    /// Mails that the caller knows and the store does not.
    pub unknown_mails: Vec<MailId>,
    /// Attachments and large objects whose files are missing or have another size.
    pub missing_blobs: Vec<String>,
}

/// Checks the store in `dir` without changing it: its pages, its files, and whether it knows
/// `mails`. A store that does not exist knows no Mail.
///
/// # Errors
///
/// When the database cannot be read.
pub fn check(dir: &Path, mails: &BTreeSet<MailId>) -> StoreResult<StoreCheck> {
    let path = dir.join("monoco.db");
    let unknown = |mails: &BTreeSet<MailId>| mails.iter().cloned().collect();
    if !path.exists() {
        return Ok(StoreCheck { unknown_mails: unknown(mails), ..StoreCheck::default() });
    }
    let mut found = StoreCheck::default();
    for path in [&path, &dir.to_owned()] {
        if !monoco_fs::is_writable(path) {
            found.problems.push(format!("{} is read-only", path.display()));
        }
    }
    let db = open_reader(&path, Arc::default())?;
    let version: i64 = rows::one(&db, "PRAGMA user_version", [], |row| row.get(0))?;
    if version == 0 {
        found.unknown_mails = unknown(mails);
        return Ok(found);
    }
    let result: String = rows::one(&db, "PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if result != "ok" {
        found.problems.push(format!("the database is damaged: {result}"));
    }
    if facts::is_incomplete(&db)? {
        found.problems.push(facts::INCOMPLETE_COPY.to_owned());
    }
    for id in mails {
        if mails::find_seq(&db, id)?.is_none() {
            found.unknown_mails.push(id.clone());
        }
    }
    let sql = "SELECT hash, bytes FROM blobs";
    for (id, bytes) in rows::list_undamaged(&db, "blob", usize::MAX, sql, [], |row| {
        Ok((ObjId::from_parts(ObjKind::Bytes, row.get(0)?), rows::unsigned(row, 1)?))
    })? {
        let file = dir.join("blobs").join(blobs::relative_path(&id));
        if !file.metadata().is_ok_and(|found| found.is_file() && found.len() == bytes) {
            found.missing_blobs.push(id.to_string());
        }
    }
    Ok(found)
}
