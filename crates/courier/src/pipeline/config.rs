//! The section `courier.pipeline`: the queue, the chains and the workers.
//!
//! A chain is valid when each of its workers exists, occurs once and is allowed in its
//! direction, and when only its last worker ends it. The workers read their own sections.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use monoco_core::config::{
    ConfigEnvironment, ConfigSection, ConfigValue, InvalidConfig, Secret, quoted,
};
use monoco_core::did::TunnelId;
use monoco_core::filter::nearest;
use monoco_core::letter::{Chain, ChainDirection, WorkerName};
use monoco_store::PipelineRouting;

use super::beanstalkd::BeanstalkdAddress;
use super::external::{ExternalWorkerConfig, tube};
use super::workers::{self, WORKER_KINDS, Worker, WorkerSection, downcast, send::SendConfig};
use crate::config::ConfigChange;

/// Maximum number of workers in a chain.
const MAX_CHAIN_LENGTH: usize = 32;

/// Path of the workers' sections.
const WORKERS_PATH: &str = "courier.pipeline.workers";

/// Settings of the pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineConfig {
    pub queue: QueueKind,
    pub inbound: Chain,
    pub outbound: Chain,
    /// Chains of single tunnels.
    pub tunnels: BTreeMap<TunnelId, TunnelChains>,
    /// All configured workers, and the built-in ones that a chain uses.
    pub workers: BTreeMap<WorkerName, Arc<dyn Worker>>,
}

/// What notifies the dispatcher of letters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    #[default]
    Store,
    Beanstalkd(BeanstalkdAddress),
}

/// The chains of one tunnel. `None`: the chain of the whole pipeline applies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelChains {
    pub inbound: Option<Chain>,
    pub outbound: Option<Chain>,
}

impl TunnelChains {
    fn chain(&self, direction: ChainDirection) -> Option<&Chain> {
        match direction {
            ChainDirection::Inbound => self.inbound.as_ref(),
            ChainDirection::Outbound => self.outbound.as_ref(),
        }
    }
}

impl PipelineConfig {
    /// Returns the chain of a letter.
    pub fn chain(&self, direction: ChainDirection, tunnel: Option<&TunnelId>) -> &Chain {
        let own = tunnel.and_then(|tunnel| self.tunnels.get(tunnel));
        own.and_then(|own| own.chain(direction)).unwrap_or(match direction {
            ChainDirection::Inbound => &self.inbound,
            ChainDirection::Outbound => &self.outbound,
        })
    }

    /// Returns which messages of a direction have to pass a chain.
    pub fn routing(&self, direction: ChainDirection) -> PipelineRouting {
        let own = |(id, own): (&TunnelId, &TunnelChains)| {
            own.chain(direction).map(|chain| (id.clone(), self.is_needed(chain)))
        };
        PipelineRouting {
            all: self.is_needed(self.chain(direction, None)),
            tunnels: self.tunnels.iter().filter_map(own).collect(),
        }
    }

    fn is_needed(&self, chain: &Chain) -> bool {
        chain.0.iter().filter_map(|name| self.workers.get(name)).any(|worker| worker.is_needed())
    }

    /// Tells whether any chain contains this worker.
    pub fn is_used(&self, name: &WorkerName) -> bool {
        let own = self.tunnels.values().flat_map(|own| [&own.inbound, &own.outbound]).flatten();
        [&self.inbound, &self.outbound].into_iter().chain(own).any(|chain| chain.0.contains(name))
    }

    pub fn external_workers(&self) -> impl Iterator<Item = (&WorkerName, &ExternalWorkerConfig)> {
        self.workers.iter().filter_map(|(name, worker)| Some((name, downcast(&**worker)?)))
    }

    /// Returns the tunnel of addresses that do not name one.
    pub fn default_tunnel(&self) -> Option<&TunnelId> {
        let mut sends =
            self.workers.values().filter_map(|worker| downcast::<SendConfig>(&**worker));
        sends.find_map(|send| send.tunnel.as_ref())
    }

    /// Reads the section `courier.pipeline`.
    ///
    /// # Errors
    ///
    /// Names the first key that is not valid.
    pub fn parse(section: &ConfigSection<'_>) -> Result<Self, InvalidConfig> {
        section.deny_unknown_keys(&["queue", "inbound", "outbound", "tunnels", "workers"])?;
        let queue = parse_queue(section)?;
        let mut workers = parse_workers(&section.section("workers")?, &queue)?;
        let default = |direction, names: &[&str]| {
            let names = names.iter().map(|name| name.parse::<WorkerName>().ok());
            (direction, Chain(names.flatten().collect()))
        };
        let mut chain = |(direction, default): (ChainDirection, Chain)| match parse_chain(
            section,
            direction,
            &mut workers,
        )? {
            Some(chain) => Ok::<_, InvalidConfig>(chain),
            None => {
                for name in &default.0 {
                    add_built_in(name, &mut workers)?;
                }
                Ok(default)
            }
        };
        let inbound = chain(default(ChainDirection::Inbound, &["block", "deliver"]))?;
        let outbound = chain(default(ChainDirection::Outbound, &["send"]))?;
        let mut tunnels = BTreeMap::new();
        let sections = section.section("tunnels")?;
        for key in sections.keys() {
            let id: TunnelId =
                key.parse().map_err(|error| sections.invalid_key(key, format!("{error}")))?;
            let own = sections.section(key)?;
            own.deny_unknown_keys(&["inbound", "outbound"])?;
            let own = TunnelChains {
                inbound: parse_chain(&own, ChainDirection::Inbound, &mut workers)?,
                outbound: parse_chain(&own, ChainDirection::Outbound, &mut workers)?,
            };
            if own != TunnelChains::default() {
                tunnels.insert(id, own);
            }
        }
        Ok(Self { queue, inbound, outbound, tunnels, workers })
    }

    /// Describes what `new` changes, without secrets. Only the queue needs a restart.
    pub fn changes(&self, new: &Self) -> Vec<ConfigChange> {
        let mut changes = Vec::new();
        let mut note = |what: String, old: &dyn Display, new: &dyn Display, live: bool| {
            let (old, new) = (old.to_string(), new.to_string());
            if old != new {
                let what = format!("pipeline {what}: {old} becomes {new}");
                changes.push(ConfigChange { what, live });
            }
        };
        note("queue".to_owned(), &self.queue, &new.queue, false);
        for direction in ChainDirection::ALL {
            let name = direction.as_str().to_owned();
            let (from, to) = (self.chain(direction, None), new.chain(direction, None));
            note(name, &list(Some(from)), &list(Some(to)), true);
        }
        let tunnels: BTreeSet<_> = self.tunnels.keys().chain(new.tunnels.keys()).collect();
        for id in tunnels {
            for direction in ChainDirection::ALL {
                let name = format!("{} of {id}", direction.as_str());
                let own = |config: &Self| {
                    list(config.tunnels.get(id).and_then(|own| own.chain(direction)))
                };
                note(name, &own(self), &own(new), true);
            }
        }
        let workers = self.worker_changes(new).into_iter();
        changes.extend(workers.map(|what| ConfigChange { what, live: true }));
        changes
    }

    fn worker_changes(&self, new: &Self) -> Vec<String> {
        let names: BTreeSet<_> = self.workers.keys().chain(new.workers.keys()).collect();
        let mut changes = Vec::new();
        for name in names {
            // A built-in worker that needs no settings exists even if it is not configured.
            let default = default_worker(name);
            let old = self.workers.get(name).or(default.as_ref());
            let change = match (old, new.workers.get(name).or(default.as_ref())) {
                (Some(old), Some(new)) => match old.changed_keys(&**new) {
                    keys if keys.is_empty() => continue,
                    keys => format!("changed {}", keys.join(", ")),
                },
                (None, Some(_)) => "added".to_owned(),
                (Some(_), None) => "removed".to_owned(),
                (None, None) => continue,
            };
            changes.push(format!("pipeline worker {name}: {change}"));
        }
        changes
    }
}

impl Display for QueueKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store => f.write_str("store"),
            Self::Beanstalkd(address) => address.fmt(f),
        }
    }
}

fn list(chain: Option<&Chain>) -> String {
    let Some(chain) = chain else { return "the common chain".to_owned() };
    let names: Vec<_> = chain.0.iter().map(WorkerName::as_str).collect();
    format!("[{}]", names.join(", "))
}

fn parse_queue(section: &ConfigSection<'_>) -> Result<QueueKind, InvalidConfig> {
    let Some(value) = section.value("queue")? else { return Ok(QueueKind::default()) };
    match value.text()?.as_str() {
        "store" => Ok(QueueKind::Store),
        text if text.contains("://") => Ok(QueueKind::Beanstalkd(value.parsed()?)),
        _ => {
            let found = value.quoted();
            let why = format!("expected store or beanstalkd://host:port, found {found}");
            Err(value.invalid(why))
        }
    }
}

/// Reads all configured workers, used in a chain or not.
fn parse_workers(
    sections: &ConfigSection<'_>,
    queue: &QueueKind,
) -> Result<BTreeMap<WorkerName, Arc<dyn Worker>>, InvalidConfig> {
    let mut parsed = BTreeMap::new();
    for key in sections.keys() {
        let name: WorkerName =
            key.parse().map_err(|error| sections.invalid_key(key, format!("{error}")))?;
        let keys = sections.section(key)?;
        let worker = workers::parse(&WorkerSection { name: &name, keys, queue })?;
        parsed.insert(name, worker);
    }
    tube::check_tubes(WORKERS_PATH, &parsed)?;
    Ok(parsed)
}

/// Reads the chain of a direction, `None` when there is none. Built-in workers that it uses
/// and that are not configured are added to `workers` with their defaults.
fn parse_chain(
    section: &ConfigSection<'_>,
    direction: ChainDirection,
    workers: &mut BTreeMap<WorkerName, Arc<dyn Worker>>,
) -> Result<Option<Chain>, InvalidConfig> {
    let key = direction.as_str();
    let Some(entries) = section.values(key)? else { return Ok(None) };
    let invalid = |why: String| Err(section.invalid_key(key, why));
    if entries.len() > MAX_CHAIN_LENGTH {
        return invalid(format!("{} workers; the limit is {MAX_CHAIN_LENGTH}", entries.len()));
    }
    let end = match direction {
        ChainDirection::Inbound => "deliver",
        ChainDirection::Outbound => "send",
    };
    let mut chain = Chain::default();
    if entries.is_empty() {
        let name = end.parse().map_err(|error| section.invalid_key(key, format!("{error}")))?;
        add_built_in(&name, workers)?;
        chain.0.push(name);
        return Ok(Some(chain));
    }
    let mut last: Option<&str> = None;
    for entry in &entries {
        let found = entry.quoted();
        if let Some(last) = last {
            return invalid(format!("{found} follows {last}, which ends the chain"));
        }
        let name = worker_name(entry, workers)?;
        if chain.0.contains(&name) {
            return invalid(format!("{found} occurs twice"));
        }
        let worker = &workers[&name];
        if let Some(why) = worker.misplaced_in(direction) {
            return invalid(format!("{found} is not allowed here: {why}"));
        }
        if worker.ends_chain() {
            last = Some(entry.raw());
        }
        chain.0.push(name);
    }
    match last {
        Some(_) => Ok(Some(chain)),
        None => invalid(format!("expected {end} or trash at the end")),
    }
}

/// Returns the worker that an entry of a chain names. A built-in one is added if needed.
fn worker_name(
    entry: &ConfigValue<'_>,
    workers: &mut BTreeMap<WorkerName, Arc<dyn Worker>>,
) -> Result<WorkerName, InvalidConfig> {
    if let Ok(name) = entry.text()?.parse::<WorkerName>()
        && add_built_in(&name, workers)?
    {
        return Ok(name);
    }
    let built_in = WORKER_KINDS.iter().filter(|kind| kind.built_in).map(|kind| kind.name);
    let known: Vec<_> = workers.keys().map(WorkerName::as_str).chain(built_in).collect();
    let hint = match nearest(entry.raw(), &known) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("configure it under {WORKERS_PATH}"),
    };
    Err(entry.invalid(format!("unknown worker {}; {hint}", quoted(entry.raw()))))
}

/// Adds the built-in worker `name` with its defaults if it is missing. Returns whether there
/// is a worker of this name.
fn add_built_in(
    name: &WorkerName,
    workers: &mut BTreeMap<WorkerName, Arc<dyn Worker>>,
) -> Result<bool, InvalidConfig> {
    if workers.contains_key(name) {
        return Ok(true);
    }
    if workers::built_in(name.as_str()).is_none() {
        return Ok(false);
    }
    workers.insert(name.clone(), parse_default(name)?);
    Ok(true)
}

/// Returns a built-in worker that needs no settings.
fn default_worker(name: &WorkerName) -> Option<Arc<dyn Worker>> {
    workers::built_in(name.as_str())?;
    parse_default(name).ok()
}

fn parse_default(name: &WorkerName) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let keys = ConfigSection::empty(format!("{WORKERS_PATH}.{name}"), &NoEnvironment);
    workers::parse(&WorkerSection { name, keys, queue: &QueueKind::Store })
}

/// The environment of an empty section, which refers to nothing.
struct NoEnvironment;

impl ConfigEnvironment for NoEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn read_secret_file(&self, path: &Path) -> Result<Secret, String> {
        Err(format!("cannot read {}", path.display()))
    }
}

#[cfg(test)]
mod tests;
