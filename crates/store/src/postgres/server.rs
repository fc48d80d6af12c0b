//! What the database server says about its version, its durability and its standbys.

use super::{Durability, migrate};
use crate::StoreResult;
use crate::sql::db::Db;
use crate::sql::rows;

/// The oldest version that the store is tested with, as `server_version_num`.
const MIN_VERSION: i64 = 150_000;

/// Age of a transaction from which it keeps PostgreSQL from removing old rows of the queues.
const MAX_TRANSACTION_AGE_S: i64 = 60;

const SETTINGS: &str = "
    SELECT current_setting('server_version_num')::bigint, pg_is_in_recovery()::int,
           (current_setting('fsync') = 'on')::int, (current_setting('full_page_writes') = 'on')::int,
           current_setting('synchronous_commit'),
           coalesce((SELECT max(age)::bigint FROM (
               SELECT extract(epoch FROM clock_timestamp() - xact_start) AS age
                 FROM pg_stat_activity
                WHERE coalesce(backend_xmin, backend_xid) IS NOT NULL
                  AND datname = current_database()
                UNION ALL
               SELECT extract(epoch FROM clock_timestamp() - prepared)
                 FROM pg_prepared_xacts WHERE database = current_database()) AS open), 0),
           (to_regclass('schema_version') IS NOT NULL)::int
";

const SCHEMA: &str = "
    SELECT coalesce(max(version), 0), coalesce(max(oldest_program), 0) FROM schema_version
";

// Roles without `pg_monitor` see the rows, and NULL instead of the state.
const STANDBYS: &str = "
    SELECT coalesce(application_name, ''), coalesce(sync_state, '') FROM pg_stat_replication
     ORDER BY 1, 2
";

/// The state of a database server that matters for what the store has acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// The version as one number: 150008 is 15.8.
    pub version: i64,
    /// Whether it follows another server and accepts no writes.
    pub is_standby: bool,
    pub fsync: bool,
    pub full_page_writes: bool,
    /// Of the sessions of the store.
    pub synchronous_commit: String,
    /// The age of the oldest transaction in this database, in seconds, prepared ones included.
    pub oldest_transaction_s: i64,
    /// The newest migration, and the oldest program that can use the schema. Zero without a schema.
    pub schema: (i64, i64),
    pub standbys: Vec<StandbyFacts>,
}

/// A server that follows the database server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyFacts {
    pub name: String,
    /// `sync`, `quorum`, `potential` or `async`; `None` when the role may not see it.
    pub state: Option<String>,
}

impl ServerFacts {
    pub(crate) fn read(db: &Db) -> StoreResult<Self> {
        let (mut facts, has_schema) = rows::one(db, SETTINGS, [], |row| {
            let facts = Self {
                version: row.get(0)?,
                is_standby: row.get(1)?,
                fsync: row.get(2)?,
                full_page_writes: row.get(3)?,
                synchronous_commit: row.get(4)?,
                oldest_transaction_s: row.get(5)?,
                schema: (0, 0),
                standbys: Vec::new(),
            };
            Ok((facts, row.get::<bool>(6)?))
        })?;
        if has_schema {
            facts.schema = rows::one(db, SCHEMA, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        }
        facts.standbys = rows::list(db, STANDBYS, [], |row| {
            let state = Some(row.get::<String>(1)?).filter(|state| !state.is_empty());
            Ok(StandbyFacts { name: row.get(0)?, state })
        })?;
        Ok(facts)
    }

    /// The version as PostgreSQL writes it.
    pub fn version_text(&self) -> String {
        format!("{}.{}", self.version / 10_000, self.version % 10_000)
    }

    /// Returns why a store with this durability could lose what it acknowledges here, each with
    /// what an operator can do. A courier does not start with one of these.
    pub fn problems(&self, durability: Durability) -> Vec<String> {
        let mut problems = Vec::new();
        if self.version < MIN_VERSION {
            problems.push(format!(
                "the server is PostgreSQL {}, expected 15 or later; upgrade it",
                self.version_text()
            ));
        }
        if self.is_standby {
            let why = "the PostgreSQL server is a standby and accepts no writes; connect to the \
                       primary, for example with several hosts and target_session_attrs=read-write";
            problems.push(why.to_owned());
        }
        for (setting, on) in [("fsync", self.fsync), ("full_page_writes", self.full_page_writes)] {
            if !on {
                let why = format!(
                    "PostgreSQL has {setting} = off and can lose messages; set it to on and reload"
                );
                problems.push(why);
            }
        }
        if !["on", "remote_apply"].contains(&self.synchronous_commit.as_str()) {
            problems.push(format!(
                "sessions have synchronous_commit = {}, expected on; remove the setting from the \
                 options of the URL",
                self.synchronous_commit
            ));
        }
        problems.extend(migrate::incompatible(self.schema));
        if durability == Durability::Replicated && !self.is_standby {
            problems.extend(self.missing_standby().map(str::to_owned));
        }
        problems
    }

    /// Why commits are not on a synchronous standby.
    fn missing_standby(&self) -> Option<&'static str> {
        let is_synchronous = |standby: &StandbyFacts| {
            standby.state.as_deref().is_some_and(|state| ["sync", "quorum"].contains(&state))
        };
        if self.standbys.iter().any(is_synchronous) {
            return None;
        }
        Some(if self.standbys.iter().any(|standby| standby.state.is_none()) {
            "the role of the store may not see whether a standby is synchronous; run GRANT \
             pg_monitor TO its role"
        } else {
            "no synchronous standby is connected to the PostgreSQL server; set \
             synchronous_standby_names and start the standby, or use durability: local"
        })
    }

    /// Returns what makes the store slow without losing anything.
    pub fn warnings(&self) -> Vec<String> {
        let age = self.oldest_transaction_s;
        let is_old = age > MAX_TRANSACTION_AGE_S;
        let warning = || {
            format!(
                "a transaction has been open for {age} s, so that PostgreSQL cannot remove old \
                 rows; find it in pg_stat_activity or pg_prepared_xacts, and end it"
            )
        };
        is_old.then(warning).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> ServerFacts {
        ServerFacts {
            version: 150_008,
            is_standby: false,
            fsync: true,
            full_page_writes: true,
            synchronous_commit: "on".to_owned(),
            oldest_transaction_s: 0,
            schema: (1, 1),
            standbys: Vec::new(),
        }
    }

    fn standby(state: Option<&str>) -> Vec<StandbyFacts> {
        vec![StandbyFacts { name: "b".to_owned(), state: state.map(str::to_owned) }]
    }

    #[test]
    fn each_unsafe_setting_is_a_problem_with_a_next_step() {
        assert_eq!(good().problems(Durability::Primary), [""; 0]);
        for (facts, expected) in [
            (ServerFacts { version: 140_012, ..good() }, "PostgreSQL 14.12, expected 15 or later"),
            (ServerFacts { is_standby: true, ..good() }, "target_session_attrs=read-write"),
            (ServerFacts { fsync: false, ..good() }, "fsync = off"),
            (ServerFacts { full_page_writes: false, ..good() }, "full_page_writes = off"),
            (
                ServerFacts { synchronous_commit: "local".to_owned(), ..good() },
                "synchronous_commit = local",
            ),
            (ServerFacts { schema: (9, 8), ..good() }, "programs with schema 8 or newer"),
        ] {
            let problems = facts.problems(Durability::Primary);
            assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
        }
    }

    #[test]
    fn replicated_store_needs_a_standby_that_is_synchronous() {
        for (standbys, expected) in [
            (Vec::new(), Some("no synchronous standby")),
            (standby(Some("async")), Some("no synchronous standby")),
            (standby(Some("potential")), Some("no synchronous standby")),
            (standby(None), Some("GRANT pg_monitor")),
            (standby(Some("sync")), None),
            (standby(Some("quorum")), None),
        ] {
            let facts = ServerFacts { standbys, ..good() };
            assert_eq!(facts.problems(Durability::Primary), [""; 0]);
            let problems = facts.problems(Durability::Replicated);
            match expected {
                None => assert_eq!(problems, [""; 0]),
                Some(part) => assert!(problems.concat().contains(part), "{problems:?}"),
            }
        }
    }

    #[test]
    fn old_transaction_is_a_warning() {
        assert_eq!(good().warnings(), [""; 0]);
        let old = ServerFacts { oldest_transaction_s: 61, ..good() };
        assert_eq!(old.warnings().len(), 1);
    }
}
