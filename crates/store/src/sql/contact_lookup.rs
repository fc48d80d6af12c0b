//! Finds contacts by name or address, with one index search for each form.

use monoco_core::did::{Did, Endpoint, EndpointKind, TunnelId};

use super::db::{Db, params};
use super::rows::{self, parsed};
use crate::StoreResult;

const BY_NAME: &str = "
    SELECT p.did
      FROM contact_names n
      JOIN parties p ON p.id = n.party
     WHERE n.name = ?1
     ORDER BY p.did
     LIMIT ?2
";

const INSERT_NAME: &str =
    "INSERT INTO contact_names (name, party) VALUES (?1, ?2) ON CONFLICT DO NOTHING";

const BY_ADDRESS: &str = "
    SELECT DISTINCT p.did
      FROM bindings b
      JOIN parties p ON p.id = b.contact
     WHERE b.tunnel = ?1 AND b.address = ?2
     ORDER BY p.did
     LIMIT ?3
";

/// Returns the contacts and groups with a name. Upper and lower case of ASCII letters are equal.
pub(super) fn by_name(db: &Db, name: &str, limit: usize) -> StoreResult<Vec<Did>> {
    let name = name.to_ascii_lowercase();
    rows::list(db, BY_NAME, params![name, rows::limit(limit)], |row| parsed(row, 0))
}

/// Replaces the names of a contact or group, which [`by_name`] searches.
pub(super) fn set_names(db: &Db, party: i64, names: &[String]) -> StoreResult<()> {
    rows::execute(db, "DELETE FROM contact_names WHERE party = ?1", [party])?;
    for name in names {
        rows::execute(db, INSERT_NAME, params![name.to_ascii_lowercase(), party])?;
    }
    Ok(())
}

/// Returns the contacts that are bound to an account of a tunnel, or else the shadow DIDs of the
/// account that the store has seen.
pub(super) fn by_account(
    db: &Db,
    tunnel: &TunnelId,
    account: &str,
    limit: usize,
) -> StoreResult<Vec<Did>> {
    let row = params![tunnel.as_str(), account, rows::limit(limit)];
    let bound: Vec<Did> = rows::list(db, BY_ADDRESS, row, |row| parsed(row, 0))?;
    if !bound.is_empty() {
        return Ok(bound);
    }
    let mut seen = Vec::new();
    for kind in EndpointKind::ALL {
        let endpoint = Endpoint { account: account.to_owned(), kind, tunnel: tunnel.clone() };
        let Ok(did) = endpoint.did() else { continue };
        if super::contacts::find(db, &did)?.is_some() {
            seen.push(did);
        }
    }
    Ok(seen)
}
