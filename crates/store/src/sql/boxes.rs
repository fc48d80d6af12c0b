//! Lists boxes and the number of their waiting entries.

use monoco_core::did::Did;
use monoco_core::record::BoxKind;

use super::db::{Db, params};
use super::rows::{self, parsed};
use crate::{BoxSummary, Page, PageRequest, StoreResult};

/// Waiting entries are counted up to this number.
const MAX_COUNTED: i64 = 1_000;

const OWNERS: &str = "
    SELECT id, did
      FROM parties
     WHERE (has_box = 1 OR here = 1 OR EXISTS (SELECT 1 FROM tunnels t WHERE t.party = parties.id))
       AND id > ?1
     ORDER BY id
";

const ANY_RECORD: &str = "SELECT 1 FROM records WHERE owner = ?1 AND box = ?2 LIMIT 1";

const UNREAD: &str = "
    SELECT count(*)
      FROM (SELECT 1
              FROM records
             WHERE owner = ?1 AND box = ?2 AND state = 'UNREAD'
             LIMIT ?3) AS waiting
";

const WAITING: &str = "
    SELECT count(*)
      FROM (SELECT 1
              FROM deliveries
             WHERE tunnel = ?1 AND state IN ('WAIT', 'FAILED')
             LIMIT ?2) AS waiting
";

/// Lists the boxes of the next owners, oldest owner first.
pub(super) fn list(db: &Db, page: &PageRequest) -> StoreResult<Page<BoxSummary>> {
    let (start, limit) = (page.beyond.unwrap_or(0), page.limit.saturating_add(1));
    let mut owners: Vec<(i64, Did)> =
        rows::list_undamaged(db, "party", limit, OWNERS, [start], |row| {
            Ok((row.get(0)?, parsed(row, 1)?))
        })?;
    let more = owners.len() > page.limit;
    owners.truncate(page.limit);
    let next = owners.last().filter(|_| more).map(|(id, _)| *id);

    let mut entries = Vec::new();
    for (id, owner) in owners {
        for box_kind in BoxKind::ALL {
            if let Some(waiting) = count_waiting(db, id, &owner, box_kind)? {
                entries.push(BoxSummary { owner: owner.clone(), box_kind, waiting });
            }
        }
    }
    Ok(Page { entries, next })
}

/// Counts the waiting entries of a box; `None` when the owner has no such box.
fn count_waiting(db: &Db, id: i64, owner: &Did, box_kind: BoxKind) -> StoreResult<Option<usize>> {
    let count = if box_kind == BoxKind::TunnelOutbox {
        if owner.tunnel().is_none() {
            return Ok(None);
        }
        rows::one(db, WAITING, params![id, MAX_COUNTED], |row| rows::unsigned(row, 0))?
    } else {
        let row = params![id, box_kind.as_str()];
        if rows::optional(db, ANY_RECORD, row, |_| Ok(()))?.is_none() {
            return Ok(None);
        }
        let row = params![id, box_kind.as_str(), MAX_COUNTED];
        rows::one(db, UNREAD, row, |row| rows::unsigned(row, 0))?
    };
    Ok(Some(usize::try_from(count).unwrap_or(usize::MAX)))
}
