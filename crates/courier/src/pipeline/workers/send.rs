//! `send`: ends the outbound chain by queueing the message for its targets.

use std::sync::Arc;

use monoco_core::config::InvalidConfig;
use monoco_core::did::TunnelId;
use monoco_core::letter::{ChainDirection, Letter, WorkerStep};
use monoco_core::time::Timestamp;

use super::{Worker, WorkerAction, WorkerKind, WorkerSection, changed, downcast};

pub const KIND: WorkerKind = WorkerKind { name: "send", built_in: true, keys: &["tunnel"], parse };

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendConfig {
    /// Tunnel of addresses that do not name one.
    pub tunnel: Option<TunnelId>,
}

fn parse(section: &WorkerSection<'_>) -> Result<Arc<dyn Worker>, InvalidConfig> {
    Ok(Arc::new(SendConfig { tunnel: section.keys.parsed("tunnel")? }))
}

impl Worker for SendConfig {
    fn kind(&self) -> &'static str {
        KIND.name
    }

    fn work(&self, _letter: &Letter, _now: Timestamp) -> WorkerStep<WorkerAction<'_>> {
        WorkerStep::Needs(WorkerAction::Send)
    }

    fn changed_keys(&self, new: &dyn Worker) -> Vec<&'static str> {
        let Some(new) = downcast::<Self>(new) else { return vec!["kind"] };
        changed(&[("tunnel", self.tunnel != new.tunnel)])
    }

    fn ends_chain(&self) -> bool {
        true
    }

    fn is_needed(&self) -> bool {
        false
    }

    fn misplaced_in(&self, direction: ChainDirection) -> Option<&'static str> {
        (direction == ChainDirection::Inbound).then_some("inbound messages are delivered, not sent")
    }
}
