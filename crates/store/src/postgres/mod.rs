//! The backend for several couriers: PostgreSQL.
//!
//! The statements of the store are in `crate::sql`. This folder has what only PostgreSQL needs:
//!
//! * `connect`: sessions, TLS and errors
//! * `dialect`: statements and texts in the form of PostgreSQL
//! * `driver`: statements and rows
//! * `pending`: statements that are sent together
//! * `batches`: transactions of the writer thread, and commits with an unknown result
//! * `blobs`: attachments and large objects
//! * `migrate`: the schema
//! * `server`: version, settings and standbys of the server
//! * `diagnosis`: what an operator can do about an error
//! * `hints`: what other couriers have committed
//!
//! Every transaction of a writer holds one lock from its start, so that couriers write one after
//! the other, as the commands of one courier do. So numbers follow commits, and decisions read
//! what all others have committed.

use std::path::PathBuf;
use std::sync::Arc;

use crate::blobs::{BlobFiles, BlobStorage};
use crate::sql::db::Db;
use crate::sql::facts;
use crate::sql::writer::WriterChannels;
use crate::sql::{ReaderSource, SqlStore, StoreParts, blob_error, bulk_index, disk_error};
use crate::{RemoteObjects, StoreError, StoreResult};
pub(crate) use batches::{Assumption, BatchStart, OtherCommits};
use blobs::PgBlobs;
use connect::Connector;
pub(crate) use dialect::encode as encoded_text;
use driver::PgConnection;
pub(crate) use hints::{HintExchange, PendingHints};
pub use server::{ServerFacts, StandbyFacts};

mod batches;
mod blobs;
pub(crate) mod connect;
mod diagnosis;
mod dialect;
pub(crate) mod driver;
mod failpoints;
mod hints;
mod migrate;
mod pending;
mod server;
#[cfg(test)]
mod tests;

/// Where a store is, and who uses it.
#[derive(Clone)]
pub struct PostgresOptions {
    /// A connection URL, with the password. Several hosts are tried in their order.
    pub url: String,
    /// The schema with the tables of the store. It is created when it does not exist.
    pub schema: String,
    /// The id of this courier, which differs between couriers.
    pub courier: String,
    /// The id of this process, which differs between two starts of one courier.
    pub boot: String,
    pub durability: Durability,
    pub objects: ObjectLocation,
}

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it is on the disk of the primary.
    #[default]
    Primary,
    /// When it is on the disk of a synchronous standby as well.
    Replicated,
}

impl Durability {
    pub const ALL: [Self; 2] = [Self::Primary, Self::Replicated];

    /// Its name in the config.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Primary => "local",
            Self::Replicated => "replicated",
        }
    }
}

/// Where attachments and large objects are stored.
#[derive(Clone, Debug)]
pub struct ObjectLocation {
    /// A directory of this courier for bytes that are being read or written.
    pub spool: PathBuf,
    /// Where their bytes are; `None`: in tables, in parts of 1 MiB.
    pub remote: Option<Arc<dyn RemoteObjects>>,
}

impl ObjectLocation {
    pub const fn database(spool: PathBuf) -> Self {
        Self { spool, remote: None }
    }

    fn open(&self, connector: &Arc<Connector>) -> StoreResult<PgBlobs> {
        let spool = BlobFiles::open(self.spool.clone()).map_err(blob_error)?;
        Ok(PgBlobs::new(Arc::clone(connector), spool, self.remote.clone()))
    }
}

impl std::fmt::Debug for PostgresOptions {
    /// Leaves out the URL, which has the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("schema", &self.schema)
            .field("courier", &self.courier)
            .field("boot", &self.boot)
            .field("durability", &self.durability)
            .field("objects", &self.objects)
            .finish_non_exhaustive()
    }
}

/// Held by the courier that erases texts. Two erasures would delete each other's notes.
#[derive(Debug)]
pub(crate) struct ErasureLock(#[expect(dead_code, reason = "unlocks when closed")] PgConnection);

impl ErasureLock {
    /// Waits up to 60 s for the erasure of another courier. Blocks.
    pub(crate) fn acquire(connector: &Arc<Connector>) -> StoreResult<Self> {
        let db = PgConnection::open(Arc::clone(connector))?;
        db.run_script("SET lock_timeout = '60s'")?;
        let lock = "SELECT pg_advisory_lock(1297040202, hashtext(current_schema()))";
        db.run_script(lock).map_err(|error| {
            let why = format!("another courier erases texts; try again when it is done: {error}");
            StoreError::Unavailable(why)
        })?;
        Ok(Self(db))
    }
}

/// Opens stores in PostgreSQL databases.
#[derive(Debug)]
pub struct PostgresStore;

impl PostgresStore {
    /// Connects to the server and reads its state. Changes nothing. Blocks until the server has
    /// answered, so it must not run in asynchronous code.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, or rejects the user.
    pub fn check(url: &str, schema: &str) -> StoreResult<ServerFacts> {
        let connector = Arc::new(Connector::new(url, schema)?);
        ServerFacts::read(&Db::postgres(PgConnection::open(connector)?, Arc::default()))
    }

    /// Opens a connection and the large objects, for a copy of the whole store. Blocks.
    pub(crate) fn open_parts(
        url: &str,
        schema: &str,
        objects: &ObjectLocation,
    ) -> StoreResult<(Db, Arc<dyn BlobStorage>)> {
        let connector = Arc::new(Connector::new(url, schema)?);
        migrate::run(&connector, schema, Durability::Primary)?;
        let db = Db::postgres(PgConnection::open(Arc::clone(&connector))?, Arc::default());
        facts::check_objects(&db, objects.remote.as_deref())?;
        Ok((db, Arc::new(objects.open(&connector)?)))
    }

    /// Opens the store, and creates its tables when they do not exist. Blocks until the server has
    /// answered.
    ///
    /// # Errors
    ///
    /// When the server cannot be reached, its settings would lose acknowledged messages, or the
    /// schema was written by a newer version.
    pub fn open(options: &PostgresOptions) -> StoreResult<SqlStore> {
        let connector = Arc::new(Connector::new(&options.url, &options.schema)?);
        let pending = Arc::<PendingHints>::default();
        // A runtime cannot block inside another one, where callers open stores.
        let opened = std::thread::scope(|scope| {
            let open = scope.spawn(|| {
                migrate::run(&connector, &options.schema, options.durability)?;
                let db = PgConnection::open_writer(Arc::clone(&connector), options)?;
                let db = Db::postgres(db, Arc::default());
                facts::check_complete(&db)?;
                facts::check_objects(&db, options.objects.remote.as_deref())?;
                let channels = WriterChannels::new(&db, None, Some(Arc::clone(&pending)))?;
                Ok((db, channels))
            });
            open.join().unwrap_or_else(|_| Err(crate::sql::closed()))
        });
        let (db, channels) = opened?;
        let channels = Arc::new(channels);
        let hints = HintExchange::start(
            Arc::clone(&connector),
            options.boot.clone(),
            Arc::clone(&pending),
            Arc::clone(&channels),
        );
        SqlStore::start(StoreParts {
            db,
            blobs: Arc::new(options.objects.open(&connector)?),
            readers: ReaderSource::Postgres(connector),
            channels,
            merge_size: bulk_index::MERGE_SIZE,
            log: None,
            hints: Some(hints.map_err(disk_error)?),
        })
    }
}
