//! Fetches the files of inbound messages after the messages are stored.
//!
//! A provider waits a few seconds for the acknowledgement of a message, and a file can take
//! longer. So the store keeps what is to be fetched, and this loop fetches it through the adapter
//! of the tunnel. The bytes go to the store while they are read. After a crash the file is still
//! due, and is fetched again.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use monoco_adapters::FileDownload;
use monoco_core::did::TunnelId;
use monoco_core::inbound::MAX_NAME_BYTES;
use monoco_core::retry::Failure;
use monoco_store::{FileLabels, InboundFile, SharedStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::tunnels::{RunningTunnel, TunnelRegistry};
use crate::background::{self, BackgroundTask, NextStep};
use crate::clock::{Clock, jitter};
use crate::task_group::TaskGroup;

/// Files of one tunnel that are fetched at the same time.
const MAX_FETCHES_PER_TUNNEL: usize = 4;

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);

/// How often a download checks whether its file is still wanted.
const WANTED_INTERVAL: Duration = Duration::from_secs(2);

/// Interval between checks while files are fetched.
const BUSY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between checks when no hint arrives.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The loop that fetches files for all tunnels.
pub struct FileFetcher {
    store: SharedStore,
    clock: Clock,
    tunnels: Arc<TunnelRegistry>,
    /// The group that runs the downloads.
    tasks: TaskGroup,
    new_files: watch::Receiver<u64>,
    downloads: Arc<Downloads>,
    ended: watch::Receiver<u64>,
}

/// The files that are being fetched.
#[derive(Default)]
struct Downloads {
    tunnels: Mutex<HashMap<i64, TunnelId>>,
    /// Changes when a download ends.
    ended: watch::Sender<u64>,
}

/// Removes a file from the downloads, also when its task is dropped.
struct Download {
    downloads: Arc<Downloads>,
    id: i64,
}

impl Downloads {
    // Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, TunnelId>> {
        self.tunnels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(self: &Arc<Self>, id: i64, tunnel: &TunnelId) -> Download {
        self.lock().insert(id, tunnel.clone());
        Download { downloads: Arc::clone(self), id }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.downloads.lock().remove(&self.id);
        self.downloads.ended.send_modify(|count| *count += 1);
    }
}

impl BackgroundTask for FileFetcher {
    const NAME: &'static str = "file fetcher";
    type Error = StoreError;

    async fn step(&mut self) -> Result<NextStep, StoreError> {
        self.new_files.mark_unchanged();
        self.ended.mark_unchanged();
        let mut wait = POLL_INTERVAL;
        for tunnel in self.tunnels.running().iter().filter(|tunnel| tunnel.is_active()) {
            if self.start_due(tunnel).await? {
                wait = wait.min(BUSY_INTERVAL);
            } else if let Some(due) = self.store.next_file(tunnel.adapter.id()).await? {
                wait = wait.min(due.since(self.clock.now()));
            }
        }
        Ok(NextStep::Poll(wait.max(Duration::from_millis(10))))
    }

    async fn hint(&mut self) {
        tokio::select! {
            () = background::changed(&mut self.new_files) => {}
            () = background::changed(&mut self.ended) => {}
        }
    }
}

impl FileFetcher {
    /// `tasks` runs the downloads. They end when it is stopped.
    pub fn new(
        store: SharedStore,
        clock: Clock,
        tunnels: Arc<TunnelRegistry>,
        tasks: TaskGroup,
    ) -> Self {
        let (new_files, downloads) = (store.newest_file(), Arc::<Downloads>::default());
        let ended = downloads.ended.subscribe();
        Self { store, clock, tunnels, tasks, new_files, downloads, ended }
    }

    /// Fetches files until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        background::run(&mut self, &stop).await;
    }

    /// Starts the due files of a tunnel. Returns whether files are being fetched.
    async fn start_due(&self, tunnel: &Arc<RunningTunnel>) -> Result<bool, StoreError> {
        let id = tunnel.adapter.id();
        let count = |downloads: &HashMap<i64, TunnelId>| {
            downloads.values().filter(|tunnel| *tunnel == id).count()
        };
        let busy = count(&self.downloads.lock());
        if busy >= MAX_FETCHES_PER_TUNNEL {
            return Ok(true);
        }
        // Those that are being fetched are due as well.
        let due = self.store.due_files(id, MAX_FETCHES_PER_TUNNEL, self.clock.now()).await?;
        for file in due {
            let known = self.downloads.lock();
            let is_free = count(&known) < MAX_FETCHES_PER_TUNNEL && !known.contains_key(&file.id);
            drop(known);
            if is_free {
                let download = self.downloads.start(file.id, id);
                self.start(Arc::clone(tunnel), file, download);
            }
        }
        Ok(count(&self.downloads.lock()) > 0)
    }

    fn start(&self, tunnel: Arc<RunningTunnel>, file: InboundFile, download: Download) {
        let (store, clock) = (Arc::clone(&self.store), self.clock);
        let stop = self.tasks.stop.clone();
        self.tasks.spawn(async move {
            let _download = download;
            let fetch = fetch(&store, clock, &tunnel, &file);
            tokio::select! {
                () = fetch => {}
                // Otherwise it would keep others from being fetched.
                () = until_unwanted(&store, file.id) => {}
                // The file stays due.
                () = stop.cancelled() => {}
                () = tunnel.stop.cancelled() => {}
            }
        });
    }
}

/// Waits until no window waits for a file any more.
async fn until_unwanted(store: &SharedStore, file: i64) {
    loop {
        tokio::time::sleep(WANTED_INTERVAL).await;
        if matches!(store.wants_file(file).await, Ok(false)) {
            return;
        }
    }
}

/// Makes one attempt to fetch a file, and stores the bytes or the failure.
async fn fetch(store: &SharedStore, clock: Clock, tunnel: &RunningTunnel, file: &InboundFile) {
    let attempt = AssertUnwindSafe(fetch_once(store, tunnel, file)).catch_unwind();
    let failure = match tokio::time::timeout(ATTEMPT_TIMEOUT, attempt).await {
        Ok(Ok(Ok(()))) => return,
        Ok(Ok(Err(failure))) => failure,
        Ok(Err(_)) => temporary("the adapter panicked"),
        Err(_) => temporary("not fetched within 300 s"),
    };
    let (id, error) = (tunnel.adapter.id(), failure.detail().to_owned());
    tracing::warn!(tunnel = %id, file = file.id, attempts = file.attempts + 1, error,
        "cannot fetch file of an inbound message");
    let failed = store.fail_file(file.id, failure, jitter(), clock.now()).await;
    if let Err(error) = failed {
        tracing::warn!(tunnel = %id, file = file.id, %error, "cannot store failure of a file");
    }
}

async fn fetch_once(
    store: &SharedStore,
    tunnel: &RunningTunnel,
    file: &InboundFile,
) -> Result<(), Failure> {
    let limit = tunnel.settings().max_file_bytes;
    let FileDownload { name, mime_type, size, mut bytes } =
        tunnel.adapter.open_file(&file.handle).await?;
    if size.is_some_and(|size| size > limit) {
        return Err(too_large(limit));
    }
    let short = |text: Option<String>| text.filter(|text| text.len() <= MAX_NAME_BYTES);
    let labels = FileLabels { name: short(name), mime_type: short(mime_type) };
    match store.store_file(file.id, labels, &mut bytes, limit).await {
        Ok(_) => Ok(()),
        Err(StoreError::TooLarge(_)) => Err(too_large(limit)),
        Err(StoreError::SourceFailed(detail)) => Err(temporary(&detail)),
        Err(error) => Err(temporary(&error.to_string())),
    }
}

fn too_large(limit: u64) -> Failure {
    let mb = limit >> 20;
    let detail = format!("larger than {mb} MiB, which is max_file_mb of the tunnel");
    Failure::Permanent { detail, error_code: None }
}

fn temporary(detail: &str) -> Failure {
    Failure::Temporary { detail: detail.to_owned(), retry_after_ms: None, error_code: None }
}

#[cfg(test)]
mod tests;
