//! Whom we know, and how to reach them.
//!
//! Nothing here guesses. A target is reached through its own shadow DID, through
//! a binding of its contact, or because it lives here. A target that can't be
//! reached fails the whole send, before anything is written.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::did::{Did, Endpoint, EndpointKind, TunnelId};
use crate::object::MsgObject;

/// How well we know somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContactLevel {
    /// Nothing of theirs is delivered.
    Block,
    /// Known by name only; the tunnel's rule for strangers applies.
    Stranger,
    /// Known for the time being.
    Temporary,
    /// Known.
    Friend,
}

/// One way to reach a contact.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Binding {
    /// Through this tunnel.
    pub tunnel: TunnelId,
    /// What sort of account it is there.
    pub kind: EndpointKind,
    /// The account there, as the provider spells it.
    pub address: String,
    /// The binding with the highest number is used.
    pub priority: i32,
}

/// Somebody we know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contact {
    /// Who.
    pub did: Did,
    /// What people call them; the first is shown.
    pub names: Vec<String>,
    /// How well we know them.
    pub level: ContactLevel,
    /// Whether they read their mail here, from an INBOX of ours.
    pub here: bool,
    /// How to reach them elsewhere.
    pub bindings: Vec<Binding>,
}

/// What a tunnel does with messages of people we do not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StrangerPolicy {
    /// Like everybody's.
    #[default]
    Accept,
    /// Into the REQUEST_BOX, until a person has looked.
    Hold,
    /// Away with them; an event says so.
    Drop,
}

/// One configured connection to an outside network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunnelInfo {
    /// Its name.
    pub id: TunnelId,
    /// The network behind it.
    pub provider: String,
    /// What it does with strangers.
    pub strangers: StrangerPolicy,
    /// Whether the provider recognises a second copy by its idempotency key.
    pub idempotent: bool,
}

/// What we know of one DID, for one decision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Party {
    /// How well we know them; `None` when they are no contact.
    pub level: Option<ContactLevel>,
    /// Whether they read their mail here, by decision.
    pub here: bool,
    /// Whether this is a group, and then who gets what is said in it.
    pub subscribers: Option<Vec<Did>>,
    /// Whether something was put into a box of theirs before.
    pub has_box: bool,
    /// How to reach them elsewhere.
    pub bindings: Vec<Binding>,
}

/// The page of the address book that one message needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressBook {
    /// What we know of each DID that the message names.
    pub parties: BTreeMap<Did, Party>,
    /// The tunnels that they are reached through.
    pub tunnels: BTreeMap<TunnelId, TunnelInfo>,
    /// Who has blocked the author.
    pub blocked_by: BTreeSet<Did>,
}

/// How it was decided that a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryMode {
    /// The target is a shadow DID and says so itself.
    Address,
    /// By a binding of the target's contact.
    Binding,
}

/// How one target is reached, as it was decided at the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryPlan {
    /// The tunnel that delivers it.
    pub tunnel_did: Did,
    /// The account there.
    pub address: String,
    /// What sort of account it is.
    pub kind: EndpointKind,
    /// Whom it is for.
    pub target_did: Did,
    /// Why this way.
    pub mode: DeliveryMode,
    /// The priority of the binding that was chosen; 0 for an address.
    pub priority: i32,
}

/// Where a message goes that leaves its author's hands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryPlans {
    /// To targets elsewhere.
    pub remote: Vec<DeliveryPlan>,
    /// To targets that live here.
    pub local: Vec<Did>,
}

/// A target that can't be reached, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnresolvedTarget {
    /// The target.
    pub target: Did,
    /// What is missing.
    pub why: String,
}

/// Some targets can't be reached, so nothing is sent to any.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no way to reach {}", list(.0))]
pub struct UnresolvableTargets(pub Vec<UnresolvedTarget>);

fn list(targets: &[UnresolvedTarget]) -> String {
    let each: Vec<_> = targets.iter().map(|t| format!("{} ({})", t.target, t.why)).collect();
    each.join(", ")
}

impl AddressBook {
    /// What we know of `did`.
    pub fn party(&self, did: &Did) -> Option<&Party> {
        self.parties.get(did)
    }

    /// Whether nothing of `sender` is to be delivered to anybody.
    pub fn blocks(&self, sender: &Did) -> bool {
        self.party(sender).is_some_and(|party| party.level == Some(ContactLevel::Block))
    }

    /// Whether nothing of `sender` is to be delivered to `target`: because we
    /// block the sender, or because the target does.
    pub fn is_block(&self, sender: &Did, target: &Did) -> bool {
        self.blocks(sender) || self.blocked_by.contains(target)
    }

    /// Whether we do not really know `sender`.
    pub fn is_stranger(&self, sender: &Did) -> bool {
        !self.party(sender).is_some_and(|party| {
            party.here
                || matches!(party.level, Some(ContactLevel::Temporary | ContactLevel::Friend))
        })
    }
}

/// Decides how each target of `msg` is reached.
///
/// # Errors
///
/// [`UnresolvableTargets`], with every target that can't be, when there is one.
pub fn plan_delivery(
    msg: &MsgObject,
    book: &AddressBook,
) -> Result<DeliveryPlans, UnresolvableTargets> {
    let mut plans = DeliveryPlans::default();
    let mut unresolved = Vec::new();
    let mut seen = BTreeSet::new();
    for target in msg.to.iter().filter(|target| seen.insert(*target)) {
        match reach(target, book) {
            Ok(TargetRoute::Away(plan)) => plans.remote.push(plan),
            Ok(TargetRoute::Here) => plans.local.push(target.clone()),
            Err(why) => unresolved.push(UnresolvedTarget { target: target.clone(), why }),
        }
    }
    if unresolved.is_empty() { Ok(plans) } else { Err(UnresolvableTargets(unresolved)) }
}

enum TargetRoute {
    Away(DeliveryPlan),
    Here,
}

fn reach(target: &Did, book: &AddressBook) -> Result<TargetRoute, String> {
    if let Some(Endpoint { account, kind, tunnel }) = target.endpoint() {
        if !book.tunnels.contains_key(&tunnel) {
            return Err(format!("there is no tunnel {tunnel}"));
        }
        return Ok(TargetRoute::Away(DeliveryPlan {
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
        return Ok(TargetRoute::Here);
    }
    let usable = party.bindings.iter().filter(|b| book.tunnels.contains_key(&b.tunnel));
    // The first of equals, so that the choice does not depend on luck.
    let best = usable.min_by_key(|b| (std::cmp::Reverse(b.priority), &b.tunnel, &b.address));
    match best {
        Some(binding) => Ok(TargetRoute::Away(DeliveryPlan {
            tunnel_did: binding.tunnel.did(),
            address: binding.address.clone(),
            kind: binding.kind,
            target_did: target.clone(),
            mode: DeliveryMode::Binding,
            priority: binding.priority,
        })),
        // Somebody who was never bound but gets mail here can only be meant here.
        None if party.bindings.is_empty() && party.has_box => Ok(TargetRoute::Here),
        None if party.bindings.is_empty() => Err("it has no binding".to_owned()),
        None => Err("none of its bindings names a tunnel that is here".to_owned()),
    }
}

impl ContactLevel {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Block, Self::Stranger, Self::Temporary, Self::Friend];

    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Stranger => "stranger",
            Self::Temporary => "temporary",
            Self::Friend => "friend",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

impl StrangerPolicy {
    /// The word the API, the CLI and the store use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Hold => "hold",
            Self::Drop => "drop",
        }
    }

    /// Reads that word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Accept, Self::Hold, Self::Drop].into_iter().find(|s| s.as_str() == text)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    pub(crate) fn did(text: &str) -> Did {
        text.parse().unwrap()
    }

    pub(crate) fn tunnel(id: &str, strangers: StrangerPolicy) -> TunnelInfo {
        TunnelInfo { id: id.parse().unwrap(), provider: "stub".into(), strangers, idempotent: true }
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
        assert_eq!(way("did:web:gone"), "none of its bindings names a tunnel that is here");
        assert_eq!(way("did:web:bare"), "it has no binding");
        assert_eq!(way("did:web:nobody"), "unknown; add it as a contact and bind it");
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
