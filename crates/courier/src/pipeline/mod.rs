//! The pipeline: letters pass a chain of workers, inbound and outbound.
//!
//! # Reading order
//!
//! * [`config`]: the chains and the settings of each worker.
//! * [`doorman`]: checks submitted letters.
//! * [`dispatcher`]: runs letters through their chains.
//! * [`workers`]: the kinds of workers.
//! * [`external`]: workers outside this process: commands, HTTP, beanstalkd tubes, rspamd.
//! * [`queue`]: what wakes the dispatcher: the store or a beanstalkd.
//! * [`beanstalkd`]: a client of beanstalkd.
//! * [`metrics`]: counters of each worker.
//! * [`sendmail`]: converts a raw mail to a letter.
//! * [`letter_pages`]: reads letters page by page.
//! * [`replay`]: predicts how letters would end in the current chains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use monoco_core::approval::SendOrigin;
use monoco_core::did::TunnelId;
use monoco_core::letter::{ChainDirection, InvalidLetter, LetterId, LetterStateData, WorkerName};
use monoco_store::{LetterRow, LetterSource, OperatorAction, SharedStore, StoreError, StoreResult};
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;

pub mod beanstalkd;
pub mod config;
pub mod dispatcher;
pub mod doorman;
pub mod external;
pub mod letter_pages;
pub mod metrics;
pub mod queue;
pub mod replay;
pub mod sendmail;
pub mod try_worker;
pub mod workers;

use beanstalkd::{BeanstalkdAddress, BeanstalkdClient, JobConsumer, TubeName};
use config::PipelineConfig;
use dispatcher::LetterDispatcher;
use external::request::RequestLoop;
use external::tube::{InFlightLetters, TubeLoop, TubeResultReader};
use external::worker::ExternalWorker;
use external::{ExternalWorkerConfig, WorkerTransport};
use queue::{LetterQueue, QueueNotifier};
use workers::Worker;

/// Maximum number of letters that one commit takes back from workers.
const MAX_RECALLED_PER_COMMIT: usize = 500;

pub struct Pipeline {
    dispatcher: Arc<LetterDispatcher>,
    config: watch::Sender<Arc<PipelineConfig>>,
    external_workers: Mutex<RunningWorkers>,
    /// Known tunnels. Tunnels are never deleted.
    tunnels: RwLock<Arc<BTreeSet<TunnelId>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Running external workers: their config, and what stops them.
type RunningWorkers = BTreeMap<WorkerName, (ExternalWorkerConfig, CancellationToken)>;

/// Why a submitted letter is rejected.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    #[error(transparent)]
    InvalidLetter(#[from] InvalidLetter),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Pipeline {
    /// Starts the dispatcher and the external workers on `tasks`, until `stop`. Letters that
    /// an earlier process left at workers are released first.
    ///
    /// # Errors
    ///
    /// Fails when these letters cannot be released.
    pub async fn start(
        store: SharedStore,
        clock: Clock,
        notifier: QueueNotifier,
        config: Arc<PipelineConfig>,
        queue: LetterQueue,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> StoreResult<Self> {
        let (sender, receiver) = watch::channel(Arc::clone(&config));
        let dispatcher = LetterDispatcher::new(store, clock, notifier, receiver, Arc::default());
        let pipeline = Self {
            dispatcher: Arc::new(dispatcher),
            config: sender,
            external_workers: Mutex::default(),
            tunnels: RwLock::default(),
            tasks: tasks.clone(),
            stop: stop.clone(),
        };
        pipeline.release_interrupted(&config).await?;
        pipeline.recall(&config, &BTreeSet::new()).await?;
        pipeline.recall_unheld(&config).await?;
        pipeline.run_external_workers(&config).await;
        tasks.spawn(Arc::clone(&pipeline.dispatcher).run(queue, stop.clone()));
        Ok(pipeline)
    }

    pub fn dispatcher(&self) -> &Arc<LetterDispatcher> {
        &self.dispatcher
    }

    /// Applies another config. Letters in progress continue in the new chains.
    ///
    /// # Errors
    ///
    /// Fails when letters cannot be taken back from removed workers.
    pub async fn reload(&self, new: Arc<PipelineConfig>) -> StoreResult<()> {
        let old = self.config.send_replace(Arc::clone(&new));
        // A batch that started with the old config can still leave letters with removed workers.
        self.dispatcher.finish_batch().await;
        self.run_external_workers(&new).await;
        let removed = removed_from_chains(&old, &new);
        self.recall(&new, &removed).await?;
        // Letters that a changed or removed worker holds are processed again, in their order.
        for (name, worker) in old.workers.iter().filter(|(_, worker)| worker.holds_letters()) {
            if new.workers.get(name) != Some(worker) || removed.contains(name) {
                self.recall_held(name).await?;
            }
        }
        Ok(())
    }

    /// Parses and checks a submitted letter.
    ///
    /// # Errors
    ///
    /// Fails when the letter is not valid or the store cannot be read.
    pub async fn parse_submission(
        &self,
        value: Value,
        key: Option<String>,
        origin: SendOrigin,
    ) -> Result<LetterSource, SubmitError> {
        let config = self.dispatcher.config();
        let letter = doorman::parse_letter(value, key.as_deref())?;
        let known = Arc::clone(&self.tunnels.read().unwrap_or_else(PoisonError::into_inner));
        let tunnel = match doorman::find_tunnel(&letter, &config, &known) {
            Ok(tunnel) => tunnel,
            // The tunnel may be newer than the cached list.
            Err(_) => doorman::find_tunnel(&letter, &config, &*self.read_tunnels().await?)?,
        };
        Ok(doorman::into_source(letter, tunnel, key, origin))
    }

    async fn read_tunnels(&self) -> StoreResult<Arc<BTreeSet<TunnelId>>> {
        let all = self.dispatcher.store().tunnels().await?;
        let all: Arc<BTreeSet<_>> = Arc::new(all.into_iter().map(|tunnel| tunnel.id).collect());
        *self.tunnels.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&all);
        Ok(all)
    }

    /// Performs an action of the operator. A letter that would wait for a worker that is no
    /// longer in its chain continues without it.
    ///
    /// # Errors
    ///
    /// Fails when there is no such letter or its state does not allow the action.
    pub async fn move_letter(
        &self,
        id: LetterId,
        action: OperatorAction,
    ) -> StoreResult<LetterRow> {
        let store = self.dispatcher.store();
        let row = store.move_letter(id, action, self.dispatcher.now()).await?;
        let LetterStateData::Waiting { due } = row.status.standing else { return Ok(row) };
        self.dispatcher.notify_queue(id, due);
        let config = self.dispatcher.config();
        let chain = config.chain(row.direction, row.tunnel.as_ref());
        let removed = row.worker.as_ref().filter(|worker| !chain.0.contains(worker));
        let Some(removed) = removed else { return Ok(row) };
        self.recall(&config, &BTreeSet::from([removed.clone()])).await?;
        store.letter(id).await
    }

    /// Releases the letters of attempts that ended with an earlier process. Tube workers keep
    /// theirs.
    async fn release_interrupted(&self, config: &PipelineConfig) -> StoreResult<()> {
        let workers = config.external_workers().filter(|(_, worker)| !worker.is_tube());
        let workers: Vec<_> = workers.map(|(name, _)| name.clone()).collect();
        let now = self.dispatcher.now();
        let released = self.dispatcher.store().release_letters(&workers, now).await?;
        if released > 0 {
            tracing::info!(released, "released letters of interrupted attempts");
        }
        Ok(())
    }

    /// Takes letters back from external workers that do not exist, that no chain uses, or that
    /// are in `removed`. Letters whose chain still contains the worker return to it.
    async fn recall(
        &self,
        config: &PipelineConfig,
        removed: &BTreeSet<WorkerName>,
    ) -> StoreResult<()> {
        let stays = |name: &&WorkerName| config.is_used(name) && !removed.contains(*name);
        let workers = config.external_workers().map(|(name, _)| name).filter(stays);
        let workers: Vec<_> = workers.cloned().collect();
        let store = self.dispatcher.store();
        let mut recalled = 0;
        loop {
            let limit = MAX_RECALLED_PER_COMMIT;
            let count = store.recall_letters(&workers, limit, self.dispatcher.now()).await?;
            recalled += count;
            if count < limit || self.stop.is_cancelled() {
                break;
            }
        }
        if recalled > 0 {
            tracing::info!(recalled, "took letters back from removed workers");
        }
        Ok(())
    }

    /// Takes back letters that are held by a worker that was removed while the courier was
    /// stopped.
    async fn recall_unheld(&self, config: &PipelineConfig) -> StoreResult<()> {
        let counts = self.dispatcher.store().letter_counts(self.dispatcher.now()).await?;
        for name in counts.held.keys().filter_map(|name| name.parse::<WorkerName>().ok()) {
            let worker = config.workers.get(&name).filter(|_| config.is_used(&name));
            if !worker.is_some_and(|worker| worker.holds_letters()) {
                self.recall_held(&name).await?;
            }
        }
        Ok(())
    }

    async fn recall_held(&self, name: &WorkerName) -> StoreResult<()> {
        let (store, limit) = (self.dispatcher.store(), MAX_RECALLED_PER_COMMIT);
        while store.recall_held_letters(name, limit, self.dispatcher.now()).await? == limit {}
        Ok(())
    }

    /// Starts new and changed external workers, and stops changed and removed ones.
    async fn run_external_workers(&self, config: &PipelineConfig) {
        let mut running = self.external_workers.lock().await;
        let wanted: BTreeMap<_, _> = config.external_workers().collect();
        // Tube workers share connections and result tubes: they are restarted together.
        let tubes = wanted.iter().filter(|(_, worker)| worker.is_tube());
        let same_tubes = tubes.clone().count()
            == running.values().filter(|(worker, _)| worker.is_tube()).count()
            && tubes.clone().all(|(name, worker)| is_running(&running, name, worker));
        running.retain(|name, (worker, stop)| {
            let same = wanted.get(name).is_some_and(|new| worker.changed_keys(*new).is_empty());
            let stays = same && (same_tubes || !worker.is_tube());
            if !stays {
                stop.cancel();
            }
            stays
        });
        for (name, worker) in wanted.iter().filter(|(_, worker)| !worker.is_tube()) {
            if !running.contains_key(*name) {
                let stop = self.stop.child_token();
                let request_loop = RequestLoop::new(self.external_worker(name, worker));
                self.tasks.spawn(request_loop.run(stop.clone()));
                running.insert((*name).clone(), ((*worker).clone(), stop));
            }
        }
        if !same_tubes {
            let tubes: Vec<_> =
                tubes.map(|(name, worker)| self.external_worker(name, worker)).collect();
            self.run_tubes(tubes, &mut running);
        }
    }

    fn external_worker(&self, name: &WorkerName, config: &ExternalWorkerConfig) -> ExternalWorker {
        let dispatcher = Arc::clone(&self.dispatcher);
        ExternalWorker { name: name.clone(), config: config.clone(), dispatcher }
    }

    /// Starts one loop per tube worker, and one reader per results tube.
    fn run_tubes(&self, workers: Vec<ExternalWorker>, running: &mut RunningWorkers) {
        let stop = self.stop.child_token();
        let mut clients: BTreeMap<BeanstalkdAddress, BeanstalkdClient> = BTreeMap::new();
        let mut readers: BTreeMap<(BeanstalkdAddress, TubeName), BTreeMap<_, _>> = BTreeMap::new();
        for worker in workers {
            let WorkerTransport::Tube(transport) = worker.config.transport.clone() else {
                continue;
            };
            let server = transport.server;
            let client = clients.entry(server.clone()).or_insert_with(|| {
                BeanstalkdClient::new(server.clone(), &self.tasks, stop.clone())
            });
            let in_flight = Arc::new(InFlightLetters::default());
            let tube_loop = TubeLoop {
                worker: worker.clone(),
                tube: transport.tube,
                client: client.clone(),
                in_flight: Arc::clone(&in_flight),
            };
            self.tasks.spawn(tube_loop.run(stop.clone()));
            running.insert(worker.name.clone(), (worker.config.clone(), stop.clone()));
            let readers = readers.entry((server, transport.results)).or_default();
            readers.insert(worker.name.clone(), (worker, in_flight));
        }
        for ((server, tube), workers) in readers {
            let consumer = JobConsumer::new(server, vec![tube], &self.tasks, stop.clone());
            let dispatcher = Arc::clone(&self.dispatcher);
            let reader = TubeResultReader { consumer, workers, dispatcher };
            self.tasks.spawn(reader.run(stop.clone()));
        }
    }
}

fn is_running(running: &RunningWorkers, name: &WorkerName, config: &ExternalWorkerConfig) -> bool {
    running.get(name).is_some_and(|(worker, _)| worker.changed_keys(config).is_empty())
}

/// Returns the workers that `new` removes from at least one chain.
fn removed_from_chains(old: &PipelineConfig, new: &PipelineConfig) -> BTreeSet<WorkerName> {
    let tunnels: BTreeSet<_> = old.tunnels.keys().chain(new.tunnels.keys()).collect();
    let mut removed = BTreeSet::new();
    for tunnel in tunnels.into_iter().map(Some).chain([None]) {
        for direction in ChainDirection::ALL {
            let kept = new.chain(direction, tunnel);
            let workers = &old.chain(direction, tunnel).0;
            removed.extend(workers.iter().filter(|name| !kept.0.contains(name)).cloned());
        }
    }
    removed
}
