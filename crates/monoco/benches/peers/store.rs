//! Ourselves, without the HTTP in front: the store as the courier calls it.

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

/// Messages that the filling puts into one commit.
const FILL: u64 = 500;

pub struct Ours {
    below: PathBuf,
    runtime: Runtime,
    /// The filled store, and how many wait in it.
    filled: Option<(Store, u64)>,
}

/// An open store and its data.
struct Store {
    // In this order: closed before the files go.
    store: SqliteStore,
    _data: TempDir,
}

impl Store {
    fn create(below: &Path) -> Result<Self> {
        let data = TempDir::new_in(below)?;
        Ok(Self { store: SqliteStore::open(data.path())?, _data: data })
    }
}

impl Ours {
    pub fn new(below: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { below: below.to_owned(), runtime, filled: None })
    }

    fn fill(&self, store: &SqliteStore, messages: u64) -> Result<()> {
        let mut payload = Payload::new();
        let mut left = messages;
        while left > 0 {
            let count = left.min(FILL);
            let batch = (0..count).map(|_| dispatch(&mut payload, 0)).collect::<Result<_>>()?;
            for answer in self.runtime.block_on(store.dispatch(batch, now())) {
                answer?;
            }
            left -= count;
        }
        Ok(())
    }
}

impl Contender for Ours {
    fn version(&self) -> String {
        format!("Monoco {}", env!("CARGO_PKG_VERSION"))
    }

    fn enqueue(&mut self, producers: usize, bounds: Bounds) -> Result<Option<f64>> {
        let Store { store, _data } = Store::create(&self.below)?;
        let runtime = &self.runtime;
        let seen = drive(producers, bounds, |producer| {
            let (store, mut payload) = (&store, Payload::new());
            Ok(move || {
                let batch = vec![dispatch(&mut payload, producer)?];
                for answer in runtime.block_on(store.dispatch(batch, now())) {
                    answer?;
                }
                Ok(1)
            })
        })?;
        Ok(Some(seen.rate))
    }

    fn take_finish(&mut self, takers: usize, backlog: u64, bounds: Bounds) -> Result<Option<f64>> {
        let (filled, waiting) = match self.filled.take() {
            Some(filled) => filled,
            None => (Store::create(&self.below)?, 0),
        };
        self.fill(&filled.store, backlog.saturating_sub(waiting))?;
        let bounds = Bounds { calls: bounds.calls.min(backlog), ..bounds };
        let (store, runtime) = (&filled.store, &self.runtime);
        let seen = drive(takers, bounds, |taker| {
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
        self.filled = Some((filled, backlog - seen.messages));
        Ok(Some(seen.rate))
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

// The store takes the time from whoever calls it; any will do here.
fn now() -> Timestamp {
    Timestamp::from_ms(1)
}
