//! Monoco without HTTP: the store, called like the courier calls it.

use std::path::{Path, PathBuf};

use monoco_core::did::Did;
use monoco_core::lease::{Holder, LeaseDuration, LeaseProof};
use monoco_core::object::MsgObject;
use monoco_core::record::{BoxKind, ReadState};
use monoco_core::time::Timestamp;
use monoco_store::SqlStore;
use monoco_store::sqlite::SqliteStore;
use monoco_store::{DispatchRequest, RecordStore};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::common::Result;
use crate::contender::{Call, Peer};
use crate::payload::Payload;

pub const NAME: &str = "monoco, store";

/// Messages per commit while the store is filled.
const FILL_BATCH: u64 = 500;

/// Opens the stores of a new queue, with files in an empty directory.
type OpenStores = Box<dyn Fn(&Path) -> Result<Vec<SqlStore>> + Send + Sync>;

pub struct StoreContender {
    below: PathBuf,
    runtime: Runtime,
    open: OpenStores,
}

/// Open stores with the same rows, and their files. Clients use them in turns.
pub struct Store {
    // In this order: the stores are closed before the files are removed.
    stores: Vec<SqlStore>,
    _data: TempDir,
}

impl StoreContender {
    pub fn new(below: &Path) -> Result<Self> {
        Self::with(below, Box::new(|dir| Ok(vec![SqliteStore::open(dir)?])))
    }

    /// A contender with stores that `open` returns.
    pub fn with(below: &Path, open: OpenStores) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { below: below.to_owned(), runtime, open })
    }
}

impl Store {
    fn of_client(&self, number: usize) -> &SqlStore {
        &self.stores[number % self.stores.len()]
    }
}

impl Peer for StoreContender {
    type Queue = Store;

    fn version(&self) -> String {
        format!("Monoco {}", env!("CARGO_PKG_VERSION"))
    }

    fn start(&self) -> Result<Store> {
        let data = TempDir::new_in(&self.below)?;
        Ok(Store { stores: (self.open)(data.path())?, _data: data })
    }

    fn fill(&self, queue: Store, messages: u64) -> Result<Store> {
        let mut payload = Payload::new();
        let mut left = messages;
        while left > 0 {
            let count = left.min(FILL_BATCH);
            let batch = (0..count).map(|_| dispatch(&mut payload, 0)).collect::<Result<_>>()?;
            for answer in self.runtime.block_on(queue.stores[0].dispatch(batch, now())) {
                answer?;
            }
            left -= count;
        }
        Ok(queue)
    }

    fn producer<'q>(&'q self, queue: &'q Store, number: usize) -> Result<Call<'q>> {
        let (mut payload, store) = (Payload::new(), queue.of_client(number));
        Ok(Box::new(move || {
            let batch = vec![dispatch(&mut payload, number)?];
            for answer in self.runtime.block_on(store.dispatch(batch, now())) {
                answer?;
            }
            Ok(1)
        }))
    }

    fn taker<'q>(&'q self, queue: &'q Store, number: usize) -> Result<Call<'q>> {
        let (store, owner) = (queue.of_client(number), owner()?);
        let holder = Holder::new(format!("taker-{number}"))?;
        Ok(Box::new(move || {
            self.runtime.block_on(async {
                let (inbox, term) = (BoxKind::Inbox, LeaseDuration::DEFAULT);
                let taken = store.lease_record(&owner, inbox, holder.clone(), term, now()).await?;
                let record = taken.ok_or("nothing is waiting")?.entry;
                let epoch = Some(record.reading.epoch);
                let proof = LeaseProof { epoch, holder: holder.clone() };
                let to = ReadState::Readed;
                store.mark_record(record.id, to, proof, None, term, now()).await?;
                Ok(1)
            })
        }))
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
