//! `deliver`: ends the inbound chain by delivering the message to its boxes.

use std::sync::Arc;

use monoco_core::config::InvalidConfig;
use monoco_core::letter::{ChainDirection, Letter, WorkerStep};
use monoco_core::time::Timestamp;

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, downcast};

pub const KIND: WorkerKind = WorkerKind { name: "deliver", built_in: true, keys: &[], parse };

/// The worker `deliver`, which has no settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliverConfig;

fn parse(_section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    Ok(Arc::new(DeliverConfig))
}

impl Worker for DeliverConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, _letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Needs(WorkerAction::Deliver)
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        if downcast::<Self>(new).is_some() { Vec::new() } else { vec!["kind"] }
    }

    fn ends_chain(&self) -> bool {
        true
    }

    fn is_needed(&self) -> bool {
        false
    }

    fn misplaced_in(&self, direction: ChainDirection) -> Option<&'static str> {
        (direction == ChainDirection::Outbound)
            .then_some("outbound messages are sent, not delivered")
    }
}
