//! The post office of the config: its queue, and chains that make sense.
//!
//! What a chain may look like is decided here and nowhere else. A letter meets only
//! workers that are there, none of them twice, and ends where it belongs.

use std::collections::BTreeMap;

use monoco_core::did::TunnelId;
use monoco_core::filter::nearest;
use monoco_core::letter::{Chain, ChainDirection, WorkerName};

use super::InvalidConfig;
use super::raw::{RawChains, RawPipeline, RawWorker};
use super::value::{ConfigReader, shown};
use crate::pipeline::beanstalkd::BeanstalkdAddress;
use crate::pipeline::config::{PipelineConfig, QueueKind, TunnelChains, WorkerConfig};

mod changes;
mod outside;
mod workers;

pub use changes::changes;

/// Most workers of one chain.
const MAX_CHAIN: usize = 32;

/// Where all of it stands.
const AT: &str = "courier.pipeline";

/// Every worker there is, by name.
type Workers = BTreeMap<WorkerName, WorkerConfig>;

/// Checks all of it.
pub fn check(raw: RawPipeline, reader: &ConfigReader<'_>) -> Result<PipelineConfig, InvalidConfig> {
    let queue = queue(raw.queue.as_deref(), reader)?;
    let mut workers = workers::check(raw.workers.unwrap_or_default(), &queue, reader)?;
    let mut chain = |at: &str, direction, raw: Option<&[String]>| {
        raw.map(|raw| chain(at, direction, raw, &mut workers, reader)).transpose()
    };
    let usual = |direction| match direction {
        ChainDirection::Inbound => ["block".to_owned(), "deliver".to_owned()].to_vec(),
        ChainDirection::Outbound => ["send".to_owned()].to_vec(),
    };
    let mut everybodys = |direction: ChainDirection, raw: Option<Vec<String>>| {
        let raw = raw.unwrap_or_else(|| usual(direction));
        let chain = chain(&format!("{AT}.{}", direction.as_str()), direction, Some(&raw))?;
        Ok(chain.unwrap_or_default())
    };
    let inbound = everybodys(ChainDirection::Inbound, raw.inbound)?;
    let outbound = everybodys(ChainDirection::Outbound, raw.outbound)?;
    let mut tunnels = BTreeMap::new();
    for (id, raw) in raw.tunnels.unwrap_or_default() {
        let at = format!("{AT}.tunnels.{}", id.escape_debug());
        let id: TunnelId =
            id.parse().map_err(|error| InvalidConfig::at(&at, format!("{error}")))?;
        let RawChains { inbound, outbound } = raw.unwrap_or_default();
        let own = TunnelChains {
            inbound: chain(&format!("{at}.inbound"), ChainDirection::Inbound, inbound.as_deref())?,
            outbound: chain(
                &format!("{at}.outbound"),
                ChainDirection::Outbound,
                outbound.as_deref(),
            )?,
        };
        if own != TunnelChains::default() {
            tunnels.insert(id, own);
        }
    }
    Ok(PipelineConfig { queue, inbound, outbound, tunnels, workers })
}

fn queue(raw: Option<&str>, reader: &ConfigReader<'_>) -> Result<QueueKind, InvalidConfig> {
    let at = format!("{AT}.queue");
    let Some(raw) = raw else { return Ok(QueueKind::default()) };
    match reader.text(&at, raw)?.as_str() {
        "store" => Ok(QueueKind::Store),
        text if text.contains("://") => {
            Ok(QueueKind::Beanstalkd(reader.parsed::<BeanstalkdAddress>(&at, raw)?))
        }
        _ => {
            let found = shown(raw);
            let why = format!("want store or beanstalkd://host:port; found {found}");
            Err(InvalidConfig::at(at, why))
        }
    }
}

/// Reads one chain. Built-in workers that it names and nobody set up are added to
/// `workers` with their defaults.
fn chain(
    at: &str,
    direction: ChainDirection,
    raw: &[String],
    workers: &mut Workers,
    reader: &ConfigReader<'_>,
) -> Result<Chain, InvalidConfig> {
    if raw.len() > MAX_CHAIN {
        let why = format!("{} workers; {MAX_CHAIN} is the most", raw.len());
        return Err(InvalidConfig::at(at, why));
    }
    let end = match direction {
        ChainDirection::Inbound => "deliver",
        ChainDirection::Outbound => "send",
    };
    // An empty chain does nothing but what has to be done.
    let nothing = [end.to_owned()];
    let raw = if raw.is_empty() { &nothing } else { raw };
    let mut chain = Chain::default();
    let mut ended: Option<&str> = None;
    for entry in raw {
        let bad = |why: String| Err(InvalidConfig::at(at, why));
        if let Some(last) = ended {
            return bad(format!("{last} is an end, and {} comes after it", shown(entry)));
        }
        let (name, worker) = member(at, entry, workers, reader)?;
        if chain.0.contains(&name) {
            return bad(format!("{} is there twice", shown(entry)));
        }
        if let Some(why) = misplaced(worker, direction) {
            return bad(format!("{} can't be here: {why}", shown(entry)));
        }
        if matches!(worker, WorkerConfig::Send { .. } | WorkerConfig::Deliver | WorkerConfig::Trash)
        {
            ended = Some(entry);
        }
        chain.0.push(name);
    }
    match ended {
        Some(_) => Ok(chain),
        None => Err(InvalidConfig::at(at, format!("want {end} or trash at the end"))),
    }
}

/// The worker that a chain means by `entry`.
fn member<'w>(
    at: &str,
    entry: &str,
    workers: &'w mut Workers,
    reader: &ConfigReader<'_>,
) -> Result<(WorkerName, &'w WorkerConfig), InvalidConfig> {
    let text = reader.text(at, entry)?;
    let name = match text.parse::<WorkerName>() {
        Ok(name) if workers.contains_key(&name) => name,
        Ok(name) if workers::is_built_in(name.as_str()) => {
            let worker = workers::one(&name, &RawWorker::default(), &QueueKind::Store, reader)?;
            workers.insert(name.clone(), worker);
            name
        }
        _ => {
            let built_in = workers::BUILT_IN.iter().map(|(name, _)| *name);
            let known: Vec<_> = workers.keys().map(WorkerName::as_str).chain(built_in).collect();
            let meant = match nearest(entry, &known) {
                Some(meant) => format!("did you mean {meant}?"),
                None => format!("set it up under {AT}.workers"),
            };
            let why = format!("unknown worker {}, {meant}", shown(entry));
            return Err(InvalidConfig::at(at, why));
        }
    };
    let worker = &workers[&name];
    Ok((name, worker))
}

/// Why a worker has no place in a chain of that direction.
fn misplaced(worker: &WorkerConfig, direction: ChainDirection) -> Option<&'static str> {
    match (direction, worker) {
        (ChainDirection::Inbound, WorkerConfig::Send { .. }) => {
            Some("what comes in is delivered, not sent")
        }
        (ChainDirection::Outbound, WorkerConfig::Deliver) => {
            Some("what goes out is sent, not delivered")
        }
        (ChainDirection::Inbound, WorkerConfig::Merge(_)) => {
            Some("inbound messages are merged by `debounce`")
        }
        (ChainDirection::Inbound, WorkerConfig::Footer(_)) => {
            Some("a footer would change what people said to us")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
