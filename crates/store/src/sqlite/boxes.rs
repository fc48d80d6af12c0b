//! Which boxes there are, and what waits in them.

use monoco_core::did::Did;
use monoco_core::record::BoxKind;
use rusqlite::{Connection, OptionalExtension, params};

use super::contacts::parsed;
use super::open::fault;
use super::rows;
use crate::{BoxSummary, Page, PageRequest, StoreError};

/// What waits is counted up to this; who has more has stopped counting.
const MOST_WAITING: i64 = 1_000;

const OWNERS: &str = "
    SELECT id, did
      FROM parties
     WHERE (has_box = 1 OR here = 1 OR EXISTS (SELECT 1 FROM tunnels t WHERE t.party = parties.id))
       AND id > ?1
     ORDER BY id
     LIMIT ?2
";

const ANY_RECORD: &str = "SELECT 1 FROM records WHERE owner = ?1 AND box = ?2 LIMIT 1";

const UNREAD: &str = "
    SELECT count(*)
      FROM (SELECT 1
              FROM records
             WHERE owner = ?1 AND box = ?2 AND state = 'UNREAD'
             LIMIT ?3)
";

const WAITING: &str = "
    SELECT count(*)
      FROM (SELECT 1
              FROM deliveries
             WHERE tunnel = ?1 AND state IN ('WAIT', 'FAILED')
             LIMIT ?2)
";

/// The boxes of the next owners, in the order we came to know these.
pub(super) fn list(db: &Connection, window: &PageRequest) -> Result<Page<BoxSummary>, StoreError> {
    let mut statement = db.prepare_cached(OWNERS).map_err(fault)?;
    let after = window.beyond.unwrap_or(0);
    let owners = statement
        .query_map(params![after, rows::count(window) + 1], |row| {
            Ok((row.get::<_, i64>(0)?, parsed::<Did>(row, 1)?))
        })
        .map_err(fault)?;
    let mut owners: Vec<(i64, Did)> = owners.collect::<rusqlite::Result<_>>().map_err(fault)?;
    let more = owners.len() > window.limit;
    owners.truncate(window.limit);
    let next = owners.last().filter(|_| more).map(|(id, _)| *id);

    let mut entries = Vec::new();
    for (id, owner) in owners {
        for box_kind in BoxKind::ALL {
            if let Some(waiting) = waiting(db, id, &owner, box_kind)? {
                entries.push(BoxSummary { owner: owner.clone(), box_kind, waiting });
            }
        }
    }
    Ok(Page { entries, next })
}

/// How many entries wait in a box; `None` when the owner has no such box.
fn waiting(
    db: &Connection,
    id: i64,
    owner: &Did,
    box_kind: BoxKind,
) -> Result<Option<usize>, StoreError> {
    let count = if box_kind == BoxKind::TunnelOutbox {
        if owner.tunnel().is_none() {
            return Ok(None);
        }
        let mut statement = db.prepare_cached(WAITING).map_err(fault)?;
        statement.query_row(params![id, MOST_WAITING], |row| rows::unsigned(row, 0))
    } else {
        let mut statement = db.prepare_cached(ANY_RECORD).map_err(fault)?;
        let any = statement.query_row(params![id, box_kind.as_str()], |_| Ok(())).optional();
        if any.map_err(fault)?.is_none() {
            return Ok(None);
        }
        let mut statement = db.prepare_cached(UNREAD).map_err(fault)?;
        let row = params![id, box_kind.as_str(), MOST_WAITING];
        statement.query_row(row, |row| rows::unsigned(row, 0))
    };
    Ok(Some(usize::try_from(count.map_err(fault)?).unwrap_or(usize::MAX)))
}
