//! Contacts and groups.

use std::borrow::Cow;

use monoco_core::contact::Contact;
use monoco_store::Group;
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

/// A contact with its bindings.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Contact))]
pub struct ContactView {
    pub did: String,
    pub names: Vec<String>,
    /// `block`, `stranger`, `temporary` or `friend`
    pub level: Cow<'static, str>,
    /// Whether the contact reads its messages from an INBOX of this hub
    pub here: bool,
    pub bindings: Vec<BindingView>,
}

/// One account that a contact can be reached by.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Binding))]
pub struct BindingView {
    pub tunnel: String,
    pub kind: String,
    pub address: String,
    pub priority: i32,
}

/// A page of contacts.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ContactPage {
    pub contacts: Vec<ContactView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// DIDs that a text can mean.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct DidList {
    pub dids: Vec<String>,
}

/// A group with its subscribers.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema), schema(as = Group))]
pub struct GroupView {
    pub did: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub subscribers: Vec<String>,
}

/// A page of groups.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct GroupPage {
    pub groups: Vec<GroupView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl From<Contact> for ContactView {
    fn from(contact: Contact) -> Self {
        let bindings = contact.bindings.into_iter().map(|binding| BindingView {
            tunnel: binding.tunnel.into(),
            kind: binding.kind.to_string(),
            address: binding.address,
            priority: binding.priority,
        });
        Self {
            did: contact.did.into(),
            names: contact.names,
            level: contact.level.as_str().into(),
            here: contact.here,
            bindings: bindings.collect(),
        }
    }
}

impl From<Group> for GroupView {
    fn from(group: Group) -> Self {
        let subscribers = group.subscribers.into_iter().map(Into::into).collect();
        Self { did: group.did.into(), name: group.name, subscribers }
    }
}
