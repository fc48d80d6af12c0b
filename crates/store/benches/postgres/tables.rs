//! Plain tables on PostgreSQL, with writers that commit all messages together that wait for them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join3;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls};

use crate::common::Result;
use crate::contender::{Call, Peer};
use crate::new_schema;
use crate::payload::{Payload, SIZE};

/// One table, without indexes beside its key.
pub const ONE: &str = "one table";

/// The tables that a hub needs at least: messages by hash, records of owners, and keys of requests.
pub const THREE: &str = "three tables";

/// Writers of the same tables, which commit one after the other, so that numbers follow commits: the
/// least that couriers need which share a database.
pub const IN_ORDER: &str = "three tables, in order";
pub const TWO_IN_ORDER: &str = "three tables, 2 in order";
pub const FOUR_IN_ORDER: &str = "three tables, 4 in order";

/// Messages that one commit contains at most.
const MAX_BATCH: usize = 512;

/// Starts a transaction that waits for those of other writers.
const START: &str = "BEGIN; SELECT pg_advisory_xact_lock(1)";

/// How long a client waits for the server.
const TIMEOUT: Duration = Duration::from_secs(30);

pub struct Tables {
    runtime: Runtime,
    url: Arc<str>,
    name: &'static str,
}

type Enqueued = (Vec<u8>, oneshot::Sender<()>);

/// The queues of the writers. Producers use them in turns.
pub struct TablesQueue(Vec<mpsc::Sender<Enqueued>>);

impl Tables {
    /// `name` is one of the constants above.
    pub fn new(url: &Arc<str>, name: &'static str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { runtime, url: Arc::clone(url), name })
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
        self.name.to_owned()
    }

    fn start(&self) -> Result<TablesQueue> {
        let statement = match self.name {
            ONE => Statement::One,
            THREE => Statement::Three,
            _ => Statement::ThreeInOrder,
        };
        let writers = match self.name {
            TWO_IN_ORDER => 2,
            FOUR_IN_ORDER => 4,
            _ => 1,
        };
        self.runtime.block_on(async {
            let schema = new_schema();
            let mut queues = Vec::new();
            for writer in 0..writers {
                let client = connect(&self.url).await?;
                if writer == 0 {
                    client.batch_execute(&create(&schema, statement)).await?;
                }
                client.batch_execute(&format!("SET search_path = {schema}")).await?;
                let (queue, waiting) = mpsc::channel(MAX_BATCH);
                #[expect(clippy::disallowed_methods, reason = "the task ends with its queue")]
                tokio::spawn(write(client, waiting, statement));
                queues.push(queue);
            }
            Ok(TablesQueue(queues))
        })
    }

    fn fill(&self, queue: TablesQueue, _messages: u64) -> Result<TablesQueue> {
        Ok(queue)
    }

    fn producer<'q>(&'q self, queue: &'q TablesQueue, number: usize) -> Result<Call<'q>> {
        let mut payload = Payload::new();
        let queue = &queue.0[number % queue.0.len()];
        Ok(Box::new(move || {
            self.runtime.block_on(async {
                let (done, answer) = oneshot::channel();
                queue.send((payload.next().to_vec(), done)).await?;
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

/// How a writer inserts its messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Statement {
    One,
    Three,
    ThreeInOrder,
}

/// Creates the tables of a queue.
fn create(schema: &str, statement: Statement) -> String {
    let indexes = match statement {
        Statement::One => "",
        Statement::Three | Statement::ThreeInOrder => {
            "CREATE UNIQUE INDEX ON objects (hash); CREATE INDEX ON records (owner, state, seq);"
        }
    };
    format!(
        "CREATE SCHEMA {schema}; SET search_path = {schema};
         CREATE TABLE objects (seq BIGSERIAL PRIMARY KEY, hash BYTEA, body BYTEA NOT NULL);
         CREATE TABLE records (seq BIGSERIAL PRIMARY KEY, hash BYTEA NOT NULL,
             owner BIGINT NOT NULL, state TEXT NOT NULL);
         CREATE TABLE keys (key BYTEA PRIMARY KEY);
         CREATE TABLE commits (seq BIGINT PRIMARY KEY);
         {indexes}"
    )
}

impl Statement {
    fn sql(self) -> String {
        let commit = match self {
            Self::One => return "INSERT INTO objects (body) SELECT unnest($1::BYTEA[])".to_owned(),
            Self::Three => "",
            Self::ThreeInOrder => {
                "c AS (INSERT INTO commits SELECT coalesce(max(seq), 0) + 1 FROM commits),"
            }
        };
        // One statement, so that both contenders need one round trip.
        format!(
            "WITH new AS (SELECT * FROM unnest($1::BYTEA[], $2::BYTEA[]) AS new(hash, body)), {commit}
                  o AS (INSERT INTO objects (hash, body) SELECT hash, body FROM new
                        ON CONFLICT DO NOTHING),
                  k AS (INSERT INTO keys (key) SELECT hash FROM new ON CONFLICT DO NOTHING)
             INSERT INTO records (hash, owner, state) SELECT hash, 1, 'UNREAD' FROM new"
        )
    }
}

/// Inserts all waiting messages and commits, until the queue is closed. After an error the callers
/// are not answered, and the measurement fails.
async fn write(
    client: Client,
    mut waiting: mpsc::Receiver<Enqueued>,
    statement: Statement,
) -> Result<()> {
    let prepared = client.prepare(&statement.sql()).await?;
    let mut batch = Vec::new();
    while waiting.recv_many(&mut batch, MAX_BATCH).await > 0 {
        let bodies: Vec<&[u8]> = batch.iter().map(|(body, _)| body.as_slice()).collect();
        // The start of a payload is unique. Its bytes are reversed, because hashes are random.
        let key = |body: &&[u8]| body[..32.min(SIZE)].iter().rev().copied().collect::<Vec<u8>>();
        let hashes: Vec<Vec<u8>> = bodies.iter().map(key).collect();
        match statement {
            Statement::One => client.execute(&prepared, &[&bodies]).await?,
            Statement::Three => client.execute(&prepared, &[&hashes, &bodies]).await?,
            Statement::ThreeInOrder => {
                // In this order: the first poll of each sends its statement.
                let start = client.batch_execute(START);
                let parameters: [&(dyn ToSql + Sync); 2] = [&hashes, &bodies];
                let insert = client.execute(&prepared, &parameters);
                try_join3(start, insert, client.batch_execute("COMMIT")).await?.1
            }
        };
        for (_, done) in batch.drain(..) {
            // The caller may be gone at the end of a measurement.
            let _ = done.send(());
        }
    }
    Ok(())
}
