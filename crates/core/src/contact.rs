//! Contacts, their bindings, and the resolution of targets into delivery plans.
//!
//! A target is reached through its own shadow DID, through a binding of its contact, or
//! because it is local. There is no default route: one target that cannot be resolved fails
//! the whole send, before anything is written.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::did::{Did, Endpoint, EndpointKind, TunnelId};
use crate::names::variant_names;
use crate::object::MsgObject;

/// How much a contact is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContactLevel {
    /// Their messages are not delivered.
    Block,
    /// Known by name only; the tunnel's policy for strangers applies.
    Stranger,
    /// Trusted for a limited time.
    Temporary,
    /// Trusted without a time limit.
    Friend,
}

/// An account of a contact on an external network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binding {
    pub tunnel: TunnelId,
    pub kind: EndpointKind,
    /// The provider's id of the account.
    pub address: String,
    /// The binding with the highest number is used.
    pub priority: i32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    pub did: Did,
    /// The first name is shown.
    pub names: Vec<String>,
    pub level: ContactLevel,
    /// Whether the contact is local: it has an INBOX in this hub.
    pub here: bool,
    pub bindings: Vec<Binding>,
}

/// What a tunnel does with messages from strangers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StrangerPolicy {
    /// Delivers them like those of contacts.
    #[default]
    Accept,
    /// Puts them into the REQUEST_BOX until a person has reviewed them.
    Hold,
    /// Drops them and records an event.
    Drop,
}

/// A configured connection to an external network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    pub id: TunnelId,
    pub provider: String,
    pub strangers: StrangerPolicy,
    /// Whether the provider recognises a second copy by its idempotency key.
    pub idempotent: bool,
    /// Whether the adapter can look for a sent message at the provider.
    pub finds_sent: bool,
    /// Whether the adapter reads the history of its provider: then the newest message of each
    /// chat is stored.
    pub reads_history: bool,
    /// The labels of its Mails.
    pub labels: TunnelLabels,
}

/// Labels of the Mails of one tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelLabels {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<String>,
    /// Labels of single chats, by session id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bindings: BTreeMap<String, String>,
}

/// What the store knows of one DID, for one decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// `None` when it is not a contact.
    pub level: Option<ContactLevel>,
    /// Whether it is configured as local.
    pub here: bool,
    /// The subscribers, when it is a group.
    pub subscribers: Option<Vec<Did>>,
    /// Whether it has a box with at least one record.
    pub has_box: bool,
    pub bindings: Vec<Binding>,
}

/// The part of the address book that one message needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressBook {
    /// The parties that the message names.
    pub parties: BTreeMap<Did, Party>,
    /// The tunnels of their addresses and bindings.
    pub tunnels: BTreeMap<TunnelId, TunnelInfo>,
    /// The targets that have blocked the author.
    pub blocked_by: BTreeSet<Did>,
}

/// How a target was resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryMode {
    /// The target is a shadow DID.
    Address,
    /// Through a binding of the contact.
    Binding,
}

/// The route to one target, as it was resolved when the message was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryPlan {
    pub tunnel_did: Did,
    /// The provider's id of the account.
    pub address: String,
    pub kind: EndpointKind,
    pub target_did: Did,
    pub mode: DeliveryMode,
    /// The priority of the binding; 0 for an address.
    pub priority: i32,
}

/// The routes to all targets of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryPlans {
    pub remote: Vec<DeliveryPlan>,
    /// Targets with a box in this hub.
    pub local: Vec<Did>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnresolvedTarget {
    pub target: Did,
    pub why: String,
}

/// The targets that cannot be resolved. The message is not sent to any target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no way to reach {}", list(.0))]
pub struct UnresolvableTargets(pub Vec<UnresolvedTarget>);

fn list(targets: &[UnresolvedTarget]) -> String {
    let each: Vec<_> = targets.iter().map(|t| format!("{} ({})", t.target, t.why)).collect();
    each.join(", ")
}

impl TunnelInfo {
    /// A tunnel whose adapter supports nothing beyond sending and receiving, without labels.
    pub fn new(id: TunnelId, provider: String, strangers: StrangerPolicy) -> Self {
        let labels = TunnelLabels::default();
        let (idempotent, finds_sent, reads_history) = (false, false, false);
        Self { id, provider, strangers, idempotent, finds_sent, reads_history, labels }
    }
}

impl TunnelLabels {
    /// The label for the Mails of a session.
    pub fn of(&self, session: &str) -> Option<&str> {
        self.bindings.get(session).or(self.binding.as_ref()).map(String::as_str)
    }
}

impl Binding {
    /// Returns the binding in the form that the provider of its tunnel has: see
    /// [`Endpoint::at_provider`].
    #[must_use]
    pub fn at_provider(self, provider: &str) -> Self {
        let Self { tunnel, kind, address, priority } = self;
        let endpoint = Endpoint::at_provider(provider, kind, &address, tunnel);
        let Endpoint { account, kind, tunnel } = endpoint;
        Self { tunnel, kind, address: account, priority }
    }
}

impl AddressBook {
    pub fn party(&self, did: &Did) -> Option<&Party> {
        self.parties.get(did)
    }

    /// Whether the owner of the hub blocks `sender`.
    pub fn blocks(&self, sender: &Did) -> bool {
        self.party(sender).is_some_and(|party| party.level == Some(ContactLevel::Block))
    }

    /// Whether the owner of the hub or `target` blocks `sender`.
    pub fn is_block(&self, sender: &Did, target: &Did) -> bool {
        self.blocks(sender) || self.blocked_by.contains(target)
    }

    /// Makes `sender` a stranger, because nothing proves that it wrote the message. What blocks
    /// it stays.
    pub fn distrust(&mut self, sender: &Did) {
        if let Some(party) = self.parties.get_mut(sender) {
            party.here = false;
            party.level = party.level.map(|level| level.min(ContactLevel::Stranger));
        }
    }

    /// Whether `sender` is neither local nor a friend nor a temporary contact.
    pub fn is_stranger(&self, sender: &Did) -> bool {
        !self.party(sender).is_some_and(|party| {
            party.here
                || matches!(party.level, Some(ContactLevel::Temporary | ContactLevel::Friend))
        })
    }
}

/// Resolves each target of `msg`.
///
/// # Errors
///
/// [`UnresolvableTargets`] with all targets that cannot be resolved.
pub fn plan_delivery(
    msg: &MsgObject,
    book: &AddressBook,
) -> Result<DeliveryPlans, UnresolvableTargets> {
    let mut plans = DeliveryPlans::default();
    let mut unresolved = Vec::new();
    let mut seen = BTreeSet::new();
    for target in msg.to.iter().filter(|target| seen.insert(*target)) {
        match resolve(target, book) {
            Ok(TargetRoute::Remote(plan)) => plans.remote.push(plan),
            Ok(TargetRoute::Local) => plans.local.push(target.clone()),
            Err(why) => unresolved.push(UnresolvedTarget { target: target.clone(), why }),
        }
    }
    if unresolved.is_empty() { Ok(plans) } else { Err(UnresolvableTargets(unresolved)) }
}

enum TargetRoute {
    Remote(DeliveryPlan),
    Local,
}

fn resolve(target: &Did, book: &AddressBook) -> Result<TargetRoute, String> {
    if let Some(Endpoint { account, kind, tunnel }) = target.endpoint() {
        if !book.tunnels.contains_key(&tunnel) {
            return Err(format!("there is no tunnel {tunnel}"));
        }
        return Ok(TargetRoute::Remote(DeliveryPlan {
            tunnel_did: tunnel.did(),
            address: account,
            kind,
            target_did: target.clone(),
            mode: DeliveryMode::Address,
            priority: 0,
        }));
    }
    if target.tunnel().is_some() {
        return Err("it is a tunnel; name an endpoint behind it".to_owned());
    }
    let Some(party) = book.party(target) else {
        return Err("unknown; add it as a contact and bind it".to_owned());
    };
    if party.here || party.subscribers.is_some() {
        return Ok(TargetRoute::Local);
    }
    let usable = party.bindings.iter().filter(|b| book.tunnels.contains_key(&b.tunnel));
    // Ties are broken by tunnel and address, so that the choice is deterministic.
    let best = usable.min_by_key(|b| (std::cmp::Reverse(b.priority), &b.tunnel, &b.address));
    match best {
        Some(binding) => Ok(TargetRoute::Remote(DeliveryPlan {
            tunnel_did: binding.tunnel.did(),
            address: binding.address.clone(),
            kind: binding.kind,
            target_did: target.clone(),
            mode: DeliveryMode::Binding,
            priority: binding.priority,
        })),
        // Without a binding, a target that has a box can only be local.
        None if party.bindings.is_empty() && party.has_box => Ok(TargetRoute::Local),
        None if party.bindings.is_empty() => Err("it has no binding".to_owned()),
        None => Err("no tunnel of its bindings is configured".to_owned()),
    }
}

variant_names! { ContactLevel:
    Block = "block", Stranger = "stranger", Temporary = "temporary", Friend = "friend",
}

variant_names! { StrangerPolicy:
    Accept = "accept", Hold = "hold", Drop = "drop",
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn did(text: &str) -> Did {
        text.parse().unwrap()
    }

    pub(crate) fn tunnel(id: &str, strangers: StrangerPolicy) -> TunnelInfo {
        let info = TunnelInfo::new(id.parse().unwrap(), "stub".into(), strangers);
        TunnelInfo { idempotent: true, ..info }
    }

    fn binding(tunnel: &str, address: &str, priority: i32) -> Binding {
        let tunnel = tunnel.parse().unwrap();
        Binding { tunnel, kind: EndpointKind::User, address: address.into(), priority }
    }

    fn book() -> AddressBook {
        let bound =
            |bindings| Party { level: Some(ContactLevel::Friend), bindings, ..Party::default() };
        let here = Party { here: true, ..Party::default() };
        let group = Party { subscribers: Some(vec![]), ..Party::default() };
        let two = vec![binding("slack", "U1", 1), binding("lark-main", "ou_1", 5)];
        let equal = vec![binding("slack", "U1", 5), binding("lark-main", "ou_1", 5)];
        AddressBook {
            parties: BTreeMap::from([
                (did("did:web:two"), bound(two)),
                (did("did:web:equal"), bound(equal)),
                (did("did:web:gone"), bound(vec![binding("telegram", "1", 9)])),
                (did("did:web:bare"), bound(vec![])),
                (did("did:web:me"), here),
                (did("did:web:team"), group),
            ]),
            tunnels: ["slack", "lark-main"]
                .map(|id| (id.parse().unwrap(), tunnel(id, StrangerPolicy::Accept)))
                .into(),
            blocked_by: BTreeSet::new(),
        }
    }

    fn plan(to: &[&str]) -> Result<DeliveryPlans, UnresolvableTargets> {
        let msg = json!({"from": "did:web:a", "to": to, "kind": "chat", "content": {}});
        plan_delivery(&MsgObject::from_json(msg).unwrap(), &book())
    }

    fn way(to: &str) -> String {
        match plan(&[to]) {
            Ok(plans) => match &plans.remote[..] {
                [plan] => format!("{} {} {:?}", plan.tunnel_did, plan.address, plan.mode),
                _ => format!("here {}", plans.local[0]),
            },
            Err(error) => error.0[0].why.clone(),
        }
    }

    #[test]
    fn each_target_has_one_way() {
        assert_eq!(way("did:msgtunnel:a%2Eb.user.slack"), "did:msgtunnel:slack a.b Address");
        assert_eq!(way("did:web:two"), "did:msgtunnel:lark-main ou_1 Binding");
        assert_eq!(way("did:web:equal"), "did:msgtunnel:lark-main ou_1 Binding");
        assert_eq!(way("did:web:me"), "here did:web:me");
        assert_eq!(way("did:web:team"), "here did:web:team");
    }

    #[test]
    fn or_says_why_it_has_none() {
        assert_eq!(way("did:msgtunnel:1.user.telegram"), "there is no tunnel telegram");
        assert_eq!(way("did:msgtunnel:slack"), "it is a tunnel; name an endpoint behind it");
        assert_eq!(way("did:web:gone"), "no tunnel of its bindings is configured");
        assert_eq!(way("did:web:bare"), "it has no binding");
        assert_eq!(way("did:web:nobody"), "unknown; add it as a contact and bind it");
    }

    #[test]
    fn binding_to_a_mailbox_is_an_address_with_a_lower_case_domain() {
        let bound = |provider| {
            let binding = binding("mail", "Joe@Example.COM", 1).at_provider(provider);
            (binding.kind, binding.address)
        };
        assert_eq!(bound("email"), (EndpointKind::Addr, "Joe@example.com".to_owned()));
        assert_eq!(bound("lark"), (EndpointKind::User, "Joe@Example.COM".to_owned()));
    }

    #[test]
    fn distrusted_sender_is_a_stranger_and_a_block_stays() {
        let mut book = book();
        let blocked = Party { level: Some(ContactLevel::Block), ..Party::default() };
        book.parties.insert(did("did:web:spam"), blocked);
        for sender in ["did:web:two", "did:web:me", "did:web:spam", "did:web:unknown"].map(did) {
            let was_blocked = book.blocks(&sender);
            book.distrust(&sender);
            assert!(book.is_stranger(&sender), "{sender}");
            assert_eq!(book.blocks(&sender), was_blocked, "{sender}");
        }
        assert!(!book.is_stranger(&did("did:web:equal")), "others are not changed");
    }

    #[test]
    fn one_bad_target_fails_them_all_and_every_bad_one_is_named() {
        let error = plan(&["did:web:two", "did:web:x", "did:web:me", "did:web:y"]).unwrap_err();
        let names: Vec<_> = error.0.iter().map(|t| t.target.as_str()).collect();
        assert_eq!(names, ["did:web:x", "did:web:y"]);
    }

    #[test]
    fn a_target_named_twice_is_reached_once() {
        let plans = plan(&["did:web:two", "did:web:two", "did:web:me", "did:web:me"]).unwrap();
        assert_eq!((plans.remote.len(), plans.local.len()), (1, 1));
    }
}
