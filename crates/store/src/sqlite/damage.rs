//! Damaged rows. Lists and loops pass over them, and the store reports them.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use crate::{StoreError, StoreResult};

/// Damaged rows that are listed; further ones are logged only.
const MAX_LISTED: usize = 100;

/// A connection, and where it reports damaged rows.
#[derive(Debug)]
pub(super) struct Db {
    connection: Connection,
    damaged: Arc<DamagedRows>,
}

/// The damaged rows that were found since the store was opened, with the reasons.
#[derive(Debug, Default)]
pub(super) struct DamagedRows(Mutex<BTreeMap<String, String>>);

impl Db {
    pub(super) const fn new(connection: Connection, damaged: Arc<DamagedRows>) -> Self {
        Self { connection, damaged }
    }

    /// Returns `None` and reports the row when it is damaged.
    ///
    /// # Errors
    ///
    /// Every other error of `result`.
    pub(super) fn unless_damaged<T>(
        &self,
        what: &str,
        key: impl ToString,
        result: StoreResult<T>,
    ) -> StoreResult<Option<T>> {
        match result {
            Ok(row) => Ok(Some(row)),
            // A damaged page affects more than one row.
            Err(StoreError::Damaged { what: "row", detail }) => {
                self.damaged.report(format!("{what} {}", key.to_string()), detail);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Deref for Db {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DamagedRows {
    fn report(&self, row: String, why: String) {
        let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if rows.len() < MAX_LISTED && !rows.contains_key(&row) {
            tracing::error!(row, why, "passing over a damaged row of the store");
            rows.insert(row, why);
        }
    }

    /// Lists the rows, each with its reason.
    pub(super) fn list(&self) -> Vec<String> {
        let rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().map(|(row, why)| format!("{row}: {why}")).collect()
    }
}

/// The first column of a row, which identifies the row in reports.
pub(super) fn key(row: &rusqlite::Row<'_>) -> String {
    match row.get_ref(0) {
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => "?".to_owned(),
    }
}
