//! The kinds of workers, and what all workers have in common.
//!
//! A worker is its checked configuration. To add a kind: one file here with its keys, its
//! `parse` function and its `work`, and one line in [`WORKER_KINDS`].

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use monoco_core::config::{ConfigSection, InvalidConfig, or_list};
use monoco_core::letter::{ChainDirection, Letter, WorkerName, WorkerStep};
use monoco_core::time::Timestamp;

use super::config::QueueKind;
use super::external::{exec, http, tube};

pub mod block;
pub mod deliver;
pub mod footer;
pub mod limit;
pub mod merge;
pub mod send;
pub mod spam;
pub mod subject;
pub mod trash;

use limit::LimitConfig;
use merge::MergeConfig;

/// All kinds of workers.
pub const WORKER_KINDS: &[WorkerKind] = &[
    block::KIND,
    spam::KIND,
    subject::KIND,
    footer::KIND,
    merge::KIND,
    limit::KIND,
    trash::KIND,
    send::KIND,
    deliver::KIND,
    tube::KIND,
    exec::KIND,
    http::KIND,
    #[cfg(test)]
    tests::toy::KIND,
];

/// A kind of worker: its name in the config, and how its section is read.
#[derive(Clone, Copy)]
pub struct WorkerKind {
    pub name: &'static str,
    /// Whether a worker of this name has this kind without `kind`, and can be used in a chain
    /// without a section of its own.
    pub built_in: bool,
    /// All keys of the section except `kind`.
    pub keys: &'static [&'static str],
    /// Reads the section and checks it.
    pub parse: fn(&WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig>,
}

/// The section of one worker in the config, with what defaults depend on.
pub struct WorkerSection<'a> {
    pub name: &'a WorkerName,
    pub keys: ConfigSection<'a>,
    pub queue: &'a QueueKind,
}

pub trait Worker: Any + Debug + Send + Sync {
    /// Returns the kind, as the API shows it.
    fn kind(&self) -> &'static str;

    /// Processes one letter. Has no side effects: a replay calls it, too.
    fn work(&self, letter: &Letter, now: Timestamp) -> WorkerStep<WorkerAction<'_>>;

    /// Returns the keys whose values differ in `new`; `kind` when it is of another kind.
    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str>;

    /// Tells whether no worker can follow this one in a chain.
    fn ends_chain(&self) -> bool {
        false
    }

    /// Tells whether the worker stores letters for a while.
    fn holds_letters(&self) -> bool {
        false
    }

    /// Tells whether letters have to pass this worker. A chain in which none needs to be
    /// passed is skipped, and its messages do not become letters.
    fn is_needed(&self) -> bool {
        true
    }

    /// Returns why the worker cannot be in a chain of this direction, or `None` when it can.
    fn misplaced_in(&self, _direction: ChainDirection) -> Option<&'static str> {
        None
    }
}

/// What a worker needs that only the dispatcher can do.
#[derive(Clone, Copy, Debug)]
pub enum WorkerAction<'w> {
    /// Trash the letter if a contact blocks its sender, else pass it.
    CheckContacts,
    /// Reserve a slot and hold the letter until then.
    ReserveSlot(&'w LimitConfig),
    /// Hold the letter until its merge window closes.
    JoinWindow(&'w MergeConfig),
    /// Hand the letter over to the external worker of this name.
    HandOver,
    Send,
    Deliver,
}

impl PartialEq for dyn Worker {
    fn eq(&self, other: &Self) -> bool {
        self.changed_keys(other).is_empty()
    }
}

/// Returns the worker as a `T`, or `None` when it is of another type.
pub fn downcast<T: Worker>(worker: &dyn Worker) -> Option<&T> {
    (worker as &dyn Any).downcast_ref()
}

/// Returns the names of the pairs that are `true`.
pub fn changed(keys: &[(&'static str, bool)]) -> Vec<&'static str> {
    keys.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect()
}

/// Reads the section of one worker.
///
/// # Errors
///
/// Fails when its kind cannot be determined, when a key is unknown or belongs to another
/// kind, and when its values are not valid.
pub fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    let all: Vec<_> = WORKER_KINDS.iter().flat_map(|kind| kind.keys).copied().collect();
    section.keys.clone().with_shared_keys(&["kind"]).deny_unknown_keys(&all)?;
    let kind = kind_of(section)?;
    let other = section.keys.keys().find(|key| *key != "kind" && !kind.keys.contains(key));
    if let Some(key) = other {
        let takers = WORKER_KINDS.iter().filter(|kind| kind.keys.contains(&key));
        let takers: Vec<_> = takers.map(|kind| kind.name).collect();
        let why = format!("`{key}` is a key of kind {}, not of {}", or_list(&takers), kind.name);
        return Err(section.keys.invalid(why));
    }
    (kind.parse)(section)
}

/// Returns the kind that has the name of a built-in worker.
pub fn built_in(name: &str) -> Option<&'static WorkerKind> {
    WORKER_KINDS.iter().find(|kind| kind.built_in && kind.name == name)
}

/// Returns the kind by the name of the worker or by its key `kind`.
fn kind_of(section: &WorkerSection<'_>) -> Result<&'static WorkerKind, InvalidConfig> {
    let kinds: Vec<_> = WORKER_KINDS.iter().map(|kind| (kind.name, kind)).collect();
    let by_name = built_in(section.name.as_str());
    match (by_name, section.keys.one_of("kind", &kinds)?) {
        (Some(by_name), Some(kind)) if by_name.name != kind.name => {
            let why = format!(
                "a worker named {} has kind {}, but `kind` is {}; use another name",
                section.name, by_name.name, kind.name
            );
            Err(section.keys.invalid(why))
        }
        (Some(kind), _) | (None, Some(kind)) => Ok(kind),
        (None, None) => {
            let names: Vec<_> = WORKER_KINDS.iter().map(|kind| kind.name).collect();
            Err(section.keys.invalid(format!("`kind` is missing; expected {}", or_list(&names))))
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
