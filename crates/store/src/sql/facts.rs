//! Facts about the store itself: whether it is a complete copy, and where its large objects are.

use super::db::{Db, params};
use super::rows;
use crate::{RemoteObjects, StoreError, StoreResult};

/// The state of a copy by `monoco store migrate`.
const COPY: &str = "copy";

/// The value of [`COPY`] while rows or files may be missing.
const INCOMPLETE: &str = "incomplete";

/// The value of [`COPY`] in a store that was copied to another place.
const MOVED: &str = "moved";

/// The remote place of large objects.
const OBJECTS: &str = "objects";

const PUT: &str = "
    INSERT INTO store_facts (name, value) VALUES (?1, ?2)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value
";

fn get(db: &Db, name: &str) -> StoreResult<Option<String>> {
    rows::optional(db, "SELECT value FROM store_facts WHERE name = ?1", [name], |row| row.get(0))
}

fn put(db: &Db, name: &str, value: &str) -> StoreResult<()> {
    rows::execute(db, PUT, params![name, value])
}

fn delete(db: &Db, name: &str) -> StoreResult<()> {
    rows::execute(db, "DELETE FROM store_facts WHERE name = ?1", [name])
}

/// Marks the target of a copy, before its first row.
pub(crate) fn start_copy(db: &Db) -> StoreResult<()> {
    put(db, COPY, INCOMPLETE)
}

/// Removes the mark of [`start_copy`], after everything was verified.
pub(crate) fn finish_copy(db: &Db) -> StoreResult<()> {
    delete(db, COPY)
}

/// Whether a copy to this store was started and not finished.
pub(crate) fn is_incomplete(db: &Db) -> StoreResult<bool> {
    Ok(get(db, COPY)?.as_deref() == Some(INCOMPLETE))
}

/// Notes in the source that its contents are in another store now.
pub(crate) fn set_moved(db: &Db) -> StoreResult<()> {
    put(db, COPY, MOVED)
}

/// Rejects a store that a courier must not use: a copy that is not complete. Warns once about one
/// that was copied to another place.
///
/// # Errors
///
/// [`StoreError::Unavailable`], with the next step.
pub(crate) fn check_complete(db: &Db) -> StoreResult<()> {
    match get(db, COPY)?.as_deref() {
        None => Ok(()),
        Some(MOVED) => {
            tracing::warn!(
                "the store was copied by `monoco store migrate`; what is stored here from now on is \
                 not in the copy: if the copy is in use, stop this courier and set courier.storage"
            );
            delete(db, COPY)
        }
        Some(_) => Err(StoreError::Unavailable(INCOMPLETE_COPY.to_owned())),
    }
}

/// What is wrong with a store that is an incomplete copy.
pub(crate) const INCOMPLETE_COPY: &str = "the store is a copy that is not complete; run `monoco \
    store migrate` again where it was started, or use the source";

/// Notes the remote place of large objects, and rejects another one: objects would not be found.
///
/// # Errors
///
/// [`StoreError::Unavailable`], with both places.
pub(crate) fn check_objects(db: &Db, remote: Option<&dyn RemoteObjects>) -> StoreResult<()> {
    let found = remote.map(RemoteObjects::place);
    match (get(db, OBJECTS)?, found) {
        (None, Some(place)) => put(db, OBJECTS, place),
        (Some(expected), found) if found != Some(expected.as_str()) => {
            let found = found.unwrap_or("database");
            Err(StoreError::Unavailable(format!(
                "the large objects of the store are in {expected}, not in {found}; set \
                 courier.storage.objects to it, or copy the store with `monoco store migrate`"
            )))
        }
        _ => Ok(()),
    }
}
