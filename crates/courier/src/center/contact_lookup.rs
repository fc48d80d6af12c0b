//! Finds the DIDs that a person can mean by a name, an e-mail address or `tunnel:account`.

use monoco_core::did::{Did, EMAIL_PROVIDER, Endpoint, EndpointKind, TunnelId, lower_case_domain};
use monoco_store::{SharedStore, StoreResult};

/// Candidates that are returned.
const MAX_CANDIDATES: usize = 10;

const ADDRESS: &[EndpointKind] = &[EndpointKind::Addr];
const ANY: &[EndpointKind] = &EndpointKind::ALL;

/// Returns the DIDs that `text` can mean; none when it is unknown.
///
/// In this order: a DID itself, an account of a tunnel (`lark:ou_7`), an e-mail address, and the
/// name of a contact or group.
///
/// # Errors
///
/// Errors of the store.
pub async fn find_contacts(store: &SharedStore, text: &str) -> StoreResult<Vec<Did>> {
    if let Ok(did) = text.parse() {
        return Ok(vec![did]);
    }
    let tunnels = store.tunnels().await?;
    if let Some((tunnel, account)) = text.split_once(':')
        && let Some(tunnel) = tunnels.iter().find(|it| it.id.as_str() == tunnel)
    {
        return by_account(store, &tunnel.id, &tunnel.provider, account).await;
    }
    let mut found = Vec::new();
    if text.contains('@') {
        for tunnel in &tunnels {
            let account = match tunnel.provider.as_str() {
                EMAIL_PROVIDER => lower_case_domain(text),
                _ => text.to_owned(),
            };
            found.extend(store.contacts_by_account(&tunnel.id, &account, MAX_CANDIDATES).await?);
        }
        if found.is_empty() {
            for tunnel in tunnels.iter().filter(|tunnel| tunnel.provider == EMAIL_PROVIDER) {
                found.extend(by_account(store, &tunnel.id, &tunnel.provider, text).await?);
            }
        }
    }
    if found.is_empty() {
        found = store.contacts_by_name(text, MAX_CANDIDATES).await?;
    }
    found.sort();
    found.dedup();
    found.truncate(MAX_CANDIDATES);
    Ok(found)
}

/// Returns the DIDs of an account. An account that was never seen can be of any kind, except that
/// e-mail has only addresses.
async fn by_account(
    store: &SharedStore,
    tunnel: &TunnelId,
    provider: &str,
    account: &str,
) -> StoreResult<Vec<Did>> {
    let (account, kinds) = match provider {
        EMAIL_PROVIDER => (lower_case_domain(account), ADDRESS),
        _ => (account.to_owned(), ANY),
    };
    let found = store.contacts_by_account(tunnel, &account, MAX_CANDIDATES).await?;
    if !found.is_empty() {
        return Ok(found);
    }
    let endpoint = |kind| Endpoint { account: account.clone(), kind, tunnel: tunnel.clone() };
    Ok(kinds.iter().copied().filter_map(|kind| endpoint(kind).did().ok()).collect())
}
