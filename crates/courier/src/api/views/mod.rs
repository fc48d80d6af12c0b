//! The answers of the API, as the courier writes them and the command line reads them.
//!
//! Domain types are not sent as they are, so that renaming one does not change the API. Times
//! are RFC 3339 in UTC; durations have their unit in the name.

use serde_json::value::RawValue;

use super::error::ApiError;

pub mod activity;
pub mod approvals;
pub mod boxes;
pub mod cluster;
pub mod contacts;
pub mod dead;
pub mod email;
pub mod events;
pub mod figures;
pub mod forget;
pub mod health;
pub mod letters;
pub mod mails;
pub mod messages;
pub mod pipeline;
#[cfg(test)]
pub mod schemas;
pub mod search;
pub mod sessions;
pub mod tokens;
pub mod trace;
pub mod tunnels;

/// Canonical JSON of an object, passed on without parsing it.
pub fn raw(body: String) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(body).map_err(|error| {
        let detail = error.to_string();
        monoco_store::StoreError::Damaged { what: "object", detail }.into()
    })
}
