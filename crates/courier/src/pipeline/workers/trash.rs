//! `trash`: ends a chain by trashing every letter.

use std::sync::Arc;

use monoco_core::config::InvalidConfig;
use monoco_core::letter::{Letter, WorkerResult, WorkerStep};
use monoco_core::time::Timestamp;

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, downcast};

pub const KIND: WorkerKind = WorkerKind { name: "trash", built_in: true, keys: &[], parse };

/// The worker `trash`, which has no settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashConfig;

fn parse(_section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    Ok(Arc::new(TrashConfig))
}

impl Worker for TrashConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, _letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Decided(WorkerResult::trash("the chain ends with trash"))
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        if downcast::<Self>(new).is_some() { Vec::new() } else { vec!["kind"] }
    }

    fn ends_chain(&self) -> bool {
        true
    }
}
