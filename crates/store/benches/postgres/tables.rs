//! Plain tables on PostgreSQL, with one writer that commits all waiting messages together.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{Client, NoTls};

use crate::common::Result;
use crate::contender::{Call, Peer};
use crate::new_schema;
use crate::payload::{Payload, SIZE};

/// One table, without indexes beside its key.
pub const ONE: &str = "one table";

/// The tables that a hub needs at least: messages by hash, records of owners, and keys of requests.
pub const THREE: &str = "three tables";

/// Messages that one commit contains at most.
const MAX_BATCH: usize = 512;

/// How long a client waits for the server.
const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Tables {
    runtime: Runtime,
    url: Arc<str>,
    three: bool,
}

type Enqueued = (Vec<u8>, oneshot::Sender<()>);

/// The queue of the writer.
pub struct TablesQueue(mpsc::Sender<Enqueued>);

impl Tables {
    pub fn new(url: &Arc<str>, three: bool) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { runtime, url: Arc::clone(url), three })
    }
}

/// Opens a session. Its task runs on the current runtime.
pub async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    #[expect(clippy::disallowed_methods, reason = "the task ends with its session")]
    tokio::spawn(connection);
    Ok(client)
}

/// The version of the server.
pub fn version(url: &str) -> Result<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        let row = client.query_one("SHOW server_version", &[]).await?;
        let version: String = row.get(0);
        Ok(version.split(' ').next().unwrap_or_default().to_owned())
    })
}

impl Peer for Tables {
    type Queue = TablesQueue;

    fn version(&self) -> String {
        if self.three { THREE } else { ONE }.to_owned()
    }

    fn start(&self) -> Result<TablesQueue> {
        let (queue, waiting) = mpsc::channel(MAX_BATCH);
        let three = self.three;
        self.runtime.block_on(async {
            let client = connect(&self.url).await?;
            let schema = new_schema();
            client.batch_execute(&format!(
                "CREATE SCHEMA {schema}; SET search_path = {schema};
                 CREATE TABLE objects (seq BIGSERIAL PRIMARY KEY, hash BYTEA, body BYTEA NOT NULL);
                 CREATE TABLE records (seq BIGSERIAL PRIMARY KEY, hash BYTEA NOT NULL,
                     owner BIGINT NOT NULL, state TEXT NOT NULL);
                 CREATE TABLE keys (key BYTEA PRIMARY KEY);"
            ))
            .await?;
            if three {
                client.batch_execute(
                    "CREATE UNIQUE INDEX ON objects (hash); CREATE INDEX ON records (owner, state, seq)",
                )
                .await?;
            }
            #[expect(clippy::disallowed_methods, reason = "the task ends with its queue")]
            tokio::spawn(write(client, waiting, three));
            Ok(TablesQueue(queue))
        })
    }

    fn fill(&self, queue: TablesQueue, _messages: u64) -> Result<TablesQueue> {
        Ok(queue)
    }

    fn producer<'q>(&'q self, queue: &'q TablesQueue, _number: usize) -> Result<Call<'q>> {
        let mut payload = Payload::new();
        Ok(Box::new(move || {
            self.runtime.block_on(async {
                let (done, answer) = oneshot::channel();
                queue.0.send((payload.next().to_vec(), done)).await?;
                tokio::time::timeout(TIMEOUT, answer).await??;
                Ok(1)
            })
        }))
    }

    fn taker<'q>(&'q self, _queue: &'q TablesQueue, _number: usize) -> Result<Call<'q>> {
        Err("only producers are measured".into())
    }

    fn has_takers(&self) -> bool {
        false
    }
}

/// Inserts all waiting messages and commits, until the queue is closed. After an error the callers
/// are not answered, and the measurement fails.
async fn write(client: Client, mut waiting: mpsc::Receiver<Enqueued>, three: bool) -> Result<()> {
    let one = client.prepare("INSERT INTO objects (body) SELECT unnest($1::BYTEA[])").await?;
    // One statement, so that both contenders need one round trip.
    let all = client
        .prepare(
            "WITH new AS (SELECT * FROM unnest($1::BYTEA[], $2::BYTEA[]) AS new(hash, body)),
                  o AS (INSERT INTO objects (hash, body) SELECT hash, body FROM new
                        ON CONFLICT DO NOTHING),
                  k AS (INSERT INTO keys (key) SELECT hash FROM new ON CONFLICT DO NOTHING)
             INSERT INTO records (hash, owner, state) SELECT hash, 1, 'UNREAD' FROM new",
        )
        .await?;
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let bodies: Vec<&[u8]> = batch.iter().map(|(body, _)| body.as_slice()).collect();
        if three {
            // The start of a payload is unique. Its bytes are reversed, because hashes are random.
            let key =
                |body: &&[u8]| body[..32.min(SIZE)].iter().rev().copied().collect::<Vec<u8>>();
            let hashes: Vec<Vec<u8>> = bodies.iter().map(key).collect();
            client.execute(&all, &[&hashes, &bodies]).await?;
        } else {
            client.execute(&one, &[&bodies]).await?;
        }
        for (_, done) in batch.drain(..) {
            // The caller may be gone at the end of a measurement.
            let _ = done.send(());
        }
    }
    Ok(())
}
