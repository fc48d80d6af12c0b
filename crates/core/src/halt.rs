//! The kill switch: stops deliveries, of all tunnels, of one tunnel or of one agent.
//!
//! A halt is a stored row. The transaction that leases a delivery reads it, so that no attempt
//! starts after the halt was stored. While a halt applies to an agent, what the agent sends is
//! held for approval; with `lock` its writes are rejected. After the halt, deliveries of the owner
//! go on, and the messages that were held wait for a person: there is no flood.

use std::fmt;
use std::str::FromStr;

use crate::approval::SendOrigin;
use crate::did::TunnelId;
use crate::time::Timestamp;

/// Longest name of an agent, in bytes.
const MAX_AGENT_BYTES: usize = 64;

/// What a halt stops.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HaltScope {
    /// The deliveries of all tunnels.
    All,
    /// The messages of the agent with this token.
    Agent(String),
    /// The deliveries through this tunnel.
    Tunnel(TunnelId),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid scope of a halt {0:?}; expected all, agent:NAME or tunnel:ID")]
pub struct InvalidHaltScope(String);

/// A halt as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    pub scope: HaltScope,
    /// Whether all writes of agents are rejected.
    pub lock: bool,
    /// `owner`, or the name of a token.
    pub by: String,
    pub at: Timestamp,
}

/// All halts that apply at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HaltSet(pub Vec<Halt>);

impl HaltSet {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, applies: impl Fn(&HaltScope) -> bool) -> Option<&Halt> {
        self.0.iter().find(|halt| applies(&halt.scope))
    }

    /// The halt that keeps deliveries through `tunnel` from being leased.
    pub fn of_tunnel(&self, tunnel: Option<&TunnelId>) -> Option<&Halt> {
        self.find(|scope| match scope {
            HaltScope::All => true,
            HaltScope::Tunnel(id) => tunnel == Some(id),
            HaltScope::Agent(_) => false,
        })
    }

    /// The halt of the agent with this name alone.
    pub fn of_agent(&self, agent: &str) -> Option<&Halt> {
        self.find(|scope| matches!(scope, HaltScope::Agent(name) if name == agent))
    }

    /// Tells whether one agent is halted.
    pub fn has_agents(&self) -> bool {
        self.find(|scope| matches!(scope, HaltScope::Agent(_))).is_some()
    }

    /// The halt that holds a message of `origin` through `tunnels`. Messages of the owner are not
    /// held: they wait in the queue until the halt ends.
    pub fn of_send<'t>(
        &self,
        origin: &SendOrigin,
        tunnels: impl Iterator<Item = &'t TunnelId> + Clone,
    ) -> Option<&Halt> {
        let agent = origin.agent()?;
        self.find(|scope| match scope {
            HaltScope::All => true,
            HaltScope::Agent(name) => name == agent,
            HaltScope::Tunnel(id) => tunnels.clone().any(|tunnel| tunnel == id),
        })
    }

    /// The halt that rejects every write of this agent.
    pub fn lock_of(&self, agent: &str) -> Option<&Halt> {
        self.0.iter().find(|halt| {
            let applies = match &halt.scope {
                HaltScope::All => true,
                HaltScope::Agent(name) => name == agent,
                HaltScope::Tunnel(_) => false,
            };
            halt.lock && applies
        })
    }
}

impl fmt::Display for HaltScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Agent(name) => write!(f, "agent:{name}"),
            Self::Tunnel(id) => write!(f, "tunnel:{id}"),
        }
    }
}

impl FromStr for HaltScope {
    type Err = InvalidHaltScope;

    fn from_str(text: &str) -> Result<Self, InvalidHaltScope> {
        let invalid = || InvalidHaltScope(text.chars().take(80).collect());
        match text.split_once(':') {
            None if text == "all" => Ok(Self::All),
            Some(("agent", name)) if (1..=MAX_AGENT_BYTES).contains(&name.len()) => {
                Ok(Self::Agent(name.to_owned()))
            }
            Some(("tunnel", id)) => id.parse().map(Self::Tunnel).map_err(|_| invalid()),
            _ => Err(invalid()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halts(scopes: &[&str]) -> HaltSet {
        let halt = |scope: &&str| Halt {
            scope: scope.trim_end_matches('!').parse().unwrap(),
            lock: scope.ends_with('!'),
            by: "owner".to_owned(),
            at: Timestamp::from_ms(0),
        };
        HaltSet(scopes.iter().map(halt).collect())
    }

    /// What each halt stops: leases of two tunnels, sends of two agents and of the owner, and
    /// writes of an agent.
    #[test]
    fn halts_stop_their_scope_only() {
        let (lark, mail): (TunnelId, TunnelId) = ("lark".parse().unwrap(), "mail".parse().unwrap());
        let origin = |name: &str| match name {
            "owner" => SendOrigin::Owner,
            name => {
                SendOrigin::Agent { name: name.to_owned(), did: "did:monoco:a".parse().unwrap() }
            }
        };
        for (scopes, expected) in [
            (&[] as &[&str], ""),
            (&["all"], "take-lark take-mail hold-codex hold-other"),
            (&["all!"], "take-lark take-mail hold-codex hold-other lock"),
            (&["tunnel:lark"], "take-lark hold-codex hold-other"),
            (&["tunnel:lark!"], "take-lark hold-codex hold-other"),
            (&["tunnel:mail"], "take-mail"),
            (&["agent:codex"], "agent hold-codex"),
            (&["agent:codex!"], "agent hold-codex lock"),
            (&["agent:other!", "tunnel:mail"], "take-mail hold-other"),
        ] {
            let set = halts(scopes);
            let mut found = Vec::new();
            let mut note =
                |applies: bool, name: &'static str| found.extend(applies.then_some(name));
            note(set.of_tunnel(Some(&lark)).is_some(), "take-lark");
            note(set.of_tunnel(Some(&mail)).is_some(), "take-mail");
            note(set.of_agent("codex").is_some(), "agent");
            let through = |name| set.of_send(&origin(name), [&lark].into_iter()).is_some();
            note(through("codex"), "hold-codex");
            note(through("other"), "hold-other");
            note(through("owner"), "hold-owner");
            note(set.lock_of("codex").is_some(), "lock");
            assert_eq!(found.join(" "), expected, "{scopes:?}");
        }
    }

    #[test]
    fn scopes_have_one_text_form() {
        for text in ["all", "agent:codex", "tunnel:lark-main"] {
            assert_eq!(text.parse::<HaltScope>().unwrap().to_string(), text);
        }
        for invalid in ["", "agent", "agent:", "tunnel:", "tunnel:a.b", "everything"] {
            assert!(invalid.parse::<HaltScope>().is_err(), "{invalid}");
        }
    }
}
