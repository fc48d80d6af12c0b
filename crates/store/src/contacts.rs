//! Contacts, groups, blocks and tunnels.

use std::collections::BTreeSet;

use async_trait::async_trait;
use monoco_core::contact::{Binding, Contact, TunnelInfo};
use monoco_core::did::{Did, TunnelId};
use monoco_core::time::Timestamp;

use crate::{Page, PageRequest, StoreResult};

/// A group and its subscribers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub did: Did,
    pub name: Option<String>,
    /// Readers that receive every message of the group.
    pub subscribers: Vec<Did>,
}

/// Manages the address book.
#[async_trait]
pub trait ContactStore: Send + Sync {
    /// Inserts a contact, or replaces its names, level and `here`. Its bindings stay. Held
    /// Mails of a contact that is no longer a stranger are released.
    async fn put_contact(&self, contact: Contact, now: Timestamp) -> StoreResult<Contact>;

    /// Returns one contact by DID.
    async fn contact(&self, did: &Did) -> StoreResult<Contact>;

    /// Returns the contacts and groups with a name, at most `limit`. Upper and lower case of
    /// ASCII letters are equal.
    async fn contacts_by_name(&self, name: &str, limit: usize) -> StoreResult<Vec<Did>>;

    /// Returns the contacts that are bound to an account of a tunnel, at most `limit`, or else
    /// the shadow DIDs of the account that the store has seen.
    async fn contacts_by_account(
        &self,
        tunnel: &TunnelId,
        account: &str,
        limit: usize,
    ) -> StoreResult<Vec<Did>>;

    /// Lists contacts in the order of creation.
    async fn contacts(&self, page: PageRequest) -> StoreResult<Page<Contact>>;

    /// Removes a contact and its bindings. Its boxes stay.
    async fn remove_contact(&self, did: &Did, now: Timestamp) -> StoreResult<()>;

    /// Adds a binding to a contact, or changes the priority of an existing one.
    async fn bind(&self, contact: &Did, binding: Binding, now: Timestamp) -> StoreResult<Contact>;

    /// Removes the bindings of a contact to one address of a tunnel.
    async fn unbind(
        &self,
        contact: &Did,
        tunnel: &TunnelId,
        address: &str,
        now: Timestamp,
    ) -> StoreResult<Contact>;

    /// Sets whether `target` blocks messages from `sender`.
    async fn set_block(
        &self,
        sender: &Did,
        target: &Did,
        blocked: bool,
        now: Timestamp,
    ) -> StoreResult<()>;

    /// Returns why a letter from `author` must not be delivered, or `None` when neither a
    /// recipient nor the tunnel's rules block the author.
    async fn find_block(
        &self,
        author: &Did,
        to: &[Did],
        tunnel: Option<&TunnelId>,
    ) -> StoreResult<Option<String>>;

    /// Inserts a group, or renames it.
    async fn put_group(
        &self,
        group: &Did,
        name: Option<String>,
        now: Timestamp,
    ) -> StoreResult<Group>;

    /// Returns one group by DID.
    async fn group(&self, group: &Did) -> StoreResult<Group>;

    /// Lists groups in the order of creation.
    async fn groups(&self, page: PageRequest) -> StoreResult<Page<Group>>;

    /// Sets whether `reader` receives the messages of a group.
    async fn set_subscriber(
        &self,
        group: &Did,
        reader: &Did,
        subscribed: bool,
        now: Timestamp,
    ) -> StoreResult<Group>;

    /// Inserts a tunnel, or replaces its settings.
    async fn put_tunnel(&self, tunnel: TunnelInfo, now: Timestamp) -> StoreResult<TunnelInfo>;

    /// Removes a tunnel, so that nothing can be sent through it. Deliveries that wait for it
    /// stay. An unknown tunnel is not an error.
    async fn remove_tunnel(&self, id: &TunnelId, now: Timestamp) -> StoreResult<()>;

    /// Pauses or resumes a tunnel. An unchanged state writes no event. The state stays when the
    /// tunnel is put again, and is lost when the tunnel is removed.
    async fn set_tunnel_active(
        &self,
        id: &TunnelId,
        active: bool,
        now: Timestamp,
    ) -> StoreResult<()>;

    /// Returns the tunnels that are paused.
    async fn paused_tunnels(&self) -> StoreResult<BTreeSet<TunnelId>>;

    /// Lists all tunnels by name.
    async fn tunnels(&self) -> StoreResult<Vec<TunnelInfo>>;

    /// Returns whether `owner` is a contact, a group, a tunnel or has a box here.
    async fn owner_exists(&self, owner: &Did) -> StoreResult<bool>;
}
