//! Which chains there are, and what each worker is to do: the checked form of
//! `courier.pipeline`.

use std::collections::BTreeMap;
use std::time::Duration;

use monoco_adapters::Secret;
use monoco_adapters::egress::EgressTarget;
use monoco_core::did::TunnelId;
use monoco_core::letter::{Chain, ChainDirection, WorkerName};
use monoco_core::rate_limit::Rate;
use monoco_core::retry::RetryPolicy;
use monoco_store::PipelineRouting;

use super::beanstalkd::{BeanstalkdAddress, TubeName};
use super::workers::block::BlockConfig;
use super::workers::footer::FooterConfig;
use super::workers::spam::SpamConfig;
use super::workers::subject::SubjectConfig;

/// How the post office is to run.
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineConfig {
    /// What carries letters to the dispatcher.
    pub queue: QueueKind,
    /// The chain of what comes in.
    pub inbound: Chain,
    /// The chain of what goes out.
    pub outbound: Chain,
    /// Chains of single tunnels.
    pub tunnels: BTreeMap<TunnelId, TunnelChains>,
    /// Every worker that a chain names, and those that none does.
    pub workers: BTreeMap<WorkerName, WorkerConfig>,
}

/// What carries letters to the dispatcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueueKind {
    /// The store itself.
    #[default]
    Store,
    /// A beanstalkd.
    Beanstalkd(BeanstalkdAddress),
}

/// The chains of one tunnel; where it has none, that of everybody counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelChains {
    /// Of what comes in.
    pub inbound: Option<Chain>,
    /// Of what goes out.
    pub outbound: Option<Chain>,
}

/// One worker.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerConfig {
    /// Throws away what is from or for somebody who is blocked.
    Block(BlockConfig),
    /// Throws spam away, by rules.
    Spam(SpamConfig),
    /// Rewrites subjects.
    Subject(SubjectConfig),
    /// Adds a footer.
    Footer(FooterConfig),
    /// Makes one letter of several.
    Merge(MergeConfig),
    /// Lets so many through.
    Limit(LimitConfig),
    /// Throws away whatever comes.
    Trash,
    /// Sends it: the end of what goes out.
    Send {
        /// The tunnel for addresses that do not name one.
        tunnel: Option<TunnelId>,
    },
    /// Delivers it: the end of what comes in.
    Deliver,
    /// Somebody else's.
    Outside(Box<ExternalWorkerConfig>),
}

/// How letters of one key become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeConfig {
    /// How long the first one waits for others.
    pub window: Duration,
    /// Most letters that become one.
    pub most: usize,
}

/// How many letters may go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitConfig {
    /// To one recipient.
    pub per_recipient: Option<Rate>,
    /// To one domain.
    pub per_domain: Option<Rate>,
    /// Through one tunnel.
    pub per_tunnel: Option<Rate>,
}

/// A worker outside.
#[derive(Clone, Debug, PartialEq)]
pub struct ExternalWorkerConfig {
    /// How it is reached.
    pub how: WorkerTransport,
    /// How long it may take.
    pub timeout: Duration,
    /// When it is tried again, and when the letter is given up.
    pub retry: RetryPolicy,
    /// What becomes of letters while it is down.
    pub when_down: WhenDown,
    /// Whether it may change addresses.
    pub readdress: bool,
    /// How many letters it has at the same time.
    pub at_once: usize,
}

/// How a worker outside is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkerTransport {
    /// A command: the letter on stdin, the answer on stdout.
    Exec {
        /// The program and its arguments. No shell.
        command: Vec<String>,
        /// Most memory it may have, in bytes.
        memory: u64,
    },
    /// A signed POST.
    Http {
        /// Where to.
        target: EgressTarget,
        /// What it is signed with.
        secret: Secret,
    },
    /// A tube of a beanstalkd, and one for the answers.
    Beanstalkd {
        /// Which.
        address: BeanstalkdAddress,
        /// Where letters go.
        tube: TubeName,
        /// Where answers come.
        results: TubeName,
    },
    /// A spam filter.
    Rspamd {
        /// Where it is: the address of its worker, without a path.
        target: EgressTarget,
        /// What it may want to know.
        password: Option<Secret>,
        /// Our own rules, which are asked first.
        rules: SpamConfig,
    },
}

/// What becomes of letters while a worker is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenDown {
    /// They wait until it is back.
    #[default]
    Hold,
    /// They go on without it.
    Skip,
    /// They are given up.
    Dead,
}

impl PipelineConfig {
    /// The chain of a letter.
    pub fn chain(&self, direction: ChainDirection, tunnel: Option<&TunnelId>) -> &Chain {
        let own = tunnel.and_then(|tunnel| self.tunnels.get(tunnel));
        match direction {
            ChainDirection::Inbound => {
                own.and_then(|own| own.inbound.as_ref()).unwrap_or(&self.inbound)
            }
            ChainDirection::Outbound => {
                own.and_then(|own| own.outbound.as_ref()).unwrap_or(&self.outbound)
            }
        }
    }

    /// Which messages of a direction have a chain to go through at all.
    pub fn through(&self, direction: ChainDirection) -> PipelineRouting {
        let takes = |chain: &Chain| !self.is_free(chain);
        let own = |(id, own): (&TunnelId, &TunnelChains)| {
            let chain = match direction {
                ChainDirection::Inbound => own.inbound.as_ref(),
                ChainDirection::Outbound => own.outbound.as_ref(),
            };
            chain.map(|chain| (id.clone(), takes(chain)))
        };
        PipelineRouting {
            all: takes(self.chain(direction, None)),
            tunnels: self.tunnels.iter().filter_map(own).collect(),
        }
    }

    /// Whether a chain does nothing that is not done anyway: every entrance refuses
    /// whom a contact blocks.
    fn is_free(&self, chain: &Chain) -> bool {
        chain.0.iter().all(|name| match self.workers.get(name) {
            Some(WorkerConfig::Send { .. } | WorkerConfig::Deliver) | None => true,
            Some(WorkerConfig::Block(block)) => block.is_empty(),
            Some(_) => false,
        })
    }

    /// Whether any chain has this worker.
    pub fn is_used(&self, name: &WorkerName) -> bool {
        let own = self.tunnels.values().flat_map(|own| [&own.inbound, &own.outbound]).flatten();
        [&self.inbound, &self.outbound].into_iter().chain(own).any(|chain| chain.0.contains(name))
    }

    /// The workers outside.
    pub fn outside(&self) -> impl Iterator<Item = (&WorkerName, &ExternalWorkerConfig)> {
        self.workers.iter().filter_map(|(name, worker)| match worker {
            WorkerConfig::Outside(outside) => Some((name, outside.as_ref())),
            _ => None,
        })
    }
}
