//! Sizes of the tables of a store after messages were dispatched, taken and finished.

use std::path::Path;
use std::sync::Arc;

use crate::common::Result;
use crate::common::drive::drive;
use crate::common::figures::{head, line, thousands};
use crate::contender::Peer;
use crate::plan::Plan;
use crate::store::StoreContender;
use crate::tables::connect;
use crate::{new_schema, open_couriers};

/// Rounds in which a part of the backlog is taken, finished and replaced.
const ROUNDS: usize = 3;

/// Messages that wait at the start of each round.
const BACKLOG: u64 = 10_000;

const LARGEST_TABLES: &str = "
    SELECT c.relname::TEXT, pg_total_relation_size(c.oid), coalesce(s.n_live_tup, 0),
           coalesce(s.n_dead_tup, 0)
      FROM pg_class c
      JOIN pg_namespace n ON n.oid = c.relnamespace
      LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
     WHERE n.nspname = $1 AND c.relkind = 'r'
     ORDER BY 2 DESC
     LIMIT 6
";

/// Takes and finishes messages of one courier, and returns a table of the largest tables.
pub fn measure(dir: &Path, url: &Arc<str>, plan: &Plan) -> Result<String> {
    let (schema, stores_url) = (new_schema(), Arc::clone(url));
    let stores_schema = schema.clone();
    let open = move |dir: &Path| open_couriers(&stores_url, &stores_schema, 1, dir);
    let contender = StoreContender::with(dir, Box::new(open))?;
    let mut queue = contender.start()?;
    let mut finished = 0;
    for _ in 0..ROUNDS {
        queue = contender.fill(queue, BACKLOG)?;
        let mut bounds = plan.bounds;
        bounds.calls = BACKLOG;
        finished += drive(8, bounds, |number| contender.taker(&queue, number))?.messages;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        let client = connect(url).await?;
        Result::Ok(client.query(LARGEST_TABLES, &[&schema]).await?)
    })?;
    let columns = ["size, KiB", "live rows", "dead rows"].map(str::to_owned);
    let corner = format!("after {} messages taken and finished", thousands(finished as f64));
    let mut text = head(&corner, &columns);
    for row in rows {
        let (name, size, live, dead): (String, i64, i64, i64) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        let figures = [size / 1024, live, dead].map(|figure| thousands(figure as f64));
        text += &line(&name, &figures);
    }
    Ok(text)
}
