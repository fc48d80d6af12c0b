//! Large objects outside of the database, in the memory of the test.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use monoco_core::object::{ObjId, ObjKind};

use super::{PgBlobs, PgHome, home, remote_home};
use crate::blobs::{BlobFiles, BlobStorage as _};
use crate::conformance::{erasure, shared};
use crate::sql::rows;
use crate::{ObjectSource, RemoteObjects, StatusStore as _, StoreError};

/// Called after the bytes of an object are stored.
type AfterPut = Box<dyn FnOnce() + Send>;

#[derive(Default)]
pub(super) struct MemoryObjects {
    objects: Mutex<HashMap<[u8; 32], Vec<u8>>>,
    puts: AtomicUsize,
    after_put: Mutex<Option<AfterPut>>,
}

impl std::fmt::Debug for MemoryObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryObjects").finish_non_exhaustive()
    }
}

impl RemoteObjects for MemoryObjects {
    fn place(&self) -> &str {
        "memory"
    }

    fn put(&self, hash: &[u8; 32], size: u64, source: &ObjectSource) -> io::Result<()> {
        let bytes = match source {
            ObjectSource::Bytes(bytes) => bytes.to_vec(),
            ObjectSource::File(path) => std::fs::read(path)?,
        };
        assert_eq!(bytes.len() as u64, size);
        self.puts.fetch_add(1, Ordering::SeqCst);
        self.objects.lock().unwrap().insert(*hash, bytes);
        let after = self.after_put.lock().unwrap().take();
        after.into_iter().for_each(|after| after());
        Ok(())
    }

    fn get(
        &self,
        hash: &[u8; 32],
        _size: u64,
        take: &mut dyn FnMut(&[u8]) -> io::Result<bool>,
    ) -> io::Result<bool> {
        let bytes = self.objects.lock().unwrap().get(hash).cloned();
        let Some(bytes) = bytes else { return Ok(false) };
        for part in bytes.chunks(1000) {
            if !take(part)? {
                break;
            }
        }
        Ok(true)
    }

    fn size(&self, hash: &[u8; 32]) -> io::Result<Option<u64>> {
        Ok(self.objects.lock().unwrap().get(hash).map(|bytes| bytes.len() as u64))
    }

    fn delete(&self, hash: &[u8; 32]) -> io::Result<()> {
        self.objects.lock().unwrap().remove(hash);
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

mod conformance {
    use super::*;

    /// Defines a test for each function, with the objects outside of the database.
    macro_rules! remote_tests {
        ($($noun:ident::$name:ident,)*) => {$(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $noun::$name(&remote_home()).await;
            }
        )*};
    }
    remote_tests! {
        erasure::messages_of_an_author_become_tombstones,
        shared::file_that_another_courier_refers_to_during_an_erasure_stays,
        shared::file_that_another_courier_has_erased_must_be_stored_again,
        shared::erasure_of_both_couriers_leaves_no_file,
    }
}

/// The large objects of another courier of the home.
fn blobs(home: &PgHome, store: &crate::SqlStore, name: &str) -> PgBlobs {
    let spool = BlobFiles::open(home.dir.path().join(name)).unwrap();
    PgBlobs::new(store.connector().unwrap(), spool, home.remote.clone())
}

/// Deletes the row of a file, as the commit of an erasure does.
async fn delete_row(store: &crate::SqlStore, id: ObjId) {
    let sql = "DELETE FROM blobs WHERE hash = ?1";
    store.write(move |db| rows::execute(db, sql, [id.hash()])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_are_deleted_while_they_are_stored_are_stored_again() {
    let remote = Arc::<MemoryObjects>::default();
    let home = PgHome { remote: Some(Arc::clone(&remote) as _), ..home() };
    let store = Arc::new(home.store("a"));
    let id = ObjId::of(ObjKind::Bytes, b"bytes");
    let (a, b) = (blobs(&home, &store, "a"), blobs(&home, &store, "b"));
    // The row in `blobs` is written when the bytes are stored, so the other one may delete them.
    *remote.after_put.lock().unwrap() = Some(Box::new(move || b.remove(&id).unwrap()));
    let stored = tokio::task::spawn_blocking(move || a.put(&id, b"bytes").map(|()| a));
    let a = stored.await.unwrap().unwrap();
    assert_eq!(remote.puts.load(Ordering::SeqCst), 2);
    assert_eq!(remote.size(id.hash()).unwrap(), Some(5));
    let get = tokio::task::spawn_blocking(move || a.get(&id).unwrap());
    assert_eq!(get.await.unwrap().unwrap(), b"bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_another_courier_has_stored_again_is_not_deleted() {
    for home in [home(), remote_home()] {
        let store = Arc::new(home.store("a"));
        let id = ObjId::of(ObjKind::Bytes, b"bytes");
        let (a, b) = (Arc::new(blobs(&home, &store, "a")), Arc::new(blobs(&home, &store, "b")));
        let put = |blobs: &Arc<PgBlobs>| {
            let blobs = Arc::clone(blobs);
            tokio::task::spawn_blocking(move || blobs.put(&id, b"bytes").unwrap())
        };
        put(&a).await.unwrap();
        delete_row(&store, id).await;
        put(&b).await.unwrap();
        let remover = Arc::clone(&a);
        let stays = tokio::task::spawn_blocking(move || {
            remover.remove(&id).unwrap();
            remover.remove_old(&id, Duration::ZERO).unwrap()
        });
        assert_eq!(stays.await.unwrap(), Some(5));
        delete_row(&store, id).await;
        let remover = Arc::clone(&a);
        let removed = tokio::task::spawn_blocking(move || {
            let removed = remover.remove_old(&id, Duration::ZERO).unwrap();
            (removed, remover.get(&id).unwrap())
        });
        assert_eq!(removed.await.unwrap(), (None, None));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_with_a_remote_place_needs_it() {
    let home = remote_home();
    let store = home.store("a");
    assert_eq!(store.remote_objects().unwrap().place, "memory");
    drop(store);
    let without = PgHome {
        remote: None,
        url: home.url.clone(),
        schema: home.schema.clone(),
        ..super::home()
    };
    let error = super::PostgresStore::open(&without.options("b")).unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable(why) if why.contains("are in memory, not in database")),
        "{error}"
    );
}
