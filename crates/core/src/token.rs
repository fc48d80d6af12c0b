//! Tokens of agents: what an agent may do, in which workspace, and as whom.
//!
//! The owner's token has all rights. Each agent gets a token of its own, which has *scopes*, one
//! workspace and one DID. The agent cannot choose another workspace or sender: both come from
//! the token.
//!
//! | scope | allows |
//! | --- | --- |
//! | `read` | list and read Mails, own boxes, conversations and events |
//! | `claim` | claim, renew, complete and fail Mails of the token's workspace |
//! | `reply` | answer a Mail, exactly to its `answer_to` |
//! | `send` | send a message to any target |
//! | `operate` | contacts, tunnels, dead letters, pipeline, and the boxes of all owners |
//! | `approve` | release messages that are held |
//!
//! The secret is shown once and never stored: the store has its SHA-256.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::claim::Workspace;
use crate::delivery::SendState;
use crate::did::{Did, InvalidDid, TunnelId};
use crate::event::Event;
use crate::filter::nearest;
use crate::hex;
use crate::lease::Holder;
use crate::mail::{MailId, Trust};
use crate::names::{text_conversions, variant_names};
use crate::time::Timestamp;

/// Start of every secret, by which people and scanners recognise it.
const SECRET_PREFIX: &str = "monoco_";

/// Maximum length of an agent's name, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// How precisely the last use of a token is stored. A request within this time writes nothing.
const LAST_USE_PRECISION: Duration = Duration::from_secs(60);

/// One right of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    Read,
    Claim,
    Reply,
    Send,
    Operate,
    Approve,
}

variant_names! { Scope:
    Read = "read", Claim = "claim", Reply = "reply", Send = "send", Operate = "operate",
    Approve = "approve",
}

/// The scopes of one token. Written as names with commas: `read,claim`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ScopeSet(u8);

/// Why a token cannot have the given scopes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScopes {
    #[error("unknown scope {found:?}; {}", suggestion(*.meant))]
    Unknown { found: String, meant: Option<Scope> },
    #[error("no scope given; expected at least one of {}", known_scopes())]
    Empty,
    /// A token could release messages that it has sent itself.
    #[error(
        "the scopes approve and {} cannot be on one token: it could approve its own messages; \
         create two tokens", .0.as_str()
    )]
    SelfApproval(Scope),
}

/// The name of an agent: of its token, and as holder of its claims.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAgentName {
    #[error("invalid agent name {0:?}; expected 1 to 64 characters of a-z, 0-9, '-' and '_'")]
    Text(String),
    #[error(
        "the agent name \"owner\" is reserved for the user of the courier; choose another name"
    )]
    Reserved,
}

/// The secret of a token: 256 random bits, written as `monoco_` and 64 hex digits.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret([u8; 32]);

/// The SHA-256 of a secret, by which its token is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenHash(pub [u8; 32]);

/// A token to create. [`NewAgentToken::check`] validates it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAgentToken {
    pub name: AgentName,
    pub scopes: ScopeSet,
    pub workspace: Workspace,
    pub did: Did,
}

/// The token of one agent, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentToken {
    pub name: AgentName,
    pub scopes: ScopeSet,
    /// The workspace whose Mails the agent claims.
    pub workspace: Workspace,
    /// The author of everything that the agent sends, and the owner of its boxes.
    pub did: Did,
    pub created_at: Timestamp,
    /// Exact to one minute; `None` before the first use.
    pub last_used_at: Option<Timestamp>,
    /// A revoked token is kept in lists, and rejected.
    pub revoked_at: Option<Timestamp>,
}

/// Why a token does not allow a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenViolation {
    #[error(
        "the token {agent} does not have the scope {}; the owner can create a token that has it \
         with `monoco token add`", one_of(.needed)
    )]
    MissingScope { agent: AgentName, needed: Vec<Scope> },
    #[error("the token {agent} sends as {own}, not as {found}; omit the sender or use {own}")]
    ForgedSender { agent: AgentName, own: Did, found: String },
    #[error(
        "the token {agent} cannot submit whole e-mails, because their header can name any sender; \
         submit the text as JSON"
    )]
    WholeMail { agent: AgentName },
    #[error(
        "the token {agent} is for workspace {:?}, found {:?}; omit the workspace",
        .own.as_str(), .found.as_str()
    )]
    ForeignWorkspace { agent: AgentName, own: Workspace, found: Workspace },
    #[error("the token {agent} claims as {agent}, found {found:?}; omit the agent or use {agent}")]
    ForeignAgent { agent: AgentName, found: String },
    #[error(
        "the token {agent} uses the boxes of {own} only; those of {found} need the scope operate"
    )]
    ForeignBox { agent: AgentName, own: Did, found: Did },
}

/// One Mail that an agent has read, with the facts that later decisions about the agent need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentRead {
    pub mail: MailId,
    pub tunnel: TunnelId,
    /// The id of the chat that the Mail is from.
    pub session: String,
    /// Where an answer to its author or chat goes.
    pub answer_to: Did,
    pub trust: Trust,
    /// When the agent first read it.
    pub at: Timestamp,
}

impl ScopeSet {
    pub const ALL: Self = Self(0b11_1111);

    pub const fn contains(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }

    pub fn names(self) -> Vec<&'static str> {
        self.iter().map(Scope::as_str).collect()
    }

    /// Reads the names of scopes, which can also be joined by commas.
    ///
    /// # Errors
    ///
    /// [`InvalidScopes::Unknown`] with the scope that was probably meant.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidScopes> {
        let names = words.into_iter().flat_map(|word| word.split(',')).map(str::trim);
        names.filter(|name| !name.is_empty()).map(parse_scope).collect()
    }
}

const fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

fn parse_scope(name: &str) -> Result<Scope, InvalidScopes> {
    Scope::parse(name).ok_or_else(|| InvalidScopes::Unknown {
        found: name.chars().take(40).collect(),
        meant: nearest(&name.to_lowercase(), &Scope::ALL.map(Scope::as_str)).and_then(Scope::parse),
    })
}

fn known_scopes() -> String {
    Scope::ALL.map(Scope::as_str).join(", ")
}

fn suggestion(meant: Option<Scope>) -> String {
    match meant {
        Some(scope) => format!("did you mean {:?}?", scope.as_str()),
        None => format!("expected one of {}", known_scopes()),
    }
}

fn one_of(scopes: &[Scope]) -> String {
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" or ")
}

impl FromIterator<Scope> for ScopeSet {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | bit(scope)))
    }
}

impl FromStr for ScopeSet {
    type Err = InvalidScopes;

    fn from_str(text: &str) -> Result<Self, InvalidScopes> {
        Self::parse([text])
    }
}

impl fmt::Display for ScopeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join(","))
    }
}

text_conversions!(ScopeSet, InvalidScopes, |scopes| scopes.to_string());

impl AgentName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The DID of an agent that was given none: `did:monoco:` and its name.
    ///
    /// # Errors
    ///
    /// None in practice: the characters of a name are valid in a DID.
    pub fn default_did(&self) -> Result<Did, InvalidDid> {
        format!("did:monoco:{self}").parse()
    }
}

impl FromStr for AgentName {
    type Err = InvalidAgentName;

    fn from_str(text: &str) -> Result<Self, InvalidAgentName> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        let starts = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if !starts || text.len() > MAX_NAME_BYTES || !text.bytes().all(plain) {
            return Err(InvalidAgentName::Text(text.chars().take(MAX_NAME_BYTES).collect()));
        }
        if text == "owner" {
            return Err(InvalidAgentName::Reserved);
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

text_conversions!(AgentName, InvalidAgentName, |name| name.0);

impl TokenSecret {
    /// Creates a secret from random bytes.
    pub const fn from_random(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads the text of a secret; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        text.strip_prefix(SECRET_PREFIX).and_then(hex::decode).map(Self)
    }

    /// The text that the agent sends. It must not be logged or stored.
    pub fn expose(&self) -> String {
        format!("{SECRET_PREFIX}{}", hex::encode(&self.0))
    }

    pub fn hash(&self) -> TokenHash {
        TokenHash(Sha256::digest(self.0).into())
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}

impl NewAgentToken {
    /// Checks that one token may have these scopes.
    ///
    /// # Errors
    ///
    /// [`InvalidScopes`] without scopes, and when the token could approve what it sends.
    pub fn check(&self) -> Result<(), InvalidScopes> {
        if self.scopes == ScopeSet::default() {
            return Err(InvalidScopes::Empty);
        }
        let sends =
            [Scope::Send, Scope::Reply].into_iter().find(|scope| self.scopes.contains(*scope));
        match sends.filter(|_| self.scopes.contains(Scope::Approve)) {
            Some(scope) => Err(InvalidScopes::SelfApproval(scope)),
            None => Ok(()),
        }
    }
}

impl AgentToken {
    /// Checks that the token has one of the scopes.
    ///
    /// # Errors
    ///
    /// [`TokenViolation::MissingScope`] when it has none of them.
    pub fn check_scope(&self, needed: &[Scope]) -> Result<(), TokenViolation> {
        if needed.iter().any(|scope| self.scopes.contains(*scope)) {
            return Ok(());
        }
        let (agent, needed) = (self.name.clone(), needed.to_vec());
        Err(TokenViolation::MissingScope { agent, needed })
    }

    /// Checks the author of a message: the token's DID, or behind the tunnel that the token is for.
    ///
    /// # Errors
    ///
    /// [`TokenViolation::ForgedSender`] for every other author.
    pub fn check_sender(&self, found: &Did) -> Result<(), TokenViolation> {
        let is_behind_tunnel = || {
            let tunnel = self.did.tunnel();
            tunnel.is_some() && found.endpoint().map(|endpoint| endpoint.tunnel) == tunnel
        };
        if *found == self.did || is_behind_tunnel() {
            return Ok(());
        }
        Err(self.forged_sender(found.as_str()))
    }

    /// The error for a message of another author.
    pub fn forged_sender(&self, found: &str) -> TokenViolation {
        let (agent, own) = (self.name.clone(), self.did.clone());
        TokenViolation::ForgedSender { agent, own, found: found.chars().take(200).collect() }
    }

    /// The workspace of a claim: always the token's.
    ///
    /// # Errors
    ///
    /// [`TokenViolation::ForeignWorkspace`] when the request names another one.
    pub fn claim_workspace(&self, asked: Option<Workspace>) -> Result<Workspace, TokenViolation> {
        match asked {
            Some(found) if found != self.workspace => {
                let (agent, own) = (self.name.clone(), self.workspace.clone());
                Err(TokenViolation::ForeignWorkspace { agent, own, found })
            }
            _ => Ok(self.workspace.clone()),
        }
    }

    /// The workspace whose claims are shown or changed by hand: the token's, or with the scope
    /// operate any.
    ///
    /// # Errors
    ///
    /// [`TokenViolation::ForeignWorkspace`] when the request names another one without the scope.
    pub fn shown_workspace(&self, asked: Option<Workspace>) -> Result<Workspace, TokenViolation> {
        match asked {
            Some(workspace) if self.scopes.contains(Scope::Operate) => Ok(workspace),
            asked => self.claim_workspace(asked),
        }
    }

    /// The holder of a claim: always the agent.
    ///
    /// # Errors
    ///
    /// [`TokenViolation::ForeignAgent`] when the request names another one.
    pub fn claim_holder(&self, asked: Option<&str>) -> Result<Holder, TokenViolation> {
        match asked {
            Some(found) if found != self.name.as_str() => {
                let found = found.chars().take(MAX_NAME_BYTES).collect();
                Err(TokenViolation::ForeignAgent { agent: self.name.clone(), found })
            }
            _ => Ok(self.name.clone().into()),
        }
    }

    /// Whether the agent may see an event: about a Mail, of its own DID, or about a message to
    /// it. With the scope operate it sees all events.
    pub fn can_see_event(&self, event: &Event) -> bool {
        let own = self.did.as_str();
        let is_recipient =
            || event.detail["to"].as_array().is_some_and(|to| to.iter().any(|did| did == own));
        self.scopes.contains(Scope::Operate)
            || event.owner.as_ref() == Some(&self.did)
            || event.detail["mail"].is_string()
            || is_recipient()
    }

    /// Checks that the agent may use the boxes of `owner`.
    ///
    /// # Errors
    ///
    /// [`TokenViolation::ForeignBox`] for boxes of other owners without the scope operate.
    pub fn check_box(&self, owner: &Did) -> Result<(), TokenViolation> {
        if *owner == self.did || self.scopes.contains(Scope::Operate) {
            return Ok(());
        }
        let (agent, own, found) = (self.name.clone(), self.did.clone(), owner.clone());
        Err(TokenViolation::ForeignBox { agent, own, found })
    }

    /// Whether a request at `now` is stored as the last use.
    pub fn is_use_stored(&self, now: Timestamp) -> bool {
        is_use_stored(self.last_used_at, now)
    }
}

/// Whether a use at `now` is stored, after one that was stored at `last`. A clock that went back
/// stores it too, so that a wrong time does not stay.
pub fn is_use_stored(last: Option<Timestamp>, now: Timestamp) -> bool {
    last.is_none_or(|last| now < last || now.since(last) >= LAST_USE_PRECISION)
}

/// The scope that a change of a delivery by hand needs. A held delivery is only released or
/// ended by a token that may approve.
pub fn scope_of_delivery_change(from: SendState) -> Scope {
    if from == SendState::Held { Scope::Approve } else { Scope::Operate }
}

impl From<AgentName> for Holder {
    fn from(name: AgentName) -> Self {
        // A name is shorter than a holder may be and has no control characters.
        Self::new(name.0).unwrap_or_else(|_| Self::anonymous())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(scopes: &str, did: &str) -> AgentToken {
        AgentToken {
            name: "codex".parse().unwrap(),
            scopes: scopes.parse().unwrap(),
            workspace: Workspace::new("alpha").unwrap(),
            did: did.parse().unwrap(),
            created_at: Timestamp::from_ms(0),
            last_used_at: None,
            revoked_at: None,
        }
    }

    fn did(text: &str) -> Did {
        text.parse().unwrap()
    }

    #[test]
    fn scopes_are_read_and_written_by_name() {
        assert_eq!("claim, read".parse::<ScopeSet>().unwrap().to_string(), "read,claim");
        let all: ScopeSet = Scope::ALL.into_iter().collect();
        assert_eq!(all, ScopeSet::ALL);
        assert_eq!(all.to_string(), "read,claim,reply,send,operate,approve");
        assert_eq!(all.to_string().parse(), Ok(all));
        for scope in Scope::ALL {
            let one: ScopeSet = [scope].into_iter().collect();
            let others = Scope::ALL.into_iter().filter(|other| one.contains(*other));
            assert_eq!(others.collect::<Vec<_>>(), [scope]);
        }
    }

    #[test]
    fn unknown_scope_names_the_nearest() {
        let error = |text: &str| text.parse::<ScopeSet>().unwrap_err().to_string();
        assert_eq!(error("read,claims"), "unknown scope \"claims\"; did you mean \"claim\"?");
        assert_eq!(error("Aprove"), "unknown scope \"Aprove\"; did you mean \"approve\"?");
        assert_eq!(
            error("everything"),
            "unknown scope \"everything\"; expected one of read, claim, reply, send, operate, approve"
        );
        assert!(error(&"x".repeat(10_000)).len() < 200);
    }

    #[test]
    fn token_that_sends_cannot_approve() {
        let check = |scopes: &str| {
            let AgentToken { name, scopes, workspace, did, .. } = token(scopes, "did:monoco:codex");
            NewAgentToken { name, scopes, workspace, did }.check()
        };
        for bits in 0..=ScopeSet::ALL.0 {
            let scopes = ScopeSet(bits);
            let sends = scopes.contains(Scope::Send) || scopes.contains(Scope::Reply);
            let valid = bits != 0 && !(sends && scopes.contains(Scope::Approve));
            assert_eq!(check(&scopes.to_string()).is_ok(), valid, "{scopes}");
        }
        assert_eq!(check("send,approve"), Err(InvalidScopes::SelfApproval(Scope::Send)));
        assert_eq!(check(""), Err(InvalidScopes::Empty));
    }

    #[test]
    fn names_are_plain_and_owner_is_reserved() {
        for good in ["codex", "a", "0-x_y", &"x".repeat(64)] {
            let name: AgentName = good.parse().unwrap();
            assert_eq!(name.default_did().unwrap().as_str(), format!("did:monoco:{good}"));
            assert_eq!(Holder::from(name).as_str(), good);
        }
        for bad in ["", "-a", "_a", "A", "a b", "a:b", "courier:1", "é", "a\n", &"x".repeat(65)] {
            assert!(matches!(bad.parse::<AgentName>(), Err(InvalidAgentName::Text(_))), "{bad:?}");
        }
        assert_eq!("owner".parse::<AgentName>(), Err(InvalidAgentName::Reserved));
    }

    #[test]
    fn secret_is_recognised_and_not_printed() {
        let secret = TokenSecret::from_random([0xab; 32]);
        let text = secret.expose();
        assert_eq!(text, format!("monoco_{}", "ab".repeat(32)));
        assert_eq!(TokenSecret::parse(&text), Some(secret.clone()));
        assert_eq!(format!("{secret:?}"), "TokenSecret(…)");
        assert_ne!(secret.hash().0, [0xab; 32]);
        assert_ne!(secret.hash(), TokenSecret::from_random([0xac; 32]).hash());
        for other in
            ["", "monoco_", &text[1..], &text[7..], &text.to_uppercase(), &format!("{text}0")]
        {
            assert_eq!(TokenSecret::parse(other), None, "{other}");
        }
    }

    #[test]
    fn sender_is_the_agent_or_behind_its_tunnel() {
        let agent = token("send", "did:monoco:codex");
        assert_eq!(agent.check_sender(&did("did:monoco:codex")), Ok(()));
        for other in ["did:monoco:me", "did:monoco:codex2", "did:msgtunnel:a.user.lark"] {
            let error = agent.check_sender(&did(other)).unwrap_err();
            assert!(matches!(error, TokenViolation::ForgedSender { .. }), "{other}");
        }
        let tunnel = token("send", "did:msgtunnel:lark");
        for own in ["did:msgtunnel:lark", "did:msgtunnel:a.user.lark", "did:msgtunnel:b.group.lark"]
        {
            assert_eq!(tunnel.check_sender(&did(own)), Ok(()), "{own}");
        }
        for other in ["did:msgtunnel:lark2", "did:msgtunnel:a.user.lark2", "did:monoco:me"] {
            assert!(tunnel.check_sender(&did(other)).is_err(), "{other}");
        }
        let account = token("send", "did:msgtunnel:a.user.lark");
        assert!(account.check_sender(&did("did:msgtunnel:b.user.lark")).is_err());
    }

    #[test]
    fn workspace_and_holder_come_from_the_token() {
        let workspace = |name| Some(Workspace::new(name).unwrap());
        for (scopes, others_are_shown) in [("read,claim", false), ("read,claim,operate", true)] {
            let token = token(scopes, "did:monoco:codex");
            for asked in [None, workspace("alpha")] {
                assert_eq!(token.claim_workspace(asked.clone()).unwrap().as_str(), "alpha");
                assert_eq!(token.shown_workspace(asked).unwrap().as_str(), "alpha");
            }
            assert!(token.claim_workspace(workspace("beta")).is_err());
            assert_eq!(token.shown_workspace(workspace("beta")).is_ok(), others_are_shown);
            for asked in [None, Some("codex")] {
                assert_eq!(token.claim_holder(asked).unwrap().as_str(), "codex");
            }
            assert!(token.claim_holder(Some("claude")).is_err());
            assert!(token.claim_holder(Some("")).is_err());
        }
    }

    #[test]
    fn boxes_of_others_need_the_scope_operate() {
        let (own, other) = (did("did:monoco:codex"), did("did:monoco:me"));
        let agent = token("read,claim,reply,send", own.as_str());
        assert_eq!(agent.check_box(&own), Ok(()));
        assert!(matches!(agent.check_box(&other), Err(TokenViolation::ForeignBox { .. })));
        assert_eq!(token("operate", own.as_str()).check_box(&other), Ok(()));
    }

    #[test]
    fn events_of_others_need_the_scope_operate() {
        let event = |owner: Option<&str>, detail| Event {
            seq: 1,
            at: Timestamp::from_ms(0),
            kind: crate::event::EventKind::Posted,
            msg_id: None,
            record_id: None,
            owner: owner.map(did),
            detail,
        };
        let own = event(Some("did:monoco:codex"), json!({}));
        let of_mail = event(None, json!({"mail": "lark_0"}));
        let received = event(Some("did:monoco:me"), json!({"to": ["did:a:b", "did:monoco:codex"]}));
        let others = [
            event(Some("did:monoco:me"), json!({"to": ["did:a:b"]})),
            event(None, json!({"mail": 1, "to": "did:monoco:codex"})),
        ];
        let agent = token("read", "did:monoco:codex");
        for visible in [own, of_mail, received] {
            assert!(agent.can_see_event(&visible), "{visible:?}");
        }
        let operator = token("operate", "did:monoco:ops");
        for other in others {
            assert!(!agent.can_see_event(&other) && operator.can_see_event(&other), "{other:?}");
        }
    }

    #[test]
    fn only_held_deliveries_need_approval() {
        for state in SendState::ALL {
            let needed = scope_of_delivery_change(state);
            assert_eq!(needed == Scope::Approve, state == SendState::Held, "{state:?}");
        }
    }

    #[test]
    fn last_use_is_stored_once_a_minute() {
        let at = |secs: i64| Timestamp::from_ms(secs * 1000);
        for (last, now, stored) in [
            (None, 0, true),
            (Some(100), 100, false),
            (Some(100), 159, false),
            (Some(100), 160, true),
            (Some(100), 99, true),
        ] {
            assert_eq!(is_use_stored(last.map(at), at(now)), stored, "{last:?} {now}");
        }
    }

    #[test]
    fn violations_name_the_token_and_the_next_step() {
        let agent = token("read", "did:monoco:codex");
        let missing = agent.check_scope(&[Scope::Reply, Scope::Send]).unwrap_err().to_string();
        assert!(missing.contains("codex") && missing.contains("reply or send"), "{missing}");
        assert_eq!(agent.check_scope(&[Scope::Send, Scope::Read]), Ok(()));
        assert!(agent.check_scope(&[]).is_err());
    }
}
