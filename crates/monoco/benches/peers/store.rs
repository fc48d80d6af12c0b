//! Monoco without HTTP: the store, called like the courier calls it.

use std::path::{Path, PathBuf};

use monoco_core::did::Did;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::MsgObject;
use monoco_core::record::{BoxKind, ReadState};
use monoco_core::time::Timestamp;
use monoco_store::sqlite::SqliteStore;
use monoco_store::{DispatchRequest, RecordStore};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::common::Result;
use crate::common::drive::{Bounds, drive};
use crate::contender::Contender;
use crate::payload::Payload;

pub const NAME: &str = "monoco, store";

/// Messages per commit while the store is filled.
const FILL_BATCH: u64 = 500;

pub struct StoreContender {
    below: PathBuf,
    runtime: Runtime,
    /// The filled store and the number of waiting messages.
    filled: Option<(Store, u64)>,
}

/// An open store and its data.
struct Store {
    // In this order: the store is closed before the files are removed.
    store: SqliteStore,
    _data: TempDir,
}

impl Store {
    fn create(below: &Path) -> Result<Self> {
        let data = TempDir::new_in(below)?;
        Ok(Self { store: SqliteStore::open(data.path())?, _data: data })
    }
}

impl StoreContender {
    pub fn new(below: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { below: below.to_owned(), runtime, filled: None })
    }

    fn fill(&self, store: &SqliteStore, messages: u64) -> Result<()> {
        let mut payload = Payload::new();
        let mut left = messages;
        while left > 0 {
            let count = left.min(FILL_BATCH);
            let batch = (0..count).map(|_| dispatch(&mut payload, 0)).collect::<Result<_>>()?;
            for answer in self.runtime.block_on(store.dispatch(batch, now())) {
                answer?;
            }
            left -= count;
        }
        Ok(())
    }
}

impl Contender for StoreContender {
    fn version(&self) -> String {
        format!("Monoco {}", env!("CARGO_PKG_VERSION"))
    }

    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>> {
        let Store { store, _data } = Store::create(&self.below)?;
        let runtime = &self.runtime;
        let measured = drive(producers, bounds, |producer| {
            let (store, mut payload) = (&store, Payload::new());
            Ok(move || {
                let batch = vec![dispatch(&mut payload, producer)?];
                for answer in runtime.block_on(store.dispatch(batch, now())) {
                    answer?;
                }
                Ok(1)
            })
        })?;
        Ok(Some(measured.rate))
    }

    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>> {
        let (filled, waiting) = match self.filled.take() {
            Some(filled) => filled,
            None => (Store::create(&self.below)?, 0),
        };
        self.fill(&filled.store, backlog.saturating_sub(waiting))?;
        let bounds = Bounds { calls: bounds.calls.min(backlog), ..bounds };
        let (store, runtime) = (&filled.store, &self.runtime);
        let measured = drive(takers, bounds, |taker| {
            let (owner, holder) = (owner()?, Holder::new(format!("taker-{taker}"))?);
            Ok(move || {
                runtime.block_on(async {
                    let (inbox, term) = (BoxKind::Inbox, LeaseDuration::DEFAULT);
                    let taken =
                        store.lease_record(&owner, inbox, holder.clone(), term, now()).await?;
                    let record = taken.ok_or("nothing is waiting")?.entry;
                    let guard =
                        LeaseProof { epoch: Some(record.reading.epoch), holder: holder.clone() };
                    let to = ReadState::Readed;
                    store.mark_record(record.id, to, guard, None, term, now()).await?;
                    Ok(1)
                })
            })
        })?;
        self.filled = Some((filled, backlog - measured.messages));
        Ok(Some(measured.rate))
    }

    fn release(&mut self) {
        self.filled = None;
    }
}

fn owner() -> Result<Did> {
    Ok("did:monoco:me".parse()?)
}

fn dispatch(payload: &mut Payload, producer: usize) -> Result<DispatchRequest> {
    let text = std::str::from_utf8(payload.next())?;
    let msg = MsgObject::from_json(json!({
        "from": format!("did:web:producer-{producer}"),
        "to": ["did:monoco:me"],
        "kind": "chat",
        "content": {"content": text},
    }))?;
    Ok(DispatchRequest { msg, tunnel: None, external_id: None })
}

// The caller passes the time to the store; a constant is enough here.
fn now() -> Timestamp {
    Timestamp::from_ms(1)
}
