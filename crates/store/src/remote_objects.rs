//! Large objects in a place outside of the database, such as a bucket of S3.
//!
//! The store makes no HTTP requests: the courier passes an implementation. The database has a row
//! for every object (`stored_files`), so that nothing needs to be listed there.

use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes outside of the database, by their SHA-256. Methods block, and retry for a limited time.
pub trait RemoteObjects: Debug + Send + Sync {
    /// Where the objects are, without secrets. Couriers of one store must have the same place.
    fn place(&self) -> &str;

    /// Stores the bytes of an object, or replaces them. Returns when they are durable.
    fn put(&self, hash: &[u8; 32], size: u64, source: &ObjectSource) -> io::Result<()>;

    /// Calls `take` for each part of an object until it returns `false`, without checking the
    /// bytes. Returns whether there is such an object.
    fn get(
        &self,
        hash: &[u8; 32],
        size: u64,
        take: &mut dyn FnMut(&[u8]) -> io::Result<bool>,
    ) -> io::Result<bool>;

    /// Returns the size of an object. `None` when there is no such object.
    fn size(&self, hash: &[u8; 32]) -> io::Result<Option<u64>>;

    /// Deletes an object, if there is one. Must return within 8 s.
    fn delete(&self, hash: &[u8; 32]) -> io::Result<()>;

    /// Writes, reads and deletes a small object.
    fn check(&self) -> io::Result<()>;

    /// Why the last request failed; `None` after one that was answered.
    fn failure(&self) -> Option<String>;
}

/// Where the bytes of an object come from. A request that is repeated reads them again.
#[derive(Clone, Debug)]
pub enum ObjectSource {
    Bytes(Arc<[u8]>),
    File(PathBuf),
}

/// The remote place of large objects, and why its last request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePlace {
    pub place: String,
    pub failure: Option<String>,
}
