//! Damaged rows. Lists and loops pass over them, and the store reports them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use monoco_core::hex;

use super::db::{Db, Row, SqlValue};
use crate::{StoreError, StoreResult};

/// Damaged rows that are listed; further ones are logged only.
const MAX_LISTED: usize = 100;

/// The damaged rows that were found since the store was opened, with the reasons.
#[derive(Debug, Default)]
pub(crate) struct DamagedRows(Mutex<BTreeMap<String, String>>);

impl Db {
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
pub(super) fn key(row: &Row<'_>) -> String {
    match row.get_ref(0) {
        Ok(SqlValue::Integer(number)) => number.to_string(),
        Ok(SqlValue::Text(text)) => text.to_owned(),
        Ok(SqlValue::Blob(bytes)) => hex::encode(bytes),
        _ => "?".to_owned(),
    }
}
