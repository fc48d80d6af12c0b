//! Sizes of the tables of a store after an hour of work: messages are dispatched, taken and finished
//! while a backlog waits. The work of the hour is done as fast as possible.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use monoco_store::postgres::Durability;

use crate::common::Result;
use crate::common::drive::{Bounds, drive};
use crate::common::figures::{head, line, thousands};
use crate::contender::Peer;
use crate::store::StoreContender;
use crate::tables::connect;
use crate::{new_schema, open_couriers};

/// Messages per second of the hour, and all of them.
const PER_SECOND: u64 = 10;
const MESSAGES: u64 = 3_600 * PER_SECOND;

/// Messages that wait all the time.
const BACKLOG: u64 = 10_000;

/// Messages that are dispatched, then taken and finished by 8 takers.
const ROUND: u64 = 1_000;

/// How long the work may take.
const TIME_LIMIT: Duration = Duration::from_secs(90);
const QUICK_TIME_LIMIT: Duration = Duration::from_secs(20);

const LARGEST_TABLES: &str = "
    SELECT c.relname::TEXT, pg_table_size(c.oid), pg_indexes_size(c.oid),
           coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0),
           coalesce(s.n_tup_upd, 0), coalesce(s.n_tup_hot_upd, 0)
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
     WHERE n.nspname = $1 AND c.relkind = 'r'
     ORDER BY pg_total_relation_size(c.oid) DESC
     LIMIT 6
";

const WAL_BYTES: &str = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::BIGINT";

/// Takes and finishes messages of one courier, and returns a table of the largest tables.
pub fn measure(dir: &Path, url: &Arc<str>, quick: bool) -> Result<String> {
    let (schema, stores_url) = (new_schema(), Arc::clone(url));
    let stores_schema = schema.clone();
    let open =
        move |dir: &Path| open_couriers(&stores_url, &stores_schema, 1, Durability::Primary, dir);
    let contender = StoreContender::with(dir, Box::new(open))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(connect(url))?;
    let wal_bytes = || runtime.block_on(async { client.query_one(WAL_BYTES, &[]).await });
    let mut queue = contender.fill(contender.start()?, BACKLOG)?;
    let limit = if quick { QUICK_TIME_LIMIT } else { TIME_LIMIT };
    let (started, before) = (Instant::now(), wal_bytes()?.get::<_, i64>(0));
    let (mut finished, mut rates) = (0, Vec::new());
    while finished < MESSAGES && started.elapsed() < limit {
        queue = contender.fill(queue, ROUND)?;
        let bounds = Bounds { warm_up: Duration::ZERO, measure: limit, calls: ROUND };
        let round = drive(8, bounds, |number| contender.taker(&queue, number))?;
        finished += round.messages;
        rates.push(round.rate);
        eprintln!("churn: {} of {MESSAGES}, {}/s", finished, thousands(round.rate));
    }
    let wal = wal_bytes()?.get::<_, i64>(0) - before;
    let rows = runtime.block_on(async { client.query(LARGEST_TABLES, &[&schema]).await })?;
    let columns = [
        "rows, KiB",
        "indexes, KiB",
        "live rows",
        "dead rows",
        "updates",
        "updates in place (HOT)",
    ];
    let columns = columns.map(str::to_owned);
    let first_and_last = [rates.first(), rates.last()].map(|rate| rate.copied().unwrap_or(0.0));
    let [first, last] = first_and_last.map(thousands);
    let mut text = format!(
        "{} of the {} messages of an hour at {PER_SECOND}/s were dispatched, taken and finished, {} at a \
         time, while {} waited: {first}/s in the first round of takes, {last}/s in the last, and \
         {} bytes of WAL per message.\n\n",
        thousands(finished as f64),
        thousands(MESSAGES as f64),
        thousands(ROUND as f64),
        thousands(BACKLOG as f64),
        thousands(wal as f64 / finished.max(1) as f64),
    );
    text += &head("largest tables", &columns);
    for row in rows {
        let name: String = row.get(0);
        let (table, indexes): (i64, i64) = (row.get(1), row.get(2));
        let (live, dead): (i64, i64) = (row.get(3), row.get(4));
        let (updates, in_place): (i64, i64) = (row.get(5), row.get(6));
        let figures = [table / 1024, indexes / 1024, live, dead, updates, in_place];
        text += &line(&name, &figures.map(|figure| thousands(figure as f64)));
    }
    Ok(text)
}
