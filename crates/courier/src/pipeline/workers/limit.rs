//! `limit`: lets letters pass at a configured rate and holds the others.

use std::collections::BTreeSet;
use std::sync::Arc;

use monoco_core::config::InvalidConfig;
use monoco_core::did::TunnelId;
use monoco_core::letter::{Letter, WorkerName, WorkerStep, address_domain};
use monoco_core::rate_limit::Rate;
use monoco_core::time::Timestamp;

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};

pub const KIND: WorkerKind = WorkerKind {
    name: "limit",
    built_in: true,
    keys: &["per_recipient", "per_domain", "per_tunnel"],
    parse,
};

/// Settings of `limit`: maximum rates of letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitConfig {
    pub per_recipient: Option<Rate>,
    pub per_domain: Option<Rate>,
    pub per_tunnel: Option<Rate>,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let limit = LimitConfig {
        per_recipient: section.keys.parsed("per_recipient")?,
        per_domain: section.keys.parsed("per_domain")?,
        per_tunnel: section.keys.parsed("per_tunnel")?,
    };
    if limit == LimitConfig::default() {
        let why = "expected at least one of per_recipient, per_domain and per_tunnel";
        return Err(section.keys.invalid(why));
    }
    Ok(Arc::new(limit))
}

impl LimitConfig {
    /// Returns the keys that the letter's slots are reserved under, with their rates.
    pub fn slots<'l>(
        &'l self,
        name: &'l WorkerName,
        tunnel: Option<&'l TunnelId>,
        letter: &'l Letter,
    ) -> impl Iterator<Item = (String, Rate)> + 'l {
        let recipients = self.per_recipient.iter().flat_map(move |rate| {
            letter.to.iter().map(move |to| (format!("{name}:to:{}", to.to_lowercase()), *rate))
        });
        let domains = self.per_domain.iter().flat_map(move |rate| {
            let domains: BTreeSet<_> = letter.to.iter().map(|to| address_domain(to)).collect();
            domains.into_iter().map(move |domain| (format!("{name}:domain:{domain}"), *rate))
        });
        let tunnel = self.per_tunnel.iter().map(move |rate| {
            let tunnel = tunnel.map_or("", TunnelId::as_str);
            (format!("{name}:tunnel:{tunnel}"), *rate)
        });
        recipients.chain(domains).chain(tunnel)
    }
}

impl Worker for LimitConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, _letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Needs(WorkerAction::ReserveSlot(self))
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else { return vec!["kind"] };
        changed(&[
            ("per_recipient", self.per_recipient != new.per_recipient),
            ("per_domain", self.per_domain != new.per_domain),
            ("per_tunnel", self.per_tunnel != new.per_tunnel),
        ])
    }

    fn holds_letters(&self) -> bool {
        true
    }
}
