//! beanstalkd, with a log that is synced for every job.
//!
//! The log records jobs and deletions, but no reservations: take and finish is one durable
//! step here, and two in the other contenders.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::Result;
pub use crate::common::beanstalkd::NAME;
use crate::common::beanstalkd::{self, BeanstalkdConnection, DURABLE, WITHOUT_SYNC};
use crate::common::resources::IdleCost;
use crate::common::server::Server;
use crate::contender::{Call, Peer};
use crate::payload::{self, Payload};

/// Puts per request while the queue is filled.
const PIPELINE: u64 = 500;

pub struct Beanstalkd {
    below: PathBuf,
    version: String,
}

impl Beanstalkd {
    pub fn new(below: &Path) -> Result<Self> {
        Ok(Self { below: below.to_owned(), version: beanstalkd::version()? })
    }
}

impl Peer for Beanstalkd {
    type Queue = Server;

    fn version(&self) -> String {
        self.version.clone()
    }

    fn start(&self) -> Result<Server> {
        Server::start(&self.below, DURABLE)
    }

    /// Adds messages without a sync for each, then enables syncing again.
    ///
    /// Pipelining does not help: beanstalkd syncs each put before it reads the next, so that
    /// 1,000,000 puts would take minutes.
    fn fill(&self, server: Server, messages: u64) -> Result<Server> {
        if messages == 0 {
            return Ok(server);
        }
        let server = server.restart(WITHOUT_SYNC)?;
        let mut client = BeanstalkdConnection::new(server.connect()?);
        let mut payload = Payload::new();
        let mut left = messages;
        while left > 0 {
            let batch = left.min(PIPELINE);
            client.put_many((0..batch).map(|_| *payload.next()))?;
            left -= batch;
        }
        server.sync_files()?;
        server.restart(DURABLE)
    }

    fn producer<'q>(&'q self, server: &'q Server, _: usize) -> Result<Call<'q>> {
        let mut client = BeanstalkdConnection::new(server.connect()?);
        let mut payload = Payload::new();
        Ok(Box::new(move || client.put(payload.next()).map(|()| 1)))
    }

    fn taker<'q>(&'q self, server: &'q Server, _: usize) -> Result<Call<'q>> {
        let mut client = BeanstalkdConnection::new(server.connect()?);
        Ok(Box::new(move || {
            let id = client.reserve(30)?.ok_or("no job within 30 s")?;
            if client.body.len() != payload::SIZE {
                return Err(format!("a job of {} B", client.body.len()).into());
            }
            client.delete(&[id]).map(|()| 1)
        }))
    }

    fn idle_cost(&self, watch: Duration) -> Result<Option<IdleCost>> {
        let server = self.start()?;
        IdleCost::watch(server.pid(), watch, Command::new(NAME).arg("-v")).map(Some)
    }
}
