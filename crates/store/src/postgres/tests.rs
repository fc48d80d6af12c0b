//! Runs the conformance tests on PostgreSQL, and tests guarantees for several couriers.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{join, join_all};
use monoco_core::contact::{Contact, ContactLevel};
use monoco_core::object::MsgObject;
use monoco_core::record::BoxKind;
use monoco_core::time::Timestamp;
use serde_json::json;
use tempfile::TempDir;

use super::failpoints::Failpoint;
use super::*;
use crate::conformance::shared::{
    CutPoint, SharedHome, dispatches_of_couriers_that_take_turns_are_done_once,
};
use crate::conformance::{TestHome, letter_model, mail_model, store_model};
use crate::sql::erasure::DeletionPause;
use crate::sql::rows;
use crate::{
    ContactStore, DispatchOutcome, DispatchRequest, EventStore, PageRequest, RecordFilter,
    RecordStore, SharedStore, StatusStore, StoreHealth,
};

mod remote;
mod server;

use remote::MemoryObjects;

const NOON: Timestamp = Timestamp::from_ms(1_770_000_000_000);

/// The connections of a courier, and where its erasures can be paused.
type OpenCourier = (Arc<Connector>, Arc<DeletionPause>);

/// A schema of its own, and a directory for large objects.
pub(super) struct PgHome {
    url: String,
    schema: String,
    dir: TempDir,
    couriers: Mutex<BTreeMap<String, OpenCourier>>,
    /// Where the bytes of large objects are.
    remote: Option<Arc<dyn RemoteObjects>>,
}

pub(super) fn home() -> PgHome {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let schema = format!("home_{}", NEXT.fetch_add(1, Ordering::Relaxed));
    PgHome {
        url: server::url(),
        schema,
        dir: tempfile::tempdir().unwrap(),
        couriers: Mutex::default(),
        remote: None,
    }
}

/// A home whose large objects are outside of the database.
fn remote_home() -> PgHome {
    PgHome { remote: Some(Arc::<MemoryObjects>::default()), ..home() }
}

/// A home in a schema that is emptied. A schema has some 350 files, and creating them takes longer
/// than the history of a model.
fn emptied_home(schema: &str) -> PgHome {
    let home = PgHome { schema: schema.to_owned(), ..home() };
    let empty = format!(
        "DO $$ DECLARE name TEXT; BEGIN
             FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'
                 AND tablename NOT IN ('schema_version', 'bulk_index_progress')
             LOOP EXECUTE format('DELETE FROM {schema}.%I', name); END LOOP;
         END $$"
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let session = Connector::new(&home.url, schema).unwrap().connect().await.unwrap();
        session.client.batch_execute(&empty).await.unwrap();
    });
    home
}

impl PgHome {
    fn options(&self, courier: &str) -> PostgresOptions {
        static BOOTS: AtomicU64 = AtomicU64::new(1);
        PostgresOptions {
            url: format!("{} application_name={}", self.url, self.schema),
            schema: self.schema.clone(),
            courier: courier.to_owned(),
            boot: BOOTS.fetch_add(1, Ordering::Relaxed).to_string(),
            durability: Durability::Primary,
            objects: ObjectLocation {
                spool: self.dir.path().join(format!("spool-{courier}")),
                remote: self.remote.clone(),
            },
        }
    }

    fn store(&self, courier: &str) -> SqlStore {
        PostgresStore::open(&self.options(courier)).unwrap()
    }
}

#[async_trait]
impl TestHome for PgHome {
    async fn open(&self) -> SharedStore {
        Arc::new(self.store("a"))
    }
}

#[async_trait]
impl SharedHome for PgHome {
    async fn open_as(&self, courier: &str) -> SharedStore {
        // On another thread, so that two couriers can start at the same time.
        let options = self.options(courier);
        let open = tokio::task::spawn_blocking(move || PostgresStore::open(&options).unwrap());
        let store = open.await.unwrap();
        let parts = (store.connector().unwrap(), Arc::clone(&store.deletion_pause));
        self.couriers.lock().unwrap().insert(courier.to_owned(), parts);
        Arc::new(store)
    }

    fn cut(&self, courier: &str, point: CutPoint) {
        let point = match point {
            CutPoint::BeforeOrder => Failpoint::BeforeOrder,
            CutPoint::BeforeCommit => Failpoint::BeforeCommit,
            CutPoint::AfterCommit => Failpoint::AfterCommit,
        };
        *self.couriers.lock().unwrap()[courier].0.failpoint.lock().unwrap() = Some(point);
    }

    fn deletion_pause(&self, courier: &str) -> Arc<DeletionPause> {
        Arc::clone(&self.couriers.lock().unwrap()[courier].1)
    }
}

mod conformance {
    crate::conformance::conformance_tests!(crate::postgres::tests::home);
    crate::conformance::shared::shared_tests!(crate::postgres::tests::home);
}

#[tokio::test]
async fn texts_keep_characters_that_postgresql_does_not_store() {
    let home = home();
    let names = ["a\0b", "a\u{1}\u{1}b", "a\u{1}b", "ab", "\0", "\u{1}\u{2}"];
    let store = home.store("a");
    for (n, name) in (1..).zip(names) {
        store.set_event_cursor(name, n).await.unwrap();
    }
    drop(store);
    let store = home.store("a");
    for (n, name) in (1..).zip(names) {
        assert_eq!(store.event_cursor(name).await.unwrap(), Some(n), "{name:?}");
    }
    let sql = "SELECT name FROM progress WHERE name LIKE 'events:%' ORDER BY value";
    let found = store.read(|db| rows::list(db, sql, [], |row| row.get::<String>(0)));
    assert_eq!(found.await.unwrap(), names.map(|name| format!("events:{name}")));
}

/// A statement that is sent after its command has returned fails that command only.
#[tokio::test]
async fn rejected_deferred_statement_fails_only_its_command() {
    let store = home().store("a");
    let insert = |name: &'static str| {
        store.write(move |db| {
            let sql = "INSERT INTO progress (name, value) VALUES (?1, 1)";
            rows::execute(db, sql, [name])
        })
    };
    // All wait in the queue while the first batch starts.
    let results = join_all(["a", "b", "c", "b", "d", "a"].map(insert)).await;
    let failed: Vec<_> = results.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false, false, true, false, true], "{results:?}");
    let update = |name: &'static str| {
        store.write(move |db| {
            let sql = "UPDATE progress SET value = value + 1 WHERE name = ?1";
            rows::update_one(db, sql, [name])
        })
    };
    let found = join_all(["a", "missing", "b", "a"].map(update)).await;
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(found, [true, false, true, true]);
    let sql = "SELECT name, value FROM progress ORDER BY name";
    let read = |row: &crate::sql::db::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let progress: Vec<(String, i64)> =
        store.read(move |db| rows::list(db, sql, [], read)).await.unwrap();
    let values: Vec<_> = progress.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(values, [("a", 3), ("b", 2), ("c", 1), ("d", 1)]);
    assert_eq!(store.health(), StoreHealth::Ok);
}

/// The server ends all sessions of a store again and again, as a restart or a failover does.
#[tokio::test]
async fn terminated_sessions_lose_and_repeat_nothing() {
    let home = home();
    let store = home.store("a");
    let contact = Contact {
        did: "did:web:bob".parse().unwrap(),
        names: Vec::new(),
        level: ContactLevel::Friend,
        here: true,
        bindings: Vec::new(),
    };
    store.put_contact(contact, NOON).await.unwrap();
    let other = self::home();
    let terminator = other.store("terminator");
    let schema = home.schema.clone();
    for round in 0..20 {
        let terminate = async {
            let sql =
                "SELECT count(CASE WHEN pg_terminate_backend(pid) THEN 1 END) FROM pg_stat_activity
                        WHERE application_name = ?1";
            // There is none for a moment, while the store opens new ones.
            loop {
                let schema = schema.clone();
                let count = terminator
                    .read(move |db| rows::one(db, sql, [schema.as_str()], |row| row.get::<i64>(0)));
                if count.await.unwrap() > 0 {
                    break;
                }
            }
        };
        let messages = (0..20).map(|n| {
            let text = format!("{round} {n}");
            let msg = MsgObject::from_json(json!({
                "from": "did:web:ann", "to": ["did:web:bob"], "kind": "chat",
                "content": {"content": text},
            }));
            let msg = msg.unwrap();
            store.dispatch(vec![DispatchRequest { msg, tunnel: None, external_id: None }], NOON)
        });
        let (results, ()) = join(join_all(messages), terminate).await;
        for result in results.concat() {
            let outcome = result.unwrap().outcome;
            assert!(
                matches!(&outcome, DispatchOutcome::Delivered { duplicate: false, .. }),
                "{outcome:?}"
            );
        }
    }
    let bob = "did:web:bob".parse().unwrap();
    let page = PageRequest { beyond: None, limit: 1_000, newest_first: false };
    let inbox = store.records(&bob, BoxKind::Inbox, &RecordFilter::default(), page).await.unwrap();
    assert_eq!(inbox.entries.len(), 400);
    let events = store.events(0, 1_000).await.unwrap();
    assert_eq!(events.len(), 401);
    assert_eq!(store.health(), StoreHealth::Ok);
}

/// Rows that a waiting batch has written would be locked, and two batches could wait for each other.
#[tokio::test]
async fn batch_without_reads_waits_for_its_turn_before_it_writes() {
    let home = home();
    let store = home.store("a");
    // The first batches wait before they run, in case that other couriers commit.
    for n in 0..=batches::BATCHES_AFTER_OTHERS {
        store.set_event_cursor("reader", n.into()).await.unwrap();
    }
    let admin = Connector::new(&home.url, &home.schema).unwrap().connect().await.unwrap();
    let lock = format!("SELECT {}", batches::ORDER_LOCK.replace("_xact_", "_"));
    admin.client.batch_execute(&lock).await.unwrap();
    let mut write = pin!(store.set_event_cursor("reader", 100));
    let sql = "SELECT query, backend_xid IS NULL FROM pg_stat_activity
                WHERE wait_event = 'advisory' AND application_name = $1";
    let waiting = async {
        loop {
            let found = admin.client.query_opt(sql, &[&home.schema]).await.unwrap();
            if let Some(row) = found {
                return (row.get::<_, String>(0), row.get::<_, bool>(1));
            }
        }
    };
    let (query, has_written_nothing) = tokio::select! {
        result = &mut write => panic!("committed without its turn: {result:?}"),
        found = waiting => found,
    };
    admin.client.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    write.await.unwrap();
    assert!(query.starts_with("WITH "), "{query}");
    assert!(has_written_nothing, "{query}");
    assert_eq!(store.event_cursor("reader").await.unwrap(), Some(100));
}

/// Their batches are one round trip then.
#[tokio::test]
async fn server_numbers_the_rows_of_couriers_that_take_turns() {
    let home = home();
    dispatches_of_couriers_that_take_turns_are_done_once(&home).await;
    let admin = Connector::new(&home.url, &home.schema).unwrap().connect().await.unwrap();
    let sql = "SELECT calls FROM pg_stat_user_functions
                WHERE schemaname = $1 AND funcname = 'take_turn'";
    // Sessions report their statistics within a second.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < deadline, "no batch had relative numbers");
        let found = admin.client.query_opt(sql, &[&home.schema]).await.unwrap();
        if found.is_some_and(|row| row.get::<_, i64>(0) >= 50) {
            return;
        }
    }
}

/// The sessions of a store that wait for a standby.
async fn waiting_for_standby(admin: &connect::PgSession, schema: &str) -> Vec<i32> {
    let sql = "SELECT pid FROM pg_stat_activity
                WHERE wait_event = 'SyncRep' AND application_name = $1";
    let rows = admin.client.query(sql, &[&schema]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn cancelled_wait_for_a_standby_is_not_acknowledged() {
    let url = server::own_url("-standby");
    let home = PgHome { url: url.clone(), ..home() };
    let store = home.store("a");
    let admin = Connector::new(&url, "public").unwrap().connect().await.unwrap();
    let set_standby = async |name: &str| {
        let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
        admin.client.batch_execute(&set).await.unwrap();
        admin.client.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    };
    set_standby("missing").await;
    let mut write = pin!(store.set_event_cursor("reader", 7));
    let mut cancelled = BTreeSet::new();
    let mut cancel_twice = pin!(async {
        while cancelled.len() < 2 {
            for pid in waiting_for_standby(&admin, &home.schema).await {
                // The session that comes after a cancelled one waits again.
                if cancelled.insert(pid) {
                    admin.client.query("SELECT pg_cancel_backend($1)", &[&pid]).await.unwrap();
                }
            }
        }
        while waiting_for_standby(&admin, &home.schema).await.is_empty() {}
    });
    tokio::select! {
        result = &mut write => panic!("acknowledged without a standby: {result:?}"),
        () = &mut cancel_twice => {}
    }
    set_standby("").await;
    write.await.unwrap();
    assert_eq!(store.event_cursor("reader").await.unwrap(), Some(7));
    assert_eq!(store.health(), StoreHealth::Ok);
}

#[tokio::test]
async fn replicated_store_needs_a_synchronous_standby() {
    let home = home();
    let options = PostgresOptions { durability: Durability::Replicated, ..home.options("a") };
    let rejected = PostgresStore::open(&options).unwrap_err().to_string();
    assert!(rejected.contains("no synchronous standby"), "{rejected}");
}

#[test]
fn store_histories_match_the_model() {
    store_model::histories_match_the_model(|| emptied_home("store_model"));
}

#[test]
fn mail_histories_match_the_model() {
    mail_model::histories_match_the_model(|| emptied_home("mail_model"));
}

#[test]
fn letter_histories_match_the_model() {
    letter_model::histories_match_the_model(|| emptied_home("letter_model"));
}
