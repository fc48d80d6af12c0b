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

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::StoreResult;
use crate::blobs::{BlobFiles, BlobStorage};
use crate::sql::db::Db;
use crate::sql::writer::WriterChannels;
use crate::sql::{ReaderSource, SqlStore, StoreParts, blob_error, bulk_index, disk_error};
pub(crate) use batches::{BatchStart, OtherCommits};
use blobs::PgBlobs;
use connect::Connector;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectLocation {
    /// In a directory. All couriers of the store must share it.
    Directory(PathBuf),
    /// In tables, in parts of 1 MiB.
    Database {
        /// A directory of this courier for bytes that are being read or written.
        spool: PathBuf,
    },
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
        durability: Durability,
        spool: &Path,
    ) -> StoreResult<(Db, Arc<dyn BlobStorage>)> {
        let connector = Arc::new(Connector::new(url, schema)?);
        migrate::run(&connector, schema, durability)?;
        let db = Db::postgres(PgConnection::open(Arc::clone(&connector))?, Arc::default());
        let spool = BlobFiles::open(spool.to_owned()).map_err(blob_error)?;
        Ok((db, Arc::new(PgBlobs::new(connector, spool))))
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
        let blobs: Arc<dyn BlobStorage> = match &options.objects {
            ObjectLocation::Directory(path) => {
                Arc::new(BlobFiles::open(path.clone()).map_err(blob_error)?)
            }
            ObjectLocation::Database { spool } => {
                let spool = BlobFiles::open(spool.clone()).map_err(blob_error)?;
                Arc::new(PgBlobs::new(Arc::clone(&connector), spool))
            }
        };
        SqlStore::start(StoreParts {
            db,
            readers: ReaderSource::Postgres(connector),
            blobs,
            channels,
            merge_size: bulk_index::MERGE_SIZE,
            log: None,
            hints: Some(hints.map_err(disk_error)?),
        })
    }
}
