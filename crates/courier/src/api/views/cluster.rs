//! Couriers that share a store, and their duties.

use std::borrow::Cow;

use monoco_core::duty::{Duty, RegisteredCourier};
use monoco_core::time::Timestamp;
use monoco_store::postgres::{Durability, ServerFacts, StandbyFacts};
use serde::{Deserialize, Serialize};
#[cfg(test)]
use utoipa::ToSchema;

/// The couriers of a shared store.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct ClusterHealth {
    /// Id of the courier that answers
    pub courier: String,
    /// `local`: commits are on the disk of the primary; `replicated`: also on that of a standby
    pub durability: Cow<'static, str>,
    pub couriers: Vec<CourierView>,
    pub duties: Vec<DutyView>,
    pub database: DatabaseHealth,
}

/// The database server of a shared store.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct DatabaseHealth {
    /// Version of PostgreSQL, such as `15.8`
    pub version: String,
    pub standbys: Vec<StandbyView>,
    /// Why acknowledged messages could be lost, or the store is slow, each with what to do
    pub problems: Vec<String>,
}

/// A server that follows the database server.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct StandbyView {
    pub name: String,
    /// `sync`, `quorum`, `potential` or `async`; absent when the role may not see it
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// One courier of a shared store.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct CourierView {
    pub id: String,
    /// Number of starts so far
    pub boot: i64,
    /// Whether it was seen in the last 20 s and has not stopped
    pub live: bool,
    /// When it last reported that it lives; absent after a clean stop
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<String>,
    /// The enabled tunnels of its configuration
    pub tunnels: Vec<String>,
}

/// Work that one courier of a shared store does.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(ToSchema))]
pub struct DutyView {
    /// `leader`, `dispatcher`, or `tunnel:` and the id of a tunnel
    pub name: String,
    /// Id of the courier that holds it; absent while no courier does
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub courier: Option<String>,
    /// Number of acquisitions so far
    pub epoch: i64,
    /// When it moves to another courier, unless it is renewed
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl DatabaseHealth {
    pub fn new(facts: ServerFacts, durability: Durability) -> Self {
        let version = facts.version_text();
        let mut problems = facts.problems(durability);
        problems.extend(facts.warnings());
        let view = |StandbyFacts { name, state }| StandbyView { name, state };
        Self { version, standbys: facts.standbys.into_iter().map(view).collect(), problems }
    }

    /// Version and standbys on one line.
    pub fn summary(&self) -> String {
        let standbys = self.standbys.iter().map(|standby| {
            format!("{} ({})", standby.name, standby.state.as_deref().unwrap_or("state hidden"))
        });
        match standbys.collect::<Vec<_>>().join(", ") {
            standbys if standbys.is_empty() => format!("PostgreSQL {}", self.version),
            standbys => format!("PostgreSQL {}, standby {standbys}", self.version),
        }
    }
}

impl CourierView {
    pub fn new(courier: &RegisteredCourier, now: Timestamp) -> Self {
        Self {
            id: courier.run.id.to_string(),
            boot: courier.run.boot,
            live: courier.is_live(now),
            seen_at: courier.seen_at.map(Timestamp::rfc3339),
            tunnels: courier.tunnels.iter().map(ToString::to_string).collect(),
        }
    }
}

impl DutyView {
    pub fn new(duty: &Duty, now: Timestamp) -> Self {
        let holder = duty.holder.filter(|_| duty.until > now);
        Self {
            name: duty.name.to_string(),
            courier: holder.map(|run| run.id.to_string()),
            epoch: duty.epoch,
            until: holder.map(|_| duty.until.rfc3339()),
        }
    }
}

impl ClusterHealth {
    /// The tunnels and other duties that no courier holds, although a live courier could.
    pub fn vacant(&self) -> Vec<&str> {
        let is_configured = |name: &str| match name.strip_prefix("tunnel:") {
            None => true,
            Some(tunnel) => self
                .couriers
                .iter()
                .any(|courier| courier.live && courier.tunnels.iter().any(|id| id == tunnel)),
        };
        let vacant = self.duties.iter().filter(|duty| duty.courier.is_none());
        vacant.map(|duty| duty.name.as_str()).filter(|name| is_configured(name)).collect()
    }
}
