//! Finds the DIDs of one person.

use monoco_core::did::{Did, Endpoint};
use monoco_core::erasure::ErasedAuthors;
use monoco_store::{SharedStore, StoreError};

/// Returns the DID itself and the accounts that are bound to the contact of this DID.
///
/// # Errors
///
/// Errors of the store.
pub async fn dids_of(store: &SharedStore, did: Did) -> Result<ErasedAuthors, StoreError> {
    let bindings = match store.contact(&did).await {
        Ok(contact) => contact.bindings,
        Err(StoreError::Missing { .. }) => Vec::new(),
        Err(error) => return Err(error),
    };
    let accounts = bindings.into_iter().filter_map(|binding| {
        let (account, kind, tunnel) = (binding.address, binding.kind, binding.tunnel);
        Endpoint { account, kind, tunnel }.did().ok()
    });
    Ok(ErasedAuthors(accounts.chain([did]).collect()))
}
