//! A queue in one table, as queues on PostgreSQL usually are: a connection per client, and
//! `FOR UPDATE SKIP LOCKED` to take a message.

use std::sync::Arc;

use tokio::runtime::Runtime;

use crate::common::Result;
use crate::contender::{Call, Peer};
use crate::new_schema;
use crate::payload::Payload;
use crate::tables::connect;

pub const NAME: &str = "SKIP LOCKED";

/// Messages per commit while the queue is filled.
const FILL_BATCH: u64 = 1_000;

const INSERT: &str = "INSERT INTO jobs (body) SELECT unnest($1::BYTEA[])";

const TAKE: &str = "
    UPDATE jobs SET state = 'running', attempt = attempt + 1, attempted_at = now()
     WHERE id = (SELECT id FROM jobs WHERE state = 'available'
                  ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING id, body
";

const FINISH: &str = "UPDATE jobs SET state = 'completed', finalized_at = now() WHERE id = $1";

pub struct SkipLocked {
    runtime: Runtime,
    url: Arc<str>,
}

impl SkipLocked {
    pub fn new(url: &Arc<str>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { runtime, url: Arc::clone(url) })
    }

    async fn connect(&self, schema: &str) -> Result<tokio_postgres::Client> {
        let client = connect(&self.url).await?;
        client.batch_execute(&format!("SET search_path = {schema}")).await?;
        Ok(client)
    }
}

impl Peer for SkipLocked {
    /// The schema with the table.
    type Queue = String;

    fn version(&self) -> String {
        NAME.to_owned()
    }

    fn start(&self) -> Result<String> {
        let schema = new_schema();
        self.runtime.block_on(async {
            let client = connect(&self.url).await?;
            let create = format!(
                "CREATE SCHEMA {schema}; SET search_path = {schema};
                 CREATE TABLE jobs (id BIGSERIAL PRIMARY KEY, state TEXT NOT NULL DEFAULT 'available',
                     attempt BIGINT NOT NULL DEFAULT 0, body BYTEA NOT NULL,
                     attempted_at TIMESTAMPTZ, finalized_at TIMESTAMPTZ);
                 CREATE INDEX ON jobs (state, id)"
            );
            Result::Ok(client.batch_execute(&create).await?)
        })?;
        Ok(schema)
    }

    fn fill(&self, schema: String, messages: u64) -> Result<String> {
        self.runtime.block_on(async {
            let (client, mut payload) = (self.connect(&schema).await?, Payload::new());
            let mut left = messages;
            while left > 0 {
                let count = left.min(FILL_BATCH);
                let bodies: Vec<Vec<u8>> = (0..count).map(|_| payload.next().to_vec()).collect();
                client.execute(INSERT, &[&bodies]).await?;
                left -= count;
            }
            Ok(schema)
        })
    }

    fn producer<'q>(&'q self, schema: &'q String, _number: usize) -> Result<Call<'q>> {
        let (client, insert) = self.runtime.block_on(async {
            let client = self.connect(schema).await?;
            let insert = client.prepare("INSERT INTO jobs (body) VALUES ($1)").await?;
            Result::Ok((client, insert))
        })?;
        let mut payload = Payload::new();
        Ok(Box::new(move || {
            let body: &[u8] = payload.next();
            self.runtime.block_on(client.execute(&insert, &[&body]))?;
            Ok(1)
        }))
    }

    fn taker<'q>(&'q self, schema: &'q String, _number: usize) -> Result<Call<'q>> {
        let (client, take, finish) = self.runtime.block_on(async {
            let client = self.connect(schema).await?;
            let (take, finish) = (client.prepare(TAKE).await?, client.prepare(FINISH).await?);
            Result::Ok((client, take, finish))
        })?;
        Ok(Box::new(move || {
            self.runtime.block_on(async {
                let taken = client.query_opt(&take, &[]).await?.ok_or("nothing is waiting")?;
                let id: i64 = taken.get(0);
                client.execute(&finish, &[&id]).await?;
                Ok(1)
            })
        }))
    }
}
