//! Runs the post office: the dispatcher, and a desk for each worker outside.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock};

use monoco_adapters::webhook::WebhookVerification;
use monoco_adapters::webhook::wire::Signer;
use monoco_core::did::TunnelId;
use monoco_core::letter::{ChainDirection, InvalidLetter, LetterId, LetterStateData, WorkerName};
use monoco_store::{LetterRow, LetterSource, OperatorAction, SharedStore, StoreError};
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::beanstalkd::{BeanstalkdAddress, BeanstalkdClient, JobConsumer, TubeName};
use super::config::{
    ExternalWorkerConfig, PipelineConfig, QueueKind, WorkerConfig, WorkerTransport,
};
use super::dispatcher::LetterDispatcher;
use super::doorman;
use super::external::egress;
use super::external::tube::{InFlightLetters, TubeResultReader, TubeWorker};
use super::external::worker::ExternalWorker;
use super::metrics::WorkerMetrics;
use super::queue::{LetterQueue, QueueNotifier};
use crate::clock::Clock;

/// Letters that one commit of a recall moves.
const RECALLED: usize = 500;

/// Everything that runs, and what it runs by.
pub struct Pipeline {
    dispatcher: Arc<LetterDispatcher>,
    settings: watch::Sender<Arc<PipelineConfig>>,
    desks: Mutex<BTreeMap<WorkerName, (ExternalWorkerConfig, CancellationToken)>>,
    /// Tunnels that were asked for before. None is ever taken away.
    tunnels: RwLock<Arc<BTreeSet<TunnelId>>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Why a letter is not taken.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// Something is wrong with it.
    #[error(transparent)]
    Bad(#[from] InvalidLetter),
    /// The store can't be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opens the queue that letters are carried by.
pub fn open_queue(
    settings: &PipelineConfig,
    store: &SharedStore,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> (LetterQueue, QueueNotifier) {
    match &settings.queue {
        QueueKind::Store => (LetterQueue::store(store), QueueNotifier::default()),
        QueueKind::Beanstalkd(address) => LetterQueue::beanstalkd(address, store, tasks, stop),
    }
}

impl Pipeline {
    /// Starts what these settings ask for.
    ///
    /// # Errors
    ///
    /// When letters of an earlier courier can't be taken back.
    pub async fn start(
        store: SharedStore,
        clock: Clock,
        notifier: QueueNotifier,
        settings: Arc<PipelineConfig>,
        queue: LetterQueue,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Self, StoreError> {
        let (sender, receiver) = watch::channel(Arc::clone(&settings));
        let figures = Arc::new(WorkerMetrics::default());
        let dispatcher = Arc::new(LetterDispatcher::new(store, clock, notifier, receiver, figures));
        let office = Self {
            dispatcher: Arc::clone(&dispatcher),
            settings: sender,
            desks: Mutex::default(),
            tunnels: RwLock::default(),
            tasks: tasks.clone(),
            stop: stop.clone(),
        };
        office.release(&settings).await?;
        office.recall(&settings, &BTreeSet::new()).await?;
        office.recall_unkept(&settings).await?;
        office.run_desks(&settings).await;
        tasks.spawn(dispatcher.run(queue, stop.clone()));
        Ok(office)
    }

    /// Who walks the letters.
    pub fn dispatcher(&self) -> &Arc<LetterDispatcher> {
        &self.dispatcher
    }

    /// Goes by other settings from now on. Letters under way go on by the new chains.
    ///
    /// # Errors
    ///
    /// When letters can't be taken back from workers that are gone.
    pub async fn reload(&self, new: Arc<PipelineConfig>) -> Result<(), StoreError> {
        let old = self.settings.send_replace(Arc::clone(&new));
        self.run_desks(&new).await;
        let left = left(&old, &new);
        self.recall(&new, &left).await?;
        // What was kept by a rule that is no more comes round again, in its order.
        for (name, worker) in &old.workers {
            let keeps = matches!(worker, WorkerConfig::Limit(_) | WorkerConfig::Merge(_));
            if keeps && (new.workers.get(name) != Some(worker) || left.contains(name)) {
                self.recall_kept(name).await?;
            }
        }
        Ok(())
    }

    /// Reads and checks a letter that is handed in.
    ///
    /// # Errors
    ///
    /// What is wrong with it, or with the store.
    pub async fn read(
        &self,
        value: Value,
        key: Option<String>,
    ) -> Result<LetterSource, SubmitError> {
        let settings = self.dispatcher.settings();
        let letter = doorman::read(value, key.as_deref())?;
        let known = Arc::clone(&self.tunnels.read().unwrap_or_else(PoisonError::into_inner));
        let tunnel = match doorman::way(&letter, &settings, &known) {
            Ok(tunnel) => tunnel,
            // It may name a tunnel that nobody has named before.
            Err(_) => doorman::way(&letter, &settings, &*self.look_up_tunnels().await?)?,
        };
        Ok(doorman::addressed(letter, tunnel, key))
    }

    async fn look_up_tunnels(&self) -> Result<Arc<BTreeSet<TunnelId>>, StoreError> {
        let all = self.dispatcher.store().tunnels().await?;
        let all: Arc<BTreeSet<_>> = Arc::new(all.into_iter().map(|tunnel| tunnel.id).collect());
        *self.tunnels.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&all);
        Ok(all)
    }

    /// Moves a letter by hand. One that would wait for a worker that is no more in its
    /// chain goes on without it.
    ///
    /// # Errors
    ///
    /// When there is no such letter, or it can't be moved so.
    pub async fn move_letter(
        &self,
        id: LetterId,
        how: OperatorAction,
    ) -> Result<LetterRow, StoreError> {
        let store = self.dispatcher.store();
        let row = store.move_letter(id, how, self.now()).await?;
        if let LetterStateData::Waiting { due } = row.status.standing {
            self.dispatcher.notify_queue(id, due);
        }
        let settings = self.dispatcher.settings();
        let chain = settings.chain(row.direction, row.tunnel.as_ref());
        let gone = row.worker.as_ref().filter(|desk| !chain.0.contains(desk));
        let (LetterStateData::Waiting { .. }, Some(gone)) = (&row.status.standing, gone) else {
            return Ok(row);
        };
        self.recall(&settings, &BTreeSet::from([gone.clone()])).await?;
        store.letter(id).await
    }

    fn now(&self) -> monoco_core::time::Timestamp {
        self.dispatcher.now()
    }

    /// Letters at workers that died with the courier before this one.
    async fn release(&self, settings: &PipelineConfig) -> Result<(), StoreError> {
        let ours = settings.outside().filter(|(_, outside)| !is_tube(outside));
        let ours: Vec<_> = ours.map(|(name, _)| name.clone()).collect();
        let released = self.dispatcher.store().release_letters(&ours, self.now()).await?;
        if released > 0 {
            tracing::info!(released, "letters of an earlier run are tried again");
        }
        Ok(())
    }

    /// Letters at workers that are gone, that no chain has, or that have `left` one. Those
    /// of other chains come back to them.
    async fn recall(
        &self,
        settings: &PipelineConfig,
        left: &BTreeSet<WorkerName>,
    ) -> Result<(), StoreError> {
        let stays = |name: &&WorkerName| settings.is_used(name) && !left.contains(*name);
        let desks = settings.outside().map(|(name, _)| name).filter(stays);
        let desks: Vec<_> = desks.cloned().collect();
        let store = self.dispatcher.store();
        let mut recalled = 0;
        loop {
            let now = store.recall_letters(&desks, RECALLED, self.now()).await?;
            recalled += now;
            if now < RECALLED || self.stop.is_cancelled() {
                break;
            }
        }
        if recalled > 0 {
            tracing::info!(recalled, "letters go on without a worker that is gone");
        }
        Ok(())
    }

    /// Letters that were kept by a rule that went while no courier ran.
    async fn recall_unkept(&self, settings: &PipelineConfig) -> Result<(), StoreError> {
        let figures = self.dispatcher.store().letter_counts(self.now()).await?;
        for name in figures.held.keys().filter_map(|name| name.parse::<WorkerName>().ok()) {
            let rule = settings.workers.get(&name).filter(|_| settings.is_used(&name));
            if !matches!(rule, Some(WorkerConfig::Limit(_) | WorkerConfig::Merge(_))) {
                self.recall_kept(&name).await?;
            }
        }
        Ok(())
    }

    async fn recall_kept(&self, name: &WorkerName) -> Result<(), StoreError> {
        let store = self.dispatcher.store();
        while store.recall_held_letters(name, RECALLED, self.now()).await? == RECALLED {}
        Ok(())
    }

    /// Starts, stops and leaves desks alone, so that those of `settings` run.
    async fn run_desks(&self, settings: &PipelineConfig) {
        let mut running = self.desks.lock().await;
        let wanted: BTreeMap<_, _> = settings.outside().collect();
        // Tubes share connections and places for answers: they change together.
        let tubes =
            |desks: &mut dyn Iterator<Item = (&WorkerName, &ExternalWorkerConfig)>| -> Vec<_> {
                desks
                    .filter(|(_, outside)| is_tube(outside))
                    .map(|(name, outside)| (name.clone(), outside.clone()))
                    .collect()
            };
        let before = tubes(&mut running.iter().map(|(name, (outside, _))| (name, outside)));
        let after = tubes(&mut wanted.iter().map(|(name, outside)| (*name, *outside)));
        let same_tubes = before == after;
        running.retain(|name, (outside, stop)| {
            let same = wanted.get(name).is_some_and(|new| **new == *outside);
            let stays = same && (same_tubes || !is_tube(outside));
            if !stays {
                stop.cancel();
            }
            stays
        });
        for (name, outside) in wanted.iter().filter(|(_, outside)| !is_tube(outside)) {
            if !running.contains_key(*name) {
                let stop = self.stop.child_token();
                self.tasks.spawn(self.desk(name, outside).run(stop.clone()));
                running.insert((*name).clone(), ((*outside).clone(), stop));
            }
        }
        if !same_tubes {
            self.run_tubes(after, &mut running);
        }
    }

    fn desk(&self, name: &WorkerName, outside: &ExternalWorkerConfig) -> ExternalWorker {
        let way_out = egress(outside.timeout);
        if let Err(error) = &way_out {
            tracing::error!(worker = %name, %error, "there is no way out over HTTP");
        }
        let signer = match &outside.how {
            // The config has seen to it that the secret is one.
            WorkerTransport::Http { secret, .. } => {
                Signer::new(&WebhookVerification::Standard, secret).ok()
            }
            _ => None,
        };
        ExternalWorker {
            name: name.clone(),
            outside: outside.clone(),
            dispatcher: Arc::clone(&self.dispatcher),
            egress: way_out.ok(),
            signer,
        }
    }

    fn run_tubes(
        &self,
        tubes: Vec<(WorkerName, ExternalWorkerConfig)>,
        running: &mut BTreeMap<WorkerName, (ExternalWorkerConfig, CancellationToken)>,
    ) {
        let stop = self.stop.child_token();
        let mut clients: BTreeMap<BeanstalkdAddress, BeanstalkdClient> = BTreeMap::new();
        let mut answers: BTreeMap<(BeanstalkdAddress, TubeName), BTreeMap<_, _>> = BTreeMap::new();
        for (name, outside) in tubes {
            let WorkerTransport::Beanstalkd { address, tube, results } = outside.how.clone() else {
                continue;
            };
            let client = clients.entry(address.clone()).or_insert_with(|| {
                BeanstalkdClient::new(address.clone(), &self.tasks, stop.clone())
            });
            let flights = Arc::new(InFlightLetters::default());
            let desk = TubeWorker {
                name: name.clone(),
                outside: outside.clone(),
                tube,
                dispatcher: Arc::clone(&self.dispatcher),
                client: client.clone(),
                flights: Arc::clone(&flights),
            };
            self.tasks.spawn(desk.run(stop.clone()));
            let desks = answers.entry((address, results)).or_default();
            desks.insert(name.clone(), (outside.clone(), flights));
            running.insert(name, (outside, stop.clone()));
        }
        for ((address, tube), desks) in answers {
            let taker = JobConsumer::new(address, vec![tube], &self.tasks, stop.clone());
            let results =
                TubeResultReader { taker, desks, dispatcher: Arc::clone(&self.dispatcher) };
            self.tasks.spawn(results.run(stop.clone()));
        }
    }
}

/// The workers that some chain had and has no more.
fn left(old: &PipelineConfig, new: &PipelineConfig) -> BTreeSet<WorkerName> {
    let own = |settings: &PipelineConfig| settings.tunnels.keys().cloned().collect::<BTreeSet<_>>();
    let tunnels = own(old).into_iter().chain(own(new)).map(Some).chain([None]);
    let mut left = BTreeSet::new();
    for tunnel in tunnels {
        for direction in ChainDirection::ALL {
            let chain =
                |settings: &PipelineConfig| settings.chain(direction, tunnel.as_ref()).clone();
            let now = chain(new);
            left.extend(chain(old).0.into_iter().filter(|name| !now.0.contains(name)));
        }
    }
    left
}

fn is_tube(outside: &ExternalWorkerConfig) -> bool {
    matches!(outside.how, WorkerTransport::Beanstalkd { .. })
}
