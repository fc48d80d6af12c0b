//! Selection of the boxes that an inbound message goes to.
//!
//! A direct message goes into the INBOX of each target. A group message goes into the
//! group's GROUP_INBOX once, and into the INBOX of each subscriber. The object is stored
//! once for all records.

use std::collections::BTreeSet;

use crate::contact::{AddressBook, StrangerPolicy};
use crate::did::{Did, EndpointKind, TunnelId};
use crate::object::{MsgKind, MsgObject};
use crate::record::BoxKind;

/// One record to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub owner: Did,
    pub box_kind: BoxKind,
    /// The conversation, as the owner sees it.
    pub session: Did,
    /// The group, for the record of a subscriber.
    pub group: Option<Did>,
}

/// What happens to an inbound message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routing {
    Deliver(Vec<Placement>),
    /// The author is blocked.
    Blocked,
    /// The author is a stranger, and the tunnel drops strangers.
    Dropped,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no local recipient among {}; add one as a contact with `--here`",
    .0.iter().map(Did::as_str).collect::<Vec<_>>().join(", ")
)]
pub struct NoLocalRecipient(pub Vec<Did>);

/// Selects the boxes for `msg`, which came through `tunnel` or from a local caller.
///
/// # Errors
///
/// [`NoLocalRecipient`] when all targets are on external networks.
pub fn route(
    msg: &MsgObject,
    tunnel: Option<&TunnelId>,
    book: &AddressBook,
) -> Result<Routing, NoLocalRecipient> {
    let author = msg.author();
    if book.blocks(author) {
        return Ok(Routing::Blocked);
    }
    let strangers = tunnel.and_then(|id| book.tunnels.get(id)).map(|tunnel| tunnel.strangers);
    let inbox = match strangers {
        Some(StrangerPolicy::Hold) if book.is_stranger(author) => BoxKind::RequestBox,
        Some(StrangerPolicy::Drop) if book.is_stranger(author) => return Ok(Routing::Dropped),
        _ => BoxKind::Inbox,
    };

    let mut placements = Vec::new();
    let mut has_local_target = false;
    if is_group(msg, book) {
        has_local_target = true;
        place_in_group(&msg.from, author, inbox, book, &mut placements);
    } else {
        let mut seen = BTreeSet::new();
        for target in msg.to.iter().filter(|target| seen.insert(*target)) {
            if target.endpoint().is_some() || target.tunnel().is_some() {
                continue;
            }
            has_local_target = true;
            if book.is_block(author, target) {
                continue;
            }
            place_local(target, author, inbox, book, &mut placements);
        }
    }
    match (has_local_target, placements.is_empty()) {
        (false, _) => Err(NoLocalRecipient(msg.to.clone())),
        (true, true) => Ok(Routing::Blocked),
        (true, false) => Ok(Routing::Deliver(placements)),
    }
}

/// Adds the records that deliver a message of `author` to the local `target`.
pub fn place_local(
    target: &Did,
    author: &Did,
    inbox: BoxKind,
    book: &AddressBook,
    placements: &mut Vec<Placement>,
) {
    if book.party(target).is_some_and(|party| party.subscribers.is_some()) {
        return place_in_group(target, author, inbox, book, placements);
    }
    placements.push(Placement {
        owner: target.clone(),
        box_kind: inbox,
        session: author.clone(),
        group: None,
    });
}

fn place_in_group(
    group: &Did,
    author: &Did,
    inbox: BoxKind,
    book: &AddressBook,
    placements: &mut Vec<Placement>,
) {
    placements.push(Placement {
        owner: group.clone(),
        box_kind: BoxKind::GroupInbox,
        session: group.clone(),
        group: None,
    });
    let subscribers = book.party(group).and_then(|party| party.subscribers.as_ref());
    for reader in subscribers.into_iter().flatten() {
        if reader != author && !book.is_block(author, reader) {
            placements.push(Placement {
                owner: reader.clone(),
                box_kind: inbox,
                session: group.clone(),
                group: Some(group.clone()),
            });
        }
    }
}

/// Whether `from` is the group and `source` the author.
fn is_group(msg: &MsgObject, book: &AddressBook) -> bool {
    let endpoint = msg.from.endpoint().map(|endpoint| endpoint.kind);
    msg.source.is_some()
        && (msg.kind == MsgKind::GroupMsg
            || matches!(endpoint, Some(EndpointKind::Group | EndpointKind::Channel))
            || book.party(&msg.from).is_some_and(|party| party.subscribers.is_some()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::contact::tests::{did, tunnel};
    use crate::contact::{ContactLevel, Party};

    fn book() -> AddressBook {
        let known = |level| Party { level: Some(level), ..Party::default() };
        let team = vec![did("did:web:ann"), did("did:web:bob"), did("did:web:cat")];
        AddressBook {
            parties: [
                (did("did:web:pest"), known(ContactLevel::Block)),
                (did("did:web:friend"), known(ContactLevel::Friend)),
                (did("did:web:team"), Party { subscribers: Some(team), ..Party::default() }),
            ]
            .into(),
            tunnels: [
                ("open".parse().unwrap(), tunnel("open", StrangerPolicy::Accept)),
                ("wary".parse().unwrap(), tunnel("wary", StrangerPolicy::Hold)),
                ("shut".parse().unwrap(), tunnel("shut", StrangerPolicy::Drop)),
            ]
            .into(),
            blocked_by: [did("did:web:cat")].into(),
        }
    }

    fn boxes(msg: serde_json::Value, through: Option<&str>) -> String {
        let msg = MsgObject::from_json(msg).unwrap();
        let through = through.map(|id| id.parse().unwrap());
        match route(&msg, through.as_ref(), &book()) {
            Ok(Routing::Deliver(placements)) => placements
                .iter()
                .map(|p| {
                    let owner = p.owner.as_str().trim_start_matches("did:web:");
                    format!("{owner}/{}", p.box_kind.as_str())
                })
                .collect::<Vec<_>>()
                .join(" "),
            Ok(other) => format!("{other:?}"),
            Err(error) => error.to_string(),
        }
    }

    fn direct(from: &str, to: &[&str]) -> serde_json::Value {
        json!({"from": from, "to": to, "kind": "chat", "content": {}})
    }

    #[test]
    fn direct_messages() {
        let stranger = "did:web:stranger";
        assert_eq!(
            boxes(direct(stranger, &["did:web:ann", "did:web:bob"]), None),
            "ann/INBOX bob/INBOX"
        );
        assert_eq!(boxes(direct(stranger, &["did:web:ann", "did:web:ann"]), None), "ann/INBOX");
        assert_eq!(boxes(direct("did:web:pest", &["did:web:ann"]), None), "Blocked");
        assert_eq!(boxes(direct(stranger, &["did:web:ann", "did:web:cat"]), None), "ann/INBOX");
        assert_eq!(boxes(direct(stranger, &["did:web:cat"]), None), "Blocked");
        let elsewhere = "did:msgtunnel:x.user.open";
        assert_eq!(boxes(direct(stranger, &[elsewhere, "did:web:ann"]), None), "ann/INBOX");
        assert!(boxes(direct(stranger, &[elsewhere]), None).starts_with("no local recipient"));
    }

    #[test]
    fn policy_for_strangers_applies_to_strangers_only() {
        let from = |who: &str, through| boxes(direct(who, &["did:web:ann"]), Some(through));
        assert_eq!(from("did:web:stranger", "open"), "ann/INBOX");
        assert_eq!(from("did:web:stranger", "wary"), "ann/REQUEST_BOX");
        assert_eq!(from("did:web:stranger", "shut"), "Dropped");
        assert_eq!(from("did:web:friend", "wary"), "ann/INBOX");
        assert_eq!(from("did:web:friend", "shut"), "ann/INBOX");
    }

    #[test]
    fn group_messages_reach_the_group_once_and_each_subscriber() {
        let said = |from: &str, source: &str, kind: &str| json!({"from": from, "source": source, "to": [from], "kind": kind, "content": {}});
        let team = "did:web:team";
        // The author gets no copy; cat has blocked the author.
        assert_eq!(boxes(said(team, "did:web:bob", "chat"), None), "team/GROUP_INBOX ann/INBOX");
        assert_eq!(boxes(said(team, "did:web:pest", "group_msg"), None), "Blocked");
        // A group without local subscribers still gets its own record.
        let shadow = "did:msgtunnel:oc_42.group.open";
        let kept = boxes(said(shadow, "did:web:x", "chat"), Some("open"));
        assert_eq!(kept, format!("{shadow}/GROUP_INBOX"));
        // A message *to* a local group is distributed the same way.
        assert_eq!(boxes(direct("did:web:bob", &[team]), None), "team/GROUP_INBOX ann/INBOX");
    }
}
